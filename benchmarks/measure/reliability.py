"""Breaks what can break, at scale, and counts what is lost by it beyond the fault itself.

``python benchmarks/measure/reliability.py --out benchmarks/results/faults.json [--only servers runs ...]
[--clients 200] [--kills 20]``. Each part (`PARTS`) says in its docstring what it breaks and what must hold.
The suite tests the same faults once each; this program repeats them, at random moments.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import psutil

import comap  # noqa: F401  (registers the environments)
from comap.agents import ExpertAgent, run_to
from comap.agents.run import TRAJECTORIES, Run
from comap.benchmarks.record import circumstances, write_result

PROGRAM = "benchmarks/measure/reliability.py (not in the package)"
PACKAGES = ("gymnasium", "uvicorn", "starlette", "mcp", "openenv", "ray", "torch", "trl")
COMAP = [sys.executable, "-m", "comap"]
GENERATED = ["--env-option", "source=generated"]
START_SECONDS = 60.0
REQUESTS = 6  # of each client of a server


@dataclass
class Findings:
    """What a part did, and descriptions of what was lost."""

    counts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def check(self, holds: bool, description: str) -> None:
        if not holds:
            self.lost.append(description[:300])


# -- servers under many clients --------------------------------------------------------------------


@contextlib.contextmanager
def server(*words: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run ``comap serve`` on a free port; yield its address and its process."""
    command = [*COMAP, "serve", *words, "--port", "0", "--no-token"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        address = None
        while address is None:
            line = process.stdout.readline()
            assert line, f"{command} ended with {process.wait()}"
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
        yield address[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def posted(url: str, body: Any) -> Any:
    """Return the JSON that a server answers; its error where it refuses."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as refusal:
        return json.load(refusal)


def plays_agentgym(base: str, number: int) -> int:
    """Play steps through AgentGym's protocol; return how many requests were answered rightly."""
    name = posted(f"{base}/create", {})["id"]
    answered = 1
    reply = posted(f"{base}/reset", {"id": name, "data_idx": number})
    answered += "observation" in reply
    for _ in range(REQUESTS - 3):
        reply = posted(f"{base}/step", {"id": name, "action": reply["available_actions"][0]})
        answered += "observation" in reply
    return answered + bool(posted(f"{base}/close", {"id": name})["closed"])


def searches(base: str, number: int) -> int:
    answered = 0
    for request in range(REQUESTS):
        queries = [f"river {number}", f"town {request}"]
        reply = posted(f"{base}/retrieve", {"queries": queries, "topk": 3})
        answered += len(reply.get("result", ())) == len(queries)
    return answered


def calls_tools(base: str, number: int) -> int:
    """Call functions that there are not: each has an answer that says so."""
    answered = 0
    for request in range(REQUESTS):
        call = {"category": "Data", "tool_name": f"tool {number}", "api_name": f"api {request}"}
        body = {**call, "tool_input": "{}", "strip": "truncate", "toolbench_key": ""}
        answered += set(posted(f"{base}/virtual", body)) == {"error", "response"}
    return answered


async def plays_openenv(base: str, number: int) -> int:
    from openenv.core.generic_client import GenericEnvClient

    async with GenericEnvClient(base_url=base) as env:
        reply = await env.reset(seed=number)
        answered = 2
        for _ in range(REQUESTS - 2):
            action = reply.observation["available_actions"][0]
            reply = await env.step({"action": action})
            answered += bool(reply.observation["observation"])
    return answered


async def plays_mcp(base: str, number: int) -> int:
    import httpx
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx.AsyncClient(trust_env=False, timeout=120) as client,
        streamable_http_client(f"{base}/mcp", http_client=client) as (reading, writing, _),
        mcp.ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        reply = await session.call_tool("reset", {"data_idx": number})
        answered = 1 + (not reply.isError)
        for _ in range(REQUESTS - 2):
            reply = await session.call_tool("act", {"action": "look"})
            answered += not reply.isError
    return answered


ENV_WORDS = ["env", "--env", "comap/ALFWorld-v0", *GENERATED, "--limit", "1024"]
SERVERS: dict[str, tuple[list[str], Callable[[str, int], int | Awaitable[int]]]] = {
    "environments, AgentGym": ([*ENV_WORDS, "--style", "agentgym"], plays_agentgym),
    "environments, OpenEnv": ([*ENV_WORDS, "--style", "openenv"], plays_openenv),
    "environments, MCP": ([*ENV_WORDS, "--style", "mcp"], plays_mcp),
    "search": (["search"], searches),
    "tools": (["tools"], calls_tools),
}


def servers(options: argparse.Namespace) -> Findings:
    """All servers under many clients at once: every request has its right answer, and the server stays.

    Beside them a client sends what is no request, and hangs up in the middle of others.
    """
    findings = Findings()
    for name, (words, client) in SERVERS.items():
        with server(*words) as (base, process):
            before = process.memory_info().rss
            began = time.monotonic()
            answers = asyncio.run(_all_clients(client, base, options.clients))
            findings.figures[f"{name}: seconds"] = round(time.monotonic() - began, 1)
            _disturb(base)

            for answered in answers:
                right = answered == REQUESTS
                findings.check(right, f"{name}: {answered!r} of {REQUESTS} requests answered")
            findings.counts["clients"] += len(answers)
            findings.counts["requests"] += REQUESTS * len(answers)
            grown = (process.memory_info().rss - before) / 2**20
            findings.figures[f"{name}: MB grown"] = round(grown, 1)
            findings.check(process.is_running(), f"{name}: the server has ended")
            again = asyncio.run(_all_clients(client, base, 1))
            findings.check(again == [REQUESTS], f"{name}: afterwards {again!r}")
    findings.counts["servers"] = len(SERVERS)
    return findings


async def _all_clients(client: Any, base: str, number: int) -> list[Any]:
    """Return what each client counted, or in words how it failed."""
    if asyncio.iscoroutinefunction(client):
        tasks = [client(base, index) for index in range(number)]
    else:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(number)
        tasks = [loop.run_in_executor(pool, client, base, index) for index in range(number)]
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    return [repr(answer) if isinstance(answer, BaseException) else answer for answer in answers]


def _disturb(base: str) -> None:
    """Send what is no request, and half of a request."""
    import socket

    port = int(base.rpartition(":")[2])
    for sent in (b"\x00" * 1000, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"POST / HTTP/1.1\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent)


# -- commands that are killed ----------------------------------------------------------------------


def killed_until_done(
    words: list[str], rng: random.Random, seconds: float, kills: int
) -> tuple[int, float]:
    """Run a command, kill it at a random moment, and so on; the last attempt is left alone.

    Returns how often it was killed, and the seconds of the last attempt.
    """
    killed = 0
    for _ in range(kills):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(0.1, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1

    began = time.monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return killed, time.monotonic() - began


def content_of(folder: Path, patterns: tuple[str, ...]) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for pattern in patterns
        for path in sorted(folder.rglob(pattern))
    }


def _compared(
    findings: Findings,
    words: list[str],
    options: argparse.Namespace,
    patterns: tuple[str, ...],
    kills: int,
) -> None:
    """Compare a command that is killed again and again with one that is left alone."""
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place, "whole")
        _, seconds = killed_until_done([*words, "--out", str(whole)], options.rng, 0, 0)
        broken = Path(place, "broken")
        killed, _ = killed_until_done([*words, "--out", str(broken)], options.rng, seconds, kills)
        findings.counts["kills"] += killed
        wanted = content_of(whole, patterns)
        found = content_of(broken, patterns)
        findings.check(bool(wanted) and sorted(found) == sorted(wanted), f"{words[3:5]}: files")
        for name in wanted:
            findings.check(found.get(name) == wanted[name], f"{words[3:5]}: {name} differs")
        findings.counts["files compared"] += len(wanted)


def runs(options: argparse.Namespace) -> Findings:
    """Runs killed with SIGKILL at random moments, and given again: the same episodes to the byte."""
    findings = Findings()
    words = [*COMAP, "run", "--agent", "random", "--episodes", "300", *GENERATED]
    _compared(findings, words, options, (TRAJECTORIES,), options.kills)
    return findings


def trainings(options: argparse.Namespace) -> Findings:
    """Trainings of PaW and CoMap killed likewise: the same weights, evaluations and episodes."""
    findings = Findings()
    small = ["--preset", "tiny", "--tiny-parameters", "200000"]
    small += ["--evaluation-tasks", "2", "--demonstrations", "2"]
    paw = ["paw", *small, "--updates", "2", "--groups", "1", "--members", "2"]
    paw += ["--max-episode-steps", "4"]
    paw += ["--warmup-tokens", "2000", "--precision", "float64"]
    co = ["comap", *small, "--env-option", "max_episode_steps=4", "--rounds", "1"]
    co += ["--tasks-per-round", "2", "--reflection-tasks", "1", "--warmup-rollouts", "1"]
    co += ["--frozen-transitions", "2", "--diagnosed", "1"]
    for method in (paw, co):
        words = [*COMAP, "train", *method]
        kills = max(options.kills // 4, 2)  # each attempt imports torch
        _compared(findings, words, options, ("*.safetensors", TRAJECTORIES), kills)
    return findings


def disks(options: argparse.Namespace) -> Findings:
    """Runs whose files may not grow beyond some size, as on a full disk: told, and then gone on with."""
    findings = Findings()
    words = [*COMAP, "run", "--agent", "random", "--episodes", "60", *GENERATED]
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place, "whole")
        subprocess.run([*words, "--out", str(whole)], check=True, stdout=subprocess.DEVNULL)
        wanted = (whole / TRAJECTORIES).read_bytes()

        for number in range(options.kills):
            out = Path(place, str(number))
            limit = options.rng.randint(1, len(wanted))
            done = subprocess.run(
                [*words, "--out", str(out)],
                preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)),
                capture_output=True,
                text=True,
            )
            findings.counts["full disks"] += 1
            told = done.returncode in (1, 2) and "Traceback" not in done.stderr and done.stderr
            findings.check(bool(told), f"{limit} bytes: {done.returncode} {done.stderr[-100:]}")
            subprocess.run([*words, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
            same = (out / TRAJECTORIES).read_bytes() == wanted
            findings.check(same, f"{limit} bytes: other episodes afterwards")
    return findings


# -- workers and engines that are killed -----------------------------------------------------------


def workers(options: argparse.Namespace) -> Findings:
    """Ray workers killed while they play: the run ends with the same episodes to the byte."""
    findings = Findings()
    if importlib.util.find_spec("ray") is None:
        findings.counts["skipped, as Ray is not installed"] += 1
        return findings
    from comap.agents.ray import RayPool

    def make_env() -> gymnasium.Env[str, str]:
        return gymnasium.make("comap/ALFWorld-v0", source="generated", split="train")

    tasks = make_env().get_wrapper_attr("tasks").ids[:200]
    plan = Run(make_env=make_env, agent=ExpertAgent(), tasks=tasks, seed=1)
    with tempfile.TemporaryDirectory() as place:
        run_to(Path(place, "alone"), plan)
        with ThreadPoolExecutor(1) as pool:
            playing = pool.submit(run_to, Path(place, "ray"), plan, play=RayPool(2, retries=50))
            while not playing.done() and findings.counts["kills"] < options.kills:
                time.sleep(options.rng.uniform(0.3, 1.5))
                findings.counts["kills"] += _kill_one("ray::_Player")
            playing.result()
        names = [Path(place, name, TRAJECTORIES).read_bytes() for name in ("alone", "ray")]
        findings.check(names[0] == names[1], "the episodes differ")
        findings.counts["episodes"] = len(tasks)
    return findings


def _kill_one(title: str) -> int:
    """Kill a process under this one whose title begins so; return how many were."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(child.cmdline()).startswith(title):
                child.kill()
                return 1
    return 0


def _engines(
    options: argparse.Namespace, env_id: str, pid_of: Callable[[Any], int], **choices: Any
) -> Findings:
    """Kill what an environment runs in the middle of episodes.

    The step says so and ends the episode, or shows the page as it was; the next episode is as ever.
    """
    findings = Findings()
    env: Any = gymnasium.make(env_id, **choices)
    tasks = env.unwrapped.tasks.ids[:5]
    wanted = {task: env.reset(options={"task": task})[0] for task in tasks}
    for number in range(options.kills):
        task = tasks[number % len(tasks)]
        observation, _ = env.reset(options={"task": task})
        findings.check(observation == wanted[task], f"kill {number}: another first observation")
        os.kill(pid_of(env.unwrapped), signal.SIGKILL)
        findings.counts["kills"] += 1
        *_, terminated, truncated, info = env.step("look around")
        told = "EngineError" in info.get("error", "") or info["refused"]
        findings.check(bool(told), f"kill {number}: {terminated} {truncated} {info.get('error')}")
        if truncated:
            findings.counts["episodes ended, with the error in info"] += 1
    env.close()
    return findings


def simulators(options: argparse.Namespace) -> Findings:
    """ScienceWorld's JVM killed between two steps."""
    return _engines(
        options, "comap/ScienceWorld-v0", lambda env: int(env.engine._line.simulator.pid)
    )


def browsers(options: argparse.Namespace) -> Findings:
    """Chromium killed between two steps."""
    return _engines(
        options,
        "comap/Web-v0",
        lambda env: int(env.engine.browser.pid),
        engine="chromium",
        split="test",
    )


PARTS: dict[str, Callable[[argparse.Namespace], Findings]] = {
    part.__name__: part for part in (servers, runs, trainings, disks, workers, simulators, browsers)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of results")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--clients", type=int, default=200, help="of each server, at once")
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    results: dict[str, Any] = {}
    if options.out.is_file():  # parts that were run before stay
        results = json.loads(options.out.read_bytes())["parts"]
    for name in options.only:
        options.rng = random.Random(f"{options.seed} {name}")
        began = time.monotonic()
        try:
            findings = PARTS[name](options)
        except Exception as error:  # the other parts are measured all the same
            findings = Findings(lost=[f"the part itself failed: {error!r:.300}"])
        results[name] = {
            "what": " ".join((PARTS[name].__doc__ or "").split()),
            "counts": dict(findings.counts),
            "figures": findings.figures,
            "lost": len(findings.lost),
            "losses": findings.lost[:20],
            "seconds": round(time.monotonic() - began, 1),
            "load_average": round(os.getloadavg()[0], 1),
            "clients": options.clients,
            "seed": options.seed,
        }
        print(name, json.dumps(results[name]), flush=True)
        record = {"benchmark": "faults", "program": PROGRAM, "parts": results}
        write_result(options.out, record | circumstances(PACKAGES))
    return int(any(part["lost"] for part in results.values()))


if __name__ == "__main__":
    sys.exit(main())
