"""Parts of `comap bench noise-gradients`: finding transitions with noise, and scoring them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium

from ..agents import Agent, run_episodes
from ..errors import OptionError
from ..lm.hf import HFLanguageModel
from ..lm.hf_load import ends_of
from ..trainers.paw.noise import ScoredObservation, noise_shares, noisy_tokens
from ..trainers.paw.noise_spans import (
    Spans,
    code_spans,
    content_spans,
    listed_codes,
    listing_spans,
)
from ..trainers.paw.observation_scores import observation_logprobs
from ..trainers.paw.rows import PaWRow, Serializer
from ..trajectory import Trajectory

__all__ = ["Found", "Noise", "NoiseOptions", "find_noise", "gather", "measure"]

Noise: TypeAlias = Literal["contents", "codes", "listings"]
"""What counts as noise: first-seen contents of receptacles, product codes and words in capitals, or all
that lists tell of products not listed before."""

_LOT = 16  # episodes that are played before it is asked whether there are enough transitions
_RESULTS = "(Total results:"  # stands on WebShop's pages of search results


class Found(NamedTuple):
    """A transition with noise in its observation.

    Attributes:
        row: The transition in tokens.
        noisy: Which of the observation's tokens are noise.
    """

    row: PaWRow
    noisy: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """How the noise is measured.

    Raises:
        OptionError: A number is out of its range.

    Example:
        >>> NoiseOptions(transitions=10).rho
        0.2
    """

    transitions: int = 100
    """So many transitions are drawn (METHODS.md 2.9)."""
    rho: float = 0.2
    """Of the clipped loss (METHODS.md 2.3)."""
    episodes: int = 320
    """At most so many episodes are played to find them."""
    live: int = 16
    """So many episodes are played at once; results do not depend on it."""
    batch_tokens: int = 16_384
    """Most tokens of a batch that is scored."""
    seed: int = 0
    """Seed of the order of tasks, of what the agent says, of the drawing and of the intervals."""

    def __post_init__(self) -> None:
        for name in ("transitions", "episodes", "live", "batch_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
        if not 0 <= self.rho <= 1:
            raise OptionError(f"rho must be from 0 to 1, not {self.rho!r}")


def find_noise(
    trajectory: Trajectory,
    serializer: Serializer,
    tokenizer: Any,
    kind: Noise,
) -> list[Found]:
    """Return the transitions of an episode whose observation has noise in it.

    Args:
        trajectory: The episode, with the tokens kept.
        serializer: Makes its rows.
        tokenizer: The model's tokenizer.
        kind: What counts as noise; in WebShop only on pages of search results (METHODS.md 2.9). With
            ``listings`` a product is known from any page of results earlier in the episode.

    Raises:
        OptionError: The episode was played without keeping tokens.

    Example:
        >>> find_noise(trajectory, serializer, tokenizer, "contents")[0].noisy  # doctest: +SKIP
        (False, False, True, True)
    """
    shop = trajectory.env_id.rpartition("/")[2].startswith("WebShop")
    found = []
    listed: set[str] = set()
    for row in serializer.rows_of(trajectory, group=0, number=0):
        step = trajectory.steps[row.t]
        if shop and _RESULTS not in step.observation:
            continue
        spans_of: Callable[[str], Spans] = code_spans
        if kind == "contents":
            spans_of = partial(content_spans, step.delta)
        elif kind == "listings":
            spans_of = partial(listing_spans, frozenset(listed))
            listed |= listed_codes(step.observation)
        noisy = noisy_tokens(tokenizer, row.observation_ids, spans_of)
        if any(noisy):
            found.append(Found(row, noisy))
    return found


def gather(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    lm: HFLanguageModel,
    options: NoiseOptions,
    *,
    kind: Noise,
    max_observation: int = 512,
) -> tuple[list[Found], dict[str, int]]:
    """Play until there are enough transitions with noise, and draw the wanted number of them.

    Args:
        make_env: Makes an environment.
        agent: Who plays.
        lm: Its language model.
        options: How many, and seeds.
        kind: See `find_noise`.
        max_observation: The most tokens of an observation.

    Returns:
        The transitions, at most as many as wanted, and counts: of episodes, of those that a fault
        ended, and of all transitions with noise.

    Raises:
        OptionError: All tasks, or as many as may be, were played without noise in any observation.

    Example:
        >>> gather(make_env, agent, lm, NoiseOptions(), kind="contents")[1]  # doctest: +SKIP
        {'episodes': 16, 'faulty_episodes': 0, 'candidates': 131}
    """
    with closing(make_env()) as env:
        tasks = list(env.get_wrapper_attr("tasks").ids)
    rng = random.Random(options.seed)
    rng.shuffle(tasks)
    tasks = tasks[: options.episodes]
    serializer = Serializer(lm.tokenizer, ends=ends_of(lm.model), max_observation=max_observation)
    found: list[Found] = []
    counts = {"episodes": 0, "faulty_episodes": 0}
    while len(found) < options.transitions and counts["episodes"] < len(tasks):
        some = tasks[counts["episodes"] : counts["episodes"] + _LOT]
        for trajectory in run_episodes(
            make_env, agent, some, lm=lm, live=options.live, keep="tokens"
        ):
            found += find_noise(trajectory, serializer, lm.tokenizer, kind)
            counts["faulty_episodes"] += trajectory.error is not None
        counts["episodes"] += len(some)
    if not found:
        raise OptionError(
            f"expected transitions with noise, found none in {counts['episodes']} episodes; use a "
            "policy that gets somewhere, or --agent-option decoding=masked"
        )
    drawn = rng.sample(found, min(options.transitions, len(found)))
    return drawn, counts | {"candidates": len(found)}


def measure(lm: HFLanguageModel, found: Sequence[Found], options: NoiseOptions) -> dict[str, Any]:
    """Score transitions and return the shares of their gradients: see `noise_shares`.

    Args:
        lm: The language model that scores them.
        found: The transitions.
        options: Of the losses, batches and intervals.

    Example:
        >>> measure(lm, found, NoiseOptions())["shares"]["ce"]  # doctest: +SKIP
        {'share': 0.31, 'low': 0.28, 'high': 0.34}
    """
    pad = lm.tokenizer.pad_token_id
    logprobs = observation_logprobs(
        lm.model,
        [one.row for one in found],
        batch_tokens=options.batch_tokens,
        pad=0 if pad is None else int(pad),
    )
    scored = [
        ScoredObservation(tuple(told), one.noisy) for told, one in zip(logprobs, found, strict=True)
    ]
    return noise_shares(scored, rho=options.rho, seed=options.seed)
