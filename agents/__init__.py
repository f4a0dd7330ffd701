"""Agents: who acts, and the runner that lets them."""

from __future__ import annotations

from .base import Agent, Decision, Imagine, Reply, Request, View
from .expert import ExpertAgent
from .random import RandomAgent
from .replay import ReplayAgent
from .runner import run_episode

__all__ = [
    "Agent",
    "Decision",
    "ExpertAgent",
    "Imagine",
    "RandomAgent",
    "ReplayAgent",
    "Reply",
    "Request",
    "View",
    "run_episode",
]
