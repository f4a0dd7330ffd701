"""Headless Chromium, driven by Playwright, for tests of our pages."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
WATCH = """
window.violations = [];
document.addEventListener('securitypolicyviolation',
  (event) => window.violations.push(event.violatedDirective + ' ' + event.blockedURI));
"""


class Browser:
    """A browser with one page; leave it by ``with``."""

    def __init__(self) -> None:
        playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            pytest.skip("needs chromium: apt-get install chromium")
        self._driver = playwright.sync_playwright().start()
        self._browser = self._driver.chromium.launch(executable_path=program, args=FLAGS)
        self.page = self._browser.new_context().new_page()
        self.page.add_init_script(WATCH)
        self._console_lines: list[str] = []
        self._requested_urls: list[str] = []
        self.page.on("console", lambda message: self._console_lines.append(message.text))
        self.page.on("pageerror", lambda error: self._console_lines.append(str(error)))
        self.page.on("request", lambda request: self._requested_urls.append(request.url))
        self._devtools = self.page.context.new_cdp_session(self.page)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._browser.close()
        self._driver.stop()

    def open(self, page: Path, place: str = "") -> None:
        """Open a file, at a place such as ``#3/2``, and wait until it is loaded."""
        self.page.goto("about:blank")  # so that another place is loaded anew
        self.page.goto(page.resolve().as_uri() + place)

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the page's size and preferred colors."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=scheme)

    def run(self, body: str, *arguments: object) -> Any:
        """Run the body of a function; by the DevTools protocol, which no page's policy forbids."""
        call = f"(async function () {{ {body} }})(...{json.dumps(arguments)})"
        result = self.cdp(
            "Runtime.evaluate", expression=call, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def value(self, expression: str) -> Any:
        """Return the value of an expression, of an element that it is there."""
        script = f"const value = {expression}; return value instanceof Node ? true : value"
        return self.run(script)

    def wait(self, condition: str, seconds: float = 10) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := self.value(condition)):
            assert time.monotonic() < end, (
                f"false for {seconds} s: {condition}\n{self._console_lines}"
            )
            self.page.wait_for_timeout(20)
        return value

    def press(self, *keys: str) -> None:
        """Press keys, one after another, by Playwright's names."""
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.page.keyboard.insert_text(text)

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector finds."""
        self.page.locator(selector).first.click(timeout=10_000)

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.page.mouse.move(x, y)

    def console(self) -> list[str]:
        """Return what the console was told since the last time, with errors that nobody caught."""
        messages, self._console_lines[:] = list(self._console_lines), []
        return messages

    def violations(self) -> list[str]:
        """Return what the page's content security policy has forbidden."""
        return list(self.value("window.violations"))

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last time, but those of this machine."""
        urls, self._requested_urls[:] = list(self._requested_urls), []
        return [url for url in urls if not re.match("(file|about|chrome|data):", url)]

    def cdp(self, command: str, **parameters: Any) -> Any:
        """Give a command of the DevTools protocol, and return its result."""
        return self._devtools.send(command, parameters)
