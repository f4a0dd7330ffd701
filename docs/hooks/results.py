"""``python docs/hooks/results.py`` writes the pages with results from benchmarks/results.

Their texts are the files `NAME.jinja` beside this one; results come from files.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = ("results", "evidence", "evidence-pretrained", "world-model-set")
SHIPPED = ROOT / "lm" / "models" / "alfworld" / "training.json"
WORLD_MODEL_SET = ROOT / "benchmarks" / "sets" / "v1.json"


def read_results(folder: Path = ROOT / "benchmarks" / "results") -> dict[str, dict[str, Any]]:
    """Return the recorded results by the names of their files.

    With them come what is known of the shipped models, and of the set of world models.
    """
    results = {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
    about = {"training": SHIPPED, "v1": WORLD_MODEL_SET}
    return results | {name: json.loads(path.read_bytes()) for name, path in about.items()}


def page(name: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page, in Markdown."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "micro": lambda seconds: f"{1e6 * seconds:,.1f} µs",
        "duration": duration,
        "ratio": ratio,
        "mib": lambda size, digits=0: f"{size / 2**20:,.{digits}f} MiB",
        "over_seeds": over_seeds,
        "mean_of": mean_of,
        "change": change,
        "rate": rate,
        "interval": lambda numbers: "–" if numbers is None else rate(numbers, "delta_f1"),
        "short": lambda env_id: env_id.rpartition("/")[2].partition("-v")[0],
        "cell": cell,
        "zip": zip,
    }
    variables = {
        "results": results,
        "experiment": experiment,
        "source": lambda *names: source(results, names),
    }
    return environment.get_template(f"{name}.jinja").render(variables)


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with separators; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def duration(spread: Mapping[str, float]) -> str:
    """Return a median time with the smallest and largest; a dash where nothing was timed."""
    median = spread["median"]
    if not median:
        return "–"
    scale, unit = (1e6, "µs") if median < 1e-3 else (1e3, "ms")
    digits = 1 if scale * median < 100 else 0
    median_text, low, high = (
        f"{scale * spread[name]:,.{digits}f}" for name in ("median", "min", "max")
    )
    return f"{median_text} {unit} ({low} to {high})"


def ratio(value: float) -> str:
    """Return how many times as long another takes; a dash where nothing was timed."""
    if not value:
        return "–"
    return number(value, 0 if value >= 100 else 2)


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent; a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def over_seeds(spread: Mapping[str, Any], scale: float = 100.0, digits: int = 1) -> str:
    """Return the mean and the deviation over seeds; a dash where there are none."""
    if spread["mean"] is None:
        return "–"
    return f"{scale * spread['mean']:.{digits}f} ± {scale * spread['sd']:.{digits}f}"


def mean_of(values: Sequence[float], scale: float = 100.0, digits: int = 1) -> str:
    """Return mean and deviation of values."""
    spread = {"mean": statistics.mean(values), "sd": statistics.stdev(values)}
    return over_seeds(spread, scale, digits)


def change(difference: Mapping[str, Any] | None) -> str:
    """Return a difference of shares with its interval, in percent."""
    if difference is None or difference["low"] is None:
        return "–"
    mean, low, high = (f"{100 * difference[name]:+.1f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def rate(share: Mapping[str, Any], name: str = "value") -> str:
    """Return a share with its interval, in percent."""
    if share[name] is None:
        return "–"
    return f"{percent(share[name])} [{percent(share['low'])}, {percent(share['high'])}]"


def cell(text: str) -> str:
    """Return a text of others, such as a model's name, as it may stand in a table: code, and short."""
    return f"`{re.sub(r'[^ -_a-{}~]', '', text).replace('|', '')[:60]}`"


def source(results: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return which files hold the numbers, and when and where they were measured."""
    files_by_circumstances: dict[str, list[str]] = {}
    for name in names:
        result = results[name]
        versions = result["versions"]
        machine = result["hardware"]
        circumstances = (
            f"{result['date'][:10]}, comap {versions['comap']}, Python {versions['python']}, "
            f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"
        )
        files_by_circumstances.setdefault(circumstances, []).append(f"`{name}.json`")
    return "; ".join(
        f"{', '.join(files)} ({circumstances})"
        for circumstances, files in files_by_circumstances.items()
    )


def experiment(folder: str, name: str) -> str:
    """Return the tables of an experiment, in Markdown, from the rows of a folder; no title."""
    from comap.benchmarks.experiments.definition import experiment as definition
    from comap.benchmarks.experiments.definition import read_rows
    from comap.benchmarks.experiments.report import results_of, section_lines

    rows = read_rows(ROOT / "benchmarks" / "results" / folder / "rows.jsonl")
    (section,) = results_of(rows, [definition(name)]).sections
    _, *lines = section_lines(section)
    return "\n\n".join(lines)


def main() -> None:
    """Write the pages."""
    results = read_results()
    for name in PAGES:
        (ROOT / "docs" / f"{name}.md").write_text(page(name, results), "utf-8")


if __name__ == "__main__":
    main()
