"""Agents: who acts, and the runner that lets them."""

from __future__ import annotations

from .base import Agent, Decision, Imagine, Probe, Probed, Reply, Request, Retrying, View
from .calls import Keep
from .config import AgentConfig
from .create import AGENTS, agent_options, create_agent
from .expert import ExpertAgent
from .paw import PaWAgent, PaWConfig
from .random import RandomAgent
from .replay import ReplayAgent
from .run import Run, run_to
from .runner import run_episode, run_episodes, stream_episodes

__all__ = [
    "AGENTS",
    "Agent",
    "AgentConfig",
    "Decision",
    "ExpertAgent",
    "Imagine",
    "Keep",
    "PaWAgent",
    "PaWConfig",
    "Probe",
    "Probed",
    "RandomAgent",
    "ReplayAgent",
    "Reply",
    "Request",
    "Retrying",
    "Run",
    "View",
    "agent_options",
    "create_agent",
    "run_episode",
    "run_episodes",
    "run_to",
    "stream_episodes",
]
