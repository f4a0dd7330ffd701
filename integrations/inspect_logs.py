"""Recorded episodes as a log of Inspect, for ``inspect view`` and Inspect's data frames."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..agents.convert import turns_of
from ..agents.tally import Tally, prediction_score
from ..envs.generated import is_generated
from ..errors import OptionError, needs_extra
from ..lm.base import valid_text
from ..trajectory import Trajectory
from ..worldmodel.naming import in_words

SUFFIXES = (".eval", ".json")
_TOLD = ("environment", "tasks", "agent", "language_model", "world_model_in_words", "seed")
"""What a log says of a run's record: what was played, and no path of a machine."""


def write_log(
    trajectories: Sequence[Trajectory], path: str | Path, run: Mapping[str, Any] | None = None
) -> None:
    """Write episodes into a log file of Inspect.

    Each episode is a sample: its id is the task's, its epoch counts the episodes of that task. Scores are
    those of Inspect's tasks of comap: success and score; the facts at the end, and the Delta-F1 of what
    a world model predicted, are in the score's metadata.

    Args:
        trajectories: What to write, at least one.
        path: A file whose name ends in ``.eval``, or in ``.json``.
        run: The record ``run.json`` of the run they are of, for model and settings; None for none.

    Raises:
        OptionError: There is no episode, or the name has another ending.
        MissingExtra: ``inspect-ai`` is not installed.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise OptionError(
            f"expected a name that ends in .eval or .json for a log of Inspect, found {target.name!r}"
        )
    if not trajectories:
        raise OptionError("expected at least one episode for a log of Inspect, found none")

    with needs_extra("inspect", "a log of Inspect"):
        from inspect_ai.log import (
            EvalConfig,
            EvalDataset,
            EvalLog,
            EvalMetric,
            EvalResults,
            EvalScore,
            EvalSpec,
            write_eval_log,
        )

    first = trajectories[0]
    if not all(trajectory.has_outcome for trajectory in trajectories):
        raise OptionError(
            "expected episodes whose outcome is known, found imported ones of which nobody recorded how "
            "they ended: a log of Inspect has a score for each; export them as messages or sharegpt"
        )
    record = dict(run or {})
    summary = Tally.of(trajectories).summary()
    task_ids = list(dict.fromkeys(trajectory.task for trajectory in trajectories))
    epochs = max(len(trajectories) // max(len(task_ids), 1), 1)

    scores = []
    values = {"success": summary["success"]["value"], "score": summary["score"]}
    for name, value in values.items():
        metrics = {"mean": EvalMetric(name="mean", value=float(value))}
        scores.append(EvalScore(name=name, scorer="comap/outcome", metrics=metrics))
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=_date_of(record),
            task=f"{first.agent} on {first.env_id}",
            dataset=EvalDataset(
                name=f"{first.env_id}, {first.split}", samples=len(task_ids), sample_ids=task_ids
            ),
            model=_model_of(record),
            config=EvalConfig(epochs=epochs),
            metadata={"comap": {name: record.get(name) for name in _TOLD}},
        ),
        results=EvalResults(
            total_samples=len(trajectories), completed_samples=len(trajectories), scores=scores
        ),
        samples=_samples(trajectories),
    )

    # Under another name until it is whole; its ending says the format.
    draft = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        write_eval_log(log, str(draft))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _date_of(record: Mapping[str, Any]) -> str:
    """Return when a run was begun; Inspect needs a date, so one that is not known is 1970's."""
    sessions = record.get("sessions") or [{}]
    return str(sessions[0].get("date") or "1970-01-01T00:00:00Z")


def _model_of(record: Mapping[str, Any]) -> str:
    """Return the name of the language model that a run's record names; Inspect needs one."""
    model = record.get("language_model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return f"comap/{name or 'none'}"


def _samples(trajectories: Sequence[Trajectory]) -> list[Any]:
    from inspect_ai.log import EvalSample
    from inspect_ai.scorer import Score

    samples = []
    episodes_of_task: dict[str, int] = {}
    for trajectory in trajectories:
        epoch = episodes_of_task.get(trajectory.task, 0) + 1
        episodes_of_task[trajectory.task] = epoch
        last_facts = trajectory.steps[-1].facts if trajectory.steps else trajectory.facts
        details = {
            "steps": len(trajectory.steps),
            "return": sum(step.reward for step in trajectory.steps),
            "invalid_actions": sum(step.invalid_action for step in trajectory.steps),
            "facts": valid_text(last_facts.to_text()).splitlines(),
        }
        foreseen = predictions_of(trajectory)
        if foreseen:
            details["delta_f1"] = sum(foreseen) / len(foreseen)
        world_model = None if trajectory.world_model is None else in_words(trajectory.world_model)
        error = None if trajectory.error is None else valid_text(trajectory.error)
        value = {"success": float(trajectory.success), "score": float(trajectory.score)}
        samples.append(
            EvalSample(
                id=trajectory.task,
                epoch=epoch,
                input=valid_text(trajectory.observation),
                target="",
                messages=messages_of(trajectory),
                scores={"outcome": Score(value=value, explanation=error, metadata=details)},
                metadata={
                    "env": trajectory.env_id,
                    "split": trajectory.split,
                    "goal": valid_text(trajectory.goal),
                    "agent": trajectory.agent,
                    "seed": trajectory.seed,
                    "trial": trajectory.trial,
                    "generated": is_generated(trajectory.task),
                    "world_model": world_model,
                },
            )
        )
    return samples


def messages_of(trajectory: Trajectory) -> list[Any]:
    """Return an episode as a conversation of Inspect: what was observed, what was replied and done."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser

    kinds: dict[str, Any] = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
    }
    return [kinds[turn["role"]](content=turn["content"]) for turn in turns_of(trajectory)]


def predictions_of(trajectory: Trajectory) -> list[float]:
    """Return the Delta-F1 of each real step of which a world model had predicted what follows."""
    scores = (prediction_score(before, step) for before, step in trajectory.transitions())
    return [score for score in scores if score is not None]
