"""What is measured of trainings: episodes, predictions on frozen transitions, and gates."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..agents.scoring import drawn
from ..envs import Canonicalizer, Revealer
from ..envs.generated import is_generated
from ..errors import DataCorrupt, DataNotFound
from ..facts import State
from ..jsonl import replacing_file
from ..metrics import delta_f1_report, histogram, pass_at_k, success_rate
from ..trajectory import Step, Trajectory, Turn
from ..worldmodel import Prediction, Query, Transition, WorldModel, ask, transitions_of

_FORMAT = "comap-transitions-1"


def in_order(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Return trajectories sorted by environment, task, trial, seed and agent."""
    return sorted(
        trajectories,
        key=lambda t: (t.env_id, t.task, t.trial, -1 if t.seed is None else t.seed, t.agent),
    )


def freeze(trajectories: Iterable[Trajectory], n: int, seed: int) -> list[Transition]:
    """Return `n` real transitions drawn at random, in the order of `in_order`; all if there are fewer."""
    found = [step for trajectory in in_order(trajectories) for step in transitions_of(trajectory)]
    return drawn(found, n, seed)


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
    head |= {} if tasks is None else {"tasks": tasks}
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
        if (head["n"], head["fingerprint"]) != (len(lines), _digest(lines)):
            raise ValueError(f"{len(lines)} of {head['n']!r:.20} that are cut or changed")
        return [transition_from_json(json.loads(line)) for line in lines]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataCorrupt(
            f"expected transitions in {path}, found something else ({type(error).__name__}: {error}); "
            "write one with comap score world-model --save-transitions"
        ) from error


def tasks_of_transitions(path: Path) -> str | None:
    """Return of which tasks a file's transitions are, as its head says; None where it does not."""
    with path.open("rb") as file:
        tasks = json.loads(file.readline()).get("tasks")
    return tasks if isinstance(tasks, str) else None


def _lines(transitions: Iterable[Transition]) -> list[bytes]:
    return [json.dumps(transition_json(one)).encode("ascii") for one in transitions]


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


_TAUS = (0.4, 0.6, 0.8)
_DIGITS = 6


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean, rounded; None of nothing."""
    return round(math.fsum(values) / len(values), _DIGITS) if values else None


def is_predictable(query: Query, observation: str, canonicalizer: Canonicalizer) -> bool | None:
    """Return whether what was observed follows from the belief, the texts so far and the action."""
    if not isinstance(canonicalizer, Revealer):
        return None
    after = canonicalizer.update(query.state, query.action, observation)
    if not after.parsed:
        return None
    return not canonicalizer.reveals(query.goal, query.history, query.state, query.action, after)


@dataclass(frozen=True, slots=True)
class ScoredTransition:
    """One transition with the beliefs before it, after the prediction and after the truth."""

    transition: Transition
    prediction: Prediction
    beliefs: tuple[State, State, State]
    same_text: bool
    predictable: bool | None


def score_transitions(
    model: WorldModel,
    transitions: Sequence[Transition],
    canonicalizer: Canonicalizer,
    *,
    batch: int = 256,
) -> dict[str, Any]:
    """Return how well a world model predicts transitions, by Delta-F1."""
    parts = scored_in_parts(model, transitions, canonicalizer, batch)
    return scores_of([row for part in parts for row in part])


def scored_in_parts(
    model: WorldModel, transitions: Sequence[Transition], canonicalizer: Canonicalizer, batch: int
) -> Iterator[list[ScoredTransition]]:
    """Predict transitions, so many at a time, and yield each part once it is scored."""
    for start in range(0, len(transitions), batch):
        part = transitions[start : start + batch]
        predictions = ask(model, [query for query, _ in part])
        yield [_score(*pair, canonicalizer) for pair in zip(part, predictions, strict=True)]


def scores_of(scored: Sequence[ScoredTransition]) -> dict[str, Any]:
    """Return how well transitions were predicted, by Delta-F1."""
    known = [row for row in scored if row.beliefs[2].parsed]
    report = delta_f1_report(row.beliefs for row in known)
    return {
        "transitions": len(scored),
        "fingerprint": fingerprint([row.transition for row in scored]),
        "n": len(known),
        "dropped": len(scored) - len(known),
        "parse_failure_rate": _rounded(report.parse_failure_rate) if known else None,
        "no_op_share": _rounded(report.no_op_share) if known else None,
        "refusals": _refusals(known),
        "all": _group(known),
        "nonempty": _group([row for row in known if row.beliefs[2].facts != row.beliefs[0].facts]),
        "predictable": _group([row for row in known if row.predictable is True]),
        "unpredictable": _group([row for row in known if row.predictable is False]),
        "by_predicate": {
            name: {key: _rounded(value) for key, value in asdict(score).items()}
            for name, score in report.by_predicate.items()
        },
    }


def _score(
    transition: Transition, prediction: Prediction, canonicalizer: Canonicalizer
) -> ScoredTransition:
    query, observation = transition
    predicted, real = (
        canonicalizer.update(query.state, query.action, text)
        for text in (prediction.observation, observation)
    )
    same = prediction.observation.strip() == observation.strip()
    predictable = is_predictable(query, observation, canonicalizer)
    beliefs = (query.state, predicted, real)
    return ScoredTransition(transition, prediction, beliefs, same, predictable)


def _group(rows: Sequence[ScoredTransition]) -> dict[str, Any]:
    report, n = delta_f1_report(row.beliefs for row in rows), len(rows)
    values = {
        "delta_f1": report.mean,
        "stderr": report.stderr,
        "exact_change": report.exact_share,
        "exact_text": sum(row.same_text for row in rows) / max(n, 1),
    }
    percent = {key: round(100 * value, 4) if n else None for key, value in values.items()}
    return {"n": n, **percent}


def _refusals(rows: Sequence[ScoredTransition]) -> dict[str, float | int | None]:
    """Return, in percent, how many predictions that nothing changes are right, and how many are made."""
    still = [
        [one.parsed and one.facts == row.beliefs[0].facts for one in row.beliefs[1:]]
        for row in rows
    ]
    both = sum(map(all, still))
    said, real = (sum(flags) for flags in zip(*still, strict=True)) if still else (0, 0)
    return {
        "foreseen": said,
        "precision": 100 * both / said if said else None,
        "real": real,
        "recall": 100 * both / real if real else None,
    }


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
) -> dict[str, dict[str, Any]]:
    """Return the Delta-F1 of what a world model expects of several real actions, by their number.

    From `n` real states on, each prediction follows the model's own, as in an imagined episode; changes
    are those since the real state. Depths from `last` on count together.
    """
    chains = [
        (transitions_of_one[at].query, trajectory.steps[at : at + depth])
        for trajectory in in_order(trajectories)
        for transitions_of_one in [list(transitions_of(trajectory))]
        for at in range(len(transitions_of_one))
    ]
    asked = [(query, query.state, steps) for query, steps in drawn(chains, n, seed)]
    rows: dict[int, list[tuple[State, State, State]]] = {}
    for number in range(depth):
        asked = [one for one in asked if len(one[2]) > number]
        further = []
        for start in range(0, len(asked), batch):
            some = asked[start : start + batch]
            predictions = ask(model, [query for query, _, _ in some])
            for (query, before, steps), prediction in zip(some, predictions, strict=True):
                text = prediction.observation
                facts = canonicalizer.update(query.state, query.action, text)
                if steps[number].facts.parsed:
                    row = before, facts, steps[number].facts
                    rows.setdefault(min(number + 1, last), []).append(row)
                history = (*query.history, Turn(query.action, text))
                following = steps[number + 1].action if len(steps) > number + 1 else ""
                query = replace(
                    query, history=history, state=facts, action=following, admissible_actions=None
                )
                further.append((query, before, steps))
        asked = further
    return {
        f">={last}" if at == last else str(at): {
            "delta_f1": round(100 * delta_f1_report(found).mean, 4),
            "n": len(found),
        }
        for at, found in sorted(rows.items())
    }


def gate_report(trajectories: Iterable[Trajectory]) -> dict[str, Any]:
    """Return what the notes of a CoMap agent's episodes say of its gates."""
    steps = [step for t in trajectories for step in t.steps if "path" in step.notes]
    reflected = [step for step in steps if step.notes["path"] == "reflected"]
    gates = [step.notes.get("gate_parts") or {} for step in reflected]
    agreements = _numbers(steps, "agreement")
    adoption = {str(tau): _share([r >= tau for r in agreements]) for tau in _TAUS}
    return {
        "steps": len(steps),
        "paths": _counts(steps, "path"),
        "context_sources": _counts(steps, "context_source"),
        "agreement": _distribution(agreements),
        "adoption": adoption | {"run": _share(_flags(steps, "wm_gate"))},
        **_truthfulness(steps),
        "p": _distribution(_numbers(steps, "p")),
        "q": _distribution(_numbers(steps, "q")),
        "opened": _share(_flags(reflected, "gate")),
        "changed": _share([gate.get("changed") is True for gate in gates]),
        "unparsed": {
            "drafts": _share([not flag for flag in _flags(steps, "draft_parsed")]),
            "reflections": _share([step.notes.get("ref_action") is None for step in reflected]),
            "students": _share([not flag for flag in _flags(steps, "canon_ok_student")]),
            "teachers": _share([not flag for flag in _flags(steps, "canon_ok_teacher")]),
        },
        "invalid_actions": _share([step.invalid_action for step in steps]),
    }


def _truthfulness(steps: Sequence[Step]) -> dict[str, Any]:
    """Return how student, teacher and gate compare with what really followed; nothing without probes.

    A prediction is right where it changes the same facts. Refusals are of drafts that the environment
    would refuse, foreseen where the student predicts a refusal.
    """
    probed = [step.notes for step in steps if step.notes.get("env_next_of_draft") is not None]
    if not probed:
        return {}
    opened = [
        one["student_f1"] == 1 for one in probed if one["wm_gate"] and one["student_f1"] is not None
    ]
    pairs = [
        (one["foresees_refusal"], one["env_next_of_draft"]["invalid_action"]) for one in probed
    ]
    said, real = [is_so for one, is_so in pairs if one], [one for one, is_so in pairs if is_so]
    return {
        "student_f1": _distribution(_numbers(steps, "student_f1")),
        "teacher_f1": _distribution(_numbers(steps, "teacher_f1")),
        "gate_precision": {"n": len(opened), "value": _share(opened)},
        "foreseen_refusals": {
            "n": len(said),
            "precision": _share(said),
            "real": len(real),
            "recall": _share(real),
        },
    }


def _counts(steps: Iterable[Step], note: str) -> dict[str, int]:
    found = Counter(str(step.notes[note]) for step in steps if step.notes.get(note) is not None)
    return dict(sorted(found.items()))


def _numbers(steps: Iterable[Step], note: str) -> list[float]:
    return [float(step.notes[note]) for step in steps if step.notes.get(note) is not None]


def _flags(steps: Iterable[Step], note: str) -> list[bool]:
    return [step.notes[note] is True for step in steps if step.notes.get(note) is not None]


def _distribution(values: Sequence[float]) -> dict[str, Any]:
    return {"n": len(values), "mean": mean_of(values), "histogram": histogram(values)}


def _share(flags: Sequence[bool]) -> float | None:
    return _rounded(sum(flags) / len(flags)) if flags else None


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


def played_result(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return success, score, faults and calls of episodes, and which tasks and world models these had."""
    rate = success_rate(episode.success for episode in episodes)
    calls = [call for episode in episodes for step in episode.steps for call in step.calls]
    attempts: dict[str, list[bool]] = {}
    for episode in episodes:
        attempts.setdefault(episode.task, []).append(episode.success)
    passed = {str(k): value for k, value in pass_at_k(attempts.values()).items() if k > 1}
    return {
        "episodes": len(episodes),
        "success": rate.value,
        "success_low": rate.low,
        "success_high": rate.high,
        **({"pass_at_k": passed} if passed else {}),
        "score": sum(episode.score for episode in episodes) / max(len(episodes), 1),
        "steps": sum(len(episode.steps) for episode in episodes),
        "errors": sum(episode.error is not None for episode in episodes),
        "tasks": len(attempts),
        "generated_tasks": sum(map(is_generated, attempts)),
        "world_models": sorted({e.world_model for e in episodes if e.world_model is not None}),
        "calls": len(calls),
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
    }
