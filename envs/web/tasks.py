"""Tasks: ids, panels, what they score, and how they are verified by the sites' states or by an answer.

The id ``generated/<split>/<instance>/<template>/<draw>`` says everything. A draw is in a panel only if
its expert earns 1.0 and three experts that leave one step out do not; ``data/panels.json`` lists them
(tests/envs/web/test_web_tasks.py computes them anew). No instance is in two splits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from ...errors import TaskNotFound, check_choice, check_number
from ...facts import Fact, State
from ..panel import Panel
from ..storage import packaged
from .actions import Move, read_action
from .canonicalizer import WebCanonicalizer, located
from .engine import Effect
from .lines import plain
from .sites import World, world_of
from .templates import NOTHING, Draft, draft, template_names
from .twin import Twin

INSTANCES: Mapping[str, range] = {
    "train": range(0, 16),
    "valid": range(16, 20),
    "test": range(20, 24),
}
SPLITS = tuple(INSTANCES)
_PREFIX = "generated/"
_MOST_DRAWS = 60


class KeyNode(NamedTuple):
    """A state on the way to a goal, as in Mind2Web-Live (Pan et al., WebCanvas, 2024)."""

    kind: str  # url_included, url_exactly or element_value
    where: str  # host and path; of the other kinds the page
    key: str = ""  # of the query, or the name of the control
    reference: str = ""
    required: bool = False  # it counts as solved only with it: the answer stands there

    def met(self, url: str, effect: Effect) -> bool:
        """Return whether an action met this node: the address after it, and what it typed."""
        if self.kind == "element_value":
            return (plain(effect.control), plain(effect.value)) == (self.key, self.reference)
        page, here = located(url)
        if self.kind == "url_exactly":
            return page == self.where
        return ("at", self.where) in here and ("query", self.key, self.reference) in here

    def met_by(self, state: State) -> bool:
        """Return whether a belief says that this node was met; what a page forgot is not known."""
        for fact in state.facts:
            if self.kind == "element_value":
                known = (
                    fact[0] == "value" and len(fact) == 5 and fact[3:] == (self.key, self.reference)
                )
            elif fact[0] != "title" or len(fact) != 3:
                continue
            elif self.kind == "url_exactly":
                known = fact[1] == self.where
            else:
                where, _, query = fact[1].partition("?")
                known = where == self.where and f"{self.key}={self.reference}" in query.split("&")
            if known:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Task:
    """A task, played once by its expert."""

    id: str
    split: str
    world: World
    draft: Draft
    plan: tuple[str, ...]  # the expert's actions, by names, ``stop`` included
    urls: tuple[str, ...]  # the address before each of them
    fresh: tuple[int, ...]  # for each the first one on the same, freshly loaded page
    nodes: tuple[KeyNode, ...]
    changed: frozenset[tuple[str, Any]]  # states of sites that have to be so
    evidence: frozenset[Fact]  # what pages show once it was changed

    def solved(self, states: Mapping[str, Any], met: frozenset[int], answer: str) -> bool:
        """Return whether the states of the sites, the nodes that were met and the answer solve it."""
        required = {index for index, node in enumerate(self.nodes) if node.required}
        return (
            self.answers(answer) and required <= met and self.world.changed(states) == self.changed
        )

    def answers(self, answer: str) -> bool:
        """Return whether an answer is right, or none is asked for."""
        wanted = self.draft.answer
        return not wanted or right(answer, wanted, self.draft.others)

    def meets(self, met: frozenset[int], url: str, effect: Effect) -> frozenset[int]:
        """Return the nodes met so far; each is met once and for all, in any order."""
        new = {
            index
            for index, node in enumerate(self.nodes)
            if index not in met and node.met(url, effect)
        }
        return met | new if new else met

    def partial(self, met: int) -> float:
        """Return the score of so many nodes before the task is solved: the end counts as one."""
        return met / (len(self.nodes) + 1)


_WORDS = re.compile(r"[^\W_]+", re.UNICODE)
_ARTICLES = frozenset(("a", "an", "the"))
_LONGEST_ANSWER = 25


def _words(text: str) -> list[str]:
    return [word for word in _WORDS.findall(plain(text)) if word not in _ARTICLES]


def right(answer: str, wanted: str, others: Sequence[str] = ()) -> bool:
    """Return whether an answer is the wanted one, alone or in a sentence that names no other.

    Example:
        >>> right("It is made of oak.", "oak", ("oak", "ash")), right("oak or ash", "oak", ("oak", "ash"))
        (True, False)
    """
    given, golden = _words(answer), _words(wanted)
    if given == golden:
        return True
    if wanted == NOTHING or len(given) > _LONGEST_ANSWER or not _within(golden, given):
        return False
    rivals = [_words(one) for one in others]
    return not any(
        _within(one, given) for one in rivals if one != golden and not _within(one, golden)
    )


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    size = len(part)
    return (
        any(whole[at : at + size] == part for at in range(len(whole) - size + 1)) if part else False
    )


def _follow(task_id: str, split: str, draft: Draft, world: World) -> Task:
    """Play a draft's plan, and write what the task scores by what happened."""
    twin, canon = Twin(), WebCanonicalizer()
    twin.open(world, draft.start)
    urls, fresh, nodes, evidence = [twin.url], [0], list[KeyNode](), dict[str, set[Fact]]()
    goal, used = plain(draft.goal), set[str]()
    for index, action in enumerate(draft.plan):
        move, states, page = read_action(action), twin.states, twin.text().split("\n", 1)[0]
        assert move is not None
        effect = twin.act(move)
        if effect.refused:
            raise TaskNotFound(
                f"expected a draw that its expert can play, found {task_id!r}: {action} is refused "
                f"({effect.refused}); env.unwrapped.tasks.ids lists those of the split"
            )
        loaded = twin.text().split("\n", 1)[0] != page or twin.states is not states
        nodes += _written(goal, used, twin.url if loaded else "", urls[-1], move, effect)
        if twin.states is not states:
            shown = canon.initial("", twin.text())
            evidence[twin.url] = {
                fact
                for fact in shown.facts
                if fact[0] == "shows"
                and (
                    fact[2] in ("heading", "statictext") or (fact[2] == "link" and fact[3] in goal)
                )
            }
        urls.append(twin.url)
        fresh.append(index + 1 if loaded else fresh[-1])
    for source in draft.sources or ((twin.url,) if draft.answer else ()):
        nodes.append(KeyNode("url_exactly", located(source)[0], required=True))
    stop = str(Move("stop", text=draft.answer or "done"))
    plan, facts = (*draft.plan, stop), frozenset[Fact]().union(*evidence.values())
    written, changed = tuple(dict.fromkeys(nodes)), world.changed(twin.states)
    return Task(
        task_id, split, world, draft, plan, tuple(urls), tuple(fresh), written, changed, facts
    )


def _written(
    goal: str, used: set[str], url: str, before: str, move: Move, effect: Effect
) -> list[KeyNode]:
    """Return the nodes of a step: what of the goal first stands in the address, or is typed."""
    nodes = list[KeyNode]()
    value = plain(effect.value)
    if value and value in goal and value not in used and not (move.verb == "type" and url):
        used.add(value)
        nodes.append(KeyNode("element_value", "", plain(effect.control), value))
    if url:
        where, _, query = url.partition("?")
        for key, text in parse_qsl(query):
            said = plain(text)
            if len(said) > 1 and said in goal and said not in used:
                used.add(said)
                nodes.append(KeyNode("url_included", plain(where), plain(key), said))
    return nodes


def _id(split: str, seed: int, template: str, draw: int) -> str:
    return f"{_PREFIX}{split}/{seed}/{template}/{draw}"


@lru_cache(maxsize=256)
def load(task_id: str) -> Task:
    """Return a task by its id, whether a panel lists it or not.

    Raises:
        TaskNotFound: The id is of no split, instance, template or draw, or the draw does not fit.
    """
    split, instance, template, number = (*task_id.removeprefix(_PREFIX).split("/"), "", "", "")[:4]
    seed, draw = (int(part) if part.isdecimal() else -1 for part in (instance, number))
    known = seed in INSTANCES.get(split, ()) and template in template_names() and draw < _MOST_DRAWS
    if known and task_id == _id(split, seed, template, draw):
        world = world_of(seed)
        if (found := draft(template, world, draw)) is not None:
            return _follow(task_id, split, found, world)
    raise TaskNotFound(
        f"expected a task such as 'generated/test/20/shop-detail/0', found {task_id!r:.80}; "
        "env.unwrapped.tasks.ids lists those of the split"
    )


@lru_cache(maxsize=8)
def panel_of(split: str, level: int | None = None, sites: tuple[str, ...] = ()) -> Panel:
    """Return the frozen panel of a split, or what of it is of at most a level and begins at some sites.

    Raises:
        OptionError: There is no such split, level or site.

    Example:
        >>> len(panel_of("test")), panel_of("test").ids[0]
        (248, 'generated/test/20/forum-date/1')
    """
    check_choice("the web's split", split, SPLITS)
    most = 3 if level is None else level
    check_number("level", most, 1, 3)
    written, draws = packaged(__package__, "templates"), packaged(__package__, "panels")
    start = {template: template.partition("-")[0] for template in written}
    for site in sites:
        check_choice("the web's site", site, tuple(dict.fromkeys(start.values())))
    ids = (
        _id(split, seed, template, draw)
        for template, found in draws.items()
        if written[template]["level"] <= most and start[template] in (sites or start.values())
        for seed in INSTANCES[split]
        for draw in found[str(seed)]
    )
    return Panel.of(ids, split, SPLITS)
