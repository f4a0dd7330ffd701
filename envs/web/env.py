"""`WebEnv`: web pages as text. What its kinds share, and the choice between them.

The kinds are in `comap.envs.web.kinds`: generated sites, MiniWoB++, and the tasks of a file.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from ...errors import OptionError, check_choice, needs_extra
from ...facts import State
from ..base import Outcome, TextEnv
from ..briefing import Briefing
from ..panel import Panel
from .actions import Move, Target, canonical, line_of, read_action
from .browser import HEIGHT, WIDTH
from .canonicalizer import WebCanonicalizer, admissible_of, narrate
from .chromium import Chromium
from .engine import Effect, Engine
from .lines import REFUSED, ROOT, Tree, read_page, write_answer, write_tree
from .live import FILES, LiveTask
from .tasks import Task
from .twin import Twin

BENCHMARKS = ("embedded", "miniwob", *FILES)
ENGINES = ("auto", "twin", "chromium")
OBSERVATIONS = ("page", "viewport")
DIALECTS = ("comap", "webevolver")
_FOCUSED = ("checkbox", "radio", "combobox", "textbox", "searchbox")

AnyTask = TypeVar("AnyTask", Task, LiveTask)


class Progress(NamedTuple):
    """What an episode has done beside the engine's state; part of snapshots."""

    nodes_met: frozenset[int] = frozenset()  # the indices of key nodes
    plan_index: int = 0  # of the expert's next action
    astray: bool = False  # other actions than the expert's changed something since
    answer: str | None = None  # after ``stop``
    refused: str = ""  # why the last action was
    scores: tuple[float, ...] = ()  # of the nodes of a task of Mind2Web-Live
    verdict: str = ""  # what a judge said, or why there is none
    focus: int = 0  # the number of the line that has it; 0 for none


def _briefing_of(benchmark: str, dialect: str) -> Briefing:
    """Return what a language model is told, with the changes that options make in it."""
    changes = [option for option in (benchmark, dialect) if option in ("miniwob", "webevolver")]
    return Briefing.of_package(__package__ or "", *changes)


class _MadeByBenchmark:
    """Makes of ``WebEnv(benchmark=...)`` an environment of the kind that plays the benchmark.

    It is a class of its own, behind `WebEnv`, since `inspect.signature` of a class that defines
    ``__new__`` itself is that of ``__new__``; that of `WebEnv` says which options there are.
    """

    benchmarks: ClassVar[tuple[str, ...]] = BENCHMARKS
    _kinds: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls, *, benchmarks: tuple[str, ...] = (), **others: Any) -> None:
        super().__init_subclass__(**others)
        if benchmarks:
            cls.benchmarks = benchmarks
            cls._kinds.update(dict.fromkeys(benchmarks, cls))

    def __new__(cls, *, benchmark: str = "embedded", **options: Any) -> Self:
        if cls is not WebEnv:  # a kind itself was asked for, or is unpickled
            return super().__new__(cls)
        check_choice("benchmark", benchmark, BENCHMARKS)
        kind: type[Self] = cls._kinds[benchmark]
        return super().__new__(kind)


class WebEnv(_MadeByBenchmark, TextEnv, Generic[AnyTask]):
    """Web pages as their accessibility trees, and actions on their lines, as in WebEvolver.

    ## Description
    A task is done on web pages: something is looked up and answered, or something is changed. With
    ``benchmark="embedded"`` the pages are those of generated sites: a shop, an encyclopedia, a forum,
    a booking site, a map, a mailbox, and a page that links them. They need no network, no server and
    no browser: the engine ``twin`` does what Chromium does with their forms and links. The engine
    ``chromium`` is the real browser, with the same texts to the byte; it is driven by Playwright, and
    shared by all environments of a process. Requests are answered by interception: no port is opened,
    and pages reach no other host, port or file. ``pip install "comap-agents[web]"``, and ``apt-get install
    chromium`` or ``playwright install chromium``, bring it.

    ``benchmark="miniwob"`` has the 130 pages of MiniWoB++, with their own scripts, in Chromium. Time is
    virtual: each action takes a second. What only scripts listen at has a line with the role ``clickable``.

    Generated sites, MiniWoB++ and tasks of files have a subclass each; ``WebEnv(benchmark=...)`` makes an
    environment of the right one.

    ## Action Space
    ``Unicode``: any text. ``click [7]``, ``type [7] [words] [1]`` (1 presses Enter), ``select [7]
    [option]``, ``scroll [down]``, ``wait``, ``goback``, ``restart``, ``goto [url]`` (of the sites) and
    ``stop [answer]`` (``N/A`` where it cannot be done). What a line says may stand for its number:
    ``click [link 'Cart']``. Brackets may be left out where they are not needed; any other text, or an
    action that cannot be done, shows the same page and sets ``info["invalid_action"]``, with the
    reason in ``info["refused"]``.

    ## Observation Space
    ``Unicode``: the line ``URL host/path?query``, then a line for each node of the page's accessibility
    tree, indented by depth: ``[7] textbox 'City' value: 'Millford'``. After ``stop`` the answer.

    With ``observation="viewport"`` only nodes with half of their area or more in Chromium's window of
    1024 x 768 have lines, as in WebEvolver; options of a closed list are where it is. ``scroll`` moves the
    window (not a box in the page) by its height; a loaded page begins at its top. Only what is shown can be
    acted on, by number or by name. What fits into the window depends on the machine's fonts.

    ## Starting State
    The first page of a task's site, everything on the sites as it was generated. ``reset(options=
    {"task": id})`` picks the task; otherwise the environment's generator does, uniformly from the
    split's panel.

    ## Rewards
    0 until ``stop``, then 1 if the task is solved. An answer has to be right, and the page that it
    stands on to be opened; what was changed on the sites has to be what the task asked for, and
    nothing else. In MiniWoB++ the reward is the page's own, 0 where that is negative.

    ## Episode End
    *Terminated* by ``stop``, or by a page of MiniWoB++; *truncated* after 15 steps
    (``max_episode_steps`` of ``gym.make``) or a fault: an action that takes 30 s, a browser that ends (the
    next `reset` starts another). A page that crashes or does not answer within 10 s costs a step.

    ## Information
    See `comap.envs.Info`. ``score`` is 1 if the task is solved, else the share of its key nodes that
    were met (addresses with words of the goal, texts typed), with the end as one more.
    ``admissible_actions`` are the clicks, choices and words that the belief suggests, by names: any
    other text may be typed. ``url``, ``title`` and ``answer`` are of the observation; ``key_nodes`` says
    which key nodes were met; ``refused`` why the last action was. Dialogs are answered at once (alerts
    are accepted, questions are dismissed); ``dialogs`` is what they said. ``screenshot`` is a picture
    (``{"jpeg": base64}``) with ``render_mode="rgb_array"``; records keep it for `comap view`.

    ## Arguments
    The constructor's, below.

    ## References
    Fang et al., WebEvolver: Enhancing Web Agent Self-Improvement with Coevolving World Model (EMNLP
    2025). Pan et al., WebCanvas: Benchmarking Web Agents in Online Environments (2024). He et al.,
    WebVoyager: Building an End-to-End Web Agent with Large Multimodal Models (ACL 2024). Liu et al.,
    Reinforcement Learning on Web Interfaces using Workflow-Guided Exploration (ICLR 2018): MiniWoB++.

    ## Version History
    v0: first release.

    ## Task panel
    Ids are ``generated/<split>/<instance>/<template>/<draw>``: 31 templates of three levels (look up;
    filter, compare, fill in; several sites) on 24 instances of all sites, of which ``train`` has 16,
    ``valid`` and ``test`` 4 each, so that the sites of a test were never seen. Some cannot be done, and
    want the answer ``N/A``. MiniWoB++'s are ``<page>/<seed>``: 87 pages that can be played by text, in
    ``train``, ``valid`` and ``test`` by different seeds, and 43 that need drag, drawing or sight, in
    ``sight``. Nobody plays them as an expert; their snapshots are played again from the start. Of a
    file the ids are ``<benchmark>/<the file's id>``; `split` is its label.

    ``webvoyager``, ``mind2web-live`` and ``gaia-web`` play a user's file (`read_tasks`). WebVoyager
    needs a `judge`; GAIA has its official rules (`gaia_correct`), and a judge by choice; Mind2Web-Live
    has key nodes, scored on the page before an action, and ends when all are met (`key_node_report`).
    ``info["verdict"]`` is the judge's, or says why there is none and which nodes cannot be scored: those
    of meaning without a judge, those with a CSS selector in the twin; they count as 0. Steps are
    Mind2Web-Live's 1.5 times the annotator's, 10 to 25: pass ``max_episode_steps=25`` to ``gym.make``.

    Tasks that start at other hosts than the generated sites' are live: they are played in Chromium
    and need `allowed_hosts`. The browser has no network there either: Python makes its requests, only to
    those hosts, at standard ports and public addresses, with 8 s and 10 MB for an answer. An episode starts
    without cookies and has no snapshots. A page that asks whether its visitor is human ("verify you are
    human") ends it as a fault. Live mode is tested with local servers that stand in for hosts; it is
    untested on the live web.

    ## State facts
    See `comap.envs.web.canonicalizer`, by `WebCanonicalizer`: where one is and what pages are there
    (structural); what pages show, and what is typed and chosen on them (content). To measure world models
    by facts use ``observation="page"``: a viewport's facts of a page are of what is in the window alone.

    ## Known deviations from upstream
    Values of controls and options of lists have lines; controls without a name keep theirs; focus has
    none. Enter is pressed only where an action says so. ``select`` and ``goto`` are new. By default the
    whole page is shown, and scrolling changes nothing. Key nodes of generated tasks are scored on the page
    after an action. Sites are generated, not live. Links to new tabs open in the same. MiniWoB++ has no
    time limit, and its raw reward counts, whatever the time.

    Live pages have no WebSockets, service workers, streamed answers, HTTP/2 or proxies, and no lines for
    what is in frames. Their texts end at 30,000 characters; a page that loads for 10 s is stopped and
    shown. There ``scroll`` moves the window, ``wait`` takes 2 s, and no actions are suggested.

    With ``dialect="webevolver"`` pages are upstream's text (`comap.envs.web.lines.write_tree`), ``type``
    always presses Enter, and a refusal takes the page's place, in its first sentence only. Values and
    options cannot be seen then, facts are of the present page alone, and forms of several fields can
    hardly be filled in: it is for parity, with ``max_episode_steps=17`` and ``observation="viewport"``.
    Lists never open, and what has no area (a control that a page draws itself) keeps its line.

    Args:
        benchmark: ``"embedded"`` (generated sites), ``"miniwob"`` (the pages of MiniWoB++), or whose
            tasks a file has: ``"webvoyager"``, ``"mind2web-live"`` or ``"gaia-web"``.
        engine: ``"twin"`` (pure Python), ``"chromium"`` (through Playwright), or ``"auto"``: the twin for
            generated sites, whose text is the same in both, and Chromium for what only it can show.
        split: ``"train"``, ``"valid"`` or ``"test"``; of ``miniwob`` also ``"sight"``.
        level: Only generated tasks of at most this level, 1 to 3; None for all.
        sites: Only generated tasks that begin at these sites: shop, wiki, forum, stay, map, mail, or home,
            whose tasks need several; none for all.
        observation: ``"page"``, the whole page, or ``"viewport"``, what is in the window.
        dialect: ``"comap"``, or ``"webevolver"`` for its text and its actions to the byte.
        browser: The path of Chromium; None takes Debian's, or else Playwright's own.
        data_dir: Folder with the official task files; None looks in ``COMAP_HOME/web``.
        tasks: A task file instead.
        judge: A language model that judges, or its name as for ``comap run --model``; None for none.
        allowed_hosts: The hosts of live sites that may be asked, by exact name: those that tasks start
            at, and those that their pages load from. Never taken from a record.
        sandbox: Whether Chromium has its sandbox; None for one, except as root, who must say False for
            live sites.
        **common: See `TextEnv`.

    Raises:
        OptionError: An option is unknown or has a value that it cannot have.
        DataNotFound, DataCorrupt: A task file is missing or broken.
        MissingExtra: Playwright, a browser or the package ``miniwob`` is missing.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/Web-v0", split="test")
        >>> observation, info = env.reset(seed=0)
        >>> terminated = False
        >>> while not terminated:
        ...     action = env.unwrapped.expert_action()
        ...     observation, reward, terminated, truncated, info = env.step(action)
        >>> reward, info["success"], info["score"]
        (1.0, True, 1.0)
    """

    test_splits: ClassVar[tuple[str, ...]] = ("test",)
    quotes_names: ClassVar[bool] = True
    idle_answer: ClassVar[str | None] = None
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"benchmark": "embedded"})
    env_id = "comap/Web-v0"
    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "url": "",
            "title": "",
            "answer": None,
            "key_nodes": (),
            "refused": "",
            "verdict": "",
            "dialogs": (),
            "screenshot": None,
        }
    )
    info_kept: ClassVar[tuple[str, ...]] = ("verdict", "screenshot")
    local_options: ClassVar[frozenset[str]] = frozenset(
        ("browser", "data_dir", "tasks", "judge", "allowed_hosts", "sandbox")
    )
    canonicalizer: WebCanonicalizer = WebCanonicalizer()
    state_text = staticmethod(narrate)
    briefing = Briefing.of_package(__package__ or "")

    _engine: Engine
    _panel: Panel

    # A kind takes the options that are its own, chooses an engine, and passes the others on. So the
    # options of one kind alone arrive here only where another kind was given them.
    def __init__(  # noqa: PLR0913 options of the environment, as gymnasium.make passes them
        self,
        *,
        benchmark: str = "embedded",
        engine: str = "auto",
        split: str = "train",
        level: int | None = None,
        sites: Sequence[str] = (),
        observation: str = "page",
        dialect: str = "comap",
        browser: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        tasks: str | os.PathLike[str] | None = None,
        judge: Any = None,
        allowed_hosts: Sequence[str] = (),
        sandbox: bool | None = None,
        **common: Any,
    ):
        super().__init__(**common)
        self._settings = self._checked_settings(benchmark, engine, observation, dialect)
        self._refuse_others_options(level, sites, tasks, judge, allowed_hosts)
        self.briefing = _briefing_of(benchmark, dialect)
        self.canonicalizer = WebCanonicalizer()
        self._suggests = True
        self._viewport = observation == "viewport"
        self._browser_options: dict[str, Any] = {
            "browser": browser,
            "pictures": self.render_mode == "rgb_array",
            "sandbox": sandbox,
            "viewport": self._viewport,
        }
        self._wanted: AnyTask | None = None
        self._progress = Progress()
        self._page = ""
        self._tab = ""

    def _checked_settings(
        self, benchmark: str, engine: str, observation: str, dialect: str
    ) -> dict[str, str]:
        """Return the settings of all kinds, in the order that records have them in."""
        check_choice("benchmark", benchmark, self.benchmarks)
        check_choice("engine", engine, ENGINES)
        check_choice("observation", observation, OBSERVATIONS)
        check_choice("dialect", dialect, DIALECTS)
        return {
            "benchmark": benchmark,
            "engine": engine,
            "observation": observation,
            "dialect": dialect,
        }

    def _refuse_others_options(
        self,
        level: int | None,
        sites: Sequence[str],
        tasks: str | os.PathLike[str] | None,
        judge: Any,
        allowed_hosts: Sequence[str],
    ) -> None:
        """Raise `OptionError` where an option was given that only another kind has."""
        benchmark = self._settings["benchmark"]
        if level is not None or sites:
            raise OptionError(
                f"level and sites are for benchmark='embedded', found benchmark={benchmark!r}; leave "
                "them out"
            )
        if tasks is not None or judge is not None or allowed_hosts:
            files = ", ".join(map(repr, FILES))
            raise OptionError(
                f"tasks, judge and allowed_hosts are for benchmark={files}, found "
                f"benchmark={benchmark!r}; leave them out"
            )

    def _settle_engine(self, need: str = "") -> None:
        """Settle which engine plays: a browser wherever an option needs one, else the twin.

        Args:
            need: What of the kind itself needs a browser, for the error; empty for nothing.
        """
        needs = [need] if need else []
        if self._browser_options["pictures"]:
            needs.append("render_mode='rgb_array'")
        if self._viewport:
            needs.append("observation='viewport'")

        engine = self._settings["engine"]
        if engine == "auto":
            engine = "chromium" if needs else "twin"
        if needs and engine != "chromium":
            raise OptionError(
                f"{needs[0]} needs a browser, found engine={engine!r}, which has no layout, scripts, "
                "pictures or network; use engine='chromium'"
            )
        self._settings["engine"] = engine

    def _create_engine(self) -> Engine:
        """Return the engine that was settled on, for pages of the generated sites."""
        if self._settings["engine"] == "chromium":
            return Chromium(**self._browser_options)
        self.metadata = TextEnv.metadata  # the twin has no pictures
        return Twin()

    @property
    def tasks(self) -> Panel:
        """The tasks of the split."""
        return self._panel

    @property
    def wanted(self) -> AnyTask:
        """The task with its answer and its plan. For checks, not for agents or world models."""
        if self._wanted is None:
            self._refuse_step()
        return self._wanted

    @property
    def engine(self) -> Engine:
        """What shows the pages. For checks, not for agents."""
        return self._engine

    def settings(self) -> dict[str, str]:
        """Return the benchmark, the engine, and how pages are shown and judged."""
        return self._settings.copy()

    def fingerprint(self) -> dict[str, str]:
        """Return what must agree for two results to be comparable: the browser's version, too."""
        fingerprint = super().fingerprint()
        version = getattr(self._engine, "version", "")
        if version:
            # Browsers renew themselves every few weeks: minor versions count as the same.
            fingerprint["browser"] = version.partition(".")[0]
        return fingerprint

    def close(self) -> None:
        """Let go of the page in the browser; the browser stays for others until Python ends."""
        self._engine.close()

    def render(self) -> Any:
        """Return the page as a picture, an array of height, width and 3 colors; or the text."""
        if self.render_mode != "rgb_array":
            return super().render()

        with needs_extra("web", "render_mode='rgb_array'"):
            from PIL import Image
        picture = getattr(self._engine, "picture", "")
        if not picture:
            return np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        return np.asarray(Image.open(BytesIO(b64decode(picture))).convert("RGB"))

    def ended(self, state: State) -> bool:
        """Return whether the facts say that ``stop`` was done."""
        return ("done",) in state.facts

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the actions that the belief suggests, by names."""
        return admissible_of(self.canonicalizer.belief(state), self._goal, self._viewport)

    def extras(self, observation: str = "") -> dict[str, Any]:
        """Return address, title and answer, as an observation shows them."""
        extras = super().extras()
        page = read_page(observation)
        if page is not None:
            titles = (line.name for line in page.lines if line.role == ROOT)
            extras["url"] = page.url
            extras["title"] = next(titles, "")
            extras["answer"] = page.answer
        return extras

    # What a kind writes.

    def _load_task(self, task: str) -> AnyTask:
        """Return a task by its id; raise `TaskNotFound` where there is none."""
        raise NotImplementedError

    def _outcome_of(self, observation: str, invalid: bool) -> Outcome:
        """Return the outcome of the last action: what is seen, and what the episode is worth by now."""
        raise NotImplementedError

    def _start_of(self, task: AnyTask) -> str:
        """Return the address that the engine opens first."""
        return task.draft.start

    def _goal_of(self, task: AnyTask) -> str:
        """Return the task in words, after its first page was opened."""
        return task.draft.goal

    def _score_before(self, move: Move) -> None:
        """Score what counts on the page before an action is taken; nothing, but for tasks of files."""

    def _followed(self, action_by_name: str, changed: bool) -> Progress:
        """Return the progress with where the expert's plan stands; without a plan, as it is."""
        return self._progress

    # What the kinds share.

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        self._wanted = None  # until its first page is open there is nothing to play
        wanted = self._load_task(task)
        self._engine.open(wanted.world, self._start_of(wanted))
        self._wanted = wanted

        # The first page may meet key nodes itself.
        nodes_met = wanted.meets(frozenset(), self._engine.url, Effect())
        self._progress = Progress(nodes_met)
        self._tab = ""
        return wanted.split, self._goal_of(wanted), self._outcome_now(False)

    def _act(self, action: str) -> Outcome:
        move, reason = self._read(action)
        if move is None:
            self._progress = self._progress._replace(refused=reason)
            return self._outcome_now(True)

        self._score_before(move)
        if move.verb == "stop":
            self._progress = self._progress._replace(answer=move.text, refused="")
            return self._outcome_now(False)

        # What the action's line is called, and what may change, are asked while the page is there.
        action_by_name = self._by_name(move)
        states_before = self._engine.states
        page_before = self._page
        focus_after = self._focus_after(move)

        effect = self._engine.act(move)
        nodes_met = self.wanted.meets(self._progress.nodes_met, self._engine.url, effect)
        self._progress = self._progress._replace(nodes_met=nodes_met, refused=effect.refused)
        if not effect.refused:
            self._progress = self._progress._replace(focus=focus_after())
        outcome = self._outcome_now(bool(effect.refused))

        # Scrolling changes what is shown and nothing else: the expert's plan goes on after it. Engines
        # replace the states of the sites whenever a request changes them, so identity is enough.
        is_other = states_before is not self._engine.states or page_before != self._page
        changed = is_other and not effect.refused and move.verb != "scroll"
        self._progress = self._followed(action_by_name, changed)
        return outcome

    def _read(self, action: str) -> tuple[Move | None, str]:
        """Return what an action says, in numbers of the engine's lines, or why nothing is done."""
        move = read_action(action)
        if move is None:
            return None, "no action can be read of it"
        if self._settings["dialect"] == "comap":
            return move, ""

        # Upstream's tree has fewer lines than the engine's page: its numbers are translated.
        engine_numbers = self._tree().numbers
        number = move.target.number
        if number > len(engine_numbers):
            return None, f"there is no line [{number}], only {len(engine_numbers)}"
        engine_number = engine_numbers[number - 1] if number else 0
        target = move.target._replace(number=engine_number)
        return move._replace(target=target, enter=True), ""  # upstream always presses Enter

    def _focus_after(self, move: Move) -> Callable[[], int]:
        """Return what says, after an action, which line has the focus; a page that is loaded has none."""
        engine = self._engine
        focus_before = self._progress.focus
        if self._viewport and isinstance(engine, Chromium):
            return lambda: engine.focus  # scrolling gives all lines other numbers
        if self._settings["dialect"] == "comap" or move.verb in ("scroll", "wait", "select"):
            return lambda: focus_before  # the dialect comap shows no focus

        # Enter loads a page from all fields but a textarea; the back button does nothing at the start.
        states_before = engine.states
        url_before = engine.url
        line, number = line_of(self._page, move.target)
        roles = ("textbox",) if move.verb == "type" else _FOCUSED
        if move.verb == "goback":
            focus = focus_before
        elif line is not None and line.role in roles:
            focus = number
        else:
            focus = 0

        def focus_unless_loaded() -> int:
            is_same_page = engine.states is states_before and engine.url == url_before
            return focus if is_same_page else 0

        return focus_unless_loaded

    def _tree(self) -> Tree:
        return write_tree(self._page, self._tab, self._progress.focus)

    def _show(self, invalid: bool) -> str:
        """Look at the page, and return the observation."""
        self._page = self._engine.text()
        if self._settings["dialect"] == "comap":
            return self._page

        # Upstream's tab has the title of the page that was opened first, and never renews it.
        if not self._tab:
            root, _ = line_of(self._page, Target(1))
            self._tab = "" if root is None else root.name
        return REFUSED if invalid else self._tree().text

    def _by_name(self, move: Move) -> str:
        """Return an action's canonical form with the name of its line in the place of the number."""
        if move.target.number:
            line, _ = line_of(self._page, move.target)
            if line is not None:
                move = move._replace(target=Target(role=line.role, name=line.name))
        return canonical(str(move))

    def _outcome_now(self, invalid: bool) -> Outcome:
        answer = self._progress.answer
        observation = self._show(invalid) if answer is None else write_answer(answer)
        return self._outcome_of(observation, invalid)

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        info["key_nodes"] = tuple(sorted(self._progress.nodes_met))
        info["refused"] = self._progress.refused
        info["verdict"] = self._progress.verdict
        info["dialogs"] = self._engine.dialogs
        if picture := getattr(self._engine, "picture", ""):
            info["screenshot"] = {"jpeg": picture}
        return info

    def _save(self) -> Any:
        return self._engine.save(), self._progress, self._outcome.admissible

    def _load(self, saved: Any) -> tuple[str, ...] | None:
        moment, progress, admissible = saved
        self._engine.load(moment)
        self._progress = Progress(*progress)
        return None if admissible is None else tuple(admissible)

    def _agrees(self, outcome: Outcome) -> bool:
        now = self._outcome_now(outcome.invalid)
        return (now.score, now.success) == (outcome.score, outcome.success)
