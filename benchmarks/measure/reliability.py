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
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

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
ALFWORLD = "comap/ALFWorld-v0"
REQUESTS = 6  # of each client of a server
DIFFERENT = 20  # clients of a server whose requests differ; more do the same as these


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
    with tempfile.TemporaryFile("w+") as log:  # a pipe that nobody reads would stop the server
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _address(process, log), psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Return where a server listens, once it says so."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        log.seek(0)
        address = re.search(r"http://127\.0\.0\.1:\d+", log.read())
        if address:
            return address[0]
        time.sleep(0.05)
    log.seek(0)
    raise RuntimeError(f"the server does not listen: {log.read()[-500:]}")


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


# Each client makes `REQUESTS` requests that its number determines, and returns the answers.


def plays_agentgym(base: str, number: int) -> list[Any]:
    created = posted(f"{base}/create", {"env": ALFWORLD})
    name = created.pop("id")  # a random text
    answers = [created, posted(f"{base}/reset", {"id": name, "data_idx": number})]
    for step in range(REQUESTS - 3):
        actions = answers[-1]["available_actions"]
        action = actions[(number + step) % len(actions)]
        answers.append(posted(f"{base}/step", {"id": name, "action": action}))
    answers.append(posted(f"{base}/close", {"id": name}))
    for answer in answers[1:]:
        answer.pop("id", None)
    return answers


@cache
def questions() -> list[str]:
    """Return the questions of generated tasks: each finds other passages."""
    env: Any = gymnasium.make("comap/SearchQA-v0", source="generated", split="test")
    tasks = env.unwrapped.tasks.ids[: DIFFERENT + REQUESTS]
    return [env.reset(options={"task": task})[1]["goal"] for task in tasks]


def searches(base: str, number: int) -> list[Any]:
    answers = []
    for request in range(REQUESTS):
        queries = [questions()[number + request], questions()[number]]
        answers.append(posted(f"{base}/retrieve", {"queries": queries, "topk": 3}))
    return answers


def calls_tools(base: str, number: int) -> list[Any]:
    """Ask the generated tools of hotels and cities that they know, and one tool that there is not."""
    answers = []
    for request in range(REQUESTS):
        # Clients differ in what they ask for, and a client's requests among themselves.
        record_number = number + request
        hotel = {"hotel_id": f"H-{11 + record_number}"}
        city = {"city_id": f"G-{20 + record_number % 12}"}
        names, parameters = (
            (("Travel", "hotels", "details"), hotel),
            (("Location", "geography", "city"), city),
            (("None", f"tool {record_number}", "none"), {}),
        )[request % 3]

        body = dict(zip(("category", "tool_name", "api_name"), names, strict=True))
        body |= {"tool_input": parameters, "strip": "", "toolbench_key": ""}
        answers.append(posted(f"{base}/virtual", body))
    return answers


async def plays_openenv(base: str, number: int) -> list[Any]:
    from openenv.core.generic_client import GenericEnvClient

    async with GenericEnvClient(base_url=base) as env:
        reply = await env.reset(seed=number)
        answers = [reply.observation]
        for step in range(REQUESTS - 1):
            actions = reply.observation["available_actions"]
            reply = await env.step({"action": actions[(number + step) % len(actions)]})
            answers.append([reply.observation, reply.reward, reply.done])
    return answers


async def plays_mcp(base: str, number: int) -> list[Any]:
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
        answers = [reply.model_dump(mode="json")]
        for step in range(REQUESTS - 1):
            action = ("look", "inventory", "go to desk 1")[(number + step) % 3]
            reply = await session.call_tool("act", {"action": action})
            answers.append(reply.model_dump(mode="json"))
    return answers


ENV_WORDS = ["env", "--env", ALFWORLD, *GENERATED, "--limit", "1024"]
SERVERS: dict[str, tuple[list[str], Callable[[str, int], Any]]] = {
    "environments, AgentGym": ([*ENV_WORDS, "--style", "agentgym"], plays_agentgym),
    "environments, OpenEnv": ([*ENV_WORDS, "--style", "openenv"], plays_openenv),
    "environments, MCP": ([*ENV_WORDS, "--style", "mcp"], plays_mcp),
    "search": (["search"], searches),
    "tools": (["tools"], calls_tools),
}


def servers(options: argparse.Namespace) -> Findings:
    """All servers under many clients at once: each request has the answer that a client alone gets.

    All the while another client sends what is no request, and hangs up in the middle of others.
    Afterwards the server answers as before.
    """
    findings = Findings()
    for name, (words, client) in SERVERS.items():
        with server(*words) as (base, process):
            answers_alone = []
            for number in range(DIFFERENT):
                answers_alone += asyncio.run(_all_clients(client, base, [number]))

            # Clients whose answers are mixed up are only seen where all answers are there, and differ.
            for number, answers in enumerate(answers_alone):
                is_complete = isinstance(answers, list) and len(answers) == REQUESTS
                findings.check(is_complete, f"{name}: client {number} alone: {answers!r:.200}")
            different = len({json.dumps(answers, sort_keys=True) for answers in answers_alone})
            findings.check(different == DIFFERENT, f"{name}: only {different} different clients")

            memory_before = process.memory_info().rss
            with _disturbed(base, findings):
                start = time.monotonic()
                numbers = [client_index % DIFFERENT for client_index in range(options.clients)]
                all_answers = asyncio.run(_all_clients(client, base, numbers))
                findings.figures[f"{name}: seconds"] = round(time.monotonic() - start, 1)

            for number, answers in zip(numbers, all_answers, strict=True):
                is_same = answers == answers_alone[number]
                findings.check(is_same, f"{name}: {number}: {answers!r:.200}")
            findings.counts["clients"] += len(all_answers)
            findings.counts["requests"] += REQUESTS * len(all_answers)
            growth = (process.memory_info().rss - memory_before) / 2**20
            findings.figures[f"{name}: MB grown"] = round(growth, 1)

            answers_afterwards = asyncio.run(_all_clients(client, base, [0]))
            is_same = answers_afterwards == answers_alone[:1]
            findings.check(is_same, f"{name}: afterwards {answers_afterwards!r:.200}")
    findings.counts["servers"] = len(SERVERS)
    return findings


async def _all_clients(client: Any, base: str, numbers: list[int]) -> list[Any]:
    """Return the answers of each client, all at once; or in words how it failed."""
    if asyncio.iscoroutinefunction(client):
        tasks = [client(base, number) for number in numbers]
    else:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(len(numbers))
        tasks = [loop.run_in_executor(pool, client, base, number) for number in numbers]
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    return [repr(answer) if isinstance(answer, BaseException) else answer for answer in answers]


@contextlib.contextmanager
def _disturbed(base: str, findings: Findings) -> Iterator[None]:
    """Send what is no request, and half of requests, to a server for as long as the block lasts."""
    port = int(base.rpartition(":")[2])
    nonsense = (
        b"\x00" * 1000,
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{",
        b"POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nnot JSON.",
    )
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(0.02):
            for message in nonsense:
                with contextlib.suppress(OSError):
                    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                        connection.sendall(message)
                    findings.counts["malformed or broken off"] += 1

    thread = threading.Thread(target=disturb, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- commands that are killed ----------------------------------------------------------------------


def killed_until_done(words: list[str], rng: random.Random, seconds: float, most: int) -> int:
    """Run a command and kill it at a random moment, until it ends by itself; return how often.

    Args:
        words: The command, which goes on with what it had done.
        rng: Draws the moments.
        seconds: How long the command takes when it is left alone.
        most: How often it is killed at most.
    """
    for kills in range(most):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            status = process.wait(rng.uniform(0.1, 0.7) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            continue
        assert status == 0, f"{words} ended with {status}"
        return kills

    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return most


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
    with tempfile.TemporaryDirectory() as folder:
        undisturbed_folder = Path(folder, "undisturbed")
        start = time.monotonic()
        killed_until_done([*words, "--out", str(undisturbed_folder)], options.rng, 0, 0)
        seconds = time.monotonic() - start
        undisturbed = content_of(undisturbed_folder, patterns)
        findings.check(bool(undisturbed), f"{words[3:5]}: no files")

        while kills > 0:
            killed_folder = Path(folder, f"killed-{kills}")
            command = [*words, "--out", str(killed_folder)]
            kills_of_command = killed_until_done(command, options.rng, seconds, kills)
            # One that was never killed counts too: else a fast command would be run for ever.
            kills -= max(kills_of_command, 1)
            findings.counts["kills"] += kills_of_command

            resumed = content_of(killed_folder, patterns)
            findings.check(sorted(resumed) == sorted(undisturbed), f"{words[3:5]}: other files")
            for name, content in undisturbed.items():
                findings.check(resumed.get(name) == content, f"{words[3:5]}: {name} differs")
            findings.counts["files compared"] += len(undisturbed)


def runs(options: argparse.Namespace) -> Findings:
    """Runs killed with SIGKILL at random moments, and given again: the same episodes to the byte."""
    findings = Findings()
    words = [*COMAP, "run", "--agent", "random", "--episodes", "200", "--seeds", "5", *GENERATED]
    _compared(findings, words, options, (TRAJECTORIES,), options.kills)
    return findings


_TRAINING_FILES = ("*.safetensors", "evaluations.jsonl", TRAJECTORIES)


def trainings(options: argparse.Namespace) -> Findings:
    """Trainings of PaW and CoMap killed likewise: the same weights, evaluations and episodes."""
    shared = ["--preset", "tiny", "--tiny-parameters", "200000"]
    shared += ["--evaluation-tasks", "2", "--demonstrations", "2"]

    paw_words = ["paw", *shared, "--updates", "2", "--groups", "1", "--members", "2"]
    paw_words += ["--max-episode-steps", "4", "--warmup-tokens", "2000", "--precision", "float64"]

    comap_words = ["comap", *shared, "--env-option", "max_episode_steps=4", "--rounds", "1"]
    comap_words += ["--tasks-per-round", "2", "--reflection-tasks", "1", "--warmup-rollouts", "1"]
    comap_words += ["--frozen-transitions", "2", "--diagnosed", "1"]

    # Fewer kills than of runs: each time, a training first imports torch.
    kills = max(options.kills // 4, 2)
    findings = Findings()
    for method_words in (paw_words, comap_words):
        words = [*COMAP, "train", *method_words]
        _compared(findings, words, options, _TRAINING_FILES, kills)
    return findings


def disks(options: argparse.Namespace) -> Findings:
    """Runs whose files may not grow beyond some size, as on a full disk: told, and then gone on with."""
    findings = Findings()
    words = [*COMAP, "run", "--agent", "random", "--episodes", "60", *GENERATED]
    with tempfile.TemporaryDirectory() as folder:
        undisturbed_out = Path(folder, "undisturbed")
        command = [*words, "--out", str(undisturbed_out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        undisturbed = (undisturbed_out / TRAJECTORIES).read_bytes()

        for number in range(options.kills):
            # A write beyond the limit fails as on a full disk: Python ignores the signal that comes first.
            limit = options.rng.randrange(1, len(undisturbed))
            out = Path(folder, str(number))
            command = [*words, "--out", str(out)]
            process = subprocess.run(
                command,
                preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)),
                capture_output=True,
                text=True,
            )
            findings.counts["full disks"] += 1

            # The command ends with a message of its own, and not with a traceback.
            is_message = bool(process.stderr) and "Traceback" not in process.stderr
            is_reported = process.returncode in (1, 2) and is_message
            outcome = f"{process.returncode} {process.stderr[-100:]}"
            findings.check(is_reported, f"{limit} bytes: {outcome}")

            # With room again, the same command goes on where it stopped.
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            is_same = (out / TRAJECTORIES).read_bytes() == undisturbed
            findings.check(is_same, f"{limit} bytes: other episodes afterwards")
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
        return gymnasium.make(ALFWORLD, source="generated", split="train")

    tasks = make_env().get_wrapper_attr("tasks").ids[:200]
    run = Run(make_env=make_env, agent=ExpertAgent(), tasks=tasks, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed_out = Path(folder, "alone")
        run_to(undisturbed_out, run)
        undisturbed = (undisturbed_out / TRAJECTORIES).read_bytes()

        # One run may end before so many workers were killed: then there is another, in a folder of its own.
        while findings.counts["kills"] < options.kills:
            out = Path(folder, f"ray-{findings.counts['episodes']}")
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(run_to, out, run, play=RayPool(2, retries=50))
                while not future.done() and findings.counts["kills"] < options.kills:
                    time.sleep(options.rng.uniform(0.3, 1.5))
                    findings.counts["kills"] += _kill_one("ray::_Player")
                future.result()  # raises the error that ended the run, if one did

            is_same = (out / TRAJECTORIES).read_bytes() == undisturbed
            findings.check(is_same, f"{out.name}: the episodes differ")
            findings.counts["episodes"] += len(tasks)
    return findings


def _kill_one(title: str) -> int:
    """Kill a process under this one whose title begins so; return 1, or 0 where there is none."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(child.cmdline()).startswith(title):
                child.kill()
                return 1
    return 0


def _engines(
    options: argparse.Namespace,
    env_id: str,
    pid_of: Callable[[Any], int],
    action_of: Callable[[Any], str],
    **choices: Any,
) -> Findings:
    """Kill what an environment runs in the middle of episodes.

    The next step says so, and ends the episode or refuses the action; the next episode is as ever.
    """
    findings = Findings()
    env: Any = gymnasium.make(env_id, **choices)
    tasks = env.unwrapped.tasks.ids[:5]
    first_observations = {task: env.reset(options={"task": task})[0] for task in tasks}
    for number in range(options.kills):
        task = tasks[number % len(tasks)]
        observation, _ = env.reset(options={"task": task})
        as_ever = observation == first_observations[task]
        findings.check(as_ever, f"kill {number}: another first observation")

        action = action_of(env.unwrapped)
        os.kill(pid_of(env.unwrapped), signal.SIGKILL)
        findings.counts["kills"] += 1
        *_, truncated, info = env.step(action)
        error = info.get("error", "")
        is_ended = truncated and "EngineError" in error
        findings.check(is_ended or bool(info["refused"]), f"kill {number}: {truncated} {error}")
        if is_ended:
            findings.counts["episodes ended, with the error in info"] += 1
        elif info["refused"]:
            findings.counts["steps refused, with the reason"] += 1
    env.close()
    return findings


def simulators(options: argparse.Namespace) -> Findings:
    """ScienceWorld's JVM killed between two steps."""
    return _engines(
        options,
        "comap/ScienceWorld-v0",
        lambda env: int(env.engine._line.simulator.pid),
        lambda env: "look around",
    )


def browsers(options: argparse.Namespace) -> Findings:
    """Chromium killed between two steps."""
    return _engines(
        options,
        "comap/Web-v0",
        lambda env: int(env.engine.browser.pid),
        lambda env: str(env.expert_action()),
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
        start = time.monotonic()
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
            "seconds": round(time.monotonic() - start, 1),
            "load_average": round(os.getloadavg()[0], 1),
            "clients": options.clients,
            "seed": options.seed,
        }
        print(name, json.dumps(results[name]), flush=True)

        # After each part, so that none is lost when a later one is interrupted.
        record = {"benchmark": "faults", "program": PROGRAM, "parts": results}
        write_result(options.out, record | circumstances(PACKAGES))
    return int(any(part["lost"] for part in results.values()))


if __name__ == "__main__":
    sys.exit(main())
