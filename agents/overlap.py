"""Overlapped rounds: while one model answers some episodes, another answers others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Generic, NamedTuple, TypeVar

from .answers import Answers, Question
from .rounds import Playable
from .stage import Stage
from .theatre import Theatre
from .thinking import Playing

__all__ = ["play_overlapped"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_MODELS = 16  # threads; a run has two or three models


class _Asked(NamedTuple):
    """A question of an episode, and the place of its answer."""

    run: Playable[Any]
    place: int
    question: Question


def play_overlapped(
    theatre: Theatre,
    answers: Answers,
    items: Iterable[Item],
    live: int,
    play: Callable[[Stage, Item], Playing[Result]],
) -> Generator[tuple[int, Result], None, None]:
    """Play items as `play_rounds` does, but let the policy draft while a world model predicts.

    Each model has a thread, and is asked for at most half of the episodes at once, so that models take
    turns with two halves. An episode goes on as soon as its own questions are answered. Environments,
    and models that belong to one episode at a time, are asked in the caller's thread. What comes of an
    item is the same; the order in which they end is not.

    Args:
        theatre: See `play_rounds`.
        answers: See `play_rounds`; two models must not share what only one thread may use.
        items: See `play_rounds`.
        live: See `play_rounds`.
        play: See `play_rounds`.

    Example:
        >>> import gymnasium as gym, comap
        >>> def play(stage, task):
        ...     yield []
        ...     return stage.reset(task, None)[1]["step"]
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> tasks = make_env().unwrapped.tasks.ids[:2]
        >>> sorted(play_overlapped(Theatre(make_env), Answers(None), tasks, 2, play))
        [(0, 0), (1, 0)]
    """
    with theatre, ThreadPoolExecutor(_MOST_MODELS, "comap-answers") as pool:
        turns = _Turns[Result](theatre, answers, pool, max(1, -(-live // 2)))
        waiting = deque(enumerate(items))
        try:
            while waiting or turns.playing:
                while waiting and turns.playing < live:
                    number, item = waiting.popleft()
                    stage = theatre.enter()
                    turns.go_on(Playable(number, stage, play(stage, item)), None)
                turns.turn()
                yield from turns.ended()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _Turns(Generic[Result]):
    """Who waits for what, and who answers."""

    def __init__(self, theatre: Theatre, answers: Answers, pool: ThreadPoolExecutor, most: int):
        self.playing = 0
        self._theatre, self._answers, self._pool, self._most = theatre, answers, pool, most
        self._queues: dict[Hashable, deque[_Asked]] = {}
        self._busy: dict[Future[list[Any]], tuple[Hashable, list[_Asked]]] = {}
        self._begun: set[int] = set()
        self._replies: dict[int, dict[int, Any]] = {}
        self._ended: list[tuple[int, Result]] = []

    def go_on(self, run: Playable[Result], replies: Any) -> None:
        """Hand out answers to an episode; queue what it asks next, or note that it has ended."""
        while True:
            if run.number not in self._begun:
                self._begun.add(run.number)
                self.playing += 1
            if run.go_on(replies):
                self.playing -= 1
                self._theatre.leave(run.stage)
                self._ended.append((run.number, run.result))
                return
            if run.questions:
                break
            replies = []
        self._replies[run.number] = {}
        for place, question in enumerate(run.questions):
            who = self._answers.who(question)
            self._queues.setdefault(who, deque()).append(_Asked(run, place, question))

    def turn(self) -> None:
        """Answer what this thread must answer; else ask models that are free, and wait for one."""
        here = self._queues.pop(None, None)
        if here:
            batch = list(here)
            self._hand_out(batch, self._answers([asked.question for asked in batch]))
            return
        for who in [who for who, queue in self._queues.items() if queue]:
            if all(who != other for other, _ in self._busy.values()):
                queue = self._queues[who]
                batch = [queue.popleft() for _ in range(min(self._most, len(queue)))]
                questions = [asked.question for asked in batch]
                self._busy[self._pool.submit(self._answers, questions)] = who, batch
        done, _ = wait(self._busy, return_when=FIRST_COMPLETED)
        for future in [one for one in self._busy if one in done]:  # in the order they were asked
            _, batch = self._busy.pop(future)
            self._hand_out(batch, future.result())

    def ended(self) -> list[tuple[int, Result]]:
        """Return what has ended since the last call."""
        found, self._ended = self._ended, []
        return found

    def _hand_out(self, batch: list[_Asked], replies: list[Any]) -> None:
        for asked, reply in zip(batch, replies, strict=True):
            known = self._replies[asked.run.number]
            known[asked.place] = reply
            if len(known) == len(asked.run.questions):
                self.go_on(asked.run, [known[place] for place in range(len(known))])
