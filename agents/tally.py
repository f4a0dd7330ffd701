"""Counting over the trajectories of a run: `Tally`, which makes its summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..envs.datasets import data_played
from ..envs.generated import is_generated
from ..envs.registry import text_env_of
from ..facts import State
from ..metrics import Rate, delta_f1, pass_at_k, pass_hat_k, wilson
from ..trajectory import Call, Step, Trajectory
from ..worldmodel.naming import in_words
from .comap import GatePath
from .requests import IMAGINE
from .unread import UNREAD, UnreadReplies

_SPENT = ("calls", "prompt_tokens", "completion_tokens")
CUT = "cut_replies"
"""The member of a summary that counts the replies which ended at their limit of tokens."""
DATA = "data"
"""The member of a summary that names the data of the tasks and their licenses."""
UNKNOWN = "unknown_outcomes"
"""The member of a summary that counts the imported tasks of whose outcome nothing is known."""
ADDED = frozenset({"generated_tasks", "world_models", "pass_hat_k", CUT, UNREAD})
"""The members of a summary that earlier versions did not write: `comap verify` does not miss them."""


def _kind_of(purpose: str) -> str:
    """Return a call's purpose without number and part: ``draft`` for "draft 2: retry"."""
    return re.split(r"[\d:,]", purpose, maxsplit=1)[0].strip() or "other"


def prediction_score(before: State, step: Step) -> float | None:
    """Return the Delta-F1 of what a world model had predicted of a step; None where there is none."""
    # What follows an imagined step is a prediction itself: a world model cannot be scored by it.
    if step.prediction is None or step.imagined or not step.facts.parsed:
        return None
    return delta_f1(before, step.prediction.facts, step.facts)


@dataclass
class Tally:
    """Counts over trajectories, so that a file of any size is read once."""

    won: dict[str, dict[int | None, list[bool]]] = field(default_factory=dict)
    """Whether each trial of each task and seed succeeded."""
    scores: dict[tuple[str, int | None], float] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    """The tasks that others played and published: they are in none of the official lists."""
    unknown: set[str] = field(default_factory=set)
    """The imported tasks of whose outcome nothing is known: they count in no rate."""
    types: dict[str, str] = field(default_factory=dict)
    errors: dict[tuple[str, int | None], str] = field(default_factory=dict)
    env_ids: dict[str, str] = field(default_factory=dict)
    foreseen: list[tuple[float, bool]] = field(default_factory=list)
    """The Delta-F1 of what a world model had predicted of steps, and whether these changed anything."""
    trials: int = 0
    steps: int = 0
    invalid: int = 0
    imagined: int = 0
    env_info: dict[str, Counter[str]] = field(default_factory=dict)
    language_model: Counter[str] = field(default_factory=Counter)
    world_model: Counter[str] = field(default_factory=Counter)
    cut: dict[str, Counter[str]] = field(default_factory=dict)
    """Of agent and world model: how many replies ended at their limit of tokens, by what they were for."""
    world_models: set[str] = field(default_factory=set)
    """The names of the world models that were asked, or that imagined episodes."""
    gate: Counter[tuple[Any, Any, bool]] = field(default_factory=Counter)
    unread: UnreadReplies = field(default_factory=UnreadReplies)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Tally:
        tally = cls()
        for trajectory in trajectories:
            tally.add(trajectory)
        return tally

    def add(self, trajectory: Trajectory) -> None:
        """Count one trial; the trials of a task come in their order."""
        task = trajectory.task
        seed = trajectory.seed
        item = (task, seed)
        self.trials += 1
        self.env_ids[task] = trajectory.env_id
        self.won.setdefault(task, {}).setdefault(seed, []).append(trajectory.success)
        self.scores[item] = trajectory.score
        self.types[task] = text_env_of(trajectory.env_id).task_type(task, trajectory.split)
        if trajectory.origin:
            self.imported.add(task)
            self.types[task] = ""  # ids of others name no types of ours
        if not trajectory.has_outcome:
            self.unknown.add(task)
        if trajectory.world_model is not None:
            self.world_models.add(trajectory.world_model)

        # The last trial counts: it has mended, or repeated, the fault of the one before it.
        self.errors.pop(item, None)
        if trajectory.error is not None:
            self.errors[item] = trajectory.error

        self.steps += len(trajectory.steps)
        self.invalid += sum(step.invalid_action for step in trajectory.steps)
        self.imagined += sum(step.imagined for step in trajectory.steps)
        for before, step in trajectory.transitions():
            self._add_step(before, step)
            for call in step.calls:
                self._add_call(call)
        for call in trajectory.review:
            self._add_call(call)

    def _add_step(self, before: State, step: Step) -> None:
        score = prediction_score(before, step)
        if score is not None:
            self.foreseen.append((score, bool(step.delta)))

        if step.notes.get("path") == GatePath.REFLECTED:
            p_source = step.notes.get("p_source")
            q_source = step.notes.get("q_source")
            is_open = bool(step.notes.get("gate"))
            self.gate[p_source, q_source, is_open] += 1

        self.unread.add(step)
        for name, word in step.env_info.items():
            if isinstance(word, str):
                self.env_info.setdefault(name, Counter())[word] += 1

    def _add_call(self, call: Call) -> None:
        model = "world_model" if call.kind == IMAGINE else "language_model"
        spending: Counter[str] = getattr(self, model)
        amounts = (1, call.prompt_tokens, call.completion_tokens)
        spending.update(dict(zip(_SPENT, amounts, strict=True)))
        if call.is_cut:
            self.cut.setdefault(model, Counter())[_kind_of(call.purpose)] += 1

    def summary(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the results as plain data; members of which there is nothing to say are left out."""
        episodes = len(self.scores)
        steps = max(self.steps, 1)
        summary: dict[str, Any] = {
            "n": len(self.won),
            "generated_tasks": sum(map(is_generated, self.won)),
            DATA: data_played(
                (self.env_ids[task], task) for task in self.won if task not in self.imported
            ),
            "world_models": {name: in_words(name) for name in sorted(self.world_models)},
            **self._outcomes(),
            "steps": {"all": self.steps, "per_episode": self.steps / max(self.trials, 1)},
            "invalid_actions": self.invalid / steps,
            "imagined_steps": self.imagined / steps,
        }
        for model in ("language_model", "world_model"):
            spending: Counter[str] = getattr(self, model)
            summary[model] = {
                "all": {name: spending[name] for name in _SPENT},
                "per_step": {name: spending[name] / steps for name in _SPENT},
            }
        if self.cut:
            summary[CUT] = {
                model: {"all": counts.total(), "for": dict(sorted(counts.items()))}
                for model, counts in sorted(self.cut.items())
            }
        if self.unread.read:
            summary[UNREAD] = self.unread.summary()

        summary |= self._faults()
        if self.gate:
            summary["gate"] = self._gate_summary()
        if self.env_info:
            summary["told"] = {
                name: dict(sorted(words.items())) for name, words in self.env_info.items()
            }
        if self.foreseen:
            summary["predictions"] = self._predictions()

        if episodes > len(
            self.won
        ):  # several seeds: each is an attempt, its last trial the outcome
            summary["episodes"] = episodes
            attempts = [[trials[-1] for trials in seeds.values()] for seeds in self.won.values()]
            summary["pass_at_k"] = {str(k): share for k, share in pass_at_k(attempts).items()}
            summary["pass_hat_k"] = {str(k): share for k, share in pass_hat_k(attempts).items()}
        if self.trials > episodes and not self.unknown:
            first = asdict(self._success(0, self.won))
            summary["trials"] = {"all": self.trials, "first": first, "last": summary["success"]}
        if seconds is not None:
            summary["seconds"] = {"all": seconds, "per_step": seconds / steps}
        return summary

    def _outcomes(self) -> dict[str, Any]:
        """Return success and score of the tasks whose outcome is known; neither where it is of none."""
        known_tasks = [task for task in self.won if task not in self.unknown]
        if not known_tasks and self.unknown:
            return {UNKNOWN: len(self.unknown)}

        scores = [score for (task, _), score in self.scores.items() if task not in self.unknown]
        outcomes = {
            "success": asdict(self._success(-1, known_tasks)),
            "by_type": self._by_type(),
            "score": sum(scores) / max(len(scores), 1),
        }
        return outcomes | ({UNKNOWN: len(self.unknown)} if self.unknown else {})

    def _faults(self) -> dict[str, dict[str, Any]]:
        """Return how many episodes ended by each type of fault, and the first message of each."""
        counts: Counter[str] = Counter()
        first_messages: dict[str, str] = {}
        for error in self.errors.values():
            kind, _, message = error.partition(": ")
            counts[kind] += 1
            first_messages.setdefault(kind, message[:500])
        return {
            "errors": dict(sorted(counts.items())),
            "first_errors": dict(sorted(first_messages.items())),
        }

    def _gate_summary(self) -> dict[str, Any]:
        """Return how often CoMap's gate opened (section 3.2), and what its p and q came from."""
        opened = sum(count for (_, _, is_open), count in self.gate.items() if is_open)
        p_sources = {str(p_source) for p_source, _, _ in self.gate}
        q_sources = {str(q_source) for _, q_source, _ in self.gate}
        return {
            "reflections": self.gate.total(),
            "opened": opened,
            "p_source": ", ".join(sorted(p_sources)),
            "q_source": ", ".join(sorted(q_sources)),
        }

    def _predictions(self) -> dict[str, Any]:
        """Return the mean Delta-F1 of predictions, also over those steps alone that changed something.

        A model that predicts no change scores 1 on every step without one, so the first mean flatters it.
        """
        scores = [score for score, _ in self.foreseen]
        scores_of_changes = [score for score, has_changed in self.foreseen if has_changed]
        return {
            "n": len(scores),
            "delta_f1": sum(scores) / len(scores),
            "nonempty": sum(scores_of_changes) / max(len(scores_of_changes), 1),
        }

    def _by_type(self) -> dict[str, Any]:
        """Return the success of each type of task; empty where there is one, or ids do not say it."""
        types = sorted({*self.types.values()})
        if len(types) < 2 or self.unknown:
            return {}

        by_type: dict[str, Any] = {}
        for task_type in types:
            tasks = [task for task in self.won if self.types[task] == task_type]
            by_type[task_type] = asdict(self._success(-1, tasks))
        return by_type

    def _success(self, trial: int, tasks: Iterable[str]) -> Rate:
        """Return the success of a trial: of each task the share of its seeds, since these depend."""
        shares: list[float] = []
        for task in tasks:
            seeds = self.won[task].values()
            shares.append(sum(trials[trial] for trials in seeds) / len(seeds))
        return wilson(sum(shares) / max(len(shares), 1), len(shares))
