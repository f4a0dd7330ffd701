"""RAP against scripted replies: the tree by hand, the requests, and what may go wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest

from comap.agents.base import Imagine
from comap.agents.rap import (
    Node,
    RAPAgent,
    RAPConfig,
    back_up,
    best_child,
    descend,
    goal_overlap,
    uct,
)
from comap.facts import Delta, State
from comap.lm import Completion, Generate, Score
from comap.worldmodel import Imagined, Prediction
from kits.scripted import converse_with, view


def agent(**options: Any) -> RAPAgent:
    small = {"candidates": 2, "depth": 1, "rollouts": 4, "candidate_rounds": 1}
    return RAPAgent(RAPConfig(**{**small, **options}))


def foreseen(
    text: str,
    action: str = "",
    actions: tuple[str, ...] | None = None,
    solved: bool = False,
    over: bool | None = None,
) -> Imagined:
    prediction = Prediction(text, terminated=over, source="scripted")
    return Imagined(text, State(), Delta(), solved, prediction, action, actions)


def sampled(text: str, *logprobs: float) -> Completion:
    return Completion(text, None, logprobs or None)


def test_uct_by_hand() -> None:
    assert uct(5, Node(visits=2, value=0.25), 1.4) == 0.25 + 1.4 * math.sqrt(math.log(5) / 2)
    assert uct(5, Node(), 1.4) == math.inf
    assert uct(0, Node(visits=1, value=0.5), 1.4) == 0.5


def test_a_small_search_by_hand() -> None:
    """Two actions; below `a` two more, rewards fixed; five rollouts of depth 2, w = 1."""
    c, d = Node("c", reward=0.1, hint=0.1), Node("d", reward=0.4, hint=0.3)
    a, b = Node("a", reward=0.5, hint=0.5), Node("b", reward=0.6, hint=0.2, children=[])
    a.children = [c, d]
    root = Node(children=[a, b])

    path = descend(root, 1.0, 2)  # nothing visited: the best hints
    assert [node.action for node in path] == ["a", "d"]
    assert back_up(root, path, 1.0) == pytest.approx(0.9)

    path = descend(root, 1.0, 2)  # b was not visited, and is a dead end
    assert [node.action for node in path] == ["b"]
    back_up(root, path, 1.0)

    # a: 0.9 + sqrt(ln 2) beats b: 0.6 + sqrt(ln 2); below it c was not visited
    path = descend(root, 1.0, 2)
    assert [node.action for node in path] == ["a", "c"]
    back_up(root, path, 1.0)
    assert a.visits == 2 and a.value == pytest.approx((0.9 + 0.6) / 2)

    # a: 0.75 + sqrt(ln 3 / 2) = 1.491; b: 0.6 + sqrt(ln 3) = 1.648
    path = descend(root, 1.0, 2)
    assert [node.action for node in path] == ["b"]
    back_up(root, path, 1.0)

    # a: 0.75 + sqrt(ln 4 / 2) = 1.583; b: 0.6 + sqrt(ln 4 / 2); below a, N = 2:
    # c: 0.1 + sqrt(ln 2) < d: 0.4 + sqrt(ln 2)
    path = descend(root, 1.0, 2)
    assert [node.action for node in path] == ["a", "d"]
    back_up(root, path, 1.0)
    assert (root.visits, a.visits, b.visits, c.visits, d.visits) == (5, 3, 2, 1, 2)
    assert a.value == pytest.approx((0.9 + 0.6 + 0.9) / 3)
    assert best_child(root) is a


def test_one_expansion_step_by_step() -> None:
    current_view = view()
    talk = converse_with(
        agent(rollouts=3),
        current_view,
        [
            sampled(" go to desk 1", -1.0, -0.5),
            sampled("Go to  SAFE 1.", -2.0),
            "You see a pen 1.",
            "The safe 1 is closed.",
            [0.25, 0.5],
            [0.5, 0.1],
        ],
    )
    assert talk.kinds == ["Generate"] * 2 + ["Imagine"] * 2 + ["NextWord"] * 2
    first, second = talk.requests[:2]
    assert first.messages == second.messages and first.prefix == "Action:"
    assert (first.sampling.temperature, first.sampling.top_p) == (0.8, 0.95)
    assert first.sampling.max_new_tokens == 32 and first.sampling.stop == ("\n",)
    assert first.sampling.seed != second.sampling.seed
    assert "go to shelf 1" in first.messages[-1].content  # the admissible actions are listed
    assert [r.action for r in talk.requests[2:4]] == ["go to desk 1", "go to safe 1"]
    assert all(r.after == () for r in talk.requests[2:4])
    judge = talk.requests[5]
    assert judge.words == (" Yes", " No") and judge.prefix == "Answer:"
    assert "The safe 1 is closed." in judge.messages[-1].content
    # goal words of four letters: your task safe -> only "safe" is in the second prediction
    desk = 0.2 * -0.75 + 0.6 * 0.25
    safe = 0.2 * -2.0 + 0.6 * 0.5 + 0.2 / 3
    # rollouts: safe (hint 0.367 above 0.15), desk (unvisited), then desk: the greater value
    search = talk.decision.notes["search"]
    assert search["children"] == [
        {"action": "go to desk 1", "visits": 2, "value": round(desk, 6), "reward": round(desk, 6)},
        {"action": "go to safe 1", "visits": 1, "value": round(safe, 6), "reward": round(safe, 6)},
    ]
    assert (search["rollouts"], search["expansions"], search["unknown_log_probs"]) == (3, 1, 0)
    assert talk.decision.action == "go to desk 1"
    assert talk.decision.imagined is talk.replies[2]
    assert current_view.memory["replies"] == {0: "Action: go to desk 1"}


def test_deeper_states_are_asked_after_imagined_steps() -> None:
    near = ("open safe 1", "look")

    def reply(request: Any) -> Any:
        if isinstance(request, Generate):
            inside = "A safe." in request.messages[-1].content
            return "open safe 1" if inside else "go to safe 1"
        if isinstance(request, Imagine):
            text = "A safe." if request.action == "go to safe 1" else "Hm."
            return foreseen(text, request.action, near)
        return [0.5, 0.5]

    talk = converse_with(agent(depth=2, rollouts=1, candidates=1), view(), reply)
    imagine = [r for r in talk.requests if isinstance(r, Imagine)]
    assert [(r.action, [s.action for s in r.after]) for r in imagine] == [
        ("go to safe 1", []),
        ("open safe 1", ["go to safe 1"]),
    ]
    deeper = [r for r in talk.requests if isinstance(r, Generate)][1]
    prompt_text = "\n".join(m.content for m in deeper.messages)
    assert "Action: go to safe 1" in prompt_text and "open safe 1\nlook" in prompt_text
    assert "go to desk 1" not in deeper.messages[-1].content  # the imagined state's own list
    assert talk.decision.notes["search"]["expansions"] == 2


def test_duplicates_and_foreign_actions_are_dropped_then_sampled_again_then_filled() -> None:
    replies = ["look", "Look.", "fly away", "go to desk 1"]  # two rounds: 3, then the 2 lacking
    talk = converse_with(
        agent(candidates=3, candidate_rounds=2, rollouts=1),
        view(),
        [*replies[:3], replies[3], "walk to the desk 1", "a", "b", "c", [0, 1], [0, 1], [0, 1]],
    )
    assert (
        talk.purposes[:5]
        == ["search, state 1, round 1: candidate"] * 3 + ["search, state 1, round 2: candidate"] * 2
    )
    imagined = [r.action for r in talk.requests if isinstance(r, Imagine)]
    assert imagined[:2] == ["look", "go to desk 1"]
    assert imagined[2] in ("go to safe 1", "go to shelf 1")  # filled from the admissible ones
    assert talk.decision.notes["search"]["unknown_log_probs"] == 0


def test_scored_and_masked_candidates() -> None:
    talk = converse_with(
        agent(decoding="scored", rollouts=1),
        view(),
        [[-3.0, [-0.5, -0.5], -2.0, -float("inf")], "x", "y", [0, 1], [0, 1]],
    )
    assert talk.kinds == ["Score", "Imagine", "Imagine", "NextWord", "NextWord"]
    children = talk.decision.notes["search"]["children"]
    assert [c["action"] for c in children] == ["go to safe 1", "go to shelf 1"]
    assert [c["reward"] for c in children] == [-0.1, -0.4]
    assert talk.decision.notes["decoding"] == "scored"

    masked = converse_with(
        agent(decoding="masked", rollouts=1, evaluation_weight=0.0),
        view(),
        ["look", "look", "x", "y"],
    )
    assert masked.requests[0].choices[0] == " go to desk 1"
    assert masked.kinds == ["Generate"] * 2 + ["Imagine"] * 2  # nobody judges without a weight


def test_the_goal_ends_a_path_and_is_best_when_reached_soon() -> None:
    def reply(request: Any) -> Any:
        if isinstance(request, Score):
            return [-1.0] * len(request.completions)
        if isinstance(request, Imagine):
            solved = request.action == "look" or bool(request.after)
            return foreseen("safe task your", request.action, ("look",), solved)
        return [1.0, 0.0]

    talk = converse_with(
        agent(decoding="scored", depth=3, candidates=4, rollouts=24), view(), reply
    )
    assert talk.decision.action == "look"
    child = next(c for c in talk.decision.notes["search"]["children"] if c["action"] == "look")
    assert child["reward"] == 1.0 and child["value"] == 3.0  # it counts for the steps left over
    assert all(r.action == "look" for r in talk.requests if isinstance(r, Imagine) and r.after)


def test_goal_words() -> None:
    assert goal_overlap("", "anything") == 0.0 and goal_overlap("a b c", "a") == 0.0
    assert goal_overlap("Put (the) MUG.", "the mug", 3) == pytest.approx(2 / 3)
