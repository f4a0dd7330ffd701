"""Reading replies: what counts, what does not, and that no text is too odd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents.parsing import (
    Reflection,
    TaggedReply,
    final_action_span,
    find_final_action,
    first_line,
    parse_action,
    parse_reflection,
    read_tags,
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: x\nAction: open safe 1", "open safe 1"),
        ("Action: look", "look"),
        ("  action :look  ", "look"),
        ("Action: `open safe 1`.", "open safe 1"),
        ('Action: "search[red shoes]"', "search[red shoes]"),
        ("Action: one\nAction: two", "one"),  # what follows is the model's own idea
        ("Action: look\nObservation: You see.\nAction: go", "look"),
        ("Action:", None),
        ("Action: ...", None),
        ("Action: ''", None),
        ("Final Action: look", "look"),
        ("open safe 1", None),
        ("", None),
        ("Action: " + "x" * 1000, "x" * 1000),
        ("Action: " + "x" * 1001, None),
        ("Action: $goal <|im_end|>", "$goal <|im_end|>"),
    ],
)
def test_actions(text: str, action: str | None) -> None:
    assert parse_action(text) == action


FOUR = "Reflection: a\nDecision: KEEP\nFinal Action: look\nRevise Probability: 0.25"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FOUR, Reflection("a", "KEEP", "look", 0.25)),
        (FOUR.replace("\n", "\r\n"), Reflection("a", "KEEP", "look", 0.25)),
        ("**Decision:** revise.\n**Final Action:** `look`", Reflection(None, "REVISE", "look")),
        ("decision: [KEEP]\nfinal action: look", Reflection(None, "KEEP", "look")),
        ("Decision: KEEPING\n", Reflection()),
        ("Decision: KEEP\nDecision: REVISE", Reflection(None, "KEEP")),
        ("Final Action: a\nFinal Action: b", Reflection(action="a")),
        ("Revise Probability: about 0.7", Reflection(probability=0.7)),
        ("Revise Probability: 70%", Reflection(probability=0.7)),
        ("Revise Probability: nan", Reflection()),
        ("Revise Probability: 1e999", Reflection(probability=1.0)),
        ("Revise Probability: -1", Reflection(probability=0.0)),
        ("Final Action: look Revise Probability: 1", Reflection(None, None, "look", 1.0)),
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
        reflection = parse_reflection(wrapped)
        assert reflection.probability is None or 0 <= reflection.probability <= 1
        assert reflection.decision in (None, "KEEP", "REVISE")
        span, final_action = final_action_span(wrapped), find_final_action(wrapped)
        assert span is None or 0 <= span[0] <= span[1] <= len(wrapped)
        assert (None if final_action is None else final_action.action) == reflection.action
        if final_action is not None:
            assert wrapped[final_action.start : final_action.end] == final_action.action
        assert "\n" not in first_line(wrapped)


HOME, SHOP, QUESTIONS = "comap/ALFWorld-v0", "comap/WebShop-v0", "comap/SearchQA-v0"
THINK = "<think>So.</think>"
LONG = "I cannot find the mug in this room at all"

ACTING = [
    (f"{THINK}<action>look</action>", "look", True),
    (f"{THINK}\n<action>\n  go to Fridge 1 \n</action>\nDone.", "go to Fridge 1", True),
    (f"<action>look</action>{THINK}", "look", True),  # in any order
    ("<think></think><action>look</action>", "look", True),
    (f"{THINK}<action>look</action><action>wait</action>", "look", True),
    (f"{THINK}<action>a <action>b</action></action>", "a <action>b", True),
    ("<think><action>look</action></think><action>wait</action>", "wait", True),
    ("<think>I could <action>look</action></think>", "<action>look</action></think>", False),
    ("<think>I could <action>look</action> or", "could <action>look</action> or", False),
    ("I could <action>look</action></think><action>wait</action>", "wait", False),
    (f"{THINK}<action>burn it all down</action>", "burn it all down", True),  # not admissible
    (f"{THINK}<action></action>", "...", True),
    ("<action>look</action>", "look", False),
    ("<think>So.<action>look</action>", "look", False),
    (f"{THINK}<action>look", "<think>So.</think><action>look", False),
    (f"{THINK}</action>look<action>", ".</think></action>look<action>", False),
    (f"{THINK}< action>look</ action>", "/think>< action>look</ action>", False),
    ("", "...", False),
]


@pytest.mark.parametrize(("reply", "action", "valid"), ACTING)
def test_what_acts(reply: str, action: str, valid: bool) -> None:
    for env_id in (HOME, "comap/ScienceWorld-v0", "toy"):
        assert read_tags(env_id, reply) == TaggedReply(action, valid)


def test_the_end_of_a_reply_without_an_action_is_sent() -> None:
    assert read_tags(HOME, LONG) == TaggedReply(LONG[-30:].strip(), False)
    assert read_tags(SHOP, LONG) == TaggedReply(LONG[-20:].strip(), False)
    assert read_tags("other", f"{LONG} \n\n") == TaggedReply(LONG[-30:].strip(), False)
    assert read_tags(QUESTIONS, LONG) == TaggedReply(LONG[-30:].strip(), False)
    assert len(read_tags(HOME, "x" * 99).action) == 30 and read_tags(HOME, "look").action == "look"


@pytest.mark.parametrize(
    ("sign", "valid"),
    [
        ("\u4e00", False),
        ("\u9fff", False),
        ("\U00020000", False),
        ("\u3042", True),  # kana and Hangul are no ideographs
        ("\uac00", True),
        ("\U0001f600", True),
    ],
)
@pytest.mark.parametrize("template", ["{}" + THINK, "<think>{}</think>", THINK + "{}"])
def test_chinese_characters(sign: str, valid: bool, template: str) -> None:
    reply = template.format(sign) + f"<action>look {sign}</action>"
    for env_id in (HOME, SHOP, "other"):
        assert read_tags(env_id, reply) == TaggedReply(f"look {sign}", valid)
    query = f"<search>{sign}</search>"
    assert read_tags(QUESTIONS, query) == TaggedReply(query, True)


SEARCHING = [
    (f"{THINK}<search> who? </search>", "<search>who?</search>", True),
    ("<search>who?</search>", "<search>who?</search>", True),  # thoughts are not asked for
    (f"{THINK}<answer>Ada\nLovelace</answer>", "<answer>Ada\nLovelace</answer>", True),
    ("<answer>Ada</answer><search>who?</search>", "<search>who?</search>", False),
    ("<search>a</search><search>b</search>", "<search>a</search>", False),
    ("<answer>a</answer><answer>b</answer>", "<answer>b</answer>", False),
    ("<answer>a</answer><answer>b", "<answer>a</answer>", False),
    ("<search>a</search><answer>", "<search>a</search>", False),
    ("<answer>a<answer>b</answer>", "<answer>b</answer>", False),
    ("<search>never closed", "<search>never closed", False),
    (f"{THINK}<action>look</action>", ".</think><action>look</action>", False),
    ("<search></search>", "<search></search>", True),
]


@pytest.mark.parametrize(("reply", "action", "valid"), SEARCHING)
def test_searches_and_answers(reply: str, action: str, valid: bool) -> None:
    assert read_tags(QUESTIONS, reply) == TaggedReply(action, valid)


@given(
    action=st.text(min_size=1, max_size=200).filter(lambda text: "<" not in text and text.strip())
)
def test_an_action_comes_out_as_it_was_written(action: str) -> None:
    assert read_tags(HOME, f"{THINK}<action>{action}</action>").action == action.strip()
    assert read_tags(QUESTIONS, f"<answer>{action}</answer>").action == (
        f"<answer>{action.strip()}</answer>"
    )
