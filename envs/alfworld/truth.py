"""Asking the engine whether a belief is true: for tests and measurements, never for agents."""

from __future__ import annotations

from ...facts import Fact
from .engine import NativeEngine

__all__ = ["is_true"]

_CONDITIONS = {"clean": "clean", "hot": "hot", "cool": "cool", "sliced": "sliced", "lit": "toggled"}


def is_true(engine: NativeEngine, fact: Fact) -> bool | None:
    """Return whether a belief fact is true in the engine's state.

    Returns:
        None for ``seen``, which is about the observer and not about the world.

    Example:
        >>> from comap.envs.alfworld.game import Game
        >>> from comap.envs.alfworld.generate import generate
        >>> engine = NativeEngine(Game(generate("train", 0).problem))
        >>> is_true(engine, ("exists", engine.game.receptacles[0])), is_true(engine, ("hot", "bed 1"))
        (True, False)
    """
    game = engine.game
    predicate, *names = fact
    if predicate == "seen":
        return None
    if predicate in _CONDITIONS:
        return names[0] in getattr(engine, _CONDITIONS[predicate])
    if predicate == "exists":
        return names[0] in game.location
    if predicate == "at":
        return names[0] == "agent" and game.location.get(names[1]) == engine.location
    if predicate == "holding":
        return engine.held == names[0]
    if predicate == "open":
        return names[0] in engine.opened
    if predicate == "closed":
        return names[0] in game.openable and names[0] not in engine.opened
    if predicate == "in":
        thing, place = names
        return thing in engine.contents.get(place, ()) or thing in game.inside.get(place, ())
    if predicate == "near":
        thing, place = names
        where = game.location.get(place, "")
        together = any(thing in engine.contents[other] for other in game.here.get(where, ()))
        return together or (thing, where) in engine.around
    return False
