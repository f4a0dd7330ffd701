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

_DRAWS, _LEVEL = 2000, 0.95  # of the bootstrap
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


class Found(NamedTuple):
    """A transition with noise in its observation: which of its tokens are noise."""

    row: PaWRow
    noisy: list[bool]


def run(options: NoiseGradients) -> None:
    """Measure, and print and write what was found."""
    for name in ("transitions", "episodes", "concurrency", "batch_tokens"):
        if getattr(options, name) < 1:
            raise OptionError(f"{name} must be at least 1, not {getattr(options, name)}")
    if not 0 <= options.rho <= 1:
        raise OptionError(f"rho must be from 0 to 1, not {options.rho!r}")
    settings = _AGENTS[options.agent] | {"seed": options.seed} | dict(options.agent_option)
    agent = create_agent(options.agent, **settings)
    kind: Noise = options.noise or ("contents" if "/ALFWorld-" in options.env else "codes")
    longest = options.max_observation or (1024 if "/WebShop-" in options.env else 512)
    hush()
    lm = create_language_model(options.model, device=options.device, dtype=options.dtype)
    if not isinstance(lm, HFLanguageModel):
        raise OptionError(f"expected a model that runs in this process, found {lm.name!r}")
    found, counts = gather(options, agent, lm, kind, longest)
    rows = [one.row for one in found]
    logprobs = observation_logprobs(lm.model, rows, batch_tokens=options.batch_tokens)
    noisy = [one.noisy for one in found]
    result = {
        "benchmark": "noise gradients",
        "env": options.env,
        "split": options.split,
        "env_options": dict(options.env_option),
        "agent": {"name": options.agent, **settings},
        "model": lm.config(),
        "noise": kind,
        "max_observation": longest,
        "wanted_transitions": options.transitions,
        "seed": options.seed,
        **counts,
        **noise_shares(logprobs, noisy, rho=options.rho, seed=options.seed),
        **circumstances(_PACKAGES),
    }
    if options.out is not None:
        write_result(options.out, result)
    _show(result)


def gather(
    options: NoiseGradients, agent: Agent, lm: HFLanguageModel, kind: Noise, max_observation: int
) -> tuple[list[Found], dict[str, int]]:
    """Play until there are enough transitions with noise, and draw the wanted number of them."""
    given = dict(options.env_option)
    if options.data_dir is not None:
        given["data_dir"] = options.data_dir
    make_env: Callable[[], gymnasium.Env[str, str]]
    make_env = partial(Environments(options.env, given), options.split)
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
            make_env, agent, some, lm=lm, concurrency=options.concurrency, keep="tokens"
        ):
            found += find_noise(trajectory, serializer, kind)
            counts["faulty_episodes"] += trajectory.error is not None
        counts["episodes"] += len(some)
    if not found:
        raise OptionError(
            f"expected transitions with noise, found none in {counts['episodes']} episodes; use a "
            "policy that gets somewhere, or --agent-option decoding=masked"
        )
    drawn = rng.sample(found, min(options.transitions, len(found)))
    return drawn, counts | {"candidates": len(found)}


def find_noise(trajectory: Trajectory, serializer: Serializer, kind: Noise) -> list[Found]:
    """Return the transitions of an episode whose observation has noise in it."""
    shop = trajectory.env_id.rpartition("/")[2].startswith("WebShop")
    found = []
    for row in serializer.rows_of(trajectory, group=0, number=0):
        step = trajectory.steps[row.t]
        if shop and _RESULTS not in step.observation:
            continue
        texts = serializer.chat.texts(row.observation_ids)
        text = "".join(texts)
        spans: Spans
        spans = content_spans(step.delta, text) if kind == "contents" else code_spans(text)
        noisy = overlapping(texts, spans)
        if any(noisy):
            found.append(Found(row, noisy))
    return found


def code_spans(text: str) -> list[tuple[int, int]]:
    codes = [match.span(1) for match in _CODE.finditer(text)]
    return sorted({*codes, *(match.span() for match in _CAPITALS.finditer(text))})


def content_spans(delta: Delta, text: str) -> list[tuple[int, int]]:
    """Return where a text names what a receptacle holds whose contents it shows for the first time."""
    shown = {fact[1] for fact in delta.added if fact[0] == "seen" and len(fact) == 2}
    held = [fact for fact in delta.added if fact[0] == "in" and len(fact) == 3]
    names = {fact[1] for fact in held if fact[2] in shown and fact[1]}
    if not names:
        return []
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


def observation_logprobs(
    model: Any, rows: Sequence[PaWRow], *, batch_tokens: int = 16_384
) -> list[list[float]]:
    """Return the log-probability of each observation token after all that comes before it."""
    import torch

    from ..trainers.trees import grouped, token_scores

    found: list[list[float]] = [[] for _ in rows]
    wanted = [index for index, row in enumerate(rows) if row.observation_ids]
    sequences = [rows[index].tokens(True) for index in wanted]
    limits = {"max_rows": _ROWS, "max_tokens": batch_tokens}  # each row by itself
    for trees in grouped(wanted, wanted, sequences, **limits):
        micro = [index for tree in trees for index in tree]
        some = [[rows[index]] for index in micro]
        batch = micro_batch(some, [True] * len(some), model, model.device)
        with torch.no_grad():
            hidden = model.base_model(**batch["forest"].inputs, use_cache=False).last_hidden_state
            scores = token_scores(batch["forest"], entropy=False)
            logps, _ = scores(hidden, model.get_output_embeddings())
        for line, index in enumerate(micro):
            found[index] = logps[line][batch["observation_mask"][line].bool()].tolist()
            if np.isnan(found[index]).any():
                raise LanguageModelError(
                    "the model's output is not a number; its weights are damaged, or it needs another "
                    "dtype (bfloat16 or float32 where float16 overflows)"
                )
    return found


def gradient_magnitudes(logprobs: ArrayLike, kind: str, *, rho: float = 0.2) -> NDArray[np.float64]:
    """Return the size of a loss's gradient with respect to each token's own logit."""
    values = np.asarray(logprobs, dtype=np.float64)
    away = -np.expm1(values)  # 1 - p, exact where p is nearly 1
    if kind == "ce":
        return away
    p = np.exp(values)
    return p * away if kind == "mae" else np.where(p <= rho, p * away, 0.0)


def noise_shares(
    logprobs: Sequence[Sequence[float]],
    noisy: Sequence[Sequence[bool]],
    *,
    rho: float = 0.2,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the share of all gradient magnitudes that falls on noisy tokens, of each loss."""
    every, noise = (np.zeros((len(logprobs), 1 + len(GRADIENTS))) for _ in range(2))
    for row, (values, marks) in enumerate(zip(logprobs, noisy, strict=True)):
        sizes = [np.ones(len(values))]
        sizes += [gradient_magnitudes(values, kind, rho=rho) for kind in GRADIENTS]
        every[row] = [size.sum() for size in sizes]
        noise[row] = [size[np.asarray(marks, bool)].sum() for size in sizes]
    drawn = np.random.default_rng(seed).integers(len(every), size=(_DRAWS, len(every)))
    shares = {
        name: _share(noise[:, column], every[:, column], drawn)
        for column, name in enumerate(("count", *GRADIENTS))
    }
    flat = np.exp(np.concatenate([np.asarray(values) for values in logprobs]))
    marked = np.concatenate([np.asarray(marks, bool) for marks in noisy])
    return {
        "transitions": len(every),
        "tokens": int(every[:, 0].sum()),
        "noisy_tokens": int(noise[:, 0].sum()),
        "rho": rho,
        "bootstrap": {"draws": _DRAWS, "level": _LEVEL, "seed": seed},
        "shares": shares,
        "probabilities": {"noisy": _quartiles(flat[marked]), "other": _quartiles(flat[~marked])},
    }


def _quartiles(values: NDArray[np.float64]) -> dict[str, float] | None:
    """Return mean and quartiles of probabilities; None of none."""
    if not len(values):
        return None
    found = (values.mean(), *np.quantile(values, (0.25, 0.5, 0.75)))
    names = ("mean", "q1", "median", "q3")
    return {name: float(f"{value:.4g}") for name, value in zip(names, found, strict=True)}


def _share(
    noise: NDArray[np.float64], every: NDArray[np.float64], drawn: NDArray[np.int64]
) -> dict[str, float | None]:
    """Return a share of sums and its interval over samples of what is summed."""
    if not every.sum() > 0:
        return {"share": None, "low": None, "high": None}
    above, below = noise[drawn].sum(1), every[drawn].sum(1)
    known = below > 0  # a sample may have no gradient at all
    edges = ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2)
    low, high = np.quantile(above[known] / below[known], edges)
    found = {"share": noise.sum() / every.sum(), "low": low, "high": high}
    return {name: round(float(value), 6) for name, value in found.items()}


def _show(result: dict[str, Any]) -> None:
    print(
        f"{result['transitions']} transitions of {result['candidates']}, {result['tokens']} tokens, "
        f"{result['noisy_tokens']} of them noise"
    )
    for name, share in result["shares"].items():
        values = [share[key] for key in ("share", "low", "high")]
        mean, low, high = ("-" if value is None else f"{100 * value:.1f}" for value in values)
        print(f"share of {_NAMES[name]:14} {mean:>5} %  ({low} to {high})")
    for name, found in result["probabilities"].items():
        if found is not None:
            shown = f"mean {found['mean']:.3f}, median {found['median']:.3f}"
            print(f"probability, {name:5} tokens: {shown}")
