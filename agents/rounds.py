"""Rounds: whatever is played on environments, much of it at once, its questions answered together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

from .answers import Answers, Question
from .stage import Stage
from .theatre import Theatre
from .thinking import Playing

__all__ = ["Playable", "play_rounds"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def play_rounds(
    theatre: Theatre,
    answers: Answers,
    items: Iterable[Item],
    live: int,
    play: Callable[[Stage, Item], Playing[Result]],
) -> Generator[tuple[int, Result], None, None]:
    """Play items, many at once, and yield each one's number and result as it ends.

    In each round what all of them wait for is answered in batches, and the answers are handed out. An
    item that ends makes room for the next. The environments are closed at the end.

    Args:
        theatre: Where to play; each item has an environment to itself.
        answers: Answers the questions.
        items: What is played, begun in this order.
        live: How many are played at the same time, at most.
        play: Given an environment and an item, plays it. It records what goes wrong there: what it
            raises ends everything.

    Example:
        >>> import gymnasium as gym, comap
        >>> def play(stage, task):
        ...     yield []
        ...     return stage.reset(task, None)[1]["step"]
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> tasks = make_env().unwrapped.tasks.ids[:2]
        >>> list(play_rounds(Theatre(make_env), Answers(None), tasks, 1, play))
        [(0, 0), (1, 0)]
    """
    waiting = deque(enumerate(items))
    running: list[Playable[Result]] = []
    with theatre:
        while waiting or running:
            while waiting and len(running) < live:
                number, item = waiting.popleft()
                stage = theatre.enter()
                run = Playable(number, stage, play(stage, item))
                running.append(run)
                if run.go_on(None):
                    theatre.leave(running.pop().stage)
                    yield run.number, run.result
            replies = iter(answers([question for run in running for question in run.questions]))
            asked, running = running, []
            for run in asked:
                if not run.go_on([next(replies) for _ in run.questions]):
                    running.append(run)
                    continue
                theatre.leave(run.stage)
                yield run.number, run.result


class Playable(Generic[Result]):
    """An item that is being played; it has a result once it has ended.

    Args:
        number: Its number.
        stage: Where it is played.
        playing: What plays it.

    Attributes:
        questions: What it waits for.
    """

    result: Result

    def __init__(self, number: int, stage: Stage, playing: Playing[Result]):
        self.number, self.stage = number, stage
        self.questions: list[Question] = []
        self._playing = playing

    def go_on(self, answers: Any) -> bool:
        """Hand out the answers to its questions; return whether it has ended."""
        try:
            self.questions = self._playing.send(answers)
        except StopIteration as stop:
            self.result = stop.value
            return True
        return False
