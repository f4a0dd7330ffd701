"""Files that others published become a folder of trajectories, with facts by our canonicalizers."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ... import __version__, jsonl
from ...agents.run import DIGESTS, FORMAT, RUN, SUMMARY, TRAJECTORIES, writing
from ...agents.runner import ADMISSIBLE
from ...agents.tally import Tally
from ...envs.canon import Canonicalizer
from ...envs.registry import class_of, registered
from ...envs.storage import Listener, Progress, silent
from ...errors import DataNotFound, OptionError, check_choice
from ...facts import Delta, State, diff
from ...trainers.sft import ASIDE
from ...trajectory import IMPORTED, UNOBSERVED, Step, Trajectory, write_trajectories
from .formats import FORMATS, Exchange, Reading, Refused, action_of, format_of
from .rows import Row, check_file, rows_of
from .worlds import Outcome, Start, action_text, cleaned, env_of, knows, outcome_of, start_of

INSTRUCTIONS = "instructions.jsonl"
"""The file of a run's folder with the texts that stood before the episodes, each once."""

_UNKNOWN = "unknown"
_MOST_ID = 120  # characters of an id
_MOST_REASONS = 40  # different reasons that are kept; hostile files may have one for each row
_SPLITS = ("valid_unseen", "valid_seen", "valid_train", "train", "test", "dev")


@dataclass
class Counts:
    """What came of the rows of one environment."""

    rows: int = 0
    episodes: int = 0
    steps: int = 0
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each reason: how many rows (``rows``), and where the first of them is (``first``)."""
    first_observations: int = 0
    """First observations whose facts were read, of all episodes."""
    observations: int = 0
    """Observations after an action."""
    read_observations: int = 0
    """Of these, those whose facts were read."""
    known_actions: int = 0
    """Actions whose form the environment's grammar has."""
    without_action: int = 0
    """Replies without an action; they are steps that no policy copies."""
    unobserved: int = 0
    """Actions of which nobody recorded what followed."""
    known_outcomes: int = 0
    successes: int = 0
    repeated_ids: int = 0

    def refuse(self, reason: str, place: str) -> None:
        """Count a refused row."""
        if reason not in self.refused and len(self.refused) >= _MOST_REASONS:
            reason = "other reasons"
        entry = self.refused.setdefault(reason, {"rows": 0, "first": place})
        entry["rows"] += 1

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode."""
        self.episodes += 1
        self.steps += len(trajectory.steps)
        self.first_observations += trajectory.facts.parsed
        for step in trajectory.steps:
            if step.notes.get(UNOBSERVED):
                self.unobserved += 1
            else:
                self.observations += 1
                self.read_observations += step.facts.parsed
            self.known_actions += knows(trajectory.env_id, step.action)
            self.without_action += bool(step.notes.get("without_action"))
        if trajectory.has_outcome:
            self.known_outcomes += 1
            self.successes += trajectory.success

    @property
    def read_share(self) -> float | None:
        """The share of observations whose facts were read; None where there are none."""
        return self.read_observations / self.observations if self.observations else None

    @property
    def known_share(self) -> float | None:
        """The share of actions whose form the environment knows; None where there are none."""
        return self.known_actions / self.steps if self.steps else None


def import_files(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    format: str | None = None,
    env_id: str | None = None,
    split: str | None = None,
    license: str | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Listener = silent,
) -> dict[str, Any]:
    r"""Read published files into a folder that `comap view`, `score`, `export` and trainings read.

    The folder appears whole or not at all. Nothing is left out silently: what is refused is counted,
    with the reason and the first place. Nothing is made up: where a row does not say how an episode
    ended, its outcome is unknown, and not a failure.

    Args:
        files: JSON arrays, JSON lines (both also as .gz), or Parquet.
        out: The folder to make; an empty one may be there.
        format: ``"word2world"``, ``"agenttraj"``, ``"sharegpt"``, ``"eto"`` or ``"adp"``; None to tell it
            by each file's first row.
        env_id: The environment of rows that do not tell theirs; rows of others are refused.
        split: The split of all rows; None for what rows, names of files or publishers say.
        license: The license of the data, as you have it; None where you do not say.
        about: What else to write down: versions, hardware.
        progress: Callback for progress.

    Returns:
        What `run.json` has as ``imported``: files, formats and, for each environment, `Counts`.

    Raises:
        OptionError: The folder is not empty, an option cannot be, or a file has no known form.
        DataNotFound: There is no such file, or no row that could be imported.

    Example:
        >>> from comap.trajectory import read_trajectories
        >>> told = [("human", "You are web shopping."), ("gpt", "Ok."),
        ...         ("human", "WebShop [SEP] Instruction: [SEP] find me a rug [SEP] Search"),
        ...         ("gpt", "Thought: A rug.\nAction: search[rug]")]
        >>> row = {"item_id": "webshop_6", "conversations":
        ...        [{"from": speaker, "value": text} for speaker, text in told]}
        >>> jsonl.write(Path("rows.jsonl"), [row])
        >>> report = import_files(["rows.jsonl"], "runs/imported")
        >>> (episode,) = read_trajectories("runs/imported/trajectories.jsonl")
        >>> episode.goal, episode.steps[0].action, episode.has_outcome
        ('find me a rug', 'search[rug]', False)
    """
    if format is not None:
        check_choice("format", format, tuple(FORMATS))
    if env_id is not None:
        env_id = registered(env_id)
    folder = Path(out)
    _check_folder(folder)
    paths = [Path(file) for file in files]
    for path in paths:
        check_file(path)

    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # In a folder beside it: a kill leaves that one, and never a part of an import under its name.
        place = tempfile.TemporaryDirectory(
            prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
        )
    with place as parent, writing(folder):
        work = Path(parent, "run")
        work.mkdir()
        importing = _Importing(work, format, env_id, split, progress)
        write_trajectories(work / TRAJECTORIES, importing.trajectories(paths))
        record = importing.record(license)
        if importing.tally.trials:
            _write_records(work, record, importing.tally, dict(about or {}))
            work.replace(folder)

    if not importing.tally.trials:
        raise DataNotFound(f"expected rows to import, found none: {_why(importing.counts)}")
    return record


def _write_records(
    folder: Path, record: Mapping[str, Any], tally: Tally, session: Mapping[str, Any]
) -> None:
    """Write what a run's folder has beside its trajectories."""
    jsonl.write_json(folder / RUN, {"format": FORMAT, IMPORTED: record, "sessions": [session]})
    summary = tally.summary()
    summary[DIGESTS] = jsonl.digests_of(folder, [RUN, TRAJECTORIES])
    jsonl.write_json(folder / SUMMARY, summary)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that has something in it."""
    jsonl.refuse_link(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OptionError(
            f"expected a new or empty folder as --out, found {folder} with something in it; name another"
        )


def _why(counts: Mapping[str, Counts]) -> str:
    """Return in words why rows were refused."""
    reasons: Counter[str] = Counter()
    for each in counts.values():
        for reason, entry in each.refused.items():
            reasons[f"{reason} (first: {entry['first']})"] += entry["rows"]
    if not reasons:
        return "the files have no rows"
    return "; ".join(f"{count:,} rows: {reason}" for reason, count in reasons.most_common(3))


class _Importing:
    """An import under way: what was counted so far, and which ids and instructions there were."""

    def __init__(
        self,
        folder: Path,
        format: str | None,
        env_id: str | None,
        split: str | None,
        progress: Listener,
    ):
        self.counts: dict[str, Counts] = {}
        self.tally = Tally()
        self._instructions = folder / INSTRUCTIONS
        self._format = format
        self._env_id = env_id
        self._split = split
        self._progress = progress
        self._files: list[dict[str, Any]] = []
        self._known_instructions: set[str] = set()
        # Digests: the ids of a million rows take tens of megabytes.
        self._occurrences: Counter[bytes] = Counter()

    def record(self, license: str | None) -> dict[str, Any]:
        """Return what is written down of the import."""
        names = sorted({file["format"] for file in self._files if file["format"]})
        return {
            "formats": {
                name: {
                    "title": FORMATS[name].title,
                    "source": FORMATS[name].source,
                    "license_as_published": FORMATS[name].license,
                }
                for name in names
            },
            "license": license,
            "files": self._files,
            "environments": {
                env_id: asdict(counts)
                | {"read_share": counts.read_share, "known_share": counts.known_share}
                for env_id, counts in sorted(self.counts.items())
            },
        }

    def trajectories(self, files: Sequence[Path]) -> Iterator[Trajectory]:
        """Yield the episodes of files, and count what comes of their rows."""
        for path in files:
            file: dict[str, Any] = {"name": path.name, "format": self._format, "rows": 0}
            self._files.append(file)
            size = path.stat().st_size if path.is_file() else None
            show = partial(self._show, f"reading {path.name}", size)
            for row in rows_of(path, show):
                file["rows"] += 1
                trajectory = self._imported(row, path.name, file)
                if trajectory is not None:
                    self.tally.add(trajectory)
                    yield trajectory
            file |= {"size": size, "sha256": jsonl.sha256_of(path)}

    def _show(self, stage: str, total: int | None, done: int) -> None:
        self._progress(Progress(stage, done, total))

    def _imported(self, row: Row, file_name: str, file: dict[str, Any]) -> Trajectory | None:
        """Return the episode of a row; None, and why in the counts, where it is refused."""
        place = f"{file_name}, {row.place}"
        if row.problem:
            if row.is_end:
                file["problem"] = f"{row.place}: {row.problem}"
            self._refuse(_UNKNOWN, "not readable: " + row.problem.partition(" (")[0], place)
            return None

        name = file["format"]
        if name is None:
            name = file["format"] = self._told_format(row, place)
        try:
            if not FORMATS[name].fits(row.value):
                raise Refused(f"not in the form of {name}")
            reading = FORMATS[name].read(row.value)
            env_id = env_of(reading, file_name, self._env_id)
        except Refused as error:
            self._refuse(_UNKNOWN, _reason(error), place)
            return None

        try:
            trajectory = self._episode(reading, env_id, name, file_name, row)
        except Refused as error:
            self._refuse(env_id, _reason(error), place)
            return None
        counts = self._counts_of(env_id)
        counts.rows += 1
        counts.add(trajectory)
        return trajectory

    def _counts_of(self, env_id: str) -> Counts:
        return self.counts.setdefault(env_id, Counts())

    def _refuse(self, env_id: str, reason: str, place: str) -> None:
        """Count a row that is refused."""
        counts = self._counts_of(env_id)
        counts.rows += 1
        counts.refuse(reason, place)

    def _told_format(self, row: Row, place: str) -> str:
        """Return the format that a file's first row has."""
        name = format_of(row.value)
        if name is None:
            keys = sorted(map(str, row.value)) if isinstance(row.value, Mapping) else []
            found = f"an object with {', '.join(keys[:8])}" if keys else type(row.value).__name__
            raise OptionError(
                f"expected rows of {', '.join(FORMATS)} in {place}, found {found:.200}; convert the file "
                "to one of these forms first"
            )
        return name

    def _episode(
        self, reading: Reading, env_id: str, format: str, file_name: str, row: Row
    ) -> Trajectory:
        start = start_of(env_id, reading)
        outcome = outcome_of(env_id, reading)
        canonicalizer = getattr(class_of(env_id), "canonicalizer", None)
        if not isinstance(canonicalizer, Canonicalizer):
            canonicalizer = None

        facts = State(frozenset(), parsed=False)
        if canonicalizer is not None:
            facts = canonicalizer.initial(start.goal, start.observation)
        steps = _steps(reading.exchanges, env_id, start, facts, canonicalizer)
        origin = {
            "format": format,
            "file": file_name,
            "row": row.number,
            "id": reading.id[:_MOST_ID],
            "outcome": _UNKNOWN if outcome.success is None else "known",
            "instructions": self._told(reading.instructions),
        }
        return Trajectory(
            env_id=env_id,
            task=self._task(reading.id, format, file_name, row, env_id),
            split=self._split or reading.split or _split_of(file_name, format),
            goal=start.goal,
            agent=f"imported {format}",
            observation=start.observation,
            facts=facts,
            steps=_ended(steps, outcome),
            fingerprint=_fingerprint(env_id, canonicalizer),
            settings={IMPORTED: origin},
        )

    def _task(self, identity: str, format: str, file_name: str, row: Row, env_id: str) -> str:
        """Return a task's id: the row's, or its place; a repeated one gets a number."""
        stem = file_name.partition(".")[0]
        name = " ".join(identity.split())[:_MOST_ID] or f"{stem}/{row.number}"
        task = f"{format}/{name}"
        digest = hashlib.blake2b(f"{env_id}\n{task}".encode("utf-8", "replace"), digest_size=12)
        self._occurrences[digest.digest()] += 1
        occurrence = self._occurrences[digest.digest()]
        if occurrence == 1:
            return task

        self._counts_of(env_id).repeated_ids += 1
        return f"{task} #{occurrence}"

    def _told(self, text: str) -> str:
        """Write down a text of instructions, once, and return its digest; empty where there is none."""
        if not text:
            return ""
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        if digest not in self._known_instructions:
            self._known_instructions.add(digest)
            jsonl.append(self._instructions, [{"sha256": digest, "text": text}])
        return digest


def _reason(error: Refused) -> str:
    """Return why a row was refused, without the place in it, which differs from row to row."""
    return re.sub(r"^(?:turn|entry|message|step) \d+: ", "", " ".join(str(error).split()))[:200]


def _split_of(file_name: str, format: str) -> str:
    """Return the split that a file's name has, or that of the format's published rows."""
    for split in _SPLITS:
        if split in file_name.lower():
            return split
    return FORMATS[format].split


def _fingerprint(env_id: str, canonicalizer: Canonicalizer | None) -> dict[str, str]:
    facts = "none" if canonicalizer is None else str(canonicalizer.version)
    return {"env": env_id, "comap": __version__, "facts": facts, "data": IMPORTED}


def _steps(
    exchanges: Sequence[Exchange],
    env_id: str,
    start: Start,
    facts: State,
    canonicalizer: Canonicalizer | None,
) -> list[Step]:
    """Return the steps of an episode, with the facts that its texts state."""
    steps: list[Step] = []
    admissible = start.admissible
    for number, (reply, text) in enumerate(exchanges, 1):
        action = action_of(reply)
        if reply.action is not None:
            action = action_text(env_id, reply.action)

        # Thoughts of several lines become one, as agents here write them.
        notes: dict[str, Any] = {}
        if thought := " ".join(reply.thought.split()):
            notes["thought"] = thought
        if admissible:
            notes[ADMISSIBLE] = list(admissible)
        if reply.action is None:
            notes["without_action"] = True
        if reply.action is None or not reply.is_shown:
            notes[ASIDE] = True

        before = facts
        observation = ""
        if text is None:
            notes[UNOBSERVED] = True
            facts = State(before.facts, parsed=False)
        else:
            observation, admissible = cleaned(text)
            facts = State(before.facts, parsed=False)
            if canonicalizer is not None:
                facts = canonicalizer.update(before, action, observation)
        delta = diff(before, facts) if facts.facts != before.facts else Delta()
        reward = reply.reward or 0.0
        step = Step(
            number, action, observation, reward, False, False, False, facts, delta, notes=notes
        )
        steps.append(step)
    return steps


def _ended(steps: list[Step], outcome: Outcome) -> tuple[Step, ...]:
    """Return steps whose last one says how the episode ended, as far as it is known."""
    last = steps[-1]
    if outcome.reward is not None:
        last = replace(last, reward=outcome.reward)
    if outcome.success is not None:
        last = replace(
            last, score=outcome.score, success=outcome.success, terminated=outcome.success
        )
    return (*steps[:-1], last)


def unreadable_files(record: Mapping[str, Any]) -> list[str]:
    """Return for each file that could not be read to its end why, in words."""
    return [f"{file['name']}, {file['problem']}" for file in record["files"] if "problem" in file]
