"""Rows, models and trainings for the tests of PaW's trainer; as a script, one of several processes.

python tests/kits/paw.py ALGORITHMS MODEL OUT
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from comap.lm.tiny import build_tiny
from comap.trainers.config import changed as with_changes
from comap.trainers.paw.config import PaWTraining, preset
from comap.trainers.paw.rows import PaWRow
from comap.trainers.paw.trainer import Functions, make_trainer

GROUPS, MEMBERS = 4, 3
WORDS = ["look go to open take put cabinet fridge apple 1 2 3 you see nothing happens"] * 3


def model_folder(path: Path) -> Path:
    """A tiny untrained model."""
    if not path.exists():
        build_tiny(path, WORDS, parameters=200_000, seed=0, vocabulary=320)
    return path


def some_rows(update: int, words: int = 250) -> list[PaWRow]:
    """Made-up rows of a whole update: other lengths, wins, invalid replies and ends each time."""
    draw = random.Random(update)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(5, words) for _ in range(draw.randint(low, high)))

    rows = []
    for trajectory in range(GROUPS * MEMBERS):
        length = draw.randint(1, 4)
        success = draw.random() < 0.5
        for t in range(length):
            is_last = t == length - 1
            observed = not (is_last and draw.random() < 0.4)
            response = ids(2, 5)
            rows.append(
                PaWRow(
                    group=trajectory // MEMBERS,
                    trajectory=trajectory,
                    t=t,
                    prompt_ids=ids(5, 12),
                    response_ids=response,
                    header_ids=(3, 4) if observed else (),
                    observation_ids=ids(2, 6) if observed else (),
                    footer_ids=(3,) if observed else (),
                    sampled_logprobs=tuple(-draw.random() * 5 for _ in response),
                    reward=10.0 * success * is_last,
                    valid=draw.random() < 0.8,
                    anchor=f"state {draw.randint(0, 3)}",
                    episode_return=10.0 * success,
                    episode_length=length,
                    success=success,
                )
            )
    return rows


def settings(**changed: Any) -> PaWTraining:
    """Settings for those rows."""
    defaults: dict[str, Any] = {"groups": GROUPS, "members": MEMBERS, "mini_batch_rows": None}
    if "micro_batch_rows" in changed:
        defaults["micro_batch_tokens"] = None
    return preset("tiny", **{**defaults, **changed})


def changed(config: PaWTraining, **settings: Any) -> PaWTraining:
    return with_changes(config, settings)


class _Gradients(TrainerCallback):
    """Keeps the gradients of the last step of the optimizer."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        for name, weight in parts["model"].named_parameters():
            self.by_name[name.removeprefix("module.")] = weight.grad.detach().clone()


def trained(
    config: PaWTraining,
    model: Path,
    out: Path,
    *,
    updates: int = 1,
    stop: int | None = None,
    rows: Callable[[int], Sequence[PaWRow]] = some_rows,
    dtype: Any = torch.float32,
    functions: Functions | None = None,
) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """Train, and return the trainer, its log, and the gradients of its last step."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    log: list[dict[str, Any]] = []
    trainer = make_trainer(
        config,
        loaded,
        AutoTokenizer.from_pretrained(model),
        rows,
        out,
        updates=updates,
        functions=functions,
        stop=stop,
        tell=lambda line: log.append(dict(line)),
        device="cpu",
    )
    gradients = _Gradients()
    trainer.add_callback(gradients)
    trainer.fit()
    return trainer, log, gradients.by_name


@contextmanager
def watched_generation() -> Iterator[dict[tuple[Any, Any], Any]]:
    """Note what the engine reads and writes: log-probabilities by prompt and reply."""
    from comap.lm.engine import passes

    logprobs: dict[tuple[Any, Any], Any] = {}
    decode: Callable[..., Any] = passes.decode

    def watching(engine: Any, rows: Any) -> Any:
        for row in decode(engine, rows):
            logprobs[tuple(row.prompt), tuple(row.tokens)] = tuple(row.logprobs)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "decode", watching)
        yield logprobs


def mine(update: int) -> list[PaWRow]:
    """This process's rows: one group in WORLD_SIZE, as `comap.trainers.paw.training` deals them."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    return [row for row in some_rows(update) if row.group % size == rank]


def run(name: str, model: Path, out: Path) -> None:
    """One training, whose log and weights are written down by the first process."""
    algorithm, _, size = name.partition("-")
    config = settings(
        algorithm=algorithm, mini_batch_rows=int(size) if size else None, micro_batch_rows=6
    )
    trainer, log, _ = trained(config, model, out / f"{name}-checkpoints", updates=2, rows=mine)
    if int(os.environ.get("RANK", "0")) == 0:
        weights = {
            key.removeprefix("module."): weight
            for key, weight in trainer.model.state_dict().items()
        }
        torch.save(weights, out / f"{name}.pt")
        (out / f"{name}.json").write_text(json.dumps(log))


if __name__ == "__main__":
    for training_name in sys.argv[1].split(","):
        run(training_name, Path(sys.argv[2]), Path(sys.argv[3]))
