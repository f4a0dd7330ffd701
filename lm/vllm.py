"""Language models in vLLM: in this process or at a server, with all kinds of requests that it can serve."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias, get_args

from ..errors import LanguageModelError, OptionError, check_choice, check_number
from .base import (
    Completion,
    Encode,
    Generate,
    LMReply,
    LMRequest,
    NextWord,
    Sampling,
    Score,
    Scores,
    Usage,
    WordProbabilities,
)
from .chat import ChatLanguageModel, ChatTokenizer, checked_template_kwargs
from .engine.passes import TokenTrie, until_unique
from .hf import word_probabilities
from .load import ends_in, load_tokenizer, rank_of, source_of
from .openai import public_name
from .thoughts import first_stop
from .vllm_transports import (
    EngineTransport,
    ServerTransport,
    TokenReply,
    TokenRequest,
    Transport,
    is_url,
)

Answering: TypeAlias = "Generator[list[TokenRequest], list[TokenReply], LMReply]"
"""How a request is answered: what the engine is asked, again and again, and at last the reply."""

DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

_ROUNDED = 1e-3  # a log-probability of 0 may come out a little above
_ONE_BY_ONE = 64  # tokens of a text that is scored in as many requests


class VLLMLanguageModel(ChatLanguageModel):
    """A causal language model in vLLM; it obeys `LanguageModel`.

    Prompts, prefixes, stop texts and token counts are those of `HFLanguageModel`: its chat template and
    tokenizer run here, and vLLM sees tokens alone.

    * `Generate`: free text. With `choices` the text is exactly one of them, decoded token by token over
      the trie of their tokens; log-probabilities are of the model itself.
    * `Score`, `NextWord`: as `HFLanguageModel` defines them; one question to vLLM for each completion, or
      for each place at which words differ.
    * `Encode`: not served. Ask a model in this process.

    Requests can be handed over one by one: `submit` returns a number at once, and `step` the replies that
    are there. The engine batches whatever is there at a time.

    Attributes:
        name: How results call this model.
        capabilities: All there are but ``encode``.
        usage: What was done so far.
        tokenizer: The tokenizer of the transformers library.
        context: The most tokens of prompt and answer together, or None.
        adapter: Which adapter answers requests that name none; None for the bare model.

    Args:
        model: A folder that `save_pretrained` wrote, or the name of a model on the hub: an engine of this
            process loads it. Or the address of a server, ``http://HOST:PORT``, and after a ``#`` the
            name of one of its models. ``vllm serve MODEL --logprobs-mode raw_logprobs --generation-config
            vllm`` starts one; for LoRA adapters also ``--enable-lora``, with
            VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment.
        tokenizer: The folder or hub name of the model's tokenizer; None for that of `model`. With a server
            it must be given.
        adapters: LoRA adapters by name: folders that peft wrote, which the engine can read.
        adapter: The default adapter's name.
        dtype: ``auto`` (bfloat16 on a GPU, float32 on a CPU), ``float32``, ``bfloat16`` or ``float16``, of
            an engine in this process; a server has its own.
        max_length: The most tokens of prompt and answer together, if less than the model's own.
        memory_share: Share of the GPU's memory for an engine in this process; None for vLLM's choice.
        eager: Start an engine at once, without compilation and CUDA graphs, and be slower then.
        engine_options: Further options of ``vllm.LLM``, such as ``{"tensor_parallel_size": 2}``.
        timeout: Seconds for a server's reply.
        api_key_env: The variable that has the key of a server that wants one.
        name: How results shall call this model; else what the engine calls it.
        revision: Which version of a model on the hub: a branch, tag or commit.
        chat_template_kwargs: As of `HFLanguageModel`.

    Raises:
        LanguageModelError: The engine cannot be used, or an adapter cannot be loaded.
        OptionError: An argument has a value that it cannot have.
        MissingExtra: vllm is not installed.

    Example:
        >>> lm = VLLMLanguageModel("Qwen/Qwen3-0.6B")  # doctest: +SKIP
        >>> server = "http://127.0.0.1:8000"
        >>> lm = VLLMLanguageModel(server, tokenizer="Qwen/Qwen3-0.6B")  # doctest: +SKIP
    """

    adapter: str | None
    _adapters: dict[str, str]
    capabilities = frozenset({"generate", "choices", "prefix", "tokens", "score", "words"})

    def __init__(  # noqa: PLR0913 options of a model, as --model-option passes them
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        adapter: str | None = None,
        dtype: DType = "auto",
        max_length: int | None = None,
        memory_share: float | None = None,
        eager: bool = False,
        engine_options: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
        api_key_env: str = "OPENAI_API_KEY",
        name: str | None = None,
        revision: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if max_length is not None:
            check_number("max_length", max_length)
        template = checked_template_kwargs(chat_template_kwargs)

        transport: Transport
        if is_url(model):
            url, _, served = str(model).partition("#")
            transport = ServerTransport(
                url, model=served or None, timeout=timeout, api_key_env=api_key_env
            )
            # The server says what it has loaded, but its words never become a path of this machine.
            if tokenizer is None:
                raise OptionError(
                    "expected the tokenizer of the server's model, found none; give its folder or its name "
                    "on the hub (tokenizer=...)"
                )
            source = source_of(tokenizer)
            loaded_tokenizer = load_tokenizer(source, revision)
        else:
            check_choice("dtype", dtype, get_args(DType))
            source = source_of(model)
            loaded_tokenizer = load_tokenizer(
                source_of(tokenizer) if tokenizer else source, revision
            )
            ChatTokenizer(loaded_tokenizer, (), template)  # before the weights, which take long
            options = dict(engine_options or {})
            if revision is not None:
                options["revision"] = revision
            transport = EngineTransport(
                source,
                dtype=_usual_dtype() if dtype == "auto" else dtype,
                context=max_length,
                memory_share=memory_share,
                adapters=len(adapters or {}),
                adapter_rank=max(map(rank_of, (adapters or {}).values()), default=8),
                eager=eager,
                options=options,
            )
        self._set_up(
            transport, loaded_tokenizer, ends_in(source, revision), max_length, name, template
        )
        for adapter_name, folder in (adapters or {}).items():
            self.load_adapter(adapter_name, folder)
        if adapter is not None and adapter not in self._adapters:
            raise OptionError(f"there is no adapter {adapter!r:.80}; give its folder in adapters")
        self.adapter = adapter

    @classmethod
    def from_transport(
        cls,
        transport: Transport,
        tokenizer: Any,
        *,
        ends: Sequence[int] = (),
        max_length: int | None = None,
        name: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> VLLMLanguageModel:
        """Return a language model around an engine that runs already, such as a training's.

        Args:
            transport: The way to the engine.
            tokenizer: The model's tokenizer.
            ends: Further tokens that end a message.
            max_length: As of the class.
            name: As of the class.
            chat_template_kwargs: As of the class.
        """
        made = cls.__new__(cls)
        template = checked_template_kwargs(chat_template_kwargs)
        made._set_up(transport, tokenizer, ends, max_length, name, template)
        return made

    def _set_up(
        self,
        transport: Transport,
        tokenizer: Any,
        ends: Sequence[int],
        max_length: int | None,
        name: str | None,
        template: Mapping[str, Any],
    ) -> None:
        self.transport = transport
        self.tokenizer = tokenizer
        self._chat = ChatTokenizer(tokenizer, ends, template)
        self._info = transport.info()
        if self._info.logprobs_mode not in (None, "raw_logprobs"):
            raise LanguageModelError(
                "expected a vLLM whose log-probabilities are the model's own (--logprobs-mode "
                f"raw_logprobs), found {self._info.logprobs_mode!r:.40}"
            )
        limits = [limit for limit in (self._info.context, max_length) if limit]
        self.context = min(limits, default=None)
        self.name = name or public_name(self._info.model)
        self.usage = Usage()
        self.adapter = None
        # The engine's name of each adapter, by ours: a server may have some already.
        self._adapters = {adapter: adapter for adapter in getattr(transport, "adapters", ())}

        self._lock = threading.RLock()
        self._tickets = itertools.count()
        self._answerings: dict[int, _Answering] = {}
        self._waiting: dict[int, tuple[int, int]] = {}  # the ticket and place of each question
        self._done: list[tuple[int, LMReply | LanguageModelError]] = []

    def load_adapter(self, name: str, folder: str | Path) -> None:
        """Load an adapter that peft wrote, in place of the one of that name.

        Args:
            name: What requests shall call it.
            folder: Where it is; or, of a server that was started with it, the server's name for it.
        """
        if folder not in self._adapters.values():
            self.transport.load_adapter(name, Path(folder).expanduser().resolve())
            folder = name
        self._adapters[name] = str(folder)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters there are, sorted."""
        return tuple(sorted(self._adapters))

    def config(self) -> dict[str, Any]:
        """Return JSON data that says what answers may depend on; no URL, no path of a machine."""
        return {
            "name": self.name,
            "kind": "vllm",
            "model": public_name(self._info.model),
            "dtype": self._info.dtype,
            "context": self.context,
            "adapters": list(self.adapters),
            "adapter": self.adapter,
            "vllm": self._info.version,
            **self._chat.describe(),
        }

    def prompt_tokens(self, request: LMRequest) -> tuple[int, ...]:
        """Return the tokens of a request's prompt, or raise the error that answers it."""
        (prompt,) = self._chat.prompts([request])
        if isinstance(prompt, LanguageModelError):
            raise prompt
        return tuple(prompt)

    def submit(self, request: LMRequest) -> int:
        """Hand a request over, and return the number under which `step` returns its reply."""
        with self._lock:
            return self._begin(request, self._chat.prompts([request])[0])

    def step(self) -> list[tuple[int, LMReply | LanguageModelError]]:
        """Return the replies that are there, once there is one; an empty list if nothing is asked."""
        with self._lock:
            while self._answerings and not self._done:
                token_replies = self.transport.step()
                for number, reply in token_replies:
                    self._take(number, reply)
                if not token_replies:
                    self._give_up()
            done = self._done
            self._done = []
            return done

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop requests whose replies nobody wants any more; the engine stops writing them."""
        with self._lock:
            dropped = frozenset(numbers)
            for ticket in dropped & self._answerings.keys():
                self._answerings.pop(ticket).steps.close()
            self._done = [entry for entry in self._done if entry[0] not in dropped]

            questions = [
                number for number, (ticket, _) in self._waiting.items() if ticket in dropped
            ]
            for number in questions:
                del self._waiting[number]
            self.transport.forget(questions)

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        with self._lock:
            # All prompts at once: a fast tokenizer works on the texts of a batch in parallel.
            prompts = self._chat.prompts(requests) if requests else []
            replies: dict[int, Any] = {}
            for request, prompt in zip(requests, prompts, strict=True):
                replies[self._begin(request, prompt)] = None

            missing = len(replies)
            others: list[tuple[int, Any]] = []
            while missing:
                for ticket, reply in self.step():
                    if ticket in replies:
                        replies[ticket] = reply
                        missing -= 1
                    else:  # of somebody who asked by `submit`
                        others.append((ticket, reply))
            self._done += others
            return list(replies.values())

    def _begin(self, request: LMRequest, prompt: list[int] | LanguageModelError) -> int:
        ticket = next(self._tickets)
        try:
            if isinstance(prompt, LanguageModelError):
                raise prompt
            answering = _Answering(self._answering(request, tuple(prompt)))
        except LanguageModelError as error:
            self._done.append((ticket, error))
            return ticket
        self._answerings[ticket] = answering
        self._go_on(ticket, None)
        return ticket

    def _take(self, number: int, reply: TokenReply | Exception) -> None:
        """Give a reply to whom it is for, who goes on once all that it asked is there."""
        # Nobody waits for a reply where another question of the same request has failed.
        ticket, place = self._waiting.pop(number, (-1, 0))
        answering = self._answerings.get(ticket)
        if answering is None:
            return
        if isinstance(reply, Exception):
            del self._answerings[ticket]
            answering.steps.close()
            self._finish(ticket, _failure(reply))
            return
        answering.replies[place] = reply
        if len(answering.replies) == answering.asked:
            replies = [answering.replies[place] for place in range(answering.asked)]
            self._go_on(ticket, replies)

    def _give_up(self) -> None:
        """Answer all that is waited for by an error: the engine has nothing more to say."""
        lost = LanguageModelError("expected a reply of vLLM, found that it forgot the request")
        for ticket in list(self._answerings):
            del self._answerings[ticket]
            self._finish(ticket, lost)
        self._waiting = {}

    def _go_on(self, ticket: int, replies: list[TokenReply] | None) -> None:
        """Play a request on with the replies to its questions; None at its beginning."""
        answering = self._answerings[ticket]
        questions: list[TokenRequest] = []
        try:
            questions = next(answering.steps) if replies is None else answering.steps.send(replies)
            while not questions:  # an empty text has nothing to ask for
                questions = answering.steps.send([])
        except StopIteration as stop:
            del self._answerings[ticket]
            self._finish(ticket, stop.value)
            return
        except Exception as error:  # it belongs to this request, and costs no other one
            del self._answerings[ticket]
            self._finish(ticket, _failure(error))
            return

        answering.asked = len(questions)
        answering.replies = {}
        for place, question in enumerate(questions):
            self._waiting[self.transport.submit(question)] = (ticket, place)

    def _finish(self, ticket: int, reply: LMReply | LanguageModelError) -> None:
        if not isinstance(reply, LanguageModelError):
            self._count(reply)
        self._done.append((ticket, reply))

    def _answering(self, request: LMRequest, prompt: tuple[int, ...]) -> Answering:
        adapter = self.adapter if request.adapter is None else request.adapter
        if adapter is not None and adapter not in self._adapters:
            raise LanguageModelError(
                f"expected an adapter that was loaded ({', '.join(self.adapters) or 'none was'}), found "
                f"{adapter!r:.80}"
            )
        if adapter is not None:
            adapter = self._adapters[adapter]
        if isinstance(request, Encode):
            raise LanguageModelError(
                f"expected a request for text or probabilities, found one for hidden states, which "
                f"{self.name!r} in vLLM cannot tell; use the engine hf, or p_source='verbal'"
            )
        if isinstance(request, Score):
            return self._score(request, prompt, adapter)
        if isinstance(request, NextWord):
            return self._words(request, prompt, adapter)
        if request.choices is not None:
            return self._choose(request, prompt, adapter)
        return self._generate(request, prompt, adapter)

    def _generate(
        self, request: Generate, prompt: tuple[int, ...], adapter: str | None
    ) -> Answering:
        sampling = request.sampling
        self._check_length(prompt, 1, most=sampling.max_new_tokens)
        limit = sampling.max_new_tokens
        if self.context is not None:
            limit = min(limit, self.context - len(prompt))

        # vLLM would also stop within a thought, where a stop text does not count.
        may_think = self._chat.thinks(request.thinking) or bool(self._chat.opened)
        stops = () if may_think else sampling.stop
        question = TokenRequest(
            prompt=prompt,
            max_tokens=limit,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            stops=stops,
            ends=tuple(sorted(self._chat.ends)),
            adapter=adapter,
        )
        (reply,) = yield [question]

        tokens = reply.tokens
        has_end = bool(tokens) and tokens[-1] in self._chat.ends
        text = self._chat.reply_text(request, tokens[:-1] if has_end else tokens)
        stop = first_stop(text, sampling.stop)
        is_cut = len(tokens) >= limit and not has_end and stop is None
        return Completion(
            text=text[:stop],
            token_ids=tokens,
            logprobs=_checked_logprobs(reply.logprobs, len(tokens)),
            finish="length" if is_cut else "stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens),
            tokens=self._chat.texts(tokens),
        )

    def _choose(self, request: Generate, prompt: tuple[int, ...], adapter: str | None) -> Answering:
        """Write one of some choices, token by token.

        vLLM's own structured outputs allow other tokenizations of a choice, and report probabilities
        among the allowed tokens alone.
        """
        if not request.choices:
            raise LanguageModelError("expected choices, found none")
        end = self._chat.end
        trie = TokenTrie([[*tokens, end] for tokens in self._chat.tokens(request.choices)])
        self._check_length(prompt, max(trie.depths))

        random = Random(request.sampling.seed & (2**64 - 1))
        node = 0
        tokens: list[int] = []
        logprobs: list[float] = []
        while trie.children[node]:
            options = sorted(trie.children[node])
            replies = yield self._candidate_questions((*prompt, *tokens), options, adapter)
            logprob_of = _candidate_logprobs(replies)
            scores = [logprob_of[token] for token in options]
            _checked_logprobs(scores, len(options))
            index = _draw(scores, request.sampling, random)
            tokens.append(options[index])
            logprobs.append(min(scores[index], 0.0))
            node = trie.children[node][options[index]]

        return Completion(
            text=request.choices[trie.ends.index(node)],
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish="stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens),
            tokens=self._chat.texts(tokens),
        )

    def _score(self, request: Score, prompt: tuple[int, ...], adapter: str | None) -> Answering:
        end = [self._chat.end] if request.ended else []
        sequences = [tokens + end for tokens in self._chat.tokens(request.completions)]
        if not sequences:
            raise LanguageModelError("expected completions or words, found none")
        self._check_length(prompt, max(map(len, sequences)))

        # An empty sequence has no log-probabilities to ask for.
        questions: list[TokenRequest] = []
        counts = []
        for sequence in sequences:
            questions_of_sequence = self._scoring(prompt, tuple(sequence), adapter)
            questions += questions_of_sequence
            counts.append(len(questions_of_sequence))
        replies = iter((yield questions))

        scores: list[tuple[float, ...]] = []
        for sequence, count in zip(sequences, counts, strict=True):
            logprobs: list[float] = []
            for _ in range(count):
                reply = next(replies)
                logprobs += reply.prompt_logprobs or reply.candidate_logprobs.values()
            scores.append(_checked_logprobs(logprobs, len(sequence)))
        return Scores(tuple(scores), len(prompt))

    def _scoring(
        self, prompt: tuple[int, ...], sequence: tuple[int, ...], adapter: str | None
    ) -> list[TokenRequest]:
        """Return the questions for the log-probabilities of a sequence after a prompt."""
        if not sequence:
            return []
        if self.transport.scores_prompts or len(sequence) > _ONE_BY_ONE:
            whole = (*prompt, *sequence)
            return [TokenRequest(whole, scored_tokens=len(sequence), adapter=adapter)]

        # One token at a time: all but the last few tokens before it are in the engine's cache.
        questions = []
        for position, token in enumerate(sequence):
            before = (*prompt, *sequence[:position])
            questions.append(TokenRequest(before, candidates=(token,), adapter=adapter))
        return questions

    def _words(self, request: NextWord, prompt: tuple[int, ...], adapter: str | None) -> Answering:
        sequences = until_unique(self._chat.tokens(request.words))
        if not sequences or not all(sequences):
            raise LanguageModelError(
                f"expected words, found none or an empty one in {request.words!r:.200}"
            )
        self._check_length(prompt, max(map(len, sequences)))

        trie = TokenTrie(sequences)
        questions: list[TokenRequest] = []
        counts = []
        for node in trie.inner():
            path = [trie.tokens[step] for step in trie.path(node)]
            children = sorted(trie.children[node])
            node_questions = self._candidate_questions((*prompt, *path), children, adapter)
            questions += node_questions
            counts.append(len(node_questions))
        replies = yield questions

        logprobs = [0.0] * len(trie)
        start = 0
        for node, count in zip(trie.inner(), counts, strict=True):
            logprob_of = _candidate_logprobs(replies[start : start + count])
            start += count
            for token, child in trie.children[node].items():
                logprobs[child] = logprob_of[token]
        _checked_logprobs(logprobs, len(trie))
        return WordProbabilities(word_probabilities(trie, logprobs), len(prompt))

    def _candidate_questions(
        self, prompt: tuple[int, ...], candidates: Sequence[int], adapter: str | None
    ) -> list[TokenRequest]:
        """Return the questions for the log-probabilities of tokens right after a prompt."""
        most = self.transport.most_candidates or len(candidates)
        questions = []
        for start in range(0, len(candidates), most):
            part = tuple(candidates[start : start + most])
            questions.append(TokenRequest(prompt, candidates=part, adapter=adapter))
        return questions


class _Answering:
    """A request that is being answered: its steps, and the replies to its questions so far."""

    __slots__ = ("asked", "replies", "steps")

    def __init__(self, steps: Answering) -> None:
        self.steps = steps
        self.asked = 0
        self.replies: dict[int, TokenReply] = {}


def _usual_dtype() -> str:
    """Return what an engine in this process computes with if nobody says so, as `HFLanguageModel` does."""
    import torch

    return "bfloat16" if torch.cuda.is_available() else "float32"


def _candidate_logprobs(replies: Sequence[TokenReply]) -> dict[int, float]:
    """Return the log-probabilities of the candidates of some requests, by token."""
    logprobs: dict[int, float] = {}
    for reply in replies:
        logprobs |= reply.candidate_logprobs
    return logprobs


def _draw(scores: Sequence[float], sampling: Sampling, random: Random) -> int:
    """Return which of some log-probabilities is chosen, as the engine of `HFLanguageModel` does.

    Probabilities are those among these alone; of equals the first.
    """
    if sampling.temperature == 0:
        return max(range(len(scores)), key=lambda index: (scores[index], -index))

    highest = max(scores)
    weights = [math.exp((score - highest) / sampling.temperature) for score in scores]
    total = math.fsum(weights)
    weights = [weight / total for weight in weights]

    order = list(range(len(weights)))
    if sampling.top_p < 1:
        order.sort(key=lambda index: -weights[index])
        before = 0.0
        for index in order:
            weight = weights[index]
            if before >= sampling.top_p:
                weights[index] = 0.0
            before += weight

    total = math.fsum(weights)
    draw = min(random.random() * total, math.nextafter(total, 0.0))
    cumulated = 0.0
    for index in order:
        cumulated += weights[index]
        if draw < cumulated:
            return index
    return order[-1]


def _checked_logprobs(logprobs: Sequence[float], expected: int) -> tuple[float, ...]:
    """Return log-probabilities without rounding above 0, or raise unless they are what was asked for."""
    if len(logprobs) != expected or not all(value < _ROUNDED for value in logprobs):
        raise LanguageModelError(
            f"expected {expected} log-probabilities of vLLM, found {list(logprobs)!r:.200}; its weights "
            "may be damaged, or need another dtype"
        )
    return tuple(min(value, 0.0) for value in logprobs)


def _failure(error: Exception) -> LanguageModelError:
    if isinstance(error, LanguageModelError):
        return error
    message = " ".join(str(error).split())[:300]
    return LanguageModelError(
        f"expected a reply of vLLM, found {type(error).__name__}: {message}; see its log"
    )
