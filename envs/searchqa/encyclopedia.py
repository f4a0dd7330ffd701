"""A generated encyclopedia: things, what is true of them, and articles that say so.

Everything is drawn from a seed. Names are made up, so that nobody can know the answers by heart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..draws import Draws

__all__ = ["Article", "Encyclopedia", "generate_encyclopedia", "lexicon"]

_PLAIN = ("year", "occupation", "language", "length", "product")
_FILLERS = 2
_ARTICLE = re.compile(r"\ba (?=[aeiou])")


@lru_cache(maxsize=1)
def lexicon() -> dict[str, Any]:
    """Return the words, names, relations and sentences that encyclopedias are made of.

    Example:
        >>> lexicon()["relations"]["mayor"]["of"]
        'town'
    """
    text = files(__package__).joinpath("data/encyclopedia.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@dataclass(frozen=True, slots=True)
class Article:
    """An article.

    Attributes:
        title: What it is about; no two articles share one.
        kind: What that is: ``"person"``, ``"town"`` and so on.
        facts: What is true of it, by relation.
        text: The article.
    """

    title: str
    kind: str
    facts: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Encyclopedia:
    """The articles of a seed.

    Attributes:
        seed: The seed.
        articles: The articles by title, in the order in which they were made.
    """

    seed: int
    articles: Mapping[str, Article]

    def __len__(self) -> int:
        return len(self.articles)

    def of_kind(self, kind: str) -> list[Article]:
        """Return the articles about one kind of thing."""
        return [article for article in self.articles.values() if article.kind == kind]


@lru_cache(maxsize=2)
def generate_encyclopedia(seed: int = 0, size: float = 1.0) -> Encyclopedia:
    """Return the encyclopedia of a seed.

    Args:
        seed: The seed.
        size: Multiplies the number of articles of each kind, 3,576 at 1; from 0.05 to 1.

    Example:
        >>> book = generate_encyclopedia(seed=3, size=0.05)
        >>> len(book) > 150, book == generate_encyclopedia(seed=3, size=0.05)
        (True, True)
    """
    words = lexicon()
    titles = {
        kind: list(_titles(kind, max(4, int(size * told["number"])), seed))
        for kind, told in words["kinds"].items()
    }
    articles = {}
    for kind, names in titles.items():
        for title in names:
            draws = Draws("searchqa", seed, kind, title)
            facts = _facts(kind, title, titles, draws)
            articles[title] = Article(title, kind, facts, _text(kind, title, facts, titles, draws))
    return Encyclopedia(seed, articles)


def _titles(kind: str, number: int, seed: int) -> Iterator[str]:
    """Yield so many different titles."""
    draws, seen = Draws("searchqa", seed, "titles", kind), set[str]()
    make = _MAKERS[kind]
    while len(seen) < number:
        title = make(draws)
        if title not in seen:
            seen.add(title)
            yield title


def _syllables(name: str) -> Callable[[Draws], str]:
    def make(draws: Draws) -> str:
        parts = lexicon()["names"][name]
        return "".join(
            draws.pick(parts[part]) for part in ("starts", "middles", "ends") if part in parts
        )

    return make


def _person(draws: Draws) -> str:
    return f"{_syllables('first')(draws)} {_syllables('last')(draws)}"


def _river(draws: Draws) -> str:
    return f"River {_syllables('river')(draws)}"


def _work(draws: Draws) -> str:
    parts = lexicon()["names"]["work"]
    return f"The {draws.pick(parts['firsts'])} {draws.pick(parts['lasts'])}"


def _company(draws: Draws) -> str:
    return f"{_syllables('last')(draws)} {draws.pick(lexicon()['names']['company']['lasts'])}"


_MAKERS: Mapping[str, Callable[[Draws], str]] = {
    "person": _person,
    "town": _syllables("town"),
    "region": _syllables("region"),
    "river": _river,
    "work": _work,
    "company": _company,
}


def _facts(kind: str, title: str, titles: Mapping[str, list[str]], draws: Draws) -> dict[str, str]:
    """Return what is true of a thing, by relation."""
    facts = {}
    for name, told in lexicon()["relations"].items():
        if told["of"] == kind:
            facts[name] = _object(told["to"], title, titles, draws)
    return facts


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
    kind: str,
    title: str,
    facts: Mapping[str, str],
    titles: Mapping[str, list[str]],
    draws: Draws,
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
