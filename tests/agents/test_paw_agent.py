"""PaW's agent: its prompts, its one request, and what becomes of a reply (METHODS.md 2.6, 2.8)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.agents import PaWAgent, PaWConfig, create_agent, run_episodes
from comap.agents.needs import needs_of
from comap.agents.paw_prompt import page_text, tagged_prompt
from comap.agents.prompting import load_template
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.lm import Completion, Generate
from comap.lm.prompts import OVERHEAD

HERE = Path(__file__).with_name("scripted.py")
converse_with, view, HashedModel = (
    load(f"{HERE}:{name}") for name in ("converse_with", "view", "HashedModel")
)

ROOM = "You are in a room.\n\nYour task is to: put a pen in safe."
COMMANDS = ("go to desk 1", "help", "look")
LOOK = "<think>Dark.</think>\n<action> look </action>"
SHOP, QUESTIONS = "comap/WebShop-v0", "comap/SearchQA-v0"
MUG = "i want a red mug"
INDEX = f"WebShop [SEP] Instruction: [SEP] {MUG} [SEP] Search"
PAGE = f"Instruction: [SEP] {MUG} [SEP] Back to Search [SEP] Page 1 [SEP] B0 [SEP] A mug"


def home(*turns: tuple[str, str], **told: Any) -> Any:
    return view(
        *turns, **({"observation": ROOM, "goal": "put a pen in safe.", "actions": COMMANDS} | told)
    )


def shop(*turns: tuple[str, str], **told: Any) -> Any:
    known = {"observation": INDEX, "goal": MUG, "env_id": SHOP, "actions": ("click[b0]",)}
    return view(*turns, **(known | told))


def asking(*turns: tuple[str, str], **told: Any) -> Any:
    known = {
        "observation": "Begin.",
        "goal": "Who wrote Emma?",
        "env_id": QUESTIONS,
        "actions": None,
    }
    return view(*turns, **(known | told))


def prompt(seen: Any, **options: Any) -> str:
    (message,) = tagged_prompt(seen, PaWConfig(**options))
    assert message.role == "user"
    return message.content


def history_lines(text: str) -> list[str]:
    return re.findall(r"^\[Observation \d+: .*\]$", text, re.MULTILINE)


# -- one step ------------------------------------------------------------------------------------


def test_one_request_a_step() -> None:
    talk = converse_with(PaWAgent(), home(), [LOOK])
    (asked,) = talk.requests
    assert talk.purposes == ["act"] and asked.messages == tagged_prompt(home(), PaWConfig())
    assert asked.prefix == "" and asked.choices is None and asked.adapter is None
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (1.0, 1.0, 512)
    assert sampling.stop == ()  # the reply is trained on as it was written
    assert (talk.decision.action, talk.decision.imagined) == ("look", None)
    assert talk.decision.notes == {"valid": True, "format": "tags"}


def test_a_reply_of_another_form_is_sent_and_noted() -> None:
    said = "Thought: Where might it be?\nAction: go to desk 1"
    talk = converse_with(PaWAgent(), home(), [said])
    assert talk.decision.action == said[-30:] and talk.decision.notes["valid"] is False
    talk = converse_with(PaWAgent(), asking(), ["<search>Emma</search><answer>x</answer>"])
    assert (talk.decision.action, talk.decision.notes["valid"]) == ("<search>Emma</search>", False)
    talk = converse_with(PaWAgent(), shop(), [f"{said} here"])
    assert talk.decision.action == f"{said} here"[-20:].strip()


def test_settings_reach_the_request() -> None:
    agent = PaWAgent(PaWConfig(temperature=0.4, draft_tokens=64, adapter="actor", seed=5))
    (asked,) = converse_with(agent, home(), [LOOK]).requests
    assert (asked.sampling.temperature, asked.sampling.max_new_tokens) == (0.4, 64)
    assert asked.adapter == "actor"
    seeds = {
        converse_with(PaWAgent(PaWConfig(seed=seed)), replace(home(), **change), [LOOK])
        .requests[0]
        .sampling.seed
        for seed in (0, 1)
        for change in ({}, {"seed": 1}, {"seed": 2}, {"step": 1}, {"task": "other"})
    }
    assert len(seeds) == 10  # members of a group differ by their episode's seed
    greedy = PaWAgent(PaWConfig(temperature=0))
    assert converse_with(greedy, home(), [LOOK]).requests[0].sampling.seed == 0


def test_it_keeps_nothing_between_steps() -> None:
    agent, memory = PaWAgent(), dict[str, Any]()
    first = converse_with(agent, home(memory=memory), [LOOK]).requests
    converse_with(agent, home(("look", "A desk."), memory=memory, task="other"), ["Secret."])
    assert converse_with(agent, home(), [LOOK]).requests == first and memory == {}


class Tagger(HashedModel):  # type: ignore[misc, valid-type]
    """Writes an action of the prompt's list, every third time without tags."""

    def generate(self, requests: Any) -> list[Any]:
        self._took(requests)
        found = []
        for request in requests:
            listed = re.findall(r"^'(.*)'$", request.messages[-1].content, re.MULTILINE)
            draw = self._draw(request.messages, request.sampling)
            action = listed[draw % len(listed)]
            said = action if draw % 3 == 0 else f"<think>Hm.</think><action>{action}</action>"
            found.append(Completion(said, (1, 2), (-0.25, -0.5), "stop", 9, 2))
        return found


def test_it_plays() -> None:
    def make() -> gym.Env[str, str]:
        options: dict[str, Any] = {"split": "valid_seen", "source": "generated"}
        return gym.make("comap/ALFWorld-v0", max_episode_steps=8, **options)

    tasks = make().unwrapped.tasks.ids[:3]  # type: ignore[attr-defined]
    played = run_episodes(make, create_agent("paw"), tasks, lm=Tagger(), keep="tokens")
    again = run_episodes(make, create_agent("paw"), tasks, lm=Tagger(), keep="tokens", live=1)
    assert played == again and len(played) == 3
    steps = [step for one in played for step in one.steps]
    assert len(steps) == 24 and not any(one.error for one in played)
    assert not any(step.invalid_action for step in steps if step.notes["valid"])
    assert {step.notes["valid"] for step in steps} == {True, False}
    for step in steps:
        (call,) = step.calls
        assert call.purpose == "act" and call.prefix == "" and len(call.messages or ()) == 1
        assert step.notes["valid"] == call.text.startswith("<think>")
        assert step.action in call.text and "help" not in step.action


# -- prompts of ALFWorld -------------------------------------------------------------------------


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


def test_the_task_is_told_without_history_too() -> None:
    text = prompt(home(("look", "A desk.")), history_turns=0)
    assert "A desk.\n\nYour task is to: put a pen in safe.\n" in text and "Observation" not in text
    assert prompt(home(observation="Hello.")).count("put a pen in safe.") == 1


def test_actions_that_are_not_listed() -> None:
    for seen in (home(actions=None), shop(actions=None), view(env_id="my/Env-v1", actions=())):
        assert "\n(They are not listed.)\n" in prompt(seen)


def test_nothing_in_a_text_is_a_slot() -> None:
    hostile = "$task_description ${current_step} $ {0} %s"
    text = prompt(home((hostile, hostile), observation=hostile, goal=hostile, actions=(hostile,)))
    assert text.count(hostile) == 5


# -- prompts of WebShop --------------------------------------------------------------------------


def test_first_step_in_webshop() -> None:
    text = prompt(shop(actions=("search[anything]", "click[a]", "click[b c]")))
    assert f"What you are to buy: {MUG}\n" in text and text.count(MUG) == 1
    assert "\n'search[<your query>]'\n'click[a]'\n'click[b c]'\n\n" in text
    assert "open now:\n'Search'\n" in text and "Observation" not in text
    without = prompt(shop(actions=("click[search for it]", "click[b c]")))
    assert "<your query>" not in without and "\n'click[search for it]'\n'click[b c]'\n" in without


def test_later_steps_in_webshop() -> None:
    text = prompt(shop(("search[red mug]", PAGE)))
    assert history_lines(text) == ["[Observation 1: ''Search'', Action 1: 'search[red mug]']"]
    assert "open now:\n'Back to Search' [SEP] 'Page 1' [SEP] 'B0' [SEP] 'A mug'\n" in text
    assert text.count(MUG) == 1


def test_pages() -> None:
    assert page_text(MUG, "Thank you for shopping with us!") == "Thank you for shopping with us!"
    assert page_text(MUG, f"Instruction: [SEP] {MUG}") == f"'Instruction:' [SEP] '{MUG}'"
    assert page_text("other", "a [SEP] b") == "'a' [SEP] 'b'"


def test_a_long_webshop_prompt_has_no_history() -> None:
    bare = len(prompt(shop(("x", "")), max_length=9000))
    for more, kept in ((0, True), (1, False)):
        seen = shop(("x", "y" * (13_000 - bare + more)))
        text = prompt(seen, max_length=9000)
        assert bool(history_lines(text)) is kept and (len(text) == 13_000) is kept
        assert MUG in text and ("This is step" in text) is kept
        other = replace(seen, env_id="comap/ScienceWorld-v0")
        assert history_lines(prompt(other, max_length=9000))


# -- prompts of search QA ------------------------------------------------------------------------


def test_first_step_in_search_qa() -> None:
    text = prompt(asking())
    assert "question: Who wrote Emma?\n" in text and "Begin." not in text and "Step" not in text
    for tag in ("<think>", "<search>", "</search>", "<information>", "<answer>", "</answer>"):
        assert text.count(tag) == 1
    assert "<action>" not in text


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
    few = prompt(asking(*turns), memory_turns=1)
    assert "found:\nStep 4:" in few and "Step 3" not in few
    assert prompt(asking(*turns), memory_turns=0) == prompt(asking())


def test_what_was_found_last_is_cut_but_not_left_out() -> None:
    turns = (("<search>old</search>", "early"), ("<search>new</search>", "word " * 3000))
    text = prompt(asking(*turns))
    assert "Step 2:<search>new</search> <information>word word" in text and "[...]" in text
    assert "early" not in text and len(text) > 4000


# -- sizes ---------------------------------------------------------------------------------------


def test_the_oldest_steps_go_first() -> None:
    turns = [(f"act {k}", f"{k} " + "seen " * 60) for k in range(1, 30)]
    told = []
    for length in (1000, 1400, 2000, 2560, 9000):
        text = prompt(home(*turns), history_turns=None, max_length=length)
        numbers = [int(found) for found in re.findall(r"\[Observation (\d+):", text)]
        assert numbers == list(range(30 - len(numbers), 30))
        assert text.count("29 seen") == 1 and "'look'" in text
        told.append(len(numbers))
    assert told == sorted(set(told)) and told[0] < 5 and told[-1] == 29


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
    seen = view(
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
    (asked,) = converse_with(
        PaWAgent(PaWConfig(max_length=length, draft_tokens=100, **options)), seen, ["x"]
    ).requests
    assert isinstance(asked, Generate)
    (message,) = asked.messages
    assert len(message.content) + OVERHEAD + 100 <= length
    numbers = [
        int(k)
        for k in re.findall(r"\[Observation (\d+):|^Step (\d+):", message.content, 8)
        for k in k
        if k
    ]
    assert numbers == list(range(len(sizes) - len(numbers) + 1, len(sizes) + 1))
    listed = re.findall(r"^'(c\d+v+)'$", message.content, re.MULTILINE)
    assert listed == list(seen.admissible_actions)[: len(listed)]


# -- templates and settings ----------------------------------------------------------------------

FIRST = {"current_observation", "task_description", "available_actions"}
LATER = FIRST | {"step_count", "history_length", "action_history", "current_step"}
HOMELY = (LATER - {"available_actions"}) | {"admissible_actions"}
SLOTS = {
    "alfworld_first": {"current_observation", "admissible_actions"},
    "alfworld": HOMELY,
    "webshop_first": FIRST,
    "webshop": LATER,
    "any_first": FIRST,
    "any": LATER,
    "searchqa_first": {"task_description"},
    "searchqa": {"task_description", "step_count", "memory_context"},
}


@pytest.mark.parametrize("name", sorted(SLOTS))
def test_slots(name: str) -> None:
    ((role, text),) = load_template("paw", name)
    found = {match["named"] for match in Template.pattern.finditer(text)}
    assert role == "user" and found == SLOTS[name]


@pytest.mark.parametrize(
    "options",
    [
        {"decoding": "masked"},
        {"decoding": "scored"},
        {"state_text": "belief"},
        {"prompts": "brief"},
        {"form": "given"},
        {"examples": 1},
    ],
    ids=str,
)
def test_what_it_does_not_do(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(
        OptionError, match=rf"{name}=.*'paw', found {value!r}: .*use the agent 'react'"
    ):
        create_agent("paw", **options)
    create_agent("react", **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"memory_turns": -1}, "memory_turns must be None or a whole number of at least 0"),
        ({"memory_turns": True}, "memory_turns"),
        ({"history_turns": 1.5}, "history_turns must be a whole number"),
        ({"max_length": 512}, "max_length must be greater than draft_tokens, not 512 with 512"),
        ({"temperature": -1}, "temperature"),
        ({"history": 2}, "did you mean 'history_turns'"),
    ],
    ids=str,
)
def test_wrong_settings(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        create_agent("paw", **options)


def test_it_needs_text_alone() -> None:
    assert needs_of(PaWAgent()) == frozenset({"generate"})
    assert PaWAgent().config.describe()["max_length"] == 2048 + 512
