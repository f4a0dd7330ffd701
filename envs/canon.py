"""What turns text into facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from ..facts import State
from ..trajectory import Turn


@runtime_checkable
class Canonicalizer(Protocol):
    """Folds the text of an episode into a belief.

    Every method is a total function: any text is allowed, none raises. `version` names the fact
    schema and is part of the environment's fingerprint.
    """

    version: str

    def initial(self, goal: str, observation: str) -> State:
        """Return what the goal and the first observation say."""
        ...

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`.

        Text that fits no rule leaves the facts as they were and sets ``parsed=False``.
        """
        ...

    def action(self, text: str) -> str:
        """Return the canonical form of an action, for comparing actions (``Canon(a)``)."""
        ...


@runtime_checkable
class Describer(Protocol):
    """A canonicalizer that can also put facts into the environment's words.

    World models that predict facts, not text, use it to answer in text.
    """

    def describe(self, before: State, action: str, after: State) -> str:
        """Return an observation from which `Canonicalizer.update` reads `after`.

        Args:
            before: The belief before the action.
            action: The action, as the agent wrote it.
            after: The belief that the observation shall lead to.
        """
        ...


@runtime_checkable
class Revealer(Protocol):
    """A canonicalizer that knows which changes no world model could have foreseen.

    Scores separate such transitions, so that a model is not blamed for what nobody could know.
    """

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a change follows neither from the texts so far nor from the action.

        Args:
            goal: The task in words.
            history: The turns so far; the first has no action, the last is the present.
            before: The belief before the action.
            action: The action, as the agent wrote it.
            after: The belief after it.
        """
        ...


def names(action: str, thing: str) -> bool:
    """Return whether an action names a thing, as whole words."""
    # Not by \b, which finds no border beside a bracket or a quotation mark.
    return re.search(rf"(?<!\w){re.escape(thing)}(?!\w)", action) is not None


_ARTICLES = re.compile(r"\b(?:the|an?)\s+")


def reworded(text: str, synonyms: Sequence[tuple[re.Pattern[str], str]]) -> str:
    """Return an action in lower case and without articles, in the form of the first that fits."""
    words = _ARTICLES.sub("", collapse(text))
    for pattern, form in synonyms:
        if pattern.match(words):
            return pattern.sub(form, words)
    return words


def tagged(text: str, *tags: str) -> Iterator[tuple[str, int, int]]:
    r"""Yield each tag with start and end of what stands between it and its end tag.

    These are the matches of ``<(a|b)>(.*?)</\1>``, in linear time: where an end tag is missing, the
    pattern looks for it again from each of its tags.
    """
    next_start = 0
    closed_tags = set(tags)  # those that an end tag may still follow
    for match in re.finditer(f"<({'|'.join(tags)})>", text):
        tag = match[1]
        if match.start() < next_start or tag not in closed_tags:
            continue

        start = match.end()
        end = text.find(f"</{tag}>", start)
        if end < 0:
            closed_tags.discard(tag)
        else:
            yield tag, start, end
            next_start = end + len(f"</{tag}>")


def collapse(text: str) -> str:
    """Return `text` in lower case, with single blanks and without full stops at its end."""
    return " ".join(text.lower().split()).rstrip(". ")


def plain_state_text(
    goal: str, history: Sequence[Turn], state: State, action: str | None = None
) -> str:
    """Return the goal, all facts and the last turns, for environments without words of their own."""
    lines = [f"goal: {goal}", "facts: " + "; ".join(state.to_text().splitlines())]
    # The first turn is the reset, which has no action.
    lines += [f"last: {turn.action} -> {turn.observation}" for turn in history[1:][-2:]]
    return "\n".join(lines)
