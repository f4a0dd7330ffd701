"""The agents' prompts: templates filled with what an agent sees, cut to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..envs import state_text
from ..errors import OptionError
from ..lm import Message
from ..lm.prompts import OVERHEAD, cut_text, fill_template, recent_turns
from ..lm.prompts import load_template as _load
from ..trajectory import Turn
from .base import View
from .config import AgentConfig

__all__ = [
    "ask_on",
    "converse",
    "cut_text",
    "example_of",
    "fill",
    "instructions",
    "load_template",
    "recent_turns",
    "situation",
]


def load_template(style: str, name: str) -> tuple[tuple[str, str], ...]:
    """Return the messages of one of the agents' templates: see `comap.lm.prompts`.

    Args:
        style: ``standard``, ``brief``, ``tasks`` or ``reminder``.
        name: The prompt's name.

    Raises:
        OptionError: There is no such template.
    """
    return _load(__package__ or "", style, name)


def fill(style: str, name: str, **slots: str) -> tuple[Message, ...]:
    """Return one of the agents' prompts with its slots filled.

    Raises:
        OptionError: There is no such template.
        KeyError: The template has a slot that was not given.

    Example:
        >>> fill("brief", "act", situation="You hold nothing.")[-1].content
        'You hold nothing.'
    """
    return fill_template(__package__ or "", style, name, **slots)


def instructions(env_id: str) -> str:
    """Return what an agent is told of an environment: its rules and the form of its actions."""
    name = env_id.rpartition("/")[2]
    try:
        return load_template("tasks", name)[0][1]
    except OptionError:
        return load_template("tasks", "any")[0][1]


def example_of(env_id: str) -> tuple[Message, ...]:
    """Return the worked example of an environment, as a conversation; empty where there is none."""
    name = env_id.rpartition("/")[2]
    try:
        return tuple(
            Message(role, text) for role, text in load_template("tasks", f"{name}.example")
        )
    except OptionError:
        return ()


def situation(
    view: View, config: AgentConfig, *, after: Sequence[Turn] = (), reserve: int = 0
) -> str:
    """Return the present in one text: the goal with the turns so far, or the belief in words.

    Args:
        view: What the agent sees.
        config: Which of the two, and how much.
        after: Imagined turns to add (with ``state_text="history"``).
        reserve: Tokens that the rest of the prompt and the reply need.
    """
    turns = (*view.history, *after)
    if config.state_text == "belief":
        text = state_text(view.env_id, view.goal, turns, view.facts)
        return cut_text(text, max(config.max_length - reserve, 64), view.count_tokens)
    first, later = _told(view, config, turns, reserve)
    lines = [first]
    for turn in later:
        lines += [f"> {turn.action}", turn.observation]
    return "\n".join(lines)


def _told(
    view: View,
    config: AgentConfig,
    turns: Sequence[Turn],
    reserve: int,
    overhead: int = OVERHEAD,
) -> tuple[str, tuple[Turn, ...]]:
    """Return the first text, with the goal in it, and the turns that fit after it."""
    count = view.count_tokens
    budget = max(config.max_length - reserve, 64)
    later = list(turns[1:])
    if config.history_turns is not None:
        later = later[max(len(later) - config.history_turns, 0) :]
    later = [turn._replace(action=_brought(view, config, turn.action or "")) for turn in later]
    rest = budget  # what the present does not need, up to half of all
    if later:
        last = count(later[-1].action or "") + count(later[-1].observation) + overhead
        rest -= min(last, budget // 2)
    first = cut_text(turns[0].observation, rest * 3 // 4, count)
    if view.goal and view.goal not in first:
        first = f"{first}\n{cut_text(view.goal, rest // 4, count)}"
    return first, recent_turns(later, budget - count(first), count, overhead)


def _brought(view: View, config: AgentConfig, action: str) -> str:
    """Return an action as prompts show it: one of absurd length is cut."""
    longest = config.max_length // 8
    if len(action.encode("utf-8", "replace")) <= longest:  # a token has at least a byte
        return action
    return cut_text(action, longest, view.count_tokens)


def _further(view: View, config: AgentConfig) -> int:
    """Return the tokens that a draft in standard prompts may need beside its own.

    Either there is a reminder, or a chosen action comes after a thought of full length.
    """
    if config.decoding == "free" or not view.admissible_actions:
        return _size(view, fill("reminder", "standard"))
    longest = max(view.admissible_actions, key=len)
    return view.count_tokens(f"\nAction: {longest}") + OVERHEAD


def converse(
    view: View,
    config: AgentConfig,
    replies: Mapping[int, str] | None = None,
    *,
    reserve: int = 0,
    system: str = "",
) -> tuple[Message, ...]:
    """Return the conversation that asks for the next action (METHODS.md 1.1, draft).

    Standard prompts are an instruction, a worked example and the episode as a conversation in which
    the agent's own replies are the assistant's; brief ones are one message with the situation. The
    example is left out where less than a sixth of `max_length` would remain for the episode.

    Args:
        view: What the agent sees.
        config: Style, state text and sizes.
        replies: What the agent wrote at each step, by step from 0; a step without one shows its
            action alone.
        reserve: Further tokens to leave free, beside the draft's and, in standard prompts, those of a
            reminder or of an action after a thought.
        system: Text to add to the instruction.
    """
    reserve += config.draft_tokens
    if config.prompts == "brief":
        reserve += view.count_tokens(f"{system}\n") if system else 0
        text = situation(view, config, reserve=reserve + OVERHEAD)
        return fill("brief", "act", situation=f"{system}\n{text}" if system else text)
    rules = f"{instructions(view.env_id)}\n\n{system}" if system else instructions(view.env_id)
    head = fill("standard", "act", instructions=rules)
    reserve += _size(view, head) + _further(view, config)
    if config.examples and config.state_text == "history":
        example = example_of(view.env_id)
        size = _size(view, example)
        if config.max_length - reserve - size >= config.max_length // 6:
            head, reserve = head + example, reserve + size
    if config.state_text == "belief":
        return (*head, Message("user", situation(view, config, reserve=reserve + OVERHEAD)))
    return (*head, *_turns_as_messages(view, config, replies or {}, reserve))


def _size(view: View, messages: Sequence[Message]) -> int:
    return sum(view.count_tokens(message.content) + OVERHEAD for message in messages)


def _turns_as_messages(
    view: View, config: AgentConfig, replies: Mapping[int, str], reserve: int
) -> list[Message]:
    longest = config.max_length // 8  # a server may not keep to the tokens it was given
    shown = []
    for step, turn in enumerate(view.history[1:]):
        plain = f"Action: {turn.action}"
        reply = replies.get(step) or plain
        fits = view.count_tokens(reply) <= longest
        shown.append(Turn(reply if fits else plain, turn.observation))
    turns = (view.history[0], *shown)
    first, later = _told(view, config, turns, reserve + OVERHEAD, 2 * OVERHEAD)
    messages = [Message("user", first)]
    for turn in later:
        messages.append(Message("assistant", turn.action or ""))
        messages.append(Message("user", turn.observation))
    return messages


def ask_on(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    r"""Return a conversation with `text` added to what the user says last.

    Many chat templates refuse two user messages in a row, so it joins the last one.

    Example:
        >>> ask_on([Message("user", "It is dark.")], "What now?")
        (Message(role='user', content='It is dark.\n\nWhat now?'),)
    """
    *before, last = messages
    if last.role == "user":
        return (*before, Message("user", f"{last.content}\n\n{text}"))
    return (*messages, Message("user", text))
