"""The tables of a training's report: what came out of its rounds, and what it learned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from .tables import Table
from .training_record import TrainingRecord, get, members, number

__all__ = [
    "gate_table",
    "prediction_table",
    "results_table",
    "revision_table",
    "sample_table",
]

_SETS = {"frozen": "frozen", "on_policy": "on-policy"}
_CATEGORIES: dict[str, dict[str, tuple[str, ...]]] = {
    "agent": {
        "warm-up": ("warmup", "anchor"),
        "expert-draft": ("expert_draft",),
        "revise+": ("revise_positive",),
        "keep": ("keep_draft",),
        "HQ": ("hq_reflect",),
    },
    "wm": {"warm-up": ("warmup",), "self-distillation": ("world_model",)},
}
_NOTHING = "—"


def results_table(training: TrainingRecord) -> Table:
    """Return the table that a training ends with: success, Delta-F1 and adoption of each round.

    Example:
        >>> results_table(TrainingRecord({}, (), ())).rows
        ()
    """
    rounds = training.evaluations()
    splits = list(dict.fromkeys(s for _, found in rounds for s in members(found, "splits")))
    adoption = dict(training.rollouts())
    rows = [
        (
            place,
            *(_rate(get(found, "splits", split)) for split in splits),
            *(_score(get(found, "world_model", name, "all")) for name in _SETS),
            _adopted(adoption.get(place)),
        )
        for place, found in rounds
    ]
    heads = ("round", *(f"success, {split}" for split in splits))
    heads += ("Delta-F1, frozen", "Delta-F1, on-policy", "predictions adopted")
    note = (
        "Round 0 is before the first. Success with 95 % intervals, Delta-F1 ± one standard error."
    )
    return Table("Results", heads, tuple(rows), note)


def prediction_table(training: TrainingRecord) -> Table:
    """Return how well the world model predicts, by kinds of transitions (METHODS.md 1.12).

    Example:
        >>> prediction_table(TrainingRecord({}, (), ())).rows
        ()
    """
    rows = []
    for place, found in training.evaluations():
        for name, told in _SETS.items():
            scored = get(found, "world_model", name)
            if scored is not None:
                rows.append((place, told, *_predicted(scored)))
    heads = "round|transitions|Delta-F1|something changed|predictable|unpredictable|same words"
    columns = (*heads.split("|"), "unreadable", "nats per change token")
    return Table("Predictions", columns, tuple(rows), "Delta-F1 and what follows it times 100.")


def _predicted(scored: object) -> Iterator[str]:
    for group in ("all", "nonempty", "predictable", "unpredictable"):
        yield _score(get(scored, group))
    yield _of(number(scored, "all", "exact_text"), number(scored, "all", "n"), 1)
    unread = number(scored, "parse_failure_rate")
    yield _of(None if unread is None else 100 * unread, number(scored, "n"), 1)
    said = "change_token_nll"
    yield _of(number(scored, said, "nll"), number(scored, said, "tokens"), 3)


def gate_table(training: TrainingRecord) -> Table:
    """Return what the gates did in rollouts and evaluations (METHODS.md 1.2 to 1.4).

    Example:
        >>> gate_table(TrainingRecord({}, (), ())).rows
        ()
    """
    rows = []
    for name, found in training.done():
        gates = found.get("gates")
        if gates is None:
            continue
        n, reflected = number(gates, "steps"), number(gates, "paths", "reflected") or 0
        r = get(gates, "agreement")
        rows.append(
            (
                name,
                int(n or 0),
                int(reflected),
                _share(gates, reflected, "opened"),
                _share(gates, reflected, "changed"),
                _of(number(r, "mean"), number(r, "n"), 3),
                _share(gates, n, "unparsed", "drafts"),
                _share(gates, reflected, "unparsed", "reflections"),
                _share(gates, number(r, "n"), "unparsed", "students"),
                _share(gates, n, "invalid_actions"),
            )
        )
    heads = "stage|steps|reflected|action gate opened|action changed|agreement r|unreadable drafts"
    columns = (*heads.split("|"), "unreadable reflections", "unreadable predictions")
    return Table("Gates and what could not be read", (*columns, "refused actions"), tuple(rows))


def revision_table(training: TrainingRecord) -> Table:
    """Return what revisions did, by playing out drafts and revisions (CoMap, Table 3).

    Example:
        >>> revision_table(TrainingRecord({}, (), ())).rows
        ()
    """
    rows = []
    for place, found in training.evaluations():
        told = found.get("revisions")
        if told is not None:
            good, revised = number(told, "drafts_succeed"), number(told, "revised")
            counts = (int(number(told, name) or 0) for name in ("n", "failed"))
            rates = (_share(told, good, "urr"), _share(told, good, "hrr"))
            rows.append((place, *counts, *rates, _share(told, revised, "brp")))
    heads = ("round", "decisions", "could not be played", "URR", "HRR", "BRP")
    note = "URR and HRR are shares of the drafts that succeed, BRP of the revisions."
    return Table("Revisions", heads, tuple(rows), note)


def sample_table(training: TrainingRecord) -> Table:
    """Return how many samples of which category both models learned from (CoMap, Figure 7).

    Example:
        >>> sample_table(TrainingRecord({}, (), ())).rows[-1]
        ('world model', 'self-distillation', 0)
    """
    counts: dict[str, Counter[str]] = {"agent": Counter(), "wm": Counter()}
    for _, found in training.learned():
        for kind in members(found, "samples"):
            if found["role"] in counts:
                counts[found["role"]][kind] += int(number(found, "samples", kind) or 0)
    rows = [
        (who, category, sum(counts[role][kind] for kind in kinds))
        for role, who in (("agent", "policy"), ("wm", "world model"))
        for category, kinds in _CATEGORIES[role].items()
    ]
    note = "Over all stages, each stage's first epoch. Anchors are demonstrations: warm-up."
    return Table("Composition of the training data", ("model", "category", "n"), tuple(rows), note)


# -- cells ---------------------------------------------------------------------------------------


def _rate(split: object) -> str:
    """Return success with its interval and number of episodes."""
    parts = [number(split, name) for name in ("success", "success_low", "success_high")]
    n = number(split, "episodes")
    if n is None or any(part is None for part in parts):
        return _NOTHING
    value, low, high = (100 * part for part in parts if part is not None)
    return f"{value:.1f} % [{low:.1f}, {high:.1f}] (n={n:.0f})"


def _score(group: object) -> str:
    value, error, n = (number(group, name) for name in ("delta_f1", "stderr", "n"))
    if value is None or n is None:
        return _NOTHING
    return f"{value:.1f} ± {error or 0:.1f} (n={n:.0f})"


def _adopted(rollouts: Mapping[str, Any] | None) -> str:
    n = number(rollouts, "gates", "agreement", "n")
    share = number(rollouts, "gates", "adoption", "run")
    return _of(None if share is None else 100 * share, n, 1, " %")


def _share(found: object, n: float | None, *keys: str) -> str:
    value = number(found, *keys)
    return _of(None if value is None else 100 * value, n, 1, " %")


def _of(value: float | None, n: float | None, digits: int, unit: str = "") -> str:
    """Return a number with how many cases stand behind it."""
    if value is None or n is None:
        return _NOTHING
    return f"{value:.{digits}f}{unit} (n={n:.0f})"
