"""ITP: imagine, then plan, as far ahead as the moment needs (arXiv 2601.08955)."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import OptionError
from ..lm import Completion, Encode, Encoding, Generate, Message
from ..lm.prompts import cut_text
from ..worldmodel import Imagined
from .acting import Draft, draft_action, seed_for
from .asking import ask_about
from .base import Decision, Reply, Request, View
from .checks import require_whole
from .config import AgentConfig
from .foresight import listed_actions, matching_action, roll_out, told_steps
from .k_head import KHead
from .parsing import number_in
from .prompting import converse, fill
from .ranges import require_between
from .react import replies_in

__all__ = ["NO_FORESIGHT", "ITPAgent", "ITPConfig"]

NO_FORESIGHT = "No step ahead was imagined."
"""What the agent reads where K is 0."""

_K_MAX = {"ALFWorld-v0": 5}
_K_MAX_ELSEWHERE = 3
_TAG = re.compile(r"</?foresight[^>]{0,40}>", re.IGNORECASE)
_THOUGHT = re.compile(r"^[ \t]*Thought[ \t]*:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ITPConfig(AgentConfig):
    """How ITP looks ahead.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> ITPConfig().k_max_of("comap/ALFWorld-v0"), ITPConfig().k_max_of("comap/WebShop-v0")
        (5, 3)
    """

    k_source: Literal["lm", "head"] = "lm"
    """Who chooses the depth K: the language model in words (ITP_I) or a trained head (ITP_R)."""
    k_max: int | None = None
    """The greatest K; None for 5 in ALFWorld and 3 elsewhere (METHODS.md 3 [C-ITP])."""
    k_temperature: float = 0.8
    """Temperature at which the model says K (METHODS.md 3 [C-ITP])."""
    k_tokens: int = 32
    """Most tokens of its saying K (METHODS.md 3 [C-ITP])."""
    k_fallback: int = 1
    """K where it says no number (METHODS.md 3 [C-ITP])."""
    control: str = "[K]"
    """Text after the state at whose last token the head reads the hidden state (METHODS.md 3; the
    text is ours [D]). A head works with the text that it was trained with."""
    foresight: Literal["rollout", "generate"] = "rollout"
    """How K steps are imagined: one by one, by the agent's greedy drafts and the world model, which
    every world model can do [D]; or in one generation of a language model, as released."""
    told: Literal["steps", "last"] | None = None
    """With foresight=rollout, what the agent reads of it: all steps, or the observation after the last
    one alone, as ITP_R is trained (METHODS.md 3: obs@K); None for that with a head, else all steps."""
    foresight_tokens: int = 256
    """Most tokens of the foresight (METHODS.md 3 [C-ITP])."""
    foresight_adapter: str | None = None
    """With foresight=generate: the adapter that imagines; None for the one that acts."""
    foresight_temperature: float = 0.0
    """With foresight=generate: its temperature; greedy as released [C-ITP]."""
    reply_tokens: int = 256
    """Most tokens of reflection, thought and action [C-ITP]."""
    similarity: float = 0.72
    """Least similarity at which an action counts as a misspelled admissible one (METHODS.md 3
    [C-ITP])."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(self, 1, "k_tokens", "foresight_tokens", "reply_tokens")
        require_whole(self, 0, "k_fallback", *(("k_max",) if self.k_max is not None else ()))
        require_between(self, 0, 10, "k_temperature", "foresight_temperature")
        require_between(self, 0, 1, "similarity")

    def needs(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` a language model must have for these settings."""
        head = {"encode", "prefix"} if self.k_source == "head" else set()
        generate = {"prefix"} if self.foresight == "generate" else set()
        return super().needs() | head | generate

    def k_max_of(self, env_id: str) -> int:
        """Return the greatest K in an environment."""
        if self.k_max is not None:
            return self.k_max
        return _K_MAX.get(env_id.rpartition("/")[2], _K_MAX_ELSEWHERE)


class ITPAgent:
    """Choose how far to look ahead, imagine that far, reflect, act.

    With ``k_source="lm"`` this is ITP_I, without training; with a `KHead` (and an adapter) that were
    trained it is ITP_R at inference.

    Deviations from METHODS.md 3: by default foresight is a chain of one-step predictions on the
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
            raise OptionError("k_source='head' needs a K head; pass k_head=KHead.load(path)")

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Choose K, imagine, reflect and act."""
        replies = replies_in(view)
        k, notes = yield from self._choose_k(view, replies)
        path: list[Imagined] = []
        if k and self.config.foresight == "rollout":
            path = yield from roll_out(view, self.config, k, replies=replies)
            text = self._told(view, path)
        elif k:
            text = yield from self._generate(view, k, replies)
        else:
            text = NO_FORESIGHT
        draft = yield from self._act(view, text, replies)
        admissible = view.admissible_actions
        action, copied = matching_action(draft.action, admissible, self.config.similarity)
        replies[view.step] = _reply(draft, action)
        notes |= draft.notes() | {"foresight": text, "copied": copied}
        first = path[0] if path and path[0].action == action else None
        return Decision(action, first, notes)

    def _choose_k(
        self, view: View, replies: dict[int, str]
    ) -> Generator[Request, Reply, tuple[int, dict[str, Any]]]:
        """Return K, and what the notes say of it."""
        config, most = self.config, self.config.k_max_of(view.env_id)
        if self.k_head is not None and config.k_source == "head":
            asked = Encode(
                self.depth_prompt(view, replies), config.control, config.adapter, "depth"
            )
            encoding: Encoding = yield asked
            return self._read_depth(view, encoding.vector, most)
        question = fill(config.prompts, "itp_depth", k_max=str(most))[-1].content
        messages = ask_about(view, config, question, config.k_tokens, replies)
        seed = seed_for(config, view, "depth")
        sampling = config.sampling(config.k_tokens, (), seed, temperature=config.k_temperature)
        said: Completion = yield Generate(
            messages, sampling, adapter=config.adapter, purpose="depth"
        )
        number = number_in(said.text, 0, most)
        k = min(config.k_fallback, most) if number is None else int(number)
        return k, {"k": k, "k_parsed": number is not None}

    def _read_depth(
        self, view: View, state: Sequence[float], most: int
    ) -> tuple[int, dict[str, Any]]:
        """Return K, and what the notes say of it, by the head's reading of a hidden state."""
        assert self.k_head is not None
        k = min(self.k_head.choose(state), most)
        return k, {"k": k, "k_logits": [round(value, 6) for value in self.k_head.logits(state)]}

    def _told(self, view: View, path: Sequence[Imagined]) -> str:
        """Return imagined steps in words."""
        told = self.config.told
        if told == "last" or (told is None and self.config.k_source == "head"):
            return self.foresight_of(path[-1].observation, view.count_tokens)
        return told_steps(path, view, self.config.foresight_tokens)

    def _generate(
        self, view: View, k: int, replies: dict[int, str]
    ) -> Generator[Request, Reply, str]:
        """Return K steps ahead as one generation tells them."""
        config = self.config
        question = fill(config.prompts, "itp_foresight", k=str(k))[-1].content
        messages = ask_about(view, config, question, config.foresight_tokens, replies)
        seed = seed_for(config, view, "foresight")
        heat, stop = config.foresight_temperature, ("</foresight>",)
        sampling = config.sampling(config.foresight_tokens, stop, seed, temperature=heat, top_p=1.0)
        adapter = config.foresight_adapter or config.adapter
        said: Completion = yield Generate(
            messages, sampling, "<foresight>", adapter=adapter, purpose="foresight"
        )
        return _TAG.sub("", said.text).strip() or NO_FORESIGHT

    def _act(
        self, view: View, foresight: str, replies: dict[int, str]
    ) -> Generator[Request, Reply, Draft]:
        """Ask for reflection, thought and action in sight of what was imagined."""
        config = replace(self.config, draft_tokens=self.config.reply_tokens)
        messages = self.act_prompt(view, foresight, replies)
        return (yield from draft_action(view, config, messages, "act"))

    # -- prompts, which training makes as well -----------------------------------------------------

    def foresight_of(self, observation: str, count_tokens: Callable[[str], int]) -> str:
        """Return what the agent reads of an imagined observation with ``told="last"``.

        Args:
            observation: The observation.
            count_tokens: Counts the tokens of a text as the language model does.

        Example:
            >>> ITPAgent().foresight_of("It is dark.", len)
            'It is dark.'
        """
        text = cut_text(observation, self.config.foresight_tokens, count_tokens)
        return text or "(nothing is said)"

    def depth_prompt(self, view: View, replies: dict[int, str]) -> tuple[Message, ...]:
        """Return the conversation after which the control text stands, for the head to read.

        Args:
            view: What the agent sees.
            replies: What it wrote at each step.
        """
        room = view.count_tokens(self.config.control)
        return converse(view, self.config, replies, reserve=room)

    def act_prompt(
        self, view: View, foresight: str, replies: dict[int, str]
    ) -> tuple[Message, ...]:
        """Return the question for an action in sight of what was imagined.

        Args:
            view: What the agent sees.
            foresight: What was imagined, in words.
            replies: What it wrote at each step.
        """
        config = replace(self.config, draft_tokens=self.config.reply_tokens)
        slots = {"foresight": cut_text(foresight, config.max_length // 6, view.count_tokens)}
        listed = listed_actions(view, config.max_length // 4)
        name = "itp_act" if listed else "itp_act_open"
        if listed:
            slots["actions"] = listed
        question = fill(config.prompts, name, **slots)[-1].content
        return ask_about(view, config, question, config.draft_tokens, replies)


def _reply(draft: Draft, action: str) -> str:
    """Return what goes into the conversation: the thought, and the action that is really taken."""
    thought = _THOUGHT.search(draft.text.partition("Action:")[0])
    said = thought[1].strip() if thought else ""
    return f"Thought: {said}\nAction: {action}" if said else f"Action: {action}"
