"""Loading models of the transformers library: safe tensors only, no code from a model's folder.

A folder on this machine is never looked up on the network; a name that is no folder is a model of
the Hugging Face hub.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LanguageModelError, MissingExtra, OptionError
from .model_sums import check_model
from .quiet import without_bars

__all__ = [
    "DTYPES",
    "check_usable",
    "context_of",
    "device_of",
    "ends_of",
    "load_model",
    "load_tokenizer",
    "place_of",
]

DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
"""What a model may compute with; ``auto`` is explained at `load_model`."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LAYERS = {"full_attention", "sliding_attention"}


def place_of(model: str | Path) -> str | Path:
    """Return the folder of a model, or its name on the hub.

    Raises:
        LanguageModelError: It is neither, or the folder holds no model that is safe to load.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return folder
    if isinstance(model, Path) or folder.is_absolute() or not _HUB_NAME.fullmatch(model):
        raise LanguageModelError(
            f"expected a folder with a model, found none at {str(model)!r}; give the folder that "
            "save_pretrained wrote, or the name of a model on the hub (Qwen/Qwen3-4B)"
        )
    return model


def _check_folder(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    if "config.json" not in names:
        hint = "give the folder that save_pretrained wrote"
        if "adapter_config.json" in names:
            hint = "this is an adapter: give its base model here and the adapter in adapters={...}"
        raise LanguageModelError(f"expected config.json in {str(folder)!r}, found none; {hint}")
    if not any(name.endswith(".safetensors") for name in names):
        pickled = [name for name in names if name.endswith(_PICKLED)]
        found = f"only pickled ones ({', '.join(pickled[:3])})" if pickled else "none"
        raise LanguageModelError(
            f"expected weights as .safetensors in {str(folder)!r}, found {found}; save the model "
            "again with a recent transformers (save_pretrained), which writes model.safetensors"
        )
    if "model.safetensors.index.json" in names:
        _check_index(folder / "model.safetensors.index.json")


def _check_index(path: Path) -> None:
    """Refuse an index of weights that leads out of its folder or to other files."""
    try:
        files = set(json.loads(path.read_text("utf-8"))["weight_map"].values())
        wrong = [name for name in files if not re.fullmatch(r"[\w.-]+\.safetensors", name)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LanguageModelError(
            f"{path.name} is no index of weights; download it again"
        ) from error
    if wrong:
        raise LanguageModelError(
            f"expected names of .safetensors files in {path.name}, found {wrong[0]!r:.80}; do not "
            "use this model"
        )


def device_of(device: str) -> Any:
    """Return the torch device of this name; ``auto`` is the GPU where there is one.

    Raises:
        OptionError: There is no such device.
        MissingExtra: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("train", "a Hugging Face model") from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except Exception as error:  # torch raises several kinds, some of them only asserts
        raise OptionError(
            f"device must be auto, cpu, cuda or cuda:N, one that this machine has, not {device!r}"
        ) from error
    return found


def load_tokenizer(place: str | Path, revision: str | None) -> Any:
    """Return the tokenizer of a model.

    Raises:
        LanguageModelError: It cannot be loaded, or a file was changed since comap saved it.
        MissingExtra: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtra.of("train", "a Hugging Face model") from error
    if isinstance(place, Path):
        check_model(place, weights=False)
    with _explained(place, "the tokenizer"):
        return AutoTokenizer.from_pretrained(
            place,
            revision=revision,
            trust_remote_code=False,
            local_files_only=isinstance(place, Path),
        )


def load_model(place: str | Path, revision: str | None, device: Any, dtype: str) -> Any:
    """Return a model, ready to answer.

    Args:
        place: Its folder, or its name on the hub.
        revision: Which version of it on the hub.
        device: Where it shall be.
        dtype: One of `DTYPES`. ``auto`` is float64 where the model's own config says so, as tiny
            models do so that an answer does not depend on its batch; else bfloat16 on a GPU and
            float32 on a CPU.

    Raises:
        LanguageModelError: It cannot be loaded, is not complete, was changed since comap saved it, or
            is of a kind that cannot be used here.
        OptionError: `dtype` is not one of those.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if isinstance(place, Path):
        check_model(place)
    source: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": False,
        "local_files_only": isinstance(place, Path),
    }
    with _explained(place, "the model"), without_bars():
        config = AutoConfig.from_pretrained(place, **source)
        context_of(config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place,
            config=config,
            dtype=_dtype_of(dtype, config, device),
            use_safetensors=True,
            output_loading_info=True,
            **source,
        )
        model, report = loaded
        _check_complete(report)
        return model.to(device).eval()


def _dtype_of(dtype: str, config: Any, device: Any) -> Any:
    import torch

    if dtype != "auto":
        return getattr(torch, dtype)
    if str(getattr(config, "dtype", None)).endswith("float64"):
        return torch.float64
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _check_complete(report: dict[str, Any]) -> None:
    """Refuse a model some of whose weights would be random numbers."""
    missing = sorted(report.get("missing_keys") or ())
    missing += sorted(str(entry[0]) for entry in report.get("mismatched_keys") or ())
    if missing:
        raise LanguageModelError(
            f"its files lack {len(missing)} of its weights, or have them in another shape "
            f"({missing[0]}); download or save the model again"
        )


@contextmanager
def _explained(place: str | Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong while loading into one line that says what to do."""
    name = place.name if isinstance(place, Path) else place
    try:
        yield
    except LanguageModelError as error:
        raise LanguageModelError(f"{name}: {error}") from error
    except Exception as error:  # the libraries raise many kinds for files that are not as expected
        line = (str(error).strip().splitlines() or [""])[0][:200]
        advice = "its files may be damaged or of another version; save or download it again"
        if not isinstance(place, Path):
            advice = "check the name and the network, or give a folder on this machine"
        raise LanguageModelError(
            f"{what} of {name!r} cannot be loaded ({type(error).__name__}: {line}); {advice}"
        ) from error


def context_of(config: Any) -> int | None:
    """Return the longest sequence that a model can read, in tokens; None if there is no limit.

    Where layers see only a window of the last tokens, the window is the limit: the masks of this
    backend are those of full attention, which are the same up to there.

    Raises:
        LanguageModelError: The model is of a kind whose past is not a list of keys and values.
    """
    inner = config.get_text_config(decoder=True)
    kinds = set(getattr(inner, "layer_types", None) or ())
    if kinds - _LAYERS or not hasattr(inner, "num_hidden_layers"):
        raise _unusable(inner)
    limits = [getattr(inner, "max_position_embeddings", None)]
    if "sliding_attention" in kinds or not kinds:
        limits.append(getattr(inner, "sliding_window", None))
    known = [int(limit) for limit in limits if limit]
    return min(known) if known else None


def _unusable(config: Any) -> LanguageModelError:
    return LanguageModelError(
        "expected a model with attention in all layers that is told positions, found "
        f"{config.model_type!r}; use Qwen3, Llama or their like, or serve this one and use the "
        "OpenAI backend"
    )


def check_usable(tokenizer: Any, model: Any) -> None:
    """Raise a `LanguageModelError` if this backend cannot use a model with this tokenizer."""
    takes = inspect.signature(model.forward).parameters
    if model._is_stateful or not {"position_ids", "logits_to_keep"} <= set(takes):
        raise _unusable(model.config)
    highest = max(tokenizer.get_vocab().values(), default=-1)
    known = model.get_input_embeddings().weight.shape[0]
    if highest >= known:
        raise LanguageModelError(
            f"expected token ids below {known:,}, the model's vocabulary, found {highest:,} in its "
            "tokenizer; use the model's own tokenizer, or resize its embedding and train that"
        )


def ends_of(model: Any) -> list[int]:
    """Return the tokens that end a text according to a model's generation config."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        return []
    return [int(found)] if isinstance(found, int) else [int(token) for token in found]
