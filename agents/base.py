"""What an agent is: written once, as a generator of requests, for real and imagined environments."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsFloat, TypeAlias, runtime_checkable

from ..envs.briefing import Briefing
from ..facts import Delta, State
from ..lm import Encode, Generate, NextWord, Score
from ..trajectory import Trajectory, Turn
from ..worldmodel import Imagined


def estimate_tokens(text: str) -> int:
    """Return a careful guess of a text's number of tokens: one for every three bytes, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // 3)


@dataclass(frozen=True, slots=True)
class View:
    """What an agent sees when it decides.

    Attributes:
        env_id: The environment.
        task: The task's id; for seeding, it says nothing about the solution.
        goal: The task in words.
        history: The turns so far; the last one's observation is the present.
        facts: The belief.
        admissible_actions: The actions that would do something now, or None.
        step: Number of actions taken.
        expert_action: Asks the environment's expert for the next action; only experts use it.
        count_tokens: Counts the tokens of a text as the agent's language model does.
        memory: What the agent wrote down in this task: the same dictionary at every step of every
            trial of the task, empty at the first, and of no other task.
        trial: Which attempt at the task this is, from 1.
        seed: The episode's seed, 0 where it has none: with other seeds, episodes of one task sample
            other replies.
        briefing: What a language model is told of this environment; None for what its class brings.
    """

    env_id: str
    task: str
    goal: str
    history: tuple[Turn, ...]
    facts: State
    admissible_actions: tuple[str, ...] | None = None
    step: int = 0
    expert_action: Callable[[], str | None] = lambda: None
    count_tokens: Callable[[str], int] = estimate_tokens
    memory: dict[str, Any] = field(default_factory=dict)
    trial: int = 1
    seed: int = 0
    briefing: Briefing | None = None


@dataclass(frozen=True, slots=True)
class Imagine:
    """A request: what would follow this action? The reply is an `Imagined`.

    Attributes:
        action: The action in question.
        after: What was imagined before it, from the present on: the action is then taken in
            imagination after those.
        observation: What follows, where that is known and no world model is to be asked.
    """

    action: str
    after: tuple[Imagined, ...] = ()
    observation: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A request: what does the real environment answer to this action? The reply is a `ProbeResult`.

    The episode goes on from before it (CoMap, section 3.2): for training only. If the agent
    then decides on the same action, the environment is not asked again.

    Attributes:
        action: The action in question.
    """

    action: str


def _as_no_facts(text: str) -> State:
    """Return the belief of a text that no canonicalizer reads."""
    return State(parsed=False)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the real environment answers to an action.

    Attributes:
        observation: The text that follows.
        facts: The belief after it.
        delta: What it changes in the belief.
        reward: The reward of this step.
        terminated: Whether the episode ends there by its own rules.
        truncated: Whether it is cut there.
        success: Whether the task is solved then.
        invalid_action: Whether the environment refuses the action.
        reads: Returns the belief that another text would lead to, if it were the answer to the same
            action: the environment's own canonicalizer.
        refuses: Returns whether another text is the environment's answer to an invalid action.
    """

    observation: str
    facts: State
    delta: Delta
    reward: float
    terminated: bool
    truncated: bool
    success: bool
    invalid_action: bool
    reads: Callable[[str], State] = field(default=_as_no_facts, repr=False, compare=False)
    refuses: Callable[[str], bool] = field(default=lambda text: False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        answer: tuple[str, SupportsFloat, bool, bool, Mapping[str, Any]],
        reads: Callable[[str], State] = _as_no_facts,
        refuses: Callable[[str], bool] = lambda text: False,
    ) -> ProbeResult:
        """Return what ``env.step(action)`` answered, as an answer to `Probe`."""
        observation, reward, terminated, truncated, info = answer
        return cls(
            observation=observation,
            facts=info["facts"],
            delta=info["delta"],
            reward=float(reward),  # numpy's, of some environments
            terminated=bool(terminated),
            truncated=bool(truncated),
            success=info["success"],
            invalid_action=info["invalid_action"],
            reads=reads,
            refuses=refuses,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What an agent decided.

    Attributes:
        action: The action to take, or None to give the episode up.
        imagined: What a world model said of this action, if it was asked; kept in the trajectory.
        notes: What else the trajectory shall keep of this decision: JSON data, by the agent's own
            names, the same for the same decision (no times, no counts of the process).
    """

    action: str | None
    imagined: Imagined | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


Single: TypeAlias = "Generate | Score | NextWord | Encode | Imagine | Probe"

Request: TypeAlias = "Single | list[Any]"
"""What an agent may yield: a request to its language model, to the world model, to the environment, or
a list of such, which are answered together."""

Reply: TypeAlias = Any
"""What comes back: `Completion`, `Scores`, `WordProbabilities`, `Encoding`, `Imagined` or `ProbeResult`, as
asked; a list of replies for a list. A request that failed raises its error at the ``yield``."""


class Agent(Protocol):
    """Decides on actions; `name` is its name in results.

    An agent may have an attribute or property `asks_world_model`, which says whether it yields
    `Imagine`: then runs name the world model before they begin (see `asks_world_model`).
    """

    name: str

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Yield requests, receive their replies, and return the decision."""
        ...


def asks_world_model(agent: object) -> bool | None:
    """Return whether an agent asks a world model; None where it does not say so."""
    asks = getattr(agent, "asks_world_model", None)
    return (
        asks if isinstance(asks, bool) else None
    )  # an own agent may lack it, or have a method so named


@runtime_checkable
class Retrying(Protocol):
    """An agent that may try a task again and learn from the trial before."""

    def review(
        self, trajectory: Trajectory, memory: dict[str, Any]
    ) -> Generator[Request, Reply, bool]:
        """Look back at a finished trial; return whether to try the task again."""
        ...
