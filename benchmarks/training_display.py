"""What `comap train` shows: a line for each stage, and how far the present one is."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from ..errors import MissingExtra
from ..trainers.processes import is_first
from .marks import one_line

__all__ = ["TrainingShown", "quiet", "stage_line", "training_progress"]

_SECONDS = 10.0  # between two lines of progress, where standard output is no terminal
_PARTS = 10  # of a stage's work, between two such lines


@contextmanager
def training_progress() -> Iterator[TrainingShown]:
    """Show what a training does, as it happens; of several processes only the first shows anything.

    Meanwhile nothing else reaches standard output: libraries print their own logs there.

    Yields:
        What to tell of the training.

    Raises:
        MissingExtra: rich is not installed.

    Example:
        >>> with training_progress() as shown:
        ...     shown.tell({"event": "known", "stage": "warmup-policy", "number": 1, "of": 12})
        ...     print("from a library")
        [1/12] warmup-policy: done before
    """
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError as error:
        raise MissingExtra.of("viz", "a progress bar") from error
    console = Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
    shown = TrainingShown(console if is_first() else None)
    with quiet():
        if not (is_first() and console.is_terminal):
            yield shown
            return
        live = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
        )
        with live:
            shown.live = live
            yield shown


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what libraries print and warn of from the terminal; errors still come through.

    Example:
        >>> with quiet():
        ...     print("unseen")
    """
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _hush()
        with redirect_stdout(nowhere):
            yield


def _hush() -> None:
    """Keep progress bars and notices of the libraries of models from standard error."""
    import logging as standard

    for name in ("accelerate", "datasets", "torch", "trl"):
        standard.getLogger(name).setLevel(standard.ERROR)
    try:
        import huggingface_hub.utils
        from transformers.utils import logging
    except ImportError:
        return
    hub: Any = huggingface_hub.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub.set_verbosity_error()


class TrainingShown:
    """What is shown of a training: a bar on a terminal, else a line now and then.

    Args:
        console: rich's console; None shows nothing.

    Attributes:
        live: The bars of rich, where there is a terminal.
    """

    def __init__(self, console: Any = None):
        self._console = console
        self.live: Any = None
        self._bar: Any = None
        self._label = self._last = ""
        self._at, self._part = time.monotonic(), 0

    def say(self, text: str) -> None:
        """Show a line."""
        if self._console is not None:
            self._console.print(one_line(text, 400))
            self._console.file.flush()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Take note of what happened (see `comap.trainers.coevolution`), and show that."""
        kind = event["event"]
        if kind == "stage":
            self._begin(f"[{event['number']}/{event['of']}] {event['stage']}")
        elif kind == "known":
            self.say(f"[{event['number']}/{event['of']}] {event['stage']}: done before")
        elif kind == "done":
            self._end()
            self.say(f"{self._label}: {stage_line(event['result'])}")
        elif kind == "demonstration":
            if not self._label:
                self._begin("demonstrations")
            self._move(event["done"], event["of"], f"{event['won']} succeeded")
        elif kind == "episode":
            won = f"success {100 * event['won'] / max(event['done'], 1):.1f} %"
            self._move(event["done"], event["of"], f"episodes, {won}")
        elif kind == "task":
            self._move(event["done"], event["of"], "tasks")
        elif kind == "suffix":
            self._move(event["done"], event["of"], "branches played out")
        elif kind == "update":
            self._move(event["step"], event["steps"], f"updates, loss {event['loss']:.3f}")

    def _begin(self, label: str) -> None:
        self._end()
        self._label, self._part, self._at = label, 0, time.monotonic()
        if self.live is not None:
            self._bar = self.live.add_task(label, total=None)

    def _end(self) -> None:
        if self._bar is not None:
            self.live.remove_task(self._bar)
            self._bar = None

    def _move(self, done: int, total: int, text: str) -> None:
        if self._bar is not None:
            told = f"{self._label}: {text}"
            self.live.update(self._bar, completed=done, total=total, description=told)
            return
        part, now = done * _PARTS // max(total, 1), time.monotonic()
        if part != self._part and now - self._at >= _SECONDS and done < total:
            self._part, self._at = part, now
            self.say(f"{self._label}: {done} of {total} {text}")


def stage_line(result: Mapping[str, Any]) -> str:
    """Return in a line what a stage ended with.

    Args:
        result: What its ``done.json`` holds.

    Example:
        >>> stage_line({"role": "wm", "updates": 4, "log": [{"loss": 5.9}], "seconds": 2.6})
        '4 updates of wm, loss 5.900, 2.6 s'
    """
    said = []
    if "splits" in result:
        for split, found in result["splits"].items():
            rate = 100 * found["success"]
            said.append(f"{split} {rate:.1f} % of {found['episodes']} succeeded")
    elif "role" in result:
        losses = [line["loss"] for line in result.get("log") or [] if "loss" in line]
        loss = f", loss {losses[-1]:.3f}" if losses else ""
        said.append(f"{result['updates']} updates of {result['role']}{loss}")
    elif "states" in result:
        said.append(f"drafts in {result['states']} states of {result['episodes']} episodes")
    elif "success" in result:
        said.append(f"{100 * result['success']:.1f} % of {result['episodes']} episodes succeeded")
    elif "labels" in result:
        said.append(f"{result['labels']} labels from {result['branches']} branches")
    elif "counts" in result and "alternatives" in result["counts"]:
        told = result["counts"]
        said.append(f"{told['alternatives']} alternatives in {told['states']} states")
    elif "entries" in result:
        said.append(f"{result['entries']} entries")
    elif "k" in result:
        shares = ", ".join(f"{count} of K={k}" for k, count in result["k"].items())
        said.append(f"{result['steps']} steps: {shares}")
    elif "tasks" in result:
        said.append(f"{result['tasks']} tasks")
    elif "transitions" in result:
        said.append(f"{result['transitions']} transitions")
    if "seconds" in result:
        said.append(f"{result['seconds']:,.1f} s")
    return ", ".join(said)
