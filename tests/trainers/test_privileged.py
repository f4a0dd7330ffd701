"""The teacher is told what really follows, and nobody else is (METHODS.md 4.1, item 13)."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap
from comap.agents import run_episodes
from comap.agents.create import AGENTS, agent_options, create_agent
from comap.envs import Outcome
from comap.envs.alfworld import ALFWorldEnv
from comap.envs.conformance.transcripts import load
from comap.facts import State
from comap.lm.prompts import OVERHEAD
from comap.trainers.privileged import privileged_prompt
from comap.trainers.rollout_agent import RolloutAgent, RolloutConfig
from comap.trajectory import Call, Trajectory, Turn
from comap.worldmodel import LanguageWorldModel, Query, transitions_of

HashedModel = load(f"{Path(__file__).parents[1] / 'agents' / 'scripted.py'}:HashedModel")
ROOT = Path(comap.__file__).parent
TASKS = ALFWorldEnv(split="valid_seen", source="generated").tasks.ids
MARK = re.compile(r"zq[0-9a-f]{10}")
BLOCK = re.compile(r"^seen:|## Training reference|</?reference>|training only", re.MULTILINE)

SMALL: dict[str, dict[str, Any]] = {
    "rap": {"candidates": 2, "depth": 2, "rollouts": 2},
    "comap": {"p_source": "verbalizer", "tau_p": 0.2, "tau_q": 0.2},
}
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"prompts": "brief", "history_turns": 3},
    {"decoding": "masked", "prompts": "brief", "state_text": "belief"},
    {"decoding": "scored", "state_text": "belief", "examples": 0},
)
TRAINING = {"rollout_agent", "world_model_samples"}
"""The modules that may build the teacher's prompt: they gather or make what is trained on."""


class Unmarked:
    """A canonicalizer that does not see the marks."""

    def __init__(self, inner: Any):
        self.inner, self.version = inner, inner.version

    def initial(self, goal: str, observation: str) -> State:
        found: State = self.inner.initial(goal, MARK.sub("", observation))
        return found

    def update(self, state: State, action: str, observation: str) -> State:
        text = MARK.sub("", observation).strip()
        found: State = self.inner.update(state, action, text)
        return found

    def action(self, text: str) -> str:
        return str(self.inner.action(text))


class Marked(ALFWorldEnv):
    """Every observation ends with a mark that follows from the actions up to it, and from no fewer."""

    def __init__(self, **options: Any):
        super().__init__(source="generated", split="valid_seen", **options)
        self.canonicalizer = Unmarked(self.canonicalizer)  # type: ignore[assignment]

    def _act(self, action: str) -> Outcome:
        outcome = super()._act(action)
        path = [turn.action for turn in self._turns[1:]] + [action]
        mark = "zq" + hashlib.sha256(repr(path).encode()).hexdigest()[:10]
        return outcome._replace(observation=f"{outcome.observation} {mark}")


def marks(*texts: str) -> set[str]:
    return {mark for text in texts for mark in MARK.findall(text)}


def text_of(call: Call) -> str:
    assert call.messages is not None
    return "\n".join(content for _, content in call.messages) + call.prefix


def with_what_was_seen(trials: Iterable[Trajectory]) -> Iterator[tuple[Call, set[str]]]:
    """Yield every call of a task's trials, with the marks of what had been observed before it."""
    seen: set[str] = set()
    for trajectory in trials:
        for step in trajectory.steps:
            yield from ((call, set(seen)) for call in step.calls)
            seen |= marks(step.observation)
        yield from ((call, set(seen)) for call in trajectory.review)


def model(lm: Any, style: dict[str, Any], **options: Any) -> LanguageWorldModel:
    told = {key: style[key] for key in ("prompts", "state_text") if key in style}
    return LanguageWorldModel(lm, adapter="wm", **told, **options)


def make(steps: int = 5) -> gym.Env[str, str]:
    return gym.wrappers.TimeLimit(Marked(), max_episode_steps=steps)


def played(agent: Any, lm: Any, world_model: Any, task: str) -> list[Trajectory]:
    found = run_episodes(make, agent, [task], lm=lm, world_model=world_model, keep="prompts")
    assert not any(trajectory.error for trajectory in found), found[-1].error
    return found


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_no_agent_is_told_what_has_not_been_observed(name: str) -> None:
    asks = agent_options(name) is not None
    asked = told = 0
    for style in STYLES if asks and name != "paw" else STYLES[:1]:  # "paw" has one style
        for task in TASKS[:2]:
            lm = HashedModel()
            agent = create_agent(name, **(SMALL.get(name, {}) | style if asks else {}))
            found = played(agent, lm, model(lm, style), task)
            assert all(marks(step.observation) for one in found for step in one.steps)
            for request in lm.asked:
                text = "\n".join(message.content for message in request.messages)
                assert not BLOCK.search(text + request.prefix), f"{request.purpose}: {text}"
            for call, seen in with_what_was_seen(found):
                asked, shown = asked + 1, marks(text_of(call))
                assert shown <= seen, f"{call.purpose} is told {shown - seen}"
                told += bool(shown)
    assert (asked > 0) is asks and (told > 0) is asks


@pytest.mark.parametrize("prompts", ["standard", "brief"])
@pytest.mark.parametrize("state_text", ["history", "belief"])
@pytest.mark.parametrize("ending", ["facts", "words"])
def test_a_world_model_is_not_told_what_has_not_been_observed(
    prompts: str, state_text: str, ending: Any
) -> None:
    lm = HashedModel()
    world_model = model(lm, {"prompts": prompts, "state_text": state_text}, ending=ending)
    (found,) = played(create_agent("random"), lm, world_model, TASKS[2])
    for query, truth in transitions_of(found):
        seen = marks(*(turn.observation for turn in query.history))
        lm.asked.clear()
        world_model.predict([query])
        (request,) = lm.asked
        text = "\n".join(message.content for message in request.messages)
        assert not BLOCK.search(text) and marks(text) <= seen
        secret = "\n".join(m.content for m in privileged_prompt(world_model, query, truth))
        assert BLOCK.search(secret) and marks(truth) <= marks(secret)  # the search does find it


def test_the_search_finds_what_the_oracle_tells() -> None:
    lm = HashedModel()
    found = played(create_agent("comap", **SMALL["comap"]), lm, "oracle", TASKS[0])
    assert any(marks(text_of(call)) - seen for call, seen in with_what_was_seen(found))


@pytest.mark.parametrize("style", STYLES[:3], ids=["standard", "brief", "belief"])
@pytest.mark.parametrize("reference", ["teacher", "env", "teacher_unprivileged"])
def test_in_training_only_the_teacher_is_told(style: dict[str, Any], reference: Any) -> None:
    lm = HashedModel()
    world_model = model(lm, style)
    options = {"p_source": "verbalizer", "tau_p": 0.2, "tau_q": 0.2, "adapter": "agent", **style}
    agent = RolloutAgent(RolloutConfig(gate_reference=reference, **options), None, world_model)
    purposes = set()
    for task in TASKS[:3]:
        (found,) = played(agent, lm, world_model, task)
        notes = [step.notes for step in found.steps for _ in step.calls]
        calls = with_what_was_seen([found])
        for said, (call, seen) in zip(notes, calls, strict=True):
            text, purpose = text_of(call), call.purpose.partition(":")[0]
            purposes.add(purpose)
            privileged = purpose == "teacher" and reference == "teacher"
            assert bool(BLOCK.search(text)) is privileged, call.purpose
            if purpose == "reflect":  # it is told the truth where the gate is shut, and says so
                seen |= marks(said["context"])
                assert said["context_source"] == "env" or not marks(said["context"])
            elif privileged:
                truth = marks(said["env_next_of_draft"]["observation"])
                assert truth and truth <= marks(text)
                seen |= truth
            assert marks(text) <= seen, call.purpose
            assert (call.adapter == "wm_ema") is (purpose == "teacher")
    expected = {"draft", "reflect", "world model"}
    assert purposes == expected | ({"teacher"} if reference != "env" else set())


def query(turns: int = 3) -> Query:
    history = [Turn(None, "You are in a room. Your task is to: wait.")]
    history += [Turn(f"go to place {n}", f"You arrive at place {n}.") for n in range(turns)]
    return Query("comap/ALFWorld-v0", "wait.", tuple(history), State(), "open box 1")


def test_the_truth_stands_last_but_for_the_marker() -> None:
    lm = HashedModel()
    (asked,) = privileged_prompt(LanguageWorldModel(lm), query(), "The $truth is out.")
    (plain,) = LanguageWorldModel(lm).prompt(query())
    start, _, end = asked.content.partition("<reference>\nThe $truth is out.\n</reference>")
    assert end == "\n\n## Output\nPredicted next state:" and plain.content.endswith(end)
    assert plain.content.startswith(start.partition("\n\n## Training reference")[0])
    (brief,) = privileged_prompt(LanguageWorldModel(lm, prompts="brief"), query(), "It is open.")
    (short,) = LanguageWorldModel(lm, prompts="brief").prompt(query())
    assert brief.content == f"{short.content}\nseen: It is open."


@pytest.mark.parametrize("prompts", ["standard", "brief"])
@pytest.mark.parametrize("size", [0, 10, 5000])
def test_the_teacher_s_prompt_keeps_its_length(prompts: Any, size: int) -> None:
    lm = HashedModel()
    model = LanguageWorldModel(lm, prompts=prompts, max_length=1200, max_new_tokens=100)
    messages = privileged_prompt(model, query(200), "word " * size)
    counted = sum(lm.count_tokens(message.content) + OVERHEAD for message in messages)
    assert counted + 100 <= 1200
    assert "open box 1" in messages[-1].content and "place 199" in messages[-1].content
    assert messages[-1].content.count("word") <= 1200 // 4


def modules() -> list[Path]:
    hidden = {"tests", "build", "examples", "docs", "dist", "runs"}
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    return sorted(
        path
        for path in found
        if not any(part in hidden or part.startswith(".") for part in path.parts[:-1])
    )


def imported_by(path: Path) -> set[str]:
    """Return the last names of everything that a module imports, wherever it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").rpartition(".")[2], *(a.name for a in node.names)}
    return names


def strings_in(path: Path) -> set[str]:
    tree = ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
    return {n.value for n in tree if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_only_training_imports_the_teacher_s_prompt() -> None:
    found = {path for path in modules() if {"privileged", "privileged_prompt"} & imported_by(path)}
    allowed = {Path("trainers", f"{name}.py") for name in TRAINING}
    assert found <= allowed, sorted(map(str, found - allowed))
    assert Path("trainers/rollout_agent.py") in found
    above = {path for path in modules() if "rollout_agent" in imported_by(path)}
    assert all(path.parts[0] in ("trainers", "benchmarks") for path in above), above


def test_nobody_else_names_its_template() -> None:
    templates = {path.relative_to(ROOT).parts[0] for path in ROOT.rglob("prompts/*/privileged.txt")}
    assert templates - {"build"} == {"trainers"}
    named = [
        path
        for path in modules()
        if path.parts[0] not in ("trainers", "envs")  # environments fill no prompts
        and {"privileged", "comap.trainers.privileged"} & strings_in(path)
    ]
    assert named == []
