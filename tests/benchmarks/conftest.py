"""A browser for tests of our pages, and a page to look at."""

from __future__ import annotations

import pytest

from comap.benchmarks.view import view_run
from comap.trajectory import write_trajectories
from kits.browser import Browser
from kits.episode_pages import plain, thought_of


@pytest.fixture(scope="module")
def window():
    """A browser for a module's tests; no longer, as Playwright's event loop runs while it is open."""
    with Browser() as browser:
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
    first = [thought_of(), *(plain(i) for i in range(1, 7))]
    write_trajectories(folder / "first" / "trajectories.jsonl", first)
    write_trajectories(
        folder / "second" / "trajectories.jsonl", [plain(i, "random") for i in range(2, 5)]
    )
    return view_run([folder / "first", folder / "second"])
