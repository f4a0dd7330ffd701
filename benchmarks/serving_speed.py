"""`comap bench serving`: what a step costs through each of comap's servers of environments.

Real clients play the expert's episodes one step after another, each server in a process of its own, all
of them in turns; their observations are compared with those of the environment without a server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium

from ..errors import EngineError, OptionError
from ..integrations.agentgym_client import RemoteEnvironment
from .record import circumstances, write_result
from .tables import Table
from .terminal import print_table

__all__ = ["WAYS", "Episode", "Played", "Way", "add_parser", "measure_serving", "serving_table"]

_ENV = "comap/ALFWorld-v0"
_WORDS = ("--env", _ENV, "--env-option", "source=generated", "--port", "0")
_PACKAGES = ("gymnasium", "openenv", "mcp", "uvicorn")


class Episode(NamedTuple):
    """What is played: the task at a place, and the actions."""

    place: int
    actions: tuple[str, ...]


class Played(NamedTuple):
    """What a client saw: each step's seconds, and all observations."""

    seconds: list[float]
    texts: list[str]


class Way(NamedTuple):
    """A way to an environment.

    Attributes:
        style: The server's; None where there is none.
        needs: The modules that it needs.
        play: Plays episodes through a server at an address.
    """

    style: str | None
    needs: tuple[str, ...]
    play: Callable[[str, Sequence[Episode]], Played]


class _Client(Protocol):
    def reset(self, place: int) -> str: ...

    def step(self, action: str) -> str: ...


def _play(client: _Client, episodes: Sequence[Episode]) -> Played:
    played = Played([], [])
    for episode in episodes:
        played.texts.append(client.reset(episode.place))
        for action in episode.actions:
            begun = time.perf_counter()
            text = client.step(action)
            played.seconds.append(time.perf_counter() - begun)
            played.texts.append(text)
    return played


class _Here:
    """The environment itself."""

    def __init__(self) -> None:
        self.env = gymnasium.make(_ENV, source="generated")

    def reset(self, place: int) -> str:
        tasks = self.env.get_wrapper_attr("tasks").ids
        return str(self.env.reset(options={"task": tasks[place]})[0])

    def step(self, action: str) -> str:
        return str(self.env.step(action)[0])


class _AgentGym:
    """A client in AgentGym's style, on one connection or on one for each request."""

    def __init__(self, remote: RemoteEnvironment, anew: bool):
        self._remote, self._anew = remote, anew

    def reset(self, place: int) -> str:
        return str(self._remote.reset(data_idx=place)["observation"])

    def step(self, action: str) -> str:
        if self._anew:
            self._remote.hang_up()
        return str(self._remote.step(action)["observation"])


class _OpenEnv:
    """OpenEnv's own client, by WebSocket."""

    def __init__(self, env: Any):
        self._env = env

    def reset(self, place: int) -> str:
        return str(self._env.reset(index=place).observation["observation"])

    def step(self, action: str) -> str:
        return str(self._env.step({"action": action}).observation["observation"])


def _agentgym(url: str, episodes: Sequence[Episode], anew: bool) -> Played:
    with RemoteEnvironment(url) as remote:
        return _play(_AgentGym(remote, anew), episodes)


def _openenv(url: str, episodes: Sequence[Episode]) -> Played:
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as env:
        return _play(_OpenEnv(env), episodes)


def _mcp(url: str, episodes: Sequence[Episode]) -> Played:
    return asyncio.run(_talk(url, episodes))


async def _talk(url: str, episodes: Sequence[Episode]) -> Played:
    """Play with the official client of MCP, which has no other than an asynchronous one."""
    import httpx
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    played = Played([], [])
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
        streamable_http_client(url, http_client=client) as (reading, writing, _),
        mcp.ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        for episode in episodes:
            told: Any = await session.call_tool("reset", {"data_idx": episode.place})
            played.texts.append(told.content[0].text)
            for action in episode.actions:
                begun = time.perf_counter()
                told = await session.call_tool("act", {"action": action})
                played.seconds.append(time.perf_counter() - begun)
                played.texts.append(told.content[0].text)
    return played


WAYS: Mapping[str, Way] = {
    "no server": Way(None, (), lambda url, episodes: _play(_Here(), episodes)),
    "AgentGym's style": Way("agentgym", (), partial(_agentgym, anew=False)),
    "the same, a connection a request": Way("agentgym", (), partial(_agentgym, anew=True)),
    "OpenEnv": Way("openenv", ("openenv", "uvicorn", "websockets"), _openenv),
    "MCP": Way("mcp", ("mcp", "uvicorn"), _mcp),
}
"""What is measured; the first tells what is right."""


def measure_serving(
    episodes: int = 40, turns: int = 5, tell: Callable[[str], object] = lambda line: None
) -> dict[str, Any]:
    """Play the same episodes each way, in turns, and return what was measured.

    Args:
        episodes: How many episodes of the expert are played in each turn.
        turns: How often each way is played.
        tell: Told a line for each turn.

    Returns:
        For each way the steps, ``ms`` of a step as ``median``, ``p95``, and ``turns`` (each one's
        median), ``server_cpu_ms`` (of the server's process, resets included, for each step) and
        ``same``, whether the observations were those without a server. A way whose extra is not
        installed is left out.

    Raises:
        OptionError: There is nothing to play.
        EngineError: A server does not start.
    """
    if episodes < 1 or turns < 1:
        raise OptionError(f"expected episodes and turns of at least 1, found {episodes}, {turns}")
    plan = _plan(episodes)
    ways = {
        name: way
        for name, way in WAYS.items()
        if not any(find_spec(one) is None for one in way.needs)
    }
    played: dict[str, list[Played]] = {name: [] for name in ways}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name, way in ways.items():
            with _served(way.style) as (url, process):
                way.play(url, plan)  # pays for imports, and for texts that were not seen before
                before = _cpu_seconds(process)
                played[name].append(way.play(url, plan))
                after = _cpu_seconds(process)
            if before is not None and after is not None:
                spent[name].append(after - before)
            tell(f"{turn + 1}/{turns} {name}: {_median_ms(played[name][-1]):.3f} ms a step")
    right = next(iter(played.values()))[0].texts
    return {
        "env": _ENV,
        "episodes": episodes,
        "ways": {name: _told(played[name], spent[name], right) for name in ways},
    }


def serving_table(found: Mapping[str, Any]) -> Table:
    """Return what was measured as a table.

    Args:
        found: What `measure_serving` returned.
    """
    rows = []
    for name, way in found["ways"].items():
        spent = way["server_cpu_ms"]
        shown = "—" if spent is None else f"{spent:.2f}"
        rows.append(
            (name, f"{way['ms']['median']:.2f}", f"{way['ms']['p95']:.2f}", shown, way["same"])
        )
    heads = ("way", "ms a step", "95 % of steps below", "CPU ms of the server", "same texts")
    note = f"{found['env']}, {found['episodes']} episodes of the expert in each turn; medians."
    return Table("Steps through servers", heads, tuple(rows), note)


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench serving``."""
    parser = kinds.add_parser(
        "serving", help="what a step costs through comap serve env, each style"
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add("--episodes", type=int, default=40, metavar="N", help="episodes in a turn (default: 40)")
    add("--turns", type=int, default=5, metavar="N", help="turns (default: 5)")
    add("--out", metavar="FILE", help="write the result to this file, as JSON")


def _run(options: argparse.Namespace) -> int:
    found = measure_serving(
        options.episodes, options.turns, lambda line: print(line, file=sys.stderr)
    )
    print_table(serving_table(found))
    if options.out is not None:
        load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
        record = {"benchmark": "serving", **found, "load_average": load}
        write_result(Path(options.out), record | circumstances(_PACKAGES))
    return 0 if all(way["same"] for way in found["ways"].values()) else 1


def _plan(episodes: int) -> list[Episode]:
    """Return the expert's episodes of a split's first tasks."""
    here = _Here()
    plan = []
    for place in range(episodes):
        here.reset(place)
        actions, done = [], False
        while not done:
            actions.append(str(here.env.get_wrapper_attr("expert_action")()))
            _, _, terminated, truncated, _ = here.env.step(actions[-1])
            done = terminated or truncated
        plan.append(Episode(place, tuple(actions)))
    here.env.close()
    return plan


def _told(played: Sequence[Played], spent: Sequence[float], right: Sequence[str]) -> dict[str, Any]:
    seconds = sorted(second for turn in played for second in turn.seconds)
    steps = len(seconds)
    return {
        "steps": steps,
        "ms": {
            "median": round(1000 * statistics.median(seconds), 4),
            "p95": round(1000 * seconds[int(0.95 * (steps - 1))], 4),
            "turns": [round(_median_ms(turn), 4) for turn in played],
        },
        "server_cpu_ms": round(1000 * sum(spent) / steps, 4) if spent else None,
        "same": all(turn.texts == list(right) for turn in played),
    }


def _median_ms(played: Played) -> float:
    return 1000 * statistics.median(played.seconds)


@contextmanager
def _served(style: str | None) -> Iterator[tuple[str, int | None]]:
    """Start a server in a process of its own; give its address and its process."""
    if style is None:
        yield "", None
        return
    command = [sys.executable, "-m", "comap", "serve", "env", *_WORDS, "--style", style]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        if len(words) < 2 or not words[1].startswith("http://"):
            raise EngineError(f"expected the server of style {style} to start, found that it ended")
        yield words[1], process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _cpu_seconds(process: int | None) -> float | None:
    """Return the processor time of another process; None where it cannot be found out."""
    try:
        told = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    user, system = told.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / float(os.sysconf("SC_CLK_TCK"))
