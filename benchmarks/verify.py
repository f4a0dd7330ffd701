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
from ..agents.run import DIGESTS, LATENCY, RUN, SUMMARY, TRAJECTORIES
from ..agents.run import FORMAT as RUN_FORMAT
from ..agents.tally import ADDED, DATA, Tally
from ..envs import TextEnv
from ..envs.generated import is_generated
from ..envs.registry import env_class, not_ours
from ..errors import CoMapError, DataCorrupt, DataNotFound, OptionError, TaskNotFound
from ..facts import Delta, State, diff
from ..jsonl import read_json, wrong_file
from ..redaction import HIDDEN
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
_MOST_FACTS = 3  # of those that a difference names
_MOST_TEXT = 200  # characters of a text that a difference shows
_BEFORE_DIFFERENCE = 60  # of these, the characters before the place where two texts part


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
    # A belief that was not understood may have the facts of one that was: that is compared first.
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
            path = f"{name}.{key}"
            if key not in expected:
                raise Difference(step, path, "nothing", repr(found[key]))
            if key not in found:
                raise Difference(step, path, repr(expected[key]), "nothing")
            _compare(step, path, expected[key], found[key])
    else:
        # A record was read from JSON: there a tuple is a list, and NaN the same text as NaN.
        with suppress(TypeError, ValueError):  # what JSON does not have
            if json.dumps(expected, sort_keys=True) == json.dumps(found, sort_keys=True):
                return
        if type(expected) is not type(found) or expected != found:
            raise Difference(step, name, *_contrasted(expected, found))


def _facts(facts: frozenset[Any]) -> str:
    """Return the first few facts in words, in an order that does not depend on hashes."""
    if not facts:
        return "no such fact"
    listed = sorted(facts, key=repr)[:_MOST_FACTS]
    words = "; ".join(" ".join(map(str, fact)) for fact in listed)
    rest = len(facts) - len(listed)
    return f"{words} and {rest} more" if rest else words


def _contrasted(expected: object, found: object) -> tuple[str, str]:
    """Return two values in words; of long texts the part where they begin to differ."""
    if not (isinstance(expected, str) and isinstance(found, str)):
        return _in_words(expected), _in_words(found)

    # Where one text is the beginning of the other, they part at its end.
    first_difference = min(len(expected), len(found))
    for position, (expected_character, character) in enumerate(zip(expected, found, strict=False)):
        if expected_character != character:
            first_difference = position
            break

    start = 0
    if max(len(expected), len(found)) > _MOST_TEXT:
        start = max(first_difference - _BEFORE_DIFFERENCE, 0)
    part = slice(start, start + _MOST_TEXT)
    dots = "..." if start else ""
    return dots + repr(expected[part]), dots + repr(found[part])


def _in_words(value: object) -> str:
    return f"{value!r:.2000}"


def check_episode(
    env: gymnasium.Env[str, str], trajectory: Trajectory, horizon: int | None = None
) -> Verdict:
    """Take the actions of a recorded episode again, and compare everything that follows."""
    try:
        # An episode whose reset failed has nothing that could be played again.
        if trajectory.error is not None and not trajectory.goal and not trajectory.steps:
            return Verdict(NOT_CHECKED, reason=f"it failed at its start: {trajectory.error}")
        return _Replay(env, trajectory, horizon).verdict()
    except Difference as difference:
        return Verdict(DIFFERS, difference=difference)
    except TaskNotFound as error:
        message = f"{trajectory.task!r:.200}: {error}"
        missing_task = Difference(0, "task", "one that is there", message)
        return Verdict(DIFFERS, difference=missing_task)


_REAL_FIELDS = (
    "observation",
    "reward",
    "score",
    "success",
    "terminated",
    "invalid_action",
    "imagined",
    "facts",
)
"""The parts of a real step that are compared, in this order: the first difference is the one told."""


class _Replay:
    """Plays a recorded episode again; raises a `Difference` at the first step that is another."""

    def __init__(self, env: gymnasium.Env[str, str], trajectory: Trajectory, horizon: int | None):
        inner = env.unwrapped
        assert isinstance(inner, TextEnv)
        self.env = env
        self.inner = inner
        self.record = trajectory
        self.horizon = horizon
        self.before = trajectory.facts
        self.pending: list[str] = []  # imagined actions that the environment has not seen
        self.recalled: frozenset[int] = frozenset()
        self.has_env_info = any(step.env_info for step in trajectory.steps)  # old records have none
        self.ended_at = 0
        self.checked = 0
        self.imagined = 0

    def verdict(self) -> Verdict:
        """Play the episode again and return what came of it, with how many steps were checked."""
        first_difference: Difference | None = None
        reason = ""

        # What answered from outside then (a live tool, a search engine) is answered from the record.
        self.recalled = self.inner.recall(self.record.steps)
        try:
            self._reset()
            for step_number, step in enumerate(self.record.steps, 1):
                reason = self._step(step_number, step)
                if reason:
                    break
                self.before = step.facts
                self.checked += 1
                self.imagined += step.imagined is True
        except Difference as difference:
            first_difference = difference
        finally:
            self.inner.recall(())

        status = AGREES
        if first_difference:
            status = DIFFERS
        elif reason:
            status = NOT_CHECKED
        return Verdict(
            status,
            steps=self.checked,
            imagined=self.imagined,
            recalled=sum(step_number <= self.checked for step_number in self.recalled),
            difference=first_difference,
            reason=reason,
        )

    def _reset(self) -> None:
        record = self.record
        observation, info = self.env.reset(seed=record.seed, options={"task": record.task})
        _compare(0, "split", info["split"], record.split)
        _compare(0, "goal", info["goal"], record.goal)
        _compare(0, "observation", observation, record.observation)
        _compare(0, "facts", info["facts"], record.facts)

    def _step(self, step_number: int, step: Step) -> str:
        """Check a step; return why it cannot be checked, if that is so."""
        _compare(step_number, "step", step_number, step.t)
        if self.ended_at:
            expected = f"none: the episode ended at {self.ended_at}"
            raise Difference(step_number, "step", expected, step.action)

        # An episode that an error ended has a last step without an answer.
        is_last = step_number == len(self.record.steps)
        fault = self.record.error is not None and is_last and step.observation == ""
        if step.imagined:
            self._check_imagined(step_number, step, fault and step.truncated is True)
        elif reason := self._check_real(step_number, step, fault):
            return reason

        _compare(step_number, "change", diff(self.before, step.facts), step.delta)
        self.ended_at = step_number if step.terminated or step.truncated else 0
        if step.prediction is not None:
            self._check_prediction(step_number, step)
        return ""

    def _check_real(self, step_number: int, step: Step, fault: bool) -> str:
        """Take a real action again; return why the step cannot be checked, if that is so."""
        # Actions in imagination left the environment where it was: it catches up before a real one.
        for action in self.pending:
            _, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                break
        self.pending = []

        answer = self.env.step(step.action)
        info = answer[4]
        if fault and "error" not in info:
            return f"its last step failed then, and does not now: {self.record.error}"
        real = Step.of(step.action, answer)
        for name in _REAL_FIELDS:
            _compare(step_number, name, getattr(real, name), getattr(step, name))

        # An imagined episode ends at its horizon, at a real step too.
        at_horizon = (
            self.horizon is not None and self.record.imagined and step_number >= self.horizon
        )
        truncated = real.truncated or (at_horizon and not real.terminated)
        _compare(step_number, "truncated", truncated, step.truncated)

        # A recalled answer has its information from the record: to compare it would prove nothing.
        if step_number not in self.recalled and self.has_env_info:
            env_info = {}
            for name in self.inner.info_kept:
                if name in info and info[name] != self.inner.info_extras[name]:
                    env_info[name] = info[name]
            as_read = json.loads(json.dumps(env_info, default=str))
            _compare(step_number, ENV_INFO, as_read, dict(step.env_info))
        return ""

    def _check_imagined(self, step_number: int, step: Step, fault: bool) -> None:
        """Read the facts of an imagined step from its text again, without the world model."""
        self.pending.append(step.action)
        facts = self.before
        if not fault:
            facts = self.inner.canonicalizer.update(facts, step.action, step.observation)
            if self.horizon is not None:
                at_horizon = step_number >= self.horizon and not step.terminated
                _compare(step_number, "truncated", at_horizon, step.truncated)
        _compare(step_number, "facts", facts, step.facts)

    def _check_prediction(self, step_number: int, step: Step) -> None:
        """Read the facts of a prediction from its text again."""
        prediction = step.prediction
        assert prediction is not None
        if not isinstance(prediction.observation, str):
            raise Difference(step_number, "prediction", "text", _in_words(prediction.observation))

        # A prediction may be of the draft that a revision replaced: agents note it by either name.
        actions = [step.action]
        for name in ("draft_action", "draft"):
            draft = step.notes.get(name)
            if isinstance(draft, str):
                actions.append(draft)

        update = self.inner.canonicalizer.update
        readings = [update(self.before, action, prediction.observation) for action in actions]
        if prediction.facts not in readings:
            _compare(step_number, "prediction", readings[0], prediction.facts)
        change = diff(self.before, prediction.facts)
        _compare(step_number, "prediction's change", change, prediction.delta)


class _Environments:
    """Makes the environments in which records are replayed, one at a time."""

    def __init__(self, data: Mapping[str, str], options: Mapping[str, Any]):
        self._data = data
        self._options = options
        self._key: object = None
        self._env: gymnasium.Env[str, str] | None = None

    def get(
        self, env_id: str, options: Mapping[str, Any], split: str | None, generated: bool
    ) -> gymnasium.Env[str, str]:
        """Return the environment of an episode; the one before is kept if the options are the same."""
        registered = _registered_class(env_id)
        env_options = registered.offline(options)
        if split is not None:
            env_options |= {"split": split}

        # Generated tasks need no data; "" is the folder for every other environment.
        data_dir = self._data.get(env_id, self._data.get(""))
        if generated:
            env_options = dict(registered.generated_options) | env_options
        elif data_dir is not None:
            env_options["data_dir"] = data_dir
        env_options |= self._options

        # An environment can take seconds to start, and episodes of a file are mostly of one.
        key = json.dumps([env_id, env_options], sort_keys=True, default=repr)
        if self._env is None or key != self._key:
            self.close()
            registered_id = env_id.rpartition(":")[2]
            try:
                env: gymnasium.Env[str, str] = gymnasium.make(registered_id, **env_options)
            except (TypeError, gymnasium.error.Error) as error:
                raise OptionError(f"the recorded options do not fit {env_id}: {error}") from None
            self._env = env
            self._key = key
        return self._env

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None


def _registered_class(env_id: str) -> type[TextEnv]:
    """Return the class of a registered environment; a module in its id is not imported."""
    try:  # a record names the module of an environment, but does not decide what is imported
        return env_class(str(env_id).rpartition(":")[2])
    except gymnasium.error.Error:
        raise DataNotFound(
            f"there is no environment {env_id!r:.80} here; import what registers it (on the command line: "
            f"--env {env_id if ':' in env_id else 'MODULE:ID'})"
        ) from None


def _guessed_options(trajectory: Trajectory) -> dict[str, Any]:
    """Return options as a trajectory's fingerprint and end show them, where nobody wrote them down."""
    registered = _registered_class(trajectory.env_id)
    steps = trajectory.steps

    # An episode that was cut says where; one that was not must not be cut here.
    limit = len(steps) if steps and steps[-1].truncated else 10**6
    options: dict[str, Any] = {"max_episode_steps": limit}
    for name, parameter in inspect.signature(registered.__init__).parameters.items():
        if name not in trajectory.fingerprint or name in (*registered.local_options, "split"):
            continue

        # A fingerprint has texts alone: the default tells of which type the setting is.
        text = str(trajectory.fingerprint[name])
        default = parameter.default
        with suppress(KeyError, ValueError):  # a setting of another form says nothing
            if isinstance(default, bool):
                options[name] = {"true": True, "false": False}[text]
            elif isinstance(default, int | float | str):
                options[name] = type(default)(text)
    return options


def _find_files(results: Path) -> list[Path]:
    """Return the files of trajectories in a folder or below, or the one that is named."""
    if results.is_file():
        return [results]
    if not results.is_dir():
        raise DataNotFound(f"expected results at {results}, found nothing there; name a run")

    files = sorted(path for path in results.rglob(TRAJECTORIES) if path.is_file())
    if not files:
        raise DataNotFound(
            f"expected {TRAJECTORIES} in {results} or below, found none; name a folder of comap run or "
            "comap train, or a file of trajectories"
        )
    return files


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What lies beside a file of trajectories."""

    run: Mapping[str, Any]
    summary: Mapping[str, Any]
    env_id: str | None
    options: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: Path, results: Path) -> _Recorded:
        """Read the run and the summary beside a file; nothing above `results` is looked at."""
        run = _read_json(path.parent / RUN)
        summary = _read_json(path.parent / SUMMARY)
        if run and run.get("format") != RUN_FORMAT:
            raise DataCorrupt(
                f"expected a run of comap in {path.parent / RUN}, found another format"
            )

        config = members(run, "config")
        env_id = get(config, "env")
        options = members(config, "env_options")

        # Episodes of a training lie below it, and it alone has written down the environment.
        if run and env_id is None:
            for folder in path.parent.parents:
                training = _read_json(folder / RUN)
                if training.get("format") == TRAINING_FORMAT:
                    env = members(training, "described", "env")
                    env_id = get(env, "id")
                    options = members(env, "options")
                if env_id is not None or folder == results:
                    break

        if not isinstance(env_id, str):
            return cls(run, summary, None, None)
        # What a record does not show, `--env-option` says.
        recorded = {name: value for name, value in options.items() if value != HIDDEN}
        return cls(run, summary, env_id, recorded)

    @property
    def data(self) -> str:
        """The name of the folder of data that was last played on; empty if there was none."""
        sessions = get(self.run, "sessions")
        if not isinstance(sessions, list) or not sessions:
            return ""
        folder = get(sessions[-1], "data_dir")
        return Path(folder).name if isinstance(folder, str) else ""


def _read_json(path: Path) -> Mapping[str, Any]:
    """Return the object in a file of JSON; an empty one where there is no file."""
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, Mapping):
        raise DataCorrupt(f"expected an object of JSON in {path}, found something else")
    return content


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

    # One draw over the lines of all files: a long file has more of the sample than a short one.
    total = sum(lengths)
    sampled = set(range(total))
    if 0 < sample < total:  # 0 stands for all
        sampled = set(random.Random(seed).sample(range(total), sample))

    files: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    offset = 0
    with closing(_Environments(data or {}, options or {})) as environments:
        for path, length in zip(paths, lengths, strict=True):
            name = path.relative_to(folder).as_posix() if folder.is_dir() else path.name
            line_indices = {index for index in range(length) if offset + index in sampled}
            check = _File(path, folder, name, environments)
            files.append(check.run(line_indices))
            episodes += check.episodes
            offset += length

    episode_statuses = [entry["status"] for entry in episodes]
    statuses = episode_statuses + [file["status"] for file in files]
    return {
        "format": _FORMAT,
        **circumstances(_PACKAGES),
        "results": folder.resolve().name,
        "sample": sample,
        "seed": seed,
        "recorded": total,
        # Where no episode was checked, nothing agrees.
        "agree": bool(episodes) and all(status == AGREES for status in statuses),
        "differ": any(status in (DIFFERS, OTHER) for status in statuses),
        "counts": dict(sorted(Counter(episode_statuses).items())),
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
    """Checks a file of trajectories: each line's form, the episodes of a sample, and the numbers."""

    path: Path
    results: Path
    name: str
    environments: _Environments
    episodes: list[dict[str, Any]] = field(default_factory=list)

    def run(self, line_indices: set[int]) -> dict[str, Any]:
        """Read all lines, replay those of the sample, and return how the file stands."""
        tally = Tally()
        tasks: dict[str, None] = {}
        first_difference: Difference | None = None
        status = DIFFERS
        reason = ""
        version = ""
        try:
            record = _Recorded.read(self.path, self.results)
            for line_index, line in enumerate(_lines(self.path)):
                try:
                    trajectory = _parsed(line)
                    tally.add(trajectory)
                except DataCorrupt as error:
                    field_name = f"line {line_index + 1}"
                    bad_line = Difference(0, field_name, "a trajectory", str(error))
                    first_difference = first_difference or bad_line
                    if line_index in line_indices:
                        self._add(line_index, None, Verdict(DIFFERS, difference=bad_line), "")
                    continue

                tasks[trajectory.task] = None
                version = version or str(trajectory.fingerprint.get("comap", ""))
                if line_index in line_indices:
                    verdict, otherness = self._check(record, trajectory)
                    self._add(line_index, trajectory, verdict, otherness)

            if first_difference is None and record.summary:
                self._check_numbers(record, tally, list(tasks))
                status = AGREES
            elif first_difference is None:
                # A summary is written at the end of a run: without one, it was interrupted.
                status = NOT_CHECKED
                reason = "no summary.json is beside it"
                if record.run:
                    reason += ": it did not end"
        except DataCorrupt as error:
            first_difference = Difference(0, "files", "readable", str(error))
        except Difference as difference:
            first_difference = difference

        # Another version may count otherwise, and that is no damage.
        if status == DIFFERS and version not in ("", __version__):
            status = OTHER
            reason = f"comap {version} there, {__version__} here"
        return {
            "file": self.name,
            "status": status,
            "trajectories": tally.trials,
            "difference": first_difference and asdict(first_difference),
            "reason": reason,
        }

    def _check_numbers(self, record: _Recorded, tally: Tally, tasks: list[str]) -> None:
        """Compare summary, list of tasks and SHA-256 of a run with its files."""
        # The number of lines goes first: a lost line would change every other number as well.
        counts = (number(record.summary, *keys) for keys in _TRIALS)
        trials = next((count for count in counts if count is not None), None)
        if trials is not None and trials != tally.trials:
            expected = f"{trials:.0f}, as {SUMMARY} beside it says"
            message = f"{tally.trials}: lines were removed or added since the run ended"
            raise Difference(0, "number of episodes", expected, message)

        # Latencies cannot be computed again, and what earlier versions did not count is left out. So are
        # licenses: another version may have read them anew.
        not_compared = (DIGESTS, LATENCY, DATA)
        recorded_numbers = {
            key: value for key, value in record.summary.items() if key not in not_compared
        }
        numbers = tally.summary(number(recorded_numbers, "seconds", "all"))
        del numbers[DATA]
        for key in ADDED:
            if key not in recorded_numbers:
                numbers.pop(key, None)
        _compare(0, "summary", json.loads(json.dumps(numbers)), recorded_numbers)

        if recorded_tasks := members(record.run, "tasks"):
            task_lines = "".join(f"{task}\n" for task in tasks).encode("utf-8", "replace")
            listed_tasks: dict[str, Any] = {
                "number": len(tasks),
                "generated": sum(map(is_generated, tasks)),
                "sha256": hashlib.sha256(task_lines).hexdigest(),
            }
            if "generated" not in recorded_tasks:  # as earlier versions wrote it
                del listed_tasks["generated"]
            without_licenses = {k: v for k, v in recorded_tasks.items() if k != "licenses"}
            _compare(0, "tasks", without_licenses, listed_tasks)

        if changed_file := wrong_file(self.path.parent, record.summary.get(DIGESTS, {})):
            raise Difference(0, "files", f"as {SUMMARY} has them", changed_file)

    def _add(
        self, line_index: int, trajectory: Trajectory | None, verdict: Verdict, otherness: str
    ) -> None:
        """Add what came of a line; a difference in what another version recorded is no damage."""
        is_other = verdict.status == DIFFERS and otherness != ""
        self.episodes.append(
            {
                "file": self.name,
                "line": line_index + 1,
                "task": None if trajectory is None else str(trajectory.task),
                "trial": 1 if trajectory is None else trajectory.trial,
                **asdict(verdict),
                "status": OTHER if is_other else verdict.status,
                "other": otherness,
            }
        )

    def _check(self, record: _Recorded, trajectory: Trajectory) -> tuple[Verdict, str]:
        """Return what comes of replaying an episode, and what is of another version here."""
        otherness = ""
        if origin := trajectory.origin:
            reason = (
                f"it was imported ({one_line(str(origin.get('format')), 40)}), not played here: there is "
                "nothing to play again"
            )
            return Verdict(NOT_CHECKED, reason=reason), ""
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
            otherness = _otherness(inner, options, trajectory)
            verdict = check_episode(env, trajectory, horizon if type(horizon) is int else None)
        except Difference as difference:
            verdict = Verdict(DIFFERS, difference=difference)
        except CoMapError as error:
            verdict = Verdict(NOT_CHECKED, reason=str(error))
        except Exception as error:  # a record may hold anything: say so, and check the next
            message = f"{type(error).__name__}: {error}"
            unplayable = Difference(0, "record", "one that replays", message)
            verdict = Verdict(DIFFERS, difference=unplayable)

        first_difference = verdict.difference
        if first_difference is not None and first_difference.field == "task" and otherness:
            # Another task list, no damage.
            verdict = Verdict(NOT_CHECKED, reason=first_difference.found)
        if verdict.status == NOT_CHECKED and record.data:
            hint = f" (it was played on a folder named {record.data!r}: give --data-dir)"
            verdict = replace(verdict, reason=verdict.reason + hint)
        return verdict, otherness


def _parsed(line: bytes) -> Trajectory:
    """Return the trajectory of a line; raise where it is none, or its parts cannot be used."""
    try:
        trajectory = Trajectory.from_json(json.loads(line))
        hash(trajectory.task)
        dict(trajectory.fingerprint)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataCorrupt(f"{error}"[:500]) from error
    return trajectory


def _otherness(env: TextEnv, options: Mapping[str, Any], trajectory: Trajectory) -> str:
    """Return in what this environment is not the one that was played in; empty where it is."""
    recorded = dict(trajectory.fingerprint)
    current = env.fingerprint()

    skipped: set[str] = set()
    backends = str(recorded.get("backends", "")).split(",")
    is_remote = not {"live", "sim", "overlay"}.isdisjoint(backends)
    is_remote |= "http" in str(recorded.get("retriever", ""))
    if is_remote or type(env).offline(options) != dict(options):
        # Who answered then is not asked now.
        skipped = {"retriever", "backends", "overlay"}

    differences = []
    for name in sorted({*recorded, *current} - skipped):
        if recorded.get(name) != current.get(name):
            differences.append(f"{name}: {recorded.get(name)} there, {current.get(name)} here")
    return "; ".join(differences)


def verify_table(result: Mapping[str, Any]) -> Table:
    """Return for each file how many of its episodes came to what, and how its numbers stand."""
    rows = []
    for file in result["files"]:
        entries = [entry for entry in result["episodes"] if entry["file"] == file["file"]]
        counts = Counter(entry["status"] for entry in entries)
        by_status = (counts[status] for status in (AGREES, DIFFERS, OTHER, NOT_CHECKED))
        numbers = (file["trajectories"], len(entries), sum(entry["steps"] for entry in entries))
        rows.append((one_line(file["file"], 80), *numbers, *by_status, file["status"]))

    columns = (
        "file",
        "recorded",
        "checked",
        "steps",
        "agree",
        "differ",
        "other version",
        "not checked",
        "numbers",
    )
    return Table(f"verification of {one_line(result['results'], 80)}", columns, tuple(rows))


def explained(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield why what was not checked, what another version recorded, and the first difference."""
    entries = (*result["episodes"], *result["files"])
    unchecked: Counter[str] = Counter()
    recorded_elsewhere: Counter[str] = Counter()
    for entry in entries:
        if entry["status"] == NOT_CHECKED:
            unchecked[one_line(entry["reason"], 400)] += 1
        elif entry["status"] == AGREES and entry.get("other"):
            recorded_elsewhere[one_line(entry["other"], 400)] += 1

    for label, counts in (("not checked", unchecked), ("recorded elsewhere", recorded_elsewhere)):
        for reason, count in counts.most_common(_MOST_REASONS):
            yield f"{label}: {reason} ({count})"
    for name, text in _COUNTED.items():
        if count := sum(entry.get(name, 0) for entry in entries):
            yield f"{count:,} {text}"

    # Episodes go before files: a step that differs says more than the numbers that follow from it.
    first = next((entry for entry in entries if entry["difference"] is not None), None)
    if first is None:
        return
    location = one_line(first["file"], 200)
    difference = first["difference"]
    if "task" in first:
        task = one_line(str(first["task"]), 200)
        location += f", line {first['line']}: task {task}, step {difference['step']}"
    yield f"first difference: {location}, {one_line(difference['field'], 200)}"
    yield f"  expected: {one_line(difference['expected'], 700)}"
    yield f"  found:    {one_line(difference['found'], 700)}"

    if any(entry["status"] == DIFFERS for entry in entries):
        yield "  to do:    restore the folder as it was when the run ended, or play it again in another"
    if version := first.get("other") or first["reason"]:
        yield f"  recorded elsewhere: {one_line(version, 700)}"


_COUNTED = {
    "recalled": "answers of sources outside were taken from the record",
    "imagined": "steps were imagined: their facts were read again from the recorded text",
}
