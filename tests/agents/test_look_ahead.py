"""Imagine-and-Act and WebEvolver's look-ahead against scripted replies."""

from __future__ import annotations

from typing import Any

import pytest

from comap.agents.base import Imagine
from comap.agents.imagine_and_act import ImagineAndActAgent, ImagineAndActConfig
from comap.agents.webevolver import WebEvolverAgent, WebEvolverConfig
from kits.scripted import converse_with, view

DESK = "Thought: Desks have pens.\nAction: go to desk 1"
SAFE = "Thought: No, the safe.\nAction: go to safe 1"


def agent(**options: Any) -> ImagineAndActAgent:
    return ImagineAndActAgent(ImagineAndActConfig(**options))


def test_three_calls_to_one_model() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(
        agent(max_length=4096),
        view(memory=memory),
        [DESK, "Observation: You see a pen 1.", SAFE],
    )
    assert talk.purposes == ["propose", "imagine", "choose"]
    assert talk.kinds == ["Generate"] * 3  # no world model is asked
    propose, imagine, choose = talk.requests
    assert [r.sampling.max_new_tokens for r in talk.requests] == [64, 192, 64]
    for request in (imagine, choose):
        assert request.messages[:-1] == propose.messages[:-1]
        assert request.messages[-1].content.startswith(propose.messages[-1].content)
    assert "go to desk 1" in imagine.messages[-1].content
    assert DESK in choose.messages[-1].content
    assert "You see a pen 1." in choose.messages[-1].content
    assert "Observation:" not in choose.messages[-1].content
    assert (talk.decision.action, talk.decision.imagined) == ("go to safe 1", None)
    assert talk.decision.notes == {
        "proposal": "go to desk 1",
        "proposal_parsed": True,
        "imagined": "You see a pen 1.",
        "choice": "go to safe 1",
        "choice_parsed": True,
        "changed": True,
        "decoding": "free",
    }
    assert memory["replies"] == {0: SAFE}


def test_a_choice_that_cannot_be_read_keeps_the_proposal() -> None:
    memory: dict[str, Any] = {}
    replies = [DESK, "A pen.", "Well...", "Hm."]
    talk = converse_with(agent(), view(memory=memory), replies)
    assert talk.purposes == ["propose", "imagine", "choose", "choose: retry"]
    assert talk.decision.action == "go to desk 1" and memory["replies"] == {0: DESK}
    notes = talk.decision.notes
    assert (notes["choice_parsed"], notes["choice"], notes["changed"]) == (False, "Hm", False)


def test_a_proposal_that_cannot_be_read_is_sent_as_it_is() -> None:
    talk = converse_with(agent(), view(), ["I would rather not.", "No."])
    assert talk.purposes == ["propose", "propose: retry"]
    assert talk.decision.action == "No" and talk.decision.notes["proposal_parsed"] is False
    assert talk.decision.notes["imagined"] is None


@pytest.mark.parametrize("decoding", ["masked", "scored"])
def test_decoding_is_obeyed_by_both_choices(decoding: str) -> None:
    actor = agent(decoding=decoding, prompts="brief", temperature=0.0)
    first: Any = "go to desk 1" if decoding == "masked" else (-1, -2, -3, -4)
    last: Any = "go to shelf 1" if decoding == "masked" else (-4, -2, -1, -4)
    talk = converse_with(actor, view(), [first, "A pen.", last])
    assert talk.decision.action == "go to shelf 1"
    assert talk.decision.notes["decoding"] == decoding
    assert talk.requests[1].messages[-1].content.endswith("imagine: go to desk 1")
    assert talk.requests[2].messages[-1].content.endswith("draft: go to desk 1\nnext: A pen.")


# WebEvolver.

TWO = (("look", "A desk."), ("go to desk 1", "A pen."))


def webevolver(**options: Any) -> WebEvolverAgent:
    return WebEvolverAgent(WebEvolverConfig(**options))


def draft(action: str) -> str:
    return f"Thought: So.\nAction: {action}"


def test_three_candidates_step_by_step() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(
        webevolver(adapter="acts", critic_adapter="judges"),
        view(*TWO, memory=memory),
        [
            draft("look"),
            draft("go to safe 1"),
            draft("go to shelf 1"),
            "A desk.",
            "The safe 1 is closed.",
            "A book.",
            " A desk is there.\nScore: 0.2",
            " 1 of 2 safes.\nScore: 0.9 since it is the goal",
            "\nScore: 0.9",
        ],
    )
    assert talk.purposes == [
        "draft",
        "candidate 2",
        "candidate 3",
        "imagine look",
        "imagine go to safe 1",
        "imagine go to shelf 1",
        "critic 1",
        "critic 2",
        "critic 3",
    ]
    first, second, third = talk.requests[:3]
    assert first.sampling.temperature == 0.0
    assert second.sampling.temperature == third.sampling.temperature == 1.0
    assert second.messages[-1].content.endswith("different from look.")
    assert third.messages[-1].content.endswith("different from look and go to safe 1.")
    critic = talk.requests[7]
    assert critic.prefix == "Thought:" and critic.adapter == "judges" and first.adapter == "acts"
    assert critic.sampling.temperature == 0.0 and critic.sampling.max_new_tokens == 128
    prompt = critic.messages[-1].content
    assert (
        "go to safe 1" in prompt and "The safe 1 is closed." in prompt and "A book." not in prompt
    )
    assert talk.decision.action == "go to safe 1"  # the first of the best
    assert talk.decision.imagined is talk.replies[4]
    assert [
        (c["action"], c["score"], c["score_parsed"]) for c in talk.decision.notes["candidates"]
    ] == [("look", 0.2, True), ("go to safe 1", 0.9, True), ("go to shelf 1", 0.9, True)]
    assert memory["replies"] == {2: draft("go to safe 1")}


def test_two_steps_of_simulation() -> None:
    talk = converse_with(
        webevolver(depth=2, candidates=2),
        view(*TWO),
        [
            draft("look"),
            draft("go to safe 1"),
            "A desk.",
            "A safe.",
            draft("wait"),
            draft("open safe 1"),
            "Hm.",
            "A pen.",
            "Score: 0",
            "Score: 1",
        ],
    )
    assert talk.purposes[4:8] == [
        "simulation 1: action 2",
        "simulation 2: action 2",
        "imagine wait",
        "imagine open safe 1",
    ]
    later = talk.requests[7]
    assert later.after == (talk.replies[3],)
    assert talk.requests[5].messages[-1].content == "A safe."  # drafted on the imagined turn
    assert talk.requests[5].sampling.temperature == 0.7
    critic_prompt = talk.requests[9].messages[-1].content
    assert critic_prompt.endswith("output of the action: Step 1: A safe..\n\nStep 2: A pen..")
    assert talk.decision.action == "go to safe 1"
    assert talk.decision.notes["candidates"][1]["future"] == [
        ["go to safe 1", "A safe."],
        ["open safe 1", "A pen."],
    ]


def test_the_first_steps_are_those_of_react() -> None:
    talk = converse_with(webevolver(), view(TWO[0]), [draft("look")])
    assert talk.decision.action == "look" and talk.requests[0].sampling.temperature == 0.7


def test_repeated_candidates_are_left_out() -> None:
    talk = converse_with(
        webevolver(),
        view(*TWO),
        [draft("look"), draft("Look."), draft("wait")]
        + ["A.", "B.", "Score: 0.1", "0.9, but unlabelled"],
    )
    assert [c["action"] for c in talk.decision.notes["candidates"]] == ["look", "wait"]
    assert talk.decision.notes["candidates"][1]["score_parsed"] is False
    assert talk.decision.action == "look"
    alone = converse_with(webevolver(), view(*TWO), [draft("look")] * 3)
    assert alone.decision.action == "look" and alone.decision.notes["candidates"] == []
    assert "Imagine" not in alone.kinds


def test_what_ends_an_episode_is_scored_without_simulation() -> None:
    talk = converse_with(
        webevolver(candidates=2, depth=2),
        view(*TWO, actions=None, env_id="comap/Web-v0"),
        [
            draft("stop [a pen]"),
            draft("click [7]"),
            "A shop.",
            draft("stop [N/A]"),  # ends the simulation
            "Score: 0.9",
            "Score: 0.2",
        ],
    )
    assert talk.purposes[2:4] == ["imagine click [7]", "simulation 2: action 2"]
    assert "(nothing is simulated)" in talk.requests[4].messages[-1].content
    assert (talk.decision.action, talk.decision.imagined) == ("stop [a pen]", None)
    assert [c["future"] for c in talk.decision.notes["candidates"]] == [
        [],
        [["click [7]", "A shop."]],
    ]


def test_restart_leads_to_the_first_real_page() -> None:
    current_view = view(*TWO, observation="URL home", actions=None, env_id="comap/Web-v0")
    talk = converse_with(
        webevolver(candidates=2),
        current_view,
        [draft("restart"), draft("goback"), "asked of nobody", "B.", "Score: 1", "Score: 0"],
    )
    restart, back = (request for request in talk.requests if isinstance(request, Imagine))
    assert (restart.observation, back.observation) == ("URL home", None)


def test_without_simulation_the_critic_scores_actions() -> None:
    talk = converse_with(
        webevolver(candidates=2, depth=0),
        view(*TWO),
        [draft("look"), draft("wait"), "Score: 0.1", "Score: 0.2"],
    )
    assert "Imagine" not in talk.kinds and talk.decision.action == "wait"


def test_masked_candidates_leave_earlier_ones_out() -> None:
    masked = converse_with(
        webevolver(decoding="masked", prompts="brief"),
        view(*TWO, actions=("look", "wait")),
        ["look", "wait", "A.", "B.", "0.1", "0.3"],
    )
    assert masked.requests[1].choices == (" wait",)
    assert masked.decision.action == "wait"  # there was no third action to try
    scored = converse_with(
        webevolver(decoding="scored", temperature=0.0, candidate_temperature=0.0, prompts="brief"),
        view(*TWO),
        [[-1, -2, -3, -4], [-3, -1, -2], [-1, -2], "A.", "B.", "C.", "0", "0", "1"],
    )
    assert [c["action"] for c in scored.decision.notes["candidates"]] == [
        "go to desk 1",
        "go to shelf 1",
        "go to safe 1",
    ]
