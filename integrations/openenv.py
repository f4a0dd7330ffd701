"""Our environments for OpenEnv: classes that its stacks import, a server for its clients, a client.

The module needs the extra ``openenv``. Observations have what a policy may see; what measures its
progress is in the state, which orchestrators ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any, ClassVar

from .. import __version__
from ..envs import Panel
from ..envs.http import CLIENT, Guard, Refused
from ..errors import CoMapError, NoEpisode, OptionError, TaskNotFound, needs_extra
from .sessions import IDLE, Offered, Session, Share, seed_of, task_of

with needs_extra("openenv", "OpenEnv"):
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server import Environment, create_fastapi_app, types
    from starlette.responses import JSONResponse

_OBSERVED = ("observation", "available_actions", "reward", "done")
_STATUSES = ((TaskNotFound, 404), (NoEpisode, 409), (OptionError, 422))


class TextAction(types.Action):  # type: ignore[misc, unused-ignore]
    """An action, in words."""

    action: str


class TextObservation(types.Observation):  # type: ignore[misc, unused-ignore]
    """What a policy sees: the text, and the admissible actions where the environment lists them."""

    observation: str
    available_actions: list[str] | None = None


class TextState(types.State):  # type: ignore[misc, unused-ignore]
    """How an episode stands: the task, the progress, the state facts as text. Not for the policy.

    ``instructions`` are what a policy is to be told before it begins: what an action looks like.
    """

    task: str = ""
    split: str = ""
    goal: str = ""
    score: float = 0.0
    success: bool = False
    facts: str = ""
    terminated: bool = False
    truncated: bool = False
    invalid_action: bool = False
    error: str | None = None
    instructions: str = ""


class TextEnvironment(Environment):  # type: ignore[misc, unused-ignore]
    """One of comap's environments, for OpenEnv's server or for a stack that imports a class.

    A subclass says which, and is made without arguments. `reset` takes ``seed``, ``episode_id``, and for
    the task ``task`` (an id), ``index`` or ``data_idx``, with ``split``.

    Args:
        offered: What clients may make, of which this is the first; None for the subclass's own.

    Raises:
        MissingExtra: The package ``openenv`` is not installed.
        OptionError: The id is none of comap's, or an option has a value that it cannot have.

    Example:
        >>> env = ALFWorldEnvironment()
        >>> observation = env.reset(split="valid_seen", index=3)
        >>> observation = env.step(TextAction(action="inventory"))
        >>> observation.observation, env.state.step_count
        ('You are not carrying anything.', 1)
        >>> env.close()
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    env_id: ClassVar[str] = "comap/ALFWorld-v0"
    """A registered id, or ``module:id``, which imports the module."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Of the environment."""

    def __init__(self, offered: Offered | None = None):
        super().__init__()
        self._offered = offered or Offered([self.env_id], self.options, ["split"])
        self._episode: str | None = None
        self._open()

    def reset(self, seed: Any = None, episode_id: Any = None, **request: Any) -> TextObservation:
        task_request = _task_request(request)
        split = task_request.pop("split", None)
        if split is not None and split != self._panel().split:
            # The old environment is closed last: where there is no such split, it goes on.
            session_before = self._session
            self._open({"split": split})
            session_before.close()

        self._session.reset(task_of(self._session, task_request), seed_of({"seed": seed}))
        self._episode = None if episode_id is None else str(episode_id)[:200]
        return self._observation()

    def step(self, action: Any, timeout_s: Any = None, **_: Any) -> TextObservation:
        self._session.step(action.action)
        return self._observation()

    @property
    def state(self) -> TextState:
        """How the episode stands, and what an agent is to be told of the environment."""
        instructions = self._session.instructions
        if self._session.moment is None:
            return TextState(instructions=instructions)
        message = self._session.message()
        fields = {name: value for name, value in message.items() if name in TextState.model_fields}
        return TextState(
            episode_id=self._episode,
            step_count=message["step"],
            instructions=instructions,
            **fields,
        )

    def get_metadata(self) -> Any:
        docstring = type(self._session.env.unwrapped).__doc__ or ""
        summary = docstring.strip().partition("\n")[0]
        return types.EnvironmentMetadata(
            name=self._session.env_id,
            description=f"{summary}\n\n{self._session.instructions}",
            version=__version__,
        )

    def close(self) -> None:
        self._session.close()

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
        tasks = [{"id": name, "index": index} for index, name in enumerate(self._panel(split))]
        return tasks[start:stop]

    def _open(self, options: Mapping[str, Any] | None = None) -> None:
        offered = self._offered
        env = offered.make(None, options)
        self._session = Session(offered.env_ids[0], env, seconds=offered.seconds)

    def _observation(self) -> TextObservation:
        """Return what a policy may see: scores and facts are in the `state`, for orchestrators."""
        message = self._session.message()
        return TextObservation(**{name: message[name] for name in _OBSERVED})

    def _panel(self, split: str | None = None) -> Panel:
        """Return the tasks of a split; of the present one for None."""
        panel: Panel = self._session.env.get_wrapper_attr("tasks")
        if split is None or split == panel.split:
            return panel
        with closing(self._offered.make(None, {"split": split})) as env:
            panel = env.get_wrapper_attr("tasks")
        return panel


class ALFWorldEnvironment(TextEnvironment):
    """`comap.envs.alfworld.ALFWorldEnv` for OpenEnv."""

    env_id = "comap/ALFWorld-v0"


class ScienceWorldEnvironment(TextEnvironment):
    """`comap.envs.scienceworld.ScienceWorldEnv` for OpenEnv."""

    env_id = "comap/ScienceWorld-v0"


class WebShopEnvironment(TextEnvironment):
    """`comap.envs.webshop.WebShopEnv` for OpenEnv."""

    env_id = "comap/WebShop-v0"


class StableToolBenchEnvironment(TextEnvironment):
    """`comap.envs.stabletoolbench.StableToolBenchEnv` for OpenEnv."""

    env_id = "comap/StableToolBench-v0"


class SearchQAEnvironment(TextEnvironment):
    """`comap.envs.searchqa.SearchQAEnv` for OpenEnv."""

    env_id = "comap/SearchQA-v0"


class WebEnvironment(TextEnvironment):
    """`comap.envs.web.WebEnv` for OpenEnv."""

    env_id = "comap/Web-v0"


class TextClient(EnvClient):  # type: ignore[misc, unused-ignore]
    """OpenEnv's client with the types of this module: ``TextClient(base_url=...).sync()``."""

    def _step_payload(self, action: TextAction) -> dict[str, Any]:
        return {"action": action.action}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        # OpenEnv's server sends both beside the observation, and not in it.
        outcome = {"reward": payload["reward"], "done": payload["done"]}
        observation = TextObservation(**payload["observation"], **outcome)
        return StepResult(observation=observation, **outcome)

    def _parse_state(self, payload: dict[str, Any]) -> TextState:
        return TextState(**payload)


def openenv_app(
    offered: Offered,
    *,
    host: str,
    token: str | None = None,
    limit: int = 64,
    idle: float = IDLE,
    share: int | None = None,
) -> Any:
    """Return the web application that serves the first environment that is offered.

    Args:
        offered: What clients may make.
        host: Where it will listen; other machines are answered only with a `token`.
        token: What requests must send as ``Authorization: Bearer TOKEN``; None for no token.
        limit: How many environments may be open.
        idle: Seconds after which one that nobody used is closed.
        share: How many a client may have open: see `comap.integrations.sessions.Share`.

    Raises:
        OptionError: Other machines can reach `host`, and there is no token.
    """
    app = create_fastapi_app(
        partial(TextEnvironment, offered),
        TextAction,
        TextObservation,
        concurrency_config=types.ConcurrencyConfig(max_concurrent_envs=limit, session_timeout=idle),
        env_name=offered.env_ids[0].rpartition("/")[2],
        state_cls=TextState,
        mode="simulation",
    )

    async def refuse(_: Any, error: Exception) -> Any:
        if isinstance(error, Refused):
            status = error.status
        else:
            status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
        return JSONResponse({"error": str(error)}, status_code=status)

    app.add_exception_handler(CoMapError, refuse)
    return Guard(_Sockets(app, Share(limit, share, limits_total=False)), host, token)


class _Sockets:
    """An ASGI application whose WebSockets, each with an environment, are shared among clients.

    OpenEnv itself sees to the limit of all.
    """

    def __init__(self, app: Any, share: Share):
        self._app = app
        self._share = share

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = CLIENT.get()
        is_socket = scope["type"] == "websocket"
        if is_socket:
            self._share.take(client)
        try:
            await self._app(scope, receive, send)
        finally:
            if is_socket:
                self._share.give_back(client)


def _task_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a client said of the task, with its ``index`` under comap's name for it."""
    for name in request:
        if name not in ("task", "data_idx", "index", "split"):
            raise OptionError(f"expected task, index, data_idx or split, found {name[:80]!r}")
    if "index" not in request:
        return dict(request)

    task_request = {name: value for name, value in request.items() if name != "index"}
    if task_request.get("data_idx") is not None:
        raise OptionError("expected one of 'index' and 'data_idx', found both")
    return task_request | {"data_idx": request["index"]}
