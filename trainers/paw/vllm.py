"""A language model in vLLM, on a server or in this process, that TRL gives the weights in training."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, ClassVar

from ...errors import LanguageModelError, MissingExtra, OptionError, needs_extra
from ...lm import Completion, Generate, Usage
from ...lm.base import BaseLanguageModel, LMRequest
from ...lm.chat import ChatTokenizer
from ...lm.openai import address_of, public_name
from ...lm.thoughts import first_stop

START = (
    "start one with VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode raw_logprobs"""
)

_ROUNDED = 1e-3  # a log-probability of 0 may come out a little above
_MODES = ("raw_logprobs", "processed_logprobs")
_SEEDS = 2**63 - 1  # vLLM takes so many
_CONCURRENCY = 64


def connect(url: str, timeout: float) -> Any:
    """Return TRL's client of a server once it is up."""
    base = address_of(url).url.rstrip("/").removesuffix("/v1")
    with needs_extra("train", "a vLLM server"):
        from trl.generation.vllm_client import VLLMClient

    class Client(VLLMClient):  # type: ignore[misc]
        def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
            """Wait until the server is well; TRL's own would wait for ever for some answers."""
            deadline = time.monotonic() + total_timeout
            while True:
                try:
                    with urllib.request.urlopen(f"{base}/health", timeout=10):
                        return
                except (OSError, HTTPException) as error:  # also any status that is an error
                    if time.monotonic() >= deadline:
                        raise failed(f"a vLLM server at {base}", error, START) from error
                time.sleep(min(1.0, max(deadline - time.monotonic(), 0.0)))

    try:
        return Client(base_url=base, connection_timeout=timeout)
    except ImportError as error:  # the client needs vllm and requests in this process too
        raise MissingExtra(f'{error} A vLLM server needs both: pip install "trl[vllm]"') from error
    except LanguageModelError:
        raise
    except Exception as error:  # TRL raises plain exceptions, whatever the server said
        raise failed("a vLLM server with a model", error, START) from error


def sampled(answer: Any, prompt: Sequence[int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sampled tokens and the log-probability of each, or raise what is wrong with them."""
    (read_prompt,) = answer["prompt_ids"]
    (tokens,) = answer["completion_ids"]
    (logprobs,) = answer["logprobs"]
    (token_ids,) = answer["logprob_token_ids"]

    # A server that adds a token of its own samples from another policy than the one that learns.
    if list(read_prompt) != list(prompt):
        raise ValueError(
            f"it read {len(read_prompt)} other tokens than the {len(prompt)} it was given"
        )
    if not tokens or any(type(token) is not int or token < 0 for token in tokens):
        raise ValueError(f"its tokens are {tokens!r:.80}")

    # Each position lists some tokens: the likeliest ones, and the sampled one among them or beside them.
    token_logprobs = [
        float(values[listed_ids.index(token)])
        for token, listed_ids, values in zip(tokens, token_ids, logprobs, strict=True)
    ]
    if not all(value < _ROUNDED for value in token_logprobs):
        raise ValueError("its log-probabilities are no numbers, or above 0")
    return tuple(tokens), tuple(min(value, 0.0) for value in token_logprobs)


def failed(expected: str, error: Exception, advice: str = "see its log") -> LanguageModelError:
    """Return the message, on one short line, of an exception that a server is the cause of."""
    message = " ".join(str(error).split())[:300]
    return LanguageModelError(
        f"expected {expected}, found {type(error).__name__}: {message}; {advice}"
    )


class _VLLM(BaseLanguageModel):
    """A causal language model in vLLM; it generates, and nothing else."""

    capabilities: frozenset[str] = frozenset({"generate", "prefix", "tokens"})
    where: ClassVar[str]
    name: str
    context: int
    _logprobs_mode: str
    _sender: Any = None

    def __init__(
        self, tokenizer: Any, ends: Iterable[int], template: Mapping[str, Any] | None
    ) -> None:
        self.tokenizer = tokenizer
        self._chat = ChatTokenizer(tokenizer, ends, template)
        self.usage = Usage()

    def thinks(self, asked: bool = False) -> bool:
        """Return whether the model thinks before it replies, if a request asks for it or does not."""
        return self._chat.thinks(asked)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without what a chat template puts around it."""
        return self._chat.count(text)

    def config(self) -> dict[str, Any]:
        """Return JSON data that says what answers may depend on; no URL, no path of a machine."""
        return {
            "id": f"vllm-{self.where}",
            "name": self.name,
            "model": self.name,
            "logprobs_mode": self._logprobs_mode,
            "context": self.context,
            "adapters": [],
            **self._chat.describe(),
        }

    def synchronize(self, model: Any, accelerator: Any = None, *, device: Any = None) -> None:
        """Give vLLM a model's weights, as TRL's trainers do, and clear what it cached."""
        try:
            if self._sender is None or self._sender.model is not model:
                self._sender = self._new_sender(model, accelerator, device)
            self._sender.sync_weights()
        except (OptionError, MissingExtra):
            raise
        except Exception as error:  # TRL raises plain exceptions, whatever vLLM said
            # TRL merges an adapter to send it: where that broke off, training would go on merged.
            if any(getattr(module, "merged", False) for module in model.modules()):
                model.unmerge_adapter()
            advice = (
                START if self.where == "server" else "lower its share of memory, or see its log"
            )
            raise failed(f"a vLLM {self.where} that takes weights", error, advice) from error

    def _new_sender(self, model: Any, accelerator: Any, device: Any) -> Any:
        """Return TRL's ``VLLMGeneration``."""
        raise NotImplementedError

    def _sample(
        self, prompts: Sequence[list[int]], settings: Sequence[dict[str, Any]]
    ) -> list[Any]:
        """Return what vLLM says to each prompt, with the names of TRL's client, or why it says nothing."""
        raise NotImplementedError

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        prompts = self._chat.prompts(requests) if requests else []
        replies: list[Any] = []
        for request, prompt in zip(requests, prompts, strict=True):
            replies.append(self._refusal(request, prompt))

        # vLLM batches by itself: all that can be answered is sent at once.
        indices = [index for index, reply in enumerate(replies) if reply is None]
        sent_prompts: list[Any] = [prompts[index] for index in indices]
        settings = [
            self._settings(requests[index], len(prompt))  # type: ignore[arg-type]
            for index, prompt in zip(indices, sent_prompts, strict=True)
        ]
        answers = self._sample(sent_prompts, settings) if indices else []

        for index, prompt, limits, answer in zip(
            indices, sent_prompts, settings, answers, strict=True
        ):
            reply = self._completion(requests[index], prompt, limits["max_tokens"], answer)
            replies[index] = reply
            if isinstance(reply, Completion):
                self.usage.requests += 1
                self.usage.prompt_tokens += reply.prompt_tokens
                self.usage.completion_tokens += reply.completion_tokens
        return replies

    def _refusal(self, request: LMRequest, prompt: Any) -> LanguageModelError | None:
        """Return the error of a request that cannot be sent; None where it can."""
        if isinstance(prompt, LanguageModelError):
            return prompt
        if not isinstance(request, Generate) or request.choices or request.adapter is not None:
            return LanguageModelError(
                f"expected a request for free text of the model itself, which is all that {self.name} "
                f"answers, found {request!r:.80}; use a model in this process for that"
            )
        if len(prompt) >= self.context:
            return LanguageModelError(
                f"the model's context has {self.context:,} tokens, but the prompt has "
                f"{len(prompt):,}; shorten the conversation"
            )
        return None

    def _settings(self, request: Generate, length: int) -> dict[str, Any]:
        """Return how vLLM is to sample, with its own names."""
        sampling = request.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": min(sampling.max_new_tokens, self.context - length),
            "seed": sampling.seed & _SEEDS,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._chat.ends),
        }

    def _completion(
        self, request: Any, prompt: Sequence[int], limit: int, answer: Any
    ) -> Completion | LanguageModelError:
        sampling = request.sampling
        try:
            if isinstance(answer, Exception):
                raise answer
            tokens, logprobs = sampled(answer, prompt)
            texts = self._chat.texts(tokens)
        except Exception as error:  # as above
            return failed(f"a completion in tokens from the vLLM {self.where}", error)

        # Stop texts are in the reply's tokens, and cut off from its text alone: what is learned is what was
        # sampled.
        has_end = tokens[-1] in self._chat.ends
        text = self._chat.reply_text(request, tokens[:-1] if has_end else tokens)
        cut = first_stop(text, sampling.stop)
        is_at_limit = len(tokens) >= limit and not has_end and cut is None

        # Processed ones are of the distribution after temperature and top-p, which are the model's own
        # only at 1.
        is_unchanged = sampling.temperature == 1 and sampling.top_p == 1
        are_exact = self._logprobs_mode == "raw_logprobs" or is_unchanged
        return Completion(
            text=text[:cut],
            token_ids=tokens,
            logprobs=logprobs if are_exact else None,
            finish="length" if is_at_limit else "stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens),
            tokens=texts,
        )


class ServerLanguageModel(_VLLM):
    """A causal language model on a vLLM server; it generates, and nothing else."""

    where = "server"

    def __init__(
        self,
        url: str,
        tokenizer: Any,
        *,
        ends: Iterable[int] = (),
        timeout: float = 240.0,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(tokenizer, ends, template)
        self.client = connect(url, timeout)
        self._host = address_of(url).host
        try:
            info = self.client.get_server_info()["model_config"]
            self._logprobs_mode = info["logprobs_mode"]
            self.context = int(info["max_model_len"])
        except Exception as error:  # TRL raises plain exceptions, whatever the server said
            raise failed("a vLLM server that describes its setup", error, START) from error
        if self._logprobs_mode not in _MODES:
            raise LanguageModelError(
                f"expected a vLLM server whose --logprobs-mode is {' or '.join(_MODES)}, found "
                f"{self._logprobs_mode!r:.40}; {START}"
            )
        self.name = public_name(str(self.client.model))

    def config(self) -> dict[str, Any]:
        return super().config() | {"host": self._host}

    def _new_sender(self, model: Any, accelerator: Any, device: Any) -> Any:
        """Return TRL's ``VLLMGeneration`` around the client."""
        import torch
        from accelerate import Accelerator
        from trl.generation.vllm_generation import VLLMGeneration

        accelerator = Accelerator() if accelerator is None else accelerator
        client = self.client
        source = torch.device(device or accelerator.device)

        # NCCL sends from the memory of one GPU to another's.
        if source.type != "cuda":
            raise OptionError(
                f"expected a CUDA device to send weights from, found {source}; train on a GPU, or "
                "generate in the training's own process"
            )

        class Sender(VLLMGeneration):  # type: ignore[misc]
            def _init_vllm(self) -> None:
                # The client is there already: TRL's own constructor would connect a second one.
                self.vllm_client = client
                if self.accelerator.is_main_process and client.communicator is None:
                    client.init_communicator(device=source)
                self.accelerator.wait_for_everyone()

        return Sender(model, accelerator, self.tokenizer, mode="server")

    def _sample(
        self, prompts: Sequence[list[int]], settings: Sequence[dict[str, Any]]
    ) -> list[Any]:
        # A request for each prompt: the client's batches have one seed for all.
        with ThreadPoolExecutor(min(_CONCURRENCY, len(prompts))) as executor:
            return list(executor.map(self._ask, prompts, settings))

    def _ask(self, prompt: list[int], settings: Mapping[str, Any]) -> Any:
        # TRL's client has parameters for some of them, and passes on the others.
        named = {key: settings[key] for key in ("temperature", "top_p", "max_tokens")}
        others = {key: settings[key] for key in ("seed", "stop", "stop_token_ids")}
        try:
            return self.client.generate([prompt], **named, generation_kwargs=others)
        except Exception as error:  # as above
            return error


class ColocatedLanguageModel(_VLLM):
    """The model that is trained, in a vLLM engine of this process on the same GPU (TRL's "colocate").

    Not run on a GPU yet: tested with an engine that stands in for vLLM's.
    """

    where = "engine"
    _logprobs_mode = "processed_logprobs"  # as TRL sets it

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        share: float,
        *,
        ends: Iterable[int] = (),
        context: int,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(tokenizer, ends, template)
        self.name = "policy"
        self.context = context
        self._share = share
        self.synchronize(model)

    def _new_sender(self, model: Any, accelerator: Any, device: Any) -> Any:
        from accelerate import Accelerator
        from trl.generation.vllm_generation import VLLMGeneration

        if self._sender is not None:  # the trainer has wrapped the model; there is one engine
            self._sender.model = model
            return self._sender
        try:
            return VLLMGeneration(
                model,
                Accelerator() if accelerator is None else accelerator,
                self.tokenizer,
                mode="colocate",
                gpu_memory_utilization=self._share,
                max_model_length=self.context,
            )
        except ImportError as error:
            raise MissingExtra(f'{error} vLLM in this process: pip install "trl[vllm]"') from error

    def _sample(
        self, prompts: Sequence[list[int]], settings: Sequence[dict[str, Any]]
    ) -> list[Any]:
        from trl.generation import vllm_generation as trl_vllm

        token_prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        try:
            # No log-probabilities of other tokens than the sampled ones.
            parameters = [trl_vllm.SamplingParams(**setting, logprobs=0) for setting in settings]
            outputs = self._sender.llm.generate(
                token_prompts, sampling_params=parameters, use_tqdm=False
            )
        except Exception as error:  # whatever vLLM raises
            return [error] * len(prompts)

        answers = []
        for output in outputs:
            logprobs, token_ids = trl_vllm.extract_logprobs([output])
            answers.append(
                {
                    "prompt_ids": [output.prompt_token_ids],
                    "completion_ids": [list(output.outputs[0].token_ids)],
                    "logprobs": logprobs,
                    "logprob_token_ids": token_ids,
                }
            )
        return answers
