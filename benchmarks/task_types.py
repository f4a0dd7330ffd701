"""What kind of task a task is, as far as its id tells: for filters and tables."""

from __future__ import annotations

import re

from ..envs.alfworld.difficulty import Difficulty
from ..errors import CoMapError

__all__ = ["task_type"]

_GENERATED_GAME = re.compile(
    r"generated/[a-z_]+/([a-z0-9.-]{1,80})/[0-9]{1,18}-([0-9]{6,12})", re.ASCII
)


def task_type(env_id: str, task: str, split: str = "") -> str:
    """Return the kind of a task; empty where the id does not tell it.

    Args:
        env_id: The environment.
        task: The task's id.
        split: Its split, which is no kind.

    Example:
        >>> task_type("comap/ALFWorld-v0", "generated/train/normal/0-000001", "train")
        'look_at_obj_in_light'
        >>> task_type("comap/ScienceWorld-v0", "boil/3", "dev")
        'boil'
    """
    if env_id == "comap/ALFWorld-v0":
        return _family(task)
    parts = task.removeprefix("generated/").split("/")
    return parts[0] if len(parts) > 1 and parts[0] != split else ""


def _family(task: str) -> str:
    """Return the family of a game: it is in an official id, and a generated one's number gives it."""
    generated = _GENERATED_GAME.fullmatch(task)
    if generated:
        try:
            families = Difficulty.of(generated[1]).families
        except CoMapError:
            return ""
        return families[int(generated[2]) % len(families)]
    parts = task.split("/")
    return parts[1].partition("-")[0] if len(parts) == 3 else ""
