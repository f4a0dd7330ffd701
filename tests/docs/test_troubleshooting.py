"""Each message that the page on troubleshooting explains is one that is really raised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kits.faults import FAULTS, say

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "troubleshooting.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n\n```text\n(.+)\n```\n\n\S", PAGE, re.MULTILINE))


def test_all_sections_are_tested() -> None:
    assert list(SECTIONS) == list(FAULTS) == re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert len(SECTIONS) >= 20


@pytest.mark.parametrize("title", SECTIONS)
def test_the_message_is_raised(title: str, tmp_path: Path) -> None:
    with pytest.raises(Exception) as raised:
        FAULTS[title](tmp_path)
    pattern = ".*?".join(re.escape(part) for part in SECTIONS[title].split("…"))
    assert re.fullmatch(pattern, say(raised.value), re.DOTALL), say(raised.value)
