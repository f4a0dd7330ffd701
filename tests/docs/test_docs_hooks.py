"""What writes pages of the documentation from code, and that the committed pages are as it writes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from comap.trainers.comap.config import CoMapTraining

DOCS = Path(__file__).parents[2] / "docs"
HOOKS = ("apis", "commands", "entries", "markers", "pages", "prompts", "settings")


@pytest.fixture(scope="module")
def hooks() -> Iterator[dict[str, ModuleType]]:
    """The hooks, imported as MkDocs does: with their folder on the path."""
    sys.path.insert(0, str(DOCS / "hooks"))
    try:
        yield {name: import_module(name) for name in HOOKS}
    finally:
        sys.path.remove(str(DOCS / "hooks"))
        for name in HOOKS:
            sys.modules.pop(name, None)


def test_a_table_has_every_setting(hooks: dict[str, ModuleType]) -> None:
    table = hooks["settings"].settings_table(CoMapTraining, inherited=True)
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(part.name for part in fields(CoMapTraining))
    assert "| `tau_wm` | `float` from 0 to 1 | `0.6` | Threshold of the" in table


def test_a_setting_without_a_docstring_is_refused(hooks: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match="no docstring under silent"):
        hooks["settings"].settings_table(Undocumented)


@dataclass
class Undocumented:
    """Has a field that nobody explains."""

    explained: int = 1
    """Explained."""
    silent: int = 2


def test_an_environments_page_is_its_docstring(hooks: dict[str, ModuleType]) -> None:
    pages, apis = hooks["pages"], hooks["apis"]
    headings = ["Description", "Action Space", "Observation Space", "Starting State", "Rewards"]
    headings += ["Episode End", "Information", "Arguments", "References", "Version History"]
    headings += ["Task panel", "State facts", "Known deviations from upstream", "Example"]
    for folder in apis.ENVIRONMENTS:
        page = pages.environment_page(folder)
        assert re.findall(r"^## (.+)$", page, re.MULTILINE)[: len(headings)] == headings
        assert "\nArgs:" not in page and "The constructor's, below." not in page
        assert "| `split` | `" in page and "```pycon\n>>> " in page
    assert "| `engine` | `'native'` | " in pages.environment_page("alfworld")


def test_every_public_name_of_the_reference_has_one_place(hooks: dict[str, ModuleType]) -> None:
    apis = hooks["apis"]
    places = apis.documented()
    for modules in apis.REFERENCE.values():
        for module in modules:
            for name in apis.names_of(module):
                assert places[places[name]] == places[name], name


def test_nothing_is_fetched_from_elsewhere() -> None:
    """No page, style or hook names another host's script, style, font or picture."""
    for path in [*DOCS.glob("**/*.md"), DOCS.parent / "mkdocs.yml"]:
        text = path.read_text("utf-8")
        assert not re.search(r"(src=|<script|<link|!\[.*\]\(http)", text), path
    for path in DOCS.glob("**/*.css"):
        assert not re.search(r"(@import|url\()", path.read_text("utf-8")), path
    assert "font: false" in (DOCS.parent / "mkdocs.yml").read_text("utf-8")


def test_committed_pages_are_what_the_code_says(hooks: dict[str, ModuleType]) -> None:
    pytest.importorskip("trl")  # the reference has the trainers, whose modules import it
    outdated = [
        path.relative_to(DOCS).as_posix()
        for path, content in hooks["pages"].renewed().items()
        if not path.is_file() or path.read_bytes() != content
    ]
    assert outdated == [], "run: make pages"


def test_each_name_is_documented_once() -> None:
    for page in sorted(DOCS.glob("**/*.md")):
        headings = re.findall(r"^#+ (`.+`)$", page.read_text("utf-8"), re.MULTILINE)
        anchors = [heading.lower() for heading in headings]
        assert sorted(anchors) == sorted(set(anchors)), page


def test_an_entry_has_signature_docstring_and_methods(hooks: dict[str, ModuleType]) -> None:
    text = hooks["entries"].entry("comap.worldmodel.Prediction", 3)
    assert text.startswith("### `Prediction`\n\n```py\nPrediction(\n    observation: str,\n")
    assert "A world model's answer." in text and "- `observation`: The text that" in text
    assert "```pycon\n>>> " in hooks["entries"].entry("comap.facts.diff", 3)

    step = hooks["entries"].entry("comap.envs.TextEnv", 2, members=["step"], source=True)
    assert re.findall(r"^#+ (.+)$", step, re.MULTILINE) == ["`TextEnv`", "`TextEnv.step`"]
    assert step.count("def step(self, action: str)") == 1


def test_a_mark_without_an_end_is_refused(hooks: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match="expected <!-- end --> after each of 1 marks, found 0"):
        hooks["markers"].fill("<!-- api: comap.facts.diff -->\n", "index.md")
