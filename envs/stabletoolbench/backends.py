"""What answers calls: generated tools, the official cache, an overlay, a live server, a simulator."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...errors import (
    CoMapError,
    DataNotFound,
    LanguageModelError,
    OptionError,
    check_number,
    check_url,
)
from ...jsonl import RecordedCalls
from ...lm.base import Generate, LanguageModel, Message, Sampling
from ...lm.create import create_language_model, kind_of
from ...trajectory import Step
from ..http import json_app
from ..http_client import ExchangeFailure, post_json
from ..storage import comap_home
from .apps import answering, api_records, world_of
from .apps.world import Ledger, ToolError
from .calls import NotJSON, canonical_json, read_json_text
from .canonicalizer import error_kind, read_observation
from .functions import (
    Offer,
    changed,
    coerced,
    file_part,
    folder_of_category,
    offers,
    problem_of,
    standard,
)


class Request(NamedTuple):
    """A call to be answered."""

    category: str
    tool: str
    api: str
    arguments: Mapping[str, Any]
    offer: Offer | None = None
    checked: bool = False


class Hit(NamedTuple):
    """An answer."""

    error: str
    response: Any
    source: str


class BackendFault(Exception):
    """A backend cannot answer now; the next one is asked, and the fault is recorded."""


class Backend(Protocol):
    """Answers calls, or passes them on."""

    name: str

    def answer(self, request: Request) -> Hit | None:
        """Return the answer, or None to pass the call on."""
        ...


def hit_of(data: Mapping[str, Any], source: str) -> Hit:
    """Return the answer that an object with ``error`` and ``response`` is."""
    error = data.get("error") or ""
    return Hit(
        error if isinstance(error, str) else json.dumps(error), data.get("response", ""), source
    )


_MISS = Hit("Cache miss: no backend knows this call", "", "none")
_FAILED = Hit("API not working: the backends that might know this call failed", "", "none")


class Chain:
    """Backends in the order in which they are asked."""

    def __init__(self, backends: Sequence[Backend]):
        self.backends = tuple(backends)

    def ask(self, request: Request) -> tuple[Hit, tuple[str, ...]]:
        """Return the first answer, a miss or a failure; and the faults of backends before it."""
        faults = []
        for backend in self.backends:
            try:
                hit = backend.answer(request)
            except BackendFault as fault:
                faults.append(f"{backend.name}: {fault}")
                continue
            if hit is not None:
                return hit, tuple(faults)
        return _FAILED if faults else _MISS, tuple(faults)


class GeneratedTools:
    """The generated tools, on one state."""

    name = "local"

    def __init__(self, ledger: Ledger):
        self.ledger = ledger

    def answer(self, request: Request) -> Hit | None:
        """Answer what the generated tools know; their refusals are answers too."""
        answer = answering(request.tool, request.api)
        if answer is None:
            return None
        arguments = request.arguments
        if not request.checked:
            offer = own_functions(request.tool)[request.api]
            arguments = coerced(offer, arguments)
            if problem := problem_of(offer, arguments):
                self.ledger.clock += 1
                return Hit(problem, "", self.name)
        try:
            return Hit("", answer(self.ledger, arguments), self.name)
        except ToolError as refusal:
            return Hit(str(refusal), "", self.name)
        finally:
            self.ledger.clock += 1


@lru_cache(maxsize=32)
def own_functions(tool: str) -> dict[str, Offer]:
    """Return the functions of a generated tool by API."""
    return {offer.api: offer for offer in offers({"api_list": list(api_records(tool))})}


_MOST_BYTES = 64 * 2**20
_LONGEST_KEY = 20_000


class ResponseCache:
    """Answers from files ``<category>/<tool>_for_<category>/<api>.json``."""

    name = "cache"

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataNotFound(f"expected a folder of cached responses at {folder}, found none")
        self._root = self.folder.resolve()

    def answer(self, request: Request) -> Hit | None:
        path = self.path_of(request)
        if path is None:
            return None
        try:
            stat = path.stat()
        except (OSError, ValueError):
            return None
        entries, keys_by_meaning = _read(path, stat.st_mtime_ns, stat.st_size)

        # Upstream's keys are what `str` makes of a dictionary: order and types as in the first call.
        entry = entries.get(str(dict(request.arguments)))
        if entry is None:
            key = keys_by_meaning.get(same_arguments(request.arguments))
            entry = None if key is None else entries[key]
        if entry is None:
            return None
        if not isinstance(entry, dict) or "response" not in entry:
            raise BackendFault(f"an entry of {path.name} has no response")
        return hit_of(entry, self.name)

    def path_of(self, request: Request) -> Path | None:
        """Return the file that would have the answer; None where a name may not be part of a path."""
        category = folder_of_category(request.category)
        parts = (category, f"{request.tool}_for_{category}", f"{request.api}.json")
        names = [file_part(part) for part in (request.tool, request.api, *parts)]
        if None in names:
            return None
        path = self.folder.joinpath(*parts)
        try:
            is_inside = path.resolve().is_relative_to(self._root)  # a link may lead out
        except (OSError, ValueError, RuntimeError):
            return None
        return path if is_inside else None


def same_arguments(arguments: Mapping[str, Any]) -> str:
    """Return a text that arguments with the same meaning share, whatever their order and types."""
    return canonical_json({str(name): _plain(value) for name, value in arguments.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str):
        text = value.strip()
        return text.lower() if text in ("True", "False") else text
    return str(value)


@lru_cache(maxsize=256)
def _read(path: Path, modified: int, size: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the entries of a file, and their keys by what their arguments mean."""
    if size > _MOST_BYTES:
        raise BackendFault(f"{path.name} has {size:,} bytes")
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BackendFault(f"{path.name} is broken ({type(error).__name__})") from error
    if not isinstance(entries, dict):
        raise BackendFault(f"{path.name} is no dictionary")
    keys_by_meaning: dict[str, str] = {}
    for key in entries:
        arguments = _arguments(key)
        if arguments is not None:
            keys_by_meaning.setdefault(same_arguments(arguments), key)
    return entries, keys_by_meaning


def _arguments(key: str) -> dict[str, Any] | None:
    if len(key) > _LONGEST_KEY:
        return None
    try:
        data = ast.literal_eval(key)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        try:
            data = read_json_text(key)
        except NotJSON:
            return None
    return data if isinstance(data, dict) else None


# Errors that another try may not have: they are answers of the moment, and not kept.
_PASSING = frozenset(("rate", "timeout", "not_working", "unauthorized", "unsubscribed", "request"))


class Overlay:
    """Answers from a file of JSON lines, which grows; many processes may write to it at once."""

    name = "overlay"

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._calls = RecordedCalls(self.path, parse=_hit, expected="the answer of a tool")

    def answer(self, request: Request) -> Hit | None:
        """Return what was kept; its source tells who answered first."""
        key = _key(request)
        if key not in self._calls:
            try:
                self._calls.refresh()
            except (CoMapError, OSError) as error:
                raise BackendFault(f"the overlay cannot be read ({type(error).__name__})") from None
        hit: Hit | None = self._calls.get(key)
        return hit

    def keep(self, request: Request, hit: Hit) -> Hit:
        key = _key(request)
        record = {
            "key": key,
            "category": request.category,
            "tool": request.tool,
            "api": request.api,
            "value": hit._asdict(),
        }
        try:
            self._calls.add([json.loads(json.dumps(record, default=str))])
        except (CoMapError, OSError) as error:
            raise BackendFault(f"the overlay cannot be written ({type(error).__name__})") from None
        first_hit: Hit = self._calls.get(key)  # of another process, if that was faster
        return first_hit

    def sha256(self) -> str:
        """Return the SHA-256 of the answers that are kept, in order of their keys."""
        try:
            self._calls.refresh()
        except (CoMapError, OSError):
            return "unreadable"
        lines = "".join(
            f"{key}\n{canonical_json(list(self._calls.get(key)))}\n" for key in sorted(self._calls)
        )
        return hashlib.sha256(lines.encode("utf-8", "replace")).hexdigest()


def _hit(record: Mapping[str, Any]) -> Hit:
    value = record["value"]
    error = value["error"]
    source = value["source"]
    if not (isinstance(error, str) and isinstance(source, str)):
        raise TypeError("no answer")
    return Hit(error, value["response"], source)


class Recording:
    """A backend whose answers are kept."""

    def __init__(self, backend: Backend, overlay: Overlay):
        self.backend = backend
        self.overlay = overlay
        self.name = backend.name

    def answer(self, request: Request) -> Hit | None:
        """Return what counts: the answer that is kept."""
        hit = self.backend.answer(request)
        if hit is None or error_kind(hit.error) in _PASSING:
            return hit
        return self.overlay.keep(request, hit)


def _key(request: Request) -> str:
    return (
        canonical_json(
            [request.category, request.tool, request.api, same_arguments(request.arguments)]
        )
        .encode("utf-8", "replace")
        .decode()
    )


_OUTSIDE = ("live", "sim")


class Recalled:
    """Answers calls by what a record shows, where live server and simulator are out of reach."""

    name = "recalled"

    def __init__(self, steps: Sequence[Step]):
        self.texts = {
            step.t: step.observation
            for step in steps
            if step.env_info.get("tool_source") in _OUTSIDE or step.env_info.get("tool_faults")
        }
        self._sources = {step.t: str(step.env_info.get("tool_source", "none")) for step in steps}
        self._step = 0

    def set_step(self, step: int) -> None:
        """Set the number of the step whose call is answered next."""
        self._step = step

    def answer(self, request: Request) -> Hit | None:
        """Return the answer that the record shows to the present step; None where it shows none."""
        if self._step not in self.texts:
            return None
        text = self.texts[self._step]
        source = self._sources[self._step]
        parts = read_observation(text)
        if parts is None:
            return Hit("", text, source)
        error, response, _ = parts
        return Hit(error, response, source)


class LiveServer:
    """Asks a server that speaks StableToolBench's ``/virtual``."""

    name = "live"

    def __init__(self, url: str, timeout: float = 10.0, retries: int = 1):
        self.url = check_url("live_url", url).geturl()
        self.timeout = timeout
        self.retries = retries

    def answer(self, request: Request) -> Hit | None:
        body = {
            "category": request.category,
            "tool_name": request.tool,
            "api_name": request.api,
            "tool_input": json.dumps(dict(request.arguments)),
            "strip": "",
            "toolbench_key": os.environ.get("TOOLBENCH_KEY", ""),
        }
        data = self._ask(json.dumps(body).encode())
        if not isinstance(data, dict) or not {"error", "response"} & data.keys():
            keys = f" with {sorted(data)[:5]!r:.80}" if isinstance(data, dict) else ""
            actual = f"{type(data).__name__}{keys}"
            raise BackendFault(f"expected an object with error and response, found {actual}")
        return hit_of(data, self.name)

    def _ask(self, body: bytes) -> Any:
        """Return the JSON that comes back, after as many tries as may help."""
        tries_left = self.retries
        while True:
            try:
                return read_json_text(post_json(self.url, body, self.timeout).decode())
            except ExchangeFailure as failure:
                if tries_left <= 0 or not failure.again:
                    raise BackendFault(str(failure)) from None
            except (NotJSON, UnicodeDecodeError) as error:
                raise BackendFault(
                    f"expected JSON, found {type(error).__name__}: {str(error)[:80]}"
                ) from None
            tries_left -= 1


_TOKENS = 1024
_ROLE = (
    "You play a web service for tests. You are given the documentation of one of its functions and a "
    "request. Answer as the service would: plausible, consistent with the request, and in the form "
    "that the documentation implies. If the request lacks what is required or makes no sense, "
    'the service answers with an error. Reply with one JSON object and nothing else: {"error": "", '
    '"response": ...} or {"error": "what is wrong", "response": ""}.'
)


class Simulator:
    """Asks a language model to answer in a tool's place."""

    name = "sim"

    def __init__(self, model: LanguageModel):
        self.model = model

    def answer(self, request: Request) -> Hit | None:
        sampling = Sampling(max_new_tokens=_TOKENS)
        try:
            (reply,) = self.model.generate(
                [Generate(_messages(request), sampling, purpose="simulate")]
            )
        except LanguageModelError as error:
            raise BackendFault(f"{str(error)[:200]}") from None
        if isinstance(reply, LanguageModelError):
            raise BackendFault(f"{str(reply)[:200]}")

        # Models write something before or after the object, whatever they are told.
        start = reply.text.find("{")
        end = reply.text.rfind("}")
        try:
            data = read_json_text(reply.text[start : end + 1])
        except NotJSON:
            raise BackendFault("the model wrote no JSON object") from None
        if not isinstance(data, dict) or "response" not in data:
            raise BackendFault("the model wrote an object without a response")
        return hit_of(data, self.name)


def simulator_model(model: Any, timeout: float, retries: int) -> LanguageModel:
    if isinstance(model, str):
        patience: dict[str, Any] = {}
        if kind_of(model) == "remote":
            patience = {"timeout": timeout, "max_retries": retries}
        return create_language_model(model, **patience)
    if not callable(getattr(model, "generate", None)):
        raise OptionError(
            f"simulator must be a language model or its name, not {type(model).__name__}; such as "
            "'http://127.0.0.1:8000/v1#NAME'"
        )
    language_model: LanguageModel = model
    return language_model


def _messages(request: Request) -> tuple[Message, ...]:
    documentation: dict[str, Any] = {
        "category": request.category,
        "tool": request.tool,
        "api": request.api,
    }
    if request.offer is not None:
        documentation |= {"tool_title": request.offer.tool_title, **request.offer.schema()}
    documentation_text = json.dumps(documentation, ensure_ascii=True, default=str)
    arguments = json.dumps(dict(request.arguments), ensure_ascii=True, default=str)
    return (
        Message("system", _ROLE),
        Message("user", f"Documentation: {documentation_text}\nRequest: {arguments}"),
    )


CACHE_FOLDER = "tool_response_cache"


def open_chain(
    folder: Path | None,
    live_url: str | None = None,
    simulator: Any = None,
    overlay: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
    retries: int = 1,
) -> list[Backend]:
    """Return the backends in the order in which they are asked: cache, overlay, live, simulator."""
    if type(timeout) not in (int, float) or not 0 < timeout <= 3600:
        raise OptionError(f"timeout must be more than 0 and at most 3600, not {timeout!r}")
    check_number("retries", retries, 0, 10)
    backends: list[Backend] = []
    if folder is not None and (folder / CACHE_FOLDER).is_dir():
        backends.append(ResponseCache(folder / CACHE_FOLDER))
    if live_url is None and simulator is None and overlay is None:
        return backends

    # What live server and simulator answer goes to the overlay, which is asked before them.
    if overlay is None:
        overlay = comap_home() / "stabletoolbench-overlay.jsonl"
    answers_kept = Overlay(overlay)
    backends.append(answers_kept)
    if live_url is not None:
        backends.append(Recording(LiveServer(live_url, timeout, retries), answers_kept))
    if simulator is not None:
        model = simulator_model(simulator, timeout, retries)
        backends.append(Recording(Simulator(model), answers_kept))
    return backends


_LONGEST_NAME = 300


class VirtualTools:
    """Generated tools and backends behind ``/virtual``; many threads may ask at once."""

    def __init__(self, backends: list[Backend], world: int | None = None):
        self._tools = None if world is None else GeneratedTools(world_of(world).ledger())
        self._chain = Chain(backends)
        self._lock = threading.Lock()

    def answer(self, body: Any) -> dict[str, Any]:
        request = _requested(body)
        if isinstance(request, str):
            return {"error": request, "response": ""}
        hit = None
        if self._tools is not None:
            with self._lock:  # one state of the world for all clients
                hit = self._tools.answer(request)
        if hit is None:
            hit, _ = self._chain.ask(request)
        return {"error": hit.error, "response": hit.response}


def _requested(body: Any) -> Request | str:
    """Return the call that a client asks for, or what is wrong with it."""
    if not isinstance(body, Mapping):
        return "request invalid: expected an object"
    names = [body.get(name) for name in ("category", "tool_name", "api_name")]
    texts = [name for name in names if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME]
    if len(texts) < len(names):
        return "request invalid: expected the texts category, tool_name and api_name"

    # Upstream's clients send the arguments as JSON in a text, other clients as they are.
    arguments = body.get("tool_input")
    if isinstance(arguments, str):
        try:
            arguments = read_json_text(arguments) if arguments.strip() else {}
        except NotJSON:
            return "Tool input parse error: expected JSON"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return "Tool input parse error: expected an object"

    category, tool, api = texts
    tool = tool.removesuffix(f"_for_{category}")
    return Request(category, standard(tool), changed(standard(api)), arguments)


def virtual_app(tools: VirtualTools, *, host: str = "127.0.0.1", token: str | None = None) -> Any:
    """Return the web application that answers ``POST /virtual`` as StableToolBench's server does."""

    def answered(method: str, path: str, body: Any) -> Any:
        return tools.answer(body)

    return json_app({"/virtual": ("POST",)}, answered, host=host, token=token)
