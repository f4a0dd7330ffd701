"""WebEvolver's look-ahead (arXiv 2504.21024): simulate a few candidate actions, let a critic choose."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated

from ..envs.registry import canonical_action
from ..lm import Completion, Message
from ..lm.prompts import cut_text
from ..lm.thoughts import without_thoughts
from ..settings import NonNegativeInt, PositiveInt, Range
from ..trajectory import Step
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
    ended,
    together,
    view_after,
)
from .react import replies_in

_LEAD_TOKENS = 8  # of what the critic's reply begins with
_FINAL = re.compile(
    r"\s*(?:stop|finish|submit|answer|<answer>|(?:click\W*)?buy now)\b", re.IGNORECASE
)
"""Actions that end an episode in comap's environments, upstream's ``stop`` among them."""
_RESTART = "restart"
_NOT_SIMULATED = "(nothing is simulated)"


@dataclass(frozen=True, kw_only=True)
class WebEvolverConfig(AgentConfig):
    """How far and how widely WebEvolver looks ahead.

    The paper compares depths 1 and 2, and 2, 3 and 5 candidates.

    Example:
        >>> WebEvolverConfig(depth=2).candidates
        3
    """

    start_step: PositiveInt = 3
    """The first step that looks ahead, counted from 1."""
    candidates: PositiveInt = 3
    """Different actions that are simulated."""
    candidate_temperature: Annotated[float, Range(0, 10)] = 1.0
    """Temperature of those after the first."""
    depth: NonNegativeInt = 1
    """Steps simulated of each, its own included; 0: the critic scores actions alone (ours)."""
    simulation_temperature: Annotated[float, Range(0, 10)] = 0.7
    """Temperature of the policy within a simulation."""
    critic_temperature: Annotated[float, Range(0, 10)] = 0.0
    """Temperature of the critic."""
    critic_tokens: PositiveInt = 128
    """Most tokens of the critic's rationale and score; brief prompts ask for the score alone."""
    critic_adapter: str | None = None
    """Adapter that scores; None for the one that acts."""
    future_tokens: PositiveInt = 384
    """Most tokens of the simulated future in the critic's prompt."""

    def required_capabilities(self) -> frozenset[str]:
        return super().required_capabilities() | {"prefix"}


class WebEvolverAgent:
    """ReAct at first; from the third step on the best of a few simulated actions.

    The first candidate is a greedy draft. Each further one is asked for as "different from" those
    before, at temperature 1; one that repeats an earlier one is left out, and one candidate alone is
    taken. The world model simulates each; between its steps the policy acts at temperature 0.7. What
    ends an episode (``stop``) is not simulated, and ``restart`` leads back to the first real page. A
    critic, the language model, says why and gives each future a score from 0 to 1; the first of the
    best is taken.

    Deviations: observations are the environment's text; a draft that cannot be read goes to the
    environment as it is, and a further candidate without an ``Action:`` line is left out; the critic
    reads the turns so far or the belief, not the present page alone; the world model's temperature is
    its own setting (``--world-model-option temperature=0.7`` is upstream's, greedy the default);
    with masked and scored decoding, which are ours, earlier candidates are taken out of the admissible
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

    @property
    def asks_world_model(self) -> bool:
        """Whether candidates are simulated: not at depth 0."""
        return self.config.depth > 0

    def calls_per_step(self) -> str:
        """Return in words what a step asks for at most, where replies can be read."""
        config = self.config
        drafts = config.candidates * max(config.depth, 1)  # between simulated steps the policy acts
        return (
            f"up to {drafts + config.candidates:,} model calls and "
            f"{config.candidates * config.depth:,} predictions from step {config.start_step} on "
            f"({config.candidates} candidates x depth {config.depth}, each with a critic)"
        )

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft; from `start_step` on gather candidates, simulate, score, and take the best."""
        config = self.config
        replies = replies_in(view)

        # Upstream's first candidate is greedy; only the further ones are sampled.
        looks_ahead = view.step + 1 >= config.start_step
        drafting = replace(config, temperature=0.0) if looks_ahead else config
        draft = yield from draft_action(view, drafting, converse(view, config, replies))
        if not (looks_ahead and draft.parsed):
            replies[view.step] = draft.shown
            return Decision(draft.action, notes=draft.notes())

        drafts = yield from self._candidates(view, draft, replies)
        if len(drafts) == 1:  # there is nothing to choose, so no future is paid for
            replies[view.step] = draft.shown
            return Decision(draft.action, notes=draft.notes() | {"candidates": []})

        futures = yield from self._simulate(view, drafts, replies)
        scores = yield from self._score(view, drafts, futures)
        best = max(range(len(drafts)), key=lambda i: (scores[i] or 0.0, -i))
        replies[view.step] = drafts[best].shown

        candidates = []
        for candidate, future, score in zip(drafts, futures, scores, strict=True):
            candidate_notes = {
                "action": candidate.action,
                "future": [[step.action, step.observation] for step in future],
                "score": round(score or 0.0, 6),
                "score_parsed": score is not None,
            }
            candidates.append(candidate_notes)
        notes = draft.notes() | {"candidates": candidates}
        prediction = futures[best][0] if futures[best] else None
        return Decision(drafts[best].action, prediction, notes)

    def _candidates(
        self, view: View, first: Draft, replies: dict[int, str]
    ) -> Generator[Request, Reply, list[Draft]]:
        """Return different drafts, the first among them; fewer where the model repeats itself."""
        drafts = [first]
        plain_actions = {canonical_action(view.env_id, first.action)}
        for number in range(2, self.config.candidates + 1):
            purpose = f"candidate {number}"
            draft = yield from self._other(view, drafts, plain_actions, replies, purpose)
            if draft is None:
                break
            plain = canonical_action(view.env_id, draft.action)
            if draft.parsed and plain not in plain_actions:
                drafts.append(draft)
                plain_actions.add(plain)
        return drafts

    def _other(
        self,
        view: View,
        drafts: Sequence[Draft],
        plain_actions: set[str],
        replies: dict[int, str],
        purpose: str,
    ) -> Generator[Request, Reply, Draft | None]:
        """Return one more draft, at the candidates' temperature; None where no action is left."""
        config = replace(self.config, temperature=self.config.candidate_temperature)
        drafted_actions = " and ".join(draft.action for draft in drafts)
        messages = ask_about(
            view,
            config,
            "webevolver_other",
            config.draft_tokens,
            replies,
            actions=cut_text(drafted_actions, config.max_length // 8, view.count_tokens),
        )
        if config.decoding == "free" or not view.admissible_actions:
            return (yield from draft_action(view, config, messages, purpose))

        # Here a model cannot say the same again: what it chose before is no longer among the choices.
        actions = []
        for text in view.admissible_actions:
            if canonical_action(view.env_id, text) not in plain_actions:
                actions.append(text)
        if not actions:
            return None
        action, logprobs = yield from choose_action(
            view, config, messages, "Action:", actions=actions, purpose=purpose
        )
        return Draft(f"Action: {action}", action, True, config.decoding, logprobs)

    def _simulate(
        self, view: View, drafts: Sequence[Draft], replies: dict[int, str]
    ) -> Generator[Request, Reply, list[list[Imagined]]]:
        """Return what follows each candidate, at most `depth` steps of it."""
        if not self.config.depth:
            return [[] for _ in drafts]

        # Side by side, so that each depth costs one batch of predictions, however many candidates.
        simulations = []
        for number, draft in enumerate(drafts, 1):
            purpose = f"simulation {number}"
            simulations.append(self._future(view, draft.action, replies, purpose))
        return (yield from together(simulations))

    def _future(
        self, view: View, action: str, replies: dict[int, str], purpose: str
    ) -> Generator[Request, Reply, list[Imagined]]:
        """Simulate an action and then the policy's, until one ends the episode."""
        policy = replace(self.config, temperature=self.config.simulation_temperature)
        path: list[Imagined] = []
        while not _FINAL.match(action):
            # What follows ``restart`` needs no prediction: upstream leads back to the first page.
            plain = canonical_action(view.env_id, action)
            first_page = view.history[0].observation if plain == _RESTART else None
            step: Imagined = yield Imagine(action, tuple(path), first_page)
            path.append(step)
            if len(path) == self.config.depth or ended(step):
                break

            imagined_view = view_after(view, path)
            messages = converse(imagined_view, policy, replies)
            draft = yield from draft_action(
                imagined_view, policy, messages, f"{purpose}: action {len(path) + 1}"
            )
            action = draft.action
        return path

    def _score(
        self, view: View, drafts: Sequence[Draft], futures: Sequence[Sequence[Imagined]]
    ) -> Generator[Request, Reply, list[float | None]]:
        """Return the critic's score of each candidate; None where it tells no number."""
        config = self.config
        lead = "Score:" if config.prompts == "brief" else "Thought:"
        requests = []
        for number, (draft, future) in enumerate(zip(drafts, futures, strict=True), 1):
            pages = [step.observation for step in future]
            request = ask_text(
                view,
                config,
                critic_prompt(view, config, draft.action, pages),
                f"critic {number}",
                config.critic_tokens,
                prefix=lead,
                temperature=config.critic_temperature,
                top_p=1.0,
                adapter=config.critic_adapter,
            )
            requests.append(request)
        replies: list[Completion] = yield requests

        # The last label counts: a rationale may speak of scores before it gives one.
        scores = []
        for reply in replies:
            text = without_thoughts(f"{lead}{reply.text}")
            _, label, stated_score = text.rpartition("Score:")
            scores.append(number_in(stated_score, 0.0, 1.0) if label else None)
        return scores


def critic_prompt(
    view: View, config: WebEvolverConfig, action: str, future: Sequence[str]
) -> tuple[Message, ...]:
    """Return what the critic is asked of an action, and of the pages that are to follow it."""
    room = config.max_length // 8
    future_room = min(config.future_tokens, config.max_length // 3)
    return ask_apart(
        view,
        config,
        "webevolver_critic",
        config.critic_tokens + _LEAD_TOKENS,
        action=cut_text(action, room, view.count_tokens),
        goal=cut_text(view.goal, room, view.count_tokens),
        future=_future_in_words(future, view, future_room),
    )


def shown_future(steps: Sequence[Step], depth: int) -> list[str]:
    """Return what followed the first of some steps, as far as it would be simulated."""
    # The critic is trained on real futures, cut where a simulation would have ended.
    simulated = takewhile(lambda step: not _FINAL.match(step.action), steps[:depth])
    return [step.observation for step in simulated]


def _future_in_words(future: Sequence[str], view: View, budget: int) -> str:
    """Return a simulated future as upstream's critic reads it: the page, or ``Step 1: ...`` of several."""
    room = max(budget // max(len(future), 1), 16)
    pages = [cut_text(page, room, view.count_tokens) for page in future]
    if len(pages) > 1:
        pages = [f"Step {number}: {page}." for number, page in enumerate(pages, 1)]
    return "\n\n".join(pages) or _NOT_SIMULATED
