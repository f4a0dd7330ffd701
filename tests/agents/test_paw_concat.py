"""PaW's agent in a conversation that goes on (METHODS.md 3, Search-R1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import PaWAgent, PaWConfig, create_agent, run_episode, run_episodes
from comap.agents.paw_prompt import tagged_prompt
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.lm import Completion, Message
from comap.worldmodel import ImaginedEnv

HERE = Path(__file__).with_name("scripted.py")
converse_with, view, HashedModel = (
    load(f"{HERE}:{name}") for name in ("converse_with", "view", "HashedModel")
)

SEARCH = "<think>Hm.</think><search>Emma</search>"
FOUND = '\n\n<information>Doc 1(Title: "Emma") A novel.</information>\n\n'
QUESTION = "Who wrote Emma?"


def asking(*turns: tuple[str, str], **told: Any) -> Any:
    known = {"observation": f"Question: {QUESTION}", "goal": QUESTION, "actions": None}
    return view(*turns, **(known | {"env_id": "comap/SearchQA-v0"} | told))


def concat(**options: Any) -> PaWAgent:
    return PaWAgent(PaWConfig(context="concat", **options))


def said(text: str, ids: tuple[int, ...] | None = (7, 8), prompt: int = 100) -> Completion:
    return Completion(text, ids, None, "stop", prompt, len(ids or ()))


def test_the_conversation_goes_on() -> None:
    agent, memory = concat(), dict[str, Any]()
    first = converse_with(agent, asking(memory=memory), [said(SEARCH)])
    (asked,) = first.requests
    assert asked.messages == tagged_prompt(asking(), PaWConfig()) and asked.reply_ids == ()
    assert first.decision.action == "<search>Emma</search>"
    assert first.decision.notes == {"valid": True, "format": "tags", "context": "concat"}
    turns = [("<search>Emma</search>", FOUND)]
    (second,) = converse_with(agent, asking(*turns, memory=memory), [said("Hm.", (9,))]).requests
    spoken = (Message("assistant", SEARCH), Message("user", FOUND))
    assert second.messages == (*asked.messages, *spoken)  # the whole reply, and not its action
    assert second.reply_ids == ((7, 8),)
    turns.append(("Hm.", "No action."))
    (third,) = converse_with(agent, asking(*turns, memory=memory), [said(SEARCH)]).requests
    spoken = (Message("assistant", "Hm."), Message("user", "No action."))
    assert third.messages == (*second.messages, *spoken)
    assert third.reply_ids == ((7, 8), (9,))


def test_a_model_that_tells_no_tokens_is_asked_in_texts() -> None:
    agent, memory = concat(), dict[str, Any]()
    converse_with(agent, asking(memory=memory), [said(SEARCH, None, 0)])
    (asked,) = converse_with(agent, asking(("x", FOUND), memory=memory), [said("Hm.")]).requests
    assert asked.reply_ids == ((),) and [one.role for one in asked.messages][1:] == [
        "assistant",
        "user",
    ]


def test_who_joins_later_begins_with_a_summary() -> None:
    turns = [("<search>Emma</search>", FOUND)]
    (asked,) = converse_with(concat(), asking(*turns), [said(SEARCH)]).requests
    assert asked.messages == tagged_prompt(asking(*turns), PaWConfig())
    assert "Step 1:<search>Emma</search>" in asked.messages[0].content


def test_nothing_is_left_over_from_another_trial() -> None:
    agent, memory = concat(), dict[str, Any]()
    converse_with(agent, asking(memory=memory), [said(SEARCH)])
    again = replace(asking(("x", FOUND), memory=memory), trial=2)
    (asked,) = converse_with(agent, again, [said(SEARCH)]).requests
    assert len(asked.messages) == 1
    plain = dict[str, Any]()
    converse_with(PaWAgent(), asking(memory=plain), [said(SEARCH)])
    assert plain == {}


def test_a_long_observation_is_cut_and_a_full_context_ends_the_episode() -> None:
    def later(prompt: int, text: str, **sizes: Any) -> Any:
        agent, memory = concat(**sizes), dict[str, Any]()
        converse_with(agent, asking(memory=memory), [said(SEARCH, prompt=prompt)])
        seen = asking(("x", text), memory=memory, count=lambda text: len(text.split()))
        return converse_with(agent, seen, lambda _: said("Hm."))

    long = "word " * 500
    sizes = {"max_length": 300, "draft_tokens": 100}
    told = later(10, long, observation_tokens=20).requests[0].messages[-1].content
    assert len(told.split()) == 20 and told.endswith("[...]")
    told = later(100, long, **sizes).requests[0].messages[-1].content
    assert (
        len(told.split()) == 300 - 100 - 102 - 16
    )  # what is left beside prompt, reply and template
    full = later(170, long, **sizes)
    assert full.requests == [] and full.decision.action is None
    assert later(170, "Two words.", **sizes).requests  # it fits


def test_what_it_cannot_be() -> None:
    with pytest.raises(OptionError, match="context must be one of 'summary', 'concat'"):
        PaWConfig(context="all")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="observation_tokens must be"):
        PaWConfig(observation_tokens=0)


class Searcher(HashedModel):  # type: ignore[misc, valid-type]
    """Searches for a word, and answers at the fourth message of its own."""

    def generate(self, requests: Any) -> list[Any]:
        self._took(requests)
        return [self._said(request) for request in requests]

    def _said(self, request: Any) -> Completion:
        own = sum(one.role == "assistant" for one in request.messages)
        word = self._draw(request.messages, request.sampling) % 100
        text = (
            f"<think>Hm.</think><search>town {word}</search>" if own < 3 else "<answer>x</answer>"
        )
        return Completion(text, None, None, "stop", 0, 0)


def make(**options: Any) -> gym.Env[str, str]:
    given: dict[str, Any] = {"split": "test", "source": "generated", **options}
    return gym.make("comap/SearchQA-v0", **given)


def test_it_plays_search_qa() -> None:
    tasks = make().unwrapped.tasks.ids[:3]  # type: ignore[attr-defined]
    agent = create_agent("paw", context="concat", max_length=4608)
    played = run_episodes(make, agent, tasks, lm=Searcher(), keep="tokens")
    again = run_episodes(make, agent, tasks, lm=Searcher(), keep="tokens", live=1)
    assert played == again and not any(one.error for one in played)
    for episode in played:
        assert [step.terminated for step in episode.steps] == [False, False, False, True]
        for step, before in zip(episode.steps[1:], episode.steps, strict=False):
            messages = step.calls[0].messages or ()
            assert messages[-2:] == (
                ("assistant", before.calls[0].text),
                ("user", before.observation),
            )
            assert len(messages) == 2 * step.t - 1
    brief = create_agent("paw", context="concat", max_length=900, draft_tokens=40)
    (short,) = run_episodes(make, brief, tasks[:1], lm=Searcher())
    assert short.error is None and 1 <= len(short.steps) < 4  # it gave up, which is no fault


def test_it_plays_an_imagined_environment() -> None:
    env = ImaginedEnv(make(), "oracle")
    task = make().unwrapped.tasks.ids[0]  # type: ignore[attr-defined]
    agent = create_agent("paw", context="concat", max_length=4608)
    dreamt = run_episode(env, agent, task=task, lm=Searcher(), keep="prompts")
    real = run_episode(make(), agent, task=task, lm=Searcher(), keep="prompts")
    assert dreamt.imagined and dreamt.error is None
    assert [step.calls for step in dreamt.steps] == [step.calls for step in real.steps]
