"""Asking a server of a test as a language model: for tests of what is sent and read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError
from comap.lm import (
    Completion,
    Generate,
    Message,
    answer,
)
from comap.lm.openai import OpenAILanguageModel

hostile = load(f"{Path(__file__).with_name('hostile_server.py')}:KIT")
MESSAGES = (Message("system", "Be brief."), Message("user", "What now?"))
LOCAL = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def made(server: Any, **options: Any) -> OpenAILanguageModel:
    options = {"backoff": 0.01, "timeout": 5, "max_retries": 1, **options}
    return OpenAILanguageModel("tiny", server.url, **options)


def ask(model: OpenAILanguageModel, **fields: Any) -> Completion:
    (reply,) = model.generate([Generate(MESSAGES, **fields)])
    assert isinstance(reply, Completion), reply
    return reply


def error_of(model: OpenAILanguageModel, *requests: Any) -> str:
    replies = answer(model, requests)
    assert all(isinstance(reply, LanguageModelError) for reply in replies)
    return str(replies[0])


def logprobs_of(*values: float) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": value} for value in values]}


def refuses(field: str, message: str, status: int = 400) -> Any:
    def behaviour(handler: Any) -> None:
        refused = field in handler.body
        (hostile.sends({"error": {"message": message}}, status) if refused else hostile.says())(
            handler
        )

    return behaviour


KIT = sys.modules[__name__]
"""This module, for tests: ``load("openai_kit.py:KIT")``."""
