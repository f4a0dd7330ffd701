"""Replies without an action are counted, shown, logged and, where there are no others, warned of."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import create_agent, run_episode
from comap.agents.run import Run, run_to
from comap.agents.tally import Tally
from comap.agents.unread import MOST_UNREAD
from comap.benchmarks.verify import verify
from comap.benchmarks.view import share_unread, summary_table, unread_replies, view_run
from comap.lm import Completion
from comap.trainers.tracking import Curves
from kits.scripted import HashedModel


class Fixed(HashedModel):  # type: ignore[misc, valid-type]
    """Always writes the same."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def _one(self, request: Any) -> Completion:
        if request.choices is not None:
            return Completion(request.choices[0], finish="stop")
        return Completion(self.text, finish="stop")


def env(steps: int = 3) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=steps)


def summary_of(agent: str, text: str, **options: Any) -> dict[str, Any]:
    settings = {"world_model": "oracle"} if agent in ("comap", "redraft") else {}
    played = run_episode(env(), create_agent(agent, **options), seed=0, lm=Fixed(text), **settings)
    return Tally.of([played]).summary()


RAMBLING = "I am a helpful assistant <b>and</b>\n\nI cannot do that."


@pytest.mark.parametrize("agent", ["react", "comap", "imagine-and-act", "redraft", "reflexion"])
def test_replies_without_an_action_are_counted_with_an_example(agent: str) -> None:
    counts = summary_of(agent, RAMBLING)["unread_replies"]["without_action"]
    assert counts == {"all": 3, "of": 3, "examples": [" ".join(RAMBLING.split())]}


def test_replies_with_an_action_are_counted_too() -> None:
    for options in ({}, {"decoding": "masked"}):
        summary = summary_of("react", "Thought: So.\nAction: look", **options)
        assert summary["unread_replies"] == {"without_action": {"all": 0, "of": 3, "examples": []}}
        assert "replies without an action" not in str(summary_table("", summary))
        assert unread_replies(summary) == ""


def test_of_paws_agent_the_replies_out_of_its_form_are_counted() -> None:
    summary = summary_of("paw", "<action>look</action>")
    counts = {"all": 3, "of": 3, "examples": ["<action>look</action>"]}
    assert summary["unread_replies"] == {"out_of_form": counts}
    assert summary_of("paw", "<think>So.</think><action>look</action>")["unread_replies"][
        "out_of_form"
    ] == {"all": 0, "of": 3, "examples": []}


def test_reflections_without_a_decision_are_counted() -> None:
    text = "Thought: So.\nAction: look\nDecision: KEEP or REVISE"
    unread = summary_of("comap", text)["unread_replies"]
    assert unread["without_action"]["all"] == 0
    assert (unread["without_decision"]["all"], unread["without_decision"]["of"]) == (3, 3)
    assert "reflections without a decision" in str(summary_table("", {**summary_of("comap", text)}))


def test_an_expert_and_a_random_agent_have_no_replies() -> None:
    played = run_episode(env(), create_agent("random"), seed=0)
    assert "unread_replies" not in Tally.of([played]).summary()


def test_three_short_examples_at_most_are_kept() -> None:
    summary = Tally()
    for number in range(9):
        episode = run_episode(
            env(1), create_agent("react"), seed=0, lm=Fixed(f"{number} {'x' * 5000}")
        )
        summary.add(episode)
    counts = summary.summary()["unread_replies"]["without_action"]
    assert len(counts["examples"]) == 3 and counts["all"] == 9
    assert all(len(example) <= 90 for example in counts["examples"])


def test_table_page_and_trackers_show_them(tmp_path: Path) -> None:
    tasks = env().unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]
    run = Run(make_env=env, agent=create_agent("react"), tasks=tasks, lm=Fixed(RAMBLING))
    trials: list[Any] = []
    summary = run_to(tmp_path / "run", run, on_done=trials.append)
    rows = dict(summary_table("", summary).rows)
    unread_cell = rows["replies without an action"]
    assert unread_cell.startswith("6 of 6, such as 'I am a helpful assistant")
    assert share_unread(summary) == 1.0
    page = view_run(tmp_path / "run").read_text("utf-8")
    assert "replies without an action" in page and "helpful assistant <b>" not in page
    logged: dict[str, float] = {}

    class Tracker:
        def log(self, values: Any, step: int) -> None:
            logged.update(values)

    Curves(Tracker()).add({"event": "played", "trials": trials[0]})
    assert logged["episode/unread_replies/without_action/all"] == 3.0


def test_runs_of_before_are_verified_without_the_counts(tmp_path: Path) -> None:
    tasks = env().unwrapped.tasks.ids[:1]  # type: ignore[attr-defined]
    run = Run(make_env=env, agent=create_agent("react"), tasks=tasks, lm=Fixed(RAMBLING))
    summary = run_to(tmp_path, run)
    del summary["unread_replies"]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert verify(str(tmp_path), sample=0, seed=0, data={}, options={})["agree"]


@pytest.mark.parametrize("decoding", ["free", "masked"])
def test_a_run_without_readable_replies_warns_once_of_what_to_try(
    tmp_path: Path, decoding: str
) -> None:
    make_env = lambda: env(MOST_UNREAD + 5)  # noqa: E731
    tasks = env().unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]
    agent = create_agent("react", decoding=decoding)
    run = Run(make_env=make_env, agent=agent, tasks=tasks, lm=Fixed(RAMBLING))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_to(tmp_path, run, concurrency=1)
    warning_texts = [
        str(warning.message) for warning in caught if "in a row" in str(warning.message)
    ]
    assert len(warning_texts) == (1 if decoding == "free" else 0)
    assert all(
        "--decoding masked" in text and "helpful assistant" in text for text in warning_texts
    )


def test_the_warning_comes_while_an_episode_is_under_way(tmp_path: Path) -> None:
    steps, notes = [], []
    run = Run(
        make_env=lambda: env(MOST_UNREAD + 5),
        agent=create_agent("react"),
        tasks=env().unwrapped.tasks.ids[:1],  # type: ignore[attr-defined]
        lm=Fixed(RAMBLING),
        on_step=steps.append,
        on_note=lambda text: notes.append((len(steps), text)),
    )
    run_to(tmp_path, run)
    ((steps_before, text),) = notes
    assert steps_before == MOST_UNREAD - 1 and f"{MOST_UNREAD} replies in a row" in text
    assert [step.t for step in steps] == list(range(1, MOST_UNREAD + 6))


def test_one_reply_that_can_be_read_ends_the_row(tmp_path: Path) -> None:
    class Sometimes(Fixed):
        def _one(self, request: Any) -> Completion:
            if len(self.asked) % 15 == 0:
                return Completion("Action: look")
            return Completion(self.text)

    notes: list[str] = []
    run = Run(
        make_env=lambda: env(45),
        agent=create_agent("react"),
        tasks=env().unwrapped.tasks.ids[:1],  # type: ignore[attr-defined]
        lm=Sometimes(RAMBLING),
        on_note=notes.append,
    )
    run_to(tmp_path, run)
    assert notes == []
