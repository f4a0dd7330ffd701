"""A headless Chromium, driven through its own driver: for measuring and testing our pages.

The W3C's WebDriver protocol is JSON over HTTP on the loopback interface, so nothing but Debian's
packages ``chromium`` and ``chromium-driver`` is needed.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import EngineError, MissingExtra

__all__ = ["KEYS", "Browser", "missing_browser"]

KEYS = {
    "Enter": "\ue007",
    "Shift": "\ue008",
    "Escape": "\ue00c",
    "PageDown": "\ue00f",
    "End": "\ue010",
    "Home": "\ue011",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "Tab": "\ue004",
}
"""Keys without a letter of their own, as WebDriver writes them."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--hide-scrollbars",
)
_WATCH = (
    "window.violations = []; window.failures = [];"
    "document.addEventListener('securitypolicyviolation',"
    " (event) => window.violations.push(event.violatedDirective + ' ' + event.blockedURI));"
    "window.addEventListener('error', (event) => window.failures.push(String(event.message)));"
    "window.addEventListener('unhandledrejection',"
    " (event) => window.failures.push(String(event.reason)));"
)


def missing_browser() -> str:
    """Return what is missing of the browser, in words; empty where it is there.

    Example:
        >>> missing_browser() in ("", "needs chromium and chromedriver: apt-get install chromium \
chromium-driver")
        True
    """
    there = _chromium() is not None and shutil.which("chromedriver") is not None
    return (
        ""
        if there
        else ("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    )


class Browser:
    """A browser with an empty profile; leave it by ``with``, or it goes on running.

    Args:
        width: Of the window, in pixels.
        height: Of the window.
        dark: Whether it asks pages for dark colours.

    Raises:
        MissingExtra: Chromium or its driver is not installed.
        EngineError: It does not start.

    Example:
        >>> with Browser() as browser:  # doctest: +SKIP
        ...     browser.open(Path("view.html"))
        ...     browser.run("return document.title")
        'comap run: first'
    """

    def __init__(self, width: int = 1400, height: int = 900, dark: bool = False):
        if missing_browser():
            raise MissingExtra(missing_browser())
        self._profile = tempfile.TemporaryDirectory(
            prefix="comap-browser-", ignore_cleanup_errors=True
        )
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        try:
            self._root = f"http://127.0.0.1:{_port_of(self._driver)}"
            flags = [f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
            flags += (
                ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
            )
            self._root += f"/session/{self._start([*_FLAGS, *flags])}"
            self.cdp("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser; a second time does nothing."""
        if self._driver.poll() is None:
            with suppress(EngineError, OSError):
                self._call("DELETE", "")
            self._driver.terminate()
            self._driver.wait(timeout=20)
        if self._driver.stdout is not None:
            self._driver.stdout.close()
        self._profile.cleanup()

    def open(self, page: Path, place: str = "") -> None:
        """Open a page of this machine, at a place such as ``#3/2``, and wait until it is loaded."""
        self._call("POST", "/url", url="about:blank")  # so that another place is loaded anew
        self._call("POST", "/url", url=page.resolve().as_uri() + place)

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript, a function's body, and return what it returns."""
        return self._call("POST", "/execute/sync", script=script, args=list(arguments))

    def wait(self, condition: str, seconds: float = 20) -> Any:
        """Wait until an expression of JavaScript is true, and return its value.

        Raises:
            EngineError: It did not become true.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.run(f"return {condition}")
            if found:
                return found
            time.sleep(0.02)
        raise EngineError(f"expected {condition} in the browser within {seconds} s, found it false")

    def press(self, *keys: str) -> None:
        """Press keys, one after another: letters, or names in `KEYS`; ``"Shift+Enter"`` holds one."""
        actions: list[dict[str, str]] = []
        for key in keys:
            parts = [KEYS.get(part, part) for part in key.split("+")] if len(key) > 1 else [key]
            actions += [{"type": "keyDown", "value": part} for part in parts]
            actions += [{"type": "keyUp", "value": part} for part in reversed(parts)]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("POST", "/actions", actions=[source])

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.cdp("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector finds."""
        found = self._call("POST", "/element", using="css selector", value=selector)
        self._call("POST", f"/element/{next(iter(found.values()))}/click")

    def console(self) -> list[str]:
        """Return what the console was told since the last time, with errors that nobody caught."""
        told = self._call("POST", "/se/log", type="browser")
        return [entry["message"] for entry in told] + list(self.run("return window.failures || []"))

    def violations(self) -> list[str]:
        """Return what the page's content security policy has forbidden."""
        return list(self.run("return window.violations"))

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last time, but those of this machine."""
        told = [
            json.loads(entry["message"])["message"]
            for entry in self._call("POST", "/se/log", type="performance")
        ]
        asked = [
            one["params"]["request"]["url"]
            for one in told
            if one["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not re.match("(file|about|chrome|data):", url)]

    def screenshot(self, path: Path) -> None:
        """Write what the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        metrics: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics, mobile=False)

    def cdp(self, command: str, **parameters: Any) -> Any:
        """Give a command of the DevTools protocol, and return its result."""
        return self._call("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def version(self) -> str:
        """Return the browser's name and version."""
        return str(self.cdp("Browser.getVersion")["product"])

    def _start(self, flags: Sequence[str]) -> str:
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": _chromium(), "args": list(flags)},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", capabilities={"alwaysMatch": wanted})
        return str(made["sessionId"])

    def _call(self, method: str, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode("ascii") if method == "POST" else None
        request = urllib.request.Request(
            self._root + path, data, {"Content-Type": "application/json"}, method=method
        )
        ask: Callable[..., Any] = self._ask
        try:
            with ask(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            told = json.load(error)["value"]
            raise EngineError(
                f"expected the browser to do {path or method}, found {told['error']}: "
                f"{told['message']:.400}"
            ) from None


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def _port_of(driver: subprocess.Popen[str]) -> int:
    """Return the port that a driver says it listens on."""
    for line in driver.stdout or ():
        found = re.search(r"started successfully on port (\d+)", line)
        if found:
            return int(found[1])
    raise EngineError("expected chromedriver to start, found that it ended")
