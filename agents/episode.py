"""Playing one task: what the agent decides, what the environment answers, and their record.

Everything here is a generator that yields questions and is sent their answers (`Playing`), so that the
runner can play many tasks at once and have their questions answered together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import InvalidAction, OptionError
from ..facts import State
from ..trajectory import Call, Predicted, Step, Trajectory, Turn
from ..worldmodel import Imagined
from .base import Decision, Retrying, View, estimate_tokens
from .stage import Stage
from .thinking import Player, Playing, prediction_in, think

__all__ = ["play_episode", "play_task"]


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
            known = {"task": task or "", "split": stage.fingerprint.get("split", "")}
            nothing = {"goal": "", "observation": "", "facts": State()}
            trial = len(trials) + 1
            failed = _record(player, stage, seed, trial, _told(fault), **known, **nothing)
            return [*trials, failed]
        trial = len(trials) + 1
        trajectory = yield from play_episode(player, stage, start, seed, memory, trial)
        again = False
        if isinstance(player.agent, Retrying):
            trajectory, again = yield from _review(player, stage, trajectory, memory)
        trials.append(trajectory)
    return trials


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
    info: Mapping[str, Any] = first
    steps: list[Step] = []
    error: str | None = None
    history = [Turn(None, observation)]
    while True:
        calls: list[Call] = []
        try:
            view = _view(player, stage, tuple(history), info, memory, trial, seed or 0)
            decision = yield from think(player, stage, player.agent.decide(view), calls)
            action, prediction, notes = _checked(decision)
            if action is None:
                break
            step, info = yield from _act(player, stage, action, prediction, calls, notes)
        except Exception as fault:
            error = _told(fault)
            break
        calls = []
        steps.append(step)
        history.append(Turn(action, step.observation))
        error = info.get("error")
        if step.terminated or step.truncated:
            break
    told: dict[str, Any] = {key: first[key] for key in ("task", "split", "goal", "facts")}
    asked = any(step.prediction is not None for step in steps)
    told |= {"observation": observation, "steps": tuple(steps), "review": tuple(calls)}
    return _record(player, stage, seed, trial, error, world_model=stage.model_name(asked), **told)


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
    return Step.of(action, reply, prediction, tuple(calls), notes), reply[4]


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
        error, again = error or _told(fault), False
    review = (*trajectory.review, *calls)
    return replace(trajectory, review=review, error=error), again


def _checked(decision: object) -> tuple[str | None, Predicted | None, Mapping[str, Any]]:
    """Return the action of a decision, what was predicted of it, and its notes as JSON data."""
    if not isinstance(decision, Decision):
        raise InvalidAction(f"expected a Decision from agent.decide, found {decision!r:.80}")
    action, imagined = decision.action, decision.imagined
    if not isinstance(action, str | None):
        raise InvalidAction(
            f"a decision is for an action, which is text (str), or None; found {action!r:.80}"
        )
    if not isinstance(imagined, Imagined | None):
        raise InvalidAction(
            f"a decision's `imagined` is the reply to Imagine, or None; found {imagined!r:.80}"
        )
    return action, _predicted(imagined), _json_of(decision.notes)


def _json_of(notes: Any) -> dict[str, Any]:
    """Return a copy of notes as they come back from a file."""
    if not notes:
        return {}
    try:
        copy = json.loads(json.dumps(notes, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidAction(f"a decision's notes are JSON data, found: {error}") from error
    if not isinstance(copy, dict):
        raise InvalidAction(f"a decision's notes have names, found {notes!r:.80}")
    return copy


def _predicted(imagined: Imagined | None) -> Predicted | None:
    if imagined is None:
        return None
    said = imagined.prediction
    return Predicted(
        imagined.observation, imagined.facts, imagined.delta, said.source, said.confidence
    )


def _told(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"
