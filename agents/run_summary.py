"""What came out of a run, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..checksums import unseal
from ..errors import DataCorrupt
from ..metrics import success_rate
from ..trajectory import Call, Trajectory, read_trajectories
from .calls import IMAGINE

__all__ = ["SUMMARY", "TRAJECTORIES", "Tally", "check_count", "recorded", "summarize"]

TRAJECTORIES = "trajectories.jsonl"
"""The file of a run's trajectories."""
SUMMARY = "summary.json"
"""The file of a run's results, written when all tasks have ended."""


@dataclass
class _Spent:
    """What language models were asked, in numbers."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, call: Call) -> None:
        self.calls += 1
        self.prompt_tokens += call.prompt_tokens
        self.completion_tokens += call.completion_tokens

    def summary(self, steps: int) -> dict[str, dict[str, float]]:
        """Return the numbers, in all and for each step."""
        counts = asdict(self)
        return {
            "all": counts,
            "per_step": {name: count / max(steps, 1) for name, count in counts.items()},
        }


@dataclass
class Tally:
    """Counts over trajectories, so that a file of any size is read once.

    Attributes:
        first: Whether each task's first trial succeeded, by task.
        last: Whether each task's last trial succeeded, by task.
        scores: The score of each task's last trial, by task.
        errors: Type and message of the fault that ended each task's last trial, by task.
        trials: Number of trajectories.
        steps: Number of steps, over all trials.
        invalid: Number of those whose action was refused.
        imagined: Number of those that were imagined.
        told: Of what the environment told of steps in one word, by name: how often it told which.
        language_model: What the agent's language model was asked: number of calls, tokens that it
            read, tokens that it generated or scored.
        world_model: What the world model's language model was asked, if it has one.

    Example:
        >>> from comap.facts import State
        >>> tally = Tally()
        >>> tally.add(Trajectory("id", "task", "dev", "goal", "agent", "Hello.", State()))
        >>> tally.summary()["success"]["n"]
        1
    """

    first: dict[str, bool] = field(default_factory=dict)
    last: dict[str, bool] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    trials: int = 0
    steps: int = 0
    invalid: int = 0
    imagined: int = 0
    told: dict[str, Counter[str]] = field(default_factory=dict)
    language_model: _Spent = field(default_factory=_Spent)
    world_model: _Spent = field(default_factory=_Spent)

    def add(self, trajectory: Trajectory) -> None:
        """Count one trial; the trials of a task come in their order."""
        task = trajectory.task
        self.trials += 1
        self.first.setdefault(task, trajectory.success)
        self.last[task], self.scores[task] = trajectory.success, trajectory.score
        self.errors.pop(task, None)
        if trajectory.error is not None:
            self.errors[task] = trajectory.error
        self.steps += len(trajectory.steps)
        self.invalid += sum(step.invalid_action for step in trajectory.steps)
        self.imagined += sum(step.imagined for step in trajectory.steps)
        for step in trajectory.steps:
            for name, word in step.told.items():
                if isinstance(word, str):
                    self.told.setdefault(name, Counter())[word] += 1
        for call in [c for step in trajectory.steps for c in step.calls] + [*trajectory.review]:
            (self.world_model if call.kind == IMAGINE else self.language_model).add(call)

    def summary(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the results as plain data.

        Args:
            seconds: How long it took by the clock.
        """
        tasks, steps = max(len(self.last), 1), max(self.steps, 1)
        result: dict[str, Any] = {
            "n": len(self.last),
            "success": asdict(success_rate(self.last.values())),
            "score": sum(self.scores.values()) / tasks,
            "steps": {"all": self.steps, "per_episode": self.steps / max(self.trials, 1)},
            "invalid_actions": self.invalid / steps,
            "imagined_steps": self.imagined / steps,
            "language_model": self.language_model.summary(self.steps),
            "world_model": self.world_model.summary(self.steps),
            **self._faults(),
        }
        if self.told:
            result["told"] = {name: dict(sorted(said.items())) for name, said in self.told.items()}
        if self.trials > len(self.last):
            first = asdict(success_rate(self.first.values()))
            result["trials"] = {"all": self.trials, "first": first, "last": result["success"]}
        if seconds is not None:
            result["seconds"] = {"all": seconds, "per_step": seconds / steps}
        return result

    def _faults(self) -> dict[str, Any]:
        """Return the number of faults of each type, and the first message of each."""
        first: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for error in self.errors.values():
            kind, _, message = error.partition(": ")
            counts[kind] += 1
            first.setdefault(kind, message[:500])
        return {
            "errors": dict(sorted(counts.items())),
            "first_errors": dict(sorted(first.items())),
        }


def recorded(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a run's file; of a run that has ended, there must be all of them.

    Args:
        path: The file.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: A line was changed or is no trajectory, or lines are missing.
    """
    number = 0
    for number, trajectory in enumerate(read_trajectories(path), 1):  # noqa: B007
        yield trajectory
    check_count(path, number)


def check_count(path: Path, number: int) -> None:
    """Compare how many trajectories a file has with the summary beside it, if there is one.

    A line that was cut off just behind the line before leaves nothing else to tell it by.

    Args:
        path: The file.
        number: How many it has.

    Raises:
        DataCorrupt: The summary tells of another number, or was changed.

    Example:
        >>> check_count(Path("nowhere/trajectories.jsonl"), 3)
    """
    beside = path.with_name(SUMMARY)
    if path.name != TRAJECTORIES or not beside.is_file():
        return
    try:
        told = unseal(beside.read_bytes())
        wanted = told["trials"]["all"] if "trials" in told else told.get("n")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataCorrupt(
            f"expected the summary of a run in {beside}, found something else ({error}); remove it, "
            "and give the run's command again"
        ) from error
    if wanted not in (number, None):
        raise DataCorrupt(
            f"expected {wanted} episodes in {path}, as {SUMMARY} beside it tells, found {number}; "
            "restore the file, or give the run's command again to play what is missing"
        )


def summarize(path: Path, seconds: float | None = None) -> dict[str, Any]:
    """Return the summary of a file of trajectories.

    Args:
        path: The file; one that is missing holds none.
        seconds: How long it took by the clock.

    Raises:
        DataCorrupt: A line is not a trajectory.
    """
    tally = Tally()
    trajectories: Iterable[Trajectory] = read_trajectories(path) if path.exists() else ()
    for trajectory in trajectories:
        tally.add(trajectory)
    return tally.summary(seconds)
