"""Which revisions of a round were better than their drafts, by playing out both (METHODS.md 1.8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..trajectory import Trajectory
from .reflection_samples import OutcomeKey
from .revisions import RevisionPair, revision_branches
from .shared_suffixes import shared_outcomes
from .suffix import Outcome

if TYPE_CHECKING:
    from .session import Session

__all__ = ["judged_revisions", "judgements"]

_ALL = 1_000_000_000
_DELTA = 0.05  # of the largest return, which is 1 (METHODS.md 1.6 [D])
_ROUNDING = 1e-9  # what sums of floating-point numbers may be off by


def judged_revisions(
    session: Session, folder: Path, shown: Sequence[Trajectory]
) -> dict[OutcomeKey, int]:
    """Play out draft and reflected action of each decision, and return which was better.

    Args:
        session: The training.
        folder: Where outcomes are recorded as they come.
        shown: The round's episodes.

    Example:
        >>> from types import SimpleNamespace as Some
        >>> session = Some(seed=lambda *parts: 0, config=Some(train_split="train", delta=None))
        >>> judged_revisions(session, Path("suffixes"), [])
        {}
    """
    pairs = revision_branches(shown, _ALL, session.seed("judged"))
    branches = [branch for pair in pairs for branch in pair.branches]
    played = shared_outcomes(session, folder, session.config.train_split, branches)
    return judgements(pairs, played, session.config.delta)


def judgements(
    pairs: Sequence[RevisionPair], outcomes: Sequence[Outcome], delta: float | None = None
) -> dict[OutcomeKey, int]:
    """Return 1 for each decision whose reflected action ended better, and 0 for the others.

    It is better if it succeeds where the draft does not, or if both end alike and its return is larger
    by more than `delta` (METHODS.md 1.6, step 4). Decisions of which a branch failed are left out.

    Args:
        pairs: The decisions.
        outcomes: How their branches ended, two for each in order: the draft's first.
        delta: By how much a return must be larger; None for 0 where all returns are 0 or 1, and else
            for 0.05.

    Example:
        >>> from .suffix import Branch
        >>> pair = RevisionPair(Branch("a", (), "look", 7), Branch("a", (), "wait", 7), True)
        >>> ends = [Outcome(won, float(won), 3, "", None) for won in (False, True)]
        >>> judgements([pair], ends)
        {('a', 7, 0): 1}
    """
    if delta is None:
        delta = 0.0 if all(one.ret in (0.0, 1.0) for one in outcomes) else _DELTA
    judged: dict[OutcomeKey, int] = {}
    for pair, draft, other in zip(pairs, outcomes[::2], outcomes[1::2], strict=True):
        if draft.error is not None or other.error is not None:
            continue
        larger = other.ret - draft.ret > delta + _ROUNDING
        better = other.success > draft.success or (other.success == draft.success and larger)
        judged[pair.draft.task, pair.draft.seed, len(pair.draft.prefix)] = int(better)
    return judged
