"""Trajectories: what happened in an episode, step by step.

Metrics, trainers and the viewer read trajectories and nothing else. On disk a trajectory is one
line of JSON; beliefs are stored once, then as changes, and come back whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat, TypeVar, get_args, get_origin, get_type_hints

from . import jsonl
from .errors import DataCorrupt
from .facts import Delta, Fact, State, apply

Record = TypeVar("Record")

SCHEMA = 2
READABLE = (1, 2)  # schema 1 has no calls, notes, settings and trials
ENV_INFO = "env_info"
"""The note of a step that the environment's `info` gave, not the agent: see `Step.env_info`."""
UNOBSERVED = "unobserved"
"""The note of an imported step of which nobody recorded what followed: its observation is empty."""
IMPORTED = "imported"
"""The setting of an imported trajectory that says where it comes from: see `Trajectory.origin`."""

_PARTS = ("thought", "analysis", "probability", "depth")
"""What purposes end with where a request asks for a part of a reply: the rest is asked for by itself, so
that the part may end anywhere."""


class Turn(NamedTuple):
    """An action and the text that followed; None as the action stands for the episode's start."""

    action: str | None
    observation: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a world model said would follow an action.

    Attributes:
        observation: The predicted text.
        facts: The belief that the predicted text leads to.
        delta: The change that it predicts.
        source: Which world model said so.
        confidence: Its own confidence, 0 to 1, if it has one.
    """

    observation: str
    facts: State
    delta: Delta
    source: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a language model, and what came back.

    Attributes:
        kind: ``"generate"``, ``"score"``, ``"words"`` or ``"encode"``; ``"imagine"`` where a world
            model asked its language model.
        purpose: What the agent asked for, in its own words: ``"draft"``, ``"reflect"``.
        text: The reply: generated text, or the text that scored best.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens generated, or scored.
        messages: The conversation as pairs of role and content; None where prompts are not kept.
        prefix: The given beginning of the reply.
        token_ids: The generated tokens, where they are kept.
        logprobs: Their log-probabilities, where they are kept; of a score, one for each option.
        finish: Why generation ended: ``"stop"`` or ``"length"``.
        adapter: Which adapter answered.
        tokens: The text of each token, or each option, one for each log-probability, where they are
            kept and the model returns them. On disk it is only where it is not None.
    """

    kind: str
    purpose: str
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    messages: tuple[tuple[str, str], ...] | None = None
    prefix: str = ""
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    finish: str = ""
    adapter: str | None = None
    tokens: tuple[str, ...] | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the reply ended at its limit of tokens, not where the model would have ended it."""
        part = self.purpose.rpartition(": ")[2]
        return self.finish == "length" and part not in _PARTS

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Call:
        """Read a call from plain data, with lists for tuples."""
        fields = dict(data)
        for name, field_value in data.items():
            if isinstance(field_value, list):
                fields[name] = tuple(field_value)

        # Each message is a list in JSON, too.
        messages = data.get("messages")
        fields["messages"] = messages and tuple((role, text) for role, text in messages)
        return checked(cls(**fields))


@dataclass(frozen=True, slots=True)
class Step:
    """One action and what followed.

    Attributes:
        t: Number of the step, from 1.
        action: The action as it was sent.
        observation: The text that followed.
        reward: The step's reward.
        terminated: Whether the episode ended by its own rules.
        truncated: Whether it was cut: the step limit or a fault.
        imagined: Whether `observation` was predicted rather than real.
        facts: The belief after the step.
        delta: What the step changed in it.
        score: Progress, 0 to 1.
        success: Whether the task was solved.
        invalid_action: Whether the environment refused the action.
        prediction: What a world model had predicted of this step, if one was asked.
        calls: What language models were asked for this decision.
        notes: What the agent says of this decision, as JSON data: drafts, gates and the like. The name
            in `ENV_INFO` is reserved for what the environment reported.
        seconds: How long the environment took, and how long the agent's requests waited for answers.
            Files of trajectories do not have it, so that the same episode is the same bytes.
    """

    t: int
    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    imagined: bool
    facts: State
    delta: Delta
    score: float = 0.0
    success: bool = False
    invalid_action: bool = False
    prediction: Predicted | None = None
    calls: tuple[Call, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    seconds: tuple[float, float] | None = field(default=None, compare=False)

    @property
    def env_info(self) -> Mapping[str, Any]:
        """What the environment's `info` had beside the fields above, of the keys in its `info_kept`.

        What it did not report, or reported as nothing, is not there.
        """
        info = self.notes.get(ENV_INFO)
        return info if isinstance(info, Mapping) else {}

    @classmethod
    def of(
        cls,
        action: str,
        answer: tuple[str, SupportsFloat, bool, bool, Mapping[str, Any]],
        prediction: Predicted | None = None,
        calls: tuple[Call, ...] = (),
        notes: Mapping[str, Any] | None = None,
        seconds: tuple[float, float] | None = None,
    ) -> Step:
        """Return the record of what ``env.step(action)`` answered."""
        observation, reward, terminated, truncated, info = answer
        return cls(
            t=info["step"],
            action=action,
            observation=observation,
            # A wrapper may answer with numpy's types, which JSON has not.
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            imagined=info["imagined"],
            facts=info["facts"],
            delta=info["delta"],
            score=info["score"],
            success=info["success"],
            invalid_action=info["invalid_action"],
            prediction=prediction,
            calls=calls,
            notes=notes or {},
            seconds=seconds,
        )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode.

    Attributes:
        env_id: The environment.
        task: The task's id.
        split: Its split.
        goal: The task in words.
        agent: Who acted.
        observation: The first text.
        facts: The belief after it.
        steps: What followed.
        world_model: Which world model imagined or predicted, if any.
        seed: The seed of the episode, if one was given.
        error: Type and message of the fault that ended the episode, if one did.
        fingerprint: The environment's fingerprint.
        trial: Which attempt at the task this is, from 1.
        settings: How the agent was set up (decoding, state text, prompts, model), as JSON data.
        review: What language models were asked after the episode's end.
    """

    env_id: str
    task: str
    split: str
    goal: str
    agent: str
    observation: str
    facts: State
    steps: tuple[Step, ...] = ()
    world_model: str | None = None
    seed: int | None = None
    error: str | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    trial: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    review: tuple[Call, ...] = ()

    @property
    def success(self) -> bool:
        """Whether the task was solved at the end."""
        return bool(self.steps) and self.steps[-1].success

    @property
    def score(self) -> float:
        """The progress at the end, 0 to 1."""
        return self.steps[-1].score if self.steps else 0.0

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where an imported trajectory comes from: `comap.integrations.published`; empty if played here."""
        origin = self.settings.get(IMPORTED)
        return origin if isinstance(origin, Mapping) else {}

    @property
    def has_outcome(self) -> bool:
        """Whether `success` and `score` are known; of what others published they may be unknown."""
        return not self.origin or self.origin.get("outcome") == "known"

    @property
    def imagined(self) -> bool:
        """Whether any step was imagined."""
        return any(step.imagined for step in self.steps)

    def transitions(self) -> Iterator[tuple[State, Step]]:
        """Yield each step with the belief before it."""
        before = self.facts
        for step in self.steps:
            yield before, step
            before = step.facts

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        fields = _fields(self)
        return fields | {
            "schema": SCHEMA,
            "facts": self.facts.to_text(),
            "fingerprint": dict(self.fingerprint),
            "steps": [_step_to_json(step) for step in self.steps],
            "settings": dict(self.settings),
            "review": [_call_to_json(call) for call in self.review],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trajectory:
        """Read what `to_json` returned.

        Raises:
            DataCorrupt: It is of another schema, lacks a field, or has a value of another type.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else data
        if schema not in READABLE or not isinstance(data, Mapping):
            raise DataCorrupt(
                f"expected a trajectory of schema 1 or {SCHEMA}, found {schema!r:.80}"
            )

        try:
            # Only the first belief is stored: each step's is the one before with the step's change.
            facts = State.from_text(data["facts"])
            steps = []
            before = facts
            for record in data["steps"]:
                step = _step_from_json(record, before)
                steps.append(step)
                before = step.facts

            # The rest are fields as they are. Older versions wrote a line's checksum into it.
            parsed_here = ("schema", "facts", "steps", "review", "crc32")
            rest = {key: value for key, value in data.items() if key not in parsed_here}
            review = tuple(Call.from_json(call) for call in data.get("review", ()))
            return checked(cls(facts=facts, steps=tuple(steps), review=review, **rest))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise DataCorrupt(f"expected a whole trajectory, found {problem}") from error


def checked(record: Record) -> Record:
    """Return a record whose fields have the annotated types; raise TypeError at one that has not."""
    record_type: Any = type(record)
    for name, fits in _checks(record_type):
        if not fits(getattr(record, name)):
            type_name = type(getattr(record, name)).__name__
            raise TypeError(f"{name} is no {record_type.__annotations__[name]}, found {type_name}")
    return record


# Evaluating annotations takes longer than all checks: it is done once for each class.
@cache
def _checks(record_type: type) -> list[tuple[str, Callable[[Any], bool]]]:
    """Return for each field of a dataclass its name, and the check of its type."""
    return [(name, _check(hint)) for name, hint in get_type_hints(record_type).items()]


def _check(hint: Any) -> Callable[[Any], bool]:
    """Return the function that tells whether a value is of an annotation's type.

    The annotation may be anything that the records of this module have, but nothing else.
    """
    kind = get_origin(hint)
    args = get_args(hint)
    if hint is Any:
        return lambda value: True
    if kind is Mapping:
        return lambda value: isinstance(value, Mapping) and jsonl.is_shallow(value)

    # A tuple of any length, or one with a type for each position.
    inner = [_check(arg) for arg in args if arg is not ...]
    if kind in (tuple, frozenset) and len(inner) == 1:
        return lambda value: isinstance(value, kind) and all(map(inner[0], value))
    if kind is tuple:
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(inner)
            and all(fits(part) for fits, part in zip(inner, value, strict=True))
        )

    # A union that has a container among its types.
    if kind is not None and any(map(get_origin, args)):
        return lambda value: any(fits(value) for fits in inner)

    # Plain classes: JSON may have an int for a float, but never a bool, nor more than 64 bits.
    classes = (args if kind else (hint,)) + ((int,) if float in (hint, *args) else ())
    return lambda value: (
        isinstance(value, classes)
        and (type(value) is not bool or bool in classes)
        and (type(value) is not int or abs(value) < 2**63)
    )


def _fields(record: Any) -> dict[str, Any]:
    """Return a dataclass's fields as a dictionary, without going into them."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _call_to_json(call: Call) -> dict[str, Any]:
    """Return a call's fields; what versions before cannot read is left out where it says nothing."""
    fields = _fields(call)
    if call.tokens is None:
        del fields["tokens"]
    return fields


def _delta_to_json(delta: Delta) -> dict[str, list[Fact]]:
    # Sorted: the order of a set differs from process to process, and a file must not.
    return {"added": sorted(delta.added), "removed": sorted(delta.removed)}


def _delta_from_json(data: Mapping[str, Any]) -> Delta:
    added = frozenset(map(tuple, data["added"]))
    removed = frozenset(map(tuple, data["removed"]))
    return checked(Delta(added, removed))


def _step_to_json(step: Step) -> dict[str, Any]:
    """Return a step's fields; of the belief only whether it could be read, as the deltas give it."""
    fields = _fields(step)
    del fields["seconds"]  # the same episode is the same bytes

    prediction = None
    if step.prediction is not None:
        prediction = _fields(step.prediction) | {
            "facts": step.prediction.facts.parsed,
            "delta": _delta_to_json(step.prediction.delta),
        }

    return fields | {
        "facts": step.facts.parsed,
        "delta": _delta_to_json(step.delta),
        "calls": [_call_to_json(call) for call in step.calls],
        "notes": dict(step.notes),
        "prediction": prediction,
    }


def _step_from_json(data: Mapping[str, Any], before: State) -> Step:
    """Return the step that JSON data describe; its belief is the one before it, with its delta."""
    delta = _delta_from_json(data["delta"])

    # Under "facts" is only whether the text could be read: `State.parsed`.
    prediction = None
    if data["prediction"] is not None:
        fields = data["prediction"]
        predicted_delta = _delta_from_json(fields["delta"])
        predicted_facts = State(apply(before, predicted_delta).facts, fields["facts"])
        parsed_here = {"facts": predicted_facts, "delta": predicted_delta}
        prediction = checked(Predicted(**{**fields, **parsed_here}))

    parsed = {
        "facts": State(apply(before, delta).facts, data["facts"]),
        "delta": delta,
        "prediction": prediction,
        "calls": tuple(Call.from_json(call) for call in data.get("calls", ())),
    }
    return checked(Step(**{**data, **parsed}))


def write_trajectories(
    path: Path, trajectories: Iterable[Trajectory], append: bool = False
) -> None:
    """Write trajectories, one line of JSON each.

    Args:
        path: The file; its folder is made where it is missing.
        trajectories: What to write.
        append: Add to the file; else it is replaced, by the whole new one or not at all.
    """
    records = (trajectory.to_json() for trajectory in trajectories)
    if append:
        jsonl.append(path, records)
    else:
        jsonl.write(path, records)


def read_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file that `write_trajectories` wrote, without a torn last line.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: A line is not a trajectory; the message says which.
    """
    return jsonl.read(Path(path), Trajectory.from_json, expected="a trajectory")
