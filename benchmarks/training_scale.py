"""`comap bench training-scale`: time and memory of CoMap's training with a model of real size."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agents.corpus import corpus
from ..errors import MissingExtra
from ..lm import LanguageModel
from ..trainers.plan import Batching
from .record import write_result
from .training_scale_parts import ARCHITECTURES, decision_requests, material
from .training_scale_result import CHECKPOINTING, Findings, ScaleConfig, about, result_of

if TYPE_CHECKING:
    from .training_scale_phases import Phases

__all__ = ["ScaleConfig", "add_parser", "main", "run"]


def run(
    config: ScaleConfig | None = None,
    *,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure time and memory of each phase of CoMap's training.

    Args:
        config: What is measured; None for the defaults.
        out: File for the result, or None. It is written anew after each repeat.
        progress: Told of each measurement.

    Returns:
        The result, as written to `out`, with the spread of all numbers.

    Raises:
        OptionError: The device is not there, or prompts do not fit into `max_length`.
        MissingExtra: The extra ``train`` is not installed.
    """
    config = config or ScaleConfig()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    with tempfile.TemporaryDirectory() as folder:
        lm, phases = _prepared(config, Path(folder))
        told = about(config, phases) | {"load_average_before": load}
        found = Findings()
        _fit(config, phases, found, progress)
        for some in decision_requests(phases.rows, phases.config, 1).values():
            phases.ask(lm, some)  # so that nothing is done for the first time later
        asked = decision_requests(phases.rows, phases.config, config.decisions)
        for number in range(1, config.repeats + 1):
            progress(f"repeat {number} of {config.repeats}")
            found.rollouts.append(phases.roll_out(number, lm))
            progress(f"student rollouts: {found.rollouts[-1].seconds:.1f} s")
            found.decisions.append({name: phases.ask(lm, some) for name, some in asked.items()})
            _train(config, phases, found, number, progress)
            done = {"repeats_done": number} | result_of(config, found, phases.device.type)
            if out is not None:
                write_result(Path(out), told | done)
    return told | done


def _prepared(config: ScaleConfig, folder: Path) -> tuple[LanguageModel, Phases]:
    """Return the models, as a language model too, with what there is to learn."""
    from ..lm.hf_load import device_of

    training, device = config.training(), device_of(config.device)
    try:
        from ..lm.tiny import tokenizer_of
        from .training_scale_model import random_roles
        from .training_scale_phases import Phases
    except ImportError as error:
        raise MissingExtra.of("train", "measuring training") from error
    shape, words = ARCHITECTURES[config.architecture], tokenizer_of(corpus(episodes=8))
    roles = random_roles(shape, training, words, device)
    lm = roles.language_model(batch_tokens=config.batch_tokens)
    rows = material(lm, training, max(config.rows, config.decisions), config.target_tokens)
    return lm, Phases(roles, training, rows, folder)


def _fit(
    config: ScaleConfig, phases: Phases, found: Findings, progress: Callable[[str], object]
) -> None:
    """Try whether a large micro-batch goes through, in each training."""
    from .training_scale_phases import TRAININGS

    if not config.fit_rows:
        return
    for kind, way in CHECKPOINTING[config.checkpointing].items():
        of_way = found.fits.setdefault(kind, {})
        for name in TRAININGS:
            done = phases.fits(name, config.fit_rows, way)
            of_way[name] = {
                "fits": done is not None,
                "peak_bytes": done and done.peak_bytes,
                "seconds_per_update": done and done.seconds[0],
            }
            progress(f"{config.fit_rows} rows, {name}, {kind}: {of_way[name]}")


def _train(
    config: ScaleConfig,
    phases: Phases,
    found: Findings,
    number: int,
    progress: Callable[[str], object],
) -> None:
    """Measure each training once; those that are compared take turns in being first."""
    from .training_scale_phases import TRAININGS

    batching = Batching(rows=config.batch_rows, accumulate=config.accumulate)
    order = TRAININGS if number % 2 else TRAININGS[::-1]
    for kind, way in CHECKPOINTING[config.checkpointing].items():
        seconds = {}
        for name in order:
            done = phases.train(name, batching, config.updates, way)
            of_way = found.trained.setdefault(kind, {item: [] for item in TRAININGS})
            of_way[name].append(done)
            seconds[name] = sum(done.seconds)
            progress(f"{name}, {kind}: {seconds[name]:.2f} s for {done.rows} rows")
        ratio = seconds["world_model_wmsd"] / seconds["world_model_ce"]
        found.ratios[kind].append(ratio)
        progress(f"WMSD, {kind}: {ratio:.2f} times plain cross-entropy")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `training-scale`; `main` is set as its default ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["training-scale", "--architecture", "tiny"]).repeats
        3
    """
    parser = subparsers.add_parser(
        "training-scale",
        help="time and memory of training with a model of real size",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=main)
    choices = {"architecture": tuple(ARCHITECTURES), "checkpointing": tuple(CHECKPOINTING)}
    for part in fields(ScaleConfig):
        parser.add_argument(
            f"--{part.name.replace('_', '-')}",
            type=type(part.default),
            default=part.default,
            choices=choices.get(part.name),
            help=_HELP[part.name],
        )
    parser.add_argument("--out", metavar="FILE", help="write the result to this file, as JSON")


_HELP = {
    "architecture": "shape of the model",
    "device": "auto (a GPU where there is one), cpu or cuda",
    "max_length": "most tokens of prompt and reply",
    "predict_tokens": "tokens of a prediction",
    "target_tokens": "about how many tokens an observation has",
    "batch_rows": "rows of a micro-batch",
    "accumulate": "micro-batches of an update",
    "updates": "updates of each training that are timed",
    "repeats": "how often everything is measured",
    "decisions": "decisions that are asked for at once",
    "fit_rows": "rows of the micro-batch that shall fit; 0 leaves that out",
    "batch_tokens": "most tokens of a batch when texts are written",
    "checkpointing": "whether activations are computed again on the way back",
}


def main(args: argparse.Namespace) -> int:
    """Run `comap bench training-scale` with parsed arguments and return the exit status.

    Example:
        >>> main(argparse.Namespace(architecture="tiny"))  # doctest: +SKIP
        0
    """
    config = ScaleConfig(**{part.name: getattr(args, part.name) for part in fields(ScaleConfig)})
    result = run(config, out=args.out, progress=lambda line: print(line, file=sys.stderr))
    for way, phases in result["training"].items():
        for name, told in phases.items():
            print(f"{name}, {way}: {_line(told, 'tokens_per_second')}")
    print(f"student rollouts: {_line(result['student_rollouts'], 'written_tokens_per_second')}")
    print(f"decisions: {_line(result['decisions'], 'written_tokens_per_second')}")
    for way, ratio in result["wmsd_ratio"].items():
        told = f"{ratio['median']:.2f} times plain cross-entropy"
        print(f"WMSD, {way}: {told} ({ratio['min']:.2f} to {ratio['max']:.2f})")
    for goal in result["goals"].values():
        verdict = {True: "met", False: "NOT met", None: "not told by this run"}[goal["met"]]
        print(f"goal: {goal['goal']}: {verdict}")
    if not result["peak_memory_measured"]:
        print("peak memory is not measured on a CPU")
    return 0


def _line(told: dict[str, Any], speed: str) -> str:
    seconds, tokens = told["seconds_per_1000"]["median"], told[speed]["median"]
    memory = "" if told["peak_bytes"] is None else f", peak {told['peak_bytes'] / 2**30:.1f} GiB"
    return f"{seconds:,.1f} s per 1,000, {tokens:,.0f} tokens a second{memory}"
