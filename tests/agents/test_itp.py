"""ITP against scripted replies: depth, foresight, the copied action, and the depth head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comap.agents.base import Imagine
from comap.agents.heads import KHead, pseudo_label_k
from comap.agents.itp import ITPAgent, ITPConfig
from comap.agents.prompting import roll_out, together
from comap.errors import LanguageModelError, OptionError
from comap.facts import Delta, State
from comap.lm import Encode
from comap.worldmodel import Imagined, Prediction
from kits.scripted import converse_with, drive, view

REPLY = "Reflection: The safe is shut.\nThought: I go there.\nAction: go to safe 1"


def agent(**options: Any) -> ITPAgent:
    return ITPAgent(ITPConfig(**options))


def foreseen(text: str, action: str, *, solved: bool = False) -> Imagined:
    prediction = Prediction(text, source="scripted")
    return Imagined(text, State(), Delta(), solved, prediction, action, ("look", "open safe 1"))


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
    depth, first, first_imagine, second, second_imagine, act = talk.requests
    assert (depth.sampling.temperature, depth.sampling.max_new_tokens) == (0.8, 32)
    assert "0 to 5" in depth.messages[-1].content
    assert first.sampling.temperature == second.sampling.temperature == 0.0
    assert first_imagine.after == () and second_imagine.after == (talk.replies[2],)
    assert "The safe 1 is closed." in second.messages[-1].content  # drafts on the imagined turn
    prompt_text = act.messages[-1].content
    assert (
        "1. go to safe 1\n   The safe 1 is closed.\n2. open safe 1\n   It is empty." in prompt_text
    )
    assert "<foresight>" in prompt_text and "go to shelf 1" in prompt_text
    assert act.sampling.max_new_tokens == 256 and act.sampling.temperature == 0.7
    assert talk.decision.action == "go to safe 1"
    assert talk.decision.imagined is talk.replies[2]  # the rollout began with the same action
    notes = talk.decision.notes
    assert (notes["k"], notes["k_parsed"], notes["copied"]) == (2, True, "exact")
    assert memory["replies"] == {0: "Thought: I go there.\nAction: go to safe 1"}


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


def test_foresight_in_one_generation() -> None:
    itp = agent(foresight="generate", adapter="policy", foresight_adapter="world")
    talk = converse_with(itp, view(), ["2", "1. look\n   A desk.</foresight> and more", REPLY])
    assert talk.kinds == ["Generate"] * 3
    request = talk.requests[1]
    assert request.prefix == "<foresight>" and request.sampling.stop == ("</foresight>",)
    assert request.sampling.max_new_tokens == 256 and request.sampling.temperature == 0.0
    assert request.adapter == "world" and talk.requests[2].adapter == "policy"
    assert "next 2 steps" in request.messages[-1].content
    assert talk.decision.notes["foresight"] == "1. look\n   A desk."
    empty = converse_with(itp, view(), ["2", "<foresight>", REPLY])
    assert empty.decision.notes["foresight"] == "No step ahead was imagined."


@pytest.mark.parametrize(
    ("action", "expected_action", "copy_kind"),
    [
        ("go to safe 1", "go to safe 1", "exact"),
        ("Go  To Safe 1", "go to safe 1", "exact"),  # read as it is listed
        ("go to the safe 1", "go to safe 1", "fuzzy"),
        ("dance wildly with the penguins", "go to desk 1", "first"),
    ],
)
def test_copying_the_action(action: str, expected_action: str, copy_kind: str) -> None:
    talk = converse_with(agent(), view(), ["0", f"Thought: So.\nAction: {action}"])
    assert (talk.decision.action, talk.decision.notes["copied"]) == (expected_action, copy_kind)


def test_a_head_chooses_k() -> None:
    head = KHead([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0.1, 0.0, 0.0])
    itp = ITPAgent(ITPConfig(k_source="head", adapter="policy"), head)
    talk = converse_with(
        itp, view(), [[0.25, 0.5], "Action: look", "A.", "Action: look", "B.", REPLY]
    )
    request = talk.requests[0]
    assert isinstance(request, Encode) and request.prefix == "[K]" and request.adapter == "policy"
    assert talk.decision.notes["k"] == 2
    assert talk.decision.notes["k_logits"] == [0.1, 0.25, 0.5]
    capped = ITPAgent(ITPConfig(k_source="head", k_max=0), head)
    no_foresight = converse_with(capped, view(), [[0.25, 0.5], REPLY])
    assert no_foresight.decision.notes["k"] == 0  # what is seen now stands for what was foreseen
    assert no_foresight.decision.notes["foresight"] == view().history[-1].observation
    assert "2 steps ahead" in talk.requests[-1].messages[-1].content
    assert "0 steps ahead" in no_foresight.requests[-1].messages[-1].content
    with pytest.raises(LanguageModelError, match="2 numbers"):
        converse_with(itp, view(), [[0.5], REPLY])
    with pytest.raises(OptionError, match="K head"):
        ITPAgent(ITPConfig(k_source="head"))


def test_heads_are_saved_and_read(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="K heads are kept as safetensors")
    file = tmp_path / "folder" / "head.safetensors"
    head = KHead(np.arange(6.0).reshape(3, 2), [0.5, -1.0, 2.0])
    head.save(file)
    loaded = ITPAgent(k_head=str(file)).k_head
    assert loaded is not None and loaded.k_max == 2 and loaded.weight.dtype == np.float32
    assert (loaded.weight == head.weight).all() and (loaded.bias == head.bias).all()


def test_pseudo_labels() -> None:
    assert pseudo_label_k([-1.0]) == 0
    assert pseudo_label_k([-2.0, -1.9, -1.0, -0.9]) == 2  # gains -2, -2.1, -1.4, -1.5
    assert pseudo_label_k([-1.0, -0.5], cost=0.5) == 0  # the first of equals
    assert pseudo_label_k([-np.inf, -3.0], cost=0.0) == 1
    for wrong in ([], [float("nan")]):
        with pytest.raises(OptionError):
            pseudo_label_k(wrong)


def test_side_by_side_rollouts_share_batches() -> None:
    current_view = view()
    config = ITPConfig()
    talk = drive(
        together(
            [
                roll_out(current_view, config, 1),
                roll_out(current_view, config, 2),
                roll_out(current_view, config, 0),
            ]
        ),
        ["Action: look", "Action: look", "A.", "B.", "Action: open safe 1", "C."],
    )
    assert [[s.observation for s in path] for path in talk.result] == [["A."], ["B.", "C."], []]
    assert talk.kinds == ["Generate", "Generate", "Imagine", "Imagine", "Generate", "Imagine"]
