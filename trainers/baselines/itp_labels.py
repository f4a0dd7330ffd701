"""ITP's first stage: what the world model expects of an expert's steps, and which depth pays best.

METHODS.md 3, ITP_R: ``argmax_K log pi(a* | s, obs@K) - 0.2 K``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from ...agents.itp import ITPAgent, ITPConfig
from ...agents.k_head import pseudo_label_k
from ...errors import EngineError, LanguageModelError
from ...lm import Score, answer
from ...trajectory import Trajectory
from ...worldmodel import WorldModel, transitions_of
from ..run_folder import StageFolder
from .heads import zero_head
from .itp_samples import Moment, label_counts, moments_of, scores_of
from .methods import ITPTraining
from .once import Found, each_once
from .stages import WRITTEN, BaselineStages

__all__ = [
    "DEPTHS",
    "FORESIGHT",
    "ITPLabels",
    "admissible_before",
    "depths_of",
    "scores_by_request",
]

FORESIGHT = "foresight"
"""The stage in which the world model says what it expects."""
DEPTHS = "depths"
"""The stage in which steps get their depths."""


class ITPLabels(BaselineStages[ITPTraining]):
    """How ITP asks, and the stage in which the expert's steps get their depths."""

    def settings(self, **changed: Any) -> ITPConfig:
        """Return how the agent asks."""
        config = self.config
        return ITPConfig(
            **self.session.agent_settings(**changed),
            k_source="head",
            k_max=self.k_max,
            told="last",
            foresight_tokens=config.foresight_tokens,
            reply_tokens=config.reply_tokens,
        )

    @property
    def k_max(self) -> int:
        """The greatest depth."""
        if self.config.k_max is not None:
            return self.config.k_max
        return ITPConfig().k_max_of(self.session.demos[0].env_id)

    def asking(self) -> ITPAgent:
        """Return an agent that makes prompts; its head says nothing yet."""
        return ITPAgent(self.settings(), zero_head(self.session.head.size, self.k_max + 1))

    # -- stage 1: labels -------------------------------------------------------------------------

    def foresee(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the world model say what it expects of each of the expert's steps."""
        shown = {one.task: one for one in self._shown()}
        found = each_once(stage.path / WRITTEN, list(shown), partial(self._predicted, shown))
        return {"tasks": len(found), "faults": sum("error" in told for told in found.values())}

    def _predicted(self, shown: Mapping[str, Trajectory], tasks: Sequence[str]) -> Iterator[Found]:
        model = self.session.world_model(self.session.language_model())
        size = self.session.config.live
        for start in range(0, len(tasks), size):
            yield from _together(model, shown, tasks[start : start + size])
            self.progress(min(start + size, len(tasks)), len(tasks))

    def label(self, stage: StageFolder) -> Mapping[str, Any]:
        """Give each step the depth that pays best: ``argmax log pi(a* | s, obs@K) - 0.2 K``."""
        moments = {task: list(some) for task, some in self._moments()}
        found = each_once(stage.path / WRITTEN, list(moments), partial(self._labelled, moments))
        depths = {task: told["depths"] for task, told in found.items() if "depths" in told}
        faults = len(found) - len(depths)
        return {
            "steps": sum(map(len, depths.values())),
            "faults": faults,
            "k": label_counts(depths),
        }

    def _labelled(
        self, moments: Mapping[str, Sequence[Moment]], tasks: Sequence[str]
    ) -> Iterator[Found]:
        lm, agent, most = self.session.language_model(), self.asking(), self.k_max
        size = max(self.session.config.live // (most + 1), 1)
        for start in range(0, len(tasks), size):
            some = tasks[start : start + size]
            asked = {
                task: [scores_of(moment, agent, most, "agent") for moment in moments[task]]
                for task in some
            }
            said = scores_by_request(
                lm, [one for rows in asked.values() for row in rows for one in row]
            )
            for task in some:
                yield task, depths_of(asked[task], said, self.config.depth_cost)
            self.progress(min(start + size, len(tasks)), len(tasks))

    def _moments(self) -> Iterator[tuple[str, Iterator[Moment]]]:
        """Yield each demonstration's task with its steps, those whose predictions failed left out."""
        count = self.session.counting.count_tokens
        predicted = self._predictions()
        lists = self.config.prompts == "standard"
        with closing(self.session.make_env(self.config.train_split)) as env:
            for shown in self._shown():
                if shown.task in predicted:
                    seen = admissible_before(env, shown) if lists else None
                    texts = predicted[shown.task]
                    yield shown.task, moments_of(shown, texts, seen, count)

    # -- what the stages found -------------------------------------------------------------------

    def _shown(self) -> list[Trajectory]:
        return self.demonstrated(self.config.labelled, "labelled")

    def _predictions(self) -> dict[str, list[str]]:
        """Return the predictions of each demonstration, those that failed left out."""
        found = self.written(FORESIGHT, [shown.task for shown in self._shown()])
        return {task: told["texts"] for task, told in found.items() if "texts" in told}

    def labels(self) -> tuple[list[Moment], list[int]]:
        """Return the expert's steps, and the depth of each."""
        steps = {task: list(some) for task, some in self._moments()}
        found = self.written(DEPTHS, list(steps))
        moments: list[Moment] = []
        depths: list[int] = []
        for task, told in found.items():
            if "depths" in told:
                moments += steps[task]
                depths += told["depths"]
        return moments, depths


def _together(
    model: WorldModel, shown: Mapping[str, Trajectory], tasks: Sequence[str]
) -> Iterator[Found]:
    """Yield the predictions of demonstrations; where that fails, of each by itself."""
    queries = {task: [query for query, _ in transitions_of(shown[task])] for task in tasks}
    try:
        said = iter(model.predict([query for some in queries.values() for query in some]))
    except LanguageModelError as error:
        if len(tasks) == 1:
            yield tasks[0], {"error": f"{type(error).__name__}: {error}"}
            return
        for task in tasks:
            yield from _together(model, shown, [task])
        return
    for task, some in queries.items():
        yield task, {"texts": [next(said).observation for _ in some]}


def scores_by_request(lm: Any, asked: Sequence[Score]) -> dict[Any, float | str]:
    """Return the log-probability that each request asks for, or why there is none; each once.

    Args:
        lm: The language model.
        asked: Requests, each for one text; the same ones are made once.
    """
    distinct = {(one.messages, one.completions): one for one in asked}
    found: dict[Any, float | str] = {}
    for key, reply in zip(distinct, answer(lm, list(distinct.values())), strict=True):
        failed = isinstance(reply, LanguageModelError)
        found[key] = f"{type(reply).__name__}: {reply}" if failed else reply.totals[0]
    return found


def depths_of(
    asked: Sequence[Sequence[Score]], said: Mapping[Any, float | str], cost: float
) -> dict[str, Any]:
    """Return the depth of each of an episode's steps, and what it was chosen by.

    Args:
        asked: For each step the request for each depth, from 0 up.
        said: What `scores_by_request` returned of them.
        cost: What an imagined step costs.

    Returns:
        ``depths`` and ``scores``; or ``error``, where one of the requests failed.
    """
    depths, scores = [], []
    for row in asked:
        values = [said[one.messages, one.completions] for one in row]
        numbers = [value for value in values if not isinstance(value, str)]
        if len(numbers) < len(values):
            return {"error": next(value for value in values if isinstance(value, str))}
        depths.append(pseudo_label_k(numbers, cost))
        scores.append([round(value, 6) for value in numbers])
    return {"depths": depths, "scores": scores}


def admissible_before(env: Any, shown: Trajectory) -> list[tuple[str, ...] | None]:
    """Return the admissible actions before each step, by doing it all again.

    Args:
        env: Where.
        shown: The episode; what comes after the environment has ended is left out.

    Raises:
        EngineError: The environment answers otherwise than it did.
    """
    observation, info = env.reset(seed=shown.seed, options={"task": shown.task})
    seen, found = shown.observation, []
    for step in shown.steps:
        if observation != seen:
            raise EngineError(
                f"expected the episode of {shown.task!r:.80} again, found another observation before "
                f"step {step.t}; show the expert's episodes anew, in another folder"
            )
        found.append(info["admissible_actions"])
        observation, _, terminated, truncated, info = env.step(step.action)
        seen = step.observation
        if terminated or truncated:
            break  # it ends sooner than for who shows how it is done
    return found
