"""Pages of results: one HTML file that needs nothing else, with tables, plots and episodes to browse."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from ..envs.registry import text_env_of
from ..errors import MissingExtra, needs_extra
from ..facts import Fact, State, apply, diff, fact_to_text
from ..jsonl import replacing_file
from ..metrics import delta_f1
from ..trajectory import ENV_INFO, Call, Predicted, Step, Trajectory
from .tables import (
    SYMBOLS,
    Plot,
    Table,
    format_cells,
    image_of,
    numeric_columns,
    one_line,
    pieces,
    visible,
)

_STYLES = ("report.css", "viewer.css")
_SCRIPTS = ("text", "data", "lists", "filters", "search", "compare", "thoughts", "step", "main")
_MOST_CALLS = 100  # shown of a step: a tree search makes thousands
_MOST_LETTERS = 20_000  # shown of a note
_COMPRESSION = 6  # higher levels take twice the time for a few percent

_Compared: TypeAlias = "tuple[float, int, int, int]"

_INTEREST = (
    "progress",  # a revised step with a higher score than the one before
    "revision",
    "misprediction",
    "prediction",
    "other revision",
    "other misprediction",
)
"""What makes a step worth seeing first, the most telling first; all but the last two change facts."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page; ``terms`` are groups of words and what they mean."""

    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    note: str = ""
    terms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode, with what a world model made of it."""

    title: str
    real: Trajectory
    imagined: Trajectory | None
    run: str = ""


def render_page(
    title: str,
    summary: Mapping[str, str],
    sections: Sequence[Section],
    episodes: Iterable[Episode] | Pack = (),
    folded: bool = False,
    lead: str = "",
    opened: bool = False,
    about: str = "",
) -> str:
    """Return a page, in HTML; the same arguments give the same page.

    Args:
        title: The page's title.
        summary: Names and values under the title.
        sections: Tables, plots and terms.
        episodes: Episodes to browse.
        folded: Whether the sections can be folded away, for the episodes.
        lead: A sentence that says what was found.
        opened: Whether sections that can be folded are open at first.
        about: A few words under the title, for somebody who does not know what this is.
    """
    environment = page_environment()
    from markupsafe import Markup  # a part of jinja2

    pack = episodes if isinstance(episodes, Pack) else Pack(episodes)
    style = "".join(map(template_text, _STYLES[: 2 if len(pack) else 1]))
    script = ""
    if len(pack):  # the script's parts share one scope, and nothing of it is global
        parts = "".join(template_text(f"viewer_{name}.js") for name in _SCRIPTS)
        script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    shown = [
        {
            "title": section.title,
            "note": section.note,
            "terms": section.terms,
            "folded": section.folded,
            "tables": [(one, format_cells(one), numeric_columns(one)) for one in section.tables],
            "plots": [(plot, image_of(plot)) for plot in section.plots],
        }
        for section in sections
    ]
    return str(
        environment.get_template("report.html").render(
            title=title,
            about=about,
            lead=lead,
            summary=summary,
            sections=shown,
            episodes=len(pack),
            folded=folded and any(section.tables or section.plots for section in sections),
            opened=opened,
            style=Markup(style),
            style_hash=source_hash(style),
            script=Markup(script),
            script_hash=source_hash(script),
            index=Markup(script_json(pack.index())),
            parts=[Markup(part) for part in pack.parts],
        )
    )


def report_line(write: Callable[[], Path]) -> str:
    """Write a report, and return a line that says where it is, or what it lacks."""
    try:
        return f"report: {write()}"
    except MissingExtra as error:
        return f"report: none; {error}, then give the same command again"


def write_whole(path: Path, text: str) -> Path:
    """Write a file so that a reader finds the old one or the new one, whole, and return its path."""
    with replacing_file(path) as file:
        file.write(text.encode("utf-8", errors="replace"))
    return path


def page_environment() -> Any:
    """Return jinja2's environment of our pages: what is filled in is escaped."""
    with needs_extra("viz", "a report"):
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    environment = Environment(
        loader=FunctionLoader(template_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"pieces": pieces, "visible": visible}
    environment.globals["symbols"] = SYMBOLS
    return environment


def source_hash(source: str) -> str:
    """Return how a content security policy names an inline script or style."""
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def template_text(name: str) -> str:
    """Return one of our templates, or a style or script that belongs to one."""
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def script_json(data: Mapping[str, Any]) -> str:
    r"""Return data as JSON for a script element: pure ASCII, without ``<``, ``>`` and ``&``."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


class Pack:
    """Episodes as a page holds them: an index, and each one compressed."""

    def __init__(self, episodes: Iterable[Episode] = ()) -> None:
        self._entries: list[dict[str, Any]] = []
        self._names: dict[str, int] = {}
        self.parts: list[str] = []
        for episode in episodes:
            self.add(episode)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, episode: Episode) -> None:
        record = episode_record(episode)
        text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        packed = zlib.compress(text.encode("ascii"), _COMPRESSION)
        self.parts.append(base64.b64encode(packed).decode("ascii"))
        self._entries.append(self._entry(episode, record))

    def index(self) -> dict[str, Any]:
        """Return the index: names, and for each episode what is known before it is unpacked."""
        return {"names": list(self._names), "episodes": self._entries}

    def _entry(self, episode: Episode, record: dict[str, Any]) -> dict[str, Any]:
        """Return an episode's line in the index; names that many share are numbers there."""
        real, imagined = episode.real, episode.imagined
        named = {
            "run": episode.run,
            "environment": real.env_id,
            "agent": real.agent,
            "split": real.split,
            "type": text_env_of(real.env_id).task_type(real.task, real.split),
            "task": real.task,
        }
        outcome = "solved" if real.success else "not solved"
        flags = {
            "imagined": real.imagined or imagined is not None,
            "predicted": any(step.prediction is not None for step in real.steps),
            "revised": any(was_revised(step.notes) for step in real.steps),
            "refused": any(step.invalid_action for step in real.steps),
            "tokens": any(call.logprobs for step in real.steps for call in step.calls),
        }
        entry: dict[str, Any] = {
            "title": episode.title,
            **{key: self._names.setdefault(n, len(self._names)) for key, n in named.items()},
            "outcome": outcome if real.error is None else "failed",
            "steps": max(len(real.steps), len(imagined.steps) if imagined else 0),
            "flags": [name for name, is_set in flags.items() if is_set],
        }
        if real.trial > 1:
            entry["trial"] = real.trial
        of_changes = [
            score
            for score, delta in zip(record["delta_f1"], record["deltas"], strict=True)
            if delta is not None and _changed_facts(delta)
        ]
        if of_changes:  # where nothing changed a failing agent's "Nothing happens." scores 1
            entry["f1"] = round(sum(of_changes) / len(of_changes), 4)
        rank, step = place_of_interest(episode)
        return entry | {"opens": step, "interest": rank}


def place_of_interest(episode: Episode) -> tuple[int, int]:
    """Return how telling an episode's most telling step is, 0 for the most, and which step that is.

    An episode opens there. A revision that raised the score comes first, then one that changed facts,
    in an episode that was solved before others; then a prediction of facts that changed, a wrong one
    before a right one. Step 0 is the start, where there is nothing of that.
    """
    real = episode.real
    places: dict[str, int] = {}
    score_before = 0.0
    scored = zip(real.steps, _compared(real, episode.imagined), strict=False)
    for number, (step, compared) in enumerate(scored, 1):
        kind = _kind_of_interest(step, None if compared is None else compared[0])
        if kind == "revision" and step.score > score_before:
            places.setdefault("progress", number)
        if kind is not None:
            places.setdefault(kind, number)
        score_before = step.score

    for rank, kind in enumerate(_INTEREST):
        if kind in places:
            return 2 * rank + (not real.success), places[kind]
    return 2 * len(_INTEREST), 0


def _kind_of_interest(step: Step, score: float | None) -> str | None:
    """Return what makes a step worth seeing; None where it shows nothing of a world model."""
    changed = len(step.delta) > 0
    if was_revised(step.notes):
        return "revision" if changed else "other revision"
    if score is None:
        return None
    if score < 1:
        return "misprediction" if changed else "other misprediction"
    return "prediction" if changed else None


def _changed_facts(delta: Sequence[int]) -> bool:
    """Return whether facts really changed: some change was foreseen, or missed."""
    foreseen, missed, _ = delta
    return foreseen + missed > 0


def was_revised(notes: Mapping[str, Any]) -> bool:
    return notes.get("gate") is True or notes.get("changed") is True


def forecast_of_draft(step: Step) -> str | None:
    """Return what the world model foresaw of a draft that another action took the place of."""
    said = step.notes.get("predicted_next_state")
    is_told = step.prediction is None and was_revised(step.notes) and isinstance(said, str)
    return said if is_told else None


def gates_of(notes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what was weighed, and how; None where the notes name no draft and no gate."""

    def first(*names: str) -> str | None:
        return next((notes[name] for name in names if isinstance(notes.get(name), str)), None)

    parts = notes.get("gate_parts")
    parts = parts if isinstance(parts, Mapping) else {}
    draft, numbers = first("draft_action", "proposal"), _gate_numbers(notes, parts, settings)
    weighed = isinstance(notes.get("gate"), bool) or isinstance(notes.get("changed"), bool)
    if not (numbers or (draft is not None and weighed)):
        return None
    changed = parts.get("changed")
    found = {
        "draft": draft,
        "reflected": first("ref_action", "choice"),
        "taken": first("exec_action"),
        "path": first("path"),
        "decision": first("decision"),
        "context": first("context_source"),
        "numbers": numbers,
        "revised": was_revised(notes) if weighed else None,
        "changed": changed if isinstance(changed, bool) else None,
        "gated": settings.get("action_gate") is not False,
    }
    return {name: value for name, value in found.items() if value is not None}


def _gate_numbers(
    notes: Mapping[str, Any], parts: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, threshold, passed in (
        ("p", "tau_p", parts.get("p")),
        ("q", "tau_q", parts.get("q")),
        ("agreement", "tau_wm", notes.get("wm_gate")),
    ):
        value, source = _finite(notes.get(name)), notes.get(f"{name}_source")
        if value is not None:
            found[name] = {
                "value": value,
                "threshold": _finite(settings.get(threshold)),
                "source": source if isinstance(source, str) else None,
                "enough": passed if isinstance(passed, bool) else None,
            }
    return found


def _finite(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    with suppress(OverflowError):  # a whole number may be longer than any float
        return round(float(value), 6) if math.isfinite(value) else None
    return None


def _number(value: object) -> float | str:
    """Return a number that JSON has, or else what there is, as text: files may hold anything."""
    found = _finite(value)
    return one_line(str(value)) if found is None else found


def episode_record(episode: Episode) -> dict[str, Any]:
    """Return what the viewer shows of an episode, as data that JSON can hold."""
    writer = _Writer(episode.real.settings)
    record = writer.episode(episode)
    return {"texts": list(writer.texts), "facts": list(writer.fact_texts), **record}


class _Writer:
    """Turns an episode into plain data in which each text and fact is written once."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.texts: dict[str, int] = {}
        self.fact_texts: dict[str, int] = {}
        self.settings = settings

    def text(self, value: object) -> int:
        return self.texts.setdefault(str(value), len(self.texts))  # files may hold anything

    def named(self, values: Mapping[str, object]) -> dict[str, int]:
        return {name: self.text(value) for name, value in values.items() if value is not None}

    def pairs(self, named: Mapping[str, Any]) -> list[list[int]]:
        return [[self.text(name), self.text(_note_text(value))] for name, value in named.items()]

    def facts(self, facts: Iterable[Fact]) -> list[int]:
        known = self.fact_texts
        return [known.setdefault(fact_to_text(fact), len(known)) for fact in sorted(facts)]

    def change(self, before: State, after: State) -> dict[str, Any]:
        delta = diff(before, after)
        both = {"added": self.facts(delta.added), "removed": self.facts(delta.removed)}
        return {key: facts for key, facts in both.items() if facts}

    def episode(self, episode: Episode) -> dict[str, Any]:
        real, imagined = episode.real, episode.imagined
        names = ("task", "split", "goal", "agent", "seed")
        about = {
            "title": episode.title,
            "environment": real.env_id,
            **{name: getattr(real, name) for name in names},
            "trial": real.trial if real.trial > 1 else None,
            "run": episode.run or None,
        }
        scores = _compared(real, imagined)
        return {
            "about": self.named(about),
            "real": self.trajectory(real),
            "imagined": self.predictions(real) if imagined is None else self.trajectory(imagined),
            "delta_f1": [score and score[0] for score in scores],
            "deltas": [score and list(score[1:]) for score in scores],
            **({"settings": self.pairs(real.settings)} if real.settings else {}),
        }

    def trajectory(self, trajectory: Trajectory) -> dict[str, Any]:
        return {
            "observation": self.text(trajectory.observation),
            "facts": self.facts(trajectory.facts.facts),
            "steps": [self.step(before, step) for before, step in trajectory.transitions()],
            "success": trajectory.success,
            "score": _number(trajectory.score),
            **(self.calls("review", trajectory.review) if trajectory.review else {}),
            **self.named({"world_model": trajectory.world_model, "error": trajectory.error}),
        }

    def predictions(self, trajectory: Trajectory) -> dict[str, Any] | None:
        if not any(step.prediction or forecast_of_draft(step) for step in trajectory.steps):
            return None
        steps = [
            step.prediction and self.prediction(before, step.action, step.prediction)
            for before, step in trajectory.transitions()
        ]
        return {"predicted": True, "steps": steps}

    def step(self, before: State, step: Step) -> dict[str, Any]:
        gates = gates_of(step.notes, self.settings)
        flags = {
            "imagined": step.imagined,
            "invalid action": step.invalid_action,
            "not parsed": not step.facts.parsed,
            "success": step.success,
            "terminated": step.terminated,
            "truncated": step.truncated,
        }
        record = {
            "action": self.text(step.action),
            "observation": self.text(step.observation),
            "reward": _number(step.reward),
            "score": _number(step.score),
        }
        optional = {
            "gates": gates
            and {key: self.text(v) if isinstance(v, str) else v for key, v in gates.items()},
            "of_draft": self.of_draft(step),
            "told": self.pairs({k: v for k, v in step.env_info.items() if k != "screenshot"}),
            "screenshot": _screenshot(step.env_info.get("screenshot")),
            "notes": self.pairs({key: v for key, v in step.notes.items() if key != ENV_INFO}),
            **self.calls("calls", step.calls),
            **self.change(before, step.facts),
            "flags": [name for name, is_set in flags.items() if is_set],
        }
        return record | {name: part for name, part in optional.items() if part}

    def of_draft(self, step: Step) -> dict[str, int]:
        """Return the draft that was not taken, and what was foreseen of it."""
        foreseen, draft = forecast_of_draft(step), step.notes.get("draft_action")
        if foreseen is None or not isinstance(draft, str):
            return {}
        return {"action": self.text(draft), "observation": self.text(foreseen)}

    def prediction(self, before: State, action: str, said: Predicted) -> dict[str, Any]:
        record: dict[str, Any] = {
            "action": self.text(action),
            "observation": self.text(said.observation),
            "source": self.text(said.source),
            **self.change(before, said.facts),
        }
        if said.confidence is not None:
            record["confidence"] = _number(said.confidence)
        return record if said.facts.parsed else record | {"flags": ["not parsed"]}

    def calls(self, name: str, calls: Sequence[Call]) -> dict[str, Any]:
        """Return what language models were asked, under a name; how many more there were."""
        left_out = max(len(calls) - _MOST_CALLS, 0)
        written = [self.call(call) for call in calls[:_MOST_CALLS]]
        return {name: written} | ({f"{name}_left_out": left_out} if left_out else {})

    def call(self, call: Call) -> dict[str, Any]:
        names = ("kind", "purpose", "prefix", "finish", "adapter")
        record: dict[str, Any] = {
            "text": self.text(call.text),
            "tokens": [_number(call.prompt_tokens), _number(call.completion_tokens)],
            **self.named({name: getattr(call, name) or None for name in names}),
        }
        if call.messages is not None:
            record["messages"] = [[self.text(part) for part in pair] for pair in call.messages]
        if call.logprobs is not None:  # of each token of a reply, or each option that was scored
            record["logprobs"] = [_number(value) for value in call.logprobs]
            if call.tokens is not None and len(call.tokens) == len(call.logprobs):
                record["pieces"] = [self.text(token) for token in call.tokens]
            elif call.token_ids is not None and len(call.token_ids) == len(call.logprobs):
                record["ids"] = list(call.token_ids)
        return record


def _screenshot(value: object) -> str:
    """Return a picture as a file has it, JPEG in base64; empty where it is none."""
    found = value.get("jpeg") if isinstance(value, Mapping) else None
    fits = isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9+/]{1,2000000}={0,2}", found)
    return str(found) if fits else ""


def _note_text(value: object) -> str:
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return value if len(value) <= _MOST_LETTERS else f"{value[:_MOST_LETTERS]} [...]"


def _compared(real: Trajectory, imagined: Trajectory | None) -> list[_Compared | None]:
    """Return how well each real step's change was foreseen, None where nothing was imagined."""
    if imagined is None:
        return [
            None if step.prediction is None else _score(before, step.prediction.facts, step.facts)
            for before, step in real.transitions()
        ]
    scores: list[_Compared | None] = []
    for (before, step), (known, foreseen) in zip(
        real.transitions(), imagined.transitions(), strict=False
    ):
        changed = apply(before, diff(known, foreseen.facts))  # what else drifted does not count
        scores.append(_score(before, State(changed.facts, foreseen.facts.parsed), step.facts))
    return scores + [None] * (len(real.steps) - len(scores))


def _score(before: State, predicted: State, actual: State) -> _Compared:
    """Return Delta-F1, and how many changes were foreseen, missed, and made up."""
    guess, truth = diff(before, predicted), diff(before, actual)
    shared = len(guess.added & truth.added) + len(guess.removed & truth.removed)
    score = round(delta_f1(before, predicted, actual), 4)
    return score, shared, len(truth) - shared, len(guess) - shared
