"""Early experience: what follows an expert's actions, and others (METHODS.md 3, IWM)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import gymnasium

from ..envs import restore, snapshot
from ..envs.actions import canonical_action
from ..errors import EngineError, OptionError
from ..lm import Completion, Generate, LanguageModel, Message, Sampling
from ..lm.sft import Row
from ..worldmodel import Query, Transition, query_about
from ..worldmodel.language import LanguageWorldModel
from .acting import STOP, seed_for
from .base import Reply, Request, View, estimate_tokens
from .iwm import IWMConfig
from .parsing import parse_action
from .prompting import converse
from .react import replies_in

__all__ = ["explore", "explore_alternatives", "sample_alternatives", "world_modelling_rows"]

_Propose: TypeAlias = "Callable[[View], Generator[Request, Reply, Sequence[str]]]"


def sample_alternatives(
    view: View, config: IWMConfig
) -> Generator[Request, Reply, tuple[str, ...]]:
    """Sample actions from the policy, one batch; what has no action in it is left out.

    With masked and scored decoding they are admissible ones, sampled token by token among these.
    """
    choices: tuple[str, ...] | None = None
    tokens, prefix = config.draft_tokens, ""
    if config.decoding != "free" and view.admissible_actions:
        choices = tuple(f" {text}" for text in view.admissible_actions)
        tokens, prefix = (
            8 + max(len(text.encode("utf-8", "replace")) for text in choices),
            "Action:",
        )
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
        )
        for number in range(config.alternatives)
    ]
    texts = [reply.text.strip() if choices else parse_action(reply.text) for reply in said]
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
    """Follow an expert, and in each of its states also try other actions (METHODS.md 3, IWM).

    Alternatives are tried in the order proposed, each from the expert's state, to which the
    environment is brought back. One that means the expert's action, or one before it, is left out; one
    that breaks the engine leaves no transition.

    Args:
        env: A real environment of comap.
        expert: The expert's actions.
        propose: Given what the agent sees, a generator of requests that returns actions, such as
            `sample_alternatives` with a config.
        k: The most alternatives in a state.
        task: The task to start; None goes on from where `env` is.
        seed: The seed to start it with.

    Returns:
        For each of the expert's states its own transition, then those of the alternatives.

    Raises:
        OptionError: `env` is imagined.
        EngineError: The engine breaks at the expert's action.
    """
    if task is not None:
        env.reset(seed=seed, options={"task": task})
    found: list[Transition] = []
    memory: dict[str, Any] = {}
    for action in expert:
        moment = snapshot(env)
        _, info = restore(env, moment)
        query = query_about(env, action)
        view = _view(query, info, memory, seed or 0)
        proposed = yield from propose(view)
        others = []
        for other in _distinct(query, proposed)[:k]:
            answer = env.step(other)
            _refuse_imagined(answer[4])
            if not answer[4].get("error"):
                others.append(Transition(replace(query, action=other), answer[0]))
            restore(env, moment)
        observation, _, terminated, truncated, after = env.step(action)
        _refuse_imagined(after)
        if after.get("error"):
            raise EngineError(
                f"the engine broke at the expert's action {action!r}: {after['error']}"
            )
        found += [Transition(query, observation), *others]
        if terminated or truncated:
            break
    return found


def explore_alternatives(
    env: gymnasium.Env[str, str],
    expert: Sequence[str],
    policy_actions: Callable[[View], Sequence[str]],
    k: int = 8,
    *,
    task: str | None = None,
    seed: int | None = None,
) -> list[Transition]:
    """Do what `explore` does, with a plain function that proposes actions.

    Args:
        env: A real environment of comap.
        expert: The expert's actions.
        policy_actions: Given what the agent sees, returns actions.
        k: The most alternatives in a state.
        task: The task to start; None goes on from where `env` is.
        seed: The seed to start it with.

    Raises:
        OptionError: `env` is imagined.
        EngineError: The engine breaks at the expert's action.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0")
        >>> observation, info = env.reset(seed=0)
        >>> found = explore_alternatives(env, ["look"], lambda view: ["inventory", "Look."])
        >>> [transition.query.action for transition in found]
        ['look', 'inventory']
    """

    def propose(view: View) -> Generator[Request, Reply, Sequence[str]]:
        yield from ()  # makes it a generator, which asks for nothing
        return policy_actions(view)

    exploring = explore(env, expert, propose, k, task=task, seed=seed)
    try:
        request = next(exploring)
    except StopIteration as stop:
        return cast("list[Transition]", stop.value)
    raise OptionError(f"expected no request of a plain function, found {request!r:.80}")


def world_modelling_rows(
    transitions: Iterable[Transition],
    prompt: Callable[[Query], Sequence[Message]] | None = None,
) -> list[Row]:
    """Return rows that train a language model to say what follows: ``s'`` given ``s`` and ``a``.

    Args:
        transitions: What was really observed.
        prompt: Makes a prompt of a query; None for that of `LanguageWorldModel` with its defaults,
            so that the model can also be asked as a world model.

    Example:
        >>> from comap.facts import State
        >>> from comap.trajectory import Turn
        >>> query = Query("id", "Wait.", (Turn(None, "It is dark."),), State(), "wait")
        >>> world_modelling_rows([Transition(query, "Nothing happens.")])[0].answer
        'Nothing happens.'
    """
    if prompt is None:
        prompt = LanguageWorldModel(cast("LanguageModel", _Estimating())).prompt
    return [Row(tuple(prompt(query)), observation) for query, observation in transitions]


class _Estimating:
    """Counts tokens where no language model is at hand."""

    name = "none"

    @staticmethod
    def count_tokens(text: str) -> int:
        return estimate_tokens(text)


def _view(query: Query, info: dict[str, Any], memory: dict[str, Any], seed: int) -> View:
    return View(
        query.env_id,
        info["task"],
        query.goal,
        query.history,
        query.state,
        query.admissible_actions,
        info["step"],
        lambda: None,
        memory=memory,
        seed=seed,
    )


def _distinct(query: Query, proposed: Sequence[str]) -> list[str]:
    """Return the proposed actions that differ from the expert's and from each other."""
    seen = {canonical_action(query.env_id, query.action)}
    kept = []
    for action in proposed:
        plain = canonical_action(query.env_id, action)
        if plain not in seen:
            seen.add(plain)
            kept.append(action)
    return kept


def _refuse_imagined(info: dict[str, Any]) -> None:
    if info["imagined"]:
        raise OptionError(
            "implicit world modelling learns from real steps, found an imagined environment; pass "
            "env.unwrapped"
        )
