"""Reports of experiments: golden files, hostile text, and cited values that stay apart from ours."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.experiments.report import print_report, write_reports
from comap.benchmarks.experiments.report_latex import escape_latex
from comap.benchmarks.experiments.report_text import escape
from comap.benchmarks.experiments.rows import read_rows
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, OptionError

pytest.importorskip("jinja2", reason="the extra viz is not installed")
pytest.importorskip("matplotlib", reason="the extra viz is not installed")
pytest.importorskip("plotly", reason="the extra viz is not installed")
pytest.importorskip("rich", reason="the extra viz is not installed")

HERE = Path(__file__).parent
KIT = load(f"{HERE / 'reports_kit.py'}:KIT")
GOLDEN = HERE / "golden"
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202e\u2028\u2029\ud800\ufffe]")
VOID = {"meta", "br", "img", "input", "link"}


def write(folder: Path, *formats: str, rows: Any = None, out: Path | None = None) -> list[Path]:
    KIT.make(folder, rows)
    return write_reports(folder, out, formats or ("html",), KIT.EXPERIMENTS, cited=KIT.cited)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    write(place, "md", "tex", "html")
    return place


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    write(place, "md", "tex", "html", rows=KIT.hostile_rows())
    return place


# -- Markdown, LaTeX and the terminal --------------------------------------------------------------


@pytest.mark.parametrize("name", ["report.md", "report.tex"])
def test_golden(folder: Path, name: str) -> None:
    """COMAP_WRITE_GOLDEN=1 writes the files anew: look at what changed."""
    found = (folder / name).read_text("utf-8")
    if os.environ.get("COMAP_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(found, "utf-8")
    assert found == (GOLDEN / name).read_text("utf-8")


def test_markdown_tables_are_tables(folder: Path) -> None:
    lines = (folder / "report.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) > 30
    width = 0
    for before, line in pairwise(lines):
        if line.startswith("|"):
            bars = len(re.findall(r"(?<!\\)\|", line))
            width = width if before.startswith("|") else bars
            assert bars == width, line


def test_hostile_text_stays_text_in_markdown(hostile: Path) -> None:
    found = (hostile / "report.md").read_text("utf-8")
    assert not HIDDEN.search(found)
    allowed = re.sub(r"</?(sup|sub|details|summary)>", "", found)
    assert not re.search(r"(?<!\\)<", allowed)
    assert not re.search(r"(?<!\\)\]\((?!#|figures/)", found)  # no link but ours
    titles = [line for line in found.splitlines() if line.startswith("#")]
    assert len(titles) == 1 + len(KIT.EXPERIMENTS)


def test_pictures_are_svg_without_scripts(folder: Path, hostile: Path) -> None:
    for place in (folder, hostile):
        named = re.findall(r"\]\((figures/[^)]+)\)", (place / "report.md").read_text("utf-8"))
        assert len(named) == 3
        for name in named:
            text = (place / name).read_text("utf-8")
            assert text.startswith("<svg") and "<script" not in text and not HIDDEN.search(text)
            assert not re.search(r"<[^>]* (on\w+|style)=", text)


def test_hostile_text_stays_text_in_latex(hostile: Path) -> None:
    found = (hostile / "report.tex").read_text("utf-8")
    assert not HIDDEN.search(found) and r"\input" not in found
    assert r"\textbackslash{}input\{/etc/passwd\}" in found
    balanced_latex(found)


def balanced_latex(text: str) -> None:
    """Check what a compiler would: braces, environments, and the columns of each row."""
    bare = re.sub(r"\\[{}&%$#_\\]", " ", text)
    depth = 0
    for char in re.sub(r"(?m)%.*$", "", bare):
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth >= 0
    assert depth == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    for shape, body in re.findall(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}(.*?)\\end", text, re.S):
        for line in body.splitlines():
            if line.endswith(r"\\") and not line.startswith((r"\multicolumn", r"\addlinespace")):
                assert len(re.findall(r"(?<!\\)&", line)) == len(shape) - 1, line


def test_latex_is_well_formed(folder: Path) -> None:
    balanced_latex((folder / "report.tex").read_text("utf-8"))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
@pytest.mark.parametrize("which", ["folder", "hostile"])
def test_latex_compiles(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = request.getfixturevalue(which) / "report.tex"
    words = [
        "pdflatex",
        "-interaction=nonstopmode",
        "-halt-on-error",
        f"-output-directory={tmp_path}",
    ]
    done = subprocess.run([*words, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_escapes() -> None:
    assert escape("| a_b *c* `d` [e](f) <g> #1 https://h") == (
        r"\| a\_b \*c\* \`d\` \[e\](f) \<g\> \#1 https\://h"
    )
    assert escape("- item") == r"\- item" and escape("two\nlines") == "two lines"
    assert escape_latex("Δ-F1 50 % ± 1 é 漢 \u202e") == (
        r"$\Delta${-}F1 50 \% $\pm$ 1 é \texttt{[U+6F22]} [U+202E]"
    )


def test_the_terminal(capsys: pytest.CaptureFixture[str], folder: Path, hostile: Path) -> None:
    print_report(list(read_rows(folder / "rows.jsonl")), KIT.EXPERIMENTS, cited=KIT.cited)
    said = capsys.readouterr().out
    assert "CoMap, Table 1: Success" in said and "75.0 ± 5.0" in said and "failed [a]" in said
    assert said.index("Measured here") < said.index("Cited: Table 1")
    print_report(list(read_rows(hostile / "rows.jsonl")), KIT.EXPERIMENTS, cited=KIT.cited)
    said = capsys.readouterr().out
    assert not HIDDEN.search(said.replace("\n", "")) and "[U+001B]" in said


# -- the page --------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page, each with its parents and its text."""

    def __init__(self, path: Path):
        super().__init__(convert_charrefs=True)
        self.markup = path.read_text("utf-8")
        self.elements: list[tuple[str, dict[str, str | None], list[int]]] = []
        self.texts: dict[int, str] = {}
        self.open: list[int] = []
        self.comments: list[str] = []
        self.feed(self.markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), list(self.open)))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), list(self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            self.texts[element] = self.texts.get(element, "") + data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def all(self, tag: str, name: str = "") -> list[tuple[dict[str, str | None], str]]:
        """Return attributes and texts of elements, of those with a class."""
        return [
            (attributes, " ".join(self.texts.get(i, "").split()))
            for i, (found, attributes, _) in enumerate(self.elements)
            if found == tag and (not name or name in (attributes.get("class") or "").split())
        ]


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def evil(hostile: Path) -> Page:
    return Page(hostile / "report.html")


def test_our_values_and_the_cited_ones_share_no_column(page: Page) -> None:
    cited = {text for _, text in page.all("td", "cited")}
    ours = {text for _, text in page.all("td", "ours")}
    printed = {"11.11", "88.88 ± 1.5", "77.77"}
    assert printed <= cited and not printed & ours
    assert {"50.0 ± 10.0", "85.0d"} & ours and not {"50.0 ± 10.0", "85.0"} & cited
    for attributes, _ in [*page.all("td"), *page.all("th")]:
        names = (attributes.get("class") or "").split()
        assert not {"ours", "cited"} <= set(names)
    heads = [(a.get("class"), a.get("colspan"), text) for a, text in page.all("th", "group")]
    assert heads == [
        ("ours first group", "4", "measured here"),
        ("cited first group", "3", "cited from the paper"),
        ("ours first group", "1", "measured here"),
    ]


def test_rows_are_as_wide_as_their_heads_and_groups_stay_in_order(page: Page) -> None:
    for place, (tag, attributes, _) in enumerate(page.elements):
        if tag != "table" or "results" not in (attributes.get("class") or ""):
            continue
        inside = [i for i, (_, _, up) in enumerate(page.elements) if place in up]
        widths = set()
        for line in (i for i in inside if page.elements[i][0] == "tr"):
            cells = [page.elements[i][1] for i in inside if page.elements[i][2][-1:] == [line]]
            groups = [
                "cited" if "cited" in (cell.get("class") or "").split() else "ours"
                for cell in cells
            ]
            assert groups == sorted(groups, reverse=True)  # ours, then cited
            widths.add(sum(int(cell.get("colspan") or 1) for cell in cells))
        assert len(widths) <= 2 and max(widths) - min(widths) <= 1  # a head that spans two lines


def test_failed_cells_are_told(page: Page) -> None:
    failed = [text for attributes, text in page.all("td", "failed")]
    assert len(failed) == 2 and all(text.startswith("failed") for text in failed)
    notes = " ".join(text for _, text in page.all("ol", "footnotes"))
    assert "EngineError: out of memory" in notes and "An odd number." in notes
    lost = " ".join(text for _, text in page.all("ul", "lost"))
    assert lost == "tiny-M, Frozen WM: failed: killed"


def test_every_value_has_its_interval_n_seeds_and_links(page: Page, folder: Path) -> None:
    targets = [a["href"] for a, _ in page.all("a", "cell")]
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) and targets
    rows = {a.get("id"): text for a, text in page.all("tr")}
    for target in targets:
        assert rows[(target or "")[1:]]
    told = next(text for text in rows.values() if text.startswith("CoMap, tiny-SALFWorld seen"))
    assert "75.0 ± 5.0" in told and "62.6 to 87.4 (t over seeds)" in told
    assert "n = 140, seeds 0, 1, 2" in told and "seed 1 75.0 record trajectories" in told
    addresses = [a["href"] or "" for a, text in page.all("a") if text in ("record", "trajectories")]
    assert addresses and all((folder / address).exists() for address in addresses)


def test_links_lead_on_when_the_folder_moves_or_the_report_is_elsewhere(tmp_path: Path) -> None:
    first, moved = tmp_path / "first", tmp_path / "deep" / "moved"
    rows = [one for one in KIT._table_rows() if one.seed == 1]
    KIT.make(first)
    (first / "jobs" / "react-tiny-S-1" / "out" / "view.html").write_text("", "utf-8")
    write(first, "html", rows=rows, out=first / "reports")
    shutil.move(first, moved)
    links = [a["href"] or "" for a, _ in Page(moved / "reports" / "report.html").all("a")]
    away = [link for link in links if not link.startswith("#")]
    assert away and all((moved / "reports" / link).exists() for link in away)
    assert {Path(link).name for link in away} == {"job.json", "trajectories.jsonl", "view.html"}


def test_names_of_jobs_never_lead_out_of_the_folder(tmp_path: Path, evil: Page) -> None:
    away = [a["href"] for a, _ in evil.all("a") if not (a["href"] or "").startswith("#")]
    assert not away
    (tmp_path / "secret").mkdir()
    folder = tmp_path / "results"
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs" / "link").symlink_to(tmp_path / "secret")
    (folder / "jobs" / "a b#c?").mkdir()
    told = {"env": KIT.AW, "split": "valid_seen", "value": 1.0, "backbone": "b"}
    names = ("../../secret", "link", "/etc", "a b#c?", "x\x00y", "a" * 5000)
    rows = [KIT.row(**told, job=job, seed=seed) for seed, job in enumerate(names)]
    (path,) = write(folder, "html", rows=rows)
    links = {a["href"] for a, _ in Page(path).all("a") if not (a["href"] or "").startswith("#")}
    assert links == {"./jobs/a%20b%23c%3F/"}


def test_hostile_text_never_becomes_markup(page: Page, evil: Page) -> None:
    assert {tag for tag, _, _ in evil.elements} <= {tag for tag, _, _ in page.elements} | {"sup"}
    known = {name for _, attributes, _ in page.elements for name in attributes}
    assert {name for _, attributes, _ in evil.elements for name in attributes} <= known
    assert not evil.comments and not page.comments
    assert len(evil.all("script")) == 3 and len(evil.all("style")) == 1
    assert not HIDDEN.search(evil.markup)
    for found in (page, evil):
        for _, attributes, _ in found.elements:
            assert not any(name.startswith("on") or name in ("style", "src") for name in attributes)
            assert (
                not (attributes.get("href") or "").lower().startswith(("javascript", "http", "//"))
            )
    assert any("</script><script>document" in text for _, text in evil.all("th", "method"))


def test_the_policy_names_the_scripts_and_the_style_only(page: Page) -> None:
    (policy,) = (a["content"] or "" for a, _ in page.all("meta") if "http-equiv" in a)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def named(source: str) -> str:
        digest = hashlib.sha256(source.encode("utf-8")).digest()
        return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"

    from plotly.offline import get_plotlyjs

    inside = re.findall(r"<script>(.*?)</script>", page.markup, re.S)
    style = re.findall(r"<style>(.*?)</style>", page.markup, re.S)
    assert rules["script-src"].split() == [named(inside[-1]), named(get_plotlyjs())]
    assert rules["style-src"] == named(style[0])
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'" and "unsafe" not in policy
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "fetch(", "http"):
        assert word not in inside[-1]


def test_the_data_of_plots_stands_in_tables_too(page: Page) -> None:
    (block,) = re.findall(r'id="data">(.*?)</script>', page.markup, re.S)
    charts = json.loads(block)["charts"]
    points = sum(len(curve["x"]) for chart in charts for curve in chart["curves"])
    lines = [text for _, text in page.all("td") if re.match(r"n = \d+, seeds? [\d, ]+$", text)]
    own = len([a for a, _ in page.all("a", "cell")])
    assert points == 15 and len(lines) >= points + own - 8  # texts and failed cells have no n
    assert len(page.all("svg")) == len(charts) == 3


def test_a_page_without_figures_has_no_library(tmp_path: Path) -> None:
    (path,) = write(tmp_path, "html", rows=KIT._table_rows())
    text = path.read_text("utf-8")
    assert len(text) < 250_000 and "trusted-types 'none'" in text


def test_the_same_rows_give_the_same_reports_in_any_process(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from comap.envs.conformance.transcripts import load;"
        "from comap.benchmarks.experiments.report import write_reports as w;"
        "kit = load(sys.argv[1]); place = Path(sys.argv[2]); kit.make(place);"
        "w(place, None, ['md', 'tex', 'html'], kit.EXPERIMENTS, cited=kit.cited)"
    )
    words = [sys.executable, "-c", code, f"{HERE / 'reports_kit.py'}:KIT", str(tmp_path)]
    subprocess.run(words, env={**os.environ, "PYTHONHASHSEED": "7"}, check=True)
    for name in ("report.md", "report.tex", "report.html"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


# -- what is given ---------------------------------------------------------------------------------


def test_faults(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"comap bench run"):
        write_reports(tmp_path)
    with pytest.raises(OptionError, match="there is no format 'pdf'"):
        write_reports(tmp_path, formats=("pdf",))
    (tmp_path / "rows.jsonl").write_text("{}\n", "utf-8")
    with pytest.raises(DataCorrupt, match="line 1"):
        write_reports(tmp_path)


def test_nothing_measured_and_unknown_experiments_are_told(tmp_path: Path) -> None:
    rows = [KIT.row(experiment="t-of-tomorrow", value=1.0)]
    for path in write(tmp_path, "md", "tex", "html", rows=rows):
        text = path.read_text("utf-8").replace("{-}", "-")
        assert "t-of-tomorrow" in text and "t-settings" in text
