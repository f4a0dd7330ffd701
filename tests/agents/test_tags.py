"""Replies in tags: what acts, and which replies are valid (METHODS.md 2.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents.tags import TaggedReply, env_name, read_tags, text_between

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
    ("<think><action>look</action></think><action>wait</action>", "look", True),
    (f"{THINK}</action><action>look</action>", "look", True),
    (f"{THINK}<action>burn it all down</action>", "burn it all down", True),  # not admissible
    (f"{THINK}<action></action>", "...", True),
    ("<action>look</action>", "look", False),
    ("</think>So.<think><action>look</action>", "look", False),
    ("<think>So.<action>look</action>", "look", False),
    (f"{THINK}<action>look", "<think>So.</think><action>look", False),
    (f"{THINK}</action>look<action>", ".</think></action>look<action>", False),
    (f"{THINK}<Action>look</Action>", ".</think><Action>look</Action>", False),
    (f"{THINK}< action>look</ action>", "/think>< action>look</ action>", False),
    ("", "...", False),
    (" \n ", "...", False),
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
        ("\u3400", False),
        ("\uf900", False),
        ("\U00020000", False),
        ("\u0436", True),
        ("\u00e9", True),
        ("\u3042", True),  # kana and Hangul are no ideographs
        ("\uac00", True),
        ("\U0001f600", True),
    ],
)
@pytest.mark.parametrize("where", ["{}" + THINK, "<think>{}</think>", THINK + "{}"])
def test_chinese_characters(sign: str, valid: bool, where: str) -> None:
    reply = where.format(sign) + f"<action>look {sign}</action>"
    for env_id in (HOME, SHOP, "other"):
        assert read_tags(env_id, reply) == TaggedReply(f"look {sign}", valid)
    asked = f"<search>{sign}</search>"
    assert read_tags(QUESTIONS, asked) == TaggedReply(asked, True)


SEARCHING = [
    (f"{THINK}<search> who? </search>", "<search>who?</search>", True),
    ("<search>who?</search>", "<search>who?</search>", True),  # thoughts are not asked for
    (f"{THINK}<answer>Ada\nLovelace</answer>", "<answer>Ada\nLovelace</answer>", True),
    ("<answer>Ada</answer><search>who?</search>", "<search>who?</search>", False),
    ("<search>a</search><search>b</search>", "<search>a</search>", False),
    ("<answer>a</answer><answer>b</answer>", "<answer>b</answer>", False),
    ("<answer>a</answer><answer>b", "<answer>a</answer>", False),
    ("<search>a</search><answer>", "<search>a</search>", False),
    ("<search>a<search>b</search>", "<search>a<search>b</search>", False),
    ("<answer>a<answer>b</answer>", "<answer>b</answer>", False),
    ("<answer>a</answer></answer></search>", "<answer>a</answer>", True),
    ("<search>never closed", "<search>never closed", False),
    ("<SEARCH>a</SEARCH>", "<SEARCH>a</SEARCH>", False),
    (f"{THINK}<action>look</action>", ".</think><action>look</action>", False),
    ("<search></search>", "<search></search>", True),
]


@pytest.mark.parametrize(("reply", "action", "valid"), SEARCHING)
def test_searches_and_answers(reply: str, action: str, valid: bool) -> None:
    assert read_tags(QUESTIONS, reply) == TaggedReply(action, valid)


def test_the_rule_follows_the_environment() -> None:
    assert [env_name(env_id) for env_id in (HOME, SHOP, QUESTIONS, "a/b/My-Env-v12", "x")] == [
        "alfworld",
        "webshop",
        "searchqa",
        "my-env",
        "x",
    ]
    both = f"{THINK}<action>look</action><search>who?</search>"
    assert read_tags(HOME, both).action == "look"
    assert read_tags("comap/SearchQA-v3", both).action == "<search>who?</search>"


def test_text_between_tags() -> None:
    said = "</a>0<a>1</a><a> 2 </a>3</a><a>4"
    assert text_between(said, "a") == "1" and text_between(said, "a", last=True) == "2"
    for text in ("", "<a>", "</a>", "</a><a>", "<b>1</b>"):
        assert text_between(text, "a") is None and text_between(text, "a", last=True) is None
    assert text_between("<a.>1</a.>", "a.") == "1" and text_between("<ab>1</ab>", "a.") is None


def test_actions_of_absurd_length_are_cut() -> None:
    assert read_tags(HOME, f"{THINK}<action>{'x' * 9000}</action>") == TaggedReply("x" * 1000, True)
    found = read_tags(QUESTIONS, f"<search>{'x' * 9000}</search>")
    assert found == TaggedReply(f"<search>{'x' * 1000}</search>", True)


PIECES = st.lists(
    st.sampled_from(
        [
            *(
                f"<{sign}{tag}>"
                for tag in ("think", "action", "search", "answer")
                for sign in ("", "/")
            ),
            "look",
            " ",
            "\n",
            "\u4e2d",
            "<",
        ]
    ),
    max_size=12,
).map("".join)


@given(reply=PIECES | st.text())
def test_any_reply_acts(reply: str) -> None:
    for env_id in (HOME, SHOP, QUESTIONS):
        found = read_tags(env_id, reply)
        assert found.action and found.action == found.action.strip()
        assert found == read_tags(env_id, reply)
    sent = read_tags(HOME, reply)
    if sent.valid:
        assert all(tag in reply for tag in ("<think>", "</think>", "<action>", "</action>"))
        assert "\u4e2d" not in reply
    elif "</action>" not in reply:
        assert sent.action == "..." or reply.strip().endswith(sent.action)
    asked = read_tags(QUESTIONS, reply)
    opened = reply.count("<search>") + reply.count("<answer>")
    assert not asked.valid or opened == 1
    assert not asked.valid or asked.action.startswith(("<search>", "<answer>"))


@given(
    action=st.text(min_size=1, max_size=200).filter(lambda text: "<" not in text and text.strip())
)
def test_an_action_comes_out_as_it_was_written(action: str) -> None:
    assert read_tags(HOME, f"{THINK}<action>{action}</action>").action == action.strip()
    assert read_tags(QUESTIONS, f"<answer>{action}</answer>").action == (
        f"<answer>{action.strip()}</answer>"
    )
