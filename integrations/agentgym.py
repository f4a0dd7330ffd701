"""A web application in AgentGym's style: environments with ids, ``/create``, ``/reset``, ``/step``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from .. import __version__
from ..envs.http import Refused, json_app
from ..errors import NoEpisode, OptionError, TaskNotFound
from .sessions import Sessions, seed_of, task_of

_ROUTES = {
    **dict.fromkeys(("/create", "/reset", "/step", "/close"), ("POST",)),
    **dict.fromkeys(("/", "/observation", "/available_actions", "/detail"), ("GET",)),
}


def agentgym_app(sessions: Sessions, *, host: str = "127.0.0.1", token: str | None = None) -> Any:
    """Return the application, to be served by `comap.envs.http.Server` or uvicorn.

    ``POST /create`` with ``{"env", "options"}`` opens an environment and returns its ``id``; ``/reset``
    takes it with ``task``, ``data_idx`` or ``seed``, ``/step`` with ``action``, ``/close`` alone; ``GET``
    ``/observation``, ``/available_actions`` and ``/detail`` take ``?id=``.
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


def _posted(sessions: Sessions, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    if path == "/create":
        created, session = sessions.create(asked.get("env"), asked.get("options"))
        tasks = len(session.env.get_wrapper_attr("tasks"))
        return {"id": created, "env": session.env_id, "tasks": tasks}
    name = asked.get("id")
    if path == "/close":
        return {"id": name, "closed": sessions.close(name)}
    with sessions.use(name) as session:
        if path == "/reset":
            return {"id": name} | session.reset(task_of(session, asked), seed_of(asked))
        return {"id": name} | session.step(asked.get("action"))


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
    name = asked.get("id")
    with sessions.use(name) as session:
        message = session.message()
    return {"id": name} | message if path == "/detail" else message[path[1:]]


def _tidy(sessions: Sessions, over: threading.Event) -> None:
    """Close idle environments from time to time."""
    while not over.wait(min(sessions.idle / 4, 30.0)):
        with contextlib.suppress(Exception):  # one that cannot be closed is tried no more
            sessions.close_idle()
