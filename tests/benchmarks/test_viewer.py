"""The trajectory viewer in a browser: what one sees, types and clicks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from comap.benchmarks.report import Episode, Pack, render_page, write_whole
from comap.facts import State, diff
from comap.trajectory import ENV_INFO, Predicted
from kits.episode_pages import (
    EVIL,
    FILLED,
    GATES,
    GOING,
    OPENED,
    SETTINGS,
    START,
    evil_of,
    foreseen,
    looked_for,
    open_viewer,
    plain,
    predicted,
    revision,
    step,
    text,
    texts,
    trajectory,
)

pytest.importorskip("jinja2", reason="the extra viz is not installed")


def choose(browser, label, option):
    """Choose what begins with a text in the filter of that name."""
    script = """
      const box = [...document.querySelectorAll("#filters label")]
        .find((one) => one.firstChild.textContent === arguments[0]).querySelector("select");
      box.selectedIndex = [...box.options].findIndex((one) => one.text.startsWith(arguments[1]));
      box.dispatchEvent(new Event("change"));
    """
    browser.run(script, label, option)


def test_the_list_is_filtered(browser, page):
    open_viewer(browser, page)
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


def test_texts_are_found_and_marked(browser, page):
    open_viewer(browser, page)
    browser.click(".folded > summary")  # so that hits are in sight
    hits_text = looked_for(browser, "PLACE 3")
    assert (
        hits_text.startswith("18 hits in 9 episodes") and "actions 9, observations 9" in hits_text
    )
    assert text(browser, "#shown") == "9 of 10 episodes"
    browser.wait("/^#2\\/3/.test(location.hash)")
    assert browser.run("return document.activeElement.id") == "search", "typing goes on"
    browser.wait("document.querySelectorAll('#step mark.hit').length === 2")
    assert "Step 3 of 5" in text(browser, "#moves")
    browser.press("Enter")
    browser.wait("/^#3\\/3/.test(location.hash)")
    browser.press("Escape", "N")
    browser.wait("/^#2\\/3/.test(location.hash)")
    browser.run(
        "const box = document.getElementById('scope'); box.value = arguments[0];"
        "box.dispatchEvent(new Event('change'))",
        "actions",
    )
    browser.wait("document.getElementById('found')?.textContent.startsWith('9 hits')")
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


def test_the_first_hit_is_shown_at_once(browser, page):
    open_viewer(browser, page, "#4/2")
    looked_for(browser, "place 5")
    browser.wait("/^#4\\/5/.test(location.hash)")
    browser.run("document.getElementById('search').value = ''")
    browser.click("#search")
    browser.type("put a pen")
    browser.press("Enter")  # before the search has begun by itself
    browser.wait("/^#1\\/0/.test(location.hash)")
    assert "put a pen" in text(browser, "#about mark.hit")


def test_everything_is_searched(browser, page):
    open_viewer(browser, page)
    for words, scope in EVERYWHERE.items():
        hits_text = looked_for(browser, words)
        assert f"{scope} " in hits_text and not hits_text.startswith("0 hits"), words
        browser.press("Enter")
        browser.wait("document.querySelector('#detail mark.hit')?.checkVisibility()")
        assert text(browser, "mark.hit").lower() == words.lower()


def test_what_is_looked_for_is_no_pattern(browser, page):
    open_viewer(browser, page)
    for words in (".*", "[a-z]", "a|b", "$&", "</", "İ"):
        assert looked_for(browser, words).startswith("0 hits"), words
    assert re.match(r"[1-9]\d* hits", looked_for(browser, "("))


def test_keys_move_about(browser, page):
    open_viewer(browser, page)
    place = "document.querySelector('#moves strong').textContent"
    left_key, right = "ArrowLeft", "ArrowRight"
    for keys, expected in [
        *(("j", "Step 2 of 3"), ("jj", "Step 3 of 3"), ("k", "Step 2 of 3"), ("G", "Step 3 of 3")),
        *(("j", "Step 3 of 3"), ("g", "Start, 3 steps"), ("k", "Start, 3 steps")),
        *(([right], "Step 1 of 3"), ([right, right], "Step 3 of 3"), ([left_key], "Step 2 of 3")),
        *(("l", "Start, 5 steps"), ("h", "Step 1 of 3"), ([left_key], "Start, 3 steps")),
    ]:
        browser.press(*keys)
        browser.wait(f"{place} === '{expected}'")
    browser.press("?")
    assert browser.run("return document.getElementById('help').open") is True
    assert "next episode" in text(browser, "#help")
    browser.press("j", "Escape")
    assert browser.run(f"return {place}") == "Start, 3 steps"
    browser.press("/")
    assert browser.run("return document.activeElement.id") == "search"
    browser.press("j", left_key, "k")
    assert browser.run("return document.getElementById('search').value") == "kj"
    assert browser.run(f"return {place}") == "Start, 3 steps"
    browser.press("Escape")
    assert browser.run("return document.activeElement.id") == "episodes"


def test_lists_obey_arrow_keys_and_tell_who_is_chosen(browser, page):
    open_viewer(browser, page)
    browser.run("document.getElementById('episodes').focus()")
    browser.press("ArrowDown")
    browser.wait(
        "document.querySelector('#about h3').textContent.startsWith('Boil water number 1.')"
    )
    browser.press("End")
    browser.wait("location.hash === '#10/0'")
    selected_row_script = (
        "const list = document.getElementById(arguments[0]);"
        "const row = document.getElementById(list.getAttribute('aria-activedescendant'));"
        "return [list.role, row.role, row.ariaSelected, row.ariaPosInSet, row.ariaSetSize]"
    )
    assert browser.run(selected_row_script, "episodes") == ["listbox", "option", "true", "10", "10"]
    browser.run("document.getElementById('steps').focus()")
    browser.press("ArrowDown", "PageDown")
    assert browser.run(selected_row_script, "steps") == ["listbox", "option", "true", "6", "6"]
    assert browser.run("return document.activeElement.id") == "steps"
    browser.press("Home")
    assert "Start" in text(browser, "#moves")


def test_a_link_leads_back(browser, page):
    open_viewer(browser, page, "#3/4?outcome=not+solved&q=place&in=actions&order=shortest")
    browser.wait(f"location.hash.includes('q=place') && !{GOING}")
    for _ in range(2):
        assert "Step 4 of 5" in text(browser, "#moves")
        assert text(browser, "#shown") == "3 of 10 episodes"
        assert browser.run("return document.getElementById('search').value") == "place"
        assert browser.run("return document.getElementById('scope').value") == "actions"
        browser.page.reload()
        browser.wait("document.querySelector('#step .column')")
        browser.wait("document.getElementById('found')?.textContent.startsWith('15 hits')")
    browser.run("location.hash = '#2/1'")
    browser.wait("document.querySelector('#moves strong').textContent === 'Step 1 of 5'")
    assert text(browser, "#shown") == "10 episodes"


def test_wrong_links_lead_somewhere(browser, page):
    open_viewer(browser, page)
    strange = "#1/1?run=<b>&with=x&order=__proto__&in=a"
    for place in ("#0/0", "#999/999", "#-1/2", "#1", "#1/x", "#%E2%80%AE", strange):
        browser.run("location.hash = arguments[0]", place)
        browser.wait("/^#(1|10)\\/[0135]$/.test(location.hash)")
        assert text(browser, "#shown") == "10 episodes"


def test_a_step_shows_what_was_behind_it(browser, page):
    open_viewer(browser, page, "#1/1")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    browser.wait("document.querySelector('.messages')")
    assert len(texts(browser, ".column")) == 2
    marks = texts(browser, ".observation mark.differs")
    assert any("see a pen" in mark for mark in marks) and any("is empty" in mark for mark in marks)
    changes = text(browser, ".changes")
    assert "2 foreseen, 1 missed, 0 made up" in changes and "Delta-F1 0.80" in changes
    assert "in(pen 1, safe 1)" in changes and "missed" in changes
    gates = text(browser, ".gates")
    for phrase in ("revised", "go to desk 1", "p = 0.800 > 0.50", "enough, verbalizer"):
        assert phrase in gates
    detail = text(browser, "#detail")
    for phrase in (
        *("What the environment reported", "official cache", "What the agent noted", "exec_action"),
        *("What language models said: 4 calls", "You are a robot.", "40 tokens read, 3 written"),
        *("cut off", "adapter wm", "Settings of the agent", "3 facts held true"),
    ):
        assert phrase in detail, phrase
    noted = texts(browser, ".notes dt")
    assert "draft_action" in noted and ENV_INFO not in noted
    browser.press("G")
    detail = text(browser, "#detail")
    assert "150 calls" in detail and "50 more are not shown." in detail
    assert "What they said after the last step: 1 call" in detail and "--keep prompts" in detail
    browser.press("k")
    assert "refused" in text(browser, "#steps [aria-selected=true]")


def test_it_opens_where_a_revision_changed_facts_else_at_a_prediction_of_changes(browser, tmp_path):
    in_vain = trajectory(revision(1, START, START))
    helped = trajectory(revision(1, START, START), revision(2, START, FILLED))
    repeated = trajectory(predicted(1, START, START, guess=OPENED))
    solving = trajectory(
        *helped.steps, replace(revision(3, FILLED, START), success=True, score=1.0)
    )
    first = [Episode("plain", plain(1), None), Episode("in vain", in_vain, None)]
    guessed = [*first, Episode("no change", repeated, None), foreseen()]
    for name, episodes, place in (
        ("helped", [*guessed, Episode("helped", helped, None)], "#5/2"),
        ("solved", [Episode("", helped, None), Episode("", solving, None)], "#2/3"),
        ("mispredicted", guessed, "#4/1"),
        ("in vain", first, "#2/1"),
        ("plain", first[:1], "#1/0"),
    ):
        write_whole(tmp_path / f"{name}.html", render_page("", {}, (), episodes))
        open_viewer(browser, tmp_path / f"{name}.html")
        browser.wait(f"location.hash === '{place}'")


def test_at_a_revised_step_the_forecast_of_the_draft_is_shown(browser, tmp_path):
    steps = (
        revision(1, START, FILLED, "open safe 1", "You open the safe 1."),
        step(2, FILLED, START),
    )
    episode = Episode("revised", trajectory(*steps), None)
    write_whole(tmp_path / "one.html", render_page("", {}, (), [episode]))
    open_viewer(browser, tmp_path / "one.html", "#1/1")
    column = text(browser, ".column.predicted")
    for phrase in (
        "of the draft",
        "go to desk 1",
        "Nothing happens.",
        "of the action that was taken",
    ):
        assert phrase in column, phrase
    assert "missed" not in text(browser, ".changes"), "nothing was predicted of these changes"
    browser.press("j")
    assert "Nothing was predicted here." in text(browser, ".column.predicted")


def test_delta_f1_of_an_episode_is_of_its_changes(browser, tmp_path):
    nothing_happens = (predicted(t, START, START, guess=START) for t in range(1, 5))
    changed = predicted(5, START, FILLED, guess=OPENED)
    episode = Episode("", trajectory(*nothing_happens, changed), None)
    unchanged = Episode("", trajectory(predicted(1, START, START)), None)
    write_whole(tmp_path / "two.html", render_page("", {}, (), [episode, unchanged]))
    open_viewer(browser, tmp_path / "two.html")
    first, second = texts(browser, "#episodes .row")
    assert "ΔF1 0.80" in first and "ΔF1" not in second
    assert "Delta-F1 of changes\n0.80" in text(browser, "#about")


def test_red_is_for_what_was_wrong_and_terms_are_explained(browser, tmp_path):
    start, after = State(frozenset({("at", "a")})), State(frozenset({("at", "b")}))
    guess = State(frozenset({("at", "c")}))
    prediction = Predicted("You leave.", guess, diff(start, guess), "a model")
    notes = {**GATES, "gate": False}
    gated_step = step(1, start, after, prediction=prediction, notes=notes)
    episode = Episode("", trajectory(gated_step, facts=start, settings=SETTINGS), None)
    write_whole(tmp_path / "one.html", render_page("", {}, (), [episode]))
    open_viewer(browser, tmp_path / "one.html")
    fates = browser.run(
        "return [...document.querySelectorAll('.changes li')].map((one) =>"
        " [one.innerText.replace(/\\s+/g, ' ').trim(), one.className,"
        " getComputedStyle(one).color === getComputedStyle(document.querySelector('.unsolved')).color])"
    )
    assert fates == [
        ["removed: − at(a) foreseen", "foreseen", False],
        ["added: + at(b) missed", "missed", False],
        ["added: + at(c) made up", "made-up", True],
    ]
    explained = browser.run(
        "return [...document.querySelectorAll('.explained')]"
        ".map((one) => [one.textContent, one.title === one.ariaDescription && one.title])"
    )
    words = {name.strip(): meaning for name, meaning in explained}
    head = "Delta-F1 of changes"
    for name in ("p = 0.800", "> 0.50", "q = 0.750", "Delta-F1 0.50", head, "made up"):
        assert len(words[name]) > 30, name
    browser.press("?")
    assert words["p = 0.800"] in text(browser, "#help")
    browser.press("Escape")


def test_tokens_tell_their_probabilities(browser, page):
    open_viewer(browser, page, "#1/1")
    node_count = browser.run(
        "return [...document.querySelectorAll('.tokens')][0].childNodes.length"
    )
    assert node_count == 3
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
    by_number = texts(browser, ".readout")[1]
    assert "token 2 of 2" in by_number and '"#32"' in by_number
    options = texts(browser, ".options li")
    assert options[0].replace("\n", " ").strip().startswith("safe 1") and "91.7 %" in options[0]
    assert "Probability of a token:" in text(browser, ".token-legend")


def test_two_runs_of_a_task_are_shown_side_by_side(browser, page):
    assert page.name == "view-together.html"
    open_viewer(browser, page, "#3/2")
    assert "second, random" in text(browser, ".others")
    browser.click(".others .chip")
    browser.wait("document.querySelector('.column.beside')")
    assert "second, random" in text(browser, ".column.beside")
    assert "0 in both" in text(browser, ".changes")
    browser.click(".others .link")
    browser.wait("/^#8\\/2/.test(location.hash)")
    assert browser.run("return document.querySelector('.column.beside')") is None
    assert "Boil" not in text(browser, ".folded")
    assert "second" in text(browser, ".folded table"), "the results of two runs are open"


def test_of_many_episodes_only_those_in_sight_are_rows(browser, tmp_path):
    pack = Pack(Episode(f"number {i}", plain(i), None) for i in range(1500))
    write_whole(tmp_path / "many.html", render_page("", {}, (), pack, folded=True))
    open_viewer(browser, tmp_path / "many.html", "#1400/2")
    assert "1,500 episodes" in text(browser, "#shown")
    assert browser.run("return document.querySelectorAll('#episodes .row').length") < 40
    assert "number 1399" in text(browser, "#episodes [aria-selected=true]")
    browser.run("document.getElementById('episodes').scrollTop = 0")
    browser.wait("document.querySelector('#episodes-0')")


def test_an_episode_that_is_broken_is_told_and_others_open(browser, tmp_path):
    episodes = [Episode(f"number {i}", plain(i), None) for i in range(3)]
    write_whole(tmp_path / "whole.html", render_page("", {}, (), episodes))
    page = (tmp_path / "whole.html").read_text("utf-8")
    (tmp_path / "broken.html").write_text(
        re.sub(r'id="packed-0">.{20}', 'id="packed-0">' + "A" * 20, page)
    )
    browser.open(tmp_path / "broken.html")
    browser.wait("document.querySelector('#about .error')")
    assert "Episode 1 cannot be shown" in text(browser, "#about")
    browser.run("document.getElementById('episodes-1').click()")
    browser.wait("document.querySelector('#step .column')")
    hits_text = looked_for(browser, "place 3")
    assert hits_text.startswith("4 hits in 2 episodes (1 episode could not be unpacked)")


def test_hostile_text_stays_text(browser, tmp_path):
    dreamt = Episode(EVIL, evil_of(), evil_of(), EVIL)
    others = [Episode(EVIL + str(i), evil_of(), None, EVIL[::-1]) for i in range(3)]
    episodes = [dreamt, *others]
    write_whole(tmp_path / "evil.html", render_page(EVIL, {EVIL: EVIL}, (), episodes))
    for place in ("", "#1/1", "#2/1"):
        open_viewer(browser, tmp_path / "evil.html", place)
        browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
        browser.wait(
            "[...document.querySelectorAll('details')].every((one) => one.childElementCount > 1)"
        )
        element_names = browser.run(
            "return [...document.body.querySelectorAll('*')].map((one) => one.localName)"
        )
        assert not {"img", "svg", "b", "a", "iframe", "style", "textarea"} & set(element_names)
        assert browser.run("return document.scripts.length") == 6
        assert browser.run("return document.body.dataset.pwned") is None
        names = browser.run(
            "return [...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
            ".filter((name) => name.startsWith('on') || name === 'src' || name === 'href')"
        )
        assert names == []
        page_text = browser.run(
            "const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);"
            "const found = []; while (walk.nextNode())"
            " if (!walk.currentNode.parentElement.matches('script')) found.push(walk.currentNode.data);"
            "return JSON.stringify(found.join(''))"
        )
        assert page_text.count("<img src=x onerror=") > 8 and "U+202E" in page_text
        hidden = set("\x1b\x00\x07\x7f\u202e\u2066\u200b\u2028\u2029\ufffe")
        assert not set(json.loads(page_text)) & hidden
        assert "[U+202E]" in browser.run("return document.title")


def test_hostile_text_is_looked_for(browser, tmp_path):
    episode = Episode(EVIL, evil_of(), None)
    write_whole(tmp_path / "evil.html", render_page("", {}, (), [episode]))
    open_viewer(browser, tmp_path / "evil.html")
    for words in ("<img src=x", "\u202ecba", "</script><script>", "😀", "[31m"):
        assert "in 1 episode ·" in looked_for(browser, words), words
        browser.press("Enter")
        browser.wait("document.querySelector('#step mark.hit')")
    assert browser.run("return document.body.dataset.pwned") is None


CONTRAST = """
const parse = (color) => {
  const numbers = color.match(/[\\d.]+/g).map(Number);
  return numbers.length < 4 ? [...numbers, 1] : numbers;
};
const linear = (v) => (v / 255 <= 0.03928 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const behind = (one) => {
  for (; one; one = one.parentElement) {
    const color = parse(getComputedStyle(one).backgroundColor);
    if (color[3] > 0.99) return color;
  }
  return [255, 255, 255];
};
const low = [];
for (const one of document.body.querySelectorAll("*")) {
  if (!one.checkVisibility() || one.closest(":disabled, .spoken")) continue;
  if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
  const own = light(parse(getComputedStyle(one).color));
  const [most, least] = [own, light(behind(one))].sort((a, b) => b - a);
  const ratio = (most + 0.05) / (least + 0.05);
  if (ratio < 4.5) low.push(`${one.localName}.${one.className} ${ratio.toFixed(2)}`);
}
return low;
"""


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_letters_stand_out(browser, page, colors):
    browser.look(1500, 900, colors)
    open_viewer(browser, page, "#1/1?q=safe")
    browser.wait("document.querySelector('#step mark.hit')")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.run(CONTRAST) == []


@pytest.mark.parametrize("width", [360, 1100, 2200])
def test_every_width_will_do(browser, page, width):
    browser.look(width, 800)
    open_viewer(browser, page, "#1/1?q=safe")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), width
    assert browser.run("return document.getElementById('steps').clientHeight") > 90


def test_on_a_narrow_page_filters_stand_in_rows(browser, page):
    browser.look(500, 900)
    open_viewer(browser, page)
    rows = browser.run(
        "return [...document.querySelectorAll('.searching, .facet')]"
        ".map((one) => one.getBoundingClientRect()).map(({top, bottom}) => [top, bottom])"
    )
    for (top, bottom), (next_top, next_bottom) in pairwise(rows):
        assert next_top >= bottom or abs(next_bottom - bottom) < 1, (top, bottom, next_top)


@pytest.mark.parametrize("width", [500, 1280])
def test_the_list_of_one_episode_takes_no_more_room_than_it_needs(browser, tmp_path, width):
    browser.look(width, 900)
    write_whole(tmp_path / "one.html", render_page("", {}, (), [Episode("", plain(1), None)]))
    open_viewer(browser, tmp_path / "one.html")
    list_height, row_height = browser.run(
        "return ['#episodes', '#episodes .row']"
        ".map((name) => document.querySelector(name).getBoundingClientRect().height)"
    )
    assert list_height < row_height + 4


def test_what_has_no_text_has_a_name(browser, page):
    open_viewer(browser, page, "#1/1")
    nodes = browser.cdp("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "listbox", "option", "slider", "combobox", "searchbox", "group", "dialog"}
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in roles - {"group"}
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
