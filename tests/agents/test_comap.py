"""CoMap's agent, step by step against scripted replies: what it asks, in which order, and what for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comap.agents import check_capabilities, create_agent
from comap.agents.base import Imagine
from comap.agents.comap import CoMapAgent, CoMapConfig, agreement, world_state_gate
from comap.agents.heads import RefinementHead
from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.facts import Delta, Fact
from comap.lm import Completion, Encode, Generate, NextWord
from kits.scripted import HashedModel, converse_with, view

DRAFT = "Thought: The safe is far.\nAction: go to desk 1"
SAFE = (
    "Reflection: The pen goes into the safe.\nDecision: REVISE\n"
    "Final Action: go to safe 1\nRevise Probability: 0.9"
)
DESK = "You arrive at desk 1. On the desk 1, you see a pen 1."
SURE, UNSURE = [(-0.1, -0.2)], [(-2.0, -2.0)]


def agent(head: RefinementHead | None = None, **options: Any) -> CoMapAgent:
    return CoMapAgent(CoMapConfig(**{"p_source": "verbal", **options}), head)


def test_a_step_is_draft_look_ahead_reflect_and_gate() -> None:
    talk = converse_with(agent(max_length=4096), view(), [DRAFT, DESK, SAFE, SURE])
    assert talk.kinds == ["Generate", "Imagine", "Generate", "Score"]
    assert talk.purposes == ["draft", "imagine go to desk 1", "reflect", "reflect: confidence"]
    draft, imagine, reflect, score = talk.requests
    assert imagine == Imagine("go to desk 1")
    assert (draft.sampling.max_new_tokens, reflect.sampling.max_new_tokens) == (64, 128)
    for request in (draft, reflect):
        assert (request.sampling.temperature, request.sampling.top_p) == (0.7, 0.9)
    *before, question = reflect.messages
    assert tuple(before) == draft.messages[:-1]
    assert question.content.startswith(draft.messages[-1].content)
    for phrase in (DRAFT, DESK, "Final Action:", "Revise Probability:", "Decision: KEEP or REVISE"):
        assert phrase in question.content
    assert score.completions == (" go to safe 1",) and not score.ended
    assert score.prefix == SAFE.partition(" go to safe 1")[0]
    assert score.messages == reflect.messages
    assert talk.decision.action == "go to safe 1"
    assert talk.decision.imagined is None  # what was predicted is of the draft


def test_notes_tell_the_whole_decision() -> None:
    talk = converse_with(agent(), view(), [DRAFT, DESK, SAFE, SURE])
    notes = talk.decision.notes
    assert json.loads(json.dumps(notes, allow_nan=False)) == notes
    assert notes == {
        "path": "reflected",
        "decoding": "free",
        "draft_action": "go to desk 1",
        "draft_parsed": True,
        "draft_response": DRAFT,
        "predicted_next_state": DESK,
        "reflect_response": SAFE,
        "reflection_text": "The pen goes into the safe.",
        "decision": "REVISE",
        "ref_action": "go to safe 1",
        "p": 0.9,
        "p_source": "verbal",
        "q": round(math.exp(-0.15), 6),
        "q_source": "token_geo_mean",
        "gate": True,
        "gate_parts": {"p": True, "q": True, "changed": True},
        "exec_action": "go to safe 1",
        "shown": "Thought: The pen goes into the safe.\nAction: go to safe 1",
    }


def test_what_was_done_becomes_history() -> None:
    memory: dict[str, Any] = {}
    actor = agent()
    converse_with(actor, view(memory=memory), [DRAFT, DESK, SAFE, SURE])
    first_reply = "Thought: The pen goes into the safe.\nAction: go to safe 1"
    assert memory["replies"] == {0: first_reply}
    silent = "Final Action: go to desk 1\nRevise Probability: 0.1"
    turn = ("go to safe 1", "You arrive at safe 1. The safe 1 is closed.")
    talk = converse_with(actor, view(turn, memory=memory), [DRAFT, DESK, silent, SURE])
    assert ("assistant", first_reply) in talk.requests[0].messages
    assert memory["replies"][1] == "Thought: The safe is far.\nAction: go to desk 1"


@pytest.mark.parametrize(
    ("said", "scores", "expected_action"),
    [
        (SAFE.replace("0.9", "0.5"), SURE, "go to desk 1"),  # p at its threshold
        (SAFE.replace("0.9", "0.51"), SURE, "go to safe 1"),
        (SAFE.replace("0.9", "7"), SURE, "go to safe 1"),  # brought into range
        (SAFE.replace("0.9", "-3"), SURE, "go to desk 1"),
        (SAFE.replace("Revise Probability: 0.9", ""), SURE, "go to safe 1"),  # missing: 1
        (SAFE.replace("go to safe 1", "Walk to the desk 1."), SURE, "go to desk 1"),  # same, Canon
        (SAFE, [(math.log(0.6),)], "go to desk 1"),  # q at its threshold
        (SAFE, [(math.log(0.61),)], "go to safe 1"),
        (SAFE, [(-math.inf, -0.1)], "go to desk 1"),
        (SAFE, [()], "go to desk 1"),
    ],
)
def test_gates_at_their_boundaries(said: str, scores: Any, expected_action: str) -> None:
    talk = converse_with(agent(tau_q=0.6), view(), [DRAFT, DESK, said, scores])
    assert talk.decision.action == expected_action


@pytest.mark.parametrize(
    "reflection",
    ["", "   \n", "I cannot tell.", "Final Action:", "Final Action: \nDecision: REVISE", "\x00"],
)
def test_a_reflection_without_an_action_keeps_the_draft(reflection: str) -> None:
    talk = converse_with(agent(), view(), [DRAFT, DESK, reflection])
    assert talk.decision.action == "go to desk 1" and talk.decision.notes["q"] == 0.0
    assert talk.decision.notes["p"] == 0.0 and talk.decision.notes["ref_action"] is None


def test_a_draft_that_cannot_be_read_is_asked_for_once_more_and_then_sent() -> None:
    talk = converse_with(agent(), view(), ["Go on.", "I go to the desk."])
    assert talk.purposes == ["draft", "draft: retry"]
    assert talk.decision.action == "I go to the desk"
    assert talk.decision.notes["path"] == "draft_only_fallback"
    assert talk.decision.notes["draft_parsed"] is False and talk.decision.notes["p"] is None
    rescued = converse_with(agent(), view(), ["Go on.", DRAFT, DESK, SAFE, SURE])
    assert rescued.decision.action == "go to safe 1"


def cut(text: str) -> Completion:
    return Completion(text, finish="length")


@pytest.mark.parametrize(
    ("reflection", "head"),
    [
        ("Hm.\nDecision: REVISE", "Hm.\nDecision: REVISE\nFinal Action:"),
        ("Decision: REVISE\nFinal Ac", "Decision: REVISE\nFinal Action:"),
        ("Decision: REVISE\nFinal Action:", "Decision: REVISE\nFinal Action:"),
        ("Decision: REVISE\nFinal Action: go to sa", "Decision: REVISE\nFinal Action: go to sa"),
    ],
)
def test_a_reflection_that_ran_out_of_tokens_is_continued(reflection: str, head: str) -> None:
    rest = "fe 1" if head.endswith("sa") else " go to safe 1"
    talk = converse_with(agent(), view(), [DRAFT, DESK, cut(reflection), rest, SURE])
    continuation = talk.requests[3]
    assert isinstance(continuation, Generate) and continuation.purpose == "reflect: final action"
    assert (
        continuation.prefix,
        continuation.sampling.max_new_tokens,
        continuation.sampling.stop,
    ) == (head, 16, ("\n",))
    assert continuation.messages == talk.requests[2].messages
    assert talk.decision.notes["reflect_response"] == head + rest
    assert talk.decision.action == "go to safe 1"


@pytest.mark.parametrize(
    "reflection", ["Reflection: It is so long", "", "<think>Decision: REVISE\nso"]
)
def test_what_was_cut_before_its_decision_is_not_continued(reflection: str) -> None:
    talk = converse_with(agent(), view(), [DRAFT, DESK, cut(reflection)])
    assert talk.purposes[-1] == "reflect"
    assert talk.decision.action == "go to desk 1" and not talk.decision.notes["gate"]


def test_a_reflection_whose_decision_is_not_asked_for_is_continued() -> None:
    actor = agent(p_source="verbalizer")
    reflection = "Reflection: It is so long"
    replies = [DRAFT, DESK, cut(reflection), " go to safe 1", (0.9, 0.1), SURE]
    talk = converse_with(actor, view(), replies)
    assert talk.requests[3].prefix == f"{reflection}\nFinal Action:"
    assert talk.decision.action == "go to safe 1"


KEEPING = [
    "Reflection: fine.\nDecision: KEEP\nFinal Action: go to safe 1",
    "Reflection: fine.\nDecision: KEEP\nFinal Action: go to safe 1\nRevise Probability: 0.9",
    "Decision: KEEP or REVISE\nFinal Action: <exactly one executable action>",
    "Decision: KEEP or REVISE\nFinal Action: go to safe 1\nRevise Probability: 0.9",
    "Decision: REVISE\nFinal Action: KEEP or REVISE\nRevise Probability: 0.9",
    "Decision: REVISE\nFinal Action: KEEP",
    "Final Action: go to safe 1",
    "I agree with the plan.",
    "<think>Decision: REVISE\nFinal Action: go to safe 1\nRevise Probability: 0.9",
]


@pytest.mark.parametrize("reflection", KEEPING)
def test_the_gate_does_not_open_without_a_decision_to_revise(reflection: str) -> None:
    for settings in ({}, {"action_gate": False}, {"q_source": "proxy"}):
        actor = agent(**settings)
        scored = (
            actor.config.q_source != "proxy"
            and "safe 1" in reflection
            and "<think>" not in reflection
        )
        talk = converse_with(actor, view(), [DRAFT, DESK, reflection, *([SURE] if scored else [])])
        assert talk.decision.action == "go to desk 1" and not talk.decision.notes["gate"]
        assert talk.decision.notes["exec_action"] == "go to desk 1"


@pytest.mark.parametrize(
    ("reflection", "p", "q"),
    [
        ("Decision: REVISE\nFinal Action: go to safe 1", 1.0, 1.0),
        ("Decision: KEEP\nFinal Action: go to safe 1", 0.0, 1.0),
        ("Decision: KEEP or REVISE\nFinal Action: go to safe 1", 0.0, 0.7),
        ("Final Action: go to safe 1", 0.0, 0.7),
        ("Decision: REVISE\nFinal Action: KEEP", 0.0, 0.0),
    ],
)
def test_what_a_model_states_is_worth_only_with_its_decision(
    reflection: str, p: float, q: float
) -> None:
    talk = converse_with(agent(q_source="proxy"), view(), [DRAFT, DESK, reflection])
    assert (talk.decision.notes["p"], talk.decision.notes["q"]) == (p, q)


def test_words_of_the_form_are_no_action_whoever_says_p() -> None:
    reflection = "Reflection: Hm.\nDecision: REVISE\nFinal Action: KEEP"
    talk = converse_with(
        agent(p_source="verbalizer"), view(), [DRAFT, DESK, reflection, (0.9, 0.1)]
    )
    assert talk.decision.notes["ref_action"] is None
    assert talk.decision.action == "go to desk 1" and talk.decision.notes["p"] == 0.9


def test_the_candidate_is_quoted_without_what_the_model_invents() -> None:
    invented = (
        "<think>Which way?</think>**Thought:** The desk.\n**Action:** Go to desk 1.\nYou see a pen."
    )
    talk = converse_with(agent(), view(), [invented, DESK, SAFE, SURE])
    request = talk.requests[2]
    assert "Thought: The desk.\nAction: go to desk 1\n" in request.messages[-1].content
    assert "You see a pen" not in request.messages[-1].content
    assert "Which way" not in request.messages[-1].content


def test_tokens_of_a_final_action_are_found_in_any_markup() -> None:
    token_texts = [
        "<think>",
        "no",
        "</think>",
        "**Decision:** REVISE\n",
        "**Final Action:** `",
        "Go to",
        " safe 1",
        "`.",
    ]
    reflection = Completion(
        "".join(token_texts),
        tokens=tuple(token_texts),
        logprobs=(-9.0, -9.0, -9.0, -9.0, -9.0, -0.2, -0.4, -9.0),
    )
    talk = converse_with(
        agent(q_source="min_token"),
        view(actions=["go to safe 1", "go to desk 1"]),
        [DRAFT, DESK, reflection],
    )
    assert talk.decision.notes["ref_action"] == "go to safe 1"
    assert talk.decision.notes["q"] == round(math.exp(-0.4), 6)


def test_p_of_a_head() -> None:
    strong = RefinementHead(np.array([2.0, 0.0], np.float32), -1.0)
    replies = [DRAFT, DESK, (1.0, 5.0), SAFE, SURE]
    talk = converse_with(agent(strong, p_source="head"), view(), replies)
    encode, reflect = talk.requests[2:4]
    assert isinstance(encode, Encode) and encode.prefix == ""
    assert encode.messages == reflect.messages
    assert talk.decision.notes["p"] == round(1 / (1 + math.exp(-1)), 6)
    assert talk.decision.action == "go to safe 1"
    fresh = converse_with(agent(RefinementHead.zeros(2), p_source="head"), view(), replies)
    assert (fresh.decision.notes["p"], fresh.decision.action) == (0.5, "go to desk 1")
    with pytest.raises(LanguageModelError, match="2 numbers"):
        converse_with(agent(strong, p_source="head"), view(), [DRAFT, DESK, (1.0,)])


HEAD = RefinementHead.zeros(2)


@pytest.mark.parametrize(
    ("head", "options", "sources"),
    [
        (None, {}, ("verbal", "proxy")),
        (HEAD, {}, ("head", "token_geo_mean")),
        (HEAD, {"p_source": "verbal"}, ("verbal", "token_geo_mean")),
        (None, {"q_source": "min_token"}, ("verbal", "min_token")),
        (None, {"p_source": "verbalizer"}, ("verbalizer", "token_geo_mean")),
        (None, {"p_source": "head", "tau_p": 0.4}, ("head", "token_geo_mean")),
        (None, {"p_source": "head", "action_gate": False}, ("head", "token_geo_mean")),
    ],
)
def test_sources_that_nobody_chose_are_those_that_work(
    head: RefinementHead | None, options: dict[str, Any], sources: tuple[str, str]
) -> None:
    comap_agent = CoMapAgent(CoMapConfig(**options), head)
    check_capabilities(comap_agent, HashedModel())
    config = comap_agent.config
    assert (config.p_source, config.q_source) == sources


@pytest.mark.parametrize("options", [{"p_source": "head"}, {"tau_p": 1}, {"tau_q": 1.0}])
def test_a_gate_that_can_never_open_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected a gate that can open"):
        check_capabilities(CoMapAgent(CoMapConfig(**options)), HashedModel())
    with pytest.raises(OptionError, match="expected a gate that can open"):
        create_agent("comap", **options)


def test_the_defaults_are_enough_for_a_model_that_only_writes() -> None:
    talk = converse_with(CoMapAgent(), view(), [DRAFT, DESK, SAFE])
    assert talk.kinds == ["Generate", "Imagine", "Generate"]
    assert talk.decision.action == "go to safe 1" and talk.decision.notes["p"] == 0.9


@pytest.mark.parametrize("likely", [True, False])
def test_p_of_two_words(likely: bool) -> None:
    words = (0.3, 0.1) if likely else (0.1, 0.1)
    talk = converse_with(agent(p_source="verbalizer"), view(), [DRAFT, DESK, SAFE, words, SURE])
    request = talk.requests[3]
    assert isinstance(request, NextWord) and request.words == (" REVISE", " KEEP")
    assert request.prefix == "Reflection: The pen goes into the safe.\nDecision:"
    assert talk.decision.notes["p"] == (0.75 if likely else 0.5)
    assert talk.decision.notes["gate"] is likely


def test_without_future_state_no_world_model_is_asked() -> None:
    talk = converse_with(agent(future_state=False), view(), [DRAFT, SAFE, SURE])
    assert talk.kinds == ["Generate", "Generate", "Score"]
    assert "Unknown." in talk.requests[1].messages[-1].content
    assert talk.decision.notes["predicted_next_state"] is None
    talk_keeping_draft = converse_with(agent(future_state=False), view(), [DRAFT, SAFE, UNSURE])
    assert talk_keeping_draft.decision.imagined is None
    silent = converse_with(agent(), view(), [DRAFT, "  ", SAFE, SURE])
    assert "Unknown." in silent.requests[2].messages[-1].content


def test_without_action_gate_what_can_be_read_is_taken() -> None:
    actor = agent(action_gate=False)
    shy = SAFE.replace("0.9", "0.0")
    talk = converse_with(actor, view(), [DRAFT, DESK, shy, UNSURE])
    assert talk.decision.action == "go to safe 1" and talk.decision.notes["gate"] is True
    assert converse_with(actor, view(), [DRAFT, DESK, "Hm."]).decision.action == "go to desk 1"
    same = shy.replace("go to safe 1", "go to desk 1")
    same_action_talk = converse_with(actor, view(), [DRAFT, DESK, same, UNSURE])
    assert same_action_talk.decision.imagined is same_action_talk.replies[1]


def test_a_gate_that_is_closed_beforehand_can_save_the_reflection() -> None:
    quick = {"p_source": "head", "reflect_when_closed": False}
    head = RefinementHead(np.array([1.0], np.float32))
    talk = converse_with(agent(head, **quick), view(), [DRAFT, DESK, (-1.0,)])
    assert talk.kinds == ["Generate", "Imagine", "Encode"]
    notes = talk.decision.notes
    assert talk.decision.action == "go to desk 1" and talk.decision.imagined is talk.replies[1]
    assert (notes["path"], notes["q"], notes["gate"]) == ("reflection_skipped", None, False)
    slow = converse_with(agent(head, p_source="head"), view(), [DRAFT, DESK, (-1.0,), SAFE, SURE])
    assert slow.decision.action == talk.decision.action
    assert slow.decision.notes["p"] == notes["p"]
    opened = converse_with(agent(head, **quick), view(), [DRAFT, DESK, (1.0,), SAFE, SURE])
    assert opened.decision.action == "go to safe 1"
    always = agent(head, **quick, action_gate=False)
    assert converse_with(always, view(), [DRAFT, DESK, (-1.0,), SAFE, SURE]).decision.notes["gate"]
    unknown = agent(p_source="verbal", reflect_when_closed=False)
    assert converse_with(unknown, view(), [DRAFT, DESK, SAFE, SURE]).decision.notes["gate"]


def test_masked_decoding_chooses_among_the_admissible() -> None:
    replies = [
        "Thought: Hm.",
        "go to desk 1",
        DESK,
        "Reflection: Rather not.\nDecision: REVISE\n",
        "go to safe 1",
        " 0.8",
        SURE,
    ]
    talk = converse_with(agent(decoding="masked"), view(), replies)
    assert talk.purposes[3:] == [
        "reflect: analysis",
        "reflect: final action",
        "reflect: probability",
        "reflect: confidence",
    ]
    reflect, choice, number, score = talk.requests[3:]
    assert "Final Action:" in reflect.sampling.stop
    head = "Reflection: Rather not.\nDecision: REVISE\nFinal Action:"
    assert choice.prefix == head and " go to safe 1" in choice.choices
    assert number.prefix == f"{head} go to safe 1\nRevise Probability:"
    assert score.prefix == head and score.completions == (" go to safe 1",)
    notes = talk.decision.notes
    assert (talk.decision.action, notes["p"], notes["decoding"]) == ("go to safe 1", 0.8, "masked")
    assert notes["reflect_response"].endswith("Revise Probability: 0.8")


BEFORE = ("Reflection", ": Not there.\nDecision", ": REVISE\n", "Final", " Action")
AFTER = ("\n", "Revise", " Probability:", " 0.9")
PURPOSES = ["draft", "imagine go to desk 1", "reflect"]


def tokened(**options: Any) -> CoMapAgent:
    return CoMapAgent(CoMapConfig(**{"p_source": "verbal", **options}))


def wrote(*parts: Sequence[str] | dict[str, float], **changes: Any) -> Completion:
    """Return a completion of tokens; those in a mapping have their log-probability, others -9."""
    tokens = [token for part in parts for token in part]
    logprobs = [part[t] if isinstance(part, dict) else -9.0 for part in parts for t in part]
    fields: dict[str, Any] = {"logprobs": tuple(logprobs), "tokens": tuple(tokens), **changes}
    return Completion(**{"text": "".join(tokens), **fields})


def notes_of(*replies: Any, score: Any = None, **options: Any) -> dict[str, Any]:
    """Return what is noted of a step; the action must be scored where there are scores."""
    scores = [] if score is None else [score]
    talk = converse_with(tokened(**options), view(), [DRAFT, DESK, *replies, *scores])
    assert ("Score" in talk.kinds) is bool(scores)
    notes: dict[str, Any] = talk.decision.notes
    return notes


SAFE_REPLY = {":": -9.0, " go": -0.1, " to": -0.2, " safe": -0.4, " 1": -0.3}


@pytest.mark.parametrize(
    ("source", "q"), [("token_geo_mean", math.exp(-0.25)), ("min_token", math.exp(-0.4))]
)
def test_q_is_of_the_tokens_of_the_action(source: str, q: float) -> None:
    notes = notes_of(wrote(BEFORE, SAFE_REPLY, AFTER), q_source=source)
    assert (notes["q"], notes["ref_action"]) == (round(q, 6), "go to safe 1")
    assert notes["gate"] and notes["exec_action"] == "go to safe 1"


@pytest.mark.parametrize(
    ("action_tokens", "q"),
    [
        ({": go": -0.2, " to safe": -0.4, " 1\n": -0.6}, math.exp(-0.4)),
        ({":": -9, " ": -9, '"': -9, "go to": -0.2, " safe 1": -0.4, '".\n': -9}, math.exp(-0.3)),
        ({": **go to safe 1**\n": -0.5}, math.exp(-0.5)),
        ({":": -9, " go to safe": -0.1, "": -0.3, " 1\n": -0.2}, math.exp(-0.2)),
        ({": go": -math.inf, " to safe 1\n": -0.4}, 0.0),
    ],
    ids=str,
)
def test_an_action_that_does_not_begin_or_end_with_a_token(
    action_tokens: dict[str, float], q: float
) -> None:
    notes = notes_of(wrote(BEFORE, action_tokens, AFTER[1:]))
    assert (notes["q"], notes["ref_action"]) == (round(q, 6), "go to safe 1")


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": None},
        {"logprobs": None},
        {"logprobs": (-0.1,)},
        {"tokens": ("x",) * 10, "logprobs": (-0.1,) * 10},
        {"text": "Well. " + "".join((*BEFORE, *SAFE_REPLY))},
    ],
    ids=["no tokens", "no logprobs", "fewer logprobs", "other tokens", "another text"],
)
def test_what_cannot_be_located_is_scored(changes: dict[str, Any]) -> None:
    notes = notes_of(wrote(BEFORE, SAFE_REPLY, **changes), score=[(-0.5, -0.7)])
    assert notes["q"] == round(math.exp(-0.6), 6)


def test_a_continued_reflection_has_the_tokens_of_both() -> None:
    cut_reflection = wrote(BEFORE, {":": -9, " go": -0.1, " to": -0.3, " ": -9}, finish="length")
    rest = wrote({" safe": -0.2, " 1": -0.6}, ("\n", "safe 1"), text=" safe 1")
    talk = converse_with(tokened(), view(), [DRAFT, DESK, cut_reflection, rest])
    assert talk.purposes == [*PURPOSES, "reflect: final action"]
    assert talk.decision.notes["ref_action"] == "go to safe 1"
    assert talk.decision.notes["q"] == round(math.exp(-0.3), 6)
    told_only_once = Completion(" safe 1")
    assert notes_of(cut_reflection, told_only_once, score=[(-0.5,)])["q"] == round(
        math.exp(-0.5), 6
    )


def changes(*names: str) -> Delta:
    """Return the change in which ``+a`` appears and ``-b`` goes."""
    facts: dict[str, set[Fact]] = {"+": set(), "-": set()}
    for name in names:
        facts[name[0]].add(("is", name[1:]))
    return Delta(frozenset(facts["+"]), frozenset(facts["-"]))


@pytest.mark.parametrize(
    ("student", "teacher", "value"),
    [
        (("+a", "-b"), ("+a", "-b"), 1.0),
        ((), (), 1.0),
        (("+a",), (), 0.0),
        ((), ("-a",), 0.0),
        (("+a",), ("-a",), 0.0),  # the sign counts
        (("+a", "+b", "-c"), ("+a", "-c", "-d", "+e"), 4 / 7),
    ],
)
def test_agreement_is_the_f1_of_signed_changes(
    student: tuple[str, ...], teacher: tuple[str, ...], value: float
) -> None:
    assert agreement(changes(*student), changes(*teacher)) == pytest.approx(value)
    assert agreement(changes(*teacher), changes(*student)) == pytest.approx(value)


def test_the_world_state_gate_is_open_at_its_threshold() -> None:
    # 3 shared of 5 and 5: r = 0.6 exactly
    student = changes("+a", "+b", "-c", "+d", "+e")
    teacher = changes("+a", "+b", "-c", "-d", "-e")
    assert world_state_gate(student, teacher) == (0.6, True)
    assert not world_state_gate(student, teacher, tau=0.61).open
    assert world_state_gate(student, changes(), tau=0.0).open


def test_a_head_comes_back_from_its_file(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    head = RefinementHead(np.array([0.1, -0.7, 3.0], np.float32), -0.25)
    path = head.save(tmp_path / "new" / "head.safetensors")
    loaded_head = RefinementHead.load(path)
    assert loaded_head.bias == head.bias and (loaded_head.weight == head.weight).all()
    state = (0.3, 0.2, -0.1)
    assert loaded_head.probability(state) == head.probability(state)


def test_files_that_are_no_head_are_told(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    with pytest.raises(DataNotFound, match="found no file"):
        RefinementHead.load(tmp_path / "none")
    path = tmp_path / "head"
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataCorrupt, match="expected a refinement head"):
        RefinementHead.load(path)
    for weight in (np.zeros((2, 2), np.float32), np.full(2, np.nan, np.float32)):
        numpy_files.save_file({"weight": weight, "bias": np.zeros(1, np.float32)}, path)
        with pytest.raises(DataCorrupt, match="expected a refinement head"):
            RefinementHead.load(path)


def test_replies_go_on_after_the_words_that_are_given() -> None:
    replies = [" go to desk 1", DESK, " REVISE\nFinal Action: go to safe 1", SURE]
    talk = converse_with(agent(prompts="brief", form="given"), view(), replies)
    prefixes = [request.prefix for request in talk.requests if isinstance(request, Generate)]
    assert prefixes == ["Action:", "Decision:"]
    notes = talk.decision.notes
    assert notes["draft_response"] == "Action: go to desk 1"
    assert notes["reflect_response"] == "Decision: REVISE\nFinal Action: go to safe 1"
    assert talk.decision.action == "go to safe 1"
