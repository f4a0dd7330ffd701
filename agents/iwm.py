"""IWM: implicit world modelling, of "Agent Learning via Early Experience" (arXiv 2510.08558).

The agent acts as ReAct does. What is new is in its training: the same language model first learns
what follows the expert's actions and others that it might have taken (`exploration`), then it
imitates the expert.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checks import require_whole
from .ranges import require_between
from .react import ReActAgent, ReActConfig

__all__ = ["IWMAgent", "IWMConfig"]


@dataclass(frozen=True, kw_only=True)
class IWMConfig(ReActConfig):
    """ReAct's settings, and those of the exploration before training.

    Example:
        >>> IWMConfig().alternatives
        8
    """

    alternatives: int = 8
    """Alternative actions in each of the expert's states, K (METHODS.md 3 [D])."""
    exploration_temperature: float = 1.0
    """Temperature at which they are sampled [D]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(self, 1, "alternatives")
        require_between(self, 0, 10, "exploration_temperature")


class IWMAgent(ReActAgent):
    """Acts as `ReActAgent`; its model was trained on `world_modelling_rows`, then on demonstrations.

    It asks no world model.

    Deviations from METHODS.md 3: those of `ReActAgent`; and alternatives that mean the same action
    count once, so that a state may have fewer than `IWMConfig.alternatives`.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> IWMAgent().name
        'iwm'
    """

    name = "iwm"

    def __init__(self, config: IWMConfig | None = None):
        super().__init__(config or IWMConfig())
