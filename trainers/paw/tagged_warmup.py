"""Demonstrations as PaW's agent would have played them: its prompts, and replies in tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...agents.paw import PaWAgent, PaWConfig
from ...agents.tags import env_name
from ...envs.searchqa.protocol import read_move
from ...errors import DataCorrupt, LanguageModelError, OptionError
from ...lm import Completion
from ...lm.chat import ChatTokenizer
from ...lm.sft import Row
from ...trajectory import Trajectory
from ..replayed import views_of

__all__ = ["tagged_reply", "tagged_rows"]

_THOUGHTS = {"search": "I must look this up.", "answer": "I know enough now."}


def tagged_rows(
    demonstrations: Iterable[Trajectory], config: PaWConfig, model: str | Path
) -> Iterator[Row]:
    """Yield a row for each step of demonstrations in search QA: the agent's prompt, a reply in tags.

    Prompts are made by the agent itself, as it would make them had it written these replies: where the
    conversation goes on, each reply stands in later prompts in the tokens that it was taught in.

    Args:
        demonstrations: What an expert did.
        config: How the agent asks.
        model: The folder of the model, whose tokenizer counts.

    Raises:
        OptionError: The demonstrations are of another environment.
        DataCorrupt: A conversation becomes too long, or an action is no search and no answer.
    """
    from ...lm.hf_load import load_tokenizer

    chat = ChatTokenizer(load_tokenizer(Path(model), None))
    for demonstration in demonstrations:
        yield from _played(demonstration, PaWAgent(config), chat)


def tagged_reply(action: str) -> str:
    """Return the reply of a policy that takes an action of search QA, with a short thought.

    Args:
        action: A search or an answer in tags.

    Raises:
        DataCorrupt: It is neither.

    Example:
        >>> tagged_reply("<search>Emma</search>")
        '<think>I must look this up.</think><search>Emma</search>'
    """
    move = read_move(action)
    if not move.kind:
        raise DataCorrupt(f"expected a search or an answer in tags, found {action!r:.80}")
    return f"<think>{_THOUGHTS[move.kind]}</think><{move.kind}>{move.text}</{move.kind}>"


def _played(demonstration: Trajectory, agent: PaWAgent, chat: ChatTokenizer) -> Iterator[Row]:
    """Let the agent play a demonstration, with replies that it is given."""
    if env_name(demonstration.env_id) != "searchqa":
        raise OptionError(
            "expected demonstrations of search QA for a warm-up in tags, found some of "
            f"{demonstration.env_id!r}; give a model that can write tags and warmup_tokens=0, or "
            "prompts='brief'"
        )
    memory: dict[str, Any] = {}
    for view, _, step in views_of(demonstration, chat.count):
        deciding = agent.decide(replace(view, memory=memory))
        try:
            asked: Any = next(deciding)
        except StopIteration:
            raise DataCorrupt(
                f"expected a demonstration that fits into {agent.config.max_length} tokens, found a "
                f"longer one (task {demonstration.task!r:.80}); raise prompt_tokens"
            ) from None
        text = tagged_reply(step.action)
        (prompt,), (spoken,) = chat.prompts([asked]), chat.tokens([text])
        if isinstance(prompt, LanguageModelError):
            raise prompt
        ids = (*spoken, chat.end)
        with suppress(StopIteration):
            deciding.send(
                Completion(text, ids, prompt_tokens=len(prompt), completion_tokens=len(ids))
            )
        yield Row(asked.messages, text, asked.reply_ids)
