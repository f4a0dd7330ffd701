"""CoMap that looks ahead only where it pays: what it asks then, and what it remembers of the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import run_episodes
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.gate_history import GateHistory
from comap.agents.selective import SelectiveCoMapAgent, SelectiveCoMapConfig
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.lm import Completion

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
HashedModel = load(f"{HERE}:HashedModel")

DRAFT = "Thought: The safe is far.\nAction: go to desk 1"
SAFE = (
    "Reflection: The pen goes into the safe.\nDecision: REVISE\n"
    "Final Action: go to safe 1\nRevise Probability: 0.9"
)
DESK = "You arrive at desk 1. On the desk 1, you see a pen 1."
SURE = [(-0.1, -0.2)]
OPTIONS: dict[str, Any] = {"p_source": "verbal"}
OFTEN, SELDOM = GateHistory({"go": 50}, {"go": 40}), GateHistory({"go": 50}, {"go": 1})


def agent(history: GateHistory | None = None, **options: Any) -> SelectiveCoMapAgent:
    return SelectiveCoMapAgent(SelectiveCoMapConfig(**{**OPTIONS, **options}), history=history)


def draft(*logprobs: float) -> Completion:
    return Completion(DRAFT, tuple(range(len(logprobs))), logprobs, "stop", 7, len(logprobs))


def test_without_a_criterion_it_is_comap() -> None:
    mine = converse_with(agent(), view(), [DRAFT, DESK, SAFE, SURE])
    plain = converse_with(CoMapAgent(CoMapConfig(**OPTIONS)), view(), [DRAFT, DESK, SAFE, SURE])
    assert mine.requests == plain.requests and mine.decision.action == plain.decision.action
    notes = dict(mine.decision.notes)
    assert notes.pop("look_ahead") == {"asked": True}
    assert notes == plain.decision.notes


@pytest.mark.parametrize(("surprisal", "asks"), [(0.19, True), (0.2, False), (0.5, False)])
def test_a_draft_that_the_policy_is_sure_of_is_taken(surprisal: float, asks: bool) -> None:
    replies = [draft(-0.1, -0.3), *((DESK, SAFE, SURE) if asks else ())]
    talk = converse_with(agent(surprisal=surprisal), view(), replies)
    assert talk.decision.action == ("go to safe 1" if asks else "go to desk 1")
    assert talk.decision.notes["look_ahead"] == {"surprisal": 0.2, "asked": asks}
    if not asks:
        assert talk.kinds == ["Generate"] and talk.decision.imagined is None
        assert talk.decision.notes["path"] == "reflection_skipped"
        assert talk.decision.notes["predicted_next_state"] is None
        assert not talk.decision.notes["gate"]


@pytest.mark.parametrize(("history", "asks"), [(OFTEN, True), (SELDOM, False), (None, True)])
def test_a_draft_whose_like_was_never_revised_is_taken(
    history: GateHistory | None, asks: bool
) -> None:
    replies = [DRAFT, *((DESK, SAFE, SURE) if asks else ())]
    talk = converse_with(agent(history, adoption=0.1), view(), replies)
    assert talk.decision.notes["look_ahead"]["asked"] == asks
    assert talk.decision.action == ("go to safe 1" if asks else "go to desk 1")


@pytest.mark.parametrize(
    ("when", "logprob", "history", "asks"),
    [
        ("any", -0.5, SELDOM, True),
        ("any", -0.01, OFTEN, True),
        ("any", -0.01, SELDOM, False),
        ("all", -0.5, SELDOM, False),
        ("all", -0.01, OFTEN, False),
        ("all", -0.5, OFTEN, True),
    ],
)
def test_one_of_both_criteria_or_both(
    when: Any, logprob: float, history: GateHistory, asks: bool
) -> None:
    made = agent(history, surprisal=0.1, adoption=0.1, when=when)
    talk = converse_with(made, view(), [draft(logprob), *((DESK, SAFE, SURE) if asks else ())])
    assert talk.decision.notes["look_ahead"]["asked"] == asks


def test_what_the_gate_did_in_this_task_counts() -> None:
    memory: dict[str, Any] = {}
    made = agent(GateHistory({"go": 3}, {"go": 0}), adoption=0.0, tried=2)
    keep = "Reflection: Good.\nDecision: KEEP\nFinal Action: go to desk 1\nRevise Probability: 0.1"
    for said in (keep, SAFE):  # as often as is tried in any case
        converse_with(made, view(memory=memory), [DRAFT, DESK, said, SURE])
    talk = converse_with(made, view(memory=memory), [DRAFT, DESK, keep, SURE])
    share = GateHistory({"go": 5}, {"go": 1}).share("go to desk 1")
    assert talk.decision.notes["look_ahead"]["adoption"] == pytest.approx(share, abs=1e-6)
    assert memory["gate outcomes"] == [["go", False], ["go", True], ["go", False]]
    elsewhere = converse_with(made, view(memory={"gate outcomes": [["go", False]] * 2}), [DRAFT])
    assert not elsewhere.decision.notes["look_ahead"]["asked"]


def test_surprisal_that_is_not_told() -> None:
    with pytest.raises(LanguageModelError, match="log-probabilities of the draft's tokens"):
        converse_with(agent(surprisal=0.1), view(), [Completion(DRAFT)])
    with pytest.raises(LanguageModelError, match="finite"):
        converse_with(agent(surprisal=0.1), view(), [draft(float("-inf"))])


@pytest.mark.parametrize(
    "options",
    [
        {"surprisal": -1},
        {"surprisal": float("nan")},
        {"adoption": 1.5},
        {"adoption": True},
        {"when": "both"},
        {"tried": -1},
        {"tried": 1.5},
    ],
    ids=str,
)
def test_settings_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        SelectiveCoMapConfig(**options)


def test_what_comes_of_a_task_does_not_depend_on_the_others() -> None:
    def make() -> gym.Env[str, str]:
        return gym.make(
            "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=5
        )

    tasks = make().unwrapped.tasks.ids[:6]  # type: ignore[attr-defined]
    made = agent(SELDOM, adoption=0.02, surprisal=0.4, tried=1, q_source="proxy")
    one, six = (
        run_episodes(make, made, tasks, lm=HashedModel(), world_model="null", live=live)
        for live in (1, 6)
    )
    assert [t.to_json() for t in one] == [t.to_json() for t in six]
    asked = [s.notes["look_ahead"]["asked"] for t in one for s in t.steps if s.notes["gate_parts"]]
    assert True in asked and False in asked
    history = GateHistory.of(one)
    reflected = sum(s.notes["path"] == "reflected" for t in one for s in t.steps)
    assert history.reflections == reflected > 0
    assert sum(history.opened.values()) == sum(s.notes["gate"] for t in one for s in t.steps)


def test_a_history_is_saved_and_loaded(tmp_path: Path) -> None:
    file = tmp_path / "new" / "history.json"
    OFTEN.save(file)
    assert GateHistory.load(file) == OFTEN
    assert SelectiveCoMapAgent(history=file).history == OFTEN
    assert [path.name for path in file.parent.iterdir()] == ["history.json"]
    with pytest.raises(DataNotFound):
        GateHistory.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[]",
        "{}",
        {"seen": {"go": 1}},
        {"seen": {"go": -1}, "opened": {}},
        {"seen": {"go": 1}, "opened": {"go": 2}},
        {"seen": {"go": 1}, "opened": {"open": 1}},
        {"seen": {"go": True}, "opened": {}},
        {"seen": [["go"]], "opened": {}},
        {"seen": {"go": 10**40}, "opened": {}},
    ],
    ids=str,
)
def test_a_file_that_is_no_history(tmp_path: Path, told: Any) -> None:
    file = tmp_path / "history.json"
    if isinstance(told, dict):
        told = json.dumps({"format": "comap gate history 1", **told})
    file.write_text(told)
    with pytest.raises(DataCorrupt, match="gate history"):
        GateHistory.load(file)


def test_shares_are_drawn_to_that_of_all_drafts() -> None:
    history = GateHistory({"go": 90, "open": 10}, {"go": 0, "open": 10})
    assert history.share("never seen") == pytest.approx(0.1)
    assert history.share("go to desk 1") < 0.1 < history.share("open desk 1") < 1
    assert GateHistory().share("look") == 1.0
