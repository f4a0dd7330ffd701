"""What is measured of CoMap training (METHODS.md 1.12): predictions and gates.

Predictions are scored on a frozen set of transitions (see `comap.trainers.frozen_sets`), gates by
what the episodes' notes say; revisions are in `comap.trainers.revisions`, the likelihood of what
changed in `comap.trainers.change_tokens`. All results are JSON data. A share is from 0 to 1, Delta-F1
and its like are times 100, and what no case stands behind is None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..envs import Canonicalizer
from ..errors import DataCorrupt, OptionError
from ..facts import State
from ..metrics import DeltaF1Report, delta_f1_report, histogram
from ..trajectory import Step, Trajectory
from ..worldmodel import Prediction, Transition, WorldModel, ask
from .frozen_sets import fingerprint
from .predictability import is_predictable

__all__ = ["gate_report", "score_transitions"]

_TAUS = (0.4, 0.6, 0.8)
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class _Scored:
    """One transition with the beliefs before it, after the prediction and after the truth."""

    before: State
    said: State
    real: State
    same_text: bool
    predictable: bool | None


def score_transitions(
    model: WorldModel,
    transitions: Sequence[Transition],
    canonicalizer: Canonicalizer,
    *,
    batch: int = 256,
) -> dict[str, Any]:
    """Return how well a world model predicts transitions, by Delta-F1 (METHODS.md 1.12).

    Args:
        model: The world model; it is told the questions alone.
        transitions: A frozen set; transitions whose truth fits no rule are dropped and counted.
        canonicalizer: The environment's; reads predictions and truth.
        batch: How many questions the model gets at once.

    Returns:
        ``transitions`` and ``fingerprint`` of the set, ``n`` scored and ``dropped``;
        ``parse_failure_rate`` and ``no_op_share``; for each of ``all``, ``nonempty`` (something
        changed), ``predictable`` and ``unpredictable`` (see `is_predictable`): ``n``, mean
        ``delta_f1`` with its ``stderr``, ``exact_change`` (all changed facts right) and
        ``exact_text`` (the same words), each times 100; and ``by_predicate`` shares.

    Raises:
        OptionError: `batch` is below 1.
        WorldModelError: The model does not answer as world models do.

    Example:
        >>> from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
        >>> from comap.worldmodel import NullWorldModel, Query
        >>> query = Query("comap/ALFWorld-v0", "goal", (), State(), "open safe 1")
        >>> frozen = [Transition(query, "Nothing happens.")]
        >>> score_transitions(NullWorldModel(), frozen, ALFWorldCanonicalizer())["all"]["delta_f1"]
        100.0
    """
    if batch < 1:
        raise OptionError(f"batch must be at least 1, not {batch!r}")
    scored: list[_Scored] = []
    for start in range(0, len(transitions), batch):
        some = transitions[start : start + batch]
        said = ask(model, [query for query, _ in some])
        scored += [_score(t, p, canonicalizer) for t, p in zip(some, said, strict=True)]
    known = [row for row in scored if row.real.parsed]
    report = _delta_f1(known)
    return {
        "transitions": len(scored),
        "fingerprint": fingerprint(transitions),
        "n": len(known),
        "dropped": len(scored) - len(known),
        "parse_failure_rate": _rounded(report.parse_failure_rate) if known else None,
        "no_op_share": _rounded(report.no_op_share) if known else None,
        "all": _group(known),
        "nonempty": _group([row for row in known if row.real.facts != row.before.facts]),
        "predictable": _group([row for row in known if row.predictable is True]),
        "unpredictable": _group([row for row in known if row.predictable is False]),
        "by_predicate": {
            name: {key: _rounded(value) for key, value in asdict(score).items()}
            for name, score in report.by_predicate.items()
        },
    }


def _score(transition: Transition, prediction: Prediction, canonicalizer: Canonicalizer) -> _Scored:
    query, observation = transition
    return _Scored(
        query.state,
        canonicalizer.update(query.state, query.action, prediction.observation),
        canonicalizer.update(query.state, query.action, observation),
        prediction.observation.strip() == observation.strip(),
        is_predictable(query, observation, canonicalizer),
    )


def _delta_f1(rows: Iterable[_Scored]) -> DeltaF1Report:
    return delta_f1_report((row.before, row.said, row.real) for row in rows)


def _group(rows: Sequence[_Scored]) -> dict[str, Any]:
    """Return the scores of some transitions, in percent."""
    report, n = _delta_f1(rows), len(rows)
    values = {
        "delta_f1": report.mean,
        "stderr": report.stderr,
        "exact_change": report.exact_share,
        "exact_text": sum(row.same_text for row in rows) / max(n, 1),
    }
    percent = {key: round(100 * value, 4) if n else None for key, value in values.items()}
    return {"n": n, **percent}


def gate_report(trajectories: Iterable[Trajectory]) -> dict[str, Any]:
    """Return what the notes of a CoMap agent's episodes say of its gates (METHODS.md 1.4, 1.12).

    Args:
        trajectories: Episodes, of training or not; what was not noted is counted nowhere.

    Returns:
        ``steps`` with notes, how often each ``path`` was taken and each ``context_source`` shown;
        ``agreement`` (r of the world-state gate), ``p`` and ``q``: number, mean and a histogram of
        ten parts; ``adoption``, the share of predictions adopted with r at least 0.4, 0.6 and 0.8,
        and by the run's own gate; of the reflected decisions, how often the action gate ``opened``
        and the reflected action was ``changed``; the shares that could not be read (``unparsed``) of
        drafts, reflections, students' and teachers' predictions; and ``invalid_actions``.

    Raises:
        DataCorrupt: A number in the notes is not from 0 to 1.

    Example:
        >>> gate_report([])["adoption"]
        {'0.4': None, '0.6': None, '0.8': None, 'run': None}
    """
    steps = [step for t in trajectories for step in t.steps if "path" in step.notes]
    reflected = [step for step in steps if step.notes["path"] == "reflected"]
    agreements = _numbers(steps, "agreement")
    adoption = {str(tau): _share([r >= tau for r in agreements]) for tau in _TAUS}
    return {
        "steps": len(steps),
        "paths": _counts(steps, "path"),
        "context_sources": _counts(steps, "context_source"),
        "agreement": _distribution(agreements),
        "adoption": adoption | {"run": _share(_flags(steps, "wm_gate"))},
        "p": _distribution(_numbers(steps, "p")),
        "q": _distribution(_numbers(steps, "q")),
        "opened": _share(_flags(reflected, "gate")),
        "changed": _share([_changed(step) for step in reflected]),
        "unparsed": {
            "drafts": _share([not flag for flag in _flags(steps, "draft_parsed")]),
            "reflections": _share([step.notes.get("ref_action") is None for step in reflected]),
            "students": _share([not flag for flag in _flags(steps, "canon_ok_student")]),
            "teachers": _share([not flag for flag in _flags(steps, "canon_ok_teacher")]),
        },
        "invalid_actions": _share([step.invalid_action for step in steps]),
    }


def _counts(steps: Iterable[Step], note: str) -> dict[str, int]:
    found = Counter(str(step.notes[note]) for step in steps if step.notes.get(note) is not None)
    return dict(sorted(found.items()))


def _numbers(steps: Iterable[Step], note: str) -> list[float]:
    """Return the values of a note where there is one."""
    found = []
    for step in steps:
        value = step.notes.get(note)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise DataCorrupt(
                f"expected a number from 0 to 1 as the note {note!r}, found {value!r:.80}; play the "
                "episodes again"
            )
        found.append(float(value))
    return found


def _flags(steps: Iterable[Step], note: str) -> list[bool]:
    return [step.notes[note] is True for step in steps if step.notes.get(note) is not None]


def _changed(step: Step) -> bool:
    parts = step.notes.get("gate_parts")
    return isinstance(parts, dict) and parts.get("changed") is True


def _distribution(values: Sequence[float]) -> dict[str, Any]:
    mean = _rounded(math.fsum(values) / len(values)) if values else None
    return {"n": len(values), "mean": mean, "histogram": histogram(values)}


def _share(flags: Sequence[bool]) -> float | None:
    return _rounded(sum(flags) / len(flags)) if flags else None


def _rounded(value: float) -> float:
    return round(value, _DIGITS)
