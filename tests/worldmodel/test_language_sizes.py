"""A language world model's prompts fit, and leave out nothing that would have fitted."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from comap.facts import State
from comap.trajectory import Turn
from comap.worldmodel import Query
from comap.worldmodel.language import LanguageWorldModel

GOAL = "put a pen in safe"


class Counter:
    """Counts a token for every three bytes, rounded up; answers nothing."""

    name = "counter"

    @staticmethod
    def count_tokens(text: str) -> int:
        return -(-len(text.encode("utf-8", "replace")) // 3)


def prompt(query: Query, **options: Any) -> str:
    model: Any = Counter()
    (message,) = LanguageWorldModel(model, **options).prompt(query)
    return message.content


def query(first: str, *, goal: str = GOAL, turns: int = 0, action: str = "look") -> Query:
    history = (Turn(None, first), *(Turn("wait", "Hm. " * 9) for _ in range(turns)))
    return Query("comap/ALFWorld-v0", goal, history, State(), action)


@pytest.mark.parametrize("style", [("standard", 2048), ("standard", 900), ("brief", 512)])
@pytest.mark.parametrize("state", ["history", "belief"])
def test_whatever_is_long_fits(style: tuple[str, int], state: str) -> None:
    prompts, longest = style
    texts = ("short", "é" * 4000)
    for first, goal, action, turns in product(texts, texts, texts, (0, 1, 40)):
        for told in (first, f"{first} {goal}"):
            asked = query(told, goal=goal, turns=turns, action=action)
            text = prompt(asked, prompts=prompts, state_text=state, max_length=longest)
            assert Counter.count_tokens(text) + 8 + 192 <= longest
            assert action[:40] in text and goal[:40] in text


def test_a_first_observation_has_all_the_room_until_there_are_turns() -> None:
    first = f"You see {'a desk 1, ' * 55}and a safe 1. Your task is to: {GOAL}"
    options: dict[str, Any] = {"prompts": "brief", "max_length": 512}
    assert prompt(query(first), **options).startswith(first + "\n")
    cut = prompt(query(first, turns=1), **options)
    assert first not in cut and f"Task goal: {GOAL}" in cut and "> wait\nHm." in cut


def test_the_sections_stand_in_their_order() -> None:
    text = prompt(query("A room.", turns=2))
    places = [text.index(part) for part in ("Task goal:", "A room.", "> wait", "look", "## Inst")]
    assert places == sorted(places) and text.endswith("Predicted next state:")
