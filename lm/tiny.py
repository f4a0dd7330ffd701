"""Small language models, for tests and for learning on a laptop: built, and fine-tuned fast on a CPU.

`build_tiny` saves a Qwen3 model with random weights and its tokenizer; `fine_tune` trains all weights
of a saved model on rows of conversations.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ..errors import LanguageModelError, OptionError, check_choice, check_number
from ..jsonl import read_json, write_json
from .base import Generate, Message
from .chat import ChatTokenizer
from .load import imported, without_bars

PAD, END, *_ROLES = SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""One token opens a message, one closes it: short prompts are what small models can afford."""

Tokens: TypeAlias = Literal["words", "entities", "names"]

# How a text is split into words. The space before a word is part of its token, as in GPT-2: so a word
# costs one token. Digits stand alone, so that numbers that are not in the corpus can be written.
_PATTERNS: dict[Tokens, str] = {
    "words": r" ?[A-Za-z']+| ?[0-9]|[^\sA-Za-z0-9]|\s",
    "entities": r" ?[a-z]+ [0-9]+| ?[A-Za-z']+| ?[0-9]|[^\sA-Za-z0-9]|\s",
    "names": r" ?[A-Za-z]+(?:'[a-z]+)*| ?[0-9]{1,2}| ?[^\sA-Za-z0-9]\n?|\s",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a Qwen3 model."""

    hidden: int
    layers: int
    heads: int
    head: int
    inner: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Number of parameters; the embedding is used for input and output, and counts once."""
        attention = 4 * self.hidden * self.heads * self.head + 2 * self.head
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden


def shape_of(parameters: int, vocabulary: int) -> Shape:
    """Return the shape whose number of parameters is nearest to `parameters`."""
    check_number("parameters", parameters, 200_000, 100_000_000)

    # Heads of 32 and an inner layer of three widths, and layers that grow with the width, as in larger
    # models of this kind (Qwen3): only these two numbers are searched.
    shapes = [
        Shape(hidden, layers, max(hidden // 32, 2), 32, 3 * hidden, vocabulary)
        for hidden in range(32, 1025, 32)
        for layers in range(2, 25)
        if 2 + hidden // 64 <= layers <= 3 + hidden // 48
    ]
    best = min(shapes, key=lambda shape: (abs(shape.parameters - parameters), shape.layers))

    # The embedding counts: a large vocabulary may leave no room for layers.
    if abs(best.parameters - parameters) > 0.25 * parameters:
        raise OptionError(
            f"a model of {parameters:,} parameters has no room for {vocabulary:,} tokens; the "
            f"nearest has {best.parameters:,} parameters: ask for more, or for a smaller vocabulary"
        )
    return best


def build_tiny(
    directory: str | Path,
    corpus: Iterable[str],
    *,
    parameters: int = 500_000,
    seed: int = 0,
    vocabulary: int = 1024,
    max_length: int = 2048,
    dtype: str = "float64",
    tokens: Tokens = "words",
) -> Path:
    torch = imported("torch", "building a tiny language model")
    transformers = imported("transformers", "building a tiny language model")
    check_choice("dtype", dtype, ("float32", "float64", "bfloat16"))

    tokenizer = tokenizer_of(corpus, vocabulary, max_length, tokens)
    shape = shape_of(parameters, len(tokenizer))
    config = transformers.Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )

    # Weights are drawn in single precision, whatever they are used in: the same seed is the same model.
    # The caller's own generator stays as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.Qwen3ForCausalLM(config).float()
    return _save(model, tokenizer, Path(directory), dtype)


def tokenizer_of(
    corpus: Iterable[str], vocabulary: int = 1024, max_length: int = 2048, tokens: Tokens = "words"
) -> Any:
    """Return a fast tokenizer whose tokens are the commonest words of a corpus.

    Of ``entities`` a word and its number (``fridge 1``) are one; of ``names`` a word is the same in quotes.
    """
    transformers = imported("transformers", "building a tokenizer")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    check_number("vocabulary", vocabulary, 320)
    check_choice("tokens", tokens, tuple(_PATTERNS))
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERNS[tokens]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    # Texts of a corpus repeat each other, and so do words: each is split once.
    counts: Counter[str] = Counter()
    for text, repeats in Counter(corpus).items():
        for word, _ in split.pre_tokenize_str(text):
            counts[word] += repeats

    # The words of an entity too, for entities that are not in the corpus. ByteLevel writes a space as
    # the letter \u0120.
    if tokens == "entities":
        for word, count in list(counts.items()):
            for word_of_entity in re.findall("\u0120?[^\u0120]+", word):
                counts[word_of_entity] += count

    # All bytes first: any text can be written with them. Of words as frequent as each other the alphabet
    # decides, so that the order of the corpus does not.
    entries = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    base = set(entries)
    common = [word for word, count in counts.items() if count > 1 and word not in base]
    common.sort(key=lambda word: (-counts[word], word))
    entries += common[: max(vocabulary - len(entries), 0)]

    inner = Tokenizer(
        models.WordPiece(  # greedy longest match; no mark on what continues a word
            {token: number for number, token in enumerate(entries)},
            unk_token=PAD,
            continuing_subword_prefix="",
            max_input_chars_per_word=1_000_000,
        )
    )
    inner.pre_tokenizer = split
    inner.decoder = decoders.ByteLevel()

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=_ROLES,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _save(model: Any, tokenizer: Any, path: Path, dtype: str | None) -> Path:
    """Save both, write into the model's config what it computes with, and return the folder."""
    with without_bars():
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)

    # The files have single precision, half as large; what is loaded computes in what the config says.
    if dtype is not None:
        config = read_json(path / "config.json") | {"dtype": dtype}
        write_json(path / "config.json", config, sort_keys=True)
    return path


class Row(NamedTuple):
    """A conversation and the assistant message that shall follow it."""

    messages: tuple[Message, ...]
    answer: str
    reply_ids: tuple[tuple[int, ...], ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    """Where in the row's tokens parts that carry loss begin and end; without any, the answer does."""
    thinking: bool = False
    """Whether the prompt lets the model think first."""


class Encoded(NamedTuple):
    """A row in tokens: the prompt's, and the answer's with the end token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    spans: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)

    def learned(self) -> list[int]:
        """Return where the tokens are that carry loss."""
        spans = self.spans or ((len(self.prompt), len(self)),)
        return list(chain.from_iterable(range(start, end) for start, end in spans))


@dataclass(frozen=True, kw_only=True)
class SFTConfig:
    """How to fine-tune; the defaults suit models of about a million parameters."""

    tokens: int = 7_000_000
    """Tokens to train on, prompts included; more than the rows have means several epochs."""
    batch_tokens: int = 2048
    """Most tokens of a batch, padding included; rows with more are refused."""
    learning_rate: float = 3e-3
    """Highest learning rate; it falls linearly."""
    final: float = 0.03
    """The share of it at the end."""
    warmup_steps: int = 60
    """Steps over which the learning rate rises."""
    seed: int = 0
    """Seed of the order of rows."""
    device: str = "cpu"
    """Where it computes, as torch names it."""
    half: bool = False
    """Whether passes compute in bfloat16; the weights stay in single precision."""


def encode_rows(tokenizer: Any, rows: Iterable[Row]) -> list[Encoded]:
    """Return rows in tokens: the chat template with the generation prompt, then answer and end.

    The tokenizer may be a `ChatTokenizer`, which knows variables for the template.
    """
    chat = ChatTokenizer.around(tokenizer)
    rows = list(rows)
    prompts = chat.prompts(
        [Generate(row.messages, reply_ids=row.reply_ids, thinking=row.thinking) for row in rows]
    )
    answers = chat.tokens([row.answer for row in rows])

    encoded = []
    for row, prompt, answer in zip(rows, prompts, answers, strict=True):
        if isinstance(prompt, LanguageModelError):
            raise prompt
        encoded.append(Encoded(tuple(prompt), (*answer, chat.end), row.spans))
    return encoded


def batches_of(
    rows: Sequence[Encoded], batch_tokens: int, rng: random.Random
) -> list[list[Encoded]]:
    """Return all rows once, in batches of like lengths and in random order."""
    # By length, for little padding; among rows of one length by chance, so that each epoch has other
    # batches. One number is drawn for each row in their given order: the seed decides alone.
    keys = [(len(row), rng.random()) for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)

    batches: list[list[Encoded]] = [[]]
    for index in order:
        row = rows[index]
        length = len(row)  # the longest so far, to which the batch is padded
        if batches[-1] and length * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(row)

    rng.shuffle(batches)
    return batches


def fine_tune(
    model_directory: str | Path,
    out: str | Path,
    rows: Iterable[Row],
    config: SFTConfig | None = None,
    on_step: Callable[[int, int, float], None] = lambda trained, total, loss: None,
    template: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train all weights of a saved model on rows, and save it.

    Prompts are made with the variables for the chat template in `template`.
    """
    torch = imported("torch", "fine-tuning")
    transformers = imported("transformers", "fine-tuning")
    config = config or SFTConfig()

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_directory, trust_remote_code=False)
    encoded = encode_rows(ChatTokenizer(tokenizer, (), template), rows)
    longest = max((len(row) for row in encoded), default=0)
    if not 0 < longest <= config.batch_tokens:
        longest_row = f"one of {longest}" if encoded else "none"
        raise OptionError(
            f"expected rows of 1 to {config.batch_tokens} tokens, found {longest_row}"
        )

    with without_bars():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            model_directory, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    model = model.to(config.device)
    declared_dtype = read_json(Path(model_directory) / "config.json").get("dtype")
    optimizer = torch.optim.AdamW(
        model.train().parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )

    rng = random.Random(config.seed)
    losses: list[tuple[int, float]] = []  # of each step: the tokens trained on so far, and its loss
    trained_tokens = 0
    while trained_tokens < config.tokens:
        for batch in batches_of(encoded, config.batch_tokens, rng):
            # The rate falls by tokens, since batches differ in size, and rises by steps, since Adam's
            # averages grow by them.
            fall = 1 - (1 - config.final) * (trained_tokens / config.tokens)
            rise = min((len(losses) + 1) / max(config.warmup_steps, 1), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * fall * rise

            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(model.device.type, torch.bfloat16, enabled=config.half):
                loss = answer_loss(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            trained_tokens += sum(map(len, batch))
            losses.append((trained_tokens, float(loss.detach())))
            if not math.isfinite(losses[-1][1]):
                raise OptionError(f"the loss became {losses[-1][1]}; lower the learning rate")
            on_step(trained_tokens, config.tokens, losses[-1][1])
            if trained_tokens >= config.tokens:
                break

    _save(model, tokenizer, Path(out), declared_dtype)
    row_tokens = sum(map(len, encoded))
    return asdict(config) | {
        "rows": len(encoded),
        "row_tokens": row_tokens,
        "epochs": round(trained_tokens / row_tokens, 3),
        "steps": len(losses),
        "trained_tokens": trained_tokens,
        "losses": _curve(losses),
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }


def _curve(losses: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return about ten points of a training: the tokens so far, and the mean loss since the last point."""
    size = max(len(losses) // 10, 1)
    curve = []
    for start in range(0, len(losses), size):
        steps = losses[start : start + size]
        last_tokens, _ = steps[-1]
        mean_loss = sum(loss for _, loss in steps) / len(steps)
        curve.append((last_tokens, round(mean_loss, 4)))
    return curve


def answer_loss(model: Any, batch: Sequence[Encoded]) -> Any:
    """Return the mean cross-entropy of the tokens that carry loss; logits of no others are computed."""
    import torch

    width = max(len(row) for row in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    mask = torch.zeros((len(batch), width), dtype=torch.long)
    predicting: list[int] = []  # positions in the flattened batch
    answers: list[int] = []
    for row_index, row in enumerate(batch):
        tokens = row.prompt + row.answer
        positions = row.learned()
        ids[row_index, : len(row)] = torch.tensor(tokens)
        mask[row_index, : len(row)] = 1

        # A token is predicted at the position before it.
        predicting += [row_index * width + position - 1 for position in positions]
        answers += [tokens[position] for position in positions]

    # The head reads these alone: logits of prompts and padding would be thrown away.
    device = model.device
    output = model.model(input_ids=ids.to(device), attention_mask=mask.to(device))
    hidden = output.last_hidden_state.flatten(0, 1)
    logits = model.lm_head(hidden[torch.tensor(predicting, device=device)])
    # In single precision always: probabilities of a vocabulary lose too much in half.
    return torch.nn.functional.cross_entropy(logits.float(), torch.tensor(answers, device=device))
