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
from ...errors import DataCorrupt, LanguageModelError
from ...jsonl import read_json, write_json
from ...lm import Generate, Sampling
from ...trajectory import Trajectory
from ...worldmodel import RetrievalWorldModel, transitions_of
from ..config import changed_parts, recast
from ..entry import comap_conditions
from ..evaluation import freeze, gate_report, in_order, played_result, score_transitions
from ..processes import is_first, wait
from ..run_folder import Done, StageFolder, each_once
from ..samples import Example, Sample, count_samples
from ..sft import imitation_samples, is_shown, transition_samples
from ..stages import StagedTraining, Work, some_of
from .config import CoMapTraining
from .evaluation import FROZEN, evaluate, freeze_transitions
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

if TYPE_CHECKING:
    from .objective import Divergence

_DRAFTS, _OWN = "reflection-drafts", "reflection-play"
_LABELS, _INITIALIZATION = "reflection-suffixes", "reflection-init"
_ANALYSIS = "Reflection:"
_PLAYS, _FORESEEN = 8, 1000  # plays of a task, transitions: of entry conditions
_ALONE = 32  # initial kept drafts where nothing is revised
_STOP = ("\nDecision:", "\nFinal Action:")


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
        **named: See `StagedTraining`.

    Example:
        >>> training = CoEvolution(config, roles, make_env, demos, "runs/comap")  # doctest: +SKIP
        >>> summary = training.run()  # doctest: +SKIP
    """

    saved = ("agent", "wm")
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
        super().__init__(config, *parts, **named)
        self.warmed_up, self.divergence = warmed_up, divergence
        self.action_gate, self.state_gate = action_gate, state_gate

    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""
        config, gate = self.config, self.action_gate
        plan: list[tuple[str, Work]] = []
        if not self.warmed_up and config.expert_sft:
            plan.append(("warmup-policy", self.warm_up_policy))
        if not self.warmed_up and config.world_model_warmup:
            if config.warmup_rollouts:
                plan.append(("warmup-rollouts", self.play_for_world_model))
            plan.append(("warmup-world-model", self.warm_up_world_model))
        if config.frozen_transitions:
            plan.append((FROZEN, partial(freeze_transitions, self)))
        if config.entry_tasks and config.expert_sft and (config.reflection_init or config.rounds):
            plan.append(("entry-conditions", self.check_entry))
        if config.reflection_init:
            if config.label_states != "policy":
                plan.append((_DRAFTS, self.draft_in_expert_states))
            if config.label_states != "expert":
                plan.append((_OWN, self.draft_in_own_states))
            plan.append((_LABELS, self.label_drafts))
            plan.append((_INITIALIZATION, self.initialize_reflection))
        plan.append(("round-0-evaluation", partial(evaluate, self, number=0, gate=gate)))
        for number in range(1, config.rounds + 1):
            plan.append((f"round-{number}-rollouts", partial(self.roll_out, number=number)))
            if config.world_model_evolution:
                evolve = partial(self.evolve_world_model, number=number)
                plan.append((f"round-{number}-world-model", evolve))
            plan.append((f"round-{number}-policy", partial(self.evolve_policy, number=number)))
            evaluation = partial(evaluate, self, number=number, gate=gate)
            plan.append((f"round-{number}-evaluation", evaluation))
        return plan

    def described(self) -> dict[str, Any]:
        """Return what makes this training the training it is, as plain data."""
        given = {"divergence": self.divergence, "action_gate": self.action_gate}
        given |= {"state_gate": self.state_gate}
        return {**super().described(), "warmed_up": self.warmed_up, **changed_parts(given)}

    def summary(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return what was switched off."""
        return {"ablations": list(self.config.ablations())}

    def save(self, folder: Path) -> None:
        """Write the head, where one is read, and a retrieval world model of all that was played."""
        if self.config.agent.p_source == "head":
            self.head.save(folder / "models" / "head.safetensors")
        played = [*self.demos]
        for name in self.folders:
            if name == _OWN or name.endswith("-rollouts"):
                played += self.episodes(name)
        retrieval = RetrievalWorldModel()
        retrieval.fit(one for episode in in_order(played) for one in transitions_of(episode))
        retrieval.save(folder / "models" / "retrieval.jsonl")

    def roll_out(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Play training tasks with probes, teacher and both gates (CoMap, Figure 2)."""
        config = self.config
        tasks = self.some_tasks(config.tasks_per_round, "round", number)
        lm = self.language_model()
        model = self.world_model(lm)
        settings = recast(
            self.agent,
            RolloutConfig,
            tau_wm=config.tau_wm,
            world_state_gate=config.world_state_gate,
        )
        found = self.play(
            stage.path / "episodes",
            config.train_split,
            RolloutAgent(
                settings, self.head, model, gate=self.action_gate, state_gate=self.state_gate
            ),
            tasks,
            lm=lm,
            world_model=model,
            seed=self.seed("round", number, "episodes"),
        )
        return {**played_result(found), "gates": gate_report(found)}

    def evolve_world_model(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Learn from a round's transitions: real cross-entropy and self-distillation (CoMap, eq. 6)."""
        from .objective import world_model_objective
        from .trainer import CoMapTrainer, Teacher

        config, shown = self.config, self._buffered(number)
        eta = config.distillation.eta if config.self_distills else 0.0
        model = self.world_model(self.counting)
        samples = list(world_model_samples(shown, model, distilled=eta > 0, learned=config.real_ce))
        if config.real_ce:
            samples += self._reading(shown, stage)
        # without distillation the teacher follows too, for the gate's sake
        result = self.fit(
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
        return {**result, "samples": count_samples(samples), "weights": weights}

    def evolve_policy(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Learn from a round's reflections, and from demonstrations beside them (CoMap, eq. 8)."""
        config = self.config
        count, episodes = self.counting.count_tokens, self._buffered(number)
        samples = list(rollout_samples(episodes, config, count_tokens=count))
        if config.round_balance is not None:
            kinds, seed = [one.kind for one in samples], self.seed(stage.name, "balance")
            samples = [samples[index] for index in balanced(kinds, config.round_balance, seed)]
        anchors = len(samples) if config.anchor_rows is None else config.anchor_rows
        if not config.online_reflection or not config.alpha:
            samples = []
        own = config.anchors == "executed"
        shown = episodes_to_learn(episodes, config) if own else self.demos
        return self._learn_reflections(
            stage,
            samples,
            anchors,
            config.policy_epochs,
            alpha=config.alpha,
            anchor=config.anchor,
            shown=shown,
        )

    def warm_up_policy(self, stage: StageFolder) -> Mapping[str, Any]:
        """Fine-tune the policy on demonstrations (CoMap, eq. 4)."""
        config, count = self.config, self.counting.count_tokens
        samples = list(imitation_samples(self.demos, self.agent, count_tokens=count))
        rate = config.policy_rate if config.warmup_rate is None else config.warmup_rate
        return self.learn(stage, "agent", samples, config.warmup_epochs, rate)

    def play_for_world_model(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy play, as it is now, for transitions off the expert's way (D_env)."""
        config, lm = self.config, self.language_model()
        tasks = self.some_tasks(config.warmup_rollouts, stage.name)
        folder = stage.path / "episodes"
        found = self.play(folder, config.train_split, self.drafting(), tasks, lm=lm)
        return {"episodes": len(found), "success": sum(t.success for t in found) / len(found)}

    def warm_up_world_model(self, stage: StageFolder) -> Mapping[str, Any]:
        """Fine-tune the student on real transitions; the teacher begins as a copy (CoMap, eq. 5)."""
        config, shown = self.config, [*self.demos]
        if "warmup-rollouts" in self.folders:
            shown += self.episodes("warmup-rollouts")
        samples = list(transition_samples(shown, self.world_model(self.counting)))
        others = [step.observation for episode in shown for step in episode.steps]
        samples += self._reading(shown, stage, others)
        rate = config.world_model_rate if config.warmup_rate is None else config.warmup_rate
        return self.learn(stage, "wm", samples, config.warmup_epochs, rate, "wm_ema")

    def check_entry(self, stage: StageFolder) -> Mapping[str, Any]:
        """Play some tasks that are not demonstrated, and report whether the training can show anything."""
        config, shown = self.config, {demonstration.task for demonstration in self.demos}
        rest = [task for task in self.tasks(config.train_split) if task not in shown]
        tasks = some_of(rest, config.entry_tasks, self.seed(stage.name))
        agent, lm = self.drafting(config.evaluation_temperature), self.language_model()
        found: list[Trajectory] = []
        for number in range(_PLAYS):
            folder, seed = stage.path / f"episodes-{number}", self.seed(stage.name, number)
            found += self.play(folder, config.train_split, agent, tasks, lm=lm, seed=seed)
        with closing(self.make_env(config.train_split)) as env:
            reads = env.get_wrapper_attr("canonicalizer")
        some = freeze(found, _FORESEEN, self.seed(stage.name, "foreseen"))
        foreseen = score_transitions(self.world_model(lm), some, reads)["refusals"]
        conditions = comap_conditions(found, foreseen["precision"])
        self.tell({"event": "conditions", "of": conditions})
        return {**played_result(found), "foreseen": foreseen, "conditions": conditions}

    def draft_in_expert_states(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy draft in the expert's states (CoMap, App. C.2)."""
        config = self.config
        plans = {
            shown.task: tuple(step.action for step in shown.steps)
            for shown in self.demos
            if all(map(is_shown, shown.steps))
        }
        known, rng = sorted(plans), random.Random(self.seed(stage.name))
        tasks = rng.sample(known, min(config.reflection_tasks, len(known)))
        chosen = {task: plans[task] for task in tasks}
        steps = choose_steps(chosen, config.states_per_episode, self.seed(stage.name, "steps"))
        lm = self.language_model()
        found = self.play(
            stage.path / "episodes",
            config.train_split,
            DraftingAgent(self.agent, chosen, steps, self._init_context()),
            tasks,
            lm=lm,
            world_model=self.world_model(lm),
        )
        return {"episodes": len(found), "states": sum(map(len, steps.values()))}

    def draft_in_own_states(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy play other tasks, and note in each state what an expert would do there (ours)."""
        used = {shown.task for shown in self._drafted((_DRAFTS,))}
        rest = [task for task in self.tasks(self.config.train_split) if task not in used]
        tasks = some_of(rest, self.config.reflection_tasks, self.seed(stage.name))
        lm = self.language_model()
        found = self.play(
            stage.path / "episodes",
            self.config.train_split,
            DraftingAgent(self.agent, context=self._init_context()),
            tasks,
            lm=lm,
            world_model=self.world_model(lm),
        )
        return played_result(found)

    def _drafted(self, stages: Sequence[str] = (_DRAFTS, _OWN)) -> list[Trajectory]:
        """Return the episodes in which the policy was asked for drafts."""
        return [one for name in stages if name in self.folders for one in self.episodes(name)]

    def label_drafts(self, stage: StageFolder) -> Mapping[str, Any]:
        """Play out draft and expert's action in each state, and label which is better."""
        config, shown = self.config, self._drafted()
        branches = branches_of(shown, config.suffixes)
        folder = stage.path / "suffixes"
        outcomes = played_branches(self, folder, config.train_split, branches)
        labels, counts = label_states(
            shown,
            dict(zip(branches, outcomes, strict=True)),
            suffixes=config.suffixes,
            delta=config.delta,
            context=self._init_context(),
            seed=self.seed(stage.name),
        )
        if is_first():
            write_json(stage.path / "labels.json", [asdict(label) for label in labels])
        wait()
        return {"branches": len(branches), "labels": len(labels), "counts": counts}

    def initialize_reflection(self, stage: StageFolder) -> Mapping[str, Any]:
        """Train the reflect mode, and the refinement head, on those labels."""
        config, path = self.config, self.folders[_LABELS].path / "labels.json"
        try:
            labels = [SuffixLabel(**row) for row in read_json(path)]
        except (TypeError, ValueError) as error:
            raise DataCorrupt(
                f"expected labels in {path}, found something else ({error}); remove that folder to do "
                "the stage again"
            ) from error
        kinds, seed = [label.kind for label in labels], self.seed(stage.name)
        kept = [labels[index] for index in balanced(kinds, config.balance, seed, alone=_ALONE)]
        count = self.counting.count_tokens
        make = partial(label_samples, kept, self._drafted(), config, count_tokens=count)
        samples = make()
        if config.agent.prompts == "standard":
            samples = make(analyses=self._analyses(stage, samples))
        epochs = config.policy_epochs if config.init_epochs is None else config.init_epochs
        anchors = len(samples) if config.anchor_rows is None else config.anchor_rows
        anchor, drafts = config.init_anchor, list[Sample]()
        if config.learn_labels != "reflections":
            if config.learn_labels == "drafts":
                drafts = draft_samples(kept, self._drafted(), config, count_tokens=count)
            samples, drafts, anchors = self._as_long(stage, samples, drafts)
            anchor = 1.0
        result = self._learn_reflections(
            stage,
            samples,
            anchors,
            epochs,
            alpha=1.0,
            anchor=anchor,
            shown=self.demos,
            drafts=drafts,
        )
        counts = Counter(label.kind for label in kept)
        return {**result, "counts": dict(counts), "dropped": len(labels) - len(kept)}

    def _as_long(
        self, stage: StageFolder, reflections: Sequence[Sample], drafts: list[Sample]
    ) -> tuple[list[Sample], list[Sample], int]:
        """Return no reflection, and so many drafts and demonstrated steps as have their tokens."""
        count, config = self.counting.count_tokens, self.config
        number = len(reflections) if config.anchor_rows is None else config.anchor_rows
        some = anchor_samples(
            self.demos, self.agent, 200, self.seed(stage.name), count_tokens=count
        )

        def tokens(samples: Sequence[Sample]) -> int:
            texts = (m.content for one in samples for m in one.messages)
            return sum(map(count, texts)) + sum(count(one.text) for one in samples)

        number = number if config.init_anchor else 0
        if not drafts:
            return [], [], number + round(tokens(reflections) / (tokens(some) / len(some)))
        return [], drafts * max(round(tokens(reflections) / tokens(drafts)), 1), number

    def _learn_reflections(
        self,
        stage: StageFolder,
        reflections: Sequence[Sample],
        number: int,
        times: int,
        *,
        alpha: float,
        anchor: float,
        shown: Sequence[Trajectory],
        drafts: Sequence[Sample] = (),
    ) -> dict[str, Any]:
        """Train the policy on reflections, with a number of steps of what was shown beside them (eq. 8)."""
        from ..row_trainer import arrays_of, layer_of
        from .objective import policy_objective
        from .trainer import CoMapTrainer

        epochs: list[list[Sample]] = []
        for epoch in range(times):
            anchors = [*drafts]
            if self.config.expert_sft and anchor and shown:
                seed, count = self.seed(stage.name, "anchors", epoch), self.counting.count_tokens
                anchors += anchor_samples(shown, self.agent, number, seed, count_tokens=count)
            epochs.append(balance_weights(anchors, reflections))
        counts = count_samples([sample for samples in epochs[:1] for sample in samples])
        if not any(epochs):
            return {"role": "agent", "rows": 0, "updates": 0, "log": [], "samples": counts}
        objective = partial(policy_objective, alpha=alpha, beta=self.config.beta, anchor=anchor)
        options: dict[str, Any] = {"objective": objective}
        labeled = any(sample.label is not None for sample in reflections)
        head = None
        if self.config.agent.p_source == "head" and labeled:
            head = layer_of(self.head.weight[None], [self.head.bias])
            options |= {"head": head, "head_rate": self.config.head_rate, "encode": _without_words}
        rate = self.config.policy_rate
        result = self.fit(stage, "agent", epochs, rate, CoMapTrainer, **options)
        if head is not None:
            weight, bias = arrays_of(head)
            self.head = RefinementHead(weight[0], bias[0])
        return {**result, "samples": counts, "weights": self.save_weights(stage, "agent")}

    def _buffered(self, number: int) -> list[Trajectory]:
        first = 1 if self.config.buffer == "all" else number
        rounds = range(first, number + 1)
        return [one for k in rounds for one in self.episodes(f"round-{k}-rollouts")]

    def _reading(
        self, shown: Sequence[Trajectory], stage: StageFolder, others: Sequence[str] = ()
    ) -> list[Sample]:
        """Return samples that teach a small model to read the teacher's prompt; mostly none."""
        share, seed = self.config.privileged_share, self.seed(stage.name, "reading")
        model = self.world_model(self.counting)
        return list(reading_samples(shown, model, share=share, seed=seed, others=others))

    def _student_rollouts(self, stage: StageFolder, samples: Sequence[Sample]) -> StudentRollouts:
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

        def work(keys: Sequence[str]) -> Iterator[Done]:
            sampling = partial(self.agent.sampling, self.config.agent.reflect_tokens, _STOP)
            requests = [
                Generate(
                    samples[int(key)].messages,
                    sampling(self.seed("analysis", int(key))),
                    adapter="agent",
                    purpose="reflect: analysis",
                )
                for key in keys
            ]
            for key, reply in zip(keys, self.language_model().generate(requests), strict=True):
                if isinstance(reply, LanguageModelError):
                    raise reply
                yield key, first_line(reply.text.strip().removeprefix(_ANALYSIS))

        found = each_once(stage.path / "analyses", [str(n) for n in range(len(samples))], work)
        return {(one.task, one.step): found[str(n)] for n, one in enumerate(samples)}


def _without_words(rows: list[Example]) -> list[Example]:
    """Return rows whose label is the head's to learn, not that of the decision's words."""
    return [replace(row, decision=None) for row in rows]
