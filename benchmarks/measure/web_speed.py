"""Speed and memory of the web: the twin, and Chromium by Playwright, in one run.

``python benchmarks/measure/web_speed.py --out FILE [--browser PROGRAM ...] [--browsergym PYTHON]``. The
page has 436 nodes in its accessibility tree. Times are milliseconds; CPU is that of Python and all
processes of the browser. On a busy machine trust the smallest wall times and the CPU. PYTHON is one of
an environment in which BrowserGym is installed: then its step on the same page is measured too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import psutil

from comap.benchmarks.record import circumstances, spread, write_result
from comap.envs.panel import evenly
from comap.envs.web.actions import Move, read_action
from comap.envs.web.browser import close_all, find_program
from comap.envs.web.chromium import Chromium
from comap.envs.web.pages import Page, checkbox, form, heading, link, rows, text, to_html
from comap.envs.web.sites import Request, Response, World

CONTEXTS = 16
REPEATS = 30
PROGRAM = "benchmarks/measure/web_speed.py (not in the package)"


class OnePage(World):
    """A world with the same page everywhere."""

    def __init__(self) -> None:
        super().__init__(0)
        items = [(link(f"Thing {n}", f"/item?id={n}"), text(f"Price: {n}.00")) for n in range(39)]
        boxes = [checkbox(f"Box {n}", f"b{n}") for n in range(20)]
        notes = [text(f"Note {n}") for n in range(6)]
        self.page = Page("Things", (heading("Things"), rows(items), form("/s", *boxes), *notes))

    def answer(
        self, states: Mapping[str, Any], request: Request
    ) -> tuple[Mapping[str, Any], Response]:
        return states, Response(200, self.page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--browser", nargs="*", default=[find_program(None)])
    parser.add_argument("--browsergym", help="Python of an environment that has BrowserGym")
    options = parser.parse_args()

    result: dict[str, Any] = {
        "benchmark": "web_speed",
        "program": PROGRAM,
        "units": "ms",
        **circumstances(("gymnasium", "playwright")),
        "load": psutil.getloadavg(),
        "twin": twin(),
        "chromium": {},
    }
    for program in options.browser:
        result["chromium"][Path(program).name] = chromium(program)
        close_all()
    if options.browsergym:
        result["browsergym"] = browsergym(options.browsergym, options.browser[0])
    write_result(options.out, result)


def twin() -> dict[str, Any]:
    """Return the time of steps of the expert with facts, score and admissible actions, and of resets."""
    env = gymnasium.make("comap/Web-v0", split="test").unwrapped
    step_times: list[float] = []
    reset_times: list[float] = []
    for task in evenly(env.tasks.ids, 60):
        for is_first in (True, False):  # the first time the task is made
            start = time.perf_counter()
            env.reset(options={"task": task})
            if not is_first:
                reset_times.append(1_000 * (time.perf_counter() - start))

            terminated = False
            while not terminated:
                action = env.expert_action()
                start = time.perf_counter()
                *_, terminated, _, _ = env.step(action)
                if not is_first:
                    step_times.append(1_000 * (time.perf_counter() - start))
    return {"step": spread(step_times), "reset": spread(reset_times), "steps": len(step_times)}


def chromium(program: str) -> dict[str, Any]:
    """Return what a browser takes for an observation, a click, a page and a reset; and memory."""
    world = OnePage()
    engine = Chromium(program)
    start = time.perf_counter()
    engine.open(world, "shop.test/")
    start_time = 1_000 * (time.perf_counter() - start)
    # Recorded, since an observation takes longer the more nodes there are.
    tree = engine._do(lambda: engine.tab.send("Accessibility.getFullAXTree"))["nodes"]

    box = _move("click [checkbox 'Box 10']")
    thing = _move("click [link 'Thing 3']")
    measured: dict[str, Any] = {
        "version": engine.version,
        "start": start_time,
        "nodes": len(tree),
        "observation": _timed(lambda: engine._do(engine._look)),
        "click": _timed(lambda: engine.act(box)),
        "click_that_loads": _timed(lambda: engine.act(thing)),
        "reset": _timed(lambda: engine.open(world, "shop.test/")),
    }

    # All contexts are of one browser, whose processes they share.
    engines = [engine]
    for _ in range(CONTEXTS - 1):
        engines.append(Chromium(program))
        engines[-1].open(world, "shop.test/")
    pids = [engine.browser.pid]
    pids += [child.pid for child in psutil.Process(pids[0]).children(recursive=True)]
    measured["contexts"] = CONTEXTS
    measured["memory_mib"] = sum(map(_pss, pids))
    measured["processes"] = len(pids)
    return measured


def _move(action: str) -> Move:
    move = read_action(action)
    assert move is not None
    return move


def _timed(call: Callable[[], object]) -> dict[str, Any]:
    """Return wall times of repeats, and their mean CPU time, in milliseconds."""
    # The first call starts what the others find running.
    call()
    wall_times = []
    cpu_before = _cpu()
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        wall_times.append(1_000 * (time.perf_counter() - start))
    return {"wall": spread(wall_times), "cpu": 1_000 * (_cpu() - cpu_before) / REPEATS}


def _cpu() -> float:
    """Return the CPU seconds of this process and of all that it started, those that ended as well."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:4])
    for child in me.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])  # of its children that ended, too
        except psutil.NoSuchProcess:
            continue
    return total


def _pss(pid: int) -> float:
    """Return the memory of a process in MiB, what it shares with others in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


# Run by another Python, which has BrowserGym and the Playwright that it wants.
BROWSERGYM = """
import json, sys, time
from browsergym.core.env import BrowserEnv
from browsergym.core.task import AbstractBrowserTask

class OnePage(AbstractBrowserTask):
    def __init__(self, seed):
        super().__init__(seed)
        self.viewport, self.slow_mo, self.timeout = {"width": 1024, "height": 768}, 1000, 5000
    def setup(self, page):
        page.set_content(open(sys.argv[1]).read())
        return "look", {}
    def teardown(self):
        pass
    def validate(self, page, chat_messages):
        return 0.0, False, "", {}

env = BrowserEnv(OnePage)
resets, steps = [], []
for _ in range(2):
    start = time.perf_counter()
    observation, info = env.reset(seed=0)
    resets.append(1000 * (time.perf_counter() - start))
names = [node for node in observation["axtree_object"]["nodes"]
         if node.get("role", {}).get("value") == "checkbox"]
for number in range(6):
    start = time.perf_counter()
    env.step(f"click('{names[number]['browsergym_id']}')")
    steps.append(1000 * (time.perf_counter() - start))
env.close()
print(json.dumps({"resets": resets, "steps": steps}))
"""


def browsergym(python: str, program: str) -> dict[str, Any]:
    """Return times of BrowserGym's own environment, as it is by default, on the same page."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(to_html(OnePage().page), "utf-8")

        # Where BrowserGym's Playwright looks for its browser.
        browser_folder = Path(folder) / "chromium-1117" / "chrome-linux"
        browser_folder.mkdir(parents=True)
        (browser_folder / "chrome").symlink_to(program)

        process = subprocess.run(
            [python, "-c", BROWSERGYM, str(page)],
            env={"PLAYWRIGHT_BROWSERS_PATH": folder, "PATH": "/usr/bin:/bin", "HOME": folder},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if process.returncode:
            raise RuntimeError(process.stderr[-2_000:])
        times = json.loads(process.stdout.splitlines()[-1])
    return {"step": spread(times["steps"]), "reset": spread(times["resets"])}


if __name__ == "__main__":
    main()
