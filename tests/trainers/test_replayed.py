"""Past episodes as the agent saw them: the prompts built from them are those that were really asked."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium as gym
import pytest

from comap.agents import run_episode, run_episodes
from comap.agents.base import estimate_tokens
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.convert import views_of
from comap.agents.prompting import Draft, converse
from comap.agents.react import replies_in
from comap.envs.alfworld import ALFWorldEnv
from comap.trainers.comap.config import preset
from comap.trainers.comap.reflection import rollout_samples, same_action
from comap.trainers.comap.rollouts import RolloutAgent, RolloutConfig
from comap.trainers.evaluation import gate_report
from comap.trajectory import Trajectory
from comap.worldmodel import LanguageWorldModel, OracleWorldModel, transitions_of
from kits.scripted import HashedModel

TASKS = ALFWorldEnv(split="valid_seen", source="generated").tasks.ids
GATES = {"tau_p": 0.0, "tau_q": 0.0, "q_source": "min_token"}


def make(steps=6):
    options = {"source": "generated", "split": "valid_seen"}
    return gym.make("comap/ALFWorld-v0", max_episode_steps=steps, **options)


def draft_of(step):
    notes = step.notes
    return Draft(
        notes["draft_response"], notes["draft_action"], notes["draft_parsed"], notes["decoding"]
    )


def check_prompts(agent, trajectory, count):
    """Compare the prompts built again with those on record; return how many of each there were."""
    counts = {"draft": 0, "reflect": 0}
    context_key = "context" if isinstance(agent, RolloutAgent) else "predicted_next_state"
    for view, replies, step in views_of(trajectory, count):
        drafting = converse(view, agent.config, replies)
        context = step.notes[context_key] or ""
        reflecting = agent.question(view, replies, draft_of(step), context)
        for call in step.calls:
            kind = call.purpose.partition(":")[0]
            if kind not in counts or "retry" in call.purpose:
                continue
            rebuilt = drafting if kind == "draft" else reflecting
            assert call.messages == tuple((part.role, part.content) for part in rebuilt)
            counts[kind] += 1
    return counts


def play(agent_type, lm, options, tasks, steps, **sizes):
    prompt_options = {key: options[key] for key in ("prompts", "state_text")}
    world_model = LanguageWorldModel(lm, **prompt_options, **sizes)
    further = () if agent_type is CoMapAgent else (None, world_model)
    settings = CoMapConfig if agent_type is CoMapAgent else RolloutConfig
    config = settings(**options).published()  # as trainings take it: limits follow no model
    agent = agent_type(config, *further)
    trajectories = run_episodes(
        lambda: make(steps),
        agent,
        TASKS[:tasks],
        lm=lm,
        world_model=world_model,
        keep="prompts",
        note_actions=True,  # as trainings do whose prompts list the actions
        concurrency=4,
        seed=3,
    )
    assert not any(trajectory.error for trajectory in trajectories)
    return agent, [Trajectory.from_json(json.loads(json.dumps(t.to_json()))) for t in trajectories]


@pytest.mark.parametrize(
    ("agent_type", "prompts", "state_text", "max_length"),
    [
        (RolloutAgent, "standard", "history", 2048),
        (CoMapAgent, "standard", "belief", 1100),
        (CoMapAgent, "brief", "history", 1100),
        (RolloutAgent, "brief", "belief", 2048),
    ],
)
def test_prompts_are_built_again(agent_type, prompts, state_text, max_length):
    options = {
        "prompts": prompts,
        "state_text": state_text,
        "max_length": max_length,
    }
    options |= {"p_source": "verbalizer", **GATES}
    agent, trajectories = play(agent_type, HashedModel(), options, 8, 6)
    counts = [check_prompts(agent, trajectory, estimate_tokens) for trajectory in trajectories]
    assert sum(count["draft"] for count in counts) == 48
    assert sum(count["reflect"] for count in counts) >= 8


def test_drafts_that_end_the_episode_are_reflected_on_too():
    """Accepted and rejected drafts of all steps are learned from, those that win among them."""
    options = {"prompts": "standard", "state_text": "history", "max_length": 2048}
    _, trajectories = play(
        RolloutAgent, HashedModel(), {**options, "p_source": "verbalizer"}, 16, 1
    )
    drafted = [t for t in trajectories if t.steps[0].notes["draft_parsed"]]
    assert drafted and all(t.steps[0].notes["env_next_of_draft"]["truncated"] for t in drafted)
    assert {t.steps[0].notes["path"] for t in drafted} == {"reflected"}
    read = [t for t in drafted if t.steps[0].notes["ref_action"] is not None]
    samples = list(rollout_samples(read, preset("paper", agent={"p_source": "verbalizer"})))
    assert read and [sample.task for sample in samples] == [t.task for t in read]


def test_a_rollout_compares_predictions_with_what_really_followed():
    """An oracle knows the next state, and every refusal."""
    lm, options = HashedModel(), {"prompts": "standard", "state_text": "history"}
    teacher = LanguageWorldModel(lm, **options)
    config = RolloutConfig(**options, p_source="verbalizer", **GATES)
    agent, oracle = RolloutAgent(config, None, teacher), OracleWorldModel()
    trajectories = run_episodes(
        lambda: make(6), agent, TASKS[:8], lm=lm, world_model=oracle, seed=3
    )
    notes = [s.notes for t in trajectories for s in t.steps if s.notes["path"] == "reflected"]
    assert {note["student_f1"] for note in notes} == {1.0}
    refused = [note["env_next_of_draft"]["invalid_action"] for note in notes]
    assert [note["foresees_refusal"] for note in notes] == refused and {*refused} == {True, False}
    truth = gate_report(trajectories).truth
    assert truth is not None
    foreseen = truth.foreseen_refusals
    assert (foreseen.n, foreseen.precision, foreseen.recall) == (sum(refused), 1.0, 1.0)


def test_corrections_that_both_gates_selected():
    """CoMap, App. C.3, as a setting."""
    options = {"prompts": "standard", "state_text": "history", "max_length": 2048}
    options |= {"p_source": "verbalizer"}
    _, trajectories = play(RolloutAgent, HashedModel(), options, 8, 6)

    def with_gates(step, success):
        opened = {"wm_gate": step.t % 2 == 0, "ref_action": "inventory", "gate": step.t > 2}
        notes = {**step.notes, **(opened if step.notes["path"] == "reflected" else {})}
        return replace(step, success=success, notes=notes)

    episodes = [
        replace(t, steps=tuple(with_gates(step, number < 4) for step in t.steps))
        for number, t in enumerate(trajectories)
    ]
    won_episodes = episodes[:4]
    selected_steps = [
        (t.task, step.t - 1)
        for t in won_episodes
        for step in t.steps
        if step.notes["path"] == "reflected"
        and step.t in (4, 6)
        and not same_action(t.env_id, "inventory", step.notes["draft_action"])
    ]
    settings = {"agent": {"p_source": "verbalizer"}, "episode_filter": "none"}
    gated = list(rollout_samples(episodes, preset("paper", gated_corrections=True, **settings)))
    assert selected_steps and [(sample.task, sample.step) for sample in gated] == selected_steps
    assert {sample.kind for sample in gated} <= {"hq_reflect"}
    assert len(gated) < len(list(rollout_samples(episodes, preset("paper", **settings))))


def test_views_are_what_the_agent_had():
    watched = []

    class Watching(CoMapAgent):
        def decide(self, view):
            watched.append((view, dict(replies_in(view))))
            return (yield from super().decide(view))

    lm = HashedModel()
    agent = Watching(CoMapConfig(p_source="verbalizer", **GATES))
    model = LanguageWorldModel(lm)
    episode = run_episode(
        make(), agent, task=TASKS[1], seed=7, lm=lm, world_model=model, note_actions=True
    )
    rebuilt = list(views_of(episode, lm.count_tokens))
    assert len(rebuilt) == len(watched) == 6
    for (view, replies, step), (real, real_replies), t in zip(
        rebuilt, watched, range(6), strict=True
    ):
        view_fields = {"memory": {"replies": real_replies}, "briefing": None}
        assert view == replace(real, expert_action=view.expert_action, **view_fields)
        assert replies == real_replies and sorted(replies) == list(range(t))
        assert replies_in(view) == replies and view.expert_action() is None
        assert step is episode.steps[t]
    assert [view.history for view, _, _ in rebuilt] == [
        transition.query.history for transition in transitions_of(episode)
    ]
