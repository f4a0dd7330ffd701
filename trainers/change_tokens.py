"""Change-token NLL: how well a world model knows the words that tell what changed (METHODS.md 1.12).

Most of an observation can be foreseen from its form. What an action changed is told by a few tokens:
names of things and places, and words such as "open". This is the mean negative log-likelihood of
those tokens of the real observation, under the student and without any hint.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..envs import Canonicalizer
from ..errors import LanguageModelError, OptionError
from ..facts import Delta, diff
from ..lm import Score, Scores
from ..lm.chat import ChatTokenizer
from ..worldmodel import Transition
from ..worldmodel.language import LanguageWorldModel

__all__ = ["change_spans", "change_token_nll"]

_STATE_WORDS = {
    "clean": ("clean",),
    "closed": ("closed", "close"),
    "cool": ("cool", "cold"),
    "holding": ("pick up", "carrying"),
    "hot": ("hot", "heat"),
    "lit": ("turn on",),
    "open": ("open",),
    "seen": ("nothing",),
    "sliced": ("sliced", "slice"),
}
"""Words that tell a state, of facts that are true from now on."""

_AGENT = "agent"
_WORD = re.compile(r"\w+|[^\w\s]")
_MOST_WORDS = 2000


class _Span(NamedTuple):
    start: int
    end: int


@dataclass(slots=True)
class _Sums:
    """What was added up so far: of the change tokens, and of all tokens."""

    changed: list[float]
    every: list[float]
    transitions: int = 0
    failed: int = 0


def change_spans(observation: str, delta: Delta | None, previous: str) -> list[tuple[int, int]]:
    """Return where an observation tells what changed, as spans of characters, sorted and apart.

    These are the names in the changed facts, as whole words whatever their case, and words for
    states that are true from now on ("open", "pick up", "nothing" of a place that holds nothing).
    Where the facts are not known, or nothing in the text is about them, they are the words that a
    word-by-word comparison with the previous observation inserts or replaces. A change of no fact is
    told nowhere.

    Args:
        observation: What was observed.
        delta: What it changed; None where that is not known.
        previous: The observation before it.

    Example:
        >>> change = Delta(frozenset({("open", "safe 1"), ("in", "pen 1", "safe 1")}))
        >>> text = "You open the safe 1. In it, you see a pen 1."
        >>> [text[start:end] for start, end in change_spans(text, change, "")]
        ['open', 'safe 1', 'pen 1']
        >>> change_spans("Nothing happens.", Delta(), text)
        []
    """
    if delta is not None and not len(delta):
        return []
    found = [] if delta is None else _told(observation, delta)
    return [(start, end) for start, end in found or _differing(previous, observation)]


def _told(text: str, delta: Delta) -> list[_Span]:
    """Return where a text names what changed facts are about."""
    words = {name for fact in delta.added | delta.removed for name in fact[1:]} - {_AGENT, ""}
    for fact in delta.added:
        words.update(_STATE_WORDS.get(fact[0], ()))
    if not words:
        return []
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    return [_Span(*match.span()) for match in re.finditer(pattern, text, re.IGNORECASE)]


def _differing(previous: str, text: str) -> list[_Span]:
    """Return where a text has other words than the one before; all after its first 2,000 words."""
    old = [match[0] for match in _WORD.finditer(previous)][:_MOST_WORDS]
    new = list(_WORD.finditer(text))
    compared = [match[0] for match in new[:_MOST_WORDS]]
    codes = difflib.SequenceMatcher(None, old, compared, autojunk=False).get_opcodes()
    runs = [(low, high) for tag, _, _, low, high in codes if tag in ("insert", "replace")]
    if len(new) > _MOST_WORDS:
        runs.append((_MOST_WORDS, len(new)))
    return [_Span(new[low].start(), new[high - 1].end()) for low, high in runs]


def change_token_nll(
    model: LanguageWorldModel,
    transitions: Sequence[Transition],
    canonicalizer: Canonicalizer,
    *,
    tokenizer: Any,
    batch: int = 256,
) -> dict[str, Any]:
    """Return the mean negative log-likelihood of the tokens that tell what changed, in nats.

    The world model is shown its own prompt, never the truth; the truth is scored as its answer,
    tokenised by itself as in training. A token counts if it shares a character with a span of
    `change_spans`.

    Args:
        model: The world model: says prompt and adapter.
        transitions: Real transitions.
        canonicalizer: The environment's; says what changed.
        tokenizer: The fast tokenizer of the model, of the transformers library.
        batch: How many requests the language model gets at once.

    Returns:
        ``nll`` (the mean over all change tokens; None where there is none), ``tokens`` and
        ``transitions`` (how many change tokens there are, in how many transitions), ``nll_all`` and
        ``tokens_all`` (the same of every token), and ``failed``, the transitions that the language
        model refused, as where they do not fit its context.

    Raises:
        OptionError: `batch` is below 1.
        LanguageModelError: The model cannot score given texts, the tokenizer does not tell where its
            tokens are, or it is not the model's.

    Example:
        >>> from pathlib import Path
        >>> change_token_nll(wm, load_transitions(Path("set.jsonl")), env.unwrapped.canonicalizer,
        ...                  tokenizer=lm.tokenizer)["nll"]  # doctest: +SKIP
        1.83
    """
    if batch < 1:
        raise OptionError(f"batch must be at least 1, not {batch!r}")
    if "score" not in model.lm.capabilities:
        raise LanguageModelError(
            f"expected a language model that scores given texts, found {model.lm.name}; use one that "
            "runs in this process"
        )
    if not tokenizer.is_fast:
        raise LanguageModelError(
            "expected a fast tokenizer, which tells where its tokens are, found "
            f"{type(tokenizer).__name__}; load the model's tokenizer.json"
        )
    chat = ChatTokenizer(tokenizer)
    sums = _Sums([], [])
    for start in range(0, len(transitions), batch):
        _add(sums, model, chat, transitions[start : start + batch], canonicalizer)
    return {
        "nll": _mean(sums.changed),
        "tokens": len(sums.changed),
        "transitions": sums.transitions,
        "nll_all": _mean(sums.every),
        "tokens_all": len(sums.every),
        "failed": sums.failed,
    }


def _add(
    sums: _Sums,
    model: LanguageWorldModel,
    chat: ChatTokenizer,
    transitions: Iterable[Transition],
    canonicalizer: Canonicalizer,
) -> None:
    """Ask for the scores of some transitions and add them up."""
    requests, places = [], []
    for query, observation in transitions:
        # What is written like a control token is broken up in answers too; the spans are of that.
        text = chat.defuse(_encodable(observation))
        tokens = _token_spans(chat, text)
        if not tokens:
            continue
        after = canonicalizer.update(query.state, query.action, observation)
        previous = query.history[-1].observation if query.history else ""
        change = diff(query.state, after) if after.parsed else None
        places.append(list(_touched(tokens, change_spans(text, change, previous))))
        requests.append(
            Score(
                model.prompt(query),
                (text,),
                ended=False,
                adapter=model.adapter,
                purpose="change tokens",
            )
        )
    for reply, touched in zip(model.lm.score(requests), places, strict=True):
        if isinstance(reply, LanguageModelError):
            sums.failed += 1
        else:
            _take(sums, reply, touched)


def _take(sums: _Sums, reply: Scores, touched: Sequence[bool]) -> None:
    (logprobs,) = reply.logprobs
    if len(logprobs) != len(touched):
        raise LanguageModelError(
            f"expected a log-probability for each of {len(touched)} tokens, found {len(logprobs)}; "
            "give the tokenizer of this very model"
        )
    changed = [-value for value, hit in zip(logprobs, touched, strict=True) if hit]
    sums.changed += changed
    sums.every += [-value for value in logprobs]
    sums.transitions += bool(changed)


def _token_spans(chat: ChatTokenizer, text: str) -> list[tuple[int, int]]:
    """Return the characters of each token of a text that is tokenised by itself."""
    found = chat.tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    return [(int(start), int(end)) for start, end in found["offset_mapping"]]


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can carry."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _touched(tokens: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> Iterator[bool]:
    """Yield for each token whether it shares a character with one of the spans."""
    for start, end in tokens:
        yield any(start < high and low < end for low, high in spans)


def _mean(values: Sequence[float]) -> float | None:
    return round(math.fsum(values) / len(values), 6) if values else None
