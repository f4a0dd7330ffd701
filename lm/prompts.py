"""Prompt templates from files, and text cut to fit.

A template is a text file of messages, each after a line ``[system]``, ``[user]`` or ``[assistant]``,
with slots such as ``$goal``. Slots are filled once: text from environments and models is never read
as a template. A user replaces prompts by files of the same names in a folder: see `check_prompt_folder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import NamedTuple

from ..errors import OptionError, suggest
from ..trajectory import Turn
from .base import Message

OVERHEAD = 8
"""Tokens that a chat template puts around a message, generously."""

_ROLE = re.compile(r"^\[(system|user|assistant)\]$", re.MULTILINE)
_ROOMS = ("agents", "envs", "trainers", "worldmodel")  # of the package that have prompts
CUT = " [...]"
"""Marks where a text was cut."""


@lru_cache(maxsize=512)
def load_template(
    package: str, style: str, name: str, folder: str | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the messages of a template, with their slots, as pairs of role and text.

    Args:
        package: The package whose folder ``prompts`` holds the template.
        style: The folder in ``prompts``.
        name: The file, without ``.txt``.
        folder: A user's folder of prompts: a file in it replaces the package's (`replacement`).

    Raises:
        OptionError: There is no such template.
    """
    # The name may come from a user's settings: no path leads out of the folder.
    path: Path | Traversable = files(package) / "prompts" / style / f"{name}.txt"
    if not re.fullmatch(r"[\w.-]+", name) or not path.is_file():
        raise OptionError(f"there is no prompt {name!r} in the style {style!r} of {package}")

    if folder is not None:
        users_file = Path(folder) / replacement(package, style, name)
        if users_file.is_file():
            path = users_file
    return messages_in(path.read_text("utf-8"))


def replacement(package: str, style: str, name: str) -> Path:
    """Return where a user's folder of prompts has its own version of a template.

    The folder mirrors the package, without the folders called ``prompts``:
    ``agents/standard/act.txt``, ``envs/webshop/briefing/instructions.txt``.
    """
    _, *rooms = package.split(".")
    return Path(*rooms, style, f"{name}.txt")


def messages_in(text: str) -> tuple[tuple[str, str], ...]:
    """Return the messages of a template's text, as pairs of role and text."""
    # What stands before the first role belongs to no message.
    _, *parts = _ROLE.split(text)
    return tuple(
        (role, content.strip("\n")) for role, content in zip(parts[::2], parts[1::2], strict=True)
    )


def fill_template(
    package: str, style: str, name: str, *, prompt_folder: str | None = None, **slots: str
) -> tuple[Message, ...]:
    """Return a template's messages with its slots filled, once: text in a slot is never a template."""
    return tuple(
        Message(role, Template(text).substitute(slots))
        for role, text in load_template(package, style, name, prompt_folder)
    )


class PromptFile(NamedTuple):
    """A prompt of this package: where it is in a user's folder of prompts, and its text."""

    path: Path
    text: str


@cache
def packaged_prompts() -> tuple[PromptFile, ...]:
    """Return all prompts of this package that a folder of prompts may replace, in order of their paths."""
    root = Path(str(files(__package__.partition(".")[0])))
    prompts = []

    # Room by room: in a checkout the root also holds virtual environments, whose files are many.
    for room in _ROOMS:
        for path in (root / room).rglob("prompts/*/*.txt"):
            folders = path.relative_to(root).parts
            mirrored = Path(*(folder for folder in folders if folder != "prompts"))
            prompts.append(PromptFile(mirrored, path.read_text("utf-8")))

    return tuple(sorted(prompts))


def check_prompt_folder(folder: str | Path) -> tuple[Path, ...]:
    """Return the files of a user's folder of prompts that replace ours.

    Raises:
        OptionError: There is no such folder, it has no prompt, a file in it is none of our prompts, has
            no messages, or has a slot that its original has not.
    """
    root = Path(folder).expanduser()
    remedy = "write the prompts that are there with: comap init prompts --out DIR"
    if not root.is_dir():
        raise OptionError(f"expected a folder of prompts, found none at {root}; {remedy}")

    originals = {prompt.path: prompt.text for prompt in packaged_prompts()}
    replaced = sorted(path.relative_to(root) for path in root.rglob("*.txt"))
    if not replaced:
        raise OptionError(f"expected prompts (*.txt) in {root}, found none; {remedy}")

    for path in replaced:
        text = (root / path).read_text("utf-8", errors="replace")

        # A briefing may also be of an environment that a user registered, which has no original.
        own_environment = path.parts[0] == "envs" and path.parts[2:3] == ("briefing",)
        if path not in originals and not own_environment:
            names = [original.as_posix() for original in originals]
            raise OptionError(
                f"expected prompts of comap in {root}, found {path.as_posix()!r:.120}, which is none; "
                f"{suggest(path.as_posix(), names)}"
            )
        _check_template(path, text, originals.get(path, ""))
    return tuple(replaced)


def _check_template(path: Path, text: str, original: str) -> None:
    """Refuse a user's template without messages, or with a slot that nothing fills."""
    if not messages_in(text):
        raise OptionError(
            f"expected messages in the prompt {path.as_posix()}, each after a line [system], [user] or "
            "[assistant], found none; add such a line"
        )
    if path.parts[0] == "envs":  # not filled: a $ is a $ there
        return

    slots = set(Template(text).get_identifiers())
    filled_slots = set(Template(original).get_identifiers())
    unfilled_slots = sorted(slots - filled_slots)
    if unfilled_slots:
        expected = ", ".join(f"${name}" for name in sorted(filled_slots)) or "none"
        raise OptionError(
            f"expected the slots {expected} in the prompt {path.as_posix()}, found ${unfilled_slots[0]}; "
            "write $$ for a dollar sign"
        )
    if not Template(text).is_valid():
        raise OptionError(
            f"expected a name or a second $ after each $ in the prompt {path.as_posix()}; write $$ for "
            "a dollar sign"
        )


def recent_turns(
    turns: Sequence[Turn], budget: int, count: Callable[[str], int], overhead: int = OVERHEAD
) -> tuple[Turn, ...]:
    """Return the newest turns that fit a budget, oldest first; the last is kept, cut if it must be."""
    # Whole turns from the newest back: what happened last matters most, and half a turn misleads.
    recent: list[Turn] = []
    for turn in reversed(turns):
        cost = count(turn.action or "") + count(turn.observation) + overhead
        if cost > budget:
            if not recent:
                room = budget - count(turn.action or "") - overhead
                recent.append(turn._replace(observation=cut_text(turn.observation, room, count)))
            break
        recent.append(turn)
        budget -= cost
    return tuple(reversed(recent))


def cut_text(text: str, budget: int, count: Callable[[str], int]) -> str:
    """Return the beginning of a text that fits a budget, marked where it was cut."""
    if count(text) <= budget:
        return text

    # A search by halves over characters: tokens cannot be cut, for two of their beginnings may join.
    low = 0
    high = len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[:middle] + CUT) <= budget:
            low = middle
        else:
            high = middle - 1
    return text[:low] + CUT
