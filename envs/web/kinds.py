"""The three kinds of web: generated sites, the pages of MiniWoB++, and the tasks of a file.

``WebEnv(benchmark=...)``, and so ``gym.make("comap/Web-v0", benchmark=...)``, makes the right one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...errors import OptionError, check_choice
from ...facts import State
from ..base import Outcome
from ..panel import Panel
from .actions import Move, canonical, line_of, read_action
from .chromium import Chromium
from .env import Progress, WebEnv
from .judge import Judge
from .live import FILES, Acted, LiveTask, open_tasks
from .live_chromium import LiveChromium, check_live
from .miniwob import MiniWob, task_of
from .miniwob import panel_of as panel_of_miniwob
from .sites import HOSTS
from .tasks import SPLITS, Task, load, panel_of


class GeneratedWebEnv(WebEnv[Task], benchmarks=("embedded",)):
    """Tasks on the generated sites, each with an expert's plan, verified by the sites' states."""

    def __init__(
        self,
        *,
        split: str = "train",
        level: int | None = None,
        sites: Sequence[str] = (),
        **options: Any,
    ):
        super().__init__(**options)
        self._settle_engine()
        self._panel = panel_of(split, level, _site_names(sites))
        self._engine = self._create_engine()

    def expert_action(self) -> str | None:
        """Return the next action of the plan, or the way back to it; None after the end."""
        if not self._running or self._wanted is None:
            return None

        task = self._wanted
        progress = self._progress
        if progress.astray:
            # The page is loaded anew where the plan last came to a fresh page: nothing typed is left.
            return str(Move("goto", text=task.urls[task.fresh[progress.plan_index]]))

        move = read_action(task.plan[progress.plan_index])
        if move is not None and isinstance(self._engine, Chromium):
            move = self._engine.toward(move)  # what is outside of the window is scrolled to first
        return str(move)

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the task is solved; None where only the sites know."""
        task = self.wanted
        if ("done",) not in state.facts:
            return False

        answers = (fact[1] for fact in state.facts if fact[0] == "answer" and len(fact) == 2)
        if not task.answers(next(answers, "")):
            return False

        required_nodes = (node for node in task.nodes if node.required)
        is_evident = task.evidence <= state.facts and all(
            node.met_by(state) for node in required_nodes
        )
        return True if is_evident else None

    def score_of(self, state: State) -> float | None:
        """Return the share of key nodes that the facts say were met; 1 if the task is solved."""
        task = self.wanted
        if self.goal_reached(state):
            return 1.0
        return task.partial(sum(node.met_by(state) for node in task.nodes))

    def _load_task(self, task: str) -> Task:
        return load(task)

    def _outcome_of(self, observation: str, invalid: bool) -> Outcome:
        task = self.wanted
        answer = self._progress.answer
        score = task.partial(len(self._progress.nodes_met))
        if answer is None:
            return Outcome(observation, score=score, invalid=invalid)
        solved = task.solved(self._engine.states, self._progress.nodes_met, answer)
        return Outcome(
            observation,
            reward=float(solved),
            score=1.0 if solved else score,
            success=solved,
            terminated=True,
        )

    def _followed(self, action_by_name: str, changed: bool) -> Progress:
        """Return where the expert's plan stands after an action."""
        task = self.wanted
        progress = self._progress
        if progress.astray:
            # Only a page that is loaded again has nothing typed on it, wherever links lead.
            fresh = task.fresh[progress.plan_index]
            is_loaded = action_by_name.startswith(("goto", "restart"))
            if is_loaded and self._engine.url == task.urls[fresh]:
                return progress._replace(plan_index=fresh, astray=False)
            return progress

        if action_by_name == canonical(task.plan[progress.plan_index]):
            return progress._replace(plan_index=progress.plan_index + 1) if changed else progress
        return progress._replace(astray=changed)


def _site_names(sites: Sequence[str]) -> tuple[str, ...]:
    """Return the names of sites that were asked for; one alone may be given as a text."""
    names = (sites,) if isinstance(sites, str) else sites
    if not isinstance(names, list | tuple) or not all(type(name) is str for name in names):
        raise OptionError(f"sites must be names, as in sites=['shop'], not {sites!r:.200}")
    return tuple(names)


class MiniWobEnv(WebEnv[Task], benchmarks=("miniwob",)):
    """MiniWoB++: pages that state their task and judge it themselves, in Chromium; without an expert."""

    _engine: MiniWob

    def __init__(self, *, benchmark: str = "miniwob", split: str = "train", **options: Any):
        super().__init__(benchmark=benchmark, **options)
        self._settle_engine("benchmark='miniwob'")
        self._panel = panel_of_miniwob(split)
        self._engine = MiniWob(**self._browser_options)

    def _load_task(self, task: str) -> Task:
        return task_of(task)

    def _goal_of(self, task: Task) -> str:
        return self._engine.goal  # the page makes it up as it starts, from the seed

    def _outcome_of(self, observation: str, invalid: bool) -> Outcome:
        verdict = self._engine.verdict
        reward = min(max(0.0, verdict or 0.0), 1.0)  # raw rewards go down to -1
        has_ended = verdict is not None or self._progress.answer is not None
        return Outcome(
            observation,
            reward=reward,
            score=reward,
            success=reward > 0,
            terminated=has_ended,
            invalid=invalid,
        )


class LiveWebEnv(WebEnv[LiveTask], benchmarks=tuple(FILES)):
    """Tasks of a user's file: WebVoyager, Mind2Web-Live or GAIA-web.

    Those that start at other hosts than the generated sites' are played on the live web.
    """

    def __init__(
        self,
        *,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        tasks: str | os.PathLike[str] | None = None,
        judge: Any = None,
        allowed_hosts: Sequence[str] = (),
        sandbox: bool | None = None,
        **options: Any,
    ):
        super().__init__(sandbox=sandbox, **options)
        self._judge = judge if judge is None or isinstance(judge, Judge) else Judge(judge)
        check_choice("the web's split", split, SPLITS)
        self._file = open_tasks(self._settings["benchmark"], data_dir, tasks, split)
        self._panel = Panel.of(self._file.tasks, split, SPLITS)
        self._own_limit = self._limit  # a task's own limit may be lower

        is_live = not self._file.hosts <= set(HOSTS)
        self._settle_engine("a live site" if is_live else "")
        self._settings["tasks"] = self._file.sha256
        self._settings["judge"] = "none" if self._judge is None else self._judge.name
        self._suggests = not is_live
        if is_live:
            check_live(self._file.hosts, allowed_hosts, sandbox)
            self._settings["allowed_hosts"] = " ".join(sorted(allowed_hosts))
            self._engine = LiveChromium(allowed_hosts, **self._browser_options)
        else:
            self._engine = self._create_engine()

    def _load_task(self, task: str) -> LiveTask:
        if task not in self._file.tasks:
            raise self._panel.missing(task)
        live_task = self._file.tasks[task]
        limits = [limit for limit in (self._own_limit, live_task.limit) if limit is not None]
        self._limit = min(limits) if limits else None
        return live_task

    def _start_of(self, task: LiveTask) -> str:
        # A live host's scheme matters; the generated sites have none.
        return task.url if isinstance(self._engine, LiveChromium) else task.draft.start

    def _score_before(self, move: Move) -> None:
        """Score the page before an action, and its target, by key nodes; ``stop`` gets its verdict.

        Mind2Web-Live's key nodes are of the page before a step (Pan et al., WebCanvas, 2024).
        """
        task = self.wanted
        line, number = line_of(self._page, move.target)
        if move.verb in ("type", "select"):
            value = move.text
        else:
            value = "" if line is None else line.name

        if isinstance(self._engine, Chromium):
            acted = Acted(self._engine.address, number, value, self._engine.chain)
        else:
            acted = Acted(f"http://{self._engine.url}", number, value)
        scores = task.scored(self._progress.scores, acted, self._judge)

        verdict = task.unscored(self._judge is not None, acted.chain is not None)
        if move.verb == "stop":
            pages = [turn.observation for turn in self._turns]
            verdict = task.verdict(move.text, pages, self._judge) or verdict
        nodes_met = frozenset(index for index, score in enumerate(scores) if score == 1)
        self._progress = self._progress._replace(
            scores=scores, verdict=verdict, nodes_met=nodes_met
        )

    def _outcome_of(self, observation: str, invalid: bool) -> Outcome:
        score = self.wanted.share(self._progress.scores, self._progress.verdict)
        solved = score == 1
        has_ended = solved or self._progress.answer is not None
        return Outcome(
            observation,
            reward=float(solved),
            score=score,
            success=solved,
            terminated=has_ended,
            invalid=invalid,
        )
