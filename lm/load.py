"""Loading models of the transformers library and LoRA adapters: safe tensors only, no code of theirs."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import LanguageModelError, OptionError, check_choice, needs_extra, suggest

DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
"""What a model may compute with; ``auto`` is explained at `HFLanguageModel`."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")  # loading them may run code
_WRITES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How the names of classes end whose models write text."""
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    "tokenizer_config.json",
)
_JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
_POINTER = b"version "  # begins what Git LFS leaves where it has not fetched a file
_LONGEST_HEADER = 100_000_000  # bytes of a file of safe tensors
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_LAYERS = {"full_attention", "sliding_attention"}  # not linear attention: it has no keys to cut


def imported(module: str, purpose: str) -> Any:
    """Return a module of the extra ``train``, or say for what it is needed."""
    with needs_extra("train", purpose):
        return importlib.import_module(module)


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no progress bars of the transformers library, and bring them back afterwards."""
    from transformers.utils import logging

    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()


def source_of(model: str | Path) -> str | Path:
    """Return the folder of a model, or its name on the hub."""
    if not isinstance(model, str | Path):
        raise OptionError(
            f"expected a folder or a name on the hub, found {type(model).__name__}; for a model in memory: "
            "HFLanguageModel.from_model(model, tokenizer)"
        )
    folder = Path(model).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return folder

    # What cannot be a name on the hub was meant as a folder: the hub is not asked for it.
    if isinstance(model, Path) or folder.exists() or not _HUB_NAME.fullmatch(model):
        what_is_there = (
            f"a file at {str(model)!r}" if folder.is_file() else f"none at {str(model)!r}"
        )
        suggestion = "" if folder.exists() else suggest(folder.name, _models_beside(folder))
        hint = f"{suggestion} or " if suggestion.startswith("did you mean") else ""
        raise LanguageModelError(
            f"expected a folder with a model, found {what_is_there}; {hint}give the folder that "
            "save_pretrained wrote, or the name of a model on the hub (Qwen/Qwen3-4B)"
        )
    return model


def _models_beside(folder: Path) -> list[str]:
    """Return the names of folders with models where one was looked for."""
    try:
        return sorted(path.parent.name for path in folder.parent.glob("*/config.json"))
    except OSError:
        return []


def _check_folder(folder: Path) -> None:
    """Refuse a folder that is no whole model, before a library reads it and explains it badly."""
    names = sorted(path.name for path in folder.iterdir())
    if "config.json" not in names:
        hint = "give the folder that save_pretrained wrote"
        if "adapter_config.json" in names:
            hint = (
                "this is an adapter: give its base model as the model, and the adapter with it "
                f"(--adapter NAME={folder.name}, in Python adapters={{NAME: folder}})"
            )
        raise LanguageModelError(f"expected config.json in {str(folder)!r}, found none; {hint}")

    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        instead = _other_weights(names)
        raise LanguageModelError(
            f"expected weights as .safetensors in {str(folder)!r}, found {instead.description}; "
            f"{instead.hint}"
        )

    index = folder / "model.safetensors.index.json"
    if index.name in names:
        with _explained(folder, "the index of the weights"):
            shards = json.loads(index.read_text("utf-8"))["weight_map"].values()
            wrong_names = [
                name for name in shards if not re.fullmatch(r"[\w.-]+\.safetensors", name)
            ]
            if wrong_names:  # another folder, or pickles
                raise ValueError(
                    f"expected names of .safetensors files, found {wrong_names[0]!r:.80}"
                )

        # The index names all parts: those that are there say nothing of one that is missing.
        weights = sorted({*shards})

    for name in weights:
        _check_weights(folder / name)


class _OtherWeights(NamedTuple):
    """What a folder has instead of weights as safe tensors, and what to do about it."""

    description: str
    hint: str


def _other_weights(names: Sequence[str]) -> _OtherWeights:
    downloading = [name for name in names if name.endswith((".incomplete", ".part"))]
    pickled = [name for name in names if name.endswith(_PICKLED)]
    gguf = [name for name in names if name.endswith(".gguf")]
    if downloading:
        return _OtherWeights(
            f"a download that has not ended ({downloading[0]})", "download the model again"
        )
    if gguf:
        return _OtherWeights(
            f"GGUF ({gguf[0]})",
            "serve it (llama-server) and give the server's address, or take the original model",
        )

    save_again = (
        "save the model again with a recent transformers (save_pretrained), which writes "
        "model.safetensors"
    )
    if pickled:
        return _OtherWeights(f"only pickled ones ({', '.join(pickled[:3])})", save_again)
    return _OtherWeights("none", f"download the model again, or {save_again}")


def _check_weights(path: Path) -> None:
    """Refuse a file of weights that is not whole, which libraries explain badly."""
    remedy = "download the model again"
    if not path.is_file():
        raise LanguageModelError(
            f"expected the weights {path.name} in {str(path.parent)!r}, found no such file; {remedy}"
        )

    # A file of safe tensors: eight bytes with the length of the header, the header as JSON, the values.
    with path.open("rb") as file:
        start = file.read(8)
        if start == _POINTER:
            raise LanguageModelError(
                f"expected weights in {str(path)!r}, found a pointer of Git LFS; run: git lfs pull"
            )
        try:
            length = int.from_bytes(start, "little")
            if length >= _LONGEST_HEADER:
                return
            header = json.loads(file.read(length))
            tensors = [entry for name, entry in header.items() if name != "__metadata__"]
            ends = [tensor["data_offsets"][1] for tensor in tensors]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return  # the library says what it is

    expected_size = 8 + length + max(ends, default=0)
    if path.stat().st_size < expected_size:
        raise LanguageModelError(
            f"expected {expected_size:,} bytes of weights in {str(path)!r}, found {path.stat().st_size:,}: "
            f"the file is damaged, it was cut off; {remedy}"
        )


def device_of(device: str) -> Any:
    """Return the torch device of this name; ``auto`` is the GPU where there is one."""
    torch = imported("torch", "a Hugging Face model")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"

    # Only memory on it shows that this machine has it: a name alone is always accepted.
    try:
        torch_device = torch.device(device)
        torch.empty(0, device=torch_device)
    except Exception as error:  # torch raises several kinds, some of them only asserts
        raise OptionError(
            f"device must be auto, cpu, cuda or cuda:N, one that this machine has, not {device!r}"
        ) from error
    return torch_device


def load_tokenizer(source: str | Path, revision: str | None) -> Any:
    transformers = imported("transformers", "a Hugging Face model")
    if isinstance(source, Path):
        _check_tokenizer(source)
    with _explained(source, "the tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(source, **_options(source, revision))


def _check_tokenizer(folder: Path) -> None:
    """Refuse a folder without a tokenizer, or with a file of JSON that is none."""
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise LanguageModelError(
            f"expected a tokenizer in {str(folder)!r} ({_TOKENIZERS[0]}), found none; download the "
            "model again, or save its tokenizer there (save_pretrained)"
        )
    for name in _JSON_FILES:
        path = folder / name
        try:
            if path.is_file():
                json.loads(path.read_text("utf-8"))
        except (ValueError, RecursionError) as error:
            raise LanguageModelError(
                f"expected JSON in {str(path)!r}, found something else ({_first_line(error)}); the file "
                "was cut off or damaged: download the model again"
            ) from error


def load_model(source: str | Path, revision: str | None, device: Any, dtype: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_choice("dtype", dtype, DTYPES)
    options = _options(source, revision)
    with _explained(source, "the model"), without_bars():
        config = AutoConfig.from_pretrained(source, **options)
        _check_causal(config)
        context_of(config)  # raises where a layer is none that this backend can use
        if dtype == "auto":
            dtype = _usual_dtype(config, device)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )

        # Mismatched weights are random too, where the library only warns.
        model, report = loaded
        missing = sorted(report.get("missing_keys") or ())
        missing += sorted(str(entry[0]) for entry in report.get("mismatched_keys") or ())
        if missing:  # they would be random numbers
            raise LanguageModelError(
                f"its files lack {len(missing)} of its weights, or have them in another shape "
                f"({missing[0]}); download or save the model again"
            )
        return model.to(device).eval()


def _usual_dtype(config: Any, device: Any) -> str:
    """Return what a model computes with if nobody says so.

    Double precision only where the model was made for it, as the tiny ones are: in it the answers are
    alike on all machines. A CPU has no fast bfloat16.
    """
    if str(getattr(config, "dtype", None)).endswith("float64"):
        return "float64"
    return "bfloat16" if device.type == "cuda" else "float32"


def _check_causal(config: Any) -> None:
    """Refuse a model that is not made to write text."""
    classes = [str(name) for name in getattr(config, "architectures", None) or ()]
    if classes and not any(name.endswith(_WRITES) for name in classes):
        raise LanguageModelError(
            f"expected a model that writes text ({_WRITES[0]}), found {classes[0]}; give a causal "
            "language model"
        )


def _options(source: str | Path, revision: str | None) -> dict[str, Any]:
    """Return the arguments that all loading has; no code of a model is run."""
    is_local = isinstance(source, Path)
    return {"revision": revision, "trust_remote_code": False, "local_files_only": is_local}


@contextmanager
def _explained(source: str | Path, part: str) -> Iterator[None]:
    """Turn whatever goes wrong while loading a part of a model into one line that says what to do."""
    # The name alone: the message may stand in a record, which names no path of a machine.
    name = source.name if isinstance(source, Path) else source
    try:
        yield
    except LanguageModelError as error:
        raise LanguageModelError(f"{name}: {error}") from error
    except Exception as error:  # the libraries raise many kinds for files that are not as expected
        advice = "its files may be damaged or of another version; save or download it again"
        message = str(error)
        if isinstance(error, ImportError):
            advice = "install what it needs, or give a model that is not quantized"
        elif "ignore_mismatched_sizes" in message:
            advice = "its weights have other shapes than its config.json says; download it again"
        elif "does not recognize this architecture" in message:
            advice = "update transformers, or serve the model and give the server's address"
        elif not isinstance(source, Path):
            advice = "check the name and the network, or give a folder on this machine"
            offline = [name for name in _OFFLINE if os.environ.get(name, "0") not in ("", "0")]
            if offline:
                advice = (
                    f"{offline[0]} forbids to ask the hub, and it is not among this machine's downloads; "
                    "unset that, or give a folder on this machine"
                )
        raise LanguageModelError(
            f"{part} of {name!r} cannot be loaded ({type(error).__name__}: {_first_line(error)}); "
            f"{advice}"
        ) from error


def _first_line(error: BaseException) -> str:
    """Return the first line of a message, and the second where the first announces it."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    message = lines[0]
    if message.endswith(":") and len(lines) > 1:
        message = f"{message} {lines[1]}"
    return message[:300]


def context_of(config: Any) -> int | None:
    """Return the longest sequence that a model can read, in tokens; None if there is no limit."""
    text_config = config.get_text_config(decoder=True)
    layer_kinds = set(getattr(text_config, "layer_types", None) or ())
    if layer_kinds - _LAYERS or not hasattr(text_config, "num_hidden_layers"):
        raise _unusable(text_config)

    # A window bounds the context here: our cache keeps every position, and such a layer would read all
    # of them. Older configs do not list their layers and use their window in all.
    limits = [getattr(text_config, "max_position_embeddings", None)]
    if "sliding_attention" in layer_kinds or not layer_kinds:
        limits.append(getattr(text_config, "sliding_window", None))
    return min((int(limit) for limit in limits if limit), default=None)


def limits_of(model: Any) -> tuple[int, int]:
    """Return how many rows and tokens a batch has if nobody says so: on a GPU as its memory allows."""
    import torch

    if model.device.type != "cuda":
        return 64, 16_384

    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads  # fewer: they share them

    # Keys and values of a batch get an eighth of the memory: weights, a trainer's gradients and the
    # passes themselves need the rest. On a large GPU the 16,384 of a CPU made three batches of one.
    token_bytes = 2 * config.num_hidden_layers * key_heads * head_size * model.dtype.itemsize
    memory = torch.cuda.get_device_properties(model.device).total_memory
    return 256, max(memory // 8 // token_bytes, 1024)


def _unusable(config: Any) -> LanguageModelError:
    return LanguageModelError(
        "expected a model with attention in all layers that takes positions, found "
        f"{config.model_type!r}; use Qwen3, Llama or their like, or serve this one and use the "
        "OpenAI backend"
    )


def check_usable(tokenizer: Any, model: Any) -> None:
    """Raise a `LanguageModelError` if this backend cannot use a model with this tokenizer."""
    # Rows of a batch have positions of their own, and only some logits are computed: both are asked
    # of `forward`. A stateful model (Mamba) cannot go back to a shorter text.
    parameters = inspect.signature(model.forward).parameters
    if model._is_stateful or not {"position_ids", "logits_to_keep"} <= set(parameters):
        raise _unusable(model.config)

    # Checked here, since a token beyond the embedding is an assert on a GPU, which ends the process.
    highest_id = max(tokenizer.get_vocab().values(), default=-1)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if highest_id >= vocabulary:
        raise LanguageModelError(
            f"expected token ids below {vocabulary:,}, the model's vocabulary, found {highest_id:,} in its "
            "tokenizer; use the model's own tokenizer, or resize its embedding and train that"
        )


def ends_of(model: Any) -> list[int]:
    """Return the tokens that end a text according to a model's generation config."""
    return _ends_of_config(model.generation_config)


def ends_in(source: str | Path, revision: str | None) -> list[int]:
    """Return the tokens that end a text by the generation config of a model that is not loaded."""
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(source, **_options(source, revision))
    except (OSError, ValueError):  # not all models have one
        return []
    return _ends_of_config(generation)


def _ends_of_config(generation: Any) -> list[int]:
    ends = getattr(generation, "eos_token_id", None)
    return [ends] if isinstance(ends, int) else [int(token) for token in ends or ()]


def rank_of(adapter: str | Path) -> int:
    """Return the rank of a LoRA adapter that peft wrote into a folder."""
    path = Path(adapter).expanduser() / "adapter_config.json"
    try:
        return int(json.loads(path.read_text("utf-8"))["r"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise LanguageModelError(
            f"expected a LoRA adapter at {str(adapter)!r}, found none ({_first_line(error)}); give the "
            "folder that peft wrote"
        ) from error


class Adapters:
    """LoRA adapters on one frozen model, chosen by name for each request."""

    def __init__(self, model: Any) -> None:
        self._wrapped = hasattr(model, "peft_config") and hasattr(model, "get_base_model")
        self.model = model
        self.base = model.get_base_model() if self._wrapped else model

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.model.peft_config)) if self._wrapped else ()

    def check(self, name: str | None) -> None:
        """Raise a `LanguageModelError` unless there is such an adapter; None is the bare model."""
        if name is not None and name not in self.names:
            hint = f"; {suggest(str(name), self.names)}" if self.names else ""
            listed = ", ".join(self.names) or "none"
            raise LanguageModelError(
                f"expected the name of an adapter, found {name!r}; there are: {listed}{hint}"
            )

    def load(self, name: str, directory: str | Path) -> None:
        """Load an adapter that peft saved, frozen."""
        folder = Path(directory).expanduser()
        peft = imported("peft", "a LoRA adapter")
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            if not (folder / file).is_file():
                raise LanguageModelError(
                    f"expected {file} in the adapter folder {str(folder)!r}, found none; give the "
                    "folder that peft's save_pretrained wrote (pickled weights are not loaded)"
                )
        from safetensors.torch import load_file

        with _explained(folder, "the adapter"):
            config = peft.PeftConfig.from_pretrained(str(folder))
            weights = load_file(folder / "adapter_model.safetensors")
        config.inference_mode = True
        self.create(name, config)

        try:
            self._fill(name, weights)
        except Exception as error:
            # Taken out again: the model answers as before. peft cannot delete the last adapter.
            if self.names == (name,):
                self.base = self.model = self.model.unload()
                self._wrapped = False
            else:
                self.model.delete_adapter(name)
            raise LanguageModelError(
                f"the adapter {folder.name!r} does not fit this model ({_first_line(error)}); give "
                "one that was trained on it"
            ) from error

    def create(self, name: str, config: Any) -> None:
        """Build in a new adapter, whose effect is nothing until it is trained."""
        peft = imported("peft", "a LoRA adapter")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in self.names:
            raise OptionError(
                f"an adapter's name must be new, of letters, digits, _ and -, not {name!r}"
            )
        _check_config(config)
        try:
            if self._wrapped:
                self.model.add_adapter(name, config)
            else:
                self.model = peft.get_peft_model(self.base, config, adapter_name=name)
                self._wrapped = True
        except (ValueError, TypeError, KeyError) as error:
            raise LanguageModelError(
                f"the adapter {name!r} does not fit this model: {_first_line(error)}"
            ) from error

    @contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Switch an adapter on, or all off for None, and put everything back afterwards."""
        layers: list[Any] = []
        if self._wrapped:
            from peft.tuners.tuners_utils import BaseTunerLayer

            layers = [layer for layer in self.base.modules() if isinstance(layer, BaseTunerLayer)]

        before = [(layer._active_adapter, layer._disable_adapters) for layer in layers]
        try:
            for layer in layers:  # peft's own methods also change what is trained
                layer._disable_adapters = name is None
                layer._active_adapter = layer._active_adapter if name is None else [name]
            yield
        finally:
            for layer, (active, disabled) in zip(layers, before, strict=True):
                layer._active_adapter = active
                layer._disable_adapters = disabled

    def _fill(self, name: str, weights: dict[str, Any]) -> None:
        from peft import set_peft_model_state_dict

        # Of other adapters on this model all weights are missing here: only this one's count.
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


def _check_config(config: Any) -> None:
    """Refuse adapters that change the model beneath, which would change all other answers."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    changes = []
    if kind != "LORA":
        changes.append(f"peft_type {kind}")
    elif config.bias != "none":
        changes.append(f"bias {config.bias!r}")
    # Others (pissa, olora, loftq) subtract from the weights beneath what they begin with.
    elif config.init_lora_weights not in (True, False, "gaussian", "orthogonal"):
        changes.append(f"init_lora_weights {config.init_lora_weights!r}")
    for name in ("modules_to_save", "trainable_token_indices", "layer_replication"):
        if getattr(config, name, None):
            changes.append(name)

    if changes:
        raise LanguageModelError(
            f"expected a LoRA adapter that leaves the model beneath as it is, found one with "
            f"{', '.join(changes)}; train one without"
        )
