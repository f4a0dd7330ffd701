"""The presets of the trained baselines: as published, and for tiny models on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from ...errors import OptionError, suggest
from ..config import PRESETS
from .config import BaselineTraining
from .methods import ITPTraining, IWMTraining, SFTTraining, WKMTraining

__all__ = ["BASELINES", "BASELINE_PRESETS", "baseline_preset"]

BASELINES: Mapping[str, type[BaselineTraining]] = MappingProxyType(
    {made.method: made for made in (SFTTraining, IWMTraining, WKMTraining, ITPTraining)}
)
"""The settings of each method by its name."""

BASELINE_PRESETS = ("paper", "tiny")
"""The presets: METHODS.md 3, and a small model that is trained here from the beginning."""

_TINY: dict[str, Any] = {  # what CoMap's tiny preset says of the same settings
    **{
        name: value
        for name, value in PRESETS["tiny"].items()
        if name in {part.name for part in fields(BaselineTraining)}
    },
    "learning_rate": PRESETS["tiny"]["warmup_rate"],
    "epochs": PRESETS["tiny"]["warmup_epochs"],
}

_OWN: dict[str, dict[str, Any]] = {
    "sft": {"predict_tokens": 128},
    "iwm": {"explorer": "sft", "explored": 100, "alternatives": 4, "predict_tokens": 128},
    "wkm": {"task_knowledge": "none", "state_knowledge": "belief", "sampler": "sft"},
    "itp": {
        "warmup_rate": PRESETS["tiny"]["warmup_rate"],
        "learning_rate": 1e-3,
        "demonstrations": 200,
        "labelled": 40,
        "draft_weight": 1.0,
        "head_rate": 1e-2,
        "predict_tokens": 128,
        "foresight_tokens": 128,
        "reply_tokens": 24,
        "episodes": 8,
        "episodes_per_update": 4,
        "evaluation_tasks": 8,
        "online_rate": 1e-5,
        "micro_batches": 8,
    },
}

_SLOW: dict[str, dict[str, Any]] = {  # where an episode takes seconds
    "sft": {},
    "iwm": {"explored": 14},
    "wkm": {},
    "itp": {"labelled": 21, "episodes": 4},
}
_ALL_SLOW: dict[str, Any] = {"live": 4, "demonstrations": 42, "evaluation_tasks": 7}


def baseline_preset(
    method: str, name: str, *, slow: bool = False, **settings: Any
) -> BaselineTraining:
    """Return a preset of a baseline with some settings changed.

    Args:
        method: One of `BASELINES`.
        name: One of `BASELINE_PRESETS`.
        slow: Whether an episode takes seconds: the preset ``tiny`` plays less then.
        **settings: Fields of the method's settings.

    Raises:
        OptionError: There is no such method, preset or field, or a value is not allowed.

    Example:
        >>> baseline_preset("iwm", "tiny").explorer, baseline_preset("wkm", "paper").gamma
        ('sft', 0.7)
    """
    if method not in BASELINES:
        raise OptionError(f"there is no baseline {method!r}; {suggest(method, sorted(BASELINES))}")
    if name not in BASELINE_PRESETS:
        raise OptionError(f"there is no preset {name!r}; {suggest(name, BASELINE_PRESETS)}")
    made = BASELINES[method]
    known = {part.name for part in fields(made)}
    for given in settings:
        if given not in known:
            raise OptionError(f"there is no setting {given!r}; {suggest(given, sorted(known))}")
    chosen = {**_TINY, **_OWN[method]} if name == "tiny" else {}
    if name == "tiny" and slow:
        chosen |= {**_ALL_SLOW, **_SLOW[method]}
    return made(**{**chosen, **settings})
