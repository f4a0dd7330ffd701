"""A server on this machine that answers what is posted to it as badly as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Behavior = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Notes the request and lets the next behavior answer it."""

    protocol_version = "HTTP/1.1"
    owner: HostileServer
    body: dict[str, Any]

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        self.body = json.loads(self.rfile.read(length) or b"{}")
        behavior = self.owner.take(self)
        try:
            behavior(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.owner.left()

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    request_queue_size = 128
    daemon_threads = True
    block_on_close = False


class HostileServer:
    """Runs in threads while the ``with`` block lasts.

    Behaviors are taken in turn, and the last one again and again. `requests` are the bodies that
    came, `headers` their headers, `most` the most requests that were under way at once. `url` is where
    a language model would be, `base` the same without a path.
    """

    def __init__(self, *behaviors: Behavior):
        self.behaviors: Sequence[Behavior] = behaviors
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most = self.now = 0
        self.over = threading.Event()
        self._lock = threading.Lock()
        handler = type("BoundHandler", (Handler,), {"owner": self})
        self._server = Server(("127.0.0.1", 0), handler)
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.base}/v1"

    def __enter__(self) -> HostileServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, handler: Handler) -> Behavior:
        with self._lock:
            number = len(self.requests)
            self.requests.append(handler.body)
            self.headers.append({name.lower(): value for name, value in handler.headers.items()})
            self.now += 1
            self.most = max(self.most, self.now)
        return self.behaviors[min(number, len(self.behaviors) - 1)]

    def left(self) -> None:
        with self._lock:
            self.now -= 1


def completion(text: Any = "go north", **changes: Any) -> dict[str, Any]:
    """Return a right answer, with changes to its choice."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        **changes,
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}


def says(text: Any = "go north", **changes: Any) -> Behavior:
    """Answer rightly."""
    return sends(completion(text, **changes))


def sends(data: Any, status: int = 200, **headers: str) -> Behavior:
    """Answer with JSON data."""
    return raw(json.dumps(data).encode(), status, **headers)


def raw(body: bytes, status: int = 200, **headers: str) -> Behavior:
    """Answer with any bytes; underscores in the names of headers stand for dashes."""
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.reply(status, body, header_fields)


def repeats_last_message(handler: Handler) -> None:
    """Answer with the last message."""
    handler.reply(200, json.dumps(completion(handler.body["messages"][-1]["content"])).encode())


def slowly(handler: Handler) -> None:
    """Answer after a moment."""
    handler.owner.over.wait(0.1)
    says()(handler)


def hangs(handler: Handler) -> None:
    """Never answer."""
    handler.owner.over.wait(30)


def _trickling(header: str, value: str) -> Behavior:
    """Send a header, and then a byte now and then, for ever."""

    def behavior(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header(header, value)
        handler.end_headers()
        while not handler.owner.over.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    return behavior


trickles = _trickling("content-length", "1000000")
trickles_and_closes = _trickling("connection", "close")


def trickles_headers(handler: Handler) -> None:
    """Send a byte of a header now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-long: ")
    while not handler.owner.over.wait(0.05):
        handler.wfile.write(b"a")
        handler.wfile.flush()


def slams(handler: Handler) -> None:
    """Close the connection without a word."""
    handler.close_connection = True


def floods(status: int) -> Behavior:
    """Send more than anybody wants."""

    def behavior(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("connection", "close")
        handler.end_headers()
        for _ in range(64):
            handler.wfile.write(b" " * 2**20)
        handler.close_connection = True

    return behavior


def breaks_off(handler: Handler) -> None:
    """Close the connection in the middle of the answer."""
    whole = json.dumps(completion()).encode()
    handler.send_response(200)
    handler.send_header("content-length", str(len(whole)))
    handler.end_headers()
    handler.wfile.write(whole[: len(whole) // 2])
    handler.close_connection = True


def repeats_key(status: int = 500, field: str = "error") -> Behavior:
    """Say the Authorization header back."""

    def behavior(handler: Handler) -> None:
        error_body = {"message": f"bad header: {handler.headers['authorization']} of you"}
        handler.reply(status, json.dumps({field: error_body}).encode())

    return behavior
