"""Our environments as tasks of Inspect (``inspect eval comap/alfworld --model ...``).

A task starts an episode for each sample and scores how it ended; who plays is a solver. `tool_calls`, the
default, lets any model, or any agent of Inspect's, act through the tool ``act``. `comap_agent` is one of
comap's own agents, which asks Inspect's model. Inspect finds this module by its entry point.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import anyio
import gymnasium
from anyio import CapacityLimiter, from_thread, to_thread
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, ToolDef

from ..agents import create_agent, run_episodes
from ..envs.generated import is_generated
from ..envs.panel import evenly
from ..errors import LanguageModelError, OptionError
from ..facts import State
from ..lm import Completion
from ..lm import Generate as TextRequest
from ..lm.base import BaseLanguageModel, LMRequest, Message, Usage, valid_text
from ..lm.chat_replies import without_prefix
from ..lm.openai import CONTINUE
from ..lm.thoughts import first_stop
from ..metrics import delta_f1
from ..trajectory import Trajectory
from ..worldmodel.naming import NOT_TO_REPORT, in_words
from .inspect_logs import messages_of, predictions_of
from .sessions import listing_of, make_env, text_env_class, with_goal

_PROMPT = (
    "Solve the following task by calling the tool act, one call at a time. The task is over when the "
    "tool says so.\n\n"
)
_OVER = "\n\nThe task is over."
_GO_ON = "The task is not over. Take the next action by calling the tool act."
_MOST_REMINDERS = 3
_ACT = (
    "Take an action in the environment; the result is what is observed after it.\n\n{instructions}"
)
_ACTION = "The action, in one line."
_EXPECTED = "What you expect to observe after it, in the environment's words."

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class Episode:
    """One sample's environment, in a thread of its own: some environments must be used by one alone."""

    def __init__(self, make: Callable[[], gymnasium.Env[str, str]], shows_actions: bool) -> None:
        self.make = make
        self._shows_actions = shows_actions
        self._thread = ThreadPoolExecutor(1, "comap-inspect")
        self.env: Any = None
        self.info: dict[str, Any] = {}
        self.episode_return = 0.0
        self.invalid_actions = 0
        self.is_over = False
        self.foreseen: list[float] = []
        """The Delta-F1 of what the model, or its world model, expected of each step."""

    async def start(self, task_id: str, seed: int) -> str:
        """Begin the episode; return its first observation with the goal."""
        return await self.in_thread(partial(self._start, task_id, seed))

    async def act(self, action: str, expected: str | None = None) -> str:
        """Take an action; return what is observed."""
        return await self.in_thread(partial(self._act, action, expected))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return what a function does in the environment's thread, without blocking other samples."""
        waiting = self._thread.submit(work)
        return await to_thread.run_sync(waiting.result, limiter=CapacityLimiter(1))

    async def close(self) -> None:
        """End the environment and its thread."""
        if self.env is not None:
            await self.in_thread(self.env.close)
        self._thread.shutdown(wait=False)

    def _start(self, task_id: str, seed: int) -> str:
        self.env = self.make()
        observation, self.info = self.env.reset(seed=seed, options={"task": task_id})
        return self._text(with_goal(observation, self.info["goal"]))

    def _act(self, action: str, expected: str | None) -> str:
        # A model may call the tool twice in one message: what it has reached so far is its result.
        if self.is_over:
            return _OVER.strip()
        before = self.info["facts"]
        observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.episode_return += float(reward)
        self.invalid_actions += bool(self.info["invalid_action"])
        self.is_over = terminated or truncated
        if expected is not None and self.info["facts"].parsed:
            self.foreseen.append(self._agreement(before, action, expected))
        if "error" in self.info:
            return f"The environment failed.{_OVER}"
        return self._text(observation)

    def _agreement(self, before: State, action: str, expected: str) -> float:
        """Return the Delta-F1 of an expected observation."""
        predicted = self.env.get_wrapper_attr("canonicalizer").update(before, action, expected)
        return delta_f1(before, predicted, self.info["facts"])

    def _text(self, observation: str) -> str:
        """Return what the model reads: the observation, and the actions or that the task is over."""
        observation = valid_text(observation)  # a log cannot hold half a surrogate pair
        if self.is_over:
            return f"{observation}{_OVER}"
        inner = self.env.unwrapped
        actions = inner.action_menu(self.info["admissible_actions"] or ())
        if not (self._shows_actions and actions):
            return observation
        return f"{observation}\n\n{listing_of(actions)}"

    def outcome(self) -> dict[str, Any]:
        """Return how it stands, as JSON data."""
        facts = self.info["facts"]
        outcome = {
            "success": bool(self.info["success"]),
            "score": float(self.info["score"]),
            "return": self.episode_return,
            "steps": int(self.info["step"]),
            "invalid_actions": self.invalid_actions,
            "is_over": self.is_over,
            "facts": valid_text(facts.to_text()).splitlines(),
        }
        if self.foreseen:
            outcome["delta_f1"] = math.fsum(self.foreseen) / len(self.foreseen)
        if "error" in self.info:
            outcome["error"] = valid_text(str(self.info["error"]))
        return outcome


_EPISODES: dict[str, Episode] = {}
"""The episodes of the samples that run, by Inspect's id of the attempt; scorers run in another context."""


# -- tasks -----------------------------------------------------------------------------------------


@task  # type: ignore[untyped-decorator]
def environment(
    env: str,
    split: str | None = None,
    tasks: int | None = None,
    max_steps: int | None = None,
    show_actions: bool = True,
    predict: bool = False,
    source: str | None = None,
    data_dir: str | None = None,
) -> Task:
    """Evaluate on any environment of comap: ``inspect eval comap/environment -T env=comap/Web-v0``.

    Args:
        env: A registered id of an environment of comap, or ``module:id``, which imports the module.
        split: Its split; None for the environment's hardest test split.
        tasks: How many tasks, evenly spread over the split; None for all.
        max_steps: Most steps of an episode; None for the environment's own limit.
        show_actions: Whether observations end with the admissible actions, where there are such.
        predict: Whether each call of ``act`` also says what is expected; its Delta-F1 is then scored.
        source: ``generated`` or ``official``, for environments with both.
        data_dir: Folder of official data.

    Raises:
        OptionError: The environment is none of comap's, or has no such option.
    """
    env_class = text_env_class(env)
    hardest_split = next(reversed(env_class.test_splits), None)
    options: dict[str, Any] = {}
    if split or hardest_split:
        options["split"] = split or hardest_split
    for name, value in (("source", source), ("data_dir", data_dir)):
        if value is None:
            continue
        if not env_class.takes(name):
            raise OptionError(
                f"the environment {env!r} has no option {name!r}; leave -T {name} out"
            )
        options[name] = value
    if max_steps is not None:
        options["max_episode_steps"] = max_steps

    with closing(make_env(env, options)) as example:
        inner: Any = example.unwrapped
        task_set = inner.tasks
        instructions = inner.briefing.told()
        settings = dict(inner.settings())

    # What a task says is known when its episode begins: see `started`.
    task_ids: Sequence[str] = evenly(task_set.ids, tasks)
    description = {"env": env, "split": task_set.split, "settings": settings}
    samples = []
    for task_id in task_ids:
        metadata = {**description, "generated": is_generated(task_id)}
        samples.append(Sample(input=_PROMPT + task_id, id=task_id, metadata=metadata))

    generated_count = sum(map(is_generated, task_ids))
    scorers = [outcome(), foresight()] if predict else [outcome()]
    return Task(
        dataset=MemoryDataset(samples, name=f"{env}, {task_set.split}"),
        setup=started(env, options, instructions, show_actions, predict),
        solver=tool_calls(),
        scorer=scorers,
        cleanup=_closed,
        metadata={**description, "tasks": len(task_ids), "generated_tasks": generated_count},
    )


def _named(name: str, env_id: str) -> Callable[..., Task]:
    """Return the task of one environment, with the options of `environment`."""

    def evaluation(**options: Any) -> Task:
        return environment(env_id, **options)

    # Inspect reads a task's options from its signature.
    signature = inspect.signature(environment)
    options = [option for option in signature.parameters.values() if option.name != "env"]
    evaluation.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    named_task: Callable[..., Task] = task(name=name)(evaluation)
    return named_task


alfworld = _named("alfworld", "comap/ALFWorld-v0")
scienceworld = _named("scienceworld", "comap/ScienceWorld-v0")
webshop = _named("webshop", "comap/WebShop-v0")
stabletoolbench = _named("stabletoolbench", "comap/StableToolBench-v0")
searchqa = _named("searchqa", "comap/SearchQA-v0")
web = _named("web", "comap/Web-v0")


# -- solvers ---------------------------------------------------------------------------------------


@solver  # type: ignore[untyped-decorator]
def started(
    env: str, options: dict[str, Any], instructions: str, show_actions: bool, predict: bool
) -> Solver:
    """Start the sample's episode, tell the model of it, and give it the tool ``act``."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = Episode(partial(make_env, env, options), show_actions)
        _EPISODES[state.uuid] = episode
        state.metadata["seed"] = state.epoch - 1
        text = await episode.start(str(state.sample_id), state.epoch - 1)
        state.messages = [ChatMessageUser(content=_PROMPT + text)]
        state.tools = [act_tool(episode, instructions, predict)]
        state.metadata["goal"] = valid_text(episode.info["goal"])
        return state

    return solve


def act_tool(episode: Episode, instructions: str, predict: bool) -> Tool:
    """Return the tool by which a model acts in an episode; `instructions` say what actions look like."""

    async def act(action: str) -> str:
        return await episode.act(action)

    async def act_and_predict(action: str, expected: str) -> str:
        return await episode.act(action, expected)

    parameters = {"action": _ACTION}
    if predict:
        parameters["expected"] = _EXPECTED
    return ToolDef(
        act_and_predict if predict else act,
        name="act",
        description=_ACT.format(instructions=instructions),
        parameters=parameters,
        parallel=False,
    ).as_tool()


@solver  # type: ignore[untyped-decorator]
def tool_calls() -> Solver:
    """Let the model call ``act`` until the episode is over; remind it a few times if it stops."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = _EPISODES[state.uuid]
        reminders = 0
        while not (episode.is_over or state.completed):
            state = await generate(state, tool_calls="single")
            if episode.is_over or state.output.message.tool_calls:
                continue
            reminders += 1
            if reminders > _MOST_REMINDERS:
                break
            state.messages.append(ChatMessageUser(content=_GO_ON))
        return state

    return solve


@solver  # type: ignore[untyped-decorator]
def comap_agent(agent: str = "react", world_model: str | None = None, **options: Any) -> Solver:
    """Play with one of comap's agents: ``--solver comap/comap_agent -S agent=reflexion``.

    It makes its own prompts. Of several trials at a task the last one counts. What a world model predicts
    of its steps is scored by Delta-F1. Agents that need more of a model than text (probabilities,
    choices) are refused with what to set instead.

    Args:
        agent: A name of comap's agents, or ``module:Class``, which imports the module.
        world_model: Answers what the agent imagines: an id of `comap.worldmodel`. None for the oracle,
            which tries actions in the real environment; the log warns of that.
        **options: Of the agent.

    Raises:
        OptionError: There is no such agent, or it has no such option.
    """
    player = create_agent(agent, **options)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = _EPISODES[state.uuid]
        lm = InspectLanguageModel()
        task_id = str(state.sample_id)
        seed = int(state.metadata["seed"])

        def play() -> list[Trajectory]:
            # An environment of this thread's own: only here can the agent ask Inspect's model.
            return run_episodes(
                episode.make,
                player,
                [task_id],
                lm=lm,
                world_model=world_model,
                seed=seed,
                keep="prompts",
                concurrency=1,
            )

        # A thread beside those that Inspect counts: it waits for Inspect, which may need them.
        trials = await to_thread.run_sync(play, limiter=CapacityLimiter(1))
        last_trial = trials[-1]
        state.messages = [message for trial in trials for message in messages_of(trial)]
        state.output = ModelOutput.from_content(lm.name, _last_reply(last_trial))
        _take_over(episode, last_trial)
        state.metadata |= {"agent": last_trial.agent, "trials": len(trials)}
        if last_trial.world_model is not None:
            state.metadata["world_model"] = in_words(last_trial.world_model)
            if NOT_TO_REPORT in state.metadata["world_model"]:
                _LOG.warning("world model: %s", state.metadata["world_model"])
        return state

    return solve


def _take_over(episode: Episode, trajectory: Trajectory) -> None:
    """Let an episode stand as a trajectory ended."""
    last = trajectory.steps[-1] if trajectory.steps else None
    episode.episode_return = math.fsum(step.reward for step in trajectory.steps)
    episode.invalid_actions = sum(step.invalid_action for step in trajectory.steps)
    episode.is_over = last is not None and (last.terminated or last.truncated)
    episode.info = {
        **episode.info,
        "success": trajectory.success,
        "score": trajectory.score,
        "step": len(trajectory.steps),
        "facts": last.facts if last is not None else trajectory.facts,
    }
    if trajectory.error is not None:
        episode.info["error"] = trajectory.error
    episode.foreseen = predictions_of(trajectory)


def _last_reply(trajectory: Trajectory) -> str:
    return trajectory.steps[-1].action if trajectory.steps else ""


class InspectLanguageModel(BaseLanguageModel):
    """Inspect's model as a `LanguageModel`; it is asked from the threads in which agents play."""

    capabilities = frozenset({"generate", "prefix"})

    def __init__(self) -> None:
        self._model = get_model()
        self.name = str(self._model)
        self.usage = Usage()

    def count_tokens(self, text: str) -> int:
        """Return a careful estimate of a text's tokens: its bytes divided by three, rounded up."""
        return math.ceil(len(text.encode("utf-8", "replace")) / 3)

    def config(self) -> dict[str, Any]:
        """Return JSON data: which model answers."""
        return {"id": "inspect", "model": self.name}

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        return from_thread.run(self._answers, requests)

    async def _answers(self, requests: Sequence[LMRequest]) -> list[Any]:
        """Ask for all at once; Inspect bounds how many connections there are."""
        replies: list[Any] = [None] * len(requests)

        async def ask(index: int, request: LMRequest) -> None:
            replies[index] = await self._reply(request)

        async with anyio.create_task_group() as group:
            for index, request in enumerate(requests):
                group.start_soon(ask, index, request)
        return replies

    async def _reply(self, request: LMRequest) -> Completion | LanguageModelError:
        if not isinstance(request, TextRequest) or request.choices is not None:
            return LanguageModelError(
                f"expected a request for text, found {type(request).__name__}, which Inspect's models "
                "cannot answer; choose another solver, or -S options of the agent that need text alone"
            )
        sampling = request.sampling
        stops = [stop for stop in sampling.stop if stop not in request.prefix]
        config = GenerateConfig(
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            stop_seqs=stops or None,
        )
        output = await self._model.generate(chat_of(request), config=config)
        if output.error is not None:
            return LanguageModelError(f"{self.name} did not answer: {output.error:.300}")

        text = without_prefix(output.completion, request.prefix)
        end = first_stop(text, sampling.stop)
        finish = "length" if output.stop_reason == "max_tokens" else "stop"
        usage = output.usage
        reply = Completion(
            text if end is None else text[:end],
            finish=finish if end is None else "stop",
            prompt_tokens=usage.input_tokens if usage else 0,
            completion_tokens=usage.output_tokens if usage else 0,
        )
        self.usage.requests += 1
        self.usage.prompt_tokens += reply.prompt_tokens
        self.usage.completion_tokens += reply.completion_tokens
        return reply


def chat_of(request: TextRequest) -> list[ChatMessage]:
    """Return a request's conversation as Inspect has it; what a reply begins with is asked for."""
    messages = list(request.messages)
    if request.prefix:
        messages += [Message("assistant", request.prefix), Message("user", CONTINUE)]
    kinds = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
    }
    return [kinds[message.role](content=message.content) for message in messages]


# -- scores ----------------------------------------------------------------------------------------


@scorer(metrics={"success": [mean(), stderr()], "score": [mean(), stderr()]})  # type: ignore[untyped-decorator]
def outcome() -> Scorer:
    """Whether the task was solved, and how far it came; facts and counts are in the metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        ended = outcome_of(state)
        return Score(
            value={"success": float(ended["success"]), "score": ended["score"]},
            explanation=ended.get("error"),
            metadata=ended,
        )

    return score


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
def foresight() -> Scorer:
    """The mean Delta-F1 of what was expected of each step; 0 where no action was taken."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=outcome_of(state).get("delta_f1", 0.0))

    return score


def outcome_of(state: TaskState) -> dict[str, Any]:
    """Return how a sample's episode ended, and keep it in its metadata; a log is scored anew from there."""
    episode = _EPISODES.get(state.uuid)
    if episode is not None:
        state.metadata["outcome"] = episode.outcome()
    ended: dict[str, Any] = state.metadata["outcome"]
    return ended


async def _closed(state: TaskState) -> None:
    """End the sample's environment."""
    episode = _EPISODES.pop(state.uuid, None)
    if episode is not None:
        await episode.close()
