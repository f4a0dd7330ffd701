"""Text environments of others with state facts: ``adapt(env, canonicalizer)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from ..envs import Canonicalizer, Outcome, Panel, TextEnv
from ..errors import OptionError, SnapshotError
from ..facts import State

__all__ = ["AdaptedEnv", "Words", "adapt"]

_SPLIT = "seeds"
_METHODS = ("initial", "update", "action")


@dataclass(frozen=True, slots=True)
class Words:
    """What comap is told of an environment that is none of its own; only what is known need be told.

    Attributes:
        goal: The task in words, or a function that reads it in the first observation.
        observe: Makes a text of an observation; None where observations are texts.
        act: Makes an action of a text; None where actions are texts. A text that means nothing raises
            ``ValueError`` or gives None, and is answered by `refusal`.
        admissible: Tells the actions that would do something, from the observation's text and the
            environment's ``info``.
        legal: Tells them from facts: for imagined episodes.
        success: Tells from reward, whether the episode terminated, and ``info`` whether the task is
            solved; by default a reward above 0 at the end.
        score: Tells the progress, 0 to 1, from facts; by default 1 for success.
        reached: Tells from facts whether the task is solved: for imagined episodes.
        over: Tells from facts whether the episode is over, solved or not.
        refused: Tells of an observation's text whether it refuses the action.
        expert: Tells from facts the next action of a correct plan.
        refusal: The answer to a text that is no action.
    """

    goal: str | Callable[[str], str] = ""
    observe: Callable[[Any], str] | None = None
    act: Callable[[str], Any] | None = None
    admissible: Callable[[str, Mapping[str, Any]], Iterable[str] | None] | None = None
    legal: Callable[[State], Iterable[str] | None] | None = None
    success: Callable[[float, bool, Mapping[str, Any]], bool] | None = None
    score: Callable[[State], float] | None = None
    reached: Callable[[State], bool | None] | None = None
    over: Callable[[State], bool] | None = None
    refused: Callable[[str], bool] | None = None
    expert: Callable[[State], str | None] | None = None
    refusal: str = "Nothing happens."


class AdaptedEnv(TextEnv):
    """A Gymnasium environment of others as one of comap: see `adapt`.

    A task is a seed, and its id ``seeds/N``. Snapshots are the actions so far, which `restore` takes
    again after ``reset(seed=N)``; it raises `SnapshotError` where other texts come of them.

    Args:
        env: The environment.
        canonicalizer: Reads facts from its texts.
        words: What else is known of it.
        name: Its id in records; None for that of ``env.spec``.
        seeds: The seeds of its tasks.
        **common: See `TextEnv`.

    Attributes:
        adapted: The environment itself.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        canonicalizer: Canonicalizer,
        words: Words | None = None,
        *,
        name: str | None = None,
        seeds: Iterable[int] = range(100),
        **common: Any,
    ):
        super().__init__(**common)
        missing = [one for one in _METHODS if not callable(getattr(canonicalizer, one, None))]
        if not callable(getattr(env, "step", None)) or not callable(getattr(env, "reset", None)):
            raise OptionError(f"expected a gymnasium.Env, found {type(env).__name__}")
        if missing:
            raise OptionError(
                f"expected a canonicalizer with {', '.join(_METHODS)}, found "
                f"{type(canonicalizer).__name__} without {', '.join(missing)}"
            )
        spec = getattr(env, "spec", None)
        self.env_id = name or (spec.id if spec is not None else type(env).__name__)  # type: ignore[misc]
        self.adapted, self.canonicalizer = env, canonicalizer
        self._words = words or Words()
        self._seeds = {f"{_SPLIT}/{seed}": int(seed) for seed in seeds}
        self._panel = Panel.of(self._seeds, _SPLIT, [_SPLIT])
        self._own_limit = self._limit
        self._taken: list[tuple[str, str]] = []
        self._told: Mapping[str, Any] = {}

    @property
    def tasks(self) -> Panel:
        """The tasks: one for each seed."""
        return self._panel

    def expert_action(self) -> str | None:
        """Return the next action of the expert, where there is one."""
        return self.expert_from(self._state, None) if self._running else None

    def expert_from(self, state: State, admissible: tuple[str, ...] | None) -> str | None:
        """Return the expert's next action in a belief, where there is an expert."""
        return None if self._words.expert is None else self._words.expert(state)

    def goal_reached(self, state: State) -> bool | None:
        """Return whether the facts say that the task is solved, where it is known."""
        return None if self._words.reached is None else self._words.reached(state)

    def ended(self, state: State) -> bool:
        """Return whether the facts say that the episode is over, where it is known."""
        return self._words.over is not None and bool(self._words.over(state))

    def score_of(self, state: State) -> float | None:
        """Return the progress that the facts tell, where it is known."""
        return None if self._words.score is None else float(self._words.score(state))

    def admissible_of(self, state: State) -> tuple[str, ...] | None:
        """Return the actions that the facts allow, where it is known."""
        legal = None if self._words.legal is None else self._words.legal(state)
        return None if legal is None else tuple(legal)

    def refused(self, observation: str) -> bool:
        """Return whether an observation refuses the action."""
        if observation == self._words.refusal:
            return True
        return self._words.refused is not None and bool(self._words.refused(observation))

    def close(self) -> None:
        """Close the environment."""
        self.adapted.close()

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        if task not in self._seeds:
            raise self._panel.missing(task)
        observation, self._told = self.adapted.reset(seed=self._seeds[task])
        text = self._text(observation)
        self._taken, self._limit = [("", text)], self._own_limit
        goal = self._words.goal if isinstance(self._words.goal, str) else self._words.goal(text)
        return _SPLIT, goal, Outcome(text, admissible=self._admissible(text))

    def _act(self, action: str) -> Outcome:
        meant, known = self._meant(action)
        if not known:
            text = self._words.refusal
            return Outcome(
                text, 0.0, self._outcome.score, invalid=True, admissible=self._outcome.admissible
            )
        observation, reward, terminated, truncated, self._told = self.adapted.step(meant)
        text, worth = self._text(observation), float(reward)
        self._taken.append((action, text))
        if truncated:  # by the environment itself: this step is the last
            self._limit = self._steps
        success = self._solved(worth, bool(terminated))
        admissible = () if terminated or truncated else self._admissible(text)
        return Outcome(
            text, worth, float(success), success, bool(terminated), self.refused(text), admissible
        )

    def _with_suggestions(self, outcome: Outcome, state: State) -> Outcome:
        """Return an outcome with what is known from facts: the progress, and actions."""
        score = self.score_of(state)
        if score is not None and not outcome.success:
            outcome = outcome._replace(score=min(max(score, 0.0), 1.0))
        if self._words.admissible is None and not outcome.terminated:
            outcome = outcome._replace(admissible=self.admissible_of(state))
        return outcome

    def _save(self) -> Any:
        return (tuple(self._taken), self._limit, self._outcome.admissible)

    def _load(self, saved: Any) -> tuple[str, ...] | None:
        taken, limit, admissible = saved
        _, _, first = self._open(self._task)
        texts = [first.observation]
        for action, _ in taken[1:]:
            observation, *_, self._told = self.adapted.step(self._meant(action)[0])
            texts.append(self._text(observation))
        if texts != [text for _, text in taken]:
            raise SnapshotError(
                "expected the same texts after the same seed and actions, found others: the "
                "environment is not deterministic, so it cannot go back to a moment"
            )
        self._taken, self._limit = list(taken), limit
        listed: tuple[str, ...] | None = admissible
        return listed

    def _text(self, observation: Any) -> str:
        text = observation if self._words.observe is None else self._words.observe(observation)
        if not isinstance(text, str):
            raise OptionError(
                f"expected observations to be texts, found {type(text).__name__}; give a function "
                "that makes a text of one: Words(observe=...)"
            )
        return str(text)

    def _meant(self, action: str) -> tuple[Any, bool]:
        """Return the environment's own action for a text, and whether there is one."""
        if self._words.act is None:
            return action, True
        try:
            meant = self._words.act(action)
        except ValueError:
            return None, False
        return meant, meant is not None

    def _solved(self, reward: float, terminated: bool) -> bool:
        if self._words.success is not None:
            return bool(self._words.success(reward, terminated, self._told))
        return terminated and reward > 0

    def _admissible(self, text: str) -> tuple[str, ...] | None:
        if self._words.admissible is None:
            return None
        listed = self._words.admissible(text, self._told)
        return None if listed is None else tuple(listed)


def adapt(
    env: gymnasium.Env[Any, Any],
    canonicalizer: Canonicalizer,
    words: Words | None = None,
    *,
    name: str | None = None,
    seeds: Sequence[int] | range = range(100),
    **common: Any,
) -> AdaptedEnv:
    """Return an environment of others with state facts, for everything that comap has.

    ``info`` has the keys of `comap.envs.Info`; `comap.worldmodel.ImaginedEnv`, agents,
    `comap.agents.run_episode` and `comap.metrics` take it as they take comap's own.

    Args:
        env: Any ``gymnasium.Env`` whose observations and actions are texts, or are made of texts and
            into texts by functions of `words`.
        canonicalizer: Reads facts from its texts: see `comap.envs.Canonicalizer`.
        words: What else is known of it; None for nothing.
        name: Its id in records; None for that of ``env.spec``.
        seeds: Of its tasks: ``reset(options={"task": "seeds/3"})`` resets it with seed 3.
        **common: See `comap.envs.TextEnv`.

    Raises:
        OptionError: `env` is no environment, or `canonicalizer` no canonicalizer.

    Example:
        >>> import gymnasium as gym
        >>> class Place:
        ...     version = "place-1"
        ...     def initial(self, goal, observation):
        ...         return self.update(State(), "", observation)
        ...     def update(self, state, action, observation):
        ...         return State(frozenset({("at", "agent", observation)}))
        ...     def action(self, text):
        ...         return text.strip()
        >>> words = Words(observe=lambda cell: f"cell {cell}",
        ...               act=lambda text: ["left", "down", "right", "up"].index(text))
        >>> env = adapt(gym.make("FrozenLake-v1", is_slippery=False), Place(), words)
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("down")
        >>> observation, info["facts"].to_text(), env.step("fly")[4]["invalid_action"]
        ('cell 4', 'at(agent, cell 4)', True)
    """
    return AdaptedEnv(env, canonicalizer, words, name=name, seeds=seeds, **common)
