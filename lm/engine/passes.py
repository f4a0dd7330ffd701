"""Forward passes of a batch: generated text, log-probabilities of many continuations, hidden states."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ...errors import LanguageModelError
from ..base import Encode, Generate, Sampling
from .cache import PrefixTree, cache_class, common, line_mask
from .ngrams import LONG


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
    wholes = [tuple(sequence) for sequence in sequences]
    beginnings: Counter[tuple[int, ...]] = Counter()
    for whole in set(wholes):
        beginnings.update(whole[:length] for length in range(1, len(whole) + 1))

    unique = []
    for whole in wholes:
        lengths = range(1, len(whole) + 1)
        shared = sum(beginnings[whole[:length]] > 1 for length in lengths)
        unique.append(whole[: shared + 1])
    return unique


_WORTH_SHARING = 64  # tokens; one more pass costs about as much as a small model's token
_LOGITS = 2**27  # the most logits of one pass: 134 million, which are 268 MB in bfloat16
_BY_LENGTH = ("dynamic", "longrope")  # rotary embeddings that look at a pass's last position
_TOP = 1024  # tokens among which a nucleus is looked for first
_SLICE = 2**24  # the most logits that are made single precision at a time


def chunks(lengths: Sequence[int], rows: int, tokens: int) -> list[list[int]]:
    """Return which items go together: alike in length, the longest first."""
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    together: list[list[int]] = []
    for i in longest_first:
        last = together[-1] if together else []
        if last and len(last) < rows and (len(last) + 1) * lengths[last[0]] <= tokens:
            last.append(i)
        else:
            together.append([i])
    return together


@dataclass(slots=True)
class Engine:
    """A model with the limits of its batches."""

    model: Any
    device: Any
    rows: int
    tokens: int
    tree: PrefixTree = field(default_factory=lambda: PrefixTree(0))
    short_of_memory: bool = False
    spare: dict[int, Any] = field(default_factory=dict)

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
                self.tree.clear()  # the rest is below, where no frame of the error holds tensors
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

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        more: int,
        guesses: Sequence[Sequence[int]] | None = None,
    ) -> Rows:
        """Return the beginning of prompts: what is known of them, and what is to be read.

        Args:
            prompts: Tokens; of each at least the last one will be read.
            more: How many slots each row needs beside its prompt.
            guesses: Tokens that are read after each prompt, of those `more`.
        """
        layers = self.model.config.get_text_config(decoder=True).num_hidden_layers
        rows = len(prompts)
        room = max(map(len, prompts)) + more

        paths = [self.tree.find(prompt[:-1]) for prompt in prompts]
        known = [sum(count for _, count in path) for path in paths]
        cache = cache_class()(layers, rows, room, min(known), self.spare)
        for row, path in enumerate(paths):
            cache.fill(row, path)

        if guesses is None:
            guesses = [[]] * rows
        texts = [[*prompt, *guess] for prompt, guess in zip(prompts, guesses, strict=True)]
        return Rows(self, texts, cache, known)


def additive(allowed: Any, dtype: Any) -> Any:
    """Return a mask that is 0 where `allowed` and hugely negative elsewhere."""
    import torch

    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    # Eager attention looks at double precision in single; half of its range is far enough.
    least = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min) / 2
    return mask.masked_fill_(~allowed, least)


@dataclass(slots=True)
class Rows:
    """Texts of any lengths in one batch, and the cache of what was read of them."""

    engine: Engine
    texts: Sequence[Sequence[int]]
    cache: Any
    known: list[int]

    def rest(self) -> tuple[Any, Any, Any]:
        """Return what is to be read, padded on the left: tokens, positions, and which are tokens."""
        import torch

        device = self.engine.device
        parts = [text[known:] for text, known in zip(self.texts, self.known, strict=True)]
        width = max(map(len, parts))
        ids = torch.tensor(
            [[0] * (width - len(part)) + list(part) for part in parts], device=device
        )
        lengths = torch.tensor([[len(text)] for text in self.texts], device=device)
        positions = torch.arange(width, device=device) + lengths - width
        return ids, positions, positions >= torch.tensor(self.known, device=device)[:, None]

    def read(
        self,
        ids: Any,
        positions: Any,
        valid: Any,
        *,
        slots: Any = None,
        allowed: Any = None,
        model: Any = None,
        **options: Any,
    ) -> Any:
        """Return what the model (or its `base_model`) computes for the next tokens.

        Slots are where they go, if not to their positions, and `allowed` which slots each one sees,
        if not all up to its own.
        """
        import torch

        cache = self.cache
        device = self.engine.device
        if slots is None:
            slots = positions
        ends = slots.masked_fill(~valid, -1)
        cache.upto = max(int(ends.max()) + 1, cache.upto)

        # Rows that go to the same slots, one after the other, are written as one block.
        first = int(slots[0, 0])
        count = slots.shape[1]
        alike = bool(valid.all()) and bool((slots == slots[:1]).all())
        if alike and count == int(slots[0, -1]) - first + 1:
            cache.slots = slice(first, first + count)
        else:
            cache.slots = slots.masked_fill(~valid, cache.room - 1)
            cache.numbers = torch.arange(len(slots), device=device)[:, None]

        positions = positions.clamp(min=0)
        mask = None
        whole = alike and cache.upto == first + count  # all slots are seen, or the model is causal
        if allowed is not None or not whole or (first and count > 1):
            if allowed is None:
                allowed = torch.arange(cache.upto, device=device) <= positions[:, :, None]
            mask = additive(allowed[:, None], self.engine.model.dtype)

        return (model or self.engine.model)(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **options,
        )

    def last(self, lengths: Sequence[int]) -> Any:
        """Return the logits after each text's last token and so many before it, padded at the end."""
        import torch

        model = self.engine.model
        cache = self.cache
        rows = len(self.texts)
        last = torch.tensor(lengths, device=self.engine.device)[:, None]
        width = max(lengths) + 1
        columns = torch.arange(width, device=self.engine.device).minimum(last) - last

        is_sdpa = model.config._attn_implementation == "sdpa"
        if self.engine.device.type != "cpu" or not is_sdpa or rows == 1:
            logits = self.read(*self.rest(), logits_to_keep=width).logits
            return logits.gather(1, (columns + width - 1)[:, :, None].expand(logits.shape))

        # On a CPU padding costs as much as tokens: all rows' tokens are read in one line.
        places = []
        for row, (text, known) in enumerate(zip(self.texts, self.known, strict=True)):
            places += [(text[slot], slot, row) for slot in range(known, len(text))]
        ids, slots, cache.numbers = torch.tensor(places).T[:, None]
        sizes = [*map(len, self.texts)]
        cache.slots = slots
        cache.upto = max(sizes)
        mask = line_mask().of(self.known, sizes, model.dtype)
        kept = torch.tensor([end - 1 for _, end, *_ in mask.parts])[:, None] + columns
        options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": kept.flatten()}
        logits = model(input_ids=ids, position_ids=slots, attention_mask=mask, **options).logits[0]
        return logits.view(rows, width, -1)

    def select(self, numbers: Sequence[int]) -> None:
        """Keep some rows, also several times."""
        import torch

        self.cache.select(torch.tensor(numbers, device=self.engine.device))
        self.texts = [self.texts[number] for number in numbers]

    def keep(self, row: int, tokens: Sequence[int]) -> None:
        """Keep what was computed for a row's first tokens."""
        self.engine.tree.add(tokens, lambda start, end: self.cache.states(row, start, end))


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
    random: Random = field(init=False)

    def restart(self) -> None:
        self.tokens = []
        self.logprobs = []
        self.finish = ""
        self.node = 0
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
    """Generate texts; several of a text's tokens in one pass where they were guessed."""
    import torch

    for row in rows:
        row.restart()
    device = engine.device
    active = list(rows)
    widest = max(_LOGITS // (len(rows) * _vocabulary(engine)), 1)  # tokens of a row in a pass
    config = engine.model.config.get_text_config(decoder=True)
    if any(kind in str(getattr(config, "rope_parameters", "")) for kind in _BY_LENGTH):
        widest = 1

    guesses = [_guess(engine, row, widest) for row in rows]
    logits, batch = _read(engine, rows, guesses)
    while True:
        _push(engine, active, guesses, logits)

        # Rows that are done leave the batch at once; what was computed for them is remembered.
        for number, row in enumerate(active):
            if row.finish:
                batch.keep(number, [*row.prompt, *row.tokens[:-1]])
        left = [number for number, row in enumerate(active) if not row.finish]
        if not left:
            engine.tree.shrink()
            return rows
        if len(left) < len(active):
            active = [active[number] for number in batch.cache.only(left)]

        # A column is read if it is a guess in at least half of the rows.
        guesses = [_guess(engine, row, widest) for row in active]
        width = 1 + sorted(map(len, guesses))[len(guesses) // 2]
        guesses = [guess[: width - 1] for guess in guesses]

        starts = [len(row.prompt) + len(row.tokens) - 1 for row in active]
        parts = [[row.tokens[-1], *guess] for row, guess in zip(active, guesses, strict=True)]
        lengths = torch.tensor([[len(part)] for part in parts], device=device)
        columns = torch.arange(width, device=device)
        padded = [part + [0] * (width - len(part)) for part in parts]
        logits = batch.read(
            torch.tensor(padded, device=device),
            torch.tensor(starts, device=device)[:, None] + columns.minimum(lengths - 1),
            columns < lengths,
            logits_to_keep=width,
        ).logits


def _guess(engine: Engine, row: Row, widest: int) -> list[int]:
    """Return what probably follows a row, as far as it would be read."""
    choices = row.trie and (row.trie, row.node)
    text = [*row.prompt[-LONG:], *row.tokens[-LONG:]]
    most = min(row.limit - len(row.tokens), widest) - 1
    return engine.tree.ngrams.after(text, most, row.ends, choices)


def _push(
    engine: Engine, rows: Sequence[Row], guesses: Sequence[Sequence[int]], logits: Any
) -> None:
    """Choose the next tokens of rows: one, and one more after each that was guessed."""
    import torch

    guessed_so_far = list(range(len(rows)))
    for column in range(logits.shape[1]):
        scores = logits[:, column]
        if len(guessed_so_far) < len(rows):
            scores = scores[torch.tensor(guessed_so_far, device=engine.device)]
        tokens, logprobs = _choose(scores, [rows[i] for i in guessed_so_far])

        rightly_guessed = []
        for i, token, logprob in zip(guessed_so_far, tokens, logprobs, strict=True):
            row = rows[i]
            row.push(token, logprob)
            if row.finish:
                engine.tree.ngrams.learn([*row.prompt[-LONG:], *row.tokens], len(row.tokens))
            elif guesses[i][column : column + 1] == [token]:
                rightly_guessed.append(i)
        if not rightly_guessed:
            return
        guessed_so_far = rightly_guessed


def _read(
    engine: Engine, rows: Sequence[Row], guesses: Sequence[Sequence[int]]
) -> tuple[Any, Rows]:
    """Return the logits after each row's prompt and guessed tokens, and the batch."""
    # Rows with the same prompt, as of several samples, are read once.
    number_of: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    numbers = [
        number_of.setdefault((tuple(row.prompt), tuple(guess)), len(number_of))
        for row, guess in zip(rows, guesses, strict=True)
    ]
    prompts, different_guesses = map(list, zip(*number_of, strict=True))

    shared = _shared_beginning(prompts)
    if shared:  # it is read once, for all rows
        start = prompts[0][:shared]
        if sum(count for _, count in engine.tree.find(start)) < shared - 1:
            beginning = engine.begin([start], 0)
            beginning.read(*beginning.rest(), logits_to_keep=1)
            beginning.keep(0, start)

    batch = engine.begin(prompts, max(row.limit for row in rows), different_guesses)
    logits = batch.last([*map(len, different_guesses)])
    if len(number_of) < len(rows):
        import torch

        logits = logits[torch.tensor(numbers, device=engine.device)]
        batch.select(numbers)
    return logits, batch


def _shared_beginning(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens all of some prompts begin with, if it is worth reading them apart."""
    if len(prompts) < 2:
        return 0
    alike = common(min(prompts), max(prompts))  # what the first and the last share, all share
    shared = min(alike, min(map(len, prompts)) - 1)  # each has a token of its own left to read
    return shared if shared >= _WORTH_SHARING else 0


def _choose(logits: Any, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Return each row's next token and its log-probability under the model itself."""
    import torch

    scores = _single(logits)
    chosen = torch.empty(len(rows), dtype=torch.long, device=scores.device)
    # A row's arithmetic must not depend on its neighbors: rows with top_p, whose probabilities
    # are added up in another order, are apart from rows without, and rows with a trie from others.
    groups: dict[tuple[bool, bool, bool], list[int]] = {}
    for i, row in enumerate(rows):
        kind = row.trie is not None, row.sampling.temperature > 0, row.sampling.top_p < 1
        groups.setdefault(kind, []).append(i)

    for (has_trie, is_sampled, _), members in groups.items():
        index: Any = slice(None)
        if len(members) < len(rows):
            index = torch.tensor(members, device=scores.device)
        options = scores[index]
        group = [rows[i] for i in members]
        if has_trie:
            tokens = _allowed(group, scores.device)
            options = options.gather(1, tokens.clamp(min=0))
            options.masked_fill_(tokens < 0, float("-inf"))

        # argmax is documented to be the first of equals
        picked = _sample(options, group) if is_sampled else options.argmax(-1)
        chosen[index] = tokens.gather(1, picked[:, None])[:, 0] if has_trie else picked

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
    temperatures = [row.sampling.temperature for row in rows]
    if any(value != 1 for value in temperatures):
        # First the maximum, then the division, so that no temperature is too small.
        scaled = (scaled - scaled.amax(-1, keepdim=True)) / column(temperatures)
    weights = scaled.softmax(-1)
    draws = column([row.random.random() for row in rows])
    if rows[0].sampling.top_p == 1:
        return _drawn(weights, draws)

    kept = column([row.sampling.top_p for row in rows])
    if weights.shape[1] <= 16 * _TOP:
        return _of_nucleus(weights, kept, draws)

    # To sort 150,000 tokens takes longer than the model: the nucleus is mostly among the first few.
    first = weights.topk(_TOP, sorted=False).indices.sort(-1).values  # equals stay in their order
    few = weights.gather(1, first)
    least = few.amin(
        -1, keepdim=True
    )  # of those that are as large, some may not be among the first
    enough = few.where(few > least, 0.0).sum(-1, keepdim=True) >= kept
    drawn = first[:, 0].clone()
    if bool(enough.any()):
        within = enough[:, 0].nonzero()[:, 0]
        picked = _of_nucleus(few[within], kept[within], draws[within])
        drawn[within] = first[within].gather(1, picked[:, None])[:, 0]
    if not bool(enough.all()):
        beyond = (~enough[:, 0]).nonzero()[:, 0]
        drawn[beyond] = _of_nucleus(weights[beyond], kept[beyond], draws[beyond])
    return drawn


def _of_nucleus(weights: Any, kept: Any, draws: Any) -> Any:
    """Return which of each row's weights is drawn from the largest that have so much of the total."""
    weights, order = weights.sort(stable=True, dim=-1, descending=True)
    weights = weights.where(weights.cumsum(-1) - weights < kept, 0.0)
    return order.gather(1, _drawn(weights, draws)[:, None])[:, 0]


def _drawn(weights: Any, draws: Any) -> Any:
    """Return which of each row's weights a number between 0 and 1 means."""
    import torch

    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:]
    # Rounding must not lift the number to the total, beyond which there is no token.
    below = torch.nextafter(total, torch.zeros_like(total))
    wanted = torch.minimum(draws * total, below)
    index = torch.searchsorted(cumulated, wanted, right=True)
    return index.clamp_(max=weights.shape[1] - 1)[:, 0]


@dataclass(frozen=True, slots=True)
class Branches:
    """Continuations of a prompt, and which of a request's continuations these are."""

    prompt: Sequence[int]
    trie: TokenTrie
    indices: Sequence[int]


def split(engine: Engine, prompt: int, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return which continuations of a prompt can be scored in one pass: all, or halves of them."""

    def parts(indices: list[int]) -> list[list[int]]:
        inner = len(TokenTrie([sequences[i] for i in indices]).inner())
        # A tree as long as its prompt costs no more than the prompt, however long that is.
        fits_tokens = prompt + inner <= max(engine.tokens, 2 * prompt)
        fits_logits = inner * _vocabulary(engine) <= _LOGITS
        if len(indices) < 2 or (fits_tokens and fits_logits):
            return [indices]
        half = len(indices) // 2
        return parts(indices[:half]) + parts(indices[half:])

    return parts(list(range(len(sequences))))


def branch_logprobs(
    engine: Engine, items: Sequence[Branches]
) -> list[list[float] | LanguageModelError]:
    """Return for each node of each item's trie the log-probability of its token there."""
    values_of_items: list[list[float] | LanguageModelError] = [[0.0] for _ in items]
    to_read = [i for i, item in enumerate(items) if len(item.trie) > 1]
    read_items = [items[i] for i in to_read]

    inner = [len(item.trie.inner()) for item in read_items]
    most = _LOGITS // _vocabulary(engine)

    def work(chunk: list[int]) -> list[list[float]]:
        values: list[list[float]] = []
        while chunk:  # as many at once as do not have too many logits
            sizes = ((n, n * max(inner[i] for i in chunk[:n])) for n in range(len(chunk), 1, -1))
            count = next((n for n, size in sizes if size <= most), 1)
            values += _pass(engine, [read_items[i] for i in chunk[:count]])
            chunk = chunk[count:]
        return values

    lengths = [len(item.prompt) + size - 1 for item, size in zip(read_items, inner, strict=True)]
    for i, values in zip(to_read, engine.run(lengths, work), strict=True):
        values_of_items[i] = values
    return values_of_items


def _vocabulary(engine: Engine) -> int:
    return int(engine.model.config.get_text_config(decoder=True).vocab_size)


def _pass(engine: Engine, items: Sequence[Branches]) -> list[list[float]]:
    """Return the log-probabilities of all nodes of some items by one forward pass."""
    import torch

    def padded(lists: Sequence[Sequence[int]]) -> Any:
        rows = [list(values) + [0] * (nodes - len(values)) for values in lists]
        return torch.tensor(rows, device=engine.device)

    inner = [item.trie.inner()[1:] for item in items]
    nodes = max(map(len, inner))
    batch = engine.begin([item.prompt for item in items], nodes)
    ids, positions, valid = batch.rest()

    # A node's position is its depth; its slot is one of its own, as siblings have the same position.
    of_trees: dict[str, Any] = {}
    if nodes:
        tokens = []
        depths = []
        for item, inner_nodes in zip(items, inner, strict=True):
            tokens.append([item.trie.tokens[node] for node in inner_nodes])
            depths.append([item.trie.depths[node] for node in inner_nodes])
        of_trees["allowed"] = _tree_mask(engine, positions, items, inner)
        last = positions[:, -1:]
        numbers = torch.arange(nodes, device=engine.device)
        of_trees["slots"] = torch.cat([positions, last + 1 + numbers], 1)
        counts = torch.tensor([[len(inner_nodes)] for inner_nodes in inner], device=engine.device)
        valid = torch.cat([valid, numbers < counts], 1)
        ids = torch.cat([ids, padded(tokens)], 1)
        positions = torch.cat([positions, last + padded(depths)], 1)

    logits = batch.read(ids, positions, valid, logits_to_keep=nodes + 1, **of_trees).logits
    for row, item in enumerate(items):
        batch.keep(row, item.prompt)
    engine.tree.shrink()
    return _gathered(logits[:, -(nodes + 1) :], items, inner)


def _tree_mask(
    engine: Engine, positions: Any, items: Sequence[Branches], inner: list[list[int]]
) -> Any:
    """Return which slots are seen: prompts are causal; a node sees prompt, ancestors and itself."""
    import numpy as np
    import torch

    lengths = [len(item.prompt) for item in items]
    upto = max(length + len(nodes) for length, nodes in zip(lengths, inner, strict=True))
    allowed = np.zeros((len(items), max(map(len, inner)), upto), dtype=bool)
    for seen, item, nodes, length in zip(allowed, items, inner, lengths, strict=True):
        column = {node: index for index, node in enumerate(nodes)}
        seen[:, :length] = True
        for index, node in enumerate(nodes):
            parent = column.get(item.trie.parents[node])
            if parent is not None:  # parents come first: what they see is known
                seen[index] = seen[parent]
            seen[index, length + index] = True

    causal = torch.arange(upto, device=engine.device) <= positions.clamp(min=0)[:, :, None]
    return torch.cat([causal, torch.from_numpy(allowed).to(engine.device)], 1)


def _gathered(logits: Any, items: Sequence[Branches], inner: list[list[int]]) -> list[list[float]]:
    """Return the log-probability of every node, taken from its parent's logits."""
    import torch

    rows, columns, vocabulary = logits.shape
    flat = logits.reshape(rows * columns, vocabulary)
    normal = torch.cat(
        [_single(part).logsumexp(-1) for part in flat.split(max(_SLICE // vocabulary, 1))]
    )

    parents: list[int] = []
    tokens: list[int] = []
    for row, (item, nodes) in enumerate(zip(items, inner, strict=True)):
        column = {node: index for index, node in enumerate(nodes, 1)} | {0: 0}
        parents += [row * columns + column[parent] for parent in item.trie.parents[1:]]
        tokens += item.trie.tokens[1:]

    logits_row = torch.tensor(parents, device=logits.device)
    token = torch.tensor(tokens, device=logits.device)
    values = iter((_single(flat[logits_row, token]) - normal[logits_row]).tolist())
    return [[0.0] + [next(values) for _ in item.trie.tokens[1:]] for item in items]


def _single(values: Any) -> Any:
    return values if values.dtype.itemsize == 8 else values.float()


def last_hidden(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the last layer's hidden state, normed, at the last token of each prompt."""
    batch = engine.begin(prompts, 0)
    states = batch.read(*batch.rest(), model=engine.model.base_model).last_hidden_state
    for row, prompt in enumerate(prompts):
        batch.keep(row, prompt)
    engine.tree.shrink()
    hidden: list[list[float]] = states[:, -1].float().tolist()
    return hidden


def computed(engine: Engine, kind: type, items: Sequence[Any]) -> list[Any]:
    """Return what requests of one kind ask for.

    Args:
        engine: The model and its limits.
        kind: `Generate` (items are `Row`), `Encode` (tokens of prompts), or `Score` and `NextWord` (lists
            of `Branches`).
        items: One for each request.

    Returns:
        For each item the row itself, written to its end; a hidden state; or for each of its branches the
        log-probability of every node. An item that memory is too short for has an error.
    """
    work: Callable[[Engine, Sequence[Any]], Sequence[Any]]
    if kind is Generate:
        work = decode
        lengths = [len(row.prompt) + row.limit for row in items]
    elif kind is Encode:
        work = last_hidden
        lengths = [len(prompt) for prompt in items]
    else:
        return _scored(engine, items)
    return engine.run(lengths, lambda chunk: work(engine, [items[i] for i in chunk]))


def _scored(engine: Engine, items: Sequence[Sequence[Branches]]) -> list[Any]:
    """Return the values of each item's branches, or an error that one of them has."""
    all_branches = [branches for item in items for branches in item]
    values = iter(branch_logprobs(engine, all_branches))

    scored = []
    for item in items:
        parts = [next(values) for _ in item]
        errors = [part for part in parts if isinstance(part, LanguageModelError)]
        scored.append(errors[0] if errors else parts)
    return scored
