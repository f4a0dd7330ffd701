"""Trainings whose weights are sharded (FSDP2), or not; as a script, one of several processes that do them.

python tests/kits/sharded.py ROWS_MODEL PAW_MODEL PLAYER OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from comap.trainers.comap.coevolution import CoEvolution
from comap.trainers.config import changed as with_changes
from comap.trainers.processes import is_first, wait
from comap.trainers.sharding import copies, trained_weights
from kits import learning, paw, trainings

VARIABLES = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}

ROWS = ("distill-full", "policy-lora")
PAW: dict[str, dict[str, Any]] = {
    "grpo-full": {"algorithm": "grpo", "kl": 0.01},
    "gigpo-lora": {"algorithm": "gigpo", "kl": 0.01, "weights": "lora"},
}
"""Trainings of rows and of PaW by name; all of them compute layers again for the backward pass."""

UPDATES = 2  # of PaW


def on_rows(training: str, model: Path, out: Path, *, dtype: str = "float64") -> dict[str, Any]:
    """Train roles with a checkpoint after each update, and return their weights and the log."""
    name, _, kind = training.partition("-")
    roles = learning.opened(model, kind, dtype, dropout=0.0)
    trainer = learning.make(name, roles, out, save=1, checkpointing=True)
    log = trainer.fit()
    weights = {role: roles.state(role) for role in roles.names}
    if trainer.head is not None:
        weights["head"] = {key: value.clone() for key, value in trainer.head.state_dict().items()}
    roles.save(out / "models", ["agent", "wm"])
    return {"weights": weights, "log": log}


def on_episodes(setup: str, model: Path, out: Path) -> dict[str, Any]:
    """Train a policy by PaW on rows that are made up, and return its weights and the log."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from comap.trainers.paw.trainer import make_trainer

    config = with_changes(
        paw.settings(micro_batch_rows=6),
        {"mini_batch_rows": 20, "gradient_checkpointing": True, "save_updates": 1, **PAW[setup]},
    )
    adapters = None
    if config.weights == "lora":
        from peft import LoraConfig

        adapters = LoraConfig(r=3, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    log: list[dict[str, Any]] = []
    torch.manual_seed(0)
    trainer = make_trainer(
        config,
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64),
        AutoTokenizer.from_pretrained(model),
        paw.mine,
        out / "checkpoints",
        updates=UPDATES,
        tell=lambda line: log.append(dict(line)),
        peft_config=adapters,
        device="cpu",
    )
    trainer.fit()
    weights = copies(trained_weights(trainer.model))
    log_lines = [
        {key: value for key, value in line.items() if "seconds" not in key} for line in log
    ]
    return {"weights": {"agent": weights}, "log": log_lines}


class AnsweredTraining(CoEvolution):
    """A training of CoMap whose models are asked nothing: a hash answers in their place."""

    samples = False

    def language_model(self) -> Any:
        return trainings.Answers(self.head.size)


def whole_training(player: Path, out: Path) -> dict[str, Any]:
    """Do a training of CoMap, and return the weights."""
    settings = {
        "weights": "lora",
        "exact": False,
        "p_source": "verbalizer",
        "frozen_transitions": 0,
    }
    config = trainings.small(**settings)
    roles = trainings.opened(config, player, config.roles())
    AnsweredTraining(config, roles, trainings.make_env, trainings.demos_of(3), out).run()
    return {"weights": {role: roles.state(role) for role in roles.names}}


def imitation(player: Path, out: Path) -> dict[str, Any]:
    """Do a training of SFT, in which nothing is sampled, and return the weights."""
    from comap.trainers.baselines import run_class
    from comap.trainers.baselines.config import baseline_preset

    settings = {"train_world_model": True, "epochs": 1, "evaluation_tasks": 0}
    config = baseline_preset("sft", "tiny", precision="float64", **settings)
    roles = trainings.opened(config, player, config.roles())
    run = run_class("sft")(config, roles, trainings.make_env, trainings.demos_of(3), out)
    run.run()
    return {"weights": {role: roles.state(role) for role in roles.names}}


def write(result: dict[str, Any], out: Path) -> None:
    """Write down what came of a training; the first process has it."""
    import torch

    if is_first():
        torch.save(result["weights"], out / "weights.pt")
        (out / "log.json").write_text(json.dumps(result.get("log", [])), "utf-8")
    wait()


def resumed(train: Callable[[Path], dict[str, Any]], out: Path) -> None:
    """Train, and train again from the checkpoint before the last."""
    write(train(out / "whole"), out / "whole")
    if is_first():
        checkpoints = (out / "whole" / "checkpoints").glob("checkpoint-*")
        numbers = sorted(int(path.name.rpartition("-")[2]) for path in checkpoints)
        name = f"checkpoint-{numbers[-2]}"
        shutil.copytree(out / "whole" / "checkpoints" / name, out / "rest" / "checkpoints" / name)
    wait()
    write(train(out / "rest"), out / "rest")


def main(rows_model: str, paw_model: str, player: str, folder: str) -> None:
    """Do all trainings in this process, one after the other."""
    import torch

    torch.set_num_threads(1)
    out = Path(folder)
    for name in ROWS:
        resumed(lambda path, kind=name: on_rows(kind, Path(rows_model), path), out / name)  # type: ignore[misc]
    for name in PAW:
        resumed(lambda path, kind=name: on_episodes(kind, Path(paw_model), path), out / name)  # type: ignore[misc]
    write(imitation(Path(player), out / "sft"), out / "sft")
    write(whole_training(Path(player), out / "comap"), out / "comap")


if __name__ == "__main__":
    main(*sys.argv[1:])
