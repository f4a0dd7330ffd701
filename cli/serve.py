"""``comap serve env | search | tools``, and ``comap hub``: environments and results for others."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..envs.generated import is_generated, tasks_in_words
from ..envs.http import Server, check_exposure, new_token, read_token
from ..errors import OptionError, check_number
from .options import WORD, Command, Pairs

if TYPE_CHECKING:
    from ..integrations import Offered
    from ..integrations.recording import Recording


@dataclass(frozen=True, kw_only=True)
class Address(Command):
    """Address."""

    host: str = "127.0.0.1"
    """Address to listen on; 127.0.0.1 serves this machine only."""
    port: int = 8000
    """Port to listen on; 0 for any free one."""
    token: bool = True
    """Require a token with each request, as 'Authorization: Bearer TOKEN'; without one, only programs
    on this machine are served."""
    token_file: Path | None = None
    """File with the token (default: the variable COMAP_SERVE_TOKEN, or else a new token, which is
    printed)."""

    @property
    def is_private(self) -> bool:
        """Whether nobody but the server's clients reaches its network."""
        return False

    def secret(self) -> str | None:
        """Return the token; without one, an address that other machines reach is refused."""
        check_number("--port", self.port, 0, 65_535)
        known_token = read_token(self.token_file)
        token = None
        if self.token:
            token = known_token or new_token()
        check_exposure(self.host, token, is_private=self.is_private)

        # Whoever gave a token knows it: only a new one is printed.
        if token is not None and token != known_token:
            print(f"token: {token} (clients send the header 'Authorization: Bearer {token}')")
        return token

    def serve(self, app: Any, route: str, lines: Sequence[str] = ()) -> int:
        """Serve an ASGI application until it is stopped, and return the exit status.

        `lines` say what is served.
        """
        try:
            server = Server(app, self.host, self.port)
        except OSError as error:
            raise OptionError(
                f"cannot listen on {self.host} port {self.port}: {error.strerror or error}; choose "
                "another --port or --host"
            ) from error

        # Flushed at once: programs that start a server wait for the first line, which has its port.
        print("\n".join([f"serving {server.base}{route}", *lines]), flush=True)
        with stopped_by_ctrl_c():
            server.run()
        return 0


@contextmanager
def stopped_by_ctrl_c() -> Iterator[None]:
    """Take Ctrl-C for the end of a server."""
    try:
        yield
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class Environments(Address):
    """Serve environments to programs in other stacks, by reset and step.

    Clients choose among the environments named here, and may set the options named by --allow;
    everything else in a request is ignored.
    """

    example: ClassVar[str] = "comap serve env --env comap/ALFWorld-v0 --env comap/WebShop-v0"

    env: tuple[str, ...]
    """Ids of environments; the first is the default."""
    style: Literal["agentgym", "openenv", "mcp"] = "agentgym"
    """Protocol: agentgym (POST /create, /reset, /step), openenv, or mcp (tools for language agents)."""
    stdio: bool = False
    """With --style mcp: serve one client, on standard input and output."""
    env_option: Pairs = field(default_factory=dict)
    """Option of the environments. Repeatable."""
    allow: tuple[str, ...] = ()
    """Names of options that clients may set, such as split."""
    limit: int = 64
    """Maximum number of open environments."""
    share: int | None = None
    """Maximum number of open environments of one client address (default: half of --limit; all of it
    for programs on this machine)."""
    step_timeout: float = 60.0
    """Maximum number of seconds of a reset or a step."""
    idle: float = 600.0
    """Seconds after which an unused environment is closed: 30 where --limit is reached."""
    port: int = 36_001
    """Port to listen on; 0 for any free one."""
    record: Path | None = None
    """With --style mcp: folder to record the episodes in, as comap run does; one that was begun with the
    same options is gone on with."""
    agent: str = "mcp"
    """With --record: name of who plays, for the record."""
    task: str | None = None
    """With --style mcp: id of the only task. It has one episode, which all clients share and nobody
    begins anew, and how far it is, is told to no client."""
    private_network: bool = False
    """With --style mcp and --no-token: serve other machines too, since nobody else reaches them, as
    among the containers of one compose file."""

    def run(self) -> int:
        from ..integrations import Offered, Sessions
        from ..integrations.agentgym import agentgym_app

        self._check_style()
        token = None if self.stdio else self.secret()
        offered = Offered(self.env, self.env_option, self.allow, self.step_timeout)
        lines: list[str] = []
        for env_id in offered.env_ids:  # wrong options are told now, not to the first client
            with closing(offered.make(env_id)) as env:
                tasks = env.get_wrapper_attr("tasks").ids
                if self.task is not None and self.task not in tasks:
                    env.reset(options={"task": self.task})  # says what is wrong with it
            number = tasks_in_words(len(tasks), sum(map(is_generated, tasks)))
            lines.append(f"{env_id}: {number}")

        if self.style == "agentgym":
            sessions = Sessions(offered, self.limit, self.idle, share=self.share)
            return self.serve(agentgym_app(sessions, host=self.host, token=token), "", lines)

        # The other protocols have no word for which environment a client wants.
        if len(offered.env_ids) > 1:
            raise OptionError(
                f"--style {self.style} serves one environment, found {len(offered.env_ids)}; name one"
            )
        settings: dict[str, Any] = {
            "limit": self.limit,
            "idle": self.idle,
            "share": self.share,
            "host": self.host,
            "token": token,
        }
        if self.style == "openenv":
            from ..integrations.openenv import openenv_app  # needs an extra as it is imported

            return self.serve(openenv_app(offered, **settings), "", lines)
        return self._serve_mcp(offered, settings, lines)

    def _check_style(self) -> None:
        """Refuse options that say nothing here."""
        if self.record is None and self.agent != "mcp":
            raise OptionError("--agent is about --record; give a folder to record in, too")
        if self.style == "mcp":
            return
        given = {
            "--stdio": self.stdio,
            "--record": self.record,
            "--task": self.task,
            "--private-network": self.private_network,
        }
        for option, value in given.items():
            if value:
                raise OptionError(f"{option} is for --style mcp alone")

    @property
    def is_private(self) -> bool:
        return self.private_network

    def _serve_mcp(
        self, offered: Offered, settings: Mapping[str, Any], lines: Sequence[str]
    ) -> int:
        """Serve MCP until the server is stopped; return 1 where something could not be recorded."""
        from ..integrations.mcp import http_app, serve_stdio

        with ExitStack() as stack:
            recording = None
            if self.record is not None:
                recording = stack.enter_context(self._recording(offered))
                stack.enter_context(closed_by_sigterm(recording))
                lines = [*lines, f"recording in {self.record}"]
            if self.stdio:
                print(
                    "\n".join(lines), file=sys.stderr, flush=True
                )  # standard output is the client's
                with stopped_by_ctrl_c():
                    serve_stdio(offered, recording, self.task)
            else:
                app = http_app(
                    offered,
                    recording=recording,
                    task=self.task,
                    is_private=self.private_network,
                    **settings,
                )
                self.serve(app, "/mcp", lines)

        missing = 0 if recording is None else recording.unwritten
        if missing:
            print(f"comap: {missing} episodes could not be recorded", file=sys.stderr)
        return 1 if missing else 0

    def _recording(self, offered: Offered) -> Recording:
        from ..benchmarks.record import circumstances
        from ..integrations.recording import Recording

        assert self.record is not None
        about = circumstances(("gymnasium", "numpy", "mcp"))
        about |= {"data_dir": offered.options.get("data_dir"), "options": self.options()}
        return Recording(self.record, offered, agent=self.agent, about=about)


@contextmanager
def closed_by_sigterm(recording: Recording) -> Iterator[None]:
    """Close a recording before SIGTERM ends this process, as it would without."""

    def close(number: int, _: object) -> None:
        recording.close()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, close)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, kw_only=True)
class Search(Address):
    """Serve an index for search.

    POST /retrieve takes 'queries' as Search-R1's server does, or 'query' as verl-agent's; GET /health
    returns the server's status.
    """

    example: ClassVar[str] = "comap serve search --data-dir wiki --port 8000"

    data_dir: Path | None = None
    """Folder of an index (default: comap's, or else the generated encyclopedia's)."""
    retriever: str = "auto"
    """Retriever: auto, fts5, tantivy, dense or hybrid."""
    max_topk: int = 100
    """Maximum number of passages in an answer."""

    def run(self) -> int:
        from ..envs.searchqa.retriever import retrieval_app
        from ..envs.searchqa.tasks import choose_retriever, index_home

        token = self.secret()

        # Without an index anywhere, the generated encyclopedia's is built: a server to try out.
        generated = self.data_dir is None and not index_home().is_dir()
        retriever = choose_retriever(self.retriever, self.data_dir, generated)
        app = retrieval_app(retriever, self.max_topk, host=self.host, token=token)
        return self.serve(app, f"/retrieve ({retriever.identity})")


@dataclass(frozen=True, kw_only=True)
class Tools(Address):
    """Serve tools as StableToolBench's server does.

    POST /virtual answers from the generated tools, the official cache of responses, and the other
    sources named here.
    """

    example: ClassVar[str] = "comap serve tools --data-dir StableToolBench"
    former: ClassVar[Mapping[str, str]] = {"seed": "--world"}

    data_dir: Path | None = None
    """Folder with tool_response_cache/."""
    seed: int = 0
    """Seed of the generated tools."""
    generated: bool = True
    """Serve the generated tools."""
    live_url: str | None = None
    """Address of another /virtual server to ask."""
    simulator: str | None = None
    """Language model that simulates tools without an answer elsewhere."""
    engine: str = "auto"
    """What runs a simulator of Hugging Face: hf, vllm, the address of a 'vllm serve', or auto."""
    overlay: Path | None = None
    """File that keeps the answers of these two."""
    timeout: float = 30.0
    """Maximum number of seconds to wait for an answer of theirs."""
    port: int = 8080
    """Port to listen on; 0 for any free one."""

    def run(self) -> int:
        from ..envs.stabletoolbench.backends import (
            CACHE_FOLDER,
            VirtualTools,
            open_chain,
            virtual_app,
        )
        from ..lm.create import check_engine_of, takes_engine
        from .models import model_in

        token = self.secret()
        check_number("--seed", self.seed, 0)
        folder = self.data_dir
        if folder is not None and not (folder / CACHE_FOLDER).is_dir():
            raise OptionError(
                f"--data-dir must have a folder {CACHE_FOLDER}, found none in {folder}; name another"
            )
        simulator: Any = self.simulator
        if simulator is not None:
            check_engine_of(simulator, None, self.engine)
            if takes_engine(simulator):
                simulator = model_in(self.engine, simulator, {})
        backends = open_chain(folder, self.live_url, simulator, self.overlay, self.timeout)
        tools = VirtualTools(backends, self.seed if self.generated else None)
        return self.serve(virtual_app(tools, host=self.host, token=token), "/virtual")


@dataclass(frozen=True, kw_only=True)
class Push(Command):
    """Push a run's trajectories as a data set, or adapters and small models.

    The environment variable HF_TOKEN holds the token.
    """

    example: ClassVar[str] = "comap hub push trajectories runs/first me/first --license cc-by-4.0"
    former: ClassVar[Mapping[str, str]] = {"license": "--licence"}

    kind: Literal["trajectories", "models"] = field(metadata=WORD)
    """What to push: trajectories or models."""
    source: Path = field(metadata=WORD)
    """Folder of a run; for models, of the models or of their training."""
    target: str = field(metadata=WORD)
    """OWNER/NAME on the Hub, or local:DIR for a folder."""
    license: str
    """License for others, your choice: apache-2.0, cc-by-4.0, ..."""
    title: str | None = None
    """Title of the card (default: the source's name)."""
    private: bool = False
    """Make a new repository private."""
    evaluation: Path | None = None
    """For models: folder of a run that they played, for the card."""

    def run(self) -> int:
        from ..integrations.hub import push_model, push_trajectories

        options = dict(vars(self))
        kind = options.pop("kind")
        evaluation = options.pop("evaluation")
        if kind == "models":
            pushed = push_model(**options, evaluation=evaluation)
        elif evaluation is not None:
            raise OptionError("--evaluation is about models; leave it out")
        else:
            pushed = push_trajectories(**options)

        if pushed.skipped:
            print(f"left out: {', '.join(pushed.skipped)}"[:2000], file=sys.stderr)
        print(f"{pushed.location}: {pushed.files} files, {pushed.size:,} bytes")
        print(f"revision: {pushed.revision}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Load(Command):
    """Load what comap pushed into a new folder.

    Names, sizes, checksums and types are checked, and nothing is unpickled.
    """

    example: ClassVar[str] = "comap hub load models me/agent --out models/agent"

    kind: Literal["trajectories", "models"] = field(metadata=WORD)
    """What to load: trajectories or models."""
    source: str = field(metadata=WORD)
    """OWNER/NAME on the Hub, or local:DIR for a folder."""
    out: Path
    """Folder to write; a new one."""
    revision: str | None = None
    """Commit, branch or tag."""
    most_bytes: int | None = None
    """Maximum number of bytes to load (default: 64 GiB)."""

    def run(self) -> int:
        from ..integrations.hub import load_model, load_trajectories

        load = load_model if self.kind == "models" else load_trajectories
        limits: dict[str, Any] = {} if self.most_bytes is None else {"most_bytes": self.most_bytes}
        loaded = load(self.source, self.out, revision=self.revision, **limits)
        print(
            f"{loaded.path}: {loaded.size:,} bytes of {loaded.location}\nrevision: {loaded.revision}"
        )
        return 0
