"""What is said in several places is the same in all of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from comap.lm.vllm_transports import SERVE_WEIGHTS

ROOT = Path(__file__).parents[2]
PLACES = ("docs/trainers/paw.md", "docs/guides/scaling.md")


def words_of(text: str) -> list[str]:
    """Return what a vLLM server is started with, from the command in a text."""
    command = re.search(r"VLLM_SERVER_DEV_MODE=1 vllm serve .+", re.sub(r"\\\n *", "", text))
    assert command is not None
    words = shlex.split(command[0].rstrip(". "))
    variable, *rest = [word for word in words if word not in ("--host", "127.0.0.1")]
    return [variable, *rest[:2], "MODEL", *rest[3:]]


@pytest.mark.parametrize("place", PLACES)
def test_a_vllm_server_is_started_as_the_error_says(place: str) -> None:
    started_with = words_of((ROOT / place).read_text("utf-8"))
    # A page may add what one machine needs, such as --tensor-parallel-size.
    expected_words = words_of(SERVE_WEIGHTS)
    assert started_with[: len(expected_words)] == expected_words
