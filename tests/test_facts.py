from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import FactSyntaxError
from comap.facts import Delta, State, apply, diff, fact_to_text

CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]), st.sampled_from("\\\n\r(),! ne\x00\x85\u2028")
)
FACTS = st.lists(st.text(CHARACTERS, max_size=12), min_size=1, max_size=4).map(tuple)
STATES = st.builds(State, st.frozensets(FACTS, max_size=6), st.booleans())


@given(STATES)
def test_text_comes_back(state: State) -> None:
    assert State.from_text(state.to_text()) == state


@given(STATES)
def test_text_is_sorted_and_one_fact_a_line(state: State) -> None:
    text = state.to_text()
    lines = text.split("\n") if text else []
    assert len(lines) == len(state.facts) + (not state.parsed)
    assert State(frozenset(sorted(state.facts, reverse=True)), state.parsed).to_text() == text
    assert "\r" not in text, "a file opened as text would change it"


@given(FACTS, FACTS)
def test_different_facts_have_different_texts(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    assert (fact_to_text(first) == fact_to_text(second)) == (first == second)


@given(STATES, STATES)
def test_apply_is_the_inverse_of_diff(before: State, after: State) -> None:
    delta = diff(before, after)
    assert apply(before, delta).facts == after.facts
    assert apply(before, delta).parsed == before.parsed
    assert not delta.added & delta.removed
    assert len(delta) == len(before.facts ^ after.facts)
    assert diff(after, before) == Delta(delta.removed, delta.added)


@pytest.mark.parametrize(
    "line",
    ["in(a", "in(a))", "a)", "in(a,b)", "a, b", "in(a)b", "!x", "a\\x", "a\\", "in((a)", "a\r"],
)
def test_bad_lines_are_explained(line: str) -> None:
    with pytest.raises(FactSyntaxError, match=r"expected a fact such as .* \(wrong at character"):
        State.from_text(f"lit(lamp 1)\n{line}")


def test_states_are_small_immutable_values() -> None:
    state = State(frozenset({("a", "b")}))
    assert hash(state) == hash(State(frozenset({("a", "b")})))
    assert pickle.loads(pickle.dumps(state)) == state
    with pytest.raises(AttributeError):
        state.parsed = False  # type: ignore[misc]


def test_facts_come_in_any_collection() -> None:
    facts = frozenset({("at", "agent", "desk 1"), ("lit", "lamp 1")})
    for given_facts in (list(facts), set(facts), iter(facts), [list(fact) for fact in facts]):
        assert State(given_facts) == State(facts)  # type: ignore[arg-type]
        assert hash(State(facts)) == hash(State(list(facts)))  # type: ignore[arg-type]
    assert str(State(facts)) == State(facts).to_text()
    assert str(Delta(facts)) == Delta(facts).to_text()
    for wrong in ("at(agent, desk 1)", ["at(agent, desk 1)"], [3]):
        with pytest.raises(FactSyntaxError, match="from_text reads text"):
            State(wrong)  # type: ignore[arg-type]


def test_lone_surrogates_survive() -> None:
    state = State(frozenset({("said", "\ud83d")}))
    assert State.from_text(state.to_text()) == state
