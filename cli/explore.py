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
from contextlib import closing
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import Any, ClassVar

import docstring_parser
import gymnasium

from .. import __version__
from ..agents.create import AGENTS, agent_class, agent_options
from ..agents.parsing import env_name
from ..envs import TextEnv
from ..envs.registry import env_class, registered
from ..envs.storage import data_path
from ..errors import CoMapError, MissingExtra
from ..lm.create import SHIPPED
from ..trainers.setup import Environments
from .options import WORD, Command, described, flag, leaves, paragraphs
from .run import Play

_COLUMNS = 100
_DEVELOPMENT = ("all", "docs", "lint", "test")
"""Extras that no user needs."""
_GET = {
    "alfworld": "run: comap data get alfworld",
    "scienceworld": "the simulator has its own tasks; only ETO's splits need files",
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
    width = max((len(name) for name, _ in known if len(name) <= 26), default=0) + 2
    print(f"{title}:")
    for name, text in known:
        lines = textwrap.wrap(text, _COLUMNS - width - 2, break_on_hyphens=False) or [""]
        lines = ["", *lines] if len(name) > width - 2 else lines
        for left, line in zip((name, *[""] * len(lines)), lines, strict=False):
            print(f"  {left:<{width}}{line}".rstrip())


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
        print(f"{env_id}: {_summary(cls)}\n")
        make = Environments(self.env)
        with closing(make(None)) as env:
            panel = env.get_wrapper_attr("tasks")
            print_names("splits", self._splits(make, cls, panel))
            options = {**dict(_options_of(cls)), **dict(_options_of(TextEnv))}
            print()
            print_names("options, for --env-option NAME=VALUE or gymnasium.make", options.items())
            folder = data_path(env_name(env_id))
            sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
            found = f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB" if sizes else "none"
            print(f"\ndata in {folder}: {found}\n")
            try:
                observation, info = env.reset(seed=0)
            except CoMapError as error:
                print(f"a task: {error}")
                return 0
        print(f"a task: {info['task']}\ngoal: {info['goal']}\n\n{observation}")
        print(f"\nto play it: comap play --env {self.env} --split {info['split']}")
        return 0

    @staticmethod
    def _splits(make: Environments, cls: type[TextEnv], panel: Any) -> Iterator[tuple[str, str]]:
        for split in panel.splits if cls.takes("split") else ():
            try:
                with closing(make(split)) as env:
                    text = f"{len(env.get_wrapper_attr('tasks')):,} tasks"
            except CoMapError as error:
                text = str(error)
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
            print()
            print_names(
                f"settings, options of comap run --agent {self.agent}",
                (
                    (flag(names.get(path[-1], path[-1])), described(text, hint, value))
                    for path, hint, text, value in leaves(settings())
                ),
            )
        if options := list(_options_of(made)):
            print()
            print_names("options, for --agent-option NAME=VALUE", options)
        return 0


@dataclass(frozen=True, kw_only=True)
class Models(Command):
    """List the language models and the world models that commands take."""

    def run(self) -> int:
        envs = ", ".join(SHIPPED)
        print_names(
            "language models, for --model", ((k, v.format(envs=envs)) for k, v in _MODELS.items())
        )
        print()
        print_names("world models, for --world-model", _WORLD_MODELS.items())
        return 0


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Check this machine: versions, extras, data, Java, GPU and browser.

    Each line says what was found and, where something is lacking, what to do. Nothing has to be there: the
    environments play generated tasks without any extra but ScienceWorld's.
    """

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
            version = _version(name)
            yield version is not None, name, version or "not installed; see the extras"

    @staticmethod
    def _extras() -> Iterator[tuple[bool, str, str]]:
        packages: dict[str, list[str]] = {}
        for text in _requirements():
            found = re.search(r"""extra == ["']([\w-]+)["']""", text)
            if found and found[1] not in _DEVELOPMENT:
                packages.setdefault(found[1], []).append(re.split(r"[^\w.-]", text)[0])
        for extra, names in packages.items():
            missing = [name for name in names if _version(name) is None]
            advice = str(MissingExtra.of(extra, "")).partition("run: ")[2]
            lacks = f"lacks {', '.join(missing)}; run: {advice}"
            yield not missing, f"extra {extra}", lacks if missing else ", ".join(names)

    @staticmethod
    def _data() -> Iterator[tuple[bool, str, str]]:
        from ..envs.data import catalogue, is_installed

        for env_id in gymnasium.registry:
            if env_id.startswith("comap/"):
                name = env_name(env_id)
                folder = data_path(name)
                has = is_installed(name) if name in catalogue() else folder.is_dir()
                how = _GET.get(
                    name, "put the official files there, or name their folder by --data-dir"
                )
                lacking = f"not in {folder}; {how}"
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
        try:
            browser = getattr(webbrowser.get(), "name", "the default one")
            advice = "no display: copy the pages of comap view to another machine"
            yield has_display(), "browser", browser if has_display() else advice
        except webbrowser.Error:
            yield False, "browser", "none; copy the pages of comap view to a machine that has one"


def _gpu() -> tuple[bool, str, str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False, "GPU", "no NVIDIA driver; models run on the CPU"
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    found = "; ".join(done.stdout.split("\n")).strip("; ")
    if done.returncode or not found:
        return False, "GPU", f"nvidia-smi failed: {' '.join((done.stderr or done.stdout).split())}"
    if "+cpu" in (_version("torch") or ""):
        return False, "GPU", f"{found}, but torch is built for the CPU; install torch with CUDA"
    return True, "GPU", found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    try:
        return metadata.requires("comap") or []
    except metadata.PackageNotFoundError:  # a folder on the path
        return []
