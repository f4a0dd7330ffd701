"""Making agents by name."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from comap.agents.config import AgentConfig
from comap.agents.create import AGENTS, agent_options, create_agent
from comap.errors import OptionError

EACH = pytest.mark.parametrize("name", sorted(AGENTS))


@EACH
def test_each_agent_is_made_and_knows_its_name(name: str) -> None:
    agent = create_agent(name)
    assert agent.name == name
    config = agent_options(name)
    if config is None:
        assert name in ("random", "expert")
    else:
        assert issubclass(config, AgentConfig)
        assert config.__module__.startswith("comap.agents.")
        decoding = "free" if name == "paw" else "scored"  # "paw" has no other
        made = create_agent(name, decoding=decoding, seed=3)
        assert (made.config.decoding, made.config.seed) == (decoding, 3)  # type: ignore[attr-defined]
        assert type(made.config) is config  # type: ignore[attr-defined]


@EACH
def test_settings_are_documented(name: str) -> None:
    import ast
    from pathlib import Path

    config = agent_options(name)
    if config is None:
        return
    module = importlib.util.find_spec(config.__module__)
    assert module is not None and module.origin is not None
    tree = ast.parse(Path(module.origin).read_text("utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == config.__name__]
    for node, after in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            assert said, f"{config.__name__}.{ast.unparse(node.target)} has no docstring"


@EACH
def test_defaults_are_json(name: str) -> None:
    import json

    config = agent_options(name)
    if config is not None:
        assert json.loads(json.dumps(config().describe()))["decoding"] == "free"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("reakt", {}, "there is no agent 'reakt'; did you mean 'react'"),
        (3, {}, "there is no agent 3"),
        ("react", {"decodin": "free"}, "has no option 'decodin'; did you mean 'decoding'"),
        ("react", {"config": None}, "has no option 'config'"),
        ("react", {"decoding": "loud"}, "decoding must be one of"),
        ("react", {"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ("react", {"temperature": -1}, "temperature"),
        ("expert", {"seed": 1}, "it has no options"),
        ("random", {"mixed": 2}, "mixed must be from 0 to 1"),
        ("random", {"mixed": "much"}, "expected options of the agent 'random'"),
        ("comap", {"tau": 0.5}, "did you mean 'tau_"),
    ],
    ids=str,
)
def test_mistakes_are_told(name: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        create_agent(name, **options)


def test_options_reach_their_agent() -> None:
    random: Any = create_agent("random", seed=4, mixed=0.5)
    assert (random.seed, random.mixed) == (4, 0.5)
    comap: Any = create_agent("comap", tau_q=0.1, p_source="verbal", head=None)
    assert (comap.config.tau_q, comap.head) == (0.1, None)
