"""What a training of WebEvolver came to, round by round, and its look-ahead by depth and candidates.

``python benchmarks/measure/look_ahead.py RUN --out FILE [--tasks N]``, of the folder of a training of
``comap train webevolver``. Where there is a world model and the policy has learned to be a critic, it
plays the same held-out tasks greedily without look-ahead and with it; of each row the tasks are counted
that are won with it alone, and without it alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from comap.agents import WebEvolverAgent, WebEvolverConfig, run_episodes
from comap.benchmarks.record import circumstances, write_result
from comap.envs.panel import evenly
from comap.jsonl import read_json
from comap.lm.hf import HFLanguageModel
from comap.metrics import success_rate
from comap.trainers.setup import PACKAGES, Environments
from comap.trajectory import Trajectory
from comap.worldmodel.language import LanguageWorldModel

ROWS = ((0, 1), (0, 3), (1, 2), (1, 3), (1, 5), (2, 2), (2, 3), (2, 5))
"""Depth and candidates; one candidate alone is no look-ahead."""

TaskKey = tuple[str, str]
"""A task's split and id: ids of different splits may be the same."""


class Trained:
    """What a training left: its environments, its agent's settings and its models."""

    def __init__(self, run: Path) -> None:
        described = read_json(run / "run.json")["described"]
        env = described["env"]
        self.config = described["config"]
        self.description = {
            "env": env["id"],
            "options": env["options"],
            "config": self.config,
            "model": described["model"],
        }
        self.make_env = Environments(env["id"], env["options"])
        self.splits: Sequence[str] = self.config["evaluation_splits"]
        self.looks = self.config["learn_critic"] and (run / "models" / "wm").is_dir()
        if self.looks:
            self.lm = HFLanguageModel(run / "models" / "agent", dtype="float32")
            self.wm = HFLanguageModel(run / "models" / "wm", dtype="float32")

    def play(self, depth: int, candidates: int, tasks: int) -> list[Trajectory]:
        """Play so many tasks of each split."""
        # Greedily, so that rows differ by look-ahead alone.
        settings = {**self.config["agent"], "temperature": 0.0, "adapter": None}
        config = WebEvolverConfig(**{**settings, "depth": depth, "candidates": candidates})
        world = LanguageWorldModel(
            self.wm,
            prompts=config.prompts,
            state_text=config.state_text,
            max_length=config.max_length,
            max_new_tokens=self.config["predict_tokens"],
            temperature=self.config["world_temperature"],
        )

        episodes: list[Trajectory] = []
        for split in self.splits:
            split_tasks = evenly(self.make_env(split).get_wrapper_attr("tasks").ids, tasks)
            episodes += run_episodes(
                partial(self.make_env, split),
                WebEvolverAgent(config),
                split_tasks,
                lm=self.lm,
                world_model=world,
                concurrency=64,
            )
        return episodes


def measured(run: Path, tasks: int) -> dict[str, Any]:
    """Return the result."""
    trained = Trained(run)
    rows: list[dict[str, Any]] = []
    successes_alone: dict[TaskKey, bool] = {}
    for depth, candidates in ROWS if trained.looks else ():
        start = time.process_time()
        episodes = trained.play(depth, candidates, tasks)
        seconds = time.process_time() - start

        # The first row is without look-ahead; all are compared with it, task by task.
        successes = {(episode.split, episode.task): episode.success for episode in episodes}
        if not successes_alone:
            successes_alone = successes
        row = {
            "depth": depth,
            "candidates": candidates,
            "cpu_seconds": round(seconds, 1),
            "success": asdict(success_rate(successes.values())),
            **candidate_counts(episodes),
            "gained": sum(successes[key] > successes_alone[key] for key in successes),
            "lost": sum(successes[key] < successes_alone[key] for key in successes),
        }
        rows.append(row)
        print(row, flush=True)

    summary = read_json(run / "summary.json")
    return {
        **trained.description,
        "training_cpu_seconds": summary["cpu_seconds"],
        "played": trained.config["evaluation_tasks"],
        "rounds": summary["rounds"],
        "rows": rows,
    }


def candidate_counts(episodes: Sequence[Trajectory]) -> dict[str, int]:
    """Return how many steps looked ahead, and in how many another candidate than the draft was best."""
    looked = 0
    others_taken = 0
    unread = 0
    for episode in episodes:
        for step in episode.steps:
            candidates = step.notes.get("candidates")
            if not candidates:
                continue
            looked += 1
            # The first candidate is the policy's own draft; of equally good ones the first is taken.
            scores = [candidate["score"] for candidate in candidates]
            if scores.index(max(scores)) > 0:
                others_taken += 1
            unread += sum(not candidate["score_parsed"] for candidate in candidates)
    return {"looked": looked, "others_taken": others_taken, "unread": unread}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", type=int, default=100, help="of each split (default: 100)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    head = {"benchmark": "WebEvolver with a small model", "tasks": options.tasks}
    write_result(options.out, head | circumstances(PACKAGES) | measured(options.run, options.tasks))


if __name__ == "__main__":
    main()
