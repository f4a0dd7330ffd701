"""`comap bench parity`: whether our engine tells what the upstream engine told, to the byte."""

from __future__ import annotations

import hashlib
import json
import lzma
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..envs.alfworld.engine import NativeEngine
from ..envs.alfworld.game import Game, read_game
from ..envs.data import Limits, unpack
from ..errors import DataCorrupt, DataNotFound, OptionError, suggest
from .record import circumstances, write_result

_ENVS = ("alfworld",)
_FIELDS = ("observation", "admissible_commands", "facts", "not_facts", "won")
_LIMITS = Limits(download_bytes=1 << 30, entries=50_000, unpacked_bytes=1 << 31)
_SHOWN = 10

_Row = dict[str, Any]


def run(
    env: str,
    *,
    reference: str | Path,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Compare the native engine with what was recorded from the upstream engine."""
    if env not in _ENVS:
        raise OptionError(f"there is no environment {env!r} to compare; {suggest(env, _ENVS)}")
    folder = Path(reference)
    (archive,), (demos,) = _existing(folder, "games.tar.xz"), _existing(folder, "demos.jsonl.xz")
    traces = _existing(folder, "traces_*.jsonl.xz")
    mismatches: list[_Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        games = Path(temporary, "games")
        progress("unpacking the games")
        unpack(archive, games, _LIMITS)
        result: dict[str, Any] = {"benchmark": "parity", "env": env, **circumstances(["gymnasium"])}
        result["reference"] = {path.name: _sha256(path) for path in (archive, *traces, demos)}
        for path in traces:
            progress(f"states of {path.name}")
            name = path.name.partition(".")[0]
            result[name] = _compare(games, path, _FIELDS, mismatches)
        progress("walkthroughs")
        result["walkthroughs"] = _play_walkthroughs(games, mismatches)
        progress("demonstrations")
        result["demonstrations"] = _compare(games, demos, _FIELDS[:1], mismatches)
    result["all_match"] = not mismatches
    result["mismatches"] = len(mismatches)
    result["first_mismatches"] = mismatches[:_SHOWN]
    if out is not None:
        write_result(Path(out), result)
    return result


def _compare(
    games: Path, path: Path, fields: tuple[str, ...], mismatches: list[_Row]
) -> dict[str, Any]:
    """Play recorded commands and count the states that match, by field and in all of them."""
    counts: Counter[str] = Counter()
    for recording in _lines(path):
        counts["games"] += 1
        engine = NativeEngine(Game(read_game(games / recording["game"])))
        for entry in recording["steps"]:
            told = _tell(engine, entry["command"], fields)
            wrong = [name for name in fields if told[name] != entry[name]]
            counts["states"] += 1
            counts["matching"] += not wrong
            counts.update(name for name in fields if name not in wrong)
            if wrong:
                where = {"file": path.name, "game": recording["game"]}
                mismatches.append(where | {"command": entry["command"], "fields": wrong})
    if not counts["states"]:
        raise DataCorrupt(f"expected recorded states in {path.name}, found none; get it again")
    keys = ("games", "states", "matching")
    return {key: counts[key] for key in keys} | {
        "matching_by_field": {name: counts[name] for name in fields}
    }


def _tell(engine: NativeEngine, command: str | None, fields: tuple[str, ...]) -> dict[str, Any]:
    """Take a command (None: start) and return what the engine tells then."""
    observation = engine.start() if command is None else engine.act(command)[0]
    if fields == _FIELDS[:1]:
        return {"observation": observation}
    values = (
        observation,
        list(engine.admissible()),
        engine.facts_text(),
        engine.negative_facts_text(),
        engine.won(),
    )
    return dict(zip(_FIELDS, values, strict=True))


def _play_walkthroughs(games: Path, mismatches: list[_Row]) -> dict[str, dict[str, int]]:
    """Play each game's walkthrough; count by split those valid at every step, and those won."""
    splits: dict[str, Counter[str]] = {}
    for path in sorted(games.glob("*/*/*/*/game.tw-pddl")):
        counts = splits.setdefault(path.parts[-4], Counter())
        engine = NativeEngine(Game(read_game(path)))
        unsolved = not engine.won()
        commands = engine.game.problem.walkthrough
        valid = bool(commands)
        for command in commands:
            valid = valid and command in engine.admissible() and engine.act(command)[1]
        counts.update(games=1, valid=valid, won=unsolved and engine.won())
        if not (valid and unsolved and engine.won()):
            game = path.relative_to(games).as_posix()
            mismatches.append({"file": "games.tar.xz", "game": game, "fields": ["walkthrough"]})
    return {split: dict(counts) for split, counts in splits.items()}


def _existing(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise DataNotFound(
            f"expected {pattern} in {folder}, found no such file; give the folder of the "
            "reference data: comap bench parity alfworld --reference DIR"
        )
    return found


def _lines(path: Path) -> Iterator[_Row]:
    """Return the records of a compressed JSON-lines file."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DataCorrupt(
            f"expected JSON lines in {path.name}, found something else ({error}); get it again"
        ) from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def table(result: Mapping[str, Any]) -> str:
    lines = []
    for name, part in result.items():
        if isinstance(part, dict) and "matching" in part:
            shown = f"{part['matching']:,} of {part['states']:,} states match"
            lines.append(f"{name}: {part['games']:,} games, {shown}")
            if len(part["matching_by_field"]) > 1:
                lines += [f"  {key}: {n:,}" for key, n in part["matching_by_field"].items()]
    for split, counts in result["walkthroughs"].items():
        shown = f"{counts['valid']:,} valid at every step, {counts['won']:,} won"
        lines.append(f"walkthroughs {split}: {counts['games']:,} games, {shown}")
    return "\n".join(lines)
