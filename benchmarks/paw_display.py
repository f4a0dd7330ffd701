"""What `comap train paw` shows: a line, or a step of a bar, for each update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..metrics import success_rate
from .training_display import TrainingShown, training_progress
from .training_record import number

__all__ = ["PaWShown", "evaluation_line", "paw_progress", "update_line"]

_TOLD = (  # what a line tells of an update: the first of some measures that is known
    (("success",), "success", 100, " %"),
    (("reward", "return"), "return", 1, ""),
    (("loss", "policy_loss"), "loss", 1, ""),
    (("wm_loss",), "observation loss", 1, ""),
)


@contextmanager
def paw_progress() -> Iterator[PaWShown]:
    """Show what a training does, as it happens; of several processes only the first shows anything.

    Meanwhile nothing else reaches standard output: libraries print their own logs there.

    Yields:
        What to tell of the training.

    Raises:
        MissingExtra: rich is not installed.

    Example:
        >>> with paw_progress() as shown:
        ...     shown.tell({"event": "update", "update": 1, "of": 4, "success": 0.5})
        ...     print("from a library")
        update 1 of 4: success 50.0 %
    """
    with training_progress() as shown:
        yield PaWShown.like(shown)


class PaWShown(TrainingShown):
    """What is shown of a training: bars on a terminal, else lines.

    Args:
        console: rich's console; None shows nothing.

    Attributes:
        live: The bars of rich, where there is a terminal.
    """

    def __init__(self, console: Any = None):
        super().__init__(console)
        self._updates: Any = None

    @classmethod
    def like(cls, shown: TrainingShown) -> PaWShown:
        """Return one that shows where another does."""
        made = cls(shown._console)
        made.live = shown.live
        return made

    def tell(self, event: Mapping[str, Any]) -> None:
        """Take note of what happened, and show that.

        Args:
            event: ``event`` is ``update`` (with ``update``, ``of`` and what it measured), ``episode``
                of an update's rollouts (``update``, ``done``, ``of``, ``won``), ``evaluation``
                (``update``, ``split``) when one begins, ``evaluated`` when it ends (``n``,
                ``success`` and ``score`` besides), ``warmup`` and ``simulator`` (``done``, ``of``,
                ``loss``) where a model is taught, or one of those that `TrainingShown` knows.
        """
        kind = event["event"]
        if kind == "update" and "update" in event:
            self._end_part()
            self._move_updates(event)
        elif kind == "evaluation":
            self._show_part(f"evaluation after update {event['update']}, {event['split']}")
        elif kind == "evaluated":
            self._end_part()
            self.say(evaluation_line(event))
        elif kind in ("warmup", "simulator"):
            self._show_part("warm-up" if kind == "warmup" else "simulator")
            self._move(event["done"], event["of"], f"tokens, loss {event['loss']:.3f}")
        else:
            if kind == "episode" and "update" in event:
                self._show_part(f"update {event['update']}")
            super().tell(event)

    def _show_part(self, label: str) -> None:
        """Begin to show a part of the work, unless it is being shown."""
        if self._label != label:
            self._begin(label)

    def _end_part(self) -> None:
        self._end()
        self._label = ""

    def _move_updates(self, event: Mapping[str, Any]) -> None:
        line = update_line(event)
        if self.live is None:
            self.say(line)
            return
        if self._updates is None:
            self._updates = self.live.add_task("updates", total=event["of"])
        done = {"completed": event["update"], "total": event["of"]}
        self.live.update(self._updates, description=line.partition(": ")[2] or "updates", **done)


def update_line(event: Mapping[str, Any]) -> str:
    """Return an update in a line, of what is known of it.

    Args:
        event: ``update`` and ``of``; its success, mean return and losses where they are known.

    Example:
        >>> update_line({"update": 3, "of": 150, "success": 0.406, "return": 4.0625, "wm_loss": 0.5})
        'update 3 of 150: success 40.6 %, return 4.062, observation loss 0.500'
    """
    said = []
    for names, told, times, unit in _TOLD:
        known = [value for name in names if (value := number(event, name)) is not None]
        if known:
            said.append(f"{told} {times * known[0]:.{1 if unit else 3}f}{unit}")
    place = f"update {event['update']} of {event['of']}"
    return f"{place}: {', '.join(said)}" if said else place


def evaluation_line(event: Mapping[str, Any]) -> str:
    """Return an evaluation of a split in a line.

    Example:
        >>> evaluation_line({"update": 10, "split": "valid_seen", "n": 4, "success": 0.5})
        'evaluation after update 10: valid_seen 50.0 % [15.0, 85.0] (n=4)'
    """
    n = int(event["n"])
    won = round(event["success"] * n)
    rate = success_rate([True] * won + [False] * (n - won))
    score = number(event, "score")
    told = f"evaluation after update {event['update']}: {event['split']} {rate}"
    return told if score is None else f"{told}, score {score:.3f}"
