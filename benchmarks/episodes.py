"""What the trajectory viewer shows of an episode, as plain data.

An episode's texts and facts are stored once, in two lists, and referred to by number; beliefs are
stored once and then as changes, which the page folds. The messages of prompts, which grow from step
to step, are stored once each. `episode_pack` puts many episodes into a page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..facts import Fact, State, apply, diff, fact_to_text
from ..metrics import delta_f1
from ..trajectory import TOLD, Call, Predicted, Step, Trajectory
from .episode_gates import gates_of
from .marks import one_line

__all__ = ["Episode", "episode_record", "script_json"]

_MOST_CALLS = 100  # shown of a step: a tree search makes thousands
_MOST_LETTERS = 20_000  # shown of a note

_Compared: TypeAlias = "tuple[float, int, int, int]"

_INDENTED = json.JSONEncoder(ensure_ascii=False, indent=1)
_WORDS = {None: "null", True: "true", False: "false"}
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode, with what a world model made of it.

    Attributes:
        title: Its name in the list of episodes.
        real: What happened.
        imagined: What happened on the same task in an imagined environment. Where this is None, the
            predictions that the real steps carry are shown instead, if they do.
        run: The run that it is of, where a page shows several.

    Example:
        >>> trajectory = Trajectory("comap/ALFWorld-v0", "task", "dev", "", "", "", State())
        >>> Episode("first", trajectory, None).title
        'first'
    """

    title: str
    real: Trajectory
    imagined: Trajectory | None
    run: str = ""


class _Numbers:
    """Gives each different text a number, in the order in which they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: object) -> int:
        known = text if isinstance(text, str) else str(text)  # files may hold anything
        return self.numbers.setdefault(known, len(self.numbers))


class _Writer:
    """Turns an episode into plain data that shares texts and facts."""

    def __init__(self, episode: Episode) -> None:
        self.text = _Numbers()
        self.fact = _Numbers()
        self.settings = episode.real.settings

    def facts(self, facts: Iterable[Fact]) -> list[int]:
        return [self.fact(fact_to_text(fact)) for fact in sorted(facts)]

    def change(self, before: State, after: State) -> dict[str, Any]:
        delta = diff(before, after)
        both = {"added": self.facts(delta.added), "removed": self.facts(delta.removed)}
        return {key: facts for key, facts in both.items() if facts}

    def step(self, before: State, step: Step) -> dict[str, Any]:
        record = {
            "action": self.text(step.action),
            "observation": self.text(step.observation),
            "reward": _number(step.reward),
            "score": _number(step.score),
        }
        flags = _flags(step)
        noted = {name: note for name, note in step.notes.items() if name != TOLD}
        told = {
            "gates": self.gates(step.notes),
            "told": self.pairs(step.told),
            "notes": self.pairs(noted),
            **self.calls("calls", step.calls),
        }
        record |= {name: part for name, part in told.items() if part}
        return record | self.change(before, step.facts) | ({"flags": flags} if flags else {})

    def gates(self, notes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what gates weighed, its texts by number."""
        found = gates_of(notes, self.settings)
        return found and {
            name: self.text(value) if isinstance(value, str) else value
            for name, value in found.items()
        }

    def pairs(self, named: Mapping[str, Any]) -> list[list[int]]:
        """Return names and values, the values as text."""
        return [[self.text(str(name)), self.text(_told(value))] for name, value in named.items()]

    def calls(self, name: str, calls: Sequence[Call]) -> dict[str, Any]:
        """Return what language models were asked, under a name; how many more there were."""
        left_out = max(len(calls) - _MOST_CALLS, 0)
        written = [self.call(call) for call in calls[:_MOST_CALLS]]
        return {name: written} | ({f"{name}_left_out": left_out} if left_out else {})

    def call(self, call: Call) -> dict[str, Any]:
        named = {
            "kind": call.kind,
            "purpose": call.purpose,
            "prefix": call.prefix,
            "finish": call.finish,
            "adapter": call.adapter,
        }
        record: dict[str, Any] = {
            "text": self.text(call.text),
            "tokens": [_number(call.prompt_tokens), _number(call.completion_tokens)],
        }
        if call.logprobs is not None:
            record |= self.logprobs(call)
        if call.messages is not None:
            record["messages"] = [[self.text(str(part)) for part in pair] for pair in call.messages]
        return record | {key: self.text(str(value)) for key, value in named.items() if value}

    def logprobs(self, call: Call) -> dict[str, Any]:
        """Return what is known of each token of a reply, or of each option that was scored."""
        values = call.logprobs or ()
        record: dict[str, Any] = {"logprobs": [_number(value) for value in values]}
        if call.tokens is not None and len(call.tokens) == len(values):
            record["pieces"] = [self.text(token) for token in call.tokens]
        elif call.token_ids is not None and len(call.token_ids) == len(values):
            record["ids"] = list(call.token_ids)
        return record

    def prediction(self, before: State, action: str, said: Predicted | None) -> Any:
        if said is None:
            return None
        record: dict[str, Any] = {
            "action": self.text(action),
            "observation": self.text(said.observation),
            "source": self.text(said.source),
        }
        if said.confidence is not None:
            record["confidence"] = _number(said.confidence)
        flags = {} if said.facts.parsed else {"flags": ["not parsed"]}
        return record | self.change(before, said.facts) | flags

    def trajectory(self, trajectory: Trajectory) -> dict[str, Any]:
        record: dict[str, Any] = {
            "observation": self.text(trajectory.observation),
            "facts": self.facts(trajectory.facts.facts),
            "steps": [self.step(before, step) for before, step in trajectory.transitions()],
            "success": trajectory.success,
            "score": _number(trajectory.score),
        }
        if trajectory.review:
            record |= self.calls("review", trajectory.review)
        named = {"world_model": trajectory.world_model, "error": trajectory.error}
        return record | {key: self.text(value) for key, value in named.items() if value is not None}

    def predictions(self, trajectory: Trajectory) -> dict[str, Any] | None:
        """Return the predictions that the steps carry, in the shape of a trajectory."""
        if not any(step.prediction for step in trajectory.steps):
            return None
        steps = [
            self.prediction(before, step.action, step.prediction)
            for before, step in trajectory.transitions()
        ]
        return {"predicted": True, "steps": steps}

    def episode(self, episode: Episode) -> dict[str, Any]:
        real, imagined = episode.real, episode.imagined
        about: dict[str, str | None] = {
            "title": episode.title,
            "environment": real.env_id,
            "task": real.task,
            "split": real.split,
            "goal": real.goal,
            "agent": real.agent,
            "seed": None if real.seed is None else str(real.seed),
            "trial": str(real.trial) if real.trial > 1 else None,
            "run": episode.run or None,
        }
        scores = _compared(real, imagined)
        return {
            "about": {key: self.text(value) for key, value in about.items() if value is not None},
            "real": self.trajectory(real),
            "imagined": self.predictions(real) if imagined is None else self.trajectory(imagined),
            "delta_f1": [score and score[0] for score in scores],
            "deltas": [score and list(score[1:]) for score in scores],
            **({"settings": self.pairs(real.settings)} if real.settings else {}),
        }


def episode_record(episode: Episode) -> dict[str, Any]:
    """Return what the viewer shows of an episode, as data that JSON can hold.

    Example:
        >>> start = Trajectory("comap/ALFWorld-v0", "task", "dev", "find it", "", "a room", State())
        >>> episode_record(Episode("first", start, None))["texts"]
        ['first', 'comap/ALFWorld-v0', 'task', 'dev', 'find it', '', 'a room']
    """
    writer = _Writer(episode)
    record = writer.episode(episode)
    return {"texts": list(writer.text.numbers), "facts": list(writer.fact.numbers), **record}


def script_json(data: Mapping[str, Any]) -> str:
    r"""Return data as JSON for a script element: pure ASCII, without ``<``, ``>`` and ``&``.

    Example:
        >>> script_json({"text": "</script>"})
        '{"text":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _number(value: object) -> float | str:
    """Return a number that JSON has, or else what there is, as text: files may hold anything."""
    if isinstance(value, int | float):
        with suppress(OverflowError):  # a whole number may be longer than any float
            return round(float(value), 6) if math.isfinite(value) else str(value)
    return one_line(str(value))


def _told(value: object) -> str:
    """Return a note as text that is easy to read."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list | dict):
        text = _INDENTED.encode(value)
    else:
        text = _WORDS[value] if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} [...]"


def _flags(step: Step) -> list[str]:
    flags = {
        "imagined": step.imagined,
        "invalid action": step.invalid_action,
        "not parsed": not step.facts.parsed,
        "success": step.success,
        "terminated": step.terminated,
        "truncated": step.truncated,
    }
    return [name for name, is_set in flags.items() if is_set]


def _compared(real: Trajectory, imagined: Trajectory | None) -> list[_Compared | None]:
    """Return how well each real step's change was foreseen, None where nothing was imagined.

    Two episodes drift apart, so what an imagined step changed is scored as a change of the real
    belief: the score says how good this step is, not how far the episodes are apart.
    """
    if imagined is None:
        return [
            None if step.prediction is None else _score(before, step.prediction.facts, step.facts)
            for before, step in real.transitions()
        ]
    scores: list[_Compared | None] = [None] * len(real.steps)
    pairs = zip(real.transitions(), imagined.transitions(), strict=False)
    for i, ((before, step), (dreamt_before, dreamt)) in enumerate(pairs):
        changed = apply(before, diff(dreamt_before, dreamt.facts))
        scores[i] = _score(before, State(changed.facts, dreamt.facts.parsed), step.facts)
    return scores


def _score(before: State, predicted: State, actual: State) -> _Compared:
    """Return Delta-F1, and how many changes were foreseen, missed, and made up."""
    guess, truth = diff(before, predicted), diff(before, actual)
    shared = len(guess.added & truth.added) + len(guess.removed & truth.removed)
    score = round(delta_f1(before, predicted, actual), 4)
    return score, shared, len(truth) - shared, len(guess) - shared
