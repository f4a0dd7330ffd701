"""BrowserGym's own environments, in Chromium, play as comap's through the adapter.

`make interop` runs this in an environment of its own: BrowserGym needs playwright 1.44. The browser is the
system's, which stands where that version of playwright looks for its own.
"""

# installs: comap browsergym-core==0.14.3 browsergym-miniwob==0.14.3 miniwob>=1.1,<2

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("browsergym.miniwob")
import browsergym.miniwob  # noqa: F401 registers the environments
import miniwob
import playwright
from browsergym.utils.obs import flatten_axtree_to_str

from comap.envs.web import WebCanonicalizer
from comap.integrations.adapter import adapt
from comap.integrations.browsergym import browsergym_wording, flattened, from_axtree

TASKS = ("click-test", "click-button", "enter-text", "choose-list", "click-checkboxes", "click-tab")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the system's Chromium and MiniWoB++'s pages where BrowserGym looks for its own."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs chromium: apt-get install chromium")
    listing = next(Path(playwright.__file__).parent.rglob("browsers.json"))
    browsers = json.loads(listing.read_text("utf-8"))["browsers"]
    revision = next(entry["revision"] for entry in browsers if entry["name"] == "chromium")

    place = tmp_path_factory.mktemp("browsers")
    command = place / f"chromium-{revision}" / "chrome-linux" / "chrome"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {program} --no-sandbox "$@"\n', "utf-8")
    command.chmod(0o755)

    pages = Path(miniwob.__file__).parent / "html" / "miniwob"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(place))
        patch.setenv("MINIWOB_URL", f"{pages.as_uri()}/")
        yield


@pytest.mark.parametrize("name", TASKS)
def test_a_page_is_what_browsergyms_own_text_makes_of_it(name: str, browser: None) -> None:
    env: Any = gymnasium.make(f"browsergym/miniwob.{name}")
    try:
        tree = env.reset(seed=3)[0]["axtree_object"]
    finally:
        env.close()
    page, bids = from_axtree(flattened(tree))
    assert (page, bids) == from_axtree(flatten_axtree_to_str(tree))
    assert any(bids)


def test_comaps_agent_plays_a_task_of_browsergym(browser: None) -> None:
    theirs = gymnasium.make("browsergym/miniwob.click-test")
    env = adapt(theirs, WebCanonicalizer(), browsergym_wording(), name="theirs", seeds=range(3))
    try:
        observation, info = env.reset(seed=1)
        assert info["goal"] == "Click the button." and "button 'Click Me!'" in observation
        assert env.step("click [99]")[4]["invalid_action"]
        observation, reward, terminated, _, info = env.step("click [button 'Click Me!']")
        assert terminated and reward == 1.0 and info["success"]
        assert any(fact[0] == "at" for fact in info["facts"].facts)
    finally:
        env.close()
