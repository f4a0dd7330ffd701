"""The prompt of PaW's agent: task, last steps, the present, and what can be done (METHODS.md 2.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..lm import Message
from ..lm.prompts import OVERHEAD, cut_text
from .base import View
from .prompting import fill
from .tags import env_name

if TYPE_CHECKING:
    from .paw import PaWConfig

__all__ = ["page_text", "tagged_prompt"]

_OWN = ("alfworld", "webshop", "searchqa")  # environments that have prompts of their own
_LONGEST_PAGE = 13_000  # characters of a WebShop prompt with history (METHODS.md 2.8)
_UNLISTED = "(They are not listed.)"
_TASK = "\n\nYour task is to: "
_SLOTS = (  # METHODS.md 2.8; not every template has each
    "task_description",
    "step_count",
    "history_length",
    "action_history",
    "memory_context",
    "current_step",
    "current_observation",
    "admissible_actions",
    "available_actions",
)


def tagged_prompt(view: View, config: PaWConfig) -> tuple[Message, ...]:
    r"""Return the message that asks for the next action (METHODS.md 2.8).

    Args:
        view: What the agent sees.
        config: How many steps and tokens.

    Example:
        >>> from comap.agents.paw import PaWConfig
        >>> from comap.facts import State
        >>> from comap.trajectory import Turn
        >>> turns = (Turn(None, "A desk."), Turn("look", "A pen."))
        >>> view = View("id", "task", "Wait.", turns, State(), ("wait",), 1, lambda: None)
        >>> (message,) = tagged_prompt(view, PaWConfig())
        >>> "[Observation 1: 'A desk.', Action 1: 'look']" in message.content
        True
        >>> message.content[message.content.index("This is step") :].splitlines()[:2]
        ['This is step 2. What you perceive now:', 'A pen.']
    """
    name = env_name(view.env_id)
    name = name if name in _OWN else "any"
    lines = _memory(view, config) if name == "searchqa" else _history(view, config, name)
    numbers = {"step_count": str(len(view.history) - 1), "current_step": str(len(view.history))}
    numbers["history_length"] = str(len(lines))
    bare = _filled(name if lines else f"{name}_first", numbers) + _TASK + _UNLISTED
    reserve = config.draft_tokens + OVERHEAD + view.count_tokens(bare)
    slots, room = _present(view, name, max(config.max_length - reserve, 64))
    lines = _newest(lines, room, view, keep_one=name == "searchqa")
    if lines:
        told = "\n".join(lines)
        slots |= {**numbers, "history_length": str(len(lines))}
        slots |= {"action_history": told, "memory_context": told}
        text = _filled(name, slots)
        if name != "webshop" or len(text) <= _LONGEST_PAGE:
            return (Message("user", text),)
    if name == "alfworld" and view.goal not in slots["current_observation"]:
        slots["current_observation"] += _TASK + slots["task_description"]  # else said nowhere
    return (Message("user", _filled(f"{name}_first", slots)),)


def page_text(goal: str, text: str) -> str:
    """Return a page of WebShop as prompts show it: its parts in quotes, from behind the instruction.

    Other text is returned as it is (METHODS.md 2.3).

    Args:
        goal: The instruction.
        text: The page in upstream's form, parts joined by ``[SEP]``.

    Example:
        >>> page_text("a red mug", "WebShop [SEP] Instruction: [SEP] a red mug [SEP] Search")
        "'Search'"
        >>> page_text("a red mug", "Back to Search [SEP] Page 1")
        "'Back to Search' [SEP] 'Page 1'"
    """
    parts = text.split(" [SEP] ")
    if len(parts) == 1:
        return text
    after = parts[parts.index(goal) + 1 :] if goal in parts else parts
    return " [SEP] ".join(f"'{part}'" for part in after or parts)


def _filled(template: str, slots: dict[str, str]) -> str:
    """Return the text of one of PaW's prompts; a slot that is not given is empty."""
    return fill("paw", template, **(dict.fromkeys(_SLOTS, "") | slots))[0].content


def _seen(view: View, name: str, number: int) -> str:
    """Return an observation as prompts show it."""
    text = view.history[number].observation
    return page_text(view.goal, text) if name == "webshop" else text


def _did(view: View, config: PaWConfig, number: int) -> str:
    """Return an action as prompts show it: one of absurd length is cut."""
    return cut_text(view.history[number].action or "", config.max_length // 8, view.count_tokens)


def _history(view: View, config: PaWConfig, name: str) -> list[str]:
    """Return a line for each of the last steps: what was seen and what was done then."""
    return [
        f"[Observation {k}: '{_seen(view, name, k - 1)}', Action {k}: '{_did(view, config, k)}']"
        for k in _last(view, config.history_turns)
    ]


def _memory(view: View, config: PaWConfig) -> list[str]:
    """Return a line for each of the last searches: what was done and what was found then."""
    lines = []
    for k in _last(view, config.memory_turns):
        found = view.history[k].observation.strip()
        if not (found.startswith("<information>") and found.endswith("</information>")):
            found = f"<information>{found}</information>"
        lines.append(f"Step {k}:{_did(view, config, k)} {found}")
    return lines


def _last(view: View, turns: int | None) -> range:
    """Return the numbers of the last steps, counted from 1."""
    taken = len(view.history) - 1
    return range(1 if turns is None else max(taken - turns, 0) + 1, taken + 1)


def _present(view: View, name: str, room: int) -> tuple[dict[str, str], int]:
    """Return the slots that tell the present, cut to fit, and how many tokens they leave."""
    count = view.count_tokens
    goal = cut_text(view.goal, room // 4, count)
    room -= count(goal)
    slots = {"task_description": goal}
    if name == "searchqa":
        return slots, room
    actions = _actions(view, name)
    sizes = [count(line) + 1 for line in actions]
    seen = cut_text(_seen(view, name, -1), max(room - sum(sizes), room // 2), count)
    room -= count(seen)
    kept = 0
    while kept < len(actions) and sizes[kept] <= room:
        room -= sizes[kept]
        kept += 1
    listed = "\n".join(actions[:kept]) or _UNLISTED
    slots |= {"current_observation": seen}
    slots |= {"admissible_actions": listed, "available_actions": listed}
    return slots, room


def _actions(view: View, name: str) -> list[str]:
    """Return a line for each action that can be taken now, as far as that is known."""
    actions = list(view.admissible_actions or ())
    if name == "alfworld":
        actions = [action for action in actions if action != "help"]
    if name == "webshop":
        pages = [action for action in actions if not action.startswith("search[")]
        search = ["search[<your query>]"] if len(pages) < len(actions) else []
        actions = search + pages
    return [f"'{action}'" for action in actions]


def _newest(lines: Sequence[str], room: int, view: View, *, keep_one: bool) -> list[str]:
    """Return the newest lines that fit, oldest first; with `keep_one` the last, cut if it must be."""
    kept: list[str] = []
    for line in reversed(lines):
        size = view.count_tokens(line) + 1
        if size > room:
            if keep_one and not kept:
                kept.append(cut_text(line, room - 1, view.count_tokens))
            break
        kept.append(line)
        room -= size
    return kept[::-1]
