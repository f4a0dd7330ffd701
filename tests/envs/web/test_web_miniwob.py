"""MiniWoB++: a script solves what can be played by text, and texts are the same in every process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

from comap.envs.web.lines import read_page
from comap.envs.web.miniwob import SEEDS, pages_of, panel_of
from comap.errors import MissingExtra, OptionError, SnapshotError, TaskNotFound

pytest.importorskip("miniwob", reason="needs the extra 'web': pip install miniwob")
SCRIPTED = ["choose-list", "click-button", "click-checkboxes", "click-dialog-2", "click-link"]
SCRIPTED += ["click-option", "click-test-2", "enter-password", "enter-text", "focus-text"]
SCRIPTED += ["login-user"]


def make(split: str) -> Any:
    env = gymnasium.make("comap/Web-v0", benchmark="miniwob", split=split)
    return env.unwrapped


@pytest.fixture(scope="module")
def envs(browser: str) -> Iterator[dict[str, Any]]:
    envs = {split: make(split) for split in ("train", "valid")}
    yield envs
    for env in envs.values():
        env.close()


def script(page: str, goal: str, observation: str) -> list[str]:
    """Return actions that solve a task, read from its goal and its text."""
    outline = read_page(observation)
    assert outline is not None
    words = re.findall('"([^"]*)"', goal)
    names = goal.removeprefix("Select ").partition(" from the list")[0].partition(" and click")[0]
    numbers_by_role = {
        role: [n for n, line in enumerate(outline.lines, 1) if line.role == role]
        for role in ("textbox", "combobox", "StaticText")
    }
    typed = [
        f"type [{number}] [{word}] [0]"
        for number, word in zip(numbers_by_role["textbox"], words * 2, strict=False)
    ]
    links = [
        n for n in numbers_by_role["StaticText"] if outline.lines[n - 1].name == (words or [""])[0]
    ]
    return {
        "choose-list": [
            f"select [{(numbers_by_role['combobox'] or [0])[0]}] [{names}]",
            "click Submit",
        ],
        "click-button": [f"click [button '{(words or [''])[0]}']"],
        "click-checkboxes": [
            *(f"click [checkbox '{name}']" for name in names.split(", ") if name != "nothing"),
            "click Submit",
        ],
        "click-dialog-2": [f"click [button '{'Close' if words == ['x'] else (words or [''])[0]}']"],
        "click-link": [f"click [{(links or [0])[-1]}]"],
        "click-option": [f"click [radio '{names}']", "click Submit"],
        "click-test-2": ["click [button 'ONE']"],
        "enter-password": [*typed, "click Submit"],
        "enter-text": [*typed[:1], "click Submit"],
        "focus-text": [f"click [{(numbers_by_role['textbox'] or [0])[0]}]"],
        "login-user": [*typed, "click Login"],
    }[page]


def test_a_script_solves_tasks_by_their_text(envs: dict[str, Any]) -> None:
    solved = []
    for number, page in enumerate(SCRIPTED):
        seed = (0, 9)[number % 2]
        env = envs["train" if seed in SEEDS["train"] else "valid"]
        observation, info = env.reset(options={"task": f"{page}/{seed}"})
        for action in script(page, info["goal"], observation):
            _, reward, terminated, _, info = env.step(action)
            if terminated:
                break

        assert info["success"] is (reward > 0) and "error" not in info
        if info["success"]:
            solved.append(page)
    assert len(solved) >= 10, solved


TEXTS = """
import gymnasium, comap
env = gymnasium.make("comap/Web-v0", benchmark="miniwob", engine="chromium", split="train")
for task in {tasks}:
    shown, info = env.reset(options={{"task": task}})
    print(info["goal"], shown, *(env.step("click [3]")[0], env.step("wait")[0]), sep="\\n")
"""
TASKS = ["choose-date/1", "unicode-test/0"]


def test_the_same_text_in_every_process(envs: dict[str, Any]) -> None:
    code = TEXTS.format(tasks=TASKS)
    command = [sys.executable, "-X", "utf8", "-c", code]
    other_output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = list[str]()
    for task in TASKS:
        observation, info = envs["train"].reset(options={"task": task})
        lines += [info["goal"], observation, envs["train"].step("click [3]")[0]]
        lines.append(envs["train"].step("wait")[0])
    assert "\n".join(lines).strip() == other_output.strip()


def test_time_passes_at_once(envs: dict[str, Any]) -> None:
    env = envs["train"]
    _, info = env.reset(options={"task": "button-delay/0"})
    seconds = int(re.findall(r"\d+", info["goal"])[0])
    for action in ["click [button 'ONE']", *["wait"] * (seconds - 1), "click [button 'TWO']"]:
        *_, reward, _, _, info = env.step(action)
    assert reward == 1.0 and info["success"]


def test_a_wrong_click_ends_without_reward(envs: dict[str, Any]) -> None:
    env = envs["train"]
    env.reset(options={"task": "click-test-2/0"})
    _, reward, terminated, _, info = env.step("click [button 'TWO']")
    assert (reward, terminated, info["success"], info["score"]) == (0.0, True, False, 0.0)
    env.reset(options={"task": "click-test-2/0"})
    assert "only the task's own page" in env.step("goto [shop.test/]")[4]["refused"]
    _, reward, terminated, _, info = env.step("stop [done]")
    assert (reward, terminated, info["answer"]) == (0.0, True, "done")


def test_snapshots_are_played_again(envs: dict[str, Any]) -> None:
    env, valid_env = envs["train"], envs["valid"]
    env.reset(options={"task": "login-user/3"})
    env.step("type [8] [me] [0]")
    moment = env.snapshot()
    page_text = env.step("type [10] [x] [0]")[0]
    observation, _ = env.restore(moment)
    assert "value: 'me'" in observation and env.step("type [10] [x] [0]")[0] == page_text
    moves, text = moment.engine[0]
    with pytest.raises(SnapshotError, match="found another"):
        valid_env.engine.open(env.engine._episode, env.engine.url)
        valid_env.engine.load((moves, text + "x"))


def test_panels() -> None:
    text, sight = set(pages_of("test")), set(pages_of("sight"))
    assert not text & sight and len(text | sight) == 130 and len(text) > 80
    assert len(panel_of("train").ids) == 8 * len(text)
    assert not set(panel_of("train").ids) & set(panel_of("test").ids)


def test_wrong_options(browser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="use engine='chromium'"):
        gymnasium.make("comap/Web-v0", benchmark="miniwob", engine="twin")
    with pytest.raises(OptionError, match="MiniWoB's split cannot be 'tests'"):
        make("tests")
    with pytest.raises(TaskNotFound, match="click-button/10"):
        make("test").reset(options={"task": "click-button/01"})
    monkeypatch.setattr("comap.envs.web.miniwob.find_spec", lambda name: None)
    from comap.envs.web import miniwob

    miniwob._root.cache_clear()
    with pytest.raises(MissingExtra, match="needs the extra 'web'"):
        make("test")
    miniwob._root.cache_clear()


def test_a_page_that_crashes_is_played_again_up_to_there(browser: str) -> None:
    env = gymnasium.make("comap/Web-v0", benchmark="miniwob", browser=browser).unwrapped
    env.reset(options={"task": next(task for task in env.tasks.ids if "enter-text/" in task)})
    before, *_ = env.step("type [textbox] [words] [0]")

    async def crash(move: Any) -> None:
        await env.engine.tab.goto("chrome://crash")

    env.engine._scroll = crash
    observation, _, terminated, truncated, info = env.step("scroll [down]")
    assert (observation, terminated, truncated) == (before, False, False)
    assert info["refused"].startswith("the page crashed; ")
    assert env.step("wait")[4]["refused"] == "" and len(env.engine.save()[0]) == 2
    env.close()
