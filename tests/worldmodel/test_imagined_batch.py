"""Imagined steps whose predictions were asked in a batch are the steps they would be without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest

from comap.worldmodel import ImaginedEnv, NullWorldModel, Prediction, Query, ask


class Numbering(NullWorldModel):
    """Counts what it is asked, and answers by the query alone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.asked += len(queries)
        return [Prediction(f"You see {len(q.history)} {q.action}.") for q in queries]


def imagined(model: Any, **options: Any) -> ImaginedEnv:
    env = gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
    return ImaginedEnv(env, model, **options)


@pytest.mark.parametrize("real_every", [None, 1, 2, 3])
def test_prepared_steps_are_the_same(real_every: int | None) -> None:
    model, silent = Numbering(), Numbering()
    one, other = imagined(model, real_every=real_every), imagined(silent, real_every=real_every)
    assert one.reset(seed=1) == other.reset(seed=1)
    for number in range(8):
        action = "look" if number % 2 else "inventory"
        query = other.next_query(action)
        real = real_every is not None and (number + 1) % real_every == 0
        assert (query is None) == real
        if query is not None:
            other.prepare(action, ask(Numbering(), [query])[0])
        assert one.step(action) == other.step(action)
    assert one.history() == other.history() and one.snapshot() == other.snapshot()
    assert silent.asked == 0 and model.asked == sum(
        t.observation.startswith("You see") for t in one.history()[1:]
    )


def test_a_prepared_answer_is_for_one_step_and_one_action() -> None:
    model = Numbering()
    env = imagined(model)
    env.reset(seed=0)
    env.prepare("look", Prediction("prepared"))
    assert env.step("inventory")[0] != "prepared" and model.asked == 1
    assert env.step("look")[0] != "prepared", "a step with another action drops it"
    env.prepare("look", Prediction("prepared"))
    assert env.step("look")[0] == "prepared"
    assert env.step("look")[0] != "prepared"
    env.prepare("look", Prediction("prepared"))
    env.reset(seed=0)
    assert env.step("look")[0] != "prepared", "so does a reset"
    moment = env.snapshot()
    env.prepare("look", Prediction("prepared"))
    env.restore(moment)
    assert env.step("look")[0] != "prepared", "and going back"


def test_a_real_step_drops_it() -> None:
    env = imagined(Numbering(), real_every=2)
    env.reset(seed=0)
    env.step("look")
    env.prepare("look", Prediction("prepared"))
    assert env.step("look")[0] != "prepared"
    assert env.step("look")[0] != "prepared"


def test_a_prepared_error_ends_the_episode_as_a_real_one_does() -> None:
    class Broken:
        def predict(self, queries: Sequence[Query]) -> list[Prediction]:
            raise RuntimeError("no idea")

    one, other = imagined(Broken()), imagined("null")
    one.reset(seed=0)
    other.reset(seed=0)
    other.prepare("look", RuntimeError("no idea"))
    assert one.step("look") == other.step("look")
    assert other.next_query("look") is None, "there is no next step"


@pytest.mark.parametrize("wrong", [None, "text", 3, Prediction(3)])  # type: ignore[arg-type]
def test_what_is_no_prediction_is_a_fault(wrong: Any) -> None:
    env = imagined("null")
    env.reset(seed=0)
    env.prepare("look", wrong)
    answer = env.step("look")
    assert answer[3] and "error" in answer[4]


def test_before_an_episode_nothing_is_asked() -> None:
    assert imagined("null").next_query("look") is None
