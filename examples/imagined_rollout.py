"""Learn a world model from a few episodes, imagine with it, and hold it against what really follows.

A retrieval model learns what followed the actions of an expert and of a random player. Then, on tasks
that it has not seen, it is asked before every step of the expert what will be observed (Delta-F1: are
the facts that changed those that it said would?), and the expert makes whole plans in imagination,
which are afterwards carried out.

    python examples/imagined_rollout.py --out runs/imagined

It writes ``rollout.json`` and takes a few seconds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gymnasium as gym

import comap  # registers the environments
from comap.agents import ExpertAgent, RandomAgent, ReplayAgent, run_episode
from comap.metrics import consistency, delta_f1_report
from comap.worldmodel import ImaginedEnv, RetrievalWorldModel, imagine, transitions_of


def learn(env_id: str, tasks: int) -> RetrievalWorldModel:
    """Return a world model of what an expert and a random player saw on some training tasks."""
    env = gym.make(env_id, split="train", source="generated", expert="explore")
    model = RetrievalWorldModel()
    for task in env.unwrapped.tasks.ids[:tasks]:
        for agent in (ExpertAgent(), RandomAgent(mixed=0.1)):
            model.fit(transitions_of(run_episode(env, agent, task=task)))
    return model


def foresee(env: gym.Env[str, str], task: str, model: RetrievalWorldModel) -> list[tuple]:
    """Return what was, what was predicted and what really followed, at each step of the expert."""
    found = []
    observation, info = env.reset(options={"task": task})
    ended = False
    while not ended:
        action = env.unwrapped.expert_action()
        before, predicted = info["facts"], imagine(env, action, model).facts
        observation, reward, terminated, truncated, info = env.step(action)
        found.append((before, predicted, info["facts"]))
        ended = terminated or truncated
    return found


def plan(env: gym.Env[str, str], task: str, model: RetrievalWorldModel) -> tuple[bool, bool]:
    """Return whether a plan made in imagination succeeds there, and whether it really does."""
    dreamt = run_episode(ImaginedEnv(env, model), ExpertAgent(), task=task)
    really = run_episode(env, ReplayAgent(dreamt), task=task)
    return dreamt.success, really.success


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="comap/ALFWorld-v0", help="the environment")
    parser.add_argument("--split", default="valid_unseen", help="the split to look at")
    parser.add_argument("--train-tasks", type=int, default=30)
    parser.add_argument("--test-tasks", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/imagined"))
    options = parser.parse_args()

    model = learn(options.env, options.train_tasks)
    env = gym.make(options.env, split=options.split, source="generated", expert="explore")
    tasks = env.unwrapped.tasks.ids[: options.test_tasks]
    scores = delta_f1_report(row for task in tasks for row in foresee(env, task, model))
    print(f"Delta-F1 of {scores.n} predictions: {100 * scores.mean:.1f}")
    for name, score in scores.by_predicate.items():
        print(f"  {name:10} F1 {100 * score.f1:5.1f} of {score.support} changes")

    pairs = [plan(env, task, model) for task in tasks]
    plans = consistency([dreamt for dreamt, _ in pairs], [really for _, really in pairs])
    print(f"plans that succeed in imagination: {plans.imagined}")
    print(f"plans that really succeed:         {plans.real}")

    options.out.mkdir(parents=True, exist_ok=True)
    told = {
        "env": options.env,
        "split": options.split,
        "delta_f1": scores.mean,
        "delta_f1_of_changes": scores.nonempty_mean,
        "predictions": scores.n,
        "plans": plans.imagined.n,
        "succeed_in_imagination": plans.imagined.value,
        "really_succeed": plans.real.value,
    }
    (options.out / "rollout.json").write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
