"""Reflection labels: drafts in an expert's states, what came of them, and which are learned from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, run_episode, run_episodes
from comap.agents.config import AgentConfig
from comap.agents.replay import ReplayAgent
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, OptionError
from comap.facts import Delta, State
from comap.lm import Completion, Generate
from comap.trainers.reflection_data import (
    DraftingAgent,
    SuffixLabel,
    balance,
    branches_of,
    choose_steps,
    label_states,
)
from comap.trainers.suffix import Branch, Outcome, suffix_outcomes
from comap.trajectory import Step, Trajectory
from comap.worldmodel import NullWorldModel

SCRIPTED = Path(__file__).parents[1] / "agents" / "scripted.py"
converse_with, view = load(f"{SCRIPTED}:converse_with"), load(f"{SCRIPTED}:view")
HashedModel = load(f"{SCRIPTED}:HashedModel")
TASK = "generated/valid_seen/0"
PLAN = ("go to desk 1", "take pen 1 from desk 1", "go to safe 1")


def real(limit: int = 50) -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=limit
    )


TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:3]  # type: ignore[attr-defined]
EPISODES = {task: run_episode(real(), ExpertAgent(), task=task) for task in TASKS}
PLANS = {task: tuple(step.action for step in EPISODES[task].steps) for task in TASKS}


class Saying(HashedModel):  # type: ignore[misc, valid-type]
    """A language model that always says the same."""

    def __init__(self, text: str):
        super().__init__()
        self._text = text

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        return [Completion(self._text, (1,), (-0.5,), "stop", 9, 1) for _ in requests]


# Choosing states and drafting.


def test_steps_are_chosen_for_each_task_by_itself() -> None:
    plans = {str(number): ("look",) * 20 for number in range(30)}
    chosen = choose_steps(plans, 4, seed=1)
    assert {len(steps) for steps in chosen.values()} == {4}
    assert choose_steps({"7": plans["7"]}, 4, seed=1) == {"7": chosen["7"]}
    assert choose_steps(dict(reversed(plans.items())), 4, seed=1) == chosen
    assert choose_steps(plans, 4, seed=2) != chosen and len(set(chosen.values())) > 20
    assert set().union(*chosen.values()) == set(range(20))
    assert choose_steps({"a": PLAN}, 4)["a"] == choose_steps({"a": PLAN}, None)["a"] == {0, 1, 2}
    assert choose_steps({"a": ()}, 4) == {"a": frozenset()}
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(OptionError, match="states_per_episode"):
            choose_steps(plans, wrong)  # type: ignore[arg-type]


def drafting(context: Any = "mixed", **options: Any) -> DraftingAgent:
    return DraftingAgent(AgentConfig(**options), {TASK: PLAN}, {TASK: frozenset({1})}, context)


def test_the_plan_is_followed_and_drafts_are_only_noted() -> None:
    first = converse_with(drafting(), view(), [])
    assert (first.decision.action, first.decision.notes) == (
        "go to desk 1",
        {"shown": "Action: go to desk 1"},
    )
    seen = view(("go to desk 1", "A desk."))
    said = "Thought: Hm.\nAction: look"
    talk = converse_with(drafting("wm"), seen, [said, "A desk, again."])
    assert talk.purposes == ["draft", "imagine look"]
    assert talk.requests[0].messages[-2:] == (
        ("assistant", "Action: go to desk 1"),
        ("user", "A desk."),
    )
    assert talk.decision.action == PLAN[1] and talk.decision.imagined is None
    assert talk.decision.notes == {
        "shown": f"Action: {PLAN[1]}",
        "draft_action": "look",
        "draft_parsed": True,
        "draft_response": said,
        "predicted_next_state": "A desk, again.",
    }


def test_the_world_model_is_asked_only_where_its_words_may_be_shown() -> None:
    seen = view(("go to desk 1", "A desk."))
    for context in ("env", "none"):
        talk = converse_with(drafting(context), seen, ["Action: look"])
        assert talk.purposes == ["draft"]
        assert talk.decision.notes["predicted_next_state"] is None
    talk = converse_with(drafting("mixed"), seen, ["Hm.", "Hm."])
    assert talk.purposes == ["draft", "draft: retry"]
    assert talk.decision.notes["draft_parsed"] is False
    with pytest.raises(OptionError, match="init_context"):
        drafting("all")


def test_the_plans_end_and_unknown_tasks_end_the_episode() -> None:
    turns = tuple((action, "Ok.") for action in PLAN)
    assert converse_with(drafting(), view(*turns), []).decision.action is None
    assert converse_with(drafting(), view(task="other"), []).decision.action is None


# From drafts to labels, on real episodes.


def drafts(text: str, context: Any = "env") -> list[Trajectory]:
    config, steps = AgentConfig(temperature=0), choose_steps(PLANS, None)
    agent = DraftingAgent(config, PLANS, steps, context)
    done = run_episodes(real, agent, TASKS, lm=Saying(text), world_model=NullWorldModel())
    assert all(episode.success and episode.error is None for episode in done)
    return done


def outcomes_of(episodes: list[Trajectory], agent: Any, limit: int, n: int = 1) -> Any:
    branches = branches_of(episodes, n)
    found = suffix_outcomes(lambda: real(limit), agent, branches)
    return dict(zip(branches, found, strict=True))


def test_a_wasted_step_matters_exactly_where_there_is_no_time_for_it() -> None:
    episodes = drafts("Action: look")
    states = sum(map(len, PLANS.values()))
    branches = branches_of(episodes)
    assert len(branches) == 2 * states and len(set(branches)) == len(branches)
    assert branches[:2] == [
        Branch(TASKS[0], (), "look", 0),
        Branch(TASKS[0], (), PLANS[TASKS[0]][0], 0),
    ]

    kept, left_out = label_states(
        episodes, outcomes_of(episodes, ExpertAgent(), 50), init_context="env"
    )
    assert len(kept) == states and left_out == {"unparsed": 0, "failed": 0}
    assert {(one.y, one.target, one.kind) for one in kept} == {(0, "look", "keep_draft")}
    assert {(one.succ_draft, one.succ_exp) for one in kept} == {(1.0, 1.0)}  # a tie: kept

    longest = max(map(len, PLANS.values()))
    revised, _ = label_states(
        episodes, outcomes_of(episodes, ExpertAgent(), longest), init_context="env"
    )
    for one in revised:
        hurried = len(PLANS[one.task]) == longest
        assert one.y == hurried and one.succ_exp == 1.0 and one.succ_draft == (not hurried)
        assert one.target == (PLANS[one.task][one.step] if hurried else "look")
        assert one.kind == ("revise_positive" if hurried else "keep_draft")
        assert one.prefix == PLANS[one.task][: one.step]
    assert 0 < sum(one.y for one in revised) < states


def test_the_future_of_a_draft_is_what_really_follows_it() -> None:
    episodes = drafts("Action: look")
    labels, _ = label_states(episodes, outcomes_of(episodes, ExpertAgent(), 50), init_context="env")
    env = real()
    for one in labels:
        env.reset(options={"task": one.task})
        for action in one.prefix:
            env.step(action)
        assert (one.future, one.future_source) == (env.step("look")[0], "env")


def test_a_draft_that_means_the_experts_action_is_kept_without_rollouts() -> None:
    task = TASKS[0]
    spelled = f"Walk to the {PLANS[task][0].removeprefix('go to ')}."
    episodes = [one for one in drafts(f"Action: {spelled}", "wm") if one.task == task]
    branches = branches_of(episodes)
    assert all(branch.prefix for branch in branches)  # none at the first step
    found = outcomes_of(episodes, ExpertAgent(), 50)
    (first, *_), _ = label_states(episodes, found, init_context="env")
    assert (first.y, first.kind, first.target) == (0, "expert_draft", spelled.rstrip("."))
    assert first.future == EPISODES[task].steps[0].observation
    assert (first.succ_draft, first.succ_exp, first.ret_draft, first.ret_exp) == (None,) * 4
    (shown, *_), _ = label_states(episodes, found, init_context="wm")
    assert (shown.future_source, shown.y) == ("wm", 0) and shown.future != first.future


def test_what_follows_a_draft_decides_with_a_continuation_that_cannot_adapt() -> None:
    """With the plan's own actions by number as continuation, whoever loses a step loses the task."""
    task = TASKS[1]
    episodes = [episode for episode in drafts("Action: look") if episode.task == task]
    labels, _ = label_states(
        episodes, outcomes_of(episodes, ReplayAgent(EPISODES[task]), 50), init_context="none"
    )
    assert [one.y for one in labels] == [1] * len(PLANS[task])
    assert {(one.future, one.future_source) for one in labels} == {("", "none")}


# The rule, on outcomes by hand.


def episode(*drafted: tuple[str, Any], task: str = TASK, parsed: bool = True) -> Trajectory:
    steps = []
    for number, (action, draft) in enumerate(drafted):
        notes: dict[str, Any] = {"shown": f"Action: {action}"}
        if draft is not None:
            notes |= {
                "draft_action": draft,
                "draft_parsed": parsed,
                "draft_response": f"Action: {draft}",
            }
            notes |= {"predicted_next_state": f"predicted {number}"}
        said = f"after {action}"
        steps.append(
            Step(number + 1, action, said, 0.0, False, False, False, State(), Delta(), notes=notes)
        )
    return Trajectory(
        "comap/ALFWorld-v0",
        task,
        "train",
        "goal",
        "comap-drafting",
        "Hello.",
        State(),
        tuple(steps),
    )


ONE = episode(("go to desk 1", "look"))
BOTH = (Branch(TASK, (), "look", 0), Branch(TASK, (), "go to desk 1", 0))


def ended(success: bool, ret: float, error: str | None = None, said: str = "real") -> Outcome:
    return Outcome(success, ret, 3, said, error)


@pytest.mark.parametrize(
    ("draft", "expert", "delta", "y"),
    [
        ((False, 0.0), (True, 1.0), None, 1),
        ((True, 1.0), (False, 0.0), None, 0),
        ((True, 1.0), (True, 1.0), None, 0),
        ((False, 0.0), (False, 0.0), None, 0),
        ((True, 0.2), (False, 0.9), None, 0),  # success goes first
        ((False, 0.9), (True, 0.2), None, 1),
        ((False, 0.5), (False, 0.54), None, 0),
        ((False, 0.5), (False, 0.55), None, 0),  # 0.05 is not above 0.05
        ((False, 0.5), (False, 0.56), None, 1),
        ((False, 0.5), (False, 0.56), 0.1, 0),
        ((False, 0.5), (False, 0.51), 0.0, 1),
        ((False, 0.0), (False, 1.0), None, 1),
        ((False, 0.6), (False, 0.5), 0.0, 0),
    ],
)
def test_the_rule(draft: Any, expert: Any, delta: float | None, y: int) -> None:
    outcomes = dict(zip(BOTH, (ended(*draft), ended(*expert)), strict=True))
    (label,), left_out = label_states([ONE], outcomes, delta=delta, init_context="env")
    assert label.y == y and label.target == ("go to desk 1" if y else "look")
    assert (label.succ_draft, label.ret_draft) == draft and left_out["failed"] == 0
    assert (label.succ_exp, label.ret_exp) == expert and label.future == "real"


def test_means_over_seeds() -> None:
    results = {
        "look": [(True, 1.0), (False, 0.2), (False, 0.0)],
        "go to desk 1": [(False, 0.6), (True, 1.0), (False, 0.1)],
    }
    outcomes = {
        Branch(TASK, (), action, seed): ended(*result, said=f"{action} {seed}")
        for action, found in results.items()
        for seed, result in enumerate(found)
    }
    assert list(outcomes) == sorted(branches_of([ONE], 3), key=list(outcomes).index)
    (label,), _ = label_states([ONE], outcomes, n_suffix=3, init_context="env")
    assert label.succ_draft == label.succ_exp == pytest.approx(1 / 3)
    assert (label.ret_draft, label.ret_exp) == (pytest.approx(0.4), pytest.approx(1.7 / 3))
    assert label.y == 1 and label.future == "look 0"
    (first,), _ = label_states([ONE], outcomes, init_context="env")
    assert first.y == 0


def test_what_cannot_be_labelled_is_counted() -> None:
    bad = episode(("look", "hello there"), parsed=False, task="b")
    assert branches_of([bad]) == []
    broken = dict(zip(BOTH, (ended(False, 0.0, "X: y"), ended(True, 1.0)), strict=True))
    assert label_states([ONE, bad, ONE], broken) == ([], {"unparsed": 1, "failed": 2})
    cut = replace(ONE.steps[0], truncated=True, notes=episode(("look", "look")).steps[0].notes)
    stopped = replace(ONE, steps=(replace(cut, action="look"),), error="EngineError: x")
    assert label_states([stopped], {})[1] == {"unparsed": 0, "failed": 1}


def test_a_branch_that_was_not_played_is_asked_for() -> None:
    with pytest.raises(OptionError, match="branches_of"):
        label_states([ONE], {BOTH[0]: ended(True, 1.0)})
    for wrong in (0, True, 1.0):
        with pytest.raises(OptionError, match="n_suffix"):
            branches_of([ONE], wrong)  # type: ignore[arg-type]
    silent = episode(("go to desk 1", "look"))
    notes = {**silent.steps[0].notes, "predicted_next_state": None}
    silent = replace(silent, steps=(replace(silent.steps[0], notes=notes),))
    outcomes = dict.fromkeys(BOTH, ended(True, 1.0))
    with pytest.raises(OptionError, match="prediction"):
        label_states([silent], outcomes, init_context="wm")
    assert label_states([silent], outcomes, init_context="env")[0]
    notes["draft_action"] = ["look"]
    with pytest.raises(DataCorrupt, match="draft_action"):
        label_states([silent], outcomes)


def test_mixed_futures_are_about_half_and_half_and_drawn_for_each_state() -> None:
    episodes = [episode(*((PLAN[0], PLAN[0]),) * 40, task=f"task {n}") for n in range(10)]
    labels, _ = label_states(episodes, {}, seed=3)
    shares = sum(one.future_source == "wm" for one in labels) / len(labels)
    assert 0.4 < shares < 0.6
    for one in labels:
        real = f"after {PLAN[0]}"
        assert one.future == (f"predicted {one.step}" if one.future_source == "wm" else real)
    again, _ = label_states(episodes[::-1], {}, seed=3)
    assert sorted(again, key=repr) == sorted(labels, key=repr)
    assert label_states(episodes, {}, seed=4)[0] != labels


# Balance, and files.


def label(number: int, kind: str) -> SuffixLabel:
    played = None if kind == "expert_draft" else 0.0
    y = int(kind == "revise_positive")
    return SuffixLabel(
        task=f"task {number}",
        step=1,
        prefix=("look",),
        draft_action="inventory",
        draft_response="Thought: \x1b\u2028?\nAction: inventory",
        expert_action="go to desk 1",
        succ_draft=played,
        succ_exp=None if played is None else float(y),
        ret_draft=played,
        ret_exp=None if played is None else 0.25,
        y=y,
        target="go to desk 1" if y else "inventory",
        future="A desk.",
        future_source="wm",
    )


KINDS = ["keep_draft"] * 20 + ["revise_positive"] * 4 + ["expert_draft"] * 20
LABELS = [label(number, kind) for number, kind in enumerate(KINDS)]


def test_no_more_than_three_are_kept_for_each_revision() -> None:
    kept, counts = balance(LABELS)
    assert counts["revise_positive"] == 4 and counts["keep_draft"] + counts["expert_draft"] == 12
    assert counts["dropped_keep_draft"] + counts["dropped_expert_draft"] == 28
    assert counts["keep_draft"] + counts["dropped_keep_draft"] == 20 and counts["keep_draft"] > 0
    places = [LABELS.index(one) for one in kept]
    assert places == sorted(places) and len(kept) == 16
    assert balance(LABELS) == (kept, counts) and balance(LABELS, seed=1)[0] != kept
    assert set(map(repr, balance(LABELS[::-1])[0])) == set(map(repr, kept))
    assert len(balance(LABELS, 1.6)[0]) == 4 + 6
    assert balance(LABELS, 10)[0] == LABELS
    assert [one.y for one in balance(LABELS, 0)[0]] == [1] * 4


def test_without_revisions_a_few_are_kept() -> None:
    keeps = [label(number, "keep_draft") for number in range(50)]
    assert len(balance(keeps)[0]) == 32
    assert balance(keeps, alone=0) == (
        [],
        {
            "expert_draft": 0,
            "revise_positive": 0,
            "keep_draft": 0,
            "dropped_expert_draft": 0,
            "dropped_keep_draft": 50,
        },
    )
    for wrong in ({"ratio": -1}, {"ratio": float("nan")}, {"ratio": "3"}, {"alone": -1}):
        with pytest.raises(OptionError):
            balance(keeps, **wrong)  # type: ignore[arg-type]


def test_labels_come_back_from_files() -> None:
    for one in LABELS:
        assert SuffixLabel.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    "change",
    [
        {"y": 2},
        {"y": True},
        {"step": 2},
        {"prefix": [1]},
        {"prefix": None},
        {"succ_exp": 1.5},
        {"ret_draft": "0"},
        {"future_source": "teacher"},
        {"target": None},
        {"more": 1},
    ],
)
def test_labels_are_read_with_care(change: dict[str, Any]) -> None:
    with pytest.raises(DataCorrupt, match="label"):
        SuffixLabel.from_json(LABELS[0].to_json() | change)
    less = LABELS[0].to_json()
    del less["future"]
    with pytest.raises(DataCorrupt, match="label"):
        SuffixLabel.from_json(less)
