"""Trajectories in the formats of others: TRL's data sets, and ShareGPT and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ..envs.briefing import Briefing
from ..envs.registry import text_env_of
from ..errors import DataCorrupt, OptionError, check_choice, needs_extra
from ..facts import Delta, State
from ..lm import Message
from ..lm.base import valid_text
from ..trajectory import Step, Trajectory, Turn
from .base import View, estimate_tokens
from .config import AgentConfig
from .naming import meant_action
from .parsing import clean_action, first_line, parse_action
from .prompting import Draft, converse, fill
from .runner import ADMISSIBLE

if TYPE_CHECKING:
    from datasets import Dataset


DatasetForm: TypeAlias = Literal["messages", "steps"]
"""One row an episode with ``messages``, or one row a step with ``prompt`` and ``completion``."""


def to_dataset(
    trajectories: Iterable[Trajectory],
    form: DatasetForm = "messages",
    config: AgentConfig | None = None,
    briefing: Briefing | None = None,
) -> Dataset:
    """Return trajectories as a data set that TRL trains on.

    With ``messages`` a row is an episode: the agent's prompt at its start, then replies and
    observations by turns; what follows the last reply is left out, since nothing answers it. With
    ``steps`` a row is a step: the prompt as the agent would be asked, and its reply. A prompt asks
    for a thought only where the replies have one: an expert's are the action line alone. Both lose
    rewards, facts, predictions and notes; `comap.trajectory.write_trajectories` keeps them.

    Args:
        trajectories: What to convert; for supervised training, those worth imitating.
        form: Which rows.
        config: How prompts are made: style, state text, length, examples; None for the defaults, but
            without the worked example in ``messages``, where its replies would be trained on with the
            others. Rows of ``messages`` are conversations, so they need standard prompts and the
            history.
        briefing: What a language model is told of the environment; None for what its class brings.

    Raises:
        OptionError: There is no such form, or it does not go with `config`.
        MissingExtra: ``datasets`` is not installed.
    """
    check_choice("form", form, get_args(DatasetForm))
    settings = config or AgentConfig(examples=0 if form == "messages" else 1)

    # Other prompts put the whole past into one message: then an episode is no conversation.
    if form == "messages" and (settings.prompts, settings.state_text) != ("standard", "history"):
        raise OptionError(
            "form='messages' needs prompts='standard' and state_text='history', found "
            f"{settings.prompts!r} and {settings.state_text!r}; use form='steps'"
        )
    with needs_extra("train", "a Hugging Face dataset"):
        from datasets import Dataset

    if form == "messages":
        conversations = []
        for trajectory in trajectories:
            if trajectory.steps:  # else there is no reply to train on
                conversations.append(conversation_of(trajectory, settings, briefing))
        return Dataset.from_dict({"messages": conversations})

    prompts = []
    completions = []
    for trajectory in trajectories:
        # What a reply said is what later prompts show of it, also where the agent that played noted
        # nothing, as experts do.
        replies: dict[int, str] = {}
        for view, _, step in views_of(trajectory, briefing=briefing):
            reply = reply_of(step)
            prompt = _prompt_for(converse(view, settings, replies), [reply])
            prompts.append(_plain(prompt))
            completions.append(_plain([Message("assistant", reply)]))
            replies[view.step] = reply
    return Dataset.from_dict({"prompt": prompts, "completion": completions})


def conversation_of(
    trajectory: Trajectory, config: AgentConfig, briefing: Briefing | None = None
) -> list[dict[str, str]]:
    """Return an episode as one conversation, whole: how much of it fits is the trainer's affair."""
    first_view, _, _ = next(views_of(trajectory, briefing=briefing))
    replies = [reply_of(step) for step in trajectory.steps]
    messages = _prompt_for(converse(first_view, config), replies)

    # The prompt ends with the first observation. The last one is left out: no reply answers it.
    for number, reply in enumerate(replies):
        if number > 0:
            messages.append(Message("user", trajectory.steps[number - 1].observation))
        messages.append(Message("assistant", reply))
    return _plain(messages)


def turns_of(trajectory: Trajectory) -> list[dict[str, str]]:
    """Return an episode as messages to be looked at: the goal, then by turns what was seen and done.

    It is what happened, not what a model was asked: `to_dataset` has that. A reply of several calls (a
    draft, a reflection) is one message, with the action that was taken at its end.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent, run_episode
        >>> env = gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=2)
        >>> [turn["role"] for turn in turns_of(run_episode(env, ExpertAgent(), seed=0))]
        ['system', 'user', 'assistant', 'user', 'assistant', 'user']
    """
    messages: list[Message] = []
    if trajectory.goal:
        messages.append(Message("system", f"Task: {trajectory.goal}"))
    messages.append(Message("user", trajectory.observation))

    for step in trajectory.steps:
        replies = [call.text for call in step.calls if call.kind == "generate" and call.text]
        messages.append(Message("assistant", "\n\n".join([*replies, f"> {step.action}"])))
        messages.append(Message("user", step.observation))
    return _plain(messages)


def _prompt_for(messages: Sequence[Message], replies: Sequence[str]) -> list[Message]:
    """Return a prompt whose form is that of the replies.

    Standard prompts ask for a thought and an action. Where no reply has a thought, the prompt asks
    for the action line alone, and the turns that it shows have no other: otherwise a model would be
    trained to do the contrary of what it is told.
    """
    if any(reply.partition("Action:")[0].strip() for reply in replies):
        return list(messages)

    with_thought = _form_of("act")
    plain = _form_of("act_plain")
    adapted = []
    for message in messages:
        content = message.content
        if message.role == "system":
            content = content.replace(with_thought, plain)
        elif message.role == "assistant":
            action = parse_action(content)
            if action is not None:
                content = f"Action: {action}"
        adapted.append(Message(message.role, content))
    return adapted


def _form_of(name: str) -> str:
    """Return what a standard prompt says of the form of replies."""
    (message,) = fill("standard", name, instructions="")
    return message.content


def _plain(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Return messages without halves of surrogate pairs, which files of others cannot hold."""
    return [{"role": role, "content": valid_text(content)} for role, content in messages]


_ROLES = {"human": "human", "user": "human", "gpt": "gpt", "assistant": "gpt", "system": "system"}
_OBSERVATION = "Observation: "
_GOAL = re.compile(r"Your task is to:[ \t]*(.+)", re.IGNORECASE)


def to_sharegpt(
    trajectories: Iterable[Trajectory], briefing: Briefing | None = None
) -> list[dict[str, Any]]:
    """Return a row for each trajectory: ``{"id": ..., "conversations": [...], ...}``.

    A conversation is the instruction, "OK", the first observation, then replies and observations by
    turns, all but the first observation marked ``Observation:``. The goal stands in the instruction
    where the first observation lacks it. Further keys are the environment, the split, the
    goal, the agent and how the episode ended.

    Lost are facts, predictions, calls, notes, the rewards but their sum, the seed and the
    fingerprint; and of an action blanks, quotes and a period around it, and what follows a line break.

    Example:
        >>> from comap.facts import State
        >>> empty = Trajectory("comap/X-v0", "task", "train", "Wait.", "me", "Wait.", State())
        >>> [turn["from"] for turn in to_sharegpt([empty])[0]["conversations"]]
        ['human', 'gpt', 'human']
    """
    return [_row(trajectory, briefing) for trajectory in trajectories]


def _row(trajectory: Trajectory, briefing: Briefing | None) -> dict[str, Any]:
    """Return a trajectory in ETO's form of ShareGPT, with keys of our own beside the conversation."""
    rules = (briefing or text_env_of(trajectory.env_id).briefing).told()
    if trajectory.goal and trajectory.goal not in trajectory.observation:
        rules = f"{rules}\n\n{trajectory.goal}"

    # The "OK" answers the instruction: turns alternate, and the first observation is a human one too.
    turns = [("human", rules), ("gpt", "OK"), ("human", trajectory.observation)]
    for step in trajectory.steps:
        turns += [("gpt", reply_of(step)), ("human", _OBSERVATION + step.observation)]

    last_step = trajectory.steps[-1] if trajectory.steps else None
    is_known = trajectory.has_outcome
    return {
        "id": trajectory.task,
        "conversations": [{"from": speaker, "value": text} for speaker, text in turns],
        "env_id": trajectory.env_id,
        "split": trajectory.split,
        "goal": trajectory.goal,
        "agent": trajectory.agent,
        # Of what others published it may be unknown, which is neither 0 nor false.
        "reward": sum(step.reward for step in trajectory.steps) if is_known else None,
        "score": trajectory.score if is_known else None,
        "success": trajectory.success if is_known else None,
        "terminated": last_step is not None and last_step.terminated,
        "truncated": last_step is not None and last_step.truncated,
    }


def from_sharegpt(
    rows: Iterable[Any], env_id: str = "", agent: str = "sharegpt"
) -> list[Trajectory]:
    """Return trajectories with the actions and observations of conversations.

    What comes before the human turn that the first action answers is an introduction and is left out.
    A later reply without an ``Action:`` line is itself the action, as it went to the environment. A
    reply that nothing follows has an empty observation. The whole reward is the last step's.

    Args:
        rows: Rows such as `to_sharegpt` returns, or of ETO's files.
        env_id: The environment of rows that do not name it.
        agent: The agent's name in rows without one.

    Raises:
        DataCorrupt: A row is no conversation of human and gpt by turns; the message says which.

    Example:
        >>> said = ["Rules.", "OK", "A room.", "Action: look", "Observation: A desk."]
        >>> turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(said)]
        >>> (found,) = from_sharegpt([{"conversations": turns}])
        >>> found.observation, found.steps[0].action, found.steps[0].observation
        ('A room.', 'look', 'A desk.')
    """
    trajectories = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataCorrupt(
                f"row {number}: expected an object with a conversation, found {type(row).__name__}"
            )
        trajectories.append(_trajectory(row, f"row {number}", env_id, agent))
    return trajectories


def _trajectory(row: Mapping[str, Any], place: str, env_id: str, agent: str) -> Trajectory:
    """Return the trajectory of a row; `place` names the row in messages."""
    turns = _turns(row, place)
    start = _start(turns, place)
    steps = _steps(row, turns[start + 1 :], place)

    # ETO's rows have no key for the goal: it stands in the instruction or the first observation.
    stated_goal = _GOAL.search("\n".join(turns[: start + 1]))
    default_goal = "" if stated_goal is None else stated_goal[1].strip()
    goal = text_of(row, "goal", place, default_goal)
    return Trajectory(
        text_of(row, "env_id", place, env_id),
        "" if row.get("id") is None else str(row["id"]),
        text_of(row, "split", place, ""),
        goal,
        text_of(row, "agent", place, agent),
        turns[start],
        State(),
        tuple(steps),
    )


def _steps(row: Mapping[str, Any], turns: Sequence[str], place: str) -> list[Step]:
    """Return the steps of a conversation after its first observation: replies and answers by turns."""
    steps: list[Step] = []
    for index in range(0, len(turns), 2):
        reply = turns[index]
        answer = turns[index + 1] if index + 1 < len(turns) else ""
        action = parse_action(reply) or clean_action(reply.strip()[:200]) or "..."
        observation = answer.removeprefix(_OBSERVATION)
        number = len(steps) + 1
        steps.append(Step(number, action, observation, 0.0, False, False, False, State(), Delta()))

    # A row says how the whole episode ended, so all of it goes to the last step.
    if steps:
        success = value_of(row, "success", place, bool, False)
        steps[-1] = replace(
            steps[-1],
            reward=number_of(row, "reward", place),
            terminated=value_of(row, "terminated", place, bool, success),
            truncated=value_of(row, "truncated", place, bool, False),
            score=number_of(row, "score", place, float(success)),
            success=success,
        )
    return steps


def _turns(row: Mapping[str, Any], place: str) -> list[str]:
    """Return what was said by turns, human first; a system's text is left out."""
    conversation = row.get("conversations")
    if not isinstance(conversation, Sequence) or isinstance(conversation, str):
        raise DataCorrupt(
            f"{place}: expected a list as 'conversations', found {conversation!r:.80}"
        )

    turns: list[str] = []
    for number, turn in enumerate(conversation, 1):
        turn_place = f"{place}, turn {number}"
        if not isinstance(turn, Mapping):
            raise DataCorrupt(f"{turn_place}: expected 'from' and 'value', found {turn!r:.80}")
        speaker = text_of(turn, "from", turn_place)
        if speaker not in _ROLES:
            raise DataCorrupt(f"{turn_place}: expected human, gpt or system, found {speaker!r:.80}")
        if _ROLES[speaker] == "system" and not turns:
            continue

        # A turn that is missing would make observations of actions from there on.
        expected = ("human", "gpt")[len(turns) % 2]
        if _ROLES[speaker] != expected:
            raise DataCorrupt(f"{turn_place}: expected {expected}'s turn, found {speaker!r:.80}")
        turns.append(text_of(turn, "value", turn_place))
    return turns


def _start(turns: Sequence[str], place: str) -> int:
    """Return the index of the first observation: the human turn that the first action answers."""
    if not turns:
        raise DataCorrupt(f"{place}: expected a first observation, found an empty conversation")
    for index in range(1, len(turns), 2):
        if parse_action(turns[index]) is not None:
            return index - 1

    # Nobody acted: the last human turn, all before it being an introduction.
    return (len(turns) - 1) // 2 * 2


def reply_of(step: Step) -> str:
    """Return what the agent said for a step, its thought and action: by the last text with its action."""
    for call in reversed(step.calls):
        # A reflection has a form of its own; what a model is to imitate is the draft's.
        if call.kind != "generate" or call.purpose.startswith("reflect"):
            continue
        text = call.prefix + call.text
        action = parse_action(text)
        if action is not None and (action == step.action or meant_action(action, [step.action])):
            return Draft(text, step.action, True, "").shown

    # An imported step has no calls, but the thought that was published.
    thought = step.notes.get("thought")
    if isinstance(thought, str) and first_line(thought):
        return f"Thought: {first_line(thought)}\nAction: {step.action}"
    return f"Action: {step.action}"


def views_of(
    trajectory: Trajectory,
    count_tokens: Callable[[str], int] = estimate_tokens,
    briefing: Briefing | None = None,
) -> Iterator[tuple[View, dict[int, str], Step]]:
    """Yield what the agent saw before each step, its replies so far, and the step.

    The admissible actions are known where the episode noted them (`stream_episodes`).
    """
    replies: dict[int, str] = {}
    history = [Turn(None, trajectory.observation)]
    for number, (facts, step) in enumerate(trajectory.transitions()):
        # A copy: what is yielded may be kept, and must not learn of later replies.
        replies_before = dict(replies)
        admissible = step.notes.get(ADMISSIBLE)
        view = View(
            env_id=trajectory.env_id,
            task=trajectory.task,
            goal=trajectory.goal,
            history=tuple(history),
            facts=facts,
            admissible_actions=tuple(admissible) if admissible else None,
            step=number,
            count_tokens=count_tokens,
            memory={"replies": replies_before},
            trial=trajectory.trial,
            seed=trajectory.seed or 0,
            briefing=briefing,
        )
        yield view, replies_before, step

        shown_reply = step.notes.get("shown")
        if isinstance(shown_reply, str):
            replies[number] = shown_reply
        history.append(Turn(step.action, step.observation))


def text_of(row: Mapping[str, Any], key: str, place: str, default: str | None = None) -> str:
    """Return a row's text, the default where it has none; `place` names the row in messages."""
    text = row.get(key)
    if text is None and default is not None:
        return default
    if not isinstance(text, str):
        description = "none" if text is None else f"{text!r:.80}"
        raise DataCorrupt(f"{place}: expected a text as {key!r}, found {description}")
    return text


def value_of(
    row: Mapping[str, Any], key: str, place: str, kind: type | tuple[type, ...], default: Any
) -> Any:
    """Return a row's value of some type, the default where it has none."""
    value = row.get(key)
    if value is None:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:  # not isinstance: a truth value is no number here
        expected = " or ".join(part.__name__ for part in kinds)
        raise DataCorrupt(f"{place}: expected {expected} as {key!r}, found {value!r:.80}")
    return value


def number_of(row: Mapping[str, Any], key: str, place: str, default: float = 0.0) -> float:
    """Return a row's finite number, the default where it has none."""
    value = value_of(row, key, place, (int, float), default)
    try:
        number = float(value)
    except OverflowError:  # JSON may have integers of any length
        number = math.inf
    if not math.isfinite(number):
        raise DataCorrupt(f"{place}: expected a finite number as {key!r}, found {value!r:.80}")
    return number
