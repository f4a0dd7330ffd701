"""Chromium for all environments of this process: one browser, a context for each environment.

Playwright drives it from a thread with an event loop of its own, so that callers may have a loop
themselves, and so that every call has a time limit. The pages' requests are answered by a function
(`Serve`): no port is opened, and what that function does not answer goes to a proxy that nobody serves.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import re
import shutil
import signal
import socket
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import nullcontext, suppress
from email.message import Message
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...errors import EngineError, MissingExtra, OptionError, install_command
from .engine import PageLost

CALL_SECONDS = 10.0
STEP_SECONDS = 30.0
START_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
MOST_MEMORY = 2**30
"""Bytes in memory of a page's process beyond which it is given up: V8's own limit is for its heap alone."""
_MOST_MEMORY_OF_BROWSER = 2 * MOST_MEMORY
_WATCH_SECONDS = 0.5
MOST_OPEN = 200
"""Requests of a page that wait for their answers at the same time; more are refused."""
MOST_ANSWERED = 20_000_000
"""Bytes of the answers to a page's requests, from one action to the next; more are refused."""
_LARGE = 1_000_000  # bytes of an answer
_AT_ONCE = 8  # answers that are fetched, or on their way to the browser
_MOST_DIALOGS = 20
WIDTH, HEIGHT = 1024, 768
_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")  # the smallest first
# Chromium takes the last list of several: these are the ones of Playwright's that matter here, and two
# without which each context has another process, 29 MiB, for its address bar.
_OFF = (
    "AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsUpgrades,MediaRouter,"
    "HttpsFirstBalancedModeAutoEnable,NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,"
    "ThirdPartyStoragePartitioning,WebUIOmniboxAimPopup,WebUIOmniboxPopup"
)
_FLAGS = (
    "--proxy-bypass-list=<-loopback>",  # else Chromium does not ask the proxy for 127.0.0.1
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Sites of a page share a process; contexts never do. Half of the time of a link to another site.
    "--disable-site-isolation-trials",
    "--renderer-process-limit=1",
    "--disable-gpu",
    "--disable-software-rasterizer",
    "--use-gl=disabled",
    f"--disable-features={_OFF}",
    "--js-flags=--max-old-space-size=512",  # MiB; a page that wants more crashes alone
    "--lang=en-US",
)
_T = TypeVar("_T")


class ScriptError(EngineError):
    """A function that a script of ours calls is one of the page's, which fails."""


class Served(NamedTuple):
    """The answer to a request; a `Message` may have several headers of a name."""

    status: int
    headers: Mapping[str, str] | Message
    body: bytes


class PageRequest(NamedTuple):
    """A request of a page; `document` if its answer would be shown in the place of the page."""

    method: str
    url: str
    body: bytes
    document: bool
    headers: Mapping[str, str]


Serve = Callable[[PageRequest], Awaitable["Served | None"]]
"""Answers a request; None refuses it."""


def is_root() -> bool:
    """Return whether this process is root's, whom Chromium's sandbox refuses."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def find_program(browser: str | None) -> str:
    """Return the path of a browser: the one that is asked for, else Debian's, else Playwright's own.

    Raises:
        OptionError: There is nothing that can be run at the path `browser`.
        MissingExtra: Playwright is not installed, or there is no browser.
    """
    if browser is not None:
        program = shutil.which(browser)
        if program is None:
            raise OptionError(
                f"browser must be the path of Chromium, found no program at {browser!r:.200}; None "
                "looks for one, and `playwright install chromium` or `apt-get install chromium` brings it"
            )
    else:
        program = next(filter(None, map(shutil.which, _PROGRAMS)), None) or _downloaded()

    if find_spec("playwright") is None or program is None:
        missing = "browser" if program is None else "Playwright"
        raise MissingExtra(
            f"engine='chromium' needs Playwright and a browser, found no {missing}; run: "
            f"{install_command('web')} && playwright install chromium (or: apt-get install "
            "chromium-headless-shell)"
        )
    return program


def _downloaded() -> str | None:
    """Return the newest browser that ``playwright install`` has brought."""
    caches = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    folder = Path(
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or f"{caches}/ms-playwright"
    ).expanduser()

    # The smallest first; Playwright has called its headless program by two names.
    for name in ("headless_shell", "chrome-headless-shell", "chrome", "*.app/Contents/MacOS/*"):
        programs = sorted(folder.glob(f"chromium*/chrome-*/{name}"))
        if programs:
            return str(programs[-1])
    return None


class Browser:
    """A browser process and the thread that drives it."""

    def __init__(self, program: str, sandbox: bool):
        self.program = program
        self.sandbox = sandbox
        self.version = ""
        self.pid = 0
        self.lost_page = ""  # why a page's process was ended, until its tab has heard of it
        self._driver_pid = 0
        self._hangs = False
        self._is_closed = False
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        # Bound and never listening: whoever is sent there is refused.
        self._nowhere = socket.socket()
        self._nowhere.bind(("127.0.0.1", 0))
        self._driver: Any = None
        self._browser: Any = None
        threading.Thread(target=self._drive, name="comap-browser", daemon=True).start()

        try:
            self.run(self._start(), START_SECONDS)
        except Exception as error:
            self.close()
            # Playwright's message is a page of its own call log; what the browser itself wrote is marked.
            lines = re.findall(r"\[(?:pid=\d+\]\[)?err\] (.*)", str(error))
            lines = list(dict.fromkeys(lines)) or [str(error).partition("\n")[0]]
            raise EngineError(
                f"expected {program} to start, found {type(error).__name__}: {' '.join(lines)[-1000:]}; "
                "see whether it runs with: --headless --dump-dom about:blank"
            ) from error

    def _drive(self) -> None:
        """Run what comes, on the browser's thread, until `close`."""
        self._loop.run_forever()

        # What is left waits for a browser that is no more: it ends here, not when Python forgets it.
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        ending = asyncio.wait(tasks, timeout=1) if tasks else asyncio.sleep(0)
        with suppress(Exception):
            self._loop.run_until_complete(ending)
        self._loop.close()

    @property
    def usable(self) -> bool:
        """Whether it runs, and belongs to this process (not to the one that was forked)."""
        return (
            self._owner == os.getpid()
            and self._browser is not None
            and self._browser.is_connected()
        )

    def run(self, work: Coroutine[Any, Any, _T], seconds: float) -> _T:
        """Run on the browser's thread, for so long at most."""
        if self._owner != os.getpid():
            work.close()
            raise EngineError("expected a browser of this process, found one from before a fork")

        # The limit is kept on the thread itself; this waits a little longer, in case that hangs.
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            return future.result(seconds + _CLOSE_SECONDS)
        except (TimeoutError, FutureTimeout):
            if not future.done():  # the thread itself hangs
                self._hangs = True
                self.kill()
                self._browser = None
                self._loop.call_soon_threadsafe(_drop, work)
            raise EngineError(f"expected an end within {seconds:g} s, found none") from None
        finally:
            future.cancel()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run on the browser's thread; nobody waits for it."""
        if self._owner == os.getpid() and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(work, self._loop)
        else:
            work.close()

    async def new_context(self) -> Any:
        return await self._browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT},
            locale="en-US",
            timezone_id="UTC",
            accept_downloads=False,
            service_workers="block",
        )

    async def _start(self) -> None:
        from playwright.async_api import async_playwright

        self._driver = await async_playwright().start()
        port = self._nowhere.getsockname()[1]
        self._browser = await self._driver.chromium.launch(
            executable_path=self.program,
            args=[f"--proxy-server=http://127.0.0.1:{port}", *_FLAGS],
            chromium_sandbox=self.sandbox,
            env={**os.environ, "TZ": "UTC"},
            # Signals are the program's that uses comap; Playwright would end the browser at each.
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )
        self.version = self._browser.version

        # Playwright does not say the process's id, without which a browser that hangs cannot be ended.
        session = await self._browser.new_browser_cdp_session()
        processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        self.pid = next(process["id"] for process in processes if process["type"] == "browser")
        self._driver_pid = _own_child_above(self.pid)
        self._watch = asyncio.ensure_future(self._watched(session))

    async def _watched(self, session: Any) -> None:
        with suppress(Exception):  # the browser has ended
            await self._watch_memory(session)

    async def _watch_memory(self, session: Any) -> None:
        """End the process of a page that takes too much memory: its tab learns that it has crashed."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if max(map(_resident, (self.pid, self._driver_pid))) > _MOST_MEMORY_OF_BROWSER:
                self.kill()
                return

            processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
            for process in processes:
                size = _resident(process["id"])
                if process["type"] == "renderer" and size > MOST_MEMORY:
                    self.lost_page = (
                        f"the page took more than {MOST_MEMORY / 2**20:,.0f} MiB of memory"
                    )
                    _end_process(process["id"])

    def kill(self) -> None:
        """End the browser where it does not end by itself."""
        if self.usable:
            _end_process(self.pid)

    def close(self) -> None:
        """End the browser and its driver."""
        if self._owner != os.getpid() or self._is_closed or not self._loop.is_running():
            return
        self._is_closed = True
        has_stopped = False
        if not self._hangs:
            with suppress(Exception):
                self.run(self._stop(), _CLOSE_SECONDS)
                has_stopped = True
        if not has_stopped:
            self.kill()
            _end_process(self._driver_pid)
        self._browser = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._nowhere.close()

    async def _stop(self) -> None:
        if self._browser is not None:
            await self._browser.close()
        if self._driver is not None:
            await self._driver.stop()


def _drop(work: Coroutine[Any, Any, Any]) -> None:
    """Close what was to be run, if that has not begun: Python complains of what nobody awaits."""
    if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()


def _end_process(pid: int) -> None:
    """End a process of ours, if it is still there."""
    if pid:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _own_child_above(pid: int) -> int:
    """Return which child of this process has started another one; 0 where /proc does not say it.

    Above a browser it is Playwright's driver, whose id Playwright does not tell. It would stay where
    nobody could ask it to stop.
    """
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
        except OSError:
            return 0
        parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
        parent_pid = int(parent[1]) if parent else 0
        if parent_pid == os.getpid():
            return pid
        pid = parent_pid
    return 0


def _resident(pid: int) -> int:
    """Return how many bytes of memory a process takes; 0 where the system does not say so in /proc."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


_browsers: dict[tuple[str, bool], Browser] = {}
_inherited: list[Browser] = []  # kept, since their destructors would end the parent's processes
_lock = threading.Lock()


def shared(program: str, sandbox: bool | None = None) -> Browser:
    """Return the browser of this process; a new one where there is none that runs."""
    # Root has none by default: its pages are ours, and nothing gets out.
    key = program, not is_root() if sandbox is None else sandbox
    with _lock:
        browser = _browsers.get(key)
        if browser is None or not browser.usable:
            if browser is not None:
                browser.close()
            browser = Browser(*key)
            _browsers[key] = browser
        return browser


def _forget() -> None:
    """Let a forked child begin without the parent's browsers, which it cannot speak to."""
    global _lock
    # The parent may have held the lock as it forked: nobody would ever release the child's copy.
    _lock = threading.Lock()
    _inherited.extend(_browsers.values())
    _browsers.clear()


@atexit.register
def close_all() -> None:
    """End all browsers of this process."""
    while _browsers:
        _browsers.popitem()[1].close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Tab:
    """A context of a browser with one page, and what happens in it; its methods run on the thread.

    Attributes:
        serve: What answers the page's requests.
        dialogs: What the first dialogs said since somebody emptied the list.
        popup: The address that the page wanted to open in another window.
        patient: Whether a page that does not end to load is stopped and shown; else that is a fault.
    """

    def __init__(self, browser: Browser, serve: Serve):
        self.browser = browser
        self.serve = serve
        self.dialogs: list[str] = []
        self.popup = ""
        self._open_count = 0
        self._bytes_left = MOST_ANSWERED
        self.prepared = False
        self.patient = False
        self._context: Any = None
        self._session: Any = None
        self._frame = ""  # the main one's id

        # A navigation is first asked for or scheduled (loading), then under way (started), then over.
        self._loading = False
        self._started = False
        self._loaded: asyncio.Event
        self._time_passed: asyncio.Event
        self._lost: asyncio.Future[EngineError]

    async def open(self) -> None:
        """Make the context and its page."""
        self._loaded = asyncio.Event()
        self._time_passed = asyncio.Event()
        self._lost = asyncio.get_running_loop().create_future()
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._sending = asyncio.Lock()

        # An episode has one page: a window that opens beside it is closed, and `popup` says its address.
        self._context = await self.browser.new_context()
        page = await self._context.new_page()
        page.on("crash", lambda _: self._crashed())
        page.on("dialog", self._answer_dialog)
        self._context.on("page", lambda window: asyncio.ensure_future(_close(window)))

        # These events say whether an action loads another page, before `settle` has to know it.
        self._session = await self._context.new_cdp_session(page)
        self._session.on("Fetch.requestPaused", lambda e: asyncio.ensure_future(self._answer(e)))
        for name in ("frameScheduledNavigation", "frameRequestedNavigation"):
            self._session.on(f"Page.{name}", self._begin)
        self._session.on("Page.frameStartedNavigating", self._start)
        self._session.on("Page.frameClearedScheduledNavigation", self._clear)
        for name in ("loadEventFired", "frameStoppedLoading", "navigatedWithinDocument"):
            self._session.on(f"Page.{name}", self._end)
        self._session.on("Emulation.virtualTimeBudgetExpired", lambda _: self._time_passed.set())
        self._session.on("Page.windowOpen", lambda e: setattr(self, "popup", e["url"]))

        await self.send("Page.enable")
        tree = await self.send("Page.getFrameTree")
        self._frame = tree["frameTree"]["frame"]["id"]
        await self.send("Fetch.enable", patterns=[{"urlPattern": "*"}])

    def end(self) -> None:
        """Close the context soon, whatever its page does."""
        self.browser.spawn(self._dispose())

    async def _dispose(self) -> None:
        if not self.browser.usable or self._context is None:
            return
        # A script that runs on and on would keep its page from closing.
        if self._session is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._session.send("Runtime.terminateExecution"), 1)
        try:
            await asyncio.wait_for(self._context.close(), _CLOSE_SECONDS)
        except Exception:
            self.browser.kill()

    async def send(self, method: str, **parameters: Any) -> Any:
        """Give a command of the DevTools protocol, and return its result."""
        # A page that has crashed never answers: whichever is first, the answer or the crash, counts.
        call = asyncio.ensure_future(self._session.send(method, parameters))
        finished, _ = await asyncio.wait(
            {call, self._lost}, timeout=CALL_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if call in finished:
            return call.result()
        call.cancel()
        if self._lost.done():
            raise self._lost.result()
        raise PageLost(f"the page did not answer within {CALL_SECONDS:g} s ({method})")

    async def call(self, node: int, function: str, *arguments: Any) -> Any:
        """Call a function of ours with an element as ``this``, and return what it returns.

        That is None where the element is no longer there.
        """
        from playwright.async_api import Error

        try:
            element = await self.send("DOM.resolveNode", backendNodeId=node)
        except Error as error:
            if "No node" in str(error):
                return None
            raise
        result = await self.send(
            "Runtime.callFunctionOn",
            functionDeclaration=function,
            objectId=element["object"]["objectId"],
            arguments=[{"value": argument} for argument in arguments],
            returnByValue=True,
        )
        return result["result"].get("value")

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of ours."""
        result = await self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise ScriptError(f"the page has an error: {result['exceptionDetails']!s:.500}")
        return result["result"].get("value")

    async def goto(self, url: str) -> None:
        """Open an address, and wait until it is loaded or refused."""
        self._begin({"frameId": self._frame})
        answer = await self.send("Page.navigate", url=url)
        if "errorText" in answer or "loaderId" not in answer:
            self._loaded.set()  # refused, or a place on the same page: no event will come
        await self.settle()

    async def settle(self) -> None:
        """Wait until what was done has had its effect: a page that loads has loaded."""
        # Once the page answers, whatever its events began has been heard of.
        try:
            await self.send("Runtime.evaluate", expression="0")
        except EngineError:
            raise
        except Exception:
            if not self._loading:  # else another page has come in between
                raise

        if self._loading:
            try:
                await self._until(self._loaded, "load")
            except EngineError:
                if not self.patient or self._lost.done():
                    raise
                await self.send("Page.stopLoading")
            self._loading = False
            self._started = False

    async def _until(self, event: asyncio.Event, aim: str) -> None:
        """Wait for an event; raise `PageLost` where it does not come in time."""
        wait: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
        await asyncio.wait(
            {wait, self._lost}, timeout=CALL_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        wait.cancel()
        if self._lost.done():
            raise self._lost.result()
        if not event.is_set():
            raise PageLost(f"the page did not {aim} within {CALL_SECONDS:g} s")

    async def prepare(self, script: str) -> None:
        """Run a script of ours in every page before its own."""
        await self.send("Page.addScriptToEvaluateOnNewDocument", source=script)
        self.prepared = True

    async def virtual_time(self, milliseconds: int) -> None:
        """Let so much of the page's time pass at once, and none until the next call."""
        policy = "pauseIfNetworkFetchesPending"
        self._time_passed.clear()
        await self.send("Emulation.setVirtualTimePolicy", policy=policy, budget=milliseconds)
        await self._until(self._time_passed, "pass its time")

    async def run_time(self) -> None:
        """Let the page's time pass again: while it stands still no page is loaded."""
        await self.send("Emulation.setVirtualTimePolicy", policy="advance")

    async def mouse(self, x: float, y: float) -> None:
        """Click at a point of the window."""
        # All at once: they are sent in this order, and nobody waits for three answers in turn.
        event = {"x": x, "y": y, "button": "left", "clickCount": 1}
        kinds = ("mouseMoved", "mousePressed", "mouseReleased")
        await asyncio.gather(
            *(self.send("Input.dispatchMouseEvent", type=kind, **event) for kind in kinds)
        )

    async def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key."""
        key = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        # Only a key with a text does what the text does: Enter without one submits nothing.
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        await asyncio.gather(
            self.send("Input.dispatchKeyEvent", **down, **key),
            self.send("Input.dispatchKeyEvent", type="keyUp", **key),
        )

    async def screenshot(self) -> str:
        """Return a picture of the window: JPEG in base64."""
        shot = await self.send("Page.captureScreenshot", format="jpeg", quality=60)
        return str(shot["data"])

    def _crashed(self) -> None:
        reason = self.browser.lost_page or "the page crashed"
        self.browser.lost_page = ""
        self._lose(PageLost(reason))

    def allow_answers(self) -> None:
        """Begin to count the bytes of answers anew: with an action, a page may load as much as before."""
        self._bytes_left = MOST_ANSWERED

    def _lose(self, why: EngineError) -> None:
        """Give the page up: whoever waits for it is told why."""
        if not self._lost.done():
            self._lost.set_result(why)

    def _begin(self, event: Any) -> None:
        if event["frameId"] == self._frame:
            self._loading = True
            self._loaded.clear()

    def _start(self, event: Any) -> None:
        is_same_page = event.get("navigationType") in ("sameDocument", "historySameDocument")
        if event["frameId"] == self._frame and not is_same_page:
            self._started = True
            self._begin(event)

    def _clear(self, event: Any) -> None:
        if not self._started:  # the browser forbids the address
            self._end(event)

    def _end(self, event: Any) -> None:
        if event.get("frameId", self._frame) == self._frame:
            self._loaded.set()

    async def _answer(self, event: Any) -> None:
        """Answer a request of the page, or of a frame in it, that DevTools has stopped.

        A page may ask for more than fits into memory: what is beyond the limits is refused.
        """
        is_page = event["resourceType"] == "Document" and event["frameId"] == self._frame
        served: Served | None = None
        is_refused = self._bytes_left <= 0 or self._open_count >= MOST_OPEN
        if is_page or not is_refused:
            self._open_count += 1
            try:
                # The page itself does not wait for what an earlier one has asked for.
                async with nullcontext() if is_page else self._turn:
                    if is_page or self._bytes_left > 0:
                        served = await self._served(event, is_page)
                    await self._send_answer(event, is_page, served)
            finally:
                self._open_count -= 1
            return
        await self._send_answer(event, is_page, None)

    async def _served(self, event: Any, is_page: bool) -> Served | None:
        """Return the answer to a request; None where it is refused."""
        event_request = event["request"]
        parts = (
            b64decode(part.get("bytes", "")) for part in event_request.get("postDataEntries", ())
        )
        request = PageRequest(
            method=event_request["method"],
            url=event_request["url"],
            body=b"".join(parts),
            document=is_page,
            headers=event_request["headers"],
        )

        # A fault of ours gives the page up: it would wait for its answer without end.
        try:
            served = await self.serve(request)
        except Exception as error:
            message = f"a request was not answered: {type(error).__name__}: {error!s:.500}"
            self._lose(EngineError(message))
            return None

        if served is not None:
            self._bytes_left -= len(served.body)
        if self._bytes_left < 0 and not is_page:
            return None
        return served

    async def _send_answer(self, event: Any, is_page: bool, served: Served | None) -> None:
        """Send an answer to the browser; None refuses the request."""
        paused = {"requestId": event["requestId"]}
        with suppress(Exception):  # the page may be gone
            if served is None:
                # "Aborted" leaves the page as it is; other errors would show one of their own.
                await self._session.send("Fetch.failRequest", {**paused, "errorReason": "Aborted"})
                if is_page:
                    self._loaded.set()
                return
            answer = {
                "responseCode": served.status,
                "responseHeaders": [
                    {"name": key, "value": value} for key, value in served.headers.items()
                ],
                "body": b64encode(served.body).decode(),
            }
            # One large answer at a time: what is asked of the page meanwhile waits behind it.
            is_large = len(served.body) > _LARGE
            async with self._sending if is_large else nullcontext():
                await self._session.send("Fetch.fulfillRequest", {**paused, **answer})

    async def _answer_dialog(self, dialog: Any) -> None:
        # A page stands still until its dialog is answered. What asks is answered with no.
        if len(self.dialogs) < _MOST_DIALOGS:
            self.dialogs.append(f"{dialog.type}: {dialog.message}"[:1000])
        with suppress(Exception):
            if dialog.type in ("alert", "beforeunload"):
                await dialog.accept()
            else:
                await dialog.dismiss()


async def _close(page: Any) -> None:
    with suppress(Exception):
        await page.close()
