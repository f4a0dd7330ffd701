"""A browser for tests of our pages, and a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import pytest

from comap.benchmarks.view import view_run
from comap.envs.conformance.transcripts import load
from comap.trajectory import write_trajectories

Browser: TypeAlias = Any
KIT = load(f"{Path(__file__).with_name('pages_kit.py')}:KIT")


@pytest.fixture(scope="module")
def window():
    """A browser for a module's tests; no longer, as Playwright's event loop runs while it is open."""
    with load(f"{Path(__file__).parents[1] / 'browser_kit.py'}:Browser")() as browser:
        yield browser


@pytest.fixture
def browser(window):
    """A browser, of which is asked afterwards that nothing failed and nothing was loaded."""
    window.look(1500, 900)
    window.console()
    window.requests()
    yield window
    assert window.console() == []
    assert window.violations() == []
    assert window.requests() == []


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """A page of two runs that played the same tasks."""
    folder = tmp_path_factory.mktemp("runs")
    first = [KIT.thought_of(), *(KIT.plain(i) for i in range(1, 7))]
    write_trajectories(folder / "first" / "trajectories.jsonl", first)
    write_trajectories(
        folder / "second" / "trajectories.jsonl", [KIT.plain(i, "random") for i in range(2, 5)]
    )
    return view_run([folder / "first", folder / "second"])
