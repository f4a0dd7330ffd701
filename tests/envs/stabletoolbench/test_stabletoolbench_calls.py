"""Calls in every form that models write, and texts that are none."""

from __future__ import annotations

import json

import pytest

from comap.envs.stabletoolbench import ToolCanonicalizer, parse_call, write_call
from comap.envs.stabletoolbench.calls import read_answer, share_right, written_form

WANTED = ("f_for_t", {"a": 1, "b": "x y"})
INNER = {"name": "f_for_t", "arguments": {"a": 1, "b": "x y"}}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(INNER),
        json.dumps(INNER | {"arguments": json.dumps(INNER["arguments"])}),
        json.dumps({"function": INNER}),
        json.dumps({"type": "function", "function": INNER}),
        json.dumps({"role": "assistant", "function_call": INNER}),
        json.dumps({"tool_calls": [{"id": "1", "type": "function", "function": INNER}, {}]}),
        json.dumps([INNER]),
        f"<tool_call>\n{json.dumps(INNER)}\n</tool_call>",
        'Thought: I look.\nAction: f_for_t\nAction Input: {"a": 1, "b": "x y"}',
        'action: f_for_t\n  Action Input:\n{"a": 1,\n "b": "x y"}',
        f"Thought: hm\nAction: {json.dumps(INNER)}",
        'f_for_t({"a": 1, "b": "x y"})',
        'f_for_t {"a": 1, "b": "x y"}',
        '  f_for_t({"b": "x y", "a": 1})  ',
    ],
)
def test_forms_of_one_call(text):
    call = parse_call(text)
    assert call is not None and (call.name, call.arguments, call.problem) == (*WANTED, "")
    assert ToolCanonicalizer().action(text) == write_call(*WANTED)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('f({"a": )', "Expecting value"),
        ('{"name": "f", "arguments": [1]}', "expected an object, found list"),
        ('{"name": "f", "arguments": "[1]"}', "expected an object, found list"),
        ('{"name": "f", "arguments": 7}', "expected an object, found int"),
        ('f({"a": NaN})', "NaN"),
        ("f(__import__('os').system('true'))", "Expecting value"),
        ('{"name": "f", "arguments": "' + "[" * 90_000 + '"}', "nested too deeply"),
    ],
)
def test_arguments_that_cannot_be_read(text, problem):
    call = parse_call(text)
    assert call is not None and call.name == "f" and problem in call.problem
    assert call.arguments == {}


def test_a_broken_final_answer_is_repaired():
    text = '{"return_type": "give_answer", "final_answer": "It costs "120" now."}'
    call = parse_call(json.dumps({"name": "Finish", "arguments": text}))
    assert call is not None and call.problem == ""
    assert call.arguments == {"return_type": "give_answer", "final_answer": 'It costs "120" now.'}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, "3"),
        (3.0, "3"),
        ("3.00", "3"),
        (2.345, "2.35"),
        ("1,234.50", "1234.5"),
        ("007", "007"),
        ("0.50", "0.5"),
        (-0.0, "0"),
        (True, "true"),
        (None, "null"),
        (" Rome. ", "rome"),
        ([1, "A"], '[1,"a"]'),
        (float("inf"), "no number"),
    ],
)
def test_written_values(value, expected):
    assert written_form(value) == expected


def test_answers_in_many_forms():
    expected = {"flight": "fl-7", "price": "120"}
    for text in (
        '{"flight": "FL-7", "price": 120}',
        "flight: FL-7\nprice: 120.00",
        "Flight = FL-7; Price = 120",
        "flight: FL-7, price: 120",
    ):
        assert read_answer(text) == expected, text
    assert read_answer("It is FL-7.") == {"answer": "it is fl-7"}


def test_only_right_answers_and_changes_are_right():
    effects = {("booking", "bk-1", "seats"): "2"}
    expected = {"booking": "BK-1"}
    right = {"booking": "bk-1"}
    assert share_right(expected, right, effects, effects) == 1.0
    assert share_right(expected, {"answer": "bk-1"}, effects, effects) == 1.0
    assert share_right(expected, right, effects, {}) == 0.5
    extra_effects = effects | {("booking", "bk-2", "seats"): "2"}
    assert share_right(expected, right, effects, extra_effects) < 1.0
    assert share_right(expected, {"answer": "bk-1 or bk-2"}, {}, {}) == 0.0
    assert share_right({"a": 1, "b": 2}, {"answer": "1"}, {}, {}) == 0.0
