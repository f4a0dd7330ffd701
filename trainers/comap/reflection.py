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
from ...agents.comap import CoMapAgent, GatePath
from ...agents.convert import views_of
from ...agents.parsing import first_line
from ...agents.prompting import Draft, converse, draft_action
from ...agents.react import replies_in
from ...agents.requests import EnvPool, EnvSlot, OnWork, RequestBatcher
from ...agents.runner import EpisodeGenerator, Player, error_text, play_items, play_on, player_for
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
    """A game to play: from a task's start the actions of a prefix, then an action, then a policy's."""

    task: str
    prefix: tuple[str, ...]
    action: str
    seed: int

    @property
    def key(self) -> str:
        """The branch as text: the name of its outcome in a stage's folder."""
        return json.dumps([self.task, self.prefix, self.action, self.seed])


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a branch ended: its success and return, or the error that ended it."""

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
    branches_by_key = {branch.key: branch for branch in branches}
    lm = (
        training.language_model()
    )  # of all processes at once, also of those that have nothing to play

    def work(keys: Sequence[str]) -> Iterator[Done]:
        outcomes = suffix_outcomes(
            partial(training.make_env, split),
            training.drafting(training.config.suffix_temperature),
            [branches_by_key[key] for key in keys],
            lm=lm,
            concurrency=training.config.concurrency,
            on_work=telling_work(training.tell),
        )
        for played_count, (branch, outcome) in enumerate(outcomes, 1):
            training.tell({"event": "suffix", "done": played_count, "of": len(keys)})
            yield branch.key, asdict(outcome)

    outcomes_by_key = each_once(folder, list(branches_by_key), work)
    return [Outcome(**outcomes_by_key[branch.key]) for branch in branches]


def suffix_outcomes(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    branches: Iterable[Branch],
    *,
    lm: LanguageModel | None = None,
    concurrency: int = 32,
    on_work: OnWork | None = None,
) -> Iterator[tuple[Branch, Outcome]]:
    """Play branches, many at once, and yield the outcome of each as it ends."""
    player = player_for(agent, lm)

    def play(slot: EnvSlot, group: list[Branch]) -> EpisodeGenerator[dict[Branch, Outcome]]:
        return _play_from_one_moment(player, slot, group)

    # Several rounds: where an environment cannot go back, a moment has one branch fewer each time.
    remaining = dict.fromkeys(branches)
    while remaining:
        # Branches of one moment share its prefix, which is then played once.
        groups: dict[tuple[Any, ...], list[Branch]] = {}
        for branch in remaining:
            groups.setdefault((branch.task, branch.prefix, branch.seed), []).append(branch)

        pool = EnvPool(make_env)
        batcher = RequestBatcher(lm, on_work)
        with closing(play_items(pool, batcher, groups.values(), concurrency, play)) as rounds:
            for _, outcomes in rounds:
                for branch, outcome in outcomes.items():
                    del remaining[branch]
                    yield branch, outcome


def _play_from_one_moment(
    player: Player, slot: EnvSlot, branches: Sequence[Branch]
) -> EpisodeGenerator[dict[Branch, Outcome]]:
    """Play branches that part at one moment: reset, replay the prefix, then take each action from there.

    Where the environment cannot go back to that moment, the remaining branches have no outcome yet.
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
            reason = info.get("error") or "the episode was over"
            raise EngineError(
                f"expected the episode to go on after the {len(branch.prefix)} actions of the prefix, "
                f"found that it ended at action {number}, {action!r:.80}: {reason}; take the prefix from "
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
    except Exception:  # the remaining branches are played in another environment
        slot.broken = True
        return False
    slot.moment = object()
    return True


def _play_branch(
    player: Player, slot: EnvSlot, turns: tuple[Turn, ...], branch: Branch
) -> EpisodeGenerator[Outcome]:
    """Take an action, let the agent play on to the end, and return the outcome."""
    # A fault is an outcome too: the state is left out and counted, and the others go on.
    try:
        observation, _, terminated, truncated, info = slot.step(branch.action)
    except Exception as fault:
        return _failed(error_text(fault))

    # The action itself may end the episode: then there is nothing to play on.
    last_info: Mapping[str, Any] = info
    error = info.get("error")
    steps = 1
    if not (terminated or truncated):
        turns = (*turns, Turn(branch.action, observation))
        played = yield from play_on(player, slot, turns, info, branch.seed, {})
        last_info = played.info
        error = played.error
        steps = 1 + len(played.steps)

    if error is not None:
        return _failed(error, observation, steps)
    score = min(max(float(last_info["score"]), 0.0), 1.0)
    return Outcome(bool(last_info["success"]), score, steps, observation, None)


def _failed(error: str, observation: str = "", steps: int = 0) -> Outcome:
    return Outcome(False, 0.0, steps, observation, error)


InitContext: TypeAlias = Literal["env", "wm", "mixed", "none"]
"""Which future the reflection sees in its first training: what the environment answers to the draft,
what the world model predicts of it, one of the two by a draw, or nothing."""

_DELTA = 0.05  # of the largest return, which is 1 (ours)
_ROUNDING = 1e-9  # what sums of floating-point numbers may be off by


class DraftingAgent:
    """Asks the policy for drafts at chosen steps of an expert's plans, or at each step of its own way.

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
        self.config = config
        self.plans = plans
        self.steps = steps or {}
        self.context = context

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft where the step is one of those chosen, and take the plan's action; end with the plan."""
        replies = replies_in(view)
        action: str | None = None

        # The expert's way is walked whatever the policy drafts: its states are those of the paper's labels.
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

            # On its own way the policy's reply stands in later prompts, as at inference.
            if action is None:
                action = draft.action
                replies[view.step] = draft.shown
                notes["shown"] = draft.shown
                notes["expert_action"] = view.expert_action()
        return Decision(action, notes=notes)


def choose_steps(
    plans: Mapping[str, Sequence[str]], states_per_episode: int | None = 4, seed: int = 0
) -> dict[str, frozenset[int]]:
    """Choose at which steps of an expert's plans to ask for drafts."""
    steps_of_tasks = {}
    for task, plan in plans.items():
        # Each step has a rank drawn for itself: more states keep those that fewer had.
        ranked = sorted(range(len(plan)), key=partial(random_rank, seed, task))
        steps_of_tasks[task] = frozenset(ranked[:states_per_episode])
    return steps_of_tasks


def random_rank(seed: int, *parts: object) -> int:
    """Return a random number that depends on its parts alone: the same in every process."""
    text = "\n".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedState:
    """A state with the policy's draft, and the expert's action there; one of the two was taken."""

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
    """The observation that followed the draft, where it was taken."""
    useless: bool = False
    """Whether the draft was taken, changed no fact, and did not solve the task."""

    def branches(self, suffixes: int) -> list[tuple[Branch, Branch]]:
        """Return the draft's and the expert's branches to be played; none where both are the same."""
        if self.same:
            return []
        return [
            (
                Branch(self.task, self.prefix, self.draft_action, seed),
                Branch(self.task, self.prefix, self.expert_action, seed),
            )
            for seed in range(suffixes)
        ]


def drafted_states(trajectories: Iterable[Trajectory]) -> Iterator[DraftedState]:
    """Yield the states in which a `DraftingAgent` asked the policy for a draft.

    Two kinds of the policy's own states are left out: those in which it repeats an action with the same
    belief, and those in which the expert has no action.
    """
    for trajectory in trajectories:
        actions = tuple(step.action for step in trajectory.steps)
        decisions_before: set[tuple[State, str]] = set()
        for step_index, (belief, step) in enumerate(trajectory.transitions()):
            # Without a plan the step took the draft, and its notes have the expert's action; with a plan
            # the step took the expert's action.
            notes = step.notes
            is_policy_state = "expert_action" in notes
            expert_action = notes["expert_action"] if is_policy_state else step.action

            # A policy that goes in circles would fill the samples with one state.
            decision = (belief, step.action)
            is_repeated = is_policy_state and decision in decisions_before
            decisions_before.add(decision)
            if "draft_parsed" not in notes or expert_action is None or is_repeated:
                continue

            is_same = same_action(trajectory.env_id, notes["draft_action"], expert_action)
            was_draft_taken = is_policy_state or is_same
            yield DraftedState(
                task=trajectory.task,
                prefix=actions[:step_index],
                draft_action=notes["draft_action"],
                draft_response=notes["draft_response"],
                parsed=notes["draft_parsed"],
                predicted=notes["predicted_next_state"],
                expert_action=expert_action,
                # The fault that ends an episode cuts its last step.
                failed=trajectory.error is not None and step.truncated,
                same=is_same,
                after_draft=step.observation if was_draft_taken else None,
                useless=was_draft_taken and not step.delta and not step.success,
            )


def same_action(env_id: str, action: str, other_action: str) -> bool:
    """Return whether an environment takes two texts for the same action."""
    return canonical_action(env_id, action) == canonical_action(env_id, other_action)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixLabel:
    """Whether a draft should be revised, and the future that its reflection sees."""

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
    branches: dict[Branch, None] = {}  # each once, in order
    for state in drafted_states(trajectories):
        if state.parsed and not state.failed:
            for pair in state.branches(suffixes):
                branches |= dict.fromkeys(pair)
    return list(branches)


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
    # Where returns are 0 or 1 any difference is one of success; else small ones are chance.
    if delta is None:
        is_binary = all(outcome.ret in (0.0, 1.0) for outcome in outcomes.values())
        delta = 0.0 if is_binary else _DELTA

    labels: list[SuffixLabel] = []
    left_out = {"unparsed": 0, "failed": 0}
    for state in drafted_states(trajectories):
        if not state.parsed:
            left_out["unparsed"] += 1
            continue
        if state.failed:
            left_out["failed"] += 1
            continue

        # A comparison of two actions needs both: one that failed is no failure of its action.
        pairs = state.branches(suffixes)
        draft_outcomes = [outcomes[draft] for draft, _ in pairs]
        expert_outcomes = [outcomes[expert] for _, expert in pairs]
        if any(outcome.error is not None for outcome in (*draft_outcomes, *expert_outcomes)):
            left_out["failed"] += 1
            continue

        after_draft = state.after_draft
        if after_draft is None:
            after_draft = draft_outcomes[0].observation
        future, source = _future(state, after_draft, context, seed)
        verdict = _judge(draft_outcomes, expert_outcomes, delta)
        if not suffixes:  # nothing was played out: the draft's own effect decides
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
    """Return five fields of a `SuffixLabel`: both actions' success rates and mean returns, and y.

    `drafts` and `experts` are the outcomes after the draft and after the expert's action. Where there are
    none, because both are one action or nothing is played out, the rates are None and the draft is kept.
    """
    if not drafts:
        rates = dict.fromkeys(("succ_draft", "succ_exp", "ret_draft", "ret_exp"))
        return {**rates, "y": 0}

    count = len(drafts)
    # Success first, as the paper has it; returns only decide between actions that succeed alike.
    succ_draft = sum(outcome.success for outcome in drafts) / count
    succ_exp = sum(outcome.success for outcome in experts) / count
    ret_draft = math.fsum(outcome.ret for outcome in drafts) / count
    ret_exp = math.fsum(outcome.ret for outcome in experts) / count

    # Returns decide only between actions that succeed equally often.
    expert_returns_more = ret_exp - ret_draft > delta + _ROUNDING
    revise = succ_exp > succ_draft or (succ_exp == succ_draft and expert_returns_more)
    return {
        "succ_draft": succ_draft,
        "succ_exp": succ_exp,
        "ret_draft": ret_draft,
        "ret_exp": ret_exp,
        "y": int(revise),
    }


def _future(
    state: DraftedState, real_observation: str, context: InitContext, seed: int
) -> tuple[str, str]:
    """Return the future that a state's reflection sees, and its source: a coin chooses of "mixed"."""
    if context == "none":
        return "", "none"
    if context == "mixed":
        # From the state alone: the same in every process, and after every interruption.
        coin = random_rank(seed, "context", state.task, len(state.prefix)) & 1
        context = "wm" if coin else "env"
    if context == "env":
        return real_observation, "env"
    assert state.predicted is not None, "the world model was asked for each draft"
    return state.predicted, "wm"


@dataclass(frozen=True, slots=True)
class Reflection:
    """The reply that the reflect mode should give to a draft: whether to revise it, and the action."""

    kind: str
    draft: Draft
    future: str
    revise: bool
    target: str
    analysis: str = ""


def reflection_of(trajectory: Trajectory, step: Step, config: CoMapTraining) -> Reflection | None:
    """Return a step's reflection as the gate decided it; None where there is none to learn from."""
    notes = step.notes
    reflected_action = notes.get("ref_action")
    if step.imagined or notes.get("path") != GatePath.REFLECTED or reflected_action is None:
        return None

    # The same action in other words is no revision: nothing else would be done.
    draft_action = notes["draft_action"]
    is_parsed = notes["draft_parsed"]
    revise = notes["gate"] and not same_action(trajectory.env_id, reflected_action, draft_action)
    target = reflected_action if revise else draft_action
    if not is_parsed or not on_one_line(target):
        return None

    is_selected = revise and trajectory.success and notes.get("wm_gate") is True
    if config.gated_corrections and not is_selected:
        return None

    # At inference there is no world-state gate: the reflection saw the prediction.
    future = notes.get("context", notes.get("predicted_next_state")) or ""
    if notes.get("context_source") == "none":
        future = ""

    if not revise:
        kind = "keep_draft"
    elif trajectory.success or not config.require_success_for_hq:
        kind = "hq_reflect"
    else:
        kind = "revise_positive"
    draft = Draft(notes["draft_response"], draft_action, is_parsed, notes.get("decoding", "free"))
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
    # Brief prompts do not show the form, so that it must be learned; the standard ones ask for it.
    learns_form = config.prompts == "brief" if form_loss is None else form_loss
    text = first_line(analysis) if config.prompts == "standard" else ""
    text = first_line(cut_text(text, config.reflect_tokens, count_tokens))

    reply: list[Segment] = [("Decision:", learns_form)]
    if text and learns_form:
        reply.insert(0, (f"Reflection: {text}\n", False))
    elif text:  # one segment, as the reading of p tokenizes it
        reply = [(f"Reflection: {text}\nDecision:", False)]

    decision = " REVISE" if revise else " KEEP"
    reply.append((decision, True))
    reply.append(("\nFinal Action:", learns_form))
    reply.append((f" {action.strip()}", True))

    if config.p_source == "verbal":
        probability = " 1.0" if revise else " 0.0"
        reply.append(("\nRevise Probability:", learns_form))
        reply.append((probability, True))
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
    learnable = [label for label in labels if on_one_line(label.target)]
    agent = CoMapAgent(config.agent)
    samples = []
    for label, view, replies in _labeled_views(learnable, trajectories, count_tokens):
        draft = Draft(label.draft_response, label.draft_action, True, config.agent.decoding)
        analysis = (analyses or {}).get((view.task, view.step), "")
        reflection = Reflection(
            label.kind, draft, label.future, bool(label.y), label.target, analysis
        )
        samples.append(_sample(agent, config, view, replies, reflection))
    return samples


def draft_samples(
    labels: Iterable[SuffixLabel],
    trajectories: Iterable[Trajectory],
    config: CoMapTraining,
    *,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> list[Sample]:
    """Return the expert's action in each labeled state as a demonstrated draft (DAgger)."""
    samples = []
    for label, view, replies in _labeled_views(labels, trajectories, count_tokens):
        messages = converse(view, config.agent, replies)
        samples.append(sample_of(ANCHOR, messages, f"Action: {label.expert_action}", view))
    return samples


def _labeled_views(
    labels: Iterable[SuffixLabel],
    trajectories: Iterable[Trajectory],
    count_tokens: Callable[[str], int],
) -> Iterator[tuple[SuffixLabel, View, dict[int, str]]]:
    """Yield each labeled state as the policy saw it, with its replies before."""
    # By the actions so far, not by the number of the step: a task may have been played several times.
    labels_by_state = {(label.task, tuple(label.prefix)): label for label in labels}
    for trajectory in trajectories:
        actions = tuple(step.action for step in trajectory.steps)
        for view, replies, _ in views_of(trajectory, count_tokens):
            label = labels_by_state.get((trajectory.task, actions[: view.step]))
            if label is not None:
                yield label, view, replies


def episodes_to_learn(
    trajectories: Sequence[Trajectory], config: CoMapTraining
) -> Sequence[Trajectory]:
    """Return those of a round's episodes that the policy learns from."""
    successful = [trajectory for trajectory in trajectories if trajectory.success]
    if config.episode_filter == "successful_or_all" and successful:
        return successful
    return trajectories


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
            reflection = reflection_of(trajectory, step, config)
            if reflection is not None:
                yield _sample(agent, config, view, replies, reflection)


def _sample(
    agent: CoMapAgent,
    config: CoMapTraining,
    view: View,
    replies: Mapping[int, str],
    reflection: Reflection,
) -> Sample:
    """Return a reflection as a sample; its label is learned where p is read from the model."""
    learns_p = config.beta > 0 and config.agent.p_source in ("head", "verbalizer")
    return Sample(
        kind=reflection.kind,
        messages=agent.question(view, replies, reflection.draft, reflection.future),
        reply=reflect_reply(
            config.agent,
            reflection.revise,
            reflection.target,
            reflection.analysis,
            form_loss=config.form_loss,
            count_tokens=view.count_tokens,
        ),
        label=float(reflection.revise) if learns_p else None,
        task=view.task,
        step=view.step,
    )
