"""Predictions of searches scored in layers, and that no world model sees golden answers."""

from __future__ import annotations

import pickle

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs.panel import evenly
from comap.envs.searchqa import Hit, SearchQACanonicalizer
from comap.envs.searchqa.layers import Foretold, score_layers
from comap.envs.searchqa.protocol import REFUSAL, write_results
from comap.trajectory import Turn
from comap.worldmodel import ImaginedEnv, Prediction, RetrievalWorldModel, transitions_of

CANON = SearchQACanonicalizer()
GOAL = "Who wrote Emma?"
FIRST = Turn(None, f"Question: {GOAL}")
START = CANON.initial(GOAL, FIRST.observation)
ASK = "<search>Emma</search>"


def shown(*titles: str, text: str = "") -> str:
    return write_results([Hit("", title, text, 0.0) for title in titles])


def foretold(
    predicted: str, actual: str, action: str = ASK, before=START, history=(FIRST,), **more
):
    return Foretold(GOAL, tuple(history), before, action, predicted, actual, **more)


def test_the_rules_are_a_layer() -> None:
    rows = [
        foretold(shown("Emma"), shown("Ada", "Emma")),
        foretold(REFUSAL, shown("Emma")),
        foretold(REFUSAL, REFUSAL, "hm"),
        foretold("", "", "<answer>x</answer>", over=True),
        foretold("A dragon.", "", "<answer>x</answer>", over=False),
    ]
    report = score_layers(rows)
    assert (report.n, report.searches, report.protocol) == (5, 2, 0.6)
    assert (report.done, report.form) == (0.5, 0.5)


def test_redundancy_is_a_layer() -> None:
    seen = shown("Emma", "Ada")
    one = CANON.update(START, ASK, seen)
    history = (FIRST, Turn(ASK, seen))
    rows = [
        foretold(seen, seen, before=one, history=history),
        foretold(shown("Ada", "Emma"), seen, before=one, history=history),
        foretold(shown("Other"), shown("Ada"), "<search>Ada</search>", one, history),
        foretold(shown("Emma"), shown("Ada"), "<search>Ada</search>", one, history),
    ]
    report = score_layers(rows)
    assert report.repeats == 0.5 and report.redundancy == 0.75


def test_identity_is_a_layer_with_what_was_named_apart() -> None:
    rows = [foretold(shown("Emma", "Ada"), shown("Emma", "Jane Austen", "Bath"))]
    report = score_layers(rows)
    assert report.title_f1 == pytest.approx(2 / 5) and report.title_recall == pytest.approx(1 / 3)
    assert (report.named_recall, report.bridge_recall) == (1.0, 0.0)
    assert report.copied_f1 == pytest.approx(2 / 4)


def test_usefulness_is_a_layer() -> None:
    useful, useless = shown("X", text="By Jane Austen."), shown("X", text="By nobody.")
    gold = ("Jane Austen",)
    rows = [
        foretold(useful, useful, golden=gold),
        foretold(useful, useless, golden=gold),
        foretold(useless, useful, golden=gold, useful=0.5),
        foretold(useless, useless, golden=gold, useful=0.5),
        foretold(useless, useless),
    ]
    report = score_layers(rows)
    assert report.brier == pytest.approx((0 + 1 + 0.25 + 0.25) / 4) and report.brier_base == 0.25
    named = score_layers([foretold(shown("Emma"), shown("Emma"), titles=("Emma",))])
    assert named.brier == 0 and "protocol 1.000" in str(named)
    assert score_layers([]).protocol is None


def test_a_learnt_model_and_the_truth_in_layers() -> None:
    """The truth scores full marks; a model that learnt by heart knows rules better than contents."""
    env = gym.make("comap/SearchQA-v0", split="test", source="generated", admissible_actions=True)
    tasks = evenly(env.unwrapped.tasks.ids, 30)
    model = RetrievalWorldModel()
    agents = (ExpertAgent(), RandomAgent(mixed=0.1))
    episodes = [run_episode(env, agent, task=task) for task in tasks for agent in agents]
    for episode in episodes[:40]:
        model.fit(transitions_of(episode))
    rows: dict[str, list[Foretold]] = {"model": [], "truth": []}
    for episode in episodes[40:]:
        env.reset(options={"task": episode.task})
        label = env.unwrapped.wanted
        for query, actual in transitions_of(episode):
            (guess,) = model.predict([query])
            for name, text in (("model", guess.observation), ("truth", actual)):
                rows[name].append(
                    Foretold(
                        query.goal,
                        query.history,
                        query.state,
                        query.action,
                        text,
                        actual,
                        label.golden,
                        label.titles,
                    )
                )
    truth, learnt = score_layers(rows["truth"]), score_layers(rows["model"])
    assert (truth.protocol, truth.redundancy, truth.title_f1, truth.brier) == (1.0, 1.0, 1.0, 0.0)
    assert learnt.protocol is not None and learnt.title_f1 is not None and learnt.brier is not None
    assert learnt.title_f1 < learnt.protocol and learnt.brier > 0


class Spy:
    """A world model that keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def predict(self, queries):
        self.told += [pickle.dumps(query) for query in queries]
        return [Prediction(shown("Nothing")) for _ in queries]


@pytest.mark.parametrize("suggestions", [False, True])
def test_no_world_model_sees_golden_answers(suggestions: bool) -> None:
    """Of 60 questions nothing that is told before the real search has an answer in it."""
    real = gym.make(
        "comap/SearchQA-v0", split="test", source="generated", admissible_actions=suggestions
    )
    spy = Spy()
    env = ImaginedEnv(real, spy)
    for task in evenly(real.unwrapped.tasks.ids, 60):
        observation, info = env.reset(options={"task": task})
        wanted = real.unwrapped.wanted
        secrets = [*wanted.golden, *(hop.answer for hop in wanted.hops)]
        spy.told.clear()
        answers = []
        env.step(f"<search>{info['goal']}</search>")
        answers.append(env.step("<answer>of my own</answer>"))
        public = [observation, repr(info), repr(answers), repr(vars(real.unwrapped.canonicalizer))]
        said = "\n".join([*public, *(told.decode("latin-1") for told in spy.told)])
        assert len(spy.told) == 2 and "Question" in said
        assert not [secret for secret in secrets if f" {secret}" in said or f"'{secret}'" in said]


def test_imagination_does_not_tell_which_answer_is_right() -> None:
    real = gym.make("comap/SearchQA-v0", split="test", source="generated")
    env = ImaginedEnv(real, "null")
    told = []
    for right in (True, False):
        env.reset(seed=3)
        golden = real.unwrapped.wanted.golden[0] if right else "wrong"
        observation, reward, terminated, truncated, info = env.step(f"<answer>{golden}</answer>")
        told.append((observation, reward, terminated, truncated, info["success"], info["score"]))
    assert told[0] == told[1]


def test_an_imagined_answer_ends_the_episode() -> None:
    class Knows:
        def predict(self, queries):
            return [
                Prediction("" if "<answer>" in query.action else shown("X")) for query in queries
            ]

    env = ImaginedEnv(gym.make("comap/SearchQA-v0", source="generated"), Knows())
    env.reset(seed=0)
    assert env.step(ASK)[2:4] == (False, False)
    assert env.step("<answer>x</answer>")[1:4] == (0.0, True, False)
