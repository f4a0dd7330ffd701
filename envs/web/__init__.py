"""The web: generated sites, a browser for them, the environment and its canonicalizer."""

from __future__ import annotations
