"""What answers calls: a chain of backends, each of which answers or passes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from .apps import Ledger, ToolError, answering, api_records
from .checking import Checker, coerced
from .functions import Offer, offers

__all__ = [
    "FAILED",
    "MISS",
    "Answered",
    "Backend",
    "BackendFault",
    "Chain",
    "Embedded",
    "Hit",
    "Request",
]


class Request(NamedTuple):
    """A call to be answered.

    Attributes:
        category: The tool's category, as queries name it.
        tool: The tool, in standard form.
        api: The API, in standard form.
        arguments: By parameter.
        offer: The function, where it is known.
        checked: Whether the arguments were held against its schema already.
    """

    category: str
    tool: str
    api: str
    arguments: Mapping[str, Any]
    offer: Offer | None = None
    checked: bool = False


class Hit(NamedTuple):
    """An answer.

    Attributes:
        error: The tool's error; empty if there is none.
        response: What it returned.
        source: Which backend answered: ``local``, ``cache``, ``live``, ``sim`` or ``none``.
    """

    error: str
    response: Any
    source: str


class BackendFault(Exception):
    """A backend cannot answer now; the next one is asked, and the fault is recorded."""


class Backend(Protocol):
    """Answers calls, or passes them on."""

    name: str

    def answer(self, request: Request) -> Hit | None:
        """Return the answer, or None to pass the call on.

        Raises:
            BackendFault: It should have answered and cannot.
        """
        ...


class Answered(NamedTuple):
    """An answer, and what went wrong before it."""

    hit: Hit
    faults: tuple[str, ...] = ()


MISS = Hit("Cache miss: no backend knows this call", "", "none")
"""What is answered where every backend passes a call on."""

FAILED = Hit("API not working: the backends that might know this call failed", "", "none")
"""What is answered where no backend answers and at least one should have."""


class Chain:
    """Backends in the order in which they are asked.

    Args:
        backends: The first that answers is right.

    Example:
        >>> Chain([]).ask(Request("Food", "cocktails", "by_id", {})).hit.error
        'Cache miss: no backend knows this call'
    """

    def __init__(self, backends: Sequence[Backend]):
        self.backends = tuple(backends)

    def __repr__(self) -> str:
        return f"Chain({' > '.join(backend.name for backend in self.backends)})"

    def ask(self, request: Request) -> Answered:
        """Return the first answer; a miss where all pass on, a failure where one could not answer."""
        faults = []
        for backend in self.backends:
            try:
                hit = backend.answer(request)
            except BackendFault as fault:
                faults.append(f"{backend.name}: {fault}")
                continue
            if hit is not None:
                return Answered(hit, tuple(faults))
        return Answered(FAILED if faults else MISS, tuple(faults))


class Embedded:
    """The embedded tools, on one state.

    Args:
        ledger: The state.

    Example:
        >>> from comap.envs.stabletoolbench.apps import world_of
        >>> tools = Embedded(world_of(0).ledger())
        >>> tools.answer(Request("Finance", "currency", "list", {})).source
        'local'
    """

    name = "local"

    def __init__(self, ledger: Ledger):
        self.ledger = ledger

    def answer(self, request: Request) -> Hit | None:
        """Answer what the embedded tools know; their refusals are answers too."""
        answer = answering(request.tool, request.api)
        if answer is None:
            return None
        arguments = request.arguments
        if not request.checked:
            offer, checker = _own(request.tool)[request.api]
            arguments = coerced(offer, arguments)
            if problem := checker.problem(offer, arguments):
                self.ledger.clock += 1
                return Hit(problem, "", self.name)
        try:
            return Hit("", answer(self.ledger, arguments), self.name)
        except ToolError as refusal:
            return Hit(str(refusal), "", self.name)
        finally:
            self.ledger.clock += 1


@lru_cache(maxsize=32)
def _own(tool: str) -> dict[str, tuple[Offer, Checker]]:
    """Return the functions of an embedded tool by API, with what checks their arguments."""
    made = offers({"api_list": list(api_records(tool))})
    checker = Checker(made)
    return {offer.api: (offer, checker) for offer in made}
