"""`comap bench speed searchqa`: what it writes, keeps and refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from comap import cli
from comap.benchmarks import searchqa_speed, speed
from comap.benchmarks.readme_searchqa import searchqa_section
from comap.benchmarks.searchqa_passages import CORPUS, QUERIES, write_passages
from comap.benchmarks.searchqa_scale import DATASETS
from comap.envs.searchqa import build_index, open_index
from comap.errors import DataCorrupt, DataNotFound, OptionError


def test_invented_passages_are_found_by_their_queries(tmp_path: Path) -> None:
    write_passages(tmp_path, 300, queries=30)
    index = open_index(build_index(tmp_path / CORPUS, tmp_path / "index"))
    queries = json.loads((tmp_path / QUERIES).read_text())
    found = index.search(queries, 3)
    hits = [f"{10 * n:08d}" in {hit.id for hit in row} for n, row in enumerate(found)]
    assert len(hits) == 30 and sum(hits) >= 28
    before = (tmp_path / CORPUS).read_bytes()
    write_passages(tmp_path, 300, queries=30)
    assert (tmp_path / CORPUS).read_bytes() == before
    write_passages(tmp_path, 300, queries=30, seed=1)
    assert (tmp_path / CORPUS).read_bytes() != before


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A corpus of three passages and a question for each data set."""
    rows = [{"id": str(n), "contents": f'"T{n}"\nword{n} and more'} for n in range(3)]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mini_corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in DATASETS:
        row = {"question": "word1?", "metadata": {"supporting_ids": ["1", "2"]}}
        (folder / f"{name}_with_context.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_a_size_is_recorded_without_losing_the_others(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    options = {"kinds": ("fts5",), "environments": (1,), "processes": 1, "out": out}
    first = searchqa_speed.run(data, passages=(40,), **options)
    assert first["retrieval"][0]["recall"]["musique"] == {"recall": 0.5, "questions": 1}
    plain = first["retrieval"][0]["recall_plain"]
    assert plain["musique"] == {"recall": 0.5, "questions": 1} and set(plain) == set(DATASETS)
    assert first["steps"] >= 600 and first["ours"]["first"] > first["ours"]["again"] > 0
    row = first["scale"][0]
    assert row["passages"] == 40 and row["peak_bytes"] > row["bytes"] > 0
    assert row["query_seconds"]["median"] > 0 and row["open_seconds"] < 1
    second = searchqa_speed.run(passages=(30,), **options)
    assert [row["passages"] for row in second["scale"]] == [30, 40]
    assert second["retrieval"] == first["retrieval"] and second["scale"][1] == row
    assert json.loads(out.read_text()) == second
    told = searchqa_section(second, "today")
    assert "the columns are 0.500, 0.500 and 0.500." in told
    assert "| fts5 | 40 |" in told and "0.500" in told and "fts5" in searchqa_speed.table(second)


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="whole numbers"):
        searchqa_speed.run(passages=(0,))
    with pytest.raises(OptionError, match="fts5"):
        searchqa_speed.run(passages=(), kinds=("fts",))
    out = tmp_path / "out.json"
    out.write_text('{"scale": 3}')
    with pytest.raises(DataCorrupt, match="earlier result"):
        searchqa_speed.run(passages=(), out=out)
    with pytest.raises(DataNotFound):
        searchqa_speed.run(tmp_path, passages=(), kinds=("fts5",), environments=(), processes=1)


def test_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    speed.add_parser(parser.add_subparsers())
    args = parser.parse_args(["speed", "searchqa", "--passages", "5", "6", "--kinds", "fts5"])
    assert args.passages == [5, 6] and args.kinds == ["fts5"]
    assert cli.main(["bench", "speed", "searchqa", "--passages", "0"]) == 1
