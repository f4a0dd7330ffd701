"""comap's environments for verifiers: a package of its own, which it finds as the taskset ``comap-envs``.

``vf-eval comap-envs --env.taskset.env comap/WebShop-v0`` evaluates a model. Each rollout has an environment
of its own: the model's replies are actions, and observations are messages of the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

import comap  # noqa: F401  (registers the environments)
from comap.agents.parsing import parse_action, text_between
from comap.integrations.sessions import (
    Session,
    Worth,
    listing_of,
    make_env,
    text_env_class,
)
from comap.lm.thoughts import without_thoughts

__all__ = ["ComapEnv", "ComapEnvConfig", "ComapTaskset", "ComapTasksetConfig"]

_IN_TAGS = (
    "Think first if you like; then write one action between <action> and </action>. You are shown what "
    "follows, until the task is over."
)
_ALONE = "Write the action alone. You are shown what follows, until the task is over."
_LONGEST = 2000


class ComapTasksetConfig(vf.TasksetConfig):  # type: ignore[misc, unused-ignore]
    """Which tasks there are, under ``--env.taskset``."""

    env: str = "comap/ALFWorld-v0"
    """A registered id of an environment of comap, or ``module:id``, which imports the module."""
    split: str | None = None
    """The split; None for the environment's own default."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of the environment."""

    @property
    def made_with(self) -> dict[str, Any]:
        if self.split is None:
            return self.options
        return self.options | {"split": self.split}


class ComapTask(vf.Task[vf.TaskData]):  # type: ignore[misc, unused-ignore]
    """A task; its name is its id in comap."""


class ComapTaskset(vf.Taskset[ComapTask, ComapTasksetConfig]):  # type: ignore[misc, unused-ignore]
    """The tasks of a split, in their order: ``-n`` and ``-s`` choose among them.

    Raises:
        OptionError: The id is none of comap's, or an option has a value that it cannot have.
        gymnasium.error.Error: The id is not registered.
    """

    def load(self) -> Iterator[ComapTask]:
        """Yield the tasks."""
        form = _ALONE if _reads_replies(self.config) else _IN_TAGS
        with closing(make_env(self.config.env, self.config.made_with)) as env:
            inner: Any = env.unwrapped
            task_ids = inner.tasks.ids
            prompt = f"{inner.briefing.told()}\n\n{form}"

        for task_id in task_ids:
            task_data = vf.TaskData(id=task_id, name=task_id, prompt=None, system_prompt=prompt)
            yield ComapTask(task_data, self.config.task)


class ComapEnvConfig(vf.EnvConfig):  # type: ignore[misc, unused-ignore]
    """How they are played, under ``--env``."""

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    """The model: a plain chat, without tools of its own."""
    reward: Worth = "return"
    """What a rollout is worth: ``return``, ``score`` or ``success``."""
    show_actions: bool = True
    """Whether observations end with the admissible actions, where there are such."""


class ComapEnv(vf.Env[ComapEnvConfig]):  # type: ignore[misc, unused-ignore]
    """Lets the model act in an environment of comap.

    Metrics are ``score``, ``success``, ``steps`` and ``invalid_actions``; ``trace.info["comap"]`` has the
    task, the split and the state facts at the end. A task that cannot be started, or an engine that
    broke, is an error of the episode.
    """

    async def run(self, task: Any, agents: Any) -> None:
        """Play one episode."""
        config = self.taskset.config
        env = await asyncio.to_thread(make_env, config.env, config.made_with)
        session = Session(config.env, env, seconds=None)
        episode_return = 0.0
        invalid_actions = 0

        # In threads: an environment's step would hold up all rollouts, which share one event loop.
        try:
            message = await asyncio.to_thread(session.reset, task.data.name)
            async with agents.agent.interaction(task) as interaction:
                while not message["done"]:
                    segment = await interaction.turn(self._shown(message))
                    if segment.terminated:
                        break

                    admissible = message["available_actions"]
                    action = _action(segment.last_reply, admissible, whole=_reads_replies(config))
                    message = await asyncio.to_thread(session.step, action)
                    episode_return += message["reward"]
                    invalid_actions += message["invalid_action"]
                    if "error" in message:
                        raise RuntimeError(f"the environment failed: {message['error']}")
        finally:
            await asyncio.to_thread(session.close)

        score = float(message["score"])
        success = float(message["success"])
        rewards = {"return": episode_return, "score": score, "success": success}
        trace = interaction.trace
        trace.record_reward(self.config.reward, rewards[self.config.reward])
        trace.record_metrics(
            {
                "score": score,
                "success": success,
                "steps": float(message["step"]),
                "invalid_actions": float(invalid_actions),
            }
        )
        trace.info["comap"] = {name: message[name] for name in ("task", "split", "facts")}

    def _shown(self, message: Mapping[str, Any]) -> str:
        cls = text_env_class(self.taskset.config.env)
        actions = cls.action_menu(message["available_actions"] or ())
        if not (self.config.show_actions and actions):
            return str(message["observation"])
        return f"{message['observation']}\n\n{listing_of(actions)}"


def _reads_replies(config: ComapTasksetConfig) -> bool:
    """Return whether the environment reads calls or tags in whole replies itself."""
    cls = text_env_class(config.env)
    return hasattr(cls, "functions") or cls.reply_form.kind == "search"


def _action(reply: str, admissible: Sequence[str] | None, *, whole: bool) -> str:
    """Return the action of a reply; a reply without one is the action itself, and means nothing."""
    visible_reply = without_thoughts(reply).strip()
    if whole:
        return visible_reply

    # Models that forget the tags often write "Action: ...", which is read as well.
    tagged = text_between(visible_reply, "action", last=True)
    labeled_action = f"Action: {tagged}" if tagged else visible_reply
    return parse_action(labeled_action, admissible) or visible_reply[:_LONGEST]
