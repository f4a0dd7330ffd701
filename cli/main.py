"""``comap COMMAND ...``: which commands there are, and what happens whatever a command does."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from .. import __version__
from ..errors import CoMapError, DataNotFound, OptionError, TaskNotFound, suggest

if TYPE_CHECKING:
    from .options import Command

COMMANDS = {
    "demo": ("bench:Demo", "learn a world model and let agents act with it"),
    "run": ("run:Play", "let an agent play tasks into a folder"),
    "view": ("run:View", "show the episodes of runs in the browser"),
    "verify": ("run:Verify", "play recorded episodes again and compare"),
    "train comap": ("train:CoMap", "CoMap: policy and world model, in rounds"),
    "train paw": ("train:PaW", "PaW with GRPO, RLOO, GiGPO or PPO"),
    "train sft": ("train:SFT", "SFT: the policy imitates an expert"),
    "train iwm": ("train:IWM", "IWM: what follows actions is learned first"),
    "train wkm": ("train:WKM", "WKM: an agent with a model of what is known"),
    "train itp": ("train:ITP", "ITP: learn how far to look ahead"),
    "score tools": ("bench:ScoreTools", "StableToolBench's SoPR and SoWR"),
    "score world-model": ("bench:ScoreWorldModel", "Delta-F1 of a world model"),
    "data list": ("data:List", "show the data sets, and which of them are here"),
    "data get": ("data:Get", "download a data set"),
    "data verify": ("data:Verify", "check that a data set is whole"),
    "data path": ("data:Where", "print where a data set is, or would be"),
    "data build webshop": ("data:BuildWebShop", "make a WebShop catalog of WebShop's JSON files"),
    "data build searchqa": ("data:BuildSearchQA", "make an index of a corpus"),
    "serve env": ("serve:Environments", "environments: AgentGym, OpenEnv or MCP"),
    "serve search": ("serve:Search", "passages, as Search-R1's server does"),
    "serve tools": ("serve:Tools", "tools, as StableToolBench's server does"),
    "bench list": ("bench:List", "list the tables and figures of both papers"),
    "bench run": ("bench:Run", "run tables and figures of both papers"),
    "bench report": ("bench:Report", "write the reports of tables and figures"),
    "bench speed": ("bench:Speed", "measure what a step costs"),
    "bench reliability": ("bench:Reliability", "faults and load: count what is lost"),
    "bench shipped": ("bench:Shipped", "train the small models that comap ships"),
    "bench noise-gradients": ("bench:NoiseGradients", "gradients of PaW's losses on noise"),
    "hub push": ("serve:Push", "push trajectories or models to the Hub"),
    "hub load": ("serve:Load", "load what was pushed"),
}

_INSTEAD = {
    "train webevolver": "its policy and world model are those of comap train sft --world-model, and "
    "comap run --agent webevolver looks ahead with them"
}
_MISTAKES = (OptionError, DataNotFound, TaskNotFound, gymnasium.error.Error)
_MORE = """\
comap COMMAND --help   explains a command and its options
comap --version        prints the version
comap --print-completion bash|zsh|fish|tcsh
                       prints a script that completes words in that shell
comap --traceback COMMAND ...
                       shows where a fault of comap itself comes from"""


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
    if own_process and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # by comap/__init__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    traceback = words[:1] == ["--traceback"]
    words = words[1:] if traceback else words
    if words[:1] == ["--version"]:
        print(f"comap {__version__}")
        return 0
    try:
        if words[:1] == ["--print-completion"]:
            from .options import completion

            commands = {name: (load(name), about) for name, (_, about) in COMMANDS.items()}
            print(completion(commands, words[1] if words[1:] else ""))
            return 0
        command = understood(words)
        if command.folder is None:
            return _run(command, traceback, own_process)
        from ..benchmarks.record import journal

        with journal(words, Path(command.folder)) as session:
            session.exit = _run(command, traceback, own_process)
        return session.exit
    except SystemExit as stop:  # help, or a mistake that was told
        return int(stop.code or 0)
    except KeyboardInterrupt:  # while modules are loaded
        print("comap: stopped", file=sys.stderr)
        return 130
    except (CoMapError, gymnasium.error.Error, OSError) as error:
        return _complain(error)


def understood(words: Sequence[str]) -> Command:
    """Return the command that words describe; after help and mistakes the program ends."""
    said = [" ".join(words[:number]) for number in (3, 2, 1)]
    name = next((name for name in said if name in COMMANDS), None)
    if name is None:
        raise SystemExit(_help(words))
    from .options import parse

    return parse(load(name), words[len(name.split()) :], f"comap {name}")


def load(name: str) -> type[Command]:
    module, _, made = COMMANDS[name][0].partition(":")
    found: type[Command] = getattr(import_module(f".{module}", __package__), made)
    return found


def _run(command: Command, traceback: bool, own_process: bool) -> int:
    """Run a command and return the exit status, whatever happens."""
    try:
        code = command.run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("comap: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if own_process:  # else Python complains about what it cannot write at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if traceback and not isinstance(error, (CoMapError, gymnasium.error.Error, OSError)):
            raise
        return _complain(error)


def _complain(error: Exception) -> int:
    """Print an error on one line of standard error and return the exit status."""
    if isinstance(error, (CoMapError, gymnasium.error.Error, OSError)):
        message, code = str(error), 2 if isinstance(error, _MISTAKES) else 1
    else:
        hint = "a fault of comap; 'comap --traceback ...' shows where"
        message, code = f"{type(error).__name__}: {error} ({hint})", 70
    print(f"comap: {' '.join(message.split())}", file=sys.stderr)
    return code


def _help(words: Sequence[str]) -> int:
    """List the commands that begin as the words do, or say what is wrong; return the status."""
    said = list(takewhile(lambda one: not one.startswith("-"), words))
    starts = [" ".join(said[:number]) for number in (2, 1, 0)]
    group = next(start for start in starts if _within(start))
    wrong = said[len(group.split()) :]
    if wrong:
        name = " ".join([*group.split(), wrong[0]])
        known = {" ".join(one.split()[: len(name.split())]) for one in _within(group)}
        hint = _INSTEAD.get(name) or suggest(name, sorted(known))
        return _complain(
            OptionError(f"there is no command {name!r}; {hint} (comap --help lists all)")
        )
    asked = bool({"-h", "--help", "--help-all"} & set(words))
    strange = [one for one in words if one.startswith("-")]
    if strange and not asked:
        return _complain(OptionError(f"there is no option {strange[0]} here; try comap --help"))
    lines = [f"usage: comap {f'{group} ' if group else ''}COMMAND [options]", ""]
    if not group:
        lines += ["Text environments, world models and agents: try 'comap demo'.", ""]
    lines += [f"  {name:<30}{COMMANDS[name][1]}" for name in _within(group)]
    print("\n".join([*lines, "", _MORE]), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _within(group: str) -> list[str]:
    """Return the names of the commands of a group; ``""`` is the group of all."""
    return [name for name in COMMANDS if not group or name.startswith(f"{group} ")]
