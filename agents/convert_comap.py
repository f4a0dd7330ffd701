"""Trajectories as the step records of CoMap's authors (METHODS.md 1.0.1), and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import DataCorrupt
from ..facts import Delta, State
from ..trajectory import Step, Trajectory
from .convert_rows import checked_rows, number_of, reply_of, text_of, value_of
from .prompting import instructions

__all__ = ["from_comap_records", "to_comap_records", "word_overlap"]

_OBSERVATION = "Observation: "
_MARK = "Observation:"
_NOTES = {
    "draft_action": ("draft_action", "draft"),
    "draft_response": ("draft_response",),
    "reflect_response": ("reflect_response",),
    "revised_action": ("ref_action",),
    "reflect_action_prob": ("p",),
    "pred_next_state_student": ("predicted_next_state",),
    "pred_next_state_teacher": ("predicted_next_state_teacher",),
    "wm_teacher_hint": ("wm_teacher_hint",),
}
_NUMBERS = ("reflect_action_prob",)


def word_overlap(one: str, other: str) -> float | None:
    """Return the F1 of two texts' sets of words in lower case; None where one has no word.

    The authors' ``wm_consistency``: it compares a prediction of the draft with what followed the
    action that was taken, so it is no measure of the world model (METHODS.md 1.4).

    Example:
        >>> word_overlap("You open it.", "You close it.")
        0.6666666666666666
    """
    left, right = set(one.lower().split()), set(other.lower().split())
    if not left or not right:
        return None
    return 2 * len(left & right) / (len(left) + len(right))


def to_comap_records(trajectories: Iterable[Trajectory], round_id: int = 0) -> list[dict[str, Any]]:
    """Return a record for each step, with the keys of the authors' JSONL rows.

    Drafts, reflections, predictions and gates come from the notes of `CoMapAgent`; they are None for
    agents that note none. Observations are marked ``Observation:``, as theirs are. Besides their keys
    there are ``env_id``, ``split``, ``agent``, ``trial``, ``score``, ``terminated``, ``truncated`` and
    ``invalid_action``. Lost are facts, calls, other notes, the seed and the fingerprint; of an agent's
    notes those that theirs have no name for.

    Args:
        trajectories: What to convert.
        round_id: The round of training that they are from.

    Example:
        >>> to_comap_records([])
        []
    """
    return [record for trajectory in trajectories for record in _records(trajectory, round_id)]


def _records(trajectory: Trajectory, round_id: int) -> list[dict[str, Any]]:
    name = trajectory.env_id.rpartition("/")[2].partition("-")[0].lower()
    history = _introduction(trajectory)
    observation = trajectory.observation
    records = []
    for number, step in enumerate(trajectory.steps):
        who = {
            "task_name": name,
            "task_id": trajectory.task,
            "episode_id": f"{name}__{trajectory.task}__{trajectory.trial}",
            "round_id": round_id,
            "step_id": number,
            "goal": trajectory.goal,
            "env_id": trajectory.env_id,
            "split": trajectory.split,
            "agent": trajectory.agent,
            "trial": trajectory.trial,
        }
        before = {"history_messages": [*history], "observation": _OBSERVATION + observation}
        records.append(who | before | _record(step))
        history.append({"role": "assistant", "content": reply_of(step)})
        history.append({"role": "user", "content": _OBSERVATION + step.observation})
        observation = step.observation
    return records


def _introduction(trajectory: Trajectory) -> list[dict[str, str]]:
    first = trajectory.observation
    if trajectory.goal and trajectory.goal not in first:
        first = f"{first}\n{trajectory.goal}"
    return [
        {"role": "user", "content": instructions(trajectory.env_id)},
        {"role": "assistant", "content": "OK"},
        {"role": "user", "content": _OBSERVATION + first},
    ]


def _record(step: Step) -> dict[str, Any]:
    """Return the part of a record that is of the step alone."""
    notes = step.notes
    said = {key: _noted(notes, names) for key, names in _NOTES.items()}
    if said["pred_next_state_student"] is None and step.prediction is not None:
        said["pred_next_state_student"] = step.prediction.observation
    predicted = said["pred_next_state_student"]
    gate = notes.get("gate") if isinstance(notes.get("gate"), bool) else None
    return said | {
        "action": step.action,
        "action_text": reply_of(step),
        "reward": step.reward,
        "done": step.terminated or step.truncated,
        "success": step.success,
        "next_observation": _OBSERVATION + step.observation,
        "feedback_text": notes.get("feedback_text") or _feedback(step),
        "revise_triggered": gate,
        "used_revised_action": gate,
        "refinement_label": None if gate is None else int(gate),
        "wm_consistency": None
        if not isinstance(predicted, str)
        else word_overlap(predicted, step.observation),
        "score": step.score,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "invalid_action": step.invalid_action,
    }


def _noted(notes: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((notes[name] for name in names if notes.get(name) is not None), None)


def _feedback(step: Step) -> str:
    if step.success:
        return "The task is solved."
    if step.terminated or step.truncated:
        return "The episode ended, and the task is not solved."
    if step.invalid_action:
        return "The action could not be done."
    return "The action was done; the task is not solved yet."


def from_comap_records(rows: Iterable[Any], env_id: str = "comap/ALFWorld-v0") -> list[Trajectory]:
    """Return the trajectories of step records, ours or the authors'.

    An episode goes on as long as ``episode_id`` stays and ``step_id`` grows by one. Drafts, reflections
    and gates become notes, by `CoMapAgent`'s names.

    Args:
        rows: The records, those of an episode together and in order.
        env_id: The environment of records that do not name it.

    Raises:
        DataCorrupt: A record lacks a text or has one of another kind, or an episode does not begin
            with its first step; the message says which.

    Example:
        >>> row = {"goal": "Wait.", "observation": "A room.", "action": "wait",
        ...        "next_observation": "Observation: It is dark.", "draft_action": "look"}
        >>> (found,) = from_comap_records([row])
        >>> found.steps[0].observation, found.steps[0].notes
        ('It is dark.', {'draft_action': 'look'})
    """
    episodes: list[tuple[Mapping[str, Any], str, list[Step]]] = []
    expected: tuple[Any, int] | None = None
    for where, row in checked_rows(rows, "a step record"):
        number = value_of(row, "step_id", where, int, 0)
        episode = row.get("episode_id")
        if expected != (episode, number) or number == 0:
            if number != 0:
                raise DataCorrupt(
                    f"{where}: expected the next step of an episode, or step_id 0 of a new one, "
                    f"found step_id {number} of episode {episode!r:.80}"
                )
            episodes.append((row, where, []))
        episodes[-1][2].append(_step(row, where, len(episodes[-1][2]) + 1))
        expected = (episode, number + 1)
    return [_trajectory(row, where, steps, env_id) for row, where, steps in episodes]


def _trajectory(row: Mapping[str, Any], where: str, steps: list[Step], env_id: str) -> Trajectory:
    task = row.get("task_id")
    return Trajectory(
        text_of(row, "env_id", where, env_id),
        "" if task is None else str(task),
        text_of(row, "split", where, ""),
        text_of(row, "goal", where),
        text_of(row, "agent", where, "comap"),
        _unmarked(text_of(row, "observation", where)),
        State(),
        tuple(steps),
        trial=value_of(row, "trial", where, int, 1),
    )


def _step(row: Mapping[str, Any], where: str, number: int) -> Step:
    success = value_of(row, "success", where, bool, False)
    done = value_of(row, "done", where, bool, False)
    return Step(
        number,
        text_of(row, "action", where),
        _unmarked(text_of(row, "next_observation", where)),
        number_of(row, "reward", where),
        value_of(row, "terminated", where, bool, done),
        value_of(row, "truncated", where, bool, False),
        False,
        State(),
        Delta(),
        number_of(row, "score", where, float(success)),
        success,
        value_of(row, "invalid_action", where, bool, False),
        notes=_notes_of(row, where),
    )


def _notes_of(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what a record says of the decision, by `CoMapAgent`'s names."""
    notes: dict[str, Any] = {}
    for key, names in _NOTES.items():
        if row.get(key) is not None:
            read = number_of if key in _NUMBERS else text_of
            notes[names[0]] = read(row, key, where)
    gate = value_of(row, "used_revised_action", where, bool, None)
    if gate is None:
        gate = value_of(row, "revise_triggered", where, bool, None)
    if gate is not None:
        notes["gate"] = gate
    feedback = value_of(row, "feedback_text", where, str, None)
    if feedback is not None:
        notes["feedback_text"] = feedback
    return notes


def _unmarked(text: str) -> str:
    if text.startswith(_OBSERVATION):
        return text[len(_OBSERVATION) :]
    return text.removeprefix(_MARK).lstrip() if text.startswith(_MARK) else text
