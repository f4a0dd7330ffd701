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

        `work` gets the indices of a chunk's items. An item that needs too much memory by itself has its
        error in its place.
        """
        import torch

        answers: list[Any] = [None] * len(lengths)
        waiting = chunks(lengths, self.rows, self.tokens)[::-1]
        while waiting:
            chunk = waiting.pop()
            try:
                for i, answer in zip(chunk, work(chunk), strict=True):
                    answers[i] = answer
                continue
            except torch.OutOfMemoryError:
                self.tree.clear()  # the rest is below, where no frame of the error holds tensors
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

            if len(chunk) == 1:
                answers[chunk[0]] = LanguageModelError(
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
        return answers

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        extra_slots: int,
        guesses: Sequence[Sequence[int]] | None = None,
    ) -> Rows:
        """Return a batch of prompts, its cache filled with what the tree holds of them.

        Args:
            prompts: Tokens; of each at least the last one will be read.
            extra_slots: How many slots each row needs beside its prompt.
            guesses: Tokens that are read after each prompt; they take some of `extra_slots`.
        """
        layers = self.model.config.get_text_config(decoder=True).num_hidden_layers
        rows = len(prompts)
        slots = max(map(len, prompts)) + extra_slots

        # Without its last token: a prompt's logits are those after it, and the tree holds none.
        paths = [self.tree.find(prompt[:-1]) for prompt in prompts]
        known_lengths = [sum(count for _, count in path) for path in paths]
        cache = cache_class()(layers, rows, slots, min(known_lengths), self.spare)
        for row, path in enumerate(paths):
            cache.fill(row, path)

        if guesses is None:
            guesses = [[]] * rows
        texts = [[*prompt, *guess] for prompt, guess in zip(prompts, guesses, strict=True)]
        return Rows(self, texts, cache, known_lengths)


def additive(allowed: Any, dtype: Any) -> Any:
    """Return a mask that is 0 where `allowed` and hugely negative elsewhere."""
    import torch

    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    # Eager attention looks at double precision in single; half of its range is far enough.
    least = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min) / 2
    return mask.masked_fill_(~allowed, least)


@dataclass(slots=True)
class Rows:
    """Texts of any lengths in one batch, and the cache of what was read of them.

    Attributes:
        known_lengths: How many of each text's first tokens the cache had from the start.
    """

    engine: Engine
    texts: Sequence[Sequence[int]]
    cache: Any
    known_lengths: list[int]

    def rest(self) -> tuple[Any, Any, Any]:
        """Return what is to be read, padded on the left: tokens, positions, and which are tokens."""
        import torch

        device = self.engine.device
        unread = [
            text[known_length:]
            for text, known_length in zip(self.texts, self.known_lengths, strict=True)
        ]
        width = max(map(len, unread))
        padded = [[0] * (width - len(tokens)) + list(tokens) for tokens in unread]
        ids = torch.tensor(padded, device=device)

        # Padding has the positions before the first unread token, some of them below 0.
        lengths = torch.tensor([[len(text)] for text in self.texts], device=device)
        positions = torch.arange(width, device=device) + lengths - width
        starts = torch.tensor(self.known_lengths, device=device)[:, None]
        return ids, positions, positions >= starts

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
        """Return what the model computes for the next tokens.

        Args:
            ids: The tokens of each row.
            positions: Their positions in the texts.
            valid: Which of them are tokens; the others are padding.
            slots: Where in the cache they go, if not to their positions.
            allowed: Which slots each one sees, if not all up to its position.
            model: What is called in place of the engine's model: its `base_model`, without logits.
            **options: Further arguments of the model.
        """
        import torch

        cache = self.cache
        device = self.engine.device
        if slots is None:
            slots = positions
        token_slots = slots.masked_fill(~valid, -1)
        cache.upto = max(int(token_slots.max()) + 1, cache.upto)

        # Rows that go to the same slots, one after the other, are written as one block.
        first = int(slots[0, 0])
        count = slots.shape[1]
        are_rows_alike = bool(valid.all()) and bool((slots == slots[:1]).all())
        if are_rows_alike and count == int(slots[0, -1]) - first + 1:
            cache.slots = slice(first, first + count)
        else:
            cache.slots = slots.masked_fill(~valid, cache.slot_count - 1)
            cache.row_numbers = torch.arange(len(slots), device=device)[:, None]

        # Without a mask attention is faster. One token then sees all slots; several are causal, which
        # kernels count from slot 0, and so only where these are the first.
        positions = positions.clamp(min=0)
        mask = None
        is_last_block = are_rows_alike and cache.upto == first + count
        if allowed is not None or not is_last_block or (first and count > 1):
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

    def last(self, guess_lengths: Sequence[int]) -> Any:
        """Return the logits after each prompt's last token and after each of its guessed tokens.

        Rows with fewer guesses than others repeat their last logits.

        Args:
            guess_lengths: How many tokens at the end of each text were guessed.
        """
        import torch

        model = self.engine.model
        cache = self.cache
        rows = len(self.texts)

        # Where the logits stand, counted from each text's last token: 0 and numbers below.
        lengths = torch.tensor(guess_lengths, device=self.engine.device)[:, None]
        width = max(guess_lengths) + 1
        offsets = torch.arange(width, device=self.engine.device).minimum(lengths) - lengths

        is_sdpa = model.config._attn_implementation == "sdpa"
        if self.engine.device.type != "cpu" or not is_sdpa or rows == 1:
            logits = self.read(*self.rest(), logits_to_keep=width).logits
            return logits.gather(1, (offsets + width - 1)[:, :, None].expand(logits.shape))

        # On a CPU padding costs as much as tokens: all rows' tokens are read in one line.
        line = []
        for row, (text, known_length) in enumerate(
            zip(self.texts, self.known_lengths, strict=True)
        ):
            line += [(text[slot], slot, row) for slot in range(known_length, len(text))]
        ids, slots, cache.row_numbers = torch.tensor(line).T[:, None]
        text_lengths = [*map(len, self.texts)]
        cache.slots = slots
        cache.upto = max(text_lengths)
        mask = line_mask().of(self.known_lengths, text_lengths, model.dtype)

        # Logits, some 150,000 numbers a token, are made at these places alone.
        last_tokens = torch.tensor([part.end - 1 for part in mask.parts])[:, None]
        logit_places = (last_tokens + offsets).flatten()
        options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": logit_places}
        logits = model(input_ids=ids, position_ids=slots, attention_mask=mask, **options).logits[0]
        return logits.view(rows, width, -1)

    def select(self, row_numbers: Sequence[int]) -> None:
        """Keep some rows, also several times."""
        import torch

        self.cache.select(torch.tensor(row_numbers, device=self.engine.device))
        self.texts = [self.texts[number] for number in row_numbers]

    def keep(self, row: int, tokens: Sequence[int]) -> None:
        """Keep what was computed for a row's first tokens."""
        self.engine.tree.add(tokens, lambda start, end: self.cache.states(row, start, end))


@dataclass(slots=True, eq=False)
class Row:
    """One text being generated.

    Attributes:
        limit: The most tokens that it may have.
        ends: Tokens that end it.
        trie: The texts that it can become, if it must be one of some; `node` is how far it has come.
        stop_test: Whether the tokens so far have a stop text in them.
        finish: Why it ended, ``"stop"`` or ``"length"``; empty while it goes on.
    """

    prompt: Sequence[int]
    sampling: Sampling
    limit: int
    ends: frozenset[int]
    trie: TokenTrie | None = None
    stop_test: Callable[[list[int]], bool] | None = None
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
        elif token in self.ends or (self.stop_test is not None and self.stop_test(self.tokens)):
            self.finish = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish = "length"


def decode(engine: Engine, rows: Sequence[Row]) -> Sequence[Row]:
    """Generate texts, and return the rows, which then have them.

    Several of a text's tokens are read in one pass where they were guessed.
    """
    import torch

    for row in rows:
        row.restart()
    device = engine.device
    active = list(rows)

    # Where embeddings depend on a pass's last position, a guess would change the tokens before it.
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
        unfinished = [number for number, row in enumerate(active) if not row.finish]
        if not unfinished:
            engine.tree.shrink()
            return rows
        if len(unfinished) < len(active):
            active = [active[number] for number in batch.cache.drop_others(unfinished)]

        # A column is read if it is a guess in at least half of the rows.
        guesses = [_guess(engine, row, widest) for row in active]
        width = 1 + sorted(map(len, guesses))[len(guesses) // 2]
        guesses = [guess[: width - 1] for guess in guesses]

        # Padding has the position of its row's last token, and is not valid.
        starts = [len(row.prompt) + len(row.tokens) - 1 for row in active]
        unread = [[row.tokens[-1], *guess] for row, guess in zip(active, guesses, strict=True)]
        lengths = torch.tensor([[len(tokens)] for tokens in unread], device=device)
        columns = torch.arange(width, device=device)
        padded = [tokens + [0] * (width - len(tokens)) for tokens in unread]
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
    """Choose the next tokens of rows and push them: one, and one more after each rightly guessed one."""
    import torch

    # The logits after a wrong guess are of another text: its row has no more tokens in this pass.
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
    next_tokens = torch.empty(len(rows), dtype=torch.long, device=scores.device)

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
        group = [rows[i] for i in members]
        group_scores = scores[index]
        if has_trie:
            tokens = _allowed_tokens(group, scores.device)
            group_scores = group_scores.gather(1, tokens.clamp(min=0))
            group_scores.masked_fill_(tokens < 0, float("-inf"))

        # argmax is documented to be the first of equals
        columns = _sample(group_scores, group) if is_sampled else group_scores.argmax(-1)
        next_tokens[index] = tokens.gather(1, columns[:, None])[:, 0] if has_trie else columns

    # Tokens and numbers go to the CPU together: one wait for the GPU.
    logprobs = scores.gather(1, next_tokens[:, None])[:, 0] - scores.logsumexp(-1)
    token_list, logprob_list = torch.stack([next_tokens.double(), logprobs.double()]).tolist()
    return [int(token) for token in token_list], logprob_list


def _allowed_tokens(rows: Sequence[Row], device: Any) -> Any:
    """Return the tokens that each row's trie allows next, in ascending order; -1 where there are fewer."""
    import torch

    token_lists = [sorted(row.trie.children[row.node]) for row in rows if row.trie is not None]
    width = max(map(len, token_lists))
    padded = [tokens + [-1] * (width - len(tokens)) for tokens in token_lists]
    return torch.tensor(padded, device=device)


def _sample(scores: Any, rows: Sequence[Row]) -> Any:
    """Return an index into each row of scores, drawn with the rows' temperature and top-p.

    Either all rows have a top-p below 1, or none has.
    """
    import torch

    def column(numbers: list[float]) -> Any:
        return torch.tensor(numbers, dtype=torch.float64, device=scores.device)[:, None]

    scaled = scores.double()
    temperatures = [row.sampling.temperature for row in rows]
    if any(temperature != 1 for temperature in temperatures):
        # First the maximum, then the division, so that no temperature is too small.
        scaled = (scaled - scaled.amax(-1, keepdim=True)) / column(temperatures)
    weights = scaled.softmax(-1)
    draws = column([row.random.random() for row in rows])
    if rows[0].sampling.top_p == 1:
        return _draw(weights, draws)

    top_ps = column([row.sampling.top_p for row in rows])
    if weights.shape[1] <= 16 * _TOP:
        return _draw_from_nucleus(weights, top_ps, draws)

    # To sort 150,000 tokens takes longer than the model: the nucleus is mostly among the first few.
    top = weights.topk(_TOP, sorted=False).indices.sort(-1).values  # equals stay in their order
    top_weights = weights.gather(1, top)

    # The least of them do not count: others that are as large may have been left out.
    least = top_weights.amin(-1, keepdim=True)
    larger = top_weights.where(top_weights > least, 0.0)
    is_enough = larger.sum(-1, keepdim=True) >= top_ps

    tokens = top[:, 0].clone()
    if bool(is_enough.any()):
        rows_enough = is_enough[:, 0].nonzero()[:, 0]
        columns = _draw_from_nucleus(
            top_weights[rows_enough], top_ps[rows_enough], draws[rows_enough]
        )
        tokens[rows_enough] = top[rows_enough].gather(1, columns[:, None])[:, 0]
    if not bool(is_enough.all()):
        other_rows = (~is_enough[:, 0]).nonzero()[:, 0]
        tokens[other_rows] = _draw_from_nucleus(
            weights[other_rows], top_ps[other_rows], draws[other_rows]
        )
    return tokens


def _draw_from_nucleus(weights: Any, top_ps: Any, draws: Any) -> Any:
    """Return the index that is drawn from each row's largest weights, the fewest that add up to top-p."""
    weights, order = weights.sort(stable=True, dim=-1, descending=True)
    weights = weights.where(weights.cumsum(-1) - weights < top_ps, 0.0)
    return order.gather(1, _draw(weights, draws)[:, None])[:, 0]


def _draw(weights: Any, draws: Any) -> Any:
    """Return the index in each row of weights at which a number from 0 to 1, a share of them, falls."""
    import torch

    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:]

    # Rounding must not lift the number to the total, beyond which there is no token.
    largest = torch.nextafter(total, torch.zeros_like(total))
    thresholds = torch.minimum(draws * total, largest)
    index = torch.searchsorted(cumulated, thresholds, right=True)
    return index.clamp_(max=weights.shape[1] - 1)[:, 0]


@dataclass(frozen=True, slots=True)
class Branches:
    """Continuations of a prompt, and which of a request's continuations these are."""

    prompt: Sequence[int]
    trie: TokenTrie
    indices: Sequence[int]


def split(
    engine: Engine, prompt_length: int, sequences: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return which continuations of a prompt can be scored in one pass: all, or halves of them."""

    def halved(indices: list[int]) -> list[list[int]]:
        inner_count = len(TokenTrie([sequences[i] for i in indices]).inner())
        # A tree as long as its prompt costs no more than the prompt, however long that is.
        fits_tokens = prompt_length + inner_count <= max(engine.tokens, 2 * prompt_length)
        fits_logits = inner_count * _vocabulary(engine) <= _LOGITS
        if len(indices) < 2 or (fits_tokens and fits_logits):
            return [indices]
        half = len(indices) // 2
        return halved(indices[:half]) + halved(indices[half:])

    return halved(list(range(len(sequences))))


def branch_logprobs(
    engine: Engine, all_branches: Sequence[Branches]
) -> list[list[float] | LanguageModelError]:
    """Return for each of some branches the log-probability of every node's token, after its parents'.

    The root, which has no token, has 0. Branches that memory is too short for have an error.
    """
    # Branches without a token have a root alone, and need no pass.
    logprobs_of_all: list[list[float] | LanguageModelError] = [[0.0] for _ in all_branches]
    read_indices = [i for i, branches in enumerate(all_branches) if len(branches.trie) > 1]
    read_branches = [all_branches[i] for i in read_indices]
    inner_counts = [len(branches.trie.inner()) for branches in read_branches]

    def work(chunk: list[int]) -> list[list[float]]:
        logprobs: list[list[float]] = []
        while chunk:
            count = _count_in_a_pass(engine, [inner_counts[i] for i in chunk])
            logprobs += _logprobs_by_one_pass(engine, [read_branches[i] for i in chunk[:count]])
            chunk = chunk[count:]
        return logprobs

    # The root is the prompt's last token, and is read with it.
    lengths = [
        len(branches.prompt) + inner_count - 1
        for branches, inner_count in zip(read_branches, inner_counts, strict=True)
    ]
    for i, logprobs in zip(read_indices, engine.run(lengths, work), strict=True):
        logprobs_of_all[i] = logprobs
    return logprobs_of_all


def _count_in_a_pass(engine: Engine, inner_counts: Sequence[int]) -> int:
    """Return how many of the first branches have no more logits together than a pass may; at least 1."""
    most_columns = _LOGITS // _vocabulary(engine)
    for count in range(len(inner_counts), 1, -1):
        # Each row is as wide as the widest.
        if count * max(inner_counts[:count]) <= most_columns:
            return count
    return 1


def _vocabulary(engine: Engine) -> int:
    return int(engine.model.config.get_text_config(decoder=True).vocab_size)


def _logprobs_by_one_pass(engine: Engine, all_branches: Sequence[Branches]) -> list[list[float]]:
    """Return the log-probabilities of all nodes of some branches by one forward pass.

    The tokens of a tree are read behind its prompt, in one line: which of them each one sees makes them
    a tree. Leaves are not read, as nothing follows them.
    """
    import torch

    def padded(number_lists: Sequence[Sequence[int]]) -> Any:
        rows = [list(numbers) + [0] * (width - len(numbers)) for numbers in number_lists]
        return torch.tensor(rows, device=engine.device)

    # Without the root, which is the prompt's last token.
    inner = [branches.trie.inner()[1:] for branches in all_branches]
    width = max(map(len, inner))
    batch = engine.begin([branches.prompt for branches in all_branches], width)
    ids, positions, valid = batch.rest()

    # A node's position is its depth; its slot is one of its own, as siblings have the same position.
    tree_options: dict[str, Any] = {}
    if width:
        tokens = []
        depths = []
        for branches, nodes in zip(all_branches, inner, strict=True):
            tokens.append([branches.trie.tokens[node] for node in nodes])
            depths.append([branches.trie.depths[node] for node in nodes])
        tree_options["allowed"] = _tree_mask(engine, positions, all_branches, inner)

        last = positions[:, -1:]
        columns = torch.arange(width, device=engine.device)
        tree_options["slots"] = torch.cat([positions, last + 1 + columns], 1)
        node_counts = torch.tensor([[len(nodes)] for nodes in inner], device=engine.device)
        valid = torch.cat([valid, columns < node_counts], 1)
        ids = torch.cat([ids, padded(tokens)], 1)
        positions = torch.cat([positions, last + padded(depths)], 1)

    logits = batch.read(ids, positions, valid, logits_to_keep=width + 1, **tree_options).logits
    for row, branches in enumerate(all_branches):
        batch.keep(row, branches.prompt)
    engine.tree.shrink()
    return _node_logprobs(logits[:, -(width + 1) :], all_branches, inner)


def _tree_mask(
    engine: Engine, positions: Any, all_branches: Sequence[Branches], inner: list[list[int]]
) -> Any:
    """Return which slots are seen: prompts are causal; a node sees prompt, ancestors and itself."""
    import numpy as np
    import torch

    lengths = [len(branches.prompt) for branches in all_branches]
    upto = max(length + len(nodes) for length, nodes in zip(lengths, inner, strict=True))
    allowed = np.zeros((len(all_branches), max(map(len, inner)), upto), dtype=bool)
    for tree_allowed, branches, nodes, length in zip(
        allowed, all_branches, inner, lengths, strict=True
    ):
        index_of = {node: index for index, node in enumerate(nodes)}
        tree_allowed[:, :length] = True
        for index, node in enumerate(nodes):
            # The root has no index: it is the prompt's. Parents come first, so what they see is known.
            parent_index = index_of.get(branches.trie.parents[node])
            if parent_index is not None:
                tree_allowed[index] = tree_allowed[parent_index]
            tree_allowed[index, length + index] = True

    causal = torch.arange(upto, device=engine.device) <= positions.clamp(min=0)[:, :, None]
    return torch.cat([causal, torch.from_numpy(allowed).to(engine.device)], 1)


def _node_logprobs(
    logits: Any, all_branches: Sequence[Branches], inner: list[list[int]]
) -> list[list[float]]:
    """Return the log-probability of every node, taken from its parent's logits.

    Args:
        logits: Of each row, those after its prompt, then those after each inner node.
        all_branches: What each row's branches are.
        inner: The inner nodes of each row's trie, without the root.
    """
    import torch

    rows, columns, vocabulary = logits.shape
    flat_logits = logits.reshape(rows * columns, vocabulary)

    # In slices: all logits in single precision would take twice the memory of those in bfloat16.
    slices = flat_logits.split(max(_SLICE // vocabulary, 1))
    normalizers = torch.cat([_single(logits_slice).logsumexp(-1) for logits_slice in slices])

    parent_rows: list[int] = []
    tokens: list[int] = []
    for row, (branches, nodes) in enumerate(zip(all_branches, inner, strict=True)):
        column_of = {node: column for column, node in enumerate(nodes, 1)}
        column_of[0] = 0  # the root's logits are those after the prompt
        parent_rows += [row * columns + column_of[parent] for parent in branches.trie.parents[1:]]
        tokens += branches.trie.tokens[1:]

    row_index = torch.tensor(parent_rows, device=logits.device)
    token_index = torch.tensor(tokens, device=logits.device)
    token_logits = _single(flat_logits[row_index, token_index])
    logprobs = iter((token_logits - normalizers[row_index]).tolist())

    # The root, node 0, has no token.
    return [[0.0] + [next(logprobs) for _ in branches.trie.tokens[1:]] for branches in all_branches]


def _single(numbers: Any) -> Any:
    """Return numbers in single precision at least: half precision would round log-probabilities away."""
    return numbers if numbers.dtype.itemsize == 8 else numbers.float()


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
    """Return the log-probabilities of each item's branches, or the first error that one of them has."""
    all_branches = [branches for item in items for branches in item]
    logprobs_of_all = iter(branch_logprobs(engine, all_branches))

    scored = []
    for item in items:
        logprobs_of_item = [next(logprobs_of_all) for _ in item]
        errors = [error for error in logprobs_of_item if isinstance(error, LanguageModelError)]
        scored.append(errors[0] if errors else logprobs_of_item)
    return scored
