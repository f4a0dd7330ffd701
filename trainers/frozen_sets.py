"""The transitions that world models are scored on: drawn once, and kept as a file.

So every row of an experiment is scored on the same set (METHODS.md 1.12); `fingerprint` in its
results tells that it was.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataCorrupt, DataNotFound, OptionError
from ..facts import State
from ..trajectory import Trajectory, Turn
from ..worldmodel import Query, Transition, transitions_of

__all__ = [
    "fingerprint",
    "freeze",
    "frozen_set",
    "in_order",
    "load_transitions",
    "save_transitions",
    "transition_from_json",
    "transition_json",
]

_FORMAT = "comap-transitions-1"


def in_order(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Return trajectories sorted by environment, task, trial, seed and agent.

    What is drawn from them then does not depend on which episode ended first.

    Example:
        >>> made = [Trajectory("env", task, "", "", "me", "", State()) for task in ("b", "a")]
        >>> [trajectory.task for trajectory in in_order(made)]
        ['a', 'b']
    """

    def key(trajectory: Trajectory) -> tuple[str, str, int, int, str]:
        seed = -1 if trajectory.seed is None else trajectory.seed
        return trajectory.env_id, trajectory.task, trajectory.trial, seed, trajectory.agent

    return sorted(trajectories, key=key)


def freeze(trajectories: Iterable[Trajectory], n: int, seed: int) -> list[Transition]:
    """Return `n` real transitions drawn at random, in the order of `in_order`; all if there are fewer.

    Args:
        trajectories: Where they come from; their order does not matter.
        n: How many.
        seed: The same seed draws the same.

    Raises:
        OptionError: `n` is below 0.

    Example:
        >>> freeze([], 10, seed=0)
        []
    """
    if n < 0:
        raise OptionError(f"expected a number of transitions of at least 0, found {n}")
    found = [step for trajectory in in_order(trajectories) for step in transitions_of(trajectory)]
    picked = random.Random(seed).sample(range(len(found)), min(n, len(found)))
    return [found[place] for place in sorted(picked)]


def frozen_set(
    expert: Iterable[Trajectory], policy: Iterable[Trajectory], n: int = 1000, seed: int = 0
) -> list[Transition]:
    """Return an evaluation set: half an expert's actions, half a policy's (METHODS.md 1.12).

    Where one source has too few, it gives what it has and the other gives no more. Of an odd number
    the expert gives one more.

    Args:
        expert: Episodes of an expert, on tasks for testing.
        policy: Episodes of the policy after supervised learning, on such tasks.
        n: How many transitions in all.
        seed: The same seed draws the same.

    Raises:
        OptionError: `n` is below 0.

    Example:
        >>> frozen_set([], [], n=4)
        []
    """
    return freeze(expert, n - n // 2, seed) + freeze(policy, n // 2, seed)


def save_transitions(path: Path, transitions: Sequence[Transition]) -> None:
    """Write transitions as JSON lines, after a line with their number and `fingerprint`.

    Args:
        path: The file, replaced whole or not at all; its folder is made where it is missing.
        transitions: What to write.
    """
    head = {"format": _FORMAT, "n": len(transitions), "fingerprint": fingerprint(transitions)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        for line in (json.dumps(head), *map(_line, transitions)):
            file.write(line + "\n")
    part.replace(path)


def load_transitions(path: Path) -> list[Transition]:
    """Return the transitions that `save_transitions` wrote.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is no such file, or not all of it is as it was written.

    Example:
        >>> save_transitions(Path("set.jsonl"), [])
        >>> load_transitions(Path("set.jsonl"))
        []
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataNotFound(
            f"cannot read transitions at {path}: {error.strerror}; write them with "
            "comap.trainers.frozen_sets.save_transitions"
        ) from error
    found: list[Transition] = []
    try:
        head = json.loads(lines[0] if lines else b"")
        if head["format"] != _FORMAT:
            raise ValueError(f"the format {head['format']!r:.80}")
        for line in lines[1:]:
            found.append(transition_from_json(json.loads(line)))
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataCorrupt(
            f"expected transitions in {path}, found after {len(found)} of them: "
            f"{type(error).__name__}: {error}; write the file again"
        ) from error
    if (head.get("n"), head.get("fingerprint")) != (len(found), fingerprint(found)):
        raise DataCorrupt(
            f"expected {head.get('n')} transitions in {path} as they were written, found "
            f"{len(found)} that are cut or changed; write the file again"
        )
    return found


def _line(transition: Transition) -> str:
    return json.dumps(transition_json(transition), ensure_ascii=True)


def fingerprint(transitions: Iterable[Transition]) -> str:
    """Return 16 hexadecimal digits that stand for exactly these transitions, for results.

    Example:
        >>> fingerprint([])
        'e3b0c44298fc1c14'
    """
    digest = hashlib.sha256()
    for transition in transitions:
        digest.update(_line(transition).encode("ascii") + b"\n")
    return digest.hexdigest()[:16]


def transition_json(transition: Transition) -> dict[str, Any]:
    """Return a transition as plain data that `transition_from_json` reads.

    Example:
        >>> from comap.facts import State
        >>> one = Transition(Query("id", "Wait.", (), State(), "wait"), "Nothing happens.")
        >>> transition_from_json(transition_json(one)) == one
        True
    """
    query, observation = transition
    actions = query.admissible_actions
    return {
        "env_id": query.env_id,
        "goal": query.goal,
        "history": [list(turn) for turn in query.history],
        "state": query.state.to_text(),
        "action": query.action,
        "admissible_actions": None if actions is None else list(actions),
        "observation": observation,
    }


def transition_from_json(row: Any) -> Transition:
    """Return the transition that `transition_json` told.

    Raises:
        KeyError: A part is missing.
        TypeError: A part is of another type.
        ValueError: A part has another form.
    """
    history = []
    for action, observation in row["history"]:
        history.append(Turn(None if action is None else _text(action), _text(observation)))
    actions = row["admissible_actions"]
    query = Query(
        _text(row["env_id"]),
        _text(row["goal"]),
        tuple(history),
        State.from_text(_text(row["state"])),
        _text(row["action"]),
        None if actions is None else tuple(_text(action) for action in actions),
    )
    return Transition(query, _text(row["observation"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value
