"""A language model that records another one, and that answers from the record."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DataCorrupt, LanguageModelError
from .base import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    LMRequest,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
    answer,
)
from .record_file import RecordFile
from .records import nearest, reply_from_json, reply_to_json, request_key, request_to_json

__all__ = ["ReplayLanguageModel"]

_SCHEMA = 1
_REPLIES: dict[type, Any] = {
    Generate: Completion,
    Score: Scores,
    Words: WordProbabilities,
    Encode: Encoding,
}
Reply = TypeVar("Reply", Completion, Scores, WordProbabilities, Encoding)


def _checked_header(line: Any) -> dict[str, Any]:
    """Return the first line of a record.

    Raises:
        DataCorrupt: It is none.
    """
    header = line if isinstance(line, dict) else {}
    if header.get("kind") != "header" or header.get("schema") != _SCHEMA:
        raise DataCorrupt(
            f"expected the header of a record of schema {_SCHEMA}, found {line!r:.80}"
        )
    names, name, config = (header.get(part) for part in ("capabilities", "name", "config"))
    if not isinstance(name, str) or not isinstance(config, dict) or not isinstance(names, list):
        raise DataCorrupt("expected name, capabilities and config in a record's header")
    if not set(map(str, names)) <= CAPABILITIES:
        raise DataCorrupt(f"expected known capabilities in a record's header, found {names!r:.120}")
    return header


class ReplayLanguageModel:
    """Records what a model answers, or answers what was recorded.

    With a model, a request that is in the record is answered from it, and another one by the model,
    whose answer is then recorded. Without, a request that is not in the record is an error. What a
    request is *for* does not matter, and all else does, the seed too. So a program that asks the
    same again gets the same answers, without the model and on another machine.

    The record is a file of JSON lines: first the model's name, capabilities and configuration, then
    answers and token counts. Errors are not recorded. Several processes may record to one file at
    once; where two of them get different answers to the same request, both use the one that was
    recorded first. A line that a killed process left unfinished is dropped.

    Args:
        path: The file of the record.
        model: The model to record; None to replay only.
        name: How results call this model; None for the recorded model's name.

    Attributes:
        name: As given.
        capabilities: Those of the recorded model.
        usage: Requests and tokens of all answers, from the record or not, so that replaying counts
            what recording counted; retries and cost only of what the model was asked here.

    Raises:
        DataNotFound: There is no record, and no model to make one.
        DataCorrupt: A line of the record is not what it should be; the message has its number.
        LanguageModelError: The record is of another model, or `model` is no language model.

    Example:
        >>> import tempfile
        >>> from comap.lm import Generate, Message
        >>> class Echo:
        ...     name, capabilities, usage = "echo", frozenset({"generate"}), Usage()
        ...     def generate(self, requests):
        ...         return [Completion(request.messages[-1].content) for request in requests]
        ...     def score(self, requests): ...
        ...     def words(self, requests): ...
        ...     def encode(self, requests): ...
        ...     def count_tokens(self, text): return len(text.split())
        ...     def config(self): return {"id": "echo"}
        >>> request = Generate((Message("user", "hello"),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "echo.jsonl"
        ...     recorded = ReplayLanguageModel(file, Echo()).generate([request])
        ...     ReplayLanguageModel(file).generate([request])[0].text
        'hello'
    """

    def __init__(
        self, path: str | Path, model: LanguageModel | None = None, *, name: str | None = None
    ):
        if model is not None and not isinstance(model, LanguageModel):
            raise LanguageModelError(
                f"expected a language model to record, found {type(model).__name__}; give an "
                "object with the methods of comap.lm.LanguageModel, or None to replay"
            )
        self._model, self._header = model, dict[str, Any]()
        self._answers: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}
        self._file = RecordFile(Path(path), self._read)
        self._lock = threading.Lock()
        if model is None:
            self._file.refresh()
            if not self._header:
                raise DataCorrupt(
                    f"expected a record in {path}, found an empty file; record again with a model"
                )
        else:
            self._open(model)
        self.name: str = self._header["name"] if name is None else name
        self.capabilities: frozenset[str] = frozenset(self._header["capabilities"])
        self.usage = Usage()

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Return recorded texts, or those of the model."""
        return self._answer(requests, Completion)

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Return recorded log-probabilities, or those of the model."""
        return self._answer(requests, Scores)

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return recorded next-word probabilities, or those of the model."""
        return self._answer(requests, WordProbabilities)

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return recorded hidden states, or those of the model."""
        return self._answer(requests, Encoding)

    def count_tokens(self, text: str) -> int:
        """Return the recorded number of a text's tokens, or the model's.

        Raises:
            LanguageModelError: It was not recorded and there is no model.
        """
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._counts:
            if self._model is None:
                raise LanguageModelError(
                    f"expected the number of tokens of the text {text!r:.80} in the record "
                    f"{self._file.path}, found none; record again with the model"
                )
            line = {"kind": "count", "key": key, "tokens": self._model.count_tokens(text)}
            self._file.append(lambda: [] if key in self._counts else [line])
        return self._counts[key]

    def config(self) -> dict[str, Any]:
        """Return JSON data: the file's name, and how the recorded model was made."""
        return {"id": "replay", "file": self._file.path.name, "model": self._header["config"]}

    def _open(self, model: LanguageModel) -> None:
        """Read the record of a model, or begin it."""
        header = {
            "kind": "header",
            "schema": _SCHEMA,
            "name": model.name,
            "capabilities": sorted(model.capabilities),
            "config": model.config(),
        }
        try:
            header = json.loads(json.dumps(header))
        except (TypeError, ValueError) as error:
            raise LanguageModelError(
                f"expected JSON data from {model.name}.config(), found {error}; correct that model"
            ) from error
        self._file.append(lambda: [] if self._header else [header])
        for part in ("name", "capabilities", "config"):
            if self._header[part] != header[part]:
                raise LanguageModelError(
                    f"expected a record of {model.name} in {self._file.path}, found one of "
                    f"{self._header['name']!r:.80} with another {part}; record to another file"
                )

    def _read(self, line: Any) -> None:
        """Take in a line of the record."""
        kind = line.get("kind") if isinstance(line, dict) else None
        if not self._header:
            self._header = _checked_header(line)
        elif kind == "count":
            key, tokens = line.get("key"), line.get("tokens")
            if not isinstance(key, str) or type(tokens) is not int:
                raise DataCorrupt("expected a token count, found another thing")
            self._counts.setdefault(key, tokens)
        elif kind == "answer":
            request, reply, key = line.get("request"), line.get("reply"), line.get("key")
            if not isinstance(request, dict) or request_key(request) != key:
                raise DataCorrupt("expected a request that its key fits, found another")
            reply_from_json(reply)
            if reply["kind"] != request.get("kind"):
                raise DataCorrupt(f"expected a reply of its request's kind, found {reply['kind']}")
            self._answers.setdefault(key, reply)
        else:
            raise DataCorrupt(f"expected an answer or a token count, found {kind!r:.40}")

    def _answer(
        self, requests: Sequence[LMRequest], kind: type[Reply]
    ) -> list[Reply | LanguageModelError]:
        keys = [request_key(request) for request in requests]
        errors: dict[str, LanguageModelError] = {}
        missing = {
            key: request
            for key, request in zip(keys, requests, strict=True)
            if key not in self._answers
        }
        if missing and self._model is None:
            errors = self._missing(missing)
        elif missing and self._model is not None:
            errors = self._record(self._model, missing)
        return [self._reply(key, kind) if key in self._answers else errors[key] for key in keys]

    def _reply(self, key: str, kind: type[Reply]) -> Reply:
        reply = reply_from_json(self._answers[key])
        assert isinstance(reply, kind)  # The key is made of the kind too.
        with self._lock:
            self.usage.requests += 1
            self.usage.prompt_tokens += reply.prompt_tokens
            if isinstance(reply, Completion):
                self.usage.completion_tokens += reply.completion_tokens
        return reply

    def _record(
        self, model: LanguageModel, missing: dict[str, LMRequest]
    ) -> dict[str, LanguageModelError]:
        """Ask the model, record its answers, and return its errors."""
        retries, cost = model.usage.retries, model.usage.cost
        replies: dict[str, Any] = dict(
            zip(missing, answer(model, list(missing.values())), strict=True)
        )
        with self._lock:
            self.usage.retries += model.usage.retries - retries
            self.usage.cost += model.usage.cost - cost
        errors: dict[str, LanguageModelError] = {}
        lines = {}
        for key, reply in replies.items():
            request = missing[key]
            if isinstance(reply, LanguageModelError):
                errors[key] = reply
                continue
            if not isinstance(reply, _REPLIES[type(request)]):
                raise LanguageModelError(
                    f"expected {_REPLIES[type(request)].__name__} from {model.name}, found "
                    f"{type(reply).__name__}; correct that model"
                )
            lines[key] = {
                "kind": "answer",
                "key": key,
                "purpose": request.purpose,
                "request": request_to_json(request),
                "reply": reply_to_json(reply),
            }
        self._file.append(lambda: [line for key, line in lines.items() if key not in self._answers])
        return errors

    def _missing(self, missing: dict[str, LMRequest]) -> dict[str, LanguageModelError]:
        """Return the errors for requests that are not in the record, one of them with a hint."""
        errors: dict[str, LanguageModelError] = {}
        for key, request in missing.items():
            last = request.messages[-1].content if request.messages else ""
            hint = f"; {nearest(self._file.path, request)}" if not errors else ""
            errors[key] = LanguageModelError(
                f"expected a recorded answer in {self._file.path}, found none for the "
                f"{type(request).__name__.lower()} request for {request.purpose or 'no purpose'!r} "
                f"with the key {key} and the last message {last[:80]!r}{hint}; record again with "
                "the model, or ask exactly what was recorded"
            )
        return errors
