"""The trajectory viewer in a browser: what one sees, types and clicks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.browser import Browser
from comap.benchmarks.report import Episode, Pack, write_report
from comap.envs.conformance.transcripts import load
from comap.trajectory import TOLD

pytest.importorskip("jinja2", reason="the extra viz is not installed")
KIT = load(f"{Path(__file__).with_name('viewer_kit.py')}:KIT")
GOING, plain = KIT.GOING, KIT.plain
looked_for, shown, text, texts = KIT.looked_for, KIT.shown, KIT.text, KIT.texts


def choose(browser: Browser, label: str, option: str) -> None:
    """Choose what begins with a text in the filter of that name."""
    script = """
      const box = [...document.querySelectorAll("#filters label")]
        .find((one) => one.firstChild.textContent === arguments[0]).querySelector("select");
      box.selectedIndex = [...box.options].findIndex((one) => one.text.startsWith(arguments[1]));
      box.dispatchEvent(new Event("change"));
    """
    browser.run(script, label, option)


def test_the_list_is_filtered(browser: Browser, page: Path) -> None:
    shown(browser, page)
    assert text(browser, "#shown") == "10 episodes"
    labels = texts(browser, "#filters label > span")
    assert labels == ["Run", "Environment", "Agent", "Outcome", "Split", "Task type", "Order"]
    choose(browser, "Outcome", "failed")
    assert text(browser, "#shown") == "3 of 10 episodes"
    options = texts(browser, "#filters select option")
    assert "first (2)" in options and "second (1)" in options, "counts are of what the rest leaves"
    choose(browser, "Run", "second")
    assert text(browser, "#shown") == "1 of 10 episodes"
    assert "Boil water number 4." in text(browser, "#episodes")
    browser.click("#clear")
    assert text(browser, "#shown") == "10 episodes"
    browser.click(".chip")
    chips = texts(browser, ".flags .chip")
    assert chips[0] == "with predictions 1" and text(browser, "#shown") == "1 of 10 episodes"
    assert browser.run("return document.querySelector('.chip').ariaPressed") == "true"
    browser.click("#clear")
    choose(browser, "Task type", "pick_and_place_simple")
    assert "put a pen in safe." in text(browser, "#episodes")
    choose(browser, "Outcome", "failed")
    assert text(browser, "#shown") == "0 of 10 episodes"


def test_texts_are_found_and_marked(browser: Browser, page: Path) -> None:
    shown(browser, page)
    told = looked_for(browser, "PLACE 3")
    assert told.startswith("18 hits in 9 episodes") and "actions 9, observations 9" in told
    assert text(browser, "#shown") == "9 of 10 episodes"
    browser.press("Enter")
    browser.wait("document.querySelectorAll('#step mark.hit').length === 2")
    assert "Step 3 of 5" in text(browser, "#moves")
    browser.press("Escape", "n")
    browser.wait("/^#3\\/3/.test(location.hash)")
    browser.press("N")
    browser.wait("/^#2\\/3/.test(location.hash)")
    browser.run(
        "const box = document.getElementById('scope'); box.value = arguments[0];"
        "box.dispatchEvent(new Event('change'))",
        "actions",
    )
    browser.wait("document.getElementById('found').textContent.startsWith('9 hits')")
    assert looked_for(browser, "no such words").startswith("0 hits in 0 episodes")
    browser.press("Escape", "x")
    browser.wait("document.getElementById('shown').textContent === '10 episodes'")


EVERYWHERE = {
    "put a pen": "goals",
    "you are a ROBOT.": "prompts",
    "It opens.": "replies",
    "official cache": "notes",
    "in(pen 1, safe 1)": "facts",
    "It is empty": "observations",
    "sing": "actions",
}


def test_everything_is_searched(browser: Browser, page: Path) -> None:
    shown(browser, page)
    for words, scope in EVERYWHERE.items():
        told = looked_for(browser, words)
        assert f"{scope} " in told and not told.startswith("0 hits"), words
        browser.press("Enter")
        browser.wait("document.querySelector('#detail mark.hit')?.checkVisibility()")
        assert text(browser, "mark.hit").lower() == words.lower()


def test_what_is_looked_for_is_no_pattern(browser: Browser, page: Path) -> None:
    shown(browser, page)
    for words in (".*", "[a-z]", "\\d", "^", "a|b", "$&", "</", "\u202e", "İ"):
        assert looked_for(browser, words).startswith("0 hits"), words
    assert re.match(r"[1-9]\d* hits", looked_for(browser, "("))


def test_keys_move_about(browser: Browser, page: Path) -> None:
    shown(browser, page)
    place = "document.querySelector('#moves strong').textContent"
    for keys, expected in [
        ("j", "Step 1 of 3"),
        ("jj", "Step 3 of 3"),
        ("k", "Step 2 of 3"),
        ("G", "Step 3 of 3"),
        ("j", "Step 3 of 3"),
        ("g", "Start, 3 steps"),
        ("k", "Start, 3 steps"),
        ("l", "Start, 5 steps"),
        ("h", "Start, 3 steps"),
    ]:
        browser.press(*keys)
        browser.wait(f"{place} === '{expected}'", 3)
    browser.press("?")
    assert browser.run("return document.getElementById('help').open") is True
    assert "next episode" in text(browser, "#help")
    browser.press("j", "Escape")
    assert browser.run(f"return {place}") == "Start, 3 steps"
    browser.press("/")
    assert browser.run("return document.activeElement.id") == "search"
    browser.press("j")
    assert browser.run("return document.getElementById('search').value") == "j"
    browser.press("Escape")
    assert browser.run("return document.activeElement.id") == "episodes"


def test_lists_obey_arrow_keys_and_tell_who_is_chosen(browser: Browser, page: Path) -> None:
    shown(browser, page)
    browser.run("document.getElementById('episodes').focus()")
    browser.press("ArrowDown")
    browser.wait(
        "document.querySelector('#about h3').textContent.startsWith('Boil water number 1.')"
    )
    browser.press("End")
    browser.wait("location.hash === '#10/0'")
    chosen = (
        "const list = document.getElementById(arguments[0]);"
        "const row = document.getElementById(list.getAttribute('aria-activedescendant'));"
        "return [list.role, row.role, row.ariaSelected, row.ariaPosInSet, row.ariaSetSize]"
    )
    assert browser.run(chosen, "episodes") == ["listbox", "option", "true", "10", "10"]
    browser.run("document.getElementById('steps').focus()")
    browser.press("ArrowDown", "PageDown")
    assert browser.run(chosen, "steps") == ["listbox", "option", "true", "6", "6"]
    assert browser.run("return document.activeElement.id") == "steps"
    browser.press("Home")
    assert "Start" in text(browser, "#moves")


def test_a_link_leads_back(browser: Browser, page: Path) -> None:
    shown(browser, page, "#3/4?outcome=not+solved&q=place&in=actions&order=shortest")
    browser.wait(f"location.hash.includes('q=place') && !{GOING}")
    for _ in range(2):
        assert "Step 4 of 5" in text(browser, "#moves")
        assert text(browser, "#shown") == "3 of 10 episodes"
        assert browser.run("return document.getElementById('search').value") == "place"
        assert browser.run("return document.getElementById('scope').value") == "actions"
        browser.run("location.reload()")
        browser.wait("document.querySelector('#step .column')")
        browser.wait("document.getElementById('found').textContent.startsWith('15 hits')")
    browser.run("location.hash = '#2/1'")
    browser.wait("document.querySelector('#moves strong').textContent === 'Step 1 of 5'")
    assert text(browser, "#shown") == "10 episodes"


def test_wrong_links_lead_somewhere(browser: Browser, page: Path) -> None:
    shown(browser, page)
    strange = "#1/1?run=<b>&with=x&order=__proto__&in=a"
    for place in ("#0/0", "#999/999", "#-1/2", "#1", "#1/x", "#%E2%80%AE", strange):
        browser.run("location.hash = arguments[0]", place)
        browser.wait("/^#(1|10)\\/[0135]$/.test(location.hash)")
        assert text(browser, "#shown") == "10 episodes"


def test_a_step_shows_what_was_behind_it(browser: Browser, page: Path) -> None:
    shown(browser, page, "#1/1")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    browser.wait("document.querySelector('.messages')")
    assert [one.split("\n")[0] for one in texts(browser, ".column")] == [
        "Real reward 0.00, score 0.00",
        "Predicted by a model, confidence 0.75",
    ] or len(texts(browser, ".column")) == 2
    marks = texts(browser, ".observation mark.differs")
    assert any("see a pen" in one for one in marks) and any("is empty" in one for one in marks)
    changes = text(browser, ".changes")
    assert "2 foreseen, 1 missed, 0 made up" in changes and "Delta-F1 0.80" in changes
    assert "in(pen 1, safe 1)" in changes and "missed" in changes
    gates = text(browser, ".gates")
    for told in (
        "revised",
        "go to desk 1",
        "p = 0.800 > 0.50",
        "enough, verbalizer",
        "q = 0.750 > 0.60",
    ):
        assert told in gates
    detail = text(browser, "#detail")
    for told in (
        *("What the environment told", "official cache", "What the agent noted", "exec_action"),
        *("What language models said: 4 calls", "You are a robot.", "40 tokens read, 3 written"),
        *(
            "cut off",
            "adapter wm",
            "Settings of the agent",
            "pick_and_place_simple",
            "3 facts held true",
        ),
    ):
        assert told in detail, told
    noted = texts(browser, ".notes dt")
    assert "draft_action" in noted and TOLD not in noted
    browser.press("G")
    detail = text(browser, "#detail")
    assert "150 calls" in detail and "50 more are not shown." in detail
    assert "What they said after the last step: 1 call" in detail and "--keep prompts" in detail
    browser.press("k")
    assert "refused" in text(browser, "#steps [aria-selected=true]")


def test_tokens_tell_their_probabilities(browser: Browser, page: Path) -> None:
    shown(browser, page, "#1/1")
    found = browser.run("return [...document.querySelectorAll('.tokens')][0].childNodes.length")
    assert found == 3
    classes = browser.run(
        "return [...document.querySelector('.tokens').children].map((one) => one.className)"
    )
    assert classes == ["token p0", "token p2", "token p4"]
    assert "on average 13.9 %" in text(browser, ".readout")
    browser.run("document.querySelector('.tokens').focus()")
    browser.press("ArrowRight")
    assert text(browser, ".readout") == 'token 2 of 3 " safe" 40.7 %, log-probability -0.9000'
    assert browser.run("return location.hash").startswith("#1/1"), "the step is the same"
    browser.run(
        "const token = document.querySelectorAll('.tokens')[1].lastElementChild;"
        "token.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    )
    assert (
        "token 2 of 2" in texts(browser, ".readout")[1] and '"#32"' in texts(browser, ".readout")[1]
    )
    options = texts(browser, ".options li")
    assert options[0].replace("\n", " ").strip().startswith("safe 1") and "91.7 %" in options[0]
    assert "Probability of a token:" in text(browser, ".token-legend")


def test_two_runs_of_a_task_are_shown_side_by_side(browser: Browser, page: Path) -> None:
    assert page.name == "view-together.html"
    shown(browser, page, "#3/2")
    assert "This task also:" in text(browser, ".others") and "second, random" in text(
        browser, ".others"
    )
    browser.click(".others .chip")
    browser.wait("document.querySelector('.column.beside')")
    assert "second, random" in text(browser, ".column.beside")
    assert "0 in both" in text(browser, ".changes")
    browser.click(".others .link")
    browser.wait("/^#8\\/2/.test(location.hash)")
    assert browser.run("return document.querySelector('.column.beside')") is None
    browser.run("document.querySelector('.folded').open = true")
    assert "Boil" not in text(browser, ".folded") and "second" in text(browser, ".folded table")


def test_of_many_episodes_only_those_in_sight_are_rows(browser: Browser, tmp_path: Path) -> None:
    told: dict[str, Any] = {"summary": {}, "tables": [], "plots": []}
    pack = Pack(Episode(f"number {i}", plain(i), None) for i in range(1500))
    write_report(tmp_path / "many.html", title="", episodes=pack, folded=True, **told)
    shown(browser, tmp_path / "many.html", "#1400/2")
    assert "1,500 episodes" in text(browser, "#shown")
    assert browser.run("return document.querySelectorAll('#episodes .row').length") < 40
    assert "number 1399" in text(browser, "#episodes [aria-selected=true]")
    browser.run("document.getElementById('episodes').scrollTop = 0")
    browser.wait("document.querySelector('#episodes-0')")


def test_an_episode_that_is_broken_is_told_and_others_open(
    browser: Browser, tmp_path: Path
) -> None:
    told: dict[str, Any] = {"summary": {}, "tables": [], "plots": []}
    episodes = [Episode(f"number {i}", plain(i), None) for i in range(3)]
    write_report(tmp_path / "whole.html", title="", episodes=episodes, **told)
    page = (tmp_path / "whole.html").read_text("utf-8")
    (tmp_path / "broken.html").write_text(
        re.sub(r'id="packed-0">.{20}', 'id="packed-0">' + "A" * 20, page)
    )
    browser.open(tmp_path / "broken.html")
    browser.wait("document.querySelector('#about .error')")
    assert "Episode 1 cannot be shown" in text(browser, "#about")
    browser.run("document.getElementById('episodes-1').click()")
    browser.wait("document.querySelector('#step .column')")
    told = looked_for(browser, "place 3")
    assert told.startswith("4 hits in 2 episodes (1 episode could not be unpacked)")
