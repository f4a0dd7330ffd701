"""What the stages of all trained baselines have in common."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...agents import Agent
from ...errors import DataCorrupt
from ...trajectory import Trajectory
from ...worldmodel import WorldModel
from ..policy_samples import is_shown, warmup_samples
from ..run_folder import StageFolder
from ..sample_counts import count_samples
from ..samples import Sample
from ..session import Session
from ..staged import Work
from ..trial_stages import played_result
from ..world_model_samples import world_model_samples
from .config import BaselineTraining
from .once import Found, each_once

__all__ = ["WRITTEN", "BaselineStages", "some_of"]

WRITTEN = "written"
"""The folder of what a stage did once for each task, in the stage's own."""

Settings = TypeVar("Settings", bound=BaselineTraining)


class BaselineStages(ABC, Generic[Settings]):
    """The stages of a baseline.

    Args:
        session: The models and environments.
        config: The settings.
        begun: The roles that begin from something trained, instead of from the base model.
    """

    saved: tuple[str, ...] = ("agent",)
    """The roles that the training leaves behind."""

    def __init__(self, session: Session, config: Settings, begun: Collection[str] = ()):
        self.session, self.config, self.begun = session, config, frozenset(begun)

    @abstractmethod
    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of the stages but for the evaluation, and what each does, in order."""

    @abstractmethod
    def player(self) -> Agent:
        """Return the agent as it is to play in the end."""

    def player_world(self) -> WorldModel | None:
        """Return the world model that it asks."""
        return None

    def save(self, out: Path) -> None:
        """Write what else than the roles the agent needs to play.

        Args:
            out: The training's folder; its ``models`` is there.
        """

    # -- stages that several have ----------------------------------------------------------------

    def imitation(
        self, stage: StageFolder, role: str, epochs: int, rate: float, kind: str = "warmup"
    ) -> Mapping[str, Any]:
        """Fine-tune a role on demonstrations, as CoMap's warm-up does (METHODS.md 1.5, equation 4).

        Args:
            stage: The stage.
            role: Who learns.
            epochs: How often.
            rate: The highest learning rate.
            kind: The samples' kind.
        """
        session = self.session
        settings, count = session.draft_config(), session.counting.count_tokens
        samples = list(warmup_samples(session.demos, settings, count_tokens=count, kind=kind))
        return self.learned(stage, role, samples, epochs, rate)

    def world_modelling(self, stage: StageFolder, epochs: int, rate: float) -> Mapping[str, Any]:
        """Fine-tune the world model on the expert's transitions alone (METHODS.md 3, Table 2: SFT)."""
        session = self.session
        model = session.world_model(session.counting)
        samples = list(world_model_samples(session.demos, model, kind="warmup"))
        return self.learned(stage, "wm", samples, epochs, rate)

    def learned(
        self, stage: StageFolder, role: str, samples: Sequence[Sample], epochs: int, rate: float
    ) -> Mapping[str, Any]:
        """Let a role learn samples, all scored tokens alike, and return the stage's result.

        Args:
            stage: The stage.
            role: Who learns.
            samples: What.
            epochs: How often.
            rate: The highest learning rate.
        """
        told = self.session.learn(stage, role, [samples] * epochs, rate, warm_up=True)
        counts = count_samples(samples)
        return {**told, "samples": counts, "weights": self.session.save(stage, (role,))}

    def evaluation(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the agent play as it is to play in the end, on splits that nothing was learned from."""
        session, config = self.session, self.config
        lm, agent, world = session.language_model(), self.player(), self.player_world()
        splits: dict[str, Any] = {}
        for split in config.evaluation_splits:
            known, wanted = session.tasks(split), config.evaluation_tasks
            tasks = some_of(known, wanted, session.seed("evaluation", split))
            episodes: list[Trajectory] = []
            for repeat in range(config.evaluation_seeds):
                place, seed = stage.path / f"{split}-{repeat}", repeat or None
                episodes += session.play(
                    place, split, agent, tasks, lm=lm, world_model=world, seed=seed
                )
            splits[split] = played_result(episodes)
        return {"splits": splits}

    # -- what is done once -----------------------------------------------------------------------

    def written(self, stage: str, keys: Sequence[str]) -> dict[str, Any]:
        """Return what a stage that has ended wrote of each key.

        Args:
            stage: The stage's name.
            keys: The keys.

        Raises:
            DataCorrupt: It wrote nothing of one.
        """
        place = self.session.places[stage].path

        def missing(some: Sequence[str]) -> Iterator[Found]:
            raise DataCorrupt(
                f"expected what the stage {stage} wrote of {len(keys)} tasks in {place}, found nothing "
                f"of {len(some)}; remove the folders of that stage and of all later ones to do them "
                "again"
            )

        return each_once(place / WRITTEN, keys, missing)

    def progress(self, done: int, of: int) -> None:
        """Tell how many tasks are done in this stage."""
        self.session.tell({"event": "task", "done": done, "of": of})

    # -- demonstrations --------------------------------------------------------------------------

    def demonstrated(self, number: int | None, purpose: str) -> list[Trajectory]:
        """Return so many of the demonstrations all of whose steps are to be copied, one of a task.

        Args:
            number: How many, drawn at random; None for all.
            purpose: What for: other purposes draw others.
        """
        whole = [shown for shown in self.session.demos if all(map(is_shown, shown.steps))]
        of_task = {shown.task: shown for shown in whole}
        tasks = some_of(sorted(of_task), number, self.session.seed(purpose, "demonstrations"))
        return [of_task[task] for task in tasks]


def some_of(items: Sequence[str], number: int | None, seed: int) -> list[str]:
    """Return so many items in random order; all of them, as they are, where there are no more.

    Example:
        >>> some_of(["a", "b"], None, 0), len(some_of(["a", "b"], 1, 0))
        (['a', 'b'], 1)
    """
    if number is None or number >= len(items):
        return list(items)
    return random.Random(seed).sample(list(items), number)
