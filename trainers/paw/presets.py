"""The presets of PaW's training: one for each environment, two baselines and tiny ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from ...errors import OptionError, suggest
from .config import PaWTraining

__all__ = [
    "PAW_ENVIRONMENTS",
    "PAW_PRESETS",
    "PAW_TINY_OPTIONS",
    "PAW_TINY_WHERE_SLOW",
    "TINY_PRESETS",
    "paw_preset",
    "preset_of_env",
]

_WEBSHOP: dict[str, Any] = {
    "mini_batch_rows": 64,
    "max_episode_steps": 15,
    "prompt_tokens": 4096,
    "observation_tokens": 1024,
    "evaluation_splits": ("test",),
}

_SEARCH: dict[str, Any] = {
    "groups": 256,
    "members": 5,
    "mini_batch_rows": 512,
    "max_episode_steps": 4,
    "prompt_tokens": 4096,
    "observation_tokens": 1024,
    "history_turns": 4,
    "success_reward": 1.0,
    "invalid_penalty": 0.01,
    "kl": 0.001,
    "entropy_bonus": 0.0,
    "gigpo_similarity": 0.9,
    "schedule": "constant_with_warmup",
    "warmup_ratio": 0.1,
    "updates": None,
    "evaluation_splits": ("test",),
    "evaluation_temperature": 0.0,
}

_TOOLS: dict[str, Any] = {  # ours: the paper does not train on tools
    "mini_batch_rows": 64,
    "max_episode_steps": 20,
    "prompt_tokens": 4096,
    "observation_tokens": 512,
    "evaluation_splits": ("G1_instruction", "G1_tool", "G3_instruction"),
}

_ZEROSEARCH: dict[str, Any] = {
    "paw": False,
    "context": "concat",
    "engine": "simulated",
    "reward": "f1",
    "updates": 203,
}

_TINY: dict[str, Any] = {
    "groups": 4,
    "members": 4,
    "updates": 4,
    "max_episode_steps": 30,
    "live": 16,
    "prompts": "brief",
    "state_text": "belief",
    "form": "given",
    "prompt_tokens": 1024,
    "response_tokens": 32,  # a search has up to 26
    "observation_tokens": 128,
    "learning_rate": 3e-4,
    "critic_rate": 1e-3,
    "mini_batch_rows": None,
    "micro_batch_tokens": 4096,
    "precision": "float32",
    "gradient_checkpointing": False,
    "save_updates": 2,
    "warmup_tokens": 1_000_000,
    "demonstrations": 400,
    "evaluation_tasks": 16,
    "evaluation_every": 0,
}

_TINY_SEARCH: dict[str, Any] = {
    **_TINY,
    "paw": False,
    "context": "concat",
    "prompts": "tags",
    "state_text": "history",
    "form": "asked",
    "max_episode_steps": 4,
    "success_reward": 1.0,
    "invalid_penalty": 0.01,
    "kl": 0.001,
    "entropy_bonus": 0.0,
    "response_tokens": 48,
    "evaluation_splits": ("test",),
    "evaluation_temperature": 0.0,
}

_TINY_ZEROSEARCH: dict[str, Any] = {
    **_TINY_SEARCH,
    "engine": "simulated",
    "reward": "f1",
    "simulator_tokens": 96,
}

PAW_PRESETS: dict[str, Mapping[str, Any]] = {
    "alfworld": {},
    "webshop": _WEBSHOP,
    "tools": _TOOLS,
    "search": _SEARCH,
    "search_r1": {**_SEARCH, "paw": False, "context": "concat"},
    "zerosearch": {**_SEARCH, **_ZEROSEARCH},
    "tiny": _TINY,
    "tiny_search_r1": _TINY_SEARCH,
    "tiny_zerosearch": _TINY_ZEROSEARCH,
}
"""What each preset sets; all else is as in `PaWTraining`."""

TINY_PRESETS = ("tiny", "tiny_search_r1", "tiny_zerosearch")
"""Those for a small model that is trained here, on a CPU and on embedded tasks."""

PAW_TINY_WHERE_SLOW: Mapping[str, Any] = MappingProxyType(
    {"live": 4, "demonstrations": 42, "groups": 2, "updates": 3, "evaluation_tasks": 7}
)
"""What the preset ``tiny`` plays less of where an episode takes seconds."""

PAW_TINY_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    dict.fromkeys(("tiny_search_r1", "tiny_zerosearch"), MappingProxyType({"topk": 1}))
)
"""Options of the environment that go with a preset: a small model reads few passages."""

PAW_ENVIRONMENTS = {
    "alfworld": "comap/ALFWorld-v0",
    "webshop": "comap/WebShop-v0",
    "tools": "comap/StableToolBench-v0",
    "search": "comap/SearchQA-v0",
    "search_r1": "comap/SearchQA-v0",
    "zerosearch": "comap/SearchQA-v0",
    "tiny": "comap/ALFWorld-v0",
    "tiny_search_r1": "comap/SearchQA-v0",
    "tiny_zerosearch": "comap/SearchQA-v0",
}
"""The environment that each preset is for."""


def paw_preset(name: str, **settings: Any) -> PaWTraining:
    """Return a preset with some settings changed.

    PPO has no groups: unless groups or members are given, it plays as many tasks as there would be
    episodes, each once (METHODS.md 2.1: 128 x 1).

    Args:
        name: ``alfworld``, ``webshop`` or ``search`` (METHODS.md 2.7), ``tools`` (ours),
            ``search_r1`` or ``zerosearch`` (METHODS.md 3; the latter's number of updates and noise
            are those of its authors' command), or one of `TINY_PRESETS`: ``tiny``,
            ``tiny_search_r1`` and ``tiny_zerosearch`` (a small model that is trained here, on a CPU;
            in search QA it learns the tags, and hardly what to search for).
        **settings: Fields of `PaWTraining`.

    Raises:
        OptionError: There is no such preset or field, or a value is not allowed.

    Example:
        >>> paw_preset("search").groups, paw_preset("webshop", algorithm="ppo").members
        (256, 1)
    """
    if name not in PAW_PRESETS:
        raise OptionError(f"there is no preset {name!r}; {suggest(name, sorted(PAW_PRESETS))}")
    known = {part.name for part in fields(PaWTraining)}
    for given in settings:
        if given not in known:
            raise OptionError(f"there is no setting {given!r}; {suggest(given, sorted(known))}")
    base = PaWTraining(**PAW_PRESETS[name])
    if settings.get("algorithm") == "ppo" and not {"groups", "members"} & settings.keys():
        settings = {**settings, "groups": base.groups * base.members, "members": 1}
    return replace(base, **settings)


def preset_of_env(env_id: str) -> str:
    """Return the preset for an environment; ``alfworld``, the general one, for one that has none.

    Args:
        env_id: The environment's id; versions do not matter.

    Example:
        >>> preset_of_env("comap/WebShop-v0"), preset_of_env("mine/Maze-v3")
        ('webshop', 'alfworld')
    """
    bare = env_id.rpartition("-v")[0] or env_id
    for name, known in PAW_ENVIRONMENTS.items():
        if bare == known.rpartition("-v")[0]:
            return name
    return "alfworld"
