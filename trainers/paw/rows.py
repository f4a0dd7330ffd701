"""Rows: what PaW's losses are computed from, one environment step each, and their mini-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.runner import ADMISSIBLE
from ...envs.registry import text_env_of
from ...errors import LanguageModelError, OptionError
from ...lm import Generate, Message
from ...lm.chat import ChatTokenizer, Following
from ...lm.prompts import CUT
from ...trajectory import Call, Step, Trajectory
from ..sharding import level
from .config import PaWTraining, PolicyOptimization
from .rewards import RewardFunction, step_rewards

if TYPE_CHECKING:
    from torch import Tensor

    from ..trees import MicroBatch

PURPOSES = ("act", "draft", "draft: retry")
"""What agents ask their language model for when they ask for an action."""

_REMEMBERED = 4096  # texts whose tokens are kept: an update has many equal ones


class Parts(NamedTuple):
    """What is scored of a row's tokens: their numbers, counted from the prompt's end."""

    response: range
    observation: range


@dataclass(frozen=True, slots=True, kw_only=True)
class PaWRow:
    """One environment step in tokens.

    A model reads prompt, response, header, observation and footer, one after the other. Response tokens
    carry the loss of reinforcement learning, observation tokens PaW's own; the others carry none.
    """

    group: int
    trajectory: int
    t: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    header_ids: tuple[int, ...] = ()
    observation_ids: tuple[int, ...] = ()
    footer_ids: tuple[int, ...] = ()
    sampled_logprobs: tuple[float, ...] | None = None
    reward: float = 0.0
    valid: bool = True
    anchor: str = ""
    episode_return: float = 0.0
    episode_length: int = 0
    success: bool = False

    def tokens(self, observed: bool) -> tuple[int, ...]:
        """Return all that a forward pass reads."""
        tail = (*self.header_ids, *self.observation_ids, *self.footer_ids) if observed else ()
        return (*self.prompt_ids, *self.response_ids, *tail)

    def parts(self, observed: bool) -> Parts:
        """Return what is scored after the prompt: the response, and the observation if it is read."""
        # What stands behind the last scored token needs no place: the footer is never scored.
        response = range(len(self.response_ids))
        if not (observed and self.observation_ids):
            return Parts(response, range(0))
        start = len(self.response_ids) + len(self.header_ids)
        return Parts(response, range(start, start + len(self.observation_ids)))


class TurnTokenizer(ChatTokenizer):
    """Makes prompts as generation does, and the tokens of the user's message after a reply.

    What stands around that message is read off a conversation that the chat template renders. The text
    is tokenized by itself, so that each token belongs to it or to the template; where a tokenizer would
    merge the two (a space before the first word), the tokens differ from those of the same text in a
    later prompt. Whatever in the text is written like a control token is broken up.
    """

    def following(
        self, response: Sequence[int], text: str, longest: int, mark: str = ""
    ) -> Following:
        """Return what follows a reply: the text's tokens, at most so many, between the template's.

        The text may end with a mark of ours: its tokens are counted to the template's.
        """
        if len(self._tokens_by_text) > _REMEMBERED:
            self._tokens_by_text.clear()
        safe_text = self.turns.as_rendered(text)
        (tokens,) = self.tokens([safe_text])
        if not tokens:
            return Following()

        following = self.turns.following(response, tokens[:longest])
        if not mark:
            return following

        # Tokens that end before the mark are the observation's.
        ends = accumulate(map(len, self.texts(following.observation)))
        size = sum(end <= len(safe_text) - len(mark) for end in ends)
        footer = (*following.observation[size:], *following.footer)
        return following._replace(observation=following.observation[:size], footer=footer)


def fault_of(trajectory: Trajectory) -> str | None:
    """Return why an episode has no rows, or None where it has some."""
    if trajectory.error is not None:
        return trajectory.error
    if not trajectory.steps:
        return "no step was taken"
    for step in trajectory.steps:
        if _own_call(step) is None:
            return f"the language model wrote no action at step {step.t}"
    return None


def _own_call(step: Step) -> Call | None:
    """Return the call whose reply is the step's action."""
    # The last one is what was done, however often the agent asked before.
    for call in reversed(step.calls):
        if call.kind == "generate" and call.purpose in PURPOSES:
            return call
    return None


def _checked(trajectory: Trajectory, step: Step) -> Call:
    """Return the call whose reply is a step's action, with its tokens."""
    call = _own_call(step)
    assert call is not None
    place = f"(task {trajectory.task!r:.80}, step {step.t})"

    if call.messages is None or call.token_ids is None:
        lacking = "prompts" if call.messages is None else "tokens"
        raise OptionError(
            f"expected episodes with prompts and tokens of all calls, found none of the {lacking} "
            f"{place}; play with keep='tokens' and a model in this process or on a training server"
        )

    if call.logprobs is not None and len(call.logprobs) != len(call.token_ids):
        raise LanguageModelError(
            f"expected {len(call.token_ids)} log-probabilities, one for each token, found "
            f"{len(call.logprobs)} {place}"
        )
    return call


def continued(steps: Sequence[Step], calls: Sequence[Call]) -> list[bool]:
    """Return of each step whether its conversation continues the one before; False after the last."""
    # By what the prompt really was: an agent drops old turns where they do not fit.
    continues = [False]
    for step, call_before, call in zip(steps[1:], calls, calls[1:], strict=False):
        conversation = (*(call_before.messages or ()), ("assistant", call_before.text))
        is_concat = step.notes.get("context") == "concat"
        continues.append(is_concat and (call.messages or ())[:-1] == conversation)
    return [*continues[: len(steps)], False]


class Serializer:
    """Makes rows of episodes."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        ends: Iterable[int] = (),
        max_observation: int = 512,
        include_admissible: bool = False,
        thinking: bool = False,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.chat = TurnTokenizer(tokenizer, ends, template)
        _ = self.chat.turns  # a template that cannot be used is refused at once
        self._thinking = thinking
        self._max_observation = max_observation
        self._include_admissible = include_admissible

    def rows_of(
        self,
        trajectory: Trajectory,
        *,
        group: int,
        number: int,
        success_reward: float = 1.0,
        reward: RewardFunction | None = None,
    ) -> list[PaWRow]:
        """Return a row for each step of an episode; none if `fault_of` says that it has none."""
        if fault_of(trajectory) is not None:
            return []

        steps = trajectory.steps
        calls = [_checked(trajectory, step) for step in steps]
        continues = continued(steps, calls)
        prompts = self._prompts(calls, continues)
        rewards = step_rewards(trajectory, success_reward, reward)
        anchors = (trajectory.observation, *(step.observation for step in steps))

        rows = []
        for t, (step, call) in enumerate(zip(steps, calls, strict=True)):
            next_call = calls[t + 1] if continues[t + 1] else None
            following = self._following(trajectory, t, call, next_call)
            rows.append(
                PaWRow(
                    group=group,
                    trajectory=number,
                    t=t,
                    prompt_ids=prompts[t],
                    response_ids=call.token_ids or (),
                    header_ids=following.header,
                    observation_ids=following.observation,
                    footer_ids=following.footer,
                    sampled_logprobs=call.logprobs,
                    reward=rewards[t],
                    valid=bool(step.notes.get("valid", step.notes.get("draft_parsed", True))),
                    anchor=anchors[t],
                    episode_return=sum(rewards),
                    episode_length=len(steps),
                    success=trajectory.success,
                )
            )
        return rows

    def _following(
        self, trajectory: Trajectory, t: int, call: Call, next_call: Call | None
    ) -> Following:
        """Return the observation after a step, in tokens: what the policy learns to predict.

        Where the next call continues the conversation, it is the text that stands there.
        """
        if next_call is None or not next_call.messages:
            text = self._text(trajectory, t)
            mark = ""
        else:
            text = next_call.messages[-1][1]
            mark = _mark_of(text, trajectory.steps[t])
        return self.chat.following(call.token_ids or (), text, self._max_observation, mark)

    def _prompts(self, calls: Sequence[Call], continues: Sequence[bool]) -> list[tuple[int, ...]]:
        """Return each call's prompt in tokens, made as in generation: earlier replies as sampled."""
        requests = []
        replies: list[tuple[int, ...]] = []
        for call, is_continued in zip(calls, continues, strict=False):
            if not is_continued:
                replies.clear()
            messages = tuple(Message(*message) for message in call.messages or ())
            requests.append(
                Generate(
                    messages,
                    prefix=call.prefix,
                    reply_ids=tuple(replies),
                    thinking=self._thinking,
                )
            )
            replies.append(call.token_ids or ())

        prompts = []
        for prompt in self.chat.prompts(requests):
            if isinstance(prompt, LanguageModelError):
                raise prompt
            prompts.append(tuple(prompt))
        return prompts

    def _text(self, trajectory: Trajectory, t: int) -> str:
        """Return the observation that step `t` led to, as it is predicted."""
        text = text_env_of(trajectory.env_id).predicted_text(trajectory.steps[t])
        if not (self._include_admissible and text and t + 1 < len(trajectory.steps)):
            return text

        actions = trajectory.steps[t + 1].notes.get(ADMISSIBLE)
        if actions is None:
            raise OptionError(
                f"expected the admissible actions in the notes of step {t + 2}, found none; play the "
                "episodes with include_admissible=True"
            )
        return "\n".join([text, "Admissible actions:", *actions]) if actions else text


def _mark_of(text: str, step: Step) -> str:
    """Return the mark at the end of an observation that a conversation shows cut; empty if it is whole."""
    is_cut = text.endswith(CUT) and not step.observation.rstrip().endswith(CUT.strip())
    return CUT if is_cut else ""


def overlapping(texts: Sequence[str], spans: Iterable[tuple[int, int]]) -> list[bool]:
    """Return for each token's text whether it shares a character with a span of their joined text.

    A token without text is the beginning of the character that the next one ends.
    """
    spans = list(spans)
    overlaps = []
    for end, text in zip(accumulate(map(len, texts)), texts, strict=True):
        start = end - len(text)
        reach = end if text else end + 1  # into the character that it begins
        overlaps.append(any(start < high and low < reach for low, high in spans))
    return overlaps


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What one step of the optimizer learns from: rows of this process, and counts over all."""

    micro: tuple[MicroBatch, ...]
    rows: int
    tokens: int


def deal(positions: NDArray[np.int64], total: int, size: int | None, seed: int) -> list[list[int]]:
    """Return this process's rows in each mini-batch, by index; `positions` are theirs in the update."""
    # All processes draw the same order over the whole update, and take their own rows from it: each takes
    # part in each step of the optimizer, though perhaps with no row.
    number = 1 if size is None else max(-(-total // size), 1)
    order = np.random.default_rng(seed).permutation(total)
    index_of = {int(position): index for index, position in enumerate(positions)}

    hands = []
    for dealt_positions in np.array_split(order, number):
        own_positions = [int(position) for position in dealt_positions if int(position) in index_of]
        hands.append([index_of[position] for position in own_positions])
    return hands


def micro_batch(
    trees: Sequence[Sequence[PaWRow]],
    observed: Sequence[bool],
    model: Any,
    device: Any = "cpu",
    *,
    shared: bool = True,
) -> dict[str, Any]:
    """Return the rows of trees, B in all, as a forward pass reads them.

    Args:
        trees: The rows.
        observed: Of each row, whether its observation is read.
        model: What reads them.
        device: Where it is.
        shared: Whether what the rows of a tree share is read once; else rows are padded.

    Returns:
        ``forest``: the model's inputs; ``completion_mask`` (1 for tokens of the response) and
        ``observation_mask`` (1 for scored tokens of the observation), (B, C) and of 64-bit integers.
    """
    from ..row_trainer import on_device
    from ..trees import Span, plant

    rows = list(chain.from_iterable(trees))
    parts = [row.parts(is_read) for row, is_read in zip(rows, observed, strict=True)]
    width = max([1, *(max(part.response.stop, part.observation.stop) for part in parts)])

    # A scored token's column in the table is its place after the prompt. Entropies are the response's.
    spans = []
    masks = np.zeros((2, max(len(rows), 1), width), np.int64)
    for number, (row, part) in enumerate(zip(rows, parts, strict=True)):
        begin = len(row.prompt_ids)
        row_spans = []
        for mask, columns, has_entropy in zip(masks, part, (True, False), strict=True):
            mask[number, columns.start : columns.stop] = 1
            start = begin + columns.start
            row_spans.append(Span(start, start + len(columns), columns.start, has_entropy))
        spans.append(row_spans)

    indices = iter(range(len(rows)))
    forest = plant(
        [row.tokens(is_read) for row, is_read in zip(rows, observed, strict=True)],
        [[next(indices) for _ in tree] for tree in trees] if shared else None,
        spans,
        width,
        model=model,
        device=device,
    )
    completion_mask, observation_mask = on_device(masks, device)
    return {
        "forest": forest,
        "completion_mask": completion_mask,
        "observation_mask": observation_mask,
    }


def padded(values: Sequence[Tensor], width: int) -> Tensor:
    """Return the values (T,) of rows' response tokens as one tensor (B, width), with zeros behind."""
    import torch

    dtype = values[0].dtype if len(values) else None
    table = torch.zeros(max(len(values), 1), width, dtype=dtype)
    for index, line in enumerate(values):
        table[index, : len(line)] = line
    return table


@dataclass(frozen=True, slots=True)
class Reader:
    """How rows are read: in which micro-batches, as trees or as padded rows, by which model."""

    limits: PolicyOptimization
    model: Any
    device: Any
    shares: bool  # whether rows are trees

    @classmethod
    def of(cls, config: PaWTraining, model: Any, device: Any) -> Reader:
        """Return how rows are read by the settings; None are what suits the device."""
        import torch

        limits = config.optimization
        is_on_cpu = torch.device(device).type == "cpu"
        return cls(limits, model, device, is_on_cpu if limits.trees is None else limits.trees)

    def micro_batches(
        self, indices: Sequence[int], rows: Sequence[PaWRow], token_ids: Sequence[Sequence[int]]
    ) -> list[MicroBatch]:
        """Return some of the rows in micro-batches, by their numbers; `token_ids` are all rows'."""
        from ..trees import grouped

        # A row with a key of its own shares no tree.
        keys = list(indices)
        if self.shares:
            keys = [rows[index].group for index in indices]
        return grouped(
            indices,
            keys,
            [token_ids[index] for index in indices],
            max_rows=self.limits.micro_batch_rows,
            max_tokens=self.limits.micro_batch_tokens,
        )

    def read(self, trees: Sequence[Sequence[PaWRow]], observed: Sequence[bool]) -> dict[str, Any]:
        """Return a micro-batch in tensors."""
        return micro_batch(trees, observed, self.model, self.device, shared=self.shares)

    def responses(self, rows: Sequence[PaWRow]) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
        """Yield micro-batches that score responses alone: the rows' numbers, and what is read.

        Where the model is sharded, all processes have as many; some of them may have no rows.
        """
        token_ids = [row.tokens(False) for row in rows]
        for micro in level(self.micro_batches(range(len(rows)), rows, token_ids), ()):
            indices = tuple(chain.from_iterable(micro))
            trees = [[rows[index] for index in tree] for tree in micro]
            yield indices, self.read(trees, [False] * len(indices))


def in_order(
    tables: Sequence[Tensor], indices: Sequence[int], rows: Sequence[PaWRow]
) -> list[Tensor]:
    """Return each row's values (T,) on the CPU, of micro-batches that have the rows in another order."""
    import torch

    # One copy of all, since a GPU is waited for at each.
    if not tables:
        return []
    flat = torch.cat([table.flatten() for table in tables]).cpu()
    lines: list[Tensor] = []
    for values, table in zip(flat.split([table.numel() for table in tables]), tables, strict=True):
        lines += values.view(table.shape).unbind()
    line_of_row = dict(zip(indices, lines, strict=True))
    return [line_of_row[index][: len(row.response_ids)] for index, row in enumerate(rows)]
