"""What a round of CoMap's training is measured by: success, gates, predictions, and revisions."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ...agents import CoMapAgent, CoMapConfig
from ...agents.comap import ActionGate, action_gate
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
from ..run_folder import StageFolder
from ..setup import expert_demonstrations
from ..stages import StagedTraining
from .reflection import Branch, Outcome, played_branches, same_action

FROZEN = "frozen-transitions"
"""The stage that fixes the transitions that every world model is scored on."""

_FILE = "transitions.jsonl"
_DIGITS = 6


def freeze_transitions(training: StagedTraining, stage: StageFolder) -> Mapping[str, Any]:
    """Fix transitions of test tasks, half the expert's and half the first policy's."""
    config, split = training.config, training.config.evaluation_splits[0]
    tasks = training.evaluation_tasks(split, config.evaluation_tasks)
    with closing(training.make_env(split)) as env:
        shown = list(expert_demonstrations(env, tasks))
    some = tasks[: max(max(config.frozen_transitions // 2, 1) // 8, 4)]
    agent, lm = training.drafting(config.evaluation_temperature), training.language_model()
    played = training.play(stage.path / "episodes", split, agent, some, lm=lm)
    found = frozen_set(shown, played, config.frozen_transitions, training.seed("frozen"))
    if is_first():
        counted = tasks_in_words(len(tasks), sum(map(is_generated, tasks)))
        save_transitions(stage.path / _FILE, found, counted)
    wait()
    return {"transitions": len(found)}


def evaluate(
    training: StagedTraining, stage: StageFolder, number: int, gate: ActionGate = action_gate
) -> Mapping[str, Any]:
    """Let both models, as they are now, do what they shall do in the end: no teacher, no probe."""
    config, lm = training.config, training.language_model()
    last = number == config.rounds and config.final_tasks is not None
    splits, played = training.play_splits(
        stage,
        lambda temperature: CoMapAgent(
            recast(training.evaluated_agent(temperature), CoMapConfig), training.head, gate=gate
        ),
        lm=lm,
        world_model=training.world_model(lm),
        tasks=config.final_tasks if last else config.evaluation_tasks,
    )
    everything = [episode for episodes in played.values() for episode in episodes]
    if config.gate_shut:
        agent = training.drafting(config.evaluation_temperature)
        for split, episodes in played.items():
            tasks = list(dict.fromkeys(episode.task for episode in episodes))
            shut = training.play(stage.path / f"{split}-gate-shut", split, agent, tasks, lm=lm)
            splits[split]["gate_shut"] = played_result(shut)
    return {
        "round": number,
        "splits": splits,
        "gates": gate_report(everything),
        "world_model": _scored(training, lm, everything),
        "revisions": _diagnosed(training, stage, played),
    }


def _scored(
    training: StagedTraining, lm: LanguageModel, played: Sequence[Trajectory]
) -> dict[str, Any]:
    """Return how well the student predicts: on the frozen transitions, and on the agent's own."""
    config, model = training.config, training.world_model(lm)
    with closing(training.make_env(config.evaluation_splits[0])) as env:
        canonicalizer = env.get_wrapper_attr("canonicalizer")
    sets = {}
    if FROZEN in training.folders:
        sets["frozen"] = load_transitions(training.folders[FROZEN].path / _FILE)
    if config.frozen_transitions:
        sets["on_policy"] = freeze(played, config.frozen_transitions, training.seed("on-policy"))
    tokenizer = training.roles.tokenizer
    return {
        name: {
            **score_transitions(model, transitions, canonicalizer),
            "change_token_nll": change_token_nll(
                model, transitions, canonicalizer, tokenizer=tokenizer
            ),
        }
        for name, transitions in sets.items()
        if transitions
    }


def _diagnosed(
    training: StagedTraining, stage: StageFolder, played: Mapping[str, Sequence[Trajectory]]
) -> dict[str, Any] | None:
    """Return URR, HRR and BRP of decisions of the first split."""
    split = training.config.evaluation_splits[0]
    seed = training.seed("diagnosed")
    pairs = revision_branches(played[split], training.config.diagnosed, seed)
    if not pairs:
        return None
    branches = [branch for pair in pairs for branch in (pair.draft, pair.reflected)]
    return revision_report(
        pairs, played_branches(training, stage.path / "suffixes", split, branches)
    )


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
    found = [pair for trajectory in in_order(trajectories) for pair in _pairs(trajectory, seed)]
    picked = random.Random(seed).sample(range(len(found)), min(n, len(found)))
    return [found[number] for number in sorted(picked)]


def _pairs(trajectory: Trajectory, seed: int) -> Iterator[RevisionPair]:
    task, seed = trajectory.task, seed if trajectory.seed is None else trajectory.seed
    prefix: tuple[str, ...] = ()
    for step in trajectory.steps:
        if step.imagined:
            return
        other = step.notes.get("ref_action")
        if step.notes.get("path") == "reflected" and other is not None:
            draft = step.notes["draft_action"]
            revised = not same_action(trajectory.env_id, draft, other)
            reflected = Branch(task, prefix, other if revised else draft, seed)
            yield RevisionPair(Branch(task, prefix, draft, seed), reflected, revised)
        prefix += (step.action,)


def revision_report(pairs: Sequence[RevisionPair], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what revisions did: URR, HRR and BRP (CoMap, App. C.2).

    Outcomes are those of each pair's draft and reflected action, in order.
    """
    both = zip(pairs, outcomes[::2], outcomes[1::2], strict=True)
    rows = [
        (pair.revised, draft.success, reflected.success)
        for pair, draft, reflected in both
        if draft.error is None and reflected.error is None
    ]
    rates = revision_rates(rows)
    revised = sum(m for m, _, _ in rows)
    good = sum(draft for _, draft, _ in rows)
    return {
        "n": len(rows),
        "failed": len(pairs) - len(rows),
        "revised": revised,
        "drafts_succeed": good,
        "urr": round(rates.urr, _DIGITS) if good else None,
        "hrr": round(rates.hrr, _DIGITS) if good else None,
        "brp": round(rates.brp, _DIGITS) if revised else None,
    }


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
"""Words that tell a state, of facts that are true from now on."""

_WORD = re.compile(r"\w+|[^\w\s]")
_MOST_WORDS = 2000


def change_spans(observation: str, delta: Delta | None, previous: str) -> list[tuple[int, int]]:
    """Return where an observation tells what changed, as spans of characters, sorted and apart."""
    if delta is not None and not len(delta):
        return []
    found = [] if delta is None else _named_spans(observation, delta)
    return found or _differing_spans(previous, observation)


def _named_spans(text: str, delta: Delta) -> list[tuple[int, int]]:
    words = {name for fact in delta.added | delta.removed for name in fact[1:]} - {"agent", ""}
    for fact in delta.added:
        words.update(_STATE_WORDS.get(fact[0], ()))
    if not words:
        return []
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


def _differing_spans(previous: str, text: str) -> list[tuple[int, int]]:
    """Return where a text has other words than the one before; all after its first 2,000 words."""
    old = [match[0] for match in _WORD.finditer(previous)][:_MOST_WORDS]
    new = list(_WORD.finditer(text))
    compared = [match[0] for match in new[:_MOST_WORDS]]
    codes = difflib.SequenceMatcher(None, old, compared, autojunk=False).get_opcodes()
    runs = [(low, high) for tag, _, _, low, high in codes if tag in ("insert", "replace")]
    if len(new) > _MOST_WORDS:
        runs.append((_MOST_WORDS, len(new)))
    return [(new[low].start(), new[high - 1].end()) for low, high in runs]


def change_token_nll(
    model: LanguageWorldModel,
    transitions: Sequence[Transition],
    canonicalizer: Canonicalizer,
    *,
    tokenizer: Any,
    batch: int = 256,
) -> dict[str, Any]:
    """Return the mean negative log-likelihood of the tokens that tell what changed, in nats (Figure 6)."""
    chat, changed, every = ChatTokenizer(tokenizer), list[float](), list[float]()
    number, failed = 0, 0
    for start in range(0, len(transitions), batch):
        requests, masks = [], []
        for query, observation in transitions[start : start + batch]:
            # Control tokens are broken up in answers too, and surrogates replaced: spans are of that.
            clean = observation.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            text = chat.defuse(clean)
            if mask := _change_mask(tokenizer, text, query, observation, canonicalizer):
                masks.append(mask)
                prompt, adapter = model.prompt(query), model.adapter
                requests.append(Score(prompt, (text,), "", False, adapter, "change tokens"))
        for reply, mask in zip(model.lm.score(requests), masks, strict=True):
            if isinstance(reply, LanguageModelError):
                failed += 1
                continue
            (logprobs,) = reply.logprobs
            every += [-value for value in logprobs]
            changed += [-value for value, hit in zip(logprobs, mask, strict=True) if hit]
            number += any(mask)
    return {
        "nll": mean_of(changed),
        "tokens": len(changed),
        "transitions": number,
        "nll_all": mean_of(every),
        "tokens_all": len(every),
        "failed": failed,
    }


def _change_mask(
    tokenizer: Any, text: str, query: Query, observation: str, canonicalizer: Canonicalizer
) -> list[bool]:
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    after = canonicalizer.update(query.state, query.action, observation)
    previous = query.history[-1].observation if query.history else ""
    spans = change_spans(text, diff(query.state, after) if after.parsed else None, previous)
    return [
        any(start < high and low < end for low, high in spans)
        for start, end in found["offset_mapping"]
    ]
