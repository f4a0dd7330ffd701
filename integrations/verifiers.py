"""Our environments for `verifiers`: `load_environment`, as its packages of environments have it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Literal, TypeAlias, get_args

import gymnasium

from ..agents.parsing import parse_action, text_between
from ..envs.panel import evenly
from ..errors import check_choice, needs_extra
from .sessions import Session, Worth, make_env, text_env_class

Reading: TypeAlias = Literal["tags", "whole"]

_WHOLE = ("comap/StableToolBench-v0", "comap/SearchQA-v0")  # they read calls and tags themselves
_TAGS_PROMPT = (
    "You act in an environment of texts. Think first if you like; then write one action between "
    "<action> and </action>. You are shown what follows, until the task is over."
)
_WHOLE_PROMPTS = {
    "comap/StableToolBench-v0": "You solve a task by calling functions, one at a time: write "
    '{"name": FUNCTION, "arguments": {...}}. You are shown what each answers. Finish ends the task.',
    "comap/SearchQA-v0": "You answer a question. To look something up, write <search>words</search>; "
    "you are shown what was found. To answer, write <answer>words</answer>.",
}
_LONGEST = 2000
_STATE = "comap_session"


def read_action(reply: str, reading: Reading = "tags") -> str:
    """Return the action of a reply; a reply without one is the action itself, and means nothing."""
    if reading == "whole":
        return reply.strip()
    found = text_between(reply, "action", last=True) or parse_action(reply)
    return found or reply.strip()[:_LONGEST]


def load_environment(
    env_id: str = "comap/ALFWorld-v0",
    *,
    split: str | None = None,
    eval_split: str | None = None,
    num_train_examples: int | None = None,
    num_eval_examples: int | None = None,
    reward: Worth = "return",
    reading: Reading | None = None,
    system_prompt: str | None = None,
    show_actions: bool = True,
    max_turns: int = -1,
    **options: Any,
) -> Any:
    """Return one of our environments as a ``MultiTurnEnv`` of `verifiers`.

    Each rollout has an environment of its own, at the task of its row; the model's replies are actions,
    and observations are messages of the user. Metrics are ``score``, ``success``, ``steps`` and
    ``invalid_actions``; the environment's last report is in ``state["comap"]``. A task that cannot be
    started, or an engine that broke, is the rollout's ``error``.

    Args:
        env_id: A registered id of an environment of comap, or ``module:id``, which imports the module.
        split: The split to train on; None for the environment's own default.
        eval_split: The split to evaluate on; None for the first of its splits for tests.
        num_train_examples: How many tasks, evenly from the split; None for all.
        num_eval_examples: The same for `eval_split`.
        reward: What a rollout is worth.
        reading: Where in a reply the action is; None for what suits the environment.
        system_prompt: The system prompt; None for a short one that says how actions are written.
        show_actions: Whether observations end with the admissible actions, where there are such.
        max_turns: Replies in a rollout, or -1: the environment has its own limit.
        **options: Of the environment.

    Raises:
        MissingExtra: The package ``verifiers`` is not installed.
        OptionError: An option has a value that it cannot have, or the id is none of comap's.
        gymnasium.error.Error: The id is not registered.
    """
    cls = text_env_class(env_id)
    kind = getattr(cls, "env_id", "")
    reading = reading or ("whole" if kind in _WHOLE else "tags")
    check_choice("reward", reward, get_args(Worth))
    check_choice("reading", reading, get_args(Reading))
    with needs_extra("verifiers", "an environment for verifiers"):
        import verifiers as vf
        from datasets import Dataset
    if eval_split is None:
        eval_split = cls.test_splits[0] if cls.test_splits else split
    system = system_prompt or _WHOLE_PROMPTS.get(kind, _TAGS_PROMPT)

    def make(split: str | None) -> gymnasium.Env[str, str]:
        return make_env(env_id, options | ({} if split is None else {"split": split}))

    def rows(split: str | None, number: int | None) -> Any:
        with closing(make(split)) as env:
            panel = env.get_wrapper_attr("tasks")
        prompt = [{"role": "system", "content": system}, {"role": "user", "content": ""}]
        listed = [{"task_id": task, "split": panel.split} for task in evenly(panel.ids, number)]
        return Dataset.from_list(
            [{"prompt": prompt, "answer": "", "info": info} for info in listed]
        )

    make(split).close()  # a wrong split or option is refused now, not at the first rollout
    made: Any = _environment_class(vf)(
        make,
        reading,
        show_actions,
        dataset=lambda: rows(split, num_train_examples),
        eval_dataset=lambda: rows(eval_split, num_eval_examples),
        rubric=_rubric(vf, reward),
        max_turns=max_turns,
        env_id=env_id,
    )
    return made


def _rubric(vf: Any, reward: Worth) -> Any:

    def recorded(name: str) -> Callable[..., Any]:
        async def metric(state: Any) -> float:
            return float((state.get("comap") or {}).get(name, 0.0))

        metric.__name__ = name
        return metric

    rubric = vf.Rubric(funcs=[recorded(reward)], weights=[1.0])
    for name in ("score", "success", "steps", "invalid_actions"):
        if name != reward:
            rubric.add_metric(recorded(name))
    return rubric


def _environment_class(vf: Any) -> Any:
    """Return the class of environments, a subclass of ``MultiTurnEnv``."""

    class TextMultiTurnEnv(vf.MultiTurnEnv):  # type: ignore[misc]
        """Lets a language model act in an environment of comap."""

        def __init__(
            self,
            make: Callable[[str | None], gymnasium.Env[str, str]],
            reading: Reading,
            show_actions: bool,
            **common: Any,
        ):
            super().__init__(**common)
            self._make, self._reading, self._show = make, reading, show_actions

        async def setup_state(self, state: Any) -> Any:
            info = state["info"]
            message = await self._guarded(lambda: self._start(state, info))
            state["comap"] = {name: message[name] for name in ("task", "split")}
            state["comap"] |= {"return": 0.0, "invalid_actions": 0}
            _add(state["comap"], message)
            system = state["prompt"][0]
            state["prompt"] = [system, vf.UserMessage(content=self._shown(message))]
            return state

        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            action = read_action(_text_of(messages[-1]), self._reading)
            message = await self._guarded(lambda: state[_STATE].step(action))
            _add(state["comap"], message)
            if "error" in message:
                raise vf.InfraError(f"the environment failed: {message['error']}")
            answer = [vf.UserMessage(content=self._shown(message))]
            if message["done"]:
                state["final_env_response"] = answer
            return answer

        @vf.cleanup  # type: ignore[untyped-decorator]
        async def close_session(self, state: Any) -> None:
            session = state.pop(_STATE, None)
            if session is not None:
                await asyncio.to_thread(session.close)

        def _start(self, state: Any, info: Mapping[str, Any]) -> dict[str, Any]:
            session = Session("", self._make(info["split"]), seconds=None)
            state[_STATE] = session
            return session.reset(info["task_id"])

        async def _guarded(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            """Do work in a thread; what fails is the rollout's error and ends nothing else."""
            try:
                return await asyncio.to_thread(work)
            except Exception as error:
                raise vf.InfraError(f"{type(error).__name__}: {error}") from error

        def _shown(self, message: Mapping[str, Any]) -> str:
            actions = message["available_actions"]
            text = str(message["observation"])
            if not (self._show and actions) or message["done"]:
                return text
            return f"{text}\n\nAvailable actions: {'; '.join(actions)}"

    return TextMultiTurnEnv


def _add(noted: dict[str, Any], message: Mapping[str, Any]) -> None:
    noted["return"] += message["reward"]
    noted["invalid_actions"] += int(message["invalid_action"])
    noted |= {"score": message["score"], "success": message["success"], "steps": message["step"]}
    noted |= {"facts": message["facts"], "error": message.get("error")}


def _text_of(message: Any) -> str:
    content = message["content"] if isinstance(message, Mapping) else message.content
    if isinstance(content, str) or content is None:
        return content or ""
    parts = (part if isinstance(part, Mapping) else vars(part) for part in content)
    return "".join(str(part.get("text") or "") for part in parts)
