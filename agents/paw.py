"""PaW's agent: a reply in tags to a summary, or in a conversation that goes on (PaW, Figures 7 to 9)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from ..envs.briefing import ReplyForm
from ..envs.registry import text_env_of
from ..errors import OptionError
from ..lm import Completion, Generate, Message
from ..lm.prompts import OVERHEAD, cut_text
from ..settings import NonNegativeFloat, NonNegativeInt, PositiveInt, PositiveShare, Range
from .base import Decision, Reply, Request, View
from .config import AgentConfig, ReplyLimit
from .parsing import clean_action, parse_action, read_tags
from .prompting import briefing_for, converse, fill, seed_for
from .react import ReActAgent

_UNLISTED = "(There is no list.)"
_TASK = "\n\nYour task is to: "
_SLOTS = (  # not every template has each
    "task_description",
    "instructions",
    "step_count",
    "history_length",
    "action_history",
    "memory_context",
    "current_step",
    "current_observation",
    "admissible_actions",
    "available_actions",
)


def tagged_prompt(view: View, config: PaWConfig) -> tuple[Message, ...]:
    """Return the one message that asks for a reply in tags (PaW, Figures 7 to 9)."""
    form = text_env_of(view.env_id).reply_form
    lines = _recent(view, config, form)
    fixed = {
        "instructions": briefing_for(view, config).told(),
        "step_count": str(len(view.history) - 1),
        "current_step": str(len(view.history)),
        "history_length": str(len(lines)),
    }

    # All that does not vary is counted first; goal, present and then history share the rest.
    template = form.prompts if lines else f"{form.prompts}_first"
    bare = _filled(config, template, fixed) + _TASK + _UNLISTED
    reserve = config.draft_tokens + OVERHEAD + view.count_tokens(bare)
    present_slots, room = _present_slots(view, form, max(config.max_length - reserve, 64))
    slots = {**fixed, **present_slots}

    lines = _newest(lines, room, view, keep_one=form.kind == "search")
    if lines:
        history = "\n".join(lines)
        slots["history_length"] = str(len(lines))
        slots["action_history"] = history
        slots["memory_context"] = history
        text = _filled(config, form.prompts, slots)
        # Upstream's rule for WebShop: beyond 13,000 characters the template without history.
        if form.most_characters is None or len(text) <= form.most_characters:
            return (Message("user", text),)

    if not form.tells_goal and view.goal not in slots["current_observation"]:
        slots["current_observation"] += _TASK + slots["task_description"]  # else it is nowhere
    return (Message("user", _filled(config, f"{form.prompts}_first", slots)),)


def _filled(config: PaWConfig, template: str, slots: dict[str, str]) -> str:
    """Return the text of one of PaW's prompts; a slot that is not given is empty."""
    filled = dict.fromkeys(_SLOTS, "") | slots
    return fill("paw", template, prompt_folder=config.prompt_folder, **filled)[0].content


def _observation_text(view: View, index: int = -1) -> str:
    """Return an observation as the environment's prompts quote it; the present one by default."""
    return text_env_of(view.env_id).shown_text(view.goal, view.history[index].observation)


def _recent(view: View, config: PaWConfig, form: ReplyForm) -> list[str]:
    """Return a line for each of the last steps, with its observation and action.

    In search QA a line has an action and what the search found; an action of absurd length is cut.
    """
    steps_taken = len(view.history) - 1
    searches = form.kind == "search"
    turns = config.memory_turns if searches else config.history_turns
    first = 1 if turns is None else max(steps_taken - turns, 0) + 1
    lines = []
    for step in range(first, steps_taken + 1):
        action = view.history[step].action or ""
        action = cut_text(action, config.max_length // 8, view.count_tokens)
        if searches:
            lines.append(f"Step {step}:{action} {_information(view.history[step].observation)}")
        else:
            observation = _observation_text(view, step - 1)  # to which the action was the reply
            lines.append(f"[Observation {step}: '{observation}', Action {step}: '{action}']")
    return lines


def _information(observation: str) -> str:
    """Return what a search found in its tags."""
    passages = observation.strip()
    if passages.startswith("<information>") and passages.endswith("</information>"):
        return passages
    return f"<information>{passages}</information>"


def _present_slots(view: View, form: ReplyForm, room: int) -> tuple[dict[str, str], int]:
    """Return the slots of goal and present, cut to fit, and how many tokens of the room they leave."""
    count_tokens = view.count_tokens
    goal = cut_text(view.goal, room // 4, count_tokens)  # the share is ours
    room -= count_tokens(goal)
    slots = {"task_description": goal}
    if form.kind == "search":  # its present is what the last search found: the history has it
        return slots, room

    # The observation may take what the actions leave, and half of the room in any case: a long list
    # of actions is of no use to a model that does not see where it is.
    actions = text_env_of(view.env_id).action_menu(view.admissible_actions or ())
    lines = [f"'{action}'" for action in actions]
    sizes = [count_tokens(line) + 1 for line in lines]  # with the end of the line
    observation_room = max(room - sum(sizes), room // 2)
    observation = cut_text(_observation_text(view), observation_room, count_tokens)
    room -= count_tokens(observation)

    fitting_lines: list[str] = []
    for line, size in zip(lines, sizes, strict=True):
        if size > room:
            break
        fitting_lines.append(line)
        room -= size

    # PaW's templates call the list by either name: in ALFWorld by the first, else by the second.
    menu = "\n".join(fitting_lines) or _UNLISTED
    slots["current_observation"] = observation
    slots["admissible_actions"] = menu
    slots["available_actions"] = menu
    return slots, room


def _newest(lines: Sequence[str], room: int, view: View, *, keep_one: bool) -> list[str]:
    """Return the newest lines that fit, oldest first; with `keep_one` the last, cut if it must be."""
    newest_first: list[str] = []
    for line in reversed(lines):
        size = view.count_tokens(line) + 1
        if size > room:
            if keep_one and not newest_first:
                newest_first.append(cut_text(line, room - 1, view.count_tokens))
            break
        newest_first.append(line)
        room -= size
    return newest_first[::-1]


_KEY = "paw conversation"  # in a view's memory
_LONGEST_RAW = 200  # characters of a reply without an action, for the environment to refuse
_LEAST = 16  # tokens of an observation: what has less room ends the episode


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation so far: the first message, and then replies and observations in turn."""

    messages: tuple[Message, ...]
    reply_ids: tuple[tuple[int, ...], ...] = ()
    """the replies token for token: encoded anew, a text may come to other tokens than were sampled"""
    size: int = 0
    """tokens so far"""
    step: int = 0
    trial: int = 1

    @classmethod
    def at(cls, view: View, config: PaWConfig) -> Conversation | None:
        """Return the conversation that asks for the next action; None where it has become too long."""
        earlier = view.memory.get(_KEY)

        # Memory lasts through all trials of a task: only a conversation that asks for this very step
        # goes on.
        moment = (view.step, view.trial)
        if not isinstance(earlier, cls) or (earlier.step, earlier.trial) != moment:
            first = converse if config.prompts == "brief" else tagged_prompt
            return cls(first(view, config), step=view.step, trial=view.trial)

        room = config.max_length - config.draft_tokens - earlier.size - 2 * OVERHEAD
        observation = cut_text(
            _observation_text(view), config.observation_tokens, view.count_tokens
        )
        if view.count_tokens(observation) > room:
            if room < _LEAST:
                return None
            observation = cut_text(observation, room, view.count_tokens)
        messages = (*earlier.messages, Message("user", observation))
        return cls(messages, earlier.reply_ids, step=view.step, trial=view.trial)

    def remember(self, view: View, reply: Completion) -> None:
        """Keep a reply, for the next step."""
        messages = (*self.messages, Message("assistant", reply.text))
        reply_ids = (*self.reply_ids, tuple(reply.token_ids or ()))

        # Not every model says how many tokens it read and wrote; else they are counted.
        size = reply.prompt_tokens + reply.completion_tokens
        if size == 0:
            size = sum(view.count_tokens(message.content) + OVERHEAD for message in messages)
        view.memory[_KEY] = Conversation(messages, reply_ids, size, view.step + 1, view.trial)


Context: TypeAlias = Literal["summary", "concat"]
"""What a prompt is: made anew at each step, with the last steps in it; or the conversation so far."""

_ONLY = {"decoding": "free", "examples": 0}  # training needs the reply as the model wrote it
_WITH_TAGS = {"state_text": "history", "form": "asked"}


@dataclass(frozen=True, kw_only=True)
class PaWConfig(AgentConfig):
    """How PaW's agent asks. The defaults are those of its rollouts in ALFWorld.

    Of ``decoding`` and ``examples`` only the defaults are allowed; `ReActAgent` has the others. With
    ``prompts="brief"`` the agent asks as `ReActAgent` does, for small models that cannot write tags; with
    ``context="concat"`` too, the first message is the first observation and the task.

    Example:
        >>> PaWConfig(temperature=0.4).history_turns
        2
        >>> PaWConfig(decoding="masked")
        Traceback (most recent call last):
        comap.errors.OptionError: expected decoding='free' for the agent 'paw', found 'masked'; \
use the agent 'react'
    """

    context: Context = "summary"
    """summary (each prompt is made anew, with the last steps), or concat (the conversation goes on: its
    own replies token for token, and the observations after them, as in Search-R1)."""
    observation_tokens: PositiveInt = 1024
    """With context=concat: most tokens of an observation; the rest is cut off."""
    history_turns: NonNegativeInt | None = 2
    """Number of last steps in the prompt; None for all that fit. Not in search QA."""
    memory_turns: NonNegativeInt | None = 4
    """In search QA: number of last searches in the prompt; None for all that fit (PaW: all of 4)."""
    max_length: PositiveInt = 2560
    """Most tokens of prompt and reply together. PaW: 2048 and 512 in ALFWorld;
    4096 and 512, thus 4608, in WebShop and search QA. Old steps are left out first."""
    draft_tokens: Annotated[PositiveInt, ReplyLimit(256, 512)] = 512
    """Most tokens of a reply."""
    temperature: NonNegativeFloat = 1.0
    """Temperature of rollouts; evaluation is at 0.4, in search QA at 0."""
    top_p: PositiveShare = 1.0
    """Nucleus; a training takes 1 alone, since its ratios are of the probabilities sampled from (ours)."""
    examples: Annotated[int, Range(0, 1)] = 0
    """None: the prompts say the form."""
    thinking: bool = True
    """Let a model that can think before it replies do so, such as Qwen3, as PaW's code base does: it
    renders prompts without ``enable_thinking``. Standard prompts only."""

    def __post_init__(self) -> None:
        required = dict(_ONLY)
        if self.prompts != "brief":
            required |= _WITH_TAGS
        for name, value in required.items():
            setting = getattr(self, name)
            if setting != value:
                raise OptionError(
                    f"expected {name}={value!r} for the agent 'paw', found {setting!r}; use the agent "
                    "'react'"
                )
        if self.context == "concat" and (self.state_text, self.form) != ("history", "asked"):
            raise OptionError(
                "expected state_text='history' and form='asked' with context='concat', found "
                f"{self.state_text!r} and {self.form!r}"
            )
        super().__post_init__()
        if self.max_length <= self.draft_tokens:
            raise OptionError(
                f"max_length must be greater than draft_tokens, not {self.max_length} with "
                f"{self.draft_tokens}: prompt and reply share it"
            )


class PaWAgent:
    """One call a step: one user message with the last steps, one reply in tags (PaW, Figures 7 to 9).

    The message has the task, recent steps, the present and what can be done; at the first step, and
    where no step fits or a WebShop prompt has more than 13,000 characters, a template without
    history. The reply holds ``<think>`` and ``<action>``; in search QA ``<think>`` and ``<search>`` or
    ``<answer>``. `read_tags` says which replies are valid: the note ``valid``. It asks once: replies of
    another form go to the environment as they are, and training has a penalty for them.

    With ``context="concat"`` that message is the first of a conversation, in which replies and
    observations follow. Nothing of it goes: an observation is cut where there is no room for all of
    it, and where there is hardly any, the agent gives the episode up (our choice: Search-R1 drops the
    beginning).

    Deviations: the wording is ours; actions keep their case; a prompt that is too long loses its
    oldest steps, then the end of its observation and of its list of actions; environments that PaW
    does not play have a general template.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> PaWAgent(PaWConfig(history_turns=3)).name
        'paw'
    """

    name = "paw"
    asks_world_model = False

    def __init__(self, config: PaWConfig | None = None):
        self.config = config or PaWConfig()
        self._brief = ReActAgent(self.config)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Ask for a reply in tags, and read it."""
        config = self.config
        if config.prompts == "brief" and config.context == "summary":
            return (yield from self._brief.decide(view))

        if config.context == "summary":
            conversation: Conversation | None = Conversation(tagged_prompt(view, config))
        else:
            conversation = Conversation.at(view, config)
        if conversation is None:
            return Decision(None)

        # No stop strings and no second try: training scores the reply as the model wrote it.
        sampling = config.sampling(config.draft_tokens, (), seed_for(config, view, "act"))
        reply: Completion = yield Generate(
            conversation.messages,
            sampling,
            adapter=config.adapter,
            purpose="act",
            reply_ids=conversation.reply_ids,
            thinking=config.asks_to_think,
        )
        if config.context == "concat":
            conversation.remember(view, reply)

        if config.prompts == "brief":
            parsed = parse_action(reply.text, view.admissible_actions)
            action = parsed or clean_action(reply.text[:_LONGEST_RAW]) or "..."
            notes: dict[str, Any] = {"valid": parsed is not None}
        else:
            tags = read_tags(view.env_id, reply.text)
            action = tags.action
            notes = {"valid": tags.valid, "format": "tags"}
        if config.context == "concat":
            notes["context"] = "concat"
        return Decision(action, notes=notes)
