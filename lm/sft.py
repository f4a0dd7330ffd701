"""Plain supervised fine-tuning of small models, as fast as a CPU goes.

Rows are sorted into batches of like lengths, and only the tokens of the answers carry loss, unless
prompts are to be read first; that and one thread a process is what `SMALL.md` found fastest. Large
models, adapters and several GPUs are the affair of `comap.trainers`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import LanguageModelError, MissingExtra, OptionError
from .base import Generate, Message
from .chat import ChatTokenizer
from .model_sums import check_model, write_model_sums
from .quiet import without_bars

__all__ = ["Row", "SFTConfig", "batches_of", "encode_rows", "fine_tune"]


class Row(NamedTuple):
    """A conversation and the assistant message that shall follow it.

    Attributes:
        messages: The conversation.
        answer: The message.
        reply_ids: Tokens of the replies in the conversation: see `comap.lm.Generate`.
    """

    messages: tuple[Message, ...]
    answer: str
    reply_ids: tuple[tuple[int, ...], ...] = ()


class Encoded(NamedTuple):
    """A row in tokens: those that are given, and those that carry loss, the end token included."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, kw_only=True)
class SFTConfig:
    """How to train; the defaults are the recipe of SMALL.md, section 6."""

    tokens: int = 7_000_000
    """Tokens to train on, prompts included; more than the rows have means several epochs."""
    batch_tokens: int = 2048
    """Most tokens of a batch, padding included."""
    learning_rate: float = 3e-3
    """Highest learning rate."""
    final_rate: float = 0.03
    """Share of the learning rate that is left at the end, after a linear decay."""
    warmup_steps: int = 60
    """Steps over which the learning rate rises."""
    weight_decay: float = 0.01
    """Of AdamW, whose betas are 0.9 and 0.98."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    max_length: int = 2048
    """Rows with more tokens are refused."""
    seed: int = 0
    """Seed of the order of rows."""
    prompt_share: float = 0.0
    """Share of the tokens, the first ones, on which prompts carry loss as well: a small model learns to
    copy from its prompt that way, long before answers alone would teach it."""


def encode_rows(tokenizer: Any, rows: Iterable[Row]) -> list[Encoded]:
    """Return rows in tokens: the chat template with the generation prompt, then answer and end.

    Args:
        tokenizer: A tokenizer with a chat template.
        rows: The rows.

    Raises:
        LanguageModelError: There is no chat template, or a row is no conversation.
    """
    chat = ChatTokenizer(tokenizer)
    rows = list(rows)
    prompts = chat.prompts([Generate(row.messages, reply_ids=row.reply_ids) for row in rows])
    answers = chat.tokens([row.answer for row in rows])
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        if isinstance(prompt, LanguageModelError):
            raise prompt
        found.append(Encoded(tuple(prompt), (*answer, chat.end)))
    return found


def batches_of(
    rows: Sequence[Encoded], batch_tokens: int, rng: random.Random
) -> list[list[Encoded]]:
    """Return all rows once, in batches of like lengths and in random order.

    Example:
        >>> rows = [Encoded((1,) * n, (2,)) for n in (3, 1, 3, 1)]
        >>> batches = batches_of(rows, 8, random.Random(0))
        >>> sorted([len(row) for row in batch] for batch in batches)
        [[2, 2], [4, 4]]
    """
    keyed = sorted(((len(row), rng.random(), row) for row in rows), key=lambda item: item[:2])
    batches: list[list[Encoded]] = []
    batch: list[Encoded] = []
    for length, _, row in keyed:
        if batch and length * (len(batch) + 1) > batch_tokens:
            batches.append(batch)
            batch = []
        batch.append(row)
    if batch:
        batches.append(batch)
    rng.shuffle(batches)
    return batches


def fine_tune(
    model_directory: str | Path,
    out: str | Path,
    rows: Iterable[Row],
    config: SFTConfig | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
) -> dict[str, Any]:
    """Train all weights of a saved model on rows, on the CPU in single precision, and save it.

    The same arguments give the same model on the same machine with the same number of threads.

    Args:
        model_directory: The saved model, as of `comap.lm.tiny.build_tiny`.
        out: Where to save the trained one, with its tokenizer.
        rows: What to learn.
        config: How.
        on_step: Called after every step with tokens so far, tokens in all, and the step's loss.

    Returns:
        What happened, as JSON data: settings, rows, epochs, steps, tokens, losses at tenths.

    Raises:
        OptionError: There are no rows, or one is too long.
        LanguageModelError: A file of the model was changed.
        MissingExtra: The extra ``train`` is not installed.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtra.of("train", "fine-tuning") from error
    config = config or SFTConfig()
    check_model(Path(model_directory))
    tokenizer = AutoTokenizer.from_pretrained(model_directory, trust_remote_code=False)
    encoded = encode_rows(tokenizer, rows)
    longest = max((len(row) for row in encoded), default=0)
    if not 0 < longest <= min(config.max_length, config.batch_tokens):
        raise OptionError(
            f"expected rows of 1 to {min(config.max_length, config.batch_tokens)} tokens, found "
            + (f"one of {longest}" if encoded else "none")
        )
    with without_bars():
        model = AutoModelForCausalLM.from_pretrained(
            model_directory, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    declared = json.loads((Path(model_directory) / "config.json").read_text("utf-8")).get("dtype")
    report = _Training(torch, model, encoded, config).run(on_step)
    with without_bars():
        model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    if declared is not None:  # a model keeps what it computes with
        path = Path(out) / "config.json"
        saved = json.loads(path.read_text("utf-8")) | {"dtype": declared}
        path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n", "utf-8")
    write_model_sums(Path(out))
    return asdict(config) | report


class _Training:
    """One run over the rows."""

    def __init__(self, torch: Any, model: Any, rows: Sequence[Encoded], config: SFTConfig):
        self.torch, self.model, self.rows, self.config = torch, model.train(), rows, config
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=config.weight_decay,
        )
        self.rng = random.Random(config.seed)
        self.losses: list[tuple[int, float]] = []

    def run(self, on_step: Callable[[int, int, float], None] | None) -> dict[str, Any]:
        """Train until the tokens are used up."""
        total, done, step = self.config.tokens, 0, 0
        while done < total:
            for batch in batches_of(self.rows, self.config.batch_tokens, self.rng):
                prompts = done < self.config.prompt_share * total
                loss = self._step(batch, self._rate(done / total, step), prompts)
                step += 1
                done += sum(len(row) for row in batch)
                self.losses.append((done, loss))
                if on_step is not None:
                    on_step(done, total, loss)
                if done >= total:
                    break
        size = sum(len(row) for row in self.rows)
        return {
            "rows": len(self.rows),
            "row_tokens": size,
            "epochs": round(done / size, 3),
            "steps": step,
            "trained_tokens": done,
            "losses": self._curve(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }

    def _rate(self, progress: float, step: int) -> float:
        """Return the learning rate: a linear rise, then a linear fall."""
        config = self.config
        fall = 1 - (1 - config.final_rate) * min(progress, 1.0)
        return config.learning_rate * fall * min((step + 1) / max(config.warmup_steps, 1), 1.0)

    def _step(self, batch: Sequence[Encoded], rate: float, prompts: bool = False) -> float:
        torch, model = self.torch, self.model
        width = max(len(row) for row in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.long)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        where: list[int] = []
        targets: list[int] = []
        for number, row in enumerate(batch):
            ids[number, : len(row)] = torch.tensor(row.prompt + row.answer)
            mask[number, : len(row)] = 1
            learned = (row.prompt + row.answer)[1:] if prompts else row.answer
            end = number * width + len(row) - 1  # a token is predicted one before it
            where += range(end - len(learned), end)
            targets += learned
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        chosen = hidden.reshape(-1, hidden.shape[-1])[torch.tensor(where)]
        loss = torch.nn.functional.cross_entropy(model.lm_head(chosen), torch.tensor(targets))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.config.clip)
        self.optimizer.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise OptionError(f"the loss became {value}; lower the learning rate")
        return value

    def _curve(self) -> list[tuple[int, float]]:
        """Return the mean loss of each tenth of the run, with the tokens at its end."""
        size = max(len(self.losses) // 10, 1)
        parts = [self.losses[i : i + size] for i in range(0, len(self.losses), size)]
        return [(part[-1][0], round(sum(x for _, x in part) / len(part), 4)) for part in parts]
