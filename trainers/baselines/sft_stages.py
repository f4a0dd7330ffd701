"""SFT: behaviour cloning of an expert, and a world model of what it saw (METHODS.md 3)."""

from __future__ import annotations

from ...agents import Agent
from ...agents.react import ReActAgent, ReActConfig
from ..staged import Work
from .methods import SFTTraining
from .stages import BaselineStages

__all__ = ["SFTStages"]


class SFTStages(BaselineStages[SFTTraining]):
    """The stages of SFT.

    The policy learns ``E[-log pi(a* | s)]`` over the expert's steps (METHODS.md 1.5, equation 4): the
    stage is CoMap's warm-up, bit for bit where the settings are the same. The world model learns
    ``E[-log W(s' | s, a)]`` over the expert's transitions alone.
    """

    def stages(self) -> list[tuple[str, Work]]:
        """Return the stages."""
        config = self.config
        plan: list[tuple[str, Work]] = [
            (
                "warmup-policy",
                lambda stage: self.imitation(stage, "agent", config.epochs, config.learning_rate),
            )
        ]
        if config.world_model:
            rate = config.learning_rate
            plan.append(
                ("world-model", lambda stage: self.world_modelling(stage, config.epochs, rate))
            )
        return plan

    @property
    def saved(self) -> tuple[str, ...]:  # type: ignore[override]
        """The roles that the training leaves behind."""
        return ("agent", "wm") if self.config.world_model else ("agent",)

    def player(self) -> Agent:
        """Return ReAct: with this policy it is the row "ReAct+SFT"."""
        heat = self.config.evaluation_temperature
        return ReActAgent(ReActConfig(**self.session.agent_settings(temperature=heat)))
