"""WKM: an agent with a world knowledge model (Qiao et al., 2024)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import jsonl
from ..envs import state_text
from ..lm import Completion, Generate, Message, NextWord, WordProbabilities
from ..lm.prompts import cut_text
from ..trajectory import Trajectory
from ..worldmodel import Query, transitions_of
from .base import Decision, Reply, Request, View
from .config import AgentConfig
from .parsing import clean_action, parse_action
from .prompting import (
    STOP,
    ask_apart,
    ask_text,
    choose_action,
    converse,
    draft_action,
    fill,
    instructions,
)
from .react import replies_in

_WORD = re.compile(r"\w+")


class Knowledge(NamedTuple):
    """What was known in a state, and which actions came before and after."""

    knowledge: str
    previous_action: str
    action: str


def belief_knowledge(query: Query) -> str:
    """Return the belief in words, as state knowledge that needs no language model."""
    return state_text(query.env_id, query.goal, query.history, query.state)


class KnowledgeBase:
    """Remembers states in words with the actions around them, and finds those that read alike.

    Likeness is the cosine of two bags of words, in which rare words weigh more (inverse document
    frequency). WKM compares sentence embeddings; this needs no further model.

    Args:
        entries: What it shall know from the start.

    Example:
        >>> base = KnowledgeBase([Knowledge("The safe is closed.", "look", "open safe 1"),
        ...                       Knowledge("A pen is on the desk.", "look", "take pen 1")])
        >>> base.retrieve("the desk has a pen", 1)[0].action
        'take pen 1'
    """

    def __init__(self, entries: Iterable[Knowledge] = ()):
        self._entries = list(entries)
        self._index: _Index | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Knowledge]:
        return iter(self._entries)

    def add(self, entry: Knowledge) -> None:
        """Remember one more state."""
        self._entries.append(entry)
        self._index = None

    def retrieve(self, knowledge: str, k: int) -> list[Knowledge]:
        """Return the `k` entries most like a state, most like first, the older of equals first."""
        if not self._entries or k < 1:
            return []
        if self._index is None:
            self._index = _Index([entry.knowledge for entry in self._entries])
        likeness = self._index.likeness(knowledge)
        order = np.argsort(-likeness, kind="stable")[:k]
        return [self._entries[index] for index in order]

    def save(self, path: Path) -> None:
        """Write the entries, one line of JSON each: the whole new file or none."""
        jsonl.write(path, (entry._asdict() for entry in self._entries))

    @classmethod
    def load(cls, path: Path) -> KnowledgeBase:
        """Read what `save` wrote."""
        expected = f"an object with the texts {', '.join(Knowledge._fields)} of a knowledge base"
        return cls(jsonl.read(path, _entry, expected=expected))

    @classmethod
    def from_trajectories(
        cls, trajectories: Iterable[Trajectory], tell: Callable[[Query], str] = belief_knowledge
    ) -> KnowledgeBase:
        """Return the knowledge of episodes: an entry for each real action."""
        return cls(
            Knowledge(tell(query), query.history[-1].action or "", query.action)
            for trajectory in trajectories
            for query, _ in transitions_of(trajectory)
        )


def _entry(record: dict[str, Any]) -> Knowledge:
    values = [record[key] for key in Knowledge._fields]
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a value is no text")
    return Knowledge(*values)


class _Index:
    """Texts as bags of words, by word: which texts have it, with which weight."""

    def __init__(self, texts: Sequence[str]):
        bags = [Counter(_WORD.findall(text.lower())) for text in texts]
        self._size = len(texts)
        shared = Counter(word for bag in bags for word in bag)
        self._weight = {
            word: math.log((1 + self._size) / (1 + count)) + 1 for word, count in shared.items()
        }
        postings: dict[str, tuple[list[int], list[float]]] = {}
        for index, bag in enumerate(bags):
            for word, value in self._unit(bag).items():
                indices, values = postings.setdefault(word, ([], []))
                indices.append(index)
                values.append(value)
        self._postings = {
            word: (np.array(indices, dtype=np.intp), np.array(values))
            for word, (indices, values) in postings.items()
        }

    def likeness(self, text: str) -> NDArray[np.float64]:
        found = np.zeros(self._size)
        for word, value in sorted(self._unit(Counter(_WORD.findall(text.lower()))).items()):
            if word in self._postings:
                indices, values = self._postings[word]
                found[indices] += value * values
        rounded: NDArray[np.float64] = found.round(9)
        return rounded  # equal texts are equally like, whatever the order of summing

    def _unit(self, bag: Counter[str]) -> dict[str, float]:
        rare = math.log(1 + self._size) + 1
        raw = {word: count * self._weight.get(word, rare) for word, count in bag.items()}
        norm = math.sqrt(math.fsum(value * value for value in raw.values()))
        return {word: value / norm for word, value in raw.items()}


def verb_of(action: str) -> str:
    """Return the first word of an action, in lower case: of ``search[pen]`` it is ``search``."""
    found = _WORD.search(action)
    return "" if found is None else found[0].lower()


def next_verbs(neighbours: Sequence[Knowledge], previous_action: str) -> dict[str, float]:
    """Return how the next verb is distributed among neighbours with the same verb before."""
    before = verb_of(previous_action)
    same = Counter(verb_of(n.action) for n in neighbours if verb_of(n.previous_action) == before)
    total = sum(same.values())
    return {verb: count / total for verb, count in sorted(same.items())}


def mixed_verbs(agent: dict[str, float], known: dict[str, float], gamma: float) -> dict[str, float]:
    """Return ``gamma * P_agent + (1 - gamma) * P_know`` over the agent's verbs."""
    own = normalized(agent, agent)
    base = normalized(known, agent)
    if not base:
        return own or dict.fromkeys(agent, 1 / len(agent)) if agent else {}
    if not own:
        return base
    return {verb: gamma * own[verb] + (1 - gamma) * base[verb] for verb in agent}


def normalized(values: dict[str, float], verbs: Iterable[str]) -> dict[str, float]:
    """Return values over some verbs with the sum 1; empty where they have none."""
    found = {verb: values.get(verb, 0.0) for verb in verbs}
    found = {verb: value if 0 < value < math.inf else 0.0 for verb, value in found.items()}
    total = sum(found.values())
    return {verb: value / total for verb, value in found.items()} if total > 0 else {}


def task_request(view: View, config: WKMConfig) -> Generate:
    """Return the question for task knowledge: what to know before the task is begun."""
    rules = instructions(view.env_id)
    return _knowledge_request(view, config, "task", config.task_tokens, instructions=rules)


def state_request(view: View, config: WKMConfig) -> Generate:
    """Return the question for state knowledge: the present in words that fit like states too."""
    return _knowledge_request(view, config, "state", config.state_tokens)


def _knowledge_request(
    view: View, config: WKMConfig, kind: str, tokens: int, **slots: str
) -> Generate:
    messages = ask_apart(view, config, f"wkm_{kind}", tokens, **slots)
    temperature, stop, purpose = config.knowledge_temperature, ("\n---",), f"{kind} knowledge"
    asked = ask_text(
        view, config, messages, purpose, tokens, stop, temperature=temperature, top_p=1.0
    )
    return replace(asked, adapter=config.knowledge_adapter)


@dataclass(frozen=True, kw_only=True)
class WKMConfig(AgentConfig):
    """How WKM uses knowledge.

    Example:
        >>> WKMConfig().gamma
        0.7
    """

    gamma: float = 0.7
    """Weight of the agent's own next verb against the knowledge base's (the released library's
    default; its runner passes 1.0)."""
    neighbours: int = 3000
    """Entries retrieved, k (as in the released runner)."""
    state_knowledge: Literal["lm", "belief"] = "lm"
    """Who puts a state into words: the language model (as published), or the belief facts, for
    models that cannot. The knowledge base must have been made the same way."""
    task_knowledge: bool = True
    """Whether to write task knowledge; False for models that cannot."""
    task_tokens: int = 256
    """Most tokens of the task knowledge."""
    state_tokens: int = 128
    """Most tokens of the state knowledge."""
    knowledge_temperature: float = 0.0
    """Temperature of both kinds of knowledge."""
    knowledge_adapter: str | None = None
    """Adapter of the knowledge model; None for the language model without one."""

    limits = (
        (1, math.inf, "neighbours task_tokens state_tokens"),
        (0, 1, "gamma"),
        (0, 10, "knowledge_temperature"),
    )

    def required_capabilities(self) -> frozenset[str]:
        return super().required_capabilities() | {"prefix", "words"}


class WKMAgent:
    """Knows the task from the start, and in each state what is usually done next.

    Once a task the knowledge model writes task knowledge, which stands in the agent's prompt. At
    each step it writes state knowledge, which does not: with it, like states are retrieved from a
    knowledge base. Those that followed the same verb as now say how probable each next verb is, and
    this is mixed with the agent's own probabilities of the first word of its action. The agent
    completes the action after the best verb.

    Deviations: likeness is a cosine of bags of words, not of embeddings; candidate
    verbs are those of the admissible actions, or in an open action space those that the base knows;
    a word stands for its first distinguishing token; the knowledge model is whatever model or adapter
    it is given, trained or not; masked and scored decoding choose among the admissible actions with
    that verb.

    Args:
        config: Settings; None for the defaults.
        knowledge: The knowledge base, or the file of `KnowledgeBase.save`; None for an empty one,
            which leaves the agent's own probabilities alone (as gamma = 1 does).

    Example:
        >>> len(WKMAgent().knowledge)
        0
    """

    name = "wkm"

    def __init__(
        self, config: WKMConfig | None = None, knowledge: KnowledgeBase | str | Path | None = None
    ):
        self.config = config or WKMConfig()
        if isinstance(knowledge, str | Path):
            knowledge = KnowledgeBase.load(Path(knowledge))
        self.knowledge = KnowledgeBase() if knowledge is None else knowledge

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Know the task, know the state, choose a verb, complete the action."""
        replies = replies_in(view)
        knowledge = yield from self._task_knowledge(view)
        messages = acting_prompt(view, self.config, replies, knowledge)
        verbs = self._verbs(view)
        state, lead = yield from self._state_and_thought(view, messages, bool(verbs))
        neighbours = self.knowledge.retrieve(state, self.config.neighbours)
        previous = view.history[-1].action or ""
        known = next_verbs(neighbours, previous)
        notes: dict[str, Any] = {
            "state_knowledge": state,
            "neighbours": len(neighbours),
            "known_verbs": _rounded(known),
        }
        if not verbs:
            draft = yield from draft_action(view, self.config, messages)
            replies[view.step] = draft.text
            return Decision(draft.action, notes=notes | draft.notes() | {"gamma": 1.0})
        mixed, how = yield from self._choose_verb(messages, lead, verbs, known)
        verb = max(verbs, key=lambda option: mixed[option])
        action = yield from self._complete(view, messages, lead, verb)
        replies[view.step] = f"{lead}Action: {action}"
        decoding = self.config.decoding if view.admissible_actions else "free"
        return Decision(action, notes=notes | how | {"verb": verb, "decoding": decoding})

    def _verbs(self, view: View) -> tuple[str, ...]:
        if view.admissible_actions:
            found = [verb_of(action) for action in view.admissible_actions]
        else:
            found = sorted({verb_of(entry.action) for entry in self.knowledge})
        return tuple(dict.fromkeys(verb for verb in found if verb))

    def _task_knowledge(self, view: View) -> Generator[Request, Reply, str]:
        """Return the task knowledge; written once and then remembered."""
        if not self.config.task_knowledge:
            return ""
        if "task_knowledge" not in view.memory:
            said: Completion = yield task_request(view, self.config)
            view.memory["task_knowledge"] = said.text
        knowledge: str = view.memory["task_knowledge"]
        return knowledge

    def _state_and_thought(
        self, view: View, messages: tuple[Message, ...], thinks: bool
    ) -> Generator[Request, Reply, tuple[str, str]]:
        """Return the state knowledge, and, if it is to think, what the agent says before its action."""
        config = self.config
        asked: list[Generate] = []
        if config.state_knowledge == "lm":
            asked.append(state_request(view, config))
        if thinks and config.prompts == "standard":
            stop = ("Action:", *STOP)
            asked.append(ask_text(view, config, messages, "thought", config.draft_tokens, stop))
        said: list[Completion] = (yield asked) if asked else []
        texts = [completion.text.strip() for completion in said]
        if config.state_knowledge == "lm":
            state = texts.pop(0)
        else:
            state = state_text(view.env_id, view.goal, view.history, view.facts)
        lead = texts[0] + "\n" if texts and texts[0] else ""
        return state, lead

    def _choose_verb(
        self,
        messages: tuple[Message, ...],
        lead: str,
        verbs: Sequence[str],
        known: dict[str, float],
    ) -> Generator[Request, Reply, tuple[dict[str, float], dict[str, Any]]]:
        words = tuple(f" {verb}" for verb in verbs)
        asked = NextWord(messages, words, f"{lead}Action:", self.config.adapter, "verb")
        found: WordProbabilities = yield asked
        agent = dict(zip(verbs, found.probabilities, strict=True))
        mixed = mixed_verbs(agent, known, self.config.gamma)
        useful = any(known.get(verb) for verb in verbs)
        notes = {
            "agent_verbs": _rounded(normalized(agent, verbs)),
            "mixed_verbs": _rounded(mixed),
            "gamma": self.config.gamma if useful else 1.0,
        }
        return mixed, notes

    def _complete(
        self, view: View, messages: tuple[Message, ...], lead: str, verb: str
    ) -> Generator[Request, Reply, str]:
        config = self.config
        if config.decoding != "free" and view.admissible_actions:
            actions = [text for text in view.admissible_actions if verb_of(text) == verb]
            chosen = yield from choose_action(
                view, config, messages, f"{lead}Action:", actions=actions, purpose="action"
            )
            return chosen[0]
        prefix = f"{lead}Action: {verb}"
        said: Completion = yield ask_text(
            view, config, messages, "action", config.draft_tokens, ("\n",), prefix
        )
        whole = parse_action(said.text)
        if whole is not None and verb_of(whole) == verb:
            return whole
        line = said.text.partition("\n")[0].rstrip()
        gap = " " if line[:1].isalnum() else ""
        return clean_action(f"{verb}{gap}{line}") or verb


def acting_prompt(
    view: View, config: WKMConfig, replies: Mapping[int, str] | None = None, knowledge: str = ""
) -> tuple[Message, ...]:
    r"""Return the conversation that asks for an action, with what is known of the task in it."""
    limit = min(2 * config.task_tokens, config.max_length // 4)
    text = cut_text(knowledge.strip(), limit, view.count_tokens)
    system = fill(config.prompts, "wkm_agent", knowledge=text)[-1].content if text else ""
    room = config.draft_tokens  # the action comes on top of a thought of full length
    return converse(view, config, replies, reserve=room, system=system)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}
