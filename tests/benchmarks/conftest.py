"""A browser for tests of our pages, and a page to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from comap.benchmarks.browser import Browser, missing_browser
from comap.benchmarks.view import view_run
from comap.envs.conformance.transcripts import load
from comap.trajectory import write_trajectories

KIT = load(f"{Path(__file__).with_name('viewer_kit.py')}:KIT")


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    """One browser for all tests: to start it takes a second."""
    if missing_browser():
        pytest.skip(missing_browser())
    with Browser(1500, 900) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """A browser, of which is asked afterwards that nothing failed and nothing was loaded."""
    window.resize(1500, 900)
    window.console()
    window.requests()
    yield window
    assert window.console() == []
    assert window.violations() == []
    assert window.requests() == []


@pytest.fixture(scope="session")
def page(window: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two runs that played the same tasks."""
    folder = tmp_path_factory.mktemp("runs")
    first = [KIT.thought_of(), *(KIT.plain(i) for i in range(1, 7))]
    write_trajectories(folder / "first" / "trajectories.jsonl", first)
    write_trajectories(
        folder / "second" / "trajectories.jsonl", [KIT.plain(i, "random") for i in range(2, 5)]
    )
    return view_run([folder / "first", folder / "second"])
