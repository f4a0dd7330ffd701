"""All settings of CoMap's training, and the presets (METHODS.md 1.4 to 1.13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from ..errors import OptionError, suggest
from .config_ranges import Range, check_fields
from .config_shared import SHARED_RANGES, SharedTraining

__all__ = ["ABLATIONS", "PRESETS", "CoMapTraining", "Switches", "preset"]

Divergence: TypeAlias = Literal["forward_kl", "reverse_kl", "jsd"]

ABLATIONS = {
    "future_state": "w/o Future State",
    "expert_sft": "w/o Expert SFT",
    "reflection_init": "w/o Reflection-mode Init",
    "action_gate": "w/o Action Gate",
    "online_reflection": "w/o Online Reflection",
    "world_model_evolution": "Frozen WM",
    "world_model_warmup": "w/o WM Warm-up",
    "real_ce": "w/o Real CE",
    "wmsd": "w/o WMSD",
    "world_state_gate": "w/o WS Gate",
}
"""The switches of METHODS.md 1.13: the field that is False, and what the paper calls that."""


@dataclass(frozen=True, kw_only=True)
class Switches:
    """The ten switches of METHODS.md 1.13.

    Example:
        >>> Switches(wmsd=False).ablations()
        ('w/o WMSD',)
    """

    # -- the ten switches of METHODS.md 1.13 --
    future_state: bool = True
    """False: reflections are told nothing of the future, in training and inference."""
    expert_sft: bool = True
    """False: no warm-up of the policy, and no anchor later."""
    reflection_init: bool = True
    """False: the reflection mode is not initialised from suffix rollouts."""
    action_gate: bool = True
    """False: a reflected action that can be read is always taken."""
    online_reflection: bool = True
    """False: the policy does not learn from its own reflections in the rounds (alpha = 0)."""
    world_model_evolution: bool = True
    """False: the world model stays as it was after warm-up."""
    world_model_warmup: bool = True
    """False: the world model begins as the base model."""
    real_ce: bool = True
    """False: the world model learns from the teacher alone."""
    wmsd: bool = True
    """False: the world model learns from what was observed alone (eta = 0)."""
    world_state_gate: bool = True
    """False: the student's prediction is always the future context in training."""

    def ablations(self) -> tuple[str, ...]:
        """Return what is switched off, as the paper calls it."""
        return tuple(told for name, told in ABLATIONS.items() if not getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class CoMapTraining(SharedTraining, Switches):
    """How CoMap is trained; the defaults are the preset ``paper``.

    Beside its own settings it has those of `SharedTraining` and the switches of `Switches`.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> CoMapTraining().rounds, CoMapTraining(wmsd=False).ablations()
        (3, ('w/o WMSD',))
    """

    # -- prompts and decoding --
    reflect_tokens: int = 128
    """Most tokens of a reflection (CoMap, Table 5)."""
    final_tokens: int = 16
    """Most further tokens of a final action (CoMap, Table 5)."""
    predict_tokens: int = 192
    """Most tokens of a prediction (CoMap, Table 5)."""
    p_source: Literal["head", "verbalizer", "verbal"] = "head"
    """Where the refinement probability comes from (METHODS.md 1.3)."""
    q_source: Literal["token_geo_mean", "min_token", "proxy"] = "token_geo_mean"
    """Where the confidence comes from (METHODS.md 1.3)."""
    tau_p: float = 0.5
    """Threshold of the refinement probability (CoMap, Table 5)."""
    tau_q: float = 0.6
    """Threshold of the confidence (CoMap, Table 5)."""
    tau_wm: float = 0.6
    """Threshold of the world-state gate (CoMap, Figure 5)."""
    gate_reference: Literal["teacher", "env", "teacher_unprivileged"] = "teacher"
    """What the student is compared with in the world-state gate."""
    ungated_context: Literal["student", "env"] = "student"
    """The context in training where the world-state gate is switched off."""

    # -- optimization --
    policy_rate: float = 2e-5
    """Highest learning rate of the policy (authors' code)."""
    world_model_rate: float = 2e-5
    """Highest learning rate of the world model (authors' code)."""
    warmup_rate: float | None = None
    """Highest learning rate of both in warm-up; None for their own."""
    head_rate: float = 1e-3
    """Learning rate of the refinement head (METHODS.md 1.3)."""
    warmup_epochs: int = 3
    """Epochs of warm-up (CoMap, Table 5)."""
    policy_epochs: int = 3
    """Epochs of the policy in each round, and of the initialisation (CoMap, Table 5)."""
    world_model_epochs: int = 3
    """Epochs of the world model in each round (CoMap, Table 5)."""

    # -- data --
    warmup_rollouts: int = 256
    """Tasks that the warmed-up policy plays for the world model's warm-up (METHODS.md 1.5)."""
    privileged_share: float = 0.0
    """Share of transitions on which the world model also learns, in warm-up and in the rounds, to
    read the privileged prompt: small models cannot use one that they never saw (ours)."""
    reflection_tasks: int = 256
    """Demonstrated tasks whose states initialise the reflection mode."""
    states_per_episode: int | None = 4
    """States of each that are taken; None for all (METHODS.md 1.6)."""
    suffixes: int = 1
    """Suffix rollouts of each branch (METHODS.md 1.6)."""
    suffix_temperature: float = 0.0
    """Temperature of their continuation policy; 0 is greedy (METHODS.md 1.6). Small models that write
    actions freely go round in circles when they are greedy: nothing then tells two actions apart."""
    delta: float | None = None
    """By how much a return must be larger; None for 0 where returns are 0 or 1, else 0.05."""
    init_context: Literal["env", "wm", "mixed"] = "mixed"
    """Future context of initial reflections: what was observed, predicted, or half and half."""
    balance: float = 3.0
    """Most kept drafts for each revision in the initialisation."""
    init_epochs: int | None = None
    """Epochs of the initialisation; None for policy_epochs."""
    init_anchor: float = 0.0
    """Weight of demonstrations in the initialisation (ours: small models forget how to draft)."""
    form_loss: bool | None = None
    """Also learn the fixed words of a reflection's form; None with brief prompts only (ours: small
    models have to)."""

    # -- rounds --
    rounds: int = 3
    """Rounds of co-evolution."""
    tasks_per_round: int = 256
    """Tasks of each, one episode each."""
    buffer: Literal["last", "all"] = "last"
    """Rollouts to learn from: the latest round's, or all."""
    probe_transitions: bool = False
    """Let the world model learn from probed drafts that were not taken, too."""
    wm_target: Literal["observation", "full_state"] = "observation"
    """What the world model learns to say."""
    eta: float = 0.5
    """Weight of the self-distillation."""
    mu: float = 0.99
    """The teacher's moving average."""
    teacher_update: Literal["step", "round"] = "step"
    """When the teacher follows: after each update, or as a copy at the end of a round."""
    teacher_prompt: Literal["privileged", "plain"] = "privileged"
    """Whether the teacher sees what was really observed."""
    distill_on: Literal["rollout", "target"] = "rollout"
    """What is distilled on: the student's own predictions, or what was really observed."""
    fresh_per: Literal["epoch", "round"] = "epoch"
    """How often the student predicts anew."""
    rollout_temperature: float = 1.0
    """Temperature of those predictions; 0 is greedy."""
    divergence: Divergence = "forward_kl"
    """forward_kl is KL(teacher || student)."""
    jsd_alpha: float = 0.5
    """The teacher's share in the mixture of jsd."""
    distill_temperature: float = 1.0
    """What both models' logits are divided by."""
    topk: int | None = None
    """Compare the student's most probable tokens and one bucket for the rest; None for all."""
    tail: Literal["bucket", "renormalise"] = "bucket"
    """What becomes of the rest with topk."""
    chunk: int = 256
    """Positions whose logits are in memory at one time."""
    alpha: float = 1.0
    """Weight of reflections in the policy's loss."""
    beta: float = 0.01
    """Weight of the refinement probability's loss."""
    anchor: float = 1.0
    """Weight of demonstrations in the policy's loss."""
    episode_filter: Literal["none", "successful_or_all"] = "successful_or_all"
    """Which episodes the policy learns from (authors' code)."""
    require_success_for_hq: bool = True
    """High-quality reflections are of successful episodes (authors' code)."""
    round_balance: float | None = None
    """Most kept drafts for each revision among a round's reflections; None for all (ours: where nearly
    all are kept, a small model soon keeps everything)."""
    outcome_filter: Literal["none", "episode_success", "suffix"] = "none"
    """Relabel or drop reflections by what came of them (METHODS.md 1.8)."""
    policy_objective: Literal["reflection", "sdpo"] = "reflection"
    """sdpo is the authors' code: distillation from a policy that read the environment's feedback."""
    draft_distill: float = 0.25
    """With sdpo: weight of reflected actions as drafts."""
    own_anchor: float = 0.5
    """With sdpo: weight of the agent's own executed actions."""
    fallback: float = 0.1
    """With sdpo: weight of steps without a reflection."""

    # -- evaluation --
    evaluation_splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    """Splits to evaluate on after each round; the first is also that of the frozen transitions."""
    final_tasks: int | None = None
    """Tasks of each after the last round; None for as many as before it."""
    frozen_transitions: int = 1000
    """Transitions of the frozen evaluation set, half expert's, half the first policy's."""
    diagnosed: int = 200
    """Decisions whose branches are played out for URR, HRR and BRP; 0 for none."""

    def __post_init__(self) -> None:
        check_fields(self, _RANGES)
        if (self.batch_rows is None) == (self.batch_tokens is None):
            raise OptionError("give either batch_rows or batch_tokens, and None for the other")
        if self.save_steps % self.logging_steps:
            raise OptionError(
                f"save_steps must be a multiple of logging_steps ({self.logging_steps}), not "
                f"{self.save_steps}"
            )
        if self.probe_transitions and self.wm_target == "full_state":
            raise OptionError(
                "of probes no facts are kept: use wm_target='observation' with probe_transitions"
            )
        learns = self.real_ce or (self.wmsd and self.eta > 0)
        if self.world_model_evolution and not learns:
            raise OptionError(
                "without real_ce, and without wmsd or with eta=0, the world model has nothing to "
                "learn from; say world_model_evolution=False to keep it as it is"
            )


_COUNTS_FROM_0 = "final_tokens warmup_rollouts rounds frozen_transitions diagnosed"
_COUNTS_FROM_1 = (
    "reflect_tokens predict_tokens warmup_epochs init_epochs policy_epochs world_model_epochs "
    "reflection_tasks states_per_episode suffixes tasks_per_round topk chunk final_tasks"
)
_WEIGHTS = (
    "delta balance round_balance init_anchor eta alpha beta anchor draft_distill own_anchor fallback "
    "rollout_temperature suffix_temperature"
)
_SHARES = "tau_p tau_q tau_wm privileged_share mu jsd_alpha"
_ABOVE_0 = "policy_rate world_model_rate warmup_rate head_rate distill_temperature"
_RANGES: dict[str, Range] = {
    **SHARED_RANGES,
    **dict.fromkeys((_COUNTS_FROM_0 + " " + _WEIGHTS).split(), Range(0)),
    **dict.fromkeys(_COUNTS_FROM_1.split(), Range(1)),
    **dict.fromkeys(_SHARES.split(), Range(0, 1)),
    **dict.fromkeys(_ABOVE_0.split(), Range(0, above=True)),
}

_AUTHORS: dict[str, Any] = {
    "p_source": "verbal",
    "q_source": "proxy",
    "final_tokens": 0,
    "teacher_prompt": "plain",
    "teacher_update": "round",
    "distill_on": "target",
    "world_state_gate": False,
    "policy_objective": "sdpo",
    "reflection_init": False,
    "anchor": 0.0,
}

_TINY: dict[str, Any] = {
    "weights": "full",
    "precision": "float32",
    "gradient_checkpointing": False,
    "exact": True,
    "prompts": "brief",
    "state_text": "belief",
    "decoding": "masked",
    "form": "given",
    "p_source": "verbalizer",  # the word is learned sooner than a head, of a few hundred labels
    "draft_tokens": 24,
    "reflect_tokens": 32,
    "predict_tokens": 128,
    "policy_rate": 1e-3,
    "world_model_rate": 1e-3,
    "warmup_rate": 3e-3,
    "head_rate": 1e-2,
    "schedule": "linear",
    "beta2": 0.98,
    "weight_decay": 0.01,
    "batch_rows": None,
    "batch_tokens": 2048,
    "accumulate": 2,
    "warmup_epochs": 3,
    "policy_epochs": 1,
    "world_model_epochs": 1,
    "logging_steps": 10,
    "save_steps": 50,
    "demonstrations": 400,
    "warmup_rollouts": 16,
    "privileged_share": 0.25,
    "reflection_tasks": 60,
    "init_anchor": 1.0,
    "rounds": 2,
    "tasks_per_round": 16,
    "evaluation_tasks": 16,
    "frozen_transitions": 200,
    "diagnosed": 32,
}

TINY_WHERE_SLOW: Mapping[str, Any] = MappingProxyType(
    {
        "live": 4,
        "demonstrations": 42,
        "warmup_rollouts": 7,
        "reflection_tasks": 14,
        "tasks_per_round": 7,
        "evaluation_tasks": 7,
        "frozen_transitions": 60,
        "diagnosed": 14,
    }
)
"""What the preset ``tiny`` plays less of where an episode takes seconds."""

PRESETS: dict[str, Mapping[str, Any]] = {"paper": {}, "authors_code": _AUTHORS, "tiny": _TINY}
"""What each preset sets; all else is as in `CoMapTraining`."""


def preset(name: str, **settings: Any) -> CoMapTraining:
    """Return a preset with some settings changed.

    Args:
        name: ``paper`` (METHODS.md 1.11), ``authors_code`` (what the authors' public code does, as
            far as it can be told: METHODS.md 1.7 and 1.8), or ``tiny`` (a small model that is trained
            here from the beginning, on a CPU).
        **settings: Fields of `CoMapTraining`.

    Raises:
        OptionError: There is no such preset or field.

    Example:
        >>> preset("tiny").weights, preset("authors_code").distill_on
        ('full', 'target')
    """
    if name not in PRESETS:
        raise OptionError(f"there is no preset {name!r}; {suggest(name, sorted(PRESETS))}")
    known = {part.name for part in fields(CoMapTraining)}
    for given in settings:
        if given not in known:
            raise OptionError(f"there is no setting {given!r}; {suggest(given, sorted(known))}")
    return replace(CoMapTraining(**PRESETS[name]), **settings)
