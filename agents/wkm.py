"""WKM: an agent with a world knowledge model (Qiao et al., 2024)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..envs import state_text
from ..lm import Completion, Generate, Message, WordProbabilities, Words
from ..lm.prompts import cut_text
from .acting import STOP, choose_action, draft_action, seed_for
from .base import Decision, Reply, Request, View
from .checks import require_whole
from .config import AgentConfig
from .knowing import state_request, task_request
from .knowledge import KnowledgeBase
from .parsing import clean_action, parse_action
from .prompting import converse, fill
from .ranges import require_between
from .react import replies_in
from .verbs import mixed_verbs, next_verbs, normalized, verb_of

__all__ = ["WKMAgent", "WKMConfig", "acting_prompt"]


@dataclass(frozen=True, kw_only=True)
class WKMConfig(AgentConfig):
    """How WKM uses knowledge.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> WKMConfig().gamma
        0.7
    """

    gamma: float = 0.7
    """Weight of the agent's own next verb against the knowledge base's (METHODS.md 3: the library's
    default; the released runner passes 1.0)."""
    neighbours: int = 3000
    """Entries retrieved, k (METHODS.md 3: the released runner)."""
    state_knowledge: Literal["lm", "belief"] = "lm"
    """Who puts a state into words: the language model (as published), or the belief facts, for
    models that cannot [D]. The knowledge base must have been made the same way."""
    task_knowledge: bool = True
    """Whether to write task knowledge; False for models that cannot [D]."""
    task_tokens: int = 256
    """Most tokens of the task knowledge [D]."""
    state_tokens: int = 128
    """Most tokens of the state knowledge [D]."""
    knowledge_temperature: float = 0.0
    """Temperature of both kinds of knowledge [D]."""
    knowledge_adapter: str | None = None
    """Adapter of the knowledge model; None for the language model without one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(self, 1, "neighbours", "task_tokens", "state_tokens")
        require_between(self, 0, 1, "gamma")
        require_between(self, 0, 10, "knowledge_temperature")

    def needs(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` a language model must have for these settings."""
        return super().needs() | {"prefix", "words"}


class WKMAgent:
    """Knows the task from the start, and in each state what is usually done next.

    Once a task the knowledge model writes task knowledge, which stands in the agent's prompt. At
    each step it writes state knowledge, which does not: with it, like states are retrieved from a
    knowledge base. Those that followed the same verb as now say how probable each next verb is, and
    this is mixed with the agent's own probabilities of the first word of its action. The agent
    completes the action after the best verb.

    Deviations from METHODS.md 3: likeness is a cosine of bags of words, not of embeddings; candidate
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
        self,
        config: WKMConfig | None = None,
        knowledge: KnowledgeBase | str | Path | None = None,
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
        mixed, told = yield from self._choose_verb(messages, lead, verbs, known)
        verb = max(verbs, key=lambda option: mixed[option])
        action = yield from self._complete(view, messages, lead, verb)
        replies[view.step] = f"{lead}Action: {action}"
        return Decision(action, notes=notes | told | {"verb": verb, "decoding": self._kind(view)})

    def _kind(self, view: View) -> str:
        return self.config.decoding if view.admissible_actions else "free"

    def _verbs(self, view: View) -> tuple[str, ...]:
        """Return the verbs to choose from, in a fixed order."""
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
            seed = seed_for(config, view, "thought")
            sampling = config.sampling(config.draft_tokens, ("Action:", *STOP), seed)
            asked.append(Generate(messages, sampling, adapter=config.adapter, purpose="thought"))
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
        """Return the mixed probabilities of the verbs, and what the notes say of them."""
        words = tuple(f" {verb}" for verb in verbs)
        asked = Words(messages, words, f"{lead}Action:", self.config.adapter, "verb")
        found: WordProbabilities = yield asked
        agent = dict(zip(verbs, found.probabilities, strict=True))
        mixed = mixed_verbs(agent, known, self.config.gamma)
        useful = any(known.get(verb) for verb in verbs)
        told = {
            "agent_verbs": _rounded(normalized(agent, verbs)),
            "mixed_verbs": _rounded(mixed),
            "gamma": self.config.gamma if useful else 1.0,
        }
        return mixed, told

    def _complete(
        self, view: View, messages: tuple[Message, ...], lead: str, verb: str
    ) -> Generator[Request, Reply, str]:
        """Return an action that starts with a verb."""
        config = self.config
        if config.decoding != "free" and view.admissible_actions:
            actions = [text for text in view.admissible_actions if verb_of(text) == verb]
            chosen = yield from choose_action(
                view, config, messages, f"{lead}Action:", actions=actions, purpose="action"
            )
            return chosen[0]
        sampling = config.sampling(config.draft_tokens, ("\n",), seed_for(config, view, "action"))
        prefix = f"{lead}Action: {verb}"
        asked = Generate(messages, sampling, prefix, adapter=config.adapter, purpose="action")
        said: Completion = yield asked
        return _completed(verb, said.text)


def acting_prompt(
    view: View, config: WKMConfig, replies: Mapping[int, str] | None = None, knowledge: str = ""
) -> tuple[Message, ...]:
    r"""Return the conversation that asks for an action, with what is known of the task in it.

    Training makes its prompts by this too.

    Args:
        view: What the agent sees.
        config: How it asks.
        replies: What it wrote at each step.
        knowledge: Task knowledge, cut where it is long; empty for none.

    Example:
        >>> from comap.facts import State
        >>> from comap.trajectory import Turn
        >>> view = View("id", "task", "Wait.", (Turn(None, "Hm."),), State(), None, 0, lambda: None)
        >>> acting_prompt(view, WKMConfig(prompts="brief"), knowledge="Patience.")[-1].content
        'known: Patience.\nHm.\nWait.'
    """
    limit = min(2 * config.task_tokens, config.max_length // 4)
    told = cut_text(knowledge.strip(), limit, view.count_tokens)
    system = fill(config.prompts, "wkm_agent", knowledge=told)[-1].content if told else ""
    room = config.draft_tokens  # the action comes on top of a thought of full length
    return converse(view, config, replies, reserve=room, system=system)


def _completed(verb: str, text: str) -> str:
    """Return the action that begins with a verb and goes on with a text.

    Servers that cannot continue a reply may tell the whole action, or take off the blank.
    """
    whole = parse_action(text)
    if whole is not None and verb_of(whole) == verb:
        return whole
    line = text.partition("\n")[0].rstrip()
    gap = " " if line[:1].isalnum() else ""
    return clean_action(f"{verb}{gap}{line}") or verb


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}
