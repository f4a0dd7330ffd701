"""Answers are scored as SQuAD's script scores them, and rewards as Search-R1 pays them."""

from __future__ import annotations

import pytest

from comap.envs.searchqa.answers import (
    contains_answer,
    exact_match,
    f1_score,
    normalize_answer,
    sub_exact_match,
)
from comap.envs.searchqa.protocol import write_results
from comap.envs.searchqa.retriever import Hit
from comap.envs.searchqa.reward import format_reward, is_well_formed, reward_of
from comap.trajectory import Turn


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Girl,\tWho Kicked!", "girl who kicked"),
        ("A theatre; an anthem", "theatre anthem"),
        ("Pełka’s", "pełka’s"),  # neither letters nor punctuation beyond ASCII are touched
        ("U.S.A.", "usa"),
        ("well-known", "wellknown"),
        ("seven", "seven"),
        ("the", ""),
        ("", ""),
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def test_scores_of_answers() -> None:
    assert exact_match("the White House!", ["x", "white house"])
    assert not exact_match("white houses", ["white house"])
    assert sub_exact_match("in the White House", ["white house"]) and not sub_exact_match(
        "x", ["y"]
    )
    assert f1_score("white house lawn", ["the white house"]) == pytest.approx(0.8)
    assert f1_score("no", ["no way"]) == 0.0 and f1_score("no", ["No."]) == 1.0
    assert f1_score("", [""]) == 0.0 and f1_score("x", []) == 0.0
    assert contains_answer("He lived in New York City.", ["new york"])
    assert not contains_answer("He lived in Newark.", ["new"]) and not contains_answer("x", ["the"])


START = Turn(None, "Question: Who wrote Emma?")
SHOWN = write_results([Hit("1", "Emma", "By Jane Austen.", 1.0)])
SEARCH, ANSWER = Turn("<search>Emma</search>", SHOWN), Turn("<answer>Jane Austen</answer>", "")
WRONG, BOTH = (
    Turn("<answer>Emily</answer>", ""),
    Turn("<search>a</search><answer>b</answer>", SHOWN),
)
GOLDEN = ("Jane Austen", "Austen")


@pytest.mark.parametrize(
    ("turns", "formed"),
    [
        ([START, SEARCH, ANSWER], True),
        ([START, ANSWER], True),
        ([START, SEARCH, SEARCH], False),
        ([START, Turn("hm", "?"), ANSWER], False),
        ([START, BOTH, ANSWER], False),
        ([START, Turn("<search>x</search>", "nothing"), ANSWER], False),
        ([START], False),
    ],
)
def test_form_of_an_episode(turns: list[Turn], formed: bool) -> None:
    assert is_well_formed(turns) is formed


@pytest.mark.parametrize(
    ("answer", "formed", "useful", "expected"),
    [
        ("austen", True, False, 1.0),
        ("austen", False, True, 0.8),
        ("x", True, False, 0.2),
        ("x", True, True, 0.3),
        ("x", False, True, 0.1),
        (None, True, True, 0.3),
        (None, False, False, 0.0),
    ],
)
def test_reward_with_a_part_for_the_form(answer, formed, useful, expected) -> None:
    assert format_reward(answer, GOLDEN, formed, useful, 0.1) == pytest.approx(expected)


def test_rewards_by_name() -> None:
    assert [reward_of(kind, "Jane  austen.", GOLDEN) for kind in ("em", "sub_em", "f1")] == [
        1,
        1,
        1,
    ]
    assert reward_of("em", "by Jane Austen", GOLDEN) == 0 and reward_of("em", None, GOLDEN) == 0
    assert reward_of("sub_em", "by Jane Austen", GOLDEN) == 1
    assert reward_of("f1", "by Jane Austen", GOLDEN) == pytest.approx(0.8)
    turns = [START, SEARCH, WRONG]
    assert reward_of("format", "Emily", GOLDEN, turns, retrieval_score=0.1) == pytest.approx(0.3)
    assert reward_of("format", "Emily", ("Emily B.",), turns, retrieval_score=0.1) == 0.2
