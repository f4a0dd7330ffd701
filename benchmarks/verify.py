"""`comap verify`: recorded episodes are played again, and recorded numbers computed again."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium

from .. import __version__
from ..agents.run import ADDED, DIGESTS, LATENCY, RUN, SUMMARY, TRAJECTORIES, Tally
from ..agents.run import FORMAT as RUN_FORMAT
from ..envs import TextEnv
from ..envs.generated import is_generated
from ..envs.registry import env_class, not_ours
from ..errors import CoMapError, DataCorrupt, DataNotFound, OptionError, TaskNotFound
from ..facts import Delta, State, diff
from ..jsonl import read_json, wrong_file
from ..trainers.run_folder import FORMAT as TRAINING_FORMAT
from ..trajectory import ENV_INFO, Step, Trajectory
from .record import circumstances
from .tables import Table, one_line
from .training_record import get, members, number

AGREES, DIFFERS, OTHER, NOT_CHECKED = "agrees", "differs", "other version", "not checked"
"""What is said of an episode; `OTHER` is a difference in what other versions or data recorded."""

_FORMAT = "comap verification 1"
_PACKAGES = ("gymnasium", "numpy", "scienceworld", "textworld")
_MOST_REASONS = 8


@dataclass(eq=False)
class Difference(Exception):
    """Where a record is not what the environment says."""

    step: int
    field: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of checking an episode."""

    status: str
    steps: int = 0
    imagined: int = 0
    recalled: int = 0
    difference: Difference | None = None
    reason: str = ""


def _compare(step: int, name: str, expected: Any, found: Any) -> None:
    """Raise at the first part in which two values differ: beliefs, changes, or JSON data."""
    if isinstance(expected, State) and isinstance(found, State):
        _compare(step, f"{name} (whether the text was understood)", expected.parsed, found.parsed)
        _compare(step, name, expected.facts, found.facts)
    elif isinstance(expected, Delta) and isinstance(found, Delta):
        _compare(step, f"{name}: added", expected.added, found.added)
        _compare(step, f"{name}: removed", expected.removed, found.removed)
    elif isinstance(expected, frozenset) and isinstance(found, frozenset):
        if expected != found:
            raise Difference(step, name, _facts(expected - found), _facts(found - expected))
    elif isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found}, key=str):
            if key not in expected or key not in found:
                sides = (repr(one[key]) if key in one else "nothing" for one in (expected, found))
                raise Difference(step, f"{name}.{key}", *sides)
            _compare(step, f"{name}.{key}", expected[key], found[key])
    else:
        with suppress(TypeError, ValueError):  # what JSON does not have
            if json.dumps(expected, sort_keys=True) == json.dumps(found, sort_keys=True):
                return
        if type(expected) is not type(found) or expected != found:
            raise Difference(step, name, *_shown_apart(expected, found))


def _facts(facts: frozenset[Any]) -> str:
    shown = "; ".join(" ".join(map(str, fact)) for fact in sorted(facts, key=repr)[:3])
    more = f" and {len(facts) - 3} more" if len(facts) > 3 else ""
    return f"{shown}{more}" if facts else "no such fact"


def _shown_apart(expected: object, found: object) -> tuple[str, str]:
    """Return two values in words; of long texts the part where they begin to differ."""
    if not (isinstance(expected, str) and isinstance(found, str)):
        return _shown(expected), _shown(found)
    pairs = enumerate(zip(expected, found, strict=False))
    at = next((n for n, (one, other) in pairs if one != other), min(len(expected), len(found)))
    start = max(at - 60, 0) if max(len(expected), len(found)) > 200 else 0
    dots = "..." if start else ""
    return dots + repr(expected[start : start + 200]), dots + repr(found[start : start + 200])


def _shown(value: object) -> str:
    return f"{value!r:.2000}"


def check_episode(
    env: gymnasium.Env[str, str], trajectory: Trajectory, horizon: int | None = None
) -> Verdict:
    """Take the actions of a recorded episode again, and compare everything that follows."""
    try:
        if trajectory.error is not None and not trajectory.goal and not trajectory.steps:
            return Verdict(NOT_CHECKED, reason=f"it failed at its start: {trajectory.error}")
        return _Replay(env, trajectory, horizon).verdict()
    except Difference as difference:
        return Verdict(DIFFERS, difference=difference)
    except TaskNotFound as error:
        found = Difference(0, "task", "one that is there", f"{trajectory.task!r:.200}: {error}")
        return Verdict(DIFFERS, difference=found)


_REAL_FIELDS = "observation reward score success terminated invalid_action imagined facts"


class _Replay:
    def __init__(self, env: gymnasium.Env[str, str], trajectory: Trajectory, horizon: int | None):
        inner = env.unwrapped
        assert isinstance(inner, TextEnv)
        self.env, self.inner, self.record, self.horizon = env, inner, trajectory, horizon
        self.before = trajectory.facts
        self.pending: list[str] = []  # imagined actions that the environment has not seen
        self.recalled: frozenset[int] = frozenset()
        self.has_env_info = any(step.env_info for step in trajectory.steps)  # old records have none
        self.ended_at = self.checked = self.imagined = 0

    def verdict(self) -> Verdict:
        difference: Difference | None = None
        reason = ""
        self.recalled = self.inner.recall(self.record.steps)
        try:
            self._reset()
            for number, step in enumerate(self.record.steps, 1):
                reason = self._step(number, step)
                if reason:
                    break
                self.before = step.facts
                self.checked += 1
                self.imagined += step.imagined is True
        except Difference as found:
            difference = found
        finally:
            self.inner.recall(())
        status = DIFFERS if difference else NOT_CHECKED if reason else AGREES
        recalled = sum(t <= self.checked for t in self.recalled)
        return Verdict(status, self.checked, self.imagined, recalled, difference, reason)

    def _reset(self) -> None:
        record = self.record
        observation, info = self.env.reset(seed=record.seed, options={"task": record.task})
        _compare(0, "split", info["split"], record.split)
        _compare(0, "goal", info["goal"], record.goal)
        _compare(0, "observation", observation, record.observation)
        _compare(0, "facts", info["facts"], record.facts)

    def _step(self, number: int, step: Step) -> str:
        """Check a step; return why it cannot be checked, if that is so."""
        _compare(number, "step", number, step.t)
        if self.ended_at:
            expected = f"none: the episode ended at {self.ended_at}"
            raise Difference(number, "step", expected, step.action)
        last = number == len(self.record.steps)
        fault = self.record.error is not None and last and step.observation == ""
        if step.imagined:
            self._check_imagined(number, step, fault and step.truncated is True)
        elif reason := self._check_real(number, step, fault):
            return reason
        _compare(number, "change", diff(self.before, step.facts), step.delta)
        self.ended_at = number if step.terminated or step.truncated else 0
        if step.prediction is not None:
            self._check_prediction(number, step)
        return ""

    def _check_real(self, number: int, step: Step, fault: bool) -> str:
        for pending in self.pending:
            _, _, terminated, truncated, _ = self.env.step(pending)
            if terminated or truncated:
                break
        self.pending = []
        answer = self.env.step(step.action)
        info = answer[4]
        if fault and "error" not in info:
            return f"its last step failed then, and does not now: {self.record.error}"
        real = Step.of(step.action, answer)
        for name in _REAL_FIELDS.split():
            _compare(number, name, getattr(real, name), getattr(step, name))
        cut = self.horizon is not None and self.record.imagined and number >= self.horizon
        truncated = real.truncated or (cut and not real.terminated)
        _compare(number, "truncated", truncated, step.truncated)
        if number not in self.recalled and self.has_env_info:
            told = {
                name: info[name]
                for name in self.inner.info_kept
                if name in info and info[name] != self.inner.info_extras[name]
            }
            as_read = json.loads(json.dumps(told, default=str))
            _compare(number, ENV_INFO, as_read, dict(step.env_info))
        return ""

    def _check_imagined(self, number: int, step: Step, fault: bool) -> None:
        self.pending.append(step.action)
        facts = self.before
        if not fault:
            facts = self.inner.canonicalizer.update(facts, step.action, step.observation)
            if self.horizon is not None:
                cut = number >= self.horizon and not step.terminated
                _compare(number, "truncated", cut, step.truncated)
        _compare(number, "facts", facts, step.facts)

    def _check_prediction(self, number: int, step: Step) -> None:
        said = step.prediction
        assert said is not None
        if not isinstance(said.observation, str):
            raise Difference(number, "prediction", "text", _shown(said.observation))
        drafts = (step.notes.get(name) for name in ("draft_action", "draft"))
        actions = [step.action, *(draft for draft in drafts if isinstance(draft, str))]
        update = self.inner.canonicalizer.update
        read = [update(self.before, action, said.observation) for action in actions]
        if said.facts not in read:
            _compare(number, "prediction", read[0], said.facts)
        _compare(number, "prediction's change", diff(self.before, said.facts), said.delta)


class _Environments:
    """Makes the environments in which records are replayed, one at a time."""

    def __init__(self, data: Mapping[str, str], options: Mapping[str, Any]):
        self._data, self._options = data, options
        self._key: object = None
        self._env: gymnasium.Env[str, str] | None = None

    def get(
        self, env_id: str, options: Mapping[str, Any], split: str | None, generated: bool
    ) -> gymnasium.Env[str, str]:
        made = _known_class(env_id)
        chosen = made.offline(options) | ({} if split is None else {"split": split})
        data = self._data.get(env_id, self._data.get(""))
        if generated:
            chosen = dict(made.generated_options) | chosen
        elif data is not None:
            chosen["data_dir"] = data
        chosen |= self._options
        key = json.dumps([env_id, chosen], sort_keys=True, default=repr)
        if self._env is None or key != self._key:
            self.close()
            try:
                env: gymnasium.Env[str, str] = gymnasium.make(env_id.rpartition(":")[2], **chosen)
            except (TypeError, gymnasium.error.Error) as error:
                raise OptionError(f"the recorded options do not fit {env_id}: {error}") from None
            self._env, self._key = env, key
        return self._env

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None


def _known_class(env_id: str) -> type[TextEnv]:
    try:  # a record names the module of an environment, but does not decide what is imported
        return env_class(str(env_id).rpartition(":")[2])
    except gymnasium.error.Error:
        raise DataNotFound(
            f"there is no environment {env_id!r:.80} here; import what registers it (on the command line: "
            f"--env {env_id if ':' in env_id else 'MODULE:ID'})"
        ) from None


def _guessed_options(trajectory: Trajectory) -> dict[str, Any]:
    """Return options as a trajectory's fingerprint and end show them, where nobody wrote them down."""
    made, steps = _known_class(trajectory.env_id), trajectory.steps
    limit = len(steps) if steps and steps[-1].truncated else 10**6
    found: dict[str, Any] = {"max_episode_steps": limit}
    for name, parameter in inspect.signature(made.__init__).parameters.items():
        if name not in trajectory.fingerprint or name in (*made.local_options, "split"):
            continue
        text, default = str(trajectory.fingerprint[name]), parameter.default
        with suppress(KeyError, ValueError):  # a setting of another form says nothing
            if isinstance(default, bool):
                found[name] = {"true": True, "false": False}[text]
            elif isinstance(default, int | float | str):
                found[name] = type(default)(text)
    return found


def _find_files(results: Path) -> list[Path]:
    if results.is_file():
        return [results]
    if not results.is_dir():
        raise DataNotFound(f"expected results at {results}, found nothing there; name a run")
    found = sorted(path for path in results.rglob(TRAJECTORIES) if path.is_file())
    if not found:
        raise DataNotFound(
            f"expected {TRAJECTORIES} in {results} or below, found none; name a folder of comap run or "
            "comap train, or a file of trajectories"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What lies beside a file of trajectories."""

    run: Mapping[str, Any]
    summary: Mapping[str, Any]
    env_id: str | None
    options: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: Path, results: Path) -> _Recorded:
        run, summary = _read_json(path.parent / RUN), _read_json(path.parent / SUMMARY)
        if run and run.get("format") != RUN_FORMAT:
            raise DataCorrupt(
                f"expected a run of comap in {path.parent / RUN}, found another format"
            )
        config = members(run, "config")
        env_id, options = get(config, "env"), members(config, "env_options")
        for folder in path.parent.parents if run and env_id is None else ():
            training = _read_json(folder / RUN)
            if training.get("format") == TRAINING_FORMAT:
                env = members(training, "described", "env")
                env_id, options = get(env, "id"), members(env, "options")
            if env_id is not None or folder == results:
                break
        known = isinstance(env_id, str)
        return cls(run, summary, env_id if known else None, options if known else None)

    @property
    def data(self) -> str:
        """The name of the folder of data that was last played on; empty if there was none."""
        sessions = get(self.run, "sessions")
        folder = get(sessions[-1], "data_dir") if isinstance(sessions, list) and sessions else ""
        return Path(folder).name if isinstance(folder, str) else ""


def _read_json(path: Path) -> Mapping[str, Any]:
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, Mapping):
        raise DataCorrupt(f"expected an object of JSON in {path}, found something else")
    return found


def verify(
    results: str | Path,
    *,
    sample: int = 20,
    seed: int = 0,
    data: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Play a sample of recorded episodes again, compute the recorded numbers again, and compare."""
    folder = Path(results)
    paths = _find_files(folder)
    lengths = [sum(1 for _ in _lines(path)) for path in paths]
    total = sum(lengths)
    chosen = set(range(total))
    if 0 < sample < total:  # 0 stands for all
        chosen = set(random.Random(seed).sample(range(total), sample))
    files: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    before = 0
    with closing(_Environments(data or {}, options or {})) as environments:
        for path, length in zip(paths, lengths, strict=True):
            name = path.relative_to(folder).as_posix() if folder.is_dir() else path.name
            wanted = {at - before for at in range(before, before + length) if at in chosen}
            check = _File(path, folder, name, environments)
            files.append(check.run(wanted))
            episodes += check.episodes
            before += length
    said = [entry["status"] for entry in episodes]
    statuses = [*said, *(file["status"] for file in files)]
    return {
        "format": _FORMAT,
        **circumstances(_PACKAGES),
        "results": folder.resolve().name,
        **{"sample": sample, "seed": seed, "recorded": total},
        "agree": bool(said) and all(status == AGREES for status in statuses),
        "differ": any(status in (DIFFERS, OTHER) for status in statuses),
        "counts": {status: said.count(status) for status in sorted(set(said))},
        "steps": sum(entry["steps"] for entry in episodes),
        "files": files,
        "episodes": episodes,
    }


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


_TRIALS = (("trials", "all"), ("episodes",), ("n",))
"""Where a summary says how many trials there are: where tasks were tried again, had several seeds, else."""


@dataclass
class _File:
    path: Path
    results: Path
    name: str
    environments: _Environments
    episodes: list[dict[str, Any]] = field(default_factory=list)

    def run(self, wanted: set[int]) -> dict[str, Any]:
        tally, tasks = Tally(), dict[str, None]()
        difference: Difference | None = None
        status, reason, version = DIFFERS, "", ""
        try:
            record = _Recorded.read(self.path, self.results)
            for number, line in enumerate(_lines(self.path)):
                try:
                    trajectory = _parsed(line)
                    tally.add(trajectory)
                except DataCorrupt as error:
                    wrong = Difference(0, f"line {number + 1}", "a trajectory", str(error))
                    difference = difference or wrong
                    if number in wanted:
                        self._add(number, None, Verdict(DIFFERS, difference=wrong), "")
                    continue
                tasks[trajectory.task] = None
                version = version or str(trajectory.fingerprint.get("comap", ""))
                if number in wanted:
                    self._add(number, trajectory, *self._check(record, trajectory))
            if difference is None and record.summary:
                self._check_numbers(record, tally, list(tasks))
                status = AGREES
            elif difference is None:
                status, reason = NOT_CHECKED, "no summary.json is beside it"
                reason += ": it did not end" if record.run else ""
        except DataCorrupt as error:
            difference = Difference(0, "files", "readable", str(error))
        except Difference as found:
            difference = found
        if status == DIFFERS and version not in ("", __version__):
            status, reason = OTHER, f"comap {version} there, {__version__} here"
        return {
            "file": self.name,
            "status": status,
            "trajectories": tally.trials,
            "difference": difference and asdict(difference),
            "reason": reason,
        }

    def _check_numbers(self, record: _Recorded, tally: Tally, tasks: list[str]) -> None:
        """Compare summary, list of tasks and SHA-256 of a run with its files."""
        counts = (number(record.summary, *keys) for keys in _TRIALS)
        trials = next((count for count in counts if count is not None), None)
        if trials is not None and trials != tally.trials:
            expected = f"{trials:.0f}, as {SUMMARY} beside it says"
            found = f"{tally.trials}: lines were removed or added since the run ended"
            raise Difference(0, "number of episodes", expected, found)
        numbers = {
            key: value for key, value in record.summary.items() if key not in (DIGESTS, LATENCY)
        }
        again = tally.summary(number(numbers, "seconds", "all"))
        again = {key: value for key, value in again.items() if key in numbers or key not in ADDED}
        _compare(0, "summary", json.loads(json.dumps(again)), numbers)
        if planned := members(record.run, "tasks"):
            listed = "".join(f"{task}\n" for task in tasks).encode("utf-8", "replace")
            listed_tasks: dict[str, Any] = {
                "number": len(tasks),
                "generated": sum(map(is_generated, tasks)),
                "sha256": hashlib.sha256(listed).hexdigest(),
            }
            if "generated" not in planned:  # as earlier versions wrote it
                del listed_tasks["generated"]
            _compare(0, "tasks", planned, listed_tasks)
        if wrong := wrong_file(self.path.parent, record.summary.get(DIGESTS, {})):
            raise Difference(0, "files", f"as {SUMMARY} has them", wrong)

    def _add(
        self, number: int, trajectory: Trajectory | None, verdict: Verdict, other: str
    ) -> None:
        self.episodes.append(
            {
                "file": self.name,
                "line": number + 1,
                "task": None if trajectory is None else str(trajectory.task),
                "trial": 1 if trajectory is None else trajectory.trial,
                **asdict(verdict),
                "status": OTHER if verdict.status == DIFFERS and other else verdict.status,
                "other": other,
            }
        )

    def _check(self, record: _Recorded, trajectory: Trajectory) -> tuple[Verdict, str]:
        """Return what comes of replaying an episode, and what is of another version here."""
        other = ""
        try:
            env_id = trajectory.env_id if record.env_id is None else record.env_id
            options = record.options
            if options is None:
                options = _guessed_options(trajectory)
            config = {"split": trajectory.fingerprint.get("split", trajectory.split)}
            config |= members(record.run, "config")  # None: the environment has no such option
            split = None if config["split"] is None else str(config["split"])
            horizon = get(record.run, "imagined", "horizon")
            generated = is_generated(str(trajectory.task))
            env = self.environments.get(env_id, options, split, generated)
            inner = env.unwrapped
            if not isinstance(inner, TextEnv):
                raise DataNotFound(not_ours(repr(env_id)))
            _compare(0, "env_id", inner.env_id, trajectory.env_id)
            other = _other(inner, options, trajectory)
            verdict = check_episode(env, trajectory, horizon if type(horizon) is int else None)
        except Difference as difference:
            verdict = Verdict(DIFFERS, difference=difference)
        except CoMapError as error:
            verdict = Verdict(NOT_CHECKED, reason=str(error))
        except Exception as error:  # a record may hold anything: say so, and check the next
            found = Difference(0, "record", "one that replays", f"{type(error).__name__}: {error}")
            verdict = Verdict(DIFFERS, difference=found)
        different = verdict.difference
        if different is not None and different.field == "task" and other:
            verdict = Verdict(NOT_CHECKED, reason=different.found)  # another task list, no damage
        if verdict.status == NOT_CHECKED and record.data:
            hint = f" (it was played on a folder named {record.data!r}: give --data-dir)"
            verdict = replace(verdict, reason=verdict.reason + hint)
        return verdict, other


def _parsed(line: bytes) -> Trajectory:
    try:
        found = Trajectory.from_json(json.loads(line))
        hash(found.task)
        dict(found.fingerprint)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataCorrupt(f"{error}"[:500]) from error
    return found


def _other(env: TextEnv, options: Mapping[str, Any], trajectory: Trajectory) -> str:
    """Return in what this environment is not the one that was played in; empty where it is."""
    there, here = dict(trajectory.fingerprint), env.fingerprint()
    outside = bool({"live", "sim", "overlay"} & {*str(there.get("backends", "")).split(",")})
    outside |= "http" in str(there.get("retriever", ""))
    skipped: set[str] = set()
    if outside or type(env).offline(options) != dict(options):  # who answered then is not asked now
        skipped = {"retriever", "backends", "overlay"}
    return "; ".join(
        f"{name}: {there.get(name)} there, {here.get(name)} here"
        for name in sorted({*there, *here} - skipped)
        if there.get(name) != here.get(name)
    )


def verify_table(result: Mapping[str, Any]) -> Table:
    """Return for each file how many of its episodes came to what, and how its numbers stand."""
    rows = []
    for file in result["files"]:
        mine = [entry for entry in result["episodes"] if entry["file"] == file["file"]]
        counts = Counter(entry["status"] for entry in mine)
        by_status = (counts[status] for status in (AGREES, DIFFERS, OTHER, NOT_CHECKED))
        numbers = (file["trajectories"], len(mine), sum(entry["steps"] for entry in mine))
        rows.append((one_line(file["file"], 80), *numbers, *by_status, file["status"]))
    heads = "file|recorded|checked|steps|agree|differ|other version|not checked|numbers"
    title = f"verification of {one_line(result['results'], 80)}"
    return Table(title, tuple(heads.split("|")), tuple(rows))


def explained(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield why what was not checked, what another version recorded, and the first difference."""
    entries = (*result["episodes"], *result["files"])
    skipped = Counter(one_line(e["reason"], 400) for e in entries if e["status"] == NOT_CHECKED)
    other = Counter(
        one_line(e["other"], 400) for e in entries if e.get("other") and e["status"] == AGREES
    )
    for label, counts in (("not checked", skipped), ("recorded elsewhere", other)):
        for why, count in counts.most_common(_MOST_REASONS):
            yield f"{label}: {why} ({count})"
    for name, text in _COUNTED.items():
        if count := sum(entry.get(name, 0) for entry in entries):
            yield f"{count:,} {text}"
    first = next((entry for entry in entries if entry["difference"] is not None), None)
    if first is None:
        return
    where, found = one_line(first["file"], 200), first["difference"]
    if "task" in first:
        task = one_line(str(first["task"]), 200)
        where += f", line {first['line']}: task {task}, step {found['step']}"
    yield f"first difference: {where}, {one_line(found['field'], 200)}"
    yield f"  expected: {one_line(found['expected'], 700)}"
    yield f"  found:    {one_line(found['found'], 700)}"
    if any(entry["status"] == DIFFERS for entry in entries):
        yield "  to do:    restore the folder as it was when the run ended, or play it again in another"
    if elsewhere := first.get("other") or first["reason"]:
        yield f"  recorded elsewhere: {one_line(elsewhere, 700)}"


_COUNTED = {
    "recalled": "answers of sources outside were taken from the record",
    "imagined": "steps were imagined: their facts were read again from the recorded text",
}
