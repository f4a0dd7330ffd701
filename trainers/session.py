"""What every stage of a training needs: the models, the environments, playing and learning."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from ..agents import Agent
from ..agents.comap import CoMapConfig
from ..agents.config import AgentConfig
from ..agents.react import ReActAgent, ReActConfig
from ..agents.refinement import RefinementHead
from ..errors import OptionError
from ..lm import LanguageModel
from ..trajectory import Trajectory
from ..worldmodel import WorldModel
from ..worldmodel.language import LanguageWorldModel
from .config import CoMapTraining
from .learning import learn
from .playing import play, played
from .run_folder import StageFolder
from .samples import Sample
from .stage_weights import load_weights, save_weights

if TYPE_CHECKING:
    from .comap_trainer import Distillation
    from .roles import Roles

__all__ = ["MakeEnv", "Session", "Tell"]

MakeEnv = Callable[[str], "gymnasium.Env[str, str]"]
"""Makes an environment on a split."""

Tell = Callable[[Mapping[str, Any]], object]
"""Is told what happens, as plain data with an ``event``."""


class Session:
    """The models and environments of a training, while it runs.

    Args:
        config: The settings.
        roles: The models.
        make_env: Makes an environment on a split.
        demos: The expert's trajectories.
        tell: Told what happens.
        report_to: The tracker that TRL reports to, or ``none``.
        name: What trackers call this training.

    Attributes:
        head: The refinement head, as it is now.
        places: The folder of each stage that was begun.

    Example:
        >>> from comap.lm.tiny import build_tiny
        >>> from .config import preset
        >>> from .roles import Roles
        >>> folder = build_tiny("tiny", ["go to shelf"] * 2, parameters=200_000)
        >>> roles = Roles.open(folder, kind="full", device="cpu")
        >>> session = Session(preset("tiny", seed=1), roles, gymnasium.make, (), print)
        >>> session.comap_config(0).seed, session.seed("order") == session.seed("order")
        (1, True)
    """

    def __init__(
        self,
        config: CoMapTraining,
        roles: Roles,
        make_env: MakeEnv,
        demos: Sequence[Trajectory],
        tell: Tell,
        report_to: str = "none",
        name: str = "comap",
    ):
        self.config, self.roles, self.make_env, self.demos = config, roles, make_env, demos
        self.tell, self.report_to, self.name = tell, report_to, name
        self.head = RefinementHead.zeros(self._hidden_size())
        self.places: dict[str, StageFolder] = {}

    # -- models and agents -----------------------------------------------------------------------

    def language_model(self) -> LanguageModel:
        """Return the language model of all roles, with their present weights."""
        return self.roles.language_model(exact=self.config.exact)

    def world_model(self, lm: LanguageModel, role: str = "wm") -> LanguageWorldModel:
        """Return the student as a world model.

        Args:
            lm: The language model that answers.
            role: Who answers there.
        """
        config = self.config
        return LanguageWorldModel(
            lm,
            prompts=config.prompts,
            state_text=config.state_text,
            adapter=role,
            max_length=config.max_length,
            max_new_tokens=config.predict_tokens,
        )

    @cached_property
    def counting(self) -> LanguageModel:
        """A language model for counting tokens only, while prompts are built."""
        return self.language_model()

    def agent_settings(self, **changed: Any) -> dict[str, Any]:
        """Return the settings that all of the policy's agents share."""
        config = self.config
        return {
            "decoding": config.decoding,
            "form": config.form,
            "state_text": config.state_text,
            "prompts": config.prompts,
            "max_length": config.max_length,
            "temperature": config.temperature,
            "top_p": config.top_p,
            "draft_tokens": config.draft_tokens,
            "seed": config.seed,
            "adapter": "agent",
            **changed,
        }

    def reflection_settings(self, **changed: Any) -> dict[str, Any]:
        """Return the settings of CoMap's agents."""
        config = self.config
        return self.agent_settings(
            tau_p=config.tau_p,
            tau_q=config.tau_q,
            reflect_tokens=config.reflect_tokens,
            final_tokens=config.final_tokens,
            p_source=config.p_source,
            q_source=config.q_source,
            future_state=config.future_state,
            action_gate=config.action_gate,
            **changed,
        )

    def draft_config(self, temperature: float | None = None) -> AgentConfig:
        """Return how the policy drafts."""
        heat = self.config.temperature if temperature is None else temperature
        return AgentConfig(**self.agent_settings(temperature=heat))

    def comap_config(self, temperature: float | None = None) -> CoMapConfig:
        """Return how CoMap acts at inference."""
        heat = self.config.temperature if temperature is None else temperature
        return CoMapConfig(**self.reflection_settings(temperature=heat))

    def continuation(self) -> ReActAgent:
        """Return the policy of suffix rollouts: drafts alone (METHODS.md 1.6, step 2)."""
        heat = self.config.suffix_temperature
        return ReActAgent(ReActConfig(**self.agent_settings(temperature=heat)))

    def seed(self, *parts: object) -> int:
        """Return a seed for a purpose, from the training's own."""
        said = "\n".join(map(str, (self.config.seed, *parts)))
        return int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "big") >> 1

    def tasks(self, split: str) -> tuple[str, ...]:
        """Return the ids of all tasks of a split."""
        env = self.make_env(split)
        try:
            ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
        finally:
            env.close()
        return ids

    # -- playing ---------------------------------------------------------------------------------

    def play(
        self,
        folder: Path,
        split: str,
        agent: Agent,
        tasks: Sequence[str],
        *,
        lm: LanguageModel | None = None,
        world_model: WorldModel | None = None,
        seed: int | None = None,
    ) -> list[Trajectory]:
        """Play tasks into a folder, shared among the processes, and return them in their order.

        What the folder has already is not played again.

        Args:
            folder: The folder.
            split: The tasks' split.
            agent: Who plays.
            tasks: The tasks' ids, all different.
            lm: Answers the agent's requests.
            world_model: Answers what the agent asks to imagine.
            seed: The episodes' seed; None for none.
        """
        return play(self, folder, split, agent, tasks, lm=lm, world_model=world_model, seed=seed)

    def episodes(self, stage: str) -> list[Trajectory]:
        """Return the episodes that a stage has played, in the order of their tasks' ids.

        Args:
            stage: The stage's name; it has ended.
        """
        found = played(self.places[stage].path / "episodes")
        return sorted(found, key=lambda trajectory: (trajectory.task, trajectory.trial))

    def buffered(self, number: int) -> list[Trajectory]:
        """Return the rollouts that a round learns from (METHODS.md 1.9)."""
        first = 1 if self.config.buffer == "all" else number
        rounds = range(first, number + 1)
        return [one for k in rounds for one in self.episodes(f"round-{k}-rollouts")]

    # -- learning --------------------------------------------------------------------------------

    def learn(
        self,
        stage: StageFolder,
        role: str,
        epochs: Sequence[Sequence[Sample]],
        rate: float,
        *,
        warm_up: bool = False,
        distillation: Distillation | None = None,
        with_head: bool = False,
    ) -> dict[str, Any]:
        """Train a role on samples, and return what happened as JSON data.

        Args:
            stage: The stage: its folder keeps checkpoints until it ends.
            role: Who is trained.
            epochs: The samples of each epoch.
            rate: The highest learning rate.
            warm_up: Whether this is plain fine-tuning.
            distillation: How to distil.
            with_head: Whether the refinement head is trained too.
        """
        return learn(
            self,
            stage,
            role,
            epochs,
            rate,
            warm_up=warm_up,
            distillation=distillation,
            with_head=with_head,
        )

    # -- weights ---------------------------------------------------------------------------------

    def save(self, stage: StageFolder, roles: Sequence[str]) -> dict[str, str]:
        """Write the weights of roles, and the head, into a stage's folder; return their files."""
        return save_weights(self, stage, roles)

    def load(self, files: Mapping[str, Path]) -> None:
        """Take over weights that `save` wrote.

        Raises:
            DataCorrupt: A file is missing, or holds no such weights.
        """
        load_weights(self, files)

    def _hidden_size(self) -> int:
        size = getattr(self.roles.base("agent").config.get_text_config(), "hidden_size", None)
        if not isinstance(size, int):
            raise OptionError("expected a model that tells its hidden_size; use another model")
        return size
