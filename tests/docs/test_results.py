"""docs/results.md is what its program makes of the recorded results."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.envs.conformance.transcripts import load

pytest.importorskip("jinja2")

PROGRAM = Path(__file__).parents[2] / "docs" / "hooks" / "results.py"


@pytest.mark.skipif(not PROGRAM.is_file(), reason="an installed comap has no docs")
def test_the_page_is_up_to_date_and_names_every_file():
    read_results, page = (load(f"{PROGRAM}:{name}") for name in ("read_results", "page"))
    results = read_results()
    text = page(results)
    written = PROGRAM.parents[1].joinpath("results.md").read_text("utf-8")
    assert written == text, "run: python docs/hooks/results.py"
    assert [name for name in results if f"`{name}.json`" not in text] == []
