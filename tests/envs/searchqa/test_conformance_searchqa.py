"""Search QA, in all its forms, keeps every rule that all environments keep."""

from __future__ import annotations

from typing import ClassVar

from comap.envs.conformance import EnvConformance


class TestSearchQA(EnvConformance):
    env_id = "comap/SearchQA-v0"
    kwargs: ClassVar = {"source": "generated"}


class TestSearchQAWithSuggestions(EnvConformance):
    env_id = "comap/SearchQA-v0"
    kwargs: ClassVar = {
        "source": "generated",
        "split": "test",
        "admissible_actions": True,
        "expert": "explore",
        "invalid_penalty": 0.01,
    }
    memory_episodes = 100


class TestSearchQAInReAct(EnvConformance):
    env_id = "comap/SearchQA-v0"
    kwargs: ClassVar = {
        "source": "generated",
        "split": "dev",
        "admissible_actions": True,
        "actions": "react",
        "style": "verl",
        "reward": "format",
        "topk": 2,
        "turns": 6,
    }
    memory_episodes = 100
