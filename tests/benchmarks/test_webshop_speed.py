from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from comap import cli
from comap.benchmarks import speed, webshop_speed
from comap.benchmarks.webshop_products import PRODUCTS, QUERIES, write_products
from comap.envs.webshop import Catalog, build_catalog
from comap.errors import DataCorrupt, DataNotFound, OptionError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    speed.add_parser(parser.add_subparsers())
    return parser.parse_args(["speed", *words])


def test_invented_products_are_found_by_their_queries(tmp_path: Path) -> None:
    write_products(tmp_path, 300, queries=30)
    shop = Catalog.open(build_catalog(tmp_path / PRODUCTS, tmp_path / "shop", nouns="lexical"))
    assert len(shop) == 300
    queries = json.loads((tmp_path / QUERIES).read_text())
    found = [f"T{10 * number:09d}" in shop.search(query) for number, query in enumerate(queries)]
    assert len(found) == 30 and sum(found) >= 25
    before = (tmp_path / PRODUCTS).read_bytes()
    write_products(tmp_path, 300, queries=30)
    assert (tmp_path / PRODUCTS).read_bytes() == before
    write_products(tmp_path, 300, queries=30, seed=1)
    assert (tmp_path / PRODUCTS).read_bytes() != before


def test_a_result_of_recorded_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_products(tmp_path, 40, queries=2)
    notes = {"instruction": "Find me", "instruction_attributes": ["x"], "attributes": ["x"]}
    (tmp_path / "notes.json").write_text(json.dumps({"T000000007": notes}))
    shop = build_catalog(tmp_path / PRODUCTS, tmp_path / "shop", tmp_path / "notes.json")
    start = {"action": "click[search]", "observation": "wrong"}
    session = {
        "goal": {"goal_kind": "synthetic", "enum_index": 0},
        "observation_mode": "text",
        "show_attrs": False,
        "steps": [start, {"action": "search[zzz]", "observation": "wrong too"}],
    }
    (tmp_path / "s.jsonl").write_text(json.dumps(session) + "\n")
    result = webshop_speed.run(
        shop, [tmp_path / "s.jsonl"], products=(30,), environments=(2,), processes=2
    )
    assert (result["episodes"], result["steps"], result["steps_that_agree"]) == (1, 2, 0)
    for name in ("first", "again", "page_first", "page_again"):
        expected = result["peer"]["seconds_per_step"] / result["ours"][name]
        assert result["ratios"][name] == pytest.approx(expected)
    assert "not run beside" in result["peer"]["what"]
    assert result["processes"] == 2
    spread = result["spread"]["first"]
    assert spread["min"] == result["ours"]["first"] <= spread["max"]
    assert result["ours"]["page_again"] < result["ours"]["again"]  # no facts, less work
    (row,) = result["scale"]
    held = row["resident_bytes"]
    assert row["products"] == 30 and held["imported"] <= held["opened"]
    assert row["query_seconds"]["min"] <= row["query_seconds"]["median"]
    assert result["memory"]["2"]["one_process"] > 1e6
    assert str(tmp_path) not in json.dumps(result)
    table = webshop_speed.table(result)
    assert "times the original's steps (recorded)" in table and "before query" in table


def test_what_was_measured_of_other_sizes_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    first = webshop_speed.run(products=(30,), environments=(), processes=1, out=out)
    again = webshop_speed.run(products=(20,), environments=(), processes=1, out=out)
    assert [row["products"] for row in again["scale"]] == [20, 30]
    assert again["scale"][1] == first["scale"][0] and again["scale"][1]["date"] == first["date"]
    out.write_text("[]")
    with pytest.raises(DataCorrupt, match="earlier result"):
        webshop_speed.run(products=(), environments=(), processes=1, out=out)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}

    def run(*args: object, **options: object) -> dict[str, object]:
        told.update(options)
        names = ("page_first", "page_again", "first", "again", "reset")
        ours = dict.fromkeys(names, 1e-5)
        return {"episodes": 1, "steps": 1, "ours": ours, "memory": {}, "scale": []}

    monkeypatch.setattr(webshop_speed, "run", run)
    assert speed.main(parsed("webshop")) == 0
    assert told["products"] == (1_000, 100_000, 1_000_000)
    assert speed.main(parsed("webshop", "--products", "--out", str(tmp_path / "a.json"))) == 0
    assert told["products"] == [] and told["out"] == str(tmp_path / "a.json")


def test_what_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataNotFound):
        webshop_speed.run(sessions=[tmp_path / "none.jsonl"], products=())
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(DataCorrupt):
        webshop_speed.run(sessions=[tmp_path / "bad.jsonl"], products=())
    with pytest.raises(OptionError, match="at least 1"):
        webshop_speed.run(products=(0,))
    with pytest.raises(OptionError, match="at least 1"):
        webshop_speed.run(processes=0)
    assert cli.main(["bench", "speed", "webshop", "--data-dir", str(tmp_path)]) == 1
    assert "comap data build webshop" in capsys.readouterr().err
