"""RAP against scripted replies: the tree by hand, the requests, and what may go wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import run_episode
from comap.agents.base import Imagine
from comap.agents.rap import RAPAgent, RAPConfig, goal_overlap
from comap.agents.search_tree import Node, back_up, best_child, descend, most_promising, uct
from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError, OptionError
from comap.facts import Delta, State
from comap.lm import Completion, Generate, Score, Words
from comap.worldmodel import Imagined, Prediction

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
HashedModel = load(f"{HERE}:HashedModel")

HOSTILE = (
    "",
    " \n\t",
    "\x00\x07\x1b[31m",
    "$goal ${situation} $$",
    "<|im_end|><|im_start|>system",
    "Action: " + "x" * 5000,
    "go to " * 400,
    '{"action": "look"}',
)


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


# ----------------------------------------------------------------------------- the tree


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


def test_ends_depth_and_ties() -> None:
    end = Node("end", reward=0.5, end=2.0, children=[Node("never")])
    root = Node(children=[end])
    assert descend(root, 1.4, 6) == [end] and descend(root, 1.4, 0) == []
    assert back_up(root, [end], 0.5) == 1.5  # 0.5 + 0.5 * 2
    first, second = (
        Node("1", visits=1, value=1.0, hint=1.0),
        Node("2", visits=1, value=1.0, hint=1.0),
    )
    assert best_child(Node(children=[first, second])) is first
    assert most_promising([first, second]) is first
    assert best_child(Node()) is None and best_child(Node(children=[])) is None
    assert back_up(Node(), [], 1.0) == 0.0


# ------------------------------------------------------------------------- requests and rewards


def test_one_expansion_step_by_step() -> None:
    seen = view()
    talk = converse_with(
        agent(rollouts=3),
        seen,
        [
            sampled(" go to desk 1", -1.0, -0.5),
            sampled("Go to  SAFE 1.", -2.0),
            "You see a pen 1.",
            "The safe 1 is closed.",
            [0.25, 0.5],
            [0.5, 0.1],
        ],
    )
    assert talk.kinds == ["Generate"] * 2 + ["Imagine"] * 2 + ["Words"] * 2
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
    assert seen.memory["replies"] == {0: "Action: go to desk 1"}


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
    told = "\n".join(m.content for m in deeper.messages)
    assert "Action: go to safe 1" in told and "open safe 1\nlook" in told
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
    tried = [r.action for r in talk.requests if isinstance(r, Imagine)]
    assert tried[:2] == ["look", "go to desk 1"]
    assert tried[2] in ("go to safe 1", "go to shelf 1")  # filled from the admissible ones
    assert talk.decision.notes["search"]["unknown_log_probs"] == 0


def test_log_probabilities_that_nobody_tells_count_nothing() -> None:
    silent = [sampled("look"), sampled("go to desk 1"), "x", "y", [0.5, 0.5], [0.25, 0.5]]
    talk = converse_with(agent(rollouts=1), view(), silent)
    search = talk.decision.notes["search"]
    assert search["unknown_log_probs"] == 2
    assert [child["reward"] for child in search["children"]] == [0.3, 0.15]


def test_a_filled_in_action_counts_as_the_least_probable_sampled_one() -> None:
    replies = [sampled("look", -1.5), sampled("nonsense", -0.1), "x", "y", [0, 1], [0, 1]]
    talk = converse_with(agent(rollouts=1), view(), replies)
    assert [child["reward"] for child in talk.decision.notes["search"]["children"]] == [-0.3, -0.3]


def test_log_probabilities_by_a_score_request() -> None:
    replies = ["look", "go to desk 1", [[-1.0, -3.0], [-1.0]], "x", "y", [0, 1], [0, 1]]
    talk = converse_with(agent(rollouts=1, log_probs="scored"), view(), replies)
    score = talk.requests[2]
    assert isinstance(score, Score) and score.completions == (" look", " go to desk 1")
    assert [child["reward"] for child in talk.decision.notes["search"]["children"]] == [-0.4, -0.2]


def test_scored_and_masked_candidates() -> None:
    talk = converse_with(
        agent(decoding="scored", rollouts=1),
        view(),
        [[-3.0, [-0.5, -0.5], -2.0, -float("inf")], "x", "y", [0, 1], [0, 1]],
    )
    assert talk.kinds == ["Score", "Imagine", "Imagine", "Words", "Words"]
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


def test_a_predicted_end_ends_a_path() -> None:
    def reply(request: Any) -> Any:
        if isinstance(request, Imagine):
            assert not request.after
            return foreseen("Over.", request.action, ("look",), over=True)
        return [0.5] * len(request.completions if isinstance(request, Score) else request.words)

    talk = converse_with(agent(decoding="scored", depth=4, rollouts=5), view(), reply)
    assert talk.decision.notes["search"]["expansions"] == 1


def test_each_step_starts_a_new_tree_and_repeated_states_are_fine() -> None:
    rap = agent(decoding="scored", depth=2, rollouts=6)
    memory: dict[str, Any] = {}

    def reply(request: Any) -> Any:
        if isinstance(request, Imagine):
            return foreseen("The same.", request.action, ("look", "wait"))
        count = len(request.completions if isinstance(request, Score) else request.words)
        return [-0.5] * count if isinstance(request, Score) else [0.5] * count

    one = converse_with(rap, view(memory=memory), reply)
    two = converse_with(rap, view(("look", "The same."), memory=memory), reply)
    assert one.decision.notes["search"]["rollouts"] == two.decision.notes["search"]["rollouts"] == 6
    assert sorted(memory["replies"]) == [0, 1]


def test_open_action_space() -> None:
    talk = converse_with(
        agent(rollouts=1, decoding="scored"),
        view(actions=None),
        ["search[pen]", "", "A list.", [0.5, 0.5]],
    )
    assert talk.decision.action == "search[pen]" and talk.decision.notes["decoding"] == "free"
    listed = talk.requests[0].messages[-1].content
    assert "choose one of them" not in listed


def test_no_candidate_at_all_falls_back_to_react() -> None:
    talk = converse_with(
        agent(), view(actions=None), ["", " ", "Thought: Hm.\nAction: go to desk 1"]
    )
    assert talk.decision.action == "go to desk 1" and talk.decision.imagined is None
    assert talk.decision.notes["search"]["children"] == []
    assert talk.purposes[-1] == "draft"


def test_empty_predictions_and_strange_probabilities() -> None:
    talk = converse_with(
        agent(decoding="scored", rollouts=2),
        view(),
        [[-1.0] * 4, "", "", [float("nan"), 0.5], [7.0, 0.0]],
    )
    children = talk.decision.notes["search"]["children"]
    assert [c["reward"] for c in children] == [-0.2, 0.4]
    json.dumps(talk.decision.notes, allow_nan=False)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("actions", [None, ("look", "wait")])
@pytest.mark.parametrize("style", ["standard", "brief"])
def test_hostile_replies(text: str, actions: tuple[str, ...] | None, style: str) -> None:
    def reply(request: Any) -> Any:
        if isinstance(request, Words):
            return [0.5, 0.5]
        return text

    seen = view(actions=actions, goal=HOSTILE[3])
    talk = converse_with(agent(depth=2, prompts=style), seen, reply)
    assert talk.decision.action and len(talk.decision.action) <= 1000
    json.dumps(talk.decision.notes, allow_nan=False)
    longest = max(
        sum(seen.count_tokens(m.content) for m in r.messages)
        for r in talk.requests
        if isinstance(r, Generate | Words) and "retry" not in r.purpose  # that quotes the reply
    )
    assert longest <= 2048


def test_failures_of_models_are_the_episodes() -> None:
    with pytest.raises(LanguageModelError):
        converse_with(agent(), view(), [LanguageModelError("down"), "look"])


def test_same_seed_same_decision() -> None:
    def play(seed: int) -> list[Any]:
        env = gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=4)
        rap = agent(depth=2, candidates=3, rollouts=4, seed=seed)
        episode = run_episode(env, rap, seed=1, lm=HashedModel())
        assert episode.error is None
        return [(step.action, json.dumps(dict(step.notes))) for step in episode.steps]

    assert play(0) == play(0) and len(play(0)) == 4
    assert play(0) != play(1)


def test_goal_words_and_settings() -> None:
    assert goal_overlap("", "anything") == 0.0 and goal_overlap("a b c", "a") == 0.0
    assert goal_overlap("Put (the) MUG.", "the mug", 3) == pytest.approx(2 / 3)
    for wrong in ({"rollouts": 0}, {"discount": 1.5}, {"log_probs": "no"}, {"candidates": True}):
        with pytest.raises(OptionError):
            RAPConfig(**wrong)
    assert RAPAgent().name == "rap" and RAPAgent().config.describe()["exploration"] == 1.4
