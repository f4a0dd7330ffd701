"""Running episodes: what the agent decides, what the environment answers, many episodes at once."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, get_args

import gymnasium

from ..envs import TextEnv
from ..errors import (
    FAULTS,
    InvalidAction,
    OptionError,
    check_choice,
    check_number,
    described,
    method_place,
)
from ..facts import State
from ..lm import Encode, Generate, LanguageModel, NextWord, Score
from ..redaction import without_secrets
from ..trajectory import ENV_INFO, Call, Predicted, Step, Trajectory, Turn
from ..worldmodel import Imagined, Prediction, WorldModel, imagined_of
from ..worldmodel.naming import name_of
from .base import Agent, Decision, Imagine, Probe, Retrying, View, estimate_tokens
from .config import check_capabilities, fitted_to
from .requests import (
    IMAGINE,
    EnvPool,
    EnvSlot,
    ImagineReply,
    ImagineRequest,
    Keep,
    OnWork,
    ProbeRequest,
    RequestBatcher,
    SlotRequest,
    Ticket,
    call_of,
    checked_reply,
)

Item = TypeVar("Item")
Result = TypeVar("Result")

EpisodeGenerator: TypeAlias = "Generator[list[SlotRequest], list[Any], Result]"
"""What is being played: it yields the questions that it waits for and is sent their answers, each of
which may be an exception that stands for it."""


def run_episode(
    env: gymnasium.Env[str, str],
    agent: Agent,
    *,
    task: str | None = None,
    seed: int | None = None,
    world_model: WorldModel | str | Mapping[str, Any] | None = None,
    lm: LanguageModel | None = None,
    keep: Keep = "replies",
    note_actions: bool = False,
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
        note_actions: See `stream_episodes`.

    Raises:
        OptionError: `env` is not one of comap's, or the agent needs a language model that can do
            what this one cannot: see `check_capabilities`.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> trajectory = run_episode(gym.make("comap/ALFWorld-v0"), ExpertAgent(), seed=0)
        >>> trajectory.success, trajectory.error
        (True, None)
    """
    player = replace(player_for(agent, lm, keep), note_actions=note_actions)
    slot = EnvSlot(env, world_model)
    answers = RequestBatcher(lm)
    start = slot.reset(task, seed)
    playing = play_episode(player, slot, start, seed, {})
    replies: Any = None
    while True:
        try:
            questions = playing.send(replies)
        except StopIteration as stop:
            trajectory: Trajectory = stop.value
            return trajectory

        began = time.perf_counter()
        replies = answers(questions)
        slot.waited += time.perf_counter() - began


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
        >>> [len(t.steps) for t in run_episodes(make_env, RandomAgent(), tasks, concurrency=2)]
        [50, 50, 50]
    """
    # Episodes end in another order than they begin in: the shorter ones first.
    trials_by_task: dict[int, list[Trajectory]] = {}
    for number, trials in stream_episodes(make_env, agent, tasks, **options):
        trials_by_task[number] = trials
        if on_done is not None:
            on_done(trials)

    trajectories: list[Trajectory] = []
    for number in sorted(trials_by_task):
        trajectories += trials_by_task[number]
    return trajectories


def stream_episodes(  # noqa: PLR0913 the public entry: each is one choice of a user
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    tasks: Sequence[str],
    *,
    lm: LanguageModel | None = None,
    world_model: WorldModel | str | Mapping[str, Any] | None = None,
    concurrency: int = 32,
    seed: int | Sequence[int | None] | None = None,
    keep: Keep = "replies",
    overlap: bool = False,
    on_step: Callable[[Step], object] | None = None,
    on_work: OnWork | None = None,
    note_actions: bool = False,
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
        concurrency: How many episodes run at the same time, at most; results do not depend on it.
        seed: Passed to every ``env.reset``; a sequence has one for each task.
        keep: What trajectories keep of language-model calls.
        overlap: Whether a world model predicts for some episodes while the policy drafts for others
            (`comap.agents.runner`): for two models that do not wait for one another, such as two
            servers. Episodes are the same, and end in another order. A `StreamingLanguageModel`
            overlaps by itself.
        on_step: Called with each step of each episode.
        on_work: Called before and after each batch of language-model calls with a
            `comap.agents.requests.ModelWork`: how many were asked and answered, and their tokens.
        note_actions: Whether steps note the actions that were admissible before them
            (``notes["admissible_actions"]``), so that the prompts which list them can be made again.

    Raises:
        OptionError: An option cannot be, or the agent needs a language model that can do what this
            one cannot: see `check_capabilities`.
    """
    # Checked here and not in the generator below, so that a wrong option raises at the call, not at
    # the first episode that is asked for.
    check_number("concurrency", concurrency)
    if isinstance(tasks, str) or not hasattr(tasks, "__len__"):
        raise OptionError(f"tasks must be a list of task ids, not {tasks!r:.80}")
    if not callable(make_env):
        raise OptionError(
            f"make_env must be a function, not {make_env!r:.80}; give lambda: make(ID)"
        )
    seeds = [seed] * len(tasks) if seed is None or isinstance(seed, int) else list(seed)
    if len(seeds) != len(tasks):
        raise OptionError(f"expected one seed for each of {len(tasks)} tasks, found {len(seeds)}")

    pool = EnvPool(make_env, world_model)
    items = list(zip(tasks, seeds, strict=True))
    player = replace(player_for(agent, lm, keep), on_step=on_step, note_actions=note_actions)

    def play(slot: EnvSlot, item: tuple[str, int | None]) -> EpisodeGenerator[list[Trajectory]]:
        return play_task(player, slot, *item)

    return play_items(pool, RequestBatcher(lm, on_work), items, concurrency, play, overlap)


def settings_of(agent: Agent, lm: LanguageModel | None = None) -> dict[str, Any]:
    """Return how an agent is set up, as JSON data: its config, and the name of its model."""
    describe = getattr(getattr(agent, "config", None), "describe", None)
    settings = without_secrets(describe()) if callable(describe) else {}
    return settings if lm is None else settings | {"model": lm.name}


def player_for(agent: Agent, lm: LanguageModel | None, keep: Keep = "replies") -> Player:
    """Return who plays: the agent with its language model, once both fit each other."""
    if lm is not None and (isinstance(lm, type) or not isinstance(lm, LanguageModel)):
        raise OptionError(
            f"expected a language model (comap.lm.LanguageModel), found {lm!r:.80}; make one: "
            "comap.lm.create_language_model(NAME)"
        )
    if isinstance(agent, type) or not callable(getattr(agent, "decide", None)):
        raise OptionError(f"expected an agent, found {agent!r:.80}; make one: create_agent(NAME)")
    check_choice("keep", keep, get_args(Keep))
    check_capabilities(agent, lm)

    # Before the settings are described: the record has the limits that hold for this model.
    agent = fitted_to(agent, lm)
    return Player(agent, lm, keep, settings_of(agent, lm))


def read_decision(decision: object) -> tuple[str | None, Predicted | None, Mapping[str, Any]]:
    """Return the action of a decision, what was predicted of it, and its notes as JSON data."""
    if not isinstance(decision, Decision):
        raise InvalidAction(
            f"expected a Decision from agent.decide, found {decision!r:.80}; end it with: "
            "return Decision(ACTION)"
        )
    # Agents are plug-ins: what theirs returns would else fail far away, where a record is written.
    action = decision.action
    imagined = decision.imagined
    if not isinstance(action, str | None) or not isinstance(imagined, Imagined | None):
        raise InvalidAction(
            "a decision is for an action (str) or None, and its `imagined` is the reply to Imagine or "
            f"None; found {action!r:.80} and {imagined!r:.80}"
        )

    predicted = None
    if imagined is not None:
        prediction = imagined.prediction
        predicted = Predicted(
            imagined.observation,
            imagined.facts,
            imagined.delta,
            prediction.source,
            prediction.confidence,
        )
    return action, predicted, json_notes(decision.notes)


def json_notes(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of notes as they come back from a file."""
    try:
        # A round trip: a tuple is a list already, so a trajectory in memory equals the one on disk.
        copy = json.loads(json.dumps(dict(notes), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidAction(f"a decision's notes are JSON data by name, found: {error}") from error
    return dict(copy)


@dataclass(frozen=True, slots=True)
class Player:
    """Who plays, with what, and what is kept of it."""

    agent: Agent
    lm: LanguageModel | None = None
    keep: Keep = "replies"
    settings: Mapping[str, Any] | None = None
    on_step: Callable[[Step], object] | None = None
    note_actions: bool = False


def drive(
    player: Player, slot: EnvSlot, generator: Any, calls: list[Call]
) -> EpisodeGenerator[Any]:
    """Run a generator of an agent to its end, and return what it returns.

    Its requests are yielded as questions, and the calls behind their replies are added to `calls`. A
    request that cannot be answered raises its error at the agent's own ``yield``, where the agent may
    catch it.
    """
    if not isinstance(generator, Generator):
        raise InvalidAction(
            "expected a generator of requests from the agent (a method that yields), found "
            f"{generator!r:.80}; where it asks nothing, write `yield from ()` before its return"
        )
    reply: Any = None  # with which a generator starts
    fault: Exception | None = None
    while True:
        try:
            request = generator.send(reply) if fault is None else generator.throw(fault)
        except StopIteration as stop:
            return stop.value

        try:
            reply = yield from _reply(player, slot, request, calls)
            fault = None
        except Exception as error:
            fault = error


def prediction_in(answer: ImagineReply, player: Player, calls: list[Call]) -> Prediction:
    """Return a world model's prediction, and add the call that it took to `calls`."""
    if answer.request is not None and answer.completion is not None:
        call = call_of(answer.request, answer.completion, player.keep, answer.lm)
        calls.append(replace(call, kind=IMAGINE))
    return answer.prediction


def _reply(player: Player, slot: EnvSlot, request: Any, calls: list[Call]) -> EpisodeGenerator[Any]:
    """Return the reply to a request: a list of replies to a list."""
    parts = request if isinstance(request, list) else [request]
    questions = [_question(slot, part) for part in parts]
    answers = yield questions

    # All answers are read before the first fault is raised: calls that were paid for are on record.
    replies: list[Any] = []
    faults: list[Exception] = []
    for question, answer in zip(questions, answers, strict=True):
        try:
            replies.append(_read(player, question, answer, calls))
        except Exception as error:
            faults.append(error)
    if faults:
        raise faults[0]
    return replies if isinstance(request, list) else replies[0]


def _question(slot: EnvSlot, request: Any) -> SlotRequest:
    """Return the question that an agent's request comes to; raise where it is no request."""
    if isinstance(request, Imagine):
        if not all(isinstance(imagined, Imagined) for imagined in request.after):
            raise InvalidAction(f"expected replies in Imagine.after, found {request.after!r:.80}")
        return slot.imagine_request(request)
    if isinstance(request, Probe):
        return ProbeRequest(slot, request.action)
    if isinstance(request, Generate | Score | NextWord | Encode):
        return request
    raise InvalidAction(
        "expected a request from the agent (Generate, Score, NextWord, Encode, Imagine, Probe, or a list "
        f"of such), found {request!r:.80}"
    )


def _read(player: Player, question: SlotRequest, answer: Any, calls: list[Call]) -> Any:
    """Return the reply from an answer, and add its call to `calls`; raise an answer that is an error."""
    if isinstance(answer, Exception):
        raise answer
    if isinstance(question, ProbeRequest):
        return answer
    if isinstance(question, ImagineRequest):
        prediction = prediction_in(answer, player, calls)
        return imagined_of(question.slot.env, question.query, prediction)

    reply = checked_reply(question, answer, "no model" if player.lm is None else player.lm.name)
    calls.append(call_of(question, reply, player.keep, player.lm))
    return reply


ADMISSIBLE = "admissible_actions"
"""The note of a step that has the actions which were admissible before it; see `stream_episodes`."""


class Played(NamedTuple):
    """The rest of an episode: its steps, the last `info`, the error that ended it, and its last calls.

    Calls belong to the step that they led to; `calls` are those after which no step came.
    """

    steps: tuple[Step, ...]
    info: Mapping[str, Any]
    error: str | None
    calls: tuple[Call, ...]


def play_task(
    player: Player, slot: EnvSlot, task: str | None, seed: int | None
) -> EpisodeGenerator[list[Trajectory]]:
    """Play a task to its end, again and again where a `Retrying` agent wants to."""
    memory: dict[str, Any] = {}
    trials: list[Trajectory] = []
    tries_again = True
    while tries_again:
        trial = len(trials) + 1
        try:
            start = slot.reset(task, seed)
        except Exception as fault:
            failed = failed_trajectory(player, slot, task, seed, error_text(fault), trial)
            return [*trials, failed]

        trajectory = yield from play_episode(player, slot, start, seed, memory, trial)
        tries_again = False
        if isinstance(player.agent, Retrying):
            trajectory, tries_again = yield from _review(player, slot, trajectory, memory)
        trials.append(trajectory)
    return trials


def failed_trajectory(
    player: Player, slot: EnvSlot, task: str | None, seed: int | None, error: str, trial: int = 1
) -> Trajectory:
    """Return the record of an episode of which there is nothing but a fault."""
    return _record(
        player,
        slot,
        seed,
        trial,
        error,
        task=task or "",
        split=slot.fingerprint.get("split", ""),
        goal="",
        observation="",
        facts=State(),
    )


def play_episode(
    player: Player,
    slot: EnvSlot,
    start: tuple[str, dict[str, Any]],
    seed: int | None,
    memory: dict[str, Any],
    trial: int = 1,
) -> EpisodeGenerator[Trajectory]:
    """Play an episode from what ``env.reset`` answered to its end, and return its record."""
    observation, info = start
    history = (Turn(None, observation),)
    played = yield from play_on(player, slot, history, info, seed, memory, trial)
    return _record(
        player,
        slot,
        seed,
        trial,
        played.error,
        task=info["task"],
        split=info["split"],
        goal=info["goal"],
        facts=info["facts"],
        observation=observation,
        steps=played.steps,
        review=played.calls,
        world_model=_asked_or_imagining(slot),
    )


def _asked_or_imagining(slot: EnvSlot) -> str | None:
    """Return the name of the world model that the agent asked, or that imagined the episode."""
    if slot.model_was_asked:
        return name_of(slot.model)
    return None if slot.layer is None else name_of(slot.layer.world_model)


def play_on(
    player: Player,
    slot: EnvSlot,
    history: Sequence[Turn],
    info: Mapping[str, Any],
    seed: int | None,
    memory: dict[str, Any],
    trial: int = 1,
) -> EpisodeGenerator[Played]:
    """Play the episode that is under way to its end and return its steps and how it ended."""
    turns = list(history)
    steps: list[Step] = []
    error: str | None = None
    while True:
        calls: list[Call] = []
        slot.waited = 0.0

        # One `try` about the whole step: whoever's fault it is, it ends this episode alone, and the
        # steps before it stay on record.
        try:
            view = View(
                env_id=slot.inner.env_id,
                task=info["task"],
                goal=info["goal"],
                history=tuple(turns),
                facts=info["facts"],
                admissible_actions=info["admissible_actions"],
                step=info["step"],
                expert_action=slot.expert_action,
                count_tokens=estimate_tokens if player.lm is None else player.lm.count_tokens,
                memory=memory,
                trial=trial,
                seed=seed or 0,
                briefing=slot.inner.briefing,
            )
            decision = yield from drive(player, slot, player.agent.decide(view), calls)
            action, prediction, notes = read_decision(decision)
            if action is None:  # the agent gave up: that is no error
                break
            if player.note_actions:
                notes = {**notes, ADMISSIBLE: list(view.admissible_actions or ())}
            step, info = yield from _act(player, slot, action, prediction, calls, notes)
        except InvalidAction as fault:  # what the agent yielded or returned
            place = method_place(player.agent.decide)
            error = error_text(fault) + (f" ({place})" if place else "")
            break
        except Exception as fault:
            error = error_text(fault)
            break

        calls = []  # these are the step's: none are left where the episode ends with it
        steps.append(step)
        turns.append(Turn(action, step.observation))
        error = info.get("error")  # of an engine that broke, which truncates the episode
        if step.terminated or step.truncated:
            break
    return Played(tuple(steps), info, error, tuple(calls))


def _record(
    player: Player, slot: EnvSlot, seed: int | None, trial: int, error: str | None, **record: Any
) -> Trajectory:
    return Trajectory(
        env_id=slot.inner.env_id,
        agent=player.agent.name,
        seed=seed,
        trial=trial,
        error=error,
        fingerprint=slot.fingerprint,
        settings=dict(player.settings or {}),
        **record,
    )


def _act(
    player: Player,
    slot: EnvSlot,
    action: str,
    prediction: Predicted | None,
    calls: list[Call],
    notes: Mapping[str, Any],
) -> EpisodeGenerator[tuple[Step, Mapping[str, Any]]]:
    """Take an action; return its record and the environment's info."""
    # An imagined environment would ask its world model within `step`, alone. Asked here instead, the
    # question goes into one batch with those of the other episodes.
    question = slot.question_of_step(action)
    if question is not None:
        (answer,) = yield [question]
        failed = isinstance(answer, Exception)
        slot.prepare_step(action, answer if failed else prediction_in(answer, player, calls))

    began = time.perf_counter()
    reply = slot.step(action)
    seconds = (time.perf_counter() - began, slot.waited)

    info = reply[4]
    env_info = reported(slot.inner, info)
    notes = {name: note for name, note in notes.items() if name != ENV_INFO}
    if env_info:
        notes[ENV_INFO] = env_info

    step = Step.of(action, reply, prediction, tuple(calls), notes, seconds)
    if player.on_step is not None:
        player.on_step(step)
    return step, info


def reported(env: TextEnv, info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an environment's own words in `info`: those alone that say something go on record."""
    told = {
        name: info[name]
        for name in env.info_kept
        if name in info and info[name] != env.info_extras[name]
    }
    return json_notes(told)


def _review(
    player: Player, slot: EnvSlot, trajectory: Trajectory, memory: dict[str, Any]
) -> EpisodeGenerator[tuple[Trajectory, bool]]:
    """Run a `Retrying` agent's review; return the trajectory with its calls, and whether to play again."""
    agent = player.agent
    assert isinstance(agent, Retrying)
    calls: list[Call] = []
    error = trajectory.error
    tries_again = False
    try:
        tries_again = yield from drive(player, slot, agent.review(trajectory, memory), calls)
        if not isinstance(tries_again, bool):
            raise OptionError(
                f"expected True or False from agent.review, found {tries_again!r:.80}"
            )
    except Exception as fault:
        error = error or error_text(fault)  # the episode's own error came first
        tries_again = False

    review = (*trajectory.review, *calls)
    return replace(trajectory, review=review, error=error), tries_again


def error_text(fault: Exception) -> str:
    """Return a fault as records have it: its type, its message, and its place in the user's own code."""
    # Records have no traceback, which would name folders of this machine; the log has it.
    logging.getLogger(FAULTS).debug("an episode failed", exc_info=fault)
    return described(fault)


def play_items(
    pool: EnvPool,
    answers: RequestBatcher,
    items: Iterable[Item],
    concurrency: int,
    play: Callable[[EnvSlot, Item], EpisodeGenerator[Result]],
    overlap: bool = False,
) -> Generator[tuple[int, Result], None, None]:
    """Play items, many at once, and yield each one's number and result as it ends.

    In which of the following ways depends on the language model; results do not depend on the way.
    """
    if answers.is_streamed:
        return play_streamed(pool, answers, items, concurrency, play)
    rounds = play_overlapped if overlap else play_rounds
    return rounds(pool, answers, items, concurrency, play)


def play_rounds(
    pool: EnvPool,
    answers: RequestBatcher,
    items: Iterable[Item],
    concurrency: int,
    play: Callable[[EnvSlot, Item], EpisodeGenerator[Result]],
) -> Generator[tuple[int, Result], None, None]:
    """Play items, many at once, and yield each one's number and result as it ends.

    In each round all episodes' questions are answered together, in as few batches as there are kinds,
    and every episode goes on to its next questions.
    """
    waiting = deque(enumerate(items))
    running: list[RunningEpisode[Result]] = []
    with pool:
        while waiting or running:
            # A place that became free is filled before the next batch: batches stay full.
            while waiting and len(running) < concurrency:
                number, item = waiting.popleft()
                slot = pool.acquire()
                run = RunningEpisode(number, slot, play(slot, item))
                running.append(run)
                if run.go_on(None):  # it asked nothing, or could not start
                    pool.release(running.pop().slot)
                    yield run.number, run.result

            questions: list[SlotRequest] = []
            for run in running:
                questions += run.questions
            began = time.perf_counter()
            replies = iter(answers(questions))
            waited = time.perf_counter() - began

            # Each episode waited for the whole round: nobody goes on before the last reply.
            still_running: list[RunningEpisode[Result]] = []
            for run in running:
                run.slot.waited += waited
                if not run.go_on([next(replies) for _ in run.questions]):
                    still_running.append(run)
                    continue
                pool.release(run.slot)
                yield run.number, run.result
            running = still_running


class RunningEpisode(Generic[Result]):
    """An item that is being played; it has a result once it has ended."""

    result: Result

    def __init__(self, number: int, slot: EnvSlot, playing: EpisodeGenerator[Result]):
        self.number = number
        self.slot = slot
        self.questions: list[SlotRequest] = []
        self.replies: dict[int, Any] = {}  # those that came so far, where rounds overlap
        self.began_to_wait = 0.0  # when the questions were asked, likewise
        self._playing = playing

    def go_on(self, answers: Any) -> bool:
        """Play on with the answers to its questions, up to the next ones; return whether it has ended."""
        try:
            self.questions = self._playing.send(answers)
        except StopIteration as stop:
            self.result = stop.value
            return True
        return False


_MOST_MODELS = 16  # threads; a run has two or three models


class _Waiting(NamedTuple):
    """A question of an episode, and which of its questions it is."""

    run: RunningEpisode[Any]
    number: int
    question: SlotRequest


def play_overlapped(
    pool: EnvPool,
    answers: RequestBatcher,
    items: Iterable[Item],
    concurrency: int,
    play: Callable[[EnvSlot, Item], EpisodeGenerator[Result]],
) -> Generator[tuple[int, Result], None, None]:
    """Play items as `play_rounds` does, but let the policy draft while a world model predicts.

    An episode goes on as soon as its own questions are answered. Environments are played in this
    thread alone, as most engines cannot be shared; only models answer in other threads.
    """
    with ThreadPoolExecutor(_MOST_MODELS, "comap-answers") as threads:
        # One batch of all episodes would leave the other model without work: two halves take turns.
        queues = _Queues(answers, threads, most=-(-concurrency // 2))
        try:
            yield from _play_as_answered(pool, queues, items, concurrency, play)
        finally:
            # A caller may stop in the middle: no thread goes on with a model that is being closed.
            threads.shutdown(wait=True, cancel_futures=True)


def play_streamed(
    pool: EnvPool,
    answers: RequestBatcher,
    items: Iterable[Item],
    concurrency: int,
    play: Callable[[EnvSlot, Item], EpisodeGenerator[Result]],
) -> Generator[tuple[int, Result], None, None]:
    """Play items as `play_rounds` does, with a language model that answers requests one by one.

    An episode goes on as soon as its own replies are there: no batch waits for its longest reply, and
    environments play their steps while the model writes for other episodes.
    """
    try:
        yield from _play_as_answered(pool, _Stream(answers), items, concurrency, play)
    finally:
        # A caller may stop in the middle: the model writes nothing that nobody reads.
        answers.forget()


def _play_as_answered(
    pool: EnvPool,
    asked: _Queues | _Stream,
    items: Iterable[Item],
    concurrency: int,
    play: Callable[[EnvSlot, Item], EpisodeGenerator[Result]],
) -> Generator[tuple[int, Result], None, None]:
    """Play items, each of which goes on when all of its own questions are answered."""
    waiting = deque(enumerate(items))
    running = 0
    ready: deque[tuple[RunningEpisode[Result], Any]] = deque()
    with pool:
        while waiting or running:
            while waiting and running < concurrency:
                number, item = waiting.popleft()
                slot = pool.acquire()
                ready.append((RunningEpisode(number, slot, play(slot, item)), None))
                running += 1

            while ready:
                run, replies = ready.popleft()
                # An empty list of requests waits for nobody, so no answer would bring it back.
                while not (has_ended := run.go_on(replies)) and not run.questions:
                    replies = []
                if not has_ended:
                    asked.add(run)
                    continue
                running -= 1
                pool.release(run.slot)
                yield run.number, run.result

            # The questions of one episode may be answered by two models, at different times.
            for question, reply in asked.answered():
                run = question.run
                run.replies[question.number] = reply
                if len(run.replies) == len(run.questions):
                    run.slot.waited += time.perf_counter() - run.began_to_wait
                    ready.append((run, [run.replies[i] for i in range(len(run.replies))]))


class _Stream:
    """What models that take questions one by one still have to answer, and what this thread has to."""

    def __init__(self, answers: RequestBatcher):
        self._answers = answers
        self._asked: dict[Ticket, _Waiting] = {}
        self._for_this_thread: list[_Waiting] = []

    def add(self, run: RunningEpisode[Any]) -> None:
        """Hand an episode's questions over."""
        run.replies = {}
        run.began_to_wait = time.perf_counter()
        for number, question in enumerate(run.questions):
            waiting = _Waiting(run, number, question)
            ticket = self._answers.submit(question)
            # Without a ticket: a probe, a grounded world model, or a model that answers in batches.
            if ticket is None:
                self._for_this_thread.append(waiting)
            else:
                self._asked[ticket] = waiting

    def answered(self) -> list[tuple[_Waiting, Any]]:
        """Return questions with their answers, once there are some."""
        if self._for_this_thread:
            batch = self._for_this_thread
            self._for_this_thread = []
            replies = self._answers([waiting.question for waiting in batch])
            return list(zip(batch, replies, strict=True))
        return [(self._asked.pop(ticket), reply) for ticket, reply in self._answers.step()]


class _Queues:
    """What each model still has to answer; one batch at a time, of at most half the episodes."""

    def __init__(self, answers: RequestBatcher, threads: ThreadPoolExecutor, most: int):
        self._answers = answers
        self._threads = threads
        self._most = most
        self._waiting: dict[Hashable, deque[_Waiting]] = {}
        self._busy: dict[Hashable, tuple[Future[list[Any]], list[_Waiting]]] = {}

    def add(self, run: RunningEpisode[Any]) -> None:
        """Put an episode's questions into the queues of those who answer them."""
        run.replies = {}
        run.began_to_wait = time.perf_counter()
        for number, question in enumerate(run.questions):
            answerer = self._answers.answerer_of(question)
            self._waiting.setdefault(answerer, deque()).append(_Waiting(run, number, question))

    def answered(self) -> list[tuple[_Waiting, Any]]:
        """Answer what this thread must answer; else ask models that are free, and wait for one."""
        # The queue None has probes and grounded world models: they play on environments.
        if batch_for_this_thread := self._waiting.pop(None, None):
            replies = self._answers([waiting.question for waiting in batch_for_this_thread])
            return list(zip(batch_for_this_thread, replies, strict=True))

        for answerer, queue in self._waiting.items():
            if queue and answerer not in self._busy:
                batch = [queue.popleft() for _ in range(min(self._most, len(queue)))]
                questions = [waiting.question for waiting in batch]
                self._busy[answerer] = self._threads.submit(self._answers, questions), batch

        wait([future for future, _ in self._busy.values()], return_when=FIRST_COMPLETED)
        answered: list[tuple[_Waiting, Any]] = []
        for answerer, (future, batch) in [*self._busy.items()]:
            if future.done():
                del self._busy[answerer]
                answered += zip(batch, future.result(), strict=True)
        return answered
