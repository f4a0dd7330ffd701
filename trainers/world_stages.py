"""The stages in which the world model learns (METHODS.md 1.5 and 1.7)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..agents.react import ReActAgent, ReActConfig
from ..lm import Sampling
from ..lm.chat import ChatTokenizer
from ..trajectory import Trajectory
from .run_folder import StageFolder
from .sample_counts import count_samples
from .samples import Sample
from .session import Session
from .student_rollouts import StudentRollouts
from .world_model_samples import reading_samples, world_model_samples

__all__ = ["WorldStages"]


class WorldStages:
    """The world model's stages.

    Args:
        session: What they work with.
    """

    def __init__(self, session: Session):
        self.session = session

    def roll_out(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy play, as it is now, for transitions off the expert's way (D_env)."""
        session, config = self.session, self.session.config
        known = session.tasks(config.train_split)
        rng = random.Random(session.seed(stage.name))
        tasks = rng.sample(known, min(config.warmup_rollouts, len(known)))
        agent = ReActAgent(ReActConfig(**session.agent_settings()))
        lm = session.language_model()
        found = session.play(stage.path / "episodes", config.train_split, agent, tasks, lm=lm)
        return {"episodes": len(found), "success": sum(t.success for t in found) / len(found)}

    def warm_up(self, stage: StageFolder) -> Mapping[str, Any]:
        """Fine-tune the student on real transitions; the teacher begins as a copy (METHODS.md 1.5)."""
        session, config = self.session, self.session.config
        shown = [*session.demos]
        if "warmup-rollouts" in session.places:
            shown += session.episodes("warmup-rollouts")
        samples = self._samples(shown, stage, kind="warmup")
        rate = config.world_model_rate if config.warmup_rate is None else config.warmup_rate
        epochs = [samples] * config.warmup_epochs
        told = session.learn(stage, "wm", epochs, rate, warm_up=True)
        session.roles.copy("wm", "wm_ema")
        counts = count_samples(samples)
        return {**told, "samples": counts, "weights": session.save(stage, ("wm", "wm_ema"))}

    def evolve(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Learn from a round's transitions: real cross-entropy and WMSD (METHODS.md 1.7)."""
        from .comap_trainer import Distillation

        session, config = self.session, self.session.config
        samples = self._samples(
            session.buffered(number),
            stage,
            distill_weight=config.eta if config.wmsd else 0.0,
            real_weight=1.0 if config.real_ce else 0.0,
            teacher=config.teacher_prompt,
            include_probes=config.probe_transitions,
        )
        distillation = None
        if config.wmsd and config.eta:
            distillation = Distillation(
                teacher="wm_ema",
                continuations=self._rollouts(stage, samples),
                mu=config.mu if config.teacher_update == "step" else None,
                kind=config.divergence,
                alpha=config.jsd_alpha,
                temperature=config.distill_temperature,
                topk=config.topk,
                tail=config.tail,
                chunk=config.chunk,
            )
        elif config.teacher_update == "step":  # the teacher follows for the gate's sake as well
            distillation = Distillation(teacher="wm_ema", mu=config.mu)
        epochs = [samples] * config.world_model_epochs
        told = session.learn(
            stage, "wm", epochs, config.world_model_rate, distillation=distillation
        )
        if config.teacher_update == "round":
            session.roles.copy("wm", "wm_ema")
        counts = count_samples(samples)
        return {**told, "samples": counts, "weights": session.save(stage, ("wm", "wm_ema"))}

    def _samples(
        self, shown: Sequence[Trajectory], stage: StageFolder, **options: Any
    ) -> list[Sample]:
        session, config = self.session, self.session.config
        model = session.world_model(session.counting)
        samples = list(world_model_samples(shown, model, target=config.wm_target, **options))
        if config.privileged_share and options.get("real_weight", 1.0):
            share, seed = config.privileged_share, session.seed(stage.name, "reading")
            others: list[str] = []
            if options.get("kind") == "warmup" and config.wm_target == "observation":
                others = [step.observation for episode in shown for step in episode.steps]
            samples += reading_samples(
                shown, model, share=share, seed=seed, target=config.wm_target, others=others
            )
        return samples

    def _rollouts(self, stage: StageFolder, samples: Sequence[Sample]) -> StudentRollouts | None:
        session, config = self.session, self.session.config
        if config.distill_on == "target":
            return None
        heat = config.rollout_temperature
        return StudentRollouts(
            stage.path,
            samples,
            session.language_model,
            ChatTokenizer(session.roles.tokenizer).end,
            Sampling(config.predict_tokens, heat, 1.0, (), session.seed(stage.name, "student")),
            fresh=config.fresh_per == "epoch",
        )
