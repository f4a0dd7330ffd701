"""What the facts are good for: scores, allowed clicks, limits, words."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from comap.envs.conformance.transcripts import load
from comap.envs.webshop.canonicalizer import WebShopCanonicalizer
from comap.envs.webshop.env import WebShopEnv
from comap.envs.webshop.facts import (
    CATALOGUE,
    STRUCTURAL,
    admissible_of,
    catalogue,
    structural,
    unranked,
)
from comap.envs.webshop.matching import met_price
from comap.envs.webshop.wording import narrate, narrate_scene
from comap.facts import State
from comap.metrics import delta_f1, delta_f1_report
from comap.trajectory import Turn

KIT = load(f"{Path(__file__).with_name('pages_kit.py')}:KIT")
ITEM, LIST, OPEN, START, TASK = KIT.ITEM, KIT.LIST, KIT.OPEN, KIT.START, KIT.TASK
fold, random_action = KIT.fold, KIT.random_action


def test_the_two_groups_of_facts_are_scored_apart():
    assert not STRUCTURAL & CATALOGUE
    canon, before = WebShopCanonicalizer(), fold()
    actual = canon.update(before, "search[rug]", LIST)
    guess = canon.update(before, "search[rug]", LIST.replace("B0AAAAAAA1", "B0AAAAAAA9"))
    assert structural(actual).facts | catalogue(actual).facts == actual.facts
    parts = {
        part: delta_f1_report([(part(before), part(guess), part(actual))]).mean
        for part in (structural, catalogue)
    }
    assert parts[structural] == 1.0 and 0 < parts[catalogue] < 1
    swapped = actual.to_text().replace("result(1", "result(3").replace("result(2", "result(1")
    turned = State.from_text(swapped.replace("result(3", "result(2"))
    assert delta_f1(before, turned, actual) < 1.0
    assert delta_f1(unranked(before), unranked(turned), unranked(actual)) == 1.0


def test_allowed_clicks_follow_from_the_facts():
    assert admissible_of(State()) is None
    assert admissible_of(fold()) == ()
    assert admissible_of(fold(OPEN[0])) == (
        "click[b0aaaaaaa1]",
        "click[b0aaaaaaa2]",
        "click[back to search]",
        "click[next >]",
    )
    item = set(admissible_of(fold(*OPEN)) or ())
    assert {"click[red]", "click[m]", "click[buy now]", "click[< prev]"} < item
    assert "click[next >]" not in item


def test_strict_clicks_of_facts_are_those_of_the_shop():
    env, draws, compared = WebShopEnv(source="generated"), random.Random(5), 0
    for _ in range(8):
        _, info = env.reset(options={"task": draws.choice(env.tasks.ids)})
        for _ in range(12):
            _, _, over, _, info = env.step(random_action(env, draws))
            if env.session.page != "search":
                assert sorted(info["admissible_actions"]) == list(
                    admissible_of(info["facts"]) or ()
                )
                compared += 1
            if over:
                break
    assert compared > 40


@pytest.mark.parametrize(
    ("low", "high", "fits"),
    [("2500", "3000", "yes"), ("2500", "3001", "maybe"), ("3001", "4000", "no")],
)
def test_the_price_limit(low, high, fits):
    assert met_price(TASK, low, high) == {("price_ok", fits)}
    assert met_price("find me a rug", low, high) == {("price_ok", "yes")}


def test_the_belief_in_words():
    turns = [Turn(None, START), Turn("search[soft rug]", LIST), Turn("look", LIST)]
    assert narrate(TASK, turns, fold(OPEN[0])) == (
        f"goal: {TASK}\npage: results 1 of 2 for soft rug\n"
        "listed: b0aaaaaaa1 soft rug $19.50; b0aaaaaaa2 rug, large $25.00 to $35.25\n"
        "last: search[soft rug]; look (nothing changed)"
    )
    state = fold(*OPEN, ("click[red]", ITEM.format("")))
    assert narrate(TASK, (), state).splitlines()[1:] == [
        "page: item b0aaaaaaa2",
        "product: rug, large $25.00 to $35.25",
        "fits: price maybe",
        "chosen: color red",
        "options: color: red, blue; size: m, s",
    ]
    assert "keywords: soft rug" in narrate(TASK, (), fold())
    assert narrate_scene(TASK, (), fold(OPEN[0]), "click[B0AAAAAAA1]").splitlines()[2:] == [
        "listed: b0aaaaaaa1 soft rug $19.50"
    ]
