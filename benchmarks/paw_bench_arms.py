"""The arms of the PaW results, and which settings each has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..envs.registered import evaluated_splits
from ..errors import OptionError, suggest
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.presets import paw_preset

__all__ = [
    "ALFWORLD",
    "ARMS",
    "PACKAGES",
    "SETTINGS",
    "VARIED",
    "WARMUP",
    "Arm",
    "arm_of",
    "settings_on",
    "training_of",
    "warmup_on",
]

ALFWORLD = "comap/ALFWorld-v0"
"""The environment unless another one is named."""

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
    "response_tokens": 24,  # whatever the preset says: results go on over versions
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
"""What all arms have in common, beside the preset ``tiny``: on ALFWorld."""

_ON: dict[str, dict[str, Any]] = {
    "comap/WebShop-v0": {  # METHODS.md 2.7 and 2.8, but for lengths: a belief has few words
        "train_split": "legacy-train-500",
        "evaluation_splits": ("legacy-test",),
        "max_episode_steps": 15,
        "mini_batch_rows": 64,
        "micro_batch_tokens": 2048,
        "prompt_tokens": 1024,
        "response_tokens": 48,
        "observation_tokens": 1024,
    }
}

WARMUP = {
    "warmup_tokens": 8_000_000,
    "sparse_tokens": 3_000_000,
    "warmup_tasks": 3500,
    "warmup_recoveries": 800,
    "warmup_parameters": 500_000,
}
"""How the policies that arms begin with are warmed up: on ALFWorld."""

_WARMUP_ON: dict[str, dict[str, Any]] = {
    "comap/WebShop-v0": {  # of pilots on one seed: with answers alone no product's id is ever copied
        "warmup_tokens": 4_000_000,
        "warmup_recoveries": 400,
        "warmup_vocabulary": 3584,  # all words, so that an id is one of them
        "warmup_parameters": 750_000,
        "warmup_prompt_share": 0.5,
    }
}


def settings_on(env_id: str) -> dict[str, Any]:
    """Return what all arms have in common on an environment, where it differs from `SETTINGS`.

    Args:
        env_id: A registered id.

    Raises:
        gymnasium.error.Error: There is no such environment.

    Example:
        >>> import comap
        >>> settings_on("comap/ALFWorld-v0")
        {'evaluation_splits': ('valid_seen', 'valid_unseen')}
        >>> settings_on("comap/WebShop-v0")["mini_batch_rows"]
        64
    """
    splits = evaluated_splits(env_id)
    return {**({"evaluation_splits": splits} if splits else {}), **_ON.get(env_id, {})}


def warmup_on(env_id: str) -> dict[str, Any]:
    """Return how the policies that arms begin with are warmed up on an environment.

    What is not in `WARMUP` are further fields of `comap.benchmarks.coevolution_models.WarmUp`.

    Args:
        env_id: A registered id.

    Example:
        >>> warmup_on("comap/ALFWorld-v0") == WARMUP
        True
    """
    return {**WARMUP, **_WARMUP_ON.get(env_id, {})}


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
