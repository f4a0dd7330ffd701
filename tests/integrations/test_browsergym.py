"""BrowserGym's texts, without BrowserGym: both directions, and an episode of each."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from comap.envs.web import WebCanonicalizer
from comap.envs.web.lines import read_page
from comap.errors import OptionError
from comap.integrations.adapter import adapt
from comap.integrations.browsergym import (
    BrowserGymView,
    browsergym_wording,
    flattened,
    from_axtree,
    from_browsergym,
    to_axtree,
    to_browsergym,
)

PAGE = """URL shop.test/order?id=3
[1] RootWebArea 'Order - Shop'
\t[2] heading 'It\\'s "new"'
\t[3] StaticText 'Status: placed'
\t[4] textbox 'City' value: 'Bonn' required: true
\t[5] combobox 'Size' value: 'small'
\t\t[6] option 'small' selected: true
\t\t[7] option 'large' selected: false
\t[8] checkbox 'Gift' checked: false
\t[9] button 'Go' disabled: true
\t[10] link 'Go'
\t[11] slider 'it' value: 'bad'"""

# As flatten_axtree_to_str writes such a page: nodes without a line here, and properties that are not told.
TREE = """RootWebArea 'Order - Shop', focused, url='http://shop.test/order?id=3'
\t[b0] generic, live='polite'
\t\t[a1] heading 'It\\'s "new"'
\t\t[a2] paragraph ''
\t\t\tStaticText 'Status: placed'
\t\t[a3] form ''
\t\t\t[a4] textbox 'City' value='Bonn', clickable, visible, required
\t\t\t\tStaticText 'Bonn'
\t\t\t[a5] combobox 'Size' value='small', hasPopup='menu', expanded=False
\t\t\t\t[a6] MenuListPopup ''
\t\t\t\t\t[a7] option 'small', selected=True
\t\t\t\t\t[a8] option 'large', selected=False
\t\t\t[a9] checkbox 'Gift', checked='false'
\t\t\t[a10] button 'Go', disabled=True
\t\t\t\tInlineTextBox 'Go'
\t\t[a11] link 'Go', box="(1, 2)"
\t\t[a12] slider 'it' value=bad
something that is no node of a tree at all ("""


def test_a_tree_becomes_a_page() -> None:
    page, bids = from_axtree(TREE, "http://shop.test/order?id=3")
    assert page.replace(" expanded: false", "") == PAGE
    assert bids == ("", "a1", "", "a4", "a5", "a7", "a8", "a9", "a10", "a11", "a12")


def test_a_page_becomes_a_tree_and_comes_back() -> None:
    tree = to_axtree(PAGE)
    assert tree.split("\n")[:4] == [
        "[1] RootWebArea 'Order - Shop'",
        "\t[2] heading 'It\\'s \"new\"'",
        "\tStaticText 'Status: placed'",
        "\t[4] textbox 'City' value='Bonn', required",
    ]
    page, bids = from_axtree(tree, "https://shop.test/order?id=3")
    assert page == PAGE and bids == ("1", "2", "", *map(str, range(4, 12)))


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("click('10')", "click [10]"),
        ("click(bid='10', button='left')", "click [10]"),
        ("fill('4', \"it's\\n[new]\")", "type [4] [it's\n[new]] [0]"),
        ("fill('4', '')", "type [4] [] [0]"),
        ("press('4', 'Enter')", "type [4] [Bonn] [1]"),
        ("select_option('5', 'large')", "select [5] [large]"),
        ("select_option('5', ['large'])", "select [5] [large]"),
        ("scroll(0, 200)", "scroll [down]"),
        ("scroll(0, -200.5)", "scroll [up]"),
        ("noop()", "wait"),
        (" noop(500)\n", "wait"),
        ("go_back()", "goback"),
        ("goto('http://map.test/')", "goto [http://map.test/]"),
        ("send_msg_to_user('It is oak.')", "stop [It is oak.]"),
        ("report_infeasible('There is none.')", "stop [N/A]"),
    ],
)
def test_calls_become_actions(call: str, action: str) -> None:
    assert from_browsergym(call, PAGE) == action


@pytest.mark.parametrize(
    "call",
    [
        "",
        "click",
        "click('4'); click('5')",
        "click('4')\nclick('5')",
        "click('a4')",
        "click(4)",
        "click()",
        "click('4', 'right')",
        "click('4', 'left', ['Shift'])",
        "click('4', 'left', [], 1)",
        "click(**{})",
        "noop(bid='4')",
        "press('4', 'Tab')",
        "select_option('5', ['a', 'b'])",
        "fill('4', open('/etc/passwd').read())",
        "__import__('os').system('ls')",
        "hover('4')",
        "(lambda: 0)()",
        "click(" * 5000,
        "\x00",
        "fill('4', 1 + " * 300,
    ],
)
def test_other_calls_are_refused(call: str) -> None:
    with pytest.raises(OptionError, match=r"expected one call of noop, .* with literals, found"):
        from_browsergym(call, PAGE)


@pytest.mark.parametrize(
    ("action", "call"),
    [
        ("click [10]", "click('a11')"),
        ("click [link 'Go']", "click('a11')"),
        ("click ['Go' 2]", "click('a11')"),
        ("type [4] [it's] [0]", "fill('a4', \"it's\")"),
        ("type [4] [x]", "fill('a4', 'x')\npress('a4', 'Enter')"),
        ("select [5] [large]", "select_option('a5', 'large')"),
        ("scroll [up]", "scroll(0, -720)"),
        ("wait", "noop()"),
        ("goback", "go_back()"),
        ("restart", "goto('http://start.test/')"),
        ("goto [map.test/]", "goto('http://map.test/')"),
        ("stop [It's oak]", 'send_msg_to_user("It\'s oak")'),
        ("stop [N/A]", "report_infeasible('N/A')"),
    ],
)
def test_actions_become_calls(action: str, call: str) -> None:
    page, bids = from_axtree(TREE, "http://shop.test/")
    assert to_browsergym(action, page, bids, "http://start.test/") == call


@pytest.mark.parametrize(
    "action", ["open the door", "click [3]", "click [99]", "click [link 'No']"]
)
def test_actions_without_a_bid_are_refused(action: str) -> None:
    with pytest.raises(OptionError, match="expected a"):
        to_browsergym(action, *from_axtree(TREE))


def view(**options: Any) -> Any:
    return BrowserGymView(gymnasium.make("comap/Web-v0", split="test", **options))


def bid_of(observation: dict[str, Any], line: str) -> str:
    lines = [
        tree_line
        for tree_line in observation["axtree_txt"].split("\n")
        if tree_line.endswith(f"] {line}")
    ]
    return str(lines[0].strip()[1:].partition("]")[0])


def test_an_agent_of_browsergym_plays_comaps_task() -> None:
    env = view()
    task = next(task for task in env.get_wrapper_attr("tasks") if "/shop-status/" in task)
    observation, info = env.reset(options={"task": task})
    assert observation["goal"] == info["goal"] == observation["goal_object"][0]["text"]
    assert observation["url"].startswith("http://shop.test/")
    observation, *_ = env.step("hover('3')")
    assert "expected one call" in observation["last_action_error"]
    for name in ("Orders", env.unwrapped.wanted.plan[1].split("'")[1]):
        observation, *_ = env.step(f"click('{bid_of(observation, f'link {name!r}')}')")
        assert not observation["last_action_error"]
    answer = env.unwrapped.wanted.draft.answer
    observation, reward, terminated, _, info = env.step(f"send_msg_to_user({answer!r})")
    assert terminated and reward == 1.0 and "RootWebArea" in observation["axtree_txt"]


def node(number: str, role: str, name: str | None, *children: str, **rest: Any) -> dict[str, Any]:
    """Return a node of the browser's tree as BrowserGym observes it."""
    fields = {"nodeId": number, "role": {"value": role}, "childIds": list(children), **rest}
    return fields if name is None else fields | {"name": {"value": name}}


def prop(name: str, value: Any) -> dict[str, Any]:
    return {"name": name, "value": {"type": "any", "value": value}}


def test_a_browsers_own_tree_is_flattened() -> None:
    city = {"value": {"value": "Bonn"}, "properties": [prop("required", True), {"name": "url"}]}
    gift = {"properties": [prop("checked", "false"), prop("focusable", True)]}
    nodes = [
        node("1", "RootWebArea", "Order - Shop", "2", "9"),
        node("2", "none", None, "3", "4", "5", "2", ignored=True),
        node("3", "textbox", "City", browsergym_id="a4", **city),
        node("4", "checkbox", "Gift", browsergym_id="a9", **gift),
        node("5", "button", " It's ", "6", "7", "gone", browsergym_id="a10"),
        node("6", "StaticText", "It's", "8"),
        node("7", "StaticText", "new"),
        node("8", "InlineTextBox", "It's"),
        node("9", "generic", "", "5", "1"),
    ]
    tree = (
        "RootWebArea 'Order - Shop'\n\t[a4] textbox 'City' value='Bonn', required\n"
        "\t[a9] checkbox 'Gift', checked='false'\n\t[a10] button \"It's\"\n\t\tStaticText 'new'"
    )
    assert flattened({"nodes": nodes}) == tree
    assert flattened({"nodes": []}) == ""

    observation = {"url": "http://shop.test/", "axtree_object": {"nodes": nodes}, "goal": "Buy"}
    wording = browsergym_wording()
    assert wording.observe is not None and wording.act is not None
    page = wording.observe(observation)
    assert "[4] button 'It\\'s'" in page and wording.act("click [4]") == "click('a10')"


class TwoCalls(gymnasium.Wrapper[Any, str, Any, str]):
    """Takes several calls at once, a line each, as BrowserGym does."""

    def step(self, action: str) -> Any:
        for call in action.split("\n"):
            answer = self.env.step(call)
        return answer


def test_comaps_agent_plays_a_task_of_browsergym() -> None:
    theirs = TwoCalls(view(max_episode_steps=100))
    env = adapt(theirs, WebCanonicalizer(), browsergym_wording(), name="theirs", seeds=range(12))
    for task in env.tasks:
        observation, info = env.reset(options={"task": task})
        assert info["goal"] == theirs.unwrapped.goal
        for action in theirs.unwrapped.wanted.plan:
            observation, reward, terminated, _, info = env.step(action)
            assert not info["invalid_action"], (task, action)
        page = read_page(observation)
        assert page is not None and ("at", page.url.split("?")[0]) in info["facts"].facts
        assert terminated and reward == 1.0, task
    env.reset(seed=0)
    assert env.step("click [999]")[4]["invalid_action"]
    assert env.step("restart")[0] == env.history()[0].observation
