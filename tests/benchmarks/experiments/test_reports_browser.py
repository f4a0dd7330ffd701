"""The report's page in headless Chromium: plots, details of cells, no error, nothing loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.experiments.report import write_reports
from comap.envs.conformance.transcripts import load

pytest.importorskip("jinja2", reason="the extra viz is not installed")
pytest.importorskip("matplotlib", reason="the extra viz is not installed")
pytest.importorskip("plotly", reason="the extra viz is not installed")
pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Chromium is not installed"
)

HERE = Path(__file__).parent
KIT = load(f"{HERE / 'reports_kit.py'}:KIT")
DRAWN = "document.querySelectorAll('.chart.drawn').length"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with results, and with hostile ones among them."""
    folder = KIT.make(tmp_path_factory.mktemp("results"))
    rows = [*KIT._table_rows(), *KIT._figure_rows(), *KIT.hostile_rows()]
    KIT.make(folder, rows)
    (path,) = write_reports(folder, None, ["html"], KIT.EXPERIMENTS, cited=KIT.cited)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = load(f"{HERE / 'chromium.py'}:Chromium")
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def test_plots_are_drawn_when_they_come_into_view(browser: Any, page: Path) -> None:
    browser.open(page, height=500)
    assert browser.run(DRAWN) == 0 and browser.run("typeof Plotly") == "undefined"
    assert browser.run("document.querySelectorAll('.chart > svg').length") == 3
    for _ in range(3):
        browser.run("document.querySelector('.chart:not(.drawn)')?.scrollIntoView()")
        browser.wait(f"{DRAWN} > {_}")
    browser.wait(f"{DRAWN} === 3")
    assert browser.run("document.querySelectorAll('.chart .scatterlayer .trace').length") >= 6
    assert browser.run("document.querySelectorAll('.chart .barlayer .point').length") >= 4
    browser.run("document.querySelector('.chart').scrollIntoView()")
    where = """(() => {
      const at = document.querySelector('.chart .scatterlayer .point').getBoundingClientRect();
      return [at.x + at.width / 2, at.y + at.height / 2];
    })()"""
    for shift in (3, 1, 0):
        x, y = browser.run(where)
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + shift, y=y)
    browser.wait("document.querySelectorAll('.chart .hovertext').length === 1")
    told = browser.run("document.querySelector('.chart .hovertext').textContent")
    assert "SFT" in told and "3.050 ± 0.071" in told and "n = 800, seeds 0, 1" in told
    legend = "document.querySelector('.legend button')"
    browser.run(f"{legend}.click()")
    assert browser.run(f"{legend}.getAttribute('aria-pressed')") == "false"
    hidden = "document.querySelector('.chart > div').data.filter((one) => one.visible === false)"
    browser.wait(f"{hidden}.length >= 1")
    clean(browser, page)


def clean(browser: Any, page: Path) -> None:
    """Nothing was said on the console, nothing but the page was asked for, and no text has run."""
    assert browser.said() == []
    assert browser.requested() == [page.resolve().as_uri()]
    assert browser.run("document.body.dataset.pwned") is None


def test_a_cell_tells_what_it_is_made_of(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('a.cell').focus()")
    said = browser.run("document.getElementById('tip').innerText")
    assert "ReAct, tiny-S" in said and "95 % interval: 25.2 to 74.8 (t over seeds)" in said
    assert "n = 140, seeds 0, 1, 2" in said and "record" in said
    where = browser.run(
        "(() => { const at = document.getElementById('tip').getBoundingClientRect();"
        "return at.left >= 0 && at.right <= innerWidth && at.bottom <= innerHeight; })()"
    )
    assert where
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert browser.run("document.getElementById('tip').hidden")
    place = browser.run(
        "(() => { const at = document.querySelectorAll('a.cell')[1].getBoundingClientRect();"
        "return [at.x + 5, at.y + 5]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    browser.wait("!document.getElementById('tip').hidden")
    assert "ALFWorld unseen" in browser.run("document.getElementById('tip').innerText")
    browser.run("document.querySelector('a.cell').click()")
    browser.wait("document.querySelector('details.values').open")
    clean(browser, page)


def test_dark_and_narrow(browser: Any, page: Path) -> None:
    browser.open(page, width=400, height=800, dark=True)
    assert browser.run("document.documentElement.scrollWidth") <= 400  # tables scroll by themselves
    colour = browser.run("getComputedStyle(document.body).backgroundColor")
    assert colour == "rgb(21, 24, 28)"
    browser.run("document.querySelector('.chart').scrollIntoView()")
    browser.wait(f"{DRAWN} >= 1")
    assert browser.run("document.querySelector('.chart .main-svg').clientWidth") <= 400
    clean(browser, page)


def test_without_a_script_pictures_and_tables_stand_there(browser: Any, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert browser.run("document.querySelectorAll('.chart > svg').length") == 3
        assert browser.run(DRAWN) == 0
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
