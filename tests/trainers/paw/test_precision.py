"""The first policy and PPO's critic compute with what the policy computes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from comap.trainers.paw.trainer import make_trainer  # noqa: E402
from kits.paw import settings, some_rows, trained  # noqa: E402

PRECISIONS = ("float32", "float64", "bfloat16")


def dtype_of(precision: str) -> Any:
    return torch.float64 if precision == "float64" else torch.float32


@pytest.mark.parametrize("mini_batch_rows", [None, 12])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_policy_is_not_apart_from_itself(
    precision: str, mini_batch_rows: int | None, model: Path, tmp_path: Path
) -> None:
    """No weight has moved in the first mini-batch: KL is 0, not nearly 0."""
    config = settings(
        precision=precision,
        kl=0.01,
        save_updates=0,
        mini_batch_rows=mini_batch_rows,
        micro_batch_rows=5,
        learning_rate=1e-30 if mini_batch_rows else 1e-3,
    )
    trainer, (line,), _ = trained(config, model, tmp_path, dtype=dtype_of(precision))
    assert line["kl"] == 0.0
    assert trainer.ref_model is not None and line["wm_rows"] > 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_adapters_are_not_apart_from_the_model_beneath(
    precision: str, model: Path, tmp_path: Path
) -> None:
    config = settings(precision=precision, kl=0.01, save_updates=0)
    log: list[Any] = []
    trainer = make_trainer(
        config,
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype_of(precision)),
        AutoTokenizer.from_pretrained(model),
        some_rows,
        tmp_path,
        updates=2,
        tell=lambda line: log.append(dict(line)),
        peft_config=LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1),
        device="cpu",
    )
    trainer.fit()
    assert log[0]["kl"] == 0.0 and log[1]["kl"] > 0.0


def test_the_first_policy_and_the_critic_compute_in_half_precision(
    model: Path, tmp_path: Path
) -> None:
    """Layers of all three give the same type, where the weights of all are in single precision."""
    config = settings(precision="bfloat16", kl=0.01, algorithm="ppo", paw=False, save_updates=0)
    trainer, (line,), _ = trained(config, model, tmp_path)
    dtypes: dict[str, set[Any]] = {}
    models = {"policy": trainer.model, "first": trainer.ref_model, "critic": trainer.critic}
    for name, model_of_update in models.items():
        dtypes[name] = set()
        modules = model_of_update.named_modules()
        layers = [module for path, module in modules if path.endswith("q_proj")]
        assert layers and all(layer.weight.dtype == torch.float32 for layer in layers)
        for layer in layers:
            layer.register_forward_hook(
                lambda module, inputs, output, name=name: dtypes[name].add(output.dtype)
            )
    trainer.training_step(trainer.model, None)
    assert dtypes == {name: {torch.bfloat16} for name in models}
    assert line["value_loss"] > 0
