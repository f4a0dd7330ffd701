"""Suffix rollouts: each branch ends as an episode of its own would, whatever else is played."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Decision, ExpertAgent, View, run_episode
from comap.agents.react import ReActAgent, ReActConfig
from comap.envs import Snapshot
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, OptionError, SnapshotError
from comap.trainers.suffix import Branch, Outcome, suffix_outcomes
from comap.trainers.suffix_record import HEADER, OUTCOMES
from comap.worldmodel import ImaginedEnv

HashedModel = load(f"{Path(__file__).parents[1] / 'agents' / 'scripted.py'}:HashedModel")
LIMIT = 7


def real() -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=LIMIT
    )


TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:4]  # type: ignore[attr-defined]
PLANS = {
    task: tuple(step.action for step in run_episode(real(), ExpertAgent(), task=task).steps)
    for task in TASKS
}
REACT = ReActAgent(ReActConfig(temperature=0, prompts="brief"))
BRANCHES = [
    Branch(task, PLANS[task][:length], action, seed)
    for task in TASKS
    for length in (0, 2)
    for action in ("look", "inventory", PLANS[task][length])
    for seed in (0, 5)
]


class After:
    """Takes some actions, and then does what another agent does."""

    name = "after"

    def __init__(self, actions: tuple[str, ...], agent: Any):
        self._actions, self._agent = actions, agent

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        if view.step < len(self._actions):
            return Decision(self._actions[view.step])
        return (yield from self._agent.decide(view))


def as_an_episode(branch: Branch, agent: Any, lm: Any = None) -> Outcome:
    """What a whole episode of its own says of a branch."""
    actions = (*branch.prefix, branch.action)
    found = run_episode(real(), After(actions, agent), task=branch.task, seed=branch.seed, lm=lm)
    assert (
        found.error is None
        and tuple(step.action for step in found.steps)[: len(actions)] == actions
    )
    observation = found.steps[len(branch.prefix)].observation
    return Outcome(
        found.success, found.score, len(found.steps) - len(branch.prefix), observation, None
    )


def test_branches_end_as_episodes_of_their_own_and_live_does_not_matter() -> None:
    sampling = ReActAgent(ReActConfig(temperature=1.0, prompts="brief"))
    expected = [as_an_episode(branch, sampling, HashedModel()) for branch in BRANCHES]
    assert len({outcome.observation for outcome in expected}) > 5
    for live in (1, 3, 32):
        assert suffix_outcomes(real, sampling, BRANCHES, lm=HashedModel(), live=live) == expected


def test_success_score_and_the_step_limit_are_those_of_the_end() -> None:
    task = TASKS[3]  # its plan has six actions: one may be wasted, two not
    assert len(PLANS[task]) == LIMIT - 1
    late = ("look", *PLANS[task][:3])
    found = suffix_outcomes(
        real,
        ExpertAgent(),
        [
            Branch(task, (), PLANS[task][0], 0),
            Branch(task, (), "look", 0),
            Branch(task, late, "look", 0),
            Branch(task, late, PLANS[task][3], 0),
        ],
    )
    assert [one.success for one in found] == [True, True, False, True]
    assert [one.steps for one in found] == [6, 7, 3, 3]
    assert found[0].ret == 1.0 and 0 < found[2].ret < 1 and not any(one.error for one in found)


def test_equal_branches_are_played_once() -> None:
    once, lm = HashedModel(), HashedModel()
    few = BRANCHES[:3]
    single = suffix_outcomes(real, REACT, few, lm=once)
    done: list[list[Outcome]] = []
    found = suffix_outcomes(real, REACT, [*few, *few, few[1]], lm=lm, on_done=done.append)
    assert found == [*single, *single, single[1]]
    assert len(lm.asked) == len(once.asked) and sum(map(len, done)) == 3
    assert suffix_outcomes(real, REACT, [], lm=lm) == []


@pytest.mark.parametrize(
    ("task", "prefix", "told"),
    [
        (TASKS[0], (*PLANS[TASKS[0]], "look"), "EngineError: expected the episode to go on"),
        (TASKS[0], PLANS[TASKS[0]], "ended at action 4"),
        (TASKS[0], ("look",) * LIMIT, f"ended at action {LIMIT}"),
        ("generated/nowhere", (), "TaskNotFound"),
    ],
)
def test_a_prefix_that_does_not_fit_is_an_error(task: str, prefix: Any, told: str) -> None:
    good = Branch(TASKS[1], (), "look", 0)
    bad = [Branch(task, prefix, action, 0) for action in ("look", "inventory")]
    found = suffix_outcomes(real, ExpertAgent(), [bad[0], good, bad[1]], live=1)
    assert found[0] == found[2] and told in (found[0].error or "")
    assert (found[0].success, found[0].ret, found[0].steps) == (False, 0.0, 0)
    assert found[1].success and found[1].error is None


class Nervous:
    """Breaks where it is told that it carries nothing; else it does as the expert does."""

    name = "nervous"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield []
        if view.history[-1].action == "inventory":
            raise RuntimeError("no!")
        return Decision(view.expert_action())


def test_a_fault_of_the_agent_is_its_own_branchs_alone() -> None:
    actions = ("look", "inventory", "look again")
    branches = [Branch(TASKS[0], (), action, 0) for action in actions]
    found = suffix_outcomes(real, Nervous(), branches)
    assert [one.error for one in found] == [None, "RuntimeError: no!", None]
    assert [one.success for one in found] == [True, False, True] and found[1].ret == 0
    assert found[1].observation == "You are not carrying anything."


class Brittle(gym.Wrapper[str, str, str, str]):
    """An environment that breaks for good at one action, and cannot go back after another."""

    stuck = False

    def step(self, action: str) -> Any:
        if action == "boom":
            self.stuck = True
        if self.stuck and action != "stick":
            raise RuntimeError("broken for good")
        self.stuck = self.stuck or action == "stick"
        return super().step("look" if action == "stick" else action)

    def restore(self, moment: Snapshot) -> Any:
        if self.stuck:
            raise SnapshotError("cannot go back")
        return self.env.get_wrapper_attr("restore")(moment)


class Waiting:
    """Gives up at once."""

    name = "waiting"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield []
        return Decision(None)


@pytest.mark.parametrize("live", [1, 3])
def test_branches_beside_one_that_breaks_the_environment_are_played_elsewhere(live: int) -> None:
    def brittle() -> gym.Env[str, str]:
        return Brittle(real())

    actions = ("look", "boom", "inventory", "stick", "look", "boom", PLANS[TASKS[0]][0])
    branches = [Branch(task, (), action, 0) for task in TASKS[:2] for action in actions]
    found = suffix_outcomes(brittle, Waiting(), branches, live=live)
    plain = suffix_outcomes(real, Waiting(), branches, live=live)
    for branch, one, other in zip(branches, found, plain, strict=True):
        if branch.action == "boom":
            assert one.error == "RuntimeError: broken for good"
        elif branch.action != "stick":
            assert one == other


def test_imagined_environments_are_refused() -> None:
    with pytest.raises(OptionError, match="imagined"):
        suffix_outcomes(lambda: ImaginedEnv(real(), "null"), ExpertAgent(), BRANCHES[:1])


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(OptionError, match="live"):
        suffix_outcomes(real, ExpertAgent(), BRANCHES[:1], live=0)
    with pytest.raises(OptionError, match="language model"):
        suffix_outcomes(real, REACT, BRANCHES[:1])
    for wrong in (
        ("t", ["look"], "look", 0),
        ("t", (), None, 0),
        ("t", (), "a", -1),
        (1, (), "", 0),
    ):
        with pytest.raises(OptionError, match="expected a branch"):
            Branch(*wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"ret": 2.0}, {"ret": float("nan")}, {"success": 1}, {"steps": "3"}, {"more": 1}]
)
def test_outcomes_are_read_with_care(change: dict[str, Any]) -> None:
    outcome = Outcome(True, 0.5, 3, "A room.\x1b", None)
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    with pytest.raises(DataCorrupt):
        Outcome.from_json(outcome.to_json() | change)


# Folders.


def play_to(
    folder: Path, branches: Any = None, agent: Any = REACT, **options: Any
) -> list[Outcome]:
    chosen = BRANCHES if branches is None else branches
    return suffix_outcomes(real, agent, chosen, lm=HashedModel(), folder=folder, **options)


@pytest.fixture(scope="module")
def plain() -> list[Outcome]:
    return suffix_outcomes(real, REACT, BRANCHES, lm=HashedModel())


@pytest.mark.parametrize("cut", [0, 1, 60, -1, -30])
def test_a_torn_file_is_gone_on_with(tmp_path: Path, plain: list[Outcome], cut: int) -> None:
    assert play_to(tmp_path, live=2) == plain
    lines = (tmp_path / OUTCOMES).read_bytes().splitlines(keepends=True)
    assert len(lines) == 16  # four tasks, two prefixes, two seeds
    (tmp_path / OUTCOMES).write_bytes(b"".join(lines[:5]) + lines[5][:cut])
    done: list[list[Outcome]] = []
    assert play_to(tmp_path, on_done=done.append) == plain
    assert len(done) == 11
    assert sorted((tmp_path / OUTCOMES).read_bytes().splitlines(keepends=True)) == sorted(lines)
    assert play_to(tmp_path, [*reversed(BRANCHES)], on_done=done.append) == plain[::-1]
    assert len(done) == 11


def test_what_ended_before_a_stop_is_kept(tmp_path: Path, plain: list[Outcome]) -> None:
    done: list[list[Outcome]] = []

    def stop(outcomes: list[Outcome]) -> None:
        done.append(outcomes)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_to(tmp_path, live=2, on_done=stop)
    assert play_to(tmp_path, on_done=done.append) == plain and len(done) == 16


def test_a_folder_of_other_rollouts_is_refused(tmp_path: Path) -> None:
    few = BRANCHES[:2]
    play_to(tmp_path, few)
    for other in (
        {"branches": BRANCHES[:3]},
        {"agent": ReActAgent(ReActConfig(temperature=0, prompts="brief", draft_tokens=9))},
        {"agent": ExpertAgent()},
    ):
        with pytest.raises(OptionError, match="other settings"):
            play_to(tmp_path, **{"branches": few, **other})
    play_to(tmp_path, few, live=1)  # how many at once does not matter
    assert [s["live"] for s in json.loads((tmp_path / HEADER).read_text())["sessions"]] == [32, 1]


def test_damaged_folders_are_not_gone_on_with(tmp_path: Path) -> None:
    play_to(tmp_path)
    lines = (tmp_path / OUTCOMES).read_bytes().splitlines(keepends=True)
    for wrong in (b"{}\n", b"[1]\n", lines[0].replace(b'"ret": 0.0', b'"ret": 7.5')):
        (tmp_path / OUTCOMES).write_bytes(wrong + b"".join(lines[1:]))
        with pytest.raises(DataCorrupt, match="line 1"):
            play_to(tmp_path)
    (tmp_path / OUTCOMES).write_bytes(b"".join(lines))
    (tmp_path / HEADER).unlink()
    with pytest.raises(DataCorrupt, match=HEADER):
        play_to(tmp_path)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    def again(_: object) -> None:
        play_to(tmp_path, BRANCHES[:2])

    with pytest.raises(OptionError, match="cannot record"):
        play_to(tmp_path, BRANCHES[:2], on_done=again)


def play_until_killed(folder: str) -> None:
    """Play into a folder, and die without a word when five units are done."""
    count = iter(range(4))

    def die(_: object) -> None:
        if next(count, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    play_to(Path(folder), live=3, on_done=die)


PROGRAM = """
import sys
from comap.envs.conformance.transcripts import load
load(sys.argv[1] + ":play_until_killed")(sys.argv[2])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_kill_loses_only_what_was_running(tmp_path: Path, plain: list[Outcome]) -> None:
    asked = [sys.executable, "-c", PROGRAM, str(Path(__file__)), str(tmp_path)]
    assert subprocess.run(asked).returncode == -signal.SIGKILL
    assert len((tmp_path / OUTCOMES).read_bytes().splitlines()) == 5
    assert play_to(tmp_path) == plain
