"""Folders that are replaced as a whole: a process that is killed leaves the old one or the new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import OptionError

__all__ = ["recover", "rewritten"]


@contextmanager
def rewritten(folder: Path) -> Iterator[Path]:
    """Give an empty folder to write into, which takes the place of `folder` once all is written.

    What else is in `folder` stays in it. Where something fails, `folder` is as it was. A process that
    is killed between the two renames leaves the old folder beside its place: see `recover`.

    Args:
        folder: The folder; it need not be there.

    Raises:
        OptionError: The disk does not let it.

    Example:
        >>> with rewritten(Path("models")) as fresh:
        ...     _ = (fresh / "wm.txt").write_text("weights")
        >>> [path.name for path in Path("models").iterdir()]
        ['wm.txt']
    """
    target = Path(folder).expanduser().resolve()
    fresh, old = _beside(target)
    try:
        recover(target)
        for path in (fresh, old):
            if path.exists():
                shutil.rmtree(path)
        fresh.mkdir(parents=True)
        yield fresh
        _take_along(target, fresh)
        _swap(target, fresh, old)
    except OSError as error:
        raise OptionError(
            f"cannot write into {str(folder)!r}: {error}; make room on the disk, or choose another "
            "folder"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def recover(folder: Path) -> None:
    """Put a folder back that a killed process had moved aside and not replaced.

    Example:
        >>> Path(".models.old").mkdir()
        >>> recover(Path("models"))
        >>> Path("models").is_dir()
        True
    """
    target = Path(folder).expanduser().resolve()
    old = _beside(target)[1]
    if old.is_dir() and not os.path.lexists(target):
        old.replace(target)


def _beside(target: Path) -> tuple[Path, Path]:
    """Return where a new folder is written, and where the old one is kept meanwhile."""
    return (target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old"))


def _swap(target: Path, fresh: Path, old: Path) -> None:
    if not target.exists():
        fresh.replace(target)
        return
    target.replace(old)
    try:
        fresh.replace(target)
    except OSError:
        old.replace(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _take_along(target: Path, fresh: Path) -> None:
    """Put into the new folder what is in the old one and was not written anew."""
    for path in sorted(target.iterdir()) if target.is_dir() else ():
        place = fresh / path.name
        if os.path.lexists(place):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, place, symlinks=True, copy_function=_linked)
        else:
            _linked(str(path), str(place))


def _linked(source: str, place: str) -> str:
    """Link a file to a second place; copy it where the file system has no links."""
    try:
        os.link(source, place, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, place, follow_symlinks=False)
    return place
