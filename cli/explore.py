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
from typing import Any, ClassVar, NamedTuple

import gymnasium
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .. import __version__
from ..agents.create import AGENTS, agent_class, agent_options
from ..benchmarks.record import version
from ..envs import TextEnv
from ..envs.briefing import env_name
from ..envs.registry import env_class, registered
from ..envs.storage import data_path
from ..errors import DISTRIBUTION, CoMapError, install_command
from ..lm.create import SHIPPED
from ..lm.engine_choice import VLLM_TESTED, VLLM_VERSIONS, has_vllm, resolved_engine
from ..trainers.setup import Environments
from .options import WORD, Command, described, flag, leaves, option_help, paragraphs
from .run import Play

_DEVELOPMENT = ("all", "docs", "lint", "test")  # extras that no user needs
_VERSIONS = ("gymnasium", "numpy", "torch", "transformers", "trl")
_MODELS = {
    "shipped": "a small trained policy that comes with comap, for {envs}",
    "shipped:wm": "the world model that comes with it",
    "tiny": "a new small model without training, to try things out; built into OUT/model",
    "DIR": "a folder of save_pretrained",
    "Qwen/Qwen3-4B": "a model of the Hugging Face Hub, by its name; --engine says what runs it",
    "http://HOST:PORT/v1#NAME": "model NAME on a server that speaks OpenAI's protocol (SGLang, ...)",
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
    all_rows = list(rows)

    # A long name sticks out: it must not push all texts to the right.
    width = max((len(name) for name, _ in all_rows if len(name) <= 26), default=0) + 4
    indent = " " * width

    print(f"\n{title}:")
    for name, text in all_rows:
        begin = f"  {name:<{width - 2}}"
        print(textwrap.fill(text, 100, initial_indent=begin, subsequent_indent=indent))


def _summary(cls: type[Any]) -> str:
    return paragraphs(cls.__doc__).partition("\n\n")[0].replace("`", "")


def _options_of(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the options of a class's constructor, with their help and defaults."""
    help_texts = option_help(cls)
    for name, parameter in inspect.signature(cls).parameters.items():
        # Settings are listed on their own, and names of further options are not known.
        if name == "config" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        help_text = help_texts.get(name, "")
        if parameter.default is not parameter.empty:
            help_text += f" (default: {_default_in_words(parameter.default)})"
        yield name, help_text


def _default_in_words(default: Any) -> str:
    """Return a default as a user would write it."""
    # The text of a function has its address, which is another one in each process.
    if inspect.isfunction(default) or inspect.ismethod(default) or inspect.isclass(default):
        return f"{default.__module__}:{default.__qualname__}"
    return repr(default)


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

        cls = env_class(self.env)
        env_id = registered(self.env)
        print(f"{env_id}: {_summary(cls)}")

        make_env = Environments(self.env)
        with closing(make_env(None)) as env:
            panel = env.get_wrapper_attr("tasks")
            print_names("splits", self._splits(make_env, cls, panel))
            options = {**dict(_options_of(cls)), **dict(_options_of(TextEnv))}
            print_names("options, for --env-option NAME=VALUE or gymnasium.make", options.items())
            self._print_data(env_id)
            observation, info = env.reset(seed=0)

        print(f"a task: {info['task']}\ngoal: {info['goal']}\n\n{observation}")
        split = f" --split {info['split']}" if cls.takes("split") else ""
        print(f"\nto play it: comap play --env {self.env}{split}")
        return 0

    @staticmethod
    def _splits(
        make_env: Environments, cls: type[TextEnv], panel: Any
    ) -> Iterator[tuple[str, str]]:
        """Yield the splits, and how many tasks each has."""
        if not cls.takes("split"):
            yield panel.split, f"{len(panel):,} tasks"
            return

        for split in panel.splits:
            with closing(make_env(split)) as env:
                text = f"{len(env.get_wrapper_attr('tasks')):,} tasks"
            if split in cls.test_splits:
                text += " (for tests)"
            yield split, text

    @staticmethod
    def _print_data(env_id: str) -> None:
        folder = data_path(env_name(env_id))
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        amount = f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB" if sizes else "none"
        print(f"\ndata in {folder}: {amount}\n")


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

        cls = agent_class(self.agent)
        print(f"{self.agent}: {_summary(cls)}")

        settings_class = agent_options(self.agent)
        if settings_class is not None:
            # As in the help of comap run: a setting with the name of an option bears a prefix.
            prefixed_names = {option.name: f"{Play.prefix}{option.name}" for option in fields(Play)}
            rows = []
            for path, hint, help_text, default in leaves(settings_class()):
                name = prefixed_names.get(path[-1], path[-1])
                rows.append((flag(name), described(help_text, hint, default)))
            print_names(f"settings, options of comap run --agent {self.agent}", rows)

        options = list(_options_of(cls))
        if options:
            print_names("options, for --agent-option NAME=VALUE", options)
        return 0


@dataclass(frozen=True, kw_only=True)
class Models(Command):
    """List the language models and the world models that commands take."""

    def run(self) -> int:
        envs = ", ".join(SHIPPED)
        language_models = {name: text.format(envs=envs) for name, text in _MODELS.items()}
        print_names("language models, for --model", language_models.items())
        print_names("world models, for --world-model", _WORLD_MODELS.items())
        return 0


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Check this machine: versions, extras, data, Java, GPU, engine and browser, and say what to do."""

    example: ClassVar[str] = "comap doctor"

    def run(self) -> int:
        checks = [*self._versions(), *self._extras(), *self._data(), *self._machine()]
        width = max(len(check.name) for check in checks) + 2
        for check in checks:
            mark = "ok" if check.is_present else "--"
            print(f"{mark}  {check.name:<{width}}{check.finding}")

        present = sum(check.is_present for check in checks)
        lacking = len(checks) - present
        print(f"\n{present} found, {lacking} lacking; install only what you need")
        return 0

    @staticmethod
    def _versions() -> Iterator[_Check]:
        yield _Check(True, "Python", f"{platform.python_version()}, {sys.executable}")
        yield _Check(True, "comap", __version__)
        core = _requirements().get("", [])
        ranges: dict[str, Requirement] = {}
        for requirement in core:
            ranges[canonicalize_name(requirement.name)] = requirement
        for name in _VERSIONS:
            installed = version(name)
            finding = installed or "not installed; see the extras"
            fault = _fault(ranges[name]) if name in ranges else ""
            if fault:
                finding = f"{fault}; run: pip install {DISTRIBUTION}"
            yield _Check(installed is not None and not fault, name, finding)

    @staticmethod
    def _extras() -> Iterator[_Check]:
        """Check the packages of each extra, and their versions."""
        for extra, requirements in _requirements().items():
            if not extra:
                continue
            faults = [fault for fault in map(_fault, requirements) if fault]
            finding = ", ".join(requirement.name for requirement in requirements)
            if faults:
                finding = f"{', '.join(faults)}; run: {install_command(extra)}"
            yield _Check(not faults, f"extra {extra}", finding)

    @staticmethod
    def _data() -> Iterator[_Check]:
        """Check whether the official data are here; `comap data verify` checks what is in them."""
        from ..benchmarks.official import is_here
        from ..envs.datasets import catalogue

        for data_set in catalogue().values():
            # Packages are among the extras, and what is optional is no official task's need.
            if data_set.optional or data_set.package:
                continue
            is_present = is_here(data_set)
            remedy = f"comap data list {data_set.name}"
            if data_set.url or data_set.files:
                remedy = data_set.remedy
            finding = str(data_set.place)
            if not is_present:
                finding = f"not in {finding}; run: {remedy}"
            yield _Check(is_present, f"data {data_set.name}", finding)

    @staticmethod
    def _machine() -> Iterator[_Check]:
        """Check Java, which ScienceWorld's simulator needs, GPU, engine, and the browser of comap view."""
        from ..benchmarks.view import has_display
        from ..envs.scienceworld.simulator import find_java

        try:
            java = find_java()
            yield _Check(True, "Java", f"{java.version}, {java.executable}")
        except CoMapError as error:
            yield _Check(False, "Java", str(error))

        yield _gpu()
        yield _engine()

        # Without a display there may be a browser for the terminal: it shows none of the pages.
        browser = ""
        if has_display():
            with suppress(webbrowser.Error):
                browser = getattr(webbrowser.get(), "name", "")
        advice = "none, or no display; copy the pages of comap view to another machine"
        yield _Check(bool(browser), "browser", browser or advice)


class _Check(NamedTuple):
    """What was looked for on this machine, and what there is."""

    is_present: bool
    name: str
    finding: str


def _requirements() -> dict[str, list[Requirement]]:
    """Return what each extra asks for, as the installed distribution lists it, and ``""`` the core."""
    lines: Iterable[str] = ()
    if version(DISTRIBUTION):  # not where comap is imported from a checkout
        lines = metadata.requires(DISTRIBUTION) or ()

    # Such as: accelerate>=1.0; extra == "train"
    requirements: dict[str, list[Requirement]] = {}
    for line in lines:
        requirement = Requirement(line)
        extra_marker = re.search(r"""extra == ["']([\w-]+)["']""", line)
        extra = extra_marker[1] if extra_marker else ""
        is_for_here = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if is_for_here and extra not in _DEVELOPMENT:
            requirements.setdefault(extra, []).append(requirement)
    return requirements


def _fault(requirement: Requirement) -> str:
    """Return what is wrong with the installed version of a package; empty if nothing is."""
    installed = version(requirement.name)
    if installed is None:
        return f"lacks {requirement.name}"
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"has {requirement.name} {installed}, needs {requirement.specifier}"


def _engine() -> _Check:
    """Say what runs Hugging Face models if nobody says so, and with which vLLM."""
    choice = resolved_engine("auto")
    installed = f"vLLM {version('vllm') or 'of an unknown version'}, " if has_vllm() else ""
    return _Check(
        choice.name == "vllm",
        "engine",
        f"{choice}; {installed}tested with vLLM {VLLM_TESTED}, installs with {VLLM_VERSIONS}",
    )


def _gpu() -> _Check:
    """Check for a GPU by the driver's own program: importing torch takes seconds.

    A GPU that torch cannot use counts as lacking.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return _Check(False, "GPU", "no NVIDIA driver; models run on the CPU")

    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        # A driver that hangs would stop the whole check.
        process = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _Check(False, "GPU", f"{program} does not answer ({error}); check the driver")

    # One line for each GPU, or the driver's error, which says what is wrong with it.
    driver_report = "; ".join((process.stdout + process.stderr).strip().splitlines())
    if "+cpu" in (version("torch") or ""):
        finding = f"{driver_report}, but torch is built for the CPU; install torch with CUDA"
        return _Check(False, "GPU", finding)
    return _Check(process.returncode == 0, "GPU", driver_report)
