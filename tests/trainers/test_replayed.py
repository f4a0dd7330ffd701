"""Past episodes as the agent saw them: the prompts built from them are those that were really asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, run_episode, run_episodes
from comap.agents.acting import Draft
from comap.agents.base import estimate_tokens
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.prompting import converse, instructions, load_template
from comap.agents.react import replies_in
from comap.envs.alfworld import ALFWorldEnv
from comap.envs.conformance.transcripts import load
from comap.facts import State
from comap.trainers.replayed import views_of
from comap.trainers.rollout_agent import RolloutAgent, RolloutConfig
from comap.trajectory import Step, Trajectory
from comap.worldmodel import LanguageWorldModel, transitions_of

HashedModel = load(f"{Path(__file__).parents[1] / 'agents' / 'scripted.py'}:HashedModel")
TASKS = ALFWorldEnv(split="valid_seen", source="generated").tasks.ids
GATES = {"tau_p": 0.0, "tau_q": 0.0, "q_source": "min_token"}


def make(steps: int = 6) -> gym.Env[str, str]:
    options: dict[str, Any] = {"source": "generated", "split": "valid_seen"}
    return gym.make("comap/ALFWorld-v0", max_episode_steps=steps, **options)


def draft_of(step: Step) -> Draft:
    notes = step.notes
    return Draft(
        notes["draft_response"], notes["draft_action"], notes["draft_parsed"], notes["decoding"]
    )


def check_prompts(agent: CoMapAgent, trajectory: Trajectory, count: Any) -> dict[str, int]:
    """Compare the prompts built again with those on record; return how many of each there were."""
    seen = {"draft": 0, "reflect": 0}
    known = "context" if isinstance(agent, RolloutAgent) else "predicted_next_state"
    for view, replies, step in views_of(trajectory, count):
        drafting = converse(view, agent.config, replies)
        context = step.notes[known] or ""
        reflecting = agent.question(view, replies, draft_of(step), context)
        for call in step.calls:
            kind = call.purpose.partition(":")[0]
            if kind not in seen or "retry" in call.purpose:
                continue
            rebuilt = drafting if kind == "draft" else reflecting
            assert call.messages == tuple((part.role, part.content) for part in rebuilt)
            seen[kind] += 1
    return seen


def play(
    agent_type: Any, lm: Any, options: dict[str, Any], tasks: int, steps: int, **sizes: Any
) -> Any:
    told = {key: options[key] for key in ("prompts", "state_text")}
    world_model = LanguageWorldModel(lm, **told, **sizes)
    further = () if agent_type is CoMapAgent else (None, world_model)
    config = (CoMapConfig if agent_type is CoMapAgent else RolloutConfig)(**options)
    agent = agent_type(config, *further)
    found = run_episodes(
        lambda: make(steps),
        agent,
        TASKS[:tasks],
        lm=lm,
        world_model=world_model,
        keep="prompts",
        live=4,
        seed=3,
    )
    assert not any(trajectory.error for trajectory in found)
    return agent, [Trajectory.from_json(json.loads(json.dumps(t.to_json()))) for t in found]


@pytest.mark.parametrize("agent_type", [CoMapAgent, RolloutAgent])
@pytest.mark.parametrize("prompts", ["standard", "brief"])
@pytest.mark.parametrize("state_text", ["history", "belief"])
@pytest.mark.parametrize("max_length", [2048, 1100])
def test_prompts_are_built_again(
    agent_type: Any, prompts: str, state_text: str, max_length: int
) -> None:
    options = {"prompts": prompts, "state_text": state_text, "max_length": max_length}
    options |= {"p_source": "verbalizer", **GATES}
    agent, found = play(agent_type, HashedModel(), options, 8, 6)
    counts = [check_prompts(agent, trajectory, estimate_tokens) for trajectory in found]
    assert sum(count["draft"] for count in counts) == 48
    assert sum(count["reflect"] for count in counts) >= 8


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torch")
    from comap.lm.create import create_language_model
    from comap.lm.tiny import build_tiny

    expert = run_episode(make(50), ExpertAgent(), task=TASKS[0])
    words = [expert.observation, *(f"> {s.action}\n{s.observation}" for s in expert.steps)]
    words += [instructions(expert.env_id)] * 2
    words += [text for _, text in load_template("standard", "reflect")] * 2
    folder = tmp_path_factory.mktemp("tiny")
    return create_language_model(
        str(build_tiny(folder, words, parameters=200_000, dtype="float32"))
    )


@pytest.mark.parametrize(
    ("agent_type", "prompts", "state_text"),
    [
        (RolloutAgent, "standard", "history"),
        (CoMapAgent, "standard", "belief"),
        (CoMapAgent, "brief", "history"),
        (RolloutAgent, "brief", "belief"),
    ],
)
def test_prompts_of_a_real_model_are_built_again(
    tiny: Any, agent_type: Any, prompts: str, state_text: str
) -> None:
    short = {"draft_tokens": 8, "reflect_tokens": 8, "final_tokens": 2, "examples": 0}
    options = {"prompts": prompts, "state_text": state_text, "decoding": "masked", **short}
    options |= {"p_source": "verbalizer", **GATES}
    if agent_type is RolloutAgent:
        options |= {"teacher_adapter": None, "reflect_after_terminal_probe": True}
    agent, found = play(agent_type, tiny, options, 1, 2, max_new_tokens=8)
    counts = [check_prompts(agent, trajectory, tiny.count_tokens) for trajectory in found]
    assert sum(count["draft"] for count in counts) >= 2
    assert sum(count["reflect"] for count in counts) >= 4  # two or more parts each


def test_views_are_what_the_agent_had() -> None:
    seen: list[Any] = []

    class Watching(CoMapAgent):
        def decide(self, view: Any) -> Any:
            seen.append((view, dict(replies_in(view))))
            return (yield from super().decide(view))

    lm = HashedModel()
    agent = Watching(CoMapConfig(p_source="verbalizer", **GATES))
    model = LanguageWorldModel(lm)
    found = run_episode(make(), agent, task=TASKS[1], seed=7, lm=lm, world_model=model)
    rebuilt = list(views_of(found, lm.count_tokens))
    assert len(rebuilt) == len(seen) == 6
    for (view, replies, step), (real, said), t in zip(rebuilt, seen, range(6), strict=True):
        shown = {"memory": {"replies": said}, "admissible_actions": None}
        assert view == replace(real, expert_action=view.expert_action, **shown)
        assert replies == said and sorted(replies) == list(range(t))
        assert replies_in(view) == replies and view.expert_action() is None
        assert step is found.steps[t]
    assert [view.history for view, _, _ in rebuilt] == [
        transition.query.history for transition in transitions_of(found)
    ]


def test_what_is_done_with_one_view_changes_no_other() -> None:
    lm = HashedModel()
    agent = CoMapAgent(CoMapConfig(p_source="verbalizer", **GATES))
    found = run_episode(make(), agent, task=TASKS[1], lm=lm, world_model=LanguageWorldModel(lm))
    later = []
    for _, replies, _ in views_of(found):
        later.append(dict(replies))
        replies.clear()
    assert later == [dict(replies) for _, replies, _ in views_of(found)]


def test_other_agents_have_no_replies() -> None:
    found = run_episode(make(), ExpertAgent(), task=TASKS[0])
    rebuilt = list(views_of(found))
    assert len(rebuilt) == len(found.steps) and all(not said for _, said, _ in rebuilt)
    view = rebuilt[-1][0]
    assert view.count_tokens is estimate_tokens and (view.trial, view.seed) == (1, 0)
    assert view.step == len(found.steps) - 1 and isinstance(view.facts, State)
    odd = replace(found, steps=(replace(found.steps[0], notes={"shown": 3}), found.steps[1]))
    assert [said for _, said, _ in views_of(odd)] == [{}, {}]
