"""CoMap's agent that looks ahead only where it pays: what its authors name as future work."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import LanguageModelError, OptionError
from .acting import Draft
from .base import Decision, Reply, Request, View
from .checks import require_whole
from .comap import CoMapAgent, CoMapConfig
from .comap_record import Foreseen
from .gate_history import GateHistory
from .ranges import require_between
from .refinement import RefinementHead
from .verbs import verb_of

__all__ = ["SelectiveCoMapAgent", "SelectiveCoMapConfig"]

_OUTCOMES = "gate outcomes"
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class SelectiveCoMapConfig(CoMapConfig):
    """When CoMap looks ahead; without a criterion it always does.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.surprisal is not None:
            require_between(self, 0, 100, "surprisal")
        if self.adoption is not None:
            require_between(self, 0, 1, "adoption")
        if self.when not in ("any", "all"):
            raise OptionError(f"when must be 'any' or 'all', not {self.when!r:.40}")
        require_whole(self, 0, "tried")


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

    def look_ahead(self, view: View, draft: Draft) -> Generator[Request, Reply, Foreseen]:
        """Ask the world model, unless that does not pay."""
        pays, why = self.pays(view, draft)
        if not pays:
            return Foreseen(notes={"look_ahead": why}, reflect=False)
        foreseen = yield from super().look_ahead(view, draft)
        return foreseen._replace(notes={**foreseen.notes, "look_ahead": why})

    def pays(self, view: View, draft: Draft) -> tuple[bool, Mapping[str, Any]]:
        """Return whether to look ahead of a draft, and what speaks for it, as notes.

        Args:
            view: What the agent sees.
            draft: A draft that could be read.

        Raises:
            LanguageModelError: Surprisal counts, and the model told no probabilities of the draft.
        """
        config, said = self.config, []
        why: dict[str, Any] = {}
        if config.surprisal is not None:
            why["surprisal"] = _surprisal(draft)
            said.append(why["surprisal"] > config.surprisal)
        if config.adoption is not None:
            outcomes = view.memory.get(_OUTCOMES, [])
            share = self.history.also(outcomes).share(draft.action)
            why["adoption"] = round(share, _DIGITS)
            verb = verb_of(draft.action)
            tried = sum(one == verb for one, _ in outcomes)
            said.append(share > config.adoption or tried < config.tried)
        pays = not said or (any(said) if config.when == "any" else all(said))
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
