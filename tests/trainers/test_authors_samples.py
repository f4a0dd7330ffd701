"""What the policy learns from in the authors' code: feedback of the environment, told to a teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.agents.comap import CoMapConfig
from comap.agents.prompting import converse
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt
from comap.trainers.feedback import feedback_text, outcome_tags
from comap.trainers.policy_options import PolicyOptions
from comap.trainers.policy_samples import warmup_samples
from comap.trainers.reflection_samples import label_samples, rollout_samples
from comap.trajectory import Trajectory

kit = load(f"{Path(__file__).with_name('policy_samples_kit.py')}:KIT")
BLOCKS = kit.BLOCKS
CONFIGS = kit.CONFIGS
EACH_CONFIG = kit.EACH_CONFIG
at = kit.at
decisions = kit.decisions
expert = kit.expert
label = kit.label
words = kit.words


@EACH_CONFIG
def test_the_authors_samples(expert: Trajectory, config: CoMapConfig) -> None:
    skipped = {"path": "reflection_skipped", "ref_action": None, "gate": False}
    took = expert.steps[2].action
    taken = {"draft_action": took, "draft_response": f"Action: {took}", "env_next_of_draft": None}
    episode = decisions(
        expert, {0: {}, 2: skipped | taken | {"shown": f"Action: {took}"}, 3: {"gate": False}}
    )
    config = replace(config, p_source="verbal")
    options = PolicyOptions.authors_code(held_out=0)
    found = list(rollout_samples([episode], config, options))
    assert [(made.step, made.kind, made.weight) for made in found] == [
        (0, "revise_positive", 1.0),
        (0, "hq_reflect", 1.0),
        (0, "own_anchor", 0.5),
        (0, "draft_distill", 0.25),
        (0, "self_distill", 0.0),
        (2, "own_anchor", 0.5),
        (2, "fallback", 0.1),
        (2, "self_distill", 0.0),
        (3, "keep_draft", 1.0),
        (3, "own_anchor", 0.5),
        (3, "self_distill", 0.0),
    ]
    view, replies = at(episode, 0)
    revised, distilled = found[1], found[4]
    shown = f"Thought: That shows nothing new.\nAction: {expert.steps[0].action}"
    for made in found[2:5]:
        assert made.messages == converse(view, config, replies)  # type: ignore[arg-type]
    assert found[2].reply == found[3].reply == ((shown, True),)
    assert revised.messages != found[2].messages
    assert distilled.reply == (("Thought: Where am I?\nAction: look", True),)
    assert distilled.distill_weight == 1.0
    assert "Nothing happens." in words(distilled.teacher)
    assert "invalid or unproductive" in words(distilled.teacher)
    assert expert.steps[2].observation in words(found[7].teacher)
    assert found[6].reply == ((f"Action: {took}", True),)


def test_nothing_of_training_is_in_what_is_asked(expert: Trajectory) -> None:
    for config in CONFIGS:
        episode = decisions(expert, {0: {}, 2: {}})
        made = [
            *rollout_samples([episode], config, PolicyOptions.authors_code(held_out=0)),
            *label_samples([label(expert, 2, 1)], [expert], config),
            *warmup_samples([expert], config),
        ]
        for sample in made:
            assert bool(sample.teacher) == (sample.kind == "self_distill")
            assert not any(block in words(sample.messages) for block in BLOCKS)
            if sample.teacher:
                assert any(block in words(sample.teacher) for block in BLOCKS)


def test_feedback_that_is_not_known_teaches_nothing(expert: Trajectory) -> None:
    episode = decisions(expert, {0: {"env_next_of_draft": None}})
    options = PolicyOptions(self_distill=1.0)
    kinds = [made.kind for made in rollout_samples([episode], CoMapConfig(), options)]
    assert kinds == ["hq_reflect"]


def test_a_long_answer_leaves_the_teacher_its_room(expert: Trajectory) -> None:
    long = {"observation": "word " * 9000, "reward": 1.0, "success": True, "terminated": True}
    for config in (replace(one, max_length=512) for one in CONFIGS):
        episode = decisions(expert, {5: {"env_next_of_draft": long}})
        found = rollout_samples([episode], config, PolicyOptions(alpha=0, self_distill=1.0))
        (made,) = found
        view, _ = at(expert, 5)
        assert "terminal success" in words(made.teacher)
        assert view.count_tokens(words(made.teacher)) < 1024
        assert len(words(made.teacher)) < 9000


@pytest.mark.parametrize(
    ("answer", "tags"),
    [
        ({"observation": "Nothing happens."}, ("invalid or unproductive",)),
        ({"observation": "You can\u2019t see that."}, ("invalid or unproductive",)),
        ({"observation": "You pick up the pen 1 from the desk 1."}, ("state changed",)),
        ({"observation": "You open the safe 1."}, ("state changed",)),
        ({"observation": "You arrive at desk 1."}, ()),
        ({"observation": "", "truncated": True}, ("terminal failure",)),
        ({"observation": "", "terminated": True, "success": True}, ("terminal success",)),
    ],
)
def test_outcome_tags(answer: dict[str, Any], tags: tuple[str, ...]) -> None:
    assert outcome_tags(answer) == tags


def test_feedback_in_words() -> None:
    answer = {"observation": "$reward <|im_end|>", "reward": 0.5}
    assert feedback_text(answer, "brief") == (
        "outcome: the episode goes on\nafter: $reward <|im_end|>\nreward: 0.5"
    )
    assert "Observation: $reward <|im_end|>\n" in feedback_text(answer)
    for wrong in ({}, {"observation": 3}, {"observation": "", "reward": "much"}):
        with pytest.raises(DataCorrupt, match="an answer"):
            feedback_text(wrong)
