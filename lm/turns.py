"""Conversations that go on token for token: replies as they were sampled, and what follows them.

A reply that is rendered into a later prompt again may get other tokens than it was sampled with, and
some chat templates leave out its thoughts. Training must read what was sampled (METHODS.md 2.3); so
here a prompt is the one before it, the tokens of the reply, and the user's message, which is tokenised
by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import LanguageModelError
from .base import Message

__all__ = ["Following", "Turns", "conversation"]

_REPLY, _TEXT = "Xyzzy7", "Plugh5"


class Following(NamedTuple):
    """The tokens that follow a reply; all empty where no text follows.

    Attributes:
        header: What the chat template puts between the reply and the text.
        observation: The text.
        footer: What the chat template puts behind it.
    """

    header: tuple[int, ...] = ()
    observation: tuple[int, ...] = ()
    footer: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Turns:
    """What a chat template puts around the user's message after a reply, in tokens.

    It is read off a conversation that the template renders: see `of`.

    Attributes:
        after_end: Between a reply that ends with an end token and the message.
        with_end: Between another reply and the message: the end of a message comes first.
        footer: Behind the message.
        opening: What begins the next reply.
        trims: Whether the template takes blanks off a message's ends.
        ends: The tokens that end a reply.

    Example:
        >>> from comap.lm.chat import ChatTokenizer
        >>> from comap.lm.tiny import tokenizer_of
        >>> tokenizer = tokenizer_of(["It is dark."] * 2, 320)
        >>> turns = ChatTokenizer(tokenizer).turns
        >>> [tokenizer.decode(part) for part in (turns.with_end, turns.footer, turns.opening)]
        ['<|end|><|user|>', '<|end|>', '<|assistant|>']
    """

    after_end: tuple[int, ...]
    with_end: tuple[int, ...]
    footer: tuple[int, ...]
    opening: tuple[int, ...]
    trims: bool
    ends: frozenset[int]

    @classmethod
    def of(
        cls,
        render: Callable[[Sequence[Message], bool], str],
        tokenise: Callable[[list[str]], list[list[int]]],
        end: int,
        ends: Collection[int],
    ) -> Turns:
        """Return what a template does.

        Args:
            render: Returns the text of a conversation, with the beginning of a reply or without.
            tokenise: Returns the tokens of texts, each by itself.
            end: The token that ends a message.
            ends: All tokens that end a reply.

        Raises:
            LanguageModelError: The template does not show what is said.
        """
        header, footer = _around(render, _TEXT, False)
        opened = _around(render, _TEXT, True)
        if not opened[1].startswith(footer):
            raise _hidden(opened[1])
        between, behind, opening = tokenise([header, footer, opened[1][len(footer) :]])
        found = [place for place, token in enumerate(between) if token in ends]
        return cls(
            tuple(between[found[0] + 1 :] if found else between),
            tuple(between if found else [end, *between]),
            tuple(behind),
            tuple(opening),
            _around(render, f"\t{_TEXT}\t", False) == (header, footer),
            frozenset(ends),
        )

    def shown(self, text: str) -> str:
        """Return the user's text as the template shows it."""
        return text.strip() if self.trims else text

    def following(self, response: Sequence[int], heard: Sequence[int]) -> Following:
        """Return a message behind a reply.

        Args:
            response: The tokens of the reply. If the last of them does not end a message, the header
                does so first.
            heard: The tokens of the message's text.
        """
        ended = bool(response) and response[-1] in self.ends
        header = self.after_end if ended else self.with_end
        return Following(header, tuple(heard), self.footer)

    def after(self, response: Sequence[int], heard: Sequence[int]) -> list[int]:
        """Return what a prompt gets more by a reply and the message after it, up to the next reply."""
        header, observation, footer = self.following(response, heard)
        return [*response, *header, *observation, *footer, *self.opening]


def conversation(
    messages: Sequence[Message], reply_ids: Sequence[Sequence[int]]
) -> tuple[tuple[Message, ...], list[tuple[str, str, Sequence[int]]]]:
    """Return the messages before the first reply, and each reply, what follows it, and its tokens.

    Args:
        messages: A conversation that ends with the user.
        reply_ids: The tokens of each reply in it.

    Raises:
        LanguageModelError: Replies and messages of the user do not take turns, or there are not as
            many replies as tokens of such.

    Example:
        >>> talk = [Message("user", "?"), Message("assistant", "look"), Message("user", "Dark.")]
        >>> conversation(talk, [(5,)])
        ((Message(role='user', content='?'),), [('look', 'Dark.', (5,))])
    """
    first = next((n for n, one in enumerate(messages) if one.role == "assistant"), len(messages))
    rest = messages[first:]
    roles = [message.role for message in rest]
    number = len(reply_ids)
    if roles != ["assistant", "user"] * number:
        raise LanguageModelError(
            f"expected a conversation of {number} replies whose tokens are given, each followed by a "
            f"message of the user, found {', '.join(roles) or 'no reply'}"
        )
    texts = [message.content for message in rest]
    return tuple(messages[:first]), list(zip(texts[::2], texts[1::2], reply_ids, strict=True))


def _around(
    render: Callable[[Sequence[Message], bool], str], text: str, begins: bool
) -> tuple[str, str]:
    """Return what the template puts between a reply and the probe in a text, and behind it."""
    talk = [Message("user", "Hello"), Message("assistant", _REPLY), Message("user", text)]
    rendered = render(talk, begins)
    _, said, rest = rendered.rpartition(_REPLY)
    header, shown, footer = rest.partition(_TEXT)
    if not (said and shown):
        raise _hidden(rendered)
    return header, footer


def _hidden(rendered: str) -> LanguageModelError:
    return LanguageModelError(
        "expected a chat template that shows what assistant and user say, in this order, "
        f"found {rendered!r:.200}; use a model with another template"
    )
