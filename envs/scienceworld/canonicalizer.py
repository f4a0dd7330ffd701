"""ScienceWorld's canonicalizer: from text to belief facts."""

from __future__ import annotations

import re

from ...facts import State
from ..canon import collapse
from .belief import Belief
from .belief_events import Fold
from .belief_time import pass_time
from .sentences import Event, read_observation
from .sentences_things import WORDS

__all__ = ["ScienceWorldCanonicalizer"]

_ARTICLES = re.compile(r"\b(?:the|an?)\s+")
_SYNONYMS = tuple(
    (re.compile(pattern), form)
    for pattern, form in (
        (r"^look$", "look around"),
        (r"^(?:examine|look on)\s+(.+)$", r"look at \1"),
        (r"^(?:(?:go|walk|move) (?:through|to|into)|go)\s+(.+)$", r"go to \1"),
        (r"^turn on\s+(.+)$", r"activate \1"),
        (r"^turn off\s+(.+)$", r"deactivate \1"),
        (r"^(?:get|take)\s+(.+)$", r"pick up \1"),
        (r"^drop\s+(.+)$", r"put down \1"),
        (r"^(pour|dunk)\s+(.+?)\s+(?:into|in|on|to)\s+(.+)$", r"\1 \2 into \3"),
        (r"^(?:move|put(?! down))\s+(.+?)\s+(?:to|into|in|on)\s+(.+)$", r"move \1 to \2"),
        (r"^connect\s+(.+?)\s+(?:to|into)\s+(.+)$", r"connect \1 to \2"),
        (r"^use\s+(.+?)\s+with\s+(.+)$", r"use \1 on \2"),
        (r"^focus\s+(?!on\b)(.+)$", r"focus on \1"),
        (r"^consume\s+(.+)$", r"eat \1"),
        (r"^stir\s+(.+)$", r"mix \1"),
    )
)
_REQUEST = "request"
_VERB = re.compile(
    r"(?:(?:turn|look|focus) (?:on|off|at|in)|(?:pick|put) (?:up|down)|[a-z]+)\s+(.+)", re.DOTALL
)


class ScienceWorldCanonicalizer:
    """Folds ScienceWorld's text into a belief."""

    version = "scienceworld-1"

    def initial(self, goal: str, observation: str) -> State:
        """Return what the first observation, a look around, says."""
        return self.update(State(), "look around", observation)

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        events = read_observation(observation)
        if events is None:
            return State(state.facts, parsed=False)
        belief = Belief(state.facts)
        action = collapse(action)
        asked, belief.pending = belief.pending, {}
        if action in asked:
            words, request = _object_of(asked[action]), _object_of(asked.get(_REQUEST, ""))
        else:
            words, request = _object_of(action), ""
        fold = Fold(belief, words, request)
        timed = _takes_time(action, events, bool(asked))
        parsed = [fold.take(event) for event in events]
        if timed:
            pass_time(belief)
        if not all(parsed):
            return State(state.facts, parsed=False)
        if belief.pending:
            belief.pending[_REQUEST] = action
        facts = belief.facts()
        return state if facts == state.facts and state.parsed else State(facts)

    def action(self, text: str) -> str:
        """Return the canonical form of an action: lower case, no articles, one verb for each act."""
        words = _ARTICLES.sub("", collapse(text))
        for pattern, form in _SYNONYMS:
            if pattern.match(words):
                return pattern.sub(form, words)
        return words


def _object_of(action: str) -> str:
    """Return an action without its verb."""
    found = _VERB.fullmatch(action)
    return found[1] if found else ""


def _takes_time(action: str, events: tuple[Event, ...], asked: bool) -> bool:
    """Return whether the world went on; asking for a choice and refusing do not let it."""
    if events[0].kind == "menu" or events[0].kind in ("room", "inventory"):
        return False
    if events[0] == Event("unaltered") and not asked:
        return action not in WORDS["zero_tick"]
    return True
