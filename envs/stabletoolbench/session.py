"""One episode: which calls were made, what answered them, and what is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .answers import read_answer, share_right
from .apps import Marks
from .backends import Answered, Chain, Embedded, Request
from .calls import Call, parse_call
from .checking import Checker, coerced
from .facts import REFUSALS, error_kind
from .functions import FINISH, FINISH_OFFER, Offer
from .generate import GeneratedTask, cells

__all__ = ["Done", "Saved", "Session", "Told"]

_ACCEPTED = "Answer received."
_GIVEN_UP = "Given up."
_LONGEST_NAME = 100


class Done(NamedTuple):
    """A call that was made.

    Attributes:
        name: The function's name as the agent wrote it; empty for what was no call.
        arguments: As they were sent to the tool.
        status: ``ok`` or the kind of error: see `comap.envs.stabletoolbench.facts.ERROR_KINDS`.
        source: Which backend answered; empty where none was asked.
        faults: What went wrong in backends.
    """

    name: str
    arguments: Mapping[str, Any]
    status: str
    source: str = ""
    faults: tuple[str, ...] = ()


class Told(NamedTuple):
    """What a call comes to: error, response, and whether it was refused before any tool saw it."""

    error: str
    response: Any
    refused: bool = False


class Saved(NamedTuple):
    """A moment of a session; nothing in it changes."""

    done: tuple[Done, ...]
    finished: str
    answer: str
    marks: Marks | None


class Session:
    """The calls of one episode.

    Args:
        offers: The functions, without ``Finish``.
        chain: What answers.
        compat: ``"strict"``, or ``"reference"``: no checks, and any end of a function's name calls it.
        task: The generated task, if it is one.
        embedded: The embedded tools' state, if there are any.

    Attributes:
        done: The calls so far.
        finished: ``give_answer`` or ``give_up_and_restart`` once it is over by ``Finish``.
        answer: The final answer.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        chain: Chain,
        compat: str = "strict",
        task: GeneratedTask | None = None,
        embedded: Embedded | None = None,
    ):
        self.offers, self.chain, self.compat = tuple(offers), chain, compat
        self.task, self.embedded = task, embedded
        self.done: list[Done] = []
        self.finished = self.answer = ""
        self._named = {offer.name: offer for offer in (*self.offers, FINISH_OFFER)}
        self._checker = Checker(self._named.values(), loose=compat == "reference")
        self._finishing = self._checker if compat == "strict" else Checker([FINISH_OFFER])

    def act(self, action: str) -> Told:
        """Make the call that an action is, and return what it comes to."""
        call = parse_call(action)
        if call is None:
            error = 'Action not understood: write {"name": FUNCTION, "arguments": {...}}'
            return self._refuse(Call("", {}), error)
        if call.problem:
            return self._refuse(call, f"Tool input parse error: {call.problem[:200]}")
        if call.name == FINISH:
            return self._finish(call)
        offer = self.offer_of(call.name)
        if offer is None:
            return self._refuse(call, f"No such function name: {call.name[:_LONGEST_NAME]}")
        strict = self.compat == "strict"
        arguments = coerced(offer, call.arguments) if strict else call.arguments
        if problem := self._checker.problem(offer, arguments):
            return self._refuse(call, problem)
        request = Request(offer.category, offer.tool, offer.api, arguments, offer, strict)
        return self._note(call.name, arguments, self.chain.ask(request))

    def offer_of(self, name: str) -> Offer | None:
        """Return the function of a name; in reference's way the first whose name ends with it."""
        found = self._named.get(name)
        if found is not None or self.compat == "strict":
            return found
        return next((offer for offer in self.offers if offer.name.endswith(name)), None)

    def share(self) -> float:
        """Return the share of a generated task that is right, once it is finished by an answer."""
        if self.task is None or self.embedded is None or self.finished != "give_answer":
            return 0.0
        fields = read_answer(self.answer)
        found = cells(self.embedded.ledger)
        return share_right(self.task.answer, fields, self.task.effects, found)

    def save(self) -> Saved:
        """Return this moment."""
        marks = None if self.embedded is None else self.embedded.ledger.save()
        return Saved(tuple(self.done), self.finished, self.answer, marks)

    def load(self, saved: Saved) -> None:
        """Go back to a moment that `save` returned."""
        self.done, self.finished, self.answer = list(saved.done), saved.finished, saved.answer
        if self.embedded is not None and saved.marks is not None:
            self.embedded.ledger.load(saved.marks)

    def _refuse(self, call: Call, error: str) -> Told:
        self.done.append(Done(call.name[:_LONGEST_NAME], {}, error_kind(error)))
        if self.embedded is not None:
            self.embedded.ledger.clock += 1
        return Told(error, "", refused=True)

    def _note(self, name: str, arguments: Mapping[str, Any], answered: Answered) -> Told:
        hit, faults = answered
        kind = error_kind(hit.error)
        self.done.append(Done(name[:_LONGEST_NAME], arguments, kind or "ok", hit.source, faults))
        return Told(hit.error, hit.response, refused=kind in REFUSALS)

    def _finish(self, call: Call) -> Told:
        arguments = dict(call.arguments)
        answer = arguments.get("final_answer")
        if isinstance(answer, dict | list):
            from .values import canonical_json

            arguments["final_answer"] = canonical_json(answer)
        arguments = coerced(FINISH_OFFER, arguments)
        problem = self._finishing.problem(FINISH_OFFER, arguments)
        if not problem and arguments["return_type"] == "give_answer":
            problem = (
                "" if "final_answer" in arguments else "Missing required parameter: final_answer"
            )
        if problem:
            return self._refuse(call, problem)
        self.finished, self.answer = arguments["return_type"], arguments.get("final_answer", "")
        self.done.append(Done(FINISH, arguments, "ok"))
        return Told("", _ACCEPTED if self.finished == "give_answer" else _GIVEN_UP)
