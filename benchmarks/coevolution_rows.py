"""The rows of the co-evolution results: which settings each has, and how one is run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from ..errors import OptionError
from ..trainers.coevolution import CoEvolution, roles_of
from ..trainers.config import CoMapTraining, preset
from ..trajectory import Trajectory
from .coevolution_models import WarmUp
from .record import circumstances
from .small_training import PACKAGES

__all__ = ["BASE", "ROWS", "SETTINGS", "Row", "run_row", "training_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the results.

    Attributes:
        name: Its name in files.
        told: Its name in tables.
        changes: Settings that differ from CoMap's.
        shared: The last stage that it has in common with CoMap, whose results it takes over; None
            where it has none.
    """

    name: str
    told: str
    changes: Mapping[str, Any]
    shared: str | None = "round-0-evaluation"


BASE = Row("comap", "CoMap", {}, None)
"""CoMap itself."""

ROWS = (
    Row(
        "sft",
        "SFT",
        {
            "reflection_init": False,
            "rounds": 0,
            "p_source": "head",
        },  # an untrained one keeps drafts
        "frozen-transitions",
    ),
    Row("on-policy", "On-policy (eta = 0)", {"wmsd": False}),
    BASE,
    Row("frozen-wm", "Frozen WM", {"world_model_evolution": False}),
    Row("no-action-gate", "w/o Action Gate", {"action_gate": False}, "reflection-init"),
    Row("no-online-reflection", "w/o Online Reflection", {"online_reflection": False}),
    Row("no-ws-gate", "w/o WS Gate", {"world_state_gate": False}),
    Row(
        "more-reflection",
        "CoMap, 3x reflection tasks",
        {"reflection_tasks": 1200, "init_epochs": 6},  # 1.5 times the optimizer's steps
        "frozen-transitions",
    ),
)
"""All rows; CoMap's own comes before those that share its stages when they are run."""

SETTINGS: dict[str, Any] = {
    "live": 128,
    "decoding": "free",
    "evaluation_temperature": 0.7,
    "suffix_temperature": 0.7,
    "policy_rate": 5e-4,
    "world_model_rate": 5e-4,
    "exact": False,  # twice as fast; a training that is killed may then end a little otherwise
    "accumulate": 1,
    "reflection_tasks": 400,
    "states_per_episode": 6,
    "init_context": "env",  # the first world model has never seen an action refused
    "init_epochs": 12,
    "balance": 1.5,
    "round_balance": 3.0,
    "rounds": 2,
    "tasks_per_round": 64,
    "logging_steps": 20,
    "save_steps": 100,
    "evaluation_tasks": 16,
    "final_tasks": 70,
    "frozen_transitions": 1000,
    "diagnosed": 50,
}
"""What all rows have in common, beside the preset ``tiny``."""


def training_of(row: Row, seed: int, settings: Mapping[str, Any] | None = None) -> CoMapTraining:
    """Return the settings of a row.

    Example:
        >>> training_of(ROWS[1], 0).wmsd
        False
    """
    return preset("tiny", **{**SETTINGS, **(settings or {}), "seed": seed, **row.changes})


def run_row(
    row: Row,
    seed: int,
    warm: WarmUp,
    shown: Sequence[Trajectory],
    settings: Mapping[str, Any] | None = None,
    tell: Any = None,
) -> Path:
    """Run a row with a seed, unless that was done, and return its folder.

    Args:
        row: The row.
        seed: The seed.
        warm: Where the warmed-up models are, and what is played.
        shown: The demonstrations.
        settings: Further settings of all rows.
        tell: Told what happens.

    Raises:
        OptionError: CoMap's own row, whose stages this one shares, is not there.
    """
    from ..trainers.roles import Roles

    out = Path(warm.out) / "rows" / f"{row.name}-{seed}"
    if (out / "summary.json").is_file():
        return out
    config = training_of(row, seed, settings)
    if row.shared is not None:
        _take_over(Path(warm.out) / "rows" / f"{BASE.name}-{seed}", out, row.shared)
    roles = Roles.open(
        {"agent": f"{warm.out}/policy-{seed}", "wm": f"{warm.out}/wm-{seed}"},
        kind="full",
        roles=roles_of(config),
        dtype="float32",
        device="cpu",
        seed=seed,
    )

    def make_env(split: str) -> gymnasium.Env[str, str]:
        return warm.env(split)

    CoEvolution(
        config,
        roles,
        make_env,
        shown,
        out,
        about={"row": row.name},
        session=circumstances(PACKAGES),
        tell=tell or (lambda event: None),
        warmed_up=True,
    ).run()
    return out


def _take_over(source: Path, out: Path, last: str) -> None:
    """Copy the stages up to one of another training, whose settings do not differ before it."""
    done = sorted(source.glob("stages/*/done.json"))
    names = [path.parent.name.partition("-")[2] for path in done]
    if last not in names:
        raise OptionError(f"expected the stage {last} in {source}, found none; run row comap first")
    for path in done[: names.index(last) + 1]:
        target = out / "stages" / path.parent.name
        if not target.exists():
            draft = target.with_name(f"{target.name}.part")
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(path.parent, draft)
            draft.rename(target)
