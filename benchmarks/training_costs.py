"""The tables of a training's report that tell what it cost, what went wrong, and how it was set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..trainers.config import CoMapTraining
from .tables import Table
from .training_record import StageRecord, TrainingRecord, get, members, number

__all__ = ["cost_tables", "fault_table", "settings_tables"]

_SETS = {"frozen": "frozen", "on_policy": "on-policy"}
_SPENT = ("episodes", "calls", "read", "written")
_NOTHING = "—"


def cost_tables(training: TrainingRecord) -> list[Table]:
    """Return what each stage and each phase cost (CoMap, Table 6).

    Example:
        >>> [table.title for table in cost_tables(TrainingRecord({}, (), ()))]
        ['Cost by phase', 'Cost by stage']
    """
    last = training.sessions[-1] if training.sessions else {}
    processes = int(number(last, "hardware", "processes") or 1)
    named = get(last, "hardware", "gpus")
    gpus = len(named) if isinstance(named, list) else 0
    used = min(processes, gpus)
    spent: dict[tuple[str, str], float] = {}
    rows = []
    for stage in training.stages:
        seconds = number(stage.result, "seconds")
        key = _phase(stage.name)
        spent[key] = spent.get(key, 0.0) + (seconds or 0.0)
        rows.append(_cost(stage, seconds))
    phases = [
        (phase, module, f"{seconds:,.1f}", f"{seconds * used / 3600:.3f}" if used else None)
        for (phase, module), seconds in spent.items()
    ]
    whole = sum(spent.values())
    phases.append(("all", "", f"{whole:,.1f}", f"{whole * used / 3600:.3f}" if used else None))
    note = (
        f"By the clock; processes: {processes}, GPUs: {used}. A stage that was interrupted counts from "
        "when it was last gone on with."
    )
    heads = "stage|seconds|episodes|calls to models|tokens read|tokens written|updates|samples"
    columns = (*heads.split("|"), "tokens of samples")
    told = (
        "Calls and tokens are those of episodes; suffix rollouts and scoring are in the time alone."
    )
    return [
        Table("Cost by phase", ("phase", "part", "seconds", "GPU-hours"), tuple(phases), note),
        Table("Cost by stage", columns, tuple(rows), told),
    ]


def _cost(stage: StageRecord, seconds: float | None) -> tuple[object, ...]:
    def learned(name: str) -> str:
        found = number(stage.result, name)
        return _NOTHING if found is None else f"{found:,.0f}"

    spent = stage.spent
    played = [f"{spent[name]:,}" if spent.get("episodes") else _NOTHING for name in _SPENT]
    took = "not done" if seconds is None else f"{seconds:,.1f}"
    return (stage.name, took, *played, *map(learned, ("updates", "rows", "tokens")))


def _phase(name: str) -> tuple[str, str]:
    """Return phase and part of a stage."""
    if name.startswith("warmup-"):
        return "warm-up", name.removeprefix("warmup-").replace("-", " ")
    if name.startswith("reflection-"):
        return "reflection mode", name.removeprefix("reflection-")
    part = name.split("-", 2)[-1] if name.startswith("round-") else name
    if part in ("evaluation", "frozen-transitions"):
        return "evaluation", part.replace("-", " ")
    return "co-evolution", part.replace("-", " ")


def fault_table(training: TrainingRecord) -> Table:
    """Return what went wrong, and in how many of how many cases.

    Example:
        >>> fault_table(TrainingRecord({}, (), ())).rows
        ()
    """
    rows: list[tuple[object, ...]] = []
    for stage in training.stages:
        played = stage.spent.get("episodes", 0)
        for fault in stage.faults:
            told = f"{fault.kind}: {fault.first}"
            rows.append((stage.name, "episodes that failed", fault.count, played, told))
        for what, count, n in _failures(stage.result or {}):
            if count:
                rows.append((stage.name, what, int(count), int(n or 0), ""))
    note = "" if rows else "Nothing went wrong."
    return Table("Faults", ("stage", "what", "count", "of", "the first"), tuple(rows), note)


def _failures(found: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float | None]]:
    told = found.get("revisions")
    failed, n = number(told, "failed"), number(told, "n")
    yield "decisions whose branches failed", failed, (n or 0) + (failed or 0)
    if "branches" in found:
        failed = number(found, "counts", "failed")
        yield "states whose branches failed", failed, number(found, "branches")
    for name in _SETS:
        scored = get(found, "world_model", name)
        said, n = get(scored, "change_token_nll"), number(scored, "transitions")
        yield f"{_SETS[name]} transitions without a truth to read", number(scored, "dropped"), n
        yield f"{_SETS[name]} transitions that could not be scored", number(said, "failed"), n


def settings_tables(training: TrainingRecord) -> list[Table]:
    """Return all settings (CoMap, Table 5), the environment, the models and the versions.

    Example:
        >>> [table.title for table in settings_tables(TrainingRecord({}, (), ()))]
        ['Settings', 'What it was trained on', 'Sessions']
    """
    described = training.described
    paper = CoMapTraining().describe()
    config = members(described, "config")
    rows = [
        (str(name), _plain(value), "" if paper.get(name) == value else _plain(paper.get(name)))
        for name, value in config.items()
    ]
    about = {name: value for name, value in described.items() if name != "config"}
    facts = tuple((name, _plain(value)) for name, value in _leaves(about))
    versions = [_session(session) for session in training.sessions]
    names = list(dict.fromkeys(name for told in versions for name in told))
    shown = [versions[0], versions[-1]] if len(versions) > 1 else versions
    heads = ("", "first session", "last session") if len(versions) > 1 else ("", "the only session")
    both = tuple((name, *(told.get(name, "") for told in shown)) for name in names)
    note = f"{len(versions)} sessions in all." if len(versions) > 2 else ""
    return [
        Table("Settings", ("setting", "value", "where the preset paper differs"), tuple(rows)),
        Table("What it was trained on", ("", "value"), facts),
        Table("Sessions", heads if shown else ("",), both, note),
    ]


def _session(session: Mapping[str, Any]) -> dict[str, str]:
    return {name: _plain(value) for name, value in _leaves(session)}


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, part in value.items():
        if isinstance(part, Mapping):
            yield from _leaves(part, f"{prefix}{key} / ")
        else:
            yield f"{prefix}{key}", part


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return "none" if value is None else json.dumps(value)
