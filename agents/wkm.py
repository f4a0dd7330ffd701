"""WKM: an agent with a world knowledge model (Qiao et al., 2024)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from .. import jsonl
from ..envs import state_text
from ..errors import DataCorrupt, OptionError
from ..jsonl import replacing_file
from ..lm import Completion, Generate, Message, NextWord, WordProbabilities
from ..lm.encoder import Encoder, Side, TransformerEncoder, Vectors
from ..lm.prompts import cut_text
from ..lm.thoughts import without_thoughts
from ..settings import PositiveInt, Range, Share
from ..trajectory import Trajectory
from ..worldmodel import transitions_of
from .base import Decision, Reply, Request, View
from .config import AgentConfig
from .naming import meant_action
from .parsing import clean_action, parse_action
from .prompting import (
    STOP,
    ask_apart,
    ask_text,
    briefing_for,
    choose_action,
    converse,
    draft_action,
    prompt_of,
)
from .react import replies_in

_WORD = re.compile(r"\w+")
_VECTORS = ".vectors.npz"
_SAME = 0.99  # least cosine of two vectors of a text by one encoder, on whatever device


class Knowledge(NamedTuple):
    """What was known in a state, and which actions came before and after."""

    knowledge: str
    previous_action: str
    action: str


class KnowledgeBase:
    """States in words with the actions around them; it finds those most similar to a text.

    The similarity is the cosine of sentence embeddings. Without an encoder it is the cosine of bags
    of words, in which rare words weigh more (inverse document frequency).

    Args:
        entries: The first entries.
        encoder: Folder or Hub name of a sentence encoder (extra ``dense``); None for bags of words.

    Example:
        >>> base = KnowledgeBase([Knowledge("The safe is closed.", "look", "open safe 1"),
        ...                       Knowledge("A pen is on the desk.", "look", "take pen 1")])
        >>> base.retrieve("the desk has a pen", 1)[0].action
        'take pen 1'
    """

    def __init__(self, entries: Iterable[Knowledge] = (), encoder: str | None = None):
        self.encoder = encoder
        self._entries = list(entries)
        self._text_encoder: Encoder = _BagOfWords(())
        if encoder:
            self._text_encoder = TransformerEncoder(encoder, device="auto")

        # States recur often, so each distinct text is encoded once and entries refer to its row.
        self._vectors: NDArray[Any] = np.zeros((0, 0))  # of each distinct text, the oldest first
        self._rows: NDArray[np.intp] = np.zeros(0, np.intp)  # which of them each entry has

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Knowledge]:
        return iter(self._entries)

    def add(self, entry: Knowledge) -> None:
        """Add an entry."""
        self._entries.append(entry)

    def retrieve(self, knowledge: str, k: int) -> list[Knowledge]:
        """Return the `k` entries most similar to a state, best first, the older of equals first.

        Raises:
            MissingExtra, DataNotFound: The encoder cannot be loaded.
        """
        if not self._entries or k < 1:
            return []
        self._encode()
        similarity = self._vectors @ self._text_encoder.encode([knowledge], "query")[0]

        # Texts of the same words have equal vectors, yet numpy's product of a matrix may sum its rows in
        # different orders, which differ in the last digit. Rounded, nearly all are equal again (not those
        # beside an edge of the rounding), and a stable sort leaves the older one in front.
        entry_similarity = similarity.astype(np.float64).round(6)[self._rows]
        order = np.argsort(-entry_similarity, kind="stable")
        return [self._entries[index] for index in order[:k]]

    def save(self, path: Path) -> None:
        """Write the entries, one line of JSON each, and beside them the encoder's vectors."""
        vectors_file = path.with_suffix(_VECTORS)
        vectors_file.unlink(missing_ok=True)  # it may be of other entries
        jsonl.write(path, (entry._asdict() for entry in self._entries))
        self._save_vectors(vectors_file)

    @classmethod
    def load(cls, path: Path, encoder: str | None = None) -> KnowledgeBase:
        """Return the base that `save` wrote; an encoder's missing vectors are computed and written.

        Raises:
            DataNotFound, DataCorrupt: There is no such file, or it is no knowledge base.
            OptionError: The vectors are another encoder's.
            MissingExtra: The encoder needs the extra ``dense``.
        """
        expected = f"an object with the texts {', '.join(Knowledge._fields)} of a knowledge base"
        base = cls(jsonl.read(path, _entry, expected=expected), encoder)

        # With the vectors beside the entries, no text is encoded the next time.
        vectors_file = path.with_suffix(_VECTORS)
        if vectors_file.exists():
            base._load_vectors(vectors_file)
        else:
            base._save_vectors(vectors_file)
        return base

    @classmethod
    def from_trajectories(
        cls, trajectories: Iterable[Trajectory], encoder: str | None = None
    ) -> KnowledgeBase:
        """Return the knowledge of episodes: the belief in words, and the actions around it."""
        base = cls((), encoder)
        for query, _ in chain.from_iterable(map(transitions_of, trajectories)):
            text = state_text(query.env_id, query.goal, query.history, query.state)
            previous_action = query.history[-1].action or ""  # the first observation has none
            base.add(Knowledge(text, previous_action, query.action))
        return base

    def _encode(self) -> None:
        """Encode the texts that are new; with bags of words all, whose weights changed."""
        if len(self._rows) == len(self._entries):
            return

        texts = [entry.knowledge for entry in self._entries]
        row_by_text = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        self._rows = np.array([row_by_text[text] for text in texts])
        if self.encoder is None:
            self._text_encoder = _BagOfWords(texts)
            self._vectors = np.zeros((0, 0))

        # An encoder says only by encoding how wide its vectors are, also where there are none.
        old_vectors = self._vectors
        if len(old_vectors) == 0:
            old_vectors = self._text_encoder.encode([], "query")
        new_texts = list(row_by_text)[len(old_vectors) :]
        new_vectors = self._text_encoder.encode(new_texts, "query")
        self._vectors = np.concatenate([old_vectors, new_vectors])

    def _digest(self) -> str:
        """Return a digest of all texts, by which a file of vectors proves to be theirs."""
        texts = json.dumps([entry.knowledge for entry in self._entries])
        return hashlib.sha256(texts.encode("ascii")).hexdigest()

    def _save_vectors(self, file: Path) -> None:
        """Write an encoder's vectors; of bags of words nothing, as each new text changes them all."""
        if self.encoder is None or not self._entries:
            return
        self._encode()
        with replacing_file(file) as out:
            np.savez(out, encoder=self.encoder, texts=self._digest(), vectors=self._vectors)

    def _load_vectors(self, file: Path) -> None:
        """Read the vectors of a file, and check that this encoder would make the same."""
        remedy = "remove that file; it is made again where an encoder is set"
        try:
            with np.load(file) as archive:
                encoder = str(archive["encoder"])
                digest = str(archive["texts"])
                vectors = archive["vectors"]
            if digest != self._digest():
                raise ValueError("those of other texts")
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise DataCorrupt(f"expected vectors in {file}, found: {error}; {remedy}") from error

        # The same name is not enough: a folder's model may have been trained since. So the first
        # text is encoded again, and compared.
        sample = vectors[:0]
        if encoder == self.encoder:
            sample = self._text_encoder.encode([self._entries[0].knowledge], "query")
        if sample.shape != vectors[:1].shape or sample[0] @ vectors[0] < _SAME:
            raise OptionError(
                f"expected the encoder {encoder!r:.200}, as it was when it made {file}, found "
                f"{self.encoder!r:.200}; set encoder to that one, or {remedy}"
            )
        self._vectors = vectors


def _entry(record: dict[str, Any]) -> Knowledge:
    """Return the entry of a line of JSON."""
    values = [record[key] for key in Knowledge._fields]
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a value is no text")
    return Knowledge(*values)


class _BagOfWords:
    """Encodes texts as counts of the words of some texts, in which rare words weigh more."""

    name = "bag of words"

    def __init__(self, texts: Sequence[str]):
        bags = [set(_WORD.findall(text.lower())) for text in texts]
        texts_with_word = Counter(chain.from_iterable(bags))

        # Columns in the order of the words: the order of sets differs between processes, and with
        # it the last digits of sums.
        self._weights = {}
        for column, (word, count) in enumerate(sorted(texts_with_word.items())):
            rarity = math.log((1 + len(texts)) / (1 + count)) + 1
            self._weights[word] = (column, rarity)

    def encode(self, texts: Sequence[str], side: Side) -> Vectors:
        vectors = np.zeros((len(texts), len(self._weights)), np.float32)
        for row, text in enumerate(texts):
            for word in filter(self._weights.__contains__, _WORD.findall(text.lower())):
                column, weight = self._weights[word]
                vectors[row, column] += weight

        # A known word weighs 1 or more. A norm below 1 is thus 0: a text without a known word, whose
        # vector stays 0.
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(1)
        return vectors


def verb_of(action: str) -> str:
    """Return the first word of an action, in lower case: of ``search[pen]`` it is ``search``."""
    word = _WORD.search(action)
    return "" if word is None else word[0].lower()


def next_verbs(neighbours: Sequence[Knowledge], previous_action: str) -> dict[str, float]:
    """Return how the next verb is distributed among neighbours with the same verb before."""
    previous_verb = verb_of(previous_action)
    counts: Counter[str] = Counter()
    for neighbour in neighbours:
        if verb_of(neighbour.previous_action) == previous_verb:
            counts[verb_of(neighbour.action)] += 1

    total = counts.total()
    return {verb: count / total for verb, count in sorted(counts.items())}


def mixed_verbs(
    agent_verbs: dict[str, float], base_verbs: dict[str, float], gamma: float
) -> dict[str, float]:
    """Return ``gamma * P_agent + (1 - gamma) * P_know`` over the agent's verbs.

    Where one of the two says nothing of these verbs the other decides; where neither does, all are
    equal.
    """
    agent_shares = normalized(agent_verbs, agent_verbs)
    base_shares = normalized(base_verbs, agent_verbs)
    if agent_shares and base_shares:
        mixed = {}
        for verb in agent_verbs:
            mixed[verb] = gamma * agent_shares[verb] + (1 - gamma) * base_shares[verb]
        return mixed

    equal_shares = {verb: 1 / len(agent_verbs) for verb in agent_verbs}
    return base_shares or agent_shares or equal_shares


def normalized(values: dict[str, float], verbs: Iterable[str]) -> dict[str, float]:
    """Return values over some verbs with the sum 1; empty where they have none."""
    positive = dict.fromkeys(verbs, 0.0)
    for verb in positive:
        value = values.get(verb, 0.0)
        if 0 < value < math.inf:  # a model may give nan or inf: such a verb counts as impossible
            positive[verb] = value

    total = sum(positive.values())
    if total <= 0:
        return {}
    return {verb: value / total for verb, value in positive.items()}


def task_request(view: View, config: WKMConfig) -> Generate:
    """Return the question for task knowledge: what to know before the task is begun."""
    rules = briefing_for(view, config).told()
    return _knowledge_request(view, config, "task", config.task_tokens, instructions=rules)


def state_request(view: View, config: WKMConfig) -> Generate:
    """Return the question for state knowledge: the present in words that fit like states too."""
    return _knowledge_request(view, config, "state", config.state_tokens)


def _knowledge_request(
    view: View, config: WKMConfig, kind: str, tokens: int, **slots: str
) -> Generate:
    """Return a question to the knowledge model, which has an adapter of its own or none."""
    messages = ask_apart(view, config, f"wkm_{kind}", tokens, **slots)
    request = ask_text(
        view,
        config,
        messages,
        f"{kind} knowledge",
        tokens,
        temperature=config.knowledge_temperature,
        top_p=1.0,
    )
    # Not through `ask_text`, for which no adapter means that of the agent.
    return replace(request, adapter=config.knowledge_adapter)


@dataclass(frozen=True, kw_only=True)
class WKMConfig(AgentConfig):
    """How WKM uses knowledge.

    Example:
        >>> WKMConfig().gamma
        0.7
    """

    gamma: Share = 0.7
    """Weight of the agent's own next verb against the knowledge base's (the released library's
    default; its runner passes 1.0)."""
    neighbours: PositiveInt = 3000
    """Entries retrieved, k (as in the released runner)."""
    encoder: str | None = None
    """Folder or Hub name of the sentence encoder by which states are similar (extra dense); None for
    bags of words. The language model's own name is nearest to the paper (without its adapter)."""
    state_knowledge: Literal["lm", "belief"] = "lm"
    """Who puts a state into words: the language model (as published), or the belief facts, for
    models that cannot. The knowledge base must have been made the same way."""
    task_knowledge: bool = True
    """Whether to write task knowledge; False for models that cannot."""
    task_tokens: PositiveInt = 256
    """Most tokens of the task knowledge."""
    state_tokens: PositiveInt = 128
    """Most tokens of the state knowledge."""
    knowledge_temperature: Annotated[float, Range(0, 10)] = 0.0
    """Temperature of both kinds of knowledge."""
    knowledge_adapter: str | None = None
    """Adapter of the knowledge model; None for the language model without one."""

    def required_capabilities(self) -> frozenset[str]:
        return super().required_capabilities() | {"prefix", "words"}


class WKMAgent:
    """Knows the task from the start, and in each state what is usually done next.

    Once a task the knowledge model writes task knowledge, which stands in the agent's prompt. At
    each step it writes state knowledge, which does not: with it, like states are retrieved from a
    knowledge base. Those that followed the same verb as now say how probable each next verb is, and
    this is mixed with the agent's own probabilities of the first word of its action. The agent
    completes the action after the best verb.

    Deviations: the encoder is a model of its own (E5 in the preset ``paper``) or there is none. The
    paper's is the knowledge model: the mean of its last hidden states (github.com/zjunlp/WKM, issues 7
    and 11, and its FastChat server). Candidate verbs are those of the admissible actions, or in an
    open action space those that the base knows; a word stands for its first distinguishing token; the
    knowledge model is whatever model or adapter it is given, trained or not; masked and scored
    decoding choose among the admissible actions with that verb.

    Args:
        config: Settings; None for the defaults.
        knowledge: The knowledge base, or the file of `KnowledgeBase.save`; None for an empty one,
            which leaves the agent's own probabilities alone (as gamma = 1 does).

    Raises:
        OptionError: The knowledge base has another encoder than `config`.

    Example:
        >>> len(WKMAgent().knowledge)
        0
    """

    name = "wkm"
    asks_world_model = False

    def __init__(
        self, config: WKMConfig | None = None, knowledge: KnowledgeBase | str | Path | None = None
    ):
        self.config = config or WKMConfig()
        encoder = self.config.encoder
        if isinstance(knowledge, str | Path):
            knowledge = KnowledgeBase.load(Path(knowledge), encoder)
        self.knowledge = KnowledgeBase((), encoder) if knowledge is None else knowledge
        if self.knowledge.encoder != encoder:
            raise OptionError(
                f"expected a knowledge base of the encoder {encoder!r:.200}, found one of "
                f"{self.knowledge.encoder!r:.200}; give agent and base the same"
            )

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Know the task, know the state, choose a verb, complete the action."""
        replies = replies_in(view)
        knowledge = yield from self._task_knowledge(view)
        messages = acting_prompt(view, self.config, replies, knowledge)
        verbs = self._verbs(view)

        # State knowledge goes to the knowledge base alone, never into the agent's prompt, as
        # published.
        state, lead = yield from self._state_and_thought(view, messages, bool(verbs))
        neighbours = self.knowledge.retrieve(state, self.config.neighbours)
        base_verbs = next_verbs(neighbours, view.history[-1].action or "")
        notes: dict[str, Any] = {
            "state_knowledge": state,
            "neighbours": len(neighbours),
            "known_verbs": _rounded(base_verbs),
        }
        if not verbs:  # an open action space and an empty base: the agent alone decides
            draft = yield from draft_action(view, self.config, messages)
            replies[view.step] = draft.shown
            return Decision(draft.action, notes=notes | draft.notes() | {"gamma": 1.0})

        mixed, verb_notes = yield from self._choose_verb(messages, lead, verbs, base_verbs)
        verb = max(verbs, key=lambda option: mixed[option])
        action = yield from self._complete(view, messages, lead, verb)
        replies[view.step] = f"{lead}Action: {action}"
        decoding = self.config.decoding if view.admissible_actions else "free"
        return Decision(action, notes=notes | verb_notes | {"verb": verb, "decoding": decoding})

    def _verbs(self, view: View) -> tuple[str, ...]:
        """Return the verbs that an action may begin with, each once, in an order that never varies."""
        if view.admissible_actions:
            verbs = [verb_of(action) for action in view.admissible_actions]
        else:
            verbs = sorted({verb_of(entry.action) for entry in self.knowledge})
        return tuple(dict.fromkeys(verb for verb in verbs if verb))

    def _task_knowledge(self, view: View) -> Generator[Request, Reply, str]:
        """Return the task knowledge; written once and then remembered."""
        if not self.config.task_knowledge:
            return ""
        if "task_knowledge" not in view.memory:
            reply: Completion = yield task_request(view, self.config)
            view.memory["task_knowledge"] = without_thoughts(reply.text)
        return str(view.memory["task_knowledge"])

    def _state_and_thought(
        self, view: View, messages: tuple[Message, ...], thinks: bool
    ) -> Generator[Request, Reply, tuple[str, str]]:
        """Return the state knowledge, and, if it is to think, what the agent says before its action."""
        config = self.config

        # Neither text needs the other, so both are asked for in one batch.
        requests: list[Generate] = []
        if config.state_knowledge == "lm":
            requests.append(state_request(view, config))
        if thinks and config.prompts == "standard":
            stop = ("Action:", *STOP)
            requests.append(ask_text(view, config, messages, "thought", config.draft_tokens, stop))
        replies: list[Completion] = []
        if requests:
            replies = yield requests

        texts = [without_thoughts(reply.text).strip() for reply in replies]
        if config.state_knowledge == "lm":
            state = texts.pop(0)
        else:
            state = state_text(view.env_id, view.goal, view.history, view.facts)
        lead = f"{texts[0]}\n" if texts and texts[0] else ""
        return state, lead

    def _choose_verb(
        self,
        messages: tuple[Message, ...],
        lead: str,
        verbs: Sequence[str],
        base_verbs: dict[str, float],
    ) -> Generator[Request, Reply, tuple[dict[str, float], dict[str, Any]]]:
        """Return how probable each verb is to agent and knowledge base together, and notes on it."""
        request = NextWord(
            messages,
            tuple(f" {verb}" for verb in verbs),
            f"{lead}Action:",
            self.config.adapter,
            "verb",
            self.config.asks_to_think,
        )
        reply: WordProbabilities = yield request
        agent_verbs = dict(zip(verbs, reply.probabilities, strict=True))
        mixed = mixed_verbs(agent_verbs, base_verbs, self.config.gamma)

        # Where the base says nothing of these verbs the agent decided alone: that is gamma = 1.
        base_counts = any(base_verbs.get(verb) for verb in verbs)
        return mixed, {
            "agent_verbs": _rounded(normalized(agent_verbs, verbs)),
            "mixed_verbs": _rounded(mixed),
            "gamma": self.config.gamma if base_counts else 1.0,
        }

    def _complete(
        self, view: View, messages: tuple[Message, ...], lead: str, verb: str
    ) -> Generator[Request, Reply, str]:
        """Return the action that the agent makes of a verb."""
        config = self.config
        if config.decoding != "free" and view.admissible_actions:
            actions = [text for text in view.admissible_actions if verb_of(text) == verb]
            action, _ = yield from choose_action(
                view, config, messages, f"{lead}Action:", actions=actions, purpose="action"
            )
            return action

        prefix = f"{lead}Action: {verb}"
        reply: Completion = yield ask_text(
            view, config, messages, "action", config.draft_tokens, ("\n",), prefix
        )

        # A model may go on after the verb, or begin its reply anew with a label and the verb. Where
        # it goes on without the blank after the verb, that is put back.
        written_action = parse_action(reply.text)
        if written_action is None or verb_of(written_action) != verb:
            line = reply.text.partition("\n")[0].rstrip()
            gap = " " if line[:1].isalnum() else ""
            written_action = clean_action(f"{verb}{gap}{line}") or verb
        listed = meant_action(written_action, view.admissible_actions or ())
        return written_action if listed is None else listed.action


def acting_prompt(
    view: View, config: WKMConfig, replies: Mapping[int, str] | None = None, knowledge: str = ""
) -> tuple[Message, ...]:
    r"""Return the conversation that asks for an action, with what is known of the task in it."""
    # Both limits are ours. The knowledge was written with `task_tokens`. A model on a server counts a
    # token for every three bytes, which is more than most texts have: hence twice as many.
    limit = min(2 * config.task_tokens, config.max_length // 4)
    text = cut_text(knowledge.strip(), limit, view.count_tokens)
    system = ""
    if text:
        system = prompt_of(config, "wkm_agent", knowledge=text)[-1].content

    # The action comes on top of a thought of full length.
    return converse(view, config, replies, reserve=config.draft_tokens, system=system)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}
