"""Language models behind servers that speak OpenAI's chat completions.

Connections, retries and waiting are the ``openai`` package's own. This module makes the requests;
`chat_replies` reads the answers.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import PureWindowsPath
from typing import Any, NamedTuple

from ..errors import LanguageModelError, OptionError, check_url, needs_extra, suggest
from ..redaction import without_secrets
from .base import (
    BaseLanguageModel,
    Completion,
    Generate,
    LMRequest,
    Message,
    NextWord,
    Sampling,
    Score,
    Usage,
    checked_messages,
    valid_text,
)
from .chat import DATE_STRING, THINKING, checked_template_kwargs
from .chat_replies import (
    THINKING_ADVICE,
    BadAnswer,
    Chat,
    context_in,
    one_line,
    read_chat,
    without_prefix,
)
from .thoughts import first_stop

CONTINUE = (
    "Your last message was cut off. Continue it from exactly where it stopped. Write only what "
    "comes next, without repeating any of it."
)
"""Asks for the rest of a message that was begun, where a server cannot continue one by itself."""
MAX_ANSWER_BYTES = 8 * 2**20
"""A larger answer is refused: no completion with log-probabilities comes near."""

_OURS = (
    "add_generation_prompt continue_final_message frequency_penalty logprobs max_completion_tokens "
    "max_tokens messages model n presence_penalty seed stop stream structured_outputs temperature "
    "tools top_logprobs top_p"
)
_TEMPLATE = (
    "chat_template_kwargs"  # vLLM's, SGLang's and llama.cpp's name for variables of the template
)
_OPENAI = "api.openai.com"
_LIST_SECONDS = 10
_MOST_STOPS = 4  # OpenAI's limit
_NO_KEY = "none"
_TOO_LONG = re.compile(
    r"context (?:length|window|size)|max_model_len|too long|longer than the (?:maximum|model)",
    re.IGNORECASE,
)
_SHORTER = (
    "prompt and reply are longer than the model's context: lower max_length of the agent (on the command "
    "line: --max-length) or of the world model, or serve the model with a longer context"
)
_ADVICE = {
    401: "check the key in the environment variable {variable}",
    403: "check that the key in the environment variable {variable} may use this model",
    404: "check the model's name and base_url (usually ending in /v1)",
    413: _SHORTER,
    429: "lower concurrency, or try later",
}
_LOCAL_MODEL = "use a model that runs in this process, such as a Hugging Face one"
_IN_VLLM = (
    f"chat completions have none; ask vLLM in tokens (--engine http://HOST:PORT), or {_LOCAL_MODEL}"
)
_NO_SCORES = f"chat completions have none; {_LOCAL_MODEL}"
_NO_CONFIDENCE = (
    "without them the confidence q_source='token_geo_mean' or 'min_token' cannot be computed: set "
    "q_source='proxy' (on the command line: --q-source proxy), which needs none, or use a server that "
    f"returns them with their tokens, as vLLM does, or {_LOCAL_MODEL}"
)


class OpenAILanguageModel(BaseLanguageModel):
    """Asks a server through OpenAI's chat completions: vLLM, ``transformers serve``, hosted ones.

    Requests of a batch are sent at the same time, up to `concurrency`. A request that times out, whose
    connection breaks, or that is refused for now (408, 409, 429, 5xx) is sent again, after waiting as
    the ``openai`` package does. What fails for good has its error in its place. Redirects are not
    followed, and answers of more than 8 MiB are refused.

    * A server may read text like ``<|im_end|>`` in a message as a control token, so that hostile text
      in an observation can end its message. Texts are sent as they are.
    * `Completion.logprobs` are what the server says; they cover the whole answer, also what is cut off
      at a stop string. There are none where a repeated prefix was taken off. A server that refuses to
      return them is not asked again. `Completion.tokens` come with them, if every token has its text.
    * A model in vLLM is asked in tokens, and for more kinds of requests, by `VLLMLanguageModel` (option
      ``--engine http://HOST:PORT``). Here vLLM is a server like others; `Completion.token_ids` come with
      ``extra_body={"return_token_ids": True}``.
    * A thought that the server keeps apart (``reasoning_content`` or ``reasoning``) is not in
      `Completion.text`; its tokens count. A reply that was cut while its model thought is an empty text
      with the finish ``length``. Of a message's calls the first is JSON text behind its content:
      ``{"name": ..., "arguments": {...}}``.
    * All servers but OpenAI's own are sent ``chat_template_kwargs``: whether to think, as the request
      says (no, if it does not), and the 26th of July 2024 as the ``date_string`` that Llama 3.2's
      template writes. One that refuses them is not sent them again.
    * A reply that was begun is sent, and the rest asked for in a further message, which any model may
      misunderstand; a repetition is taken off.
    * ``transformers serve`` (5.23, tested) ignores ``logprobs``, and repeats seeded answers with
      ``concurrency=1`` only.

    Args:
        model: The model's name on the server.
        base_url: Such as ``"http://127.0.0.1:8000/v1"``; None for OpenAI's own server.
        api_key_env: The environment variable that holds the key. It may be unset for a server on
            this machine.
        concurrency: The most requests under way at once.
        timeout: The most seconds to wait for an answer.
        max_retries: How often a request is sent again after a failure.
        prices: Money per million prompt tokens and per million completion tokens.
        extra_body: Further fields of each request.
        chat_template_kwargs: Variables for the model's chat template, for all requests, such as
            ``{"enable_thinking": True}``: vLLM, SGLang and llama.cpp take them.
        adapters: What the server calls our adapters; vLLM serves each LoRA as a model.
        logprobs: Whether to ask for the log-probabilities of what is written.
        name: How results call this model; the model's name if None.

    Attributes:
        name: As given.
        capabilities: ``generate`` and ``prefix``, and with ``logprobs`` also ``tokens``. Chat completions
            offer no others.
        context: The most tokens of prompt and answer together, as the server's list of models
            (``/v1/models``) has it; None where it does not say.
        usage: Sums so far, of the tokens that the server counted, else of bytes divided by three.

    Raises:
        OptionError: An option has a value that it cannot have.
        LanguageModelError: The key is missing.
        MissingExtra: On the first request, where the package ``openai`` is not installed.

    Example:
        >>> lm = OpenAILanguageModel("Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1")
        >>> lm.config()["host"], sorted(lm.capabilities)
        ('loopback', ['generate', 'prefix', 'tokens'])
    """

    def __init__(  # noqa: PLR0913 options of a model, as --model-option passes them
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 16,
        timeout: float = 60,
        max_retries: int = 5,
        prices: tuple[float, float] = (0.0, 0.0),
        extra_body: Mapping[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapters: Mapping[str, str] | None = None,
        logprobs: bool = True,
        name: str | None = None,
    ):
        _require(model.strip(), "model must not be empty", model)
        _require(concurrency >= 1, "concurrency must be at least 1", concurrency)
        _require(max_retries >= 0, "max_retries must be at least 0", max_retries)
        _require(0 < timeout < math.inf, "timeout must be a number of seconds above 0", timeout)
        _require(
            len(prices) == 2 and all(0 <= price < math.inf for price in prices),
            "prices must be two numbers of at least 0",
            prices,
        )

        self.name = name or public_name(model)
        self._model = model
        self._adapters = dict(adapters or {})
        self._prices = prices

        self._address = address_of(base_url)
        self._variable = api_key_env
        self._extra = _checked_extra_body(extra_body or {}, key_from(api_key_env, self._address))
        self._template = checked_template_kwargs(self._extra.pop(_TEMPLATE, None))
        self._template |= checked_template_kwargs(chat_template_kwargs)

        self._timeout = timeout
        self._max_retries = max_retries
        self._concurrency = concurrency
        self._slots = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()

        # What is sent changes where the server refuses it: see `_can_ask_otherwise`.
        self._logprobs = logprobs
        self._asks_logprobs = logprobs
        self._fixes_template = self._address.host != _OPENAI
        self._limit_field = "max_tokens"

        self._client: tuple[int, Any] = (0, None)  # the process that made it, and the client
        able = {"generate": True, "prefix": True, "tokens": logprobs}
        self.capabilities = frozenset(name for name, can in able.items() if can)
        self.usage = Usage()

    def count_tokens(self, text: str) -> int:
        """Return a careful estimate of a text's tokens: its bytes divided by three, rounded up."""
        return math.ceil(len(text.encode("utf-8", "replace")) / 3)

    def config(self) -> dict[str, Any]:
        """Return JSON data: what answers may depend on, without key, URL and local paths."""
        template = self._template_of(False, self._address.host != _OPENAI)
        return {
            "id": "openai",
            "model": public_name(self._model),
            "host": self._address.host,
            "extra_body": without_secrets(self._extra, "extra_body"),
            **({_TEMPLATE: without_secrets(template, _TEMPLATE)} if template else {}),
            "adapters": {ours: public_name(theirs) for ours, theirs in self._adapters.items()},
            "logprobs": self._logprobs,
            "name": self.name,
        }

    @cached_property
    def context(self) -> int | None:
        """The most tokens of prompt and answer together, by the server's list of models; asked once."""
        with suppress(Exception):  # many servers have no such list, or another one
            key = key_from(self._variable, self._address)
            timeout = min(self._timeout, _LIST_SECONDS)
            with _new_client(self._address, key, timeout, max_retries=0) as client:
                answer = client.models.with_raw_response.list()
            return context_in(answer.content, self._model)
        return None

    def thinks(self, asked: bool = False) -> bool:
        """Return whether the model is told to think first, if a request asks for it or does not."""
        return bool(self._template.get(THINKING, asked))

    def check_server(self) -> None:
        """Send one small request, without retries, and raise an error that retries would not mend.

        Raises:
            LanguageModelError: The address, the key or the model's name is wrong.
        """
        request = Generate((Message("user", "Hello."),), Sampling(max_new_tokens=16))
        key = key_from(self._variable, self._address)
        with _new_client(self._address, key, self._timeout, max_retries=0) as client:
            reply = self._ask(client, request)
        if isinstance(reply, LanguageModelError) and not reply.transient:
            raise reply

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        if not requests:
            return []
        client = self._connected()
        with ThreadPoolExecutor(min(self._concurrency, len(requests)), "comap-lm") as pool:
            return list(pool.map(lambda request: self._ask(client, request), requests))

    def _connected(self) -> Any:
        """Return the client; a forked process makes its own, as connections are not shared."""
        with self._lock:
            if self._client[0] != os.getpid():
                key = key_from(self._variable, self._address)
                client = _new_client(self._address, key, self._timeout, self._max_retries)
                self._client = (os.getpid(), client)
            return self._client[1]

    def _ask(self, client: Any, request: LMRequest) -> Any:
        """Return the server's reply to a request, or the error that stands in its place."""
        import openai

        start = time.monotonic()
        transient = False  # whether the same request may succeed later
        key = "" if client.api_key == _NO_KEY else client.api_key
        try:
            with self._slots:
                while True:
                    body = self._body(request)
                    try:
                        answer = client.chat.completions.with_raw_response.create(**body)
                        break
                    except openai.APIStatusError as error:
                        if not self._can_ask_otherwise(error, body):
                            raise
            with self._lock:
                self.usage.retries += answer.retries_taken
            return self._reply(request, read_chat(answer.content, key))
        except BadAnswer as error:
            problem, advice = error.args
            transient = advice == THINKING_ADVICE
        except LanguageModelError as error:
            return error.with_traceback(None)
        except openai.APITimeoutError:
            problem = f"no whole answer within {self._timeout:g} s"
            transient = True
            advice = "raise timeout, lower concurrency or ask for fewer tokens"
        except openai.APIStatusError as error:
            problem, advice = _refusal(error.response, key, self._variable)
            transient = error.status_code in (408, 409, 429) or error.status_code >= 500
        except openai.APIConnectionError as error:
            problem, advice = _broken(error)

        retries = ""
        if client.max_retries:
            seconds = time.monotonic() - start
            retries = f" after up to {client.max_retries} retries in {seconds:.1f} s"
        failure = LanguageModelError(
            f"expected an answer of {self.name} ({self._address.place}), found {problem}{retries}; {advice}"
        )
        failure.transient = transient
        return failure

    def _can_ask_otherwise(self, error: Any, body: Mapping[str, Any]) -> bool:
        """Return whether a refusal names a field of ours that can be sent otherwise, from now on."""
        text = error.response.text if error.status_code in (400, 422) else ""
        unsupported = re.search(r"unsupported|not supported|instead", text, re.IGNORECASE)

        # A server may repeat the request, whatever is wrong with it: then a name in it says nothing.
        names_logprobs = "logprobs" in text and '"logprobs":' not in text
        names_template = "chat_template" in text and '"messages":' not in text

        # Variables of a user's own stay.
        sends_our_template = _TEMPLATE in body["extra_body"] and not self._template

        if "max_tokens" in body and "max_completion_tokens" in text and unsupported:
            self._limit_field = "max_completion_tokens"
        elif "logprobs" in body and names_logprobs:
            self._asks_logprobs = False
        elif sends_our_template and names_template:
            self._fixes_template = False
        else:
            return False

        with self._lock:
            self.usage.retries += 1
        return True

    def _body(self, request: LMRequest) -> dict[str, Any]:
        """Return the arguments of the chat completion that answers a request."""
        if isinstance(request, Generate):
            return self._generation(request)
        if isinstance(request, Score):
            raise self._no_scores(request)
        if isinstance(request, NextWord):
            raise self._unable("next-word probabilities", _IN_VLLM)
        raise self._unable("hidden states", _LOCAL_MODEL)

    def _generation(self, request: Generate) -> dict[str, Any]:
        """Return the arguments of a chat completion that writes a text."""
        if request.choices is not None:
            raise self._unable("an answer out of given choices", _IN_VLLM)

        sampling = request.sampling
        body = self._conversation(request) | {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            self._limit_field: sampling.max_new_tokens,
        }
        if self._asks_logprobs:
            body["logprobs"] = True

        if self.thinks(request.thinking):
            return body  # a server would stop inside the thought; `_reply` cuts the text instead

        # A model that is asked to continue may repeat the prefix first, and must not stop inside.
        stops = [stop for stop in sampling.stop if stop not in request.prefix][:_MOST_STOPS]
        if stops:
            body["stop"] = stops
        return body

    def _conversation(self, request: Generate) -> dict[str, Any]:
        """Return model and messages of a request, and further fields."""
        model = self._model
        extra = dict(self._extra)

        if request.adapter is not None:
            if request.adapter not in self._adapters:
                hint = suggest(str(request.adapter), self._adapters)
                raise LanguageModelError(
                    f"expected an adapter that {self.name} has, found {request.adapter!r:.80}; "
                    f"{hint}; name what the server calls it in the option adapters"
                )
            model = self._adapters[request.adapter]

        if template := self._template_of(request.thinking, self._fixes_template):
            extra[_TEMPLATE] = template

        messages = [message._asdict() for message in checked_messages(request.messages)]
        if request.prefix:
            messages.append({"role": "assistant", "content": valid_text(request.prefix)})
            messages.append({"role": "user", "content": CONTINUE})
        return {"model": model, "messages": messages, "extra_body": extra}

    def _template_of(self, thinking: bool, fixed: bool) -> dict[str, Any]:
        """Return the variables of the chat template: those given, and else thinking and the date."""
        values = {THINKING: thinking, "date_string": DATE_STRING} if fixed else {}
        return values | self._template

    def _reply(self, request: LMRequest, chat: Chat) -> Completion:
        """Return what a chat completion means for the request that it answers."""
        assert isinstance(request, Generate)  # others have no body

        chat = chat.without_reasoning_tokens()
        text = chat.text
        finish = chat.finish
        token_ids = chat.token_ids
        logprobs = chat.logprobs()
        tokens = chat.tokens()

        # The tokens of a repeated prefix cannot be told from the others: then none are returned.
        if request.prefix:
            text = without_prefix(text, request.prefix)
            if text != chat.text:
                logprobs = None
                token_ids = None
                tokens = None

        end = first_stop(text, request.sampling.stop)
        if end is not None:
            text = text[:end]
            finish = "stop"
        return Completion(text, token_ids, logprobs, finish, *self._count(request, chat), tokens)

    def _count(self, request: Generate, chat: Chat) -> tuple[int, int]:
        """Add an answer to the usage, and return the tokens of its prompt and its own."""
        prompt = chat.prompt_tokens
        completion = chat.completion_tokens

        # A server that does not count is estimated: see `count_tokens`.
        if prompt is None:
            texts = "".join(content for _, content in request.messages)
            prompt = self.count_tokens(texts + request.prefix)
        if completion is None:
            completion = self.count_tokens(chat.reasoning + chat.text)

        with self._lock:
            self.usage.requests += 1
            self.usage.prompt_tokens += prompt
            self.usage.completion_tokens += completion
            self.usage.cost += (prompt * self._prices[0] + completion * self._prices[1]) / 1e6
        return prompt, completion

    def _no_scores(self, request: Score) -> LanguageModelError:
        """Return the error of a request for log-probabilities of given texts."""
        if request.purpose.endswith("confidence"):  # CoMap asks where a reply came without its own
            return LanguageModelError(
                f"expected log-probabilities of the tokens that {self.name} wrote, found none in its "
                f"server's reply; {_NO_CONFIDENCE}"
            )
        return self._unable("the log-probabilities of given texts", _NO_SCORES)

    def _unable(self, purpose: str, advice: str) -> LanguageModelError:
        return LanguageModelError(
            f"expected a request that {self.name} can answer, found one for {purpose}, which it cannot "
            f"get from its server; {advice}"
        )


def _require(condition: object, rule: str, value: object) -> None:
    """Raise `OptionError` with the rule and the value unless the condition is true."""
    if not condition:
        raise OptionError(f"{rule}, not {value!r:.80}")


class Address(NamedTuple):
    """Where a server is: the URL to call, what records call its host, whether it is this machine."""

    url: str
    host: str
    loopback: bool
    place: str
    """Host and port as they were given, for messages."""


def address_of(base_url: str | None) -> Address:
    """Return the address that a base URL names; None is OpenAI's own server."""
    url = "https://api.openai.com/v1" if base_url is None else base_url
    parts = check_url("base_url", url, "http://host:8000/v1")
    host = parts.hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return Address(url, "loopback" if loopback else host, loopback, parts.netloc)


def key_from(variable: str, address: Address) -> str:
    """Return the key that an environment variable holds, or "none" where none is needed."""
    key = os.environ.get(variable, "").strip()
    if not key and not address.loopback:
        raise LanguageModelError(
            f"expected the key for the server at {address.host} in the environment variable "
            f"{variable}, found none there; set it, or name another with api_key_env"
        )
    if not re.fullmatch("[!-~]*", key):
        raise LanguageModelError(
            f"expected a key in the environment variable {variable}, found spaces or characters in "
            "it that cannot be sent; set it again"
        )
    return key or _NO_KEY


def public_name(model: str) -> str:
    """Return a model's name, of a path on some machine only the last part."""
    path = PureWindowsPath(model)  # it reads both kinds of slashes
    is_local = path.drive or model.startswith(("/", ".", "~")) or "\\" in model
    if not is_local:
        return model
    return path.name or "model"


def _new_client(address: Address, key: str, timeout: float, max_retries: int) -> Any:
    """Return the SDK's client, with bounds on what it reads."""
    with needs_extra("llm", "asking a server for a language model"):
        import openai
    # The SDK's HTTP package: httpx, or httpx2 in newer versions.
    httpx = __import__(openai.DefaultHttpxClient.__base__.__module__.partition(".")[0])

    class Bounded(httpx.SyncByteStream):  # type: ignore[misc, name-defined, unused-ignore]
        """The bytes of an answer, up to a number of them and for a time."""

        def __init__(self, stream: Any):
            self.stream = stream

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            deadline = time.monotonic() + timeout
            for chunk in self.stream:
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise BadAnswer(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("no whole answer in time")
                yield chunk

        def close(self) -> None:
            self.stream.close()

    def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise BadAnswer("a compressed answer, which was not asked for")
        response.stream = Bounded(response.stream)

    client = openai.OpenAI(
        api_key=key,
        base_url=address.url,
        timeout=timeout,
        max_retries=max_retries,
        default_headers={"accept-encoding": "identity"},
        http_client=openai.DefaultHttpxClient(
            follow_redirects=False,  # a redirect could lead anywhere
            trust_env=not address.loopback,  # a server on this machine is never behind a proxy
            event_hooks={"response": [bound]},
        ),
    )
    client.organization = client.project = None  # the SDK takes them from the environment
    return client


def _broken(error: BaseException) -> tuple[str, str]:
    """Return what a broken connection is called; only kinds of errors, no addresses or keys."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BadAnswer):
        return error.args[0], error.args[1]
    advice = "check that a server runs there, or mend the address (base_url)"
    return f"a broken connection ({type(error).__name__})", advice


def _refusal(response: Any, key: str, variable: str) -> tuple[str, str]:
    """Return what an HTTP status other than 200 stands for, and what to do about it."""
    status = response.status_code
    text = one_line(response.text, key)

    if 300 <= status < 400:
        advice = "redirects are not followed: set base_url to where the server really is"
    elif status >= 500:
        advice = "the server is at fault: look at its log, or try later"
    elif _TOO_LONG.search(text):
        advice = _SHORTER
    elif re.search("chat.template", text, re.IGNORECASE):
        advice = (
            "start the server with a chat template (vLLM: --chat-template FILE), or serve an instruction-"
            "tuned model"
        )
    else:
        otherwise = "change what the request asks for, or the options of this language model"
        advice = _ADVICE.get(status, otherwise).format(variable=variable)

    problem = f'HTTP {status} ("{text}")' if text else f"HTTP {status}"
    return problem, advice


def _checked_extra_body(extra_body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return further fields for request bodies, as a copy."""
    expected = "extra_body must be a mapping of further fields of the request"
    try:
        text = json.dumps(dict(extra_body), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"{expected}, of JSON data; found {type(error).__name__}") from None
    reserved = sorted(set(_OURS.split()) & set(extra_body))
    if reserved:
        raise OptionError(f"{expected} and cannot set {reserved}: requests and options set these")
    if key != _NO_KEY and key in text:
        raise OptionError(f"{expected}, without the key: it is sent in the header")
    return dict(json.loads(text))
