"""A training that is killed at any moment, and started again, ends as if nothing had happened.

One process imports all that training needs and forks a child for each attempt, so that a restart is
cheap; the children are killed with SIGKILL. Moments are measured in the child's processor time, so that
they do not depend on what else runs on the machine. This file is that process's program as well.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load

KIT = Path(__file__).with_name("training_kit.py")
processes = load(f"{KIT.with_name('process_kit.py')}:KIT")
KILLS = {"lora": 3}  # at any moment; all weights are trained where it is killed at boundaries
BOUNDARIES = (
    "stages/*-warmup-policy/checkpoints/checkpoint-1",  # being written
    "stages/*-warmup-policy/agent.safetensors",  # trained, but the stage has not ended
    "stages/*-warmup-policy/done.json",
    "stages/*-reflection-suffixes/suffixes/*/outcomes.jsonl",
    "stages/*-round-1-rollouts/episodes/*/trajectories.jsonl",
    "stages/*-round-1-world-model/predictions-0.json",
    "stages/*-round-1-world-model/predictions-1.json",
    "stages/*-round-1-policy/head.safetensors",
    "stages/*-round-1-evaluation/done.json",  # all stages are done, the models are not saved
    "models/agent",
    "models/head.safetensors",
)
SPREAD = 0.9  # of the whole run: a run that is not watched may be quicker than the one measured


# -- the process that kills ------------------------------------------------------------------------


class Attempts:
    """Runs trainings in children that are forked from this process."""

    def __init__(self, kit: Any, place: Path):
        self.kit, self.place = kit, place
        self.demos = kit.demos_of(3)

    def train(self, kind: str, out: Path, moments: Path) -> None:
        """Train to the end, and note when each stage began and ended, in processor time."""
        config = self.kit.small(world_model_epochs=2, weights=kind)
        with moments.open("w") as file:

            def tell(event: Any) -> None:
                if event["event"] in ("stage", "known", "done", "end"):
                    line = [time.process_time(), event["event"], event.get("stage", "")]
                    file.write(json.dumps(line) + "\n")
                    file.flush()

            self.kit.training(config, self.place / "model", out, tell).run()
            tell({"event": "end"})

    def attempt(self, kind: str, out: Path, now: Callable[[int], bool]) -> tuple[bool, list[Any]]:
        """Train in a child until it ends or `now` says to kill it; return whether it ended."""
        moments = out.with_suffix(".moments")
        ended, _ = processes.attempt(
            lambda: self.train(kind, out, moments), out.with_suffix(".log"), now
        )
        lines = moments.read_text().splitlines() if moments.exists() else []
        return ended, [told for told in map(_line, lines) if told]

    def killed_at(self, kind: str, out: Path, told: list[Any], seed: int) -> list[str]:
        """Kill a training at moments spread over its run, and return where it was each time."""
        rng = random.Random(seed)
        start, end = told[0][0], told[-1][0]
        after = {stage: moment for moment, event, stage in told if event == "done"}
        where, reached = [], start
        for number in range(KILLS[kind]):
            moment = start + SPREAD * (end - start) * (number + rng.random()) / KILLS[kind]
            limit = start + max(moment - reached, 0.0)
            ended, found = self.attempt(
                kind, out, lambda child, most=limit: processes.cpu(child) >= most
            )
            if ended:
                break
            done = [stage for _, event, stage in found if event in ("known", "done")]
            reached = max([reached, *(after[stage] for stage in done)])
            where.append(found[-1][2] if found else "start")
        self.attempt(kind, out, lambda child: False)
        return where

    def killed_when(self, kind: str, out: Path) -> list[str]:
        """Kill a training as soon as certain files are there, and return which those were."""
        where = []
        for pattern in BOUNDARIES:
            ended, _ = self.attempt(kind, out, lambda child, it=pattern: any(out.glob(it)))
            if not ended:
                where.append(pattern)
        self.attempt(kind, out, lambda child: False)
        return where


def _line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # half written when it was killed


def main(place: Path) -> None:
    processes.import_trainers()
    kit = load(f"{KIT}:KIT")
    kit.build_elsewhere(place / "model")
    attempts, report = Attempts(kit, place), {}
    for number, kind in enumerate(("full", "lora")):
        _, told = attempts.attempt(kind, place / kind, lambda child: False)
        if kind in KILLS:
            report[kind] = attempts.killed_at(kind, place / f"{kind}-killed", told, number)
    report["boundaries"] = attempts.killed_when("full", place / "boundaries")
    (place / "report.json").write_text(json.dumps(report))


# -- what it must come to --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    pytest.importorskip("trl")
    place = tmp_path_factory.mktemp("killed")
    yield place, processes.report_of(__file__, place)


def check_same(place: Path, one: str, other: str) -> None:
    kit = load(f"{KIT}:KIT")
    assert kit.results_of(place / other) == kit.results_of(place / one)
    files, wanted = kit.files_of(place / other), kit.files_of(place / one)
    assert sorted(files) == sorted(wanted)
    assert [name for name in wanted if files[name] != wanted[name]] == []
    left = [path for path in (place / other).rglob("*") if path.name.startswith("checkpoint")]
    assert not left


@pytest.mark.parametrize("kind", KILLS)
def test_killed_at_any_moment(killed: tuple[Path, dict[str, Any]], kind: str) -> None:
    place, report = killed
    kills = KILLS[kind]
    assert 0.6 * kills < len(report[kind]) <= kills  # the last ones may come too late
    assert len(set(report[kind])) >= 2, "kills are to be spread over the stages"
    check_same(place, kind, f"{kind}-killed")


def test_killed_at_boundaries(killed: tuple[Path, dict[str, Any]]) -> None:
    place, report = killed
    assert len(report["boundaries"]) >= len(BOUNDARIES) - 1  # the last one may come too late
    check_same(place, "full", "boundaries")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
