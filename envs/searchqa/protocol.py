"""What is written where: searches and answers in actions, passages in observations."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from .retriever import LONGEST_TEXT, LONGEST_TITLE, Hit, contents_of, split_contents

__all__ = [
    "ACTIONS",
    "LONGEST_QUERY",
    "REFUSAL",
    "STYLES",
    "ActionForm",
    "Move",
    "Shown",
    "Style",
    "last_answer",
    "read_move",
    "read_results",
    "write_results",
    "written_answer",
    "written_search",
]

Style: TypeAlias = Literal["search_r1", "verl"]
"""Whose form observations have, and whose rules actions follow: Search-R1's or verl-agent's."""

STYLES: tuple[Style, ...] = ("search_r1", "verl")
"""All styles, the default first."""

ActionForm: TypeAlias = Literal["tags", "react"]
"""How actions are written: ``<search>words</search>``, or ``search[words]``."""

ACTIONS: tuple[ActionForm, ...] = ("tags", "react")
"""All forms of actions, the default first."""

LONGEST_QUERY = 1_000
"""Characters of a query or an answer; the rest is left out."""

REFUSAL = (
    "\nThat was no action. To look something up, put a query between <search> and </search>. To "
    "answer, put the answer between <answer> and </answer>. Try again.\n"
)
"""The answer to what is no action, in Search-R1's style; in verl-agent's it is nothing."""

_TAGS = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_REACT = re.compile(r"(search|finish|answer)[ \t]*\[(.*)\]\s*\.?\s*\Z", re.DOTALL | re.IGNORECASE)
_INFORMATION = re.compile(r"\s*<information>(.*)</information>\s*\Z", re.DOTALL)
_R1_LINE = re.compile(r"Doc (\d{1,4})\(Title: (.*?)\) ?(.*)\Z", re.DOTALL)
_R1_QUOTED = re.compile(r'Doc (\d{1,4})\(Title: ("[^\n]*?")\) ?(.*)\Z', re.DOTALL)
_VERL_PART = re.compile(r"Doc (\d{1,4}): (.*)\Z", re.DOTALL)
_NEXT = re.compile(r"\n(?=Doc \d{1,4}(?:\(Title: |: ))")
_MARKUP = re.compile(r"<(?=/?(?:information|search|answer|think|result)\b)", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Move(NamedTuple):
    """What an action comes to.

    Attributes:
        kind: ``"search"``, ``"answer"``, or ``""`` for what is neither.
        text: The query or the answer, without blanks around it.
        formed: Whether the form was kept: one tag, opened once and closed (METHODS.md 2.6). What does
            not keep it may be carried out nevertheless.
    """

    kind: str
    text: str
    formed: bool


class Shown(NamedTuple):
    """A passage as an observation shows it."""

    title: str
    text: str


def read_move(action: str, form: ActionForm = "tags", style: Style = "search_r1") -> Move:
    """Read an action.

    In tags, Search-R1 takes the first block, a search or an answer; verl-agent the first search, or
    else the answer. Of several answers the last counts in both. Tags are written exactly.

    Args:
        action: Any text.
        form: How actions are written.
        style: Whose rules they follow.

    Example:
        >>> read_move("<think>Hm.</think> <search> Emma </search>")
        Move(kind='search', text='Emma', formed=True)
        >>> read_move("finish[Jane Austen]", "react")
        Move(kind='answer', text='Jane Austen', formed=True)
        >>> read_move("look")
        Move(kind='', text='', formed=False)
    """
    if form == "react":
        found = _REACT.search(action[-2 * LONGEST_QUERY :])
        if found is None:
            return Move("", "", False)
        kind = "search" if found[1].lower() == "search" else "answer"
        return Move(kind, found[2].strip()[:LONGEST_QUERY], True)
    blocks = [(match[1], match[2].strip()[:LONGEST_QUERY]) for match in _TAGS.finditer(action)]
    if not blocks:
        return Move("", "", False)
    formed = action.count("<search>") + action.count("<answer>") == 1
    searches = [text for kind, text in blocks if kind == "search"]
    if searches and (style == "verl" or blocks[0][0] == "search"):
        return Move("search", searches[0], formed)
    return Move("answer", [text for kind, text in blocks if kind == "answer"][-1], formed)


def last_answer(action: str, form: ActionForm = "tags") -> str | None:
    """Return the last answer in an action, even where something else of it is carried out.

    Example:
        >>> last_answer("<answer>Emma</answer><search>Emma</search>"), last_answer("look")
        ('Emma', None)
    """
    if form == "react":
        move = read_move(action, form)
        return move.text if move.kind == "answer" else None
    found = [match[2] for match in _TAGS.finditer(action) if match[1] == "answer"]
    return found[-1].strip()[:LONGEST_QUERY] if found else None


def written_search(query: str, form: ActionForm = "tags") -> str:
    """Return the action that searches for a query.

    Example:
        >>> written_search("Emma"), written_search("Emma", "react")
        ('<search>Emma</search>', 'search[Emma]')
    """
    return f"search[{query}]" if form == "react" else f"<search>{query}</search>"


def written_answer(answer: str, form: ActionForm = "tags") -> str:
    """Return the action that answers.

    Example:
        >>> written_answer("Emma"), written_answer("Emma", "react")
        ('<answer>Emma</answer>', 'finish[Emma]')
    """
    return f"finish[{answer}]" if form == "react" else f"<answer>{answer}</answer>"


def write_results(hits: Sequence[Hit], style: Style = "search_r1") -> str:
    r"""Return the observation that shows some passages.

    Passages are data: what in them is written like the tags of this exchange is broken up, and a
    passage is one line (in verl-agent's form two), so that no text can pass for another passage, for
    the end of the information, or for an action.

    Args:
        hits: The passages, best first.
        style: Whose form it has.

    Example:
        >>> hits = [Hit("1", "Emma", "Emma is a novel.", 1.0)]
        >>> write_results(hits)
        '\n\n<information>Doc 1(Title: "Emma") Emma is a novel.</information>\n\n'
        >>> write_results(hits, "verl")
        '<information>{"result": "Doc 1: \\"Emma\\"\\nEmma is a novel."}</information>'
    """
    shown = [
        (_one_line(hit.title, LONGEST_TITLE), _one_line(hit.text, LONGEST_TEXT)) for hit in hits
    ]
    if style == "verl":
        parts = [f"Doc {n}: {contents_of(*one)}" for n, one in enumerate(shown, 1)]
        told = json.dumps({"result": "\n".join(parts)}, ensure_ascii=False)
        return f"<information>{told}</information>"
    lines = [
        f'Doc {n}(Title: "{title.replace(chr(34) + ")", chr(34) + " )")}") {text}'
        for n, (title, text) in enumerate(shown, 1)
    ]
    body = "\n".join(lines).strip()
    return f"\n\n<information>{body}</information>\n\n"


def read_results(observation: str) -> tuple[Shown, ...] | None:
    """Return the passages that an observation shows, of either style; None where it shows no results.

    Example:
        >>> read_results(write_results([Hit("1", "Emma", "A novel.", 1.0)]))
        (Shown(title='Emma', text='A novel.'),)
        >>> read_results("<information></information>"), read_results("Nothing.")
        ((), None)
    """
    found = _INFORMATION.match(observation)
    if found is None:
        return None
    body = found[1].strip()
    if body.startswith("{"):
        try:
            told = json.loads(body)["result"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if not isinstance(told, str):
            return None
        body = told.strip()
    if not body:
        return ()
    passages = []
    for number, part in enumerate(_NEXT.split(body), 1):
        one = _read_passage(part, number)
        if one is None:
            return None
        passages.append(one)
    return tuple(passages)


def _read_passage(part: str, number: int) -> Shown | None:
    """Return one passage, if it is that of this number."""
    quoted = _R1_QUOTED.match(part) or _R1_LINE.match(part)
    if quoted is not None:
        if int(quoted[1]) != number:
            return None
        return Shown(split_contents(quoted[2])[0], quoted[3].strip())
    plain = _VERL_PART.match(part)
    if plain is None or int(plain[1]) != number:
        return None
    title, text = split_contents(plain[2])
    return Shown(title, text.strip())


def _one_line(text: str, longest: int) -> str:
    """Return a text on one line, without markup of this exchange and without control characters."""
    plain = _UNPRINTABLE.sub(" ", " ".join(text[:longest].splitlines()))
    return _MARKUP.sub("< ", plain).strip()
