"""Groups of episodes and their rows: what a real model read and wrote, whoever plays, however many."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents import Decision
from comap.agents.create import create_agent, tiny_folder
from comap.errors import EngineError, OptionError
from comap.lm import Generate, Message
from comap.lm.hf import HFLanguageModel
from comap.lm.tiny import tokenizer_of
from comap.trainers.paw.rollouts import (
    Group,
    Rollouts,
    groups_of,
    play_groups,
    roll_out,
    rollout_metrics,
    shuffled,
)
from comap.trainers.paw.rows import ADMISSIBLE, PaWRow, Serializer
from kits.paw import watched_generation
from kits.processes import forked
from kits.scripted import HashedModel
from kits.toys import ToyEnv

pytest.importorskip("torch")

SMALL = {"temperature": 1.0, "top_p": 1.0, "draft_tokens": 6, "max_length": 1024}
BRIEF = {"prompts": "brief", "state_text": "belief", **SMALL}
AGENTS = {
    "given": {**BRIEF, "form": "given"},
    "asked": {**BRIEF, "form": "asked"},
    "standard": {**SMALL, "history_turns": 2, "examples": 0},
}
EACH_AGENT = pytest.mark.parametrize("kind", AGENTS)


def make_home():
    return gym.make("comap/ALFWorld-v0", source="generated", split="train", max_episode_steps=3)


TASKS = make_home().unwrapped.tasks.ids[:2]
GROUPS = [Group(number, task, 3) for number, task in enumerate(TASKS)]


def open_model(folder):
    """Return an untrained model that ends about one reply in three before it is cut."""
    lm = HFLanguageModel(tiny_folder(folder, parameters=200_000, episodes=1), device="cpu")
    end = lm.tokenizer.eos_token_id

    def favour_end(_, __, logits):
        logits[..., end] += 4.5
        return logits

    lm.model.lm_head.register_forward_hook(favour_end)
    return lm


def rolled(lm, kind, groups=GROUPS, **options):
    agent = create_agent("react", **AGENTS[kind])
    return roll_out(make_home, agent, groups, Serializer(lm.tokenizer), lm=lm, **options)


def digest_of_rows(folder, live):
    """Return a digest of rows: for another process, which orders sets in another way."""
    rows = rolled(open_model(Path(folder)), "given", concurrency=int(live), seed=5).rows
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paw") / "model"


@pytest.fixture(scope="module")
def model(folder):
    return open_model(folder)


@EACH_AGENT
def test_rows_have_the_tokens_of_generation(model, kind):
    with watched_generation() as generations:
        played = rolled(model, kind, seed=1)
    assert len(played.rows) == 18 and not played.dropped
    for row in played.rows:
        logprobs = generations[row.prompt_ids, row.response_ids]
        assert row.sampled_logprobs == pytest.approx(logprobs, abs=1e-6)
        has_ended = row.response_ids[-1] == model.tokenizer.eos_token_id
        assert (
            model.tokenizer.decode(row.header_ids) == ("" if has_ended else "<|end|>") + "<|user|>"
        )
    assert len({row.response_ids[-1] == model.tokenizer.eos_token_id for row in played.rows}) == 2
    begins = [model.tokenizer.decode(row.prompt_ids).endswith("Action:") for row in played.rows]
    assert set(begins) == {kind == "given"}


def test_members_begin_alike_and_are_sampled_apart(model):
    agent = create_agent("react", **AGENTS["given"])
    played = play_groups(make_home, agent, GROUPS, lm=model, seed=2)
    rows = rolled(model, "given", seed=2).rows
    for row, after in pairwise(rows):
        if after.t:  # what follows is the next anchor
            assert model.tokenizer.decode(row.observation_ids) == after.anchor
    assert all(row.observation_ids for row in rows), "the last observation too"
    for group, episodes in zip(GROUPS, played, strict=True):
        starts = [episode.steps[0].calls[0] for episode in episodes]
        assert len({(start.messages, start.prefix) for start in starts}) == 1
        assert len({start.token_ids for start in starts}) > 1
        first = [row for row in rows if row.group == group.number and row.t == 0]
        assert [row.trajectory % 3 for row in first] == [0, 1, 2]
        assert len({row.anchor for row in first}) == 1
        asked_once = [
            len(episode.steps[0].calls) == 1 for episode in episodes
        ]  # no reminder of the form
        prompts = {row.prompt_ids for row, once in zip(first, asked_once, strict=True) if once}
        assert len(prompts) <= 1
    assert len({row.anchor for row in rows if row.t == 0}) == 2


def test_a_group_is_the_same_with_others_and_alone(model):
    whole = rolled(model, "given", seed=4, concurrency=6).rows
    for live in (1, 2):
        alone = rolled(model, "given", [GROUPS[1]], seed=4, concurrency=live).rows
        assert alone == [row for row in whole if row.group == 1]


def test_rows_are_the_same_in_every_process(folder, model):
    status, digest, errors = forked([__file__, str(folder), "1"], dict(os.environ))
    assert not status, errors
    assert digest.strip() == digest_of_rows(str(folder), "6")


def test_admissible_actions_are_noted_and_predicted(model):
    serializer = Serializer(model.tokenizer, include_admissible=True)
    agent = create_agent("react", **AGENTS["given"])
    play_options = {"lm": model, "seed": 3, "include_admissible": True}
    ((played, *_), *_) = play_groups(make_home, agent, GROUPS, **play_options)
    plain = rolled(model, "given", seed=3).rows
    rows = roll_out(make_home, agent, GROUPS, serializer, **play_options).rows
    assert [row.response_ids for row in rows] == [row.response_ids for row in plain]
    listed = "\n".join(["", "Admissible actions:", *played.steps[1].notes[ADMISSIBLE]])
    observation = model.tokenizer.decode(rows[0].observation_ids)
    assert (
        "look" in played.steps[1].notes[ADMISSIBLE] and observation == f"{rows[1].anchor}{listed}"
    )
    assert rows[2].observation_ids == plain[2].observation_ids
    with pytest.raises(OptionError, match="include_admissible=True"):
        roll_out(make_home, agent, GROUPS, serializer, lm=model)


class Knowing:
    """Asks, and then does as the expert says: but for the first member of each group, who waits."""

    name = "knowing"

    def __init__(self):
        self.seeds: list[int] = []

    def decide(self, view):
        self.seeds.append(view.seed)
        yield Generate((Message("user", view.history[-1].observation),), purpose="act")
        action = view.expert_action() if view.seed % 2 else "look"
        return Decision(action, notes={"valid": view.step > 0})


class Drawing(ToyEnv):
    """Draws its first words, and notes what it was reset with."""

    resets: list[int | None] = []  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        self.resets.append(seed)
        return super().reset(seed=seed, options=options)

    def _open(self, task):
        split, goal, outcome = super()._open(task)
        number = int(self.np_random.integers(1000))
        return split, goal, outcome._replace(observation=f"{outcome.observation} {number}")


class Careless(ToyEnv):
    """Begins in another way each time."""

    count = 0

    def _open(self, task):
        split, goal, outcome = super()._open(task)
        Careless.count += 1
        return split, goal, outcome._replace(observation=f"Day {Careless.count}.")


def toy_rows(groups, env=ToyEnv, agent=None, **options):
    serializer = Serializer(tokenizer_of(["You open the amber box."] * 2, 320))
    make = lambda: env(max_episode_steps=3)  # noqa: E731
    return roll_out(make, agent or Knowing(), groups, serializer, lm=HashedModel(), **options)


def test_returns_lengths_and_validity_are_those_of_the_episodes():
    rows = toy_rows([Group(4, "toy/1", 2)], success_reward=10).rows
    waiting, knowing = rows[:3], rows[3:]
    assert [row.trajectory for row in rows] == [8, 8, 8, 9, 9] and {row.group for row in rows} == {
        4
    }
    assert [row.reward for row in rows] == [0, 0, 0, 0, 10]
    assert {(row.episode_return, row.success, row.episode_length) for row in waiting} == {
        (0, False, 3)
    }
    assert {(row.episode_return, row.success, row.episode_length) for row in knowing} == {
        (10, True, 2)
    }
    assert [row.valid for row in rows] == [False, True, True, False, True]


def test_a_group_is_reset_with_one_seed_and_samples_with_others():
    agent, Drawing.resets = Knowing(), []
    groups = [Group(0, "toy/1", 4), Group(1, "toy/2", 4)]
    first = {
        row.anchor
        for row in toy_rows(groups, Drawing, agent, seed=1, concurrency=3).rows
        if row.t == 0
    }
    assert len(set(agent.seeds)) == 8 and all(agent.seeds) and len(first) == 2
    assert len(Drawing.resets) == 8 and len(set(Drawing.resets)) == 2
    next_update = toy_rows(groups, Drawing, seed=1, update=1).rows
    assert not first & {row.anchor for row in next_update if row.t == 0}, (
        "another update draws anew"
    )


def test_an_environment_that_does_not_keep_to_its_seed_is_found_out():
    with pytest.raises(EngineError, match=r"'toy/1' to begin alike, found 'Day 1\.' and 'Day 2\.'"):
        toy_rows([Group(0, "toy/1", 2)], Careless)


class Failing(Knowing):
    """Breaks in the second step of the second member; the third gives up at once."""

    def decide(self, view):
        if view.seed % 4 == 2:
            return Decision(None)
        if view.seed % 4 == 1 and view.step == 1:
            raise ValueError("no idea")
        return (yield from super().decide(view))


def test_what_a_fault_ended_is_dropped_and_told():
    groups = [Group(0, "toy/1", 4), Group(1, "toy/none", 4)]
    finished = []
    played = toy_rows(groups, agent=Failing(), on_done=finished.append)
    assert sorted(episode.task for episode in finished) == ["toy/1"] * 4 + ["toy/none"] * 4
    assert {row.trajectory for row in played.rows} == {0, 3}
    assert played.dropped[1].startswith("ValueError: no idea (test_rollouts.py, line ")
    assert played.dropped[2] == "no step was taken"
    assert all(played.dropped[number].startswith("TaskNotFound") for number in (4, 5, 6, 7))
    stats = rollout_metrics([played.sums()])
    assert (stats["episodes"], stats["dropped"], stats["success"]) == (2, 6, 0.5)


@given(st.integers(1, 12), st.data(), st.integers(0, 3))
def test_groups_walk_through_all_tasks(size, data, seed):
    tasks = [f"t{number}" for number in range(size)]
    groups = data.draw(st.integers(1, size))
    updates = [groups_of(tasks, groups, 2, seed, update) for update in range(2 * size)]
    walk = [group.task for update in updates for group in update]
    for update in updates:
        assert len({group.task for group in update}) == groups
        assert [group.number for group in update] == list(range(groups))
    for epoch in range(len(walk) // size):
        assert sorted(walk[epoch * size : (epoch + 1) * size]) == sorted(tasks)
    assert updates[-1] == groups_of(tasks, groups, 2, seed, 2 * size - 1)
    with pytest.raises(OptionError, match=f"the number of training tasks, {size}, not {size + 1}"):
        groups_of(tasks, size + 1, 2, seed, 0)


def test_statistics_are_those_of_episodes_and_rows():
    def row(trajectory, t, **fields):
        ids = {"prompt_ids": (1, 2), "response_ids": (3,)}
        return PaWRow(group=0, trajectory=trajectory, t=t, **ids, **fields)

    winning_fields = {"episode_return": 10.0, "success": True, "observation_ids": (4, 5, 6)}
    rows = [row(0, t, **winning_fields) for t in range(3)] + [row(1, 0, valid=False)]
    stats = Rollouts(rows, {7: "", 8: ""}, 1.5).sums()
    metrics = rollout_metrics([stats])
    assert (metrics["episodes"], metrics["dropped"], metrics["rows"], metrics["steps"]) == (
        2,
        2,
        4,
        2,
    )
    assert (metrics["success"], metrics["return"], metrics["invalid"]) == (0.5, 5.0, 0.25)
    assert [metrics[f"{part}_tokens"] for part in ("prompt", "response", "observation")] == [
        8,
        4,
        9,
    ]
    combined = rollout_metrics([stats, Rollouts(rows[3:], {}, 2.0).sums()])
    assert combined["success"] == pytest.approx(1 / 3) and combined["seconds_rollout"] == 2.0
    assert set(rollout_metrics([Rollouts([], {}, 0.0).sums()]).values()) == {0}


def test_a_placebo_learns_other_steps_observations():
    shared_fields = {"group": 0, "trajectory": 0, "prompt_ids": (1,), "response_ids": (2,)}
    rows = [
        PaWRow(**shared_fields, t=t, observation_ids=(10 + t,) if t % 3 else ()) for t in range(12)
    ]
    shuffled_rows = shuffled(rows, seed=1, update=4)
    assert [replace(row, observation_ids=()) for row in shuffled_rows] == [
        replace(row, observation_ids=()) for row in rows
    ]
    assert sorted(row.observation_ids for row in shuffled_rows) == sorted(
        r.observation_ids for r in rows
    )
    moved = [shuffled_row != row for shuffled_row, row in zip(shuffled_rows, rows, strict=True)]
    assert sum(moved) > 4 and not any(moved[::3])
    assert shuffled(rows, 1, 4) == shuffled_rows != shuffled(rows, 1, 5)


if __name__ == "__main__":
    print(digest_of_rows(*sys.argv[1:]))
