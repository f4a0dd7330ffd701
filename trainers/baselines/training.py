"""A training of a baseline from beginning to end, in a folder (METHODS.md 3).

As CoMap's trainings, it is a list of stages, and goes on at the first one that is not done. The folder
has ``run.json`` (settings, environment, versions, hardware), a folder for each stage, ``summary.json``,
``models`` (the roles, and ITP's heads) and WKM's ``knowledge.jsonl``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agents.records import writing
from ...errors import OptionError
from ...trajectory import Trajectory
from ..processes import is_first, wait
from ..run_folder import write_json
from ..session import MakeEnv, Session, Tell
from ..staged import StagedTraining, Work, fingerprint_of
from .config import BaselineTraining
from .itp_stages import ITPStages
from .iwm_stages import IWMStages
from .methods import ITPTraining, IWMTraining, SFTTraining, WKMTraining
from .sft_stages import SFTStages
from .stages import BaselineStages
from .wkm_stages import WKMStages

if TYPE_CHECKING:
    from ..roles import Roles

__all__ = ["BaselineRun", "roles_of_baseline"]

EVALUATION = "evaluation"
"""The stage in which the agent plays as it is to play in the end."""


def roles_of_baseline(config: BaselineTraining, begun: Collection[str] = ()) -> tuple[str, ...]:
    """Return the models of a training.

    Args:
        config: The settings.
        begun: The roles that begin from something trained.

    Example:
        >>> roles_of_baseline(ITPTraining())
        ('agent', 'wm')
        >>> roles_of_baseline(IWMTraining(explorer="sft"), {"agent"})
        ('agent',)
    """
    own = "agent" not in begun
    further: list[str] = []
    if isinstance(config, ITPTraining) or (isinstance(config, SFTTraining) and config.world_model):
        further.append("wm")
    if isinstance(config, IWMTraining) and config.explorer == "sft" and own:
        further.append("explorer")
    if isinstance(config, WKMTraining):
        if config.trains_knowledge:
            further.append("knowledge")
        if config.task_knowledge == "lm" and config.sampler == "sft" and own:
            further.append("explorer")
    return ("agent", *further)


class BaselineRun(StagedTraining):
    """A training of a baseline in a folder.

    Args:
        config: The settings, which say of which baseline.
        roles: The models, as `roles_of_baseline` names them.
        make_env: Makes an environment on a split.
        demos: The expert's trajectories of training tasks.
        out: The folder.
        begun: The roles that begin from something trained.
        about: What the training is of besides its settings, as plain data: models, environment.
        told: What to write down of this session: versions, hardware.
        tell: Told what happens, as plain data with an ``event``.
        report_to: The tracker that TRL reports to, or ``none``.

    Raises:
        OptionError: Demonstrations are of another split than the one to learn from.

    Example:
        >>> from comap.lm.tiny import build_tiny
        >>> from ..roles import Roles
        >>> folder = build_tiny("tiny", ["go to shelf"] * 2, parameters=200_000)
        >>> config = SFTTraining(weights="full", evaluation_tasks=0, world_model=True)
        >>> roles = Roles.open(folder, kind="full", roles=("agent", "wm"), device="cpu")
        >>> run = BaselineRun(config, roles, lambda split: None, [], "run")
        >>> [name for name, _ in run.stages()]
        ['warmup-policy', 'world-model']
    """

    def __init__(
        self,
        config: BaselineTraining,
        roles: Roles,
        make_env: MakeEnv,
        demos: Sequence[Trajectory],
        out: str | Path,
        *,
        begun: Collection[str] = (),
        about: Mapping[str, Any] | None = None,
        told: Mapping[str, Any] | None = None,
        tell: Tell = lambda event: None,
        report_to: str = "none",
    ):
        other = {shown.split for shown in demos} - {config.train_split}
        if other:
            raise OptionError(
                f"expected demonstrations of the split {config.train_split!r}, found some of "
                f"{', '.join(sorted(map(repr, other)))}; a baseline learns from nothing else"
            )
        self.config, self.about = config, dict(about or {})
        place = Path(out)
        session = Session(config.shared(), roles, make_env, demos, tell, report_to, place.name)
        super().__init__(session, place, told)
        self.begun = tuple(sorted(begun))
        self.method = _stages_of(config, session, self.begun)

    def described(self) -> dict[str, Any]:
        """Return what makes this training the training it is, as plain data."""
        return {
            "method": self.config.method,
            "config": self.config.describe(),
            "begun": list(self.begun),
            "demonstrations": fingerprint_of(self.session.demos),
            **self.about,
        }

    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""
        plan = self.method.stages()
        if self.config.evaluation_tasks != 0:
            plan.append((EVALUATION, self.method.evaluation))
        return plan

    def finish(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Save the models for use elsewhere, and write the summary."""
        summary = {
            "method": self.config.method,
            "cpu_seconds": round(sum(found["cpu_seconds"] for found in results.values()), 3),
            "seconds": round(sum(found["seconds"] for found in results.values()), 3),
            "results": results.get(EVALUATION, {}).get("splits", {}),
            "stages": {
                name: {key: value for key, value in found.items() if key not in ("stage", "log")}
                for name, found in results.items()
            },
        }
        if is_first():
            self.session.roles.save(self.out / "models", self.method.saved)
            with writing(self.out):
                self.method.save(self.out)
                write_json(self.out / "summary.json", summary)
        wait()
        return summary


def _stages_of(
    config: BaselineTraining, session: Session, begun: Collection[str]
) -> BaselineStages[Any]:
    if isinstance(config, SFTTraining):
        return SFTStages(session, config, begun)
    if isinstance(config, IWMTraining):
        return IWMStages(session, config, begun)
    if isinstance(config, WKMTraining):
        return WKMStages(session, config, begun)
    if isinstance(config, ITPTraining):
        return ITPStages(session, config, begun)
    raise OptionError(f"expected settings of a baseline, found {type(config).__name__}")
