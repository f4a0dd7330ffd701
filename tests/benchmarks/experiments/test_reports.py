"""Reports of experiments: golden files, hostile text, cited values apart from ours, a browser."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from comap.benchmarks.experiments.report import escape, print_results
from kits.episode_pages import Page, source_of
from kits.reports import (
    AW,
    EXPERIMENTS,
    figure_rows,
    hostile_rows,
    make,
    results,
    row,
    table_rows,
    write,
)

pytest.importorskip("jinja2", reason="the extra viz is not installed")
pytest.importorskip("matplotlib", reason="the extra viz is not installed")
pytest.importorskip("matplotlib", reason="the extra viz is not installed")
pytest.importorskip("rich", reason="the extra viz is not installed")

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202e\u2028\u2029\ud800\ufffe]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("results")
    write(place, "md", "tex", "html")
    return place


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    place = tmp_path_factory.mktemp("hostile")
    write(place, "md", "tex", "html", rows=hostile_rows())
    return place


@pytest.mark.parametrize("name", ["report.md", "report.tex"])
def test_golden(folder, name):
    """COMAP_WRITE_GOLDEN=1 writes the files anew: look at what changed."""
    report_text = (folder / name).read_text("utf-8")
    if os.environ.get("COMAP_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(report_text, "utf-8")
    assert report_text == (GOLDEN / name).read_text("utf-8")


def test_hostile_text_stays_text_in_markdown(hostile):
    markdown = (hostile / "report.md").read_text("utf-8")
    assert not HIDDEN.search(markdown)
    allowed = re.sub(r"</?(sup|sub|details|summary)>", "", markdown)
    assert not re.search(r"(?<!\\)<", allowed)
    assert not re.search(r"(?<!\\)\]\((?!#|figures/)", markdown)  # no link but ours
    titles = [line for line in markdown.splitlines() if line.startswith("#")]
    assert len(titles) == 1 + len(EXPERIMENTS)


@pytest.mark.parametrize("start", ["1.", "12)", "-", "+", ">", "=", "#", "1.5", "1.a"])
@pytest.mark.parametrize("rest", ["", " a sentence"])
def test_no_text_begins_a_list_a_quote_or_a_heading(start, rest):
    """A definition's words are a paragraph of the report, and its footnotes the items of a list."""
    text = start + rest
    markdown = MarkdownIt()
    assert markdown.render(escape(text)) == f"<p>{html.escape(text)}</p>\n"
    assert markdown.render(f"- {escape(text)}") == f"<ul>\n<li>{html.escape(text)}</li>\n</ul>\n"


def test_pictures_are_svg_without_scripts(folder, hostile):
    for place in (folder, hostile):
        picture_paths = re.findall(
            r"\]\((figures/[^)]+)\)", (place / "report.md").read_text("utf-8")
        )
        assert len(picture_paths) == 3
        for name in picture_paths:
            text = (place / name).read_text("utf-8")
            assert "<svg" in text and "<script" not in text and not HIDDEN.search(text)
            assert not re.search(r"<[^>]* on\w+=", text)


def test_hostile_text_stays_text_in_latex(hostile):
    latex = (hostile / "report.tex").read_text("utf-8")
    assert not HIDDEN.search(latex) and r"\input" not in latex
    assert r"\textbackslash{}input\{/etc/passwd\}" in latex
    balanced_latex(latex)


def balanced_latex(text):
    """Check what a compiler would: braces, and the columns of each row."""
    bare = re.sub(r"(?m)%.*$", "", re.sub(r"\\[{}&%$#_\\]", " ", text))
    depths = list(accumulate({"{": 1, "}": -1}.get(char, 0) for char in bare))
    assert min(depths) >= 0 and depths[-1] == 0
    for shape, body in re.findall(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}(.*?)\\end", text, re.S):
        for line in body.splitlines():
            if line.endswith(r"\\") and not line.startswith((r"\multicolumn", r"\addlinespace")):
                assert len(re.findall(r"(?<!\\)&", line)) == len(shape) - 1, line


def test_the_terminal(capsys, folder, hostile):
    print_results(results(folder))
    printed = capsys.readouterr().out
    assert (
        "CoMap, Table 1: Success" in printed and "75.0 ± 5.0" in printed and "failed [a]" in printed
    )
    assert printed.index("Measured here") < printed.index("Cited: Table 1")
    print_results(results(hostile))
    printed = capsys.readouterr().out
    assert not HIDDEN.search(printed.replace("\n", "")) and "[U+001B]" in printed


def page_of(path):
    return Page(path.read_text("utf-8"))


def links(page):
    """Return the addresses outside the page."""
    addresses = [attributes["href"] or "" for attributes, _ in page.all("a")]
    return [link for link in addresses if not link.startswith("#")]


@pytest.fixture(scope="module")
def page(folder):
    return page_of(folder / "report.html")


@pytest.fixture(scope="module")
def evil(hostile):
    return page_of(hostile / "report.html")


def test_our_values_and_the_cited_ones_share_no_column(page):
    cited = {text for _, text in page.said("td", "cited")}
    ours = {text for _, text in page.said("td", "ours")}
    printed = {"11.11", "88.88 ± 1.5", "77.77"}
    assert printed <= cited and not printed & ours
    assert {"50.0 ± 10.0", "85.0d"} & ours and not {"50.0 ± 10.0", "85.0"} & cited
    for attributes, _ in [*page.said("td"), *page.said("th")]:
        names = (attributes.get("class") or "").split()
        assert not {"ours", "cited"} <= set(names)
    heads = [(a.get("class"), a.get("colspan"), text) for a, text in page.said("th", "group")]
    assert heads == [
        ("ours first group", "4", "measured here"),
        ("cited first group", "3", "cited from the paper"),
        ("ours first group", "1", "measured here"),
    ]


def test_failed_cells_are_told(page):
    failed = [text for attributes, text in page.said("td", "failed")]
    assert len(failed) == 2 and all(text.startswith("failed") for text in failed)
    notes = " ".join(text for _, text in page.said("ol", "footnotes"))
    assert "EngineError: out of memory" in notes and "An odd number." in notes
    lost = " ".join(text for _, text in page.said("ul", "lost"))
    assert lost == "tiny-M, Frozen WM: failed: killed"


def test_every_value_has_its_interval_n_seeds_and_links(page, folder):
    targets = [a["href"] for a, _ in page.said("a", "cell")]
    assert targets
    rows = {a.get("id"): text for a, text in page.said("tr")}
    for target in targets:
        assert rows[(target or "")[1:]]
    row_text = next(text for text in rows.values() if text.startswith("CoMap, tiny-SALFWorld seen"))
    assert "75.0 ± 5.0" in row_text and "62.6 to 87.4 (t over seeds)" in row_text
    assert "n = 140, seeds 0, 1, 2" in row_text and "seed 1 75.0 record trajectories" in row_text
    addresses = [
        a["href"] or "" for a, text in page.said("a") if text in ("record", "trajectories")
    ]
    assert addresses and all((folder / address).exists() for address in addresses)


def test_links_lead_on_when_the_folder_moves_or_the_report_is_elsewhere(tmp_path):
    first, moved = tmp_path / "first", tmp_path / "deep" / "moved"
    rows = [result_row for result_row in table_rows() if result_row.seed == 1]
    make(first)
    (first / "jobs" / "react-tiny-S-1" / "out" / "view.html").write_text("", "utf-8")
    write(first, "html", rows=rows, out=first / "reports")
    shutil.move(first, moved)
    away = links(page_of(moved / "reports" / "report.html"))
    assert away and all((moved / "reports" / link).exists() for link in away)
    assert {Path(link).name for link in away} == {"job.json", "trajectories.jsonl", "view.html"}


def test_names_of_jobs_never_lead_out_of_the_folder(tmp_path, evil):
    assert not links(evil)
    (tmp_path / "secret").mkdir()
    folder = tmp_path / "results"
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs" / "link").symlink_to(tmp_path / "secret")
    (folder / "jobs" / "a b#c?").mkdir()
    fields = {"env": AW, "split": "valid_seen", "value": 1.0, "backbone": "b"}
    names = ("../../secret", "link", "/etc", "a b#c?", "x\x00y", "a" * 5000)
    rows = [row(**fields, job=job, seed=seed) for seed, job in enumerate(names)]
    (path,) = write(folder, "html", rows=rows)
    assert set(links(page_of(path))) == {"./jobs/a%20b%23c%3F/"}


def test_hostile_text_never_becomes_markup(page, evil):
    assert {tag for tag, _ in evil.elements} <= {tag for tag, _ in page.elements} | {"sup"}
    attribute_names = {name for _, attributes in page.elements for name in attributes}
    assert {name for _, attributes in evil.elements for name in attributes} <= attribute_names
    assert len(evil.all("script")) == 1 and len(evil.all("style")) == 1
    assert not HIDDEN.search(evil.markup)
    for report_page in (page, evil):
        report_page.check_safe()
    assert any("</script><script>document" in text for _, text in evil.said("th", "method"))


def test_the_policy_names_the_scripts_and_the_style_only(page):
    rules = page.rules()
    inside = re.findall(r"<script>(.*?)</script>", page.markup, re.S)
    style = re.findall(r"<style>(.*?)</style>", page.markup, re.S)
    assert rules["script-src"].split() == [source_of(inside[-1])]
    assert rules["style-src"] == source_of(style[0])
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'" and "unsafe" not in str(rules)


def test_the_same_rows_give_the_same_reports_in_any_process(folder, tmp_path):
    code = (
        "import sys; from pathlib import Path; from kits.reports import write;"
        "write(Path(sys.argv[1]), 'md', 'tex', 'html')"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(words, env={**os.environ, "PYTHONHASHSEED": "7"}, check=True)
    for name in ("report.md", "report.tex", "report.html"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_nothing_measured_and_unknown_experiments_are_told(tmp_path):
    rows = [row(experiment="t-of-tomorrow", value=1.0)]
    for path in write(tmp_path, "md", "tex", "html", rows=rows):
        text = path.read_text("utf-8").replace("{-}", "-")
        assert "t-of-tomorrow" in text and "t-settings" in text


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A page with results, and with hostile ones among them."""
    place = tmp_path_factory.mktemp("mixed")
    make(place)
    write(place, "html", rows=[*table_rows(), *figure_rows(), *hostile_rows()])
    return place / "report.html"


def clean(window):
    """Nothing was said on the console, nothing but the page was asked for, and no text has run."""
    assert window.console() == []
    assert window.requests() == []
    assert window.value("document.body.dataset.pwned") is None


def test_a_cell_tells_what_it_is_made_of(window, mixed):
    window.look(1400, 1000)
    window.open(mixed)
    window.value("document.querySelector('a.cell').focus()")
    tip_text = window.value("document.getElementById('tip').innerText")
    assert "ReAct, tiny-S" in tip_text and "95 % interval: 25.2 to 74.8 (t over seeds)" in tip_text
    assert "n = 140, seeds 0, 1, 2" in tip_text and "record" in tip_text
    is_inside = window.value(
        "(() => { const at = document.getElementById('tip').getBoundingClientRect();"
        "return at.left >= 0 && at.right <= innerWidth && at.bottom <= innerHeight; })()"
    )
    assert is_inside
    window.press("Escape")
    assert window.value("document.getElementById('tip').hidden")
    place = window.value(
        "(() => { const at = document.querySelectorAll('a.cell')[1].getBoundingClientRect();"
        "return [at.x + 5, at.y + 5]; })()"
    )
    window.point(*place)
    window.wait("!document.getElementById('tip').hidden")
    assert "ALFWorld unseen" in window.value("document.getElementById('tip').innerText")
    window.value("document.querySelector('a.cell').click()")
    window.wait("document.querySelector('details.values').open")
    clean(window)


def test_dark_and_narrow(window, mixed):
    window.look(400, 800, "dark")
    window.open(mixed)
    assert window.value("document.documentElement.scrollWidth") <= 400  # tables scroll themselves
    ground = window.value("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(21, 24, 28)"
    assert window.value("document.querySelector('.chart > img').clientWidth") <= 400
    clean(window)
