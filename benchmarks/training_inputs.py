"""What trainings of `comap train` begin from, whatever the method: the model, tasks, demonstrations."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..envs.registered import embedded_tasks, listed_actions
from ..errors import OptionError
from ..lm.create import kind_of
from .options import pairs

__all__ = [
    "TINY",
    "base_of",
    "check_model",
    "declare_model",
    "declare_tasks",
    "env_options",
    "is_tiny",
    "open_base",
]

TINY = "tiny"
"""The name of the small model that is built in a training's folder."""

_BUILT = "model"  # where in the folder
_MODEL = (
    "what all models begin from: a folder of save_pretrained, a name on the hub (Qwen/Qwen3-4B), or "
    "tiny (a new small model, built into OUT/model; the default of the preset tiny)"
)
_OTHERWISE = {"data_dir": "--data-dir", "id": "--env"}


def declare_model(add: Callable[..., object], presets: Iterable[str]) -> None:
    """Add the options of the preset and of the model that is trained.

    Args:
        add: ``add_argument`` of a parser or group.
        presets: The names of the presets.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> declare_model(parser.add_argument, ["paper", "tiny"])
        >>> parser.parse_args(["--preset", "tiny"]).parameters
        500000
    """
    names = ", ".join(presets)
    add("--preset", default="paper", metavar="NAME", help=f"{names} (default: %(default)s)")
    add("--model", metavar="M", help=_MODEL)
    add("--parameters", type=int, default=500_000, metavar="N", help="size of the model tiny")


def declare_tasks(add: Callable[..., object], method: str) -> None:
    """Add the options of the environment, of the demonstrations, and of where results go.

    Args:
        add: ``add_argument`` of a parser or group.
        method: What `comap train` calls the method.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> declare_tasks(parser.add_argument, "iwm")
        >>> parser.parse_args([]).out
        'runs/train-iwm'
    """
    add("--env", default="comap/ALFWorld-v0", metavar="ID", help="where (default: %(default)s)")
    add("--env-option", action="append", metavar="NAME=VALUE", help="its option (repeatable)")
    data = "folder with official data (default: what is on this machine, else generated tasks)"
    add("--data-dir", metavar="DIR", help=data)
    demos = "file of demonstrations (default: the environment's own expert shows them)"
    add("--demos", metavar="FILE", help=demos)
    out = "the training's folder (default: %(default)s)"
    add("--out", default=f"runs/train-{method}", metavar="DIR", help=out)
    tracker = "also report to wandb, tensorboard, trackio, ... (default: %(default)s)"
    add("--report-to", default="none", metavar="TRACKER", help=tracker)


def env_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that environments are made with.

    The preset tiny plays embedded tasks, unless a folder of data is given.

    Args:
        options: The parsed arguments.

    Raises:
        OptionError: An option is to be given otherwise.

    Example:
        >>> told = argparse.Namespace(
        ...     preset="tiny", env="comap/ALFWorld-v0", env_option=None, data_dir=None
        ... )
        >>> env_options(told)
        {'source': 'generated'}
    """
    chosen = pairs(options.env_option, "--env-option")
    for name, option in _OTHERWISE.items():
        if name in chosen:
            raise OptionError(f"give {name} as {option}, not as an --env-option")
    if "split" in chosen:
        raise OptionError("give splits as --train-split and --evaluation-splits")
    if options.data_dir is not None:
        return chosen | {"data_dir": options.data_dir}
    tiny = embedded_tasks(options.env) | listed_actions(options.env)
    return tiny | chosen if options.preset == "tiny" else chosen


def check_model(options: argparse.Namespace, *, needed: bool = True) -> None:
    """Refuse what cannot be trained before anything is loaded.

    Args:
        options: The parsed arguments.
        needed: Whether a model must be named, unless the preset is tiny.

    Raises:
        OptionError: There is no model, or one that is behind a server.

    Example:
        >>> check_model(argparse.Namespace(model=None, preset="tiny"))
    """
    if needed and options.model is None and options.preset != "tiny":
        raise OptionError(
            "expected a model to train, found none; add --model, such as --model Qwen/Qwen3-4B, or "
            "try --preset tiny, which builds a small one"
        )
    if options.model is not None and kind_of(options.model) != "local":
        raise OptionError(
            f"expected a folder or a name on the hub as --model, found {options.model!r:.120}; a "
            "model behind a server cannot be trained here"
        )


def is_tiny(options: argparse.Namespace) -> bool:
    """Return whether parsed arguments ask for a small model that is built in the training's folder.

    Example:
        >>> is_tiny(argparse.Namespace(model=None)), is_tiny(argparse.Namespace(model="some/model"))
        (True, False)
    """
    return options.model in (None, TINY)


def base_of(options: argparse.Namespace, out: Path) -> str | Path:
    """Return the folder or name of the model that all models of a training began from.

    Args:
        options: The parsed arguments.
        out: The training's folder.

    Example:
        >>> base_of(argparse.Namespace(model="tiny"), Path("runs")).as_posix()
        'runs/model'
    """
    named: str = options.model
    return out / _BUILT if is_tiny(options) else named


def open_base(
    options: argparse.Namespace, out: Path, seed: int, say: Callable[[str], object]
) -> str | Path:
    """Return the folder or name of a model to load; a tiny one is built where it is missing.

    Args:
        options: The parsed arguments.
        out: The training's folder.
        seed: The seed of the tiny model's weights.
        say: Told what may take long.

    Example:
        >>> chosen = argparse.Namespace(model="some/model")
        >>> open_base(chosen, Path("runs"), 0, print)
        loading some/model from the hub, where it is not on this machine
        'some/model'
    """
    base = base_of(options, out)
    if isinstance(base, Path):
        from ..trainers.setup_models import tiny_for_training

        return tiny_for_training(base, options.env, parameters=options.parameters, seed=seed)
    if Path(base).expanduser().is_dir():
        return Path(base).expanduser()
    say(f"loading {base} from the hub, where it is not on this machine")
    return base
