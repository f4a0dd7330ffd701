"""The command line, ``comap COMMAND``: words become settings here, and nothing is computed."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
