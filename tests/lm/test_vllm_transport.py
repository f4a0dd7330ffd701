"""What a vLLM server may answer that it should not: it costs one request, and no key, path or process.

What the real vLLM answers is in tests/interop/test_vllm.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comap.errors import LanguageModelError, OptionError
from comap.lm.vllm import VLLMLanguageModel
from comap.lm.vllm_transports import ServerTransport, TokenReply, TokenRequest
from kits import hostile_server

MODELS = {
    "data": [{"id": "m", "root": "/somewhere", "max_model_len": 64}, {"id": "a", "parent": "m"}]
}


def completion(**changes: Any) -> dict[str, Any]:
    """A right answer, with changes to its choice."""
    logprobs = {
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:7": -0.5, "token_id:8": -2.0}],
    }
    return {"choices": [{"token_ids": [7], "logprobs": logprobs, **changes}]}


def replies(transport: ServerTransport, *requests: TokenRequest) -> list[Any]:
    numbers = [transport.submit(request) for request in requests]
    replies_by_number: dict[int, Any] = {}
    while len(replies_by_number) < len(numbers):
        replies_by_number.update(transport.step())
    return [replies_by_number[number] for number in numbers]


def test_a_server_is_asked_in_tokens() -> None:
    behaviors = (hostile_server.sends(MODELS), hostile_server.sends(completion()))
    with hostile_server.HostileServer(*behaviors) as server:
        transport = ServerTransport(server.base)
        request = TokenRequest((1, 2), 4, temperature=0.7, seed=2**70 + 3, candidates=(7, 8))
        assert replies(transport, request) == [TokenReply((7,), (-0.5,), {7: -0.5, 8: -2.0})]
        assert transport.adapters == ("a",)
    body = server.requests[-1]
    assert body["prompt"] == [1, 2] and body["logprob_token_ids"] == [7, 8]
    assert body["seed"] == 3, "vLLM takes 63 bits of a seed"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        completion(token_ids=["7"]),
        completion(token_ids=[True]),
        completion(token_ids=[-1]),
        completion(token_ids=None),
        completion(logprobs=None),
        completion(logprobs={"token_logprobs": ["x"], "top_logprobs": [{}]}),
        completion(logprobs={"token_logprobs": [-1.0], "top_logprobs": []}),
    ],
)
def test_what_is_no_completion_costs_its_request(answer: dict[str, Any]) -> None:
    behaviors = (hostile_server.sends(MODELS), hostile_server.sends(answer))
    with hostile_server.HostileServer(*behaviors) as server:
        (failure,) = replies(ServerTransport(server.base), TokenRequest((1,), candidates=(7,)))
    assert isinstance(failure, LanguageModelError) and "in tokens" in str(failure)


@pytest.mark.parametrize(
    ("behavior", "message"),
    [
        (hostile_server.sends({"error": {"message": "too long"}}, 400), "400: too long"),
        (hostile_server.raw(b"[" * 100_000), "something else"),
        (hostile_server.raw(b"\xff"), "something else"),
    ],
)
def test_a_broken_answer_costs_its_request(behavior: Any, message: str) -> None:
    right = hostile_server.sends(completion())
    behaviors = (hostile_server.sends(MODELS), behavior, right)
    with hostile_server.HostileServer(*behaviors) as server:
        transport = ServerTransport(server.base)
        (failure,) = replies(transport, TokenRequest((1,)))
        assert isinstance(failure, LanguageModelError) and message in str(failure)
        assert replies(transport, TokenRequest((1,)))[0].tokens == (7,)


@pytest.mark.parametrize("breaks", [hostile_server.breaks_off, hostile_server.slams])
def test_a_request_whose_connection_broke_is_asked_once_more(breaks: Any) -> None:
    right = hostile_server.sends(completion())
    request = TokenRequest((1, 2), 4, temperature=0.7, seed=3)
    models = hostile_server.sends(MODELS)
    with hostile_server.HostileServer(models, breaks, right) as server:
        assert replies(ServerTransport(server.base), request) == [TokenReply((7,), (-0.5,))]
    _, first, second = server.requests
    assert first == second, "the reply is a function of the request"

    # A second time is the server's fault: the request fails, and the next one is asked.
    with hostile_server.HostileServer(models, breaks, breaks, right) as server:
        transport = ServerTransport(server.base)
        (failure,) = replies(transport, request)
        assert isinstance(failure, LanguageModelError)
        assert f"expected a vLLM server at {server.base[7:]}, found" in str(failure)
        assert replies(transport, request)[0].tokens == (7,)
    assert len(server.requests) == 4


def test_what_is_loaded_is_sent_once(tmp_path: Path) -> None:
    """A server that broke off may have it already, and refuses what it has."""
    behaviors = (hostile_server.sends(MODELS), hostile_server.slams)
    with hostile_server.HostileServer(*behaviors) as server:
        transport = ServerTransport(server.base)
        with pytest.raises(LanguageModelError, match="server to load the adapter"):
            transport.load_adapter("agent", tmp_path)
    assert len(server.requests) == 2


def test_a_redirect_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEY", "a-secret-key")
    with hostile_server.HostileServer(hostile_server.sends(MODELS)) as elsewhere:
        away = hostile_server.raw(b"", 302, location=f"{elsewhere.base}/v1/models")
        server = hostile_server.HostileServer(away)
        with server, pytest.raises(LanguageModelError, match="302"):
            ServerTransport(server.base, api_key_env="VLLM_KEY")
    assert server.headers[0]["authorization"] == "Bearer a-secret-key"
    assert elsewhere.requests == []


@pytest.mark.parametrize("answer", [{}, {"data": []}, {"data": ["m"]}, {"data": [{"id": "other"}]}])
def test_a_model_that_is_not_there_is_named(answer: dict[str, Any]) -> None:
    server = hostile_server.HostileServer(hostile_server.sends(answer))
    with server, pytest.raises(OptionError, match="expected a model that the server has"):
        ServerTransport(server.base, model="mine")


def test_a_server_does_not_choose_what_is_read_here() -> None:
    server = hostile_server.HostileServer(hostile_server.sends(MODELS))
    with server, pytest.raises(OptionError, match="expected the tokenizer") as refused:
        VLLMLanguageModel(server.base)
    assert "/somewhere" not in str(refused.value)


def test_an_adapter_that_is_loaded_again_has_a_new_name_at_the_server(tmp_path: Path) -> None:
    """The server's cache of prompts knows adapters by name: what it has of the old one is not reused."""
    models = hostile_server.sends(MODELS)
    completions = hostile_server.sends(completion())
    with hostile_server.HostileServer(models, models, completions) as server:
        transport = ServerTransport(server.base)
        other_transport = ServerTransport(server.base)
        names = []
        for run in (transport, transport, other_transport):
            run.load_adapter("agent", tmp_path)
            replies(run, TokenRequest((1,), adapter="agent"))
            names.append(server.requests[-1]["model"])
        transport.close()
        assert server.requests[-1] == {"lora_name": names[1]}, "it is unloaded at the end"
    assert len({*names}) == 3 and all(name.startswith("agent-") for name in names)
    assert {"lora_name": names[0]} in server.requests, "the former one is unloaded"


def test_a_server_that_takes_no_weights_says_how_one_does(tmp_path: Path) -> None:
    class Model:
        def save_pretrained(self, folder: str) -> None:
            Path(folder, "model.safetensors").write_bytes(b"")

    missing = hostile_server.sends({"detail": "Not Found"}, 404)
    with hostile_server.HostileServer(hostile_server.sends(MODELS), missing) as server:
        transport = ServerTransport(server.base)
        with pytest.raises(LanguageModelError, match=r"404.*Not Found.*VLLM_SERVER_DEV_MODE=1"):
            transport.load_weights(Model())
        folder = Path(server.requests[-1]["kwargs"]["weights_path"])
        assert not folder.exists(), "nothing is left behind"

        with pytest.raises(LanguageModelError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
            transport.load_adapter("agent", tmp_path)
