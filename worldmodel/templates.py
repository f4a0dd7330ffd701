"""Taking the names out of transitions, and putting other names in."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..facts import Fact, State

_LIST = re.compile(
    r"(?:(?<=\bsee )|(?<=: ))(?:an? [^,.:;\n]+(?:, (?:and )?an? [^,.:;\n]+)*|nothing\b)"
)
_PARTS = re.compile(r"\{\{|\[\[|\{([0-9]{1,4})(\^{1,2}|!)?\}|\[([^\[\]{}]*)\]")
_DIGITS = "0123456789"
_FEW = 2


def kind(name: str) -> str:
    stem = name.rstrip(_DIGITS)
    return (stem.rstrip(" _-") if stem != name else name) or name


@dataclass(frozen=True, slots=True)
class Situation:
    """An action in a belief, with the names taken out."""

    names: tuple[str, ...]
    action: str
    kinds: tuple[str, ...]
    context: str
    groups: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, action: str, state: State) -> Situation:
        action = " ".join(action.split())
        known = {name for fact in state.facts for name in fact[1:]}
        acted = _mentioned(action.lower(), known)
        stance = _stance(state.facts)
        names = tuple(dict.fromkeys([*acted, *(n for fact in stance for n in fact[1:])]))
        variables = {name: f"{{{index}}}" for index, name in enumerate(names)}
        about = {fact for fact in state.facts if any(name in acted for name in fact[1:])}
        words = {_words(fact, variables) for fact in about | set(stance)}
        words |= {f"{variables[name]} {kind(name)}" for name in names[len(acted) :]}
        context = " | ".join(sorted(words))
        return cls(
            names,
            _substitute(action, variables),
            tuple(kind(name) for name in acted),
            context,
            _groups(state.facts, names, variables),
        )

    def abstract(self, text: str) -> str:
        """Return a text with these names as variables, and known lists as slots."""
        slots = sorted(self.groups, reverse=True)  # of equal lists, that of the first name counts
        groups = {frozenset(self.groups[slot]): slot for slot in slots}
        variables = {name: f"{{{index}}}" for index, name in enumerate(self.names)}
        parts, end = list[str](), 0
        for match in _LIST.finditer(text):
            slot = groups.get(frozenset(_listed(match[0])))
            if slot is not None:
                before = _substitute(text[end : match.start()], variables, keep_case=True)
                parts += [before, f"[{slot}]"]
                end = match.end()
        return "".join([*parts, _substitute(text[end:], variables, keep_case=True)])

    def fill(self, template: str) -> str:
        """Return a template with these names in place of the variables."""

        def part(match: re.Match[str]) -> str:
            variable, case, slot = match.groups()
            if variable is not None:
                index = int(variable)
                known = index < len(self.names)
                return _CASES[case or ""](self.names[index]) if known else match[0]
            return match[0][0] if slot is None else _write_list(self.groups.get(slot, ()))

        return _PARTS.sub(part, template)

    def needs(self, template: str) -> bool:
        indices = (match[1] for match in _PARTS.finditer(template))
        return all(int(index) < len(self.names) for index in indices if index is not None)


def _mentioned(text: str, known: Iterable[str]) -> list[str]:
    """Return the known names in a text, in the order of their first mention, the longest first."""
    found = []
    for name in sorted(known, key=lambda name: (-len(name), name)):
        match = (
            re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) if name and name in text else None
        )
        if match:
            found.append((match.start(), name))
            text = text[: match.start()] + "\0" * len(name) + text[match.end() :]
    return [name for _, name in sorted(found)]


def _stance(facts: frozenset[Fact]) -> list[Fact]:
    """Return the facts of predicates with few facts and no number: how the agent itself stands."""
    by_predicate: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_predicate[fact[0]].append(fact)
    stance = [
        fact
        for predicate, group in by_predicate.items()
        if predicate in ("at", "holding", "room", "page", "viewing") and len(group) <= _FEW
        for fact in group
    ]
    return sorted(stance)


def _words(fact: Fact, variables: Mapping[str, str]) -> str:
    """Return a fact as words: variables for the names that have one, kinds for the others."""
    return " ".join([fact[0], *(variables.get(name, kind(name)) for name in fact[1:])])


def _groups(
    facts: frozenset[Fact], names: tuple[str, ...], variables: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return what the belief lists for each named place: ``in {1}`` -> the things in it."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for fact in facts:
        predicate = fact[0].isidentifier() and fact[0] not in ("at", "near")
        if len(fact) == 3 and fact[2] in variables and predicate:
            groups[f"{fact[0]} {variables[fact[2]]}".replace("{", "<").replace("}", ">")].append(
                fact[1]
            )
    seen = {fact[1] for fact in facts if fact[0] == "seen" and len(fact) == 2}
    for name in names:
        if name in seen:
            groups.setdefault(f"in {variables[name]}".replace("{", "<").replace("}", ">"), [])
    return {slot: tuple(sorted(members)) for slot, members in groups.items()}


def _listed(text: str) -> list[str]:
    """Return the names in a list such as ``a mug 1, and a pen 2``."""
    if text == "nothing":
        return []
    parts = text.replace(", and ", ", ").split(", ")
    return [part.split(" ", 1)[1] for part in parts if " " in part]


def _write_list(names: Iterable[str]) -> str:
    """Return names as a list with articles, greater numbers first within a kind."""

    def size(name: str) -> tuple[int, str]:
        number = name[len(name.rstrip(_DIGITS)) :].lstrip("0")
        return len(number), number

    downward = sorted(sorted(names), key=size, reverse=True)
    ordered = [f"a {name}" for name in sorted(downward, key=kind)]
    if len(ordered) < 2:
        return ordered[0] if ordered else "nothing"
    return f"{', '.join(ordered[:-1])}, and {ordered[-1]}"


_CASES: dict[str, Callable[[str], str]] = {
    "": lambda name: name,
    "^": lambda name: name[:1].upper() + name[1:],
    "^^": lambda name: re.sub(r"\b[^\W\d]", lambda letter: letter[0].upper(), name),
    "!": str.upper,
}
"""How a text writes a name that facts have in lower case: the mark in its variable, and the function."""


def _case_of(text: str, name: str) -> str:
    """Return the mark of the case in which a text has a name; none for a mixture of its own."""
    return next((mark for mark, write in _CASES.items() if write(name) == text), "")


def _substitute(text: str, variables: Mapping[str, str], *, keep_case: bool = False) -> str:
    """Return a template: names as variables, the longest first, whole words only."""
    names = sorted((name for name in variables if name), key=lambda name: (-len(name), name))
    pattern = "|".join(re.escape(name) for name in names)
    named = rf"(?<!\w)(?:{pattern})(?!\w)|" if names else ""

    def part(match: re.Match[str]) -> str:
        name = match[0].lower()
        if name not in variables:
            return match[0].replace("{", "{{").replace("[", "[[")
        case = _case_of(match[0], name) if keep_case else ""
        return variables[name].replace("}", f"{case}}}")

    return re.sub(rf"{named}[\[{{]", part, text, flags=re.IGNORECASE)
