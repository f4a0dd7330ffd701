"""LoRA adapters on one frozen model, chosen by name for each request.

Adapters are read from safe tensors only, and only those that leave the model beneath as it is: with
all adapters off, the model answers as if there were none (Hu et al., LoRA, ICLR 2022).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LanguageModelError, MissingExtra, OptionError, suggest
from .model_sums import check_model

__all__ = ["Adapters"]


class Adapters:
    """The adapters of a model.

    Attributes:
        base: The model beneath, which adapters are built into.
        model: The `PeftModel` around it once there is an adapter, else the model itself; trainers
            use it.

    Args:
        model: A model of the transformers library, or a `PeftModel` around one.
    """

    def __init__(self, model: Any) -> None:
        wrapped = hasattr(model, "peft_config") and hasattr(model, "get_base_model")
        self.model = model
        self.base = model.get_base_model() if wrapped else model
        self._wrapped = wrapped

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters there are, sorted."""
        return tuple(sorted(self.model.peft_config)) if self._wrapped else ()

    def check(self, name: str | None) -> None:
        """Raise a `LanguageModelError` unless there is such an adapter; None is the bare model."""
        if name is not None and name not in self.names:
            known = f"; {suggest(str(name), self.names)}" if self.names else ""
            listed = ", ".join(self.names) or "none"
            raise LanguageModelError(
                f"expected the name of an adapter, found {name!r}; there are: {listed}{known}"
            )

    def load(self, name: str, directory: str | Path) -> None:
        """Load an adapter that peft saved.

        Raises:
            LanguageModelError: It cannot be loaded, or would change the model beneath.
            OptionError: The name cannot be used.
        """
        folder = Path(directory).expanduser()
        config, weights = _read(folder)
        config.inference_mode = True
        self.create(name, config)
        try:
            self._fill(name, weights)
        except Exception as error:
            self._remove(name)
            line = (str(error).strip().splitlines() or [""])[0][:200]
            raise LanguageModelError(
                f"the adapter {folder.name!r} does not fit this model ({line}); give one that was "
                "trained on it"
            ) from error

    def create(self, name: str, config: Any) -> None:
        """Build in a new adapter, whose effect is nothing until it is trained.

        Args:
            name: Letters, digits, ``_`` and ``-``.
            config: A `peft.LoraConfig`; unless its `inference_mode` is set, the adapter can be
                trained.

        Raises:
            LanguageModelError: It would change the model beneath, or does not fit it.
            OptionError: The name cannot be used.
        """
        try:
            from peft import get_peft_model
        except ImportError as error:
            raise MissingExtra.of("train", "a LoRA adapter") from error
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in self.names:
            raise OptionError(
                f"an adapter's name must be new, of letters, digits, _ and -, not {name!r}"
            )
        _check_config(config)
        try:
            if self._wrapped:
                self.model.add_adapter(name, config)
            else:
                self.model = get_peft_model(self.base, config, adapter_name=name)
                self._wrapped = True
        except (ValueError, TypeError, KeyError) as error:
            line = (str(error).strip().splitlines() or [""])[0][:200]
            raise LanguageModelError(
                f"the adapter {name!r} does not fit this model: {line}"
            ) from error

    @contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Switch an adapter on, or all off for None, and put everything back afterwards.

        Which adapter was active before, and which weights a trainer has declared trainable, is the
        same afterwards.
        """
        restore = []
        try:
            for layer in self._layers():
                if not _is_set(layer, name):
                    restore.append((layer, _state(layer)))
                    _set(layer, name)
            yield
        finally:
            for layer, state in restore:
                _put_back(layer, *state)

    def _layers(self) -> list[Any]:
        if not self._wrapped:
            return []
        from peft.tuners.tuners_utils import BaseTunerLayer

        return [module for module in self.base.modules() if isinstance(module, BaseTunerLayer)]

    def _fill(self, name: str, weights: dict[str, Any]) -> None:
        from peft import set_peft_model_state_dict

        report: Any = set_peft_model_state_dict(self.model, weights, adapter_name=name)
        missing = [key for key in report.missing_keys if f".{name}." in key and "lora_" in key]
        unknown = list(report.unexpected_keys)
        if missing or unknown:
            raise LanguageModelError(
                f"{len(missing)} of its weights are missing and {len(unknown)} have no place"
            )
        for key, weight in self.base.named_parameters():
            if f".{name}." in key:
                weight.requires_grad_(False)

    def _remove(self, name: str) -> None:
        if self.names == (name,):
            self.base = self.model = self.model.unload()
            self._wrapped = False
        else:
            self.model.delete_adapter(name)


def _read(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the config and the weights in an adapter's folder."""
    try:
        from peft import PeftConfig
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtra.of("train", "a LoRA adapter") from error
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise LanguageModelError(
                f"expected {name} in the adapter folder {str(folder)!r}, found none; give the folder "
                "that peft's save_pretrained wrote (pickled weights are not loaded)"
            )
    check_model(folder)
    try:
        config = PeftConfig.from_pretrained(str(folder))
        return config, load_file(folder / "adapter_model.safetensors")
    except Exception as error:  # the libraries raise many kinds for files that are not as expected
        line = (str(error).strip().splitlines() or [""])[0][:200]
        raise LanguageModelError(
            f"the adapter {folder.name!r} cannot be loaded ({type(error).__name__}: {line}); its "
            "files may be damaged: save or download it again"
        ) from error


def _check_config(config: Any) -> None:
    """Refuse adapters that change the model beneath, which would change all other answers."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    found = []
    if kind != "LORA":
        found.append(f"peft_type {kind}")
    elif config.bias != "none":
        found.append(f"bias {config.bias!r}")
    elif config.init_lora_weights not in (True, False, "gaussian", "orthogonal"):
        found.append(f"init_lora_weights {config.init_lora_weights!r}")
    for name in ("modules_to_save", "trainable_token_indices", "layer_replication"):
        if getattr(config, name, None):
            found.append(name)
    if found:
        raise LanguageModelError(
            f"expected a LoRA adapter that leaves the model beneath as it is, found one with "
            f"{', '.join(found)}; train one without"
        )


def _is_set(layer: Any, name: str | None) -> bool:
    if name is None:
        return bool(layer.disable_adapters)
    return not layer.disable_adapters and list(layer.active_adapters) == [name]


def _state(layer: Any) -> tuple[list[str], bool, list[tuple[Any, bool]]]:
    flags = [(weight, weight.requires_grad) for weight in layer.parameters()]
    return list(layer.active_adapters), bool(layer.disable_adapters), flags


def _set(layer: Any, name: str | None) -> None:
    if name is None:
        layer.enable_adapters(False)
        return
    if layer.disable_adapters:
        layer.enable_adapters(True)
    layer.set_adapter([name], inference_mode=True)


def _put_back(layer: Any, active: list[str], off: bool, flags: list[tuple[Any, bool]]) -> None:
    if layer.disable_adapters:
        layer.enable_adapters(True)
    layer.set_adapter(active)
    if off:
        layer.enable_adapters(False)
    for weight, flag in flags:
        weight.requires_grad_(flag)
