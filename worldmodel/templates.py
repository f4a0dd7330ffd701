"""Transitions with variables in place of names, and the way back.

"You open the safe 1. In it, you see a pen 2." becomes "You open the {0}. In it, you see [in <0>]."
A variable may carry the case of its name (`_CASES`): ``{0^}`` is "Safe 1".
A ``{`` or ``[`` of the text itself is doubled.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..facts import Fact, State

# "a mug 1, a pen 2, and a fork 1" or "nothing", after "see " or a colon.
_LIST = re.compile(
    r"(?:(?<=\bsee )|(?<=: ))(?:an? [^,.:;\n]+(?:, (?:and )?an? [^,.:;\n]+)*|nothing\b)"
)

# What `fill` replaces: a doubled brace or bracket, a variable with its case, a slot.
_PARTS = re.compile(r"\{\{|\[\[|\{([0-9]{1,4})(\^{1,2}|!)?\}|\[([^\[\]{}]*)\]")
_DIGITS = "0123456789"

_STANCE_PREDICATES = ("at", "holding", "room", "page", "viewing")
_MOST_STANCE_FACTS = 2
"""A predicate with more facts than this does not describe the agent alone."""


def kind(name: str) -> str:
    """Return a name without its number: ``mug 12`` is a ``mug``, ``12`` stays."""
    stem = name.rstrip(_DIGITS)
    if stem == name:
        return name

    return stem.rstrip(" _-") or name


@dataclass(frozen=True, slots=True)
class Situation:
    """An action in a belief, with variables in place of the names.

    Attributes:
        names: The names that the variables stand for, those of the action first.
        action: The action, with variables.
        kinds: What each name of the action is, such as ``mug``.
        context: What the belief says of these names and of the agent, as sorted words.
        groups: The names that the belief lists for each slot, such as ``in <1>``.
    """

    names: tuple[str, ...]
    action: str
    kinds: tuple[str, ...]
    context: str
    groups: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, action: str, state: State) -> Situation:
        """Return the situation of an action in a belief."""
        action = " ".join(action.split())
        action_names = _mentioned(action.lower(), set(_names_of(state.facts)))

        # Variables are numbered by the action first: equal actions on other things look alike.
        stance = _stance(state.facts)
        names = tuple(dict.fromkeys([*action_names, *_names_of(stance)]))
        variables = {name: f"{{{index}}}" for index, name in enumerate(names)}

        relevant_facts = set(stance)
        for fact in state.facts:
            if any(name in action_names for name in fact[1:]):
                relevant_facts.add(fact)

        # The kinds of the action's names are compared on their own; the stance's belong to the context.
        context = {_words(fact, variables) for fact in relevant_facts}
        context |= {f"{variables[name]} {kind(name)}" for name in names[len(action_names) :]}

        return cls(
            names,
            _substitute(action, variables),
            tuple(kind(name) for name in action_names),
            " | ".join(sorted(context)),
            _groups(state.facts, names, variables),
        )

    def abstract(self, text: str) -> str:
        """Return a text with variables in place of these names, and slots in place of known lists."""
        slots = sorted(self.groups, reverse=True)  # of equal lists, that of the first name counts
        slot_by_members = {frozenset(self.groups[slot]): slot for slot in slots}
        variables = {name: f"{{{index}}}" for index, name in enumerate(self.names)}

        parts: list[str] = []
        end = 0
        for match in _LIST.finditer(text):
            slot = slot_by_members.get(frozenset(_names_in_list(match[0])))
            if slot is None:
                continue

            between = text[end : match.start()]
            parts.append(_substitute(between, variables, keep_case=True))
            parts.append(f"[{slot}]")
            end = match.end()

        parts.append(_substitute(text[end:], variables, keep_case=True))
        return "".join(parts)

    def fill(self, template: str) -> str:
        """Return a template with these names in place of the variables."""

        def replacement(match: re.Match[str]) -> str:
            variable, case, slot = match.groups()
            if slot is not None:
                return _write_list(self.groups.get(slot, ()))
            if variable is None:  # a doubled brace or bracket
                return match[0][0]

            index = int(variable)
            if index >= len(self.names):
                return match[0]
            return _CASES[case or ""](self.names[index])

        return _PARTS.sub(replacement, template)

    def has_names_for(self, template: str) -> bool:
        """Return whether there is a name for each variable of a template."""
        indices = (match[1] for match in _PARTS.finditer(template))
        return all(int(index) < len(self.names) for index in indices if index is not None)


def _names_of(facts: Iterable[Fact]) -> list[str]:
    """Return what facts are about: all but their predicates."""
    names: list[str] = []
    for fact in facts:
        names += fact[1:]
    return names


def _mentioned(text: str, names: Iterable[str]) -> list[str]:
    """Return the names that a text mentions, in the order of their first mention.

    The longest name is looked for first and blanked, so that "mug 1" is not seen in "mug 1 lid".
    """
    mentions: list[tuple[int, str]] = []
    for name in sorted(names, key=lambda name: (-len(name), name)):
        if not name or name not in text:  # cheaper than the search, and mostly so
            continue

        # Whole words only: no "mug 1" in "mug 12". As many blanks as letters, so that the places of
        # later matches are places in the text.
        match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
        if match:
            mentions.append((match.start(), name))
            text = text[: match.start()] + "\0" * len(name) + text[match.end() :]

    return [name for _, name in sorted(mentions)]


def _stance(facts: frozenset[Fact]) -> list[Fact]:
    """Return the facts that say where the agent is and what it holds, where these are few."""
    by_predicate: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_predicate[fact[0]].append(fact)

    stance: list[Fact] = []
    for predicate in _STANCE_PREDICATES:
        predicate_facts = by_predicate.get(predicate, [])
        if len(predicate_facts) <= _MOST_STANCE_FACTS:
            stance += predicate_facts
    return sorted(stance)


def _words(fact: Fact, variables: Mapping[str, str]) -> str:
    """Return a fact as words: variables for the names that have one, kinds for the others."""
    return " ".join([fact[0], *(variables.get(name, kind(name)) for name in fact[1:])])


def _groups(
    facts: frozenset[Fact], names: tuple[str, ...], variables: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return what the belief lists for each named place, by slot: ``in <1>`` has the things in it."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    seen_places: set[str] = set()
    for fact in facts:
        if fact[0] == "seen" and len(fact) == 2:
            seen_places.add(fact[1])
        if len(fact) != 3:
            continue

        # What stands "at" or "near" something is not listed when one looks at that. A predicate that is
        # no word may have a bracket in it, and its slot could not be read back from a template.
        predicate, thing, place = fact
        is_listed = predicate.isidentifier() and predicate not in ("at", "near")
        if is_listed and place in variables:
            groups[_slot(predicate, variables[place])].append(thing)

    # An empty place that was looked at has a list, too: "nothing".
    for name in names:
        if name in seen_places:
            groups.setdefault(_slot("in", variables[name]), [])

    return {slot: tuple(sorted(members)) for slot, members in groups.items()}


def _slot(predicate: str, variable: str) -> str:
    """Return the name of a slot: ``in <1>`` for ``in`` and ``{1}``."""
    return f"{predicate} {variable}".replace("{", "<").replace("}", ">")


def _names_in_list(text: str) -> list[str]:
    """Return the names in a list such as ``a mug 1, and a pen 2``."""
    if text == "nothing":
        return []
    entries = text.replace(", and ", ", ").split(", ")
    return [entry.split(" ", 1)[1] for entry in entries if " " in entry]


def _write_list(names: Iterable[str]) -> str:
    """Return names as a list with articles, greater numbers first within a kind."""

    def number_key(name: str) -> tuple[int, str]:
        # By length and digits: a number may be too long for `int`.
        number = name[len(name.rstrip(_DIGITS)) :].lstrip("0")
        return len(number), number

    by_number = sorted(sorted(names), key=number_key, reverse=True)
    entries = [f"a {name}" for name in sorted(by_number, key=kind)]

    if not entries:
        return "nothing"
    if len(entries) == 1:
        return entries[0]
    return f"{', '.join(entries[:-1])}, and {entries[-1]}"


_CASES: dict[str, Callable[[str], str]] = {
    "": lambda name: name,
    "^": lambda name: name[:1].upper() + name[1:],
    "^^": lambda name: re.sub(r"\b[^\W\d]", lambda letter: letter[0].upper(), name),
    "!": str.upper,
}
"""How a text writes a name that is in lower case in facts, by the mark in its variable."""


def _case_of(text: str, name: str) -> str:
    """Return the mark of the case in which a text has a name; empty where it is none of `_CASES`."""
    for mark, write in _CASES.items():
        if write(name) == text:
            return mark
    return ""


def _substitute(text: str, variables: Mapping[str, str], *, keep_case: bool = False) -> str:
    """Return a text as a template: variables for names, the longest first, whole words only."""
    names = sorted((name for name in variables if name), key=lambda name: (-len(name), name))
    alternatives = "|".join(re.escape(name) for name in names)
    name_pattern = rf"(?<!\w)(?:{alternatives})(?!\w)|" if names else ""

    def replacement(match: re.Match[str]) -> str:
        name = match[0].lower()
        if name not in variables:  # a brace or bracket of the text itself
            return match[0].replace("{", "{{").replace("[", "[[")

        case = _case_of(match[0], name) if keep_case else ""
        return variables[name].replace("}", f"{case}}}")

    return re.sub(rf"{name_pattern}[\[{{]", replacement, text, flags=re.IGNORECASE)
