"""`ImaginedEnv` where things go wrong, end early, are shared, or sit in a vector."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from comap.agents import RandomAgent, run_episode
from comap.envs import restore, snapshot
from comap.envs.alfworld import ALFWorldEnv
from comap.errors import NoEpisode, OptionError, SnapshotError, WorldModelError
from comap.facts import State
from comap.worldmodel import ImaginedEnv, NullWorldModel, Prediction, Query, RetrievalWorldModel


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


TASKS = real().unwrapped.tasks.ids  # type: ignore[attr-defined]


class Says:
    """A world model that answers as a function of the action."""

    def __init__(self, answer: Callable[[str], Any]):
        self.answer = answer

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [self.answer(query.action) for query in queries]


def test_before_the_first_reset_there_is_nothing() -> None:
    env = ImaginedEnv(real(), "null")
    assert (env.history(), env.state_facts(), env.expert_action()) == ((), State(), None)
    for call in (lambda: env.step("look"), lambda: env.query("look"), env.snapshot):
        with pytest.raises(NoEpisode, match=r"env\.reset"):
            call()


def test_a_failed_reset_or_restore_leaves_no_episode() -> None:
    env = ImaginedEnv(real(), "null")
    env.reset(seed=0)
    here = snapshot(env)
    with pytest.raises(LookupError):
        env.reset(options={"task": "none"})
    with pytest.raises(NoEpisode):
        env.step("look")
    restore(env, here)
    env.step("look")
    broken: Any = replace(here, real=replace(here.real, engine=object()))  # type: ignore[type-var]
    with pytest.raises(SnapshotError):
        env.restore(broken)
    with pytest.raises(NoEpisode):
        env.step("look")
    restore(env, here)
    with pytest.raises(SnapshotError, match="found str"):
        env.restore("yesterday")  # type: ignore[arg-type]
    assert env.step("look")[4]["step"] == 1, "what is no snapshot at all changes nothing"


@pytest.mark.parametrize("model", [42, None, NullWorldModel, object()], ids=range(4))
def test_what_is_no_world_model_is_refused_at_once(model: Any) -> None:
    with pytest.raises(WorldModelError):
        ImaginedEnv(real(), model)


@pytest.mark.parametrize("value", [0, -3, 1.5, True, "5"])
def test_bad_numbers_are_refused(value: Any) -> None:
    for name in ("horizon", "real_every"):
        with pytest.raises(OptionError, match=name):
            ImaginedEnv(real(), "null", **{name: value})


def test_only_real_environments_are_imagined() -> None:
    for env in (ImaginedEnv(real(), "null"), gym.make("CartPole-v1"), "comap/ALFWorld-v0"):
        with pytest.raises(WorldModelError, match="environment of comap"):
            ImaginedEnv(env, "null")  # type: ignore[arg-type]


def test_a_live_model_is_not_copied() -> None:
    class Heavy(NullWorldModel):
        def config(self) -> Any:
            return None

        def __deepcopy__(self, memo: object) -> None:
            raise AssertionError("copied")

    model = Heavy()
    assert ImaginedEnv(real(), model).world_model is model
    learner = RetrievalWorldModel()
    env = ImaginedEnv(real(), learner)
    assert env.spec is not None
    config = {"id": "null", "text": "a"}
    env = ImaginedEnv(real(), config)
    config["text"] = "b"
    assert env.spec is not None
    assert '"text": "a"' in env.spec.to_json()


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction("x", reward="much"),  # type: ignore[arg-type]
        Prediction("x", info={"score": "high"}),
        Prediction("x", info={"admissible_actions": 3}),
        Prediction("x", info="text"),  # type: ignore[arg-type]
        Prediction("x" * 32_769),
        None,
    ],
    ids=range(6),
)
def test_answers_of_wrong_types_end_the_episode(prediction: Any) -> None:
    env = ImaginedEnv(real(), Says(lambda action: prediction))
    _, before = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("look")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["error"] and info["step"] == 1 and info["facts"] == before["facts"]
    with pytest.raises(NoEpisode):
        env.step("look")


def test_what_a_model_tells_is_put_into_shape() -> None:
    said = Prediction("Hm.", reward=1, info={"score": 7, "admissible_actions": ["a", "b"]})
    env = ImaginedEnv(real(), Says(lambda action: said))
    env.reset(seed=0)
    _, reward, _, _, info = env.step("look")
    assert type(reward) is float and info["score"] == 1.0
    assert info["admissible_actions"] == ("a", "b")


def test_a_longer_observation_space_makes_room() -> None:
    env = ImaginedEnv(real(max_text_length=50_000), Says(lambda action: Prediction("x" * 40_000)))
    env.reset(seed=0)
    assert len(env.step("look")[0]) == 40_000


@pytest.mark.parametrize("kind", ["sync", "async", "spawn"])
def test_a_faulty_model_never_breaks_a_vector(kind: str) -> None:
    def make() -> gym.Env[str, str]:
        import gymnasium

        import comap  # noqa: F401
        from comap.worldmodel import ImaginedEnv, Prediction

        class Moody:
            def predict(self, queries: Any) -> Any:
                action = queries[0].action
                if action == "raise":
                    raise RuntimeError("no idea")
                return {"few": [], "none": None}.get(action, [Prediction(long.get(action, "Ok."))])

        long: Any = {"long": "x" * 40_000, "number": 3, "surrogate": "\ud83d\x00"}
        env = gymnasium.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
        return ImaginedEnv(env, Moody())  # type: ignore[arg-type]

    if kind == "sync":
        envs: Any = SyncVectorEnv([make] * 2)
    else:
        envs = AsyncVectorEnv([make] * 2, context=None if kind == "async" else "spawn")
    try:
        envs.reset(seed=[1, 2])
        for action in ("raise", "few", "none", "long", "number"):
            texts, _, ends, cuts, infos = envs.step((action, "look"))
            assert (texts[0], ends[0], cuts[0]) == ("", False, True)
            assert infos["error"][0] and not infos["_error"][1]
            assert texts[1] == "Ok." and not cuts[1]
            assert envs.step(("look", "look"))[-1]["step"][0] == 0, "it starts anew"
        assert envs.step(("surrogate", "look"))[0][0] == "\ud83d\x00"
    finally:
        envs.close()


def test_real_steps_after_going_back_are_the_same() -> None:
    env = ImaginedEnv(real(max_episode_steps=8), "null", real_every=3)
    env.reset(options={"task": TASKS[0]})
    actions = ["look", "inventory", "help", "look", "look", "inventory", "help", "look"]
    env.step(actions[0])
    env.step(actions[1])
    here = snapshot(env)
    wanted = [env.step(action)[:4] for action in actions[2:]]
    for _ in range(2):
        restore(env, here)
        assert [env.step(action)[:4] for action in actions[2:]] == wanted
    assert wanted[-1][3] and not any(answer[3] for answer in wanted[:-1])


def test_where_the_real_episode_ends_on_the_way_the_imagined_one_ends_with_it() -> None:
    real_env = real()
    real_env.reset(options={"task": TASKS[0]})
    actions = []
    over = False
    while not over:
        actions.append(real_env.get_wrapper_attr("expert_action")())
        over = real_env.step(actions[-1])[2]
    env = ImaginedEnv(real(), "null", real_every=len(actions) + 2)
    env.reset(options={"task": TASKS[0]})
    for action in (*actions, "look"):
        assert env.step(action)[2:4] == (False, False), "the null model does not see it"
    *_, terminated, truncated, info = env.step("look")
    assert (terminated, truncated, info["success"], info["imagined"]) == (True, False, True, False)


def test_where_the_real_environment_has_a_limit_of_its_own_it_is_kept() -> None:
    inner = ALFWorldEnv(split="valid_seen", source="generated", max_episode_steps=4)
    assert ImaginedEnv(inner, "null").horizon == 4
    env = ImaginedEnv(inner, "null", horizon=9, real_every=3)
    env.reset(seed=0)
    cuts = [env.step("look")[3] for _ in range(6)]
    assert cuts == [False] * 5 + [True], "at the sixth step the real episode cannot go on"


def test_an_engine_fault_in_a_real_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ImaginedEnv(real(), "null", real_every=2)
    env.reset(seed=0)

    def broken(action: str) -> Any:
        raise RuntimeError("engine on strike")

    monkeypatch.setattr(env.unwrapped, "_act", broken)
    assert "error" not in env.step("look")[4]
    observation, _, terminated, truncated, info = env.step("look")
    assert (observation, terminated, truncated) == ("", False, True)
    assert info["error"] == "RuntimeError: engine on strike"
    with pytest.raises(NoEpisode):
        env.step("look")
    monkeypatch.undo()
    env.reset(seed=0)
    env.step("look")


@pytest.mark.parametrize("model", ["oracle", "null", {"id": "noisy", "error_rate": 0.4}], ids=str)
def test_the_whole_environment_can_be_pickled_in_the_middle(model: Any) -> None:
    env = ImaginedEnv(real(), model, real_every=4)
    _, info = env.reset(seed=3)
    places = [a for a in info["admissible_actions"] if a.startswith("go to")]
    for action in places[:2]:
        env.step(action)
    twin = pickle.loads(pickle.dumps(env))
    for action in places[2:7]:
        assert env.step(action) == twin.step(action)


def test_every_step_real_is_the_real_episode_to_the_byte() -> None:
    for task in TASKS[:3]:
        agent = RandomAgent(4, 0.3)
        env, mixed = real(), ImaginedEnv(real(), "null", real_every=1)
        actions = [step.action for step in run_episode(env, agent, task=task).steps]
        assert env.reset(options={"task": task}) == mixed.reset(options={"task": task})
        for action in actions:
            assert env.step(action) == mixed.step(action)
        assert env.get_wrapper_attr("history")() == mixed.history()


def test_rendering_shows_what_was_imagined() -> None:
    env = ImaginedEnv(real(render_mode="ansi"), {"id": "null", "text": "Silence."})
    assert env.render() == "\n".lstrip("\n")
    env.reset(seed=0)
    env.step("look")
    assert env.render() == "> look\nSilence.\n"
