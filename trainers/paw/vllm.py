"""A language model on a vLLM server that is given the weights in training, through TRL's client."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

from ...errors import LanguageModelError, MissingExtra, OptionError, needs_extra
from ...lm import Completion, Generate, Usage
from ...lm.base import BaseLanguageModel, LMRequest
from ...lm.chat import ChatTokenizer
from ...lm.openai import address_of, public_name

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
    ((read,), (tokens,)) = answer["prompt_ids"], answer["completion_ids"]
    ((logprobs,), (token_ids,)) = answer["logprobs"], answer["logprob_token_ids"]
    if list(read) != list(prompt):
        raise ValueError(f"it read {len(read)} other tokens than the {len(prompt)} it was given")
    if not tokens or any(type(token) is not int or token < 0 for token in tokens):
        raise ValueError(f"its tokens are {tokens!r:.80}")
    found = [
        float(values[known.index(token)])
        for token, known, values in zip(tokens, token_ids, logprobs, strict=True)
    ]
    if not all(value < _ROUNDED for value in found):
        raise ValueError("its log-probabilities are no numbers, or above 0")
    return tuple(tokens), tuple(min(value, 0.0) for value in found)


def failed(expected: str, error: Exception, advice: str = "see its log") -> LanguageModelError:
    """Return the message, on one short line, of an exception that a server is the cause of."""
    message = " ".join(str(error).split())[:300]
    return LanguageModelError(
        f"expected {expected}, found {type(error).__name__}: {message}; {advice}"
    )


class ServerLanguageModel(BaseLanguageModel):
    """A causal language model on a vLLM server; it generates, and nothing else."""

    capabilities: frozenset[str] = frozenset({"generate", "prefix", "tokens"})

    def __init__(
        self, url: str, tokenizer: Any, *, ends: Iterable[int] = (), timeout: float = 240.0
    ) -> None:
        self.tokenizer, self._chat = tokenizer, ChatTokenizer(tokenizer, ends)
        self.client, self._host = connect(url, timeout), address_of(url).host
        try:
            info = self.client.get_server_info()["model_config"]
            self._logprobs_mode, self.context = info["logprobs_mode"], int(info["max_model_len"])
        except Exception as error:  # as above
            raise failed("a vLLM server that describes its setup", error, START) from error
        if self._logprobs_mode not in _MODES:
            raise LanguageModelError(
                f"expected a vLLM server whose --logprobs-mode is {' or '.join(_MODES)}, found "
                f"{self._logprobs_mode!r:.40}; {START}"
            )
        self.name = public_name(str(self.client.model))
        self.usage = Usage()
        self._sender: Any = None

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without what a chat template puts around it."""
        return self._chat.count(text)

    def config(self) -> dict[str, Any]:
        """Return JSON data that says what answers may depend on; no URL, no path of a machine."""
        return {
            "id": "vllm-server",
            "name": self.name,
            "model": self.name,
            "host": self._host,
            "logprobs_mode": self._logprobs_mode,
            "context": self.context,
            "adapters": [],
        }

    def synchronize(self, model: Any, accelerator: Any = None, *, device: Any = None) -> None:
        """Give the server a model's weights, as TRL's trainers do, and clear what it cached."""
        try:
            if self._sender is None or self._sender.model is not model:
                self._sender = self._new_sender(model, accelerator, device)
            self._sender.sync_weights()
        except OptionError:
            raise
        except Exception as error:  # as above
            if any(getattr(module, "merged", False) for module in model.modules()):
                model.unmerge_adapter()
            raise failed("a vLLM server that takes weights", error, START) from error

    def _new_sender(self, model: Any, accelerator: Any, device: Any) -> Any:
        """Return TRL's ``VLLMGeneration`` around the client."""
        import torch
        from accelerate import Accelerator
        from trl.generation.vllm_generation import VLLMGeneration

        accelerator = Accelerator() if accelerator is None else accelerator
        client, source = self.client, torch.device(device or accelerator.device)
        if source.type != "cuda":
            raise OptionError(
                f"expected a CUDA device to send weights from, found {source}; train on a GPU, or "
                "generate in the training's own process"
            )

        class Sender(VLLMGeneration):  # type: ignore[misc]
            def _init_vllm(self) -> None:
                self.vllm_client = client
                if self.accelerator.is_main_process and client.communicator is None:
                    client.init_communicator(device=source)
                self.accelerator.wait_for_everyone()

        return Sender(model, accelerator, self.tokenizer, mode="server")

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        if not requests:
            return []
        prompts = self._chat.prompts(requests)
        with ThreadPoolExecutor(min(_CONCURRENCY, len(requests))) as executor:
            replies = list(executor.map(self._ask, requests, prompts))
        for reply in replies:
            if isinstance(reply, Completion):
                self.usage.requests += 1
                self.usage.prompt_tokens += reply.prompt_tokens
                self.usage.completion_tokens += reply.completion_tokens
        return replies

    def _ask(
        self, request: LMRequest, prompt: list[int] | LanguageModelError
    ) -> Completion | LanguageModelError:
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
        sampling = request.sampling
        limit = min(sampling.max_new_tokens, self.context - len(prompt))
        try:
            answer = self.client.generate(
                [prompt],
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=limit,
                generation_kwargs={
                    "seed": sampling.seed & _SEEDS,
                    "stop": list(sampling.stop),
                    "stop_token_ids": sorted(self._chat.ends),
                },
            )
            tokens, logprobs = sampled(answer, prompt)
            texts = self._chat.texts(tokens)
        except Exception as error:  # TRL raises plain exceptions, whatever the server said
            return failed("a completion in tokens from the vLLM server", error)
        ended = tokens[-1] in self._chat.ends
        text = self._chat.text(tokens[:-1] if ended else tokens, request.prefix)
        cuts = [text.find(stop) for stop in sampling.stop if stop in text]
        at_one = sampling.temperature == 1 and sampling.top_p == 1
        exact = self._logprobs_mode == "raw_logprobs" or at_one
        return Completion(
            text=text[: min(cuts, default=None)],
            token_ids=tokens,
            logprobs=logprobs if exact else None,
            finish="length" if len(tokens) >= limit and not (ended or cuts) else "stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens),
            tokens=texts,
        )
