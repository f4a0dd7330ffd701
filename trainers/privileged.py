"""The privileged prompt of the world model's teacher (METHODS.md 1.1, prompt 4): for training only.

The teacher is shown what the environment really answered. Nothing that plays, predicts or evaluates may
import this module: `tests/trainers` searches every prompt that inference builds for the block that it
adds.
"""

from __future__ import annotations

from ..lm import Message
from ..lm.prompts import cut_text
from ..worldmodel import Query
from ..worldmodel.language import LanguageWorldModel

__all__ = ["privileged_prompt"]


def privileged_prompt(model: LanguageWorldModel, query: Query, truth: str) -> tuple[Message, ...]:
    """Return the world model's prompt with the real next observation in it, clearly marked.

    Args:
        model: The world model: says style, state text and sizes.
        query: What is asked.
        truth: What was really observed; cut to a quarter of the model's length.
    """
    told = cut_text(truth, model.max_length // 4, model.lm.count_tokens)
    return model.fill(query, __package__ or "", "privileged", truth=told)
