"""What the world model learns from, of an expert's episode on a generated task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import comap
from comap.agents import ExpertAgent, run_episode
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, OptionError
from comap.lm import Message
from comap.trainers.privileged import privileged_prompt
from comap.trainers.world_model_samples import reading_samples, world_model_samples
from comap.trajectory import Trajectory
from comap.worldmodel import transitions_of
from comap.worldmodel.language import LanguageWorldModel

SCRIPTED = Path(comap.__file__).parent / "tests" / "agents" / "scripted.py"
BLOCKS = {"standard": "## Training reference", "brief": "\nseen:"}
SHELF = {"observation": "You arrive at shelf 9. On the shelf 9, you see nothing.", "reward": 0.0}


@pytest.fixture(scope="module")
def episode() -> Trajectory:
    env = gymnasium.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
    return run_episode(env, ExpertAgent(), seed=0)


def world(style: Any = "brief", **options: Any) -> LanguageWorldModel:
    return LanguageWorldModel(load(f"{SCRIPTED}:HashedModel")(), prompts=style, **options)


def words(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


@pytest.mark.parametrize("style", ["standard", "brief"])
@pytest.mark.parametrize("state_text", ["history", "belief"])
def test_each_real_transition_is_a_sample(episode: Trajectory, style: str, state_text: Any) -> None:
    model = world(style, state_text=state_text)
    found = list(world_model_samples([episode], model, kind="warmup"))
    told = list(transitions_of(episode))
    assert len(found) == len(told) == len(episode.steps) > 3
    for number, (made, (query, observation)) in enumerate(zip(found, told, strict=True)):
        assert made.messages == model.prompt(query)
        assert made.reply == ((observation, True),)
        assert (made.kind, made.weight, made.task, made.step) == (
            "warmup",
            1.0,
            episode.task,
            number,
        )
        assert (made.teacher, made.distill_weight, made.label) == ((), 0.0, None)


@pytest.mark.parametrize("style", ["standard", "brief"])
def test_only_the_teacher_sees_the_truth(episode: Trajectory, style: str) -> None:
    model = world(style)
    found = list(world_model_samples([episode], model, distill_weight=0.5))
    for made, (query, observation) in zip(found, transitions_of(episode), strict=True):
        assert made.teacher == privileged_prompt(model, query, observation)
        assert (made.weight, made.distill_weight) == (1.0, 0.5)
        assert BLOCKS[style] in words(made.teacher)
        assert BLOCKS[style] not in words(made.messages)


def test_the_authors_teacher_sees_what_the_student_sees(episode: Trajectory) -> None:
    found = list(world_model_samples([episode], world(), distill_weight=1.0, teacher="plain"))
    assert all(made.teacher == made.messages for made in found)


def test_without_real_likelihood_only_the_teacher_is_left(episode: Trajectory) -> None:
    found = list(world_model_samples([episode], world(), distill_weight=0.5, real_weight=0))
    assert {(made.weight, made.distill_weight) for made in found} == {(0, 0.5)}


def test_a_silent_answer_is_learned_too(episode: Trajectory) -> None:
    silent = replace(episode, steps=(replace(episode.steps[0], observation=""),))
    (made,) = world_model_samples([silent], world())
    assert made.reply == (("", True),)


def test_imagined_and_broken_steps_are_left_out(episode: Trajectory) -> None:
    one, two, *_ = episode.steps
    cut = replace(two, observation="", truncated=True)
    odd = replace(episode, steps=(replace(one, imagined=True), cut), error="EngineError: no")
    assert list(world_model_samples([odd], world())) == []


def test_facts_as_the_target(episode: Trajectory) -> None:
    found = list(world_model_samples([episode], world(), target="full_state", distill_weight=1.0))
    for made, step in zip(found, episode.steps, strict=True):
        assert made.text == step.facts.to_text()
        assert made.text[:20] in words(made.teacher)


def probing(episode: Trajectory, **notes: Any) -> Trajectory:
    """The episode's first two steps, the second with the notes of a probe."""
    one, two, *_ = episode.steps
    noted = {"draft_action": "go to shelf 9", "env_next_of_draft": SHELF} | notes
    return replace(episode, steps=(one, replace(two, notes=noted)))


def test_probed_drafts_that_were_not_taken(episode: Trajectory) -> None:
    model, probed = world(), probing(episode)
    assert len(list(world_model_samples([probed], model))) == 2
    found = list(world_model_samples([probed], model, include_probes=True, distill_weight=0.5))
    assert [made.text for made in found] == [
        episode.steps[0].observation,
        episode.steps[1].observation,
        SHELF["observation"],
    ]
    _, (query, _) = transitions_of(probed)
    assert found[2].messages == model.prompt(replace(query, action="go to shelf 9"))
    assert SHELF["observation"] in words(found[2].teacher)
    assert (found[1].step, found[2].step) == (1, 1)
    taken = probing(episode, draft_action=episode.steps[1].action)
    none = probing(episode, env_next_of_draft=None)
    for other in (taken, none):
        assert len(list(world_model_samples([other], model, include_probes=True))) == 2


@pytest.mark.parametrize(
    "notes",
    [
        {"env_next_of_draft": "text"},
        {"env_next_of_draft": {}},
        {"env_next_of_draft": {"observation": 3}},
        {"draft_action": None},
        {"draft_action": ["look"]},
    ],
)
def test_corrupt_probes_are_told(episode: Trajectory, notes: dict[str, Any]) -> None:
    with pytest.raises(DataCorrupt, match="step 2"):
        list(world_model_samples([probing(episode, **notes)], world(), include_probes=True))


@pytest.mark.parametrize(
    "options",
    [
        {"target": "delta"},
        {"teacher": "none"},
        {"target": "full_state", "include_probes": True},
        {"distill_weight": -1.0},
        {"real_weight": float("nan")},
    ],
)
def test_options_are_checked(episode: Trajectory, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        list(world_model_samples([episode], world(), **options))


def test_reading_samples_ask_with_the_truth_in_the_prompt(episode: Trajectory) -> None:
    model = world()
    found = list(reading_samples([episode], model, share=1.0))
    for made, (query, observation) in zip(found, transitions_of(episode), strict=True):
        assert made.kind == "reading"
        assert made.messages == privileged_prompt(model, query, observation)
        assert made.reply == ((observation, True),)
        assert made.teacher == ()
    assert list(reading_samples([episode], model, share=0)) == []


def test_which_transitions_are_read_does_not_depend_on_what_else_there_is(
    episode: Trajectory,
) -> None:
    model = world()
    many = [replace(episode, seed=seed) for seed in range(40)]
    whole = list(reading_samples(many, model, share=0.25))
    assert 0.15 < len(whole) / (40 * len(episode.steps)) < 0.35
    assert whole == [made for one in many for made in reading_samples([one], model, share=0.25)]
    assert whole != list(reading_samples(many, model, share=0.25, seed=1))
    few = {(made.step, made.text) for made in reading_samples([episode], model, share=0.3)}
    more = {(made.step, made.text) for made in reading_samples([episode], model, share=0.6)}
    assert few <= more


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), True, "half"])
def test_a_share_is_a_share(share: Any) -> None:
    with pytest.raises(OptionError, match="share"):
        list(reading_samples([], world(), share=share))


def test_what_is_read_may_be_another_text_that_only_reading_can_find(episode: Trajectory) -> None:
    plain = list(reading_samples([episode], world(), share=1.0))
    mixed = list(reading_samples([episode], world(), share=1.0, seed=3, others=["It rains."]))
    assert len(plain) == len(mixed)
    changed = [one for one in mixed if one.text == "It rains."]
    assert 0 < len(changed) < len(mixed)
    for one, own in zip(mixed, plain, strict=True):
        assert one.text in (own.text, "It rains.")
        assert one.text in one.messages[-1].content  # what is told is what is answered
