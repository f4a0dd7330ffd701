"""What is measured of trainings: episodes, predictions on frozen transitions, and gates."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..agents.comap import GatePath
from ..agents.scoring import drawn
from ..envs import Canonicalizer, Revealer
from ..envs.generated import is_generated
from ..errors import DataCorrupt, DataNotFound
from ..facts import State
from ..jsonl import replacing_file
from ..metrics import PredicateScore, delta_f1_report, histogram, pass_at_k, success_rate
from ..trajectory import Call, Step, Trajectory, Turn
from ..worldmodel import Prediction, Query, Transition, WorldModel, ask, transitions_of
from .results import (
    DepthScore,
    Distribution,
    EvaluationResult,
    ForeseenRefusals,
    GateReport,
    GroupScore,
    PredictionReport,
    Refusals,
    Share,
    Truthfulness,
    Unparsed,
)

_FORMAT = "comap-transitions-1"


def in_order(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Return trajectories sorted by environment, task, trial, seed and agent."""
    # Episodes end in any order, and what is drawn from them must not depend on that.
    return sorted(
        trajectories,
        key=lambda t: (t.env_id, t.task, t.trial, -1 if t.seed is None else t.seed, t.agent),
    )


def freeze(trajectories: Iterable[Trajectory], n: int, seed: int) -> list[Transition]:
    """Return `n` real transitions drawn at random, in the order of `in_order`; all if there are fewer."""
    transitions: list[Transition] = []
    for trajectory in in_order(trajectories):
        transitions += transitions_of(trajectory)
    return drawn(transitions, n, seed)


def frozen_set(
    expert: Iterable[Trajectory], policy: Iterable[Trajectory], n: int = 1000, seed: int = 0
) -> list[Transition]:
    """Return an evaluation set: half an expert's actions, half a policy's."""
    return freeze(expert, n - n // 2, seed) + freeze(policy, n // 2, seed)


def save_transitions(
    path: Path, transitions: Sequence[Transition], tasks: str | None = None
) -> None:
    """Write transitions as JSON lines, after a line with their number and `fingerprint`.

    Args:
        path: The file.
        transitions: What is written.
        tasks: Of which tasks they are, in words, where that is known.
    """
    lines = _lines(transitions)
    head: dict[str, Any] = {"format": _FORMAT, "n": len(lines), "fingerprint": _digest(lines)}
    if tasks is not None:
        head["tasks"] = tasks

    with replacing_file(path) as file:
        file.writelines(line + b"\n" for line in (json.dumps(head).encode(), *lines))


def load_transitions(path: Path) -> list[Transition]:
    """Return the transitions that `save_transitions` wrote."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataNotFound(
            f"expected transitions at {path}, found: {error.strerror}; write some with comap score "
            "world-model --save-transitions"
        ) from error

    try:
        head = json.loads(lines.pop(0) if lines else b"")
        if head["format"] != _FORMAT:
            raise ValueError(f"the format {head['format']!r:.80}")

        # A file that was cut at a line's end would score another set under the same name.
        if (head["n"], head["fingerprint"]) != (len(lines), _digest(lines)):
            raise ValueError(f"{len(lines)} of {head['n']!r:.20} that are cut or changed")
        return [transition_from_json(json.loads(line)) for line in lines]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataCorrupt(
            f"expected transitions in {path}, found something else ({type(error).__name__}: {error}); "
            "write one with comap score world-model --save-transitions"
        ) from error


def tasks_of_transitions(path: Path) -> str | None:
    """Return the tasks that a file of transitions names in its head, in words; None where it does not."""
    with path.open("rb") as file:
        tasks = json.loads(file.readline()).get("tasks")
    return tasks if isinstance(tasks, str) else None


def _lines(transitions: Iterable[Transition]) -> list[bytes]:
    rows = (transition_json(transition) for transition in transitions)
    return [json.dumps(row).encode("ascii") for row in rows]


def _digest(lines: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()[:16]


def fingerprint(transitions: Iterable[Transition]) -> str:
    """Return 16 hexadecimal digits that stand for exactly these transitions, for results."""
    return _digest(_lines(transitions))


def transition_json(transition: Transition) -> dict[str, Any]:
    """Return a transition as plain data that `transition_from_json` reads."""
    query, observation = transition
    actions = query.admissible_actions
    return {
        "env_id": query.env_id,
        "goal": query.goal,
        "history": [list(turn) for turn in query.history],
        "state": query.state.to_text(),
        "action": query.action,
        "admissible_actions": None if actions is None else list(actions),
        "observation": observation,
    }


def transition_from_json(row: Any) -> Transition:
    """Return the transition that `transition_json` described."""
    actions = row["admissible_actions"]
    query = Query(
        row["env_id"],
        row["goal"],
        tuple(Turn(action, observation) for action, observation in row["history"]),
        State.from_text(row["state"]),
        row["action"],
        None if actions is None else tuple(actions),
    )
    return Transition(query, row["observation"])


_TAUS = (0.4, 0.6, 0.8)  # other thresholds of the world-state gate, to compare with
_DIGITS = 6


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean, rounded; None of nothing."""
    return round(math.fsum(values) / len(values), _DIGITS) if values else None


def is_predictable(query: Query, observation: str, canonicalizer: Canonicalizer) -> bool | None:
    """Return whether an observation follows from the belief, the texts so far and the action."""
    if not isinstance(canonicalizer, Revealer):
        return None
    # An observation that reveals a fact (what is in a closed drawer) cannot be known before.
    after = canonicalizer.update(query.state, query.action, observation)
    if not after.parsed:
        return None
    return not canonicalizer.reveals(query.goal, query.history, query.state, query.action, after)


class Beliefs(NamedTuple):
    """The beliefs before a transition, after its prediction and after the truth."""

    before: State
    predicted: State
    real: State


@dataclass(frozen=True, slots=True)
class ScoredTransition:
    """One transition with its prediction, and the beliefs that follow from both."""

    transition: Transition
    prediction: Prediction
    beliefs: Beliefs
    same_text: bool
    predictable: bool | None


def score_transitions(
    model: WorldModel,
    transitions: Sequence[Transition],
    canonicalizer: Canonicalizer,
    *,
    batch: int = 256,
) -> PredictionReport:
    """Return how well a world model predicts transitions, by Delta-F1.

    Args:
        model: The world model.
        transitions: What is predicted.
        canonicalizer: Reads what changes from observations.
        batch: How many transitions are predicted together.

    Returns:
        The scores in percent, by kinds of transitions: ``all``, ``nonempty``, ``predictable`` and
        ``unpredictable``; and the number of each.

    Example:
        >>> from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
        >>> from comap.worldmodel import NullWorldModel
        >>> query = Query("comap/ALFWorld-v0", "goal", (), State(), "go to desk 1")
        >>> transitions = [Transition(query, "You arrive at desk 1. On the desk 1, you see nothing.")]
        >>> report = score_transitions(NullWorldModel(), transitions, ALFWorldCanonicalizer())
        >>> report.nonempty.n, report.nonempty.delta_f1
        (1, 0.0)
    """
    rows: list[ScoredTransition] = []
    for rows_of_batch in scored_in_parts(model, transitions, canonicalizer, batch):
        rows += rows_of_batch
    return scores_of(rows)


def scored_in_parts(
    model: WorldModel, transitions: Sequence[Transition], canonicalizer: Canonicalizer, batch: int
) -> Iterator[list[ScoredTransition]]:
    """Predict transitions in batches, and yield each batch once it is scored."""
    for start in range(0, len(transitions), batch):
        transitions_of_batch = transitions[start : start + batch]
        predictions = ask(model, [query for query, _ in transitions_of_batch])
        yield [
            _score(transition, prediction, canonicalizer)
            for transition, prediction in zip(transitions_of_batch, predictions, strict=True)
        ]


def scores_of(scored: Sequence[ScoredTransition]) -> PredictionReport:
    """Return how well transitions were predicted, by Delta-F1."""
    # Where the truth cannot be read, nothing can be compared.
    rows = [row for row in scored if row.beliefs.real.parsed]
    # Most steps change little: a model that always says "nothing happens" scores well over all of them.
    nonempty = [row for row in rows if row.beliefs.real.facts != row.beliefs.before.facts]
    report = delta_f1_report(row.beliefs for row in rows)

    by_predicate = {}
    for predicate, score in report.by_predicate.items():
        by_predicate[predicate] = PredicateScore(
            precision=_rounded(score.precision),
            recall=_rounded(score.recall),
            f1=_rounded(score.f1),
            support=score.support,
        )

    return PredictionReport(
        transitions=len(scored),
        fingerprint=fingerprint([row.transition for row in scored]),
        n=len(rows),
        dropped=len(scored) - len(rows),
        parse_failure_rate=_rounded(report.parse_failure_rate) if rows else None,
        no_op_share=_rounded(report.no_op_share) if rows else None,
        refusals=_refusals(rows),
        all=_group(rows),
        nonempty=_group(nonempty),
        predictable=_group([row for row in rows if row.predictable is True]),
        unpredictable=_group([row for row in rows if row.predictable is False]),
        by_predicate=by_predicate,
    )


def _score(
    transition: Transition, prediction: Prediction, canonicalizer: Canonicalizer
) -> ScoredTransition:
    """Return a prediction beside the truth, with the belief that follows from each."""
    query, observation = transition
    predicted = canonicalizer.update(query.state, query.action, prediction.observation)
    real = canonicalizer.update(query.state, query.action, observation)
    beliefs = Beliefs(query.state, predicted, real)

    same_text = prediction.observation.strip() == observation.strip()
    predictable = is_predictable(query, observation, canonicalizer)
    return ScoredTransition(transition, prediction, beliefs, same_text, predictable)


def _group(rows: Sequence[ScoredTransition]) -> GroupScore:
    """Return the scores of some transitions, in percent, and their number."""
    if not rows:
        return GroupScore(0, None, None, None, None)
    report = delta_f1_report(row.beliefs for row in rows)
    same_texts = sum(row.same_text for row in rows)
    return GroupScore(
        n=len(rows),
        delta_f1=round(100 * report.mean, 4),
        stderr=round(100 * report.stderr, 4),
        exact_change=round(100 * report.exact_share, 4),
        exact_text=round(100 * (same_texts / len(rows)), 4),
    )


def _refusals(rows: Sequence[ScoredTransition]) -> Refusals:
    """Return precision and recall, in percent, of the predictions that nothing changes.

    An environment refuses an action by changing nothing. The truth of all rows can be read.
    """
    foreseen_count = 0
    real_count = 0
    foreseen_and_real_count = 0
    for row in rows:
        before, predicted, real = row.beliefs
        is_foreseen = predicted.parsed and predicted.facts == before.facts
        is_real = real.facts == before.facts
        foreseen_count += is_foreseen
        real_count += is_real
        foreseen_and_real_count += is_foreseen and is_real

    return Refusals(
        foreseen=foreseen_count,
        precision=100 * foreseen_and_real_count / foreseen_count if foreseen_count else None,
        real=real_count,
        recall=100 * foreseen_and_real_count / real_count if real_count else None,
    )


@dataclass(frozen=True, slots=True)
class _Chain:
    """Real steps that a world model is asked about one after the other, each time on its own belief."""

    query: Query  # about the next of them
    start: State  # the real state before the first
    steps: Sequence[Step]

    def after(self, text: str, belief: State, number: int) -> _Chain:
        """Return the chain after the prediction of step `number`: the next query has it as history."""
        is_last = number + 1 >= len(self.steps)
        query = replace(
            self.query,
            history=(*self.query.history, Turn(self.query.action, text)),
            state=belief,
            action="" if is_last else self.steps[number + 1].action,
            admissible_actions=None,
        )
        return replace(self, query=query)


def score_depths(
    model: WorldModel,
    trajectories: Iterable[Trajectory],
    canonicalizer: Canonicalizer,
    n: int,
    seed: int,
    *,
    depth: int = 7,
    last: int = 4,
    batch: int = 256,
) -> dict[str, DepthScore]:
    """Return the Delta-F1 of a world model's predictions of several real actions, by their number.

    From `n` real states on, each prediction follows the model's own, as in an imagined episode; changes
    are those since the real state. Depths from `last` on count together.
    """
    # All starts first, then a draw: each real state is as likely, however long its episode is.
    all_chains = []
    for trajectory in in_order(trajectories):
        for step_index, (query, _) in enumerate(transitions_of(trajectory)):
            steps = trajectory.steps[step_index : step_index + depth]
            all_chains.append(_Chain(query, query.state, steps))
    chains = drawn(all_chains, n, seed)

    beliefs_at_depth: dict[int, list[Beliefs]] = {}
    for number in range(depth):
        chains = [chain for chain in chains if len(chain.steps) > number]
        longer_chains = []
        for start in range(0, len(chains), batch):
            chains_of_batch = chains[start : start + batch]
            predictions = ask(model, [chain.query for chain in chains_of_batch])
            for chain, prediction in zip(chains_of_batch, predictions, strict=True):
                query = chain.query
                text = prediction.observation
                belief = canonicalizer.update(query.state, query.action, text)
                real = chain.steps[number].facts
                if real.parsed:
                    beliefs = Beliefs(chain.start, belief, real)
                    beliefs_at_depth.setdefault(min(number + 1, last), []).append(beliefs)
                longer_chains.append(chain.after(text, belief, number))
        chains = longer_chains

    report = {}
    for at_depth, rows in sorted(beliefs_at_depth.items()):
        name = f">={last}" if at_depth == last else str(at_depth)
        delta_f1 = round(100 * delta_f1_report(rows).mean, 4)
        report[name] = DepthScore(delta_f1, len(rows))
    return report


def gate_report(trajectories: Iterable[Trajectory]) -> GateReport:
    """Return how often and on what the gates of a CoMap agent's episodes opened, from the steps' notes."""
    # Steps without a path were taken by another agent, which has no gates.
    steps: list[Step] = []
    for trajectory in trajectories:
        steps += [step for step in trajectory.steps if "path" in step.notes]

    reflected = [step for step in steps if step.notes["path"] == GatePath.REFLECTED]
    gate_parts = [step.notes.get("gate_parts") or {} for step in reflected]
    agreements = _numbers(steps, "agreement")
    adoption = {str(tau): _share([agreement >= tau for agreement in agreements]) for tau in _TAUS}
    return GateReport(
        steps=len(steps),
        paths=_counts(steps, "path"),
        context_sources=_counts(steps, "context_source"),
        agreement=_distribution(agreements),
        adoption=adoption | {"run": _share(_flags(steps, "wm_gate"))},
        truth=_truthfulness(steps),
        p=_distribution(_numbers(steps, "p")),
        q=_distribution(_numbers(steps, "q")),
        opened=_share(_flags(reflected, "gate")),
        changed=_share([parts.get("changed") is True for parts in gate_parts]),
        unparsed=Unparsed(
            drafts=_share([not flag for flag in _flags(steps, "draft_parsed")]),
            reflections=_share([step.notes.get("ref_action") is None for step in reflected]),
            students=_share([not flag for flag in _flags(steps, "canon_ok_student")]),
            teachers=_share([not flag for flag in _flags(steps, "canon_ok_teacher")]),
        ),
        invalid_actions=_share([step.invalid_action for step in steps]),
    )


def _truthfulness(steps: Sequence[Step]) -> Truthfulness | None:
    """Return how student, teacher and gate compare with the real next state; None without probes.

    A prediction is right where it changes the same facts. Refusals are of drafts that the environment
    would refuse, foreseen where the student predicts a refusal.
    """
    probed = [step.notes for step in steps if step.notes.get("env_next_of_draft") is not None]
    if not probed:
        return None

    # The gate is right to open where the student's prediction is.
    right_where_opened = []
    for notes in probed:
        if notes["wm_gate"] and notes["student_f1"] is not None:
            right_where_opened.append(notes["student_f1"] == 1)

    real_where_foreseen = []
    foreseen_where_real = []
    for notes in probed:
        is_foreseen = notes["foresees_refusal"]
        is_real = notes["env_next_of_draft"]["invalid_action"]
        if is_foreseen:
            real_where_foreseen.append(is_real)
        if is_real:
            foreseen_where_real.append(is_foreseen)

    return Truthfulness(
        student_f1=_distribution(_numbers(steps, "student_f1")),
        teacher_f1=_distribution(_numbers(steps, "teacher_f1")),
        gate_precision=Share(len(right_where_opened), _share(right_where_opened)),
        foreseen_refusals=ForeseenRefusals(
            n=len(real_where_foreseen),
            precision=_share(real_where_foreseen),
            real=len(foreseen_where_real),
            recall=_share(foreseen_where_real),
        ),
    )


def _counts(steps: Iterable[Step], note: str) -> dict[str, int]:
    """Return how often each text of a note occurs."""
    counts = Counter(map(str, _noted(steps, note)))
    return dict(sorted(counts.items()))


def _numbers(steps: Iterable[Step], note: str) -> list[float]:
    return list(map(float, _noted(steps, note)))


def _flags(steps: Iterable[Step], note: str) -> list[bool]:
    return [flag is True for flag in _noted(steps, note)]


def _noted(steps: Iterable[Step], note: str) -> Iterator[Any]:
    """Yield what steps have under a name of their notes, without steps that have nothing there."""
    for step in steps:
        if step.notes.get(note) is not None:
            yield step.notes[note]


def _distribution(values: Sequence[float]) -> Distribution:
    return Distribution(len(values), mean_of(values), tuple(histogram(values)))


def _share(flags: Sequence[bool]) -> float | None:
    return _rounded(sum(flags) / len(flags)) if flags else None


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


def played_result(episodes: Sequence[Trajectory]) -> EvaluationResult:
    """Return success, score, faults and calls of episodes, and which tasks and world models these had."""
    rate = success_rate(episode.success for episode in episodes)
    calls: list[Call] = []
    attempts: dict[str, list[bool]] = {}
    for episode in episodes:
        attempts.setdefault(episode.task, []).append(episode.success)
        for step in episode.steps:
            calls += step.calls

    pass_rates = {str(k): value for k, value in pass_at_k(attempts.values()).items() if k > 1}
    world_models = {episode.world_model for episode in episodes}
    return EvaluationResult(
        episodes=len(episodes),
        success=rate.value,
        success_low=rate.low,
        success_high=rate.high,
        pass_at_k=pass_rates or None,
        score=sum(episode.score for episode in episodes) / max(len(episodes), 1),
        steps=sum(len(episode.steps) for episode in episodes),
        errors=sum(episode.error is not None for episode in episodes),
        tasks=len(attempts),
        generated_tasks=sum(map(is_generated, attempts)),
        world_models=tuple(sorted(name for name in world_models if name is not None)),
        calls=len(calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
    )
