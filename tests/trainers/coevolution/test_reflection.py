"""Suffix rollouts, labels, and the samples of the reflect mode: rows and masks, exactly."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import pytest

from comap.agents import CoMapAgent, CoMapConfig, ExpertAgent, RandomAgent, run_episode
from comap.agents.convert import views_of
from comap.agents.prompting import Draft
from comap.errors import OptionError
from comap.trainers.comap.config import preset
from comap.trainers.comap.reflection import (
    Outcome,
    branches_of,
    choose_steps,
    label_samples,
    label_states,
    reflect_reply,
    rollout_samples,
    suffix_outcomes,
)
from comap.trainers.comap.samples import anchor_samples, balance_weights, balanced
from comap.trainers.sft import imitation_samples

ENV = "comap/ALFWorld-v0"
TINY = preset("tiny", p_source="head")


def make_env(limit=60):
    return gymnasium.make(ENV, source="generated", max_episode_steps=limit)


@pytest.fixture(scope="module")
def expert():
    env = make_env()
    task = env.get_wrapper_attr("tasks").ids[0]
    return run_episode(env, ExpertAgent(), task=task, seed=0)


def drafted(expert, drafts):
    """The expert's episode with a draft noted at some steps; None is one that cannot be read."""
    steps = []
    for number, step in enumerate(expert.steps):
        notes = {"shown": f"Action: {step.action}"}
        if number in drafts:
            notes |= {
                "draft_action": drafts[number] or "",
                "draft_parsed": drafts[number] is not None,
                "draft_response": f"Action: {drafts[number]}",
                "predicted_next_state": "A dark room.",
            }
        steps.append(replace(step, notes=notes))
    return replace(expert, steps=tuple(steps))


def test_branches_are_played_to_their_end(expert):
    """A wasted step is one too many where the expert just makes it."""
    length, last = len(expert.steps), len(expert.steps) - 1
    drafted_episode = drafted(expert, {last: "look", 0: expert.steps[0].action, 1: None})
    branches = branches_of([drafted_episode])
    assert [branch.action for branch in branches] == ["look", expert.steps[last].action]
    outcomes = dict(
        suffix_outcomes(lambda: make_env(length), ExpertAgent(), branches, concurrency=2)
    )
    assert [outcomes[branch].success for branch in branches] == [False, True]
    labels, left_out = label_states([drafted_episode], outcomes, context="env")
    assert left_out == {"unparsed": 1, "failed": 0}
    assert [(label.kind, label.y) for label in labels] == [
        ("expert_draft", 0),
        ("revise_positive", 1),
    ]
    assert labels[1].target == expert.steps[last].action
    assert labels[1].future == outcomes[branches[0]].observation
    samples = label_samples(labels, [drafted_episode], TINY)
    assert [sample.label for sample in samples] == [0.0, 1.0]


class Wanders(RandomAgent):
    """Acts at random, and notes what a policy's own states are labeled with."""

    def decide(self, view):
        decision = yield from super().decide(view)
        action, expert = decision.action, view.expert_action()
        notes = {"shown": f"Action: {action}", "draft_response": f"Action: {action}"}
        notes |= {"draft_action": action, "draft_parsed": True, "predicted_next_state": "Dark."}
        return replace(decision, notes=notes | {"expert_action": expert})


def test_the_policys_own_states_are_labeled_with_an_experts_word(expert):
    played = run_episode(make_env(), Wanders(mixed=0.5), task=expert.task, seed=0)
    labels, left_out = label_states([played], {}, suffixes=0)
    assert left_out == {"unparsed": 0, "failed": 0}
    steps = {label.step: label for label in labels}
    assert len(steps) == len({(before, step.action) for before, step in played.transitions()})
    for number, (_, step) in enumerate(played.transitions()):
        if label := steps.get(number):
            revise = not step.delta and step.action != step.notes["expert_action"]
            assert label.y == revise and label.draft_action == step.action
            assert label.target == (step.notes["expert_action"] if revise else step.action)
            assert label.future == ("Dark." if label.future_source == "wm" else step.observation)
    assert {label.y for label in labels} == {0, 1}
    assert {label.future_source for label in labels} == {"env", "wm"}
    samples = label_samples(labels, [played], TINY)
    assert [sample.label for sample in samples] == [float(label.y) for label in labels]
    with pytest.raises(OptionError, match="add label_states='policy'"):
        preset("tiny", suffixes=0)


def test_a_prefix_that_ends_the_episode_is_a_failure(expert):
    drafted_episode = drafted(expert, {3: "look"})
    outcomes = dict(
        suffix_outcomes(lambda: make_env(2), ExpertAgent(), branches_of([drafted_episode]))
    )
    assert all("ended at action 2" in str(outcome.error) for outcome in outcomes.values())
    assert label_states([drafted_episode], outcomes)[1] == {"unparsed": 0, "failed": 1}


def test_labels_by_hand(expert):
    drafted_episode = drafted(expert, {2: "look"})
    draft, expert_branch = branches_of([drafted_episode])

    def y(draft_outcome, expert_outcome, delta=None):
        outcomes = {
            branch: Outcome(success, ret, 1, "Seen.", None)
            for branch, (success, ret) in ((draft, draft_outcome), (expert_branch, expert_outcome))
        }
        return label_states([drafted_episode], outcomes, delta=delta)[0][0].y

    assert y((False, 0.0), (True, 1.0)) == 1 and y((True, 1.0), (True, 1.0)) == 0
    assert y((True, 1.0), (False, 0.0)) == 0
    assert y((False, 0.2), (False, 0.25)) == 0, "0.05 is not larger by more than 0.05"
    assert y((False, 0.2), (False, 0.3)) == 1 and y((False, 0.2), (False, 0.3), 0.2) == 0


def test_balance_and_steps(expert):
    drafted_episode = drafted(expert, dict.fromkeys(range(6), "look"))
    outcomes = {
        branch: Outcome(branch.action != "look" and not branch.prefix, 0.0, 1, "", None)
        for branch in branches_of([drafted_episode])
    }
    labels, _ = label_states([drafted_episode], outcomes)
    kinds = [label.kind for label in labels]
    balanced_kinds = [kinds[index] for index in balanced(kinds, 2.0, seed=0)]
    assert sorted(balanced_kinds) == ["keep_draft"] * 2 + ["revise_positive"] and len(kinds) > 3
    plans = {"a": ["x"] * 9, "b": ["x"] * 2}
    assert {task: len(steps) for task, steps in choose_steps(plans, 4).items()} == {"a": 4, "b": 2}
    assert choose_steps(plans, None)["a"] == frozenset(range(9))


@pytest.mark.parametrize("p_source", ["head", "verbal"])
@pytest.mark.parametrize("prompts", ["standard", "brief"])
def test_which_parts_of_a_reply_carry_loss(p_source, prompts):
    config = CoMapConfig(prompts=prompts, p_source=p_source)
    reply = reflect_reply(config, True, "go to desk 1", "It is dark.")
    text = "".join(part for part, _ in reply)
    scored = "".join(part for part, flag in reply if flag)
    form = prompts == "brief"
    assert text.startswith("Decision: REVISE" if form else "Reflection: It is dark.\nDecision:")
    assert "dark" not in scored and " REVISE" in scored and " go to desk 1" in scored
    assert ("Final Action:" in scored) is form
    assert text.endswith("Revise Probability: 1.0") is (p_source == "verbal")


def decided(expert, **changed):
    notes = {
        "path": "reflected",
        "draft_action": "look",
        "draft_parsed": True,
        "draft_response": "Action: look",
        "reflection_text": "Nothing new.",
        "ref_action": expert.steps[0].action,
        "gate": True,
        "context_source": "env",
        "context": "A bright room.",
        "shown": "Action: look",
    } | changed
    steps = (replace(expert.steps[0], notes=notes), *expert.steps[1:])
    return replace(expert, steps=steps)


def test_decisions_become_samples(expert):
    def labels_of(**changed):
        config = preset("tiny", p_source="head", require_success_for_hq=True)
        decided_episode = decided(expert, **changed)
        return [(row.kind, row.label) for row in rollout_samples([decided_episode], config)]

    assert labels_of() == [("hq_reflect", 1.0)]
    assert labels_of(gate=False) == [("keep_draft", 0.0)]
    assert labels_of(ref_action="two\nlines") == [], "no reply can name it"
    assert labels_of(ref_action="look") == [("keep_draft", 0.0)], "nothing changed"
    assert (
        labels_of(ref_action=None)
        == labels_of(path="draft_only_fallback")
        == labels_of(draft_parsed=False)
        == []
    )
    (sample,) = rollout_samples([decided(expert)], preset("tiny", p_source="head"))
    (unlabeled,) = rollout_samples([decided(expert)], preset("tiny", p_source="head", beta=0.0))
    assert (sample.label, unlabeled.label) == (1.0, None), "without its loss p needs no label"
    assert "A bright room." in sample.messages[-1].content


def test_anchors_and_weights(expert):
    whole = list(imitation_samples([expert], TINY.agent))
    assert [sample.text for sample in whole] == [f"Action: {step.action}" for step in expert.steps]
    assert all(sample.scored == sample.text for sample in whole)
    steps = len(expert.steps)
    for number in (0, 3, steps, steps + 2):
        anchors = anchor_samples([expert], TINY.agent, number, seed=1)
        assert len(anchors) == number and {sample.kind for sample in anchors} <= {"anchor"}
        assert anchors == anchor_samples([expert], TINY.agent, number, seed=1)
    first_group, second_group = whole[:1], whole[1:4]
    assert [s.weight for s in balance_weights(first_group, second_group)] == pytest.approx(
        [4, 4 / 3, 4 / 3, 4 / 3]
    )
    kinds = ["keep_draft"] * 5 + ["revise_positive"]
    assert len(balanced(kinds, 2.0, 0)) == 3 and balanced(kinds, 2.0, 0)[-1] == 5
    assert balanced(kinds[:5], 2.0, 0) == [0, 1, 2, 3, 4]
    assert len(balanced(kinds[:5], 2.0, 0, alone=1)) == 1


@pytest.mark.parametrize("source", ["head", "verbalizer", "verbal"])
def test_the_question_asks_for_the_lines_that_are_learned(source, expert):
    config = CoMapConfig(p_source=source)
    draft = Draft("Action: look", "look", True, "free")
    view = next(iter(views_of(expert)))[0]
    question = CoMapAgent(config).question(view, {}, draft, "A desk.")[-1].content
    number, listed_lines = question.rpartition("answer in exactly ")[2].split(" lines:\n")
    reply = "".join(text for text, _ in reflect_reply(config, True, "look", "Why not."))
    labels = [
        [line.partition(":")[0] for line in text.splitlines()] for text in (listed_lines, reply)
    ]
    assert labels[0] == labels[1] and number == {3: "three", 4: "four"}[len(labels[1])]
