"""The reply that the reflect mode is trained to give, in the parts in which it is generated."""

from __future__ import annotations

from collections.abc import Callable

from ..agents.base import estimate_tokens
from ..agents.comap import CoMapConfig
from ..agents.parsing import first_line
from ..errors import OptionError
from ..lm.prompts import cut_text
from .samples import Segment

__all__ = ["on_one_line", "reflect_reply"]


def on_one_line(action: str) -> bool:
    r"""Return whether an action is text on one line, as a reply can name it.

    Example:
        >>> on_one_line("look"), on_one_line("look\nDecision: REVISE"), on_one_line(" ")
        (True, False, False)
    """
    return len(action.splitlines()) == 1 and bool(action.strip())


def reflect_reply(
    config: CoMapConfig,
    revise: bool,
    action: str,
    analysis: str = "",
    *,
    form_loss: bool | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> tuple[Segment, ...]:
    r"""Return the reply of the reflect mode (METHODS.md 1.1, prompt 3) as segments.

    The decision and the final action carry loss. The analysis is the policy's own and carries none: it
    only stands before them (METHODS.md 1.6, step 6). Where the model states its probability
    (``p_source="verbal"``) that line follows, as sure as the label is [D]. Words are cut off with the
    space before them, as masked decoding and the reading of p cut them.

    Args:
        config: Brief prompts have no analysis.
        revise: The label.
        action: The final action, on one line.
        analysis: The reflection; its first line is taken, and cut to ``config.reflect_tokens``.
        form_loss: Whether the words of the form carry loss too. None: with brief prompts, as a small
            model has to learn the form, but not with standard ones, which tell it [D].
        count_tokens: Counts the tokens of a text.

    Raises:
        OptionError: The action is not on one line.

    Example:
        >>> from comap.agents.comap import CoMapConfig
        >>> for segment in reflect_reply(CoMapConfig(), True, "look", "It is shut."):
        ...     print(segment)
        ('Reflection: It is shut.\nDecision:', False)
        (' REVISE', True)
        ('\nFinal Action:', False)
        (' look', True)
    """
    if not on_one_line(action):
        raise OptionError(f"expected an action on one line, found {action!r:.120}")
    form = config.prompts == "brief" if form_loss is None else form_loss
    said = first_line(analysis) if config.prompts == "standard" else ""
    said = first_line(cut_text(said, config.reflect_tokens, count_tokens))
    reply: list[Segment] = [("Decision:", form)]
    if said and form:
        reply.insert(0, (f"Reflection: {said}\n", False))
    elif said:  # one piece, as the reading of p tokenises it
        reply = [(f"Reflection: {said}\nDecision:", False)]
    reply += [
        (" REVISE" if revise else " KEEP", True),
        ("\nFinal Action:", form),
        (f" {action.strip()}", True),
    ]
    if config.p_source == "verbal":
        reply += [("\nRevise Probability:", form), (" 1.0" if revise else " 0.0", True)]
    return tuple(reply)
