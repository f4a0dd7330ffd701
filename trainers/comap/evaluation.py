"""What a round of CoMap's training is measured by: success, gates, predictions, and revisions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ...agents import CoMapAgent, CoMapConfig
from ...agents.comap import ActionGate, GatePath, action_gate
from ...agents.scoring import drawn
from ...envs import Canonicalizer
from ...envs.generated import is_generated, tasks_in_words
from ...errors import LanguageModelError
from ...facts import Delta, diff
from ...lm import LanguageModel, Score
from ...lm.chat import ChatTokenizer
from ...metrics import revision_rates
from ...trajectory import Trajectory
from ...worldmodel import Query, Transition
from ...worldmodel.language import LanguageWorldModel
from ..config import recast
from ..evaluation import (
    freeze,
    frozen_set,
    gate_report,
    in_order,
    load_transitions,
    mean_of,
    played_result,
    save_transitions,
    score_transitions,
)
from ..processes import is_first, wait
from ..results import ChangeTokens, PredictionReport, RevisionReport, RoundEvaluation
from ..run_folder import StageFolder
from ..setup import expert_demonstrations
from ..stages import StagedTraining
from .reflection import Branch, Outcome, played_branches, same_action
from .stages import Stage

_FILE = "transitions.jsonl"
_DIGITS = 6


def freeze_transitions(training: StagedTraining, stage: StageFolder) -> Mapping[str, Any]:
    """Fix transitions of test tasks, half the expert's and half the first policy's."""
    config = training.config
    split = config.evaluation_splits[0]
    tasks = training.evaluation_tasks(split, config.evaluation_tasks)
    with closing(training.make_env(split)) as env:
        expert_episodes = list(expert_demonstrations(env, tasks))

    # An episode is taken to have 8 transitions; at least 4 are played.
    policy_half = max(config.frozen_transitions // 2, 1)
    policy_tasks = tasks[: max(policy_half // 8, 4)]
    agent = training.drafting(config.evaluation_temperature)
    lm = training.language_model()
    policy_episodes = training.play(stage.path / "episodes", split, agent, policy_tasks, lm=lm)

    seed = training.seed("frozen")
    transitions = frozen_set(expert_episodes, policy_episodes, config.frozen_transitions, seed)
    if is_first():
        task_count = tasks_in_words(len(tasks), sum(map(is_generated, tasks)))
        save_transitions(stage.path / _FILE, transitions, task_count)
    wait()
    return {"transitions": len(transitions)}


def evaluate(
    training: StagedTraining, stage: StageFolder, number: int, gate: ActionGate = action_gate
) -> RoundEvaluation:
    """Play and measure both models as they are now, and as they act in the end: no teacher, no probe."""
    config = training.config
    lm = training.language_model()

    def agent_at(temperature: float | None) -> CoMapAgent:
        agent_config = recast(training.evaluated_agent(temperature), CoMapConfig)
        return CoMapAgent(agent_config, training.head, gate=gate)

    # The last round's numbers are those that are reported: it may have more tasks.
    is_final = number == config.rounds and config.final_tasks is not None
    results, episodes_of_splits = training.play_splits(
        stage,
        agent_at,
        lm=lm,
        world_model=training.world_model(lm),
        tasks=config.final_tasks if is_final else config.evaluation_tasks,
    )

    # What reflections add is the success above that of the drafts alone.
    if config.gate_shut:
        drafting_agent = training.drafting(config.evaluation_temperature)
        for split, episodes in episodes_of_splits.items():
            tasks = list(dict.fromkeys(episode.task for episode in episodes))
            folder = stage.path / f"{split}-gate-shut"
            draft_episodes = training.play(folder, split, drafting_agent, tasks, lm=lm)
            results[split] = replace(results[split], gate_shut=played_result(draft_episodes))

    all_episodes = list(chain.from_iterable(episodes_of_splits.values()))
    return RoundEvaluation(
        round=number,
        splits=results,
        gates=gate_report(all_episodes),
        world_model=_world_model_scores(training, lm, all_episodes),
        revisions=_revision_rates(training, stage, episodes_of_splits),
    )


def _world_model_scores(
    training: StagedTraining, lm: LanguageModel, episodes: Sequence[Trajectory]
) -> dict[str, PredictionReport]:
    """Return how well the student predicts: on the frozen transitions, and on the agent's own."""
    config = training.config
    world_model = training.world_model(lm)
    with closing(training.make_env(config.evaluation_splits[0])) as env:
        canonicalizer = env.get_wrapper_attr("canonicalizer")

    # On frozen transitions rounds are compared with each other; on its own the agent shows what it meets.
    sets = {}
    if Stage.FROZEN_TRANSITIONS in training.folders:
        folder = training.folders[Stage.FROZEN_TRANSITIONS].path
        sets["frozen"] = load_transitions(folder / _FILE)
    if config.frozen_transitions:
        seed = training.seed("on-policy")
        sets["on_policy"] = freeze(episodes, config.frozen_transitions, seed)

    scores = {}
    tokenizer = training.roles.tokenizer
    for name, transitions in sets.items():
        if transitions:
            report = score_transitions(world_model, transitions, canonicalizer)
            change_tokens = change_token_nll(
                world_model, transitions, canonicalizer, tokenizer=tokenizer
            )
            scores[name] = replace(report, change_token_nll=change_tokens)
    return scores


def _revision_rates(
    training: StagedTraining,
    stage: StageFolder,
    episodes_of_splits: Mapping[str, Sequence[Trajectory]],
) -> RevisionReport | None:
    """Return URR, HRR and BRP of decisions of the first split; None where there are none."""
    split = training.config.evaluation_splits[0]
    seed = training.seed("diagnosed")
    pairs = revision_branches(episodes_of_splits[split], training.config.diagnosed, seed)
    if not pairs:
        return None

    branches: list[Branch] = []
    for pair in pairs:
        branches += (pair.draft, pair.reflected)
    outcomes = played_branches(training, stage.path / "suffixes", split, branches)
    return revision_report(pairs, outcomes)


@dataclass(frozen=True, slots=True)
class RevisionPair:
    """A decision whose two actions are both to be tried."""

    draft: Branch
    reflected: Branch
    revised: bool


def revision_branches(trajectories: Iterable[Trajectory], n: int, seed: int) -> list[RevisionPair]:
    """Return decisions drawn at random, to find out what their revisions did.

    What counts as a revision is that the reflected action is another one than the draft.
    """
    # Drawn from all decisions in a fixed order: the sample depends on the episodes and the seed alone.
    pairs: list[RevisionPair] = []
    for trajectory in in_order(trajectories):
        pairs += _pairs(trajectory, seed)
    return drawn(pairs, n, seed)


def _pairs(trajectory: Trajectory, seed: int) -> Iterator[RevisionPair]:
    """Yield the two actions of each real decision of an episode; `seed` is for episodes without one."""
    task = trajectory.task
    branch_seed = seed if trajectory.seed is None else trajectory.seed
    prefix: tuple[str, ...] = ()
    for step in trajectory.steps:
        if step.imagined:
            return
        reflected_action = step.notes.get("ref_action")
        if step.notes.get("path") == GatePath.REFLECTED and reflected_action is not None:
            draft_action = step.notes["draft_action"]
            revised = not same_action(trajectory.env_id, draft_action, reflected_action)
            # The same action in other words is played in the draft's: both branches are then one.
            second_action = reflected_action if revised else draft_action
            yield RevisionPair(
                Branch(task, prefix, draft_action, branch_seed),
                Branch(task, prefix, second_action, branch_seed),
                revised,
            )
        prefix += (step.action,)


def revision_report(pairs: Sequence[RevisionPair], outcomes: Sequence[Outcome]) -> RevisionReport:
    """Return the rates of unnecessary, harmful and beneficial revisions (CoMap, App. C.2).

    Outcomes are those of each pair's draft and reflected action, in order.
    """
    draft_outcomes = outcomes[::2]
    reflected_outcomes = outcomes[1::2]
    rows = []
    for pair, draft, reflected in zip(pairs, draft_outcomes, reflected_outcomes, strict=True):
        if draft.error is None and reflected.error is None:
            rows.append((pair.revised, draft.success, reflected.success))

    # A rate of nothing is None here: with the paper's epsilon it would be a 0 that looks measured.
    rates = revision_rates(rows)
    revised = sum(is_revised for is_revised, _, _ in rows)
    drafts_succeed = sum(draft_succeeds for _, draft_succeeds, _ in rows)
    return RevisionReport(
        n=len(rows),
        failed=len(pairs) - len(rows),
        revised=revised,
        drafts_succeed=drafts_succeed,
        urr=round(rates.urr, _DIGITS) if drafts_succeed else None,
        hrr=round(rates.hrr, _DIGITS) if drafts_succeed else None,
        brp=round(rates.brp, _DIGITS) if revised else None,
    )


_STATE_WORDS = {
    "clean": ("clean",),
    "closed": ("closed", "close"),
    "cool": ("cool", "cold"),
    "holding": ("pick up", "carrying"),
    "hot": ("hot", "heat"),
    "lit": ("turn on",),
    "open": ("open",),
    "seen": ("nothing",),
    "sliced": ("sliced", "slice"),
}
"""Words for a state, by the predicate of a fact that is true from now on."""

_WORD = re.compile(r"\w+|[^\w\s]")
_MOST_WORDS = 2000


def change_spans(observation: str, delta: Delta | None, previous: str) -> list[tuple[int, int]]:
    """Return where an observation states what changed, as spans of characters, sorted and apart.

    Where no word of the changed facts occurs, or they are unknown, it is what differs from before.
    """
    if delta is not None and not len(delta):
        return []
    spans = [] if delta is None else _named_spans(observation, delta)
    return spans or _differing_spans(previous, observation)


def _named_spans(text: str, delta: Delta) -> list[tuple[int, int]]:
    """Return where a text has words of changed facts."""
    words: set[str] = set()
    for fact in delta.added | delta.removed:
        words.update(fact[1:])
    words -= {"agent", ""}
    for fact in delta.added:
        words.update(_STATE_WORDS.get(fact[0], ()))
    if not words:
        return []
    # A regular expression takes the first that fits: "shelf 1" must not hide "shelf 12".
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


def _differing_spans(previous: str, text: str) -> list[tuple[int, int]]:
    """Return where a text has other words than the one before; all after its first 2,000 words."""
    previous_words = [match[0] for match in _WORD.finditer(previous)][:_MOST_WORDS]
    matches = list(_WORD.finditer(text))
    words = [match[0] for match in matches[:_MOST_WORDS]]

    # By words, not characters, and no word counts as noise however frequent it is.
    matcher = difflib.SequenceMatcher(None, previous_words, words, autojunk=False)
    runs = []  # of words
    for tag, _, _, start, end in matcher.get_opcodes():
        if tag in ("insert", "replace"):
            runs.append((start, end))
    if len(matches) > _MOST_WORDS:
        runs.append((_MOST_WORDS, len(matches)))
    return [(matches[start].start(), matches[end - 1].end()) for start, end in runs]


def change_token_nll(
    model: LanguageWorldModel,
    transitions: Sequence[Transition],
    canonicalizer: Canonicalizer,
    *,
    tokenizer: Any,
    batch: int = 256,
) -> ChangeTokens:
    """Return the mean negative log-likelihood of the tokens that state what changed, in nats (Figure 6)."""
    chat = ChatTokenizer(tokenizer)
    nll_of_changes: list[float] = []
    nll_of_all: list[float] = []
    changed_transitions = 0
    failed = 0
    for start in range(0, len(transitions), batch):
        requests = []
        masks = []
        for query, observation in transitions[start : start + batch]:
            # Control tokens are broken up in answers too, and surrogates replaced: spans are of that.
            clean = observation.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            text = chat.defuse(clean)
            mask = _change_mask(tokenizer, text, query, observation, canonicalizer)
            if mask:
                masks.append(mask)
                prompt = model.prompt(query)
                requests.append(Score(prompt, (text,), "", False, model.adapter, "change tokens"))

        for reply, mask in zip(model.lm.score(requests), masks, strict=True):
            if isinstance(reply, LanguageModelError):
                failed += 1
                continue
            (logprobs,) = reply.logprobs
            for logprob, is_change in zip(logprobs, mask, strict=True):
                nll_of_all.append(-logprob)
                if is_change:
                    nll_of_changes.append(-logprob)
            changed_transitions += any(mask)

    return ChangeTokens(
        nll=mean_of(nll_of_changes),
        tokens=len(nll_of_changes),
        transitions=changed_transitions,
        nll_all=mean_of(nll_of_all),
        tokens_all=len(nll_of_all),
        failed=failed,
    )


def _change_mask(
    tokenizer: Any, text: str, query: Query, observation: str, canonicalizer: Canonicalizer
) -> list[bool]:
    """Return which tokens of an observation's text state what changed."""
    after = canonicalizer.update(query.state, query.action, observation)
    delta = diff(query.state, after) if after.parsed else None
    previous = query.history[-1].observation if query.history else ""
    spans = change_spans(text, delta, previous)

    # A token that a span only touches in part counts: it cannot be scored in part.
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    mask = []
    for token_start, token_end in encoding["offset_mapping"]:
        mask.append(any(token_start < end and start < token_end for start, end in spans))
    return mask
