"""Data that others published, as trajectories: Word2World, AgentTraj, ETO, the Agent Data Protocol.

- `import_files`: what ``comap data import`` does
"""

from __future__ import annotations

from .importing import import_files

__all__ = ["import_files"]
