"""Language models of the Hugging Face transformers library, run in this process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..errors import LanguageModelError, OptionError
from . import hf_answers
from .adapters import Adapters
from .base import (
    CAPABILITIES,
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
from .chat import ChatTokenizer
from .hf_batch import Engine
from .hf_load import (
    check_usable,
    context_of,
    device_of,
    ends_of,
    load_model,
    load_tokenizer,
    place_of,
)

__all__ = ["HFLanguageModel"]

AnyRequest = TypeVar("AnyRequest", Generate, Score, Words, Encode)
Work: TypeAlias = Callable[
    [Engine, ChatTokenizer, Sequence[AnyRequest], Sequence[list[int]]], list[Any]
]


class HFLanguageModel:
    """A causal language model in this process, with LoRA adapters; it obeys `LanguageModel`.

    What an answer depends on: the request, the weights, and with sampling the request's own seed;
    neither its neighbours in a call nor their order. In double precision (tiny models) this is so to
    the last digit of a text; in lower precision a matrix product of another shape may round
    differently, and where two tokens are equally probable to within that, either may be chosen.

    Completions, choices and words are tokenised by themselves, not together with the prompt, so that
    their tokens do not depend on it. A model that was trained on whole texts reads " shelf 1" after
    a prefix that ends without a space best with that space.

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
        batch_tokens: The most tokens of a batch, padding and answers included.
        batch_rows: The most sequences of a batch.
        max_length: The most tokens of prompt and answer together, if less than the model's own.
        name: How results shall call this model; else the last part of `model`.
        revision: Which version of a model on the hub: a branch, tag or commit.

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

    def __init__(
        self,
        model: str | Path,
        *,
        adapters: Mapping[str, str | Path] | None = None,
        adapter: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        batch_tokens: int = 16_384,
        batch_rows: int = 64,
        max_length: int | None = None,
        name: str | None = None,
        revision: str | None = None,
    ) -> None:
        where = device_of(device)
        place = place_of(model)
        tokenizer = load_tokenizer(place, revision)
        ChatTokenizer(tokenizer)  # before the weights, which may take minutes
        loaded = load_model(place, revision, where, dtype)
        self._source = place.name if isinstance(place, Path) else place
        self._revision = None if isinstance(place, Path) else revision
        self._set_up(loaded, tokenizer, batch_tokens, batch_rows, max_length, name)
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
        batch_tokens: int = 16_384,
        batch_rows: int = 64,
        max_length: int | None = None,
        name: str = "model",
    ) -> HFLanguageModel:
        """Return a language model around one that is in memory, such as one in training.

        Weights are shared: after a step of the optimizer the answers are the new model's.

        Args:
            model: A causal language model of the transformers library or a `PeftModel` around one.
            tokenizer: Its tokenizer, with a chat template.
            adapter: The default adapter's name.
            batch_tokens: The most tokens of a batch.
            batch_rows: The most sequences of a batch.
            max_length: The most tokens of prompt and answer together.
            name: How results shall call it.

        Raises:
            LanguageModelError: The model is of a kind that cannot be used, or has no such adapter.
        """
        made = cls.__new__(cls)
        made._source, made._revision = name, None
        made._set_up(model, tokenizer, batch_tokens, batch_rows, max_length, name)
        made._adapters.check(adapter)
        made.adapter = adapter
        return made

    def _set_up(
        self,
        model: Any,
        tokenizer: Any,
        batch_tokens: int,
        batch_rows: int,
        max_length: int | None,
        name: str | None,
    ) -> None:
        for what, value in (
            ("batch_tokens", batch_tokens),
            ("batch_rows", batch_rows),
            ("max_length", 1 if max_length is None else max_length),
        ):
            if type(value) is not int or value < 1:
                raise OptionError(f"{what} must be a whole number of at least 1, not {value!r}")
        self._adapters = Adapters(model)
        base = self._adapters.base
        known = [limit for limit in (context_of(base.config), max_length) if limit]
        self.context = min(known, default=None)
        self.tokenizer = tokenizer
        self.device = base.device
        self.name = name or self._source.rpartition("/")[2]
        self.usage = Usage()
        check_usable(tokenizer, base)
        self._chat = ChatTokenizer(tokenizer, ends_of(base))
        self._engine = Engine(base, base.device, batch_rows, batch_tokens, self.context)
        self._lock = threading.RLock()

    # -- the model and its adapters --------------------------------------------------------------

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

    # -- answers ---------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Generate text.

        `max_new_tokens`, `stop` and what a model might rather say do not matter where there are
        `choices`: the text is exactly one of them. Of choices with the same tokens it is the first.

        Returns:
            A completion, or what is wrong with the request, for each request, in order.
        """
        return self._answer(requests, hf_answers.generate)

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Score given texts, all those of a request in one forward pass.

        An empty completion has the end token's log-probability only, or with `ended` False none.

        Returns:
            Scores, or what is wrong with the request, for each request, in order.
        """
        return self._answer(requests, hf_answers.score)

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return the probabilities of words as the next one.

        A word's probability is the product of those of its tokens, up to and with the first that no
        other word has there. A word that is the beginning of others counts only as far as none of
        these follows. So the events of different words exclude each other. Words with equal tokens
        have equal probabilities.

        Returns:
            Probabilities, or what is wrong with the request, for each request, in order.
        """
        return self._answer(requests, hf_answers.words)

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return the last layer's hidden state, after its norm, at the last token of each prompt.

        Returns:
            A vector, or what is wrong with the request, for each request, in order.
        """
        return self._answer(requests, hf_answers.encode)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without what a chat template puts around it."""
        return self._chat.count(text)

    def token_texts(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each token of a reply, control tokens as they are written."""
        return self._chat.texts(token_ids)

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
        }

    # -- the work --------------------------------------------------------------------------------

    def _answer(self, requests: Sequence[AnyRequest], work: Work[AnyRequest]) -> list[Any]:
        """Answer requests: each different one once, those of an adapter together."""
        with self._lock:
            replies: list[Any] = [None] * len(requests)
            first: dict[Any, int] = {}
            leader = list(range(len(requests)))
            groups: dict[str | None, list[int]] = defaultdict(list)
            prompts = self._chat.prompts(requests)
            for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
                adapter = self.adapter if request.adapter is None else request.adapter
                replies[i] = prompt if isinstance(prompt, LanguageModelError) else None
                replies[i] = replies[i] or self._misfit(request, adapter)
                if replies[i] is None:
                    leader[i] = first.setdefault(_key(request, adapter), i)
                    if leader[i] == i:
                        groups[adapter].append(i)
            for adapter, places in groups.items():
                asked = [requests[i] for i in places]
                given = [prompt for i in places if isinstance(prompt := prompts[i], list)]
                with self._adapters.using(adapter), self._ready():
                    found = work(self._engine, self._chat, asked, given)
                for i, reply in zip(places, found, strict=True):
                    replies[i] = reply
            replies = [replies[i] for i in leader]
            self._record(replies)
            return replies

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Make the model ready to answer; afterwards it is in training again if it was."""
        import torch

        training = [module for module in self._adapters.base.modules() if module.training]
        for module in training:
            module.training = False
        try:
            with torch.inference_mode():
                yield
        finally:
            for module in training:
                module.training = True

    def _misfit(self, request: Any, adapter: str | None) -> LanguageModelError | None:
        """Return what is wrong with a request besides its conversation."""
        try:
            self._adapters.check(adapter)
        except LanguageModelError as error:
            return error
        for what in ("choices", "completions", "words"):
            texts = getattr(request, what, None)
            if texts is None:
                continue
            if len(texts) == 0 or not all(isinstance(text, str) for text in texts):
                return LanguageModelError(f"expected {what} that are texts, found {texts!r:.80}")
            if what == "words" and "" in texts:
                return LanguageModelError("expected words, found an empty one")
        return None

    def _record(self, replies: Sequence[Any]) -> None:
        for reply in replies:
            if isinstance(reply, LanguageModelError):
                continue
            self.usage.requests += 1
            self.usage.prompt_tokens += reply.prompt_tokens
            if isinstance(reply, Completion):
                self.usage.completion_tokens += reply.completion_tokens
            elif isinstance(reply, Scores):
                self.usage.prompt_tokens += sum(map(len, reply.logprobs))


def _key(request: Any, adapter: str | None) -> tuple[Any, ...]:
    """Return what the answer to a request depends on."""
    sampling = getattr(request, "sampling", None)
    if sampling is not None and sampling.temperature == 0:
        sampling = replace(sampling, top_p=1.0, seed=0)
    texts = [getattr(request, what, None) for what in ("choices", "completions", "words")]
    return (
        tuple(request.messages),
        request.prefix,
        adapter,
        sampling,
        getattr(request, "ended", None),
        getattr(request, "reply_ids", ()),
        *(None if some is None else tuple(some) for some in texts),
    )
