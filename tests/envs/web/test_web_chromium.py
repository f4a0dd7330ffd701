"""Chromium shows what the twin shows; and whatever a page or the browser does, nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.agents import ExpertAgent, Run, run_to
from comap.benchmarks.report import Episode, episode_record
from comap.envs.panel import evenly
from comap.envs.web import browser as browsers
from comap.envs.web.actions import read_action
from comap.envs.web.browser import find_program, shared
from comap.envs.web.chromium import Chromium
from comap.envs.web.lines import read_page
from comap.envs.web.sites import HOSTS
from comap.envs.web.tasks import load, panel_of
from comap.envs.web.twin import Twin
from comap.errors import EngineError, MissingExtra, OptionError
from comap.trajectory import read_trajectories

WORDS = ("lamp", "red lamp", "é ~*&'\"", "2", "", "<b>x</b>", "日本 😀", "a\\b'c", "2031-05-05")
CONTROLS = ("textbox", "searchbox", "button", "checkbox", "radio", "combobox", "option")


def any_action(observation: str, rng: random.Random) -> str:
    """Return an action on a line of a page, most often on a control; or one on no line."""
    page = read_page(observation)
    assert page is not None
    numbers = [n for n, line in enumerate(page.lines, 1) if line.role in CONTROLS]
    number = rng.choice(numbers) if numbers and rng.random() < 0.75 else 0
    number = number or rng.randint(1, len(page.lines) + 1)
    kind = rng.random()
    if kind < 0.6:
        return f"click [{number}]"
    if kind < 0.85:
        return f"type [{number}] [{rng.choice(WORDS)}] [{rng.randint(0, 1)}]"
    if kind < 0.9:
        return f"select [{number}] [{rng.choice(page.lines).name}]"
    return rng.choice(["goback", "restart", "scroll [down]", "wait", f"goto [{rng.choice(HOSTS)}]"])


def test_actions_side_by_side(browser: str) -> None:
    real, twin, rng, action_count = Chromium(browser), Twin(), random.Random(0), 0
    for number, task_id in enumerate(evenly(panel_of("test").ids, 7)):
        task = load(task_id)
        for engine in (real, twin):
            engine.open(task.world, task.draft.start)
        plan = list(task.plan[:-1]) if number % 2 else [""] * 15
        for action in plan:
            action = action or any_action(twin.text(), rng)
            move = read_action(action)
            assert move is not None
            effects = real.act(move), twin.act(move)
            action_count += 1
            assert real.text() == twin.text(), (task_id, action)
            assert effects[0] == effects[1] and real.save() == twin.save(), (task_id, action)
    real.close()
    assert action_count > 70


def test_moments_come_back_and_fit_both_engines(browser: str, world: Any) -> None:
    real, twin, second_browser = Chromium(browser), Twin(), Chromium(browser)
    actions = (
        "goto [shop.test/item?id=5]",
        "select [combobox 'Size'] [large]",
        "click [button 'Add to cart']",
        "click Checkout",
        "type [textbox 'Street'] [1 Baker Street] [0]",
        "click [checkbox 'Gift wrap']",
        "click [radio 'express']",
    )
    for engine in (real, twin, second_browser):
        engine.open(world, "shop.test/")
    for action in actions:
        for engine in (real, twin):
            engine.act(read_action(action))
    moment, page_text = pickle.loads(pickle.dumps(real.save())), real.text()
    real.act(read_action("goback"))
    for engine in (real, twin, second_browser):
        engine.load(moment)
        assert engine.text() == page_text and engine.save() == moment
        engine.act(read_action("type Town [Elmford] [1]"))
    assert "StaticText 'Gift wrap: yes'" in real.text()
    assert real.text() == twin.text() == second_browser.text()


def make(**options: Any) -> Any:
    return gymnasium.make("comap/Web-v0", engine="chromium", **options).unwrapped


@pytest.fixture
def hurried(pages: Any, browser: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """An environment that shows any page and waits a second for it, and what starts its episode."""
    monkeypatch.setattr(browsers, "CALL_SECONDS", 1.0)
    env = make(split="test", browser=browser)
    env._engine = pages
    return env, {"task": next(task for task in env.tasks if "/shop-detail/" in task)}


def test_a_page_that_hangs_costs_one_step(pages: Any, hurried: Any) -> None:
    env, start = hurried
    for loop in ("for (;;);", "for (;;) alert(1)"):
        pages.html = f"<button onclick='{loop}'>Go</button>"
        before, _ = env.reset(options=start)
        began = time.monotonic()
        observation, _, terminated, truncated, info = env.step("click Go")
        assert time.monotonic() - began < 10
        assert (observation, terminated, truncated) == (before, False, False)
        assert "error" not in info
        assert info["invalid_action"] and "within 1 s" in info["refused"]
        observation, *_, info = env.step("wait")
        assert observation == before and not info["refused"]
    assert pages.browser.usable


def test_an_episode_ends_by_a_fault_and_the_next_one_starts(pages: Any, hurried: Any) -> None:
    """A page that hangs at its start cannot be shown again."""
    env, start = hurried
    pages.html = "<a href='/x'>Go</a>"
    env.reset(options=start)
    pages.html = "<script>for (;;);</script>"
    observation, reward, terminated, truncated, info = env.step("click Go")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["error"].startswith("PageLost: the page did not")
    pages.html = "<p>Well</p>"
    assert "StaticText 'Well'" in env.reset(options=start)[0]


def test_a_crash_of_a_page_or_of_the_browser(pages: Any) -> None:
    pages.show("<p>Well</p>")
    with pytest.raises(EngineError, match="the page crashed"):
        pages._do(lambda: pages.tab.goto("chrome://crash"))
    with pytest.raises(EngineError, match=r"call env.reset\(\)"):
        pages.do("wait")
    assert "Well" in pages.show("<p>Well</p>")

    async def crash(move: Any) -> Any:
        await pages.tab.goto("chrome://crash")

    pages._wait = crash
    effect = pages.act(read_action("wait"))
    del pages._wait
    assert effect.refused.startswith("the page crashed; ") and "Well" in pages.text()
    first = pages.browser
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="the browser failed"):
        pages.do("wait")
    assert "Well" in pages.show("<p>Well</p>") and pages.browser is not first


def test_a_browser_that_was_just_killed_is_replaced_by_a_reset(browser: str) -> None:
    """It seems to run until somebody asks it."""
    env = make(split="test")
    first_page, _ = env.reset(seed=3)
    os.kill(env.engine.browser.pid, signal.SIGKILL)
    assert env.reset(seed=3)[0] == first_page
    env.close()


def test_an_element_that_is_gone_or_covered_is_refused(pages: Any) -> None:
    pages.show(
        "<button onclick='this.nextSibling.remove()'>Go</button><button>Gone</button>"
        "<button id=low>Low</button><div style='position: fixed; inset: 50px 0 0 0'></div>"
        "<style>#low { position: fixed; top: 99px }</style>"
    )
    assert "is covered" in pages.do("click Low").refused
    pages.tab.browser.run(pages.tab.evaluate("document.querySelectorAll('button')[1].remove()"), 5)
    assert "is no longer on the page" in pages.do("click Gone").refused


@pytest.mark.parametrize(
    "boxes",
    [
        "[{left: 'a', top: 'b', width: 'c', height: 'd'}]",
        "[{left: NaN, top: 1, width: 1, height: 1}]",
        "[{left: 1e9, top: 1e9, width: 1, height: 1}]",
        "{[Symbol.iterator]: () => ({next: () => ({done: true})})}",
        "{get length() { throw 1 }}",
        "Object.assign([], {map: () => 'text'})",
    ],
)
def test_scripts_that_lie_about_points_are_refused(pages: Any, boxes: str) -> None:
    pages.show(
        f"<button>Go</button><script>Element.prototype.getClientRects = () => ({boxes});"
        "document.elementFromPoint = () => document.querySelector('button');"
        "Array.prototype.toJSON = () => 'text'; window.scrollBy = () => { throw 1 }</script>"
    )
    refused = pages.do("click Go").refused
    assert "button 'Go'" in refused, "and no fault"
    pages.viewport = True  # which scrolls
    assert "does not scroll" in pages.do("scroll [down]").refused


def test_a_page_that_takes_too_much_memory_is_given_up(
    pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V8 bounds its own heap; what arrays, pictures and frames take is outside of it."""
    monkeypatch.setattr(browsers, "MOST_MEMORY", 250 * 2**20)
    pages.show(
        "<button>Go</button><script>const all = [];"
        "onclick = () => setInterval(() => all.push(new Float64Array(1e6).fill(1)), 10)</script>"
    )
    deadline = time.monotonic() + 60
    effect = pages.do("click Go")
    while not effect.refused and time.monotonic() < deadline:
        time.sleep(0.1)
        effect = pages.do("wait")
    assert effect.refused.startswith("the page took more than 250 MiB of memory; ")
    assert "button 'Go'" in pages.text() and pages.browser.usable


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.filterwarnings("error")
def test_a_browser_that_does_not_stop_leaves_no_driver(
    browser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsers, "_CLOSE_SECONDS", 0.2)
    new_browser = browsers.Browser(find_program(None), sandbox=not browsers.is_root())
    loop = new_browser._loop
    pids = (new_browser.pid, new_browser._driver_pid)
    assert all(map(alive, pids))

    loop.call_soon_threadsafe(time.sleep, 2.0)  # as with gigabytes of answers on their way
    new_browser.close()
    new_browser.close()
    deadline = time.monotonic() + 20
    while (any(map(alive, pids)) or not loop.is_closed()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids)) and loop.is_closed()
    gc.collect()  # "coroutine 'Browser._stop' was never awaited"


def _in_child(pages: Any, queue: Any) -> None:
    try:
        pages.do("wait")
    except EngineError as error:
        queue.put(str(error))
    queue.put("Child" in pages.show("<p>Child</p>"))
    browsers.close_all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork_each_process_has_a_browser(pages: Any) -> None:
    pages.show("<p>Parent</p>")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(pages, queue))
    child.start()
    assert "before a fork" in queue.get() and queue.get() is True
    child.join(20)
    assert child.exitcode == 0
    pages.do("wait")
    assert "Parent" in pages.text()


PLAYS = """
import gymnasium, comap, sys, time
env = gymnasium.make("comap/Web-v0", engine="chromium", split="test")
env.reset(seed=0)
print(env.unwrapped.engine.browser.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("kill", [False, True])
def test_the_browser_ends_with_its_process(browser: str, kill: bool) -> None:
    command = [sys.executable, "-c", PLAYS, "60" if kill else "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        if kill:
            child.kill()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def test_it_works_inside_an_event_loop_and_in_threads(browser: str) -> None:
    page_texts = list[str]()

    def play() -> None:
        env = make(split="test")
        page_texts.append(env.reset(seed=3)[0] + env.step(env.expert_action())[0])
        env.close()

    async def main() -> None:
        play()

    asyncio.run(main())
    threads = [threading.Thread(target=play) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(page_texts) == 3 and len(set(page_texts)) == 1


def test_environments_share_a_browser_and_give_their_pages_back(browser: str) -> None:
    envs = [make(split="test") for _ in range(3)]
    for env in envs:
        env.reset(seed=1)
    running = shared(browser)
    assert {env.engine.browser for env in envs} == {running}
    before = len(running._browser.contexts)
    envs.pop().close()
    del env
    envs.clear()
    gc.collect()
    deadline = time.monotonic() + 10
    while len(running._browser.contexts) > before - 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(running._browser.contexts) == before - 3


def test_snapshots_of_an_environment_and_its_fingerprint(browser: str) -> None:
    env, fresh = make(split="test"), make(split="test")
    env.reset(options={"task": next(task for task in env.tasks if "/shop-cart/" in task)})
    for _ in range(3):
        env.step(env.expert_action())
    moment = pickle.loads(pickle.dumps(env.snapshot()))
    observation, _ = fresh.restore(moment)
    terminated = False
    while not terminated:
        *_, terminated, _, info = fresh.step(fresh.expert_action())
    assert info["success"] and env.restore(moment)[0] == observation
    assert env.fingerprint()["browser"].isdecimal()


def test_pictures_and_their_page(browser: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="needs the extra 'web'")

    def make_env() -> Any:
        return gymnasium.make(
            "comap/Web-v0", engine="chromium", split="test", render_mode="rgb_array"
        )

    env = make_env()
    task = env.unwrapped.tasks.ids[0]
    env.reset(options={"task": task})
    picture = env.render()
    assert picture.shape == (768, 1024, 3) and 200 < picture.mean() < 255
    run = Run(make_env=make_env, agent=ExpertAgent(), tasks=[task])
    assert "told" not in run_to(tmp_path / "run", run)
    (played,) = read_trajectories(tmp_path / "run" / "trajectories.jsonl")
    record = episode_record(Episode("", played, None))["real"]["steps"]
    assert record[0]["screenshot"].startswith("/9j/") and "told" not in record[0]
    step = replace(played.steps[0], notes={"env_info": {"screenshot": {"jpeg": "x'><script>"}}})
    record = episode_record(Episode("", replace(played, steps=(step,)), None))["real"]["steps"]
    assert "screenshot" not in record[0]


def test_a_missing_browser_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="found no program at '/no/such'"):
        find_program("/no/such")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", "/no/such")
    with pytest.raises(
        MissingExtra, match=r"playwright install chromium.*apt-get install chromium-headless-shell"
    ):
        find_program(None)


def test_a_browser_that_does_not_start_is_told(browser: str) -> None:
    with pytest.raises(EngineError, match=r"expected /.*false to start"):
        make(split="test", browser="false").reset(seed=0)


@pytest.fixture(autouse=True, scope="module")
def _no_browser_stays() -> Iterator[None]:
    yield
    browsers.close_all()


def test_a_request_that_cannot_be_answered_ends_the_episode_at_once(
    pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.show("<a href='/item?id=1'>Next</a>")

    def broken(request: Any) -> None:
        raise ZeroDivisionError("a fault of the site")

    monkeypatch.setattr(pages, "_serve", broken)
    with pytest.raises(EngineError, match="not answered: ZeroDivisionError: a fault of the site"):
        pages.do("click [link 'Next']")
    monkeypatch.undo()
    assert "Next" in pages.show("<a href='/'>Next</a>")
