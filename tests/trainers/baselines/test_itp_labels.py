"""ITP's labels by hand, and rows that ask as the agent does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents.itp import NO_FORESIGHT, ITPAgent, ITPConfig
from comap.agents.k_head import KHead
from comap.agents.prompting import converse
from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError
from comap.lm import Encode, Encoding, Generate, Scores
from comap.trainers.baselines.itp_labels import admissible_before, depths_of, scores_by_request
from comap.trainers.baselines.itp_samples import (
    encode_moments,
    label_counts,
    moments_of,
    observation_at,
    scores_of,
)

kit = load(f"{Path(__file__).with_name('baseline_kit.py')}:KIT")
scripted = load(f"{Path(__file__).parents[2] / 'agents' / 'scripted.py'}:converse_with").__globals__


def agent(**settings: Any) -> ITPAgent:
    told = {"prompts": "brief", "state_text": "belief", "k_source": "head", "told": "last"}
    return ITPAgent(ITPConfig(**{**told, "k_max": 3, **settings}), KHead([[0.0]] * 4, [0.0] * 4))


def moments(**settings: Any) -> list[Any]:
    shown = kit.demos_of(1)[0]
    predicted = [f"It is {number}." for number in range(len(shown.steps))]
    return list(moments_of(shown, predicted, **settings))


def test_foresight_is_of_the_real_states_and_repeats_the_last() -> None:
    every, asking = moments(), agent()
    last = len(every) - 1
    assert [every[0].foresight(asking, k) for k in range(3)] == [
        NO_FORESIGHT,
        "It is 0.",
        "It is 1.",
    ]
    assert [every[last].foresight(asking, k) for k in (1, 2, 3)] == [f"It is {last}."] * 3
    assert observation_at(["a", "b"], 1, 9) == "b" and observation_at(["a"], 0, 0) is None


def test_a_step_is_scored_once_for_each_depth() -> None:
    (asked, *_) = [scores_of(one, agent(), 3, "agent") for one in moments()]
    assert [request.completions for request in asked] == [(f" {moments()[0].step.action}",)] * 4
    told = [request.messages[-1].content.rpartition("ahead:\n")[2] for request in asked]
    assert told == [NO_FORESIGHT, "It is 0.", "It is 1.", "It is 2."]
    assert {request.prefix for request in asked} == {"Action:"}


class Scoring(scripted["HashedModel"]):  # type: ignore[misc]
    """Scores each action by what was read ahead of it."""

    def __init__(self, totals: dict[str, float]):
        super().__init__()
        self.totals = totals

    def score(self, requests: Any) -> list[Any]:
        self._took(requests)
        found: list[Any] = []
        for request in requests:
            ahead = request.messages[-1].content.rpartition("ahead:\n")[2]
            total = self.totals.get(ahead, -9.0)
            found.append(Scores(((total / 2, total / 2),)) if total else LanguageModelError("no"))
        return found


def labelled(totals: dict[str, float]) -> Any:

    asked = [scores_of(one, agent(), 3, "agent") for one in moments()[:2]]
    lm = Scoring(totals)
    return asked, scores_by_request(lm, [one for row in asked for one in row]), lm


def test_labels_by_hand() -> None:

    totals = {NO_FORESIGHT: -3.0, "It is 0.": -2.5, "It is 1.": -2.25, "It is 2.": -2.1}
    asked, said, _ = labelled({**totals, "It is 3.": -2.0})
    found = depths_of(asked, said, 0.2)
    # step 0: -3.0, -2.7, -2.65, -2.7 -> 2; step 1: -3.0, -2.45, -2.5, -2.6 -> 1
    assert found["depths"] == [2, 1]
    assert found["scores"][0] == [-3.0, -2.5, -2.25, -2.1]
    assert depths_of(asked, said, 0.0)["depths"] == [3, 3]
    assert label_counts({"task": [2, 1]}) == {"1": 1, "2": 1}


def test_the_same_request_is_made_once_and_a_fault_is_of_its_step() -> None:

    asked, said, lm = labelled({NO_FORESIGHT: 0.0})
    assert len(lm.asked) == len({(one.messages, one.completions) for row in asked for one in row})
    assert depths_of(asked, said, 0.2) == {"error": "LanguageModelError: no"}


def test_rows_ask_as_the_agent_does(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from comap.lm.chat import ChatTokenizer
    from comap.lm.tiny import tokenizer_of

    every, asking = moments(), agent(decoding="masked", form="given")
    words = " ".join(message for one in every for message in (one.reply, one.view.goal))
    tokenizer = tokenizer_of([words, "ahead: It is 0 1 2"] * 3, 400)
    depths = [2] * len(every)
    rows = encode_moments(tokenizer, asking, every, depths, draft_weight=0.5, max_length=4096)
    assert len(rows) == 2 * len(every)
    first, draft = rows[0], rows[len(every)]
    assert tokenizer.decode([t for t, s in zip(first.answer, first.scored, strict=True) if s]) == (
        f"{every[0].reply}<|end|>"
    )
    assert all(first.scored) and not draft.control and draft.weight == 0.5
    actions = ("look", every[0].step.action)
    from dataclasses import replace

    seen = replace(every[0].view, admissible_actions=actions, memory={})
    asked: list[Any] = []

    def reply(request: Any) -> Any:
        asked.append(request)
        if isinstance(request, Encode):
            asking_now = Encoding((1.0,), 3)
            return asking_now
        return "It is 1." if not isinstance(request, Generate) else actions[0]

    player = agent(decoding="masked", form="given")
    object.__setattr__(player, "k_head", KHead([[0.0]] * 4, [0.0, 0.0, 5.0, 0.0]))
    scripted["converse_with"](player, seen, reply)
    chat = ChatTokenizer(tokenizer)
    (control,) = chat.prompts([next(one for one in asked if isinstance(one, Encode))])
    acts = [one for one in asked if isinstance(one, Generate) and one.purpose == "act"]
    (act,) = chat.prompts([Generate(acts[0].messages)])
    assert first.control == tuple(control) and first.depth == 2
    assert first.prompt == tuple(act)
    (plain,) = chat.prompts([Generate(converse(every[0].view, asking.config, {}))])
    assert draft.prompt == tuple(plain)


def test_prompts_that_list_actions_list_those_that_there_were() -> None:

    shown = kit.demos_of(1)[0]
    env = gym.make(shown.env_id, source="generated", split="train", max_episode_steps=3)
    found = admissible_before(env, shown)
    env.close()
    assert len(found) == 3 < len(shown.steps)  # then the environment has ended
    assert all(step.action in some for step, some in zip(shown.steps, found, strict=False))
    some = moments(admissible=found)
    assert [one.view.admissible_actions for one in some] == found
    asked = scores_of(some[0], agent(prompts="standard", state_text="history"), 1, None)[0]
    assert "\n".join(found[0]) in asked.messages[-1].content
