"""Our server runs with mcp 2, in the environment of verifiers, as it does with mcp 1 in ours.

`make interop` runs this in an environment of its own: OpenEnv, which is in ours, needs mcp 1.
"""

# installs: comap[mcp,verifiers] httpx

from __future__ import annotations

from importlib.metadata import version

import pytest

pytest.importorskip("verifiers", minversion="0.4")
from integrations.test_mcp import *  # noqa: F403 the same tests, with the other client and server


def test_this_is_mcp_2() -> None:
    assert version("mcp").startswith("2.")
