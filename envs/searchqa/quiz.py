"""Questions about a generated encyclopedia, and how they are answered hop by hop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from ..draws import Draws
from .encyclopedia import Encyclopedia, lexicon
from .questions import Hop, Question

__all__ = ["GENERATED_SPLITS", "chains", "generate_questions", "told_by", "unravel"]

GENERATED_SPLITS = ("train", "dev", "test")
"""The splits of generated questions: 80, 10 and 10 % of the things that they begin with."""

_MOST_HOPS = 3
_OF_EACH = 1_000  # questions of each number of hops
_BEGINNINGS = ("work", "company", "person", "town")


@lru_cache(maxsize=1)
def chains() -> dict[int, list[tuple[str, ...]]]:
    """Return the chains of relations that questions ask for, by their number of hops.

    No chain takes a relation twice.

    Example:
        >>> ("author", "birthplace", "river") in chains()[3]
        True
    """
    relations = lexicon()["relations"]
    found: dict[int, list[tuple[str, ...]]] = {1: []}
    for name, told in relations.items():
        found[1] += [(name,)] if told["of"] in _BEGINNINGS else []
    for hops in range(2, _MOST_HOPS + 1):
        found[hops] = [
            (*chain, name)
            for chain in found[hops - 1]
            for name, told in relations.items()
            if told["of"] == relations[chain[-1]]["to"] and name not in chain
        ]
    return found


def generate_questions(book: Encyclopedia) -> Iterator[Question]:
    """Yield the questions about an encyclopedia, a third of them with each number of hops.

    Args:
        book: The encyclopedia.

    Example:
        >>> from comap.envs.searchqa.encyclopedia import generate_encyclopedia
        >>> first = next(generate_questions(generate_encyclopedia(seed=3, size=0.05)))
        >>> first.id, len(first.hops)
        ('1hop/0', 1)
    """
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
    """Return the thing that a generated question begins with, and its relations in the order of hops.

    Example:
        >>> unravel("Which river flows through the birthplace of the author of The Iron Key?")
        ('The Iron Key', ('author', 'birthplace', 'river'))
        >>> unravel("Who are you?") is None
        True
    """
    for asking, relation in _asking():
        match = asking.fullmatch(question)
        if match is not None:
            chain, subject = [relation], match[1]
            while (peeled := _peel(subject)) is not None:
                subject = peeled[0]
                chain.insert(0, peeled[1])
            return subject, tuple(chain)
    return None


def told_by(text: str, title: str, relation: str) -> str | None:
    """Return what an article says that a relation leads to; None where it does not say.

    Args:
        text: The article.
        title: Its title.
        relation: The relation.

    Example:
        >>> told_by("Emma is a play. Emma was written by Jo Austen.", "Emma", "author")
        'Jo Austen'
    """
    for sentence in lexicon()["relations"][relation]["sentences"]:
        pattern = re.escape(sentence).replace(r"\{s\}", re.escape(title))
        pattern = pattern.replace(r"\ a\ \{o\}", r"\ an?\ \{o\}").replace(r"\{o\}", r"([^.,]+?)")
        found = re.search(rf"(?:^|(?<=\. )){pattern}(?= |$)", text)
        if found is not None:
            return found[1]
    return None


@lru_cache(maxsize=1)
def _asking() -> list[tuple[re.Pattern[str], str]]:
    """Return the forms of all questions, with the relation that each asks for."""
    return [
        (_form(wording), name)
        for name, told in lexicon()["relations"].items()
        for wording in told["questions"]
    ]


@lru_cache(maxsize=1)
def _phrases() -> list[tuple[re.Pattern[str], str]]:
    told = lexicon()["relations"]
    return [(_form(told[name]["phrase"]), name) for name in told if "phrase" in told[name]]


def _peel(subject: str) -> tuple[str, str] | None:
    """Return what a phrase is about, and its relation; None for a name."""
    for phrase, relation in _phrases():
        match = phrase.fullmatch(subject)
        if match is not None:
            return match[1], relation
    return None


def _form(wording: str) -> re.Pattern[str]:
    return re.compile(re.escape(wording).replace(r"\{s\}", "(.+)"))
