"""WebShop's canonicalizer: from pages to belief facts, and from facts back to pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from ...errors import OptionError, suggest
from ...facts import Fact, State
from ...trajectory import Turn
from ..canon import collapse
from .cleaning import clean, read_written
from .folding import Belief, follow
from .reading import read_page

__all__ = ["MODES", "ObservationMode", "WebShopCanonicalizer"]

ObservationMode: TypeAlias = Literal["text", "text_rich"]
"""How pages are shown: parts joined by ``[SEP]``, or lines with marked buttons."""

MODES: tuple[ObservationMode, ...] = ("text", "text_rich")
"""All observation modes, the default first."""

_NONE: frozenset[Fact] = frozenset()


class WebShopCanonicalizer:
    """Folds WebShop's pages, of either observation mode, into a belief.

    The facts are those of `comap.envs.webshop.facts`. What a page does not show is known from the
    actions: the product on an item page, which sub-page it is, the query. In the mode ``text``

    * chosen options are shown only in strict episodes (``Selected color: red``); without such parts
      an exact click on a value that the page offers counts as choosing it, and choices hold until
      the item is left;
    * groups of options and their values look alike: the first part is a group, and so is each later
      one that has a known name (``data/option_groups.json``, or one that a ``Selected`` part tells).
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
        if observation_mode not in MODES:
            known = suggest(str(observation_mode), MODES)
            raise OptionError(f"observation_mode cannot be {observation_mode!r}; {known}")
        self.observation_mode = observation_mode
        self.legacy = legacy
        self._memory: tuple[State, Belief] | None = None

    def initial(self, goal: str, observation: str) -> State:
        """Return the task and the page that the first observation shows."""
        shown = read_page(observation)
        instruction = clean(goal) or (shown.instruction if shown is not None else "")
        facts: set[Fact] = {("instruction", instruction)} if instruction else set()
        if shown is None or shown.kind != "search":
            return State(frozenset(facts), parsed=False)
        return State(frozenset(facts | {("page", "search")}))

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        shown = read_page(observation)
        memory = self._memory
        known = memory is not None and memory[0] is state
        before = memory[1] if known and memory is not None else Belief.of_facts(state.facts)
        groups = None if shown is None else follow(before, action, shown, self.legacy)
        if groups is None:
            return State(state.facts, parsed=False)
        if groups == before.groups:
            after = before
            state = state if state.parsed else State(state.facts)
        else:
            after = Belief(groups)
            state = State(_NONE.union(*groups.values()))
        self._memory = (state, after)  # grouping anew gives the same: only time depends on it
        return state

    def action(self, text: str) -> str:
        """Return the canonical form of an action: lower case, single blanks, none at brackets."""
        read = read_written(text)
        if read is None:
            return collapse(text)
        return f"{read[0]}[{' '.join(read[1].lower().split())}]"

    def describe(self, before: State, action: str, after: State) -> str:
        """Return a page from which `update` reads `after`: see `Describer`."""
        from .describe import describe

        return describe(before, action, after, self.observation_mode)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a change tells what nobody could foresee: see `comap.envs.Revealer`."""
        from .revealing import reveals

        earlier = [before]
        for turn in history:
            if turn.action is None:
                earlier.append(self.initial(goal, turn.observation))
            else:
                earlier.append(self.update(earlier[-1], turn.action, turn.observation))
        return reveals(earlier, before, after)
