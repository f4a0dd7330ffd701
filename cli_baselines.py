"""`comap train sft|iwm|wkm|itp` trains a baseline of CoMap's Table 1 into a folder."""

from __future__ import annotations

import argparse
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import MissingExtra

if TYPE_CHECKING:
    from .benchmarks.training_display import TrainingShown
    from .trainers.baselines.config import BaselineTraining
    from .trainers.baselines.training import BaselineRun
    from .trainers.setup import Environments

__all__ = ["add_methods", "run"]

_TOLD = {
    "sft": (
        "SFT: the policy imitates an expert",
        "Train a policy on an expert's actions, as CoMap's warm-up does, and with --world-model a "
        "world model on what followed them.",
    ),
    "iwm": (
        "IWM: what follows an expert's actions and others is learned first",
        "Train IWM: in the expert's states other actions are tried as well; the policy learns what "
        "follows them all, and then imitates the expert.",
    ),
    "wkm": (
        "WKM: an agent with a model of what is known of tasks and states",
        "Train WKM: task knowledge from the expert's episodes and failed ones, state knowledge, the "
        "knowledge model, the agent, and the knowledge base.",
    ),
    "itp": (
        "ITP: how far to look ahead is learned from labels and by playing",
        "Train ITP_R: a depth for each of the expert's steps, policy and depth head on these, then "
        "advantage actor-critic on training tasks; the world model stays as it is.",
    ),
}


def add_methods(methods: argparse._SubParsersAction[Any]) -> None:
    """Add the baselines to the parser of `comap train`.

    Args:
        methods: The subparsers of `comap train`.

    Example:
        >>> methods = argparse.ArgumentParser("comap train").add_subparsers(dest="method")
        >>> add_methods(methods)
        >>> methods.choices["itp"].parse_args(["--episodes", "0"]).episodes
        0
    """
    from .benchmarks.baseline_options import declare

    for method, (told, description) in _TOLD.items():
        parser = methods.add_parser(
            method,
            help=told,
            description=f"{description} A training that was stopped or killed goes on where it was "
            "when the same command is given again.",
            epilog=f"example: comap train {method} --preset tiny --out runs/tiny-{method} --seed 1",
            allow_abbrev=False,
        )
        parser.set_defaults(run=run)
        declare(parser, method)


# -- the command ---------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Run `comap train` for a baseline with parsed arguments and return the exit status.

    Raises:
        CoMapError: The options are not right, data or a model is missing, or the folder is another
            training's or cannot be written.
        gymnasium.error.Error: There is no such environment.
    """
    from .benchmarks.baseline_options import settings_of
    from .benchmarks.run_setup import check_place
    from .benchmarks.training_display import training_progress
    from .benchmarks.training_inputs import check_model, env_options
    from .envs.registered import engines_kept
    from .trainers.processes import is_first
    from .trainers.setup import Environments, check_tracker

    if find_spec("rich") is None:
        raise MissingExtra.of("viz", "showing a training")
    config, out = settings_of(options), Path(options.out)
    check_place(out)
    check_tracker(options.report_to)
    check_model(options)
    make_env = Environments(options.env, env_options(options))
    with engines_kept(options.env, config.live), training_progress() as shown:
        training = _prepare(options, config, make_env, out, shown)
        training.run()
    if is_first():
        _conclude(options, make_env, out)
    return 0


def _prepare(
    options: argparse.Namespace,
    config: BaselineTraining,
    make_env: Environments,
    out: Path,
    shown: TrainingShown,
) -> BaselineRun:
    """Return the training that parsed arguments describe."""
    from .benchmarks.record import circumstances
    from .benchmarks.training_inputs import TINY, is_tiny, open_base
    from .trainers.baselines.opening import open_baseline
    from .trainers.baselines.training import BaselineRun
    from .trainers.setup import PACKAGES, hardware, show_expert
    from .trainers.setup_models import describe_models

    environment = make_env.describe((config.train_split, *config.evaluation_splits))
    model = open_base(options, out, config.seed, shown.say)
    begin = {"agent": options.policy, "wm": options.world_model_from}
    given = {role: place for role, place in begin.items() if place is not None}
    roles = open_baseline(config, model, given)
    told: dict[str, Any] = {"preset": options.preset, "env": environment}
    told["model"] = describe_models(roles, model=model, **given)
    if is_tiny(options):
        told["model"]["name"] = TINY
    file = options.demos and Path(options.demos)
    demos = show_expert(make_env, config.shared(), file, shown.tell)
    told["shown"] = {"from": "file" if options.demos else "expert", "number": len(demos)}
    session = circumstances(PACKAGES)
    session["hardware"] |= hardware()
    return BaselineRun(
        config,
        roles,
        make_env,
        demos,
        out,
        begun=given,
        about=told,
        told=session,
        tell=shown.tell,
        report_to=options.report_to,
    )


def _conclude(options: argparse.Namespace, make_env: Environments, out: Path) -> None:
    """Print what came out, and where it is."""
    from .benchmarks.baseline_play import baseline_play_words, baseline_table
    from .benchmarks.terminal import print_table
    from .benchmarks.training_inputs import base_of
    from .benchmarks.training_record import read_training

    table = baseline_table(read_training(out))
    if table.rows:
        print()
        print_table(table)
    print(f"\nmodels: {out / 'models'} (to let them play:)\n")
    played = baseline_play_words(out, base=base_of(options, out), env_options=make_env.options)
    print(shlex.join(played))
