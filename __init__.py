"""comap: text environments with state facts, textual world models, and the agents that use both.

Importing this registers the Gymnasium ids; everything heavy is loaded when it is first used.

Example:
    >>> import gymnasium as gym, comap
    >>> env = gym.make("comap/ALFWorld-v0", split="valid_unseen")
    >>> observation, info = env.reset(seed=0)
    >>> sorted(info)[:3]
    ['admissible_actions', 'delta', 'facts']
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

from .facts import Delta, Fact, State, apply, diff

__all__ = ["Delta", "Fact", "State", "__version__", "apply", "diff"]
__version__ = "0.1.0"

if "comap/ALFWorld-v0" not in registry:
    register(
        id="comap/ALFWorld-v0",
        entry_point="comap.envs.alfworld:ALFWorldEnv",
        vector_entry_point="comap.envs.alfworld:vector",
        max_episode_steps=50,
        disable_env_checker=True,  # it fails at the first step if the first reset had raised
    )
if "comap/WebShop-v0" not in registry:
    register(
        id="comap/WebShop-v0",
        entry_point="comap.envs.webshop:WebShopEnv",
        vector_entry_point="comap.envs.webshop:vector",
        max_episode_steps=15,
        disable_env_checker=True,
    )
if "comap/ScienceWorld-v0" not in registry:
    register(
        id="comap/ScienceWorld-v0",
        entry_point="comap.envs.scienceworld:ScienceWorldEnv",
        vector_entry_point="comap.envs.scienceworld:vector",
        disable_env_checker=True,  # each task has its own step limit: see the environment
    )
if "comap/StableToolBench-v0" not in registry:
    register(
        id="comap/StableToolBench-v0",
        entry_point="comap.envs.stabletoolbench:StableToolBenchEnv",
        vector_entry_point="comap.envs.stabletoolbench:vector",
        disable_env_checker=True,  # the number of calls is the environment's own limit
    )
if "comap/SearchQA-v0" not in registry:
    register(
        id="comap/SearchQA-v0",
        entry_point="comap.envs.searchqa:SearchQAEnv",
        vector_entry_point="comap.envs.searchqa:vector",
        disable_env_checker=True,  # the option `turns` is the step limit
    )
