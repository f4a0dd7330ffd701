"""`WebEnv`: web pages as text, on generated sites and on live ones."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

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
from .judge import Judge
from .lines import REFUSED, ROOT, Tree, read_page, write_answer, write_tree
from .live import FILES, Acted, LiveTask, TaskFile, open_tasks
from .live_chromium import LiveChromium, check_live
from .miniwob import MiniWob, task_of
from .miniwob import panel_of as tasks_of_miniwob
from .sites import HOSTS
from .tasks import SPLITS, Task, load, panel_of
from .twin import Twin

BENCHMARKS = ("embedded", "miniwob", "webvoyager", "mind2web-live", "gaia-web")
ENGINES = ("auto", "twin", "chromium")
OBSERVATIONS = ("page", "viewport")
DIALECTS = ("comap", "webevolver")
_FOCUSED = ("checkbox", "radio", "combobox", "textbox", "searchbox")


class Progress(NamedTuple):
    """What an episode has done beside the engine's state; part of snapshots."""

    met: frozenset[int] = frozenset()  # key nodes
    next: int = 0  # the index of the expert's next action
    astray: bool = False  # other actions than the expert's changed something since
    answer: str | None = None  # after ``stop``
    refused: str = ""  # why the last action was
    scores: tuple[float, ...] = ()  # of the nodes of a task of Mind2Web-Live
    verdict: str = ""  # what a judge said, or why there is none
    focus: int = 0  # the number of the line that has it; 0 for none


def _only_for_files(benchmark: str) -> str:
    files = ", ".join(map(repr, FILES))
    return (
        f"tasks, judge and allowed_hosts are for benchmark={files}, found benchmark={benchmark!r}; "
        "leave them out"
    )


def _briefing_of(benchmark: str, dialect: str) -> Briefing:
    """Return what a language model is told, with the changes that options make in it."""
    changes = [option for option in (benchmark, dialect) if option in ("miniwob", "webevolver")]
    return Briefing.of_package(__package__ or "", *changes)


def _site_names(sites: Sequence[str]) -> tuple[str, ...]:
    """Return the names of sites that were asked for; one alone may be given as a text."""
    names = (sites,) if isinstance(sites, str) else sites
    if not isinstance(names, list | tuple) or not all(type(name) is str for name in names):
        raise OptionError(f"sites must be names, as in sites=['shop'], not {sites!r:.200}")
    return tuple(names)


class WebEnv(TextEnv):
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
        {"url": "", "title": "", "answer": None, "key_nodes": (), "refused": "", "verdict": ""}
        | {"dialogs": (), "screenshot": None}
    )
    info_kept: ClassVar[tuple[str, ...]] = ("verdict", "screenshot")
    local_options: ClassVar[frozenset[str]] = frozenset(
        ("browser", "data_dir", "tasks", "judge", "allowed_hosts", "sandbox")
    )
    canonicalizer: WebCanonicalizer = WebCanonicalizer()
    state_text = staticmethod(narrate)
    briefing = Briefing.of_package(__package__ or "")

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
        check_choice("benchmark", benchmark, BENCHMARKS)
        check_choice("engine", engine, ENGINES)
        check_choice("observation", observation, OBSERVATIONS)
        check_choice("dialect", dialect, DIALECTS)
        if benchmark != "embedded" and (level is not None or sites):
            raise OptionError(
                f"level and sites are for benchmark='embedded', found benchmark={benchmark!r}; leave "
                "them out"
            )
        if benchmark not in FILES and not (tasks is None and judge is None and not allowed_hosts):
            raise OptionError(_only_for_files(benchmark))
        self._judge = judge if judge is None or isinstance(judge, Judge) else Judge(judge)
        self._file: TaskFile | None = None
        if benchmark in FILES:
            check_choice("the web's split", split, SPLITS)
            self._file = open_tasks(benchmark, data_dir, tasks, split)
        is_live = self._file is not None and not self._file.hosts <= set(HOSTS)
        miniwob, pictures = benchmark == "miniwob", self.render_mode == "rgb_array"
        self._viewport = observation == "viewport"
        needs = {"benchmark='miniwob'": miniwob, "a live site": is_live}
        needs |= {"render_mode='rgb_array'": pictures, "observation='viewport'": self._viewport}
        browsed = [option for option, chosen in needs.items() if chosen]
        if engine == "auto":
            engine = "chromium" if browsed else "twin"
        if browsed and engine != "chromium":
            raise OptionError(
                f"{browsed[0]} needs a browser, found engine={engine!r}, which has no layout, scripts, "
                "pictures or network; use engine='chromium'"
            )
        if self._file is not None and is_live:
            check_live(self._file.hosts, allowed_hosts, sandbox)
        self.briefing = _briefing_of(benchmark, dialect)
        self._settings = {"benchmark": benchmark, "engine": engine, "observation": observation}
        self._settings["dialect"] = dialect
        if self._file is None:
            names = _site_names(sites)
            self._panel = tasks_of_miniwob(split) if miniwob else panel_of(split, level, names)
        else:
            self._panel = Panel.of(self._file.tasks, split, SPLITS)
            self._settings["tasks"] = self._file.sha256
            self._settings["judge"] = "none" if self._judge is None else self._judge.name
        self._own_limit = self._limit
        browser_options = (browser, pictures, sandbox, self._viewport)
        self._engine: Engine
        if is_live:
            self._settings["allowed_hosts"] = " ".join(sorted(allowed_hosts))
            self._engine = LiveChromium(allowed_hosts, *browser_options)
        elif miniwob:
            self._engine = MiniWob(*browser_options)
        elif engine == "chromium":
            self._engine = Chromium(*browser_options)
        else:
            self._engine = Twin()
            self.metadata = TextEnv.metadata
        self.canonicalizer = WebCanonicalizer()
        self._wanted: Task | LiveTask | None = None
        self._progress = Progress()
        self._page = self._tab = ""
        self._suggests = not is_live

    @property
    def tasks(self) -> Panel:
        """The tasks of the split."""
        return self._panel

    @property
    def wanted(self) -> Task | LiveTask:
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
        version = getattr(self._engine, "version", "")
        return super().fingerprint() | ({"browser": version.partition(".")[0]} if version else {})

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

    def expert_action(self) -> str | None:
        """Return the next action of the plan, or the way back to it; None after the end."""
        if not self._running or not isinstance(self._wanted, Task):
            return None
        task, progress = self._wanted, self._progress
        if not task.plan:
            return None
        if progress.astray:
            return str(Move("goto", text=task.urls[task.fresh[progress.next]]))
        move = read_action(task.plan[progress.next])
        if move is not None and isinstance(self._engine, Chromium):
            move = self._engine.toward(move)
        return str(move)

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the task is solved; None where only the sites know."""
        task = self.wanted
        if isinstance(task, LiveTask) or not task.plan:
            return None  # the page's own script or a judge knows
        if ("done",) not in state.facts:
            return False
        given = next(
            (fact[1] for fact in state.facts if fact[0] == "answer" and len(fact) == 2), ""
        )
        required = (node for node in task.nodes if node.required)
        if not task.answers(given):
            return False
        known = task.evidence <= state.facts and all(node.met_by(state) for node in required)
        return True if known else None

    def ended(self, state: State) -> bool:
        """Return whether the facts say that ``stop`` was done."""
        return ("done",) in state.facts

    def score_of(self, state: State) -> float | None:
        """Return the share of key nodes that the facts say were met; 1 if the task is solved."""
        task = self.wanted
        if isinstance(task, LiveTask) or not task.plan:
            return None
        if self.goal_reached(state):
            return 1.0
        return task.partial(sum(node.met_by(state) for node in task.nodes))

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the actions that the belief suggests, by names."""
        return admissible_of(self.canonicalizer.belief(state), self._goal, self._viewport)

    def extras(self, observation: str = "") -> dict[str, Any]:
        """Return address, title and answer, as an observation shows them."""
        extras = super().extras()
        shown = read_page(observation)
        if shown is not None:
            titles = (line.name for line in shown.lines if line.role == ROOT)
            extras |= {"url": shown.url, "title": next(titles, ""), "answer": shown.answer}
        return extras

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        self._wanted = None
        wanted = self._load_task(task)
        start = wanted.draft.start
        if isinstance(wanted, LiveTask) and isinstance(self._engine, LiveChromium):
            start = wanted.url
        self._engine.open(wanted.world, start)
        self._wanted = wanted
        met = wanted.meets(frozenset(), self._engine.url, Effect())
        self._progress, self._tab = Progress(met), ""
        goal = self._engine.goal if isinstance(self._engine, MiniWob) else wanted.draft.goal
        return wanted.split, goal, self._outcome_now(False)

    def _load_task(self, task: str) -> Task | LiveTask:
        if isinstance(self._engine, MiniWob):
            return task_of(task)
        if self._file is None:
            return load(task)
        if task not in self._file.tasks:
            raise self._panel.missing(task)
        found = self._file.tasks[task]
        limits = [limit for limit in (self._own_limit, found.limit) if limit is not None]
        self._limit = min(limits) if limits else None
        return found

    def _act(self, action: str) -> Outcome:
        move, reason = self._read(action)
        if move is None:
            self._progress = self._progress._replace(refused=reason)
            return self._outcome_now(True)
        if isinstance(self.wanted, LiveTask):
            self._progress = self._scored(self.wanted, move)
        if move.verb == "stop":
            self._progress = self._progress._replace(answer=move.text, refused="")
            return self._outcome_now(False)
        named = self._named(move)
        before = self._engine.states, self._page
        focus = self._focus_after(move)
        effect = self._engine.act(move)
        met = self.wanted.meets(self._progress.met, self._engine.url, effect)
        self._progress = self._progress._replace(met=met, refused=effect.refused)
        if not effect.refused:
            self._progress = self._progress._replace(focus=focus())
        outcome = self._outcome_now(bool(effect.refused))
        changed = before[0] is not self._engine.states or before[1] != self._page
        changed = changed and not effect.refused and move.verb != "scroll"
        self._progress = self._followed(named, changed)
        return outcome

    def _read(self, action: str) -> tuple[Move | None, str]:
        """Return what an action says, in numbers of the engine's lines, or why nothing is done."""
        move = read_action(action)
        if move is None:
            return None, "no action can be read of it"
        if self._settings["dialect"] == "comap":
            return move, ""
        numbers, number = self._tree().numbers, move.target.number
        if number > len(numbers):
            return None, f"there is no line [{number}], only {len(numbers)}"
        target = move.target._replace(number=numbers[number - 1] if number else 0)
        return move._replace(target=target, enter=True), ""  # upstream always presses Enter

    def _focus_after(self, move: Move) -> Callable[[], int]:
        """Return what says, after an action, which line has the focus; a page that is loaded has none."""
        engine, before = self._engine, self._progress.focus
        if self._viewport and isinstance(engine, Chromium):
            return lambda: engine.focus  # scrolling gives all lines other numbers
        states, url = engine.states, engine.url
        if self._settings["dialect"] == "comap" or move.verb in ("scroll", "wait", "select"):
            return lambda: before
        line, number = line_of(self._page, move.target)
        # Enter loads a page from all fields but a textarea; the back button does nothing at the start.
        fields = ("textbox",) if move.verb == "type" else _FOCUSED
        after = before if move.verb == "goback" else number if line and line.role in fields else 0
        return lambda: after if (self._engine.states is states and self._engine.url == url) else 0

    def _tree(self) -> Tree:
        return write_tree(self._page, self._tab, self._progress.focus)

    def _show(self, invalid: bool) -> str:
        """Look at the page, and return the observation."""
        self._page = self._engine.text()
        if self._settings["dialect"] == "comap":
            return self._page
        first, _ = line_of(self._page, Target(1))
        self._tab = self._tab or (first.name if first else "")
        return REFUSED if invalid else self._tree().text

    def _scored(self, task: LiveTask, move: Move) -> Progress:
        """Return the progress with what the page before an action, and its target, are worth."""
        line, at = line_of(self._page, move.target)
        seen = self._engine if isinstance(self._engine, Chromium) else None
        url = f"http://{self._engine.url}" if seen is None else seen.address
        value = move.text if move.verb in ("type", "select") else line.name if line else ""
        acted = Acted(url, at, value, None if seen is None else seen.chain)
        scores, progress = task.scored(self._progress.scores, acted, self._judge), self._progress
        said = task.unscored(self._judge is not None, seen is not None)
        if move.verb == "stop":
            pages = [turn.observation for turn in self._turns]
            said = task.verdict(move.text, pages, self._judge) or said
        return progress._replace(
            scores=scores,
            verdict=said,
            met=frozenset(index for index, score in enumerate(scores) if score == 1),
        )

    def _named(self, move: Move) -> str:
        """Return an action's canonical form with the name of its line in the place of the number."""
        line, _ = line_of(self._page, move.target) if move.target.number else (None, 0)
        if line is not None:
            move = move._replace(target=Target(role=line.role, name=line.name))
        return canonical(str(move))

    def _followed(self, named: str, changed: bool) -> Progress:
        """Return where the expert's plan stands after an action."""
        task, progress = self.wanted, self._progress
        if isinstance(task, LiveTask) or not task.plan:
            return progress
        if progress.astray:
            fresh = task.fresh[progress.next]
            back = self._engine.url == task.urls[fresh] and named.startswith(("goto", "restart"))
            return progress._replace(next=fresh, astray=False) if back else progress
        if named == canonical(task.plan[progress.next]):
            return progress._replace(next=progress.next + 1) if changed else progress
        return progress._replace(astray=changed)

    def _outcome_now(self, invalid: bool) -> Outcome:
        answer, task = self._progress.answer, self.wanted
        shown = self._show(invalid) if answer is None else write_answer(answer)
        if isinstance(self._engine, MiniWob):
            reward = min(max(0.0, self._engine.verdict or 0.0), 1.0)
            ended = self._engine.verdict is not None or answer is not None
            return Outcome(shown, reward, reward, reward > 0, ended, invalid)
        if isinstance(task, LiveTask):
            score = task.share(self._progress.scores, self._progress.verdict)
            solved, ended = score == 1, answer is not None or score == 1
            return Outcome(shown, float(solved), score, solved, ended, invalid)
        score = task.partial(len(self._progress.met))
        if answer is None:
            return Outcome(shown, score=score, invalid=invalid)
        solved = task.solved(self._engine.states, self._progress.met, answer)
        return Outcome(shown, float(solved), 1.0 if solved else score, solved, True)

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        info["key_nodes"] = tuple(sorted(self._progress.met))
        info["refused"], info["verdict"] = self._progress.refused, self._progress.verdict
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
