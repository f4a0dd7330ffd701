"""Think blocks: what is hidden of a reply, and that every place in it stays where it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.lm.thoughts import hide_thoughts, is_thinking, without_thoughts


@pytest.mark.parametrize(
    ("text", "spoken", "open_"),
    [
        ("look", "look", False),
        ("<think>a</think>look", "look", False),
        ("look\n<think>a", "look", True),
        ("<think>", "", True),
        ("a</think>look", "look", False),
        ("a</think>b</think>look", "look", False),
        ("<think>a</thinking>look", "look", False),
        ("<think>a <think> b</think>look", "look", False),
        ("say <think>a</think>look", "say look", False),
        ("<reasoning effort='high'>a</reasoning>look", "look", False),
        ("[THINK]a[/THINK]look", "look", False),
        ("analysisWe look.assistantfinallook", "look", False),
        ("analysis of the room", "analysis of the room", False),
        ("<thinker>a</thinker>", "<thinker>a</thinker>", False),
    ],
)
def test_what_is_spoken(text: str, spoken: str, open_: bool) -> None:
    assert without_thoughts(text) == spoken
    assert is_thinking(text) is open_


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n", "Action: look"])).map("".join))
def test_places_stay_where_they_are(text: str) -> None:
    hidden = hide_thoughts(text)
    assert len(hidden) == len(text)
    assert all(sign in (" ", "\n", text[place]) for place, sign in enumerate(hidden))
