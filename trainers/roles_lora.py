"""Roles as LoRA adapters of one frozen model (Hu et al., LoRA, ICLR 2022)."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra, OptionError, suggest
from ..lm import LanguageModel
from ..lm.adapters import Adapters
from ..lm.hf import HFLanguageModel
from ..lm.hf_load import device_of, load_model, load_tokenizer, place_of
from ..lm.model_sums import write_model_sums
from .roles import Roles
from .roles_checks import student_of
from .roles_full import in_double, name_of, training_dtype

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PROJECTIONS", "LoraRoles"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers that ``"all-linear"`` names (METHODS.md 1.5)."""

_DEFAULTS: dict[str, Any] = {"r": 8, "alpha": 16, "dropout": 0.05, "targets": "all-linear"}


class LoraRoles(Roles):
    """All roles are adapters of one model, which is frozen; made by `Roles.open`."""

    kind = "lora"

    def __init__(
        self, names: Sequence[str], place: str | Path, tokenizer: Any, adapters: Adapters
    ) -> None:
        super().__init__(names, name_of(place), tokenizer)
        self._adapters = adapters
        self._on_hub = place if isinstance(place, str) else None
        self._own: dict[str, dict[str, Tensor]] = {role: {} for role in self.names}
        for key, weight in adapters.base.named_parameters():
            weight.requires_grad_(False)
            found = re.fullmatch(r"(.+\.lora_[A-Za-z_]+)\.([A-Za-z0-9_-]+)(\.weight)?", key)
            if found is not None:
                self._own[found[2]][found[1] + (found[3] or "")] = weight

    @classmethod
    def load_models(
        cls,
        model: str | Path,
        names: Sequence[str],
        lora: Mapping[str, Any] | None,
        dtype: str,
        device: str,
        seed: int,
        folders: Mapping[str, Path],
    ) -> LoraRoles:
        """Load the model, and load or make the adapters: see `Roles.open`."""
        wanted = _options(lora)
        where, place = device_of(device), place_of(model)
        tokenizer = load_tokenizer(place, None)
        adapters = Adapters(load_model(place, None, where, training_dtype(dtype, "lora", where)))
        new = []
        for role in sorted(names, key=lambda role: student_of(role) is not None):
            if role in folders:
                adapters.load(role, folders[role])
                if lora is not None:
                    _check_same(role, wanted, adapters.model.peft_config[role])
            else:
                _create(adapters, role, wanted)
                new.append(role)
        adapters.model.eval()
        made = cls(names, place, tokenizer, adapters)
        for role in new:
            student = student_of(role)
            if student is None:
                _begin(made.parameters(role), f"{seed}/{role}")
            else:
                made.copy(student, role)
        for role in names:
            adapters.model.peft_config[role].inference_mode = False
        adapters.model.set_adapter(names[0], inference_mode=True)
        return made

    def module(self, role: str) -> Any:
        """Return the `PeftModel`, which all roles share."""
        self.check(role)
        return self._adapters.model

    def base(self, role: str) -> Any:
        """Return the transformers model beneath the adapters, which all roles share."""
        self.check(role)
        return self._adapters.base

    def parameters(self, role: str) -> dict[str, Tensor]:
        """Return the adapter's weights; the adapter's name is not in theirs."""
        self.check(role)
        return dict(self._own[role])

    def train_only(self, role: str) -> None:
        """Switch the role's adapter on and let exactly its weights be trained."""
        self._refuse_teacher(role)
        self._adapters.model.set_adapter(role, inference_mode=True)
        own = {id(weight) for weight in self._own[role].values()}
        for weight in self._adapters.model.parameters():
            weight.requires_grad_(id(weight) in own)

    def language_model(
        self, *, exact: bool = False, batch_tokens: int = 16_384, batch_rows: int = 64
    ) -> LanguageModel:
        """Return a language model that answers each request by the adapter that it names."""
        return HFLanguageModel.from_model(
            self._in_double() if exact else self._adapters.model,
            self.tokenizer,
            adapter=self.names[0],
            batch_tokens=batch_tokens,
            batch_rows=batch_rows,
            name=self.name,
        )

    def _in_double(self) -> Any:
        """Return copies of the model and of all adapters in double precision."""
        base, configs = self._adapters.base, self._adapters.model.peft_config

        def add_adapters(model: Any) -> Any:
            made = Adapters(model)
            for role in self.names:
                made.create(role, copy.deepcopy(configs[role]))
            return made.model

        return in_double(base, add_adapters)

    def _switch(self, role: str) -> Iterator[None]:
        model = self._adapters.model
        before = model.active_adapter
        try:
            with self._adapters.using(role):
                yield
        finally:
            if model.active_adapter != before:
                model.set_adapter(before, inference_mode=True)

    def _write(self, role: str, folder: Path) -> None:
        """Write an adapter as peft does, without the machine's paths and the order of its sets."""
        from safetensors.torch import save_file

        folder.mkdir()
        config = self._adapters.model.peft_config[role].to_dict()
        config |= {"inference_mode": True, "base_model_name_or_path": self._on_hub}
        config = {key: sorted(v) if isinstance(v, set) else v for key, v in config.items()}
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (folder / "adapter_config.json").write_text(text, "utf-8")
        weights = {f"base_model.model.{key}": value for key, value in self.state(role).items()}
        save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
        write_model_sums(folder)


def _options(lora: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all options of adapters, checked."""
    given = dict(lora or {})
    for key in given:
        if key not in _DEFAULTS:
            raise OptionError(f"there is no LoRA option {key!r}; {suggest(str(key), _DEFAULTS)}")
    found = _DEFAULTS | given
    if type(found["r"]) is not int or found["r"] < 1:
        raise OptionError(f"LoRA's r must be a whole number of at least 1, not {found['r']!r}")
    if type(found["alpha"]) not in (int, float) or not found["alpha"] > 0:
        raise OptionError(f"LoRA's alpha must be above 0, not {found['alpha']!r}")
    if type(found["dropout"]) not in (int, float) or not 0 <= found["dropout"] < 1:
        raise OptionError(
            f"LoRA's dropout must be at least 0 and below 1, not {found['dropout']!r}"
        )
    targets = PROJECTIONS if found["targets"] == "all-linear" else found["targets"]
    if isinstance(targets, str) or not targets or not all(isinstance(t, str) for t in targets):
        raise OptionError(
            f"LoRA's targets must be 'all-linear' or names of layers, not {found['targets']!r}"
        )
    return found | {"targets": sorted(targets)}


def _create(adapters: Adapters, role: str, wanted: Mapping[str, Any]) -> None:
    """Build in a new adapter; torch's own random numbers are as before."""
    try:
        import torch
        from peft import LoraConfig
    except ImportError as error:
        raise MissingExtra.of("train", "a LoRA adapter") from error
    student = student_of(role)
    if student is not None:
        config = copy.deepcopy(adapters.model.peft_config[student])
    else:
        config = LoraConfig(
            r=wanted["r"],
            lora_alpha=wanted["alpha"],
            lora_dropout=wanted["dropout"],
            target_modules=list(wanted["targets"]),
            bias="none",
            task_type="CAUSAL_LM",
        )
    device = adapters.base.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        adapters.create(role, config)


def _begin(own: Mapping[str, Tensor], seed: str) -> None:
    """Give a new adapter its first weights: A as peft draws it, evenly within 1/sqrt(width); B is 0.

    They are drawn on the CPU in single precision by a generator of their own, so that they are the
    same on every device and whatever was drawn before.
    """
    import torch

    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for name, weight in own.items():
            if ".lora_A" not in name:
                weight.zero_()
                continue
            drawn = torch.empty(weight.shape, dtype=torch.float32)
            width = weight.shape[1] ** -0.5
            weight.copy_(drawn.uniform_(-width, width, generator=generator))


def _check_same(role: str, wanted: Mapping[str, Any], config: Any) -> None:
    """Refuse an adapter that was saved with other settings than those asked for."""
    found = {
        "r": config.r,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout,
        "targets": sorted(config.target_modules or ()),
    }
    for key, value in found.items():
        if value != wanted[key]:
            raise OptionError(
                f"expected the saved adapter {role!r} to have the LoRA option {key}={wanted[key]!r}, "
                f"found {value!r}; give the same options, or lora=None to take those saved"
            )
