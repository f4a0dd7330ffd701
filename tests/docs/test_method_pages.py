"""The pages on both methods: which files to open, and the tests that say what is equal."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "trainers"


@pytest.mark.parametrize(
    ("page", "folder", "most"), [("comap-round", "comap", 10), ("paw-update", "paw", 6)]
)
def test_a_method_is_read_in_few_files(page: str, folder: str, most: int) -> None:
    text = (PAGES / f"{page}.md").read_text("utf-8")
    module_paths = re.findall(r"`((?:\w+/)*\w+\.py)`", text.partition("\n|")[0])
    files = {name if "/" in name else f"trainers/{folder}/{name}" for name in module_paths}
    assert files and len(files) <= most and all((ROOT / name).is_file() for name in files)
    entries = re.findall(r"^<!-- api: comap\.([a-z_.]+)\.", text, re.MULTILINE)
    assert entries and {f"{name.replace('.', '/')}.py" for name in entries} <= files


def test_each_test_of_the_fidelity_page_is_there() -> None:
    text = (PAGES / "fidelity.md").read_text("utf-8")
    cited_tests = set(re.findall(r"`((?:\w+/)*\w+\.py)::(test_\w+)`", text))
    assert len(cited_tests) > 30
    for path, name in sorted(cited_tests):
        tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path} has no {name}"
