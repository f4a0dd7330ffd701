"""What agents say and do: prompts cut to fit, a draft of an action, a choice, a rollout of drafts."""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rapidfuzz import fuzz

from ..envs import state_text
from ..envs.briefing import Briefing
from ..envs.registry import text_env_of
from ..errors import LanguageModelError
from ..lm import Completion, Generate, Message, Score, Scores
from ..lm.prompts import OVERHEAD, cut_text, fill_template, packaged_prompts, recent_turns
from ..lm.thoughts import without_thoughts
from ..trajectory import Turn
from ..worldmodel import Imagined
from .base import Imagine, Reply, Request, View
from .config import LEAST_PROMPT, AgentConfig
from .parsing import clean_action, find_action, first_line, parse_action, spoken_part

MOST_ACTIONS = 100
"""Admissible actions that a prompt lists; of more it has the first, and the number of the rest."""


def fill(
    style: str, name: str, *, prompt_folder: str | None = None, **slots: str
) -> tuple[Message, ...]:
    """Return a prompt of the agents; the user's own where a folder of prompts has it."""
    return fill_template(__package__ or "", style, name, prompt_folder=prompt_folder, **slots)


def prompt_of(config: AgentConfig, name: str, **slots: str) -> tuple[Message, ...]:
    """Return a prompt in the style that an agent's settings name."""
    return fill(config.prompts, name, prompt_folder=config.prompt_folder, **slots)


def briefing_for(view: View, config: AgentConfig) -> Briefing:
    """Return what the language model is told of the environment."""
    briefing = view.briefing or text_env_of(view.env_id).briefing
    return briefing.replaced(view.env_id, config.prompt_folder)


def prompts_sha256(config: AgentConfig, briefing: Briefing, env_id: str) -> str:
    """Return a digest of all texts that an agent's prompts are made of, for records."""
    # Only what agents with these settings read: a change of other prompts is no other condition.
    digest = hashlib.sha256()
    for prompt in packaged_prompts():
        if not _is_used(prompt.path, config):
            continue
        text = prompt.text
        if config.prompt_folder is not None:
            replacement = Path(config.prompt_folder) / prompt.path
            if replacement.is_file():
                text = replacement.read_text("utf-8")
        digest.update(f"{prompt.path.as_posix()}\n{text}\n".encode())
    if config.prompts == "standard":
        digest.update(briefing.replaced(env_id, config.prompt_folder).sha256.encode())
    return digest.hexdigest()


def _is_used(path: Path, config: AgentConfig) -> bool:
    """Return whether agents with these settings read a file of prompts."""
    room, folder = path.parts[:2]
    style = config.prompts
    if folder == "reminder" and path.stem == "plain":
        return style == "standard" and not config.asks_for_thought
    in_tags = folder == "paw" and style == "standard"
    return room == "agents" and (folder == style or path.stem == style or in_tags)


def situation(
    view: View, config: AgentConfig, *, after: Sequence[Turn] = (), reserve: int = 0
) -> str:
    """Return the present in one text: the goal with the turns so far, or the belief in words."""
    turns = (*view.history, *after)
    if config.state_text == "belief":
        text = state_text(view.env_id, view.goal, turns, view.facts)
        longest = max(config.max_length - reserve, LEAST_PROMPT)
        return cut_text(text, longest, view.count_tokens)
    first, later = _fitting(view, config, turns, reserve)
    lines = [first]
    for turn in later:
        lines += [f"> {turn.action}", turn.observation]
    return "\n".join(lines)


def _fitting(
    view: View, config: AgentConfig, turns: Sequence[Turn], reserve: int, overhead: int = OVERHEAD
) -> tuple[str, tuple[Turn, ...]]:
    """Return the first text, with the goal in it, and the turns that fit after it."""
    count_tokens = view.count_tokens
    budget = max(config.max_length - reserve, LEAST_PROMPT)

    turns_taken = turns[1:]
    if config.history_turns is not None:
        turns_taken = turns_taken[max(len(turns_taken) - config.history_turns, 0) :]
    later: list[Turn] = []
    for turn in turns_taken:
        later.append(turn._replace(action=_short_action(view, config, turn.action or "")))

    # The last turn is the present, which an agent cannot do without: it is provided for first, with up
    # to half of all. The goal comes next, then the first observation; the turns between go first.
    room = budget
    if later:
        present = later[-1]
        present_tokens = count_tokens(present.action or "") + count_tokens(present.observation)
        room -= min(present_tokens + overhead, budget // 2)

    first = cut_text(turns[0].observation, room * 3 // 4, count_tokens)
    if view.goal and view.goal not in first:
        goal_room = room // 4
        goal_tokens = count_tokens(view.goal)
        if goal_tokens > goal_room:  # a long goal in a short prompt may take half of the room
            goal_room = min(goal_tokens, room // 2)
            first = cut_text(turns[0].observation, room - goal_room, count_tokens)
        first = f"{first}\n{cut_text(view.goal, goal_room, count_tokens)}"
    return first, recent_turns(later, budget - count_tokens(first), count_tokens, overhead)


def _short_action(view: View, config: AgentConfig, action: str) -> str:
    """Return an action as prompts show it: one of absurd length is cut."""
    longest = config.max_length // 8
    if len(action.encode("utf-8", "replace")) <= longest:  # a token has at least a byte
        return action
    return cut_text(action, longest, view.count_tokens)


def converse(
    view: View,
    config: AgentConfig,
    replies: Mapping[int, str] | None = None,
    *,
    reserve: int = 0,
    system: str = "",
    listing: bool = True,
) -> tuple[Message, ...]:
    """Return the conversation that asks for the next action.

    Args:
        view: The present.
        config: The agent's settings.
        replies: What the agent wrote at earlier steps, where that is not just its action.
        reserve: Tokens to leave free, beside those of a draft.
        system: What else the instructions say.
        listing: Whether the admissible actions may be listed at its end; not where they follow anyway.
    """
    reserve += config.draft_tokens
    if config.prompts == "brief":
        reserve += view.count_tokens(f"{system}\n") if system else 0
        text = situation(view, config, reserve=reserve + OVERHEAD)
        return prompt_of(config, "act", situation=f"{system}\n{text}" if system else text)

    briefing = briefing_for(view, config)
    rules = briefing.told()
    form = "act" if config.asks_for_thought else "act_plain"
    head = prompt_of(config, form, instructions=f"{rules}\n\n{system}" if system else rules)
    reserve += tokens_of(view, head)
    if config.decoding == "free" or not view.admissible_actions:
        reserve += tokens_of(view, reminder_of(config))
    else:
        longest = max(view.admissible_actions, key=len)
        reserve += view.count_tokens(f"\nAction: {longest}") + OVERHEAD

    # What every prompt must have is reserved first; the example comes only where there is room left,
    # and the turns get the rest.
    menu = _menu(view, config) if listing else ""
    if menu:
        reserve += view.count_tokens(menu) + OVERHEAD

    example = _worked_example(view, config, briefing, reserve)
    if example:
        reserve += _example_size(view, example)

    if config.state_text == "belief":
        turns = [Message("user", situation(view, config, reserve=reserve + OVERHEAD))]
    else:
        turns = _turns_as_messages(view, config, replies or {}, reserve)
    if example:  # or it would seem to go on
        turns[0] = Message("user", f"{_YOUR_TURN}{turns[0].content}")
    messages = (*head, *example, *turns)
    return ask_on(messages, menu) if menu else messages


_YOUR_TURN = "That was an example. Now it is your turn, with another task.\n\n"


def _worked_example(
    view: View, config: AgentConfig, briefing: Briefing, reserve: int
) -> tuple[Message, ...]:
    """Return a few steps of an expert; nothing where none are wanted, or there is no room for them."""
    if not config.examples or config.state_text != "history" or not briefing.example:
        return ()
    example = tuple(Message(*pair) for pair in briefing.example)
    if not config.asks_for_thought:
        example = tuple(_without_thought(message) for message in example)
    room = config.max_length - reserve - _example_size(view, example)
    if room >= config.max_length // 6:  # what the task and its turns need at least
        return example
    _warn_of_missing_example(view.env_id, config.max_length)
    return ()


def _without_thought(message: Message) -> Message:
    """Return a message of an example with its action alone; what others than the model say is kept."""
    action = parse_action(message.content) if message.role == "assistant" else None
    return message if action is None else Message(message.role, f"Action: {action}")


def _example_size(view: View, example: Sequence[Message]) -> int:
    return tokens_of(view, example) + view.count_tokens(_YOUR_TURN)


@cache
def _warn_of_missing_example(env_id: str, max_length: int) -> None:
    """Say once in a process that prompts are without the example that they are to have."""
    warnings.warn(
        f"the worked example of {env_id} does not fit into prompts of max_length={max_length:,} tokens, "
        "and those prompts are without it. Give a greater max_length (--max-length), or examples=0 "
        "(--agent-option examples=0) if none is meant; then nothing is said",
        stacklevel=1,
    )


def _menu(view: View, config: AgentConfig) -> str:
    """Return what is said of the admissible actions; empty where none are listed or shown."""
    if not config.show_actions or not view.admissible_actions:
        return ""
    actions = text_env_of(view.env_id).action_menu(view.admissible_actions)
    lines = list(actions[:MOST_ACTIONS])

    # Cut by quarters, not line by line: each try counts the tokens of the whole list.
    room = config.max_length // 4
    while lines and view.count_tokens("\n".join(lines)) > room:
        lines = lines[: len(lines) * 3 // 4]
    if not lines:
        return ""

    left_out = len(actions) - len(lines)
    if left_out:
        lines.append(f"... and {left_out} more")
    (menu,) = prompt_of(config, "actions", actions="\n".join(lines))
    return menu.content


def reminder_of(config: AgentConfig) -> tuple[Message, ...]:
    """Return what reminds a model of the form of a reply."""
    is_plain = config.prompts == "standard" and not config.asks_for_thought
    name = "plain" if is_plain else config.prompts
    return fill("reminder", name, prompt_folder=config.prompt_folder)


def tokens_of(view: View, messages: Sequence[Message]) -> int:
    """Return how many tokens messages take, with what chat templates put around them."""
    return sum(view.count_tokens(message.content) + OVERHEAD for message in messages)


def _turns_as_messages(
    view: View, config: AgentConfig, replies: Mapping[int, str], reserve: int
) -> list[Message]:
    """Return the episode so far as messages, with the model's own replies where they are known."""
    longest = config.max_length // 8  # a server may not keep to the tokens it was given

    # Replies stand in for the actions of the turns, so that both are cut by the same rule.
    turns = [view.history[0]]
    for step, turn in enumerate(view.history[1:]):
        plain = f"Action: {turn.action}"
        reply = replies.get(step) or plain
        fits = view.count_tokens(reply) <= longest
        turns.append(Turn(reply if fits else plain, turn.observation))

    first, later = _fitting(view, config, tuple(turns), reserve + OVERHEAD, 2 * OVERHEAD)
    messages = [Message("user", first)]
    for turn in later:
        messages.append(Message("assistant", turn.action or ""))
        messages.append(Message("user", turn.observation))
    return messages


def ask_on(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    r"""Return a conversation with `text` added to what the user says last."""
    *before, last = messages
    if last.role == "user":
        return (*before, Message("user", f"{last.content}\n\n{text}"))
    return (*messages, Message("user", text))


def ask_about(
    view: View,
    config: AgentConfig,
    name: str,
    reply_tokens: int,
    replies: Mapping[int, str] | None = None,
    listing: bool = True,
    **slots: str,
) -> tuple[Message, ...]:
    r"""Return the conversation so far with one of the prompts joined to what the user said last."""
    question = prompt_of(config, name, **slots)[-1].content
    reserve = view.count_tokens(question) + OVERHEAD + reply_tokens - config.draft_tokens
    return ask_on(converse(view, config, replies, reserve=reserve, listing=listing), question)


def ask_apart(
    view: View, config: AgentConfig, name: str, reply_tokens: int, **slots: str
) -> tuple[Message, ...]:
    r"""Return a prompt of its own that tells the present in its slot ``situation``."""
    reserve = reply_tokens + tokens_of(view, prompt_of(config, name, situation="", **slots))
    text = situation(view, config, reserve=reserve)
    return prompt_of(config, name, situation=text, **slots)


STOP = ("\nObservation:", "\nTask:")
"""Where a reply ends that goes on to tell what follows. A rule (``---``) is none: models write one
between their thoughts and the action."""

_LONGEST_RAW = 200  # characters of a reply that is an action only for the environment to refuse


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed action, and the reply that it was read in.

    Attributes:
        text: The reply as the model wrote it.
        action: What goes to the environment.
        parsed: Whether the reply has an action that can be read.
        decoding: How the action was decoded.
        logprobs: The log-probabilities of the reply's tokens, where they are known.
    """

    text: str
    action: str
    parsed: bool
    decoding: str
    logprobs: tuple[float, ...] | None = None

    @property
    def thought(self) -> str | None:
        """The first line of the thought before the action, if there is one."""
        return first_line(self._thoughts()) or None

    @property
    def shown(self) -> str:
        """The reply as later prompts show it: its thought and its action, and nothing that it invents.

        Of a reply without an action it is what stands outside of think blocks.
        """
        if not self.parsed:
            return spoken_part(self.text) or "..."
        action = f"Action: {self.action}"
        thoughts = self._thoughts()
        return f"Thought: {thoughts}\n{action}" if thoughts else action

    def _thoughts(self) -> str:
        written_action = find_action(self.text, (self.action,))
        return "" if written_action is None else written_action.thought

    def notes(self) -> dict[str, Any]:
        return {"draft": self.action, "draft_parsed": self.parsed, "decoding": self.decoding}


def seed_for(config: AgentConfig, view: View, purpose: str = "") -> int:
    """Return the seed for one request: from the agent's seed, the task, the trial and the step."""
    # A hash, not a counter: the seed does not depend on what else runs beside this episode, so a run
    # that is resumed, or played on more machines, samples the same replies.
    request_key = f"{config.seed}\n{view.task}\n{view.trial}\n{view.step}\n{purpose}"
    if view.seed:
        request_key += f"\n{view.seed}"
    digest = hashlib.sha256(request_key.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:4], "big") >> 1  # servers take 31 bits


def ask_text(
    view: View,
    config: AgentConfig,
    messages: Sequence[Message],
    purpose: str,
    tokens: int,
    stop: tuple[str, ...] = (),
    prefix: str = "",
    *,
    temperature: float | None = None,
    top_p: float | None = None,
    adapter: str | None = None,
) -> Generate:
    """Return a request for text with the agent's settings, and a seed of this purpose's own."""
    seed = seed_for(config, view, purpose)
    sampling = config.sampling(tokens, stop, seed, temperature=temperature, top_p=top_p)
    adapter = adapter or config.adapter
    return Generate(
        tuple(messages),
        sampling,
        prefix,
        adapter=adapter,
        purpose=purpose,
        thinking=config.asks_to_think,
    )


def draft_action(
    view: View, config: AgentConfig, messages: Sequence[Message], purpose: str = "draft"
) -> Generator[Request, Reply, Draft]:
    """Ask for one action, as the agent's decoding says.

    Free text without an ``Action:`` line is asked for once more, with a reminder of the form; if that
    fails as well, the text itself is the action, for the environment to refuse.
    With masked and scored decoding the thought (standard prompts) is free, the action is one of the
    admissible ones.
    """
    if config.decoding == "free" or not view.admissible_actions:
        return (yield from _free(view, config, tuple(messages), purpose))

    lead = ""
    if config.asks_for_thought:
        stop = ("Action:", *STOP)
        request = ask_text(view, config, messages, purpose, config.draft_tokens, stop)
        reply: Completion = yield replace(request, purpose=f"{purpose}: thought")
        # Read again as a text, what was written may have more tokens than when it was written.
        thought = cut_text(without_thoughts(reply.text), config.draft_tokens, view.count_tokens)
        lead = thought.rstrip() + "\n" if thought.strip() else ""

    prefix = f"{lead}Action:"
    action, logprobs = yield from choose_action(view, config, messages, prefix, purpose=purpose)
    return Draft(f"{lead}Action: {action}", action, True, config.decoding, logprobs)


def as_choices(actions: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return actions as the choices of a reply, and the most tokens that one takes."""
    # A blank before each, as after "Action:" in free text; a token has at least a byte.
    texts = tuple(f" {action}" for action in actions)
    sizes = [len(text.encode("utf-8", "replace")) for text in texts]
    return texts, 8 + max(sizes, default=0)


def choose_action(
    view: View,
    config: AgentConfig,
    messages: Sequence[Message],
    prefix: str,
    *,
    actions: Sequence[str] | None = None,
    purpose: str = "draft",
    ended: bool = True,
) -> Generator[Request, Reply, tuple[str, tuple[float, ...]]]:
    """Let the model choose one of some actions, after a given beginning of its reply."""
    options = tuple(view.admissible_actions or () if actions is None else actions)
    texts, longest = as_choices(options)
    thinking = config.asks_to_think

    if config.decoding == "scored":
        scores: Scores = yield Score(
            tuple(messages), texts, prefix, ended, config.adapter, purpose, thinking
        )
        best = _pick(scores, config, seed_for(config, view, purpose))
        return options[best], scores.logprobs[best]

    sampling = config.sampling(longest, seed=seed_for(config, view, purpose))
    reply: Completion = yield Generate(
        tuple(messages), sampling, prefix, texts, config.adapter, purpose, thinking=thinking
    )
    for option, text in zip(options, texts, strict=True):
        if reply.text.strip() == text.strip():
            return option, reply.logprobs or ()
    raise LanguageModelError(
        f"expected one of the {len(texts)} given actions, found {reply.text!r:.80}; the model does not "
        "keep to choices: use decoding='free'"
    )


def _pick(scores: Scores, config: AgentConfig, seed: int) -> int:
    """Return the best option, or with a temperature one drawn by its probability."""
    for logprobs in scores.logprobs:
        if not all(value < math.inf for value in logprobs):  # nan is not less either
            raise LanguageModelError(
                "expected log-probabilities of given actions, found inf or nan"
            )
    if config.temperature == 0 or scores.totals[scores.best] == -math.inf:
        return scores.best

    totals = scores.totals
    highest = max(totals)  # subtracted, or the exponential of a long action's total would be 0
    weights = [math.exp((total - highest) / config.temperature) for total in totals]
    likeliest_first = sorted(range(len(weights)), key=lambda i: (-weights[i], i))

    # The nucleus: the likeliest options that together have top_p of the probability.
    nucleus: list[int] = []
    nucleus_weight = 0.0
    total_weight = math.fsum(weights)
    for index in likeliest_first:
        nucleus.append(index)
        nucleus_weight += weights[index]
        if nucleus_weight >= config.top_p * total_weight:
            break
    return random.Random(seed).choices(nucleus, [weights[i] for i in nucleus])[0]


def _free(
    view: View, config: AgentConfig, messages: tuple[Message, ...], purpose: str
) -> Generator[Request, Reply, Draft]:
    """Ask for a free text, and once more with a reminder where it has no action."""
    label = "Thought:" if config.asks_for_thought else "Action:"
    lead = label if config.form == "given" else ""

    # One retry, as in CoMap's code. Its purpose differs, and with it its seed: at a temperature the
    # same seed could give the same text.
    for name in (purpose, f"{purpose}: retry"):
        reply: Completion = yield ask_text(
            view, config, messages, name, config.draft_tokens, STOP, lead
        )
        text = f"{lead}{reply.text}".strip()
        action = parse_action(f"{lead}{reply.text}", view.admissible_actions)
        if action is not None:
            return Draft(text, action, True, "free", reply.logprobs)

        spoken = spoken_part(text)
        messages = _reminding(view, config, messages, spoken or "...")

    # CoMap's code makes another action of what it cannot read, which hides that the model failed; here
    # the environment refuses it, and the failure is on record.
    raw = clean_action(spoken[:_LONGEST_RAW]) or "..."
    return Draft(text, raw, False, "free", reply.logprobs)


def _reminding(
    view: View, config: AgentConfig, messages: tuple[Message, ...], reply: str
) -> tuple[Message, ...]:
    """Return what reminds of the form: after the reply, or without it where that does not fit."""
    room = config.max_length - config.draft_tokens
    quoted = cut_text(reply, config.max_length // 8, view.count_tokens)
    (reminder,) = reminder_of(config)
    for conversation in ((*messages, Message("assistant", quoted)), messages):
        reminded = ask_on(conversation, reminder.content)
        if tokens_of(view, reminded) <= room:
            return reminded
    return messages  # asked once more as it was, with another seed


def view_after(view: View, steps: Sequence[Imagined]) -> View:
    """Return what an agent would see after imagined steps."""
    if not steps:
        return view
    turns = tuple(Turn(step.action, step.observation) for step in steps)
    last = steps[-1]
    return replace(
        view,
        history=view.history + turns,
        facts=last.facts,
        admissible_actions=last.admissible_actions,
    )


def ended(step: Imagined) -> bool:
    """Return whether nothing follows an imagined step: the goal is reached, or the model says so."""
    return bool(step.goal_reached) or bool(step.prediction.terminated)


def roll_out(
    view: View, config: AgentConfig, steps: int, replies: dict[int, str] | None = None
) -> Generator[Request, Reply, list[Imagined]]:
    """Return up to so many imagined steps of the agent's own policy; fewer where the episode ends.

    Each step is a draft of the agent, and what the world model says follows it.
    """
    greedy = replace(config, temperature=0.0)  # the likeliest future, as ITP imagines it
    path: list[Imagined] = []
    for number in range(1, steps + 1):
        imagined_view = view_after(view, path)
        messages = converse(imagined_view, greedy, replies)
        purpose = f"foresight: action {number}"
        draft = yield from draft_action(imagined_view, greedy, messages, purpose)
        imagined: Imagined = yield Imagine(draft.action, tuple(path))
        path.append(imagined)
        if ended(imagined):
            break
    return path


def steps_as_text(steps: Sequence[Imagined], view: View, budget: int) -> str:
    """Return imagined steps in words, a pair of lines each; each gets an equal part of the budget."""
    room = max(budget // max(len(steps), 1), 16)
    lines = []
    for number, step in enumerate(steps, 1):
        lines.append(f"{number}. {cut_text(step.action, room // 2, view.count_tokens)}")
        observation = cut_text(step.observation, room, view.count_tokens)
        lines.append(f"   {observation or '(nothing is said)'}")
    return "\n".join(lines)


def listed_actions(view: View, budget: int) -> str:
    """Return the admissible actions, one a line, the first that fit; empty where there are none."""
    actions = view.admissible_actions or ()
    if view.count_tokens("\n".join(actions)) <= budget:
        return "\n".join(actions)

    lines: list[str] = []
    for action in actions:
        budget -= view.count_tokens(f"{action}\n")
        if budget < 0:
            break
        lines.append(action)
    return "\n".join(lines)


def matching_action(action: str, admissible: Sequence[str] | None, least: float) -> tuple[str, str]:
    """Return the admissible action that was meant, and how it was found (ITP)."""
    if not admissible:
        return action, "open"
    if action in admissible:
        return action, "exact"

    # The fallbacks are those of ITP's released program, in its order: without regard to case, then
    # the most similar, then the first of the list.
    plain = canonical(action)
    for candidate in admissible:
        if canonical(candidate) == plain:
            return candidate, "case"

    scores = [fuzz.ratio(plain, canonical(candidate)) / 100 for candidate in admissible]
    best = max(range(len(scores)), key=lambda i: (scores[i], -i))
    if scores[best] < least:
        return admissible[0], "first"
    return admissible[best], "fuzzy"


def canonical(action: str) -> str:
    """Return an action in lower case with single blanks, for comparing what models wrote."""
    return " ".join(action.split()).casefold()


Result = TypeVar("Result")


def together(
    parts: Sequence[Generator[Request, Reply, Result]],
) -> Generator[Request, Reply, list[Result]]:
    """Run generators of requests side by side, so that what they ask goes into shared batches."""
    results: dict[int, Result] = {}
    waiting: dict[int, Request] = {}

    def go_on(index: int, reply: Reply) -> None:
        waiting.pop(index, None)
        try:
            waiting[index] = parts[index].send(reply)
        except StopIteration as stop:
            results[index] = stop.value

    for index in range(len(parts)):
        go_on(index, None)

    # Sorted, since the order of a batch is on record: it must not depend on who waited longest.
    while waiting:
        requests = dict(sorted(waiting.items()))
        batch: list[Any] = []
        for request in requests.values():
            batch += _singles(request)
        replies = yield batch

        # Each generator gets the replies to its own part of the batch.
        start = 0
        for index, request in requests.items():
            end = start + len(_singles(request))
            go_on(index, replies[start:end] if isinstance(request, list) else replies[start])
            start = end
    return [results[index] for index in range(len(parts))]


def _singles(request: Request) -> list[Any]:
    return request if isinstance(request, list) else [request]
