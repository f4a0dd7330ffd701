"""`comap bench coevolution` and `comap bench shipped`, at the smallest size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from comap.benchmarks.coevolution import collect
from comap.benchmarks.coevolution_models import WarmUp, shown_by_experts, warm_up
from comap.benchmarks.coevolution_rows import ROWS, run_row, training_of
from comap.benchmarks.shipped import make
from comap.errors import OptionError

SETTINGS: dict[str, Any] = {
    "live": 8,
    "logging_steps": 1,
    "reflection_tasks": 2,
    "states_per_episode": 1,
    "init_epochs": 1,
    "rounds": 1,
    "tasks_per_round": 2,
    "evaluation_tasks": 1,
    "final_tasks": 2,
    "frozen_transitions": 8,
    "diagnosed": 2,
    "predict_tokens": 16,
    "reflect_tokens": 12,
    "draft_tokens": 8,
}


def small(out: Path) -> WarmUp:
    return WarmUp(
        str(out),
        tasks=4,
        parameters=200_000,
        policy_tokens=4000,
        world_model_tokens=4000,
        max_episode_steps=4,
        side_tasks=2,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("coevolution")
    warm = small(out)
    shown = shown_by_experts(warm)
    for part in ("policy", "wm"):
        warm_up(part, 0, warm, shown)
    rows = {row.name: row for row in ROWS}
    for name in ("comap", "sft", "on-policy"):
        changes = dict(SETTINGS)
        if name == "sft":
            changes.pop("rounds")
        run_row(rows[name], 0, warm, shown, changes)
    return out


def test_rows_share_what_they_have_in_common(done: Path):
    for name, last in (("sft", "frozen-transitions"), ("on-policy", "round-0-evaluation")):
        for path in sorted((done / "rows" / f"{name}-0" / "stages").iterdir()):
            same = done / "rows" / "comap-0" / "stages" / path.name / "done.json"
            assert (path / "done.json").read_bytes() == same.read_bytes()
            if path.name.endswith(last):
                break
    own = [
        done / "rows" / f"{name}-0/stages/06-round-1-world-model" for name in ("comap", "on-policy")
    ]
    losses = [json.loads((path / "done.json").read_bytes())["log"] for path in own]
    assert "distillation" in losses[0][-1] and "distillation" not in losses[1][-1]


def test_what_was_measured_is_collected(done: Path):
    found = collect(done, [0, 1])
    rows = {row["row"]: row for row in found["rows"]}
    assert list(rows) == ["sft", "on-policy", "comap"]
    one = rows["comap"]["seeds"][0]
    assert one["success"]["all"]["n"] == 4 and len(one["won"]["valid_seen"]) == 2
    assert [point["round"] for point in one["rounds"]] == [0, 1]
    assert rows["sft"]["seeds"][0]["rounds"][0]["round"] == 0
    assert rows["comap"]["over_seeds"]["success.all"]["n"] == 1
    assert one["cpu_seconds"]["shared"] > 0
    assert set(found["warmup"]) == {"policy-0", "wm-0"}


def test_seeds_of_an_earlier_session_are_kept(done: Path):
    before = collect(done, [0])
    for row in before["rows"]:
        row["seeds"][0]["seed"] = 7
    found = collect(done, [0], before)
    assert [one["seed"] for one in found["rows"][0]["seeds"]] == [0, 7]


def test_a_row_needs_the_stages_that_it_shares(tmp_path: Path):
    with pytest.raises(OptionError, match="run row comap first"):
        run_row(ROWS[1], 3, small(tmp_path), [], SETTINGS)


def test_every_row_differs_from_comap_in_its_own_way():
    told = [training_of(row, 0).describe() for row in ROWS]
    assert len({json.dumps(one) for one in told}) == len(ROWS)


def test_the_models_that_comap_ships_come_with_a_card(done: Path, tmp_path: Path):
    record = make(done, 0, tmp_path / "models", SETTINGS)
    card = (tmp_path / "models" / "CARD.md").read_text("utf-8")
    assert "comap bench shipped --seed 0" in card
    assert {"agent", "wm", "head.safetensors", "settings.json", "training.json"} <= {
        path.name for path in (tmp_path / "models").iterdir()
    }
    assert record["evaluation"]["splits"]["valid_seen"]["n"] == 2


def test_the_command_collects_and_names_rows_that_there_are_not(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from comap.cli import main

    told = ["bench", "coevolution", "--data-dir", "D", "--demos", "F", "--out", str(done)]
    result = tmp_path / "result.json"
    assert main([*told, "--seeds", "0", "--collect", "--result", str(result)]) == 0
    assert json.loads(result.read_bytes())["rows"][0]["row"] == "sft"
    assert main([*told, "--rows", "everything"]) == 1
    assert "there is no row 'everything'; there are sft" in capsys.readouterr().err
