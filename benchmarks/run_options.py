"""The options of `comap run`: those that all runs have, and those of the agent that is named."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from ..agents.create import AGENTS, agent_options
from ..errors import CoMapError, suggest
from ..worldmodel.cache import KEYS
from .options import add_fields, argument_help

__all__ = ["RunParser", "add_models", "add_worlds", "declare"]

_MODEL = (
    "who writes: shipped (small, trained, comes with comap), tiny (untrained, built into OUT/model), a "
    "folder of save_pretrained, a name on the hub (Qwen/Qwen3-4B), http://HOST:PORT/v1#NAME, or "
    "replay:FILE; default: shipped, in the environments that it was trained for"
)
_WORLD = (
    "who says what follows an action: oracle (the real environment, tried out), noisy (the oracle "
    "with errors), retrieval (fitted on the train split), null (nothing happens), FILE.jsonl (a saved "
    "retrieval model), or a language model as for --model; default: oracle, for agents that ask, but "
    "shipped for comap with the shipped model"
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options of `comap run` to its parser, which then knows the agents' options too.

    Example:
        >>> parser = argparse.ArgumentParser("comap run")
        >>> declare(parser)
        >>> parser.parse_args(["--agent", "rap", "--rollouts", "4"]).rollouts
        4
    """
    parser.__class__ = RunParser  # argparse makes the parsers of commands itself
    parser.set_defaults(fields={})
    _add_tasks(parser)
    add_models(parser)
    add_worlds(parser)
    _add_way(parser)


class RunParser(argparse.ArgumentParser):
    """Adds the options of the agent that was named, before it parses the rest.

    Example:
        >>> parser = RunParser("comap run")
        >>> action = parser.add_argument("--agent")
        >>> parser.parse_args(["--agent", "comap", "--tau-p", "0.4"]).tau_p
        0.4
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse all arguments; there is nothing left over, else the program ends."""
        words = list(args or ())
        named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        named.add_argument("--agent", nargs="?")
        agent = named.parse_known_args(words)[0].agent
        if agent:
            try:
                self._add_agent(agent)
            except CoMapError as error:
                self.error(str(error))
        self._agent = agent
        parsed, rest = super().parse_known_args(words, namespace)
        if rest:
            self.error(self._unknown(rest))
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in a line, and not all options first, which are many."""
        agent = f" --agent {self._agent}" if self._agent else ""
        self.exit(2, f"{self.prog}: error: {message} (all options: {self.prog}{agent} --help)\n")

    _agent: str | None = None

    def _add_agent(self, agent: str) -> None:
        config = agent_options(agent)
        module, _, name = AGENTS[agent].partition(":")
        told = argument_help(getattr(import_module(module), name))
        further = {name: text for name, text in told.items() if name != "config"}
        if further:
            listed = "; ".join(f"{name}: {text}" for name, text in further.items())
            self.add_argument_group(f"--agent-option of {agent}", listed.replace("%", "%%"))
        if config is not None:
            taken = {action.dest for action in self._actions}
            self.set_defaults(fields=add_fields(self, config, "agent_", taken))

    def _unknown(self, words: Sequence[str]) -> str:
        """Return what to say of words that mean nothing."""
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        if not options:
            return f"expected options, found {' '.join(words)!r:.80}"
        known = sorted(name for name in self._option_string_actions if name.startswith("--"))
        whose = f" with --agent {self._agent}" if self._agent else ""
        close = suggest(options[0], known)
        hint = f"; {close}" if close.startswith("did you") else ""
        return f"there is no option {options[0]}{whose}{hint}"


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_argument_group("what is played")
    add = tasks.add_argument
    add("--agent", required=True, metavar="NAME", help=f"who acts: {', '.join(sorted(AGENTS))}")
    add(
        "--agent-option",
        action="append",
        metavar="NAME=VALUE",
        help="what an agent takes beside its own options, such as head=FILE (repeatable)",
    )
    add("--env", default="comap/ALFWorld-v0", metavar="ID", help="where (default: %(default)s)")
    add(
        "--env-option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the environment, such as max_episode_steps=30 (repeatable)",
    )
    add(
        "--split",
        metavar="NAME",
        help="split (default: the environment's hardest for tests)",
    )
    add(
        "--data-dir",
        metavar="DIR",
        help="folder with official data (default: what is on this machine, else generated tasks)",
    )
    add("--episodes", type=int, metavar="N", help="so many tasks, spread evenly (default: all)")
    add(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help="these tasks, by their ids, or a file with one on each line",
    )


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the options that say the language model.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_models(parser)
        >>> parser.parse_args(["--model", "tiny"]).tiny_parameters
        500000
    """
    models = parser.add_argument_group("with which language model")
    add = models.add_argument
    add("--model", metavar="M", help=_MODEL)
    add("--base-url", metavar="URL", help="address of the server that has the model named so")
    add(
        "--adapter",
        action="append",
        metavar="NAME=DIR",
        help="give it a LoRA adapter; with a server, what that calls it (repeatable)",
    )
    add("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N, for models in this process")
    add(
        "--dtype",
        metavar="NAME",
        help="auto, float32, float64, bfloat16 or float16, for models in this process",
    )
    add(
        "--model-option",
        action="append",
        metavar="NAME=VALUE",
        help="another option: batch_rows=16 in this process, concurrency=32 or prices=[0.1,0.4] "
        "with a server (repeatable)",
    )
    add(
        "--tiny-parameters",
        type=int,
        default=500_000,
        metavar="N",
        help="size of the tiny model (default: %(default)s)",
    )


def add_worlds(parser: argparse.ArgumentParser) -> None:
    """Add the options that say the world model.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_worlds(parser)
        >>> parser.parse_args(["--world-model", "null"]).fit_tasks
        100
    """
    worlds = parser.add_argument_group("with which world model")
    add = worlds.add_argument
    add("--world-model", metavar="W", help=_WORLD)
    add("--world-model-prompts", metavar="STYLE", help="of a language model: standard or brief")
    add("--world-model-state-text", metavar="KIND", help="of a language model: history or belief")
    add(
        "--world-model-adapter", metavar="NAME", help="of a language model: which --adapter answers"
    )
    add(
        "--world-model-option",
        action="append",
        metavar="NAME=VALUE",
        help="another option of a language model or of noisy, such as max_new_tokens=64 (repeatable)",
    )
    add(
        "--world-model-cache",
        choices=KEYS,
        help="answer from memory what was asked before: the same query, or the same action in the "
        "same belief (an approximation)",
    )
    add(
        "--error-rate",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of the noisy one (default: %(default)s)",
    )
    add(
        "--fit-tasks",
        type=int,
        default=100,
        metavar="N",
        help="tasks that retrieval is fitted on (default: %(default)s)",
    )
    add("--imagined", action="store_true", help="play the episodes in its imagination")
    add("--horizon", type=int, metavar="N", help="with --imagined: most steps of an episode")
    add("--real-every", type=int, metavar="N", help="with --imagined: every N-th step is real")


def _add_way(parser: argparse.ArgumentParser) -> None:
    way = parser.add_argument_group("how, and where to")
    add = way.add_argument
    add(
        "--live",
        type=int,
        default=32,
        metavar="N",
        help="episodes at the same time; results do not depend on it (default: %(default)s)",
    )
    add(
        "--overlap",
        action="store_true",
        help="let the world model predict for some episodes while the policy drafts for others; "
        "results do not depend on it",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of agent, models and environment (default: %(default)s)",
    )
    add(
        "--keep",
        default="replies",
        metavar="WHAT",
        help="what to record of each call to a model: replies; prompts too; or tokens too, with "
        "texts and log-probabilities, as the viewer colours them (default: %(default)s)",
    )
    add(
        "--workers",
        metavar="ray:N",
        help="play on N Ray actors, each with --live episodes at a time and models of its own; results "
        "do not depend on it (default: this process)",
    )
    add(
        "--ray-address",
        metavar="ADDRESS",
        help="of a Ray cluster that sees the same files, or auto (default: a Ray on this machine)",
    )
    add("--worker-gpus", type=float, default=0.0, metavar="N", help="GPUs of a worker (default: 0)")
    add(
        "--lost",
        choices=("retry", "record"),
        default="retry",
        help="episodes whose worker was lost: play them again, or record them as failed (default: "
        "retry)",
    )
    add("--retry-failed", action="store_true", help="play the tasks again that a fault ended")
    add("--out", metavar="DIR", help="the run's folder (default: runs/AGENT)")
