"""Running episodes: many at once, their questions answered together.

An agent is a generator of requests (`comap.agents.base`). The runner plays up to `live` episodes, each
in an environment of its own, in rounds (`comap.agents.rounds`): it gathers what all of them wait for,
has it answered in batches, and hands the answers out. What comes of an episode does not depend on what
else is running.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import gymnasium

from ..errors import OptionError
from ..lm import LanguageModel
from ..trajectory import Trajectory
from ..worldmodel import WorldModel
from .answers import Answers
from .base import Agent
from .calls import Keep, checked_keep
from .episode import play_episode, play_task
from .needs import check_needs
from .overlap import play_overlapped
from .rounds import play_rounds
from .stage import Stage
from .theatre import Theatre
from .thinking import Player, Playing

__all__ = [
    "check_live",
    "player_for",
    "run_episode",
    "run_episodes",
    "settings_of",
    "stream_episodes",
]


def run_episode(
    env: gymnasium.Env[str, str],
    agent: Agent,
    *,
    task: str | None = None,
    seed: int | None = None,
    world_model: WorldModel | str | Mapping[str, Any] | None = None,
    lm: LanguageModel | None = None,
    keep: Keep = "replies",
) -> Trajectory:
    """Play one episode to its end and return it.

    A fault of the agent, the engine or a model ends the episode and is recorded in the trajectory; a
    task that cannot start raises, as ``env.reset`` does.

    Args:
        env: A real or imagined environment of comap.
        agent: Who acts.
        task: The task's id; None lets the environment draw one.
        seed: Seed for the draw.
        world_model: Answers the agent's `Imagine` requests; None for the imagined environment's own
            model or else the oracle.
        lm: Answers the agent's other requests.
        keep: What the trajectory keeps of them; see `Keep`.

    Raises:
        OptionError: `env` is not one of comap's, or the agent needs a language model that can do
            what this one cannot: see `check_needs`.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> trajectory = run_episode(gym.make("comap/ALFWorld-v0"), ExpertAgent(), seed=0)
        >>> trajectory.success, trajectory.error
        (True, None)
    """
    player, stage, answers = player_for(agent, lm, keep), Stage(env, world_model), Answers(lm)
    start = stage.reset(task, seed)
    playing = play_episode(player, stage, start, seed, {})
    replies: Any = None
    while True:
        try:
            replies = answers(playing.send(replies))
        except StopIteration as stop:
            trajectory: Trajectory = stop.value
            return trajectory


def run_episodes(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    tasks: Sequence[str],
    *,
    on_done: Callable[[list[Trajectory]], object] | None = None,
    **options: Any,
) -> list[Trajectory]:
    """Play tasks, many at once, and return their trajectories in the order of the tasks.

    Args:
        make_env: Makes an environment; called once for each episode that runs at the same time.
        agent: Who acts.
        tasks: The tasks' ids.
        on_done: Told the trials of each task as it ends.
        **options: See `stream_episodes`.

    Returns:
        The trajectories; where a `Retrying` agent tried again, all trials of a task in their order.

    Raises:
        OptionError: See `stream_episodes`.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import RandomAgent
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> tasks = make_env().unwrapped.tasks.ids[:3]
        >>> [len(t.steps) for t in run_episodes(make_env, RandomAgent(), tasks, live=2)]
        [50, 50, 50]
    """
    found: dict[int, list[Trajectory]] = {}
    for number, trials in stream_episodes(make_env, agent, tasks, **options):
        found[number] = trials
        if on_done is not None:
            on_done(trials)
    return [trajectory for number in sorted(found) for trajectory in found[number]]


def stream_episodes(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    tasks: Sequence[str],
    *,
    lm: LanguageModel | None = None,
    world_model: WorldModel | str | Mapping[str, Any] | None = None,
    live: int = 32,
    seed: int | Sequence[int] | None = None,
    keep: Keep = "replies",
    overlap: bool = False,
) -> Generator[tuple[int, list[Trajectory]], None, None]:
    """Play tasks, many at once, and yield each task's number and trials as it ends.

    Whatever goes wrong in an episode (its start included) is recorded in its trajectory and ends only
    that episode. Environments are used for one task after another, and closed at the end.

    Args:
        make_env: Makes an environment.
        agent: Who acts.
        tasks: The tasks' ids.
        lm: Answers the agent's language-model requests.
        world_model: Answers `Imagine`; see `run_episode`. Of a `Grounded` model given by its id or
            config every environment gets one of its own; any other is asked in batches.
        live: How many episodes run at the same time, at most; results do not depend on it.
        seed: Passed to every ``env.reset``; a sequence has one for each task.
        keep: What trajectories keep of language-model calls.
        overlap: Whether a world model predicts for some episodes while the policy drafts for others
            (`comap.agents.overlap`): for two models that do not wait for one another, such as two
            servers. Episodes are the same, and end in another order.

    Raises:
        OptionError: An option cannot be, or the agent needs a language model that can do what this
            one cannot: see `check_needs`.
    """
    check_live(live)
    if isinstance(tasks, str):
        raise OptionError(f"tasks must be a list of task ids, not the text {tasks!r:.80}")
    theatre = Theatre(make_env, world_model)
    items = list(zip(tasks, _seeds(seed, len(tasks)), strict=True))
    player = player_for(agent, lm, keep)

    def play(stage: Stage, item: tuple[str, int | None]) -> Playing[list[Trajectory]]:
        return play_task(player, stage, *item)

    rounds = play_overlapped if overlap else play_rounds
    return rounds(theatre, Answers(lm), items, live, play)


def check_live(live: object) -> None:
    """Do nothing, if so many episodes can run at the same time.

    Raises:
        OptionError: It is no whole number of at least 1.

    Example:
        >>> check_live(32)
    """
    if type(live) is not int or live < 1:
        raise OptionError(f"live must be a whole number of at least 1, not {live!r}")


def settings_of(agent: Agent, lm: LanguageModel | None = None) -> dict[str, Any]:
    """Return how an agent is set up, as JSON data: its config, and the name of its model.

    Example:
        >>> from comap.agents import ExpertAgent
        >>> settings_of(ExpertAgent())
        {}
    """
    describe = getattr(getattr(agent, "config", None), "describe", None)
    settings = dict(describe()) if callable(describe) else {}
    return settings if lm is None else settings | {"model": lm.name}


def player_for(agent: Agent, lm: LanguageModel | None, keep: Keep = "replies") -> Player:
    """Return who plays: the agent with its language model, once both fit each other.

    Args:
        agent: Who acts.
        lm: Answers its requests.
        keep: What is kept of them.

    Raises:
        OptionError: `lm` is no language model, or cannot do what the agent needs: see `check_needs`.

    Example:
        >>> from comap.agents import ExpertAgent
        >>> player_for(ExpertAgent(), None).agent.name
        'expert'
    """
    if lm is not None and (isinstance(lm, type) or not isinstance(lm, LanguageModel)):
        raise OptionError(f"expected a language model (comap.lm.LanguageModel), found {lm!r:.80}")
    check_needs(agent, lm)
    return Player(agent, lm, checked_keep(keep), settings_of(agent, lm))


def _seeds(seed: int | Sequence[int] | None, number: int) -> list[int | None]:
    if seed is None or isinstance(seed, int):
        return [seed] * number
    if len(seed) != number:
        raise OptionError(f"expected one seed for each of {number} tasks, found {len(seed)}")
    return list(seed)
