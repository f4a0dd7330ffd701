"""Beliefs about the shop: golden, of any text, as recorded and as the shop has it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.envs import Canonicalizer, Describer, Revealer, canonical_action
from comap.envs.webshop.belief import (
    CATALOGUE,
    PAGES,
    STRUCTURAL,
    SUB_PAGES,
    admissible_of,
    goal_reached,
    keywords,
    score_of,
    wish_of,
)
from comap.envs.webshop.canonicalizer import MODES, WebShopCanonicalizer, narrate
from comap.envs.webshop.env import WebShopEnv
from comap.envs.webshop.parser import clean, read_action, read_page
from comap.facts import State, apply, diff
from comap.trainers.evaluation import is_predictable
from comap.trajectory import Turn
from comap.worldmodel import Query

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
TASK = "find me a soft rug with color: red, and price lower than 30.00 dollars"
HEAD = f"Instruction: [SEP] {TASK} [SEP] Back to Search"
START = f"WebShop [SEP] Instruction: [SEP] {TASK} [SEP] Search"
LIST = (
    f"{HEAD} [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] B0AAAAAAA1 [SEP] Soft  Rug "
    "[SEP] $19.5 [SEP] B0AAAAAAA2 [SEP] Rug, Large [SEP] $25.0 to $35.25"
)
TAIL = "Price: $25.0 to $35.25 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews"
PAGE = (
    f"{HEAD} [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] size [SEP] s [SEP] m [SEP] "
    f"{{}}Rug, Large [SEP] {TAIL} [SEP] Buy Now"
)
OPEN = (("search[Soft  Rug]", LIST), ("click[B0AAAAAAA2]", PAGE.format("")))
DONE = (
    "Thank you for shopping with us! [SEP] Purchased [SEP] asin [SEP] B0AAAAAAA2 [SEP] options [SEP] "
    '{{"color": "Red", "n": 3}} [SEP] Your score (min 0.0, max 1.0) [SEP] {} [SEP] Reward Details'
)
STRAY = ("", "look", "search[]", "search[red]", "click[]", "click[nothing here]", "Click[< Prev]")
ARITY = {"line": 4, "price": 4, "done": 1}
THREE = ("selected", "option", "option_available", "result", "title")


def facts_of(state, name):
    return sorted(fact[1:] for fact in state.facts if fact[0] == name)


def well_formed(state):
    """Check the schema: known predicates, their number of arguments, clean arguments."""
    for fact in state.facts:
        assert fact[0] in STRUCTURAL | CATALOGUE, fact
        assert len(fact) == ARITY.get(fact[0], 3 if fact[0] in THREE else 2), fact
        assert all(argument == clean(argument) for argument in fact[1:]), fact
    assert State.from_text(state.to_text()) == state


def fold(*turns, mode="text", legacy=False, start=START):
    canon = WebShopCanonicalizer(mode, legacy)
    state = canon.initial(TASK, start)
    for action, page in turns:
        state = canon.update(state, action, page)
    return state


def random_action(env, draws):
    """Return some action, mostly one that does something."""
    if draws.random() < 0.1:
        return draws.choice(STRAY)
    page, clicks = env.session.page, env.available_actions()["clickables"]
    if page == "search":
        words = env.goal.split()
        return f"search[{' '.join(draws.sample(words, min(len(words), 4)))}]".replace("][", "")
    moves = [click for click in clicks if click not in ("buy now", "back to search")]
    if draws.random() < 0.06 or not moves:
        moves = clicks
    return f"click[{draws.choice(moves)}]"


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


def test_sub_pages_are_known_from_the_click():
    page = f"{HEAD} [SEP] < Prev [SEP] Very SOFT-rug  like [SEP]  [SEP] Washable"
    state = fold(*OPEN, ("click[features]", page))
    assert facts_of(state, "page") == [("features",)]
    assert facts_of(state, "line") == [
        ("features", "1", "very soft-rug like"),
        ("features", "3", "washable"),
    ]
    assert ("attr_match", "soft rug") in state.facts
    assert facts_of(fold(*OPEN, ("click[features]", page), ("look", page)), "page") == [
        ("features",)
    ]
    back = fold(*OPEN, ("click[features]", page), ("click[< prev]", PAGE.format("")))
    assert (
        facts_of(back, "line") == facts_of(state, "line")
        and ("attr_match", "soft rug") in back.facts
    )
    second_sub_page = fold(*OPEN, ("click[features]", page), ("click[description]", page))
    assert facts_of(second_sub_page, "page") == [("features",)]
    assert not fold(OPEN[0], ("click[features]", page)).parsed
    empty = fold(*OPEN, ("click[reviews]", f"{HEAD} [SEP] < Prev"))
    assert facts_of(empty, "page") == [("reviews",)] and facts_of(empty, "line") == []


@pytest.mark.parametrize(
    ("reward_text", "score"),
    [("1.0", 1.0), ("0.25", 0.25), ("2.0", None), ("-1", None), ("nan", None), ("", None)],
)
def test_a_purchase_tells_its_reward(reward_text, score):
    state = fold(*OPEN, ("click[buy now]", DONE.format(reward_text)))
    assert ("done",) in state.facts and facts_of(state, "selected") == [("color", "red")]
    assert score_of(state) == score
    assert goal_reached(state) is (None if score is None else score == 1.0)
    assert goal_reached(fold(*OPEN)) is False


@pytest.mark.parametrize(
    ("action", "canonical"),
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
def test_actions_have_one_form(action, canonical):
    assert WebShopCanonicalizer().action(action) == canonical
    assert canonical_action("comap/WebShop-v0", action) == canonical


def test_the_belief_in_words():
    turns = [Turn(None, START), Turn("search[soft rug]", LIST), Turn("look", LIST)]
    assert narrate(TASK, turns, fold(OPEN[0])) == (
        f"goal: {TASK}\npage: results 1 of 2 for soft rug\n"
        "listed: b0aaaaaaa1 soft rug $19.50; b0aaaaaaa2 rug, large $25.00 to $35.25\n"
        "last: search[soft rug]; look (nothing changed)"
    )
    state = fold(*OPEN, ("click[red]", PAGE.format("")))
    assert narrate(TASK, (), state).splitlines()[1:] == [
        "page: item b0aaaaaaa2",
        "product: rug, large $25.00 to $35.25",
        "fits: price maybe",
        "chosen: color red",
        "options: color: red, blue; size: m, s",
    ]
    assert "keywords: soft rug" in narrate(TASK, (), fold())
    assert narrate(TASK, (), fold(OPEN[0]), "click[B0AAAAAAA1]").splitlines()[2:] == [
        "listed: b0aaaaaaa1 soft rug $19.50"
    ]


@pytest.mark.parametrize("text", CASES["text_that_is_no_page"])
def test_text_that_is_no_page_changes_nothing(text):
    canon, before = WebShopCanonicalizer(), fold(*OPEN)
    after = canon.update(before, "look", text)
    assert after == State(before.facts, parsed=False)
    assert canon.update(after, "look", PAGE.format("")) == before
    start = canon.initial(TASK, text)
    assert not start.parsed and start.facts == {("instruction", TASK)}


PIECES = st.sampled_from(CASES["pieces_of_pages"])
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=14).map("".join)
ARGUMENTS = st.sampled_from(("", "1", "item", "results", "b0aaaaaaa1", "color", "red", "\ud800"))
FACTS = st.frozensets(
    st.tuples(st.sampled_from(sorted(STRUCTURAL | CATALOGUE) + ["x"]), ARGUMENTS)
    | st.tuples(st.sampled_from(sorted(STRUCTURAL | CATALOGUE)), ARGUMENTS, ARGUMENTS)
    | st.tuples(st.sampled_from(("price", "line")), ARGUMENTS, ARGUMENTS, ARGUMENTS)
    | st.tuples(st.sampled_from(sorted(STRUCTURAL))),
    max_size=12,
)


@settings(max_examples=50, deadline=None)
@given(FACTS, TEXTS, TEXTS, st.sampled_from(MODES), st.booleans())
def test_any_text_after_any_belief(facts, action, text, mode, legacy):
    canon = WebShopCanonicalizer(mode, legacy)
    for page in (text, f"{HEAD} [SEP] {text}", f"Thank you for shopping with us!\n{text}"):
        before = State(facts)
        after = canon.update(before, action, page)
        assert WebShopCanonicalizer("text", legacy).update(before, action, page) == after
        assert after.parsed or after.facts == facts
        well_formed(canon.initial(action, page))
        if after.parsed and not facts:
            well_formed(after)
        reread = canon.update(after, "", page)
        assert reread.parsed or not after.parsed or facts_of(after, "page")[:1] not in PAGES
        assert isinstance(canon.describe(before, action, after), str)
        for narration in (narrate(action, (), after), narrate(action, (), after, action)):
            assert isinstance(narration, str)
        score_of(after), goal_reached(after), admissible_of(after)


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_readers_take_any_text(text):
    assert clean(clean(text)) == clean(text)
    read_page(text), read_action(text), wish_of(text), keywords(text)
    once = WebShopCanonicalizer().action(text)
    assert WebShopCanonicalizer().action(once) == once


ITEM = PAGE.format("")
LINES = f"{HEAD} [SEP] < Prev [SEP] washable"
BARE = LIST.replace("B0AAAAAAA1", "B0AAAAAAA3")
FOUND, OPENED = ("search[rug]", LIST), ("click[b0aaaaaaa2]", ITEM)
READ, BACK = ("click[features]", LINES), ("click[back to search]", START)
PREVIOUS = ("click[< prev]", ITEM)
NEXT = ("click[next >]", BARE.replace("Page 1", "Page 2"))
PAID = ("click[buy now]", DONE.format("0.5"))
EMPTY = ("search[rug]", f"{HEAD} [SEP] Page 1 (Total results: 0) [SEP] Next >")
PLAIN = (
    "click[b0aaaaaaa2]",
    f"{HEAD} [SEP] < Prev [SEP] Rug, Large [SEP] {TAIL} [SEP] Buy Now",
)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([FOUND], False),
        ([EMPTY], False),
        ([FOUND, BACK], True),
        ([FOUND, BACK, FOUND], True),
        ([FOUND, BACK, ("search[other]", LIST)], False),
        ([FOUND, BACK, ("search[rug]", BARE)], False),
        ([FOUND, NEXT], False),
        ([FOUND, NEXT, ("click[< prev]", LIST)], True),
        ([FOUND, OPENED], False),
        ([FOUND, PLAIN], False),
        ([FOUND, OPENED, ("click[< prev]", LIST)], True),
        ([FOUND, OPENED, ("click[< prev]", LIST), OPENED], True),
        ([FOUND, OPENED, BACK, FOUND, OPENED], True),
        ([FOUND, OPENED, ("click[red]", ITEM)], True),
        ([FOUND, OPENED, ("sing", ITEM)], True),
        ([FOUND, OPENED, READ], False),
        ([FOUND, OPENED, READ, PREVIOUS], True),
        ([FOUND, OPENED, READ, PREVIOUS, READ], True),
        ([FOUND, OPENED, PAID], False),
        ([FOUND, ("look", "A dragon asks you a riddle.")], None),
    ],
)
def test_what_no_page_so_far_has_shown(turns, expected):
    canon = WebShopCanonicalizer()
    assert isinstance(canon, Revealer)
    state, history = canon.initial(TASK, START), [Turn(None, START)]
    for action, page in turns[:-1]:
        state = canon.update(state, action, page)
        history.append(Turn(action, page))
    action, page = turns[-1]
    query = Query("comap/WebShop-v0", TASK, tuple(history), state, action)
    assert is_predictable(query, page, canon) is expected


NAMES = {"index": "search", "item_page": "item"}


def wrong_against_record(facts, page):
    """Return how a belief differs from what the original environment held."""
    name = NAMES.get(page["page"], page["page"])
    pages = SUB_PAGES if name == "item_sub_page" else (name,)
    asin = [(page["asin"].lower(),)] if page["asin"] else []
    keywords_ = page["keywords"]
    checks = {
        "page": facts_of(facts, "page") in [[(page_name,)] for page_name in pages],
        "query": facts_of(facts, "query") == ([] if keywords_ is None else [(clean(keywords_),)]),
        "page_no": facts_of(facts, "page_no")
        == ([] if page["page_no"] is None else [(str(page["page_no"]),)]),
        "product": facts_of(facts, "product") == asin,
        "selected": dict(facts_of(facts, "selected"))
        == {clean(group): clean(value) for group, value in page["selected_options"].items()},
        "opened": [row[0].upper() for row in facts_of(facts, "opened")] == page["opened"],
        "done": (("done",) in facts.facts) == (name == "done"),
    }
    return [check for check, right in checks.items() if not right]


@pytest.mark.parametrize("mode", MODES)
def test_beliefs_agree_with_the_recorded_sessions_and_are_described(shared, mode):
    canon, steps, pages = WebShopCanonicalizer(mode, legacy=True), 0, Counter()
    outs = [WebShopCanonicalizer(out, legacy=True) for out in MODES]
    assert isinstance(canon, Canonicalizer) and isinstance(canon, Describer)
    for session in shared.rows(f"dev/transcripts_{mode}.jsonl"):
        state = canon.initial(session["goal"]["instruction_text"], session["reset"]["observation"])
        assert state.parsed and facts_of(state, "page") == [("search",)]
        for step in session["steps"]:
            action, observation = step["action"], step["observation"]
            after = canon.update(state, action, observation)
            context = (session["id"], action, diff(state, after).to_text())
            assert after.parsed, context
            assert not wrong_against_record(after, step["state"]), context
            well_formed(after)
            fresh = WebShopCanonicalizer(mode, legacy=True)
            assert fresh.update(state, action, observation) == after, context
            for out in outs:
                page = out.describe(state, action, after)
                assert out.update(state, action, page) == after, context
            if step["state"]["page"] == "done":
                score = observation.split("max 1.0)")[1].split("Reward")[0].strip(" []SEP\n")
                assert score_of(after) == pytest.approx(float(score))
            pages[facts_of(after, "page")[0][0]] += 1
            steps, state = steps + 1, after
    assert steps == 769
    assert set(pages) == set(PAGES)


def wrong_against_shop(env, state):
    """Return how a belief differs from where the shopper really stands."""
    session, catalog = env.session, env.catalog
    asin = [] if session.row is None else [(catalog.asin(session.row).lower(),)]
    checks = {
        "page": facts_of(state, "page") == [(session.page,)],
        "query": facts_of(state, "query")
        == ([] if session.query is None else [(clean(session.query),)]),
        "page_no": facts_of(state, "page_no")
        == ([(str(session.page_no),)] if session.page_no else []),
        "total": facts_of(state, "total") == ([(str(len(session.rows)),)] if session.query else []),
        "product": facts_of(state, "product") == asin,
        "selected": dict(facts_of(state, "selected"))
        == {clean(group): clean(value) for group, value in session.options.items()},
        "opened": facts_of(state, "opened")
        == sorted((catalog.asin(r).lower(),) for r in session.opened),
        "result": session.query is None
        or sorted(row[1] for row in facts_of(state, "result"))
        == sorted(catalog.asin(row).lower() for row in session.shown()),
        "reward": session.reward is None or score_of(state) == session.reward,
    }
    if session.row is not None:
        product = catalog.product(session.row)
        pairs = {(clean(g), clean(v)) for g, values in product.options for v in values}
        checks["option"] = facts_of(state, "option") == sorted(pairs)
        name = catalog.asin(session.row).lower()
        checks["title"] = (name, clean(product.title)) in facts_of(state, "title")
    return [check for check, right in checks.items() if not right]


def wander(env, strict, episodes=35, steps=30):
    """Play at random and check the belief after every step; count what was seen."""
    count, draws = Counter(), random.Random(7)
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
            if strict and env.session.page != "search":
                listed_actions = set(info["admissible_actions"]) - {"click[attributes]"}
                assert listed_actions == set(admissible_of(after) or ()), context
            count.update(
                [env.session.page, "steps", *(["refused"] if info["invalid_action"] else [])]
            )
            if terminated:
                assert goal_reached(after) is info["success"]
                break
    return count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("source", ["generated", "official"])
def test_beliefs_agree_with_the_shop(request, mode, legacy, source):
    source_options = {"source": source, "show_attrs": True}
    if source == "official":
        source_options = {"data_dir": request.getfixturevalue("official"), "split": "legacy-test"}
    env = WebShopEnv(observation_mode=mode, legacy=legacy, **source_options)
    count = wander(env, not legacy)
    assert count["steps"] > 400 and count["item"] > 100, count
    assert source == "official" or min(count[page] for page in PAGES) > 0, count
    assert legacy or count["refused"] > 20
