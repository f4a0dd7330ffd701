"""The stages in which the policy learns (METHODS.md 1.5, 1.6 and 1.8)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import DataCorrupt
from .analyses import own_analyses
from .drafting import DraftingAgent, choose_steps
from .judging import judged_revisions
from .policy_options import PolicyOptions
from .policy_samples import (
    anchor_samples,
    balance_weights,
    balanced,
    is_shown,
    warmup_samples,
)
from .processes import is_first, wait
from .reflection_data import SuffixLabel, balance, branches_of, label_states
from .reflection_samples import label_samples, rollout_samples
from .run_folder import StageFolder, read_json, write_json
from .sample_counts import count_samples
from .samples import Sample
from .session import Session
from .shared_suffixes import shared_outcomes

__all__ = ["PolicyStages"]

_INITIALISATION = "reflection-init"


class PolicyStages:
    """The policy's stages.

    Args:
        session: What they work with.
    """

    def __init__(self, session: Session):
        self.session = session

    # -- warm-up (METHODS.md 1.5) ----------------------------------------------------------------

    def warm_up(self, stage: StageFolder) -> Mapping[str, Any]:
        """Fine-tune the policy on demonstrations."""
        session, config = self.session, self.session.config
        count = session.counting.count_tokens
        samples = list(warmup_samples(session.demos, session.draft_config(), count_tokens=count))
        rate = config.policy_rate if config.warmup_rate is None else config.warmup_rate
        epochs = [samples] * config.warmup_epochs
        told = session.learn(stage, "agent", epochs, rate, warm_up=True)
        self._begin_teacher()
        counts = count_samples(samples)
        return {**told, "samples": counts, "weights": session.save(stage, self._roles())}

    # -- initialisation from suffix rollouts (METHODS.md 1.6) ------------------------------------

    def draft(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy draft in the expert's states."""
        session, config = self.session, self.session.config
        plans = {
            shown.task: tuple(step.action for step in shown.steps)
            for shown in session.demos
            if all(map(is_shown, shown.steps))
        }
        rng = random.Random(session.seed(stage.name))
        known = sorted(plans)
        tasks = rng.sample(known, min(config.reflection_tasks, len(known)))
        chosen = {task: plans[task] for task in tasks}
        steps = choose_steps(chosen, config.states_per_episode, session.seed(stage.name, "steps"))
        context = config.init_context if config.future_state else "none"
        agent = DraftingAgent(session.draft_config(), chosen, steps, context)
        lm = session.language_model()
        found = session.play(
            stage.path / "episodes",
            config.train_split,
            agent,
            tasks,
            lm=lm,
            world_model=session.world_model(lm),
        )
        return {"episodes": len(found), "states": sum(map(len, steps.values()))}

    def label(self, stage: StageFolder) -> Mapping[str, Any]:
        """Play out draft and expert's action in each state, and label which is better."""
        session, config = self.session, self.session.config
        shown = session.episodes("reflection-drafts")
        branches = branches_of(shown, config.suffixes)
        outcomes = shared_outcomes(session, stage.path / "suffixes", config.train_split, branches)
        labels, counts = label_states(
            shown,
            dict(zip(branches, outcomes, strict=True)),
            n_suffix=config.suffixes,
            delta=config.delta,
            init_context=config.init_context if config.future_state else "none",
            seed=session.seed(stage.name),
        )
        if is_first():
            write_json(stage.path / "labels.json", [label.to_json() for label in labels])
        wait()
        return {"branches": len(branches), "labels": len(labels), "counts": counts}

    def initialise(self, stage: StageFolder) -> Mapping[str, Any]:
        """Train the reflect mode, and the refinement head, on those labels."""
        session, config = self.session, self.session.config
        path = session.places["reflection-suffixes"].path / "labels.json"
        try:
            labels = [SuffixLabel.from_json(row) for row in read_json(path)]
        except ValueError as error:
            raise DataCorrupt(
                f"expected labels in {path}, found something else ({error}); remove that folder to do "
                "the stage again"
            ) from error
        kept, counts = balance(labels, config.balance, session.seed(stage.name))
        shown = session.episodes("reflection-drafts")
        make = partial(
            label_samples,
            kept,
            shown,
            session.comap_config(),
            self._options(),
            count_tokens=session.counting.count_tokens,
        )
        samples = make()
        if config.prompts == "standard" and samples:
            samples = make(analyses=own_analyses(session, stage.path / "analyses.json", samples))
        told = self._learn(stage, samples, config.init_anchor if config.expert_sft else 0.0)
        return {**told, "counts": counts}

    # -- rounds (METHODS.md 1.8) -----------------------------------------------------------------

    def evolve(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Learn from a round's reflections, and from demonstrations beside them."""
        session, config = self.session, self.session.config
        shown = session.buffered(number)
        outcomes = None
        if config.outcome_filter == "suffix":
            outcomes = judged_revisions(session, stage.path / "suffixes", shown)
        samples = list(
            rollout_samples(
                shown,
                session.comap_config(),
                self._options(),
                outcomes=outcomes,
                count_tokens=session.counting.count_tokens,
            )
        )
        if config.round_balance is not None:
            samples = balanced(samples, config.round_balance, session.seed(stage.name, "balance"))
        return self._learn(stage, samples, config.anchor if config.expert_sft else 0.0)

    def _learn(
        self, stage: StageFolder, reflections: Sequence[Sample], anchor: float
    ) -> dict[str, Any]:
        """Train the policy on reflections, with as many demonstrated steps beside them.

        Where reflections are not learned from, the demonstrated steps are as many as with them. A
        round without any reflection leaves the policy as it is.
        """
        session, config = self.session, self.session.config
        number = len(reflections)
        first = stage.name == _INITIALISATION
        if not first and not self._learns_online():
            reflections = []
        epochs: list[list[Sample]] = []
        times = config.policy_epochs
        if first and config.init_epochs is not None:
            times = config.init_epochs
        for epoch in range(times):
            anchors: list[Sample] = []
            if anchor and session.demos:
                anchors = anchor_samples(
                    session.demos,
                    session.draft_config(),
                    number,
                    session.seed(stage.name, "anchors", epoch),
                    count_tokens=session.counting.count_tokens,
                    weight=anchor,
                )
            epochs.append(balance_weights(anchors, reflections))
        counts = count_samples([sample for samples in epochs[:1] for sample in samples])
        if not any(epochs):
            return {"role": "agent", "rows": 0, "updates": 0, "log": [], "samples": counts}
        told = session.learn(
            stage,
            "agent",
            epochs,
            config.policy_rate,
            distillation=None if first else self._distillation(),
            with_head=config.p_source == "head" and any(s.label is not None for s in reflections),
        )
        if first:
            self._begin_teacher()
        return {**told, "samples": counts, "weights": session.save(stage, self._roles())}

    def _distillation(self) -> Any:
        """Return how the authors' code distils the policy; None with the paper's objective."""
        from .comap_trainer import Distillation

        if self.session.config.policy_objective != "sdpo":
            return None
        chunk = self.session.config.chunk
        return Distillation(teacher="agent_ema", mu=0.99, kind="jsd", alpha=0.5, chunk=chunk)

    def _learns_online(self) -> bool:
        """Return whether rounds learn from reflections; with alpha = 0 the paper's policy does not."""
        config = self.session.config
        return config.online_reflection and (config.alpha > 0 or config.policy_objective == "sdpo")

    def _options(self) -> PolicyOptions:
        config = self.session.config
        common: dict[str, Any] = {
            "beta": config.beta,
            "form_loss": config.form_loss,
            "episode_filter": config.episode_filter,
            "outcome_filter": config.outcome_filter,
            "require_success_for_hq": config.require_success_for_hq,
        }
        if config.policy_objective == "reflection":
            # with alpha = 0 they are counted, for the demonstrated steps, and then left out
            return PolicyOptions(alpha=config.alpha or 1.0, **common)
        return PolicyOptions.authors_code(
            alpha=config.alpha,
            draft_distill=config.draft_distill,
            own_anchor=config.own_anchor,
            fallback=config.fallback,
            **common,
        )

    def _roles(self) -> tuple[str, ...]:
        return tuple(name for name in ("agent", "agent_ema") if name in self.session.roles.names)

    def _begin_teacher(self) -> None:
        if "agent_ema" in self.session.roles.names:
            self.session.roles.copy("agent", "agent_ema")
