"""Several trains of thought at once: their requests are answered together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from .base import Reply, Request

__all__ = ["together"]

Result = TypeVar("Result")


def together(
    parts: Sequence[Generator[Request, Reply, Result]],
) -> Generator[Request, Reply, list[Result]]:
    """Run generators of requests side by side, so that what they ask goes into shared batches.

    A request that fails ends them all.

    Args:
        parts: Generators such as `draft_action` returns; they must not depend on one another.

    Returns:
        The result of each, in order.

    Example:
        >>> def asks(name):
        ...     return (yield name)
        >>> both = together([asks("one"), asks("two")])
        >>> next(both)
        ['one', 'two']
        >>> try:
        ...     both.send([1, 2])
        ... except StopIteration as stop:
        ...     stop.value
        [1, 2]
    """
    results: dict[int, Result] = {}
    waiting: dict[int, Request] = {}

    def go_on(place: int, reply: Reply) -> None:
        waiting.pop(place, None)
        try:
            waiting[place] = parts[place].send(reply)
        except StopIteration as stop:
            results[place] = stop.value

    for place in range(len(parts)):
        go_on(place, None)
    while waiting:
        asked = dict(sorted(waiting.items()))
        replies = yield [single for request in asked.values() for single in _singles(request)]
        start = 0
        for place, request in asked.items():
            end = start + len(_singles(request))
            go_on(place, replies[start:end] if isinstance(request, list) else replies[start])
            start = end
    return [results[place] for place in range(len(parts))]


def _singles(request: Request) -> list[Any]:
    return request if isinstance(request, list) else [request]
