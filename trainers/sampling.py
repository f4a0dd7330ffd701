"""vLLM samples for a training: it gets the weights, and some of what it samples is computed again.

`EngineLanguageModel` is a vLLM engine beside the model that is trained; `open_engine` starts it or asks a
server. `comap.trainers.roles` and `comap.trainers.paw.training` say which weights go there.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import LanguageModelError, OptionError
from ..lm import Completion, EngineChoice, Generate, LanguageModel, Usage, answer, resolved_engine
from ..lm.base import BaseLanguageModel, Encode, LMReply, LMRequest
from ..lm.vllm import VLLMLanguageModel
from ..lm.vllm_transports import EngineTransport, ServerTransport, Transport, is_url
from .processes import gathered, is_first, wait, world_size
from .sharding import WholeModel, is_sharded, level, own_shard

if TYPE_CHECKING:
    from torch import Tensor

MEMORY_SHARE = 0.3
"""The share of a GPU's memory that an engine gets beside a training, if nobody says so."""

LARGE_ERROR = 0.02
"""Nats a token above which a sampled log-probability is far from the training's own."""
LARGE_ERROR_IN_HALF = 0.15
"""The same in bfloat16, in which about .04 nats are rounding (benchmarks/results/rounding.json)."""

_CHECKED = (
    3  # completions of each adapter that are computed again, in each stage and after each load
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """What samples for a training; `chosen_sampler` makes it.

    Attributes:
        choice: The engine, and why it is this one.
        server: The address of a vLLM server; None for an engine in this process.
        memory_share: The share of a GPU's memory for an engine in this process.
        dtype: What an engine in this process computes with.
        context: The most tokens of prompt and reply together.
    """

    choice: EngineChoice
    server: str | None = None
    memory_share: float = MEMORY_SHARE
    dtype: str = "float32"
    context: int = 2048

    @property
    def is_vllm(self) -> bool:
        """Whether vLLM samples, and not the model that is trained."""
        return self.choice.name == "vllm"


def chosen_sampler(
    engine: str,
    memory_share: float | None,
    *,
    dtype: str,
    context: int,
    device: str,
    exact: bool = False,
) -> Sampler:
    """Return what samples for a training.

    Args:
        engine: ``hf``, ``vllm``, the address of a server, or ``auto``.
        memory_share: The share of a GPU's memory for an engine in this process; None for 0.3.
        dtype: What the training's passes compute with.
        context: The most tokens of prompt and reply together.
        device: Where the model is that is trained.
        exact: Whether answers are to be in double precision.

    Raises:
        OptionError: There is no such engine, or it cannot sample for this training.
        MissingExtra: vLLM is named and is not installed.
    """
    choice = resolved_engine(engine, {"device": device})
    check_memory_share(memory_share)
    is_server = is_url(engine)
    if choice.name == "vllm" and (exact or dtype == "float64"):
        choice = EngineChoice("hf", "answers in double precision, which vLLM does not compute")

    return Sampler(
        choice=choice,
        server=engine if is_server else None,
        memory_share=MEMORY_SHARE if memory_share is None else memory_share,
        dtype=dtype,
        context=context,
    )


def check_memory_share(share: float | None) -> None:
    """Refuse what is no share of a GPU's memory; None is the default."""
    if share is not None and not 0 < share < 1:
        raise OptionError(
            f"expected a share of the GPU's memory between 0 and 1 for the engine, found {share:g}"
        )


def open_engine(
    sampler: Sampler,
    source: str | Path,
    tokenizer: Any,
    *,
    name: str,
    ends: Sequence[int],
    template: Mapping[str, Any],
    adapters: int = 0,
    adapter_rank: int = 16,
) -> VLLMLanguageModel:
    """Start a vLLM engine in this process, or connect to a server.

    Args:
        sampler: Which.
        source: The folder or hub name of the model that it begins with.
        tokenizer: The model's.
        name: What results call it.
        ends: Tokens that end a text.
        template: Variables for the chat template.
        adapters: How many LoRA adapters it is to have.
        adapter_rank: Their rank.
    """
    import torch

    transport: Transport
    if sampler.server is not None:
        url, _, served_model = sampler.server.partition("#")
        transport = ServerTransport(
            url,
            model=served_model or None,
            run_name=gathered([secrets.token_hex(4)])[0],
            loads=is_first(),
        )
    else:
        has_gpu = torch.cuda.is_available()
        transport = EngineTransport(
            source,
            dtype=sampler.dtype,
            context=sampler.context,
            memory_share=sampler.memory_share,
            adapters=adapters,
            adapter_rank=adapter_rank,
            eager=not has_gpu,  # a CPU gains nothing from compilation
            sleeps=has_gpu,
            # Each of several processes has an engine of its own, in the group that the training began.
            options={"distributed_executor_backend": "external_launcher"}
            if world_size() > 1
            else None,
        )
    return VLLMLanguageModel.from_transport(
        transport,
        tokenizer,
        ends=ends,
        max_length=sampler.context,
        name=name,
        chat_template_kwargs=template,
    )


LogprobsOf: TypeAlias = "Callable[[str | None, Sequence[int], Sequence[int]], Sequence[float]]"
"""Returns log-probabilities of tokens: of an adapter's name, a prompt, and the tokens after it."""


@dataclass(slots=True)
class _Errors:
    """How far sampled log-probabilities were from the training's own: a sum over tokens."""

    total: float = 0.0
    tokens: int = 0
    left: dict[str | None, int] = field(default_factory=dict)  # checks of each adapter


class _Noted(NamedTuple):
    """A completion that is computed again once all processes do: those that share weights need all."""

    adapter: str | None
    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]


_NOTHING = _Noted(None, (0,), (0,), ())
"""What a process reads while others compute completions again."""


class EngineLanguageModel(BaseLanguageModel):
    """A vLLM engine with the weights of a model in training, which answers what vLLM cannot.

    Args:
        engine: Answers all requests but those for hidden states.
        own: The model in training: answers these. None where nobody asks for any.
        logprobs_of: Returns the training's own log-probabilities of a completion's tokens, of the adapter's
            name, the prompt and the completion; None for a training that computes them anyhow.
    """

    def __init__(
        self,
        engine: VLLMLanguageModel,
        own: LanguageModel | None = None,
        logprobs_of: LogprobsOf | None = None,
    ) -> None:
        self.engine = engine
        self.own = own
        self.name = engine.name
        self.capabilities = engine.capabilities
        if own is not None:
            self.capabilities |= own.capabilities
        self.context = engine.context
        self.usage = Usage()

        self._logprobs_of = logprobs_of
        self._errors = _Errors()
        self._noted: list[_Noted] = []
        self._weights: dict[str, list[Tensor]] = {}  # of each adapter; of the model by ""
        self._marks: dict[str, int] = {}  # of the weights that the engine has
        self._folder = tempfile.TemporaryDirectory(prefix="comap-adapters-")
        self._folders: dict[str, Path] = {}  # of the adapters that the engine has
        self._loads = itertools.count()

        self._requests: dict[int, LMRequest] = {}  # that were submitted to the engine
        self._own_requests: dict[int, LMRequest] = {}  # that are for the model in training
        self._own_numbers = itertools.count(-1, -1)

    def thinks(self, asked: bool = False) -> bool:
        """Return whether the model thinks before it replies, if a request asks for it or does not."""
        return self.engine.thinks(asked)

    def count_tokens(self, text: str) -> int:
        return self.engine.count_tokens(text)

    def token_texts(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each token of a reply."""
        return self.engine.token_texts(token_ids)

    def config(self) -> dict[str, Any]:
        return self.engine.config()

    def load_adapter(
        self, name: str, weights: Iterable[Tensor], write: Callable[[Path], object]
    ) -> None:
        """Load an adapter where its weights have changed since the last time.

        Args:
            name: What requests call it.
            weights: Its weights.
            write: Writes it into a new folder, as peft does.
        """
        self._weights[name] = list(weights)
        mark = weights_mark(self._weights[name])
        if self._marks.get(name) == mark:
            return

        # The folder stays while the engine has it: one with little room reads adapters again and again.
        folder = Path(self._folder.name) / f"{name}-{next(self._loads)}"
        write(folder)
        self.engine.load_adapter(name, folder)
        wait()  # of several processes the first has loaded it at the server
        if name in self._folders:
            shutil.rmtree(self._folders[name])
        self._folders[name] = folder
        self._marks[name] = mark
        self._errors.left.pop(name, None)
        self._noted = [noted for noted in self._noted if noted.adapter != name]

    def load_weights(self, model: Any) -> None:
        """Load a model's weights where they have changed since the last time."""
        self._weights[""] = list(model.parameters())
        mark = weights_mark(self._weights[""])
        if self._marks.get("") != mark:
            if is_sharded():
                at_server = isinstance(self.engine.transport, ServerTransport)
                model = WholeModel(model, for_first=at_server)
            self.engine.transport.load_weights(model)
            wait()
            self._marks[""] = mark
            self._errors.left.clear()
            self._noted.clear()

    def sleep(self) -> None:
        """Give GPU memory back while the model is trained."""
        self.engine.transport.sleep()

    def wake(self) -> None:
        """Be ready to answer again."""
        self.engine.transport.wake()

    def close(self) -> None:
        """Take from a server what was loaded there."""
        self.engine.transport.close()
        self._folder.cleanup()

    def submit(self, request: LMRequest) -> int:
        """Hand a request over, and return the number under which `step` returns its reply."""
        if isinstance(request, Encode) and self.own is not None:
            number = next(self._own_numbers)
            self._own_requests[number] = request
        else:
            number = self.engine.submit(request)
            self._requests[number] = request
        return number

    def step(self) -> list[tuple[int, LMReply | LanguageModelError]]:
        """Return the replies that are there, once there is one; an empty list if nothing is asked."""
        # All that came meanwhile is one batch: this process computes it at once.
        if self._own_requests and self.own is not None:
            waiting = self._own_requests
            self._own_requests = {}
            replies = list(zip(waiting, answer(self.own, list(waiting.values())), strict=True))
        else:
            replies = self.engine.step()
        for number, reply in replies:
            self._check(self._requests.pop(number, None), reply)
        self._add_usage()
        return replies

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop requests whose replies nobody wants any more."""
        for number in numbers:
            self._requests.pop(number, None)
            self._own_requests.pop(number, None)
        self.engine.forget([number for number in numbers if number >= 0])

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        # Requests of a batch are of one kind.
        if self.own is not None and requests and isinstance(requests[0], Encode):
            replies = answer(self.own, requests)
        else:
            replies = answer(self.engine, requests)
        for request, reply in zip(requests, replies, strict=True):
            self._check(request, reply)
        self._add_usage()
        return replies

    def _add_usage(self) -> None:
        models = [model for model in (self.engine, self.own) if model is not None]
        for counted in fields(Usage):
            amounts = (getattr(model.usage, counted.name) for model in models)
            setattr(self.usage, counted.name, sum(amounts))

    def _check(self, request: LMRequest | None, reply: Any) -> None:
        """Compute the log-probabilities of the first few completions again."""
        if not isinstance(request, Generate) or not isinstance(reply, Completion):
            return
        if self._logprobs_of is None:
            return
        adapter = self.engine.adapter if request.adapter is None else request.adapter
        left = self._errors.left.setdefault(adapter, _CHECKED)
        if not left or not reply.token_ids or reply.logprobs is None:
            return

        self._errors.left[adapter] = left - 1
        prompt = self.engine.prompt_tokens(request)
        noted = _Noted(adapter, prompt, reply.token_ids, reply.logprobs)
        if is_sharded():
            self._noted.append(noted)
        else:
            self._add_errors(noted, self._logprobs_of(adapter, prompt, reply.token_ids))

    def _add_errors(self, noted: _Noted, own_logprobs: Sequence[float]) -> None:
        for sampled, own in zip(noted.logprobs, own_logprobs, strict=True):
            self._errors.total += abs(sampled - own)
            self._errors.tokens += 1

    def check_noted(self) -> None:
        """Compute the completions again that were noted; all processes must ask.

        Where weights have changed meanwhile, as in training, nobody can.
        """
        if not is_sharded():
            return
        adapters = gathered([noted.adapter for noted in self._noted])
        for adapter in sorted(set(adapters), key=str):
            key = adapter if adapter is not None and adapter in self._marks else ""
            if self._logprobs_of is None or weights_mark(self._weights[key]) != self._marks[key]:
                continue
            own = [noted for noted in self._noted if noted.adapter == adapter]
            for noted in level(own, _NOTHING):
                own_logprobs = self._logprobs_of(adapter, noted.prompt, noted.tokens)
                if noted is not _NOTHING:
                    self._add_errors(noted, own_logprobs)
        self._noted = []

    def take_errors(self) -> tuple[float, int]:
        """Return the sum of the errors since the last call, and of how many tokens it is."""
        errors = self._errors
        self._errors = _Errors()
        return errors.total, errors.tokens


def sampling_error(sums: Iterable[tuple[float, int]], dtype: str) -> float | None:
    """Return the mean error a token of all processes; None where nothing was sampled. Warn if large.

    Args:
        sums: Of each engine the sum of its errors, and of how many tokens.
        dtype: What they compute with.
    """
    totals = gathered(list(sums))
    tokens = sum(count for _, count in totals)
    if not tokens:
        return None

    error: float = sum(total for total, _ in totals) / tokens
    warn_of_large_error(error, dtype)
    return error


def warn_of_large_error(error: float, dtype: str) -> None:
    """Warn where sampled log-probabilities are far from the training's own, both in a precision."""
    limit = LARGE_ERROR_IN_HALF if dtype == "bfloat16" else LARGE_ERROR
    if error > limit:
        warnings.warn(
            f"sampled log-probabilities differ from the training's own by {error:.3f} nats a token "
            f"(more than {limit:g}): the engine has other weights, or another precision; a server "
            "needs the --dtype that the training computes with",
            stacklevel=2,
        )


def weights_mark(weights: Iterable[Tensor]) -> int:
    """Return a number that is another one when weights have changed."""
    import torch

    # What writes to a weight's `data` leaves no mark of it: some of the values are compared, too.
    marks = []
    samples = []
    for weight in map(own_shard, weights):
        marks.append((weight.data_ptr(), weight._version))
        sample = weight.detach().reshape(-1)[:: weight.numel() // 8 + 1]
        samples.append(sample.to(weight.device).float())
    mark = hash((*torch.cat(samples).tolist(), *marks))
    # All processes load the weights of a sharded model, or none.
    return hash(tuple(gathered([mark]))) if is_sharded() else mark


def token_logprobs(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], dtype: str
) -> list[float]:
    """Return a model's log-probabilities of tokens after a prompt, at temperature 1.

    Args:
        model: A causal model of transformers.
        prompt: Tokens.
        tokens: Those after it.
        dtype: What the training's passes compute with, whatever the weights are held in.
    """
    import torch

    is_half = dtype == "bfloat16"
    autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=is_half)
    token_ids = torch.tensor([[*prompt, *tokens]], device=model.device)
    targets = torch.tensor(tokens, device=model.device)
    with torch.no_grad(), autocast:
        logits = model(input_ids=token_ids, logits_to_keep=len(tokens) + 1).logits[0, :-1]
        logprobs = logits.float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    values: list[float] = logprobs.tolist()
    return values


def check_models(sampler: Sampler, count: int) -> None:
    """Refuse several models with all their weights at a server, which takes the weights of one."""
    if sampler.is_vllm and sampler.server is not None and count > 1:
        raise OptionError(
            f"expected adapters of one model at a server, found {count} models with all their weights; "
            "train with weights='lora', or use the engine vllm (in this process) or hf"
        )


def parts_of(sampler: Sampler, count: int) -> Iterator[Sampler]:
    """Yield the samplers of several models, which divide the memory."""
    check_models(sampler, count)
    for _ in range(count):
        yield replace(sampler, memory_share=sampler.memory_share / count)
