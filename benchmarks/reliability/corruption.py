"""Files that were cut or changed: each kind that comap writes and reads again.

Every file is cut at random places, and single bytes in it are changed. What reads it then gives a clear
error of comap's that names the file, or what was written. Whatever else happens is a loss: an error of
another kind, or other content. Two things nobody can tell are counted apart: kinds without a checksum,
where a changed letter in a text is another text, and files of JSON lines that were cut just behind a
line, where nothing else says how many there were.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import CoMapError, MissingExtra
from .corruption_kinds import KINDS, Kind
from .findings import Findings
from .isolated import isolated

__all__ = ["DAMAGES", "run_corruption"]

DAMAGES = 2_000
"""How many times files of each kind are damaged at scale 1; slow kinds get a tenth."""

_SECONDS = 3 * 3600.0


def run_corruption(
    scale: float = 1.0, seed: int = 0, tell: Callable[[str], object] = lambda line: None
) -> dict[str, Any]:
    """Damage files of each kind, read them, and return what was found.

    Args:
        scale: Which share of `DAMAGES`; 8 of each kind at least.
        seed: Of the damages.
        tell: Told a line for each kind.
    """
    found, kinds = Findings(), {}
    for name in KINDS:
        part = isolated(damage_kind, name, scale, seed, timeout=_SECONDS)
        found.take(part)
        kinds[name] = part
        tell(f"{name}: {part['counts']}, {part['lost']} lost")
    found.note("kinds", kinds)
    return found.plain()


def damage_kind(name: str, scale: float, seed: int) -> dict[str, Any]:
    """Damage the files of one kind and return what was found."""
    kind, found, rng = KINDS[name], Findings(), random.Random(f"{seed} {name}")
    found.note("checksum", kind.checksum)
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place, "whole")
        whole.mkdir()
        try:
            kind.make(whole)
        except (MissingExtra, ImportError) as error:
            found.note("left out", str(error))
            return found.plain()
        right = _content(kind, whole, Path(place, "copy"))
        files = sorted(
            path.relative_to(whole)
            for path in whole.rglob("*")
            if path.is_file() and path.stat().st_size and not path.name.endswith("lock")
        )
        number = max(8, round(DAMAGES * scale * (0.1 if kind.slow else 1.0)))
        for count in range(number):
            copy = Path(place, f"damaged-{count}")
            shutil.copytree(whole, copy)
            file = rng.choice(files)
            _read(found, kind, name, copy, file, (whole / file).read_bytes(), right, rng)
            shutil.rmtree(copy)
    return found.plain()


def _content(kind: Kind, whole: Path, copy: Path) -> Any:
    """Return what the files hold; they are read in a copy, as readers may write."""
    shutil.copytree(whole, copy)
    return kind.load(copy)


def _read(
    found: Findings,
    kind: Kind,
    name: str,
    folder: Path,
    file: Path,
    before: bytes,
    right: Any,
    rng: random.Random,
) -> None:
    """Damage a file, read it, and note what came of it."""
    how = damage(folder / file, rng)
    found.count("damaged")
    said = f"{name}, {file}, {how}"
    try:
        content = kind.load(folder)
    except CoMapError as error:
        found.tell(type(error).__name__)
        found.count("told")
        names = (folder.name, *file.parts)
        found.check(any(one in str(error) for one in names), f"{said}: no file named: {error}")
    except Exception as error:
        found.lose(f"{said}: {type(error).__name__}: {error}")
    else:
        if content == right:
            found.count("read right")
        elif kind.lines and _is_shorter(before, (folder / file).read_bytes()):
            found.count("shorter by whole lines")
        elif kind.checksum:
            found.lose(f"{said}: other content was read, and nothing told")
        else:
            found.count("other content, without a checksum")


def _is_shorter(before: bytes, after: bytes) -> bool:
    r"""Return whether a file was cut just behind a line, with or without its end, and not changed.

    Example:
        >>> [_is_shorter(b"ab\ncd\n", cut) for cut in (b"", b"a", b"ab", b"ab\n", b"ac\n")]
        [True, False, True, True, False]
    """
    ends = b"" if not after else after[-1:] + before[len(after) : len(after) + 1]
    return before.startswith(after) and (not after or b"\n" in ends)


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in a random way, and return in words how.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     size = Path(folder, "a").write_bytes(b"whole")
        ...     damage(Path(folder, "a"), random.Random(0)).split()[0] in ("cut", "changed", "emptied")
        True
    """
    content = bytearray(path.read_bytes())
    kind = rng.choices(("cut", "changed", "emptied", "zeroed"), (45, 45, 3, 7))[0]
    place = rng.randrange(len(content))
    if kind == "cut":
        content = content[:place]
    elif kind == "emptied":
        content = bytearray()
    elif kind == "zeroed":  # as a file system leaves what was not written before the power went
        content[place:] = bytes(len(content) - place)
    else:
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"{'changed' if kind == 'zeroed' else kind} ({kind}) at {place}"


def totals(kinds: dict[str, Any]) -> dict[str, int]:
    """Return the counts of all kinds together.

    Example:
        >>> totals({"a": {"counts": {"told": 1}}, "b": {"counts": {"told": 2}}})
        {'told': 3}
    """
    summed: Counter[str] = Counter()
    for told in kinds.values():
        summed.update(told["counts"])
    return dict(summed)
