"""comap: text environments with state facts, textual world models, and the agents that use both.

Importing this registers the Gymnasium ids; everything heavy is loaded when it is first used.

Example:
    >>> import gymnasium as gym, comap
    >>> env = gym.make("comap/ALFWorld-v0", split="valid_unseen")
    >>> observation, info = env.reset(seed=0)
    >>> sorted(info)[:3]
    ['admissible_actions', 'delta', 'facts']
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

# ``comap ...`` and ``python -m comap ...``: `sys.argv` is not set yet where ``-m`` imports the package.
_words = [word for word in sys.orig_argv[1:3] if word != "-m"]
_AS_COMMAND = bool(_words) and PurePath(_words[0]).name in ("comap", "comap.exe")

if TYPE_CHECKING or not _AS_COMMAND:
    from .errors import (
        CoMapError,
        DataCorrupt,
        DataNotFound,
        DownloadError,
        EngineError,
        FactSyntaxError,
        HubError,
        InvalidAction,
        LanguageModelError,
        MissingExtra,
        NoEpisode,
        OptionError,
        SnapshotError,
        TaskNotFound,
        WorldModelError,
    )
    from .facts import Delta, Fact, State, apply, diff
    from .metrics import DeltaF1Report, Rate, delta_f1, delta_f1_report, success_rate
    from .trajectory import (
        Call,
        Predicted,
        Step,
        Trajectory,
        Turn,
        read_trajectories,
        write_trajectories,
    )
else:  # ``comap --version`` does without Gymnasium, whose import takes most of its time

    def __getattr__(name: str) -> object:
        if name in __all__:
            for part in ("errors", "facts", "metrics", "trajectory"):
                module = import_module(f"{__name__}.{part}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Call",
    "CoMapError",
    "DataCorrupt",
    "DataNotFound",
    "Delta",
    "DeltaF1Report",
    "DownloadError",
    "EngineError",
    "Fact",
    "FactSyntaxError",
    "HubError",
    "InvalidAction",
    "LanguageModelError",
    "MissingExtra",
    "NoEpisode",
    "OptionError",
    "Predicted",
    "Rate",
    "SnapshotError",
    "State",
    "Step",
    "TaskNotFound",
    "Trajectory",
    "Turn",
    "WorldModelError",
    "__version__",
    "apply",
    "delta_f1",
    "delta_f1_report",
    "diff",
    "read_trajectories",
    "success_rate",
    "write_trajectories",
]
__version__ = "0.2.0"

_LIMITS = {
    "ALFWorld": 50,
    "WebShop": 15,
    "ScienceWorld": None,  # each task has its own
    "StableToolBench": None,  # the environment's number of calls
    "SearchQA": None,  # its option `turns`
    "Web": 15,
}


def _register() -> None:
    """Register the Gymnasium ids: at import, or by the command line before a command runs."""
    from gymnasium.envs.registration import register, registry

    for name, limit in _LIMITS.items():
        # Once: registering an id again is a warning of Gymnasium's.
        if f"comap/{name}-v0" not in registry:
            register(
                id=f"comap/{name}-v0",
                entry_point=f"comap.envs.{name.lower()}:{name}Env",
                vector_entry_point=f"comap.envs.{name.lower()}:vector",
                max_episode_steps=limit,
                disable_env_checker=True,  # it fails at the first step if the first reset had raised
            )


if not _AS_COMMAND:
    _register()
