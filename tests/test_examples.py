"""The example scripts and the notebooks run to their end, on the tiny preset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kits.processes import forked

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = {
    "adapt_textarena": ((), ("hanoi.json",)),
    "change_the_method": ((), ("comap/summary.json", "paw/metrics.jsonl")),
    "imagined_rollout": ((), ("rollout.json",)),
    "run_and_view": (("--episodes", "1"), ("view.html", "summary.json", "trajectories.jsonl")),
    "train_comap_tiny": ((), ("report.html", "summary.json", "models/agent/model.safetensors")),
    "train_paw_tiny": (
        ("--updates", "1"),
        ("report.html", "metrics.jsonl", "models/agent/model.safetensors"),
    ),
}
"""The arguments of each script, and what it must write."""
SMALLER = {
    "change_the_method": {
        '"max_episode_steps": 6': '"max_episode_steps": 2',
        "tasks_per_round=2": "tasks_per_round=1",
        "diagnosed=0": "diagnosed=0, entry_tasks=1",
        "members=4": "members=2",
    },
    "run_and_view": {'source="generated")': 'source="generated", max_episode_steps=2)'},
    "train_comap_tiny": {
        '"max_episode_steps": 8': '"max_episode_steps": 2',
        '"demonstrations": 6': '"demonstrations": 2',
        '"warmup_rollouts": 2': '"warmup_rollouts": 1',
        '"reflection_tasks": 2': '"reflection_tasks": 1',
        '"tasks_per_round": 2': '"tasks_per_round": 1',
        '"evaluation_tasks": 2': '"evaluation_tasks": 1',
        '"frozen_transitions": 12': '"frozen_transitions": 2',
        '"diagnosed": 2': '"diagnosed": 1, "entry_tasks": 1',
    },
    "train_paw_tiny": {
        '"max_episode_steps": 12': '"max_episode_steps": 2',
        "members=4": "members=2",
        "evaluation_tasks=4": "evaluation_tasks=1",
    },
    "train_and_look": {
        '"max_episode_steps": 10': '"max_episode_steps": 2',
        "members=3": "members=2",
        "max_episode_steps=10": "max_episode_steps=2",
        "evaluation_tasks=2": "evaluation_tasks=1",
    },
}
"""Numbers of a reader's training, and those that are run here."""
LEARNED = ("change_the_method", "run_and_view", "train_comap_tiny", "train_paw_tiny")
NOTEBOOKS = ("facts_and_imagined_futures", "train_and_look")


def test_all_are_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys()
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)


def smaller(name: str, text: str) -> str:
    for before, after in SMALLER.get(name, {}).items():
        assert before in text, before
        text = text.replace(before, after)
    return text


def command(name: str, place: Path) -> list[str]:
    """Return what is typed after "python" to run a script."""
    script = place / f"{name}.py"
    script.write_text(smaller(name, (EXAMPLES / script.name).read_text("utf-8")), "utf-8")
    return [str(script), "--out", str(place / name), *SCRIPTS[name][0]]


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - set(LEARNED)))
def test_a_script_runs(name: str, tmp_path: Path) -> None:
    if name == "adapt_textarena":
        pytest.importorskip("textarena")
    process = subprocess.run(
        [sys.executable, *command(name, tmp_path)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    check(name, tmp_path, process.returncode, process.stdout, process.stderr)


def check(name: str, place: Path, status: int, output: str, errors: str) -> None:
    assert status == 0, output + errors
    assert "Traceback" not in errors and "Warning" not in errors, errors
    assert [file for file in SCRIPTS[name][1] if not (place / name / file).is_file()] == []
    report = place / name / "report.html"
    assert not report.exists() or ">unknown<" not in report.read_text("utf-8")


@pytest.mark.parametrize("name", LEARNED)
def test_a_script_with_models_runs(name: str, tmp_path: Path) -> None:
    """In a process that has imported the packages: that takes longer than the scripts do."""
    for package in ("torch", "trl", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    check(name, tmp_path, *forked(command(name, tmp_path), environment(), tmp_path))


def environment() -> dict[str, str]:
    """Return the variables of a script's process: offline, with the comap that is tested."""
    path = os.pathsep.join([str(EXAMPLES.parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def test_a_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    client: Any = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for variable, value in environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(EXAMPLES / "facts_and_imagined_futures.ipynb", as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": tmp_path}}
    client.NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert outputs and not [output for output in outputs if output.output_type == "error"]


def test_the_code_of_a_notebook_that_trains_runs(tmp_path: Path) -> None:
    """Without a kernel, which would import the packages once more."""
    for package in ("torch", "trl", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    cells = cells_of((EXAMPLES / "train_and_look.ipynb").read_text("utf-8"))
    script = tmp_path / "train_and_look.py"
    code = "\n".join("".join(cell["source"]) for cell in cells)
    script.write_text(smaller(script.stem, code) + "\nprint('all of it')\n", "utf-8")
    env = {**environment(), "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)}
    status, output, errors = forked([str(script)], env, tmp_path)
    assert status == 0 and output.endswith("all of it\n"), output + errors


def cells_of(text: str) -> list[Any]:
    return [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_committed_with_outputs(name: str) -> None:
    text = (EXAMPLES / f"{name}.ipynb").read_text("utf-8")
    cells = cells_of(text)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) >= len(cells) / 2 and len(text) < 200_000
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert "/tmp/" not in text and str(Path.home()) not in text, "a path of one machine"
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    if name == "train_and_look":
        assert [output for output in outputs if "image/png" in output.get("data", {})]
