"""What a training begins with, from plain options: environments and demonstrations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium

from ..envs import TextEnv
from ..errors import (
    CoMapError,
    DataCorrupt,
    DataNotFound,
    MissingExtra,
    OptionError,
    suggest,
)
from ..trajectory import Trajectory
from .config import CoMapTraining
from .demonstrations import demonstrations, expert_demonstrations, read_demonstrations
from .processes import world_size
from .session import Tell

__all__ = [
    "PACKAGES",
    "Environments",
    "check_tracker",
    "hardware",
    "show_expert",
]

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "gymnasium",
    "numpy",
)
"""What a training's folder names the versions of."""

_LONG = 200  # steps that a demonstration may take
_FOLDERS = ("data_dir",)  # options that say where something is on this machine


@dataclass(frozen=True, slots=True)
class Environments:
    """Makes the environments of a training: called with a split, it returns a new one.

    Attributes:
        env_id: The environment's id.
        options: Its options, but for the split.

    Example:
        >>> import comap
        >>> make_env = Environments("comap/ALFWorld-v0", {"source": "generated"})
        >>> make_env("valid_seen").unwrapped.tasks.split
        'valid_seen'
    """

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, split: str) -> gymnasium.Env[str, str]:
        """Return an environment on a split.

        Raises:
            CoMapError: Its data is not there, or an option is wrong.
            OptionError: It is no environment of comap, or cannot be made with these options.
        """
        try:
            env: gymnasium.Env[str, str] = gymnasium.make(self.env_id, split=split, **self.options)
        except (CoMapError, gymnasium.error.Error):
            raise
        except (ImportError, TypeError, ValueError) as error:
            given = f" with {dict(self.options)}" if self.options else ""
            raise OptionError(
                f"cannot make the environment {self.env_id!r}{given}: {error}"
            ) from None
        if not isinstance(env.unwrapped, TextEnv):
            raise OptionError(f"expected an environment of comap, found {self.env_id!r}")
        return env

    def demonstrating(self) -> Environments:
        """Return the same with room for long demonstrations."""
        steps = self.options.get("max_episode_steps", 0)
        longer = max(_LONG, steps) if isinstance(steps, int) else steps
        return Environments(self.env_id, {**self.options, "max_episode_steps": longer})

    def describe(self, splits: Iterable[str]) -> dict[str, Any]:
        """Return what makes results on these splits comparable, without places on this machine."""
        prints = {}
        for split in splits:
            with closing(self(split)) as env:
                inner = env.unwrapped
                assert isinstance(inner, TextEnv)
                prints[split] = inner.fingerprint()
        options = {key: value for key, value in self.options.items() if key not in _FOLDERS}
        return {"id": self.env_id, "options": options, "fingerprint": prints}


def show_expert(
    make_env: Environments,
    config: CoMapTraining,
    file: Path | None = None,
    tell: Tell = lambda event: None,
) -> list[Trajectory]:
    """Return the demonstrations of a training: the environment's own expert's, or a file's.

    Of all tasks that can be demonstrated, ``config.demonstrations`` are taken: in the order of their
    ids they are cut into so many equal parts, and one is drawn from each. What does not succeed is
    left out.

    Args:
        make_env: Makes environments.
        config: Says how many tasks, of which split, and the seed.
        file: A file of commands, see `read_demonstrations`; None for the environment's expert.
        tell: Told of each demonstration, as the event ``demonstration``.

    Raises:
        DataNotFound: The file cannot be read, or has nothing on tasks of the split.
        DataCorrupt: No demonstration succeeds.

    Example:
        >>> import comap
        >>> make_env = Environments("comap/ALFWorld-v0", {"source": "generated"})
        >>> [shown.success for shown in show_expert(make_env, CoMapTraining(demonstrations=2))]
        [True, True]
    """
    found: list[Trajectory] = []
    with closing(make_env.demonstrating()(config.train_split)) as env:
        known = env.get_wrapper_attr("tasks").ids
        plans = None if file is None else _plans(file, known, config.train_split)
        tasks = _drawn(known if plans is None else sorted(plans), config)
        for number, task in enumerate(tasks, 1):
            if plans is None:
                found += expert_demonstrations(env, [task])
            else:
                shown = demonstrations(env, [(task, plans[task])])
                found += [one for one in shown if one.success and one.error is None]
            event = {"done": number, "of": len(tasks), "won": len(found)}
            tell({"event": "demonstration", **event})
    if not found:
        raise DataCorrupt(
            f"expected demonstrations that succeed, found none in {len(tasks)} of the split "
            f"{config.train_split!r}; give a file of commands of these very tasks (--demos)"
        )
    return found


def _plans(file: Path, known: Sequence[str], split: str) -> dict[str, tuple[str, ...]]:
    wanted = set(known)
    plans = {task: plan for task, plan in read_demonstrations(file) if task in wanted}
    if not plans:
        raise DataNotFound(
            f"expected demonstrations of the split {split!r} in {file}, found none of its "
            f"{len(known)} tasks; give the file that belongs to these tasks"
        )
    return plans


def _drawn(tasks: Sequence[str], config: CoMapTraining) -> list[str]:
    """Return so many tasks, one at random of each equal part of all."""
    number = config.demonstrations
    if number is None or number >= len(tasks):
        return list(tasks)
    rng = random.Random(f"{config.seed}\ndemonstrations")
    bounds = [place * len(tasks) // number for place in range(number + 1)]
    return [tasks[rng.randrange(low, high)] for low, high in pairwise(bounds)]


def hardware() -> dict[str, Any]:
    """Return how many processes train, and the names of the GPUs of this machine.

    Raises:
        MissingExtra: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("train", "training") from error
    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(number) for number in range(count)]
    return {"processes": world_size(), "gpus": names}


def check_tracker(name: str) -> None:
    """Refuse a tracker that cannot be reported to, before hours of work.

    Args:
        name: As transformers calls it: ``wandb``, ``tensorboard``, ``trackio``, ...; or ``none``.

    Raises:
        OptionError: There is no such tracker, or it is not installed.
        MissingExtra: transformers is not installed.
    """
    if name == "none":
        return
    try:
        from transformers.integrations import get_available_reporting_integrations
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    except ImportError as error:
        raise MissingExtra.of("train", "training") from error
    if name not in INTEGRATION_TO_CALLBACK:
        hint = suggest(name, ["none", *sorted(INTEGRATION_TO_CALLBACK)])
        raise OptionError(f"there is no tracker {name!r}; {hint}")
    if name not in get_available_reporting_integrations():
        raise OptionError(
            f"expected the tracker {name!r} to be installed, it is not; run: pip install {name}"
        )
