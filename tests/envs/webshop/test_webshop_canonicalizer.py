"""Beliefs: what single pages say, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.envs import canonical_action
from comap.envs.conformance.transcripts import load
from comap.envs.webshop.canonicalizer import WebShopCanonicalizer
from comap.envs.webshop.facts import (
    goal_reached,
    score_of,
)
from comap.errors import OptionError
from comap.facts import diff

KIT = load(f"{Path(__file__).with_name('pages_kit.py')}:KIT")
DONE, HEAD, ITEM, LIST, OPEN, RICH_LIST, RICH_START, START = (
    KIT.DONE,
    KIT.HEAD,
    KIT.ITEM,
    KIT.LIST,
    KIT.OPEN,
    KIT.RICH_LIST,
    KIT.RICH_START,
    KIT.START,
)
fold, rich_item, told = KIT.fold, KIT.rich_item, KIT.told


def test_facts_of_a_result_list():
    state = fold(OPEN[0])
    assert state.to_text().splitlines() == [
        "instruction(find me a soft rug with color: red\\, and price lower than 30.00 dollars)",
        "page(results)",
        "page_no(1)",
        "price(b0aaaaaaa1, 1950, 1950)",
        "price(b0aaaaaaa2, 2500, 3525)",
        "query(soft rug)",
        "result(1, b0aaaaaaa1)",
        "result(2, b0aaaaaaa2)",
        "title(b0aaaaaaa1, soft rug)",
        "title(b0aaaaaaa2, rug\\, large)",
        "total(12)",
    ]


def test_facts_of_an_item_page_and_what_stays():
    before, state = fold(OPEN[0]), fold(*OPEN)
    change = diff(before, state)
    assert change.removed == {("page", "results")}
    assert change.added == {
        ("page", "item"),
        ("product", "b0aaaaaaa2"),
        ("opened", "b0aaaaaaa2"),
        ("option", "color", "red"),
        ("option", "color", "blue"),
        ("option", "size", "s"),
        ("option", "size", "m"),
        ("option_available", "color", "red"),
        ("price_ok", "maybe"),
    }
    back = fold(*OPEN, ("click[< prev]", LIST))
    assert diff(before, back).to_text() == "+ opened(b0aaaaaaa2)"
    assert fold(*OPEN, ("click[back to search]", START)) == fold()


def test_choosing_changes_one_or_two_facts():
    item = ITEM.format("")
    state = fold(*OPEN, ("click[red]", item))
    assert diff(fold(*OPEN), state).to_text() == "+ selected(color, red)"
    other = fold(*OPEN, ("click[red]", item), ("click[BLUE]", item))
    assert diff(state, other).to_text() == "+ selected(color, blue)\n- selected(color, red)"
    for action in (
        "click[ red ]",
        "click(red)",
        "red",
        "click[green]",
        "search[red]",
        "Click[red]",
    ):
        assert fold(*OPEN, (action, item)) == fold(*OPEN), action


def test_another_product_cannot_be_opened_from_an_item_page():
    item = ITEM.format("")
    assert ("result", "1", "b0aaaaaaa1") in fold(*OPEN).facts
    assert fold(*OPEN, ("click[b0aaaaaaa1]", item)) == fold(*OPEN)
    other = item.replace("Rug, Large", "Soft  Rug").replace("$25.0 to $35.25", "$19.5")
    moved = fold(*OPEN, ("click[b0aaaaaaa1]", other))
    assert told(moved, "product") == [("b0aaaaaaa1",)], "what is shown decides"


def test_strict_pages_show_what_is_chosen():
    shown = ITEM.format("Selected color: red [SEP] Selected size: m [SEP] ")
    for action in ("click[m]", "click[ M ]", "look"):
        state = fold(*OPEN, (action, shown))
        assert told(state, "selected") == [("color", "red"), ("size", "m")], action
        assert told(state, "title")[1] == ("b0aaaaaaa2", "rug, large")
    only = ITEM.format("Selected size: s [SEP] ")
    assert told(fold(*OPEN, ("look", shown), ("look", only)), "selected") == [("size", "s")]


def test_a_group_told_by_a_selected_part_is_known():
    page = ITEM.replace("size [SEP]", "hem: length [SEP]")
    unknown = fold(OPEN[0], ("click[b0aaaaaaa2]", page.format("")))
    assert ("option", "color", "hem: length") in unknown.facts
    known = fold(OPEN[0], ("click[b0aaaaaaa2]", page.format("Selected hem: length: m [SEP] ")))
    assert {("option", "hem: length", "m"), ("selected", "hem: length", "m")} <= known.facts


RICH = (("search[rug]", RICH_LIST), ("click[b0a]", rich_item()))


def rich(*turns):
    return fold(*RICH, *turns, mode="text_rich", legacy=True, start=RICH_START)


def test_rich_pages_tell_groups_of_any_name():
    state = rich()
    assert ("option", "fancy cut", "s") in state.facts and ("result", "11", "b0a") in state.facts
    assert told(state, "opened") == [("b0a",)]
    page = rich_item(("tint", "red"), news="You have clicked red.\n")
    assert told(rich(("click[red]", page)), "selected") == [("tint", "red")]


def test_rich_pages_do_not_mark_all_that_is_chosen():
    chosen = rich(("click[größe]", rich_item()))
    assert told(chosen, "selected") == [("tint", "größe")]
    replaced = rich(("click[größe]", rich_item()), ("click[red]", rich_item(("tint", "red"))))
    assert told(replaced, "selected") == [("tint", "red")]
    both = rich_item(("tint", "m"), ("fancy cut", "m"), news="You have clicked m.\n")
    shared = told(rich(("click[m]", both)), "selected")
    assert ("fancy cut", "m") in shared


def test_sub_pages_are_known_from_the_click():
    page = f"{HEAD} [SEP] < Prev [SEP] Very SOFT-rug  like [SEP]  [SEP] Washable"
    state = fold(*OPEN, ("click[features]", page))
    assert told(state, "page") == [("features",)]
    assert told(state, "line") == [
        ("features", "1", "very soft-rug like"),
        ("features", "3", "washable"),
    ]
    assert ("attr_match", "soft rug") in state.facts
    assert told(fold(*OPEN, ("click[features]", page), ("look", page)), "page") == [("features",)]
    back = fold(*OPEN, ("click[features]", page), ("click[< prev]", ITEM.format("")))
    assert told(back, "line") == told(state, "line") and ("attr_match", "soft rug") in back.facts
    again = fold(*OPEN, ("click[features]", page), ("click[description]", page))
    assert told(again, "page") == [("features",)]
    assert not fold(OPEN[0], ("click[features]", page)).parsed
    empty = fold(*OPEN, ("click[reviews]", f"{HEAD} [SEP] < Prev"))
    assert told(empty, "page") == [("reviews",)] and told(empty, "line") == []


@pytest.mark.parametrize(
    ("written", "score"),
    [
        ("1.0", 1.0),
        ("0.25", 0.25),
        ("1", 1.0),
        ("2.0", None),
        ("-1", None),
        ("nan", None),
        ("", None),
    ],
)
def test_a_purchase_tells_its_reward(written, score):
    state = fold(*OPEN, ("click[buy now]", DONE.format(written)))
    assert ("done",) in state.facts and told(state, "selected") == [("color", "red")]
    assert score_of(state) == score
    assert goal_reached(state) is (None if score is None else score == 1.0)
    assert goal_reached(fold(*OPEN)) is False


def test_a_search_that_is_refused_keeps_the_query():
    refused = ("search[other]", LIST)
    assert fold(OPEN[0], refused) == fold(OPEN[0])
    assert told(fold(OPEN[0], refused, legacy=True), "query") == [("other",)]
    other = ("search[other]", LIST.replace("12", "13"))
    assert told(fold(OPEN[0], other), "query") == [("other",)]


def test_a_list_that_was_cut_tells_what_it_shows():
    whole, cut = (
        fold(OPEN[0]),
        fold(("search[Soft  Rug]", LIST[: LIST.index(" [SEP] $25")])),
    )
    assert cut.parsed and cut.facts < whole.facts
    assert told(cut, "result") == [("1", "b0aaaaaaa1")]


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("Search[ Red  shoes ]", "search[red shoes]"),
        ("search[red shoes].", "search[red shoes]"),
        (" CLICK [ Buy Now ] ", "click[buy now]"),
        ("click[< Prev]", "click[< prev]"),
        ("click[a [b] c]", "click[a [b] c]"),
        ("search[b a]", "search[b a]"),
        ("Buy  it.", "buy it"),
        ("think[what now]", "think[what now]"),
    ],
)
def test_actions_have_one_form(written, canonical):
    assert WebShopCanonicalizer().action(written) == canonical
    assert canonical_action("comap/WebShop-v0", written) == canonical


def test_only_known_modes_are_taken():
    with pytest.raises(OptionError, match="text_rich"):
        WebShopCanonicalizer("html")  # type: ignore[arg-type]
