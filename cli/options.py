"""Options from frozen dataclasses, by jsonargparse: each field is one, the docstring under it its help.

A command is a `Command`: its fields are its options and arguments, its docstring says what it does, and
`run` does it. Settings that depend on what is asked for (an agent's, or a training's with its preset) are
a further dataclass, in the field `config`. Nested settings are named with dots (``--agent.tau-p``), and
also by their last part where no other option has that name.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import docstring_parser
import jsonargparse
import yaml  # type: ignore[import-untyped]

from ..errors import OptionError, check_number, suggest
from ..redaction import HIDDEN, public_option

C = TypeVar("C", bound="Command")

Pairs = Mapping[str, Any]
"""A repeatable option ``--name NAME=VALUE``, its values read as JSON where they are that."""
Texts = Mapping[str, str]
WORD: Mapping[str, Any] = MappingProxyType({"word": True})
"""Metadata of a field that is given by its position on the command line, not by a name."""
SETTINGS: Mapping[str, Any] = MappingProxyType({"settings": True})
"""Metadata of the field ``config``, which holds the settings and is no option itself."""

SHORT_NAMES = {"episodes": "-n"} | {
    name: f"-{name[0]}" for name in ("agent", "env", "model", "out", "seed", "world_model")
}
"""Fields that have a short name, the same in all commands."""

_WORDS = {"concurrency": "live"}  # what the command line calls a field, where not by its name
_LONG_NAMES = {short: name for name, short in SHORT_NAMES.items()}
_STYLES = ("standard", "brief")  # of prompts
_GENERAL = ("config", "print_config", "help", "help_all")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command's options, and what it does."""

    example: ClassVar[str] = ""
    """A command line that works."""
    rare: ClassVar[str] = ""
    """Names of fields that only ``--help-all`` explains."""
    explained: ClassVar[str] = "*"
    """Names of settings that ``--help`` explains too; ``*`` for all."""
    prefix: ClassVar[str] = ""
    """What goes before the name of a setting that one of the fields has too."""
    former: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Options of before that still work, by the names of their fields."""
    replaced: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What to write for options of before that do not work any more."""
    style_option: ClassVar[str | None] = None
    """The option that ``--prompts`` means where its value is a style, and no folder."""
    resumes: ClassVar[bool] = False
    """Whether the same command goes on with what an interrupted one had begun in its folder."""

    def run(self) -> int:
        raise NotImplementedError

    @property
    def folder(self) -> Path | None:
        """Where the session is recorded, with the words and the exit status."""
        return None

    @classmethod
    def resolved(cls, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return all fields: the given options, what follows from them, and ``config`` of the settings.

        Only what the user gave is in `options` and `settings`: a subclass can tell a default from the
        same value given on purpose.
        """
        return options

    @classmethod
    def settings(cls, options: Mapping[str, Any]) -> Any:
        """Return the dataclass instance whose fields are options too, or None."""
        return cls.resolved(options, {}).get("config")

    @classmethod
    def note(cls, options: Mapping[str, Any]) -> str:
        """Return what else help should say."""
        return ""

    @classmethod
    def wrote(cls, record: Mapping[str, Any]) -> bool:
        """Return whether a ``run.json`` is from this command."""
        return False

    def options(self) -> dict[str, Any]:
        """Return all options but ``out``, for ``run.json``: without secrets and folders of this machine."""
        return {
            name: public_option(value, name)
            for name, value in written(self).items()
            if name != "out"
        }


@dataclass(frozen=True, kw_only=True)
class EnvOptions(Command):
    """Environment."""

    env: str = "comap/ALFWorld-v0"
    """Id of the environment, or MODULE:ID of one that MODULE registers; `comap envs` lists ids."""
    env_option: Pairs = field(default_factory=dict)
    """Option of the environment, such as max_episode_steps=30. Repeatable; `comap envs ID` lists them."""
    data_dir: str | None = None
    """Folder with official data (default: the data on this machine, or else generated tasks)."""

    def env_options(self, **elsewhere: str) -> dict[str, Any]:
        """Return the environment's options, after refusing those that have an option of their own."""
        for name, option in {"id": "--env", "data_dir": "--data-dir", **elsewhere}.items():
            if name in self.env_option:
                raise OptionError(f"give {name} as {option}, not as an --env-option")
        if "max_episode_steps" in self.env_option:
            check_number("max_episode_steps", self.env_option["max_episode_steps"])

        options = dict(self.env_option)
        if self.data_dir is not None:
            options["data_dir"] = self.data_dir
        return options


def parse(command: type[C], words: Sequence[str], prog: str) -> C:
    """Return the command that words describe.

    Raises:
        SystemExit: Help or the options were asked for and printed, or a mistake was reported.
    """
    options = Options(command, [*_with_long_names(words, command)], prog)
    words = options.words
    if options.help_is_wanted:
        options.print_help()
        raise SystemExit(0)

    field_values, settings = options.read(words)
    parsed = command(**command.resolved(field_values, settings))

    # Only now: the file has all options, also those that follow from others, and no wrong ones.
    if "--print-config" in words:
        print(yaml.safe_dump(written(parsed), sort_keys=False), end="")
        raise SystemExit(0)
    return parsed


class Options(jsonargparse.ArgumentParser):
    """The options of a command. A mistake prints one line, with exit status 2."""

    def __init__(self, command: type[Command], words: Sequence[str], prog: str):
        super().__init__(
            prog=prog,
            description=paragraphs(command.__doc__),
            formatter_class=_Help,
            print_config=None,
            add_help=False,
            allow_abbrev=False,
        )
        self.command = command
        self.explain_all = "--help-all" in words
        # Docstrings of settings are parsed from source code, which takes longer than many a command.
        self.help_is_wanted = bool({"--help", "-h", "--help-all"} & set(words))
        self.hints: dict[str, Any] = type_hints(command)
        self.fields = {
            option.name: option for option in fields(command) if "settings" not in option.metadata
        }
        self.pairs: dict[str, Any] = {}
        self._add_fields()

        # Which settings there are may depend on options such as --agent: those are read beforehand.
        try:
            self.words = _with_config(words, command)
            raw_values = _raw_values(self.words, self.fields)
            settings = command.settings(raw_values)
        except OptionError as error:
            self.refuse(str(error))
        if settings is not None:
            self._add_settings(settings)

        self.add_argument("--config", action="config", help=argparse.SUPPRESS)
        for name in _GENERAL[1:]:
            self.add_argument(f"--{_dashed(name)}", action="store_true", help=argparse.SUPPRESS)

        self.description = "\n\n".join(filter(None, (self.description, command.note(raw_values))))
        self.epilog = self._end_of_help()
        positions = [
            self._position(option) for option in self.fields.values() if "word" in option.metadata
        ]
        self.usage = " ".join([prog, *positions, "[options]"])

    def _end_of_help(self) -> str:
        text = ""
        if self.command.example:
            text = f"example: {self.command.example}\n\n"
        text += (
            "--config FILE reads options from a YAML or JSON file, or from a run.json; --print-config "
            "prints all options as such a file"
        )
        own_actions = self._actions[: -len(_GENERAL)]
        if any(action.help == argparse.SUPPRESS for action in own_actions):
            text += "; --help-all explains all options"
        return f"{text}."

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report what is wrong with an option in comap's words, and end the program."""
        key_error = re.match(r'Parser key "([^"]+)"', message)
        unknown_key = re.match(r"Option '([\w.-]+)' is not accepted", message)  # of --config

        if message.startswith("the following"):
            message = self._with_flags(message)
        elif unknown_key:
            message = self._unknown(flag(unknown_key[1]))
        elif message.startswith("unrecognized arguments: "):
            surplus = message.partition(": ")[2]
            message = f"expected '{self.usage}' and no more, found {surplus!r:.80}; leave it out"

        message = message.replace("expected one argument", "expected a value after it, found none")
        message = re.sub(r"^(argument --[\w.-]+)\S*:", r"\1:", message)  # without its other names

        wrong_action = None
        if key_error:
            wrong_action = next((a for a in self._actions if a.dest == key_error[1]), None)
        if wrong_action is not None:
            values = re.findall(r"(?:Got value|Given value|Value not boolean): (.*)", message)
            received = f", found {values[-1]!r:.80}" if values else ""
            name = next(iter(wrong_action.option_strings), wrong_action.dest)
            message = (
                f"expected {getattr(wrong_action, 'kind', 'another value')} as {name}{received}"
            )
        self.refuse(message)

    def _with_flags(self, message: str) -> str:
        """Return argparse's list of missing arguments with their names on the command line."""
        for action in self._actions:
            name = next(iter(action.option_strings), action.dest.upper())
            message = re.sub(rf"(: |, ){action.dest}\b", rf"\1{name}", message)
        if self.command.example:
            message += f"; for example: {self.command.example}"
        return message

    def refuse(self, message: str) -> NoReturn:
        """Print what is wrong on one line, and end the program."""
        message = " ".join(message.split())
        self.exit(2, f"{self.prog}: error: {message} (all options: {self.prog} --help-all)\n")

    def read(self, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of the fields and of the settings that were given, and of no others."""
        values = self.parse_args([*self._checked(words)], defaults=False).as_dict()
        field_values: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for name, value in values.items():
            if name in self.pairs and value is not None:
                value = pairs(value, flag(name), self.pairs[name] is Texts)

            # None is a value of a setting ("--micro-batch-rows none"), and of a field the same as no value.
            if name not in self.fields and name not in _GENERAL:
                settings[name.removeprefix(self.command.prefix)] = _frozen(value)
            elif name in self.fields and value is not None:
                field_values[name] = _frozen(value)
        return field_values, settings

    def _checked(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the words, with ``none`` as YAML has it; an unknown option ends the program."""
        action_of_option = self._option_string_actions
        previous_word = ""
        for word in words:
            name, equals, value = word.partition("=")
            if re.match("--?[a-zA-Z]", name) and name not in action_of_option:
                self.refuse(self._unknown(name))

            # A value stands after its option's "=", or is the word after the option.
            action = action_of_option.get(name if equals else previous_word)
            if not equals:
                value = word
            if _takes_null(action) and value.lower() == "none":
                word = f"{name}=null" if equals else "null"

            previous_word = word
            yield word

    def _unknown(self, name: str) -> str:
        """Return that there is no option of a name, and which one may be meant."""
        if name in self.command.replaced:
            return f"there is no option {name} any more; write {self.command.replaced[name]}"

        long_names = (option[2:] for option in self._option_string_actions if option[:2] == "--")
        suggestion = suggest(name.lstrip("-"), long_names)

        # Where no name is close, all are listed: for a command's options, too many for a line.
        hint = "see --help-all"
        if suggestion.startswith("did"):
            hint = suggestion.replace("'", "'--", 1)
        return f"there is no option {name}; {hint}"

    def _position(self, option: Any) -> str:
        """Return an argument as the usage line has it: ``RUNS ...``, ``[DATA_SET]``."""
        metavar = option.name.upper()
        if get_origin(self.hints[option.name]) is tuple:
            metavar += " ..."
        return metavar if option.default is MISSING else f"[{metavar}]"

    def _add_fields(self) -> None:
        """Add the command's fields; those of each class that has some are a group."""
        help_texts = field_help(self.command) if self.help_is_wanted else {}
        rare_fields = self.command.rare.split()

        # The subclass comes first: a field that it declares anew, for another help, is listed with its own.
        groups = []
        unplaced = set(self.fields)
        for cls in self.command.__mro__:
            names = [name for name in vars(cls).get("__annotations__", ()) if name in unplaced]
            unplaced -= set(names)
            groups.append((cls, names))

        # The command's own fields come first, then those of its most general class; before all, a preset.
        groups = groups[:1] + groups[:0:-1]
        groups.sort(key=lambda group: "preset" not in group[1])

        for cls, names in groups:
            if not names:
                continue
            title = "options" if cls is self.command else paragraphs(cls.__doc__).rstrip(".")
            group = self.add_argument_group(title)
            for name in names:
                option = self.fields[name]
                self._add(
                    group,
                    name,
                    self.hints[name],
                    help_texts.get(name, ""),
                    # Help names no default that is made anew for each command: all are empty.
                    default=option.default if option.default_factory is MISSING else None,
                    explained=self.explain_all or name not in rare_fields,
                    is_position="word" in option.metadata,
                )

    def _add_settings(self, settings: Any) -> None:
        """Add nested settings, named by their paths and, where that is unambiguous, by their last part."""
        parts = list(leaves(settings, with_help=self.help_is_wanted))
        last_names = [path[-1] for path, _, _, _ in parts]
        explained_names = self.command.explained.split()

        for path, hint, help_text, value in parts:
            dest = ".".join(path)
            last_name = path[-1]
            is_unique = last_names.count(last_name) == 1

            title = f"settings of {'.'.join(path[:-1]) or type(settings).__name__}"
            group = next((group for group in self._action_groups if group.title == title), None)
            explained = (
                self.explain_all
                or "*" in explained_names
                or dest in explained_names
                or (is_unique and last_name in explained_names)
            )

            # Where a field has the setting's name, the setting bears a prefix: --seed, --agent-seed.
            if dest in self.fields:
                dest = f"{self.command.prefix}{dest}"
            alias = None
            if len(path) > 1 and is_unique and last_name not in self.fields:
                alias = last_name

            self._add(
                group or self.add_argument_group(title),
                dest,
                hint,
                help_text,
                default=value,
                explained=explained,
                alias=alias,
            )

    def _add(
        self,
        group: Any,
        dest: str,
        hint: Any,
        help_text: str,
        *,
        default: Any,
        explained: bool,
        is_position: bool = False,
        alias: str | None = None,
    ) -> None:
        """Add one option, or one argument that is given by its position."""
        help_text = described(help_text, hint, default).replace("%", "%%")
        flags = [dest] if is_position else _flags(dest, alias)
        keywords: dict[str, Any] = {"help": help_text if explained else argparse.SUPPRESS}
        if not is_position:
            keywords["dest"] = dest
            if default is MISSING:
                keywords["required"] = True

        if hint in (Pairs, Texts):
            self.pairs[dest] = hint
            keywords |= {"action": "extend", "nargs": "+", "type": str, "metavar": "NAME=VALUE"}
        elif hint is bool:
            keywords |= {"action": jsonargparse.ActionYesNo(no_prefix="no-"), "default": default}
            flags += [f"--no-{name[2:]}" for name in flags[1:]]
        else:
            keywords |= _value_keywords(dest, hint, default, is_position)

        group.add_argument(*flags, **keywords).kind = _kind(hint)


def _flags(dest: str, alias: str | None) -> list[str]:
    """Return all names of an option, the one that help prints first."""
    flags = [flag(name) for name in (dest, alias) if name]
    if dest in _WORDS:
        flags.append(f"--{dest}")
    if dest in SHORT_NAMES:
        flags.append(SHORT_NAMES[dest])
    return flags


def _value_keywords(dest: str, hint: Any, default: Any, is_position: bool) -> dict[str, Any]:
    """Return argparse's keywords for an option with a value of a type, or with several."""
    list_type = next((member for member in get_args(hint) if get_origin(member) is tuple), hint)
    is_list = get_origin(list_type) is tuple
    value_type = get_args(list_type)[0] if is_list else hint

    is_optional_text = set(get_args(value_type)) == {str, NoneType}
    keywords: dict[str, Any] = {
        "metavar": _metavar(dest, value_type),
        "type": _text_or_none if is_optional_text else value_type,
    }
    may_be_left_out = is_position and default is not MISSING
    if is_list:
        keywords["nargs"] = "*" if may_be_left_out else "+"
        if not is_position:
            keywords["action"] = "extend"
        if get_origin(value_type) is Literal:  # argparse would call it
            keywords |= {"type": str, "choices": get_args(value_type)}
    elif may_be_left_out:
        keywords["nargs"] = "?"
    return keywords


def _takes_null(action: Any) -> bool:
    """Return whether an option's values are read as YAML, and may be none."""
    if action is None or action.type is _text_or_none:
        return False
    return str(getattr(action, "kind", "")).endswith("or none")


def written(command: Command) -> dict[str, Any]:
    """Return a command's options as a file for ``--config`` has them."""
    hints = type_hints(type(command))
    field_values = {
        option.name: _as_written(getattr(command, option.name), hints[option.name])
        for option in fields(command)
        if "settings" not in option.metadata
    }

    config = getattr(command, "config", None) or {}
    settings: Mapping[str, Any] = config
    if is_dataclass(config):
        hints = type_hints(type(config))
        settings = {
            name: _as_written(value, hints[name])
            for name, value in asdict(config).items()  # type: ignore[arg-type]
        }

    # A setting with the name of a field is written as it is named on the command line: agent_seed.
    options = dict(field_values)
    for name, value in settings.items():
        if name in field_values:
            name = f"{command.prefix}{name}"
        options[name] = value

    plain: dict[str, Any] = json.loads(json.dumps(options, default=str))
    return plain


def _as_written(value: Any, hint: Any) -> Any:
    return as_pairs(value) if hint in (Pairs, Texts) else value


def as_pairs(values: Mapping[str, Any]) -> list[str]:
    """Return values by name as one writes them: ``NAME=VALUE``."""
    lines = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"{name}={text}")
    return lines


def flag(name: str) -> str:
    return f"--{_dashed(_WORDS.get(name, name))}"


def _field_help(settings_class: Any) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and of those it inherits from."""
    help_text: dict[str, str] = {}
    for cls in reversed(settings_class.__mro__):
        if is_dataclass(cls):
            help_text |= {
                parameter.arg_name: " ".join((parameter.description or "").split())
                for parameter in docstring_parser.parse_from_object(cls).params
            }
    return {setting.name: help_text.get(setting.name, "") for setting in fields(settings_class)}


# Annotations are text, which is evaluated.
type_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

field_help: Callable[[Any], dict[str, str]] = cache(_field_help)  # it parses a class's source


def pairs(texts: Sequence[str], option: str, plain: bool = False) -> dict[str, Any]:
    """Return the values of several ``--option NAME=VALUE`` by name, read as JSON where they are that.

    Args:
        texts: The words, each ``NAME=VALUE``.
        option: The option's name, for errors.
        plain: Whether values stay text.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError(f"{option} expects NAME=VALUE, found {text!r:.80}")

        values[name] = value
        if not plain:
            with suppress(ValueError):
                values[name] = json.loads(value)
    return values


def completion(commands: Mapping[str, tuple[type[Command], str]], shell: str) -> str:
    """Return a script for a shell that completes the names of commands and their options."""
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise OptionError(f"there is no shell {shell!r}; {suggest(shell, shtab.SUPPORTED_SHELLS)}")
    # shtab reads a parser of all commands: those of two words are parsers within the first word's.
    root = argparse.ArgumentParser("comap")
    groups: dict[str, Any] = {"": root.add_subparsers()}
    for name, (command, help_text) in commands.items():
        *group_words, last_word = name.split()
        group = ""
        for word in group_words:
            outer_group = group
            group = f"{group} {word}".strip()
            if group not in groups:
                groups[group] = groups[outer_group].add_parser(word, help="...").add_subparsers()

        parser = groups[group].add_parser(last_word, help=help_text, add_help=False)
        for action in Options(command, ["--help-all"], f"comap {name}")._actions:
            if action.option_strings:
                parser._add_action(action)

    script: str = shtab.complete(root, shell)
    return script


class _Help(jsonargparse.DefaultHelpFormatter):
    """Lines as wide as the terminal, up to 80 columns."""

    def __init__(self, prog: str):
        width = min(shutil.get_terminal_size((80, 24)).columns, 80)
        super().__init__(prog, max_help_position=28, width=width)  # type: ignore[no-untyped-call]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = [
            textwrap.fill(paragraph, width, break_on_hyphens=False)
            for paragraph in text.split("\n\n")
        ]
        return "\n\n".join(filled)

    def _get_help_string(self, action: argparse.Action) -> str:
        return action.help or ""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return action.dest.upper()
        name = action.option_strings[0]
        if isinstance(action, jsonargparse.ActionYesNo):
            return f"--[no-]{name[2:]}" if action.default else name
        if SHORT_NAMES.get(action.dest) in action.option_strings:
            name = f"{SHORT_NAMES[action.dest]}, {name}"
        return name if action.nargs == 0 else f"{name} {action.metavar or ''}".strip()


def option_help(cls: type[Any]) -> dict[str, str]:
    """Return what a class's docstring says of each option of its constructor, each in one line."""
    help_texts = {}
    for parameter in docstring_parser.parse(cls.__doc__ or "").params:
        description = (parameter.description or "").replace("`", "")
        help_texts[parameter.arg_name] = " ".join(description.split())
    return help_texts


def leaves(
    settings: Any, with_help: bool = True
) -> Iterator[tuple[tuple[str, ...], Any, str, Any]]:
    """Yield path, type, help and value of each setting, those of nested settings in their place.

    Without help its texts are empty.
    """
    hints = type_hints(type(settings))
    help_texts = field_help(type(settings)) if with_help else {}
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if is_dataclass(value):
            for path, *rest in leaves(value, with_help):
                yield (setting.name, *path), *rest
        else:
            yield (setting.name,), hints[setting.name], help_texts.get(setting.name, ""), value


def _raw_values(words: Sequence[str], names: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of some fields as text, before the words are parsed."""
    values: dict[str, Any] = {}
    for word, next_word in zip_longest(words, words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        if not equals:
            value = next_word
        if option == "--config":
            values |= json.loads(value)
        elif option.startswith("--") and value:
            values[option[2:].replace("-", "_")] = value

    return {name: str(values[name]) for name in names if values.get(name) is not None}


def _text_or_none(value: object) -> str | None:
    """Read text that YAML would take for something else, such as the world model ``null``."""
    return None if value in (None, "none") else str(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(nested_value) for name, nested_value in value.items()}
    return tuple(value) if isinstance(value, list) else value


def described(help_text: str, hint: Any, default: Any) -> str:
    """Return the help of an option with the names that it takes and its default, where they are missing."""
    full_stop = "." if help_text.endswith(".") else ""
    help_text = help_text.removesuffix(".")

    # A docstring that names the choices itself says what they mean: they are not listed again.
    possible_types = (*get_args(hint), hint)
    choices = next((kind for kind in possible_types if get_origin(kind) is Literal), None)
    names = [str(name) for name in get_args(choices)]
    if any(not re.search(rf"\b{re.escape(name)}\b", help_text) for name in names):
        help_text += f": {', '.join(names)}"
    help_text = re.sub(r"\bNone\b", "none", help_text).replace("``", "")

    if isinstance(default, tuple):
        default = " ".join(map(str, default)) or None
    elif default is True:
        default = "yes"
    # 0 equals False, and is a default that is worth telling.
    has_default = default is not None and default is not MISSING and default is not False
    if has_default and "default" not in help_text:
        help_text += f" (default: {default})"
    return help_text + full_stop


def _metavar(dest: str, hint: Any) -> str:
    kind = next((member for member in get_args(hint) if member is not NoneType), hint)
    if Literal in (get_origin(hint), get_origin(kind)):
        return "NAME"
    metavar_of_type = {int: "N", float: "X", Path: "PATH"}
    return metavar_of_type.get(kind) or dest.rpartition(".")[2].rpartition("_")[2].upper()


def _kind(hint: Any) -> str:
    """Return what an option expects in words, for errors: "a whole number or none"."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is tuple:
        return f"{_kind(get_args(hint)[0])} (several)"
    if NoneType in get_args(hint):
        kinds = [_kind(member) for member in get_args(hint) if member is not NoneType]
        return f"{' or '.join(kinds)} or none"
    kind_of_type = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        Path: "a path",
    }
    return kind_of_type.get(hint, "another value")


def _with_long_names(words: Sequence[str], command: type[Command]) -> Iterator[str]:
    """Yield the words with options by their present long names: ``-n8`` is ``--episodes=8``."""
    present_names = {old_name: flag(name) for name, old_name in command.former.items()}
    remaining = iter(words)
    for word in remaining:
        short = re.fullmatch(r"(-[a-z])(?:(\d.*)|=(.*))?", word)
        if short and short[1] in _LONG_NAMES:
            value = short[2] or short[3]
            word = flag(_LONG_NAMES[short[1]])
            if value is not None:
                word += f"={value}"
        if word == "--config":
            word = f"--config={next(remaining, '')}"

        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = _dashed(name)
        if name == "--prompts" and command.style_option is not None:
            if not equals:
                value = next(remaining, "")
            equals = "="
            if value in _STYLES:
                name = command.style_option
        yield f"{present_names.get(name, name)}{equals}{value}"


def _with_config(words: Sequence[str], command: type[Command]) -> list[str]:
    """Return the words with a file's options in place of its name, before all others, which win."""
    typed_options = {word.partition("=")[0] for word in words}
    from_files = []
    from_command_line = []
    for word in words:
        option, _, value = word.partition("=")
        if word.startswith("--config="):
            options = _read_config(Path(value), command, typed_options)
            from_files.append(f"{option}={json.dumps(options, default=str)}")
        else:
            from_command_line.append(word)
    return from_files + from_command_line


def _read_config(path: Path, command: type[Command], typed_options: set[str]) -> dict[str, Any]:
    """Return the options of a file, of ``--print-config`` or ``run.json``, but those that were typed."""
    try:
        content = yaml.load(path.read_text("utf-8"), _PlainLoader)
        _check_names(content)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise OptionError(
            f"expected YAML or JSON in the file of --config, found in {path}: "
            f"{getattr(error, 'strerror', None) or error}; --print-config prints such a file"
        ) from error
    if not isinstance(content, dict):
        raise OptionError(f"expected options in {path}, found {content!r:.40}; see --print-config")

    is_record = "format" in content and "sessions" in content
    if is_record:
        try:
            content = dict(content["sessions"][-1]["options"] if command.wrote(content) else ())
        except (LookupError, TypeError, ValueError):
            content = {}
        if not content:
            raise OptionError(
                f"expected the run.json of this command in {path}, found one of another command, or "
                "of Python; give it to its command, or the options themselves"
            )

    options = {name: value for name, value in content.items() if flag(name) not in typed_options}
    for name, value in options.items():
        if is_record and (HIDDEN in str(value) or ".../" in str(value)):
            raise OptionError(
                f"expected {flag(name)}, found none: {path} does not record folders of a machine and "
                f"secrets ({value!r:.80}); add the option"
            )
    return options


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    """Reads YAML without aliases: nine of nine each make a gigabyte of some hundred bytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("an alias (*name); write out what it stands for")
        return super().compose_node(parent, index)


_DEEPEST = 32


def _check_names(content: Any, depth: int = 0) -> None:
    """Raise `ValueError` where a name is no text, or data are nested deeper than options are."""
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels within each other")
    if isinstance(content, dict):
        for name in content:
            if not isinstance(name, str):
                raise ValueError(f"the name {name!r:.40}, which is no text; write it in quotes")
    if isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            _check_names(part, depth + 1)


def _dashed(text: str) -> str:
    """Return an option's name, without its value, with dashes: files have underscores."""
    name, equals, value = text.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def paragraphs(doc: str | None) -> str:
    wrapped_paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in wrapped_paragraphs)
