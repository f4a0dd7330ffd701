"""What the last policy update of lab-comap-real does to the very rows that it learned from.

``python benchmarks/measure/real_comap_last_update.py OUT FILE --model DIR`` repeats the policy's part of
the second round of each seed whose arms in OUT have ended, in a copy, and asks before and after how
probable the policy finds a revision on the part's own reflections; also after the same updates at lower
rates. The weights have to be those of the run, to the bit. What FILE has is not measured again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lab_conditions import seeds_of
from real_conditions import command_of, finished_job, parser_of_jobs, seeds_in, write_seeds

from comap.cli import main as comap
from comap.trainers.comap.coevolution import CoEvolution
from comap.trainers.row_trainer import RowTrainer

STAGE = "08-round-2-policy"
STAGES = (STAGE, "09-round-2-evaluation")
"""What is done again."""

MEASURED = ("p", "bce", "label_accuracy")
"""A revision's mean probability, and its cross-entropy (nats) and accuracy against the labels."""

LOWER_RATES = (0.0001, 0.00005)
"""A fifth and a tenth of the run's."""


def fit_with_probes(fit: Any, record: dict[str, Any]) -> Any:
    """Return a `fit` that measures before and after what the policy makes of the rows it learns from."""

    def probing_fit(
        self: CoEvolution,
        stage: Any,
        role: str,
        epochs: Any,
        rate: float,
        *args: Any,
        **options: Any,
    ) -> Any:
        if role != "agent":
            return fit(self, stage, role, epochs, rate, *args, **options)

        def fit_at_rate(pass_rate: float) -> Any:
            # Otherwise the pass would go on from the checkpoint of the one before.
            shutil.rmtree(stage.checkpoints, ignore_errors=True)
            return fit(self, stage, role, epochs, pass_rate, *args, **options)

        def measure() -> dict[str, float]:
            # At a rate of 0 a pass over the rows learns nothing, and logs what is measured.
            (logged,) = fit_at_rate(0.0).log
            return {name: logged[name] for name in MEASURED}

        weights = self.roles.parameters(role)
        weights_before = {name: weight.detach().clone() for name, weight in weights.items()}
        record["before"] = measure()
        record["after_at"] = {}
        for lower_rate in LOWER_RATES:
            fit_at_rate(lower_rate)
            record["after_at"][f"{lower_rate:f}".rstrip("0")] = measure()
            with torch.no_grad():
                for name, weight in weights.items():
                    weight.copy_(weights_before[name])

        # Last, so that the stage's weights can be compared with the run's.
        result = fit_at_rate(rate)
        record["after"] = measure()

        labels = [sample.label for sample in epochs[0] if sample.label is not None]
        record["rate"] = rate
        record["updates"] = result.updates
        record["rows"] = result.rows
        record["labels"] = {"n": len(labels), "revise": labels.count(1)}
        return result

    return probing_fit


def logging_once(fit: Any) -> Any:
    """Return a `fit` that logs once, after all updates: then a number is the mean over all rows."""

    def fit_and_log(self: RowTrainer) -> Any:
        self.args.logging_steps = len(self.train_dataset)  # the updates
        return fit(self)

    return fit_and_log


def repeat(out: Path, seed: int, model: Path) -> dict[str, Any]:
    """Return what the policy made of its rows before and after the stage."""
    job = finished_job(out, f"real-comap-alfworld-*-{seed}-*")
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "out")
        copy_up_to_stage(job / "out", copy)
        words = command_of(job, out, model)[1:]
        words[words.index("--out") + 1] = str(copy)
        with (
            patch.object(CoEvolution, "fit", fit_with_probes(CoEvolution.fit, record)),
            patch.object(RowTrainer, "fit", logging_once(RowTrainer.fit)),
        ):
            if comap(words) != 0:
                raise RuntimeError(f"seed {seed}: the stage could not be repeated")

        if weights_of(copy) != weights_of(job / "out"):
            raise RuntimeError(f"seed {seed}: expected the weights of the run, found others")
    return record


def copy_up_to_stage(training: Path, copy: Path) -> None:
    """Copy a training as it was before the stage."""
    shutil.copytree(training, copy)
    for name in STAGES:
        shutil.rmtree(copy / "stages" / name)
    for name in ("summary.json", "lock"):
        (copy / name).unlink(missing_ok=True)


def weights_of(folder: Path) -> Any:
    """Return the hashes of the weights that the stage wrote."""
    return json.loads((folder / "stages" / STAGE / "done.json").read_bytes())["weights_files"]


def main(out: Path, file: Path, model: Path) -> None:
    """Add the seeds of a folder of jobs to a file, after each of them."""
    seeds = seeds_in(file)
    for seed in seeds_of(out.glob("jobs/real-play-comap-shut-alfworld-*/out/*")):
        if str(seed) not in seeds:
            seeds[str(seed)] = repeat(out, seed, model)
            write_seeds(file, seeds)


if __name__ == "__main__":
    options = parser_of_jobs(__doc__).parse_args()
    main(options.out.resolve(), options.file, options.model)
