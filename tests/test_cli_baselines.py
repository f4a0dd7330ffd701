"""`comap train sft|iwm|wkm|itp`, as one types it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from comap.envs.conformance.transcripts import load

say = load(f"{Path(__file__).with_name('cli_kit.py')}:say")
SMALL = [
    *("train", "wkm", "--preset", "tiny", "--parameters", "200000", "--demonstrations", "3"),
    *("--env-option", "max_episode_steps=4", "--evaluation-tasks", "1", "--epochs", "1"),
    *("--evaluation-splits", "valid_seen", "--save-steps", "0"),
]


def test_a_baseline_is_trained_and_goes_on(tmp_path: Path) -> None:
    for package in ("trl", "peft", "rich"):
        pytest.importorskip(package)
    place = tmp_path / "out"
    code, out, err = say("--traceback", *SMALL, "--out", str(place))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "[1/3] state-knowledge: " in out and " entries, " in out
    assert any(line.split()[:1] == ["wkm"] and "(n=1)" in line for line in lines)
    assert shlex.split(lines[-1])[:4] == ["comap", "run", "--agent", "wkm"]
    run = json.loads((place / "run.json").read_text())
    assert run["described"]["method"] == "wkm" and run["described"]["preset"] == "tiny"
    assert run["described"]["env"]["options"] == {"max_episode_steps": 4, "source": "generated"}
    assert {"torch", "trl", "peft"} <= set(run["sessions"][0]["versions"])
    assert run["sessions"][0]["hardware"]["processes"] == 1
    assert str(tmp_path) not in (place / "run.json").read_text()
    code, again, err = say(*SMALL, "--out", str(place))
    assert (code, err) == (0, "") and again.count(": done before") == 3
    assert again.splitlines()[-1] == lines[-1]
    code, _, err = say(*SMALL, "--out", str(place), "--gamma", "0.5")
    assert code == 1 and "config.gamma: 0.7 there, 0.5 now" in err
    code, _, err = say("train", "sft", *SMALL[2:], "--out", str(place))
    assert code == 1 and "other settings" in err


MISTAKES = [
    (("itp", "--episods", "3"), 2, "there is no option --episods; did you mean '--episodes'"),
    (("iwm",), 1, "expected a model to train, found none"),
    (("sft", "--preset", "small"), 1, "there is no preset 'small'"),
    (("sft", "--model", "http://127.0.0.1:1/v1#M"), 1, "cannot be trained here"),
    (("itp", "--preset", "tiny", "--discount", "2"), 1, "discount must be a number of at least 0"),
    (("wkm", "--preset", "tiny", "--env-option", "split=train"), 1, "give splits as --train-split"),
    (("wkm", "--preset", "tiny", "--task-knowledge", "lm"), 1, "a knowledge model is an adapter"),
]


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES)
def test_mistakes_are_told_in_a_line(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    found, _, err = say("train", *words, "--out", str(tmp_path / "out"))
    assert found == code and said in err and len(err.splitlines()) == 1
