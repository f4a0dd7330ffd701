"""Measuring what a step costs beside the environment's own time: tokens, bytes, recording."""

from __future__ import annotations

import json
import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import ExpertAgent
from ..agents.config import AgentConfig
from ..agents.convert_rows import reply_of, views_of
from ..agents.prompting import converse
from ..agents.ray_pool import RayPool
from ..agents.records import Records
from ..agents.run import Run
from ..agents.runner import run_episodes
from ..envs.panel import evenly
from ..envs.ray_cluster import connected
from ..lm.openai_accounting import estimate_tokens
from ..trajectory import Trajectory

__all__ = ["measure_pool", "measure_texts"]

_ROLE = 4  # tokens around each message


def measure_texts(
    env_id: str, options: dict[str, Any], episodes: int, thought_tokens: int
) -> dict[str, Any]:
    """Play an expert's episodes and return what of a step has to be read, written and sent.

    Args:
        env_id: The environment.
        options: Its options.
        episodes: How many.
        thought_tokens: Tokens of the thought that a reply is taken to begin with.

    Returns:
        Means over all steps; seconds are CPU time.

    Example:
        >>> found = measure_texts("comap/ALFWorld-v0", {"source": "generated"}, 1, 10)
        >>> found["new_tokens"] < found["prompt_tokens"]
        True
    """
    make_env = partial(gymnasium.make, env_id, **options)
    with closing(make_env()) as env:
        tasks = evenly(env.get_wrapper_attr("tasks").ids, episodes)
    played = run_episodes(make_env, ExpertAgent(), tasks, live=1)
    prompts = [one for episode in played for one in _prompts(episode, thought_tokens)]
    steps = sum(len(episode.steps) for episode in played)
    sent = [pickle.dumps((0, [episode])) for episode in played]
    return {
        "episodes": len(played),
        "generated": all(one.task.startswith(("generated/", "synthetic/")) for one in played),
        "steps": steps / len(played),
        "prompt_tokens": statistics.mean(one[0] for one in prompts),
        "new_tokens": statistics.mean(one[1] for one in prompts),
        "action_tokens": statistics.mean(one[2] for one in prompts),
        "request_bytes": statistics.mean(one[3] for one in prompts),
        "record_bytes": sum(map(len, sent)) / steps,
        "record_seconds": _recording(sent) / steps,
    }


def measure_pool(episodes: int) -> dict[str, Any]:
    """Return the CPU time of this process for each episode that a worker on Ray has played.

    Args:
        episodes: How many are played, of few steps each.
    """
    make_env = partial(gymnasium.make, "comap/ALFWorld-v0", max_episode_steps=2)
    with closing(make_env()) as env:
        tasks = evenly(env.get_wrapper_attr("tasks").ids, episodes)
    run = Run(make_env=make_env, agent=ExpertAgent(), tasks=tasks)
    with connected(None, 1):
        results = RayPool(1)(run, tasks, 16)
        next(results)
        start = time.process_time()
        count = sum(1 for _ in results)
        return {"seconds": (time.process_time() - start) / max(count, 1)}


def _prompts(episode: Trajectory, thought: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield of each step the prompt's tokens, the new ones, the action's, and the request's bytes."""
    words = ("I look at what I know and say what to do next. " * thought)[: 4 * thought]
    replies = {
        number: f"Thought: {words}\n{reply_of(step)}" for number, step in enumerate(episode.steps)
    }
    config, before = AgentConfig(), ""
    for step, view in zip(episode.steps, views_of(episode), strict=True):
        messages = converse(view, config, replies)
        text = "".join(f"<{message.role}>{message.content}" for message in messages)
        shared = next(
            (place for place, pair in enumerate(zip(before, text)) if pair[0] != pair[1]),  # noqa: B905
            min(len(before), len(text)),
        )
        overhead = _ROLE * len(messages)
        total = estimate_tokens(text) + overhead
        body = {"messages": [message._asdict() for message in messages], "max_tokens": 512}
        new = min(total, estimate_tokens(text[shared:]) + 2 * _ROLE)
        yield total, new, estimate_tokens(step.action), len(json.dumps(body))
        before = text


def _recording(sent: list[bytes]) -> float:
    """Return the CPU time that it takes to read and record what workers sent."""
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder, "trajectories.jsonl"))
        start = time.process_time()
        for one in sent:
            records.add(pickle.loads(one)[1])  # what this process has just pickled itself
        return time.process_time() - start
