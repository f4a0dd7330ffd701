"""`ScienceWorldEngine`: one episode after the other on a simulator.

The simulator is only ever loaded, never reset: after a load with a gold path, its reset works that
path out again each time. Looks, inventories and lists of actions ask for nothing that takes time or
changes anything; they are fetched when somebody wants them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import EngineError, SnapshotError
from .menu import choices_of
from .simulator import Simulator

__all__ = ["Answer", "ScienceWorldEngine"]


class Answer(NamedTuple):
    """What the simulator says of one action.

    Attributes:
        text: The observation.
        points: The score after it, -100 to 100.
        completed: Whether the simulator says that the task is over.
        ticks: How much time of the simulated world has passed since the start.
    """

    text: str
    points: int
    completed: bool
    ticks: int


class ScienceWorldEngine:
    """Plays tasks.

    Args:
        make: Returns a simulator; called again after one has failed.
        simplification: As for the environment.

    Example:
        >>> from comap.envs.scienceworld.backends import make_simulator
        >>> engine = ScienceWorldEngine(lambda: make_simulator("py4j"), "easy")
        >>> engine.start("boil", 0).ticks  # doctest: +SKIP
        0
    """

    def __init__(self, make: Callable[[], Simulator], simplification: str):
        self.simplification = simplification
        self._make = make
        self._simulator: Simulator | None = None
        self.task: tuple[str, int] | None = None
        self.goal = ""
        self.steps: list[tuple[str, Answer]] = []
        self._first = Answer("", 0, False, 0)
        self._valid: tuple[str, ...] | None = None
        self._digest = hashlib.sha256()

    def start(self, name: str, variation: int) -> Answer:
        """Load a task and look around, which takes no time; return what is seen.

        That look, as upstream's reset has it, makes the simulator count the points that the start
        is worth; without it, whatever is done first would seem to earn them.
        """
        simulator = self._ready()
        self.task = None
        simulator.load(name, variation, self.simplification)
        self.task = (name, variation)
        self.goal = simulator.call("getTaskDescription").strip()
        self.steps, self._digest, self._valid = [], hashlib.sha256(), None
        self._first = self._note(_asked(simulator, "look around"))
        return self._first

    def act(self, action: str) -> Answer:
        """Take one action.

        Raises:
            EngineError: The simulator failed; it is given up.
        """
        simulator = self._playing()
        # What cannot be encoded means nothing to the simulator; a question mark neither.
        text = action.encode("utf-8", "replace").decode("utf-8")
        try:
            answer = _asked(simulator, text)
        except EngineError:
            self.close()
            raise
        if answer.ticks != self.last.ticks:
            self._valid = None  # where no time passes, nothing changes
        self.steps.append((action, self._note(answer)))
        return answer

    def look(self) -> str:
        """Return what is seen; no time passes."""
        return str(self._playing().call("freeActionLook"))

    def inventory(self) -> str:
        """Return what is carried; no time passes."""
        return str(self._playing().call("freeActionInventory"))

    def progress(self) -> str:
        """Return the simulator's own account of which part of the goal is reached."""
        return str(self._playing().call("getGoalProgressStr"))

    def tree(self) -> dict[str, Any]:
        """Return all objects of the world, nested as they contain each other."""
        return self._playing().tree()

    def valid(self) -> tuple[str, ...]:
        """Return the actions that the simulator can carry out, sorted; hundreds to thousands.

        While it asks which of several actions was meant, they are the numbers of the menu.
        """
        simulator, menu = self._playing(), choices_of(self.last.text)
        if menu:
            return tuple(str(number) for number in range(len(menu)))
        if self._valid is None:
            self._valid = simulator.valid()
        return self._valid

    @property
    def jvm(self) -> int | None:
        """The process of the simulator's JVM, or None where it is this one or there is none."""
        return getattr(self._simulator, "pid", None)

    @property
    def playing(self) -> tuple[str, int]:
        """Name and variation of the task.

        Raises:
            EngineError: None is played.
        """
        self._playing()
        assert self.task is not None
        return self.task

    @property
    def last(self) -> Answer:
        """What was answered last."""
        return self.steps[-1][1] if self.steps else self._first

    def gold_path(self) -> tuple[str, ...]:
        """Return the simulator's own solution of this task; empty if it does not reach 100.

        Working it out starts the simulator anew; the episode is played again afterwards, from its
        start, and must answer as it did.
        """
        name, variation = self.playing
        simulator, saved = self._playing(), self.save()
        simulator.load(name, variation, self.simplification, True)
        path = simulator.texts("getGoldActionSequence")
        self.start(name, variation)
        needed = next((n for n, it in enumerate(path, 1) if self.act(it).points == 100), 0)
        self.load(saved)
        return path[:needed]

    def on_path(self, path: tuple[str, ...]) -> int | None:
        """Return how many actions of a path were taken, or None if the episode has left it.

        Actions that took no time and left no question open do not leave it.
        """
        place, ticks = 0, 0
        for action, answer in self.steps:
            idle = answer.ticks == ticks and not choices_of(answer.text)
            ticks = answer.ticks
            if place < len(path) and action == path[place]:
                place += 1
            elif not idle:
                return None
        return place

    def save(self) -> dict[str, Any]:
        """Return the task, the actions so far and a hash of what they were answered."""
        name, variation = self.playing
        return {
            "task": (name, variation),
            "actions": tuple(action for action, _ in self.steps),
            "answers": self._digest.hexdigest(),
        }

    def load(self, saved: Any) -> None:
        """Go to a moment that `save` returned, by playing its actions.

        If this episode began with the same actions and has taken no other, only the rest is played.

        Raises:
            SnapshotError: It is no such moment, or the answers are not those of the first time.
        """
        if not isinstance(saved, dict) or set(saved) != {"task", "actions", "answers"}:
            raise SnapshotError(
                f"expected a moment of a ScienceWorld episode, found {type(saved).__name__}; take "
                "the snapshot with the same version of comap"
            )
        actions: tuple[str, ...] = saved["actions"]
        done = [action for action, _ in self.steps]
        usable = self._simulator is not None and self._simulator.usable
        if not usable or self.task != tuple(saved["task"]) or done != list(actions[: len(done)]):
            self.start(*saved["task"])
        for action in actions[len(self.steps) :]:
            self.act(action)
        if self._digest.hexdigest() != saved["answers"]:
            self.task = None
            raise SnapshotError(
                f"expected the answers of the snapshot when its {len(actions)} actions are played "
                "again, found others; use the version of scienceworld that it was taken with"
            )

    def close(self, end: Callable[[Simulator], object] = Simulator.close) -> None:
        """Give the simulator up, by `end`; `start` makes a new one."""
        simulator, self._simulator, self.task = self._simulator, None, None
        if simulator is not None:
            end(simulator)

    def _ready(self) -> Simulator:
        """Return a simulator that can be asked, if need be a new one."""
        simulator = self._simulator
        if simulator is not None and simulator.usable:
            return simulator
        self.close()
        self._simulator = self._make()
        return self._simulator

    def _playing(self) -> Simulator:
        if self._simulator is None or self.task is None:
            raise EngineError("expected a task that is played, found none; call env.reset()")
        self._simulator.check()
        return self._simulator

    def _note(self, answer: Answer) -> Answer:
        """Count an answer in for `save`."""
        self._digest.update(repr(answer).encode())
        return answer


def _asked(simulator: Simulator, text: str) -> Answer:
    return Answer(
        simulator.call("step", text),
        round(100 * simulator.call("getScore")),
        simulator.call("getCompleted"),
        simulator.call("getNumMoves"),
    )
