"""A language model behind a server: what it sends, what it reads, and what a bad server cannot do."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import sys
import threading
import time

import gymnasium
import pytest

from comap.agents import create_agent, run_episode
from comap.errors import LanguageModelError, OptionError
from comap.lm import (
    Completion,
    Encode,
    Generate,
    LanguageModel,
    Message,
    NextWord,
    Sampling,
    Score,
    answer,
)
from comap.lm.openai import (
    CONTINUE,
    MAX_ANSWER_BYTES,
    OpenAILanguageModel,
)
from comap.worldmodel.null import NullWorldModel
from kits.hostile_server import (
    HostileServer,
    breaks_off,
    completion,
    floods,
    hangs,
    raw,
    repeats_key,
    repeats_last_message,
    says,
    sends,
    slams,
    slowly,
    trickles,
)

pytest.importorskip("openai")

MESSAGES = (Message("system", "Be brief."), Message("user", "What now?"))
LOCAL = "http://127.0.0.1:9/v1"
KEY = "sk-secret-1234567890abcdef"
GOOD = says()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def model_at(server, **options):
    options = {"timeout": 5, "max_retries": 1, **options}
    return OpenAILanguageModel("tiny", server.url, **options)


def ask(model, **fields):
    (reply,) = model.generate([Generate(MESSAGES, **fields)])
    assert isinstance(reply, Completion), reply
    return reply


def error_of(model, *requests):
    replies = answer(model, requests or [Generate(MESSAGES)])
    assert all(isinstance(reply, LanguageModelError) for reply in replies)
    text = str(replies[0])
    assert "\n" not in text and KEY not in text and KEY[:10] not in text
    return text


def logprobs_of(*values):
    return {"content": [{"token": "x", "logprob": value} for value in values]}


def refuses(field, message):
    refusal = sends({"error": {"message": message}}, 400)

    def behavior(handler):
        (refusal if field in handler.body else GOOD)(handler)

    return behavior


def test_it_is_a_language_model():
    model = OpenAILanguageModel("tiny", LOCAL)
    assert isinstance(model, LanguageModel) and model.generate([]) == []
    assert model.count_tokens("") == 0 and model.count_tokens("abcde") == 2
    for request in (Score(MESSAGES, ("a",)), Encode(MESSAGES)):
        assert "tiny" in error_of(model, request, request), "each has its error in its place"
    assert "runs in this process" in error_of(model, Score(MESSAGES, ("a",)))


def test_a_server_is_checked_by_one_small_request():
    fine = [
        GOOD,
        sends({}, 429),
        sends({}, 503),
        says(None),
        hangs,
    ]
    wrong = {401: "OPENAI_API_KEY", 404: "the model's name and base_url"}
    behaviors = [
        *fine,
        *(sends({}, status) for status in wrong),
        raw(b"<html>"),
    ]
    with HostileServer(*behaviors) as server:
        model = model_at(server, timeout=0.5, max_retries=3)
        for _ in fine:
            model.check_server()
        for phrase in (*wrong.values(), "no JSON"):
            with pytest.raises(LanguageModelError, match=phrase):
                model.check_server()
        assert len(server.requests) == len(behaviors), "nothing was sent twice"
        assert {body["max_tokens"] for body in server.requests} == {16}
    with pytest.raises(LanguageModelError, match="a broken connection"):
        OpenAILanguageModel("tiny", LOCAL).check_server()


def test_usage_and_cost():
    with HostileServer(sends({}, 500), says()) as server:
        model = model_at(server, prices=(1.0, 10.0))
        reply = ask(model)
        assert (reply.prompt_tokens, reply.completion_tokens) == (7, 3)
        model.generate([Generate(MESSAGES)] * 9)
    usage = model.usage
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (10, 70, 30)
    assert usage.retries == 1
    assert usage.cost == pytest.approx((70 * 1 + 30 * 10) / 1e6)


def test_concurrency_is_used_and_bounded_over_threads():
    with HostileServer(slowly) as server:
        model = model_at(server, concurrency=3)
        work = [
            threading.Thread(target=model.generate, args=([Generate(MESSAGES)] * 5,))
            for _ in range(3)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert server.most == 3 and len(server.requests) == 15 and model.usage.requests == 15


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork():
    with HostileServer(says("hi")) as server:
        model = model_at(server)
        ask(model)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=lambda: queue.put(ask(model).text), daemon=True)
        child.start()
        child.join(20)
        alive = child.is_alive()
        child.kill()
        assert not alive and queue.get() == "hi"


# Stop strings.


def test_stops_are_sent_and_applied_here_too():
    stops = ("E", "D", "C", "B", "\n")
    with HostileServer(says("go on\nB", finish_reason="length")) as server:
        reply = ask(model_at(server), sampling=Sampling(stop=stops))
        assert server.requests[0]["stop"] == list(stops[:4])
    assert (reply.text, reply.finish) == ("go on", "stop")


# What servers do not understand.


def test_max_completion_tokens_where_the_server_wants_it():
    message = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    with HostileServer(refuses("max_tokens", message)) as server:
        model = model_at(server, max_retries=0)
        ask(model, sampling=Sampling(max_new_tokens=5))
        ask(model, sampling=Sampling(max_new_tokens=6))
        limits = [request.get("max_completion_tokens") for request in server.requests]
        assert limits == [None, 5, 6]


# Prefixes.


def test_a_prefix_that_the_model_is_asked_to_continue():
    repeated = says("Action: go north", logprobs=logprobs_of(-1, -1))
    with HostileServer(repeated, says(" south", logprobs=logprobs_of(-2))) as server:
        model = model_at(server)
        first, second = ask(model, prefix="Action: go"), ask(model, prefix="Action: go")
        request = server.requests[0]
    assert (first.text, first.logprobs, first.tokens) == (" north", None, None)
    assert (second.text, second.logprobs) == (" south", (-2.0,))
    assert [m["role"] for m in request["messages"]] == ["system", "user", "assistant", "user"]
    assert request["messages"][-1]["content"] == CONTINUE


# Choices, words, adapters.


@pytest.mark.parametrize(
    "request_",
    [
        Generate(MESSAGES, choices=("go", "stay")),
        NextWord(MESSAGES, (" KEEP", " REVISE"), "Decision:"),
    ],
)
def test_what_chat_completions_have_not_leads_to_vllm(request_):
    text = error_of(OpenAILanguageModel("tiny", LOCAL), request_)
    assert "--engine http://HOST:PORT" in text, "the server is not asked"


def test_adapters_are_models_of_the_server():
    with HostileServer(says()) as server:
        model = model_at(server, adapters={"world model": "wm-lora"})
        ask(model, adapter="world model")
        ask(model)
        assert [request["model"] for request in server.requests] == ["wm-lora", "tiny"]
        text = error_of(model, Generate(MESSAGES, adapter="world modl"))
        assert "did you mean 'world model'?" in text and len(server.requests) == 2


@pytest.mark.parametrize(
    ("messages", "phrase"),
    [
        ((), "found none"),
        ((Message("tool", "x"),), "role"),
        ((Message("user", 3),), "found int"),
    ],
)
def test_messages_that_cannot_be_sent(messages, phrase):
    with HostileServer(GOOD) as server:
        replies = model_at(server).generate([Generate(messages), Generate(MESSAGES)])
        assert len(server.requests) == 1
    assert isinstance(replies[0], LanguageModelError) and phrase in str(replies[0])
    assert isinstance(replies[1], Completion)


# Thoughts, calls, and variables of chat templates.


def thought(**message):
    response = completion(None, finish_reason=message.pop("finish", "stop"))
    response["choices"][0]["message"] |= message
    return response


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_that_the_server_keeps_apart_is_not_read(name):
    answered = thought(content="Action: go", **{name: "Action: stay, or not?"})
    with HostileServer(sends(answered)) as server:
        reply = ask(model_at(server))
    assert (reply.text, reply.finish, reply.completion_tokens) == ("Action: go", "stop", 3)


@pytest.mark.parametrize("content", [None, ""])
def test_a_model_that_was_still_thinking_says_nothing_and_is_cut(content):
    cut = thought(content=content, reasoning_content="Hm, " * 9, finish="length")
    del cut["usage"]
    with HostileServer(sends(cut), says(None, finish_reason="length")) as s:
        model = model_at(s)
        reply, hidden = ask(model), ask(model)
    assert (reply.text, reply.finish) == (hidden.text, hidden.finish) == ("", "length")
    assert reply.completion_tokens == model.count_tokens("Hm, " * 9), "a thought is paid for"


def test_a_thought_without_a_reply_is_an_empty_reply():
    with HostileServer(sends(thought(reasoning="Hm."))) as server:
        reply = ask(model_at(server))
    assert (reply.text, reply.finish) == ("", "stop")


def test_tokens_are_those_of_the_reply_alone():
    content = [
        {"token": token, "logprob": -1.0} for token in ("go", "?", "</think>", "go", " north")
    ]
    response = thought(content="go north", reasoning_content="go?")
    response["choices"][0] |= {"logprobs": {"content": content}, "token_ids": [1, 2, 3, 4, 5]}
    with HostileServer(sends(response)) as server:
        reply = ask(model_at(server))
    assert (reply.tokens, reply.logprobs, reply.token_ids) == (("go", " north"), (-1, -1), (4, 5))


def test_calls_are_text_that_an_agent_can_read():
    function = {"name": "weather_for_x", "arguments": '{"city": "Zürich"}'}
    calls = [{"type": "function", "function": function}, {"function": {"name": "later"}}]
    call = '{"name": "weather_for_x", "arguments": {"city": "Zürich"}}'
    replies = (
        thought(tool_calls=calls, finish="tool_calls"),
        thought(content="I look it up.", tool_calls=calls, finish="tool_calls"),
        thought(function_call={"name": "look", "arguments": None}, finish="function_call"),
        thought(tool_calls=[{"function": {"name": "f", "arguments": "{broken"}}]),
    )
    with HostileServer(*map(sends, replies)) as server:
        model = model_at(server)
        texts = [ask(model).text for _ in replies]
    assert texts == [
        call,
        f"I look it up.\n{call}",
        '{"name": "look", "arguments": {}}',
        '{"name": "f", "arguments": "{broken"}',
    ]


@pytest.mark.parametrize(
    "calls", [[], {}, ["f"], [{"function": "f"}], [{"function": {"name": 3}}], [[]], None]
)
def test_calls_that_are_none_are_no_reply(calls):
    with HostileServer(sends(thought(tool_calls=calls))) as server:
        assert "chat_template_kwargs" in error_of(model_at(server))


FIXED = {"enable_thinking": False, "date_string": "26 Jul 2024"}


def test_servers_are_told_whether_to_think_and_a_fixed_date():
    stops = Sampling(stop=("\n",))
    with HostileServer(GOOD) as server:
        model = model_at(server)
        ask(model, sampling=stops)
        ask(model, sampling=stops, thinking=True)
        own_model = model_at(
            server, chat_template_kwargs={"enable_thinking": True, "date_string": "today"}
        )
        ask(own_model, thinking=False)
        extra_body_model = model_at(
            server, extra_body={"chat_template_kwargs": {"x": 1}, "top_k": 5}
        )
        ask(extra_body_model)
        template_kwargs = [request["chat_template_kwargs"] for request in server.requests]
        assert [request.get("stop") for request in server.requests[:2]] == [["\n"], None]
    assert template_kwargs[0] == FIXED and template_kwargs[1] == FIXED | {"enable_thinking": True}
    assert template_kwargs[2] == {
        "enable_thinking": True,
        "date_string": "today",
    } and template_kwargs[3] == {
        **FIXED,
        "x": 1,
    }
    assert own_model.config()["chat_template_kwargs"] == template_kwargs[2]
    assert extra_body_model.config()["extra_body"] == {"top_k": 5}
    assert (model.thinks(), model.thinks(True), own_model.thinks(False)) == (False, True, True)


def test_openais_own_server_is_not_sent_what_it_would_refuse():
    model = OpenAILanguageModel("gpt")
    assert "chat_template_kwargs" not in model._body(Generate(MESSAGES))["extra_body"]
    assert "chat_template_kwargs" not in model.config()
    template_model = OpenAILanguageModel("gpt", chat_template_kwargs={"x": 1})
    assert template_model._body(Generate(MESSAGES))["extra_body"]["chat_template_kwargs"] == {
        "x": 1
    }


def test_a_server_that_refuses_template_variables_is_asked_without_them():
    refusal = "Unexpected keys in the request: {'chat_template_kwargs'}"
    with HostileServer(refuses("chat_template_kwargs", refusal)) as server:
        model = model_at(server, max_retries=0)
        replies = model.generate([Generate(MESSAGES)] * 4)
        assert [reply.text for reply in replies] == ["go north"] * 4
        assert ask(model).text == "go north" and model.usage.retries >= 1
        assert "chat_template_kwargs" not in server.requests[-1]
        template_model = model_at(
            server, max_retries=0, chat_template_kwargs={"enable_thinking": True}
        )
        assert "Unexpected keys" in error_of(template_model), (
            "what was asked for is not dropped without a word"
        )


def models_list(*entries):
    return sends({"object": "list", "data": list(entries)})


@pytest.mark.parametrize(
    ("behavior", "context"),
    [
        (
            models_list({"id": "other", "max_model_len": 9}, {"id": "tiny", "max_model_len": 4096}),
            4096,
        ),
        (models_list({"id": "tiny", "context_length": 8000}), 8000),
        (models_list({"id": "tiny"}), None),
        (models_list({"id": "tiny", "max_model_len": "many"}), None),
        (models_list(), None),
        (sends({}, 404), None),
        (raw(b"<html>"), None),
        (slams, None),
    ],
    ids=[  # the functions' own names differ from process to process
        "max_model_len",
        "context_length",
        "no length",
        "a text",
        "no models",
        "not found",
        "no JSON",
        "no answer",
    ],
)
def test_the_context_is_what_the_server_lists(behavior, context):
    with HostileServer(behavior) as server:
        model = model_at(server)
        assert model.context == context == model.context
        assert len(server.requests) == 1, "it is asked once"


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"concurrency": 0},
        {"timeout": math.inf},
        {"prices": (1, -1)},
        {"extra_body": {"model": "other"}},
        {"extra_body": {"x": math.nan}},
        {"chat_template_kwargs": ["enable_thinking"]},
        {"chat_template_kwargs": {"a b": 1}},
        {"base_url": "ftp://127.0.0.1"},
        {"base_url": "http://user:hunter22@127.0.0.1/v1"},
        {"base_url": "http://127.0.0.1/v1?key=hunter22"},
    ],
    ids=str,
)
def test_wrong_options(options):
    with pytest.raises(OptionError) as caught:
        OpenAILanguageModel(**{"model": "tiny", "base_url": LOCAL, **options})
    assert "hunter22" not in str(caught.value)


def test_a_key_is_needed_elsewhere(monkeypatch):
    with pytest.raises(LanguageModelError, match="OTHER_KEY"):
        OpenAILanguageModel("m", "https://example.org/v1", api_key_env="OTHER_KEY")
    monkeypatch.setenv("OTHER_KEY", "sk-secret with-space")
    with pytest.raises(LanguageModelError, match="OTHER_KEY") as caught:
        OpenAILanguageModel("m", "https://example.org/v1", api_key_env="OTHER_KEY")
    assert "sk-secret" not in str(caught.value)
    monkeypatch.setenv("OTHER_KEY", "sk-secret-1234567890\n")
    model = OpenAILanguageModel("m", "https://example.org/v1", api_key_env="OTHER_KEY")
    assert model.config()["host"] == "example.org"
    with pytest.raises(OptionError, match="without the key"):
        OpenAILanguageModel(
            "m", LOCAL, api_key_env="OTHER_KEY", extra_body={"k": "sk-secret-1234567890"}
        )


def test_config_and_repr_tell_no_secrets_and_no_places():
    for path in ("/home/somebody/models/tiny", "./models/tiny", "~/tiny", r"C:\models\tiny"):
        model = OpenAILanguageModel(path, LOCAL, adapters={"wm": path})
        public_text = json.dumps(model.config()) + repr(model)
        assert model.name == "tiny" and model.config()["adapters"] == {"wm": "tiny"}
        assert (
            "models" not in public_text
            and "secret" not in public_text
            and "127.0.0.1" not in public_text
        )
    assert OpenAILanguageModel("Qwen/Qwen3-8B", LOCAL).name == "Qwen/Qwen3-8B"
    assert OpenAILanguageModel("m", LOCAL, name="judge").name == "judge"


# Log-probabilities, texts of tokens.


def test_logprobs_and_token_ids():
    answer = says("ab", logprobs=logprobs_of(-0.5, -1.25), token_ids=[4, 2])
    with HostileServer(answer) as server:
        reply = ask(model_at(server, extra_body={"return_token_ids": True}))
        assert server.requests[0]["logprobs"] is True
        assert server.requests[0]["return_token_ids"] is True
    assert reply.logprobs == (-0.5, -1.25) and reply.token_ids == (4, 2)


def says_tokens(*tokens):
    content = [{"token": token, "logprob": -1.0} for token in tokens]
    return says("go north", logprobs={"content": content})


def test_the_texts_of_tokens():
    with HostileServer(says_tokens("go", " north", "\n", "<|im_end|>")) as server:
        model = model_at(server)
        assert "tokens" in model.capabilities
        reply = ask(model, sampling=Sampling(stop=("\n",)))
    assert reply.tokens == ("go", " north", "\n", "<|im_end|>") and reply.text == "go north"
    assert reply.logprobs is not None and len(reply.logprobs) == len(reply.tokens)


def test_a_character_of_several_tokens_comes_with_the_last():
    content = [
        {"token": f"bytes:{byte}", "bytes": [byte], "logprob": -1.0} for byte in "é".encode()
    ]
    halves = [{"token": "\ud83d", "logprob": -1.0}, {"token": "x", "logprob": -1.0}]
    split = says("é", logprobs={"content": content})
    with HostileServer(split, says("?x", logprobs={"content": halves})) as server:
        model = model_at(server)
        assert ask(model).tokens == ("", "é")
        assert ask(model).tokens == ("?", "x")


def test_an_answer_that_holds_the_key_is_an_error():
    for bad in (says(f"your key is {KEY}"), says_tokens(KEY[:9], KEY[9:])):
        with HostileServer(bad) as server:
            assert "repeats the key" in error_of(model_at(server))


def test_refused_logprobs_are_not_asked_for_again():
    with HostileServer(refuses("logprobs", "unknown field: logprobs")) as server:
        model = model_at(server, max_retries=0)
        assert ask(model).text == ask(model).text == "go north"
        with_logprobs = ["logprobs" in request for request in server.requests]
        assert with_logprobs == [True, False, False] and model.usage.retries == 1


@pytest.mark.parametrize("source", ["token_geo_mean", "min_token"])
def test_a_confidence_without_log_probabilities_names_what_works(source):
    reply = "Decision: REVISE\nFinal Action: inventory\nRevise Probability: 0.9"
    with HostileServer(says(reply, logprobs=None)) as server:
        agent = create_agent("comap", p_source="verbal", q_source=source)
        env = gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=1)
        episode = run_episode(env, agent, seed=0, lm=model_at(server), world_model=NullWorldModel())

    assert episode.error is not None and "found none in its server's reply" in episode.error
    assert "--q-source proxy" in episode.error and "vLLM" in episode.error


# Servers that misbehave.

MALFORMED = {
    "truncated": raw(json.dumps(completion()).encode()[:60]),
    "html": raw(b"<html><body>Welcome</body></html>", content_type="text/html"),
    "null": sends(None),
    "empty choices": sends({"choices": []}),
    "content a list": says(["go", "north"]),
    "content null": says(None),
    "finish a number": says(finish_reason=3),
    "deep": raw(b"[" * 200_000 + b"]" * 200_000),
    "long number": raw(b'{"choices": ' + b"9" * 10_000 + b"}"),
    "not utf-8": raw(b'{"choices": "\xff\xfe"}'),
    "logprobs": says(logprobs={"content": [{"token": "a", "logprob": "low"}]}),
    "positive logprobs": says(logprobs={"content": [{"token": "a", "logprob": 3.0}]}),
    "tokens": says(token_ids=["a"]),
    "broken off": breaks_off,
}


@pytest.mark.parametrize("behavior", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_answers_are_errors(behavior):
    with HostileServer(behavior) as server:
        error_of(model_at(server, max_retries=0))


@pytest.mark.parametrize("status", [408, 429, 503, None])
def test_passing_faults_are_tried_again(status):
    busy = sends({"error": "busy"}, status) if status else breaks_off
    with HostileServer(busy, GOOD, busy) as server:
        model = model_at(server)
        assert ask(model).text == "go north" and model.usage.retries == 1
        text = error_of(model_at(server, max_retries=0))
        assert not status or (f"HTTP {status}" in text and "busy" in text)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "the request exceeds the available context size. try increasing the context size",
    ],
)
def test_a_prompt_that_does_not_fit_is_said_with_what_to_set(message):
    refusal = sends({"error": {"message": message}}, 400)
    with HostileServer(refusal) as server:
        assert "max_length" in error_of(model_at(server))


@pytest.mark.parametrize("status", [302, 400, 401, 422])
def test_refusals_are_final(status):
    refusal = sends({"error": {"message": "no\nway"}}, status, location=LOCAL)
    with HostileServer(refusal) as server:
        text = error_of(model_at(server))
        place = server.url.split("/")[2]
        assert text.startswith(f"expected an answer of tiny ({place}), found HTTP {status}")
        assert len(server.requests) == 1
    assert ("OPENAI_API_KEY" in text) == (status in (401, 403))


def test_the_batch_goes_on():
    def sometimes(handler):
        refused = "bad" in handler.body["messages"][-1]["content"]
        (sends({}, 400) if refused else repeats_last_message)(handler)

    texts = [f"{'bad' if i % 3 == 0 else 'good'} {i}" for i in range(20)]
    with HostileServer(sometimes) as server:
        replies = model_at(server).generate([Generate((Message("user", text),)) for text in texts])
    reply_texts = [reply.text if isinstance(reply, Completion) else "bad" for reply in replies]
    assert reply_texts == ["bad" if "bad" in text else text for text in texts]


@pytest.mark.parametrize("behavior", [hangs, trickles])
def test_time_is_bounded(behavior):
    with HostileServer(behavior) as server:
        start = time.monotonic()
        text = error_of(model_at(server, timeout=0.3, max_retries=0))
        assert time.monotonic() - start < 3
    assert "within 0.3 s" in text and "raise timeout" in text


@pytest.mark.parametrize("status", [200, 500])
def test_large_answers_are_refused(status):
    with HostileServer(floods(status)) as server:
        text = error_of(model_at(server))
        assert f"{MAX_ANSWER_BYTES:,} bytes" in text


REPEATS = {
    "no JSON": raw(b"go away, " + KEY.encode()),
    "error": repeats_key(500),
    "detail": repeats_key(401, "detail"),
    "in an answer without choices": repeats_key(200),
}


@pytest.mark.parametrize("behavior", REPEATS.values(), ids=REPEATS.keys())
def test_the_key_is_in_no_message(behavior, caplog):
    caplog.set_level(logging.DEBUG)
    with HostileServer(behavior) as server:
        model = model_at(server, max_retries=0)
        (error,) = model.generate([Generate(MESSAGES)])
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert isinstance(error, LanguageModelError)
    assert (error.__context__, error.__cause__, error.__traceback__) == (None, None, None)
    for text in (str(error), repr(model), json.dumps(model.config()), caplog.text):
        assert KEY not in text and KEY[:10] not in text


def test_nothing_of_the_environment_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_ORG_ID", "org-private")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-private")
    for name in ("OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, LOCAL)
    with HostileServer(GOOD) as server:
        assert ask(model_at(server)).text == "go north"
        assert "private" not in json.dumps(server.headers[0])


def test_a_server_on_this_machine_needs_no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with HostileServer(GOOD) as server:
        assert ask(model_at(server)).text == "go north"
        assert server.headers[0]["authorization"] == "Bearer none"


def test_half_surrogates_are_replaced_both_ways():
    with HostileServer(says("a\ud800b")) as server:
        (reply,) = model_at(server).generate([Generate((Message("user", "c\udfff"),))])
        assert server.requests[0]["messages"] == [{"role": "user", "content": "c\ufffd"}]
    assert isinstance(reply, Completion) and reply.text == "a\ufffdb"


def test_sampling_is_sent_as_asked():
    with HostileServer(GOOD) as server:
        ask(model_at(server), sampling=Sampling(9, 0.5, 0.9, ("\n",), seed=4))
        request = server.requests[0]
    assert request["model"] == "tiny" and request["max_tokens"] == 9 and request["stop"] == ["\n"]
    assert (request["temperature"], request["top_p"], request["seed"]) == (0.5, 0.9, 4)
