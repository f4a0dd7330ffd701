"""Facts of web pages, read from their text, real or predicted; and what follows from them.

Structural facts: ``at(host/path)``, ``query(key, value)``, ``title(page, text)`` and ``opened(page,
n)``, where n counts the pages seen. Content: ``shows(page, role, name)``, ``option(page, group,
name)``, ``selected(page, group, name)``, ``checked(page, role, name)``, ``value(page, role, name,
text)`` and one of ``disabled``, ``expanded``, ``pressed`` or ``required(page, role, name)``. The end:
``answer(text)``, ``done``. A page is its host, path and sorted query; the second of equal lines has
``2`` after its name.

Facts belong to their page and stay when one leaves it; seeing the page again replaces them. If they
went with the page, taking the old one away would be half of every change, and a guess that gets the
new address right and nothing else would earn a Delta-F1 of 0.45. After 16 pages the first one
is forgotten.

With ``observation="viewport"`` a page's facts are of what is in the window, and so are suggested actions.
``scroll`` replaces them: a fact that is taken away does not say that something has gone from the page, and
equal names are counted anew, from the top of the window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from ...facts import Fact, State
from ...trajectory import Turn
from .actions import Move, Target, canonical
from .lines import FIRST, ROOT, Line, PageText, plain, quoted, read_page, write_answer
from .sites import HOSTS

MOST_PAGES = 16
_FLAGS = ("disabled", "expanded", "pressed", "required")
_OF_PAGES = {"title", "opened", "shows", "option", "selected", "checked", "value", *_FLAGS}
_GROUPS = ("combobox", "radiogroup", "listbox")
_MEMBERS = ("option", "radio")
_NONE: frozenset[Fact] = frozenset()


class Sight(NamedTuple):
    """A page as it was last seen, and when it was opened first."""

    order: int
    facts: frozenset[Fact]


class Belief(NamedTuple):
    """Facts by what they are about: each page, where one is, and the end."""

    pages: Mapping[str, Sight]
    here: frozenset[Fact]
    end: frozenset[Fact]

    def state(self) -> State:
        opened = {("opened", page, str(sight.order)) for page, sight in self.pages.items()}
        return State(
            _NONE.union(self.here, self.end, opened, *(one.facts for one in self.pages.values()))
        )


def grouped(facts: Iterable[Fact]) -> Belief:
    """Return any facts as a belief."""
    pages: dict[str, set[Fact]] = {}
    here, end, orders = set[Fact](), set[Fact](), dict[str, int]()
    for fact in facts:
        if fact[0] == "opened" and len(fact) == 3 and fact[2].isdecimal():
            orders[fact[1]] = int(fact[2][:9])
        elif len(fact) > 2 and fact[0] in _OF_PAGES:
            pages.setdefault(fact[1], set()).add(fact)
        else:
            (here if fact[0] in ("at", "query") else end).add(fact)
    names = sorted({*pages, *orders}, key=lambda page: (orders.get(page, 0), page))
    sights = {page: Sight(orders.get(page, 0), frozenset(pages.get(page, ()))) for page in names}
    return Belief(sights, frozenset(here), frozenset(end))


def page_here(belief: Belief) -> str:
    """Return the page that one is on: its address without what depends on the order of a query."""
    return _page(*_address(belief.here))


def _address(here: Iterable[Fact]) -> tuple[str, list[Fact]]:
    where, pairs = "", list[Fact]()
    for fact in sorted(here):
        if fact[0] == "at" and len(fact) == 2:
            where = where or fact[1]
        elif fact[0] == "query" and len(fact) == 3:
            pairs.append(fact[1:])
    return where, pairs


def _page(where: str, pairs: Sequence[Sequence[str]]) -> str:
    return where + ("?" + "&".join("=".join(pair) for pair in pairs) if pairs else "")


@lru_cache(maxsize=512)
def located(url: str) -> tuple[str, frozenset[Fact]]:
    """Return the page of an address, and the facts that say where one is."""
    where, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=None)
    found = sorted({(plain(key), plain(value)) for key, value in pairs})
    here: set[Fact] = {("at", plain(where)), *(("query", *pair) for pair in found)}
    return _page(plain(where), found), frozenset(here)


@lru_cache(maxsize=64)
def _facts_of(observation: str, page: str) -> frozenset[Fact]:
    """Return what the text of a page says, without the number of the page."""
    shown = read_page(observation)
    assert shown is not None
    facts, counts = set[Fact](), dict[tuple[str, str], int]()
    groups: list[tuple[int, str]] = []
    for line in shown.lines:
        role, name = line.role.lower(), plain(line.name)
        if line.role == ROOT:
            facts.add(("title", page, name))
            continue
        while groups and groups[-1][0] >= line.depth:
            groups.pop()
        if role in _MEMBERS and groups:
            group = groups[-1][1]
            facts.add(("option", page, group, name))
            if "true" in (line.properties.get("selected"), line.properties.get("checked")):
                facts.add(("selected", page, group, name))
            continue
        count = counts[role, name] = counts.get((role, name), 0) + 1
        name = f"{name} {count}" if count > 1 else name
        facts.add(("shows", page, role, name))
        if line.properties:
            facts.update(_states(page, role, name, line))
        if role in _GROUPS:
            groups.append((line.depth, name))
    return frozenset(facts)


def _states(page: str, role: str, name: str, line: Line) -> Iterable[Fact]:
    """Yield what a line's properties say; the value of a list is what is selected in it."""
    if (value := plain(line.properties.get("value", ""))) and role not in _GROUPS:
        yield ("value", page, role, name, value)
    if line.properties.get("checked") == "true":
        yield ("checked", page, role, name)
    for flag in _FLAGS:
        if line.properties.get(flag) == "true":
            yield (flag, page, role, name)


class WebCanonicalizer:
    r"""Folds pages, real or predicted, into a belief; see `comap.envs.web.canonicalizer`.

    Text without a line ``URL ...`` is read as the page that one is on. The observation after the
    action ``stop`` is the answer.

    Example:
        >>> canon = WebCanonicalizer()
        >>> page = "URL shop.test/?id=3\n[1] RootWebArea 'Cart'\n\t[2] checkbox 'Gift' checked: true"
        >>> print(canon.initial("buy a gift", page))
        at(shop.test/)
        checked(shop.test/?id=3, checkbox, gift)
        opened(shop.test/?id=3, 1)
        query(id, 3)
        shows(shop.test/?id=3, checkbox, gift)
        title(shop.test/?id=3, cart)
        >>> canon.action("Click  [LINK 'My cart']")
        "click [link 'my cart']"
    """

    version = "web-1"

    def __init__(self) -> None:
        self._memory: tuple[State, Belief] | None = None

    def initial(self, goal: str, observation: str) -> State:
        """Return what the first observation shows."""
        return self.update(State(), "", observation)

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after an observation."""
        shown = read_page(observation)
        if shown is None:
            return State(state.facts, parsed=False)
        before = self.belief(state)
        after = _folded(before, shown, observation)
        if after != before or not state.parsed:
            state = after.state()
        self._memory = (state, after)  # grouping anew gives the same, only later
        return state

    def belief(self, state: State) -> Belief:
        """Return a state's facts by what they are about."""
        if self._memory is None or self._memory[0] is not state:
            self._memory = (state, grouped(state.facts))
        return self._memory[1]

    def action(self, text: str) -> str:
        """Return the canonical form of an action: see `comap.envs.web.actions`."""
        return canonical(text)

    def describe(self, before: State, action: str, after: State) -> str:
        """Return a page from which `update` reads `after`: see `Describer`."""
        answers = sorted(fact[1] for fact in after.facts if fact[0] == "answer" and len(fact) == 2)
        if ("done",) in after.facts and ("done",) not in before.facts:
            return write_answer(answers[0] if answers else "")
        belief = self.belief(after)
        where, pairs = _address(belief.here)
        query = urlencode([(key, value) for key, value in pairs])
        sight = belief.pages.get(_page(where, pairs), Sight(0, _NONE))
        return "\n".join([f"{FIRST}{where}{'?' if query else ''}{query}", *_lines(sight.facts)])

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a page shows what no text so far and not the action said: see `Revealer`."""
        new = [
            fact for fact in after.facts - before.facts if fact[0] in ("title", "shows", "option")
        ]
        if not new:
            return False
        told = plain("\n".join([goal, action, *(turn.observation for turn in history)]))
        return any(fact[-1] not in told for fact in new)


def _folded(before: Belief, shown: PageText, observation: str) -> Belief:
    """Return a belief after what was shown."""
    end = before.end
    if shown.answer is not None:
        end = end | {("answer", plain(shown.answer)), ("done",)}
    if not shown.lines:
        return before._replace(end=end)
    page, here = located(shown.url) if shown.url else (page_here(before), before.here)
    pages = dict(before.pages)
    order = pages[page].order if page in pages else 0
    order = order or 1 + max((sight.order for sight in pages.values()), default=0)
    pages[page] = Sight(order, _facts_of(observation, page))
    if len(pages) > MOST_PAGES:
        del pages[min((one for one in pages if one != page), key=lambda one: pages[one].order)]
    return Belief(pages, here, end)


def _lines(facts: frozenset[Fact]) -> list[str]:
    """Return a page's lines from its facts."""
    values = {fact[2:4]: fact[4] for fact in facts if fact[0] == "value" and len(fact) == 5}
    titles = sorted(fact[2] for fact in facts if fact[0] == "title")
    lines = [f"[1] {ROOT} {quoted(titles[0] if titles else '')}"]

    def add(depth: int, role: str, name: str, properties: str) -> None:
        lines.append(f"{depth * chr(9)}[{len(lines) + 1}] {role} {quoted(name)}{properties}")

    for _, page, role, name in sorted(
        fact for fact in facts if fact[0] == "shows" and len(fact) == 4
    ):
        said = f" value: {quoted(values[role, name])}" if (role, name) in values else ""
        if role == "checkbox":
            said += f" checked: {str(('checked', page, role, name) in facts).lower()}"
        said += "".join(f" {flag}: true" for flag in _FLAGS if (flag, page, role, name) in facts)
        add(1, role, name, said)
        if role in _GROUPS:
            options = sorted(
                f[3] for f in facts if f[0] == "option" and len(f) == 4 and f[2] == name
            )
            member, flag = ("radio", "checked") if role == "radiogroup" else ("option", "selected")
            for option in options:
                chosen = ("selected", page, name, option) in facts
                add(2, member, option, f" {flag}: {str(chosen).lower()}")
    return lines


_TO_TYPE = re.compile(r'"([^"]+)"|(\d{4}-\d\d-\d\d|\d+)')
_LABELED = re.compile(r"([^:]{1,40}): (.{1,80})")
_MOST_WORDS, _MOST_ANSWERS = 8, 12


def admissible_of(belief: Belief, goal: str, scrolls: bool = False) -> tuple[str, ...]:
    """Return the actions that a belief allows, by names, with words to type from goal and pages.

    A field is offered the quoted words and the numbers of the goal, and what pages said under the
    field's own name (``Street: 12 Forge Street``), or anything the last page of another host said
    under a label; an answer is what the page says under a label. The goal's words keep their case off
    the generated sites.
    """
    page = page_here(belief)
    if page not in belief.pages or ("done",) in belief.end:
        return ()
    clicks, fields, answers = _offered(belief.pages[page].facts)
    words = _words_of(goal, lower=_is_generated(page))
    moves = list(clicks)
    told = _told(belief, page) if fields else {}
    for role, name in fields:
        enter, target = role == "searchbox", Target(role=role, name=name)
        more = () if enter else (*told.get(name, ()), *told.get("", ()))
        moves += [str(Move("type", target, word, enter)) for word in dict.fromkeys((*words, *more))]
    moves += ["scroll [down]", "scroll [up]"] * scrolls
    if len(belief.pages) > 1:
        moves += ["goback", "restart"]
    said = (*answers, *words, "n/a", "done")
    return tuple(dict.fromkeys([*moves, *[f"stop [{one}]" for one in said]]))


@lru_cache(maxsize=64)
def _words_of(goal: str, *, lower: bool) -> tuple[str, ...]:
    """Return what a goal says to type: its quoted words and its numbers."""
    written = [quote or number for quote, number in _TO_TYPE.findall(goal)]
    words = [plain(text) if lower else " ".join(text.split()) for text in written]
    return tuple(dict.fromkeys(words))[:_MOST_WORDS]


def _is_generated(page: str) -> bool:
    """Return whether a page is of comap's own sites, where beliefs and suggestions are in lower case.

    Elsewhere a page may compare what is typed with its case, as MiniWoB++ does.
    """
    return page.partition("/")[0] in HOSTS


@lru_cache(maxsize=64)
def _offered(facts: frozenset[Fact]) -> tuple[tuple[str, ...], tuple[Fact, ...], tuple[str, ...]]:
    """Return the clicks and choices of a page, its text fields, and what it says under labels."""
    moves, fields, answers = list[str](), list[Fact](), list[str]()
    roles = {fact[3]: fact[2] for fact in facts if fact[2] in _GROUPS and len(fact) == 4}
    for fact in sorted(facts):
        if fact[0] == "shows" and len(fact) == 4 and ("disabled", *fact[1:]) not in facts:
            role, name = fact[2:]
            if role == "statictext":
                if found := _LABELED.fullmatch(name):
                    answers.append(found[2])
            elif role in ("link", "button", "checkbox"):
                moves.append(f"click [{role} {quoted(name)}]")
            elif role in ("textbox", "searchbox"):
                fields.append((role, name))
        elif fact[0] == "option" and len(fact) == 4 and ("selected", *fact[1:]) not in facts:
            role = roles.get(fact[2], "combobox")
            moves.append(f"select [{role} {quoted(fact[2])}] [{fact[3]}]")
    return tuple(moves), tuple(fields), tuple(answers[:_MOST_ANSWERS])


def _told(belief: Belief, page: str) -> dict[str, list[str]]:
    """Return what pages said by label; under no label, all of the last opened one of another host."""
    told, host, last = dict[str, list[str]](), page.partition("/")[0], 0
    for other, sight in belief.pages.items():
        said = _labeled(sight.facts)
        for label, text in said:
            told.setdefault(label, []).append(text)
        if said and sight.order > last and other.partition("/")[0] != host:
            last, told[""] = sight.order, [text for _, text in said][:6]
    return told


@lru_cache(maxsize=128)
def _labeled(facts: frozenset[Fact]) -> tuple[tuple[str, str], ...]:
    texts = sorted(fact[3] for fact in facts if fact[0] == "shows" and fact[2] == "statictext")
    return tuple((found[1], found[2]) for text in texts if (found := _LABELED.fullmatch(text)))


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return the goal, the page as it was shown, and the last actions, for prompts."""
    page = page_here(grouped(state.facts))
    lines = [f"goal: {goal}", f"page: {page or 'none'}"]
    shown = read_page(history[-1].observation) if history else None
    for line in shown.lines[1:] if shown else ():
        said = "".join(f" {key}: {value}" for key, value in line.properties.items())
        lines.append(f"{line.role} {quoted(line.name)}{said}")
    if action is not None:
        others = sorted(fact[2] for fact in state.facts if fact[0] == "title" and fact[1] != page)
        lines.append("seen before: " + ("; ".join(others) or "nothing"))
    lines += [f"last: {turn.action}" for turn in history[1:][-3:]]
    text = "\n".join(lines)
    copied = action is None and _is_generated(page or "")
    return text.lower() if copied else text  # as suggested actions, to be copied
