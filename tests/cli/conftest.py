"""Tiny models of the commands' tests know the words of few episodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comap.agents import create


@pytest.fixture(scope="module", autouse=True)
def few_words() -> Iterator[None]:
    """Play few tasks for the words of a tiny model, which its builders' own tests do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(create, "_SOME", 4)
        patch.setattr(create, "_FEW", 1)
        yield
