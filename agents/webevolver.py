"""WebEvolver's look-ahead: simulate a few candidate actions, let a critic choose."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from ..envs.registry import canonical_action
from ..lm import Completion
from ..lm.prompts import cut_text
from ..worldmodel import Imagined
from .base import Decision, Imagine, Reply, Request, View
from .config import AgentConfig
from .parsing import number_in
from .prompting import (
    Draft,
    ask_about,
    ask_apart,
    ask_text,
    choose_action,
    converse,
    draft_action,
    roll_out,
    steps_as_text,
    together,
)
from .react import replies_in

_BEGUN = 8  # tokens of what the critic's reply begins with


@dataclass(frozen=True, kw_only=True)
class WebEvolverConfig(AgentConfig):
    """How far and how widely WebEvolver looks ahead.

    Example:
        >>> WebEvolverConfig(depth=2).candidates
        3
    """

    start_step: int = 3
    """The first step that looks ahead, counted from 1."""
    candidates: int = 3
    """Different actions that are simulated."""
    candidate_temperature: float = 1.0
    """Temperature of those after the first."""
    tries: int = 2
    """How often a further candidate is asked for before there is none."""
    depth: int = 1
    """Steps simulated after each, its own included (the paper: 1, optionally 2)."""
    critic_temperature: float = 0.0
    """Temperature of the critic."""
    critic_tokens: int = 128
    """Most tokens of the critic's rationale and score; brief prompts ask for the score alone."""
    critic_adapter: str | None = None
    """Adapter that scores; None for the one that acts."""
    future_tokens: int = 384
    """Most tokens of the simulated future in the critic's prompt."""

    limits = (
        (1, math.inf, "start_step candidates tries depth critic_tokens future_tokens"),
        (0, 10, "candidate_temperature critic_temperature"),
    )

    def required_capabilities(self) -> frozenset[str]:
        return super().required_capabilities() | {"prefix"}


class WebEvolverAgent:
    """ReAct at first; from the third step on the best of a few simulated actions.

    The first candidate is the agent's draft. Each further one is asked for as "different from" those
    before, at temperature 1. The world model simulates each, further steps follow the agent's greedy
    drafts; a critic, the language model, says why and gives each future a score from 0 to 1; the first
    of the best is taken.

    Deviations: observations are the environment's text, not an accessibility tree;
    a draft that cannot be read goes to the environment as it is; a further candidate that repeats an
    earlier one is asked for again, then left out, and so is one without an ``Action:`` line; one
    candidate alone is taken without simulation; a critic's reply without a number counts as 0; with
    masked and scored decoding, which are ours, earlier candidates are taken out of the admissible
    actions, and further ones have no thought.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> WebEvolverAgent().config.start_step
        3
    """

    name = "webevolver"

    def __init__(self, config: WebEvolverConfig | None = None):
        self.config = config or WebEvolverConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft; from `start_step` on gather candidates, simulate, score, and take the best."""
        config = self.config
        replies = replies_in(view)
        draft = yield from draft_action(view, config, converse(view, config, replies))
        if view.step + 1 < config.start_step or not draft.parsed:
            replies[view.step] = draft.text
            return Decision(draft.action, notes=draft.notes())
        drafts = yield from self._candidates(view, draft, replies)
        if len(drafts) == 1:
            replies[view.step] = draft.text
            return Decision(draft.action, notes=draft.notes() | {"candidates": []})
        futures = yield from self._simulate(view, drafts, replies)
        scores = yield from self._score(view, drafts, futures)
        best = max(range(len(drafts)), key=lambda i: (scores[i] or 0.0, -i))
        replies[view.step] = drafts[best].text
        candidates = [
            {
                "action": each.action,
                "future": [[step.action, step.observation] for step in future],
                "score": round(score or 0.0, 6),
                "score_parsed": score is not None,
            }
            for each, future, score in zip(drafts, futures, scores, strict=True)
        ]
        notes = draft.notes() | {"candidates": candidates}
        return Decision(drafts[best].action, futures[best][0], notes)

    def _candidates(
        self, view: View, first: Draft, replies: dict[int, str]
    ) -> Generator[Request, Reply, list[Draft]]:
        drafts = [first]
        seen = {canonical_action(view.env_id, first.action)}
        for number in range(2, self.config.candidates + 1):
            for attempt in range(1, self.config.tries + 1):
                purpose = f"candidate {number}, try {attempt}"
                draft = yield from self._other(view, drafts, seen, replies, purpose)
                if draft is None:
                    return drafts
                plain = canonical_action(view.env_id, draft.action)
                if draft.parsed and plain not in seen:
                    drafts.append(draft)
                    seen.add(plain)
                    break
        return drafts

    def _other(
        self,
        view: View,
        drafts: Sequence[Draft],
        seen: set[str],
        replies: dict[int, str],
        purpose: str,
    ) -> Generator[Request, Reply, Draft | None]:
        """Return one more draft, at the candidates' temperature; None where no action is left."""
        config = replace(self.config, temperature=self.config.candidate_temperature)
        listed = "\n".join(draft.action for draft in drafts)
        listed = cut_text(listed, config.max_length // 8, view.count_tokens)
        room = config.draft_tokens
        messages = ask_about(view, config, "webevolver_other", room, replies, actions=listed)
        if config.decoding == "free" or not view.admissible_actions:
            return (yield from draft_action(view, config, messages, purpose))
        actions = [
            text
            for text in view.admissible_actions
            if canonical_action(view.env_id, text) not in seen
        ]
        if not actions:
            return None
        action, logprobs = yield from choose_action(
            view, config, messages, "Action:", actions=actions, purpose=purpose
        )
        return Draft(f"Action: {action}", action, True, config.decoding, logprobs)

    def _simulate(
        self, view: View, drafts: Sequence[Draft], replies: dict[int, str]
    ) -> Generator[Request, Reply, list[list[Imagined]]]:
        """Return what follows each candidate, `depth` steps of it."""
        firsts: list[Imagined] = yield [Imagine(draft.action) for draft in drafts]
        config, further = self.config, self.config.depth - 1
        if not further:
            return [[first] for first in firsts]
        rollouts = [
            roll_out(view, config, further, [first], replies, f"simulation {number}")
            for number, first in enumerate(firsts, 1)
        ]
        return (yield from together(rollouts))

    def _score(
        self, view: View, drafts: Sequence[Draft], futures: Sequence[Sequence[Imagined]]
    ) -> Generator[Request, Reply, list[float | None]]:
        """Return the critic's score of each candidate; None where it tells no number."""
        config, count = self.config, view.count_tokens
        tokens, room = config.critic_tokens, min(config.future_tokens, config.max_length // 3)
        lead = "Score:" if config.prompts == "brief" else "Reason:"
        asked = []
        for number, (draft, future) in enumerate(zip(drafts, futures, strict=True), 1):
            action = cut_text(draft.action, config.max_length // 8, count)
            slots = {"action": action, "future": steps_as_text(future, view, room)}
            critic = ask_text(
                view,
                config,
                ask_apart(view, config, "webevolver_critic", tokens + _BEGUN, **slots),
                f"critic {number}",
                tokens,
                prefix=lead,
                temperature=config.critic_temperature,
                top_p=1.0,
                adapter=config.critic_adapter,
            )
            asked.append(critic)
        said: list[Completion] = yield asked
        scores = [f"{lead}{completion.text}".rpartition("Score:") for completion in said]
        return [number_in(score, 0.0, 1.0) if label else None for _, label, score in scores]
