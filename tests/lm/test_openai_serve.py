"""A language model behind a real ``transformers serve``, on a tiny model."""

from __future__ import annotations

import importlib.util
import json
import socket
import time

import pytest

from comap.lm import Completion, Generate, Message, Sampling
from comap.lm.openai import OpenAILanguageModel

NEEDED = ("torch", "transformers", "fastapi", "uvicorn", "openai")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")

CORPUS = ["You are in a room. You see a shelf 1 and a desk 2. go to shelf 1"] * 3
LOOK = (Message("user", "You are in a room. What do you do?"),)


def build(folder):
    """Build a tiny model that this server reads and samples as it should."""
    from comap.lm.tiny import build_tiny

    path = build_tiny(folder / "tiny", CORPUS, parameters=200_000, seed=3, vocabulary=400)
    # For a qwen3 the server expects Qwen's own chat template, and else repeats the prompt.
    content = {"close": ["<|end|>"], "content": "text"}
    template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|>",
        "fields": {"content": content},
    }
    for name, field, value in (
        ("tokenizer_config.json", "response_template", template),
        ("generation_config.json", "do_sample", True),
    ):
        data = json.loads((path / name).read_text(encoding="utf-8"))
        (path / name).write_text(json.dumps(data | {field: value}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the model's name on a server in a thread of this process, and the server's base URL."""
    from transformers.cli.serve import Serve

    path = build(tmp_path_factory.mktemp("serve"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = Serve(str(path), device="cpu", host="127.0.0.1", port=port, non_blocking=True)
    try:
        for _ in range(200):
            if serve.server.started:
                break
            time.sleep(0.05)
        yield str(path), f"http://127.0.0.1:{port}/v1"
    finally:
        serve.kill_server()


def model_at(served, **options):
    return OpenAILanguageModel(*served, **{"concurrency": 1, "max_retries": 0, **options})


def texts(model, *requests):
    replies = model.generate(requests)
    assert all(isinstance(reply, Completion) for reply in replies), replies
    return [reply.text for reply in replies if isinstance(reply, Completion)]


def sampled(seed, **options):
    return Generate(LOOK, Sampling(max_new_tokens=24, temperature=1.0, seed=seed, **options))


def test_text_and_counts(served):
    model = model_at(served, concurrency=4)
    request = Generate(LOOK, Sampling(max_new_tokens=6))
    first, second = model.generate([request, request])
    assert isinstance(first, Completion) and first == second
    assert first.logprobs is None and first.token_ids is None, "this server tells neither"
    assert 1 <= first.completion_tokens <= 6 and first.prompt_tokens > 5
    assert model.usage.requests == 2
    assert model.usage.prompt_tokens == 2 * first.prompt_tokens
    assert model.name == "tiny"


def test_seeds_repeat_one_at_a_time(served):
    model = model_at(served)
    once = texts(model, *(sampled(seed) for seed in range(4)))
    assert once == texts(model, *(sampled(seed) for seed in range(4)))
    assert len(set(once)) == 4


def test_a_stop_string_cuts(served):
    model = model_at(served)
    (whole,) = texts(model, sampled(1))
    stop = whole[len(whole) // 2]
    (reply,) = model.generate([sampled(1, stop=(stop,))])
    assert reply.text == whole[: whole.index(stop)] and reply.finish == "stop"


def test_a_prefix_is_asked_for(served):
    request = Generate(LOOK, Sampling(max_new_tokens=4), prefix="Action:")
    assert len(texts(model_at(served), request)) == 1
