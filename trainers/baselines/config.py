"""The settings of each trained baseline, of CoMap's Table 1 and WebEvolver, and their presets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from ...agents import ITPConfig, IWMConfig, WebEvolverConfig, WKMConfig
from ...errors import OptionError, suggest
from ...lm.encoder import DEFAULT_MODEL
from ...settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Range, Share
from ..config import changed, presets
from ..sft import BaselineTraining, SFTTraining


@dataclass(frozen=True, kw_only=True)
class IWMTraining(BaselineTraining):
    """IWM: the policy first learns what follows the expert's actions and others, then imitates.

    Example:
        >>> IWMTraining().agent.alternatives
        8
    """

    method: ClassVar[str] = "iwm"

    agent: IWMConfig = field(default_factory=IWMConfig)
    """How the policy acts and explores."""
    explorer: Literal["policy", "sft"] = "policy"
    """Who proposes alternatives: the policy as the training begins, or a copy that imitated the
    expert first, where the policy begins untrained (ours). With --policy it is always that one."""
    explored: PositiveInt | None = None
    """Demonstrations whose states are explored; None for all."""
    world_epochs: PositiveInt = 1
    """Epochs of learning what follows."""

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the training's models; the last one explores."""
        has_explorer = self.explorer == "sft" and "agent" not in begun
        return ("agent", "explorer") if has_explorer else ("agent",)


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

    agent: WKMConfig = field(default_factory=lambda: WKMConfig(encoder=DEFAULT_MODEL))
    """How the agent acts, asks for knowledge and retrieves it."""
    learning_rate: PositiveFloat = 1e-4
    """Highest learning rate."""
    sampler: Literal["policy", "sft"] = "policy"
    """Who plays the episodes that may fail: the policy as the training begins, or a copy that
    imitated the expert first (ours). With --policy it is always that one."""
    compared: PositiveInt | None = None
    """Demonstrated tasks that are played for that; None for all."""

    @property
    def trains_knowledge(self) -> bool:
        """Whether there is anything for a knowledge model to learn."""
        return self.agent.task_knowledge or self.agent.state_knowledge == "lm"

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the training's models."""
        names = ["agent"]
        if self.trains_knowledge:
            names.append("knowledge")
        if self.agent.task_knowledge and self.sampler == "sft" and "agent" not in begun:
            names.append("explorer")
        return tuple(names)

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

    agent: ITPConfig = field(default_factory=lambda: ITPConfig(k_source="head", told="last"))
    """How the agent looks ahead and acts; its depth is chosen by a head."""
    depth_cost: NonNegativeFloat = 0.2
    """What an imagined step costs, in labels and rewards."""
    warmup_epochs: NonNegativeInt = 3
    """Epochs in which the policy first imitates the expert; with --policy there are none (ours)."""
    world_model_epochs: PositiveInt = 3
    """Epochs of the world model on the expert's transitions, where --world-model gives none."""
    warmup_rate: PositiveFloat | None = None
    """Highest learning rate of both; None for learning_rate."""
    labelled: PositiveInt | None = None
    """Demonstrations whose steps get a label; None for all."""
    depth_weight: NonNegativeFloat = 0.5
    """Weight of the depth's cross-entropy beside the action's likelihood."""
    draft_weight: NonNegativeFloat = 0.0
    """Weight of the expert's actions without foresight beside them (ours: small models forget how to
    draft, and it is drafts that are looked ahead with)."""
    head_rate: PositiveFloat = 1e-3
    """Highest learning rate of the depth head (ours)."""
    episodes: NonNegativeInt = 50
    """Episodes that are played online; 0 leaves that out."""
    episodes_per_update: PositiveInt = 1
    """Episodes of an update (ours)."""
    micro_batches: PositiveInt = 16
    """Parts in which an update's steps pass through the model, to save memory."""
    online_rate: PositiveFloat = 5e-6
    """Learning rate of playing online."""
    online_head_rate: PositiveFloat = 1e-3
    """Learning rate of its two heads (ours)."""
    discount: Share = 0.99
    """Discount of rewards."""
    success_bonus: NonNegativeFloat = 0.01
    """Reward of success, beside the environment's."""
    step_cost: NonNegativeFloat = 0.01
    """Cost of a step."""
    invalid_cost: NonNegativeFloat = 0.1
    """Cost of a refused action."""
    value_weight: NonNegativeFloat = 1.0
    """Weight of half the squared TD error."""
    entropy_weight: NonNegativeFloat = 0.01
    """Weight of the entropy of K."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agent.k_source != "head":
            raise OptionError(f"k_source must be 'head' in a training, not {self.agent.k_source!r}")

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of policy and world model."""
        return ("agent", "wm")


FILTERS = ("unparsed", "login", "unfinished", "idle", "duplicate")
"""What WebEvolver can leave out: episodes with a reply that cannot be read, whose last reply speaks of
logging in, that the step limit ends or N/A, or that are known already; and steps that change nothing."""


@dataclass(frozen=True, kw_only=True)
class WebEvolverTraining(BaselineTraining):
    """WebEvolver: in rounds, a policy and a world model learn from what the policy plays and imagines.

    The defaults are upstream's where those are known: round 2 is the paper's WebEvolver, and without a
    world model (``imagined_from=None``) rounds 1 to 3 are its self-improvement. Learning rate, epochs,
    lengths and how many imagined episodes were accepted are not published: those here are ours.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> WebEvolverTraining().roles(), WebEvolverTraining(imagined_from=None, judged_by="env").roles()
        (('agent', 'wm', 'base'), ('agent',))
    """

    method: ClassVar[str] = "webevolver"

    agent: WebEvolverConfig = field(default_factory=lambda: WebEvolverConfig(max_length=8192))
    """How the policy acts, and how it looks ahead in the end."""
    predict_tokens: PositiveInt = 2048
    """Most tokens of a world model's prediction."""
    evaluation_temperature: NonNegativeFloat = 0.0
    """Temperature of the policy in evaluation; 0 is greedy."""
    evaluation_seeds: PositiveInt = 1
    """How often each task is played."""
    start: Literal["play", "expert"] = "play"
    """What round 1 begins with: the models as they are, or models that learned from demonstrations (ours,
    for models that cannot act yet)."""
    rounds: PositiveInt = 3
    """Rounds of playing and learning."""
    round_epochs: PositiveInt | None = None
    """Epochs of a round, where its models have learned from demonstrations before; None for as many."""
    round_rate: PositiveFloat | None = None
    """Highest learning rate of such a round; None for learning_rate."""
    world_model_epochs: PositiveInt | None = None
    """Epochs of the world model; None for those of the policy."""
    tasks_per_round: PositiveInt | None = 1516
    """Training tasks that are played in a round; None for all."""
    judged_by: Literal["env", "base"] = "base"
    """Who accepts episodes: the environment's success, or the model as the training begins, with
    upstream's protocol."""
    filters: tuple[str, ...] | None = ("unparsed", "login", "unfinished", "idle")
    """What the policy does not learn from: unparsed, login, unfinished, idle, duplicate."""
    world_filters: tuple[str, ...] | None = ("unparsed",)
    """The same for the world model; upstream's also has idle: it never sees that an action does nothing."""
    per_start: PositiveInt | None = 20
    """Most transitions from episodes of one first observation; None for all."""
    per_action: PositiveInt | None = 50
    """Most transitions of one action; None for all."""
    rationale: bool = True
    """Whether the world model first says why, as the model that the training begins with explained it."""
    rationale_tokens: PositiveInt = 128
    """Most tokens of that."""
    world_temperature: NonNegativeFloat = 0.7
    """Temperature of the world model in imagination and look-ahead."""
    imagined_from: PositiveInt | None = 2
    """First round whose policy also learns from imagined episodes of unsolved tasks; None for no world
    model at all."""
    imagined_tasks: PositiveInt | None = None
    """Unsolved tasks that are imagined in a round; None for all."""
    imagined_depth: PositiveInt = 7
    """Most steps of an imagined episode."""
    imagined_start: bool = False
    """Whether the first observation is imagined as well, as upstream's; else it is real."""
    last_hint: bool = True
    """Whether the last imagined step is asked to show what the task needs."""
    imagined_share: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    """Greatest share of imagined episodes in what the policy learns from; None for no limit."""
    learn_from: Literal["all", "imagined"] = "all"
    """What the policy learns from once there are imagined episodes: all, or imagined ones only."""
    learn_critic: bool = False
    """Whether the policy also learns to be the critic, to score the steps of the training (ours)."""
    scored_transitions: NonNegativeInt = 100
    """Transitions, and starts of several steps, that the world model is scored on; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in {*(self.filters or ()), *(self.world_filters or ())} - {*FILTERS}:
            raise OptionError(f"there is no filter {name!r}; {suggest(name, FILTERS)}")
        if self.learn_from == "imagined" and not self.has_world_model:
            raise OptionError(
                "learn_from='imagined' needs a world model: expected imagined_from to be a round, found "
                "None"
            )

    @property
    def shows_expert(self) -> bool:
        """Whether anything is learned from demonstrations."""
        return self.start == "expert"

    @property
    def has_world_model(self) -> bool:
        """Whether a world model is trained."""
        return self.imagined_from is not None

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the training's models; ``base`` stays as the training begins."""
        names = ["agent"]
        if self.has_world_model:
            names.append("wm")
        # The untrained model judges episodes, and gives the reasons of transitions.
        if self.judged_by == "base" or (self.rationale and self.has_world_model):
            names.append("base")
        return tuple(names)


BASELINES: Mapping[str, type[BaselineTraining]] = MappingProxyType(
    {
        settings.method: settings
        for settings in (SFTTraining, IWMTraining, WKMTraining, ITPTraining, WebEvolverTraining)
    }
)
"""The settings of each method by its name."""

BASELINE_PRESETS = ("paper", "tiny", "pretrained")
"""The presets: as published, a small model that is trained here from the beginning, and a small pretrained
one on two cores or a GPU, of SFT alone."""


def baseline_preset(
    method: str, name: str, *, slow: bool = False, **settings: Any
) -> BaselineTraining:
    """Return a preset of a baseline with some settings changed.

    Args:
        method: ``sft``, ``iwm``, ``wkm``, ``itp`` or ``webevolver``.
        name: ``paper``, ``tiny`` or, with ``sft``, ``pretrained``.
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
    # What is published is in the defaults; the other presets are of some methods alone.
    preset_names = ["paper"]
    preset_names += [
        preset_name for preset_name in BASELINE_PRESETS[1:] if method in presets(preset_name)
    ]
    if name not in preset_names:
        raise OptionError(f"there is no preset {name!r} of {method}; {suggest(name, preset_names)}")
    config = BASELINES[method]()
    if name != "paper":
        config = changed(config, presets(name)[method])
    if name == "tiny" and slow:
        config = changed(config, presets("slow")[method])
    return changed(config, settings)
