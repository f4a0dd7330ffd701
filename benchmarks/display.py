"""What commands show in the terminal: tables, and how far their work is."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TypeVar

from ..agents.requests import ModelWork
from ..envs.generated import kind_in_words
from ..lm.create import hush
from ..trainers.processes import is_first
from ..trainers.results import EvaluationResult, StageResult, UpdateEvaluation, from_json
from ..trajectory import Step, Trajectory
from .tables import Table, format_cells, numeric_columns, one_line, visible
from .training_record import number

Item = TypeVar("Item")

_SECONDS = 10.0  # between two lines of progress, where standard output is no terminal
_PARTS = 10  # of a piece of work, between two such lines
_REFRESH = 0.2  # seconds between two updates of a bar
_IDLE_SECONDS = 60.0  # between two lines of progress, where no model call is under way
_BEAT = 0.5  # seconds between two looks at whether something is to be said


def open_console() -> Any:
    """Return rich's console of standard output."""
    from rich.console import Console

    return Console(file=unfiltered(sys.stdout), highlight=False)


def unfiltered(stream: Any) -> Any:
    """Return a stream to draw on: on the command line's own, control characters are shown, not sent."""
    return getattr(stream, "unfiltered", stream)


def _bars(console: Any, **options: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), Elapsed(), Remaining())
    return Progress(*columns, console=console, **options)


def print_table(table: Table) -> None:
    """Print a table on standard output, with numbers aligned to the right."""
    console = open_console()
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    # As `Text`, what comes from a file is no markup of rich's: "[red]" stays as it is.
    grid = Grid(
        title=Text(one_line(table.title)) if table.title else None,
        caption=Text(visible(table.note)) if table.note else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )
    for name, numeric in zip(table.columns, numeric_columns(table), strict=True):
        grid.add_column(Text(visible(name)), justify="right" if numeric else "left")
    for cells in format_cells(table):
        grid.add_row(*(Text(visible(cell)) for cell in cells))
    print_grid(console, grid)


def print_grid(console: Any, grid: Any) -> None:
    """Print a table of rich; nothing is wrapped where standard output is a file or a pipe."""
    if not console.is_terminal:
        measurement = console.measure(grid, options=console.options.update(max_width=10_000))
        console.width = max(80, measurement.maximum)
    console.print(grid)


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how far a piece of work is; call what is returned after each part of it."""
    with _bars(open_console()) as bars:
        bar = bars.add_task(one_line(description, limit=40), total=total)
        yield lambda: bars.advance(bar)


def tracked(items: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield items, and show how many of them have been worked on."""
    with progress(description, len(items)) as advance:
        for item in items:
            yield item
            advance()


class Display:
    """Progress as bars on a terminal, else as a line now and then; without a console, nothing.

    Between two pieces of news a model may work for minutes: `beat`, which a thread calls (see
    `beating`), says then how many of its calls are answered, and how fast.
    """

    def __init__(self, console: Any = None, bars: Any = None):
        self.console = console
        self.bars = bars
        self.label = ""
        self._bar: Any = None
        self._shown_at = time.monotonic()
        self._shown_part = 0
        self._progress = ""  # of the present piece of work, in words
        self._work = ModelWork()
        self._work_began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line, above the bars where there are some."""
        if self.console is not None:
            self._shown_at = time.monotonic()
            self.console.print(one_line(text, 400), markup=False, soft_wrap=True)

    def work(self, work: ModelWork) -> None:
        """Note what language models were asked and have answered, in the present piece of work."""
        # A smaller count than before is another one that has begun, and so has its time.
        if not self._work.asked or work.asked < self._work.asked:
            self._work_began = time.monotonic()
        self._work = work

    def beat(self) -> None:
        """Show that the work goes on, where nothing was said for a while."""
        if not self.label:
            return

        silent_seconds = time.monotonic() - self._shown_at
        is_model_at_work = self._work.asked > self._work.answered
        if self._bar is not None:
            # rich moves a bar's clock by itself: only the models' counts are news.
            if is_model_at_work:
                self.bars.update(self._bar, description=f"{self.label}: {self._now()}")
        elif is_model_at_work and silent_seconds >= _SECONDS:
            self.say(f"{self.label}: {self._now()}")
        elif silent_seconds >= _IDLE_SECONDS:
            self.say(f"{self.label}: {_joined(self._progress, 'still at work')}")

    def _now(self) -> str:
        """Return how far the present piece of work is, and what the models do for it."""
        return _joined(self._progress, self._work_text())

    def _work_text(self) -> str:
        """Return what the models have answered, and how fast; empty where none was asked."""
        work = self._work
        if not work.asked:
            return ""
        speed = work.tokens / max(time.monotonic() - self._work_began, 1e-3)
        waiting = work.asked - work.answered
        calls = f"{work.answered:,} model calls"
        if waiting:
            calls += f" ({waiting:,} under way)"
        return f"{calls}, {work.tokens:,} tokens ({speed:,.0f} a second)"

    def begin(self, label: str) -> None:
        """Begin a piece of work, unless it has begun; the one before has ended."""
        if label == self.label:
            return
        self.end()
        self.label = label
        self._shown_part = 0
        self._shown_at = time.monotonic()
        self._progress = ""
        self._work = ModelWork()
        if self.bars is not None:
            self._bar = self.bars.add_task(label, total=None)

    def move(self, done: int, total: int, text: str) -> None:
        """Show how far the present piece of work is."""
        self._progress = text if self._bar is not None else f"{done} of {total} {text}"
        if self._bar is not None:
            description = f"{self.label}: {text}"
            self.bars.update(self._bar, completed=done, total=total, description=description)
            return

        # A log file gets a line for each tenth, fewer if that is often; the end has a line of its own.
        part = done * _PARTS // max(total, 1)
        silent_seconds = time.monotonic() - self._shown_at
        if part != self._shown_part and silent_seconds >= _SECONDS and done < total:
            self._shown_part = part
            self.say(f"{self.label}: {self._now()}")

    def end(self) -> None:
        """Take the bar of the present piece of work away."""
        if self._bar is not None:
            self.bars.remove_task(self._bar)
        self._bar = None
        self.label = ""


def _joined(*texts: str) -> str:
    """Return the texts that say something, with commas between them."""
    return ", ".join(filter(None, texts))


class RunDisplay(Display):
    """How many tasks of a run have ended, how many steps were played, and how often agents succeeded."""

    def __init__(self, total: int, console: Any = None, bars: Any = None):
        super().__init__(console, bars)
        self._total = total
        self._done_before = 0
        self._played = 0
        self._successes = 0
        self._failed = 0
        self._steps = 0  # as they are played
        self._steps_of_ended = 0  # of the episodes that have ended
        self._began = self._shown_at

    def show(self, event: Mapping[str, Any]) -> None:
        """Show an event of a run."""
        if event["event"] == "known":
            self.start(event["result"]["updates"])
        elif event["event"] == "played":
            self.advance(event["trials"])

    def start(self, done: int) -> None:
        """Show how many tasks had ended before."""
        self._done_before = done
        if done:
            self.say(f"{done} of {self._total} tasks had ended before")
        self.begin("Playing")
        self._began = time.monotonic()

    def step(self, _: Step) -> None:
        """Count a step of an episode under way."""
        self._steps += 1
        self._show()

    def advance(self, trials: Sequence[Trajectory]) -> None:
        """Count a task that has ended; of several trials the last one counts."""
        self._played += 1
        self._successes += trials[-1].success
        self._failed += trials[-1].error is not None
        self._steps_of_ended += sum(len(trial.steps) for trial in trials)

        # The last line is printed, as bars are taken away.
        if self._done_before + self._played == self._total:
            self.say(f"{self._total} of {self._total} {self._text()}")
        else:
            self._show()

    def _show(self) -> None:
        """Show the counts, unless that was a moment ago."""
        now = time.monotonic()
        pause = _SECONDS if self._bar is None else _REFRESH
        if now - self._shown_at < pause:
            return

        self._shown_at = now
        if self._bar is None:
            self.say(f"{self.label}: {self._now()}")
        else:
            self.move(self._done_before + self._played, self._total, self._now())

    def _now(self) -> str:
        text = self._text()
        if self._bar is None:  # which counts the tasks itself
            text = f"{self._done_before + self._played} of {self._total} {text}"
        return _joined(text, self._work_text())

    def _text(self) -> str:
        """Return success, steps and faults so far, in words."""
        text = "tasks"
        if self._played:
            text += f", success {100 * self._successes / self._played:.1f} %"
            if self._done_before:  # the success of the others is not known here
                text += f" of {self._played} played now"

        # Ray's workers report no step before a task's end.
        steps = max(self._steps, self._steps_of_ended)
        speed = steps / max(time.monotonic() - self._began, 1e-3)
        decimals = 0 if speed >= 10 else 1
        text += f", {steps:,} steps ({speed:,.{decimals}f} a second)"
        if self._failed:
            text += f", {self._failed} failed"
        return text


@contextmanager
def run_progress(total: int) -> Iterator[RunDisplay]:
    """Show how far a run is and how well it goes."""
    console = open_console()
    bars = _bars(console, transient=True) if console.is_terminal else None
    display = RunDisplay(total, console, bars)
    with bars or nullcontext(), beating(display):
        yield display


@contextmanager
def work_progress() -> Iterator[Display]:
    """Show how far one piece of work after another is."""
    console = open_console()
    bars = _bars(console, transient=True) if console.is_terminal else None
    display = Display(console, bars)
    with bars or nullcontext(), beating(display):
        yield display


@contextmanager
def beating(display: Display) -> Iterator[None]:
    """Let a display beat while something else is done."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(_BEAT):
            display.beat()

    thread = threading.Thread(target=beat, name="comap-display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what libraries print and warn of; errors still come through.

    Example:
        >>> with quiet():
        ...     print("a library's notice")
    """
    import logging

    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("accelerate", "datasets", "torch", "trl"):
            logging.getLogger(name).setLevel(logging.ERROR)
        hush()
        with redirect_stdout(nowhere):
            yield


@contextmanager
def training_progress() -> Iterator[TrainingDisplay]:
    """Show what a training does; of several processes only the first shows anything."""
    console = open_console() if is_first() else None
    bars = None
    if console is not None and console.is_terminal:
        # `quiet` takes standard output: what rich redirected would come through.
        bars = _bars(console, transient=True, redirect_stdout=False)
    display = TrainingDisplay(console, bars)
    with quiet(), bars or nullcontext(), beating(display):
        yield display


class TrainingDisplay(Display):
    """What a training does: a line for each stage or update, and how far the present one is."""

    _updates: Any = None

    def show(self, event: Mapping[str, Any]) -> None:
        """Show an event of a training (see `comap.trainers.comap.coevolution`)."""
        kind = event["event"]
        if kind in ("stage", "known"):
            label = f"[{event['number']}/{event['of']}] {event['stage']}"
            if kind == "stage":
                self.begin(label)
            else:
                self.say(f"{label}: done before")
        elif kind == "done":
            label = self.label
            self.end()
            self.say(f"{label}: {stage_line(event['result'])}")
        elif kind == "conditions":
            self.say("entry conditions (docs/evidence.md):")
            for condition in event["of"].values():
                self.say(condition["line"])
        elif kind == "calls":
            if "update" in event:
                self.begin(f"update {event['update']}")
            self.work(ModelWork(*(event[name] for name in ModelWork._fields)))
        elif kind == "evaluation":
            self.begin(f"evaluation after update {event['update']}, {event['split']}")
        elif kind == "evaluated":
            self.end()
            self.say(_evaluation_line(event))
        elif kind == "update" and "update" in event:
            self.end()
            self._show_update(event)
        elif kind == "update":
            self.move(event["step"], event["steps"], f"updates, loss {event['loss']:.3f}")
        else:
            self._show_part(kind, event)

    def _show_part(self, kind: str, event: Mapping[str, Any]) -> None:
        """Show how far the present stage or update is."""
        if kind == "engine":
            self.say(f"engine: {event['name']} ({event['why']})")
            return
        if kind == "demonstration":
            self.begin(self.label or "demonstrations")
            text = f"{event['won']} succeeded"
        elif kind in ("warmup", "simulator"):
            self.begin("warm-up" if kind == "warmup" else "simulator")
            text = f"tokens, loss {event['loss']:.3f}"
        elif kind == "episode":
            if "update" in event:
                self.begin(f"update {event['update']}")
            text = f"episodes, success {100 * event['won'] / max(event['done'], 1):.1f} %"
        else:
            text = {"task": "tasks", "suffix": "branches played out"}[kind]
        self.move(event["done"], event["of"], text)

    def _show_update(self, event: Mapping[str, Any]) -> None:
        measures = _update_measures(event)
        if self.bars is None:
            label = f"update {event['update']} of {event['of']}"
            self.say(f"{label}: {measures}" if measures else label)
            return

        # One bar counts the updates, below it another the present update's episodes.
        if self._updates is None:
            self._updates = self.bars.add_task("updates", total=event["of"])
        position = {"completed": event["update"], "total": event["of"]}
        self.bars.update(self._updates, description=measures or "updates", **position)


_STAGES = (
    "{updates} updates of {role}{loss}",
    "{labels} labels from {branches} branches",
    "drafts in {states} states of {episodes} episodes",
    "{percent:.1f} % of {episodes} episodes succeeded",
    "{alternatives} alternatives in {states} states",
    "{entries} entries",
    "{steps} steps: {depths}",
    "{tasks} tasks",
    "{transitions} transitions",
)
"""What a line says of a stage: the first of these whose numbers are known."""


def stage_line(measures: Mapping[str, Any]) -> str:
    """Return what a stage came to, in a line."""
    result = from_json(StageResult, measures)
    parts = []
    for split, evaluated in result.evaluation.splits.items():
        if evaluated.success is not None:
            success = f"{100 * evaluated.success:.1f} % of {evaluated.episodes} succeeded"
            parts.append(f"{split} {success}{_on(evaluated)}")
    if not parts:
        parts += _stage_numbers(result, measures)
    if result.seconds is not None:
        parts.append(f"{result.seconds:,.1f} s")
    return ", ".join(parts)


def _stage_numbers(result: StageResult, measures: Mapping[str, Any]) -> list[str]:
    """Return the first of `_STAGES` whose numbers a stage has; nothing where it has those of none."""
    numbers = {**result.labeling.counts, **measures}
    if result.played.success is not None:
        numbers["percent"] = 100 * result.played.success
    if "k" in measures:  # of ITP's own
        numbers["depths"] = ", ".join(f"{count} of K={k}" for k, count in measures["k"].items())

    losses = [line["loss"] for line in result.fit.log if "loss" in line]
    numbers["loss"] = f", loss {losses[-1]:.3f}" if losses else ""
    for template in _STAGES:
        with suppress(KeyError):  # of a number that this stage has not
            return [template.format_map(numbers)]
    return []


def _on(result: EvaluationResult | UpdateEvaluation) -> str:
    """Return that these are generated tasks, if they are."""
    kind = kind_in_words(result.tasks, result.generated_tasks)
    return f" ({kind})" if kind else ""


# Where two of them have the same label, the last one that an update has counts.
_MEASURES = {
    "success": "success",
    "return": "return",
    "loss": "loss",
    "policy_loss": "loss",
    "wm_loss": "observation loss",
}


def _update_measures(event: Mapping[str, Any]) -> str:
    """Return what an update measured in a few words; empty where it has nothing of that."""
    measures = {label: number(event, name) for name, label in _MEASURES.items() if name in event}
    texts = []
    for label, measure in measures.items():
        if measure is not None:
            is_share = label == "success"
            texts.append(f"{label} {100 * measure:.1f} %" if is_share else f"{label} {measure:.3f}")
    return ", ".join(texts)


def _evaluation_line(event: Mapping[str, Any]) -> str:
    result = from_json(UpdateEvaluation, event)
    score = result.score
    line = f"evaluation after update {result.update}: {result.split} {result.rate}{_on(result)}"
    return line if score is None else f"{line}, score {score:.3f}"
