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

import signal
import sys
from pathlib import PurePath

if (  # the command line, not yet in `cli.main`, which resets this: Ctrl-C without a traceback
    [PurePath(word).stem for word in sys.orig_argv[1:3] if word != "-m"][:1] == ["comap"]
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from gymnasium.envs.registration import register, registry

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
}

for _name, _limit in _LIMITS.items():
    if f"comap/{_name}-v0" not in registry:
        register(
            id=f"comap/{_name}-v0",
            entry_point=f"comap.envs.{_name.lower()}:{_name}Env",
            vector_entry_point=f"comap.envs.{_name.lower()}:vector",
            max_episode_steps=_limit,
            disable_env_checker=True,  # it fails at the first step if the first reset had raised
        )
