"""Train a policy by reinforcement learning, with PaW's next-observation loss or without it.

The policy that comap ships for ALFWorld plays generated tasks in groups. GRPO computes advantages from
the returns of each group. PaW adds a loss on the observations that follow the most uncertain actions to
the same update. The settings are the preset ``tiny`` with fewer tasks and two updates: it takes less
than a minute, too short to learn anything.

    python examples/train_paw_tiny.py --out runs/tiny-paw
    python examples/train_paw_tiny.py --out runs/tiny-gigpo --algorithm gigpo --plain

It needs ``pip install "comap-agents[viz,train]"`` and writes the policy, ``metrics.jsonl`` and
``report.html``. If you interrupt it, start it again to resume.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import comap  # registers the environments
from comap.benchmarks import quiet, write_report
from comap.lm import shipped_models
from comap.trainers import Environments, paw_preset, train_paw


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
    print(
        f"{config.title}: {config.updates} updates of {config.groups} x {config.members} episodes"
    )
    with quiet():  # of what the libraries print
        policy = train_paw(
            config,
            model=shipped_models().agent,
            make_env=Environments("comap/ALFWorld-v0", steps | {"source": "generated"}),
            out=options.out,
            about={"preset": "tiny", "model": {"name": "shipped:agent"}},
        )
    for line in (options.out / "metrics.jsonl").read_text("utf-8").splitlines():
        update = json.loads(line)
        shown = {name: value for name, value in update.items() if isinstance(value, float)}
        print(", ".join(f"{name} {value:.3g}" for name, value in list(shown.items())[:8]))
    print(f"report: {write_report(options.out)}")
    print(f"policy: {policy}")


if __name__ == "__main__":
    main()
