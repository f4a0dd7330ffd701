"""StableToolBench's official files."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def official(stabletoolbench_data: Path) -> Path:
    """The folder with ``test_instruction/`` and ``tool_response_cache/``."""
    return stabletoolbench_data
