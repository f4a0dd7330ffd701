"""docs/results.md is what its program makes of the recorded results."""

from __future__ import annotations

import pytest

pytest.importorskip("jinja2")

from comap.benchmarks.record import circumstances
from comap.benchmarks.results import PAGE, SHIPPED, page, read_results

pytestmark = pytest.mark.skipif(
    not (PAGE.is_file() and SHIPPED.is_file()), reason="an installed comap has no docs"
)


def test_the_page_is_up_to_date_and_names_every_file() -> None:
    results = read_results()
    text = page(results)
    assert PAGE.read_text("utf-8") == text, "run: python -m comap.benchmarks.results"
    assert [name for name in results if f"`{name}.json`" not in text] == []


def test_a_new_speed_measurement_gets_rows() -> None:
    spread = {"min": 1e-6, "q1": 1e-6, "median": 2e-6, "q3": 3e-6, "max": 3e-6}
    new = {
        "target": "alfworld",
        "measured": {"ours": {"again": spread}, "TextWorld": {"again": spread}},
        "ratios": {"TextWorld": {"again": 3335.0}},
        **circumstances(),
    }
    text = page({**read_results(), "speed_alfworld": new})
    assert "| alfworld | TextWorld | again | 2.0 µs (1.0 µs to 3.0 µs) | 3,335.00 |" in text
    assert "`speed_alfworld.json`" in text
