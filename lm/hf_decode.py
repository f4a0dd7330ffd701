"""Token-by-token generation in batches.

All rows of a batch advance together, and a row that is finished leaves it. What a row says depends
on its own logits, its own seed and the position alone: one number between 0 and 1 is drawn per
token, and looked up in the cumulated probabilities in double precision.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .base import Sampling
from .hf_batch import Engine
from .trie import TokenTrie

__all__ = ["Row", "decode"]

_WORTH_SHARING = 64  # tokens; one more pass costs about as much as a small model's token


@dataclass(slots=True, eq=False)
class Row:
    """One text being generated.

    Attributes:
        prompt: The tokens before it.
        sampling: How tokens are chosen.
        limit: The most tokens; not looked at where there is a trie.
        ends: Tokens that end the text.
        trie: The allowed sequences, end token included, or None for any text.
        stopped: Says of the tokens so far whether a stop text is among them; None if there is none.
        tokens: What was generated.
        logprobs: The log-probability of each token under the model itself.
        finish: Why it ended; empty while it goes on.
        node: Where in the trie it is.
    """

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
    _random: random.Random | None = None

    def restart(self) -> None:
        """Forget what was generated."""
        self.tokens, self.logprobs, self.finish, self.node = [], [], "", 0
        # Python's generator: any whole number is a seed (torch's keeps 32 bits), one number per
        # position whatever the limit, and the same in every version.
        self._random = random.Random(self.sampling.seed & (2**64 - 1))

    def draw(self) -> float:
        """Return the number that chooses the next token, from 0 up to but not including 1."""
        assert self._random is not None
        return self._random.random()

    def allowed(self) -> list[int]:
        """Return the tokens that the trie allows next, in ascending order."""
        assert self.trie is not None
        return sorted(self.trie.children[self.node])

    def push(self, token: int, logprob: float) -> None:
        """Append a token and see whether the text has ended."""
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


def decode(engine: Engine, rows: Sequence[Row]) -> None:
    """Generate the texts of a batch of rows; the results are in the rows."""
    import torch

    active = list(rows)
    for row in active:
        row.restart()
    logits, cache, valid, lengths = _read(engine, active)
    padded = not bool(valid.all())
    if padded:
        room = max(_longest(row) for row in rows)
        open_ended = torch.ones(len(rows), room, dtype=torch.bool, device=engine.device)
        mask = engine.additive(torch.cat([valid, open_ended], 1))[:, None, None]
    seen = valid.shape[1]
    while True:
        tokens, logprobs = _choose(logits, active)
        for row, token, logprob in zip(active, tokens, logprobs, strict=True):
            row.push(token, logprob)
        keep = [i for i, row in enumerate(active) if not row.finish]
        if not keep:
            return
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


def _longest(row: Row) -> int:
    return max(row.trie.depths) if row.trie is not None else row.limit


def _read(engine: Engine, rows: Sequence[Row]) -> tuple[Any, Any, Any, Any]:
    """Return the first logits, the cache, where there are tokens, and the lengths of the prompts.

    Equal prompts (many samples of one) are read once, and so is a long beginning that all have in
    common (instructions and examples).
    """
    import torch

    number: dict[tuple[int, ...], int] = {}
    which = [number.setdefault(tuple(row.prompt), len(number)) for row in rows]
    prompts = list(number)
    cache = engine.new_cache()
    shared = _common(prompts)
    if shared:
        _read_beginning(engine, prompts[0][:shared], cache, len(prompts))
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


def _common(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens all of some prompts begin with, if it is worth reading them apart."""
    if len(prompts) < 2:
        return 0
    first, last = min(prompts), max(prompts)  # what these two share, all between them share
    most = min(len(prompt) for prompt in prompts) - 1  # each has a token of its own left to read
    pairs = zip(first[:most], last[:most], strict=True)
    shared = next((i for i, (one, other) in enumerate(pairs) if one != other), most)
    return shared if shared >= _WORTH_SHARING else 0


def _read_beginning(engine: Engine, tokens: Sequence[int], cache: Any, rows: int) -> None:
    """Read what all prompts begin with, once, and put it into the cache of every row."""
    import torch

    engine.model(
        input_ids=torch.tensor([tokens], device=engine.device),
        position_ids=torch.arange(len(tokens), device=engine.device)[None],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    cache.batch_select_indices(torch.zeros(rows, dtype=torch.long, device=engine.device))


def _choose(logits: Any, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Return each row's next token and its log-probability under the model itself."""
    import torch

    scores = logits if logits.dtype == torch.float64 else logits.float()
    chosen = scores.argmax(-1)  # documented to be the first of equals
    free = [i for i, row in enumerate(rows) if row.trie is None and row.sampling.temperature > 0]
    bound = [i for i, row in enumerate(rows) if row.trie is not None]
    # A row's arithmetic must not depend on its neighbours: rows with top_p, whose probabilities
    # are added up in another order, are apart from rows without.
    for some in _by_top_p(free, rows):
        index = torch.tensor(some, device=scores.device)
        chosen[index] = _sample(scores[index], [rows[i] for i in some])
    if bound:
        _choose_bound(scores, chosen, bound, rows)
    logprobs = scores.gather(1, chosen[:, None])[:, 0] - scores.logsumexp(-1)
    both = torch.stack([chosen.double(), logprobs.double()]).tolist()  # one wait for the GPU
    return [int(token) for token in both[0]], both[1]


def _by_top_p(some: Sequence[int], rows: Sequence[Row]) -> list[list[int]]:
    parts = [
        [i for i in some if rows[i].sampling.top_p == 1],
        [i for i in some if rows[i].sampling.top_p < 1],
    ]
    return [part for part in parts if part]


def _choose_bound(scores: Any, chosen: Any, bound: list[int], rows: Sequence[Row]) -> None:
    """Choose the tokens of the rows that must follow a trie, among its next tokens only."""
    import torch

    allowed = {i: rows[i].allowed() for i in bound}
    greedy = [i for i in bound if rows[i].sampling.temperature == 0]
    sampled = [i for i in bound if rows[i].sampling.temperature > 0]
    for some in [greedy, *_by_top_p(sampled, rows)]:
        if not some:
            continue
        width = max(len(allowed[i]) for i in some)
        padded = [allowed[i] + [-1] * (width - len(allowed[i])) for i in some]
        tokens = torch.tensor(padded, device=scores.device)
        index = torch.tensor(some, device=scores.device)
        options = scores[index].gather(1, tokens.clamp(min=0))
        options.masked_fill_(tokens < 0, float("-inf"))
        some_rows = [rows[i] for i in some]
        picked = options.argmax(-1) if some is greedy else _sample(options, some_rows)
        chosen[index] = tokens.gather(1, picked[:, None])[:, 0]


def _sample(scores: Any, rows: Sequence[Row]) -> Any:
    """Return an index into each row of scores, drawn with the rows' temperature and top-p.

    Either all rows have a top-p below 1 or none has.
    """
    import torch

    def column(values: list[float]) -> Any:
        return torch.tensor(values, dtype=torch.float64, device=scores.device)[:, None]

    scaled = scores.double()
    # First the maximum, then the division, so that no temperature is too small.
    scaled = (scaled - scaled.amax(-1, keepdim=True)) / column(
        [r.sampling.temperature for r in rows]
    )
    weights = scaled.softmax(-1)
    order = None
    if rows[0].sampling.top_p < 1:
        weights, order = weights.sort(stable=True, dim=-1, descending=True)
        before = weights.cumsum(-1) - weights
        weights = weights.where(before < column([row.sampling.top_p for row in rows]), 0.0)
    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:]
    # Rounding must not lift the number to the total, beyond which there is no token.
    below = torch.nextafter(total, torch.zeros_like(total))
    wanted = torch.minimum(column([row.draw() for row in rows]) * total, below)
    found = torch.searchsorted(cumulated, wanted, right=True).clamp_(max=scores.shape[1] - 1)
    return (found if order is None else order.gather(1, found))[:, 0]
