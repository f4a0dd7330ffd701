"""Episodes: searches, refusals, answers, rewards, limits, options and faults."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.envs import restore, snapshot
from comap.envs.searchqa import Hit, SearchQAEnv
from comap.envs.searchqa.protocol import REFUSAL
from comap.errors import DataNotFound, NoEpisode

EMMA = "<search>Who wrote Emma?</search>"
QUESTION = {
    "id": "q1",
    "question": "Where was the author of Emma born",
    "golden_answers": ["Steventon", "the village Steventon"],
}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(QUESTION), encoding="utf-8")
    return path


@pytest.fixture
def make(index: Path, questions: Path):
    """Make an environment on five passages and one question, and start it."""

    def started_env(**options: Any) -> SearchQAEnv:
        env = gym.make(
            "comap/SearchQA-v0", data_dir=index, questions=questions, **options
        ).unwrapped
        assert isinstance(env, SearchQAEnv)
        env.reset(seed=0)
        return env

    return started_env


def test_an_episode_word_by_word(make) -> None:
    env = make(topk=2)
    observation, info = env.reset(seed=0)
    assert observation == "Question: Where was the author of Emma born?"
    assert info["goal"] == "Where was the author of Emma born?" and info["task"] == "q1"
    assert (info["admissible_actions"], info["retrieved"], info["well_formed"]) == (None, (), True)
    answer = env.step("<think>I search.</think>" + EMMA)
    assert answer[0] == (
        '\n\n<information>Doc 1(Title: "Emma (novel)") Emma is a novel by Jane Austen about youthful '
        "pride.</information>\n\n"
    )
    assert answer[1:4] == (0.0, False, False) and answer[4]["retrieved"] == ("c",)
    assert answer[4]["facts"].to_text().splitlines() == [
        "hit(1, 1, emma \\(novel\\))",
        "new_docs(1, 1)",
        "query(1, who wrote emma?)",
        "seen(emma \\(novel\\))",
        "turns_left(3)",
    ]
    observation, reward, terminated, truncated, info = env.step("<answer>The  Steventon!</answer>")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["success"] and info["score"] == 1.0
    assert ("answer", "steventon") in info["facts"].facts
    with pytest.raises(NoEpisode):
        env.step(EMMA)


def test_verls_style_and_react(make) -> None:
    env = make(style="verl", topk=1)
    assert env.step(EMMA)[0] == (
        '<information>{"result": "Doc 1: \\"Emma (novel)\\"\\nEmma is a novel by Jane Austen about '
        'youthful pride."}</information>'
    )
    observation, _, _, _, info = env.step("hm")
    assert observation == "" and info["invalid_action"]
    env = make(actions="react", topk=1)
    assert "Emma (novel)" in env.step("search[Emma]")[0]
    assert env.step(EMMA)[4]["invalid_action"]
    assert env.step("finish[Steventon]")[1:3] == (1.0, True)


def test_refusals_take_turns(make) -> None:
    env = make()
    for turn in range(1, 5):
        observation, reward, terminated, truncated, info = env.step("I think it was Steventon.")
        assert observation == REFUSAL and reward == 0.0 and not terminated
        assert info["invalid_action"] and not info["well_formed"]
        assert ("invalid", str(turn)) in info["facts"].facts
        assert truncated is (turn == 4)


def test_a_refusal_says_the_form_that_actions_have(make) -> None:
    env = make(actions="react")

    observation, _, _, _, info = env.step("I think it was Steventon.")

    assert "search[" in observation and "finish[" in observation and "<" not in observation
    assert info["invalid_action"] and env.refused(observation)
    assert ("invalid", "1") in info["facts"].facts


def test_the_last_answer_of_the_policy_itself_counts(make) -> None:
    """Answers in passages, prompts or observations are not the policy's."""
    env = make()
    assert env.step("<answer>Oder</answer> or <answer>Steventon</answer>")[1:3] == (1.0, True)
    env = make()
    assert env.step("<answer>Steventon</answer><answer>Oder</answer>")[1:3] == (0.0, True)
    env = make(style="verl", turns=1)  # a search first: verl-agent searches, and scores the answer
    answer = env.step("<answer>Steventon</answer>" + EMMA)
    assert answer[1:4] == (1.0, False, True) and not answer[4]["well_formed"]
    passage = Hit("x", "<answer>Steventon</answer>", "<answer>Steventon</answer>", 1.0)
    env = make(retriever=lambda queries, k: [[passage] for _ in queries])
    for _ in range(4):
        answer = env.step(EMMA)
    assert answer[1:4] == (0.0, False, True) and not answer[4]["success"]
    assert "<answer>" not in answer[0] and "Steventon" in answer[0]


@pytest.mark.parametrize(
    ("reward", "answer", "expected"),
    [
        ("em", "in Steventon", 0.0),
        ("sub_em", "in Steventon", 1.0),
        ("f1", "in Steventon", 2 / 3),
        ("format", "Steventon", 1.0),
        ("format", "Oder", 0.2),
        ("format", "Oder, shown", 0.3),
        ("format", "Steventon, badly", 0.8),
    ],
)
def test_rewards(reward: str, answer: str, expected: float, make) -> None:
    env = make(reward=reward, retrieval_score=0.1)
    answer, _, manner = answer.partition(", ")
    env.step({"": EMMA, "shown": "<search>Jane Austen</search>", "badly": "hm"}[manner])
    step_result = env.step(f"<answer>{answer}</answer>")
    assert step_result[1] == pytest.approx(expected)
    assert step_result[4]["success"] is (answer == "Steventon")
    assert step_result[4]["score"] == float(answer == "Steventon")


def test_penalties(make) -> None:
    env = make(invalid_penalty=0.01)
    assert env.step("hm")[1] == -0.01 and env.step(EMMA)[1] == 0.0
    assert env.step("<answer>x</answer><answer>Steventon</answer>")[1] == pytest.approx(0.99)
    assert [str(make().step(action)[1]) for action in (EMMA, "hm")] == ["0.0", "0.0"]  # never -0.0


def test_moments_come_back_with_answers_given_before(make) -> None:
    env = make(style="verl", turns=2)
    env.step("<answer>Steventon</answer>" + EMMA)
    moment = pickle.loads(pickle.dumps(snapshot(env)))
    assert env.step("hm")[1] == 1.0
    second_env = make(style="verl", turns=2)
    restore(second_env, moment)
    assert second_env.step("hm")[1] == 1.0
    restore(env, moment)
    assert env.step("<answer>Oder</answer>")[1] == 0.0


def test_official_data_must_be_there(index: Path, questions: Path) -> None:
    with pytest.raises(DataNotFound, match="questions"):
        SearchQAEnv(source="official")
    with pytest.raises(DataNotFound, match="comap data build searchqa"):
        SearchQAEnv(questions=questions)
    with pytest.raises(DataNotFound):
        SearchQAEnv(data_dir=index)


@pytest.mark.parametrize("engine", [lambda queries, k: [[3]], lambda queries, k: 1 / 0])
def test_a_fault_of_the_retriever_ends_the_episode(engine, make) -> None:
    env = make(retriever=engine)
    observation, reward, terminated, truncated, info = env.step(EMMA)
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True) and info["error"]
    _, info = env.reset(seed=0)
    assert "error" not in info and env.step("<answer>Steventon</answer>")[1] == 1.0


def test_long_passages_fit_into_an_observation(make) -> None:
    passages = [Hit(str(n), "t" * 5000, '"\\' * 50_000, 1.0) for n in range(20)]
    for style in ("search_r1", "verl"):
        env = make(retriever=lambda queries, k: [passages], topk=20, style=style)
        observation, _, _, _, info = env.step(EMMA)
        assert observation in env.observation_space and "error" not in info
        assert info["facts"].parsed and len(info["retrieved"]) == 20


def test_suggestions_are_followed_by_the_expert_less_admissible_is_open(make) -> None:
    env = make(admissible_actions=True)
    _, info = env.reset(seed=0)
    assert info["admissible_actions"] == (
        "<search>Where was the author of Emma born?</search>",
        "<search>Emma</search>",
        "<answer>Emma</answer>",
    )
    _, _, _, _, info = env.step(EMMA)
    assert "<search>emma (novel)</search>" in info["admissible_actions"]
    assert env.step("<answer>Steventon</answer>")[4]["admissible_actions"] == ()
