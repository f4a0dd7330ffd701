"""Imported episodes as what policies and world models learn from: texts, and which tokens carry loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.agents import ExpertAgent, ReActConfig, run_episode
from comap.errors import DataNotFound, OptionError
from comap.integrations.published import import_files
from comap.lm.chat import ChatTokenizer
from comap.trainers import CoMapTraining, SFTTraining
from comap.trainers.samples import encode_samples
from comap.trainers.setup import Environments, show_expert
from comap.trainers.sft import imitation_samples
from comap.trajectory import Trajectory
from kits import published

HOMES = Environments("comap/ALFWorld-v0", {"source": "generated"})


@pytest.fixture(scope="module")
def original() -> Trajectory:
    env = gymnasium.make("comap/ALFWorld-v0", split="train", source="generated")
    return run_episode(env, ExpertAgent(), task=env.get_wrapper_attr("tasks").ids[0])


@pytest.fixture
def file(original: Trajectory, tmp_path: Path) -> Path:
    row = published.agenttraj(original, 1)
    row["conversations"][5]["loss"] = False
    failed = {**published.agenttraj(original, 2), "reward": 0.0, "success": 0}
    (tmp_path / "alfworld_train.json").write_text(json.dumps([row, failed]), "utf-8")
    import_files([tmp_path / "alfworld_train.json"], tmp_path / "run")
    return tmp_path / "run" / "trajectories.jsonl"


def test_rows_are_the_published_replies(original: Trajectory, file: Path, player: Any) -> None:
    from transformers import AutoTokenizer

    demos = show_expert(HOMES, SFTTraining(), file)
    assert len(demos) == 1, "what is known to have failed is not imitated"
    samples = list(imitation_samples(demos, ReActConfig(with_thought=True)))

    # The second reply is one that its publisher excludes; it is context all the same.
    learned_steps = [step for step in original.steps if step.t != 2]
    replies = [
        f"Thought: {published.thought_of(step.t)}\nAction: {step.action}" for step in learned_steps
    ]
    assert [sample.scored for sample in samples] == replies
    last_prompt = "\n".join(message.content for message in samples[-1].messages)
    assert original.steps[1].action in last_prompt
    assert all(step.observation in last_prompt for step in original.steps[:-1])

    # Loss is on the reply's tokens and its end alone, and on none of what an environment wrote.
    tokenizer = AutoTokenizer.from_pretrained(player)
    end = ChatTokenizer.around(tokenizer).end
    for sample, row in zip(samples, encode_samples(tokenizer, samples, 8192), strict=True):
        assert all(row.scored) and row.answer[-1] == end
        assert tokenizer.decode(row.answer[:-1]) == sample.scored
        prompt = tokenizer.decode(row.prompt)
        assert original.observation.splitlines()[-1] in prompt


def test_only_their_own_environment_and_split_are_learned(file: Path) -> None:
    shops = Environments("comap/WebShop-v0", {})
    with pytest.raises(DataNotFound, match=r"of comap/WebShop-v0.*found 2 \(comap/ALFWorld-v0"):
        show_expert(shops, SFTTraining(), file)
    with pytest.raises(DataNotFound, match="--split other"):
        show_expert(HOMES, SFTTraining(train_split="other"), file)
    with pytest.raises(OptionError, match="comap train sft"):
        show_expert(HOMES, CoMapTraining(), file)
