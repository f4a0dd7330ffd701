"""Any text at all after any belief; the same in every process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.envs.conformance.transcripts import load
from comap.envs.webshop.canonicalizer import MODES, WebShopCanonicalizer
from comap.envs.webshop.cleaning import clean, read_action
from comap.envs.webshop.facts import (
    CATALOGUE,
    PAGES,
    STRUCTURAL,
    admissible_of,
    goal_reached,
    score_of,
    unranked,
)
from comap.envs.webshop.matching import keywords, wish_of
from comap.envs.webshop.reading import read_page
from comap.envs.webshop.wording import narrate, narrate_scene
from comap.facts import State

KIT = load(f"{Path(__file__).with_name('pages_kit.py')}:KIT")
DONE, HEAD, ITEM, LIST, OPEN, RICH_LIST, START, TASK = (
    KIT.DONE,
    KIT.HEAD,
    KIT.ITEM,
    KIT.LIST,
    KIT.OPEN,
    KIT.RICH_LIST,
    KIT.START,
    KIT.TASK,
)
fold, rich_item, told, well_formed = KIT.fold, KIT.rich_item, KIT.told, KIT.well_formed


@pytest.mark.parametrize(
    "text",
    [
        "Nothing happens.",
        "",
        "\n",
        " [SEP] ",
        "Instruction:",
        "WebShop",
        f"WebShop [SEP] Instruction: [SEP] {TASK}",
        "Search",
        "WebShop [SEP] Buy Now",
        "page(results)",
    ],
)
def test_text_that_is_no_page_changes_nothing(text):
    canon, before = WebShopCanonicalizer(), fold(*OPEN)
    after = canon.update(before, "look", text)
    assert after == State(before.facts, parsed=False)
    assert canon.update(after, "look", ITEM.format("")) == before
    start = canon.initial(TASK, text)
    assert not start.parsed and start.facts == {("instruction", TASK)}


PIECES = st.sampled_from(
    [
        " [SEP] ",
        "\n",
        "Instruction:",
        "WebShop",
        "Back to Search",
        "[button] Back to Search [button_]",
        "  [clicked button] red [clicked button_]",
        "< Prev",
        "Next >",
        "Page 1 (Total results: 3)",
        "Page 999999999 (Total results: 999999999)",
        "B0AAAAAAA1",
        "$19.5",
        "$1.0 to $2.0",
        "Price: $9",
        "Price: $1e999",
        "Buy Now",
        "[button] Buy Now [button_]",
        "Selected color: red",
        "Selected : : ",
        "color",
        "red",
        "Thank you for shopping with us!",
        "asin",
        "options",
        '{"a": "b"}',
        "{" * 50,
        "[" * 5000,
        "Your score (min 0.0, max 1.0)",
        "1e-999",
        "ﬁ İ ẞ ①\ud800",
        "\x00",
        "\u2028",
        "search",
        "click[red]",
        "click[b0aaaaaaa1]",
        "click[features]",
        "click[buy now]",
        "search[x]",
    ]
)
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
        again = canon.update(after, "", page)
        assert again.parsed or not after.parsed or told(after, "page")[:1] not in PAGES
        assert isinstance(canon.describe(before, action, after), str)
        for tell in (narrate(action, (), after), narrate_scene(action, (), after, action)):
            assert isinstance(tell, str)
        score_of(after), goal_reached(after), admissible_of(after), unranked(after)


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_readers_take_any_text(text):
    assert clean(clean(text)) == clean(text)
    read_page(text), read_action(text), wish_of(text), keywords(text)
    once = WebShopCanonicalizer().action(text)
    assert WebShopCanonicalizer().action(once) == once


DIGEST = """
import hashlib, random
from comap.envs.webshop.canonicalizer import WebShopCanonicalizer
from comap.envs.webshop.wording import narrate
from comap.facts import State
pieces = open(0, encoding="utf-8").read().split("\\x00")
digest = hashlib.sha256()
for mode in ("text", "text_rich"):
    canon, draws = WebShopCanonicalizer(mode), random.Random(3)
    state = State(frozenset(("selected", "color", c) for c in ("red", "blue", "green")))
    for _ in range(200):
        state = canon.update(state, draws.choice(pieces), draws.choice(pieces))
        digest.update(state.to_text().encode() + narrate("rug", (), state).encode())
        digest.update(canon.describe(State(), "", state).encode())
print(digest.hexdigest())
"""


def test_same_beliefs_for_any_hash_seed():
    both = rich_item(("tint", "m"), ("fancy cut", "m"))
    pieces = [
        START,
        LIST,
        ITEM.format(""),
        RICH_LIST,
        rich_item(),
        both,
        DONE.format("0.5"),
    ]
    pieces += ["click[red]", "click[b0aaaaaaa2]", "search[rug]", "click[m]", "click[features]"]
    found = set()
    for seed in ("0", "1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            input="\x00".join(pieces).encode(),
            capture_output=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1 and len(found.pop().strip()) == len(hashlib.sha256().hexdigest())
