"""Returns of rows: the whole episode's, and the discounted one from a step on (METHODS.md 2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rows import PaWRow

__all__ = ["row_returns", "step_returns"]


def row_returns(rows: Sequence[PaWRow], penalty: float) -> NDArray[np.float64]:
    """Return each row's whole episode return, less `penalty` if its reply is invalid (METHODS.md 2.6).

    Example:
        >>> from comap.trainers.paw.rows import PaWRow
        >>> row = PaWRow(group=0, trajectory=0, t=0, prompt_ids=(1,), response_ids=(2,),
        ...              valid=False, episode_return=10.0)
        >>> row_returns([row], penalty=0.1).tolist()
        [9.9]
    """
    return np.array([row.episode_return - penalty * (not row.valid) for row in rows], np.float64)


def step_returns(rows: Sequence[PaWRow], gamma: float, penalty: float) -> NDArray[np.float64]:
    """Return each row's discounted sum of its own and later rewards, less its own penalty.

    ``R_t = sum over k >= t of gamma^(k-t) r_k``, minus `penalty` if the step's reply is invalid; a
    later step's penalty does not reach back (METHODS.md 2.6, GiGPO item 2).

    Raises:
        OptionError: A trajectory has two rows of one step.

    Example:
        >>> from comap.trainers.paw.rows import PaWRow
        >>> rows = [PaWRow(group=0, trajectory=0, t=t, prompt_ids=(1,), response_ids=(2,),
        ...                reward=10.0 * t, valid=t == 1) for t in (0, 1)]
        >>> step_returns(rows, gamma=0.95, penalty=0.1).tolist()
        [9.4, 10.0]
    """
    found = np.zeros(len(rows))
    previous: PaWRow | None = None
    running = 0.0
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].trajectory, -rows[i].t)):
        row = rows[index]
        if previous is None or previous.trajectory != row.trajectory:
            running = 0.0
        elif previous.t == row.t:
            raise OptionError(
                f"expected one row for each step, found two of trajectory {row.trajectory}, step "
                f"{row.t}; leave copies out"
            )
        else:
            running *= gamma ** (previous.t - row.t)
        running += row.reward
        found[index] = running - penalty * (not row.valid)
        previous = row
    return found
