"""The trajectory viewer in a browser: what one sees, types and clicks, and that hostile text stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.browser import Browser, missing_browser
from comap.benchmarks.report import Episode, Pack, write_report
from comap.benchmarks.view import view_run
from comap.facts import State, diff
from comap.trajectory import TOLD, Call, Predicted, Step, Trajectory, write_trajectories

pytest.importorskip("jinja2", reason="the extra viz is not installed")
pytestmark = pytest.mark.skipif(bool(missing_browser()), reason=missing_browser())

EVIL = (
    "</script><script>document.body.dataset.pwned=1</script><!--<script>"
    "<img src=x onerror=\"document.body.dataset.pwned=1\"><svg onload='document.body.dataset.pwned=1'>"
    "</textarea></title></style>&lt;b&gt; {{ 7 * 7 }} javascript:alert(1) ${7*7}\x1b[31m"
    "\x00\x07\x7f\u202ecba\u2066\u200b\u2028\u2029\ud800\udc00\ud800 \ufffe 😀"
)
START = State(frozenset({("closed", "safe 1"), ("at", "agent", "desk 1")}))
OPENED = State(frozenset({("open", "safe 1"), ("at", "agent", "desk 1")}))
FILLED = State(frozenset({*OPENED.facts, ("in", "pen 1", "safe 1")}))
SETTINGS = {"tau_p": 0.5, "tau_q": 0.6, "action_gate": True}
GATES = {
    "draft_action": "go to desk 1",
    "ref_action": "open safe 1",
    "exec_action": "open safe 1",
    "p": 0.8,
    "p_source": "verbalizer",
    "q": 0.75,
    "gate": True,
    "gate_parts": {"p": True, "q": True, "changed": True},
    TOLD: {"backend": "official cache"},
}


def step(t: int, before: State, after: State, action: str, seen: str, **more: Any) -> Step:
    return Step(
        t,
        action,
        seen,
        more.pop("reward", 0.0),
        more.pop("terminated", False),
        more.pop("truncated", False),
        more.pop("imagined", False),
        after,
        diff(before, after),
        **more,
    )


def thought_of() -> Trajectory:
    """An episode with all that an agent may leave on record."""
    talk = (("system", "You are a robot."), ("user", "You see a safe."))
    logs, words = (-0.01, -0.9, -5.0), ("open", " safe", " 1")
    calls = (
        Call(
            "generate",
            "draft",
            "open safe 1",
            40,
            3,
            talk,
            "Action:",
            (7, 8, 9),
            logs,
            tokens=words,
        ),
        Call("imagine", "world model", "It opens.", 30, 3, talk, finish="length", adapter="wm"),
        Call(
            "score", "which", " safe 1", 60, 2, logprobs=(-0.1, -2.5), tokens=(" safe 1", " desk 1")
        ),
        Call("generate", "by number", "go", 5, 2, token_ids=(31, 32), logprobs=(-0.1, -0.2)),
    )
    said = Predicted(
        "You open the safe 1. It is empty.", OPENED, diff(START, OPENED), "a model", 0.75
    )
    steps = (
        step(
            1,
            START,
            FILLED,
            "open safe 1",
            "You open the safe 1. In it, you see a pen 1.",
            prediction=said,
            calls=calls,
            notes=GATES,
        ),
        step(2, FILLED, FILLED, "sing", "Nothing happens.", invalid_action=True),
        step(
            3,
            FILLED,
            FILLED,
            "look",
            "You see a safe.",
            success=True,
            score=1.0,
            terminated=True,
            calls=calls[2:3] * 150,
        ),
    )
    return Trajectory(
        *("comap/ALFWorld-v0", "valid_seen/pick_and_place_simple-Pen-None-Safe-1/trial_1"),
        *("valid_seen", "put a pen in safe.", "comap", "You are in a room.", START, steps),
        settings=SETTINGS,
        seed=3,
        review=calls[:1],
    )


def plain(i: int, agent: str = "react") -> Trajectory:
    steps = tuple(
        step(
            t,
            START,
            START,
            f"go to place {t}",
            f"Episode {i}: you are at place {t}.",
            success=i % 3 == 0,
            score=float(i % 3 == 0),
        )
        for t in range(1, 6)
    )
    return Trajectory(
        *(
            "comap/ScienceWorld-v0",
            f"boil/{i}",
            "dev",
            f"Boil water number {i}.",
            agent,
            "Hello.",
            START,
            steps,
        ),
        error="EngineError: it broke" if i % 3 == 1 else None,
    )


def evil_of() -> Trajectory:
    after = State(frozenset({(EVIL, EVIL), (EVIL,)}), parsed=False)
    said = Predicted(EVIL, after, diff(START, after), EVIL, float("nan"))
    tokens = {"logprobs": (-0.5,), "tokens": (EVIL,)}
    calls = tuple(
        Call(kind, EVIL, EVIL, 3, 2, ((EVIL, EVIL),), EVIL, finish=EVIL, adapter=EVIL, **tokens)
        for kind in ("generate", "score", EVIL)
    )
    notes = {EVIL: EVIL, "list": [EVIL, {EVIL: None}], TOLD: {EVIL: EVIL}}
    notes |= {name: EVIL for name in GATES if isinstance(GATES[name], str)} | {
        "gate": True,
        "p": 0.5,
    }
    steps = (
        step(
            1,
            START,
            after,
            EVIL,
            EVIL,
            prediction=said,
            calls=calls,
            notes=notes,
            reward=float("inf"),
        ),
    )
    return Trajectory(
        *(EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, START, steps),
        error=EVIL,
        world_model=EVIL,
        settings={EVIL: EVIL, "tau_p": EVIL},
        review=calls,
    )


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser(1500, 900) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """A browser, of which is asked afterwards that nothing failed and nothing was loaded."""
    window.resize(1500, 900)
    window.console()
    window.requests()
    yield window
    assert window.console() == []
    assert window.violations() == []
    assert window.requests() == []


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two runs that played the same tasks."""
    folder = tmp_path_factory.mktemp("runs")
    first = [thought_of(), *(plain(i) for i in range(1, 7))]
    write_trajectories(folder / "first" / "trajectories.jsonl", first)
    write_trajectories(
        folder / "second" / "trajectories.jsonl", [plain(i, "random") for i in range(2, 5)]
    )
    return view_run([folder / "first", folder / "second"])


def shown(browser: Browser, page: Path, place: str = "") -> None:
    browser.open(page, place)
    browser.wait("document.querySelector('#step .column')")


def text(browser: Browser, selector: str) -> str:
    found = browser.run("return document.querySelector(arguments[0])?.innerText", selector)
    assert found is not None, f"nothing is {selector}"
    return str(found)


def texts(browser: Browser, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
    return [str(one) for one in browser.run(script, selector)]


def looked_for(browser: Browser, words: str) -> str:
    """Type a text into the search, and return what the page says of it when it is done."""
    browser.run("document.getElementById('search').value = ''")
    browser.click("#search")
    browser.type(words)
    looked = "new URLSearchParams(location.hash.split('?')[1]).get('q')"
    browser.wait(f"{looked} === {json.dumps(words)} && !{GOING}")
    return text(browser, "#found")


GOING = "document.getElementById('found').textContent.includes('searching')"


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


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        ("put a pen", "goals"),
        ("you are a ROBOT.", "prompts"),
        ("It opens.", "replies"),
        ("official cache", "notes"),
        ("in(pen 1, safe 1)", "facts"),
        ("It is empty", "observations"),
        ("sing", "actions"),
    ],
)
def test_everything_is_searched(browser: Browser, page: Path, words: str, scope: str) -> None:
    shown(browser, page)
    told = looked_for(browser, words)
    assert f"{scope} " in told and not told.startswith("0 hits")
    browser.press("Enter")
    browser.wait("document.querySelector('#detail mark.hit')?.checkVisibility()")


@pytest.mark.parametrize(
    "words", [".*", "(", "[a-z]", "\\d", "^", "a|b", "$&", "</", "\u202e", "İ"]
)
def test_what_is_looked_for_is_no_pattern(browser: Browser, page: Path, words: str) -> None:
    shown(browser, page)
    told = looked_for(browser, words)
    expected = {"(": r"[1-9]\d* hits", "^": "0 hits"}.get(words, "0 hits")
    assert re.match(expected, told), told


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


@pytest.mark.parametrize(
    "place",
    [
        "#0/0",
        "#999/999",
        "#-1/2",
        "#1",
        "#1/x",
        "#%E2%80%AE",
        f"#1/1?run={'<b>'}&with=x&order=__proto__&in=a",
    ],
)
def test_wrong_links_lead_somewhere(browser: Browser, page: Path, place: str) -> None:
    shown(browser, page, place)
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
        "document.querySelectorAll('.token')[6]?.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    )
    assert "#31" in text(browser, ".call:nth-of-type(5) .tokens")
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


def test_hostile_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    dreamt = Episode(EVIL, evil_of(), evil_of(), EVIL)
    others = [Episode(EVIL + str(i), evil_of(), None, EVIL[::-1]) for i in range(3)]
    told: dict[str, Any] = {"summary": {EVIL: EVIL}, "tables": [], "plots": []}
    write_report(tmp_path / "evil.html", title=EVIL, episodes=[dreamt, *others], **told)
    for place in ("", "#1/1", "#2/1"):
        shown(browser, tmp_path / "evil.html", place)
        browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
        browser.wait(
            "document.querySelectorAll('details').length === document.querySelectorAll('details[open]').length"
        )
        own = browser.run(
            "return [...new Set([...document.body.querySelectorAll('*')].map((one) => one.localName))]"
        )
        assert not {"img", "svg", "b", "a", "iframe", "style", "textarea"} & set(own)
        assert browser.run("return document.scripts.length") == 3
        assert browser.run("return document.body.dataset.pwned") is None
        names = browser.run(
            "return [...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
            ".filter((name) => name.startsWith('on') || name === 'src' || name === 'href')"
        )
        assert names == []
        everything = browser.run(
            "const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);"
            "const found = []; while (walk.nextNode())"
            " if (walk.currentNode.parentElement.localName !== 'script') found.push(walk.currentNode.data);"
            "return JSON.stringify(found.join(''))"
        )
        assert everything.count("<img src=x onerror=") > 8 and "U+202E" in everything
        hidden = set("\x1b\x00\x07\x7f\u202e\u2066\u200b\u2028\u2029\ufffe")
        assert not set(json.loads(everything)) & hidden
        assert "[U+202E]" in browser.run("return document.title")


@pytest.mark.parametrize("words", ["<img src=x", "\u202ecba", "</script><script>", "😀", "[31m"])
def test_hostile_text_is_looked_for(browser: Browser, tmp_path: Path, words: str) -> None:
    told: dict[str, Any] = {"summary": {}, "tables": [], "plots": []}
    write_report(
        tmp_path / "evil.html", title="", episodes=[Episode(EVIL, evil_of(), None)], **told
    )
    shown(browser, tmp_path / "evil.html")
    assert "in 1 episode ·" in looked_for(browser, words)
    browser.press("Enter")
    browser.wait("document.querySelector('#step mark.hit')")
    assert browser.run("return document.body.dataset.pwned") is None


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
    (tmp_path / "broken.html").write_text(re.sub(r'id="data">.{20}', 'id="data">' + "A" * 20, page))
    browser.open(tmp_path / "broken.html")
    browser.wait("document.querySelector('#about .error')")
    assert "Episode 1 cannot be shown" in text(browser, "#about")
    browser.run("document.getElementById('episodes-1').click()")
    browser.wait("document.querySelector('#step .column')")
    told = looked_for(browser, "place 3")
    assert told.startswith("4 hits in 2 episodes (1 episode could not be unpacked)")


CONTRAST = """
const parse = (color) => { const n = color.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const back = (el) => { for (; el; el = el.parentElement) { const c = parse(getComputedStyle(el).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
const low = [];
for (const el of document.body.querySelectorAll("*")) {
  if (!el.checkVisibility() || el.closest(":disabled, .spoken")) continue;
  if (![...el.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
  const style = getComputedStyle(el);
  const [a, b] = [light(parse(style.color)), light(back(el))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) low.push(`${el.localName}.${el.className} ${ratio.toFixed(2)} ${el.textContent.slice(0, 20)}`);
}
return low;
"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_letters_stand_out(browser: Browser, page: Path, colours: str) -> None:
    media = [{"name": "prefers-color-scheme", "value": colours}]
    browser.cdp("Emulation.setEmulatedMedia", features=media)
    shown(browser, page, "#1/1?q=safe")
    browser.wait("document.querySelector('#step mark.hit')")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.run(CONTRAST) == []
    browser.cdp("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("width", [360, 700, 1100, 2200])
def test_every_width_will_do(browser: Browser, page: Path, width: int) -> None:
    browser.resize(width, 800)
    shown(browser, page, "#1/1?q=safe")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), width
    assert browser.run("return document.getElementById('steps').clientHeight") > 90


def test_what_has_no_text_has_a_name(browser: Browser, page: Path) -> None:
    shown(browser, page, "#1/1")
    nodes = browser.cdp("Accessibility.getFullAXTree")["nodes"]
    wanted = {"button", "listbox", "option", "slider", "combobox", "searchbox", "group", "dialog"}
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in wanted - {"group"}
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
