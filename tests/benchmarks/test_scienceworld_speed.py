"""ScienceWorld's speed benchmark, without simulators: they would cost more than the rest."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from comap.benchmarks import scienceworld_speed, speed
from comap.benchmarks.scienceworld_players import OURS, Spent, cpu_seconds, spent_by
from comap.envs.scienceworld.tasks import task_table
from comap.errors import OptionError


class StandIn:
    """Plays without a simulator, at a speed of its own."""

    def __init__(self, backend: str = "", full: bool = False, work: int = 20_000):
        self.work = work * (2 if full else 1)
        self.closed = False
        self.env: Any = self
        self.unwrapped: Any = self

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self, name)

    def expert_action(self) -> str | None:
        return "wait" if self.taken < self.length else None

    def start(self, name: str, variation: int) -> None:
        assert task_table()[name]["variations"] > variation
        self.taken, self.length = 0, 3 + len(name)

    def step(self, action: str) -> tuple[str, int]:
        self.taken += 1
        return f"{action} {sum(range(self.work)) and self.taken}", self.taken

    def snapshot(self) -> int:
        return self.taken

    def restore(self, kept: int) -> None:
        self.taken = kept

    def reset(self, options: Any) -> None:
        self.taken = 0

    def jvm(self) -> int | None:
        return None

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    made: list[StandIn] = []

    def make(*how: Any, **more: Any) -> StandIn:
        made.append(StandIn(*how, **more))
        return made[-1]

    monkeypatch.setattr(scienceworld_speed, "OurPlayer", make)
    monkeypatch.setattr(scienceworld_speed, "UpstreamPlayer", lambda: make(work=100_000))
    monkeypatch.setattr(scienceworld_speed, "_restores", lambda player, who: "lazy" in who)
    return made


def test_the_result_adds_up(stand_ins: list[StandIn], tmp_path: Any) -> None:
    told: list[str] = []
    out = tmp_path / "speed.json"
    result = scienceworld_speed.run(
        "upstream", games=3, repeats=2, memory=False, out=out, progress=told.append
    )
    assert json.loads(out.read_text()) == result
    assert len(stand_ins) == 5 and all(player.closed for player in stand_ins)
    assert result["games"] == 3 and result["repeats"] == 2
    assert result["steps"] == 2 * sum(game["steps"] for game in result["per_game"])
    assert result["agreement"] == dict.fromkeys([*OURS, "upstream"], result["steps"])
    for kind in ("wall", "cpu"):
        lazy, theirs = (result["players"][name][kind]["step"] for name in ("py4j_lazy", "upstream"))
        assert result["ratios"][kind]["py4j_lazy"] == pytest.approx(theirs / lazy)
    assert result["ratios"]["cpu"]["jpype_lazy"] > 2 and set(result["restore"]) == {
        "jpype_lazy",
        "py4j_lazy",
    }
    assert told[-1] == "pass 6 of 6"  # four of which warm up
    shown = scienceworld_speed.table(result | {"memory": {"py4j": {"first_bytes": 2**28}}})
    assert "upstream" in shown and "first_bytes 256 MiB" in shown


def test_without_a_peer_there_are_no_ratios(stand_ins: list[StandIn]) -> None:
    result = scienceworld_speed.run(games=1, repeats=1, memory=False)
    assert result["ratios"] == {} and "upstream" not in result["players"]
    assert scienceworld_speed.table(result).startswith("1 tasks")


def test_players_that_differ_are_found(stand_ins: list[StandIn]) -> None:
    result_of = scienceworld_speed._result
    tallies = {name: scienceworld_speed._Tally([1.0], Spent(1, 1), [Spent(1, 1)]) for name in OURS}
    for name, tally in tallies.items():
        tally.told = [[("a", 0), ("b", 1 if name == "py4j_full" else 2)]]
    agreement = result_of(None, [("boil", 0, ("wait", "wait"))], tallies)["agreement"]
    assert agreement == {"jpype_full": 2, "jpype_lazy": 2, "py4j_full": 1, "py4j_lazy": 2}


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(OptionError, match="did you mean 'upstream'"):
        scienceworld_speed.run("upsteam")
    for wrong in ({"games": -1}, {"repeats": 0}):
        with pytest.raises(OptionError, match="or more"):
            scienceworld_speed.run(**wrong)  # type: ignore[arg-type]


def test_the_command_reaches_it(
    stand_ins: list[StandIn], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scienceworld_speed, "_memory", dict)
    parser = argparse.ArgumentParser()
    speed.add_parser(parser.add_subparsers())
    words = ["speed", "scienceworld", "--peer", "upstream", "--games", "1"]
    assert speed.main(parser.parse_args(words)) == 0
    assert "jpype_lazy" in capsys.readouterr().out


def test_what_a_call_costs_is_measured() -> None:
    player: Any = StandIn()
    spent = spent_by(player, lambda: sum(range(300_000)))
    assert spent.wall > 0 and spent.cpu > 0
    assert cpu_seconds(2**22 + 1) > 0, "a process that is gone costs nothing more"
