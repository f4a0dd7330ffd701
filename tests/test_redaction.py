"""No secret is written: not under any name that secrets have, at any depth, in any form of a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comap.agents.create import AGENTS, agent_options
from comap.cli import main
from comap.errors import OptionError
from comap.integrations.hub import push_trajectories
from comap.lm import OpenAILanguageModel
from comap.redaction import check_public, public_words, without_secrets
from comap.trainers import PaWTraining, preset

SECRET = "Zq7-secret-Zq7"
FORMS = [
    ["--model-option", f"api_key={SECRET}"],
    [f"--model-option=api_key={SECRET}"],
    ["--model-option", f"auth={SECRET}", f"pat={SECRET}"],
    [f"--model-option=bearer={SECRET}"],
    ["--model-option", f'headers={{"x-api-key":"{SECRET}"}}'],
    ["--model-option", f'headers={{"Authorization":"Bearer {SECRET}"}}'],
    ["--model-option", f'extra_body={{"a": [{{"apiKey": "{SECRET}"}}]}}'],
    ["--model-option", f'extra_body={{"a": {{"secrets": ["{SECRET}", {{"b": "{SECRET}"}}]}}}}'],
    ["--api-key", SECRET],
    [f"--api-key={SECRET}"],
    ["--base-url", f"https://host/{SECRET}/v1"],
    ["--base-url", f"https://host/v1?api_key={SECRET}"],
    [f"--base-url=https://me:{SECRET}@host/v1"],
    ["--model", f"https://host/v1/{SECRET}#NAME"],
    ["--env-option", f"password={SECRET}"],
    ["--env-option", f"judge_credentials={SECRET}"],
    ["--model-option", f"accessToken={SECRET}"],
    ["--model-option", f'extra_body={{"key": "{SECRET}"}}'],
    ["--model-option", f"note=sk-{SECRET}"],
]


@pytest.mark.parametrize("words", FORMS, ids=range(len(FORMS)))
def test_no_form_of_a_command_shows_a_secret(words: list[str]) -> None:
    shown = public_words(["run", *words, "--episodes", "3"])
    assert SECRET not in json.dumps(shown)
    assert shown[0] == "run" and shown[-2:] == ["--episodes", "3"]


def test_what_is_no_secret_stays() -> None:
    data: dict[str, Any] = {
        "api_key_env": "OPENAI_API_KEY",
        "token_file": "token.txt",
        "max_tokens": 24,
        "return_token_ids": True,
        "draft_tokens": 8,
        "world_model": {"id": "cached", "key": "query"},
        "retriever": "http://127.0.0.1:8000/retrieve",
        "url": "https://github.com/a/b/releases/download/v0.4.2/json_2.1.1.zip",
        "monkey": "banana",
        "tasks": ["valid_seen/look-at-1/trial_T2019"],
        "model": "https://host/v1#Qwen/Qwen3-4B",
    }
    assert without_secrets(data) == data
    for name in AGENTS:
        config = agent_options(name)
        if config is not None:
            described = json.loads(json.dumps(config().describe()))
            assert without_secrets(described) == described
    for training in (preset("tiny"), PaWTraining()):
        plain = json.loads(json.dumps(vars(training), default=vars))
        assert without_secrets(plain) == plain


def test_a_model_s_options_reach_no_file_and_no_hub(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("pyarrow")
    body = json.dumps({"api_key": SECRET, "nested": [{"password": SECRET}], "plain": 1})
    words = [
        "--model",
        "m",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--model-option",
        "max_retries=0",
    ]
    words += [f"extra_body={body}", "--episodes", "1", "--env-option", "source=generated"]
    monkeypatch.setattr(OpenAILanguageModel, "check_server", lambda self: None)
    out = tmp_path / "run"
    for _ in range(2):  # and the run goes on where it was
        assert main(["run", "--agent", "react", *words, "--out", str(out)]) == 3
    pushed = tmp_path / "pushed"
    push_trajectories(out, f"local:{pushed}", license="mit")
    files = [path for folder in (out, pushed) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 8 and not [path for path in files if SECRET.encode() in path.read_bytes()]
    extra = json.loads((out / "run.json").read_text())["language_model"]["extra_body"]
    assert extra == {"api_key": "***", "nested": [{"password": "***"}], "plain": 1}
    # What an older version wrote is looked at again.
    run = json.loads((out / "run.json").read_text())
    run["language_model"]["extra_body"]["api_key"] = SECRET
    (out / "run.json").write_text(json.dumps(run))
    with (out / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"command": ["run", f"--model-option=api_key={SECRET}"]}) + "\n")
    push_trajectories(out, f"local:{pushed}", license="mit")
    assert not [p for p in pushed.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    monkeypatch.setenv("SOME_API_KEY", "valid_unseen")  # which is in each record
    with pytest.raises(OptionError, match="SOME_API_KEY"):
        push_trajectories(out, f"local:{tmp_path / 'other'}", license="mit")
    assert not (tmp_path / "other").exists()
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    check_public("nothing here", "a text")
