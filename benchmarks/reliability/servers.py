"""Each server of comap under many clients at once, with malformed requests among them.

Well-formed requests are answered rightly, malformed ones with a status from 400 to 499; the server
lives, holds no more memory than before, and says no secret. It listens to this machine alone unless
there is a token.

A further server is one more `Served` in `SERVED`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .findings import Findings
from .memory import growth_mb, resident_mb_of
from .server_clients import SERVED, Served, client, malformed_bodies, post

__all__ = ["CLIENTS", "MOST_GROWTH_MB", "run_servers"]

CLIENTS = 200
"""How many clients ask at the same time at scale 1; never fewer than ten."""

MOST_GROWTH_MB = 24.0
"""By how much a server may grow over the second half of its requests."""

_REQUESTS = 200
_LEAST_REQUESTS = 20
_START = 180.0
_SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", "COMAP_SERVE_TOKEN", "RAPIDAPI_KEY")


def run_servers(
    scale: float = 1.0, seed: int = 0, tell: Callable[[str], object] = lambda line: None
) -> dict[str, Any]:
    """Ask each server and return what was found.

    Args:
        scale: Which share of `CLIENTS`, and of the requests of each.
        seed: Of the requests.
        tell: Told a line for each server.
    """
    found, servers = Findings(), {}
    for served in SERVED:
        part = Findings()
        _besiege(part, served, scale, seed)
        _check_exposed(part, served)
        servers[served.name] = told = part.plain()
        found.take(told)
        tell(f"{served.name}: {told['counts']}, {told['lost']} lost")
    found.note("servers", servers)
    return found.plain()


def _besiege(found: Findings, served: Served, scale: float, seed: int) -> None:
    """Let many clients ask a server at the same time."""
    clients = max(10, round(CLIENTS * scale))
    requests = max(_LEAST_REQUESTS, round(_REQUESTS * scale))
    planted = {name: f"planted-{secrets.token_hex(12)}" for name in _SECRETS}
    with _running(served, planted) as (process, url, said):
        parts = [Findings() for _ in range(clients)]
        token = planted["COMAP_SERVE_TOKEN"]
        threads = [
            threading.Thread(
                target=client, args=(part, served, url, token, seed * 10_007 + number, requests)
            )
            for number, part in enumerate(parts)
        ]
        for thread in threads:
            thread.start()
        samples = _watch(process, threads)
        for part in parts:
            found.take(part.plain())
        found.count("clients", clients)
        _check_alive(found, served, url, token, process)
        growth = growth_mb(samples)
        right = growth is None or growth <= MOST_GROWTH_MB
        found.check(right, f"{served.name}: memory grew by {growth} MB over the second half")
        found.note("memory_growth_mb", growth)
    log = "".join(said)
    for name, secret in planted.items():
        found.count("secrets planted")
        found.check(secret not in log, f"{served.name} wrote {name} into its output")
    found.check("Traceback" not in log, f"{served.name} wrote a traceback: {log[-300:]}")


@contextmanager
def _running(
    served: Served, planted: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Start a server with secrets in its environment; give it, its address and what it prints."""
    command = [sys.executable, "-m", "comap", "serve", *served.words, "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | planted,
    )
    said: list[str] = []
    reader = threading.Thread(target=_gather, args=(process, said), daemon=True)
    reader.start()
    try:
        yield process, _address(process, said), said
    finally:
        process.terminate()
        process.wait()
        reader.join(5)
        if process.stdout is not None:
            process.stdout.close()


def _gather(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stdout is not None
    said.extend(iter(process.stdout.readline, ""))


def _address(process: subprocess.Popen[str], said: list[str]) -> str:
    """Return the address that a server prints when it listens."""
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        address = re.search(r"http://[^\s;,]+", "".join(said))
        if address:
            return address[0]
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {''.join(said)[-300:]}")


def _watch(
    process: subprocess.Popen[str], threads: list[threading.Thread]
) -> list[tuple[float, float]]:
    """Note what a server holds until all clients have ended."""
    samples = []
    while any(thread.is_alive() for thread in threads):
        held = resident_mb_of(process.pid)
        if held is not None:
            samples.append((time.monotonic(), held))
        time.sleep(0.2)
    return samples


def _check_alive(
    found: Findings, served: Served, url: str, token: str, process: subprocess.Popen[str]
) -> None:
    """Look whether a server still answers, and refuses who does not tell the token."""
    right = process.poll() is None
    found.check(right, f"{served.name} ended with {process.returncode}")
    body = json.dumps(served.asks(0)).encode()
    status, told = post(url, body, token)
    found.check(
        status == 200 and served.right(0, told), f"{served.name} no longer answers: {status}"
    )
    for wrong in (None, "planted-wrong", token[:-1], ""):
        found.count("requests without the token")
        status, _ = post(url, body, wrong)
        found.check(status == 401, f"{served.name} answered a wrong token with {status}")


def _check_exposed(found: Findings, served: Served) -> None:
    """Look whether a server refuses other machines where there is no token, in one line."""
    bare = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, "token")
        short.write_text("short")
        for words in ((), ("--token-file", str(short))):
            command = [sys.executable, "-m", "comap", "serve", *served.words, "--port", "0"]
            command += ["--host", "0.0.0.0", *words]
            done = subprocess.run(
                command, capture_output=True, text=True, env=bare, timeout=_START, check=False
            )
            found.count("starts for other machines without a token")
            right = done.returncode == 1 and "token" in done.stderr
            found.check(right and "Traceback" not in done.stderr, f"{served.name}: {done.stderr}")


def malformed_count() -> int:
    """Return how many ways of malformed requests there are.

    Example:
        >>> malformed_count() > 10
        True
    """
    return len(malformed_bodies())
