"""What rows of files say: the forms of Word2World, AgentTraj, ETO, the Agent Data Protocol, and our own.

Each reader takes a row apart into what was told, seen, thought and done (`Reading`); it knows nothing of
files, facts or comap's environments. What does not have the form raises `Refused`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ...errors import CoMapError

AVAILABLE = "\nAVAILABLE ACTIONS: "
"""What AgentGym's ALFWorld writes before its list of actions, at the end of an observation."""

_MOST_ACTION = 2000  # characters of an action; longer ones are no action of any environment here
_MOST_REPLY = 200  # characters of a reply without an action that stand for the action


class Refused(CoMapError):
    """A row has not the form of its format, or nothing that can be imported."""


class ApiCall(NamedTuple):
    """An action of the Agent Data Protocol: an environment has words for it, or not."""

    function: str
    arguments: Mapping[str, Any]


class Reply(NamedTuple):
    """What an agent said: its thought and its action; without an action it is a remark.

    `is_shown` is False where its publisher excludes it from what a policy learns.
    """

    thought: str
    action: str | ApiCall | None
    text: str
    is_shown: bool = True
    reward: float | None = None


Turn: TypeAlias = "str | Reply"
"""What the agent was shown, or what it said."""


class Exchange(NamedTuple):
    """A reply and what followed; None where the row does not have it."""

    reply: Reply
    observation: str | None


@dataclass(frozen=True, slots=True)
class Reading:
    """A row, taken apart.

    Attributes:
        id: Its id; empty where it has none.
        instructions: What was told before the episode: rules, or what only a world model is to see.
        observation: The first observation, with all that belongs to it.
        exchanges: What was done and seen then.
        env_id: The environment's id, where the row has one of comap's.
        goal: The task in words, where the row has it apart from the observation.
        split: Its split, where the row has one.
        reward: The whole reward, as the row has it; None where it does not say.
        score: Progress, 0 to 1, where the row has it.
        success: Whether the task was solved; None where the row does not say.
    """

    id: str
    instructions: str
    observation: str
    exchanges: tuple[Exchange, ...]
    env_id: str = ""
    goal: str = ""
    split: str = ""
    reward: float | None = None
    score: float | None = None
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A format: how its rows are known and read, and what its publisher says of the data.

    Attributes:
        title: Its name in words.
        source: Where it is described, and its data are published.
        license: The license of the published data, as their page says.
        fits: Whether a row has its form.
        read: Takes a row apart, or raises `Refused`.
        split: The split of the published rows, where a file's name does not say it.
    """

    title: str
    source: str
    license: str
    fits: Callable[[Any], bool]
    read: Callable[[Mapping[str, Any]], Reading]
    split: str = "unknown"


def text_of(record: Mapping[str, Any], key: str, place: str) -> str:
    """Return a text of a record; refuse the row where it is none."""
    text = record.get(key)
    if not isinstance(text, str):
        raise Refused(f"{place}: expected a text as {key!r}, found {type(text).__name__}")
    return text


def _list_of(record: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of objects; refuse the row where it is none."""
    entries = record.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise Refused(f"expected a list of objects as {key!r}, found {type(entries).__name__}")
    return entries


def _number(value: Any) -> float | None:
    """Return a finite number; None where it is none. A truth value is no number here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e12 else None


def _truth(value: Any) -> bool | None:
    """Return a truth value, which some write as 0 or 1; None where it is none."""
    return bool(value) if value in (True, False) and value is not None else None


def _id_of(row: Mapping[str, Any], *keys: str) -> str:
    for key in keys:
        value = row.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return ""


def react(text: str, is_shown: bool = True) -> Reply:
    r"""Return a reply in ReAct's form: a thought, then ``Action:`` and the action.

    Example:
        >>> reply = react("Thought:\nThe desk.\n\nAction:\ngo to desk 1")
        >>> reply.thought, reply.action
        ('The desk.', 'go to desk 1')
    """
    # As AgentGym reads it: the last "Action:" counts. Without one, a search or a click is an action.
    spoken = text.removesuffix("</s>").strip()
    before, marker, after = spoken.rpartition("Action:")
    if not marker:
        is_page_action = spoken.lower().startswith(("search[", "click[")) and "\n" not in spoken
        return Reply("", spoken if is_page_action else None, text, is_shown)

    lines = after.strip().splitlines()
    action = lines[0].strip() if lines else ""
    if not action or len(action) > _MOST_ACTION:
        return Reply("", None, text, is_shown)
    thought = before.partition("Thought:")[2] or before
    return Reply(thought.strip(), action, text, is_shown)


def episode(turns: Sequence[Turn]) -> tuple[str, str, tuple[Exchange, ...]]:
    """Return instructions, first observation and exchanges of a conversation.

    The first observation is what the first action answers; all before it are instructions. A remark
    at the end, which nothing answers, is left out.
    """
    first_action = next(
        (
            index
            for index, turn in enumerate(turns)
            if isinstance(turn, Reply) and turn.action is not None
        ),
        None,
    )
    if first_action is None:
        raise Refused("no reply has an action")
    start = first_action - 1
    observation = turns[start] if start >= 0 else None
    if not isinstance(observation, str):
        raise Refused("nothing was observed before the first action")
    instructions = "\n\n".join(turn for turn in turns[:start] if isinstance(turn, str))

    exchanges: list[Exchange] = []
    for turn in turns[first_action:]:
        if isinstance(turn, Reply):
            exchanges.append(Exchange(turn, None))
            continue
        # Of several texts in a row all are what followed.
        reply, text = exchanges[-1]
        exchanges[-1] = Exchange(reply, turn if text is None else f"{text}\n{turn}")

    while exchanges[-1].reply.action is None and exchanges[-1].observation is None:
        exchanges.pop()
    return instructions, observation, tuple(exchanges)


def action_of(reply: Reply) -> str:
    """Return the action of a reply; of a remark its beginning, which is what an environment got."""
    if isinstance(reply.action, str):
        return reply.action
    return " ".join(reply.text[: 4 * _MOST_REPLY].split())[:_MOST_REPLY] or "..."


# Word2World: LLaMA-Factory rows in which the assistant is the environment.

_HIDDEN = "# Environment Information (Only visible to Assistant)"
_VISIBLE = "# User Environment Information (Displayed to User)"
_SUCCESS = " [SUCCESS]"


def _fits_word2world(row: Any) -> bool:
    messages = row.get("messages") if isinstance(row, Mapping) else None
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], Mapping):
        return False
    return messages[0].get("role") == "system" and "content" in messages[0]


def _read_word2world(row: Mapping[str, Any]) -> Reading:
    """Read a row: what the world model is told, then the agent's actions and the world's answers."""
    messages = _list_of(row, "messages")
    system = text_of(messages[0], "content", "message 1") if messages else ""
    hidden, marker, visible = system.partition(_VISIBLE)
    if not marker:
        hidden, visible = "", system

    exchanges: list[Exchange] = []
    for number, message in enumerate(messages[1:], 2):
        text = text_of(message, "content", f"message {number}")
        expected = "user" if number % 2 == 0 else "assistant"
        if message.get("role") != expected:
            raise Refused(f"message {number}: expected one of {expected}")
        if expected == "user":
            lines = text.strip().splitlines()
            action = lines[0].strip() if lines else ""
            if not action or len(action) > _MOST_ACTION:
                raise Refused(f"message {number}: expected an action, found {text!r:.60}")
            exchanges.append(Exchange(Reply("", action, text), None))
        else:
            exchanges[-1] = exchanges[-1]._replace(observation=text)
    if not exchanges:
        raise Refused("no action")

    # The mark is what its world models end a solved episode with.
    last = exchanges[-1]
    is_solved = last.observation is not None and _SUCCESS in last.observation
    if is_solved and last.observation is not None:
        exchanges[-1] = last._replace(observation=last.observation.partition(_SUCCESS)[0])
    return Reading(
        id=_id_of(row, "id"),
        instructions=hidden.replace(_HIDDEN, "").strip(),
        observation=visible.strip(),
        exchanges=tuple(exchanges),
        success=True if is_solved else None,
    )


# AgentTraj and ETO: conversations in ReAct's form.

_SPEAKERS = {"human": False, "user": False, "system": False, "gpt": True, "assistant": True}


def _conversation(row: Mapping[str, Any]) -> list[Turn]:
    """Return the turns of a conversation: what was shown, and replies in ReAct's form."""
    turns: list[Turn] = []
    for number, message in enumerate(_list_of(row, "conversations"), 1):
        speaker = message.get("from", message.get("role"))
        if not isinstance(speaker, str) or speaker not in _SPEAKERS:
            raise Refused(f"turn {number}: expected human, gpt or system, found {speaker!r:.40}")
        key = "value" if "value" in message else "content"
        text = text_of(message, key, f"turn {number}")
        turns.append(react(text, message.get("loss") is not False) if _SPEAKERS[speaker] else text)
    return turns


def _of_conversation(row: Mapping[str, Any], identity: str) -> Reading:
    instructions, observation, exchanges = episode(_conversation(row))
    texts = {
        key: value
        for key in ("env_id", "goal", "split")
        if isinstance(value := row.get(key), str)  # comap's own export has these
    }
    return Reading(
        id=identity,
        instructions=instructions,
        observation=observation,
        exchanges=exchanges,
        reward=_number(row.get("reward")),
        score=_number(row.get("score")),
        success=_truth(row.get("success")),
        **texts,
    )


def _fits_agenttraj(row: Any) -> bool:
    return isinstance(row, Mapping) and "item_id" in row and "conversations" in row


def _read_agenttraj(row: Mapping[str, Any]) -> Reading:
    if row.get("conversations") is None:
        raise Refused("a task without a conversation, as of AgentEval")
    return _of_conversation(row, _id_of(row, "item_id"))


def _fits_sharegpt(row: Any) -> bool:
    """Return whether a row is one of `comap export --to sharegpt`: ETO's form, with keys of our own."""
    return _fits_eto(row) and isinstance(row.get("env_id"), str)


def _fits_eto(row: Any) -> bool:
    if not isinstance(row, Mapping) or "item_id" in row:
        return False
    return "conversations" in row or {"prompt", "chosen", "rejected"} <= row.keys()


def _read_eto(row: Mapping[str, Any]) -> Reading:
    if "chosen" in row:
        raise Refused("a pair of preferences (prompt, chosen, rejected): it is no episode")
    if "meta" in row:
        raise Refused("an exploration of ETO: its prompt has a worked example, which is no episode")
    return _of_conversation(row, _id_of(row, "id"))


# The Agent Data Protocol: actions and observations, or steps of ATIF.

_FINISH = re.compile(r"\s*<finish>(.*)</finish>\s*", re.DOTALL)


def _fits_adp(row: Any) -> bool:
    if not isinstance(row, Mapping):
        return False
    content = row.get("content")
    if isinstance(content, list) and "id" in row:
        return all(isinstance(entry, Mapping) and "class_" in entry for entry in content)
    return isinstance(row.get("steps"), list) and str(row.get("schema_version")).startswith("ATIF")


def _read_adp(row: Mapping[str, Any]) -> Reading:
    if "steps" in row:
        return _read_atif(row)

    turns: list[Turn] = []
    for number, entry in enumerate(_list_of(row, "content"), 1):
        kind = entry.get("class_")
        read = _ENTRIES.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise Refused(f"entry {number}: nothing is known of {kind!r:.40}")
        turns.append(read(entry, f"entry {number}"))
    instructions, observation, exchanges = episode(turns)
    return Reading(_id_of(row, "id"), instructions, observation, exchanges)


def _text_observation(entry: Mapping[str, Any], place: str) -> Turn:
    return text_of(entry, "content", place)


def _web_observation(entry: Mapping[str, Any], place: str) -> Turn:
    # The tree of a page is what agents here read; its source is the second best.
    key = "html" if entry.get("axtree") is None else "axtree"
    return text_of(entry, key, place)


def _thought_of(entry: Mapping[str, Any]) -> str:
    parts = (entry.get("reasoning_content"), entry.get("description"))
    return "\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip())


def _message_action(entry: Mapping[str, Any], place: str) -> Turn:
    text = text_of(entry, "content", place)
    finish = _FINISH.fullmatch(text)
    reply = react(text if finish is None else finish[1])
    thought = "\n".join(filter(None, (_thought_of(entry), reply.thought)))
    return reply._replace(thought=thought, reward=_number(entry.get("reward")))


def _api_action(entry: Mapping[str, Any], place: str) -> Turn:
    arguments = entry.get("kwargs")
    if not isinstance(arguments, Mapping):
        raise Refused(f"{place}: expected an object as 'kwargs'")
    call = ApiCall(text_of(entry, "function", place), arguments)
    return Reply(_thought_of(entry), call, "", reward=_number(entry.get("reward")))


def _code_action(entry: Mapping[str, Any], place: str) -> Turn:
    call = ApiCall("execute", {"language": entry.get("language"), "code": entry.get("content")})
    return Reply(_thought_of(entry), call, "", reward=_number(entry.get("reward")))


_ENTRIES: Mapping[str, Callable[[Mapping[str, Any], str], Turn]] = {
    "text_observation": _text_observation,
    "web_observation": _web_observation,
    "message_action": _message_action,
    "api_action": _api_action,
    "code_action": _code_action,
}


def _read_atif(row: Mapping[str, Any]) -> Reading:
    """Read steps of ATIF, which later versions of the protocol write."""
    turns: list[Turn] = []
    for number, step in enumerate(_list_of(row, "steps"), 1):
        message = _content(step.get("message"), f"step {number}")
        if step.get("source") != "agent":
            turns.append(message)
            continue
        turns += _agent_turns(step, message, f"step {number}")

    instructions, observation, exchanges = episode(turns)
    metrics = row.get("final_metrics")
    reward = _number(metrics.get("reward")) if isinstance(metrics, Mapping) else None
    identity = _id_of(row, "trajectory_id", "session_id")
    return Reading(identity, instructions, observation, exchanges, reward=reward)


def _agent_turns(step: Mapping[str, Any], message: str, place: str) -> list[Turn]:
    """Return an agent's calls with what each was answered, or its message."""
    observation = step.get("observation")
    results = _list_of(observation, "results") if isinstance(observation, Mapping) else ()
    calls = _list_of(step, "tool_calls") if step.get("tool_calls") else ()
    if not calls:
        return [react(message), *(_content(result.get("content"), place) for result in results)]

    reasoning = step.get("reasoning_content")
    thoughts = [reasoning, message] if isinstance(reasoning, str) else [message]
    thought = "\n".join(filter(None, map(str.strip, thoughts)))
    turns: list[Turn] = []
    for index, call in enumerate(calls):
        arguments = call.get("arguments")
        if not isinstance(arguments, Mapping):
            raise Refused(f"{place}: expected an object as 'arguments'")
        named_call = ApiCall(text_of(call, "function_name", place), arguments)
        turns.append(Reply(thought if index == 0 else "", named_call, ""))
        for result in results:
            # One call needs no link to its only answer.
            if len(calls) == 1 or result.get("source_call_id") == call.get("tool_call_id"):
                turns.append(_content(result.get("content"), place))
    return turns


def _content(content: Any, place: str) -> str:
    """Return a text, or the texts of several parts; images are no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise Refused(f"{place}: expected a text, found another kind of content")
        texts.append(text_of(part, "text", place))
    return "\n".join(texts)


def generic_call(call: ApiCall) -> str:
    """Return a call as one line of text."""
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return " ".join(f"{call.function}({arguments})".split())


FORMATS: Mapping[str, Format] = {
    "word2world": Format(
        "Word2World (LLaMA-Factory rows)",
        "https://github.com/X1AOX1A/Word2World, "
        "https://huggingface.co/datasets/X1AOX1A/LLMasWorldModels (arXiv 2512.18832)",
        "none stated",
        _fits_word2world,
        _read_word2world,
    ),
    "agenttraj": Format(
        "AgentTraj-L (AgentGym)",
        "https://github.com/WooooDyy/AgentGym, "
        "https://huggingface.co/datasets/AgentGym/AgentTraj-L (arXiv 2406.04151)",
        "none stated of the data; the repository's is MIT",
        _fits_agenttraj,
        _read_agenttraj,
        split="train",
    ),
    # Before ETO's, whose form these rows have: they are not ETO's data, nor under its license.
    "sharegpt": Format(
        "comap export --to sharegpt",
        "whoever exported the episodes",
        "not stated in the file",
        _fits_sharegpt,
        _read_eto,
    ),
    "eto": Format(
        "ETO's expert trajectories",
        "https://github.com/Yifan-Song793/ETO, "
        "https://huggingface.co/datasets/agent-eto/eto-sft-trajectory (arXiv 2403.02502)",
        "apache-2.0",
        _fits_eto,
        _read_eto,
        split="train",
    ),
    "adp": Format(
        "Agent Data Protocol",
        "https://github.com/neulab/agent-data-protocol, "
        "https://huggingface.co/datasets/neulab/agent-data-collection",
        "that of each data set in it",
        _fits_adp,
        _read_adp,
    ),
}
"""All formats by their names, in the order in which a row is tried."""


def format_of(row: Any) -> str | None:
    """Return the name of the format whose form a row has; None where it has none.

    Example:
        >>> format_of({"conversations": [], "item_id": "webshop_6"})
        'agenttraj'
    """
    return next((name for name, kind in FORMATS.items() if kind.fits(row)), None)
