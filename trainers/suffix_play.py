"""Playing suffixes: from a moment of an episode each of some actions, and then an agent to the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..agents.episode import play_on, told_of
from ..agents.stage import Stage
from ..agents.thinking import Player, Playing
from ..envs import Snapshot, restore, snapshot
from ..errors import DataCorrupt, EngineError, OptionError
from ..trajectory import Turn

__all__ = ["Branch", "Outcome", "Unit", "play_unit", "units_of"]


@dataclass(frozen=True, slots=True)
class Branch:
    """What is played: from a task's start a prefix, then an action, then the continuation policy.

    Attributes:
        task: The task's id.
        prefix: The actions from its start to the moment in question.
        action: The action that is taken there.
        seed: The episode's seed, 0 or more: what the continuation policy samples follows from it.

    Raises:
        OptionError: A part is not what it should be.

    Example:
        >>> Branch("generated/train/0", ("look",), "inventory", 0).action
        'inventory'
    """

    task: str
    prefix: tuple[str, ...]
    action: str
    seed: int

    def __post_init__(self) -> None:
        texts = isinstance(self.task, str) and isinstance(self.action, str)
        whole = isinstance(self.prefix, tuple) and all(isinstance(one, str) for one in self.prefix)
        if not (texts and whole and type(self.seed) is int and self.seed >= 0):
            raise OptionError(
                "expected a branch of texts (the prefix a tuple of them) with a seed of at least 0, "
                f"found {self.task!r:.80}, {self.prefix!r:.80}, {self.action!r:.80}, {self.seed!r}"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a branch (METHODS.md 1.6).

    Attributes:
        success: Whether the task was solved at the end.
        ret: The environment's score at the end, 0 to 1.
        steps: How many actions were taken after the prefix, the branch's own included.
        observation: What answered the branch's action.
        error: Type and message of the fault that ended it, if one did: then the rest means nothing.

    Example:
        >>> Outcome.from_json(Outcome(True, 1.0, 3, "You open the safe 1.", None).to_json()).steps
        3
    """

    success: bool
    ret: float
    steps: int
    observation: str
    error: str | None

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Read what `to_json` returned.

        Raises:
            DataCorrupt: It lacks a field, or has one that cannot be.
        """
        try:
            found = cls(**data)
            sound = (
                type(found.success) is bool
                and isinstance(found.ret, int | float)
                and 0 <= found.ret <= 1
                and type(found.steps) is int
                and isinstance(found.observation, str)
                and isinstance(found.error, str | None)
            )
        except TypeError as error:
            raise DataCorrupt(f"expected the outcome of a branch, found {data!r:.200}") from error
        if not sound:
            raise DataCorrupt(f"expected the outcome of a branch, found {data!r:.200}")
        return found


@dataclass(frozen=True, slots=True)
class Unit:
    """Branches that part at the same moment: played one after another in one environment.

    Attributes:
        task: The task's id.
        prefix: The actions up to the moment.
        seed: The episode's seed.
        actions: The action of each branch.
    """

    task: str
    prefix: tuple[str, ...]
    seed: int
    actions: tuple[str, ...]

    def branch(self, action: str) -> Branch:
        """Return the branch of an action."""
        return Branch(self.task, self.prefix, action, self.seed)


def units_of(branches: Iterable[Branch]) -> list[Unit]:
    """Return the units that branches come to, in the order of their first ones; equal ones are one.

    Example:
        >>> units = units_of([Branch("a", (), "look", 0), Branch("b", (), "look", 0),
        ...                   Branch("a", (), "wait", 0), Branch("a", (), "look", 0)])
        >>> [(unit.task, unit.actions) for unit in units]
        [('a', ('look', 'wait')), ('b', ('look',))]
    """
    actions: dict[tuple[str, tuple[str, ...], int], dict[str, None]] = {}
    for branch in branches:
        place = (branch.task, branch.prefix, branch.seed)
        actions.setdefault(place, {})[branch.action] = None
    return [Unit(*place, tuple(found)) for place, found in actions.items()]


def play_unit(player: Player, stage: Stage, unit: Unit) -> Playing[dict[str, Outcome]]:
    """Play the branches of a unit: reset, replay the prefix, then each action from that moment.

    Every branch has the same rest of the step limit, and an agent that remembers nothing.

    Args:
        player: The continuation policy.
        stage: Where to play.
        unit: What to play.

    Returns:
        The outcome of each action; whatever went wrong is recorded there. Where the environment does
        not come back to the moment, the actions that remain are left out: they need another start.

    Raises:
        OptionError: The environment is imagined.
    """
    if stage.layer is not None:
        raise OptionError(
            "suffix rollouts tell what really follows, found an imagined environment; make a real one"
        )
    try:
        turns = _replay(stage, unit)
        moment = snapshot(stage.env)
    except Exception as fault:
        return dict.fromkeys(unit.actions, _failed(told_of(fault)))
    outcomes: dict[str, Outcome] = {}
    for action in unit.actions:
        if outcomes and not _go_back(stage, moment):
            break
        outcomes[action] = yield from _play_branch(player, stage, turns, action, unit.seed)
    return outcomes


def _replay(stage: Stage, unit: Unit) -> tuple[Turn, ...]:
    """Start the task, take the actions of the prefix, and return the turns so far."""
    observation, _ = stage.reset(unit.task, unit.seed)
    turns = [Turn(None, observation)]
    for number, action in enumerate(unit.prefix, 1):
        observation, _, terminated, truncated, info = stage.step(action)
        if terminated or truncated:
            why = info.get("error") or "the episode was over"
            raise EngineError(
                f"expected the episode to go on after the {len(unit.prefix)} actions of the prefix, "
                f"found that it ended at action {number}, {action!r:.80}: {why}; take the prefix from "
                "an episode of this task in such an environment"
            )
        turns.append(Turn(action, observation))
    return tuple(turns)


def _go_back(stage: Stage, moment: Snapshot) -> bool:
    """Bring the environment back to a moment; return whether it is there."""
    if stage.broken:
        return False
    try:
        stage.settle()
        restore(stage.env, moment)
    except Exception:  # the rest is played from another start, in another environment
        stage.broken = True
        return False
    stage.moment = object()
    return True


def _play_branch(
    player: Player, stage: Stage, turns: tuple[Turn, ...], action: str, seed: int
) -> Playing[Outcome]:
    """Take an action, let the agent go on to the end, and return what came of it."""
    try:
        observation, _, terminated, truncated, info = stage.step(action)
    except Exception as fault:
        return _failed(told_of(fault))
    last: Mapping[str, Any] = info
    error, steps = info.get("error"), 1
    if not (terminated or truncated):
        turns = (*turns, Turn(action, observation))
        played = yield from play_on(player, stage, turns, info, seed, {})
        last, error, steps = played.info, played.error, 1 + len(played.steps)
    if error is not None:
        return _failed(error, observation, steps)
    score = min(max(float(last["score"]), 0.0), 1.0)
    return Outcome(bool(last["success"]), score, steps, observation, None)


def _failed(error: str, observation: str = "", steps: int = 0) -> Outcome:
    return Outcome(False, 0.0, steps, observation, error)
