"""Reports: every text stays text, nothing comes from elsewhere, and the viewer works."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import string
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, cast

import pytest

from comap.benchmarks.display import print_table, progress
from comap.benchmarks.report import (
    Episode,
    Pack,
    Section,
    episode_record,
    render_page,
    script_json,
    write_whole,
)
from comap.benchmarks.tables import COLORS, Plot, Series, Table, svg_of
from comap.errors import MissingExtra
from kits.episode_pages import EVIL, Page, compared, evil_of, foreseen, source_of

pytest.importorskip("jinja2", reason="the extra viz is not installed")
pytest.importorskip("matplotlib", reason="the extra viz is not installed")
pytest.importorskip("rich", reason="the extra viz is not installed")

HTML_TAGS = """
    html head meta title style body header main section article nav h1 h2 h3 figure figcaption div
    table thead tbody tr th td dl dt dd p kbd bdi span ul ol li input noscript script
    strong select button dialog img details summary
"""
ATTRIBUTES = """
    lang charset content http-equiv name class id scope type placeholder autocomplete hidden
    spellcheck tabindex role src alt aria-label aria-labelledby aria-hidden
"""


def arguments():
    tables = [Table(EVIL, (EVIL, "n"), ((EVIL, 1.5), (None, 2)), EVIL)]
    line = Series("_" + EVIL, (1, 2), (1, float("nan")), (0, 1), (2, 3))
    plots = [
        Plot(EVIL, EVIL, EVIL, (line,)),
        Plot(EVIL, EVIL, EVIL, (Series(EVIL, (0, 1), (3, 4)),) * 2, "bar", (EVIL, EVIL)),
    ]
    return {
        "title": EVIL,
        "summary": {EVIL: EVIL},
        "sections": [
            Section("", tables, plots, terms={EVIL: {EVIL: EVIL}}),
            Section(EVIL, tables, plots, EVIL),
            Section(EVIL, tables, plots, EVIL, folded=True),
        ],
        "lead": EVIL,
        "episodes": [compared(), foreseen(), Episode(EVIL, evil_of(), evil_of())],
    }


@pytest.fixture(scope="module")
def markup():
    return render_page(**arguments())


@pytest.fixture(scope="module")
def page(markup):
    return Page(markup)


def test_hostile_text_never_becomes_markup(page):
    assert {tag for tag, _ in page.elements} <= set(HTML_TAGS.split())
    names = {name for _, attributes in page.elements for name in attributes}
    assert names <= set(ATTRIBUTES.split())
    page.check_safe()
    assert [attributes for attributes, _ in page.all("script")] == [
        {"type": "application/json", "id": "index"},
        {},
        *({"type": "text/plain", "id": f"packed-{i}"} for i in range(3)),
    ]
    assert len(page.all("style")) == 1 and len(page.all("title")) == 1


def test_hostile_text_is_all_there_with_hidden_characters_named(markup, page):
    (_, title), *_ = page.all("title")
    assert title.startswith("</script><script>") and "{{ 7 * 7 }}" in title
    assert "[U+202E]cba[U+2066]" in title
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2028\u2029\ud800\ufffe]", markup)
    labels = [
        text for attributes, text in page.all("span") if attributes.get("class") == "hidden-char"
    ]
    assert {"U+202E", "U+001B", "U+0000", "U+D800", "U+FFFE"} <= set(labels)


def test_a_plot_may_begin_with_another_color_and_its_intervals_lie_over_the_bars():
    series = Series("success", (0.0,), (40.0,), (30.0,), (50.0,))
    first, second_plot = (Plot("", "", "", (series,), kind="bar", first_color=i) for i in (0, 2))
    assert COLORS[0] in svg_of(first).decode() and COLORS[2] not in svg_of(first).decode()
    svg = svg_of(second_plot).decode()
    assert COLORS[2] in svg and COLORS[0] not in svg
    assert svg.index(COLORS[2]) < svg.index("LineCollection")
    page = render_page("", {}, [Section("", plots=[second_plot])])
    assert 'class="swatch series-2"' in page


def test_plots_are_images_that_run_and_load_nothing(page):
    head = "data:image/svg+xml;base64,"
    for attributes, _ in page.all("img"):
        source = cast("str", attributes["src"])
        assert source.startswith(head) and "\u202e" not in cast("str", attributes["alt"])
        svg_page = Page(base64.b64decode(source.removeprefix(head)).decode("utf-8"))
        assert not {"script", "image", "foreignobject", "a"} & {tag for tag, _ in svg_page.elements}
        for _, svg_attributes in svg_page.elements:
            assert not [name for name in svg_attributes if name.startswith("on")]
            assert (svg_attributes.get("xlink:href") or "#").startswith("#")
    texts = [
        text for _, text in Page(svg_of(Plot("", "$x^2$", "$\\bad{", ())).decode()).all("text")
    ]
    assert {"$x^2$", "$\\bad{"} <= set(texts), "nothing is read as mathematics"


def y_numbers(plot):
    texts = [text for _, text in Page(svg_of(plot).decode()).all("text")]
    return [float(text.replace("−", "-")) for text in texts[texts.index("x") + 1 : -1]]


@pytest.mark.parametrize(
    ("values", "full", "low", "high"),
    [
        ((0.0, 0.0), None, 0.0, 1.0),
        ((5.0, 5.0), None, 3.0, 7.0),
        ((-3.0, -3.0), None, -4.5, -1.5),
        ((2.0, 2.01), None, 1.96, 2.06),
        ((0.71, 0.79), 1.0, 0.65, 0.85),
        ((100.0, 100.0), 100.0, 80.0, 100.0),
        ((0.0, float("nan")), 100.0, 0.0, 20.0),
        ((0.1, 0.9), 1.0, 0.1, 0.9),
    ],
)
def test_an_axis_does_not_magnify_what_hardly_changes(values, full, low, high):
    numbers = y_numbers(Plot("", "x", "y", (Series("a", (1.0, 2.0), values),), full=full))
    assert (min(numbers), max(numbers)) == (low, high)


def unpacked(page):
    """The episodes of a page, as its script unpacks them."""
    parts = [part for _, part in page.all("script")[2:]]
    return [json.loads(zlib.decompress(base64.b64decode(part))) for part in parts]


def test_the_data_blocks_are_the_data(markup, page):
    (_, index), _, *parts = page.all("script")
    episodes = arguments()["episodes"]
    assert json.loads(index) == json.loads(script_json(Pack(episodes).index()))
    assert not set(index) & set("<>&\u2028\u2029") and index.isascii()
    assert set("".join(part for _, part in parts)) <= set(
        string.ascii_letters + string.digits + "+/="
    )
    records = [json.loads(script_json(episode_record(episode))) for episode in episodes]
    assert unpacked(page) == records


def test_the_content_security_policy_allows_this_script_and_style_only(page):
    rules, (_, (_, script), *_) = page.rules(), page.all("script")
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == source_of(script)
    assert rules["style-src"] == source_of(page.all("style")[0][1])
    assert rules["img-src"] == "data:"
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_another_hash_seed_gives_the_same_page(markup):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_report as t; import hashlib;"
        "print(hashlib.sha256(t.render_page(**t.arguments()).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    env = {**os.environ, "PYTHONHASHSEED": "17"}
    other_digest = subprocess.run(
        command, env=env, capture_output=True, text=True, check=True
    ).stdout
    assert other_digest.strip() == hashlib.sha256(markup.encode()).hexdigest()


RESULTS = Table(
    "Results",
    ("agent", "success", "Delta-F1", "note"),
    (("react", "5.0 % [1, 9]", None, "a"), ("tts", "50.0 % [40, 60]", 0.5, True)),
    "n = 100",
)


def test_print_table_keeps_hostile_text_off_the_terminal(capsys):
    print_table(Table(EVIL, (EVIL,), ((EVIL,), ("x" * 300,)), EVIL))
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "\x00" not in out
    assert "[U+001B]" in out and "[bold]" in out and "x" * 300 in out


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_a_bar_and_its_text_stays_text(terminal, capsys, monkeypatch):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("[bold]Playing\x07", total=2) as advance:
        advance()
        advance()
    out = capsys.readouterr().out
    assert "[bold]Playing[U+0007]" in out and "━" in out and "2/2" in out
    assert ("\x1b" in out) == terminal


@pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
def test_a_missing_extra_is_named(module, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, cast("Any", None))
    with pytest.raises(MissingExtra, match=r"'viz'; run: pip install .comap-agents\[viz\]"):
        write_whole(tmp_path / "report.html", render_page(**arguments()))
    assert not list(tmp_path.iterdir())
