"""Pages, and what tests ask of beliefs."""

from __future__ import annotations

import sys

from comap.envs.webshop.canonicalizer import WebShopCanonicalizer
from comap.envs.webshop.cleaning import clean
from comap.envs.webshop.facts import (
    CATALOGUE,
    STRUCTURAL,
)
from comap.facts import State

TASK = "find me a soft rug with color: red, and price lower than 30.00 dollars"
HEAD = f"Instruction: [SEP] {TASK} [SEP] Back to Search"
START = f"WebShop [SEP] Instruction: [SEP] {TASK} [SEP] Search"
LIST = (
    f"{HEAD} [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] B0AAAAAAA1 [SEP] Soft  Rug "
    "[SEP] $19.5 [SEP] B0AAAAAAA2 [SEP] Rug, Large [SEP] $25.0 to $35.25"
)
TAIL = "Price: $25.0 to $35.25 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews"
ITEM = (
    f"{HEAD} [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] size [SEP] s [SEP] m [SEP] "
    f"{{}}Rug, Large [SEP] {TAIL} [SEP] Buy Now"
)
OPEN = (("search[Soft  Rug]", LIST), ("click[B0AAAAAAA2]", ITEM.format("")))
DONE = (
    "Thank you for shopping with us! [SEP] Purchased [SEP] asin [SEP] B0AAAAAAA2 [SEP] options [SEP] "
    '{{"color": "Red", "n": 3}} [SEP] Your score (min 0.0, max 1.0) [SEP] {} [SEP] Reward Details'
)
RICH_START = f"WebShop\nInstruction: \n{TASK}\n[button] Search [button_]\n"
RICH_LIST = (
    f"Instruction:\n{TASK}\n[button] Back to Search [button_]\nPage 2 (Total results: 13)\n"
    "[button] < Prev [button_]\n[button] Next > [button_]\n\n[clicked button] B0A [clicked button_]\n"
    "A Rug\n$5.0\n"
)
STRAY = ("", "look", "search[]", "search[red]", "click[]", "click[nothing here]", "Click[< Prev]")
ARITY = {"line": 4, "price": 4, "done": 1}
THREE = ("selected", "option", "option_available", "result", "title")


def told(state, name):
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


def rich_item(*marked, news=""):
    lines = [f"{news}Instruction:", TASK, "[button] Back to Search [button_]"]
    lines += ["[button] < Prev [button_]"]
    for group, values in (("tint", ("red", "größe", "m")), ("fancy cut", ("s", "m"))):
        lines.append(group)
        for value in values:
            mark = "clicked button" if (group, value) in marked else "button"
            lines.append(f"  [{mark}] {value} [{mark}_]")
    names = ("Description", "Features", "Reviews", "Buy Now")
    lines += ["A Rug", "Price: $5.0", "Rating: N.A.", *(f"[button] {n} [button_]" for n in names)]
    return "\n".join(lines) + "\n"


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


KIT = sys.modules[__name__]
"""This module, for tests: ``load("pages_kit.py:KIT")``."""
