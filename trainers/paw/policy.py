"""The policy of a PaW training: its weights, its tokenizer, and how it acts while it learns."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agents import Agent
from ...agents.create import create_agent
from ...agents.records import writing
from ...errors import DataCorrupt
from ...lm import LanguageModel
from ...lm.model_sums import write_model_sums
from ...lm.quiet import without_bars
from ..processes import world_size

if TYPE_CHECKING:
    from .config import PaWTraining

__all__ = ["Policy"]

_ADAPTER = "default"  # what peft calls the adapter that a trainer makes
_BATCH_TOKENS = 65_536
_BATCH_ROWS = 256
_BATCH_ROWS_CPU = 32  # no slower a row than more, and prompts of like lengths: a third less time
_WEIGHTS = "model.safetensors"


class Policy:
    """A language model that acts and is trained: see `Policy.open`.

    Attributes:
        model: The model of transformers; with adapters the `PeftModel`, once a trainer has made it.
        tokenizer: Its tokenizer.
        ends: The tokens that end generation.
    """

    def __init__(
        self, config: PaWTraining, model: Any, tokenizer: Any, ends: list[int], server: str | None
    ) -> None:
        self._config, self.model, self.tokenizer, self.ends = config, model, tokenizer, ends
        self._server = server
        self._trainer: Any = None
        self._lm: LanguageModel | None = None

    @classmethod
    def open(
        cls,
        config: PaWTraining,
        model: str | Path,
        *,
        server: str | None = None,
        device: str = "auto",
    ) -> Policy:
        """Load the policy that training begins with.

        Args:
            config: The settings.
            model: A folder, or a name on the hub.
            server: Address of TRL's vLLM server; None samples in this process.
            device: ``auto`` (this process's GPU where there is one) or ``cpu``.

        Raises:
            LanguageModelError: It cannot be loaded.
            MissingExtra: torch or transformers is not installed.
        """
        from ...lm.hf_load import device_of, ends_of, load_model, load_tokenizer, place_of

        place, where = place_of(model), device_of(_own_device(device))
        tokenizer = load_tokenizer(place, None)
        loaded = load_model(place, None, where, _weights_precision(config, where.type))
        return cls(config, loaded, tokenizer, ends_of(loaded), server)

    def agent(self, temperature: float | None = None) -> Agent:
        """Return the agent that acts with the policy.

        Args:
            temperature: Another than that of rollouts.
        """
        settings = self._config.agent_settings(temperature)
        if self._config.agent == "react":
            settings.pop("memory_turns", None)
        return create_agent(self._config.agent, **settings)

    def language_model(self) -> LanguageModel:
        """Return what answers the agent: the weights as they are now, or the server."""
        if self._lm is None:
            self._lm = self._made()
        return self._lm

    def _made(self) -> LanguageModel:
        if self._server is not None:
            from .vllm import ServerLanguageModel

            return ServerLanguageModel(self._server, self.tokenizer, ends=self.ends)
        from ...lm.hf import HFLanguageModel

        return HFLanguageModel.from_model(
            self.model,
            self.tokenizer,
            adapter=_ADAPTER if hasattr(self.model, "peft_config") else None,
            batch_tokens=_BATCH_TOKENS,
            batch_rows=_BATCH_ROWS_CPU if self.model.device.type == "cpu" else _BATCH_ROWS,
            name="policy",
        )

    def synchronise(self) -> None:
        """Give the server, if there is one, the weights as they are now."""
        if self._server is not None:
            lm: Any = self.language_model()
            lm.synchronise(self.model, self._trainer and self._trainer.accelerator)

    def adapters(self) -> Any:
        """Return how adapters are made; None where all weights are trained."""
        config = self._config
        if config.weights == "full":
            return None
        from peft import LoraConfig

        return LoraConfig(
            r=config.lora_r,
            lora_alpha=config.lora_alpha,
            lora_dropout=config.lora_dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )

    def follow(self, trainer: Any) -> None:
        """Act with a trainer's model from now on: the same weights, or adapters on them."""
        self._trainer = trainer
        self.model = trainer.accelerator.unwrap_model(trainer.model)
        self._lm = None

    def load(self, checkpoint: Path) -> None:
        """Take over the weights of a checkpoint, where there is nothing left to train.

        Raises:
            DataCorrupt: It has none, or other ones.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        lora = self._config.weights == "lora"
        files = ("adapter_config.json", "adapter_model.safetensors") if lora else (_WEIGHTS,)
        for name in files:
            if not (checkpoint / name).is_file():
                raise DataCorrupt(
                    f"expected {name} in {checkpoint}, found none; remove that folder to go on from "
                    "an earlier checkpoint"
                )
        try:
            if lora:
                self.model = _adapted(self.model, checkpoint)
            else:
                load_model(self.model, checkpoint / _WEIGHTS)
        except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise DataCorrupt(
                f"expected the weights of this training in {checkpoint}, found others "
                f"({str(error)!r:.200}); remove that folder to go on from an earlier checkpoint"
            ) from error
        self._lm = None

    def save(self, folder: Path) -> None:
        """Write the weights, or the adapters, and the tokenizer into a folder, whole or not at all."""
        draft = folder.with_name(folder.name + ".part")
        shutil.rmtree(draft, ignore_errors=True)
        with writing(folder.parent):
            with without_bars():
                self.model.save_pretrained(draft)
            self.tokenizer.save_pretrained(draft)
            write_model_sums(draft)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)


def _adapted(model: Any, checkpoint: Path) -> Any:
    """Return a model with the adapter of a checkpoint; peft only warns where that is another's."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    with safe_open(checkpoint / "adapter_model.safetensors", "pt") as file:
        found = set(file.keys())
    made = PeftModel.from_pretrained(model, checkpoint)
    wanted = set(get_peft_model_state_dict(made))
    if found != wanted:
        raise ValueError(
            f"{len(found & wanted)} of {len(wanted)} weights, and {len(found - wanted)} more"
        )
    return made


def _own_device(device: str) -> str:
    """Return the device of this process: each of several has a GPU of its own."""
    if device != "auto" or world_size() == 1:
        return device
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def _weights_precision(config: PaWTraining, device: str) -> str:
    """Return the precision of weights: that of what is trained is single at least."""
    if config.precision == "float64":
        return "float64"
    half = config.precision == "bfloat16" or (config.precision == "auto" and device == "cuda")
    return "bfloat16" if half and config.weights == "lora" else "float32"
