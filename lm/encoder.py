"""Encoders: texts become vectors of length 1, whose inner products are cosines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..errors import DataNotFound, OptionError, check_choice, needs_extra
from .base import valid_text
from .load import device_of

Vectors: TypeAlias = npt.NDArray[np.float32]

Side: TypeAlias = Literal["query", "passage"]
"""What a text is: models encode queries and passages differently."""

DEFAULT_MODEL = "intfloat/e5-base-v2"
"""The model of Search-R1's retriever."""

_POOLINGS = ("mean", "cls")
# The lengths of Search-R1's retriever: its passages have 100 words.
_QUERY_TOKENS = 256
_PASSAGE_TOKENS = 180
_BATCH = 32
_BGE = "Represent this sentence for searching relevant passages: "


@runtime_checkable
class Encoder(Protocol):
    """Anything that encodes texts.

    `name` says what encoded: vectors of encoders with one name can be compared.
    """

    name: str

    def encode(self, texts: Sequence[str], side: Side) -> Vectors:
        """Return a vector of length 1 for each text."""
        ...


class TransformerEncoder:
    """A transformer of Hugging Face's as an encoder: E5, BGE and their like.

    It is loaded when it is first used, from safe tensors alone, without code of others.

    Args:
        model: Name or folder.
        prefixes: What is put before queries and before passages; None for those of E5 or BGE where the
            name says so, and else none.
        pooling: ``"mean"`` over tokens, or ``"cls"``; None for ``cls`` of BGE, else ``mean``.
        device: As PyTorch names it; ``"auto"`` is the GPU where there is one.

    Raises:
        OptionError: There is no such pooling, or prefixes are not two texts.

    Example:
        >>> TransformerEncoder("intfloat/e5-base-v2").prefixes
        ('query: ', 'passage: ')
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        prefixes: Sequence[str] | None = None,
        pooling: str | None = None,
        device: str = "cpu",
    ):
        self.model = str(model)
        self.device = device

        # The families were trained with these prefixes, and their vectors are worse without. A name's
        # last part names the family, in a folder as on the hub.
        base_name = self.model.lower().rpartition("/")[2]
        is_bge = base_name.startswith("bge")
        if prefixes is None and is_bge:
            prefixes = (_BGE, "")
        elif prefixes is None:
            prefixes = ("query: ", "passage: ") if base_name.startswith("e5") else ("", "")
        if len(prefixes) != 2 or not all(isinstance(prefix, str) for prefix in prefixes):
            raise OptionError(
                f"prefixes must be two texts, of queries and passages, not {prefixes!r}"
            )
        self.prefixes = (prefixes[0], prefixes[1])

        # E5 was trained with the mean over tokens, BGE with the first token's vector.
        self.pooling = pooling or ("cls" if is_bge else "mean")
        check_choice("pooling", self.pooling, _POOLINGS)

        # All that changes a vector is in the name: an index refuses queries of another encoder by it.
        self.name = f"{self.model}|{self.pooling}|{'|'.join(self.prefixes)}"
        self._loaded: tuple[Any, Any, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # To another process the arguments go, not the weights: it loads them when it needs them.
        return TransformerEncoder, (self.model, self.prefixes, self.pooling, self.device)

    def config(self) -> dict[str, Any]:
        """Return what makes an equal encoder."""
        return {"model": self.model, "prefixes": list(self.prefixes), "pooling": self.pooling}

    def encode(self, texts: Sequence[str], side: Side) -> Vectors:
        """Return a vector of length 1 for each text.

        Raises:
            MissingExtra: torch or transformers is not installed.
            DataNotFound: The model cannot be loaded.
        """
        torch, tokenizer, model = self._load()
        query_prefix, passage_prefix = self.prefixes
        if side == "query":
            prefix = query_prefix
            max_tokens = _QUERY_TOKENS
        else:
            prefix = passage_prefix
            max_tokens = _PASSAGE_TOKENS

        # Begun with no rows: without texts there is a matrix of the right width all the same.
        batches = [np.zeros((0, model.config.hidden_size), np.float32)]
        for first in range(0, len(texts), _BATCH):
            batch = [prefix + valid_text(text) for text in texts[first : first + _BATCH]]
            tokens = tokenizer(
                batch, padding=True, truncation=True, max_length=max_tokens, return_tensors="pt"
            ).to(model.device)
            with torch.inference_mode():
                hidden = model(**tokens).last_hidden_state.float()

            # Padding is masked, so that a text's vector does not depend on its batch.
            if self.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                mask = tokens["attention_mask"][..., None]
                pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
            batches.append(pooled.cpu().numpy())

        return np.concatenate(batches).astype(np.float32)

    def _load(self) -> tuple[Any, Any, Any]:
        if self._loaded is None:
            with needs_extra("dense", "encoding texts"):
                import torch
                from transformers import AutoModel, AutoTokenizer
            try:
                tokenizer = AutoTokenizer.from_pretrained(self.model, trust_remote_code=False)
                model = AutoModel.from_pretrained(
                    self.model, trust_remote_code=False, use_safetensors=True
                )
            except (OSError, ValueError) as error:
                raise DataNotFound(
                    f"expected a sentence encoder {self.model!r:.200}, found: {error}; name a folder "
                    "with a model in safe tensors, or one that can be downloaded"
                ) from error
            if tokenizer.pad_token is None:  # Llama and its like have none
                tokenizer.pad_token = tokenizer.eos_token
            self._loaded = torch, tokenizer, model.to(device_of(self.device)).eval()
        return self._loaded
