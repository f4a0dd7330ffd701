"""Scores of predictions, revisions and gates, by numbers worked out by hand; frozen transitions."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.errors import DataCorrupt, DataNotFound
from comap.facts import Delta, State
from comap.metrics import PredicateScore
from comap.trainers.comap.evaluation import RevisionPair, revision_branches, revision_report
from comap.trainers.comap.reflection import Branch, Outcome
from comap.trainers.evaluation import (
    fingerprint,
    freeze,
    frozen_set,
    gate_report,
    in_order,
    is_predictable,
    load_transitions,
    save_transitions,
    score_transitions,
)
from comap.trainers.results import (
    Distribution,
    ForeseenRefusals,
    GateReport,
    GroupScore,
    PredictionReport,
    Refusals,
    RevisionReport,
    Share,
    Unparsed,
    from_json,
    to_json,
)
from comap.trajectory import Step, Trajectory, Turn
from comap.worldmodel import Prediction, Query, Transition, transitions_of

ENV = "comap/ALFWorld-v0"
CANON = ALFWorldCanonicalizer()
SAFE = State(frozenset({("at", "agent", "safe 1"), ("closed", "safe 1")}))
HAND = State(frozenset({("at", "agent", "desk 1"), ("holding", "pen 1")}))


def transition_of(state, action, observation):
    return Transition(Query(ENV, "goal", (), state, action), observation)


SET = [
    # +open +seen +in -closed: first sight.
    transition_of(
        SAFE, "open safe 1", "You open the safe 1. The safe 1 is open. In it, you see a pen 1."
    ),
    # +in -holding
    transition_of(HAND, "move pen 1 to desk 1", "You move the pen 1 to the desk 1."),
    # nothing
    transition_of(HAND, "open desk 1", "Nothing happens."),
    # nothing, but said otherwise
    transition_of(HAND, "close desk 1", "Nothing happens."),
    # the truth fits no rule
    transition_of(HAND, "dance", "The floor shakes."),
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

    def __init__(self, texts=SAID):
        pairs = zip(SET, texts, strict=True)
        self.texts = {transition.query.action: text for transition, text in pairs}
        self.asked: list[int] = []

    def predict(self, queries):
        self.asked.append(len(queries))
        return [Prediction(self.texts[query.action]) for query in queries]


def test_scores_by_hand():
    model = Said()
    report = score_transitions(model, SET, CANON, batch=2)
    assert model.asked == [2, 2, 1]
    assert report == score_transitions(Said(), SET, CANON)
    assert from_json(PredictionReport, json.loads(json.dumps(to_json(report)))) == report
    assert (report.transitions, report.n, report.dropped) == (5, 4, 1)
    assert report.fingerprint == fingerprint(SET)
    assert report.parse_failure_rate == 0.25 and report.no_op_share == 0.5
    assert report.refusals == Refusals(foreseen=1, precision=100.0, real=2, recall=50.0)
    reveal = 100 * 6 / 7
    assert report.all == GroupScore(
        n=4,
        delta_f1=pytest.approx((reveal + 200) / 4, abs=1e-4),
        stderr=24.0464,  # the root of (0.6939 / 3) / 4
        exact_change=50.0,
        exact_text=50.0,
    )
    assert report.nonempty.n == 2
    assert report.nonempty.delta_f1 == pytest.approx((reveal + 100) / 2, abs=1e-4)
    for part, n, value in ((report.unpredictable, 1, reveal), (report.predictable, 3, 200 / 3)):
        assert part.n == n
        assert part.delta_f1 == pytest.approx(value, abs=1e-4)
    thirds = pytest.approx(2 / 3, abs=1e-6)
    assert report.by_predicate["in"] == PredicateScore(
        precision=1.0, recall=0.5, f1=thirds, support=2
    )


# -- revisions -----------------------------------------------------------------------------------


def step(t, action, imagined=False, invalid=False, **notes):
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


def reflected(draft, ref, gate=False, **notes):
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


def branch(steps, action, seed=7):
    return Branch(task="task/1", prefix=TAKEN[:steps], action=action, seed=seed)


def test_decisions_that_can_be_tried():
    assert revision_branches([EPISODE], 10, seed=0) == [
        RevisionPair(branch(0, "look"), branch(0, "go to desk 1"), True),
        RevisionPair(branch(1, "look"), branch(1, "go to desk 1"), True),
        RevisionPair(branch(2, "Look."), branch(2, "Look."), False),
        RevisionPair(branch(7, "look"), branch(7, "inventory"), True),
    ]


def test_decisions_are_drawn_by_the_seed_alone():
    copies = [replace(EPISODE, task=f"task/{n}", seed=None) for n in range(9)]
    pairs = revision_branches(copies, 12, seed=5)
    assert len(pairs) == 12 and {pair.draft.seed for pair in pairs} == {5}
    assert pairs == revision_branches(copies[::-1], 12, seed=5)
    assert pairs != revision_branches(copies, 12, seed=6)
    assert revision_branches(copies, 0, seed=5) == []


def ending(success, error=None):
    return Outcome(success=success, ret=float(success), steps=1, observation="", error=error)


def test_rates_by_hand():
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
    outcomes = [ending(z) for _, draft, ref in cases for z in (draft, ref)]
    broken = RevisionPair(branch(1, "a"), branch(1, "b"), True)
    report = revision_report(
        [*pairs, broken, broken],
        [
            *outcomes,
            ending(True),
            ending(False, "EngineError: x"),
            ending(False, "y"),
            ending(True),
        ],
    )
    assert report == RevisionReport(
        n=7, failed=2, revised=5, drafts_succeed=4, urr=0.75, hrr=0.25, brp=0.2
    )


# -- gates ---------------------------------------------------------------------------------------


def test_gates_by_hand():
    def gate(r, p, q, **notes):
        return {"agreement": r, "p": p, "q": q, "wm_gate": r is not None and r >= 0.5, **notes}

    fine = {"canon_ok_student": True, "canon_ok_teacher": True}
    blind = {"canon_ok_student": False, "canon_ok_teacher": True}
    steps = (
        step(1, "a", **reflected("a", "b", **gate(0.6, 0.55, 0.9, context_source="wm", **fine))),
        step(
            2, "b", **reflected("a", "b", True, **gate(0.5, 1.0, 0.7, context_source="wm", **fine))
        ),
        step(3, "a", **reflected("a", None, **gate(0.0, 0.5, None, context_source="env", **blind))),
        step(
            4, "x", invalid=True, path="draft_only_fallback", draft_parsed=False, gate=False, p=None
        ),
        step(5, "look"),
    )
    report = gate_report([replace(EPISODE, steps=steps)])
    assert from_json(GateReport, json.loads(json.dumps(to_json(report)))) == report
    assert report.steps == 4 and report.reflected == 3
    assert report.paths == {"draft_only_fallback": 1, "reflected": 3}
    assert report.context_sources == {"env": 1, "wm": 2}
    third = pytest.approx(1 / 3, abs=1e-6)
    assert report.adoption == {
        "0.4": pytest.approx(2 / 3, abs=1e-6),
        "0.6": third,
        "0.8": 0.0,
        "run": pytest.approx(2 / 3, abs=1e-6),
    }
    assert report.agreement.n == 3
    assert report.agreement.mean == pytest.approx(1.1 / 3, abs=1e-6)
    assert report.agreement.histogram == (1, 0, 0, 0, 0, 1, 1, 0, 0, 0)
    assert report.p.histogram == (0, 0, 0, 0, 0, 2, 0, 0, 0, 1)
    assert report.q == Distribution(n=2, mean=0.8, histogram=(0, 0, 0, 0, 0, 0, 0, 1, 0, 1))
    assert report.opened == third
    assert report.changed == pytest.approx(2 / 3, abs=1e-6)
    assert report.unparsed == Unparsed(drafts=0.25, reflections=third, students=third, teachers=0.0)
    assert report.invalid_actions == 0.25
    assert report.truth is None  # without probes nothing is known of what really follows
    assert "student_f1" not in to_json(report)


def test_what_predictions_and_the_gate_are_worth():
    """Against the real next state: student, teacher, opened gates, and foreseen refusals."""

    def probed(t, student, teacher, gate, foreseen, real):
        notes = {"student_f1": student, "teacher_f1": teacher, "wm_gate": gate}
        notes |= {"foresees_refusal": foreseen, "env_next_of_draft": {"invalid_action": real}}
        return step(t, "look", path="reflected", **notes)

    steps = (
        probed(1, 1.0, 1.0, True, True, True),
        probed(2, 0.5, 1.0, True, True, False),
        probed(3, 0.0, 0.5, False, False, True),
        probed(4, 1.0, 0.5, True, False, True),
    )
    report = gate_report([replace(EPISODE, steps=steps)])
    truth = report.truth
    assert truth is not None
    assert (truth.student_f1.mean, truth.teacher_f1.mean) == (0.625, 0.75)
    two_of_three = pytest.approx(2 / 3, abs=1e-6)
    assert truth.gate_precision == Share(n=3, value=two_of_three)
    third = pytest.approx(1 / 3, abs=1e-6)
    foreseen = ForeseenRefusals(n=2, precision=0.5, real=3, recall=third)
    assert truth.foreseen_refusals == foreseen
    data = to_json(report)  # in a file these stand beside the other measures of gates
    assert data["gate_precision"]["n"] == 3 and "truth" not in data
    assert from_json(GateReport, json.loads(json.dumps(data))) == report


# -- what follows from the belief ------------------------------------------------------------------

HERE = ("at", "agent", "desk 1")
SHELF = (("seen", "shelf 1"), ("in", "pen 1", "shelf 1"), ("in", "cd 2", "shelf 1"))
SHUT = (("at", "agent", "safe 1"), ("closed", "safe 1"))
PEN, CD, MUG = (("holding", "pen 1"),), (("in", "cd 3", "desk 1"),), (("holding", "mug 1"),)
ON_SHELF = "You arrive at shelf 1. On the shelf 1, you see a cd 2, and a pen 1."
IN_SAFE = "You open the safe 1. The safe 1 is open. In it, you see a pen 1."
FACING = "You are facing the desk 1. Next to it, you see a cd 3."
KNOWN_SAFE = (*SHUT, ("seen", "safe 1"), ("in", "pen 1", "safe 1"))
CASES = [
    # First sight of contents.
    ((), "go to shelf 1", ON_SHELF, False),
    (SHUT, "open safe 1", IN_SAFE, False),
    # Contents known before.
    (SHELF, "go to shelf 1", ON_SHELF, True),
    (SHELF, "examine shelf 1", "On the shelf 1, you see a cd 2, and a pen 1.", True),
    (KNOWN_SAFE, "open safe 1", IN_SAFE, True),
    # Contents that are not as they were believed to be.
    (SHELF, "go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a pen 1.", False),
    (SHELF[:2], "go to shelf 1", ON_SHELF, False),
    # A door alone shows nothing.
    ((), "go to safe 1", "You arrive at safe 1. The safe 1 is closed.", True),
    ((("open", "safe 1"),), "close safe 1", "You close the safe 1.", True),
    # What the agent does.
    (SHELF, "take pen 1 from shelf 1", "You pick up the pen 1 from the shelf 1.", True),
    ((), "take pen 12 from desk 1", "You pick up the pen 1 from the desk 1.", False),
    (PEN, "move pen 1 to safe 1", "You move the pen 1 to the safe 1.", True),
    (MUG, "clean mug 1 with sinkbasin 1", "You clean the mug 1 using the sinkbasin 1.", True),
    ((("in", "lamp 1", "desk 1"),), "use lamp 1", "You turn on the lamp 1.", True),
    ((), "open safe 1", "Nothing happens.", True),
    (PEN, "inventory", "You are carrying: a pen 1.", True),
    # What only reading tells.
    ((), "inventory", "You are carrying: a pen 1.", False),
    (MUG, "examine mug 1", "This is a hot mug 1.", False),
    ((("hot", "mug 1"),), "examine mug 1", "This is a hot mug 1.", True),
    ((), "look", FACING, False),
    (CD, "look", FACING, True),
    # Not known.
    ((), "look", "A dragon asks you a riddle.", None),
]


@pytest.mark.parametrize(("facts", "action", "text", "expected"), CASES)
def test_what_follows_from_the_belief(facts, action, text, expected):
    query = Query(ENV, "goal", (), State(frozenset({HERE, *facts})), action)
    assert is_predictable(query, text, CANON) is expected


# -- frozen sets ---------------------------------------------------------------------------------


def played(seeds, expert):
    env = gymnasium.make(ENV, source="generated", max_episode_steps=6)
    tasks = env.unwrapped.tasks.ids
    for seed in seeds:
        agent = ExpertAgent() if expert else RandomAgent()
        yield run_episode(env, agent, task=tasks[seed], seed=seed)


@pytest.fixture(scope="module")
def episodes():
    return list(played(range(4), True)), list(played(range(4, 8), False))


def test_half_is_the_expert_and_half_the_policy(episodes):
    expert, policy = episodes
    for n in (0, 1, 7, 10):
        frozen = frozen_set(expert, policy, n=n, seed=3)
        expert_steps = [step for episode in expert for step in transitions_of(episode)]
        assert len(frozen) == n
        assert sum(step in expert_steps for step in frozen) == n - n // 2
    assert len(frozen_set(expert, [], n=10)) == 5, "the other gives no more"


def test_a_set_does_not_depend_on_the_order_of_episodes(episodes):
    expert, _ = episodes
    frozen = freeze(expert, 9, seed=1)
    assert frozen == freeze(reversed(expert), 9, seed=1) == freeze(iter(expert), 9, seed=1)
    assert frozen != freeze(expert, 9, seed=2)
    assert len({fingerprint(freeze(expert, 9, seed=s)) for s in (1, 1, 2)}) == 2
    whole = [step for episode in in_order(expert) for step in transitions_of(episode)]
    assert freeze(expert, 10_000, seed=1) == whole


TEXTS = st.text(max_size=8) | st.just("\ud800 \u2028 <|im_end|>\r\n")
FACTS = st.frozensets(st.lists(TEXTS, min_size=1, max_size=3).map(tuple), max_size=3)
QUERIES = st.builds(
    Query,
    TEXTS,
    TEXTS,
    st.lists(st.builds(Turn, st.none() | TEXTS, TEXTS), max_size=2).map(tuple),
    st.builds(State, FACTS, st.booleans()),
    TEXTS,
    st.none() | st.lists(TEXTS, max_size=2).map(tuple),
)


@given(st.lists(st.builds(Transition, QUERIES, TEXTS), max_size=3))
def test_files_give_back_what_was_written(tmp_path_factory, transitions):
    path = tmp_path_factory.getbasetemp() / "sets" / "set.jsonl"
    save_transitions(path, transitions)
    assert load_transitions(path) == transitions
    assert not path.with_name("set.jsonl.part").exists()


def saved(path):
    query = Query(ENV, "goal", (Turn(None, "Hi."),), State(frozenset({HERE})), "look")
    save_transitions(path, [Transition(query, "A."), Transition(query, "B.")])
    return path.read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "JSONDecodeError"),
        (lambda lines: ["[]"], "TypeError"),
        (lambda lines: ['{"format": "other"}', *lines[1:]], "the format"),
        (lambda lines: lines[:-1], "1 of 2 that are cut or changed"),
        (lambda lines: [lines[0], *lines[:0:-1]], "cut or changed"),
        (lambda lines: [*lines[:2], lines[2].replace("B.", "C.")], "cut or changed"),
    ],
)
def test_other_files_are_refused(tmp_path, change, message):
    path = tmp_path / "set.jsonl"
    lines = saved(path)
    assert callable(change)
    path.write_text("\n".join(change(lines)) + "\n", "utf-8")
    with pytest.raises(DataCorrupt) as caught:
        load_transitions(path)
    assert message in str(caught.value) and "--save-transitions" in str(caught.value)
    with pytest.raises(DataNotFound, match="--save-transitions"):
        load_transitions(tmp_path / "none.jsonl")
