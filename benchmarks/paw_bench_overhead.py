"""`comap bench paw-overhead`: what PaW adds to an update's time and memory (PaW, Figure 5).

One trainer does updates of the same rows with PaW on and off by turns, so that whatever else changes
meanwhile changes both. The first update of each is not counted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, OptionError
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.presets import paw_preset
from .paw_bench_arms import PACKAGES, SETTINGS
from .paw_bench_overhead_rows import RowShape, episode_rows
from .record import circumstances, spread, write_result
from .run_models import hush

__all__ = ["MODELS", "add_parser", "measure", "overhead_of"]

_QWEN: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
MODELS: dict[str, Mapping[str, Any] | None] = {"tiny": None, "qwen2.5-1.5b": _QWEN}
"""Shapes of models by name: a tiny one of comap's, and that of Qwen2.5-1.5B."""

_LENGTHS = {"tiny": (72, 5, 17), "qwen2.5-1.5b": (600, 120, 60)}  # belief prompts; PaW's prompts
_PHASES = ("old_logps", "advantages", "update", "all", "cpu")
_TIME_GOAL, _MEMORY_GOAL = 0.021, 0.024  # METHODS.md 2.10: the paper's own overhead


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench paw-overhead``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["paw-overhead", "--architecture", "tiny"]).rows
        2048
    """
    parser = kinds.add_parser("paw-overhead", help="measure what PaW adds to an update's time")
    add = parser.add_argument
    add("--architecture", choices=tuple(MODELS), default="tiny", help="shape of the model")
    add("--device", default="auto", help="auto (a GPU where there is one), cpu or cuda")
    add("--rows", type=int, default=2048, metavar="N", help="rows of an update")
    add("--groups", type=int, default=16, metavar="N", help="tasks of an update")
    add("--members", type=int, default=8, metavar="N", help="episodes of each task")
    for at, name in enumerate(("prompt", "response", "observation")):
        usual = ", ".join(f"{_LENGTHS[model][at]} with {model}" for model in MODELS)
        text = f"mean tokens of a {name} (default: {usual})"
        add(f"--{name}", type=int, metavar="N", help=text)
    add("--updates", type=int, default=3, metavar="N", help="updates of each kind that are timed")
    add("--mini-batch-rows", type=int, metavar="N", help="rows of an optimizer step; 0 for all")
    add("--micro-batch-tokens", type=int, metavar="N", help="most tokens of a forward pass")
    add("--rollout-seconds", type=float, metavar="S", help="how long the rollouts of a step take")
    add("--seed", type=int, default=0, help="seed of weights and rows")
    add("--result", metavar="FILE", help="write the result to this file, as JSON")
    parser.set_defaults(run=_run)


def measure(
    config: PaWTraining,
    shape: RowShape,
    architecture: str,
    *,
    updates: int = 3,
    device: str = "auto",
    seed: int = 0,
    tell: Callable[[dict[str, Any]], object] = lambda told: None,
) -> dict[str, Any]:
    """Measure updates with PaW on and off by turns.

    Args:
        config: The settings; whether PaW is on does not matter.
        shape: How many rows of which lengths.
        architecture: One of `MODELS`.
        updates: How many of each kind are counted; there is one more of each, which is not.
        device: ``auto``, ``cpu`` or ``cuda``.
        seed: Seed of weights and rows.
        tell: Told the result so far after each pair of updates.

    Returns:
        The model's size, tokens, and what was ``measured`` of each update.

    Raises:
        OptionError: The device is not there, or a number is below 1.
        MissingExtra: The extra ``train`` is not installed.
    """
    if updates < 1:
        raise OptionError(f"updates must be a whole number of at least 1, not {updates}")
    from ..lm.hf_load import device_of

    where = device_of(device)
    try:
        from .paw_bench_overhead_turns import Turns, random_model
    except ImportError as error:
        raise MissingExtra.of("train", "measuring training") from error
    pairs = [(False, True) if number % 2 else (True, False) for number in range(updates)]
    plan = [False, True, *(on for pair in pairs for on in pair)]
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(MODELS[architecture], Path(folder, "model"), where, seed)
        vocabulary = (MODELS[architecture] or {}).get("vocab_size", 320)
        rows = episode_rows(shape, vocabulary, seed)
        turns = Turns(config, model, rows, plan, device)
        tokens = {
            name: sum(len(getattr(row, f"{name}_ids")) for row in rows)
            for name in ("prompt", "response", "header", "observation", "footer")
        }
        about = {"parameters": turns.parameters, "device": turns.kind, "tokens": tokens}

        def keep(line: Mapping[str, Any]) -> None:
            done = turns.found[2:]
            if done and len(done) % 2 == 0:
                tell({**about, "measured": list(done)})

        turns.measure(keep)
    return {**about, "measured": turns.found[2:]}


def overhead_of(
    measured: Sequence[Mapping[str, Any]], rollout_seconds: float | None = None
) -> dict[str, Any]:
    """Return what PaW adds, from updates with it and without it, in pairs.

    Args:
        measured: What was measured of each update: two at a time belong together.
        rollout_seconds: How long the rollouts of a step take; None tells nothing of whole steps.

    Example:
        >>> off = {"old_logps": 1.0, "advantages": 0.0, "update": 3.0, "all": 4.0, "cpu": 4.0}
        >>> on = {**off, "update": 3.4, "all": 4.4}
        >>> lines = [{**line, "peak_bytes": None, "paw": line is on} for line in (off, on)]
        >>> told = overhead_of(lines, 16.0)
        >>> round(told["ratio"]["all"]["median"], 3), round(told["whole_step"]["overhead"], 3)
        (1.1, 0.02)
    """
    some = [measured[at : at + 2] for at in range(0, len(measured), 2)]
    pairs = [sorted(pair, key=lambda line: bool(line["paw"])) for pair in some]
    result: dict[str, Any] = {"pairs": len(pairs)}
    for name, side in (("seconds_off", 0), ("seconds_on", 1)):
        result[name] = {part: spread([pair[side][part] for pair in pairs]) for part in _PHASES}
    ratios = {part: [on[part] / off[part] for off, on in pairs if off[part]] for part in _PHASES}
    result["ratio"] = {part: spread(some) if some else None for part, some in ratios.items()}
    extra = spread([on["all"] - off["all"] for off, on in pairs])
    result["extra_seconds"] = extra
    known = [(off["peak_bytes"], on["peak_bytes"]) for off, on in pairs]
    memory = None
    if all(one and two for one, two in known):
        low, high = max(one for one, _ in known), max(two for _, two in known)
        memory = {"off": low, "on": high, "ratio": high / low}
    result["peak_bytes"] = memory
    goals: dict[str, Any] = {"time": None, "memory": memory and memory["ratio"] <= 1 + _MEMORY_GOAL}
    if rollout_seconds is not None:
        off = result["seconds_off"]["all"]["median"]
        share = extra["median"] / (rollout_seconds + off)
        result["whole_step"] = {"rollout_seconds": rollout_seconds, "overhead": share}
        goals["time"] = share <= _TIME_GOAL
    return {**result, "goals": goals}


def _run(options: argparse.Namespace) -> int:
    """Run `comap bench paw-overhead` with parsed arguments and return the exit status."""
    lengths = dict(
        zip(("prompt", "response", "observation"), _LENGTHS[options.architecture], strict=True)
    )
    given = {name: getattr(options, name) for name in ("rows", "groups", "members")}
    given |= {
        name: usual if getattr(options, name) is None else getattr(options, name)
        for name, usual in lengths.items()
    }
    config, shape = _config(options), RowShape(**given)
    about = {
        "benchmark": "PaW overhead",
        "architecture": options.architecture,
        "rows": given,
        "settings": config.describe(),
        "seed": options.seed,
    }

    def keep(told: dict[str, Any]) -> None:
        found = overhead_of(told["measured"], options.rollout_seconds)
        result = {**about, **told, **found, **circumstances(PACKAGES), "gpus": _gpus()}
        if options.result is not None:
            write_result(Path(options.result), result)
        _show(result)

    hush()
    wanted = {name: getattr(options, name) for name in ("updates", "device", "seed")}
    measure(config, shape, options.architecture, tell=keep, **wanted)
    return 0


def _config(options: argparse.Namespace) -> PaWTraining:
    """Return the settings: those of `comap bench paw` with the tiny model, else of ALFWorld."""
    changed = {name: getattr(options, name) for name in ("groups", "members")}
    for name in ("mini_batch_rows", "micro_batch_tokens"):
        if getattr(options, name) is not None:
            changed[name] = getattr(options, name) or None
    if options.architecture == "tiny":
        return paw_preset("tiny", **{**SETTINGS, **changed, "save_updates": 0})
    half = {} if options.device == "cpu" else {"precision": "bfloat16"}
    return paw_preset("alfworld", **half, **changed, save_updates=0)


def _gpus() -> list[str]:
    from ..trainers.setup import hardware

    gpus: list[str] = hardware()["gpus"]
    return gpus


def _show(result: Mapping[str, Any]) -> None:
    """Print what was found so far."""
    ratio, extra = result["ratio"]["all"], result["extra_seconds"]
    if result["device"] == "cpu":  # other processes take time, but no CPU time, from this one
        ratio = result["ratio"]["cpu"]
    print(
        f"{result['pairs']} pairs: update with PaW {ratio['median']:.3f} times that without "
        f"({ratio['min']:.3f} to {ratio['max']:.3f}), {extra['median']:+.2f} s",
        flush=True,
    )
    memory = result["peak_bytes"]
    if memory is not None:
        print(
            f"peak memory: {memory['on'] / 2**30:.2f} GiB, {memory['ratio']:.3f} times", flush=True
        )
    whole = result.get("whole_step")
    if whole is not None:
        print(f"of a whole step: {100 * whole['overhead']:+.2f} %", flush=True)
