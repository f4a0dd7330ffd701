"""Drafts drawn anew where a recorded agent's gate opened."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import gymnasium
import pytest

import comap  # noqa: F401
from comap.agents import run_episodes
from comap.agents.base import Decision, Reply, Request, View
from comap.benchmarks.coevolution_redraws import redraw
from comap.errors import LanguageModelError
from comap.lm import Completion, Generate, Usage
from comap.trajectory import Trajectory

STEPS = 4


def make_env() -> gymnasium.Env[str, str]:
    return gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=STEPS)


class Drawing:
    """A model that says "inventory" to every other request, and something refused to the rest."""

    name, capabilities = "drawing", frozenset({"generate"})

    def __init__(self) -> None:
        self.usage = Usage()
        self.asked: list[Generate] = []

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        found = []
        for request in requests:
            found.append(Completion("Action: fly" if len(self.asked) % 2 else "Action: inventory"))
            self.asked.append(request)
        return found

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def config(self) -> dict[str, Any]:
        return {}

    def score(self, requests: Sequence[Any]) -> list[Any]:
        raise AssertionError("it only writes")

    words = encode = score


class Reflecting:
    """Looks around; at two steps a gate opens, of which one was right to."""

    name = "comap"

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        yield from ()
        notes: dict[str, Any] = {"shown": "Action: look", "gate": view.step in (1, 2)}
        notes |= {"draft_action": "fly", "ref_action": ("look", "swim")[view.step % 2]}
        return Decision("look", notes=notes)


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    tasks = make_env().get_wrapper_attr("tasks").ids[:3]
    return run_episodes(make_env, Reflecting(), tasks)


def test_what_would_be_refused_is_counted(episodes: list[Trajectory]) -> None:
    lm = Drawing()
    found = redraw(episodes, make_env, lm, draws=4)
    assert (found["steps"], found["draws"]) == (6, 4)
    assert found["drafts"] == {"n": 6, "refused": 6}
    assert found["revised"] == {"n": 6, "refused": 3}
    assert found["redrawn"] == {"n": 24, "refused": 12}
    assert found["others"] == {"n": 12, "refused": 0}, "those that are not the draft"
    assert len({request.sampling.seed for request in lm.asked}) == 24, (
        "each draw has a seed of its own"
    )


def test_what_was_done_before_is_what_is_told(episodes: list[Trajectory]) -> None:
    lm = Drawing()
    redraw(episodes[:1], make_env, lm, draws=1)
    told = [[m.content for m in request.messages if m.role == "assistant"] for request in lm.asked]
    assert [said.count("Action: look") for said in told] == [1, 2]
    assert not any("fly" in text for said in told for text in said)


def test_episodes_that_fail_are_told(episodes: list[Trajectory]) -> None:
    class Failing(Drawing):
        def generate(self, requests: Sequence[Generate]) -> list[Completion]:
            raise LanguageModelError("no answer")

    found = redraw(episodes, make_env, Failing(), draws=1)
    assert (found["faults"], found["steps"]) == (len(episodes), 0)
    assert redraw(episodes, make_env, Drawing(), draws=1)["faults"] == 0


def test_without_an_open_gate_nothing_is_asked(episodes: list[Trajectory]) -> None:
    assert redraw([], make_env, None)["steps"] == 0
