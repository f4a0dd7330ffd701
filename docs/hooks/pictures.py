"""``python docs/hooks/pictures.py`` makes the picture of the README, docs/images/viewer-step.png.

It plays the shipped agent (two minutes), unless runs/pictures has that, and takes the picture with
playwright and chromium.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from PIL import Image  # a part of matplotlib

from comap.benchmarks.report import Episode, episode_record
from comap.benchmarks.view import view_run
from comap.cli import main
from comap.lm import shipped_models
from comap.trajectory import read_trajectories

RUNS = Path("runs/pictures")
IMAGES = Path(__file__).parents[1] / "images"
ROOMS = [f"{name}={value}" for name, value in shipped_models().settings["env_options"].items()]
PLAY = ["run", "--agent", "comap", "--episodes", "60", "--env-option", *ROOMS]
WIDTH, HEIGHT, MOST_FACTS = 1400, 1084, 9


def instructive_steps(file: Path) -> Iterator[tuple[bool, int, str]]:
    """Yield the steps with something foreseen, missed and made up, and another action weighed."""
    for number, trajectory in enumerate(read_trajectories(file), 1):
        deltas = episode_record(Episode("", trajectory, None))["deltas"]
        for step_number, (delta, step) in enumerate(zip(deltas, trajectory.steps, strict=True), 1):
            foreseen, missed, made_up = delta or (0, 0, 0)
            has_all_kinds = min(missed, made_up) > 0 and foreseen > 2
            weighs_another = step.notes.get("draft_action") != step.notes.get("ref_action")
            fits_the_picture = foreseen + missed + made_up <= MOST_FACTS
            if trajectory.success and has_all_kinds and weighs_another and fits_the_picture:
                is_closed = not step.notes.get("gate")
                yield is_closed, len(trajectory.steps), f"#{number}/{step_number}"


def make() -> None:
    """Make the picture."""
    from playwright.sync_api import sync_playwright

    run = RUNS / "comap"
    main([*PLAY, "--keep", "prompts", "--out", str(run)])  # played once, and then read
    step = min(instructive_steps(run / "trajectories.jsonl"))[-1]
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="light")
        page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        page.goto(view_run(run).resolve().as_uri() + step)
        page.wait_for_selector("#step .column")
        picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(IMAGES / "viewer-step.png", optimize=True)


if __name__ == "__main__":
    sys.exit(make())
