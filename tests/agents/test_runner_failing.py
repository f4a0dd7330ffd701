"""Of many episodes only those fail that are to blame, and all of it is on record."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Decision, Imagine, View, run_episode, run_episodes
from comap.errors import LanguageModelError
from comap.lm import Completion, Generate, Message, Scores
from comap.trajectory import Trajectory
from comap.worldmodel import ImaginedEnv, Prediction, Query
from kits.scripted import HashedModel

Answer = Callable[[Sequence[Generate]], Any]


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=4, **options
    )


TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:8]  # type: ignore[attr-defined]
GUILTY = TASKS[3]


class FaultyLM(HashedModel):  # type: ignore[misc, valid-type]
    """Answers as a function of the requests says."""

    name = "faulty"

    def __init__(self, answer: Answer):
        super().__init__()
        self._reply = answer

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        replies: list[Any] = self._reply(requests)
        return replies


def is_guilty(request: Generate) -> bool:
    return GUILTY in request.messages[0].content


def wrong_for_guilty(wrong: Any) -> Answer:
    """Answer well, but the guilty task's request with `wrong`."""
    return lambda requests: [wrong if is_guilty(r) else Completion("ok") for r in requests]


def together(requests: Sequence[Generate]) -> list[Any]:
    """Fail as a whole where the guilty request is among them."""
    if any(is_guilty(request) for request in requests):
        raise RuntimeError("out of memory")
    return [Completion("ok") for _ in requests]


class Asker:
    """Asks once, then looks; `act` may do something else."""

    name = "asker"

    def __init__(self, act: Callable[[View], Any] = lambda view: None):
        self._act = act

    def decide(self, view: View) -> Generator[Any, Any, Any]:
        yield Generate((Message("user", view.task),))
        outcome = self._act(view)
        if isinstance(outcome, Generator):
            return (yield from outcome)
        return Decision("look") if outcome is None else outcome


def fails_alone(trajectories: Sequence[Trajectory], message: str) -> Trajectory:
    """Check that the guilty task alone failed, and return it."""
    assert [t.task for t in trajectories] == list(TASKS)
    failed = [t for t in trajectories if t.error]
    assert [t.task for t in failed] == [GUILTY], [t.error for t in failed]
    assert failed[0].error is not None and message in failed[0].error, failed[0].error
    assert all(len(t.steps) == 4 for t in trajectories if not t.error)
    json.dumps([t.to_json() for t in trajectories], allow_nan=False)
    return failed[0]


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            wrong_for_guilty(LanguageModelError("the server gave up")),
            "LanguageModelError: the server gave up",
        ),
        (wrong_for_guilty(None), "LanguageModelError: expected Completion from faulty"),
        (wrong_for_guilty("text"), "found 'text'"),
        (wrong_for_guilty(Scores(())), "expected Completion from faulty"),
        (wrong_for_guilty(Completion(3)), "expected text (str) from faulty, found 3"),  # type: ignore[arg-type]
        (together, "RuntimeError: out of memory"),
    ],
    ids=["error", "none", "text", "kind", "number", "batch"],
)
def test_faults_of_the_language_model(answer: Answer, message: str, concurrency: int) -> None:
    trajectories = run_episodes(real, Asker(), TASKS, lm=FaultyLM(answer), concurrency=concurrency)
    assert fails_alone(trajectories, message).steps == ()


@pytest.mark.parametrize(
    "answer", [lambda requests: None, lambda requests: [Completion("ok")] * 99, lambda r: 1 / 0]
)
def test_a_language_model_that_is_down_fails_everything_and_raises_nothing(answer: Any) -> None:
    trajectories = run_episodes(real, Asker(), TASKS, lm=FaultyLM(answer), concurrency=4)
    assert all(t.error and not t.steps for t in trajectories)


def guilty(wrong: Callable[[], Any]) -> Callable[[View], Any]:
    return lambda view: wrong() if view.task == GUILTY else None


def nonsense(request: Any) -> Generator[Any, Any, Decision]:
    yield request
    return Decision("look")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: "look", "expected a Decision"),
        (lambda: Decision(3), "found 3"),  # type: ignore[arg-type]
        (lambda: Decision("look", notes={"a": {1}}), "notes are JSON data"),
        (lambda: Decision("look", notes={"a": float("nan")}), "notes are JSON data"),
        (lambda: Decision("look", notes=["a"]), "notes are JSON data"),  # type: ignore[arg-type]
        (lambda: nonsense("look"), "expected a request"),
        (lambda: nonsense([Imagine("look"), None]), "expected a request"),
        (lambda: nonsense(Imagine(3)), "an action is text"),  # type: ignore[arg-type]
        (lambda: nonsense(Imagine("look", after=(3,))), "replies in Imagine.after"),  # type: ignore[arg-type]
    ],
    ids=range(10),
)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_faults_of_the_agent(wrong: Callable[[], Any], message: str, concurrency: int) -> None:
    lm = FaultyLM(wrong_for_guilty(Completion("ok")))
    failed = fails_alone(
        run_episodes(real, Asker(guilty(wrong)), TASKS, lm=lm, concurrency=concurrency), message
    )
    assert [call.text for call in failed.review] == ["ok"]


class Trap(gym.Wrapper[str, str, str, str]):
    """Breaks in one task, and after that in every task: it may not be used again."""

    def __init__(self, env: gym.Env[str, str], method: str, fault: type[Exception] = RuntimeError):
        super().__init__(env)
        self._method, self._fault, self.broken = method, fault, False

    def reset(self, **options: Any) -> Any:
        self.task = options["options"]["task"]
        self._spring("reset")
        return self.env.reset(**options)

    def step(self, action: str) -> Any:
        self._spring("step")
        return self.env.step(action)

    def _spring(self, method: str) -> None:
        if self.broken or (method == self._method and self.task == GUILTY):
            self.broken = True
            raise self._fault("a trap")

    def close(self) -> None:
        if self.broken:
            raise OSError("cannot be closed")
        super().close()


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("method", ["reset", "step"])
def test_faults_of_environments(method: str, concurrency: int) -> None:
    lm = FaultyLM(wrong_for_guilty(Completion("ok")))
    with pytest.warns(RuntimeWarning, match="could not be closed"):
        trajectories = run_episodes(
            lambda: Trap(real(), method), Asker(), TASKS, lm=lm, concurrency=concurrency
        )
    failed = fails_alone(trajectories, "RuntimeError: a trap")
    assert (failed.env_id, failed.split, failed.steps) == ("comap/ALFWorld-v0", "valid_seen", ())
    assert failed.fingerprint == trajectories[0].fingerprint


def test_tasks_that_cannot_start_are_recorded() -> None:
    tasks = ["generated/none", TASKS[0], "\ud800 \x1b[31m"]
    trajectories = run_episodes(
        real, Asker(), tasks, lm=FaultyLM(wrong_for_guilty(Completion("ok"))), concurrency=1, seed=3
    )
    assert [t.task for t in trajectories] == tasks
    assert [t.error and t.error.partition(":")[0] for t in trajectories] == [
        "TaskNotFound",
        None,
        "TaskNotFound",
    ]
    assert trajectories[0].seed == 3 and trajectories[0].observation == ""
    for trajectory in trajectories:
        text = json.dumps(trajectory.to_json(), ensure_ascii=True, allow_nan=False)
        assert "\n" not in text and Trajectory.from_json(json.loads(text)) == trajectory


class FaultyModel:
    """A world model that fails on one goal, alone or with its whole batch."""

    def __init__(self, goal: str):
        self._goal = goal

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        if any(query.goal == self._goal for query in queries):
            raise RuntimeError("no idea")
        return [Prediction("Nothing happens.") for _ in queries]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_faults_of_the_world_model(concurrency: int) -> None:
    def foresees(view: View) -> Generator[Any, Any, Decision]:
        return Decision("look", (yield Imagine("look")))

    goal = run_episode(
        real(), Asker(), task=GUILTY, lm=FaultyLM(wrong_for_guilty(Completion("ok")))
    ).goal
    lm, model = FaultyLM(wrong_for_guilty(Completion("ok"))), FaultyModel(goal)
    tasks = [task for task in TASKS if task == GUILTY or goal_of(task) != goal]
    with_foresight = run_episodes(
        real, Asker(foresees), tasks, lm=lm, concurrency=concurrency, world_model=model
    )
    lived = run_episodes(
        lambda: ImaginedEnv(real(), model), Asker(), tasks, lm=lm, concurrency=concurrency
    )
    for trajectories in (with_foresight, lived):
        assert [
            t.task for t in trajectories if t.error and t.error.startswith("RuntimeError: no idea")
        ] == [GUILTY]
        assert sum(t.error is not None for t in trajectories) == 1
    alone = [run_episode(ImaginedEnv(real(), model), Asker(), task=t, lm=lm) for t in tasks]
    assert alone == lived


def goal_of(task: str) -> str:
    env = real()
    goal: str = env.reset(options={"task": task})[1]["goal"]
    return goal


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_the_user_can_stop_it(stop: type[BaseException]) -> None:
    def raise_stop(requests: Sequence[Generate]) -> Any:
        raise stop

    closed: list[int] = []

    class Closing(gym.Wrapper[str, str, str, str]):
        def close(self) -> None:
            closed.append(1)

    with pytest.raises(stop):
        run_episodes(
            lambda: Closing(real()), Asker(), TASKS, lm=FaultyLM(raise_stop), concurrency=4
        )
    assert len(closed) == 4
