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

_PAGE_STYLE = "report.css"
_VIEWER_STYLE = "viewer.css"
_SCRIPTS = ("text", "data", "lists", "filters", "search", "compare", "thoughts", "step", "main")
_MOST_CALLS = 100  # shown of a step: a tree search makes thousands
_MOST_LETTERS = 20_000  # shown of a note
_COMPRESSION = 6  # higher levels take twice the time for a few percent

_BASE64 = re.compile(r"[A-Za-z0-9+/]{1,2000000}={0,2}")  # nothing that could end an attribute

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

    # The viewer is a part of pages with episodes alone; others run no script.
    pack = episodes if isinstance(episodes, Pack) else Pack(episodes)
    style = template_text(_PAGE_STYLE)
    script = ""
    if len(pack):
        style += template_text(_VIEWER_STYLE)
        # The script's parts share one scope, and nothing of it is global.
        parts = "".join(template_text(f"viewer_{name}.js") for name in _SCRIPTS)
        script = f'"use strict";\n(() => {{\n{parts}}})();\n'

    return str(
        environment.get_template("report.html").render(
            title=title,
            about=about,
            lead=lead,
            summary=summary,
            sections=[_section_data(section) for section in sections],
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


def _section_data(section: Section) -> dict[str, Any]:
    """Return what the template shows of a section."""
    return {
        "title": section.title,
        "note": section.note,
        "terms": section.terms,
        "folded": section.folded,
        "tables": [
            (table, format_cells(table), numeric_columns(table)) for table in section.tables
        ],
        "plots": [(plot, image_of(plot)) for plot in section.plots],
    }


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

    # A name that a template misspells is a fault (StrictUndefined), not an empty text.
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


def _type_of(trajectory: Trajectory) -> str:
    """Return the type of an episode's task; ids of imported ones name no types of ours."""
    if trajectory.origin:
        return ""
    return text_env_of(trajectory.env_id).task_type(trajectory.task, trajectory.split)


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
        """Compress an episode, so that only its line in the index stays as it is."""
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
        real = episode.real
        imagined = episode.imagined
        names = {
            "run": episode.run,
            "environment": real.env_id,
            "agent": real.agent,
            "split": real.split,
            "type": _type_of(real),
            "task": real.task,
        }

        outcome = "solved" if real.success else "not solved"
        if not real.has_outcome:
            outcome = "outcome unknown"
        if real.error is not None:
            outcome = "failed"

        flags = {
            "imagined": real.imagined or imagined is not None,
            "predicted": any(step.prediction is not None for step in real.steps),
            "revised": any(was_revised(step.notes) for step in real.steps),
            "refused": any(step.invalid_action for step in real.steps),
            "tokens": any(call.logprobs for step in real.steps for call in step.calls),
        }

        step_count = len(real.steps)
        if imagined is not None:
            step_count = max(step_count, len(imagined.steps))

        entry: dict[str, Any] = {"title": episode.title}
        for key, name in names.items():
            entry[key] = self._names.setdefault(name, len(self._names))
        entry["outcome"] = outcome
        entry["steps"] = step_count
        entry["flags"] = [flag for flag, is_set in flags.items() if is_set]
        if real.trial > 1:
            entry["trial"] = real.trial

        # Of changes alone: where nothing changed a failing agent's "Nothing happens." scores 1.
        scores_of_changes = []
        for score, delta in zip(record["delta_f1"], record["deltas"], strict=True):
            if delta is not None and _changed_facts(delta):
                scores_of_changes.append(score)
        if scores_of_changes:
            entry["f1"] = round(sum(scores_of_changes) / len(scores_of_changes), 4)

        rank, step = place_of_interest(episode)
        return entry | {"opens": step, "interest": rank}


def place_of_interest(episode: Episode) -> tuple[int, int]:
    """Return how telling an episode's most telling step is, 0 for the most, and which step that is.

    An episode opens there. A revision that raised the score comes first, then one that changed facts,
    in an episode that was solved before others; then a prediction of facts that changed, a wrong one
    before a right one. Step 0 is the start, where there is nothing of that.
    """
    real = episode.real
    places: dict[str, int] = {}  # of each kind the first step
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
    forecast = step.notes.get("predicted_next_state")
    if step.prediction is not None or not was_revised(step.notes):
        return None
    return forecast if isinstance(forecast, str) else None


def gates_of(notes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what was weighed, and how; None where the notes name no draft and no gate."""

    # Agents name the same thing differently, and a file may hold anything under a name.
    def first_text(*names: str) -> str | None:
        return next((notes[name] for name in names if isinstance(notes.get(name), str)), None)

    parts = notes.get("gate_parts")
    if not isinstance(parts, Mapping):
        parts = {}
    draft = first_text("draft_action", "proposal")
    numbers = _gate_numbers(notes, parts, settings)
    is_weighed = any(isinstance(notes.get(name), bool) for name in ("gate", "changed"))
    if not numbers and (draft is None or not is_weighed):
        return None

    gates = {
        "draft": draft,
        "reflected": first_text("ref_action", "choice"),
        "taken": first_text("exec_action"),
        "path": first_text("path"),
        "decision": first_text("decision"),
        "context": first_text("context_source"),
        "numbers": numbers,
        "revised": was_revised(notes) if is_weighed else None,
        "changed": _truth(parts.get("changed")),
        "gated": settings.get("action_gate") is not False,
    }
    return {name: value for name, value in gates.items() if value is not None}


def _gate_numbers(
    notes: Mapping[str, Any], parts: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the numbers that a gate compared with its thresholds (CoMap, eq. 2-6)."""
    numbers: dict[str, Any] = {}
    for name, threshold, passed in (
        ("p", "tau_p", parts.get("p")),
        ("q", "tau_q", parts.get("q")),
        ("agreement", "tau_wm", notes.get("wm_gate")),
    ):
        number = _finite(notes.get(name))
        source = notes.get(f"{name}_source")
        if number is not None:
            numbers[name] = {
                "value": number,
                "threshold": _finite(settings.get(threshold)),
                "source": source if isinstance(source, str) else None,
                "enough": _truth(passed),
            }
    return numbers


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _finite(value: object) -> float | None:
    """Return a finite number with six decimals; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    with suppress(OverflowError):  # a whole number may be longer than any float
        return round(float(value), 6) if math.isfinite(value) else None
    return None


def _number(value: object) -> float | str:
    """Return a number that JSON has, or else what there is, as text: files may hold anything."""
    number = _finite(value)
    return one_line(str(value)) if number is None else number


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

    # The order in which texts and facts are met is the order of their numbers on a page, which must
    # stay the same bytes: what is written first in these methods has the smaller numbers.

    def text(self, value: object) -> int:
        """Return the number of a text; the same text has the same one."""
        return self.texts.setdefault(str(value), len(self.texts))  # files may hold anything

    def named(self, values: Mapping[str, object]) -> dict[str, int]:
        return {name: self.text(value) for name, value in values.items() if value is not None}

    def pairs(self, notes: Mapping[str, Any]) -> list[list[int]]:
        return [[self.text(name), self.text(_note_text(value))] for name, value in notes.items()]

    def facts(self, facts: Iterable[Fact]) -> list[int]:
        numbers = self.fact_texts
        return [numbers.setdefault(fact_to_text(fact), len(numbers)) for fact in sorted(facts)]

    def change(self, before: State, after: State) -> dict[str, Any]:
        delta = diff(before, after)
        facts = {"added": self.facts(delta.added), "removed": self.facts(delta.removed)}
        return {key: numbers for key, numbers in facts.items() if numbers}

    def episode(self, episode: Episode) -> dict[str, Any]:
        """Return an episode, what was imagined of it, and how the two compare step by step."""
        real = episode.real
        imagined = episode.imagined
        head = {
            "title": episode.title,
            "environment": real.env_id,
            "task": real.task,
            "split": real.split,
            "goal": real.goal,
            "agent": real.agent,
            "seed": real.seed,
            "trial": real.trial if real.trial > 1 else None,
            "run": episode.run or None,
        }

        scores = _compared(real, imagined)
        record: dict[str, Any] = {
            "about": self.named(head),
            "real": self.trajectory(real),
            "imagined": self.predictions(real) if imagined is None else self.trajectory(imagined),
            "delta_f1": [score and score[0] for score in scores],
            "deltas": [score and list(score[1:]) for score in scores],
        }
        if real.settings:
            record["settings"] = self.pairs(real.settings)
        return record

    def trajectory(self, trajectory: Trajectory) -> dict[str, Any]:
        """Return a trajectory: where it began, its steps, and how it ended."""
        record: dict[str, Any] = {
            "observation": self.text(trajectory.observation),
            "facts": self.facts(trajectory.facts.facts),
            "steps": [self.step(before, step) for before, step in trajectory.transitions()],
            "success": trajectory.success,
            "score": _number(trajectory.score),
        }
        # Of imported episodes rewards and scores may be unknown: no number is shown then, and no 0.
        if not trajectory.has_outcome:
            record |= {"success": None, "score": None}
            for step in record["steps"]:
                del step["reward"], step["score"]
        if trajectory.review:
            record |= self.calls("review", trajectory.review)
        ends = {"world_model": trajectory.world_model, "error": trajectory.error}
        return record | self.named(ends)

    def predictions(self, trajectory: Trajectory) -> dict[str, Any] | None:
        """Return what a world model predicted of each step; None where it was asked of none."""
        if not any(step.prediction or forecast_of_draft(step) for step in trajectory.steps):
            return None
        steps = [
            step.prediction and self.prediction(before, step.action, step.prediction)
            for before, step in trajectory.transitions()
        ]
        return {"predicted": True, "steps": steps}

    def step(self, before: State, step: Step) -> dict[str, Any]:
        """Return a step without the parts that are empty, which most are in most steps."""
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
        optional_parts = {
            "gates": self.gates(step),
            "of_draft": self.of_draft(step),
            "told": self.pairs(_without(step.env_info, "screenshot")),
            "screenshot": _screenshot(step.env_info.get("screenshot")),
            "notes": self.pairs(_without(step.notes, ENV_INFO)),
            **self.calls("calls", step.calls),
            **self.change(before, step.facts),
            "flags": [name for name, is_set in flags.items() if is_set],
        }
        return record | {name: part for name, part in optional_parts.items() if part}

    def gates(self, step: Step) -> dict[str, Any]:
        """Return what was weighed at a step, with the numbers of its texts; empty where nothing was."""
        gates = dict(gates_of(step.notes, self.settings) or {})
        for name, value in gates.items():
            if isinstance(value, str):
                gates[name] = self.text(value)
        return gates

    def of_draft(self, step: Step) -> dict[str, int]:
        """Return the draft that was not taken, and what was foreseen of it."""
        forecast = forecast_of_draft(step)
        draft = step.notes.get("draft_action")
        if forecast is None or not isinstance(draft, str):
            return {}
        return {"action": self.text(draft), "observation": self.text(forecast)}

    def prediction(self, before: State, action: str, prediction: Predicted) -> dict[str, Any]:
        """Return what a world model predicted of an action."""
        record: dict[str, Any] = {
            "action": self.text(action),
            "observation": self.text(prediction.observation),
            "source": self.text(prediction.source),
            **self.change(before, prediction.facts),
        }
        if prediction.confidence is not None:
            record["confidence"] = _number(prediction.confidence)
        if not prediction.facts.parsed:
            record["flags"] = ["not parsed"]
        return record

    def calls(self, name: str, calls: Sequence[Call]) -> dict[str, Any]:
        """Return what language models were asked, under a name; how many more there were."""
        record: dict[str, Any] = {name: [self.call(call) for call in calls[:_MOST_CALLS]]}
        if len(calls) > _MOST_CALLS:
            record[f"{name}_left_out"] = len(calls) - _MOST_CALLS
        return record

    def call(self, call: Call) -> dict[str, Any]:
        """Return what a language model was asked and replied, with what is recorded of its tokens."""
        names = ("kind", "purpose", "prefix", "finish", "adapter")
        record: dict[str, Any] = {
            "text": self.text(call.text),
            "tokens": [_number(call.prompt_tokens), _number(call.completion_tokens)],
            **self.named({name: getattr(call, name) or None for name in names}),
        }
        if call.messages is not None:
            record["messages"] = [[self.text(part) for part in pair] for pair in call.messages]
        if call.logprobs is not None:  # of each token of a reply, or each option that was scored
            record["logprobs"] = [_number(logprob) for logprob in call.logprobs]
            if call.tokens is not None and len(call.tokens) == len(call.logprobs):
                record["pieces"] = [self.text(token) for token in call.tokens]
            elif call.token_ids is not None and len(call.token_ids) == len(call.logprobs):
                record["ids"] = list(call.token_ids)
        return record


def _screenshot(value: object) -> str:
    """Return a picture as a file has it, JPEG in base64; empty where it is none."""
    picture = value.get("jpeg") if isinstance(value, Mapping) else None
    if not isinstance(picture, str):
        return ""
    return picture if _BASE64.fullmatch(picture) else ""


def _without(notes: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: note for key, note in notes.items() if key != name}


def _note_text(value: object) -> str:
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return value if len(value) <= _MOST_LETTERS else f"{value[:_MOST_LETTERS]} [...]"


def _compared(real: Trajectory, imagined: Trajectory | None) -> list[_Compared | None]:
    """Return how well each real step's change was foreseen, None where nothing was imagined."""
    scores: list[_Compared | None] = []
    if imagined is None:
        for before, step in real.transitions():
            if step.prediction is None:
                scores.append(None)
            else:
                scores.append(_score(before, step.prediction.facts, step.facts))
        return scores

    # An imagined episode drifts from the real one: only what changed in a step is compared.
    both = zip(real.transitions(), imagined.transitions(), strict=False)
    for (before, step), (imagined_before, imagined_step) in both:
        changed = apply(before, diff(imagined_before, imagined_step.facts))
        predicted = State(changed.facts, imagined_step.facts.parsed)
        scores.append(_score(before, predicted, step.facts))
    return scores + [None] * (len(real.steps) - len(scores))


def _score(before: State, predicted: State, actual: State) -> _Compared:
    """Return Delta-F1, and how many changes were foreseen, missed, and made up."""
    predicted_change = diff(before, predicted)
    change = diff(before, actual)
    shared = len(predicted_change.added & change.added)
    shared += len(predicted_change.removed & change.removed)
    score = round(delta_f1(before, predicted, actual), 4)
    return score, shared, len(change) - shared, len(predicted_change) - shared
