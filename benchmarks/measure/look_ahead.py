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


class Trained:
    """What a training left: its environments, its agent's settings and its models."""

    def __init__(self, run: Path) -> None:
        described = read_json(run / "run.json")["described"]
        self.config, env = described["config"], described["env"]
        self.about = {"env": env["id"], "options": env["options"], "config": self.config}
        self.about["model"] = described["model"]
        self.make_env = Environments(env["id"], env["options"])
        self.splits: Sequence[str] = self.config["evaluation_splits"]
        self.looks = self.config["learn_critic"] and (run / "models" / "wm").is_dir()
        if self.looks:
            self.lm, self.wm = (
                HFLanguageModel(run / "models" / role, dtype="float32") for role in ("agent", "wm")
            )

    def play(self, depth: int, candidates: int, tasks: int) -> list[Trajectory]:
        """Play so many tasks of each split."""
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
        found = list[Trajectory]()
        for split in self.splits:
            chosen = evenly(self.make_env(split).get_wrapper_attr("tasks").ids, tasks)
            found += run_episodes(
                lambda split=split: self.make_env(split),
                WebEvolverAgent(config),
                chosen,
                lm=self.lm,
                world_model=world,
                concurrency=64,
            )
        return found


def measured(run: Path, tasks: int) -> dict[str, Any]:
    """Return the result."""
    trained, rows, alone = Trained(run), list[dict[str, Any]](), dict[tuple[str, str], bool]()
    for depth, candidates in ROWS if trained.looks else ():
        began = time.process_time()
        found = trained.play(depth, candidates, tasks)
        spent = time.process_time() - began
        won = {(one.split, one.task): one.success for one in found}
        alone = alone or won
        looked = [c for one in found for s in one.steps if (c := s.notes.get("candidates"))]
        others = sum(max(range(len(c)), key=lambda i, c=c: (c[i]["score"], -i)) > 0 for c in looked)
        row = {"depth": depth, "candidates": candidates, "cpu_seconds": round(spent, 1)}
        row |= {"success": asdict(success_rate(won.values())), "looked": len(looked)}
        row |= {
            "others_taken": others,
            "unread": sum(not i["score_parsed"] for c in looked for i in c),
        }
        row |= {"gained": sum(won[key] > alone[key] for key in won)}
        row |= {"lost": sum(won[key] < alone[key] for key in won)}
        rows.append(row)
        print(row, flush=True)
    found = read_json(run / "summary.json")
    spent, played = found["cpu_seconds"], trained.config["evaluation_tasks"]
    about = {**trained.about, "training_cpu_seconds": spent, "played": played}
    return {**about, "rounds": found["rounds"], "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", type=int, default=100, help="of each split (default: 100)")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    head = {"benchmark": "WebEvolver with a small model", "tasks": given.tasks}
    write_result(given.out, head | circumstances(PACKAGES) | measured(given.run, given.tasks))


if __name__ == "__main__":
    main()
