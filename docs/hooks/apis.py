"""What is documented where: public names, and the pages that have them."""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = [
    "DOCS",
    "ENTRY",
    "ENVIRONMENTS",
    "REFERENCE",
    "documented",
    "linked",
    "names_of",
    "resolved",
    "titles",
    "written",
]

DOCS = Path(__file__).parents[1]

ENVIRONMENTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "alfworld": ("ALFWorld", "ALFWorldEnv"),
        "webshop": ("WebShop", "WebShopEnv"),
        "scienceworld": ("ScienceWorld", "ScienceWorldEnv"),
        "stabletoolbench": ("StableToolBench", "StableToolBenchEnv"),
        "searchqa": ("Search QA", "SearchQAEnv"),
        "web": ("Web", "WebEnv"),
    }
)
"""The title and the class of each environment's page."""

REFERENCE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "facts": ("comap.facts",),
        "metrics": ("comap.metrics",),
        "errors": ("comap.errors",),
        "trajectory": ("comap.trajectory",),
        "envs": ("comap.envs", "comap.spaces", "comap.envs.vector", "comap.envs.conformance"),
        "worldmodel": ("comap.worldmodel",),
        "agents": ("comap.agents",),
        "lm": ("comap.lm", "comap.lm.tiny"),
        "trainers": (
            "comap.trainers",
            "comap.trainers.paw.config",
            "comap.trainers.paw.advantages",
            "comap.trainers.paw.search.plugin",
            "comap.trainers.paw.search.simulator",
        ),
        "integrations": (
            "comap.integrations",
            "comap.integrations.agentgym",
            "comap.integrations.trl",
            "comap.integrations.mcp",
            "comap.integrations.verl_agent",
            "comap.integrations.adapter",
            "comap.integrations.browsergym",
            "comap.integrations.hub",
            "comap.integrations.published",
        ),
        "benchmarks": ("comap.benchmarks",),
    }
)
"""The modules of each page of the reference; a name that several have is on the first of them."""

_FIRST = (
    "State",
    "delta_f1",
    "delta_f1_report",
    "Trajectory",
    "read_trajectories",
    "TextEnv",
    "Info",
    "ImaginedEnv",
    "imagine",
    "WorldModel",
    "Query",
    "Prediction",
    "create_world_model",
    "run_episode",
    "run_episodes",
    "run_to",
    "create_agent",
    "score_world_model",
    "to_dataset",
    "Agent",
    "View",
    "Decision",
    "LanguageModel",
    "HFLanguageModel",
    "OpenAILanguageModel",
    "CoEvolution",
    "train_paw",
    "preset",
    "paw_preset",
    "Environments",
    "environment_factory",
    "adapt",
)
"""What readers come for: it stands first on its page."""

_NAMED = re.compile(r"(?<![`\[\w])`([A-Za-z_][\w.]*)`(?![`\]])")
_REFERENCE_LINK = re.compile(r"\[([^\[\]]+)\]\[(comap[\w.]*)\]")
_CODE = re.compile(r"(^```.*?^```$|^(?:    |>>> |\.\.\. )[^\n]*$)", re.DOTALL | re.MULTILINE)

ENTRY = re.compile(r"^<!-- api: (\S+)(.*) -->$", re.MULTILINE)
"""The mark under which a page written by hand has the entry of a public name."""


def names_of(module: str) -> list[str]:
    """Return the full names of what a module makes public: classes and functions, then the rest.

    That is what a package's ``__all__`` lists, and the classes and functions that a plain module defines.

    Args:
        module: Its name.
    """
    namespace = vars(import_module(module))
    names = namespace.get("__all__") or [
        name
        for name, thing in namespace.items()
        if getattr(thing, "__module__", None) == module
        and getattr(thing, "__name__", None) == name
        and thing.__doc__
    ]

    def rank(name: str) -> tuple[int, bool]:
        position = _FIRST.index(name) if name in _FIRST else len(_FIRST)
        return position, not _is_defined(getattr(import_module(module), name))

    return [f"{module}.{name}" for name in sorted(names, key=rank) if name[0] != "_"]


def _is_defined(thing: Any) -> bool:
    """Return whether a thing is a class or a function, no constant and no alias of a type."""
    return isinstance(thing, type) or inspect.isroutine(thing)


@cache
def documented() -> dict[str, str]:
    """Return the full name under which each public thing is documented, by all its names.

    That is its full names, and, where only one thing has it, its short name.
    """
    homes: dict[str, str] = {}
    shorts: dict[str, set[str]] = {}
    for name in _pages():
        home = homes.setdefault(_origin(name), name)
        homes.setdefault(name, home)
        shorts.setdefault(name.rpartition(".")[2], set()).add(home)
    short = {name: places.pop() for name, places in shorts.items() if len(places) == 1}
    return {**short, **homes}


@cache
def written() -> dict[str, str]:
    """Return the full names of what pages written by hand document, and those pages."""
    pages: dict[str, str] = {}
    for path in sorted(DOCS.glob("**/*.md")):
        place = path.relative_to(DOCS).as_posix()
        pages |= {name: place for name, _ in ENTRY.findall(path.read_text("utf-8"))}
    return pages


@cache
def _pages() -> dict[str, str]:
    """Return the page of each public name."""
    pages: dict[str, str] = dict(written())
    for folder in ENVIRONMENTS:
        for name in names_of(f"comap.envs.{folder}"):
            pages.setdefault(name, f"environments/{folder}.md")
    for page, modules in REFERENCE.items():
        for module in modules:
            for name in names_of(module):
                pages.setdefault(name, f"reference/{page}.md")
    return pages


def _origin(name: str) -> str:
    """Return where a thing is defined, for names of one thing in several modules."""
    module, _, attribute = name.rpartition(".")
    thing: Any = getattr(import_module(module), attribute)
    home_module = getattr(thing, "__module__", None)
    qualified_name = getattr(thing, "__qualname__", None)
    return f"{home_module}.{attribute}" if home_module and qualified_name == attribute else name


def linked(text: str) -> str:
    """Return Markdown in which names in backticks lead to where they are documented.

    Args:
        text: The Markdown; code blocks in it are left alone.
    """
    return _outside_code(text, lambda prose: _NAMED.sub(_link, prose))


def resolved(markdown: str, page: str) -> str:
    """Return a page whose links to public names, ``[text][comap.NAME]``, are relative links.

    Args:
        markdown: The page.
        page: Its place in the documentation, such as ``reference/lm.md``.
    """

    def written_out(link: re.Match[str]) -> str:
        return f"[{link[1]}]({_address(link[2], page)})"

    return _outside_code(markdown, lambda prose: _REFERENCE_LINK.sub(written_out, prose))


@cache
def titles() -> dict[str, str]:
    """Return the title of each public name's entry: its short name, if that makes an anchor of its own.

    Anchors are in lower case: of ``Snapshot`` and ``snapshot`` on one page the second has its full name.
    """
    anchors: set[tuple[str, str]] = set()
    titles_by_name = {}
    for name, page in _pages().items():
        short = name.rpartition(".")[2]
        if documented()[name] == name:
            anchor = (page, short.lower())
            titles_by_name[name] = name if anchor in anchors else short
            anchors.add(anchor)
    return titles_by_name


def _address(name: str, page: str) -> str:
    """Return where a public name is documented, as seen from a page."""
    home = documented()[name]
    module, _, short = home.rpartition(".")
    target = _pages()[home]
    is_title = target.startswith("environments/") and short == _class_of(module)
    anchor = "" if is_title else f"#{titles()[home].replace('.', '').lower()}"
    if target == page and anchor:
        return anchor
    return posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor


def _class_of(module: str) -> str:
    """Return the class whose page is that of the environment in a package."""
    return ENVIRONMENTS.get(module.rpartition(".")[2], ("", ""))[1]


def _outside_code(text: str, changed: Callable[[str], str]) -> str:
    parts = _CODE.split(text)
    return "".join(part if index % 2 else changed(part) for index, part in enumerate(parts))


def _link(code: re.Match[str]) -> str:
    name = code[1]

    # A plain word in backticks is mostly an option or a value, also where a function is called so.
    is_plain_word = "." not in name and name == name.lower() and "_" not in name
    if is_plain_word:
        return code[0]
    homes = documented()
    home = homes.get(name) or homes.get(name.rpartition(".")[0])  # a method: of its class
    return f"[`{name}`][{home}]" if home else code[0]
