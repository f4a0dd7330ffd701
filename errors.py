"""The errors that comap raises on purpose.

Each message has three parts: what was expected, what was found, and what to do about it. All are
children of `CoMapError`, so that one ``except`` catches them; those that have a close relative in
Python or Gymnasium inherit from it too, so that code written against those works unchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from urllib.parse import SplitResult, urlsplit

from gymnasium.error import ResetNeeded

FAULTS = "comap.faults"
"""The logger that gets the traceback of each fault that is recorded, not raised (level DEBUG)."""

DISTRIBUTION = "comap-agents"
"""The project on the package index; ``comap`` is another one there."""


class CoMapError(Exception):
    """Parent of every error that comap raises on purpose."""


class DataNotFound(CoMapError, FileNotFoundError):
    """A data set, split or file is not on this machine."""

    def __str__(self) -> str:
        # An OSError of two arguments would write them as "[Errno ...]".
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
        >>> print(MissingExtra.of("ray", "playing on Ray"))
        playing on Ray needs the extra 'ray'; run: pip install "comap-agents[ray]"
    """

    @classmethod
    def of(cls, extra: str, what: str) -> MissingExtra:
        """Return the error for the extra that `what` needs."""
        return cls(f"{what} needs the extra {extra!r}; run: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Raise `MissingExtra` for an import in the block that fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra.of(extra, what) from error


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

    transient = False
    """Whether the same model may answer a later or longer request."""


class WorldModelError(CoMapError):
    """A world model cannot be made, loaded or asked."""


class FactSyntaxError(CoMapError, ValueError):
    """A line of text is not a fact."""


def described(error: BaseException) -> str:
    """Return an error's type and message; of one in a user's own code also where that was.

    Example:
        >>> described(OptionError("seeds must be a list"))
        'OptionError: seeds must be a list'
    """
    place = "" if isinstance(error, CoMapError) else own_place(error)
    text = f"{type(error).__name__}: {error}"
    return f"{text} ({place})" if place else text


def own_place(error: BaseException) -> str:
    """Return where in a user's own code an error was raised, or nothing where it was not.

    Own code is what is neither comap, nor Python's library, nor an installed package. The name of the
    file is without its folders, which are of this machine.
    """
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        code = frame.f_code
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        is_library = package == "comap" or package in sys.stdlib_module_names
        is_installed = {"site-packages", "dist-packages"} & set(Path(code.co_filename).parts)

        # The last one wins: the innermost frame is where the mistake is.
        if not (is_library or is_installed):
            place = f"{Path(code.co_filename).name}, line {line}, in {code.co_name}"
    return place


def method_place(method: object) -> str:
    """Return where a user's own function begins, as `own_place` does; nothing for other functions."""
    code = getattr(method, "__code__", None)
    package = str(getattr(method, "__module__", "")).partition(".")[0]
    if code is None or package == "comap":
        return ""
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}, in {code.co_name}"


def suggest(word: str, known: Iterable[str], limit: int = 8) -> str:
    """Return what to say of an unknown `word`: the close names, or else the first known ones.

    Example:
        >>> suggest("valid_sen", ["train", "valid_seen"])
        "did you mean 'valid_seen'?"
        >>> suggest("xyz", ["train", "valid_seen"])
        "known: 'train', 'valid_seen'"
    """
    from rapidfuzz import fuzz, process  # a split may have 100,000 tasks: difflib takes a second

    names = list(known)
    close = process.extractOne(word[:300], names, scorer=fuzz.ratio, score_cutoff=60)
    if close:
        return f"did you mean {close[0]!r}?"

    listing = "known: " + ", ".join(repr(name) for name in names[:limit])
    if len(names) > limit:
        listing += f" and {len(names) - limit} more"
    return listing


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise `OptionError` unless an option has one of the known values."""
    known = tuple(known)
    if value not in known:
        raise OptionError(f"{name} cannot be {value!r:.80}; {suggest(str(value), known)}")


def check_number(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise `OptionError` unless an option is a whole number in a range."""
    # True is no number here, though it is an int in Python: a flag in the wrong place is a mistake.
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        bounds = f"of at least {least}" if most is None else f"from {least:,} to {most:,}"
        raise OptionError(f"{name} must be a whole number {bounds}, not {value!r:.80}")


def check_flag(name: str, value: object) -> None:
    """Raise `OptionError` unless an option is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {value!r}")


def check_url(name: str, url: object, example: str = "http://127.0.0.1:8000") -> SplitResult:
    """Return the parts of an option's URL, or raise `OptionError`, which repeats nothing of it."""
    expected = f"{name} must be a URL like {example!r}"
    if not isinstance(url, str) or not re.fullmatch("[!-~]+", url):
        raise OptionError(f"{expected}, found another kind of value, or strange characters in it")

    # Both are read when they are asked for: a port that is no number raises there, not in `urlsplit`.
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise OptionError(f"{expected}, found a broken host or port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise OptionError(f"{expected}, found another scheme, or no host")

    # These may hold keys, and addresses are recorded.
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise OptionError(
            f"{expected}, found user info, a query or a fragment in it; leave them out, and put keys "
            "into environment variables"
        )
    return parts
