"""``comap COMMAND ...``: which commands there are, and what happens whatever a command does."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from traceback import print_exception
from typing import TYPE_CHECKING, Any, TextIO

from .. import __version__, _register

if TYPE_CHECKING:
    from .options import Command

COMMANDS = {
    "demo": ("bench:Demo", "fit a world model, score it, play in it, write a report"),
    "play": ("episodes:PlayByHand", "play a task yourself, in the terminal"),
    "run": ("run:Play", "play tasks with an agent and record the episodes"),
    "view": ("run:View", "show recorded episodes in the browser"),
    "compare": ("run:Compare", "compare runs task by task: differences, intervals, tests"),
    "verify": ("run:Verify", "replay recorded episodes and compare the results"),
    "export": ("episodes:Export", "convert episodes to messages, ShareGPT or Parquet"),
    "envs": ("explore:Envs", "list the environments, or describe one"),
    "agents": ("explore:Agents", "list the agents, or describe one"),
    "models": ("explore:Models", "list the language models and the world models"),
    "doctor": ("explore:Doctor", "check versions, extras, data, Java, GPU, engine and browser"),
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
    "data import": ("data:Import", "read what others published: Word2World, AgentTraj, ETO, ADP"),
    "serve env": ("serve:Environments", "serve environments: AgentGym, OpenEnv or MCP"),
    "serve search": ("serve:Search", "serve an index as Search-R1's server does"),
    "serve tools": ("serve:Tools", "serve tools as StableToolBench's server does"),
    "bench list": ("bench:List", "list the tables and figures of both papers"),
    "bench run": ("bench:Run", "run tables and figures of both papers"),
    "bench report": ("bench:Report", "write the reports of tables and figures"),
    "bench speed": ("bench:Speed", "measure the time of a step"),
    "bench noise-gradients": ("bench:NoiseGradients", "measure PaW's gradients on noise"),
    "init env": ("scaffold:InitEnv", "write a package for an environment of your own"),
    "init world-model": (
        "scaffold:InitWorldModel",
        "write a package for a world model of your own",
    ),
    "init prompts": ("scaffold:InitPrompts", "write all prompts as files, to be changed"),
    "init openenv": ("scaffold:InitOpenEnv", "write a package of OpenEnv for an environment"),
    "init harbor": ("scaffold:InitHarbor", "write task folders of Harbor for an environment"),
    "validate": ("scaffold:Validate", "test an environment by the conformance suite"),
    "hub push": ("serve:Push", "push trajectories or models to the Hub"),
    "hub load": ("serve:Load", "load what comap pushed to the Hub"),
}
FOR_MAINTAINERS = ("bench noise-gradients",)
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


class VisibleStream:
    """A stream that writes control characters as visible text, so that recorded text steers no terminal.

    Code that draws on the terminal on purpose writes to `unfiltered`. On standard error, where libraries
    draw progress bars and comap's own lines begin with its name, a text may begin with `moves` to the start
    of a line. On standard output it may not: an observation would write over what is above it.
    """

    _CONTROL = re.compile(r"[^\x20-\x7e\n\t]")
    _MOVES = re.compile(r"[\r\n]*(\x1b\[A)*\r?")

    def __init__(self, stream: Any, moves: bool = False):
        self.unfiltered = stream
        self._may_move = moves

    def write(self, text: str) -> int:
        if self._CONTROL.search(text):
            from ..benchmarks.tables import visible

            leading_moves = self._MOVES.match(text) if self._may_move else None
            start = leading_moves.end() if leading_moves else 0
            text = text[:start] + visible(text[start:])
        return int(self.unfiltered.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for a mistake on the command line."""
    output = VisibleStream(sys.stdout)
    errors = VisibleStream(sys.stderr, moves=True)
    with redirect_stdout(output), redirect_stderr(errors), _warnings_in_a_line():
        return _main(arguments)


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Print comap's own warnings as a line, without a place in its code; others as Python does."""
    package = Path(__file__).parents[1]
    show_as_before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        path = Path(filename)
        is_ours = path.is_relative_to(package)
        # A checkout may hold the virtual environment.
        is_library = is_ours and "site-packages" in path.relative_to(package).parts
        if category is UserWarning and is_ours and not is_library:
            print(f"comap: {message}", file=sys.stderr, flush=True)
        else:
            show_as_before(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = show_as_before


def _main(arguments: Sequence[str] | None) -> int:
    own_process = arguments is None
    words = list(sys.argv[1:] if arguments is None else arguments)
    if own_process and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # the terminal may not know every character

    traceback = words[:1] == ["--traceback"]
    if traceback:
        words = words[1:]

    exit_status = partial(_exit_status, traceback=traceback, own_process=own_process)
    with _terminable(own_process), _printed_faults() if traceback else nullcontext():
        return exit_status(lambda: _start(words, exit_status))


@contextmanager
def _printed_faults() -> Iterator[None]:
    """Print the traceback of each kind of fault that is recorded with an episode, once."""
    from ..errors import FAULTS, described

    printed_kinds: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        fault = record.exc_info[1] if record.exc_info else None
        kind = "" if fault is None else f"{type(fault).__name__} {described(fault)}"
        if kind in printed_kinds:
            return False
        printed_kinds.add(kind)
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(is_new)

    logger = logging.getLogger(FAULTS)
    previous_level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(previous_level)


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM: the command ends as after Ctrl-C, with its files in order."""


@contextmanager
def _terminable(own_process: bool) -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, unless the program that calls us handles that signal."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    is_unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not (own_process and in_main_thread and is_unhandled):
        yield
        return

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal ends the process at once
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _start(words: Sequence[str], exit_status: Callable[..., int]) -> int:
    """Run the command that words describe, within the journal of its folder if it has one."""
    if words[:1] == ["--version"]:
        print(f"comap {__version__}")
        return 0

    if words[:1] == ["--print-completion"]:
        from .options import completion

        shell = words[1] if words[1:] else ""
        commands = {name: (load(name), help_text) for name, (_, help_text) in COMMANDS.items()}
        print(completion(commands, shell))
        return 0

    command = understood(words)
    from ..envs.generated import generated_is_told

    # Tables and pages of commands say themselves that tasks are generated: no warning repeats it.
    with generated_is_told():
        if command.folder is None:
            return command.run()

        from ..benchmarks.record import journal

        # The status is worked out within the journal, which records it whatever ended the command.
        with journal(words, Path(command.folder)) as session:
            session.exit = exit_status(command.run, resume_hint=partial(_resume_hint, command))
        return session.exit


def _resume_hint(command: Command) -> str:
    """Return how to go on with a stopped command; ``""`` where it wrote nothing to go on from."""
    folder = command.folder
    if not command.resumes or folder is None or not folder.is_dir() or not any(folder.iterdir()):
        return ""
    return f"; what has ended is kept in {folder}: give the same command again to go on"


def understood(words: Sequence[str]) -> Command:
    """Return the command that words describe.

    Raises:
        SystemExit: Help was asked for and printed, or a mistake was reported.
    """
    # "data build webshop" has three words, and begins as a command of two could.
    longest_first = [" ".join(words[:number]) for number in (3, 2, 1)]
    name = next((name for name in longest_first if name in COMMANDS), None)
    if name is None:
        raise SystemExit(_help(words))
    from .options import parse

    options = words[len(name.split()) :]
    return parse(load(name), options, f"comap {name}")


def load(name: str) -> type[Command]:
    """Import and return the class of a command."""
    # Only this command's module is imported: a command must not wait for what others need.
    _register()
    module_name, _, class_name = COMMANDS[name][0].partition(":")
    module = import_module(f".{module_name}", __package__)
    command_class: type[Command] = getattr(module, class_name)
    return command_class


def _exit_status(
    run: Callable[[], int],
    traceback: bool,
    own_process: bool,
    resume_hint: Callable[[], str] = lambda: "",
) -> int:
    """Call ``run`` and return the exit status of the process, whatever is raised."""
    try:
        status = run()
        sys.stdout.flush()  # a pipe that is closed shows itself here, where it is caught
        return status
    except SystemExit as stop:  # help, or a mistake that was reported
        return int(stop.code or 0)
    except KeyboardInterrupt as stop:
        print(f"comap: stopped{resume_hint()}", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:
        if own_process:  # else Python complains about what it cannot write at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _report_error(error, traceback)


def _report_error(error: Exception, traceback: bool = False) -> int:
    """Print an error on one line of standard error and return the exit status.

    The status is 2 where the same command would fail again until it, or what it needs on this machine, is
    mended: an option, a name, a model, data, an extra. It is 1 where something failed on the way that may
    pass, or a file is not what it should be, and 70 (EX_SOFTWARE) for a fault of comap.
    """
    from gymnasium.error import Error as GymnasiumError

    from .. import errors

    if isinstance(error, (errors.CoMapError, GymnasiumError, OSError)):
        message = str(error)
        status = 2 if _is_mistake_of_user(error) else 1
        if isinstance(error, OSError) and not isinstance(error, errors.CoMapError):
            message = _explain_system_error(error)
        if traceback and error.__cause__ is not None:
            print_exception(error.__cause__)
    elif traceback:
        raise error
    elif place := errors.own_place(error):
        # Code of the user's own, such as an environment or an agent, raised it.
        hint = "'comap --traceback ...' shows how it came there"
        message = f"{type(error).__name__}: {error} ({place}); mend it there; {hint}"
        status = 1
    else:
        hint = "an internal error of comap; 'comap --traceback ...' shows where"
        message = f"{type(error).__name__}: {error} ({hint})"
        status = 70

    print(f"comap: {' '.join(message.split())}", file=sys.stderr)
    return status


def _is_mistake_of_user(error: Exception) -> bool:
    """Return whether the same command would fail again until something is mended."""
    from gymnasium.error import Error as GymnasiumError

    from .. import errors

    kinds = (
        errors.OptionError,
        errors.DataNotFound,
        errors.TaskNotFound,
        errors.MissingExtra,
        errors.LanguageModelError,
        errors.WorldModelError,
        GymnasiumError,
    )
    return isinstance(error, kinds) and not getattr(error, "transient", False)


def _explain_system_error(error: OSError) -> str:
    """Return what the operating system refused, with the file, and what to check."""
    if error.strerror is None:
        return str(error)
    refusal = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (
        f"expected to read or write a file, found {refusal}; check the path, its rights and whether the "
        "disk is full"
    )


def _help(words: Sequence[str]) -> int:
    """List the commands that begin as the words do, or report what is wrong; return the exit status."""
    names = list(takewhile(lambda word: not word.startswith("-"), words))
    groups = [" ".join(names[:number]) for number in (2, 1, 0)]
    group = next(group for group in groups if _commands_of(group))

    unknown_names = names[len(group.split()) :]
    if unknown_names:
        name = " ".join([*group.split(), unknown_names[0]])
        depth = len(name.split())
        alternatives = {" ".join(command.split()[:depth]) for command in _commands_of(group)}
        return _refuse("command", name, sorted(alternatives), _INSTEAD.get(name))

    help_is_asked = not words or bool({"-h", "--help", "--help-all"} & set(words))
    options = [word for word in words if word.startswith("-")]
    if options and not help_is_asked:
        return _refuse("option", options[0], _OPTIONS)

    lines = [f"usage: comap {f'{group} ' if group else ''}COMMAND [options]", ""]
    if not group:
        lines += ["Text environments, world models and agents. Begin with: comap demo", ""]

    hidden = () if "--help-all" in words else FOR_MAINTAINERS
    for name in _commands_of(group):
        if name not in hidden:
            lines.append(f"  {name:<30}{COMMANDS[name][1]}")

    print("\n".join([*lines, "", _MORE]), file=sys.stdout if help_is_asked else sys.stderr)
    return 0 if help_is_asked else 2


def _refuse(kind: str, name: str, alternatives: Sequence[str], instead: str | None = None) -> int:
    """Report that there is no such command or option, with the likeliest one; return the exit status."""
    from ..errors import OptionError, suggest

    *group, last_word = name.split()
    hint = instead
    if hint is None:
        # Names are compared by their last words, and suggested whole.
        hint = suggest(last_word, [alternative.split()[-1] for alternative in alternatives])
        hint = hint.replace(" '", " '" + "".join(f"{word} " for word in group))

    return _report_error(
        OptionError(f"there is no {kind} {name!r}; {hint} (comap --help lists all)")
    )


def _commands_of(group: str) -> list[str]:
    """Return the names of the commands of a group; ``""`` is the group of all."""
    return [name for name in COMMANDS if not group or name.startswith(f"{group} ")]
