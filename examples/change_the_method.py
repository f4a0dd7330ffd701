"""Change the methods from Python: divergence, gates, loss on observations, advantage, selection, reward.

A round of CoMap compares student and teacher by total variation, trusts only predictions that change
something, and revises whenever the policy prefers to. An update of PaW learns observations with a focal
loss, ranks episodes instead of scaling their returns, selects at random, and rewards discoveries.

    python examples/change_the_method.py --out runs/changed

It needs ``pip install "comap-agents[viz,train]"`` and takes less than a minute, too short to
learn anything.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import comap  # registers the environments
from comap.agents.comap import WorldStateGate, agreement
from comap.benchmarks import quiet
from comap.lm import shipped_models
from comap.trainers import (
    CoEvolution,
    Environments,
    open_models,
    paw_preset,
    preset,
    show_expert,
    train_paw,
)

GAMES = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": 6})


def total_variation(student, teacher):
    """Half the sum of the differences of probabilities; the teacher has no gradient."""
    return 0.5 * (student.softmax(-1) - teacher.detach().softmax(-1)).abs().sum(-1)


def trust_changes(student, teacher, *, student_parsed, teacher_parsed, tau):
    """The world-state gate, shut where the student predicts that nothing changes."""
    value = agreement(
        student, teacher, student_parsed=student_parsed, teacher_parsed=teacher_parsed
    )
    return WorldStateGate(value, value >= tau and len(student) > 0)


def prefer(p, q, same, tau_p, tau_q):
    """The action gate without the confidence of the final action."""
    return p > tau_p and not same


def focal(logps, mask):
    """(1 - p)^2 (-log p), the mean over each observation's tokens."""
    p = logps.exp().detach()
    return -(mask * (1 - p) ** 2 * logps).sum(-1) / mask.sum(-1).clamp(min=1)


def ranks(rows):
    """How many rows of its group a row is above, less how many it is below, from -1 to 1."""
    found = np.zeros(len(rows))
    for group in {row.group for row in rows}:
        own = [index for index, row in enumerate(rows) if row.group == group]
        returns = np.array([rows[index].episode_return for index in own])
        above = (returns[:, None] > returns).sum(1) - (returns[:, None] < returns).sum(1)
        found[own] = above / max(len(own) - 1, 1)
    return found


def half(entropies, eligible):
    """Half of the rows, at random."""
    return eligible & (np.random.default_rng(0).random(len(entropies)) < 0.5)


def discoveries(episode):
    """One for each step that adds a fact, ten for a success."""
    rewards = [float(len(step.delta.added) > 0) for step in episode.steps]
    rewards[-1] += 10.0 * episode.success
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/changed"))
    out = parser.parse_args().out

    shipped = shipped_models()
    config = preset(
        "tiny",
        rounds=1,
        tasks_per_round=2,
        demonstrations=2,
        reflection_init=False,
        evaluation_tasks=0,
        frozen_transitions=0,
        diagnosed=0,
    )
    models = open_models(config, None, {"agent": shipped.agent, "wm": shipped.world_model})
    with quiet():  # of what the libraries print
        summary = CoEvolution(
            config,
            models,
            GAMES,
            show_expert(GAMES, config),
            out / "comap",
            warmed_up=True,
            divergence=total_variation,
            state_gate=trust_changes,
            action_gate=prefer,
        ).run()
        train_paw(
            paw_preset("tiny", updates=1, groups=2, members=4, warmup_tokens=0, evaluation_tasks=0),
            model=shipped.agent,
            make_env=GAMES,
            out=out / "paw",
            wm_loss=focal,
            advantage=ranks,
            select=half,
            reward=discoveries,
        )
    for name, stage in summary["stages"].items():
        if stage.get("updates"):
            print(f"{name}: {stage['updates']} updates on {stage['rows']} rows")
    (update,) = map(json.loads, (out / "paw" / "metrics.jsonl").read_text("utf-8").splitlines())
    print(f"PaW: mean return {update['return']:.2f}, observations learned {update['wm_rows']:.0f}")
    for name in ("comap", "paw"):
        changed = json.loads((out / name / "run.json").read_text("utf-8"))["described"]["changed"]
        print(f"{name} changes {', '.join(sorted(changed))}")


if __name__ == "__main__":
    main()
