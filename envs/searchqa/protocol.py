"""How searches and answers are written and read, and what answers are worth."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ...trajectory import Turn
from ..canon import tagged
from .retriever import LONGEST_TEXT, LONGEST_TITLE, Hit, contents_of, split_contents

Style: TypeAlias = Literal["search_r1", "verl"]
"""Whose form observations have, and whose rules actions follow: Search-R1's or verl-agent's."""

STYLES: tuple[Style, ...] = ("search_r1", "verl")
ActionForm: TypeAlias = Literal["tags", "react"]

ACTIONS: tuple[ActionForm, ...] = ("tags", "react")
LONGEST_QUERY = 1_000
"""Characters of a query or an answer; the rest is left out."""

REFUSAL = (
    "\nThat was no action. To look something up, put a query between <search> and </search>. To "
    "answer, put the answer between <answer> and </answer>. Try again.\n"
)
"""The answer to what is no action, in Search-R1's style; in verl-agent's it is nothing."""

REACT_REFUSAL = (
    "\nThat was no action. To look something up, write search[QUERY]. To answer, write "
    "finish[ANSWER]. Try again.\n"
)
"""The answer to what is no action where actions are written as ReAct's."""

_REACT = re.compile(r"(search|finish|answer)[ \t]*\[(.*)\]\s*\.?\s*\Z", re.DOTALL | re.IGNORECASE)
_INFORMATION = re.compile(r"\s*<information>(.*)</information>\s*\Z", re.DOTALL)
_R1_LINE = re.compile(r"Doc (\d{1,4})\(Title: (.*?)\) ?(.*)\Z", re.DOTALL)
# With the quotes that corpora put around titles, a bracket in a title does not end it.
_R1_QUOTED = re.compile(r'Doc (\d{1,4})\(Title: ("[^\n]*?")\) ?(.*)\Z', re.DOTALL)
_VERL_PART = re.compile(r"Doc (\d{1,4}): (.*)\Z", re.DOTALL)
_NEXT = re.compile(r"\n(?=Doc \d{1,4}(?:\(Title: |: ))")
# A passage must not close the block that shows it, nor look like an action of the policy's.
_MARKUP = re.compile(r"<(?=/?(?:information|search|answer|think|result)\b)", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Move(NamedTuple):
    """What an action means: a search, an answer, or (with an empty kind) neither."""

    kind: str
    text: str
    formed: bool


class Shown(NamedTuple):
    """A passage as an observation shows it."""

    title: str
    text: str


def read_move(action: str, form: ActionForm = "tags", style: Style = "search_r1") -> Move:
    """Return what an action means in its form, by a style's rules."""
    if form == "react":
        # The action stands at the end. Of a long text, only the end is looked through.
        match = _REACT.search(action[-2 * LONGEST_QUERY :])
        if match is None:
            return Move("", "", False)
        kind = "search" if match[1].lower() == "search" else "answer"
        return Move(kind, match[2].strip()[:LONGEST_QUERY], True)

    # Search-R1 carries out the first block, verl-agent a search wherever it stands. Several blocks
    # are carried out all the same, but are not well formed.
    blocks = _blocks(action)
    if not blocks:
        return Move("", "", False)
    formed = action.count("<search>") + action.count("<answer>") == 1
    searches = [text for kind, text in blocks if kind == "search"]
    if searches and (style == "verl" or blocks[0][0] == "search"):
        return Move("search", searches[0], formed)
    return Move("answer", [text for kind, text in blocks if kind == "answer"][-1], formed)


def refusal_of(form: ActionForm, style: Style) -> str:
    """Return the answer to what is no action; verl-agent's style says nothing."""
    if style == "verl":
        return ""
    return REACT_REFUSAL if form == "react" else REFUSAL


def is_refusal(observation: str) -> bool:
    """Return whether an observation is the answer to what is no action, in either form."""
    return observation.strip() in (REFUSAL.strip(), REACT_REFUSAL.strip())


def last_answer(action: str, form: ActionForm = "tags") -> str | None:
    """Return the last answer in an action, even where something else of it is carried out."""
    if form == "react":
        move = read_move(action, form)
        return move.text if move.kind == "answer" else None
    return next((text for tag, text in reversed(_blocks(action)) if tag == "answer"), None)


def _blocks(action: str) -> list[tuple[str, str]]:
    """Return the blocks of an action in tags, each as its tag and its text."""
    blocks = tagged(action, "search", "answer")
    return [(tag, action[start:end].strip()[:LONGEST_QUERY]) for tag, start, end in blocks]


def written_search(query: str, form: ActionForm = "tags") -> str:
    """Return the action that searches."""
    return f"search[{query}]" if form == "react" else f"<search>{query}</search>"


def written_answer(answer: str, form: ActionForm = "tags") -> str:
    """Return the action that answers."""
    return f"finish[{answer}]" if form == "react" else f"<answer>{answer}</answer>"


def write_results(hits: Sequence[Hit], style: Style = "search_r1") -> str:
    r"""Return the observation that shows some passages."""
    passages = [
        (_one_line(hit.title, LONGEST_TITLE), _one_line(hit.text, LONGEST_TEXT)) for hit in hits
    ]
    if style == "verl":
        parts = [
            f"Doc {number}: {contents_of(title, text)}"
            for number, (title, text) in enumerate(passages, 1)
        ]
        result = json.dumps({"result": "\n".join(parts)}, ensure_ascii=False)
        return f"<information>{result}</information>"

    lines = []
    for number, (title, text) in enumerate(passages, 1):
        title = title.replace('")', '" )')  # what ends a title must not stand in it
        lines.append(f'Doc {number}(Title: "{title}") {text}')
    body = "\n".join(lines).strip()
    return f"\n\n<information>{body}</information>\n\n"


def read_results(observation: str) -> tuple[Shown, ...] | None:
    """Return the passages that an observation shows, of either style; None where it shows no results."""
    information = _INFORMATION.match(observation)
    if information is None:
        return None

    body = information[1].strip()
    if body.startswith("{"):
        try:
            result = json.loads(body)["result"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if not isinstance(result, str):
            return None
        body = result.strip()
    if not body:
        return ()

    passages = []
    for number, part in enumerate(_NEXT.split(body), 1):
        match = _R1_QUOTED.match(part) or _R1_LINE.match(part) or _VERL_PART.match(part)
        if match is None or int(match[1]) != number:
            return None
        title, text = split_contents(match[2])
        if match.re is not _VERL_PART:
            text = match[3]
        passages.append(Shown(title, text.strip()))
    return tuple(passages)


def _one_line(text: str, longest: int) -> str:
    """Return a text on one line, without markup of this exchange and without control characters."""
    plain = _UNPRINTABLE.sub(" ", " ".join(text[:longest].splitlines()))
    return _MARKUP.sub("< ", plain).strip()


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
    """Return whether an answer equals one of the golden ones, normalized.

    Example:
        >>> exact_match("the Sorn", ["Sorn", "River Sorn"]), exact_match("", [])
        (True, False)
    """
    normalized = normalize_answer(answer)
    return any(normalize_answer(gold) == normalized for gold in golden)


def sub_exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Return whether an answer contains one of the golden ones, normalized.

    Example:
        >>> sub_exact_match("It is the Sorn.", ["Sorn"]), sub_exact_match("Oder", ["Sorn"])
        (True, False)
    """
    normalized = normalize_answer(answer)
    return any(normalize_answer(gold) in normalized for gold in golden)


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
    """Return whether a golden answer stands in a text, in whole words, normalized."""
    words = f" {normalize_answer(text)} "
    normalized = (normalize_answer(gold) for gold in golden)
    return any(f" {gold} " in words for gold in normalized if gold)


def _f1(answer: str, gold: str) -> float:
    """Return the F1 of words between two normalized answers."""
    if (answer in _CLOSED or gold in _CLOSED) and answer != gold:
        return 0.0

    answer_words = answer.split()
    gold_words = gold.split()
    common = sum((Counter(answer_words) & Counter(gold_words)).values())
    if not common:
        return 0.0

    precision = common / len(answer_words)
    recall = common / len(gold_words)
    return 2 * precision * recall / (precision + recall)


REWARDS = ("em", "sub_em", "f1", "format")


def reward_of(
    kind: str,
    answer: str | None,
    golden: Sequence[str],
    turns: Sequence[Turn] = (),
    form: ActionForm = "tags",
    style: Style = "search_r1",
    retrieval_score: float = 0.0,
) -> float:
    """Return what an episode is worth, 0 to 1.

    Args:
        kind: One of `REWARDS`.
        answer: The last answer that the policy gave, or None.
        golden: The answers that count as right.
        turns: The episode, for the kind ``format``.
        form: How its actions are written.
        style: Whose rules they follow.
        retrieval_score: See `format_reward`.

    Example:
        >>> reward_of("em", "Jane Austen", ["jane austen"]), reward_of("f1", "Austen", ["Jane Austen"])
        (1.0, 0.6666666666666666)
    """
    if kind == "format":
        formed = is_well_formed(turns, form, style)
        useful = False
        for turn in turns:
            if turn.action is not None:
                texts = [passage.text for passage in read_results(turn.observation) or ()]
                useful = useful or contains_answer(" ".join(texts), golden)
        return format_reward(answer, golden, formed, useful, retrieval_score)

    if answer is None:
        return 0.0
    if kind == "f1":
        return f1_score(answer, golden)
    return float((exact_match if kind == "em" else sub_exact_match)(answer, golden))


def format_reward(
    answer: str | None,
    golden: Sequence[str],
    formed: bool,
    useful: bool,
    retrieval_score: float = 0.0,
) -> float:
    """Return Search-R1's reward with a part for the form."""
    # The numbers of Search-R1's script: 0.2 for the form, 0.1 for any answer.
    if answer is not None and exact_match(answer, golden):
        return 1.0 if formed else 0.8
    if formed:
        return 0.2 + (retrieval_score if useful else 0.0)
    return 0.1 if answer is not None else 0.0


def is_well_formed(
    turns: Sequence[Turn], form: ActionForm = "tags", style: Style = "search_r1"
) -> bool:
    """Return whether an episode is searches, each with results, and then one answer, all well formed."""
    played_turns = [turn for turn in turns if turn.action is not None]
    moves = [read_move(turn.action or "", form, style) for turn in played_turns]
    if not moves or not all(move.formed for move in moves) or moves[-1].kind != "answer":
        return False

    return all(
        move.kind == "search" and read_results(turn.observation) is not None
        for move, turn in zip(moves[:-1], played_turns, strict=False)
    )
