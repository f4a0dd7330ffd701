"""The settings of each trained baseline (METHODS.md 3); what is not said there is ours [D]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import OptionError
from ..config_ranges import Range
from .config import BaselineTraining

__all__ = ["ITPTraining", "IWMTraining", "SFTTraining", "WKMTraining"]

_COUNT, _SHARE, _ABOVE, _NUMBER = Range(1), Range(0, 1), Range(0, above=True), Range(0)
_ITP_COUNTS = (
    "labelled world_model_epochs episodes_per_update micro_batches predict_tokens foresight_tokens "
    "reply_tokens"
)
_ITP_NUMBERS = (
    "k_max warmup_epochs episodes depth_cost depth_weight draft_weight success_bonus step_cost "
    "invalid_cost value_weight entropy_weight"
)


@dataclass(frozen=True, kw_only=True)
class SFTTraining(BaselineTraining):
    """SFT: the policy imitates an expert; perhaps a world model learns what followed.

    Example:
        >>> SFTTraining().world_model
        False
    """

    method: ClassVar[str] = "sft"
    ranges: ClassVar[Mapping[str, Range]] = {"predict_tokens": _COUNT}

    world_model: bool = False
    """Also train a world model on the expert's transitions alone: "SFT" of CoMap's Table 2."""
    predict_tokens: int = 192
    """Most tokens of a prediction (CoMap, Table 5)."""


@dataclass(frozen=True, kw_only=True)
class IWMTraining(BaselineTraining):
    """IWM: the policy first learns what follows the expert's actions and others, then imitates.

    Example:
        >>> IWMTraining().alternatives
        8
    """

    method: ClassVar[str] = "iwm"
    ranges: ClassVar[Mapping[str, Range]] = {
        **dict.fromkeys(("alternatives", "world_epochs", "explored", "predict_tokens"), _COUNT),
        "exploration_temperature": Range(0, 10),
    }

    alternatives: int = 8
    """Alternative actions in each of the expert's states, K (METHODS.md 3 [D])."""
    exploration_temperature: float = 1.0
    """Temperature at which they are sampled [D]."""
    explorer: Literal["policy", "sft"] = "policy"
    """Who proposes them: the policy as the training begins, or a copy that imitated the expert first,
    where the policy begins untrained [D]. With --policy it is always that one."""
    explored: int | None = None
    """Demonstrations whose states are explored; None for all."""
    world_epochs: int = 1
    """Epochs of learning what follows (METHODS.md 3)."""
    predict_tokens: int = 192
    """Most tokens of an observation to learn (CoMap, Table 5)."""


@dataclass(frozen=True, kw_only=True)
class WKMTraining(BaselineTraining):
    """WKM: a model of what is known, an agent that acts on it, and a base of states that read alike.

    Raises:
        OptionError: A knowledge model is to be trained, and models have weights of their own.

    Example:
        >>> WKMTraining().learning_rate
        0.0001
    """

    method: ClassVar[str] = "wkm"
    ranges: ClassVar[Mapping[str, Range]] = {
        **dict.fromkeys(("task_tokens", "state_tokens", "neighbours"), _COUNT),
        "gamma": _SHARE,
        "knowledge_temperature": Range(0, 10),
        "compared": _COUNT,
    }

    learning_rate: float = 1e-4
    """Highest learning rate (METHODS.md 3)."""
    task_knowledge: Literal["lm", "none"] = "lm"
    """Who writes task knowledge: the model, before it is trained, from the expert's episode and a
    failed one; or nobody, for models that cannot write."""
    state_knowledge: Literal["lm", "belief"] = "lm"
    """Who puts states into words: the model, before it is trained, or the belief facts."""
    sampler: Literal["policy", "sft"] = "policy"
    """Who plays the episodes that may fail: the policy as the training begins, or a copy that imitated
    the expert first [D]. With --policy it is always that one."""
    compared: int | None = None
    """Demonstrated tasks that are played for that; None for all."""
    task_tokens: int = 256
    """Most tokens of the task knowledge [D]."""
    state_tokens: int = 128
    """Most tokens of the state knowledge [D]."""
    knowledge_temperature: float = 0.0
    """Temperature of both kinds of knowledge [D]."""
    gamma: float = 0.7
    """Weight of the agent's own next verb in evaluation (METHODS.md 3)."""
    neighbours: int = 3000
    """Entries retrieved in evaluation (METHODS.md 3)."""

    @property
    def trains_knowledge(self) -> bool:
        """Whether there is anything for a knowledge model to learn."""
        return self.task_knowledge == "lm" or self.state_knowledge == "lm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trains_knowledge and self.weights == "full":
            raise OptionError(
                "a knowledge model is an adapter beside the agent's: expected weights='lora', found "
                "'full'; with full weights use task_knowledge='none' and state_knowledge='belief'"
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

    k_max: int | None = None
    """The greatest depth K; None for 5 in ALFWorld and 3 elsewhere (METHODS.md 3 [C-ITP])."""
    depth_cost: float = 0.2
    """What an imagined step costs, in labels and rewards (METHODS.md 3)."""
    warmup_epochs: int = 3
    """Epochs in which the policy first imitates the expert; with --policy there are none [D]."""
    world_model_epochs: int = 3
    """Epochs of the world model on the expert's transitions, where --world-model gives none."""
    warmup_rate: float | None = None
    """Highest learning rate of both; None for learning_rate."""
    labelled: int | None = None
    """Demonstrations whose steps get a label; None for all."""
    depth_weight: float = 0.5
    """Weight of the depth's cross-entropy beside the action's likelihood (METHODS.md 3)."""
    draft_weight: float = 0.0
    """Weight of the expert's actions without foresight beside them (ours: small models forget how to
    draft, and it is drafts that are looked ahead with)."""
    head_rate: float = 1e-3
    """Highest learning rate of the depth head [D]."""
    episodes: int = 50
    """Episodes that are played online; 0 leaves that out (METHODS.md 3)."""
    episodes_per_update: int = 1
    """Episodes of an update [D]."""
    micro_batches: int = 16
    """Parts in which an update's steps pass through the model, to save memory."""
    online_rate: float = 5e-6
    """Learning rate of playing online (METHODS.md 3)."""
    online_head_rate: float = 1e-3
    """Of its two heads [D]."""
    discount: float = 0.99
    """Gamma (METHODS.md 3)."""
    success_bonus: float = 0.01
    """Reward of success, beside the environment's (METHODS.md 3)."""
    step_cost: float = 0.01
    """Cost of a step (METHODS.md 3)."""
    invalid_cost: float = 0.1
    """Cost of a refused action (METHODS.md 3)."""
    value_weight: float = 1.0
    """Weight of half the squared TD error (METHODS.md 3)."""
    entropy_weight: float = 0.01
    """Weight of the entropy of K (METHODS.md 3)."""
    predict_tokens: int = 192
    """Most tokens of a prediction (CoMap, Table 5)."""
    foresight_tokens: int = 256
    """Most tokens of the foresight (METHODS.md 3)."""
    reply_tokens: int = 256
    """Most tokens of reflection, thought and action (METHODS.md 3)."""
