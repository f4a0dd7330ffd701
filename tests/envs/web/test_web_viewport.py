"""`observation="viewport"`: what is in Chromium's window, by half of its area, and how it scrolls."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import pytest

from comap.envs.web.actions import line_of, read_action
from comap.envs.web.lines import read_page


def block(name: str, height: int, style: str = "") -> str:
    return f"<a href='/{name}' style='display: block; height: {height}px; {style}'>{name}</a>"


HEAD = "<style>body { margin: 0 } html { scroll-behavior: smooth }</style>"
# 768 of 3,000: B has 68 of its 136 pixels in the window, C 68 of 138.
HALF = HEAD + block("A", 700) + block("B", 136) + block("D", 2164)
LESS = HEAD + block("A", 700) + block("C", 138) + block("D", 2162)


@pytest.fixture
def window(pages: Any) -> Any:
    """An engine that shows what of any page is in the window."""
    pages.viewport = True
    return pages


def names(engine: Any) -> list[str]:
    page = read_page(engine.text())
    assert page is not None
    return [line.name for line in page.lines]


def test_a_node_stays_by_half_of_its_area(window: Any) -> None:
    window.show(HALF)
    assert window.text().split("\n")[1:] == [
        "[1] RootWebArea 'T'",
        "\t[2] link 'A'",
        "\t[3] link 'B'",
    ]
    window.show(LESS)
    assert names(window) == ["T", "A"]
    window.do("scroll [down]")
    assert names(window) == ["T", "C"]  # of D are 698 of 2,162 pixels in the window
    beside = block("Half", 20, "width: 400px; margin-left: 824px")
    beside += block("Less", 20, "width: 402px; margin-left: 824px; float: left")
    window.show(HEAD + beside + block("Gone", 20, "position: absolute; left: -999px"))
    assert names(window) == ["T", "Half"]


def test_scrolling_and_loading(window: Any) -> None:
    rows = "".join(block(f"L{number}", 64) for number in range(30))  # 12 fill a window
    window.show(HEAD + rows)
    first = names(window)
    assert first == ["T", *(f"L{number}" for number in range(12))]
    assert not window.do("scroll [down]").refused
    assert names(window) == ["T", *(f"L{number}" for number in range(12, 24))]
    window.do("scroll [down]")
    assert names(window) == ["T", *(f"L{number}" for number in range(18, 30))]
    window.do("scroll [down]", "scroll [up]")
    assert names(window) == ["T", *(f"L{number}" for number in range(6, 18))]
    assert window.text().split("\n")[2] == "\t[2] link 'L6'"
    for action, address in (
        ("click [2]", "shop.test/L6"),  # the number's link
        ("goto [shop.test/L6]", "shop.test/L6"),  # the same address anew
        ("goback", "shop.test/"),
        ("restart", "shop.test/"),
    ):
        window.do("scroll [down]") if action != "click [2]" else None
        window.do(action)
        assert (window.url, names(window)) == (address, first), action


def test_only_what_is_shown_can_be_acted_on(window: Any) -> None:
    far = "<p><button onclick='this.remove()'>Far</button><input aria-label=Word></p>"
    window.show(HEAD + block("Near", 768) + far + block("End", 768))
    assert names(window) == ["T", "Near"]
    for action in ("click [button 'Far']", "type [textbox 'Word'] [lamp] [0]", "click Far"):
        assert "there is no" in window.do(action).refused
    assert "there is no line [3], only 2" in window.do("click [3]").refused
    assert str(window.toward(read_action("click Far"))) == "scroll [down]"
    window.do("scroll [down]")
    assert names(window)[:3] == ["T", "Far", "Word"]
    assert str(window.toward(read_action("click Near"))) == "scroll [up]"
    assert not window.do("click [button 'Far']", "type [2] [lamp] [0]").refused
    assert "[2] textbox 'Word' value: 'lamp'" in window.text()


def test_what_has_no_box_of_its_own(window: Any) -> None:
    select_field = "<select aria-label=Size><option>small<option>large</select>"
    gift_box = "<label><input type=checkbox style='opacity: 0; width: 0; height: 0'>Gift</label>"
    bare = "<nav style='display: contents' aria-label=More><a href=/in>In</a></nav>"
    fixed = block("Fixed", 20, "position: fixed; top: 740px; left: 500px")
    mark = "<style>p::before { content: 'Sale' }</style><p>One"
    window.show(HEAD + select_field + gift_box + bare + fixed + mark + block("Tall", 2_000))
    page = read_page(window.text())
    assert page is not None
    assert [(line.depth, line.name) for line in page.lines] == [
        (0, "T"),
        (1, "Size"),
        (2, "small"),
        (2, "large"),
        (1, "Gift"),
        (1, "In"),  # its navigation is where the body is: too large
        (1, "Fixed"),
        (1, "Sale"),
        (1, "One"),
    ]
    assert not window.do("select [combobox 'Size'] [large]", "click [checkbox 'Gift']").refused
    assert "option 'large' selected: true" in window.text()
    assert "checkbox 'Gift' checked: true" in window.text()
    window.do("scroll [down]")
    assert names(window) == ["T", "Fixed"]


def test_children_of_what_is_too_large_take_its_place(window: Any) -> None:
    inner = "<nav aria-label=Inner><a href=/a>A</a></nav>"
    window.show(f"<main style='display: block; height: 5000px'><h1>One</h1>{inner}</main>")
    assert window.text().split("\n")[1:] == [
        "[1] RootWebArea 'T'",
        "\t[2] heading 'One'",
        "\t[3] navigation 'Inner'",
        "\t\t[4] link 'A'",
    ]


def test_moments_keep_where_the_window_is(window: Any) -> None:
    field = "<input aria-label=Word>"
    window.show(HEAD + field + block("A", 900) + field + block("B", 2_000))
    window.do("type [2] [first] [0]", "scroll [down]", "type [textbox 'Word'] [second] [0]")
    page_text, moment = window.text(), pickle.loads(pickle.dumps(window.save()))
    assert names(window) == ["T", "Word"] and "value: 'second'" in page_text and moment.top == 768
    window.do("scroll [up]")
    window.load(moment)
    assert window.text() == page_text and window.save() == moment
    window.do("scroll [up]")
    assert "value: 'first'" in window.text()


def make(**options: Any) -> Any:
    return gymnasium.make(
        "comap/Web-v0", **{"split": "test", "observation": "viewport"} | options
    ).unwrapped


@pytest.mark.usefixtures("browser")
def test_the_expert_scrolls_to_what_it_acts_on() -> None:
    env, scrolled = make(max_episode_steps=60), 0
    assert env.settings()["engine"] == "chromium"
    names = ("/forum-member/", "/mail-star/", "/shop-cheapest/")
    for task in (next(task for task in env.tasks if name in task) for name in names):
        observation, info = env.reset(options={"task": task})
        terminated, address = False, ""
        while not terminated:
            if info["url"] != address:  # lost on each new page
                address = info["url"]
                observation, *_, info = env.step("scroll [down]")
            action = env.expert_action()
            move = read_action(action)
            assert move is not None
            assert (
                move.verb in ("scroll", "goto", "goback", "stop")
                or (line_of(observation, move.target)[1])
            )
            scrolled += move.verb == "scroll"
            assert "scroll [down]" in info["admissible_actions"]
            observation, _, terminated, truncated, info = env.step(action)
            assert not (truncated or info["invalid_action"]), (task, action)
        assert info["success"], task
    assert scrolled
    env.close()


@pytest.mark.usefixtures("browser")
def test_facts_are_of_what_is_shown() -> None:
    env = make()
    env.reset(options={"task": next(task for task in env.tasks if "/shop-" in task)})
    page = ("shows", "shop.test/search?q=")
    before, *_, info = env.step("goto [shop.test/search?q=]")
    facts_above = {fact for fact in info["facts"].facts if fact[:2] == page}
    assert any("search the shop" in action for action in info["admissible_actions"])
    after, *_, info = env.step("scroll [down]")
    facts_below = {fact for fact in info["facts"].facts if fact[:2] == page}
    assert before != after and facts_above - facts_below and facts_below - facts_above
    facts_read = env.canonicalizer.initial("", after).facts
    assert facts_below == {fact for fact in facts_read if fact[:2] == page}
    assert not any("search the shop" in action for action in info["admissible_actions"])
    moment = env.snapshot()
    env.step("scroll [up]")
    assert env.restore(moment)[0] == after
    env.close()


@pytest.mark.usefixtures("browser")
def test_the_focus_in_the_dialect_of_webevolver() -> None:
    env = make(dialect="webevolver")
    env.reset(options={"task": next(task for task in env.tasks if "/shop-" in task)})
    env._engine.act(read_action("goto [shop.test/search?q=]"))
    tree = env._show(False)
    number = tree[: tree.index("combobox 'Sort by'")].rpartition("[")[2][:-2]
    page_text, *_ = env.step(f"click [{number}]")
    assert f"[{number}] combobox 'Sort by' focused: true" in page_text
    page_text, *_ = env.step("scroll [down]")
    assert page_text.count("focused: true") == 1  # the page's own
    env.step("scroll [up]")
    assert env.step("wait")[0].count("focused: true") == 2
    env.close()


@pytest.mark.usefixtures("browser")
def test_small_pages_are_the_same_in_both(browser: str) -> None:
    pytest.importorskip("miniwob", reason="needs the extra 'web': pip install miniwob")
    env, page_env = make(benchmark="miniwob"), make(benchmark="miniwob", observation="page")
    for task in ("click-checkboxes/10", "login-user/10"):
        assert env.reset(options={"task": task})[0] == page_env.reset(options={"task": task})[0]
    env.close(), page_env.close()
