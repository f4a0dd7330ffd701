"""Chromium on live sites. The browser itself stays shut: Python makes its requests (`fetch`)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn
from urllib.parse import urljoin

from ...errors import EngineError, OptionError, SnapshotError
from .actions import Move
from .browser import PageRequest, Served, is_root
from .chromium import Chromium
from .engine import MOST_REDIRECTS, Effect, Refused, check_address
from .fetch import SECONDS, fetch
from .lines import FIRST

LONGEST_TEXT = 30_000
WAIT_SECONDS = 2.0
_THREADS = 8
# An action has had its effect when no request has been open for so long,
_QUIET_SECONDS = 0.3
# and that is waited for so long at most: some pages ask for something all the time.
_MOST_QUIET_SECONDS = 4.0
# A page of few lines that says this is a barrier; a longer one may be about barriers.
_BARRIER = re.compile(
    r"verify (that )?you(\W{1,3}re| are) (a )?human|are you (a )?(human|robot)|not a robot|"
    r"verifying you are human|unusual traffic from your",
    re.IGNORECASE,
)
_BARRIER_LINES = 60


def check_live(starts: frozenset[str], allowed_hosts: Sequence[str], sandbox: bool | None) -> None:
    """Raise `OptionError` unless tasks that start at live hosts may be played with these options."""
    hosts = tuple(allowed_hosts) if isinstance(allowed_hosts, tuple | list) else ()
    if missing := sorted(starts.difference(hosts)):
        raise OptionError(
            "allowed_hosts must be a list of all hosts that the file's tasks start at, found "
            f"{allowed_hosts!r:.200}, without {len(missing)} of them; write "
            f"allowed_hosts={json.dumps([*hosts, *missing])}, and the hosts that their pages load from"
        )
    if sandbox is not False and is_root():
        raise OptionError(
            f"live sites need Chromium's sandbox, which refuses root, found sandbox={sandbox!r} as "
            "root; run comap as another user, or without a sandbox: sandbox=False"
        )


class LiveChromium(Chromium):
    """The engine that plays on the live hosts that it is given; its `url` has a scheme.

    Where links lead is checked as all that the page asks for.
    """

    scripted = True

    def __init__(self, hosts: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.hosts = tuple(hosts)
        self._threads = ThreadPoolExecutor(_THREADS)
        self._waiting: set[object] = set()  # a token for each request without an answer yet

    def open(self, world: Any, url: str) -> None:
        """Start at an address, in a context without cookies."""
        # Requests of the last episode are given up: nobody waits until its slow hosts have answered.
        self.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="comap-fetch")
        self._waiting = set()
        super().open(world, self._allowed(url))

    def save(self) -> NoReturn:
        """Raise `SnapshotError`: nobody can go back on a live site."""
        raise SnapshotError(
            "expected an engine that can go back, found live sites; play the task again: "
            "env.reset(options={'task': id})"
        )

    def _way_back(self) -> Callable[[], None]:
        address = self.address
        return lambda: self._do(lambda: self._opened(address), fresh=True)

    async def _opened(self, url: str) -> None:
        self.tab.patient = True
        self._refusal = ""
        self.tab.dialogs.clear()
        self.tab.allow_answers()
        await self._go(url)
        await self._settle()
        if self._refusal:
            raise EngineError(f"expected {url:.200} to open, found: {self._refusal}")
        await self._look()

    async def _go(self, url: str) -> None:
        self._redirects = 0
        await self.tab.goto(url)

    def _allowed(self, url: str) -> str:
        # Without a scheme it is https: few live sites are left that would not redirect there.
        scheme = "http" if url.lower().startswith("http://") else "https"
        return f"{scheme}://{check_address(url, self.hosts)}"

    async def _answer(self, request: PageRequest) -> Served | None:
        """Answer with what the site says; where that is not allowed the page stays as it is."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting
        token = object()
        waiting.add(token)
        served: Served | None = None

        # This is the browser's thread, which must not block: a pool of others fetches.
        try:
            work = loop.run_in_executor(self._threads, fetch, request, self.hosts)
            served = await asyncio.wait_for(work, SECONDS + 1)
            if request.document:
                self._check_redirect(request.url, served)
        except (TimeoutError, Refused) as error:
            served = None
            refusal = str(error) or f"no answer within {SECONDS + 1:g} s"

        waiting.discard(token)
        if waiting is self._waiting:  # else it was asked by a page of an earlier episode
            self._last_answer_time = loop.time()
            if request.document and served is None:
                self._refusal = refusal
        return served

    def _check_redirect(self, url: str, served: Served) -> None:
        location = served.headers.get("Location")
        if location is None or not 300 <= served.status < 400:
            self._values = {}
            return
        self._redirects += 1
        if self._redirects == MOST_REDIRECTS:
            raise Refused("the site redirects without end")
        check_address(urljoin(url, location), self.hosts)

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        self._last_answer_time = start
        await super()._settle()

        # Scripts ask for data and then show it: the page is finished when none of that goes on.
        while (now := loop.time()) < start + _MOST_QUIET_SECONDS:
            if not self._waiting and now > self._last_answer_time + _QUIET_SECONDS:
                break
            await asyncio.sleep(0.02)
        await super()._settle()  # a script may have opened another page

    async def _look(self) -> None:
        await super()._look()
        self.url = self.address.partition("#")[0]
        address = self.url.partition("://")[2] or self.url
        lines_below = self._text.partition("\n")[2]
        self._text = f"{FIRST}{address}\n{lines_below}"

        # An episode behind such a check would say nothing of the agent: it is a fault, and no failure.
        barrier = _BARRIER.search(self._text)
        if barrier and len(self._lines) <= _BARRIER_LINES:
            raise EngineError(
                f"expected a page for everybody, found at {address:.200} a check that its visitor is "
                f"human ({barrier[0]!r}); play the task later, or leave it out"
            )

        if len(self._text) > LONGEST_TEXT:  # it ends with a whole line
            self._text = self._text[: self._text.rindex("\n", 0, LONGEST_TEXT)]

    async def _wait(self, move: Move) -> Effect:
        await asyncio.sleep(WAIT_SECONDS)
        return Effect()
