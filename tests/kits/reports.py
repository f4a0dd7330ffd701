"""Small synthetic results: a table, figures of lines and of bars, failures, and hostile text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comap.benchmarks.experiments.cited import CitedTable, cited_of
from comap.benchmarks.experiments.definition import ResultRow, experiment_of, read_rows, write_rows
from comap.benchmarks.experiments.report import Results, results_of
from comap.benchmarks.experiments.session import write_report

AW, WS = "comap/ALFWorld-v0", "comap/WebShop-v0"
EVIL = (
    "</script><script>document.body.dataset.pwned=1</script><img src=x onerror=alert(1)>"
    "<!--</style>{{ 7 * 7 }} $x$ \\input{/etc/passwd} | **b** `c` [a](javascript:alert(1)) @me"
    "\x1b[31m\x00\u202eabc\u2028%{x}"
)


def _golden(name: str) -> Any:
    return json.loads(
        Path(__file__)
        .parents[1]
        .joinpath("benchmarks/experiments/golden")
        .joinpath(name)
        .read_text("utf-8")
    )


EXPERIMENTS = tuple(map(experiment_of, _golden("experiments.json")))
TABLE, SETTINGS, CURVES, BARS = EXPERIMENTS
CITED = cited_of(_golden("cited.json"))
"""What a made-up paper prints; its numbers are none that ours could be."""


def row(**fields: Any) -> ResultRow:
    defaults: dict[str, Any] = {
        "experiment": TABLE.id,
        "method": "ReAct",
        "metric": "success_rate",
        "code_version": "0.1.0",
        "hardware": "a CPU, 2 cores",
    }
    return ResultRow(**{**defaults, **fields})


def table_rows() -> list[ResultRow]:
    values: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
        ("ReAct", "tiny-S"): {"valid_seen": (40.0, 50.0, 60.0), "valid_unseen": (30.0, 30.0, 33.0)},
        ("CoMap", "tiny-S"): {"valid_seen": (70.0, 75.0, 80.0), "valid_unseen": (60.0, 66.0, 63.0)},
        ("ReAct", "tiny-M"): {"valid_seen": (55.0,), "valid_unseen": (45.0,)},
        ("CoMap", "tiny-M"): {"valid_seen": (85.0,), "valid_unseen": (71.25,)},
    }
    counts = {"valid_seen": 140, "valid_unseen": 134}
    rows = []
    for (method, backbone), of_split in values.items():
        for seed in range(len(of_split["valid_seen"])):
            job = f"{method.lower()}-{backbone}-{seed}"
            job_fields = {"method": method, "backbone": backbone, "seed": seed, "job": job}
            for split, seed_values in of_split.items():
                file = f"jobs/{job}/out/trajectories.jsonl"
                split_fields = {"env": AW, "split": split, "n": counts[split], "trajectories": file}
                rows.append(
                    row(**job_fields, **split_fields, value=seed_values[seed], seconds=60.0)
                )
            shop = 20.0 + seed + (10 if method == "CoMap" else 0)
            rows.append(row(**job_fields, env=WS, split="test", n=200, value=shop, seconds=60.0))
    for seed in range(3):
        error = "failed: EngineError: out of memory after 3 tasks"
        job_fields = {"method": "RAP", "backbone": "tiny-S", "seed": seed, "job": f"rap-{seed}"}
        rows.append(row(**job_fields, env=AW, error=error))
    rows.append(
        row(method="Prompted", env=AW, error="the scale tiny has no model in the slot api-1")
    )
    return rows


def figure_rows() -> list[ResultRow]:
    rows = []
    for method, start in (("SFT", 3.0), ("WMSD", 2.0)):
        shared_fields: dict[str, Any] = {
            "experiment": CURVES.id,
            "method": method,
            "backbone": "tiny-S",
        }
        for seed in (0, 1):
            fields = {**shared_fields, "env": AW, "seed": seed, "job": f"{method}-{seed}"}
            for x in (0.0, 10.0, 20.0):
                nll = start - x / 20 + seed / 10
                rows.append(
                    row(
                        **{**fields, "metric": "change_token_nll"},
                        unit="nats",
                        value=nll,
                        x=x,
                        n=800,
                    )
                )
                rows.append(row(**fields, value=50 + x + seed, x=x, n=100))
    for method in ("CoMap", "Frozen WM"):
        for backbone, value in (("tiny-S", 60.0), ("tiny-M", 70.0)):
            fields = {"experiment": BARS.id, "method": method, "backbone": backbone, "env": AW}
            if (method, backbone) == ("Frozen WM", "tiny-M"):
                rows.append(row(**fields, seed=0, job="frozen", error="failed: killed"))
            else:
                rows.append(row(**fields, seed=0, job="done", value=value, n=140))
    texts = {"Optimizer": "AdamW, 0.9 & 0.999", "Rounds": "2"}
    return rows + [
        row(
            experiment=SETTINGS.id,
            method=name,
            metric="setting",
            unit="",
            text=text,
            job="settings",
        )
        for name, text in texts.items()
    ]


def hostile_rows() -> list[ResultRow]:
    """Rows whose every text is hostile."""
    fields: dict[str, Any] = {
        "method": EVIL,
        "backbone": EVIL,
        "hardware": EVIL,
        "code_version": EVIL,
        "trajectories": "javascript:alert(1)",
        "job": "../../" + EVIL,
    }
    return [
        row(**fields, env=AW, split="valid_seen", value=50.0, seed=0, n=3),
        row(**fields, env=AW, split="valid_unseen", seed=0, error=EVIL),
        row(**fields, env=WS, split="test", seed=0, error="\n# " + EVIL),
        row(**{**fields, "experiment": SETTINGS.id, "metric": "setting", "unit": ""}, text=EVIL),
        row(**{**fields, "experiment": CURVES.id, "env": AW}, x=1.0, value=2.0, seed=0),
        row(**{**fields, "experiment": CURVES.id, "env": AW}, x=2.0, error=EVIL, seed=0),
        row(**{**fields, "experiment": BARS.id, "env": AW}, value=2.0, seed=0),
        row(**{**fields, "experiment": EVIL}, value=2.0, seed=0),
    ]


def cited(name: str) -> CitedTable | None:
    """The published numbers of an experiment."""
    return CITED if name == CITED.id else None


def make(folder: Path, rows: list[ResultRow] | None = None) -> Path:
    """Write a folder of results, with the jobs that its rows name."""
    all_rows = [*table_rows(), *figure_rows()] if rows is None else rows
    write_rows(folder / "rows.jsonl", all_rows)
    for result_row in all_rows if rows is None else ():
        if result_row.job:
            out = folder / "jobs" / result_row.job / "out"
            out.mkdir(parents=True, exist_ok=True)
            (out.parent / "job.json").write_text(json.dumps({"id": result_row.job}), "utf-8")
            (out / "trajectories.jsonl").write_text("", "utf-8")
    return folder


def results(folder: Path) -> Results:
    """What the rows of a folder come to."""
    return results_of(read_rows(folder / "rows.jsonl"), EXPERIMENTS, cited)


def write(
    folder: Path, *formats: str, rows: list[ResultRow] | None = None, out: Path | None = None
) -> list[Path]:
    """Write the reports of a folder that is made for it."""
    make(folder, rows)
    report_results = results(folder)
    return [
        write_report(report_results, folder, out or folder, name) for name in formats or ("html",)
    ]
