"""Our environments as OpenEnv servers: its own clients reset them and step in them."""

from __future__ import annotations

from contextlib import closing
from typing import Any, NamedTuple

from .. import __version__
from ..envs import Panel
from ..envs.http import CLIENT, Guard, Refused
from ..errors import CoMapError, NoEpisode, OptionError, TaskNotFound, needs_extra
from .sessions import Offered, Session, Share, seed_of, task_of

_STANDING = ("task", "split", "goal", "score", "success", "facts")
_STATUSES = ((TaskNotFound, 404), (NoEpisode, 409), (OptionError, 422))


class Parts(NamedTuple):
    """What an OpenEnv server is made of."""

    environment: Any
    action: Any
    observation: Any
    state: Any


def openenv_parts(offered: Offered) -> Parts:
    """Return the classes of an OpenEnv server for the first environment that is offered.

    Its ``reset`` takes ``seed``, ``episode_id``, and for the task ``task`` (an id), ``index`` or
    ``data_idx``, with ``split`` where clients may give that option.
    """
    with needs_extra("openenv", "serving OpenEnv"):
        from openenv.core.env_server import Environment, types

    class TextAction(types.Action):  # type: ignore[misc, unused-ignore]
        """An action, in words."""

        action: str

    class TextObservation(types.Observation):  # type: ignore[misc, unused-ignore]
        """What is told of a moment."""

        observation: str
        terminated: bool
        truncated: bool
        available_actions: list[str] | None
        facts: str
        task: str
        split: str
        goal: str
        score: float
        success: bool
        invalid_action: bool
        step: int
        error: str | None = None

    class TextState(types.State):  # type: ignore[misc, unused-ignore]
        """How an episode stands."""

        task: str = ""
        split: str = ""
        goal: str = ""
        score: float = 0.0
        success: bool = False
        facts: str = ""

    class TextEnvironment(_Tasks, Environment):  # type: ignore[misc, unused-ignore]
        """One client's environment."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            Environment.__init__(self)
            _Tasks.__init__(self, offered)

        def reset(self, seed: Any = None, episode_id: Any = None, **asked: Any) -> Any:
            return TextObservation(**self.begin(asked, seed, episode_id))

        def step(self, action: Any, timeout_s: Any = None, **_: Any) -> Any:
            return TextObservation(**self.session.step(action.action))

        @property
        def state(self) -> Any:
            return TextState(**self.standing())

        def get_metadata(self) -> Any:
            about = (type(self.session.env.unwrapped).__doc__ or "").strip().partition("\n")[0]
            name = self.session.env_id
            return types.EnvironmentMetadata(name=name, description=about, version=__version__)

    return Parts(TextEnvironment, TextAction, TextObservation, TextState)


class _Tasks:
    """An environment with its episode and its tasks, in OpenEnv's words but without OpenEnv."""

    def __init__(self, offered: Offered):
        self._offered, self._episode = offered, ""
        self.session = Session(offered.env_ids[0], offered.make(), seconds=offered.seconds)

    def begin(self, asked: dict[str, Any], seed: Any, episode: Any) -> dict[str, Any]:
        asked = _asked(asked)
        split = asked.pop("split", None)
        if split is not None and split != self._panel().split:
            made = self._offered.make(None, {"split": split})
            self.session.close()
            self.session = Session(self.session.env_id, made, seconds=self._offered.seconds)
        message = self.session.reset(task_of(self.session, asked), seed_of({"seed": seed}))
        self._episode = "" if episode is None else str(episode)[:200]
        return message

    def standing(self) -> dict[str, Any]:
        """Tell how the episode stands; nothing before the first."""
        if self.session.moment is None:
            return {}
        message = self.session.message()
        kept = {name: message[name] for name in _STANDING}
        return kept | {"episode_id": self._episode or None, "step_count": message["step"]}

    def close(self) -> None:
        self.session.close()

    def list_splits(self) -> list[str]:
        panel = self._panel()
        return list(panel.splits) if "split" in self._offered.allowed else [panel.split]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def num_tasks(self, split: str) -> int:
        return len(self._panel(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return {"id": self._panel(split).ids[index], "index": index}

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        listed = [{"id": name, "index": index} for index, name in enumerate(self._panel(split))]
        return listed[start:stop]

    def _panel(self, split: str | None = None) -> Panel:
        """Return the tasks of a split; of the present one for None."""
        panel: Panel = self.session.env.get_wrapper_attr("tasks")
        if split is None or split == panel.split:
            return panel
        with closing(self._offered.make(None, {"split": split})) as env:
            panel = env.get_wrapper_attr("tasks")
        return panel


def openenv_app(
    offered: Offered,
    *,
    host: str,
    token: str | None = None,
    limit: int = 64,
    idle: float = 3600.0,
    share: int | None = None,
) -> Any:
    parts = openenv_parts(offered)
    from openenv.core.env_server import create_fastapi_app
    from openenv.core.env_server.types import ConcurrencyConfig
    from starlette.responses import JSONResponse

    app = create_fastapi_app(
        parts.environment,
        parts.action,
        parts.observation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=limit, session_timeout=idle),
        env_name=offered.env_ids[0].rpartition("/")[2],
        state_cls=parts.state,
        mode="simulation",
    )

    async def refuse(_: Any, error: Exception) -> Any:
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
        status = error.status if isinstance(error, Refused) else status
        return JSONResponse({"error": str(error)}, status_code=status)

    app.add_exception_handler(CoMapError, refuse)
    return Guard(_Sockets(app, Share(limit, share, whole=False)), host, token)


class _Sockets:
    """An ASGI application whose WebSockets, each with an environment, are shared among clients.

    OpenEnv itself sees to the limit of all.
    """

    def __init__(self, app: Any, share: Share):
        self._app, self._share = app, share

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        socket, client = scope["type"] == "websocket", CLIENT.get()
        if socket:
            self._share.take(client)
        try:
            await self._app(scope, receive, send)
        finally:
            if socket:
                self._share.give_back(client)


def _asked(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what a client said of the task, if it is known."""
    for name in asked:
        if name not in ("task", "data_idx", "index", "split"):
            raise OptionError(f"expected task, index, data_idx or split, found {name[:80]!r}")
    if "index" not in asked:
        return asked
    rest = {name: value for name, value in asked.items() if name != "index"}
    if rest.get("data_idx") is not None:
        raise OptionError("expected one of 'index' and 'data_idx', found both")
    return rest | {"data_idx": asked["index"]}
