"""Numbers in the texts that people write are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym

import comap
from comap.agents import AGENTS
from comap.lm import shipped_models

ROOT = Path(__file__).parents[2]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def read(place: str) -> str:
    return " ".join((ROOT / place).read_text("utf-8").split())


def test_environments_are_counted() -> None:
    ids = {name for name, spec in gym.registry.items() if spec.namespace == comap.__name__}
    assert f"{WORDS[len(ids)]} text environments" in read("docs/index.md")
    rows = re.findall(r"^\| `(comap/[\w-]+)` \|", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert sorted(rows) == sorted(ids)


def test_agents_are_counted() -> None:
    for place in ("README.md", "docs/index.md"):
        counts = re.findall(r"(\w+) agents\b", read(place))
        assert str(len(AGENTS)) in counts, place
    listed = re.findall(r"^\| (.+?) \|", (ROOT / "docs/agents/index.md").read_text("utf-8"), re.M)
    listed_agents = {name for cell in listed for name in re.findall(r"`([\w-]+)`", cell)}
    assert set(AGENTS) <= listed_agents


def test_the_shipped_models_have_their_size() -> None:
    millions = shipped_models().parameters / 1e6
    assert f"{millions:.1f} million parameters each" in read("docs/quickstart.md")
