"""ScienceWorld's canonicalizer: from text to belief facts.

Facts (schema ``scienceworld-1``; ``O`` and ``C`` are things by name, ``R`` is a room):

=============================  =====================================================================
``room(agent, R)``             where the agent is
``in(O, C)  in(O, R)``         O is directly in or on C, or in R
``holding(O)``                 O is directly in the agent's inventory
``seen(C)  seen(R)``           what is in it has been told, if only that it is empty
``door(R, R', open|closed)``   a door as last seen; the rooms in alphabetical order
``open(C)  closed(C)``         a lid or door of C
``active(O)  inactive(O)``     a device that is on or off
``phase(O, P)``                solid, liquid or gas, where the name tells: ice, "liquid chocolate"
``temp(O, B)``                 a measured temperature: frigid (to -20 degrees Celsius), freezing (0),
                               cold (15), mild (30), warm (60), hot (100), very hot (250), extreme
``stage(O, S)``                egg, baby, adult, seedling, wilting, dead and so on, as last seen
``burning(O)``                 O is on fire
``slid(O, S)``                 O is at the top, in the middle or at the bottom of an inclined plane
``connected(O.T, O'.T')``      two terminals, ``red wire.terminal 1``; in alphabetical order
``focused(O)``                 what the agent focused on last
``pending(N, A)``              the simulator waits for a number; N is one, and A the action it stands
                               for; ``pending(request, A)`` is the action that was not clear
=============================  =====================================================================

Several things of one name are told apart as ``wood cup``, ``wood cup #2``: see `belief`. Ice, water and
steam are all ``water``. The agent and air are left out. What may change unseen is forgotten as time
passes (`belief_time`), and so is what an answer leaves unclear: which of two cups was moved, say.
Actions that the simulator does not understand change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...facts import State
from ...trajectory import Turn
from ..canon import collapse
from .belief import Belief
from .belief_events import Fold
from .belief_time import pass_time
from .sentences import Event, read_observation
from .sentences_things import WORDS

__all__ = ["ScienceWorldCanonicalizer"]

_ARTICLES = re.compile(r"\b(?:the|an?)\s+")
_WHAT = r"((?!(?:to|into|in|on|with)\s).+?)"  # what is written so is written so again
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
        (rf"^(pour|dunk)\s+{_WHAT}\s+(?:into|in|on|to)\s+(.+)$", r"\1 \2 into \3"),
        (rf"^(?:move|put(?! down))\s+{_WHAT}\s+(?:to|into|in|on)\s+(.+)$", r"move \1 to \2"),
        (rf"^connect\s+{_WHAT}\s+(?:to|into)\s+(.+)$", r"connect \1 to \2"),
        (rf"^use\s+{_WHAT}\s+(?:with|on)\s+(.+)$", r"use \1 on \2"),
        (r"^focus\s+(?!on\b)(.+)$", r"focus on \1"),
        (r"^consume\s+(.+)$", r"eat \1"),
        (r"^stir\s+(.+)$", r"mix \1"),
    )
)
_REQUEST = "request"
_LOOKING = ("look at ", "look on ", "examine ")
_AT_ONCE = frozenset(WORDS["zero_tick"])
_VERB = re.compile(
    r"(?:(?:turn|look|focus) (?:on|off|at|in)|(?:pick|put) (?:up|down)|[a-z]+)\s+(.+)", re.DOTALL
)


class ScienceWorldCanonicalizer:
    r"""Folds ScienceWorld's text into a belief.

    Example:
        >>> canon = ScienceWorldCanonicalizer()
        >>> state = canon.initial("Boil water.", "This room is called the kitchen. In it, you see: \n"
        ...                       "\ta metal pot (containing a substance called ice)\n")
        >>> state = canon.update(state, "pick up pot", "You move the metal pot to the inventory.")
        >>> print(state.to_text())
        holding(metal pot)
        in(water, metal pot)
        room(agent, kitchen)
        seen(kitchen)
        seen(metal pot)
        >>> canon.action("Examine the metal pot.")
        'look at metal pot'
    """

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
        chosen = action if action == _REQUEST else asked.get(action, action)
        request = _object_of(asked.get(_REQUEST, "")) if action in asked else ""
        words = _object_of(chosen)
        fold = Fold(belief, words, request, chosen.startswith(_LOOKING))
        if not all(fold.take(event) for event in events):
            return State(state.facts, parsed=False)
        if _takes_time(chosen, words, events[-1]):
            pass_time(belief)
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

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a change tells what nobody could foresee: see `comap.envs.Revealer`."""
        from .revealing import reveals

        return reveals(before, self.action(action), after)


def _object_of(action: str) -> str:
    """Return an action without its verb."""
    found = None if action in _AT_ONCE else _VERB.fullmatch(action)
    return found[1] if found else ""


def _takes_time(action: str, words: str, event: Event) -> bool:
    """Return whether the world went on; asking for a choice and looking around do not let it."""
    if event.kind in ("menu", "refused", "inventory"):
        return False
    if event.kind == "room":
        return bool(words)
    return event.kind != "unaltered" or action not in _AT_ONCE
