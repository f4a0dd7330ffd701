"""ITP: imagine, then plan, as far ahead as the moment needs (arXiv 2601.08955)."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ..envs.registry import text_env_of
from ..errors import OptionError
from ..lm import Completion, Encode, Encoding, Message
from ..lm.prompts import cut_text
from ..lm.thoughts import without_thoughts
from ..settings import NonNegativeInt, PositiveInt, Range, Share
from ..worldmodel import Imagined
from .base import Decision, Reply, Request, View
from .config import AgentConfig
from .heads import KHead
from .parsing import number_in
from .prompting import (
    ask_about,
    ask_text,
    converse,
    draft_action,
    listed_actions,
    matching_action,
    roll_out,
    steps_as_text,
)
from .react import replies_in

NO_FORESIGHT = "No step ahead was imagined."

_TAG = re.compile(r"</?foresight[^>]{0,40}>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ITPConfig(AgentConfig):
    """How ITP looks ahead.

    Example:
        >>> ITPConfig().k_max_of("comap/ALFWorld-v0"), ITPConfig().k_max_of("comap/WebShop-v0")
        (5, 3)
    """

    k_source: Literal["lm", "head"] = "lm"
    """Who chooses the depth K: the language model in words (ITP_I) or a trained head (ITP_R)."""
    k_max: NonNegativeInt | None = None
    """The greatest K; None for 5 in ALFWorld and 3 elsewhere (as ITP's authors released it)."""
    k_temperature: Annotated[float, Range(0, 10)] = 0.8
    """Temperature at which the model says K."""
    k_tokens: PositiveInt = 32
    """Most tokens of its saying K."""
    k_fallback: NonNegativeInt = 1
    """K where it says no number."""
    control: str = "[K]"
    """Text after the state at whose last token the head reads the hidden state (the text is
    ours). A head works with the text that it was trained with."""
    foresight: Literal["rollout", "generate"] = "rollout"
    """How K steps are imagined: one by one, by the agent's greedy drafts and the world model, which
    every world model can do (ours); or in one generation of a language model, as released."""
    told: Literal["steps", "last"] | None = None
    """With foresight=rollout, what the agent reads of it: all steps, or the observation after the last
    one alone, as ITP_R is trained (obs@K); None for that with a head, else all steps."""
    foresight_tokens: PositiveInt = 256
    """Most tokens of the foresight."""
    foresight_adapter: str | None = None
    """With foresight=generate: the adapter that imagines; None for the one that acts."""
    foresight_temperature: Annotated[float, Range(0, 10)] = 0.0
    """With foresight=generate: its temperature; greedy as released."""
    reply_tokens: PositiveInt = 256
    """Most tokens of reflection, thought and action."""
    similarity: Share = 0.72
    """Least similarity at which an action counts as a misspelled admissible one."""

    def required_capabilities(self) -> frozenset[str]:
        capabilities = super().required_capabilities()
        if self.k_source == "head":  # it reads the hidden state at a text behind the prompt
            capabilities |= {"encode", "prefix"}
        if self.foresight == "generate":  # the foresight goes on from its opening tag
            capabilities |= {"prefix"}
        return capabilities

    def k_max_of(self, env_id: str) -> int:
        """Return the greatest K in an environment."""
        if self.k_max is not None:
            return self.k_max
        return text_env_of(env_id).look_ahead_limit


class ITPAgent:
    """Choose how far to look ahead, imagine that far, reflect, act.

    With ``k_source="lm"`` this is ITP_I, without training; with a `KHead` (and an adapter) that were
    trained it is ITP_R at inference.

    Deviations: by default foresight is a chain of one-step predictions on the
    agent's own greedy drafts, not one generation, so that any world model can be used; a reply
    without an ``Action:`` line is asked for once more before the fallbacks; where the action space
    is open, the action is taken as it is; the drafts' temperature is the agent's, not 0; the released
    runner's rules for tasks with two objects are left out; masked and scored decoding are ours.

    Args:
        config: Settings; None for the defaults.
        k_head: The depth head, or the file of `KHead.save`, for ``k_source="head"``.

    Raises:
        OptionError: The settings ask for a head and there is none.

    Example:
        >>> ITPAgent(ITPConfig(foresight="generate")).config.k_source
        'lm'
    """

    name = "itp"

    def __init__(self, config: ITPConfig | None = None, k_head: KHead | str | Path | None = None):
        self.config = config or ITPConfig()
        self.k_head = KHead.load(Path(k_head)) if isinstance(k_head, str | Path) else k_head
        if self.config.k_source == "head" and k_head is None:
            raise OptionError(
                "expected a K head for k_source='head', found none; pass k_head=KHead.load(path) (on the "
                "command line: --agent-option k_head=FILE)"
            )

    @property
    def asks_world_model(self) -> bool:
        """Whether foresight is rolled out in a world model; else the policy's own model writes it."""
        return self.config.foresight == "rollout"

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Choose K, imagine, reflect and act."""
        config = self.config
        replies = replies_in(view)
        k, notes = yield from self._choose_k(view, replies)
        path, foresight = yield from self._imagine(view, k, replies)

        # ITP asks for the action to be copied from the list; a misspelled one is brought back to it.
        acting = replace(config, draft_tokens=config.reply_tokens)
        messages = self.act_prompt(view, k, foresight, replies)
        draft = yield from draft_action(view, acting, messages, "act")
        action, copied = matching_action(draft.action, view.admissible_actions, config.similarity)

        reply = f"Action: {action}"
        if draft.thought:
            reply = f"Thought: {draft.thought}\n{reply}"
        replies[view.step] = reply
        notes |= draft.notes() | {"foresight": foresight, "copied": copied}

        # The first imagined step says what follows this action only if it is of the same one.
        prediction = path[0] if path and path[0].action == action else None
        return Decision(action, prediction, notes)

    def _imagine(
        self, view: View, k: int, replies: dict[int, str]
    ) -> Generator[Request, Reply, tuple[list[Imagined], str]]:
        """Return K imagined steps, where a world model imagines, and what the agent reads of them."""
        config = self.config
        if k == 0:
            # ITP_R is trained with obs@0, which is the present observation.
            if config.k_source == "head":
                return [], self.foresight_of(view.history[-1].observation, view.count_tokens)
            return [], NO_FORESIGHT

        if config.foresight == "generate":
            foresight = yield from self._generate(view, k, replies)
            return [], foresight

        path = yield from roll_out(view, config, k, replies=replies)
        if config.told == "last" or (config.told is None and config.k_source == "head"):
            foresight = self.foresight_of(path[-1].observation, view.count_tokens)
        else:
            foresight = steps_as_text(path, view, config.foresight_tokens)
        return path, foresight

    def _choose_k(
        self, view: View, replies: dict[int, str]
    ) -> Generator[Request, Reply, tuple[int, dict[str, Any]]]:
        """Return the depth K and notes on it: by the head (ITP_R), or by the model's words (ITP_I)."""
        config = self.config
        k_max = config.k_max_of(view.env_id)
        if self.k_head is not None and config.k_source == "head":
            request = Encode(
                self.depth_prompt(view, replies),
                config.control,
                config.adapter,
                "depth",
                config.asks_to_think,
            )
            encoding: Encoding = yield request
            return self._read_depth(view, encoding.vector, k_max)

        messages = ask_about(view, config, "itp_depth", config.k_tokens, replies, k_max=str(k_max))
        reply: Completion = yield ask_text(
            view, config, messages, "depth", config.k_tokens, temperature=config.k_temperature
        )
        number = number_in(without_thoughts(reply.text), 0, k_max)
        k = min(config.k_fallback, k_max) if number is None else int(number)
        return k, {"k": k, "k_parsed": number is not None}

    def _read_depth(
        self, view: View, state: Sequence[float], k_max: int
    ) -> tuple[int, dict[str, Any]]:
        """Return K by the head's reading of a hidden state; training draws it instead."""
        assert self.k_head is not None

        # A head has a logit for each K of the environment that it was trained in; here it may be less.
        k = min(self.k_head.choose(state), k_max)
        logits = [round(logit, 6) for logit in self.k_head.logits(state)]
        return k, {"k": k, "k_logits": logits}

    def _generate(
        self, view: View, k: int, replies: dict[int, str]
    ) -> Generator[Request, Reply, str]:
        """Return K steps ahead that a language model writes in one reply, as released."""
        config = self.config
        tokens = config.foresight_tokens
        messages = ask_about(view, config, "itp_foresight", tokens, replies, k=str(k))
        reply: Completion = yield ask_text(
            view,
            config,
            messages,
            "foresight",
            tokens,
            ("</foresight>",),
            "<foresight>",
            temperature=config.foresight_temperature,
            top_p=1.0,
            adapter=config.foresight_adapter,
        )
        return _TAG.sub("", without_thoughts(reply.text)).strip() or NO_FORESIGHT

    def foresight_of(self, observation: str, count_tokens: Callable[[str], int]) -> str:
        """Return what the agent reads of an imagined observation with ``told="last"``."""
        text = cut_text(observation, self.config.foresight_tokens, count_tokens)
        return text or "(nothing is said)"

    def depth_prompt(self, view: View, replies: dict[int, str]) -> tuple[Message, ...]:
        """Return the conversation after which the control text stands, for the head to read."""
        # Training uses this prompt too: a head is of no use at another place than it was trained at.
        room = view.count_tokens(self.config.control)
        return converse(view, self.config, replies, reserve=room)

    def act_prompt(
        self, view: View, k: int, imagined: str, replies: dict[int, str]
    ) -> tuple[Message, ...]:
        """Return the question for an action in sight of what was imagined."""
        config = replace(self.config, draft_tokens=self.config.reply_tokens)
        slots = {
            "k": str(k),
            "foresight": cut_text(imagined, config.max_length // 6, view.count_tokens),
        }

        # The list of actions stands in the question itself, so the conversation must not list it again.
        template = "itp_act_open"
        action_list = listed_actions(view, config.max_length // 4)
        if action_list:
            template = "itp_act"
            slots["actions"] = action_list
        return ask_about(
            view, config, template, config.draft_tokens, replies, listing=False, **slots
        )
