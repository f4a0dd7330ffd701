"""What the program behind benchmarks/results/web_facts.json measures, on a few episodes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "measure" / "web_facts.py"


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("web_facts", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cheap_guesses_earn_little_and_the_truth_everything() -> None:
    delta_f1s = loaded().measured(12)["delta_f1"]
    for cell in delta_f1s.values():
        assert cell["n"] > 0 and (cell["null"], cell["oracle"]) == (0.0, 1.0)
    assert delta_f1s["all"]["address"] < 0.35 < delta_f1s["structure"]["address"]
    assert delta_f1s["all"]["address"] < delta_f1s["present page only"]["address"]


def test_the_recorded_result_is_the_programs() -> None:
    module = loaded()
    recorded = json.loads(module.OUT.read_bytes())
    cells = recorded["delta_f1"]
    assert recorded["transitions"] > 1000 and recorded["env"] == module.ENV
    assert {name.partition(",")[0] for name in cells} == set(module.VIEWS)
    assert cells["all"]["address"] < 0.3 and cells["all"]["same look"] < 0.3
