"""Train a policy and a world model with CoMap, in less than a minute.

All stages of the paper run: warm-up on demonstrations, initialization of reflection from suffix
rollouts, and one round, in which the policy plays with both gates, the world model learns from its
transitions and the policy from its reflections. The settings are the preset ``tiny`` with far fewer
tasks, too few to learn anything. Remove the changed settings, or run
``comap train comap --preset tiny``, for a training of some minutes.

    python examples/train_comap_tiny.py --out runs/tiny-comap

It needs ``pip install "comap-agents[viz,train]"`` and writes models, results of each stage and
``report.html``. If you interrupt it, start it again to resume.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import comap  # registers the environments
from comap.benchmarks import write_report
from comap.trainers import (
    CoEvolution,
    Environments,
    open_models,
    preset,
    show_expert,
    tiny_for_training,
)

ENV = "comap/ALFWorld-v0"
SHORT = {
    "demonstrations": 6,
    "warmup_epochs": 1,
    "warmup_rollouts": 2,
    "reflection_tasks": 2,
    "states_per_episode": 1,
    "rounds": 1,
    "tasks_per_round": 2,
    "evaluation_splits": ("valid_seen",),
    "evaluation_tasks": 2,
    "frozen_transitions": 12,
    "diagnosed": 2,
    "logging_steps": 1,
    "save_steps": 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--eta", type=float, default=0.5, help="weight of the self-distillation loss"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tiny-comap"))
    options = parser.parse_args()

    config = preset("tiny", seed=options.seed, eta=options.eta, **SHORT)
    make_env = Environments(ENV, {"source": "generated", "max_episode_steps": 8})
    model = tiny_for_training(options.out / "model", ENV, parameters=200_000, seed=config.seed)
    training = CoEvolution(
        config,
        open_models(config, model),
        make_env,
        show_expert(make_env, config),
        options.out,
        about={"preset": "tiny", "model": {"name": "tiny"}},
        tell=lambda event: event["event"] == "stage" and print(event["number"], event["stage"]),
    )
    summary = training.run()
    for name, result in summary["stages"].items():
        if "updates" in result:
            print(f"{name}: {result['updates']} updates on {result['rows']} rows")
    print(f"report: {write_report(options.out)}")
    print(f"models: {options.out / 'models'}")


if __name__ == "__main__":
    main()
