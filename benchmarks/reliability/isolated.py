"""Functions in processes of their own: a crash is a finding, not the benchmark's end."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from .findings import Findings

__all__ = ["Isolated", "isolated"]


class Isolated:
    """A function at work in a fresh process, which returns what a `Findings` tells.

    Args:
        function: A function of a module, with arguments that pickle.
        *arguments: Its arguments.

    Example:
        >>> Isolated(len, "abc").result(60)
        3
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        context = multiprocessing.get_context("spawn")
        self._name = f"{function.__name__}{arguments!r:.80}"
        self._here, there = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(there, function, arguments))
        self.process.start()
        there.close()

    def result(self, timeout: float) -> Any:
        """Return the function's value; where it did not end well, findings that say so.

        Args:
            timeout: Seconds to wait; after that the process is killed.
        """
        try:
            if not self._here.poll(timeout):
                self.process.kill()
                return self._failed(f"it did not end within {timeout:.0f} s")
            ended, value = self._here.recv()
        except EOFError:
            self.process.join()
            return self._failed(f"its process ended: {_how(self.process.exitcode)}")
        finally:
            self._here.close()
        self.process.join()
        return value if ended else self._failed(value)

    def _failed(self, why: str) -> dict[str, Any]:
        found = Findings()
        found.lose(f"{self._name}: {why}")
        return found.plain()


def isolated(function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
    """Return what a function returns in a process of its own: see `Isolated`.

    Example:
        >>> isolated(len, "abc", timeout=60)
        3
    """
    return Isolated(function, *arguments).result(timeout)


def _work(there: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        told = (True, function(*arguments))
    except Exception as error:
        told = (False, f"{type(error).__name__}: {error}")
    there.send(told)
    there.close()


def _how(code: int | None) -> str:
    """Return in words how a process ended."""
    if code is None or code >= 0:
        return f"exit status {code}"
    return f"killed by {signal.Signals(-code).name}"
