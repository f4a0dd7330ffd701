"""Language models of the Hugging Face transformers library, run in this process."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import LanguageModelError, check_number
from .base import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    LMReply,
    LMRequest,
    Score,
    Scores,
    Usage,
    WordProbabilities,
)
from .chat import ChatLanguageModel, ChatTokenizer, checked_template_kwargs
from .engine.cache import PrefixTree
from .engine.lora import lean_adapter
from .engine.norms import fused_norms
from .engine.passes import Branches, Engine, Row, TokenTrie, computed, split, until_unique
from .engine.weights import WeightWatch
from .load import (
    Adapters,
    check_usable,
    context_of,
    device_of,
    ends_of,
    limits_of,
    load_model,
    load_tokenizer,
    source_of,
)
from .thoughts import first_stop


class HFLanguageModel(ChatLanguageModel):
    """A causal language model in this process, with LoRA adapters; it obeys `LanguageModel`.

    What an answer depends on: the request, the weights, and with sampling the request's own seed;
    neither its neighbours in a call nor their order. In double precision (tiny models) this is so to
    the last digit of a text; in lower precision a matrix product of another shape may round
    differently, and where two tokens are equally probable to within that, either may be chosen.

    On a GPU a model in half or single precision chooses tokens in single precision, with one wait for
    the GPU in a pass, so a text may differ from a CPU's where two tokens are equal to within rounding.
    In single precision the adapter of a call is added to the weights for the time of the call, which
    takes memory for a second copy of these weights, and is not done where that is more than half of
    what is free; the weights are put back, not computed back. In half precision it is not added, since
    rounding would take most of what a young adapter has learned: a layer adds its product instead.

    What mostly followed in its earlier texts is read ahead, several tokens in one pass (speculative
    decoding with n-grams), and kept as far as the same tokens are then chosen: texts are as without.

    Completions, choices and words are tokenized by themselves, not together with the prompt, so that
    their tokens do not depend on it. A model that was trained on whole texts reads " shelf 1" after
    a prefix that ends without a space best with that space.

    * `Generate`: with `choices` the text is exactly one of them, whatever `max_new_tokens` and `stop`
      say; of choices with the same tokens it is the first.
    * `Score`: one forward pass for all completions of a request. An empty one has the log-probability
      of the end token only, or with `ended` False none.
    * `NextWord`: a word's probability is the product of those of its tokens, up to and with the first
      that no other word has there. A word that is the beginning of others counts only as far as none
      of these follows. So the events of different words exclude each other.
    * `Encode`: the last layer's hidden state, after its norm, at the last token of the prompt.

    Attributes:
        name: How results call this model.
        capabilities: All there are but ``tokens``: it scores given texts, which is more exact.
        usage: What was done so far. Tokens of scored completions count as read.
        tokenizer: The tokenizer of the transformers library.
        device: The torch device.
        context: The most tokens of prompt and answer together, or None.
        adapter: Which adapter answers requests that name none; None for the bare model.

    Args:
        model: A folder that `save_pretrained` wrote, or the name of a model on the hub. A folder is
            never looked up on the network. Weights are read from safe tensors only, and code from
            the folder is not run.
        adapters: LoRA adapters by name: folders that peft wrote.
        adapter: The default adapter's name.
        device: ``auto`` (a GPU where there is one), ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: ``auto``, ``float32``, ``float64``, ``bfloat16`` or ``float16``. With ``auto`` a model
            whose config says float64 is used so; others are bfloat16 on a GPU and float32 on a CPU.
        batch_tokens: The most tokens of a batch, padding and answers included; None for 16,384 on a
            CPU, on a GPU for those whose keys and values take an eighth of its memory.
        batch_rows: The most sequences of a batch; None for 64 on a CPU, 256 on a GPU.
        max_length: The most tokens of prompt and answer together, if less than the model's own.
        cache_mb: Megabytes of keys and values that are kept from one call to the next, for prompts that
            begin like earlier ones; 0 keeps none. Answers do not depend on it.
        name: How results shall call this model; else the last part of `model`.
        revision: Which version of a model on the hub: a branch, tag or commit.
        chat_template_kwargs: Variables for the model's chat template, for all requests, such as
            ``{"enable_thinking": True}`` (Qwen3) or ``{"date_string": "1 Mar 2026"}`` (Llama 3.2).
            Without them a request says whether the model thinks first, which it does not by default,
            and templates that write today's date are told the 26th of July 2024.

    Raises:
        LanguageModelError: The model or an adapter cannot be loaded.
        OptionError: An argument has a value that it cannot have.
        MissingExtra: torch, transformers or peft is not installed.

    Example:
        >>> from comap.lm.base import Generate, Message
        >>> lm = HFLanguageModel("Qwen/Qwen3-0.6B")  # doctest: +SKIP
        >>> ask = Generate((Message("user", "Is the fridge open?"),), choices=("yes", "no"))
        >>> lm.generate([ask])[0].text  # doctest: +SKIP
        'no'
    """

    capabilities: frozenset[str] = CAPABILITIES - {"tokens"}

    def __init__(  # noqa: PLR0913 options of a model, as --model-option passes them
        self,
        model: str | Path,
        *,
        adapters: Mapping[str, str | Path] | None = None,
        adapter: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        batch_tokens: int | None = None,
        batch_rows: int | None = None,
        max_length: int | None = None,
        cache_mb: int = 1000,
        name: str | None = None,
        revision: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        torch_device = device_of(device)
        source = source_of(model)
        tokenizer = load_tokenizer(source, revision)
        template = checked_template_kwargs(chat_template_kwargs)
        ChatTokenizer(tokenizer, (), template)  # before the weights, which may take minutes
        loaded = load_model(source, revision, torch_device, dtype)

        # The folder's name alone: records say no path of a machine.
        self._source = source.name if isinstance(source, Path) else source
        self._revision = None if isinstance(source, Path) else revision
        self._set_up(loaded, tokenizer, batch_tokens, batch_rows, max_length, cache_mb, template)
        self.name = name or self._source.rpartition("/")[2]

        for key, directory in (adapters or {}).items():
            self.add_adapter(key, directory)
        self._adapters.check(adapter)
        self.adapter: str | None = adapter

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        adapter: str | None = None,
        batch_tokens: int | None = None,
        batch_rows: int | None = None,
        max_length: int | None = None,
        cache_mb: int = 1000,
        name: str = "model",
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> HFLanguageModel:
        """Return a language model around one that is in memory, such as one in training.

        Weights are shared: after a step of the optimizer the answers are the new model's.

        Args:
            model: A causal language model of the transformers library or a `PeftModel` around one.
            tokenizer: Its tokenizer, with a chat template.
            adapter: The default adapter's name.
            batch_tokens: As of the class.
            batch_rows: As of the class.
            max_length: As of the class.
            cache_mb: As of the class.
            name: How results call it.
            chat_template_kwargs: As of the class.

        Raises:
            LanguageModelError: The model is of a kind that cannot be used, or has no such adapter.
        """
        language_model = cls.__new__(cls)
        language_model._source = name
        language_model._revision = None
        language_model.name = name

        template = checked_template_kwargs(chat_template_kwargs)
        language_model._set_up(
            model, tokenizer, batch_tokens, batch_rows, max_length, cache_mb, template
        )
        language_model._adapters.check(adapter)
        language_model.adapter = adapter
        return language_model

    def _set_up(
        self,
        model: Any,
        tokenizer: Any,
        batch_tokens: int | None,
        batch_rows: int | None,
        max_length: int | None,
        cache_mb: int,
        template: Mapping[str, Any],
    ) -> None:
        sizes = {"batch_tokens": batch_tokens, "batch_rows": batch_rows, "max_length": max_length}
        for option, value in sizes.items():
            if value is not None:
                check_number(option, value)
        check_number("cache_mb", cache_mb, 0)

        self._adapters = Adapters(model)
        base = self._adapters.base
        limits = [limit for limit in (context_of(base.config), max_length) if limit]
        self.context = min(limits, default=None)
        self.tokenizer = tokenizer
        self.device = base.device
        self.usage = Usage()
        check_usable(tokenizer, base)
        self._chat = ChatTokenizer(tokenizer, ends_of(base), template)
        rows, tokens = limits_of(base)
        self._engine = Engine(base, base.device, batch_rows or rows, batch_tokens or tokens)
        self._cache_mb = cache_mb
        self._watch = WeightWatch()

        # One tree for each adapter: its keys and values are of other weights.
        self._trees: dict[str | None, PrefixTree] = {}
        self._lock = threading.RLock()

    @property
    def model(self) -> Any:
        """The model of the transformers library; a `PeftModel` once there is an adapter."""
        return self._adapters.model

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters there are, sorted."""
        return self._adapters.names

    def add_adapter(self, name: str, adapter: Any) -> None:
        """Add an adapter.

        Args:
            name: What requests shall call it.
            adapter: A folder that peft wrote; it is loaded, frozen. Or a `peft.LoraConfig`: a new
                adapter is built in that does nothing until it is trained.

        Raises:
            LanguageModelError: It cannot be loaded, does not fit, or changes the model beneath.
            OptionError: The name is taken or cannot be used.
        """
        with self._lock:
            if isinstance(adapter, str | Path):
                self._adapters.load(name, adapter)
            else:
                self._adapters.create(name, adapter)

    def config(self) -> dict[str, Any]:
        """Return JSON data that says how this model was made; no path of a machine."""
        import torch
        import transformers

        base = self._adapters.base
        weights = (item for item in base.named_parameters() if ".lora_" not in item[0])
        return {
            "name": self.name,
            "kind": "hf",
            "model": self._source,
            "revision": self._revision,
            "dtype": str(base.dtype).rpartition(".")[2],
            "device": self.device.type,
            "parameters": sum(weight.numel() for _, weight in weights),
            "context": self.context,
            "adapters": list(self.adapters),
            "adapter": self.adapter,
            "transformers": transformers.__version__,
            "torch": str(torch.__version__),
            **self._chat.describe(),
        }

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        """Answer requests of one kind: each different one once, those of an adapter together."""
        with self._lock:
            # A prompt that cannot be made has its error in its place, and so may each later step.
            replies: list[Any] = list(self._chat.prompts(requests))
            first_of: dict[LMRequest, int] = {}
            answered_by = list(range(len(requests)))  # the first request that asks the same
            prepared: dict[int, Any] = {}  # as `computed` takes them
            indices_of: dict[str | None, list[int]] = defaultdict(list)
            for i, (request, prompt) in enumerate(zip(requests, replies, strict=True)):
                if isinstance(prompt, LanguageModelError):
                    continue
                adapter = self.adapter if request.adapter is None else request.adapter
                answered_by[i] = first_of.setdefault(_question(request, adapter), i)
                if answered_by[i] < i:
                    continue
                try:
                    self._adapters.check(adapter)
                    prepared[i] = self._prepared(request, prompt)
                    indices_of[adapter].append(i)
                except LanguageModelError as error:
                    replies[i] = error

            engine = self._engine
            for adapter, indices in indices_of.items():
                engine.tree = self._tree_of(adapter)
                of_adapter = [prepared[i] for i in indices]
                with self._ready(adapter):
                    answers = computed(engine, type(requests[0]), of_adapter)
                for i, answer in zip(indices, answers, strict=True):
                    replies[i] = self._reply(requests[i], prepared[i], answer)

            replies = [replies[i] for i in answered_by]
            self._record(replies)
            return replies

    def _tree_of(self, adapter: str | None) -> PrefixTree:
        """Return what is known of earlier prompts: nothing, once the weights have changed."""
        if self._watch.changed(list(self._adapters.base.parameters())):
            self._trees = {}

        if adapter not in self._trees:
            self._trees[adapter] = PrefixTree(0)
            for tree in self._trees.values():
                tree.limit = self._cache_mb * 1_000_000 // len(self._trees)
        return self._trees[adapter]

    @contextmanager
    def _ready(self, adapter: str | None) -> Iterator[None]:
        """Make the model ready to answer with an adapter; afterwards it is in training again if it was."""
        base = self._adapters.base
        training = [module for module in base.modules() if module.training]
        with ExitStack() as changes:
            for module in training:
                module.training = False
                changes.callback(setattr, module, "training", True)

            changes.enter_context(self._adapters.using(adapter))
            if self._engine.takes_few_operations:
                changes.enter_context(fused_norms(base))
            if self._engine.takes_few_operations and adapter is not None:
                changes.enter_context(lean_adapter(base, adapter))
            for context in _without_gradients(base):
                changes.enter_context(context)
            yield

    def _prepared(self, request: LMRequest, prompt: list[int]) -> Any:
        """Return what `computed` takes for a request; raise where it cannot be answered."""
        if isinstance(request, Generate):
            return self._row(request, prompt)
        if isinstance(request, Encode):
            self._check_length(prompt, 0)
            return prompt

        # Of words only as much is read as tells them apart.
        sequences: Sequence[Sequence[int]]
        if isinstance(request, Score):
            end = [self._chat.end] if request.ended else []
            sequences = [tokens + end for tokens in self._chat.tokens(request.completions)]
            passes = split(self._engine, len(prompt), sequences)
        else:
            sequences = until_unique(self._chat.tokens(request.words))
            passes = [list(range(len(sequences)))]
            if not all(sequences):
                raise LanguageModelError(f"expected words, found an empty one in {request.words}")

        if not sequences:
            raise LanguageModelError("expected completions or words, found none")
        self._check_length(prompt, max(map(len, sequences)))
        return [
            Branches(prompt, TokenTrie([sequences[i] for i in indices]), indices)
            for indices in passes
        ]

    def _row(self, request: Generate, prompt: list[int]) -> Row:
        chat = self._chat
        sampling = request.sampling
        if request.choices is not None:
            if not request.choices:
                raise LanguageModelError("expected choices, found none")
            trie = TokenTrie([[*tokens, chat.end] for tokens in chat.tokens(request.choices)])
            self._check_length(prompt, max(trie.depths))
            return Row(prompt, sampling, max(trie.depths), chat.ends, trie=trie)

        self._check_length(prompt, 1, most=sampling.max_new_tokens)
        room = math.inf if self.context is None else self.context - len(prompt)
        stop_test = _stop_test(chat, request) if sampling.stop else None
        limit = int(min(sampling.max_new_tokens, room))
        return Row(prompt, sampling, limit, chat.ends, stop_test=stop_test)

    def _reply(
        self, request: LMRequest, prepared: Any, answer: Any
    ) -> LMReply | LanguageModelError:
        """Return the reply that the engine's answer makes; an error stays one.

        Args:
            request: What was asked.
            prepared: What `_prepared` made of it.
            answer: What `computed` returned for that.
        """
        if isinstance(answer, LanguageModelError):
            return answer

        if isinstance(request, Generate):
            reply: LMReply = self._completion(request, prepared)
            numbers: Sequence[float] = prepared.logprobs
        elif isinstance(request, Encode):
            return Encoding(tuple(answer), len(prepared))
        else:
            prompt_tokens = len(prepared[0].prompt)
            numbers = [logprob for logprobs in answer for logprob in logprobs]
            if isinstance(request, Score):
                logprobs_of_each = _in_order(len(request.completions), prepared, answer)
                reply = Scores(logprobs_of_each, prompt_tokens)
            else:
                probabilities = word_probabilities(prepared[0].trie, answer[0])
                reply = WordProbabilities(probabilities, prompt_tokens)

        if any(map(math.isnan, numbers)):
            return LanguageModelError(
                "the model's output is not a number; its weights are damaged, or it needs another "
                "dtype (bfloat16 or float32 where float16 overflows)"
            )
        return reply

    def _completion(self, request: Generate, row: Row) -> Completion:
        if row.trie is not None and request.choices is not None:
            text = request.choices[row.trie.ends.index(row.node)]
        else:
            has_end = row.tokens[-1] in row.ends
            text_tokens = row.tokens[:-1] if has_end else row.tokens
            text = self._chat.reply_text(request, text_tokens)
            text = text[: first_stop(text, request.sampling.stop)]
        return Completion(
            text,
            tuple(row.tokens),
            tuple(row.logprobs),
            row.finish,
            len(row.prompt),
            len(row.tokens),
        )

    def _record(self, replies: Sequence[Any]) -> None:
        for reply in replies:
            if not isinstance(reply, LanguageModelError):
                self._count(reply)


def _question(request: LMRequest, adapter: str | None) -> LMRequest:
    if isinstance(request, Generate) and request.sampling.temperature == 0:
        request = replace(request, sampling=replace(request.sampling, top_p=1.0, seed=0))
    return replace(request, adapter=adapter)


def _without_gradients(model: Any) -> list[Any]:
    """Return the contexts in which a model answers.

    A model that accelerate has prepared for half precision enters autocast in each forward, which casts all
    weights. Within an outer context autocast keeps what it has cast, but never in inference mode.
    """
    import torch

    if not hasattr(model, "_original_forward"):
        return [torch.inference_mode()]
    kind = model.device.type
    # As it is already: the context only has to be there.
    outer = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
    return [torch.no_grad(), outer]


def _stop_test(chat: ChatTokenizer, request: Generate) -> Callable[[list[int]], bool]:
    """Return the function that tells whether a stop text has come; one inside a thought does not count."""
    stops = request.sampling.stop
    # Every token but a few adds a byte at least, so a stop text that has just come is among these.
    window = max(len(stop.encode("utf-8", "replace")) for stop in stops) + 8

    def has_stop(tokens: list[int]) -> bool:
        if len(tokens) > window:
            tail = chat.text(tokens[-window:])
            if not any(stop in tail for stop in stops):
                return False
        return first_stop(chat.reply_text(request, tokens), stops) is not None

    return has_stop


def _in_order(
    count: int, passes: Sequence[Branches], answers: Sequence[Sequence[float]]
) -> tuple[tuple[float, ...], ...]:
    """Return the log-probabilities of each sequence's tokens, from those of the tries' nodes."""
    logprobs: list[tuple[float, ...]] = [()] * count
    for branches, node_logprobs in zip(passes, answers, strict=True):
        for i, end in zip(branches.indices, branches.trie.ends, strict=True):
            logprobs[i] = tuple(node_logprobs[node] for node in branches.trie.path(end))
    return tuple(logprobs)


def word_probabilities(trie: TokenTrie, logprobs: Sequence[float]) -> tuple[float, ...]:
    """Return the probability of each word, as far as no longer one follows.

    Its tokens may be the beginning of another word's: its own probability is without that one's.
    """
    probabilities = []
    for end in trie.ends:
        begins = math.exp(math.fsum(logprobs[node] for node in trie.path(end)))
        goes_on = math.fsum(math.exp(logprobs[node]) for node in trie.children[end].values())
        probabilities.append(begins * max(1.0 - goes_on, 0.0))
    return tuple(probabilities)
