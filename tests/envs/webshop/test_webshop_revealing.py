"""Which changes of a belief the shop alone could tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.envs import Revealer
from comap.envs.conformance.transcripts import load
from comap.envs.webshop.canonicalizer import WebShopCanonicalizer
from comap.trainers.predictability import is_predictable
from comap.trajectory import Turn
from comap.worldmodel import Query

KIT = load(f"{Path(__file__).with_name('pages_kit.py')}:KIT")
ITEM, LIST, START = KIT.ITEM.format(""), KIT.LIST, KIT.START
LINES = f"{KIT.HEAD} [SEP] < Prev [SEP] washable"
BARE = LIST.replace("B0AAAAAAA1", "B0AAAAAAA3")
FOUND, OPENED = ("search[rug]", LIST), ("click[b0aaaaaaa2]", ITEM)
READ, BACK = ("click[features]", LINES), ("click[back to search]", START)
PREVIOUS = ("click[< prev]", ITEM)
NEXT = ("click[next >]", BARE.replace("Page 1", "Page 2"))
PAID = ("click[buy now]", KIT.DONE.format("0.5"))
EMPTY = ("search[rug]", f"{KIT.HEAD} [SEP] Page 1 (Total results: 0) [SEP] Next >")
PLAIN = (
    "click[b0aaaaaaa2]",
    f"{KIT.HEAD} [SEP] < Prev [SEP] Rug, Large [SEP] {KIT.TAIL} [SEP] Buy Now",
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
    state, history = canon.initial(KIT.TASK, START), [Turn(None, START)]
    for action, page in turns[:-1]:
        state = canon.update(state, action, page)
        history.append(Turn(action, page))
    action, page = turns[-1]
    query = Query("comap/WebShop-v0", KIT.TASK, tuple(history), state, action)
    assert is_predictable(query, page, canon) is expected
