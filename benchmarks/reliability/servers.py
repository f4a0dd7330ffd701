"""Servers of `comap serve` under many clients at once, with malformed requests among them."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import gymnasium

from ...envs.stabletoolbench.apps import world_of
from ...envs.stabletoolbench.backends import VirtualTools
from .environments import Findings, held_mb, hostile

CLIENTS = 200
"""How many clients ask at the same time at scale 1, and about how many requests each of them makes."""

ENVIRONMENT = "comap/ALFWorld-v0"
OPTIONS: dict[str, Any] = {"source": "generated", "max_episode_steps": 12}

_OPTIONS = ("--env-option", "source=generated", "--env-option", "max_episode_steps=12")
_TIMEOUT = 300.0
_COMPARED = ("observation", "reward", "terminated", "truncated", "available_actions", "facts")
_SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", "COMAP_SERVE_TOKEN", "RAPIDAPI_KEY")


class Client:
    """Asks a server by HTTP, rightly and wrongly, and checks the answers."""

    path, length = "", 1  # where requests go, and about how many a conversation has

    def __init__(self, url: str, token: str | None, seed: int = 0):
        self.url, self.token = urlsplit(url), token
        self.rng, self.found = random.Random(seed), Findings()

    def ask(self, path: str, data: Any) -> tuple[int, Any]:
        """Send JSON data or bytes, and return the answer's status (0 without one) and its data."""
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        line = http.client.HTTPConnection(self.url.netloc, timeout=_TIMEOUT)
        try:
            line.request("POST", (self.url.path + path) or "/", body, headers)
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException):
            return 0, None
        finally:
            line.close()

    def converse(self) -> None:
        """Ask something well-formed, and check the answer."""
        asked = self.sample()
        status, answer = self.ask(self.path, asked)
        self.found.counts["well-formed requests"] += 1
        right = status == 200 and self.is_right(asked, answer)
        self.found.check(right, f"status {status} for {asked}: {answer!r:.200}")

    def sample(self) -> dict[str, Any]:
        raise NotImplementedError

    def is_right(self, asked: dict[str, Any], answer: Any) -> bool:
        raise NotImplementedError

    def check_refused(self, what: str, status: int, *also: int) -> None:
        """Count something wrong, and a loss unless it was refused."""
        self.found.counts[what] += 1
        self.found.reported[f"status {status}"] += 1
        self.found.check(400 <= status < 500 or status in also, f"status {status} for {what}")

    def run(self, rounds: int) -> None:
        """Converse, and ask wrongly in between."""
        kinds = (self.converse, self._send_malformed, self._send_hostile)
        for ask in self.rng.choices(kinds, (70, 20, 10), k=rounds):
            try:
                ask()
            except Exception as error:  # an answer that nobody can read
                self.found.check(False, f"{ask.__name__}: {type(error).__name__}: {error}")

    def _send_malformed(self) -> None:
        text = ("{" + hostile(self.rng)).encode("utf-8", "surrogatepass")
        body = self.rng.choice((b"[" * 50_000, b"\xff\xfe\x00", text, b" " * (2**20 + 1)))
        self.check_refused("malformed bodies", self.ask(self.path, body)[0])

    def _send_hostile(self) -> None:
        """Send a hostile value in a request; only a fault of the server's own is wrong."""
        asked = self.sample()
        values: tuple[Any, ...] = (hostile(self.rng)[:5000], None, -1, 1e300, [], {}, [None], True)
        asked[self.rng.choice(sorted(asked))] = self.rng.choice(values)
        self.check_refused("hostile requests", self.ask(self.path, asked)[0], 200, 503)


class _SearchClient(Client):
    def sample(self) -> dict[str, Any]:
        towns = [f"a town number {self.rng.randrange(7)}", "the river"]
        return {"queries": towns, "topk": self.rng.randint(1, 3)}

    def is_right(self, asked: dict[str, Any], answer: Any) -> bool:
        return [len(rows) for rows in answer["result"]] == [asked["topk"]] * 2


class _ToolsClient(Client):
    def sample(self) -> dict[str, Any]:
        books = sorted(book["title"] for book in world_of(0).tables["book"].values())
        word = max(self.rng.choice(books).split(), key=len)
        library = {"category": "Media", "tool_name": "library", "api_name": "search"}
        return {**library, "tool_input": {"word": word}}

    def is_right(self, asked: dict[str, Any], answer: Any) -> bool:
        right = json.loads(json.dumps(VirtualTools([], world=0).answer(asked)))
        return bool(answer == right)


@cache
def script(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Return an episode played here: actions, hostile ones among them, and what a server must answer."""
    env: Any = gymnasium.make(ENVIRONMENT, **OPTIONS)
    rng, action, found = random.Random(seed), "", list[tuple[str, dict[str, Any]]]()
    observation, info = env.reset(seed=seed)
    answer: list[Any] = [observation, 0.0, False, False]
    while True:
        values = (*answer, list(info["admissible_actions"]), info["facts"].to_text())
        found.append((action, dict(zip(_COMPARED, values, strict=True))))
        if answer[2] or answer[3]:
            return found
        action = rng.choice(info["admissible_actions"])
        if rng.random() < 0.3:  # without halves of characters, which JSON alone can send
            action = hostile(rng)[:5000].encode("utf-8", "replace").decode()
        *answer, info = env.step(action)


class _EnvironmentClient(Client):
    """Plays whole episodes, in AgentGym's style."""

    path, length = "/step", 16

    def sample(self) -> dict[str, Any]:
        return {"id": 1, "action": "look"}

    def converse(self) -> None:
        end = time.monotonic() + _TIMEOUT
        while (opened := self.ask("/create", {}))[0] == 503 and time.monotonic() < end:
            time.sleep(self.rng.uniform(0.05, 0.5))  # all are open
        status, number = opened
        if not self.found.check(status == 200, f"status {status} for an environment"):
            return
        for step, (action, right) in enumerate(script(seed := self.rng.randrange(8))):
            if self.rng.random() < 0.2:
                wrong = {**number, "action": 3, "task": "../../etc/passwd"}
                path = self.rng.choice(("/step", "/reset", "/nonsense"))
                self.check_refused("wrong requests", self.ask(path, wrong)[0])
            path, asked = ("/step", {"action": action}) if step else ("/reset", {"seed": seed})
            status, answer = self.ask(path, {**number, **asked})
            self.found.counts["well-formed requests"] += 1
            same = status == 200 and {name: answer.get(name) for name in right} == right
            if not self.found.check(same, f"status {status} for step {step}: {answer!r:.200}"):
                break
        else:
            late = self.ask("/step", {**number, "action": "look"})[0]
            self.check_refused("steps after the end", late)
            self.found.counts["episodes played"] += 1
        self.ask("/close", number)


SERVERS: Mapping[str, tuple[type[Client], tuple[str, ...]]] = {
    "search": (_SearchClient, ("search",)),
    "tools": (_ToolsClient, ("tools",)),
    "env": (_EnvironmentClient, ("env", "--env", ENVIRONMENT, *_OPTIONS, "--limit", "150")),
}
"""The client of each server, and its words after ``comap serve``."""


def run_servers(scale: float, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Let many clients ask each server, and return what was found."""
    found, servers = Findings(), {}
    if find_spec("uvicorn") is None:
        found.figures["left out"] = "not installed: uvicorn"
        progress("servers: left out, uvicorn not installed")
        return found.plain()
    for name, (client, words) in SERVERS.items():
        servers[name] = part = _besiege(client, words, max(10, round(CLIENTS * scale)), seed)
        found.add(part)
        progress(f"{name}: {part['counts']}, {part['lost']} lost")
    found.figures["servers"] = servers
    return found.plain()


def _besiege(kind: type[Client], words: tuple[str, ...], number: int, seed: int) -> dict[str, Any]:
    """Let so many clients ask a server at the same time, and check what it answers and prints."""
    found, samples, printed = Findings(), list[float](), list[str]()
    planted = {name: f"planted-{secrets.token_hex(12)}" for name in _SECRETS}
    token = planted["COMAP_SERVE_TOKEN"]
    with _running(words, planted, printed) as (process, url):
        clients = [kind(url, token, seed * 10_007 + n) for n in range(number)]
        rounds = max(6, max(20, number) // kind.length)
        threads = [threading.Thread(target=client.run, args=(rounds,)) for client in clients]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            samples += held_mb(process.pid)
            time.sleep(0.2)
        clients.append(kind(url, token))
        clients[-1].converse()  # it still answers
        for client in clients:
            found.add(client.found.plain())
        check_token(found, kind, url, token)
        found.check(process.poll() is None, f"it ended with {process.returncode}")
    found.counts["clients"] += number
    found.check_memory(samples, words[0])
    log = "".join(printed)
    found.check("Traceback" not in log, f"it printed a traceback: {log[-300:]}")
    found.check("planted-" not in log, "it printed a secret of its environment")
    return found.plain()


def check_token(found: Findings, kind: type[Client], url: str, token: str) -> None:
    for wrong in (None, "planted-wrong", token[:-1], ""):
        status = kind(url, wrong).ask(kind.path, {})[0]
        found.counts["requests without the token"] += 1
        found.check(status == 401, f"status {status} for the wrong token")


@contextmanager
def _running(
    words: tuple[str, ...], planted: Mapping[str, str], printed: list[str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server with secrets in its environment, and collect what it prints."""
    command = [sys.executable, "-m", "comap", "serve", *words, "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes, env={**os.environ, **planted}) as process:
        reader = threading.Thread(target=lambda: printed.extend(process.stdout or ()), daemon=True)
        reader.start()
        try:
            while not (address := re.search(r"http://[^\s;,]+", "".join(printed))):
                if process.poll() is not None:
                    raise RuntimeError(f"the server did not start: {''.join(printed)[-300:]}")
                time.sleep(0.05)
            yield process, address[0]
        finally:
            process.terminate()
            reader.join()
