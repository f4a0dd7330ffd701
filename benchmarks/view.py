"""Runs: their results as tables, and `comap view`, the page that shows their episodes."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..agents.run import CUT, LATENCY, RUN, TRAJECTORIES, Tally, check_count, differences, read_run
from ..agents.unread import UNREAD
from ..envs.generated import tasks_in_words
from ..errors import CoMapError, DataNotFound, OptionError
from ..metrics import Rate
from ..trajectory import read_trajectories
from .report import Episode, Pack, Section, render_page, write_whole
from .tables import Table, one_line
from .training_record import members

MOST = 5_000
"""So many episodes of a run are shown, if nobody says how many."""


@dataclass
class _Played:
    name: str
    tally: Tally = field(default_factory=Tally)
    environments: set[str] = field(default_factory=set)
    agents: set[str] = field(default_factory=set)
    summary: Mapping[str, Any] = field(default_factory=dict)


def view_run(
    run: str | Path | Sequence[str | Path], out: str | Path | None = None, most: int = MOST
) -> Path:
    """Write the page that shows the episodes of a run, or of several, and return its path.

    Args:
        run: The folder of a run or a file of trajectories, or several of these.
        out: The page; None for ``view.html`` in the run, ``view-together.html`` in the first of several.
        most: So many episodes of each run are shown.

    Raises:
        DataNotFound: There are no trajectories.
        OptionError: A run is given twice, or the page would replace trajectories.

    Example:
        >>> from comap.agents import ExpertAgent, Run, run_to
        >>> import gymnasium as gym, comap
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", split="train", source="generated")
        >>> tasks = make_env().get_wrapper_attr("tasks").ids[:1]
        >>> summary = run_to("runs/first", Run(make_env=make_env, agent=ExpertAgent(), tasks=tasks))
        >>> view_run("runs/first").name
        'view.html'
    """
    if most < 1:
        raise OptionError(f"--episodes must be at least 1, not {most}")
    runs = [Path(run)] if isinstance(run, str | Path) else [Path(one) for one in run]
    files = _files_of(runs)
    together, first = len(runs) > 1, files[0]
    name = "view.html" if first.name == TRAJECTORIES else f"{first.stem}.html"
    page = first.with_name("view-together.html" if together else name) if out is None else Path(out)
    for file in files:
        if page.exists() and page.samefile(file):
            raise OptionError(
                f"the page would replace the trajectories at {file}; give another --out"
            )
    pack, names = Pack(), _names_of(runs)
    played = [_packed(pack, file, name, most) for file, name in zip(files, names, strict=True)]
    if not len(pack):
        raise DataNotFound(
            f"expected trajectories in {files[0]}, found no whole line of one; name a run that has ended "
            "an episode"
        )
    if together:
        table = _together_table(played)
    else:
        table = summary_table(f"Results: {played_tasks(played[0].summary)}", played[0].summary)
    title = "comap runs" if together else f"comap run: {runs[0].name}"
    summary, sections = _page_summary(played, most), [Section("", [table])]
    shown = render_page(title, summary, sections, pack, folded=True, opened=together)
    write_whole(page, shown)
    return page


def show(page: Path) -> bool:
    """Open a page in the web browser, if there is a display; return whether it was opened."""
    return has_display() and webbrowser.open(page.resolve().as_uri())


def has_display() -> bool:
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in screens)


def _packed(pack: Pack, file: Path, name: str, most: int) -> _Played:
    played = _Played(name)
    for number, trajectory in enumerate(read_trajectories(file), 1):
        played.tally.add(trajectory)
        if number <= most:
            pack.add(Episode(trajectory.goal or trajectory.task, trajectory, None, name))
            played.environments.add(trajectory.env_id)
            played.agents.add(trajectory.agent)
    check_count(file, played.tally.trials)
    played.summary = played.tally.summary()
    return played


def _page_summary(played: Sequence[_Played], most: int) -> dict[str, str]:
    together = len(played) > 1
    counts = [one.tally.trials for one in played]
    cut = f", the first {most:,}{' of each run' if together else ''} shown"
    summary = {
        "environment": ", ".join(sorted(set().union(*(one.environments for one in played)))),
        "agent": ", ".join(sorted(set().union(*(one.agents for one in played)))),
        "episodes": f"{sum(counts):,}{cut if max(counts) > most else ''}",
    }
    parts = (
        ("tasks", played_tasks),
        ("world model", world_models),
        ("not read", unread_replies),
        ("failed", failures),
    )
    for heading, describe in parts:
        if text := _of_each(played, describe):
            summary[heading] = text
    return summary


def _of_each(played: Sequence[_Played], describe: Callable[[Mapping[str, Any]], str]) -> str:
    """Return what there is to say of each run, with its name where there are several."""
    texts = [(one.name, describe(one.summary)) for one in played]
    return "; ".join(f"{name}: {text}" if name else text for name, text in texts if text)


def _files_of(runs: Sequence[Path]) -> list[Path]:
    """Return the files of trajectories that are meant, each once."""
    files: list[Path] = []
    for run in runs:
        file = run / TRAJECTORIES if run.is_dir() else run
        if not file.is_file():
            raise DataNotFound(
                f"expected trajectories at {file}, found no such file; 'comap run' makes one"
            )
        if any(file.resolve() == other.resolve() for other in files):
            raise OptionError(f"expected different runs, found {run} twice; name it once")
        files.append(file)
    return files


def _names_of(runs: Sequence[Path]) -> list[str]:
    """Return a short name for each run: as much of its path's end as tells it from the others."""
    if len(runs) == 1:
        return [""]
    parts = [one.resolve().parts for one in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(some[-length:]) for some in parts]
        if len(set(names)) == len(names):
            break
    return names


def summary_table(title: str, summary: Mapping[str, Any]) -> Table:
    return Table(title, ("", "value"), tuple(_summary_rows(summary).items()))


def _together_table(played: Sequence[_Played]) -> Table:
    """Return the results of several runs as a table, a run in a column."""
    columns = [
        {
            "agent": ", ".join(sorted(one.agents)),
            "tasks": played_tasks(one.summary),
            **_summary_rows(one.summary),
        }
        for one in played
    ]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = ((name, *(column.get(name) for column in columns)) for name in names)
    return Table("Results", ("", *(one.name for one in played)), tuple(rows))


def _summary_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    rows = {}
    if asked := world_models(summary):
        rows["world model"] = asked
    rows["success"] = str(Rate(**summary["success"]))
    if "trials" in summary:
        rows["success in the first trial"] = str(Rate(**summary["trials"]["first"]))
    for k, share in [*summary.get("pass_at_k", {}).items()][1:]:  # pass@1 is the success
        rows[f"pass@{one_line(k, 10)}"] = f"{100 * share:.1f} %"
    for name, rate in summary.get("by_type", {}).items():
        rows[f"success, {one_line(name, 40) or 'other'}"] = str(Rate(**rate))
    rows |= {
        "score": f"{100 * summary['score']:.1f} %",
        "steps in an episode": f"{summary['steps']['per_episode']:.1f}",
        "steps in all": f"{summary['steps']['all']:,}",
        "refused actions": f"{100 * summary['invalid_actions']:.1f} %",
    }
    rows |= dict(_unread(summary))
    if foreseen := summary.get("predictions"):
        # Of changes first: a failing agent that repeats a refused action has nearly 1 of all steps.
        of_changes, of_all = (100 * foreseen[name] for name in ("nonempty", "delta_f1"))
        text = f"{of_changes:.1f} %, of all steps {of_all:.1f} % (n={foreseen['n']:,})"
        rows["Delta-F1 of predicted changes"] = text
    if gate := summary.get("gate"):
        shown = (one_line(gate[name], 40) for name in ("p_source", "q_source"))
        counts = f"opened at {gate['opened']:,} of {gate['reflections']:,} reflections"
        rows["CoMap's gate"] = "{}; p: {}, q: {}".format(counts, *shown)
    for name, counts in summary.get("told", {}).items():
        n = sum(counts.values())
        words = [f"{one_line(word, 40)} {100 * m / max(n, 1):.1f} %" for word, m in counts.items()]
        rows[one_line(name, 40).replace("_", " ")] = f"{', '.join(words)} (n={n:,})"
    for key, whose in (("language_model", "model"), ("world_model", "world model")):
        every, each = summary[key]["all"], summary[key]["per_step"]
        if every["calls"]:
            calls = f"{each['calls']:.2f} in a step, {every['calls']:,} in all"
            rows[f"{whose} calls"] = calls
            for name, what in (("prompt", "tokens read"), ("completion", "tokens written")):
                n, m = each[f"{name}_tokens"], every[f"{name}_tokens"]
                rows[f"{whose}: {what}"] = f"{n:,.0f} in a step, {m:,} in all"
        if cut := summary.get(CUT, {}).get(key):
            rows[f"{whose}: replies cut off"] = _cut(cut, every["calls"])
    if "seconds" in summary:
        seconds = summary["seconds"]
        per_step = f"{seconds['per_step']:.3f} a step, " if summary["steps"]["all"] else ""
        rows["seconds"] = f"{per_step}{seconds['all']:,.1f} in all"
    for name, values in summary.get(LATENCY, {}).items():
        listed = (f"{p} {1000 * value:,.1f}" for p, value in values.items())
        if values["p99"] > 5e-5:  # there is something to see
            rows[f"milliseconds of a step, {name}"] = ", ".join(listed)
    return rows


def _cut(counts: Mapping[str, Any], calls: int) -> str:
    """Return in words how many replies ended at their limit of tokens, and what they were for."""
    purposes = ", ".join(f"{one_line(name, 40)} {n:,}" for name, n in counts["for"].items())
    return f"{counts['all']:,} of {calls:,} calls ({purposes})"


def cut_replies(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return a line for each model whose replies ended at their limit of tokens, with what to set.

    Args:
        summary: The summary of a run.
        settings: The settings of its agent; those that limit tokens are named.
    """
    limits = {name: value for name, value in settings.items() if name.endswith("_tokens")}
    listed = ", ".join(f"{name}={value}" for name, value in limits.items() if value)
    advice = {
        "language_model": f"set a limit higher, as --agent-option NAME=N; now {listed}",
        "world_model": "set --world-model-option max_new_tokens=N higher",
    }
    lines = []
    for key, counts in summary.get(CUT, {}).items():
        whose = key.replace("_", " ")
        found = _cut(counts, summary[key]["all"]["calls"])
        lines.append(f"replies of the {whose} cut off at their limit: {found}; {advice[key]}")
    return lines


_OF_ACTIONS = ("out_of_form", "without_action")
_FAULTS = {
    "out_of_form": "replies out of their form",
    "without_action": "replies without an action",
    "without_decision": "reflections without a decision",
}


def _unread(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with replies, how many have it, and some of them."""
    for fault, counts in summary.get(UNREAD, {}).items():
        if counts["all"]:
            examples = ", ".join(f"'{one_line(text, 100)}'" for text in counts["examples"])
            yield (
                _FAULTS.get(fault, fault),
                f"{counts['all']:,} of {counts['of']:,}, such as {examples}",
            )


def share_unread(summary: Mapping[str, Any]) -> float:
    """Return the share of replies in which no action could be read."""
    faults = [counts for name, counts in summary.get(UNREAD, {}).items() if name in _OF_ACTIONS]
    unread, read = (sum(int(counts[name]) for counts in faults) for name in ("all", "of"))
    return unread / max(read, 1)


def unread_replies(summary: Mapping[str, Any]) -> str:
    """Return in a line how many replies had no action that could be read; empty where all had one."""
    return "; ".join(f"{heading}: {text}" for heading, text in _unread(summary))


def played_tasks(summary: Mapping[str, Any]) -> str:
    """Return how many tasks were played, and whether they were generated."""
    return tasks_in_words(summary["n"], summary.get("generated_tasks", 0))


def world_models(summary: Mapping[str, Any]) -> str:
    """Return in words which world models were asked; summaries of before do not say it."""
    return one_line("; ".join(summary.get("world_models", {}).values()), 400)


def failures(summary: Mapping[str, Any]) -> str:
    """Return in a line how many episodes failed and why; empty where none did."""
    errors = summary["errors"]
    if not errors:
        return ""
    listed = ", ".join(
        f"{one_line(kind, 60)} {count} (the first: {one_line(summary['first_errors'][kind], 320)})"
        for kind, count in errors.items()
    )
    episodes = summary.get("episodes", summary["n"])
    return f"{sum(errors.values())} of {episodes} episodes failed: {listed}"


_MAY_PASS = frozenset(
    {
        "LanguageModelError",
        "EngineError",
        "DownloadError",
        "WorkerLost",
        "OSError",
        "ConnectionError",
        "ConnectionResetError",
        "TimeoutError",
    }
)
"""Kinds of faults that the same program may not meet again: of servers, engines, machines."""


def remedy(summary: Mapping[str, Any]) -> str:
    """Return what to do about the episodes that failed; empty where none did."""
    kinds = set(summary["errors"])
    of_comap = {kind.__name__ for kind in CoMapError.__subclasses__()} - {"InvalidAction"}
    of_code = kinds - _MAY_PASS - of_comap
    lines = []
    if kinds & _MAY_PASS:
        lines.append("what a server or an engine failed at may pass: --retry-failed plays it again")
    if of_code:
        lines.append(
            "mend the code, and begin anew in another --out; comap --traceback run ... shows the tracebacks"
        )
    if kinds - _MAY_PASS - of_code:
        lines.append("mend what the message says; --retry-failed then plays these episodes again")
    return "; ".join(lines)


def version_note(folder: Path, about: Mapping[str, Any]) -> str:
    """Return what to say where a run goes on with other versions than before; empty if it does not."""
    if not (folder / RUN).is_file():
        return ""
    sessions = read_run(folder / RUN)["sessions"]
    before = members(sessions[-1] if sessions else None, "versions")
    changed = differences(before, {name: about["versions"].get(name) for name in before}, set())
    return changed and f"this run goes on with other versions than before: {one_line(changed, 400)}"
