"""The README: its code runs and prints what it shows, and its commands exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from comap.cli import main
from comap.cli.main import understood
from kits.doc_pages import blocks_of, check_output, commands_of

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
BLOCKS = blocks_of(README)
PYTHON_BLOCKS = sum(kind == "python" for kind, _ in BLOCKS)


def commands() -> list[list[str]]:
    blocks = [block for kind, block in BLOCKS if kind == "sh"]
    return [words for block in blocks for words, _ in commands_of(block)]


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 195


@pytest.mark.parametrize("number", range(PYTHON_BLOCKS))
def test_each_python_block_runs_alone_and_prints_what_is_shown(number: int, tmp_path: Path) -> None:
    """In a process of its own: a reader may copy any of them."""
    places = [index for index, (kind, _) in enumerate(BLOCKS) if kind == "python"]
    place = places[number]
    if "integrations.trl" in BLOCKS[place][1]:
        pytest.importorskip("trl")
    process = subprocess.run(
        [sys.executable, "-c", BLOCKS[place][1]], cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    follows = BLOCKS[place + 1 : place + 2]
    if follows and follows[0][0] == "text":
        check_output(follows[0][1], process.stdout)
    else:
        assert process.stdout == ""


COMPARED = {
    "imitation of an expert alone (SFT)": ("evidence", "CoMap against SFT"),
    "the same without its reflections": ("evidence", "CoMap against CoMap, gate shut"),
    "its corrections as demonstrations (DAgger)": (
        "evidence",
        "CoMap against Labels as drafts (DAgger)",
    ),
    "further SFT, from SmolLM2 of 135 million": (
        "evidence-pretrained",
        "CoMap against SFT, further",
    ),
    "GRPO alone, from SmolLM2 of 135 million": ("evidence-pretrained", "GRPO + PaW against GRPO"),
}
"""What the table of findings compares, the page that has it, and what that page calls it."""


def test_findings_are_those_of_the_evidence() -> None:
    rows = re.findall(
        r"^\| [^|]+, and ([^|]+) \| (.+), (.+) \| (.+) \| (\d+) \|$", TEXT, re.MULTILINE
    )
    assert [row[0] for row in rows] == list(COMPARED)

    for compared, first, second, difference, seeds in rows:
        page_name, comparison = COMPARED[compared]
        page = (ROOT / "docs" / f"{page_name}.md").read_text("utf-8")
        rates = dict(re.findall(r"^\| ([^|]+) \| \**(\d+\.\d) ± ", page, re.MULTILINE))
        assert [rates[method] for method in comparison.split(" against ")] == [first, second]

        point, low, high = re.findall(r"[+-][\d.]+", difference)
        row_start = f"| {comparison} | \\{point} | \\{low} to {high} |"
        (line,) = [line for line in page.splitlines() if line.startswith(row_start)]
        assert line.endswith(f"| {seeds} |")


def test_the_gain_that_is_excluded_is_the_measured_one() -> None:
    """PaW's, with tiny models: the upper end of the interval over seeds."""
    (stated,) = re.findall(r"gains above (\d+\.\d) points are excluded", TEXT)
    conditions = json.loads((ROOT / "benchmarks/results/lab_conditions.json").read_text("utf-8"))
    assert stated == f"{conditions['paw_differences']['paw']['high']:.1f}"


def test_the_shipped_agent_s_success_is_the_measured_one() -> None:
    record = json.loads((ROOT / "lm" / "models" / "alfworld" / "training.json").read_text("utf-8"))
    shut, own_world, oracle = list(record["success"].values())[:3]
    (sentence,) = re.findall(r"The shipped agent wins [^.]*\.\d % of (?:[^.]|\.\d)*", TEXT)
    for measured in (shut, own_world, oracle):
        assert f"{measured['value']:.1f} %" in sentence and str(measured["n"]) in sentence
    differences = json.loads((ROOT / "benchmarks/results/shipped_agent.json").read_text("utf-8"))
    gain = differences["final"]["differences"]["new.masked-0.7: own world model and gate shut"]
    ends = [f"{100 * gain[name]:+.1f}" for name in ("mean", "low", "high")]
    assert re.findall(r"[+-]\d+\.\d", sentence) == ends


def test_the_speed_is_the_measured_one() -> None:
    (times,) = re.findall(r"is ([\d,]+) times as fast as TextWorld's", TEXT)
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert re.search(rf"^\| `comap/ALFWorld-v0` \| [^|]+ \| {times} \|", results, re.MULTILINE)


def test_make_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = [words[1] for words in commands() if words[0] == "make"]
    assert targets == ["demo", "test"], "the README promises exactly two set-up commands"
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_comap_commands_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    words = [words[1:] for words in commands() if words[0] == "comap"]
    assert words
    for arguments in words:
        assert main([*arguments, "--help"]) == 0, arguments
        understood(arguments)
    assert main(["data", "list"]) == 0
    assert "alfworld" in capsys.readouterr().out


def test_its_files_are_there() -> None:
    """Links and pictures lead to files of the repository."""
    linked = re.findall(r"\]\((?!http)([^)#]+)", TEXT)
    assert len(linked) > 10
    assert [path for path in linked if not (ROOT / path).is_file()] == []
