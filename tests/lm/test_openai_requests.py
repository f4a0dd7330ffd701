"""What a language model behind a server sends, and what it makes of right answers."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import multiprocessing
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError, MissingExtra, OptionError
from comap.lm import (
    CAPABILITIES,
    Completion,
    Encode,
    Generate,
    LanguageModel,
    Message,
    Sampling,
    Score,
)
from comap.lm.openai import OpenAILanguageModel
from comap.lm.openai_answers import without_prefix
from comap.lm.openai_bodies import CONTINUE

pytest.importorskip("openai")


hostile = load(f"{Path(__file__).with_name('hostile_server.py')}:KIT")
kit = load(f"{Path(__file__).with_name('openai_kit.py')}:KIT")
LOCAL, MESSAGES, no_key = kit.LOCAL, kit.MESSAGES, kit.no_key
made, ask, error_of = kit.made, kit.ask, kit.error_of
logprobs_of, refuses = kit.logprobs_of, kit.refuses


def test_it_is_a_language_model() -> None:
    model: LanguageModel = OpenAILanguageModel("tiny", LOCAL)
    assert isinstance(model, LanguageModel)
    assert model.capabilities < CAPABILITIES
    assert model.generate([]) == model.words([]) == model.score([]) == model.encode([]) == []
    assert model.count_tokens("") == 0 and model.count_tokens("abcde") == 2


def test_usage_and_cost() -> None:
    with hostile.HostileServer(hostile.sends({}, 500), hostile.says()) as server:
        model = made(server, prices=(1.0, 10.0))
        reply = ask(model)
        assert (reply.prompt_tokens, reply.completion_tokens) == (7, 3)
        model.generate([Generate(MESSAGES)] * 9)
    usage = model.usage
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (10, 70, 30)
    assert usage.retries == 1
    assert usage.cost == pytest.approx((70 * 1 + 30 * 10) / 1e6)


def test_concurrency_is_used_and_bounded_over_threads() -> None:
    with hostile.HostileServer(hostile.slowly) as server:
        model = made(server, concurrency=3)
        work = [
            threading.Thread(target=model.generate, args=([Generate(MESSAGES)] * 5,))
            for _ in range(3)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    assert server.most == 3 and len(server.requests) == 15 and model.usage.requests == 15


def test_inside_an_event_loop() -> None:
    async def inside(model: OpenAILanguageModel) -> str:
        return ask(model).text

    with hostile.HostileServer(hostile.says("hi")) as server:
        assert asyncio.run(inside(made(server))) == "hi"


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork() -> None:
    with hostile.HostileServer(hostile.says("hi")) as server:
        model = made(server)
        ask(model)
        context = multiprocessing.get_context("fork")
        queue: Any = context.SimpleQueue()
        child = context.Process(target=lambda: queue.put(ask(model).text), daemon=True)
        child.start()
        child.join(20)
        alive = child.is_alive()
        child.kill()
        assert not alive and queue.get() == "hi"


def test_a_collected_model_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with hostile.HostileServer(hostile.says(), hostile.sends({}, 400)) as server:
        model = made(server)
        ask(model)
        error_of(model, Generate(MESSAGES))
        (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "comap-lm")
        del model
        gc.collect()
        thread.join(5)
        assert not thread.is_alive()


# Stop strings.


def test_stops_are_sent_and_applied_here_too() -> None:
    stops = ("E", "D", "C", "B", "\n")
    with hostile.HostileServer(hostile.says("go on\nB", finish_reason="length")) as server:
        reply = ask(made(server), sampling=Sampling(stop=stops))
        assert server.requests[0]["stop"] == list(stops[:4])
    assert (reply.text, reply.finish) == ("go on", "stop")


def test_without_stops_none_is_sent() -> None:
    with hostile.HostileServer(hostile.says("go", finish_reason="length")) as server:
        assert ask(made(server)).finish == "length"
        assert "stop" not in server.requests[0]


# What servers do not understand.


def test_max_completion_tokens_where_the_server_wants_it() -> None:
    message = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    with hostile.HostileServer(refuses("max_tokens", message)) as server:
        model = made(server, max_retries=0)
        ask(model, sampling=Sampling(max_new_tokens=5))
        ask(model, sampling=Sampling(max_new_tokens=6))
        limits = [request.get("max_completion_tokens") for request in server.requests]
        assert limits == [None, 5, 6]


def test_a_refusal_that_stays_is_final() -> None:
    message = "logprobs and max_tokens: unsupported, use max_completion_tokens instead"
    with hostile.HostileServer(hostile.sends({"error": message}, 400)) as server:
        error_of(made(server), Generate(MESSAGES))
        assert len(server.requests) == 3


# Prefixes.


def test_a_prefix_that_the_server_continues() -> None:
    with hostile.HostileServer(hostile.says(" north")) as server:
        model = made(server, prefix_mode="continue", extra_body={"top_k": 5})
        assert ask(model, prefix="Action: go").text == " north"
        sent = server.requests[0]
    assert sent["messages"][-1] == {"role": "assistant", "content": "Action: go"}
    assert sent["continue_final_message"] is True and sent["add_generation_prompt"] is False
    assert sent["top_k"] == 5


def test_a_prefix_that_the_model_is_asked_to_continue() -> None:
    repeated = hostile.says("Action: go north", logprobs=logprobs_of(-1, -1))
    with hostile.HostileServer(
        repeated, hostile.says(" south", logprobs=logprobs_of(-2))
    ) as server:
        model = made(server)
        first, second = ask(model, prefix="Action: go"), ask(model, prefix="Action: go")
        sent = server.requests[0]
    assert (first.text, first.logprobs, first.tokens) == (" north", None, None)
    assert (second.text, second.logprobs) == (" south", (-2.0,))
    assert [m["role"] for m in sent["messages"]] == ["system", "user", "assistant", "user"]
    assert sent["messages"][-1]["content"] == CONTINUE
    assert "continue_final_message" not in sent


def test_a_repeated_prefix_is_not_stopped_inside() -> None:
    with hostile.HostileServer(hostile.says("Thought: yes.\nAction: look\nmore")) as server:
        reply = ask(made(server), prefix="Thought: yes.\nAction:", sampling=Sampling(stop=("\n",)))
        assert "stop" not in server.requests[0]
    assert reply.text == " look"


@pytest.mark.parametrize(
    ("text", "prefix", "rest"),
    [
        ("Thought: I go.", "Thought: I", " go."),
        ("\n Thought: I go.", "Thought: I", " go."),
        ("Action: go", "Thought: yes\nAction:", " go"),
        ("Action: go", "Action: ", "go"),
        ("apple", "a", "apple"),
        ("Decision: KEEP", "Decision: K", "EEP"),
        (" go", "Action:", " go"),
        ("go", "  ", "go"),
    ],
)
def test_without_prefix(text: str, prefix: str, rest: str) -> None:
    assert without_prefix(text, prefix) == rest


# Choices, words, adapters.


def test_choices_need_a_server_that_restricts() -> None:
    request = Generate(MESSAGES, choices=("go", "stay"))
    text = error_of(OpenAILanguageModel("tiny", LOCAL), request)
    assert "choices_mode='vllm'" in text


def test_choices_on_vllm() -> None:
    stops = Sampling(stop=("a",))
    with hostile.HostileServer(hostile.says("stay")) as server:
        model = made(server, choices_mode="vllm")
        assert "choices" in model.capabilities
        assert ask(model, choices=("go", "stay"), sampling=stops).text == "stay"
        sent = server.requests[0]
        assert sent["structured_outputs"] == {"choice": ["go", "stay"]} and "stop" not in sent
        text = error_of(model, Generate(MESSAGES, choices=("go", "wait")))
        assert "none of the choices" in text
        assert "none of them empty" in error_of(model, Generate(MESSAGES, choices=()))
    with hostile.HostileServer(hostile.says("st", finish_reason="length")) as server:
        model = made(server, choices_mode="vllm")
        assert "max_new_tokens" in error_of(model, Generate(MESSAGES, choices=("stay",)))


def test_adapters_are_models_of_the_server() -> None:
    with hostile.HostileServer(hostile.says()) as server:
        model = made(server, adapters={"world model": "wm-lora"})
        ask(model, adapter="world model")
        ask(model)
        assert [request["model"] for request in server.requests] == ["wm-lora", "tiny"]
        text = error_of(model, Generate(MESSAGES, adapter="world modl"))
        assert "did you mean 'world model'?" in text and len(server.requests) == 2


def test_what_it_cannot_do_is_an_error_in_its_place() -> None:
    model = OpenAILanguageModel("tiny", LOCAL)
    for request in (Score(MESSAGES, ("a",)), Encode(MESSAGES)):
        text = error_of(model, request, request)
        assert "tiny" in text and ";" in text and "\n" not in text


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((), "found none"),
        ((Message("tool", "x"),), "role"),
        ((Message("user", 3),), "found int"),  # type: ignore[arg-type]
        ((Message("user", "\ud800"),), "surrogate"),
    ],
)
def test_messages_that_cannot_be_sent(messages: tuple[Message, ...], said: str) -> None:
    with hostile.HostileServer(hostile.says()) as server:
        replies = made(server).generate([Generate(messages), Generate(MESSAGES)])
        assert len(server.requests) == 1
    assert isinstance(replies[0], LanguageModelError) and said in str(replies[0])
    assert isinstance(replies[1], Completion)


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"model": 3},
        {"name": ""},
        {"concurrency": 0},
        {"concurrency": True},
        {"timeout": 0},
        {"timeout": math.inf},
        {"timeout": "60"},
        {"max_retries": -1},
        {"backoff": 0},
        {"prices": (1,)},
        {"prices": (1, -1)},
        {"prices": (math.nan, 1)},
        {"prefix_mode": "guess"},
        {"choices_mode": "openai"},
        {"adapters": {"a": 1}},
        {"adapters": ["a"]},
        {"extra_body": {"model": "other"}},
        {"extra_body": {"x": {1, 2}}},
        {"extra_body": {"x": math.nan}},
        {"extra_body": [1]},
        {"base_url": "127.0.0.1:8000"},
        {"base_url": "ftp://127.0.0.1"},
        {"base_url": "http://127.0.0.1:99999/v1"},
        {"base_url": "http://[::1/v1"},
        {"base_url": "http://a b/v1"},
        {"base_url": "http://user:hunter22@127.0.0.1/v1"},
        {"base_url": "http://127.0.0.1/v1?key=hunter22"},
        {"base_url": "http://127.0.0.1/v1#hunter22"},
        {"base_url": 8000},
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        OpenAILanguageModel(**{"model": "tiny", "base_url": LOCAL, **options})
    assert "hunter22" not in str(caught.value)


def test_a_key_is_needed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_config_and_repr_tell_no_secrets_and_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1234567890")
    for path in ("/home/somebody/models/tiny", "./models/tiny", "~/tiny", r"C:\models\tiny"):
        model = OpenAILanguageModel(path, LOCAL, adapters={"wm": path})
        shown = json.dumps(model.config()) + repr(model)
        assert model.name == "tiny" and model.config()["adapters"] == {"wm": "tiny"}
        assert "models" not in shown and "secret" not in shown and "127.0.0.1" not in shown
    assert OpenAILanguageModel("Qwen/Qwen3-8B", LOCAL).name == "Qwen/Qwen3-8B"
    assert OpenAILanguageModel("m", LOCAL, name="judge").name == "judge"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    model = OpenAILanguageModel("tiny", LOCAL)
    with pytest.raises(MissingExtra, match="llm"):
        model.generate([Generate(MESSAGES)])
