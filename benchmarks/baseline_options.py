"""The options of `comap train sft|iwm|wkm|itp`: what is trained on what, and every setting."""

from __future__ import annotations

import argparse

from ..envs.registered import evaluated_splits, is_slow
from ..trainers.baselines.config import BaselineTraining
from ..trainers.baselines.presets import BASELINE_PRESETS, BASELINES, baseline_preset
from .training_inputs import declare_model, declare_tasks
from .training_options import add_settings, given_settings

__all__ = ["declare", "settings_of"]


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
    declare_model(add, BASELINE_PRESETS)
    add("--policy", metavar="DIR", help="what the policy begins from instead, such as models/agent")
    if method == "itp":
        world = (
            "the world model, such as models/wm of comap train sft or comap (default: trained here)"
        )
        add("--world-model", dest="world_model_from", metavar="DIR", help=world)
    declare_tasks(add, method)
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
