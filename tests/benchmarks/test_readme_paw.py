"""The README's part about PaW: tables and curves of whatever arms and seeds there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from comap.benchmarks.paw_bench_pairs import over_seeds, paired
from comap.benchmarks.readme_paw import paw_panels, paw_plot, paw_section, paw_text

NAMESPACE = "{http://www.w3.org/2000/svg}"


def an_arm(name: str, told: str, curves: Sequence[Sequence[float]], **more: Any) -> dict[str, Any]:
    finals = [curve[-1] for curve in curves]
    seeds = [
        {"seed": seed, "curve": {"success": list(curve), **more}}
        for seed, curve in enumerate(curves)
    ]
    over = {
        "success.start.all": over_seeds([0.25] * len(curves)),
        "success.final.valid_seen": over_seeds(finals),
        "success.final.valid_unseen": over_seeds(finals),
        "training_last": over_seeds(finals),
    }
    return {"arm": name, "told": told, "seeds": seeds, "over_seeds": over, "differences": {}}


def difference(won: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    last, ratio = over_seeds([0.1] * len(won)), over_seeds([1.25] * len(won))
    return {**paired(won, others), "training_last": last, "update_cpu": ratio}


@pytest.fixture
def record() -> dict[str, Any]:
    plain = an_arm("grpo", "GRPO", [[0.1, 0.2], [0.1, 0.4]])
    plain["gain"] = paired(["1110", "1100"], ["1000", "1100"])
    paw = an_arm("grpo+paw", "GRPO+PaW", [[0.1, 0.5], [0.3, 0.7]], wm_lambda=[1.0, 0.5])
    paw["differences"] = {"grpo": difference(["1110", "1100"], ["1000", "1100"])}
    lone = an_arm("ppo+paw", "PPO+PaW", [[0.0, 0.0]], wm_lambda=[1.0, None])
    return {"arms": [plain, paw, lone], "sparse": {"arms": [an_arm("grpo", "GRPO", [[0.0]])]}}


def test_a_row_tells_means_spreads_and_differences(record: dict[str, Any]) -> None:
    lines = paw_section(record).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    assert {len(row) for row in cells} == {11}
    plain, paw, lone = cells[2:5]
    assert plain[:5] == ["GRPO", "2", "25.0 ± 0.0", "30.0 ± 14.1", "30.0 ± 14.1"]
    assert plain[5].startswith("+25.0 [") and plain[6:8] == ["–", "–"] and plain[-1] == "–"
    told = record["arms"][1]["differences"]["grpo"]
    assert paw[6].startswith(f"+25.0 [{100 * told['low']:+.1f}, ")
    assert paw[7].startswith("[-292.6") and paw[10] == "1.25"  # 0.25 ± 12.7 x 0.354 / 1.41
    assert paw[9] == "+10.0 [+10.0, +10.0]"
    assert lone[:3] == ["PPO+PaW", "1", "25.0"] and lone[5:8] == ["–", "–", "–"]


def test_the_sparse_case_has_a_table_of_its_own(record: dict[str, Any]) -> None:
    text = paw_section(record)
    usual, _, sparse = text.partition("\n\nWith a start that hardly ever wins:\n\n")
    assert "PPO+PaW" in usual and "PPO+PaW" not in sparse and "| GRPO | 1 |" in sparse
    del record["sparse"]
    assert paw_section(record) == usual


def test_one_seed_has_no_interval_over_seeds(record: dict[str, Any]) -> None:
    record["arms"][1]["differences"] = {"grpo": difference(["1110"], ["1000"])}
    row = next(line for line in paw_section(record).splitlines() if line.startswith("| GRPO+PaW"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[7] == "–" and cells[9] == "+10.0"


def test_curves_are_moving_means_with_bands_over_seeds(record: dict[str, Any]) -> None:
    panels = {plot.title: plot for plot in paw_panels(record)}
    assert list(panels) == [
        "Success of rollouts, GRPO, %",
        "Success of rollouts, PPO, %",
        "Success of rollouts, GRPO, start that hardly wins, %",
        "Adaptive weight λ",
    ]
    plain, paw = panels["Success of rollouts, GRPO, %"].series
    assert plain.x == (1, 2) and plain.y == pytest.approx((10, 20))  # of 15 and 25
    assert plain.low == pytest.approx((10, 15)) and plain.high == pytest.approx((10, 25))
    assert paw.y == pytest.approx((20, 40))
    assert [one.name for one in panels["Adaptive weight λ"].series] == [
        "GRPO+PaW"
    ]  # None: left out


def test_a_moving_mean_is_of_five_updates_at_most() -> None:
    arm = an_arm("grpo", "GRPO", [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    (plot,) = paw_panels({"arms": [arm]})
    assert plot.series[0].y == pytest.approx((100, 50, 100 / 3, 25, 20, 0))


def test_many_arms_are_drawn_in_several_panels() -> None:
    arms = [an_arm(f"grpo+paw-{n}", f"GRPO+PaW, {n}", [[0.5]]) for n in range(8)]
    plots = paw_panels({"arms": arms})
    assert [len(plot.series) for plot in plots] == [6, 2]


def test_the_drawing_is_one_svg_with_every_panel(record: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    record["arms"][0]["told"] = "GRPO <b>&"
    text = paw_plot(record)
    root = ElementTree.fromstring(text)
    inner = root.findall(f"{NAMESPACE}svg")
    assert root.tag == f"{NAMESPACE}svg" and len(inner) == len(paw_panels(record))
    width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
    for one in inner:
        assert float(one.attrib["x"]) + float(one.attrib["width"]) <= width
        assert float(one.attrib["y"]) + float(one.attrib["height"]) <= height
    told = "".join(root.itertext())
    assert "Adaptive weight λ" in told and "GRPO <b>&" in told
    ids = [node.attrib["id"] for node in root.iter() if "id" in node.attrib]
    assert len(ids) == len(set(ids))
    assert paw_plot(record) == text


def test_a_result_without_runs_can_be_shown() -> None:
    pytest.importorskip("matplotlib")
    assert len(paw_section({"arms": []}).splitlines()) == 2
    assert ElementTree.fromstring(paw_plot({"arms": []})) is not None


def a_shop(record: dict[str, Any]) -> dict[str, Any]:
    """Make a record one of WebShop's: one split, and scores beside successes."""
    del record["sparse"]
    for arm in record["arms"]:
        over, seeds = arm["over_seeds"], arm["seeds"]
        over["success.final.test"] = over.pop("success.final.valid_seen")
        del over["success.final.valid_unseen"]
        over["score.start.all"] = over_seeds([0.5] * len(seeds))
        over["score.final.all"] = over_seeds([0.6] * len(seeds))
        arm["settings"] = {"groups": 16, "members": 8}
        for one in seeds:
            one |= {"plays": 4, "success": {"final": {"test": {"n": 200}, "all": {"n": 200}}}}
        for told in arm["differences"].values():
            told["score"] = over_seeds([0.05, 0.15])
    settings = {"evaluation_splits": ["test"], "evaluation_tasks": 200, "updates": 30}
    settings |= {"evaluation_temperature": 0.4, "max_episode_steps": 15}
    env = {"id": "comap/WebShop-v0", "options": {"source": "generated"}}
    return {**record, "settings": settings, "env": env}


def test_a_shop_has_its_own_split_and_scores(record: dict[str, Any]) -> None:
    shop = a_shop(record)
    lines = paw_section(shop).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    head, _, plain, paw, lone = cells
    assert head[2:7] == ["start", "test", "score, start", "score", "difference in score [seeds]"]
    assert {len(row) for row in cells} == {13}
    assert plain[3:7] == ["30.0 ± 14.1", "50.0 ± 0.0", "60.0 ± 0.0", "–"]
    assert paw[6].startswith("+10.0 [") and paw[8].startswith("+25.0 [") and lone[6] == "–"


def test_the_text_tells_how_a_shop_was_played(record: dict[str, Any]) -> None:
    text = paw_text(a_shop(record), "today")
    assert "play 200 test tasks 4 times at temperature 0.4" in text
    assert "30 updates of 128 episodes each (16 tasks, 8 episodes of each)" in text
    assert "embedded training tasks, at most 15 steps" in text
    assert text.endswith("(today, `comap bench paw --env comap/WebShop-v0`)")
