"""Whether a language model can do what an agent will ask of it: known before anything is played."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations
from typing import Any, get_args, get_type_hints

from ..errors import OptionError, suggest
from ..lm import LanguageModel
from .base import Agent
from .config import AgentConfig

__all__ = ["check_adapter", "check_needs", "needs_of"]

_IN_WORDS = {
    "generate": "write text",
    "choices": "keep a reply to given choices",
    "prefix": "go on with a reply that was begun",
    "tokens": "tell the log-probability of each token that it writes",
    "score": "score given texts",
    "words": "tell next-word probabilities",
    "encode": "tell hidden states",
}
_ON_VLLM = {"choices": "choices_mode=vllm", "words": "prefix_mode=continue"}


def needs_of(agent: object) -> frozenset[str]:
    """Return which of `comap.lm.CAPABILITIES` an agent's language model must have.

    Where either of two will do, both are one need, written ``score|tokens``.

    An agent says so by a method ``needs``, or its settings do (`AgentConfig.needs`). Of others
    nothing is known: they need nothing.

    Example:
        >>> from comap.agents import ExpertAgent, create_agent
        >>> sorted(needs_of(create_agent("react", decoding="scored"))), needs_of(ExpertAgent())
        (['generate', 'prefix', 'score'], frozenset())
    """
    for who in (agent, getattr(agent, "config", None)):
        needs = getattr(who, "needs", None)
        if callable(needs):
            return frozenset(needs())
    return frozenset()


def check_needs(agent: Agent, lm: LanguageModel | None) -> None:
    """Refuse an agent that would ask its language model what it cannot answer.

    Args:
        agent: The agent.
        lm: Its language model, if it has one.

    Raises:
        OptionError: The agent needs a language model and there is none, the model lacks a
            capability, or there is no such adapter.

    Example:
        >>> from comap.agents import create_agent
        >>> from comap.lm.openai import OpenAILanguageModel
        >>> lm = OpenAILanguageModel("m", "http://127.0.0.1:1/v1")
        >>> check_needs(create_agent("react", decoding="scored"), lm)
        Traceback (most recent call last):
        comap.errors.OptionError: the agent 'react' needs a language model that can score given \
texts; 'm' cannot; set decoding='free', or use a model in this process (Hugging Face), which can
    """
    config = getattr(agent, "config", None)
    if lm is None:
        if isinstance(config, AgentConfig):
            raise OptionError(
                f"the agent {agent.name!r} asks a language model, but none was given; pass lm=... "
                "(on the command line: --model)"
            )
        return
    lacking = _lacking(needs_of(agent), lm.capabilities)
    if lacking:
        told = " and ".join(_in_words(need) for need in lacking)
        raise OptionError(
            f"the agent {agent.name!r} needs a language model that can {told}; {lm.name!r} cannot; "
            f"{_advice(agent, lacking, lm)}use a model in this process (Hugging Face), which can"
        )
    if isinstance(config, AgentConfig):
        for name, value in config.describe().items():
            if name.endswith("adapter"):
                check_adapter(lm, value)


def check_adapter(lm: LanguageModel, adapter: str | None) -> None:
    """Refuse an adapter that a language model does not have, where it tells which it has.

    Raises:
        OptionError: There is no such adapter.

    Example:
        >>> from comap.lm.openai import OpenAILanguageModel
        >>> check_adapter(OpenAILanguageModel("m", "http://127.0.0.1:1/v1"), "actor")
        Traceback (most recent call last):
        comap.errors.OptionError: 'm' has no adapter 'actor'; known: none; name it when the model \
is made (on the command line: --adapter actor=...)
    """
    known = lm.config().get("adapters") if adapter is not None else None
    if known is None or adapter is None or adapter in known:
        return
    listed = suggest(adapter, sorted(known)) if known else "known: none"
    raise OptionError(
        f"{lm.name!r} has no adapter {adapter!r}; {listed}; name it when the model is made (on the "
        f"command line: --adapter {adapter}=...)"
    )


def _lacking(needs: frozenset[str], capabilities: frozenset[str]) -> list[str]:
    """Return the needs of which a language model has no alternative, in order."""
    return sorted(need for need in needs if capabilities.isdisjoint(need.split("|")))


def _in_words(need: str) -> str:
    return " or ".join(_IN_WORDS.get(name, name) for name in need.split("|"))


def _advice(agent: Agent, lacking: Sequence[str], lm: LanguageModel) -> str:
    """Return what to set so that the capabilities are not needed, or are there."""
    told = ""
    if change := _way_out(agent, lm.capabilities):
        told = f"set {' and '.join(f'{name}={value!r}' for name, value in change.items())}, or "
    if lm.config().get("id") == "openai" and all(name in _ON_VLLM for name in lacking):
        options = " ".join(f"--model-option {_ON_VLLM[name]}" for name in lacking)
        told += f"if the server is vLLM say so ({options}), or "
    return told


def _way_out(agent: Agent, capabilities: frozenset[str]) -> dict[str, Any]:
    """Return the fewest settings with which an agent needs no more than that; empty if none do."""
    config = getattr(agent, "config", None)
    if not isinstance(config, AgentConfig):
        return {}
    hints = get_type_hints(type(config))
    changes: list[tuple[str, Any]] = []
    for part in fields(config):
        now = getattr(config, part.name)
        values = (0,) if type(now) in (int, float) else get_args(hints[part.name])
        changes += [(part.name, value) for value in values if value != now]
    for size in (1, 2):
        for chosen in combinations(changes, size):
            if not _lacking(_needs_with(agent, dict(chosen)), capabilities):
                return dict(chosen)
    return {}


def _needs_with(agent: Any, change: Mapping[str, Any]) -> frozenset[str]:
    """Return what an agent would need with other settings; everything where they cannot be."""
    other = copy.copy(agent)
    try:
        other.config = replace(agent.config, **change)
    except OptionError:
        return frozenset(_IN_WORDS)
    return needs_of(other)
