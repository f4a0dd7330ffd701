"""TRL's own GRPOTrainer plays our environments as tools, with a tiny model that learned one call."""

from __future__ import annotations

import json
import os

import gymnasium
import pytest

from comap.agents import ExpertAgent, run_episode
from comap.errors import NoEpisode, OptionError
from comap.facts import State
from comap.integrations.trl import (
    delta_f1_reward,
    environment_factory,
    prediction_rows,
    task_rows,
)
from comap.lm.tiny import build_tiny
from comap.trajectory import Turn
from comap.worldmodel import (
    ImaginedEnv,
    LanguageWorldModel,
    NullWorldModel,
    Query,
    RetrievalWorldModel,
)
from kits.tool_model import tool_model

ALFWORLD, TOOLS, SEARCH = "comap/ALFWorld-v0", "comap/StableToolBench-v0", "comap/SearchQA-v0"
GENERATED = {"source": "generated"}


def test_an_expert_solves_a_task_by_tools():
    environment = environment_factory(ALFWORLD, reward="success", split="valid_seen")()
    rows = task_rows(ALFWORLD, 3, split="valid_seen")
    for row in rows:
        assert "Your task is to" in environment.reset(**row)
        assert environment.info["task"] == row["task"] and environment.get_reward() == 0.0
        while not environment.over:
            answer = environment.act(environment.env.unwrapped.expert_action())
        assert answer.endswith("The task is over.") and environment.get_reward() == 1.0
        with pytest.raises(NoEpisode, match="the task is over"):
            environment.act("look")


def test_functions_are_called_by_name():
    environment = environment_factory(TOOLS, **GENERATED)()
    environment.reset(**task_rows(TOOLS, 1, **GENERATED)[0])
    assert environment.call("nothing", {}).startswith('{"error": "No such function name')
    while not environment.over:
        call = json.loads(environment.env.unwrapped.expert_action())
        environment.call(call["name"], call["arguments"])
    assert environment.get_reward() == 1.0


def test_questions_are_searched_and_answered():
    for actions in ("tags", "react"):
        options = GENERATED | {"actions": actions}
        environment = environment_factory(SEARCH, reward="success", **options)()
        assert environment.reset(**task_rows(SEARCH, 1, **options)[0]).startswith("Question:")
        assert "Doc 1" in environment.search("Olarlund Foundry")
        with pytest.raises(OptionError, match="text"):
            environment.search(3)
        environment.answer("nobody at all")
        assert environment.over and environment.get_reward() == 0.0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tool_model(tmp_path_factory.mktemp("model"), ALFWORLD, "look", "inventory")


def test_trl_trains_in_our_environment(model, tmp_path, monkeypatch):
    """Two steps of the real trainer: tools are called, episodes advance, rewards arrive."""
    monkeypatch.setitem(os.environ, "TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    created = []
    outcomes = []
    factory = environment_factory(ALFWORLD, reward="score", max_episode_steps=3)

    def counted():
        created.append(factory())
        return created[-1]

    def looked(environments, **row):
        """Another reward, of the share of steps that looked; it also notes what happened."""
        outcomes.extend(
            (environment.info["task"], environment.info["step"], environment.get_reward())
            for environment in environments
        )
        turns = [environment.env.unwrapped.history()[1:] for environment in environments]
        return [float(sum(turn.action == "look" for turn in played)) for played in turns]

    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=looked,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=2,
            max_completion_length=300,
            max_tool_calling_iterations=4,
            learning_rate=1e-3,
            temperature=0.7,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            gradient_checkpointing=False,
            chat_template_kwargs={"enable_thinking": False},
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(task_rows(ALFWORLD, 2)),
        environment_factory=counted,
    )
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logged) == 2 and len(created) == 4 and len(outcomes) == 8
    for group in (outcomes[:4], outcomes[4:]):
        assert len({task for task, _, _ in group}) == 1  # a group plays one task
    assert sum(steps for _, steps, _ in outcomes) > 0
    assert max(row["tools/call_frequency"] for row in logged) > 0
    assert all("rewards/ALFWorld/mean" in row and "rewards/looked/mean" in row for row in logged)
    assert any((weight != before[name]).any() for name, weight in trainer.model.named_parameters())


def test_rollouts_can_be_imagined():
    model = NullWorldModel()
    factory = environment_factory(
        ALFWORLD,
        reward="success",
        show_actions=False,
        world_model=model,
        split="valid_seen",
        max_episode_steps=3,
    )
    environment = factory()
    first_text = environment.reset(**task_rows(ALFWORLD, 1, split="valid_seen")[0])
    assert "Your task is to" in first_text
    door = next(
        action for action in environment.info["admissible_actions"] if action.startswith("go to")
    )
    assert environment.act(door) == NullWorldModel().predict([QUERY])[0].observation
    environment.act(door)
    assert environment.act(door).endswith("The task is over.") and environment.get_reward() == 0.0
    unfitted = RetrievalWorldModel()  # its length is 0, and it is a world model all the same
    env = environment_factory(ALFWORLD, world_model=unfitted, split="valid_seen")().env
    assert isinstance(env, ImaginedEnv)


QUERY = Query(ALFWORLD, "", (Turn(None, ""),), State(), "look")


def test_trl_trains_a_world_model_by_delta_f1(tmp_path):
    pytest.importorskip("trl", minversion="1.16")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    env = gymnasium.make(ALFWORLD, split="valid_seen", max_episode_steps=6)
    played = run_episode(env, ExpertAgent(), seed=0)
    texts = [step.observation for step in played.steps]
    path = build_tiny(
        tmp_path / "model", texts * 2, parameters=200_000, vocabulary=400, dtype="float32"
    )
    world_model = LanguageWorldModel(str(path), prompts="brief", state_text="belief")
    rows = list(prediction_rows([played], world_model))
    assert len(rows) == len(played.steps)
    reward = delta_f1_reward(ALFWORLD)
    columns = {name: [row[name] for row in rows] for name in ("action", "before", "observation")}
    completions = [[{"role": "assistant", "content": f"Observation: {text}"}] for text in texts]
    assert reward(completions, **columns) == [1.0] * len(rows)
    changed = [step.facts != before for before, step in played.transitions()]
    unchanged_rewards = reward(["Nothing happens."] * len(rows), **columns)
    assert unchanged_rewards == [float(not has_change) for has_change in changed] and any(changed)
    trainer = GRPOTrainer(
        model=str(path),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=1,
            max_completion_length=16,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    assert "rewards/delta_f1/mean" in trainer.state.log_history[0]
