"""Log-probabilities, texts of tokens and probabilities of words, of models behind a server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError
from comap.lm import (
    Generate,
    Sampling,
    Score,
    WordProbabilities,
    Words,
)
from comap.lm.openai import OpenAILanguageModel
from comap.lm.openai_answers import word_probabilities

pytest.importorskip("openai")

hostile = load(f"{Path(__file__).with_name('hostile_server.py')}:KIT")
kit = load(f"{Path(__file__).with_name('openai_kit.py')}:KIT")
LOCAL, MESSAGES, no_key = kit.LOCAL, kit.MESSAGES, kit.no_key
made, ask, error_of = kit.made, kit.ask, kit.error_of
logprobs_of, refuses = kit.logprobs_of, kit.refuses


def test_logprobs_and_token_ids() -> None:
    says = hostile.says("ab", logprobs=logprobs_of(-0.5, -1.25), token_ids=[4, 2])
    with hostile.HostileServer(says) as server:
        reply = ask(made(server, extra_body={"return_token_ids": True}))
        assert server.requests[0]["logprobs"] is True
        assert server.requests[0]["return_token_ids"] is True
    assert reply.logprobs == (-0.5, -1.25) and reply.token_ids == (4, 2)


def told(*tokens: Any, **changes: Any) -> Any:
    content = [{"token": token, "logprob": -1.0} for token in tokens]
    return hostile.says("go north", logprobs={"content": content}, **changes)


def test_the_texts_of_tokens() -> None:
    with hostile.HostileServer(told("go", " north", "\n", "<|im_end|>")) as server:
        model = made(server)
        assert "tokens" in model.capabilities
        reply = ask(model, sampling=Sampling(stop=("\n",)))
    assert reply.tokens == ("go", " north", "\n", "<|im_end|>") and reply.text == "go north"
    assert reply.logprobs is not None and len(reply.logprobs) == len(reply.tokens)


def test_no_texts_of_tokens() -> None:
    assert "tokens" not in OpenAILanguageModel("tiny", LOCAL, logprobs=False).capabilities
    with hostile.HostileServer(told("go", None), told("go", 3), hostile.says()) as server:
        model = made(server)
        first, second, third = ask(model), ask(model), ask(model)
    assert first.tokens is second.tokens is third.tokens is None and third.logprobs is None
    assert first.logprobs == second.logprobs == (-1.0, -1.0)


def test_a_character_of_several_tokens_comes_with_the_last() -> None:
    content = [
        {"token": f"bytes:{byte}", "bytes": [byte], "logprob": -1.0} for byte in "é".encode()
    ]
    halves = [{"token": "\ud83d", "logprob": -1.0}, {"token": "x", "logprob": -1.0}]
    split = hostile.says("é", logprobs={"content": content})
    with hostile.HostileServer(split, hostile.says("?x", logprobs={"content": halves})) as server:
        model = made(server)
        assert ask(model).tokens == ("", "é")
        assert ask(model).tokens == ("?", "x")


def test_no_token_tells_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1234567890")
    with hostile.HostileServer(told("sk-secret", "-1234567890")) as server:
        text = error_of(made(server), Generate(MESSAGES))
    assert "repeats the key" in text and "sk-secret" not in text


def test_a_refused_score_says_what_to_set() -> None:
    text = error_of(OpenAILanguageModel("tiny", LOCAL), Score(MESSAGES, ("a",)))
    assert "set q_source='proxy'" in text


def test_no_logprobs_are_told() -> None:
    with hostile.HostileServer(hostile.says(logprobs=None)) as server:
        assert ask(made(server)).logprobs is None
        assert ask(made(server, logprobs=False)).logprobs is None
        assert "logprobs" not in server.requests[-1]


@pytest.mark.parametrize("status", [400, 422])
def test_refused_logprobs_are_not_asked_for_again(status: int) -> None:
    server = hostile.HostileServer(refuses("logprobs", "unknown field: logprobs", status))
    with server:
        model = made(server, max_retries=0)
        assert ask(model).text == ask(model).text == "go north"
        asked = ["logprobs" in request for request in server.requests]
        assert asked == [True, False, False] and model.usage.retries == 1


def test_a_refusal_for_another_reason_is_not_held_against_logprobs() -> None:
    echo = hostile.sends({"error": "too long", "input": {"logprobs": True}}, 400)
    with hostile.HostileServer(echo, echo, hostile.says()) as server:
        model = made(server)
        error_of(model, Generate(MESSAGES))
        ask(model)
        assert "logprobs" in server.requests[-1]


def tops(**probabilities: float) -> Any:
    listed = [
        {"token": token.replace("_", " "), "logprob": math.log(p), "bytes": None}
        for token, p in probabilities.items()
    ]
    entry = {"token": "x", "logprob": -1.0, "top_logprobs": listed}
    return hostile.says("x", logprobs={"content": [entry]}, finish_reason="length")


def test_words_from_the_likeliest_tokens() -> None:
    request = Words(MESSAGES, (" KEEP", " REVISE", " STOP"), "Decision:")
    with hostile.HostileServer(tops(_KEEP=0.5, _RE=0.25, _R=0.01, _=0.02, other=0.2)) as server:
        model = made(server, prefix_mode="continue")
        (reply,) = model.words([request])
        sent = server.requests[0]
    assert isinstance(reply, WordProbabilities)
    assert reply.probabilities == pytest.approx((0.5, 0.25, 0.0)) and reply.prompt_tokens == 7
    assert (sent["logprobs"], sent["top_logprobs"], sent["max_tokens"]) == (True, 20, 1)
    assert sent["temperature"] == sent["top_p"] == 1.0
    assert sent["messages"][-1]["content"] == "Decision:" and sent["continue_final_message"]


def test_words_need_a_server_that_continues_and_tells() -> None:
    request = Words(MESSAGES, (" KEEP", " REVISE"), "Decision:")
    text = error_of(OpenAILanguageModel("tiny", LOCAL), request)
    assert "prefix_mode='continue'" in text
    with hostile.HostileServer(hostile.says("x", logprobs=None)) as server:
        text = error_of(made(server, prefix_mode="continue"), request)
        assert "without the probabilities" in text and len(server.requests) == 1


def test_words_that_begin_alike() -> None:
    for words in ((" RE", " REVISE"), (" A", " A")):
        with pytest.raises(LanguageModelError, match="begin differently"):
            word_probabilities({b" RE": 0.5}, words)
    with pytest.raises(LanguageModelError, match="begin differently"):
        word_probabilities({b" RE": 0.5, b" REV": 0.1}, (" REVISE", " REPEAT"))
    assert word_probabilities({b"x": 0.5}, (" A", " B")) == (0.0, 0.0)


def test_words_by_bytes() -> None:
    assert word_probabilities({"é".encode()[:1]: 0.5, b"a": 0.25}, ("é", "a")) == (0.5, 0.25)
