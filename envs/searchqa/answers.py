"""Scores of answers: exact match, containment and F1, with SQuAD's normalisation."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["contains_answer", "exact_match", "f1_score", "normalize_answer", "sub_exact_match"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = ("yes", "no", "noanswer")


def normalize_answer(text: str) -> str:
    """Return a text as SQuAD compares it.

    Lower case, without ASCII punctuation, without the articles, with single blanks. Letters with
    accents and numbers in words stay as they are.

    Example:
        >>> normalize_answer("The  Girl, Who Kicked!")
        'girl who kicked'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Return whether an answer equals one of the golden ones, normalised.

    Example:
        >>> exact_match("the Sorn", ["Sorn", "River Sorn"]), exact_match("", [])
        (True, False)
    """
    said = normalize_answer(answer)
    return any(normalize_answer(gold) == said for gold in golden)


def sub_exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Return whether an answer contains one of the golden ones, normalised.

    Example:
        >>> sub_exact_match("It is the Sorn.", ["Sorn"]), sub_exact_match("Oder", ["Sorn"])
        (True, False)
    """
    said = normalize_answer(answer)
    return any(normalize_answer(gold) in said for gold in golden)


def f1_score(answer: str, golden: Iterable[str]) -> float:
    """Return the best F1 of words between an answer and the golden ones.

    As in HotpotQA's own evaluation, *yes*, *no* and *noanswer* count whole or not at all.

    Example:
        >>> f1_score("river Sorn", ["Sorn"]), f1_score("yes", ["yes it is"])
        (0.6666666666666666, 0.0)
    """
    return max(
        (_f1(normalize_answer(answer), normalize_answer(gold)) for gold in golden), default=0.0
    )


def contains_answer(text: str, golden: Sequence[str]) -> bool:
    """Return whether a golden answer stands in a text, in whole words, normalised.

    Example:
        >>> contains_answer("It flows into the Sorn.", ["sorn"]), contains_answer("Sornby", ["Sorn"])
        (True, False)
    """
    words = f" {normalize_answer(text)} "
    found = (normalize_answer(gold) for gold in golden)
    return any(f" {gold} " in words for gold in found if gold)


def _f1(said: str, gold: str) -> float:
    if (said in _CLOSED or gold in _CLOSED) and said != gold:
        return 0.0
    ours, theirs = said.split(), gold.split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)
