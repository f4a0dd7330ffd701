"""Playing tasks in a training: shared among its processes, recorded as it goes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..agents import Agent
from ..agents.run import TRAJECTORIES, Run, run_to
from ..agents.run_summary import recorded
from ..lm import LanguageModel
from ..trajectory import Trajectory
from ..worldmodel import WorldModel
from .processes import is_first, rank, wait, world_size

if TYPE_CHECKING:
    from .session import Session

__all__ = ["play", "played"]


def play(
    session: Session,
    folder: Path,
    split: str,
    agent: Agent,
    tasks: Sequence[str],
    *,
    lm: LanguageModel | None = None,
    world_model: WorldModel | None = None,
    seed: int | None = None,
) -> list[Trajectory]:
    """Play tasks into a folder, and return the episodes in the tasks' order: see `Session.play`.

    Args:
        session: The training.
        folder: The folder; what it has already is not played again.
        split: The tasks' split.
        agent: Who plays.
        tasks: The tasks' ids, all different.
        lm: Answers the agent's requests.
        world_model: Answers what the agent asks to imagine.
        seed: The episodes' seed; None for none.

    Example:
        >>> play(None, Path("episodes"), "train", None, ())
        []
    """
    mine = list(tasks)[rank() :: world_size()]
    if mine:
        run = Run(
            make_env=partial(session.make_env, split),
            agent=agent,
            tasks=mine,
            lm=lm,
            world_model=world_model,
            seed=seed,
            config={"split": split},
        )
        _play_mine(session, folder / f"rank-{rank()}-of-{world_size()}", run)
    wait()
    _remove_others(folder)
    wait()
    order = {task: number for number, task in enumerate(tasks)}
    return sorted(played(folder), key=lambda trajectory: order[trajectory.task])


def _play_mine(session: Session, place: Path, run: Run) -> None:
    """Play this process's share."""
    done = [0]

    def advance(trials: list[Trajectory]) -> None:
        done[0] += 1
        won = sum(trial.success for trial in trials)
        session.tell({"event": "episode", "done": done[0], "of": len(run.tasks), "won": won})

    run_to(place, run, live=session.config.live, on_done=advance)


def _remove_others(folder: Path) -> None:
    """Remove what a session of another number of processes had begun."""
    if is_first():
        for path in sorted(folder.glob("rank-*-of-*")):
            if not path.name.endswith(f"-of-{world_size()}"):
                shutil.rmtree(path)


def played(folder: Path) -> list[Trajectory]:
    """Return all episodes that were played into a folder, in no order of the tasks.

    Args:
        folder: The folder.

    Example:
        >>> played(Path("nowhere"))
        []
    """
    return [
        trajectory
        for path in sorted(folder.glob(f"rank-*/{TRAJECTORIES}"))
        for trajectory in recorded(path)
    ]
