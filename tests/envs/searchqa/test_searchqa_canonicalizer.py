"""Beliefs about searches, from text alone."""

from __future__ import annotations

import pytest

from comap.envs import Canonicalizer, Describer, Revealer
from comap.envs.searchqa import Hit, SearchQACanonicalizer
from comap.envs.searchqa.canonicalizer import asked, hits_of, seen_titles, suggested
from comap.envs.searchqa.protocol import REFUSAL, write_results
from comap.facts import State, diff
from comap.trajectory import Turn

CANON = SearchQACanonicalizer()
GOAL = "Who is the mother of the director of Polish-Russian War?"
START = CANON.initial(GOAL, f"Question: {GOAL}")
WAR, ZULA, OTHER = (
    Hit("", name, "text", 0.0) for name in ("Polish-Russian War", "Żuława", "Other")
)
FOUND = write_results([WAR, ZULA])
ASK = "<search>director of  Polish-Russian War</search>"


def text_of(before: State, after: State) -> list[str]:
    return diff(before, after).to_text().splitlines()


def test_a_search_and_its_repetition() -> None:
    after_first = CANON.update(START, ASK, FOUND)
    assert text_of(START, after_first) == [
        "+ hit(1, 1, polish-russian war)",
        "+ hit(1, 2, żuława)",
        "+ new_docs(1, 2)",
        "+ query(1, director of polish-russian war)",
        "+ seen(polish-russian war)",
        "+ seen(żuława)",
        "+ turns_left(3)",
        "- turns_left(4)",
    ]
    after_second = CANON.update(after_first, ASK, FOUND)
    assert text_of(after_first, after_second) == [
        "+ hit(2, 1, polish-russian war)",
        "+ hit(2, 2, żuława)",
        "+ new_docs(2, 0)",
        "+ query(2, director of polish-russian war)",
        "+ turns_left(2)",
        "- turns_left(3)",
    ]
    assert asked(after_second) == {"director of polish-russian war": 1}
    assert hits_of(after_second, 2) == ["polish-russian war", "żuława"] == seen_titles(after_second)


def test_refusals_emptiness_and_answers() -> None:
    refused = CANON.update(START, "hm", REFUSAL)
    assert text_of(START, refused) == ["+ invalid(1)", "+ turns_left(3)", "- turns_left(4)"]
    empty = CANON.update(refused, "<search>?</search>", write_results([]))
    assert text_of(refused, empty)[:2] == ["+ empty(2)", "+ query(2, ?)"]
    over = CANON.update(empty, "<answer>The Małgorzata B.</answer>", "")
    assert text_of(empty, over)[0] == "+ answer(małgorzata b)"
    assert CANON.update(over, ASK, FOUND) == over
    assert SearchQACanonicalizer(style="verl").update(START, "hm", "").facts == refused.facts


@pytest.mark.parametrize("text", ["You open the fridge.", "", "<information>x</information>"])
def test_text_that_fits_no_rule(text: str) -> None:
    after = CANON.update(START, ASK, text)
    assert not after.parsed and after.facts == START.facts


def test_every_text_is_taken() -> None:
    broken = State(frozenset({("turns_left", "x"), ("query", "y"), ("hit",), ("turns_left",)}))
    for action in ("", ASK, "<answer>\ud800</answer>", "<search>İ</search>"):
        for text in ("", FOUND, REFUSAL, "\x00"):
            state = CANON.update(broken, action, text)
            assert all(part == part.lower() for fact in state.facts for part in fact)
            CANON.describe(broken, action, state)
            CANON.reveals("", [], broken, action, state)
            assert suggested("", state, "tags") is not None


def test_canonical_actions() -> None:
    assert all(isinstance(CANON, protocol) for protocol in (Canonicalizer, Describer, Revealer))
    reply = "<think>x</think><search> The  Girl </search>"
    assert CANON.action(reply) == "<search>the girl</search>"
    assert CANON.action("<answer>The Girl!</answer>") == "<answer>girl</answer>"
    assert CANON.action(" Sing. ") == "sing"
    react = SearchQACanonicalizer(form="react")
    assert react.action("Finish[The Girl]") == "finish[girl]"


@pytest.mark.parametrize("style", ["search_r1", "verl"])
def test_facts_are_put_into_words(style) -> None:
    canon = SearchQACanonicalizer(style=style)
    refusal = REFUSAL if style == "search_r1" else ""
    state = START
    for action, text in (
        (ASK, write_results([WAR, ZULA], style)),
        ("hm", refusal),
        ("<search>?</search>", write_results([], style)),
        ("<answer>x</answer>", ""),
    ):
        after = canon.update(state, action, text)
        assert canon.update(state, action, canon.describe(state, action, after)) == after
        state = after


def test_what_nobody_could_foresee() -> None:
    history = [Turn(None, f"Question: {GOAL}")]
    after_search = CANON.update(START, ASK, FOUND)
    assert CANON.reveals(GOAL, history, START, ASK, after_search)
    after_named_hit = CANON.update(START, ASK, write_results([WAR]))
    assert not CANON.reveals(GOAL, history, START, ASK, after_named_hit)
    later = [*history, Turn(ASK, FOUND)]
    assert not CANON.reveals(GOAL, later, after_search, ASK, CANON.update(after_search, ASK, FOUND))
    other_query = "<search>other</search>"
    assert not CANON.reveals(
        GOAL, later, after_search, other_query, CANON.update(after_search, other_query, FOUND)
    )
    third = write_results([Hit("", "Bridge", "", 0.0)])
    assert CANON.reveals(
        GOAL, later, after_search, other_query, CANON.update(after_search, other_query, third)
    )
    assert not CANON.reveals(
        GOAL, later, after_search, "hm", CANON.update(after_search, "hm", REFUSAL)
    )
