"""What a training needs: memory of a GPU and hours, by arithmetic on a model's shape, before it is loaded.

The sums are those of one process, in bytes:

- all weights trained: 16 for each weight (weights, gradients and AdamW's two moments in single precision),
  shared out among the processes with FSDP2; and 2 for the copy that passes in bfloat16 compute with;
- adapters: 2 for each weight of the frozen model (4 where it computes in float32), 16 for each of an
  adapter's;
- with DDP, 4 for each trained weight: gradients are sent from buckets, which are copies;
- activations and logits of the largest pass, as `kept_by` counts them;
- models that are asked beside it, and the share of the card that vLLM takes.

The numbers of `kept_by` were counted (`torch.autograd.graph.saved_tensors_hooks`) for layers of Llama's
and Qwen's kind, with adapters and without; a test counts them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..errors import OptionError

TRAINED_BYTES = 12  # of a weight that is trained: its gradient and AdamW's two moments
LOGITS_SHARE = 128  # a GPU keeps one logit for so many bytes of its memory
USABLE = 0.92  # of a card: the driver, CUDA's libraries and fragments have the rest
_MOST_TOKENS = 32_768  # of a pass that is cut to what the memory holds
_SHARE = 0.5  # of the memory that is free, for activations


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes that a pass keeps for each token until the backward pass."""

    whole: int
    checkpointed: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a dense transformer of Llama's and Qwen's kind."""

    layers: int
    width: int
    inner: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    has_biases: bool = False  # of queries, keys and values (Qwen2)
    has_head_norms: bool = False  # of queries and keys (Qwen3)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Return the shape that a model's ``config.json`` says.

        Raises:
            OptionError: It is no dense transformer, or says too little.

        Example:
            >>> config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
            >>> Shape.of(config | {"vocab_size": 512}).inner
            256
        """
        if config.get("num_experts") or config.get("num_local_experts"):
            raise OptionError(
                "expected a dense model, found one with experts, whose memory is not estimated here; "
                "leave --dry-run out"
            )
        try:
            width = int(config["hidden_size"])
            heads = int(config["num_attention_heads"])
            kind = str(config.get("model_type", ""))
            return cls(
                layers=int(config["num_hidden_layers"]),
                width=width,
                inner=int(config.get("intermediate_size") or 4 * width),
                heads=heads,
                key_value_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or width // heads),
                vocabulary=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                has_biases=bool(config.get("attention_bias", kind == "qwen2")) or kind == "qwen2",
                has_head_norms=kind == "qwen3",
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise OptionError(
                "expected a config.json with hidden_size, num_hidden_layers, num_attention_heads and "
                f"vocab_size, found another ({type(error).__name__}: {error!s:.80}); name another model"
            ) from error

    @property
    def embeddings(self) -> int:
        """Weights of embeddings and head."""
        return self.vocabulary * self.width * (2 - self.tied)

    @property
    def layer(self) -> int:
        """Weights of a layer."""
        weights = sum(rows * columns for rows, columns in self._projections())
        attention = (self.heads + 2 * self.key_value_heads) * self.head_size
        return (
            weights
            + 2 * self.width
            + self.has_biases * attention
            + self.has_head_norms * 2 * self.head_size
        )

    @property
    def parameters(self) -> int:
        """All weights.

        Example:
            >>> SHAPES["Qwen/Qwen3-0.6B"].parameters
            596049920
        """
        return self.embeddings + self.layers * self.layer + self.width

    def adapter(self, rank: int) -> int:
        """Return the weights of an adapter of all seven projections.

        Example:
            >>> round(SHAPES["Qwen/Qwen3-8B"].adapter(16) / 1e6, 1)
            43.6
        """
        ends = sum(rows + columns for rows, columns in self._projections())
        return self.layers * rank * ends

    def _projections(self) -> tuple[tuple[int, int], ...]:
        """Return the sizes of a layer's seven projections."""
        queries = self.heads * self.head_size
        keys = self.key_value_heads * self.head_size
        return (
            (self.width, queries),
            (self.width, keys),
            (self.width, keys),
            (queries, self.width),
            (self.width, self.inner),
            (self.width, self.inner),
            (self.inner, self.width),
        )


SHAPES: Mapping[str, Shape] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Shape(30, 576, 1536, 9, 3, 64, 49_152, True),
    "Qwen/Qwen3-0.6B": Shape(28, 1024, 3072, 16, 8, 128, 151_936, True, has_head_norms=True),
    "Qwen/Qwen2.5-1.5B-Instruct": Shape(28, 1536, 8960, 12, 2, 128, 151_936, True, has_biases=True),
    "Qwen/Qwen3-8B": Shape(36, 4096, 12_288, 32, 8, 128, 151_936, False, has_head_norms=True),
    "Qwen/Qwen3-32B": Shape(64, 5120, 25_600, 64, 8, 128, 151_936, False, has_head_norms=True),
}
"""The shapes that the documentation's tables are made of, from the models' public ``config.json``."""


def kept_by(shape: Shape, size: int, *, mixed: bool) -> Activations:
    """Return what a transformer keeps for each token, all of it or with gradient checkpointing.

    Args:
        shape: Of the model.
        size: Bytes of a weight.
        mixed: Whether it computes in bfloat16 by autocast.
    """
    hidden = shape.width
    inner = shape.inner
    attention = shape.heads * shape.head_size
    if mixed:
        layer = 12 * inner + 44 * hidden + 24 * attention
        state = 4 * hidden  # the residual stream is single precision in places
    else:
        layer = size * (5 * inner + 12 * hidden + 8 * attention)
        state = size * hidden

    # With checkpointing a layer keeps its input alone, and one layer at a time is computed again.
    layers = shape.layers
    return Activations(whole=layers * layer, checkpointed=layers * state + layer)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What of a training's settings decides its memory."""

    weights: Literal["lora", "full"]
    rank: int = 8
    adapters: int = 1  # that are trained, or kept beside
    models: int = 1  # with all weights: how many there are; one at a time is trained
    reference: bool = False  # a frozen copy, where all weights are trained
    critic: bool = False  # a second model that is trained
    processes: int = 1
    sharded: bool = False  # FSDP2; else each process holds the whole model
    pass_tokens: int | None = None  # of a pass; None for as many as fit
    longest: int = 2048  # tokens of a row
    checkpointing: bool | None = None  # None: where activations do not fit
    mixed: bool = True  # passes in bfloat16
    engine_share: float = 0.0  # of the card, for vLLM in the process: all its engines together
    can_shard: bool = True  # whether the training takes FSDP2


class Part(NamedTuple):
    """A part of a GPU's memory: what it is, its bytes, and how they were computed."""

    name: str
    size: float
    basis: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process needs of its card."""

    parts: tuple[Part, ...]
    pass_tokens: int
    checkpointing: bool
    card: float
    engine_lack: float = 0.0  # bytes that vLLM needs beyond its share

    @property
    def size(self) -> float:
        """All bytes."""
        return sum(part.size for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether that is no more than what a card gives, and vLLM's share holds its weights."""
        return self.size <= USABLE * self.card and not self.engine_lack


def memory(shape: Shape, setup: Setup, card: float) -> Memory:
    """Return what a process of a training needs of a card of so many bytes.

    Example:
        >>> full = memory(SHAPES["Qwen/Qwen3-8B"], Setup(weights="full"), 80e9)
        >>> lora = memory(SHAPES["Qwen/Qwen3-8B"], Setup(weights="lora"), 80e9)
        >>> full.fits, lora.fits
        (False, True)
    """
    parts = [*_states(shape, setup)]
    engine_lack = 0.0
    if setup.engine_share:
        share = setup.engine_share * card
        needed = engine_needs(shape, setup)
        engine_lack = max(needed - share, 0.0)
        basis = f"its share of the card; weights and a row's cache need {needed / 1e9:.1f}"
        parts.append(Part("vLLM in the process", share, basis))

    # Activations may have half of what is left, and are computed again where they do not fit.
    token_bytes = kept_by(shape, 4, mixed=setup.mixed)
    budget = max(_SHARE * (card - sum(part.size for part in parts)), 0.0)
    checkpointing = setup.checkpointing
    if checkpointing is None:
        tokens = setup.pass_tokens or setup.longest
        checkpointing = setup.sharded or tokens * token_bytes.whole > budget
    per_token = token_bytes.whole
    mode = "all kept"
    if checkpointing:
        per_token = token_bytes.checkpointed
        mode = "with gradient checkpointing"
    pass_tokens = setup.pass_tokens or _fitting(budget, per_token, setup.longest)

    basis = f"{pass_tokens:,} tokens a pass, {mode}: {per_token / 1e6:.2f} MB a token"
    parts.append(Part("activations", pass_tokens * per_token, basis))
    logits = min(pass_tokens * shape.vocabulary, card / LOGITS_SHARE)
    parts.append(Part("logits", 4 * logits, "4 bytes each, at most 1/32 of the card"))
    return Memory(tuple(parts), pass_tokens, checkpointing, card, engine_lack)


def engine_needs(shape: Shape, setup: Setup) -> float:
    """Return the bytes that vLLM in the process takes at least: all weights, and one row's keys and values.

    Adapters share one engine; models with weights of their own have one each.
    """
    size = 2 if setup.mixed else 4
    engines = setup.models if setup.weights == "full" else 1
    cache = 2 * shape.layers * shape.key_value_heads * shape.head_size * setup.longest
    return float(engines * size * (shape.parameters + cache))


def _fitting(budget: float, per_token: int, longest: int) -> int:
    """Return how many tokens of a pass fit: a power of two, and at least a row."""
    room = max(int(budget / per_token), 1)
    tokens: int = min(2 ** (room.bit_length() - 1), _MOST_TOKENS)
    return max(tokens, longest)


def _states(shape: Shape, setup: Setup) -> Sequence[Part]:
    """Return what weights, gradients and the optimizer take, and what FSDP2 gathers."""
    number = shape.parameters
    shards = 1
    over = ""
    if setup.sharded:
        shards = setup.processes
        over = f" / {shards}"
    if setup.weights == "lora":
        adapter = shape.adapter(setup.rank)
        trained = adapter
        size = 2 if setup.mixed else 4
        billions = f"{number / 1e9:.3f} billion"
        parts = [
            Part("frozen weights", size * number / shards, f"{size} · {billions}{over}"),
            Part(
                "adapters, gradients, optimizer",
                16 * adapter * setup.adapters / shards,
                f"16 · {adapter * setup.adapters / 1e6:.1f} million{over}",
            ),
        ]
        gathered = 2 * shape.embeddings + 4 * shape.layer
    else:
        trained = number
        billions = f"{number / 1e9:.3f} billion"
        parts = [
            Part("weights", 4 * number / shards, f"4 · {billions}{over}"),
            Part("gradients", 4 * number / shards, f"4 · {billions}{over}"),
            Part("optimizer", 8 * number / shards, f"8 · {billions}{over}: AdamW's two moments"),
        ]
        if setup.models > 1:
            others = 4 * number * (setup.models - 1) / shards
            basis = f"{setup.models - 1} · 4 · {billions}{over}"
            parts.append(Part("other models", others, basis))
        if setup.reference:
            parts.append(Part("reference", 4 * number / shards, f"4 · {billions}{over}"))
        if setup.critic:
            parts.append(Part("critic", 16 * number / shards, f"16 · {billions}{over}"))
        if setup.mixed and not setup.sharded:
            parts.append(Part("weights in bfloat16", 2 * number, f"2 · {billions}"))
        gathered = 8 * shape.embeddings + 10 * shape.layer

    if setup.sharded:
        basis = "embeddings and head, two layers, and their gradients where they are trained"
        parts.append(Part("gathered", gathered, basis))
    elif setup.processes > 1:
        basis = f"4 · {trained / 1e9:.3f} billion: DDP copies gradients to send them"
        parts.append(Part("gradients to send", 4 * trained, basis))
    return parts


class Rate(NamedTuple):
    """What an update was measured to use of a card's arithmetic."""

    parameters: int
    share: float
    basis: str


PEAKS: Mapping[str, float] = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
"""Operations a second in bfloat16, dense, as the makers publish them."""

RATES = (
    Rate(596_049_920, 0.041, "PaW with all weights of Qwen3-0.6B's shape on an H100"),
    Rate(4_022_468_096, 0.194, "PaW with adapters of a 4B model on an H100"),
)
"""From benchmarks/results/gpu_costs.json, measured in November 2026 on code before later work."""


def rates_of(parameters: int) -> tuple[Rate, ...]:
    """Return the rates of the next smaller and the next larger model that were measured.

    Example:
        >>> [rate.share for rate in rates_of(8_190_735_360)], [rate.share for rate in rates_of(10**9)]
        ([0.194], [0.041, 0.194])
    """
    smaller = [rate for rate in RATES if rate.parameters <= parameters]
    larger = [rate for rate in RATES if rate.parameters >= parameters]
    neighbors = (*smaller[-1:], *larger[:1])
    return tuple(dict.fromkeys(neighbors))


def peak_of(card: str) -> tuple[str, float]:
    """Return the known card that a name means, and its operations a second; an A100 where none is.

    Example:
        >>> peak_of("NVIDIA H100 80GB HBM3")
        ('H100', 989000000000000.0)
    """
    for name, peak in PEAKS.items():
        if name in card:
            return name, peak
    return "A100", PEAKS["A100"]


def training_hours(
    shape: Shape,
    tokens: float,
    *,
    full: bool,
    checkpointing: bool,
    passes: int,
    card: str,
    cards: int,
) -> tuple[float, float]:
    """Return the fewest and the most hours that so many tokens take to be learned: one for each rate.

    A token costs 6 operations for each weight, 4 where weights are frozen, 2 more where activations are
    computed again, and 2 for each pass without gradients.

    Example:
        >>> shape = SHAPES["Qwen/Qwen3-8B"]
        >>> one = training_hours(shape, 1e8, full=True, checkpointing=True, passes=0, card="H100", cards=1)
        >>> two = training_hours(shape, 1e8, full=True, checkpointing=True, passes=0, card="H100", cards=2)
        >>> one[0] == 2 * two[0]
        True
    """
    operations = 4 + 2 * full + 2 * checkpointing + 2 * passes
    _, peak = peak_of(card)
    hours = [
        operations * shape.parameters * tokens / (cards * peak * rate.share) / 3600
        for rate in rates_of(shape.parameters)
    ]
    return min(hours), max(hours)
