"""Finding WebShop's files in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import DataNotFound, OptionError

__all__ = ["find_sources"]

_PATTERNS: Mapping[str, str] = {
    "products": "items_shuffle*.json",
    "instructions": "items_ins_v2*.json",
    "human_instructions": "items_human_ins*.json",
    "prices": "prices.json",
    "price_caps": "price_caps.json",
    "title_nouns": "title_nouns.json",
}


def find_sources(folder: Path, given: Mapping[str, Path | None] | None = None) -> dict[str, Path]:
    """Return WebShop's files, by `build_catalog`'s names for them.

    Args:
        folder: The folder with WebShop's data.
        given: Files that are known, by the same names; the folder need not have them.

    Raises:
        DataNotFound: The folder, or the file of products, is not there.
        OptionError: Several files could be meant.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "items_shuffle_1000.json").touch()
        ...     sorted(find_sources(Path(folder)))
        ['products']
    """
    found = {name: path for name, path in (given or {}).items() if path is not None}
    for name, pattern in _PATTERNS.items():
        if name in found:
            continue
        paths = sorted(folder.glob(pattern))
        if len(paths) > 1:
            listed = ", ".join(path.name for path in paths)
            option = name.replace("_", "-")
            raise OptionError(
                f"expected one file {pattern} in {folder}, found {listed}; "
                f"choose one: --{option} FILE"
            )
        if paths:
            found[name] = paths[0]
    if "products" not in found:
        raise DataNotFound(
            f"expected WebShop's products in {folder} ({_PATTERNS['products']}), found none; "
            "see WebShop's setup.sh for where to get them"
        )
    return found
