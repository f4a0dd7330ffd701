"""Forward passes of a batch: generated text, log-probabilities of many continuations, hidden states."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import LanguageModelError
from ..base import Encode, Generate, Sampling
from .cache import PrefixTree, cache_class, common, line_mask, to_device
from .ngrams import LONG
from .sampling import Pick, choose, choose_on_gpu, single


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

    # In sorted order those that share most stand side by side: linear in the number of tokens.
    in_order = sorted(set(wholes))
    shared = dict.fromkeys(in_order, 0)
    for before, after in pairwise(in_order):
        count = _shared_tokens(before, after)
        shared[before] = max(shared[before], count)
        shared[after] = count
    return [whole[: shared[whole] + 1] for whole in wholes]


def _shared_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((count for count, (x, y) in pairs if x != y), min(len(a), len(b)))


_WORTH_SHARING = 64  # tokens; one more pass costs about as much as a small model's token
_LOGITS = 2**27  # the most logits of one pass: 134 million, which are 268 MB in bfloat16
_BY_LENGTH = ("dynamic", "longrope")  # rotary embeddings that look at a pass's last position
_ALIGNMENT = 8  # numbers
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
    """A model with the limits of its batches.

    Attributes:
        for_gpu: Whether it computes as a GPU does it best: tokens are chosen in single precision, with one
            wait in a pass, and norms and adapters take few operations. So it is on a GPU, but for models in
            double precision; tests set it on a CPU.
        cache_argument: What the model's `forward` calls the cache.
    """

    model: Any
    device: Any
    rows: int
    tokens: int
    for_gpu: bool = field(init=False)
    cache_argument: str = field(init=False)
    tree: PrefixTree = field(default_factory=lambda: PrefixTree(0))
    short_of_memory: bool = False
    spare: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What is in double precision is meant to be exact, on a GPU, too.
        self.for_gpu = self.device.type == "cuda" and self.model.dtype.itemsize < 8

        # Transformers 5.24 has renamed the argument: it warns of the old name, and 5.40 refuses it.
        parameters = inspect.signature(self.model.forward).parameters
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def takes_few_operations(self) -> bool:
        """Whether norms and adapters are computed by few operations: on a GPU, and in half precision.

        In half precision it saves copies on a CPU, too: transformers' norms and peft's adapters turn their
        inputs into single precision and back.
        """
        return self.for_gpu or bool(self.model.dtype.itemsize == 2)

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

    # Kernels of a GPU want rows of a mask that begin at multiples of eight numbers; each layer would copy
    # another mask into such a one.
    length = allowed.shape[-1]
    room = (*allowed.shape[:-1], -(-length // _ALIGNMENT) * _ALIGNMENT)
    mask = torch.zeros(room, dtype=dtype, device=allowed.device)[..., :length]

    # Eager attention looks at double precision in single; half of its range is far enough.
    least = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min) / 2
    return mask.masked_fill_(~allowed, least)


class Block(NamedTuple):
    """The next tokens of all rows, padded to one width, as arrays ``(rows, tokens)``.

    They are of the CPU: what depends on where the tokens stand is decided without waiting for a GPU.

    Attributes:
        ids: The tokens.
        positions: Their positions in the texts.
        valid: Which of them are tokens; the others are padding.
        slots: Where in the cache they go.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    valid: NDArray[np.bool_]
    slots: NDArray[np.int64]


def _padded(number_lists: Sequence[Sequence[int]], *, left: bool = False) -> NDArray[np.int64]:
    """Return lists of numbers as one array, with zeros after those of the shorter lists, or before them."""
    width = max(map(len, number_lists))
    padded = np.zeros((len(number_lists), width), np.int64)
    for row, numbers in zip(padded, number_lists, strict=True):
        if left:
            row[width - len(numbers) :] = numbers
        else:
            row[: len(numbers)] = numbers
    return padded


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

    def rest(self) -> Block:
        """Return what is to be read, padded on the left; it goes to the slots of its positions."""
        unread = [
            text[known_length:]
            for text, known_length in zip(self.texts, self.known_lengths, strict=True)
        ]
        ids = _padded(unread, left=True)

        # Padding has the positions before the first unread token, some of them below 0.
        lengths = np.array([*map(len, self.texts)])[:, None]
        width = ids.shape[1]
        positions = np.arange(width) + lengths - width
        valid = positions >= np.array(self.known_lengths)[:, None]
        return Block(ids, positions, valid, positions)

    def read(self, block: Block, *, allowed: Any = None, model: Any = None, **options: Any) -> Any:
        """Return what the model computes for the next tokens.

        Args:
            block: The tokens, and where they stand and go.
            allowed: Which slots each one sees, if not all up to its position.
            model: What is called in place of the engine's model: its `base_model`, without logits.
            **options: Further arguments of the model.
        """
        import torch

        cache = self.cache
        device = self.engine.device
        slots = block.slots
        cache.upto = max(int(slots[block.valid].max()) + 1, cache.upto)

        # Rows that go to the same slots, one after the other, are written as one block.
        first = int(slots[0, 0])
        count = slots.shape[1]
        are_rows_alike = bool(block.valid.all() and (slots == slots[0]).all())
        is_one_block = are_rows_alike and count == int(slots[0, -1]) - first + 1

        # All numbers go to the device together.
        positions_read = block.positions.clip(0)
        if is_one_block:
            ids, positions = to_device(np.stack([block.ids, positions_read]), device)
            cache.place(slice(first, first + count))
        else:
            places = np.where(block.valid, slots, cache.slot_count - 1)
            numbers = np.stack([block.ids, positions_read, places])
            ids, positions, token_slots = to_device(numbers, device)
            cache.place(token_slots, torch.arange(len(slots), device=device)[:, None])

        # Without a mask attention is faster. One token then sees all slots; several are causal, which
        # kernels count from slot 0, and so only where these are the first.
        mask = None
        is_last_block = are_rows_alike and cache.upto == first + count
        if allowed is not None or not is_last_block or (first and count > 1):
            if allowed is None:
                allowed = torch.arange(cache.upto, device=device) <= positions[:, :, None]
            mask = additive(allowed[:, None], self.engine.model.dtype)

        options |= {self.engine.cache_argument: cache, "use_cache": True}
        return (model or self.engine.model)(
            input_ids=ids, position_ids=positions, attention_mask=mask, **options
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
        lengths = np.array(guess_lengths)[:, None]
        width = max(guess_lengths) + 1
        offsets = np.minimum(np.arange(width), lengths) - lengths

        is_sdpa = model.config._attn_implementation == "sdpa"
        is_padding_cheap = self.engine.for_gpu or self.engine.device.type != "cpu"
        if is_padding_cheap or not is_sdpa or rows == 1:
            logits = self.read(self.rest(), logits_to_keep=width).logits
            if min(guess_lengths) == width - 1:
                return logits
            columns = to_device(offsets + width - 1, self.engine.device)
            return logits.gather(1, columns[:, :, None].expand(logits.shape))

        # On a CPU padding costs as much as tokens: all rows' tokens are read in one line.
        line = []
        for row, (text, known_length) in enumerate(
            zip(self.texts, self.known_lengths, strict=True)
        ):
            line += [(text[slot], slot, row) for slot in range(known_length, len(text))]
        ids, slots, row_numbers = torch.tensor(line).T[:, None]
        text_lengths = [*map(len, self.texts)]
        cache.place(slots, row_numbers)
        cache.upto = max(text_lengths)
        mask = line_mask().of(self.known_lengths, text_lengths, model.dtype)

        # Logits, some 150,000 numbers a token, are made at these places alone.
        last_tokens = torch.tensor([part.end - 1 for part in mask.parts])[:, None]
        logit_places = (last_tokens + torch.from_numpy(offsets)).flatten()
        options = {
            self.engine.cache_argument: cache,
            "use_cache": True,
            "logits_to_keep": logit_places,
        }
        logits = model(input_ids=ids, position_ids=slots, attention_mask=mask, **options).logits[0]
        return logits.view(rows, width, -1)

    def select(self, row_numbers: Sequence[int]) -> None:
        """Keep some rows, also several times."""
        self.cache.select(to_device(np.array(row_numbers), self.engine.device))
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
        draws: A random number for each position so far.
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
    draws: list[float] = field(default_factory=list)

    def restart(self) -> None:
        self.tokens = []
        self.logprobs = []
        self.finish = ""
        self.node = 0
        # Python's generator: any whole number is a seed (torch's keeps 32 bits), one number per
        # position whatever the limit, and the same in every version.
        self.random = Random(self.sampling.seed & (2**64 - 1))
        self.draws = []

    def pick(self, later: int = 0, node: int | None = None) -> Pick:
        """Return how the next token is chosen, or one some tokens later, at a node of the trie."""
        sampling = self.sampling
        draw = 0.0
        if sampling.temperature > 0:
            position = len(self.tokens) + later
            while len(self.draws) <= position:
                self.draws.append(self.random.random())
            draw = self.draws[position]

        allowed = None
        if self.trie is not None:
            allowed = sorted(self.trie.children[self.node if node is None else node])
        return Pick(sampling.temperature, sampling.top_p, draw, allowed)

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
    for row in rows:
        row.restart()
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
        lengths = np.array([*map(len, unread)])[:, None]
        columns = np.arange(width)
        positions = np.array(starts)[:, None] + np.minimum(columns, lengths - 1)
        block = Block(_padded(unread), positions, columns < lengths, positions)
        logits = batch.read(block, logits_to_keep=width).logits


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
    # The logits after a wrong guess are of another text: its row has no more tokens in this pass. On a GPU
    # they are chosen from nevertheless, since that costs less than to wait once more.
    chosen = _chosen_at_once(rows, guesses, logits) if engine.for_gpu else None
    guessed_so_far = list(range(len(rows)))
    for column in range(logits.shape[1]):
        if chosen is None:
            choices = _chosen(column, rows, guessed_so_far, logits)
        else:
            choices = [chosen[i, column] for i in guessed_so_far]

        rightly_guessed = []
        for i, (token, logprob) in zip(guessed_so_far, choices, strict=True):
            row = rows[i]
            row.push(token, logprob)
            if row.finish:
                engine.tree.ngrams.learn([*row.prompt[-LONG:], *row.tokens], len(row.tokens))
            elif guesses[i][column : column + 1] == [token]:
                rightly_guessed.append(i)
        if not rightly_guessed:
            return
        guessed_so_far = rightly_guessed


def _chosen(
    column: int, rows: Sequence[Row], row_indices: Sequence[int], logits: Any
) -> list[tuple[int, float]]:
    """Return the next token of some rows and its log-probability, from one column of logits."""
    scores = logits[:, column]
    if len(row_indices) < len(rows):
        scores = scores[to_device(np.array(row_indices), logits.device)]
    tokens, logprobs = choose(scores, [rows[i].pick() for i in row_indices])
    return list(zip(tokens, logprobs, strict=True))


def _chosen_at_once(
    rows: Sequence[Row], guesses: Sequence[Sequence[int]], logits: Any
) -> dict[tuple[int, int], tuple[int, float]]:
    """Return for each row and column of logits the token that follows, if its guesses are right so far."""
    places = []
    picks = []
    for i, (row, guess) in enumerate(zip(rows, guesses, strict=True)):
        node = row.node
        for column in range(len(guess) + 1):
            if column and row.trie is not None:
                node = row.trie.children[node][guess[column - 1]]
            places.append((i, column))
            picks.append(row.pick(column, node))

    _, columns, vocabulary = logits.shape
    scores = logits.reshape(-1, vocabulary)
    if len(places) < len(scores):
        lines = [i * columns + column for i, column in places]
        scores = scores[to_device(np.array(lines), logits.device)]
    tokens, logprobs = choose_on_gpu(scores, picks)
    return dict(zip(places, zip(tokens, logprobs, strict=True), strict=True))


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
            beginning.read(beginning.rest(), logits_to_keep=1)
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
    # Without the root, which is the prompt's last token.
    inner = [branches.trie.inner()[1:] for branches in all_branches]
    width = max(map(len, inner))
    batch = engine.begin([branches.prompt for branches in all_branches], width)
    block = batch.rest()
    allowed = None
    if width:
        allowed = _tree_mask(engine, block.positions, all_branches, inner)
        block = _with_trees(block, all_branches, inner)

    logits = batch.read(block, logits_to_keep=width + 1, allowed=allowed).logits
    for row, branches in enumerate(all_branches):
        batch.keep(row, branches.prompt)
    engine.tree.shrink()
    return _node_logprobs(logits[:, -(width + 1) :], all_branches, inner)


def _with_trees(
    block: Block, all_branches: Sequence[Branches], inner: Sequence[Sequence[int]]
) -> Block:
    """Return the tokens of prompts and behind them those of inner nodes.

    A node's position is its depth; its slot is one of its own, as siblings have the same position.
    """
    tokens = []
    depths = []
    for branches, nodes in zip(all_branches, inner, strict=True):
        tokens.append([branches.trie.tokens[node] for node in nodes])
        depths.append([branches.trie.depths[node] for node in nodes])

    last = block.positions[:, -1:]
    columns = np.arange(max(map(len, inner)))
    node_counts = np.array([*map(len, inner)])[:, None]
    return Block(
        np.concatenate([block.ids, _padded(tokens)], 1),
        np.concatenate([block.positions, last + _padded(depths)], 1),
        np.concatenate([block.valid, columns < node_counts], 1),
        np.concatenate([block.positions, last + 1 + columns], 1),
    )


def _tree_mask(
    engine: Engine, positions: Any, all_branches: Sequence[Branches], inner: list[list[int]]
) -> Any:
    """Return which slots are seen: prompts are causal; a node sees prompt, ancestors and itself."""
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

    last_seen = to_device(positions.clip(0)[:, :, None], engine.device)
    causal = torch.arange(upto, device=engine.device) <= last_seen
    return torch.cat([causal, to_device(allowed, engine.device)], 1)


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
    normalizers = torch.cat([single(logits_slice).logsumexp(-1) for logits_slice in slices])

    parent_rows: list[int] = []
    tokens: list[int] = []
    for row, (branches, nodes) in enumerate(zip(all_branches, inner, strict=True)):
        column_of = {node: column for column, node in enumerate(nodes, 1)}
        column_of[0] = 0  # the root's logits are those after the prompt
        parent_rows += [row * columns + column_of[parent] for parent in branches.trie.parents[1:]]
        tokens += branches.trie.tokens[1:]

    row_index, token_index = to_device(np.array([parent_rows, tokens]), logits.device)
    token_logits = single(flat_logits[row_index, token_index])
    logprobs = iter((token_logits - normalizers[row_index]).tolist())

    # The root, node 0, has no token.
    return [[0.0] + [next(logprobs) for _ in branches.trie.tokens[1:]] for branches in all_branches]


def last_hidden(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the last layer's hidden state, normed, at the last token of each prompt."""
    batch = engine.begin(prompts, 0)
    states = batch.read(batch.rest(), model=engine.model.base_model).last_hidden_state
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
