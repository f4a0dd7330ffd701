"""Fit a world model on a few episodes, imagine with it, and compare with the real environment.

A retrieval model stores the transitions of an expert and of a random agent. On held-out tasks, it
predicts each step of the expert, scored by Delta-F1 (are the changed facts the predicted ones?). Then
the expert plans whole episodes in imagination, and the plans are executed.

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
    """Return a world model fitted on an expert's and a random agent's episodes of training tasks."""
    env = gym.make(env_id, split="train", source="generated", expert="explore")
    model = RetrievalWorldModel()
    for task in env.unwrapped.tasks.ids[:tasks]:
        for agent in (ExpertAgent(), RandomAgent(mixed=0.1)):
            model.fit(transitions_of(run_episode(env, agent, task=task)))
    return model


def predict(env: gym.Env[str, str], task: str, model: RetrievalWorldModel) -> list[tuple]:
    """Return the facts before, the predicted facts and the real facts of each step of the expert."""
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
    """Return whether a plan succeeds in imagination, and whether it succeeds in the environment."""
    imagined = run_episode(ImaginedEnv(env, model), ExpertAgent(), task=task)
    real = run_episode(env, ReplayAgent(imagined), task=task)
    return imagined.success, real.success


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="comap/ALFWorld-v0", help="the environment")
    parser.add_argument("--split", default="valid_unseen", help="the split of the test tasks")
    parser.add_argument("--train-tasks", type=int, default=30)
    parser.add_argument("--test-tasks", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/imagined"))
    options = parser.parse_args()

    model = learn(options.env, options.train_tasks)
    env = gym.make(options.env, split=options.split, source="generated", expert="explore")
    tasks = env.unwrapped.tasks.ids[: options.test_tasks]
    scores = delta_f1_report(row for task in tasks for row in predict(env, task, model))
    print(f"Delta-F1 of {scores.n} predictions: {100 * scores.mean:.1f}")
    for name, score in scores.by_predicate.items():
        print(f"  {name:10} F1 {100 * score.f1:5.1f} of {score.support} changes")

    pairs = [plan(env, task, model) for task in tasks]
    plans = consistency([imagined for imagined, _ in pairs], [real for _, real in pairs])
    print(f"plans that succeed in imagination:    {plans.imagined}")
    print(f"plans that succeed when executed:     {plans.real}")

    options.out.mkdir(parents=True, exist_ok=True)
    result = {
        "env": options.env,
        "split": options.split,
        "delta_f1": scores.mean,
        "delta_f1_of_changes": scores.nonempty_mean,
        "predictions": scores.n,
        "plans": plans.imagined.n,
        "imagined_success": plans.imagined.value,
        "real_success": plans.real.value,
    }
    (options.out / "rollout.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
