"""No secret is written: not under any name that secrets have, at any depth, in any form of a command."""

from __future__ import annotations

import inspect
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.agents.create import AGENTS, agent_class, agent_options
from comap.cli import main
from comap.envs.registry import env_class, own_class
from comap.errors import OptionError
from comap.integrations.hub import push_trajectories
from comap.lm import HFLanguageModel, OpenAILanguageModel, ReplayLanguageModel, VLLMLanguageModel
from comap.redaction import (
    OPTIONS,
    check_public,
    is_secret,
    public_options,
    public_words,
    without_secrets,
)
from comap.trainers import PaWTraining, preset
from comap.worldmodel import WORLD_MODELS

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
    # What is no known option is hidden, whatever it is called and wherever it stands.
    ["--model-option", f'extra_body={{"route": {{"cookies": {{"sid": "{SECRET}"}}}}}}'],
    ["--model-option", f'extra_body={{"stop": [{{"plain": "{SECRET}"}}]}}'],
    ["--model-option", f'extra_body={{"reasoning": {{"plain": "{SECRET}"}}}}'],
    ["--model-option", f'extra_headers=[["Authorization", "{SECRET}"]]'],
    ["--model-option", f'engine_options={{"plain": "{SECRET}"}}'],
    ["--model-option", "batch_rows=4", f"plain={SECRET}"],
    [f"--model_option=plain={SECRET}"],
    ["--agent-option", f"plain={SECRET}"],
    ["--world-model-option", f"plain={SECRET}"],
    ["--judge-option", f"plain={SECRET}"],
    ["--env-option", SECRET],
    ["--env-option", f"a name={SECRET}"],
    ["--base-url", f"https://{SECRET}.host.example/v1"],
    # The second net: names, and texts that say what they hold.
    *([f"--note={name}: {SECRET}"] for name in ("password", "api_key", '"Authorization"')),
    *([f"--{name}", SECRET] for name in ("openaikey", "xapikey", "hftoken", "api-keys", "creds")),
]
SECRET_NAMES = (
    "access_tokens api_keys apikeys creds credentials cookies session_id sessionid sid signature pin otp "
    "openaikey xapikey hftoken mypassword passwords passcode jwt csrf_token client_secrets X-Auth-Tokens"
)
SHAPES = (
    "sk-proj-Zq7Zq7Zq7Zq7Zq7 gsk_Zq7Zq7Zq7Zq7Zq7 npm_Zq7Zq7Zq7Zq7Zq7 pypi-Zq7Zq7Zq7Zq7Zq7 "
    "ASIAZq7Zq7Zq7Zq7Zq7 "
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJaIn0.Zq7Zq7Zq7 xai-Zq7Zq7Zq7Zq7Zq7 r8_Zq7Zq7Zq7Zq7Zq7"
    " rk_live_Zq7Zq7Zq7"
)


@pytest.mark.parametrize("words", FORMS, ids=range(len(FORMS)))
def test_no_form_of_a_command_shows_a_secret(words: list[str]) -> None:
    public = public_words(["run", *words, "--episodes", "3"])
    assert SECRET not in json.dumps(public)
    assert public[0] == "run" and public[-2:] == ["--episodes", "3"]


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_a_secret_s_name_hides_it_in_data(name: str) -> None:
    forms: list[Any] = [
        {name: SECRET},
        {"a": [{name: [SECRET]}]},
        [[name, SECRET]],
        {name: {"b": SECRET}},
    ]
    forms += [json.dumps(form) for form in forms]
    for form in forms:
        assert SECRET not in json.dumps(without_secrets({"note": form}))


@pytest.mark.parametrize("text", SHAPES.split())
def test_a_key_is_known_by_its_form(text: str) -> None:
    assert "Zq7Zq7" not in json.dumps(without_secrets({"note": f"use {text} here"}))


@pytest.mark.parametrize(
    "token",
    ["a", "a.", "a://", "password:", "password: ", "sk-", "eyJ", "[", '{"a":', "Bearer ", "key"],
)
def test_texts_are_read_in_linear_time(token: str) -> None:
    seconds = []
    for length in (40_000, 160_000):
        text = (token * length)[:length]
        start = time.process_time()
        without_secrets({"note": text, text: "a"})
        seconds.append(time.process_time() - start)
    assert seconds[1] < 0.5 + 8 * seconds[0]  # 16 times, and 7 s, where it is quadratic


def test_all_options_of_comap_are_known() -> None:
    parts: list[Any] = [
        HFLanguageModel,
        OpenAILanguageModel,
        VLLMLanguageModel,
        ReplayLanguageModel,
    ]
    parts += [env_class(env_id) for env_id in gymnasium.registry if env_id.startswith("comap/")]
    parts += [agent_class(name) for name in AGENTS]
    parts += [own_class(path) for path in WORLD_MODELS.values()]
    names = {"max_episode_steps"}
    for part in parts:
        names |= set(inspect.signature(part).parameters)
    for config in filter(None, map(agent_options, AGENTS)):
        names |= {setting.name for setting in fields(config)}
    assert names - {"config", "options", "common"} <= OPTIONS
    assert not [
        name for name in OPTIONS if is_secret(name) and not name.endswith(("_tokens", "key"))
    ]


def test_of_an_own_class_s_options_the_declared_ones_are_recorded() -> None:
    class Base:
        def __init__(self, declared: int, **options: Any) -> None:
            pass

    class Own(Base):
        def __init__(self, word: str, **options: Any) -> None:
            pass

    options = {"declared": 1, "word": "a", "plain": SECRET, "max_episode_steps": 3}
    assert public_options(options, Own) == {**options, "plain": "***"}


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
    body = json.dumps(
        {"api_key": SECRET, "nested": [{"password": SECRET}], "plain": SECRET, "top_k": 5}
    )
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
    assert extra == {"api_key": "***", "nested": "***", "plain": "***", "top_k": 5}
    # What an older version wrote is looked at again.
    run = json.loads((out / "run.json").read_text())
    run["language_model"]["extra_body"]["plain"] = SECRET
    run["config"]["env_options"]["plain"] = SECRET
    run["sessions"][0]["options"]["model_option"] = [f"plain={SECRET}"]
    (out / "run.json").write_text(json.dumps(run))
    with (out / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"command": ["run", f"--model-option=plain={SECRET}"]}) + "\n")
    push_trajectories(out, f"local:{pushed}", license="mit")
    assert not [p for p in pushed.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    monkeypatch.setenv("SOME_API_KEY", "valid_unseen")  # which is in each record
    with pytest.raises(OptionError, match="SOME_API_KEY"):
        push_trajectories(out, f"local:{tmp_path / 'other'}", license="mit")
    assert not (tmp_path / "other").exists()
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    check_public("nothing here", "a text")
