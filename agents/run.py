"""A run: what is played, into which folder, and its summary. It can be stopped and resumed any time."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, KeysView, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np

from .. import jsonl
from ..envs import TextEnv
from ..envs.briefing import Briefing
from ..envs.datasets import data_played, licenses_in_words
from ..envs.generated import is_generated
from ..envs.registry import own_class, text_env_of
from ..envs.storage import locked
from ..errors import DataCorrupt, DownloadError, OptionError, check_number
from ..lm import LanguageModel
from ..redaction import public_options, without_secrets
from ..trajectory import Step, Trajectory, read_trajectories
from ..worldmodel import Configured, WorldModel
from ..worldmodel.language import LanguageWorldModel
from ..worldmodel.naming import words_of
from .base import Agent, Retrying, asks_world_model
from .config import AgentConfig, fitted_to
from .prompting import prompts_sha256
from .requests import EnvSlot, Keep, OnWork
from .runner import settings_of, stream_episodes
from .tally import Tally
from .unread import UnreadStreak

# How libraries report a full disk: neither raises an OSError. Safetensors is compared by name, since
# a run of agents without weights is not to import it.
_OF_WEIGHTS = ("SafetensorError", "safetensors")
_OF_TORCH = ("PytorchStreamWriter", "inline_container")  # in a RuntimeError of `torch.save`


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise errors of the disk (it is full, the folder is closed) as `OptionError`, with what to do."""
    try:
        yield
    except Exception as error:
        message = " ".join(str(error).split())
        kind = type(error)
        is_full = (kind.__name__, kind.__module__.partition(".")[0]) == _OF_WEIGHTS
        is_full |= kind is RuntimeError and any(name in message for name in _OF_TORCH)
        if not (is_full or isinstance(error, OSError)):
            raise

        why = f"{message[:200]} (is the disk full?)" if is_full else getattr(error, "strerror", "")
        raise OptionError(
            f"cannot write the run in {folder}: {why or message}; what was recorded is kept: mend that, "
            "and give the same command again to go on"
        ) from error


Item: TypeAlias = "tuple[str, int | None]"
"""A task and the seed that it is played with."""


class _Line(NamedTuple):
    """Where a trajectory is in the file, and what is known of it."""

    start: int
    end: int
    failed: bool


class Records:
    """The trajectories of a run's tasks and seeds, in a file of one line each.

    Only the positions of lines are in memory: a run's file may be larger than that.
    """

    def __init__(self, path: Path, retrying: bool = False):
        self.path = path
        self._lines: dict[Item, list[_Line]] = {}
        if path.exists():
            self._read(retrying)

    @property
    def items(self) -> KeysView[Item]:
        return self._lines.keys()

    @property
    def failed(self) -> set[Item]:
        """The tasks and seeds whose last trial ended by a fault."""
        return {item for item, lines in self._lines.items() if lines[-1].failed}

    def add(self, trials: Sequence[Trajectory]) -> None:
        """Append all trials of an item and flush them to the disk, so that a power cut spares them."""
        positions = jsonl.append(self.path, [trial.to_json() for trial in trials], sync=True)
        for trial, (start, end) in zip(trials, positions, strict=True):
            line = _Line(start, end, trial.error is not None)
            self._lines.setdefault((trial.task, trial.seed), []).append(line)

    def drop(self, items: Iterable[Item]) -> None:
        dropped = set(items)
        if dropped & set(self._lines):
            self.sort([item for item in self._lines if item not in dropped])

    def sort(self, items: Sequence[Item]) -> None:
        """Write the file anew with these items, in this order: the whole new one or not at all."""
        present = [item for item in items if item in self._lines]
        if present == list(self._lines):
            return  # it is so already: no second copy is needed, which may be large

        # Bytes are copied as they are: a record written anew might differ, and be no longer equal.
        lines: dict[Item, list[_Line]] = {}
        with self.path.open("rb") as source, jsonl.replacing_file(self.path, sync=True) as target:
            for item in present:
                for line in self._lines[item]:
                    source.seek(line.start)
                    start = target.tell()
                    target.write(source.read(line.end - line.start))
                    lines.setdefault(item, []).append(_Line(start, target.tell(), line.failed))
        self._lines = lines

    def _read(self, retrying: bool) -> None:
        """Read where every line is; where an item may lack trials, cut the last one off."""

        def item_and_failure(record: Any) -> tuple[Item, bool]:
            seed = record["seed"]
            item = (str(record["task"]), None if seed is None else int(seed))
            return item, record["error"] is not None

        last: Item | None = None
        for line in jsonl.scan(
            self.path,
            item_and_failure,
            expected="a trajectory",
            remedy="remove that line (its task is played again), or begin anew in another folder",
        ):
            last, failed = line.value
            self._lines.setdefault(last, []).append(_Line(line.start, line.end, failed))

        # A kill may have come between two trials of the last item: it is played from the first again.
        if retrying and last is not None:
            os.truncate(self.path, self._lines.pop(last)[0].start)


FORMAT = "comap run 1"
PROMPTS = "prompts"
"""The member of a run's record that has a digest of the texts its prompts were made of."""

NO_MATTER = {
    f"language_model.{name}"
    for name in ("concurrency", "timeout", "max_retries", "batch_tokens", "batch_rows", "vllm")
}  # may change when a run is gone on with: answers do not depend on them
# These follow from what stands beside them.
NO_MATTER |= {"world_model_in_words", "tasks.generated", "tasks.licenses"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Attributes:
        make_env: Makes an environment; see `stream_episodes`.
        agent: Who acts.
        tasks: The tasks' ids, each once.
        seeds: With how many seeds each task is played, from `seed` (or 0) on.
        lm: See `stream_episodes`.
        world_model: See `stream_episodes`.
        seed: See `stream_episodes`.
        keep: See `stream_episodes`.
        config: What else makes this run the run it is, as plain data.
        on_step: Called with each step that is played in this process.
        on_work: Called about each batch of language-model calls in this process; see `stream_episodes`.
        on_note: Told in words what does not stop the run, but should be known; None for a warning of
            Python's.
        note_actions: See `stream_episodes`.

    Raises:
        OptionError: A task is there twice.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> run = Run(make_env=make_env, agent=ExpertAgent(), tasks=("a", "b"))
        >>> run.describe()["tasks"]["number"]
        2
    """

    make_env: Callable[[], gymnasium.Env[str, str]]
    agent: Agent
    tasks: Sequence[str]
    seeds: int = 1
    lm: LanguageModel | None = None
    world_model: WorldModel | str | Mapping[str, Any] | None = None
    seed: int | None = None
    keep: Keep = "replies"
    config: Mapping[str, Any] = field(default_factory=dict)
    on_step: Callable[[Step], object] | None = None
    on_work: OnWork | None = None
    on_note: Callable[[str], object] | None = None
    note_actions: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.tasks, str):
            raise OptionError(f"tasks must be a list of task ids, not the text {self.tasks!r:.80}")
        if len(set(self.tasks)) != len(self.tasks):
            raise OptionError(
                "a run plays each task once, but some are listed twice; remove those, or play each with "
                "several seeds"
            )
        check_number("seeds", self.seeds)

    @property
    def items(self) -> list[Item]:
        """What is played: each task with each seed."""
        seeds: list[int | None] = [self.seed]
        if self.seeds > 1:
            first_seed = self.seed or 0
            seeds = [first_seed + number for number in range(self.seeds)]
        return list(product(self.tasks, seeds))

    def play(self, items: Sequence[Item], concurrency: int, overlap: bool = False) -> _Ended:
        """Play items of it in this process, and yield each one's number and trials as it ends."""
        return stream_episodes(
            self.make_env,
            self.agent,
            [task for task, _ in items],
            lm=self.lm,
            world_model=self.world_model,
            concurrency=concurrency,
            overlap=overlap,
            seed=[seed for _, seed in items],
            keep=self.keep,
            on_step=self.on_step,
            on_work=self.on_work,
            note_actions=self.note_actions,
        )

    def describe(self) -> dict[str, Any]:
        """Return what this run is, as plain data: runs that agree in it play the same."""
        with closing(self.make_env()) as env:
            slot = EnvSlot(env)
        layer = slot.layer
        imagined = None
        if layer is not None:
            imagined = {
                "world_model": config_of(layer.world_model),
                "horizon": layer.horizon,
                "real_every": layer.real_every,
            }

        # The model in words is the one that answers: in imagined episodes the one that imagines them.
        world_model = self.asked_world_model(is_imagined=layer is not None)
        answering = None if asks_world_model(self.agent) is False else world_model
        if layer is not None:
            answering = layer.world_model

        config = dict(self.config)
        if self.seeds > 1:  # records of one seed are as those of versions that had no `seeds`
            config["seeds"] = self.seeds
        played = data_played((slot.inner.env_id, task) for task in self.tasks)
        task_list = "".join(f"{task}\n" for task in self.tasks).encode("utf-8", "replace")
        described = {
            "config": config,
            "environment": dict(slot.fingerprint),
            "imagined": imagined,
            "tasks": {
                "number": len(self.tasks),
                "generated": sum(map(is_generated, self.tasks)),
                "licenses": licenses_in_words(played),
                "sha256": hashlib.sha256(task_list).hexdigest(),
            },
            "agent": {"name": self.agent.name, **settings_of(fitted_to(self.agent, self.lm))},
            "language_model": self.lm and {"name": self.lm.name, **self.lm.config()},
            "world_model": config_of(world_model),
            "world_model_in_words": None if answering is None else words_of(answering),
            "seed": self.seed,
            "keep": self.keep,
        }
        agent_config = getattr(self.agent, "config", None)
        if isinstance(agent_config, AgentConfig):
            described[PROMPTS] = _prompts_of(agent_config, slot.inner)

        # Through JSON, since it is compared with what an earlier session wrote: lists, not tuples.
        plain: dict[str, Any] = without_secrets(json.loads(json.dumps(described)))
        return plain

    def asked_world_model(
        self, *, is_imagined: bool = False
    ) -> WorldModel | str | Mapping[str, Any] | None:
        """Return the world model that was given, or the oracle where the agent asks and none was.

        In imagined episodes the agent asks the model that imagines them.
        """
        if self.world_model is None and asks_world_model(self.agent) and not is_imagined:
            return "oracle"
        return self.world_model


def _prompts_of(config: AgentConfig, env: TextEnv) -> dict[str, Any]:
    """Return a digest of an agent's prompts, and what nobody else can look up: an own env's words."""
    briefing_of_class = text_env_of(env.env_id).briefing
    prompts: dict[str, Any] = {"sha256": prompts_sha256(config, env.briefing, env.env_id)}
    if env.briefing != briefing_of_class and not env.briefing.variants:
        prompts["instructions"] = env.briefing.instructions
        prompts["example"] = [list(pair) for pair in env.briefing.example]
    return prompts


def recorded_briefing(folder: Path) -> Briefing | None:
    """Return the briefing that a recorded run of an environment of one's own had; else None."""
    path = folder / RUN
    prompts = read_run(path).get(PROMPTS, {}) if path.is_file() else {}
    if not isinstance(prompts.get("instructions"), str):
        return None
    example = tuple((str(role), str(text)) for role, text in prompts.get("example", ()))
    return Briefing(prompts["instructions"], example)


def config_of(model: Any) -> Any:
    """Return what a world model was made from, without the folders of this machine."""
    if isinstance(model, Mapping) and ":" in str(model.get("id")):
        model = public_options(model, own_class(model["id"]))
    if isinstance(model, str | Mapping) or model is None:
        return _without_folders(model)
    if isinstance(model, LanguageWorldModel):
        named_lm = {"name": model.lm.name, **model.lm.config()}
        return {"id": "language", "lm": named_lm, **model.options}

    config = model.config() if isinstance(model, Configured) else None
    return {"class": type(model).__name__} if config is None else _without_folders(config)


def _without_folders(config: Any) -> Any:
    """Return nested data with the mere file name of each ``path``.

    A run moved to another folder or machine is the same run, and a record is to name nobody's home.
    """
    if not isinstance(config, Mapping):
        return config

    without_folders: dict[Any, Any] = {}
    for key, member in config.items():
        without_folders[key] = Path(member).name if key == "path" else _without_folders(member)
    return without_folders


def known_sessions(path: Path, described: Mapping[str, Any]) -> list[Any]:
    """Return the record of this run's earlier sessions, none where it is new.

    Raises:
        OptionError: The run that is recorded there has other settings.
    """
    if not path.exists():
        return []

    # Runs of earlier versions have no digest of their prompts.
    recorded_run = read_run(path)
    if PROMPTS not in recorded_run:
        described = {key: member for key, member in described.items() if key != PROMPTS}

    before = _as_recorded_now({key: recorded_run.get(key) for key in described}, described)
    if changed := differences(before, described, NO_MATTER):
        raise OptionError(
            f"expected to go on with the run in {path.parent}, found other settings ({changed}); give "
            "the settings that are there, or begin anew in another folder"
        )
    sessions: list[Any] = recorded_run["sessions"]
    return sessions


def _as_recorded_now(before: dict[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier version's record as today's would be.

    Where nobody had named a world model, the oracle answered, and the record said null.
    """
    if before.get("world_model") is not None or described.get("world_model") != "oracle":
        return before
    config = before.get("config")
    if isinstance(config, Mapping) and config.get("world_model", "") is None:
        before["config"] = {**config, "world_model": "oracle"}
    before["world_model"] = "oracle"
    return before


def read_run(path: Path) -> dict[str, Any]:
    """Return the record of a run, from its `RUN` file."""
    try:
        run: dict[str, Any] = jsonl.read_json(path)
        if run["format"] != FORMAT or not isinstance(run["sessions"], list):
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected a run of comap in {path}, found something else ({error}); begin anew in "
            "another folder"
        ) from error
    return run


def differences(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    no_matter: set[str],
    places: tuple[str, str] = ("there", "now"),
) -> str:
    """Return in words what differs between two nested settings; nothing where they agree."""

    def brief(flat: Mapping[str, Any], name: str) -> str:
        return f"{flat[name]!r:.60}" if name in flat else "nothing"

    flat_before = _flat(before)
    flat_now = _flat(now)
    names = sorted({*flat_before, *flat_now} - no_matter)
    changed = _telling([name for name in names if flat_before.get(name) != flat_now.get(name)])

    parts = [
        f"{name}: {brief(flat_before, name)} {places[0]}, {brief(flat_now, name)} {places[1]}"
        for name in changed[:6]
    ]
    rest = f"; and {len(changed) - 6} more" if len(changed) > 6 else ""
    return "; ".join(parts) + rest


_NAMES = ("name", "id", "class", "kind")


def _telling(changed: Sequence[str]) -> list[str]:
    """Return which changed settings to speak of, the telling ones first.

    Another agent, model or environment has other settings, too: its name says it all. What follows from
    others, such as a checksum, comes last.
    """

    def is_name(name: str) -> bool:
        return name.rpartition(".")[2] in _NAMES

    # Of what another name explains, only the name is left.
    renamed = [f"{name.rpartition('.')[0]}." for name in changed if is_name(name)]
    unexplained = [
        name
        for name in changed
        if is_name(name) or not name.removeprefix("config.").startswith(tuple(renamed))
    ]

    def rank(name: str) -> int:
        if is_name(name):
            return 0
        follows = "sha256" in name or name.startswith(("environment.", "tasks."))
        return 2 if follows else 1

    return sorted(unexplained, key=rank)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested data with dotted names."""
    flat: dict[str, Any] = {}
    for key, member in nested.items():
        if isinstance(member, Mapping):
            flat |= _flat(member, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = member
    return flat


TRAJECTORIES = "trajectories.jsonl"
SUMMARY = "summary.json"
"""The file of a run's results, written when all tasks have ended."""
DIGESTS = "files"
"""The member of a summary that has size and SHA-256 of each file of the run, as it ended."""


def recorded(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a run's file; of a run that has ended, there must be all of them."""
    number = 0
    for number, trajectory in enumerate(read_trajectories(path), 1):  # noqa: B007
        yield trajectory
    check_count(path, number)


def check_count(path: Path, number: int) -> None:
    """Compare how many trajectories a file has with the summary beside it, if there is one."""
    summary_path = path.with_name(SUMMARY)
    if path.name != TRAJECTORIES or not summary_path.is_file():
        return

    # A summary has each number only where it differs from the one before: n tasks, their episodes
    # (several seeds), their trials (agents that retry).
    try:
        summary = jsonl.read_json(summary_path)
        expected = summary.get("episodes", summary.get("n"))
        if "trials" in summary:
            expected = summary["trials"]["all"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataCorrupt(
            f"expected the summary of a run in {summary_path}, found something else ({error}); remove "
            "it, and give the run's command again"
        ) from error
    if expected not in (number, None):
        raise DataCorrupt(
            f"expected {expected} episodes in {path}, as {SUMMARY} beside it tells, found {number}; "
            "restore the file, or give the run's command again to play what is missing"
        )


_Ended: TypeAlias = "Generator[tuple[int, list[Trajectory]], None, None]"
Play: TypeAlias = "Callable[[Run, Sequence[Item], int, bool], _Ended]"
"""Plays items of a run, so many at a time, overlapped or not (see `run_to`), and yields each one's
number and trials as it ends."""

MOST_HOPELESS = 64
"""After so many episodes in a row that failed before their first step, no more are played."""
RUN = "run.json"
TIMINGS = "timings.jsonl"
"""The file that says when each task ended, and how long each of its steps took."""
LATENCY = "latency"
"""The member of a summary that has percentiles of these."""


def run_to(
    directory: str | Path,
    run: Run,
    *,
    concurrency: int = 32,
    overlap: bool = False,
    retry_failed: bool = False,
    about: Mapping[str, Any] | None = None,
    play: Play | None = None,
    on_start: Callable[[int], object] | None = None,
    on_done: Callable[[list[Trajectory]], object] | None = None,
) -> dict[str, Any]:
    """Play tasks, record them in a folder, and return the summary that is also written there.

    Where the folder holds the beginning of the same run, what has ended is kept and the rest is
    played. A kill at any moment loses the episodes that are running then, and no more.

    Args:
        directory: The folder; made where it is missing.
        run: What is run.
        concurrency: How many episodes run at the same time; it may differ from session to session.
        overlap: See `stream_episodes`; it may differ likewise.
        retry_failed: Play the tasks again that a fault ended.
        about: What else to write down of this session: versions, hardware.
        play: Plays tasks in another way than in this process: a `comap.agents.ray.RayPool`.
        on_start: Told how many tasks had ended before.
        on_done: Told the trials of each task as it ends.

    Raises:
        OptionError: The folder is another run's, in use by another process or cannot be written, or
            an option cannot be, or `MOST_HOPELESS` episodes in a row failed at once.
        DataCorrupt: The folder's files are not what they should be.

    Example:
        >>> import tempfile, gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> tasks = make_env().unwrapped.tasks.ids[:2]
        >>> run = Run(make_env=make_env, agent=ExpertAgent(), tasks=tasks)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_to(folder, run)["success"]["value"]
        1.0
    """
    folder = Path(directory)
    with ExitStack() as stack:
        # All refusals come before the first byte is written: another run's folder stays untouched.
        lock_folder(stack, folder)
        described = run.describe()
        sessions = known_sessions(folder / RUN, described)
        refuse_foreign(folder / TRAJECTORIES, is_new=not sessions)
        with writing(folder):
            records = _open_records(folder, run, retry_failed)
        unplayed = [item for item in run.items if item not in records.items]

        # The player is made before `RUN` is written, as it may refuse its options.
        streak, watched_run = _watched(run)
        start_playing = play or Run.play
        playing = start_playing(watched_run, unplayed, concurrency, overlap)
        stack.enter_context(closing(playing))

        sessions.append({**(about or {}), "concurrency": concurrency})
        _begin_session(folder, described | {"sessions": sessions}, is_unfinished=bool(unplayed))
        if on_start is not None:
            on_start(len(run.items) - len(unplayed))

        start = time.monotonic()
        for number, trials in _until_hopeless(playing):
            with writing(folder):
                records.add(trials)
                _time(folder, len(sessions), unplayed[number], time.monotonic() - start, trials)
            if play is not None:  # elsewhere, from where `on_step` is not called
                streak.add_all(trials)
            if on_done is not None:
                on_done(trials)

        # In the order of the tasks: the file is then the same whatever ended first, and after a kill.
        with writing(folder):
            records.sort(run.items)
            return _summarize(folder, records)


def _open_records(folder: Path, run: Run, retry_failed: bool) -> Records:
    """Return what is recorded of a run; without what failed, where that is to be played again."""
    unfinished = isinstance(run.agent, Retrying) and not (folder / SUMMARY).exists()
    records = Records(folder / TRAJECTORIES, retrying=unfinished)
    if retry_failed and records.failed:
        # The summary goes first: a kill in between leaves a run that is merely unfinished.
        (folder / SUMMARY).unlink(missing_ok=True)
        records.drop(records.failed)
    return records


def _begin_session(folder: Path, record: Mapping[str, Any], *, is_unfinished: bool) -> None:
    """Write the record of a run, with the session that begins."""
    with writing(folder):
        jsonl.write_json(folder / RUN, {"format": FORMAT, **record})
        if is_unfinished:  # a summary beside such records would tell readers that they are whole
            (folder / SUMMARY).unlink(missing_ok=True)


def _time(
    folder: Path, session: int, item: Item, seconds: float, trials: Sequence[Trajectory]
) -> None:
    """Write down when a task ended, and how long its steps took.

    In a file of its own: trajectories have no times, so that the same episodes have the same bytes.
    """
    task, _ = item
    line = {
        "session": session,
        "task": task,
        "seconds": round(seconds, 3),
        "steps": _seconds_of_steps(trials),
    }
    jsonl.append(folder / TIMINGS, [line])


def _watched(run: Run) -> tuple[UnreadStreak, Run]:
    """Return what warns of a run's unread replies, and the run with an `on_step` that feeds it."""
    streak = UnreadStreak(run.agent, run.lm, run.on_note or partial(warnings.warn, stacklevel=3))

    def on_step(step: Step) -> None:
        streak.add(step)
        if run.on_step is not None:
            run.on_step(step)

    return streak, replace(run, on_step=on_step)


def _summarize(folder: Path, records: Records) -> dict[str, Any]:
    """Write the summary of a run that has ended, and return it."""
    tally = Tally.of(read_trajectories(records.path) if records.items else ())
    seconds, latency = _times(folder / TIMINGS)
    summary = tally.summary(seconds) | ({LATENCY: latency} if latency else {})
    summary[DIGESTS] = jsonl.digests_of(folder, [RUN, TRAJECTORIES])
    jsonl.write_json(folder / SUMMARY, summary)
    return summary


def refuse_foreign(trajectories: Path, *, is_new: bool) -> None:
    """Refuse a file that is a link, or, of a new run, one that has something in it already."""
    jsonl.refuse_link(trajectories)
    if is_new and trajectories.exists() and trajectories.stat().st_size:
        raise OptionError(
            f"expected a folder for a new run, found {trajectories} without a run beside it; name "
            "another folder"
        )


def _until_hopeless(playing: _Ended) -> _Ended:
    """Yield each task's trials as it ends; raise if `MOST_HOPELESS` in a row failed before a first step.

    Such a run has a fault that its tasks share, a server that is down or a wrong option: it stops
    before thousands of tasks are recorded as failed.
    """
    hopeless = 0
    for number, trials in playing:
        yield number, trials  # recorded first, so that the fault can be seen there

        last = trials[-1]
        failed_at_once = last.error is not None and not last.steps
        hopeless = hopeless + 1 if failed_at_once else 0
        if hopeless >= MOST_HOPELESS:
            raise OptionError(
                f"expected episodes that begin, found {hopeless} in a row that failed before their "
                f"first step, the last one with {last.error!s:.300}; mend that, and give the same "
                "command with --retry-failed"
            )


def lock_folder(stack: ExitStack, folder: Path) -> None:
    """Make the folder where it is missing, and hold its lock until `stack` is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"cannot make the folder {folder} for the run: {error.strerror}; give another folder"
        ) from error
    try:
        stack.enter_context(locked(folder / "lock", wait=0))
    except DownloadError as error:
        raise OptionError(f"cannot write a run into {folder}: {error}") from error


def _seconds_of_steps(trials: Iterable[Trajectory]) -> list[list[float]]:
    """Return for each step that was played how long the environment and the models took."""
    seconds: list[list[float]] = []
    for trial in trials:
        for step in trial.steps:
            if step.seconds is not None:
                seconds.append([round(part, 6) for part in step.seconds])
    return seconds


def _times(timings: Path) -> tuple[float, dict[str, Any]]:
    """Return for how long tasks were played, over all sessions, and percentiles of steps' seconds."""

    def read(record: Any) -> tuple[int, float, list[tuple[float, float]]]:
        steps = [(float(env), float(model)) for env, model in record.get("steps", ())]
        return int(record["session"]), float(record["seconds"]), steps

    # Seconds count from a session's start, so the last task's end is how long the session played.
    session_seconds: dict[int, float] = {}
    step_seconds: list[tuple[float, float]] = []
    for session, seconds, steps in jsonl.read(timings, read) if timings.exists() else ():
        session_seconds[session] = max(session_seconds.get(session, 0.0), seconds)
        step_seconds += steps

    latency: dict[str, Any] = {}
    if step_seconds:
        percentiles = np.percentile(step_seconds, (50, 90, 99), axis=0).round(6).tolist()
        for column, name in enumerate(("env", "model")):
            p50, p90, p99 = (row[column] for row in percentiles)
            latency[name] = {"p50": p50, "p90": p90, "p99": p99}
    return round(sum(session_seconds.values()), 3), latency
