"""Long texts of models, tools and pages are read in time proportional to their length.

Nothing here looks at a clock: where reading takes the square of a text's length, one of these texts
takes minutes, and whoever runs the tests sees which.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import comap  # noqa: F401  (registers the environments)
from comap.agents import parsing
from comap.envs.registry import class_of
from comap.envs.stabletoolbench.calls import parse_call, read_answer
from comap.envs.webshop.parser import read_action, read_written
from comap.facts import State

_LONG = 60_000
_REPEATED = (" ", "\n", "\t ", " \n", "a", "0", "[", "]", "{", '"', "(", ":", ",", ".", "a ", "a, ")
_BEGUN = (
    "",
    "Action:",
    "Action: f\n",
    "Action: f\nAction Input: ",
    "search[",
    "put ",
    "the ",
    "a, ",
)
TEXTS = [
    begun + repeated * (_LONG // len(repeated)) + end
    for begun in _BEGUN
    for repeated in _REPEATED
    for end in ("", "!")
]
"""Texts that leave the choice between many ways of reading them open until their end."""

_ENVIRONMENTS = ("ALFWorld", "ScienceWorld", "WebShop", "StableToolBench", "SearchQA")


@pytest.mark.parametrize("name", _ENVIRONMENTS)
def test_actions(name: str) -> None:
    canon: Any = class_of(f"comap/{name}-v0").canonicalizer  # type: ignore[union-attr]
    for text in TEXTS:
        assert isinstance(canon.action(text), str)


@pytest.mark.parametrize("name", _ENVIRONMENTS)
def test_observations(name: str) -> None:
    canon: Any = class_of(f"comap/{name}-v0").canonicalizer  # type: ignore[union-attr]
    for text in TEXTS[::3]:
        assert isinstance(canon.update(State(), "look", text), State)


@pytest.mark.parametrize(
    "read",
    [
        parse_call,
        read_answer,
        read_action,
        read_written,
        parsing.parse_action,
        parsing.parse_reflection,
        parsing.final_action_span,
        parsing.first_line,
        lambda text: parsing.number_in(text, 0.0, 1.0),
    ],
)
def test_replies(read: Callable[[str], object]) -> None:
    for text in TEXTS:
        read(text)


_PIECES = st.sampled_from(["[", "]", " ", "\n", ".", "a", "search", "Click", "\u2003", "\r", "x"])


@given(st.lists(_PIECES, max_size=9).map("".join))
def test_webshops_actions_are_read_as_its_patterns_do(text: str) -> None:
    """The patterns say what is meant; they take the square of a text's length to say it."""
    theirs = re.match(r"(.+)\[(.+)\]", text)
    assert read_action(text) == (theirs and (theirs[1], theirs[2].lower()))
    ours = re.fullmatch(r"\s*(search|click)\s*\[(.*)\]\s*\.?\s*", text, re.DOTALL | re.IGNORECASE)
    assert read_written(text) == (ours and (ours[1].lower(), ours[2]))
