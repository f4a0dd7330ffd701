"""Episodes for reports: one imagined beside what happened, one foreseen, one full of hostile text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from comap.benchmarks.episodes import Episode
from comap.envs.conformance.transcripts import load
from comap.facts import State, diff
from comap.trajectory import Call, Predicted, Step, Trajectory

VIEWER = load(f"{Path(__file__).with_name('viewer_kit.py')}:KIT")
START, OPENED, FILLED = VIEWER.START, VIEWER.OPENED, VIEWER.FILLED
EVIL = (
    "</script><script>document.body.dataset.pwned=1</script>"
    "<img src=x onerror=\"document.body.dataset.pwned=1\"><!--</style></title><svg onload='x'>"
    "&lt;b&gt; {{ 7 * 7 }} {% raw %} $\\frac{1}{2}$ [bold]\x1b[31m"
    "\x00\x7f\u202eabc\u2028\u2029\ud800\ufffe 😀"
)


def step(t: int, before: State, after: State, **more: Any) -> Step:
    told = {"action": f"act {t}", "seen": f"seen {t}"} | more
    if "observation" in told:
        told["seen"] = told.pop("observation")
    made: Step = VIEWER.step(t, before, after, **told)
    return made


def state(*facts: tuple[str, ...], parsed: bool = True) -> State:
    return State(frozenset(facts), parsed)


def trajectory(*steps: Step, text: str = "text", **more: Any) -> Trajectory:
    given: dict[str, Any] = {"facts": START} | more
    return Trajectory(text, text, text, text, text, text, steps=steps, **given)


def compared() -> Episode:
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


def foreseen() -> Episode:
    said = Predicted("It opens.", OPENED, diff(START, OPENED), "a model", 0.75)
    return Episode(
        "foreseen",
        trajectory(step(1, START, FILLED, prediction=said), step(2, FILLED, FILLED)),
        None,
    )


def evil() -> Episode:
    after = state((EVIL, EVIL), (EVIL,), parsed=False)
    said = Predicted(EVIL, after, diff(START, after), EVIL, float("nan"))
    call = Call(EVIL, EVIL, EVIL, 3, 2, ((EVIL, EVIL),), EVIL, finish=EVIL, adapter=EVIL)
    told: dict[str, Any] = {"calls": (call,), "notes": {EVIL: EVIL, "list": [EVIL, {EVIL: None}]}}
    told |= {"reward": float("inf"), "prediction": said}
    steps = (step(1, START, after, action=EVIL, observation=EVIL, **told),)
    more: dict[str, Any] = {"settings": {EVIL: EVIL}, "review": (call,), "trial": 2}
    real = trajectory(*steps, text=EVIL, error=EVIL, world_model=EVIL, seed=3, **more)
    return Episode(EVIL, real, trajectory(*steps, text=EVIL, error=EVIL, world_model=EVIL))


KIT = sys.modules[__name__]
"""This module, for tests: ``load("report_kit.py:KIT")``."""
