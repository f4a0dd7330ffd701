"""IWM: implicit world modelling, of "Agent Learning via Early Experience" (arXiv 2510.08558)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import gymnasium

from ..envs import restore, snapshot
from ..envs.registry import canonical_action
from ..errors import EngineError, OptionError
from ..lm import Completion, Generate, Sampling
from ..settings import PositiveInt, Range
from ..worldmodel import Transition, query_about
from .base import Reply, Request, View
from .parsing import parse_action
from .prompting import STOP, as_choices, converse, seed_for
from .react import ReActAgent, ReActConfig, replies_in


@dataclass(frozen=True, kw_only=True)
class IWMConfig(ReActConfig):
    """ReAct's settings, and those of the exploration before training.

    Example:
        >>> IWMConfig().alternatives
        8
    """

    alternatives: PositiveInt = 8
    """Alternative actions in each of the expert's states, K (ours)."""
    exploration_temperature: Annotated[float, Range(0, 10)] = 1.0
    """Temperature at which they are sampled."""


class IWMAgent(ReActAgent):
    """Acts as `ReActAgent`; its model first learned what follows (`explore`), then demonstrations.

    It asks no world model.

    Deviations: those of `ReActAgent`; and alternatives that mean the same action
    count once, so that a state may have fewer than `IWMConfig.alternatives`.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> IWMAgent().name
        'iwm'
    """

    name = "iwm"

    def __init__(self, config: IWMConfig | None = None):
        super().__init__(config or IWMConfig())


_Propose: TypeAlias = "Callable[[View], Generator[Request, Reply, Sequence[str]]]"


def sample_alternatives(
    view: View, config: IWMConfig
) -> Generator[Request, Reply, tuple[str, ...]]:
    """Sample actions from the policy, one batch; what has no action in it is left out."""
    choices: tuple[str, ...] | None = None
    tokens, prefix = config.draft_tokens, ""
    if config.decoding != "free" and view.admissible_actions:
        choices, tokens = as_choices(view.admissible_actions)
        prefix = "Action:"
    sampling = Sampling(tokens, config.exploration_temperature, stop=() if choices else STOP)
    messages = converse(view, config, replies_in(view))
    said: list[Completion] = yield [
        Generate(
            messages,
            replace(sampling, seed=seed_for(config, view, f"alternative {number + 1}")),
            prefix,
            choices,
            config.adapter,
            "alternative",
            thinking=config.asks_to_think,
        )
        for number in range(config.alternatives)
    ]
    if choices is not None:
        texts = [reply.text.strip() for reply in said]
    else:
        read = [parse_action(reply.text, view.admissible_actions) for reply in said]
        texts = [action for action in read if action is not None]
    return tuple(text for text in texts if text)


def explore(
    env: gymnasium.Env[str, str],
    expert: Sequence[str],
    propose: _Propose,
    k: int = 8,
    *,
    task: str | None = None,
    seed: int | None = None,
) -> Generator[Request, Reply, list[Transition]]:
    """Follow an expert, and in each of its states also try other actions."""
    if task is not None:
        env.reset(seed=seed, options={"task": task})
    found: list[Transition] = []
    memory: dict[str, Any] = {}
    for action in expert:
        moment = snapshot(env)
        _, info = restore(env, moment)
        query = query_about(env, action)
        view = View(
            query.env_id,
            info["task"],
            query.goal,
            query.history,
            query.state,
            query.admissible_actions,
            info["step"],
            memory=memory,
            seed=seed or 0,
        )
        proposed = yield from propose(view)
        others, distinct = [], dict[str, str]()
        for text in proposed:
            distinct.setdefault(canonical_action(query.env_id, text), text)
        distinct.pop(canonical_action(query.env_id, action), None)
        for other in [*distinct.values()][:k]:
            answer = env.step(other)
            if not answer[4].get("error"):
                others.append(Transition(replace(query, action=other), answer[0]))
            restore(env, moment)
        observation, _, terminated, truncated, after = env.step(action)
        if after["imagined"]:
            raise OptionError(
                "implicit world modelling learns from real steps, found an imagined environment; pass "
                "env.unwrapped"
            )
        if after.get("error"):
            raise EngineError(
                f"the engine broke at the expert's action {action!r}: {after['error']}"
            )
        found += [Transition(query, observation), *others]
        if terminated or truncated:
            break
    return found
