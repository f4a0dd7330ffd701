"""MiniWoB++ in Chromium: the real pages of the package ``miniwob``, without a network.

A task is ``<page>/<seed>``. Time in a page is virtual: after each action, ``wait`` as well, a second of
timers and animations passes at once, so that a text depends on nothing but the actions. The verdict is
the page's own raw reward, above 0 for success (Liu et al., 2018).
"""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import EngineError, MissingExtra, SnapshotError, TaskNotFound, check_choice
from ..panel import Panel
from ..storage import packaged
from .actions import Move
from .browser import PageRequest, Served
from .chromium import Chromium
from .engine import Effect, Refused
from .tasks import Task
from .templates import Draft

SEEDS: Mapping[str, range] = {
    "train": range(0, 8),
    "valid": range(8, 10),
    "test": range(10, 14),
    "sight": range(0, 4),
}
SPLITS = tuple(SEEDS)
HOST = "miniwob.test"
_SECOND = 1_000  # milliseconds
# The page's own score, and the cover under which it waits for a click, are no part of a task.
_SETUP = """
addEventListener('DOMContentLoaded', () => {
  const style = document.createElement('style');
  style.textContent =
    '#reward-display, #click-canvas, #sync-task-cover { display: none !important; }';
  document.head.append(style);
});
"""
# Every episode has the same date, and no limit of time; the page's own generator gets the seed.
_BEGIN = """(() => {
  const Real = Date, before = Real.now(), start = Real.UTC(2025, 0, 1);
  Date = class extends Real {
    constructor(...given) {
      given.length ? super(...given) : super(Date.now());
    }
    static now() {
      return start + Real.now() - before;
    }
  };
  core.EPISODE_MAX_TIME = 1e9;
  Math.seedrandom(%s);
  core.startEpisodeReal();
})()"""
_VERDICT = """(() => {
  const said = core.getUtterance();
  return [WOB_TASK_READY, WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, said.utterance || said];
})()"""


class Episode(NamedTuple):
    """A page, and the seed of its task."""

    page: str
    seed: int


def task_of(task_id: str) -> Task:
    """Return a task, which nobody knows a plan of.

    Raises:
        TaskNotFound: There is no such page, or the seed is in no split.
    """
    page, _, number = task_id.partition("/")
    for split, seeds in SEEDS.items():
        if page in pages_of(split) and number in map(str, seeds):
            # The engine gets an `Episode` where the other engines get an instance of the sites.
            start = f"{HOST}/miniwob/{page}.html"
            draft = Draft(1, "", start, (), "", (), ())
            world: Any = Episode(page, int(number))
            return Task(task_id, split, world, draft, (), (), (), (), frozenset(), frozenset())
    raise TaskNotFound(
        f"expected a task such as 'click-button/10', found {task_id!r:.80}; env.unwrapped.tasks.ids "
        "lists those of the split"
    )


def pages_of(split: str) -> Sequence[str]:
    """Return the pages of a split: those that can be played by text, or those that need sight."""
    pages: Sequence[str] = packaged(__package__, "miniwob")["sight" if split == "sight" else "text"]
    return pages


@lru_cache(maxsize=8)
def panel_of(split: str) -> Panel:
    """Return the tasks of a split.

    Raises:
        OptionError: There is no such split.
    """
    check_choice("MiniWoB's split", split, SPLITS)
    ids = (f"{page}/{seed}" for page in pages_of(split) for seed in SEEDS[split])
    return Panel.of(ids, split, SPLITS)


@lru_cache(maxsize=1)
def _root() -> Path:
    if find_spec("miniwob") is None:
        raise MissingExtra.of("web", "benchmark='miniwob'")
    return Path(str(files("miniwob"))) / "html"


class MiniWob(Chromium):
    """The engine of one MiniWoB++ episode after another."""

    scripted = listens = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._root = _root()
        self.goal = ""
        self.verdict: float | None = None
        self._episode = Episode("", 0)
        self._moves: tuple[Move, ...] = ()

    def open(self, world: Any, url: str) -> None:
        """Start an `Episode`, whose page is at the address."""
        self._episode = world
        self._moves = ()
        self._do(lambda: self._opened(url), fresh=True)

    def save(self) -> Any:
        """Return the actions since the start: scripts cannot be saved, only played again."""
        return self._moves, self._text

    def load(self, saved: Any) -> None:
        """Start the episode anew, and take its actions again."""
        moves, text = saved
        self.open(self._episode, self.url)
        for move in moves:
            self.act(Move(*move))
        if self._text != text:
            raise SnapshotError(
                f"expected the page of the snapshot when its {len(moves)} actions are played again, "
                "found another; use the versions of Chromium and miniwob that it was taken with"
            )

    def act(self, move: Move) -> Effect:
        """Take an action other than ``stop``."""
        effect = super().act(move)
        if not self.lost:  # else the page is the one before the action, loaded again
            self._moves = (*self._moves, move)
        return effect

    async def _opened(self, url: str) -> None:
        self.url = url
        self.verdict = None
        self.goal = ""
        tab = self.tab
        if not tab.prepared:
            await tab.prepare(_SETUP)
        tab.dialogs.clear()

        # What an earlier episode stored must not be seen; time runs until the page is there.
        await tab.send("Storage.clearDataForOrigin", origin=f"http://{HOST}", storageTypes="all")
        await tab.run_time()
        await self._go(url)
        await tab.virtual_time(_SECOND)

        # The seed is set just before the task is drawn. Some pages need seconds to draw it.
        await tab.evaluate(_BEGIN % self._episode.seed)
        for _ in range(10):
            await tab.virtual_time(_SECOND)
            ready, _, _, self.goal = await tab.evaluate(_VERDICT)
            if ready:
                break
        else:
            raise EngineError(f"expected the page {self._episode.page} to start, found it waiting")
        await self._look()

    async def _settle(self) -> None:
        await super()._settle()
        await self.tab.virtual_time(_SECOND)

    async def _look(self) -> None:
        _, is_done, reward, _ = await self.tab.evaluate(_VERDICT)
        self.verdict = float(reward) if is_done else None
        await super()._look()

    def _serve(self, request: PageRequest) -> Served | None:
        """Answer with a file of the package."""
        start = f"http://{HOST}/"
        file_name = request.url.removeprefix(start).partition("?")[0]
        path = (self._root / file_name).resolve()

        # Resolved first: neither "../" nor a link leads out of the package's folder.
        is_inside = request.url.startswith(start) and path.is_relative_to(self._root.resolve())
        if request.method != "GET" or not is_inside or not path.is_file():
            if request.document:
                self._refusal = "only the task's own page may be opened"
            return None

        media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return Served(200, {"Content-Type": f"{media_type}; charset=utf-8"}, path.read_bytes())

    async def _goback(self, move: Move) -> Effect:
        return Effect()  # there is no page before the task's

    async def _restart(self, move: Move) -> Effect:
        await self._opened(self.url)
        return Effect()

    async def _goto(self, move: Move) -> Effect:
        raise Refused("only the task's own page may be opened")
