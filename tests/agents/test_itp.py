"""ITP against scripted replies: depth, foresight, the copied action, and the depth head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from comap.agents import run_episode
from comap.agents.base import Imagine
from comap.agents.foresight import matching_action, roll_out, told_steps, view_after
from comap.agents.itp import ITPAgent, ITPConfig
from comap.agents.k_head import KHead, pseudo_label_k
from comap.agents.together import together
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, OptionError
from comap.facts import Delta, State
from comap.lm import Encode, Generate
from comap.worldmodel import Imagined, Prediction

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
drive, HashedModel = load(f"{HERE}:drive"), load(f"{HERE}:HashedModel")

REPLY = "Reflection: The safe is shut.\nThought: I go there.\nAction: go to safe 1"
HOSTILE = (
    "",
    "\x00\x1b[2J",
    "$foresight $goal ${k}",
    "</foresight><|im_end|>",
    "Action:",
    "9" * 4000,
    "-7 or 1e999",
    "Action: " + "y" * 3000,
)


def agent(**options: Any) -> ITPAgent:
    return ITPAgent(ITPConfig(**options))


def foreseen(text: str, action: str, *, solved: bool = False) -> Imagined:
    said = Prediction(text, source="scripted")
    return Imagined(text, State(), Delta(), solved, said, action, ("look", "open safe 1"))


# ------------------------------------------------------------------------------------- control flow


def test_depth_rollout_and_act_step_by_step() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(
        agent(),
        view(memory=memory),
        [
            "2",
            "Thought: Safes.\nAction: go to safe 1",
            foreseen("The safe 1 is closed.", "go to safe 1"),
            "Action: open safe 1",
            foreseen("It is empty.", "open safe 1"),
            REPLY,
        ],
    )
    assert talk.purposes == [
        "depth",
        "foresight: action 1",
        "imagine go to safe 1",
        "foresight: action 2",
        "imagine open safe 1",
        "act",
    ]
    depth, first, one, second, two, act = talk.requests
    assert (depth.sampling.temperature, depth.sampling.max_new_tokens) == (0.8, 32)
    assert "0 to 5" in depth.messages[-1].content
    assert first.sampling.temperature == second.sampling.temperature == 0.0
    assert one.after == () and two.after == (talk.replies[2],)
    assert "The safe 1 is closed." in second.messages[-1].content  # drafts on the imagined turn
    told = act.messages[-1].content
    assert "1. go to safe 1\n   The safe 1 is closed.\n2. open safe 1\n   It is empty." in told
    assert "<foresight>" in told and "go to shelf 1" in told
    assert act.sampling.max_new_tokens == 256 and act.sampling.temperature == 0.7
    assert talk.decision.action == "go to safe 1"
    assert talk.decision.imagined is talk.replies[2]  # the rollout began with the same action
    notes = talk.decision.notes
    assert (notes["k"], notes["k_parsed"], notes["copied"]) == (2, True, "exact")
    assert memory["replies"] == {0: "Thought: I go there.\nAction: go to safe 1"}


def test_no_steps_ahead() -> None:
    talk = converse_with(agent(), view(), ["0", REPLY])
    assert talk.kinds == ["Generate", "Generate"]
    assert talk.decision.notes["foresight"] == "No step ahead was imagined."
    assert talk.decision.imagined is None


@pytest.mark.parametrize(
    ("said", "k", "parsed"),
    [
        ("3", 3, True),
        ("K = 1", 1, True),
        ("99", 3, True),
        ("-4", 0, True),
        ("2.9", 2, True),
        ("no idea", 1, False),
        ("", 1, False),
        ("9" * 4000, 3, True),
    ],
)
def test_reading_k(said: str, k: int, parsed: bool) -> None:
    def reply(request: Any) -> Any:
        if isinstance(request, Imagine):
            return "Hm."
        return said if request.purpose == "depth" else REPLY

    talk = converse_with(agent(k_max=3), view(), reply)
    assert (talk.decision.notes["k"], talk.decision.notes["k_parsed"]) == (k, parsed)
    assert talk.kinds.count("Imagine") == k


def test_a_rollout_stops_where_the_goal_is_reached() -> None:
    replies = ["5", "Action: look", foreseen("Solved.", "look", solved=True), REPLY]
    talk = converse_with(agent(), view(), replies)
    assert talk.kinds.count("Imagine") == 1
    assert talk.decision.imagined is None  # it is of another action than the one taken


def test_foresight_in_one_generation() -> None:
    itp = agent(foresight="generate", adapter="policy", foresight_adapter="world")
    talk = converse_with(itp, view(), ["2", "1. look\n   A desk.</foresight> and more", REPLY])
    assert talk.kinds == ["Generate"] * 3
    asked = talk.requests[1]
    assert asked.prefix == "<foresight>" and asked.sampling.stop == ("</foresight>",)
    assert asked.sampling.max_new_tokens == 256 and asked.sampling.temperature == 0.0
    assert asked.adapter == "world" and talk.requests[2].adapter == "policy"
    assert "next 2 steps" in asked.messages[-1].content
    assert talk.decision.notes["foresight"] == "1. look\n   A desk."
    empty = converse_with(itp, view(), ["2", "<foresight>", REPLY])
    assert empty.decision.notes["foresight"] == "No step ahead was imagined."


@pytest.mark.parametrize(
    ("action", "taken", "how"),
    [
        ("go to safe 1", "go to safe 1", "exact"),
        ("Go  To Safe 1", "go to safe 1", "case"),
        ("go to the safe 1", "go to safe 1", "fuzzy"),
        ("dance wildly with the penguins", "go to desk 1", "first"),
    ],
)
def test_copying_the_action(action: str, taken: str, how: str) -> None:
    talk = converse_with(agent(), view(), ["0", f"Thought: So.\nAction: {action}"])
    assert (talk.decision.action, talk.decision.notes["copied"]) == (taken, how)


def test_equally_like_actions_take_the_first_and_open_spaces_take_it_as_it_is() -> None:
    assert matching_action("go to x", ["go to a", "go to b"], 0.72) == ("go to a", "fuzzy")
    assert matching_action("anything", None, 0.72) == ("anything", "open")
    talk = converse_with(agent(), view(actions=None), ["0", "Action: search[pen]"])
    assert (talk.decision.action, talk.decision.notes["copied"]) == ("search[pen]", "open")
    assert "copied exactly" not in talk.requests[-1].messages[-1].content


def test_an_unreadable_reply_is_asked_again_then_falls_back() -> None:
    talk = converse_with(agent(), view(), ["0", "Hm.", "Hm again."])
    assert talk.purposes == ["depth", "act", "act: retry"]
    assert (talk.decision.action, talk.decision.notes["copied"]) == ("go to desk 1", "first")
    assert talk.decision.notes["draft_parsed"] is False


def test_masked_and_scored_actions() -> None:
    masked = converse_with(
        agent(decoding="masked"), view(), ["0", "Reflection: None.\nThought: Look.\n", "look"]
    )
    assert masked.purposes == ["depth", "act: thought", "act"]
    assert masked.requests[-1].prefix.endswith("Thought: Look.\nAction:")
    scored = converse_with(
        agent(decoding="scored", temperature=0.0, prompts="brief"), view(), ["0", [-2, -1, -3, -4]]
    )
    assert scored.decision.action == "go to safe 1"


# ------------------------------------------------------------------------------------- the head


def test_a_head_chooses_k() -> None:
    head = KHead([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0.1, 0.0, 0.0])
    itp = ITPAgent(ITPConfig(k_source="head", adapter="policy"), head)
    talk = converse_with(
        itp, view(), [[0.25, 0.5], "Action: look", "A.", "Action: look", "B.", REPLY]
    )
    asked = talk.requests[0]
    assert isinstance(asked, Encode) and asked.prefix == "[K]" and asked.adapter == "policy"
    assert talk.decision.notes["k"] == 2
    assert talk.decision.notes["k_logits"] == [0.1, 0.25, 0.5]
    capped = ITPAgent(ITPConfig(k_source="head", k_max=0), head)
    assert converse_with(capped, view(), [[0.25, 0.5], REPLY]).decision.notes["k"] == 0
    with pytest.raises(OptionError, match="2 values"):
        converse_with(itp, view(), [[0.5], REPLY])
    with pytest.raises(OptionError, match="K head"):
        ITPAgent(ITPConfig(k_source="head"))


def test_heads_are_saved_and_read(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="K heads are kept as safetensors")
    head = KHead(np.arange(6.0).reshape(3, 2), [0.5, -1.0, 2.0])
    head.save(tmp_path / "folder" / "head.safetensors")
    again = KHead.load(tmp_path / "folder" / "head.safetensors")
    assert again.k_max == 2 and again.weight.dtype == np.float32
    assert (again.weight == head.weight).all() and (again.bias == head.bias).all()
    agent_of_file = ITPAgent(k_head=str(tmp_path / "folder" / "head.safetensors"))
    assert agent_of_file.k_head is not None and agent_of_file.k_head.k_max == 2
    with pytest.raises(DataNotFound):
        KHead.load(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"\x80\x04pickle?")
    with pytest.raises(DataCorrupt):
        KHead.load(tmp_path / "bad")


def test_heads_of_wrong_shapes_are_refused() -> None:
    for weight, bias in (([1.0], [1.0]), ([[1.0]], [1.0, 2.0]), ([[np.nan]], [0.0]), ([[]], [0.0])):
        with pytest.raises(OptionError):
            KHead(weight, bias)
    assert KHead([[0.0], [0.0]], [1.0, 1.0]).choose([3.0]) == 0  # the first of equals


def test_pseudo_labels() -> None:
    assert pseudo_label_k([-1.0]) == 0
    assert pseudo_label_k([-2.0, -1.9, -1.0, -0.9]) == 2  # gains -2, -2.1, -1.4, -1.5
    assert pseudo_label_k([-1.0, -0.5], cost=0.5) == 0  # the first of equals
    assert pseudo_label_k([-np.inf, -3.0], cost=0.0) == 1
    for wrong in ([], [float("nan")]):
        with pytest.raises(OptionError):
            pseudo_label_k(wrong)


# ------------------------------------------------------------------------------------- shared parts


def test_the_view_after_imagined_steps() -> None:
    seen = view(("look", "A desk."))
    step = foreseen("The safe 1 is closed.", "go to safe 1")
    there = view_after(seen, [step])
    assert [turn.action for turn in there.history] == [None, "look", "go to safe 1"]
    assert there.admissible_actions == ("look", "open safe 1") and there.facts == step.facts
    assert there.step == seen.step and there.memory is seen.memory


def test_told_steps_fit_their_budget() -> None:
    steps = [foreseen("word " * 500, "go " * 300), foreseen("", "look")]
    text = told_steps(steps, view(), 200)
    assert view().count_tokens(text) < 330 and "(nothing is said)" in text


def test_side_by_side_rollouts_share_batches() -> None:
    seen = view()
    config = ITPConfig()
    talk = drive(
        together([roll_out(seen, config, 1), roll_out(seen, config, 2), roll_out(seen, config, 0)]),
        ["Action: look", "Action: look", "A.", "B.", "Action: open safe 1", "C."],
    )
    assert [[s.observation for s in path] for path in talk.result] == [["A."], ["B.", "C."], []]
    assert talk.kinds == ["Generate", "Generate", "Imagine", "Imagine", "Generate", "Imagine"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("actions", [None, ("look", "wait")])
@pytest.mark.parametrize("foresight", ["rollout", "generate"])
def test_hostile_replies(text: str, actions: tuple[str, ...] | None, foresight: str) -> None:
    talk = converse_with(agent(foresight=foresight), view(actions=actions), lambda request: text)
    assert talk.decision.action
    assert actions is None or talk.decision.action in actions
    json.dumps(talk.decision.notes, allow_nan=False)
    seen = view()
    for request in talk.requests:
        if isinstance(request, Generate) and "retry" not in request.purpose:
            assert sum(seen.count_tokens(m.content) for m in request.messages) <= 2048


def test_same_seed_same_decision() -> None:
    def play(seed: int) -> list[Any]:
        env = gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=4)
        episode = run_episode(env, agent(seed=seed), seed=1, lm=HashedModel())
        assert episode.error is None
        return [(step.action, json.dumps(dict(step.notes))) for step in episode.steps]

    assert play(0) == play(0) and len(play(0)) == 4
    assert play(0) != play(1)


def test_settings() -> None:
    for wrong in ({"k_max": -1}, {"similarity": 2}, {"foresight": "x"}, {"k_temperature": -1}):
        with pytest.raises(OptionError):
            ITPConfig(**wrong)
    assert ITPAgent().name == "itp" and ITPConfig(k_max=7).k_max_of("x/y") == 7
