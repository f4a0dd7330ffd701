"""CoMap's agent that looks ahead only where it pays: what its authors name as future work."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .. import jsonl
from ..errors import DataCorrupt, DataNotFound, LanguageModelError
from ..trajectory import Trajectory
from .base import Decision, Reply, Request, View
from .comap import CoMapAgent, CoMapConfig, LookAhead
from .heads import RefinementHead
from .prompting import Draft
from .wkm import verb_of

_FORMAT = "comap gate history 1"
_STRENGTH = 4.0  # as many reflections as the share over all kinds counts for, beside a kind's own


@dataclass(frozen=True, slots=True)
class GateHistory:
    """How often drafts were reflected on, and how often the gate then opened, by the draft's verb.

    Attributes:
        seen: Reflections on drafts of each verb.
        opened: Those of them at which the gate opened.

    Example:
        >>> history = GateHistory({"go": 96, "open": 4}, {"open": 4})
        >>> round(history.share("open chest 1"), 3), round(history.share("go to desk 1"), 3)
        (0.52, 0.002)
    """

    seen: Mapping[str, int] = field(default_factory=dict)
    opened: Mapping[str, int] = field(default_factory=dict)

    @property
    def reflections(self) -> int:
        """How many reflections there were."""
        return sum(self.seen.values())

    def share(self, draft: str) -> float:
        """Return how often the gate is expected to open on a draft."""
        total = self.reflections
        if not total:
            return 1.0
        whole = sum(self.opened.values()) / total
        verb = verb_of(draft)
        seen, opened = self.seen.get(verb, 0), self.opened.get(verb, 0)
        return (opened + _STRENGTH * whole) / (seen + _STRENGTH)

    def also(self, outcomes: Iterable[Sequence[Any]]) -> GateHistory:
        """Return this history and some outcomes more: pairs of a verb, and whether the gate opened."""
        seen, opened = dict(self.seen), dict(self.opened)
        for verb, did in outcomes:
            seen[verb] = seen.get(verb, 0) + 1
            if did:
                opened[verb] = opened.get(verb, 0) + 1
        return GateHistory(seen, opened)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> GateHistory:
        """Return the history of recorded episodes of CoMap's agent; other steps count nothing."""
        return cls().also(
            (verb_of(str(step.notes.get("draft_action"))), bool(step.notes.get("gate")))
            for trajectory in trajectories
            for step in trajectory.steps
            if step.notes.get("path") == "reflected"
        )

    def save(self, path: str | Path) -> None:
        """Write it as JSON: the whole new file or none."""
        history = {"format": _FORMAT, "seen": dict(self.seen), "opened": dict(self.opened)}
        jsonl.write_json(Path(path), history, indent=None, sort_keys=True)

    @classmethod
    def load(cls, path: str | Path) -> GateHistory:
        """Read what `save` wrote."""
        try:
            history = jsonl.read_json(Path(path))
            if history["format"] != _FORMAT:
                raise ValueError("another format")
            seen, opened = dict(history["seen"]), dict(history["opened"])
            for verb, count in (*seen.items(), *opened.items()):
                if type(count) is not int or not 0 <= opened.get(verb, 0) <= seen[verb]:
                    raise ValueError(f"counts that cannot be, for {verb!r:.40}")
            return cls(seen, opened)
        except OSError as error:
            raise DataNotFound(f"cannot read a gate history at {path}: {error.strerror}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise DataCorrupt(
                f"expected a gate history at {path} (format {_FORMAT!r}), found {error}; "
                "GateHistory.of(trajectories).save(path) makes one"
            ) from error


_OUTCOMES = "gate outcomes"
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class SelectiveCoMapConfig(CoMapConfig):
    """When CoMap looks ahead; without a criterion it always does.

    Example:
        >>> SelectiveCoMapConfig(surprisal=0.1).when
        'any'
    """

    surprisal: float | None = None
    """It pays where the draft's mean surprisal is above this, in nats for a token: one sample of the
    entropy of the policy. None for no such criterion."""
    adoption: float | None = None
    """It pays where the gate is expected to open on more than this share of such drafts, by its
    history. None for no such criterion."""
    when: Literal["any", "all"] = "any"
    """Whether one of both criteria is enough, or both are needed."""
    tried: int = 0
    """Drafts of a verb that are looked ahead of in each task, whatever the history says."""

    limits = ((0, 100, "surprisal"), (0, 1, "adoption"), (0, math.inf, "tried"))


class SelectiveCoMapAgent(CoMapAgent):
    """CoMap, but a draft that needs no second thought is taken as it is.

    After the draft, before the world model is asked, it is decided whether a look ahead pays: by how
    sure the policy was of the draft, or by how often the gate opened on drafts with the same verb. If
    it does not, neither the world model nor the reflection is asked, and the draft is taken. All else
    is `CoMapAgent`'s. This is ours: CoMap's authors name selective imagination as future work and
    give no method.

    Deviations: those of `CoMapAgent`, and that a look ahead may be left out.

    The gate's history is what is given, and what happened before in the same task: what comes of a
    task does not depend on which others are played with it.

    Args:
        config: Settings; None for the defaults, with which it is CoMap.
        head: See `CoMapAgent`.
        history: What the gate did in earlier episodes (`GateHistory.of`), or the file of its `save`.

    Example:
        >>> agent = SelectiveCoMapAgent(SelectiveCoMapConfig(adoption=0.05), history=GateHistory())
        >>> agent.name
        'comap-selective'
    """

    name = "comap-selective"
    config: SelectiveCoMapConfig

    def __init__(
        self,
        config: SelectiveCoMapConfig | None = None,
        head: RefinementHead | str | Path | None = None,
        history: GateHistory | str | Path | None = None,
    ):
        super().__init__(config or SelectiveCoMapConfig(), head)
        given = GateHistory.load(history) if isinstance(history, str | Path) else history
        self.history = given or GateHistory()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Decide as CoMap does, and remember what the gate did."""
        decision = yield from super().decide(view)
        if decision.notes.get("path") == "reflected":
            verb = verb_of(str(decision.notes["draft_action"]))
            outcomes = view.memory.setdefault(_OUTCOMES, [])
            outcomes.append([verb, bool(decision.notes["gate"])])
        return decision

    def look_ahead(self, view: View, draft: Draft) -> Generator[Request, Reply, LookAhead]:
        """Ask the world model, unless that does not pay."""
        pays, why = self.pays(view, draft)
        if not pays:
            return LookAhead(notes={"look_ahead": why}, reflect=False)
        ahead = yield from super().look_ahead(view, draft)
        return ahead._replace(notes={**ahead.notes, "look_ahead": why})

    def pays(self, view: View, draft: Draft) -> tuple[bool, Mapping[str, Any]]:
        """Return whether to look ahead of a draft, and what speaks for it, as notes."""
        config, criteria = self.config, []
        why: dict[str, Any] = {}
        if config.surprisal is not None:
            why["surprisal"] = _surprisal(draft)
            criteria.append(why["surprisal"] > config.surprisal)
        if config.adoption is not None:
            outcomes = view.memory.get(_OUTCOMES, [])
            share = self.history.also(outcomes).share(draft.action)
            why["adoption"] = round(share, _DIGITS)
            verb = verb_of(draft.action)
            tried = sum(one == verb for one, _ in outcomes)
            criteria.append(share > config.adoption or tried < config.tried)
        pays = not criteria or (any(criteria) if config.when == "any" else all(criteria))
        return pays, {**why, "asked": pays}


def _surprisal(draft: Draft) -> float:
    """Return the mean surprisal of a draft's tokens, in nats."""
    if not draft.logprobs:
        raise LanguageModelError(
            "expected log-probabilities of the draft's tokens, found none; surprisal=... needs a "
            "model that tells them: use adoption=... instead"
        )
    mean = -math.fsum(draft.logprobs) / len(draft.logprobs)
    if not math.isfinite(mean):
        raise LanguageModelError("expected finite log-probabilities of the draft, found others")
    return round(max(mean, 0.0), _DIGITS)
