"""A server on this machine that answers ``/virtual`` as badly as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Notes the request's body and lets the next behaviour answer."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.bodies.append(json.loads(body))
        number = min(len(self.server.bodies), len(self.server.behaviours)) - 1
        try:
            self.server.behaviours[number](self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, behaviours: tuple[Behaviour, ...]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours, self.bodies, self.over = behaviours, [], threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/virtual"


@contextmanager
def serving(*behaviours: Behaviour) -> Iterator[Server]:
    """Serve behaviours in turn, the last one again and again."""
    server = Server(behaviours)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


def says(response: object, error: str = "") -> Behaviour:
    """Answer rightly."""
    body = json.dumps({"error": error, "response": response}).encode()
    return lambda handler: handler.reply(200, body)


def sends(body: bytes, status: int = 200, **headers: str) -> Behaviour:
    """Answer with any bytes."""
    return lambda handler: handler.reply(status, body, **headers)


def hangs(handler: Handler) -> None:
    """Never answer."""
    handler.server.over.wait(30)


def trickles(handler: Handler) -> None:
    """Send a byte now and then, for ever."""
    handler.send_response(200)
    handler.send_header("content-length", "1000000")
    handler.end_headers()
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b" ")


def trickles_headers(handler: Handler) -> None:
    """Send a byte of a header now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-long: ")
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b"a")


def breaks_off(handler: Handler) -> None:
    """Send half of what is promised."""
    handler.send_response(200)
    handler.send_header("content-length", "200")
    handler.end_headers()
    handler.wfile.write(b'{"error": "", "resp')
    handler.close_connection = True


def floods(handler: Handler) -> None:
    """Send 50 MB without saying how much."""
    handler.send_response(200)
    handler.send_header("connection", "close")
    handler.end_headers()
    for _ in range(50):
        handler.wfile.write(b" " * 2**20)
    handler.close_connection = True


def slams(handler: Handler) -> None:
    """Close without a word."""
    handler.connection.close()
    handler.close_connection = True
