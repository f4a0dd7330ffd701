"""A language model that plays the search engine: its prompts, its documents, and how a small one learns."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....envs.panel import evenly
from ....envs.searchqa import SearchQAEnv
from ....envs.searchqa.protocol import contains_answer
from ....envs.searchqa.questions import Question
from ....envs.searchqa.retriever import LONGEST_TEXT, LONGEST_TITLE, Hit, check_queries
from ....errors import EngineError
from ....lm import Generate, LanguageModel, Message, Sampling
from ....lm.create import create_language_model
from ....lm.prompts import fill_template
from ....lm.tiny import Row, build_tiny
from ...processes import is_first, wait
from ...stages import MakeEnv, Tell
from ..config import PaWTraining, ZeroSearch
from ..warmup import warm_up

PURPOSE = "simulate"
"""What a simulator's language model is asked for, in records."""

WORDS = 30
"""Words of a document, about (ZeroSearch)."""

_PROMPTS = (__package__ or "").removesuffix(".paw.search")  # the package that has them
_GOLDEN = 3  # correct answers in the simulator's prompt
_MAX_LENGTH = 1_000  # characters of anything in it
_DOCUMENT = re.compile(r"[ \t]*Doc(?:ument)?[ \t]*\d{1,3}[ \t]*(.*)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=\.) ")
_TITLED = re.compile(r"\([ \t]*Title:([^)]*)\)[ \t:.]*(.*)", re.DOTALL | re.IGNORECASE)
_QUESTIONS = 400  # that lessons are made of
_TRIES = 20  # other questions whose passages may serve as noise
_SIZE: dict[str, Any] = {"parameters": 500_000, "vocabulary": 2048}


@dataclass(frozen=True, slots=True)
class SimulatedSearch:
    """A search that the simulator should answer."""

    question: str
    golden: tuple[str, ...]
    query: str
    noisy: bool
    count: int
    draw: str = ""

    def prompt(self) -> tuple[Message, ...]:
        """Return the messages that ask for useful or for noisy documents."""
        return fill_template(
            _PROMPTS,
            "simulator",
            "noisy" if self.noisy else "useful",
            question=_line(self.question),
            answer="; ".join(map(_line, self.golden[:_GOLDEN])),
            query=_line(self.query),
            count=str(self.count),
            words=str(WORDS),
        )

    def request(self, settings: ZeroSearch) -> Generate:
        """Return the request for the documents; the same search makes the same request."""
        digest = hashlib.sha256(f"simulate\n{self.draw}".encode("utf-8", "replace")).digest()
        temperature = settings.simulator_temperature
        sampling = Sampling(
            max_new_tokens=settings.simulator_tokens,
            temperature=temperature,
            seed=int.from_bytes(digest[:4], "big") >> 1 if temperature else 0,
        )
        return Generate(self.prompt(), sampling, purpose=PURPOSE)

    def hits(self, reply: str) -> list[Hit]:
        """Return the documents that a reply has, as many as were asked for at most."""
        documents = read_documents(reply)
        if not documents:
            raise EngineError(
                f"expected documents from the simulator for {self.query!r:.80}, found an empty text; "
                "use another model as --simulator"
            )
        return documents[: self.count]


def read_documents(text: str) -> list[Hit]:
    """Return the documents of a simulator's reply; text before the first is one too."""
    lines_of_documents: list[list[str]] = []
    for line in text.splitlines():
        heading = _DOCUMENT.match(line)
        if heading is not None:
            lines_of_documents.append([heading[1]])
        elif line.strip():
            if not lines_of_documents:
                lines_of_documents.append([])
            lines_of_documents[-1].append(line.strip())

    documents = []
    for rank, lines in enumerate(lines_of_documents, 1):
        whole = " ".join(lines).strip()
        titled = _TITLED.match(whole)
        if titled is None:
            title = ""
            body = whole.lstrip(":. \t")
        else:
            title = titled[1].strip().removeprefix('"').removesuffix('"').strip()
            body = titled[2].strip()

        title = title[:LONGEST_TITLE]
        body = body[:LONGEST_TEXT]
        if title or body:
            documents.append(Hit(f"simulated-{rank}", title, body, 1 / rank))
    return documents


def write_documents(hits: Sequence[Hit], answers: Sequence[str] = ()) -> str:
    """Return documents as a simulator should write them: what a small one is taught."""
    return "\n".join(
        f'Doc {number}(Title: "{_line(hit.title)}") {_shortened(hit.text, answers)}'
        for number, hit in enumerate(hits, 1)
    )


def _shortened(text: str, answers: Sequence[str]) -> str:
    """Return sentences of a text in their order, those with an answer before all others."""
    sentences = _SENTENCE.split(" ".join(text.split()))
    has_answer = [contains_answer(sentence, answers) for sentence in sentences]
    by_use = sorted(range(len(sentences)), key=lambda index: (not has_answer[index], index))

    # So many sentences as have about `WORDS` words, but one at least.
    kept_indices: list[int] = []
    size = 0
    for index in by_use:
        length = len(sentences[index].split())
        if kept_indices and size + length > WORDS:
            break
        kept_indices.append(index)
        size += length

    whole = " ".join(sentences[index] for index in sorted(kept_indices))
    return " ".join(whole.split()[: 2 * WORDS])


def _line(text: str) -> str:
    return " ".join(text[:_MAX_LENGTH].split())


class SimulatedEngine:
    """A retriever that returns what was written for the search that comes next."""

    def __init__(self, name: str):
        self.identity = f"simulated:{name}"
        self._next: tuple[str, list[Hit]] | None = None

    def prepare(self, query: str, hits: Sequence[Hit]) -> None:
        """Store the documents for the search that follows at once."""
        self._next = query, list(hits)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return the documents that were prepared, at most `k`, once."""
        check_queries(queries, k)
        prepared = self._next
        self._next = None
        if prepared is None or [prepared[0]] != list(queries):
            raise EngineError(
                "expected a search for which the simulator has written documents, found "
                f"{queries!r:.120}"
            )
        return [prepared[1][:k]]


def open_simulator(
    simulator: str | LanguageModel | None,
    config: PaWTraining,
    make_env: MakeEnv,
    out: Path,
    tell: Tell,
) -> LanguageModel | None:
    """Return the model that plays the search engine, if any; ``tiny`` is built and taught here."""
    if simulator is None or not isinstance(simulator, str):
        return simulator
    if simulator != "tiny":
        return create_language_model(simulator)
    target = out / "simulator"
    if is_first() and not target.is_dir():
        _teach_simulator(target, make_env, config, tell)
    wait()
    return create_language_model(str(target), name="tiny simulator")


def _teach_simulator(target: Path, make_env: MakeEnv, config: PaWTraining, tell: Tell) -> None:
    """Build a tiny simulator and teach it, into a folder, whole or not at all."""
    with closing(make_env(config.train_split)) as env:
        rows = list(lessons(env.unwrapped, config.seed))  # type: ignore[arg-type]

    texts = []
    for row in rows:
        texts += [row.messages[0].content, row.answer]
    base = target.with_name(f"{target.name}.new")
    shutil.rmtree(base, ignore_errors=True)
    build_tiny(base, texts, seed=config.seed, dtype="float32", **_SIZE)

    tokens = config.zerosearch.simulator_warmup_tokens
    warm_up(base, target, rows, tokens, config, "simulator", tell)
    shutil.rmtree(base)


def lessons(env: SearchQAEnv, seed: int) -> Iterator[Row]:
    """Yield what a simulator learns: useful and useless documents for the queries of questions."""
    retriever = env.retriever
    count = int(env.settings()["topk"])
    questions = _some_questions(env)
    queries: list[str] = []
    for question in questions:
        queries += queries_of(question)
    generator = random.Random(f"{seed}\nsimulator")

    def useless(question: Question, useful_hits: Sequence[Hit]) -> list[Hit]:
        """Return passages found for another question; none where all tries are of use."""
        useful_ids = {hit.id for hit in useful_hits}
        for _ in range(_TRIES):
            (hits,) = retriever.search([queries[generator.randrange(len(queries))]], count)
            if hits and not any(
                hit.id in useful_ids or contains_answer(f"{hit.title} {hit.text}", question.golden)
                for hit in hits
            ):
                return hits
        return []

    for question in questions:
        for query, answers in queries_of(question).items():
            (useful_hits,) = retriever.search([query], count)
            useless_hits = useless(question, useful_hits)
            if not useless_hits:
                continue  # useful documents are taught together with useless ones, or not at all
            for hits, noisy in ((useful_hits, False), (useless_hits, True)):
                if hits:
                    search = SimulatedSearch(question.text, question.golden, query, noisy, count)
                    yield Row(search.prompt(), write_documents(hits, answers))


def _some_questions(env: SearchQAEnv) -> list[Question]:
    """Return questions from all over the tasks."""
    questions = []
    for task in evenly(env.tasks.ids, min(_QUESTIONS, len(env.tasks.ids))):
        env.reset(options={"task": task})
        questions.append(env.wanted)
    return questions


def queries_of(question: Question) -> dict[str, tuple[str, ...]]:
    """Return the queries for a question, and the answers that each should find."""
    hops: dict[str, tuple[str, ...]] = {hop.question: (hop.answer,) for hop in question.hops}
    return hops or {question.text: question.golden}
