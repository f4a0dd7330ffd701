"""What small models do on the official ALFWorld games: ``comap bench small``.

Policies and world models of about half a million parameters are trained here on demonstrations (see
`small_training`), then every agent plays all games of valid_seen and valid_unseen, greedily, with
every seed's own models. Each cell is one file, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import ExpertAgent, run_episode, run_episodes
from ..agents.base import View
from ..agents.create import create_agent
from ..agents.imagine_and_act import ImagineAndActConfig, imagined_text, imagining
from ..envs import TextEnv
from ..errors import DataNotFound, LanguageModelError
from ..facts import State
from ..lm import Generate, LanguageModel
from ..lm.cache import CachedLanguageModel
from ..lm.hf import HFLanguageModel
from ..metrics import delta_f1_report, success_rate
from ..trainers.demonstrations import demonstrations, read_demonstrations
from ..trajectory import Trajectory
from ..worldmodel import (
    NullWorldModel,
    Prediction,
    Query,
    RetrievalWorldModel,
    Transition,
    WorldModel,
    ask,
    transitions_of,
)
from ..worldmodel.language import LanguageWorldModel
from .record import circumstances, write_result
from .small_data import side_steps
from .small_training import (
    PARTS,
    SmallConfig,
    agent_settings,
    train_part,
    world_model_settings,
)

__all__ = ["CELLS", "Cell", "add_parser", "collect", "evaluate", "score_world_models"]

_ENV = "comap/ALFWorld-v0"
_SPLITS = ("valid_seen", "valid_unseen")
_PACKAGES = ("torch", "transformers", "tokenizers", "gymnasium", "numpy")
_TRANSITIONS = 1000
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the results, for each seed.

    Attributes:
        agent: The agent's id.
        state_text: What its policy was trained on: ``belief`` or ``history``.
        decoding: ``free``, ``masked`` or ``scored``.
        world_model: ``language``, ``retrieval`` or None.
        options: Further settings of the agent.
    """

    agent: str
    state_text: str
    decoding: str
    world_model: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """A name for files."""
        settings = [str(value) for _, value in self.options]
        parts = [self.agent, self.state_text, self.decoding, self.world_model or "", *settings]
        return "-".join(part for part in parts if part)


_BOTH = ("free", "scored")
_SHORT = (("reflect_tokens", 32),)

CELLS = (
    *(Cell("react", "belief", decoding) for decoding in ("free", "masked", "scored")),
    *(Cell("react", "history", decoding) for decoding in _BOTH),
    *(Cell("imagine-and-act", "belief", decoding) for decoding in _BOTH),
    *(
        Cell("comap", "belief", decoding, world_model, (("p_source", "verbalizer"),))
        for world_model in ("language", "retrieval")
        for decoding in _BOTH
    ),
    *(Cell("comap", "belief", decoding, "language", (("p_source", "head"),)) for decoding in _BOTH),
)
"""All rows: agents trained by SFT alone, none by CoMap."""


class Bench:
    """The models, tasks and files of one run.

    Args:
        config: What was trained, and where it is.
    """

    def __init__(self, config: SmallConfig):
        self.config = config
        self.out = Path(config.out)
        self._models: dict[str, LanguageModel] = {}
        self._retrieval: RetrievalWorldModel | None = None

    def env(self, split: str, **options: Any) -> gymnasium.Env[str, str]:
        """Return an environment of the official games."""
        return gymnasium.make(
            _ENV, data_dir=self.config.data_dir, source="official", split=split, **options
        )

    def tasks(self, split: str) -> Sequence[str]:
        """Return all tasks of a split."""
        inner = self.env(split).unwrapped
        assert isinstance(inner, TextEnv)
        return inner.tasks.ids

    def model(self, part: str, seed: int) -> LanguageModel:
        """Return a trained model; what it was asked before is answered from memory.

        Raises:
            DataNotFound: It was not trained yet.
        """
        name = f"{part}-{seed}"
        if name not in self._models:
            folder = self.out / name
            if not (folder / "training.json").is_file():
                raise DataNotFound(f"expected a trained model at {folder}; run the stage 'train'")
            self._models[name] = CachedLanguageModel(
                HFLanguageModel(folder, dtype="float32", name=name)
            )
        return self._models[name]

    def world_model(self, kind: str | None, seed: int) -> WorldModel | None:
        """Return a world model by its kind."""
        if kind == "language":
            lm = self.model("world-model", seed)
            return LanguageWorldModel(lm, **world_model_settings())
        return self.retrieval() if kind == "retrieval" else None

    def retrieval(self) -> RetrievalWorldModel:
        """Return a retrieval model of the transitions that the language model learned from."""
        if self._retrieval is None:
            plans = list(read_demonstrations(Path(self.config.demos)))
            tasks = sorted({task for task, _ in plans})
            picked = random.Random(0).sample(tasks, min(self.config.side_games, len(tasks)))
            model = RetrievalWorldModel()
            for shown in demonstrations(self.env("train", max_episode_steps=200), plans):
                model.fit(transitions_of(shown))
            wandering = self.env("train", expert="explore", max_episode_steps=24)
            for aside in side_steps(wandering, picked, 0):
                model.fit(transitions_of(aside))
            self._retrieval = model
        return self._retrieval

    def frozen(self) -> list[Transition]:
        """Return the transitions that world models are scored on, the same for every model.

        Half are an expert's (which explores), half those of the policy of seed 0 with scored
        decoding, from all games of both splits (METHODS.md 1.12).
        """
        policy = self.play(Cell("react", "belief", "scored"), 0)
        chosen: list[Transition] = []
        rng = random.Random(0)
        expert = [t for split in _SPLITS for t in self._expert(split)]
        for source in (expert, policy):
            steps = [step for trajectory in source for step in transitions_of(trajectory)]
            chosen += rng.sample(steps, min(_TRANSITIONS // 2, len(steps)))
        return chosen

    def _expert(self, split: str) -> Iterator[Trajectory]:
        env = self.env(split, expert="explore", max_episode_steps=_STEPS)
        for task in self.tasks(split):
            yield run_episode(env, ExpertAgent(), task=task)

    def play(self, cell: Cell, seed: int) -> list[Trajectory]:
        """Return the episodes of one cell, in the order of the tasks."""
        settings = agent_settings(cell.state_text, self.config.history_turns)
        agent = create_agent(
            cell.agent, decoding=cell.decoding, temperature=0.0, **settings, **dict(cell.options)
        )
        found: list[Trajectory] = []
        for split in _SPLITS:
            found += run_episodes(
                partial(self.env, split, max_episode_steps=_STEPS),
                agent,
                self.tasks(split),
                lm=self.model(cell.state_text, seed),
                world_model=self.world_model(cell.world_model, seed),
                live=32,
            )
        return found


class _OwnImagination:
    """A policy as a world model: what Imagine-and-Act's own model imagines of an action."""

    def __init__(self, lm: LanguageModel, settings: Mapping[str, Any]):
        self._lm = lm
        self._config = ImagineAndActConfig(temperature=0.0, **settings)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        found = []
        for reply in self._lm.generate([self._request(query) for query in queries]):
            if isinstance(reply, LanguageModelError):
                raise reply
            found.append(Prediction(imagined_text(reply), source="itself"))
        return found

    def _request(self, query: Query) -> Generate:
        view = View(
            query.env_id,
            "",
            query.goal,
            query.history,
            query.state,
            query.admissible_actions,
            len(query.history) - 1,
            lambda: None,
            self._lm.count_tokens,
        )
        return imagining(view, self._config, query.action)


def evaluate(bench: Bench, cell: Cell, seed: int) -> dict[str, Any]:
    """Play all games of one cell, unless that was done, and return its numbers."""
    path = bench.out / "cells" / f"{cell.name}-{seed}.json"
    if path.is_file():
        done: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return done
    start = time.process_time()
    episodes = bench.play(cell, seed)
    seconds = time.process_time() - start
    steps = [step for episode in episodes for step in episode.steps]
    result = {
        "agent": cell.agent,
        "state_text": cell.state_text,
        "decoding": cell.decoding,
        "world_model": cell.world_model,
        "options": dict(cell.options),
        "seed": seed,
        "success": {split: _success(episodes, split) for split in (*_SPLITS, None)},
        "errors": sorted({e.error for e in episodes if e.error}),
        "steps": len(steps),
        "invalid_share": round(sum(s.invalid_action for s in steps) / max(len(steps), 1), 4),
        "unparsed_share": _share(steps, "draft_parsed", False),
        "revised_share": _share(steps, "gate", True),
        "calls_per_step": round(sum(len(s.calls) for s in steps) / max(len(steps), 1), 3),
        "cpu_seconds": round(seconds, 1),
        "won": [episode.success for episode in episodes],
        **circumstances(_PACKAGES),
    }
    result["success"]["all"] = result["success"].pop(None)
    write_result(path, result)
    return result


def _success(episodes: Sequence[Trajectory], split: str | None) -> dict[str, Any]:
    own = [e for e in episodes if split is None or e.task.startswith(f"{split}/")]
    rate = success_rate([e.success for e in own])
    return {"n": len(own), "won": sum(e.success for e in own), "rate": round(rate.value, 4)}


def _share(steps: Sequence[Any], note: str, value: object) -> float | None:
    """Return how often a note has a value, among the steps that have the note."""
    noted = [step.notes[note] for step in steps if note in step.notes]
    return round(sum(n == value for n in noted) / len(noted), 4) if noted else None


def score_world_models(bench: Bench, seeds: Sequence[int]) -> dict[str, Any]:
    """Score the world models by Delta-F1 on the frozen transitions, unless that was done."""
    path = bench.out / "cells" / "delta-f1.json"
    if path.is_file():
        done: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return done
    frozen = bench.frozen()
    models: dict[str, WorldModel] = {"null": NullWorldModel(), "retrieval": bench.retrieval()}
    for seed in seeds:
        model = bench.world_model("language", seed)
        assert model is not None
        models[f"language-{seed}"] = model
        policy = bench.model("belief", seed)
        models[f"itself-{seed}"] = _OwnImagination(policy, agent_settings("belief"))
    inner = bench.env("valid_seen").unwrapped
    assert isinstance(inner, TextEnv)
    scores = {name: _delta_f1(inner, model, frozen) for name, model in models.items()}
    result = {"transitions": len(frozen), "scores": scores, **circumstances(_PACKAGES)}
    write_result(path, result)
    return result


def _delta_f1(env: TextEnv, model: WorldModel, frozen: Sequence[Transition]) -> dict[str, float]:
    start = time.process_time()
    predictions = ask(model, [query for query, _ in frozen])
    seconds = time.process_time() - start
    update = env.canonicalizer.update
    rows: list[tuple[State, State, State]] = []
    exact = 0
    for (query, observation), prediction in zip(frozen, predictions, strict=True):
        said = update(query.state, query.action, prediction.observation)
        real = update(query.state, query.action, observation)
        rows.append((query.state, said, real))
        exact += prediction.observation.strip() == observation.strip()
    report = delta_f1_report(rows)
    return {
        "delta_f1": round(100 * report.mean, 2),
        "delta_f1_nonempty": round(100 * report.nonempty_mean, 2),
        "parse_failure_rate": round(report.parse_failure_rate, 4),
        "stderr": round(100 * report.stderr, 3),
        "exact_match": round(100 * exact / len(rows), 2),
        "n": len(rows),
        "cpu_seconds": round(seconds, 1),
    }


def collect(bench: Bench, seeds: Sequence[int]) -> dict[str, Any]:
    """Return all that was measured so far as one result."""
    cells = []
    for cell in CELLS:
        found = []
        for seed in seeds:
            path = bench.out / "cells" / f"{cell.name}-{seed}.json"
            if path.is_file():
                found.append(json.loads(path.read_text("utf-8")))
        if found:
            cells.append(_row(cell, found))
    training = {}
    for part in PARTS:
        for seed in seeds:
            path = bench.out / f"{part}-{seed}" / "training.json"
            if path.is_file():
                record = json.loads(path.read_text("utf-8"))
                training[f"{part}-{seed}"] = {
                    key: value
                    for key, value in record.items()
                    if key not in ("versions", "hardware")
                }
    path = bench.out / "cells" / "delta-f1.json"
    world_models = json.loads(path.read_text("utf-8")) if path.is_file() else None
    return {
        "benchmark": "small models on ALFWorld",
        "env": _ENV,
        "splits": list(_SPLITS),
        "max_episode_steps": _STEPS,
        "seeds": list(seeds),
        "cells": cells,
        "world_models": world_models,
        "training": training,
        **circumstances(_PACKAGES),
    }


def _row(cell: Cell, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a cell over its seeds: mean and spread, and what each seed gave."""
    row: dict[str, Any] = {
        "agent": cell.agent,
        "state_text": cell.state_text,
        "decoding": cell.decoding,
        "world_model": cell.world_model,
        "options": dict(cell.options),
        "seeds": [result["seed"] for result in found],
    }
    for split in (*_SPLITS, "all"):
        rates = [result["success"][split]["rate"] for result in found]
        row[split] = {
            "n": found[0]["success"][split]["n"],
            "mean": round(statistics.mean(rates), 4),
            "sd": round(statistics.stdev(rates), 4) if len(rates) > 1 else None,
            "rates": rates,
        }
    for name in (
        "invalid_share",
        "unparsed_share",
        "revised_share",
        "calls_per_step",
        "cpu_seconds",
    ):
        row[name] = [result[name] for result in found]
    row["errors"] = sorted({error for result in found for error in result["errors"]})
    row["won"] = ["".join("01"[won] for won in result["won"]) for result in found]
    return row


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench small``."""
    parser = kinds.add_parser(
        "small", help="train small models on ALFWorld demonstrations and let every agent play"
    )
    parser.add_argument("--data-dir", required=True, help="folder with the official games")
    parser.add_argument("--demos", required=True, help="file of demonstrations (.jsonl or .xz)")
    parser.add_argument("--out", default="runs/small", help="folder for models and cells")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds")
    parser.add_argument(
        "--stage", choices=("all", "train", "evaluate", "collect"), default="all", help="what to do"
    )
    parser.add_argument("--result", help="also write the collected result to this file")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    bench = Bench(SmallConfig(options.data_dir, options.demos, options.out))
    if options.stage in ("all", "train"):
        for seed in options.seeds:
            for part in PARTS:
                print(f"trained: {train_part(part, seed, bench.config)}", flush=True)
    if options.stage in ("all", "evaluate"):
        for seed in options.seeds:
            for cell in CELLS:
                found = evaluate(bench, cell, seed)
                print(f"{cell.name}-{seed}: {found['success']}", flush=True)
        print(score_world_models(bench, options.seeds)["scores"], flush=True)
    result = collect(bench, options.seeds)
    write_result(Path(options.result or bench.out / "result.json"), result)
    return 0
