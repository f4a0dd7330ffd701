"""A web application in AgentGym's style: environments with ids, ``/create``, ``/reset``, ``/step``.

AgentGym has a server for each environment, with ids, keys and scores of its own, and a client for each
server (github.com/WooooDyy/AgentGym, ``agentenv/envs``). Those clients are answered as by their servers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from .. import __version__
from ..envs.http import Refused, json_app
from ..errors import NoEpisode, OptionError, TaskNotFound
from .sessions import Session, Sessions, seed_of, task_of

_ROUTES = {
    **dict.fromkeys(("/create", "/reset", "/step", "/close"), ("POST",)),
    **dict.fromkeys(("/", "/observation", "/available_actions", "/detail"), ("GET",)),
}
_BARE = {"comap/WebShop-v0": "state", "comap/SearchQA-v0": "observation"}
"""Where AgentGym's ids are bare integers, sent as ``env_idx``; and the key of a step's text there."""


def agentgym_app(sessions: Sessions, *, host: str = "127.0.0.1", token: str | None = None) -> Any:
    """Return the application, to be served by `comap.envs.http.Server` or uvicorn.

    ``POST /create`` with ``{"env", "options"}`` opens an environment and returns its ``id`` and what a
    language model is to be told of it (``instructions``); ``/reset``
    takes it with ``task``, ``data_idx`` or ``seed``, ``/step`` with ``action``, ``/close`` alone; ``GET``
    ``/observation``, ``/available_actions`` and ``/detail`` take ``?id=``. A ``/create`` with neither
    ``env`` nor ``options`` is one of AgentGym's clients: it gets the first environment, and answers as
    AgentGym's server of that environment gives them.
    """

    def answer(method: str, path: str, request: Any) -> Any:
        if not isinstance(request, Mapping):
            raise OptionError(f"expected a JSON object, found {type(request).__name__}")

        handle = _post if method == "POST" else _get
        try:
            return handle(sessions, path, request)
        except TaskNotFound as error:
            raise Refused(404, str(error)) from error
        except NoEpisode as error:
            raise Refused(409, str(error)) from error

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        stopping = threading.Event()
        threading.Thread(target=_tidy, args=(sessions, stopping), daemon=True).start()
        yield
        stopping.set()
        sessions.close_all()

    # Two requests for an environment may come at once, and an engine may have to start.
    most_seconds = 2 * (sessions.offered.seconds + 60)
    return json_app(
        _ROUTES, answer, host=host, token=token, lifespan=lifespan, seconds=most_seconds
    )


def _post(sessions: Sessions, path: str, request: Mapping[str, Any]) -> Any:
    """Open, close, reset or step an environment, and return the answer's data."""
    if path == "/create":
        return _create(sessions, request)

    session_id = _session_id(request)
    if path == "/close":
        return {"id": session_id, "closed": sessions.close(session_id)}

    with sessions.use(session_id) as session:
        if path == "/reset":
            # Clients of WebShop and SearchQA send the number of a task as ``session_id`` or ``id``.
            if "env_idx" in request:
                request = {"data_idx": request.get("session_id", request.get("id"))}
            message = session.reset(task_of(session, request), seed_of(request))
        else:
            message = session.step(request.get("action"))

        message = {"id": session_id} | message
        return _foreign_answer(session, path, message) if session.foreign else message


def _create(sessions: Sessions, request: Mapping[str, Any]) -> Any:
    session_id, session = sessions.create(request.get("env"), request.get("options"))

    # AgentGym has a server for each environment: its clients never say which one they want.
    session.foreign = not request.keys() & {"env", "options"}
    if session.foreign and session.env_id in _BARE:
        return int(session_id, 16)
    return {
        "id": session_id,
        "env": session.env_id,
        "tasks": len(session.env.get_wrapper_attr("tasks")),
        "instructions": session.instructions,
    }


def _foreign_answer(session: Session, path: str, message: dict[str, Any]) -> Any:
    """Return an answer as AgentGym's own server of the environment gives it."""
    if session.env_id == "comap/ScienceWorld-v0":
        # Its scores go to 100, and its client puts the task before the observation itself.
        observation = session.moment.observation if session.moment else ""
        points = {key: round(100 * message[key]) for key in ("reward", "score")}
        task = {"task_description": message["goal"], "observation": observation}
        return message | points | task
    if session.env_id not in _BARE:
        return message

    text = message["observation"]
    if path == "/reset":
        return [text, None] if session.env_id == "comap/WebShop-v0" else text
    return {
        _BARE[session.env_id]: text,
        "info": None,
        "reward": message["reward"],
        "done": message["done"],
    }


def _session_id(request: Mapping[str, Any]) -> Any:
    """Return the id of an environment; as ``env_idx`` it is the number that its digits make."""
    number = str(request.get("env_idx", ""))

    # A number of 128 bits has at most 39 digits; longer ones are slow to read.
    is_number = number.isascii() and number.isdecimal() and len(number) < 40
    return f"{int(number):032x}" if is_number else request.get("id")


def _get(sessions: Sessions, path: str, request: Mapping[str, Any]) -> Any:
    """Return what the server is, or what an environment shows now."""
    if path == "/":
        return {
            "status": "ok",
            "comap": __version__,
            "environments": list(sessions.offered.env_ids),
            "options": list(sessions.offered.allowed),
            "open": len(sessions),
            "limit": sessions.limit,
        }

    session_id = _session_id(request)
    with sessions.use(session_id) as session:
        message = session.message()
    if path == "/detail":
        return {"id": session_id} | message

    # The other routes, /observation and /available_actions, have the names of a message's fields.
    return message[path.removeprefix("/")]


def _tidy(sessions: Sessions, stopping: threading.Event) -> None:
    """Close idle environments from time to time: a client that broke off closes nothing."""
    while not stopping.wait(min(sessions.idle / 4, 30.0)):
        with contextlib.suppress(Exception):  # one that cannot be closed is tried no more
            sessions.close_idle()
