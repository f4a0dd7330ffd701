"""Makes the small models that comap ships: ``comap bench shipped``.

Everything they learn from is generated here: the tasks, the expert's demonstrations, and their own
rollouts. They are warmed up as `coevolution_models` says, without recoveries, and co-evolved with the
settings of the row CoMap of `coevolution_rows` but for `MADE_WITH`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checksums import unseal
from ..lm.shipped import model_folder
from ..trajectory import Trajectory
from .coevolution_models import PARTS, WarmUp, shown_by_experts, warm_up
from .coevolution_rows import BASE, run_row, training_of
from .record import circumstances, write_result
from .small_training import PACKAGES

__all__ = ["MADE_WITH", "add_parser", "make"]

_COMMAND = "comap bench shipped"
_SETTINGS = (
    "prompts",
    "state_text",
    "decoding",
    "form",
    "draft_tokens",
    "reflect_tokens",
    "final_tokens",
)
_GATE = ("p_source", "q_source", "tau_p", "tau_q")

MADE_WITH: dict[str, Any] = {
    "decoding": "masked",
    "evaluation_temperature": 0.0,
    "suffix_temperature": 0.0,
    "init_context": "mixed",
    "balance": 2.0,
    "episode_filter": "none",
    "demonstrations": 64,
}
"""What the shipped models were made with that differs from the settings of `coevolution_rows`."""


def make(
    out: Path, seed: int, target: Path, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Train the models, unless that was done, put them where comap ships them, and return a record.

    Args:
        out: Folder of the training.
        seed: Its seed.
        target: Folder that they go to.
        settings: Settings of `CoMapTraining` that differ from the row's; None for `MADE_WITH`.
    """
    settings = MADE_WITH if settings is None else settings
    warm = WarmUp(str(out), recoveries=0)
    shown: Sequence[Trajectory] = ()
    folder = out / "rows" / f"{BASE.name}-{seed}"
    if not (folder / "summary.json").is_file():
        shown = shown_by_experts(warm)
        for part in PARTS:
            print(f"warmed up: {warm_up(part, seed, warm, shown)}", flush=True)
        folder = run_row(BASE, seed, warm, shown, settings, _tell)
    stages = unseal((folder / "summary.json").read_bytes())["stages"]
    last = [value for name, value in stages.items() if name.endswith("-evaluation")][-1]
    config = training_of(BASE, seed, settings)
    record = {
        "command": f"{_COMMAND} --seed {seed}",
        "seed": seed,
        "warm_up": {part: _told(out / f"{part}-{seed}") for part in PARTS},
        "training": config.describe(),
        "cpu_seconds": round(sum(value["cpu_seconds"] for value in stages.values()), 1),
        "evaluation": {
            "splits": {
                split: {"n": told["episodes"], "success": round(told["success"], 4)}
                for split, told in last["splits"].items()
            },
            "delta_f1": {
                name: {group: scores[group]["delta_f1"] for group in ("all", "nonempty")}
                for name, scores in last["world_model"].items()
            },
        },
        **circumstances(PACKAGES),
    }
    for name in ("agent", "wm"):
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(folder / "models" / name, target / name)
    shutil.copyfile(folder / "models" / "head.safetensors", target / "head.safetensors")
    for path in target.rglob("*.safetensors"):
        path.chmod(0o644)  # for all who install comap, not only for who made them
    told = config.describe()
    write_result(
        target / "settings.json",
        {
            "env": "comap/ALFWorld-v0",
            "agent": {name: told[name] for name in (*_SETTINGS, *_GATE)} | {"temperature": 0.0},
            "world_model": {
                "prompts": told["prompts"],
                "state_text": told["state_text"],
                "max_new_tokens": told["predict_tokens"],
            },
            "made_by": f"{_COMMAND} --seed {seed}",
        },
    )
    write_result(target / "training.json", record)
    (target / "CARD.md").write_text(card(record), "utf-8")
    return record


def card(record: Mapping[str, Any]) -> str:
    """Return what stands beside the models: what they are, and how they were made."""
    warm, told = record["warm_up"], record["evaluation"]
    success = "; ".join(
        f"{split}: {100 * rate['success']:.1f} % (n = {rate['n']})"
        for split, rate in told["splits"].items()
    )
    delta = "; ".join(
        f"{name.replace('_', '-')}: {scores['all']:.1f}"
        for name, scores in told["delta_f1"].items()
    )
    return f"""# A small CoMap agent for ALFWorld

Two language models of {warm["policy"]["parameters"]:,} parameters each (Qwen3's architecture, a
word-level tokenizer of their own) and a refinement head: the policy in `agent`, the world model in
`wm`, the head in `head.safetensors`. `settings.json` says how they are asked.

They were trained from random weights on tasks that comap generates, on its own expert's demonstrations
of these and on their own rollouts: no text of any benchmark's data is in them. They know ALFWorld's
household tasks and nothing else. They are for trying things out, for tests and for teaching; they are
no measure of the method.

- Warm-up: policy {warm["policy"]["trained_tokens"]:,} tokens, world model
  {warm["wm"]["trained_tokens"]:,} tokens of demonstrations; then CoMap's reflection initialisation and
  {record["training"]["rounds"]} rounds of co-evolution ({record["cpu_seconds"]:,.0f} CPU seconds).
- Success of the CoMap agent on generated tasks that it was not trained on, greedy: {success}.
- Delta-F1 of the world model, times 100 ({delta}).
- Made on {record["date"][:10]} with seed {record["seed"]}; settings and versions: `training.json`.

One command makes them again, on a CPU: `{record["command"]}`
"""


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench shipped``."""
    parser = kinds.add_parser("shipped", help="make the small models that comap ships")
    parser.add_argument("--out", default="runs/shipped", help="folder for the training")
    parser.add_argument("--target", help="folder for the models (default: where comap has them)")
    parser.add_argument("--seed", type=int, default=0, help="seed (default: %(default)s)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    target = Path(options.target) if options.target else model_folder()
    record = make(Path(options.out), options.seed, target)
    print(json.dumps(record["evaluation"], indent=1))
    print(f"models: {target}")
    return 0


def _told(folder: Path) -> dict[str, Any]:
    told = json.loads((folder / "training.json").read_bytes())
    wanted = ("parameters", "rows", "trained_tokens", "epochs", "cpu_seconds")
    return {key: told[key] for key in wanted}


def _tell(event: Mapping[str, Any]) -> None:
    if event["event"] in ("stage", "done"):
        print(f"{event['event']} {event['stage']}", flush=True)
