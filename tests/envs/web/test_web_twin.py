"""The twin does what a browser does: forms, Enter, redirects, history; and says why it refuses."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.envs.web.actions import read_action
from comap.envs.web.engine import Effect, check_address, request_of
from comap.envs.web.lines import read_page
from comap.envs.web.pages import (
    Node,
    Page,
    button,
    checkbox,
    form,
    hidden,
    link,
    radios,
    select,
    text,
    textbox,
)
from comap.envs.web.sites import HOSTS, Request, Response, World, world_of
from comap.envs.web.twin import Moment, Twin, encode

WORLD = world_of(20)


def twin_at(url: str, world: Any = WORLD) -> Twin:
    twin = Twin()
    twin.open(world, url)
    return twin


def do(twin: Twin, *actions: str) -> Effect:
    effect = Effect()
    for action in actions:
        move = read_action(action)
        assert move is not None, action
        effect = twin.act(move)
    return effect


class OnePage(World):
    """A world with the same page everywhere, which remembers what was asked."""

    def __init__(self, *body: Node):
        super().__init__(0)
        self.body, self.asked = body, list[Request]()

    def answer(self, states: Any, request: Request) -> tuple[Any, Response]:
        self.asked.append(request)
        if request.path == "/loop":
            return states, Response(303, None, "http://shop.test/loop")
        return states, Response(200, Page("One", self.body))


BODY = (
    form(
        "/s?old=1",
        textbox("B", "b", "x"),
        textbox("A", "a"),
        checkbox("On", "on", checked=True),
        checkbox("Off", "off"),
        radios("None", "none", ("1", "2")),
        radios("One", "one", ("1", "2"), "2"),
        select("List", "list", ("p", "q")),
        hidden("h", "1"),
        textbox("Long", "long", "", "textarea"),
        Node("textbox", "Dead", field="dead", value="d", disabled=True),
        button("Go"),
    ),
    link("Away", "http://evil.test/"),
    link("Script", "javascript:alert(1)"),
    link("Loop", "/loop"),
    text("A text"),
)


@pytest.mark.parametrize(
    ("actions", "query"),
    [
        (("click [button 'Go']",), "b=x&a=&on=yes&one=2&list=p&h=1&long="),
        (("type [textbox 'A'] [é ~*&] [1]",), "b=x&a=%C3%A9+%7E*%26&on=yes&one=2&list=p&h=1&long="),
        (
            ("click On", "click [Off]", "click 8", "select [List] [Q]", "click Go"),
            "b=x&a=&off=yes&none=2&one=2&list=q&h=1&long=",
        ),
        (
            ("type Long [words] [1]", "select [radiogroup 'One'] [1]", "click [button 'Go']"),
            "b=x&a=&on=yes&one=1&list=p&h=1&long=words%0D%0A",
        ),
    ],
)
def test_forms_are_sent_in_order(actions: tuple[str, ...], query: str) -> None:
    twin = twin_at("shop.test/", OnePage(*BODY))
    do(twin, *actions[:-1])
    assert twin.url == "shop.test/"
    do(twin, actions[-1])
    assert twin.url == f"shop.test/s?{query}"


@pytest.mark.parametrize(
    ("body", "submitted"),
    [
        ((textbox("A", "a"), button("Go")), True),
        ((textbox("A", "a"),), True),
        ((textbox("A", "a"), textbox("B", "b")), False),
        ((textbox("A", "a"), textbox("B", "b"), button("Go")), True),
        ((textbox("A", "a"), Node("button", "Go", disabled=True)), False),
        ((textbox("A", "a", role="textarea"), button("Go")), False),
    ],
)
def test_enter_submits_as_the_html_standard_says(body: tuple[Node, ...], submitted: bool) -> None:
    twin = twin_at("shop.test/", OnePage(form("/s", *body)))
    do(twin, "type [A] [x] [0]")
    assert twin.url == "shop.test/"
    do(twin, "type [A] [x] [1]")
    assert twin.url.startswith("shop.test/s?a=x") is submitted


def test_a_post_is_redirected_to_the_page_that_confirms_it() -> None:
    twin = twin_at("forum.test/thread?id=3")
    do(twin, "type [textbox 'Your reply'] [Well  said] [0]", "click [button 'Reply']")
    assert (
        twin.url == "forum.test/thread?id=3" and "StaticText 'you writes: Well said'" in twin.text()
    )
    assert WORLD.forum.start.replies == ()  # the state of an episode, not of the site


def test_history_and_defaults_after_going_back() -> None:
    twin = twin_at("shop.test/")
    first = twin.text()
    do(twin, "type [searchbox 'Search the shop'] [lamp] [0]")
    do(twin, "click [link 'Cart']", "click [link 'Cart']", "click [link 'Orders']")
    do(twin, "goback")
    assert twin.url == "shop.test/cart"
    do(twin, "back")
    assert twin.text() == first
    assert do(twin, "goback").refused == "" and twin.text() == first
    do(twin, "click [link 'Cart']", "restart", "go_back")
    assert twin.url == "shop.test/cart"


def test_what_does_nothing() -> None:
    twin = twin_at("shop.test/", OnePage(*BODY))
    before = twin.save()
    for action in ("scroll down", "scroll [direction=up]", "wait", "click [StaticText 'A text']"):
        assert do(twin, action) == Effect() and twin.save() == before


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("click [99]", "there is no line [99]"),
        ("click [0]", "there is no"),
        ("click [button 'No']", "there is no button 'No'"),
        ("type [button 'Go'] [x]", "nothing can be typed into button"),
        ("type [Dead] [x]", "is disabled"),
        ("select [List] [z]", "has no option 'z'"),
        ("select [textbox 'A'] [z]", "has no options"),
        ("click [Away]", "the host 'evil.test' is not allowed"),
        ("click [Script]", "only http and https"),
        ("click [Loop]", "redirects without end"),
        ("goto [file:///etc/passwd]", "only http and https"),
        ("goto [javascript:alert(1)]", "only http and https"),
        ("goto [data:text/html,x]", "only http and https"),
        ("goto [chrome://version]", "only http and https"),
        ("goto [view-source:http://shop.test/]", "only http and https"),
        ("goto [http://127.0.0.1/]", "is not allowed"),
        ("goto [http://shop.test:8080/]", "is not allowed"),
        ("goto [http://shop.test@evil.test/]", "is not allowed"),
        ("goto [http://me:x@shop.test/]", "is not allowed"),
        ("goto [shop.test.evil.test]", "is not allowed"),
        ("goto [http://[]", "no address"),
    ],
)
def test_refusals_say_why_and_change_nothing(action: str, reason: str) -> None:
    twin = twin_at("shop.test/", OnePage(*BODY))
    do(twin, "type [textbox 'A'] [kept] [0]")
    before, page_text = twin.save(), twin.text()
    assert reason in do(twin, action).refused
    assert (twin.save(), twin.text()) == (before, page_text)


@pytest.mark.parametrize(
    ("action", "canonical"),
    [
        ("CLICK 7", "click [7]"),
        ("click [7]", "click [7]"),
        ("click [link 'Go  on' 2]", "click [link 'Go on' 2]"),
        ("click Add to cart", "click ['Add to cart']"),
        ("type [7] [a [b] c]", "type [7] [a [b] c] [1]"),
        ("type 7 two words", "type [7] [two words] [1]"),
        ("type [7] [x] [press_enter_after=0]", "type [7] [x] [0]"),
        ("type [7] [] [1]", "type [7] [] [1]"),
        ("select [combobox 'Size'] [M]", "select [combobox 'Size'] [M]"),
        ("scroll [DOWN]", "scroll [down]"),
        ("Back", "goback"),
        ("stop", "stop []"),
        ("stop [N/A]", "stop [N/A]"),
        ("`goto shop.test/cart`", "goto [shop.test/cart]"),
        *(
            (text, None)
            for text in ("", "click", "type [7]", "scroll", "goto []", "wait here", "look")
        ),
    ],
)
def test_actions_are_read_leniently(action: str, canonical: str | None) -> None:
    move = read_action(action)
    assert (None if move is None else str(move)) == canonical
    assert move is None or str(read_action(str(move))) == canonical


def test_a_moment_comes_back_exactly() -> None:
    twin = twin_at("shop.test/item?id=5")
    do(twin, "select [combobox 'Size'] [large]", "click [button 'Add to cart']", "click Checkout")
    do(twin, "type [textbox 'Street'] [1 Baker Street] [0]", "click [checkbox 'Gift wrap']")
    moment, page_text = pickle.loads(pickle.dumps(twin.save())), twin.text()
    assert isinstance(moment, Moment) and len(pickle.dumps(moment)) < 1_000
    do(twin, "click [radio 'express']", "type Town [Elmford] [0]", "click Place order", "goback")
    second_twin = twin_at("wiki.test/")
    for engine in (twin, second_twin):
        engine.load(moment)
        assert engine.text() == page_text
        do(engine, "type Town [Ashford] [0]", "click [button 'Place order']")
        assert (
            "StaticText 'Gift wrap: yes'" in engine.text()
            and "'Delivery: standard'" in engine.text()
        )
    assert twin.save() == second_twin.save()


ADDRESSES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["item", "search", "board", "order", "place", "article"]).flatmap(
        lambda path: st.builds(
            lambda host, key, value: f"{host}/{path}?{key}={value}&page={value}",
            st.sampled_from(HOSTS),
            st.sampled_from(["id", "q", "b", "t", "rating", "sort", "day", "near", "open"]),
            st.one_of(st.text(max_size=8), st.integers().map(str)),
        )
    ),
)


@given(ADDRESSES)
def test_any_address_is_answered(url: str) -> None:
    twin = twin_at("home.test/")
    effect = (
        do(twin, f"goto [{url}]")
        if url.strip("[] \n\r\t") and read_action(f"goto [{url}]")
        else Effect()
    )
    page = read_page(twin.text())
    assert page is not None and (effect.refused == "" or twin.url == "home.test/")
    assert len(page.lines) <= 60 and check_address(twin.url) == twin.url


def test_requests() -> None:
    assert request_of("shop.test/a?q=x+y&z=") == (
        "GET",
        "shop.test",
        "/a",
        {"q": "x y", "z": ""},
        {},
    )
    assert request_of("shop.test/a", "POST", "q=%26").body == {"q": "&"}
    assert encode([("a b", "\n")]) == "a+b=%0D%0A"
    _, response = WORLD.answer({}, Request("GET", "shop.test", "/no/such", {}, {}))
    assert response.status == 404 and response.headers["Cache-Control"] == "no-store"
