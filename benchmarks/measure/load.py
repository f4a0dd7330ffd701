"""Puts clients that come and die upon each server, and counts what the living ones lose by it.

``python benchmarks/measure/load.py --out benchmarks/results/load.json [--clients 200] [--minutes 5]
[--dying 0.05] [--think 0.5] [--only search ...]``. Each client plays episodes (or searches, or calls
tools) one after another, with pauses. After an episode it goes on, or dies with the probability `--dying`:
it says no good-bye (no ``/close``, no ``DELETE``, a WebSocket or a request that breaks off), and another
comes in its place. A server may have a quarter more sessions than there are clients: those of the dead must
make room, so that no living client is refused (503), loses its session (404) or finds another fault.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parent))
from reliability import ALFWORLD, GENERATED, questions, server

from comap.benchmarks.record import circumstances, write_result

PROGRAM = "benchmarks/measure/load.py (not in the package)"
PACKAGES = ("gymnasium", "uvicorn", "starlette", "mcp", "openenv", "httpx")
STEPS = 10
"""Requests of a client between beginning and end: steps, searches, calls."""
_SAMPLES = 60  # of the server's memory, in the whole time
_MCP_HEADERS = {"accept": "application/json, text/event-stream"}


@dataclass
class Tally:
    """What all clients of a server did and met."""

    requests: int = 0
    episodes: int = 0
    deaths: int = 0
    seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


class Lost(Exception):
    """A living client met what it should not."""


@dataclass
class Client:
    """One client: its pauses, and its requests, which are timed."""

    base: str
    http: httpx.AsyncClient
    tally: Tally
    rng: random.Random
    options: argparse.Namespace

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / max(self.options.think, 1e-6)))

    async def timed(self, what: str, call: Awaitable[Any]) -> Any:
        """Await an answer, and note how long it took; raise `Lost` where there is none in 60 s."""
        start = time.monotonic()
        try:
            answer = await asyncio.wait_for(call, 60)
        except Exception as error:
            raise Lost(f"{what}: {type(error).__name__} {error!s:.60}") from error
        self.tally.requests += 1
        self.tally.seconds.append(time.monotonic() - start)
        return answer

    async def post(self, path: str, body: Any, headers: Any = None, kind: str = "") -> Any:
        """Return the response to a request; raise `Lost` where it is refused."""
        call = self.http.post(f"{self.base}{path}", json=body, headers=headers)
        response = await self.timed(kind or path, call)
        if response.status_code >= 400:
            raise Lost(f"{kind or path}: {response.status_code}")
        return response

    async def break_off(self) -> None:
        """Send half of a request, and hang up."""
        host, _, port = self.base.rpartition("/")[2].partition(":")
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 99\r\n\r\n{{".encode())
            await writer.drain()
            writer.transport.abort()


# Each plays one episode; `dies` says that it ends without a word.


async def plays_agentgym(client: Client, dies: bool) -> None:
    name = (await client.post("/create", {"env": ALFWORLD})).json()["id"]
    task = client.rng.randrange(100)
    answer = (await client.post("/reset", {"id": name, "data_idx": task})).json()
    for _ in range(STEPS):
        if answer["done"]:  # chance may solve a task
            break
        await client.pause()
        action = client.rng.choice(answer["available_actions"])
        answer = (await client.post("/step", {"id": name, "action": action})).json()
    if not dies:
        await client.post("/close", {"id": name})


async def plays_mcp(client: Client, dies: bool) -> None:
    """Speak MCP's protocol by hand: 200 of the official clients would measure themselves."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "load", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    response = await client.post("/mcp", message, _MCP_HEADERS, "initialize")
    headers = {**_MCP_HEADERS, "mcp-session-id": response.headers["mcp-session-id"]}
    message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await client.post("/mcp", message, headers, "initialized")

    task = client.rng.randrange(100)
    calls = [("reset", {"data_idx": task})]
    calls += [("act", {"action": action}) for action in ("look", "inventory") * (STEPS // 2)]
    for number, (tool, arguments) in enumerate(calls, 1):
        call = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
        answer = (await client.post("/mcp", message, headers, tool)).json()
        if "error" in answer or answer["result"].get("isError"):
            raise Lost(f"{tool}: {json.dumps(answer)[:80]}")
        await client.pause()
    if not dies:
        await client.timed("DELETE", client.http.delete(f"{client.base}/mcp", headers=headers))


async def plays_openenv(client: Client, dies: bool) -> None:
    """Speak OpenEnv's protocol by hand, too."""
    from websockets.asyncio.client import connect

    address = client.base.replace("http", "ws", 1) + "/ws"
    socket: Any = await client.timed("connect", _opened(connect(address, proxy=None)))

    async def said(kind: str, data: Any) -> Any:
        await socket.send(json.dumps({"type": kind, "data": data}))
        return json.loads(await socket.recv())

    async def asked(kind: str, data: Any) -> Any:
        answer = await client.timed(kind, said(kind, data))
        if answer["type"] == "error":
            raise Lost(f"{kind}: {answer['data']!s:.80}")
        return answer["data"]

    try:
        moment = await asked("reset", {"seed": client.rng.randrange(2**31)})
        for _ in range(STEPS):
            if moment["done"]:  # now and then random actions win
                break
            await client.pause()
            action = client.rng.choice(moment["observation"]["available_actions"])
            moment = await asked("step", {"action": action})
    finally:
        if dies:
            socket.transport.abort()
        await socket.close()


async def _opened(connecting: Any) -> Any:
    return await connecting


async def searches(client: Client, dies: bool) -> None:
    for _ in range(STEPS):
        query = client.rng.choice(questions())
        await client.post("/retrieve", {"queries": [query], "topk": 3})
        await client.pause()
    if dies:
        await client.break_off()


async def calls_tools(client: Client, dies: bool) -> None:
    for _ in range(STEPS):
        parameters = {"hotel_id": f"H-{client.rng.randrange(11, 40)}"}
        names = {"category": "Travel", "tool_name": "hotels", "api_name": "details"}
        body = {**names, "tool_input": parameters, "strip": "", "toolbench_key": ""}
        await client.post("/virtual", body)
        await client.pause()
    if dies:
        await client.break_off()


ENV_WORDS = ["env", "--env", ALFWORLD, *GENERATED]
SERVERS: dict[str, tuple[list[str], Callable[[Client, bool], Awaitable[None]]]] = {
    "search": (["search"], searches),
    "tools": (["tools"], calls_tools),
    "agentgym": ([*ENV_WORDS, "--style", "agentgym"], plays_agentgym),
    "openenv": ([*ENV_WORDS, "--style", "openenv"], plays_openenv),
    "mcp": ([*ENV_WORDS, "--style", "mcp"], plays_mcp),
}


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what all clients of a server met in so many minutes."""
    words, plays = SERVERS[name]
    if words[0] == "env":
        words = [*words, "--limit", str(options.clients + options.clients // 4)]
    with server(*words) as (base, process):
        return asyncio.run(_measured(plays, base, process, options))


async def _measured(
    plays: Callable[[Client, bool], Awaitable[None]],
    base: str,
    process: psutil.Process,
    options: argparse.Namespace,
) -> dict[str, Any]:
    tally = Tally()
    samples: list[dict[str, float]] = []
    start = time.monotonic()
    end = start + 60 * options.minutes
    limits = httpx.Limits(
        max_connections=options.clients, max_keepalive_connections=options.clients
    )

    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as http:

        async def lives(number: int) -> None:
            rng = random.Random(f"{options.seed} {number}")
            client = Client(base, http, tally, rng, options)
            await asyncio.sleep(rng.random() * min(options.clients / 50, 10))  # not all at once
            while time.monotonic() < end:
                dies = rng.random() < options.dying
                try:
                    await plays(client, dies)
                except Lost as fault:
                    tally.faults[str(fault)] += 1
                    await client.pause()
                tally.episodes += 1
                tally.deaths += dies

        living = [asyncio.ensure_future(lives(number)) for number in range(options.clients)]
        while time.monotonic() < end:
            samples.append(_sample(process, start))
            await asyncio.sleep(max(60 * options.minutes / _SAMPLES, 0.5))
        await asyncio.gather(*living)
    samples.append(_sample(process, start))

    seconds = sorted(tally.seconds) or [0.0]
    return {
        "requests": tally.requests,
        "episodes": tally.episodes,
        "deaths": tally.deaths,
        "a second": round(tally.requests / (time.monotonic() - start), 1),
        "seconds": {
            "p50": round(seconds[len(seconds) // 2], 4),
            "p99": round(seconds[int(0.99 * (len(seconds) - 1))], 4),
            "max": round(seconds[-1], 4),
        },
        "lost": tally.faults.total(),
        "losses": dict(tally.faults.most_common(20)),
        "MiB at most": max(sample["MiB"] for sample in samples),
        "samples": samples,
    }


def _sample(process: psutil.Process, start: float) -> dict[str, float]:
    return {
        "minutes": round((time.monotonic() - start) / 60, 2),
        "MiB": round(process.memory_info().rss / 2**20, 1),
        "files": process.num_fds(),
        "threads": process.num_threads(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of results")
    parser.add_argument("--only", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--clients", type=int, default=200, help="of each server, at once")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each server")
    parser.add_argument("--dying", type=float, default=0.05, help="share of the episodes")
    parser.add_argument("--think", type=float, default=0.5, help="mean seconds between requests")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    results: dict[str, Any] = {}
    for name in options.only:
        results[name] = measured(name, options)
        results[name]["load_average"] = round(os.getloadavg()[0], 1)
        brief = {key: part for key, part in results[name].items() if key != "samples"}
        print(name, json.dumps(brief), flush=True)

        # After each server, so that none is lost when a later one is interrupted.
        settings = {
            key: getattr(options, key) for key in ("clients", "minutes", "dying", "think", "seed")
        }
        record = {"benchmark": "load", "program": PROGRAM, **settings, "servers": results}
        write_result(options.out, record | circumstances(PACKAGES))
    return int(any(result["lost"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
