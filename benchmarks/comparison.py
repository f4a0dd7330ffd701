"""Runs against each other: `comap compare`, which pairs their episodes by task and seed.

Runs are compared where they played the same tasks of the same environment, data and prompts. What else
differs, such as the model, is what one compares: it is said beside the numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..agents.run import (
    NO_MATTER,
    PROMPTS,
    RUN,
    TRAJECTORIES,
    check_count,
    differences,
    read_run,
)
from ..agents.tally import prediction_score
from ..envs.generated import is_generated, tasks_in_words
from ..errors import DataNotFound, OptionError
from ..metrics import Difference, Outcome, compare
from ..trajectory import Trajectory, read_trajectories
from .record import circumstances
from .tables import Table, one_line
from .training_record import members

_SAID = frozenset({"comap", "facts", "panel"})
"""Parts of a fingerprint that may differ: the version, the reading of facts, and which tasks there were."""

_FEW = 20  # tasks: below, bootstrap intervals of a mean are clearly too narrow
_MOST_NAMED = 8  # tasks, of those that a line names
_MOST_ROWS = 100  # tasks, of those that a page's table names

_MCNEMAR = "McNemar"
_SIGN = "sign"
_TESTS = {
    _MCNEMAR: "McNemar's exact test, two-sided.",
    _SIGN: "exact sign test over tasks, two-sided: a task counts for the run that solves it more often.",
}
"""How success is tested: with one episode at a task, and with several, which depend on each other."""

_NAMES = {
    "success": "success",
    "score": "score",
    "steps": "steps in an episode",
    "delta_f1_nonempty": "Delta-F1 of predicted changes",
    "delta_f1": "Delta-F1 of all predictions",
}
"""What a table calls the measures, in its order."""


def outcome_of(trajectory: Trajectory) -> Outcome:
    """Return what an episode came to, as `comap.metrics.compare` takes it."""
    scores = []
    scores_of_changes = []
    for before, step in trajectory.transitions():
        score = prediction_score(before, step)
        if score is None:
            continue
        scores.append(score)
        if step.delta:
            scores_of_changes.append(score)

    return Outcome(
        task=trajectory.task,
        seed=trajectory.seed,
        success=trajectory.success,
        score=trajectory.score,
        steps=len(trajectory.steps),
        delta_f1=_mean(scores),
        delta_f1_nonempty=_mean(scores_of_changes),
    )


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


@dataclass
class RunOutcomes:
    """The episodes of a run as far as a comparison needs them."""

    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    """What the run's folder says of it; empty where there is but a file of trajectories."""
    outcomes: dict[tuple[str, int | None], Outcome] = field(default_factory=dict)
    failed: set[tuple[str, int | None]] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    """The formats of episodes that others played and published."""
    environments: set[str] = field(default_factory=set)
    fingerprint: dict[str, set[str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, file: Path, name: str) -> RunOutcomes:
        """Return a run without its episodes, with the record beside its trajectories."""
        record_path = file.with_name(RUN)
        has_record = file.name == TRAJECTORIES and record_path.is_file()
        return cls(name, read_run(record_path) if has_record else {})

    @classmethod
    def read(cls, file: Path, name: str) -> RunOutcomes:
        """Return a run with all its episodes."""
        run = cls.begin(file, name)
        number = 0
        for number, trajectory in enumerate(read_trajectories(file), 1):  # noqa: B007
            run.add(trajectory)
        check_count(file, number)
        return run

    def add(self, trajectory: Trajectory) -> None:
        """Add an episode; of several trials at a task and seed, the last one counts."""
        if trajectory.origin:
            self.imported.add(str(trajectory.origin.get("format")))
        item = (trajectory.task, trajectory.seed)
        self.outcomes[item] = outcome_of(trajectory)
        self.failed.discard(item)
        if trajectory.error is not None:
            self.failed.add(item)

        self.environments.add(trajectory.env_id)
        kind = "generated" if is_generated(trajectory.task) else "official"
        parts = {**trajectory.fingerprint, "split": trajectory.split, "kind of tasks": kind}
        for name, part in parts.items():
            self.fingerprint.setdefault(name, set()).add(str(part))

        if not self.settings:
            self.settings = {
                "agent": {"name": trajectory.agent, **trajectory.settings},
                "world_model": trajectory.world_model,
                "imagined": trajectory.imagined,
            }

    @property
    def tasks(self) -> list[str]:
        """The tasks that were played, each once."""
        return list(dict.fromkeys(task for task, _ in self.outcomes))

    def described(self) -> dict[str, Any]:
        """Return what may differ between runs that are compared, as nested settings."""
        versions = {name: sorted(self.fingerprint.get(name, ())) for name in ("comap", "facts")}
        return {
            **self.settings,
            "language_model": members(self.record, "language_model"),
            "env_options": members(members(self.record, "config"), "env_options"),
            "versions": {name: ", ".join(parts) for name, parts in versions.items()},
        }

    def prompts(self) -> tuple[set[str], set[str]]:
        """Return the digest of its prompts, and their style; nothing of a run that has none."""
        digest = members(self.record, PROMPTS).get("sha256")
        agent = members(self.settings, "agent")
        style = agent.get("prompts")
        folder = agent.get("prompt_folder")
        styles = {f"{style} of {folder}" if folder else str(style)} if style is not None else set()
        return {str(digest)} if digest is not None else set(), styles


def compare_runs(runs: Sequence[str | Path], accept: Collection[str] = ()) -> dict[str, Any]:
    """Return how runs differ from the first of them, on the tasks that both played.

    Args:
        runs: Folders of runs, or files of trajectories: two or more.
        accept: Differences that would be refused: ``"prompts"``, ``"split"``, or another name of the
            environment's fingerprint.

    Returns:
        The results as JSON data: ``comparisons`` has one entry for each run but the first, as
        `comap.metrics.compare` returns it, with notes in words.

    Raises:
        DataNotFound: There are no trajectories.
        OptionError: There is one run, a run is given twice, or runs cannot be compared.

    Example:
        >>> from comap.agents import ExpertAgent, RandomAgent, Run, run_to
        >>> import gymnasium as gym, comap
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", split="train", source="generated")
        >>> tasks = make_env().get_wrapper_attr("tasks").ids[:4]
        >>> for agent in (RandomAgent(), ExpertAgent()):
        ...     run = Run(make_env=make_env, agent=agent, tasks=tasks, seed=0)
        ...     summary = run_to(f"runs/{agent.name}", run)
        >>> result = compare_runs(["runs/random", "runs/expert"])
        >>> result["comparisons"][0]["differences"]["success"]["value"]
        1.0
    """
    if len(runs) < 2:
        raise OptionError(f"expected two or more runs to compare, found {len(runs)}")
    paths = [Path(run) for run in runs]
    files = files_of(paths)
    played = []
    for file, name in zip(files, names_of(paths), strict=True):
        run = RunOutcomes.read(file, name)
        if not run.outcomes:
            raise DataNotFound(
                f"expected trajectories in {file}, found no whole line of one; name a run that has "
                "ended an episode"
            )
        played.append(run)

    first, *others = played
    return {
        "benchmark": "comparison",
        **circumstances(("numpy", "scipy")),
        "runs": [_run_data(run) for run in played],
        "comparisons": [comparison_of(first, other, accept) for other in others],
    }


def _run_data(run: RunOutcomes) -> dict[str, Any]:
    return {
        "name": run.name,
        "environments": sorted(run.environments),
        "fingerprint": {name: sorted(parts) for name, parts in sorted(run.fingerprint.items())},
        "tasks": len(run.tasks),
        "episodes": len(run.outcomes),
        "failed": len(run.failed),
        **run.described(),
    }


def comparison_of(
    first: RunOutcomes, second: RunOutcomes, accept: Collection[str] = ()
) -> dict[str, Any]:
    """Return how a run differs from another one, as JSON data.

    Raises:
        OptionError: They cannot be compared.
    """
    accepted = _check_alike(first, second, accept)
    try:
        comparison = compare(first.outcomes.values(), second.outcomes.values())
    except OptionError as error:
        raise OptionError(f"cannot compare {second.name} with {first.name}: {error}") from error

    data = asdict(comparison)
    data["differences"] = {
        name: data["differences"][name]
        for name in (*_NAMES, *data["differences"])
        if name in data["differences"]
    }
    is_single = comparison.episodes == (comparison.n, comparison.n)
    shared_tasks = set(first.tasks) & set(second.tasks)
    return {
        "first": first.name,
        "second": second.name,
        "generated": sum(map(is_generated, shared_tasks)),
        **data,
        "test": _MCNEMAR if is_single else _SIGN,
        "notes": accepted + _notes(first, second, data),
    }


def _check_alike(first: RunOutcomes, second: RunOutcomes, accept: Collection[str]) -> list[str]:
    """Refuse runs that cannot be compared; return in words what was accepted, or differs in part."""
    for run in (first, second):
        if run.imported:
            raise OptionError(
                f"expected runs that were played here, found {run.name}, which is imported "
                f"({_listed(run.imported)}): under which conditions it was played nobody recorded; compare "
                "runs of comap run"
            )
    if first.environments != second.environments:
        raise OptionError(
            f"expected runs of the same environment, found {_listed(first.environments)} in "
            f"{first.name} and {_listed(second.environments)} in {second.name}"
        )

    parts = {"prompts": _prompts_of_both(first, second)}
    for name in ("split", "kind of tasks", *first.fingerprint):
        if name not in _SAID:
            values = (first.fingerprint.get(name, set()), second.fingerprint.get(name, set()))
            parts.setdefault(name, values)

    # What a record does not have, such as one of an earlier version, speaks against nothing.
    lines = []
    for name, (in_first, in_second) in parts.items():
        if not in_first or not in_second or in_first == in_second:
            continue
        difference = (
            f"{name}: {_listed(in_first)} in {first.name}, {_listed(in_second)} in {second.name}"
        )
        if in_first.isdisjoint(in_second) and name not in accept:
            raise OptionError(
                f"cannot compare {second.name} with {first.name}, whose episodes are of other "
                f"conditions ({difference}); name runs that differ in agent or model alone, or accept "
                f"it: comap compare ... --accept '{name}'"
            )
        lines.append(f"not the same {difference}")
    return lines


def _prompts_of_both(first: RunOutcomes, second: RunOutcomes) -> tuple[set[str], set[str]]:
    """Return the prompts of two runs: digests of their texts where both recorded one, else styles."""
    digest_of_first, style_of_first = first.prompts()
    digest_of_second, style_of_second = second.prompts()
    if digest_of_first and digest_of_second:
        return digest_of_first, digest_of_second
    return style_of_first, style_of_second


def _listed(values: Iterable[str]) -> str:
    names = [one_line(value, 40) or "none" for value in sorted(values)]
    rest = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + rest


def _notes(first: RunOutcomes, second: RunOutcomes, data: Mapping[str, Any]) -> list[str]:
    """Return in words what a reader of the numbers should know of both runs."""
    notes = []
    for run, episodes in zip((first, second), data["episodes"], strict=True):
        if episodes < len(run.outcomes):
            notes.append(
                f"compared of {run.name}: {data['n']:,} of {len(run.tasks):,} tasks, {episodes:,} of "
                f"{len(run.outcomes):,} episodes; the other run did not play the rest"
            )
    if data["paired_by"] == "task":
        notes.append("the runs have no seed in common: paired by task alone")
    if data["n"] < _FEW:
        noun = "task" if data["n"] == 1 else "tasks"
        notes.append(f"with {data['n']} {noun} the intervals are too narrow: play more")

    for run in (first, second):
        if run.failed:
            notes.append(
                f"episodes of {run.name} that a fault ended: {len(run.failed):,}; they count with what "
                "they had reached"
            )
    places = (f"in {first.name}", f"in {second.name}")
    if differing := differences(first.described(), second.described(), NO_MATTER, places):
        notes.append(f"other differences: {differing}")
    return notes


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    """Return a comparison as a table, with a line for each measure."""
    first = one_line(comparison["first"], 40)
    second = one_line(comparison["second"], 40)
    rows = []
    for name, data in comparison["differences"].items():
        difference = Difference(**data)
        scale = 1 if name == "steps" else 100
        label = _NAMES.get(name, name) + ("" if scale == 1 else ", %")
        if difference.n < comparison["n"]:
            label += f" ({tasks_in_words(difference.n, 0)})"
        rows.append(
            (
                label,
                f"{scale * difference.first:.1f}",
                f"{scale * difference.second:.1f}",
                _with_interval(difference, scale),
                f"{comparison['p_value']:.2g}" if name == "success" else "",
            )
        )

    tasks = tasks_in_words(comparison["n"], comparison["generated"])
    return Table(
        f"{second} against {first}: {tasks}",
        ("", first, second, "difference [95 %]", "p"),
        tuple(rows),
        f"Difference: {second} minus {first}, a mean over tasks with its bootstrap interval. "
        f"p: {_TESTS[comparison['test']]}",
    )


def _with_interval(difference: Difference, scale: int) -> str:
    """Return a difference and its interval as text; of one task there is none."""
    text = f"{scale * difference.value:+.1f}"
    if difference.low is None or difference.high is None:
        return text
    return f"{text} [{scale * difference.low:+.1f}, {scale * difference.high:+.1f}]"


def wins_table(comparison: Mapping[str, Any]) -> Table:
    """Return the tasks that one run solves and the other does not, as a table."""
    rows = []
    for winner, tasks in _wins(comparison):
        rows += [(one_line(task, 120), winner) for task in tasks]
    left_out = len(rows) - _MOST_ROWS
    note = f"{left_out:,} more are not shown." if left_out > 0 else ""
    return Table(_wins_title(comparison), ("task", "solved by"), tuple(rows[:_MOST_ROWS]), note)


def comparison_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Return lines on the tasks that one run wins and the other does not, and the notes."""
    lines = [_wins_title(comparison) + ":"]
    for winner, tasks in _wins(comparison):
        named = ", ".join(one_line(task, 80) for task in tasks[:_MOST_NAMED])
        rest = ", ..." if len(tasks) > _MOST_NAMED else ""
        lines.append(f"  {winner}: {len(tasks):,}" + (f" ({named}{rest})" if tasks else ""))
    return lines + [one_line(note, 800) for note in comparison["notes"]]


def _wins_title(comparison: Mapping[str, Any]) -> str:
    if comparison["test"] == _MCNEMAR:
        return "Tasks that one run solves and the other does not"
    return "Tasks that one run solves more often than the other"


def _wins(comparison: Mapping[str, Any]) -> list[tuple[str, Sequence[str]]]:
    """Return for each run its name and the tasks that it alone wins."""
    return [
        (one_line(comparison["second"], 40), comparison["second_wins"]),
        (one_line(comparison["first"], 40), comparison["first_wins"]),
    ]


def files_of(runs: Sequence[Path]) -> list[Path]:
    """Return the files of trajectories that are meant, each once."""
    files: list[Path] = []
    for run in runs:
        file = run / TRAJECTORIES if run.is_dir() else run
        if not file.is_file():
            raise DataNotFound(
                f"expected trajectories at {file}, found no such file; 'comap run' makes one"
            )
        if any(file.resolve() == previous.resolve() for previous in files):
            raise OptionError(f"expected different runs, found {run} twice; name it once")
        files.append(file)
    return files


def names_of(runs: Sequence[Path]) -> list[str]:
    """Return a short name for each run: as much of its path's end as tells it from the others."""
    paths = [run.resolve().parts for run in runs]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names
