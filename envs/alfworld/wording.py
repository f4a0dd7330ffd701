"""The words of ALFWorld's text game: what both its engine and its canonicalizer must agree on.

The sentences are those of the benchmark's grammar, which every agent trained on it expects; they
are reproduced because the engine must answer to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

__all__ = ["BANNER", "DIALECTS", "HELP", "NOTHING_HAPPENS", "Dialect", "join_names", "listing"]

Dialect: TypeAlias = Literal["move", "put"]
"""``"move"``: alfworld 0.4 (``move X to Y``); ``"put"``: alfworld up to 0.3 (``put X in/on Y``)."""

DIALECTS: tuple[Dialect, ...] = ("move", "put")
"""All dialects, the default first."""

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
"""The line that opens every game."""

NOTHING_HAPPENS = "Nothing happens."
"""The answer to a command that means nothing, or that cannot be carried out here."""

HELP = """Available commands:
  look                               describe what is here
  inventory                          tell what you carry
  go to (receptacle)                 walk to a receptacle
  open (receptacle)                  open a receptacle
  close (receptacle)                 close a receptacle
  take (object) from (receptacle)    pick an object up
  move (object) to (receptacle)      put an object down
  examine (something)                look at a receptacle or at what you hold
  use (object)                       switch an object on
  heat (object) with (receptacle)    make an object hot
  clean (object) with (receptacle)   make an object clean
  cool (object) with (receptacle)    make an object cool
  slice (object) with (object)       cut an object with a knife
"""
"""The help of generated games; official files bring their own."""


def join_names(names: Sequence[str]) -> str:
    """Return names as the game joins them.

    Example:
        >>> join_names(["desk 1"]), join_names(["a", "b"]), join_names(["a", "b", "c"])
        ('desk 1', 'a, and b', 'a, b, and c')
    """
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def listing(names: Sequence[str]) -> str:
    """Return names as the game lists things: each with the article "a", or "nothing".

    Example:
        >>> listing(["apple 1", "egg 2"]), listing([])
        ('a apple 1, and a egg 2', 'nothing')
    """
    if len(names) < 2:
        return f"a {names[0]}" if names else "nothing"
    return f"a {', a '.join(names[:-1])}, and a {names[-1]}"
