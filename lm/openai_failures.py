"""What can go wrong when a server is asked: whether to try again, after how long, what to say."""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Mapping

__all__ = ["Failure", "backoff", "one_line", "refusal", "repeats_key", "retry_after"]

_AGAIN = frozenset({408, 409, 429})
_FRAGMENT = 8
_ADVICE = {
    400: "change what the request asks for, or the options of this language model",
    401: "check the key in the environment variable {variable}",
    403: "check that the key in the environment variable {variable} may use this model",
    404: "check the model's name and base_url (usually ending in /v1)",
    413: "send a shorter prompt",
    422: "change what the request asks for, or the options of this language model",
    429: "lower concurrency, or try later",
}


class Failure(Exception):
    """One try that brought no answer.

    Args:
        found: What came instead.
        advice: What to do about it.
        again: Whether another try may help.
        wait: For how many seconds the server asked to be left alone, if it did.
        status: The HTTP status, where there was one.
        said: What the server said, in full; never shown, as it may repeat the key.

    Example:
        >>> Failure("no answer within 1 s", "raise timeout", again=True).again
        True
    """

    def __init__(
        self,
        found: str,
        advice: str,
        *,
        again: bool,
        wait: float | None = None,
        status: int | None = None,
        said: str = "",
    ):
        super().__init__(found)
        self.found, self.advice, self.again = found, advice, again
        self.wait, self.status, self.said = wait, status, said


def one_line(text: str, limit: int = 200) -> str:
    r"""Return a text from outside as one short line without control characters.

    Example:
        >>> one_line("no such\n\tmodel\x1b[31m", 30)
        'no such model [31m'
    """
    shown = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def repeats_key(text: str, key: str) -> bool:
    """Return whether a text holds the key or eight characters of it in a row.

    Example:
        >>> repeats_key("Bearer sk-1234567890", "sk-1234567890")
        True
        >>> repeats_key("wrong key", "sk-1234567890")
        False
    """
    size = min(_FRAGMENT, len(key))
    return size > 0 and any(key[i : i + size] in text for i in range(len(key) - size + 1))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for, a number or a date; or None.

    Example:
        >>> retry_after({"retry-after": "2.5"})
        2.5
        >>> retry_after({"retry-after": "soon"}) is None
        True
    """
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def backoff(failures: int, base: float, longest: float) -> float:
    """Return how many seconds to wait after so many failures in a row.

    Twice as long each time, times a random factor from 0.5 to 1, so that many requests that failed
    together do not come back together.

    Example:
        >>> 2.0 <= backoff(3, base=1.0, longest=60) <= 4.0
        True
    """
    factor = 0.5 + random.random() / 2
    return float(min(base * 2.0 ** min(failures - 1, 30), longest) * factor)


def refusal(status: int, headers: Mapping[str, str], said: str, key: str, variable: str) -> Failure:
    """Return the failure that an HTTP status other than 200 stands for.

    Args:
        status: The status.
        headers: The answer's headers, with names in lower case.
        said: The answer's body.
        key: The key, which the message must not show; empty where there is none.
        variable: The environment variable that holds the key.

    Example:
        >>> print(refusal(404, {}, "no model 'x'", "", "OPENAI_API_KEY"))
        HTTP 404 ("no model 'x'")
    """
    quote = one_line(said)
    if key and repeats_key(said, key):
        quote = "its text is withheld, as it repeats the key"
    server = "the server is at fault: look at its log, or try later"
    if 300 <= status < 400:
        advice = "redirects are not followed: set base_url to where the server really is"
    else:
        other = server if status >= 500 else "look up what the server means by this status"
        advice = _ADVICE.get(status, other)
    return Failure(
        f'HTTP {status} ("{quote}")' if quote else f"HTTP {status}",
        advice.format(variable=variable),
        again=status in _AGAIN or status >= 500,
        wait=retry_after(headers),
        status=status,
        said=said,
    )
