"""Tasks of WebVoyager, Mind2Web-Live and GAIA-web: a user's files of them, and how they are scored.

WebVoyager's tasks are judged by a language model; GAIA's by its official rules (`gaia_correct`), or by
a language model; Mind2Web-Live's by key nodes (Pan et al., WebCanvas, 2024). A step is scored on the
page before its action and with its target, so an address that the last action reaches does not count.
A node keeps its highest score, and their order makes no difference.

GAIA may not be passed on where machines can read it: comap has none of its tasks, and a record of an
episode should be kept as its id and its verdict.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import statistics
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, unquote, urlparse, urlsplit

from ...errors import DataCorrupt, DataNotFound, OptionError, check_choice
from ...trajectory import Trajectory
from ..storage import data_path, named_folder
from .engine import Effect, Refused, check_address
from .judge import Judge
from .sites import World, world_of
from .templates import Draft

FILES: Mapping[str, str] = {
    "webvoyager": "WebVoyager_data.jsonl",
    "mind2web-live": "mind2web-live_test_20241024.json",
    "gaia-web": "GAIA_web.jsonl",
}
_KINDS = (
    "url_included_match",
    "url_exactly_match",
    "url_semantic_match",
    "element_value_included_match",
    "element_value_exactly_match",
    "element_value_semantic_match",
    "element_path_exactly_match",
)
# A selector that finds only text, or the box around some, is met at the link or button it is in.
_INSIDE = frozenset(("span", "h1", "h2", "h3", "h4", "h5", "h6", "div", "li", "ul", "p"))
_ANCESTORS = 3
_LEAST_STEPS = 10
_MOST_STEPS = 25


class Acted(NamedTuple):
    """What a step is scored by.

    Attributes:
        url: The whole address of the page before the action.
        line: The number of the line that the action names; 0 for none.
        value: What it types or chooses, else the text of that line.
        chain: See `Chromium.chain`; None where the engine has no selectors.
    """

    url: str
    line: int = 0
    value: str = ""
    chain: Callable[[str], Sequence[tuple[str, int]]] | None = None


class LiveNode(NamedTuple):
    """A key node of Mind2Web-Live."""

    kind: str  # the name of its match function
    reference: str  # a text, or in words for a semantic match
    key: str = ""  # of the address's query; empty for the address as a whole
    site: str = ""  # of an element, its site's name
    path: str = ""  # an element's CSS selector; empty for any

    def scorable(self, has_judge: bool, has_selectors: bool) -> bool:
        """Return whether it can be scored: meaning needs a judge, a selector a browser."""
        return (has_judge or "_semantic_" not in self.kind) and (has_selectors or not self.path)

    def score(self, acted: Acted, judge: Judge | None = None) -> float:
        """Return how far a step meets it, 0 to 1; 0 where it cannot be scored."""
        if not self.scorable(judge is not None, acted.chain is not None):
            return 0.0

        text: str | None
        comparison = self.kind.split("_")[-2]  # included, exactly or semantic
        if self.kind.startswith("url"):
            text = _part_of(acted.url, self.key, comparison)
        else:
            if not acted.line or site_of(acted.url) != self.site:
                return 0.0
            if self.path and acted.chain and not _is_target(acted.chain(self.path), acted.line):
                return 0.0
            if self.kind.startswith("element_path"):
                return 1.0
            text = acted.value

        if comparison == "semantic":
            return judge.agreement(text, self.reference) if judge and text else 0.0
        if text is None:
            return 0.0
        is_met = self.reference == text if comparison == "exactly" else self.reference in text
        return float(is_met)


def site_of(url: str) -> str:
    """Return the name of an address's site, as key nodes have it: ``kohls`` of ``www.kohls.com``."""
    return urlsplit(url).netloc.removeprefix("www.").partition(".")[0]


def _part_of(url: str, key: str, comparison: str) -> str | None:
    """Return the part of an address that is compared; None where it has not got the key."""
    parts = urlparse(url)
    if key:
        values = parse_qs(parts.query).get(key)
        return unquote(values[0]) if values else None  # unquoted twice, as upstream
    if comparison != "included":
        return unquote(url)

    # Without scheme and query, so that what is included is part of a page's name.
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return unquote(parts.netloc + parts.path + fragment)


def _is_target(chain: Sequence[tuple[str, int]], line: int) -> bool:
    """Return whether a line is the first element, or one of the three around it where it is only text."""
    reach = 1 + _ANCESTORS if chain and chain[0][0] in _INSIDE else 1
    return any(number == line for _, number in chain[:reach])


@dataclass(frozen=True, slots=True)
class LiveTask:
    """A task of a file."""

    id: str  # <benchmark>/<the file's id>
    benchmark: str
    split: str  # what the environment's user calls the file
    draft: Draft  # goal, start and, of GAIA, the true answer
    nodes: tuple[LiveNode, ...] = ()
    reference: int = 0  # steps of Mind2Web-Live's annotator; 0 elsewhere
    url: str = ""  # the start with its scheme, for live sites
    plan: ClassVar[tuple[str, ...]] = ()

    @property
    def world(self) -> World:
        """The instance of the sites that stand in for hosts in tests."""
        return world_of(0)

    @property
    def limit(self) -> int | None:
        """The most steps: Mind2Web-Live's rule, without its extra steps for addresses with "error"."""
        if not self.nodes:
            return None
        return min(_MOST_STEPS, max(_LEAST_STEPS, 3 * self.reference // 2))

    def meets(self, nodes_met: frozenset[int], url: str, effect: Effect) -> frozenset[int]:
        """Return the nodes met so far: here steps are scored before they are taken."""
        return nodes_met

    def scored(
        self, scores: Sequence[float], acted: Acted, judge: Judge | None
    ) -> tuple[float, ...]:
        """Return the scores of the nodes after a step."""
        # A node that is met stays met, and no judge is asked about it again.
        scores_before = scores or (0.0,) * len(self.nodes)
        scores_after = []
        for score, node in zip(scores_before, self.nodes, strict=True):
            if score != 1:
                score = max(score, node.score(acted, judge))
            scores_after.append(score)
        return tuple(scores_after)

    def share(self, scores: Sequence[float], verdict: str) -> float:
        """Return the score of an episode, 0 to 1: of its nodes, or of its verdict."""
        if self.nodes:
            return sum(scores) / len(self.nodes)
        return float(verdict == "success")

    def verdict(self, answer: str, pages: Sequence[str], judge: Judge | None) -> str:
        """Return ``success``, ``failure`` or ``unsure``, or why there is no verdict."""
        if self.benchmark == "mind2web-live":
            return ""
        if judge is None and self.benchmark == "webvoyager":
            return "not judged: give judge=, a language model"

        is_right: bool | None
        if judge is None:
            is_right = gaia_correct(answer, self.draft.answer)
        elif self.benchmark == "gaia-web":
            is_right = judge.same(self.draft.goal, answer, self.draft.answer)
        else:
            is_right = judge.success(self.draft.goal, answer, pages)
        if is_right is None:
            return "unsure"
        return "success" if is_right else "failure"

    def unscored(self, has_judge: bool, has_selectors: bool) -> str:
        """Return in words how many nodes cannot be scored, which count as 0; nothing where all can."""
        number = sum(not node.scorable(has_judge, has_selectors) for node in self.nodes)
        if not number:
            return ""
        missing = []
        if not has_judge:
            missing.append("a judge")
        if not has_selectors:
            missing.append("a browser")
        return f"{number} of {len(self.nodes)} key nodes need {' or '.join(missing)}"


class TaskFile(NamedTuple):
    """The tasks of a file, by id; the hosts where they start; the start of the file's SHA-256."""

    tasks: Mapping[str, LiveTask]
    hosts: frozenset[str]
    sha256: str


def open_tasks(
    benchmark: str,
    data_dir: str | os.PathLike[str] | None,
    tasks: str | os.PathLike[str] | None,
    split: str,
) -> TaskFile:
    """Return the tasks of a file, or of the official one in a folder."""
    folder = data_path("web") if data_dir is None else named_folder(data_dir)
    path = folder / FILES[benchmark] if tasks is None else named_folder(tasks, "tasks")
    live_tasks = read_tasks(benchmark, path, split)
    hosts = frozenset(task.draft.start.partition("/")[0] for task in live_tasks.values())
    return TaskFile(live_tasks, hosts, hashlib.sha256(path.read_bytes()).hexdigest()[:16])


def read_tasks(
    benchmark: str, path: str | os.PathLike[str], split: str = "test"
) -> dict[str, LiveTask]:
    """Return the tasks of a file of WebVoyager, Mind2Web-Live or GAIA-web, by id.

    Args:
        benchmark: ``"webvoyager"`` (lines with id, ques, web; OpenWebVoyager's too), ``"mind2web-live"``
            (index, task, reference_task_length, evaluation; they start at the site of their first
            node, or at ``web``) or ``"gaia-web"`` (lines with id, ques, web, Final answer).
        path: The file: JSON lines, or one list.
        split: What to call them.

    Raises:
        OptionError: There is no such benchmark.
        DataNotFound: There is no such file.
        DataCorrupt: A line is not what the benchmark has; the message has its number.

    Example:
        >>> from pathlib import Path
        >>> line = '{"id": "Shop--0", "ques": "What is the cheapest lamp?", "web": "http://shop.test/"}'
        >>> _ = Path("tasks.jsonl").write_text(line)
        >>> read_tasks("webvoyager", "tasks.jsonl")["webvoyager/Shop--0"].draft.start
        'shop.test/'
    """
    check_choice("benchmark", benchmark, FILES)
    path = Path(path)
    tasks: dict[str, LiveTask] = {}
    read = _mind2web if benchmark == "mind2web-live" else _question
    for line, record in _records(path, benchmark):
        try:
            task = read(_Record(record), benchmark, split)
            if task.id in tasks:
                raise _Unfit(f"another id than {task.id.partition('/')[2]!r:.80}", "it twice")
        except _Unfit as unfit:
            expected, actual = unfit.args
            raise _corrupt(path, line, expected, actual) from None
        tasks[task.id] = task
    if not tasks:
        raise _corrupt(path, 1, f"tasks of {benchmark}", "none")
    return tasks


class _Unfit(ValueError):
    """A record is none of the benchmark; its arguments are what was expected and what was found."""


def _corrupt(path: Path, line: int, expected: str, actual: str) -> DataCorrupt:
    return DataCorrupt(
        f"expected {expected} in line {line} of {path}, found {actual}; mend that line, or give another "
        "file"
    )


def _records(path: Path, benchmark: str) -> Iterator[tuple[int, Any]]:
    """Yield what a file of JSON lines, or of one list, holds, with the numbers of the lines."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise DataNotFound(
            f"expected tasks of {benchmark} at {path}, found: {error.strerror}; give tasks=FILE, or "
            f"data_dir=FOLDER with {FILES[benchmark]} in it"
        ) from error
    except UnicodeDecodeError as error:
        raise _corrupt(path, 1, "text in UTF-8", "binary data") from error

    # Record by record, not `json.loads` of it all: an error names the line of the record it is in.
    decoder = json.JSONDecoder()
    is_list = text.lstrip()[:1] == "["
    gap_pattern = re.compile(r"[\s,]*" if is_list else r"\s*")
    position = text.index("[") + 1 if is_list else 0
    line = 1 + text.count("\n", 0, position)
    while True:
        gap = gap_pattern.match(text, position)
        assert gap is not None
        line += gap[0].count("\n")
        start = gap.end()
        if start == len(text) or (is_list and text[start] == "]"):
            return
        try:
            record, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            error_line = line + text.count("\n", start, getattr(error, "pos", start))
            raise _corrupt(path, error_line, "JSON", f"{text[start : start + 40]!r}") from error
        yield line, record
        line += text.count("\n", start, position)


_TYPES = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "an object"}


class _Record:
    """A record of a file, whose members are checked when they are asked for."""

    def __init__(self, members: Any):
        if not isinstance(members, dict):
            raise _Unfit("a JSON object", type(members).__name__)
        self._members = members

    def get(self, name: str, *kinds: type[Any]) -> Any:
        """Return a member of one of some types, text by default, and never empty."""
        kinds = kinds or (str,)
        value = self._members.get(name)

        # Half a surrogate pair, which JSON can write, is no text: no page or model could be sent it.
        is_broken = isinstance(value, str) and value != value.encode("utf-8", "replace").decode()
        if type(value) not in kinds or value in ("", [], {}) or is_broken:
            expected = " or ".join(_TYPES[kind] for kind in kinds)
            actual = "none" if value is None else f"{value!r:.80}"
            raise _Unfit(f"{expected} under {name!r}", actual)
        return value

    def text(self, name: str) -> str:
        """Return a text that may be empty or missing."""
        return str(self.get(name)).strip() if self._members.get(name) else ""

    def start(self, name: str) -> str:
        """Return an address as engines take it."""
        url = self.get(name)
        try:
            host = urlsplit(url if "://" in url else f"http://{url}").hostname
            return check_address(url, (str(host),))
        except (Refused, ValueError):
            expected = f"an address such as 'https://www.example.org/' under {name!r}"
            raise _Unfit(expected, f"{url!r:.80}") from None


def _question(record: _Record, benchmark: str, split: str) -> LiveTask:
    """Return the task of a record of WebVoyager or GAIA-web, which differ in the true answer."""
    truth = ""
    if benchmark == "gaia-web":
        truth = str(record.get("Final answer", str, int, float))
    draft = Draft(0, record.get("ques"), record.start("web"), (), truth, (), ())
    name = f"{benchmark}/{record.get('id', str, int)}"
    return LiveTask(name, benchmark, split, draft, url=record.get("web"))


def _mind2web(record: _Record, benchmark: str, split: str) -> LiveTask:
    """Return the task of a record of Mind2Web-Live."""
    node_records = [_Record(member) for member in record.get("evaluation", list)]
    url = record.text("web")
    start = record.start("web") if url else ""

    # Upstream's records do not say where a task starts: it is the site of the first key node.
    if not start:
        content = _Record(node_records[0].get("content", dict))
        start = content.start("url").partition("/")[0] + "/"
        scheme, separator, _ = content.get("url").partition("://")
        url = f"{scheme}://{start}" if separator else start

    draft = Draft(0, record.get("task"), start, (), "", (), ())
    name = f"{benchmark}/{record.get('index', int, str)}"
    nodes = tuple(map(_node, node_records))
    steps = record.get("reference_task_length", int)
    return LiveTask(name, benchmark, split, draft, nodes, steps, url)


def _node(record: _Record) -> LiveNode:
    """Return a key node; raise `_Unfit` for one of a kind that cannot be scored here."""
    kind = record.get("match_function_name")
    content = _Record(record.get("content", dict))
    if kind not in _KINDS:
        raise _Unfit(f"one of {', '.join(_KINDS)} under 'match_function_name'", f"{kind!r:.80}")
    reference = content.get("reference_answer")
    if kind.startswith("url"):
        return LiveNode(kind, reference, content.text("key"))
    site = content.get("netloc")
    if kind.startswith("element_value"):
        return LiveNode(kind, reference, site=site, path=content.text("path"))
    if (method := record.get("method")) != "selector":
        raise _Unfit("the method 'selector'", f"{method!r:.80}")
    return LiveNode(kind, reference, site=site, path=reference.strip())


_NOT_DIGITS = str.maketrans("", "", "$%,")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def gaia_correct(answer: str, truth: str) -> bool:
    """Return whether an answer is right by GAIA's official rules (Mialon et al., 2023).

    A true answer that is a number is compared as one, without ``$ % ,`` in the answer. One with a comma
    or semicolon is a list: both are split there, and each part is compared as a number or as a text
    without blanks, in any case. Any other is compared without blanks and punctuation.

    Args:
        answer: What was answered.
        truth: The true answer.

    Example:
        >>> gaia_correct("$1,250.0", "1250"), gaia_correct("Oak; 3 %", "oak, 3"), gaia_correct("3", "3, 4")
        (True, True, False)
        >>> gaia_correct("the Red-Lamp.", "The red lamp"), gaia_correct("about 12", "12")
        (True, False)
    """
    if _is_number(truth):
        return _number(answer) == float(truth)
    if "," not in truth and ";" not in truth:
        return _squeezed(answer).translate(_PUNCTUATION) == _squeezed(truth).translate(_PUNCTUATION)

    # A list is right only as a whole, in its order.
    parts = re.split("[,;]", answer)
    true_parts = re.split("[,;]", truth)
    return len(parts) == len(true_parts) and all(map(_is_same_part, parts, true_parts))


def _is_same_part(part: str, true_part: str) -> bool:
    """Return whether a part of a list is the true one; punctuation counts here, as upstream."""
    if _is_number(true_part):
        return _number(part) == float(true_part)
    return _squeezed(part) == _squeezed(true_part)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    """Return the number that an answer is; infinity, as upstream, where it is none."""
    text = text.translate(_NOT_DIGITS)
    return float(text) if _is_number(text) else math.inf


def _squeezed(text: str) -> str:
    return "".join(text.split()).lower()


@dataclass(frozen=True, slots=True)
class KeyNodeReport:
    """Scores of Mind2Web-Live over episodes; shares are from 0 to 1.

    Attributes:
        completion: Sum of the scores of all nodes over their number (key node completion rate).
        step_score: Mean share of an episode's nodes (average step score rate).
        success: Share of episodes that met all nodes.
        near_success: Share of episodes that were one short.
        efficiency: Mean number of steps for each node; 0 for an episode that met none, as upstream.
        length: Mean of 1.2 times the annotator's steps over the episode's, at most 1.
        n: Number of episodes.
    """

    completion: float
    step_score: float
    success: float
    near_success: float
    efficiency: float
    length: float
    n: int


def key_node_report(
    trajectories: Iterable[Trajectory], tasks: Mapping[str, LiveTask]
) -> KeyNodeReport:
    """Return the scores of Mind2Web-Live over recorded episodes.

    Args:
        trajectories: Episodes of ``benchmark="mind2web-live"``.
        tasks: What `read_tasks` returned for the file that was played.

    Raises:
        OptionError: There is no episode, or one is of a task that is not in the file.
    """
    episodes: list[_Episode] = []
    for trajectory in trajectories:
        task = tasks.get(trajectory.task)
        if task is None or not task.nodes:
            raise OptionError(
                f"expected episodes of {len(tasks)} tasks with key nodes, found one of "
                f"{trajectory.task!r:.80}; read the file that was played"
            )
        # Judges give hundredths; what dividing and multiplying adds to them is rounded away.
        score = round(trajectory.score * len(task.nodes), 2)
        episodes.append(_Episode(score, len(task.nodes), len(trajectory.steps), task.reference))
    if not episodes:
        raise OptionError("expected episodes, found none; give those of benchmark='mind2web-live'")

    mean = statistics.fmean
    total_score = sum(episode.score for episode in episodes)
    total_nodes = sum(episode.nodes for episode in episodes)
    return KeyNodeReport(
        completion=total_score / total_nodes,
        step_score=mean(episode.score / episode.nodes for episode in episodes),
        success=mean(episode.score == episode.nodes for episode in episodes),
        near_success=mean(episode.nodes - episode.score == 1 for episode in episodes),
        efficiency=mean(episode.steps_per_node for episode in episodes),
        length=mean(episode.length_score for episode in episodes),
        n=len(episodes),
    )


class _Episode(NamedTuple):
    """What a report needs to know of an episode."""

    score: float  # the sum of those of its nodes
    nodes: int
    steps: int
    reference: int  # the annotator's steps

    @property
    def steps_per_node(self) -> float:
        return self.steps / self.score if self.score else 0.0

    @property
    def length_score(self) -> float:
        return min(1.0, 1.2 * self.reference / max(self.steps, 1))
