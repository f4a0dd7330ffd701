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

    def answer(method: str, path: str, asked: Any) -> Any:
        if not isinstance(asked, Mapping):
            raise OptionError(f"expected a JSON object, found {type(asked).__name__}")
        try:
            return (_posted if method == "POST" else _asked)(sessions, path, asked)
        except TaskNotFound as error:
            raise Refused(404, str(error)) from error
        except NoEpisode as error:
            raise Refused(409, str(error)) from error

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        over = threading.Event()
        threading.Thread(target=_tidy, args=(sessions, over), daemon=True).start()
        yield
        over.set()
        sessions.close_all()

    most = 2 * (sessions.offered.seconds + 60)  # two requests for an environment at once; its start
    return json_app(_ROUTES, answer, host=host, token=token, lifespan=lifespan, seconds=most)


def _posted(sessions: Sessions, path: str, asked: Mapping[str, Any]) -> Any:
    if path == "/create":
        created, session = sessions.create(asked.get("env"), asked.get("options"))
        session.foreign = not asked.keys() & {"env", "options"}
        if session.foreign and session.env_id in _BARE:
            return int(created, 16)
        tasks = len(session.env.get_wrapper_attr("tasks"))
        return {
            "id": created,
            "env": session.env_id,
            "tasks": tasks,
            "instructions": session.instructions,
        }
    name = _name(asked)
    if path == "/close":
        return {"id": name, "closed": sessions.close(name)}
    with sessions.use(name) as session:
        if path == "/reset":
            if "env_idx" in asked:  # WebShop's number of a task, or SearchQA's
                asked = {"data_idx": asked.get("session_id", asked.get("id"))}
            message = session.reset(task_of(session, asked), seed_of(asked))
        else:
            message = session.step(asked.get("action"))
        message = {"id": name} | message
        return _foreign(session, path, message) if session.foreign else message


def _foreign(session: Session, path: str, message: dict[str, Any]) -> Any:
    """Return an answer as AgentGym's own server of the environment gives it."""
    if session.env_id == "comap/ScienceWorld-v0":
        plain = session.moment[0] if session.moment else ""  # its client puts the task before it
        points = {key: round(100 * message[key]) for key in ("reward", "score")}
        return message | points | {"task_description": message["goal"], "observation": plain}
    if session.env_id not in _BARE:
        return message
    text = message["observation"]
    if path == "/reset":
        return [text, None] if session.env_id == "comap/WebShop-v0" else text
    return {_BARE[session.env_id]: text, "info": None} | {
        key: message[key] for key in ("reward", "done")
    }


def _name(asked: Mapping[str, Any]) -> Any:
    """Return the id of an environment; as ``env_idx`` it is the number that its digits make."""
    number = str(asked.get("env_idx", ""))
    bare = number.isascii() and number.isdecimal() and len(number) < 40
    return f"{int(number):032x}" if bare else asked.get("id")


def _asked(sessions: Sessions, path: str, asked: Mapping[str, Any]) -> Any:
    if path == "/":
        return {
            "status": "ok",
            "comap": __version__,
            "environments": list(sessions.offered.env_ids),
            "options": list(sessions.offered.allowed),
            "open": len(sessions),
            "limit": sessions.limit,
        }
    name = _name(asked)
    with sessions.use(name) as session:
        message = session.message()
    return {"id": name} | message if path == "/detail" else message[path[1:]]


def _tidy(sessions: Sessions, over: threading.Event) -> None:
    """Close idle environments from time to time."""
    while not over.wait(min(sessions.idle / 4, 30.0)):
        with contextlib.suppress(Exception):  # one that cannot be closed is tried no more
            sessions.close_idle()
