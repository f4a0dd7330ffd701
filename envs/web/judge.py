"""A language model as judge: of a whole episode, of an answer, and of what a key node asks for.

The protocols are published, the words are ours (``data/judge.json``). WebVoyager's judge says SUCCESS
or NOT SUCCESS (He et al., 2024), of the texts of all pages, as WebEvolver asks it (Fang et al., 2025);
GAIA-web's says ``Score: 1`` or ``Score: 0`` of two answers; a semantic key node of Mind2Web-Live gets a
number from 0 to 1 (Pan et al., 2024). What pages and agents wrote is data: each of its lines begins
with ``| ``, and nothing but the model's own reply is read, never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...errors import LanguageModelError, OptionError
from ...lm import Generate, LanguageModel, Message, Sampling, create_language_model
from ..storage import packaged

_SAMPLING = Sampling(max_new_tokens=1000, seed=42)  # as WebVoyager and WebEvolver judge
_SCORE = re.compile(r"Score:\s*\[?\s*([01])\b")
_SHARE = re.compile(r"```\s*(0|1|[01]?\.\d{1,4})\s*```|^\s*(0|1|[01]?\.\d{1,4})\s*$")
_SLOT = re.compile(r"\{(\w+)\}")


class Judge:
    """Asks a language model for verdicts; temperature 0, one reply each.

    Args:
        model: A language model, or its name as for ``comap run --model``.

    Raises:
        OptionError: `model` is neither.
    """

    def __init__(self, model: LanguageModel | str):
        if isinstance(model, str):
            model = create_language_model(model)
        if not callable(getattr(model, "generate", None)):
            raise OptionError(
                f"judge must be a language model or its name, not {type(model).__name__}; such as "
                "'http://127.0.0.1:8000/v1#NAME'"
            )
        self._model = model
        self._agreements: dict[tuple[str, str], float] = {}
        self.name = str(getattr(model, "name", type(model).__name__))

    def success(self, goal: str, answer: str, pages: Sequence[str]) -> bool | None:
        """Return whether a task was done, by goal, answer and the texts of all pages; None if unsure."""
        pages_text = "\n".join(
            f"Page {number}:\n{_data(page)}" for number, page in enumerate(pages, 1)
        )
        reply = self._ask("success", task=_data(goal), answer=_data(answer), pages=pages_text)

        # As WebVoyager reads it: "NOT SUCCESS" anywhere outweighs all else that was said.
        if "SUCCESS" not in reply:
            return None
        return "NOT SUCCESS" not in reply

    def same(self, question: str, answer: str, truth: str) -> bool | None:
        """Return whether an answer says what the true one says; None if the reply has no score."""
        scores = _SCORE.findall(
            self._ask("same", task=_data(question), answer=_data(answer), truth=_data(truth))
        )
        return scores[-1] == "1" if scores else None

    def agreement(self, text: str, rule: str) -> float:
        """Return how far a text is what a rule asks for, 0 to 1; 0 where the reply has no number."""
        if (text, rule) not in self._agreements:  # a node is asked about at each step
            number = _SHARE.search(self._ask("agreement", text=_data(text), rule=_data(rule)))
            share = float(number[1] or number[2]) if number else 0.0
            self._agreements[text, rule] = round(min(share, 1.0), 2)
        return self._agreements[text, rule]

    def _ask(self, kind: str, **slots: str) -> str:
        prompts: dict[str, Any] = packaged(__package__, "judge")[kind]

        # All slots are filled at once: a page that says "{task}" is data, and fills nothing.
        user = _SLOT.sub(lambda slot: slots[slot[1]], prompts["user"])
        messages = (Message("system", prompts["system"]), Message("user", user))
        replies = self._model.generate([Generate(messages, _SAMPLING, purpose="judge")])
        if isinstance(replies[0], LanguageModelError):
            raise replies[0]
        return replies[0].text


def _data(text: str) -> str:
    """Return a text so that none of its lines can pass for one of the prompt."""
    return "\n".join(f"| {line}" for line in text.splitlines() or [""])
