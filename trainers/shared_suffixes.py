"""Suffix rollouts of a training: shared among its processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .processes import gathered, rank, world_size
from .session import Session
from .suffix import Branch, Outcome, suffix_outcomes

__all__ = ["shared_outcomes"]


def shared_outcomes(
    session: Session, folder: Path, split: str, branches: Sequence[Branch]
) -> list[Outcome]:
    """Play branches with the draft policy, and return their outcomes in order.

    The branches of one task stay together, as they share a beginning.

    Args:
        session: The training.
        folder: Where outcomes are recorded as they come.
        split: The split of the tasks.
        branches: What is played.

    Example:
        >>> shared_outcomes(None, Path("suffixes"), "train", [])
        []
    """
    tasks = sorted({branch.task for branch in branches})
    mine = set(tasks[rank() :: world_size()])
    own = [number for number, branch in enumerate(branches) if branch.task in mine]
    found: list[Outcome] = []
    if own:
        done = [0]

        def advance(outcomes: list[Outcome]) -> None:
            done[0] += len(outcomes)
            session.tell({"event": "suffix", "done": done[0], "of": len(own)})

        found = suffix_outcomes(
            partial(session.make_env, split),
            session.continuation(),
            [branches[number] for number in own],
            lm=session.language_model(),
            live=session.config.live,
            folder=folder / f"rank-{rank()}-of-{world_size()}",
            on_done=advance,
        )
    known = dict(gathered(list(zip(own, found, strict=True))))
    return [known[number] for number in range(len(branches))]
