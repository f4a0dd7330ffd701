"""CoMap's training from beginning to end: warm-up, initialisation, and rounds of co-evolution.

A training is a list of stages (METHODS.md 1.5, 1.6 and 1.9). Each has a folder, does its work in a way
that depends only on the settings and on what earlier stages left, and is marked as done at its end. A
training that was stopped or killed goes on at the first stage that is not done: with the episodes,
checkpoints and predictions that are there already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trajectory import Trajectory
from .config import CoMapTraining
from .policy_stages import PolicyStages
from .processes import is_first, wait
from .run_folder import write_json
from .session import MakeEnv, Session, Tell
from .staged import StagedTraining, Work, fingerprint_of
from .trial_stages import TrialStages
from .world_stages import WorldStages

if TYPE_CHECKING:
    from .roles import Roles

__all__ = ["CoEvolution", "roles_of"]


def roles_of(config: CoMapTraining) -> tuple[str, ...]:
    """Return the models of a training.

    Example:
        >>> roles_of(CoMapTraining())
        ('agent', 'wm', 'wm_ema')
    """
    further = ("agent_ema",) if config.policy_objective == "sdpo" else ()
    return ("agent", "wm", "wm_ema", *further)


class CoEvolution(StagedTraining):
    """A training of CoMap in a folder.

    Args:
        config: The settings.
        roles: The models, as `roles_of` names them.
        make_env: Makes an environment on a split.
        demos: The expert's trajectories of training tasks (D_exp).
        out: The folder.
        about: What the training is of besides its settings, as plain data: models, environment.
        session: What to write down of this session: versions, hardware.
        tell: Told what happens, as plain data with an ``event``.
        report_to: The tracker that TRL reports to, or ``none``.
        warmed_up: Whether the models come warmed up: those stages are left out then.

    Example:
        >>> from comap.lm.tiny import build_tiny
        >>> from .roles import Roles
        >>> folder = build_tiny("tiny", ["go to shelf"] * 2, parameters=200_000)
        >>> config = CoMapTraining(weights="full", rounds=1, reflection_init=False, wmsd=False)
        >>> roles = Roles.open(folder, kind="full", roles=roles_of(config), device="cpu")
        >>> training = CoEvolution(config, roles, lambda split: None, [], "run", warmed_up=True)
        >>> for name, _ in training.stages():
        ...     print(name)
        frozen-transitions
        round-0-evaluation
        round-1-rollouts
        round-1-world-model
        round-1-policy
        round-1-evaluation
    """

    def __init__(
        self,
        config: CoMapTraining,
        roles: Roles,
        make_env: MakeEnv,
        demos: Sequence[Trajectory],
        out: str | Path,
        *,
        about: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
        tell: Tell = lambda event: None,
        report_to: str = "none",
        warmed_up: bool = False,
    ):
        self.config, self.warmed_up, self.about = config, warmed_up, dict(about or {})
        place = Path(out)
        working = Session(config, roles, make_env, demos, tell, report_to, place.name)
        super().__init__(working, place, session)
        self.trials = TrialStages(self.session)
        self.worlds = WorldStages(self.session)
        self.policies = PolicyStages(self.session)

    # -- which stages ----------------------------------------------------------------------------

    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""
        config = self.config
        plan: list[tuple[str, Work]] = []
        if not self.warmed_up:
            if config.expert_sft:
                plan.append(("warmup-policy", self.policies.warm_up))
            if config.world_model_warmup:
                if config.warmup_rollouts:
                    plan.append(("warmup-rollouts", self.worlds.roll_out))
                plan.append(("warmup-world-model", self.worlds.warm_up))
        if config.frozen_transitions:
            plan.append(("frozen-transitions", self.trials.freeze))
        if config.reflection_init:
            plan.append(("reflection-drafts", self.policies.draft))
            plan.append(("reflection-suffixes", self.policies.label))
            plan.append(("reflection-init", self.policies.initialise))
        plan.append(("round-0-evaluation", lambda stage: self.trials.evaluate(stage, 0)))
        for number in range(1, config.rounds + 1):
            plan += self._round(number)
        return plan

    def _round(self, number: int) -> list[tuple[str, Work]]:
        plan: list[tuple[str, Work]] = [
            (f"round-{number}-rollouts", lambda stage: self.trials.roll_out(stage, number))
        ]
        if self.config.world_model_evolution:
            plan.append(
                (f"round-{number}-world-model", lambda stage: self.worlds.evolve(stage, number))
            )
        plan += [
            (f"round-{number}-policy", lambda stage: self.policies.evolve(stage, number)),
            (f"round-{number}-evaluation", lambda stage: self.trials.evaluate(stage, number)),
        ]
        return plan

    # -- running ---------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """Return what makes this training the training it is, as plain data."""
        return {
            "config": self.config.describe(),
            "warmed_up": self.warmed_up,
            "demonstrations": fingerprint_of(self.session.demos),
            **self.about,
        }

    def finish(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Save the models for use elsewhere, and write the summary."""
        summary = {
            "ablations": list(self.config.ablations()),
            "stages": {
                name: {key: value for key, value in found.items() if key not in ("stage", "log")}
                for name, found in results.items()
            },
        }
        if is_first():
            self.session.roles.save(self.out / "models", ("agent", "wm"))
            self.session.head.save(self.out / "models" / "head.safetensors")
            write_json(self.out / "summary.json", summary)
        wait()
        return summary
