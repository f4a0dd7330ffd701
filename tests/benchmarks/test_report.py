"""Reports: every text stays text, nothing comes from elsewhere, and the viewer works."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest

from comap.benchmarks.episodes import episode_record, script_json
from comap.benchmarks.report import (
    Pack,
    Plot,
    Series,
    Table,
    print_table,
    progress,
    render_report,
    write_report,
)
from comap.envs.conformance.transcripts import load
from comap.errors import MissingExtra, OptionError

pytest.importorskip("jinja2", reason="the extra viz is not installed")
pytest.importorskip("matplotlib", reason="the extra viz is not installed")
pytest.importorskip("rich", reason="the extra viz is not installed")

KIT = load(f"{Path(__file__).with_name('report_kit.py')}:KIT")
EVIL, compared, evil, foreseen = KIT.EVIL, KIT.compared, KIT.evil, KIT.foreseen
HTML_TAGS = """
    html head meta title style body header main section article nav h1 h2 h3 figure figcaption div
    table thead tbody tr th td dl dt dd p kbd bdi span ul ol li input noscript script
    strong select button dialog
"""
SVG_TAGS = "svg g path text use defs clippath rect"
ATTRIBUTES = """
    lang charset content http-equiv name class id scope type placeholder autocomplete hidden
    spellcheck role href d x y width height viewbox transform clip-path fill stroke opacity
    fill-opacity stroke-width stroke-linecap stroke-linejoin stroke-opacity font-size text-anchor
    aria-label aria-labelledby aria-hidden
"""


def arguments() -> dict[str, Any]:
    return {
        "title": EVIL,
        "summary": {EVIL: EVIL},
        "tables": [Table(EVIL, (EVIL, "n"), ((EVIL, 1.5), (None, 2)), EVIL)],
        "plots": [
            Plot(
                EVIL, EVIL, EVIL, (Series("_" + EVIL, (1, 2), (1, float("nan")), (0, 1), (2, 3)),)
            ),
            Plot(EVIL, EVIL, EVIL, (Series(EVIL, (0, 1), (3, 4)),) * 2, "bar", (EVIL, EVIL)),
        ],
        "episodes": [compared(), foreseen(), evil()],
    }


class Page(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.open: list[int] = []
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.elements[self.open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, self.texts.get(i, ""))
            for i, (name, attributes) in enumerate(self.elements)
            if name == tag
        ]


@pytest.fixture(scope="module")
def markup() -> str:
    return render_report(**arguments())


@pytest.fixture(scope="module")
def page(markup: str) -> Page:
    return Page(markup)


def test_hostile_text_never_becomes_markup(page: Page) -> None:
    assert {tag for tag, _ in page.elements} <= {*HTML_TAGS.split(), *SVG_TAGS.split()}
    names = {name for _, attributes in page.elements for name in attributes}
    assert names <= set(ATTRIBUTES.split())
    assert not page.comments
    assert [attributes for attributes, _ in page.all("script")] == [
        {"type": "application/json", "id": "index"},
        {},
        *({"type": "text/plain", "id": f"packed-{i}"} for i in range(3)),
    ]
    assert len(page.all("style")) == 1 and len(page.all("title")) == 1


def test_hostile_text_is_all_there_with_hidden_characters_named(markup: str, page: Page) -> None:
    (_, title), *_ = page.all("title")
    assert title.startswith("</script><script>") and "{{ 7 * 7 }}" in title
    assert "[U+202E]abc[U+2028]" in title
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2028\u2029\ud800\ufffe]", markup)
    labels = [
        text for attributes, text in page.all("span") if attributes.get("class") == "hidden-char"
    ]
    assert {"U+202E", "U+001B", "U+0000", "U+D800", "U+FFFE"} <= set(labels)


def test_nothing_in_plots_is_read_as_mathematics(page: Page) -> None:
    texts = [text for _, text in page.all("text")]
    assert any("<script>" in text for text in texts)
    long = render_report(
        title="", summary={}, tables=[], plots=[Plot("", "$x^2$", "$\\bad{", ())], episodes=[]
    )
    assert {"$x^2$", "$\\bad{"} <= {text for _, text in Page(long).all("text")}


def unpacked(page: Page) -> list[dict[str, Any]]:
    """The episodes of a page, as its script unpacks them."""
    parts = [part for _, part in page.all("script")[2:]]
    return [json.loads(zlib.decompress(base64.b64decode(part))) for part in parts]


def test_the_data_blocks_are_the_data(markup: str, page: Page) -> None:
    (_, index), _, *parts = page.all("script")
    episodes = arguments()["episodes"]
    assert json.loads(index) == Pack(episodes).index()
    assert not set(index) & set("<>&\u2028\u2029") and index.isascii()
    assert set("".join(part for _, part in parts)) <= set(
        string.ascii_letters + string.digits + "+/="
    )
    assert unpacked(page) == [episode_record(episode) for episode in episodes]
    assert json.loads(script_json({EVIL: "\u2028"})) == {EVIL: "\u2028"}


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    for tag, attributes in page.elements:
        assert "src" not in attributes and "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        if "href" in attributes:
            assert tag == "use" and cast("str", attributes["href"]).startswith("#plot-")
    (_, style), *_ = page.all("style")
    assert "url(" not in style and "@import" not in style and "http" not in style
    _, (_, script), *_ = page.all("script")
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "fetch", "http", "import("):
        assert word not in script


def test_the_content_security_policy_allows_this_script_and_style_only(page: Page) -> None:
    policies = [a["content"] for a, _ in page.all("meta") if "http-equiv" in a]
    assert len(policies) == 1 and policies[0] is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))

    def named(source: str) -> str:
        digest = hashlib.sha256(source.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    _, (_, script), *_ = page.all("script")
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == named(script)
    assert rules["style-src"] == named(page.all("style")[0][1])
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_ids_are_unique_and_references_lead_somewhere(markup: str, page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = re.findall(r'(?:href="#|url\(#)([^")]+)', markup)
    assert references and set(references) <= set(ids)


def test_two_renders_are_the_same(markup: str) -> None:
    assert render_report(**arguments()) == markup


def test_another_hash_seed_gives_the_same_page(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_report as t; import hashlib;"
        "print(hashlib.sha256(t.render_report(**t.arguments()).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    told = {
        subprocess.run(
            command,
            env={"PYTHONHASHSEED": seed, "PATH": "", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs" / "demo" / "report.html"
    empty: dict[str, Any] = {"summary": {}, "tables": [], "plots": [], "episodes": []}
    write_report(path, title="first", **empty)
    first = path.read_bytes()
    assert first.startswith(b"<!doctype html>") and b"first" in first
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_report(path, title="second", **empty)
    assert path.read_bytes() == first
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.undo()
    write_report(path, title="second", **empty)
    assert b"second" in path.read_bytes() and list(path.parent.iterdir()) == [path]


RESULTS = Table(
    "Results",
    ("agent", "success", "Delta-F1", "note"),
    (("react", "5.0 % [1, 9]", None, "a"), ("tts", "50.0 % [40, 60]", 0.5, True)),
    "n = 100",
)


def test_numbers_are_aligned_on_the_page() -> None:
    page = Page(render_report(title="", summary={}, tables=[RESULTS], plots=[], episodes=[]))
    classes = [attributes.get("class") for attributes, _ in page.all("td")]
    assert classes == [None, "number", "number", None] * 2


def test_print_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(RESULTS)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[0].strip() == "Results" and lines[-1].strip() == "n = 100"
    rows = [line.rstrip() for line in lines if "%" in line]
    assert len(rows) == 2
    assert rows[0].index("]") == rows[1].index("]") and rows[0].index("—") == rows[1].index("5 ")


def test_print_table_keeps_hostile_text_off_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(Table(EVIL, (EVIL,), ((EVIL,), ("x" * 300,)), EVIL))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "\x00" not in out
    assert "[U+001B]" in out and "[bold]" in out and "x" * 300 in out


def test_progress_is_one_plain_line_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress("[bold]Playing\x1b", total=3) as advance:
        advance()
        advance(2)
    assert re.fullmatch(
        r"\[bold\]Playing\[U\+001B\]: 3 of 3 in \d+\.\d s\n", capsys.readouterr().out
    )


def test_progress_draws_a_bar_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("[bold]Playing", total=2) as advance:
        advance()
        advance()
    out = capsys.readouterr().out
    assert "[bold]Playing" in out and "━" in out and "2/2" in out


@pytest.mark.parametrize("module", ["jinja2", "matplotlib", "rich"])
def test_a_missing_extra_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, cast("Any", None))
    with pytest.raises(MissingExtra, match=r"'viz'; run: pip install .comap\[viz\]"):
        if module == "rich":
            print_table(RESULTS)
        else:
            write_report(tmp_path / "report.html", **arguments())
    if module == "rich":
        with pytest.raises(MissingExtra), progress("Playing", total=1):
            pass
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(OptionError, match="2 values in each row"):
        Table("t", ("a", "b"), ((1,),))
    with pytest.raises(OptionError, match="lengths"):
        Series("s", (1, 2), (1,))
    with pytest.raises(OptionError, match="both or neither"):
        Series("s", (1,), (1,), low=(0,))
    with pytest.raises(OptionError, match="'pie'"):
        Plot("p", "", "", (), kind="pie")
    with pytest.raises(OptionError, match="one label for each of the 1 positions"):
        Plot("p", "", "", (Series("s", (1,), (1,)),), kind="bar", labels=("a", "b"))
