"""Scores of predictions, revisions and gates, by numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

from comap.agents import ExpertAgent, run_episode
from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.errors import DataCorrupt, OptionError, WorldModelError
from comap.facts import Delta, State
from comap.trainers.evaluation import gate_report, score_transitions
from comap.trainers.frozen_sets import fingerprint, freeze
from comap.trainers.revisions import RevisionPair, revision_branches, revision_report
from comap.trainers.suffix import Branch, Outcome, suffix_outcomes
from comap.trajectory import Step, Trajectory
from comap.worldmodel import NullWorldModel, Prediction, Query, Transition

ENV = "comap/ALFWorld-v0"
CANON = ALFWorldCanonicalizer()
SAFE = State(frozenset({("at", "agent", "safe 1"), ("closed", "safe 1")}))
HAND = State(frozenset({("at", "agent", "desk 1"), ("holding", "pen 1")}))


def asked(state: State, action: str, observation: str) -> Transition:
    return Transition(Query(ENV, "goal", (), state, action), observation)


SET = [
    # +open +seen +in -closed: first sight.
    asked(SAFE, "open safe 1", "You open the safe 1. The safe 1 is open. In it, you see a pen 1."),
    # +in -holding
    asked(HAND, "move pen 1 to desk 1", "You move the pen 1 to the desk 1."),
    # nothing
    asked(HAND, "open desk 1", "Nothing happens."),
    # nothing, but said otherwise
    asked(HAND, "close desk 1", "Nothing happens."),
    # the truth fits no rule
    asked(HAND, "dance", "The floor shakes."),
]
SAID = [
    # +open +seen -closed of +open +seen +in -closed: F1 = 2 * 3 / (3 + 4)
    "You open the safe 1. The safe 1 is open. In it, you see nothing.",
    "You move the pen 1 to the desk 1.",
    "Nothing happens.",
    "The dragon sleeps.",
    "Nothing happens.",
]


class Said:
    """Answers each action with its text, and remembers how many were asked at once."""

    def __init__(self, texts: Sequence[str] = SAID):
        pairs = zip(SET, texts, strict=True)
        self.texts = {transition.query.action: text for transition, text in pairs}
        self.asked: list[int] = []

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.asked.append(len(queries))
        return [Prediction(self.texts[query.action]) for query in queries]


def test_scores_by_hand() -> None:
    model = Said()
    found = score_transitions(model, SET, CANON, batch=2)
    assert model.asked == [2, 2, 1]
    assert found == score_transitions(Said(), SET, CANON)
    assert json.loads(json.dumps(found)) == found
    assert (found["transitions"], found["n"], found["dropped"]) == (5, 4, 1)
    assert found["fingerprint"] == fingerprint(SET)
    assert found["parse_failure_rate"] == 0.25 and found["no_op_share"] == 0.5
    reveal = 100 * 6 / 7
    assert found["all"] == {
        "n": 4,
        "delta_f1": pytest.approx((reveal + 200) / 4, abs=1e-4),
        "stderr": 24.0464,  # the root of (0.6939 / 3) / 4
        "exact_change": 50.0,
        "exact_text": 50.0,
    }
    assert found["nonempty"]["n"] == 2
    assert found["nonempty"]["delta_f1"] == pytest.approx((reveal + 100) / 2, abs=1e-4)
    assert found["unpredictable"]["n"] == 1
    assert found["unpredictable"]["delta_f1"] == pytest.approx(reveal, abs=1e-4)
    assert found["predictable"]["n"] == 3
    assert found["predictable"]["delta_f1"] == pytest.approx(200 / 3, abs=1e-4)
    assert found["by_predicate"]["in"] == {
        "precision": 1.0,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3, abs=1e-6),
        "support": 2,
    }


class OtherFacts:
    """Knows facts, but not which of them could be foreseen."""

    version = "zoo-1"
    initial, update, action = CANON.initial, CANON.update, CANON.action


def test_what_cannot_be_told_is_in_neither_part() -> None:
    found = score_transitions(Said(), SET, OtherFacts())
    assert (found["all"]["n"], found["predictable"]["n"], found["unpredictable"]["n"]) == (4, 0, 0)


def test_no_transitions_have_no_scores() -> None:
    found = score_transitions(NullWorldModel(), [], CANON)
    assert found["n"] == 0 and found["parse_failure_rate"] is None
    assert found["all"] == {
        "n": 0,
        "delta_f1": None,
        "stderr": None,
        "exact_change": None,
        "exact_text": None,
    }


def test_wrong_batches_and_answers_are_refused() -> None:
    with pytest.raises(OptionError, match="batch must be at least 1"):
        score_transitions(NullWorldModel(), SET, CANON, batch=0)

    class Silent:
        def predict(self, queries: Sequence[Query]) -> list[Prediction]:
            return []

    with pytest.raises(WorldModelError):
        score_transitions(Silent(), SET, CANON)


class Truth:
    """Answers with what was really observed."""

    def __init__(self, transitions: Sequence[Transition]):
        self.known = dict(transitions)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [Prediction(self.known[query]) for query in queries]


def test_the_truth_scores_full_marks_on_real_episodes() -> None:
    env = gymnasium.make(ENV, source="generated", max_episode_steps=20)
    tasks = env.unwrapped.tasks.ids[:4]  # type: ignore[attr-defined]
    frozen = freeze((run_episode(env, ExpertAgent(), task=task) for task in tasks), 40, seed=0)
    found = score_transitions(Truth(frozen), frozen, env.unwrapped.canonicalizer)  # type: ignore[attr-defined]
    assert found["predictable"]["n"] and found["unpredictable"]["n"]
    assert found["predictable"]["n"] + found["unpredictable"]["n"] == found["n"] == len(frozen)
    for part in ("all", "nonempty", "predictable", "unpredictable"):
        assert found[part]["delta_f1"] == found[part]["exact_text"] == 100.0


# -- revisions -----------------------------------------------------------------------------------


def step(t: int, action: str, imagined: bool = False, invalid: bool = False, **notes: Any) -> Step:
    return Step(
        t,
        action,
        "Nothing happens.",
        0.0,
        False,
        False,
        imagined,
        State(),
        Delta(),
        invalid_action=invalid,
        notes=notes,
    )


def reflected(draft: str, ref: str | None, gate: bool = False, **notes: Any) -> dict[str, Any]:
    changed = ref is not None and draft != ref
    return {
        "path": "reflected",
        "draft_action": draft,
        "draft_parsed": True,
        "ref_action": ref,
        "gate": gate,
        "gate_parts": {"p": True, "q": gate, "changed": changed},
        **notes,
    }


EPISODE = Trajectory(
    ENV,
    "task/1",
    "train",
    "goal",
    "comap",
    "Hello.",
    State(),
    (
        step(1, "look", **reflected("look", "go to desk 1")),
        step(2, "go to desk 1", **reflected("look", "go to desk 1", gate=True)),
        step(3, "Look.", **reflected("Look.", "look")),
        step(4, "look", **reflected("look", None)),
        step(5, "???", path="draft_only_fallback", draft_action="???", draft_parsed=False),
        step(6, "look", path="reflection_skipped", draft_action="look", draft_parsed=True),
        step(7, "inventory"),
        step(8, "look", **reflected("look", "inventory")),
    ),
    seed=7,
)
TAKEN = ("look", "go to desk 1", "Look.", "look", "???", "look", "inventory")


def branch(steps: int, action: str, seed: int = 7) -> Branch:
    return Branch(task="task/1", prefix=TAKEN[:steps], action=action, seed=seed)


def test_decisions_that_can_be_tried() -> None:
    assert revision_branches([EPISODE], 10, seed=0) == [
        RevisionPair(branch(0, "look"), branch(0, "go to desk 1"), True),
        RevisionPair(branch(1, "look"), branch(1, "go to desk 1"), True),
        RevisionPair(branch(2, "Look."), branch(2, "Look."), False),
        RevisionPair(branch(7, "look"), branch(7, "inventory"), True),
    ]


def test_a_gated_revision_is_one_that_was_taken() -> None:
    pairs = revision_branches([EPISODE], 10, seed=0, mode="gated")
    assert [pair.revised for pair in pairs] == [False, True, False, False]
    assert pairs[0].reflected == pairs[0].draft == branch(0, "look")


def test_decisions_are_drawn_by_the_seed_alone() -> None:
    many = [replace(EPISODE, task=f"task/{n}", seed=None) for n in range(9)]
    pairs = revision_branches(many, 12, seed=5)
    assert len(pairs) == 12 and {pair.draft.seed for pair in pairs} == {5}
    assert pairs == revision_branches(many[::-1], 12, seed=5)
    assert pairs != revision_branches(many, 12, seed=6)
    assert revision_branches(many, 0, seed=5) == []


def test_nothing_is_tried_after_an_imagined_step() -> None:
    steps = (*EPISODE.steps[:2], replace(EPISODE.steps[2], imagined=True), *EPISODE.steps[3:])
    assert len(revision_branches([replace(EPISODE, steps=steps)], 10, seed=0)) == 2


@pytest.mark.parametrize("notes", [{"draft_action": 3}, {"ref_action": ["look"]}])
def test_notes_of_another_kind_are_refused(notes: dict[str, Any]) -> None:
    wrong = replace(EPISODE, steps=(step(1, "look", **{**reflected("look", "look"), **notes}),))
    with pytest.raises(DataCorrupt, match="an action's text"):
        revision_branches([wrong], 1, seed=0)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 0"):
        revision_branches([], -1, seed=0)
    with pytest.raises(OptionError, match="'reflected', 'gated'"):
        revision_branches([], 1, seed=0, mode="both")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="two outcomes"):
        revision_report(revision_branches([EPISODE], 2, seed=0), [])


def ended(success: bool, error: str | None = None) -> Outcome:
    return Outcome(success=success, ret=float(success), steps=1, observation="", error=error)


def test_rates_by_hand() -> None:
    """Good drafts: 4, revised 3, into failure 1. Revisions: 5, of which 1 saves a bad draft."""
    cases = [
        (True, True, False),
        (True, True, True),
        (True, True, True),
        (False, True, True),
        (True, False, True),
        (True, False, False),
        (False, False, False),
    ]
    pairs = [RevisionPair(branch(0, "a"), branch(0, "b"), m) for m, _, _ in cases]
    outcomes = [ended(z) for _, draft, ref in cases for z in (draft, ref)]
    broken = RevisionPair(branch(1, "a"), branch(1, "b"), True)
    report = revision_report(
        [*pairs, broken, broken],
        [*outcomes, ended(True), ended(False, "EngineError: x"), ended(False, "y"), ended(True)],
    )
    assert report == {
        "n": 7,
        "failed": 2,
        "revised": 5,
        "drafts_succeed": 4,
        "urr": 0.75,
        "hrr": 0.25,
        "brp": 0.2,
    }


def test_rates_of_nothing_are_unknown() -> None:
    assert revision_report([], [])["urr"] is None
    one = [RevisionPair(branch(0, "a"), branch(0, "a"), False)]
    report = revision_report(one, [ended(False), ended(False)])
    assert (report["n"], report["urr"], report["hrr"], report["brp"]) == (1, None, None, None)


def test_a_revision_is_played_on() -> None:
    """The draft wastes the last step, the reflected action is the expert's and wins."""

    def make_env(limit: int = 60) -> gymnasium.Env[str, str]:
        return gymnasium.make(ENV, source="generated", max_episode_steps=limit)

    task = make_env().unwrapped.tasks.ids[0]  # type: ignore[attr-defined]
    won = run_episode(make_env(), ExpertAgent(), task=task, seed=0)
    assert won.success
    length = len(won.steps)
    last = reflected("look", won.steps[-1].action, gate=True)
    noted = (*won.steps[:-1], replace(won.steps[-1], notes=last))
    pairs = revision_branches([replace(won, steps=noted)], 5, seed=0)
    branches = [one for pair in pairs for one in pair.branches]
    outcomes = suffix_outcomes(lambda: make_env(length), ExpertAgent(), branches)
    report = revision_report(pairs, outcomes)
    assert report["n"] == report["revised"] == 1 and report["brp"] == 1.0


# -- gates ---------------------------------------------------------------------------------------


def test_gates_by_hand() -> None:
    def of(r: float | None, p: float | None, q: float | None, **notes: Any) -> dict[str, Any]:
        return {"agreement": r, "p": p, "q": q, "wm_gate": r is not None and r >= 0.5, **notes}

    fine = {"canon_ok_student": True, "canon_ok_teacher": True}
    blind = {"canon_ok_student": False, "canon_ok_teacher": True}
    steps = (
        step(1, "a", **reflected("a", "b", **of(0.6, 0.55, 0.9, context_source="wm", **fine))),
        step(2, "b", **reflected("a", "b", True, **of(0.5, 1.0, 0.7, context_source="wm", **fine))),
        step(3, "a", **reflected("a", None, **of(0.0, 0.5, None, context_source="env", **blind))),
        step(
            4, "x", invalid=True, path="draft_only_fallback", draft_parsed=False, gate=False, p=None
        ),
        step(5, "look"),
    )
    report = gate_report([replace(EPISODE, steps=steps)])
    assert json.loads(json.dumps(report)) == report
    assert report["steps"] == 4
    assert report["paths"] == {"draft_only_fallback": 1, "reflected": 3}
    assert report["context_sources"] == {"env": 1, "wm": 2}
    third = pytest.approx(1 / 3, abs=1e-6)
    assert report["adoption"] == {
        "0.4": pytest.approx(2 / 3, abs=1e-6),
        "0.6": third,
        "0.8": 0.0,
        "run": pytest.approx(2 / 3, abs=1e-6),
    }
    assert report["agreement"]["n"] == 3
    assert report["agreement"]["mean"] == pytest.approx(1.1 / 3, abs=1e-6)
    assert report["agreement"]["histogram"] == [1, 0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert report["p"]["histogram"] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert report["q"] == {"n": 2, "mean": 0.8, "histogram": [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]}
    assert report["opened"] == third
    assert report["changed"] == pytest.approx(2 / 3, abs=1e-6)
    assert report["unparsed"] == {
        "drafts": 0.25,
        "reflections": third,
        "students": third,
        "teachers": 0.0,
    }
    assert report["invalid_actions"] == 0.25


def test_order_of_episodes_does_not_matter() -> None:
    many = [
        replace(EPISODE, steps=(step(1, "a", **reflected("a", "b", p=n / 7, agreement=n / 7)),))
        for n in range(8)
    ]
    assert gate_report(many) == gate_report(many[::-1])


def test_other_agents_have_no_gates() -> None:
    report = gate_report([replace(EPISODE, steps=(step(1, "look"), step(2, "look", thought="?")))])
    assert report["steps"] == 0 and report["opened"] is None and report["invalid_actions"] is None


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), "0.5", True, [0.5]])
def test_numbers_of_another_kind_are_refused(value: object) -> None:
    wrong = replace(EPISODE, steps=(step(1, "a", **reflected("a", "b", p=value)),))
    with pytest.raises(DataCorrupt, match="'p'"):
        gate_report([wrong])
