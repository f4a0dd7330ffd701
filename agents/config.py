"""The settings that all agents with a language model share, and whether a model can serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    get_type_hints,
)

from ..errors import OptionError, suggest
from ..lm import LanguageModel, Sampling
from ..lm.base import context_tokens, thinks, usual_length
from ..lm.prompts import check_prompt_folder
from ..settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    PositiveShare,
    Range,
    check_fields,
)
from .base import Agent

AnyAgent = TypeVar("AnyAgent", bound=Agent)

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


class FromModel(int):
    """A limit of tokens that nobody gave: the published number, until the agent meets its model.

    `AgentConfig.fitted` puts another number in its place then.
    """

    __slots__ = ()


class ReplyLimit(NamedTuple):
    """Most tokens of a reply if nobody says so: of a model that replies at once, or thinks first."""

    standard: int
    thinking: int


LEAST_PROMPT = 64
"""Tokens that every prompt gets, however little is left of ``max_length``."""


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
    """asked, or given: the model continues after the first fixed word of a draft's or a reflection's form
    (not in the papers: small models mix up the forms). Only with free decoding; the others give it."""
    history_turns: NonNegativeInt | None = None
    """With state_text=history: number of last turns in the prompt; None for all that fit."""
    max_length: PositiveInt = FromModel(2048)  # noqa: RUF009 (an int)
    """Most tokens of prompt and reply together; old turns are left out first. Default: the model's context,
    up to 32,768 (8,192 where it does not say); with prompts=brief 2,048, as CoMap's Table 5."""
    temperature: NonNegativeFloat = 0.7
    """Temperature of what the agent writes; 0 is greedy (CoMap, Table 5)."""
    top_p: PositiveShare = 0.9
    """Nucleus of what the agent writes (CoMap, Table 5)."""
    draft_tokens: Annotated[PositiveInt, ReplyLimit(256, 512)] = FromModel(64)  # noqa: RUF009 (an int)
    """Most tokens of a thought and an action. Default: 256, or 512 where the model thinks first; with
    prompts=brief 64, as CoMap's Table 5."""
    thinking: bool = False
    """Let a model that can think before it replies do so, such as Qwen3. Standard prompts only."""
    with_thought: bool | None = None
    """Standard prompts ask for a line of thought before an action. Default: they do, but not in trainings,
    whose demonstrations have no thoughts."""
    examples: Annotated[int, Range(0, 1)] = 1
    """Worked examples in standard history prompts, 0 or 1."""
    show_actions: bool = True
    """List the admissible actions at the end of standard prompts, where the environment lists them; of
    more than 100 the first, with the number of the rest. Brief prompts never do."""
    prompt_folder: str | None = None
    """Folder whose files replace prompts (`comap init prompts` writes one); None for comap's own."""
    seed: int = 0
    """Seed of what is sampled."""
    adapter: str | None = None
    """Adapter of the language model that acts."""

    def __post_init__(self) -> None:
        defaults = {setting.name: setting.default for setting in fields(self)}
        for name in (*_reply_limits(type(self)), "max_length"):
            if getattr(self, name) is None:  # as if it were not given
                object.__setattr__(self, name, defaults[name])
        if self.prompts == "brief":  # for small models, which were trained with these numbers
            self._settle()

        check_fields(self)
        if self.prompt_folder is not None:
            check_prompt_folder(self.prompt_folder)

    def sampling(
        self,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        seed: int | None = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
    ) -> Sampling:
        """Return how to sample with these settings; what is None is as they say."""
        temperature = float(self.temperature if temperature is None else temperature)
        nucleus = float(self.top_p if top_p is None else top_p)
        if seed is None:
            seed = self.seed
        if temperature == 0:
            seed = 0  # nothing is drawn; the same request stays the same, for caches and records
        return Sampling(max_new_tokens, temperature, nucleus, stop, seed)

    @property
    def lists_actions(self) -> bool:
        """Whether prompts list the admissible actions, where the environment does."""
        return self.show_actions and self.prompts == "standard"

    @property
    def asks_to_think(self) -> bool:
        """Whether requests ask the model to think first."""
        return self.thinking and self.prompts == "standard"

    @property
    def asks_for_thought(self) -> bool:
        """Whether prompts ask for a line of thought before an action."""
        return self.prompts == "standard" and self.with_thought is not False

    def fitted(self, context: int | None, thinks: bool = False) -> Self:
        """Return the settings with a number in place of each limit that follows the language model.

        Args:
            context: The most tokens of prompt and reply together that it takes; None if that is unknown.
            thinks: Whether it thinks before it replies.

        Example:
            >>> config = AgentConfig(max_length=4096).fitted(context=32_768, thinks=True)
            >>> config.max_length, config.draft_tokens
            (4096, 512)
        """
        numbers: dict[str, Any] = {}
        if isinstance(self.max_length, FromModel):
            numbers["max_length"] = usual_length(context)

        longest_reply = numbers.get("max_length", self.max_length) // 4  # the rest is the prompt's
        for name, limit in _reply_limits(type(self)).items():
            if isinstance(getattr(self, name), FromModel):
                tokens = limit.thinking if thinks else limit.standard
                numbers[name] = max(min(tokens, longest_reply), 1)
        return replace(self, **numbers) if numbers else self

    def published(self) -> Self:
        """Return the settings with the published number (CoMap, Table 5) of each limit that nobody gave."""
        settled = copy(self)
        settled._settle()
        return settled

    def follows_model(self) -> Iterator[str]:
        """Yield the names of the limits that nobody gave."""
        for name in ("max_length", *_reply_limits(type(self))):
            if isinstance(getattr(self, name), FromModel):
                yield name

    def _settle(self) -> None:
        for name in self.follows_model():
            object.__setattr__(self, name, int(getattr(self, name)))

    def required_capabilities(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` a language model must have for these settings.

        Example:
            >>> sorted(AgentConfig(decoding="masked").required_capabilities())
            ['choices', 'generate', 'prefix']
        """
        for_decoding = {"free": (), "masked": ("choices", "prefix"), "scored": ("score", "prefix")}
        capabilities = {"generate", *for_decoding[self.decoding]}
        if self.form == "given":
            capabilities.add("prefix")
        return frozenset(capabilities)

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON data, for results."""
        described = asdict(self)
        folder = described.pop("prompt_folder")
        if self.prompts == "brief":  # they say nothing there, and are not in earlier records
            del described["show_actions"], described["thinking"], described["with_thought"]
        if folder is not None:  # its texts are in the record as a digest; no path of a machine is
            described["prompt_folder"] = Path(folder).name
        return described


def _read_reply_limits(config: type) -> dict[str, ReplyLimit]:
    """Return the limits of replies that follow the model, by the names of the settings that they are of."""
    limits: dict[str, ReplyLimit] = {}
    for name, hint in get_type_hints(config, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):  # of Annotated
            if isinstance(note, ReplyLimit):
                limits[name] = note
    return limits


# Configs are made anew for each episode. The type is for mypy, to which classes have no hash.
_reply_limits: Callable[[type], dict[str, ReplyLimit]] = cache(_read_reply_limits)


def fitted_to(agent: AnyAgent, lm: LanguageModel | None) -> AnyAgent:
    """Return an agent whose limits suit its language model: a copy, or the agent itself."""
    config = getattr(agent, "config", None)
    if lm is None or not isinstance(config, AgentConfig) or not any(config.follows_model()):
        return agent
    fitted = config.fitted(context_tokens(lm), thinks(lm, config.asks_to_think))
    fitted_agent = copy(agent)
    try:
        fitted_agent.config = fitted  # type: ignore[attr-defined]
    except AttributeError:  # an agent of the user's own, which makes its config itself
        return agent
    return fitted_agent


_ABILITIES = {
    "generate": "write text",
    "choices": "keep a reply to given choices",
    "prefix": "go on with a reply that was begun",
    "tokens": "tell the log-probability of each token that it writes",
    "score": "score given texts",
    "words": "tell next-word probabilities",
    "encode": "tell hidden states",
}
# The settings with which agents do not need a capability.
_SETTINGS_WITHOUT: dict[str, dict[str, Any]] = {
    "generate": {},
    "choices": {"decoding": "free"},
    "prefix": {"form": "asked", "final_tokens": 0},
    "tokens": {},
    "score": {"decoding": "free", "q_source": "proxy", "log_probs": "sampled"},
    "words": {"p_source": "verbal", "evaluation_weight": 0},
    "encode": {"p_source": "verbal", "k_source": "lm"},
}

# What the engine vllm has and OpenAI's protocol has not.
_OF_VLLM = frozenset({"choices", "score", "words"})


def required_capabilities(agent: object) -> frozenset[str]:
    for who in (agent, getattr(agent, "config", None)):
        needs = getattr(who, "required_capabilities", None)
        if callable(needs):
            return frozenset(needs())
    return frozenset()


def check_settings(agent: Agent) -> None:
    check = getattr(agent, "check_settings", None)
    if callable(check):
        check()


def check_capabilities(agent: Agent, lm: LanguageModel | None) -> None:
    """Refuse an agent that would ask its language model what it cannot answer.

    Args:
        agent: The agent.
        lm: Its language model, if it has one.

    Raises:
        OptionError: The agent needs a language model and there is none, the model lacks a
            capability, there is no such adapter, or CoMap's gate could never open.

    Example:
        >>> from comap.agents import create_agent
        >>> from comap.lm.openai import OpenAILanguageModel
        >>> lm = OpenAILanguageModel("m", "http://127.0.0.1:1/v1")
        >>> check_capabilities(create_agent("react", decoding="scored"), lm)
        Traceback (most recent call last):
        comap.errors.OptionError: the agent 'react' needs a language model that can score given \
texts; 'm' cannot; set decoding='free', or if the server is vLLM give it as the engine \
(--engine http://HOST:PORT), or use a Hugging Face model with the engine hf, which can
    """
    check_settings(agent)
    config = getattr(agent, "config", None)
    if lm is None:
        if isinstance(config, AgentConfig):
            raise OptionError(
                f"the agent {agent.name!r} asks a language model, but none was given; pass lm=... "
                "(on the command line: --model)"
            )
        return

    needs = sorted(required_capabilities(agent))
    unmet_needs = [need for need in needs if lm.capabilities.isdisjoint(need.split("|"))]
    if unmet_needs:
        abilities = " and ".join(
            " or ".join(_ABILITIES[name] for name in need.split("|")) for need in unmet_needs
        )
        raise OptionError(
            f"the agent {agent.name!r} needs a language model that can {abilities}; {lm.name!r} cannot; "
            f"{_alternatives(agent, unmet_needs, lm)}use a Hugging Face model with the engine hf, which can"
        )
    if isinstance(config, AgentConfig):
        _check_lengths(config, context_tokens(lm))
        for name, value in config.describe().items():
            if name.endswith("adapter"):
                check_adapter(lm, value)


def _check_lengths(config: AgentConfig, context: int | None) -> None:
    """Refuse limits of tokens that leave no room for a prompt, or that the model does not have."""
    length = config.max_length
    reply = config.draft_tokens
    follows = {*config.follows_model()}

    # A default of an agent's own, such as PaW's, is no wish: its prompts may fit all the same.
    is_wish = "max_length" not in follows and length != type(config).max_length
    if context and is_wish and config.prompts == "standard" and length > context:
        raise OptionError(
            f"max_length must be at most the model's context, {context:,} tokens, not {length:,}; "
            "leave it out to use the context"
        )

    least_length = LEAST_PROMPT + (1 if "draft_tokens" in follows else reply)
    if "max_length" not in follows and length < least_length:
        raise OptionError(
            f"max_length holds prompt and reply: expected at least {least_length:,} tokens, {LEAST_PROMPT} "
            f"of them for the prompt, found {length:,}; raise max_length, or lower draft_tokens"
        )
    if "max_length" in follows and context and reply > context - LEAST_PROMPT:
        raise OptionError(
            f"draft_tokens must leave room for a prompt in the model's context, {context:,} tokens, "
            f"found {reply:,}; lower it"
        )


def check_adapter(lm: LanguageModel, adapter: str | None) -> None:
    """Refuse an adapter that a language model does not have; not all models say which they have."""
    if adapter is None:
        return
    adapters = lm.config().get("adapters")
    if adapters is None or adapter in adapters:
        return
    hint = suggest(adapter, sorted(adapters)) if adapters else "known: none"
    raise OptionError(
        f"{lm.name!r} has no adapter {adapter!r}; {hint}; name it when the model is made (on the "
        f"command line: --adapter {adapter}=...)"
    )


def _alternatives(agent: Agent, unmet_needs: Sequence[str], lm: LanguageModel) -> str:
    """Return the ways out of missing capabilities, each with an "or" behind it; empty for none.

    A way out is to change the agent's settings, so that it does not need them, or to ask a server that
    is vLLM by another protocol than OpenAI's.
    """
    # Where one of several capabilities is enough ("score|tokens"), the settings stand at the first.
    settings: dict[str, Any] = {}
    for need in unmet_needs:
        first_capability, _, _ = need.partition("|")
        settings |= _SETTINGS_WITHOUT[first_capability]

    # A setting that the agent does not have, or that has this value already, is no way out.
    config = getattr(agent, "config", None)
    changes = [
        f"{name}={value!r}"
        for name, value in settings.items()
        if getattr(config, name, value) != value
    ]
    alternatives = ""
    if changes:
        alternatives = f"set {' and '.join(changes)}, or "

    is_server = lm.config().get("id") == "openai"
    if is_server and all(need.partition("|")[0] in _OF_VLLM for need in unmet_needs):
        alternatives += (
            "if the server is vLLM give it as the engine (--engine http://HOST:PORT), or "
        )
    return alternatives
