"""What a language model is here: four kinds of requests, answered in batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ..errors import LanguageModelError, OptionError, check_number

CAPABILITIES = frozenset({"generate", "choices", "prefix", "tokens", "score", "words", "encode"})
"""What a backend may be able to do: free text, text restricted to choices, continuing a reply that
was begun, telling text and log-probability of each token that it wrote (`Completion.tokens`),
log-probabilities of given text, next-word probabilities, hidden states."""

ROLES = ("system", "user", "assistant")


class Message(NamedTuple):
    """One message of a conversation; `role` is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens.

    Attributes:
        max_new_tokens: The most tokens to generate, the end token included.
        temperature: 0 takes the most probable token each time; otherwise logits are divided by it.
        top_p: Sample from the most probable tokens whose probabilities reach this sum.
        stop: The text ends before the first of these that occurs in it.
        seed: With the same seed the same request gets the same answer, whatever is in its batch.

    Raises:
        OptionError: A value is out of its range.

    Example:
        >>> Sampling(max_new_tokens=8).temperature
        0.0
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("max_new_tokens", self.max_new_tokens)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise OptionError(f"temperature must be at least 0, not {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")
        if not isinstance(self.stop, tuple) or not all(
            isinstance(text, str) and text for text in self.stop
        ):
            raise OptionError(f"stop must be a tuple of texts, none empty, not {self.stop!r}")


@dataclass(frozen=True, slots=True)
class Generate:
    """A request for text; the reply is a `Completion`.

    Attributes:
        messages: The conversation; the model writes the next assistant message.
        sampling: How.
        prefix: The beginning of the model's message, which is given.
        choices: If not None, the model's message goes on with exactly one of these and ends; it is
            decoded token by token over the trie of their tokens.
        adapter: Which adapter answers; None for the base model, or what the backend's user chose.
        purpose: What it is for (``"draft"``, ``"reflect"``): for records; the answer does not
            depend on it.
        reply_ids: Of a conversation that goes on token for token: the tokens of each assistant's
            message in it, in order, as they were sampled (empty: those of its text). A backend that
            makes prompts of tokens puts them there as they are, and the user's message after each by
            itself (`comap.lm.chat`); others read the texts.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    prefix: str = ""
    choices: tuple[str, ...] | None = None
    adapter: str | None = None
    purpose: str = field(default="", compare=False)
    reply_ids: tuple[tuple[int, ...], ...] = ()
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """A request for the log-probabilities of given texts; the reply is `Scores`.

    Attributes:
        messages: The conversation.
        completions: How the model's message might go on; each is scored by itself.
        prefix: The beginning of the model's message, which is given and not scored.
        ended: Score the end of the message too, so that "shelf 1" and "shelf 12" compare fairly.
        adapter, purpose, thinking: As of `Generate`.
    """

    messages: tuple[Message, ...]
    completions: tuple[str, ...]
    prefix: str = ""
    ended: bool = True
    adapter: str | None = None
    purpose: str = field(default="", compare=False)
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class NextWord:
    """A request for the probabilities of chosen words as the next one; `WordProbabilities` reply.

    Each word stands for its first token that distinguishes it from the other words (its first token, where
    the words begin differently, as they should).

    Attributes:
        messages: The conversation.
        words: The words, with the space before them where there is one (``" KEEP"``).
        prefix: The beginning of the model's message.
        adapter, purpose, thinking: As of `Generate`.
    """

    messages: tuple[Message, ...]
    words: tuple[str, ...]
    prefix: str = ""
    adapter: str | None = None
    purpose: str = field(default="", compare=False)
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Encode:
    """A request for the last hidden state at the end of a prompt; the reply is an `Encoding`."""

    messages: tuple[Message, ...]
    prefix: str = ""
    adapter: str | None = None
    purpose: str = field(default="", compare=False)
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """Generated text.

    Attributes:
        text: What follows the request's prefix, without stop string and end token. A thought before
            the reply is in it, between ``<think>`` and ``</think>``, unless a server keeps it apart.
        token_ids: The generated tokens as they were sampled, end token included; None where the
            backend does not return them.
        logprobs: The natural log-probability of each of them under the model itself: temperature 1,
            no top-p, no restriction to choices. None where the backend does not return them.
        finish: ``"stop"`` (the model ended its message, a stop string came, or a choice was
            complete) or ``"length"``.
        prompt_tokens: Number of tokens in the prompt.
        completion_tokens: Number of generated tokens.
        tokens: The text of each generated token, one for each log-probability; joined they are the
            generated text before anything was cut off, perhaps with special tokens that `text` has
            not. A token that ends inside a character is empty and a later one has the character.
            None where the backend does not return them: see ``"tokens"`` in `CAPABILITIES`.
    """

    text: str
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    finish: str = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of given texts.

    Attributes:
        logprobs: For each completion the natural log-probability of each of its tokens.
        prompt_tokens: Number of tokens in the prompt.

    Example:
        >>> Scores(((-1.0, -0.5), (-2.0,))).best
        0
    """

    logprobs: tuple[tuple[float, ...], ...]
    prompt_tokens: int = 0

    @property
    def totals(self) -> tuple[float, ...]:
        """The log-probability of each completion as a whole."""
        return tuple(math.fsum(tokens) for tokens in self.logprobs)

    @property
    def best(self) -> int:
        """The index of the most probable completion, the first of equals."""
        totals = self.totals
        return max(range(len(totals)), key=lambda index: (totals[index], -index))


@dataclass(frozen=True, slots=True)
class WordProbabilities:
    """The probability of each requested word as the next one; they need not sum to 1."""

    probabilities: tuple[float, ...]
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Encoding:
    """The last layer's hidden state at the last token of a prompt, as single-precision values."""

    vector: tuple[float, ...]
    prompt_tokens: int = 0


@dataclass(slots=True)
class Usage:
    """What a backend has done so far.

    Attributes:
        requests: Requests answered.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens generated.
        retries: Requests sent again after a failure.
        cost: Money, in the currency of the prices that the backend was given.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    cost: float = 0.0


LMRequest: TypeAlias = "Generate | Score | NextWord | Encode"
"""Any of the four requests."""

LMReply: TypeAlias = "Completion | Scores | WordProbabilities | Encoding"
"""The reply to one of them."""


KINDS: dict[str, tuple[type, type]] = {
    "generate": (Generate, Completion),
    "score": (Score, Scores),
    "words": (NextWord, WordProbabilities),
    "encode": (Encode, Encoding),
}
"""The methods of a language model, with the types of their requests and replies."""


@runtime_checkable
class LanguageModel(Protocol):
    """A backend that answers requests in batches.

    Every method returns one reply for each request, in order. A request that failed by itself (a
    server gave up on it, it does not fit the context) has its `LanguageModelError` in its place, so
    that one failure does not cost the batch; a method raises only where nothing can be answered.

    Attributes:
        name: How results call this model; no path of a machine, no key.
        capabilities: Which of `CAPABILITIES` it has; other requests get an error.
        usage: What it has done so far.

    A backend may also have an attribute ``context`` (the most tokens of prompt and answer together, or
    None) and a method ``thinks(asked)``, which returns whether its model thinks before it replies. Limits
    of prompts and replies follow from them.
    """

    name: str
    capabilities: frozenset[str]
    usage: Usage

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Generate text."""
        ...

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Score given texts."""
        ...

    def words(self, requests: Sequence[NextWord]) -> list[WordProbabilities | LanguageModelError]:
        """Return next-word probabilities."""
        ...

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return hidden states."""
        ...

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, or a careful estimate."""
        ...

    def config(self) -> dict[str, Any]:
        """Return JSON data that says how this model was made; no key, no path of a machine."""
        ...


@runtime_checkable
class StreamingLanguageModel(Protocol):
    """A backend that also takes requests one by one, and answers each as soon as it can.

    Episodes then go on one by one too, and no batch waits for its longest reply. One thread submits and
    steps; replies come in any order, and do not depend on what else is asked at the time.

    Example:
        >>> from comap.lm import HFLanguageModel, VLLMLanguageModel
        >>> [issubclass(kind, StreamingLanguageModel) for kind in (VLLMLanguageModel, HFLanguageModel)]
        [True, False]
    """

    def submit(self, request: LMRequest) -> int:
        """Hand a request over, and return the number under which `step` returns its reply."""
        ...

    def step(self) -> list[tuple[int, LMReply | LanguageModelError]]:
        """Return the replies that are there, once there is one; an empty list if nothing is asked."""
        ...

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop requests whose replies nobody wants any more; `step` does not return them."""
        ...


class BaseLanguageModel(ABC):
    """The four methods of a `LanguageModel`, made of one that answers requests of any kind."""

    name: str
    capabilities: frozenset[str]
    usage: Usage

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        return self._answer(_checked_requests(requests, Generate))

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        return self._answer(_checked_requests(requests, Score))

    def words(self, requests: Sequence[NextWord]) -> list[WordProbabilities | LanguageModelError]:
        return self._answer(_checked_requests(requests, NextWord))

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        return self._answer(_checked_requests(requests, Encode))

    @abstractmethod
    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        """Return one reply, or the error that stands for it, for each request, in order."""


LONGEST = 32_768
"""Most tokens of prompt and reply if nobody says so, however long a model's context is."""
UNKNOWN_CONTEXT = 8192
"""What stands for the context of a model that does not say."""


def usual_length(context: int | None) -> int:
    """Return the most tokens of prompt and reply together, if nobody says so."""
    return min(context or UNKNOWN_CONTEXT, LONGEST)


def context_tokens(model: LanguageModel | None) -> int | None:
    """Return the most tokens of prompt and answer together; None where the backend does not say."""
    # `context` is no part of the protocol: a user's backend may lack it, or use the name otherwise.
    context = getattr(model, "context", None)
    return context if isinstance(context, int) and context > 0 else None


def thinks(model: LanguageModel | None, asked: bool) -> bool:
    """Return whether a model thinks before it replies, where a request asks for it or does not."""
    method = getattr(model, "thinks", None)
    return bool(method(asked)) if callable(method) else asked


def _checked_requests(requests: Any, kind: type) -> Any:
    """Return requests of one kind, or say that something is none."""
    if isinstance(requests, Sequence) and all(isinstance(request, kind) for request in requests):
        return requests
    raise LanguageModelError(
        f"expected a list of {kind.__name__} requests, found {requests!r:.80}; write "
        f"[{kind.__name__}((Message('user', TEXT),), ...)]"
    )


@runtime_checkable
class TokenTexts(Protocol):
    """A backend that can say what its token ids are in words; for records, to be looked at."""

    def token_texts(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each token of one reply, as `Completion.tokens` has them."""
        ...


def checked_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return a conversation whose roles are known and whose texts can be encoded, or raise."""
    if not messages:
        raise LanguageModelError("expected at least one message, found none")

    # A text is a sequence too: each of its letters would be called a wrong message.
    conversation: Any = messages
    if isinstance(conversation, str):
        raise LanguageModelError(
            f"expected messages, found the text {messages!r:.80}; write (Message('user', TEXT),)"
        )

    try:
        return tuple(map(_checked_once, messages))
    except TypeError:  # what cannot be hashed is no text, either
        return tuple(map(_checked, messages))


def _checked(message: Message) -> Message:
    if not isinstance(message, tuple) or len(message) != 2:
        raise LanguageModelError(
            f"expected Message(role, content), found {message!r:.80}; write Message('user', TEXT)"
        )
    role, content = message
    if role not in ROLES:
        raise LanguageModelError(f"expected a role of {', '.join(ROLES)}, found {role!r:.40}")

    # The same object where nothing changes, as nearly always: conversations are not copied.
    text = valid_text(content)
    return message if text is content and isinstance(message, Message) else Message(role, text)


_checked_once = lru_cache(maxsize=4096)(_checked)  # a conversation is checked at each of its turns


def valid_text(value: Any) -> str:
    """Return a text that can be encoded: half a surrogate pair, which JSON can carry, is replaced."""
    if not isinstance(value, str):
        raise LanguageModelError(f"expected text, found {type(value).__name__}")
    if value.isascii():  # known without a look at its letters
        return value

    try:
        value.encode()
    except UnicodeEncodeError:
        # By way of UTF-16 two halves that belong together become their character again.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def answer(model: LanguageModel, requests: Sequence[LMRequest]) -> list[Any]:
    """Return the replies to requests of any kinds, each kind as one batch.

    Returns:
        One reply, or the `LanguageModelError` that stands for it, for each request, in order.

    Raises:
        LanguageModelError: The backend did not return one reply for each request.
    """
    replies: list[Any] = [None] * len(requests)
    for method_name, (request_type, _) in KINDS.items():
        indices = [i for i, request in enumerate(requests) if isinstance(request, request_type)]
        if not indices:
            continue

        # A user's backend may return another number of replies: each would answer a wrong request.
        method = getattr(model, method_name)
        batch_replies = method([requests[i] for i in indices])
        if not isinstance(batch_replies, list) or len(batch_replies) != len(indices):
            raise LanguageModelError(
                f"expected a list of {len(indices)} replies from {model.name}, "
                f"found {type(batch_replies).__name__}"
            )

        for index, reply in zip(indices, batch_replies, strict=True):
            replies[index] = reply
    return replies
