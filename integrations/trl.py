"""Our environments for TRL's GRPOTrainer: what its ``environment_factory`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, get_args

import gymnasium

from ..envs.panel import evenly
from ..envs.registry import registered
from ..errors import NoEpisode, OptionError, check_choice
from .sessions import Worth, make_env, text_env_class, with_goal

_PROMPT = (
    "Solve the following task by calling the tools, one call at a time. The task is over when a tool "
    "says so.\n\n"
)
_OVER = "\n\nThe task is over."


class _Environment:
    """What the environments for TRL share; public methods of the classes below are tools.

    TRL makes a tool's JSON schema from its docstring, so Args and Returns of these are needed.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], reward: Worth = "return", show_actions: bool = False
    ):
        self.env, self.info = env, dict[str, Any]()
        self.total, self.over = 0.0, True
        self._reward, self._show = reward, show_actions

    def reset(self, **row: Any) -> str:
        """Start the episode that a row of the data set names; return its first observation and goal."""
        task, seed = row.get("task"), row.get("seed")
        if task is None and seed is None:
            raise OptionError(
                "expected the data set to have a column 'task' (or 'seed'), found neither: GRPO "
                "compares rollouts of one task; make its rows with comap.integrations.trl.task_rows"
            )
        options = None if task is None else {"task": task}
        observation, self.info = self.env.reset(seed=seed, options=options)
        self.total, self.over = 0.0, False
        return self._shown(with_goal(observation, self.info["goal"]))

    def get_reward(self) -> float:
        """Return what the rollout is worth; 0 before the first `reset`."""
        if not self.info:
            return 0.0
        return self.total if self._reward == "return" else float(self.info[self._reward])

    def _step(self, action: str) -> str:
        if self.over:
            raise NoEpisode("the task is over; expected an answer without calls of tools")
        observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.total += float(reward)
        self.over = terminated or truncated
        if "error" in self.info:
            return f"The environment failed.{_OVER}"
        return self._shown(observation)

    def _shown(self, observation: str) -> str:
        actions = self.info["admissible_actions"]
        listed = f"\n\nAvailable actions: {'; '.join(actions)}" if self._show and actions else ""
        return observation + (_OVER if self.over else listed)


class ActEnvironment(_Environment):
    """An environment with one tool, `act`."""

    def act(self, action: str) -> str:
        """Take an action in the environment.

        Args:
            action: The action, in words.

        Returns:
            What is observed after it.
        """
        return self._step(action)


class CallEnvironment(_Environment):
    """An environment whose actions are calls of the task's functions (StableToolBench)."""

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call one of the functions that the task tells of, Finish among them.

        Args:
            name: The function's name.
            arguments: Its arguments by their names.

        Returns:
            The error and the response of the function, as JSON.
        """
        from ..envs.stabletoolbench.calls import write_call

        return self._step(write_call(name, arguments))


class SearchEnvironment(_Environment):
    """An environment of questions that are answered by searching (SearchQA)."""

    def search(self, query: str) -> str:
        """Search for passages.

        Args:
            query: What to search for.

        Returns:
            The passages that were found.
        """
        return self._say("search", query)

    def answer(self, answer: str) -> str:
        """Answer the question, which ends the task.

        Args:
            answer: The answer, as short as can be.

        Returns:
            That the task is over.
        """
        return self._say("answer", answer)

    def _say(self, kind: str, text: str) -> str:
        from ..envs.searchqa.protocol import written_answer, written_search

        if not isinstance(text, str):
            raise OptionError(f"expected a text, found {type(text).__name__}")
        form = self.env.get_wrapper_attr("settings")()["actions"]
        return self._step((written_search if kind == "search" else written_answer)(text, form))


def environment_factory(
    env_id: str, *, reward: Worth = "return", show_actions: bool = False, **options: Any
) -> Callable[[], Any]:
    """Return what GRPOTrainer's ``environment_factory`` takes, for one of our environments.

    Its tools are `ActEnvironment.act`, for StableToolBench `CallEnvironment.call`, for SearchQA
    `SearchEnvironment.search` and `SearchEnvironment.answer`. Rewards are logged under the name of the
    environment. Rows of the data set come from `task_rows`.

    Args:
        env_id: A registered id of an environment of comap, or ``module:id``, which imports the module.
        reward: What a rollout is worth.
        show_actions: Whether observations end with the admissible actions, where there are such.
        **options: Of the environment.

    Raises:
        OptionError: There is no such `reward`, or the id is none of comap's.
        gymnasium.error.Error: The id is not registered.

    Example:
        >>> import comap
        >>> make = environment_factory("comap/ALFWorld-v0", reward="success")
        >>> environment = make()
        >>> text = environment.reset(**task_rows("comap/ALFWorld-v0", 1)[0])
        >>> environment.act("inventory"), environment.get_reward()
        ('You are not carrying anything.', 0.0)
    """
    check_choice("reward", reward, get_args(Worth))
    cls = text_env_class(env_id)
    base = _BASES.get(getattr(cls, "env_id", ""), ActEnvironment)
    name = registered(env_id).rpartition("/")[2].partition("-v")[0]
    kind: Any = type(name, (base,), {"__doc__": base.__doc__, "__module__": __name__})

    def make() -> Any:
        return kind(make_env(env_id, options), reward, show_actions)

    return make


_BASES: Mapping[str, type[_Environment]] = {
    "comap/StableToolBench-v0": CallEnvironment,
    "comap/SearchQA-v0": SearchEnvironment,
}


def task_rows(
    env_id: str, number: int | None = None, prompt: str = _PROMPT, **options: Any
) -> list[dict[str, Any]]:
    """Return rows of a data set for GRPOTrainer: ``prompt``, to which `reset` adds, and ``task``."""
    with closing(make_env(env_id, options)) as env:
        ids: Sequence[str] = env.get_wrapper_attr("tasks").ids
    said = [{"role": "user", "content": prompt}]
    return [{"prompt": said, "task": task} for task in evenly(ids, number)]
