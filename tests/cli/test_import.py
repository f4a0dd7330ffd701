"""`comap data import`, as one types it, and what other commands say of an imported run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gymnasium
import pytest

from comap.agents import ExpertAgent, run_episode
from comap.integrations.cards import Results
from comap.trajectory import read_trajectories
from kits import published
from kits.commands import run, say, viewed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of each form, and an imported run of one of them."""
    folder = tmp_path_factory.mktemp("published")
    env = gymnasium.make("comap/ALFWorld-v0", split="train", source="generated")
    tasks = env.get_wrapper_attr("tasks").ids[:4]
    episodes = [run_episode(env, ExpertAgent(), task=task) for task in tasks]
    for name, write in published.WRITERS.items():
        rows = [write(episode, number) for number, episode in enumerate(episodes)]
        (folder / f"alfworld_train_{name}.json").write_text(json.dumps(rows), "utf-8")
    file = str(folder / "alfworld_train_agenttraj.json")
    assert say("data", "import", file, "--out", str(folder / "run"))[0] == 0
    return folder


def test_the_format_is_told_by_the_first_row(folder: Path, tmp_path: Path) -> None:
    file = str(folder / "alfworld_train_word2world.json")
    options = ("--out", str(tmp_path / "a"), "--license", "unclear")
    code, printed, mistakes = say("data", "import", file, *options)
    assert (code, mistakes.count("Traceback")) == (0, 0)
    assert "Word2World (LLaMA-Factory rows) (told by its first row), 4 rows" in printed
    assert "license as published: none stated" in printed
    assert re.search(r"comap/ALFWorld-v0 +4 +0 +\d+ +100\.0 % +100\.0 % +4 of 4 succeeded", printed)
    record = json.loads((tmp_path / "a" / "run.json").read_text("utf-8"))
    assert record["imported"]["license"] == "unclear"
    assert record["imported"]["files"][0]["sha256"]
    assert str(folder) not in json.dumps(record["imported"])

    named_result = say("data", "import", "eto", file, "--out", str(tmp_path / "b"))
    assert named_result[0] == 2 and "not in the form of eto" in named_result[2]
    assert say("data", "import", "eto", "--out", str(tmp_path / "b"))[0] == 2


def test_what_is_no_file_is_told_as_what_it_is(folder: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "a"))
    for name, message in (("run", "found the folder"), ("missing", "found none")):
        code, _, mistake = say("data", "import", str(folder / name), *out)
        assert code == 2 and message in mistake and "rename" not in mistake


def test_a_file_that_ends_too_early_is_an_exit_status(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "alfworld_train_eto.json").read_text("utf-8")
    (tmp_path / "cut.json").write_text(whole[: len(whole) * 3 // 4], "utf-8")
    code, printed, mistakes = say(
        "data", "import", str(tmp_path / "cut.json"), "--out", str(tmp_path / "a")
    )
    assert code == 1 and "not read to its end: cut.json, row 4" in mistakes
    assert "refused, unknown: 1 rows" in printed


def test_nothing_is_made_up_of_outcomes(folder: Path, tmp_path: Path) -> None:
    summary = json.loads((folder / "run" / "summary.json").read_text("utf-8"))
    assert summary["unknown_outcomes"] == 4 and not {"success", "score"} & summary.keys()

    page = tmp_path / "page.html"
    assert say("view", str(folder / "run"), "--no-open", "--out", str(page))[0] == 0
    entries, records = viewed(page)
    assert {entry["outcome"] for entry in entries} == {"outcome unknown"}
    assert all("reward" not in step for record in records for step in record["real"]["steps"])
    assert "4 of 4 imported episodes" in page.read_text("utf-8")

    out = str(tmp_path / "rows.jsonl")
    refused = say("export", str(folder / "run"), "--to", "sharegpt", "--successes", "--out", out)
    assert refused[0] == 2 and "nobody recorded how" in refused[2]
    assert say("export", str(folder / "run"), "--to", "sharegpt", "--out", out)[0] == 0
    row = json.loads(Path(out).read_text("utf-8").splitlines()[0])
    assert row["success"] is None and row["reward"] is None
    assert row["conversations"][3]["value"].startswith("Thought: Step 1 comes next.\nAction: ")

    # And back: comap's own export has ETO's form, but is not ETO's data.
    reimported = say("data", "import", out, "--out", str(tmp_path / "again"))
    assert (
        reimported[0] == 0 and "comap export --to sharegpt (told by its first row)" in reimported[1]
    )
    assert "license as published: not stated" in reimported[1] and "apache" not in reimported[1]
    (first, *_) = read_trajectories(tmp_path / "again" / "trajectories.jsonl")
    (original, *_) = read_trajectories(folder / "run" / "trajectories.jsonl")
    assert [step.action for step in first.steps] == [step.action for step in original.steps]
    assert not first.has_outcome and first.goal == original.goal


def test_an_imported_run_is_not_one_that_was_played_here(folder: Path, tmp_path: Path) -> None:
    code, _, _ = say("verify", str(folder / "run"))
    _, printed, _ = say("verify", str(folder / "run"))
    assert code == 3 and "it was imported (agenttraj), not played here" in printed

    assert run("--agent", "expert", "--out", str(tmp_path / "own")) == 0
    code, _, mistakes = say("compare", str(tmp_path / "own"), str(folder / "run"))
    assert code == 2 and "which is imported (agenttraj)" in mistakes

    results = Results()
    for episode in read_trajectories(folder / "run" / "trajectories.jsonl"):
        results.add(episode)
    assert results.kept_by.startswith("imported")
    card = "\n".join(results.parts())
    assert "not recorded" in card and "were not played by comap" in card and "AgentTraj-L" in card
    assert results.evaluated() == []


def test_verify_finds_what_was_changed_since_the_import(folder: Path, tmp_path: Path) -> None:
    file = str(folder / "alfworld_train_eto.json")
    assert say("data", "import", file, "--out", str(tmp_path / "a"))[0] == 0
    path = tmp_path / "a" / "trajectories.jsonl"
    path.write_text(path.read_text("utf-8").replace("go to", "Go to", 1), "utf-8")
    assert say("verify", str(tmp_path / "a"))[0] == 1


def test_imported_transitions_are_scored(folder: Path, tmp_path: Path) -> None:
    options = ["--env-option", "source=generated", "--transitions", str(folder / "run")]
    code, printed, mistakes = say(
        "score", "world-model", "--world-model", "null", *options, "--samples", "9"
    )
    assert code == 0, mistakes
    title = " ".join(printed.split())
    assert "null on comap/ALFWorld-v0: transitions of imported tasks (split train)" in title
    assert re.search(r"all +9 ", printed)
    code, _, mistakes = say(
        "score", "world-model", "--world-model", "null", "--env", "comap/WebShop-v0",
        *options,
    )  # fmt: skip
    assert code == 2 and "some of comap/ALFWorld-v0" in mistakes


def test_policies_learn_from_imported_episodes(folder: Path, tmp_path: Path) -> None:
    demos = str(folder / "run" / "trajectories.jsonl")
    options = ["--preset", "tiny", "--model", "tiny", "--env-option", "source=generated"]
    small = ["--evaluation-tasks", "0", "--epochs", "1", "--demonstrations", "2"]
    out = tmp_path / "sft"
    code, printed, mistakes = say(
        "train", "sft", *options, *small, "--demos", demos, "--out", str(out)
    )
    assert code == 0, mistakes
    assert "no tasks were evaluated" in printed and "Evaluations" not in printed
    assert json.loads((out / "run.json").read_text("utf-8"))["described"]["demonstrations"]
    code, _, mistakes = say(
        "train", "iwm", *options, "--demos", demos, "--out", str(tmp_path / "i")
    )
    assert code == 2 and "comap train sft" in mistakes
