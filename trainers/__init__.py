"""Trainers: CoMap, PaW and the reinforcement learning under it, SFT and the other baselines.

Settings are plain frozen dataclasses that are there at once; what trains is imported, with torch, when
it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .baselines.config import (
    BASELINES,
    ITPTraining,
    IWMTraining,
    WebEvolverTraining,
    WKMTraining,
    baseline_preset,
)
from .comap.config import ABLATIONS, CoMapTraining, Distillation, preset
from .config import LoRA, Optimization, SharedTraining
from .paw.config import PaWTraining
from .paw.config import preset as paw_preset
from .sft import SFTTraining

if TYPE_CHECKING:
    from .baselines.itp import ITPRun
    from .baselines.iwm import IWMRun
    from .baselines.webevolver import WebEvolverRun
    from .baselines.wkm import WKMRun
    from .comap.coevolution import CoEvolution
    from .comap.objective import (
        RowTensors,
        divergence,
        ema_update,
        policy_objective,
        world_model_objective,
    )
    from .comap.trainer import CoMapTrainer
    from .evaluation import score_transitions
    from .paw.training import train as train_paw
    from .roles import Roles
    from .row_trainer import RowTrainer
    from .setup import Environments, describe_models, open_models, show_expert, tiny_for_training
    from .sft import SFTRun

# The modules of the names that are imported when they are first used.
_MODULE_OF = {
    "CoEvolution": "comap.coevolution",
    "CoMapTrainer": "comap.trainer",
    "Environments": "setup",
    "ITPRun": "baselines.itp",
    "IWMRun": "baselines.iwm",
    "Roles": "roles",
    "RowTensors": "comap.objective",
    "RowTrainer": "row_trainer",
    "SFTRun": "sft",
    "WKMRun": "baselines.wkm",
    "WebEvolverRun": "baselines.webevolver",
    "describe_models": "setup",
    "divergence": "comap.objective",
    "ema_update": "comap.objective",
    "open_models": "setup",
    "policy_objective": "comap.objective",
    "score_transitions": "evaluation",
    "show_expert": "setup",
    "tiny_for_training": "setup",
    "train_paw": "paw.training",
    "world_model_objective": "comap.objective",
}

__all__ = [
    "ABLATIONS",
    "BASELINES",
    "CoEvolution",
    "CoMapTrainer",
    "CoMapTraining",
    "Distillation",
    "Environments",
    "ITPRun",
    "ITPTraining",
    "IWMRun",
    "IWMTraining",
    "LoRA",
    "Optimization",
    "PaWTraining",
    "Roles",
    "RowTensors",
    "RowTrainer",
    "SFTRun",
    "SFTTraining",
    "SharedTraining",
    "WKMRun",
    "WKMTraining",
    "WebEvolverRun",
    "WebEvolverTraining",
    "baseline_preset",
    "describe_models",
    "divergence",
    "ema_update",
    "open_models",
    "paw_preset",
    "policy_objective",
    "preset",
    "score_transitions",
    "show_expert",
    "tiny_for_training",
    "train_paw",
    "world_model_objective",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f".{_MODULE_OF[name]}", __name__)
    except ImportError as error:
        from ..errors import MissingExtra

        raise MissingExtra.of("train", f"comap.trainers.{name}") from error
    attribute = getattr(module, "train" if name == "train_paw" else name)
    globals()[name] = attribute
    return attribute
