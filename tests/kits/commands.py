"""Commands as one types them, and what they leave: for tests."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

from comap.cli import main
from comap.trajectory import Trajectory, read_trajectories

SMALL = ["--episodes", "4", "--env-option", "source=generated"]


def say(*arguments: str) -> tuple[int, str, str]:
    """Return a command's exit code, what it says, and what it says of mistakes."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as stop:
            code = int(str(stop.code))
    return code, out.getvalue(), err.getvalue()


def run(*arguments: str) -> int:
    return main(["run", *SMALL, *arguments])


def episodes(folder: Path) -> list[Trajectory]:
    return list(read_trajectories(folder / "trajectories.jsonl"))


def viewed(page: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The index and the episodes that a viewer's page holds."""
    markup = page.read_text("utf-8")
    index = re.search('id="index">([^<]*)<', markup)
    entries = json.loads(index[1])["episodes"]
    parts = re.findall('id="packed-[0-9]+">([^<]*)<', markup)
    return entries, [json.loads(zlib.decompress(base64.b64decode(part))) for part in parts]
