"""Training the small policies and world models that the ALFWorld results use (SMALL.md's recipe)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium

from ..agents.config import AgentConfig
from ..errors import OptionError
from ..lm.sft import Row, SFTConfig, fine_tune
from ..lm.tiny import build_tiny
from ..trainers.demonstrations import demonstrations, read_demonstrations
from ..trajectory import Trajectory
from ..worldmodel.language import LanguageWorldModel
from .record import circumstances, write_result
from .small_data import policy_rows, side_steps, world_model_rows

__all__ = [
    "PACKAGES",
    "PARTS",
    "SmallConfig",
    "agent_settings",
    "corpus_of",
    "progress",
    "prompt_maker",
    "train_part",
    "world_model_settings",
]

_ENV = "comap/ALFWorld-v0"
PACKAGES = ("torch", "transformers", "tokenizers", "gymnasium", "numpy")
"""What results name the versions of."""


@dataclass(frozen=True)
class SmallConfig:
    """What to train on, and how long."""

    data_dir: str
    """Folder with the official games."""
    demos: str
    """File of demonstrations (JSON lines, plain or .xz)."""
    out: str
    """Folder for the models."""
    parameters: int = 500_000
    """About how many parameters each model has."""
    vocabulary: int = 1024
    """Most tokens of the tokenizer."""
    policy_tokens: int = 8_000_000
    """Tokens to train the policy with belief prompts on."""
    history_tokens: int = 8_000_000
    """Tokens to train the policy with history prompts on."""
    world_model_tokens: int = 5_000_000
    """Tokens to train the world model on."""
    side_games: int = 1100
    """Games with side steps, for the world model."""
    history_turns: int = 3
    """Turns in a history prompt."""


def agent_settings(state_text: str, history_turns: int = 3) -> dict[str, Any]:
    """Return the settings of an agent whose policy was trained here.

    Args:
        state_text: ``belief`` or ``history``.
        history_turns: Turns in a history prompt.
    """
    settings: dict[str, Any] = {"state_text": state_text, "prompts": "brief"}
    if state_text == "history":
        settings["history_turns"] = history_turns
    return settings


def world_model_settings() -> dict[str, Any]:
    """Return the settings of the language world model that was trained here."""
    return {"prompts": "brief", "state_text": "belief"}


PARTS = ("belief", "history", "world-model")
"""What can be trained: policies on belief or history prompts, and the world model."""


def train_part(part: str, seed: int, config: SmallConfig) -> Path:
    """Train one model, unless it is there, and return its folder.

    Args:
        part: One of `PARTS`.
        seed: Seed of weights, order and side steps.
        config: The rest.

    Raises:
        OptionError: There is no such part.
    """
    if part not in PARTS:
        raise OptionError(f"expected one of {', '.join(PARTS)}, found {part!r}")
    out = Path(config.out) / f"{part}-{seed}"
    if (out / "training.json").is_file():
        return out
    start = time.process_time()
    base, rows = _prepared(part, seed, config)
    prepared = time.process_time()
    tokens = {
        "belief": config.policy_tokens,
        "history": config.history_tokens,
        "world-model": config.world_model_tokens,
    }[part]
    report = fine_tune(base, out, rows, SFTConfig(tokens=tokens, seed=seed), progress(part, seed))
    seconds = {
        "prepare": round(prepared - start, 1),
        "train": round(time.process_time() - prepared, 1),
    }
    result = {"part": part, "cpu_seconds": seconds, **report, **circumstances(PACKAGES)}
    write_result(out / "training.json", result)
    return out


def progress(part: str, seed: int) -> Any:
    """Return what prints how far a training is, now and then."""
    start, last = time.perf_counter(), [0.0]

    def tell(done: int, total: int, loss: float) -> None:
        now = time.perf_counter()
        if now - last[0] > 30:
            last[0] = now
            speed = done / (now - start)
            print(
                f"{part} {seed}: {done:,}/{total:,} tokens, {speed:,.0f}/s, {loss:.3f}", flush=True
            )

    return tell


def _prepared(part: str, seed: int, config: SmallConfig) -> tuple[Path, list[Row]]:
    """Return an untrained model and the rows it shall learn."""
    plans = list(read_demonstrations(Path(config.demos)))
    shown = list(demonstrations(_env(config, max_episode_steps=200), plans))
    lost = [t.task for t in shown if t.error or not t.success]
    if lost:
        raise OptionError(f"{len(lost)} demonstrations do not win, the first is {lost[0]}")
    texts = corpus_of(shown, config.history_turns)
    base = Path(config.out) / f"untrained-{part}-{seed}"
    build_tiny(base, texts, parameters=config.parameters, seed=seed, vocabulary=config.vocabulary)
    if part == "world-model":
        return base, _world_model_rows(shown, sorted({task for task, _ in plans}), seed, config)
    settings = AgentConfig(**agent_settings(part, config.history_turns))
    return base, list(policy_rows(shown, settings))


def _env(config: SmallConfig, **options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(
        _ENV, data_dir=config.data_dir, source="official", split="train", **options
    )


class _Counter:
    """Stands for the language model while rows are made: only tokens are counted, roughly."""

    name = "none"

    def count_tokens(self, text: str) -> int:
        return len(text) // 4


def prompt_maker() -> LanguageWorldModel:
    """Return a world model that makes prompts, and cannot be asked."""
    return LanguageWorldModel(_Counter(), **world_model_settings())  # type: ignore[arg-type]


def _world_model_rows(
    shown: Sequence[Trajectory], tasks: Sequence[str], seed: int, config: SmallConfig
) -> list[Row]:
    """Return side steps and as many transitions of demonstrations again, as SMALL.md mixes them."""
    rng = random.Random(seed)
    picked = rng.sample(tasks, min(config.side_games, len(tasks)))
    env = _env(config, expert="explore", max_episode_steps=24)
    model = prompt_maker()
    side = list(world_model_rows(side_steps(env, picked, seed), model))
    plain = list(world_model_rows(shown, model))
    return side + rng.sample(plain, min(len(plain), 2 * len(side)))


def corpus_of(shown: Sequence[Trajectory], history_turns: int = 3) -> Iterator[str]:
    """Yield the text that the tokenizer's words come from; the same for all parts and seeds."""
    some = shown[::10]
    for state_text in ("belief", "history"):
        yield from _texts(
            policy_rows(some, AgentConfig(**agent_settings(state_text, history_turns)))
        )
    yield from _texts(world_model_rows(some, prompt_maker()))
    words = [
        "Nothing happens. You are facing the. Next to it, you see. You are carrying. help look"
    ]
    for package in ("agents", "worldmodel"):
        folder = files(__package__.rpartition(".")[0]) / package / "prompts" / "brief"
        words += [path.read_text("utf-8") for path in sorted(folder.iterdir(), key=str)]
    yield from words * 2


def _texts(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield from (message.content for message in row.messages)
        yield row.answer
