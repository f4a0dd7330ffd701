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
    page: str  # with its query for url_exactly, without for url_included, else ""
    key: str = ""  # of the query, or the name of the control
    reference: str = ""
    required: bool = False  # it counts as solved only with it: the answer stands there

    def met(self, url: str, effect: Effect) -> bool:
        """Return whether an action met this node: the address after it, and what it typed."""
        if self.kind == "element_value":
            return (plain(effect.control), plain(effect.value)) == (self.key, self.reference)
        page, place = located(url)
        if self.kind == "url_exactly":
            return page == self.page
        return ("at", self.page) in place and ("query", self.key, self.reference) in place

    def met_by(self, state: State) -> bool:
        """Return whether a belief says that this node was met; what a page forgot is not known."""
        return any(self._is_said_by(fact) for fact in state.facts)

    def _is_said_by(self, fact: Fact) -> bool:
        """Return whether a fact says that this node was met; every page that was opened has a title."""
        if self.kind == "element_value":
            return fact[0] == "value" and len(fact) == 5 and fact[3:] == (self.key, self.reference)
        if fact[0] != "title" or len(fact) != 3:
            return False
        if self.kind == "url_exactly":
            return fact[1] == self.page
        path, _, query = fact[1].partition("?")
        return path == self.page and f"{self.key}={self.reference}" in query.split("&")


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

    def solved(self, states: Mapping[str, Any], nodes_met: frozenset[int], answer: str) -> bool:
        """Return whether the states of the sites, the nodes that were met and the answer solve it."""
        required = {index for index, node in enumerate(self.nodes) if node.required}
        return (
            self.answers(answer)
            and required <= nodes_met
            and self.world.changed(states) == self.changed
        )

    def answers(self, answer: str) -> bool:
        """Return whether an answer is right, or none is asked for."""
        true_answer = self.draft.answer
        return not true_answer or right(answer, true_answer, self.draft.others)

    def meets(self, nodes_met: frozenset[int], url: str, effect: Effect) -> frozenset[int]:
        """Return the nodes met so far; each is met once and for all, in any order."""
        new = {
            index
            for index, node in enumerate(self.nodes)
            if index not in nodes_met and node.met(url, effect)
        }
        return nodes_met | new if new else nodes_met

    def partial(self, met_count: int) -> float:
        """Return the score of so many nodes before the task is solved: the end counts as one."""
        return met_count / (len(self.nodes) + 1)


_WORDS = re.compile(r"[^\W_]+", re.UNICODE)
_ARTICLES = frozenset(("a", "an", "the"))
_LONGEST_ANSWER = 25


def _words(text: str) -> list[str]:
    return [word for word in _WORDS.findall(plain(text)) if word not in _ARTICLES]


def right(answer: str, true_answer: str, others: Sequence[str] = ()) -> bool:
    """Return whether an answer is the true one, alone or in a sentence that names no other.

    Example:
        >>> right("It is made of oak.", "oak", ("oak", "ash")), right("oak or ash", "oak", ("oak", "ash"))
        (True, False)
    """
    words = _words(answer)
    true_words = _words(true_answer)
    if words == true_words:
        return True
    if true_answer == NOTHING or len(words) > _LONGEST_ANSWER or not _within(true_words, words):
        return False

    # An answer that names several candidates guesses. One whose words are in the true answer's own
    # ("oak" in "red oak") cannot be told from it.
    for rival in map(_words, others):
        is_other = rival != true_words and not _within(rival, true_words)
        if is_other and _within(rival, words):
            return False
    return True


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Return whether words stand in others side by side; no words stand nowhere."""
    size = len(part)
    if not size:
        return False
    return any(whole[start : start + size] == part for start in range(len(whole) - size + 1))


def _follow(task_id: str, split: str, draft: Draft, world: World) -> Task:
    """Play a draft's plan, and write what the task scores by what happened."""
    twin = Twin()
    canonicalizer = WebCanonicalizer()
    twin.open(world, draft.start)
    urls = [twin.url]
    fresh = [0]
    nodes: list[KeyNode] = []
    evidence: dict[str, set[Fact]] = {}  # by address: a page seen again says it anew
    goal = plain(draft.goal)
    used_values: set[str] = set()
    for index, action in enumerate(draft.plan):
        move = read_action(action)
        assert move is not None
        states_before = twin.states
        first_line = twin.text().split("\n", 1)[0]
        effect = twin.act(move)
        if effect.refused:
            raise TaskNotFound(
                f"expected a draw that its expert can play, found {task_id!r}: {action} is refused "
                f"({effect.refused}); env.unwrapped.tasks.ids lists those of the split"
            )

        # Where a site changed, what the page says then is evidence that it did: of lists of links only
        # what the goal names, since others may be there anyway.
        has_changed = twin.states is not states_before
        is_loaded = has_changed or twin.text().split("\n", 1)[0] != first_line
        nodes += _nodes_of_step(goal, used_values, twin.url if is_loaded else "", move, effect)
        if has_changed:
            facts = canonicalizer.initial("", twin.text()).facts
            evidence[twin.url] = {fact for fact in facts if _is_evidence(fact, goal)}
        urls.append(twin.url)
        fresh.append(index + 1 if is_loaded else fresh[-1])

    # An answer counts only where the page was opened that it stands on: it may have been guessed.
    sources = draft.sources
    if draft.answer and not sources:
        sources = (twin.url,)
    for source in sources:
        nodes.append(KeyNode("url_exactly", located(source)[0], required=True))

    stop = str(Move("stop", text=draft.answer or "done"))
    return Task(
        id=task_id,
        split=split,
        world=world,
        draft=draft,
        plan=(*draft.plan, stop),
        urls=tuple(urls),
        fresh=tuple(fresh),
        nodes=tuple(dict.fromkeys(nodes)),
        changed=world.changed(twin.states),
        evidence=frozenset[Fact]().union(*evidence.values()),
    )


def _is_evidence(fact: Fact, goal: str) -> bool:
    """Return whether a fact of a page says what was changed: a heading, a text, or a link of the goal."""
    if fact[0] != "shows":
        return False
    return fact[2] in ("heading", "statictext") or (fact[2] == "link" and fact[3] in goal)


def _nodes_of_step(
    goal: str, used_values: set[str], url: str, move: Move, effect: Effect
) -> list[KeyNode]:
    """Return the nodes of a step: what of the goal first stands in the address, or is typed.

    `url` is the page that the step loaded, empty for none; `used_values` are those of earlier nodes.
    """
    nodes: list[KeyNode] = []
    value = plain(effect.value)

    # Words that are typed and sent at once stand in the address, and are scored there.
    is_sent = move.verb == "type" and url
    if value and value in goal and value not in used_values and not is_sent:
        used_values.add(value)
        nodes.append(KeyNode("element_value", "", plain(effect.control), value))
    if url:
        path, _, query = url.partition("?")
        for key, text in parse_qsl(query):
            parameter = plain(text)
            if len(parameter) > 1 and parameter in goal and parameter not in used_values:
                used_values.add(parameter)
                nodes.append(KeyNode("url_included", plain(path), plain(key), parameter))
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
    seed = int(instance) if instance.isdecimal() else -1
    draw = int(number) if number.isdecimal() else -1
    exists = (
        seed in INSTANCES.get(split, ()) and template in template_names() and draw < _MOST_DRAWS
    )

    # Written back, so that a task has one id: "07" is no draw.
    if exists and task_id == _id(split, seed, template, draw):
        world = world_of(seed)
        draft_of_task = draft(template, world, draw)
        if draft_of_task is not None:
            return _follow(task_id, split, draft_of_task, world)
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
    highest_level = 3 if level is None else level
    check_number("level", highest_level, 1, 3)
    templates = packaged(__package__, "templates")
    site_of = {template: template.partition("-")[0] for template in templates}
    for site in sites:
        check_choice("the web's site", site, tuple(dict.fromkeys(site_of.values())))

    ids = []
    for template, draws_of_seeds in packaged(__package__, "panels").items():
        fits = templates[template]["level"] <= highest_level
        if not fits or (sites and site_of[template] not in sites):
            continue
        for seed in INSTANCES[split]:
            ids += [_id(split, seed, template, draw) for draw in draws_of_seeds[str(seed)]]
    return Panel.of(ids, split, SPLITS)
