"""Our environments for verl-agent's trainer: `make_envs`, and environment managers as it uses them.

verl-agent (github.com/langfengQ/verl-agent) steps all its environments as one batch of texts. Nothing of
it, nor of verl, is imported: a manager has the methods that its rollout loop calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..agents import PaWConfig, View
from ..agents.parsing import TaggedReply, read_tags
from ..agents.paw import tagged_prompt
from ..envs.briefing import env_name
from ..envs.registry import registered, text_env_of
from ..envs.vector import text_vector
from ..errors import OptionError, check_choice, check_number
from ..facts import State
from ..trajectory import Turn
from .sessions import make_env, text_env_class

_NAMES = {  # verl-agent's env.env_name: our environment, its splits to train and to evaluate on
    "alfworld/alfredtwenv": ("comap/ALFWorld-v0", "train", ""),
    "webshop": ("comap/WebShop-v0", "legacy-train-500", "legacy-test"),
}
_EVALUATED = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
_NOT_CUT = 2**40  # tokens of a prompt: verl-agent cuts prompts itself (data.truncation)
_LOWERED = ("alfworld", "webshop")  # where its projections put replies into small letters


@dataclass
class _Episode:
    """One episode: its turns, and what verl-agent is shown of it; once done, the same again."""

    history: list[Turn] = field(default_factory=list)
    text: str = ""
    anchor: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    done: bool = False


def read_reply(env_id: str, text: str) -> TaggedReply:
    """Return the action of a reply, and whether the reply is valid, as verl-agent's projections do.

    Deviations: blanks around an action are left out, a closing tag counts only behind its opening, and
    where verl-agent sends no text, the reply's last 30 characters or ``...`` are sent. In search QA tags
    are in small letters. As there, an action within the think block counts; `PaWAgent` does not read it.

    Example:
        >>> read_reply("comap/ALFWorld-v0", "<think>It is red.</think><action>Look</action>")
        TaggedReply(action='look', valid=True)
    """
    lowered = text.lower() if env_name(env_id) in _LOWERED else text
    return read_tags(env_id, lowered, thoughts=True)


class EnvironmentManager:
    """Groups of episodes, stepped as lists, with the methods of verl-agent's environment managers.

    The members of a group play one task. Prompts, and how replies are read, are those of `PaWAgent`:
    verl-agent's in form, in our words. A solved task is worth 10, in search QA 1, and any other step 0.
    An episode that has ended repeats its last observation and information until all have ended.

    Args:
        env_id: A registered id of an environment of comap, or ``module:id``, which imports the module.
        groups: How many tasks are played at once.
        group_size: How many episodes play each.
        seed: Of the choice of tasks.
        history_length: How many steps are in a prompt.
        asynchronous: One process for each environment; False steps them in turn in this one.
        **options: Of the environment.

    Raises:
        OptionError: A number is too small, an option has a value that it cannot have, or the id is none
            of comap's.
        gymnasium.error.Error: The id is not registered.

    Example:
        >>> envs = EnvironmentManager("comap/ALFWorld-v0", groups=1, group_size=2, source="generated")
        >>> observations, infos = envs.reset()
        >>> observations["anchor"][0] == observations["anchor"][1]
        True
        >>> replies = ["<think>I look.</think><action>look</action>", "look"]
        >>> observations, rewards, dones, infos = envs.step(replies)
        >>> [bool(info["is_action_valid"]) for info in infos], rewards.tolist(), dones.tolist()
        ([True, False], [0.0, 0.0], [False, False])
        >>> envs.close()
    """

    def __init__(
        self,
        env_id: str,
        groups: int,
        group_size: int = 1,
        *,
        seed: int = 0,
        history_length: int = 2,
        asynchronous: bool = False,
        **options: Any,
    ):
        check_number("groups", groups)
        check_number("group_size", group_size)
        env = make_env(env_id, options)
        self._ids: Sequence[str] = env.get_wrapper_attr("tasks").ids
        env.close()

        self.env_id = registered(env_id)
        self._groups = groups
        self._size = group_size
        self._kind = env_name(self.env_id)
        self._class = text_env_of(self.env_id)
        self._config = PaWConfig(
            history_turns=history_length, memory_turns=history_length, max_length=_NOT_CUT
        )
        self._rng = np.random.default_rng(seed)
        number = groups * group_size
        self._envs = text_vector(env_id, number, asynchronous=asynchronous, **options)
        self._episodes: list[_Episode] = []

    def reset(self, kwargs: Any = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Start an episode in each environment, of a task that is drawn for its group.

        Args:
            kwargs: What the rows of verl-agent's data set say of tasks (``env_kwargs``): nothing.

        Returns:
            The prompts (``text``), the observations alone (``anchor``) and no ``image``; and the infos.

        Raises:
            OptionError: The rows say something.
        """
        if kwargs is not None:
            raise OptionError(
                "expected rows without 'env_kwargs', since comap chooses the tasks, found some; make "
                "the data set with verl-agent's examples/data_preprocess/prepare.py"
            )

        # No task twice, unless there are fewer than groups; the members of a group stand side by side.
        are_too_few = self._groups > len(self._ids)
        indices = self._rng.choice(len(self._ids), self._groups, replace=are_too_few)
        tasks = [self._ids[int(index)] for index in indices.repeat(self._size)]

        texts, infos = self._envs.reset(options={"tasks": tasks})
        self._episodes = [_Episode() for _ in texts]
        for index, text in enumerate(texts):
            self._add(index, Turn(None, text), infos)
        return self._observations(), self._infos()

    def step(
        self, text_actions: Sequence[str]
    ) -> tuple[dict[str, Any], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Read the model's replies, take their actions, and return what `reset` does, rewards and ends.

        Raises:
            OptionError: There is not one reply for each environment.
        """
        if len(text_actions) != len(self._episodes):
            raise OptionError(
                f"expected {len(self._episodes)} replies, one for each environment, found "
                f"{len(text_actions)}; reset first, and let data.train_batch_size be the data's"
            )
        replies = [read_reply(self.env_id, text) for text in text_actions]
        actions = [reply.action for reply in replies]
        texts, _, terminated, truncated, infos = self._envs.step(actions)

        # verl-agent's rewards, not the environment's.
        win_reward = 1.0 if self._kind == "searchqa" else 10.0
        rewards = np.zeros(len(texts), np.float32)
        for index, (episode, reply) in enumerate(zip(self._episodes, replies, strict=True)):
            if not episode.done:  # else its environment has begun another one, which nobody sees
                self._add(index, Turn(reply.action, texts[index]), infos)
                episode.done = bool(terminated[index] or truncated[index])
                if episode.done and episode.info["won"]:
                    rewards[index] = win_reward
            # A new dictionary: verl-agent keeps the infos of all steps.
            episode.info = episode.info | {"is_action_valid": np.array(reply.valid)}

        dones = np.array([episode.done for episode in self._episodes])
        return self._observations(), rewards, dones, self._infos()

    def success_evaluator(
        self, *, total_infos: Sequence[Sequence[Mapping[str, Any]]], **_: Any
    ) -> dict[str, NDArray[np.float64]]:
        """Return the successes of episodes, all and by type of task, and WebShop's scores."""
        values_by_name: defaultdict[str, list[float]] = defaultdict(list)
        for infos in total_infos:
            last_info = infos[-1]
            won = float(last_info["won"])
            values_by_name["success_rate"].append(won)

            # The names are verl-agent's, under which its trackers draw curves.
            task_type = self._class.task_type(last_info["task"]).removesuffix("_simple")
            if task_type:
                values_by_name[f"{task_type}_success_rate"].append(won)
            if self._kind == "webshop":
                score = last_info["task_score"]
                values_by_name["webshop_task_score (not success_rate)"].append(score)
        return {name: np.array(values) for name, values in values_by_name.items()}

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _add(self, index: int, turn: Turn, infos: Mapping[str, Any]) -> None:
        """Add a turn to an episode, and write its next prompt and its information."""
        episode = self._episodes[index]
        episode.history.append(turn)
        task = infos["task"][index]
        goal = infos["goal"][index]
        admissible = infos["admissible_actions"][index]

        # The prompt has the whole history; the anchor, by which GiGPO groups steps, only the present.
        view = View(self.env_id, task, goal, tuple(episode.history), State(), admissible)
        episode.text = tagged_prompt(view, self._config)[0].content
        episode.anchor = self._class.shown_text(goal, turn.observation)

        episode.info = {
            "task": task,
            "won": bool(infos["success"][index]),
            "task_score": float(infos["score"][index]),
        }
        if "error" in infos and infos["error"][index]:
            episode.info["error"] = infos["error"][index]

    def _observations(self) -> dict[str, Any]:
        return {
            "text": [episode.text for episode in self._episodes],
            "image": None,
            "anchor": [episode.anchor for episode in self._episodes],
        }

    def _infos(self) -> list[dict[str, Any]]:
        return [episode.info for episode in self._episodes]


def make_envs(
    config: Mapping[str, Any],
    *,
    split: str | None = None,
    eval_split: str | None = None,
    asynchronous: bool = False,
    **options: Any,
) -> tuple[EnvironmentManager, EnvironmentManager]:
    """Return the environments to train and to validate on, as verl-agent's own ``make_envs`` does.

    Args:
        config: verl-agent's configuration. Of ``env`` it reads ``env_name`` (``alfworld/AlfredTWEnv``,
            ``Webshop``, or a registered id of comap), ``seed``, ``max_steps``, ``history_length``,
            ``rollout.n`` and ``alfworld.eval_dataset``; of ``data`` the two batch sizes.
        split: The split to train on; None for verl-agent's, or else the environment's default.
        eval_split: The split to validate on; None for verl-agent's, or else the first for tests.
        asynchronous: One process for each environment.
        **options: Of the environment.

    Raises:
        OptionError: See `EnvironmentManager`.
        gymnasium.error.Error: There is no such environment.
    """
    env_config = config["env"]
    data_config = config["data"]
    name = env_config["env_name"]
    env_id, train_split, test_split = _NAMES.get(name.lower(), (name, None, None))
    if test_split == "":
        dataset = env_config["alfworld"]["eval_dataset"]
        check_choice("env.alfworld.eval_dataset", dataset, tuple(_EVALUATED))
        test_split = _EVALUATED[dataset]
    test_split = test_split or next(iter(text_env_class(env_id).test_splits), None)

    def manager(split: str | None, groups: int, size: int, seed: int) -> EnvironmentManager:
        env_options = dict(options)
        if split is not None:
            env_options["split"] = split
        return EnvironmentManager(
            env_id,
            groups,
            size,
            seed=seed,
            asynchronous=asynchronous,
            history_length=env_config["history_length"],
            max_episode_steps=env_config["max_steps"],
            **env_options,
        )

    # As there: groups are for training alone, and validation has a seed of its own.
    group_size = max(env_config["rollout"]["n"], 1)
    seed = env_config["seed"]
    return (
        manager(split or train_split, data_config["train_batch_size"], group_size, seed),
        manager(eval_split or test_split, data_config["val_batch_size"], 1, seed + 1000),
    )
