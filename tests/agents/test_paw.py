"""PaW's agent in a conversation that goes on (as in Search-R1), and one step at a time."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.agents import PaWAgent, PaWConfig, create_agent, run_episodes
from comap.agents.paw import tagged_prompt
from comap.errors import OptionError
from comap.lm import Completion, Generate, Message
from comap.lm.prompts import OVERHEAD
from kits.scripted import HashedModel, converse_with, view

ROOM = "You are in a room.\n\nYour task is to: put a pen in safe."
COMMANDS = ("go to desk 1", "help", "look")
LOOK = "<think>Dark.</think>\n<action> look </action>"
SHOP, QUESTIONS = "comap/WebShop-v0", "comap/SearchQA-v0"
MUG = "i want a red mug"
INDEX = f"WebShop [SEP] Instruction: [SEP] {MUG} [SEP] Search"


def home(*turns: tuple[str, str], **overrides: Any) -> Any:
    return view(
        *turns,
        **({"observation": ROOM, "goal": "put a pen in safe.", "actions": COMMANDS} | overrides),
    )


def shop(*turns: tuple[str, str], **overrides: Any) -> Any:
    defaults = {"observation": INDEX, "goal": MUG, "env_id": SHOP, "actions": ("click[b0]",)}
    return view(*turns, **(defaults | overrides))


def asking(*turns: tuple[str, str], **overrides: Any) -> Any:
    defaults = {
        "observation": "Begin.",
        "goal": "Who wrote Emma?",
        "env_id": QUESTIONS,
        "actions": None,
    }
    return view(*turns, **(defaults | overrides))


def prompt(current_view: Any, **options: Any) -> str:
    (message,) = tagged_prompt(current_view, PaWConfig(**options))
    assert message.role == "user"
    return message.content


def history_lines(text: str) -> list[str]:
    return re.findall(r"^\[Observation \d+: .*\]$", text, re.MULTILINE)


def test_one_request_a_step() -> None:
    talk = converse_with(PaWAgent(), home(), [LOOK])
    (request,) = talk.requests
    assert talk.purposes == ["act"] and request.messages == tagged_prompt(home(), PaWConfig())
    assert request.prefix == "" and request.choices is None and request.adapter is None
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (1.0, 1.0, 512)
    assert sampling.stop == ()  # the reply is trained on as it was written
    assert (talk.decision.action, talk.decision.imagined) == ("look", None)
    assert talk.decision.notes == {"valid": True, "format": "tags"}


def test_first_step_in_alfworld() -> None:
    text = prompt(home())
    assert f"\n{ROOM}\n" in text and "\n'go to desk 1'\n'look'\n\n" in text
    assert "'help'" not in text and text.count("put a pen in safe.") == 1
    assert "Observation" not in text and "step 1" not in text
    for tag in ("<think>", "</think>", "<action>", "</action>"):
        assert text.count(tag) == 1


def test_later_steps_in_alfworld() -> None:
    turns = (("look", "A desk."), ("go to desk 1", "A pen."), ("take pen", "Nothing happens."))
    text = prompt(home(*turns))
    assert history_lines(text) == [
        "[Observation 2: 'A desk.', Action 2: 'go to desk 1']",
        "[Observation 3: 'A pen.', Action 3: 'take pen']",
    ]
    assert (
        "so far: 3. The last 2 of" in text and "This is step 4. What you see now:\nNothing" in text
    )
    assert "The task: put a pen in safe." in text and "Welcome" not in text and ROOM not in text
    assert len(history_lines(prompt(home(*turns), history_turns=1))) == 1
    whole = prompt(home(*turns), history_turns=None)
    assert f"[Observation 1: '{ROOM}', Action 1: 'look']\n[Observation 2:" in whole
    assert "The last 3 of" in whole
    once = prompt(home(*turns[:1]))
    assert "so far: 1. The last 1 of" in once and "This is step 2" in once


def test_nothing_in_a_text_is_a_slot() -> None:
    hostile = "$task_description ${current_step} $ {0} %s"
    text = prompt(home((hostile, hostile), observation=hostile, goal=hostile, actions=(hostile,)))
    assert text.count(hostile) == 5


def test_a_long_webshop_prompt_has_no_history() -> None:
    bare = len(prompt(shop(("x", "")), max_length=9000))
    for extra_characters, has_history in ((0, True), (1, False)):
        shop_view = shop(("x", "y" * (13_000 - bare + extra_characters)))
        text = prompt(shop_view, max_length=9000)
        assert bool(history_lines(text)) is has_history and (len(text) == 13_000) is has_history
        assert MUG in text and ("This is step" in text) is has_history
        other_env_view = replace(shop_view, env_id="comap/ScienceWorld-v0")
        assert history_lines(prompt(other_env_view, max_length=9000))


def test_memory_in_search_qa() -> None:
    turns = [(f"<search>q{k}</search>", f"d{k}") for k in range(1, 5)]
    turns[1] = ("Hm.", "\n<information>Nothing.</information> ")
    text = prompt(asking(*turns))
    assert (
        "so far: 4. What you did, and what was found:\n"
        "Step 1:<search>q1</search> <information>d1</information>\n"
        "Step 2:Hm. <information>Nothing.</information>\n"
        "Step 3:<search>q3</search> <information>d3</information>\n"
        "Step 4:<search>q4</search> <information>d4</information>\n\n"
    ) in text
    assert "Begin." not in text and prompt(asking(*turns), history_turns=1) == text
    short_memory = prompt(asking(*turns), memory_turns=1)
    assert "found:\nStep 4:" in short_memory and "Step 3" not in short_memory
    assert prompt(asking(*turns), memory_turns=0) == prompt(asking())


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 900), max_size=6),
    goal=st.integers(1, 600),
    actions=st.lists(st.integers(1, 300), max_size=30),
    env_id=st.sampled_from(["comap/ALFWorld-v0", SHOP, QUESTIONS, "comap/Other-v0"]),
    turns=st.sampled_from([0, 2, None]),
    length=st.integers(1300, 4000),
)
def test_prompts_fit(
    sizes: list[int], goal: int, actions: list[int], env_id: str, turns: Any, length: int
) -> None:
    current_view = view(
        *[
            (f"a{k} " + "x" * (size // 3), f"o{k} " + "y " * size)
            for k, size in enumerate(sizes, 1)
        ],
        observation="z " * 200,
        goal="g" * goal,
        actions=[f"c{k}" + "v" * size for k, size in enumerate(actions)],
        env_id=env_id,
        count=len,
    )
    options: dict[str, Any] = {"history_turns": turns, "memory_turns": turns}
    (request,) = converse_with(
        PaWAgent(PaWConfig(max_length=length, draft_tokens=100, **options)), current_view, ["x"]
    ).requests
    assert isinstance(request, Generate)
    (message,) = request.messages
    assert len(message.content) + OVERHEAD + 100 <= length
    numbers = [
        int(k)
        for k in re.findall(r"\[Observation (\d+):|^Step (\d+):", message.content, 8)
        for k in k
        if k
    ]
    assert numbers == list(range(len(sizes) - len(numbers) + 1, len(sizes) + 1))
    listed = re.findall(r"^'(c\d+v+)'$", message.content, re.MULTILINE)
    assert listed == list(current_view.admissible_actions)[: len(listed)]


SEARCH = "<think>Hm.</think><search>Emma</search>"
FOUND = '\n\n<information>Doc 1(Title: "Emma") A novel.</information>\n\n'
QUESTION = "Who wrote Emma?"


def searching(*turns: tuple[str, str], **overrides: Any) -> Any:
    defaults = {"observation": f"SlotRequest: {QUESTION}", "goal": QUESTION, "actions": None}
    return view(*turns, **(defaults | {"env_id": "comap/SearchQA-v0"} | overrides))


def concat(**options: Any) -> PaWAgent:
    return PaWAgent(PaWConfig(context="concat", **options))


def completion(text: str, ids: tuple[int, ...] | None = (7, 8), prompt: int = 100) -> Completion:
    return Completion(text, ids, None, "stop", prompt, len(ids or ()))


def test_the_conversation_goes_on() -> None:
    agent, memory = concat(), dict[str, Any]()
    first = converse_with(agent, searching(memory=memory), [completion(SEARCH)])
    (opening,) = first.requests
    assert opening.messages == tagged_prompt(searching(), PaWConfig()) and opening.reply_ids == ()
    assert first.decision.action == "<search>Emma</search>"
    assert first.decision.notes == {"valid": True, "format": "tags", "context": "concat"}
    turns = [("<search>Emma</search>", FOUND)]
    (second,) = converse_with(
        agent, searching(*turns, memory=memory), [completion("Hm.", (9,))]
    ).requests
    spoken = (Message("assistant", SEARCH), Message("user", FOUND))
    assert second.messages == (*opening.messages, *spoken)  # the whole reply, and not its action
    assert second.reply_ids == ((7, 8),)
    turns.append(("Hm.", "No action."))
    (third,) = converse_with(agent, searching(*turns, memory=memory), [completion(SEARCH)]).requests
    spoken = (Message("assistant", "Hm."), Message("user", "No action."))
    assert third.messages == (*second.messages, *spoken)
    assert third.reply_ids == ((7, 8), (9,))


def test_a_model_that_tells_no_tokens_is_asked_in_texts() -> None:
    agent, memory = concat(), dict[str, Any]()
    converse_with(agent, searching(memory=memory), [completion(SEARCH, None, 0)])
    (request,) = converse_with(
        agent, searching(("x", FOUND), memory=memory), [completion("Hm.")]
    ).requests
    assert request.reply_ids == ((),) and [message.role for message in request.messages][1:] == [
        "assistant",
        "user",
    ]


def test_a_long_observation_is_cut_and_a_full_context_ends_the_episode() -> None:
    def later(prompt: int, text: str, **sizes: Any) -> Any:
        agent, memory = concat(**sizes), dict[str, Any]()
        converse_with(agent, searching(memory=memory), [completion(SEARCH, prompt=prompt)])
        current_view = searching(("x", text), memory=memory, count=lambda text: len(text.split()))
        return converse_with(agent, current_view, lambda _: completion("Hm."))

    long = "word " * 500
    sizes = {"max_length": 300, "draft_tokens": 100}
    last_message = later(10, long, observation_tokens=20).requests[0].messages[-1].content
    assert len(last_message.split()) == 20 and last_message.endswith("[...]")
    last_message = later(100, long, **sizes).requests[0].messages[-1].content
    assert (
        len(last_message.split()) == 300 - 100 - 102 - 16
    )  # what is left beside prompt, reply and template
    full = later(170, long, **sizes)
    assert full.requests == [] and full.decision.action is None
    assert later(170, "Two words.", **sizes).requests  # it fits


class Searcher(HashedModel):  # type: ignore[misc, valid-type]
    """Searches for a word, and answers at the fourth message of its own."""

    def generate(self, requests: Any) -> list[Any]:
        self._took(requests)
        return [self._said(request) for request in requests]

    def _said(self, request: Any) -> Completion:
        earlier_replies = sum(message.role == "assistant" for message in request.messages)
        word = self._draw(request.messages, request.sampling) % 100
        text = (
            f"<think>Hm.</think><search>town {word}</search>"
            if earlier_replies < 3
            else "<answer>x</answer>"
        )
        return Completion(text, None, None, "stop", 0, 0)


def make(**options: Any) -> gym.Env[str, str]:
    env_options: dict[str, Any] = {"split": "test", "source": "generated", **options}
    return gym.make("comap/SearchQA-v0", **env_options)


def test_it_plays_search_qa() -> None:
    tasks = make().unwrapped.tasks.ids[:3]  # type: ignore[attr-defined]
    agent = create_agent("paw", context="concat", max_length=4608)
    played = run_episodes(make, agent, tasks, lm=Searcher(), keep="tokens")
    sequential = run_episodes(make, agent, tasks, lm=Searcher(), keep="tokens", concurrency=1)
    assert played == sequential and not any(trajectory.error for trajectory in played)
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


def test_a_brief_conversation_goes_on_with_bare_observations() -> None:
    """Its first message is the first observation with the task; replies are as they were written."""
    make = partial(gym.make, "comap/ALFWorld-v0", source="generated", max_episode_steps=3)
    agent = create_agent("paw", prompts="brief", context="concat", draft_tokens=16)

    class Replying(HashedModel):  # type: ignore[misc, valid-type]
        """Says one thing after the other."""

        texts = ("Action: look", "go to shelf 1", "Action: inventory")

        def _one(self, request: Any) -> Completion:
            reply_count = sum(message.role == "assistant" for message in request.messages)
            return Completion(self.texts[reply_count], None, None, "stop", 0, 0)

    lm = Replying()
    task = make().unwrapped.tasks.ids[0]  # type: ignore[attr-defined]
    (episode,) = run_episodes(make, agent, [task], lm=lm, keep="tokens")
    assert [step.action for step in episode.steps] == ["look", "go to shelf 1", "inventory"]
    assert [step.notes["valid"] for step in episode.steps] == [True, False, True]
    first, second, third = (step.calls[0].messages or () for step in episode.steps)
    assert first[0][1].startswith(episode.observation) and episode.goal in first[0][1]
    observation_message = ("user", episode.steps[0].observation)
    assert second == (*first, ("assistant", "Action: look"), observation_message)
    assert third[:-2] == second


def test_brief_prompts_are_those_of_react() -> None:
    with pytest.raises(OptionError, match="form='asked' with context='concat'"):
        create_agent("paw", prompts="brief", context="concat", form="given")
    brief = {"prompts": "brief", "state_text": "belief", "form": "given", "history_turns": 2}
    talks = [
        converse_with(create_agent(name, **brief), home(), ["look"]) for name in ("paw", "react")
    ]
    prompts = [[(request.messages, request.prefix) for request in talk.requests] for talk in talks]
    assert (
        prompts[0] == prompts[1] and talks[0].decision.action == talks[1].decision.action == "look"
    )
