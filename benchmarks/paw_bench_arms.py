"""The arms of the PaW results, and which settings each has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, suggest
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.presets import paw_preset

__all__ = [
    "ARMS",
    "PACKAGES",
    "SETTINGS",
    "VARIED",
    "Arm",
    "arm_of",
    "training_of",
]

PACKAGES = ("torch", "transformers", "trl", "accelerate", "gymnasium", "numpy")
"""What results name the versions of."""


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm of the results.

    Attributes:
        name: Its name in files: that of its base, and after a plus what is added to it.
        told: Its name in tables.
        changes: Settings that differ from those all arms have in common.

    Example:
        >>> arm_of("grpo+paw-ce").compared
        ('grpo', 'grpo+paw')
    """

    name: str
    told: str
    changes: Mapping[str, Any]

    @property
    def compared(self) -> tuple[str, ...]:
        """The arms it is compared with: its base, and PaW in full where a part of it is changed."""
        base, _, added = self.name.partition("+")
        if not added:
            return ()
        return (base,) if added == "paw" else (base, f"{base}+paw")


_TOLD = {"grpo": "GRPO", "gigpo": "GiGPO", "rloo": "RLOO", "ppo": "PPO"}
_PARTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("no-adaptive", "w/o adaptive weight", {"adaptive": False}),
    ("ce", "cross-entropy", {"wm_loss": "ce"}),
    ("random", "rows at random", {"selection": "random"}),
    ("lowest", "rows of lowest entropy", {"selection": "bottom"}),
    *((f"alpha-{alpha}", f"α = {alpha}", {"alpha": alpha}) for alpha in (0.25, 0.5, 1.0)),
    *((f"rho-{rho}", f"ρ = {rho}", {"rho": rho}) for rho in (0.1, 0.4, 0.6, 0.8, 1.0)),
)

ARMS = (
    *(
        Arm(name + added, told + shown, {"algorithm": name, "paw": bool(added)})
        for name, told in _TOLD.items()
        for added, shown in (("", ""), ("+paw", "+PaW"))
    ),
    *(
        Arm(
            f"grpo+paw-{name}",
            f"GRPO+PaW, {told}",
            {"algorithm": "grpo", "paw": True, **changes},
        )
        for name, told, changes in _PARTS
    ),
)
"""All arms: each algorithm without PaW and with it, and PaW with one part changed (METHODS.md 2.10:
P-T3, P-T4, P-F6, and the selections that are ours)."""

VARIED = tuple(sorted({"seed", "groups", "members"}.union(*(arm.changes.keys() for arm in ARMS))))
"""The settings in which runs of one result may differ."""

SETTINGS: dict[str, Any] = {
    "groups": 16,
    "members": 8,
    "updates": 30,
    "max_episode_steps": 30,
    "live": 128,
    "prompts": "brief",
    "state_text": "belief",
    "form": "given",
    "temperature": 1.0,
    "old_logprobs": "sampled",
    "mini_batch_rows": 256,
    "micro_batch_tokens": 8192,
    "learning_rate": 1e-4,  # of pilots on one seed: 2e-4 won no more after 18 updates, 1e-3 less
    "kl": 0.01,
    "entropy_bonus": 0.001,
    "invalid_penalty": 0.1,
    "evaluation_tasks": None,
    "evaluation_every": 0,
    "evaluation_temperature": 0.4,
    "demonstrations": None,
    "warmup_tokens": 0,
    "save_updates": 5,
}
"""What all arms have in common, beside the preset ``tiny``."""


def arm_of(name: str) -> Arm:
    """Return the arm of a name.

    Raises:
        OptionError: There is none.
    """
    known = {arm.name: arm for arm in ARMS}
    if name not in known:
        raise OptionError(f"there is no arm {name!r}; {suggest(name, list(known))}")
    return known[name]


def training_of(arm: Arm, seed: int, settings: Mapping[str, Any] | None = None) -> PaWTraining:
    """Return the settings of a run.

    PPO has no groups: it plays as many tasks as the others have episodes (METHODS.md 2.1).

    Args:
        arm: The arm.
        seed: The seed.
        settings: Further settings of all arms.

    Example:
        >>> config = training_of(arm_of("ppo+paw"), 1)
        >>> config.row, config.groups, config.members
        ('PPO+PaW', 128, 1)
    """
    common = {**SETTINGS, **(settings or {}), "seed": seed}
    if arm.changes["algorithm"] == "ppo":
        common |= {"groups": common["groups"] * common["members"], "members": 1}
    return paw_preset("tiny", **{**common, **arm.changes})
