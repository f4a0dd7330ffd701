"""`WebEnv`: web pages as text, on generated sites."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...errors import OptionError, check_choice, needs_extra
from ...facts import State
from ..base import Outcome, TextEnv
from ..panel import Panel
from .actions import Move, Target, canonical, read_action
from .browser import HEIGHT, WIDTH
from .canonicalizer import WebCanonicalizer, admissible_of, narrate
from .chromium import Chromium
from .engine import Effect, Engine
from .lines import ROOT, read_page, write_answer
from .miniwob import MiniWob, task_of
from .miniwob import panel_of as tasks_of_miniwob
from .tasks import Task, load, panel_of
from .twin import Twin

BENCHMARKS = ("embedded", "miniwob", "webvoyager", "mind2web-live", "gaia-web")
ENGINES = ("twin", "chromium")
OBSERVATIONS = ("page", "viewport")


class Progress(NamedTuple):
    """What an episode has done beside the engine's state; part of snapshots.

    Attributes:
        met: The key nodes that were met.
        next: The index of the expert's next action.
        astray: Whether other actions than the expert's changed something since.
        answer: The answer, after ``stop``.
        refused: Why the last action was refused.
    """

    met: frozenset[int] = frozenset()
    next: int = 0
    astray: bool = False
    answer: str | None = None
    refused: str = ""


class WebEnv(TextEnv):
    """Web pages as their accessibility trees, and actions on their lines, as in WebEvolver.

    ## Description
    A task is done on web pages: something is looked up and answered, or something is changed. With
    ``benchmark="embedded"`` the pages are those of generated sites: a shop, an encyclopedia, a forum,
    a booking site, a map, a mailbox, and a page that links them. They need no network, no server and
    no browser: the engine ``twin`` does what Chromium does with their forms and links. The engine
    ``chromium`` is the real browser, with the same texts to the byte; it is driven by Playwright, and
    shared by all environments of a process. Requests are answered by interception: no port is opened,
    and pages reach no other host, port or file. ``pip install -e ".[web]"``, and ``apt-get install
    chromium`` or ``playwright install chromium``, bring it.

    ``benchmark="miniwob"`` has the 130 pages of MiniWoB++, with their own scripts, in Chromium. Time in
    them is virtual: each action takes a second. An element that only scripts listen at has a line with
    the role ``clickable``.

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
    (``max_episode_steps`` of ``gym.make``) or after a fault: a page that crashes or does not answer
    within 10 s, an action that takes 30 s, a browser that ends. The next `reset` starts a new one.

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
    ``sight``. Nobody plays them as an expert; their snapshots are played again from the start.

    ## State facts
    See `comap.envs.web.canonicalizer`, by `WebCanonicalizer`: where one is and what pages are there
    (structural); what pages show, and what is typed and chosen on them (content).

    ## Known deviations from upstream
    Values of controls and options of lists have lines; controls without a name keep theirs; focus has
    none. Enter is pressed only where an action says so. ``select`` and ``goto`` are new. The whole page
    is shown, so scrolling changes nothing. Key nodes are scored on the page after an action. Sites
    are generated, not live. Links to new tabs open in the same. MiniWoB++ has no time limit, and its
    raw reward counts, whatever the time.

    Args:
        benchmark: ``"embedded"`` (generated sites) or ``"miniwob"`` (the pages of MiniWoB++).
        engine: ``"twin"`` (pure Python) or ``"chromium"`` (through Playwright).
        split: ``"train"``, ``"valid"`` or ``"test"``; of ``miniwob`` also ``"sight"``.
        observation: ``"page"``, the whole page.
        browser: The path of Chromium; None takes Debian's, or else Playwright's own.
        **common: See `TextEnv`.

    Raises:
        OptionError: An option is unknown or has a value that it cannot have.
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
    idle_answer: ClassVar[str | None] = None
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"benchmark": "embedded"})
    env_id = "comap/Web-v0"
    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"url": "", "title": "", "answer": None, "key_nodes": (), "refused": "", "dialogs": ()}
        | {"screenshot": None}
    )
    info_kept = ("screenshot",)
    local_options = frozenset(("data_dir", "browser"))
    canonicalizer: WebCanonicalizer = WebCanonicalizer()
    state_text = staticmethod(narrate)

    def __init__(
        self,
        *,
        benchmark: str = "embedded",
        engine: str = "twin",
        split: str = "train",
        observation: str = "page",
        browser: str | None = None,
        **common: Any,
    ):
        super().__init__(**common)
        check_choice("benchmark", benchmark, BENCHMARKS)
        check_choice("engine", engine, ENGINES)
        check_choice("observation", observation, OBSERVATIONS)
        miniwob = benchmark == "miniwob"
        if benchmark not in ("embedded", "miniwob") or observation != "page":
            raise OptionError(
                f"benchmark={benchmark!r} with observation={observation!r} cannot be played by this "
                "version of comap; use benchmark='embedded' or 'miniwob', and observation='page'"
            )
        if miniwob and engine != "chromium":
            raise OptionError(
                f"benchmark='miniwob' needs a browser, found engine={engine!r}; use engine='chromium'"
            )
        self._panel = tasks_of_miniwob(split) if miniwob else panel_of(split)
        self._settings = {"benchmark": benchmark, "engine": engine, "observation": observation}
        self._engine: Engine = Twin()
        if engine == "chromium":
            maker = MiniWob if miniwob else Chromium
            self._engine = maker(browser, self.render_mode == "rgb_array")
        else:
            self.metadata = TextEnv.metadata
            if self.render_mode == "rgb_array":
                raise OptionError(
                    "render_mode='rgb_array' needs engine='chromium'; the twin has no pictures"
                )
        self.canonicalizer = WebCanonicalizer()
        self._wanted: Task | None = None
        self._progress = Progress()
        self._suggests = True

    @property
    def tasks(self) -> Panel:
        """The tasks of the split."""
        return self._panel

    @property
    def wanted(self) -> Task:
        """The task with its answer and its plan. For checks, not for agents or world models."""
        if self._wanted is None:
            self._refuse_step()
        return self._wanted

    @property
    def engine(self) -> Engine:
        """What shows the pages. For checks, not for agents."""
        return self._engine

    def settings(self) -> dict[str, str]:
        """Return the benchmark, the engine and how much of a page is shown."""
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
        picture = self._picture()
        if not picture:
            return np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        return np.asarray(Image.open(BytesIO(b64decode(picture))).convert("RGB"))

    def _picture(self) -> str:
        """Return the picture of the page: JPEG in base64; empty where none is taken."""
        return self._engine.picture if isinstance(self._engine, Chromium) else ""

    def expert_action(self) -> str | None:
        """Return the next action of the plan, or the way back to it; None after the end."""
        if not self._running or self._wanted is None:
            return None
        task, progress = self._wanted, self._progress
        if not task.plan:
            return None
        if progress.astray:
            return str(Move("goto", text=task.urls[task.fresh[progress.next]]))
        return task.plan[progress.next]

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the task is solved; None where only the sites know."""
        task = self.wanted
        if not task.plan:
            return None  # the page's own script knows
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
        if self.goal_reached(state):
            return 1.0
        task = self.wanted
        if not task.plan:
            return None
        return task.partial(sum(node.met_by(state) for node in task.nodes))

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the actions that the belief suggests, by names."""
        return admissible_of(self.canonicalizer.belief(state), self._goal)

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
        wanted = task_of(task) if isinstance(self._engine, MiniWob) else load(task)
        self._engine.open(wanted.world, wanted.draft.start)
        self._wanted = wanted
        met = wanted.meets(frozenset(), self._engine.url, Effect())
        self._progress = Progress(met)
        goal = self._engine.goal if isinstance(self._engine, MiniWob) else wanted.draft.goal
        return wanted.split, goal, self._outcome_now(False)

    def _act(self, action: str) -> Outcome:
        move = read_action(action)
        if move is None:
            self._progress = self._progress._replace(refused="no action can be read of it")
            return self._outcome_now(True)
        if move.verb == "stop":
            self._progress = self._progress._replace(answer=move.text, refused="")
            return self._outcome_now(False)
        named = self._named(move)
        before = self._engine.states, self._outcome.observation
        effect = self._engine.act(move)
        met = self.wanted.meets(self._progress.met, self._engine.url, effect)
        self._progress = self._progress._replace(met=met, refused=effect.refused)
        outcome = self._outcome_now(bool(effect.refused))
        changed = before[0] is not self._engine.states or before[1] != outcome.observation
        self._progress = self._followed(named, changed and not effect.refused)
        return outcome

    def _named(self, move: Move) -> str:
        """Return an action's canonical form with the name of its line in the place of the number."""
        shown = read_page(self._outcome.observation)
        number = move.target.number
        if shown is not None and 0 < number <= len(shown.lines):
            line = shown.lines[number - 1]
            move = move._replace(target=Target(role=line.role, name=line.name))
        return canonical(str(move))

    def _followed(self, named: str, changed: bool) -> Progress:
        """Return where the expert's plan stands after an action."""
        task, progress = self.wanted, self._progress
        if not task.plan:
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
        if isinstance(self._engine, MiniWob):
            reward = min(max(0.0, self._engine.verdict or 0.0), 1.0)
            ended = self._engine.verdict is not None or answer is not None
            text = self._engine.text() if answer is None else write_answer(answer)
            return Outcome(text, reward, reward, reward > 0, ended, invalid)
        if answer is None:
            score = task.partial(len(self._progress.met))
            return Outcome(self._engine.text(), score=score, invalid=invalid)
        solved = task.solved(self._engine.states, self._progress.met, answer)
        score = 1.0 if solved else task.partial(len(self._progress.met))
        return Outcome(write_answer(answer), float(solved), score, solved, True)

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        info["key_nodes"] = tuple(sorted(self._progress.met))
        info["refused"] = self._progress.refused
        info["dialogs"] = self._engine.dialogs
        if picture := self._picture():
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
