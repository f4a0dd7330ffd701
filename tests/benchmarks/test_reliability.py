"""The reliability benchmark: its parts find nothing, and find what is broken on purpose."""

from __future__ import annotations

import json
import random
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.readme_reliability import reliability_section
from comap.benchmarks.reliability import actions, bench, corruption, disk_fills
from comap.benchmarks.reliability.all_served import SERVED
from comap.benchmarks.reliability.corruption_kinds import KINDS, Kind
from comap.benchmarks.reliability.findings import Findings
from comap.benchmarks.reliability.hostile import FAMILIES, mutated
from comap.benchmarks.reliability.isolated import isolated
from comap.benchmarks.reliability.memory import growth_mb
from comap.benchmarks.reliability.served import Line
from comap.benchmarks.reliability.server_clients import client, malformed_bodies
from comap.cli import main
from comap.envs.alfworld.engine import NativeEngine
from comap.envs.searchqa.retriever import CallableRetriever
from comap.envs.searchqa.server import RetrievalServer
from comap.errors import OptionError


def test_actions_of_all_kinds_lose_nothing() -> None:
    found = actions.play_actions("comap/ALFWorld-v0", 150)
    assert found["lost"] == 0 and found["counts"]["actions"] == 150
    assert {"hostile", "mutated", "random", "of the expert"} <= set(found["counts"])
    assert found == {**actions.play_actions("comap/ALFWorld-v0", 150), **_changing(found)}


def _changing(found: dict[str, Any]) -> dict[str, Any]:
    names = ("seconds", "memory_growth_mb", "memory_most_mb")
    return {name: found[name] for name in names}


def test_an_engine_that_breaks_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    act = NativeEngine.act

    def breaking(self: Any, action: str) -> Any:
        if "\x1b" in action or "<" in action:
            raise RuntimeError("odd")
        return act(self, action)

    monkeypatch.setattr(NativeEngine, "act", breaking)
    found = actions.play_actions("comap/ALFWorld-v0", 150)
    assert found["lost"] > 0 and "RuntimeError: odd" in found["losses"][0]


def test_every_family_makes_texts_and_mutations_change_them() -> None:
    rng = random.Random(0)
    for family in FAMILIES.values():
        assert all(isinstance(family(rng), str) for _ in range(20))
    assert sum(mutated("open fridge 1", rng) != "open fridge 1" for _ in range(50)) > 40


def test_growth_is_that_of_the_second_half() -> None:
    assert growth_mb([(float(n), 50.0 * (n < 50) * n) for n in range(100)]) == 0.0
    assert growth_mb([(float(n), 0.5 * n) for n in range(100)]) == pytest.approx(24.5)
    assert growth_mb([(0.0, 1.0)]) is None


def test_a_process_that_dies_is_a_finding() -> None:
    import os

    assert isolated(len, "abc", timeout=60) == 3
    assert "exit status 3" in isolated(os._exit, 3, timeout=60)["losses"][0]
    assert "ValueError" in isolated(int, "x", timeout=60)["losses"][0]


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.slow])
def test_damaged_files_are_told_or_read_right(name: str) -> None:
    if name == "checkpoints":
        pytest.importorskip("torch")
    found = corruption.damage_kind(name, 0.01, 3)
    assert found["losses"] == []
    assert "left out" in found or found["counts"]["damaged"] == 20


def test_readers_that_fail_otherwise_or_take_anything_are_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(folder: Path) -> None:
        (folder / "a.json").write_text(json.dumps(list(range(50))))

    def load(folder: Path) -> Any:
        return json.loads((folder / "a.json").read_bytes())

    def lenient(folder: Path) -> Any:
        return (folder / "a.json").read_bytes()

    monkeypatch.setitem(KINDS, "plain", Kind(make, load))  # type: ignore[arg-type]
    monkeypatch.setitem(KINDS, "lenient", Kind(make, lenient, checksum=True))  # type: ignore[arg-type]
    assert "Error" in corruption.damage_kind("plain", 0.01, 0)["losses"][0]
    assert "nothing told" in corruption.damage_kind("lenient", 0.01, 0)["losses"][0]


def ask(server: ThreadingHTTPServer) -> dict[str, Any]:
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/retrieve"
    line = Line(SERVED[0], url, "secret-secret-secret", random.Random(1))
    try:
        client(line, 30)
    finally:
        server.shutdown()
        server.server_close()
    return line.found.plain()


def test_clients_of_a_server() -> None:
    engine = CallableRetriever(
        lambda queries, k: [[{"id": str(n), "contents": "a"} for n in range(k)] for _ in queries]
    )
    found = ask(RetrievalServer(engine, port=0, token="secret-secret-secret"))
    assert found["losses"] == [] and found["counts"]["malformed bodies"] > 0


class _Yes(BaseHTTPRequestHandler):
    """Answers everything with an empty object."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_server_that_takes_anything_is_found_out() -> None:
    found = ask(ThreadingHTTPServer(("127.0.0.1", 0), _Yes))
    assert any("well-formed" in loss for loss in found["losses"])
    assert any("status 200 for malformed bodies b" in loss for loss in found["losses"])
    assert len(malformed_bodies()) == len(set(malformed_bodies()))


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def part(lost: int, scale: float, seed: int, tell: Any) -> dict[str, Any]:
        return {"counts": {}, "told": {}, "lost": lost, "losses": ["a run"] * lost, "scale": scale}

    monkeypatch.setattr(bench, "PARTS", {"disk": partial(part, 0), "load": partial(part, 1)})
    result = tmp_path / "r.json"
    words = ["bench", "reliability", "--scale", "0.1", "--result", str(result)]
    assert main([*words, "--parts", "disk"]) == 0
    assert json.loads(result.read_text())["parts"]["disk"]["scale"] == 0.1
    assert main(words) == 1
    assert "lost: a run" in capsys.readouterr().out
    assert main(["bench", "reliability", "--parts", "disk", "--result", str(result)]) == 0
    kept = json.loads(result.read_text())
    assert {name: one["scale"] for name, one in kept["parts"].items()} == {"disk": 1.0, "load": 0.1}
    assert kept["lost"] == 1
    result.write_text('{"benchmark": "speed"}')
    assert main([*words, "--parts", "disk"]) == 1
    assert "expected figures of comap bench reliability" in capsys.readouterr().err
    with pytest.raises(OptionError, match="there is no part 'disc'; did you mean 'disk'"):
        bench.run_reliability(1.0, ["disc"])
    with pytest.raises(OptionError, match="--scale"):
        bench.run_reliability(0.0)


def test_a_record_and_a_full_disk(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("the system has no limits of file sizes")
    found = Findings()
    place = disk_fills.Place(tmp_path, [], random.Random(2), found)
    disk_fills.KINDS["records of language models"][0](place, 0)
    told = found.plain()
    assert told["losses"] == [] and told["told"] == {"one line and exit status 1": 1}


def test_rows_of_the_readme_cope_with_more_and_with_less() -> None:
    def section(**counts: Any) -> str:
        parts = {
            "disk": {"counts": counts["disk"]},
            "engines": {"counts": counts["engines"]},
            "servers": {"counts": counts["servers"], "servers": {"a": {}, "b": {}}},
        }
        how = {"lost": 0, "seconds_taken": 1.0, "scale": 1, "load_average": 1.0}
        record = {"parts": {name: one | how for name, one in parts.items()}}
        return reliability_section(record, "today")

    asked = {"clients": 20, "well-formed requests": 9, "malformed bodies": 3}
    before = section(
        disk={"runs that met a full disk": 3}, engines={"runs killed": 2}, servers=asked
    )
    assert (
        "3 runs |" in before and "2 runs killed |" in before and "9 requests answered, 3" in before
    )
    now = section(
        disk={"runs that met a full disk": 3, "pushes that met a full disk": 1},
        engines={"runs killed": 2, "Ray workers killed": 4},
        servers=asked | {"episodes played": 5, "wrong requests": 2},
    )
    assert "3 runs, 1 pushes |" in now and "2 runs killed, 4 Ray workers killed |" in now
    assert "9 requests answered (5 episodes played), 5 malformed" in now
