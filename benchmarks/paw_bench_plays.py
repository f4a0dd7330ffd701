"""Further plays of the evaluation tasks, with the policies that a run began and ended with.

One play of each task leaves much to chance: two evaluations of one policy at temperature 0.4 differ by
some points. More plays cost a small part of what a further seed does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..agents.run import run_to
from ..agents.run_description import Run
from ..envs.panel import evenly
from ..envs.storage import locked
from ..errors import DataCorrupt, OptionError
from ..trainers.playing import played
from .paw_bench_arms import Arm, arm_of, training_of
from .paw_bench_starts import PaWBench, start_folder
from .record import write_result

__all__ = ["further_plays", "play_again"]

_DONE = "won.json"
_HOURS = 24 * 3600.0


def play_again(
    bench: PaWBench,
    arm: Arm,
    seed: int,
    plays: int,
    tell: Callable[[Mapping[str, Any]], object] = lambda event: None,
) -> None:
    """Play the evaluation tasks until each was played so often, with both policies of a run.

    The first play is the training's own. What was played before is not played again, and the starting
    policy's are shared by the arms of its seed; several processes may do this at once.

    Args:
        bench: Where the run is; it has ended.
        arm: Its arm.
        seed: Its seed.
        plays: How often each task is played in all.
        tell: Told what happens.

    Raises:
        OptionError: What was played before was played with another policy or other settings.
    """
    ends = {"start": start_folder(bench, seed), "final": bench.place_of(arm.name, seed)}
    ends["final"] = ends["final"] / "models" / "agent"
    for end, model in ends.items():
        place = _place(bench, arm.name, seed, end)
        if plays > 1:
            place.mkdir(parents=True, exist_ok=True)
            with locked(place / "lock", wait=_HOURS):
                _play(bench, arm, seed, plays, (end, model, place), tell)


def further_plays(bench: PaWBench, arm: str, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return what was won in the further plays that both policies of a run have of all splits.

    Args:
        bench: Where the run is.
        arm: Its arm's name.
        seed: Its seed.

    Returns:
        For ``start`` and ``final`` as many plays, each with the tasks won of every split by its name,
        ``scores``, the mean score of each split (nothing in files of comap 0.1 before WebShop), and
        ``errors``, the number of faults.

    Raises:
        DataCorrupt: A file is not what `play_again` writes.

    Example:
        >>> further_plays(PaWBench(out="nowhere"), "grpo", 0)
        {'start': [], 'final': []}
    """
    splits = training_of(arm_of(arm), seed, bench.settings).evaluation_splits
    found: dict[str, list[dict[str, Any]]] = {"start": [], "final": []}
    for end, some in found.items():
        place, number = _place(bench, arm, seed, end), 1
        while all(_path(place, s, number).is_file() for s in splits):
            told = {s: _read(_path(place, s, number)) for s in splits}
            errors = sum(one["errors"] for one in told.values())
            scores = {s: one["score"] for s, one in told.items()}
            won = {s: one["won"] for s, one in told.items()}
            some.append({"won": won, "scores": scores, "errors": errors})
            number += 1
    shared = min(len(some) for some in found.values())
    return {end: some[:shared] for end, some in found.items()}


def _place(bench: PaWBench, arm: str, seed: int, end: str) -> Path:
    folder = bench.place_of(arm, seed)
    return folder / "plays" if end == "final" else bench.runs.parent / "plays" / f"start-{seed}"


def _path(place: Path, split: str, number: int) -> Path:
    return place / f"{split}-{number}" / _DONE


def _play(
    bench: PaWBench,
    arm: Arm,
    seed: int,
    plays: int,
    what: tuple[str, Path, Path],
    tell: Callable[[Mapping[str, Any]], object],
) -> None:
    from ..trainers.paw.policy import Policy
    from ..trainers.setup_models import weights_hash

    end, model, place = what
    config = training_of(arm, seed, bench.settings)
    make_env = bench.environments(config.max_episode_steps)
    known = {
        "weights": weights_hash(model),
        "agent": config.agent_settings(config.evaluation_temperature),
        "max_episode_steps": config.max_episode_steps,
    }
    policy: Policy | None = None
    for split in config.evaluation_splits:
        for number in range(1, plays):
            path = _path(place, split, number)
            if path.is_file():
                _agree(_read(path)["of"], known, path)
                continue
            policy = policy or Policy.open(config, model, device=bench.device)
            env = make_env(split)
            tasks = env.get_wrapper_attr("tasks").ids
            env.close()
            run = Run(
                make_env=partial(make_env, split),
                agent=policy.agent(config.evaluation_temperature),
                tasks=tasks
                if (wanted := config.evaluation_tasks) is None
                else evenly(tasks, wanted),
                lm=policy.language_model(),
                seed=number,
                config={"split": split, **known},
            )
            run_to(path.parent / "rank-0-of-1", run, live=config.live)
            episodes = played(path.parent)
            won = {one.task: int(one.success) for one in episodes}
            errors = sum(one.error is not None for one in episodes)
            score = sum(one.steps[-1].score if one.steps else 0.0 for one in episodes)
            mean = round(score / max(len(episodes), 1), 6)
            write_result(path, {"of": known, "errors": errors, "score": mean, "won": won})
            rate = sum(won.values()) / max(len(won), 1)
            tell({"event": "played", "end": end, "split": split, "play": number, "success": rate})


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        if not all(found["won"][task] in (0, 1) for task in found["won"]):
            raise ValueError("tasks that are neither won nor lost")
        score = found.get("score")
        told = {"errors": int(found["errors"]), "score": None if score is None else float(score)}
        return {"of": found["of"], "won": found["won"], **told}
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected the tasks won in a play in {path}, found {error}; remove its folder and play "
            "again"
        ) from error


def _agree(found: Mapping[str, Any], known: Mapping[str, Any], path: Path) -> None:
    wanted = json.loads(json.dumps(known))
    if found != wanted:
        names = ", ".join(name for name in wanted if found.get(name) != wanted[name])
        raise OptionError(
            f"expected plays of the same policy with the same settings in {path.parent}, found "
            f"others ({names}); remove that folder, or give --out another one"
        )
