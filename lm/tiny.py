"""Small language models of our own making, for tests and for learning on a laptop.

A tiny model is a Qwen3 of any size from 0.2 M to 100 M parameters with random weights, a tokenizer
whose words come from a text that one gives, and a chat template. It is saved as Hugging Face saves
models, so that everything which loads those loads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, OptionError
from .model_sums import write_model_sums
from .quiet import without_bars

__all__ = ["CHAT_TEMPLATE", "Shape", "build_tiny", "shape_of", "tokenizer_of"]

PAD, END, USER, ASSISTANT, SYSTEM = SPECIAL = (
    "<|pad|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""One token opens a message, one closes it: short prompts are what small models can afford."""

_PATTERN = r" ?[A-Za-z']+| ?[0-9]|[^\sA-Za-z0-9]|\s"


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a Qwen3 model.

    Attributes:
        hidden: Width of the residual stream.
        layers: Number of layers.
        heads: Number of query heads; there are as many key and value heads.
        head: Width of a head.
        inner: Width of the feed-forward layers.
        vocabulary: Number of tokens.

    Example:
        >>> Shape(96, 4, 3, 32, 288, 226).parameters
        502048
    """

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
    """Return the shape whose number of parameters is nearest to `parameters`.

    Widths are multiples of 32, and depth grows slowly with width.

    Args:
        parameters: 200,000 to 100,000,000.
        vocabulary: Number of tokens.

    Raises:
        OptionError: `parameters` is out of that range, or the vocabulary is too large for it.

    Example:
        >>> shape_of(500_000, 226)
        Shape(hidden=96, layers=4, heads=3, head=32, inner=288, vocabulary=226)
    """
    if not 200_000 <= parameters <= 100_000_000:
        raise OptionError(f"parameters must be from 200,000 to 100,000,000, not {parameters:,}")
    shapes = [
        Shape(hidden, layers, max(hidden // 32, 2), 32, 3 * hidden, vocabulary)
        for hidden in range(32, 1025, 32)
        for layers in range(2, 25)
        if 2 + hidden // 64 <= layers <= 3 + hidden // 48
    ]
    best = min(shapes, key=lambda shape: (abs(shape.parameters - parameters), shape.layers))
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
) -> Path:
    """Build a model with random weights and its tokenizer, and save both, with checksums.

    The same arguments give the same files. Weights are saved in single precision.

    Args:
        directory: Where to save; made where it is missing.
        corpus: The text that the tokenizer's words come from.
        parameters: About how many the model shall have.
        seed: Seed of the weights.
        vocabulary: The most tokens the tokenizer may have.
        max_length: The longest sequence, in tokens.
        dtype: What the model computes with where nobody says otherwise. With double precision, which
            costs such models little, answers do not depend on what else is in the batch.

    Returns:
        The directory.

    Raises:
        OptionError: An argument is out of range.
        MissingExtra: The extra ``train`` is not installed.
    """
    try:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError as error:
        raise MissingExtra.of("train", "building a tiny language model") from error
    tokenizer = tokenizer_of(corpus, vocabulary, max_length)
    shape = shape_of(parameters, len(tokenizer))
    config = Qwen3Config(
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).float()
    path = Path(directory)
    with without_bars():
        model.save_pretrained(path)
    _declare(path / "config.json", dtype)
    tokenizer.save_pretrained(path)
    write_model_sums(path)
    return path


def tokenizer_of(corpus: Iterable[str], vocabulary: int = 1024, max_length: int = 2048) -> Any:
    """Return a fast tokenizer whose tokens are the commonest words of a corpus.

    A word with the space before it is one token, a digit is one token, and every byte is one, so
    that any text can be encoded and comes back as it was.

    Args:
        corpus: The text.
        vocabulary: The most tokens; at least 320.
        max_length: Recorded as the tokenizer's ``model_max_length``.

    Raises:
        OptionError: `vocabulary` is too small.
        MissingExtra: The extra ``train`` is not installed.
    """
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtra.of("train", "building a tokenizer") from error
    if vocabulary < 320:
        raise OptionError(f"vocabulary must be at least 320, not {vocabulary}")
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[str] = Counter()
    for text in corpus:
        counts.update(word for word, _ in split.pre_tokenize_str(text))
    tokens = _tokens(counts, sorted(pre_tokenizers.ByteLevel.alphabet()), vocabulary)
    inner = Tokenizer(
        models.WordPiece(  # greedy longest match; no mark on what continues a word
            {token: number for number, token in enumerate(tokens)},
            unk_token=PAD,
            continuing_subword_prefix="",
            max_input_chars_per_word=1_000_000,
        )
    )
    inner.pre_tokenizer = split
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _tokens(counts: Mapping[str, int], letters: list[str], vocabulary: int) -> list[str]:
    """Return the vocabulary: special tokens, single bytes, then words by how often they occur."""
    tokens = [*SPECIAL, *letters]
    known = set(tokens)
    words = sorted(
        (word for word, count in counts.items() if count > 1 and word not in known),
        key=lambda word: (-counts[word], word),
    )
    return tokens + words[: max(vocabulary - len(tokens), 0)]


def _declare(path: Path, dtype: str) -> None:
    """Write into a model's config what it computes with."""
    import json

    allowed = ("float32", "float64", "bfloat16")
    if dtype not in allowed:
        raise OptionError(f"dtype must be one of {', '.join(allowed)}, not {dtype!r}")
    config = json.loads(path.read_text("utf-8"))
    config["dtype"] = dtype
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
