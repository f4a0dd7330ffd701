"""`opened`: one HTTP request, with its errors sorted into those that pass and those that stay."""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ..errors import DownloadError, OptionError

__all__ = ["PassingError", "check_url", "describe", "opened"]

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_REMEDY = "check the address, or name another server with --mirror"


class PassingError(Exception):
    """A failure that another try may mend.

    Attributes:
        pause: Seconds that the server asks to wait.
        restart: Whether what has come so far is of no use.

    Example:
        >>> PassingError("HTTP 503", pause=2.0).pause
        2.0
    """

    def __init__(self, reason: str, *, pause: float = 0.0, restart: bool = False):
        super().__init__(reason)
        self.pause = pause
        self.restart = restart


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https, and from https to https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme != "https" and (scheme != "http" or req.type == "https"):
            fp.close()
            raise DownloadError(
                f"expected {req.full_url} to lead to an address no less safe, found a redirect to "
                f"{newurl}; {_REMEDY}"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_url(url: str) -> str:
    """Return `url` if it can be downloaded from.

    Raises:
        OptionError: It is not an http or https address.

    Example:
        >>> check_url("ftp://host/file.zip")
        Traceback (most recent call last):
        ...
        comap.errors.OptionError: expected an address like https://host/folder, found \
'ftp://host/file.zip'; give one that starts with http:// or https://
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        good = good and "@" not in parts.netloc and re.fullmatch(r"[!-~]+", url) is not None
    except ValueError:
        good = False
    if not good:
        raise OptionError(
            f"expected an address like https://host/folder, found {url!r}; "
            "give one that starts with http:// or https://"
        )
    return url


@contextmanager
def opened(request: urllib.request.Request, timeout: float) -> Iterator[http.client.HTTPResponse]:
    """Open a request for a file, or for the rest of one; the status is 200 or 206.

    Raises:
        PassingError: Another try may help.
        DownloadError: Another try will not help.

    Example:
        >>> with opened(urllib.request.Request("https://host/a.zip"), timeout=5) as response:
        ...     response.status  # doctest: +SKIP
        200
    """
    url = request.full_url
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(error, url) from error
    except DownloadError:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise DownloadError(
                f"expected {url} to prove who it is, found: {reason.verify_message}; "
                "check this machine's clock and certificates"
            ) from error
        raise PassingError(f"no answer ({describe(reason)})") from error
    with response:
        if response.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise DownloadError(
                f"expected the file at {url}, found HTTP {response.status}; {_REMEDY}"
            )
        yield response


def describe(error: object) -> str:
    """Return what to tell of an error of the network.

    Example:
        >>> describe(TimeoutError("timed out")), describe(TimeoutError())
        ('TimeoutError: timed out', 'TimeoutError')
    """
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _refused(error: urllib.error.HTTPError, url: str) -> Exception:
    if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return PassingError("the server's file ends before the part that is here", restart=True)
    if error.code in _PASSING:
        after = error.headers.get("Retry-After", "") if error.headers else ""
        pause = float(after) if after.isdecimal() else 0.0
        return PassingError(f"HTTP {error.code}", pause=pause)
    return DownloadError(
        f"expected the file at {url}, found HTTP {error.code} ({error.reason}); {_REMEDY}"
    )
