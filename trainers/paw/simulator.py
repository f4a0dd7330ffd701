"""A language model that plays a search engine, as in ZeroSearch (METHODS.md 3); for training only.

It is told the question and the right answers, and whether its documents shall be useful or noisy. So
what it writes may give the answer away: evaluation asks a real index.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...envs.searchqa.answers import contains_answer
from ...envs.searchqa.retriever import LONGEST_TEXT, LONGEST_TITLE, Hit
from ...errors import EngineError, OptionError
from ...lm import Completion, Generate, Message, Sampling
from ...lm.prompts import fill_template

__all__ = ["PURPOSE", "WORDS", "SimulatedSearch", "Simulator", "read_documents", "write_documents"]

PURPOSE = "simulate"
"""What a simulator's language model is asked for, in records."""

WORDS = 30
"""Words of a document, about (ZeroSearch)."""

_GOLDEN = 3  # right answers that the simulator is told
_LONGEST = 1_000  # characters of anything that it is told
_DOCUMENT = re.compile(r"[ \t]*Doc(?:ument)?[ \t]*\d{1,3}[ \t]*(.*)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=\.) ")
_TITLED = re.compile(
    r"\([ \t]*Title:[ \t]*\"?(.*?)\"?[ \t]*\)[ \t:.]*(.*)", re.DOTALL | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SimulatedSearch:
    """A search that the simulator shall answer.

    Attributes:
        question: The question of the episode.
        golden: The right answers to it.
        query: What is searched for.
        noisy: Whether the documents shall be noisy.
        count: How many documents.
        draw: What tells this search from others that are alike: the documents are sampled by it.

    Example:
        >>> SimulatedSearch("Who wrote Emma?", ("Jane Austen",), "Emma author", False, 3).draw
        ''
    """

    question: str
    golden: tuple[str, ...]
    query: str
    noisy: bool
    count: int
    draw: str = ""

    def prompt(self) -> tuple[Message, ...]:
        """Return what the language model is asked."""
        return fill_template(
            (__package__ or "").rpartition(".")[0],
            "simulator",
            "noisy" if self.noisy else "useful",
            question=_line(self.question),
            answer="; ".join(map(_line, self.golden[:_GOLDEN])),
            query=_line(self.query),
            count=str(self.count),
            words=str(WORDS),
        )


class Simulator:
    """Asks a language model for the documents of searches, and reads them.

    Args:
        temperature: Of what it writes.
        tokens: The most tokens of all documents of a search.

    Raises:
        OptionError: A number is out of range.

    Example:
        >>> search = SimulatedSearch("Who wrote Emma?", ("Jane Austen",), "Emma author", False, 3)
        >>> Simulator().request(search).purpose
        'simulate'
    """

    def __init__(self, temperature: float = 0.8, tokens: int = 512):
        if temperature < 0 or tokens < 1:
            raise OptionError(
                "expected a temperature from 0 and at least 1 token, found "
                f"{temperature!r} and {tokens!r}"
            )
        self._temperature, self._tokens = temperature, tokens

    def request(self, search: SimulatedSearch) -> Generate:
        """Return the request for the documents of a search; the same search asks the same."""
        seed = hashlib.sha256(f"simulate\n{search.draw}".encode("utf-8", "replace")).digest()
        sampling = Sampling(
            max_new_tokens=self._tokens,
            temperature=self._temperature,
            seed=int.from_bytes(seed[:4], "big") >> 1 if self._temperature else 0,
        )
        return Generate(search.prompt(), sampling, purpose=PURPOSE)

    def hits(self, search: SimulatedSearch, said: Completion) -> list[Hit]:
        """Return the documents that a reply has, as many as were asked for at most.

        Args:
            search: What was asked.
            said: The reply.

        Raises:
            EngineError: It has no text.
        """
        found = read_documents(said.text)
        if not found:
            raise EngineError(
                f"expected documents from the simulator for {search.query!r:.80}, found an empty "
                "text; use another model as --simulator"
            )
        return found[: search.count]


def read_documents(text: str) -> list[Hit]:
    r"""Return the documents in what a simulator wrote.

    A line that begins like ``Doc 2`` begins one, with a title or without; other lines go on with the
    one before them. Text without such lines is one document. What a document says is data: whatever in
    it is written like a tag is broken up where it is shown (`comap.envs.searchqa.protocol`).

    Args:
        text: What a language model wrote.

    Example:
        >>> [hit.title for hit in read_documents('Doc 1(Title: "Emma") A novel.\nDoc 2: A town.')]
        ['Emma', '']
        >>> read_documents(" ")
        []
    """
    parts: list[list[str]] = []
    for line in text.splitlines():
        begins = _DOCUMENT.match(line)
        if begins is not None:
            parts.append([begins[1]])
        elif line.strip():
            if not parts:
                parts.append([])
            parts[-1].append(line.strip())
    found = []
    for rank, lines in enumerate(parts, 1):
        title, body = _titled(" ".join(lines).strip())
        if title or body:
            found.append(Hit(f"simulated-{rank}", title, body, 1 / rank))
    return found


def write_documents(hits: Sequence[Hit], answers: Sequence[str] = ()) -> str:
    """Return documents as a simulator shall write them: what a small one is taught.

    Each has about `WORDS` words: sentences that have an answer, if there are any, and the first ones.

    Args:
        hits: The documents.
        answers: What readers are looking for.

    Example:
        >>> novel = Hit("7", "Emma", "Emma is a novel.", 1.0)
        >>> write_documents([novel])
        'Doc 1(Title: "Emma") Emma is a novel.'
    """
    return "\n".join(
        f'Doc {number}(Title: "{_line(hit.title)}") {_shortened(hit.text, answers)}'
        for number, hit in enumerate(hits, 1)
    )


def _shortened(text: str, answers: Sequence[str]) -> str:
    """Return sentences of a text in their order, those with an answer before all others."""
    sentences = _SENTENCE.split(" ".join(text.split()))
    places = range(len(sentences))
    kept, size = list[int](), 0
    for place in sorted(places, key=lambda n: (not contains_answer(sentences[n], answers), n)):
        length = len(sentences[place].split())
        if kept and size + length > WORDS:
            break
        kept.append(place)
        size += length
    whole = " ".join(sentences[place] for place in sorted(kept))
    return " ".join(whole.split()[: 2 * WORDS])


def _titled(text: str) -> tuple[str, str]:
    """Return title and text of a document."""
    match = _TITLED.match(text)
    if match is None:
        return "", text.lstrip(":. \t")[:LONGEST_TEXT]
    return match[1].strip()[:LONGEST_TITLE], match[2].strip()[:LONGEST_TEXT]


def _line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text[:_LONGEST].split())
