"""How each kind of request is answered by a model in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..errors import LanguageModelError
from .base import Completion, Encode, Encoding, Generate, Score, Scores, WordProbabilities, Words
from .chat import ChatTokenizer
from .hf_batch import Engine
from .hf_decode import Row, decode
from .hf_score import Branches, branch_logprobs, last_hidden, split
from .trie import TokenTrie, telling_apart

__all__ = ["encode", "generate", "score", "words"]


def generate(
    engine: Engine, chat: ChatTokenizer, requests: Sequence[Generate], prompts: Sequence[list[int]]
) -> list[Completion | LanguageModelError]:
    """Return generated texts."""
    replies: list[Completion | LanguageModelError] = []
    rows: dict[int, Row] = {}
    for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        row = _row(engine, chat, request, prompt)
        if isinstance(row, Row):
            rows[i] = row
        replies.append(row if isinstance(row, LanguageModelError) else Completion(""))
    places = list(rows)
    engine.run(
        [len(rows[i].prompt) + rows[i].limit for i in places],
        lambda chunk: decode(engine, [rows[places[n]] for n in chunk]),
        lambda n, error: replies.__setitem__(places[n], error),
    )
    for i, row in rows.items():
        if not isinstance(replies[i], LanguageModelError):
            replies[i] = _completion(chat, requests[i], row)
    return replies


def _row(
    engine: Engine, chat: ChatTokenizer, request: Generate, prompt: list[int]
) -> Row | LanguageModelError:
    sampling = request.sampling
    if request.choices is not None:
        trie = TokenTrie([[*tokens, chat.end] for tokens in chat.tokens(request.choices)])
        limit = max(trie.depths)
        return _overflow(engine, prompt, limit, limit) or Row(
            prompt, sampling, limit, chat.ends, trie=trie
        )
    stopped = _stop_test(chat, sampling.stop, request.prefix) if sampling.stop else None
    limit = sampling.max_new_tokens
    if engine.context is not None:
        limit = max(min(limit, engine.context - len(prompt)), 1)
    return _overflow(engine, prompt, sampling.max_new_tokens, 1) or Row(
        prompt, sampling, limit, chat.ends, stopped=stopped
    )


def _stop_test(
    chat: ChatTokenizer, stops: Sequence[str], prefix: str
) -> Callable[[list[int]], bool]:
    """Return a test whether one of the stop texts is in the text of some tokens."""
    # Every token but a few adds a byte at least, so a stop text that has just come is among these.
    window = max(len(stop.encode("utf-8", "replace")) for stop in stops) + 8

    def stopped(tokens: list[int]) -> bool:
        if len(tokens) > window:
            tail = chat.text(tokens[-window:])
            if not any(stop in tail for stop in stops):
                return False
        text = chat.text(tokens, prefix)
        return any(stop in text for stop in stops)

    return stopped


def _completion(
    chat: ChatTokenizer, request: Generate, row: Row
) -> Completion | LanguageModelError:
    if any(map(math.isnan, row.logprobs)):
        return _not_a_number()
    if row.trie is not None and request.choices is not None:
        text = request.choices[row.trie.ends.index(row.node)]
    else:
        ended = row.tokens[-1] in row.ends
        text = chat.text(row.tokens[:-1] if ended else row.tokens, request.prefix)
        cuts = [text.find(stop) for stop in request.sampling.stop if stop in text]
        text = text[: min(cuts, default=None)]
    return Completion(
        text=text,
        token_ids=tuple(row.tokens),
        logprobs=tuple(row.logprobs),
        finish=row.finish,
        prompt_tokens=len(row.prompt),
        completion_tokens=len(row.tokens),
    )


def score(
    engine: Engine, chat: ChatTokenizer, requests: Sequence[Score], prompts: Sequence[list[int]]
) -> list[Scores | LanguageModelError]:
    """Return the log-probabilities of given texts."""
    items: list[Branches] = []
    asked: list[tuple[list[list[int]], list[list[int]]] | LanguageModelError] = []
    for request, prompt in zip(requests, prompts, strict=True):
        end = [chat.end] if request.ended else []
        sequences = [tokens + end for tokens in chat.tokens(request.completions)]
        longest = max(map(len, sequences))
        problem = _overflow(engine, prompt, longest, longest)
        if problem:
            asked.append(problem)
            continue
        parts = split(engine, len(prompt), sequences)
        asked.append((sequences, parts))
        items += [Branches(prompt, TokenTrie([sequences[i] for i in part])) for part in parts]
    found = iter(zip(items, branch_logprobs(engine, items), strict=True))
    replies: list[Scores | LanguageModelError] = []
    for prompt, question in zip(prompts, asked, strict=True):
        if isinstance(question, LanguageModelError):
            replies.append(question)
            continue
        sequences, parts = question
        replies.append(_scores(len(prompt), len(sequences), parts, [next(found) for _ in parts]))
    return replies


def _scores(
    prompt: int,
    count: int,
    parts: list[list[int]],
    found: Sequence[tuple[Branches, list[float] | LanguageModelError]],
) -> Scores | LanguageModelError:
    """Return the scores of a request's completions from those of the parts it was split into."""
    logprobs: list[tuple[float, ...]] = [()] * count
    for part, (item, values) in zip(parts, found, strict=True):
        if isinstance(values, LanguageModelError):
            return values
        if any(map(math.isnan, values)):
            return _not_a_number()
        for i, end in zip(part, item.trie.ends, strict=True):
            logprobs[i] = tuple(values[node] for node in item.trie.path(end))
    return Scores(tuple(logprobs), prompt)


def words(
    engine: Engine, chat: ChatTokenizer, requests: Sequence[Words], prompts: Sequence[list[int]]
) -> list[WordProbabilities | LanguageModelError]:
    """Return the probabilities of words as the next one."""
    replies: list[WordProbabilities | LanguageModelError | None] = []
    items = []
    for request, prompt in zip(requests, prompts, strict=True):
        sequences = telling_apart(chat.tokens(request.words))
        longest = max(map(len, sequences))
        problem = _overflow(engine, prompt, longest, longest)
        if not all(sequences):
            problem = LanguageModelError(
                f"expected words, found one without tokens among {request.words!r:.80}"
            )
        replies.append(problem)
        if not problem:
            items.append(Branches(prompt, TokenTrie(sequences)))
    found = iter(zip(items, branch_logprobs(engine, items), strict=True))
    return [_word_probabilities(*next(found)) if reply is None else reply for reply in replies]


def _word_probabilities(
    item: Branches, values: list[float] | LanguageModelError
) -> WordProbabilities | LanguageModelError:
    if isinstance(values, LanguageModelError):
        return values
    if any(map(math.isnan, values)):
        return _not_a_number()
    probabilities = []
    for end in item.trie.ends:
        whole = math.exp(math.fsum(values[node] for node in item.trie.path(end)))
        longer = math.fsum(math.exp(values[node]) for node in item.trie.children[end].values())
        probabilities.append(whole * max(1.0 - longer, 0.0))
    return WordProbabilities(tuple(probabilities), len(item.prompt))


def encode(
    engine: Engine, chat: ChatTokenizer, requests: Sequence[Encode], prompts: Sequence[list[int]]
) -> list[Encoding | LanguageModelError]:
    """Return the hidden states at the ends of prompts."""
    replies: list[Encoding | LanguageModelError] = [
        _overflow(engine, prompt, 0, 0) or Encoding(()) for prompt in prompts
    ]
    places = [i for i, reply in enumerate(replies) if isinstance(reply, Encoding)]

    def work(chunk: list[int]) -> None:
        some = [places[n] for n in chunk]
        vectors = last_hidden(engine, [prompts[i] for i in some])
        for i, vector in zip(some, vectors, strict=True):
            replies[i] = Encoding(tuple(vector), len(prompts[i]))

    engine.run(
        [len(prompts[i]) for i in places],
        work,
        lambda n, error: replies.__setitem__(places[n], error),
    )
    return replies


def _overflow(
    engine: Engine, prompt: Sequence[int], asked: int, needed: int
) -> LanguageModelError | None:
    """Return an error if a prompt and the tokens that must follow it do not fit the context."""
    if engine.context is None or len(prompt) + needed <= engine.context:
        return None
    return LanguageModelError(
        f"the model's context has {engine.context:,} tokens, but the prompt has {len(prompt):,} and "
        f"up to {asked:,} follow; shorten the conversation"
    )


def _not_a_number() -> LanguageModelError:
    return LanguageModelError(
        "the model's output is not a number; its weights are damaged, or it needs another dtype "
        "(bfloat16 or float32 where float16 overflows)"
    )
