"""Attempts at queries, ours and of reference pipelines, their judges, SoPR, SoWR and process metrics."""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from ...lm.base import Generate, LanguageModel, Message, Sampling
from ...metrics import Rate, wilson
from ...trajectory import Trajectory
from .apps.world import data_file
from .calls import parse_call
from .canonicalizer import error_kind, read_observation
from .functions import FINISH

_ANSWERED = 3
_RAW_NAME = re.compile(r"\d+_.*\.json", re.DOTALL)  # <query_id>_<method>.json
_SOURCE = "THUNLP-MT/StableToolBench's inference"


@dataclass(frozen=True, slots=True)
class AttemptCall:
    """A call of an attempt, with what came back."""

    name: str
    arguments: Any
    response: str
    status: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a query."""

    query_id: str
    query: str
    calls: tuple[AttemptCall, ...]
    finish: str = ""
    answer: str = ""
    sources: tuple[str, ...] = ()


def attempt_of(trajectory: Trajectory) -> Attempt:
    """Return the attempt that an episode is: its calls, and what ``Finish`` was called with."""
    calls: list[AttemptCall] = []
    sources: list[str] = []
    finish = answer = ""
    for step in trajectory.steps:
        call = parse_call(step.action)
        parts = read_observation(step.observation)
        kind_of_error = "" if parts is None else error_kind(parts[0])

        # A call of ``Finish`` that was refused did not end the episode: it is one of the calls.
        if call is not None and call.name == FINISH and not kind_of_error:
            finish = str(call.arguments.get("return_type", ""))
            final_answer = call.arguments.get("final_answer", "")
            answer = final_answer if isinstance(final_answer, str) else json.dumps(final_answer)
            continue

        # What is no call is counted as one, under no name: it cost a step.
        name = "" if call is None else call.name
        arguments = step.action if call is None else call.arguments
        calls.append(AttemptCall(name, arguments, step.observation, kind_of_error or "ok"))
        sources.append(str(step.env_info.get("tool_source", "")))

    query_id = trajectory.task.rpartition("/")[2]
    return Attempt(query_id, trajectory.goal, tuple(calls), finish, answer, tuple(sources))


def read_attempts(path: str | os.PathLike[str]) -> dict[str, Attempt]:
    """Return the attempts of a reference pipeline, by query."""
    path = Path(path)
    files: list[Path] = []
    if path.is_dir():
        files = sorted(path.glob("*.json"))
    elif path.is_file():
        files = [path]
    if not files:
        raise DataNotFound(
            f"expected converted answers, or a folder of answer files (<query_id>_<method>.json), at "
            f"{path}, found none"
        )

    attempts = {}
    for file in files:
        for attempt in _attempts_in(file):
            attempts[attempt.query_id] = attempt
    return attempts


def _attempts_in(path: Path) -> Iterator[Attempt]:
    """Yield the attempts in a file; of an answer that is empty, one in which nothing was done."""
    try:
        content = path.read_bytes()
        data = json.loads(content) if content.strip() else {}

        # An inference that broke off leaves an empty file, whose name alone says of which query.
        query_id_of_name = path.name.partition("_")[0]
        if data == {} and _RAW_NAME.fullmatch(path.name):
            yield Attempt(query_id_of_name, "", ())
            return
        if "answer_generation" in data:
            yield _attempt_of_raw(query_id_of_name, data)
            return

        for query_id, entry in data.items():
            if entry == {}:
                yield Attempt(str(query_id), "", ())
            else:
                yield _attempt_of_converted(str(query_id), entry)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DataCorrupt(
            f"expected answers as {_SOURCE} writes them in {path}, found "
            f"{type(error).__name__}: {str(error)[:120]}"
        ) from error


def _attempt_of_raw(query_id: str, data: Mapping[str, Any]) -> Attempt:
    """Return the attempt in an answer file as upstream's inference writes it."""
    # Of a search in a tree the calls are those that lead to the last answer; without one, all.
    generation = data["answer_generation"]
    if "tree" in data:
        paths = list(_paths(data["tree"]["tree"], []))
        paths_to_answers = [path for path in paths if path[-1].get("observation_code") == _ANSWERED]
        nodes = paths_to_answers[-1] if paths_to_answers else [path[-1] for path in paths]
    else:
        nodes = list(data["trys"][-1]["chain"]) if data.get("trys") else []

    # A call is two nodes: an action, then its input with what was observed.
    calls: list[AttemptCall] = []
    name = ""
    for node in nodes:
        if node.get("node_type") == "Action":
            name = str(node["description"])
        elif node.get("node_type") == "Action Input" and name and name != FINISH:
            calls.append(_call_of(name, node["description"], str(node.get("observation", ""))))
    return _attempt(query_id, generation, calls)


def _paths(
    node: Mapping[str, Any], before: list[Mapping[str, Any]]
) -> Iterator[list[Mapping[str, Any]]]:
    """Yield each path from the root to a node of the tree, `before` being the nodes above it."""
    path = [*before, node]
    yield path
    for child in node.get("children", []):
        yield from _paths(child, path)


def _call_of(name: str, arguments: Any, response: str) -> AttemptCall:
    """Return a call with the status that its response shows."""
    parts = read_observation(response)
    kind_of_error = "failed" if parts is None else error_kind(parts[0])
    return AttemptCall(name, arguments, response, kind_of_error or "ok")


def _attempt_of_converted(query_id: str, entry: Mapping[str, Any]) -> Attempt:
    """Return the attempt in an entry of converted answers, which upstream's evaluation reads."""
    answer = entry["answer"]
    calls: list[AttemptCall] = []
    for node in _steps(answer["answer_details"]):
        message = node["message"]
        if node["role"] == "tool" and isinstance(message, dict) and message.get("name") != FINISH:
            response = str(message.get("response", ""))
            calls.append(_call_of(str(message["name"]), message.get("arguments"), response))
    return _attempt(query_id, {**answer, "query": entry["query"]}, calls)


def _steps(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of converted answers, which are nested: each holds those after it."""
    for node in nodes:
        yield node
        yield from _steps(node.get("next", []))


def _attempt(query_id: str, data: Mapping[str, Any], calls: Sequence[AttemptCall]) -> Attempt:
    """Return an attempt with the final answer in `data`: the arguments of ``Finish`` as a text."""
    finish = answer = ""
    if final := (data.get("final_answer") or "").strip():
        call = parse_call(json.dumps({"name": FINISH, "arguments": final}))
        arguments = {} if call is None else call.arguments
        if arguments.get("return_type") in ("give_answer", "give_up_and_restart"):
            finish = arguments["return_type"]
            answer = str(arguments.get("final_answer", ""))
    return Attempt(query_id, str(data["query"]), tuple(calls), finish, answer)


Verdict: TypeAlias = str

VERDICTS: Mapping[Verdict, float] = {"solved": 1.0, "unsure": 0.5, "unsolved": 0.0}
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
    TypeError,
    ValueError,
)


class Judge:
    """Judges attempts with final answers, each in several runs."""

    name: str
    prompt_sha256 = ""

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        raise NotImplementedError

    def verdicts_of(
        self, pairs: Sequence[tuple[Attempt, int]]
    ) -> list[Verdict | LanguageModelError]:
        """Return the verdicts on attempts, each in a run; an error in the place of one that failed."""
        verdicts: list[Verdict | LanguageModelError] = []
        for attempt, run in pairs:
            try:
                verdicts.append(self.verdict(attempt, run))
            except LanguageModelError as error:
                verdicts.append(error)
        return verdicts


class CallableJudge(Judge):
    """A judge that is any function of an attempt and the number of the run."""

    def __init__(self, function: Callable[[Attempt, int], Verdict], name: str | None = None):
        self._function = function
        self.name = name or str(getattr(function, "__name__", "a callable"))

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        return self._function(attempt, run)


class LMJudge(Judge):
    """A language model as judge: first of the answer alone, where that does not tell of the calls too."""

    def __init__(self, model: LanguageModel, temperature: float = 0.0):
        self.model = model
        self._temperature = temperature
        self.name = str(getattr(model, "name", type(model).__name__))
        self._prompts: dict[str, str] = data_file("judge")
        prompts = json.dumps(self._prompts, sort_keys=True)
        self.prompt_sha256 = hashlib.sha256(prompts.encode()).hexdigest()

    def verdicts_of(
        self, pairs: Sequence[tuple[Attempt, int]]
    ) -> list[Verdict | LanguageModelError]:
        """Ask for all verdicts together, and again, with the steps, where the answer does not tell."""
        verdicts = self._ask("answer", pairs)
        unsure_indices = [index for index, verdict in enumerate(verdicts) if verdict == "unsure"]
        second_verdicts = self._ask("steps", [pairs[index] for index in unsure_indices])
        for index, verdict in zip(unsure_indices, second_verdicts, strict=True):
            verdicts[index] = verdict
        return verdicts

    def better(self, first: Attempt, second: Attempt, number: int) -> int:
        """Return which of two attempts the model prefers, 1 or 2; odd rounds show them in reverse."""
        # Models may prefer what stands first: each attempt does so in some of the rounds.
        is_reversed = number % 2 == 1
        attempts = (second, first) if is_reversed else (first, second)
        slots = {"query": first.query}
        for position, attempt in enumerate(attempts, 1):
            slots[f"answer_{position}"] = attempt.answer
            slots[f"steps_{position}"] = _written_calls(attempt)
        (reply,) = self._replies([(_filled(self._prompts["compare"], slots), number)])
        if isinstance(reply, LanguageModelError):
            raise reply
        digit = re.search(r"\b[12]\b", reply)
        if digit is None:
            raise LanguageModelError(
                f"expected 1 or 2 of the judge {self.name}, found {reply!r:.80}"
            )
        position = int(digit[0])
        return 3 - position if is_reversed else position

    def _ask(
        self, prompt: str, pairs: Sequence[tuple[Attempt, int]]
    ) -> list[Verdict | LanguageModelError]:
        texts = []
        for attempt, run in pairs:
            steps = _written_calls(attempt)
            slots = {"query": attempt.query, "answer": attempt.answer, "steps": steps}
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
        return [reply if isinstance(reply, LanguageModelError) else reply.text for reply in replies]


def _filled(template: str, slots: Mapping[str, str]) -> str:
    """Return a prompt with its slots filled; what fills one is not looked at again."""
    return re.sub(r"\{(\w+)\}", lambda slot: slots[slot[1]][:_LONGEST], template)


def _written_calls(attempt: Attempt) -> str:
    lines = []
    for number, call in enumerate(attempt.calls, 1):
        arguments = call.arguments
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, default=str)
        line = " ".join(arguments.split())
        lines.append(f"{number}. {call.name} {line} -> {call.response[:1024]}")
    return "\n".join(lines) or "(none)"


class RecordedJudge(Judge):
    """Verdicts that a reference evaluation wrote, or ``comap score tools``, by query and run."""

    def __init__(self, path: str | os.PathLike[str]):
        path = Path(path)
        if not path.is_file():
            raise DataNotFound(f"expected a result of a reference evaluation at {path}, found none")
        self.name = f"recorded: {path.name}"
        self.prompt_sha256 = ""
        try:
            self.verdicts = self._of_json(path)
        except _UNREADABLE as error:
            raise DataCorrupt(
                f"expected a pass-rate result of StableToolBench in {path}, found "
                f"{type(error).__name__}: {str(error)[:120]}"
            ) from error

    @property
    def runs(self) -> int:
        return max((max(row, default=-1) + 1 for row in self.verdicts.values()), default=0)

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        # Upstream's ids are without the split that ours begin with.
        key = attempt.query_id
        verdicts = self.verdicts.get(key) or self.verdicts.get(key.rpartition("/")[2], {})
        if run not in verdicts:
            raise LanguageModelError(f"{self.name} has no verdict on {key}, run {run}")
        return verdicts[run]

    def _of_json(self, path: Path) -> dict[str, dict[int, Verdict]]:
        data = json.loads(path.read_bytes())
        if not isinstance(data.get("sopr"), Mapping):
            return {str(key): _runs(entry["is_solved"]) for key, entry in data.items()}
        sopr = data["sopr"]

        # A result of ours says itself who judged; a run in which the judge failed has null.
        self.name = str(sopr["judge"])
        self.prompt_sha256 = str(sopr["prompt_sha256"])
        verdicts = {}
        for key, row in sopr["verdicts"].items():
            runs = {run: verdict for run, verdict in enumerate(row) if verdict is not None}
            verdicts[str(key)] = _runs(runs)
        return verdicts


def _runs(recorded: Mapping[Any, str]) -> dict[int, Verdict]:
    """Return verdicts by run; upstream writes them as ``AnswerStatus.Solved``."""
    verdicts = {
        int(run): str(verdict).rpartition(".")[2].lower() for run, verdict in recorded.items()
    }
    if strange := [run for run in verdicts if not 0 <= run < _MOST_RUNS]:
        raise ValueError(f"run {strange[0]!r:.12}, which is none from 0 to {_MOST_RUNS - 1}")
    if unknown := set(verdicts.values()) - VERDICTS.keys():
        raise ValueError(f"verdict {sorted(unknown)[0]!r:.40}")
    return verdicts


@dataclass(frozen=True, slots=True)
class PassReport:
    """Solvable pass rate (SoPR)."""

    mean: float
    std: float
    runs: tuple[float, ...]
    verdicts: Mapping[str, tuple[Verdict | None, ...]]
    failures: int
    judge: str
    prompt_sha256: str
    n: int

    @property
    def interval(self) -> Rate:
        rows = self.verdicts.values()
        judged = sum(any(verdict is not None for verdict in row) for row in rows)
        return wilson(min(self.mean, 1.0), judged)


def pass_rate(attempts: Mapping[str, Attempt], judge: Judge, runs: int = 3) -> PassReport:
    if not attempts or type(runs) is not int or runs < 1:
        raise OptionError(
            f"expected attempts and at least one run, found {len(attempts)} and {runs!r}"
        )

    # Without a final answer a query is unsolved: no judge is asked. All others are asked about at once.
    answered_keys = [
        key
        for key, attempt in attempts.items()
        if attempt.finish == "give_answer" and attempt.answer.strip()
    ]
    pairs = []
    for key in answered_keys:
        pairs += [(attempts[key], run) for run in range(runs)]
    replies = iter(judge.verdicts_of(pairs))
    verdicts: dict[str, tuple[Verdict | None, ...]] = dict.fromkeys(attempts, ("unsolved",) * runs)
    for key in answered_keys:
        verdicts[key] = tuple(_checked(next(replies), judge) for _ in range(runs))

    # The mean and the spread are over runs, as upstream's; a run in which all failed has none.
    means = []
    failures = 0
    for run in range(runs):
        row = [verdicts_of_query[run] for verdicts_of_query in verdicts.values()]
        values = [VERDICTS[verdict] for verdict in row if verdict is not None]
        failures += len(row) - len(values)
        if values:
            means.append(statistics.fmean(values))
    return PassReport(
        mean=statistics.fmean(means) if means else 0.0,
        std=statistics.pstdev(means) if means else 0.0,
        runs=tuple(means),
        verdicts=verdicts,
        failures=failures,
        judge=judge.name,
        prompt_sha256=judge.prompt_sha256,
        n=len(attempts),
    )


def _checked(verdict: Verdict | LanguageModelError, judge: Judge) -> Verdict | None:
    """Return a verdict; None where the judge failed."""
    if isinstance(verdict, LanguageModelError):
        return None
    if verdict not in VERDICTS:
        raise OptionError(
            f"expected {', '.join(VERDICTS)} of the judge {judge.name}, found {verdict!r:.80}"
        )
    return verdict


@dataclass(frozen=True, slots=True)
class WinReport:
    """Solvable win rate (SoWR) of attempts against reference attempts."""

    rate: float
    wins: int
    ties: int
    losses: int
    by_verdict: int
    failures: int
    n: int

    @property
    def interval(self) -> Rate:
        return wilson(self.rate, self.n)


def win_rate(
    attempts: Mapping[str, Attempt],
    reference: Mapping[str, Attempt],
    compare: Comparing,
    verdicts: Mapping[str, Sequence[Verdict | None]] | None = None,
    reference_verdicts: Mapping[str, Sequence[Verdict | None]] | None = None,
    rounds: int = 3,
) -> WinReport:
    """Return the solvable win rate.

    Where the majority of verdicts says solved of one attempt and unsolved of the other, that decides;
    otherwise the comparison does, by most wins over rounds. Upstream means that too, but its published
    code always compares, and never swaps positions; `LMJudge.better` does in every other
    round.
    """
    shared = [key for key in attempts if key in reference]
    if not shared or type(rounds) is not int or rounds < 1:
        raise OptionError(
            f"expected shared queries and a round, found {len(shared)} and {rounds!r}"
        )

    counts: Counter[str] = Counter()
    for key in shared:
        verdict = _majority(verdicts, key)
        reference_verdict = _majority(reference_verdicts, key)
        if {verdict, reference_verdict} == {"solved", "unsolved"}:
            counts["by_verdict"] += 1
            counts["wins" if verdict == "solved" else "losses"] += 1
            continue

        balance = 0
        for number in range(rounds):
            try:
                better = compare(attempts[key], reference[key], number)
            except LanguageModelError:
                counts["failures"] += 1
                continue
            balance += {1: 1, 2: -1}.get(better, 0)
        if balance > 0:
            counts["wins"] += 1
        elif balance < 0:
            counts["losses"] += 1
        else:
            counts["ties"] += 1

    return WinReport(
        rate=(counts["wins"] + counts["ties"] / 2) / len(shared),
        wins=counts["wins"],
        ties=counts["ties"],
        losses=counts["losses"],
        by_verdict=counts["by_verdict"],
        failures=counts["failures"],
        n=len(shared),
    )


def _majority(verdicts: Mapping[str, Sequence[Verdict | None]] | None, key: str) -> Verdict | None:
    """Return the verdict of most runs; None where two have as many, or no run has one."""
    row = [verdict for verdict in (verdicts or {}).get(key, ()) if verdict is not None]
    if not row:
        return None
    (first, count), *rest = Counter(row).most_common()
    return None if rest and rest[0][1] == count else first


def process_report(attempts: Mapping[str, Attempt]) -> dict[str, Any]:
    """Return what the calls alone tell: shares of attempts and calls, None where there were no calls.

    Cache misses are calls that no source could answer; a reference pipeline does not tell of them.
    """
    listed = list(attempts.values())
    statuses: list[str] = []
    sources: Counter[str] = Counter()
    for attempt in listed:
        statuses += [call.status for call in attempt.calls]
        sources.update(source for source in attempt.sources if source)

    errors = None
    cache_misses = None
    if statuses:
        errors = statistics.fmean(status != "ok" for status in statuses)
        miss_count = statuses.count("cache_miss")
        if miss_count or sources:
            cache_misses = miss_count / len(statuses)
    return {
        "errors": errors,
        "cache_misses": cache_misses,
        "finished": statistics.fmean(bool(attempt.finish) for attempt in listed),
        "answered": statistics.fmean(attempt.finish == "give_answer" for attempt in listed),
        "calls": len(statuses) / len(listed),
        "sources": sources,
    }
