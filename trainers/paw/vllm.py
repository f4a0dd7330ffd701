"""A language model behind a vLLM server that is given the weights in training.

Requests and weights go through TRL's own client: generation over HTTP, in tokens both ways, weights
by vLLM's transfer engine (NCCL). TRL 1.16 serves by vLLM itself; ``trl vllm-serve`` starts the same
server, with ``processed_logprobs``::

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config '{"backend": "nccl"}' \
        --logprobs-mode raw_logprobs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...errors import LanguageModelError, OptionError
from ...lm import (
    Completion,
    Encode,
    Encoding,
    Generate,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
)
from ...lm.chat import ChatTokenizer
from ...lm.openai_options import public_name
from .token_texts import token_texts
from .vllm_server import connect, failed, pusher, sampled

__all__ = ["ServerLanguageModel"]

_SEEDS = 2**63 - 1  # vLLM takes so many


class ServerLanguageModel:
    """A causal language model on a vLLM server; it obeys `LanguageModel`.

    The server is given the very tokens that a model in this process would read, and the tokens that
    it sampled come back as they are. Each request is one HTTP request, for each has a seed of its own;
    vLLM batches those under way. What an answer depends on is up to vLLM: in a batch of another shape
    numbers are rounded differently, and the same seed may then draw another token.

    Log-probabilities are those of the model itself (temperature 1, no top-p). A server that tells them
    after temperature and top-p (``processed_logprobs``) tells these only where the request has
    temperature 1 and top-p 1; for other requests they are None.

    Attributes:
        name: How results call this model.
        capabilities: ``generate``, ``prefix`` and ``tokens``.
        usage: What was done so far.
        tokenizer: The tokenizer.
        context: The most tokens of prompt and answer together.
        client: TRL's client.

    Args:
        url: The server's address, ``http://host:8000``.
        tokenizer: The model's tokenizer of the transformers library, with a chat template.
        ends: Tokens that end generation, from the model's configuration.
        name: How results shall call it; else the name that the server tells, of a path the last part.
        concurrency: The most requests under way at once.
        timeout: For how many seconds to wait until the server is up.
        group_port: The port of this machine over which weights are sent.

    Raises:
        OptionError: An argument has a value that it cannot have.
        MissingExtra: TRL is not installed, or vLLM, without which TRL's client does nothing.
        LanguageModelError: There is no such server, or it was not started as above.

    Example:
        >>> lm = ServerLanguageModel("http://127.0.0.1:8000", tokenizer)  # doctest: +SKIP
        >>> lm.synchronise(trainer.model, trainer.accelerator)  # doctest: +SKIP
        >>> lm.generate([Generate((Message("user", "Hello"),))])[0].text  # doctest: +SKIP
        'Hello.'
    """

    capabilities: frozenset[str] = frozenset({"generate", "prefix", "tokens"})

    def __init__(
        self,
        url: str,
        tokenizer: Any,
        *,
        ends: Iterable[int] = (),
        name: str | None = None,
        concurrency: int = 64,
        timeout: float = 240.0,
        group_port: int = 51216,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise OptionError(
                f"concurrency must be a whole number of at least 1, not {concurrency!r}"
            )
        self._chat = ChatTokenizer(tokenizer, ends)
        self.tokenizer = tokenizer
        self._server = connect(url, timeout=timeout, group_port=group_port)
        self.client, self.context = self._server.client, self._server.context
        self.name = public_name(str(self.client.model)) if name is None else name
        self.usage = Usage()
        self._concurrency = concurrency
        self._pushing: Any = None

    # -- answers ---------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Generate text.

        Returns:
            A completion, or what is wrong with the request, for each request, in order.
        """
        if not requests:
            return []
        prompts = self._chat.prompts(requests)
        with ThreadPoolExecutor(min(self._concurrency, len(requests))) as executor:
            answers = list(executor.map(self._ask, requests, prompts))
        replies = []
        for request, prompt, answer in zip(requests, prompts, answers, strict=True):
            reply = self._reply(request, prompt, answer)
            if isinstance(reply, Completion):
                self.usage.requests += 1
                self.usage.prompt_tokens += reply.prompt_tokens
                self.usage.completion_tokens += reply.completion_tokens
            replies.append(reply)
        return replies

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Return an error for each request: this model generates, and nothing else."""
        return [self._unable("the log-probabilities of given texts") for _ in requests]

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return an error for each request: this model generates, and nothing else."""
        return [self._unable("next-word probabilities") for _ in requests]

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return an error for each request: this model generates, and nothing else."""
        return [self._unable("hidden states") for _ in requests]

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without what a chat template puts around it."""
        return self._chat.count(text)

    def config(self) -> dict[str, Any]:
        """Return JSON data that says what answers may depend on; no URL, no path of a machine."""
        return {
            "id": "vllm-server",
            "name": self.name,
            "model": public_name(str(self.client.model)),
            "host": self._server.host,
            "logprobs_mode": self._server.logprobs_mode,
            "context": self.context,
            "adapters": [],
        }

    # -- weights ---------------------------------------------------------------------------------

    def synchronise(self, model: Any, accelerator: Any = None, *, device: Any = None) -> None:
        """Give the server a model's weights, as TRL's trainers do, and let it forget what it cached.

        Every process of a training must call this, for weights that are shared among processes are
        gathered; the first one sends them. Of a model with an adapter the merged weights are sent;
        merging and unmerging rounds the weights beneath a little, in TRL's trainers too.

        Args:
            model: A model of the transformers or peft library that a trainer trains, unwrapped.
            accelerator: The trainer's; None for one of its own.
            device: The CUDA device that sends; None for the accelerator's.

        Raises:
            OptionError: It is no CUDA device: vLLM's transfer engine has no other.
            LanguageModelError: The server does not take the weights. An adapter is unmerged then.
        """
        if self._pushing is None or self._pushing.model is not model:
            self._pushing = pusher(self.client, model, self.tokenizer, accelerator, device)
        try:
            self._pushing.sync_weights()
        except Exception as error:  # TRL raises plain exceptions, whatever the server said
            if any(getattr(module, "merged", False) for module in model.modules()):
                model.unmerge_adapter()
            raise failed("a vLLM server that takes weights", error) from error

    # -- one request -----------------------------------------------------------------------------

    def _ask(self, request: Generate, prompt: list[int] | LanguageModelError) -> Any:
        """Return what TRL's client returns, or what is wrong."""
        if isinstance(prompt, LanguageModelError):
            return prompt
        if request.choices is not None:
            return self._unable("an answer out of given choices")
        if request.adapter is not None:
            return self._unable(f"the adapter {request.adapter!r:.80}")
        if len(prompt) >= self.context:
            return LanguageModelError(
                f"the model's context has {self.context:,} tokens, but the prompt has "
                f"{len(prompt):,}; shorten the conversation"
            )
        sampling = request.sampling
        try:
            return self.client.generate(
                [prompt],
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=self._limit(request, prompt),
                generation_kwargs={
                    "seed": sampling.seed & _SEEDS,
                    "stop": list(sampling.stop),
                    "stop_token_ids": sorted(self._chat.ends),
                },
            )
        except Exception as error:  # TRL raises plain exceptions, whatever the server said
            return failed("a completion from the vLLM server", error)

    def _limit(self, request: Generate, prompt: Sequence[int]) -> int:
        return min(request.sampling.max_new_tokens, self.context - len(prompt))

    def _reply(
        self, request: Generate, prompt: Any, answer: Any
    ) -> Completion | LanguageModelError:
        """Return the completion that an answer is."""
        if isinstance(answer, LanguageModelError):
            return answer
        try:
            tokens, logprobs = sampled(answer, prompt)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            return failed("a completion in tokens from the vLLM server", error)
        sampling = request.sampling
        ended = tokens[-1] in self._chat.ends
        text = self._chat.text(tokens[:-1] if ended else tokens, request.prefix)
        cuts = [text.find(stop) for stop in sampling.stop if stop in text]
        full = len(tokens) >= self._limit(request, prompt)
        told = self._server.logprobs_mode == "raw_logprobs" or (
            sampling.temperature == 1 and sampling.top_p == 1
        )
        return Completion(
            text=text[: min(cuts, default=None)],
            token_ids=tokens,
            logprobs=logprobs if told else None,
            finish="length" if full and not (ended or cuts) else "stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens),
            tokens=token_texts(self.tokenizer, tokens),
        )

    def _unable(self, what: str) -> LanguageModelError:
        return LanguageModelError(
            f"expected a request for text, which is all that {self.name} answers, found one for "
            f"{what}; use a model in this process for that"
        )
