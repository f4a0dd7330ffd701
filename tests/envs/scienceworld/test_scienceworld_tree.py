"""The object tree as facts, and beliefs compared with it: by hand, and in the simulator."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.envs.scienceworld import ScienceWorldEnv
from comap.envs.scienceworld.engine import gold_path, nodes, tree_facts
from comap.envs.scienceworld.tasks import task_table
from kits.scienceworld_truth import Truth

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))

CHECKED = 5
RANDOM = 14


_RARE = CASES["_rare"]


def random_actions(env: ScienceWorldEnv, task: str, steps: int) -> Iterator[str]:
    """Yield actions for random play: each verb as often as any other, looks, and some nonsense."""
    rng = random.Random(f"{task}\nbeliefs")
    for _ in range(steps):
        valid = env.valid_actions()
        kind = rng.random()
        if kind < 0.2 or not valid:
            yield rng.choice(_RARE) if kind < 0.08 else "look around"
            continue
        verbs: dict[str, list[str]] = {}
        for action in valid:
            verbs.setdefault(action.split(" ")[0], []).append(action)
        verb = rng.choice(sorted(verbs))
        # A wrong focus ends the episode, and tells little of the world.
        yield "look around" if verb == "focus" and rng.random() < 0.8 else rng.choice(verbs[verb])


def follow_belief(
    env: ScienceWorldEnv, task: str, actions: Iterator[str], counts: Counter[str], skipped: int = 0
) -> None:
    """Play a task and compare the belief with the object tree after each action."""
    _, info = env.reset(options={"task": task})
    for action in islice(actions, skipped):
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return
    before = Truth(env.engine.tree(), info["facts"])
    for action in actions:
        _, _, terminated, truncated, info = env.step(action)
        after = Truth(env.engine.tree(), info["facts"], before.names)
        counts["steps"] += 1
        counts["unparsed texts"] += not info["facts"].parsed
        counts["beliefs"] += sum(after.is_true(fact) is not None for fact in info["facts"].facts)
        wrong = after.false()
        if wrong:
            earlier = Truth(before.tree, info["facts"], before.names)
            wrong = [fact for fact in wrong if earlier.is_true(fact) is False]
        counts["false beliefs"] += len(wrong)
        counts.update(f"false: {fact} after {task} {action!r}" for fact in wrong)
        before = after
        if terminated or truncated:
            return


@pytest.fixture(scope="module")
def plans(eto) -> dict[str, tuple[str, tuple[str, ...]]]:
    """A task and recorded gold path for most names of tasks."""
    gold_paths = json.loads((eto / "gold_paths_sample.json").read_text("utf-8"))
    return {
        sample["task"]: (f"{sample['task']}/{sample['variation']}", tuple(sample["gold"]))
        for sample in gold_paths
    }


def test_beliefs_are_true_along_gold_paths(shared_env: gym.Env[str, str], plans):
    env: Any = shared_env.unwrapped
    counts: Counter[str] = Counter()
    for name in list(task_table())[::7]:
        task, path = plans.get(name, (f"{name}/0", None))
        if path is None:
            env.reset(options={"task": task})
            path = gold_path(env.engine)
        assert path, name
        last = min(len(path), 16)  # the long ones repeat themselves
        follow_belief(env, task, iter(path[:last]), counts, skipped=max(0, last - CHECKED))
    assert [key for key in counts if key.startswith("false: ")] == []
    assert counts["unparsed texts"] == 0
    assert counts["beliefs"] > 300


@pytest.mark.parametrize("part", range(2))
def test_beliefs_are_true_in_random_play(shared_env: gym.Env[str, str], part: int):
    env: Any = shared_env.unwrapped
    counts: Counter[str] = Counter()
    for task in random.Random(part).sample(env.tasks.ids, 3):
        follow_belief(env, task, random_actions(env, task, RANDOM), counts)
    assert [key for key in counts if key.startswith("false: ")] == []
    assert counts["unparsed texts"] == 0
    assert counts["beliefs"] > 100


def test_identifiers_do_not_depend_on_what_was_played_before(shared_env: gym.Env[str, str]):
    env: Any = shared_env.unwrapped
    facts_each_time = []
    for earlier_task in ("find-plant/1", "boil/0"):
        env.reset(options={"task": earlier_task})
        env.reset(options={"task": "power-component/0"})
        facts_each_time.append(tree_facts(env.engine.tree()))
    assert facts_each_time[0] == facts_each_time[1]
    names = [node.key for node in nodes(env.engine.tree())]
    assert len(names) == len(set(names))
