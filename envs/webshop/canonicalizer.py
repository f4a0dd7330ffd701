"""WebShop's canonicalizer, and beliefs in words: as prompts, and as WebShop's own pages.

World models that predict facts answer with such a page (`describe`). Facts are in lower case, so the
page differs from the shop's in letters; what `WebShopCanonicalizer.update` reads of it is the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from ...errors import check_choice
from ...facts import Fact, State
from ...trajectory import Turn
from ..canon import collapse
from .belief import CATALOGUE, SUB_PAGES, Belief, follow, keywords, whole
from .parser import clean, read_action, read_page, read_written

ObservationMode: TypeAlias = Literal["text", "text_rich"]
"""How pages are shown: parts joined by ``[SEP]``, or lines with marked buttons."""

MODES: tuple[ObservationMode, ...] = ("text", "text_rich")
_NONE: frozenset[Fact] = frozenset()


class WebShopCanonicalizer:
    """Folds WebShop's pages, of either observation mode, into a belief.

    The facts are those of `comap.envs.webshop.belief`. What a page does not show is known from the
    actions: the product on an item page, which sub-page it is, the query. In the mode ``text``

    * chosen options are shown only in strict episodes (``Selected color: red``); without such parts
      an exact click on a value that the page offers counts as choosing it, and choices hold until
      the item is left;
    * groups of options and their values look alike: the first part is a group, and so is each later
      one that has a known name (``data/option_groups.json``, or one that a ``Selected`` part names).
      A group with an unknown name that comes second is taken for values of the first.

    In the mode ``text_rich`` upstream does not mark chosen values that are not plain ASCII; clicks
    tell of these. Where two groups share a value, a click on it chooses it in the later one.

    Args:
        observation_mode: How `describe` writes; both modes are read.
        legacy: Whether a search works on every page. In strict episodes it is refused outside of the
            search page, which the text does not say: the same list is then shown again.

    Raises:
        OptionError: There is no such observation mode.

    Example:
        >>> canon = WebShopCanonicalizer()
        >>> start = "WebShop [SEP] Instruction: [SEP] find me a rug [SEP] Search"
        >>> page = "Instruction: [SEP] find me a rug [SEP] Back to Search [SEP] "
        >>> page += "Page 1 (Total results: 0) [SEP] Next >"
        >>> state = canon.initial("find me a rug", start)
        >>> print(canon.update(state, "search[Blue  rug]", page).to_text())
        instruction(find me a rug)
        page(results)
        page_no(1)
        query(blue rug)
        total(0)
        >>> canon.action("Search[ Blue  rug ]")
        'search[blue rug]'
    """

    version = "webshop-1"

    def __init__(self, observation_mode: ObservationMode = "text", legacy: bool = False):
        check_choice("observation_mode", observation_mode, MODES)
        self.observation_mode = observation_mode
        self.legacy = legacy
        self._memory: tuple[State, Belief] | None = None

    def initial(self, goal: str, observation: str) -> State:
        """Return the task and the page that the first observation shows."""
        contents = read_page(observation)
        instruction = clean(goal) or (contents.instruction if contents is not None else "")
        facts: set[Fact] = {("instruction", instruction)} if instruction else set()
        if contents is None or contents.kind != "search":
            return State(frozenset(facts), parsed=False)
        return State(frozenset(facts | {("page", "search")}))

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        contents = read_page(observation)
        memory = self._memory
        if memory is not None and memory[0] is state:
            before = memory[1]
        else:
            before = Belief.of_facts(state.facts)
        groups = None if contents is None else follow(before, action, contents, self.legacy)
        if groups is None:
            return State(state.facts, parsed=False)

        if groups == before.groups:
            after = before
            state = state if state.parsed else State(state.facts)
        else:
            after = Belief(groups)
            state = State(_NONE.union(*groups.values()))

        # Grouping the facts anew would give the same: only time depends on this memory.
        self._memory = (state, after)
        return state

    def action(self, text: str) -> str:
        """Return the canonical form of an action: lower case, single blanks, none at brackets."""
        parsed = read_written(text)
        if parsed is None:
            return collapse(text)
        verb, argument = parsed
        return f"{verb}[{' '.join(argument.lower().split())}]"

    def describe(self, before: State, action: str, after: State) -> str:
        """Return a page from which `update` reads `after`: see `Describer`."""
        rich = self.observation_mode == "text_rich"
        parts = _Page(after, _Belief(before).argument("instruction"), rich).parts()
        if rich:
            return "\n".join([*filter(None, parts), ""])
        return _SEPARATOR.join(parts)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a change is in no page so far: see `comap.envs.Revealer`."""
        # Folded anew: a belief drops what was on pages that were left, but nobody need guess it.
        earlier = [before]
        for turn in history:
            if turn.action is None:
                earlier.append(self.initial(goal, turn.observation))
            else:
                earlier.append(self.update(earlier[-1], turn.action, turn.observation))

        new = _of_shop(after) - _of_shop(before)
        return bool(new) and not new <= frozenset().union(*map(_of_shop, earlier))


_LAST_ACTIONS = 2
_LONGEST_TITLE = 80
_MOST_VALUES = 12


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return what matters for the next action or, with an action, for predicting what follows it."""
    belief = _Belief(state)
    lines = [f"goal: {goal}", f"page: {belief.page_line()}"]
    named_product = ""
    if action is not None:
        _, argument = read_action(action) or ("", "")
        named_product = clean(argument)

    # For choosing an action all results matter, for predicting what follows one only those it names.
    if belief.page == "results":
        listed = belief.results()
        if action is None:
            lines.append("listed: " + ("; ".join(map(belief.listed, listed)) or "nothing"))
        elif named_product in listed:
            lines.append(f"listed: {belief.listed(named_product)}")
    elif action is None and belief.page == "search":
        lines.append(f"keywords: {keywords(goal)[0]}")
    elif action is None or belief.page in ("item", *SUB_PAGES):
        lines += belief.product_lines()

    last_actions = []
    for before, after in pairwise(list(history)[-_LAST_ACTIONS - 1 :]):
        unchanged = after.observation == before.observation
        last_actions.append(f"{after.action} (nothing changed)" if unchanged else f"{after.action}")
    if last_actions:
        lines.append(f"last: {'; '.join(last_actions)}")
    return "\n".join(lines)


def dollars(cents: str) -> str:
    """Return an amount in cents as one in dollars."""
    cents = cents.zfill(3)
    return f"{cents[:-2]}.{cents[-2:]}"


class _Belief(Belief):
    """A belief, with what prompts and pages show of it."""

    def __init__(self, state: State):
        super().__init__(Belief.of_facts(state.facts).groups)
        self.page = self.argument("page")
        self.product = self.argument("product")
        self.titles = dict(self.pairs("title"))
        self.prices = {fact[1]: fact[2:] for fact in sorted(self.of("price"))}
        self.opened = {fact[1] for fact in self.of("opened")}

    def page_line(self) -> str:
        """Return which page this is."""
        if self.page == "results":
            page_count = max(1, -(-self.number("total") // 10))
            pages = f"{self.argument('page_no')} of {page_count}"
            return f"results {pages} for {self.argument('query') or 'something'}"
        if self.page in SUB_PAGES:
            return f"{self.page} of {self.product or 'a product'}"
        if self.page == "done":
            return f"done, reward {self.argument('reward') or 'not known'}"
        if self.page == "item":
            return f"item {self.product}".strip()
        return (self.page or "not known").strip()

    def results(self) -> list[str]:
        """Return the listed products in the order of their ranks."""
        return [asin for _, asin in sorted(self.pairs("result"), key=lambda row: whole(row[0]))]

    def listed(self, asin: str) -> str:
        """Return a listed product in a line."""
        title = _shortened(self.titles.get(asin, ""))
        line = " ".join(filter(None, (asin, title, self.price(asin))))
        return f"{line} (opened)" if asin in self.opened else line

    def price(self, asin: str) -> str:
        """Return a product's price tag, empty where none is known."""
        low, high = self.prices.get(asin, ("", ""))
        if not (low and high):
            return ""
        if low == high:
            return f"${dollars(low)}"
        return f"${dollars(low)} to ${dollars(high)}"

    def product_lines(self) -> list[str]:
        """Return the lines about the product at hand."""
        lines = []
        title = _shortened(self.titles.get(self.product, ""))
        product_line = " ".join(filter(None, (title, self.price(self.product))))
        if product_line:
            lines.append(f"product: {product_line}")

        fits = [fact[1] for fact in sorted(self.of("attr_match"))]
        if self.argument("price_ok"):
            fits.append(f"price {self.argument('price_ok')}")
        if fits:
            lines.append(f"fits: {', '.join(fits)}")

        selected = [f"{group} {value}" for group, value in self.pairs("selected")]
        if selected:
            lines.append(f"chosen: {', '.join(selected)}")

        # Of many values, those that the instruction names come first.
        offers: dict[str, list[str]] = {}
        for group, value in self.pairs("option"):
            offers.setdefault(group, []).append(value)
        asked_for = set(self.pairs("option_available"))
        groups = []
        for group, values in offers.items():
            values.sort(key=lambda value: (group, value) not in asked_for)
            rest = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
            groups.append(f"{group}: {', '.join(values[:_MOST_VALUES])}{rest}")
        if groups:
            lines.append(f"options: {'; '.join(groups)}")
        return lines


def _shortened(title: str) -> str:
    if len(title) <= _LONGEST_TITLE:
        return title
    return title[: _LONGEST_TITLE - 3].rstrip() + "..."


_SEPARATOR = " [SEP] "
_NO_PRICE = "$100.00"  # as the shop has it


class _Page(_Belief):
    """One page to be written, a part at a time."""

    def __init__(self, state: State, instruction: str, rich: bool):
        super().__init__(state)
        self.rich = rich
        self.selected = self.pairs("selected")
        self.instruction = self.argument("instruction") or instruction

    def button(self, name: str, clicked: bool = False) -> str:
        """Return a button as the page's mode has it."""
        if not self.rich:
            return name
        mark = "clicked button" if clicked else "button"
        return f"[{mark}] {name} [{mark}_]"

    def parts(self) -> list[str]:
        """Return the texts of the page."""
        if self.page == "done":
            return self.end()
        if self.page == "search" or not self.page:
            return ["WebShop", "Instruction:", self.instruction, self.button("Search")]

        head = ["Instruction:", self.instruction, self.button("Back to Search")]
        if self.page == "results":
            return head + self.list_parts()
        body = self.lines() if self.page in SUB_PAGES else self.item()
        return [*head, self.button("< Prev"), *body]

    def list_parts(self) -> list[str]:
        """Return the texts of a page of results."""
        page_no = self.argument("page_no") or "1"
        parts = [f"Page {page_no} (Total results: {self.argument('total') or '0'})"]
        if page_no != "1":
            parts.append(self.button("< Prev"))
        parts.append(self.button("Next >"))

        # ASINs are in capitals in the shop, in lower case in facts.
        for asin in self.results():
            parts.append(self.button(asin.upper(), asin in self.opened))
            parts.append(self.titles.get(asin, "unnamed"))
            parts.append(self.price(asin) or _NO_PRICE)
        return parts

    def item(self) -> list[str]:
        """Return the texts of an item page."""
        parts = list[str]()
        indent = "  " if self.rich else ""
        last_group = ""
        for group, value in self.pairs("option"):
            if group != last_group:
                parts.append(group)
            last_group = group
            parts.append(indent + self.button(value, (group, value) in self.selected))
        if not self.rich:
            parts += [f"Selected {group}: {value}" for group, value in self.selected]

        parts.append(self.titles.get(self.product, "unnamed"))
        parts.append(f"Price: {self.price(self.product) or _NO_PRICE}")
        parts.append("Rating: N.A.")
        parts += map(self.button, ("Description", "Features", "Reviews", "Buy Now"))
        return parts

    def lines(self) -> list[str]:
        """Return the texts of a page behind an item."""
        rows = [fact for fact in self.of("line") if fact[1] == self.page]
        # Numbers are texts: a longer one is greater.
        return [fact[3] for fact in sorted(rows, key=lambda fact: (len(fact[2]), fact))]

    def end(self) -> list[str]:
        """Return the texts of the page after a purchase."""
        # Of upstream's page those fields that `read_page` looks for.
        return [
            "Thank you for shopping with us!",
            "Purchased",
            "asin",
            self.product.upper(),
            "options",
            json.dumps(dict(self.selected)),
            "Reward",
            "Your score (min 0.0, max 1.0)",
            self.argument("reward"),
        ]


_OF_A_LIST = ("total", "result")


def _of_shop(state: State) -> frozenset[Fact]:
    """Return what the shop showed; of result lists, with the query and the page they are of."""
    arguments = {fact[0]: fact[1] for fact in state.facts if len(fact) == 2}
    result_page = (arguments.get("query", ""), arguments.get("page_no", ""))
    shop_facts = {fact for fact in state.facts if fact[0] in CATALOGUE and fact[0] != "result"}
    shop_facts |= {(*fact, *result_page) for fact in state.facts if fact[0] in _OF_A_LIST}
    # Only its page says that an item has no options.
    if arguments.get("page") == "item":
        shop_facts.add(("offers", arguments.get("product", "")))
    return frozenset(shop_facts)
