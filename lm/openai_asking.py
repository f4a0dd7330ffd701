"""Asking a server until it answers or is given up."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import LanguageModelError
from .openai_accounting import Accounting
from .openai_answers import Chat, read_chat
from .openai_bodies import Dialect
from .openai_connection import Address, Answer, Connection, key_from
from .openai_failures import Failure, refusal
from .openai_options import Patience

__all__ = ["Asker", "Question"]

_SHORTEST_SECRET = 16

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Question(Generic[Reply]):
    """One request on its way.

    Attributes:
        body: Returns the arguments of the chat completion, for what the server understands.
        read: Makes the reply from the server's answer.
    """

    body: Callable[[Dialect], dict[str, Any]]
    read: Callable[[Chat], Reply]


class Asker:
    """Asks one server many questions at a time.

    Args:
        name: How to call the model in messages.
        address: Where the server is.
        variable: The environment variable that holds the key.
        patience: How long and how often to try.
        accounting: Counts retries here; readers count answers.
        dialect: What the server understands.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        variable: str,
        patience: Patience,
        accounting: Accounting,
        dialect: Dialect,
    ):
        self._name, self._address, self._variable = name, address, variable
        self._patience, self._accounting, self._dialect = patience, accounting, dialect
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def ask(
        self, questions: Sequence[Question[Reply] | LanguageModelError]
    ) -> list[Reply | LanguageModelError]:
        """Return the reply to each question, or the error that stands for it, in order.

        An error among the questions is its own reply.

        Raises:
            MissingExtra: The package ``openai`` is not installed.
            LanguageModelError: The key is gone from the environment.
        """
        if all(isinstance(question, LanguageModelError) for question in questions):
            return [question for question in questions if isinstance(question, LanguageModelError)]
        connection = self._connected()
        return connection.run(self._all(connection, questions))

    def _connected(self) -> Connection:
        """Return the connection; a forked process makes its own, as threads do not survive."""
        with self._lock:
            if self._connection is None or self._connection.process != os.getpid():
                key = key_from(self._variable, self._address)
                patience = self._patience
                self._connection = Connection(
                    self._address, key, patience.timeout, patience.concurrency
                )
            return self._connection

    async def _all(
        self, connection: Connection, questions: Sequence[Question[Reply] | LanguageModelError]
    ) -> list[Reply | LanguageModelError]:
        tries = [self._one(connection, question) for question in questions]
        return list(await asyncio.gather(*tries))

    async def _one(
        self, connection: Connection, question: Question[Any] | LanguageModelError
    ) -> Any:
        if isinstance(question, LanguageModelError):
            return question
        async with connection.slots:
            try:
                return await self._insist(connection, question)
            except LanguageModelError as error:
                return error.with_traceback(None)  # Its frames hold the connection and the key.

    async def _insist(
        self, connection: Connection, question: Question[Any]
    ) -> Any | LanguageModelError:
        start, tries, dialect = time.monotonic(), 0, self._dialect
        while True:
            body = question.body(dialect)
            try:
                reply = question.read(self._chat(await connection.post(body), connection.key))
                self._dialect = (
                    dialect  # Only now is it known that this was what the server minded.
                )
                return reply
            except Failure as failure:
                if (other := dialect.after(failure, body)) is not None:
                    dialect = other
                else:
                    tries += 1
                    wait = self._patience.wait(failure, tries)
                    if wait is None:
                        took = time.monotonic() - start
                        return self._error(failure, tries, took)
                    await asyncio.sleep(wait)
            self._accounting.retried()

    def _chat(self, answer: Answer, key: str) -> Chat:
        if answer.status != 200:
            said = answer.body.decode("utf-8", "replace")
            raise refusal(answer.status, answer.headers, said, key, self._variable)
        chat = read_chat(answer.body, key)
        told = chat.text + "".join(chat.token_texts() or ())
        if len(key) >= _SHORTEST_SECRET and key in told:
            advice = "do not use this server, and replace the key"
            raise Failure("an answer that repeats the key", advice, again=False)
        return chat

    def _error(self, failure: Failure, tries: int, took: float) -> LanguageModelError:
        times = "1 try" if tries == 1 else f"{tries} tries"
        advice = failure.advice
        if failure.wait is not None and failure.wait > self._patience.max_wait:
            advice = (
                f"the server asks to wait {failure.wait:.0f} s, longer than max_wait: "
                "raise it or try later"
            )
        return LanguageModelError(
            f"expected an answer of {self._name} ({self._address.host}), found {failure.found}, "
            f"in {times} over {took:.1f} s; {advice}"
        )
