"""What is documented where: public names, and the pages that have them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["ENVIRONMENTS", "REFERENCE", "documented", "linked", "names_of", "written"]

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
            "comap.trainers.paw.zerosearch",
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
_DIRECTIVE = re.compile(r"^::: (\S+)", re.MULTILINE)


def names_of(module: str) -> list[str]:
    """Return the full names of what a module makes public: classes and functions, then the rest.

    That is what a package's ``__all__`` lists, and the classes and functions that a plain module defines.

    Args:
        module: Its name.
    """
    made = import_module(module)
    held = vars(made)
    listed = held.get("__all__") or [
        name
        for name, thing in held.items()
        if getattr(thing, "__module__", None) == module
        and getattr(thing, "__name__", None) == name
        and thing.__doc__
    ]
    ranks = {name: _FIRST.index(name) if name in _FIRST else len(_FIRST) for name in listed}
    ordered = sorted(listed, key=lambda name: (ranks[name], not _is_defined(getattr(made, name))))
    return [f"{module}.{name}" for name in ordered if name[0] != "_"]


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
    for name in _listed():
        home = homes.setdefault(_origin(name), name)
        homes.setdefault(name, home)
        shorts.setdefault(name.rpartition(".")[2], set()).add(home)
    short = {name: places.pop() for name, places in shorts.items() if len(places) == 1}
    return {**short, **homes}


@cache
def written() -> frozenset[str]:
    """Return the full names of what pages written by hand document."""
    pages = sorted(DOCS.glob("**/*.md"))
    return frozenset(name for page in pages for name in _DIRECTIVE.findall(page.read_text("utf-8")))


def _listed() -> Iterator[str]:
    yield from sorted(written())
    for folder in ENVIRONMENTS:
        yield from names_of(f"comap.envs.{folder}")
    for modules in REFERENCE.values():
        for module in modules:
            yield from names_of(module)


def _origin(name: str) -> str:
    """Return where a thing is defined, for names of one thing in several modules."""
    module, _, attribute = name.rpartition(".")
    found: Any = getattr(import_module(module), attribute)
    defined = getattr(found, "__module__", None)
    known = getattr(found, "__qualname__", None)
    return f"{defined}.{known}" if defined and known == attribute else name


def linked(text: str) -> str:
    """Return Markdown in which names in backticks lead to where they are documented.

    Args:
        text: The Markdown; code blocks in it are left alone.
    """
    parts = re.split(
        r"(^```.*?^```$|^(?:    |>>> |\.\.\. ).*$)", text, flags=re.DOTALL | re.MULTILINE
    )
    return "".join(part if i % 2 else _link_all(part) for i, part in enumerate(parts))


def _link_all(text: str) -> str:
    return _NAMED.sub(_link, text)


def _link(found: re.Match[str]) -> str:
    name = found[1]
    plain = "." not in name and name == name.lower() and "_" not in name
    known = documented()
    home = None if plain else known.get(name) or known.get(name.rpartition(".")[0])
    return f"[`{name}`][{home}]" if home else found[0]
