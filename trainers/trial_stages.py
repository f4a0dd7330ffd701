"""The stages in which both models act: rollouts of training tasks, and evaluation (METHODS.md 1.9)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..agents.comap import CoMapAgent
from ..agents.react import ReActAgent, ReActConfig
from ..envs import Canonicalizer
from ..metrics import success_rate
from ..trajectory import Trajectory
from ..worldmodel import Transition
from .change_tokens import change_token_nll
from .demonstrations import expert_demonstrations
from .evaluation import gate_report, score_transitions
from .frozen_sets import freeze, frozen_set, load_transitions, save_transitions
from .processes import is_first, wait
from .revisions import revision_branches, revision_report
from .rollout_agent import RolloutAgent, RolloutConfig
from .run_folder import StageFolder
from .session import Session
from .shared_suffixes import shared_outcomes

__all__ = ["TrialStages", "played_result"]

_FROZEN = "transitions.jsonl"


class TrialStages:
    """The stages of playing.

    Args:
        session: What they work with.
    """

    def __init__(self, session: Session):
        self.session = session

    def roll_out(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Play training tasks with probes, teacher and both gates (METHODS.md 1.2)."""
        session, config = self.session, self.session.config
        known = session.tasks(config.train_split)
        rng = random.Random(session.seed("round", number))
        tasks = rng.sample(known, min(config.tasks_per_round, len(known)))
        lm = session.language_model()
        model = session.world_model(lm)
        context = "gated" if config.world_state_gate else config.ungated_context
        settings = RolloutConfig(
            **session.reflection_settings(),
            tau_wm=config.tau_wm,
            gate_reference=config.gate_reference,
            context=context,
            teacher_adapter="wm_ema",
        )
        agent = RolloutAgent(settings, session.head, model)
        found = session.play(
            stage.path / "episodes",
            config.train_split,
            agent,
            tasks,
            lm=lm,
            world_model=model,
            seed=session.seed("round", number, "episodes"),
        )
        return {**played_result(found), "gates": gate_report(found)}

    def freeze(self, stage: StageFolder) -> Mapping[str, Any]:
        """Fix the transitions of test tasks that every world model is scored on (METHODS.md 1.12)."""
        session, config = self.session, self.session.config
        split = config.evaluation_splits[0]
        half = max(config.frozen_transitions // 2, 1)
        tasks = self._evaluated(split)
        env = session.make_env(split)
        try:
            shown = list(expert_demonstrations(env, tasks))
        finally:
            env.close()
        heat = config.evaluation_temperature
        agent = ReActAgent(ReActConfig(**session.agent_settings(temperature=heat)))
        lm = session.language_model()
        some = tasks[: max(half // 8, 4)]
        played = session.play(stage.path / "episodes", split, agent, some, lm=lm)
        found = frozen_set(shown, played, config.frozen_transitions, session.seed("frozen"))
        if is_first():
            save_transitions(stage.path / _FROZEN, found)
        wait()
        return {"transitions": len(found)}

    def evaluate(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Let both models, as they are now, do what they shall do in the end; no teacher, no probe."""
        session, config = self.session, self.session.config
        lm = session.language_model()
        model = session.world_model(lm)
        agent = CoMapAgent(session.comap_config(config.evaluation_temperature), session.head)
        splits: dict[str, Any] = {}
        played: dict[str, list[Trajectory]] = {}
        for split in config.evaluation_splits:
            tasks = self._evaluated(split, last=number == config.rounds)
            episodes = []
            for repeat in range(config.evaluation_seeds if tasks else 0):
                place, seed = stage.path / f"{split}-{repeat}", repeat or None
                episodes += session.play(
                    place, split, agent, tasks, lm=lm, world_model=model, seed=seed
                )
            splits[split], played[split] = played_result(episodes), episodes
        everything = [episode for episodes in played.values() for episode in episodes]
        return {
            "round": number,
            "splits": splits,
            "gates": gate_report(everything),
            "world_model": self._scored(lm, everything),
            "revisions": self._diagnosed(stage, played),
        }

    def _evaluated(self, split: str, last: bool = False) -> Sequence[str]:
        session, config = self.session, self.session.config
        known, wanted = session.tasks(split), config.evaluation_tasks
        if last and config.final_tasks is not None:
            wanted = config.final_tasks
        if wanted is None or wanted >= len(known):
            return known
        rng = random.Random(session.seed("evaluation", split))
        return rng.sample(known, wanted)

    def _scored(self, lm: Any, played: Sequence[Trajectory]) -> dict[str, Any]:
        """Return how well the student predicts: on the frozen transitions, and on the agent's own."""
        session, config = self.session, self.session.config
        model, canonicalizer = session.world_model(lm), self._canonicalizer()
        found: dict[str, Any] = {}
        sets: dict[str, list[Transition]] = {}
        if "frozen-transitions" in session.places:
            sets["frozen"] = load_transitions(session.places["frozen-transitions"].path / _FROZEN)
        most = config.frozen_transitions
        sets["on_policy"] = freeze(played, most, session.seed("on-policy")) if most else []
        for name, transitions in sets.items():
            if transitions:
                found[name] = score_transitions(model, transitions, canonicalizer)
                found[name]["change_token_nll"] = change_token_nll(
                    model, transitions, canonicalizer, tokenizer=session.roles.tokenizer
                )
        return found

    def _canonicalizer(self) -> Canonicalizer:
        env = self.session.make_env(self.session.config.evaluation_splits[0])
        try:
            found: Canonicalizer = env.get_wrapper_attr("canonicalizer")
        finally:
            env.close()
        return found

    def _diagnosed(
        self, stage: StageFolder, played: Mapping[str, Sequence[Trajectory]]
    ) -> dict[str, Any] | None:
        """Return URR, HRR and BRP of decisions of the first split (METHODS.md 1.12)."""
        session, config = self.session, self.session.config
        split = config.evaluation_splits[0]
        pairs = revision_branches(played[split], config.diagnosed, session.seed("diagnosed"))
        if not pairs:
            return None
        branches = [branch for pair in pairs for branch in pair.branches]
        outcomes = shared_outcomes(session, stage.path / "suffixes", split, branches)
        return revision_report(pairs, outcomes)


def played_result(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return success, score, faults and calls of episodes.

    Args:
        episodes: The episodes.

    Example:
        >>> played_result([])["episodes"]
        0
    """
    rate = success_rate(episode.success for episode in episodes)
    steps = sum(len(episode.steps) for episode in episodes)
    calls = [call for episode in episodes for step in episode.steps for call in step.calls]
    return {
        "episodes": len(episodes),
        "success": rate.value,
        "success_low": rate.low,
        "success_high": rate.high,
        "score": sum(episode.score for episode in episodes) / max(len(episodes), 1),
        "steps": steps,
        "errors": sum(episode.error is not None for episode in episodes),
        "calls": len(calls),
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
    }
