"""Suffix rollouts: how an episode would end after this action, and how after that (CoMap, App. C.2).

From a moment of an episode each of some actions is played, and then an agent plays to the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ...agents import Agent
from ...agents.requests import EnvPool, EnvSlot, RequestBatcher
from ...agents.runner import EpisodeGenerator, Player, error_text, play_on, play_rounds, player_for
from ...envs import Snapshot, restore, snapshot
from ...errors import EngineError
from ...lm import LanguageModel
from ...trajectory import Turn
from ..run_folder import Done, each_once
from ..stages import StagedTraining


@dataclass(frozen=True, slots=True)
class Branch:
    """What is played: from a task's start a prefix, then an action, then the continuation policy."""

    task: str
    prefix: tuple[str, ...]
    action: str
    seed: int

    @property
    def key(self) -> str:
        return json.dumps([self.task, self.prefix, self.action, self.seed])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a branch."""

    success: bool
    ret: float
    steps: int
    observation: str
    error: str | None


def played_branches(
    training: StagedTraining, folder: Path, split: str, branches: Sequence[Branch]
) -> list[Outcome]:
    """Play branches with the draft policy, shared among processes, and return their outcomes in order.

    Outcomes are written down as they come: a training that was killed plays only the rest.
    """
    known = {branch.key: branch for branch in branches}
    done = [0]

    def work(keys: Sequence[str]) -> Iterator[Done]:
        outcomes = suffix_outcomes(
            partial(training.make_env, split),
            training.drafting(training.config.suffix_temperature),
            [known[key] for key in keys],
            lm=training.language_model(),
            concurrency=training.config.concurrency,
        )
        for branch, outcome in outcomes:
            done[0] += 1
            training.tell({"event": "suffix", "done": done[0], "of": len(keys)})
            yield branch.key, asdict(outcome)

    found = each_once(folder, list(known), work)
    return [Outcome(**found[branch.key]) for branch in branches]


def suffix_outcomes(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    branches: Iterable[Branch],
    *,
    lm: LanguageModel | None = None,
    concurrency: int = 32,
) -> Iterator[tuple[Branch, Outcome]]:
    """Play branches, many at once, and yield what came of each as it ends."""
    player = player_for(agent, lm)

    def play(slot: EnvSlot, some: list[Branch]) -> EpisodeGenerator[dict[Branch, Outcome]]:
        return _play_from_one_moment(player, slot, some)

    rest = dict.fromkeys(branches)
    while rest:
        moments: dict[tuple[Any, ...], list[Branch]] = {}
        for branch in rest:
            moments.setdefault((branch.task, branch.prefix, branch.seed), []).append(branch)
        pool, batcher = EnvPool(make_env), RequestBatcher(lm)
        with closing(play_rounds(pool, batcher, moments.values(), concurrency, play)) as rounds:
            for _, outcomes in rounds:
                for branch, outcome in outcomes.items():
                    del rest[branch]
                    yield branch, outcome


def _play_from_one_moment(
    player: Player, slot: EnvSlot, branches: Sequence[Branch]
) -> EpisodeGenerator[dict[Branch, Outcome]]:
    """Play branches that part at one moment: reset, replay the prefix, then each action from there.

    Where the environment cannot go back to that moment, the rest is left out, to be played anew.
    """
    try:
        turns = _replay(slot, branches[0])
        moment = snapshot(slot.env)
    except Exception as fault:
        return dict.fromkeys(branches, _failed(error_text(fault)))
    outcomes: dict[Branch, Outcome] = {}
    for branch in branches:
        if outcomes and not _go_back(slot, moment):
            break
        outcomes[branch] = yield from _play_branch(player, slot, turns, branch)
    return outcomes


def _replay(slot: EnvSlot, branch: Branch) -> tuple[Turn, ...]:
    """Start the task, take the actions of the prefix, and return the turns so far."""
    observation, _ = slot.reset(branch.task, branch.seed)
    turns = [Turn(None, observation)]
    for number, action in enumerate(branch.prefix, 1):
        observation, _, terminated, truncated, info = slot.step(action)
        if terminated or truncated:
            why = info.get("error") or "the episode was over"
            raise EngineError(
                f"expected the episode to go on after the {len(branch.prefix)} actions of the prefix, "
                f"found that it ended at action {number}, {action!r:.80}: {why}; take the prefix from "
                "an episode of this task in such an environment"
            )
        turns.append(Turn(action, observation))
    return tuple(turns)


def _go_back(slot: EnvSlot, moment: Snapshot) -> bool:
    """Bring the environment back to a moment; return whether it is there."""
    if slot.broken:
        return False
    try:
        slot.rewind()
        restore(slot.env, moment)
    except Exception:  # the rest is played from another start, in another environment
        slot.broken = True
        return False
    slot.moment = object()
    return True


def _play_branch(
    player: Player, slot: EnvSlot, turns: tuple[Turn, ...], branch: Branch
) -> EpisodeGenerator[Outcome]:
    """Take an action, let the agent go on to the end, and return what came of it."""
    try:
        observation, _, terminated, truncated, info = slot.step(branch.action)
    except Exception as fault:
        return _failed(error_text(fault))
    last: Mapping[str, Any] = info
    error, steps = info.get("error"), 1
    if not (terminated or truncated):
        turns = (*turns, Turn(branch.action, observation))
        played = yield from play_on(player, slot, turns, info, branch.seed, {})
        last, error, steps = played.info, played.error, 1 + len(played.steps)
    if error is not None:
        return _failed(error, observation, steps)
    score = min(max(float(last["score"]), 0.0), 1.0)
    return Outcome(bool(last["success"]), score, steps, observation, None)


def _failed(error: str, observation: str = "", steps: int = 0) -> Outcome:
    return Outcome(False, 0.0, steps, observation, error)
