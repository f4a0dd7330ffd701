"""What both models learn in CoMap's rounds: real transitions with a teacher, and anchored reflections."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...agents import AgentConfig
from ...agents.base import estimate_tokens
from ...errors import LanguageModelError, OptionError
from ...lm import Generate, LanguageModel, Message, Sampling
from ...lm.prompts import cut_text
from ...trajectory import Trajectory
from ...worldmodel import Query, transitions_of
from ...worldmodel.language import LanguageWorldModel
from ..run_folder import Done, each_once
from ..samples import ANCHOR, Sample
from ..sft import imitation_samples, is_shown, transition_samples

_ROUNDING = 1e-9  # what a product of floating-point numbers may be off by


def privileged_prompt(model: LanguageWorldModel, query: Query, truth: str) -> tuple[Message, ...]:
    """Return the world model's prompt with the real next observation in it: for training only."""
    shown = cut_text(truth, model.max_length // 4, model.lm.count_tokens)
    return model.fill(query, __package__ or "", "privileged", truth=shown)


def world_model_samples(
    trajectories: Sequence[Trajectory],
    model: LanguageWorldModel,
    *,
    distilled: bool = False,
    learned: bool = True,
) -> Iterator[Sample]:
    """Yield a sample for each real transition, with the teacher's prompt where it is distilled.

    Where it is not `learned`, the real next state carries no loss of its own (w/o Real CE).
    """
    queries = (one for trajectory in trajectories for one in transitions_of(trajectory))
    samples = transition_samples(trajectories, model, kind="world_model")
    for (query, text), sample in zip(queries, samples, strict=True):
        yield replace(
            sample,
            reply=((text, learned),),
            teacher=privileged_prompt(model, query, text) if distilled else (),
        )


def reading_samples(
    trajectories: Iterable[Trajectory],
    model: LanguageWorldModel,
    *,
    share: float,
    seed: int = 0,
    others: Sequence[str] = (),
) -> Iterator[Sample]:
    """Yield samples that teach a small model to read the teacher's prompt (ours).

    A small model that never saw the teacher's prompt cannot use it. So for a share of the transitions
    that prompt is the sample's own, and what was observed is the reply. With `others`, half of these
    have another text in prompt and reply: one that only reading can find, not knowledge of the world.
    The preset ``paper`` has none.
    """
    for trajectory in trajectories:
        episode = f"{trajectory.task}\n{trajectory.seed}\n{trajectory.trial}"
        for query, text in transitions_of(trajectory):
            step = len(query.history) - 1
            rng = random.Random(f"{seed}\nreading\n{episode}\n{step}".encode("utf-8", "replace"))
            if rng.random() >= share:
                continue
            if others and rng.random() < 0.5:
                text = others[rng.randrange(len(others))]
            yield Sample(
                kind="reading",
                messages=privileged_prompt(model, query, text),
                reply=((text, True),),
                task=trajectory.task,
                step=step,
            )


def anchor_samples(
    demonstrations: Sequence[Trajectory],
    config: AgentConfig,
    number: int,
    seed: int,
    *,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> list[Sample]:
    """Return samples of steps of demonstrations drawn at random, of the kind ``anchor``."""
    steps = [
        (episode, index)
        for episode, demonstration in enumerate(demonstrations)
        for index, step in enumerate(demonstration.steps)
        if is_shown(step) and step.action.strip()  # a policy may have said nothing
    ]
    if number and not steps:
        raise OptionError("expected demonstrations to draw anchors from, found no step in them")
    rng = random.Random(f"{seed}\nanchors".encode())
    times, rest = divmod(number, len(steps)) if steps else (0, 0)
    drawn = Counter(rng.sample(steps, rest))
    often = {step: times + drawn[step] for step in steps}
    return list(
        imitation_samples(
            demonstrations, config, count_tokens=count_tokens, kind=ANCHOR, often=often
        )
    )


def balance_weights(anchors: Sequence[Sample], reflections: Sequence[Sample]) -> list[Sample]:
    """Return all samples, weighted so that the sum over each group is its mean (CoMap, eq. 8).

    The trainer divides by all rows.
    """
    total = len(anchors) + len(reflections)
    return [
        sample.scaled(total / len(group)) for group in (anchors, reflections) for sample in group
    ]


def balanced(
    kinds: Sequence[str], ratio: float, seed: int, *, alone: int | None = None
) -> list[int]:
    """Return which samples of these kinds remain: at most so many kept drafts for each revision.

    Where the policy's gate opens rarely, nearly all samples are kept drafts, and a small model learns to
    keep everything. Samples of other kinds stay; the order does too. Without a revision `alone` kept
    drafts stay, or all.
    """
    keeps = [index for index, kind in enumerate(kinds) if kind in ("keep_draft", "expert_draft")]
    revisions = sum(kind in ("revise_positive", "hq_reflect") for kind in kinds)
    limit = int(ratio * revisions + _ROUNDING) if revisions else alone
    dropped = set[int]()
    if limit is not None and len(keeps) > limit:
        rng = random.Random(f"{seed}\nbalance".encode())
        dropped = set(keeps) - set(rng.sample(keeps, limit))
    return [index for index in range(len(kinds)) if index not in dropped]


class StudentRollouts:
    """Lets the student predict by itself, anew in each epoch, and keeps it (CoMap, eq. 6).

    Predictions are written down: a training that was killed resumes with the same texts. The
    processes of a training share the work, and must all ask. A text ends with its first end token,
    unless it ran out of room; there is always one token at least.
    """

    def __init__(
        self,
        folder: Path,
        samples: Sequence[Sample],
        language_model: Callable[[], LanguageModel],
        end: int,
        sampling: Sampling,
        *,
        adapter: str = "wm",
    ):
        self._folder, self._samples, self._make = folder, samples, language_model
        self._end, self._sampling, self._adapter = end, sampling, adapter

    def __call__(self, epoch: int) -> list[tuple[int, ...]]:
        keys = [str(row) for row, sample in enumerate(self._samples) if sample.teacher]
        folder = self._folder / f"predictions-{epoch}"
        found = each_once(folder, keys, partial(self._predict, epoch))
        return [tuple(found.get(str(row), ())) for row in range(len(self._samples))]

    def _predict(self, epoch: int, keys: Sequence[str]) -> Iterator[Done]:
        requests = []
        for key in keys:
            text = f"{self._sampling.seed}\n{epoch}\n{key}"
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
            messages, sampling = (
                self._samples[int(key)].messages,
                replace(self._sampling, seed=seed),
            )
            requests.append(
                Generate(messages, sampling, adapter=self._adapter, purpose="student rollout")
            )
        for key, reply in zip(keys, self._make().generate(requests), strict=True):
            if isinstance(reply, LanguageModelError):
                raise LanguageModelError(
                    f"the student cannot predict row {key}: {reply}"
                ) from reply
            assert reply.token_ids is not None
            tokens = [int(token) for token in reply.token_ids]
            if self._end in tokens:
                tokens = tokens[: tokens.index(self._end) + 1]
            elif reply.finish == "stop" or not tokens:
                tokens.append(self._end)
            yield key, tokens
