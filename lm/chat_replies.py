"""What a chat completion says, read without trust: its server may be another kind, or a broken one."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

from .base import valid_text

_FINISHES = dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), "stop")
_FINISHES |= dict.fromkeys(("tool_calls", "tool_use", "function_call"), "stop")
_FINISHES |= dict.fromkeys(("length", "max_tokens"), "length")
_REASONING = ("reasoning_content", "reasoning")  # vLLM and DeepSeek; newer vLLM, OpenRouter
_CHECK_URL = "check that base_url is an OpenAI-compatible server's, and its log"
THINKING_ADVICE = (
    "if the model thinks first, give it more tokens, or switch that off, as vLLM can: "
    "chat_template_kwargs={'enable_thinking': False} (on the command line: --model-option "
    """'chat_template_kwargs={"enable_thinking":false}')"""
)
_CONTEXTS = ("max_model_len", "context_length", "context_window")  # vLLM, SGLang; OpenRouter; Groq
_KEY_PART = 8  # characters of a key in a row that nobody writes by chance


class BadAnswer(Exception):
    """An answer that cannot be used: what is wrong with it, and what to do."""

    def __init__(self, problem: str, advice: str = _CHECK_URL):
        super().__init__(problem, advice)


class Chat(NamedTuple):
    """A chat completion as a server gave it; what the model thought first is not in its text."""

    text: str
    reasoning: str
    finish: str
    entries: list[dict[str, Any]] | None
    token_ids: tuple[int, ...] | None
    prompt_tokens: int | None
    completion_tokens: int | None

    def logprobs(self) -> tuple[float, ...] | None:
        """Return the log-probability of each token, if the server sent them."""
        if self.entries is None:
            return None
        logprobs = tuple(_logprob(entry) for entry in self.entries)
        if self.token_ids is not None and len(self.token_ids) != len(logprobs):
            raise _malformed(f"{len(logprobs)} log-probabilities of {len(self.token_ids)} tokens")
        return logprobs

    def tokens(self) -> tuple[str, ...] | None:
        """Return the text of each token, if the server sent them all.

        A character may span tokens: it stands in the last of them.
        """
        if self.entries is None or not all(isinstance(e.get("token"), str) for e in self.entries):
            return None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(decoder.decode(_token_bytes(entry)) for entry in self.entries)

    def without_reasoning_tokens(self) -> Chat:
        """Return the same with the tokens of its text alone, as far as servers tell them apart."""
        tokens = self.tokens() if self.reasoning else None
        if tokens is None or self.entries is None:
            return self

        # The text comes last; where the tokens do not contain it (-1), all of them stay.
        all_text = "".join(tokens)
        text_start = all_text.rfind(self.text) if self.text else len(all_text)
        token_ends = accumulate(map(len, tokens))
        thought_tokens = sum(token_end <= text_start for token_end in token_ends)

        token_ids = None if self.token_ids is None else self.token_ids[thought_tokens:]
        return self._replace(entries=self.entries[thought_tokens:], token_ids=token_ids)


def read_chat(body: bytes, key: str = "") -> Chat:
    """Return the chat completion in an answer's body, which must not repeat the key."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        excerpt = one_line(body.decode("utf-8", "replace"), key, 60)
        raise _malformed(f"no JSON ({excerpt!r})" if excerpt else "an empty body") from None

    choices = data.get("choices") if isinstance(data, dict) else None
    if not choices or not _is_list_of(dict, choices):
        raise _malformed("JSON without a list of choices")

    finish = choices[0].get("finish_reason")
    if finish == "content_filter":
        raise BadAnswer("a text that the server's filter withheld", "change the prompt")
    if not isinstance(finish, str) or finish not in _FINISHES:
        raise _malformed("an unknown finish reason")

    message = choices[0].get("message")
    reasoning = _reasoning(message)
    text = _text_of(message, bool(reasoning) or _FINISHES[finish] == "length")

    entries = choices[0].get("logprobs")
    if isinstance(entries, dict):
        entries = entries.get("content")
    if entries is not None and not _is_list_of(dict, entries):
        raise _malformed("log-probabilities of another shape")
    token_ids = choices[0].get("token_ids")
    if token_ids is not None and not _is_list_of(int, token_ids):
        raise _malformed("token ids that are no whole numbers")

    usage = data.get("usage")
    counts = usage if isinstance(usage, dict) else {}

    chat = Chat(
        valid_text(text),
        valid_text(reasoning),
        _FINISHES[finish],
        entries,
        None if token_ids is None else tuple(token_ids),
        _whole_number(counts.get("prompt_tokens")),
        _whole_number(counts.get("completion_tokens")),
    )

    # A short key may be a word of the answer.
    if len(key) >= 2 * _KEY_PART and key in chat.text + "".join(chat.tokens() or ()):
        raise BadAnswer("an answer that repeats the key", "do not use this server; replace the key")
    return chat


def _reasoning(message: Any) -> str:
    """Return what a model thought before its message, where the server keeps the two apart."""
    if not isinstance(message, dict):
        return ""
    texts = (message.get(name) for name in _REASONING)
    return next((text for text in texts if isinstance(text, str) and text), "")


def _text_of(message: Any, may_be_empty: bool) -> str:
    """Return the text of a message, and behind it the first call that its model makes.

    A model that had not ended its thought at the limit of tokens says nothing: an empty text.
    """
    content = message.get("content") if isinstance(message, dict) else message
    call = _call_in(message) if isinstance(message, dict) else None
    if isinstance(content, str):
        return f"{content}\n{call}" if content and call else call or content
    if content is None and (call or may_be_empty):
        return call or ""
    advice = THINKING_ADVICE if content is None else _CHECK_URL
    raise _malformed(f"a message whose content is {type(content).__name__}, not text", advice)


def _call_in(message: Mapping[str, Any]) -> str | None:
    """Return a message's first call as agents write calls: JSON with ``name`` and ``arguments``."""
    calls = message.get("tool_calls")
    first = calls[0] if calls and _is_list_of(dict, calls) else {}
    function = first.get("function", message.get("function_call"))
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None

    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):  # JSON in a text, which a model may have written badly
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    call = {"name": function["name"], "arguments": arguments}
    return json.dumps(call, ensure_ascii=False)


def context_in(body: bytes, model: str) -> int | None:
    """Return the context of a model in a server's list of models; None where it is not there."""
    entries = json.loads(body)["data"]

    # Some servers list a model by another name, such as its path: then the first one counts.
    model_entries = [entry for entry in entries if entry.get("id") == model] or entries[:1]
    lengths = [_whole_number(model_entries[0].get(name)) for name in _CONTEXTS]
    return next((length for length in lengths if length), None)


def one_line(text: str, key: str = "", limit: int = 200) -> str:
    """Return a text from outside as one short line, withheld where it has a part of the key."""
    part_starts = range(len(key) - _KEY_PART + 1)
    if (key and key in text) or any(key[i : i + _KEY_PART] in text for i in part_starts):
        return "its text is withheld, as it repeats the key"
    text = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    return " ".join(text.split())[:limit]


def without_prefix(text: str, prefix: str) -> str:
    """Return an answer without a repetition of what it was asked to continue."""
    answer = text.lstrip()
    whole_prefix = prefix.strip()
    last_line = whole_prefix.rpartition("\n")[2].strip()

    for repetition in (whole_prefix, last_line):
        if not repetition or not answer.startswith(repetition):
            continue

        # "go" before "going" is no repetition: the answer just begins alike.
        rest = answer[len(repetition) :]
        ends_inside_word = repetition[-1].isalnum() and rest[:1].isalnum()
        if not ends_inside_word or " " in repetition:
            return rest.lstrip() if prefix[-1].isspace() else rest
    return text


def _malformed(problem: str, advice: str = _CHECK_URL) -> BadAnswer:
    return BadAnswer(f"{problem} instead of a chat completion", advice)


def _is_list_of(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _whole_number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= 10**9 else None


def _logprob(entry: Mapping[str, Any]) -> float:
    value: Any = entry.get("logprob")
    # Rounding on the server may leave a certain token a hair above zero.
    if type(value) not in (int, float) or math.isnan(value) or value > 1e-3:
        raise _malformed("a log-probability that is no number of at most 0")
    return min(float(value), 0.0)


def _token_bytes(entry: Mapping[str, Any]) -> bytes:
    byte_values = entry.get("bytes")
    if _is_list_of(int, byte_values) and all(0 <= byte < 256 for byte in byte_values or ()):
        return bytes(byte_values or ())

    token = entry.get("token")
    if not isinstance(token, str):
        raise _malformed("a token that is no text")
    return token.encode("utf-8", "replace")
