"""Train a policy by reinforcement learning, with PaW's loss on what follows its actions or without.

The policy that comap ships for ALFWorld, which wins now and then, plays generated tasks in groups; GRPO
makes advantages of what each group's episodes earned; PaW lets the same update also predict the
observations that followed the most uncertain actions. The settings are those of the preset ``tiny``
with fewer tasks and two updates, so that it is over in less than a minute: too few to learn anything.

    python examples/train_paw_tiny.py --out runs/tiny-paw
    python examples/train_paw_tiny.py --out runs/tiny-gigpo --algorithm gigpo --plain

It needs ``pip install "comap[viz,train]"`` and writes the policy, ``metrics.jsonl`` and
``report.html``. Stop it and start it again: it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import comap  # registers the environments
from comap.benchmarks.paw_report import write_report
from comap.benchmarks.training_display import quiet
from comap.lm.shipped import folder_of
from comap.trainers.paw.presets import paw_preset
from comap.trainers.paw.training import train
from comap.trainers.setup import Environments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="grpo", choices=("grpo", "rloo", "gigpo", "ppo"))
    parser.add_argument("--plain", action="store_true", help="without PaW")
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/tiny-paw"))
    options = parser.parse_args()

    steps = {"max_episode_steps": 12}
    config = paw_preset(
        "tiny",
        algorithm=options.algorithm,
        paw=not options.plain,
        seed=options.seed,
        updates=options.updates,
        groups=2,
        members=4,
        **steps,
        warmup_tokens=0,
        evaluation_splits=("valid_seen",),
        evaluation_tasks=4,
    )
    print(f"{config.row}: {config.updates} updates of {config.groups} x {config.members} episodes")
    with quiet():  # of what the libraries print
        policy = train(
            config,
            model=folder_of("shipped:agent"),
            make_env=Environments("comap/ALFWorld-v0", steps | {"source": "generated"}),
            out=options.out,
        )
    for line in (options.out / "metrics.jsonl").read_text("utf-8").splitlines():
        told = json.loads(line)
        shown = {name: value for name, value in told.items() if isinstance(value, float)}
        print(", ".join(f"{name} {value:.3g}" for name, value in list(shown.items())[:8]))
    print(f"report: {write_report(options.out)}")
    print(f"policy: {policy}")


if __name__ == "__main__":
    main()
