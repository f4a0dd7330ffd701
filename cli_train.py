"""`comap train comap` trains a policy and a world model together, into a folder."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import MissingExtra, OptionError

if TYPE_CHECKING:
    from .benchmarks.training_display import TrainingShown
    from .trainers.coevolution import CoEvolution
    from .trainers.config import CoMapTraining
    from .trainers.setup import Environments

__all__ = ["add_parser", "run"]

_REPORT_SECONDS = 300.0  # between two writings of the report while training goes on


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `train` to the parser of `comap`.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["train", "comap", "--no-wmsd", "--evaluation-tasks", "none"]).wmsd
        False
    """
    from .benchmarks.training_options import TrainParser, declare
    from .cli_baselines import add_methods
    from .cli_paw import add_method

    train = subparsers.add_parser("train", help="train a policy and a world model")
    methods = train.add_subparsers(
        dest="method", required=True, metavar="METHOD", parser_class=TrainParser
    )
    parser = methods.add_parser(
        "comap",
        help="CoMap: both learn from each other, in rounds",
        description="Train CoMap: warm-up on demonstrations, initialisation of the reflection mode, "
        "and rounds in which policy and world model learn from each other. A training that was "
        "stopped or killed goes on where it was when the same command is given again.",
        epilog="example: comap train comap --preset tiny --out runs/tiny --seed 1",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    declare(parser)
    add_method(methods)
    add_methods(methods)


# -- the command ---------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Run `comap train comap` with parsed arguments and return the exit status.

    Raises:
        CoMapError: The options are not right, data or a model is missing, or the folder is another
            training's or cannot be written.
    """
    from .benchmarks.run_setup import check_place
    from .benchmarks.terminal import print_table
    from .benchmarks.training_display import training_progress
    from .benchmarks.training_inputs import base_of, env_options
    from .benchmarks.training_options import settings_of
    from .benchmarks.training_play import play_command
    from .benchmarks.training_record import read_training
    from .benchmarks.training_report import write_report
    from .benchmarks.training_tables import results_table
    from .envs.registered import engines_kept
    from .trainers.processes import is_first
    from .trainers.setup import Environments, check_tracker

    for package in ("rich", "jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise MissingExtra.of("viz", "showing and reporting a training")
    config, out = settings_of(options), Path(options.out)
    check_place(out)
    check_tracker(options.report_to)
    with engines_kept(options.env, config.live), training_progress() as shown:
        make_env = Environments(options.env, env_options(options))
        training = _prepare(options, config, make_env, out, shown)
        training.run()
        if is_first():
            shown.say("writing the report")
            report = write_report(out)
    if is_first():
        print()
        print_table(results_table(read_training(out)))
        print(f"\nreport: {report}\nmodels: {out / 'models'} (to let them play:)\n")
        agent = training.session.comap_config(config.evaluation_temperature)
        base = base_of(options, out)
        env = (make_env.env_id, make_env.options)
        print(shlex.join(play_command(out / "models", config, agent, *env, base)))
    return 0


def _prepare(
    options: argparse.Namespace,
    config: CoMapTraining,
    make_env: Environments,
    out: Path,
    shown: TrainingShown,
) -> CoEvolution:
    """Return the training that parsed arguments describe."""
    from .benchmarks.record import circumstances
    from .benchmarks.training_inputs import TINY, is_tiny, open_base
    from .trainers.coevolution import CoEvolution
    from .trainers.processes import is_first
    from .trainers.setup import PACKAGES, hardware, show_expert
    from .trainers.setup_models import describe_models, open_models

    _check_models(options, config)
    environment = make_env.describe((config.train_split, *config.evaluation_splits))
    model = None
    if not _whole(options, config):
        model = open_base(options, out, config.seed, shown.say)
    places = {"policy": options.policy, "world_model": options.world_model}
    roles = open_models(config, model, **places)
    told = {"preset": options.preset, "env": environment}
    told["model"] = describe_models(roles, model=model, **places)
    if is_tiny(options) and model is not None:
        told["model"]["name"] = TINY
    demos = show_expert(make_env, config, options.demos and Path(options.demos), shown.tell)
    told["demonstrations"] = {"from": "file" if options.demos else "expert", "number": len(demos)}
    session = circumstances(PACKAGES)
    session["hardware"] |= hardware()
    return CoEvolution(
        config,
        roles,
        make_env,
        demos,
        out,
        about=told,
        session=session,
        tell=_Teller(out, shown) if is_first() else shown.tell,
        report_to=options.report_to,
        warmed_up=options.warmed_up,
    )


class _Teller:
    """Shows what happens, and writes the report now and then while training goes on."""

    def __init__(self, out: Path, shown: TrainingShown):
        self._out, self._shown, self._at = out, shown, time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        from .benchmarks.training_report import write_report

        self._shown.tell(event)
        if event["event"] == "done" and time.monotonic() - self._at >= _REPORT_SECONDS:
            write_report(self._out)
            self._at = time.monotonic()


def _check_models(options: argparse.Namespace, config: CoMapTraining) -> None:
    """Refuse what cannot be trained before anything is loaded."""
    from .benchmarks.training_inputs import check_model

    check_model(options, needed=not _whole(options, config))
    if (options.policy is None) != (options.world_model is None) and config.weights == "lora":
        raise OptionError(
            "expected two adapters or none to begin from, found one; give --policy and --world-model"
        )


def _whole(options: argparse.Namespace, config: CoMapTraining) -> bool:
    """Return whether policy and world model are given as models, so that there is no other to name."""
    return bool(config.weights == "full" and options.policy and options.world_model)
