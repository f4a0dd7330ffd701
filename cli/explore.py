"""``comap envs | agents | models | doctor``: what comap has, and what this machine has."""

from __future__ import annotations

import inspect
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import webbrowser
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import Any, ClassVar

import docstring_parser
import gymnasium

from .. import __version__
from ..agents.create import AGENTS, agent_class, agent_options
from ..benchmarks.record import version
from ..envs import TextEnv
from ..envs.briefing import env_name
from ..envs.registry import env_class, registered
from ..envs.storage import data_path
from ..errors import DISTRIBUTION, CoMapError, install_command
from ..lm.create import SHIPPED
from ..trainers.setup import Environments
from .options import WORD, Command, described, flag, leaves, paragraphs
from .run import Play

_DEVELOPMENT = ("all", "docs", "lint", "test")  # extras that no user needs
_GET = {
    "alfworld": "run: comap data get alfworld",
    "scienceworld": "the simulator has its own tasks; only ETO's splits need files",
    "stabletoolbench": "put the official files there, or name their folder by --data-dir",
    "webshop": "run: comap data build webshop",
    "searchqa": "run: comap data build searchqa",
}
_VERSIONS = ("gymnasium", "numpy", "torch", "transformers", "trl")
_MODELS = {
    "shipped": "a small trained policy that comes with comap, for {envs}",
    "shipped:wm": "the world model that comes with it",
    "tiny": "a new small model without training, to try things out; built into OUT/model",
    "DIR": "a folder of save_pretrained",
    "Qwen/Qwen3-4B": "a model of the Hugging Face Hub, by its name",
    "http://HOST:PORT/v1#NAME": "model NAME on a server that speaks OpenAI's protocol (vLLM, SGLang, ...)",
    "replay:FILE": "the recorded answers of another model",
}
_WORLD_MODELS = {
    "oracle": "the real environment: tries the action there and goes back",
    "noisy": "the oracle with errors, at --error-rate",
    "retrieval": "the nearest transition of a memory, fitted on the train split",
    "FILE.jsonl": "a retrieval model that was saved",
    "null": "predicts that nothing happens",
    "MODULE:CLASS": "your own class with a method predict",
    "a language model": "any of the above, prompted to predict the next observation",
}


def print_names(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print names and what they mean, in two columns."""
    known = list(rows)
    width = max((len(name) for name, _ in known if len(name) <= 26), default=0) + 4
    print(f"\n{title}:")
    for name, text in known:
        begin, indent = f"  {name:<{width - 2}}", " " * width
        print(textwrap.fill(text, 100, initial_indent=begin, subsequent_indent=indent))


def _summary(made: type[Any]) -> str:
    return paragraphs(made.__doc__).partition("\n\n")[0].replace("`", "")


def _options_of(made: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the options of a class's constructor, with their help and defaults."""
    described_as = {
        one.arg_name: " ".join((one.description or "").replace("`", "").split())
        for one in docstring_parser.parse(made.__doc__ or "").params
    }
    for name, part in inspect.signature(made).parameters.items():
        if part.kind is not part.VAR_KEYWORD and name != "config":
            default = "" if part.default is part.empty else f" (default: {part.default!r})"
            yield name, described_as.get(name, "") + default


@dataclass(frozen=True, kw_only=True)
class Envs(Command):
    """List the environments, or describe one: splits, options, data and a task."""

    example: ClassVar[str] = "comap envs comap/ALFWorld-v0"

    env: str | None = field(default=None, metadata=WORD)
    """Id of an environment, or MODULE:ID of your own."""

    def run(self) -> int:
        if self.env is None:
            ids = [name for name in gymnasium.registry if name.startswith("comap/")]
            print_names("environments", ((name, _summary(env_class(name))) for name in ids))
            print("\nto describe one: comap envs ID")
            return 0
        cls, env_id = env_class(self.env), registered(self.env)
        print(f"{env_id}: {_summary(cls)}")
        make = Environments(self.env)
        with closing(make(None)) as env:
            panel = env.get_wrapper_attr("tasks")
            print_names("splits", self._splits(make, cls, panel))
            options = {**dict(_options_of(cls)), **dict(_options_of(TextEnv))}
            print_names("options, for --env-option NAME=VALUE or gymnasium.make", options.items())
            folder = data_path(env_name(env_id))
            sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
            found = f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB" if sizes else "none"
            print(f"\ndata in {folder}: {found}\n")
            observation, info = env.reset(seed=0)
        print(f"a task: {info['task']}\ngoal: {info['goal']}\n\n{observation}")
        split = f" --split {info['split']}" if cls.takes("split") else ""
        print(f"\nto play it: comap play --env {self.env}{split}")
        return 0

    @staticmethod
    def _splits(make: Environments, cls: type[TextEnv], panel: Any) -> Iterator[tuple[str, str]]:
        for split in panel.splits if cls.takes("split") else ():
            with closing(make(split)) as env:
                text = f"{len(env.get_wrapper_attr('tasks')):,} tasks"
            yield split, text + (" (for tests)" if split in cls.test_splits else "")
        if not cls.takes("split"):
            yield panel.split, f"{len(panel):,} tasks"


@dataclass(frozen=True, kw_only=True)
class Agents(Command):
    """List the agents, or describe one: its settings and options."""

    example: ClassVar[str] = "comap agents react"

    agent: str | None = field(default=None, metadata=WORD)
    """Name of an agent, or MODULE:CLASS of your own."""

    def run(self) -> int:
        if self.agent is None:
            print_names("agents", ((name, _summary(agent_class(name))) for name in sorted(AGENTS)))
            print("\nto describe one: comap agents NAME; your own: comap run --agent MODULE:CLASS")
            return 0
        made, settings = agent_class(self.agent), agent_options(self.agent)
        print(f"{self.agent}: {_summary(made)}")
        if settings is not None:
            names = {part.name: f"{Play.prefix}{part.name}" for part in fields(Play)}
            rows = [
                (flag(names.get(path[-1], path[-1])), described(text, hint, value))
                for path, hint, text, value in leaves(settings())
            ]
            print_names(f"settings, options of comap run --agent {self.agent}", rows)
        if options := list(_options_of(made)):
            print_names("options, for --agent-option NAME=VALUE", options)
        return 0


@dataclass(frozen=True, kw_only=True)
class Models(Command):
    """List the language models and the world models that commands take."""

    def run(self) -> int:
        known = {name: text.format(envs=", ".join(SHIPPED)) for name, text in _MODELS.items()}
        print_names("language models, for --model", known.items())
        print_names("world models, for --world-model", _WORLD_MODELS.items())
        return 0


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Check this machine: versions, extras, data, Java, GPU and browser, and say what to do."""

    example: ClassVar[str] = "comap doctor"

    def run(self) -> int:
        rows = [*self._versions(), *self._extras(), *self._data(), *self._machine()]
        for has, name, found in rows:
            print(f"{'ok' if has else '--'}  {name:<22}{found}")
        lacking = sum(not has for has, _, _ in rows)
        print(f"\n{len(rows) - lacking} found, {lacking} lacking; install only what you need")
        return 0

    @staticmethod
    def _versions() -> Iterator[tuple[bool, str, str]]:
        yield True, "Python", f"{platform.python_version()}, {sys.executable}"
        yield True, "comap", __version__
        for name in _VERSIONS:
            yield version(name) is not None, name, version(name) or "not installed; see the extras"

    @staticmethod
    def _extras() -> Iterator[tuple[bool, str, str]]:
        packages: dict[str, list[str]] = {}
        for text in metadata.requires(DISTRIBUTION) or () if version(DISTRIBUTION) else ():
            found = re.search(r"""extra == ["']([\w-]+)["']""", text)
            if found and found[1] not in _DEVELOPMENT:
                packages.setdefault(found[1], []).append(re.split(r"[^\w.-]", text)[0])
        for extra, names in packages.items():
            missing = [name for name in names if version(name) is None]
            lacks = f"lacks {', '.join(missing)}; run: {install_command(extra)}"
            yield not missing, f"extra {extra}", lacks if missing else ", ".join(names)

    @staticmethod
    def _data() -> Iterator[tuple[bool, str, str]]:
        from ..envs.data import catalogue, is_installed

        for env_id in gymnasium.registry:
            name = env_name(env_id)
            if env_id.startswith("comap/") and name in _GET:
                folder = data_path(name)
                has = is_installed(name) if name in catalogue() else folder.is_dir()
                lacking = f"not in {folder}; {_GET[name]}"
                yield has, f"data {name}", str(folder) if has else lacking

    @staticmethod
    def _machine() -> Iterator[tuple[bool, str, str]]:
        from ..benchmarks.view import has_display
        from ..envs.scienceworld.simulator import find_java

        try:
            java = find_java()
            yield True, "Java", f"{java.version}, {java.executable}"
        except CoMapError as error:
            yield False, "Java", str(error)
        yield _gpu()
        browser = ""
        with suppress(webbrowser.Error):
            browser = getattr(webbrowser.get(), "name", "") if has_display() else ""
        advice = "none, or no display; copy the pages of comap view to another machine"
        yield bool(browser), "browser", browser or advice


def _gpu() -> tuple[bool, str, str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False, "GPU", "no NVIDIA driver; models run on the CPU"
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, "GPU", f"{program} does not answer ({error}); check the driver"
    found = "; ".join((done.stdout + done.stderr).strip().splitlines())
    if "+cpu" in (version("torch") or ""):
        return False, "GPU", f"{found}, but torch is built for the CPU; install torch with CUDA"
    return done.returncode == 0, "GPU", found
