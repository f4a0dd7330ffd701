"""What is written while a disk is full and has no command of its own: a program of functions.

``python -c`` starts it with room for some bytes; it ends as `comap` does: with one line and exit
status 1 after an error of comap's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...agents.records import writing
from ...errors import CoMapError
from ...lm import Completion, Generate, Message, Usage
from ...lm.replay import ReplayLanguageModel
from ...trainers.run_folder import RunFolder

__all__ = ["ASKED", "STAGES", "WRITERS", "Echo", "checkpoint", "main", "record", "result", "train"]

ASKED = 40
"""How many answers a record has."""

STAGES = 6
"""How many stages a training has."""

_SIZE = 64


class Echo:
    """A language model that repeats what it is told."""

    name = "echo"
    capabilities = frozenset({"generate"})

    def __init__(self) -> None:
        self.usage = Usage()

    def generate(self, requests: Sequence[Generate]) -> list[Any]:
        """Return what was asked."""
        return [Completion(one.messages[-1].content, completion_tokens=1) for one in requests]

    def score(self, requests: Sequence[Any]) -> list[Any]:
        """Do nothing: it cannot."""
        raise NotImplementedError

    words = encode = score

    def count_tokens(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())

    def config(self) -> dict[str, Any]:
        """Return how it is made."""
        return {"id": "echo"}


def record(path: Path) -> None:
    """Record a language model's answers into a folder, one after the other.

    Args:
        path: The folder.
    """
    model = ReplayLanguageModel(path / "record.jsonl", Echo())
    for number in range(ASKED):
        asked = f"What is in room {number}? {'It is dark. ' * (number % 5)}"
        (told,) = model.generate([Generate((Message("user", asked),))])
        if isinstance(told, CoMapError):
            raise told


def result(number: int) -> dict[str, Any]:
    """Return the result of a training's stage.

    Example:
        >>> result(3)["rows"]
        3
    """
    return {
        "rows": number,
        "weights": {},
        "losses": [round(1 / (n + 1), 6) for n in range(9 * number)],
    }


def train(path: Path) -> None:
    """Do what is left of a training: a checkpoint and a result for each stage.

    Args:
        path: Its folder.
    """
    from ...trainers.trainer_checkpoints import last_checkpoint, mark_complete, write_weights

    with RunFolder(path).open({"stages": STAGES}, {}) as run:
        for number in range(STAGES):
            stage = run.stage(number, f"stage-{number}")
            if stage.result() is not None:
                continue
            last_checkpoint(stage.path)  # what was left half written is removed
            folder = stage.path / "checkpoint-1"
            if not folder.exists():
                with writing(stage.path):  # as trainers do
                    write_weights(folder, checkpoint(number))
                    mark_complete(folder)
            stage.finish(result(number), 1.0)


def checkpoint(number: int) -> Mapping[str, Mapping[str, Any]]:
    """Return the weights of a stage's checkpoint."""
    import torch

    return {"own": {"A": torch.arange(float(_SIZE * (number + 1))), "B": torch.ones(4, 5)}}


WRITERS: Mapping[str, Callable[[Path], None]] = {"record": record, "train": train}
"""What can be written, by name."""


def main(words: Sequence[str]) -> int:
    """Write, and return the exit status.

    Args:
        words: A name of `WRITERS`, and a folder.
    """
    name, place = words
    try:
        WRITERS[name](Path(place))
    except CoMapError as error:
        print(f"comap: {error}", file=sys.stderr)
        return 1
    return 0
