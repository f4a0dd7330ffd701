"""Playing one task: what the agent decides, what the environment answers, and their record.

Everything here is a generator that yields questions and is sent their answers (`Playing`), so that the
runner can play many tasks at once and have their questions answered together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..envs import TextEnv
from ..errors import OptionError
from ..facts import State
from ..trajectory import TOLD, Call, Predicted, Step, Trajectory, Turn
from .base import Retrying, View, estimate_tokens
from .decisions import json_notes, read_decision
from .stage import Stage
from .thinking import Player, Playing, prediction_in, think

__all__ = ["Played", "play_episode", "play_on", "play_task", "told_of", "unplayed"]


class Played(NamedTuple):
    """What came of the rest of an episode.

    Attributes:
        steps: The steps that were taken.
        info: The environment's last info; that of the beginning where no step was taken.
        error: Type and message of the fault that ended the episode, if one did.
        calls: What language models were asked for a last decision that led to no step.
    """

    steps: tuple[Step, ...]
    info: Mapping[str, Any]
    error: str | None
    calls: tuple[Call, ...]


def play_task(
    player: Player, stage: Stage, task: str | None, seed: int | None
) -> Playing[list[Trajectory]]:
    """Play a task to its end, again and again where a `Retrying` agent wants to.

    Returns:
        The trajectory of each trial, in order; whatever went wrong is recorded there.
    """
    memory: dict[str, Any] = {}
    trials: list[Trajectory] = []
    again = True
    while again:
        try:
            start = stage.reset(task, seed)
        except Exception as fault:
            failed = unplayed(player, stage, task, seed, told_of(fault), len(trials) + 1)
            return [*trials, failed]
        trial = len(trials) + 1
        trajectory = yield from play_episode(player, stage, start, seed, memory, trial)
        again = False
        if isinstance(player.agent, Retrying):
            trajectory, again = yield from _review(player, stage, trajectory, memory)
        trials.append(trajectory)
    return trials


def unplayed(
    player: Player, stage: Stage, task: str | None, seed: int | None, error: str, trial: int = 1
) -> Trajectory:
    """Return the record of an episode of which there is nothing but a fault.

    Args:
        player: Who would have played.
        stage: Where.
        task: The task's id.
        seed: The episode's seed.
        error: Type and message of the fault.
        trial: Which attempt at the task this was.
    """
    known = {"task": task or "", "split": stage.fingerprint.get("split", "")}
    nothing = {"goal": "", "observation": "", "facts": State()}
    return _record(player, stage, seed, trial, error, **known, **nothing)


def play_episode(
    player: Player,
    stage: Stage,
    start: tuple[str, dict[str, Any]],
    seed: int | None,
    memory: dict[str, Any],
    trial: int = 1,
) -> Playing[Trajectory]:
    """Play the episode that has just started and return its trajectory.

    The calls of a decision that led to no step, since it failed or gave up, are kept in the
    trajectory's `review`.
    """
    observation, first = start
    history = (Turn(None, observation),)
    played = yield from play_on(player, stage, history, first, seed, memory, trial)
    told: dict[str, Any] = {key: first[key] for key in ("task", "split", "goal", "facts")}
    asked = any(step.prediction is not None for step in played.steps)
    told |= {"observation": observation, "steps": played.steps, "review": played.calls}
    name = stage.model_name(asked)
    return _record(player, stage, seed, trial, played.error, world_model=name, **told)


def play_on(
    player: Player,
    stage: Stage,
    history: Sequence[Turn],
    info: Mapping[str, Any],
    seed: int | None,
    memory: dict[str, Any],
    trial: int = 1,
) -> Playing[Played]:
    """Play the episode that is under way to its end and return what came of it.

    Args:
        player: Who plays.
        stage: Where the episode is.
        history: Its turns so far; the last one's observation is the present.
        info: The environment's info of the present.
        seed: The episode's seed.
        memory: The agent's memory of this task.
        trial: Which attempt at the task this is.
    """
    turns = list(history)
    steps: list[Step] = []
    error: str | None = None
    while True:
        calls: list[Call] = []
        try:
            view = _view(player, stage, tuple(turns), info, memory, trial, seed or 0)
            decision = yield from think(player, stage, player.agent.decide(view), calls)
            action, prediction, notes = read_decision(decision)
            if action is None:
                break
            step, info = yield from _act(player, stage, action, prediction, calls, notes)
        except Exception as fault:
            error = told_of(fault)
            break
        calls = []
        steps.append(step)
        turns.append(Turn(action, step.observation))
        error = info.get("error")
        if step.terminated or step.truncated:
            break
    return Played(tuple(steps), info, error, tuple(calls))


def _record(
    player: Player, stage: Stage, seed: int | None, trial: int, error: str | None, **told: Any
) -> Trajectory:
    """Return the trajectory that tells this, and who played where."""
    return Trajectory(
        env_id=stage.inner.env_id,
        agent=player.agent.name,
        seed=seed,
        trial=trial,
        error=error,
        fingerprint=stage.fingerprint,
        settings=dict(player.settings or {}),
        **told,
    )


def _view(
    player: Player,
    stage: Stage,
    history: tuple[Turn, ...],
    info: Mapping[str, Any],
    memory: dict[str, Any],
    trial: int,
    seed: int,
) -> View:
    return View(
        stage.inner.env_id,
        info["task"],
        info["goal"],
        history,
        info["facts"],
        info["admissible_actions"],
        info["step"],
        stage.expert_action,
        estimate_tokens if player.lm is None else player.lm.count_tokens,
        memory,
        trial,
        seed,
    )


def _act(
    player: Player,
    stage: Stage,
    action: str,
    prediction: Predicted | None,
    calls: list[Call],
    notes: Mapping[str, Any],
) -> Playing[tuple[Step, Mapping[str, Any]]]:
    """Take an action; return its record and the environment's info."""
    question = stage.question_of_step(action)
    if question is not None:
        (answer,) = yield [question]
        failed = isinstance(answer, Exception)
        stage.prepare_step(action, answer if failed else prediction_in(answer, player, calls))
    reply = stage.step(action)
    notes = _with_told(notes, stage.inner, reply[4])
    return Step.of(action, reply, prediction, tuple(calls), notes), reply[4]


def _with_told(
    notes: Mapping[str, Any], env: TextEnv, info: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return notes with what the environment told that records keep, where there was something."""
    told = {
        name: info[name]
        for name in env.info_kept
        if name in info and info[name] != env.info_extras[name]
    }
    if not told and TOLD not in notes:
        return notes
    own = {name: value for name, value in notes.items() if name != TOLD}
    return own | ({TOLD: json_notes(told)} if told else {})


def _review(
    player: Player, stage: Stage, trajectory: Trajectory, memory: dict[str, Any]
) -> Playing[tuple[Trajectory, bool]]:
    """Let a `Retrying` agent look back; return the trajectory and whether to play again."""
    agent, calls = player.agent, list[Call]()
    assert isinstance(agent, Retrying)
    error, again = trajectory.error, False
    try:
        again = yield from think(player, stage, agent.review(trajectory, memory), calls)
        if not isinstance(again, bool):
            raise OptionError(f"expected True or False from agent.review, found {again!r:.80}")
    except Exception as fault:
        error, again = error or told_of(fault), False
    review = (*trajectory.review, *calls)
    return replace(trajectory, review=review, error=error), again


def told_of(fault: Exception) -> str:
    """Return how records tell of a fault: its type and its message.

    Example:
        >>> told_of(ValueError("no"))
        'ValueError: no'
    """
    return f"{type(fault).__name__}: {fault}"
