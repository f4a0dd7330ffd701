"""Replies that end at their limit of tokens are counted, shown and explained."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym

from comap.agents import create_agent, run_episode
from comap.agents.run import Run, run_to
from comap.agents.tally import Tally
from comap.benchmarks.view import cut_replies, summary_table
from comap.lm import Completion
from comap.trajectory import Call, Trajectory
from comap.worldmodel.language import LanguageWorldModel
from kits.scripted import HashedModel


class CutModel(HashedModel):  # type: ignore[misc, valid-type]
    """Writes readable text to the last token that it is allowed."""

    def _one(self, request: Any) -> Completion:
        if request.choices is not None:
            return Completion(request.choices[0], (1,), (-0.5,), "stop", 9, 1)
        text = "Thought: So.\nAction: look\nReflection: No.\nDecision: KEEP\nFinal Action: look"
        return Completion(text, (1, 2), (-0.5, -0.5), "length", 9, 2)


def env() -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=2)


def played(name: str, **options: Any) -> Trajectory:
    settings = {"temperature": 0.0, **options}
    lm = CutModel()
    return run_episode(
        env(), create_agent(name, **settings), seed=0, lm=lm, world_model=LanguageWorldModel(lm)
    )


def test_replies_that_were_cut_are_counted_by_what_they_were_for() -> None:
    summary = Tally.of([played("comap", final_tokens=0)]).summary()
    assert summary["cut_replies"] == {
        "language_model": {"all": 4, "for": {"draft": 2, "reflect": 2}},
        "world_model": {"all": 2, "for": {"world model": 2}},
    }


def test_parts_of_a_reply_that_may_end_anywhere_are_not_cut() -> None:
    summary = Tally.of([played("comap", decoding="masked", p_source="verbal")]).summary()
    assert list(summary["cut_replies"]) == ["world_model"]
    assert Call("generate", "draft 2: retry", "", finish="length").is_cut
    assert not Call("generate", "draft 2: thought", "", finish="length").is_cut
    assert not Call("generate", "draft", "", finish="stop").is_cut


def test_a_summary_without_cut_replies_is_as_it_was() -> None:
    lm = HashedModel()
    agent = create_agent("react", temperature=0.0)
    summary = Tally.of([run_episode(env(), agent, seed=0, lm=lm)]).summary()
    assert "cut_replies" not in summary and not cut_replies(summary, {})


def test_the_table_counts_them_and_a_line_names_what_to_set(tmp_path: Path) -> None:
    agent = create_agent("react", temperature=0.0)
    tasks = env().unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]
    summary = run_to(tmp_path, Run(make_env=env, agent=agent, tasks=tasks, lm=CutModel()))
    rows = dict(summary_table("run", summary).rows)
    assert rows["model: replies cut off"] == "4 of 4 calls (draft 4)"
    (line,) = cut_replies(summary, agent.config.describe())
    assert "4 of 4 calls (draft 4)" in line and "--agent-option" in line
    assert f"draft_tokens={agent.config.draft_tokens}" in line


def test_a_purpose_of_any_kind_is_only_text() -> None:
    tally = Tally()
    tally.language_model.update(calls=1)
    tally.cut["language_model"] = Counter({"<b>\x1b[2J": 1})
    rows = dict(summary_table("run", tally.summary()).rows)
    assert "\x1b" not in rows["model: replies cut off"]
