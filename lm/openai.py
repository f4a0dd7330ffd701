"""Language models behind servers that speak OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..errors import LanguageModelError, suggest
from .base import (
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
from .openai_accounting import Accounting, checked_prices, estimate_tokens, prompt_estimate
from .openai_answers import (
    Chat,
    cut_at_stop,
    token_probabilities,
    without_prefix,
    word_probabilities,
)
from .openai_asking import Asker, Question
from .openai_bodies import Dialect, checked_extra_body, generate_body, words_body
from .openai_connection import address_of, key_from
from .openai_failures import Failure
from .openai_options import Patience, check_one_of, check_texts, public_name

__all__ = ["OpenAILanguageModel"]

_TOP_WORDS = 20
_INSTEAD_OF_SCORES = (
    "if they are for an agent's confidence in its action, the server told no log-probabilities of "
    "the tokens that wrote it, or not their texts: set q_source='proxy'; or use a model that runs "
    "in this process, such as a Hugging Face one"
)


class OpenAILanguageModel:
    """Asks a server through OpenAI's chat completions: vLLM, ``transformers serve``, hosted ones.

    Requests of a batch are sent at the same time, up to `concurrency`. A try that times out, breaks
    off, is refused for now (408, 409, 429, 5xx) or brings something that is no chat completion is
    repeated, after waiting as long as ``Retry-After`` says or else twice as long each time. What
    fails for good has its error in its place. Redirects are not followed, answers of more than
    8 MiB are refused, and half surrogate pairs in an answer become U+FFFD.

    What servers do that one should know:

    * Control tokens: a server may read what is written like one in a message (``<|im_end|>``) as
      one, so that hostile text in an observation can end its message. Only the server could tell
      its control tokens; this class sends texts as they are.
    * Seeds: the server makes the same request with the same seed give the same answer, or not; many
      hosted ones promise nothing.
    * `Completion.logprobs` are what the server says, mostly without the end token; with vLLM those
      of the model itself, unless it runs with another ``--logprobs-mode``. They cover the whole
      answer, also what is cut off at a stop string; there are none where a repeated prefix was
      taken off. A server that refuses to tell them is not asked again. `Completion.tokens` come
      with them, where the server tells every token's text.
    * vLLM (written after its documentation of ``/v1/chat/completions``, and tested here against a
      stand-in only) applies the model's own ``generation_config.json``, such as a ``top_k``; start
      it with ``--generation-config vllm`` for plain sampling. `Completion.token_ids` come with
      ``extra_body={"return_token_ids": True}``. Choices need vLLM 0.12 or newer.
    * ``transformers serve`` (5.23, tested): the model must be called exactly as the server was
      started; it ignores ``logprobs``, so that there are none; it samples only where the model's
      ``generation_config.json`` has ``do_sample``, else temperature changes nothing; a seed counts
      for the whole process, so that answers repeat with ``concurrency=1`` only; ``stop`` works; it
      refuses ``prefix_mode="continue"`` and most extra fields with status 422; and special tokens
      may appear in its text.

    Args:
        model: The model's name on the server.
        base_url: Such as ``"http://127.0.0.1:8000/v1"``; None for OpenAI's own server.
        api_key_env: The environment variable that holds the key. It may be unset for a server on
            this machine. No other variable is sent; proxies that the environment names are used,
            though not for a server on this machine.
        concurrency: The most requests under way at once.
        timeout: The most seconds for one try, from its start to the last byte of the answer. A
            request may take this times the number of tries, and the waiting between them.
        max_retries: How often a request is sent again after a failure.
        prices: Money per million prompt tokens and per million completion tokens.
        prefix_mode: How a reply that was begun is continued. ``"continue"`` lets the server do it,
            as vLLM can. ``"ask"`` sends what there is and asks for the rest in a further message,
            which any model may misunderstand; a repetition is taken off.
        extra_body: Further fields of each request, such as
            ``{"chat_template_kwargs": {"enable_thinking": False}}``, which stops Qwen3 on vLLM from
            thinking first. Nothing of the kind is sent without it.
        choices_mode: ``"vllm"`` where the server restricts answers as vLLM does.
        adapters: What the server calls our adapters; vLLM serves each LoRA as a model.
        logprobs: Whether to ask for the log-probabilities of what is written. Say False for a server
            that does not tell them, so that agents which need them are refused beforehand.
        backoff: Seconds to wait after a first failure.
        max_wait: The most seconds to wait. A server that asks for more is given up.
        name: How results call this model; the model's name if None.

    Attributes:
        name: As given.
        capabilities: ``generate`` and ``prefix``; with ``prefix_mode="continue"`` also ``words``,
            with ``choices_mode="vllm"`` also ``choices``, and with ``logprobs`` also ``tokens``,
            which takes the server at its word: whether it tells them is known only once it answers.
            Never ``score`` or ``encode``: chat completions offer neither.
        usage: Sums so far, of the tokens the server told of, else of characters divided by four.

    Raises:
        OptionError: An option has a value that it cannot have.
        LanguageModelError: The key is missing.
        MissingExtra: On the first request, where the package ``openai`` is not installed.

    Example:
        >>> lm = OpenAILanguageModel("Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1")
        >>> lm.config()["host"], sorted(lm.capabilities)
        ('loopback', ['generate', 'prefix', 'tokens'])
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 16,
        timeout: float = 60,
        max_retries: int = 5,
        prices: tuple[float, float] | None = None,
        prefix_mode: Literal["ask", "continue"] = "ask",
        extra_body: Mapping[str, Any] | None = None,
        choices_mode: Literal["none", "vllm"] = "none",
        adapters: Mapping[str, str] | None = None,
        logprobs: bool = True,
        backoff: float = 0.5,
        max_wait: float = 60,
        name: str | None = None,
    ):
        check_texts(model, api_key_env, name, adapters)
        check_one_of("prefix_mode", prefix_mode, ("ask", "continue"))
        check_one_of("choices_mode", choices_mode, ("none", "vllm"))
        self.name = public_name(model) if name is None else name
        self._model, self._adapters = model, dict(adapters or {})
        self._prefix_mode, self._choices_mode = prefix_mode, choices_mode
        self._address = address_of(base_url)
        self._extra = checked_extra_body(extra_body, key_from(api_key_env, self._address))
        self._accounting = Accounting(checked_prices(prices))
        self._ask_logprobs = bool(logprobs)
        patience = Patience(concurrency, timeout, max_retries, backoff, max_wait)
        dialect = Dialect(self._ask_logprobs)
        self._asker = Asker(
            self.name, self._address, api_key_env, patience, self._accounting, dialect
        )
        self.capabilities = _capabilities(prefix_mode, choices_mode, self._ask_logprobs)
        self.usage: Usage = self._accounting.usage

    def __repr__(self) -> str:
        return f"OpenAILanguageModel({self.name!r}, host={self._address.host!r})"

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Return the text that answers each request.

        With `Generate.choices`, a text that is none of them is an error.
        """
        questions: list[Question[Completion] | LanguageModelError] = []
        for request in requests:
            try:
                questions.append(self._generation(request))
            except LanguageModelError as error:
                questions.append(error)
        return self._asker.ask(questions)

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return next-word probabilities, from the 20 likeliest tokens that the server tells of.

        A word that none of the 20 begins has probability 0.
        """
        questions: list[Question[WordProbabilities] | LanguageModelError] = []
        for request in requests:
            try:
                questions.append(self._next_word(request))
            except LanguageModelError as error:
                questions.append(error)
        return self._asker.ask(questions)

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Return an error for each request: chat completions cannot score a given text."""
        what, advice = "the log-probabilities of given texts", _INSTEAD_OF_SCORES
        return [self._unable(what, advice) for _ in requests]

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return an error for each request: chat completions tell no hidden states."""
        return [self._unable("hidden states") for _ in requests]

    def count_tokens(self, text: str) -> int:
        """Return an estimate of a text's tokens: its characters divided by four, rounded up."""
        return estimate_tokens(text)

    def config(self) -> dict[str, Any]:
        """Return JSON data: what answers may depend on, without key, URL and local paths."""
        return {
            "id": "openai",
            "model": public_name(self._model),
            "host": self._address.host,
            "prefix_mode": self._prefix_mode,
            "choices_mode": self._choices_mode,
            "extra_body": dict(self._extra),
            "adapters": {ours: public_name(theirs) for ours, theirs in self._adapters.items()},
            "logprobs": self._ask_logprobs,
            "name": self.name,
        }

    def _generation(self, request: Generate) -> Question[Completion]:
        served = self._served(request.adapter)
        if request.choices is not None:
            self._check_choices(request.choices)
        continues = self._prefix_mode == "continue"

        def body(dialect: Dialect) -> dict[str, Any]:
            return {"model": served} | generate_body(request, dialect, self._extra, continues)

        return Question(body, lambda chat: self._completion(request, chat))

    def _next_word(self, request: Words) -> Question[WordProbabilities]:
        if "words" not in self.capabilities:
            raise self._unable(
                "next-word probabilities with prefix_mode='ask'",
                "use prefix_mode='continue' with a server that continues messages, as vLLM does",
            )
        served = self._served(request.adapter)
        if not request.words or not all(isinstance(w, str) and w for w in request.words):
            raise LanguageModelError(
                f"expected words, none of them empty, found {request.words!r:.80}; name some"
            )

        def body(dialect: Dialect) -> dict[str, Any]:
            return {"model": served} | words_body(request, dialect, self._extra, _TOP_WORDS)

        def read(chat: Chat) -> WordProbabilities:
            probabilities = word_probabilities(token_probabilities(chat), request.words)
            prompt = self._account(request, chat)[0]
            return WordProbabilities(probabilities, prompt)

        return Question(body, read)

    def _completion(self, request: Generate, chat: Chat) -> Completion:
        text, logprobs, token_ids = chat.text, chat.token_logprobs(), chat.token_ids
        tokens = chat.token_texts()
        if request.prefix and self._prefix_mode == "ask":
            text = without_prefix(text, request.prefix)
            if text != chat.text:
                logprobs = token_ids = tokens = None
        finish = chat.finish
        if request.choices is None:
            text, cut = cut_at_stop(text, request.sampling.stop)
            finish = "stop" if cut else finish
        elif text not in request.choices:
            raise _no_choice(chat)
        prompt, completion = self._account(request, chat)
        return Completion(text, token_ids, logprobs, finish, prompt, completion, tokens)

    def _account(self, request: Generate | Words, chat: Chat) -> tuple[int, int]:
        """Count an answer, and return the tokens of its prompt and its own."""
        prompt, completion = chat.prompt_tokens, chat.completion_tokens
        if prompt is None:
            prompt = prompt_estimate(request.messages, request.prefix)
        if completion is None:
            completion = estimate_tokens(chat.text)
        self._accounting.answered(prompt, completion)
        return prompt, completion

    def _served(self, adapter: str | None) -> str:
        if adapter is None:
            return self._model
        if adapter not in self._adapters:
            known = suggest(str(adapter), self._adapters) if self._adapters else "none is known"
            raise LanguageModelError(
                f"expected an adapter that {self.name} has, found {adapter!r:.80}; {known}; name "
                "what the server calls it in the option adapters"
            )
        return self._adapters[adapter]

    def _check_choices(self, choices: tuple[str, ...]) -> None:
        if "choices" not in self.capabilities:
            raise self._unable(
                "an answer out of given choices",
                "use choices_mode='vllm' with vLLM 0.12 or newer, or ask for free text",
            )
        if not choices or not all(isinstance(choice, str) and choice for choice in choices):
            raise LanguageModelError(
                f"expected choices, none of them empty, found {choices!r:.80}; name some"
            )

    def _unable(self, what: str, advice: str = "") -> LanguageModelError:
        advice = (
            advice or "use a model that runs in this process for that, such as a Hugging Face one"
        )
        return LanguageModelError(
            f"expected a request that {self.name} can answer, found one for {what}, which it cannot "
            f"get from its server; {advice}"
        )


def _capabilities(prefix_mode: str, choices_mode: str, logprobs: bool) -> frozenset[str]:
    words = {"words"} if prefix_mode == "continue" else set()
    choices = {"choices"} if choices_mode == "vllm" else set()
    tokens = {"tokens"} if logprobs else set()
    return frozenset({"generate", "prefix"} | words | choices | tokens)


def _no_choice(chat: Chat) -> Failure:
    if chat.finish == "length":
        return Failure("a choice that was cut off", "raise max_new_tokens", again=False)
    return Failure(
        "a text that is none of the choices",
        "the server does not restrict answers as vLLM 0.12 does: use choices_mode='none'",
        again=False,
    )
