"""Pages with results are what their program makes of the recorded ones."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

PROGRAM = Path(__file__).parents[2] / "docs" / "hooks" / "results.py"


@pytest.mark.skipif(not PROGRAM.is_file(), reason="an installed comap has no docs")
def test_the_pages_are_up_to_date_and_name_every_file():
    program = runpy.run_path(str(PROGRAM))
    read_results, page = program["read_results"], program["page"]
    results = read_results()
    texts = {name: page(name, results) for name in program["PAGES"]}
    for name, text in texts.items():
        committed = PROGRAM.parents[1].joinpath(f"{name}.md").read_text("utf-8")
        assert committed == text, "run: python docs/hooks/results.py"
    all_text = "".join(texts.values())
    assert [name for name in results if f"`{name}.json`" not in all_text] == []
