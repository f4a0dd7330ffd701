"""Long texts of models, tools and pages are read in time proportional to their length.

Each reader gets texts of a length and of four times that length, made of what its patterns look for.
Reading is too slow where the longer text takes a fourth of a second, and more than eight times
what the shorter one takes: the square of the length would be sixteen times.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import comap  # noqa: F401  (registers the environments)
from comap.agents import parsing
from comap.envs.canon import tagged
from comap.envs.registry import class_of
from comap.envs.searchqa.protocol import last_answer, normalize_answer, read_move, read_results
from comap.envs.stabletoolbench.calls import parse_call, read_answer
from comap.envs.webshop.parser import read_action, read_written
from comap.facts import State
from comap.lm.thoughts import without_thoughts
from comap.trainers.paw.losses import action_tokens
from comap.trainers.paw.search.simulator import read_documents

_LONG, _ALLOWED = 20_000, 0.25
_TAGS = ("<search>", "</search>", "<answer>", "<tool_call>", "<action>", "<information>", "<think>")
_REPEATED = (
    *(" ", "\n", "\t ", " \n", "a", "0", "[", "]", "{", '"', "(", ":", ",", ".", "a ", "a, ", "\\"),
    *_TAGS,
    *("Action:", "Thought: ", "Final Action: ", "Doc 1(Title: ", "\nDoc 1: ", "search[", "put a "),
    *(
        "In it, you see ",
        "a cup 1, and ",
        "On the table is: ",
        "(containing ",
        " [SEP] ",
        '":',
        "1e",
    ),
)
_BEGUN = (
    *("", "Action:", "Action: f\n", "Action: f\nAction Input: ", "search[", "put ", "the ", "a, "),
    *(
        "<search>",
        "<tool_call>",
        "\n\n<information>",
        '{"error": "',
        "Doc 1(Title: ",
        "In it, you see ",
    ),
)
_ENDS = ("", "!", "]", "</answer>", "\n</information>")
_ENVIRONMENTS = ("ALFWorld", "ScienceWorld", "WebShop", "StableToolBench", "SearchQA", "Web")
_RANDOM = random.Random(0)
TEXTS: list[tuple[str, str, str]] = [
    *(
        (beginning, repeated, _RANDOM.choice(_ENDS))
        for beginning in _BEGUN
        for repeated in _REPEATED
    ),
    *(
        (_RANDOM.choice(_BEGUN), "".join(_RANDOM.choices(_REPEATED, k=3)), _RANDOM.choice(_ENDS))
        for _ in range(100)
    ),
]
"""Beginnings, what is repeated, and ends: they leave the choice between readings open for long."""


def seconds(read: Callable[[str], object], parts: tuple[str, str, str], length: int) -> float:
    beginning, repeated, end = parts
    text = beginning + repeated * (length // len(repeated)) + end
    start = time.process_time()
    read(text)
    return time.process_time() - start


def check_linear(
    read: Callable[[str], object], step: int = 1, texts: Sequence[tuple[str, str, str]] = TEXTS
) -> None:
    for parts in texts[::step]:
        slow = seconds(read, parts, _LONG)
        if slow > _ALLOWED:
            quick = min(seconds(read, parts, _LONG // 4) for _ in range(3))
            assert slow < 8 * quick, f"{slow:.2f} s, a fourth of it {quick:.2f} s: {parts}"


@pytest.mark.parametrize("name", _ENVIRONMENTS)
def test_actions(name: str) -> None:
    check_linear(class_of(f"comap/{name}-v0").canonicalizer.action, step=3)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", _ENVIRONMENTS)
def test_observations(name: str) -> None:
    canon: Any = class_of(f"comap/{name}-v0").canonicalizer  # type: ignore[union-attr]
    check_linear(lambda text: canon.update(State(), "look", text), step=3)
    check_linear(lambda text: canon.initial(text, text), step=9)


@pytest.mark.parametrize("name", ["ALFWorld", "WebShop", "StableToolBench", "SearchQA"])
def test_steps(name: str) -> None:
    env = gymnasium.make(
        f"comap/{name}-v0", source="generated", max_text_length=2 * _LONG
    ).unwrapped

    def step(text: str) -> None:
        env.reset(seed=0)
        env.step(text)

    check_linear(step, step=9)


@pytest.mark.parametrize(
    "read",
    [
        parse_call,
        read_answer,
        read_action,
        read_written,
        read_move,
        last_answer,
        lambda text: read_move(text, "react"),
        read_results,
        read_documents,
        normalize_answer,
        lambda text: action_tokens([text[start : start + 64] for start in range(0, len(text), 64)]),
        parsing.first_line,
        lambda text: parsing.read_tags("comap/ALFWorld-v0", text),
        lambda text: parsing.read_tags("comap/SearchQA-v0", text),
        lambda text: parsing.number_in(text, 0.0, 1.0),
    ],
)
def test_replies(read: Callable[[str], object]) -> None:
    # A third of the texts, among which is still each beginning and each repeated part.
    check_linear(read, step=3)


_LISTED = ("look", "go to desk 1", "go to desk 10", "search[red shoes]", "put a mug in it")
_MARKED = ("</think>", "an Action: ", "Action:\n", "```\n", '{"action": "', "go to ", "KEEP: ", "*")
_REPLIES = [
    (beginning, part, "!") for beginning in ("", "Action:", "Final Action:") for part in _MARKED
]
_REPLIES += TEXTS[::36]


@pytest.mark.parametrize(
    "read",
    [
        parsing.parse_action,
        lambda text: parsing.parse_action(text, _LISTED),
        lambda text: parsing.parse_reflection(text, _LISTED),
        parsing.final_action_span,
        parsing.spoken_part,
        without_thoughts,
    ],
)
def test_the_reader(read: Callable[[str], object]) -> None:
    check_linear(read, texts=_REPLIES)


_PIECES = st.sampled_from(["[", "]", " ", "\n", ".", "a", "search", "Click", "\u2003", "\r", "x"])


@given(st.lists(_PIECES, max_size=9).map("".join))
def test_webshops_actions_are_read_as_its_patterns_do(text: str) -> None:
    """The patterns say what is meant; they take the square of a text's length to say it."""
    theirs = re.match(r"(.+)\[(.+)\]", text)
    assert read_action(text) == (theirs and (theirs[1], theirs[2].lower()))
    ours = re.fullmatch(r"\s*(search|click)\s*\[(.*)\]\s*\.?\s*", text, re.DOTALL | re.IGNORECASE)
    assert read_written(text) == (ours and (ours[1].lower(), ours[2]))


@given(st.lists(st.sampled_from(["<a>", "</a>", "<b>", "</b>", "<", "x", "\n"]), max_size=9))
def test_tags_are_read_as_their_pattern_does(parts: list[str]) -> None:
    text = "".join(parts)
    expected = [(match[1], *match.span(2)) for match in re.finditer(r"(?s)<(a|b)>(.*?)</\1>", text)]
    assert list(tagged(text, "a", "b")) == expected
