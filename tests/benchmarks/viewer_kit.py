"""Episodes to look at in the viewer, and what tests do with its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from comap.benchmarks.browser import Browser
from comap.facts import State, diff
from comap.trajectory import TOLD, Call, Predicted, Step, Trajectory

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


KIT = sys.modules[__name__]
"""This module, for tests: ``load("viewer_kit.py:KIT")``."""
