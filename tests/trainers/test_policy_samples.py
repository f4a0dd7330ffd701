"""What the policy learns from: demonstrations, suffix labels and its own decisions, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.agents import AgentConfig, run_episode
from comap.agents.acting import Draft
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.parsing import parse_action, parse_reflection
from comap.agents.prompting import converse
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, OptionError
from comap.lm import Message
from comap.trainers.policy_options import PolicyOptions
from comap.trainers.policy_samples import anchor_samples, warmup_samples
from comap.trainers.reflection_samples import is_held_out, label_samples, rollout_samples
from comap.trainers.replayed import views_of
from comap.trainers.rollout_agent import RolloutAgent, RolloutConfig
from comap.trainers.sample_counts import count_samples
from comap.trainers.samples import Sample
from comap.trajectory import Trajectory
from comap.worldmodel.language import LanguageWorldModel

kit = load(f"{Path(__file__).with_name('policy_samples_kit.py')}:KIT")
BLOCKS = kit.BLOCKS
CONFIGS = kit.CONFIGS
EACH_CONFIG = kit.EACH_CONFIG
SCRIPTED = kit.SCRIPTED
at = kit.at
decisions = kit.decisions
expert = kit.expert
failed = kit.failed
label = kit.label
words = kit.words


# -- demonstrations ------------------------------------------------------------------------------


@EACH_CONFIG
def test_warm_up_clones_each_step(expert: Trajectory, config: CoMapConfig) -> None:
    found = list(warmup_samples([expert], config))
    assert len(found) == len(expert.steps)
    for number, (made, (view, replies, step)) in enumerate(
        zip(found, views_of(expert), strict=True)
    ):
        assert made.messages == converse(view, config, replies)
        assert made.reply == ((f"Action: {step.action}", True),)
        assert (made.kind, made.weight, made.step) == ("warmup", 1.0, number)


def test_thoughts_of_demonstrations_are_learned_and_shown_later(expert: Trajectory) -> None:
    one, *rest = expert.steps
    told = replace(one, notes={"thought": " Newspapers lie on tables. \nAction: give up"})
    found = list(warmup_samples([replace(expert, steps=(told, *rest))], AgentConfig()))
    reply = f"Thought: Newspapers lie on tables.\nAction: {one.action}"
    assert found[0].reply == ((reply, True),)
    assert Message("assistant", reply) in found[1].messages
    assert found[1].reply == ((f"Action: {rest[0].action}", True),)
    wrong = replace(expert, steps=(replace(one, notes={"thought": 3}),))
    with pytest.raises(DataCorrupt, match=r"step 1.*'thought'"):
        list(warmup_samples([wrong], AgentConfig()))


def test_imagined_steps_are_no_demonstration(expert: Trajectory) -> None:
    one, *rest = expert.steps
    odd = replace(expert, steps=(replace(one, imagined=True), *rest))
    assert next(made.step for made in warmup_samples([odd], AgentConfig())) == 1
    drawn = anchor_samples([odd], AgentConfig(), len(rest), seed=0)
    assert sorted(made.step for made in drawn) == list(range(1, len(expert.steps)))


def test_anchors_are_drawn_without_putting_back(expert: Trajectory, failed: Trajectory) -> None:
    demos, config = [expert, failed], CONFIGS[2]
    whole = list(warmup_samples(demos, config, kind="anchor"))
    some = anchor_samples(demos, config, 6, seed=1)
    assert len(some) == 6 and len({(s.step, words(s.messages)) for s in some}) <= 6
    assert all(made in whole for made in some)
    assert some == anchor_samples(demos, config, 6, seed=1)
    others = [anchor_samples(demos, config, 6, seed=seed) for seed in range(2, 6)]
    assert any(other != some for other in others)
    assert anchor_samples(demos, config, len(whole), seed=3) == whole
    twice = anchor_samples(demos, config, 2 * len(whole) + 1, seed=3)
    often = [twice.count(made) / whole.count(made) for made in whole]
    assert len(twice) == 2 * len(whole) + 1 and 2 <= min(often) <= max(often) <= 3
    assert anchor_samples(demos, config, 0, seed=0) == []


@pytest.mark.parametrize("number", [-1, 1.5, True, "3"])
def test_a_number_of_anchors_is_a_number(expert: Trajectory, number: Any) -> None:
    with pytest.raises(OptionError, match="number"):
        anchor_samples([expert], AgentConfig(), number, seed=0)
    with pytest.raises(OptionError, match="no step"):
        anchor_samples([], AgentConfig(), 3, seed=0)


# -- suffix labels -------------------------------------------------------------------------------


@EACH_CONFIG
def test_labels_become_reflections(expert: Trajectory, config: CoMapConfig) -> None:
    same = expert.steps[3].action
    labels = [label(expert, 2, 1), label(expert, 0, 0), label(expert, 3, 0, same)]
    options = PolicyOptions(alpha=0.5, beta=0.02)
    found = label_samples(
        labels, [expert], config, options, analyses={(expert.task, 2): "Go there."}
    )
    assert [made.kind for made in found] == ["revise_positive", "keep_draft", "expert_draft"]
    assert [made.step for made in found] == [2, 0, 3]
    assert [made.label for made in found] == [1.0, 0.0, 0.0]
    assert {(made.weight, made.label_weight) for made in found} == {(1.0, 0.02)}
    lead = "Reflection: Go there.\n" if config.prompts == "standard" else ""
    action = expert.steps[2].action
    assert found[0].text == f"{lead}Decision: REVISE\nFinal Action: {action}"
    assert found[1].text == "Decision: KEEP\nFinal Action: look"
    assert found[2].text == f"Decision: KEEP\nFinal Action: {same}"
    view, replies = at(expert, 2)
    draft = Draft("Action: look", "look", True, config.decoding)
    agent = CoMapAgent(config)
    assert found[0].messages == agent.question(view, replies, draft, "A dark room.")  # type: ignore[arg-type]
    assert count_samples(found) == {"expert_draft": 1, "keep_draft": 1, "revise_positive": 1}


def test_labels_need_their_episodes(expert: Trajectory) -> None:
    stray = label(expert, 1, 1, prefix=("dance",))
    with pytest.raises(OptionError, match="1 actions before"):
        label_samples([stray], [expert], CoMapConfig())
    broken = label(expert, 1, 0, target="look\nand run")
    assert label_samples([broken], [expert], CoMapConfig()) == []
    two = [label(expert, 1, 0), label(expert, 1, 1)]
    assert [made.label for made in label_samples(two, [expert, expert], CoMapConfig())] == [0, 1]


# -- rollouts ------------------------------------------------------------------------------------


@EACH_CONFIG
def test_an_opened_gate_is_a_revision(expert: Trajectory, config: CoMapConfig) -> None:
    episode = decisions(expert, {0: {}, 2: {}})
    found = list(rollout_samples([episode], config))
    assert [(made.kind, made.step) for made in found] == [("hq_reflect", 0), ("hq_reflect", 2)]
    made, taken = found[1], expert.steps[2].action
    view, replies = at(episode, 2)
    assert replies == {0: f"Thought: That shows nothing new.\nAction: {expert.steps[0].action}"}
    draft = Draft("Thought: Where am I?\nAction: look", "look", True, "free")
    asked = CoMapAgent(config).question(view, replies, draft, "A bright room.")  # type: ignore[arg-type]
    assert made.messages == asked
    lead = "Reflection: That shows nothing new.\n" if config.prompts == "standard" else ""
    assert made.text == f"{lead}Decision: REVISE\nFinal Action: {taken}"
    form = "Decision:\nFinal Action:" if config.prompts == "brief" else ""
    assert made.scored == (
        f"Decision: REVISE\nFinal Action: {taken}" if form else f" REVISE {taken}"
    )
    assert (made.weight, made.label, made.label_weight) == (1.0, 1.0, 0.01)


def one_kind(episode: Trajectory, options: PolicyOptions | None = None, **notes: Any) -> Sample:
    (made,) = rollout_samples([decisions(episode, {1: notes})], CoMapConfig(), options)
    return made


def test_a_closed_gate_keeps_the_draft(expert: Trajectory, failed: Trajectory) -> None:
    for episode in (expert, failed):
        made = one_kind(episode, gate=False)
        assert (made.kind, made.label) == ("keep_draft", 0.0)
        assert made.text.endswith("Decision: KEEP\nFinal Action: look")
    # without an action gate a reflection that repeats the draft is taken, but it revises nothing
    assert one_kind(expert, gate=True, ref_action="Look.").kind == "keep_draft"


def test_quality_needs_success_and_agreement(expert: Trajectory, failed: Trajectory) -> None:
    assert one_kind(expert).kind == "hq_reflect"
    assert one_kind(failed).kind == "revise_positive"
    assert one_kind(failed, PolicyOptions(require_success_for_hq=False)).kind == "hq_reflect"
    least = PolicyOptions(min_agreement=0.75)
    assert one_kind(expert, least).kind == "hq_reflect"
    assert one_kind(expert, least, agreement=0.74).kind == "revise_positive"
    assert one_kind(expert, least, agreement=None).kind == "revise_positive"


def test_alpha_weighs_the_whole_term(expert: Trajectory) -> None:
    made = one_kind(expert, PolicyOptions(alpha=0.5, beta=0.02))
    assert (made.weight, made.label_weight) == (0.5, 0.01)
    off = PolicyOptions(alpha=0)
    assert list(rollout_samples([decisions(expert, {1: {}})], CoMapConfig(), off)) == []


@pytest.mark.parametrize(
    ("source", "learned"), [("head", True), ("verbalizer", True), ("verbal", False)]
)
def test_a_label_is_for_what_can_learn_it(expert: Trajectory, source: Any, learned: bool) -> None:
    (made,) = rollout_samples([decisions(expert, {1: {}})], CoMapConfig(p_source=source))
    assert (made.label, made.label_weight) == ((1.0, 0.01) if learned else (None, 0.0))
    assert made.text.endswith("Revise Probability: 1.0") == (source == "verbal")


@pytest.mark.parametrize(
    "notes",
    [
        {"draft_parsed": False, "path": "draft_only_fallback"},
        {"path": "reflection_skipped", "ref_action": None, "gate": False},
        {"ref_action": None, "gate": False},
        {"ref_action": "look\naround"},
        {"draft_action": "look\naround", "gate": False},
    ],
)
def test_what_cannot_be_read_is_no_reflection(expert: Trajectory, notes: dict[str, Any]) -> None:
    assert list(rollout_samples([decisions(expert, {1: notes})], CoMapConfig())) == []


def test_what_a_reflection_was_told(expert: Trajectory) -> None:
    config = CONFIGS[2]
    for notes, told in [
        ({}, "next: A bright room."),
        ({"context": None}, "next: A dark room."),
        ({"context": None, "predicted_next_state": None}, "next: Unknown."),
        ({"context_source": "none", "context": ""}, "next: Unknown."),
    ]:
        (made,) = rollout_samples([decisions(expert, {1: notes})], config)
        assert made.messages[-1].content.endswith(told)


@pytest.mark.parametrize(
    "notes",
    [
        {"draft_response": 3},
        {"draft_parsed": "yes"},
        {"ref_action": ["look"]},
        {"gate": 1},
        {"agreement": float("nan")},
        {"context": {}},
        {"env_next_of_draft": []},
    ],
)
def test_corrupt_notes_are_told(expert: Trajectory, notes: dict[str, Any]) -> None:
    with pytest.raises(DataCorrupt, match="step 2"):
        list(rollout_samples([decisions(expert, {1: notes})], CoMapConfig()))


def test_other_agents_and_imagined_steps_give_nothing(expert: Trajectory) -> None:
    assert list(rollout_samples([expert], CoMapConfig())) == []
    dreamt = decisions(expert, {0: {}})
    dreamt = replace(dreamt, steps=(replace(dreamt.steps[0], imagined=True), *dreamt.steps[1:]))
    assert list(rollout_samples([dreamt], CoMapConfig())) == []


# -- filters -------------------------------------------------------------------------------------


def used(episodes: Sequence[Trajectory], **options: Any) -> list[str]:
    marked = [decisions(episode, {1: {}}) for episode in episodes]
    found = rollout_samples(marked, CoMapConfig(), PolicyOptions(**options))
    return [made.kind for made in found]


def test_episode_filters(expert: Trajectory, failed: Trajectory) -> None:
    both = [failed, expert]
    assert used(both) == ["hq_reflect"]
    assert used([failed, failed]) == ["revise_positive"] * 2
    assert used(both, episode_filter="none") == ["revise_positive", "hq_reflect"]
    assert used(both, episode_filter="none", outcome_filter="episode_success") == ["hq_reflect"]
    assert used([failed], outcome_filter="episode_success") == []


def test_suffix_outcomes_are_the_label(expert: Trajectory) -> None:
    episode = decisions(expert, {0: {"gate": False}, 1: {}, 2: {}, 3: {"ref_action": "Look."}})
    outcomes = {(expert.task, 0, 0): 1, (expert.task, 0, 1): 0, (expert.task, 0, 3): 1}
    options = PolicyOptions(outcome_filter="suffix")
    found = list(rollout_samples([episode], CoMapConfig(), options, outcomes=outcomes))
    assert [(made.step, made.kind, made.label) for made in found] == [
        (0, "hq_reflect", 1.0),
        (1, "keep_draft", 0.0),
        (3, "keep_draft", 0.0),
    ]
    assert found[0].text.endswith(f"Final Action: {expert.steps[0].action}")
    assert found[1].text.endswith("Final Action: look")
    with pytest.raises(OptionError, match="without outcomes"):
        list(rollout_samples([episode], CoMapConfig(), options))
    with pytest.raises(OptionError, match="with outcomes"):
        list(rollout_samples([episode], CoMapConfig(), outcomes=outcomes))


def test_held_out_episodes(expert: Trajectory) -> None:
    many = [decisions(replace(expert, seed=seed), {1: {}}) for seed in range(300)]
    out = [is_held_out(episode, 0.1) for episode in many]
    assert 15 <= sum(out) <= 45
    found = list(rollout_samples(many, CONFIGS[3], PolicyOptions(held_out=0.1)))
    assert len(found) == 300 - sum(out)
    assert not any(is_held_out(episode, 0.0) for episode in many)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": -1},
        {"beta": float("nan")},
        {"fallback": True},
        {"held_out": 1.5},
        {"min_agreement": 2},
        {"episode_filter": "best"},
        {"outcome_filter": "success"},
    ],
)
def test_options_of_the_policy_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        PolicyOptions(**options)
    with pytest.raises(OptionError, match="no setting 'gamma'"):
        PolicyOptions.authors_code(gamma=1)


# -- a real agent --------------------------------------------------------------------------------


@EACH_CONFIG
def test_prompts_are_those_that_the_agent_asked_with(config: CoMapConfig) -> None:
    lm = load(f"{SCRIPTED}:HashedModel")()
    world = LanguageWorldModel(lm, prompts=config.prompts, adapter="wm")
    settings = {"p_source": "verbal", "q_source": "proxy", "tau_p": 0.0}
    style = {"prompts": config.prompts, "state_text": config.state_text}
    rollout = RolloutConfig(**settings, **style)  # type: ignore[arg-type]
    agent = RolloutAgent(rollout, None, world)
    env = gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=8)
    played = [
        run_episode(env, agent, seed=seed, lm=lm, world_model=world, keep="prompts")
        for seed in range(8)
    ]
    asked = {
        (episode.task, step.t - 1, call.purpose): call.messages
        for episode in played
        for step in episode.steps
        for call in step.calls
    }
    found = list(rollout_samples(played, rollout, PolicyOptions(own_anchor=1.0, self_distill=1.0)))
    reflected = 0
    for made in found:
        mode = "draft" if made.kind in ("own_anchor", "self_distill") else "reflect"
        assert tuple(tuple(m) for m in made.messages) == asked[made.task, made.step, mode]
        if mode == "reflect":
            reflected += 1
            said = parse_reflection(made.text)
            assert said.action is not None and said.decision in ("KEEP", "REVISE")
        else:
            assert parse_action(made.text) is not None
            assert not any(block in words(made.messages) for block in BLOCKS)
    assert reflected >= 3


def test_kept_drafts_are_dropped_down_to_a_share_of_revisions() -> None:
    from comap.trainers.policy_samples import balanced

    kinds = ["keep_draft"] * 30 + ["revise_positive"] * 3 + ["hq_reflect"] + ["own_anchor"] * 5
    rows = [
        Sample(kind=kind, messages=(Message("user", "?"),), reply=(("a", True),), step=number)
        for number, kind in enumerate(kinds)
    ]
    found = balanced(rows, 2.5, seed=1)
    assert [row.step for row in found] == sorted(row.step for row in found)
    counts = {kind: sum(row.kind == kind for row in found) for kind in set(kinds)}
    assert counts == {"keep_draft": 10, "revise_positive": 3, "hq_reflect": 1, "own_anchor": 5}
    assert found == balanced(rows, 2.5, seed=1) != balanced(rows, 2.5, seed=2)
    assert balanced(rows[:30], 2.5, seed=1) == rows[:30]  # without a revision nothing is dropped
