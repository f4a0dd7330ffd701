"""ReAct against scripted replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comap.agents.react import ReActAgent, ReActConfig
from comap.envs.conformance.transcripts import load

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")

LOOK = "Thought: Where am I?\nAction: look"


def test_one_call_a_step() -> None:
    talk = converse_with(ReActAgent(), view(), [LOOK])
    assert talk.purposes == ["draft"]
    assert (talk.decision.action, talk.decision.imagined) == ("look", None)
    assert talk.decision.notes == {"draft": "look", "draft_parsed": True, "decoding": "free"}


def test_thoughts_stay_in_the_conversation() -> None:
    memory: dict[str, Any] = {}
    agent = ReActAgent()
    converse_with(agent, view(memory=memory), [LOOK])
    second = view(("look", "A desk."), memory=memory)
    talk = converse_with(agent, second, ["Thought: Go.\nAction: go to desk 1"])
    assert talk.requests[0].messages[-2:] == (("assistant", LOOK), ("user", "A desk."))


def test_an_agent_carries_nothing_from_one_episode_to_another() -> None:
    agent = ReActAgent(ReActConfig(seed=4))
    first = converse_with(agent, view(), [LOOK])
    converse_with(agent, view(task="other"), ["Thought: Secret.\nAction: look"])
    again = converse_with(agent, view(), [LOOK])
    assert again.requests == first.requests


def test_what_cannot_be_read_is_sent_and_refused_by_the_environment() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(ReActAgent(), view(memory=memory), ["Hello.", "Hello again."])
    assert talk.decision.action == "Hello again"
    assert talk.decision.notes["draft_parsed"] is False
    assert memory["replies"] == {0: "Hello again."}
