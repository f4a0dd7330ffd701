"""CoMap's training from beginning to end (CoMap, section 3.2): the rounds of co-evolution.

Policy pi and world model W have weights of their own; W's moving average is its teacher. Both are
warmed up on demonstrations (eq. 4 and 5), the reflect mode is initialized from suffix rollouts (App. C.2),
and then each round is

1. rollouts: on training tasks, pi drafts an action, W imagines what follows, the world-state gate
   decides whether pi reflects on that or on the truth, and the action gate decides whether the draft
   is revised (Figure 2);
2. world-model evolution: W learns what really followed, and by self-distillation from its teacher, the
   moving average of its weights, which reads the truth (eq. 6);
3. policy evolution: pi learns from its own reflections, beside demonstrations (eq. 8);
4. evaluation: both do what they do in the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agents.comap import ActionGate, StateGate, action_gate, world_state_gate
from ...agents.heads import RefinementHead
from ...agents.parsing import first_line
from ...errors import DataCorrupt, LanguageModelError, OptionError
from ...jsonl import read_json, write_json
from ...lm import Generate, Sampling
from ...trajectory import Trajectory
from ...worldmodel import RetrievalWorldModel, Transition, transitions_of
from ..config import changed_parts, recast
from ..entry import comap_conditions
from ..evaluation import freeze, gate_report, in_order, played_result, score_transitions
from ..processes import is_first, wait
from ..results import (
    EntryCheck,
    EvaluationResult,
    Fit,
    Labeling,
    ReflectionFit,
    Rollouts,
    to_json,
)
from ..run_folder import Done, StageFolder, each_once
from ..samples import Example, Sample, count_samples
from ..sft import imitation_samples, is_shown, transition_samples
from ..sharding import is_sharded
from ..stages import StagedTraining, Work, some_of
from .config import CoMapTraining
from .evaluation import evaluate, freeze_transitions
from .reflection import (
    DraftingAgent,
    SuffixLabel,
    branches_of,
    choose_steps,
    draft_samples,
    episodes_to_learn,
    label_samples,
    label_states,
    played_branches,
    rollout_samples,
)
from .rollouts import RolloutAgent, RolloutConfig
from .samples import (
    StudentRollouts,
    anchor_samples,
    balance_weights,
    balanced,
    reading_samples,
    world_model_samples,
)
from .stages import RoundPart, Stage, round_stage

if TYPE_CHECKING:
    from .objective import Divergence

_ANALYSIS = "Reflection:"
_STOP = ("\nDecision:", "\nFinal Action:")
_ENTRY_PLAYS = 8  # episodes of each task of the entry conditions
_ENTRY_TRANSITIONS = 1000  # how many transitions the world model predicts there
_KEPT_WITHOUT_REVISIONS = 32  # initial kept drafts where nothing is revised
_MEASURED_ANCHORS = 200  # demonstrated steps from which the tokens of one are estimated


class CoEvolution(StagedTraining):
    """A training of CoMap in a folder: `run` does it, or resumes it where it was.

    Args:
        config: The settings.
        *parts: The models, what makes environments, demonstrations and the folder: see
            `StagedTraining`.
        warmed_up: Whether the models are warmed up already; those stages are then left out.
        divergence: Compares student and teacher: (N, V) logits of both to (N,); None for that of
            `Distillation`.
        action_gate: Another action gate than `comap.agents.comap.action_gate`, called as that is.
        state_gate: Another world-state gate than `comap.agents.comap.world_state_gate`.
        **named: What samples, ``engine`` (``hf``, ``vllm``, ``auto`` or the address of a vLLM server)
            with its ``engine_memory``, and what else `StagedTraining` takes.

    Example:
        >>> training = CoEvolution(config, roles, make_env, demos, "runs/comap")  # doctest: +SKIP
        >>> summary = training.run()  # doctest: +SKIP
    """

    saved = ("agent", "wm")
    can_shard = True
    config: CoMapTraining

    def __init__(
        self,
        config: CoMapTraining,
        *parts: Any,
        warmed_up: bool = False,
        divergence: Divergence | None = None,
        action_gate: ActionGate = action_gate,
        state_gate: StateGate = world_state_gate,
        **named: Any,
    ) -> None:
        if is_sharded() and config.agent.p_source == "head":
            raise OptionError(
                "expected p of words where models are sharded among the processes (FSDP), found the head, "
                "which reads hidden states that vLLM does not return; set agent.p_source=verbalizer"
            )
        super().__init__(config, *parts, **named)
        self.warmed_up = warmed_up
        self.divergence = divergence
        self.action_gate = action_gate
        self.state_gate = state_gate

    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""
        config = self.config
        plan = [*self._warmup_stages()]

        # The frozen set has half a policy's actions: the warmed-up one's, the same for all rounds.
        if config.frozen_transitions:
            plan.append((Stage.FROZEN_TRANSITIONS, partial(freeze_transitions, self)))
        if config.entry_tasks and config.expert_sft and (config.reflection_init or config.rounds):
            plan.append((Stage.ENTRY_CONDITIONS, self.check_entry))
        if config.reflection_init:
            plan += self._initialization_stages()
        for number in range(config.rounds + 1):
            plan += self._round_stages(number)
        return plan

    def _warmup_stages(self) -> Iterator[tuple[str, Work]]:
        config = self.config
        if self.warmed_up:
            return
        if config.expert_sft:
            yield Stage.WARMUP_POLICY, self.warm_up_policy
        if config.world_model_warmup:
            if config.warmup_rollouts:
                yield Stage.WARMUP_ROLLOUTS, self.play_for_world_model
            yield Stage.WARMUP_WORLD_MODEL, self.warm_up_world_model

    def _initialization_stages(self) -> Iterator[tuple[str, Work]]:
        config = self.config
        if config.label_states != "policy":
            yield Stage.REFLECTION_DRAFTS, self.draft_in_expert_states
        if config.label_states != "expert":
            yield Stage.REFLECTION_PLAY, self.draft_in_policy_states
        yield Stage.REFLECTION_SUFFIXES, self.label_drafts
        yield Stage.REFLECTION_INIT, self.initialize_reflection

    def _round_stages(self, number: int) -> Iterator[tuple[str, Work]]:
        """Yield the stages of a round; round 0 is the evaluation before the first."""
        if number > 0:
            roll_out = partial(self.roll_out, number=number)
            yield round_stage(number, RoundPart.ROLLOUTS), roll_out
            if self.config.world_model_evolution:
                evolve_world_model = partial(self.evolve_world_model, number=number)
                yield round_stage(number, RoundPart.WORLD_MODEL), evolve_world_model
            evolve_policy = partial(self.evolve_policy, number=number)
            yield round_stage(number, RoundPart.POLICY), evolve_policy

        evaluation = partial(evaluate, self, number=number, gate=self.action_gate)
        yield round_stage(number, RoundPart.EVALUATION), evaluation

    def described(self) -> dict[str, Any]:
        """Return what makes this training the training it is, as plain data."""
        parts = {
            "divergence": self.divergence,
            "action_gate": self.action_gate,
            "state_gate": self.state_gate,
        }
        return {**super().described(), "warmed_up": self.warmed_up, **changed_parts(parts)}

    def summary(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return what was switched off."""
        return {"ablations": list(self.config.ablations())}

    def save(self, folder: Path) -> None:
        """Write the head, where one is read, and a retrieval world model of all that was played."""
        if self.config.agent.p_source == "head":
            self.head.save(folder / "models" / "head.safetensors")

        episodes = [*self.demos]
        for name in self.folders:
            if name == Stage.REFLECTION_PLAY or name.endswith(f"-{RoundPart.ROLLOUTS}"):
                episodes += self.episodes(name)
        transitions: list[Transition] = []
        for episode in in_order(episodes):
            transitions += transitions_of(episode)

        retrieval = RetrievalWorldModel()
        retrieval.fit(transitions)
        retrieval.save(folder / "models" / "retrieval.jsonl")

    def roll_out(self, stage: StageFolder, number: int) -> Rollouts:
        """Play training tasks with probes, teacher and both gates (CoMap, Figure 2)."""
        config = self.config
        # Drawn anew for each round, and the same ones however often the training was interrupted.
        tasks = self.some_tasks(config.tasks_per_round, "round", number)
        lm = self.language_model()
        world_model = self.world_model(lm)
        agent_config = recast(
            self.agent,
            RolloutConfig,
            tau_wm=config.tau_wm,
            world_state_gate=config.world_state_gate,
        )
        agent = RolloutAgent(
            agent_config,
            self.head,
            world_model,
            gate=self.action_gate,
            state_gate=self.state_gate,
        )

        episodes = self.play(
            stage.path / "episodes",
            config.train_split,
            agent,
            tasks,
            lm=lm,
            world_model=world_model,
            seed=self.seed("round", number, "episodes"),
        )
        return Rollouts(played_result(episodes), gate_report(episodes))

    def evolve_world_model(self, stage: StageFolder, number: int) -> Fit:
        """Learn from a round's transitions: real cross-entropy and self-distillation (CoMap, eq. 6)."""
        from .objective import world_model_objective
        from .trainer import CoMapTrainer, Teacher

        config = self.config
        episodes = self._buffered(number)
        eta = config.distillation.eta if config.self_distills else 0.0
        world_model = self.world_model(self.counting)
        samples = list(
            world_model_samples(episodes, world_model, distilled=eta > 0, learned=config.real_ce)
        )
        if config.real_ce:
            samples += self._reading(episodes, stage)

        # Without distillation the teacher follows too: the world-state gate asks it.
        fit = self.fit(
            stage,
            "wm",
            [samples] * config.world_model_epochs,
            config.world_model_rate,
            CoMapTrainer,
            objective=partial(world_model_objective, eta=eta),
            teacher=Teacher(
                role="wm_ema",
                config=config.distillation,
                continuations=self._student_rollouts(stage, samples) if eta else None,
                compare=self.divergence,
            ),
        )
        weights = self.save_weights(stage, "wm", "wm_ema")
        return replace(fit, samples=count_samples(samples), weights=weights)

    def evolve_policy(self, stage: StageFolder, number: int) -> Fit:
        """Learn from a round's reflections, and from demonstrations beside them (CoMap, eq. 8)."""
        config = self.config
        episodes = self._buffered(number)
        count_tokens = self.counting.count_tokens
        samples = list(rollout_samples(episodes, config, count_tokens=count_tokens))
        # Kept drafts are many times as many as revisions, and a policy that only learns to keep never
        # revises.
        if config.round_balance is not None:
            kinds = [sample.kind for sample in samples]
            seed = self.seed(stage.name, "balance")
            samples = [samples[index] for index in balanced(kinds, config.round_balance, seed)]

        # The anchors are as many as the reflections, also in the ablation that learns none of these.
        # Without any they are as many as there could have been: eq. 8 has anchors in each round.
        step_count = sum(len(episode.steps) for episode in episodes_to_learn(episodes, config))
        anchor_count = config.anchor_rows or len(samples) or step_count
        if not config.online_reflection or not config.alpha:
            samples = []
        anchor_episodes = self.demos
        if config.anchors == "executed":
            anchor_episodes = episodes_to_learn(episodes, config)

        return self._learn_reflections(
            stage,
            samples,
            anchor_count,
            config.policy_epochs,
            alpha=config.alpha,
            anchor=config.anchor,
            anchor_episodes=anchor_episodes,
        )

    def warm_up_policy(self, stage: StageFolder) -> Fit:
        """Fine-tune the policy on demonstrations (CoMap, eq. 4)."""
        config = self.config
        count_tokens = self.counting.count_tokens
        samples = list(imitation_samples(self.demos, self.agent, count_tokens=count_tokens))
        rate = config.policy_rate if config.warmup_rate is None else config.warmup_rate
        return self.learn(stage, "agent", samples, config.warmup_epochs, rate)

    def play_for_world_model(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy play, as it is now, for transitions off the expert's way (D_env)."""
        config = self.config
        lm = self.language_model()
        tasks = self.some_tasks(config.warmup_rollouts, stage.name)
        folder = stage.path / "episodes"
        episodes = self.play(folder, config.train_split, self.drafting(), tasks, lm=lm)
        success_count = sum(episode.success for episode in episodes)
        return {"episodes": len(episodes), "success": success_count / len(episodes)}

    def warm_up_world_model(self, stage: StageFolder) -> Fit:
        """Fine-tune the student on real transitions; the teacher begins as a copy (CoMap, eq. 5)."""
        config = self.config
        episodes = [*self.demos]
        if Stage.WARMUP_ROLLOUTS in self.folders:
            episodes += self.episodes(Stage.WARMUP_ROLLOUTS)

        samples = list(transition_samples(episodes, self.world_model(self.counting)))
        other_texts: list[str] = []
        for episode in episodes:
            other_texts += [step.observation for step in episode.steps]
        samples += self._reading(episodes, stage, other_texts)

        rate = config.world_model_rate if config.warmup_rate is None else config.warmup_rate
        return self.learn(stage, "wm", samples, config.warmup_epochs, rate, "wm_ema")

    def check_entry(self, stage: StageFolder) -> EntryCheck:
        """Play some tasks that are not demonstrated, and report whether the training can show anything."""
        config = self.config
        demonstrated = {demonstration.task for demonstration in self.demos}
        other_tasks = [task for task in self.tasks(config.train_split) if task not in demonstrated]
        tasks = some_of(other_tasks, config.entry_tasks, self.seed(stage.name))

        # Several plays of each task: what any of them solves beyond the mean is what reflecting can gain.
        agent = self.drafting(config.evaluation_temperature)
        lm = self.language_model()
        episodes: list[Trajectory] = []
        for number in range(_ENTRY_PLAYS):
            folder = stage.path / f"episodes-{number}"
            seed = self.seed(stage.name, number)
            episodes += self.play(folder, config.train_split, agent, tasks, lm=lm, seed=seed)

        # One condition is that the world model is right where it predicts that nothing changes.
        with closing(self.make_env(config.train_split)) as env:
            canonicalizer = env.get_wrapper_attr("canonicalizer")
        transitions = freeze(episodes, _ENTRY_TRANSITIONS, self.seed(stage.name, "foreseen"))
        scores = score_transitions(self.world_model(lm), transitions, canonicalizer)

        conditions = comap_conditions(episodes, scores.refusals.precision)
        self.tell({"event": "conditions", "of": to_json(conditions)})
        return EntryCheck(played_result(episodes), scores.refusals, conditions)

    def draft_in_expert_states(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy draft in the expert's states (CoMap, App. C.2)."""
        config = self.config
        plans_of_demos = {
            demonstration.task: tuple(step.action for step in demonstration.steps)
            for demonstration in self.demos
            if all(map(is_shown, demonstration.steps))
        }

        # Episodes with side steps are left out: in their states the plan is no longer the expert's.
        demonstrated = sorted(plans_of_demos)
        rng = random.Random(self.seed(stage.name))
        tasks = rng.sample(demonstrated, min(config.reflection_tasks, len(demonstrated)))
        plans = {task: plans_of_demos[task] for task in tasks}
        steps = choose_steps(plans, config.states_per_episode, self.seed(stage.name, "steps"))

        lm = self.language_model()
        episodes = self.play(
            stage.path / "episodes",
            config.train_split,
            DraftingAgent(self.agent, plans, steps, self._init_context()),
            tasks,
            lm=lm,
            world_model=self.world_model(lm),
        )
        return {"episodes": len(episodes), "states": sum(map(len, steps.values()))}

    def draft_in_policy_states(self, stage: StageFolder) -> EvaluationResult:
        """Let the policy play other tasks, and note in each state what an expert would do there (ours)."""
        config = self.config
        # Both sorts of states are labeled together: a task in both would count twice.
        drafted = {episode.task for episode in self._drafted((Stage.REFLECTION_DRAFTS,))}
        other_tasks = [task for task in self.tasks(config.train_split) if task not in drafted]
        tasks = some_of(other_tasks, config.reflection_tasks, self.seed(stage.name))

        lm = self.language_model()
        episodes = self.play(
            stage.path / "episodes",
            config.train_split,
            DraftingAgent(self.agent, context=self._init_context()),
            tasks,
            lm=lm,
            world_model=self.world_model(lm),
        )
        return played_result(episodes)

    def _drafted(
        self, stages: Sequence[Stage] = (Stage.REFLECTION_DRAFTS, Stage.REFLECTION_PLAY)
    ) -> list[Trajectory]:
        """Return the episodes in which the policy was asked for drafts."""
        episodes: list[Trajectory] = []
        for name in stages:
            if name in self.folders:
                episodes += self.episodes(name)
        return episodes

    def label_drafts(self, stage: StageFolder) -> Labeling:
        """Play out draft and expert's action in each state, and label which is better."""
        config = self.config
        episodes = self._drafted()
        branches = branches_of(episodes, config.suffixes)
        folder = stage.path / "suffixes"
        outcomes = played_branches(self, folder, config.train_split, branches)

        labels, counts = label_states(
            episodes,
            dict(zip(branches, outcomes, strict=True)),
            suffixes=config.suffixes,
            delta=config.delta,
            context=self._init_context(),
            seed=self.seed(stage.name),
        )
        if is_first():
            write_json(stage.path / "labels.json", [asdict(label) for label in labels])
        wait()
        return Labeling(branches=len(branches), labels=len(labels), counts=counts)

    def initialize_reflection(self, stage: StageFolder) -> ReflectionFit:
        """Train the reflect mode, and the refinement head, on those labels."""
        config = self.config
        all_labels = self._labels()
        labels = self._balanced_labels(stage, all_labels)
        count_tokens = self.counting.count_tokens
        make_samples = partial(
            label_samples, labels, self._drafted(), config, count_tokens=count_tokens
        )
        samples = make_samples()

        # Standard prompts ask for an analysis before the decision: the policy's own, of these very prompts.
        if config.agent.prompts == "standard":
            samples = make_samples(analyses=self._analyses(stage, samples))

        epochs = config.policy_epochs if config.init_epochs is None else config.init_epochs
        anchor_count = len(samples) if config.anchor_rows is None else config.anchor_rows
        anchor_weight = config.init_anchor
        drafts: list[Sample] = []

        # The controls learn as many tokens, but none of the reflections.
        if config.learn_labels != "reflections":
            if config.learn_labels == "drafts":
                drafts = draft_samples(labels, self._drafted(), config, count_tokens=count_tokens)
            drafts, anchor_count = self._control(stage, samples, drafts, anchor_count)
            samples = []
            anchor_weight = 1.0

        fit = self._learn_reflections(
            stage,
            samples,
            anchor_count,
            epochs,
            alpha=1.0,
            anchor=anchor_weight,
            anchor_episodes=self.demos,
            drafts=drafts,
        )
        counts = Counter(label.kind for label in labels)
        return ReflectionFit(fit, counts, dropped=len(all_labels) - len(labels))

    def _labels(self) -> list[SuffixLabel]:
        """Return the labels that `label_drafts` wrote."""
        path = self.folders[Stage.REFLECTION_SUFFIXES].path / "labels.json"
        try:
            return [SuffixLabel(**row) for row in read_json(path)]
        except (TypeError, ValueError) as error:
            raise DataCorrupt(
                f"expected labels in {path}, found something else ({error}); remove that folder to do "
                "the stage again"
            ) from error

    def _balanced_labels(
        self, stage: StageFolder, labels: Sequence[SuffixLabel]
    ) -> list[SuffixLabel]:
        """Return the labels without the kept drafts that are too many."""
        # Without any revision some kept drafts still teach the form of a reply.
        kinds = [label.kind for label in labels]
        indices = balanced(
            kinds, self.config.balance, self.seed(stage.name), alone=_KEPT_WITHOUT_REVISIONS
        )
        return [labels[index] for index in indices]

    def _control(
        self,
        stage: StageFolder,
        reflections: Sequence[Sample],
        drafts: Sequence[Sample],
        anchor_count: int,
    ) -> tuple[list[Sample], int]:
        """Return drafts, or a number of demonstrated steps, with as many tokens as reflections have.

        The number is that of all demonstrated steps: those beside reflections are among them.
        """
        count_tokens = self.counting.count_tokens
        anchors = anchor_samples(
            self.demos,
            self.agent,
            _MEASURED_ANCHORS,
            self.seed(stage.name),
            count_tokens=count_tokens,
        )

        def tokens_of(samples: Sequence[Sample]) -> int:
            total = sum(count_tokens(sample.text) for sample in samples)
            for sample in samples:
                total += sum(count_tokens(message.content) for message in sample.messages)
            return total

        if not self.config.init_anchor:
            anchor_count = 0
        if not drafts:
            tokens_of_anchor = tokens_of(anchors) / len(anchors)
            return [], anchor_count + round(tokens_of(reflections) / tokens_of_anchor)
        repeats = max(round(tokens_of(reflections) / tokens_of(drafts)), 1)
        return [*drafts] * repeats, anchor_count

    def _learn_reflections(
        self,
        stage: StageFolder,
        reflections: Sequence[Sample],
        anchor_count: int,
        epoch_count: int,
        *,
        alpha: float,
        anchor: float,
        anchor_episodes: Sequence[Trajectory],
        drafts: Sequence[Sample] = (),
    ) -> Fit:
        """Train the policy on reflections, beside steps drawn from episodes as anchors (CoMap, eq. 8).

        Args:
            stage: The stage.
            reflections: Samples of the reflect mode.
            anchor_count: Steps that are drawn in each epoch.
            epoch_count: Epochs.
            alpha: Weight of the reflections.
            anchor: Weight of the anchors.
            anchor_episodes: The episodes they are drawn from.
            drafts: More anchors, the same in each epoch.
        """
        from ..row_trainer import arrays_of, layer_of
        from .objective import policy_objective
        from .trainer import CoMapTrainer

        # Each epoch draws other anchors, while the reflections are the same: demonstrations are many.
        epochs: list[list[Sample]] = []
        for epoch in range(epoch_count):
            anchors = [*drafts]
            if self.config.expert_sft and anchor and anchor_episodes:
                anchors += anchor_samples(
                    anchor_episodes,
                    self.agent,
                    anchor_count,
                    self.seed(stage.name, "anchors", epoch),
                    count_tokens=self.counting.count_tokens,
                )
            epochs.append(balance_weights(anchors, reflections))

        counts = count_samples(epochs[0] if epochs else [])
        if not any(epochs):
            return Fit(role="agent", rows=0, updates=0, log=(), samples=counts)

        # The head learns beside the policy only where p is read from it; else the decision's token has p.
        objective = partial(policy_objective, alpha=alpha, beta=self.config.beta, anchor=anchor)
        options: dict[str, Any] = {"objective": objective}
        has_labels = any(sample.label is not None for sample in reflections)
        head = None
        if self.config.agent.p_source == "head" and has_labels:
            head = layer_of(self.head.weight[None], [self.head.bias])
            options |= {
                "head": head,
                "head_rate": self.config.head_rate,
                "encode": _without_decisions,
            }

        rate = self.config.policy_rate
        fit = self.fit(stage, "agent", epochs, rate, CoMapTrainer, **options)
        if head is not None:
            weight, bias = arrays_of(head)
            self.head = RefinementHead(weight[0], bias[0])
        return replace(fit, samples=counts, weights=self.save_weights(stage, "agent"))

    def _buffered(self, number: int) -> list[Trajectory]:
        """Return the rollouts that a round learns from: its own, or those of all rounds so far."""
        first_round = 1 if self.config.buffer == "all" else number
        episodes: list[Trajectory] = []
        for round_number in range(first_round, number + 1):
            episodes += self.episodes(round_stage(round_number, RoundPart.ROLLOUTS))
        return episodes

    def _reading(
        self, episodes: Sequence[Trajectory], stage: StageFolder, other_texts: Sequence[str] = ()
    ) -> list[Sample]:
        """Return samples that teach a small model to read the teacher's prompt; mostly none."""
        samples = reading_samples(
            episodes,
            self.world_model(self.counting),
            share=self.config.privileged_share,
            seed=self.seed(stage.name, "reading"),
            others=other_texts,
        )
        return list(samples)

    def _student_rollouts(self, stage: StageFolder, samples: Sequence[Sample]) -> StudentRollouts:
        """Return what lets the student predict anew in each epoch, for self-distillation."""
        temperature = self.config.distillation.rollout_temperature
        seed = self.seed(stage.name, "student")
        sampling = Sampling(self.config.predict_tokens, temperature, 1.0, (), seed)
        end = self.roles.chat.end
        return StudentRollouts(stage.path, samples, self.language_model, end, sampling)

    def _init_context(self) -> Any:
        return self.config.init_context if self.config.agent.future_state else "none"

    def _analyses(
        self, stage: StageFolder, samples: Sequence[Sample]
    ) -> dict[tuple[str, int], str]:
        """Return the policy's own reflections on states, which replies begin with, without loss."""
        lm = self.language_model()

        def work(keys: Sequence[str]) -> Iterator[Done]:
            limit = self.config.agent.reflect_tokens
            requests = []
            for key in keys:
                sampling = self.agent.sampling(limit, _STOP, self.seed("analysis", int(key)))
                requests.append(
                    Generate(
                        samples[int(key)].messages,
                        sampling,
                        adapter="agent",
                        purpose="reflect: analysis",
                    )
                )
            for key, reply in zip(keys, lm.generate(requests), strict=True):
                if isinstance(reply, LanguageModelError):
                    raise reply
                yield key, first_line(reply.text.strip().removeprefix(_ANALYSIS))

        keys = [str(index) for index in range(len(samples))]
        analyses = each_once(stage.path / "analyses", keys, work)
        return {
            (sample.task, sample.step): analyses[key]
            for key, sample in zip(keys, samples, strict=True)
        }


def _without_decisions(rows: list[Example]) -> list[Example]:
    """Return rows whose label is the head's to learn, not that of the decision's words."""
    return [replace(row, decision=None) for row in rows]
