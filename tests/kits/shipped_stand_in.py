"""Stands in for the models that comap ships: the same layout, tiny models with random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from comap.agents.create import corpus
from comap.lm.tiny import build_tiny

AGENT: dict[str, Any] = {
    "prompts": "brief",
    "state_text": "belief",
    "decoding": "masked",
    "draft_tokens": 4,
    "reflect_tokens": 4,
    "final_tokens": 0,
    "p_source": "verbalizer",
    "q_source": "token_geo_mean",
    "tau_p": 0.4,
    "tau_q": 0.0,
    "temperature": 0.0,
}
WORLD_MODEL: dict[str, Any] = {"prompts": "brief", "state_text": "belief", "max_new_tokens": 4}


def stand_in(root: Path, **agent: Any) -> Path:
    """Build the models under a folder, with such settings of the agent, and return the folder."""
    folder = root / "alfworld"
    policy = build_tiny(folder / "agent", corpus(episodes=1), parameters=200_000, vocabulary=400)
    shutil.copytree(policy, folder / "wm")
    settings = {
        "env": "comap/ALFWorld-v0",
        "env_options": {"difficulty": "r6-6.o3-3.f1", "max_episode_steps": 4},
        "agent": AGENT | agent,
        "world_model": WORLD_MODEL,
        "made_by": "python benchmarks/measure/shipped.py",
    }
    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")
    (folder / "CARD.md").write_text("python benchmarks/measure/shipped.py\n", "utf-8")
    return root
