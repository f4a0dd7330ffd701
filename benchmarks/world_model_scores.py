"""`comap score world-model`: Delta-F1 of any world model on a fixed set of transitions."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import ExpertAgent, RandomAgent, run_episode
from ..agents.worlds import fit_retrieval
from ..envs.panel import evenly
from ..envs.registered import evaluated_splits
from ..errors import DataNotFound, OptionError
from ..trainers.evaluation import score_transitions
from ..trainers.frozen_sets import frozen_set, load_transitions, save_transitions
from ..trainers.setup import Environments
from ..trajectory import Trajectory
from ..worldmodel import RetrievalWorldModel, Transition, WorldModel
from ..worldmodel.create import create_world_model
from .options import pairs
from .record import circumstances, write_result
from .run_models import Models, kind_of_world, world_model_of
from .run_options import add_models, add_worlds
from .tables import Table
from .terminal import print_table

__all__ = ["declare", "drawn_transitions", "run"]

_FROZEN = "stages/*-frozen-transitions/transitions.jsonl"
_PACKAGES = ("gymnasium", "numpy", "torch", "transformers", "openai")
_MIXED = 0.1  # share of mixtures of actions among the random agent's, most of which are refused
_PARTS = {
    "all": "all",
    "nonempty": "those that change a fact",
    "predictable": "those whose facts can be foreseen",
    "unpredictable": "the others",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options of `comap score world-model` to its parser.

    Example:
        >>> parser = argparse.ArgumentParser("comap score world-model")
        >>> declare(parser)
        >>> parser.parse_args(["--world-model", "null", "--n", "50"]).n
        50
    """
    add = parser.add_argument_group("on which transitions").add_argument
    add("--env", default="comap/ALFWorld-v0", metavar="ID", help="where (default: %(default)s)")
    option = "option of the environment (repeatable)"
    add("--env-option", action="append", metavar="NAME=VALUE", help=option)
    add("--data-dir", metavar="DIR", help="folder with official data")
    add("--split", metavar="NAME", help="split (default: the environment's hardest for tests)")
    kept = "a file of transitions, or a folder of comap train comap, whose frozen ones are taken"
    add("--transitions", metavar="PATH", help=f"{kept} (default: drawn anew)")
    drawn = "transitions to draw, half an expert's, half a random agent's (default: %(default)s)"
    add("--n", type=int, default=200, metavar="N", help=drawn)
    add("--save", metavar="FILE", help="keep the transitions in this file, for --transitions")
    add_models(parser)
    add_worlds(parser)
    more = parser.add_argument_group("how, and where to").add_argument
    more("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    more("--result", metavar="FILE", help="write the result to this file, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `comap score world-model` with parsed arguments and return the exit status.

    Raises:
        CoMapError: The options are not right, or data or a model is missing.

    Example:
        >>> parser = argparse.ArgumentParser("comap score world-model")
        >>> declare(parser)
        >>> run(parser.parse_args(["--world-model", "null", "--n", "4"]))  # doctest: +SKIP
        0
    """
    if options.world_model is None:
        raise OptionError("expected a world model to score, found none; add --world-model")
    if options.world_model in ("oracle", "noisy"):
        raise OptionError(
            f"{options.world_model} tries actions out in a live episode, and recorded transitions have "
            "none; score another world model"
        )
    if options.n < 2:
        raise OptionError(f"--n must be at least 2, not {options.n}")
    environments = Environments(options.env, _env_options(options))
    split = options.split or next(reversed(evaluated_splits(options.env)), "test")
    with closing(environments(split)) as env:
        canonicalizer = env.get_wrapper_attr("canonicalizer")
        transitions = _transitions(options, env)
    if options.save is not None:
        save_transitions(Path(options.save), transitions)
    with tempfile.TemporaryDirectory() as folder:
        model = _world_model(options, environments, Path(folder))
        scores = score_transitions(model, transitions, canonicalizer)
    source = "given" if options.transitions else "half an expert's, half a random agent's"
    result = {
        "benchmark": "world model",
        "world_model": kind_of_world(options),
        "env": environments.describe([split]),
        "split": split,
        "source": source,
        "seed": options.seed,
        "scores": scores,
        **circumstances(_PACKAGES),
    }
    if options.result is not None:
        write_result(Path(options.result), result)
    print_table(_table(options, scores))
    return 0


def drawn_transitions(env: gymnasium.Env[str, str], n: int, seed: int = 0) -> list[Transition]:
    """Return transitions of an environment's split, half an expert's and half a random agent's.

    Both play the same tasks, as many as give enough, spread evenly over the split.

    Args:
        env: The environment; it has an expert.
        n: How many.
        seed: The same seed draws the same.

    Raises:
        OptionError: Nobody knows how its tasks are solved.

    Example:
        >>> import comap
        >>> env = gymnasium.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
        >>> len(drawn_transitions(env, 6))
        6
    """
    tasks = env.get_wrapper_attr("tasks").ids
    told: list[list[Trajectory]] = []
    for agent in (ExpertAgent(), RandomAgent(seed=seed, mixed=_MIXED)):
        played: list[Trajectory] = []
        for task in evenly(tasks, min(len(tasks), max(n // 4, 2))):
            played.append(run_episode(env, agent, task=task, seed=seed))
            if sum(len(one.steps) for one in played) >= 2 * n:
                break
        if not any(one.steps for one in played):
            raise OptionError(
                f"expected episodes of {agent.name} to draw from, found none; give --transitions"
            )
        told.append(played)
    return frozen_set(told[0], told[1], n, seed)


def _transitions(options: argparse.Namespace, env: gymnasium.Env[str, str]) -> list[Transition]:
    if options.transitions is None:
        return drawn_transitions(env, options.n, options.seed)
    place = Path(options.transitions)
    if place.is_dir():
        found = sorted(place.glob(_FROZEN))
        if not found:
            raise DataNotFound(
                f"expected the frozen transitions of a training in {place}, found none; give a folder "
                "of comap train comap, or a file"
            )
        place = found[0]
    transitions = load_transitions(place)
    strange = {query.env_id for query, _ in transitions} - {options.env}
    if strange:
        raise OptionError(
            f"expected transitions of {options.env} in {place}, found some of {min(strange)}; add "
            f"--env {min(strange)}"
        )
    return transitions


def _world_model(
    options: argparse.Namespace, environments: Environments, folder: Path
) -> WorldModel:
    def retrieval() -> RetrievalWorldModel:
        make_env = partial(environments, "train")
        with closing(make_env()) as env:
            tasks = evenly(env.get_wrapper_attr("tasks").ids, options.fit_tasks)
        return fit_retrieval(folder / "retrieval.jsonl", make_env, tasks, options.seed)

    if options.model is None:
        options.model = options.world_model  # the options of models are about this one
    made = world_model_of(options, Models(options, folder), retrieval)
    if isinstance(made, str | Mapping):
        return create_world_model(made)
    assert made is not None
    return made


def _env_options(options: argparse.Namespace) -> dict[str, Any]:
    chosen = pairs(options.env_option, "--env-option")
    return chosen if options.data_dir is None else chosen | {"data_dir": options.data_dir}


def _table(options: argparse.Namespace, scores: Mapping[str, Any]) -> Table:
    rows: Sequence[tuple[object, ...]] = [
        (told, one["n"], one["delta_f1"], one["stderr"], one["exact_text"])
        for part, told in _PARTS.items()
        if (one := scores[part])["n"]
    ]
    failures = scores["parse_failure_rate"]
    unread = f"Unreadable predictions: {100 * (failures or 0):.1f} %."
    note = f"{unread} Fingerprint of the transitions: {scores['fingerprint']}."
    heads = ("transitions", "n", "Delta-F1", "s.e.", "same text")
    return Table(f"{options.world_model} on {options.env}", heads, tuple(rows), note)
