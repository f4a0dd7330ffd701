"""Environment managers as verl-agent's loop uses them; tests/interop/verl_agent.py runs its code."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from comap.errors import OptionError
from comap.integrations.verl_agent import EnvironmentManager, make_envs, read_reply

ALFWORLD = "comap/ALFWorld-v0"


def config(name="alfworld/AlfredTWEnv", **env):
    """What is read of verl-agent's configuration, with its keys."""
    shared = {"env_name": name, "seed": 0, "max_steps": 8, "history_length": 2}
    shared |= {"rollout": {"n": 2}, "alfworld": {"eval_dataset": "eval_out_of_distribution"}}
    return {"env": shared | env, "data": {"train_batch_size": 2, "val_batch_size": 3}}


def experts(envs):
    """Return a reply of each environment's expert."""
    actions = [env.unwrapped.expert_action() for env in envs._envs.envs]
    return [f"<think>I know.</think><action>{action}</action>" for action in actions]


def test_replies_are_read_as_verl_agent_reads_them():
    """As its projection functions did (commit d0b9724) when tests/interop/verl_agent.py ran."""
    recorded = Path(__file__).with_name("verl_agent.jsonl").read_text().splitlines()
    for line in map(json.loads, recorded):
        parsed_reply = read_reply(line["env"], line["reply"])
        assert (parsed_reply.action, parsed_reply.valid) == (line["action"], line["valid"]), line


@pytest.mark.parametrize("name", ["alfworld/AlfredTWEnv", "Webshop"])
def test_its_rollout_loop(name):
    """The calls of its loop: all are stepped until all have ended, and only active rows count."""
    envs, val_envs = make_envs(config(name, max_steps=40), source="generated")
    val_envs.close()
    with closing(envs):
        observations, infos = envs.reset(kwargs=None)
        assert set(observations) == {"text", "image", "anchor"} and observations["image"] is None
        assert observations["anchor"][0] == observations["anchor"][1] in observations["text"][0]
        assert [info["task"] for info in infos[::2]] == [info["task"] for info in infos[1::2]]
        done_mask, returns, total_infos = np.zeros(4, bool), np.zeros(4), [[] for _ in range(4)]
        rows = [[] for _ in range(4)]
        while not done_mask.all():
            active, before = ~done_mask, observations
            replies = experts(envs)
            replies[1] = "I give up."
            observations, rewards, dones, infos = envs.step(replies)
            assert (rewards.shape, dones.shape, dones.dtype) == ((4,), (4,), np.dtype(bool))
            valid = np.array([info["is_action_valid"] for info in infos], dtype=bool)
            assert (
                not valid[1]
                and (valid[active] != [index == 1 for index in np.where(active)[0]]).all()
            )
            for index in np.where(done_mask)[0]:  # nothing is made of what follows its end
                assert observations["anchor"][index] == before["anchor"][index]
                assert rewards[index] == 0 and dones[index]
            returns += rewards
            for index in range(4):
                total_infos[index].append(infos[index])
                rows[index].append({"active_masks": active[index]})
            done_mask |= dones
        assert returns.tolist() == [10, 0, 10, 10]
        success_rates = envs.success_evaluator(
            total_infos=total_infos,
            total_batch_list=rows,
            episode_rewards=returns,
            episode_lengths=np.ones(4),
        )
        assert success_rates["success_rate"].tolist() == [1, 0, 1, 1]
        if name == "Webshop":
            assert success_rates["webshop_task_score (not success_rate)"].tolist() == [1, 0, 1, 1]
        else:
            types = {key for key in success_rates if key != "success_rate"}
            assert types and all(key.endswith("_success_rate") for key in types)


def test_the_splits_and_tasks_are_verl_agents():
    envs, val_envs = make_envs(config(), source="generated")
    tasks = [info["task"] for info in envs.reset()[1]]
    assert {task.split("/")[1] for task in tasks} == {"train"} and len(set(tasks)) == 2
    held_out = [info["task"] for info in val_envs.reset()[1]]
    assert {task.split("/")[1] for task in held_out} == {"valid_unseen"} and len(set(held_out)) == 3
    valid_seen_envs, unseen_envs = make_envs(config(), source="generated", split="valid_seen")
    assert [info["task"] for info in unseen_envs.reset()[1]] == held_out
    assert {info["task"].split("/")[1] for info in valid_seen_envs.reset()[1]} == {"valid_seen"}
    for manager in (envs, val_envs, valid_seen_envs, unseen_envs):
        manager.close()


def test_history_and_the_step_limit():
    with closing(EnvironmentManager(ALFWORLD, 1, history_length=1, max_episode_steps=3)) as envs:
        envs.reset()
        for _ in range(3):
            observations, _, dones, _ = envs.step(["<think>x</think><action>Inventory</action>"])
        assert dones.all() and observations["text"][0].count("Action 3: 'inventory'") == 1
        assert "Action 2" not in observations["text"][0]


def test_processes():
    sure = ["<think>x</think><action>look</action>"] * 2
    options = {"groups": 2, "source": "generated"}
    with (
        closing(EnvironmentManager(ALFWORLD, **options)) as in_process,
        closing(EnvironmentManager(ALFWORLD, asynchronous=True, **options)) as in_subprocess,
    ):
        assert in_process.reset()[0] == in_subprocess.reset()[0]
        assert in_process.step(sure)[0] == in_subprocess.step(sure)[0]


def test_mistakes_are_told():
    with closing(EnvironmentManager(ALFWORLD, 1)) as envs:
        with pytest.raises(OptionError, match=r"expected 0 replies.*reset first"):
            envs.step(["look"])
        with pytest.raises(OptionError, match="'env_kwargs'"):
            envs.reset(kwargs=[{"question": "Who?"}])
    with pytest.raises(OptionError, match="eval_dataset cannot be 'test'"):
        make_envs(config(alfworld={"eval_dataset": "test"}))
    with pytest.raises(OptionError, match="groups must be"):
        EnvironmentManager(ALFWORLD, 0)
    with pytest.raises(Exception, match=r"expected an environment, found 'sokoban'"):
        make_envs(config("sokoban"))
