"""What `comap run` shows: how far it is and how well it goes, and at the end what came out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..agents.run import RUN
from ..agents.run_description import read_run
from ..errors import MissingExtra
from ..trajectory import Trajectory
from .marks import one_line
from .tables import Table

__all__ = [
    "Played",
    "Shown",
    "failures",
    "run_progress",
    "runs_table",
    "summary_table",
    "version_note",
]

_LINES = 10  # of progress where standard output is no terminal


@contextmanager
def run_progress(total: int) -> Iterator[Shown]:
    """Show how many tasks have ended and how many of them succeeded, as it happens.

    Nothing is shown before `Shown.begin`.

    Args:
        total: How many tasks there are.

    Yields:
        What to tell of the run.

    Raises:
        MissingExtra: rich is not installed.

    Example:
        >>> from comap.facts import State
        >>> with run_progress(total=1) as shown:
        ...     shown.begin(0)
        ...     shown.advance([Trajectory("id", "task", "dev", "goal", "agent", "Hello.", State())])
        1 of 1 tasks, success 0.0 %
    """
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError as error:
        raise MissingExtra.of("viz", "a progress bar") from error
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        yield Shown(total)
        return
    live = bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        console=console,
    )
    try:
        yield Shown(total, live)
    finally:
        live.stop()


class Shown:
    """What is shown of a run: a bar of rich on a terminal, else a line now and then.

    Args:
        total: How many tasks there are.
        live: The bars of rich, not started yet.
    """

    def __init__(self, total: int, live: Any = None):
        self._total, self._live = total, live
        self._before = self._played = self._wins = self._failed = 0

    def begin(self, done: int) -> None:
        """Take note that so many tasks had ended before, and show that."""
        self._before = done
        if self._live is not None:
            self._bar = self._live.add_task("Playing", total=self._total, completed=done)
            self._live.start()
        elif done:
            print(f"{done} of {self._total} tasks had ended before", flush=True)

    def advance(self, trials: Sequence[Trajectory]) -> None:
        """Take note of the trials of a task that has ended, and show that."""
        self._played += 1
        self._wins += trials[-1].success
        self._failed += trials[-1].error is not None
        rest = self._total - self._before
        if self._live is not None:
            self._live.update(self._bar, advance=1, description=str(self))
        elif self._played == rest or self._played % max(rest // _LINES, 1) == 0:
            print(f"{self._before + self._played} of {self._total} tasks, {self}", flush=True)

    def __str__(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        since = f" of {self._played} played now" if self._before else ""
        return f"success {100 * self._wins / max(self._played, 1):.1f} %{since}{failed}"


def summary_table(title: str, summary: Mapping[str, Any]) -> Table:
    """Return the results of a run as a table.

    Example:
        >>> from comap.agents.run_summary import Tally
        >>> summary_table("run", Tally().summary()).rows[0]
        ('success', '0.0 % [0.0, 100.0] (n=0)')
    """
    rows = [("success", _rate(summary["success"]))]
    if "trials" in summary:
        rows.append(("success in the first trial", _rate(summary["trials"]["first"])))
    rows += [
        ("score", f"{100 * summary['score']:.1f} %"),
        ("steps in an episode", f"{summary['steps']['per_episode']:.1f}"),
        ("steps in all", f"{summary['steps']['all']:,}"),
        ("refused actions", f"{100 * summary['invalid_actions']:.1f} %"),
    ]
    rows += [_shares(name, said) for name, said in summary.get("told", {}).items()]
    rows += _spent(summary["language_model"], "model")
    rows += _spent(summary["world_model"], "world model")
    if "seconds" in summary:
        seconds = summary["seconds"]
        each = f"{seconds['per_step']:.3f} a step, " if summary["steps"]["all"] else ""
        rows.append(("seconds", f"{each}{seconds['all']:,.1f} in all"))
    return Table(title, ("", "value"), tuple(rows))


@dataclass(frozen=True, slots=True)
class Played:
    """A run, and what came out of it.

    Attributes:
        name: Its name on a page.
        summary: Its results, as `comap.agents.run_summary` has them.
        environments: Where it was played.
        agents: Who played.
        episodes: How many episodes it has.
    """

    name: str
    summary: Mapping[str, Any]
    environments: set[str]
    agents: set[str]
    episodes: int


def runs_table(title: str, played: Sequence[Played]) -> Table:
    """Return the results of several runs as a table, a run in a row.

    Example:
        >>> from comap.agents.run_summary import Tally
        >>> runs_table("runs", [Played("first", Tally().summary(), set(), {"react"}, 0)]).rows[0][:3]
        ('first', 'react', 0)
    """
    names = ("run", "agent", "episodes", "success (95 %)", "score", "steps", "refused", "failed")
    rows = []
    for one in played:
        summary = one.summary
        calls = summary["language_model"]["per_step"]["calls"]
        row = (
            one.name,
            ", ".join(sorted(one.agents)),
            one.episodes,
            _rate(summary["success"]).partition(" (n=")[0],
            round(100 * summary["score"], 1),
            round(summary["steps"]["per_episode"], 1),
            round(100 * summary["invalid_actions"], 1),
            sum(summary["errors"].values()),
            round(calls, 2),
        )
        rows.append(row)
    note = "Success, score and refused actions in percent; steps of an episode, calls of a step."
    return Table(title, (*names, "calls"), tuple(rows), note)


def failures(summary: Mapping[str, Any]) -> str:
    """Return in a line how many episodes failed and why; empty where none did.

    Example:
        >>> failures({"n": 4, "errors": {"KeyError": 1}, "first_errors": {"KeyError": "'boxes'"}})
        "1 of 4 episodes failed: KeyError 1 (the first: 'boxes')"
    """
    errors = summary["errors"]
    if not errors:
        return ""
    told = ", ".join(
        f"{one_line(kind, 60)} {count} (the first: {one_line(summary['first_errors'][kind], 200)})"
        for kind, count in errors.items()
    )
    return f"{sum(errors.values())} of {summary['n']} episodes failed: {told}"


def version_note(folder: Path, about: Mapping[str, Any]) -> str:
    """Return what to say where a run goes on with other versions than before; empty if it does not.

    Args:
        folder: The run's folder.
        about: What `circumstances` says now.

    Raises:
        DataCorrupt: The folder holds something else.

    Example:
        >>> version_note(Path("no/such/run"), {"versions": {"comap": "2.0"}})
        ''
    """
    if not (folder / RUN).is_file():
        return ""
    sessions = read_run(folder / RUN)["sessions"]
    last = sessions[-1] if sessions else {}
    before = last.get("versions", {}) if isinstance(last, Mapping) else {}
    changed = [
        f"{name} {one_line(str(before[name]), 40)}, now {version}"
        for name, version in about["versions"].items()
        if name in before and before[name] != version
    ]
    if not changed:
        return ""
    return f"this run goes on with other versions than before: {'; '.join(changed)}"


def _spent(spent: Mapping[str, Mapping[str, float]], whose: str) -> list[tuple[str, str]]:
    """Return rows that tell what a language model was asked; none where it was asked nothing."""
    every, each = spent["all"], spent["per_step"]
    if not every["calls"]:
        return []
    told = [(f"{whose} calls", f"{each['calls']:.2f} in a step, {every['calls']:,} in all")]
    for name, what in (("prompt_tokens", "tokens read"), ("completion_tokens", "tokens written")):
        value = f"{each[name]:,.0f} in a step, {every[name]:,} in all"
        told.append((f"{whose}: {what}", value))
    return told


def _shares(name: str, counts: Mapping[str, int]) -> tuple[str, str]:
    """Return a row that tells how often an environment told which word."""
    total = sum(counts.values())
    told = ", ".join(
        f"{one_line(word, 40)} {100 * count / max(total, 1):.1f} %"
        for word, count in counts.items()
    )
    return one_line(name, 40).replace("_", " "), f"{told} (n={total:,})"


def _rate(rate: Mapping[str, Any]) -> str:
    low, high = 100 * rate["low"], 100 * rate["high"]
    return f"{100 * rate['value']:.1f} % [{low:.1f}, {high:.1f}] (n={rate['n']})"
