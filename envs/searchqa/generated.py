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
        """Return the articles about one kind of thing."""
        return [article for article in self.articles.values() if article.kind == kind]


@lru_cache(maxsize=2)
def generate_encyclopedia(seed: int = 0, size: float = 1.0) -> Encyclopedia:
    """Return the encyclopedia of a seed; a `size` of 2 gives it twice as many articles."""
    words = lexicon()

    # All titles come first: the facts of an article name other articles.
    titles = {
        kind: list(_titles(kind, max(4, int(size * description["number"])), seed))
        for kind, description in words["kinds"].items()
    }

    articles = {}
    for kind, names in titles.items():
        for title in names:
            # A stream for each article: one more draw in an article changes no other.
            draws = Draws("searchqa", seed, kind, title)
            facts = {}
            for name, relation in words["relations"].items():
                if relation["of"] == kind:
                    facts[name] = _object(relation["to"], title, titles, draws)
            articles[title] = Article(title, kind, facts, _text(kind, title, facts, titles, draws))
    return Encyclopedia(seed, articles)


def _titles(kind: str, number: int, seed: int) -> Iterator[str]:
    """Yield as many titles for one kind of thing, each once."""
    draws = Draws("searchqa", seed, "titles", kind)
    titles_so_far = set[str]()
    words = lexicon()

    def name(slot: re.Match[str]) -> str:
        return "".join(draws.pick(part) for part in words["names"][slot[1]].values())

    while len(titles_so_far) < number:
        title = _SLOT.sub(name, words["kinds"][kind]["title"])
        if title not in titles_so_far:
            titles_so_far.add(title)
            yield title


def _object(object_kind: str, title: str, titles: Mapping[str, list[str]], draws: Draws) -> str:
    """Return what a relation leads to: a thing other than its own, or a word or number."""
    if object_kind == "year":
        return str(draws.integer(1702, 1989))
    if object_kind == "length":
        return str(draws.integer(31, 890))
    if object_kind in _PLAIN:
        word: str = draws.pick(lexicon()["words"][object_kind])
        return word
    while (candidate := draws.pick(titles[object_kind])) == title:
        pass
    return candidate


def _text(
    kind: str, title: str, facts: Mapping[str, str], titles: Mapping[str, list[str]], draws: Draws
) -> str:
    """Return the article: an opening, a sentence for each fact, and some that state no fact."""
    words = lexicon()
    form = draws.pick(words["words"]["form"])
    opening = draws.pick(words["kinds"][kind]["opening"]).format(s=title, form=form, **facts)

    sentences = []
    for name, value in facts.items():
        sentence = draws.pick(words["relations"][name]["sentences"])
        sentences.append(sentence.format(s=title, o=value))
    for filler in draws.some(words["fillers"][kind], _FILLERS):
        town = draws.pick(titles["town"])
        person = draws.pick(titles["person"])
        sentences.append(filler.format(town=town, person=person))
    return _ARTICLE.sub("an ", " ".join([opening, *draws.shuffled(sentences)]))


_MOST_HOPS = 3
_QUESTIONS_PER_HOPS = 1_000
_BEGINNINGS = ("work", "company", "person", "town")
"""The kinds of things that questions begin with."""


@lru_cache(maxsize=1)
def chains() -> dict[int, list[tuple[str, ...]]]:
    """Return the chains of relations that questions ask for, by their number of hops."""
    relations = lexicon()["relations"]
    single: list[tuple[str, ...]] = [
        (name,) for name, relation in relations.items() if relation["of"] in _BEGINNINGS
    ]
    by_hops = {1: single}
    for hops in range(2, _MOST_HOPS + 1):
        longer: list[tuple[str, ...]] = []
        for chain in by_hops[hops - 1]:
            end = relations[chain[-1]]["to"]
            for name, relation in relations.items():
                if relation["of"] == end and name not in chain:
                    longer.append((*chain, name))
        by_hops[hops] = longer
    return by_hops


def generate_questions(book: Encyclopedia) -> Iterator[Question]:
    """Yield the questions about an encyclopedia, a third of them with each number of hops."""
    relations = lexicon()["relations"]
    for hops, chains_of_length in chains().items():
        texts_so_far = set[str]()
        draws = Draws("searchqa", book.seed, "questions", hops)

        # A draw may give a question that was asked already, or none: a small book has few.
        number = min(_QUESTIONS_PER_HOPS, 4 * len(book))
        tries = 0
        while len(texts_so_far) < number and tries < 20 * number:
            tries += 1
            chain = draws.pick(chains_of_length)
            start = draws.pick(book.of_kind(relations[chain[0]]["of"]))
            question = _question(book, chain, start.title, f"{hops}hop/{len(texts_so_far)}", draws)
            if question is not None and question.text not in texts_so_far:
                texts_so_far.add(question.text)
                yield question


def _question(
    book: Encyclopedia, chain: Sequence[str], start: str, name: str, draws: Draws
) -> Question | None:
    """Return the question along a chain; None where it comes by a thing twice."""
    relations = lexicon()["relations"]
    hops = list[Hop]()
    things = [start]
    for relation in chain:
        thing = things[-1]
        answer = book.articles[thing].facts[relation]
        wording = draws.pick(relations[relation]["questions"])
        hops.append(Hop(wording.format(s=thing), thing, answer))
        things.append(answer)
    if len(set(things)) < len(things):
        return None

    # "the town where the author of X was born": all hops but the last make the subject.
    subject = start
    for relation in chain[:-1]:
        subject = relations[relation]["phrase"].format(s=subject)
    text = draws.pick(relations[chain[-1]]["questions"]).format(s=subject)

    # A river may be called by its name alone.
    golden = [things[-1]]
    if things[-1].startswith("River "):
        golden.append(things[-1].removeprefix("River "))
    titles = tuple(hop.title for hop in hops)
    return Question(name, text, tuple(golden), _split_of(start), titles, tuple(hops))


def _split_of(start: str) -> str:
    """Return the split of all questions that begin with a thing: no thing is in two splits."""
    share = Draws("searchqa", "split", start).share()
    if share < 0.8:
        return "train"
    return "dev" if share < 0.9 else "test"


@lru_cache(maxsize=4096)
def unravel(question: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the thing that a generated question begins with, and its relations in the order of hops."""
    peeled = _peel(question, "questions")
    chain: tuple[str, ...] = ()
    while peeled is not None:
        question, relation = peeled
        chain = (relation, *chain)
        peeled = _peel(question, "phrase")
    return (question, chain) if chain else None


def told_by(text: str, title: str, relation: str) -> str | None:
    """Return what an article says that a relation leads to; None where it does not say."""
    for sentence in lexicon()["relations"][relation]["sentences"]:
        pattern = re.escape(sentence).replace(r"\{s\}", re.escape(title))
        # `_ARTICLE` has made "a" to "an" where the value begins with a vowel.
        pattern = pattern.replace(r"\ a\ \{o\}", r"\ an?\ \{o\}").replace(r"\{o\}", r"([^.,]+?)")
        match = re.search(rf"(?:^|(?<=\. )){pattern}(?= |$)", text)
        if match is not None:
            return match[1]
    return None


@lru_cache(maxsize=2)
def _forms(kind: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the forms of all ``"questions"`` or ``"phrase"``s, with the relation of each."""
    forms = []
    for name, relation in lexicon()["relations"].items():
        wordings = relation.get(kind, ())
        if isinstance(wordings, str):
            wordings = (wordings,)
        for wording in wordings:
            form = re.compile(re.escape(wording).replace(r"\{s\}", "(.+)"))
            forms.append((form, name))
    return tuple(forms)


def _peel(text: str, kind: str) -> tuple[str, str] | None:
    """Return what is inside the outermost form of a text, and that form's relation."""
    for form, relation in _forms(kind):
        if match := form.fullmatch(text):
            return match[1], relation
    return None


CORPUS = "corpus.jsonl"
_ID_LENGTH = 12


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
    """Write an encyclopedia as FlashRAG's JSON lines; ids are digests of the contents."""
    with path.open("w", encoding="utf-8") as file:
        for article in book.articles.values():
            contents = contents_of(article.title, article.text)
            name = hashlib.md5(contents.encode(), usedforsecurity=False).hexdigest()[:_ID_LENGTH]
            file.write(json.dumps({"id": name, "contents": contents}) + "\n")


def plan(question: Question, turns: Sequence[Turn], turns_left: int, form: ActionForm) -> str:
    """Return the next action of an expert that knows decomposition and answer."""
    queries, passages = _so_far(turns, form)
    titles = {passage.title.lower() for passage in passages}

    # Queries with the titles that they shall find, as far as these are known.
    searches = [(hop.question, hop.title) for hop in question.hops]
    if not searches:
        searches = [(title, title) for title in question.titles]
    if not searches:
        searches = [(question.text, "")]

    # The last turn is for the answer.
    for query, title in searches if turns_left > 1 else ():
        if title.lower() not in titles or not title:
            for candidate in (query, title):
                if candidate and candidate.lower() not in queries:
                    return written_search(candidate, form)
    return written_answer(question.golden[0], form)


def explore(question: str, turns: Sequence[Turn], turns_left: int, form: ActionForm) -> str:
    """Return the next action of an expert that knows the question and what was shown."""
    queries, passages = _so_far(turns, form)
    unraveled = unravel(question)
    if unraveled is None:
        return _browse(question, queries, passages, turns_left, form)

    # From hop to hop as far as the articles that were shown say; then a search for the next one.
    thing, chain = unraveled
    for relation in chain:
        article = next((passage for passage in passages if passage.title == thing), None)
        value = None if article is None else told_by(article.text, thing, relation)
        if value is None:
            query = lexicon()["relations"][relation]["questions"][0].format(s=thing)
            new_queries = [text for text in (query, thing) if text.lower() not in queries]
            # No turn for another search, or nothing new to search for: then the likeliest name.
            if turns_left <= 1 or not new_queries:
                return _browse(question, queries, passages, 1, form)
            return written_search(new_queries[0], form)
        thing = value
    return written_answer(thing, form)


def _browse(
    question: str, queries: set[str], passages: Sequence[Shown], turns_left: int, form: ActionForm
) -> str:
    """Return a search for the question's words, or the name that was shown most often as answer."""
    if turns_left > 1:
        for query in (question, *names_in(question)[:1]):
            if query.lower() not in queries:
                return written_search(query, form)

    counts: Counter[str] = Counter()
    for passage in passages:
        counts.update({passage.title, *names_in(passage.text)})
    question_words = f" {normalize_answer(question)} "
    candidates = [name for name in counts if f" {normalize_answer(name)} " not in question_words]
    best = min(candidates, key=lambda name: (-counts[name], name), default="unknown")
    return written_answer(best, form)


def _so_far(turns: Sequence[Turn], form: ActionForm) -> tuple[set[str], list[Shown]]:
    """Return the queries so far, lower case, and the passages that were shown."""
    queries = set[str]()
    passages = list[Shown]()
    for turn in turns:
        move = read_move(turn.action or "", form)
        if move.kind == "search":
            queries.add(move.text.lower())
        passages += read_results(turn.observation) or ()
    return queries, passages
