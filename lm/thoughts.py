"""Thoughts that a model writes in blocks such as ``<think>``, and that are no part of its reply."""

from __future__ import annotations

import re

OPENS = "<think>"
ENDS = "</think>"

_NAMES = "think|thinking|thoughts?|reason|reasoning|analysis|scratchpad|seed:think"

# Marks of the families that write such blocks: tags (DeepSeek-R1, Qwen3, Seed-OSS), Magistral, Kimi,
# OpenThinker, and gpt-oss with its control tokens or without them.
_MARK = re.compile(
    rf"(?P<opening><(?:{_NAMES})(?:\s[^<>]{{0,200}})?>|\[THINK\]|◁think▷|<\|begin_of_thought\|>"
    r"|<\|channel\|>(?:analysis|commentary)<\|message\|>|\A(?-i:analysis)(?=(?-i:[A-Z])))"
    rf"|</(?:{_NAMES})\s{{0,20}}>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>"
    r"|<\|channel\|>final<\|message\|>|(?-i:assistantfinal)(?=\S)",
    re.IGNORECASE,
)


def end_of_thought(text: str) -> int:
    """Return where the reply begins behind a thought: 0 without one, the end where it is cut.

    Example:
        >>> reply = "<think>The fridge, I guess.</think>Action: open fridge 1"
        >>> reply[end_of_thought(reply):]
        'Action: open fridge 1'
        >>> len("<think>The fr") == end_of_thought("<think>The fr")
        True
    """
    # Only this mark: it is what a template begins and `ChatTokenizer.reply_text` puts back, and a reply
    # may well speak of other marks.
    if not text.lstrip().startswith(OPENS):
        return 0

    end = text.find(ENDS)
    return end + len(ENDS) if end >= 0 else len(text)


def first_stop(text: str, stops: tuple[str, ...] | list[str]) -> int | None:
    """Return where the first of some stop texts stands behind the thought; None where none does."""
    start = end_of_thought(text)
    positions = [text.find(stop, start) for stop in stops]
    return min((position for position in positions if position >= 0), default=None)


def _spoken(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Return where a text is outside of think blocks, and whether its last block is left open."""
    spans: list[tuple[int, int]] = []
    start = 0
    opened: int | None = None  # where the block begins that is open here

    for mark in _MARK.finditer(text):
        if mark["opening"] is not None:
            # A mark within a block is a part of the thought: blocks do not nest.
            if opened is None:
                opened = mark.start()
            continue

        if opened is None:  # the prompt had opened the block: it began before this reply
            spans.clear()
        else:
            spans.append((start, opened))
        start = mark.end()
        opened = None

    spans.append((start, len(text) if opened is None else opened))
    return spans, opened is not None


def hide_thoughts(text: str) -> str:
    r"""Return a text of the same length with blanks in place of its think blocks.

    What follows a block begins a line, so that labels are found there, and every place in the result is
    the same place in the text.

    Example:
        >>> hide_thoughts("<think>Hm.</think>look")
        '                 \nlook'
    """
    spans, _ = _spoken(text)
    if spans == [(0, len(text))]:
        return text

    parts: list[str] = []
    position = 0
    for start, end in spans:
        if start > position:
            parts.append(" " * (start - position - 1) + "\n")
        parts.append(text[start:end])
        position = end

    # A thought that was cut has no reply behind it, and so no line begins there.
    parts.append(" " * (len(text) - position))
    return "".join(parts)


def without_thoughts(text: str) -> str:
    """Return a text without its think blocks; a text that has none is returned as it is.

    Example:
        >>> without_thoughts("So I looked.</think>The key is red. <think>Is it")
        'The key is red.'
    """
    spans, _ = _spoken(text)
    if spans == [(0, len(text))]:
        return text
    return "".join(text[start:end] for start, end in spans).strip()


def is_thinking(text: str) -> bool:
    """Return whether a text ends within a think block, as one that was cut does."""
    return _spoken(text)[1]
