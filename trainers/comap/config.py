"""All settings of CoMap's training, and its presets (CoMap, Table 5 and appendix B)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated, Any, Literal

from ...agents import CoMapConfig
from ...errors import OptionError, suggest
from ...settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
    check_fields,
)
from ..config import SharedTraining, changed, presets

ABLATIONS = {
    "agent.future_state": "w/o Future State",
    "expert_sft": "w/o Expert SFT",
    "reflection_init": "w/o Reflection-mode Init",
    "agent.action_gate": "w/o Action Gate",
    "online_reflection": "w/o Online Reflection",
    "world_model_evolution": "Frozen WM",
    "world_model_warmup": "w/o WM Warm-up",
    "real_ce": "w/o Real CE",
    "wmsd": "w/o WMSD",
    "world_state_gate": "w/o WS Gate",
}
"""The ten ablations: the setting that is False, and what the paper calls that (CoMap, section 4.3)."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """World-model self-distillation: how the student is compared with its teacher (CoMap, eq. 6).

    Raises:
        OptionError: A value is none of those allowed, or out of range.
    """

    eta: NonNegativeFloat = 0.5
    """Weight of the self-distillation beside the real cross-entropy."""
    mu: Share = 0.99
    """The teacher's moving average; it follows the student after each update."""
    rollout_temperature: NonNegativeFloat = 1.0
    """Temperature of the student's own predictions, on which both are compared; 0 is greedy."""
    divergence: Literal["forward_kl", "reverse_kl", "jsd"] = "forward_kl"
    """forward_kl is KL(teacher || student)."""
    jsd_alpha: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5
    """The teacher's share in the mixture of jsd."""
    distill_temperature: PositiveFloat = 1.0
    """What both models' logits are divided by."""
    topk: PositiveInt | None = None
    """Compare the student's most probable tokens and one bucket for the rest; None for all."""
    chunk: PositiveInt = 256
    """Positions whose logits are in memory at one time."""

    def __post_init__(self) -> None:
        check_fields(self, "distillation.")


@dataclass(frozen=True, kw_only=True)
class CoMapTraining(SharedTraining):
    """How CoMap is trained; the defaults are the preset ``paper``.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> CoMapTraining().rounds, CoMapTraining(wmsd=False).ablations()
        (3, ('w/o WMSD',))
    """

    agent: CoMapConfig = field(default_factory=CoMapConfig)
    """How the policy acts where it plays training tasks; two ablations are its future_state and
    action_gate."""
    tau_wm: Share = 0.6
    """Threshold of the world-state gate (CoMap, Figure 5)."""

    expert_sft: bool = True
    """Warm up the policy on demonstrations, and keep them as an anchor later."""
    reflection_init: bool = True
    """Initialize the reflection mode from suffix rollouts."""
    online_reflection: bool = True
    """Learn from the policy's own reflections in the rounds; without it, alpha = 0."""
    world_model_evolution: bool = True
    """Train the world model in the rounds; without it, it stays as after warm-up."""
    world_model_warmup: bool = True
    """Warm up the world model; without it, it begins as the base model."""
    real_ce: bool = True
    """Learn from observed tokens; without it, the world model learns from the teacher alone."""
    wmsd: bool = True
    """Learn from the teacher; without it, the world model learns from observed tokens alone (eta = 0)."""
    world_state_gate: bool = True
    """Use the world-state gate; without it, the prediction is always the future context in training."""

    policy_rate: PositiveFloat = 2e-5
    """Highest learning rate of the policy (authors' code)."""
    world_model_rate: PositiveFloat = 2e-5
    """Highest learning rate of the world model (authors' code)."""
    warmup_rate: PositiveFloat | None = None
    """Highest learning rate of both in warm-up; None for their own."""
    head_rate: PositiveFloat = 1e-3
    """Learning rate of the refinement head."""
    warmup_epochs: PositiveInt = 3
    """Epochs of warm-up (CoMap, Table 5)."""
    policy_epochs: PositiveInt = 3
    """Epochs of the policy in each round, and of the initialization (CoMap, Table 5)."""
    world_model_epochs: PositiveInt = 3
    """Epochs of the world model in each round (CoMap, Table 5)."""

    entry_tasks: NonNegativeInt = 32
    """Tasks that the warmed-up policy plays 8 times each, for the entry conditions; 0 for none."""
    warmup_rollouts: NonNegativeInt = 256
    """Tasks that the warmed-up policy plays for the world model's warm-up."""
    privileged_share: Share = 0.0
    """Share of transitions on which the world model also learns, in warm-up and in the rounds, to
    read the privileged prompt: small models cannot use one that they never saw (ours)."""
    label_states: Literal["expert", "policy", "both"] = "expert"
    """Whose states initialize the reflection mode: a demonstration's, or (ours) the policy's own."""
    reflection_tasks: PositiveInt = 256
    """Tasks whose states initialize the reflection mode: demonstrated ones, and as many that the policy
    plays."""
    states_per_episode: PositiveInt | None = 4
    """States of each demonstration that are used; None for all."""
    suffixes: NonNegativeInt = 1
    """Suffix rollouts of each branch. 0 is for the policy's own states alone: a draft is then to be
    revised if it changed no fact and the expert acts otherwise, for the price of one expert call."""
    suffix_temperature: NonNegativeFloat = 0.0
    """Temperature of their continuation policy; 0 is greedy. Small models that write actions freely
    go round in circles when they are greedy: nothing then distinguishes two actions."""
    delta: NonNegativeFloat | None = None
    """By how much a return must be larger; None for 0 where returns are 0 or 1, else 0.05."""
    init_context: Literal["env", "wm", "mixed"] = "mixed"
    """Future context of initial reflections: what was observed, predicted, or half and half."""
    balance: NonNegativeFloat = 3.0
    """Most kept drafts for each revision in the initialization."""
    init_epochs: PositiveInt | None = None
    """Epochs of the initialization; None for policy_epochs."""
    learn_labels: Literal["reflections", "drafts", "no"] = "reflections"
    """What the initialization learns of its labels: reflections (CoMap); or, for as many tokens, the
    expert's actions in the same states as drafts (DAgger), or nothing but demonstrations: controls."""
    anchor_rows: PositiveInt | None = None
    """Demonstrated steps of each epoch beside reflections; None for as many as there are reflections, or
    in a round without any as many as steps were played."""
    init_anchor: NonNegativeFloat = 0.0
    """Weight of demonstrations in the initialization (ours: small models forget how to draft)."""
    form_loss: bool | None = None
    """Also learn the fixed words of a reflection's form; None with brief prompts only (ours: small
    models have to)."""

    rounds: NonNegativeInt = 3
    """Rounds of co-evolution."""
    tasks_per_round: PositiveInt = 256
    """Tasks of each round, one episode each."""
    buffer: Literal["last", "all"] = "last"
    """Rollouts to learn from: the latest round's, or all."""
    distillation: Distillation = field(default_factory=Distillation)
    """The world model's self-distillation."""
    alpha: NonNegativeFloat = 1.0
    """Weight of reflections in the policy's loss (CoMap, eq. 8)."""
    beta: NonNegativeFloat = 0.01
    """Weight of the refinement probability's cross-entropy, within alpha (CoMap, eq. 8)."""
    anchor: NonNegativeFloat = 1.0
    """Weight of the anchors in the policy's loss (CoMap, eq. 8)."""
    anchors: Literal["demonstrations", "executed"] = "demonstrations"
    """What rounds learn beside reflections: demonstrated steps (CoMap, eq. 8), or the actions that the
    policy took in the episodes that it learns from (authors' code)."""
    episode_filter: Literal["none", "successful_or_all"] = "successful_or_all"
    """All episodes; or only those that succeed, if any does (authors' code)."""
    gated_corrections: bool = False
    """Learn only from corrections that both gates selected, of episodes that succeed: the reflection saw
    a prediction that the teacher agreed with, and its action was taken (CoMap, App. C.3). Otherwise
    also from kept drafts, and from what was said where the truth stood in for the prediction."""
    require_success_for_hq: bool = True
    """High-quality reflections are of successful episodes (authors' code)."""
    round_balance: NonNegativeFloat | None = None
    """Most kept drafts for each revision among a round's reflections; None for all (ours: where
    nearly all are kept, a small model soon keeps everything)."""

    gate_shut: bool = True
    """Also play each evaluation with the gate shut: what reflections add is success above that."""
    final_tasks: PositiveInt | None = None
    """Tasks of each evaluation split after the last round; None for as many as before it."""
    frozen_transitions: NonNegativeInt = 1000
    """Transitions of the frozen evaluation set, half expert's, half the first policy's."""
    diagnosed: NonNegativeInt = 200
    """Decisions whose branches are played out, for the rates of unnecessary, harmful and beneficial
    revisions (URR, HRR, BRP); 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "agent", self.agent.resolved(head=True))  # it trains one
        if not self.suffixes and self.label_states != "policy":
            raise OptionError(
                "suffixes=0 labels the policy's own states alone; add label_states='policy'"
            )
        if self.world_model_evolution and not (self.real_ce or self.self_distills):
            raise OptionError(
                "without real_ce, and without wmsd or with eta=0, the world model has nothing to "
                "learn from; set world_model_evolution=False to keep it as it is"
            )

    @property
    def self_distills(self) -> bool:
        """Whether the world model learns from its teacher."""
        return self.wmsd and self.distillation.eta > 0

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of policy, world model, and the world model's teacher."""
        return ("agent", "wm", "wm_ema")

    def ablations(self) -> tuple[str, ...]:
        """Return what is switched off, by the paper's names."""
        labels = []
        for path, label in ABLATIONS.items():
            is_on = reduce(getattr, path.split("."), self)  # "agent.action_gate" is nested
            if not is_on:
                labels.append(label)
        return tuple(labels)


PRESETS = presets("comap")
"""What each preset sets; all else is as in `CoMapTraining`."""


def preset(name: str, **settings: Any) -> CoMapTraining:
    """Return a preset with some settings changed.

    Args:
        name: ``paper`` (CoMap, Table 5), ``executed`` (the same, but rounds learn the actions that the
            policy took, as the authors' code does, in place of demonstrated ones) or ``tiny`` (a small
            model on a CPU, trained from nothing).
        **settings: Other values of `CoMapTraining`'s settings. Those of its nested configs are given
            by their own name, or as a mapping by the nested config's.

    Raises:
        OptionError: There is no such preset or setting, or a value cannot be.

    Example:
        >>> config = preset("tiny", rounds=1, tau_p=0.3, optimization={"accumulate": 4})
        >>> config.rounds, config.agent.tau_p, config.optimization.accumulate
        (1, 0.3, 4)
    """
    if name not in PRESETS:
        raise OptionError(f"there is no preset {name!r}; {suggest(name, sorted(PRESETS))}")
    return changed(changed(CoMapTraining(), PRESETS[name]), settings)
