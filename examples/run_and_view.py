"""Run the small CoMap agent that comap ships on a few tasks, and write an HTML page of its steps.

The agent drafts an action, asks its world model what follows, reflects, and a gate chooses. The page
shows every draft, prediction and reflection: open it in a browser.

    python examples/run_and_view.py --out runs/viewed

It needs ``pip install "comap-agents[viz,local]"``, writes a run's folder with ``view.html``, and takes
about half a minute on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium as gym

import comap  # registers the environments
from comap.agents import Run, create_agent, run_to
from comap.benchmarks import view_run
from comap.lm import create_language_model, shipped_models
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

    models = shipped_models()
    agent = create_agent("comap", **models.settings["agent"])
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
    summary = run_to(options.out, run, concurrency=options.episodes)
    for episode in read_trajectories(options.out / "trajectories.jsonl"):
        revised = sum(bool(step.notes.get("gate")) for step in episode.steps)
        end = "success" if episode.success else "failure"
        print(f"{episode.task}: {end} in {len(episode.steps)} steps, {revised} revised")
    print(f"success: {summary['success']['value']:.0%} of {summary['success']['n']} episodes")
    print(f"page: {view_run(options.out)}")


if __name__ == "__main__":
    main()
