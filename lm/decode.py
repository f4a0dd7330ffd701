"""Forward passes of a batch: generated text, log-probabilities of many continuations, hidden states."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from random import Random
from typing import Any

from ..errors import LanguageModelError
from .base import Sampling


class TokenTrie:
    """A tree of tokens; node 0 is its root, and every node comes after its parent."""

    __slots__ = ("children", "depths", "ends", "parents", "tokens")

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.tokens = [-1]
        self.parents = [-1]
        self.depths = [0]
        self.children: list[dict[int, int]] = [{}]
        self.ends = [self._add(sequence) for sequence in sequences]

    def __len__(self) -> int:
        return len(self.tokens)

    def _add(self, sequence: Sequence[int]) -> int:
        node = 0
        for token in sequence:
            child = self.children[node].get(token)
            if child is None:
                child = self.children[node][token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1)
                self.children.append({})
            node = child
        return node

    def path(self, node: int) -> list[int]:
        """Return the nodes from below the root to `node`, that one included."""
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def inner(self) -> list[int]:
        """Return the nodes that have children, parents first."""
        return [node for node, children in enumerate(self.children) if children]


def until_unique(sequences: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return for each sequence its tokens up to the first that tells it from all others."""
    whole = [tuple(sequence) for sequence in sequences]
    counts = Counter(one[:n] for one in set(whole) for n in range(1, len(one) + 1))
    shared = [sum(counts[one[:n]] > 1 for n in range(1, len(one) + 1)) for one in whole]
    return [one[: count + 1] for one, count in zip(whole, shared, strict=True)]


_BLOCK = 64  # tokens by which the cache grows
_WORTH_SHARING = 64  # tokens; one more pass costs about as much as a small model's token
_LOGITS = 2**27  # the most logits of one pass: 134 million, which are 268 MB in bfloat16
_SLICE = 2**24  # the most logits that are made single precision at a time


@lru_cache(maxsize=1)
def _layer_class() -> Any:
    """Return a cache's layer that grows by blocks, and not with a copy for each token."""
    from transformers.cache_utils import DynamicLayer

    parent: Any = DynamicLayer

    class BlockLayer(parent):  # type: ignore[misc]
        """A layer whose `keys` and `values` are views of the used part of larger tensors."""

        keys: Any
        values: Any

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                self._room = [key_states[:, :, :0], value_states[:, :, :0]]
            used, new = self.get_seq_length(), key_states.shape[-2]
            if used + new > self._room[0].shape[-2]:
                size = used + new + _BLOCK
                old = (self.keys, self.values) if used else (key_states, value_states)
                self._room = [one.new_empty(*one.shape[:2], size, one.shape[3]) for one in old]
                for room, one in zip(self._room, old, strict=True):
                    room[:, :, :used] = one[:, :, :used]
            self._room[0][:, :, used : used + new] = key_states
            self._room[1][:, :, used : used + new] = value_states
            self.keys, self.values = (room[:, :, : used + new] for room in self._room)
            # What was just computed is laid out better for attention than the view of it.
            return (self.keys, self.values) if used else (key_states, value_states)

        def batch_select_indices(self, indices: Any) -> None:
            if self.get_seq_length():
                used = self.get_seq_length()
                self._room = [room.index_select(0, indices) for room in self._room]
                self.keys, self.values = (room[:, :, :used] for room in self._room)

    return BlockLayer


def chunks(lengths: Sequence[int], rows: int, tokens: int) -> list[list[int]]:
    """Return which items go together: alike in length, the longest first."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    found: list[list[int]] = []
    for i in order:
        last = found[-1] if found else []
        if last and len(last) < rows and (len(last) + 1) * lengths[last[0]] <= tokens:
            last.append(i)
        else:
            found.append([i])
    return found


@dataclass(slots=True)
class Engine:
    """A model with the limits of its batches."""

    model: Any
    device: Any
    rows: int
    tokens: int
    short_of_memory: bool = False

    def run(self, lengths: Sequence[int], work: Callable[[list[int]], Sequence[Any]]) -> list[Any]:
        """Return what `work` returns for all items, in chunks that are halved when memory is short.

        An item that needs too much memory by itself has its error in its place.
        """
        import torch

        results: list[Any] = [None] * len(lengths)
        waiting = chunks(lengths, self.rows, self.tokens)[::-1]
        while waiting:
            chunk = waiting.pop()
            try:
                for i, result in zip(chunk, work(chunk), strict=True):
                    results[i] = result
                continue
            except torch.OutOfMemoryError:
                pass  # handled below, where the error's frames no longer hold tensors
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if len(chunk) == 1:
                results[chunk[0]] = LanguageModelError(
                    f"a sequence of {lengths[chunk[0]]:,} tokens does not fit into the GPU's memory by "
                    "itself; shorten the conversation, or use a smaller model or dtype bfloat16"
                )
                continue
            if not self.short_of_memory:
                self.short_of_memory = True
                warnings.warn(
                    f"a batch of {len(chunk)} sequences does not fit into the GPU's memory and is "
                    "halved; smaller batch_tokens or batch_rows avoid the wasted attempt",
                    ResourceWarning,
                    stacklevel=2,
                )
            half = len(chunk) // 2
            waiting += [chunk[half:], chunk[:half]]
        return results

    def pad(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any, Any]:
        """Return prompts as one batch, padded on the left."""
        import torch

        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=self.device
        )
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        positions = torch.arange(width, device=self.device) + (lengths - width)[:, None]
        return ids, positions.clamp(min=0), positions >= 0

    def additive(self, allowed: Any) -> Any:
        """Return a mask that is 0 where `allowed` and hugely negative elsewhere."""
        import torch

        dtype = self.model.dtype
        mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        # Eager attention looks at double precision in single; half of its range is far enough.
        least = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min) / 2
        return mask.masked_fill_(~allowed, least)

    def causal(self, valid: Any, before: int = 0) -> Any:
        """Return the mask of padded prompts, or None where none is needed."""
        if not before and bool(valid.all()):
            return None
        import torch

        width = valid.shape[1]
        earlier = torch.ones(width, width, dtype=torch.bool, device=self.device).tril_()
        seen = torch.nn.functional.pad(earlier & valid[:, None, :], (before, 0), value=True)
        return self.additive(seen[:, None])


@dataclass(slots=True, eq=False)
class Row:
    """One text being generated."""

    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    ends: frozenset[int]
    trie: TokenTrie | None = None
    stopped: Callable[[list[int]], bool] | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    node: int = 0
    random: Random = field(default_factory=Random)

    def restart(self) -> None:
        self.tokens, self.logprobs, self.finish, self.node = [], [], "", 0
        # Python's generator: any whole number is a seed (torch's keeps 32 bits), one number per
        # position whatever the limit, and the same in every version.
        self.random = Random(self.sampling.seed & (2**64 - 1))

    def push(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.trie is not None:
            self.node = self.trie.children[self.node][token]
            if not self.trie.children[self.node]:
                self.finish = "stop"
        elif token in self.ends or (self.stopped is not None and self.stopped(self.tokens)):
            self.finish = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish = "length"


def decode(engine: Engine, rows: Sequence[Row]) -> Sequence[Row]:
    import torch

    active = list(rows)
    for row in active:
        row.restart()
    logits, cache, valid, lengths = _read(engine, active)
    padded = not bool(valid.all())
    if padded:
        room = max(row.limit for row in rows)
        generated = torch.ones(len(rows), room, dtype=torch.bool, device=engine.device)
        mask = engine.additive(torch.cat([valid, generated], 1))[:, None, None]
    seen = valid.shape[1]
    while True:
        tokens, logprobs = _choose(logits, active)
        for row, token, logprob in zip(active, tokens, logprobs, strict=True):
            row.push(token, logprob)
        keep = [i for i, row in enumerate(active) if not row.finish]
        if not keep:
            return rows
        if len(keep) < len(active):
            index = torch.tensor(keep, device=engine.device)
            cache.batch_select_indices(index)
            lengths = lengths[index]
            mask = mask[index] if padded else None
            active = [active[i] for i in keep]
            tokens = [tokens[i] for i in keep]
        seen += 1
        logits = engine.model(
            input_ids=torch.tensor(tokens, device=engine.device)[:, None],
            position_ids=lengths[:, None],
            attention_mask=mask[..., :seen] if padded else None,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        lengths = lengths + 1


def _read(engine: Engine, rows: Sequence[Row]) -> tuple[Any, Any, Any, Any]:
    """Return the first logits, the cache, where there are tokens, and the lengths of the prompts."""
    import torch
    from transformers.cache_utils import Cache

    number: dict[tuple[int, ...], int] = {}
    which = [number.setdefault(tuple(row.prompt), len(number)) for row in rows]
    prompts = list(number)
    layers = engine.model.config.get_text_config(decoder=True).num_hidden_layers
    cache = Cache(layers=[_layer_class()() for _ in range(layers)])  # all attend to everything
    if shared := _shared_beginning(prompts):  # it is read once, for the cache of every row
        engine.model(
            input_ids=torch.tensor([prompts[0][:shared]], device=engine.device),
            position_ids=torch.arange(shared, device=engine.device)[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_select_indices(
            torch.zeros(len(prompts), dtype=torch.long, device=engine.device)
        )
    ids, positions, valid = engine.pad([prompt[shared:] for prompt in prompts])
    positions = positions + shared
    mask = engine.causal(valid, shared)
    valid = torch.nn.functional.pad(valid, (shared, 0), value=True)
    logits = engine.model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    if len(number) < len(rows):
        index = torch.tensor(which, device=engine.device)
        cache.batch_select_indices(index)
        logits, positions, valid = logits[index], positions[index], valid[index]
    return logits, cache, valid, positions[:, -1] + 1


def _shared_beginning(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens all of some prompts begin with, if it is worth reading them apart."""
    if len(prompts) < 2:
        return 0
    # What the first and the last in order share, all between them share.
    pairs = zip(min(prompts), max(prompts), strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    shared = min(alike, min(map(len, prompts)) - 1)  # each has a token of its own left to read
    return shared if shared >= _WORTH_SHARING else 0


def _choose(logits: Any, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Return each row's next token and its log-probability under the model itself."""
    import torch

    scores = _single(logits)
    chosen = scores.argmax(-1)  # documented to be the first of equals
    # A row's arithmetic must not depend on its neighbors: rows with top_p, whose probabilities
    # are added up in another order, are apart from rows without, and rows with a trie from others.
    groups: dict[tuple[bool, bool, bool], list[int]] = {}
    for i, row in enumerate(rows):
        kind = row.trie is not None, row.sampling.temperature > 0, row.sampling.top_p < 1
        groups.setdefault(kind, []).append(i)
    for (bound, sampled, _), some in groups.items():
        if not (bound or sampled):
            continue
        index = torch.tensor(some, device=scores.device)
        options, group = scores[index], [rows[i] for i in some]
        if bound:
            tokens = _allowed(group, scores.device)
            options = options.gather(1, tokens.clamp(min=0))
            options.masked_fill_(tokens < 0, float("-inf"))
        picked = _sample(options, group) if sampled else options.argmax(-1)
        chosen[index] = tokens.gather(1, picked[:, None])[:, 0] if bound else picked
    logprobs = scores.gather(1, chosen[:, None])[:, 0] - scores.logsumexp(-1)
    both = torch.stack([chosen.double(), logprobs.double()]).tolist()  # one wait for the GPU
    return [int(token) for token in both[0]], both[1]


def _allowed(rows: Sequence[Row], device: Any) -> Any:
    """Return the tokens that each row's trie allows next, in ascending order; -1 where there are fewer."""
    import torch

    tokens = [sorted(row.trie.children[row.node]) for row in rows if row.trie is not None]
    width = max(map(len, tokens))
    return torch.tensor([some + [-1] * (width - len(some)) for some in tokens], device=device)


def _sample(scores: Any, rows: Sequence[Row]) -> Any:
    """Return an index into each row of scores, drawn with the rows' temperature and top-p."""
    import torch

    def column(values: list[float]) -> Any:
        return torch.tensor(values, dtype=torch.float64, device=scores.device)[:, None]

    scaled = scores.double()
    temperatures = column([row.sampling.temperature for row in rows])
    # First the maximum, then the division, so that no temperature is too small.
    weights = ((scaled - scaled.amax(-1, keepdim=True)) / temperatures).softmax(-1)
    order = None
    if rows[0].sampling.top_p < 1:
        weights, order = weights.sort(stable=True, dim=-1, descending=True)
        before = weights.cumsum(-1) - weights
        weights = weights.where(before < column([row.sampling.top_p for row in rows]), 0.0)
    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:]
    # Rounding must not lift the number to the total, beyond which there is no token.
    below = torch.nextafter(total, torch.zeros_like(total))
    wanted = torch.minimum(column([row.random.random() for row in rows]) * total, below)
    found = torch.searchsorted(cumulated, wanted, right=True).clamp_(max=scores.shape[1] - 1)
    return (found if order is None else order.gather(1, found))[:, 0]


@dataclass(frozen=True, slots=True)
class Branches:
    """Continuations of a prompt, and which of a request's continuations these are."""

    prompt: Sequence[int]
    trie: TokenTrie
    indices: Sequence[int]


def split(engine: Engine, prompt: int, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return which continuations of a prompt can be scored in one pass: all, or halves of them."""

    def parts(some: list[int]) -> list[list[int]]:
        inner = len(TokenTrie([sequences[i] for i in some]).inner())
        # A tree as long as its prompt costs no more than the prompt, however long that is.
        if len(some) < 2 or (
            prompt + inner <= max(engine.tokens, 2 * prompt)
            and inner * _vocabulary(engine) <= _LOGITS
        ):
            return [some]
        half = len(some) // 2
        return parts(some[:half]) + parts(some[half:])

    return parts(list(range(len(sequences))))


def branch_logprobs(
    engine: Engine, items: Sequence[Branches]
) -> list[list[float] | LanguageModelError]:
    """Return for each node of each item's trie the log-probability of its token there."""
    found: list[list[float] | LanguageModelError] = [[0.0] for _ in items]
    asked = [i for i, item in enumerate(items) if len(item.trie) > 1]
    some = [items[i] for i in asked]

    inner = [len(item.trie.inner()) for item in some]
    most = _LOGITS // _vocabulary(engine)

    def work(chunk: list[int]) -> list[list[float]]:
        values: list[list[float]] = []
        while chunk:  # as many at once as do not have too many logits
            sizes = ((n, n * max(inner[i] for i in chunk[:n])) for n in range(len(chunk), 1, -1))
            count = next((n for n, size in sizes if size <= most), 1)
            values += _pass(engine, [some[i] for i in chunk[:count]])
            chunk = chunk[count:]
        return values

    lengths = [len(item.prompt) + size - 1 for item, size in zip(some, inner, strict=True)]
    for i, values in zip(asked, engine.run(lengths, work), strict=True):
        found[i] = values
    return found


def _vocabulary(engine: Engine) -> int:
    return int(engine.model.config.get_text_config(decoder=True).vocab_size)


def _pass(engine: Engine, items: Sequence[Branches]) -> list[list[float]]:
    """Return the log-probabilities of all nodes of some items by one forward pass."""
    import torch

    def padded(lists: Sequence[Sequence[int]]) -> Any:
        rows = [list(values) + [0] * (nodes - len(values)) for values in lists]
        return torch.tensor(rows, device=engine.device)

    inner = [item.trie.inner()[1:] for item in items]
    ids, positions, valid = engine.pad([item.prompt for item in items])
    nodes = max(map(len, inner))
    if nodes:
        tokens = [[it.trie.tokens[n] for n in some] for it, some in zip(items, inner, strict=True)]
        depths = [[it.trie.depths[n] for n in some] for it, some in zip(items, inner, strict=True)]
        ids = torch.cat([ids, padded(tokens)], 1)
        after = positions[:, -1:] + padded(depths)
        mask = _tree_mask(engine, valid, items, inner, nodes)
        positions = torch.cat([positions, after], 1)
    else:
        mask = engine.causal(valid)
    logits = engine.model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        use_cache=False,
        logits_to_keep=nodes + 1,
    ).logits[:, -(nodes + 1) :]
    return _gathered(logits, items, inner)


def _tree_mask(
    engine: Engine, valid: Any, items: Sequence[Branches], inner: list[list[int]], nodes: int
) -> Any:
    """Return the mask: prompts are causal; a node sees the prompt, its ancestors and itself."""
    import numpy as np
    import torch

    rows, width = valid.shape
    ancestors = np.zeros((rows, nodes, nodes), dtype=bool)
    for seen, item, some in zip(ancestors, items, inner, strict=True):
        column = {node: index for index, node in enumerate(some)}
        for index, node in enumerate(some):
            parent = column.get(item.trie.parents[node])
            if parent is not None:
                seen[index] = seen[parent]
            seen[index, index] = True
    size = width + nodes
    allowed = torch.ones(rows, size, size, dtype=torch.bool, device=engine.device).tril_()
    allowed[:, :, :width] &= valid[:, None, :]
    allowed[:, width:, width:] = torch.from_numpy(ancestors).to(engine.device)
    return engine.additive(allowed[:, None])


def _gathered(logits: Any, items: Sequence[Branches], inner: list[list[int]]) -> list[list[float]]:
    """Return the log-probability of every node, taken from its parent's logits."""
    import torch

    rows, columns, vocabulary = logits.shape
    flat = logits.reshape(rows * columns, vocabulary)
    normal = torch.cat(
        [_single(part).logsumexp(-1) for part in flat.split(max(_SLICE // vocabulary, 1))]
    )
    rows_of_logits: list[int] = []
    tokens: list[int] = []
    for row, (item, some) in enumerate(zip(items, inner, strict=True)):
        column = {node: index for index, node in enumerate(some, 1)} | {0: 0}
        rows_of_logits += [row * columns + column[parent] for parent in item.trie.parents[1:]]
        tokens += item.trie.tokens[1:]
    at = torch.tensor(rows_of_logits, device=logits.device)
    of = torch.tensor(tokens, device=logits.device)
    values = iter((_single(flat[at, of]) - normal[at]).tolist())
    return [[0.0] + [next(values) for _ in item.trie.tokens[1:]] for item in items]


def _single(values: Any) -> Any:
    return values if values.dtype.itemsize == 8 else values.float()


def last_hidden(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the last layer's hidden state, normed, at the last token of each prompt."""
    ids, positions, valid = engine.pad(prompts)
    states = engine.model.base_model(
        input_ids=ids, position_ids=positions, attention_mask=engine.causal(valid), use_cache=False
    ).last_hidden_state
    found: list[list[float]] = states[:, -1].float().tolist()
    return found
