"""The options of `comap train comap`: what is trained on what, and every setting.

What `comap train` does for every method, an option for each setting, is here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from types import NoneType
from typing import Any, NoReturn, get_args, get_type_hints

from ..envs.registered import evaluated_splits, is_slow
from ..errors import suggest
from ..trainers.config import PRESETS, TINY_WHERE_SLOW, CoMapTraining, preset
from .options import add_fields
from .training_inputs import declare_model, declare_tasks

__all__ = ["TrainParser", "add_settings", "declare", "given_settings", "settings_of"]


class TrainParser(argparse.ArgumentParser):
    """Says in one line what is wrong with the options, as there are many.

    Example:
        >>> parser = TrainParser("comap train comap", allow_abbrev=False)
        >>> action = parser.add_argument("--rounds", type=int)
        >>> parser.parse_args(["--rounds", "2"]).rounds
        2
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse all arguments; there is nothing left over, else the program ends."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest))
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in a line, and end."""
        self.exit(2, f"{self.prog}: error: {message} (all options: {self.prog} --help)\n")

    def _unknown(self, words: Sequence[str]) -> str:
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        if not options:
            return f"expected options, found {' '.join(words)!r:.80}"
        known = sorted(name for name in self._option_string_actions if name.startswith("--"))
        close = suggest(options[0], known)
        hint = f"; {close}" if close.startswith("did you") else ""
        return f"there is no option {options[0]}{hint}"


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options of `comap train comap` to its parser.

    Example:
        >>> parser = TrainParser("comap train comap")
        >>> declare(parser)
        >>> parser.parse_args(["--no-wmsd", "--evaluation-tasks", "none"]).wmsd
        False
    """
    add = parser.add_argument_group("what is trained, and on what").add_argument
    declare_model(add, PRESETS)
    add("--policy", metavar="DIR", help="what the policy begins from instead (models/agent)")
    add("--world-model", metavar="DIR", help="what the world model begins from (models/wm)")
    add("--warmed-up", action="store_true", help="they are warmed up: leave those stages out")
    declare_tasks(add, "comap")
    add_settings(parser, CoMapTraining)


def add_settings(parser: argparse.ArgumentParser, config: type) -> None:
    """Add an option for each setting; where a setting may be None, so may the option.

    Args:
        parser: The parser.
        config: The dataclass of the settings.

    Example:
        >>> parser = TrainParser("comap train comap")
        >>> add_settings(parser, CoMapTraining)
        >>> parser.parse_args(["--topk", "none", "--eta", "0.25"])
        Namespace(topk=None, eta=0.25)
    """
    before = set(parser._actions)
    add_fields(parser, config)
    hints = get_type_hints(config)
    for action in parser._actions:
        if action not in before and NoneType in get_args(hints[action.dest]):
            action.type = _or_none(action.type)
            action.metavar = f"{action.dest.upper()}|none"


def _or_none(read: Any) -> Any:
    def reader(text: str) -> Any:
        return None if text == "none" else read(text)

    reader.__name__ = getattr(read, "__name__", "value")  # argparse names it where it fails
    return reader


def given_settings(
    options: argparse.Namespace, config: type, either: tuple[str, str]
) -> dict[str, Any]:
    """Return the settings that parsed arguments name.

    Args:
        options: The arguments.
        config: The dataclass of the settings.
        either: Two settings of which one is None: where only one is given, the other becomes None.

    Example:
        >>> options = argparse.Namespace(batch_rows=4, preset="tiny")
        >>> given_settings(options, CoMapTraining, ("batch_rows", "batch_tokens"))
        {'batch_rows': 4, 'batch_tokens': None}
    """
    given = vars(options)
    chosen = {part.name: given[part.name] for part in fields(config) if part.name in given}
    chosen = {n: tuple(value) if isinstance(value, list) else value for n, value in chosen.items()}
    for one, other in (either, either[::-1]):
        if chosen.get(one) is not None:
            chosen.setdefault(other, None)
    return chosen


def settings_of(options: argparse.Namespace) -> CoMapTraining:
    """Return the preset that parsed arguments name, with what else they say.

    Evaluations are on the environment's own splits for that, unless others are given.

    Raises:
        OptionError: There is no such preset, or a value is not allowed.

    Example:
        >>> settings_of(argparse.Namespace(preset="tiny", batch_rows=4)).batch_tokens is None
        True
    """
    chosen = given_settings(options, CoMapTraining, ("batch_rows", "batch_tokens"))
    splits = () if getattr(options, "env", None) is None else evaluated_splits(options.env)
    if splits:
        chosen.setdefault("evaluation_splits", splits)
    if options.preset == "tiny" and is_slow(getattr(options, "env", None) or ""):
        chosen = {**TINY_WHERE_SLOW, **chosen}
    return preset(options.preset, **chosen)
