"""A language model on a vLLM server: TRL's own client, against a server on this machine.

The server reads and writes what vLLM's endpoints do, and its answers are a tiny model's. NCCL, which
needs a GPU, is replaced by handing the tensors over in memory.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from comap.errors import LanguageModelError, MissingExtra, OptionError
from comap.lm import Completion, Generate, LanguageModel, Message, Sampling, Score
from comap.lm.hf import HFLanguageModel
from comap.trainers.paw.config import preset
from comap.trainers.paw.training import Policy
from comap.trainers.paw.vllm import ColocatedLanguageModel, ServerLanguageModel
from kits.hostile_server import HostileServer

torch = pytest.importorskip("torch")
vllm_client = pytest.importorskip("trl.generation.vllm_client")

CORPUS = ["You are in a room. You see a shelf 1 and a desk 2. go to shelf 1"] * 3
LOOK = (Message("user", "You are in a room. What do you do?"),)
Route = Callable[[Any], tuple[Any, int]]


class VLLM:
    """A server whose answers are a tiny model's, at temperature 0 whatever is requested.

    `seen` are the paths and bodies that came, `model` what answers, `sent` what NCCL handed over.
    """

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.seen: list[tuple[str, Any]] = []
        self.sent: list[tuple[str, Any]] = []
        self.lock = threading.Lock()
        self.settings = {"logprobs_mode": "raw_logprobs", "max_model_len": 64}
        self.transfer: Any = {"backend": "nccl"}
        self.routes: dict[str, Route] = {
            "/health": lambda body: (None, 200),
            "/v1/models": lambda body: ({"data": [{"id": "/models/tiny"}]}, 200),
            "/server_info": lambda body: ({"vllm_config": self.config()}, 200),
            "/get_world_size": lambda body: ({"world_size": 1}, 200),
            "/update_weights": self.update,
            "/reset_prefix_cache": lambda body: ({"success": True}, 200),
            "/v1/completions": self.complete,
        }
        for name in ("init_weight_transfer_engine", "start_weight_update", "finish_weight_update"):
            self.routes[f"/{name}"] = lambda body: ({}, 200)
        self.server = HostileServer(self.answer)
        self.url = self.server.base

    def answer(self, handler):
        path = handler.path.partition("?")[0]
        with self.lock:
            self.seen.append((path, handler.body))
        missing = {"error": "no such page"}, 404
        reply, status = self.routes[path](handler.body) if path in self.routes else missing
        handler.reply(status, b"" if reply is None else json.dumps(reply).encode())

    def config(self):
        return {"model_config": self.settings, "weight_transfer_config": self.transfer}

    def bodies(self, path):
        return [body for where, body in self.seen if where == path]

    def update(self, body):
        self.announced = body["update_info"]
        return {}, 200

    def receive(self, iterator):
        """Take what NCCL would bring, as vLLM loads it."""
        told = {name: tensor.detach().clone() for name, tensor in iterator}
        self.sent = list(told.items())
        missing, strange = self.model.load_state_dict(told, strict=False)
        assert not strange and set(missing) <= {"lm_head.weight"}  # which is tied

    def complete(self, body):
        (prompt,) = body["prompt"]
        with self.lock, torch.no_grad():
            tokens, logprobs = self.greedy(prompt, body)
        names = [f"token_id:{token}" for token in tokens]
        choice = {
            "prompt_token_ids": prompt,
            "token_ids": tokens,
            "logprobs": {
                "tokens": names,
                "token_logprobs": logprobs,
                # the likeliest token too, whichever was sampled
                "top_logprobs": [
                    {f"token_id:{10**6}": 0.0, n: p} for n, p in zip(names, logprobs, strict=True)
                ],
            },
        }
        return {"choices": [choice]}, 200

    def greedy(self, prompt, body):
        """Return the likeliest tokens and their log-probabilities, as a request in JSON bounds them."""
        tokens = []
        logprobs = []
        while len(tokens) < body["max_tokens"]:
            told = self.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].log_softmax(-1)
            tokens.append(int(told.argmax()))
            logprobs.append(float(told[tokens[-1]]))
            text = self.tokenizer.decode(tokens)
            if tokens[-1] in body["stop_token_ids"] or any(s in text for s in body["stop"]):
                break
        return tokens, logprobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from comap.lm.tiny import build_tiny

    place = tmp_path_factory.mktemp("vllm") / "tiny"
    return build_tiny(place, CORPUS, parameters=200_000, seed=3, vocabulary=400)


@pytest.fixture
def local(folder):
    return HFLanguageModel(folder, device="cpu", max_length=64)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Let TRL's client be made without vLLM, and reach this machine without a proxy."""
    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *args, **told: True)
    monkeypatch.setattr(vllm_client, "get_ip", lambda: "127.0.0.1", raising=False)
    monkeypatch.setattr(vllm_client.atexit, "register", lambda *args: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server(local):
    pytest.importorskip("requests")  # TRL's client is made of it
    running = VLLM(copy.deepcopy(local.model), local.tokenizer)
    with running.server:
        yield running


def opened(server, **options):
    return ServerLanguageModel(server.url, server.tokenizer, timeout=5, **options)


def asked(**changes):
    return Generate(LOOK, **{"sampling": Sampling(12), **changes})


def generated(lm, *requests):
    found = lm.generate(requests)
    assert all(isinstance(one, Completion) for one in found), found
    return [one for one in found if isinstance(one, Completion)]


def test_answers_are_those_of_the_same_model_in_this_process(server, local):
    lm = opened(server)
    assert isinstance(lm, LanguageModel)
    requests = [
        asked(),
        asked(prefix="Action: go"),
        asked(sampling=Sampling(3)),
        Generate((*LOOK, Message("assistant", "go"), Message("user", "<|end|> é"))),
    ]
    for ours, theirs in zip(generated(lm, *requests), local.generate(requests), strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.text == theirs.text and ours.finish == theirs.finish
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-9)
        assert ours.prompt_tokens == theirs.prompt_tokens
        assert ours.completion_tokens == theirs.completion_tokens == len(ours.tokens or ())
        assert "".join(ours.tokens or ()) == local.tokenizer.decode(ours.token_ids)
    assert lm.usage == local.usage


def test_the_server_is_told_tokens_and_how_to_sample(server):
    lm = opened(server)
    sampling = Sampling(5, 0.7, 0.9, ("\nTask:",), seed=2**70 + 11)
    request = asked(sampling=sampling, prefix="Action:")
    (said,) = generated(lm, request)
    (body,) = server.bodies("/v1/completions")
    (prompt,) = body["prompt"]
    assert len(prompt) == said.prompt_tokens
    assert server.tokenizer.decode(prompt).endswith("<|assistant|>Action:")
    known = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n", "logprobs")
    assert [body[name] for name in known] == [0.7, 0.9, 0, 0.0, 1.0, 1, 0]
    assert body["max_tokens"] == 5 and body["stop"] == ["\nTask:"] and body["seed"] == 11
    assert server.tokenizer.eos_token_id in body["stop_token_ids"]


def test_a_stop_text_and_an_end_token_end_a_text(server, local):
    lm = opened(server)
    (free,) = generated(lm, asked())
    assert free.finish == "length" and len(free.token_ids or ()) == 12
    stop = (free.tokens or ())[3]
    (cut,) = generated(lm, asked(sampling=Sampling(12, stop=(stop,))))
    assert cut.finish == "stop" and stop not in cut.text and free.text.startswith(cut.text)
    end = (free.token_ids or ())[2]
    (ended,) = generated(opened(server, ends=[end]), asked())
    assert ended.finish == "stop" and (ended.token_ids or ())[-1] == end
    assert ended.text == local.tokenizer.decode((ended.token_ids or ())[:-1])


def test_the_context_bounds_prompt_and_reply(server):
    size = generated(opened(server), asked())[0].prompt_tokens
    server.settings["max_model_len"] = size + 4
    lm = opened(server)
    (cut,) = generated(lm, asked())
    assert cut.finish == "length" and cut.completion_tokens == 4
    server.settings["max_model_len"] = size
    (error,) = opened(server).generate([asked()])
    assert isinstance(error, LanguageModelError) and "shorten the conversation" in str(error)


def test_processed_logprobs_are_told_only_where_they_are_the_models_own(server):
    server.settings["logprobs_mode"] = "processed_logprobs"
    lm = opened(server)
    plain, *others = generated(
        lm,
        asked(sampling=Sampling(4, 1.0)),
        asked(sampling=Sampling(4, 0.7)),
        asked(sampling=Sampling(4, 1.0, 0.9)),
    )
    assert plain.logprobs is not None and len(plain.logprobs) == 4
    assert [one.logprobs for one in others] == [None, None]
    server.settings["logprobs_mode"] = "raw_logits"
    with pytest.raises(LanguageModelError, match="found 'raw_logits'"):
        opened(server)


def test_one_bad_request_costs_no_other(server):
    def picky(body):
        if body["seed"] == 1:
            return {"error": "<b>too\nhot</b>" + "x" * 999}, 400
        return server.complete(body)

    server.routes["/v1/completions"] = picky
    lm = opened(server)
    found = lm.generate(
        [
            asked(),
            asked(sampling=Sampling(2, seed=1)),
            asked(choices=("a", "b")),
            asked(adapter="other"),
            Generate(()),
            asked(),
        ]
    )
    errors = [one for one in found if isinstance(one, LanguageModelError)]
    assert [isinstance(one, Completion) for one in found] == [True] + [False] * 4 + [True]
    assert "400" in str(errors[0]) and "\n" not in str(errors[0]) and len(str(errors[0])) < 450
    assert all("all that tiny answers" in str(error) for error in errors[1:3])
    assert lm.usage.requests == 2
    (unable,) = lm.score([Score(LOOK, ("a",))])
    assert isinstance(unable, LanguageModelError) and "free text" in str(unable)
    described = json.dumps(lm.config())
    assert lm.name == "tiny" and "127.0.0.1" not in described and "/models" not in described


def tell(choice, value):
    """Give the first token another log-probability."""
    told = choice["logprobs"]
    told["token_logprobs"][0] = told["top_logprobs"][0][told["tokens"][0]] = value


@pytest.mark.parametrize(
    "spoil",
    [
        lambda choice: choice.update(prompt_token_ids=[1, *choice["prompt_token_ids"]]),
        lambda choice: choice.update(token_ids=[]),
        lambda choice: choice.update(token_ids=["7"] * 12),
        lambda choice: choice["token_ids"].pop(),
        lambda choice: tell(choice, float("nan")),
        lambda choice: tell(choice, 3.0),
        lambda choice: choice["token_ids"].__setitem__(0, 5000),
        lambda choice: choice.pop("token_ids"),
        lambda choice: choice.update(logprobs=None),
    ],
)
def test_an_answer_that_is_not_exact_is_none(server, spoil):
    def wrong(body):
        reply, status = server.complete(body)
        spoil(reply["choices"][0])
        return reply, status

    server.routes["/v1/completions"] = wrong
    (error,) = opened(server).generate([asked()])
    assert isinstance(error, LanguageModelError) and "vLLM server" in str(error)


def test_an_address_without_a_server_is_told_in_time(server, folder):
    start = time.monotonic()
    with pytest.raises(LanguageModelError, match="vllm serve MODEL"):
        ServerLanguageModel("http://127.0.0.1:9", server.tokenizer, timeout=0.1)
    health = server.routes.pop("/health")  # for this TRL's client would wait for ever
    with pytest.raises(LanguageModelError, match="HTTPError"):
        ServerLanguageModel(server.url, server.tokenizer, timeout=0.1)
    server.routes["/health"] = health
    del server.routes["/server_info"]
    with pytest.raises(LanguageModelError, match="VLLM_SERVER_DEV_MODE=1"):
        opened(server)
    assert time.monotonic() - start < 8
    with pytest.raises(OptionError, match="scheme"):
        ServerLanguageModel("ftp://127.0.0.1", server.tokenizer)


def test_missing_packages_are_named(server, monkeypatch):
    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *args, **options: False)
    with pytest.raises(MissingExtra, match=r'vLLM is not installed.*pip install "trl\[vllm\]"'):
        opened(server)
    monkeypatch.setitem(sys.modules, "trl.generation.vllm_client", None)
    with pytest.raises(MissingExtra, match="extra 'train'"):
        opened(server)


def test_it_waits_for_a_server_that_starts_and_leaves_out_v1(server):
    illness = iter([503])
    server.routes["/health"] = lambda body: (None, next(illness, 200))
    lm = ServerLanguageModel(f"{server.url}/v1/", server.tokenizer, timeout=5)
    assert lm.client.base_url == server.url and generated(lm, asked())


def join_by_hand(monkeypatch, server):
    """Hand tensors to the server in memory, where NCCL would bring them."""
    group = SimpleNamespace(group=SimpleNamespace(store=None, socket=None))

    def join(info):
        assert info["world_size"] == 2 and info["rank_offset"] == 1
        return group

    def produce(iterator, group, src, post_iter_func):
        server.receive((name, post_iter_func((name, tensor))) for name, tensor in iterator)

    for name, value in (
        ("_HAS_STATEFUL_TRAINER_ENGINE", True),
        ("_HAS_RESET_PREFIX_CACHE_SUCCESS", True),
        ("open_trainer_endpoint", join),
        ("packed_nccl_broadcast_producer", produce),
    ):
        monkeypatch.setattr(vllm_client, name, value, raising=False)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_after_synchronizing_the_server_answers_as_the_trained_model(
    server, local, monkeypatch, lora
):
    join_by_hand(monkeypatch, server)
    lm, model = opened(server), local.model
    (before,) = generated(lm, asked())
    if lora:
        peft = pytest.importorskip("peft")
        adapter = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        model = peft.get_peft_model(model, adapter)
    trained = HFLanguageModel.from_model(
        model, local.tokenizer, max_length=64, adapter="default" if lora else None
    )
    for _ in range(2):
        with torch.no_grad():  # as training would
            for name, weight in model.named_parameters():
                if ("lora_B" if lora else "mlp") in name:
                    weight += 0.5 * torch.randn(weight.shape, generator=torch.manual_seed(1))
        kept = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        lm.synchronize(model, device="cuda")
        assert [name for name, _ in server.sent] == server.announced["names"]
        assert not any("lora" in name or "base_layer" in name for name, _ in server.sent)
        (theirs,), (ours,) = trained.generate([asked()]), generated(lm, asked())
        assert isinstance(theirs, Completion) and ours.token_ids == theirs.token_ids
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)
        assert ours.logprobs != pytest.approx(before.logprobs, abs=1e-3)
        for name, weight in model.named_parameters():
            torch.testing.assert_close(weight, kept[name], msg=name)
        before = ours
    assert len(server.bodies("/init_weight_transfer_engine")) == 1


def test_an_adapter_is_unmerged_where_the_server_fails(server, local, monkeypatch):
    peft = pytest.importorskip("peft")
    join_by_hand(monkeypatch, server)
    told = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(local.model, told)
    kept = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    server.routes["/update_weights"] = lambda body: ({"error": "full"}, 400)
    lm = opened(server)

    def break_off(iterator, **told):
        next(iterator)  # others are never asked for
        raise RuntimeError("connection lost")

    monkeypatch.setattr(vllm_client, "packed_nccl_broadcast_producer", break_off)
    with pytest.raises(LanguageModelError, match="takes weights"):
        lm.synchronize(model, device="cuda")
    assert not any(getattr(module, "merged", False) for module in model.modules())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, kept[name], msg=name)


def test_weights_need_a_gpu_and_a_server_that_takes_them(server, local, monkeypatch):
    join_by_hand(monkeypatch, server)
    lm = opened(server)
    with pytest.raises(OptionError, match="CUDA device"):
        lm.synchronize(local.model, device="cpu")
    server.transfer = None
    with pytest.raises(LanguageModelError, match="weight-transfer-config"):
        lm.synchronize(local.model, device="cuda")
    assert not server.bodies("/start_weight_update") and generated(lm, asked())


class Engine(VLLM):
    """What stands in for ``vllm.LLM`` in the training's process: it loads the folder that TRL names."""

    def __init__(self, model, **told):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(model)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.told, self.asked, self.loaded, self.resets = told, [], set(), 0
        runner = SimpleNamespace(model=self)
        worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=worker)

    def load_weights(self, weights):
        told = {name: tensor.detach().clone() for name, tensor in weights}
        self.loaded |= told.keys()
        _, strange = self.model.load_state_dict(told, strict=False)
        assert not strange

    def reset_prefix_cache(self):
        self.resets += 1

    def generate(self, prompts, sampling_params, use_tqdm):
        found = []
        for prompt, how in zip(prompts, sampling_params, strict=True):
            self.asked.append(vars(how))
            with torch.no_grad():
                tokens, values = self.greedy(prompt["prompt_token_ids"], vars(how))
            logprobs = [
                {token: SimpleNamespace(logprob=value, rank=1)}
                for token, value in zip(tokens, values, strict=True)
            ]
            said = SimpleNamespace(token_ids=tokens, logprobs=logprobs)
            found.append(
                SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[said])
            )
        return found


@pytest.fixture
def engines(monkeypatch):
    made: list[Engine] = []

    def make(**told):
        made.append(Engine(**told))
        return made[-1]

    trl_vllm = pytest.importorskip("trl.generation.vllm_generation")
    monkeypatch.setattr(trl_vllm, "is_vllm_available", lambda: True)
    monkeypatch.setattr(trl_vllm, "LLM", make, raising=False)
    monkeypatch.setattr(trl_vllm, "SamplingParams", SimpleNamespace, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # TRL sets them, and this takes them away in the end
        monkeypatch.delenv(name)
    return made


def test_an_engine_in_this_process_answers_as_the_trained_model(engines, local):
    lm = ColocatedLanguageModel(local.model, local.tokenizer, 0.3, context=64)
    (engine,) = engines
    assert engine.told["gpu_memory_utilization"] == 0.3 and engine.told["max_model_len"] == 64
    requests = [asked(sampling=Sampling(12, 1.0, seed=5)), asked(sampling=Sampling(3, 0.7, 0.9))]
    for _ in range(2):
        with torch.no_grad():  # as training would
            for name, weight in local.model.named_parameters():
                if "mlp" in name:
                    weight += 0.5 * torch.randn(weight.shape, generator=torch.manual_seed(1))
        lm.synchronize(local.model)
        theirs = local.generate([asked(), asked(sampling=Sampling(3))])
        first, second, refused = lm.generate([*requests, asked(choices=("a", "b"))])
        assert [first.token_ids, second.token_ids] == [one.token_ids for one in theirs]
        assert first.logprobs == pytest.approx(theirs[0].logprobs, abs=1e-5)
        assert second.logprobs is None and isinstance(refused, LanguageModelError)
    assert len(engines) == 1 and engine.resets == 3
    assert engine.asked[0]["seed"] == 5 and engine.asked[1]["top_p"] == 0.9
    assert lm.usage.requests == 4 and lm.config()["id"] == "vllm-engine"


def test_a_policy_samples_from_its_engine(engines, folder):
    policy = Policy(preset("tiny", warmup_tokens=0), folder, vllm=0.3, device="cpu")
    (said,) = policy.language_model().generate([asked()])
    assert isinstance(said, Completion) and engines[0].told["max_model_len"] == 1056
    policy.synchronize()
    assert len(engines) == 1 and engines[0].resets == 2


def test_an_engine_that_fails_is_told(engines, local, monkeypatch):
    lm = ColocatedLanguageModel(local.model, local.tokenizer, 0.3, context=64)
    monkeypatch.setattr(engines[0], "generate", lambda *words, **told: 1 / 0)
    (error,) = lm.generate([asked()])
    assert isinstance(error, LanguageModelError) and "vLLM engine" in str(error)


def test_an_engine_needs_vllm(local):
    with pytest.raises(MissingExtra, match=r'pip install "trl\[vllm\]"'):
        ColocatedLanguageModel(local.model, local.tokenizer, 0.3, context=64)
