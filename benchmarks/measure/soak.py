"""Whether memory stays as it is while many environments are played for a long time.

``python benchmarks/measure/soak.py --out FILE [--minutes 60] [--environments 64] [--kinds ALFWorld ...]``
plays generated tasks of all kinds in one process, one episode after the other in each environment, by
random actions that are admissible or nearly so. The process's memory is noted each half minute. What grows
after the first ten minutes is the finding: until then caches are filled. ScienceWorld's simulators are
processes of their own, whose memory is not counted, and it is not among the kinds unless it is named.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import psutil

import comap  # noqa: F401  (registers the environments)
from comap.benchmarks.record import circumstances, commit, write_result

PROGRAM = "benchmarks/measure/soak.py (not in the package)"
PACKAGES = ("gymnasium", "numpy")
KINDS = ("ALFWorld", "WebShop", "StableToolBench", "SearchQA", "Web")
GENERATED = ("ALFWorld", "WebShop", "StableToolBench", "SearchQA", "ScienceWorld")
STEPS = 25  # of an episode; most random ones end no earlier
SETTLED_MINUTES = 10.0
NOTED_SECONDS = 30.0
MEBIBYTE = 2**20
WORDS = ("look", "search[lamp]", "click[back]", "wait", "answer[lamp]")
"""What is done where nothing is listed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of results")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=(*KINDS, "ScienceWorld"))
    options = parser.parse_args()

    counts: Counter[str] = Counter()
    players = [
        steps_of(kind, number, counts)
        for number, kind in zip(
            range(options.environments), itertools.cycle(options.kinds), strict=False
        )
    ]
    head = {"benchmark": "soak", "program": PROGRAM, "commit": commit()}
    head |= circumstances(PACKAGES)
    head |= {"environments": options.environments, "kinds": options.kinds}

    process = psutil.Process()
    notes: list[dict[str, Any]] = []
    start = time.monotonic()
    next_note = 0.0
    while (elapsed := time.monotonic() - start) < 60 * options.minutes:
        if elapsed >= next_note:
            notes.append(memory_now(process, elapsed, counts))
            write_result(options.out, {**head, **findings(notes), "notes": notes})
            print(json.dumps(notes[-1]), flush=True)
            next_note += NOTED_SECONDS
        for player in players:
            next(player)

    notes.append(memory_now(process, time.monotonic() - start, counts))
    result = findings(notes)
    write_result(options.out, {**head, **result, "notes": notes})
    print(json.dumps(result))


def steps_of(kind: str, number: int, counts: Counter[str]) -> Iterator[None]:
    """Play an environment for ever, a step at a time."""
    options = {"source": "generated"} if kind in GENERATED else {}
    env = gymnasium.make(f"comap/{kind}-v0", max_episode_steps=STEPS, **options)
    draw = random.Random(f"{kind} {number}")
    for episode in itertools.count():
        seed = 1_000_000 * number + episode
        _, info = env.reset(seed=seed)
        counts["episodes"] += 1
        has_ended = False
        while not has_ended:
            action = draw.choice(info.get("admissible_actions") or WORDS)
            if draw.random() < 0.1:  # a typing error
                action = action[: draw.randrange(len(action)) + 1]
            _, _, terminated, truncated, info = env.step(action)
            counts["steps"] += 1
            counts["faults"] += "error" in info
            has_ended = terminated or truncated
            yield


def memory_now(process: psutil.Process, elapsed: float, counts: Counter[str]) -> dict[str, Any]:
    """Return what there is at this moment."""
    gc.collect()
    return {
        "minutes": round(elapsed / 60, 2),
        "mebibytes": round(process.memory_info().rss / MEBIBYTE, 2),
        "objects": len(gc.get_objects()),
        "files": process.num_fds(),
        "threads": process.num_threads(),
        **counts,
    }


def findings(notes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how much memory there was when caches were full, and how much more at most since then."""
    settled = [entry for entry in notes if entry["minutes"] >= SETTLED_MINUTES]
    last = notes[-1]
    result = {
        "minutes": last["minutes"],
        "episodes": last.get("episodes", 0),
        "steps": last.get("steps", 0),
        "faults": last.get("faults", 0),
        "mebibytes_at_the_end": last["mebibytes"],
    }
    if settled:
        most = max(entry["mebibytes"] for entry in settled)
        result["mebibytes_after_ten_minutes"] = settled[0]["mebibytes"]
        result["growth_since_then"] = round(last["mebibytes"] - settled[0]["mebibytes"], 2)
        result["most_since_then"] = round(most - settled[0]["mebibytes"], 2)
    return result


if __name__ == "__main__":
    main()
