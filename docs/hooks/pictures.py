"""``python docs/hooks/pictures.py`` makes the pictures of the README: docs/images/*.png.

It plays the shipped agent on generated tasks (three minutes) and runs the demo (two minutes), unless
runs/pictures has both, and takes the pictures with playwright and chromium.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image  # a part of matplotlib

from comap.benchmarks.report import Episode, episode_record
from comap.benchmarks.view import view_run
from comap.cli import main
from comap.trajectory import read_trajectories

RUNS = Path("runs/pictures")
IMAGES = Path(__file__).parents[1] / "images"
PLAY = ["run", "--agent", "comap", "--env-option", "source=generated", "--episodes", "60"]
WIDTH, HEIGHT, MOST_FACTS = 1400, 1084, 8


def instructive_steps(file: Path) -> Iterator[tuple[bool, int, str]]:
    """Yield the steps with something foreseen, missed and made up, and another action weighed."""
    for number, trajectory in enumerate(read_trajectories(file), 1):
        deltas = episode_record(Episode("", trajectory, None))["deltas"]
        for step, (delta, own) in enumerate(zip(deltas, trajectory.steps, strict=True), 1):
            notes, (foreseen, missed, made_up) = own.notes, delta or (0, 0, 0)
            other = notes.get("draft_action") != notes.get("ref_action")
            wanted = min(missed, made_up) > 0 and foreseen > 2 and trajectory.success
            if wanted and other and foreseen + missed + made_up <= MOST_FACTS:
                yield not notes.get("gate"), len(trajectory.steps), f"#{number}/{step}"


def take(page: Any, address: str, name: str, height: int | None = None) -> None:
    """Write a picture of a page: its first ``height`` pixels, or down to the trajectories."""
    page.set_viewport_size({"width": WIDTH, "height": height or 1000})
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("#step .column")
    if height is None:
        height = int(page.locator("#viewer").bounding_box()["y"])
        page.set_viewport_size({"width": WIDTH, "height": height})
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)
    print(IMAGES / name, (IMAGES / name).stat().st_size)


def make() -> None:
    """Make both pictures."""
    from playwright.sync_api import sync_playwright

    run, demo = RUNS / "comap", RUNS / "demo"
    main([*PLAY, "--keep", "prompts", "--out", str(run)])  # played once, and then read
    if not (demo / "report.html").exists():
        main(["demo", "--out", str(demo)])
    step = min(instructive_steps(run / "trajectories.jsonl"))[-1]
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light")
        take(page, view_run(run).resolve().as_uri() + step, "viewer-step.png", HEIGHT)
        take(page, (demo / "report.html").resolve().as_uri(), "demo-report.png")


if __name__ == "__main__":
    sys.exit(make())
