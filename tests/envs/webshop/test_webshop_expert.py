"""The experts: one knows the goal's product, one only what it sees."""

from __future__ import annotations

import random

import pytest

from comap.envs.webshop.browse import browse
from comap.envs.webshop.env import WebShopEnv
from comap.envs.webshop.expert import Errand, ShopExpert, Standing
from comap.envs.webshop.facts import SUB_PAGES
from comap.envs.webshop.reward import reward_of
from comap.facts import State

FAR = [f"A{number}" for number in range(50)]


def expert_of(env, legacy=False):
    """Return an expert for the goal of an environment."""
    goal, catalog = env.wanted, env.catalog
    product = catalog.product(catalog.row(goal.asin))
    errand = Errand(goal.asin, goal.text, goal.options, dict(product.options), product.title)
    return ShopExpert(errand, catalog.search, legacy)


def standing_of(env):
    here, catalog = env.session, env.catalog
    asin = "" if here.row is None else catalog.asin(here.row)
    results = [catalog.asin(row) for row in here.rows]
    return Standing(here.page, results, here.page_no, asin, here.options)


def finish(env, expert, limit=25):
    """Follow the expert to the end; return the reward and the number of steps."""
    for step in range(limit):
        action = expert.action(standing_of(env))
        if action is None:
            return env.session.reward, step
        _, _, _, _, info = env.step(action)
        assert not info["invalid_action"], (action, env.wanted)
    raise AssertionError(f"no end after {limit} steps: {env.wanted}")


def best_reward(env):
    """Return what buying exactly what was asked for is worth."""
    goal, catalog = env.wanted, env.catalog
    product = catalog.product(catalog.row(goal.asin))
    chosen = {group: value for group, value in goal.options if group}
    return reward_of(product, chosen, goal, product)[0]


@pytest.mark.parametrize("goals", ["synthetic", "human"])
@pytest.mark.parametrize("legacy", [False, True])
def test_all_generated_goals_are_met(goals, legacy):
    env = WebShopEnv(source="generated", goals=goals, legacy=legacy)
    ids = env.tasks.ids
    for task in ids[:: max(1, len(ids) // 120)]:
        env.reset(options={"task": task})
        reward, steps = finish(env, expert_of(env, legacy))
        assert reward == 1.0 and steps <= 7, task


@pytest.mark.parametrize("legacy", [False, True])
def test_official_goals_are_met_where_the_matching_of_options_allows(official, legacy):
    """WebShop's lenient matching refuses some values that are exactly those asked for."""
    env = WebShopEnv(data_dir=official, split="legacy-test", legacy=legacy)
    full = 0
    ids = env.tasks.ids[::3]
    for task in ids:
        env.reset(options={"task": task})
        expert = expert_of(env, legacy)
        reward, steps = finish(env, expert)
        assert expert.found and steps <= 8
        assert reward == best_reward(env), task
        full += reward == 1.0
    assert full >= 0.93 * len(ids)


def test_official_goals_are_met_where_options_are_compared_exactly(official):
    env = WebShopEnv(data_dir=official, split="legacy-test", strict_options=True)
    for task in env.tasks.ids[::3]:
        env.reset(options={"task": task})
        assert finish(env, expert_of(env))[0] == 1.0, task


def test_official_human_goals_are_met(official):
    env = WebShopEnv(data_dir=official, goals="human", split="legacy-test")
    for task in env.tasks.ids:
        env.reset(options={"task": task})
        assert finish(env, expert_of(env))[0] == 1.0, task


def stray(env, draws):
    """Return a random click that does not buy, or a search for something else."""
    clicks = [c for c in env.available_actions()["clickables"] if c not in ("buy now", "search")]
    if env.session.page == "search" or not clicks:
        return f"search[{draws.choice(('rug', 'red shoes', 'zzz', env.goal[:30]))}]"
    return f"click[{draws.choice(clicks)}]"


@pytest.mark.parametrize("legacy", [False, True])
def test_it_finds_back_from_anywhere(legacy):
    env = WebShopEnv(source="generated", legacy=legacy, show_attrs=True)
    draws, seen = random.Random(4), set()
    for _ in range(60):
        env.reset(options={"task": draws.choice(env.tasks.ids)})
        expert = expert_of(env, legacy)
        for _ in range(draws.randrange(1, 14)):
            env.step(stray(env, draws))
        seen.add(env.session.page)
        assert finish(env, expert)[0] == 1.0
    assert {"search", "results", "item"} < seen and seen & set(SUB_PAGES)


def test_the_environments_own_expert_is_this_one():
    env = WebShopEnv(source="generated")
    env.reset(seed=3)
    while (action := env.expert_action()) is not None:
        _, _, _, _, info = env.step(action)
    assert info["success"] and info["score"] == 1.0


def made(options, offers, legacy=False, search=lambda query: ["B0"], text="find me a rug"):
    return ShopExpert(Errand("B0", text, options, offers, "The Title"), search, legacy)


def clicks(expert, offers, legacy=False):
    """Return what the expert clicks on an item page until it buys."""
    selected, done = {}, []
    while True:
        action = expert.action(Standing("item", ["B0"], 1, "B0", dict(selected)))
        done.append(action)
        if action == "click[buy now]":
            return done
        name = action[6:-1]
        group, _, value = name.partition(": ") if ": " in name else ("", "", name)
        group = group or [g for g, values in offers.items() if value in values][-1]
        selected[group] = value
        assert len(done) < 9


SHARED_VALUE = {"a": ("x", "y"), "b": ("x", "z")}


@pytest.mark.parametrize(
    ("options", "strict", "loose"),
    [
        ((("a", "y"), ("b", "z")), ["y", "z"], ["y", "z"]),
        ((("a", "x"),), ["a: x"], ["x"]),
        ((("a", "x"), ("b", "x")), ["a: x", "x"], ["x"]),
        ((("a", "x"), ("b", "z")), ["a: x", "z"], ["z"]),
        ((("c", "x"),), [], []),
        ((("", "Y"),), ["y"], ["y"]),
        ((("", "nothing like it"),), [], []),
    ],
)
def test_values_that_groups_share(options, strict, loose):
    for legacy, names in ((False, strict), (True, loose)):
        found = clicks(made(options, SHARED_VALUE, legacy), SHARED_VALUE)
        assert found == [*(f"click[{name}]" for name in names), "click[buy now]"], legacy


def test_values_that_cannot_be_clicked_by_upstreams_rules():
    offers = {"size": ("a [b]", "features", "m")}
    for value, name in (("a [b]", "a [b]"), ("features", "size: features")):
        options = (("size", value),)
        assert clicks(made(options, offers), offers) == [f"click[{name}]", "click[buy now]"]
        assert clicks(made(options, offers, legacy=True), offers) == ["click[buy now]"]


def test_it_takes_the_query_that_shows_the_product_first():
    text = "find me a soft rug with color: red, and price lower than 30.00 dollars"
    found = {"soft rug": FAR[:12] + ["B0"], "soft rug color red": ["B0"]}
    expert = made((), {}, search=lambda query: found.get(query, []), text=text)
    assert expert.action(Standing("search")) == "search[soft rug color red]" and expert.found
    found = {"the title": ["B0"]}
    assert made((), {}, search=lambda query: found.get(query, []), text=text).query == "the title"


def test_it_turns_pages_or_searches_anew_whatever_is_shorter():
    expert = made((), {}, search=lambda query: ["B0"])
    results = [*FAR[:35], "B0"]
    for page, no, action in (
        ("results", 4, "click[b0]"),
        ("results", 3, "click[next >]"),
        ("results", 5, "click[< prev]"),
        ("results", 1, "click[back to search]"),
        ("item", 4, "click[< prev]"),
        ("item", 1, "click[back to search]"),
        ("features", 4, "click[< prev]"),
    ):
        standing = Standing(page, results, no, "" if page == "results" else "A1")
        assert expert.action(standing) == action, (page, no)
    assert expert.action(Standing("results", FAR)) == "click[back to search]"
    assert expert.action(Standing("reviews", results, 4, "B0")) == "click[< prev]"
    assert expert.action(Standing("done")) is None


def test_without_the_product_it_buys_something():
    expert = made((("a", "x"),), {"a": ("x",)}, search=lambda query: ["C1", "C2"])
    assert not expert.found
    assert expert.action(Standing("results", ["C1", "C2"])) == "click[c1]"
    assert expert.action(Standing("item", ["C1", "C2"], 1, "C1")) == "click[buy now]"
    nothing = made((), {}, search=lambda query: [])
    assert nothing.action(Standing("search")) == "search[rug]" and not nothing.found
    assert nothing.action(Standing("results")) == "click[back to search]"


@pytest.mark.parametrize("text", ["", "[]", "a [b] c]", "the of and", "\n", "  "])
def test_queries_can_always_be_sent(text):
    expert = ShopExpert(Errand("B0", text, title="[T]"), lambda query: [])
    query = expert.query
    assert query and "[" not in query and "]" not in query and "\n" not in query


@pytest.mark.parametrize(("goals", "least"), [("synthetic", 0.75), ("human", 0.7)])
def test_a_shopper_who_only_looks_does_well(goals, least):
    env = WebShopEnv(source="generated", goals=goals)
    ids = env.tasks.ids
    scores = []
    for task in ids[:: max(1, len(ids) // 40)]:
        _, info = env.reset(options={"task": task})
        for _ in range(40):
            action = browse(info["facts"])
            if action is None:
                break
            _, _, _, _, info = env.step(action)
            assert not info["invalid_action"], action
        scores.append(info["score"])
    assert sum(scores) / len(scores) > least


def test_a_shopper_without_a_page_does_nothing():
    assert browse(State()) is None
    assert browse(State(frozenset({("page", "done")}))) is None
    assert browse(State(frozenset({("page", "reviews")}))) == "click[< prev]"
    assert browse(State(frozenset({("page", "results")}))) == "click[back to search]"
    assert browse(State(frozenset({("page", "search")}))) == "search[anything]"
