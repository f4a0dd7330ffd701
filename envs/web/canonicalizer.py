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
_PAGE_FACTS = {"title", "opened", "shows", "option", "selected", "checked", "value", *_FLAGS}
_GROUP_ROLES = ("combobox", "radiogroup", "listbox")
_MEMBER_ROLES = ("option", "radio")
_NONE: frozenset[Fact] = frozenset()


class Sight(NamedTuple):
    """A page as it was last seen."""

    order: int  # of its first opening among the pages, from 1; 0 where no fact says it
    facts: frozenset[Fact]


class Belief(NamedTuple):
    """Facts by what they are about: each page, where one is, and the end."""

    pages: Mapping[str, Sight]
    here: frozenset[Fact]
    end: frozenset[Fact]

    def state(self) -> State:
        opened = {("opened", page, str(sight.order)) for page, sight in self.pages.items()}
        facts_of_pages = (sight.facts for sight in self.pages.values())
        return State(_NONE.union(self.here, self.end, opened, *facts_of_pages))


def belief_of(facts: Iterable[Fact]) -> Belief:
    """Return facts, which may be predicted ones of any form, by what they are about."""
    facts_by_page: dict[str, set[Fact]] = {}
    orders: dict[str, int] = {}
    here: set[Fact] = set()
    end: set[Fact] = set()
    for fact in facts:
        if fact[0] == "opened" and len(fact) == 3 and fact[2].isdecimal():
            orders[fact[1]] = int(fact[2][:9])  # a model may write any number
        elif len(fact) > 2 and fact[0] in _PAGE_FACTS:
            facts_by_page.setdefault(fact[1], set()).add(fact)
        elif fact[0] in ("at", "query"):
            here.add(fact)
        else:
            end.add(fact)  # what belongs nowhere too, so that no fact is lost

    # In the order in which they were opened, as `_folded` has them: the two must be equal.
    addresses = sorted(
        {*facts_by_page, *orders}, key=lambda address: (orders.get(address, 0), address)
    )
    pages: dict[str, Sight] = {}
    for address in addresses:
        facts_of_page = frozenset(facts_by_page.get(address, ()))
        pages[address] = Sight(orders.get(address, 0), facts_of_page)
    return Belief(pages, frozenset(here), frozenset(end))


def page_here(belief: Belief) -> str:
    """Return the page that one is on: its address without what depends on the order of a query."""
    return _page(*_address(belief.here))


def _address(place: Iterable[Fact]) -> tuple[str, list[Fact]]:
    """Return host and path, and the pairs of the query, that facts say where one is."""
    path = ""
    pairs: list[Fact] = []
    for fact in sorted(place):
        if fact[0] == "at" and len(fact) == 2:
            path = path or fact[1]
        elif fact[0] == "query" and len(fact) == 3:
            pairs.append(fact[1:])
    return path, pairs


def _page(path: str, pairs: Sequence[Sequence[str]]) -> str:
    """Return the page at a host and path with a query."""
    if not pairs:
        return path
    return path + "?" + "&".join("=".join(pair) for pair in pairs)


@lru_cache(maxsize=512)
def located(url: str) -> tuple[str, frozenset[Fact]]:
    """Return the page of an address, and the facts that say where one is."""
    path, _, query = url.partition("?")
    path = plain(path)
    fields = parse_qsl(query, keep_blank_values=True, max_num_fields=None)
    pairs = sorted({(plain(key), plain(value)) for key, value in fields})
    place: set[Fact] = {("at", path)}
    place.update(("query", key, value) for key, value in pairs)
    return _page(path, pairs), frozenset(place)


@lru_cache(maxsize=64)
def _facts_of(observation: str, page: str) -> frozenset[Fact]:
    """Return what the text of a page says, without the number of the page."""
    page_text = read_page(observation)
    assert page_text is not None
    facts: set[Fact] = set()
    counts: dict[tuple[str, str], int] = {}
    groups: list[tuple[int, str]] = []  # depth and name of those around the line
    for line in page_text.lines:
        role = line.role.lower()
        name = plain(line.name)
        if line.role == ROOT:
            facts.add(("title", page, name))
            continue

        # Options are told apart by their group: "Size" and "Color" may both have "Any".
        while groups and groups[-1][0] >= line.depth:
            groups.pop()
        if role in _MEMBER_ROLES and groups:
            group = groups[-1][1]
            facts.add(("option", page, group, name))
            if "true" in (line.properties.get("selected"), line.properties.get("checked")):
                facts.add(("selected", page, group, name))
            continue

        # The second of equal lines gets a number, as actions name it.
        count = counts.get((role, name), 0) + 1
        counts[role, name] = count
        if count > 1:
            name = f"{name} {count}"
        facts.add(("shows", page, role, name))
        if line.properties:
            facts.update(_states(page, role, name, line))
        if role in _GROUP_ROLES:
            groups.append((line.depth, name))
    return frozenset(facts)


def _states(page: str, role: str, name: str, line: Line) -> Iterable[Fact]:
    """Yield what a line's properties say; the value of a list is what is selected in it."""
    if (value := plain(line.properties.get("value", ""))) and role not in _GROUP_ROLES:
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
        page_text = read_page(observation)
        if page_text is None:
            return State(state.facts, parsed=False)
        before = self.belief(state)
        after = _folded(before, page_text, observation)
        if after != before or not state.parsed:
            state = after.state()
        self._memory = (state, after)  # grouping anew gives the same, only later
        return state

    def belief(self, state: State) -> Belief:
        """Return a state's facts by what they are about."""
        if self._memory is None or self._memory[0] is not state:
            self._memory = (state, belief_of(state.facts))
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
        path, pairs = _address(belief.here)
        query = urlencode([(key, value) for key, value in pairs])
        url = f"{path}?{query}" if query else path
        sight = belief.pages.get(_page(path, pairs), Sight(0, _NONE))
        return "\n".join([FIRST + url, *_lines(sight.facts)])

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a page shows what no text so far and not the action said: see `Revealer`."""
        new = [
            fact for fact in after.facts - before.facts if fact[0] in ("title", "shows", "option")
        ]
        if not new:
            return False
        texts = plain("\n".join([goal, action, *(turn.observation for turn in history)]))
        return any(fact[-1] not in texts for fact in new)


def _folded(before: Belief, page_text: PageText, observation: str) -> Belief:
    """Return a belief after what was shown."""
    end = before.end
    if page_text.answer is not None:
        end = end | {("answer", plain(page_text.answer)), ("done",)}
    if not page_text.lines:
        return before._replace(end=end)

    # Predicted pages, and those of the dialect ``webevolver``, may come without an address.
    if page_text.url:
        page, place = located(page_text.url)
    else:
        page = page_here(before)
        place = before.here

    # A page keeps the number under which it was first opened.
    pages = dict(before.pages)
    order = pages[page].order if page in pages else 0
    if not order:
        order = 1 + max((sight.order for sight in pages.values()), default=0)
    pages[page] = Sight(order, _facts_of(observation, page))
    if len(pages) > MOST_PAGES:
        others = (name for name in pages if name != page)
        del pages[min(others, key=lambda name: pages[name].order)]
    return Belief(pages, place, end)


def _lines(facts: frozenset[Fact]) -> list[str]:
    """Return a page's lines from its facts."""
    values = {fact[2:4]: fact[4] for fact in facts if fact[0] == "value" and len(fact) == 5}
    titles = sorted(fact[2] for fact in facts if fact[0] == "title")
    lines = [f"[1] {ROOT} {quoted(titles[0] if titles else '')}"]

    def add(depth: int, role: str, name: str, properties: str) -> None:
        indent = depth * "\t"
        lines.append(f"{indent}[{len(lines) + 1}] {role} {quoted(name)}{properties}")

    # Sorted: facts say neither which line comes first nor which is in which.
    shows = sorted(fact for fact in facts if fact[0] == "shows" and len(fact) == 4)
    for _, page, role, name in shows:
        properties = f" value: {quoted(values[role, name])}" if (role, name) in values else ""
        if role == "checkbox":
            is_checked = ("checked", page, role, name) in facts
            properties += f" checked: {str(is_checked).lower()}"
        for flag in _FLAGS:
            if (flag, page, role, name) in facts:
                properties += f" {flag}: true"
        add(1, role, name, properties)
        if role not in _GROUP_ROLES:
            continue

        options = sorted(
            fact[3] for fact in facts if fact[0] == "option" and len(fact) == 4 and fact[2] == name
        )
        member, flag = ("radio", "checked") if role == "radiogroup" else ("option", "selected")
        for option in options:
            is_selected = ("selected", page, name, option) in facts
            add(2, member, option, f" {flag}: {str(is_selected).lower()}")
    return lines


_TO_TYPE = re.compile(r'"([^"]+)"|(\d{4}-\d\d-\d\d|\d+)')
_LABELED = re.compile(r"([^:]{1,40}): (.{1,80})")
_MOST_WORDS = 8
_MOST_ANSWERS = 12
_MOST_TEXTS = 6  # of the page that was opened last


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

    # A search box gets words of the goal and Enter; a field of a form also what pages said, and no
    # Enter, which would send the form before it is filled in.
    texts_by_label = _texts_by_label(belief, page) if fields else {}
    for role, name in fields:
        is_search = role == "searchbox"
        target = Target(role=role, name=name)
        candidates = list(words)
        if not is_search:
            candidates += [*texts_by_label.get(name, ()), *texts_by_label.get("", ())]
        for word in dict.fromkeys(candidates):
            moves.append(str(Move("type", target, word, is_search)))

    if scrolls:
        moves += ["scroll [down]", "scroll [up]"]
    if len(belief.pages) > 1:
        moves += ["goback", "restart"]
    moves += [f"stop [{answer}]" for answer in (*answers, *words, "n/a", "done")]
    return tuple(dict.fromkeys(moves))


@lru_cache(maxsize=64)
def _words_of(goal: str, *, lower: bool) -> tuple[str, ...]:
    """Return what a goal says to type: its quoted words and its numbers."""
    texts = [quote or number for quote, number in _TO_TYPE.findall(goal)]
    words = [plain(text) if lower else " ".join(text.split()) for text in texts]
    return tuple(dict.fromkeys(words))[:_MOST_WORDS]


def _is_generated(page: str) -> bool:
    """Return whether a page is of comap's own sites, where beliefs and suggestions are in lower case.

    Elsewhere a page may compare what is typed with its case, as MiniWoB++ does.
    """
    return page.partition("/")[0] in HOSTS


@lru_cache(maxsize=64)
def _offered(facts: frozenset[Fact]) -> tuple[tuple[str, ...], tuple[Fact, ...], tuple[str, ...]]:
    """Return the clicks and choices of a page, its text fields, and what it says under labels."""
    moves: list[str] = []
    fields: list[Fact] = []
    answers: list[str] = []
    roles = {fact[3]: fact[2] for fact in facts if fact[2] in _GROUP_ROLES and len(fact) == 4}
    for fact in sorted(facts):
        if fact[0] == "shows" and len(fact) == 4 and ("disabled", *fact[1:]) not in facts:
            role, name = fact[2:]
            if role == "statictext":
                if labeled := _LABELED.fullmatch(name):
                    answers.append(labeled[2])
            elif role in ("link", "button", "checkbox"):
                moves.append(f"click [{role} {quoted(name)}]")
            elif role in ("textbox", "searchbox"):
                fields.append((role, name))
        elif fact[0] == "option" and len(fact) == 4 and ("selected", *fact[1:]) not in facts:
            role = roles.get(fact[2], "combobox")
            moves.append(f"select [{role} {quoted(fact[2])}] [{fact[3]}]")
    return tuple(moves), tuple(fields), tuple(answers[:_MOST_ANSWERS])


def _texts_by_label(belief: Belief, page: str) -> dict[str, list[str]]:
    """Return what pages said by label; under no label, all of the last opened one of another host."""
    texts: dict[str, list[str]] = {}
    host = page.partition("/")[0]
    last_order = 0
    for name, sight in belief.pages.items():
        labeled = _labeled(sight.facts)
        for label, text in labeled:
            texts.setdefault(label, []).append(text)

        # Tasks of several sites carry something from one to the next: a date, a price, an address.
        if labeled and sight.order > last_order and name.partition("/")[0] != host:
            last_order = sight.order
            texts[""] = [text for _, text in labeled][:_MOST_TEXTS]
    return texts


@lru_cache(maxsize=128)
def _labeled(facts: frozenset[Fact]) -> tuple[tuple[str, str], ...]:
    """Return what the texts ``label: text`` of a page say, as pairs."""
    pairs = []
    shows = [
        fact for fact in facts if fact[0] == "shows" and len(fact) == 4
    ]  # others are predicted
    for text in sorted(fact[3] for fact in shows if fact[2] == "statictext"):
        if labeled := _LABELED.fullmatch(text):
            pairs.append((labeled[1], labeled[2]))
    return tuple(pairs)


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return the goal, the page as it was shown, and the last actions, for prompts."""
    page = page_here(belief_of(state.facts))
    lines = [f"goal: {goal}", f"page: {page or 'none'}"]

    # Lines without numbers: what a model copies is a name, which means the same on every page.
    page_text = read_page(history[-1].observation) if history else None
    for line in page_text.lines[1:] if page_text else ():
        properties = "".join(f" {key}: {value}" for key, value in line.properties.items())
        lines.append(f"{line.role} {quoted(line.name)}{properties}")

    # Whoever predicts a page is told which others there are: one of them may come next.
    if action is not None:
        title_facts = [fact for fact in state.facts if fact[0] == "title" and len(fact) > 2]
        titles = sorted(fact[2] for fact in title_facts if fact[1] != page)
        lines.append("seen before: " + ("; ".join(titles) or "nothing"))
    lines += [f"last: {turn.action}" for turn in history[1:][-3:]]

    text = "\n".join(lines)
    is_copied_from = action is None and _is_generated(page or "")
    return text.lower() if is_copied_from else text  # as suggested actions are
