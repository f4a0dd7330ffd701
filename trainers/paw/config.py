"""All settings of PaW's training and of the algorithms under it, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

from ...agents.paw import PaWConfig
from ...errors import OptionError, check_choice, suggest
from ...settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Range,
    Share,
    check_fields,
)
from ..config import LoRA, changed, plain, presets

Algorithm: TypeAlias = Literal["grpo", "rloo", "gigpo", "ppo"]
Over: TypeAlias = Literal["rows", "trajectories"]
GiGPOMode: TypeAlias = Literal["mean_std_norm", "mean_norm"]
LossKind: TypeAlias = Literal["cmae", "mae", "ce", "clipped_ce"]
Selection: TypeAlias = Literal["top", "random", "bottom"]
EntropyMode: TypeAlias = Literal["sampled_plogp", "full", "neg_logp"]


@dataclass(frozen=True, kw_only=True)
class WorldModelLoss:
    """PaW's loss on next observations: which rows, what loss, and its weight (PaW, eq. 4 and 7-11)."""

    alpha: PositiveShare = 0.75
    """Share of an update's rows whose next observation the policy learns to predict."""
    selection: Selection = "top"
    """The rows of highest entropy (top), any (random), or those of lowest (bottom)."""
    entropy_mode: EntropyMode = "sampled_plogp"
    """Entropy of an action: the mean over its tokens of -q log q, q the probability of the sampled
    token (the paper's formula); of the full distribution's entropy; or of -log q."""
    entropy_span: Literal["response", "action_tag"] = "response"
    """Tokens of the reply that count: all, or those inside the action's tags."""
    wm_loss: LossKind = "cmae"
    """Loss of a token of probability p: 1 - p (mae) or -log p (ce); cmae and clipped_ce leave out the
    tokens with p > rho."""
    rho: PositiveShare = 0.2
    """Greatest probability that cmae and clipped_ce still learn."""
    adaptive: bool = True
    """Whether a group's weight falls as its returns rise (PaW, eq. 10)."""
    r_max: PositiveFloat | None = None
    """Return at which that weight is 0; None for success_reward."""
    wm_coef: NonNegativeFloat = 1.0
    """Weight of the whole loss on observations (ours; 1 in the paper)."""
    placebo: bool = False
    """Learn the observations of other steps of the update in place of a step's own: a control that tells
    dynamics from regularization (ours)."""
    include_admissible: bool = False
    """Whether the observation to predict also lists the admissible actions."""

    def __post_init__(self) -> None:
        check_fields(self, "loss.")


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """How returns become advantages: GRPO and RLOO, GiGPO, and PPO with its critic."""

    advantage_over: Over = "rows"
    """What mean and deviation of episode returns are taken over: all rows of a task group (long episodes
    weigh more), or its trajectories once each. PPO has none."""
    gigpo_mode: GiGPOMode = "mean_std_norm"
    """Whether GiGPO divides by the standard deviation."""
    gigpo_omega: NonNegativeFloat = 1.0
    """Weight of GiGPO's step advantages."""
    gigpo_gamma: Share = 0.95
    """Discount of GiGPO's step returns."""
    gigpo_similarity: PositiveShare | None = None
    """Least similarity of two observations of one anchor group; None where they must be equal."""
    gamma_gae: Share = 1.0
    """Discount of PPO's advantages from token to token."""
    lambda_gae: Share = 1.0
    """Lambda of PPO's generalized advantage estimates."""
    value_clip: PositiveFloat | None = 0.5
    """How far PPO's values may move in an update; None for no limit."""
    critic_rate: PositiveFloat = 1e-5
    """Learning rate of PPO's critic."""

    def __post_init__(self) -> None:
        check_fields(self, "advantages.")


@dataclass(frozen=True, kw_only=True)
class PolicyOptimization:
    """The clipped policy loss, and how an update's rows become steps of AdamW."""

    clip_low: PositiveShare = 0.2
    """How far the ratio of probabilities may fall below 1."""
    clip_high: PositiveFloat = 0.2
    """How far it may rise above 1."""
    dual_clip: Annotated[float, Range(1, above=True)] | None = 3.0
    """Bound of the loss where the advantage is negative; None for none."""
    kl: NonNegativeFloat = 0.01
    """Weight of the divergence from the first policy; 0 leaves that model out."""
    entropy_bonus: NonNegativeFloat = 0.001
    """Weight of the policy's entropy."""
    log_entropies: bool = False
    """Log the entropy of the policy's distributions also where its weight is 0, and how PaW would select
    rows by it where replies are scored before an update. Costs passes over the vocabulary at each token of
    a reply."""
    old_logprobs: Literal["recomputed", "sampled"] = "recomputed"
    """Log-probabilities that ratios start from: a forward pass of the trained model over the sampled
    tokens, or those recorded while sampling, which saves that pass (ours). A server's model is never
    quite the same. With one mini-batch ratios are 1, and entropies are of those recorded."""
    learning_rate: PositiveFloat = 1e-6
    """Highest learning rate of the policy."""
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    """How learning rates change."""
    warmup_ratio: Share = 0.0
    """Share of the updates over which they rise at first."""
    beta2: Annotated[float, Range(0, 1, below=True)] = 0.999
    """Second decay rate of AdamW."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay of AdamW."""
    clip: PositiveFloat = 1.0
    """Largest norm of a gradient."""
    mini_batch_rows: PositiveInt | None = 256
    """Rows of an optimizer step, over all processes; None for the whole update in one."""
    micro_batch_rows: PositiveInt | None = None
    """Most rows of a forward pass; None for no limit."""
    micro_batch_tokens: PositiveInt | None = 16_384
    """Most tokens of a forward pass, padding included; None for no limit."""
    trees: bool | None = None
    """Read what the rows of a task's episodes share once, as trees, by many small operations; else rows are
    padded to the longest of a forward pass. None: trees on a CPU, padded rows on a GPU."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass, to save memory. None: on a GPU, where those of a forward
    pass of micro_batch_tokens do not fit."""
    save_updates: NonNegativeInt = 10
    """Updates between two checkpoints; 0 for one at the end only."""

    def __post_init__(self) -> None:
        check_fields(self, "optimization.")

        micro_rows = self.micro_batch_rows
        mini_rows = self.mini_batch_rows
        if micro_rows is not None and mini_rows is not None and micro_rows > mini_rows:
            raise OptionError(
                f"micro_batch_rows must be at most mini_batch_rows ({mini_rows}), not {micro_rows}"
            )
        if self.schedule == "constant" and self.warmup_ratio > 0:
            raise OptionError(
                f"schedule='constant' has no warm-up, found warmup_ratio={self.warmup_ratio:g}; use "
                "schedule='constant_with_warmup'"
            )


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Fine-tuning on demonstrations before the first update, which small models need."""

    warmup_tokens: NonNegativeInt = 0
    """Tokens of demonstrations to fine-tune the policy on; 0 for no warm-up."""
    warmup_rate: PositiveFloat = 3e-3
    """Highest learning rate; it rises at first and then falls."""
    warmup_final: Share = 0.03
    """The share of it at the end. A policy whose rate has fallen to nothing is sure of what it observes,
    and leaves PaW's loss less to learn."""
    warmup_batch_tokens: PositiveInt = 2048
    """Tokens of an update."""
    warmup_observations: Share = 0.0
    """Share of the demonstrations of which all tokens are learned, observations too, not replies alone.
    Needs context=concat. PaW's loss has next to no gradient where observations are improbable."""
    side_steps: Share = 0.0
    """Share of the demonstrations in which the expert now and then does something else, which shows what
    refused actions and empty places look like."""

    def __post_init__(self) -> None:
        check_fields(self, "warmup.")


@dataclass(frozen=True, kw_only=True)
class ZeroSearch:
    """The model that plays the search engine, with search_engine=simulated (ZeroSearch, section 3)."""

    noise_start: Share = 0.0
    """Probability of noisy documents at the first update (authors' code, for Qwen2.5-3B)."""
    noise_end: Share = 0.5
    """Probability of noisy documents at the last update (authors' code, for Qwen2.5-3B)."""
    noise_base: Annotated[float, Range(1)] = 4.0
    """How late that probability rises: the base of the exponential; 1 is a straight line."""
    simulator_temperature: NonNegativeFloat = 0.8
    """Temperature of the simulator (ours)."""
    simulator_tokens: PositiveInt = 512
    """Most tokens of all documents of a search."""
    simulator_warmup_tokens: PositiveInt = 1_000_000
    """Tokens that a tiny simulator is fine-tuned on first."""

    def __post_init__(self) -> None:
        check_fields(self, "zerosearch.")


@dataclass(frozen=True, kw_only=True)
class PaWTraining:
    """How a policy is trained by reinforcement learning; the defaults are the paper's for ALFWorld.

    Raises:
        OptionError: A value is not allowed, is out of range, or does not go with another.

    Example:
        >>> PaWTraining().title, PaWTraining(algorithm="gigpo", paw=False).title
        ('GRPO+PaW', 'GiGPO')
    """

    algorithm: Algorithm = "grpo"
    """grpo, rloo, gigpo or ppo."""
    paw: bool = True
    """Add PaW's loss on observations; without it, the algorithm is plain."""
    loss: WorldModelLoss = field(default_factory=WorldModelLoss)
    """The loss on observations."""
    advantages: Advantages = field(default_factory=Advantages)
    """How returns become advantages."""
    optimization: PolicyOptimization = field(default_factory=PolicyOptimization)
    """The policy's loss, and how rows become steps of the optimizer."""

    agent: PaWConfig = field(default_factory=lambda: PaWConfig(observation_tokens=512))
    """How the policy acts in rollouts; its observation_tokens also limit the observation to predict.
    The seed is the training's."""
    groups: PositiveInt = 16
    """Tasks of an update, over all processes."""
    members: Annotated[int, Range(1, 2**16)] = 8
    """Episodes of each task."""
    max_episode_steps: PositiveInt = 50
    """Most steps of an episode."""
    success_reward: PositiveFloat = 10.0
    """Reward of an episode that solves its task."""
    reward: str = "success"
    """success (all or nothing), f1 (of the answer's tokens, as in ZeroSearch), env (the environment's own
    rewards), or MODULE:function (your own: one for each step)."""
    invalid_penalty: NonNegativeFloat = 0.1
    """What a reply in the wrong form costs its row."""
    concurrency: PositiveInt = 128
    """Episodes that run at the same time, in each process."""
    staleness: NonNegativeInt = 0
    """Most updates that rollouts are ahead of training (ours): they are played in a thread meanwhile, by an
    engine beside the model, with weights that are so many updates older. Ratios then start from the
    log-probabilities as sampled. 0 is on-policy, as in the papers."""
    search_engine: Literal["environment", "simulated"] = "environment"
    """What answers searches in training: the environment, or a model that plays a search engine and
    sometimes writes noisy documents (ZeroSearch). Evaluation always uses the environment."""
    zerosearch: ZeroSearch = field(default_factory=ZeroSearch)
    """With search_engine=simulated: the simulator and its curriculum."""

    updates: PositiveInt | None = 150
    """Updates in all; None for one pass over the training split."""
    max_updates: PositiveInt | None = None
    """Updates to stop after, to resume later; None for all."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the model's chat template in all prompts. Whether Qwen3 thinks is the agent's setting
    thinking, unless it is said here (enable_thinking=false)."""
    weights: Literal["full", "lora"] = "full"
    """full, or lora (an adapter of the frozen model)."""
    lora: LoRA = field(default_factory=lambda: LoRA(r=16, alpha=32, dropout=0.0))
    """How the adapter is made; with dropout, ratios of probabilities do not start at 1."""
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """What the model computes with; auto is bfloat16 on a GPU and float32 on a CPU."""
    seed: NonNegativeInt = 0
    """Seed of everything that is drawn."""
    warmup: Warmup = field(default_factory=Warmup)
    """Fine-tuning on demonstrations first."""

    train_split: str = "train"
    """Split to learn from."""
    demonstrations: PositiveInt | None = None
    """Tasks that are demonstrated for the warm-up; None for all."""
    evaluation_splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    """Splits to evaluate on."""
    evaluation_tasks: NonNegativeInt | None = None
    """Tasks of each evaluation split; None for all, 0 for none."""
    evaluation_every: NonNegativeInt = 10
    """Updates between two evaluations; 0 for the first and the last only."""
    evaluation_seeds: PositiveInt = 1
    """How often each task is played."""
    evaluation_temperature: NonNegativeFloat = 0.4
    """Temperature of the policy in evaluation; 0 is greedy."""

    def computes_in_half(self, on_gpu: bool) -> bool:
        """Return whether passes compute in bfloat16 on a GPU, or on a CPU."""
        return self.precision == "bfloat16" or (self.precision == "auto" and on_gpu)

    def __post_init__(self) -> None:
        check_fields(self)

        if ":" not in self.reward:
            check_choice("reward", self.reward, ("success", "f1", "env", "MODULE:function"))
        if self.agent.top_p < 1:
            raise OptionError(
                "expected agent.top_p=1, since ratios of probabilities are those of the distribution that "
                f"replies are sampled from, found {self.agent.top_p:g}; leave it at 1 in a training (an "
                "agent that is only played may have less)"
            )
        if self.algorithm == "rloo" and self.members < 2:
            raise OptionError(
                "algorithm='rloo' compares the episodes of a task: members must be at least 2, not "
                f"{self.members}"
            )
        if self.staleness and self.agent.temperature != 1:
            raise OptionError(
                f"staleness={self.staleness} starts ratios from the log-probabilities as sampled, which "
                f"are the policy's at temperature 1 alone, not {self.agent.temperature:g}"
            )
        if self.loss.entropy_span == "action_tag" and self.agent.prompts != "standard":
            raise OptionError(
                "entropy_span='action_tag' needs the tags of prompts='standard', not "
                f"{self.agent.prompts!r}"
            )

    @property
    def highest_return(self) -> float:
        """R_max: the return at which a group's adaptive weight is 0 (PaW, eq. 10)."""
        return self.success_reward if self.loss.r_max is None else self.loss.r_max

    @property
    def title(self) -> str:
        """What the paper's tables call these settings.

        Example:
            >>> PaWTraining(loss=WorldModelLoss(adaptive=False)).title
            'w/o Ada. Coef.'
        """
        title = {"grpo": "GRPO", "rloo": "RLOO", "gigpo": "GiGPO", "ppo": "PPO"}[self.algorithm]
        if self.paw:
            changes = ", ".join(self.ablations())
            is_ablation = bool(changes) and self.algorithm == "grpo"  # a row of the paper's Table 4
            title = changes if is_ablation else f"{title}+PaW {changes}".strip()

        setting = ""
        if self.search_engine == "simulated":
            setting = "ZeroSearch"
        elif self.agent.context == "concat":
            setting = "Search-R1"
        if not setting:
            return title
        return setting if title == "GRPO" else f"{title} ({setting})"

    def ablations(self) -> tuple[str, ...]:
        """Return what differs from PaW in full, as the paper's Table 4 and Figure 6 call it."""
        if not self.paw:
            return ()

        loss = self.loss
        defaults = WorldModelLoss()
        choices = {
            "ce": "w/ CE",
            "mae": "w/ MAE",
            "clipped_ce": "w/ Clipped CE",
            "random": "Random Selection",
            "bottom": "Lowest-entropy Selection",
        }

        ablations = []
        if not loss.adaptive:
            ablations.append("w/o Ada. Coef.")
        for choice in (loss.wm_loss, loss.selection):
            if choice in choices:
                ablations.append(choices[choice])
        if loss.placebo:
            ablations.append("Placebo")
        for name, sign in (("alpha", "α"), ("rho", "ρ")):
            number = getattr(loss, name)
            if number != getattr(defaults, name):
                ablations.append(f"{sign} = {number:g}")
        for name in ("entropy_mode", "entropy_span"):
            choice = getattr(loss, name)
            if choice != getattr(defaults, name):
                ablations.append(f"{name.replace('_', ' ')} = {choice}")
        return tuple(ablations)

    def evaluates_after(self, update: int) -> bool:
        """Return whether to evaluate after so many updates; after the last is always evaluated."""
        return update == 0 or (self.evaluation_every > 0 and update % self.evaluation_every == 0)

    def acting(self, temperature: float | None = None) -> PaWConfig:
        """Return how the agent acts: in rollouts, or with another temperature in evaluation."""
        if temperature is None:
            temperature = self.agent.temperature
        return replace(self.agent, seed=self.seed, temperature=temperature)

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return plain(self)


PRESETS = presets("paw")
"""What each preset sets; all else is as in `PaWTraining`."""

ENVIRONMENTS: Mapping[str, str] = {
    **dict.fromkeys(PRESETS, "comap/SearchQA-v0"),
    **dict.fromkeys(("alfworld", "tiny", "pretrained"), "comap/ALFWorld-v0"),
    "webshop": "comap/WebShop-v0",
    "tools": "comap/StableToolBench-v0",
}

ENVIRONMENT_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "zerosearch": {"topk": 5},
    "tiny_search_r1": {"topk": 1},
    "tiny_zerosearch": {"topk": 1},
}
"""Options of the environment that go with a preset: ZeroSearch's five passages for a search, and one
for small models, which read few."""


def preset(name: str, **settings: Any) -> PaWTraining:
    """Return a preset with some settings changed.

    PPO has no groups: unless groups or members are given, it plays as many tasks as there would be
    episodes, each once.

    Args:
        name: One of `PRESETS`; ``paper`` is ``alfworld``, see `preset_of_env` for other environments.
        **settings: Other values of `PaWTraining`'s settings. Those of its nested configs are given by
            their own name, or as a mapping by the nested config's.

    Raises:
        OptionError: There is no such preset or setting, or a value cannot be.

    Example:
        >>> config = preset("tiny", groups=2, rho=0.4, agent={"temperature": 0.7})
        >>> config.groups, config.loss.rho, config.agent.temperature
        (2, 0.4, 0.7)
    """
    name = "alfworld" if name == "paper" else name
    if name not in PRESETS:
        raise OptionError(f"there is no preset {name!r}; {suggest(name, ['paper', *PRESETS])}")

    base = changed(PaWTraining(), PRESETS[name])
    if settings.get("algorithm") == "ppo" and not {"groups", "members"} & settings.keys():
        settings = {**settings, "groups": base.groups * base.members, "members": 1}
    return changed(base, settings)


def preset_of_env(env_id: str) -> str:
    """Return the preset for an environment; ``alfworld``, the general one, for one that has none."""
    base = env_id.rpartition("-v")[0] or env_id
    for name, preset_env_id in ENVIRONMENTS.items():
        if preset_env_id.rpartition("-v")[0] == base:
            return name
    return "alfworld"
