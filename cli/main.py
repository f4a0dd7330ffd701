"""``comap COMMAND ...``: which commands there are, and what happens whatever a command does."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from traceback import print_exception
from typing import TYPE_CHECKING, Any

from .. import __version__, _register

if TYPE_CHECKING:
    from .options import Command

COMMANDS = {
    "demo": ("bench:Demo", "fit a world model, score it, play in it, write a report"),
    "play": ("episodes:PlayByHand", "play a task yourself, in the terminal"),
    "run": ("run:Play", "play tasks with an agent and record the episodes"),
    "view": ("run:View", "show recorded episodes in the browser"),
    "verify": ("run:Verify", "replay recorded episodes and compare the results"),
    "export": ("episodes:Export", "convert episodes to messages, ShareGPT or Parquet"),
    "envs": ("explore:Envs", "list the environments, or describe one"),
    "agents": ("explore:Agents", "list the agents, or describe one"),
    "models": ("explore:Models", "list the language models and the world models"),
    "doctor": ("explore:Doctor", "check versions, extras, data, Java, GPU and browser"),
    "train comap": ("train:CoMap", "train a policy and a world model in rounds"),
    "train paw": ("train:PaW", "train a policy with GRPO, RLOO, GiGPO or PPO"),
    "train sft": ("train:SFT", "fine-tune a policy on an expert's actions"),
    "train iwm": ("train:IWM", "train a policy on next observations, then on actions"),
    "train wkm": ("train:WKM", "train an agent with a knowledge model"),
    "train itp": ("train:ITP", "train an agent to choose how far it looks ahead"),
    "train webevolver": ("train:WebEvolver", "train a policy on what it plays and imagines"),
    "score tools": ("bench:ScoreTools", "compute StableToolBench's SoPR and SoWR"),
    "score world-model": ("bench:ScoreWorldModel", "compute the Delta-F1 of a world model"),
    "data list": ("data:List", "list the data sets and whether they are installed"),
    "data get": ("data:Get", "download a data set"),
    "data verify": ("data:Verify", "check the files of a data set"),
    "data path": ("data:Where", "print the folder of a data set"),
    "data build webshop": ("data:BuildWebShop", "build a WebShop catalog from WebShop's files"),
    "data build searchqa": ("data:BuildSearchQA", "build a search index of a corpus"),
    "serve env": ("serve:Environments", "serve environments: AgentGym, OpenEnv or MCP"),
    "serve search": ("serve:Search", "serve an index as Search-R1's server does"),
    "serve tools": ("serve:Tools", "serve tools as StableToolBench's server does"),
    "bench list": ("bench:List", "list the tables and figures of both papers"),
    "bench run": ("bench:Run", "run tables and figures of both papers"),
    "bench report": ("bench:Report", "write the reports of tables and figures"),
    "bench speed": ("bench:Speed", "measure the time of a step"),
    "bench shipped": ("bench:Shipped", "train the small models that comap ships"),
    "bench noise-gradients": ("bench:NoiseGradients", "measure PaW's gradients on noise"),
    "init env": ("scaffold:InitEnv", "write a package for an environment of your own"),
    "init world-model": (
        "scaffold:InitWorldModel",
        "write a package for a world model of your own",
    ),
    "init prompts": ("scaffold:InitPrompts", "write all prompts as files, to be changed"),
    "init openenv": ("scaffold:InitOpenEnv", "write a package of OpenEnv for an environment"),
    "validate": ("scaffold:Validate", "test an environment by the conformance suite"),
    "hub push": ("serve:Push", "push trajectories or models to the Hub"),
    "hub load": ("serve:Load", "load what comap pushed to the Hub"),
}
FOR_MAINTAINERS = ("bench shipped", "bench noise-gradients")
"""Commands that only ``--help-all`` lists."""

_INSTEAD = {
    **dict.fromkeys(("train ppo", "train grpo"), "give it to comap train paw as --algorithm")
}
_OPTIONS = ("--help", "--version", "--print-completion", "--traceback")
_MORE = """\
comap COMMAND --help     explain a command and its options
comap --version          print the version
comap --print-completion bash|zsh|fish|tcsh
                         print a completion script for that shell
comap --traceback COMMAND ...
                         show the traceback of an internal error"""


class Shown:
    """A stream on which control characters are shown, not sent: recorded text steers no terminal.

    What draws on the terminal on purpose writes to `unfiltered`; progress bars of libraries may begin
    their line anew.
    """

    _CONTROL = re.compile(r"[^\x20-\x7e\n\t]")
    _MOVES = re.compile(r"[\r\n]*(\x1b\[A)*\r?")

    def __init__(self, stream: Any):
        self.unfiltered = stream

    def write(self, text: str) -> int:
        if self._CONTROL.search(text):
            from ..benchmarks.tables import visible

            moves = self._MOVES.match(text)
            start = moves.end() if moves else 0
            text = text[:start] + visible(text[start:])
        return int(self.unfiltered.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for a mistake on the command line."""
    out, err = Shown(sys.stdout), Shown(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    own_process = arguments is None
    words = list(sys.argv[1:] if arguments is None else arguments)
    if own_process and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # the terminal may not know every character
    traceback = words[:1] == ["--traceback"]
    status = partial(_status, traceback=traceback, own_process=own_process)
    with _stopping(own_process), _faults_shown() if traceback else nullcontext():
        return status(lambda: _start(words[traceback:], status))


@contextmanager
def _faults_shown() -> Iterator[None]:
    """Print the traceback of each kind of fault that is recorded with an episode, once."""
    from ..errors import FAULTS, described

    shown: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        fault = record.exc_info[1] if record.exc_info else None
        kind = "" if fault is None else f"{type(fault).__name__} {described(fault)}"
        if kind in shown:
            return False
        shown.add(kind)
        return True

    logger, handler = logging.getLogger(FAULTS), logging.StreamHandler(sys.stderr)
    handler.addFilter(is_new)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM): it ends as after Ctrl-C, with its files in order."""


@contextmanager
def _stopping(own_process: bool) -> Iterator[None]:
    """Take SIGTERM for Ctrl-C, where nobody else takes it."""
    is_main = own_process and threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the second one ends it at once
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _start(words: Sequence[str], status: Callable[..., int]) -> int:
    if words[:1] == ["--version"]:
        print(f"comap {__version__}")
        return 0
    if words[:1] == ["--print-completion"]:
        from .options import completion

        commands = {name: (load(name), about) for name, (_, about) in COMMANDS.items()}
        print(completion(commands, words[1] if words[1:] else ""))
        return 0
    command = understood(words)
    from ..envs.generated import generated_is_told

    with generated_is_told():  # tables and pages say it
        if command.folder is None:
            return command.run()
        from ..benchmarks.record import journal

        with journal(words, Path(command.folder)) as session:
            session.exit = status(command.run, kept=partial(_kept, command))
        return session.exit


def _kept(command: Command) -> str:
    """Return what to say of the files of a command that was stopped."""
    folder = command.folder
    if not command.resumes or folder is None or not folder.is_dir() or not any(folder.iterdir()):
        return ""
    return f"; what has ended is kept in {folder}: give the same command again to go on"


def understood(words: Sequence[str]) -> Command:
    """Return the command that words describe; after help and mistakes the program ends."""
    said = [" ".join(words[:number]) for number in (3, 2, 1)]
    name = next((name for name in said if name in COMMANDS), None)
    if name is None:
        raise SystemExit(_help(words))
    from .options import parse

    return parse(load(name), words[len(name.split()) :], f"comap {name}")


def load(name: str) -> type[Command]:
    _register()
    module, _, made = COMMANDS[name][0].partition(":")
    found: type[Command] = getattr(import_module(f".{module}", __package__), made)
    return found


def _status(
    run: Callable[[], int],
    traceback: bool,
    own_process: bool,
    kept: Callable[[], str] = lambda: "",
) -> int:
    """Run something and return the exit status, whatever happens."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # help, or a mistake that was reported
        return int(stop.code or 0)
    except KeyboardInterrupt as stop:
        print(f"comap: stopped{kept()}", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:
        if own_process:  # else Python complains about what it cannot write at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _complain(error, traceback)


def _complain(error: Exception, traceback: bool = False) -> int:
    """Print an error on one line of standard error and return the exit status.

    The status is 2 where the same command would fail again until it, or what it needs on this machine, is
    mended: an option, a name, a model, data, an extra. It is 1 where something failed on the way that may
    pass, or a file is not what it should be.
    """
    from gymnasium.error import Error

    from .. import errors

    if isinstance(error, (errors.CoMapError, Error, OSError)):
        mistakes = (
            errors.OptionError,
            errors.DataNotFound,
            errors.TaskNotFound,
            errors.MissingExtra,
            errors.LanguageModelError,
            errors.WorldModelError,
            Error,
        )
        is_mistake = isinstance(error, mistakes) and not getattr(error, "transient", False)
        message, code = str(error), 2 if is_mistake else 1
        if isinstance(error, OSError) and not isinstance(error, errors.CoMapError):
            message = _of_system(error)
        if traceback and error.__cause__ is not None:
            print_exception(error.__cause__)
    elif traceback:
        raise error
    elif place := errors.own_place(error):
        hint = "'comap --traceback ...' shows how it came there"
        message, code = f"{type(error).__name__}: {error} ({place}); mend it there; {hint}", 1
    else:
        hint = "an internal error of comap; 'comap --traceback ...' shows where"
        message, code = f"{type(error).__name__}: {error} ({hint})", 70
    print(f"comap: {' '.join(message.split())}", file=sys.stderr)
    return code


def _of_system(error: OSError) -> str:
    """Return what the system refuses, with the file, and what to look at."""
    if error.strerror is None:
        return str(error)
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (
        f"expected to read or write a file, found {what}; check the path, its rights and whether the "
        "disk is full"
    )


def _help(words: Sequence[str]) -> int:
    """List the commands that begin as the words do, or say what is wrong; return the status."""
    said = list(takewhile(lambda one: not one.startswith("-"), words))
    starts = [" ".join(said[:number]) for number in (2, 1, 0)]
    group = next(start for start in starts if _within(start))
    wrong = said[len(group.split()) :]
    if wrong:
        name = " ".join([*group.split(), wrong[0]])
        known = {" ".join(one.split()[: len(name.split())]) for one in _within(group)}
        return _refuse("command", name, sorted(known), _INSTEAD.get(name))
    asked = not words or bool({"-h", "--help", "--help-all"} & set(words))
    strange = [one for one in words if one.startswith("-")]
    if strange and not asked:
        return _refuse("option", strange[0], _OPTIONS)
    lines = [f"usage: comap {f'{group} ' if group else ''}COMMAND [options]", ""]
    if not group:
        lines += ["Text environments, world models and agents. Begin with: comap demo", ""]
    hidden = () if "--help-all" in words else FOR_MAINTAINERS
    lines += [f"  {name:<30}{COMMANDS[name][1]}" for name in _within(group) if name not in hidden]
    print("\n".join([*lines, "", _MORE]), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _refuse(kind: str, name: str, known: Sequence[str], instead: str | None = None) -> int:
    """Say that there is no such command or option, and what is meant perhaps."""
    from ..errors import OptionError, suggest

    *group, last = name.split()
    hint = instead or suggest(last, [one.split()[-1] for one in known])
    hint = hint if instead else hint.replace(" '", " '" + "".join(f"{part} " for part in group))
    return _complain(OptionError(f"there is no {kind} {name!r}; {hint} (comap --help lists all)"))


def _within(group: str) -> list[str]:
    """Return the names of the commands of a group; ``""`` is the group of all."""
    return [name for name in COMMANDS if not group or name.startswith(f"{group} ")]
