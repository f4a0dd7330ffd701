"""Trajectories as ShareGPT conversations, the form of ETO's demonstrations, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import DataCorrupt
from ..facts import Delta, State
from ..trajectory import Step, Trajectory
from .convert_rows import checked_rows, number_of, reply_of, text_of, value_of
from .parsing import clean_action, parse_action
from .prompting import instructions

__all__ = ["from_sharegpt", "to_sharegpt"]

_ROLES = {"human": "human", "user": "human", "gpt": "gpt", "assistant": "gpt", "system": "system"}
_OBSERVATION = "Observation: "
_GOAL = re.compile(r"Your task is to:[ \t]*(.+)", re.IGNORECASE)


def to_sharegpt(trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """Return a row for each trajectory: ``{"id": ..., "conversations": [...], ...}``.

    A conversation is the instruction, "OK", the first observation, then replies and observations by
    turns, all but the first observation marked ``Observation:``. The goal stands in the instruction
    where the first observation does not tell it. Further keys tell the environment, the split, the
    goal, the agent and how the episode ended.

    Lost are facts, predictions, calls, notes, the rewards but their sum, the seed and the
    fingerprint; and of an action blanks, quotes and a period around it, and what follows a line break.

    Example:
        >>> from comap.facts import State
        >>> empty = Trajectory("comap/X-v0", "task", "train", "Wait.", "me", "Wait.", State())
        >>> [turn["from"] for turn in to_sharegpt([empty])[0]["conversations"]]
        ['human', 'gpt', 'human']
    """
    return [_row(trajectory) for trajectory in trajectories]


def _row(trajectory: Trajectory) -> dict[str, Any]:
    rules = instructions(trajectory.env_id)
    if trajectory.goal and trajectory.goal not in trajectory.observation:
        rules = f"{rules}\n\n{trajectory.goal}"
    turns = [("human", rules), ("gpt", "OK"), ("human", trajectory.observation)]
    for step in trajectory.steps:
        turns += [("gpt", reply_of(step)), ("human", _OBSERVATION + step.observation)]
    last = trajectory.steps[-1] if trajectory.steps else None
    return {
        "id": trajectory.task,
        "conversations": [{"from": speaker, "value": text} for speaker, text in turns],
        "env_id": trajectory.env_id,
        "split": trajectory.split,
        "goal": trajectory.goal,
        "agent": trajectory.agent,
        "reward": sum(step.reward for step in trajectory.steps),
        "score": trajectory.score,
        "success": trajectory.success,
        "terminated": bool(last and last.terminated),
        "truncated": bool(last and last.truncated),
    }


def from_sharegpt(
    rows: Iterable[Any], env_id: str = "", agent: str = "sharegpt"
) -> list[Trajectory]:
    """Return trajectories with the actions and observations of conversations.

    What comes before the human turn that the first action answers is an introduction and is left out.
    A later reply without an ``Action:`` line is itself the action, as it went to the environment. A
    reply that nothing follows has an empty observation. The whole reward is the last step's.

    Args:
        rows: Rows such as `to_sharegpt` returns, or of ETO's files.
        env_id: The environment of rows that do not name it.
        agent: Who acted in rows that do not tell.

    Raises:
        DataCorrupt: A row is no conversation of human and gpt by turns; the message says which.

    Example:
        >>> said = ["Rules.", "OK", "A room.", "Action: look", "Observation: A desk."]
        >>> turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(said)]
        >>> (found,) = from_sharegpt([{"conversations": turns}])
        >>> found.observation, found.steps[0].action, found.steps[0].observation
        ('A room.', 'look', 'A desk.')
    """
    return [
        _trajectory(row, where, env_id, agent)
        for where, row in checked_rows(rows, "a conversation")
    ]


def _trajectory(row: Mapping[str, Any], where: str, env_id: str, agent: str) -> Trajectory:
    turns = _turns(row, where)
    start = _start(turns, where)
    observation = turns[start]
    steps: list[Step] = []
    for place in range(start + 1, len(turns), 2):
        follows = turns[place + 1] if place + 1 < len(turns) else ""
        steps.append(_step(len(steps) + 1, turns[place], follows.removeprefix(_OBSERVATION)))
    if steps:
        steps[-1] = _ended(steps[-1], row, where)
    found = _GOAL.search("\n".join(turns[: start + 1]))
    goal = text_of(row, "goal", where, found[1].strip() if found else "")
    return Trajectory(
        text_of(row, "env_id", where, env_id),
        str(row.get("id") if row.get("id") is not None else ""),
        text_of(row, "split", where, ""),
        goal,
        text_of(row, "agent", where, agent),
        observation,
        State(),
        tuple(steps),
    )


def _turns(row: Mapping[str, Any], where: str) -> list[str]:
    """Return what was said by turns, human first; a system's text is left out."""
    said = row.get("conversations")
    if not isinstance(said, Sequence) or isinstance(said, str):
        raise DataCorrupt(f"{where}: expected a list as 'conversations', found {said!r:.80}")
    turns: list[str] = []
    for number, turn in enumerate(said, 1):
        place = f"{where}, turn {number}"
        if not isinstance(turn, Mapping):
            raise DataCorrupt(f"{place}: expected 'from' and 'value', found {turn!r:.80}")
        speaker = text_of(turn, "from", place)
        if speaker not in _ROLES:
            raise DataCorrupt(f"{place}: expected human, gpt or system, found {speaker!r:.80}")
        if _ROLES[speaker] == "system" and not turns:
            continue
        expected = ("human", "gpt")[len(turns) % 2]
        if _ROLES[speaker] != expected:
            raise DataCorrupt(f"{place}: expected {expected}'s turn, found {speaker!r:.80}")
        turns.append(text_of(turn, "value", place))
    return turns


def _start(turns: Sequence[str], where: str) -> int:
    """Return the place of the first observation: the human turn that the first action answers."""
    if not turns:
        raise DataCorrupt(f"{where}: expected a first observation, found an empty conversation")
    for place in range(1, len(turns), 2):
        if parse_action(turns[place]) is not None:
            return place - 1
    return (len(turns) - 1) // 2 * 2


def _step(number: int, reply: str, observation: str) -> Step:
    action = parse_action(reply) or clean_action(reply.strip()[:200]) or "..."
    return Step(number, action, observation, 0.0, False, False, False, State(), Delta())


def _ended(step: Step, row: Mapping[str, Any], where: str) -> Step:
    """Return the last step with what the row tells of the end."""
    reward = number_of(row, "reward", where)
    success = value_of(row, "success", where, bool, False)
    return Step(
        step.t,
        step.action,
        step.observation,
        reward,
        value_of(row, "terminated", where, bool, success),
        value_of(row, "truncated", where, bool, False),
        False,
        State(),
        Delta(),
        number_of(row, "score", where, float(success)),
        success,
    )
