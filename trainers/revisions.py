"""What revising drafted actions did: CoMap's URR, HRR and BRP (METHODS.md 1.12).

Whether a revision helped is found out by playing on, once from the draft and once from the reflected
action, with the same continuation policy (see `comap.trainers.suffix`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..envs import canonical_action
from ..errors import DataCorrupt, OptionError
from ..metrics import revision_rates
from ..trajectory import Trajectory
from .frozen_sets import in_order
from .suffix import Branch, Outcome

__all__ = ["RevisionMode", "RevisionPair", "revision_branches", "revision_report"]

RevisionMode: TypeAlias = Literal["reflected", "gated"]
"""What counts as a revision: the reflected action is another one than the draft, or the gate opened
for it too (METHODS.md 1.12)."""

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class RevisionPair:
    """A decision whose two actions are both to be tried.

    Attributes:
        draft: The drafted action, then the continuation policy.
        reflected: The reflected one; the draft's again where nothing was revised, so that it is
            played once.
        revised: Whether the decision revised its draft (``m``).
    """

    draft: Branch
    reflected: Branch
    revised: bool

    @property
    def branches(self) -> tuple[Branch, Branch]:
        """What is to be played: first the draft."""
        return self.draft, self.reflected


def revision_branches(
    trajectories: Iterable[Trajectory], n: int, seed: int, mode: RevisionMode = "reflected"
) -> list[RevisionPair]:
    """Return decisions drawn at random, to find out what their revisions did (METHODS.md 1.12).

    Decisions count whose draft and reflected action could be read. Those after an imagined step do
    not: they cannot be played on from.

    Args:
        trajectories: Real episodes of a CoMap agent; their order does not matter.
        n: The most decisions.
        seed: The same seed draws the same. It is also the branches' seed where an episode had none.
        mode: What counts as a revision.

    Raises:
        OptionError: `n` is below 0, or there is no such mode.
        DataCorrupt: The notes of a step are not those of a CoMap agent.

    Example:
        >>> revision_branches([], 100, seed=0)
        []
    """
    if n < 0:
        raise OptionError(f"expected a number of decisions of at least 0, found {n}")
    if mode not in ("reflected", "gated"):
        raise OptionError(f"mode must be one of 'reflected', 'gated', not {mode!r}")
    found = [pair for t in in_order(trajectories) for pair in _pairs(t, seed, mode)]
    picked = random.Random(seed).sample(range(len(found)), min(n, len(found)))
    return [found[place] for place in sorted(picked)]


def _pairs(trajectory: Trajectory, seed: int, mode: RevisionMode) -> Iterator[RevisionPair]:
    """Yield the decisions of an episode that can be played on from."""
    seed = seed if trajectory.seed is None else trajectory.seed
    prefix: tuple[str, ...] = ()
    for step in trajectory.steps:
        if step.imagined:
            return
        notes = step.notes
        if notes.get("path") == "reflected" and notes.get("ref_action") is not None:
            draft, reflected = _action(notes.get("draft_action")), _action(notes["ref_action"])
            forms = {canonical_action(trajectory.env_id, text) for text in (draft, reflected)}
            revised = len(forms) == 2 if mode == "reflected" else notes.get("gate") is True
            tried = reflected if revised else draft
            yield RevisionPair(
                Branch(task=trajectory.task, prefix=prefix, action=draft, seed=seed),
                Branch(task=trajectory.task, prefix=prefix, action=tried, seed=seed),
                revised,
            )
        prefix += (step.action,)


def _action(value: object) -> str:
    if not isinstance(value, str):
        raise DataCorrupt(f"expected an action's text in a step's notes, found {value!r:.80}")
    return value


def revision_report(pairs: Sequence[RevisionPair], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what revisions did: URR, HRR and BRP (CoMap, appendix C.2; METHODS.md 1.12).

    Args:
        pairs: The decisions.
        outcomes: How their branches ended, two for each decision in order:
            ``suffix_outcomes(..., [branch for pair in pairs for branch in pair.branches], ...)``.

    Returns:
        ``n`` decisions, ``failed`` (left out, as a branch could not be played), how many were
        ``revised`` and how many drafts succeed (``drafts_succeed``), and the shares ``urr``, ``hrr``
        (both None where no draft succeeds) and ``brp`` (None where nothing was revised).

    Raises:
        OptionError: There are not two outcomes for each decision.

    Example:
        >>> revision_report([], [])["n"]
        0
    """
    if len(outcomes) != 2 * len(pairs):
        raise OptionError(
            f"expected two outcomes for each of {len(pairs)} decisions, found {len(outcomes)}; play "
            "the branches of all pairs in order"
        )
    rows = [
        (pair.revised, draft.success, reflected.success)
        for pair, draft, reflected in zip(pairs, outcomes[::2], outcomes[1::2], strict=True)
        if draft.error is None and reflected.error is None
    ]
    rates = revision_rates(rows)
    revised = sum(m for m, _, _ in rows)
    good = sum(draft for _, draft, _ in rows)
    return {
        "n": len(rows),
        "failed": len(pairs) - len(rows),
        "revised": revised,
        "drafts_succeed": good,
        "urr": _rounded(rates.urr) if good else None,
        "hrr": _rounded(rates.hrr) if good else None,
        "brp": _rounded(rates.brp) if revised else None,
    }


def _rounded(value: float) -> float:
    return round(value, _DIGITS)
