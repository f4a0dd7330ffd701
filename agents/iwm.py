"""IWM: implicit world modelling, of "Agent Learning via Early Experience" (arXiv 2510.08558)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import gymnasium

from ..envs import Snapshot, restore, snapshot
from ..envs.registry import canonical_action
from ..errors import EngineError, OptionError
from ..lm import Completion, Generate, Sampling
from ..settings import PositiveInt, Range
from ..worldmodel import Query, Transition, query_about
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
    tokens = config.draft_tokens
    prefix = ""
    stop: tuple[str, ...] = STOP
    if config.decoding != "free" and view.admissible_actions:
        # Alternatives are to be sampled, so scored decoding does here what masked decoding does.
        choices, tokens = as_choices(view.admissible_actions)
        prefix = "Action:"
        stop = ()
    sampling = Sampling(tokens, config.exploration_temperature, stop=stop)

    # Seeds alone make the samples differ.
    messages = converse(view, config, replies_in(view))
    requests = []
    for number in range(1, config.alternatives + 1):
        request = Generate(
            messages,
            replace(sampling, seed=seed_for(config, view, f"alternative {number}")),
            prefix,
            choices,
            config.adapter,
            "alternative",
            thinking=config.asks_to_think,
        )
        requests.append(request)
    replies: list[Completion] = yield requests

    actions = []
    for reply in replies:
        action: str | None = reply.text.strip()
        if choices is None:
            action = parse_action(reply.text, view.admissible_actions)
        if action:
            actions.append(action)
    return tuple(actions)


def explore(
    env: gymnasium.Env[str, str],
    expert: Sequence[str],
    propose: _Propose,
    k: int = 8,
    *,
    task: str | None = None,
    seed: int | None = None,
) -> Generator[Request, Reply, list[Transition]]:
    """Follow an expert, and in each of its states also try other actions.

    Raises:
        OptionError: The environment is imagined.
        EngineError: An action of the expert's breaks the engine.
    """
    if task is not None:
        env.reset(seed=seed, options={"task": task})
    transitions: list[Transition] = []
    memory: dict[str, Any] = {}
    for action in expert:
        # Restoring right away has no effect but to give the present's info, which a snapshot lacks.
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
        proposals = yield from propose(view)

        # Other wordings of one action lead to the same state: each counts once, and the expert's own,
        # which is taken below, not at all.
        distinct: dict[str, str] = {}
        for proposal in proposals:
            distinct.setdefault(canonical_action(query.env_id, proposal), proposal)
        distinct.pop(canonical_action(query.env_id, action), None)

        alternatives = _try_out(env, query, moment, list(distinct.values())[:k])

        observation, _, terminated, truncated, step_info = env.step(action)
        if step_info["imagined"]:
            raise OptionError(
                "implicit world modelling learns from real steps, found an imagined environment; pass "
                "env.unwrapped"
            )
        if step_info.get("error"):
            raise EngineError(
                f"the engine broke at the expert's action {action!r}: {step_info['error']}"
            )
        transitions += [Transition(query, observation), *alternatives]
        if terminated or truncated:
            break
    return transitions


def _try_out(
    env: gymnasium.Env[str, str], query: Query, moment: Snapshot, actions: Sequence[str]
) -> list[Transition]:
    """Return what really follows each of some actions; the episode is left at this moment."""
    transitions = []
    for action in actions:
        # What breaks the engine has no next state to learn from; the expert's path goes on all the same.
        observation, _, _, _, step_info = env.step(action)
        if not step_info.get("error"):
            transitions.append(Transition(replace(query, action=action), observation))
        restore(env, moment)
    return transitions
