"""Change tokens: spans by hand, and the likelihood against a forward pass of a tiny model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.errors import LanguageModelError
from comap.facts import Delta, State
from comap.lm import Score
from comap.trainers.comap.evaluation import change_spans, change_token_nll
from comap.trajectory import Turn
from comap.worldmodel import Query, Transition
from comap.worldmodel.language import LanguageWorldModel

ENV = "comap/ALFWorld-v0"
CANON = ALFWorldCanonicalizer()


def change_texts(text, added=(), removed=(), previous=""):
    delta = Delta(frozenset(added), frozenset(removed))
    return [text[start:end] for start, end in change_spans(text, delta, previous)]


def test_names_and_states_by_hand():
    assert change_texts(
        "You arrive at shelf 1. On the shelf 1, you see a cd 2, and a pen 11.",
        [("at", "agent", "shelf 1"), ("seen", "shelf 1"), ("in", "pen 11", "shelf 1")],
        [("at", "agent", "pen 1")],
    ) == ["shelf 1", "shelf 1", "pen 11"]
    assert change_texts("You close the Safe 1.", [("closed", "safe 1")], [("open", "safe 1")]) == [
        "close",
        "Safe 1",
    ], "whatever the case; a state that ended has no word"
    assert change_texts(
        "The safe 1 is open. In it, you see nothing.", [("open", "safe 1"), ("seen", "safe 1")]
    ) == ["safe 1", "open", "nothing"]
    assert change_texts(
        "You pick up the pen 1 from the desk 1.",
        [("holding", "pen 1")],
        [("in", "pen 1", "desk 1")],
    ) == ["pick up", "pen 1", "desk 1"]
    assert change_texts("You heat the egg 1.", [("hot", "egg 1")], [("cool", "egg 1")]) == [
        "heat",
        "egg 1",
    ]
    assert change_texts("A desk lamp 1.", [("in", "desk lamp 1", "desk")]) == ["desk lamp 1"]


@pytest.mark.parametrize("delta", [None, Delta(frozenset({("page", "results")}))])
def test_else_the_new_words_are_the_change(delta):
    """Where facts are not known, or the text has none of their words."""
    text = "A page of 12 mugs, red."
    spans = change_spans(text, delta, "A page of 3 mugs.")
    assert [text[start:end] for start, end in spans] == ["12", ", red"]
    assert change_spans(text, delta, text) == []
    assert change_spans(text, delta, "") == [(0, len(text))]
    assert change_spans(text, Delta(), "You see a pen.") == [], "nothing changed"


@given(
    st.text(max_size=30),
    st.none()
    | st.builds(
        Delta,
        st.frozensets(
            st.tuples(st.sampled_from(["open", "in", "seen"]), st.text(max_size=3)), max_size=3
        ),
        st.frozensets(st.lists(st.text(max_size=2), min_size=1).map(tuple), max_size=2),
    ),
    st.text(max_size=30),
)
def test_spans_are_sorted_and_apart(text, delta, previous):
    spans = change_spans(text, delta, previous)
    places = [place for span in spans for place in span]
    assert places == sorted(places) and all(0 <= low < high <= len(text) for low, high in spans)


# -- with a model --------------------------------------------------------------------------------

FIRST = "You are in a room. You see a safe 1, a desk 1 and a shelf 1."
TEXTS = [
    "You open the safe 1. In it, you see a pen 1.",
    "Nothing happens.",
    "You pick up the pen 1 from the safe 1.",
    "The dragon sleeps, not <|end|> awake.",
]
NEAR = ("at", "agent", "safe 1")


def transitions():
    states = [
        State(frozenset({NEAR, ("closed", "safe 1")})),
        State(frozenset({NEAR})),
        State(frozenset({NEAR, ("open", "safe 1"), ("in", "pen 1", "safe 1")})),
        State(frozenset({NEAR})),
    ]
    actions = ["open safe 1", "open desk 1", "take pen 1 from safe 1", "look"]
    history = (Turn(None, FIRST),)
    return [
        Transition(Query(ENV, "find a pen.", history, state, action), text)
        for state, action, text in zip(states, actions, TEXTS, strict=True)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from comap.lm.hf import HFLanguageModel
    from comap.lm.tiny import build_tiny

    folder = build_tiny(
        tmp_path_factory.mktemp("tiny"), [FIRST, *TEXTS] * 3, parameters=200_000, max_length=512
    )
    lm = HFLanguageModel(folder, device="cpu")
    return LanguageWorldModel(lm, prompts="brief", max_length=256, max_new_tokens=64)


def tokenizer_of(model):
    return model.lm.tokenizer


def by_hand(model, number):
    """The tokens of one observation and their log-probabilities by a forward pass of their own."""
    import torch

    lm = model.lm
    query, text = transitions()[number]
    text = text.replace("<|end|>", "< |end|>")
    (prompt,) = lm._chat.prompts([Score(model.prompt(query), (text,))])
    tokens = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = lm.model(input_ids=torch.tensor([prompt + tokens])).logits[0]
    table = logits.log_softmax(-1)
    values = [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]
    return [lm.tokenizer.decode([token]).strip() for token in tokens], values


def token_values(model, number, places, expected_text):
    """The values of the tokens at some places, which together read as `expected_text`."""
    words, values = by_hand(model, number)
    assert " ".join(words[place] for place in places) == expected_text
    return [values[place] for place in places]


def test_the_likelihood_is_that_of_the_change_tokens(model):
    likelihood = change_token_nll(
        model, transitions()[:3], CANON, tokenizer=tokenizer_of(model), batch=2
    )
    # A digit is a token of its own: You open the safe 1. In it, you see a pen 1.
    expected_logprobs = token_values(model, 0, [1, 3, 4, 12, 13], "open safe 1 pen 1")
    expected_logprobs += token_values(model, 2, [1, 2, 4, 5, 8, 9], "pick up pen 1 safe 1")
    all_logprobs = [value for number in range(3) for value in by_hand(model, number)[1]]
    assert likelihood.tokens == 11 and likelihood.transitions == 2 and likelihood.failed == 0
    assert likelihood.nll == pytest.approx(-sum(expected_logprobs) / 11, abs=1e-5)
    assert likelihood.tokens_all == len(all_logprobs)
    assert likelihood.nll_all == pytest.approx(-sum(all_logprobs) / len(all_logprobs), abs=1e-5)
    assert likelihood.nll != likelihood.nll_all


def test_control_tokens_and_unknown_facts(model):
    """What is written like a control token is broken up; unread text is compared word by word."""
    query, text = transitions()[3]
    likelihood = change_token_nll(
        model, [Transition(query, text)], CANON, tokenizer=tokenizer_of(model)
    )
    words, _ = by_hand(model, 3)
    assert likelihood.tokens_all == len(words)
    assert 0 < likelihood.tokens < len(words), "the previous observation has the period too"
    assert likelihood.failed == 0


def test_the_truth_is_in_no_prompt(model):
    score_requests = []

    class Full:
        """Remembers what it is asked, and has no room for it."""

        name, capabilities = "full", frozenset({"score"})
        count_tokens = staticmethod(model.lm.count_tokens)

        def score(self, requests):
            score_requests.extend(requests)
            return [LanguageModelError("full") for _ in requests]

    full = Full()
    wm = LanguageWorldModel(full, prompts="brief", adapter="wm", max_length=256, max_new_tokens=64)
    likelihood = change_token_nll(wm, transitions()[:3], CANON, tokenizer=tokenizer_of(model))
    assert (likelihood.nll, likelihood.tokens_all, likelihood.failed) == (None, 0, 3)
    for request, (query, text) in zip(score_requests, transitions(), strict=False):
        assert request.adapter == "wm" and request.completions == (text,) and not request.ended
        assert request.messages == wm.prompt(query)
        assert not any(text in message.content for message in request.messages)


def test_empty_observations_and_sets(model):
    query, _ = transitions()[0]
    for sample in ([], [Transition(query, "")]):
        likelihood = change_token_nll(model, sample, CANON, tokenizer=tokenizer_of(model))
        assert (likelihood.nll, likelihood.tokens_all, likelihood.failed) == (None, 0, 0)
    odd = Transition(query, "a \ud800 pen 1")
    assert change_token_nll(model, [odd], CANON, tokenizer=tokenizer_of(model)).tokens_all
