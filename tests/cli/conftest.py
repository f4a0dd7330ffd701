"""What the commands' tests leave to others: words of many episodes, and the pictures of reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comap.agents import create
from comap.benchmarks import tables


@pytest.fixture(scope="module", autouse=True)
def left_to_others() -> Iterator[None]:
    """Build tiny models of the words of few tasks, and draw no plots, which take 0.1 s each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(create, "_TASKS", 4)
        patch.setattr(create, "_TASKS_OF_SLOW", 1)
        patch.setattr(tables, "svg_of", lambda plot: b'<svg xmlns="http://www.w3.org/2000/svg"/>')
        yield
