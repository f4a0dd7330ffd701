"""A long silence ends: while models work, a run and a training say how far they are."""

from __future__ import annotations

import io

import gymnasium as gym
import pytest

from comap.agents import ReActAgent, create_agent, run_episodes, stream_episodes
from comap.agents.requests import ModelWork, RequestBatcher
from comap.benchmarks import display
from comap.benchmarks.display import Display, RunDisplay, TrainingDisplay, run_progress
from comap.errors import LanguageModelError
from comap.lm import Completion, Generate, Message
from kits.scripted import HashedModel


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(display.time, "monotonic", clock)
    return clock


@pytest.fixture
def screen():
    return pytest.importorskip("rich.console").Console(file=io.StringIO(), width=200)


def lines(screen):
    return screen.file.getvalue().splitlines()


def test_a_run_says_every_ten_seconds_what_its_models_do(clock, screen):
    run_display = RunDisplay(2, screen)
    run_display.start(0)
    clock.now += 1
    run_display.work(ModelWork(asked=32))
    clock.now += 9.5
    run_display.beat()
    run_display.beat()
    assert lines(screen) == [
        "Playing: 0 of 2 tasks, 0 steps (0.0 a second), 0 model calls (32 under way), "
        "0 tokens (0 a second)"
    ]
    run_display.work(ModelWork(asked=32, answered=32, tokens=19_000))
    run_display.work(ModelWork(asked=64, answered=32, tokens=19_000))
    clock.now += 9
    run_display.beat()
    assert len(lines(screen)) == 1, "ten seconds have not passed"
    clock.now += 1
    run_display.beat()
    assert lines(screen)[1].endswith("32 model calls (32 under way), 19,000 tokens (974 a second)")


def test_a_quick_run_says_nothing_of_its_models(clock, screen):
    run_display = RunDisplay(1, screen)
    run_display.start(0)
    run_display.work(ModelWork(asked=1))
    clock.now += 5
    run_display.beat()
    assert lines(screen) == []


def test_a_training_says_what_is_under_way_before_its_first_episode_ends(clock, screen):
    training_display = TrainingDisplay(screen)
    training_display.show({"event": "calls", "update": 3, "asked": 64, "answered": 0, "tokens": 0})
    clock.now += 11
    training_display.beat()
    assert lines(screen) == ["update 3: 0 model calls (64 under way), 0 tokens (0 a second)"]
    training_display.show(
        {"event": "calls", "update": 3, "asked": 64, "answered": 64, "tokens": 5000}
    )
    training_display.show({"event": "episode", "update": 3, "done": 64, "of": 64, "won": 1})
    clock.now += 59
    training_display.beat()
    assert len(lines(screen)) == 1
    clock.now += 2
    training_display.beat()
    assert lines(screen)[1] == "update 3: 64 of 64 episodes, success 1.6 %, still at work"


def test_the_calls_of_another_piece_of_work_are_counted_anew(clock, screen):
    work_display = Display(screen)
    work_display.begin("first")
    work_display.work(ModelWork(100, 90, 1000))
    work_display.begin("second")
    clock.now += 100
    work_display.work(ModelWork(2, 1, 50))
    clock.now += 10
    work_display.beat()
    assert lines(screen) == ["second: 1 model calls (1 under way), 50 tokens (5 a second)"]


def test_a_terminal_shows_it_beside_the_bar(clock):
    progress = pytest.importorskip("rich.progress")
    console = pytest.importorskip("rich.console")
    terminal = console.Console(file=io.StringIO(), force_terminal=True, width=200)
    with progress.Progress(console=terminal, auto_refresh=False) as bars:
        run_display = RunDisplay(4, terminal, bars)
        run_display.start(0)
        run_display.work(ModelWork(8, 4, 400))
        clock.now += 2
        run_display.beat()
        (bar,) = bars.tasks
        assert bar.description.endswith("4 model calls (4 under way), 400 tokens (200 a second)")


def test_the_heart_beats_while_something_else_is_done(monkeypatch):
    beats = []
    monkeypatch.setattr(display, "_BEAT", 0.001)
    with run_progress(1) as run_display:
        monkeypatch.setattr(run_display, "beat", lambda: beats.append(1))
        while not beats:
            pass
    count = len(beats)
    assert count and len(beats) == count, "its thread has ended"


class Slow(HashedModel):  # type: ignore[misc, valid-type]
    """Answers, and fails at every second request of a batch."""

    def generate(self, requests):
        replies = super().generate(requests)
        return [
            LanguageModelError("no") if number % 2 else reply
            for number, reply in enumerate(replies)
        ]


def test_calls_are_counted_before_and_after_they_are_answered():
    work_reports = []
    lm = Slow()
    requests = [Generate((Message("user", "go"),), purpose=str(i)) for i in range(4)]
    replies = RequestBatcher(lm, work_reports.append)(requests)
    good = [reply for reply in replies if isinstance(reply, Completion)]
    tokens = sum(reply.prompt_tokens + reply.completion_tokens for reply in good)
    assert len(good) == 2
    assert work_reports == [ModelWork(4, 0, 0), ModelWork(4, 4, tokens)]


def test_a_run_of_episodes_tells_of_its_calls():
    work_reports = []

    def make():
        return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=2)

    tasks = make().unwrapped.tasks.ids[:2]
    episodes = run_episodes(make, ReActAgent(), tasks, lm=Slow(), on_work=work_reports.append)
    calls = sum(len(step.calls) for episode in episodes for step in episode.steps)
    assert work_reports[0].answered == 0 < work_reports[0].asked
    assert work_reports[-1].answered == work_reports[-1].asked >= calls
    assert list(stream_episodes(make, create_agent("random"), tasks, on_work=work_reports.append))


def test_agents_that_search_say_what_a_step_takes():
    rap = create_agent("rap", candidates=3, rollouts=5, depth=2, candidate_rounds=2)
    assert rap.calls_per_step() == (
        "up to 90 model calls and 30 predictions (3 candidates x 5 rollouts x depth 2)"
    )
    unevaluated = create_agent("rap", evaluation_weight=0, log_probs="scored", decoding="scored")
    assert unevaluated.calls_per_step().startswith("up to 32 model calls and 128 predictions")
    webevolver = create_agent("webevolver", candidates=3, depth=2)
    assert webevolver.calls_per_step().startswith("up to 9 model calls and 6 predictions")
