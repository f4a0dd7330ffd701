"""Tasks: frozen panels, experts that solve them, shortened experts that do not, answers, key nodes."""

from __future__ import annotations

from itertools import islice
from typing import Any

import gymnasium
import pytest

from comap.envs.panel import evenly
from comap.envs.web.actions import canonical, read_action
from comap.envs.web.engine import Effect
from comap.envs.web.tasks import (
    _MOST_DRAWS,
    INSTANCES,
    KeyNode,
    Task,
    _id,
    load,
    panel_of,
    right,
)
from comap.envs.web.templates import template_names
from comap.envs.web.twin import Twin
from comap.errors import OptionError, TaskNotFound
from comap.facts import State

PANELS = {
    "train": (991, "eda2125f192c4f20"),
    "valid": (248, "a51bebb4ceb801ae"),
    "test": (248, "f3fc8ddb20190734"),
}


def plays(task: Task, skip: int = -1) -> bool:
    """Return whether the expert solves a task if it leaves a step out."""
    twin, met_conditions = Twin(), frozenset[int]()
    twin.open(task.world, task.draft.start)
    met_conditions = task.meets(met_conditions, twin.url, Effect())
    for index, action in enumerate(task.plan[:-1]):
        move = read_action(action)
        if index != skip and move is not None:
            met_conditions = task.meets(met_conditions, twin.url, twin.act(move))
            met_conditions = task.meets(met_conditions, twin.url, Effect())
    return task.solved(twin.states, met_conditions, task.draft.answer)


def accepted(task: Task) -> bool:
    """Return whether the expert solves a task, and three that leave one step out do not."""
    steps = range(len(task.plan) - 1)
    failed = (skip for skip in steps if not plays(task, skip))
    enough = min(len(steps), 3)
    return plays(task) and len(list(islice(failed, enough))) == enough


def accepted_draws(template: str, seed: int) -> list[int]:
    """Return the first draws of a template that an instance accepts, as ``data/panels.json`` has them."""
    split = next(name for name, seeds in INSTANCES.items() if seed in seeds)
    draws, goals = list[int](), set[str]()
    for draw in range(_MOST_DRAWS):
        try:
            task = load(_id(split, seed, template, draw))
        except TaskNotFound:
            continue
        if task.draft.goal not in goals and accepted(task):
            draws.append(draw)
            goals.add(task.draft.goal)
            if len(draws) == 2:
                break
    return draws


@pytest.mark.parametrize("split", PANELS)
def test_panels_are_frozen(split: str) -> None:
    panel = panel_of(split)
    assert (len(panel), panel.sha256[:16]) == PANELS[split]
    parts = [task.split("/") for task in panel.ids]
    assert {part[3] for part in parts} == set(template_names())
    assert {int(part[2]) for part in parts} == set(INSTANCES[split])


def test_tasks_of_a_level() -> None:
    levels = [1, 2, 3, None]
    panels: list[Any] = [
        gymnasium.make("comap/Web-v0", split="test", level=level).get_wrapper_attr("tasks")
        for level in levels
    ]
    assert [len(panel) for panel in panels] == [104, 224, 248, 248] and panels[2] == panels[3]
    assert {load(task).draft.level for task in panels[0]} == {1}
    with pytest.raises(OptionError, match="level must be a whole number from 1 to 3"):
        panel_of("test", 4)


def test_no_instance_is_in_two_splits() -> None:
    seeds = [seed for seeds in INSTANCES.values() for seed in seeds]
    assert len(seeds) == len(set(seeds))


@pytest.mark.parametrize("name", template_names())
def test_panels_list_what_is_accepted(name: str) -> None:
    listed = [task for task in panel_of("test").ids if f"/20/{name}/" in task]
    assert listed == [f"generated/test/20/{name}/{draw}" for draw in accepted_draws(name, 20)]


@pytest.mark.parametrize("split", PANELS)
def test_experts_solve_tasks_and_shortened_ones_do_not(split: str) -> None:
    for task in evenly(panel_of(split).ids, 80):
        assert accepted(load(task)), task


@pytest.mark.parametrize("task", evenly(panel_of("valid").ids, 31))
def test_the_expert_plays_what_is_admissible(task: str) -> None:
    env = gymnasium.make("comap/Web-v0", split="valid")
    _, info = env.reset(options={"task": task})
    scores, terminated = [info["score"]], False
    while not terminated:
        action = env.get_wrapper_attr("expert_action")()
        assert canonical(action) in map(canonical, info["admissible_actions"]), (task, action)
        _, reward, terminated, truncated, info = env.step(action)
        assert not info["invalid_action"] and not truncated, (task, action)
        scores.append(info["score"])
        believed = env.unwrapped.score_of(info["facts"])
        assert believed <= info["score"] + 1e-9
    assert (reward, info["success"], scores[-1]) == (1.0, True, 1.0)
    assert scores == sorted(scores)
    assert env.unwrapped.goal_reached(info["facts"]) is True and env.unwrapped.ended(info["facts"])


@pytest.mark.parametrize(
    ("task", "wrong"),
    [
        ("shop-detail", "stop [rubber]"),
        ("shop-detail", "stop []"),
        ("shop-missing", "stop [3.00]"),
        ("wiki-fact", "stop [N/A]"),
    ],
)
def test_wrong_answers_and_answers_that_were_guessed_earn_nothing(task: str, wrong: str) -> None:
    env: Any = gymnasium.make("comap/Web-v0", split="test").unwrapped
    name = next(task_id for task_id in panel_of("test").ids if f"/{task}/" in task_id)
    env.reset(options={"task": name})
    for action in (*env.wanted.plan[:-1], wrong):
        answer = env.step(action)
    assert answer[1:3] == (0.0, True) and answer[4]["score"] < 1
    assert env.goal_reached(answer[4]["facts"]) is False
    env.reset(options={"task": name})
    answer = env.step(env.wanted.plan[-1])
    assert answer[1] == 0.0 and not answer[4]["success"]
    assert env.goal_reached(answer[4]["facts"]) is None


def test_what_nobody_asked_for_is_no_success() -> None:
    env: Any = gymnasium.make("comap/Web-v0", split="test").unwrapped
    task = next(task_id for task_id in panel_of("test").ids if "/forum-vote/" in task_id)
    env.reset(options={"task": task})
    for action in env.wanted.plan[:-1]:
        env.step(action)
    saved = env.snapshot()
    assert env.step("stop [done]")[1] == 1.0
    env.restore(saved)
    env.step("type [textbox 'Your reply'] [And more] [0]")
    env.step("click [button 'Reply']")
    assert env.step("stop [done]")[1] == 0.0


@pytest.mark.parametrize(
    ("answer", "expected", "others", "fits"),
    [
        ("Oak", "oak", (), True),
        ("It is made of oak.", "oak", ("ash", "oak"), True),
        ("oak or ash", "oak", ("ash", "oak"), False),
        ("cast iron", "iron", ("cast iron", "iron"), False),
        ("the cast iron", "cast iron", ("iron",), True),
        ("2 h 5 min", "2 h 5 min", (), True),
        ("2 h 50 min", "2 h 5 min", (), False),
        ("12.5 km", "12.5 km", (), True),
        ("112.5 km", "12.5 km", (), False),
        ("n/a", "N/A", (), True),
        ("the answer is N/A", "N/A", (), False),
        ("", "oak", (), False),
        ("oak " * 40, "oak", (), False),
    ],
)
def test_answers(answer: str, expected: str, others: tuple[str, ...], fits: bool) -> None:
    assert right(answer, expected, others) is fits


def test_a_predicted_list_with_another_place_in_it_is_no_success() -> None:
    env: Any = gymnasium.make("comap/Web-v0", split="test").unwrapped
    task = next(task for task in env.tasks.ids if "map-save" in task)
    _, info = env.reset(options={"task": task})
    for action in env.wanted.plan:
        *_, info = env.step(action)
    link_facts = [
        fact for fact in info["facts"].facts if fact[:3] == ("shows", "map.test/saved", "link")
    ]
    place = next(fact for fact in link_facts if f'"{fact[3]}"' in env.goal.lower())
    changed_facts = (info["facts"].facts - {place}) | {(*place[:3], "another place")}
    assert (
        env.goal_reached(info["facts"]) is True and env.goal_reached(State(changed_facts)) is None
    )


def test_key_nodes() -> None:
    included = KeyNode("url_included", "shop.test/search", "q", "red lamp")
    assert included.met("shop.test/search?sort=price&q=Red+lamp", Effect())
    assert not included.met("shop.test/search?q=red+lamps", Effect())
    exact = KeyNode("url_exactly", "shop.test/item?a=1&b=2")
    assert exact.met("shop.test/item?b=2&a=1", Effect()) and not exact.met(
        "shop.test/item?a=1", Effect()
    )
    typed = KeyNode("element_value", "", "city", "ashford")
    assert typed.met("map.test/", Effect("", "City", "Ashford")) and not typed.met(
        "map.test/", Effect()
    )
    state = State({("title", "shop.test/search?q=red lamp&sort=price", "x"), ("at", "map.test/")})
    assert included.met_by(state) and not exact.met_by(state) and not typed.met_by(state)
    value = ("value", "map.test/", "textbox", "city", "ashford")
    assert typed.met_by(State({value}))


@pytest.mark.parametrize(
    "task",
    [
        "generated/test/20/shop-detail/99",
        "generated/test/0/shop-detail/0",
        "generated/test/020/shop-detail/0",
        "generated/test/20/no-such/0",
        "test/20/shop-detail/0",
        "",
    ],
)
def test_unknown_tasks(task: str) -> None:
    with pytest.raises(TaskNotFound, match="generated/test/20/shop-detail/0"):
        load(task)
