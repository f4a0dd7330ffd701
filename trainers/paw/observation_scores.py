"""Scoring observations: how probable a model finds each token of what it was told next.

Teacher forcing with the training's own serialization (METHODS.md 2.3), outside of any trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import LanguageModelError, MissingExtra, OptionError
from ...lm.hf_batch import chunks
from .rows import PaWRow

__all__ = ["observation_logprobs"]

_ROWS = 64  # in a batch, whatever its tokens


def observation_logprobs(
    model: Any, rows: Sequence[PaWRow], *, batch_tokens: int = 16_384, pad: int = 0
) -> list[list[float]]:
    """Return the log-probability of each observation token after all that comes before it.

    The model reads prompt, response, header and observation, as in training (METHODS.md 2.3), without
    dropout and without gradients. Its flags are afterwards as before.

    Args:
        model: A causal language model of the transformers library, or a `PeftModel` around one.
        rows: The rows; one without an observation has no log-probabilities.
        batch_tokens: The most tokens of a batch, padding included; a longer row is alone.
        pad: The token that fills rows up; no value depends on it.

    Returns:
        Natural logarithms, of each row one for each observation token.

    Raises:
        OptionError: `batch_tokens` is below 1.
        LanguageModelError: The model's output is not a number.
        MissingExtra: torch is not installed.

    Example:
        >>> observation_logprobs(model, rows, batch_tokens=4096)  # doctest: +SKIP
        [[-0.01, -3.2, -0.4], []]
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("train", "scoring observations") from error
    if batch_tokens < 1:
        raise OptionError(f"batch_tokens must be at least 1, not {batch_tokens}")
    found: list[list[float]] = [[] for _ in rows]
    places = [place for place, row in enumerate(rows) if row.observation_ids]
    texts = [_read(rows[place]) for place in places]
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            for some in chunks([len(text) for text in texts], _ROWS, batch_tokens):
                sizes = [len(rows[places[i]].observation_ids) for i in some]
                told = _scored(model, [texts[i] for i in some], sizes, pad)
                for i, logprobs in zip(some, told, strict=True):
                    found[places[i]] = logprobs
    finally:
        for module in training:
            module.training = True
    return found


def _read(row: PaWRow) -> tuple[int, ...]:
    """Return what the model reads of a row; what follows the observation changes nothing."""
    return row.prompt_ids + row.response_ids + row.header_ids + row.observation_ids


def _scored(
    model: Any, texts: Sequence[Sequence[int]], sizes: Sequence[int], pad: int
) -> list[list[float]]:
    """Return the log-probabilities of the last tokens of texts, of each text so many."""
    import torch

    width = max(map(len, texts))
    filled = [[*text, *[pad] * (width - len(text))] for text in texts]
    ids = torch.tensor(filled, device=model.device)
    mask = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t in texts], device=ids.device)
    # A token's logits stand one place before it; only those places are made logits of.
    wanted = [range(len(t) - size - 1, len(t) - 1) for t, size in zip(texts, sizes, strict=True)]
    kept = sorted({place for places in wanted for place in places})
    number = {place: i for i, place in enumerate(kept)}
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        use_cache=False,
        logits_to_keep=torch.tensor(kept, device=ids.device),
    ).logits
    found = []
    for row, places in enumerate(wanted):
        mine = logits[row, [number[place] for place in places]]
        mine = mine if mine.dtype == torch.float64 else mine.float()
        tokens = ids[row, places.start + 1 : places.stop + 1, None]
        logprobs = mine.log_softmax(-1).gather(1, tokens)[:, 0].tolist()
        if any(value != value for value in logprobs):
            raise LanguageModelError(
                "the model's output is not a number; its weights are damaged, or it needs another "
                "dtype (bfloat16 or float32 where float16 overflows)"
            )
        found.append(logprobs)
    return found
