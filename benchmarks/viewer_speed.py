"""`comap bench viewer-speed`: how fast the viewer's page is written, opened, stepped and searched.

Episodes are played by `viewer_episodes` and written as `comap run` writes them; ``comap view`` makes
the page in a process of its own; headless Chromium opens it, each time with an empty profile. A time to
first sight ends with the frame in which the thing is there, counted from the start of navigation;
CPU times are those of the page's process, which do not grow where the machine is busy with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..agents.calls import Keep
from ..errors import OptionError
from ..trajectory import write_trajectories
from .browser import Browser
from .record import circumstances, spread, write_result
from .viewer_episodes import episodes

__all__ = ["KEEPS", "add_parser", "measure_page", "run"]

KEEPS: tuple[Keep, ...] = ("replies", "tokens")
"""What the measured files keep of calls to language models: the least, and all."""

_PACKAGES = ("gymnasium", "numpy", "jinja2")
_SEEN = """
const seen = (window.seen = {});
const look = () => {
  if (!seen.list && document.querySelector("#episodes .row")) seen.list = performance.now();
  if (!seen.step && document.querySelector("#step .column")) seen.step = performance.now();
  if (!seen.step) requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
_STEPPING = """
const times = [];
for (let i = 0; i < 20; i++) {
  const start = performance.now();
  document.dispatchEvent(new KeyboardEvent("keydown", {key: "j", bubbles: true}));
  document.getElementById("step").getBoundingClientRect();
  times.push(performance.now() - start);
}
return times;
"""
_SEARCH = """
const box = document.getElementById("search");
box.value = arguments[0];
window.begun = performance.now();
box.dispatchEvent(new Event("input"));
"""
_FOUND = (
    "/^[0-9,]+ hits? in [0-9,]+ episodes?( ·|$)/.test(document.getElementById('found').textContent)"
)
_FILTER = """
const box = document.querySelector("#filters select");
const start = performance.now();
box.selectedIndex = 1;
box.dispatchEvent(new Event("change"));
document.getElementById("episodes").getBoundingClientRect();
const took = performance.now() - start;
box.selectedIndex = 0;
box.dispatchEvent(new Event("change"));
return took;
"""


def run(
    number: int = 1000,
    steps: int = 50,
    *,
    distinct: int = 100,
    openings: int = 5,
    keeps: Sequence[Keep] = KEEPS,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure the viewer.

    Args:
        number: Of episodes.
        steps: Of each, at most.
        distinct: So many are played; then they come again, which makes nothing smaller or faster: an
            episode is packed and unpacked by itself.
        openings: How often each page is opened.
        keeps: What the files keep of calls.
        out: File for the result, or None.
        progress: Told of each part that is done.

    Returns:
        The result, as written to `out`.

    Raises:
        MissingExtra: Chromium or its driver is not installed.
        OptionError: A number is not at least 1.

    Example:
        >>> run(1000, out="viewer.json")  # doctest: +SKIP
    """
    for name, value in {
        "episodes": number,
        "steps": steps,
        "distinct": distinct,
        "openings": openings,
    }.items():
        if value < 1:
            raise OptionError(f"{name} must be at least 1, not {value}")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="comap-viewer-speed-") as folder:
        for keep in keeps:
            file = Path(folder, f"{keep}.jsonl")
            played = _write(file, number, min(distinct, number), steps, keep)
            progress(f"{keep}: {sum(played):,} steps in {file.stat().st_size / 1e6:,.0f} MB")
            made = _made(file)
            progress(f"{keep}: comap view took {made['seconds']:.1f} s")
            opened = measure_page(file.with_suffix(".html"), openings)
            progress(f"{keep}: first step after {opened['first_step_ms']['median']:,.0f} ms")
            size = file.stat().st_size
            found[keep] = {"steps": sum(played), "file_bytes": size, "view": made, **opened}
            file.unlink()
    result = {
        "benchmark": "viewer_speed",
        **circumstances(_PACKAGES),
        "episodes": number,
        "distinct": min(distinct, number),
        "openings": openings,
        "kept": found,
    }
    if out is not None:
        write_result(Path(out), result)
    return result


def measure_page(page: Path, openings: int, query: str = "cabinet 3") -> dict[str, Any]:
    """Return what opening, stepping, filtering and searching a page takes, in milliseconds.

    Args:
        page: The page.
        openings: How often it is opened, each time by a new browser.
        query: What is looked for.

    Raises:
        MissingExtra: Chromium or its driver is not installed.
        EngineError: The page does not show what it should.
    """
    rows = [_opened(page, query) for _ in range(openings)]
    told = {
        name: spread([float(row[name]) for row in rows]) for name in rows[0] if name != "browser"
    }
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    about = {"page_bytes": page.stat().st_size, "browser": rows[0]["browser"], "load": load}
    return about | told


def _opened(page: Path, query: str) -> dict[str, Any]:
    with Browser() as browser:
        browser.cdp("Performance.enable", timeDomain="threadTicks")
        browser.cdp("Page.addScriptToEvaluateOnNewDocument", source=_SEEN)
        browser.open(page)
        seen = browser.wait("window.seen.step && window.seen")
        opening = _cpu(browser)
        heap = _heap(browser)
        stepping = statistics.median(browser.run(_STEPPING))
        browser.wait("/^Step 20 of/.test(document.querySelector('#moves strong').textContent)", 1)
        filtering = browser.run(_FILTER)
        browser.run(_SEARCH, query)
        browser.wait(_FOUND, 120)
        searching = browser.run("return performance.now() - window.begun")
        every = _cpu(browser)
        return {
            "first_list_ms": round(seen["list"], 1),
            "first_step_ms": round(seen["step"], 1),
            "opening_cpu_ms": opening,
            "next_step_ms": round(stepping, 2),
            "filter_ms": round(filtering, 2),
            "search_ms": round(searching, 1),
            "search_cpu_ms": round(every - opening, 1),
            "heap_bytes": heap,
            "heap_bytes_after_search": _heap(browser),
            "browser": browser.version(),
        }


def _cpu(browser: Browser) -> float:
    """Return the CPU time of the page's process, which does not count what else the machine does."""
    told = browser.cdp("Performance.getMetrics")["metrics"]
    seconds = next(one["value"] for one in told if one["name"] == "ProcessTime")
    return round(1000 * float(seconds), 1)


def _heap(browser: Browser) -> int:
    """Return how much memory the page's objects take once garbage is collected."""
    browser.cdp("HeapProfiler.collectGarbage")
    return int(browser.cdp("Runtime.getHeapUsage")["usedSize"])


def _write(file: Path, number: int, distinct: int, steps: int, keep: Keep) -> list[int]:
    """Write the episodes, and return their lengths."""
    lengths: list[int] = []
    for episode in episodes(distinct, steps, keep):
        write_trajectories(file, [episode], append=True)
        lengths.append(len(episode.steps))
    lines = file.read_bytes().splitlines(keepends=True)
    with file.open("ab") as more:
        for place in range(distinct, number):
            more.write(lines[place % distinct])
    return [lengths[place % distinct] for place in range(number)]


def _made(file: Path) -> dict[str, Any]:
    """Return what ``comap view`` takes, in a process of its own."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "comap", "view", str(file), "--no-open"]
    child = os.posix_spawn(sys.executable, command, os.environ)
    _, status, used = os.wait4(child, 0)
    if status:
        raise OptionError(f"expected comap view to succeed, found exit status {status}")
    seconds = time.perf_counter() - begun
    cpu = used.ru_utime + used.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": used.ru_maxrss * 1024}


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench viewer-speed``."""
    parser = kinds.add_parser(
        "viewer-speed",
        help="how fast the viewer's page is written, opened, stepped and searched",
        description="Play episodes, make the viewer's page of them, and measure it in headless "
        "Chromium (packages chromium and chromium-driver).",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("--episodes", type=int, default=1000, metavar="N")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="step limit")
    parser.add_argument("--distinct", type=int, default=100, metavar="N", help="played ones")
    parser.add_argument("--openings", type=int, default=5, metavar="N", help="of each page")
    parser.add_argument("--keep", nargs="+", choices=KEEPS, default=KEEPS, metavar="WHAT")
    parser.add_argument("--out", metavar="FILE", help="where to write the result")


def _run(options: argparse.Namespace) -> int:
    found = run(
        options.episodes,
        options.steps,
        distinct=options.distinct,
        openings=options.openings,
        keeps=options.keep,
        out=options.out,
        progress=lambda line: print(line, flush=True),
    )
    print(json.dumps(found["kept"], indent=2))
    return 0
