"""Many texts in one file, read where they lie: written once, then mapped into memory."""

from __future__ import annotations

import mmap
from array import array
from pathlib import Path
from tokenize import TokenError  # of numpy's, for heads that are none
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataCorrupt, DataNotFound

__all__ = ["TextWriter", "Texts", "load_array", "save_array"]


class TextWriter:
    """Writes texts one after the other into ``<name>.bin``, and where they begin into ``<name>.npy``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TextWriter(Path(folder), "names") as writer:
        ...         writer.add("caf\u00e9"), writer.add("tea")
        ...     texts = Texts(Path(folder), "names")
        ...     len(texts), texts[0], texts[1]
        (0, 1)
        (2, 'caf\u00e9', 'tea')
    """

    def __init__(self, folder: Path, name: str):
        self._folder, self._name = folder, name
        self._file = (folder / f"{name}.bin").open("wb")
        self._starts = array("Q", [0])

    def __enter__(self) -> TextWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None:
            save_array(self._folder, self._name, np.frombuffer(self._starts, np.uint64))

    def add(self, text: str | bytes) -> int:
        """Append a text and return its number."""
        written = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._file.write(written)
        self._starts.append(self._starts[-1] + len(written))
        return len(self._starts) - 2


class Texts:
    """The texts that a `TextWriter` wrote; a sequence that reads only what is asked for."""

    def __init__(self, folder: Path, name: str):
        self._starts = load_array(folder, name)
        path = folder / f"{name}.bin"
        size = path.stat().st_size if path.is_file() else -1
        if not len(self._starts) or int(self._starts[-1]) != size:
            raise DataCorrupt(
                f"expected {path} with as many bytes as {name}.npy says, found {size}; "
                "build the catalogue again: comap data build webshop SOURCE"
            )
        with path.open("rb") as file:
            self._bytes: mmap.mmap | bytes = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            )

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> str:
        return self.raw(number).decode("utf-8", "surrogatepass")

    def lines(self) -> list[str]:
        """Return all texts at once, where each was written with a line break at its end."""
        return self._bytes[:].decode("utf-8", "surrogatepass").split("\n")[:-1]

    def raw(self, number: int) -> bytes:
        """Return a text's bytes."""
        start, end = self._starts[number : number + 2].tolist()
        return self._bytes[start:end]


def save_array(folder: Path, name: str, content: npt.NDArray[np.generic]) -> None:
    """Write an array to ``<name>.npy``."""
    np.save(folder / f"{name}.npy", content, allow_pickle=False)


def load_array(folder: Path, name: str) -> npt.NDArray[Any]:
    """Return the array in ``<name>.npy``, mapped into memory and not read yet.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is no array.
    """
    path = folder / f"{name}.npy"
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError as error:
        raise DataNotFound(
            f"expected {path} as part of a catalogue, found nothing; "
            "build it again: comap data build webshop SOURCE"
        ) from error
    except (ValueError, EOFError, OSError, SyntaxError, TokenError, MemoryError) as error:
        raise DataCorrupt(
            f"expected an array in {path}, found: {error}; "
            "build the catalogue again: comap data build webshop SOURCE"
        ) from error
