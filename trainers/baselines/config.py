"""The settings of each trained baseline of CoMap's Table 1, and their presets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from ...agents import ITPConfig, IWMConfig, WKMConfig
from ...errors import OptionError, suggest
from ...lm.encoder import DEFAULT_MODEL
from ..config import Range, changed, presets
from ..sft import BaselineTraining, SFTTraining

_COUNT, _SHARE, _ABOVE, _NUMBER = Range(1), Range(0, 1), Range(0, above=True), Range(0)
_ITP_COUNTS = "labelled world_model_epochs episodes_per_update micro_batches"
_ITP_NUMBERS = (
    "warmup_epochs episodes depth_cost depth_weight draft_weight success_bonus step_cost "
    "invalid_cost value_weight entropy_weight"
)


@dataclass(frozen=True, kw_only=True)
class IWMTraining(BaselineTraining):
    """IWM: the policy first learns what follows the expert's actions and others, then imitates.

    Example:
        >>> IWMTraining().agent.alternatives
        8
    """

    method: ClassVar[str] = "iwm"
    ranges: ClassVar[Mapping[str, Range]] = dict.fromkeys(("world_epochs", "explored"), _COUNT)

    agent: IWMConfig = field(default_factory=IWMConfig)
    """How the policy acts and explores."""
    explorer: Literal["policy", "sft"] = "policy"
    """Who proposes alternatives: the policy as the training begins, or a copy that imitated the
    expert first, where the policy begins untrained (ours). With --policy it is always that one."""
    explored: int | None = None
    """Demonstrations whose states are explored; None for all."""
    world_epochs: int = 1
    """Epochs of learning what follows."""

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the training's models; the last one explores."""
        own = self.explorer == "sft" and "agent" not in begun
        return ("agent", "explorer") if own else ("agent",)


@dataclass(frozen=True, kw_only=True)
class WKMTraining(BaselineTraining):
    """WKM: a knowledge model, an agent that acts on it, and a base of states and actions.

    The agent's task_knowledge and state_knowledge say who writes knowledge: the model before it is
    trained, or nobody and the belief facts, for models that cannot write. Its encoder is by default a
    sentence encoder, E5 (ours; see `WKMAgent` for the paper's).

    Raises:
        OptionError: A knowledge model is to be trained, and models have weights of their own.

    Example:
        >>> WKMTraining().learning_rate
        0.0001
    """

    method: ClassVar[str] = "wkm"
    ranges: ClassVar[Mapping[str, Range]] = {"compared": _COUNT}

    agent: WKMConfig = field(default_factory=lambda: WKMConfig(encoder=DEFAULT_MODEL))
    """How the agent acts, asks for knowledge and retrieves it."""
    learning_rate: float = 1e-4
    """Highest learning rate."""
    sampler: Literal["policy", "sft"] = "policy"
    """Who plays the episodes that may fail: the policy as the training begins, or a copy that
    imitated the expert first (ours). With --policy it is always that one."""
    compared: int | None = None
    """Demonstrated tasks that are played for that; None for all."""

    @property
    def trains_knowledge(self) -> bool:
        """Whether there is anything for a knowledge model to learn."""
        return self.agent.task_knowledge or self.agent.state_knowledge == "lm"

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the training's models."""
        own = self.agent.task_knowledge and self.sampler == "sft" and "agent" not in begun
        knowledge = ("knowledge",) if self.trains_knowledge else ()
        return ("agent", *knowledge, *(("explorer",) if own else ()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trains_knowledge and self.weights == "full":
            raise OptionError(
                "a knowledge model is an adapter beside the agent's: expected weights='lora', found "
                "'full'; with full weights use task_knowledge=False and state_knowledge='belief'"
            )


@dataclass(frozen=True, kw_only=True)
class ITPTraining(BaselineTraining):
    """ITP_R: a policy that learns how far to look ahead, first from labels, then by playing.

    Example:
        >>> ITPTraining().depth_cost, ITPTraining().episodes
        (0.2, 50)
    """

    method: ClassVar[str] = "itp"
    ranges: ClassVar[Mapping[str, Range]] = {
        **dict.fromkeys(_ITP_COUNTS.split(), _COUNT),
        **dict.fromkeys(_ITP_NUMBERS.split(), _NUMBER),
        **dict.fromkeys(("warmup_rate", "head_rate", "online_rate", "online_head_rate"), _ABOVE),
        "discount": _SHARE,
    }

    agent: ITPConfig = field(default_factory=lambda: ITPConfig(k_source="head", told="last"))
    """How the agent looks ahead and acts; its depth is chosen by a head."""
    depth_cost: float = 0.2
    """What an imagined step costs, in labels and rewards."""
    warmup_epochs: int = 3
    """Epochs in which the policy first imitates the expert; with --policy there are none (ours)."""
    world_model_epochs: int = 3
    """Epochs of the world model on the expert's transitions, where --world-model gives none."""
    warmup_rate: float | None = None
    """Highest learning rate of both; None for learning_rate."""
    labelled: int | None = None
    """Demonstrations whose steps get a label; None for all."""
    depth_weight: float = 0.5
    """Weight of the depth's cross-entropy beside the action's likelihood."""
    draft_weight: float = 0.0
    """Weight of the expert's actions without foresight beside them (ours: small models forget how to
    draft, and it is drafts that are looked ahead with)."""
    head_rate: float = 1e-3
    """Highest learning rate of the depth head (ours)."""
    episodes: int = 50
    """Episodes that are played online; 0 leaves that out."""
    episodes_per_update: int = 1
    """Episodes of an update (ours)."""
    micro_batches: int = 16
    """Parts in which an update's steps pass through the model, to save memory."""
    online_rate: float = 5e-6
    """Learning rate of playing online."""
    online_head_rate: float = 1e-3
    """Learning rate of its two heads (ours)."""
    discount: float = 0.99
    """Discount of rewards."""
    success_bonus: float = 0.01
    """Reward of success, beside the environment's."""
    step_cost: float = 0.01
    """Cost of a step."""
    invalid_cost: float = 0.1
    """Cost of a refused action."""
    value_weight: float = 1.0
    """Weight of half the squared TD error."""
    entropy_weight: float = 0.01
    """Weight of the entropy of K."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agent.k_source != "head":
            raise OptionError(f"k_source must be 'head' in a training, not {self.agent.k_source!r}")

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of policy and world model."""
        return ("agent", "wm")


BASELINES: Mapping[str, type[BaselineTraining]] = MappingProxyType(
    {made.method: made for made in (SFTTraining, IWMTraining, WKMTraining, ITPTraining)}
)
"""The settings of each method by its name."""

BASELINE_PRESETS = ("paper", "tiny")
"""The presets: as published, and a small model that is trained here from the beginning."""


def baseline_preset(
    method: str, name: str, *, slow: bool = False, **settings: Any
) -> BaselineTraining:
    """Return a preset of a baseline with some settings changed.

    Args:
        method: ``sft``, ``iwm``, ``wkm`` or ``itp``.
        name: ``paper`` or ``tiny``.
        slow: Whether an episode takes seconds: the preset ``tiny`` then plays fewer.
        **settings: Other values, as `comap.trainers.preset` takes them.

    Raises:
        OptionError: There is no such method, preset or setting, or a value cannot be.

    Example:
        >>> baseline_preset("iwm", "tiny").agent.alternatives
        4
    """
    if method not in BASELINES:
        raise OptionError(f"there is no baseline {method!r}; {suggest(method, sorted(BASELINES))}")
    if name not in BASELINE_PRESETS:
        raise OptionError(f"there is no preset {name!r}; {suggest(name, BASELINE_PRESETS)}")
    config = BASELINES[method]()
    if name == "tiny":
        config = changed(config, presets("tiny")[method])
    if name == "tiny" and slow:
        config = changed(config, presets("slow")[method])
    return changed(config, settings)
