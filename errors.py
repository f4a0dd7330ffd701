"""The errors that comap raises on purpose.

Each message has three parts: what was expected, what was found, and what to do about it. All are
children of `CoMapError`, so that one ``except`` catches them; those that have a close relative in
Python or Gymnasium inherit from it too, so that code written against those works unchanged.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gymnasium.error import ResetNeeded

__all__ = [
    "CoMapError",
    "DataCorrupt",
    "DataNotFound",
    "DownloadError",
    "EngineError",
    "FactSyntaxError",
    "HubError",
    "InvalidAction",
    "LanguageModelError",
    "MissingExtra",
    "NoEpisode",
    "OptionError",
    "SnapshotError",
    "TaskNotFound",
    "WorldModelError",
    "suggest",
]


class CoMapError(Exception):
    """Parent of every error that comap raises on purpose."""


class DataNotFound(CoMapError, FileNotFoundError):
    """A data set, split or file is not on this machine."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DataCorrupt(CoMapError, ValueError):
    """A file is there but is not what it should be."""


class DownloadError(CoMapError, OSError):
    """A download cannot go on: the network, the server or this machine's disk does not let it."""


class HubError(CoMapError, OSError):
    """The Hugging Face Hub does not take or give something, or cannot be reached."""


class MissingExtra(CoMapError, ImportError):
    """An optional dependency is not installed.

    Example:
        >>> print(MissingExtra.of("alfworld", "the TextWorld engine"))
        the TextWorld engine needs the extra 'alfworld'; run: pip install "comap[alfworld]"
    """

    @classmethod
    def of(cls, extra: str, what: str) -> MissingExtra:
        """Return the error for the extra that `what` needs."""
        return cls(f'{what} needs the extra {extra!r}; run: pip install "comap[{extra}]"')


class TaskNotFound(CoMapError, LookupError):
    """No task has this id."""


class OptionError(CoMapError, ValueError):
    """An option has an unknown name or a value that it cannot have."""


class InvalidAction(CoMapError, TypeError):
    """An action is not text; text that means nothing to an environment is no error."""


class NoEpisode(CoMapError, ResetNeeded):
    """`step` was called before `reset`, or after the end of the episode."""


class SnapshotError(CoMapError):
    """A snapshot is of another environment, task or version, or does not replay to itself."""


class EngineError(CoMapError):
    """The engine behind an environment broke; inside an episode this is recorded, not raised."""


class LanguageModelError(CoMapError):
    """A language model cannot be loaded, cannot do what was asked, or failed at it."""


class WorldModelError(CoMapError):
    """A world model cannot be made, loaded or asked."""


class FactSyntaxError(CoMapError, ValueError):
    """A line of text is not a fact."""


def suggest(word: str, known: Iterable[str], limit: int = 8) -> str:
    """Return what to say of an unknown `word`: the close names, or else the first known ones.

    Example:
        >>> suggest("valid_sen", ["train", "valid_seen"])
        "did you mean 'valid_seen'?"
        >>> suggest("xyz", ["train", "valid_seen"])
        "known: 'train', 'valid_seen'"
    """
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(repr(name) for name in names[:limit])
    return f"known: {shown}" + (f" and {len(names) - limit} more" if len(names) > limit else "")
