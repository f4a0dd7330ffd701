"""Entry conditions: what must be true before a training can show what its method does.

A training that cannot show anything should say so before it spends hours. The ranges are those of our own
experiments (docs/evidence.md); outside them a result of either sign says little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..envs import Canonicalizer
from ..facts import diff
from ..trajectory import Trajectory
from ..worldmodel import Transition, WorldModel, ask


@dataclass(frozen=True, slots=True)
class Condition:
    """A number, the range it should be in, and what to change where it is not."""

    name: str
    found: float | None
    low: float = -math.inf
    high: float = math.inf
    remedy: str = ""

    @property
    def met(self) -> bool:
        return self.found is not None and self.low <= self.found <= self.high

    def line(self) -> str:
        """Return it as a line of text."""
        bounds = [f"at least {self.low:g}"] * (self.low > -math.inf)
        bounds += [f"at most {self.high:g}"] * (self.high < math.inf)
        value = "unknown" if self.found is None else f"{self.found:.3g}"
        wanted = f"{self.name}: {value} ({' and '.join(bounds)})"
        return f"met: {wanted}" if self.met else f"not met: {wanted}; {self.remedy}"


def event_of(conditions: Sequence[Condition]) -> dict[str, Any]:
    """Return the event that reports conditions."""
    return {"event": "conditions", "lines": [one.line() for one in conditions]}


def as_data(conditions: Sequence[Condition]) -> dict[str, Any]:
    return {one.name: {"value": one.found, "met": one.met} for one in conditions}


def comap_conditions(
    episodes: Iterable[Trajectory], foreseen: Mapping[str, float | None]
) -> list[Condition]:
    """Return CoMap's: of the warmed-up policy's episodes, several of each task, and its world model."""
    won: dict[str, list[bool]] = {}
    refused: list[bool] = []
    for episode in episodes:
        won.setdefault(episode.task, []).append(episode.success)
        refused += [step.invalid_action or not step.delta for step in episode.steps]
    plays = max(map(len, won.values()), default=0)
    each = [share for times in won.values() for share in times]
    success = 100 * sum(each) / max(len(each), 1)
    ever = 100 * sum(map(any, won.values())) / max(len(won), 1)
    wasted = 100 * sum(refused) / max(len(refused), 1)
    return [
        Condition(
            "success of the warmed-up policy, %",
            success,
            30,
            60,
            "choose other tasks, fewer steps, or another number of demonstrations and epochs",
        ),
        Condition(
            f"success in any of {plays} plays, less that of one, points",
            ever - success,
            20,
            remedy="a reflection has little to gain; raise temperature, or choose harder tasks",
        ),
        Condition(
            "steps that changed nothing, %",
            wasted,
            20,
            remedy="refused drafts are what a world model foresees best; use decoding=free",
        ),
        Condition(
            "precision of foreseen refusals, %",
            foreseen["precision"],
            90,
            remedy="give the world model more of the policy's own games (warmup_rollouts), or the "
            "belief (state_text=belief), or more parameters",
        ),
    ]


def foreseen_refusals(
    model: WorldModel, transitions: Sequence[Transition], canonicalizer: Canonicalizer
) -> dict[str, float | None]:
    """Return precision and recall, in percent, of predictions that an action changes nothing."""
    said, real = [], []
    predictions = ask(model, [query for query, _ in transitions])
    for (query, observation), prediction in zip(transitions, predictions, strict=True):
        for found, text in ((said, prediction.observation), (real, observation)):
            after = canonicalizer.update(query.state, query.action, text)
            found.append(after.parsed and not diff(query.state, after))
    both = sum(one and other for one, other in zip(said, real, strict=True))
    return {
        "precision": 100 * both / sum(said) if any(said) else None,
        "recall": 100 * both / sum(real) if any(real) else None,
    }


def paw_conditions(metrics: Mapping[str, Any], members: int, paw: bool) -> list[Condition]:
    """Return those of PaW and of the algorithm beneath it, of the first update's episodes."""
    success = 100 * metrics["success"]
    found = [
        Condition(
            "success of the start, %",
            success,
            2,
            40,
            "reinforcement learning has nothing to reinforce, or nothing left to learn; choose other "
            "tasks or another start",
        ),
        Condition(
            f"success in any of {members} plays, over that of one",
            metrics["solved"] / metrics["success"] if metrics["success"] else 0.0,
            2,
            remedy="groups hold nothing to compare; raise temperature or members",
        ),
    ]
    if paw:
        found += [
            Condition(
                "NLL of observations, nats a token",
                metrics.get("wm_nll"),
                high=3,
                remedy="start from a model that has learned observations (warmup_observations, side_steps)",
            ),
            Condition(
                "observed tokens whose p is from .01 to rho, %",
                None if metrics.get("wm_moderate") is None else 100 * metrics["wm_moderate"],
                10,
                remedy="PaW's loss has nearly no gradient elsewhere; see warmup_observations, side_steps",
            ),
        ]
    return found
