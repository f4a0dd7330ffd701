"""What every agent that asks a language model can be told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from ..errors import OptionError
from ..lm import Sampling

__all__ = ["AgentConfig", "Decoding", "Form", "PromptStyle", "StateText"]

Decoding: TypeAlias = Literal["free", "masked", "scored"]
"""How an action is decoded: any text; token by token among the admissible actions; or the
admissible action that is most probable as a whole."""

Form: TypeAlias = Literal["asked", "given"]
"""Whether a reply's first fixed word (``Action:``) is the model's to write, or written for it."""

StateText: TypeAlias = Literal["history", "belief"]
"""How the present is told: the turns so far, or the belief facts put into words."""

PromptStyle: TypeAlias = Literal["standard", "brief"]
"""Prompts with instructions and examples, or only what changes, for small models that were trained
on such prompts."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """How an agent asks its language model.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> AgentConfig(decoding="scored").describe()["decoding"]
        'scored'
    """

    decoding: Decoding = "free"
    """free, masked or scored. Where the action space is open, the last two act as free."""
    state_text: StateText = "history"
    """history (the turns so far) or belief (facts in words)."""
    prompts: PromptStyle = "standard"
    """standard or brief."""
    form: Form = "asked"
    """asked, or given: the model goes on after the first fixed word of a draft's or a reflection's form
    (ours: small models mix up the forms). Only with free decoding; the others always give it."""
    history_turns: int | None = None
    """With state_text=history: the last so many turns; None for all that fit."""
    max_length: int = 2048
    """Prompt and reply together have at most so many tokens (METHODS.md 1.11). Old turns go first."""
    temperature: float = 0.7
    """Temperature of what the agent writes; 0 is greedy (CoMap, Table 5)."""
    top_p: float = 0.9
    """Nucleus of what the agent writes (CoMap, Table 5)."""
    draft_tokens: int = 64
    """Most tokens of a thought and an action (CoMap, Table 5)."""
    examples: int = 1
    """Worked examples in standard history prompts, 0 or 1 (METHODS.md 1.11)."""
    seed: int = 0
    """Seed of what is sampled."""
    adapter: str | None = None
    """Adapter of the language model that acts."""

    def __post_init__(self) -> None:
        for name, allowed in _choices(type(self)).items():
            if getattr(self, name) not in allowed:
                listed = ", ".join(repr(value) for value in allowed)
                raise OptionError(f"{name} must be one of {listed}, not {getattr(self, name)!r}")
        turns = () if self.history_turns is None else (("history_turns", 0),)
        for name, least in (("max_length", 1), ("draft_tokens", 1), *turns):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise OptionError(
                    f"{name} must be a whole number of at least {least}, not {value!r}"
                )
        for name, kinds, what in (
            ("temperature", (int, float), "a number"),
            ("top_p", (int, float), "a number"),
            ("seed", (int,), "a whole number"),
        ):
            if type(getattr(self, name)) not in kinds:
                raise OptionError(f"{name} must be {what}, not {getattr(self, name)!r}")
        if self.examples not in (0, 1):
            raise OptionError(f"examples must be 0 or 1, not {self.examples!r}")
        self.sampling(1)  # refuses a wrong temperature or top_p

    def sampling(
        self,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        seed: int | None = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
    ) -> Sampling:
        """Return how to sample with these settings.

        Args:
            max_new_tokens: The most tokens.
            stop: Where the text ends.
            seed: The request's seed; None for that of the settings.
            temperature: Another temperature than the settings'.
            top_p: Another nucleus than the settings'.
        """
        heat = float(self.temperature if temperature is None else temperature)
        nucleus = float(self.top_p if top_p is None else top_p)
        chosen = self.seed if seed is None else seed
        if heat == 0:
            chosen = 0  # nothing is drawn; the same request stays the same, for caches and records
        return Sampling(max_new_tokens, heat, nucleus, stop, chosen)

    def needs(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` a language model must have for these settings.

        Example:
            >>> sorted(AgentConfig(decoding="masked").needs())
            ['choices', 'generate', 'prefix']
        """
        further = {"free": (), "masked": ("choices", "prefix"), "scored": ("score", "prefix")}
        given = ("prefix",) if self.form == "given" else ()
        return frozenset({"generate", *further[self.decoding], *given})

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON data, for results."""
        return asdict(self)


def _choices(config: type[AgentConfig]) -> dict[str, tuple[Any, ...]]:
    """Return the allowed values of the fields that have a fixed list of them."""
    hints = get_type_hints(config)
    return {
        part.name: get_args(hints[part.name])
        for part in fields(config)
        if getattr(hints[part.name], "__origin__", None) is Literal
    }
