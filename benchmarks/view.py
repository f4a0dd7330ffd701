"""Runs: their results as tables, and `comap view`, the page that shows their episodes."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..agents.run import LATENCY, RUN, TRAJECTORIES, check_count, differences, read_run
from ..agents.tally import CUT, UNKNOWN, Tally
from ..agents.unread import UNREAD
from ..envs.datasets import licenses_in_words
from ..envs.generated import tasks_in_words
from ..errors import CoMapError, DataNotFound, OptionError
from ..metrics import Rate
from ..trajectory import read_trajectories
from .comparison import (
    RunOutcomes,
    comparison_of,
    comparison_table,
    files_of,
    names_of,
    wins_table,
)
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
    outcomes: RunOutcomes | None = None
    """What is compared, where several runs are shown."""


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
    paths = [run] if isinstance(run, str | Path) else run
    runs = [Path(path) for path in paths]
    files = files_of(runs)
    are_several = len(runs) > 1
    names = names_of(runs) if are_several else [""]

    page = _page_path(files) if out is None else Path(out)
    for file in files:
        if page.exists() and page.samefile(file):
            raise OptionError(
                f"the page would replace the trajectories at {file}; give another --out"
            )

    pack = Pack()
    played_runs = []
    for file, name in zip(files, names, strict=True):
        played_runs.append(_packed(pack, file, name, most))
    if not len(pack):
        raise DataNotFound(
            f"expected trajectories in {files[0]}, found no whole line of one; name a run that has ended "
            "an episode"
        )

    if are_several:
        title = "comap runs"
        table = _together_table(played_runs)
    else:
        title = f"comap run: {runs[0].name}"
        summary = played_runs[0].summary
        table = summary_table(f"Results: {played_tasks(summary)}", summary)

    # Several runs are there to be compared: their table is seen at once.
    page_summary = _page_summary(played_runs, most)
    sections = [Section("", [table]), *_comparisons(played_runs)]
    html = render_page(title, page_summary, sections, pack, folded=True, opened=are_several)
    write_whole(page, html)
    return page


def _comparisons(played_runs: Sequence[_Played]) -> Iterator[Section]:
    """Yield how each run differs from the first one, or why it cannot be compared with it."""
    first, *others = [played.outcomes for played in played_runs]
    for other in others:
        if first is None or other is None:
            continue
        title = f"{other.name} against {first.name}"
        try:
            comparison = comparison_of(first, other)
        except OptionError as error:  # side by side they can be shown all the same
            yield Section(title, note=str(error))
            continue

        differences = comparison_table(comparison)
        wins = wins_table(comparison)
        notes = "; ".join(comparison["notes"])
        yield Section("", [differences], note=notes)
        if wins.rows:
            yield Section(f"{wins.title}: {title}", [wins], folded=True)


def _page_path(files: Sequence[Path]) -> Path:
    """Return where the page of some trajectories goes if nobody says it: beside the first of them."""
    first = files[0]
    if len(files) > 1:
        return first.with_name("view-together.html")
    if first.name == TRAJECTORIES:
        return first.with_name("view.html")
    return first.with_name(f"{first.stem}.html")


def show(page: Path) -> bool:
    """Open a page in the web browser, if there is a display; return whether it was opened."""
    return has_display() and webbrowser.open(page.resolve().as_uri())


def has_display() -> bool:
    """Return whether there is a screen: without one, webbrowser may start a browser in the terminal."""
    if not sys.platform.startswith("linux"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _packed(pack: Pack, file: Path, name: str, most: int) -> _Played:
    """Add the first episodes of a run to a pack, and return what all of them came to."""
    # One episode at a time is in memory: a run may have more than fit there.
    played = _Played(name)
    if name:
        played.outcomes = RunOutcomes.begin(file, name)
    for number, trajectory in enumerate(read_trajectories(file), 1):
        played.tally.add(trajectory)
        if played.outcomes is not None:
            played.outcomes.add(trajectory)
        if number <= most:
            title = trajectory.goal or trajectory.task
            pack.add(Episode(title, trajectory, None, name))
            played.environments.add(trajectory.env_id)
            played.agents.add(trajectory.agent)
    check_count(file, played.tally.trials)
    played.summary = played.tally.summary()
    return played


def _page_summary(played_runs: Sequence[_Played], most: int) -> dict[str, str]:
    """Return the facts under the title of the page."""
    environments: set[str] = set()
    agents: set[str] = set()
    for played in played_runs:
        environments |= played.environments
        agents |= played.agents

    counts = [played.tally.trials for played in played_runs]
    episodes = f"{sum(counts):,}"
    if max(counts) > most:
        of_each_run = " of each run" if len(played_runs) > 1 else ""
        episodes += f", the first {most:,}{of_each_run} shown"

    summary = {
        "environment": ", ".join(sorted(environments)),
        "agent": ", ".join(sorted(agents)),
        "episodes": episodes,
    }
    parts = (
        ("tasks", played_tasks),
        ("world model", world_models),
        ("not read", unread_replies),
        ("failed", failures),
    )
    for heading, describe in parts:
        if text := _of_each(played_runs, describe):
            summary[heading] = text
    return summary


def _of_each(played_runs: Sequence[_Played], describe: Callable[[Mapping[str, Any]], str]) -> str:
    """Return what there is to say of each run, with its name where there are several."""
    texts = []
    for played in played_runs:
        if text := describe(played.summary):
            texts.append(f"{played.name}: {text}" if played.name else text)
    return "; ".join(texts)


def summary_table(title: str, summary: Mapping[str, Any]) -> Table:
    """Return the summary of a run as a table."""
    return Table(title, ("", "value"), tuple(_summary_rows(summary).items()))


def _together_table(played_runs: Sequence[_Played]) -> Table:
    """Return the results of several runs as a table, a run in a column."""
    columns = []
    names: dict[str, None] = {}
    for played in played_runs:
        column = {
            "agent": ", ".join(sorted(played.agents)),
            "tasks": played_tasks(played.summary),
            **_summary_rows(played.summary),
        }
        columns.append(column)
        names |= dict.fromkeys(column)

    # A run has no value in a line that only another one has.
    rows = [(name, *(column.get(name) for column in columns)) for name in names]
    return Table("Results", ("", *(played.name for played in played_runs)), tuple(rows))


def _summary_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the lines of a summary by their names, in the order in which a page shows them."""
    rows = {}
    if models := world_models(summary):
        rows["world model"] = models
    rows |= _success_rows(summary)
    if "score" in summary:
        rows["score"] = f"{100 * summary['score']:.1f} %"
    rows |= {
        "steps in an episode": f"{summary['steps']['per_episode']:.1f}",
        "steps in all": f"{summary['steps']['all']:,}",
        "refused actions": f"{100 * summary['invalid_actions']:.1f} %",
    }
    if licenses := licenses_in_words(summary.get("data", ())):
        rows["official data, license"] = licenses
    rows |= dict(_unread(summary))
    if predictions := summary.get("predictions"):
        # Of changes first: a failing agent that repeats a refused action has nearly 1 of all steps.
        of_changes = f"{100 * predictions['nonempty']:.1f} %"
        of_all = f"{100 * predictions['delta_f1']:.1f} %"
        scores = f"{of_changes}, of all steps {of_all} (n={predictions['n']:,})"
        rows["Delta-F1 of predicted changes"] = scores
    if gate := summary.get("gate"):
        counts = f"opened at {gate['opened']:,} of {gate['reflections']:,} reflections"
        p_source = one_line(gate["p_source"], 40)
        q_source = one_line(gate["q_source"], 40)
        rows["CoMap's gate"] = f"{counts}; p: {p_source}, q: {q_source}"

    # Words that an environment adds to its steps' information: how often each came.
    for name, counts_by_word in summary.get("told", {}).items():
        n = sum(counts_by_word.values())
        shares = []
        for word, count in counts_by_word.items():
            shares.append(f"{one_line(word, 40)} {100 * count / max(n, 1):.1f} %")
        rows[one_line(name, 40).replace("_", " ")] = f"{', '.join(shares)} (n={n:,})"

    rows |= _cost_rows(summary)
    return rows


def _success_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the lines on success: in all, in the first trial, in k trials, and by type of task."""
    rows = {}
    if unknown := summary.get(UNKNOWN):
        rows["outcome unknown"] = f"{unknown:,} of {summary['n']:,} imported episodes"
    if "success" not in summary:
        return rows
    rows["success"] = str(Rate(**summary["success"]))
    if "trials" in summary:
        rows["success in the first trial"] = str(Rate(**summary["trials"]["first"]))
    for key, name in (("pass_at_k", "pass@"), ("pass_hat_k", "pass^")):
        for k, share in [*summary.get(key, {}).items()][1:]:  # with k = 1 both are the success
            rows[f"{name}{one_line(k, 10)}"] = f"{100 * share:.1f} %"
    for name, rate in summary.get("by_type", {}).items():
        rows[f"success, {one_line(name, 40) or 'other'}"] = str(Rate(**rate))
    return rows


def _cost_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the lines on calls and tokens of models, and on time."""
    rows = {}
    for key, model in (("language_model", "model"), ("world_model", "world model")):
        totals = summary[key]["all"]
        per_step = summary[key]["per_step"]
        if totals["calls"]:
            calls = f"{per_step['calls']:.2f} in a step, {totals['calls']:,} in all"
            rows[f"{model} calls"] = calls
            for name, verb in (("prompt_tokens", "read"), ("completion_tokens", "written")):
                tokens = f"{per_step[name]:,.0f} in a step, {totals[name]:,} in all"
                rows[f"{model}: tokens {verb}"] = tokens
        if counts := summary.get(CUT, {}).get(key):
            rows[f"{model}: replies cut off"] = _cut(counts, totals["calls"])

    if "seconds" in summary:
        seconds = summary["seconds"]
        seconds_per_step = ""
        if summary["steps"]["all"]:
            seconds_per_step = f"{seconds['per_step']:.3f} a step, "
        rows["seconds"] = f"{seconds_per_step}{seconds['all']:,.1f} in all"
    for name, percentiles in summary.get(LATENCY, {}).items():
        if percentiles["p99"] > 5e-5:  # there is something to see
            listed = [f"{p} {1000 * latency:,.1f}" for p, latency in percentiles.items()]
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
        model = key.replace("_", " ")
        replies = _cut(counts, summary[key]["all"]["calls"])
        lines.append(f"replies of the {model} cut off at their limit: {replies}; {advice[key]}")
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
    unread = 0
    replies = 0
    for name, counts in summary.get(UNREAD, {}).items():
        if name in _OF_ACTIONS:
            unread += int(counts["all"])
            replies += int(counts["of"])
    return unread / max(replies, 1)


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

    kinds = []
    for kind, count in errors.items():
        first = one_line(summary["first_errors"][kind], 320)
        kinds.append(f"{one_line(kind, 60)} {count} (the first: {first})")
    episodes = summary.get("episodes", summary["n"])
    return f"{sum(errors.values())} of {episodes} episodes failed: {', '.join(kinds)}"


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

    # Messages of comap's own errors say what to do; an agent's invalid action is a fault of its code.
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
    last_session = sessions[-1] if sessions else None
    versions_before = members(last_session, "versions")

    # A package that earlier sessions did not write down is no change.
    versions = {name: about["versions"].get(name) for name in versions_before}
    changed = differences(versions_before, versions, set())
    return changed and f"this run goes on with other versions than before: {one_line(changed, 400)}"
