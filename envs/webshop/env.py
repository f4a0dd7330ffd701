"""`WebShopEnv`: shopping by search and clicks, in text; and its tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

from ...errors import (
    DataNotFound,
    OptionError,
    TaskNotFound,
    check_choice,
    check_flag,
    check_number,
)
from ...facts import State
from ...trajectory import Step
from ..base import Outcome, TextEnv
from ..briefing import Briefing, ReplyForm
from ..generated import warn_of_generated
from ..panel import Panel, evenly
from ..storage import comap_home, named_folder
from .belief import admissible_of, goal_reached, keywords, score_of
from .build import MANIFEST
from .canonicalizer import MODES, ObservationMode, WebShopCanonicalizer, narrate
from .catalog import KINDS, Catalog
from .expert import ShopExpert, browse
from .generate import embedded_catalog
from .products import Goal, legacy_order, reward_of, split_of_asin
from .session import Pages, Session, Shop

_LEGACY = {
    "legacy-test": (0, 500),
    "legacy-eval": (500, 1500),
    "legacy-train": (1500, None),
    "legacy-train-500": (500, None),
}
_BY_PRODUCT = ("train", "valid", "test")
SPLITS = (*_BY_PRODUCT, "all", *_LEGACY)

_PREFIX = "generated/"


@dataclass(frozen=True)
class Tasks:
    """The goals of one split."""

    catalog: Catalog
    split: str
    kind: str
    most: int | None
    generated: bool

    @cached_property
    def panel(self) -> Panel:
        prefix = f"{_PREFIX if self.generated else ''}{self.kind}/"
        ids = (f"{prefix}{index}" for index in self._indices())
        return Panel.of(ids, self.split, SPLITS)

    def goal(self, task: str) -> Goal:
        expected = "generated/" if self.generated else ""
        kind, _, number = task.removeprefix(expected).partition("/")
        # isdigit() alone is true of superscripts; and int() of thousands of digits raises.
        if task.startswith(expected) and number.isascii() and number.isdigit() and len(number) < 12:
            return self.catalog.goal(kind, int(number))
        raise TaskNotFound(
            f"expected a task such as '{expected}synthetic/0', found {task!r:.80}; "
            "env.unwrapped.tasks.ids lists those of the split"
        )

    def split_of(self, goal: Goal) -> str:
        """Return the split that a goal is in, among those of this split's family."""
        if self.split in _BY_PRODUCT:
            return split_of_asin(goal.asin)
        if self.split == "all":
            return "all"
        index = legacy_order(self.catalog.goals(goal.kind)).index(goal.index)
        # WebShop's splits overlap: this one comes first.
        splits = {self.split: _LEGACY[self.split], **_LEGACY}
        return next(
            name
            for name, (first, last) in splits.items()
            if index >= first and (last is None or index < last)
        )

    def _indices(self) -> list[int]:
        if self.split in _LEGACY:
            first, last = _LEGACY[self.split]
            return list(legacy_order(self.catalog.goals(self.kind))[first:last])
        rows, starts = self.catalog.goal_products(self.kind)
        indices: list[int] = []
        for row, start, end in zip(
            rows.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True
        ):
            if self.split == "all" or split_of_asin(self.catalog.asin(row)) == self.split:
                indices += evenly(range(start, end), self.most)
        return indices


def open_tasks(
    data_dir: str | os.PathLike[str] | None,
    split: str,
    kind: str,
    most: int | None,
    source: str,
    generator_seed: int,
) -> Tasks:
    """Return the tasks of the catalogue that is there, else of the embedded one."""
    check_choice("WebShop's split", split, SPLITS)
    check_choice("WebShop's goals", kind, KINDS)
    check_choice("WebShop's source", source, ("auto", "official", "generated"))
    if most is not None:
        check_number("goals_per_product", most)
    if source == "generated" and data_dir is not None:
        raise OptionError("source='generated' reads no data, found data_dir as well; leave one out")
    home = comap_home() / "webshop"
    folder = home if data_dir is None else named_folder(data_dir)
    if source != "generated":
        if data_dir is not None or (home / MANIFEST).is_file():
            return Tasks(Catalog.open(folder), split, kind, most, False)
        if source == "official":
            raise DataNotFound(
                f"expected a WebShop catalogue in {home}, found none; "
                "run: comap data build webshop SOURCE"
            )
        warn_of_generated("comap/WebShop-v0", "run: comap data build webshop SOURCE")
    return Tasks(embedded_catalog(generator_seed), split, kind, most, True)


_EXPERTS = ("plan", "explore")
_SEARCH = "search["
_INSTRUCTION = "Instruction:"
_SEPARATOR = " [SEP] "
_SCORE = re.compile(  # at the end of the last page
    r"(Your score\b(?: \([^()\n]*\))?['\"]?)"
    r"\s{0,4}(?:\[SEP\]|:|=|is\b)?\s{0,4}['\"]?[-+]?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?['\"]?"
)
_UNFIT = str.maketrans("[]", "  ")  # what would end the argument of search[...]


class WebShopEnv(TextEnv):
    """Shopping by search and clicks, as in WebShop (Yao et al. 2022), without its dependencies.

    ## Description
    An instruction asks for a product with certain attributes and options below a certain price. The
    shopper searches a catalogue, opens products, reads about them, selects options, and buys one.
    Search ranks as Lucene does in WebShop, to the tie.

    ## Action Space
    ``Unicode``: any text. ``search[words]`` on the search page, and ``click[x]``, where ``x`` is a
    button, an ASIN, or an option value of the page, in any case; where two option groups share a
    value, ``click[group: value]`` distinguishes them (the value alone selects the later group's). Any
    other text changes nothing, shows the same page again, counts as a step, and sets
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
    (attributes + options + 1)``, 0 to 1: see `comap.envs.webshop.products.reward_of`.

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
    See `comap.envs.webshop.belief`, by `WebShopCanonicalizer`: the page, the query, the product, what
    is selected, what was opened, and how the product meets the instruction (structural); listed
    products, titles, prices, options, lines of text and the reward (catalogue).

    ## Known deviations from upstream
    With ``legacy=True``: ``<r>`` (random results) and ``<a>`` (a crash upstream) are words like others;
    ``terminated`` and ``truncated`` are distinguished; `admissible_actions` has a suggested search.
    Otherwise, besides: one can search on the search page only; *Next >* is there only where a next
    page is; case and blanks of actions do not matter; ``<c>`` and ``<q>``, which give labels of the
    reward away, are words like others; refused actions are reported; nothing follows the purchase; what
    is selected is shown. Prices and price caps are drawn once, when the catalogue is built, from a
    seed; upstream draws them anew in each process.
    Quirks of upstream that are kept: reviews are empty; *< Prev* on an item forgets its options;
    options do not change the price; the page after the purchase has the fields of a form, all
    ``None``; options are matched leniently (8 to 17 % of wrong values pass) unless ``strict_options``;
    repeated nouns count in a title's length, so that an identical title can score below 1.

    Args:
        split: ``train``, ``valid``, ``test`` or ``all``, which are by product, or WebShop's own, which
            overlap: ``legacy-test``, ``legacy-eval``, ``legacy-train``, ``legacy-train-500``.
        data_dir: Folder of a catalogue (``comap data build webshop``); None looks in
            ``COMAP_HOME/webshop``.
        observation_mode: ``"text"`` or ``"text_rich"``.
        legacy: WebShop's own, looser rules: search from every page, pages of results without end,
            refusals without a message, steps after the purchase, pages to the byte.
        show_attrs: Items have a page *Attributes*, which gives labels of the reward away.
        strict_options: The reward counts an option only where value and group are the goal's.
        goals: ``"synthetic"`` or ``"human"`` goals in the panel.
        goals_per_product: Most synthetic goals of a product in ``train``, ``valid`` and ``test``; None for
            all.
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
    idle_answer: ClassVar[str | None] = None
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"source": "generated"})
    env_id = "comap/WebShop-v0"
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType({"reward_parts": {}})
    canonicalizer: WebShopCanonicalizer = WebShopCanonicalizer()
    state_text = staticmethod(narrate)
    briefing = Briefing.of_package(__package__ or "")
    reply_form: ClassVar[ReplyForm] = ReplyForm("webshop", tail=20, most_characters=13_000)

    def __init__(  # noqa: PLR0913 options of the environment, as gymnasium.make passes them
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

        check_choice("observation_mode", observation_mode, MODES)
        flags = {"legacy": legacy, "show_attrs": show_attrs, "strict_options": strict_options}
        for name, flag in flags.items():
            check_flag(name, flag)
        check_choice("expert", expert, _EXPERTS)

        self._tasks = open_tasks(data_dir, split, goals, goals_per_product, source, generator_seed)
        self._settings = {name: str(flag).lower() for name, flag in flags.items()}
        self._settings["observation_mode"] = observation_mode
        self._legacy = legacy
        self._strict_options = strict_options
        self._shop = Shop(self.catalog, legacy, show_attrs)
        self._pages = Pages(self._shop, observation_mode == "text_rich")
        self.canonicalizer = WebShopCanonicalizer(observation_mode, legacy)
        if observation_mode != MODES[0]:
            self.briefing = Briefing.of_package(__package__ or "", observation_mode)

        self._expert_kind = expert
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

    @classmethod
    def action_menu(cls, actions: Sequence[str]) -> tuple[str, ...]:
        """Return the clicks, and the form of a search in place of suggested ones."""
        clicks = tuple(action for action in actions if not action.startswith(_SEARCH))
        searches = len(clicks) < len(actions)
        return (f"{_SEARCH}<your query>]", *clicks) if searches else clicks

    @classmethod
    def shown_text(cls, goal: str, observation: str) -> str:
        """Return a page with its parts in quotes, from behind the instruction; other text as it is."""
        parts = observation.split(_SEPARATOR)
        if len(parts) == 1:
            return observation
        # Every page repeats the instruction, which the prompt has already.
        after = parts[parts.index(goal) + 1 :] if goal in parts else parts
        return _SEPARATOR.join(f"'{part}'" for part in after or parts)

    @classmethod
    def predicted_text(cls, step: Step) -> str:
        """Return a page in quoted parts, without the instruction and without the score at its end."""
        text = step.observation
        if step.terminated:
            text = _SCORE.sub(r"\1", text)
        parts = text.split(_SEPARATOR)
        if len(parts) == 1 or text.startswith("'"):  # a page in lines, or quoted already
            return text

        if _INSTRUCTION in parts:
            after_goal = parts.index(_INSTRUCTION) + 2
            parts = parts[after_goal:]
        return _SEPARATOR.join(f"'{part}'" for part in parts)

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
        # Upstream goes on to accept searches on the page after the purchase.
        if self._legacy and self._outcome.terminated and isinstance(action, str):
            self._running = True
        return super().step(action)

    def expert_action(self) -> str | None:
        """Return the next action of the chosen expert; None after the end."""
        if self._expert_kind == "explore":
            return browse(self._state)

        if self._expert is None:
            self._expert = ShopExpert(self.wanted, self.catalog, self._legacy)
        return self._expert.action(self.session)

    def expert_from(self, state: State, admissible: tuple[str, ...] | None) -> str | None:
        """Return the next action of a sensible shopper that knows only a belief: see `browse`."""
        return browse(state)

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the right thing was bought."""
        return goal_reached(state)

    def score_of(self, state: State) -> float | None:
        """Return the reward that follows from the facts."""
        return score_of(state)

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the clicks that the facts allow, and the suggested search."""
        allowed = admissible_of(state)
        if allowed is None or ("page", "search") not in state.facts:
            return allowed
        return (*allowed, *self._suggested)

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        # A task that is not there must not leave the goal before it.
        self._wanted = None
        goal = self._tasks.goal(task)
        self._wanted = goal
        self._expert = None
        self.session = Session()

        words = keywords(goal.text)[0].translate(_UNFIT).split()
        self._suggested = (f"search[{' '.join(words) or 'anything'}]",)
        return self._tasks.split_of(goal), goal.text, self._outcome_of(False)

    def _act(self, action: str) -> Outcome:
        after = self._shop.act(self.session, action)
        if after is None:
            return self._outcome_of(not self._legacy)

        # With legacy rules searches go on behind the purchase: only the step that buys is rewarded.
        bought = after.page == "done" and self.session.page != "done"
        if bought:
            reward, parts = self._worth(after)
            after = after._replace(reward=reward, parts=parts)

        self.session = after
        return self._outcome_of(False, bought)

    def _worth(self, after: Session) -> tuple[float, Mapping[str, Any]]:
        """Return what a purchase is worth, and of which parts."""
        goal = self.wanted
        row = self.catalog.row(goal.asin)
        assert row is not None and after.row is not None
        bought = self.catalog.product(after.row)
        wanted = self.catalog.product(row)
        return reward_of(bought, after.options, goal, wanted, self._strict_options)

    def _agrees(self, outcome: Outcome) -> bool:
        worth = self._worth(self.session)[0] if self.session.page == "done" else 0.0
        return (outcome.score, outcome.success) == (worth, worth == 1.0)

    def _outcome_of(self, invalid: bool, bought: bool = False) -> Outcome:
        """Return the page where the shopper stands, with what it is worth."""
        worth = self.session.reward or 0.0
        page = self._pages.write(self.session, self.wanted.text)
        reward = worth if bought else 0.0
        return Outcome(page, reward, worth, worth == 1.0, bought, invalid, self._admissible())

    def _admissible(self) -> tuple[str, ...]:
        """Return the clicks, or on the search page the suggested search."""
        if self.session.page == "search":
            return self._suggested
        return self._shop.clicks(self.session)

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        info["reward_parts"] = dict(self.session.parts)
        return info

    def _save(self) -> Session:
        return self.session  # actions return new ones: nothing changes this one

    def _load(self, saved: Any) -> tuple[str, ...]:
        self.session = saved
        return self._admissible()
