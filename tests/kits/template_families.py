"""Tokenizers and models of ours with the chat templates of real families, as TRL ships them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from comap.lm.tiny import build_tiny, tokenizer_of

CORPUS = ["You see a cabinet 1, a shelf 2 and a fridge; go to take open close think Action"] * 2
CONTROL = {
    "qwen3": ("<|im_start|>", "<|im_end|>"),
    "qwen3_5_think": ("<|im_start|>", "<|im_end|>"),
    "llama3_2": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "deepseek_r1_distill": ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
}


def with_template(tokenizer: Any, family: str) -> Any:
    """Return a tokenizer of ours with the chat template and the control tokens of a family."""
    folder = files("trl") / "chat_templates"
    tokenizer.chat_template = (folder / f"{family}.jinja").read_text("utf-8")
    special_tokens = tokenizer.all_special_tokens[2:]
    tokenizer.add_special_tokens({"extra_special_tokens": [*special_tokens, *CONTROL[family]]})
    return tokenizer


def tokenizer(family: str) -> Any:
    return with_template(tokenizer_of(CORPUS, 600), family)


def model_folder(place: Path, family: str) -> Path:
    """Return the folder of a small untrained model with the chat template of a family."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = build_tiny(place, CORPUS, parameters=200_000, vocabulary=600)
    templated = with_template(AutoTokenizer.from_pretrained(folder), family)
    templated.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(templated))
    model.save_pretrained(folder)
    return folder


def squeezed(text: str) -> str:
    """Return a text without blanks, which our small tokenizers do not keep all."""
    return "".join(text.split())


def ends_with(text: str, end: str) -> bool:
    return squeezed(text).endswith(squeezed(end))
