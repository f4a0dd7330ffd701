"""Labels in replies, such as ``Action:``, and where what they announce stands, however it is marked up."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_WORDS = (
    "the|my|your|our|next|final|best|chosen|selected|recommended|following|new|revised|correct|one|"
    "single|executable"
)
_NAMES = {  # the first word of a label's name: the field that it announces
    "action": "action",
    "thought": "thought",
    "thoughts": "thought",
    "thinking": "thought",
    "reasoning": "thought",
    "rationale": "thought",
    "explanation": "thought",
    "plan": "thought",
    "observation": "observation",
    "observations": "observation",
    "reflection": "reflection",
    "analysis": "reflection",
    "decision": "decision",
    "revise": "revise probability",
    "revision": "revise probability",
    "probability": "revise probability",
}
_NAME = (
    r"(?P<input>action[\s_]{0,3}input)|action|thoughts?|thinking|reasoning|rationale|explanation|plan"
    r"|observations?|reflection|analysis|decision|(?:revise|revision)[\s_]{0,3}probability|probability"
)
_LABEL = (
    rf"(?P<words>(?:(?:{_WORDS})[\s_]{{0,3}}){{0,4}}+)(?P<name>{_NAME})(?:\s{{0,2}}\#?\d{{1,3}})?"
)
_VERB = (  # "The action I will take is: look"
    r"(?:\s(?:is|will\sbe|to\s(?:take|perform)"
    r"|i\s(?:will\s|would\s)?(?:take|choose|perform)(?:\sis)?))?"
)
_CLOSED = r"""(?P<closed>[*_`"'”’)\]]*+)\s{0,3}"""
_MARKUP = r"(?P<markup>(?:[^\w\n]|_)*+(?:\d{1,3}[.):]\s?(?:[^\w\n]|_)*+)?)"

# Replies are anybody's text. Possessive (`*+`) and bounded repeats keep every search linear in it: no
# reply, however it is made, holds up a run.
_AT_START = re.compile(
    rf"{_MARKUP}{_LABEL}{_VERB}{_CLOSED}(?:(?::|：|=>|->|→|=|[–—-](?=\s))[*_]*+|(?P<heading>(?=\s*\Z)))",
    re.IGNORECASE,
)
_WITHIN = re.compile(rf"(?<![^\W_]){_LABEL}{_VERB}{_CLOSED}[:：][*_]*+", re.IGNORECASE)
_KEY = re.compile(  # a member of a JSON object that is not whole, or of a dictionary of Python's
    rf"""(?P<quote>["']){_LABEL}(?P=quote)\s{{0,4}}:\s{{0,4}}"""
    r"""(?:(?P<mark>["'])(?P<text>(?:\\.|(?!(?P=mark))[^\\\n]){0,1000})|(?P<number>[-+.\d%]{1,20}))""",
    re.IGNORECASE,
)
_TAG = re.compile(rf"<{_LABEL}>(?P<text>[^<\n]{{0,1000}})</", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:```|~~~)\w*\s*\Z")

_OTHER = re.compile(  # words before a label in a line with which it announces no action to be taken
    "candidate|draft(?:ed)?|original|previous|last|prior|past|possible|available|admissible|proposed"
    "|current|alternative|invalid|wrong|every|each|no|an",
    re.IGNORECASE,
)
_OPENING = frozenset("\"'`“‘(<[{")
_QUOTING = re.compile(r'[\[{<"]')
_REPEATED = 8  # characters between two labels of one action
_LOOK_BACK = 40  # characters before a label by which it is told whether it is one


ACTIONS = ("action", "final action")
"""The fields that hold an action."""


class Field(NamedTuple):
    """What one label announces.

    Attributes:
        name: ``action``, ``final action``, ``action input``, ``thought``, ``observation``,
            ``reflection``, ``decision`` or ``revise probability``.
        start: Where the label begins, with its markup.
        after: Where the text behind the label begins.
        end: Where it ends: at the end of its line, or where the next label begins.
    """

    name: str
    start: int
    after: int
    end: int


def _kind(label: re.Match[str]) -> str:
    if label["input"] is not None:
        return "action input"
    first_word = re.split(r"[\s_]", label["name"].lower(), maxsplit=1)[0]
    kind = _NAMES.get(first_word) or _NAMES["revise"]  # ReviseProbability, written as one word

    # Replies to a reflection have two: the draft that is spoken of, and the action after it.
    words = label["words"].lower()
    is_final = any(word in words for word in ("final", "revised", "new"))
    return "final action" if kind == "action" and is_final else kind


def key_kind(key: str) -> str | None:
    """Return which field a key of a JSON object announces; None for another key.

    Example:
        >>> key_kind("next_action"), key_kind("finalAction"), key_kind("colour")
        ('action', 'final action', None)
    """
    label = re.fullmatch(_LABEL + "s?", key[:80], re.IGNORECASE)
    return None if label is None else _kind(label)


def label_at(text: str, start: int, end: int) -> tuple[str, int] | None:
    """Return the field whose label a line begins with, and where its text begins; None for another line."""
    label = _AT_START.match(text, start, end)
    if label is None:
        return None

    is_key = label["markup"][-1:] in ("'", '"') and label["closed"][:1] in ("'", '"')
    if is_key:  # of a JSON object, see `_KEY`
        return None
    return _kind(label), label.end()


def _announces(text: str, line: int, label: re.Match[str]) -> bool:
    """Return whether a label within a line is one: behind a sentence, or with a capital letter."""
    start = label.start()
    before = text[max(line, start - _LOOK_BACK) : start]
    if before[-1:] in _OPENING:  # the label is quoted: it is spoken of
        return False

    words = before.split()
    if not words or not words[-1][-1].isalnum():
        return True
    if _OTHER.fullmatch(words[-1]):
        return False
    return label[0][0].isupper() or bool(label["words"])


def _in_line(text: str, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of a line: models write a thought and an action on one, or label a label."""
    name = ""  # of the field that is open; none yet
    field_start = start
    after = start
    label_at_start = label_at(text, start, end)
    if label_at_start is not None:
        name, after = label_at_start

    quotation = (
        after - 1
    )  # where a query, a call or a quotation begins; before `after`: not looked up
    for label in _WITHIN.finditer(text, after, end):
        kind = _kind(label)
        is_action = name in ACTIONS
        if kind == "observation" and not is_action:  # a thought may speak of an observation
            continue

        # Looked up once for each field, since a line may have thousands of labels.
        if quotation < after:
            sign = _QUOTING.search(text, after, end)
            quotation = end if sign is None else sign.start()
        if is_action and quotation < label.start():
            break  # the label is a part of the action, such as a search for "plan: ..."
        if not _announces(text, start, label):
            continue

        is_near = is_action and kind in ACTIONS and label.start() - after <= _REPEATED
        if is_near and not text[after : label.start()].strip(" *_`>"):
            after = label.end()  # "Final Action: Action: look" is one field
            continue

        if name:
            yield Field(name, field_start, after, label.start())
        name = kind
        field_start = label.start()
        after = label.end()
    if name:
        yield Field(name, field_start, after, end)


def _members(text: str) -> list[Field]:
    """Return the fields that members of a JSON object (whole or cut) or tags announce."""
    fields: list[Field] = []
    if "{" in text:
        for key in _KEY.finditer(text):
            part = "number" if key["text"] is None else "text"
            fields.append(Field(_kind(key), key.start(), *key.span(part)))
    if "</" in text:
        fields += [Field(_kind(tag), tag.start(), *tag.span("text")) for tag in _TAG.finditer(text)]
    return sorted(fields, key=lambda field: field.start)


def read_fields(text: str) -> tuple[list[Field], int]:
    """Return the fields of a text in their order, and where what it invents begins.

    A line ``Observation:`` is invented: the world has not answered yet. One at the very beginning is
    not, since it repeats what was seen.
    """
    members = _members(text)
    member_starts = [member.start for member in members]
    fields: list[Field] = []
    limit = len(text)
    start = 0
    while start < limit:
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        for field in _in_line(text, start, end):
            if field.name == "observation":
                if not fields and not text[: field.start].strip():
                    continue
                limit = field.start
                break

            # A label within a member's text, such as {"thought": "Action: ..."}, announces nothing.
            members_before = bisect_right(member_starts, field.start)
            if not members_before or members[members_before - 1].end <= field.start:
                fields.append(field)
        start = end + 1
    return _with_members(fields, members, limit), limit


def _with_members(fields: list[Field], members: list[Field], limit: int) -> list[Field]:
    """Return fields and members in their order, without members that are a part of an action."""
    actions = [field for field in fields if field.name in ACTIONS]
    action_starts = [field.start for field in actions]
    for member in members:
        if member.start >= limit:
            continue
        actions_before = bisect_right(action_starts, member.start)
        if not actions_before or actions[actions_before - 1].end <= member.start:
            fields.append(member)
    return sorted(fields, key=lambda field: field.start)


def text_span(text: str, field: Field, limit: int) -> tuple[int, int]:
    """Return where the first line of a field's text stands: behind its label, or on a line below it."""
    start = field.after
    end = min(field.end, limit)

    # Empty lines, and the fence of a code block, may stand between a label and its text.
    while not text[start:end].strip(" \t\r*_") or _FENCE.match(text, start, end):
        start = end + 1
        if end >= limit or text[end] != "\n":
            return limit, limit
        end = text.find("\n", start, limit)
        end = limit if end < 0 else end
        if label_at(text, start, end) is not None:  # the next field: this one has no text
            return start, start
    return start, end


def first_of(fields: Sequence[Field], name: str) -> Field | None:
    """Return the first field of a name."""
    return next((field for field in fields if field.name == name), None)
