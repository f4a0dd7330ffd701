"""The reflect mode's data: states with drafts, their labels, and the policy's own decisions.

Initialization (CoMap, App. C.2): in an expert's state, or in one of the policy's own (ours), the policy
drafts; draft and expert's action are both played out, and the label says whether the draft should be
revised. In the rounds the labels are the policy's own gate. Both become samples of the reflect mode
(CoMap, eq. 8).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import gymnasium

from ...agents import Agent, AgentConfig, CoMapConfig
from ...agents.base import Decision, Imagine, Reply, Request, View, estimate_tokens
from ...agents.comap import CoMapAgent
from ...agents.convert import views_of
from ...agents.parsing import first_line
from ...agents.prompting import Draft, converse, draft_action
from ...agents.react import replies_in
from ...agents.requests import EnvPool, EnvSlot, OnWork, RequestBatcher
from ...agents.runner import EpisodeGenerator, Player, error_text, play_on, play_rounds, player_for
from ...envs import Snapshot, canonical_action, restore, snapshot
from ...errors import EngineError
from ...facts import State
from ...lm import LanguageModel
from ...lm.prompts import cut_text
from ...trajectory import Step, Trajectory, Turn
from ...worldmodel import Imagined
from ..run_folder import Done, each_once
from ..samples import ANCHOR, Sample, Segment
from ..sft import sample_of
from ..stages import StagedTraining, telling_work
from .config import CoMapTraining


@dataclass(frozen=True, slots=True)
class Branch:
    """What is played: from a task's start a prefix, then an action, then the continuation policy."""

    task: str
    prefix: tuple[str, ...]
    action: str
    seed: int

    @property
    def key(self) -> str:
        return json.dumps([self.task, self.prefix, self.action, self.seed])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a branch."""

    success: bool
    ret: float
    steps: int
    observation: str
    error: str | None


def played_branches(
    training: StagedTraining, folder: Path, split: str, branches: Sequence[Branch]
) -> list[Outcome]:
    """Play branches with the draft policy, shared among processes, and return their outcomes in order.

    Outcomes are written down as they come: a training that was killed plays only the rest.
    """
    known = {branch.key: branch for branch in branches}
    done = [0]

    def work(keys: Sequence[str]) -> Iterator[Done]:
        outcomes = suffix_outcomes(
            partial(training.make_env, split),
            training.drafting(training.config.suffix_temperature),
            [known[key] for key in keys],
            lm=training.language_model(),
            concurrency=training.config.concurrency,
            on_work=telling_work(training.tell),
        )
        for branch, outcome in outcomes:
            done[0] += 1
            training.tell({"event": "suffix", "done": done[0], "of": len(keys)})
            yield branch.key, asdict(outcome)

    found = each_once(folder, list(known), work)
    return [Outcome(**found[branch.key]) for branch in branches]


def suffix_outcomes(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    branches: Iterable[Branch],
    *,
    lm: LanguageModel | None = None,
    concurrency: int = 32,
    on_work: OnWork | None = None,
) -> Iterator[tuple[Branch, Outcome]]:
    """Play branches, many at once, and yield what came of each as it ends."""
    player = player_for(agent, lm)

    def play(slot: EnvSlot, some: list[Branch]) -> EpisodeGenerator[dict[Branch, Outcome]]:
        return _play_from_one_moment(player, slot, some)

    rest = dict.fromkeys(branches)
    while rest:
        moments: dict[tuple[Any, ...], list[Branch]] = {}
        for branch in rest:
            moments.setdefault((branch.task, branch.prefix, branch.seed), []).append(branch)
        pool, batcher = EnvPool(make_env), RequestBatcher(lm, on_work)
        with closing(play_rounds(pool, batcher, moments.values(), concurrency, play)) as rounds:
            for _, outcomes in rounds:
                for branch, outcome in outcomes.items():
                    del rest[branch]
                    yield branch, outcome


def _play_from_one_moment(
    player: Player, slot: EnvSlot, branches: Sequence[Branch]
) -> EpisodeGenerator[dict[Branch, Outcome]]:
    """Play branches that part at one moment: reset, replay the prefix, then each action from there.

    Where the environment cannot go back to that moment, the rest is left out, to be played anew.
    """
    try:
        turns = _replay(slot, branches[0])
        moment = snapshot(slot.env)
    except Exception as fault:
        return dict.fromkeys(branches, _failed(error_text(fault)))
    outcomes: dict[Branch, Outcome] = {}
    for branch in branches:
        if outcomes and not _go_back(slot, moment):
            break
        outcomes[branch] = yield from _play_branch(player, slot, turns, branch)
    return outcomes


def _replay(slot: EnvSlot, branch: Branch) -> tuple[Turn, ...]:
    """Start the task, take the actions of the prefix, and return the turns so far."""
    observation, _ = slot.reset(branch.task, branch.seed)
    turns = [Turn(None, observation)]
    for number, action in enumerate(branch.prefix, 1):
        observation, _, terminated, truncated, info = slot.step(action)
        if terminated or truncated:
            why = info.get("error") or "the episode was over"
            raise EngineError(
                f"expected the episode to go on after the {len(branch.prefix)} actions of the prefix, "
                f"found that it ended at action {number}, {action!r:.80}: {why}; take the prefix from "
                "an episode of this task in such an environment"
            )
        turns.append(Turn(action, observation))
    return tuple(turns)


def _go_back(slot: EnvSlot, moment: Snapshot) -> bool:
    """Bring the environment back to a moment; return whether it is there."""
    if slot.broken:
        return False
    try:
        slot.rewind()
        restore(slot.env, moment)
    except Exception:  # the rest is played from another start, in another environment
        slot.broken = True
        return False
    slot.moment = object()
    return True


def _play_branch(
    player: Player, slot: EnvSlot, turns: tuple[Turn, ...], branch: Branch
) -> EpisodeGenerator[Outcome]:
    """Take an action, let the agent go on to the end, and return what came of it."""
    try:
        observation, _, terminated, truncated, info = slot.step(branch.action)
    except Exception as fault:
        return _failed(error_text(fault))
    last: Mapping[str, Any] = info
    error, steps = info.get("error"), 1
    if not (terminated or truncated):
        turns = (*turns, Turn(branch.action, observation))
        played = yield from play_on(player, slot, turns, info, branch.seed, {})
        last, error, steps = played.info, played.error, 1 + len(played.steps)
    if error is not None:
        return _failed(error, observation, steps)
    score = min(max(float(last["score"]), 0.0), 1.0)
    return Outcome(bool(last["success"]), score, steps, observation, None)


def _failed(error: str, observation: str = "", steps: int = 0) -> Outcome:
    return Outcome(False, 0.0, steps, observation, error)


InitContext: TypeAlias = Literal["env", "wm", "mixed", "none"]
"""Which future the reflection sees in its first training: what the environment answers to the draft,
what the world model predicts of it, one of the two by a draw, or nothing."""

_DELTA = 0.05  # of the largest return, which is 1 (ours)
_ROUNDING = 1e-9  # what sums of floating-point numbers may be off by


class DraftingAgent:
    """Asks the policy for drafts at chosen steps: on an expert's way, or without plans on its own.

    With plans it takes their actions. Without plans it takes the drafts, and notes at each step what the
    environment's expert would do there.
    """

    name = "comap-drafting"

    def __init__(
        self,
        config: AgentConfig,
        plans: Mapping[str, Sequence[str]] | None = None,
        steps: Mapping[str, frozenset[int]] | None = None,
        context: InitContext = "mixed",
    ):
        self.config, self.plans, self.steps, self.context = config, plans, steps or {}, context

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft where that is wanted, and take the plan's action; give up where the plan ends."""
        replies, action = replies_in(view), None
        if self.plans is not None:
            plan = self.plans.get(view.task, ())
            if view.step >= len(plan):
                return Decision(None)
            action = plan[view.step]
        notes: dict[str, Any] = {"shown": f"Action: {action}"}
        if action is None or view.step in self.steps.get(view.task, ()):
            draft = yield from draft_action(view, self.config, converse(view, self.config, replies))
            predicted: str | None = None
            if draft.parsed and self.context in ("wm", "mixed"):
                imagined: Imagined = yield Imagine(draft.action)
                predicted = imagined.observation
            notes |= {
                "draft_action": draft.action,
                "draft_parsed": draft.parsed,
                "draft_response": draft.text,
                "predicted_next_state": predicted,
            }
            if action is None:
                action = draft.action
                replies[view.step] = notes["shown"] = draft.shown
                notes["expert_action"] = view.expert_action()
        return Decision(action, notes=notes)


def choose_steps(
    plans: Mapping[str, Sequence[str]], states_per_episode: int | None = 4, seed: int = 0
) -> dict[str, frozenset[int]]:
    """Choose at which steps of an expert's plans to ask for drafts."""
    return {
        task: frozenset(
            sorted(range(len(plan)), key=lambda step: drawn(seed, task, step))[:states_per_episode]
        )
        for task, plan in plans.items()
    }


def drawn(seed: int, *parts: object) -> int:
    """Return a number drawn for these parts: the same in every process, for ranks and coins."""
    text = "\n".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedState:
    """A state, what the policy would do there or did, and what an expert would do or did."""

    task: str
    prefix: tuple[str, ...]
    draft_action: str
    draft_response: str
    parsed: bool
    predicted: str | None
    expert_action: str
    failed: bool
    same: bool
    after_draft: str | None
    """what followed the draft, where it was taken"""
    useless: bool = False
    """whether it was taken and changed no fact"""

    def branches(self, suffixes: int) -> list[tuple[Branch, Branch]]:
        """Return the draft's and the expert's branches to be played; none where both are the same."""
        return [
            (
                Branch(self.task, self.prefix, self.draft_action, seed),
                Branch(self.task, self.prefix, self.expert_action, seed),
            )
            for seed in range(0 if self.same else suffixes)
        ]


def drafted_states(trajectories: Iterable[Trajectory]) -> Iterator[DraftedState]:
    """Yield the states in which a `DraftingAgent` asked the policy for a draft.

    Of the policy's own, those in which it does again what it did before with the same belief are left
    out, and those in which the expert knows of no way on.
    """
    for trajectory in trajectories:
        actions = tuple(step.action for step in trajectory.steps)
        known = set[tuple[State, str]]()
        for number, (before, step) in enumerate(trajectory.transitions()):
            expert = step.notes.get("expert_action", step.action)
            own = "expert_action" in step.notes
            again = own and (before, step.action) in known
            known.add((before, step.action))
            if "draft_parsed" in step.notes and expert is not None and not again:
                draft = step.notes["draft_action"]
                same = same_action(trajectory.env_id, draft, expert)
                yield DraftedState(
                    task=trajectory.task,
                    prefix=actions[:number],
                    draft_action=draft,
                    draft_response=step.notes["draft_response"],
                    parsed=step.notes["draft_parsed"],
                    predicted=step.notes["predicted_next_state"],
                    expert_action=expert,
                    failed=trajectory.error is not None and step.truncated,
                    same=same,
                    after_draft=step.observation if own or same else None,
                    useless=own and not step.delta and not step.success,
                )


def same_action(env_id: str, one: str, other: str) -> bool:
    return canonical_action(env_id, one) == canonical_action(env_id, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixLabel:
    """Whether a draft should be revised, and what the reflection sees."""

    task: str
    step: int
    prefix: tuple[str, ...]
    draft_action: str
    draft_response: str
    expert_action: str
    succ_draft: float | None
    succ_exp: float | None
    ret_draft: float | None
    ret_exp: float | None
    y: int
    target: str
    future: str
    future_source: str

    @property
    def kind(self) -> str:
        """Its kind: ``"revise_positive"``, ``"expert_draft"`` or ``"keep_draft"`` (CoMap, Fig. 7)."""
        if self.y:
            return "revise_positive"
        same = self.succ_draft is None and self.draft_action == self.expert_action
        return "expert_draft" if same else "keep_draft"


def branches_of(trajectories: Iterable[Trajectory], suffixes: int = 1) -> list[Branch]:
    """Return the branches that must be played before states can be labeled; none for 0 suffixes."""
    states = (one for one in drafted_states(trajectories) if one.parsed and not one.failed)
    pairs = (pair for state in states for pair in state.branches(suffixes))
    return list(dict.fromkeys(branch for pair in pairs for branch in pair))


def label_states(
    trajectories: Iterable[Trajectory],
    outcomes: Mapping[Branch, Outcome],
    *,
    suffixes: int = 1,
    delta: float | None = None,
    context: InitContext = "mixed",
    seed: int = 0,
) -> tuple[list[SuffixLabel], dict[str, int]]:
    """Return the label of each state in which the policy was asked for a draft.

    y = 1 if the expert's branch succeeds and the draft's does not, or they end alike and its return is
    larger by more than delta (CoMap, App. C.2). With 0 suffixes, for the policy's own states (ours),
    y = 1 if the draft changed no fact and the expert acts otherwise. States without a draft that can be
    read, or of which a branch failed, are left out and counted.
    """
    if delta is None:
        delta = 0.0 if all(one.ret in (0.0, 1.0) for one in outcomes.values()) else _DELTA
    labels: list[SuffixLabel] = []
    left_out = {"unparsed": 0, "failed": 0}
    for state in drafted_states(trajectories):
        if not state.parsed:
            left_out["unparsed"] += 1
            continue
        pairs = state.branches(suffixes) if not state.failed else []
        drafts, experts = [outcomes[d] for d, _ in pairs], [outcomes[e] for _, e in pairs]
        if state.failed or any(one.error is not None for one in (*drafts, *experts)):
            left_out["failed"] += 1
            continue
        after_draft = drafts[0].observation if state.after_draft is None else state.after_draft
        future, source = _future(state, after_draft, context, seed)
        verdict = _judge(drafts, experts, delta)
        if not suffixes:
            verdict["y"] = int(state.useless and not state.same)
        labels.append(
            SuffixLabel(
                task=state.task,
                step=len(state.prefix),
                prefix=state.prefix,
                draft_action=state.draft_action,
                draft_response=state.draft_response,
                expert_action=state.expert_action,
                target=state.expert_action if verdict["y"] else state.draft_action,
                future=future,
                future_source=source,
                **verdict,
            )
        )
    return labels, left_out


def _judge(drafts: Sequence[Outcome], experts: Sequence[Outcome], delta: float) -> dict[str, Any]:
    """Compare what came of both actions; without rollouts the draft is kept."""
    names = ("succ_draft", "succ_exp", "ret_draft", "ret_exp")
    if not drafts:
        return dict.fromkeys(names) | {"y": 0}
    n = len(drafts)
    succ_draft, succ_exp = (sum(one.success for one in some) / n for some in (drafts, experts))
    ret_draft, ret_exp = (math.fsum(one.ret for one in some) / n for some in (drafts, experts))
    larger = ret_exp - ret_draft > delta + _ROUNDING
    y = int(succ_exp > succ_draft or (succ_exp == succ_draft and larger))
    return dict(zip(names, (succ_draft, succ_exp, ret_draft, ret_exp), strict=True)) | {"y": y}


def _future(state: DraftedState, real: str, context: InitContext, seed: int) -> tuple[str, str]:
    if context == "none":
        return "", "none"
    if context == "mixed":
        coin = drawn(seed, "context", state.task, len(state.prefix)) & 1
        context = "wm" if coin else "env"
    if context == "env":
        return real, "env"
    assert state.predicted is not None, "the world model was asked for each draft"
    return state.predicted, "wm"


@dataclass(frozen=True, slots=True)
class Reflection:
    """What the reflect mode should say of a draft: whether to revise it, and the final action."""

    kind: str
    draft: Draft
    future: str
    revise: bool
    target: str
    analysis: str = ""


def reflection_of(trajectory: Trajectory, step: Step, config: CoMapTraining) -> Reflection | None:
    """Return what the policy's own gate made of a reflection; None where there is none to learn from."""
    notes = step.notes
    revised = notes.get("ref_action")
    if step.imagined or notes.get("path") != "reflected" or revised is None:
        return None
    text, action, parsed = (notes[f"draft_{name}"] for name in ("response", "action", "parsed"))
    revise = notes["gate"] and not same_action(trajectory.env_id, revised, action)
    target = revised if revise else action
    if not parsed or not on_one_line(target):
        return None
    draft = Draft(text, action, parsed, notes.get("decoding", "free"))
    # at inference the context is the prediction
    seen = notes.get("context", notes.get("predicted_next_state"))
    future = "" if notes.get("context_source") == "none" else seen or ""
    good = trajectory.success or not config.require_success_for_hq
    kind = ("hq_reflect" if good else "revise_positive") if revise else "keep_draft"
    selected = revise and trajectory.success and notes.get("wm_gate") is True
    if config.gated_corrections and not selected:
        return None
    return Reflection(kind, draft, future, revise, target, notes.get("reflection_text") or "")


def on_one_line(action: str) -> bool:
    r"""Return whether an action is text on one line, as a reply can name it."""
    return len(action.splitlines()) == 1 and bool(action.strip())


def reflect_reply(
    config: CoMapConfig,
    revise: bool,
    action: str,
    analysis: str = "",
    *,
    form_loss: bool | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> tuple[Segment, ...]:
    r"""Return the reply that the reflect mode is trained to give, as segments.

    The decision and the final action carry loss. The analysis is the policy's own and carries none: it
    only stands before them. Where the model states its probability (``p_source="verbal"``) that line
    follows, as sure as the label is (ours). Words are cut off with the space before them, as masked
    decoding and the reading of p cut them.
    """
    form = config.prompts == "brief" if form_loss is None else form_loss
    text = first_line(analysis) if config.prompts == "standard" else ""
    text = first_line(cut_text(text, config.reflect_tokens, count_tokens))
    reply: list[Segment] = [("Decision:", form)]
    if text and form:
        reply.insert(0, (f"Reflection: {text}\n", False))
    elif text:  # one piece, as the reading of p tokenizes it
        reply = [(f"Reflection: {text}\nDecision:", False)]
    reply += [
        (" REVISE" if revise else " KEEP", True),
        ("\nFinal Action:", form),
        (f" {action.strip()}", True),
    ]
    if config.p_source == "verbal":
        reply += [("\nRevise Probability:", form), (" 1.0" if revise else " 0.0", True)]
    return tuple(reply)


def label_samples(
    labels: Iterable[SuffixLabel],
    trajectories: Iterable[Trajectory],
    config: CoMapTraining,
    *,
    analyses: Mapping[tuple[str, int], str] | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> list[Sample]:
    """Return a sample of the reflect mode for each label of suffix rollouts."""
    wanted = {(one.task, tuple(one.prefix)): one for one in labels if on_one_line(one.target)}
    agent, found = CoMapAgent(config.agent), list[Sample]()
    for trajectory in trajectories:
        actions = tuple(step.action for step in trajectory.steps)
        for view, replies, _ in views_of(trajectory, count_tokens):
            label = wanted.get((trajectory.task, actions[: view.step]))
            if label is not None:
                draft = Draft(label.draft_response, label.draft_action, True, config.agent.decoding)
                analysis = (analyses or {}).get((view.task, view.step), "")
                made = Reflection(
                    label.kind, draft, label.future, bool(label.y), label.target, analysis
                )
                found.append(_sample(agent, config, view, replies, made))
    return found


def draft_samples(
    labels: Iterable[SuffixLabel],
    trajectories: Iterable[Trajectory],
    config: CoMapTraining,
    *,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> list[Sample]:
    """Return the expert's action in each labeled state as a demonstrated draft (DAgger)."""
    wanted = {(one.task, tuple(one.prefix)): one for one in labels}
    found = list[Sample]()
    for trajectory in trajectories:
        actions = tuple(step.action for step in trajectory.steps)
        for view, replies, _ in views_of(trajectory, count_tokens):
            label = wanted.get((trajectory.task, actions[: view.step]))
            if label is not None:
                messages = converse(view, config.agent, replies)
                found.append(sample_of(ANCHOR, messages, f"Action: {label.expert_action}", view))
    return found


def episodes_to_learn(
    trajectories: Sequence[Trajectory], config: CoMapTraining
) -> Sequence[Trajectory]:
    """Return those of a round's episodes that the policy learns from."""
    successful = [one for one in trajectories if one.success]
    return (config.episode_filter == "successful_or_all" and successful) or trajectories


def rollout_samples(
    trajectories: Sequence[Trajectory],
    config: CoMapTraining,
    *,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield a sample of the reflect mode for each decision of a round's episodes."""
    agent = CoMapAgent(config.agent)
    for trajectory in episodes_to_learn(trajectories, config):
        for view, replies, step in views_of(trajectory, count_tokens):
            made = reflection_of(trajectory, step, config)
            if made is not None:
                yield _sample(agent, config, view, replies, made)


def _sample(
    agent: CoMapAgent,
    config: CoMapTraining,
    view: View,
    replies: Mapping[int, str],
    made: Reflection,
) -> Sample:
    """Return a sample of the reflect mode."""
    learns_p = config.beta > 0 and config.agent.p_source in ("head", "verbalizer")
    return Sample(
        kind=made.kind,
        messages=agent.question(view, replies, made.draft, made.future),
        reply=reflect_reply(
            config.agent,
            made.revise,
            made.target,
            made.analysis,
            form_loss=config.form_loss,
            count_tokens=view.count_tokens,
        ),
        label=float(made.revise) if learns_p else None,
        task=view.task,
        step=view.step,
    )
