"""What both models learn in CoMap's rounds: real transitions with a teacher, and anchored reflections."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
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
    truth_in_prompt = cut_text(truth, model.max_length // 4, model.lm.count_tokens)
    return model.fill(query, __package__ or "", "privileged", truth=truth_in_prompt)


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
    transitions = chain.from_iterable(map(transitions_of, trajectories))
    samples = transition_samples(trajectories, model, kind="world_model")
    for (query, observation), sample in zip(transitions, samples, strict=True):
        teacher_prompt = privileged_prompt(model, query, observation) if distilled else ()
        yield replace(sample, reply=((observation, learned),), teacher=teacher_prompt)


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
        for query, observation in transitions_of(trajectory):
            step = len(query.history) - 1
            # Each transition has a draw of its own: the same whatever else is learned.
            rng = random.Random(f"{seed}\nreading\n{episode}\n{step}".encode("utf-8", "replace"))
            if rng.random() >= share:
                continue

            text = observation
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
    steps = []
    for episode_index, demonstration in enumerate(demonstrations):
        for step_index, step in enumerate(demonstration.steps):
            if is_shown(step) and step.action.strip():  # a policy's reply may be empty
                steps.append((episode_index, step_index))
    if number and not steps:
        raise OptionError("expected demonstrations to draw anchors from, found no step in them")
    rng = random.Random(f"{seed}\nanchors".encode())
    # All steps are used equally often, and a random rest once more.
    rounds, remainder = divmod(number, len(steps)) if steps else (0, 0)
    extra = Counter(rng.sample(steps, remainder))
    often = {step: rounds + extra[step] for step in steps}
    samples = imitation_samples(
        demonstrations, config, count_tokens=count_tokens, kind=ANCHOR, often=often
    )
    return list(samples)


def balance_weights(anchors: Sequence[Sample], reflections: Sequence[Sample]) -> list[Sample]:
    """Return all samples, weighted so that the sum over each group is its mean (CoMap, eq. 8).

    The trainer divides by all rows.
    """
    total = len(anchors) + len(reflections)
    samples = []
    for group in (anchors, reflections):
        samples += [sample.scaled(total / len(group)) for sample in group]
    return samples


def balanced(
    kinds: Sequence[str], ratio: float, seed: int, *, alone: int | None = None
) -> list[int]:
    """Return which samples of these kinds remain: at most so many kept drafts for each revision.

    Where the policy's gate opens rarely, nearly all samples are kept drafts, and a small model learns to
    keep everything. Samples of other kinds stay; the order does too. Without a revision `alone` kept
    drafts stay, or all.
    """
    kept_drafts = [
        index for index, kind in enumerate(kinds) if kind in ("keep_draft", "expert_draft")
    ]
    revision_count = sum(kind in ("revise_positive", "hq_reflect") for kind in kinds)
    limit = int(ratio * revision_count + _ROUNDING) if revision_count else alone

    dropped: set[int] = set()
    if limit is not None and len(kept_drafts) > limit:
        rng = random.Random(f"{seed}\nbalance".encode())
        dropped = set(kept_drafts) - set(rng.sample(kept_drafts, limit))
    return [index for index in range(len(kinds)) if index not in dropped]


class StudentRollouts:
    """Returns the student's own predictions, which are new in each epoch (CoMap, eq. 6).

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
        self._folder = folder
        self._samples = samples
        self._language_model = language_model
        self._end = end
        self._sampling = sampling
        self._adapter = adapter

    def __call__(self, epoch: int) -> list[tuple[int, ...]]:
        """Return the tokens that were predicted for each sample; none for those without a teacher."""
        keys = [str(index) for index, sample in enumerate(self._samples) if sample.teacher]
        folder = self._folder / f"predictions-{epoch}"

        # All processes at once, also those that have nothing to ask: an engine may need them all.
        lm = self._language_model()
        predictions = each_once(folder, keys, partial(self._predict, lm, epoch))
        return [tuple(predictions.get(str(index), ())) for index in range(len(self._samples))]

    def _predict(self, lm: LanguageModel, epoch: int, keys: Sequence[str]) -> Iterator[Done]:
        """Yield the key and the predicted tokens of samples, whose keys are their indices."""
        requests = []
        for key in keys:
            # Each prediction has a seed of its own: it depends on no other row.
            seed_text = f"{self._sampling.seed}\n{epoch}\n{key}"
            seed = int.from_bytes(hashlib.sha256(seed_text.encode()).digest()[:4], "big") >> 1
            requests.append(
                Generate(
                    self._samples[int(key)].messages,
                    replace(self._sampling, seed=seed),
                    adapter=self._adapter,
                    purpose="student rollout",
                )
            )

        replies = lm.generate(requests)
        for key, reply in zip(keys, replies, strict=True):
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
