"""The generated encyclopedia, questions about it, its index, and experts that answer them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...trajectory import Turn
from ..generated import Draws, kept_folder
from ..storage import packaged
from .canonicalizer import names_in
from .index import build_index, read_manifest
from .protocol import (
    ActionForm,
    Shown,
    normalize_answer,
    read_move,
    read_results,
    written_answer,
    written_search,
)
from .questions import Hop, Question
from .retriever import contents_of

_PLAIN = ("year", "occupation", "language", "length", "product")
_FILLERS = 2
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\ba (?=[aeiou])")


def lexicon() -> Any:
    """Return the words, names, relations and sentences that encyclopedias are made of."""
    return packaged(__package__, "encyclopedia")


@dataclass(frozen=True, slots=True)
class Article:
    """An article."""

    title: str
    kind: str
    facts: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Encyclopedia:
    """The articles of a seed."""

    seed: int
    articles: Mapping[str, Article]

    def __len__(self) -> int:
        return len(self.articles)

    def of_kind(self, kind: str) -> list[Article]:
        return [article for article in self.articles.values() if article.kind == kind]


@lru_cache(maxsize=2)
def generate_encyclopedia(seed: int = 0, size: float = 1.0) -> Encyclopedia:
    words = lexicon()
    titles = {
        kind: list(_titles(kind, max(4, int(size * about["number"])), seed))
        for kind, about in words["kinds"].items()
    }
    articles = {}
    for kind, names in titles.items():
        for title in names:
            draws = Draws("searchqa", seed, kind, title)
            facts = {
                name: _object(relation["to"], title, titles, draws)
                for name, relation in words["relations"].items()
                if relation["of"] == kind
            }
            articles[title] = Article(title, kind, facts, _text(kind, title, facts, titles, draws))
    return Encyclopedia(seed, articles)


def _titles(kind: str, number: int, seed: int) -> Iterator[str]:
    draws, seen = Draws("searchqa", seed, "titles", kind), set[str]()
    words = lexicon()

    def name(slot: re.Match[str]) -> str:
        return "".join(draws.pick(part) for part in words["names"][slot[1]].values())

    while len(seen) < number:
        title = _SLOT.sub(name, words["kinds"][kind]["title"])
        if title not in seen:
            seen.add(title)
            yield title


def _object(to: str, title: str, titles: Mapping[str, list[str]], draws: Draws) -> str:
    """Return what a relation leads to: a thing other than its own, or a word or number."""
    if to == "year":
        return str(draws.integer(1702, 1989))
    if to == "length":
        return str(draws.integer(31, 890))
    if to in _PLAIN:
        word: str = draws.pick(lexicon()["words"][to])
        return word
    while (other := draws.pick(titles[to])) == title:
        pass
    return other


def _text(
    kind: str, title: str, facts: Mapping[str, str], titles: Mapping[str, list[str]], draws: Draws
) -> str:
    """Return the article: an opening, a sentence for each fact, and some that tell nothing."""
    words = lexicon()
    form = draws.pick(words["words"]["form"])
    opening = draws.pick(words["kinds"][kind]["opening"]).format(s=title, form=form, **facts)
    relations = words["relations"]
    said = [
        draws.pick(relations[name]["sentences"]).format(s=title, o=value)
        for name, value in facts.items()
    ]
    for filler in draws.some(words["fillers"][kind], _FILLERS):
        said.append(
            filler.format(town=draws.pick(titles["town"]), person=draws.pick(titles["person"]))
        )
    return _ARTICLE.sub("an ", " ".join([opening, *draws.shuffled(said)]))


_MOST_HOPS = 3
_OF_EACH = 1_000  # questions of each number of hops
_BEGINNINGS = ("work", "company", "person", "town")


@lru_cache(maxsize=1)
def chains() -> dict[int, list[tuple[str, ...]]]:
    """Return the chains of relations that questions ask for, by their number of hops."""
    relations = lexicon()["relations"]
    found: dict[int, list[tuple[str, ...]]] = {
        1: [(name,) for name, about in relations.items() if about["of"] in _BEGINNINGS]
    }
    for hops in range(2, _MOST_HOPS + 1):
        found[hops] = [
            (*chain, name)
            for chain in found[hops - 1]
            for name, about in relations.items()
            if about["of"] == relations[chain[-1]]["to"] and name not in chain
        ]
    return found


def generate_questions(book: Encyclopedia) -> Iterator[Question]:
    """Yield the questions about an encyclopedia, a third of them with each number of hops."""
    relations = lexicon()["relations"]
    for hops, known in chains().items():
        asked = set[str]()
        draws = Draws("searchqa", book.seed, "questions", hops)
        wanted, tries = min(_OF_EACH, 4 * len(book)), 0
        while len(asked) < wanted and tries < 20 * wanted:
            tries += 1
            chain = draws.pick(known)
            start = draws.pick(book.of_kind(relations[chain[0]]["of"]))
            question = _question(book, chain, start.title, f"{hops}hop/{len(asked)}", draws)
            if question is not None and question.text not in asked:
                asked.add(question.text)
                yield question


def _question(
    book: Encyclopedia, chain: Sequence[str], start: str, name: str, draws: Draws
) -> Question | None:
    """Return the question along a chain; None where it comes by a thing twice."""
    relations = lexicon()["relations"]
    steps, things = list[Hop](), [start]
    for relation in chain:
        here = things[-1]
        answer = book.articles[here].facts[relation]
        wording = draws.pick(relations[relation]["questions"])
        steps.append(Hop(wording.format(s=here), here, answer))
        things.append(answer)
    if len(set(things)) < len(things):
        return None
    subject = start
    for relation in chain[:-1]:
        subject = relations[relation]["phrase"].format(s=subject)
    text = draws.pick(relations[chain[-1]]["questions"]).format(s=subject)
    golden = [things[-1]]
    if things[-1].startswith("River "):
        golden.append(things[-1].removeprefix("River "))
    luck = Draws("searchqa", "split", start).share()
    split = "train" if luck < 0.8 else "dev" if luck < 0.9 else "test"
    titles = tuple(step.title for step in steps)
    return Question(name, text, tuple(golden), split, titles, tuple(steps))


@lru_cache(maxsize=4096)
def unravel(question: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the thing that a generated question begins with, and its relations in the order of hops."""
    peeled = _peel(question, "questions")
    chain: tuple[str, ...] = ()
    while peeled is not None:
        question, chain = peeled[0], (peeled[1], *chain)
        peeled = _peel(question, "phrase")
    return (question, chain) if chain else None


def told_by(text: str, title: str, relation: str) -> str | None:
    """Return what an article says that a relation leads to; None where it does not say."""
    for sentence in lexicon()["relations"][relation]["sentences"]:
        pattern = re.escape(sentence).replace(r"\{s\}", re.escape(title))
        pattern = pattern.replace(r"\ a\ \{o\}", r"\ an?\ \{o\}").replace(r"\{o\}", r"([^.,]+?)")
        if found := re.search(rf"(?:^|(?<=\. )){pattern}(?= |$)", text):
            return found[1]
    return None


@lru_cache(maxsize=2)
def _forms(kind: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the forms of all ``"questions"`` or ``"phrase"``s, with the relation of each."""
    found = []
    for name, relation in lexicon()["relations"].items():
        wordings = relation.get(kind, ())
        for wording in (wordings,) if isinstance(wordings, str) else wordings:
            form = re.compile(re.escape(wording).replace(r"\{s\}", "(.+)"))
            found.append((form, name))
    return tuple(found)


def _peel(text: str, kind: str) -> tuple[str, str] | None:
    for form, relation in _forms(kind):
        if match := form.fullmatch(text):
            return match[1], relation
    return None


CORPUS = "corpus.jsonl"
_ID = 12


@lru_cache(maxsize=4)
def generated_questions(seed: int = 0) -> dict[str, Question]:
    """Return the questions about the encyclopedia of a seed, by id."""
    return {question.id: question for question in generate_questions(generate_encyclopedia(seed))}


@lru_cache(maxsize=4)
def generated_folder(seed: int = 0) -> Path:
    """Return the folder with corpus and index of a seed; made in about a second, and then kept."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(generate_encyclopedia(seed), folder / CORPUS)
        build_index(folder / CORPUS, folder / "index")

    return kept_folder(
        __package__, "searchqa", seed, make, lambda folder: read_manifest(folder / "index")
    )


def write_corpus(book: Encyclopedia, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for article in book.articles.values():
            contents = contents_of(article.title, article.text)
            name = hashlib.md5(contents.encode(), usedforsecurity=False).hexdigest()[:_ID]
            file.write(json.dumps({"id": name, "contents": contents}) + "\n")


def plan(question: Question, turns: Sequence[Turn], left: int, form: ActionForm) -> str:
    """Return the next action of an expert that knows decomposition and answer."""
    asked, shown = _so_far(turns, form)
    seen = {one.title.lower() for one in shown}
    # Queries with the titles that they shall find, as far as these are known.
    wanted = [(hop.question, hop.title) for hop in question.hops]
    wanted = wanted or [(title, title) for title in question.titles] or [(question.text, "")]
    for query, title in wanted if left > 1 else ():
        if title.lower() not in seen or not title:
            for choice in (query, title):
                if choice and choice.lower() not in asked:
                    return written_search(choice, form)
    return written_answer(question.golden[0], form)


def explore(question: str, turns: Sequence[Turn], left: int, form: ActionForm) -> str:
    """Return the next action of an expert that knows the question and what was shown."""
    asked, shown = _so_far(turns, form)
    taken_apart = unravel(question)
    if taken_apart is None:
        return _browse(question, asked, shown, left, form)
    thing, chain = taken_apart
    for relation in chain:
        article = next((one for one in shown if one.title == thing), None)
        value = None if article is None else told_by(article.text, thing, relation)
        if value is None:
            query = lexicon()["relations"][relation]["questions"][0].format(s=thing)
            fresh = next((one for one in (query, thing) if one.lower() not in asked), None)
            if left <= 1 or fresh is None:
                return _browse(question, asked, shown, 1, form)
            return written_search(fresh, form)
        thing = value
    return written_answer(thing, form)


def _browse(
    question: str, asked: set[str], shown: Sequence[Shown], left: int, form: ActionForm
) -> str:
    if left > 1:
        for query in (question, *names_in(question)[:1]):
            if query.lower() not in asked:
                return written_search(query, form)
    said = f" {normalize_answer(question)} "
    counts: Counter[str] = Counter()
    for one in shown:
        counts.update({one.title, *names_in(one.text)})
    fitting = [name for name in counts if f" {normalize_answer(name)} " not in said]
    best = min(fitting, key=lambda name: (-counts[name], name), default="unknown")
    return written_answer(best, form)


def _so_far(turns: Sequence[Turn], form: ActionForm) -> tuple[set[str], list[Shown]]:
    """Return the queries so far, lower case, and the passages that were shown."""
    asked, shown = set(), list[Shown]()
    for turn in turns:
        move = read_move(turn.action or "", form)
        if move.kind == "search":
            asked.add(move.text.lower())
        shown += read_results(turn.observation) or ()
    return asked, shown
