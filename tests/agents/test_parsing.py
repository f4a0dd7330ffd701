"""Reading replies: what counts, what does not, and that no text is too odd."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents.parsing import (
    Reflection,
    clean_action,
    final_action_span,
    first_line,
    number_in,
    parse_action,
    parse_reflection,
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: x\nAction: open safe 1", "open safe 1"),
        ("Action: look", "look"),
        ("  action :look  ", "look"),
        ("ACTION:\tlook", "look"),
        ("Action: `open safe 1`.", "open safe 1"),
        ('Action: "search[red shoes]"', "search[red shoes]"),
        ("Action: one\nAction: two", "one"),  # what follows is the model's own idea
        ("Action: look\nObservation: You see.\nAction: go", "look"),
        ("Action:", None),
        ("Action: ...", None),
        ("Action: look...", "look"),
        ("Action: ''", None),
        ("Final Action: look", None),
        ("My Action: look", None),
        ("The action is: look", None),
        ("open safe 1", None),
        ("", None),
        ("Action: " + "x" * 1000, "x" * 1000),
        ("Action: " + "x" * 1001, None),
        ("Action: $goal <|im_end|>", "$goal <|im_end|>"),
    ],
)
def test_actions(text: str, action: str | None) -> None:
    assert parse_action(text) == action


def test_an_empty_action_line_is_not_passed_over() -> None:
    assert parse_action("Action:\nAction: look") is None


FOUR = "Reflection: a\nDecision: KEEP\nFinal Action: look\nRevise Probability: 0.25"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FOUR, Reflection("a", "KEEP", "look", 0.25)),
        (FOUR.replace("\n", "\r\n"), Reflection("a", "KEEP", "look", 0.25)),
        ("**Decision:** revise.\n**Final Action:** `look`", Reflection(None, "REVISE", "look")),
        ("decision: [KEEP]\nfinal action: look", Reflection(None, "KEEP", "look")),
        ("Decision: KEEPING\n", Reflection()),
        ("Decision: maybe REVISE", Reflection()),
        ("Decision: KEEP\nDecision: REVISE", Reflection(None, "KEEP")),
        ("Final Action: a\nFinal Action: b", Reflection(action="a")),
        ("Revise Probability: about 0.7", Reflection(probability=0.7)),
        ("Revise Probability: 70%", Reflection(probability=0.7)),
        ("Revise Probability: high", Reflection()),
        ("Revise Probability: nan", Reflection()),
        ("Revise Probability: 1e999", Reflection(probability=1.0)),
        ("Revise Probability: -1", Reflection(probability=0.0)),
        (
            "Final Action: look Revise Probability: 1",
            Reflection(None, None, "look Revise Probability: 1"),
        ),
        ("Action: look", Reflection()),
        ("", Reflection()),
    ],
)
def test_reflections(text: str, found: Reflection) -> None:
    assert parse_reflection(text) == found


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    for wrapped in (text, f"Action: {text}", FOUR.replace("look", text), f"{text}\n{FOUR}"):
        action = parse_action(wrapped)
        assert action is None or (action == action.strip() and 0 < len(action) <= 1000)
        found = parse_reflection(wrapped)
        assert found.probability is None or 0 <= found.probability <= 1
        assert found.decision in (None, "KEEP", "REVISE")
        span = final_action_span(wrapped)
        assert (span is not None) or found.action is None
        if span is not None:
            assert clean_action(wrapped[span[0] : span[1]].lstrip("* \t")) == found.action
            assert wrapped[: span[0]].endswith(":")
        assert "\n" not in first_line(wrapped)


@pytest.mark.parametrize(
    ("text", "head"),
    [
        (FOUR, "Reflection: a\nDecision: KEEP\nFinal Action:"),
        ("final action : x", "final action :"),
        ("**Final Action:** x", "**Final Action:"),
        ("Final Action:", "Final Action:"),
        ("Final Action: a: b", "Final Action:"),
    ],
)
def test_where_the_final_action_begins(text: str, head: str) -> None:
    span = final_action_span(text)
    assert span is not None and text[: span[0]] == head
    assert final_action_span("Action: look") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 1.0),
        ("+1", 1.0),
        ("1e-1", 0.1),
        ("1/2", 1.0),
        ("v2", None),
        ("inf", None),
        ("", None),
        ("x" * 2000 + " 0.5", None),
    ],
)
def test_numbers(text: str, number: float | None) -> None:
    found = number_in(text, 0.0, 1.0)
    assert found == number if number is None else math.isclose(found or 0.0, number)
