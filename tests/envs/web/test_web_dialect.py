"""The dialect ``webevolver``: upstream's text by its rules, written here by hand, and its actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from comap.envs.conformance import EnvConformance
from comap.envs.panel import evenly
from comap.envs.web.env import WebEnv
from comap.envs.web.lines import REFUSED, read_page, write_tree
from comap.envs.web.pages import (
    Node,
    Outline,
    Page,
    button,
    checkbox,
    form,
    heading,
    image,
    link,
    nav,
    radios,
    rows,
    select,
    text,
    textbox,
)

BODY = (
    nav("Shop", link("Home", "/"), link("Cart ", "/c"), link("", "/unnamed")),
    heading("One"),
    heading("T & 'q'"),
    text("it's"),
    text("some  text"),
    image("pic"),
    form(
        "/s",
        textbox("B", "b", "x"),
        textbox("A", "a"),
        textbox("S", "s", "lamp", "searchbox"),
        checkbox("On", "on", checked=True),
        radios("One", "one", ("1", "2"), "2"),
        select("List", "list", ("p", "q")),
        textbox("Long", "long", "ab", "textarea"),
        Node("textbox", "Dead", field="dead", value="ea", disabled=True),
        textbox("", "u", "d"),
        button("Go"),
    ),
    rows([[link("Lamp", "/i"), text("Price: 1")]]),
)
# Roles and properties as Chromium 156 says them of this page's HTML. No line: the unnamed link and
# field, the heading and the text that are part of the title, the options, and "ea", part of "Dead".
GOLDEN = """\
Tab 0 (current): First

[1] RootWebArea 'One - it's' focused: true
\t[2] navigation 'Shop'
\t\t[3] link 'Home'
\t\t[4] link 'Cart'
\t[5] heading 'T & 'q''
\t[6] StaticText 'some text'
\t[7] image 'pic'
\t[8] textbox 'B' required: false
\t\t[9] StaticText 'x'
\t[10] textbox 'A' focused: true required: false
\t[11] searchbox 'S'
\t\t[12] StaticText 'lamp'
\t[13] checkbox 'On' checked: true
\t[14] radiogroup 'One' required: false
\t\t[15] radio '1' checked: false
\t\t[16] radio '2' checked: true
\t[17] combobox 'List' hasPopup: menu expanded: false
\t[18] textbox 'Long' required: false
\t\t[19] StaticText 'ab'
\t[20] textbox 'Dead' disabled: true required: false
\t[21] StaticText 'd'
\t[22] button 'Go'
\t[23] link 'Lamp'
\t[24] StaticText 'Price: 1'"""


def page(title: str, *body: Node) -> str:
    return Outline(Page(title, body)).write("shop.test/", {})


def test_the_text_of_a_page() -> None:
    outline = page("One - it's", *BODY)
    names = [line.name for line in read_page(outline).lines]  # type: ignore[union-attr]
    tree = write_tree(outline, "First", 1 + names.index("A"))
    assert tree.text == GOLDEN
    assert [names[number - 1] for number in tree.numbers][7:12] == ["B", "B", "A", "S", "S"]


def test_a_page_ends_after_300_lines() -> None:
    tree = write_tree(page("Many", *(nav(f"n{i}", link(f"l{i}", "/")) for i in range(400))), "Many")
    lines = tree.text.split("\n")
    assert len(tree.numbers) == 300 and lines[2].startswith("[1] RootWebArea")
    assert lines[-1] == "\t[300] navigation 'n149'"


def test_names_are_parts_of_the_parent_that_is_printed() -> None:
    # The unnamed navigation has no line, so the title is the parent; of a link it is the link.
    inner = (heading("Lamps"), Node("link", "Red lamps", (text("lamps"), text("Lamps"))))
    tree_lines = write_tree(page("Lamps", nav("", *inner)), "").text.split("\n")[3:]
    assert tree_lines == ["\t[2] link 'Red lamps'", "\t\t[3] StaticText 'Lamps'"]


def test_facts_are_those_of_the_other_dialect_without_what_cannot_be_seen() -> None:
    env, comap_env = make(), make(dialect="comap")
    for task in evenly(env.tasks.ids, 20):
        env.reset(options={"task": task}), comap_env.reset(options={"task": task})
        for action in comap_env.wanted.plan[:-1][:3]:
            env._engine.act(move(action)), comap_env._engine.act(move(action))
        ours = env.canonicalizer.initial("", env._show(False)).facts
        full = comap_env.canonicalizer.initial("", comap_env._engine.text()).facts
        bare = {(fact[0], "", *fact[2:]) for fact in full if fact[0] not in ("at", "query")}
        assert ours <= bare
        assert {fact[0] for fact in bare - ours} <= {"option", "selected", "shows"}


def move(action: str) -> Any:
    from comap.envs.web.actions import read_action

    return read_action(action)


def make(**options: Any) -> Any:
    return gymnasium.make(
        "comap/Web-v0", **{"split": "test", "dialect": "webevolver"} | options
    ).unwrapped


def number_of(observation: str, line: str) -> str:
    """Return the number of the line with this text."""
    matching_lines = [
        part.strip() for part in observation.split("\n") if part.strip().endswith(f"] {line}")
    ]
    return matching_lines[0].partition("]")[0].removeprefix("[")


def test_actions_as_upstream() -> None:
    env = make()
    first, _ = env.reset(
        options={"task": next(task for task in env.tasks if "/shop-order/" in task)}
    )
    tab = first.split("\n")[0]
    assert tab == "Tab 0 (current): Welcome to the shop - Shop"
    number = number_of(first, "searchbox 'Search the shop'")
    results, *_, info = env.step(f"type [{number}] [lamp] [0]")  # Enter, whatever was asked
    assert (
        "[1] RootWebArea 'Search - Shop' focused: true" in results and results.split("\n")[0] == tab
    )
    assert "StaticText 'lamp'" in results and "value:" not in results and not info["invalid_action"]
    # A list cannot be seen into, and has the focus after a click.
    number = number_of(results, "combobox 'Sort by' hasPopup: menu expanded: false")
    clicked, *_ = env.step(f"click [{number}]")
    assert f"[{number}] combobox 'Sort by' focused: true hasPopup: menu expanded: false" in clicked
    assert "option" not in clicked
    refused, *_, info = env.step("click [299]")
    assert refused == REFUSED and "no line [299]" in info["refused"] and info["invalid_action"]
    assert not len(info["delta"]) and info["facts"].parsed
    assert env.step("open the door")[0] == REFUSED
    assert env.step("wait")[0] == clicked and env.step("scroll [down]")[0] == clicked
    assert env.step("goback")[0] == first
    env.step(f"click [{number_of(first, 'link ' + repr('Cart'))}]")
    assert env.step("restart")[0] == first
    assert env.step("stop [N/A]")[2]


def test_the_focus() -> None:
    env = make()
    env.reset(options={"task": next(task for task in env.tasks if "/shop-cart/" in task)})
    for action in (*env.wanted.plan[:4], "click [link 'Checkout']"):
        page_text, *_, info = env.step(action)
        assert not info["invalid_action"] and page_text.count("focused: true") == 1
    page_text, *_ = env.step("click [checkbox 'Gift wrap']")
    assert "checkbox 'Gift wrap' focused: true checked: true" in page_text
    assert "radio 'express' focused: true checked: true" in env.step("click [radio 'express']")[0]
    assert env.step("click [StaticText 'nothing']")[0] == REFUSED
    unchanged_page = env.step("click [navigation 'Shop']")[0]
    assert (
        unchanged_page.count("focused: true") == 1
        and "radio 'express' checked: true" in unchanged_page
    )
    moment = env.snapshot()
    env.step("click [textbox 'Town']")
    assert "textbox 'Town' focused: true required: false" in env.history()[-1].observation
    assert env.restore(moment)[0] == unchanged_page and env.step("wait")[0] == unchanged_page


def test_refusals_and_the_page_are_different_observations() -> None:
    with pytest.raises(ValueError, match="did you mean 'webevolver'"):
        WebEnv(dialect="webvolver")
    assert make().fingerprint()["dialect"] == "webevolver"


class TestDialect(EnvConformance):
    env_id = "comap/Web-v0"
    kwargs = {"split": "test", "dialect": "webevolver"}  # noqa: RUF012 (as in the suite)
    steps = 10
    memory_episodes = 10
