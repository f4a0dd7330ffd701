"""Play all environments with SmolLM2-135M-Instruct, freely and masked, and count what happens.

    python benchmarks/measure/smollm2.py MODEL --out FILE

MODEL is the folder of a Hugging Face model; it is made where it is missing (`smollm2_model.py`). A model of
this size wins next to nothing: what counts is that nothing which it says breaks a run or misleads.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym

import comap  # noqa: F401  (registers the environments)
from comap.agents.react import ReActAgent, ReActConfig
from comap.agents.run import Run, run_to
from comap.benchmarks.record import circumstances, write_result
from comap.envs.panel import evenly
from comap.envs.registry import env_class
from comap.lm import HFLanguageModel, LanguageModel

ENVIRONMENTS = (
    "comap/ALFWorld-v0",
    "comap/ScienceWorld-v0",
    "comap/WebShop-v0",
    "comap/StableToolBench-v0",
    "comap/SearchQA-v0",
    "comap/Web-v0",
)
DECODINGS = ("free", "masked")
DRAFT_TOKENS = 128
PACKAGES = ("torch", "transformers", "gymnasium", "numpy")


def options_of(env_id: str, decoding: str, steps: int) -> dict[str, Any]:
    """Return the options of an environment: generated tasks, and actions to choose from where masked."""
    cls = env_class(env_id)
    options = {**cls.generated_options, "max_episode_steps": steps}
    # Where the action space is open there is nothing to choose from, and masked decoding acts as free.
    return {**options, **cls.listed_actions()} if decoding == "masked" else options


def played(
    lm: LanguageModel, env_id: str, decoding: str, tasks: int, steps: int, folder: Path
) -> Mapping[str, Any]:
    """Return the summary of a run of ReAct on some tasks of the hardest split."""
    split = env_class(env_id).test_splits[-1]
    options = options_of(env_id, decoding, steps)

    def make_env() -> gym.Env[str, str]:
        return gym.make(env_id, split=split, **options)

    with closing(make_env()) as env:
        ids = evenly(env.get_wrapper_attr("tasks").ids, tasks)
    agent = ReActAgent(ReActConfig(decoding=decoding, draft_tokens=DRAFT_TOKENS))
    run = Run(make_env=make_env, agent=agent, tasks=ids, lm=lm)
    return run_to(folder, run, concurrency=tasks)


def rows(lm: LanguageModel, env_ids: list[str], tasks: int, steps: int) -> Iterator[dict[str, Any]]:
    """Yield what came of each environment and way of decoding."""
    for env_id in env_ids:
        for decoding in DECODINGS:
            with tempfile.TemporaryDirectory() as folder:
                summary = played(lm, env_id, decoding, tasks, steps, Path(folder) / "run")
            yield {"env": env_id, "decoding": decoding, "summary": dict(summary)}


def main() -> None:
    """Measure, and write a result file after each row, so that a run that was stopped is not lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=8)
    # Enough steps of an episode to see what a model writes, and few enough for two cores.
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--env", nargs="+", default=list(ENVIRONMENTS))
    options = parser.parse_args()

    lm = HFLanguageModel(options.model, name="SmolLM2-135M-Instruct")
    settings = {"tasks": options.tasks, "steps": options.steps, "draft_tokens": DRAFT_TOKENS}
    result: dict[str, Any] = {"settings": settings, "rows": [], **circumstances(PACKAGES)}
    for row in rows(lm, options.env, options.tasks, options.steps):
        result["rows"].append(row)
        write_result(options.out, result)
        print(row["env"], row["decoding"], row["summary"]["success"], flush=True)


if __name__ == "__main__":
    main()
