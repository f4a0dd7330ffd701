"""`ScienceWorldEngine`: episodes on a simulator, going back by playing again, gold paths, true facts."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, NamedTuple

from ...errors import EngineError, SnapshotError
from ...facts import Fact
from .backends import Simulator
from .sentences import bucket, canonical_name

_QUESTION = "Ambiguous request:"
_CHOICE = re.compile(r"^(\d+):\t(.*)$", re.MULTILINE)
REFUSALS = ("No known action matches that input.", "Unknown action.")
"""What is answered to text that is no action, and to anything but a number when asked to choose."""


def choices_of(observation: str) -> tuple[str, ...]:
    r"""Return the actions that the simulator asks to choose from, in the order of their numbers."""
    if not observation.startswith(_QUESTION):
        return ()
    return tuple(text.strip() for _, text in _CHOICE.findall(observation))


def is_refusal(observation: str) -> bool:
    """Return whether an observation is the answer to something that is no action here."""
    return observation.lstrip().startswith(REFUSALS)


class Answer(NamedTuple):
    """What the simulator says of one action."""

    text: str
    points: int  # of 100; less than 0 once the task has failed
    completed: bool
    ticks: int  # since the task's start

    @property
    def score(self) -> float:
        return max(0, self.points) / 100

    @property
    def is_success(self) -> bool:
        return self.points >= 100


_LINES = 2
_IN_PLACE = 2  # so often an episode is played again where it was, before a second simulator starts


@dataclass
class _Line:
    """A simulator, and what was played on it since its task was loaded."""

    simulator: Simulator
    task: tuple[str, int] | None = None
    goal: str = ""
    first: Answer = field(default_factory=lambda: Answer("", 0, False, 0))
    steps: list[tuple[str, Answer]] = field(default_factory=list)
    valid: tuple[str, ...] | None = None
    digest: Any = field(default_factory=hashlib.sha256)

    def leads_to(self, task: tuple[str, int], actions: tuple[str, ...]) -> bool:
        """Return whether what was played is a beginning of these actions of this task."""
        played = tuple(action for action, _ in self.steps)
        return self.simulator.usable and self.task == task and played == actions[: len(played)]


class ScienceWorldEngine:
    """Plays tasks."""

    def __init__(self, make: Callable[[], Simulator], simplification: str):
        self.simplification = simplification
        self._make = make
        self._line: _Line | None = None
        self._parked: list[_Line] = []
        self._rewound = 0

    @property
    def task(self) -> tuple[str, int] | None:
        return None if self._line is None else self._line.task

    @property
    def goal(self) -> str:
        """The task in words; empty before the first."""
        return "" if self._line is None else self._line.goal

    @property
    def steps(self) -> list[tuple[str, Answer]]:
        """The actions since the task's start with what was answered."""
        return [] if self._line is None else self._line.steps

    def start(self, name: str, variation: int) -> Answer:
        """Load a task and look around; else the first action would seem to earn the start's points."""
        self._rewound = 0
        return self._start(name, variation)

    def act(self, action: str) -> Answer:
        line = self._playing()
        # What cannot be encoded means nothing to the simulator; a question mark neither.
        text = action.encode("utf-8", "replace").decode("utf-8")
        try:
            answer = _asked(line.simulator, text)
        except EngineError:
            self._give_up()
            raise
        if answer.ticks != self.last.ticks:
            line.valid = None  # where no time passes, nothing changes
        line.digest.update(repr(answer).encode())
        line.steps.append((action, answer))
        return answer

    def look(self) -> str:
        """Return what is seen; no time passes."""
        return str(self._playing().simulator.call("freeActionLook"))

    def inventory(self) -> str:
        """Return what is carried; no time passes."""
        return str(self._playing().simulator.call("freeActionInventory"))

    def progress(self) -> str:
        """Return the simulator's own account of which part of the goal is reached."""
        return str(self._playing().simulator.call("getGoalProgressStr"))

    def tree(self) -> dict[str, Any]:
        """Return all objects of the world, nested as they contain each other."""
        return self._playing().simulator.tree()

    def valid(self) -> tuple[str, ...]:
        """Return the actions that the simulator can carry out, sorted; hundreds to thousands."""
        line, menu = self._playing(), choices_of(self.last.text)
        if menu:
            return tuple(str(number) for number in range(len(menu)))
        if line.valid is None:
            line.valid = line.simulator.valid()
        return line.valid

    @property
    def jvm(self) -> int | None:
        """The process of the simulator's JVM, or None where it is this one or there is none."""
        return None if self._line is None else getattr(self._line.simulator, "pid", None)

    @property
    def playing(self) -> tuple[str, int]:
        task = self._playing().task
        assert task is not None
        return task

    @property
    def last(self) -> Answer:
        line = self._playing()
        return line.steps[-1][1] if line.steps else line.first

    def gold_path(self) -> tuple[str, ...]:
        """Return the simulator's own solution of this task; empty if it does not reach 100."""
        name, variation = self.playing
        simulator = self._playing().simulator
        saved = self.save()
        simulator.load(name, variation, self.simplification, True)
        path = simulator.texts("getGoldActionSequence")

        # Some of the simulator's solutions go on after the end, and some never get there.
        self._start(name, variation)
        length = 0
        for number, action in enumerate(path, 1):
            if self.act(action).points == 100:
                length = number
                break
        self.load(saved)
        return path[:length]

    def on_path(self, path: tuple[str, ...]) -> int | None:
        """Return how many actions of a path were taken, or None if the episode has left it."""
        # What took no time and asks for no choice changed nothing: the path is not left by it.
        position = 0
        ticks = 0
        for action, answer in self.steps:
            is_idle = answer.ticks == ticks and not choices_of(answer.text)
            ticks = answer.ticks
            if position < len(path) and action == path[position]:
                position += 1
            elif not is_idle:
                return None
        return position

    def save(self) -> dict[str, Any]:
        """Return the task, the actions so far and a hash of what they were answered."""
        name, variation = self.playing
        return {
            "task": (name, variation),
            "actions": tuple(action for action, _ in self.steps),
            "answers": self._playing().digest.hexdigest(),
        }

    def load(self, saved: Any) -> None:
        """Go to a moment that `save` returned, by playing its actions."""
        if not isinstance(saved, dict) or set(saved) != {"task", "actions", "answers"}:
            raise SnapshotError(
                f"expected a moment of a ScienceWorld episode, found {type(saved).__name__}; take "
                "the snapshot with the same version of comap"
            )

        # A simulator cannot go back. One that has played a beginning of the actions goes on from there;
        # otherwise the task is started anew.
        task = tuple(saved["task"])
        actions = tuple(saved["actions"])
        lines = []
        for line in (self._line, *self._parked):
            if line and line.leads_to(task, actions):
                lines.append(line)
        if lines:
            self._take(max(lines, key=lambda line: len(line.steps)))
        else:
            self._rewound += 1
            if self._rewound > _IN_PLACE:
                self._park()
            self._start(*task)
        for action in actions[len(self.steps) :]:
            self.act(action)

        played_line = self._playing()
        if played_line.digest.hexdigest() != saved["answers"]:
            played_line.task = None
            raise SnapshotError(
                f"expected the answers of the snapshot when its {len(actions)} actions are played "
                "again, found others; use the version of scienceworld that it was taken with"
            )

    def close(self, end: Callable[[Simulator], object] = methodcaller("close")) -> None:
        """Give all simulators up, by `end`; `start` makes a new one."""
        lines = [line for line in (self._line, *self._parked) if line is not None]
        self._line = None
        self._parked = []
        self._rewound = 0
        for line in lines:
            end(line.simulator)

    def _start(self, name: str, variation: int) -> Answer:
        """Play a task from its start, on the simulator that is played on, or on a new one."""
        if self._line is None or not self._line.simulator.usable:
            self._give_up()
            self._line = _Line(self._make())
        simulator = self._line.simulator
        self._line = line = _Line(simulator)  # until the task is loaded, none is played
        simulator.load(name, variation, self.simplification)
        line.goal = simulator.call("getTaskDescription").strip()
        line.first = _asked(simulator, "look around")
        line.digest.update(repr(line.first).encode())
        line.task = (name, variation)
        return line.first

    def _take(self, line: _Line) -> None:
        """Play on this line; the one that was played on waits."""
        if line is not self._line:
            self._parked.remove(line)
            if self._line is not None:
                self._parked.append(self._line)
            self._line = line

    def _park(self) -> None:
        """Let the line that is played on wait, and play on another simulator."""
        if self._parked:
            self._take(self._parked[0])
        elif self._line is not None and len(self._parked) + 1 < _LINES:
            self._parked.append(self._line)
            self._line = None

    def _give_up(self) -> None:
        if self._line is not None:
            self._line.simulator.close()
            self._line = None

    def _playing(self) -> _Line:
        if self._line is None or self._line.task is None:
            raise EngineError("expected a task that is played, found none; call env.reset()")
        self._line.simulator.check()
        return self._line


def _asked(simulator: Simulator, text: str) -> Answer:
    return Answer(
        simulator.call("step", text),
        round(100 * simulator.call("getScore")),
        simulator.call("getCompleted"),
        simulator.call("getNumMoves"),
    )


_REMEMBERED = 4096
_paths: OrderedDict[tuple[str, int, str], tuple[str, ...]] = OrderedDict()


def gold_path(engine: ScienceWorldEngine) -> tuple[str, ...]:
    """Return actions that solve the engine's task from its start; empty if none are known."""
    name, variation = engine.playing
    key = (name, variation, engine.simplification)
    if key not in _paths:
        _paths[key] = engine.gold_path()
        if len(_paths) > _REMEMBERED:
            _paths.popitem(last=False)
    return _paths[key]


_TERMINALS = re.compile(r"terminal \d|anode|cathode")


class Node(NamedTuple):
    """One thing of the tree."""

    name: str
    key: str
    place: str
    data: Mapping[str, Any]


def nodes(tree: Mapping[str, Any]) -> Iterator[Node]:
    """Yield the things of a tree, each before what is in it; terminals are left out."""
    # The simulator counts identifiers on from task to task: from the root's, they are those of any JVM.
    origin = int(tree["uuid"])
    for room in tree["contents"].values():
        if not _TERMINALS.fullmatch(room["name"]):
            name = str(room["name"]).lower()
            yield Node(name, name, "", room)
            yield from _below(room, name, origin)


def _below(data: Mapping[str, Any], place: str, origin: int) -> Iterator[Node]:
    """Yield what is in a thing, whose key is `place`; the agent and its inventory have no number."""
    for child in data["contents"].values():
        name = str(child["name"]).lower()
        if _TERMINALS.fullmatch(name):
            continue
        if name in ("agent", "inventory"):
            yield Node(name, name, place if name == "agent" else "", child)
            yield from _below(child, name, origin)
            continue

        bare_name, _ = canonical_name(name)
        key = f"{bare_name}@{int(child['uuid']) - origin}"
        yield Node(bare_name, key, place, child)
        yield from _below(child, key, origin)


def tree_facts(tree: Mapping[str, Any]) -> frozenset[Fact]:
    """Return what an object tree says, in the words of belief facts."""
    facts: set[Fact] = set()
    terminal_names: dict[str, str] = {}
    wires: list[tuple[str, str]] = []
    for node in nodes(tree):
        if node.name == "agent":
            facts.add(("room", "agent", node.place))
        elif node.place == "inventory":
            facts.add(("holding", node.key))
        elif node.place:
            facts.add(("in", node.key, node.place))
        facts.update(_state_facts(node))

        # Terminals are no things of their own: a fact names them by what they belong to.
        for child in node.data["contents"].values():
            wiring = child.get("propElectricalConnection")
            if wiring is not None and _TERMINALS.fullmatch(child["name"]):
                terminal_names[child["uuid"]] = f"{node.key}.{child['name']}"
                wires += [(child["uuid"], uuid) for uuid in wiring["connectedTo"]]

    # Only now, since a wire may lead to a terminal further down; sorted, since either end may list it.
    for first, second in wires:
        if first in terminal_names and second in terminal_names:
            ends = sorted((terminal_names[first], terminal_names[second]))
            facts.add(("connected", *ends))
    return frozenset(facts)


def _state_facts(node: Node) -> Iterator[Fact]:
    """Yield what the tree says of one thing beside its place."""
    data = node.data
    key = node.key
    container = data.get("propContainer")
    device = data.get("propDevice")
    material = data.get("propMaterial")
    life = data.get("propLife")

    if container and container["isClosable"]:
        yield ("open" if container["isOpen"] else "closed", key)
    if device and (device["isActivable"] or device["isActivated"]):
        yield ("active" if device["isActivated"] else "inactive", key)
    if material:
        yield ("phase", key, str(material["stateOfMatter"]))
        yield ("temp", key, bucket(float(material["temperatureC"])))
        if material["isCombusting"]:
            yield ("burning", key)
        if material["hasCombusted"]:
            yield ("burnt", key)
    if life and life["isDead"]:
        yield ("stage", key, "dead")
