"""What a row is made of: the reply of a step, and what follows it, in text and tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...errors import LanguageModelError, OptionError
from ...lm.chat import ChatTokenizer
from ...lm.turns import Following
from ...trajectory import Call, Step, Trajectory

__all__ = [
    "PURPOSES",
    "Following",
    "TurnTokenizer",
    "continued",
    "fault_of",
    "observed_text",
    "reply_of",
]

PURPOSES = ("act", "draft", "draft: retry")
"""What agents ask their language model for when they ask for an action."""

_REMEMBERED = (
    4096  # texts whose tokens are kept: an update has many equal ones, a training does not
)
_SEPARATOR = " [SEP] "
_SCORE = re.compile(
    r"(Your score\b(?: \([^()\n]*\))?['\"]?)"
    r"\s{0,4}(?:\[SEP\]|:|=|is\b)?\s{0,4}['\"]?[-+]?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?['\"]?"
)


class TurnTokenizer(ChatTokenizer):
    """Makes prompts as generation does, and the tokens of the user's message after a reply.

    What stands around that message is the chat template's own: it is read off a conversation that the
    template renders. The text is tokenised by itself, so that each token belongs to it or to the
    template; where a tokenizer would merge the two (a space before the first word), the tokens differ
    from those of the same text in a later prompt. Whatever in the text is written like a control
    token is broken up, as in every message.

    Args:
        tokenizer: A tokenizer that has a chat template.
        ends: Tokens that end generation, from the model's configuration.

    Raises:
        LanguageModelError: See `ChatTokenizer`; or the template does not show what is said.

    Example:
        >>> from comap.lm.tiny import tokenizer_of
        >>> tokenizer = tokenizer_of(["It is dark."] * 2, 320)
        >>> turn = TurnTokenizer(tokenizer).following((5,), "It is dark.", 8)
        >>> [tokenizer.decode(part) for part in turn]
        ['<|end|><|user|>', 'It is dark.', '<|end|>']
    """

    def __init__(self, tokenizer: Any, ends: Iterable[int] = ()) -> None:
        super().__init__(tokenizer, ends)
        _ = self.turns  # a template that cannot be used is refused at once

    def following(self, response: Sequence[int], text: str, longest: int) -> Following:
        """Return the tokens that follow a reply.

        Args:
            response: The tokens of the reply. If the last of them does not end a message, the header
                does so first.
            text: What the user says then.
            longest: The most tokens of that; it is cut at its end.
        """
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        (tokens,) = self.tokens([self.turns.shown(text)])
        return self.turns.following(response, tokens[:longest]) if tokens else Following()


def observed_text(env_id: str, step: Step, *, strip_score: bool = True) -> str:
    """Return the text of an observation as PaW predicts it (METHODS.md 2.3); empty if there is none.

    It is what the environment said, but for WebShop, where the instruction, which every page repeats,
    is left out and the parts of a page are quoted; and for SearchQA, where nothing follows an answer.

    Args:
        env_id: The environment.
        step: The step that led to the observation.
        strip_score: Leave out the number on WebShop's last page, which tells the reward.

    Example:
        >>> from comap.facts import Delta, State
        >>> page = "Thank you! [SEP] Your score (min 0.0, max 1.0) [SEP] 0.5"
        >>> step = Step(1, "click[buy now]", page, 0.5, True, False, False, State(), Delta())
        >>> observed_text("comap/WebShop-v0", step)
        "'Thank you!' [SEP] 'Your score (min 0.0, max 1.0)'"
    """
    name = env_id.rpartition("/")[2].partition("-v")[0]
    clean = _CLEAN.get(name)
    return step.observation if clean is None else clean(step, strip_score)


def _page(step: Step, strip_score: bool) -> str:
    """Return a page of WebShop without the instruction, its parts quoted."""
    text = step.observation
    if strip_score and step.terminated:
        text = _SCORE.sub(r"\1", text)
    parts = text.split(_SEPARATOR)
    if len(parts) == 1 or text.startswith("'"):  # a page in lines, or quoted already
        return text
    if "Instruction:" in parts:
        parts = parts[parts.index("Instruction:") + 2 :]
    return _SEPARATOR.join(f"'{part}'" for part in parts)


def _found(step: Step, strip_score: bool) -> str:
    """Return what a search found; nothing follows the answer, which ends the episode."""
    return "" if step.terminated else step.observation


_CLEAN: dict[str, Callable[[Step, bool], str]] = {"WebShop": _page, "SearchQA": _found}


def fault_of(trajectory: Trajectory) -> str | None:
    """Return why an episode has no rows, or None where it has some.

    What a fault has ended has no return that means anything; and where a language model failed and
    the agent acted nevertheless, its action is not the model's.

    Example:
        >>> from comap.facts import State
        >>> fault_of(Trajectory("id", "task", "train", "goal", "agent", "Hello.", State()))
        'no step was taken'
    """
    if trajectory.error is not None:
        return trajectory.error
    if not trajectory.steps:
        return "no step was taken"
    for step in trajectory.steps:
        if _own_call(step) is None:
            return f"the language model wrote no action at step {step.t}"
    return None


def reply_of(trajectory: Trajectory, step: Step) -> Call:
    """Return the call whose reply is a step's action, of an episode that has rows.

    Raises:
        OptionError: The episode was played without keeping tokens, or by a language model that does
            not tell them.
        LanguageModelError: There are not as many log-probabilities as tokens.

    Example:
        >>> from comap.facts import Delta, State
        >>> call = Call("generate", "act", "look", messages=(("user", "Hello."),), token_ids=(5,))
        >>> step = Step(1, "look", "Dark.", 0.0, True, False, False, State(), Delta(), calls=(call,))
        >>> episode = Trajectory("id", "t", "train", "goal", "paw", "Hello.", State(), (step,))
        >>> reply_of(episode, step).token_ids
        (5,)
    """
    call = _own_call(step)
    assert call is not None
    if call.messages is None:
        raise OptionError(
            "expected episodes with the prompts and tokens of all calls, found one without (task "
            f"{trajectory.task!r:.80}, step {step.t}); play with keep='tokens'"
        )
    if call.token_ids is None:
        raise OptionError(
            "expected the tokens that the language model wrote, found none (task "
            f"{trajectory.task!r:.80}, step {step.t}); play with keep='tokens' and a model that "
            "tells them: one in this process, or on a training server"
        )
    if call.logprobs is not None and len(call.logprobs) != len(call.token_ids):
        raise LanguageModelError(
            f"expected {len(call.token_ids)} log-probabilities, one for each token, found "
            f"{len(call.logprobs)} (task {trajectory.task!r:.80}, step {step.t})"
        )
    return call


def continued(steps: Sequence[Step], calls: Sequence[Call]) -> list[bool]:
    """Return of each step whether its conversation goes on from the one before; False for the next.

    Args:
        steps: The steps of an episode.
        calls: The call of each whose reply is its action, with the conversation.

    Example:
        >>> continued([], [])
        [False]
    """
    found = [False]
    for step, before, call in zip(steps[1:], calls, calls[1:], strict=False):
        said = (*(before.messages or ()), ("assistant", before.text))
        on = step.notes.get("context") == "concat"
        found.append(on and (call.messages or ())[:-1] == said)
    return [*found[: len(steps)], False]


def _own_call(step: Step) -> Call | None:
    """Return the call whose reply is the step's action."""
    for call in reversed(step.calls):
        if call.kind == "generate" and call.purpose in PURPOSES:
            return call
    return None
