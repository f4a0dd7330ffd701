"""StableToolBench's official files in the shared folder."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "stabletoolbench"


@pytest.fixture(scope="session")
def official() -> Path:
    """The folder with ``test_instruction/`` and ``tool_response_cache/``."""
    if not (SHARED / "test_instruction").is_dir():
        pytest.skip(f"no StableToolBench data at {SHARED}")
    return SHARED
