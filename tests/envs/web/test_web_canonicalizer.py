"""Facts of pages: what each action changes, any text, pages kept on leaving, descriptions, actions."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import comap
from comap.envs import Canonicalizer, Describer, Revealer
from comap.envs.web import WebCanonicalizer
from comap.envs.web.actions import canonical, read_action
from comap.envs.web.canonicalizer import MOST_PAGES, admissible_of, belief_of, narrate, page_here
from comap.envs.web.lines import plain, read_page
from comap.envs.web.sites import world_of
from comap.envs.web.twin import Twin
from comap.facts import State, diff
from comap.trajectory import Turn

CANON = WebCanonicalizer()
WORLD = world_of(20)


class Walk:
    """A twin and the belief of what it showed."""

    def __init__(self, url: str):
        self.twin = Twin()
        self.twin.open(WORLD, url)
        self.state = CANON.initial("", self.twin.text())

    def do(self, action: str) -> list[str]:
        """Take an action, and return what it changed, without the pages' names."""
        move = read_action(action)
        assert move is not None
        effect = self.twin.act(move)
        before, self.state = self.state, CANON.update(self.state, action, self.twin.text())
        assert self.state.parsed and not effect.refused
        return diff(before, self.state).to_text().splitlines()


def test_it_is_what_the_protocols_ask_for() -> None:
    assert isinstance(CANON, Canonicalizer | Describer | Revealer)
    assert all(isinstance(CANON, kind) for kind in (Canonicalizer, Describer, Revealer))


def test_what_actions_change() -> None:
    walk = Walk("stay.test/")
    assert walk.do("click [checkbox 'Pool']") == ["+ checked(stay.test/, checkbox, pool)"]
    assert walk.do("click [checkbox 'Pool']") == ["- checked(stay.test/, checkbox, pool)"]
    assert walk.do("select [combobox 'Guests'] [3]") == [
        "+ selected(stay.test/, guests, 3)",
        "- selected(stay.test/, guests, 1)",
    ]
    assert walk.do("wait") == walk.do("scroll [down]") == []
    walk.do("click [button 'Search']")
    walk.do("goback")
    state_before = walk.state
    changed = walk.do("click [link 'Bookings']")
    assert {line.split("(")[0] for line in changed} == {
        "+ at",
        "- at",
        "+ opened",
        "+ title",
        "+ shows",
    }
    assert walk.do("goback") == ["+ at(stay.test/)", "- at(stay.test/bookings)"]
    assert state_before.facts <= walk.state.facts


def test_typing_changes_one_value() -> None:
    walk = Walk("map.test/route")
    assert walk.do("type [textbox 'From'] [Old  Mill] [0]") == [
        "+ value(map.test/route, textbox, from, old mill)"
    ]
    assert walk.do("type [textbox 'From'] [x] [0]") == [
        "+ value(map.test/route, textbox, from, x)",
        "- value(map.test/route, textbox, from, old mill)",
    ]
    assert walk.do("click [radio 'foot']") == [
        "+ selected(map.test/route, by, foot)",
        "- selected(map.test/route, by, car)",
    ]


def test_a_post_shows_what_it_changed() -> None:
    walk = Walk("forum.test/thread?id=3")
    votes = next(thread.votes for thread in WORLD.forum.threads if thread.id == 3)
    assert walk.do("click [button 'Upvote']") == [
        f"+ shows(forum.test/thread?id=3, statictext, votes: {votes + 1})",
        "+ shows(forum.test/thread?id=3, statictext, you voted for this.)",
        f"- shows(forum.test/thread?id=3, statictext, votes: {votes})",
    ]


def test_equal_lines_are_numbered_and_the_order_of_a_query_does_not_matter() -> None:
    lines = "[1] RootWebArea 'X'\n\t[2] link 'Add'\n\t[3] link 'Add'"
    first = CANON.initial("", f"URL shop.test/S?b=2&a=1\n{lines}")
    second = CANON.initial("", f"URL shop.test/S?a=1&b=2\n{lines}")
    assert first == second and ("shows", "shop.test/s?a=1&b=2", "link", "add 2") in first.facts
    assert "click [link 'add 2']" in admissible_of(belief_of(first.facts), "")


def test_without_an_address_a_page_is_the_one_that_one_is_on() -> None:
    state = CANON.initial("", "URL shop.test/cart?x=1\n[1] RootWebArea 'Cart'")
    after = CANON.update(state, "click [3]", "[1] RootWebArea 'Cart'\n\t[2] link 'New'")
    assert diff(state, after).to_text() == "+ shows(shop.test/cart?x=1, link, new)"


def test_the_first_pages_are_forgotten() -> None:
    state = State()
    for number in range(2 * MOST_PAGES):
        state = CANON.update(state, "", f"URL shop.test/item?id={number}\n[1] RootWebArea 'T'")
        assert CANON.belief(state) == belief_of(state.facts)
    assert sum(fact[0] == "title" for fact in state.facts) == MOST_PAGES
    first = CANON.update(state, "", f"URL shop.test/item?id={MOST_PAGES}\n[1] RootWebArea 'T'")
    for number in range(100, 100 + 2 * MOST_PAGES):
        page = f"URL shop.test/item?id={number}\n[1] RootWebArea 'T'"
        state = CANON.update(first, "", page)
        assert page_here(belief_of(state.facts)) == f"shop.test/item?id={number}"


def test_text_that_is_no_page() -> None:
    state = CANON.initial("", "URL shop.test/\n[1] RootWebArea 'T'")
    for text in ("", "Nothing happens.", "URL shop.test/", "[1] RootWebArea T", "\ud800"):
        assert CANON.update(state, "wait", text) == State(state.facts, parsed=False)
    recovered = CANON.update(
        CANON.update(state, "", "?"), "", "URL shop.test/\n[1] RootWebArea 'T'"
    )
    assert recovered == state


PIECES = st.sampled_from(
    [
        "URL shop.test/a?b=c",
        "URL ",
        "[1] RootWebArea 'T'",
        "\t[2] combobox 'S' value: 'x'",
        "Answer: 'x'",
    ]
    + [
        "\t\t[3] option 'a' selected: true",
        "\t\t[3] radio 'a' checked: true",
        "\t[4] link 'it\\'s'",
    ]
    + [
        "\t[9] textbox '' value: '\\u202e' disabled: true",
        "[5] button 'x",
        "\t\t\t[6] text '\\'",
        "[0] a ''",
    ]
)
LINES = st.lists(st.one_of(PIECES, st.text(max_size=30)), max_size=12).map("\n".join)
FACTS = st.frozensets(
    st.lists(
        st.sampled_from(
            [
                "at",
                "query",
                "title",
                "opened",
                "shows",
                "option",
                "value",
                "selected",
                "done",
                "2",
                "s",
                "",
            ]
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    max_size=12,
)


@given(FACTS, st.text(max_size=30), LINES)
def test_any_text_and_any_facts_are_read(facts: Any, action: str, observation: str) -> None:
    state = CANON.update(State(facts), action, observation)
    assert State.from_text(state.to_text()) == state
    assert all(part == part.lower() for fact in state.facts - facts for part in fact)
    assert CANON.belief(state) == belief_of(state.facts)
    assert CANON.update(state, action, observation).facts == state.facts
    assert isinstance(canonical(canonical(action)), str)
    admissible_of(belief_of(facts), action)
    CANON.describe(State(facts), action, state)
    CANON.reveals("", (Turn(None, observation),), State(facts), action, state)


def test_predicted_facts_may_be_short() -> None:
    page_facts = {("at", "shop.test/"), ("opened", "shop.test/", "1")}
    shows = {("shows", "shop.test/", "textbox", "name"), ("shows", "shop.test/", "statictext")}
    state = State(frozenset(page_facts | shows | {("title", "shop.test/")}))
    assert "stop [done]" in admissible_of(belief_of(state.facts), "")
    assert "seen before: nothing" in narrate("", (), state, "click [x]")


def random_episode(seed: int, steps: int = 15) -> Any:
    """Yield (before, action, observation, info) of an episode of expert and random actions."""
    env = gymnasium.make("comap/Web-v0", split="valid")
    rng = random.Random(seed)
    _, info = env.reset(seed=seed)
    for _ in range(steps):
        before, actions = info["facts"], info["admissible_actions"]
        action = (
            env.get_wrapper_attr("expert_action")() if rng.random() < 0.6 else rng.choice(actions)
        )
        observation, _, terminated, truncated, info = env.step(action)
        yield env, before, action, observation, info
        if terminated or truncated:
            break


@pytest.mark.parametrize("seed", range(8))
def test_descriptions_are_read_back(seed: int) -> None:
    for _, before, action, _, info in random_episode(seed):
        described = CANON.describe(before, action, info["facts"])
        assert CANON.update(before, action, described) == info["facts"]


@pytest.mark.parametrize("seed", range(8))
def test_facts_are_true_in_the_page_that_the_site_shows(seed: int) -> None:
    for env, _, _, observation, info in random_episode(seed):
        engine = env.unwrapped.engine
        belief = belief_of(info["facts"].facts)
        if info["answer"] is not None:
            assert ("answer", plain(info["answer"])) in belief.end
            continue
        page_facts, page = belief.pages[page_here(belief)].facts, read_page(observation)
        assert page is not None and page.url == engine.url
        for _, _, role, name in (fact for fact in page_facts if fact[0] == "shows"):
            names = {plain(line.name) for line in page.lines if line.role.lower() == role}
            assert name in names or name.rpartition(" ")[0] in names
        fresh = Twin()
        fresh.open(env.unwrapped.wanted.world, engine.url)
        fresh.load(engine.save())
        assert (
            CANON.initial("", fresh.text()).facts - {("opened", page_here(belief), "1")}
            <= page_facts | belief.here
        )


def test_what_nobody_could_foresee() -> None:
    walk = Walk("shop.test/")
    history = (Turn(None, walk.twin.text()),)
    before = walk.state
    walk.do("click [link 'Orders']")
    assert CANON.reveals("", history, before, "click [link 'Orders']", walk.state)
    orders = walk.state
    history = (*history, Turn("click [link 'Orders']", walk.twin.text()))
    walk.do("goback")
    assert not CANON.reveals("", history, orders, "goback", walk.state)
    described_state = WebCanonicalizer().update(
        orders, "", "URL shop.test/x\n[1] RootWebArea 'Shop'"
    )
    assert not CANON.reveals("", history, orders, "", described_state)


def test_version_and_fingerprint() -> None:
    assert (
        gymnasium.make("comap/Web-v0").get_wrapper_attr("fingerprint")()["facts"] == CANON.version
    )
    assert comap.__version__


@pytest.mark.parametrize(("host", "word"), [("stay.test", "ronda"), ("stay.example", "Ronda")])
def test_suggested_words_keep_their_case_off_the_generated_sites(host: str, word: str) -> None:
    page = f"{host}/"
    facts = {("at", page), ("page", page), ("shows", page, "textbox", "name")}
    belief = belief_of(State(frozenset(facts)).facts)

    actions = admissible_of(belief, 'Type "Ronda" into the field.')

    assert f"type [textbox 'name'] [{word}] [0]" in actions
    assert f"stop [{word}]" in actions


def test_a_belief_is_in_lower_case_on_generated_sites_alone() -> None:
    """Elsewhere, as on MiniWoB++, what is to be typed may depend on the case."""
    env: Any = gymnasium.make("comap/Web-v0", split="test").unwrapped
    observation, info = env.reset(seed=0)
    facts = info["facts"].facts
    elsewhere = State({tuple(part.replace(".test", ".example") for part in fact) for fact in facts})
    history = [Turn(action=None, observation=observation)]
    generated_text, live_text = (
        narrate("Type Ronda", history, state) for state in (State(facts), elsewhere)
    )
    assert "goal: type ronda" in generated_text and generated_text == generated_text.lower()
    assert "goal: Type Ronda" in live_text and live_text.lower() == generated_text.replace(
        ".test", ".example"
    )
