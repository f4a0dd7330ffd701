"""IWM: early experience first, then the expert (METHODS.md 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...agents import Agent
from ...agents.iwm import IWMAgent, IWMConfig
from ..run_folder import StageFolder
from ..samples import Sample
from ..staged import Work
from ..world_model_samples import transition_sample
from .exploring import explore_demonstrations, explored_counts
from .methods import IWMTraining
from .stages import BaselineStages

__all__ = ["IWMStages"]

_EXPLORATION = "exploration"


class IWMStages(BaselineStages[IWMTraining]):
    """The stages of IWM.

    In each of the expert's states K other actions are tried; the policy itself learns
    ``E[-log pi(s' | s, a)]`` over these and the expert's transitions, asked as a world model is, and
    then ``E[-log pi(a* | s)]``.

    Ours [D]: where the policy begins untrained, a copy that imitated the expert first proposes the
    other actions (``explorer="sft"``); a model that knows no words proposes nothing that is of use.
    """

    def stages(self) -> list[tuple[str, Work]]:
        """Return the stages."""
        config = self.config
        plan: list[tuple[str, Work]] = []
        if self.explorer == "explorer":
            plan.append(("warmup-explorer", self._teach_explorer))
        return [
            *plan,
            (_EXPLORATION, self.explore),
            ("world-modelling", self.model_world),
            (
                "imitation",
                lambda stage: self.imitation(stage, "agent", config.epochs, config.learning_rate),
            ),
        ]

    @property
    def explorer(self) -> str:
        """The role that proposes alternatives."""
        own = self.config.explorer == "sft" and "agent" not in self.begun
        return "explorer" if own else "agent"

    def _teach_explorer(self, stage: StageFolder) -> Mapping[str, Any]:
        config = self.config
        return self.imitation(stage, "explorer", config.epochs, config.learning_rate)

    def explore(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy propose actions in the expert's states, and see what follows each."""
        found, faults = self._explored(stage)
        return {"counts": explored_counts(found, faults), "explored_faults": faults}

    def model_world(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy learn what follows actions."""
        session, config = self.session, self.config
        found, _ = self._explored(session.places[_EXPLORATION])
        model = session.world_model(session.counting)
        samples: list[Sample] = [
            transition_sample(query, text, model, kind="early_experience", task=task)
            for task, transitions in found
            for query, text in transitions
        ]
        return self.learned(stage, "agent", samples, config.world_epochs, config.learning_rate)

    def _explored(self, stage: StageFolder) -> Any:
        shown = self.demonstrated(self.config.explored, _EXPLORATION)
        return explore_demonstrations(
            self.session, stage.path / "explored", shown, self._proposing()
        )

    def _proposing(self) -> IWMConfig:
        config = self.config
        return IWMConfig(
            **self.session.agent_settings(adapter=self.explorer),
            alternatives=config.alternatives,
            exploration_temperature=config.exploration_temperature,
        )

    def player(self) -> Agent:
        """Return IWM's agent, which acts as ReAct does."""
        heat = self.config.evaluation_temperature
        return IWMAgent(IWMConfig(**self.session.agent_settings(temperature=heat)))
