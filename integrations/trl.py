"""Our environments for TRL's GRPOTrainer (its ``environment_factory``), and Delta-F1 as its reward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, get_args

import gymnasium

from ..envs import TextEnv
from ..envs.panel import evenly
from ..envs.registry import registered
from ..errors import NoEpisode, OptionError, check_choice
from ..facts import State
from ..lm import Completion
from ..metrics import delta_f1
from ..trajectory import Trajectory
from ..worldmodel import ImaginedEnv, WorldModel, transitions_of
from ..worldmodel.language import LanguageWorldModel, prediction_of
from .sessions import Worth, listing_of, make_env, text_env_class, with_goal

_PROMPT = (
    "Solve the following task by calling the tools, one call at a time. The task is over when a tool "
    "says so.\n\n"
)
_OVER = "\n\nThe task is over."
_ACT = """Take an action in the environment.

{instructions}

Args:
    action: The action, in one line.

Returns:
    What is observed after it.
"""


class _Environment:
    """What the environments for TRL share; public methods of the classes below are tools.

    TRL makes a tool's JSON schema from its docstring, so Args and Returns of these are needed.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], reward: Worth = "return", show_actions: bool = True
    ):
        self.env = env
        self.info: dict[str, Any] = {}
        self.total = 0.0
        self.over = True
        self._reward = reward
        self._show_actions = show_actions

    def reset(self, **row: Any) -> str:
        """Start the episode that a row of the data set names; return its first observation and goal."""
        task = row.get("task")
        seed = row.get("seed")
        if task is None and seed is None:
            raise OptionError(
                "expected the data set to have a column 'task' (or 'seed'), found neither: GRPO "
                "compares rollouts of one task; make its rows with comap.integrations.trl.task_rows"
            )
        options = None if task is None else {"task": task}
        observation, self.info = self.env.reset(seed=seed, options=options)
        self.total = 0.0
        self.over = False
        return self._text(with_goal(observation, self.info["goal"]))

    def get_reward(self) -> float:
        """Return what the rollout is worth; 0 before the first `reset`."""
        if not self.info:
            return 0.0
        return self.total if self._reward == "return" else float(self.info[self._reward])

    def _step(self, action: str) -> str:
        # TRL hands the error's text to the model as the tool's answer, and the rollout goes on.
        if self.over:
            raise NoEpisode("the task is over; expected an answer without calls of tools")
        observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.total += float(reward)
        self.over = terminated or truncated
        if "error" in self.info:
            return f"The environment failed.{_OVER}"
        return self._text(observation)

    def _text(self, observation: str) -> str:
        """Return what the model reads: the observation, and the actions or that the task is over."""
        if self.over:
            return f"{observation}{_OVER}"
        inner: Any = self.env.unwrapped
        actions = inner.action_menu(self.info["admissible_actions"] or ())
        if not (self._show_actions and actions):
            return observation
        return f"{observation}\n\n{listing_of(actions)}"


class ActEnvironment(_Environment):
    """An environment with one tool, `act`, whose description says what its actions look like."""

    def act(self, action: str) -> str:
        """Take an action in the environment.

        Args:
            action: The action, in words.

        Returns:
            What is observed after it.
        """
        return self._step(action)

    @classmethod
    def told(cls, instructions: str) -> dict[str, Any]:
        """Return the attributes of a subclass whose tool says what an environment's actions look like."""

        # TRL reads the schema from the annotations, and one of `self` would be in its way.
        def act(self, action: str) -> str:  # type: ignore[no-untyped-def]
            return str(self._step(action))

        act.__doc__ = _ACT.format(instructions=instructions)
        return {"act": act}


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
        write = written_search if kind == "search" else written_answer
        form = self.env.get_wrapper_attr("settings")()["actions"]
        return self._step(write(text, form))


def environment_factory(
    env_id: str,
    *,
    reward: Worth = "return",
    show_actions: bool = True,
    world_model: WorldModel | None = None,
    **options: Any,
) -> Callable[[], Any]:
    """Return what GRPOTrainer's ``environment_factory`` takes, for one of our environments.

    Its tools are `ActEnvironment.act`, for StableToolBench `CallEnvironment.call`, for SearchQA
    `SearchEnvironment.search` and `SearchEnvironment.answer`. Rewards are logged under the name of the
    environment. Rows of the data set come from `task_rows`.

    Args:
        env_id: A registered id of an environment of comap, or ``module:id``, which imports the module.
        reward: What a rollout is worth.
        show_actions: Whether observations end with the admissible actions, where there are such; of more
            than 100 the first, with the number of the rest.
        world_model: Makes the environments imagined: rollouts begin as real ones do, and it says what
            follows. It answers all rollouts, one query at a time.
        **options: Of the environment.

    Raises:
        OptionError: There is no such `reward`, or the id is none of comap's.
        gymnasium.error.Error: The id is not registered.

    Example:
        >>> import comap
        >>> make = environment_factory("comap/ALFWorld-v0", reward="success", show_actions=False)
        >>> environment = make()
        >>> text = environment.reset(**task_rows("comap/ALFWorld-v0", 1)[0])
        >>> environment.act("inventory"), environment.get_reward()
        ('You are not carrying anything.', 0.0)
    """
    check_choice("reward", reward, get_args(Worth))
    cls = text_env_class(env_id)
    base = _base_of(cls)

    # TRL logs rewards under the name of the class, and reads tools from its methods: each environment
    # has a class of its own.
    name = registered(env_id).rpartition("/")[2].partition("-v")[0]
    attributes: dict[str, Any] = {"__doc__": base.__doc__, "__module__": __name__}
    if base is ActEnvironment:
        with closing(make_env(env_id, options)) as example:  # an adapted one has its own words
            inner: Any = example.unwrapped
            attributes |= ActEnvironment.told(inner.briefing.told())
    kind: Any = type(name, (base,), attributes)

    def make() -> Any:
        env = make_env(env_id, options)
        if world_model is not None:
            env = ImaginedEnv(env, world_model)
        return kind(env, reward, show_actions)

    return make


def _base_of(cls: type[TextEnv]) -> type[_Environment]:
    """Return the class whose tools an environment's actions are."""
    if hasattr(cls, "functions"):
        return CallEnvironment
    return SearchEnvironment if cls.reply_form.kind == "search" else ActEnvironment


def task_rows(
    env_id: str, number: int | None = None, prompt: str = _PROMPT, **options: Any
) -> list[dict[str, Any]]:
    """Return rows of a data set for GRPOTrainer: ``prompt``, to which `reset` adds, and ``task``."""
    with closing(make_env(env_id, options)) as env:
        ids: Sequence[str] = env.get_wrapper_attr("tasks").ids
    messages = [{"role": "user", "content": prompt}]
    return [{"prompt": messages, "task": task} for task in evenly(ids, number)]


def prediction_rows(
    trajectories: Iterable[Trajectory], world_model: LanguageWorldModel
) -> Iterator[dict[str, Any]]:
    """Yield a row for each real transition, so that GRPOTrainer trains a world model by Delta-F1.

    Args:
        trajectories: Episodes, such as those of `comap.trajectory.read_trajectories`.
        world_model: Writes the prompts; its language model is only asked for lengths.

    Returns:
        Rows with ``prompt``, and what `delta_f1_reward` needs: ``action``, ``before`` (the belief, as
        facts in text) and ``observation``.
    """
    for trajectory in trajectories:
        for query, observation in transitions_of(trajectory):
            messages = world_model.prompt(query)
            prompt = [{"role": message.role, "content": message.content} for message in messages]
            yield {
                "prompt": prompt,
                "action": query.action,
                "before": query.state.to_text(),
                "observation": observation,
            }


def delta_f1_reward(env_id: str, **options: Any) -> Callable[..., list[float]]:
    """Return a reward function for GRPOTrainer: a predicted observation's Delta-F1, from 0 to 1.

    Completions are read with the environment's own canonicalizer. Where nothing changes, a prediction
    of no change earns 1.

    Args:
        env_id: The environment of the rows' transitions (`prediction_rows`).
        **options: Of the environment.

    Example:
        >>> import comap
        >>> reward = delta_f1_reward("comap/ALFWorld-v0")
        >>> row = {"action": ["open safe 1"], "before": ["closed(safe 1)"]}
        >>> row["observation"] = ["You open the safe 1. The safe 1 is open. In it, you see nothing."]
        >>> said = [[{"role": "assistant", "content": row["observation"][0]}]]
        >>> reward(said, **row), reward([[{"role": "assistant", "content": "Nothing happens."}]], **row)
        ([1.0], [0.0])
    """
    with closing(make_env(env_id, options)) as env:
        update = env.get_wrapper_attr("canonicalizer").update

    def delta_f1_of(
        completions: Sequence[Any],
        action: Sequence[str],
        before: Sequence[str],
        observation: Sequence[str],
        **_: Any,
    ) -> list[float]:
        rewards = []
        for completion, row_action, row_before, row_observation in zip(
            completions, action, before, observation, strict=True
        ):
            # Chats come as messages, of which the last is the reply.
            reply = completion
            if not isinstance(completion, str):
                reply = str(completion[-1]["content"])
            prediction = prediction_of(Completion(reply), env_id)

            # Both observations change the same belief: only what they change is compared.
            belief = State.from_text(row_before)
            predicted = update(belief, row_action, prediction.observation)
            real = update(belief, row_action, row_observation)
            rewards.append(delta_f1(belief, predicted, real))
        return rewards

    delta_f1_of.__name__ = "delta_f1"  # under which TRL logs it
    return delta_f1_of
