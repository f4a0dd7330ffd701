"""Each server of comap under many clients at once, with malformed requests among them.

Well-formed requests are answered rightly, malformed ones with a status from 400 to 499; the server
lives, holds no more memory than before, and says no secret. It listens to this machine alone unless
there is a token. Servers with sessions have no more of them than they were told, tell so, and close
those that nobody uses.

A further server is one more `Served` in `SERVED`.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .all_served import SERVED
from .findings import Findings
from .memory import growth_mb, resident_mb_of
from .served import Line, Served, exchange
from .server_clients import client, malformed_bodies

__all__ = ["CLIENTS", "MOST_GROWTH_MB", "run_servers"]

CLIENTS = 200
"""How many clients ask at the same time at scale 1; never fewer than ten."""

MOST_GROWTH_MB = 24.0
"""By how much a server may grow over the second half of its requests."""

_REQUESTS = 200
_LEAST_REQUESTS = 20
_LEAST_ROUNDS = 6
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
        missing = [name for name in served.needs if find_spec(name) is None]
        if missing:
            found.note(f"{served.name} left out", f"not installed: {', '.join(missing)}")
            tell(f"{served.name}: left out, {', '.join(missing)} not installed")
            continue
        begun = time.monotonic()
        part = Findings()
        _besiege(part, served, scale, seed)
        _check_exposed(part, served)
        part.note("seconds_taken", round(time.monotonic() - begun, 1))
        servers[served.name] = told = part.plain()
        found.take(told)
        tell(f"{served.name}: {told['counts']}, {told['lost']} lost")
    found.note("servers", servers)
    return found.plain()


def _besiege(found: Findings, served: Served, scale: float, seed: int) -> None:
    """Let many clients ask a server at the same time."""
    clients = max(10, round(CLIENTS * scale))
    requests = max(_LEAST_REQUESTS, round(_REQUESTS * scale))
    rounds = max(_LEAST_ROUNDS, requests // served.length)
    planted = {name: f"planted-{secrets.token_hex(12)}" for name in _SECRETS}
    with _running(served, planted) as (process, url, said):
        token = planted["COMAP_SERVE_TOKEN"]
        served.talk(_line(served, url, token, seed), 0)
        lines = [_line(served, url, token, seed * 10_007 + number) for number in range(clients)]
        threads = [threading.Thread(target=client, args=(line, rounds)) for line in lines]
        for thread in threads:
            thread.start()
        samples = _watch(process, threads)
        for line in lines:
            found.take(line.found.plain())
        found.count("clients", clients)
        growth = growth_mb(samples)
        right = growth is None or growth <= MOST_GROWTH_MB
        found.check(right, f"{served.name}: memory grew by {growth} MB over the second half")
        found.note("memory_growth_mb", growth)
        found.note("memory_most_mb", round(max((held for _, held in samples), default=0.0), 1))
        _check_sessions(found, served, url, token)
        _check_alive(found, served, url, token, process)
    log = "".join(said)
    for name, secret in planted.items():
        found.count("secrets planted")
        found.check(secret not in log, f"{served.name} wrote {name} into its output")
    found.check("Traceback" not in log, f"{served.name} wrote a traceback: {log[-300:]}")


def _line(served: Served, url: str, token: str, seed: int) -> Line:
    return Line(served, url, token, random.Random(seed))


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


def _check_sessions(found: Findings, served: Served, url: str, token: str) -> None:
    """Look whether a server has no more sessions than it may, and closes idle ones."""
    if served.overfill is None:
        return
    line = _line(served, url, token, 0)
    served.overfill(line)
    told = line.found.plain()
    found.take(told)
    found.note("room_again_after_seconds", told.get("room_again_after_seconds"))


def _check_alive(
    found: Findings, served: Served, url: str, token: str, process: subprocess.Popen[str]
) -> None:
    """Look whether a server still answers, and refuses who does not tell the token."""
    right = process.poll() is None
    found.check(right, f"{served.name} ended with {process.returncode}")
    line = _line(served, url, token, 1)
    served.talk(line, 0)
    found.take(line.found.plain())

    def post(place: str, told: str | None) -> int:
        return exchange(
            f"{place}{served.samples[0][0]}", b"{}", told, headers=served.headers
        ).status

    for wrong in (None, "planted-wrong", token[:-1], ""):
        for knock in (post, *served.knock):
            found.count("requests without the token")
            status = knock(url, wrong)
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
