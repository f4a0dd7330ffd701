"""docs/results.md is what its program makes of the recorded results."""

from __future__ import annotations

import pytest

pytest.importorskip("jinja2")

from comap.benchmarks.results import PAGE, SHIPPED, page, read_results

pytestmark = pytest.mark.skipif(
    not (PAGE.is_file() and SHIPPED.is_file()), reason="an installed comap has no docs"
)


def test_the_page_is_up_to_date_and_names_every_file():
    results = read_results()
    text = page(results)
    assert PAGE.read_text("utf-8") == text, "run: python -m comap.benchmarks.results"
    assert [name for name in results if f"`{name}.json`" not in text] == []
