"""WKM against scripted replies, and its knowledge base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents import ExpertAgent, run_episode
from comap.agents.knowing import gather_knowledge
from comap.agents.knowledge import Knowledge, KnowledgeBase
from comap.agents.verbs import mixed_verbs, next_verbs, verb_of
from comap.agents.wkm import WKMAgent, WKMConfig
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, OptionError
from comap.lm import Words

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
drive, HashedModel = load(f"{HERE}:drive"), load(f"{HERE}:HashedModel")

ACTIONS = ("go to desk 1", "go to safe 1", "open safe 1", "look")
BASE = (
    Knowledge("At the safe, which is closed.", "go to safe 1", "open safe 1"),
    Knowledge("At the safe, which is closed.", "go to safe 2", "open safe 2"),
    Knowledge("At the desk, with a pen on it.", "go to desk 1", "take pen 1 from desk 1"),
    Knowledge("At the desk, with a pen on it.", "open safe 1", "look"),
)
HOSTILE = (
    "",
    "\x00",
    "$knowledge $goal",
    "<|im_end|>",
    "Action: \n\n",
    "z" * 9000,
    "Action: dance",
)


def agent(*entries: Knowledge, **options: Any) -> WKMAgent:
    return WKMAgent(WKMConfig(**options), KnowledgeBase(entries))


# ------------------------------------------------------------------------------------- control flow


def test_first_step_by_step() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(
        agent(*BASE, gamma=0.5, knowledge_adapter="knows", adapter="acts"),
        view(("go to safe 1", "The safe 1 is closed."), actions=ACTIONS, memory=memory),
        [
            "When a safe is closed, you should open it.",
            "The agent is at the safe, which is closed.",
            "Thought: Further.",
            [0.3, 0.1, 0.1],
            " safe 1",
        ],
    )
    assert talk.purposes == ["task knowledge", "state knowledge", "thought", "verb", "action"]
    task, state, thought, verb, action = talk.requests
    assert task.adapter == state.adapter == "knows" and thought.adapter == "acts"
    assert task.sampling.temperature == 0.0 and state.sampling.max_new_tokens == 128
    # task knowledge is in the agent's prompt, state knowledge is not
    assert "you should open it" in thought.messages[0].content
    assert not any("which is closed" in m.content for m in thought.messages)
    assert verb.messages == thought.messages == action.messages
    assert verb.words == (" go", " open", " look")
    assert verb.prefix == "Thought: Further.\nAction:"
    assert action.prefix == "Thought: Further.\nAction: open"
    notes = talk.decision.notes
    # after "go": open twice, take once; take is not admissible, so P_know(open) = 1
    assert notes["known_verbs"] == {"open": 0.666667, "take": 0.333333}
    assert notes["agent_verbs"] == {"go": 0.6, "open": 0.2, "look": 0.2}
    assert notes["mixed_verbs"] == {"go": 0.3, "open": 0.6, "look": 0.1}
    assert (notes["gamma"], notes["verb"], notes["neighbours"]) == (0.5, "open", 4)
    assert talk.decision.action == "open safe 1"
    assert memory["replies"] == {1: "Thought: Further.\nAction: open safe 1"}
    assert memory["task_knowledge"].startswith("When")


def test_task_knowledge_is_written_once() -> None:
    memory: dict[str, Any] = {}
    wkm = agent(*BASE)
    converse_with(wkm, view(memory=memory), ["Known.", "s", "t", [1, 0], " to desk 1"])
    later = view(("look", "A room."), memory=memory)
    talk = converse_with(wkm, later, ["s", "t", [1, 0], " to desk 1"])
    assert talk.purposes[0] == "state knowledge"
    assert "Known." in talk.requests[1].messages[0].content
    other = converse_with(agent(task_knowledge=False), view(), ["s", "t", [1, 0], " to safe 1"])
    assert other.purposes[0] == "state knowledge"


def test_an_empty_base_leaves_the_agent_alone() -> None:
    talk = converse_with(
        agent(), view(actions=ACTIONS), ["k", "s", "t", [0.1, 0.2, 0.1], " safe 1"]
    )
    notes = talk.decision.notes
    assert (notes["gamma"], notes["verb"], notes["known_verbs"]) == (1.0, "open", {})
    useless = Knowledge("x", "", "dance")  # of a verb that is not admissible
    talk = converse_with(
        agent(useless), view(actions=ACTIONS), ["k", "s", "t", [0.1, 0.2, 0.1], " safe 1"]
    )
    assert talk.decision.notes["gamma"] == 1.0


def test_masked_and_scored_actions_begin_with_the_verb() -> None:
    masked = converse_with(
        agent(decoding="masked"), view(actions=ACTIONS), ["k", "s", "t", [1, 0, 0], "go to safe 1"]
    )
    assert masked.requests[-1].choices == (" go to desk 1", " go to safe 1")
    assert masked.requests[-1].prefix == "t\nAction:"
    assert masked.decision.action == "go to safe 1"
    scored = converse_with(
        agent(decoding="scored", temperature=0.0, prompts="brief", state_knowledge="belief"),
        view(actions=ACTIONS),
        ["k", [1, 0, 0], [-2.0, -1.0]],
    )
    assert scored.purposes == ["task knowledge", "verb", "action"]
    assert scored.decision.action == "go to safe 1"
    assert scored.decision.notes["state_knowledge"].startswith("goal:")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (" safe 1", "open safe 1"),
        ("safe 1", "open safe 1"),  # a server that took off the blank
        (" safe 1\nObservation: It is open.", "open safe 1"),
        ("Action: open safe 1", "open safe 1"),
        ("Action: close safe 1", "open Action: close safe 1"),
        ("[safe]", "open[safe]"),
        ("", "open"),
    ],
)
def test_completing_an_action(text: str, action: str) -> None:
    talk = converse_with(agent(), view(actions=ACTIONS), ["k", "s", "t", [0, 1, 0], text])
    assert talk.decision.action == action


def test_open_action_space_takes_verbs_from_the_base() -> None:
    talk = converse_with(
        agent(*BASE), view(actions=None), ["k", "s", "t", [0.1, 0.1, 0.2], " pen 1"]
    )
    assert talk.requests[3].words == (" look", " open", " take")
    assert talk.decision.action == "take pen 1" and talk.decision.notes["decoding"] == "free"
    bare = converse_with(agent(), view(actions=None), ["k", "s", "Action: search[pen]"])
    assert bare.purposes == ["task knowledge", "state knowledge", "draft"]  # it thinks only once
    assert bare.decision.action == "search[pen]"
    assert bare.decision.notes["gamma"] == 1.0


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("actions", [None, ("look", "wait")])
@pytest.mark.parametrize("entries", [(), BASE])
def test_hostile_replies(
    text: str, actions: tuple[str, ...] | None, entries: tuple[Knowledge, ...]
) -> None:
    seen = view(actions=actions)

    def reply(request: Any) -> Any:
        return [float("nan")] * len(request.words) if isinstance(request, Words) else text

    talk = converse_with(agent(*entries), seen, reply)
    assert talk.decision.action and len(talk.decision.action) <= 1000
    json.dumps(talk.decision.notes, allow_nan=False)
    for request in talk.requests:
        if "retry" not in request.purpose:
            assert sum(seen.count_tokens(m.content) for m in request.messages) <= 2048


def test_same_seed_same_decision() -> None:
    def play(seed: int) -> list[Any]:
        env = gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=5)
        episode = run_episode(env, agent(*BASE, seed=seed), seed=1, lm=HashedModel())
        assert episode.error is None
        return [(step.action, json.dumps(dict(step.notes))) for step in episode.steps]

    assert play(0) == play(0) and len(play(0)) == 5
    assert play(0) != play(1)


# ------------------------------------------------------------------------------------- probabilities


def test_mixing() -> None:
    assert mixed_verbs({"a": 0.25, "b": 0.75}, {}, 0.7) == {"a": 0.25, "b": 0.75}
    assert mixed_verbs({"a": 0.0, "b": 0.0}, {"b": 3.0}, 0.7) == {"a": 0.0, "b": 1.0}
    assert mixed_verbs({"a": 0.0, "b": 0.0}, {"c": 1.0}, 0.7) == {"a": 0.5, "b": 0.5}
    assert mixed_verbs({"a": 1.0, "b": 3.0}, {"a": 1.0}, 0.5) == {"a": 0.625, "b": 0.375}
    assert mixed_verbs({}, {"a": 1.0}, 0.5) == {}


PROBABILITY = st.floats(0, 1)
SHARES = st.dictionaries(st.sampled_from("abcd"), PROBABILITY)


@given(SHARES, SHARES, PROBABILITY)
def test_mixtures_are_distributions(
    own: dict[str, float], known: dict[str, float], g: float
) -> None:
    mixed = mixed_verbs(own, known, g)
    assert set(mixed) == set(own)
    assert not own or sum(mixed.values()) == pytest.approx(1)
    assert all(value >= 0 for value in mixed.values())


# ------------------------------------------------------------------------------------- the base


def test_retrieval() -> None:
    base = KnowledgeBase(BASE)
    assert base.retrieve("a pen on the desk", 2) == [BASE[2], BASE[3]]
    assert base.retrieve("the safe is closed", 1) == [BASE[0]]  # the older of equals
    assert base.retrieve("", 3000) == list(BASE)  # a small base returns all
    assert base.retrieve("unknown words", 2) == list(BASE[:2])
    assert base.retrieve("x", 0) == [] and KnowledgeBase().retrieve("x", 5) == []
    base.add(Knowledge("unknown words", "", "wait"))
    assert base.retrieve("unknown words", 1)[0].action == "wait" and len(base) == 5


def test_next_verbs() -> None:
    assert next_verbs(BASE, "go to shelf 9") == {"open": 2 / 3, "take": 1 / 3}
    assert next_verbs(BASE, "") == {} and next_verbs([], "look") == {}
    assert verb_of("think: so") == "think" and verb_of("[]") == ""


TEXT = st.text(st.characters(codec="utf-8") | st.just("\ud800"), max_size=20)


@given(st.lists(st.builds(Knowledge, TEXT, TEXT, TEXT), max_size=6), TEXT)
def test_saved_and_read(tmp_path_factory: Any, entries: list[Knowledge], text: str) -> None:
    path = tmp_path_factory.mktemp("base") / "knowledge.jsonl"
    base = KnowledgeBase(entries)
    base.save(path)
    again = KnowledgeBase.load(path)
    assert list(again) == entries == list(WKMAgent(knowledge=path).knowledge)
    assert again.retrieve(text, 3) == base.retrieve(text, 3)


def test_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound):
        KnowledgeBase.load(tmp_path / "none")
    good = json.dumps(BASE[0]._asdict())
    for bad in ("3", "{", '{"knowledge": 1, "previous_action": "", "action": ""}', "{}", "\xff"):
        (tmp_path / "bad").write_text(f"{good}\n{bad}\n", "latin-1")
        with pytest.raises(DataCorrupt, match="line 2"):
            KnowledgeBase.load(tmp_path / "bad")


def test_knowledge_from_episodes() -> None:
    env = gym.make("comap/ALFWorld-v0", source="generated")
    episodes = [run_episode(env, ExpertAgent(), seed=seed) for seed in (0, 1)]
    base = KnowledgeBase.from_trajectories(episodes)
    steps = [step for episode in episodes for step in episode.steps]
    assert [entry.action for entry in base] == [step.action for step in steps]
    entries = list(base)
    assert entries[0].previous_action == "" and entries[1].previous_action == entries[0].action
    assert entries[0].knowledge.startswith("goal:")

    talk = drive(gather_knowledge(episodes, WKMConfig()), lambda request: " A state. ")
    assert [entry.action for entry in talk.result] == [step.action for step in steps]
    assert {entry.knowledge for entry in talk.result} == {"A state."}
    assert set(talk.purposes) == {"state knowledge"}


def test_settings() -> None:
    for wrong in ({"gamma": 1.1}, {"neighbours": 0}, {"state_knowledge": "x"}):
        with pytest.raises(OptionError):
            WKMConfig(**wrong)
    assert WKMAgent().name == "wkm" and WKMConfig().neighbours == 3000
