"""Measures updates of one trainer with PaW by turns on and off. Importing it imports torch and TRL."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ..trainers.paw.config import PaWTraining
from ..trainers.paw.policy import Policy
from ..trainers.paw.rows import PaWRow
from ..trainers.paw.scoring import Entropies, Scorer
from ..trainers.paw.trainer import make_trainer
from ..trainers.paw.update import Update

__all__ = ["Turns", "random_model"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def random_model(shape: Mapping[str, Any] | None, folder: Path, device: Any, seed: int = 0) -> Path:
    """Save a model with random weights, with a tokenizer, and return its folder.

    Args:
        shape: What transformers' ``Qwen2Config`` is told; None for a tiny model of comap's.
        folder: Where to save it; the trainer's reference model is read from there.
        device: The torch device on which weights are drawn.
        seed: Seed of the weights.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ..agents.corpus import corpus
    from ..lm.tiny import build_tiny, tokenizer_of

    texts = corpus(episodes=8)
    if shape is None:
        return build_tiny(folder, texts, seed=seed)
    tokenizer = tokenizer_of(texts)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        with torch.device(device):
            model = Qwen2ForCausalLM(Qwen2Config(**shape, **ends, bos_token_id=None))
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Turns:
    """A trainer whose every update has the same rows, with PaW by turns on and off.

    Args:
        config: The settings, with PaW.
        model: Folder of the model.
        rows: The rows.
        plan: Whether PaW is on, for each update.
        device: ``auto``, ``cpu`` or ``cuda``.

    Attributes:
        found: What was measured of each update.
        parameters: Number of the model's parameters.
        kind: ``cpu`` or ``cuda``.
    """

    def __init__(
        self,
        config: PaWTraining,
        model: Path,
        rows: Sequence[PaWRow],
        plan: Sequence[bool],
        device: str,
    ) -> None:
        policy = Policy.open(config, model, device=device)
        self.parameters = sum(weight.numel() for weight in policy.model.parameters())
        self._configs = {on: replace(config, paw=on) for on in (False, True)}
        self._rows, self._plan = rows, plan
        self.found: list[dict[str, Any]] = []
        self._clocks = [(0.0, 0.0), (0.0, 0.0)]
        self._peak: int | None = None
        self._trainer = make_trainer(
            config,
            policy.model,
            policy.tokenizer,
            self._begin,
            model / "checkpoints",
            updates=len(plan),
            tell=self._keep,
            device=device,
        )
        self._device = self._trainer.args.device
        self.kind = str(self._device.type)
        self._trainer.add_callback(_AtTheEnd(self))

    def measure(self, tell: Any) -> None:
        """Do all updates.

        Args:
            tell: Told after each what was measured of it.
        """
        self._tell = tell
        self._trainer.fit()

    def _begin(self, number: int) -> Sequence[PaWRow]:
        """Switch PaW on or off for an update, and return its rows."""
        config = self._configs[self._plan[number]]
        self._trainer.config = config
        self._trainer.scorer = _Scorer(self._trainer, config)
        self.wait()
        self._reset_peak()
        self._clocks[0] = _now()
        return self._rows

    def end(self) -> None:
        """Note when an update has ended, the last step of the optimizer included."""
        self.wait()
        self._clocks[1] = _now()
        self._peak = self._peak_bytes()

    def _keep(self, told: Mapping[str, Any]) -> None:
        whole, cpu = (end - begin for begin, end in zip(*self._clocks, strict=True))
        before = told["seconds_old_logps"] + told["seconds_advantages"]
        line = {
            "paw": self._plan[told["update"] - 1],
            "old_logps": told["seconds_old_logps"],
            "advantages": told["seconds_advantages"],
            "update": whole - before,
            "all": whole,
            "cpu": cpu,
            "peak_bytes": self._peak,
            "observations_read": int(told.get("wm_rows") or 0),
        }
        self.found.append(line)
        self._tell(line)

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self._device)

    def _reset_peak(self) -> None:
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif _CLEAR.exists():
            _CLEAR.write_text("5", "ascii")  # Linux then forgets the peak of this process

    def _peak_bytes(self) -> int | None:
        """Return the most memory that was in use since: tensors on a GPU, else the whole process."""
        if self.kind == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if not _CLEAR.exists():
            return None
        lines = _STATUS.read_text("ascii", "replace").splitlines()
        told = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
        return None if told is None else 1024 * int(told)


def _now() -> tuple[float, float]:
    """Return the time, and the CPU time of this process, in seconds."""
    return time.perf_counter(), time.process_time()


class _Scorer(Scorer):
    """A scorer that waits for the device, so that each phase is charged with its own work."""

    def score(self, update: Update) -> Entropies:
        found = super().score(update)
        if self._trainer.args.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.args.device)
        return found


class _AtTheEnd(TrainerCallback):  # type: ignore[misc]
    """Tells when an update has ended."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._turns.end()
