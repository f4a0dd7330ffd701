"""How the engine goes back, with simulators that count; no Java is needed."""

from __future__ import annotations

import os
from typing import Any

import pytest

from comap.envs.scienceworld.backends import Simulator
from comap.envs.scienceworld.engine import ScienceWorldEngine
from comap.errors import EngineError, SnapshotError


class Counting(Simulator):
    """Answers with everything that was done since the load; notes loads and steps."""

    def __init__(self) -> None:
        self.alive, self.process = True, os.getpid()
        self.loads, self.steps, self.done, self.twist = 0, 0, [""], ""

    def call(self, method: str, *arguments: Any) -> Any:
        self.check()
        if method == "load":
            self.loads, self.done = self.loads + 1, [f"{arguments[0]}/{arguments[1]}"]
        elif method == "step":
            if arguments[0] == "break":
                self.alive = False
                raise EngineError("broken")
            self.steps += 1
            self.done.append(arguments[0])
            return self.twist + " ".join(self.done)
        answers = {"getScore": 0.0, "getCompleted": False, "getNumMoves": len(self.done)}
        return answers.get(method, "")

    def texts(self, method: str) -> tuple[str, ...]:
        return ()

    def draw(self, *, aside: bool) -> None:
        """Nothing is random here."""

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def simulators() -> list[Counting]:
    """The simulators that the engine has asked for."""
    return []


@pytest.fixture
def engine(simulators: list[Counting]) -> ScienceWorldEngine:
    def make() -> Counting:
        simulators.append(Counting())
        return simulators[-1]

    return ScienceWorldEngine(make, "easy")


def test_what_is_tried_leaves_the_real_episode_alone(
    engine: ScienceWorldEngine, simulators: list[Counting]
) -> None:
    engine.start("boil", 0)
    for step in range(12):
        present = engine.save()
        tried_text = engine.act("try").text
        engine.load(present)
        assert engine.act("try").text == tried_text == f"boil/0 look around {'go ' * step}try"
        engine.load(present)
        assert engine.act("go").text == tried_text.removesuffix("try") + "go"
    assert len(simulators) == 2
    engine.close()
    assert not any(simulator.alive for simulator in simulators)


def test_an_oracle_that_goes_along_plays_nothing_twice(
    engine: ScienceWorldEngine, simulators: list[Counting]
) -> None:
    engine.start("boil", 0)
    costs = []
    for _ in range(20):
        before = sum(simulator.steps for simulator in simulators)
        present = engine.save()
        engine.act("go")
        engine.load(present)
        engine.act("go")
        costs.append(sum(simulator.steps for simulator in simulators) - before)
    assert len(simulators) == 2 and set(costs[4:]) == {2}


def test_a_broken_simulator_is_replaced_and_the_other_kept(
    engine: ScienceWorldEngine, simulators: list[Counting]
) -> None:
    engine.start("boil", 0)
    for _ in range(4):
        present = engine.save()
        engine.act("go")
        engine.load(present)
    assert len(simulators) == 2
    with pytest.raises(EngineError, match="broken"):
        engine.act("break")
    assert [simulator.alive for simulator in simulators].count(True) == 1
    with pytest.raises(EngineError, match=r"call env\.reset"):
        engine.act("go")
    engine.load(present)
    assert engine.act("go").text == "boil/0 look around go"
    engine.close()
    assert not any(simulator.alive for simulator in simulators)


def test_other_answers_than_the_first_time_are_told(
    engine: ScienceWorldEngine, simulators: list[Counting]
) -> None:
    engine.start("boil", 0)
    engine.act("go")
    moment = engine.save()
    engine.start("boil", 1)
    simulators[0].twist = "not "
    with pytest.raises(SnapshotError, match="found others"):
        engine.load(moment)
    assert engine.task is None
    with pytest.raises(EngineError, match=r"none is played|found none"):
        engine.save()
