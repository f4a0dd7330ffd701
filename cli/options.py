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
    shown: ClassVar[str] = "*"
    """Names of settings that ``--help`` explains too; ``*`` for all."""
    prefix: ClassVar[str] = ""
    """What goes before the name of a setting that one of the fields has too."""
    former: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Options of before that still work, by the names of their fields."""
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
    def resolved(cls, own: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return all fields: those given, what follows from them, and ``config`` of given settings."""
        return own

    @classmethod
    def settings(cls, own: Mapping[str, Any]) -> Any:
        """Return the dataclass instance whose fields are options too, or None."""
        return cls.resolved(own, {}).get("config")

    @classmethod
    def note(cls, own: Mapping[str, Any]) -> str:
        """Return what else help should say."""
        return ""

    @classmethod
    def wrote(cls, record: Mapping[str, Any]) -> bool:
        """Return whether a ``run.json`` is from this command."""
        return False

    def options(self) -> dict[str, Any]:
        """Return all options but ``out``, for ``run.json``: without secrets and folders of this machine."""
        return {k: public_option(v, k) for k, v in written(self).items() if k != "out"}


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
        chosen = {} if self.data_dir is None else {"data_dir": self.data_dir}
        return {**self.env_option, **chosen}


def parse(command: type[C], words: Sequence[str], prog: str) -> C:
    """Return the command that words describe; after help and mistakes the program ends."""
    options = Options(command, [*_spelled(words, command)], prog)
    words = options.words
    if {"--help", "-h", "--help-all"} & set(words):
        options.print_help()
        raise SystemExit(0)
    own, given = options.read(words)
    made = command(**command.resolved(own, given))
    if "--print-config" in words:
        print(yaml.safe_dump(written(made), sort_keys=False), end="")
        raise SystemExit(0)
    return made


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
        self.made, self.explain_all = command, "--help-all" in words
        self.hints: dict[str, Any] = get_type_hints(command)
        self.own = {p.name: p for p in fields(command) if "settings" not in p.metadata}
        self.pairs: dict[str, Any] = {}
        self._add_own()
        try:
            self.words = _with_config(words, command)
            said = _said(self.words, self.own)
            settings = command.settings(said)
        except OptionError as error:
            self.say(str(error))
        if settings is not None:
            self._add_settings(settings)
        self.add_argument("--config", action="config", help=argparse.SUPPRESS)
        for name in _GENERAL[1:]:
            self.add_argument(f"--{_dashed(name)}", action="store_true", help=argparse.SUPPRESS)
        self.description = "\n\n".join(filter(None, (self.description, command.note(said))))
        hidden = any(action.help == argparse.SUPPRESS for action in self._actions[:-4])
        self.epilog = f"example: {command.example}\n\n" if command.example else ""
        self.epilog += (
            "--config FILE reads options from a YAML or JSON file, or from a run.json; --print-config "
            "prints all options as such a file"
        ) + ("; --help-all explains all options." if hidden else ".")
        positions = [self._position(part) for part in self.own.values() if "word" in part.metadata]
        self.usage = " ".join([prog, *positions, "[options]"])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong with an option, and end the program."""
        wrong = re.match(r'Parser key "([^"]+)"', message)
        action = next((a for a in self._actions if wrong and a.dest == wrong[1]), None)
        if message.startswith("the following"):
            for one in self._actions:
                name = next(iter(one.option_strings), one.dest.upper())
                message = re.sub(rf"(: |, ){one.dest}\b", rf"\1{name}", message)
            message += f"; for example: {self.made.example}" if self.made.example else ""
        if strange := re.match(r"Option '([\w.-]+)' is not accepted", message):  # of --config
            message = self._unknown(flag(strange[1]))
        message = message.replace("expected one argument", "expected a value after it, found none")
        if message.startswith("unrecognized arguments: "):
            rest = message.partition(": ")[2]
            message = f"expected '{self.usage}' and no more, found {rest!r:.80}; leave it out"
        message = re.sub(r"^(argument --[\w.-]+)\S*:", r"\1:", message)  # without its other names
        if action is not None:
            value = re.findall(r"(?:Got value|Given value|Value not boolean): (.*)", message)
            found = f", found {value[-1]!r:.80}" if value else ""
            name = next(iter(action.option_strings), action.dest)
            message = f"expected {getattr(action, 'kind', 'another value')} as {name}{found}"
        self.say(message)

    def say(self, message: str) -> NoReturn:
        """Say what is wrong, and end the program."""
        message = " ".join(message.split())
        self.exit(2, f"{self.prog}: error: {message} (all options: {self.prog} --help-all)\n")

    def read(self, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of the fields and of the settings that were given, and of no others."""
        values = self.parse_args([*self._checked(words)], defaults=False).as_dict()
        own: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name in self.pairs and value is not None:
                value = pairs(value, flag(name), self.pairs[name] is Texts)
            if name not in self.own and name not in _GENERAL:
                given[name.removeprefix(self.made.prefix)] = _frozen(value)
            elif name in self.own and value is not None:
                own[name] = _frozen(value)
        return own, given

    def _checked(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the words, with ``none`` as YAML has it; an option that there is not ends the program."""
        known, before = self._option_string_actions, ""
        for word in words:
            name, equals, value = word.partition("=")
            if re.match("--?[a-zA-Z]", name) and name not in known:
                self.say(self._unknown(name))
            action = known.get(name if equals else before)
            kind = "" if action is None else getattr(action, "kind", "")
            if kind.endswith("or none") and action is not None and action.type is not _text_or_none:
                value = value if equals else word
                value = "null" if value.lower() == "none" else value
                word = f"{name}={value}" if equals else value
            before = word
            yield word

    def _unknown(self, name: str) -> str:
        close = suggest(
            name.lstrip("-"), (o[2:] for o in self._option_string_actions if o[:2] == "--")
        )
        hint = close.replace("'", "'--", 1) if close[:3] == "did" else "see --help-all"
        return f"there is no option {name}; {hint}"

    def _position(self, part: Any) -> str:
        several = " ..." if get_origin(self.hints[part.name]) is tuple else ""
        text = f"{part.name.upper()}{several}"
        return text if part.default is MISSING else f"[{text}]"

    def _add_own(self) -> None:
        """Add the command's fields; those of each class that has some are a group."""
        help_text, rare = field_help(self.made), self.made.rare.split()
        left, groups = set(self.own), []
        for cls in self.made.__mro__:
            names = [name for name in vars(cls).get("__annotations__", ()) if name in left]
            left -= set(names)
            groups.append((cls, names))
        groups = groups[:1] + groups[:0:-1]  # its own first
        for cls, names in sorted(groups, key=lambda group: "preset" not in group[1]):
            title = "options" if cls is self.made else paragraphs(cls.__doc__).rstrip(".")
            group = self.add_argument_group(title) if names else None
            for name in names:
                part, shown = self.own[name], self.explain_all or name not in rare
                default = part.default if part.default_factory is MISSING else None
                word = "word" in part.metadata
                self._add(group, name, self.hints[name], help_text[name], default, shown, word=word)

    def _add_settings(self, settings: Any) -> None:
        parts = list(leaves(settings))
        names = [path[-1] for path, _, _, _ in parts]
        wanted = self.made.shown.split()
        for path, hint, help_text, value in parts:
            title = f"settings of {'.'.join(path[:-1]) or type(settings).__name__}"
            group = next((g for g in self._action_groups if g.title == title), None)
            group = group or self.add_argument_group(title)
            dest, last = ".".join(path), path[-1]
            alone = names.count(last) == 1
            shown = (
                self.explain_all or "*" in wanted or dest in wanted or (alone and last in wanted)
            )
            short = last if len(path) > 1 and alone and last not in self.own else None
            dest = f"{self.made.prefix}{dest}" if dest in self.own else dest
            self._add(group, dest, hint, help_text, value, shown, short=short)

    def _add(
        self,
        group: Any,
        dest: str,
        hint: Any,
        help_text: str,
        default: Any,
        shown: bool,
        *,
        word: bool = False,
        short: str | None = None,
    ) -> None:
        flags = [dest] if word else [flag(name) for name in (dest, short) if name]
        flags += [f"--{dest}"] if dest in _WORDS else []
        flags += [SHORT_NAMES[dest]] if dest in SHORT_NAMES and not word else []
        help_text = described(help_text, hint, default).replace("%", "%%")
        kind: dict[str, Any] = {"help": help_text if shown else argparse.SUPPRESS}
        if hint in (Pairs, Texts):
            self.pairs[dest] = hint
            kind |= {"action": "extend", "nargs": "+", "type": str, "metavar": "NAME=VALUE"}
        elif hint is bool:
            kind |= {"action": jsonargparse.ActionYesNo(no_prefix="no-"), "default": default}
            flags += [f"--no-{name[2:]}" for name in flags[1:]]
        else:
            bare = next((one for one in get_args(hint) if get_origin(one) is tuple), hint)
            several = get_origin(bare) is tuple
            inner = get_args(bare)[0] if several else hint
            kind["metavar"] = _metavar(dest, inner)
            kind["type"] = _text_or_none if set(get_args(inner)) == {str, NoneType} else inner
            if several:
                kind["nargs"] = "*" if word and default is not MISSING else "+"
                kind |= {} if word else {"action": "extend"}
                if get_origin(inner) is Literal:  # argparse would call it
                    kind |= {"type": str, "choices": get_args(inner)}
            elif word and default is not MISSING:
                kind["nargs"] = "?"
        if default is MISSING and not word:
            kind["required"] = True
        if not word:
            kind["dest"] = dest
        group.add_argument(*flags, **kind).kind = _kind(hint)


def written(command: Command) -> dict[str, Any]:
    """Return a command's options as a file for ``--config`` has them."""
    found: dict[str, Any] = {}
    hints = get_type_hints(type(command))
    for name in (part.name for part in fields(command) if "settings" not in part.metadata):
        value = getattr(command, name)
        found[name] = _as_pairs(value) if hints[name] in (Pairs, Texts) else value
    config = getattr(command, "config", None) or {}
    settings: Mapping[str, Any] = config
    if is_dataclass(config):
        hints = get_type_hints(type(config))
        settings = {
            name: _as_pairs(value) if hints[name] in (Pairs, Texts) else value
            for name, value in asdict(config).items()  # type: ignore[arg-type]
        }
    settings = {f"{command.prefix}{k}" if k in found else k: v for k, v in settings.items()}
    plain: dict[str, Any] = json.loads(json.dumps(found | settings, default=str))
    return plain


def _as_pairs(values: Mapping[str, Any]) -> list[str]:
    """Return values by name as one writes them: ``NAME=VALUE``."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    return [f"{key}={text}" for key, text in texts.items()]


def flag(name: str) -> str:
    return f"--{_dashed(_WORDS.get(name, name))}"


def _field_help(made: Any) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and of those it inherits from."""
    help_text: dict[str, str] = {}
    for cls in reversed(made.__mro__):
        if is_dataclass(cls):
            help_text |= {
                part.arg_name: " ".join((part.description or "").split())
                for part in docstring_parser.parse_from_object(cls).params
            }
    return {part.name: help_text.get(part.name, "") for part in fields(made)}


field_help: Callable[[Any], dict[str, str]] = cache(_field_help)  # it parses a class's source


def pairs(texts: Sequence[str], option: str, plain: bool = False) -> dict[str, Any]:
    """Return what several ``--option NAME=VALUE`` say, the values read as JSON where they are that."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError(f"{option} expects NAME=VALUE, found {text!r:.80}")
        found[name] = value
        if not plain:
            with suppress(ValueError):
                found[name] = json.loads(value)
    return found


def completion(commands: Mapping[str, tuple[type[Command], str]], shell: str) -> str:
    """Return a script for a shell that completes the names of commands and their options."""
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        raise OptionError(f"there is no shell {shell!r}; {suggest(shell, shtab.SUPPORTED_SHELLS)}")
    root = argparse.ArgumentParser("comap")
    groups: dict[str, Any] = {"": root.add_subparsers()}
    for name, (command, help_text) in commands.items():
        *parts, last = name.split()
        group = ""
        for part in parts:
            outer, group = group, f"{group} {part}".strip()
            if group not in groups:
                groups[group] = groups[outer].add_parser(part, help="...").add_subparsers()
        made = groups[group].add_parser(last, help=help_text, add_help=False)
        for action in Options(command, ["--help-all"], f"comap {name}")._actions:
            if action.option_strings:
                made._add_action(action)
    script: str = shtab.complete(root, shell)
    return script


class _Help(jsonargparse.DefaultHelpFormatter):
    """Lines as wide as the terminal, up to 80 columns."""

    def __init__(self, prog: str):
        width = min(shutil.get_terminal_size((80, 24)).columns, 80)
        super().__init__(prog, max_help_position=28, width=width)  # type: ignore[no-untyped-call]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(textwrap.fill(one, width, break_on_hyphens=False) for one in parts)

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


def leaves(settings: Any) -> Iterator[tuple[tuple[str, ...], Any, str, Any]]:
    """Yield path, type, help and value of each setting, those of nested settings in their place."""
    hints, help_text = get_type_hints(type(settings)), field_help(type(settings))
    for part in fields(settings):
        value = getattr(settings, part.name)
        if is_dataclass(value):
            for path, *rest in leaves(value):
                yield (part.name, *path), *rest
        else:
            yield (part.name,), hints[part.name], help_text[part.name], value


def _said(words: Sequence[str], names: Mapping[str, Any]) -> dict[str, str]:
    """Return what words say of some fields before they are parsed."""
    said: dict[str, Any] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name == "--config":
            said |= json.loads(value)
        elif name.startswith("--") and value:
            said[name[2:].replace("-", "_")] = value
    return {name: str(said[name]) for name in names if said.get(name) is not None}


def _text_or_none(value: object) -> str | None:
    """Read text that YAML would take for something else, such as the world model ``null``."""
    return None if value in (None, "none") else str(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(part) for name, part in value.items()}
    return tuple(value) if isinstance(value, list) else value


def described(help_text: str, hint: Any, default: Any) -> str:
    choices = next((one for one in (*get_args(hint), hint) if get_origin(one) is Literal), None)
    allowed = [str(name) for name in get_args(choices)]
    help_text, end = (help_text[:-1], ".") if help_text.endswith(".") else (help_text, "")
    if any(not re.search(rf"\b{re.escape(name)}\b", help_text) for name in allowed):
        help_text += f": {', '.join(allowed)}"
    help_text = re.sub(r"\bNone\b", "none", help_text).replace("``", "")
    default = "yes" if default is True else default
    default = " ".join(map(str, default)) or None if isinstance(default, tuple) else default
    if not any(default is one for one in (None, MISSING, False)) and "default" not in help_text:
        help_text += f" (default: {default})"
    return help_text + end


def _metavar(dest: str, hint: Any) -> str:
    kind = next((part for part in get_args(hint) if part is not NoneType), hint)
    if Literal in (get_origin(hint), get_origin(kind)):
        return "NAME"
    known = {int: "N", float: "X", Path: "PATH"}
    return known.get(kind) or dest.rpartition(".")[2].rpartition("_")[2].upper()


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is tuple:
        return f"{_kind(get_args(hint)[0])} (several)"
    if NoneType in get_args(hint):
        return f"{' or '.join(_kind(one) for one in get_args(hint) if one is not NoneType)} or none"
    known = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return known.get(hint, "a path" if hint is Path else "another value")


def _spelled(words: Sequence[str], command: type[Command]) -> Iterator[str]:
    """Yield the words with options by their present long names: ``-n8`` is ``--episodes=8``."""
    left, former = iter(words), {old: flag(name) for name, old in command.former.items()}
    for word in left:
        short = re.fullmatch(r"(-[a-z])(?:(\d.*)|=(.*))?", word)
        if short and short[1] in _LONG_NAMES:
            value = short[2] or short[3]
            word = flag(_LONG_NAMES[short[1]]) + ("" if value is None else f"={value}")
        if word == "--config":
            word = f"--config={next(left, '')}"
        name, equals, value = word.partition("=")
        name = _dashed(name) if name.startswith("--") else name
        if name == "--prompts" and command.style_option is not None:
            value = value if equals else next(left, "")
            equals = "="
            name = command.style_option if value in _STYLES else name
        yield f"{former.get(name, name)}{equals}{value}"


def _with_config(words: Sequence[str], command: type[Command]) -> list[str]:
    """Return the words with a file's options in place of its name, before all others, which win."""
    given = {word.partition("=")[0] for word in words}
    files = [word for word in words if word.startswith("--config=")]
    read = [_read_config(Path(word.partition("=")[2]), command, given) for word in files]
    others = [word for word in words if word not in files]
    return [*(f"--config={json.dumps(options, default=str)}" for options in read), *others]


def _read_config(path: Path, command: type[Command], given: set[str]) -> dict[str, Any]:
    """Return the options of a file, of ``--print-config`` or ``run.json``, but those that are given."""
    try:
        read = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionError(
            f"expected YAML or JSON in the file of --config, found in {path}: "
            f"{getattr(error, 'strerror', None) or error}; --print-config prints such a file"
        ) from error
    if not isinstance(read, dict):
        raise OptionError(f"expected options in {path}, found {read!r:.40}; see --print-config")
    is_record = "format" in read and "sessions" in read
    if is_record:
        try:
            read = dict(read["sessions"][-1]["options"] if command.wrote(read) else ())
        except (LookupError, TypeError, ValueError):
            read = {}
        if not read:
            raise OptionError(
                f"expected the run.json of this command in {path}, found one of another command, or "
                "of Python; give it to its command, or the options themselves"
            )
    found = {name: value for name, value in read.items() if flag(name) not in given}
    for name, value in found.items() if is_record else ():
        if HIDDEN in str(value) or ".../" in str(value):
            raise OptionError(
                f"expected {flag(name)}, found none: {path} does not record folders of a machine and "
                f"secrets ({value!r:.80}); add the option"
            )
    return found


def _dashed(text: str) -> str:
    """Return an option's name, without its value, with dashes: files have underscores."""
    name, equals, value = text.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def paragraphs(doc: str | None) -> str:
    parts = inspect.cleandoc(doc or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)
