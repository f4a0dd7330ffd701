"""What WKM's two models learn from, and the questions whose answers the knowledge model learns.

METHODS.md 3, WKM. Task knowledge is written by a language model that sees an expert's episode and a
failed one; the knowledge model learns to write it from the task alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...agents.acting import seed_for
from ...agents.base import View, estimate_tokens
from ...agents.knowing import state_request, task_request
from ...agents.knowledge import Knowledge
from ...agents.prompting import instructions
from ...agents.wkm import WKMConfig, acting_prompt
from ...lm import Generate, Message
from ...lm.prompts import OVERHEAD, cut_text, fill_template, recent_turns
from ...trajectory import Trajectory, Turn
from ..policy_samples import shown_steps
from ..replayed import views_of
from ..samples import Sample

__all__ = [
    "agent_samples",
    "comparison",
    "knowledge_entries",
    "state_questions",
    "state_samples",
    "task_samples",
]

_LEFT_OUT = "[...]"


def comparison(
    expert: Trajectory,
    failed: Trajectory | None,
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Generate:
    """Return the question for task knowledge to a model that sees how it went.

    Args:
        expert: The expert's episode of the task.
        failed: One of the same task that failed; None where there is none.
        config: How the agent will ask.
        count_tokens: Counts the tokens of a text as the language model does.
    """
    name = "wkm_expert" if failed is None else "wkm_compare"
    slots = {
        "instructions": instructions(expert.env_id),
        "goal": cut_text(expert.goal, config.max_length // 8, count_tokens),
    }
    told = {"expert": expert} if failed is None else {"expert": expert, "failed": failed}
    bare = _fill(config, name, slots | dict.fromkeys(told, ""))
    room = config.max_length - config.task_tokens
    room -= sum(count_tokens(message.content) + OVERHEAD for message in bare)
    each = max(room // len(told), 64)
    slots |= {key: _transcript(one, each, count_tokens) for key, one in told.items()}
    heat = config.knowledge_temperature
    seed = seed_for(config, next(views_of(expert))[0], "task knowledge from episodes")
    sampling = config.sampling(config.task_tokens, ("\n---",), seed, temperature=heat, top_p=1.0)
    return Generate(
        _fill(config, name, slots),
        sampling,
        adapter=config.knowledge_adapter,
        purpose="task knowledge from episodes",
    )


def state_questions(
    shown: Trajectory,
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> list[Generate]:
    """Return the question for state knowledge in each of an episode's states.

    Args:
        shown: The episode.
        config: How the agent will ask.
        count_tokens: Counts the tokens of a text as the language model does.
    """
    return [state_request(view, config) for view, _, _ in views_of(shown, count_tokens)]


def knowledge_entries(shown: Trajectory, states: Sequence[str]) -> Iterator[Knowledge]:
    """Yield an entry of the knowledge base for each of an episode's states.

    Args:
        shown: The episode.
        states: Each of its states in words.
    """
    before = ""
    for step, state in zip(shown.steps, states, strict=True):
        yield Knowledge(state.strip(), before, step.action)
        before = step.action


def task_samples(
    demos: Iterable[Trajectory],
    known: Mapping[str, str],
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield what the knowledge model learns at an episode's beginning: task knowledge.

    Args:
        demos: Demonstrations.
        known: The task knowledge of each task; tasks without are left out.
        config: How the agent will ask: the prompts are the agent's own, without any episode.
        count_tokens: Counts the tokens of a text as the language model does.
    """
    for shown in demos:
        text = known.get(shown.task, "").strip()
        if text and shown.steps:
            view = next(views_of(shown, count_tokens))[0]
            yield _sample("task_knowledge", task_request(view, config).messages, text, view)


def state_samples(
    demos: Iterable[Trajectory],
    states: Mapping[str, Sequence[str]],
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield what the knowledge model learns in each state: state knowledge.

    Args:
        demos: Demonstrations.
        states: Of each task, its states in words.
        config: How the agent will ask.
        count_tokens: Counts the tokens of a text as the language model does.
    """
    for shown in demos:
        if shown.task not in states:
            continue
        views = views_of(shown, count_tokens)
        for (view, _, _), text in zip(views, states[shown.task], strict=True):
            if text.strip():
                asked = state_request(view, config).messages
                yield _sample("state_knowledge", asked, text.strip(), view)


def agent_samples(
    demos: Iterable[Trajectory],
    known: Mapping[str, str],
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield what the agent learns: the expert's replies, with task knowledge in the prompt.

    State knowledge is not in it, as it is not where the agent acts (METHODS.md 3).

    Args:
        demos: Demonstrations.
        known: The task knowledge of each task; where there is none, prompts are without.
        config: How the agent will ask.
        count_tokens: Counts the tokens of a text as the language model does.

    Example:
        >>> list(agent_samples([], {}, WKMConfig()))
        []
    """
    for shown in demos:
        knowledge = known.get(shown.task, "") if config.task_knowledge else ""
        for view, replies, _, reply in shown_steps(shown, count_tokens):
            asked = acting_prompt(view, config, replies, knowledge)
            yield _sample("expert_action", asked, reply, view)


def _sample(kind: str, messages: tuple[Message, ...], text: str, view: View) -> Sample:
    return Sample(
        kind=kind, messages=messages, reply=((text, True),), task=view.task, step=view.step
    )


def _fill(config: WKMConfig, name: str, slots: Mapping[str, str]) -> tuple[Message, ...]:
    return fill_template(__package__ or "", config.prompts, name, **slots)


def _transcript(shown: Trajectory, budget: int, count: Callable[[str], int]) -> str:
    """Return an episode as text: its first observation, then the newest turns that fit."""
    first = cut_text(shown.observation, budget // 2, count)
    turns = [Turn(step.action, step.observation) for step in shown.steps]
    kept = recent_turns(turns, budget - count(first) - count(_LEFT_OUT), count)
    lines = [first, _LEFT_OUT] if len(kept) < len(turns) else [first]
    for turn in kept:
        lines += [f"> {turn.action}", turn.observation]
    return "\n".join(lines)
