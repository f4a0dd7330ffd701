"""What is sent to a server: request bodies, and what a server turned out not to understand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import LanguageModelError, OptionError
from .base import ROLES, Generate, Message, Words
from .openai_failures import Failure

__all__ = [
    "CONTINUE",
    "Dialect",
    "checked_extra_body",
    "checked_messages",
    "generate_body",
    "words_body",
]

CONTINUE = (
    "Your last message was cut off. Continue it from exactly where it stopped. Write only what "
    "comes next, without repeating any of it."
)
"""Asks for the rest of a message that was begun, where a server cannot continue one by itself."""

_MOST_STOPS = 4
_OURS = frozenset(
    {
        "add_generation_prompt",
        "continue_final_message",
        "frequency_penalty",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "structured_outputs",
        "temperature",
        "tools",
        "top_logprobs",
        "top_p",
    }
)
_INSTEAD = re.compile(r"unsupported|not supported|instead", re.IGNORECASE)


def checked_extra_body(extra_body: Mapping[str, Any] | None, key: str) -> dict[str, Any]:
    """Return further fields for request bodies, as a copy.

    Raises:
        OptionError: They are not JSON, replace a field that requests set, or hold the key.

    Example:
        >>> checked_extra_body({"chat_template_kwargs": {"enable_thinking": False}}, "")
        {'chat_template_kwargs': {'enable_thinking': False}}
    """
    expected = "extra_body must be a mapping of further fields of the request"
    if extra_body is None:
        return {}
    if not isinstance(extra_body, Mapping) or not all(type(name) is str for name in extra_body):
        raise OptionError(f"{expected}, not a {type(extra_body).__name__}")
    if taken := sorted(_OURS & set(extra_body)):
        raise OptionError(f"{expected} and cannot set {taken}: requests and options set these")
    try:
        text = json.dumps(dict(extra_body), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"{expected}, of JSON data; found {type(error).__name__}") from None
    if key and key in text:
        raise OptionError(f"{expected}, without the key: it is sent in the header")
    copy: dict[str, Any] = json.loads(text)
    return copy


def checked_messages(messages: Sequence[Message], prefix: str = "") -> list[dict[str, str]]:
    """Return messages as a server wants them.

    Raises:
        LanguageModelError: There is none, one has an unknown role, or a text is no valid Unicode.

    Example:
        >>> checked_messages([Message("user", "look")])
        [{'role': 'user', 'content': 'look'}]
    """
    if not messages:
        raise LanguageModelError("expected messages in the request, found none; add one")
    for number, (role, content) in enumerate([*messages, Message("assistant", prefix)]):
        where = "the prefix" if number == len(messages) else f"message {number}"
        if role not in ROLES:
            raise LanguageModelError(
                f"expected a role of {', '.join(ROLES)} in {where}, found {role!r:.40}"
            )
        if not isinstance(content, str):
            raise LanguageModelError(
                f"expected text in {where}, found {type(content).__name__}; make it text"
            )
        if any("\ud800" <= c <= "\udfff" for c in content):
            raise LanguageModelError(
                f"expected valid Unicode in {where}, found half a surrogate pair; replace it"
            )
    return [{"role": role, "content": content} for role, content in messages]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server understands, as far as its refusals told.

    Attributes:
        logprobs: Whether to ask for log-probabilities.
        limit: What the field for the most new tokens is called.

    Example:
        >>> said = "Use 'max_completion_tokens' instead."
        >>> refusal = Failure("HTTP 400", "", again=False, status=400, said=said)
        >>> Dialect().after(refusal, {"max_tokens": 8})
        Dialect(logprobs=True, limit='max_completion_tokens')
    """

    logprobs: bool = True
    limit: str = "max_tokens"

    def after(self, failure: Failure, sent: Mapping[str, Any]) -> Dialect | None:
        """Return what to try after a refusal that names a field of ours; None if it names none.

        Args:
            failure: What the server answered.
            sent: The request that it refused.
        """
        if failure.status not in (400, 422):
            return None
        renamed = "max_completion_tokens"
        if "max_tokens" in sent and renamed in failure.said and _INSTEAD.search(failure.said):
            return replace(self, limit=renamed)
        if "logprobs" in sent and "top_logprobs" not in sent and "logprobs" in failure.said:
            return replace(self, logprobs=False)
        return None


def _conversation(
    messages: Sequence[Message], prefix: str, continues: bool
) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Return the messages to send, and the further fields that a prefix needs."""
    sent = checked_messages(messages, prefix)
    if not prefix:
        return sent, {}
    sent.append({"role": "assistant", "content": prefix})
    if continues:
        return sent, {"continue_final_message": True, "add_generation_prompt": False}
    return [*sent, {"role": "user", "content": CONTINUE}], {}


def generate_body(
    request: Generate, dialect: Dialect, extra: Mapping[str, Any], continues: bool
) -> dict[str, Any]:
    """Return the arguments of a chat completion for a request for text, the model's name left out.

    Args:
        request: What is asked.
        dialect: What the server understands.
        extra: Further fields of the body.
        continues: Whether the server can continue a message that was begun.

    Raises:
        LanguageModelError: The messages cannot be sent.

    Example:
        >>> request = Generate((Message("user", "look"),))
        >>> generate_body(request, Dialect(), {}, continues=False)["max_tokens"]
        64
    """
    sampling = request.sampling
    messages, fields = _conversation(request.messages, request.prefix, continues)
    body: dict[str, Any] = {
        "messages": messages,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        dialect.limit: sampling.max_new_tokens,
    }
    if dialect.logprobs:
        body["logprobs"] = True
    if request.choices is not None:
        fields["structured_outputs"] = {"choice": list(request.choices)}
    elif stops := _stops_to_send(request, continues):
        body["stop"] = stops
    return body | {"extra_body": {**extra, **fields}}


def _stops_to_send(request: Generate, continues: bool) -> list[str]:
    """Return the stop strings that the server shall know; all are applied to its answer anyway.

    A model that was asked to continue may repeat the prefix first, and must not stop inside it.
    """
    repeated = "" if continues else request.prefix
    return [stop for stop in request.sampling.stop if stop not in repeated][:_MOST_STOPS]


def words_body(
    request: Words, dialect: Dialect, extra: Mapping[str, Any], most: int
) -> dict[str, Any]:
    """Return the arguments of a chat completion for the probabilities of the next token.

    Args:
        request: What is asked.
        dialect: What the server understands.
        extra: Further fields of the body.
        most: Of how many tokens the server shall tell the probability.

    Raises:
        LanguageModelError: The messages cannot be sent.

    Example:
        >>> request = Words((Message("user", "look"),), (" a", " b"), "I say")
        >>> words_body(request, Dialect(), {}, 20)["extra_body"]["continue_final_message"]
        True
    """
    messages, fields = _conversation(request.messages, request.prefix, continues=True)
    return {
        "messages": messages,
        "temperature": 1.0,
        "top_p": 1.0,
        dialect.limit: 1,
        "logprobs": True,
        "top_logprobs": most,
        "extra_body": {**extra, **fields},
    }
