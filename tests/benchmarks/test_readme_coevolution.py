"""The README's part about co-evolution, of whatever rows and seeds there are."""

from __future__ import annotations

from typing import Any

from comap.benchmarks.readme_coevolution import coevolution_section


def number(mean: float | None, sd: float | None = None) -> dict[str, Any]:
    return {"n": 1, "mean": mean, "sd": sd}


def row(name: str, told: str, **over: Any) -> dict[str, Any]:
    adoption = [{"round": at, "0.4": 0.5 * at, "0.6": 0.25, "0.8": None} for at in (1, 2)]
    return {"row": name, "told": told, "seeds": [{"adoption": adoption}], "over_seeds": over}


def test_rows_and_adoption_are_tables() -> None:
    sft = row("sft", "SFT", **{"success.valid_seen": number(0.5, 0.125), "brp": number(None)})
    comap = row("comap", "CoMap", **{"delta_f1.frozen.all": number(81.25), "brp": number(0.125)})
    lines = coevolution_section({"rows": [sft, comap]}).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2][:4] == ["SFT", "1", "50.0 ± 12.5", "–"] and cells[2][-1] == "–"
    assert cells[3][:5] == ["CoMap", "1", "–", "–", "81.2"] and cells[3][-1] == "0.12"
    assert cells[5] == ["threshold", "round 1", "round 2"]
    assert cells[7:] == [["0.4", "50.0", "100.0"], ["0.6", "25.0", "25.0"], ["0.8", "–", "–"]]


def test_what_a_policy_drew_anew_is_told_where_it_was_asked() -> None:
    kinds = {"drafts": 0.75, "revised": 0.875, "redrawn": 0.5, "others": 0.625}
    over = {f"redraws.{kind}.refused": number(share, 0.01) for kind, share in kinds.items()}
    *_, last = coevolution_section({"rows": [row("comap", "CoMap", **over)]}).splitlines()
    places = [last.index(f"{100 * share:.1f} ± 1.0") for share in kinds.values()]
    assert places == sorted(places)
    only = coevolution_section({"rows": [row("on-policy", "On-policy", **over)]})
    assert "refused (percent" not in only
