"""Let the small CoMap agent that comap ships play a few tasks, and write a page that shows its steps.

It drafts an action, asks its world model what would follow, reflects on that, and a gate chooses. The
page shows all of it, step by step: open it in a browser.

    python examples/run_and_view.py --out runs/viewed

It needs ``pip install "comap[viz,local]"``, writes a run's folder with ``view.html``, and takes about
half a minute on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium as gym

import comap  # registers the environments
from comap.agents import Run, create_agent, run_to
from comap.benchmarks.view import view_run
from comap.lm import create_language_model
from comap.lm.shipped import shipped
from comap.trajectory import read_trajectories
from comap.worldmodel import LanguageWorldModel


def make_env() -> gym.Env[str, str]:
    """Make an environment of generated tasks."""
    return gym.make("comap/ALFWorld-v0", split="valid_unseen", source="generated")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/viewed"))
    options = parser.parse_args()

    models = shipped()
    agent = create_agent("comap", head=models.head, **models.settings["agent"])
    world_model = LanguageWorldModel(
        create_language_model("shipped:wm"), **models.settings["world_model"]
    )
    run = Run(
        make_env=make_env,
        agent=agent,
        tasks=make_env().unwrapped.tasks.ids[: options.episodes],
        lm=create_language_model("shipped:agent"),
        world_model=world_model,
        keep="prompts",
    )
    summary = run_to(options.out, run, live=options.episodes)
    for episode in read_trajectories(options.out / "trajectories.jsonl"):
        revised = sum(bool(step.notes.get("gate")) for step in episode.steps)
        end = "won" if episode.success else "not won"
        print(f"{episode.task}: {end} in {len(episode.steps)} steps, {revised} revised")
    print(f"won {summary['success']['value']:.0%} of {summary['success']['n']}")
    print(f"page: {view_run(options.out)}")


if __name__ == "__main__":
    main()
