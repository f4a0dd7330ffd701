"""All settings of PaW's training and of the algorithms under it (METHODS.md 2.1 to 2.7)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from ..config_ranges import check_fields
from .config_checks import RANGES, check_conflicts
from .config_names import ablation_names, row_name

__all__ = ["Algorithm", "PaWTraining"]

Algorithm: TypeAlias = Literal["grpo", "rloo", "gigpo", "ppo"]
"""The algorithms of METHODS.md 2.6."""

Schedule: TypeAlias = Literal["constant", "constant_with_warmup", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class PaWTraining:
    """How a policy is trained by reinforcement learning; the defaults are those for ALFWorld.

    Raises:
        OptionError: A value is none of those allowed, is out of range, or does not go with another.

    Example:
        >>> PaWTraining().row, PaWTraining(algorithm="gigpo", paw=False).row
        ('GRPO+PaW', 'GiGPO')
    """

    # -- the algorithm (METHODS.md 2.6) --
    algorithm: Algorithm = "grpo"
    """grpo, rloo, gigpo or ppo."""
    advantage_over: Literal["rows", "trajectories"] = "rows"
    """What GRPO and RLOO take mean and deviation over: all step rows of a task group (long episodes
    weigh more), or its episodes once each."""
    gigpo_mode: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    """Whether GiGPO divides by the standard deviation."""
    gigpo_omega: float = 1.0
    """Weight of GiGPO's step advantages."""
    gigpo_gamma: float = 0.95
    """Discount of GiGPO's step returns."""
    gigpo_similarity: float | None = None
    """Least similarity of two observations of one anchor group; None where they must be equal."""
    gamma_gae: float = 1.0
    """Discount of PPO's advantages."""
    lambda_gae: float = 1.0
    """Lambda of PPO's advantages."""
    value_clip: float | None = 0.5
    """How far PPO's values may move in an update; None for no limit."""
    critic_rate: float = 1e-5
    """Learning rate of PPO's critic."""
    clip_low: float = 0.2
    """How far the ratio of probabilities may fall below 1."""
    clip_high: float = 0.2
    """How far it may rise above 1."""
    dual_clip: float | None = 3.0
    """Bound of the loss where the advantage is negative; None for none."""
    kl: float = 0.01
    """Weight of the divergence from the model that training began with; 0 leaves that model out."""
    entropy_bonus: float = 0.001
    """Weight of the entropy of the policy."""
    old_logprobs: Literal["recomputed", "sampled"] = "recomputed"
    """Where the log-probabilities that ratios and entropies begin from come from: a pass of the trained
    model over what was sampled, or what was told while sampling, which saves that pass where the same
    model sampled (ours). A server's model is never quite the same."""

    # -- PaW (METHODS.md 2.2 to 2.5) --
    paw: bool = True
    """False: the plain algorithm, without the loss on observations."""
    alpha: float = 0.75
    """Share of an update's rows that the policy learns to predict the observation of."""
    selection: Literal["top", "random", "bottom"] = "top"
    """Which rows these are: those of highest entropy, any, or those of lowest."""
    entropy_mode: Literal["sampled_plogp", "full", "neg_logp"] = "sampled_plogp"
    """What an action's entropy is: the paper's formula, that of the whole vocabulary, or -log p."""
    entropy_span: Literal["response", "action_tag"] = "response"
    """Over which tokens of the reply: all, or those inside of the action's tags."""
    wm_loss: Literal["cmae", "mae", "ce", "clipped_ce"] = "cmae"
    """The loss on observation tokens."""
    rho: float = 0.2
    """Tokens that are more probable than this are left out of cmae and clipped_ce."""
    adaptive: bool = True
    """Whether a group's weight falls as its returns rise (METHODS.md 2.4)."""
    r_max: float | None = None
    """The return at which that weight is 0; None for success_reward."""
    wm_coef: float = 1.0
    """Weight of the whole loss on observations (ours; 1 in the paper)."""
    include_admissible: bool = False
    """Whether the observation to predict lists the admissible actions too."""

    # -- rollouts and rewards --
    groups: int = 16
    """Tasks of an update, over all processes."""
    members: int = 8
    """Episodes of each task."""
    max_episode_steps: int = 50
    """Most steps of an episode."""
    success_reward: float = 10.0
    """What an episode that solves its task earns."""
    reward: Literal["success", "f1"] = "success"
    """success (all or nothing), or the share of it that the answer's token F1 is (ZeroSearch)."""
    invalid_penalty: float = 0.1
    """What a reply that has not the right form costs its row."""
    temperature: float = 1.0
    """Of the policy in rollouts."""
    top_p: float = 1.0
    """Of the policy in rollouts; below 1, they are not drawn as the loss supposes."""
    live: int = 128
    """Episodes that run at the same time, in each process."""
    engine: Literal["environment", "simulated"] = "environment"
    """Who answers searches in training: the environment, or a model that plays a search engine and
    sometimes gives noisy documents (ZeroSearch, METHODS.md 3). Evaluation always uses the former."""
    noise_start: float = 0.25
    """With engine=simulated: probability of noisy documents at the first update (authors' code)."""
    noise_end: float = 0.5
    """With engine=simulated: their probability at the last update (authors' code)."""
    noise_base: float = 4.0
    """How late it rises: the base of the exponential; 1 is a straight line (ZeroSearch)."""
    simulator_temperature: float = 0.8
    """With engine=simulated: temperature of what the simulator writes (ours)."""
    simulator_tokens: int = 512
    """With engine=simulated: most tokens of all documents of a search."""
    simulator_warmup_tokens: int = 1_000_000
    """Tokens that a tiny simulator is taught on first."""

    # -- prompts --
    prompts: Literal["tags", "brief"] = "tags"
    """tags (think and action tags, METHODS.md 2.8; the agent paw), or brief for small models that are
    trained here from the beginning (the agent react)."""
    state_text: Literal["history", "belief"] = "history"
    """How the present is told: the turns so far, or the belief facts in words (with brief)."""
    form: Literal["asked", "given"] = "asked"
    """Whether the first fixed word of a reply is the model's to write, or given (with brief)."""
    history_turns: int | None = 2
    """The last so many turns are told; None for all that fit."""
    context: Literal["summary", "concat"] = "summary"
    """summary (each step's prompt is made anew, with the last turns), or concat (the whole
    conversation goes on, as in Search-R1)."""
    prompt_tokens: int = 2048
    """Most tokens of a prompt."""
    response_tokens: int = 512
    """Most tokens of a reply."""
    observation_tokens: int = 512
    """Most tokens of the observation to predict; the rest is cut off."""

    # -- optimization --
    updates: int | None = 150
    """Updates of the whole training; None for as many as go once through the training split."""
    max_updates: int | None = None
    """Stop after so many of them, to go on later; None for all."""
    mini_batch_rows: int | None = 256
    """Rows of an optimizer step, over all processes; None for the whole update in one."""
    micro_batch_rows: int | None = None
    """Rows of one forward pass; None where micro_batch_tokens counts."""
    micro_batch_tokens: int | None = 16_384
    """Most tokens of one forward pass, padding included; None where micro_batch_rows counts."""
    learning_rate: float = 1e-6
    """Highest learning rate of the policy."""
    schedule: Schedule = "constant"
    """How learning rates change."""
    warmup_ratio: float = 0.0
    """Share of the updates over which they rise at first."""
    beta2: float = 0.999
    """Second decay rate of AdamW."""
    weight_decay: float = 0.01
    """Of AdamW."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    weights: Literal["full", "lora"] = "full"
    """full, or lora (an adapter of the frozen model)."""
    lora_r: int = 16
    """Rank of the adapter."""
    lora_alpha: int = 32
    """Scale of the adapter."""
    lora_dropout: float = 0.0
    """Dropout of the adapter; above 0, ratios of probabilities begin away from 1."""
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """What the model computes with; auto is bfloat16 on a GPU and float32 on a CPU."""
    gradient_checkpointing: bool = True
    """Compute activations again on the way back, to save memory."""
    seed: int = 0
    """Seed of everything that is drawn."""
    save_updates: int = 10
    """Updates between two checkpoints; 0 for one at the end alone."""

    # -- warm-up on demonstrations (ours: small models must win now and then to learn at all) --
    warmup_tokens: int = 0
    """Tokens of demonstrations that the policy is fine-tuned on first; 0 for no warm-up."""
    warmup_rate: float = 3e-3
    """Highest learning rate of the warm-up; it rises at first and then falls to 0."""
    warmup_batch_tokens: int = 2048
    """Tokens of each of its updates."""
    demonstrations: int | None = None
    """Tasks that are demonstrated for it; None for all."""

    # -- tasks and evaluation --
    train_split: str = "train"
    """Split to learn from."""
    evaluation_splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    """Splits to evaluate on."""
    evaluation_tasks: int | None = None
    """Tasks of each; None for all, 0 for no evaluation."""
    evaluation_every: int = 10
    """Updates between two evaluations; 0 for the first and the last alone."""
    evaluation_seeds: int = 1
    """How often each task is played."""
    evaluation_temperature: float = 0.4
    """Temperature of the policy in evaluation; 0 is greedy."""

    def __post_init__(self) -> None:
        check_fields(self, RANGES)
        check_conflicts(self)

    @property
    def agent(self) -> str:
        """The id of the agent that acts with these prompts."""
        return "paw" if self.prompts == "tags" else "react"

    @property
    def highest_return(self) -> float:
        """R_max of METHODS.md 2.4: the return at which a group's adaptive weight is 0."""
        return self.success_reward if self.r_max is None else self.r_max

    @property
    def row(self) -> str:
        """The name of these settings among the rows of the paper's tables (METHODS.md 2.10).

        Example:
            >>> PaWTraining(adaptive=False).row, PaWTraining(algorithm="rloo", wm_loss="ce").row
            ('w/o Ada. Coef.', 'RLOO+PaW w/ CE')
        """
        return row_name(self)

    def ablations(self) -> tuple[str, ...]:
        """Return what differs from PaW in full, as the paper's Table 4 and Figure 6 call it.

        Example:
            >>> PaWTraining(adaptive=False, alpha=0.5).ablations()
            ('w/o Ada. Coef.', 'α = 0.5')
        """
        return ablation_names(self)

    def evaluates_after(self, update: int) -> bool:
        """Return whether to evaluate after so many updates; after the last is always evaluated.

        Example:
            >>> [update for update in range(30) if PaWTraining().evaluates_after(update)]
            [0, 10, 20]
        """
        return update == 0 or (self.evaluation_every > 0 and update % self.evaluation_every == 0)

    def agent_settings(self, temperature: float | None = None) -> dict[str, Any]:
        """Return how the agent acts, as fields of its settings (`PaWConfig` or `ReActConfig`).

        Args:
            temperature: Another than that of rollouts.

        Example:
            >>> PaWTraining().agent_settings(0.4)["temperature"]
            0.4
        """
        tags = self.prompts == "tags"
        turns = None if self.context == "concat" else self.history_turns
        concat = {"context": "concat", "observation_tokens": self.observation_tokens}
        return {
            "prompts": "standard" if tags else "brief",
            "state_text": self.state_text,
            "form": self.form,
            "history_turns": turns,
            **({"memory_turns": turns} if tags else {}),
            **(concat if self.context == "concat" else {}),
            "max_length": self.prompt_tokens + self.response_tokens,
            "draft_tokens": self.response_tokens,
            "temperature": self.temperature if temperature is None else temperature,
            "top_p": self.top_p,
            "seed": self.seed,
        }

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON data; those of a simulator only where there is one."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if self.engine == "simulated" or not name.startswith("simulator_")
        }
