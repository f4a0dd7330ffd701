"""What the paper's tables call the settings of a training."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import PaWTraining

__all__ = ["ablation_names", "row_name"]

_TITLES = {"grpo": "GRPO", "rloo": "RLOO", "gigpo": "GiGPO", "ppo": "PPO"}
_LOSSES = {"ce": "w/ CE", "mae": "w/ MAE", "clipped_ce": "w/ Clipped CE"}
_SELECTIONS = {"random": "Random Selection", "bottom": "Lowest-entropy Selection"}
_SIGNS = {
    "alpha": "α",
    "rho": "ρ",
    "entropy_mode": "entropy mode",
    "entropy_span": "entropy span",
}


def row_name(config: PaWTraining) -> str:
    """Return the name of settings among the rows of the paper's tables (METHODS.md 2.10).

    Args:
        config: The settings. In Table 4, whose algorithm is GRPO, a variant of PaW goes by its own
            name alone. Plain GRPO in a conversation that goes on is Search-R1, with a simulated
            engine ZeroSearch; these names are added to those of other algorithms.

    Example:
        >>> from .config import PaWTraining
        >>> row_name(PaWTraining(wm_loss="ce")), row_name(PaWTraining(algorithm="ppo", wm_loss="ce"))
        ('w/ CE', 'PPO+PaW w/ CE')
        >>> row_name(PaWTraining(paw=False, context="concat"))
        'Search-R1'
    """
    name = _of_algorithm(config)
    concat = "Search-R1" if config.context == "concat" else ""
    setting = "ZeroSearch" if config.engine == "simulated" else concat
    if not setting:
        return name
    return setting if name == _TITLES["grpo"] else f"{name} ({setting})"


def _of_algorithm(config: PaWTraining) -> str:
    title = _TITLES[config.algorithm]
    if not config.paw:
        return title
    changed = ", ".join(ablation_names(config))
    if changed and config.algorithm == "grpo":
        return changed
    return f"{title}+PaW {changed}".strip()


def ablation_names(config: PaWTraining) -> tuple[str, ...]:
    """Return what differs from PaW in full; nothing where PaW is off.

    Example:
        >>> from .config import PaWTraining
        >>> ablation_names(PaWTraining(adaptive=False, selection="random", rho=0.4))
        ('w/o Ada. Coef.', 'Random Selection', 'ρ = 0.4')
    """
    if not config.paw:
        return ()
    told = [] if config.adaptive else ["w/o Ada. Coef."]
    if config.wm_loss in _LOSSES:
        told.append(_LOSSES[config.wm_loss])
    if config.selection in _SELECTIONS:
        told.append(_SELECTIONS[config.selection])
    usual = {part.name: part.default for part in fields(config)}
    for name, sign in _SIGNS.items():
        value = getattr(config, name)
        if value != usual[name]:
            told.append(f"{sign} = {value if isinstance(value, str) else format(value, 'g')}")
    return tuple(told)
