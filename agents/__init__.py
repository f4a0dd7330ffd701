"""Agents that act in text environments, and the runner that plays their episodes.

Each agent is a class with a config, a frozen dataclass of all its settings: `CoMapAgent` and
`CoMapConfig`, `ReActAgent` and `ReActConfig`, and so on. `create_agent` makes one from its name.
`run_episode` plays one episode, `run_episodes` many at once, `run_to` into a folder.
"""

from __future__ import annotations

from .base import Agent, Decision, Imagine, Probe, ProbeResult, Reply, Request, Retrying, View
from .comap import CoMapAgent, CoMapConfig
from .config import AgentConfig, check_capabilities
from .convert import from_sharegpt, to_dataset, to_sharegpt
from .create import AGENTS, agent_options, create_agent
from .heads import KHead, RefinementHead
from .imagine_and_act import ImagineAndActAgent, ImagineAndActConfig
from .itp import ITPAgent, ITPConfig
from .iwm import IWMAgent, IWMConfig
from .paw import PaWAgent, PaWConfig
from .rap import RAPAgent, RAPConfig
from .ray import RayPool
from .react import ReActAgent, ReActConfig
from .redraft import RedraftAgent, RedraftConfig
from .reflexion import ReflexionAgent, ReflexionConfig
from .requests import Keep
from .run import Run, run_to
from .runner import run_episode, run_episodes, stream_episodes
from .scoring import score_world_model
from .scripted import ExpertAgent, RandomAgent, ReplayAgent
from .webevolver import WebEvolverAgent, WebEvolverConfig
from .wkm import KnowledgeBase, WKMAgent, WKMConfig

__all__ = [
    "AGENTS",
    "Agent",
    "AgentConfig",
    "CoMapAgent",
    "CoMapConfig",
    "Decision",
    "ExpertAgent",
    "ITPAgent",
    "ITPConfig",
    "IWMAgent",
    "IWMConfig",
    "Imagine",
    "ImagineAndActAgent",
    "ImagineAndActConfig",
    "KHead",
    "Keep",
    "KnowledgeBase",
    "PaWAgent",
    "PaWConfig",
    "Probe",
    "ProbeResult",
    "RAPAgent",
    "RAPConfig",
    "RandomAgent",
    "RayPool",
    "ReActAgent",
    "ReActConfig",
    "RedraftAgent",
    "RedraftConfig",
    "RefinementHead",
    "ReflexionAgent",
    "ReflexionConfig",
    "ReplayAgent",
    "Reply",
    "Request",
    "Retrying",
    "Run",
    "View",
    "WKMAgent",
    "WKMConfig",
    "WebEvolverAgent",
    "WebEvolverConfig",
    "agent_options",
    "check_capabilities",
    "create_agent",
    "from_sharegpt",
    "run_episode",
    "run_episodes",
    "run_to",
    "score_world_model",
    "stream_episodes",
    "to_dataset",
    "to_sharegpt",
]
