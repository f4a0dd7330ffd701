"""Ways to a vLLM engine: in this process, or at a server. Tokens go in, tokens come out.

A transport takes requests one by one (`submit`) and returns what is done so far (`step`), in whatever order
that happens. It knows nothing of chats and texts; `comap.lm.vllm.VLLMLanguageModel` does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import LanguageModelError, MissingExtra, OptionError
from .openai import address_of, key_from

SERVE = (
    "start one with: vllm serve MODEL --logprobs-mode raw_logprobs --generation-config vllm (for LoRA "
    "adapters also --enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment)"
)
"""What to do where no server answers."""

_URLS = ("http://", "https://")
_SEEDS = 2**63 - 1  # vLLM takes so many
_CONCURRENCY = 256  # requests at a server at the same time


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What an engine is asked.

    Attributes:
        prompt: Tokens.
        max_tokens: The most tokens to generate; an engine generates one at least.
        temperature: 0 is greedy.
        top_p: Nucleus.
        seed: Of what is drawn.
        stops: Texts that end a reply.
        ends: Tokens that end a reply.
        told: Tokens whose log-probabilities after the prompt are wanted.
        scored: How many tokens at the end of the prompt have their log-probabilities returned.
        adapter: The name of an adapter that was loaded; None for the model itself.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stops: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    told: tuple[int, ...] = ()
    scored: int = 0
    adapter: str | None = None


class TokenReply(NamedTuple):
    """What an engine answered.

    Attributes:
        tokens: The generated tokens, an end token included.
        logprobs: The log-probability of each under the model itself.
        told: The log-probabilities of the request's `told` tokens.
        scored: The log-probabilities of the last tokens of the prompt.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    told: Mapping[int, float] = {}
    scored: tuple[float, ...] = ()


class EngineInfo(NamedTuple):
    """What an engine says of itself; None where it does not say."""

    model: str
    context: int | None
    dtype: str | None
    logprobs_mode: str | None
    version: str | None


class Transport(Protocol):
    """A way to an engine."""

    scores_prompts: bool
    """Whether tokens of a prompt are best scored in one request (`TokenRequest.scored`), and not one by
    one (`TokenRequest.told`)."""

    def submit(self, request: TokenRequest) -> int:
        """Hand a request over, and return the number under which `step` returns its reply."""
        ...

    def step(self) -> list[tuple[int, TokenReply | Exception]]:
        """Return the replies that are there, once there is one; an empty list if nothing is asked."""
        ...

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter that peft wrote, in place of the one of that name."""
        ...

    def load_weights(self, weights: Path | Iterable[tuple[str, Any]]) -> None:
        """Replace the model's weights: by those of a folder, or by tensors with their names."""
        ...

    def info(self) -> EngineInfo:
        """Return what the engine says of itself."""
        ...

    def close(self) -> None:
        """End what the transport started."""
        ...


def is_url(model: str | Path) -> bool:
    """Return whether this is the address of a server, and no folder or hub's name."""
    return isinstance(model, str) and model.startswith(_URLS)


class EngineTransport:
    """A vLLM engine in this process.

    Args:
        model: A folder or a name on the hub.
        dtype: What it computes with. vLLM's own default halves float32, which no policy in training does.
        context: The most tokens of prompt and reply together.
        memory_share: The share of the GPU's memory that it takes; None for vLLM's own choice.
        adapters: How many LoRA adapters it may have; 0 for none.
        adapter_rank: The largest rank of an adapter.
        eager: Start at once, without compilation and CUDA graphs, and be slower then.
        sleeps: Whether it can be put to sleep, which frees its memory for a training.
        options: Further options of ``vllm.LLM``.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        context: int | None = None,
        memory_share: float | None = None,
        adapters: int = 0,
        adapter_rank: int = 16,
        eager: bool = False,
        sleeps: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        # The engine's loop then runs in `step`, with no process between: less to wait for, and a
        # training's weights can be handed over as they are.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        try:
            import vllm
        except ImportError as error:
            raise MissingExtra(f"{error}. vLLM in this process: pip install vllm") from error

        settings: dict[str, Any] = {
            "model": str(model),
            "dtype": dtype,
            "max_model_len": context,
            "enforce_eager": eager,
            "generation_config": "vllm",  # not the model's own sampling defaults
            "logprobs_mode": "raw_logprobs",
            "enable_sleep_mode": sleeps,
            "disable_log_stats": True,
        }
        if memory_share is not None:
            settings["gpu_memory_utilization"] = memory_share
        if adapters:
            settings |= {
                "enable_lora": True,
                "max_loras": adapters,
                "max_lora_rank": adapter_rank,
            }
        try:
            self.llm = vllm.LLM(**{**settings, **(options or {})})
        except Exception as error:  # vLLM raises whatever its parts raise
            raise LanguageModelError(
                f"expected vLLM to load {Path(str(model)).name!r:.80}, found {_brief(error)}; see its "
                "output above, or use the engine hf"
            ) from error
        self._engine = self.llm.llm_engine
        # Prompt log-probabilities beside LoRA end in an error of shapes on a CPU (vLLM 0.30, 0.32).
        self.scores_prompts = not adapters or self._device() != "cpu"
        self._numbers = itertools.count()
        self._waiting: dict[str, TokenRequest] = {}
        self._failed: list[tuple[int, TokenReply | Exception]] = []
        self._adapters: dict[str, Any] = {}

    def submit(self, request: TokenRequest) -> int:
        number = next(self._numbers)
        try:
            adapter = None if request.adapter is None else self._adapters[request.adapter]
            self._engine.add_request(
                str(number),
                {"prompt_token_ids": list(request.prompt)},
                _sampling_params(request),
                lora_request=adapter,
            )
        except Exception as error:  # a request that vLLM refuses costs no other one
            self._failed.append((number, error))
        else:
            self._waiting[str(number)] = request
        return number

    def step(self) -> list[tuple[int, TokenReply | Exception]]:
        done = self._failed
        self._failed = []
        while self._waiting and not done:
            try:
                outputs = self._engine.step()
            except Exception as error:  # of a batch: nobody knows whose fault it was
                return self._give_up(error)
            for output in outputs:
                if output.finished:
                    request = self._waiting.pop(output.request_id)
                    done.append((int(output.request_id), _read_output(request, output)))
        return done

    def _give_up(self, error: Exception) -> list[tuple[int, TokenReply | Exception]]:
        """Take back all requests, and return the error for each."""
        names = list(self._waiting)
        self._waiting = {}
        with contextlib.suppress(Exception):
            self._engine.abort_request(names)
        return [(int(name), error) for name in names]

    def _device(self) -> str:
        return str(self._engine.vllm_config.device_config.device_type)

    def load_adapter(self, name: str, folder: Path) -> None:
        from vllm.lora.request import LoRARequest

        number = self._adapters[name].lora_int_id if name in self._adapters else None
        if number is None:
            number = len(self._adapters) + 1
        adapter = LoRARequest(name, number, str(folder), load_inplace=True)
        self._engine.add_lora(adapter)
        # Later requests name the adapter as it is now loaded; loading it again each time costs.
        self._adapters[name] = LoRARequest(name, number, str(folder))
        self._engine.reset_prefix_cache()

    def load_weights(self, weights: Path | Iterable[tuple[str, Any]]) -> None:
        # vLLM's layers for a CPU repack their weights: `load_weights` of the model fails there, and
        # `reload_weights` works on both.
        how = (
            {"weights_path": str(weights)}
            if isinstance(weights, Path)
            else {"weights_iterator": weights}
        )
        self.llm.collective_rpc("reload_weights", kwargs=how)
        self._engine.reset_prefix_cache()

    def info(self) -> EngineInfo:
        import vllm

        config = self._engine.model_config
        return EngineInfo(
            model=Path(config.model).name,
            context=int(config.max_model_len),
            dtype=str(config.dtype).rpartition(".")[2],
            logprobs_mode=str(getattr(config, "logprobs_mode", None)),
            version=vllm.__version__,
        )

    def sleep(self) -> None:
        """Free the GPU's memory: weights wait in main memory, what was cached is forgotten."""
        self.llm.sleep(level=1)

    def wake(self) -> None:
        """Take the memory again."""
        self.llm.wake_up()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown()


def _sampling_params(request: TokenRequest) -> Any:
    from vllm import SamplingParams

    # Without texts nothing is decoded, which also lets a prompt be scored whose beginning is cached:
    # for the cached part vLLM returns numbers that are no tokens.
    wants_scores = request.scored > 0
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed & _SEEDS if request.temperature > 0 else None,
        stop=list(request.stops) or None,
        include_stop_str_in_output=True,
        stop_token_ids=list(request.ends) or None,
        ignore_eos=True,  # the ends are given
        logprobs=len(request.told) or 0,
        logprob_token_ids=list(request.told) or None,
        prompt_logprobs=0 if wants_scores else None,
        skip_reading_prefix_cache=False,
        detokenize=bool(request.stops),
    )


def _read_output(request: TokenRequest, output: Any) -> TokenReply | Exception:
    completion = output.outputs[0]
    if completion.finish_reason == "abort":
        return LanguageModelError("expected a reply of vLLM, found that it gave the request up")

    tokens = tuple(completion.token_ids)
    positions = completion.logprobs or []
    logprobs = [position[token].logprob for position, token in zip(positions, tokens, strict=False)]
    told = {}
    if request.told:
        told = {token: positions[0][token].logprob for token in request.told}

    scored = []
    if request.scored:
        start = len(request.prompt) - request.scored
        for position, token in enumerate(request.prompt[start:], start):
            scored.append(output.prompt_logprobs[position][token].logprob)
    return TokenReply(tokens, tuple(logprobs), told, tuple(scored))


class ServerTransport:
    """A vLLM server (``vllm serve``), by its completions of tokens.

    Args:
        url: Its address, such as ``http://127.0.0.1:8000``.
        model: Which of its models answers; None for the first that it serves.
        timeout: Seconds for a reply.
        concurrency: Requests that are there at the same time; the server batches them itself.
        api_key_env: The variable that has the key, for a server that wants one.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        timeout: float = 600.0,
        concurrency: int = _CONCURRENCY,
        api_key_env: str = "OPENAI_API_KEY",
    ) -> None:
        self._address = address_of(url)
        self._base = self._address.url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._variable = api_key_env
        self._numbers = itertools.count()
        self._executor = ThreadPoolExecutor(concurrency, thread_name_prefix="comap-vllm")
        self._done: queue.SimpleQueue[tuple[int, TokenReply | Exception]] = queue.SimpleQueue()
        self._pending = 0
        # The prompt's own tokens cannot be scored from what the server has cached of it.
        self.scores_prompts = False
        served = self._get("/v1/models").get("data") or [{}]
        # Adapters are listed beside the models that they belong to.
        models = [entry for entry in served if not entry.get("parent")]
        named = [entry for entry in models if model is None or entry.get("id") == model]
        if not named:
            names = ", ".join(str(entry.get("id")) for entry in models)
            raise OptionError(
                f"expected a model that the server has ({names:.200}), found {model!r:.80}"
            )
        self._served: dict[str, Any] = named[0]
        self._model = str(self._served.get("id"))
        self.root = str(self._served.get("root") or self._model)
        """The folder or hub's name of the model that the server has loaded."""
        self.adapters = tuple(str(entry["id"]) for entry in served if entry.get("parent"))
        """The names of the adapters that the server was started with."""

    def submit(self, request: TokenRequest) -> int:
        number = next(self._numbers)
        self._pending += 1
        self._executor.submit(self._ask, number, request)
        return number

    def step(self) -> list[tuple[int, TokenReply | Exception]]:
        done: list[tuple[int, TokenReply | Exception]] = []
        while self._pending:
            # The first is waited for; what else is there comes with it.
            if done and self._done.empty():
                break
            done.append(self._done.get())
            self._pending -= 1
        return done

    def _ask(self, number: int, request: TokenRequest) -> None:
        reply: TokenReply | Exception
        try:
            reply = _read_answer(request, self._post("/v1/completions", self._body(request)))
        except Exception as error:  # in a thread: whatever it is belongs to this request
            reply = error
        self._done.put((number, reply))

    def _body(self, request: TokenRequest) -> dict[str, Any]:
        body = {
            "model": request.adapter or self._model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stop": list(request.stops),
            "include_stop_str_in_output": True,
            "stop_token_ids": list(request.ends),
            "ignore_eos": True,
            "logprobs": len(request.told) or 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if request.temperature > 0:
            body["seed"] = request.seed & _SEEDS
        if request.told:
            body["logprob_token_ids"] = list(request.told)
        if request.scored:
            body["prompt_logprobs"] = 0
        return body

    def load_adapter(self, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
        self._post("/v1/load_lora_adapter", body)

    def load_weights(self, weights: Path | Iterable[tuple[str, Any]]) -> None:
        if not isinstance(weights, Path):
            raise OptionError(
                "expected a folder of weights for a server, found tensors; write them there, where the "
                "server can read them too"
            )
        kwargs = {"weights_path": str(weights)}
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})
        self._post("/reset_prefix_cache", {})

    def info(self) -> EngineInfo:
        settings: Mapping[str, Any] = {}
        with contextlib.suppress(LanguageModelError):  # only a server in dev mode says more
            settings = self._get("/server_info?config_format=json")["vllm_config"]["model_config"]
        version = None
        with contextlib.suppress(LanguageModelError):
            version = self._get("/version").get("version")
        context = self._served.get("max_model_len")
        return EngineInfo(
            model=self._model,
            context=context if isinstance(context, int) else None,
            dtype=_last_word(settings.get("dtype")),
            logprobs_mode=_last_word(settings.get("logprobs_mode")),
            version=version,
        )

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _get(self, path: str) -> dict[str, Any]:
        return self._exchange(urllib.request.Request(self._base + path))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self._base + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        return self._exchange(request)

    def _exchange(self, request: urllib.request.Request) -> dict[str, Any]:
        if os.environ.get(self._variable):
            request.add_header("Authorization", f"Bearer {key_from(self._variable, self._address)}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise LanguageModelError(
                f"expected an answer of the vLLM server, found the status {error.code}: "
                f"{_message_of(error):.600}"
            ) from error
        except OSError as error:
            raise LanguageModelError(
                f"expected a vLLM server at {self._address.host}, found {_brief(error)}; {SERVE}"
            ) from error
        try:
            answer = json.loads(text) if text.startswith((b"{", b"[")) else {}
        except ValueError as error:
            raise LanguageModelError(
                f"expected JSON of the vLLM server, found something else ({_brief(error)})"
            ) from error
        return answer if isinstance(answer, dict) else {}


def _read_answer(request: TokenRequest, answer: Mapping[str, Any]) -> TokenReply:
    """Return the reply in the JSON of a server's completion."""
    try:
        (choice,) = answer["choices"]
        tokens = tuple(choice["token_ids"])
        logprobs = tuple(choice["logprobs"]["token_logprobs"])
        told = {}
        if request.told:
            (first, *_) = choice["logprobs"]["top_logprobs"]
            by_token = {int(name.removeprefix("token_id:")): value for name, value in first.items()}
            told = {token: by_token[token] for token in request.told}
        scored = []
        if request.scored:
            positions = choice["prompt_logprobs"]
            start = len(request.prompt) - request.scored
            for position, token in enumerate(request.prompt[start:], start):
                scored.append(positions[position][str(token)]["logprob"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LanguageModelError(
            f"expected a completion in tokens of the vLLM server, found something else "
            f"({_brief(error)}); {SERVE}"
        ) from error
    return TokenReply(tokens, logprobs, told, tuple(scored))


def _message_of(error: urllib.error.HTTPError) -> str:
    """Return what a server says with a status that is an error."""
    text = error.read(10_000).decode("utf-8", "replace")
    with contextlib.suppress(ValueError, AttributeError):
        content = json.loads(text)
        message = content.get("error", content)
        text = message.get("message", text) if isinstance(message, dict) else str(message)
    return " ".join(str(text).split())


def _brief(error: BaseException) -> str:
    message = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {message}"


def _last_word(text: object) -> str | None:
    """Return ``float32`` of ``torch.float32``."""
    return str(text).rpartition(".")[2] if text else None


def drain(transport: Transport, requests: Sequence[TokenRequest]) -> Iterator[TokenReply]:
    """Yield the replies to some requests in their order; raise the error that one has."""
    numbers = [transport.submit(request) for request in requests]
    replies: dict[int, TokenReply | Exception] = {}
    while len(replies) < len(numbers):
        replies.update(transport.step())
    for number in numbers:
        reply = replies[number]
        if isinstance(reply, Exception):
            raise reply
        yield reply
