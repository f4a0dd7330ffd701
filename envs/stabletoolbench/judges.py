"""Judges of final answers: language models with prompts of ours, callables, and recorded verdicts."""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ...errors import DataCorrupt, DataNotFound, LanguageModelError
from ...lm.base import Generate, LanguageModel, Message, Sampling
from .apps.base import data_file
from .attempts import Attempt

__all__ = ["VERDICTS", "CallableJudge", "Comparing", "Judge", "LMJudge", "RecordedJudge", "Verdict"]

Verdict: TypeAlias = str
"""``solved``, ``unsure`` or ``unsolved``."""

VERDICTS: Mapping[Verdict, float] = {"solved": 1.0, "unsure": 0.5, "unsolved": 0.0}
"""What each verdict counts."""

Comparing: TypeAlias = Callable[[Attempt, Attempt, int], int]
"""Says which of two attempts is better, 1 or 2, in a round; 0 where it cannot say."""

_LONGEST = 6000
_MOST_RUNS = 100
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    KeyError,
    MemoryError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    csv.Error,
)


class Judge(Protocol):
    """Judges attempts; `name` and `prompt_sha256` are told with every result."""

    name: str
    prompt_sha256: str

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        """Return the verdict on an attempt with a final answer, in one of several runs.

        Raises:
            LanguageModelError: No verdict was to be had.
        """
        ...


class CallableJudge:
    """A judge that is any function of an attempt and the number of the run.

    Example:
        >>> judge = CallableJudge(lambda attempt, run: "solved", "optimist")
        >>> judge.verdict(Attempt("1", "?", ()), 0)
        'solved'
    """

    def __init__(self, function: Callable[[Attempt, int], Verdict], name: str | None = None):
        self._function = function
        self.name = name or str(getattr(function, "__name__", "a callable"))
        self.prompt_sha256 = ""

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        """Return what the function says."""
        return self._function(attempt, run)


class LMJudge:
    """A language model as judge: first of the answer alone, where that does not tell of the calls too.

    Args:
        model: The model.
        temperature: Of its replies; at 0 all runs are alike.

    Attributes:
        name: The model's.
        prompt_sha256: SHA-256 of the prompts.
    """

    def __init__(self, model: LanguageModel, temperature: float = 0.0):
        self.model, self._temperature = model, temperature
        self.name = str(getattr(model, "name", type(model).__name__))
        self._prompts: dict[str, str] = data_file("judge.json")
        told = json.dumps(self._prompts, sort_keys=True)
        self.prompt_sha256 = hashlib.sha256(told.encode()).hexdigest()

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        """Return the model's verdict.

        Raises:
            LanguageModelError: It fails, or says none of the three.
        """
        (said,) = self.verdicts_of([(attempt, run)])
        if isinstance(said, LanguageModelError):
            raise said
        return said

    def verdicts_of(
        self, pairs: Sequence[tuple[Attempt, int]]
    ) -> list[Verdict | LanguageModelError]:
        """Return the verdict on each attempt in a run, or why there is none; all are asked together."""
        found = self._ask("answer", pairs)
        unsure = [place for place, said in enumerate(found) if said == "unsure"]
        again = self._ask("steps", [pairs[place] for place in unsure])
        for place, said in zip(unsure, again, strict=True):
            found[place] = said
        return found

    def better(self, first: Attempt, second: Attempt, number: int) -> int:
        """Return which of two attempts the model prefers, 1 or 2; odd rounds show them in reverse.

        Raises:
            LanguageModelError: It fails, or says neither.
        """
        swapped = number % 2 == 1
        one, two = (second, first) if swapped else (first, second)
        slots = {
            "query": first.query,
            "answer_1": one.answer,
            "answer_2": two.answer,
            "steps_1": _steps(one),
            "steps_2": _steps(two),
        }
        (reply,) = self._replies([(_filled(self._prompts["compare"], slots), number)])
        if isinstance(reply, LanguageModelError):
            raise reply
        digit = re.search(r"\b[12]\b", reply)
        if digit is None:
            raise LanguageModelError(
                f"expected 1 or 2 of the judge {self.name}, found {reply!r:.80}"
            )
        chosen = int(digit[0])
        return 3 - chosen if swapped else chosen

    def _ask(
        self, prompt: str, pairs: Sequence[tuple[Attempt, int]]
    ) -> list[Verdict | LanguageModelError]:
        texts = []
        for attempt, run in pairs:
            slots = {"query": attempt.query, "answer": attempt.answer, "steps": _steps(attempt)}
            texts.append((_filled(self._prompts[prompt], slots), run))
        return [self._read(reply) for reply in self._replies(texts)]

    def _read(self, reply: str | LanguageModelError) -> Verdict | LanguageModelError:
        if isinstance(reply, LanguageModelError):
            return reply
        word = re.search(r"\b(unsolved|unsure|solved)\b", reply.lower())
        if word is None:
            return LanguageModelError(
                f"expected Solved, Unsolved or Unsure of the judge {self.name}, found {reply!r:.80}"
            )
        return word[1]

    def _replies(self, texts: Sequence[tuple[str, int]]) -> list[str | LanguageModelError]:
        """Return the replies to prompts with their seeds."""
        if not texts:
            return []
        requests = [
            Generate(
                (Message("user", text),),
                Sampling(max_new_tokens=64, temperature=self._temperature, seed=seed),
                purpose="judge",
            )
            for text, seed in texts
        ]
        replies = self.model.generate(requests)
        return [one if isinstance(one, LanguageModelError) else one.text for one in replies]


def _filled(template: str, slots: Mapping[str, str]) -> str:
    """Return a prompt with its slots filled; what fills one is not looked at again."""
    return re.sub(r"\{(\w+)\}", lambda slot: slots[slot[1]][:_LONGEST], template)


def _steps(attempt: Attempt) -> str:
    lines = [
        f"{number}. {made.name} {_text(made.arguments)} -> {made.response[:1024]}"
        for number, made in enumerate(attempt.calls, 1)
    ]
    return "\n".join(lines) or "(none)"


def _text(arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return " ".join(text.split())


class RecordedJudge:
    """Verdicts that a reference evaluation wrote, or ``comap score tools``, by query and run.

    Args:
        path: Its result, ``.json`` or ``.csv`` (in which the verdicts are a dictionary in a text), of
            at most 100 runs.

    Attributes:
        verdicts: By query, then by run.
        runs: In how many runs the most judged query was judged.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is no such result.
    """

    def __init__(self, path: str | os.PathLike[str]):
        path = Path(path)
        if not path.is_file():
            raise DataNotFound(f"expected a result of a reference evaluation at {path}, found none")
        self.name, self.prompt_sha256 = f"recorded: {path.name}", ""
        try:
            self.verdicts = _csv(path) if path.suffix == ".csv" else self._of_json(path)
        except _UNREADABLE as error:
            raise DataCorrupt(
                f"expected a pass-rate result of StableToolBench in {path}, found "
                f"{type(error).__name__}: {str(error)[:120]}"
            ) from error

    @property
    def runs(self) -> int:
        """See above."""
        return max((max(row, default=-1) + 1 for row in self.verdicts.values()), default=0)

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        """Return the recorded verdict.

        Raises:
            LanguageModelError: There is none for this query and run.
        """
        key = attempt.query_id
        known = self.verdicts.get(key) or self.verdicts.get(key.rpartition("/")[2], {})
        if run not in known:
            raise LanguageModelError(f"{self.name} has no verdict on {key}, run {run}")
        return known[run]

    def _of_json(self, path: Path) -> dict[str, dict[int, Verdict]]:
        data = json.loads(path.read_bytes())
        if not isinstance(data.get("sopr"), Mapping):
            return {str(key): _verdicts(entry["is_solved"]) for key, entry in data.items()}
        sopr = data["sopr"]
        self.name, self.prompt_sha256 = str(sopr["judge"]), str(sopr["prompt_sha256"])
        told = {str(key): dict(enumerate(row)) for key, row in sopr["verdicts"].items()}
        return {
            key: _verdicts({run: said for run, said in row.items() if said is not None})
            for key, row in told.items()
        }


def _csv(path: Path) -> dict[str, dict[int, Verdict]]:
    with path.open(encoding="utf-8", newline="") as lines:
        sample = lines.readline()
        lines.seek(0)
        rows = list(csv.DictReader(lines, delimiter="\t" if "\t" in sample else ","))
    return {row["query_id"]: _verdicts(ast.literal_eval(row["is_solved"])) for row in rows}


def _verdicts(told: Mapping[Any, str]) -> dict[int, Verdict]:
    found = {int(run): str(said).rpartition(".")[2].lower() for run, said in told.items()}
    if strange := [run for run in found if not 0 <= run < _MOST_RUNS]:
        raise ValueError(f"run {strange[0]!r:.12}, which is none from 0 to {_MOST_RUNS - 1}")
    if unknown := set(found.values()) - VERDICTS.keys():
        raise ValueError(f"verdict {sorted(unknown)[0]!r:.40}")
    return found
