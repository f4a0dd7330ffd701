"""CoMap's training rollouts: what is asked of whom, the world-state gate, and what stays of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Imagine, Probe, Probed, run_episode, run_episodes
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.envs.alfworld import ALFWorldCanonicalizer, ALFWorldEnv
from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError, OptionError
from comap.facts import State, diff
from comap.lm import CAPABILITIES, Completion, Generate, Usage
from comap.trainers.rollout_agent import RolloutAgent, RolloutConfig
from comap.trajectory import Trajectory
from comap.worldmodel import ImaginedEnv, LanguageWorldModel, NullWorldModel

SCRIPTED = Path(__file__).parents[1] / "agents" / "scripted.py"
view, reply_to = load(f"{SCRIPTED}:view"), load(f"{SCRIPTED}:reply_to")
TASKS = ALFWorldEnv(split="valid_seen", source="generated").tasks.ids

DRAFT = "Thought: The desk is near.\nAction: go to desk 1"
KEEP = "Reflection: Fine.\nDecision: KEEP\nFinal Action: go to desk 1\nRevise Probability: 0.1"
SAFE = "Reflection: No.\nDecision: REVISE\nFinal Action: go to safe 1\nRevise Probability: 0.9"
FACTS = State(frozenset({("exists", "desk 1")}))
UPDATE = ALFWorldCanonicalizer().update


def desk(*things: str) -> str:
    """What is observed on arriving at a desk: 2 facts, and one for each thing."""
    listed = [f"a {thing}" for thing in things]
    told = ", ".join(listed[:-1]) + f", and {listed[-1]}" if len(listed) > 1 else listed[0]
    return f"You arrive at desk 1. On the desk 1, you see {told}."


TRUTH = desk("pen 1", "mug 1")
NOTED = {
    "wm_teacher",
    "agreement",
    "wm_gate",
    "context_source",
    "context",
    "env_next_of_draft",
    "canon_ok_student",
    "canon_ok_teacher",
}


class Silent:
    """A language model to build prompts with; it answers by a function of the request."""

    name = "silent"
    capabilities = CAPABILITIES

    def __init__(self, reply: Callable[[Generate], str | Exception] | None = None):
        self.reply, self.asked, self.usage = reply, list[Any](), Usage()

    def generate(self, requests: Sequence[Generate]) -> list[Any]:
        self.asked += requests
        assert self.reply is not None
        found = [self.reply(request) for request in requests]
        return [Completion(said) if isinstance(said, str) else said for said in found]

    def score(self, requests: Sequence[Any]) -> list[Any]:
        raise AssertionError

    words = encode = score

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def config(self) -> dict[str, Any]:
        return {}


def rollout(world_model: Any = None, **options: Any) -> RolloutAgent:
    chosen = {"p_source": "verbal", "q_source": "proxy", "adapter": "agent", **options}
    model = world_model or LanguageWorldModel(Silent(), adapter="wm")
    return RolloutAgent(RolloutConfig(**chosen), None, model)


def probed(truth: str = TRUTH, ended: bool = False, action: str = "go to desk 1") -> Probed:
    facts = UPDATE(FACTS, action, truth)
    told = (truth, facts, diff(FACTS, facts), float(ended), ended, False, ended, False)
    return Probed(*told, lambda text: UPDATE(FACTS, action, text))


def decided(agent: Any, *said: Any) -> tuple[Any, list[Any]]:
    """Return the decision of an agent that is told this in turn, and all its requests."""
    thinking: Generator[Any, Any, Any] = agent.decide(view(facts=FACTS))
    waiting, asked, reply = list(said), list[Any](), None
    while True:
        try:
            request = thinking.send(reply)
        except StopIteration as stop:
            assert not waiting, waiting
            return stop.value, asked
        parts = request if isinstance(request, list) else [request]
        asked += parts
        replies = [_reply(part, waiting.pop(0)) for part in parts]
        reply = replies if isinstance(request, list) else replies[0]


def _reply(part: Any, said: Any) -> Any:
    if not isinstance(part, Imagine) or not isinstance(said, str):
        return said if isinstance(part, Probe) else reply_to(part, said, FACTS)
    facts = UPDATE(FACTS, part.action, said)
    found = reply_to(part, said, FACTS)
    return replace(found, facts=facts, delta=diff(FACTS, facts))


def test_a_step_is_draft_prediction_probe_teacher_reflection() -> None:
    agent = rollout()
    decision, asked = decided(agent, DRAFT, TRUTH, probed(), TRUTH, KEEP)
    assert [type(part).__name__ for part in asked] == [
        "Generate",
        "Imagine",
        "Probe",
        "Generate",
        "Generate",
    ]
    draft, imagine, probe, teacher, reflect = asked
    assert (imagine.action, probe.action) == ("go to desk 1", "go to desk 1")
    assert (draft.adapter, teacher.adapter, reflect.adapter) == ("agent", "wm_ema", "agent")
    assert (teacher.purpose, teacher.sampling) == ("teacher", agent.world_model.sampling)
    assert teacher.sampling.temperature == 0 and teacher.sampling.max_new_tokens == 192
    told = teacher.messages[-1].content
    assert "## Training reference" in told and TRUTH in told and "go to desk 1" in told
    assert view().goal in told
    assert decision.action == "go to desk 1" and decision.imagined.observation == TRUTH
    assert json.loads(json.dumps(decision.notes)) == decision.notes
    assert decision.notes | {
        "wm_teacher": TRUTH,
        "agreement": 1.0,
        "wm_gate": True,
        "context_source": "wm",
        "context": TRUTH,
        "predicted_next_state": TRUTH,
        "canon_ok_student": True,
        "canon_ok_teacher": True,
        "env_next_of_draft": {
            "observation": TRUTH,
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
            "success": False,
        },
        "path": "reflected",
        "shown": "Thought: Fine.\nAction: go to desk 1",
    } == dict(decision.notes)


@pytest.mark.parametrize(
    ("student", "teacher", "r"),
    [
        (desk("pen 1", "mug 1"), desk("pen 1", "mug 1"), 1.0),
        (desk("pen 1"), desk("pen 1", "mug 1"), 6 / 7),  # 3 of 3 and 4
        (desk("pen 1"), desk("mug 1"), 4 / 6),  # where one is, and that it was seen
        (desk("cd 1", "cd 2", "pen 1"), desk("cd 3", "cd 4", "pen 1"), 6 / 10),  # at the threshold
        (desk("cd 1", "cd 2"), desk("cd 3", "cd 4"), 4 / 8),
        ("You arrive at safe 1. The safe 1 is closed.", desk("pen 1"), 0.0),
        ("Nothing happens.", "Nothing happens.", 1.0),
        ("Nothing happens.", desk("pen 1"), 0.0),
        ("Lorem ipsum.", "Lorem ipsum.", 0.0),
        ("Nothing happens.", "Lorem ipsum.", 0.0),
    ],
)
def test_the_gate_by_hand(student: str, teacher: str, r: float) -> None:
    decision, asked = decided(rollout(), DRAFT, student, probed(), teacher, KEEP)
    notes = decision.notes
    assert notes["agreement"] == round(r, 6) and notes["wm_gate"] is (r >= 0.6)
    assert notes["context_source"] == ("wm" if r >= 0.6 else "env")
    context = student if r >= 0.6 else TRUTH
    assert notes["context"] == context and context in asked[-1].messages[-1].content
    assert notes["predicted_next_state"] == student and notes["wm_teacher"] == teacher
    assert notes["canon_ok_student"] is (student != "Lorem ipsum.")
    assert notes["canon_ok_teacher"] is (teacher != "Lorem ipsum.")
    above, _ = decided(rollout(tau_wm=r), DRAFT, student, probed(), teacher, KEEP)
    assert above.notes["wm_gate"] is True
    if r < 1:
        higher = rollout(tau_wm=min(r + 1e-9, 1))
        assert decided(higher, DRAFT, student, probed(), teacher, KEEP)[0].notes["wm_gate"] is False


def test_what_a_teacher_writes_is_read_as_predictions_are() -> None:
    decision, _ = decided(rollout(), DRAFT, TRUTH, probed(), f"Next observation: {TRUTH} \n", KEEP)
    assert (decision.notes["wm_teacher"], decision.notes["agreement"]) == (TRUTH, 1.0)
    words = LanguageWorldModel(Silent(), ending="words", prompts="brief", adapter="wm")
    decision, asked = decided(rollout(words), DRAFT, TRUTH, probed(), f"{TRUTH}\nDone: no", KEEP)
    assert (decision.notes["wm_teacher"], decision.notes["agreement"]) == (TRUTH, 1.0)
    assert f"\nseen: {TRUTH}" in asked[3].messages[-1].content


def test_the_truth_as_reference_asks_no_teacher() -> None:
    agent = rollout(gate_reference="env")
    decision, asked = decided(agent, DRAFT, desk("pen 1"), probed(), KEEP)
    assert [part.purpose for part in asked if isinstance(part, Generate)] == ["draft", "reflect"]
    assert decision.notes["agreement"] == round(6 / 7, 6) and decision.notes["wm_gate"] is True
    assert decision.notes["wm_teacher"] is None and decision.notes["canon_ok_teacher"] is None
    odd = probed("Lorem ipsum.")
    assert decided(agent, DRAFT, "Lorem ipsum.", odd, KEEP)[0].notes["agreement"] == 0.0


def test_an_unprivileged_teacher_is_not_told() -> None:
    agent = rollout(gate_reference="teacher_unprivileged", teacher_adapter="other")
    decision, asked = decided(agent, DRAFT, TRUTH, probed(), desk("pen 1"), KEEP)
    teacher = asked[3]
    assert (teacher.adapter, teacher.purpose) == ("other", "teacher")
    assert TRUTH not in teacher.messages[-1].content
    assert "Training reference" not in teacher.messages[-1].content
    assert decision.notes["agreement"] == round(6 / 7, 6)


@pytest.mark.parametrize("context", ["student", "env"])
def test_without_the_gate_no_teacher_is_asked(context: str) -> None:
    student = desk("pen 1")
    decision, asked = decided(rollout(context=context), DRAFT, student, probed(), KEEP)
    assert [part.purpose for part in asked if isinstance(part, Generate)] == ["draft", "reflect"]
    notes, told = decision.notes, student if context == "student" else TRUTH
    assert notes["context"] == told and told in asked[-1].messages[-1].content
    assert notes["context_source"] == ("wm" if context == "student" else "env")
    assert notes["agreement"] is notes["wm_gate"] is notes["wm_teacher"] is None
    assert notes["env_next_of_draft"]["observation"] == TRUTH


def test_without_future_state_nothing_is_asked_at_all() -> None:
    decision, asked = decided(rollout(future_state=False), DRAFT, SAFE)
    assert [type(part) for part in asked] == [Generate, Generate]
    assert "Unknown." in asked[1].messages[-1].content
    assert decision.action == "go to safe 1" and decision.notes["context_source"] == "none"
    assert decision.notes["context"] == "" and decision.notes["env_next_of_draft"] is None


def test_a_draft_that_cannot_be_read_is_not_probed() -> None:
    decision, asked = decided(rollout(), "Go on.", "I go.")
    assert [part.purpose for part in asked] == ["draft", "draft: retry"]
    assert decision.notes["path"] == "draft_only_fallback"
    assert decision.notes["shown"] == "I go." and decision.notes["context_source"] == "none"
    assert set(decision.notes) >= NOTED


def test_a_draft_that_ends_the_episode_is_taken() -> None:
    end = probed(ended=True)
    decision, _ = decided(rollout(), DRAFT, desk("cd 1"), end, TRUTH)
    notes = decision.notes
    assert decision.action == "go to desk 1" and notes["path"] == "reflection_skipped"
    assert (notes["p"], notes["q"], notes["gate"]) == (None, None, False)
    assert notes["env_next_of_draft"]["success"] and notes["wm_teacher"] == TRUTH
    assert notes["agreement"] == round(4 / 7, 6) and notes["context_source"] == "env"
    assert notes["shown"] == "Thought: The desk is near.\nAction: go to desk 1"
    cut = replace(end, terminated=False, truncated=True, success=False)
    assert decided(rollout(), DRAFT, TRUTH, cut, TRUTH)[0].notes["path"] == "reflection_skipped"
    anyway = rollout(reflect_after_terminal_probe=True)
    decision, _ = decided(anyway, DRAFT, TRUTH, end, TRUTH, SAFE)
    assert decision.action == "go to safe 1" and decision.imagined is None


def test_a_revised_action_has_no_prediction() -> None:
    decision, _ = decided(rollout(), DRAFT, TRUTH, probed(), TRUTH, SAFE)
    assert decision.action == "go to safe 1" and decision.imagined is None
    assert decision.notes["gate"] is True and decision.notes["context"] == TRUTH


@pytest.mark.parametrize(
    "options",
    [
        {"tau_wm": 1.1},
        {"tau_wm": float("nan")},
        {"gate_reference": "oracle"},
        {"context": "both"},
        {"tau_p": 2},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        RolloutConfig(**options)


def test_the_student_is_a_language_world_model() -> None:
    with pytest.raises(OptionError, match="LanguageWorldModel"):
        RolloutAgent(None, None, NullWorldModel())  # type: ignore[arg-type]
    agent = RolloutAgent(None, None, LanguageWorldModel(Silent()))
    assert agent.config == RolloutConfig() and agent.needs() == CoMapConfig().needs()
    assert agent.config.describe()["gate_reference"] == "teacher"


def make(steps: int = 6) -> gym.Env[str, str]:
    options: dict[str, Any] = {"source": "generated", "split": "valid_seen"}
    return gym.make("comap/ALFWorld-v0", max_episode_steps=steps, **options)


def answer(request: Generate) -> str:
    """Reply from the request alone: some drafts are revised, some are nonsense."""
    said = request.messages[-1].content
    number = (sum(map(ord, said)) + request.sampling.seed) % 12
    if request.purpose in ("world model", "imagine"):
        return "Nothing happens." if number % 2 else desk("pen 1")
    if request.purpose == "teacher":
        return said.partition("<reference>\n")[2].partition("\n</reference>")[0]
    if request.purpose.startswith("reflect"):
        verb = "inventory" if number % 2 else "look"
        return SAFE.replace("go to safe 1", verb) if number % 3 else "Hm."
    return "Hm." if number % 4 == 3 else f"Action: {('look', 'inventory', 'sing')[number % 3]}"


def played(live: int, agent: Any = None, **options: Any) -> list[Trajectory]:
    lm = Silent(answer)
    world_model = LanguageWorldModel(lm, adapter="wm")
    agent = agent or rollout(world_model, **options)
    return run_episodes(make, agent, TASKS[:4], lm=lm, world_model=world_model, live=live)


def test_rollouts_do_not_depend_on_what_else_is_played() -> None:
    found = played(1)
    assert [trajectory.to_json() for trajectory in played(3)] == [t.to_json() for t in found]
    steps = [step for trajectory in found for step in trajectory.steps]
    assert not any(trajectory.error for trajectory in found) and len(steps) == 24
    paths = {step.notes["path"] for step in steps}
    assert paths == {"reflected", "draft_only_fallback", "reflection_skipped"}
    assert {step.notes["context_source"] for step in steps} == {"wm", "env", "none"}
    for step in steps:
        assert set(step.notes) >= NOTED
        told = step.notes["env_next_of_draft"]
        assert (told is None) is (step.notes["path"] == "draft_only_fallback")
        if told is None:
            continue
        assert step.notes["wm_teacher"] == told["observation"]
        if step.action == step.notes["draft_action"]:
            assert (told["observation"], told["truncated"]) == (step.observation, step.truncated)
        adapters = {call.purpose: call.adapter for call in step.calls}
        assert adapters["teacher"] == "wm_ema" and adapters["draft"] == "agent"
        assert adapters["world model"] == "wm"


def test_a_rollout_told_predictions_alone_acts_as_at_inference() -> None:
    options: dict[str, Any] = {"p_source": "verbal", "q_source": "proxy", "adapter": "agent"}
    trained = played(2, context="student", reflect_after_terminal_probe=True)
    plain = played(2, CoMapAgent(CoMapConfig(**options)))
    for one, other in zip(trained, plain, strict=True):
        assert len(one.steps) == len(other.steps) == 6
        for left, right in zip(one.steps, other.steps, strict=True):
            assert replace(left, notes={}) == replace(right, notes={})
            assert {**left.notes, **right.notes} == left.notes


def test_faults_are_those_of_one_episode() -> None:
    def reply(request: Generate) -> str | Exception:
        return LanguageModelError("down") if request.purpose == "teacher" else answer(request)

    lm = Silent(reply)
    model = LanguageWorldModel(lm, adapter="wm")
    found = run_episode(make(), rollout(model), task=TASKS[0], lm=lm, world_model=model)
    assert found.error is not None and "down" in found.error
    lm = Silent(answer)
    model = LanguageWorldModel(lm, adapter="wm")
    stage = ImaginedEnv(make(), "null", horizon=3)
    found = run_episode(stage, rollout(model), task=TASKS[0], lm=lm, world_model=model)
    assert found.error is not None and found.error.startswith("OptionError: a probe needs the real")
