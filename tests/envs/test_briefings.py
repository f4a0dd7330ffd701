"""What a language model is told of each environment is true: it was played, and it is complete.

`briefings.json` says of each file in ``envs/*/prompts/briefing`` which training task it shows, with
which options, and gives for each form of action that the instructions name one that is not refused.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents.parsing import parse_action
from comap.envs.web.browser import find_program
from comap.errors import MissingExtra
from comap.lm.prompts import load_template

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "briefings.json").read_text("utf-8")
)
"""One for each environment, and one for each of its options that is told in other words."""

PARTS = ("instructions", "example", "transitions")


def name_of(row: dict[str, Any]) -> str:
    return "-".join(filter(None, (row["folder"], row["variant"])))


# All tests of a row come one after the other, and share its environments.
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=name_of, scope="module")


def package_of(row: dict[str, Any]) -> str:
    return f"comap.envs.{row['folder']}"


def file_of(row: dict[str, Any], part: str) -> str:
    """Return the name of a part: that of the variant, or the common one where it has none."""
    variant_name = f"{part}_{row['variant']}"
    folder = files(package_of(row)) / "prompts" / "briefing"
    return variant_name if (folder / f"{variant_name}.txt").is_file() else part


def read(row: dict[str, Any], part: str) -> tuple[tuple[str, str], ...]:
    return load_template(package_of(row), "briefing", file_of(row, part))


def forms_of(row: dict[str, Any]) -> list[str]:
    """Return the forms of actions that the instructions list, each at the start of a line."""
    ((_, text),) = read(row, "instructions")
    lines = [line.partition(" - ") for line in text.splitlines()]
    return [form for form, dash, _ in lines if dash]


def pattern_of(form: str) -> str:
    """Return the regular expression of a form: capitals stand for anything, blanks may be missing."""
    if form == "NUMBER":
        return r"\d+"
    pattern = re.sub(r"[A-Z]{2,}(?:\\ [A-Z]{2,})*", ".*", re.escape(form))
    return pattern.replace("\\ ", " ?")


@pytest.fixture(scope="module")
def chromium() -> None:
    """A browser, and the pages of MiniWoB++."""
    pytest.importorskip("miniwob")
    try:
        find_program(None)
    except MissingExtra as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def make(row: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function that makes the environment of a row, once for each choice of options."""
    opened: dict[str, gym.Env[str, str]] = {}

    for fixture in row.get("needs", ()):
        request.getfixturevalue(fixture)

    def cached_env(**options: Any) -> gym.Env[str, str]:
        options = {"split": "train", **row["options"], **options}
        name = json.dumps([row["env"], options])
        if name not in opened:
            opened[name] = gym.make(row["env"], **options)
        return opened[name]

    yield cached_env
    for env in opened.values():
        env.close()


def start(env: gym.Env[str, str], task: str) -> tuple[str, dict[str, Any]]:
    """Start a task, and return its first text as agents see it: with the goal, if that is not in it."""
    observation, info = env.reset(options={"task": task})
    assert info["split"] == "train", f"{task} is shown to models and is no training task"
    goal = info["goal"]
    return observation if goal in observation else f"{observation}\n{goal}", info


@EACH_ROW
def test_the_environment_itself_says_so(row: dict[str, Any], make: Any) -> None:
    briefing = make().unwrapped.briefing
    ((_, instructions),) = read(row, "instructions")
    assert briefing.instructions == instructions
    assert briefing.example == read(row, "example")
    (_, form), *messages = read(row, "transitions")
    assert briefing.observation_form == form
    for transition, (_, question), (_, after) in zip(
        briefing.transitions, messages[::2], messages[1::2], strict=True
    ):
        assert question.endswith(f"> {transition.action}") and transition.after == after


@EACH_ROW
def test_the_example_was_played_and_wins(row: dict[str, Any], make: Any) -> None:
    messages = read(row, "example")
    env, terminated = make(), False
    observation, info = start(env, row["example"])
    assert [role for role, _ in messages] == ["user", "assistant"] * (len(messages) // 2)

    for (_, shown_observation), (_, reply) in zip(messages[::2], messages[1::2], strict=True):
        assert not terminated
        assert shown_observation == observation.strip("\n")
        assert re.fullmatch(r"Thought: [^\n]+\nAction: [^\n]+", reply)
        action = reply.partition("\nAction: ")[2]
        assert parse_action(reply) == action
        observation, _, terminated, _, info = env.step(action)
        assert not info["invalid_action"]

    assert terminated and info["success"]


@EACH_ROW
def test_transitions_were_observed(row: dict[str, Any], make: Any) -> None:
    system, *pairs = read(row, "transitions")
    assert system[0] == "system"
    assert [role for role, _ in pairs] == ["user", "assistant"] * 2
    env = make()

    for index, transition in enumerate(row["transitions"]):
        observation, _ = start(env, transition["task"])
        transcript = observation.strip("\n")
        for action in transition["before"]:
            observation, *_ = env.step(action)
            transcript += f"\n> {action}\n" + observation.strip("\n")
        (_, question), (_, after) = pairs[2 * index : 2 * index + 2]
        before, _, action = question.rpartition("\n> ")
        assert f"\n{transcript}".endswith(f"\n{before}")
        observation, *_ = env.step(action)
        assert after == observation.strip("\n")


@EACH_ROW
def test_each_form_that_is_told_can_be_taken(row: dict[str, Any], make: Any) -> None:
    if not row["forms"]:
        assert file_of(row, "instructions") == "instructions", "its forms are those of another row"
        return
    assert list(row["forms"]) == forms_of(row)
    proven_forms: set[str] = set()
    if row["variant"] == "walk":  # a simulator takes its time, and takes these however one walks
        proven_forms.update(
            ROWS[[name_of(briefing_row) for briefing_row in ROWS].index("scienceworld")]["forms"]
        )

    for form, played in row["forms"].items():
        if form in proven_forms:
            continue
        env = make(**played.get("options", {}))
        start(env, played["task"])
        for action in played["actions"]:
            *_, info = env.step(action)
            assert not info["invalid_action"], f"{form}: {action!r} was refused"
        assert re.fullmatch(pattern_of(form), played["actions"][-1])


@EACH_ROW
def test_each_admissible_action_has_a_form_that_is_told(row: dict[str, Any], make: Any) -> None:
    patterns = [re.compile(pattern_of(form)) for form in forms_of(row)]
    env, draw = make(**row.get("listing", {})), random.Random(7)
    ids = env.get_wrapper_attr("tasks").ids

    for _ in range(row.get("episodes", 6)):
        _, info = start(env, draw.choice(ids))
        for _ in range(12):
            actions = info["admissible_actions"]
            if not actions:
                break
            for action in actions:
                assert any(pattern.fullmatch(action) for pattern in patterns), (
                    f"{action!r} is not told"
                )
            _, _, terminated, truncated, info = env.step(draw.choice(actions))
            if terminated or truncated:
                break


@pytest.mark.parametrize("folder", sorted({row["folder"] for row in ROWS}))
def test_each_file_is_replayed(folder: str) -> None:
    rows = [row for row in ROWS if row["folder"] == folder]
    replayed = {f"{file_of(row, part)}.txt" for row in rows for part in PARTS}
    file_names = {
        path.name for path in (files(package_of(rows[0])) / "prompts" / "briefing").iterdir()
    }
    assert file_names == replayed
