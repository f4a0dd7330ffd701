"""Requests and replies as JSON data, and the keys by which they are recorded."""

from __future__ import annotations

import array
import base64
import binascii
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz

from ..errors import DataCorrupt
from .base import (
    Completion,
    Encode,
    Encoding,
    Generate,
    LMReply,
    LMRequest,
    Score,
    Scores,
    WordProbabilities,
    Words,
)

__all__ = [
    "canonical",
    "nearest",
    "reply_from_json",
    "reply_to_json",
    "request_key",
    "request_to_json",
]

_KINDS: dict[type, str] = {Generate: "generate", Score: "score", Words: "words", Encode: "encode"}


def canonical(data: Any) -> str:
    r"""Return JSON data as text, the same for equal data.

    Example:
        >>> canonical({"b": 1, "a": "é"})
        '{"a":"\\u00e9","b":1}'
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def request_to_json(request: LMRequest) -> dict[str, Any]:
    """Return what a request asks as JSON data: its kind and all fields except its purpose.

    Example:
        >>> from comap.lm import Encode, Message
        >>> request_to_json(Encode((Message("user", "look"),)))
        {'kind': 'encode', 'messages': [['user', 'look']], 'prefix': '', 'adapter': None}
    """
    data: dict[str, Any] = {"kind": _KINDS[type(request)]}
    data["messages"] = [[role, content] for role, content in request.messages]
    if isinstance(request, Generate):
        sampling = request.sampling
        data["sampling"] = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            "stop": list(sampling.stop),
            "seed": sampling.seed,
        }
        data["choices"] = None if request.choices is None else list(request.choices)
        if request.reply_ids:  # else as in records that were made before there were any
            data["reply_ids"] = [list(tokens) for tokens in request.reply_ids]
    elif isinstance(request, Score):
        data["completions"], data["ended"] = list(request.completions), request.ended
    elif isinstance(request, Words):
        data["words"] = list(request.words)
    return data | {"prefix": request.prefix, "adapter": request.adapter}


def request_key(request: LMRequest | Mapping[str, Any]) -> str:
    """Return the key of a request, or of its JSON data: the SHA-256 of the data in one spelling.

    Example:
        >>> from comap.lm import Encode, Message
        >>> request_key(Encode((Message("user", "look"),), purpose="reflect"))[:16]
        '...'
    """
    data = request if isinstance(request, Mapping) else request_to_json(request)
    return hashlib.sha256(canonical(data).encode("ascii")).hexdigest()


def reply_to_json(reply: LMReply) -> dict[str, Any]:
    """Return a reply as JSON data; numbers come back exactly as they were.

    Example:
        >>> reply_to_json(Encoding((0.5, 1.0)))
        {'kind': 'encode', 'vector': {'float32': 'AAAAPwAAgD8='}, 'prompt_tokens': 0}
    """
    data: dict[str, Any]
    if isinstance(reply, Completion):
        data = {
            "kind": "generate",
            "text": reply.text,
            "token_ids": _list(reply.token_ids),
            "logprobs": _list(reply.logprobs),
            "finish": reply.finish,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
        }
        return data if reply.tokens is None else data | {"tokens": list(reply.tokens)}
    if isinstance(reply, Scores):
        data = {"kind": "score", "logprobs": [list(tokens) for tokens in reply.logprobs]}
    elif isinstance(reply, WordProbabilities):
        data = {"kind": "words", "probabilities": list(reply.probabilities)}
    else:
        data = {"kind": "encode", "vector": _vector_to_json(reply.vector)}
    return data | {"prompt_tokens": reply.prompt_tokens}


def reply_from_json(data: Any) -> LMReply:
    """Return the reply that `reply_to_json` wrote.

    Raises:
        DataCorrupt: It is none.

    Example:
        >>> reply_from_json(reply_to_json(Completion("go", (3, 1), (-0.5, -1.0))))
        Completion(text='go', token_ids=(3, 1), logprobs=(-0.5, -1.0), finish='stop', ...)
    """
    try:
        return _READERS[data["kind"]](data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {error}"
        raise DataCorrupt(f"expected a whole reply, found {found:.120}") from error


def nearest(path: Path, request: LMRequest) -> str:
    """Return what to say of the recorded request of the same kind that is most like another one.

    Args:
        path: The record; lines that cannot be read are passed over.
        request: What was asked and is not in it.

    Example:
        >>> nearest(Path("nowhere"), Encode((), ""))
        'no request of this kind is in it'
    """
    asked = request_to_json(request)
    best, best_score = None, -1.0
    for recorded in _recorded(path):
        if recorded.get("kind") == asked["kind"]:
            score = fuzz.ratio(_last(asked), _last(recorded)) + _same(asked, recorded)
            if score > best_score:
                best, best_score = recorded, score
    if best is None:
        return "no request of this kind is in it"
    differs = ", ".join(part for part in asked if asked[part] != best.get(part))
    return f"the nearest in it has the last message {_last(best)[:80]!r} and differs in {differs}"


def _recorded(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the requests in a record."""
    try:
        with path.open("rb") as file:
            for line in file:
                with suppress(ValueError, AttributeError, RecursionError):
                    request = json.loads(line).get("request")
                    if isinstance(request, dict):
                        yield request
    except OSError:
        return


def _last(request: Mapping[str, Any]) -> str:
    """Return the end of a request's last message, by which prompts mostly differ."""
    messages = request.get("messages")
    return str(messages[-1][1])[-2000:] if messages else ""


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return sum(one[part] == other.get(part) for part in one)


def _list(values: tuple[Any, ...] | None) -> list[Any] | None:
    return None if values is None else list(values)


def _vector_to_json(vector: tuple[float, ...]) -> Any:
    """Return a vector as single-precision bytes where that loses nothing, else as numbers."""
    try:
        single = array.array("f", vector)
    except OverflowError:
        return list(vector)
    if tuple(single) != tuple(vector):
        return list(vector)
    if sys.byteorder == "big":
        single.byteswap()
    return {"float32": base64.b64encode(single.tobytes()).decode("ascii")}


def _vector_from_json(data: Any) -> tuple[float, ...]:
    if isinstance(data, list):
        return _numbers(data)
    try:
        single = array.array("f", base64.b64decode(data["float32"], validate=True))
    except binascii.Error as error:
        raise ValueError(f"a vector that is not base64: {error}") from error
    if sys.byteorder == "big":
        single.byteswap()
    return tuple(single)


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise TypeError(f"{values!r:.40} is no list of numbers")
    return tuple(values)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} is no whole number of at least 0")
    return value


def _texts(values: Any) -> tuple[str, ...] | None:
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r:.40} is no list of texts")
    return tuple(values)


def _completion(data: Mapping[str, Any]) -> Completion:
    text, finish, token_ids, logprobs = (
        data[name] for name in ("text", "finish", "token_ids", "logprobs")
    )
    if not isinstance(text, str) or finish not in ("stop", "length"):
        raise TypeError("text or finish is of another type")
    ids = None if token_ids is None else tuple(_whole(token) for token in token_ids)
    return Completion(
        text,
        ids,
        None if logprobs is None else _numbers(logprobs),
        finish,
        _whole(data["prompt_tokens"]),
        _whole(data["completion_tokens"]),
        _texts(data.get("tokens")),  # older records have none
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], LMReply]] = {
    "generate": _completion,
    "score": lambda data: Scores(
        tuple(_numbers(tokens) for tokens in data["logprobs"]), _whole(data["prompt_tokens"])
    ),
    "words": lambda data: WordProbabilities(
        _numbers(data["probabilities"]), _whole(data["prompt_tokens"])
    ),
    "encode": lambda data: Encoding(
        _vector_from_json(data["vector"]), _whole(data["prompt_tokens"])
    ),
}
