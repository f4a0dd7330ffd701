"""Which of the admissible actions a text names, in whatever case, markup and words around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

_TOKEN = re.compile(r"[^\W_]+|[^\w\s]")
_MARKUP = frozenset("*`\"'“”‘’")  # tokens that are left out on both sides
_BEFORE = re.compile(  # what may stand before an action behind its label
    r"""[\s"'“‘`*_(\[<{>•→–-]*+(?:\[?\d{1,3}[\].):]{1,2}\s)?"""
    r"(?:(?:(?:i|we)\s(?:will|would|should|must|can|need\sto|want\sto|choose(?:\sto)?|decide\sto|am\sgoing\sto)"
    r"|(?:i|we)['’](?:ll|d|m\sgoing\sto)|let['’]?s|let\s(?:me|us)|next|first|now|then|please|execute|perform"
    r"|take\sthe\saction|the\s(?:next\s|best\s)?action\sis|to)\b[\s,:]*+){0,4}+"
    r"""["'“‘`*_(\[<{]*+""",
    re.IGNORECASE,
)
_BEHIND = re.compile(  # what an explanation behind an action begins with
    r"""["'”’*_`)\]>}]*+\s*+(?:\Z|[(;!?<#|{]|\.(?!\w)|,(?!\d)|//|(?:[–—→:-]|->|=>)\s"""
    r"|(?:because|since|so|as|and|then|in\sorder|in\scase)\b|(?P<to>to\s))",
    re.IGNORECASE,
)
_LEAF = ""  # no token is empty
_READ = 2000  # characters behind a label by which it is told what is meant


class Named(NamedTuple):
    """An admissible action, and where a text names it."""

    action: str
    start: int
    end: int


class _Names:
    """The admissible actions by their tokens, to find the longest one at any place in linear time."""

    def __init__(self, admissible: Sequence[str]):
        self.whole: dict[str, str] = {}
        self._tree: dict[str, Any] = {}
        self._words: set[str] = set()
        for action in admissible:
            self.whole.setdefault(action.casefold(), action)

            tokens = _tokens(action)
            node = self._tree
            for token, _, _ in tokens:
                self._words.add(token)
                node = node.setdefault(token, {})
            if tokens:
                node.setdefault(_LEAF, action)

    def longest(self, tokens: Sequence[tuple[str, int, int]], index: int) -> tuple[str, int] | None:
        """Return the longest action that begins at a token, and the index of the token behind it."""
        node: dict[str, Any] = self._tree
        longest: tuple[str, int] | None = None
        while True:
            if _LEAF in node:  # an action ends here; a longer one may go on
                longest = node[_LEAF], index
            if index == len(tokens) or tokens[index][0] not in node:
                return longest

            node = node[tokens[index][0]]
            index += 1

    def is_thing(self, word: str) -> bool:
        """Return whether a word is a part of actions, but not one that they begin with."""
        word = word.casefold()
        return word in self._words and word not in self._tree


def _tokens(text: str) -> list[tuple[str, int, int]]:
    return [
        (token[0].casefold(), token.start(), token.end())
        for token in _TOKEN.finditer(text)
        if token[0] not in _MARKUP
    ]


@lru_cache(maxsize=64)
def _names(admissible: tuple[str, ...]) -> _Names:
    return _Names(admissible)


def meant_action(text: str, admissible: Sequence[str]) -> Named | None:
    """Return the admissible action that a text behind a label means; None where it is another one.

    It is meant where the text is that action in another case or markup, or begins with it and goes on
    with an explanation, such as one in parentheses or behind a dash.

    Example:
        >>> listed = ("go to cabinet 1", "look")
        >>> meant_action("Go to **cabinet 1** (to find a mug)", listed)
        Named(action='go to cabinet 1', start=0, end=17)
        >>> meant_action("look at cabinet 1", listed) is None
        True
    """
    if text in admissible:
        return Named(text, 0, len(text))

    names = _names(tuple(admissible))
    whole_action = names.whole.get(text.casefold())
    if whole_action is not None:
        return Named(whole_action, 0, len(text))

    # An action may itself begin with one of the words that are left out before it.
    text = text[:_READ]
    lead = _BEFORE.match(text)
    starts = [0] if lead is None else [0, lead.end()]
    for start in starts:
        tokens = _tokens(text[start:])
        longest = names.longest(tokens, 0)
        if longest is None:
            continue

        action, next_token = longest
        end = start + tokens[next_token - 1][2]
        explanation = _BEHIND.match(text, end)
        if explanation is None:
            continue

        word = _TOKEN.search(text, explanation.end())
        if explanation["to"] and word is not None and names.is_thing(word[0]):
            continue  # "to cabinet 2": it is not said why, but where
        return Named(action, start + tokens[0][1], end)
    return None


def named_actions(text: str, admissible: Sequence[str]) -> Iterator[Named]:
    """Yield the admissible actions that a text names, in their order, at each place the longest.

    Example:
        >>> listed = ("go to cabinet 1", "go to cabinet 10")
        >>> [named.action for named in named_actions("I go to Cabinet 10.", listed)]
        ['go to cabinet 10']
    """
    names = _names(tuple(admissible))
    tokens = _tokens(text)
    index = 0
    while index < len(tokens):
        longest = names.longest(tokens, index)
        if longest is None:
            index += 1
            continue

        action, next_token = longest
        yield Named(action, tokens[index][1], tokens[next_token - 1][2])
        index = next_token


def only_named(text: str, admissible: Sequence[str]) -> Named | None:
    """Return the one admissible action that a text names; None where it names none, or several."""
    first: Named | None = None
    for mention in named_actions(text, admissible):
        if first is not None and mention.action != first.action:
            return None
        first = first or mention
    return first
