"""What ITP learns from before it plays: the expert's steps, with foresight and a depth each.

METHODS.md 3, ITP_R. ``obs@K`` of a step t is what the world model predicts of the expert's step
t + K - 1 from the expert's real state there (not a chain of predictions); past the end it is the last
one. The label of a step is the K that maximises ``log pi(a* | s, obs@K) - 0.2 K``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...agents.base import View, estimate_tokens
from ...agents.itp import NO_FORESIGHT, ITPAgent
from ...agents.prompting import converse
from ...errors import LanguageModelError
from ...lm import Encode, Message, Score
from ...lm.chat import ChatTokenizer
from ...trajectory import Step, Trajectory
from ..examples import Example, encode_samples
from ..policy_samples import shown_steps
from ..samples import Sample

__all__ = [
    "DepthExample",
    "Moment",
    "control_tokens",
    "encode_moments",
    "label_counts",
    "moments_of",
    "observation_at",
    "scores_of",
]


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of an expert, as ITP learns from it.

    Attributes:
        view: What there was to see.
        replies: The replies until then.
        step: The step.
        reply: The expert's reply, with its action.
        predictions: What the world model predicts of each step of the episode.
    """

    view: View
    replies: dict[int, str]
    step: Step
    reply: str
    predictions: tuple[str, ...]

    def foresight(self, agent: ITPAgent, k: int) -> str:
        """Return what the agent reads where it has looked K steps ahead.

        Args:
            agent: The agent: its settings say how long that may be.
            k: K.
        """
        text = observation_at(self.predictions, self.view.step, k)
        return NO_FORESIGHT if text is None else agent.foresight_of(text, self.view.count_tokens)


def observation_at(predictions: Sequence[str], step: int, k: int) -> str | None:
    """Return obs@K: the prediction of the expert's step ``step + K - 1``; None for K = 0.

    Args:
        predictions: The prediction of each of the expert's steps, each from the real state before it.
        step: The number of the step, from 0.
        k: K.

    Example:
        >>> [observation_at(["a", "b", "c"], 1, k) for k in range(4)]
        [None, 'b', 'c', 'c']
    """
    return None if k == 0 else predictions[min(step + k - 1, len(predictions) - 1)]


def moments_of(
    shown: Trajectory,
    predictions: Sequence[str],
    admissible: Sequence[tuple[str, ...] | None] | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Moment]:
    """Yield each step of a demonstration.

    Args:
        shown: The demonstration.
        predictions: What the world model predicts of each of its steps.
        admissible: The admissible actions before each, where prompts list them; None for none.
        count_tokens: Counts the tokens of a text as the policy's model does.

    Yields:
        The steps; those after which the environment had ended are left out.
    """
    for view, replies, step, reply in shown_steps(shown, count_tokens):
        if admissible is not None and view.step >= len(admissible):
            return
        seen = (
            view if admissible is None else replace(view, admissible_actions=admissible[view.step])
        )
        yield Moment(seen, replies, step, reply, tuple(predictions))


def scores_of(moment: Moment, agent: ITPAgent, k_max: int, adapter: str | None) -> list[Score]:
    """Return the requests for ``log pi(a* | s, obs@K)``, for K from 0 to the greatest.

    Args:
        moment: The expert's step.
        agent: How the policy is asked.
        k_max: The greatest K.
        adapter: Who answers.
    """
    action = f" {moment.step.action}"
    return [
        Score(
            agent.act_prompt(moment.view, moment.foresight(agent, k), moment.replies),
            (action,),
            "Action:",
            True,
            adapter,
            f"depth {k}",
        )
        for k in range(k_max + 1)
    ]


@dataclass(frozen=True, slots=True)
class DepthExample(Example):
    """A row with, perhaps, a depth to be read at the end of a second sequence.

    Attributes:
        control: The tokens of the prompt that ends with the control text; none where there is no
            depth to learn.
        depth: The depth K that is right there.

    Example:
        >>> len(DepthExample((1, 2), (3,), (True,), control=(1, 2, 9), depth=0))
        6
    """

    control: tuple[int, ...] = ()
    depth: int = 0

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer) + len(self.control)

    @classmethod
    def of(cls, row: Example, **told: Any) -> DepthExample:
        """Return a row with what is told besides.

        Args:
            row: The row.
            **told: Fields of this class.
        """
        return cls(**{part.name: getattr(row, part.name) for part in fields(Example)}, **told)


def encode_moments(
    tokenizer: Any,
    agent: ITPAgent,
    moments: Sequence[Moment],
    depths: Sequence[int],
    *,
    draft_weight: float = 0.0,
    max_length: int = 2048,
) -> list[DepthExample]:
    """Return the rows of the supervised stage: for each step its action and depth.

    Args:
        tokenizer: The policy's tokenizer.
        agent: How the policy is asked.
        moments: The expert's steps.
        depths: The label of each.
        draft_weight: Weight of a further row for each step: the action without foresight, as the agent
            drafts; 0 for none.
        max_length: The most tokens of prompt and reply.

    Raises:
        LanguageModelError: A prompt cannot be made into tokens.
        OptionError: A prompt leaves no room for a reply.
    """
    acts = [
        _sample("act", moment, agent.act_prompt(moment.view, ahead, moment.replies))
        for moment, depth in zip(moments, depths, strict=True)
        for ahead in (moment.foresight(agent, depth),)
    ]
    controls = control_tokens(
        tokenizer,
        agent.config.control,
        [agent.depth_prompt(moment.view, moment.replies) for moment in moments],
    )
    rows = [
        DepthExample.of(row, control=control, depth=depth)
        for row, control, depth in zip(
            encode_samples(tokenizer, acts, max_length), controls, depths, strict=True
        )
    ]
    if draft_weight:
        drafts = [
            _sample(
                "draft", moment, converse(moment.view, agent.config, moment.replies), draft_weight
            )
            for moment in moments
        ]
        rows += [DepthExample.of(row) for row in encode_samples(tokenizer, drafts, max_length)]
    return rows


def control_tokens(
    tokenizer: Any, control: str, prompts: Sequence[tuple[Message, ...]]
) -> list[tuple[int, ...]]:
    """Return the tokens of prompts with the control text after each, as `Encode` has them.

    Args:
        tokenizer: The policy's tokenizer.
        control: The control text.
        prompts: The prompts.

    Raises:
        LanguageModelError: One cannot be made into tokens.
    """
    found = []
    for tokens in ChatTokenizer(tokenizer).prompts([Encode(one, control) for one in prompts]):
        if isinstance(tokens, LanguageModelError):
            raise tokens
        found.append(tuple(tokens))
    return found


def label_counts(depths: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return how often each depth is a label.

    Example:
        >>> label_counts({"task": [0, 2, 2]})
        {'0': 1, '2': 2}
    """
    every = [depth for some in depths.values() for depth in some]
    return {str(depth): every.count(depth) for depth in sorted(set(every))}


def _sample(
    kind: str, moment: Moment, messages: tuple[Message, ...], weight: float = 1.0
) -> Sample:
    return Sample(
        kind=kind,
        messages=messages,
        reply=((moment.reply, True),),
        weight=weight,
        task=moment.view.task,
        step=moment.view.step,
    )
