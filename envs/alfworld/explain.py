"""Saying why a command did nothing: the option ``informative_errors``."""

from __future__ import annotations

import re

from .engine import NativeEngine
from .wording import NOTHING_HAPPENS

__all__ = ["explain"]

_TWO = re.compile(r"(take|move|put|clean|heat|cool|slice) (.+?) (?:from|to|in/on|with) (.+)")
_ONE = re.compile(r"(go to|open|close|examine|use) (.+)")


def explain(engine: NativeEngine, command: str) -> str:
    """Return the answer to a command that did nothing, with the reason that an observer would see.

    Example:
        >>> from comap.envs.alfworld.game import Game
        >>> from comap.envs.alfworld.generate import generate
        >>> explain(NativeEngine(Game(generate("train", 0).problem)), "sing")
        'Nothing happens. That is not a command. Say help for a list of commands.'
    """
    command = " ".join(command.split())
    match = _TWO.fullmatch(command)
    if match:
        reason = _two(engine, match[1], match[2], match[3])
    elif match := _ONE.fullmatch(command):
        reason = _one(engine, match[1], match[2])
    else:
        reason = _unknown(engine)
    return f"{NOTHING_HAPPENS} {reason}"


def _unknown(engine: NativeEngine) -> str:
    # The older dialect has no help.
    hint = " Say help for a list of commands." if engine.game.dialect == "move" else ""
    return f"That is not a command.{hint}"


def _here(engine: NativeEngine) -> tuple[str, ...]:
    return engine.game.here.get(engine.location, ())


def _one(engine: NativeEngine, verb: str, name: str) -> str:
    game = engine.game
    if verb == "use":
        return f"There is no {name} here that can be turned on."
    if name not in game.location:
        return f"There is no {name}." if verb != "examine" else f"You do not hold a {name}."
    if name in _here(engine):
        if verb == "go to":
            return f"You are already at the {name}."
        if name not in game.openable:
            return f"The {name} cannot be opened or closed."
        return f"The {name} is {'open' if name in engine.opened else 'closed'} already."
    return f"You are not at the {name}."


def _two(engine: NativeEngine, verb: str, thing: str, other: str) -> str:
    game = engine.game
    if verb == "slice":
        if engine.held != other:
            return f"You do not hold the {other}."
        return f"There is no {thing} here that the {other} could slice."
    if other not in game.location:
        return f"There is no {other}."
    if other not in _here(engine):
        return f"You are not at the {other}."
    if verb == "take":
        if engine.held is not None:
            return f"You already hold the {engine.held}."
    elif engine.held != thing:
        return f"You do not hold the {thing}."
    elif verb not in ("move", "put"):
        return f"The {other} cannot {verb} the {thing}."
    if other in game.openable and other not in engine.opened:
        return f"The {other} is closed."
    if verb == "take":
        return f"There is no {thing} to take from the {other}."
    if verb != ("move" if game.dialect == "move" else "put"):
        return _unknown(engine)
    return f"The {thing} does not fit in or on the {other}."
