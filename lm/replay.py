"""Language models around others: one that records and replays, one that routes by adapter."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz

from ..errors import DataCorrupt, DataNotFound, LanguageModelError, suggest
from ..jsonl import RecordedCalls
from .base import (
    CAPABILITIES,
    KINDS,
    BaseLanguageModel,
    Completion,
    Encoding,
    Generate,
    LanguageModel,
    LMReply,
    LMRequest,
    Scores,
    Usage,
    WordProbabilities,
    answer,
    context_tokens,
    thinks,
)

_SCHEMA = 2
# Keys of what the recorded model is.
_CONTEXT = "context"
_THINKS = "thinks"
_KINDS = {kind: name for name, kinds in KINDS.items() for kind in kinds}


def request_to_json(request: LMRequest) -> dict[str, Any]:
    """Return what a request asks as JSON data: its kind and all fields except its purpose."""
    data = _data_of(request)
    del data["purpose"]
    if not request.thinking:  # as in records that were made before there was a choice
        del data["thinking"]
    if isinstance(request, Generate):
        sampling = request.sampling

        # 0 and 0.0 are one temperature, and must be one key.
        numbers = {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p)}
        data["sampling"] = asdict(sampling) | numbers
        if not request.reply_ids:  # as in records that were made before there were any
            del data["reply_ids"]
    return data


def request_key(request: LMRequest | Mapping[str, Any]) -> str:
    """Return the key of a request, or of its JSON data: the SHA-256 of the data in one spelling."""
    data = request if isinstance(request, Mapping) else request_to_json(request)
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def reply_to_json(reply: LMReply) -> dict[str, Any]:
    """Return a reply as JSON data; numbers come back exactly as they were."""
    data = _data_of(reply)
    if isinstance(reply, Completion) and reply.tokens is None:
        del data["tokens"]
    return data


def reply_from_json(data: Any) -> LMReply:
    """Return the reply that JSON data describe.

    Raises:
        DataCorrupt: A field is missing, or has a value that it cannot have.
    """
    try:
        kind = data["kind"]
        prompt_tokens = _count_in(data, "prompt_tokens")

        if kind == "score":
            logprobs = (_tuple_of(tokens, int, float) for tokens in data["logprobs"])
            return Scores(tuple(logprobs), prompt_tokens)
        if kind == "words":
            return WordProbabilities(_tuple_of(data["probabilities"], int, float), prompt_tokens)
        if kind == "encode":
            return Encoding(_tuple_of(data["vector"], int, float), prompt_tokens)
        return _completion_from_json(data, prompt_tokens)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataCorrupt(f"expected a whole reply, found {problem:.120}") from error


def _completion_from_json(data: Any, prompt_tokens: int) -> Completion:
    """Return a completion; of tokens and their log-probabilities those that its model returned."""
    text, finish = _tuple_of([data["text"], data["finish"]], str)
    token_ids = data["token_ids"]
    logprobs = data["logprobs"]
    tokens = data.get("tokens")  # not in records of backends that do not return them
    if data["kind"] != "generate" or finish not in ("stop", "length"):
        raise ValueError("another kind or finish")

    completion_tokens = _count_in(data, "completion_tokens")
    return Completion(
        text,
        None if token_ids is None else _tuple_of(token_ids, int),
        None if logprobs is None else _tuple_of(logprobs, int, float),
        finish,
        prompt_tokens,
        completion_tokens,
        None if tokens is None else _tuple_of(tokens, str),
    )


def _data_of(message: LMRequest | LMReply) -> dict[str, Any]:
    """Return the fields of a request or a reply by name, and its kind."""
    kind = {"kind": _KINDS[type(message)]}
    return kind | {field.name: getattr(message, field.name) for field in fields(message)}


def _count_in(data: Any, name: str) -> int:
    """Return a field that is a whole number, or raise."""
    (count,) = _tuple_of([data[name]], int)
    return int(count)


def _tuple_of(entries: Any, *types: type) -> tuple[Any, ...]:
    """Return a list's entries, all of these very types, or raise: a truth value is no number here."""
    if not isinstance(entries, list | tuple) or not all(type(entry) in types for entry in entries):
        raise TypeError(f"{entries!r:.40} has values of another type")
    return tuple(entries)


def nearest(path: Path, request: LMRequest) -> str:
    """Return what to say of the recorded request of the same kind that is most like another one."""

    def last_message(data: Mapping[str, Any]) -> str:  # prompts mostly differ there
        return str(data["messages"][-1][1])[-2000:] if data.get("messages") else ""

    # By way of JSON, as the recorded ones are: tuples have become lists.
    request_data: dict[str, Any] = json.loads(json.dumps(request_to_json(request)))
    text = last_message(request_data)
    best = None
    best_score = -1.0
    with suppress(OSError, ValueError), path.open("rb") as file:  # its last line may be torn
        for line in file:
            recorded = json.loads(line).get("request") or {}
            if recorded.get("kind") != request_data["kind"]:
                continue

            # The likeness of the texts is at most 100: equal fields only decide between like texts.
            equal_fields = sum(value == recorded.get(name) for name, value in request_data.items())
            score = fuzz.ratio(text, last_message(recorded)) + equal_fields
            if score > best_score:
                best = recorded
                best_score = score

    if best is None:
        return "no request of this kind is in it"
    names = [name for name, value in request_data.items() if value != best.get(name)]
    return (
        f"the nearest in it has the last message {last_message(best)[:80]!r} and differs in "
        f"{', '.join(names)}"
    )


class ReplayLanguageModel(BaseLanguageModel):
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
        path = Path(path)
        head = None
        if model is not None:
            if not isinstance(model, LanguageModel):
                raise LanguageModelError(
                    f"expected a language model, found {type(model).__name__}; give an object with "
                    "the methods of comap.lm.LanguageModel"
                )
            config = json.loads(json.dumps(model.config()))
            head = {
                "schema": _SCHEMA,
                "name": model.name,
                "capabilities": sorted(model.capabilities),
                "config": config,
            }
        elif not path.is_file():
            raise DataNotFound(
                f"expected recorded answers in {path}, found no file; name a file that was recorded, "
                "or give a model to record"
            )

        self._model = model
        with _explained_write(path):
            self._calls = RecordedCalls(path, head, _answer_of)
        self._header = _checked(self._calls, head)
        self._lock = threading.Lock()
        self.name: str = self._header["name"] if name is None else name
        self.capabilities: frozenset[str] = frozenset(self._header["capabilities"])
        self.usage = Usage()

    def count_tokens(self, text: str) -> int:
        """Return the recorded number of a text's tokens, or the model's.

        Raises:
            LanguageModelError: It was not recorded and there is no model.
        """
        # The text's hash: a record names texts once, in its requests.
        key = f"tokens {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
        if key not in self._calls:
            if self._model is None:
                raise LanguageModelError(
                    f"expected the number of tokens of the text {text!r:.80} in the record "
                    f"{self._calls.path}, found none; record again with the model"
                )
            with _explained_write(self._calls.path):
                self._calls.add([{"key": key, "value": self._model.count_tokens(text)}])
        return int(self._calls.get(key))

    @property
    def context(self) -> int | None:
        """The context of the recorded model, so that prompts are cut as they were; None if it has none."""
        if _CONTEXT not in self._calls:
            if self._model is None:
                return None
            # 0 for none: a recorded value is a whole number, as of all counts.
            context = context_tokens(self._model) or 0
            with _explained_write(self._calls.path):
                self._calls.add([{"key": _CONTEXT, "value": context}])
        return int(self._calls.get(_CONTEXT)) or None

    def thinks(self, asked: bool = False) -> bool:
        """Return whether the recorded model thought before it replied, if asked to or not."""
        key = f"{_THINKS} {asked}"
        if key not in self._calls:
            if self._model is None:
                return False
            with _explained_write(self._calls.path):
                self._calls.add([{"key": key, "value": int(thinks(self._model, asked))}])
        return bool(self._calls.get(key))

    def config(self) -> dict[str, Any]:
        """Return JSON data: the file's name, and how the recorded model was made."""
        return {"id": "replay", "file": self._calls.path.name, "model": self._header["config"]}

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        keys = [request_key(request) for request in requests]

        # By key: what a batch asks twice, the model is asked once.
        missing = {
            key: request
            for key, request in zip(keys, requests, strict=True)
            if key not in self._calls
        }
        errors = self._record(self._model, missing) if self._model else self._missing(missing)

        # From the record in any case: another process may have recorded an answer in the meantime.
        replies = [self._calls.get(key) or errors[key] for key in keys]
        with self._lock:
            for reply in replies:
                if isinstance(reply, LanguageModelError):
                    continue
                self.usage.requests += 1
                self.usage.prompt_tokens += reply.prompt_tokens
                self.usage.completion_tokens += getattr(reply, "completion_tokens", 0)
        return replies

    def _record(
        self, model: LanguageModel, missing: dict[str, LMRequest]
    ) -> dict[str, LanguageModelError]:
        """Ask the model what is missing, record its answers, and return its errors."""
        if not missing:
            return {}

        retries = model.usage.retries
        cost = model.usage.cost
        replies = dict(zip(missing, answer(model, list(missing.values())), strict=True))
        with self._lock:
            self.usage.retries += model.usage.retries - retries
            self.usage.cost += model.usage.cost - cost

        # Errors are not recorded: the next run may have a server that answers.
        errors = {}
        records = []
        for key, reply in replies.items():
            if isinstance(reply, LanguageModelError):
                errors[key] = reply
                continue
            request = missing[key]
            records.append(
                {
                    "key": key,
                    "purpose": request.purpose,
                    "request": request_to_json(request),
                    "value": reply_to_json(reply),
                }
            )
        with _explained_write(self._calls.path):
            self._calls.add(records)
        return errors

    def _missing(self, missing: dict[str, LMRequest]) -> dict[str, LanguageModelError]:
        """Return the errors for requests that are not in the record, one of them with a hint."""
        errors: dict[str, LanguageModelError] = {}
        for key, request in missing.items():
            # One hint: it reads the whole record, and one program's requests mostly miss alike.
            last = request.messages[-1].content if request.messages else ""
            hint = f"; {nearest(self._calls.path, request)}" if not errors else ""
            errors[key] = LanguageModelError(
                f"expected a recorded answer in {self._calls.path}, found none for the "
                f"{type(request).__name__.lower()} request for {request.purpose or 'no purpose'!r} "
                f"with the key {key} and the last message {last[:80]!r}{hint}; record again with "
                "the model, or ask exactly what was recorded"
            )
        return errors


def _checked(calls: RecordedCalls, head: dict[str, Any] | None) -> dict[str, Any]:
    """Return a record's header, or raise where it is none or not that of the model to record."""
    header = calls.header
    names = header.get("capabilities")
    if (
        header.get("schema") != _SCHEMA
        or not isinstance(header.get("name"), str)
        or not isinstance(header.get("config"), dict)
        or not isinstance(names, list)
        or not set(map(str, names)) <= CAPABILITIES
    ):
        raise DataCorrupt(
            f"expected a record of a language model (schema {_SCHEMA}) in {calls.path}, found the "
            f"header {header!r:.80}; record again with a model, in another file"
        )

    for name in ("name", "capabilities", "config"):
        if head is not None and header[name] != head[name]:
            raise LanguageModelError(
                f"expected a record of {head['name']} in {calls.path}, found one of "
                f"{header['name']!r:.80} with another {name}; record to another file"
            )
    return header


def _answer_of(record: Mapping[str, Any]) -> LMReply | int:
    """Return the reply, or the number of tokens, of a line of the record."""
    value = record["value"]
    request = record.get("request")
    if request is None:
        is_count = record["key"].startswith(("tokens ", _CONTEXT, _THINKS))
        if not is_count or type(value) is not int:
            raise TypeError("no answer and no token count")
        return int(value)

    # A line that somebody edited would answer what was never asked so.
    if request_key(request) != record["key"]:
        raise ValueError("a request that its key does not fit")
    reply = reply_from_json(value)
    if value["kind"] != request["kind"]:
        raise ValueError(f"a reply of the kind {value['kind']!r:.40} to another request")
    return reply


@contextmanager
def _explained_write(path: Path) -> Iterator[None]:
    """Turn an error of the disk in the block into one that says what to do."""
    try:
        yield
    except DataNotFound:  # an error of the disk as well, but of comap's own, and explained
        raise
    except OSError as error:
        raise LanguageModelError(
            f"cannot write the record {path}: {error.strerror}; make room or name another file"
        ) from error


class RoutedLanguageModel(BaseLanguageModel):
    """Sends each request to the model that its `adapter` names; it obeys `LanguageModel`."""

    def __init__(self, models: Mapping[str, LanguageModel], default: str, name: str | None = None):
        self._models = dict(models)
        self.default = default
        self.name: str = models[default].name if name is None else name
        self.adapters: tuple[str, ...] = tuple(sorted(models))
        self.capabilities: frozenset[str] = frozenset.intersection(
            *(model.capabilities for model in models.values())
        )
        self.usage: Usage = self._sum()

    @property
    def context(self) -> int | None:
        """The least context of them all; None where none has one."""
        # The least: a prompt is cut before it is known which model reads it.
        contexts = [context_tokens(model) for model in self._models.values()]
        return min((context for context in contexts if context), default=None)

    def thinks(self, asked: bool = False) -> bool:
        """Return whether the default model thinks before it replies, if asked to or not."""
        return thinks(self._models[self.default], asked)

    def count_tokens(self, text: str) -> int:
        return self._models[self.default].count_tokens(text)

    def config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": "routed",
            "adapters": list(self.adapters),
            "adapter": self.default,
            "models": {key: self._models[key].config() for key in self.adapters},
        }

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        replies: list[Any] = [None] * len(requests)

        # By model and not by name: two names of one model are one batch.
        groups: dict[int, tuple[LanguageModel, list[int]]] = {}
        for index, request in enumerate(requests):
            key = self.default if request.adapter is None else request.adapter
            model = self._models.get(key)
            if model is None:
                replies[index] = LanguageModelError(
                    f"there is no model {key!r}; {suggest(str(key), self.adapters)}"
                )
                continue
            _, indices = groups.setdefault(id(model), (model, []))
            indices.append(index)

        for model, indices in groups.values():
            model_requests = [replace(requests[index], adapter=None) for index in indices]
            try:
                model_replies = answer(model, model_requests)
            except LanguageModelError as error:  # this model's requests fail, not those of others
                model_replies = [error] * len(model_requests)
            for index, reply in zip(indices, model_replies, strict=True):
                replies[index] = reply

        self.usage = self._sum()
        return replies

    def _sum(self) -> Usage:
        """Return what the models have done, each counted once."""
        models = {id(model): model for model in self._models.values()}.values()
        total = Usage()
        for field in fields(Usage):
            amounts = (getattr(model.usage, field.name) for model in models)
            setattr(total, field.name, sum(amounts))
        return total
