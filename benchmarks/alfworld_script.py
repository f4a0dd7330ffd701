"""`script_of`: the commands that both sides of a comparison are given."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..envs.alfworld.engine import NativeEngine
from ..envs.alfworld.game import Game

__all__ = ["script_of"]

_SIDE_STEPS = 3
_TRIES = 8
_MOST_STEPS = 50


def script_of(game: Game, seed: int) -> list[str]:
    """Return the game's walkthrough with random admissible commands in between, 50 at most.

    A side step is kept if it does not win and the rest of the walkthrough still wins after it.

    Args:
        game: The game; it must have a walkthrough.
        seed: Seeds the choice of side steps.

    Example:
        >>> from comap.envs.alfworld.generate import generate
        >>> game = Game(generate("train", 0).problem)
        >>> script = script_of(game, 0)
        >>> [command for command in game.problem.walkthrough if command not in script]
        []
    """
    generator = random.Random(seed)
    engine = NativeEngine(game)
    walkthrough, script = game.problem.walkthrough, list[str]()
    for number, command in enumerate(walkthrough):
        room = min(_SIDE_STEPS, _MOST_STEPS - len(script) - len(walkthrough) + number)
        for _ in range(_TRIES):
            if room <= 0:
                break
            before, side = engine.save(), generator.choice(engine.admissible())
            engine.act(side)
            if not engine.won() and _wins(engine, walkthrough[number:]):
                script.append(side)
                room -= 1
            else:
                engine.load(before)
        engine.act(command)
        script.append(command)
    return script[:_MOST_STEPS]


def _wins(engine: NativeEngine, commands: Sequence[str]) -> bool:
    """Return whether the commands win from here; the engine is where it was afterwards."""
    here = engine.save()
    valid = all(engine.act(command)[1] for command in commands)
    won = valid and engine.won()
    engine.load(here)
    return won
