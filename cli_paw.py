"""`comap train paw` trains a policy by reinforcement learning, with PaW or without, into a folder."""

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
    from .benchmarks.paw_display import PaWShown
    from .trainers.paw.config import PaWTraining
    from .trainers.setup import Environments

__all__ = ["add_method", "run"]

_TINY = "tiny"  # the name of a model that is built here
_SHIPPED, _SHIPPED_FOR = "shipped:agent", "comap/ALFWorld-"
_BUILT, _WARMED_UP = "untrained", "model"  # where in the folder it is, and where after a warm-up
_REPORT_SECONDS = 300.0  # between two writings of the report while training goes on


def add_method(methods: argparse._SubParsersAction[Any]) -> None:
    """Add the method `paw` to the parser of `comap train`.

    Args:
        methods: The subparsers of `comap train`.

    Example:
        >>> methods = argparse.ArgumentParser("comap train").add_subparsers()
        >>> add_method(methods)
        >>> methods.choices["paw"].parse_args(["--algorithm", "gigpo", "--no-paw"]).algorithm
        'gigpo'
    """
    from .benchmarks.paw_options import declare

    parser = methods.add_parser(
        "paw",
        help="GRPO, RLOO, GiGPO or PPO on whole episodes, with PaW's loss on observations",
        description="Train a policy by reinforcement learning on its own episodes; with PaW it also "
        "learns to predict the observations that follow uncertain actions. A training that was "
        "stopped or killed goes on where it was when the same command is given again.",
        epilog="example: comap train paw --preset tiny --out runs/tiny-paw --seed 1",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    declare(parser)


# -- the command ---------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Run `comap train paw` with parsed arguments and return the exit status.

    Raises:
        CoMapError: The options are not right, data or a model is missing, or the folder is another
            training's or cannot be written.
        gymnasium.error.Error: There is no such environment.
    """
    from .benchmarks.paw_display import paw_progress
    from .benchmarks.paw_options import env_options, resolve, settings_of
    from .benchmarks.paw_simulator import check_simulator
    from .benchmarks.run_setup import check_place
    from .envs.registered import engines_kept
    from .trainers.processes import is_first
    from .trainers.setup import Environments, check_tracker

    for package in ("rich", "jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise MissingExtra.of("viz", "showing and reporting a training")
    preset, env_id = resolve(options)
    if options.model is None and preset == _TINY and env_id.startswith(_SHIPPED_FOR):
        options.model = _SHIPPED  # it wins now and then, so that there is something to learn from
        if "warmup_tokens" not in options:
            options.warmup_tokens = 0
    config, out = settings_of(options), Path(options.out)
    check_place(out)
    check_tracker(options.report_to)
    _check(options, preset)
    check_simulator(options, config)
    make_env = Environments(env_id, env_options(options, config))
    with engines_kept(env_id, config.live), paw_progress() as shown:
        policy = _train(options, config, make_env, preset, shown)
    if is_first():
        _conclude(options, config, make_env, policy)
    return 0


def _train(
    options: argparse.Namespace,
    config: PaWTraining,
    make_env: Environments,
    preset: str,
    shown: PaWShown,
) -> Path:
    """Train as parsed arguments say, and return the folder of the policy."""
    from .benchmarks.paw_simulator import simulator_told
    from .benchmarks.record import circumstances
    from .trainers.paw.training import train
    from .trainers.processes import is_first
    from .trainers.setup import PACKAGES, hardware

    out = Path(options.out)
    environment = make_env.describe((config.train_split, *config.evaluation_splits))
    model, told = _model(options, config, make_env.env_id, shown)
    session = circumstances(PACKAGES)
    session["hardware"] |= hardware()
    about = {"preset": preset, "row": config.row, "env": environment, "model": told}
    return train(
        config,
        model=model,
        make_env=make_env,
        out=out,
        tell=_Teller(out, shown) if is_first() else shown.tell,
        report_to=options.report_to,
        about=about | simulator_told(options.simulator),
        session=session,
        server=options.vllm_server,
        simulator=options.simulator,
    )


def _conclude(
    options: argparse.Namespace, config: PaWTraining, make_env: Environments, policy: Path
) -> None:
    """Print what came out, and where it is."""
    from .benchmarks.paw_play import paw_play_command
    from .benchmarks.paw_record import read_paw
    from .benchmarks.paw_report import write_report
    from .benchmarks.paw_tables import results_table
    from .benchmarks.terminal import print_table

    out = Path(options.out)
    report = write_report(out)
    print()
    print_table(results_table(read_paw(out)))
    print(f"\nreport: {report}\npolicy: {policy} (to let it play:)\n")
    base = out / _BUILT if options.model in (None, _TINY) else options.model
    base = out / _WARMED_UP if config.warmup_tokens else base
    place = (make_env.env_id, make_env.options)
    print(shlex.join(paw_play_command(policy, config, *place, base)))


class _Teller:
    """Shows what happens, and writes the report now and then while training goes on."""

    def __init__(self, out: Path, shown: PaWShown):
        self._out, self._shown, self._at = out, shown, time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        from .benchmarks.paw_report import write_report

        self._shown.tell(event)
        written = (self._out / "metrics.jsonl").is_file()
        late = time.monotonic() - self._at >= _REPORT_SECONDS
        if written and late and event["event"] in ("update", "evaluated"):
            write_report(self._out)
            self._at = time.monotonic()


def _check(options: argparse.Namespace, preset: str) -> None:
    """Refuse what cannot be trained before anything is loaded."""
    from .lm.create import kind_of
    from .trainers.paw.presets import TINY_PRESETS

    if options.model is None and preset not in TINY_PRESETS:
        raise OptionError(
            "expected a model to train, found none; add --model, such as --model "
            "Qwen/Qwen2.5-1.5B-Instruct, or try --preset tiny, which has a small one"
        )
    if options.model is not None and kind_of(options.model) != "local":
        raise OptionError(
            f"expected a folder or a name on the hub as --model, found {options.model!r:.120}; a "
            "model behind a server cannot be trained here (--vllm-server only samples there)"
        )
    server = options.vllm_server
    if server is not None and not server.startswith(("http://", "https://")):
        raise OptionError(
            f"expected a URL such as http://127.0.0.1:8000 as --vllm-server, found {server!r:.120}"
        )


def _model(
    options: argparse.Namespace, config: PaWTraining, env_id: str, shown: PaWShown
) -> tuple[str | Path, dict[str, Any]]:
    """Return the folder or name of the model, and what is told of it; a tiny one is built."""
    from .lm.shipped import folder_of, full_name
    from .trainers.setup_models import tiny_for_training, weights_hash

    if options.model in (None, _TINY):
        folder, size = Path(options.out) / _BUILT, options.parameters
        built = tiny_for_training(folder, env_id, parameters=size, seed=config.seed)
        return built, {"name": _TINY, "parameters": size}
    given: str = options.model
    shipped = full_name(given)
    if shipped is not None:
        place = folder_of(shipped)
        return place, {"name": shipped, "sha256": weights_hash(place)}
    if Path(given).expanduser().is_dir():
        place = Path(given).expanduser()
        return place, {"name": place.resolve().name, "sha256": weights_hash(place)}
    shown.say(f"loading {given} from the hub, where it is not on this machine")
    return given, {"name": given}
