"""An HTTP server in AgentGym's style: environments with ids, ``/create``, ``/reset`` and ``/step``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from .. import __version__
from ..envs.json_server import JsonServer, Refused, check_exposure
from ..errors import NoEpisode, OptionError, TaskNotFound
from .sessions import Sessions, seed_of, task_of

__all__ = ["EnvironmentServer"]

_LONGEST_NUMBER = 16


class EnvironmentServer(JsonServer):
    """Serves environments until it is shut down.

    Requests and answers are JSON objects. ``POST /create`` (``env``, ``options``) tells an ``id``; with
    it go ``POST /reset`` (one of ``task``, ``data_idx`` and ``game``, the task's id or place, and
    ``seed``), ``POST /step`` (``action``) and ``POST /close``; ``GET /observation?id=``,
    ``GET /available_actions?id=`` and ``GET /detail?id=`` tell of the present moment again. `reset`,
    `step` and ``/detail`` tell ``observation``, ``reward``, ``done``, ``terminated``, ``truncated``,
    ``available_actions`` (null where any text may do), ``facts`` (text, one fact a line), ``task``,
    ``split``, ``goal``, ``score``, ``success``, ``invalid_action``, ``step`` and, after a fault of the
    engine, ``error``. ``GET /`` tells which environments there are. Mistakes are told as
    ``{"error": ...}``: 404 for an unknown id or task, 409 without a running episode, 422 for other
    mistakes, 503 where as many as may be are open.

    Args:
        sessions: The environments that clients open.
        host: The address to listen at.
        port: The port; 0 for any that is free, see `base`.
        token: What requests must tell as ``Authorization: Bearer TOKEN``.

    Raises:
        OptionError: Other machines reach the address and there is no token.
        OSError: The address is taken, or not this machine's.

    Example:
        >>> from comap.integrations import Offered
        >>> from comap.integrations.agentgym_client import RemoteEnvironment
        >>> with EnvironmentServer(Sessions(Offered(["comap/ALFWorld-v0"]))) as server:
        ...     thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        ...     thread.start()
        ...     with RemoteEnvironment(server.base) as env:
        ...         told = env.reset(data_idx=0)
        ...         env.step(told["available_actions"][0])["done"]
        ...     server.shutdown()
        False
    """

    guarded: ClassVar[bool] = True
    routes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "/create": ("POST",),
        "/reset": ("POST",),
        "/step": ("POST",),
        "/close": ("POST",),
        "/observation": ("GET",),
        "/available_actions": ("GET",),
        "/detail": ("GET",),
        "/": ("GET",),
    }

    def __init__(
        self,
        sessions: Sessions,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ):
        check_exposure(host, token)
        self.sessions = sessions
        super().__init__(host, port, token)
        self._over = threading.Event()
        threading.Thread(target=self._tidy, daemon=True, name="comap-idle").start()

    def answer(self, method: str, path: str, asked: Any) -> Any:
        """Answer a request: see the class."""
        if not isinstance(asked, Mapping):
            raise OptionError(f"expected a JSON object, found {type(asked).__name__}")
        try:
            return self._posted(path, asked) if method == "POST" else self._asked(path, asked)
        except TaskNotFound as error:
            raise Refused(404, str(error)) from error
        except NoEpisode as error:
            raise Refused(409, str(error)) from error

    def server_close(self) -> None:
        """Close the server and everything that is open."""
        super().server_close()
        self._over.set()
        self.sessions.close_all()

    def _posted(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if path == "/create":
            number, session = self.sessions.create(asked.get("env"), asked.get("options"))
            tasks = len(session.env.get_wrapper_attr("tasks"))
            return {"id": number, "env": session.env_id, "tasks": tasks}
        place = asked.get("id")
        if path == "/close":
            return {"id": place, "closed": self.sessions.close(place)}
        with self.sessions.use(place) as session:
            if path == "/reset":
                return {"id": place} | session.reset(task_of(session, asked), seed_of(asked))
            return {"id": place} | session.step(asked.get("action"))

    def _asked(self, path: str, asked: Mapping[str, Any]) -> Any:
        if path == "/":
            return {
                "status": "ok",
                "comap": __version__,
                "environments": list(self.sessions.offered.env_ids),
                "options": list(self.sessions.offered.allowed),
                "open": len(self.sessions),
                "limit": self.sessions.limit,
            }
        text = str(asked.get("id", ""))
        plain = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
        place = int(text) if plain else None
        with self.sessions.use(place) as session:
            told = session.told()
        return {"id": place} | told if path == "/detail" else told[path[1:]]

    def _tidy(self) -> None:
        """Close idle environments from time to time."""
        while not self._over.wait(min(self.sessions.idle / 4, 30.0)):
            with contextlib.suppress(Exception):  # one that cannot be closed is tried no more
                self.sessions.close_idle()
