"""What a trainer hangs onto a model while it trains, and takes off again afterwards.

Trainers leave much behind: changed forwards, hooks, flags, entries in configs. The next stage trains
the same model, and agents ask it in between, so all of it has to go.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra, OptionError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["add_hidden_forward", "branched", "padded", "restorer", "takes_masks"]

_SCALES = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)


def restorer(*models: Any) -> Callable[[], None]:
    """Return what puts models back as they are now, but for the values of their weights.

    That is: the class and every attribute, hook and submodule of all their modules, which weights can
    be trained, their gradients (there are none afterwards), and the entries of their configs.

    Args:
        *models: Models of the transformers or peft library.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1)
        >>> restore = restorer(model)
        >>> model.note, _ = "training", model.requires_grad_(False).eval()
        >>> restore()
        >>> hasattr(model, "note"), model.training, model.bias.requires_grad
        (False, True, True)
    """
    modules = list({id(one): one for model in models for one in model.modules()}.values())
    weights = list({id(one): one for model in models for one in model.parameters()}.values())
    grads = [(weight, weight.requires_grad) for weight in weights]
    kept = [vars(owner) for owner in (*modules, *_configs(models))]
    kept += [table for owner in kept for name, table in owner.items() if _is_table(name, table)]
    entries = [(table, dict(table)) for table in kept]
    classes = [(module, type(module)) for module in modules]

    def restore() -> None:
        for module, kind in classes:
            module.__class__ = kind
        for table, before in entries:
            table.clear()
            table.update(before)
        for weight, flag in grads:
            weight.grad = None
            weight.requires_grad_(flag)

    return restore


def add_hidden_forward(base: Any, head_of: Callable[[Any], Any] = lambda head: head) -> None:
    """Let a model's forward hand its hidden states to a function, inside of all wrappers.

    ``model(input_ids=..., attention_mask=..., then=f)`` returns ``f(hidden, head)``: the last layer's
    hidden states, and the module that makes logits of them. So a loss sees only the positions that it
    needs; and wrappers of distributed training see one forward pass, as they expect.

    Args:
        base: A causal language model of the transformers library.
        head_of: Given its output layer within each forward pass, returns what the function gets.

    Raises:
        OptionError: It makes logits of hidden states by more than a matrix.
    """
    config = base.config.get_text_config()
    for name in _SCALES:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise OptionError(
                f"expected a model whose logits are its head's, found one that scales them ({name}); "
                "such models cannot be trained here: use another one"
            )
    before = base.forward

    @functools.wraps(type(base).forward)  # its signature is looked at
    def forward(self: Any, *args: Any, then: Any = None, **kwargs: Any) -> Any:
        if then is None:
            return before(*args, **kwargs)
        known = ("input_ids", "attention_mask", "position_ids")
        told = {name: kwargs[name] for name in known if name in kwargs}
        hidden = self.base_model(**told, use_cache=False).last_hidden_state
        return then(hidden, head_of(self.get_output_embeddings()))

    base.forward = types.MethodType(forward, base)


def padded(rows: Sequence[Sequence[int]], device: Any = None) -> tuple[Tensor, Tensor]:
    """Return the tokens of rows as one tensor, padded on the right, and its attention mask.

    Without rows there is one of a single token, so that a model has something to compute.

    Args:
        rows: The tokens of each row.
        device: Where the tensors shall be.

    Raises:
        MissingExtra: torch is not installed.

    Example:
        >>> [part.tolist() for part in padded([[5, 6], [7]])]
        [[[5, 6], [7, 0]], [[1, 1], [1, 0]]]
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("train", "a batch") from error
    rows = rows or [(0,)]
    width = max(len(row) for row in rows)
    ids = [[*row, *[0] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def branched(
    rows: Sequence[Sequence[int]], branches: Sequence[tuple[int, int]], device: Any = None
) -> dict[str, Tensor]:
    """Return what a model is told to read rows with two branches: the second does not see the first.

    Both branches come right after the prompt, as far as positions go. Padding is on the right.

    Args:
        rows: The tokens of each row: prompt, first branch, second branch.
        branches: How long each row's prompt and its first branch are.
        device: Where the tensors shall be.

    Raises:
        MissingExtra: torch is not installed.

    Example:
        >>> told = branched([[5, 6, 7]], [(1, 1)])
        >>> told["position_ids"].tolist(), told["attention_mask"][0, 0].int().tolist()
        ([[0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 0, 1]])
    """
    ids, valid = padded(rows, device)
    if not any(len(row) > sum(parts) for row, parts in zip(rows, branches, strict=True)):
        return {"input_ids": ids, "attention_mask": valid}  # the plain form, the fastest
    import torch

    place = torch.arange(ids.shape[1], device=ids.device)
    prompt, first = torch.tensor([*branches], device=ids.device).T[:, :, None]
    second = place >= prompt + first
    hidden = second[:, :, None] & ((place >= prompt) & ~second)[:, None, :]
    seen = (place[None, :] <= place[:, None])[None] & ~hidden & valid.bool()[:, None, :]
    seen |= torch.eye(len(place), dtype=torch.bool, device=ids.device)  # padding sees itself
    return {
        "input_ids": ids,
        "attention_mask": seen[:, None],
        "position_ids": torch.where(second, place - first, place.expand_as(second)),
    }


def takes_masks(model: Any) -> bool:
    """Return whether a model's attention takes any mask, and not only which tokens are padding.

    Args:
        model: A model of the transformers library.

    Example:
        >>> from types import SimpleNamespace
        >>> config = SimpleNamespace(_attn_implementation="flash_attention_2")
        >>> takes_masks(SimpleNamespace(config=config))
        False
    """
    return getattr(model.config, "_attn_implementation", None) == "sdpa"


def _is_table(name: str, value: object) -> bool:
    """Return whether an attribute holds hooks, submodules and the like; buffers go where models go."""
    return isinstance(value, dict) and name != "_buffers"


def _configs(models: Sequence[Any]) -> list[Any]:
    """Return all configs of models, each once."""
    found: dict[int, Any] = {}
    for model in models:
        config = getattr(model, "config", None)
        text = None if config is None else config.get_text_config()
        for one in (config, text, getattr(model, "generation_config", None)):
            if one is not None and not isinstance(one, dict):
                found[id(one)] = one
    return list(found.values())
