"""A server on this machine that misbehaves in every way we could think of, and its file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pooch
import pytest

from comap.envs import data
from comap.envs.data import fingerprint
from comap.envs.datasets import DataSet, Split
from kits.archives import LIMITS, zip_of

ITEMS = {f"{split}/task-{n}/trial": f"{split} {n}" for split in ("dev", "test") for n in range(3)}
FILES = {f"root/{name}/game.txt": text.encode() for name, text in ITEMS.items()}
FILES["root/dev/task-9-skipped/trial/game.txt"] = b"not counted"
FILES["root/blob.bin"] = hashlib.shake_128(b"blob").digest(200_000)


def digest_of(split: str) -> str:
    items = {
        name: hashlib.sha256(text.encode()).hexdigest()
        for name, text in ITEMS.items()
        if name.startswith(f"{split}/")
    }
    return fingerprint(items)


@dataclass
class Fault:
    """What is wrong with one answer."""

    status: int = 0
    cut: int | None = None
    hang: bool = False
    no_length: bool = False
    redirect: str = ""


@dataclass
class Site:
    """A server with one file, which counts the requests and breaks as it is told."""

    body: bytes = b""
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))

    def fail(self, *faults: dict[str, Any]) -> None:
        """Break the next answers in these ways, one after the other."""
        self.faults = [Fault(**fault) for fault in faults]

    pack = staticmethod(zip_of)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        site = self.site
        site.requests.append(self.path)
        fault = site.faults.pop(0) if site.faults else Fault()
        self.close_connection = True
        if fault.hang:
            site.released.wait(5)
        elif fault.status or fault.redirect:
            self.send_response(fault.status or 302)
            self.send_header("Location", fault.redirect)
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")
            self.end_headers()
        else:
            self.answer(fault)

    def answer(self, fault: Fault) -> None:
        body = self.site.body
        self.send_response(200)
        self.send_header("Connection", "close")
        if not fault.no_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: fault.cut])


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(body=zip_of(FILES))
    handler = type("BoundHandler", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield site
        site.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(data, "_CHUNK", 1000)
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda seconds: None))
    return tmp_path / "home"


@pytest.fixture
def toy(site: Site) -> DataSet:
    return DataSet(
        name="toy",
        title="Toy",
        url=f"{site.url}/toy.zip",
        limits=LIMITS,
        root="root",
        items="*/*/game.txt",
        skip=("skipped",),
        splits=(
            Split("dev", 3, digest_of("dev")),
            Split("test", 3, digest_of("test")),
            Split("more", 5, None, optional=True),
        ),
    )
