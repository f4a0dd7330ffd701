"""Asking a live ``/virtual`` server: one bounded exchange at a time, never longer than its time."""

from __future__ import annotations

import json
import os
from typing import Any

from ...errors import OptionError
from ...lm.openai_connection import address_of
from ..http_exchange import ExchangeFailure, post_json
from .backends import BackendFault, Hit, Request
from .values import NotJSON, read_json_text

__all__ = ["LiveServer"]

_KEY = "TOOLBENCH_KEY"


class LiveServer:
    """Asks a server that speaks StableToolBench's ``/virtual``.

    Redirects are not followed, proxies not used, and nothing of the environment is sent but the key in
    ``TOOLBENCH_KEY``, if there is one.

    Args:
        url: Of the route, such as ``http://127.0.0.1:8080/virtual``.
        timeout: The most seconds for one try, from its start to the answer's last byte.
        retries: How often it is asked again where it is silent or says that it is broken.

    Raises:
        OptionError: The URL is none.

    Example:
        >>> LiveServer("http://127.0.0.1:8080/virtual").name
        'live'
    """

    name = "live"

    def __init__(self, url: str, timeout: float = 10.0, retries: int = 1):
        try:
            self.url = address_of(url).url
        except OptionError as error:
            raise OptionError(str(error).replace("base_url", "live_url")) from None
        self.timeout, self.retries = timeout, retries

    def answer(self, request: Request) -> Hit | None:
        """Return what the server says.

        Raises:
            BackendFault: It says nothing in time, or nothing that is an answer.
        """
        body = {
            "category": request.category,
            "tool_name": request.tool,
            "api_name": request.api,
            "tool_input": json.dumps(dict(request.arguments)),
            "strip": "",
            "toolbench_key": os.environ.get(_KEY, ""),
        }
        return _hit(self._asked(json.dumps(body).encode()))

    def _asked(self, body: bytes) -> Any:
        """Return the JSON that comes back, after as many tries as may help."""
        left = self.retries
        while True:
            try:
                return read_json_text(post_json(self.url, body, self.timeout).decode())
            except ExchangeFailure as failure:
                if left <= 0 or not failure.again:
                    raise BackendFault(str(failure)) from None
            except (NotJSON, UnicodeDecodeError) as error:
                raise BackendFault(
                    f"expected JSON, found {type(error).__name__}: {str(error)[:80]}"
                ) from None
            left -= 1


def _hit(data: Any) -> Hit:
    if not isinstance(data, dict) or not {"error", "response"} & data.keys():
        raise BackendFault(f"expected an object with error and response, found {_kind(data)}")
    error = data.get("error") or ""
    return Hit(
        error if isinstance(error, str) else json.dumps(error), data.get("response", ""), "live"
    )


def _kind(data: Any) -> str:
    return (
        f"an object with {sorted(data)[:5]!r:.80}"
        if isinstance(data, dict)
        else type(data).__name__
    )
