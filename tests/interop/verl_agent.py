"""verl-agent's own code drives comap's environments: rollouts, GiGPO's advantages, managers side by side.

Run it with a Python that has comap and what verl-agent imports (torch, transformers 4.51, tensordict, ray,
omegaconf, datasets), and with a checkout of verl-agent on PYTHONPATH; no GPU, no vLLM:

    PYTHONPATH=verl-agent python tests/interop/verl_agent.py [--record FILE]

An expert's replies, some of them spoilt, stand in for a language model's. ``--record`` writes how
verl-agent's projection functions read replies, which tests/integrations compares.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import verl
from agent_system.environments.env_manager import (
    AlfWorldEnvironmentManager,
    WebshopEnvironmentManager,
)
from agent_system.environments.env_package.alfworld.projection import alfworld_projection
from agent_system.environments.env_package.search.projection import search_projection
from agent_system.environments.env_package.webshop.projection import webshop_projection
from agent_system.multi_turn_rollout import TrajectoryCollector
from agent_system.reward_manager import EpisodeRewardManager
from gigpo.core_gigpo import compute_step_discounted_returns
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.trainer.ppo.ray_trainer import (
    AdvantageEstimator,
    apply_invalid_action_penalty,
    compute_advantage,
    compute_response_mask,
)

import comap  # noqa: F401 (registers the environments)
from comap.integrations.verl_agent import make_envs, read_reply

GROUPS, SIZE, STEPS = 2, 3, 40
NAMES = {"alfworld/AlfredTWEnv": "comap/ALFWorld-v0", "Webshop": "comap/WebShop-v0"}
PROJECTIONS = {
    "comap/ALFWorld-v0": lambda texts: alfworld_projection(texts, [[]] * len(texts)),
    "comap/WebShop-v0": webshop_projection,
    "comap/SearchQA-v0": search_projection,
}


def config_of(name):
    """Return verl-agent's own configuration, with small batches."""
    published = OmegaConf.load(Path(verl.__file__).parent / "trainer/config/ppo_trainer.yaml")
    env = {"env_name": name, "max_steps": STEPS, "rollout": {"n": SIZE}}
    data = {"train_batch_size": GROUPS, "val_batch_size": 4, "max_prompt_length": 30_000}
    return OmegaConf.merge(published, {"env": env, "data": data | {"return_raw_chat": True}})


def byte_tokenizer():
    """Return a tokenizer of bytes, whose texts come back as they were."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(["<pad>", "<eos>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )
    fast_tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}\nReply:"
    return fast_tokenizer


class StubModel:
    """Writes an expert's replies; the last member of each group gives up after two steps."""

    world_size = 1

    def __init__(self, tokenizer, envs):
        self.tokenizer, self.envs, self.steps = tokenizer, envs, 0

    def generate_sequences(self, batch):
        self.steps += 1
        texts = []
        for index, env in enumerate(self.envs._envs.envs):
            action = env.unwrapped.expert_action() or ""
            reply = f"<think>I know.</think><action>{action}</action>"
            gives_up = index % SIZE == SIZE - 1 and self.steps > 2
            texts.append("I give up." if gives_up else reply)
        encoded = self.tokenizer(texts, padding=True, return_tensors="pt")
        prompts = batch.batch["input_ids"]
        mask = torch.cat([batch.batch["attention_mask"], encoded["attention_mask"]], 1)
        parts = {"prompts": prompts, "responses": _fixed(encoded["input_ids"])}
        parts["input_ids"] = torch.cat([prompts, parts["responses"]], 1)
        parts["attention_mask"] = torch.nn.functional.pad(
            mask, (0, parts["input_ids"].shape[1] - mask.shape[1])
        )
        parts["position_ids"] = parts["attention_mask"].cumsum(1)
        return DataProto.from_dict(tensors=parts)


def _fixed(ids, length=256):
    return torch.nn.functional.pad(ids, (0, length - ids.shape[1]))


def roll_out(name):
    """Play one batch by verl-agent's rollout loop, and learn from it as its trainer does."""
    config, tokenizer = config_of(name), byte_tokenizer()
    envs, val_envs = make_envs(config, source="generated")
    rows = {key: torch.zeros(GROUPS, 4, dtype=torch.long) for key in ("input_ids",)}
    rows |= {
        key: torch.ones(GROUPS, 4, dtype=torch.long) for key in ("attention_mask", "position_ids")
    }
    texts = {key: np.array([""] * GROUPS, object) for key in ("raw_prompt", "data_source")}
    stub = StubModel(tokenizer, envs)
    batch = TrajectoryCollector(config, tokenizer).multi_turn_loop(
        DataProto.from_dict(tensors=rows, non_tensors=texts), stub, envs, is_train=True
    )
    fields = batch.non_tensor_batch
    mean_reward = 10.0 * (1 - 1 / SIZE)
    assert np.isclose(float(fields["success_rate"][0]), 1 - 1 / SIZE)
    first = dict(zip(fields["traj_uid"], fields["episode_rewards"].astype(float), strict=True))
    assert np.isclose(np.mean(list(first.values())), mean_reward) and set(first.values()) == {
        0.0,
        10.0,
    }
    batch.batch["response_mask"] = compute_response_mask(batch)
    scores = EpisodeRewardManager(tokenizer, num_examine=0)(batch)
    batch.batch["token_level_scores"] = scores
    batch.batch["step_rewards"] = compute_step_discounted_returns(batch, gamma=0.95)
    batch, metrics = apply_invalid_action_penalty(batch, 0.1)
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    batch = compute_advantage(
        batch, adv_estimator=AdvantageEstimator.GiGPO, step_advantage_w=1.0, gigpo_mode="mean_norm"
    )
    advantages = batch.batch["advantages"].sum(1)
    better = torch.tensor([first[uid] for uid in fields["traj_uid"]]) > 0
    assert advantages[better].mean() > 0 > advantages[~better].mean()
    anchors = len(set(fields["anchor_obs"]))
    observations, infos = val_envs.reset(kwargs=None)
    assert len(observations["text"]) == len(infos) == 4
    for manager in (envs, val_envs):
        manager.close()
    print(
        f"{name}: {len(batch)} rows, {stub.steps} steps, {anchors} anchors, {metrics}, "
        f"{sorted(key for key in fields if 'success' in key)}"
    )


class Twin:
    """Our environments as verl-agent's environment workers would give them."""

    def __init__(self, env_id, tasks):
        self.envs = [gym.make(env_id, source="generated", split=SPLITS[env_id]) for _ in tasks]
        self.tasks, self.shop = tasks, "WebShop" in env_id

    def reset(self):
        resets = [
            env.reset(options={"task": task})
            for env, task in zip(self.envs, self.tasks, strict=True)
        ]
        self.ended = [False] * len(resets)
        texts, infos = [text for text, _ in resets], [self._info(info) for _, info in resets]
        return (texts, infos) if self.shop else (texts, None, infos)

    def step(self, actions):
        texts, rewards, dones, infos = [], [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            text, _, terminated, truncated, info = env.step(action)
            texts.append(text)
            rewards.append(10.0 * info["success"])
            dones.append(terminated or truncated)
            infos.append(self._info(info))
        return (texts, rewards, dones, infos) if self.shop else (texts, None, rewards, dones, infos)

    def _info(self, info):
        listed = list(info["admissible_actions"])
        self.listed = [*getattr(self, "listed", []), listed][-len(self.tasks) :]
        clicks = [action[6:-1] for action in listed if action.startswith("click[")]
        bar = len(clicks) < len(listed)
        available = {"has_search_bar": bar, "clickables": clicks}
        return {"won": info["success"], "task_score": info["score"], "available_actions": available}

    @property
    def get_admissible_commands(self):
        return self.listed


SPLITS = {"comap/ALFWorld-v0": "train", "comap/WebShop-v0": "legacy-train-500"}


def compare_managers(name):
    """Step verl-agent's manager and ours with the same replies: all but the wording must agree."""
    env_id, config = NAMES[name], config_of(name)
    envs, val_envs = make_envs(config, source="generated")
    val_envs.close()
    ours, our_infos = envs.reset()
    kind = WebshopEnvironmentManager if "WebShop" in env_id else AlfWorldEnvironmentManager
    projection = webshop_projection if "WebShop" in env_id else alfworld_projection
    theirs = kind(Twin(env_id, [info["task"] for info in our_infos]), partial(projection), config)
    their_observations, _ = theirs.reset(kwargs=None)
    steps, active = 0, np.ones(GROUPS * SIZE, bool)
    while active.all():
        assert (
            ours["anchor"] == list(their_observations["anchor"])
            and ours["image"] is their_observations["image"] is None
        )
        for ours_text, their_text in zip(ours["text"], their_observations["text"], strict=True):
            for line in their_text.splitlines():
                part = line.strip(" ,[].")
                if part.startswith(("[Observation", "'")):  # a remembered step, an action
                    assert part.strip("[]") in ours_text, (part, ours_text)
        replies = []
        for index, env in enumerate(envs._envs.envs):
            action = env.unwrapped.expert_action()
            action = action.upper() if index == 1 else action
            replies.append(f"<think>I know.</think><action>{action}</action>")
            if index == 2:
                replies[-1] = replies[-1].replace("<think>", "")
        ours, rewards, dones, infos = envs.step(list(replies))
        their_observations, their_rewards, their_dones, their_infos = theirs.step(list(replies))
        assert rewards.tolist() == their_rewards.tolist() and dones.tolist() == their_dones.tolist()
        for info, their_info in zip(infos, their_infos, strict=True):
            assert bool(info["is_action_valid"]) == bool(their_info["is_action_valid"])
            assert (info["won"], info["task_score"]) == (
                their_info["won"],
                their_info["task_score"],
            )
        steps, active = steps + 1, ~dones
    envs.close()
    print(f"{name}: {steps} steps with the same anchors, rewards, ends, validity and history")


PIECES = (
    "<think>", "</think>", "<action>", "</action>", "<search>", "</search>", "<answer>", "</answer>",
    "go to desk 1", "Click[B0ABCDEFGH]", "search[red shoe]", " ", "\n", "I think so.", "you",
    "\u5f00\u95e8", "<ACTION>", "</ACTION>", "<Search>", "x" * 40, "", "\u00e9t\u00e9", "]", "</", "who?",
)  # fmt: skip


def read_by_both(record, count=20_000):
    """Let both read many replies, well formed and not; what differs must be what we say differs."""
    rng, differ = random.Random(0), {env_id: Counter() for env_id in PROJECTIONS}
    texts = ["".join(rng.choices(PIECES, k=rng.randint(0, 9))) for _ in range(count)]
    for inner in PIECES:
        texts += [
            f"<think>{a}</think>{b}<action>{inner}</action>{a}" for a in PIECES for b in PIECES
        ]
        texts += [f"<think>{a}</think><search>{inner}</search>{a}" for a in PIECES]
        texts += [f"<think>{a}</think><answer>{inner}</answer>{a}" for a in PIECES]
    for env_id, projection in PROJECTIONS.items():
        actions, valids = projection(list(texts))
        lines_by_validity = {True: [], False: []}
        for text, action, valid in zip(texts, actions, valids, strict=True):
            ours = read_reply(env_id, text)
            if ours.action != action.strip() or ours.valid != bool(valid):
                difference_kind = difference(env_id, text, action)
                assert difference_kind is not None, (env_id, text, (action, valid), ours)
                differ[env_id][difference_kind] += 1
            elif len(text) < 100:
                line = {"env": env_id, "reply": text, "action": action.strip()}
                lines_by_validity[bool(valid)].append(line | {"valid": bool(valid)})
        for lines in lines_by_validity.values():
            record += rng.sample(lines, min(len(lines), 25))
    print(f"{len(texts)} replies for each environment; read differently:")
    for env_id, counts in differ.items():
        print(f"  {env_id}: {dict(counts)}")


def difference(env_id, text, action):
    """Return why we read a reply in another way than verl-agent, if there is a reason; else None."""
    search = "SearchQA" in env_id
    tags = ("search", "answer") if search else ("action", "think")
    low = text if search else text.lower()
    if search and re.search("</?[A-Z]", text):
        return "a tag in capital letters"
    if any(-1 < low.find(f"</{tag}>") < low.find(f"<{tag}>") for tag in tags):
        return "a closing tag before its opening"
    if not action.strip():
        return "no action: the end of the reply, or '...', is sent, not nothing"
    if not search and not ("<action>" in low and "</action>" in low):
        return "no action: blanks at its end are left out"
    if search and low.count("<answer>") + low.count("<search>") > 1:
        return "several tags"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    record = []
    read_by_both(record)
    for name in NAMES:
        compare_managers(name)
        roll_out(name)
    if options.record is not None:
        options.record.write_text("".join(json.dumps(line) + "\n" for line in record))


if __name__ == "__main__":
    main()
