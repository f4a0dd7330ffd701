"""What the stages of a training came to: dataclasses, and their one way to JSON and back.

A stage's work returns one of these, or a mapping of a method's own measures; it becomes JSON where the
stage's ``done.json`` is written. Reports read the same classes again. What they read may be damaged, or of
another version, so reading never fails: a number that is missing, not finite or no number at all is None.

Shares and rates are from 0 to 1 unless a field says that they are in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..agents.comap import GatePath
from ..metrics import PredicateScore, Rate, wilson

T = TypeVar("T")
K = TypeVar("K")

_IN_PLACE = {"in place": True}
"""Marks a part whose own fields stand in JSON beside those of the whole."""

_MOST_EPISODES = 10**7  # more than anybody plays; a number that large is a fault


@dataclass(frozen=True, slots=True)
class Distribution:
    """Numbers from 0 to 1."""

    n: int | None
    """How many there are."""
    mean: float | None
    """Their mean; None of nothing."""
    histogram: tuple[int, ...]
    """How many lie in each tenth of 0 to 1."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share, and how many cases it is of."""

    n: int | None
    """How many cases there are."""
    value: float | None
    """The share; None of nothing."""


@dataclass(frozen=True, slots=True)
class ForeseenRefusals:
    """How student and environment agree on drafts that are refused."""

    n: int | None
    """Drafts of which the student predicts that they are refused."""
    precision: float | None
    """Share of those that the environment refuses; None where there are none."""
    real: int | None
    """Drafts that the environment refuses."""
    recall: float | None
    """Share of those that the student foresees; None where there are none."""


@dataclass(frozen=True, slots=True)
class Truthfulness:
    """How predictions in rollouts compare with the real next state, which probes find out."""

    student_f1: Distribution
    """F1 of the facts that the student changes."""
    teacher_f1: Distribution
    """F1 of the facts that the teacher changes."""
    gate_precision: Share
    """Of the predictions that the world-state gate adopts, those of exactly the real changes."""
    foreseen_refusals: ForeseenRefusals
    """Drafts that are refused."""


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Shares of texts that could not be read; each is None where there is no such text."""

    drafts: float | None
    """Of drafted actions."""
    reflections: float | None
    """Of reflections."""
    students: float | None
    """Of the student's predictions."""
    teachers: float | None
    """Of the teacher's predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """How often and on what the gates of a CoMap agent opened (CoMap, eq. 2-6)."""

    steps: int | None
    """Steps in which the agent drafted an action."""
    paths: Mapping[str, int]
    """How many of them went each way: see `comap.agents.comap.GatePath`."""
    context_sources: Mapping[str, int]
    """Where the futures came from that reflections saw, with their counts."""
    agreement: Distribution
    """Agreement r of student and teacher (CoMap, eq. 2)."""
    adoption: Mapping[str, float | None]
    """Share of predictions that a threshold tau of the world-state gate adopts; "run" is the training's."""
    truth: Truthfulness | None = field(metadata=_IN_PLACE)
    """What predictions are worth; None without probes."""
    p: Distribution
    """Confidence p of refinement."""
    q: Distribution
    """Confidence q of the reflected action."""
    opened: float | None
    """Share of the reflections at which the action gate opened."""
    changed: float | None
    """Share of the reflections that changed the action."""
    unparsed: Unparsed
    """Texts that could not be read."""
    invalid_actions: float | None
    """Share of the steps whose action the environment refused."""

    @property
    def reflected(self) -> int | None:
        """Steps in which the policy reflected."""
        return self.paths.get(GatePath.REFLECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """How episodes went: those of a split in an evaluation, or those of a stage."""

    episodes: int | None
    """How many were played."""
    success: float | None
    """Share of them that succeeded."""
    success_low: float | None
    """Lower end of its 95 % interval."""
    success_high: float | None
    """Upper end of its 95 % interval."""
    pass_at_k: Mapping[str, float] | None = None
    """How likely one of k attempts succeeds, by k; None where each task was played once."""
    score: float | None
    """Mean score in the end."""
    steps: int | None
    """Steps of all episodes."""
    errors: int | None
    """Episodes that an error ended."""
    tasks: int | None
    """Different tasks."""
    generated_tasks: int | None
    """How many of them were generated."""
    world_models: tuple[str, ...]
    """The world models that agents asked."""
    calls: int | None
    """Calls of language models."""
    prompt_tokens: int | None
    """Tokens of their prompts."""
    completion_tokens: int | None
    """Tokens of their replies."""
    greedy: EvaluationResult | None = None
    """The same tasks at temperature 0; None where they were not played so."""
    gate_shut: EvaluationResult | None = None
    """The same tasks with drafts alone; None where they were not played so."""

    @property
    def rate(self) -> Rate | None:
        """Success with its interval; None where it makes no sense."""
        rate = _rate(self.success, self.episodes)
        if rate is None or self.success is None:
            return None
        if self.success_low is None or self.success_high is None:
            return rate
        return Rate(self.success, self.success_low, self.success_high, rate.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateEvaluation:
    """How a split went in an evaluation between updates: a line of PaW's ``evaluations.jsonl``."""

    update: int | None
    """How many updates there were before."""
    split: str | None
    """The split."""
    n: int | None
    """Episodes."""
    success: float | None
    """Share of them that succeeded."""
    score: float | None
    """Mean score in the end."""
    steps: float | None
    """Mean steps of an episode."""
    errors: int | None
    """Episodes that an error ended."""
    tasks: int | None
    """Different tasks; None of a training before they were counted."""
    generated_tasks: int | None
    """How many of them were generated; None as for `tasks`."""
    won: Mapping[str, int] | None
    """How often each task was solved; None where a file does not have it."""

    @property
    def rate(self) -> Rate | None:
        """Success with its interval; None where it makes no sense."""
        return _rate(self.success, self.n)


def _rate(share: float | None, n: int | None) -> Rate | None:
    """Return a share of episodes with its interval; None where a file was damaged."""
    if share is None or n is None or not 0 <= share <= 1 <= n <= _MOST_EPISODES:
        return None
    return wilson(round(share * n) / n, n)


@dataclass(frozen=True, slots=True)
class Refusals:
    """How a world model predicts that nothing changes."""

    foreseen: int | None
    """How often it does."""
    precision: float | None
    """How often it is right then, in percent; None of nothing."""
    real: int | None
    """How often nothing changes."""
    recall: float | None
    """How often it predicts that then, in percent; None of nothing."""


@dataclass(frozen=True, slots=True)
class GroupScore:
    """How well transitions of one kind are predicted, in percent; None where there are none."""

    n: int | None
    """How many transitions there are."""
    delta_f1: float | None
    """Mean Delta-F1 (CoMap, section 4)."""
    stderr: float | None
    """Its standard error."""
    exact_change: float | None
    """Transitions whose change is predicted exactly."""
    exact_text: float | None
    """Transitions whose text is predicted word for word."""


@dataclass(frozen=True, slots=True)
class ChangeTokens:
    """How likely a world model finds the tokens that state what changed (CoMap, Figure 6)."""

    nll: float | None
    """Their mean negative log-likelihood, in nats a token; None of nothing."""
    tokens: int | None
    """How many such tokens there are."""
    transitions: int | None
    """How many transitions have any."""
    nll_all: float | None
    """The same as `nll` of all tokens of these transitions."""
    tokens_all: int | None
    """How many these are."""
    failed: int | None
    """Transitions that the language model could not score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionReport:
    """How well a world model predicts a set of transitions, by Delta-F1."""

    transitions: int | None
    """How many there are."""
    fingerprint: str | None
    """Sixteen digits that stand for exactly these."""
    n: int | None
    """How many are compared: those whose truth can be read."""
    dropped: int | None
    """How many are not."""
    parse_failure_rate: float | None
    """Share of the predictions that could not be read; None of nothing."""
    no_op_share: float | None
    """Share of the transitions in which nothing changed; None of nothing."""
    refusals: Refusals
    """Predictions that nothing changes."""
    all: GroupScore
    """Scores of all transitions that are compared."""
    nonempty: GroupScore
    """Scores of those that change a fact."""
    predictable: GroupScore
    """Scores of those whose facts follow from what is known before."""
    unpredictable: GroupScore
    """Scores of the others."""
    by_predicate: Mapping[str, PredicateScore]
    """Precision, recall and F1 of the changes of each predicate."""
    change_token_nll: ChangeTokens | None = None
    """The likelihood of changes; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class DepthScore:
    """How well a world model predicts after a number of actions, on its own predictions."""

    delta_f1: float | None
    """Mean Delta-F1, in percent."""
    n: int | None
    """How many states it is of."""


@dataclass(frozen=True, slots=True)
class RevisionReport:
    """What revisions did, by playing out drafts and revisions (CoMap, App. C.2 and Table 3)."""

    n: int | None
    """Decisions of which both actions were played out."""
    failed: int | None
    """Decisions of which one could not be."""
    revised: int | None
    """Decisions whose action was revised."""
    drafts_succeed: int | None
    """Decisions whose draft succeeds."""
    urr: float | None
    """Unnecessary revision rate: share of the drafts that succeed that were revised; None of nothing."""
    hrr: float | None
    """Harmful revision rate: share of them that were revised into failure; None of nothing."""
    brp: float | None
    """Beneficial revision precision: share of revisions that turn failure into success; None of nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvaluation:
    """What both models do after a round of CoMap's training."""

    round: int | None
    """The round; None of a baseline's only evaluation."""
    splits: Mapping[str, EvaluationResult]
    """How the episodes of each split went."""
    gates: GateReport | None
    """What the gates did in them."""
    world_model: Mapping[str, PredictionReport]
    """Predictions of the "frozen" transitions, and of those of the evaluation's episodes ("on_policy")."""
    revisions: RevisionReport | None
    """What revisions did in the first split; None where there were none."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What the policy played in a round to learn from."""

    played: EvaluationResult = field(metadata=_IN_PLACE)
    """How the episodes went."""
    gates: GateReport
    """What the gates did in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a model learned in a stage."""

    role: str | None
    """The model; None of a stage in which nothing was learned."""
    rows: int | None
    """Sequences of all epochs."""
    tokens: int | None = None
    """Their tokens; None where nothing was trained."""
    updates: int | None
    """Optimizer's steps."""
    log: tuple[Mapping[str, float], ...]
    """Losses by name, with the ``step`` at which they were logged."""
    training_seconds: float | None = None
    """Wall-clock time of encoding and training, in seconds; None where nothing was trained."""
    samples: Mapping[str, int] | None = None
    """Samples of each kind in the first epoch."""
    weights: Mapping[str, str] | None = None
    """Names of the files of trained weights by role; None where nothing was trained."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true before a training can show anything: see `comap.trainers.entry`."""

    value: float | None
    """What was measured; None where it could not be."""
    met: bool | None
    """Whether it is in the range in which the training can show something."""
    line: str | None
    """The same in words, with what to do where it is not met."""


@dataclass(frozen=True, slots=True)
class EntryCheck:
    """What the warmed-up models do, before a training can show anything."""

    played: EvaluationResult = field(metadata=_IN_PLACE)
    """How the policy's episodes went."""
    foreseen: Refusals
    """The world model's predictions that nothing changes."""
    conditions: Mapping[str, Condition]
    """What they mean for the training, by name."""


@dataclass(frozen=True, slots=True)
class Labeling:
    """What came of playing out drafts and an expert's actions (CoMap, App. C.2)."""

    branches: int | None
    """Actions that were played out."""
    labels: int | None
    """States that have a label."""
    counts: Mapping[str, int]
    """States without one, by the reason: "unparsed" or "failed"."""


@dataclass(frozen=True, slots=True)
class ReflectionFit:
    """What the policy learned from labels."""

    fit: Fit = field(metadata=_IN_PLACE)
    """The training."""
    counts: Mapping[str, int]
    """Labels of each kind."""
    dropped: int | None
    """Labels that were too many of their kind."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """A stage's ``done.json`` as reports read it: all parts that a stage may have, most of them empty.

    What a method measures beyond these is no field here; `comap.benchmarks.training_record` has the whole
    file beside this.
    """

    seconds: float | None
    """Wall-clock time since the stage was last begun or resumed, in seconds."""
    cpu_seconds: float | None
    """Processor time of the same, in seconds."""
    played: EvaluationResult = field(metadata=_IN_PLACE)
    """How the stage's episodes went."""
    fit: Fit = field(metadata=_IN_PLACE)
    """What a model learned."""
    labeling: Labeling = field(metadata=_IN_PLACE)
    """What was labeled."""
    gates: GateReport | None
    """What the gates did in rollouts or in an evaluation."""
    evaluation: RoundEvaluation = field(metadata=_IN_PLACE)
    """What was evaluated."""


def to_json(result: object) -> Any:
    """Return a result as JSON data; a field whose default is None is left out where it is None."""
    if isinstance(result, Mapping):
        return {name: to_json(part) for name, part in result.items()}
    if isinstance(result, list | tuple):
        return [to_json(part) for part in result]
    if not is_dataclass(result):
        return result

    data: dict[str, Any] = {}
    for part in fields(result):
        value = getattr(result, part.name)
        if part.metadata == _IN_PLACE:
            data |= {} if value is None else to_json(value)
        elif value is not None or part.default is not None:
            data[part.name] = to_json(value)
    return data


def from_json(cls: type[T], data: object) -> T:
    """Return JSON data as a dataclass; what is missing or of another type is None or empty in it."""
    members = data if isinstance(data, Mapping) else {}
    values = {}
    for part, kind in _typed_fields(cls):  # type: ignore[arg-type]  # classes are hashable
        member = members.get(part.name)
        if part.metadata == _IN_PLACE:
            part_class, _ = _without_none(kind)
            is_there = any(inner.name in members for inner in fields(part_class))
            member = members if is_there else None
        values[part.name] = _value(kind, member)
    return cls(**values)


@cache
def _typed_fields(cls: Any) -> tuple[tuple[Field[Any], Any], ...]:
    """Return the fields of a dataclass, each with its type."""
    types = get_type_hints(cls)
    return tuple((part, types[part.name]) for part in fields(cls))


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Return a type without its None, and whether it had one."""
    if not isinstance(kind, UnionType):
        return kind, False
    (type_without_none,) = (part for part in get_args(kind) if part is not NoneType)
    return type_without_none, True


def _value(kind: Any, member: object) -> Any:
    """Return a member of JSON data as the type of a field.

    One of another type is None, or an empty whole where the field is never None.
    """
    kind, may_be_none = _without_none(kind)
    if kind in (str, bool):
        return member if isinstance(member, kind) else None
    if kind in (int, float):
        number = finite_number(member)
        return int(number) if kind is int and number is not None else number

    is_list = get_origin(kind) is tuple
    if may_be_none and not isinstance(member, list if is_list else Mapping):
        return None
    if is_dataclass(kind):
        return from_json(kind, member)  # type: ignore[arg-type]  # a class, not one of its instances

    part_kind = get_args(kind)[0 if is_list else 1]
    if is_list:
        items = member if isinstance(member, list) else []
        return tuple(part for _, part in _valid(part_kind, enumerate(items)))
    members = member if isinstance(member, Mapping) else {}
    return dict(_valid(part_kind, members.items()))


def _valid(kind: Any, members: Iterable[tuple[K, object]]) -> Iterator[tuple[K, Any]]:
    """Yield the members of a list or an object that are of its type, each with its key."""
    _, may_be_none = _without_none(kind)
    for key, member in members:
        part = _value(kind, member)
        if part is not None or may_be_none:
            yield key, part


def finite_number(value: object) -> float | None:
    """Return a finite number of JSON data; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None
