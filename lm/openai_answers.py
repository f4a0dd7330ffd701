"""What a server answered: read without trust, cut and made into replies."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LanguageModelError
from .openai_failures import Failure, one_line, repeats_key

__all__ = [
    "Chat",
    "cut_at_stop",
    "read_chat",
    "token_probabilities",
    "without_prefix",
    "word_probabilities",
]

_FINISHES = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
}
_MOST_TOKENS = 10**9
_ADVICE = "check that base_url is an OpenAI-compatible server's, and its log"
_THINKS = (
    "if the model thinks first, give it more tokens or switch that off, for vLLM with "
    "extra_body={'chat_template_kwargs': {'enable_thinking': False}}"
)


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat completion as a server gave it.

    Attributes:
        text: The message.
        finish: ``"stop"`` or ``"length"``.
        logprobs: What it told of each token, unread; None where it told nothing.
        token_ids: The tokens' numbers, where it told them.
        prompt_tokens: Number of tokens of the prompt, where it told a number.
        completion_tokens: Number of generated tokens, where it told a number.
    """

    text: str
    finish: str
    logprobs: tuple[dict[str, Any], ...] | None
    token_ids: tuple[int, ...] | None
    prompt_tokens: int | None
    completion_tokens: int | None

    def token_logprobs(self) -> tuple[float, ...] | None:
        """Return the log-probability of each token, where the server told them.

        Raises:
            Failure: One is not a number, or there are not as many as tokens.
        """
        if self.logprobs is None:
            return None
        found = tuple(_logprob(entry) for entry in self.logprobs)
        if self.token_ids is not None and len(self.token_ids) != len(found):
            raise _malformed(f"{len(found)} log-probabilities of {len(self.token_ids)} tokens")
        return found

    def token_texts(self) -> tuple[str, ...] | None:
        """Return the text of each token, where the server told them all.

        A character of several tokens comes whole with the last of them, where their bytes are told.

        Example:
            >>> entries = ({"token": " sa"}, {"token": "fe"})
            >>> Chat(" safe", "stop", entries, None, None, None).token_texts()
            (' sa', 'fe')
        """
        if self.logprobs is None:
            return None
        if not all(isinstance(entry.get("token"), str) for entry in self.logprobs):
            return None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(decoder.decode(_token_bytes(entry)) for entry in self.logprobs)


def read_chat(body: bytes, key: str = "") -> Chat:
    """Return the chat completion in an answer's body.

    Args:
        body: The body.
        key: The key, which no message may show.

    Raises:
        Failure: It is none: another text, cut off, of other types, without choices. Another try
            may help then. Or the server filtered the text, which another try does not change.

    Example:
        >>> read_chat(b'{"choices":[{"message":{"content":"go"},"finish_reason":"stop"}]}').text
        'go'
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise _malformed(_glimpse(body, key)) from None
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _malformed("JSON without a list of choices")
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _malformed("a choice without a message")
    finish = _finish(choice.get("finish_reason"))
    text = message.get("content")
    if not isinstance(text, str):
        advice = _THINKS if text is None else _ADVICE
        raise _malformed(f"a message whose content is {type(text).__name__}, not text", advice)
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Chat(
        _valid(text),
        finish,
        _logprob_entries(choice.get("logprobs")),
        _token_ids(choice.get("token_ids")),
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
    )


def _glimpse(body: bytes, key: str) -> str:
    text = body.decode("utf-8", "replace")
    if key and repeats_key(text, key):
        return "no JSON (withheld, as it repeats the key)"
    shown = one_line(text, 60)
    return f"no JSON ({shown!r})" if shown else "an empty body"


def _malformed(found: str, advice: str = _ADVICE) -> Failure:
    return Failure(f"{found} instead of a chat completion", advice, again=True)


def _finish(reason: Any) -> str:
    if reason == "content_filter":
        raise Failure("a text that the server's filter withheld", "change the prompt", again=False)
    if not isinstance(reason, str) or reason not in _FINISHES:
        raise _malformed("an unknown finish reason")
    return _FINISHES[reason]


def _valid(text: str) -> str:
    """Return a text whose halves of surrogate pairs, which JSON can hold, are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _logprob_entries(logprobs: Any) -> tuple[dict[str, Any], ...] | None:
    entries = logprobs.get("content") if isinstance(logprobs, dict) else logprobs
    if entries is None:
        return None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _malformed("log-probabilities of another shape")
    return tuple(entries)


def _token_ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise _malformed("token ids that are no whole numbers")
    return tuple(value)


def _logprob(entry: dict[str, Any]) -> float:
    value: Any = entry.get("logprob")
    # Rounding on the server may leave a certain token a hair above zero.
    if type(value) not in (int, float) or math.isnan(value) or value > 1e-3:
        raise _malformed("a log-probability that is no number of at most 0")
    return min(float(value), 0.0)


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    r"""Return a text up to the first stop string in it, and whether there is one.

    Example:
        >>> cut_at_stop("go north\nObservation: a wall", ("Obs", "\n"))
        ('go north', True)
    """
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def without_prefix(text: str, prefix: str) -> str:
    """Return an answer without a repetition of what it was asked to continue.

    The whole prefix or its last line is taken off. Where that ends inside a word, one word is not
    taken for a repetition: after "a", "apple" stays.

    Example:
        >>> without_prefix("Thought: I go on.", "Thought: I")
        ' go on.'
        >>> without_prefix("apple", "a")
        'apple'
    """
    start = text.lstrip()
    whole = prefix.strip()
    for repeated in (whole, whole.rpartition("\n")[2].strip()):
        if not repeated or not start.startswith(repeated):
            continue
        rest = start[len(repeated) :]
        inside = repeated[-1].isalnum() and rest[:1].isalnum()
        if not inside or " " in repeated:
            return rest.lstrip() if prefix[-1].isspace() else rest
    return text


def token_probabilities(chat: Chat) -> dict[bytes, float]:
    """Return the probabilities of the likeliest first tokens, by the tokens' bytes.

    Raises:
        Failure: The server did not tell them, or told no numbers.

    Example:
        >>> entry = {"top_logprobs": [{"token": " a", "logprob": 0.0}]}
        >>> token_probabilities(Chat("", "length", (entry,), None, None, None))
        {b' a': 1.0}
    """
    tops = chat.logprobs[0].get("top_logprobs") if chat.logprobs else None
    if not isinstance(tops, list) or not tops or not all(isinstance(top, dict) for top in tops):
        raise Failure(
            "an answer without the probabilities of the likeliest tokens",
            "ask for words only where the server tells them (vLLM does)",
            again=False,
        )
    found: dict[bytes, float] = {}
    for top in tops:
        token = _token_bytes(top)
        found[token] = found.get(token, 0.0) + math.exp(_logprob(top))
    return found


def _token_bytes(entry: dict[str, Any]) -> bytes:
    listed, token = entry.get("bytes"), entry.get("token")
    if isinstance(listed, list) and all(type(b) is int and 0 <= b < 256 for b in listed):
        return bytes(listed)
    if not isinstance(token, str):
        raise _malformed("a token that is no text")
    return token.encode("utf-8", "replace")


def word_probabilities(tokens: Mapping[bytes, float], words: Sequence[str]) -> tuple[float, ...]:
    """Return the probability of each word's first token that no other word begins with.

    Several known tokens may begin a word; the most probable is taken for how it is written. A word
    that none of them begins gets 0.

    Args:
        tokens: The probabilities of some tokens.
        words: The words.

    Raises:
        LanguageModelError: The words cannot be told apart by one token: one begins another, or a
            token that begins several is likelier than all that begin one.

    Example:
        >>> word_probabilities({b" KE": 0.5, b" RE": 0.25, b" ": 0.01}, (" KEEP", " REVISE"))
        (0.5, 0.25)
    """
    if any(a != b and a.startswith(b) for a in words for b in words) or len(set(words)) < len(
        words
    ):
        raise _alike(words)
    own, shared = [0.0] * len(words), 0.0
    for token, probability in tokens.items():
        begins = [i for i, word in enumerate(words) if token and word.encode().startswith(token)]
        if len(begins) == 1:
            own[begins[0]] = max(own[begins[0]], probability)
        elif begins:
            shared = max(shared, probability)
    if shared > math.fsum(own):
        raise _alike(words)
    return tuple(own)


def _alike(words: Sequence[str]) -> LanguageModelError:
    return LanguageModelError(
        f"expected words that begin with different tokens, found {list(words)!r:.120} which begin "
        "alike; choose words that begin differently"
    )
