"""The options of `comap train paw`: what is trained on what, and every setting."""

from __future__ import annotations

import argparse
from typing import Any

from gymnasium.envs.registration import registry

from ..envs.registered import embedded_tasks, evaluated_splits, is_slow
from ..errors import OptionError
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.presets import (
    PAW_ENVIRONMENTS,
    PAW_PRESETS,
    PAW_TINY_OPTIONS,
    PAW_TINY_WHERE_SLOW,
    TINY_PRESETS,
    paw_preset,
    preset_of_env,
)
from .options import pairs
from .training_options import add_settings, given_settings

__all__ = ["declare", "env_options", "resolve", "settings_of"]

_MODEL = (
    "the policy to train: a folder of save_pretrained, a name on the hub "
    "(Qwen/Qwen2.5-1.5B-Instruct), shipped:agent (the default of the preset tiny on ALFWorld), or tiny "
    "(a new small model, built into OUT/untrained and warmed up)"
)
_OTHERWISE = {  # options of environments that are said otherwise here
    "data_dir": "--data-dir",
    "id": "--env",
    "max_episode_steps": "--max-episode-steps",
    "split": "--train-split and --evaluation-splits",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options of `comap train paw` to its parser.

    Example:
        >>> parser = argparse.ArgumentParser("comap train paw")
        >>> declare(parser)
        >>> parser.parse_args(["--algorithm", "gigpo", "--no-paw", "--max-updates", "3"]).max_updates
        3
    """
    add = parser.add_argument_group("what is trained, and on what").add_argument
    presets = f"{', '.join(PAW_PRESETS)} (default: that of the environment)"
    add("--preset", metavar="NAME", help=presets)
    add("--model", metavar="M", help=_MODEL)
    add("--parameters", type=int, default=500_000, metavar="N", help="size of the model tiny")
    add("--env", metavar="ID", help="where (default: that of the preset, else comap/ALFWorld-v0)")
    add("--env-option", action="append", metavar="NAME=VALUE", help="its option (repeatable)")
    data = "folder with official data (default: what is on this machine, else generated tasks)"
    add("--data-dir", metavar="DIR", help=data)
    out = "the training's folder (default: %(default)s)"
    add("--out", default="runs/train-paw", metavar="DIR", help=out)
    server = (
        "sample through TRL's vLLM server there (trl vllm-serve), and keep its weights up to date"
    )
    add("--vllm-server", metavar="URL", help=server)
    simulator = (
        "with --engine simulated (the presets zerosearch): who plays the search engine in training: a "
        "folder, a name on the hub, http://HOST:PORT/v1#NAME, or tiny (a new small model, taught what "
        "the environment's index finds; the default of tiny_zerosearch)"
    )
    add("--simulator", metavar="M", help=simulator)
    tracker = "also report to wandb, tensorboard, trackio, ... (default: %(default)s)"
    add("--report-to", default="none", metavar="TRACKER", help=tracker)
    add_settings(parser, PaWTraining)


def resolve(options: argparse.Namespace) -> tuple[str, str]:
    """Return the names of preset and environment; one that is not given follows the other.

    Example:
        >>> resolve(argparse.Namespace(preset=None, env="comap/WebShop-v0"))
        ('webshop', 'comap/WebShop-v0')
        >>> resolve(argparse.Namespace(preset="zerosearch", env=None))
        ('zerosearch', 'comap/SearchQA-v0')
    """
    name, env_id = options.preset, options.env
    if name is None:
        name = "alfworld" if env_id is None else preset_of_env(env_id)
    if env_id is None:
        env_id = PAW_ENVIRONMENTS.get(name, PAW_ENVIRONMENTS["alfworld"])
    return name, env_id


def settings_of(options: argparse.Namespace) -> PaWTraining:
    """Return the preset that parsed arguments name, with what else they say.

    Raises:
        OptionError: There is no such preset, or a value is not allowed.

    Example:
        >>> settings_of(argparse.Namespace(preset="tiny", env=None, groups=2)).groups
        2
    """
    either = ("micro_batch_rows", "micro_batch_tokens")
    chosen, (name, env_id) = given_settings(options, PaWTraining, either), resolve(options)
    if env_id in registry or ":" in env_id:
        splits = evaluated_splits(env_id)
        chosen |= (
            {} if not splits or "evaluation_splits" in chosen else {"evaluation_splits": splits}
        )
    if name in TINY_PRESETS and is_slow(env_id):
        chosen = {**PAW_TINY_WHERE_SLOW, **chosen}
    return paw_preset(name, **chosen)


def env_options(options: argparse.Namespace, config: PaWTraining) -> dict[str, Any]:
    """Return the options that environments are made with.

    Tiny presets play embedded tasks, unless a folder of data is given.

    Args:
        options: The parsed arguments.
        config: The settings.

    Raises:
        OptionError: An option is to be given otherwise.

    Example:
        >>> told = argparse.Namespace(preset="tiny", env=None, env_option=None, data_dir=None)
        >>> env_options(told, settings_of(told))
        {'max_episode_steps': 30, 'source': 'generated'}
    """
    chosen = pairs(options.env_option, "--env-option")
    for name, option in _OTHERWISE.items():
        if name in chosen:
            raise OptionError(f"give {name} as {option}, not as an --env-option")
    chosen["max_episode_steps"] = config.max_episode_steps
    name, env_id = resolve(options)
    if options.data_dir is not None:
        chosen["data_dir"] = options.data_dir
    elif name in TINY_PRESETS:
        for option, value in {**embedded_tasks(env_id), **PAW_TINY_OPTIONS.get(name, {})}.items():
            chosen.setdefault(option, value)
    return chosen
