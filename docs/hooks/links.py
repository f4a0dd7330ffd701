"""An extension of griffe: names in backticks, in docstrings, lead to where they are documented."""

from __future__ import annotations

import re
from typing import Any

import griffe
from apis import linked

__all__ = ["Links"]


class Links(griffe.Extension):
    """Rewrites the docstrings of the package once it is read.

    A section ``Example:`` becomes ``Examples:``, which is what griffe takes for one.
    """

    def on_package(self, *, pkg: griffe.Module, **given: Any) -> None:
        """Rewrite all docstrings of a package; griffe calls this."""
        if pkg.name == "comap":
            _rewrite(pkg)


def _rewrite(thing: griffe.Object) -> None:
    if thing.docstring is not None:
        text = linked(thing.docstring.value)
        thing.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    for member in thing.members.values():
        if not member.is_alias:
            _rewrite(member)  # type: ignore[arg-type]
