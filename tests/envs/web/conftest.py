"""Chromium for the tests of the web; where there is none they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from comap.envs.web.actions import read_action
from comap.envs.web.browser import PageRequest, Served, find_program
from comap.envs.web.chromium import Chromium
from comap.envs.web.engine import Effect
from comap.envs.web.sites import World, world_of
from comap.errors import MissingExtra


class Pages(Chromium):
    """The engine with any HTML at every address of the shop."""

    html = ""

    def show(self, html: str) -> str:
        """Open a page, and return its text."""
        self.html = html
        self.open(world_of(20), "shop.test/")
        return self.text()

    def do(self, *actions: str) -> Effect:
        effect = Effect()
        for action in actions:
            move = read_action(action)
            assert move is not None, action
            effect = self.act(move)
        return effect

    def _serve(self, request: PageRequest) -> Served | None:
        if request.document and request.url.startswith("http://shop.test/"):
            self.url = request.url.removeprefix("http://")
            html = f"<title>T</title>{self.html}".encode()
            return Served(200, {"Content-Type": "text/html; charset=utf-8"}, html)
        return super()._serve(request)


@pytest.fixture(scope="session")
def browser() -> str:
    """The path of a browser."""
    try:
        return find_program(None)
    except MissingExtra as error:
        pytest.skip(str(error))


@pytest.fixture
def pages(browser: str) -> Iterator[Pages]:
    """An engine that shows any page."""
    engine = Pages(browser)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def world() -> Any:
    """The instance of the sites that tests play on."""
    return World(20)
