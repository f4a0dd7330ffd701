"""What a language model behind a server does when the server misbehaves."""

from __future__ import annotations

import json
import logging
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError
from comap.lm import Completion, Generate, Message, Sampling
from comap.lm.openai import OpenAILanguageModel
from comap.lm.openai_connection import MAX_ANSWER_BYTES

pytest.importorskip("openai")


hostile = load(f"{Path(__file__).with_name('hostile_server.py')}:KIT")
KEY = "sk-secret-1234567890abcdef"
LOOK = Generate((Message("user", "You are in a room. What do you do?"),))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def made(server: Any, **options: Any) -> OpenAILanguageModel:
    options = {"backoff": 0.01, "timeout": 5, "max_retries": 2, **options}
    return OpenAILanguageModel("tiny", server.url, **options)


def ask(model: OpenAILanguageModel, request: Generate = LOOK) -> Completion | LanguageModelError:
    (reply,) = model.generate([request])
    return reply


def error_of(model: OpenAILanguageModel, request: Generate = LOOK) -> str:
    reply = ask(model, request)
    assert isinstance(reply, LanguageModelError), reply
    text = str(reply)
    assert "\n" not in text
    assert text.startswith("expected an answer of tiny (loopback), found ")
    assert ";" in text, "a message says what to do"
    assert KEY not in text and KEY[:10] not in text
    return text


GOOD = hostile.says()
MALFORMED = {
    "truncated": hostile.raw(json.dumps(hostile.completion()).encode()[:60]),
    "html": hostile.raw(b"<html><body>Welcome</body></html>", content_type="text/html"),
    "empty": hostile.raw(b""),
    "list": hostile.sends([]),
    "null": hostile.sends(None),
    "no choices": hostile.sends({"id": "1"}),
    "empty choices": hostile.sends({"choices": []}),
    "choices a dict": hostile.sends({"choices": {"0": "x"}}),
    "choice a text": hostile.sends({"choices": ["x"]}),
    "message a list": hostile.sends({"choices": [{"message": [], "finish_reason": "stop"}]}),
    "content a list": hostile.says(["go", "north"]),
    "content a number": hostile.says(7),
    "content null": hostile.says(None),
    "finish a number": hostile.says(finish_reason=3),
    "finish unknown": hostile.says(finish_reason="tool_calls"),
    "deep": hostile.raw(b"[" * 200_000 + b"]" * 200_000),
    "long number": hostile.raw(b'{"choices": ' + b"9" * 10_000 + b"}"),
    "not utf-8": hostile.raw(b'{"choices": "\xff\xfe"}'),
    "logprobs": hostile.says(logprobs={"content": [{"token": "a", "logprob": "low"}]}),
    "positive logprobs": hostile.says(logprobs={"content": [{"token": "a", "logprob": 3.0}]}),
    "logprobs not listed": hostile.says(logprobs={"content": {"token": "a"}}),
    "tokens": hostile.says(token_ids=["a"]),
    "broken off": hostile.breaks_off,
}


@pytest.mark.parametrize("behaviour", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_answers_are_asked_for_again(behaviour: Any) -> None:
    with hostile.HostileServer(behaviour, GOOD) as server:
        model = made(server)
        reply = ask(model)
        assert isinstance(reply, Completion) and reply.text == "go north"
        assert model.usage.retries == 1 and model.usage.requests == 1
    with hostile.HostileServer(behaviour) as server:
        text = error_of(made(server))
        assert "in 3 tries" in text and len(server.requests) == 3


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_passing_faults_are_tried_again(status: int) -> None:
    with hostile.HostileServer(hostile.sends({"error": "busy"}, status), GOOD) as server:
        model = made(server)
        assert isinstance(ask(model), Completion)
        assert model.usage.retries == 1
    with hostile.HostileServer(hostile.sends({"error": "busy"}, status)) as server:
        text = error_of(made(server, max_retries=1))
        assert f"HTTP {status}" in text and "busy" in text and "in 2 tries" in text


@pytest.mark.parametrize("status", [302, 307, 400, 401, 403, 404, 413, 422])
def test_refusals_are_final(status: int) -> None:
    elsewhere = "http://127.0.0.1:9/v1"
    refuses = hostile.sends({"error": {"message": "no\nway"}}, status, location=elsewhere)
    with hostile.HostileServer(refuses) as server:
        text = error_of(made(server))
        assert f"HTTP {status}" in text and "in 1 try" in text
        assert len(server.requests) == 1
    if status in (401, 403):
        assert "OPENAI_API_KEY" in text


def test_the_batch_goes_on() -> None:
    def sometimes(handler: Any) -> None:
        refused = "bad" in handler.body["messages"][-1]["content"]
        (hostile.sends({}, 400) if refused else hostile.repeats_last_message)(handler)

    texts = [f"{'bad' if i % 3 == 0 else 'good'} {i}" for i in range(20)]
    with hostile.HostileServer(sometimes) as server:
        replies = made(server).generate([Generate((Message("user", text),)) for text in texts])
    for text, reply in zip(texts, replies, strict=True):
        if text.startswith("bad"):
            assert isinstance(reply, LanguageModelError)
        else:
            assert isinstance(reply, Completion) and reply.text == text


@pytest.mark.parametrize("behaviour", [hostile.hangs, hostile.trickles, hostile.trickles_headers])
def test_time_is_bounded(behaviour: Any) -> None:
    with hostile.HostileServer(behaviour) as server:
        start = time.monotonic()
        text = error_of(made(server, timeout=0.3, max_retries=1))
        assert time.monotonic() - start < 3
    assert "within 0.3 s" in text and "in 2 tries" in text and "raise timeout" in text


@pytest.mark.parametrize("status", [200, 500])
def test_large_answers_are_refused(status: int) -> None:
    with hostile.HostileServer(hostile.floods(status)) as server:
        text = error_of(made(server))
        assert f"{MAX_ANSWER_BYTES:,} bytes" in text and "in 1 try" in text


def test_compressed_answers_are_refused() -> None:
    with hostile.HostileServer(hostile.raw(b"\x1f\x8b", content_encoding="gzip")) as server:
        assert "compressed" in error_of(made(server))
        assert server.headers[0]["accept-encoding"] == "identity"


def test_a_server_that_is_not_there() -> None:
    with hostile.HostileServer(GOOD) as server:
        pass
    text = error_of(made(server, max_retries=1))
    assert "broken connection" in text and "check that the server runs" in text


@pytest.mark.parametrize("date", [False, True])
def test_retry_after_is_kept(date: bool) -> None:
    wait = formatdate(time.time() + 2, usegmt=True) if date else "0.5"
    busy = hostile.sends({}, 429, retry_after=wait)
    with hostile.HostileServer(busy, GOOD) as server:
        start = time.monotonic()
        assert isinstance(ask(made(server)), Completion)
        assert time.monotonic() - start > 0.4


@pytest.mark.parametrize("wait", ["soon", "-5", "nan", "inf", "1e999", ""])
def test_senseless_retry_after(wait: str) -> None:
    with hostile.HostileServer(hostile.sends({}, 429, retry_after=wait), GOOD) as server:
        assert isinstance(ask(made(server)), Completion)


def test_a_long_wait_is_not_waited() -> None:
    with hostile.HostileServer(hostile.sends({}, 429, retry_after="86400")) as server:
        text = error_of(made(server, max_wait=1))
        assert "86400 s" in text and "in 1 try" in text


REPEATS = {
    "error": hostile.repeats_key(500),
    "refusal": hostile.repeats_key(400),
    "detail": hostile.repeats_key(401, "detail"),
    "in an answer without choices": hostile.repeats_key(200),
}


@pytest.mark.parametrize("behaviour", REPEATS.values(), ids=REPEATS.keys())
def test_the_key_is_not_told(behaviour: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with hostile.HostileServer(behaviour) as server:
        model = made(server, max_retries=0)
        error = ask(model)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert isinstance(error, LanguageModelError)
    assert (error.__context__, error.__cause__, error.__traceback__) == (None, None, None)
    for text in (str(error), repr(model), json.dumps(model.config()), caplog.text):
        assert KEY not in text and KEY[:10] not in text


@pytest.mark.parametrize("shown", [KEY, f"Bearer {KEY}", KEY[:12]])
def test_the_key_is_not_told_by_text_that_is_no_json(shown: str) -> None:
    with hostile.HostileServer(hostile.raw(b"go away, " + shown.encode())) as server:
        assert "withheld" in error_of(made(server, max_retries=0))


def test_an_answer_that_holds_the_key_is_an_error() -> None:
    with hostile.HostileServer(hostile.says(f"your key is {KEY}")) as server:
        text = error_of(made(server))
        assert "repeats the key" in text and "in 1 try" in text


def test_nothing_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-private")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-private")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer other\nX-Private: yes")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with hostile.HostileServer(GOOD) as server:
        assert isinstance(ask(made(server)), Completion)
        headers = server.headers[0]
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "private" not in json.dumps(headers)
    assert not [name for name in headers if name.startswith("x-")]


def test_a_server_on_this_machine_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with hostile.HostileServer(GOOD) as server:
        assert isinstance(ask(made(server)), Completion)
        assert server.headers[0]["authorization"] == "Bearer none"


def test_usage_of_wrong_types_is_estimated() -> None:
    for usage in ("many", {"prompt_tokens": "7", "completion_tokens": -1}, [1], None, True):
        data = hostile.completion("go north!") | {"usage": usage}
        with hostile.HostileServer(hostile.sends(data)) as server:
            reply = ask(made(server))
        assert isinstance(reply, Completion)
        content = LOOK.messages[0].content
        assert reply.prompt_tokens == -(-len(content) // 4) and reply.completion_tokens == 3


def test_half_surrogates_are_replaced() -> None:
    with hostile.HostileServer(hostile.says("a\ud800b")) as server:
        reply = ask(made(server))
    assert isinstance(reply, Completion) and reply.text == "a\ufffdb"


def test_filtered_text_is_an_error() -> None:
    with hostile.HostileServer(hostile.says("", finish_reason="content_filter")) as server:
        text = error_of(made(server))
        assert "filter" in text and "in 1 try" in text


def test_thinking_that_used_all_tokens_is_explained() -> None:
    with hostile.HostileServer(hostile.says(None, finish_reason="length")) as server:
        assert "enable_thinking" in error_of(made(server, max_retries=0))


def test_an_interrupted_batch_leaves_the_model_usable() -> None:
    with hostile.HostileServer(hostile.hangs, GOOD) as server:
        model = made(server, timeout=0.2, max_retries=0)
        assert isinstance(ask(model), LanguageModelError)
        assert isinstance(ask(model), Completion)


def test_long_server_messages_are_cut() -> None:
    with hostile.HostileServer(hostile.sends({"error": "x" * 100_000}, 400)) as server:
        assert len(error_of(made(server))) < 500


def test_sampling_is_sent_as_asked() -> None:
    request = Generate(LOOK.messages, Sampling(9, 0.5, 0.9, ("\n",), seed=4))
    with hostile.HostileServer(GOOD) as server:
        ask(made(server), request)
        sent = server.requests[0]
    assert sent["model"] == "tiny" and sent["max_tokens"] == 9 and sent["stop"] == ["\n"]
    assert (sent["temperature"], sent["top_p"], sent["seed"]) == (0.5, 0.9, 4)
