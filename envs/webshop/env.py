"""`WebShopEnv`: shopping by search and clicks, in text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from ...errors import OptionError, suggest
from ...facts import State
from ...trajectory import Turn
from ..base import Outcome, TextEnv
from ..panel import Panel
from .browse import browse
from .canonicalizer import MODES, ObservationMode, WebShopCanonicalizer
from .catalog import Catalog
from .expert import Errand, ShopExpert, Standing
from .facts import admissible_of, goal_reached, score_of
from .goals import Goal
from .matching import keywords
from .pages import Pages
from .reward import reward_of
from .session import Session, Shop
from .tasks import open_tasks
from .wording import narrate, narrate_scene

__all__ = ["WebShopEnv"]

_EXPERTS = ("plan", "explore")
_UNFIT = str.maketrans("[]", "  ")


class WebShopEnv(TextEnv):
    """Shopping by search and clicks, as in WebShop (Yao et al. 2022), without its dependencies.

    ## Description
    An instruction asks for a product with certain attributes and options below a certain price. The
    shopper searches a catalogue, opens products, reads about them, selects options, and buys one.
    Search ranks as Lucene does in WebShop, to the tie.

    ## Action Space
    ``Unicode``: any text. ``search[words]`` on the search page, and ``click[x]``, where ``x`` is a
    button, an ASIN, or an option value of the page, in any case; where two option groups share a
    value, ``click[group: value]`` tells them apart (the value alone selects the later group's). Any
    other text changes nothing, shows the same page again, counts as a step, and is told as
    ``info["invalid_action"]``.

    ## Observation Space
    ``Unicode``: the page. ``text`` joins its texts by ``[SEP]``; ``text_rich`` has a line for each,
    and marks buttons. Both show what is selected: ``text`` by parts such as ``Selected color: red``
    before the product's title, ``text_rich`` by ``[clicked button]`` and a line above the page.

    ## Starting State
    The search page. ``reset(options={"task": id})`` picks the goal, any of the catalogue; otherwise
    the environment's generator does, uniformly from the split's panel.

    ## Rewards
    0 until a product is bought; then ``r_type * (attributes met + options met + price met) /
    (attributes + options + 1)``, 0 to 1: see `comap.envs.webshop.reward.reward_of`.

    ## Episode End
    *Terminated* when a product is bought; *truncated* after 15 steps (``max_episode_steps`` of
    ``gym.make``) or after a fault.

    ## Information
    See `comap.envs.Info`. ``score`` is the reward of the purchase, 0 before one; ``success`` is a
    reward of 1. ``admissible_actions`` lists all clicks and, on the search page, one suggested
    search, made of the instruction's words: any other search is welcome as well. After a purchase
    ``reward_parts`` has the reward's parts; before, nothing. For checks, not for agents,
    ``env.unwrapped.wanted`` is the goal, with its product, and ``env.unwrapped.session`` is where the
    shopper stands.

    ## Arguments
    The constructor's, below.

    ## References
    Yao et al., WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents
    (NeurIPS 2022).

    ## Version History
    v0: first release.

    ## Task panel
    Ids are ``synthetic/<number>`` and ``human/<number>``, where the number is the goal's place in
    the order of the catalogue, before WebShop shuffles. Splits ``train``, ``valid`` and ``test`` (80,
    10 and 10 %) are by product: no product is the goal of two splits; of each product at most
    ``goals_per_product`` synthetic goals are listed, evenly spread over its options, since one shirt
    can have hundreds. ``all`` lists those of all products. ``legacy-test`` (0 to 499 of WebShop's
    shuffle), ``legacy-eval`` (500 to 1499), ``legacy-train`` (from 1500) and ``legacy-train-500``
    (from 500, the training set of those who use the catalogue of 1,000 products) are WebShop's own
    and list every goal. They **leak**: on 1,000 products with synthetic goals, 127 of the 146
    products of ``legacy-test`` are goals of ``legacy-train-500`` as well. Without data on the machine:
    a generated catalogue, the same splits, ids beginning with ``generated/``.

    ## State facts
    See `comap.envs.webshop.facts`, by `WebShopCanonicalizer`: the page, the query, the product, what
    is selected, what was opened, and how the product meets the instruction (structural); listed
    products, titles, prices, options, lines of text and the reward (catalogue).

    ## Known deviations from upstream
    With ``legacy=True``: ``<r>`` (random results) and ``<a>`` (a crash upstream) are words like others;
    ``terminated`` and ``truncated`` are told apart; `admissible_actions` has a suggested search.
    Otherwise, besides: one can search on the search page only; *Next >* is there only where a next
    page is; case and blanks of actions do not matter; ``<c>`` and ``<q>``, which give labels of the
    reward away, are words like others; refused actions are told; nothing follows the purchase; what
    is selected is shown. Prices and price caps are drawn once, when the catalogue is built, from a
    seed; upstream draws them anew in each process.
    Quirks of upstream that are kept: reviews are empty; *< Prev* on an item forgets its options;
    options do not change the price; the page after the purchase has the fields of a form, all
    ``None``; options are matched leniently (8 to 17 % of wrong values pass) unless ``strict_options``;
    repeated nouns count in a title's length, so that an identical title can score below 1.

    Args:
        split: See *Task panel*.
        data_dir: Folder of a catalogue (``comap data build webshop``); None looks in
            ``COMAP_HOME/webshop``.
        observation_mode: ``"text"`` or ``"text_rich"``.
        legacy: WebShop's own, looser rules: search from every page, pages of results without end,
            refusals that nothing tells, steps after the purchase, pages to the byte.
        show_attrs: Items have a page *Attributes*, which gives labels of the reward away.
        strict_options: The reward counts an option only where value and group are the goal's.
        goals: ``"synthetic"`` or ``"human"`` goals in the panel.
        goals_per_product: See *Task panel*; None for all.
        source: ``"auto"``, ``"official"`` (a catalogue that was built) or ``"generated"``.
        generator_seed: Of the generated catalogue.
        expert: What `expert_action` knows: ``"plan"`` the goal's product, ``"explore"`` what was seen.
        **common: See `TextEnv`.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/WebShop-v0", split="valid", source="generated")
        >>> observation, info = env.reset(seed=0)
        >>> terminated = False
        >>> while not terminated:
        ...     action = env.unwrapped.expert_action()
        ...     observation, reward, terminated, truncated, info = env.step(action)
        >>> reward, info["success"], info["reward_parts"]["r_type"]
        (1.0, True, 1.0)
    """

    test_splits: ClassVar[tuple[str, ...]] = ("test",)
    nothing: ClassVar[str | None] = None
    embedded: ClassVar[Mapping[str, Any]] = MappingProxyType({"source": "generated"})
    env_id = "comap/WebShop-v0"
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType({"reward_parts": {}})
    canonicalizer: WebShopCanonicalizer = WebShopCanonicalizer()

    def __init__(
        self,
        *,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        observation_mode: ObservationMode = "text",
        legacy: bool = False,
        show_attrs: bool = False,
        strict_options: bool = False,
        goals: str = "synthetic",
        goals_per_product: int | None = 10,
        source: str = "auto",
        generator_seed: int = 0,
        expert: str = "plan",
        **common: Any,
    ):
        super().__init__(**common)
        if observation_mode not in MODES:
            known = suggest(str(observation_mode), MODES)
            raise OptionError(f"observation_mode cannot be {observation_mode!r}; {known}")
        flags = {"legacy": legacy, "show_attrs": show_attrs, "strict_options": strict_options}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise OptionError(f"{name} must be True or False, not {flag!r}")
        if expert not in _EXPERTS:
            raise OptionError(f"expert cannot be {expert!r}; {suggest(str(expert), _EXPERTS)}")
        self._tasks = open_tasks(data_dir, split, goals, goals_per_product, source, generator_seed)
        self._settings = {name: str(flag).lower() for name, flag in flags.items()}
        self._settings["observation_mode"] = observation_mode
        self._legacy, self._strict_options = legacy, strict_options
        self._shop = Shop(self.catalog, legacy, show_attrs)
        self._pages = Pages(self._shop, observation_mode == "text_rich")
        self.canonicalizer = WebShopCanonicalizer(observation_mode, legacy)
        self._knows = expert
        self._wanted: Goal | None = None
        self._expert: ShopExpert | None = None
        self._suggested: tuple[str, ...] = ()
        self.session = Session()

    @property
    def catalog(self) -> Catalog:
        """The catalogue."""
        return self._tasks.catalog

    @property
    def tasks(self) -> Panel:
        """The goals of the split."""
        return self._tasks.panel

    @property
    def wanted(self) -> Goal:
        """The goal. For checks, not for agents."""
        if self._wanted is None:
            self._refuse_step()
        return self._wanted

    def settings(self) -> dict[str, str]:
        """Return the observation mode, the rules, and the SHA-256 of the catalogue."""
        return {**self._settings, "catalog": self.catalog.manifest["sha256"]}

    def fingerprint(self) -> dict[str, str]:
        """Return the settings, and how the catalogue was made."""
        nouns = str(self.catalog.manifest["nouns"])
        return super().fingerprint() | {"goals": self._tasks.kind, "nouns": nouns}

    def available_actions(self) -> dict[str, Any]:
        """Return what upstream's ``get_available_actions`` does: ``has_search_bar``, ``clickables``."""
        self.require_episode()
        has_bar = self.session.page == "search"
        return {"has_search_bar": has_bar, "clickables": self._shop.clickables(self.session)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action; with ``legacy=True`` also after the purchase. See `TextEnv.step`."""
        if self._legacy and self._outcome.terminated and isinstance(action, str):
            self._running = True
        return super().step(action)

    def expert_action(self) -> str | None:
        """Return the next action of the chosen expert; None after the end."""
        if self._knows == "explore":
            return browse(self._state)
        if self._expert is None:
            goal, catalog = self.wanted, self.catalog
            row = catalog.row(goal.asin)
            assert row is not None
            product = catalog.product(row)
            errand = Errand(
                goal.asin, goal.text, goal.options, dict(product.options), product.title
            )
            self._expert = ShopExpert(errand, catalog.search, self._legacy)
        here = self.session
        return self._expert.action(
            Standing(
                here.page,
                [self.catalog.asin(row) for row in here.rows],
                here.page_no,
                "" if here.row is None else self.catalog.asin(here.row),
                here.options,
            )
        )

    def expert_from(self, state: State, admissible: tuple[str, ...] | None) -> str | None:
        """Return the next action of a sensible shopper that knows only a belief: see `browse`."""
        return browse(state)

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the right thing was bought."""
        return goal_reached(state)

    def score_of(self, state: State) -> float | None:
        """Return the reward that the facts tell."""
        return score_of(state)

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the clicks that the facts allow, and the suggested search."""
        allowed = admissible_of(state)
        if allowed is None or ("page", "search") not in state.facts:
            return allowed
        return (*allowed, *self._suggested)

    @classmethod
    def state_text(
        cls, goal: str, history: Sequence[Turn], state: State, action: str | None = None
    ) -> str:
        """Return a belief in few words: see `narrate` and, with an action, `narrate_scene`."""
        if action is None:
            return narrate(goal, history, state)
        return narrate_scene(goal, history, state, action)

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        self._wanted = None
        goal = self._tasks.goal(task)
        self._wanted, self._expert, self.session = goal, None, Session()
        self._suggested = (_suggestion(goal.text),)
        return self._tasks.split_of(goal), goal.text, self._outcome_of(False)

    def _act(self, action: str) -> Outcome:
        before = self.session
        after = self._shop.act(before, action)
        if after is None:
            return self._outcome_of(not self._legacy)
        bought = after.page == "done" and before.page != "done"
        if bought:
            after = self._pay(after)
        self.session = after
        return self._outcome_of(False, bought)

    def _pay(self, here: Session) -> Session:
        """Return the session with what the purchase is worth."""
        goal, catalog = self.wanted, self.catalog
        row = catalog.row(goal.asin)
        assert row is not None and here.row is not None
        reward, parts = reward_of(
            catalog.product(here.row),
            here.options,
            goal,
            catalog.product(row),
            self._strict_options,
        )
        return here._replace(reward=reward, parts=parts)

    def _outcome_of(self, invalid: bool, bought: bool = False) -> Outcome:
        here = self.session
        worth = here.reward or 0.0
        return Outcome(
            self._pages.write(here, self.wanted.text),
            worth if bought else 0.0,
            worth,
            worth == 1.0,
            bought,
            invalid,
            self._admissible(),
        )

    def _admissible(self) -> tuple[str, ...]:
        if self.session.page == "search":
            return self._suggested
        return self._shop.clicks(self.session)

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        info["reward_parts"] = dict(self.session.parts)
        return info

    def _save(self) -> Session:
        return self.session

    def _load(self, saved: Any) -> tuple[str, ...]:
        self.session = saved
        return self._admissible()


def _suggestion(instruction: str) -> str:
    """Return a search for words of an instruction."""
    words = keywords(instruction)[0].translate(_UNFIT).split()
    return f"search[{' '.join(words) or 'anything'}]"
