"""A connection to one server: keys, deadlines, bounded answers, and a loop that runs it all."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import threading
import weakref
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ..errors import LanguageModelError, MissingExtra, OptionError
from .openai_failures import Failure

__all__ = ["MAX_ANSWER_BYTES", "Address", "Answer", "Connection", "address_of", "key_from"]

MAX_ANSWER_BYTES = 8 * 2**20
"""A larger answer, error or not, is refused: no completion with log-probabilities comes near."""

_DEFAULT_URL = "https://api.openai.com/v1"
_SENT_HEADERS = frozenset(
    {"host", "accept", "connection", "content-type", "content-length", "user-agent"}
)
_NO_KEY = "none"

T = TypeVar("T")


class Address(NamedTuple):
    """Where a server is: the URL to call, what to call its host, whether it is this machine."""

    url: str
    host: str
    loopback: bool


class Answer(NamedTuple):
    """An HTTP answer: status, headers with names in lower case, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def address_of(base_url: str | None) -> Address:
    """Return the address that a base URL names; None is OpenAI's own server.

    Raises:
        OptionError: It is no plain http or https URL. User info, query and fragment are refused,
            for secrets belong into the environment; the message does not repeat the URL.

    Example:
        >>> address_of("http://127.0.0.1:8000/v1")
        Address(url='http://127.0.0.1:8000/v1', host='loopback', loopback=True)
    """
    url = _DEFAULT_URL if base_url is None else base_url
    expected = "base_url must be like 'http://host:8000/v1'"
    if not isinstance(url, str) or not url.isascii() or any(c.isspace() for c in url):
        raise OptionError(f"{expected}, found another kind of value or strange characters in it")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise OptionError(f"{expected}, found a URL with a broken host or port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise OptionError(f"{expected}, found a URL of the scheme {parts.scheme!r:.20}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise OptionError(
            f"{expected}, found user info, a query or a fragment in it; leave them out, and put the "
            "key into an environment variable (api_key_env)"
        )
    loopback = _is_loopback(host)
    return Address(url, "loopback" if loopback else host, loopback)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def key_from(variable: str, address: Address) -> str:
    """Return the key that an environment variable holds, or "" for none where none is needed.

    Raises:
        LanguageModelError: The server is not on this machine and there is no key, or the key
            cannot be one. The message names the variable and never what it holds.
    """
    key = os.environ.get(variable, "").strip()
    if not key and not address.loopback:
        raise LanguageModelError(
            f"expected the key for the server at {address.host} in the environment variable "
            f"{variable}, found none there; set it, or name another with api_key_env"
        )
    if not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
        raise LanguageModelError(
            f"expected a key in the environment variable {variable}, found spaces or characters in "
            "it that cannot be sent; set it again"
        )
    return key


def _bounded_client(key: str, address: Address) -> Any:
    """Return an HTTP client that sends few headers and reads no endless bodies."""
    import openai

    # A server on this machine is never behind a proxy; a redirect could lead anywhere.
    client: Any = openai.DefaultAsyncHttpxClient(
        follow_redirects=False, trust_env=not address.loopback
    )
    send_request = client.send

    async def send(request: Any, *, stream: bool = False, **options: Any) -> Any:
        response = await send_request(_plain(request, key), stream=True, **options)
        try:
            body = await _bounded_body(response)
        finally:
            await response.aclose()
        headers = {name: response.headers[name] for name in response.headers}
        return type(response)(response.status_code, headers=headers, content=body, request=request)

    client.send = send
    return client


def _plain(request: Any, key: str) -> Any:
    """Return a request without what the library adds of itself and from the environment."""
    headers = {name: value for name, value in request.headers.items() if name in _SENT_HEADERS}
    headers |= {"authorization": f"Bearer {key or _NO_KEY}", "accept-encoding": "identity"}
    return type(request)(
        request.method,
        request.url,
        headers=headers,
        stream=request.stream,
        extensions=request.extensions,
    )


async def _bounded_body(response: Any) -> bytes:
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise _Unreadable("a compressed answer, which was not asked for")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise _Unreadable(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
    return bytes(body)


class _Unreadable(Exception):
    """An answer that is not read to its end."""


class Connection:
    """Asks one server, many requests at a time, from an event loop in a thread of its own.

    Callers need no event loop, and may be inside one. The thread ends when the connection is
    collected.

    Args:
        address: Where the server is.
        key: The key to send, or "".
        timeout: The most seconds from the start of a try to the last byte of its answer.
        concurrency: The most requests under way at once.

    Raises:
        MissingExtra: The package ``openai`` is not installed.
    """

    def __init__(self, address: Address, key: str, timeout: float, concurrency: int):
        try:
            import openai
        except ImportError as error:
            raise MissingExtra.of("llm", "asking a server for a language model") from error
        self.key, self.timeout, self.process = key, timeout, os.getpid()
        self.slots = asyncio.Semaphore(concurrency)
        self._client = openai.AsyncOpenAI(
            api_key=key or _NO_KEY,
            base_url=address.url,
            max_retries=0,
            timeout=timeout,
            http_client=_bounded_client(key, address),
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(self._loop,), daemon=True, name="comap-lm").start()
        weakref.finalize(self, _shut, self._loop, self._client, self.process)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the connection's loop and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def post(self, body: Mapping[str, Any]) -> Answer:
        """Send one chat completion request, once.

        Raises:
            Failure: No answer came in time, or at all, or one that is not read to its end.
        """
        import openai

        ask = self._client.chat.completions.with_raw_response.create
        try:
            response = (await asyncio.wait_for(ask(**body), self.timeout)).http_response
        except (asyncio.TimeoutError, openai.APITimeoutError):
            raise Failure(
                f"no whole answer within {self.timeout:g} s",
                "raise timeout, lower concurrency or ask for fewer tokens",
                again=True,
            ) from None
        except openai.APIStatusError as error:
            response = error.response
        except (openai.APIConnectionError, _Unreadable, OSError) as error:
            raise _broken(error) from None
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, response.content)


def _broken(error: Exception) -> Failure:
    """Return the failure of a connection; only kinds of errors are told, no addresses or keys."""
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, _Unreadable):
        cause = cause.__cause__
    if isinstance(cause, _Unreadable):
        return Failure(str(cause), "check that base_url is a language model's server", again=False)
    return Failure(
        f"a broken connection ({type(cause).__name__})",
        "check that the server runs and that base_url is right",
        again=True,
    )


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _shut(loop: asyncio.AbstractEventLoop, client: Any, process: int) -> None:
    """Close the client and stop its loop, unless they are of the process that forked this one."""

    async def end() -> None:
        try:
            await client.close()
        finally:
            loop.stop()

    if os.getpid() == process and loop.is_running():
        asyncio.run_coroutine_threadsafe(end(), loop)
