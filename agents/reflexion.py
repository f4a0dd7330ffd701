"""Reflexion: try again, with a note on what went wrong (Shinn et al., 2023)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..lm import Completion, Message
from ..lm.prompts import OVERHEAD, cut_text, recent_turns
from ..lm.thoughts import without_thoughts
from ..settings import PositiveInt
from ..trajectory import Trajectory, Turn
from .base import Decision, Reply, Request, View, estimate_tokens
from .config import AgentConfig
from .prompting import ask_text, briefing_for, converse, draft_action, prompt_of
from .react import replies_in

_STOP = ("\nThought:", "\nAction:", "\nObservation:", "\nTask:")
_NONE = "Nothing."
_LEFT_OUT = "[...]"
_BRIEFING = "briefing"  # in the agent's memory: a trial that has ended has no view


@dataclass(frozen=True, kw_only=True)
class ReflexionConfig(AgentConfig):
    """Settings of Reflexion."""

    trials: PositiveInt = 3
    """Most trials of a task (the paper has 10 on ALFWorld; 3 is CoMap's budget)."""
    reflections: PositiveInt = 3
    """How many reflections, the newest, go into the next trial (the paper: at most 3)."""
    reflect_tokens: PositiveInt = 128
    """Most tokens of a reflection (CoMap, Table 5: the budget of a reflection)."""
    stuck: PositiveInt | None = 3
    """A trial ends where one action gets one answer more often than this, without a break (the
    paper's rule on ALFWorld); None for no such rule."""


class ReflexionAgent:
    """ReAct that tries a task again after a failure, with notes from the trials before.

    It uses the task's success at test time: a trial follows only upon a failure, so its success rate
    after the last trial does not compare with that of agents that try once. Report both the first
    trial and the last.

    Deviations: the failed trial is shown as a plain transcript, cut from its oldest turn; an empty
    reflection is on record in the trajectory, and not added; a trial that a fault ended is not tried
    again, since it was not the agent that failed. Masked and scored decoding, and the belief as state
    text, are ours, and so are the prompts.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> ReflexionAgent(ReflexionConfig(trials=10)).config.trials
        10
    """

    name = "reflexion"
    asks_world_model = False

    def __init__(self, config: ReflexionConfig | None = None):
        self.config = config or ReflexionConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Ask for a thought and an action, with the notes of the trials before."""
        config = self.config
        replies = replies_in(view)
        view.memory[_BRIEFING] = briefing_for(view, config)

        # The first turn of a history has no action, so it is no part of a repetition.
        if config.stuck is not None:
            last_turns = view.history[1:][-config.stuck - 1 :]
            if len(last_turns) > config.stuck and len({*last_turns}) == 1:
                return Decision(None)

        reflections = self._reflections(view.memory)
        system = ""
        if reflections:
            notes = [cut_text(note, self._room(), view.count_tokens) for note in reflections]
            (message,) = prompt_of(config, "notes", notes=_listed(notes))
            system = message.content
        messages = converse(view, config, replies, system=system)
        draft = yield from draft_action(view, config, messages)
        replies[view.step] = draft.shown
        return Decision(draft.action, notes={**draft.notes(), "reflections": len(reflections)})

    def review(
        self, trajectory: Trajectory, memory: dict[str, Any]
    ) -> Generator[Request, Reply, bool]:
        """Note what went wrong, if the task was not solved and a trial is left."""
        config = self.config

        # A fault is no failure of the agent's, so there is nothing that it could learn from it.
        is_over = trajectory.success or trajectory.error is not None
        if is_over or trajectory.trial >= config.trials:
            return False

        messages = self._question(trajectory, memory)
        reply: Completion = yield ask_text(
            _end_of(trajectory), config, messages, "reflexion", config.reflect_tokens, _STOP
        )

        # In one line, since notes are listed a line each. An empty one would push out an older one.
        note = " ".join(without_thoughts(reply.text).split())
        if note:
            memory["reflections"] = [*self._reflections(memory), note][-config.reflections :]
        return True

    def _reflections(self, memory: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the newest reflections on this task, as many as the settings allow."""
        return tuple(memory.get("reflections", ()))[-self.config.reflections :]

    def _room(self) -> int:
        """Return the tokens of one note: three of them take a quarter of a prompt at most."""
        return min(self.config.reflect_tokens, self.config.max_length // 12)

    def _question(self, trajectory: Trajectory, memory: Mapping[str, Any]) -> tuple[Message, ...]:
        """Return what asks for a reflection, with as much of the trial as fits."""
        config = self.config
        briefing = memory.get(_BRIEFING) or briefing_for(_end_of(trajectory), config)
        notes = []
        for reflection in self._reflections(memory):
            notes.append(cut_text(reflection, self._room(), estimate_tokens))
        slots = {
            "instructions": "",
            "goal": cut_text(trajectory.goal, config.max_length // 8, estimate_tokens),
            "notes": _listed(notes) or _NONE,
        }

        # Tokens are estimated: after an episode there is no view, whose model could count them.
        room = config.max_length - config.reflect_tokens
        bare = prompt_of(config, "review", transcript="", **slots)
        room -= sum(estimate_tokens(message.content) + OVERHEAD for message in bare)

        # The trial comes first: where there is little room, the instructions are cut.
        rules = briefing.told()
        slots["instructions"] = cut_text(rules, max(room * 3 // 4, 0), estimate_tokens)
        room -= estimate_tokens(slots["instructions"])
        transcript = _transcript(trajectory, max(room, 64))
        return prompt_of(config, "review", transcript=transcript, **slots)


def _end_of(trajectory: Trajectory) -> View:
    """Return a view of a finished trial, for the seed of what is asked about it."""
    return View(
        trajectory.env_id,
        trajectory.task,
        trajectory.goal,
        (),
        trajectory.facts,
        step=len(trajectory.steps),
        trial=trajectory.trial,
        seed=trajectory.seed or 0,
    )


def _listed(notes: Sequence[str]) -> str:
    """Return notes as a list, one a line."""
    return "\n".join(f"- {note}" for note in notes)


def _transcript(trajectory: Trajectory, budget: int) -> str:
    """Return a trial as text: its first observation, then the newest turns that fit."""
    first_observation = cut_text(trajectory.observation, budget // 2, estimate_tokens)
    turns = [Turn(step.action, step.observation) for step in trajectory.steps]
    room = budget - estimate_tokens(first_observation) - estimate_tokens(_LEFT_OUT)
    newest_turns = recent_turns(turns, room, estimate_tokens)

    lines = [first_observation]
    if len(newest_turns) < len(turns):
        lines.append(_LEFT_OUT)
    for turn in newest_turns:
        lines += [f"> {turn.action}", turn.observation]
    return "\n".join(lines)
