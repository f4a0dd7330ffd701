"""The options of `comap train sft|iwm|wkm|itp`: what is trained on what, and every setting."""

from __future__ import annotations

import argparse
from typing import Any

from ..envs.registered import embedded_tasks, evaluated_splits, is_slow, listed_actions
from ..errors import OptionError
from ..lm.create import kind_of
from ..trainers.baselines.config import BaselineTraining
from ..trainers.baselines.presets import BASELINE_PRESETS, BASELINES, baseline_preset
from .options import pairs
from .training_options import add_settings, given_settings

__all__ = ["check_models", "declare", "env_options", "settings_of"]

_MODEL = (
    "what all models begin from: a folder of save_pretrained, a name on the hub (Qwen/Qwen3-4B), or "
    "tiny (a new small model, built into OUT/model; the default of the preset tiny)"
)
_OTHERWISE = {"data_dir": "--data-dir", "id": "--env"}


def declare(parser: argparse.ArgumentParser, method: str) -> None:
    """Add the options of a method to its parser.

    Args:
        parser: The parser.
        method: One of `comap.trainers.baselines.presets.BASELINES`.

    Example:
        >>> parser = argparse.ArgumentParser("comap train iwm")
        >>> declare(parser, "iwm")
        >>> parser.parse_args(["--alternatives", "4", "--explored", "none"]).alternatives
        4
    """
    add = parser.add_argument_group("what is trained, and on what").add_argument
    presets = ", ".join(BASELINE_PRESETS)
    add("--preset", default="paper", metavar="NAME", help=f"{presets} (default: %(default)s)")
    add("--model", metavar="M", help=_MODEL)
    add("--parameters", type=int, default=500_000, metavar="N", help="size of the model tiny")
    add("--policy", metavar="DIR", help="what the policy begins from instead, such as models/agent")
    if method == "itp":
        world = (
            "the world model, such as models/wm of comap train sft or comap (default: trained here)"
        )
        add("--world-model", dest="world_model_from", metavar="DIR", help=world)
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
    parser.set_defaults(world_model_from=None)
    add_settings(parser, BASELINES[method])


def settings_of(options: argparse.Namespace) -> BaselineTraining:
    """Return the preset that parsed arguments name, with what else they say.

    Raises:
        OptionError: There is no such preset, or a value is not allowed.

    Example:
        >>> told = argparse.Namespace(method="wkm", preset="tiny", env="comap/ALFWorld-v0", gamma=1.0)
        >>> settings_of(told).gamma
        1.0
    """
    either = ("batch_rows", "batch_tokens")
    chosen = given_settings(options, BASELINES[options.method], either)
    splits = evaluated_splits(options.env)
    if splits:
        chosen.setdefault("evaluation_splits", splits)
    return baseline_preset(options.method, options.preset, slow=is_slow(options.env), **chosen)


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


def check_models(options: argparse.Namespace) -> None:
    """Refuse what cannot be trained before anything is loaded.

    Args:
        options: The parsed arguments.

    Raises:
        OptionError: There is no model, or one that is behind a server.

    Example:
        >>> check_models(argparse.Namespace(model=None, preset="tiny"))
    """
    if options.model is None and options.preset != "tiny":
        raise OptionError(
            "expected a model to train, found none; add --model, such as --model Qwen/Qwen3-4B, or "
            "try --preset tiny, which builds a small one"
        )
    if options.model is not None and kind_of(options.model) != "local":
        raise OptionError(
            f"expected a folder or a name on the hub as --model, found {options.model!r:.120}; a "
            "model behind a server cannot be trained here"
        )
