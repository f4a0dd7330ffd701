"""The trajectory viewer and hostile text: it stays text, all of it, and does nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.browser import Browser
from comap.benchmarks.report import Episode, write_report
from comap.envs.conformance.transcripts import load

pytest.importorskip("jinja2", reason="the extra viz is not installed")
KIT = load(f"{Path(__file__).with_name('viewer_kit.py')}:KIT")
EVIL, evil_of, looked_for, shown = KIT.EVIL, KIT.evil_of, KIT.looked_for, KIT.shown


def test_hostile_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    dreamt = Episode(EVIL, evil_of(), evil_of(), EVIL)
    others = [Episode(EVIL + str(i), evil_of(), None, EVIL[::-1]) for i in range(3)]
    told: dict[str, Any] = {"summary": {EVIL: EVIL}, "tables": [], "plots": []}
    write_report(tmp_path / "evil.html", title=EVIL, episodes=[dreamt, *others], **told)
    for place in ("", "#1/1", "#2/1"):
        shown(browser, tmp_path / "evil.html", place)
        browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
        browser.wait(
            "[...document.querySelectorAll('details')].every((one) => one.childElementCount > 1)"
        )
        own = browser.run(
            "return [...document.body.querySelectorAll('*')].map((one) => one.localName)"
        )
        assert not {"img", "svg", "b", "a", "iframe", "style", "textarea"} & set(own)
        assert browser.run("return document.scripts.length") == 6
        assert browser.run("return document.body.dataset.pwned") is None
        names = browser.run(
            "return [...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
            ".filter((name) => name.startsWith('on') || name === 'src' || name === 'href')"
        )
        assert names == []
        everything = browser.run(
            "const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);"
            "const found = []; while (walk.nextNode())"
            " if (!walk.currentNode.parentElement.matches('script')) found.push(walk.currentNode.data);"
            "return JSON.stringify(found.join(''))"
        )
        assert everything.count("<img src=x onerror=") > 8 and "U+202E" in everything
        hidden = set("\x1b\x00\x07\x7f\u202e\u2066\u200b\u2028\u2029\ufffe")
        assert not set(json.loads(everything)) & hidden
        assert "[U+202E]" in browser.run("return document.title")


def test_hostile_text_is_looked_for(browser: Browser, tmp_path: Path) -> None:
    told: dict[str, Any] = {"summary": {}, "tables": [], "plots": []}
    episode = Episode(EVIL, evil_of(), None)
    write_report(tmp_path / "evil.html", title="", episodes=[episode], **told)
    shown(browser, tmp_path / "evil.html")
    for words in ("<img src=x", "\u202ecba", "</script><script>", "😀", "[31m"):
        assert "in 1 episode ·" in looked_for(browser, words), words
        browser.press("Enter")
        browser.wait("document.querySelector('#step mark.hit')")
    assert browser.run("return document.body.dataset.pwned") is None
