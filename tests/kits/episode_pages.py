"""Episodes for pages, hostile ones among them, and what tests do with a page."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from comap.benchmarks.report import Episode
from comap.facts import State, diff
from comap.trajectory import ENV_INFO, Call, Predicted, Step, Trajectory

EVIL = (
    "</script><script>document.body.dataset.pwned=1</script><!--<script>"
    "<img src=x onerror=\"document.body.dataset.pwned=1\"><svg onload='document.body.dataset.pwned=1'>"
    "</textarea></title></style>&lt;b&gt; {{ 7 * 7 }} javascript:alert(1) ${7*7}\x1b[31m"
    "{% raw %} $\\frac{1}{2}$ [bold]"
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
    ENV_INFO: {"backend": "official cache"},
}


def step(
    t: int,
    before: State,
    after: State,
    action: str = "",
    observation: str = "",
    **extra_fields: Any,
) -> Step:
    usual = {"reward": 0.0, "terminated": False, "truncated": False, "imagined": False}
    fields: dict[str, Any] = {**usual, **extra_fields, "facts": after, "delta": diff(before, after)}
    return Step(t, action or f"act {t}", observation or f"seen {t}", **fields)


def trajectory(*steps: Step, text: str = "text", **extra_fields: Any) -> Trajectory:
    fields: dict[str, Any] = {"facts": START} | extra_fields
    return Trajectory(*[text] * 6, steps=steps, **fields)


def compared() -> Episode:
    """An episode beside its imagination."""
    real = trajectory(
        step(1, START, FILLED, observation="You open the safe and see a pen."),
        step(2, FILLED, FILLED, observation="Nothing happens.", invalid_action=True),
        step(3, FILLED, START, terminated=True, success=True, score=1.0),
    )
    imagined = trajectory(
        step(1, START, OPENED, observation="You open the safe and see nothing.", imagined=True),
        step(2, OPENED, OPENED, observation="Nothing happens.", imagined=True),
        world_model="retrieval",
    )
    return Episode("compared", real, imagined)


def predicted(t: int, before: State, after: State, guess: State | None = None) -> Step:
    """Return a step whose outcome was predicted; by default rightly."""
    guess = after if guess is None else guess
    prediction = Predicted("It opens.", guess, diff(before, guess), "a model", 0.75)
    return step(t, before, after, prediction=prediction)


def revision(t: int, before: State, after: State, action: str = "", observation: str = "") -> Step:
    """Return a step at which a reflection took another action than the draft."""
    notes = {**GATES, "predicted_next_state": "Nothing happens."}
    return step(t, before, after, action, observation, notes=notes)


def foreseen() -> Episode:
    """An episode whose first step was predicted."""
    prediction = Predicted("It opens.", OPENED, diff(START, OPENED), "a model", 0.75)
    steps = (step(1, START, FILLED, prediction=prediction), step(2, FILLED, FILLED))
    return Episode("foreseen", trajectory(*steps), None)


def thought_of() -> Trajectory:
    """An episode with all that an agent may leave on record."""
    talk = (("system", "You are a robot."), ("user", "You see a safe."))
    logs, words = (-0.01, -0.9, -5.0), ("open", " safe", " 1")
    draft = ("generate", "draft", "open safe 1", 40, 3, talk, "Action:", (7, 8, 9), logs)
    options = {"logprobs": (-0.1, -2.5), "tokens": (" safe 1", " desk 1")}
    calls = (
        Call(*draft, tokens=words),
        Call("imagine", "world model", "It opens.", 30, 3, talk, finish="length", adapter="wm"),
        Call("score", "which", " safe 1", 60, 2, **options),
        Call("generate", "by number", "go", 5, 2, token_ids=(31, 32), logprobs=(-0.1, -0.2)),
    )
    foretold = "You open the safe 1. It is empty."
    prediction = Predicted(foretold, OPENED, diff(START, OPENED), "a model", 0.75)
    observation = "You open the safe 1. In it, you see a pen 1."
    end: dict[str, Any] = {"success": True, "score": 1.0, "terminated": True}
    steps = (
        step(
            *(1, START, FILLED, "open safe 1", observation),
            prediction=prediction,
            calls=calls,
            notes=GATES,
        ),
        step(2, FILLED, FILLED, "sing", "Nothing happens.", invalid_action=True),
        step(3, FILLED, FILLED, "look", "You see a safe.", calls=calls[2:3] * 150, **end),
    )
    return Trajectory(
        *("comap/ALFWorld-v0", "valid_seen/pick_and_place_simple-Pen-None-Safe-1/trial_1"),
        *("valid_seen", "put a pen in safe.", "comap", "You are in a room.", START, steps),
        settings=SETTINGS,
        seed=3,
        review=calls[:1],
    )


def plain(i: int, agent: str = "react") -> Trajectory:
    outcome: dict[str, Any] = {"success": i % 3 == 0, "score": float(i % 3 == 0)}
    steps = tuple(
        step(t, START, START, f"go to place {t}", f"Episode {i}: you are at place {t}.", **outcome)
        for t in range(1, 6)
    )
    return Trajectory(
        *("comap/ScienceWorld-v0", f"boil/{i}", "dev", f"Boil water number {i}.", agent),
        *("Hello.", START, steps),
        error="EngineError: it broke" if i % 3 == 1 else None,
    )


def evil_of() -> Trajectory:
    after = State(frozenset({(EVIL, EVIL), (EVIL,)}), parsed=False)
    prediction = Predicted(EVIL, after, diff(START, after), EVIL, float("nan"))
    tokens = {"logprobs": (-0.5,), "tokens": (EVIL,)}
    calls = tuple(
        Call(kind, EVIL, EVIL, 3, 2, ((EVIL, EVIL),), EVIL, finish=EVIL, adapter=EVIL, **tokens)
        for kind in ("generate", "score", EVIL)
    )
    notes = {
        EVIL: EVIL,
        "list": [EVIL, {EVIL: None}],
        ENV_INFO: {EVIL: EVIL},
        "gate": True,
        "p": 0.5,
    }
    notes |= {name: EVIL for name in GATES if isinstance(GATES[name], str)}
    fields: dict[str, Any] = {"prediction": prediction, "calls": calls, "notes": notes}
    steps = (step(1, START, after, EVIL, EVIL, reward=float("inf"), **fields),)
    settings = {EVIL: EVIL, "tau_p": EVIL}
    texts: dict[str, Any] = {"error": EVIL, "world_model": EVIL, "settings": settings}
    return Trajectory(*[EVIL] * 6, START, steps, **texts, review=calls, trial=2)


class Page(HTMLParser):
    """The elements of a page, which must be whole, and the text in each of them."""

    def __init__(self, markup: str):
        super().__init__(convert_charrefs=True)
        self.markup = markup
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.open: list[int] = []
        self.comments: list[str] = []
        self.feed(markup)
        self.close()
        assert self.open == []
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img", "input", "link"):
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            self.texts[element] = self.texts.get(element, "") + data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """Return attributes and texts of elements."""
        numbered = enumerate(self.elements)
        return [
            (attributes, self.texts.get(index, ""))
            for index, (name, attributes) in numbered
            if name == tag
        ]

    def said(self, tag: str, name: str = "") -> list[tuple[dict[str, str | None], str]]:
        """Return attributes and texts of elements, of those with a class; spaces do not count."""
        elements = []
        for attributes, text in self.all(tag):
            if not name or name in (attributes.get("class") or "").split():
                elements.append((attributes, " ".join(text.split())))
        return elements

    def rules(self) -> dict[str, str]:
        """Return the page's content security policy."""
        (policy,) = (
            attributes["content"] or ""
            for attributes, _ in self.all("meta")
            if "http-equiv" in attributes
        )
        return dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def check_safe(self) -> None:
        """Check that no element but the page's own runs, styles or fetches anything."""
        assert not self.comments and "link" not in dict(self.elements)
        for _, attributes in self.elements:
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
            source = attributes.get("src") or "data:image/svg+xml;"
            assert source.startswith("data:image/svg+xml;")
            target = (attributes.get("href") or "").lower()
            assert not target.startswith(("javascript", "http", "//"))


def source_of(script: str) -> str:
    """Return how a policy names a script or a style, and check that it makes no markup of a text."""
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "fetch(", "http", "import("):
        assert word not in script
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def open_viewer(browser: Any, page: Path, place: str = "") -> None:
    browser.open(page, place)
    browser.wait("document.querySelector('#step .column')")


def text(browser: Any, selector: str) -> str:
    text = browser.run("return document.querySelector(arguments[0])?.innerText", selector)
    assert text is not None, f"nothing is {selector}"
    return str(text)


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
    return [str(text) for text in browser.run(script, selector)]


def looked_for(browser: Any, words: str) -> str:
    """Type a text into the search, and return what the page says of it when it is done."""
    browser.run("document.getElementById('search').value = ''")
    browser.click("#search")
    browser.type(words)
    looked = "new URLSearchParams(location.hash.split('?')[1]).get('q')"
    browser.wait(f"{looked} === {json.dumps(words)} && !{GOING}")
    return text(browser, "#found")


GOING = "document.getElementById('found').textContent.includes('searching')"
