"""Rollouts that are played while an earlier update is trained, in a thread (asynchronous updates)."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """Nobody wants these rollouts any more."""


class Aged(NamedTuple, Generic[T]):
    """Rollouts of an update, and how many updates lie between the weights that played it and it."""

    rollouts: T
    age: int


class RolloutsAhead(Generic[T]):
    """Plays the rollouts of updates in a thread, in their order, at most so many updates ahead.

    For each update call `pause`, after which nothing is played; send the weights to the engine; and call
    `take`, which returns the update's rollouts and lets the thread play those of later ones.

    Args:
        play: Plays the rollouts of an update, by its number.
        ahead: How many updates later than the one that is trained.
        end: The number after the last update's.
    """

    def __init__(self, play: Callable[[int], T], *, ahead: int, end: int) -> None:
        self._play = play
        self._ahead = ahead
        self._end = end
        self._thread: Thread | None = None

        # Both threads read and change what is below, one at a time.
        self._changed = Condition()
        self._finished: dict[int, Aged[T]] = {}
        self._error: BaseException | None = None
        self._is_playing = False
        self._is_stopped = False
        self._last = -1  # the last update whose rollouts may be played now
        self._weights = 0  # the update before which the engine's weights were sent

    def pause(self, update: int) -> None:
        """Wait until an update's rollouts are there, if any are begun, and play none behind them."""
        with self._changed:
            if self._thread is None:
                return
            self._last = update
            self._changed.wait_for(lambda: self._has(update) and not self._is_playing)
            self._raise_error(update)

    def take(self, update: int) -> Aged[T]:
        """Return an update's rollouts, and play on with the weights that the engine has now."""
        with self._changed:
            self._weights = update
            self._last = min(update + self._ahead, self._end - 1)
            if self._thread is None:
                self._thread = Thread(target=self._play_all, args=(update,), daemon=True)
                self._thread.start()
            self._changed.notify_all()

            self._changed.wait_for(lambda: self._has(update))
            self._raise_error(update)
            return self._finished.pop(update)

    def check(self) -> None:
        """Raise an error in the thread where its rollouts are not wanted any more."""
        if self._is_stopped:
            raise Stopped

    def close(self) -> None:
        """End the thread; what it plays is dropped."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _has(self, update: int) -> bool:
        return update in self._finished or self._error is not None

    def _raise_error(self, update: int) -> None:
        if self._error is not None and update not in self._finished:
            raise self._error

    def _play_all(self, first: int) -> None:
        """Play the rollouts of all updates from one on, each when it may be."""
        try:
            for update in range(first, self._end):
                with self._changed:
                    self._changed.wait_for(lambda: self._is_stopped or update <= self._last)  # noqa: B023
                    if self._is_stopped:
                        return
                    self._is_playing = True
                    age = update - self._weights

                rollouts = self._play(update)
                with self._changed:
                    self._is_playing = False
                    self._finished[update] = Aged(rollouts, age)
                    self._changed.notify_all()
        except BaseException as error:  # training ends with it
            with self._changed:
                self._is_playing = False
                self._error = error
                self._changed.notify_all()
