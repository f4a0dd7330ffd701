"""`TextEnv`, the environment that all benchmarks share."""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, NoReturn, TypedDict

import gymnasium

from ..errors import (
    FAULTS,
    CoMapError,
    DataNotFound,
    EngineError,
    InvalidAction,
    NoEpisode,
    OptionError,
    SnapshotError,
    check_number,
    described,
    suggest,
)
from ..facts import Delta, State, diff
from ..spaces import Unicode
from ..trajectory import Step, Turn
from .briefing import Briefing, ReplyForm
from .canon import Canonicalizer, plain_state_text
from .generated import GENERATED
from .panel import Panel


class _Fault(TypedDict, total=False):
    error: str


class Info(_Fault):
    """What `reset` and `step` return beside the observation; the same keys in both.

    Attributes:
        task: Id of the task; ids of generated tasks start with ``generated/``.
        split: The split it belongs to.
        goal: The task in words.
        admissible_actions: The actions that would do something now; None where the action space is open.
        facts: The belief: what follows from the goal and the observations so far.
        delta: What the last step changed in `facts`.
        score: Progress, 0 to 1.
        success: Whether the task is solved.
        invalid_action: Whether the last action meant nothing here.
        step: Number of steps taken.
        imagined: Whether a world model predicted this step.
        error: Only where the episode ended by a fault: its type and message.
    """

    task: str
    split: str
    goal: str
    admissible_actions: tuple[str, ...] | None
    facts: State
    delta: Delta
    score: float
    success: bool
    invalid_action: bool
    step: int
    imagined: bool


class Outcome(NamedTuple):
    """The engine's answer to one step."""

    observation: str
    reward: float = 0.0
    score: float = 0.0
    success: bool = False
    terminated: bool = False
    invalid: bool = False
    admissible: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of one episode; picklable, and valid in any process that has the same data."""

    env_id: str
    settings: tuple[tuple[str, str], ...]
    task: str
    step: int
    running: bool
    history: tuple[Turn, ...]
    facts: State
    delta: Delta
    outcome: Outcome
    engine: Any


_NO_DELTA = Delta()
_MOST_ENGINES = 8


class TextEnv(gymnasium.Env[str, str]):
    """A Gymnasium environment of texts that exposes state facts.

    Subclasses set `env_id` and `canonicalizer` and write `tasks`, `_open`, `_act`, `_save` and
    `_load`; `expert_action`, `goal_reached`, `ended`, `score_of`, `admissible_of` and `refused`
    where they can, and `keep_engines` where engines are slow to start. `briefing` says what a language
    model is told of the environment: without one, it is told the admissible actions alone.

    Args:
        max_episode_steps: Steps after which the episode is truncated, or None for no limit.
            ``gym.make`` sets its own limit around the environment and passes None here.
        render_mode: ``"ansi"`` (`render` returns text) or None.
        max_text_length: The longest observation or action, in characters. A longer action is invalid,
            whatever it says.

    Raises:
        OptionError: An option is unknown or has a value that it cannot have.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (as in Gymnasium)
    env_id: ClassVar[str]
    # Keys that `info` has beside those of `Info`, with their values where there is nothing to report.
    info_extras: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Those of them that records of episodes keep.
    info_kept: ClassVar[tuple[str, ...]] = ()
    # The splits to evaluate on, the hardest last.
    test_splits: ClassVar[tuple[str, ...]] = ()
    # The options that choose generated tasks, whatever data is on the machine.
    generated_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Whether an episode takes seconds: then short runs play fewer of them.
    slow: ClassVar[bool] = False
    # Whether names stand in quotes: a tiny model then has a token for each word in them, and more tokens.
    quotes_names: ClassVar[bool] = False
    # The answer to an action that does nothing; None where the last observation is shown again.
    idle_answer: ClassVar[str | None] = "Nothing happens."
    # Options that name files, programs, servers or models: never taken from a record (see `offline`).
    local_options: ClassVar[frozenset[str]] = frozenset(("data_dir",))
    # A belief in words, for prompts: see `comap.envs.state_text`.
    state_text: ClassVar[Callable[..., str]] = staticmethod(plain_state_text)
    # What a language model is told of the environment; an object of the class may have its own.
    briefing: Briefing = Briefing()
    # How prompts and replies in tags are made.
    reply_form: ClassVar[ReplyForm] = ReplyForm()
    # The most steps that an agent looks ahead which chooses how many (ITP, as its authors released it).
    look_ahead_limit: ClassVar[int] = 3
    canonicalizer: Canonicalizer

    def __init__(
        self,
        *,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        max_text_length: int = 32_768,
        **unknown: Any,
    ):
        if unknown:
            raise _unknown_option(type(self), next(iter(unknown)))
        if render_mode not in (None, *self.metadata["render_modes"]):
            modes = " or ".join(map(repr, [*self.metadata["render_modes"], None]))
            raise OptionError(f"render_mode must be {modes}, not {render_mode!r}")
        if max_episode_steps is not None:
            check_number("max_episode_steps", max_episode_steps)

        self.render_mode = render_mode
        self.observation_space = Unicode(max_text_length)
        self.action_space = Unicode(max_text_length)
        self._limit = max_episode_steps
        self._longest_action = max_text_length
        self._suggests = False
        self._outside: weakref.ref[gymnasium.wrappers.TimeLimit] | None = None

        self._running = False
        self._task = ""
        self._split = ""
        self._goal = ""
        self._steps = 0
        self._state = State()
        self._delta = _NO_DELTA
        self._outcome = Outcome("")
        self._turns: list[Turn] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_outside": None}  # a weak reference is not copied

    # What a benchmark writes.

    @property
    @abstractmethod
    def tasks(self) -> Panel:
        """The tasks of this environment's split."""

    @abstractmethod
    def _open(self, task: str) -> tuple[str, str, Outcome]:
        """Load `task` and start it; return its split, its goal and the first outcome."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Take one action; the score and everything else are those after it."""

    def _with_suggestions(self, outcome: Outcome, state: State) -> Outcome:
        """Return an outcome with the actions that only the belief after it suggests, if wanted."""
        return outcome._replace(admissible=self.admissible_of(state)) if self._suggests else outcome

    @abstractmethod
    def _save(self) -> Any:
        """Return the engine's state in a picklable form that later steps do not change."""

    @abstractmethod
    def _load(self, saved: Any) -> tuple[str, ...] | None:
        """Bring the engine of the open task to `saved`; return the admissible actions there."""

    def _agrees(self, outcome: Outcome) -> bool:
        """Return whether the engine, at a moment that was loaded, has its score and success."""
        return True

    def settings(self) -> dict[str, str]:
        """Return the options that change what is seen: part of every snapshot and fingerprint."""
        return {}

    @classmethod
    def task_type(cls, task: str, split: str = "") -> str:
        """Return the kind of a task, by its id; empty where the id does not say it."""
        first, *rest = task.removeprefix(GENERATED).split("/")
        return first if rest and first != split else ""

    @classmethod
    def action_menu(cls, actions: Sequence[str]) -> tuple[str, ...]:
        """Return admissible actions as prompts list them: forms in place of mere suggestions."""
        return tuple(actions)

    @classmethod
    def shown_text(cls, goal: str, observation: str) -> str:
        """Return an observation as prompts in tags show it (PaW, Figures 7 to 9)."""
        return observation

    @classmethod
    def predicted_text(cls, step: Step) -> str:
        """Return the text of a step's observation as PaW predicts it; empty where there is none."""
        return step.observation

    @classmethod
    def takes(cls, option: str) -> bool:
        """Return whether the environment has an option of this name."""
        return option in inspect.signature(cls).parameters

    @classmethod
    def belief_expert(cls) -> dict[str, Any]:
        """Return the option that chooses an expert which knows only observations, if there is one."""
        return {"expert": "explore"} if cls.takes("expert") else {}

    @classmethod
    def listed_actions(cls) -> dict[str, Any]:
        """Return the option that lists admissible actions, where they are not listed anyway."""
        return {"admissible_actions": True} if cls.takes("admissible_actions") else {}

    @classmethod
    @contextmanager
    def engine_pool(cls, number: int) -> Iterator[None]:
        """Keep engines of closed environments for the next ones, while the block runs."""
        before = cls.keep_engines(min(number, _MOST_ENGINES))
        try:
            yield
        finally:
            cls.keep_engines(before)

    @classmethod
    def keep_engines(cls, number: int) -> int:
        """Keep up to `number` engines of closed environments of this class for the next ones.

        Returns the number before. Where engines cost nothing to start, as here, none are kept.
        """
        return 0

    def expert_action(self) -> str | None:
        """Return the next action of a correct plan from here, or None where none is known."""
        return None

    def check_engine(self) -> None:
        """Raise where a program, a package or a server is missing, before an episode is played."""

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the task is solved; None where facts cannot say."""
        return None

    def ended(self, state: State) -> bool:
        """Return whether the facts say that the episode is over, won or not."""
        return False

    def score_of(self, state: State) -> float | None:
        """Return the progress that follows from the facts, 0 to 1; None where facts cannot say."""
        return None

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the actions that the facts allow; None where facts cannot say."""
        return None

    def expert_from(self, state: State, admissible: tuple[str, ...] | None) -> str | None:
        """Return the next action of an expert that knows only a belief, or None."""
        return None

    def refused(self, observation: str) -> bool:
        """Return whether this observation is the environment's answer to an invalid action."""
        return False

    @classmethod
    def offline(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with which recorded episodes are replayed, asking nobody outside.

        Args:
            options: Those that the episodes were played with, as somebody wrote them down.
        """
        return {name: value for name, value in options.items() if name not in cls.local_options}

    def recall(self, steps: Sequence[Step]) -> frozenset[int]:
        """Answer from a record what only somebody outside knows, until this is called again.

        Args:
            steps: Of the recorded episode that is going to be replayed.

        Returns:
            The numbers of the steps whose answers are the record's.
        """
        return frozenset()

    # What every benchmark shares.

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds the choice of tasks, of this and all later episodes.
            options: ``{"task": id}`` picks the task; otherwise the environment's generator does.

        Returns:
            The first observation and an `Info`.

        Raises:
            DataNotFound, DataCorrupt: The task's files are missing or not what they should be.
            TaskNotFound: There is no such task.
            OptionError: `options` is no mapping, or has a key other than ``task``.
            EngineError: The engine broke while it loaded the task.
        """
        super().reset(seed=seed)
        task = self._choose(options)

        # A task that does not start leaves no episode running, not even the one before.
        self._running = False
        self._task = ""
        self._outside = _time_limit_around()
        try:
            self._split, self._goal, outcome = self._open(task)
        except CoMapError:
            raise
        except Exception as error:
            raise EngineError(
                f"expected task {task!r} to start, found {described(error)}; "
                "env.reset() plays another one"
            ) from error

        self._task = task
        self._steps = 0
        self._turns = [Turn(None, outcome.observation)]
        self._state = self.canonicalizer.initial(self._goal, outcome.observation)
        self._delta = diff(State(), self._state)
        self._outcome = self._with_suggestions(outcome, self._state)
        self._running = not outcome.terminated
        return outcome.observation, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Args:
            action: Any text. Text that means nothing here, or is longer than ``max_text_length``, is
                answered by the environment and reported as ``info["invalid_action"]``.

        Returns:
            Observation, reward, terminated (the episode's own end), truncated (the step limit or a
            fault of the engine) and an `Info`.

        Raises:
            InvalidAction: `action` is not a ``str``.
            NoEpisode: No episode is running: none was begun, or it was terminated or truncated.
        """
        if not isinstance(action, str):
            raise InvalidAction(
                f"an action is text (str), found {type(action).__name__}: {action!r:.80}; "
                "pass one of info['admissible_actions'], or any other text"
            )
        if not self._running or (self._outside is not None and self._is_cut_outside()):
            self._refuse_step()

        self._steps += 1
        too_long = len(action) > self._longest_action
        action = self.bounded(action)

        # A fault of an engine costs its episode alone: it is recorded on it, and never raised.
        try:
            outcome = self._act(action)
            if too_long:
                outcome = outcome._replace(invalid=True)
            state = self.canonicalizer.update(self._state, action, outcome.observation)
            outcome = self._with_suggestions(outcome, state)
        except Exception as error:
            return self._fault(error)

        self._delta = _NO_DELTA if state is self._state else diff(self._state, state)
        self._state = state
        self._outcome = outcome
        self._turns.append(Turn(action, outcome.observation))

        terminated = outcome.terminated
        truncated = not terminated and self._limit is not None and self._steps >= self._limit
        self._running = not (terminated or truncated)
        return outcome.observation, outcome.reward, terminated, truncated, self._info()

    def bounded(self, action: str) -> str:
        """Return an action as it is taken: nothing, which is no action anywhere, for one too long."""
        return action if len(action) <= self._longest_action else ""

    def state_facts(self) -> State:
        """Return the belief of this moment: the same as ``info["facts"]``."""
        return self._state

    @property
    def goal(self) -> str:
        """The task in words; empty before the first `reset`."""
        return self._goal

    @property
    def admissible_actions(self) -> tuple[str, ...] | None:
        """The actions that would do something now, or None where any text may."""
        return self._outcome.admissible

    def frame(self) -> dict[str, Any]:
        """Return the part of `Info` that is the same throughout an episode."""
        return {"task": self._task, "split": self._split, "goal": self._goal}

    def extras(self, observation: str = "") -> dict[str, Any]:
        """Return the keys beside `Info` that an observation alone determines, as a new dictionary.

        That is `info_extras` where there is nothing to report.
        """
        return {name: copy(default) for name, default in self.info_extras.items()}

    def history(self) -> tuple[Turn, ...]:
        """Return the turns of the episode so far, the start included."""
        return tuple(self._turns)

    def require_episode(self) -> None:
        """Raise `NoEpisode` before the first `reset`."""
        if not self._task:
            self._refuse_step()

    def snapshot(self) -> Snapshot:
        """Return this moment of the episode, for `restore`.

        Raises:
            NoEpisode: There was no `reset` yet.
        """
        self.require_episode()
        return Snapshot(
            self.env_id,
            tuple(sorted(self.settings().items())),
            self._task,
            self._steps,
            self._running,
            tuple(self._turns),
            self._state,
            self._delta,
            self._outcome,
            self._save(),
        )

    def restore(self, snapshot: Snapshot) -> tuple[str, dict[str, Any]]:
        """Go back to a moment that `snapshot` recorded, here or in another process.

        A `TimeLimit` around this environment counts on; `comap.envs.restore` sets it back as well.

        Returns:
            The observation and the `Info` of that moment.

        Raises:
            SnapshotError: The snapshot is of other settings, or the engine does not arrive at it.
        """
        if not isinstance(snapshot, Snapshot):
            raise SnapshotError(f"expected a Snapshot, found {type(snapshot).__name__}")
        settings = tuple(sorted(self.settings().items()))
        if snapshot.env_id != self.env_id or snapshot.settings != settings:
            taken_with: Any = snapshot.settings
            with suppress(TypeError, ValueError):  # of a snapshot that was changed
                taken_with = dict(taken_with)
            raise SnapshotError(
                f"expected a snapshot of {self.env_id} with {dict(settings)}, found one of "
                f"{snapshot.env_id} with {taken_with}; make the environment with "
                "the settings that the snapshot was taken with"
            )
        if problem := _wrong_type(snapshot) or _contradiction(snapshot, self._limit):
            raise SnapshotError(f"expected the snapshot that was taken, found another: {problem}")

        self._running = False
        try:
            if self._task != snapshot.task:
                self._split, self._goal, _ = self._open(snapshot.task)
                self._task = snapshot.task
            admissible = self._load(snapshot.engine)
            agrees = self._agrees(snapshot.outcome)
        except Exception as error:
            self._task = ""
            raise SnapshotError(
                f"cannot go back to task {snapshot.task!r}: {type(error).__name__}: {error}"
            ) from error

        same_actions = admissible == snapshot.outcome.admissible
        if not (same_actions and agrees):
            self._task = ""
            difference = "score or success" if same_actions else "admissible actions"
            raise SnapshotError(
                f"the engine did not arrive at step {snapshot.step} of task {snapshot.task!r}: its "
                f"{difference} differ; was the data changed since the snapshot was taken?"
            )

        self._steps = snapshot.step
        self._running = snapshot.running
        self._turns = list(snapshot.history)
        self._state = snapshot.facts
        self._delta = snapshot.delta
        self._outcome = snapshot.outcome
        return self._outcome.observation, self._info()

    def fingerprint(self) -> dict[str, str]:
        """Return what must agree for two results to be comparable."""
        from .. import __version__

        return {
            "env": self.env_id,
            "comap": __version__,
            "facts": self.canonicalizer.version,
            "split": self.tasks.split,
            "panel": self.tasks.sha256,
            **self.settings(),
        }

    def render(self) -> str | None:
        """Return the last action and observation as text, in render mode ``"ansi"``."""
        if self.render_mode is None:
            return None
        action, observation = self._turns[-1] if self._turns else Turn(None, "")
        return f"{'' if action is None else f'> {action}'}\n{observation}\n".lstrip("\n")

    def _choose(self, options: Mapping[str, Any] | None) -> str:
        """Return the task that `options` or else the generator picks."""
        if not isinstance(options, Mapping | None):
            raise OptionError(
                f"expected options={{'task': id}} or None, found {type(options).__name__}"
            )
        for name in options or ():
            if name != "task":
                raise OptionError(
                    f"expected options={{'task': id}}, found the option {name!r}; "
                    "env.unwrapped.tasks.ids lists the tasks"
                )

        if options and options.get("task") is not None:
            task = options["task"]
            if not isinstance(task, str):
                raise OptionError(f"options['task'] must be a task id (text), not {task!r}")
            return task

        ids = self.tasks.ids
        if not ids:
            raise DataNotFound(f"expected tasks in split {self.tasks.split!r}, found none")
        return ids[int(self.np_random.integers(len(ids)))]

    def _info(self) -> dict[str, Any]:
        """Return the `Info` of this moment."""
        outcome = self._outcome
        return {
            "task": self._task,
            "split": self._split,
            "goal": self._goal,
            "admissible_actions": outcome.admissible,
            "facts": self._state,
            "delta": self._delta,
            "score": outcome.score,
            "success": outcome.success,
            "invalid_action": outcome.invalid,
            "step": self._steps,
            "imagined": False,
            **self.extras(outcome.observation),
        }

    def _fault(self, error: Exception) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """End the episode after a fault of the engine, and say so in `info`."""
        self._running = False
        self._delta = _NO_DELTA
        self._outcome = self._outcome._replace(observation="", reward=0.0, invalid=False)
        logging.getLogger(FAULTS).debug("a step failed", exc_info=error)
        info = self._info() | {"error": described(error)}
        return "", 0.0, False, True, info

    def _is_cut_outside(self) -> bool:
        """Return whether a `TimeLimit` around this environment has truncated the episode."""
        time_limit: Any = None if self._outside is None else self._outside()
        if time_limit is None or time_limit._elapsed_steps is None:
            return False
        is_cut: bool = time_limit._elapsed_steps >= time_limit._max_episode_steps
        return is_cut

    def _refuse_step(self) -> NoReturn:
        episode = "one that has ended" if self._task else "none"
        raise NoEpisode(f"expected a running episode, found {episode}; call env.reset() first")


_SNAPSHOT_TYPES = {
    "task": str,
    "step": int,
    "running": bool,
    "history": tuple,
    "facts": State,
    "delta": Delta,
}


def _wrong_type(snapshot: Snapshot) -> str:
    """Return in words what in a snapshot is of another type; nothing where nothing is."""
    for name, kind in _SNAPSHOT_TYPES.items():
        if type(getattr(snapshot, name)) is not kind:
            return f"its {name} is no {kind.__name__}"

    outcome_types = (str, int | float, int | float, bool, bool, bool)
    if (
        isinstance(snapshot.outcome, Outcome)
        and set(map(type, snapshot.history)) == {Turn}
        and all(map(isinstance, snapshot.outcome, outcome_types))
    ):
        return ""
    return "its outcome or its history is of other types"


def _contradiction(snapshot: Snapshot, limit: int | None) -> str:
    """Return in words what in a snapshot contradicts itself; nothing where nothing does."""
    step = snapshot.step
    outcome = snapshot.outcome
    turns = snapshot.history
    if not snapshot.task:  # which is what an environment has that has no task
        return "it names no task"

    # A step that failed has no turn.
    failed = not snapshot.running and step == len(turns)
    if step != len(turns) - 1 and not failed:
        return f"its step is {step}, with {len(turns)} turns"
    if not failed and turns[-1].observation != outcome.observation:
        return "its last turn has another observation"
    if snapshot.running and (outcome.terminated or (limit is not None and step >= limit)):
        return "its episode has ended, and yet it runs"
    return ""


def _time_limit_around() -> weakref.ref[gymnasium.wrappers.TimeLimit] | None:
    """Return the `TimeLimit` whose `reset` calls that of the environment.

    ``gym.make`` puts it around the environment and never says so: who is calling is the only way to
    see it, and without it an episode could still be won after it was truncated.
    """
    frame = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, gymnasium.wrappers.TimeLimit):
            return weakref.ref(caller)
        if not isinstance(caller, gymnasium.Wrapper):
            break
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _unknown_option(env: type[TextEnv], name: str) -> OptionError:
    """Return the error for an option that a class has not, with the names of those it has."""
    options = set()
    for cls in env.__mro__:
        if issubclass(cls, TextEnv) and "__init__" in vars(cls):
            for parameter in inspect.signature(cls.__init__).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY:
                    options.add(parameter.name)

    env_id = getattr(env, "env_id", None)
    name_of_env = env_id if isinstance(env_id, str) else env.__name__
    return OptionError(
        f"{name_of_env} has no option {name!r}; {suggest(name, sorted(options), 20)}"
    )


def snapshot(env: gymnasium.Env[str, str]) -> Snapshot:
    """Return the moment that the (wrapped) environment is in.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0")
        >>> observation, info = env.reset(seed=1)
        >>> moment = snapshot(env)
        >>> after = env.step(info["admissible_actions"][0])
        >>> restore(env, moment)[0] == observation
        True
    """
    moment: Snapshot = env.get_wrapper_attr("snapshot")()
    return moment


def restore(env: gymnasium.Env[str, str], snapshot: Snapshot) -> tuple[str, dict[str, Any]]:
    """Bring a (wrapped) environment back to `snapshot`, its `TimeLimit` included."""
    observation, info = env.get_wrapper_attr("restore")(snapshot)

    # Gymnasium's own wrappers remember where an episode is; they know nothing of snapshots.
    layer: gymnasium.Env[Any, Any] = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            layer._elapsed_steps = info["step"]
            env.unwrapped._outside = weakref.ref(layer)  # type: ignore[attr-defined]
        elif isinstance(layer, gymnasium.wrappers.OrderEnforcing):
            layer._has_reset = True
        elif isinstance(layer, gymnasium.wrappers.PassiveEnvChecker):
            layer._previous_data = (observation, {})  # else its first step expects a reset
        layer = layer.env
    return observation, info
