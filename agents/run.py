"""A run: what is played, into which folder, and its summary. It can be stopped and resumed any time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, KeysView, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np

from .. import jsonl
from ..envs import TextEnv
from ..envs.briefing import Briefing
from ..envs.generated import is_generated
from ..envs.registry import text_env_of
from ..envs.storage import locked
from ..errors import DataCorrupt, DownloadError, OptionError, check_number
from ..lm import LanguageModel
from ..metrics import Rate, delta_f1, pass_at_k, wilson
from ..redaction import without_secrets
from ..trajectory import Step, Trajectory, read_trajectories
from ..worldmodel import Configured, WorldModel
from ..worldmodel.language import LanguageWorldModel
from ..worldmodel.naming import in_words, words_of
from .base import Agent, Retrying, asks_world_model
from .comap import GatePath
from .config import AgentConfig, fitted_to
from .prompting import prompts_sha256
from .requests import IMAGINE, EnvSlot, Keep, OnWork
from .runner import settings_of, stream_episodes
from .unread import UNREAD, UnreadReplies, UnreadStreak

_OF_WEIGHTS = ("SafetensorError", "safetensors")
_OF_TORCH = ("PytorchStreamWriter", "inline_container")  # `torch.save` tells a full disk so


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in a run's own words that it cannot be written: a full disk, a folder that is closed."""
    try:
        yield
    except Exception as error:
        said, kind = " ".join(str(error).split()), type(error)
        full = (kind.__name__, kind.__module__.partition(".")[0]) == _OF_WEIGHTS
        full |= kind is RuntimeError and any(name in said for name in _OF_TORCH)
        if not (full or isinstance(error, OSError)):
            raise
        why = f"{said[:200]} (is the disk full?)" if full else getattr(error, "strerror", "")
        raise OptionError(
            f"cannot write the run in {folder}: {why or said}; what was recorded is kept: mend that, "
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
    """The trajectories of a run's tasks and seeds, in a file of one line each."""

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
        """Append all trials of an item, and see to it that they are on the disk."""
        positions = jsonl.append(self.path, [trial.to_json() for trial in trials], sync=True)
        for trial, (start, end) in zip(trials, positions, strict=True):
            line = _Line(start, end, trial.error is not None)
            self._lines.setdefault((trial.task, trial.seed), []).append(line)

    def drop(self, items: Iterable[Item]) -> None:
        gone = set(items)
        if gone & set(self._lines):
            self.sort([item for item in self._lines if item not in gone])

    def sort(self, items: Sequence[Item]) -> None:
        """Write the file anew with these items, in this order: the whole new one or not at all."""
        kept = [item for item in items if item in self._lines]
        if kept == list(self._lines):
            return  # it is so already: no second copy is needed, which may be large
        lines: dict[Item, list[_Line]] = {}
        with self.path.open("rb") as source, jsonl.replacing_file(self.path, sync=True) as target:
            for item in kept:
                for line in self._lines[item]:
                    source.seek(line.start)
                    start = target.tell()
                    target.write(source.read(line.end - line.start))
                    lines.setdefault(item, []).append(_Line(start, target.tell(), line.failed))
        self._lines = lines

    def _read(self, retrying: bool) -> None:
        """Take note of every line; where an item may lack trials, cut the last one off."""
        last: Item | None = None
        for line in jsonl.scan(
            self.path,
            lambda record: (
                (str(record["task"]), None if record["seed"] is None else int(record["seed"])),
                record["error"] is not None,
            ),
            expected="a trajectory",
            remedy="remove that line (its task is played again), or begin anew in another folder",
        ):
            last, failed = line.value
            self._lines.setdefault(last, []).append(_Line(line.start, line.end, failed))
        if retrying and last is not None:
            os.truncate(self.path, self._lines.pop(last)[0].start)


FORMAT = "comap run 1"
PROMPTS = "prompts"
"""The member of a run's record that has a digest of the texts its prompts were made of."""

_NO_MATTER = {
    f"language_model.{name}"
    for name in ("concurrency", "timeout", "max_retries", "batch_tokens", "batch_rows")
}  # may change when a run is gone on with: answers do not depend on them
_NO_MATTER |= {"world_model_in_words", "tasks.generated"}  # follow from what stands beside them


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
        several = [(self.seed or 0) + number for number in range(self.seeds)]
        seeds = several if self.seeds > 1 else [self.seed]
        return [(task, seed) for task in self.tasks for seed in seeds]

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
        imagined, layer = None, slot.layer
        if layer is not None:
            limits = {"horizon": layer.horizon, "real_every": layer.real_every}
            imagined = {"world_model": _config_of(layer.world_model), **limits}
        asked = self.asked_world_model(is_imagined=layer is not None)
        answering = None if asks_world_model(self.agent) is False else asked
        if layer is not None:
            answering = layer.world_model
        listed = "".join(f"{task}\n" for task in self.tasks).encode("utf-8", "replace")
        described = {
            "config": {**self.config, **({"seeds": self.seeds} if self.seeds > 1 else {})},
            "environment": dict(slot.fingerprint),
            "imagined": imagined,
            "tasks": {
                "number": len(self.tasks),
                "generated": sum(map(is_generated, self.tasks)),
                "sha256": hashlib.sha256(listed).hexdigest(),
            },
            "agent": {"name": self.agent.name, **settings_of(fitted_to(self.agent, self.lm))},
            "language_model": self.lm and {"name": self.lm.name, **self.lm.config()},
            "world_model": _config_of(asked),
            "world_model_in_words": None if answering is None else words_of(answering),
            "seed": self.seed,
            "keep": self.keep,
        }
        config = getattr(self.agent, "config", None)
        if isinstance(config, AgentConfig):
            described[PROMPTS] = _prompts_of(config, slot.inner)
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
    known = text_env_of(env.env_id).briefing
    prompts: dict[str, Any] = {"sha256": prompts_sha256(config, env.briefing, env.env_id)}
    if env.briefing != known and not env.briefing.variants:
        prompts["instructions"] = env.briefing.instructions
        prompts["example"] = [list(pair) for pair in env.briefing.example]
    return prompts


def recorded_briefing(folder: Path) -> Briefing | None:
    """Return what models were told in a recorded run of an environment of one's own; else None."""
    path = folder / RUN
    prompts = read_run(path).get(PROMPTS, {}) if path.is_file() else {}
    if not isinstance(prompts.get("instructions"), str):
        return None
    example = tuple((str(role), str(text)) for role, text in prompts.get("example", ()))
    return Briefing(prompts["instructions"], example)


def _config_of(model: Any) -> Any:
    """Return what a world model was made from, without the folders of this machine."""
    if isinstance(model, str | Mapping) or model is None:
        return _without_folders(model)
    if isinstance(model, LanguageWorldModel):
        named = {"name": model.lm.name, **model.lm.config()}
        return {"id": "language", "lm": named, **model.options}
    made = model.config() if isinstance(model, Configured) else None
    return {"class": type(model).__name__} if made is None else _without_folders(made)


def _without_folders(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: Path(part).name if key == "path" else _without_folders(part)
        for key, part in value.items()
    }


def known_sessions(path: Path, described: Mapping[str, Any]) -> list[Any]:
    """Return what is known of earlier sessions of this run, none where it is new."""
    if not path.exists():
        return []
    known = read_run(path)
    # Runs of earlier versions have no digest of their prompts.
    described = {key: part for key, part in described.items() if key != PROMPTS or key in known}
    before = _as_recorded_now({key: known.get(key) for key in described}, described)
    if changed := differences(before, described, _NO_MATTER):
        raise OptionError(
            f"expected to go on with the run in {path.parent}, found other settings ({changed}); give "
            "the settings that are there, or begin anew in another folder"
        )
    sessions: list[Any] = known["sessions"]
    return sessions


def _as_recorded_now(before: dict[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier version recorded in today's words.

    The oracle that answered since nobody had named a world model was null.
    """
    if before.get("world_model") is not None or described.get("world_model") != "oracle":
        return before
    config = before.get("config")
    if isinstance(config, Mapping) and config.get("world_model", "") is None:
        before["config"] = {**config, "world_model": "oracle"}
    before["world_model"] = "oracle"
    return before


def read_run(path: Path) -> dict[str, Any]:
    try:
        known = jsonl.read_json(path)
        if known["format"] != FORMAT or not isinstance(known["sessions"], list):
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected a run of comap in {path}, found something else ({error}); begin anew in "
            "another folder"
        ) from error
    found: dict[str, Any] = known
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any], no_matter: set[str]) -> str:
    """Return in words what differs between two nested settings; nothing where they agree."""

    def brief(flat: Mapping[str, Any], name: str) -> str:
        return f"{flat[name]!r:.60}" if name in flat else "nothing"

    old, new = _flat(before), _flat(now)
    names = sorted({*old, *new} - no_matter)
    changed = _telling([name for name in names if old.get(name) != new.get(name)])
    parts = [f"{name}: {brief(old, name)} there, {brief(new, name)} now" for name in changed[:6]]
    more = f"; and {len(changed) - 6} more" if len(changed) > 6 else ""
    return "; ".join(parts) + more


_NAMES = ("name", "id", "class", "kind")


def _telling(changed: Sequence[str]) -> list[str]:
    """Return which changed settings to speak of, the telling ones first.

    Another agent, model or environment has other settings, too: its name says it all. What follows from
    others, such as a checksum, comes last.
    """

    def is_name(name: str) -> bool:
        return name.rpartition(".")[2] in _NAMES

    named = {name.rpartition(".")[0] for name in changed if is_name(name)}
    kept = [
        name
        for name in changed
        if is_name(name) or not any(name.removeprefix("config.").startswith(f"{n}.") for n in named)
    ]

    def rank(name: str) -> int:
        follows = "sha256" in name or name.startswith(("environment.", "tasks."))
        return 0 if is_name(name) else 2 if follows else 1

    return sorted(kept, key=rank)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested data with dotted names."""
    flat: dict[str, Any] = {}
    for key, part in value.items():
        if isinstance(part, Mapping):
            flat |= _flat(part, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = part
    return flat


TRAJECTORIES = "trajectories.jsonl"
SUMMARY = "summary.json"
"""The file of a run's results, written when all tasks have ended."""
DIGESTS = "files"
"""The member of a summary that has size and SHA-256 of each file of the run, as it ended."""


_SPENT = ("calls", "prompt_tokens", "completion_tokens")
CUT = "cut_replies"
"""The member of a summary that counts the replies which ended at their limit of tokens."""
ADDED = frozenset({"generated_tasks", "world_models", CUT, UNREAD})
"""The members of a summary that earlier versions did not write: `comap verify` does not miss them."""


def _kind_of(purpose: str) -> str:
    """Return what a reply was for without number and part: ``draft`` for "draft 2: retry"."""
    return re.split(r"[\d:,]", purpose, maxsplit=1)[0].strip() or "other"


@dataclass
class Tally:
    """Counts over trajectories, so that a file of any size is read once."""

    won: dict[str, dict[int | None, list[bool]]] = field(default_factory=dict)
    """Whether each trial of each task and seed succeeded."""
    scores: dict[Item, float] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    errors: dict[Item, str] = field(default_factory=dict)
    foreseen: list[tuple[float, bool]] = field(default_factory=list)
    """The Delta-F1 of what a world model had predicted of steps, and whether these changed anything."""
    trials: int = 0
    steps: int = 0
    invalid: int = 0
    imagined: int = 0
    env_info: dict[str, Counter[str]] = field(default_factory=dict)
    language_model: Counter[str] = field(default_factory=Counter)
    world_model: Counter[str] = field(default_factory=Counter)
    cut: dict[str, Counter[str]] = field(default_factory=dict)
    """Of agent and world model: how many replies ended at their limit of tokens, by what they were for."""
    world_models: set[str] = field(default_factory=set)
    """The names of the world models that were asked, or that imagined episodes."""
    gate: Counter[tuple[Any, Any, bool]] = field(default_factory=Counter)
    unread: UnreadReplies = field(default_factory=UnreadReplies)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Tally:
        tally = cls()
        for trajectory in trajectories:
            tally.add(trajectory)
        return tally

    def add(self, trajectory: Trajectory) -> None:
        """Count one trial; the trials of a task come in their order."""
        task, seed = item = trajectory.task, trajectory.seed
        self.trials += 1
        self.won.setdefault(task, {}).setdefault(seed, []).append(trajectory.success)
        self.scores[item] = trajectory.score
        self.types[task] = text_env_of(trajectory.env_id).task_type(task, trajectory.split)
        if trajectory.world_model is not None:
            self.world_models.add(trajectory.world_model)
        self.errors.pop(item, None)
        if trajectory.error is not None:
            self.errors[item] = trajectory.error
        self.steps += len(trajectory.steps)
        self.invalid += sum(step.invalid_action for step in trajectory.steps)
        self.imagined += sum(step.imagined for step in trajectory.steps)
        for before, step in trajectory.transitions():
            if step.prediction is not None and step.facts.parsed and not step.imagined:
                score = delta_f1(before, step.prediction.facts, step.facts)
                self.foreseen.append((score, bool(step.delta)))
            if step.notes.get("path") == GatePath.REFLECTED:
                get = step.notes.get
                self.gate[get("p_source"), get("q_source"), bool(get("gate"))] += 1
            self.unread.add(step)
            for name, word in step.env_info.items():
                if isinstance(word, str):
                    self.env_info.setdefault(name, Counter())[word] += 1
        for call in [c for step in trajectory.steps for c in step.calls] + [*trajectory.review]:
            spent = self.world_model if call.kind == IMAGINE else self.language_model
            amounts = 1, call.prompt_tokens, call.completion_tokens
            spent.update(dict(zip(_SPENT, amounts, strict=True)))
            if call.is_cut:
                whose = "world_model" if call.kind == IMAGINE else "language_model"
                self.cut.setdefault(whose, Counter())[_kind_of(call.purpose)] += 1

    def summary(self, seconds: float | None = None) -> dict[str, Any]:
        episodes, steps = len(self.scores), max(self.steps, 1)
        result: dict[str, Any] = {
            "n": len(self.won),
            "generated_tasks": sum(map(is_generated, self.won)),
            "world_models": {name: in_words(name) for name in sorted(self.world_models)},
            "success": asdict(self._success(-1, self.won)),
            "by_type": self._by_type(),
            "score": sum(self.scores.values()) / max(episodes, 1),
            "steps": {"all": self.steps, "per_episode": self.steps / max(self.trials, 1)},
            "invalid_actions": self.invalid / steps,
            "imagined_steps": self.imagined / steps,
        }
        for name in ("language_model", "world_model"):
            spent: Counter[str] = getattr(self, name)
            result[name] = {
                "all": {part: spent[part] for part in _SPENT},
                "per_step": {part: spent[part] / steps for part in _SPENT},
            }
        if self.cut:
            result[CUT] = {
                whose: {"all": counts.total(), "for": dict(sorted(counts.items()))}
                for whose, counts in sorted(self.cut.items())
            }
        if self.unread.read:
            result[UNREAD] = self.unread.summary()
        first_errors: dict[str, str] = {}
        counts: Counter[str] = Counter()
        for error in self.errors.values():
            kind, _, message = error.partition(": ")
            counts[kind] += 1
            first_errors.setdefault(kind, message[:500])
        result["errors"] = dict(sorted(counts.items()))
        result["first_errors"] = dict(sorted(first_errors.items()))
        if self.gate:
            opened = sum(count for key, count in self.gate.items() if key[2])
            result["gate"] = {"reflections": self.gate.total(), "opened": opened}
            for at, name in enumerate(("p_source", "q_source")):
                result["gate"][name] = ", ".join(sorted({str(key[at]) for key in self.gate}))
        if self.env_info:
            result["told"] = {
                name: dict(sorted(said.items())) for name, said in self.env_info.items()
            }
        if n := len(self.foreseen):
            changes = [score for score, changed in self.foreseen if changed]
            mean, nonempty = (
                sum(s for s, _ in self.foreseen) / n,
                sum(changes) / max(len(changes), 1),
            )
            result["predictions"] = {"n": n, "delta_f1": mean, "nonempty": nonempty}
        if episodes > len(self.won):
            result["episodes"] = episodes
            attempts = [[t[-1] for t in trials.values()] for trials in self.won.values()]
            result["pass_at_k"] = {str(k): value for k, value in pass_at_k(attempts).items()}
        if self.trials > episodes:
            first = asdict(self._success(0, self.won))
            result["trials"] = {"all": self.trials, "first": first, "last": result["success"]}
        if seconds is not None:
            result["seconds"] = {"all": seconds, "per_step": seconds / steps}
        return result

    def _by_type(self) -> dict[str, Any]:
        """Return the success of each type of task; empty where there is one, or ids do not say it."""
        types = sorted({*self.types.values()})
        return {
            name: asdict(self._success(-1, [task for task in self.won if self.types[task] == name]))
            for name in types
            if len(types) > 1
        }

    def _success(self, trial: int, tasks: Iterable[str]) -> Rate:
        """Return the success of a trial: of each task the share of its seeds, since these depend."""
        shares = [
            sum(trials[trial] for trials in self.won[task].values()) / len(self.won[task])
            for task in tasks
        ]
        return wilson(sum(shares) / max(len(shares), 1), len(shares))


def recorded(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a run's file; of a run that has ended, there must be all of them."""
    number = 0
    for number, trajectory in enumerate(read_trajectories(path), 1):  # noqa: B007
        yield trajectory
    check_count(path, number)


def check_count(path: Path, number: int) -> None:
    """Compare how many trajectories a file has with the summary beside it, if there is one."""
    beside = path.with_name(SUMMARY)
    if path.name != TRAJECTORIES or not beside.is_file():
        return
    try:
        summary = jsonl.read_json(beside)
        known = summary.get("episodes", summary.get("n"))
        wanted = summary["trials"]["all"] if "trials" in summary else known
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
        _lock(stack, folder)
        described, trajectories = run.describe(), folder / TRAJECTORIES
        sessions = known_sessions(folder / RUN, described)
        jsonl.refuse_link(trajectories)
        if not sessions:
            _refuse_foreign(trajectories)
        with writing(folder):
            records = _open_records(folder, run, retry_failed)
        rest = [item for item in run.items if item not in records.items]
        streak, watched = _watched(run)
        start_playing = play or Run.play
        playing = stack.enter_context(closing(start_playing(watched, rest, concurrency, overlap)))
        sessions.append({**(about or {}), "concurrency": concurrency})
        with writing(folder):
            jsonl.write_json(folder / RUN, {"format": FORMAT, **described, "sessions": sessions})
            if rest:
                (folder / SUMMARY).unlink(missing_ok=True)
        if on_start is not None:
            on_start(len(run.items) - len(rest))
        start, hopeless = time.monotonic(), 0
        for number, trials in playing:
            with writing(folder):
                records.add(trials)
                ended = {"session": len(sessions), "task": rest[number][0]}
                _time(folder, ended, time.monotonic() - start, trials)
            if play is not None:  # elsewhere, where steps are not told one by one
                streak.add_all(trials)
            if on_done is not None:
                on_done(trials)
            hopeless = _counted(hopeless, trials[-1])
        with writing(folder):
            records.sort(run.items)
            return _summarize(folder, records)


def _open_records(folder: Path, run: Run, retry_failed: bool) -> Records:
    """Return what is recorded of a run; without what failed, where that is to be played again."""
    unfinished = isinstance(run.agent, Retrying) and not (folder / SUMMARY).exists()
    records = Records(folder / TRAJECTORIES, retrying=unfinished)
    if retry_failed and records.failed:
        (folder / SUMMARY).unlink(missing_ok=True)
        records.drop(records.failed)
    return records


def _time(
    folder: Path, ended: Mapping[str, Any], seconds: float, trials: Sequence[Trajectory]
) -> None:
    """Write down when a task ended, and how long its steps took."""
    line = {**ended, "seconds": round(seconds, 3), "steps": _of_steps(trials)}
    jsonl.append(folder / TIMINGS, [line])


def _watched(run: Run) -> tuple[UnreadStreak, Run]:
    """Return what warns of a run's replies, and the run that tells it of each step."""
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


def _refuse_foreign(trajectories: Path) -> None:
    if trajectories.exists() and trajectories.stat().st_size:
        raise OptionError(
            f"expected a folder for a new run, found {trajectories} without a run beside it; name "
            "another folder"
        )


def _counted(hopeless: int, last: Trajectory) -> int:
    """Return how many episodes in a row failed before their first step; raise if too many."""
    hopeless = hopeless + 1 if last.error is not None and not last.steps else 0
    if hopeless >= MOST_HOPELESS:
        raise OptionError(
            f"expected episodes that begin, found {hopeless} in a row that failed before their first "
            f"step, the last one with {last.error!s:.300}; mend that, and give the same command with "
            "--retry-failed"
        )
    return hopeless


def _lock(stack: ExitStack, folder: Path) -> None:
    """Make the folder where it is missing, and see to it that nobody else writes there."""
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


def _of_steps(trials: Iterable[Trajectory]) -> list[list[float]]:
    """Return for each step that was played how long the environment and the models took."""
    took = [step.seconds for trial in trials for step in trial.steps if step.seconds is not None]
    return [[round(part, 6) for part in pair] for pair in took]


def _times(timings: Path) -> tuple[float, dict[str, Any]]:
    """Return for how long tasks were played, over all sessions, and percentiles of steps' seconds."""
    ends: dict[int, float] = {}
    took: list[tuple[float, float]] = []

    def read(record: Any) -> tuple[int, float, list[tuple[float, float]]]:
        steps = [(float(env), float(model)) for env, model in record.get("steps", ())]
        return int(record["session"]), float(record["seconds"]), steps

    for session, seconds, steps in jsonl.read(timings, read) if timings.exists() else ():
        ends[session] = max(ends.get(session, 0.0), seconds)
        took += steps
    latency = {}
    if took:
        found = np.percentile(took, (50, 90, 99), axis=0).round(6).T.tolist()
        latency = {
            name: dict(zip(("p50", "p90", "p99"), values, strict=True))
            for name, values in zip(("env", "model"), found, strict=True)
        }
    return round(sum(ends.values()), 3), latency
