"""What `comap view` takes for 1,000 episodes of 50 steps, and how soon its page answers in Chromium.

``python benchmarks/measure/viewer.py --out FILE [--openings 5]``. CoMap's agent plays with a model that
says what a hash draws, so that steps have replies, predictions and gates. Few episodes are played, and
come again: one is packed by itself, so that this makes nothing smaller or faster. The page is made by a
process of its own, and opened by headless Chromium, each time with an empty profile; milliseconds are of
the clock, from the start of navigation, or from typing to the last hit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from comap.agents import create_agent, run_episodes
from comap.benchmarks.record import circumstances, spread, write_result
from comap.envs.web.browser import find_program
from comap.lm import Completion, Usage
from comap.lm.base import BaseLanguageModel
from comap.trajectory import write_trajectories

EPISODES = 1_000
PLAYED = 50
STEPS = 50
PROGRAM = "benchmarks/measure/viewer.py (not in the package)"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]

# Notes the frame in which the list, and then a step, is there.
WATCH = """
const seen = (window.seen = {});
const look = () => {
  if (!seen.list && document.querySelector("#episodes .row")) seen.list = performance.now();
  if (!seen.step && document.querySelector("#step .column")) seen.step = performance.now();
  if (!seen.step) requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
TYPE = """
const box = document.getElementById("search");
box.value = "cabinet 3";
window.began = performance.now();
box.dispatchEvent(new Event("input"));
"""
ALL_FOUND = (
    "/^[1-9][0-9,]* hits? in (?!.*searching)/.test(document.querySelector('#found').innerText)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openings", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    result: dict[str, Any] = {"benchmark": "viewer", "program": PROGRAM, "episodes": EPISODES}
    result |= {"openings": options.openings, **circumstances(("gymnasium", "playwright"))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trajectories.jsonl")
        result["steps"] = write_episodes(file)
        result["file_bytes"] = file.stat().st_size
        page = Path(folder, "page.html")
        result["view"] = viewed(file, page)
        result["page_bytes"] = page.stat().st_size
        openings = [opened(page) for _ in range(options.openings)]
    for key in openings[0]:
        result[key] = spread([opening[key] for opening in openings])
    result["load_average"] = round(os.getloadavg()[0], 1)
    write_result(options.out, result)
    print(f"written: {options.out}\n{json.dumps(result)}")


def write_episodes(file: Path) -> int:
    """Write the episodes, and return the number of their steps."""
    options = {"source": "generated", "max_episode_steps": STEPS}
    make = partial(gymnasium.make, "comap/ALFWorld-v0", **options)
    tasks = make().get_wrapper_attr("tasks").ids[:PLAYED]
    agent = create_agent("comap", decoding="masked")
    played = list(run_episodes(make, agent, tasks, lm=Draws(), world_model="oracle"))
    assert not any(episode.error for episode in played)
    repeats = EPISODES // PLAYED
    write_trajectories(file, played * repeats)
    return repeats * sum(len(episode.steps) for episode in played)


class Draws(BaseLanguageModel):
    """Takes one of the choices, and otherwise keeps what it drafted; by a hash of the request."""

    name, capabilities, usage = "draws", frozenset({"generate", "choices", "prefix"}), Usage()

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        completions = []
        for request in requests:
            draw = hashlib.sha256(repr((request.messages, request.prefix)).encode()).digest()[0]
            text = (
                f"Reflection: This may help ({draw}).\nDecision: KEEP\nRevise Probability: 0.{draw}"
            )
            if request.choices is not None:
                text = request.choices[draw % len(request.choices)]
            completions.append(Completion(text))
        return completions

    def count_tokens(self, text: str) -> int:
        return len(text) // 4

    def config(self) -> dict[str, Any]:
        return {}


def viewed(file: Path, page: Path) -> dict[str, Any]:
    """Return what ``comap view`` takes, in a process of its own."""
    start = time.perf_counter()
    words = [sys.executable, "-m", "comap", "view", str(file), "--out", str(page), "--no-open"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"comap view ended with {os.waitstatus_to_exitcode(status)}"
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": 1024 * usage.ru_maxrss,
    }


def opened(page: Path) -> dict[str, float]:
    """Return the milliseconds to the list, to the first step, and of the first search."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_program(None), args=FLAGS)
        tab = browser.new_context().new_page()
        tab.add_init_script(WATCH)
        devtools = tab.context.new_cdp_session(tab)

        def value(expression: str) -> Any:
            # By the DevTools protocol: the page's policy forbids what Playwright's own evaluation does.
            options = {"expression": expression, "returnByValue": True}
            return devtools.send("Runtime.evaluate", options)["result"].get("value")

        def wait(condition: str) -> None:
            end = time.monotonic() + 120
            while not value(condition):
                assert time.monotonic() < end, f"false for two minutes: {condition}"
                tab.wait_for_timeout(5)

        tab.goto(page.as_uri())
        wait("!!window.seen.step")
        seen = value("window.seen")
        value(f"(() => {{ {TYPE} }})()")
        wait(ALL_FOUND)
        search = value("performance.now() - window.began")
        browser.close()
    return {"list_ms": seen["list"], "step_ms": seen["step"], "search_ms": search}


if __name__ == "__main__":
    main()
