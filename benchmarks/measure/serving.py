"""What a step takes through AgentGym's, OpenEnv's and MCP's servers, beside none.

``python benchmarks/measure/serving.py --out FILE [--episodes 40] [--turns 5]``. The expert's actions of
generated ALFWorld tasks, by each protocol's own client (AgentGym's is plain HTTP: with one connection, and
with one for each request). A server is a process of its own, started anew in each turn, and the rows take
turns. Milliseconds of the clock are the client's; those of the processor are the server's, with its resets.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import psutil
from reliability import ALFWORLD, ENV_WORDS, posted, server

from comap.benchmarks.record import circumstances, spread, write_result

PROGRAM = "benchmarks/measure/serving.py (not in the package)"


class Played(NamedTuple):
    """The observations of episodes, and the milliseconds of each step."""

    texts: list[str]
    milliseconds: list[float]


Episodes = list[list[str]]
"""The expert's actions in the split's first tasks, in order."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    episodes = expert_episodes(options.episodes)
    result: dict[str, Any] = {"benchmark": "serving", "program": PROGRAM, "env": ALFWORLD}
    result |= {"units": "milliseconds of a step", "episodes": len(episodes)}
    result |= {"steps": sum(map(len, episodes)), "turns": options.turns}
    result |= circumstances(("gymnasium", "openenv", "mcp", "uvicorn"))
    all_played: dict[str, list[Played]] = {name: [] for name in WAYS}
    server_milliseconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(1, options.turns + 1):
        for name, (style, play) in WAYS.items():
            if style is None:
                played = [play("", episodes), play("", episodes)]
            else:
                with server(*ENV_WORDS, "--style", style) as (base, process):
                    # The first time pays for imports, and for texts that nobody has seen before.
                    played = [play(base, episodes)]
                    before = cpu_milliseconds(process)
                    played.append(play(base, episodes))
                    server_milliseconds[name].append(cpu_milliseconds(process) - before)
            all_played[name].append(played[1])
            print(turn, name, round(statistics.median(played[1].milliseconds), 3), "ms", flush=True)

    texts_without = all_played["no server"][0].texts
    result |= {"load_average": round(os.getloadavg()[0], 1), "measured": {}}
    for name, turns in all_played.items():
        milliseconds = [one for turn in turns for one in turn.milliseconds]
        row: dict[str, Any] = {"median": statistics.median(milliseconds)}
        row["percentile_95"] = statistics.quantiles(milliseconds, n=20)[-1]
        row["medians_of_turns"] = spread([statistics.median(turn.milliseconds) for turn in turns])
        row["server_cpu"] = None
        if server_milliseconds[name]:
            row["server_cpu"] = sum(server_milliseconds[name]) / len(milliseconds)
        row["same_observations"] = all(turn.texts == texts_without for turn in turns)
        result["measured"][name] = row
    write_result(options.out, result)
    print(f"written: {options.out}")


def expert_episodes(count: int) -> Episodes:
    env: Any = gymnasium.make(ALFWORLD, source="generated").unwrapped
    episodes: Episodes = []
    for task in env.tasks.ids[:count]:
        env.reset(options={"task": task})
        episodes.append([])
        terminated = False
        while not terminated:
            episodes[-1].append(env.expert_action())
            terminated = env.step(episodes[-1][-1])[2]
    return episodes


def cpu_milliseconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return 1e3 * (times.user + times.system)


def played_by(
    reset: Callable[[int], str], step: Callable[[str], str], episodes: Episodes
) -> Played:
    """Play episodes by a client's two calls, which return observations."""
    played = Played([], [])
    for number, actions in enumerate(episodes):
        played.texts.append(reset(number))
        for action in actions:
            start = time.perf_counter()
            text = step(action)
            played.milliseconds.append(1e3 * (time.perf_counter() - start))
            played.texts.append(text)
    return played


def no_server(_: str, episodes: Episodes) -> Played:
    env = gymnasium.make(ALFWORLD, source="generated")
    tasks = env.get_wrapper_attr("tasks").ids
    return played_by(
        lambda number: env.reset(options={"task": tasks[number]})[0],
        lambda action: env.step(action)[0],
        episodes,
    )


def agentgym(base: str, episodes: Episodes) -> Played:
    connection = http.client.HTTPConnection(base.removeprefix("http://"))

    def post(path: str, **body: Any) -> dict[str, Any]:
        words = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), words)
        return dict(json.load(connection.getresponse()))

    return agentgym_by(post, episodes)


def agentgym_anew(base: str, episodes: Episodes) -> Played:
    return agentgym_by(lambda path, **body: posted(base + path, body), episodes)


def agentgym_by(post: Callable[..., Mapping[str, Any]], episodes: Episodes) -> Played:
    name = post("/create", env=ALFWORLD)["id"]
    return played_by(
        lambda number: post("/reset", id=name, data_idx=number)["observation"],
        lambda action: post("/step", id=name, action=action)["observation"],
        episodes,
    )


def openenv(base: str, episodes: Episodes) -> Played:
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(base_url=base).sync() as env:
        return played_by(
            lambda number: env.reset(index=number).observation["observation"],
            lambda action: env.step({"action": action}).observation["observation"],
            episodes,
        )


def mcp(base: str, episodes: Episodes) -> Played:
    return asyncio.run(mcp_played(base, episodes))


async def mcp_played(base: str, episodes: Episodes) -> Played:
    """Play by MCP's own client, which is asynchronous."""
    import httpx
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    played = Played([], [])
    async with (
        httpx.AsyncClient(trust_env=False, timeout=120) as client,
        streamable_http_client(f"{base}/mcp", http_client=client) as (reading, writing, _),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        for number, actions in enumerate(episodes):
            reply: Any = await session.call_tool("reset", {"data_idx": number})
            played.texts.append(reply.content[0].text)
            for action in actions:
                start = time.perf_counter()
                reply = await session.call_tool("act", {"action": action})
                played.milliseconds.append(1e3 * (time.perf_counter() - start))
                played.texts.append(reply.content[0].text)
    return played


WAYS: Mapping[str, tuple[str | None, Callable[[str, Episodes], Played]]] = {
    "no server": (None, no_server),
    "AgentGym": ("agentgym", agentgym),
    "AgentGym, a connection a request": ("agentgym", agentgym_anew),
    "OpenEnv": ("openenv", openenv),
    "MCP": ("mcp", mcp),
}
"""By name: the style of the server, and who plays."""

if __name__ == "__main__":
    main()
