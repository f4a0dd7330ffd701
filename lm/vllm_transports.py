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
import secrets
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    RemoteDisconnected,
)
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ..errors import LanguageModelError, MissingExtra, OptionError
from .load import without_bars
from .openai import address_of, key_from, public_name

SERVE = (
    "start one with: vllm serve MODEL --logprobs-mode raw_logprobs --generation-config vllm (for LoRA "
    "adapters also --enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment)"
)
"""What to do where no server answers."""
SERVE_WEIGHTS = (
    "on a machine that sees the same folders start it with: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    "--logprobs-mode raw_logprobs --generation-config vllm"
)
"""What to do where a server takes no weights."""

_URLS = ("http://", "https://")
_SEEDS = 2**63 - 1  # vLLM takes so many
_CONCURRENCY = 256  # requests at a server at the same time
_SERVER_CANDIDATES = 20  # vLLM's default of --max-logprobs
_MOST_BYTES = 2**28  # of an answer
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, as vLLM makes room for them


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
        candidates: Tokens whose log-probabilities right after the prompt are returned.
        scored_tokens: How many tokens at the end of the prompt have their log-probabilities returned.
        adapter: The name of an adapter that was loaded; None for the model itself.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stops: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()
    scored_tokens: int = 0
    adapter: str | None = None


class TokenReply(NamedTuple):
    """What an engine answered; log-probabilities are natural, and of the model itself.

    Attributes:
        tokens: The generated tokens, an end token included.
        logprobs: The log-probability of each of these.
        candidate_logprobs: That of each of the request's candidates.
        prompt_logprobs: Those of the last tokens of the prompt, as many as were to be scored.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    candidate_logprobs: Mapping[int, float] = MappingProxyType({})
    prompt_logprobs: tuple[float, ...] = ()


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
    """Whether tokens of a prompt are best scored in one request (`TokenRequest.scored_tokens`), and not
    one by one (`TokenRequest.candidates`)."""
    most_candidates: int | None
    """The most candidates of one request; None for no limit."""

    def submit(self, request: TokenRequest) -> int:
        """Hand a request over, and return the number under which `step` returns its reply."""
        ...

    def step(self) -> list[tuple[int, TokenReply | Exception]]:
        """Return the replies that are there, once there is one; an empty list if nothing is asked."""
        ...

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop requests whose replies nobody wants any more; `step` does not return them."""
        ...

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter that peft wrote, in place of the one of that name."""
        ...

    def load_weights(self, model: Any) -> None:
        """Load the weights of a transformers model of the same shape, in place of the engine's own."""
        ...

    def sleep(self) -> None:
        """Give GPU memory back until `wake`; the engine answers nothing meanwhile."""
        ...

    def wake(self) -> None:
        """Take the memory again, with the weights that were there."""
        ...

    def close(self) -> None:
        """Take back what was loaded; nothing is asked any more."""
        ...

    def info(self) -> EngineInfo:
        """Return what the engine says of itself."""
        ...


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: urllib would send the key along, to whatever host a server names."""

    def redirect_request(self, *_: Any) -> None:
        return None


_WITHOUT_REDIRECTS = urllib.request.build_opener(_NoRedirects)


class _Abortable(urllib.request.HTTPSHandler):
    """Opens the connection of one request, which another thread may end: the server then gives it up."""

    handler_order = 400  # before urllib's own, which opens such addresses too

    def __init__(self) -> None:
        super().__init__()
        self._connection: HTTPConnection | None = None
        self._is_aborted = False

    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connect, HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connect, HTTPSConnection), request)

    http_request = urllib.request.AbstractHTTPHandler.do_request_

    def _connect(
        self, connection_class: type[HTTPConnection], host: str, **options: Any
    ) -> HTTPConnection:
        if self._is_aborted:
            raise OSError("nobody waits for the answer")
        self._connection = connection_class(host, **options)
        return self._connection

    def abort(self) -> None:
        """End the connection, if there is one already."""
        self._is_aborted = True
        connected = None if self._connection is None else self._connection.sock
        if connected is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                connected.shutdown(socket.SHUT_RDWR)


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
        sleeps: Whether it may `sleep`; only a CUDA GPU has memory that is worth it.
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
            import vllm.platforms
        except ImportError as error:
            raise MissingExtra.of("vllm", f"vLLM in this process ({error})") from error

        if adapter_rank > _RANKS[-1]:
            raise OptionError(
                f"expected adapters of rank {_RANKS[-1]} at most, found {adapter_rank}; use the engine hf"
            )
        if "trust_remote_code" in (options or {}):
            raise OptionError(
                "expected no trust_remote_code: comap runs no code of models; leave it out"
            )

        settings: dict[str, Any] = {
            "model": str(model),
            "dtype": dtype,
            "max_model_len": context,
            "enforce_eager": eager,
            "generation_config": "vllm",  # not the model's own sampling defaults
            "logprobs_mode": "raw_logprobs",
            "max_logprobs": -1,  # as many candidates as there are
            "load_format": "safetensors",  # "auto" would also read pickles, which can run code
            "disable_log_stats": True,
        }
        if memory_share is not None:
            settings["gpu_memory_utilization"] = memory_share
        if adapters:
            settings |= {
                "enable_lora": True,
                "max_loras": adapters,
                "max_lora_rank": next(rank for rank in _RANKS if rank >= adapter_rank),
            }
        if sleeps:
            settings["enable_sleep_mode"] = True
        if vllm.platforms.current_platform.is_cpu():
            # A prompt is read as a whole: on a CPU a seeded request whose prompt was split ends vLLM 0.30
            # ("CPU Generator does not use offset").
            settings["enable_chunked_prefill"] = False
        try:
            self.llm = vllm.LLM(**{**settings, **(options or {})})
        except Exception as error:  # vLLM raises whatever its parts raise
            raise LanguageModelError(
                f"expected vLLM to load {Path(str(model)).name!r:.80}, found {_brief(error)}; see its "
                "output above, or use the engine hf"
            ) from error
        self._engine = self.llm.llm_engine
        self._sleeps = sleeps
        self._is_asleep = False
        # Prompt log-probabilities beside LoRA end in an error of shapes on a CPU (vLLM 0.30, 0.32).
        self._is_on_cpu = vllm.platforms.current_platform.is_cpu()
        self.scores_prompts = not adapters or not self._is_on_cpu
        self.most_candidates: int | None = None
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
                if output.finished and output.request_id in self._waiting:
                    request = self._waiting.pop(output.request_id)
                    done.append((int(output.request_id), _reply_or_error(request, output)))
        return done

    def _give_up(self, error: Exception) -> list[tuple[int, TokenReply | Exception]]:
        """Take back all requests, and return the error for each."""
        names = list(self._waiting)
        self._waiting = {}
        with contextlib.suppress(Exception):
            self._engine.abort_request(names)
        return [(int(name), error) for name in names]

    def forget(self, numbers: Sequence[int]) -> None:
        names = [str(number) for number in numbers if str(number) in self._waiting]
        for name in names:
            del self._waiting[name]
        if names:
            self._engine.abort_request(names)
        self._failed = [entry for entry in self._failed if entry[0] not in numbers]

    def load_adapter(self, name: str, folder: Path) -> None:
        from vllm.lora.request import LoRARequest

        number = len(self._adapters) + 1
        if name in self._adapters:
            number = self._adapters[name].lora_int_id
        try:
            self._engine.add_lora(LoRARequest(name, number, str(folder), load_inplace=True))
        except Exception as error:  # vLLM raises whatever its parts raise
            raise LanguageModelError(
                f"expected vLLM to load the adapter {name!r:.80}, found {_brief(error)}"
            ) from error

        # Requests name the adapter that is loaded: with `load_inplace` each would load it again.
        self._adapters[name] = LoRARequest(name, number, str(folder))
        # What was computed with the former weights of that name is no beginning for the new ones.
        self._engine.reset_prefix_cache()

    def load_weights(self, model: Any) -> None:
        try:
            # A CPU's layers repack their weights: vLLM unpacks them first, which its models' own
            # `load_weights` does not.
            self.llm.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": _named_weights(model)}
            )
            if self._is_on_cpu:
                self.llm.apply_model(_repack_heads)
        except Exception as error:  # vLLM raises whatever its parts raise
            raise LanguageModelError(
                f"expected vLLM to take the weights of the model in training, found {_brief(error)}; use "
                "the engine hf, or weights='lora'"
            ) from error
        self._engine.reset_prefix_cache()

    def sleep(self) -> None:
        """Move the weights to main memory and drop the cache (vLLM's level 1). Not run on a GPU yet."""
        if self._sleeps and not self._is_asleep:
            self.llm.sleep(level=1)
            self._is_asleep = True

    def wake(self) -> None:
        """Move the weights back to the GPU. Not run on a GPU yet."""
        if self._is_asleep:
            self.llm.wake_up()
            self._is_asleep = False

    def close(self) -> None:
        """Do nothing: the engine ends with its process."""

    def info(self) -> EngineInfo:
        import vllm

        config = self._engine.model_config
        return EngineInfo(
            model=public_name(str(config.model)),
            context=int(config.max_model_len),
            dtype=_last_word(config.dtype),
            logprobs_mode=_last_word(getattr(config, "logprobs_mode", None)),
            version=vllm.__version__,
        )


def _named_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield a model's weights by the names that its files have; weights that are tied once."""
    for name, weight in model.named_parameters():
        yield name, weight.detach()


def _repack_heads(model: Any) -> None:
    """Give output heads the weights of the embeddings that they are tied to.

    On a CPU a head computes with a copy in another layout, which reloading leaves as it is where the head
    has no weights of its own in a model's files (vLLM 0.30).
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _sampling_params(request: TokenRequest) -> Any:
    from vllm import SamplingParams

    # Without texts nothing is decoded, which also lets a prompt be scored whose beginning is cached:
    # for the cached part vLLM returns numbers that are no tokens.
    scores_prompt = request.scored_tokens > 0
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed & _SEEDS if request.temperature > 0 else None,
        stop=list(request.stops) or None,
        include_stop_str_in_output=True,
        stop_token_ids=list(request.ends) or None,
        ignore_eos=True,  # the ends are given
        logprobs=len(request.candidates),
        logprob_token_ids=list(request.candidates) or None,
        prompt_logprobs=0 if scores_prompt else None,
        skip_reading_prefix_cache=False,
        detokenize=bool(request.stops),
    )


def _reply_or_error(request: TokenRequest, output: Any) -> TokenReply | Exception:
    """Return the reply in vLLM's output; whatever is wrong with it belongs to this request alone."""
    try:
        return _read_output(request, output)
    except Exception as error:
        return error


def _read_output(request: TokenRequest, output: Any) -> TokenReply:
    completion = output.outputs[0]
    if completion.finish_reason == "abort":
        raise LanguageModelError("expected a reply of vLLM, found that it gave the request up")

    tokens = tuple(completion.token_ids)
    logprobs = []
    for position, token in zip(completion.logprobs, tokens, strict=True):
        logprobs.append(position[token].logprob)

    first_position = completion.logprobs[0] if completion.logprobs else {}
    candidate_logprobs = {token: first_position[token].logprob for token in request.candidates}

    start = len(request.prompt) - request.scored_tokens
    prompt_logprobs = []
    for position_index, token in enumerate(request.prompt[start:], start):
        prompt_logprobs.append(output.prompt_logprobs[position_index][token].logprob)
    return TokenReply(tokens, tuple(logprobs), candidate_logprobs, tuple(prompt_logprobs))


class ServerTransport:
    """A vLLM server (``vllm serve``), by its completions of tokens.

    Args:
        url: Its address, such as ``http://127.0.0.1:8000``.
        model: Which of its models answers; None for the first that it serves.
        timeout: Seconds for a reply.
        concurrency: Requests that are there at the same time; the server batches them itself.
        run_name: What is in the names of adapters that are loaded; None for a new one.
        loads: Whether adapters and weights are sent; not where another process of a training does so.
        api_key_env: The variable that has the key, for a server that wants one.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        timeout: float = 600.0,
        concurrency: int = _CONCURRENCY,
        run_name: str | None = None,
        loads: bool = True,
        api_key_env: str = "OPENAI_API_KEY",
    ) -> None:
        self._address = address_of(url)
        self._base = self._address.url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._variable = api_key_env
        self._numbers = itertools.count()
        self._executor = ThreadPoolExecutor(concurrency, thread_name_prefix="comap-vllm")
        self._done: queue.SimpleQueue[tuple[int, TokenReply | Exception]] = queue.SimpleQueue()
        self._pending: dict[int, tuple[Future[None], _Abortable]] = {}

        # Trainings that share a server have names of their own for their adapters.
        self._run_name = run_name or secrets.token_hex(4)
        self._load_numbers = itertools.count(1)
        self._loads = loads
        self._served_adapters: dict[str, str] = {}  # the server's name of each that was loaded here

        # By HTTP nobody can say that a prompt is to be scored from what the server has cached of it.
        self.scores_prompts = False
        self.most_candidates: int | None = _SERVER_CANDIDATES

        entries = self._get("/v1/models").get("data")
        served = [entry for entry in entries or () if isinstance(entry, dict)]
        # Adapters are listed beside the models that they belong to.
        models = {str(entry.get("id")): entry for entry in served if not entry.get("parent")}
        self._model = next(iter(models), "") if model is None else model
        if self._model not in models:
            raise OptionError(
                f"expected a model that the server has ({', '.join(models) or 'it has none':.200}), "
                f"found {self._model!r:.80}"
            )
        context = models[self._model].get("max_model_len")
        self._context = context if isinstance(context, int) and context > 0 else None
        self.adapters = tuple(str(entry.get("id")) for entry in served if entry.get("parent"))
        """The names of the adapters that the server was started with."""

    def submit(self, request: TokenRequest) -> int:
        number = next(self._numbers)
        way = _Abortable()
        self._pending[number] = self._executor.submit(self._ask, number, request, way), way
        return number

    def step(self) -> list[tuple[int, TokenReply | Exception]]:
        done: list[tuple[int, TokenReply | Exception]] = []
        while self._pending:
            # The first is waited for; what else is there comes with it.
            if done and self._done.empty():
                break
            number, reply = self._done.get()
            if self._pending.pop(number, None) is not None:
                done.append((number, reply))
        return done

    def forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._pending:
                future, way = self._pending.pop(number)
                future.cancel()
                way.abort()

    def _ask(self, number: int, request: TokenRequest, way: _Abortable) -> None:
        reply: TokenReply | Exception
        try:
            reply = _read_answer(request, _read_json(self._complete(request, way)))
        except Exception as error:  # in a thread: whatever it is belongs to this request
            reply = error
        self._done.put((number, reply))

    def _complete(self, request: TokenRequest, way: _Abortable) -> bytes:
        """Return a server's answer; where the connection breaks before it is there, ask once more."""
        opener = urllib.request.build_opener(_NoRedirects, way)
        body = self._body(request)
        try:
            return self._send("/v1/completions", body, opener)
        except LanguageModelError as error:
            if not _is_broken_connection(error.__cause__):
                raise

        # A reply is a function of its request: the second one is what the first would have been.
        return self._send("/v1/completions", body, opener)

    def _body(self, request: TokenRequest) -> dict[str, Any]:
        body = {
            "model": self._served_name(request.adapter),
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stop": list(request.stops),
            "include_stop_str_in_output": True,
            "stop_token_ids": list(request.ends),
            "ignore_eos": True,
            "logprobs": len(request.candidates),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if request.temperature > 0:
            body["seed"] = request.seed & _SEEDS
        if request.candidates:
            body["logprob_token_ids"] = list(request.candidates)
        if request.scored_tokens:
            body["prompt_logprobs"] = 0
        return body

    def _served_name(self, adapter: str | None) -> str:
        if adapter is None:
            return self._model
        return self._served_adapters.get(adapter, adapter)

    def load_adapter(self, name: str, folder: Path) -> None:
        # A new name for new weights: the server's cache of prompts knows adapters by their names.
        former_name = self._served_adapters.get(name)
        served_name = f"{name}-{self._run_name}-{next(self._load_numbers)}"
        self._served_adapters[name] = served_name
        if not self._loads:
            return
        body = {"lora_name": served_name, "lora_path": str(folder)}
        try:
            self._send("/v1/load_lora_adapter", body)
        except LanguageModelError as error:
            raise LanguageModelError(
                f"expected the vLLM server to load the adapter {name!r:.80} from a folder, found: {error}; "
                f"it must see the same folders (TMPDIR names another for temporary ones); {SERVE}"
            ) from error
        if former_name is not None:
            self._unload_adapter(former_name)

    def _unload_adapter(self, served_name: str) -> None:
        # What is left behind costs the server a name in its list, and no training its work.
        with contextlib.suppress(LanguageModelError):
            self._send("/v1/unload_lora_adapter", {"lora_name": served_name})

    def load_weights(self, model: Any) -> None:
        """Write the weights into a temporary folder, and let the server read it.

        On a CPU a head that is tied to the embeddings keeps its former weights (vLLM 0.30): then train
        adapters, or have the engine in the process.
        """
        if not self._loads:
            return
        with tempfile.TemporaryDirectory(prefix="comap-weights-") as folder:
            with without_bars():
                model.save_pretrained(folder)
            body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            try:
                self._send("/collective_rpc", body)
                self._send("/reset_prefix_cache", {})
            except LanguageModelError as error:
                raise LanguageModelError(
                    "expected the vLLM server to take the weights of the model in training from a folder, "
                    f"found: {error}; {SERVE_WEIGHTS}"
                ) from error

    def sleep(self) -> None:
        """Do nothing: a server has memory of its own."""

    def wake(self) -> None:
        """Do nothing, as `sleep`."""

    def close(self) -> None:
        """Unload the adapters that were loaded, and end the threads."""
        for served_name in self._served_adapters.values() if self._loads else ():
            self._unload_adapter(served_name)
        self._served_adapters = {}
        self._executor.shutdown(wait=False, cancel_futures=True)

    def info(self) -> EngineInfo:
        # Only a server in dev mode says more than its models and its version.
        setup: Any = None
        version: Any = None
        with contextlib.suppress(LanguageModelError):
            setup = self._get("/server_info?config_format=json").get("vllm_config")
        with contextlib.suppress(LanguageModelError):
            version = self._get("/version").get("version")

        settings = setup.get("model_config") if isinstance(setup, dict) else None
        if not isinstance(settings, dict):
            settings = {}
        return EngineInfo(
            model=self._model,
            context=self._context,
            dtype=_last_word(settings.get("dtype")),
            logprobs_mode=_last_word(settings.get("logprobs_mode")),
            version=None if version is None else str(version)[:80],
        )

    def _get(self, path: str) -> dict[str, Any]:
        return _read_json(self._exchange(urllib.request.Request(self._base + path)))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return _read_json(self._send(path, body))

    def _send(
        self,
        path: str,
        body: Mapping[str, Any],
        opener: urllib.request.OpenerDirector = _WITHOUT_REDIRECTS,
    ) -> bytes:
        """Post something, and return the answer, which is no JSON everywhere."""
        request = urllib.request.Request(
            self._base + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        return self._exchange(request, opener)

    def _exchange(
        self,
        request: urllib.request.Request,
        opener: urllib.request.OpenerDirector = _WITHOUT_REDIRECTS,
    ) -> bytes:
        if os.environ.get(self._variable):
            request.add_header("Authorization", f"Bearer {key_from(self._variable, self._address)}")
        try:
            with opener.open(request, timeout=self._timeout) as response:
                text: bytes = response.read(_MOST_BYTES + 1)
                if response.length and len(text) <= _MOST_BYTES:
                    raise IncompleteRead(text, response.length)
        except urllib.error.HTTPError as error:
            raise LanguageModelError(
                f"expected an answer of the vLLM server, found the status {error.code}: "
                f"{_message_of(error):.600}"
            ) from error
        except (OSError, HTTPException) as error:
            raise LanguageModelError(
                f"expected a vLLM server at {self._address.place}, found {_brief(error)}; {SERVE}"
            ) from error

        if len(text) > _MOST_BYTES:
            raise LanguageModelError(
                f"expected an answer of at most {_MOST_BYTES:,} bytes of the vLLM server, found more"
            )
        return text


def _is_broken_connection(error: BaseException | None) -> bool:
    """Return whether a connection broke off; that nobody listens, or answers in time, is another error."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    broken = (RemoteDisconnected, IncompleteRead, ConnectionResetError, BrokenPipeError)
    return isinstance(reason, broken)


def _read_json(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LanguageModelError(
            f"expected JSON of the vLLM server, found something else ({_brief(error)})"
        ) from error
    return answer if isinstance(answer, dict) else {}


def _read_answer(request: TokenRequest, answer: Mapping[str, Any]) -> TokenReply:
    """Return the reply in the JSON of a server's completion."""
    try:
        (choice,) = answer["choices"]
        tokens = tuple(map(_token_id, choice["token_ids"]))
        logprobs = tuple(map(float, choice["logprobs"]["token_logprobs"]))

        candidate_logprobs: dict[int, float] = {}
        if request.candidates:
            first_position = choice["logprobs"]["top_logprobs"][0]
            for token in request.candidates:
                candidate_logprobs[token] = float(first_position[f"token_id:{token}"])

        start = len(request.prompt) - request.scored_tokens
        prompt_logprobs = []
        for position_index, token in enumerate(request.prompt[start:], start):
            position = choice["prompt_logprobs"][position_index]
            prompt_logprobs.append(float(position[str(token)]["logprob"]))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LanguageModelError(
            "expected a completion in tokens of the vLLM server, found something else "
            f"({_brief(error)}); {SERVE}"
        ) from error
    return TokenReply(tokens, logprobs, candidate_logprobs, tuple(prompt_logprobs))


def _token_id(token: object) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or token < 0:
        raise ValueError(f"the token {token!r:.40}")
    return token


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
