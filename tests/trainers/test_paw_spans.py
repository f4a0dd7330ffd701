"""Which tokens of a reply stand between the action's tags."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.lm.tiny import tokenizer_of
from comap.trainers.paw.spans import action_tokens

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

TEXTS = ["<think> I look </think><action> go to desk 1 </action>", "<search> who <answer> Paris"]
TOKENIZER = tokenizer_of(TEXTS * 2, 360)


def ids_of(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


def marked(text: str) -> str:
    """Return the text of the tokens that count."""
    ids = ids_of(text)
    told = action_tokens(TOKENIZER, ids)
    assert len(told) == len(ids)
    kept = [token for token, on in zip(ids, told, strict=True) if on]
    return str(TOKENIZER.decode(kept))


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("<think> I look </think><action> go to desk 1 </action>", " go to desk 1 "),
        ("<action>look</action> and <action>go</action>", "look"),
        ("so <search> who is it </search>", " who is it "),
        ("<answer>Paris</answer><search>no</search>", "Paris"),
        ("<action> caf\N{LATIN SMALL LETTER E WITH ACUTE} </action>", " caf\xe9 "),
        ("\N{SNOWMAN}\xe9<action>\N{SNOWMAN}</action>\xe9", "\N{SNOWMAN}"),
        ("<action>one\ntwo</action>", "one\ntwo"),
    ],
)
def test_tokens_between_the_first_tags_count(text: str, inside: str) -> None:
    assert marked(text) == inside


@pytest.mark.parametrize(
    "text",
    [
        "",
        "go to desk 1",
        "<action> go",
        "<action></action> go",
        "<action> go </search>",
        "</action>",
    ],
)
def test_without_a_whole_tag_all_tokens_count(text: str) -> None:
    assert action_tokens(TOKENIZER, ids_of(text)) == [True] * len(ids_of(text))


PIECES = ["<action>", "</action>", "<search>", "</search>", " go", " to desk 1", "<", ">", " "]


@settings(deadline=None)
@given(st.lists(st.sampled_from([*PIECES, "xyz", "action"]), max_size=12))
def test_marks_are_those_of_the_characters(pieces: list[str]) -> None:
    """For text of one byte a character, where each token's text is known by itself."""
    ids = ids_of("".join(pieces))
    texts = [TOKENIZER.decode([token]) for token in ids]
    whole = "".join(texts)
    begin, end = 0, len(whole)
    for name in ("action", "search"):
        first = whole.find(f"<{name}>")
        last = whole.find(f"</{name}>", first)
        if first >= 0 and last >= 0 and (end == len(whole) or first < begin):
            begin, end = first + len(name) + 2, last
    bounds = list(pairwise([0, *accumulate(map(len, texts))]))
    wanted = [low < end and high > begin for low, high in bounds]
    assert action_tokens(TOKENIZER, ids) == (wanted if any(wanted) else [True] * len(ids))


class Counting:
    """Decodes as the tokenizer does, and counts the tokens that it is asked for."""

    asked = 0

    def decode(self, ids: Any, **options: Any) -> Any:
        self.asked += len(ids)
        return TOKENIZER.decode(ids, **options)


def test_a_long_reply_is_read_in_linear_time() -> None:
    counting = Counting()
    ids = ids_of("<action>" + " go to desk 1" * 400 + "</action>")
    assert sum(action_tokens(counting, ids)) > 1000
    assert counting.asked < 10 * len(ids)


class Changing:
    """A tokenizer that drops the space before a stop, as some do, once it knows of the stop."""

    words = ("<action>", "go ", "now ", ". ", "</action>")

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join(self.words[token] for token in ids).replace(" .", ".")


def test_tokenizers_that_change_earlier_text_are_read_all_the_same() -> None:
    assert action_tokens(Changing(), [1, 0, 1, 2, 3, 4]) == [False, False, True, True, True, False]
    assert action_tokens(Changing(), [1, 3]) == [True, True]
