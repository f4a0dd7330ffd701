"""A language model that makes up what a tool would answer, as StableToolBench's simulator does."""

from __future__ import annotations

import json
from typing import Any

from ...errors import LanguageModelError, OptionError
from ...lm.base import Generate, LanguageModel, Message, Sampling
from ...lm.create import create_language_model, kind_of
from .backends import BackendFault, Hit, Request
from .values import NotJSON, read_json_text

__all__ = ["Simulator", "simulator_model"]

_TOKENS = 1024
_ROLE = (
    "You play a web service for tests. You are given the documentation of one of its functions and a "
    "request. Answer as the service would: plausible, consistent with the request, and in the form "
    "that the documentation implies. If the request lacks what is required or makes no sense, "
    'the service answers with an error. Reply with one JSON object and nothing else: {"error": "", '
    '"response": ...} or {"error": "what is wrong", "response": ""}.'
)


class Simulator:
    """Asks a language model to answer in a tool's place.

    Args:
        model: Any language model that can generate.

    Example:
        >>> class Echo:
        ...     def generate(self, requests):
        ...         from comap.lm.base import Completion
        ...         return [Completion('{"error": "", "response": 7}') for _ in requests]
        >>> Simulator(Echo()).answer(Request("Food", "cocktails", "count", {}))
        Hit(error='', response=7, source='sim')
    """

    name = "sim"

    def __init__(self, model: LanguageModel):
        self.model = model

    def answer(self, request: Request) -> Hit | None:
        """Return what the model makes up.

        Raises:
            BackendFault: It fails, or writes no answer.
        """
        asked = Generate(_messages(request), Sampling(max_new_tokens=_TOKENS), purpose="simulate")
        try:
            (reply,) = self.model.generate([asked])
        except LanguageModelError as error:
            raise BackendFault(f"{str(error)[:200]}") from None
        if isinstance(reply, LanguageModelError):
            raise BackendFault(f"{str(reply)[:200]}")
        return _read(reply.text)


def simulator_model(model: Any, timeout: float, retries: int) -> LanguageModel:
    """Return the language model that an option names, or is.

    Raises:
        OptionError: It is neither a model nor the name of one.
        MissingExtra: A package is missing.
    """
    if isinstance(model, str):
        patience: dict[str, Any] = {}
        if kind_of(model) == "remote":
            patience = {"timeout": timeout, "max_retries": retries, "backoff": 0.1}
        return create_language_model(model, **patience)
    if not callable(getattr(model, "generate", None)):
        raise OptionError(
            f"simulator must be a language model or its name, not {type(model).__name__}; such as "
            "'http://127.0.0.1:8000/v1#NAME'"
        )
    found: LanguageModel = model
    return found


def _messages(request: Request) -> tuple[Message, ...]:
    told: dict[str, Any] = {"category": request.category, "tool": request.tool, "api": request.api}
    if request.offer is not None:
        told |= {"tool_title": request.offer.tool_title, **request.offer.schema()}
    documentation = json.dumps(told, ensure_ascii=True, default=str)
    asked = json.dumps(dict(request.arguments), ensure_ascii=True, default=str)
    return (
        Message("system", _ROLE),
        Message("user", f"Documentation: {documentation}\nRequest: {asked}"),
    )


def _read(text: str) -> Hit:
    start, end = text.find("{"), text.rfind("}")
    try:
        data = read_json_text(text[start : end + 1])
    except NotJSON:
        raise BackendFault("the model wrote no JSON object") from None
    if not isinstance(data, dict) or "response" not in data:
        raise BackendFault("the model wrote an object without a response")
    error = data.get("error") or ""
    return Hit(error if isinstance(error, str) else json.dumps(error), data["response"], "sim")
