"""Reflection labels: whether a draft was as good as the expert's action (METHODS.md 1.6).

In some of an expert's states the policy was asked for a draft (`DraftingAgent`). Where the draft is
another action than the expert's, suffix rollouts tell how the episode ends after each of the two
(`branches_of`, `comap.trainers.suffix`). The draft is revised into the expert's action if that ends
better, and else kept (`label_states`); so that keeping does not outweigh all, `balance` thins it out
(CoMap, section 3.2 and appendix C.2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import OptionError
from ..trajectory import Trajectory
from .drafted import Drafted, drafted_states
from .drafting import DraftingAgent, InitContext, checked_context, choose_steps, drawn
from .suffix_label import SuffixLabel
from .suffix_play import Branch, Outcome

__all__ = [
    "DraftingAgent",
    "SuffixLabel",
    "balance",
    "branches_of",
    "choose_steps",
    "label_states",
]

_DELTA = 0.05  # of the largest return, which is 1 (METHODS.md 1.6 [D])
_ROUNDING = 1e-9  # what sums of floating-point numbers may be off by


def branches_of(trajectories: Iterable[Trajectory], n_suffix: int = 1) -> list[Branch]:
    """Return the branches that must be played before states can be labelled.

    They are the draft and the expert's action of each state in which these differ, with the seeds from
    0 on. A greedy continuation needs no more than one seed.

    Args:
        trajectories: Episodes of a `DraftingAgent`.
        n_suffix: How many times each is played.

    Raises:
        OptionError: `n_suffix` is no whole number of at least 1.
        DataCorrupt: A draft's notes are not what they should be.

    Example:
        >>> branches_of([])
        []
    """
    _check_number(n_suffix)
    found: dict[Branch, None] = {}
    for state in drafted_states(trajectories):
        if state.parsed and not state.failed and not state.same:
            for seed in range(n_suffix):
                found[state.branch(state.draft_action, seed)] = None
                found[state.branch(state.expert_action, seed)] = None
    return list(found)


def label_states(
    trajectories: Iterable[Trajectory],
    outcomes: Mapping[Branch, Outcome],
    *,
    n_suffix: int = 1,
    delta: float | None = None,
    init_context: InitContext = "mixed",
    seed: int = 0,
) -> tuple[list[SuffixLabel], dict[str, int]]:
    """Return the label of each state in which the policy was asked for a draft (METHODS.md 1.6).

    ``y`` is 1, and the target the expert's action, if after that more rollouts succeed, or as many and
    their mean return is larger by more than `delta`; else it is 0, and the target the draft.

    Args:
        trajectories: Episodes of a `DraftingAgent`.
        outcomes: What came of the branches that `branches_of` tells.
        n_suffix: How many times each branch was played.
        delta: By how much a return must be larger; None for 0 where all returns are 0 or 1, and else
            for 0.05.
        init_context: Which future the reflection is shown.
        seed: Seed of the draws with ``init_context="mixed"``.

    Returns:
        The labels, in the order of the states; and how many states were left out: ``unparsed``, as no
        action could be read from the draft, and ``failed``, as a rollout ended by a fault.

    Raises:
        OptionError: An option cannot be, a branch was not played, or no world model was asked where
            its prediction is to be shown.
        DataCorrupt: A draft's notes are not what they should be.

    Example:
        >>> label_states([], {})
        ([], {'unparsed': 0, 'failed': 0})
    """
    _check_number(n_suffix)
    checked_context(init_context)
    if delta is None:
        delta = 0.0 if all(one.ret in (0.0, 1.0) for one in outcomes.values()) else _DELTA
    labels: list[SuffixLabel] = []
    left_out = {"unparsed": 0, "failed": 0}
    for state in drafted_states(trajectories):
        if not state.parsed:
            left_out["unparsed"] += 1
            continue
        seeds = range(0 if state.same else n_suffix)
        drafts = [_found(outcomes, state.branch(state.draft_action, n)) for n in seeds]
        experts = [_found(outcomes, state.branch(state.expert_action, n)) for n in seeds]
        if state.failed or any(one.error is not None for one in (*drafts, *experts)):
            left_out["failed"] += 1
            continue
        after_draft = state.observation if state.same else drafts[0].observation
        future, source = _future(state, after_draft, init_context, seed)
        labels.append(_label(state, _judge(drafts, experts, delta), future, source))
    return labels, left_out


def balance(
    labels: Sequence[SuffixLabel], ratio: float = 3.0, seed: int = 0, *, alone: int = 32
) -> tuple[list[SuffixLabel], dict[str, int]]:
    """Leave out kept drafts, drawn by a seed, until there are few enough (METHODS.md 1.6, step 7).

    Args:
        labels: The labels.
        ratio: The most kept drafts for each revision.
        seed: Seed of the draw.
        alone: The most kept drafts where there is no revision at all.

    Returns:
        The remaining labels in their order, and how many there are of each kind (CoMap, Figure 7), and
        how many were left out (``dropped_expert_draft``, ``dropped_keep_draft``).

    Raises:
        OptionError: `ratio` or `alone` is negative or no number.

    Example:
        >>> balance([])[1]["revise_positive"]
        0
    """
    if type(ratio) not in (int, float) or not 0 <= ratio < math.inf:
        raise OptionError(f"ratio must be a number of at least 0, not {ratio!r}")
    if type(alone) is not int or alone < 0:
        raise OptionError(f"alone must be a whole number of at least 0, not {alone!r}")
    revisions = sum(label.y for label in labels)
    limit = int(ratio * revisions + _ROUNDING) if revisions else alone
    keeps = [place for place, label in enumerate(labels) if not label.y]
    keeps.sort(key=lambda place: (_rank(labels[place], seed), place))
    dropped = set(keeps[limit:])
    kept = [label for place, label in enumerate(labels) if place not in dropped]
    counts = Counter(label.kind for label in kept)
    gone = Counter(labels[place].kind for place in dropped)
    return kept, {
        "expert_draft": counts["expert_draft"],
        "revise_positive": counts["revise_positive"],
        "keep_draft": counts["keep_draft"],
        "dropped_expert_draft": gone["expert_draft"],
        "dropped_keep_draft": gone["keep_draft"],
    }


def _label(state: Drafted, judged: Mapping[str, Any], future: str, source: str) -> SuffixLabel:
    return SuffixLabel(
        task=state.task,
        step=len(state.prefix),
        prefix=state.prefix,
        draft_action=state.draft_action,
        draft_response=state.draft_response,
        expert_action=state.expert_action,
        target=state.expert_action if judged["y"] else state.draft_action,
        future=future,
        future_source=source,
        **judged,
    )


def _judge(drafts: Sequence[Outcome], experts: Sequence[Outcome], delta: float) -> dict[str, Any]:
    """Compare what came of both actions; without rollouts the draft is kept."""
    if not drafts:
        return dict.fromkeys(("succ_draft", "succ_exp", "ret_draft", "ret_exp")) | {"y": 0}
    succ_draft, ret_draft = _means(drafts)
    succ_exp, ret_exp = _means(experts)
    larger = ret_exp - ret_draft > delta + _ROUNDING
    return {
        "succ_draft": succ_draft,
        "succ_exp": succ_exp,
        "ret_draft": ret_draft,
        "ret_exp": ret_exp,
        "y": int(succ_exp > succ_draft or (succ_exp == succ_draft and larger)),
    }


def _means(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the share of successes and the mean return."""
    number = len(outcomes)
    returns = math.fsum(one.ret for one in outcomes)
    return sum(one.success for one in outcomes) / number, returns / number


def _future(state: Drafted, real: str, context: InitContext, seed: int) -> tuple[str, str]:
    """Return the future that the reflection is shown, and where it is from."""
    if context == "none":
        return "", "none"
    if context == "mixed":
        coin = drawn(seed, "context", state.task, len(state.prefix)) & 1
        context = "wm" if coin else "env"
    if context == "env":
        return real, "env"
    if state.predicted is None:
        raise OptionError(
            f"expected a world model's prediction for the draft {state.draft_action!r:.80} of task "
            f"{state.task!r:.80}, found none; draft with context='wm' or 'mixed', or label with "
            "init_context='env'"
        )
    return state.predicted, "wm"


def _found(outcomes: Mapping[Branch, Outcome], branch: Branch) -> Outcome:
    if branch not in outcomes:
        raise OptionError(
            f"expected the outcome of action {branch.action!r:.80} after {len(branch.prefix)} others "
            f"in task {branch.task!r:.80} with seed {branch.seed}, found none; play branches_of(...) "
            "of the same trajectories with the same n_suffix"
        )
    return outcomes[branch]


def _rank(label: SuffixLabel, seed: int) -> int:
    return drawn(seed, "balance", label.task, label.step, label.draft_action)


def _check_number(n_suffix: object) -> None:
    if type(n_suffix) is not int or n_suffix < 1:
        raise OptionError(f"n_suffix must be a whole number of at least 1, not {n_suffix!r}")
