"""Beliefs agree with recorded sessions and with the shop itself, in both modes."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from comap.envs import Canonicalizer, Describer
from comap.envs.conformance.transcripts import load
from comap.envs.webshop.canonicalizer import MODES, WebShopCanonicalizer
from comap.envs.webshop.cleaning import clean
from comap.envs.webshop.env import WebShopEnv
from comap.envs.webshop.facts import (
    PAGES,
    SUB_PAGES,
    goal_reached,
    score_of,
)
from comap.envs.webshop.offers import known_groups
from comap.facts import apply, diff

KIT = load(f"{Path(__file__).with_name('pages_kit.py')}:KIT")
LIST, START, TASK = KIT.LIST, KIT.START, KIT.TASK
random_action, told, well_formed = KIT.random_action, KIT.told, KIT.well_formed
DEV = Path(__file__).parents[3].parent / "shared" / "data" / "webshop" / "dev"
NAMES = {"index": "search", "item_page": "item"}


def sessions(mode):
    path = DEV / f"transcripts_{mode}.jsonl"
    if not path.is_file():
        pytest.skip(f"no recording at {path}")
    with path.open(encoding="utf-8", newline="\n") as lines:
        yield from map(json.loads, lines)


def wrong_against_record(facts, page):
    """Return how a belief differs from what the original environment held."""
    name = NAMES.get(page["page"], page["page"])
    pages = SUB_PAGES if name == "item_sub_page" else (name,)
    asin = [(page["asin"].lower(),)] if page["asin"] else []
    keywords_ = page["keywords"]
    checks = {
        "page": told(facts, "page") in [[(each,)] for each in pages],
        "query": told(facts, "query") == ([] if keywords_ is None else [(clean(keywords_),)]),
        "page_no": told(facts, "page_no")
        == ([] if page["page_no"] is None else [(str(page["page_no"]),)]),
        "product": told(facts, "product") == asin,
        "selected": dict(told(facts, "selected"))
        == {clean(group): clean(value) for group, value in page["selected_options"].items()},
        "opened": [row[0].upper() for row in told(facts, "opened")] == page["opened"],
        "done": (("done",) in facts.facts) == (name == "done"),
    }
    return [check for check, right in checks.items() if not right]


@pytest.mark.parametrize("mode", MODES)
def test_beliefs_agree_with_the_recorded_sessions(mode):
    canon, steps, pages = WebShopCanonicalizer(mode, legacy=True), 0, Counter()
    for session in sessions(mode):
        state = canon.initial(session["goal"]["instruction_text"], session["reset"]["observation"])
        assert state.parsed and told(state, "page") == [("search",)]
        for step in session["steps"]:
            after = canon.update(state, step["action"], step["observation"])
            context = (session["id"], step["action"], diff(state, after).to_text())
            assert after.parsed, context
            assert not wrong_against_record(after, step["state"]), context
            well_formed(after)
            fresh = WebShopCanonicalizer(mode, legacy=True)
            assert fresh.update(state, step["action"], step["observation"]) == after, context
            if step["state"]["page"] == "done":
                assert score_of(after) == pytest.approx(
                    float(
                        step["observation"]
                        .split("max 1.0)")[1]
                        .split("Reward")[0]
                        .strip(" []SEP\n")
                    )
                )
            pages[told(after, "page")[0][0]] += 1
            steps, state = steps + 1, after
    assert steps == 769
    assert set(pages) == set(PAGES)


def test_that_comparison_can_fail():
    canon = WebShopCanonicalizer()
    state = canon.update(canon.initial(TASK, START), "search[rug]", LIST)
    page = {
        "page": "results",
        "keywords": "rug",
        "page_no": 1,
        "asin": None,
        "selected_options": {},
        "opened": [],
    }
    assert wrong_against_record(state, page) == []
    for name, value in (
        ("page", "index"),
        ("keywords", "other"),
        ("page_no", 2),
        ("asin", "B0"),
        ("selected_options", {"a": "b"}),
        ("opened", ["B0"]),
    ):
        assert wrong_against_record(state, page | {name: value}), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("out", MODES)
def test_described_facts_are_read_back_on_recorded_sessions(mode, out):
    canon = WebShopCanonicalizer(out, legacy=True)
    assert isinstance(canon, Canonicalizer) and isinstance(canon, Describer)
    for session in list(sessions(mode))[::3]:
        state = canon.initial(session["goal"]["instruction_text"], session["reset"]["observation"])
        for step in session["steps"]:
            after = canon.update(state, step["action"], step["observation"])
            page = canon.describe(state, step["action"], after)
            assert canon.update(state, step["action"], page) == after, step["action"]
            state = after


def wrong_against_shop(env, state):
    """Return how a belief differs from where the shopper really stands."""
    here, catalog = env.session, env.catalog
    asin = [] if here.row is None else [(catalog.asin(here.row).lower(),)]
    checks = {
        "page": told(state, "page") == [(here.page,)],
        "query": told(state, "query") == ([] if here.query is None else [(clean(here.query),)]),
        "page_no": told(state, "page_no") == ([(str(here.page_no),)] if here.page_no else []),
        "total": told(state, "total") == ([(str(len(here.rows)),)] if here.query else []),
        "product": told(state, "product") == asin,
        "selected": dict(told(state, "selected"))
        == {clean(group): clean(value) for group, value in here.options.items()},
        "opened": told(state, "opened") == sorted((catalog.asin(r).lower(),) for r in here.opened),
        "result": here.query is None
        or sorted(row[1] for row in told(state, "result"))
        == sorted(catalog.asin(row).lower() for row in here.shown()),
        "reward": here.reward is None or score_of(state) == here.reward,
    }
    if here.row is not None:
        product = catalog.product(here.row)
        pairs = {(clean(g), clean(v)) for g, values in product.options for v in values}
        checks["option"] = told(state, "option") == sorted(pairs)
        name = catalog.asin(here.row).lower()
        checks["title"] = (name, clean(product.title)) in told(state, "title")
    return [check for check, right in checks.items() if not right]


def wander(env, seed, episodes, steps):
    """Play at random and check the belief after every step; count what was seen."""
    count, draws = Counter(), random.Random(seed)
    for _ in range(episodes):
        observation, info = env.reset(options={"task": draws.choice(env.tasks.ids)})
        assert not wrong_against_shop(env, info["facts"])
        for _ in range(steps):
            before, action = info["facts"], random_action(env, draws)
            observation, _, terminated, _, info = env.step(action)
            after, context = info["facts"], (env.settings(), action, observation[-400:])
            assert after.parsed, context
            wrong = wrong_against_shop(env, after)
            assert not wrong, (wrong, *context)
            assert not info["invalid_action"] or after == before, context
            assert apply(before, diff(before, after)).facts == after.facts, context
            count.update(
                [env.session.page, "steps", *(["refused"] if info["invalid_action"] else [])]
            )
            if terminated:
                assert goal_reached(after) is info["success"]
                break
    return count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("legacy", [False, True])
def test_beliefs_agree_with_the_generated_shop(mode, legacy):
    env = WebShopEnv(source="generated", observation_mode=mode, legacy=legacy, show_attrs=True)
    count = wander(env, 7, episodes=30, steps=30)
    assert count["steps"] > 400 and min(count[page] for page in PAGES) > 0, count
    assert legacy or count["refused"] > 20


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("legacy", [False, True])
def test_beliefs_agree_with_the_official_shop(official, mode, legacy):
    env = WebShopEnv(data_dir=official, split="legacy-test", observation_mode=mode, legacy=legacy)
    count = wander(env, 8, episodes=40, steps=30)
    assert count["steps"] > 500 and count["item"] > 100, count


def test_all_official_groups_are_known(catalog):
    names = {name for row in range(len(catalog)) for name, _ in catalog.product(row).options}
    assert {clean(name) for name in names} <= known_groups()
