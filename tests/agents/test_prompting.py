"""Prompts: what is in them, and what stays in them when there is too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comap
from comap.agents.acting import Draft
from comap.agents.asking import ask_about
from comap.agents.base import estimate_tokens
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.config import AgentConfig
from comap.agents.parsing import parse_action
from comap.agents.prompting import (
    ask_on,
    converse,
    example_of,
    fill,
    instructions,
    load_template,
    situation,
)
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.facts import State
from comap.lm import Message
from comap.trajectory import Turn

HERE = Path(__file__).with_name("scripted.py")
view = load(f"{HERE}:view")
PROMPTS = Path(comap.__file__).parent / "agents" / "prompts"


def size_of(messages: tuple[Message, ...]) -> int:
    return sum(estimate_tokens(message.content) + 8 for message in messages)


@pytest.mark.parametrize("path", sorted(PROMPTS.rglob("*.txt")), ids=lambda path: path.name)
def test_each_template_is_read(path: Path) -> None:
    messages = load_template(path.parent.name, path.stem)
    assert messages and all(role in ("system", "user", "assistant") for role, _ in messages)
    assert all(text.strip() and text == text.strip("\n") for _, text in messages)


def test_each_style_has_the_same_prompts() -> None:
    names = [{path.name for path in (PROMPTS / s).glob("*.txt")} for s in ("standard", "brief")]
    mine = {"act.txt", "choose.txt", "imagine.txt", "notes.txt", "reflect.txt", "review.txt"}
    assert mine <= names[0] and mine <= names[1]


@pytest.mark.parametrize(("style", "name"), [("none", "act"), ("standard", "../act"), ("", "x")])
def test_there_is_no_other_prompt(style: str, name: str) -> None:
    with pytest.raises(OptionError, match="there is no prompt"):
        load_template(style, name)


def test_reflect_asks_for_its_four_lines() -> None:
    (message,) = fill("standard", "reflect", draft="d", action="a", future="f")
    lines = [line.partition(":")[0] for line in message.content.splitlines()[-4:]]
    assert lines == ["Reflection", "Decision", "Final Action", "Revise Probability"]


def test_slots_are_filled_once_and_must_be_given() -> None:
    (message,) = fill("brief", "reflect", action="$future ${action}", future="[system]\n$action")
    assert message == Message("user", "draft: $future ${action}\nnext: [system]\n$action")
    with pytest.raises(KeyError):
        fill("brief", "reflect", action="a")


def test_the_worked_example_was_really_played() -> None:
    env = gym.make("comap/ALFWorld-v0", split="train", source="generated")
    told = [message.content for message in example_of("comap/ALFWorld-v0")]
    observation, info = env.reset(options={"task": "generated/train/normal/0-000052"})
    for said, reply in zip(told[::2], told[1::2], strict=True):
        assert said == observation
        action = parse_action(reply)
        assert action in info["admissible_actions"] and reply.startswith("Thought: ")
        observation, _, terminated, _, info = env.step(action)
    assert terminated and info["success"] and 4 <= len(told) // 2 <= 6
    assert [m.role for m in example_of("comap/ALFWorld-v0")] == ["user", "assistant"] * 6


def test_environments_without_words_of_their_own() -> None:
    assert instructions("other/World-v0") == instructions("third/World-v9")
    assert instructions("comap/ALFWorld-v0") != instructions("other/World-v0")
    assert example_of("other/World-v0") == ()
    assert example_of("x/../ALFWorld-v0.example") == ()


def test_a_standard_conversation() -> None:
    seen = view(("look", "A desk."), ("open desk 1", "Nothing happens."))
    config = AgentConfig(examples=0)
    system, *rest = converse(seen, config, {1: "Thought: x\nAction: open desk 1"}, system="Mind.")
    assert system.role == "system" and "Action: <one action>" in system.content
    assert system.content.index("Mind.") > system.content.index("robot")
    assert rest == [
        ("user", f"{seen.history[0].observation}\n{seen.goal}"),
        ("assistant", "Action: look"),
        ("user", "A desk."),
        ("assistant", "Thought: x\nAction: open desk 1"),
        ("user", "Nothing happens."),
    ]
    assert len(converse(seen, AgentConfig())) == len(rest) + 1 + 12
    told = view(observation=f"A room. {seen.goal}")
    assert converse(told, config)[-1].content == f"A room. {seen.goal}"


def test_a_brief_one() -> None:
    seen = view(("look", "A desk."), observation="A room.", goal="Sit.")
    (message,) = converse(seen, AgentConfig(prompts="brief"), system="note")
    assert message == ("user", "note\nA room.\nSit.\n> look\nA desk.")


def test_belief_and_history() -> None:
    seen = view(
        ("look", "A desk."), ("wait", "Hm."), facts=State(frozenset({("at", "agent", "x")}))
    )
    belief = converse(seen, AgentConfig(state_text="belief", prompts="brief"))[0].content
    assert "goal:" in belief and "A desk." not in belief
    assert len(converse(seen, AgentConfig(state_text="belief"))) == 2  # no example, no turns
    last = situation(seen, AgentConfig(history_turns=1))
    assert "look" not in last and "> wait\nHm." in last
    assert "> wait" not in situation(seen, AgentConfig(history_turns=0))
    more = situation(seen, AgentConfig(), after=[Turn("go", "There.")])
    assert more.endswith("> go\nThere.")


def test_a_question_joins_the_last_message() -> None:
    asked = ask_about(view(), AgentConfig(), "What now?", 32)
    assert asked[-1].content.endswith("\n\nWhat now?")
    assert asked[:-1] == converse(view(), AgentConfig())[:-1]
    assert ask_on([Message("assistant", "Yes.")], "No?") == (
        ("assistant", "Yes."),
        ("user", "No?"),
    )


texts = st.text(max_size=3000)
histories = st.lists(
    st.tuples(st.text(min_size=1, max_size=60), st.text(max_size=900)), max_size=25
)


def check_kept(messages: tuple[Message, ...], seen: Any, longest: int, reserve: int) -> None:
    """Check that a conversation fits, and tells goal and present, if only their beginnings."""
    assert size_of(messages) + reserve <= longest
    told = "\n".join(message.content for message in messages)
    assert seen.goal[:40] in told
    assert seen.history[-1].observation[:20] in messages[-1].content


@given(
    turns=histories,
    first=texts,
    last=texts,
    goal=st.text(min_size=1, max_size=400),
    style=st.sampled_from([("standard", 1400), ("standard", 2048), ("brief", 512)]),
)
@settings(max_examples=120, deadline=None)
def test_cutting_never_drops_the_goal_or_the_present(
    turns: list[tuple[str, str]], first: str, last: str, goal: str, style: tuple[str, int]
) -> None:
    prompts, longest = style
    seen = view(*turns, ("look", last), observation=first, goal=f"The goal: {goal}")
    options: dict[str, Any] = {"prompts": prompts, "max_length": longest}
    check_kept(converse(seen, AgentConfig(**options)), seen, longest, 64)
    agent = CoMapAgent(CoMapConfig(**options, reflect_tokens=64))
    long = Draft(first, "look", True, "free")
    asked = agent.question(seen, {}, long, last)
    check_kept(asked, seen, longest, 64 + 16)


@given(count=st.integers(0, 80))
@settings(max_examples=30, deadline=None)
def test_what_is_cut_is_the_oldest(count: int) -> None:
    turns = [(f"act {n}", f"seen {n} " + "x" * 60) for n in range(count)]
    _, _, *told = converse(view(*turns), AgentConfig(examples=0))
    shown = [message.content for message in told if message.role == "assistant"]
    assert shown == [f"Action: act {n}" for n in range(count - len(shown), count)]
    assert len(shown) == count or len(shown) > 10


def test_an_example_makes_room_for_the_episode() -> None:
    assert len(converse(view(), AgentConfig(max_length=1400))) == 14
    assert len(converse(view(), AgentConfig(max_length=1000))) == 2
    assert len(ask_about(view(), AgentConfig(max_length=1400), "word " * 200, 64)) == 2


def test_an_overlong_reply_is_shown_as_its_action() -> None:
    seen = view(("look", "A desk."), ("wait", "Hm."))
    told = converse(seen, AgentConfig(), {0: "word " * 9000, 1: "Thought: y\nAction: wait"})
    assert told[-4].content == "Action: look"
    assert told[-2].content == "Thought: y\nAction: wait"
