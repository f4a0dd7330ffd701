"""Past episodes as the agent saw them: from them, its prompts can be built again for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..agents.base import View, estimate_tokens
from ..trajectory import Step, Trajectory, Turn

__all__ = ["views_of"]


def views_of(
    trajectory: Trajectory, count_tokens: Callable[[str], int] = estimate_tokens
) -> Iterator[tuple[View, dict[int, str], Step]]:
    """Yield what the agent saw before each step, its replies so far, and the step.

    With the view and the replies `CoMapAgent.question` and `converse` build the prompts of the episode
    again, if `count_tokens` counts as the agent's language model did. A view has no admissible actions,
    since trajectories do not record them: where a long history had to be cut, the prompts of masked
    and scored decoding in standard style may begin at another turn than they did.

    Args:
        trajectory: The episode; of an agent that notes no replies (an expert), conversations show its
            actions alone.
        count_tokens: Counts the tokens of a text as the language model in training does.

    Yields:
        The view; a copy of the replies that conversations show, by step from 0, which is also in the
        view's memory; the step itself.

    Example:
        >>> from comap.facts import State
        >>> episode = Trajectory("id", "task", "train", "Wait.", "agent", "Hello.", State())
        >>> list(views_of(episode))
        []
    """
    replies: dict[int, str] = {}
    history = [Turn(None, trajectory.observation)]
    for number, (facts, step) in enumerate(trajectory.transitions()):
        shown_so_far = dict(replies)
        view = View(
            trajectory.env_id,
            trajectory.task,
            trajectory.goal,
            tuple(history),
            facts,
            None,
            number,
            lambda: None,
            count_tokens,
            {"replies": shown_so_far},
            trajectory.trial,
            trajectory.seed or 0,
        )
        yield view, shown_so_far, step
        shown = step.notes.get("shown")
        if isinstance(shown, str):
            replies[number] = shown
        history.append(Turn(step.action, step.observation))
