"""`comap bench noise-gradients`: the share of each loss's gradient that falls on what nobody can predict.

A policy plays; from its episodes transitions are drawn whose observation has something that no world
model can know; the policy scores these observations as PaW trains on them; nothing is trained. Each
loss pulls at the logit of a token of probability p by an amount of its own: cross-entropy by 1 - p, the
mean absolute error by p (1 - p), and PaW's clipped one (eq. 7) by p (1 - p) where p is at most rho.

In ALFWorld, noise is what a receptacle holds that is looked into for the first time; elsewhere it is
product codes and words in capitals, as in WebShop (PaW, A.4).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import gymnasium
import numpy as np

from ..agents import Agent, run_episodes
from ..agents.create import create_agent
from ..errors import LanguageModelError, OptionError
from ..facts import Delta
from ..lm.create import create_language_model, hush
from ..lm.hf import HFLanguageModel
from ..lm.load import ends_of
from ..trainers.paw.rows import PaWRow, Serializer, micro_batch, overlapping
from ..trainers.setup import Environments
from ..trajectory import Trajectory
from .record import circumstances, write_result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Noise: TypeAlias = Literal["contents", "codes"]
"""What counts as noise: first-seen contents of receptacles, or product codes and words in capitals."""

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Where parts of a text begin and end."""

GRADIENTS = ("ce", "mae", "cmae")
"""Cross-entropy, mean absolute error, and the latter clipped."""

_DRAWS = 2000  # of the bootstrap
_LEVEL = 0.95  # of its intervals
_ROWS = 64  # in a batch, whatever its tokens
_LOT = 16  # episodes that are played before it is asked whether there are enough transitions
_RESULTS = "(Total results:"  # stands on WebShop's pages of search results
_CODE = re.compile(r"(?=(B[0-9A-Z]{9}))")  # looks ahead, so that codes may overlap
_CAPITALS = re.compile(r"[A-Z]{4,}[0-9]*")
_PACKAGES = ("torch", "transformers", "gymnasium", "numpy")
_BRIEF = {"prompts": "brief", "state_text": "belief", "form": "given"}
_AGENTS: dict[str, dict[str, Any]] = {
    "react": {**_BRIEF, "temperature": 1.0, "top_p": 1.0},
    "paw": {},
}
_NAMES = {"count": "tokens", "ce": "CE, 1-p", "mae": "MAE, p(1-p)", "cmae": "CMAE, clipped"}


@dataclass(frozen=True, kw_only=True)
class NoiseGradients:
    """What `run` measures."""

    model: str = "shipped:agent"
    """the policy: a folder, a hub's name, shipped"""
    env: str = "comap/ALFWorld-v0"
    """id of the environment"""
    split: str = "train"
    """split that is played"""
    data_dir: str | None = None
    """folder with official data"""
    env_option: Mapping[str, Any] = field(default_factory=dict)
    """option of the environment (repeatable)"""
    agent: Literal["paw", "react"] = "react"
    """how the policy is asked"""
    agent_option: Mapping[str, Any] = field(default_factory=dict)
    """setting of the agent (repeatable)"""
    noise: Noise | None = None
    """what is noise: contents or codes (default: by environment)"""
    transitions: int = 100
    """transitions to draw"""
    episodes: int = 320
    """most episodes to find them in"""
    rho: float = 0.2
    """of the clipped loss"""
    max_observation: int | None = None
    """most tokens of an observation (default: 512; on WebShop 1024)"""
    batch_tokens: int = 16_384
    """most tokens of a batch"""
    concurrency: int = 16
    """episodes at the same time"""
    seed: int = 0
    """seed of everything that is drawn"""
    device: str | None = None
    """where the model computes (default: a GPU where there is one)"""
    dtype: str | None = None
    """what the model computes with (default: by model and device)"""
    out: Path | None = None
    """write the result to this file, as JSON"""


class NoisyRow(NamedTuple):
    """A transition with noise in its observation, and which of the observation's tokens are noise."""

    row: PaWRow
    is_noise: list[bool]


def run(options: NoiseGradients) -> None:
    """Measure, and print and write what was found."""
    for name in ("transitions", "episodes", "concurrency", "batch_tokens"):
        if getattr(options, name) < 1:
            raise OptionError(f"{name} must be at least 1, not {getattr(options, name)}")
    if not 0 <= options.rho <= 1:
        raise OptionError(f"rho must be from 0 to 1, not {options.rho!r}")

    settings = _AGENTS[options.agent] | {"seed": options.seed} | dict(options.agent_option)
    agent = create_agent(options.agent, **settings)

    usual_kind: Noise = "contents" if "/ALFWorld-" in options.env else "codes"
    kind = options.noise or usual_kind
    usual_length = 1024 if "/WebShop-" in options.env else 512
    max_observation = options.max_observation or usual_length

    hush()
    lm = create_language_model(options.model, device=options.device, dtype=options.dtype)
    if not isinstance(lm, HFLanguageModel):
        raise OptionError(f"expected a model that runs in this process, found {lm.name!r}")

    noisy_rows, counts = gather(options, agent, lm, kind, max_observation)
    rows = [noisy_row.row for noisy_row in noisy_rows]
    noise_masks = [noisy_row.is_noise for noisy_row in noisy_rows]
    logprobs = observation_logprobs(lm.model, rows, batch_tokens=options.batch_tokens)

    result = {
        "benchmark": "noise gradients",
        "env": options.env,
        "split": options.split,
        "env_options": dict(options.env_option),
        "agent": {"name": options.agent, **settings},
        "model": lm.config(),
        "noise": kind,
        "max_observation": max_observation,
        "wanted_transitions": options.transitions,
        "seed": options.seed,
        **counts,
        **noise_shares(logprobs, noise_masks, rho=options.rho, seed=options.seed),
        **circumstances(_PACKAGES),
    }
    if options.out is not None:
        write_result(options.out, result)
    _print(result)


def gather(
    options: NoiseGradients, agent: Agent, lm: HFLanguageModel, kind: Noise, max_observation: int
) -> tuple[list[NoisyRow], dict[str, int]]:
    """Play until there are enough transitions with noise, and draw the wanted number of them."""
    env_options = dict(options.env_option)
    if options.data_dir is not None:
        env_options["data_dir"] = options.data_dir
    make_env: Callable[[], gymnasium.Env[str, str]]
    make_env = partial(Environments(options.env, env_options), options.split)
    with closing(make_env()) as env:
        tasks = list(env.get_wrapper_attr("tasks").ids)
    rng = random.Random(options.seed)
    rng.shuffle(tasks)
    tasks = tasks[: options.episodes]

    serializer = Serializer(lm.tokenizer, ends=ends_of(lm.model), max_observation=max_observation)
    candidates: list[NoisyRow] = []
    counts = {"episodes": 0, "faulty_episodes": 0}
    while len(candidates) < options.transitions and counts["episodes"] < len(tasks):
        lot = tasks[counts["episodes"] : counts["episodes"] + _LOT]
        for trajectory in run_episodes(
            make_env, agent, lot, lm=lm, concurrency=options.concurrency, keep="tokens"
        ):
            candidates += find_noise(trajectory, serializer, kind)
            counts["faulty_episodes"] += trajectory.error is not None
        counts["episodes"] += len(lot)

    if not candidates:
        raise OptionError(
            f"expected transitions with noise, found none in {counts['episodes']} episodes; use a "
            "policy that gets somewhere, or --agent-option decoding=masked"
        )
    noisy_rows = rng.sample(candidates, min(options.transitions, len(candidates)))
    return noisy_rows, counts | {"candidates": len(candidates)}


def find_noise(trajectory: Trajectory, serializer: Serializer, kind: Noise) -> list[NoisyRow]:
    """Return the transitions of an episode whose observation has noise in it."""
    is_webshop = trajectory.env_id.rpartition("/")[2].startswith("WebShop")
    noisy_rows = []
    for row in serializer.rows_of(trajectory, group=0, number=0):
        # Codes are news on WebShop's pages of results alone: an item is clicked on by its code.
        step = trajectory.steps[row.t]
        if is_webshop and _RESULTS not in step.observation:
            continue

        # Spans are of the text that the tokens decode to, which may differ from the observation's.
        token_texts = serializer.chat.texts(row.observation_ids)
        text = "".join(token_texts)
        spans: Spans
        spans = content_spans(step.delta, text) if kind == "contents" else code_spans(text)
        is_noise = overlapping(token_texts, spans)
        if any(is_noise):
            noisy_rows.append(NoisyRow(row, is_noise))
    return noisy_rows


def code_spans(text: str) -> list[tuple[int, int]]:
    """Return where a text has product codes or words in capitals (PaW, A.4)."""
    spans = {match.span(1) for match in _CODE.finditer(text)}
    spans |= {match.span() for match in _CAPITALS.finditer(text)}
    return sorted(spans)


def content_spans(delta: Delta, text: str) -> list[tuple[int, int]]:
    """Return where a text names what a receptacle holds whose contents it shows for the first time."""
    receptacles = {fact[1] for fact in delta.added if fact[0] == "seen" and len(fact) == 2}
    contents = [fact for fact in delta.added if fact[0] == "in" and len(fact) == 3]
    names = {fact[1] for fact in contents if fact[2] in receptacles and fact[1]}
    if not names:
        return []

    # Of "mug 1" and "mug 12" the longer one is tried first; neither is found within a word.
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


def observation_logprobs(
    model: Any, rows: Sequence[PaWRow], *, batch_tokens: int = 16_384
) -> list[list[float]]:
    """Return the log-probability of each observation token after all that comes before it."""
    import torch

    from ..trainers.trees import grouped, token_scores

    logprobs: list[list[float]] = [[] for _ in rows]
    row_indices = [index for index, row in enumerate(rows) if row.observation_ids]
    sequences = [rows[index].tokens(True) for index in row_indices]
    limits = {"max_rows": _ROWS, "max_tokens": batch_tokens}
    as_trees = model.device.type == "cpu"  # elsewhere padded rows are faster

    # With its own index as its group, each row is a tree by itself: no beginning is shared.
    for trees in grouped(row_indices, row_indices, sequences, **limits):
        batch_indices: list[int] = []
        for tree in trees:
            batch_indices += tree
        batch_rows = [[rows[index]] for index in batch_indices]
        observed = [True] * len(batch_rows)
        batch = micro_batch(batch_rows, observed, model, model.device, shared=as_trees)
        with torch.no_grad():
            hidden = model.base_model(**batch["forest"].inputs, use_cache=False).last_hidden_state
            scores = token_scores(batch["forest"], entropy=False)
            logps, _ = scores(hidden, model.get_output_embeddings())

        for line, row_index in enumerate(batch_indices):
            is_observation = batch["observation_mask"][line].bool()
            logprobs[row_index] = logps[line][is_observation].tolist()
            if np.isnan(logprobs[row_index]).any():
                raise LanguageModelError(
                    "the model's output is not a number; its weights are damaged, or it needs another "
                    "dtype (bfloat16 or float32 where float16 overflows)"
                )
    return logprobs


def gradient_magnitudes(logprobs: ArrayLike, kind: str, *, rho: float = 0.2) -> NDArray[np.float64]:
    """Return the size of a loss's gradient with respect to each token's own logit."""
    log_p = np.asarray(logprobs, dtype=np.float64)
    one_minus_p = -np.expm1(log_p)  # exact where p is nearly 1
    if kind == "ce":
        return one_minus_p
    p = np.exp(log_p)
    if kind == "mae":
        return p * one_minus_p
    return np.where(p <= rho, p * one_minus_p, 0.0)  # PaW, eq. 7


def noise_shares(
    logprobs: Sequence[Sequence[float]],
    noise_masks: Sequence[Sequence[bool]],
    *,
    rho: float = 0.2,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the share of all gradient magnitudes that falls on noisy tokens, of each loss."""
    # Sums of each row: the number of tokens, and the gradients of each loss, in all and on noise.
    names = ("count", *GRADIENTS)
    row_count = len(logprobs)
    totals = np.zeros((row_count, len(names)))
    noise_totals = np.zeros((row_count, len(names)))
    for row_index, (row_logprobs, mask) in enumerate(zip(logprobs, noise_masks, strict=True)):
        magnitudes = [np.ones(len(row_logprobs))]
        for kind in GRADIENTS:
            magnitudes.append(gradient_magnitudes(row_logprobs, kind, rho=rho))
        is_noise = np.asarray(mask, bool)
        totals[row_index] = [sizes.sum() for sizes in magnitudes]
        noise_totals[row_index] = [sizes[is_noise].sum() for sizes in magnitudes]

    # Rows are drawn, not tokens: those of one observation are not independent.
    samples = np.random.default_rng(seed).integers(row_count, size=(_DRAWS, row_count))
    shares = {}
    for column, name in enumerate(names):
        shares[name] = _share(noise_totals[:, column], totals[:, column], samples)

    p = np.exp(np.concatenate([np.asarray(row_logprobs) for row_logprobs in logprobs]))
    is_noise = np.concatenate([np.asarray(mask, bool) for mask in noise_masks])
    return {
        "transitions": row_count,
        "tokens": int(totals[:, 0].sum()),
        "noisy_tokens": int(noise_totals[:, 0].sum()),
        "rho": rho,
        "bootstrap": {"draws": _DRAWS, "level": _LEVEL, "seed": seed},
        "shares": shares,
        "probabilities": {"noisy": _quartiles(p[is_noise]), "other": _quartiles(p[~is_noise])},
    }


def _quartiles(probabilities: NDArray[np.float64]) -> dict[str, float] | None:
    """Return mean and quartiles of probabilities; None of none."""
    if not len(probabilities):
        return None
    first_quartile, median, third_quartile = np.quantile(probabilities, (0.25, 0.5, 0.75))
    statistics = {
        "mean": probabilities.mean(),
        "q1": first_quartile,
        "median": median,
        "q3": third_quartile,
    }
    return {name: float(f"{value:.4g}") for name, value in statistics.items()}


def _share(
    noise_totals: NDArray[np.float64], totals: NDArray[np.float64], samples: NDArray[np.int64]
) -> dict[str, float | None]:
    """Return a share of sums and its interval over samples of what is summed."""
    if not totals.sum() > 0:
        return {"share": None, "low": None, "high": None}

    noise_of_samples = noise_totals[samples].sum(1)
    total_of_samples = totals[samples].sum(1)
    has_gradient = total_of_samples > 0  # a sample may have none at all
    edges = ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2)
    sample_shares = noise_of_samples[has_gradient] / total_of_samples[has_gradient]
    low, high = np.quantile(sample_shares, edges)
    share = {"share": noise_totals.sum() / totals.sum(), "low": low, "high": high}
    return {name: round(float(value), 6) for name, value in share.items()}


def _print(result: dict[str, Any]) -> None:
    """Print a result in a few lines."""
    print(
        f"{result['transitions']} transitions of {result['candidates']}, {result['tokens']} tokens, "
        f"{result['noisy_tokens']} of them noise"
    )
    for name, share in result["shares"].items():
        mean = _percent(share["share"])
        interval = f"({_percent(share['low'])} to {_percent(share['high'])})"
        print(f"share of {_NAMES[name]:14} {mean:>5} %  {interval}")
    for name, quartiles in result["probabilities"].items():
        if quartiles is not None:
            numbers = f"mean {quartiles['mean']:.3f}, median {quartiles['median']:.3f}"
            print(f"probability, {name:5} tokens: {numbers}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
