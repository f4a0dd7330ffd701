"""What a server lets its clients make, and the environments that they have open."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium

from ..agents.prompting import MOST_ACTIONS
from ..envs import TextEnv
from ..envs.http import ANSWER_SECONDS, CLIENT, Refused, is_loopback
from ..envs.registry import class_of, not_ours, registered
from ..errors import NoEpisode, OptionError, TaskNotFound, check_number, suggest

_LONGEST_NAME = 300
_MOST_OPTIONS = 32
_PLACE_CHARACTERS = frozenset("/\\:")  # without these, a text is no path and no address
_WAIT = 5.0  # seconds for an environment that another request uses
IDLE = 600.0
"""Seconds after which an environment that nobody used is closed, unless one says otherwise."""
SPARED = 30.0
"""Seconds without use before which an environment is not closed for another one."""

Worth: TypeAlias = Literal["return", "score", "success"]
"""What a rollout is worth: the sum of its rewards, its score at the end, or 1 for success."""


def text_env_class(env_id: str) -> type[TextEnv]:
    """Return the class of a registered environment of comap; `TextEnv` where a function makes it."""
    cls = class_of(registered(env_id)) or TextEnv
    if not issubclass(cls, TextEnv):
        raise OptionError(not_ours(repr(env_id)))
    return cls


def make_env(env_id: str, options: Mapping[str, Any]) -> gymnasium.Env[str, str]:
    """Make a registered environment of comap."""
    env: gymnasium.Env[str, str] = gymnasium.make(registered(env_id), **options)
    if not isinstance(env.unwrapped, TextEnv):
        raise OptionError(not_ours(repr(env_id)))
    return env


class Offered:
    """The environments that clients may make, and the options that they may give.

    Nothing else comes from a client: a name is looked up, options have names of this list and values
    of plain JSON, and options that are places (files, programs, addresses) cannot be on it. Some may be
    a word or a place, such as search QA's ``retriever``: of clients no text is taken that has a slash,
    a backslash or a colon in it.

    Args:
        env_ids: Registered ids of comap's environments, the default first; ``module:id`` imports the
            module, and clients use the plain id.
        options: Given to each of them by whoever starts the server.
        allowed: Names of options that clients may give, over these.
        seconds: The most seconds for a reset or a step.

    Raises:
        OptionError: An id is none of comap's, an option is a place, or `seconds` is not above 0.
        gymnasium.error.Error: An id is not registered.

    Example:
        >>> offered = Offered(["comap/ALFWorld-v0"], {"source": "generated"}, ["split"])
        >>> offered.make(None, {"split": "valid_seen"}).unwrapped.tasks.split
        'valid_seen'
        >>> offered.make(None, {"data_dir": "/etc"})
        Traceback (most recent call last):
        ...
        comap.errors.OptionError: expected options of 'split', found 'data_dir'
    """

    def __init__(
        self,
        env_ids: Sequence[str],
        options: Mapping[str, Any] | None = None,
        allowed: Collection[str] = (),
        seconds: float = ANSWER_SECONDS,
    ):
        if not seconds > 0:
            raise OptionError(f"a step must have more than 0 seconds, not {seconds!r}")
        if isinstance(env_ids, str) or not env_ids:
            raise OptionError(f"expected a list of ids of environments, found {env_ids!r}")

        self.env_ids = tuple(registered(env_id) for env_id in env_ids)
        self.options = dict(options or {})
        self.seconds = seconds
        self.allowed = tuple(sorted(set(allowed)))

        # A client that chose a file, a program or an address could read this machine, or reach others.
        for env_id in self.env_ids:
            local_options = text_env_class(env_id).local_options
            for name in self.allowed:
                if name in local_options or name == "render_mode":
                    raise OptionError(
                        f"clients may not choose {name!r}: it says where something on this machine is; "
                        f"give it to the server itself (--env-option {name}=...)"
                    )

    def chosen(self, env_id: Any) -> str:
        """Return the id that a client asked for, or the default where it asked for none."""
        if env_id is None:
            return self.env_ids[0]
        if not isinstance(env_id, str) or env_id not in self.env_ids:
            name = env_id[:_LONGEST_NAME] if isinstance(env_id, str) else type(env_id).__name__
            offered = ", ".join(map(repr, self.env_ids))
            raise Refused(
                404, f"expected an environment of this server, found {name!r}; known: {offered}"
            )
        return env_id

    def make(self, env_id: Any = None, asked: Any = None) -> gymnasium.Env[str, str]:
        """Return a new environment with the options that a client gave, if both are allowed."""
        return make_env(self.chosen(env_id), self.options | self.checked(asked))

    def checked(self, asked: Any) -> dict[str, Any]:
        """Return the options that a client gave, if they are allowed."""
        if asked is None:
            return {}
        if not isinstance(asked, Mapping) or len(asked) > _MOST_OPTIONS:
            raise OptionError("expected 'options' to be an object with names and values")

        for name, value in asked.items():
            if name not in self.allowed:
                names = ", ".join(map(repr, self.allowed)) or "none: the server allows no options"
                raise OptionError(f"expected options of {names}, found {name[:_LONGEST_NAME]!r}")

            is_short_text = isinstance(value, str) and len(value) <= _LONGEST_NAME
            if not (is_short_text or isinstance(value, bool | int | float) or value is None):
                raise OptionError(
                    f"expected option {name!r} to be a short text, a number, true, false or null"
                )
            if isinstance(value, str) and _PLACE_CHARACTERS & set(value):
                raise OptionError(
                    f"expected a word for option {name!r}, found what may be a place or an address; "
                    "only whoever starts the server chooses those"
                )
        return dict(asked)


def with_goal(observation: str, goal: str) -> str:
    """Return a first observation as those read it who are told nothing else: with the goal in it."""
    return observation if (goal or "") in observation else f"{observation}\n{goal}"


def listing_of(actions: Sequence[str]) -> str:
    """Return the admissible actions as those read them who are told nothing else."""
    listing = f"Available actions: {'; '.join(actions[:MOST_ACTIONS])}"
    left_out_count = len(actions) - MOST_ACTIONS
    if left_out_count > 0:
        listing += f"; and {left_out_count} more"
    return listing


class Moment(NamedTuple):
    """What `reset` or `step` of an environment returned, in Gymnasium's order."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Session:
    """One environment that a client has open: `moment` is what its last `reset` or `step` returned.

    Whoever uses it holds `lock`; `used` is when that was last. A reset or a step that takes more than
    `seconds` is given up: until it ends, nothing else can be done with the environment.
    """

    def __init__(
        self,
        env_id: str,
        env: gymnasium.Env[str, str],
        now: float = 0.0,
        seconds: float | None = ANSWER_SECONDS,
    ):
        self.env_id = env_id
        self.env = env
        self.used = now
        self.seconds = seconds
        self.lock = threading.Lock()
        self.client = CLIENT.get()
        self.foreign = False  # whether its client reads the keys of another project's server
        self.moment: Moment | None = None

        # Calls are made in one thread, which a request can stop waiting for: threads cannot be ended.
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._last: Future[Any] | None = None

    @property
    def instructions(self) -> str:
        """What a language model is told of the environment: what an action looks like, and so on."""
        inner: Any = self.env.unwrapped
        instructions: str = inner.briefing.told()
        return instructions

    def reset(self, task: Any = None, seed: Any = None) -> dict[str, Any]:
        """Start an episode and return its `message`."""
        options = None if task is None else {"task": task}
        observation, info = self._timed(partial(self.env.reset, seed=seed, options=options))
        self.moment = Moment(observation, 0.0, False, False, info)
        return self.message()

    def step(self, action: Any) -> dict[str, Any]:
        """Take an action and return its `message`."""
        if not isinstance(action, str):
            raise OptionError(f"expected 'action' to be a text, found {type(action).__name__}")
        if self.moment is None:
            raise NoEpisode("expected a running episode, found none; reset first")
        if self.moment.done:
            raise NoEpisode("expected a running episode, found one that has ended; reset first")

        moment = Moment(*self._timed(partial(self.env.step, action)))
        self.moment = moment._replace(reward=float(moment.reward))
        return self.message()

    def message(self) -> dict[str, Any]:
        """Return the present moment as JSON data; facts as text, one a line."""
        if self.moment is None:
            raise NoEpisode("expected an episode, found none; reset first")

        moment = self.moment
        info = moment.info
        observation = moment.observation
        if not info["step"]:
            observation = with_goal(observation, info["goal"])
        admissible_actions = info["admissible_actions"]
        message = {
            "observation": observation,
            "reward": moment.reward,
            "done": moment.done,
            "terminated": moment.terminated,
            "truncated": moment.truncated,
            "available_actions": None if admissible_actions is None else list(admissible_actions),
            "facts": info["facts"].to_text(),
        }
        names = ("task", "split", "goal", "score", "success", "invalid_action", "step")
        message |= {name: info[name] for name in names}
        if "error" in info:
            message["error"] = str(info["error"])
        return message

    def close(self) -> None:
        """Close the environment, unless a step still goes on in it."""
        if not self.busy:
            self._jobs.put(None)
            self.env.close()

    @property
    def busy(self) -> bool:
        """Whether a reset or a step that was given up still goes on."""
        return self._last is not None and not self._last.done()

    def _timed(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns in the environment's own thread, if it does so in time."""
        if self.busy:
            raise Refused(409, "the environment still takes an earlier step; try later")
        if self._last is None:
            threading.Thread(target=self._work, daemon=True, name="comap-steps").start()
        future = Future[Any]()
        self._last = future
        self._jobs.put((future, call))

        # An engine that hangs would hold its client, and the server's threads, for ever.
        if not wait([future], self.seconds).done:
            self.moment = None
            raise Refused(504, f"expected an answer within {self.seconds:g} s, found none")
        return future.result()

    def _work(self) -> None:
        """Make the calls that come, until `close` sends None."""
        while (job := self._jobs.get()) is not None:
            future, call = job
            try:
                future.set_result(call())
            except BaseException as error:  # whoever waits for it must learn of it, whatever it is
                future.set_exception(error)


class Sessions:
    """The environments that the clients of a server have open, each with an id that nobody guesses.

    Clients that break off close nothing: where no more may be open, the environment that was unused
    longest is closed for a new one, if that was for 30 seconds or more.

    Args:
        offered: What clients may make.
        limit: How many may be open.
        idle: Seconds after which one that nobody used is closed.
        clock: Tells the time.
        share: How many a client may have open: see `Share`.

    Raises:
        OptionError: A number is not above 0.

    Example:
        >>> sessions = Sessions(Offered(["comap/ALFWorld-v0"]), limit=1)
        >>> name, _ = sessions.create()
        >>> with sessions.use(name) as session:
        ...     session.reset(seed=0)["done"]
        False
        >>> sessions.close(name), len(sessions)
        (True, 0)
    """

    def __init__(
        self,
        offered: Offered,
        limit: int = 64,
        idle: float = IDLE,
        clock: Callable[[], float] = time.monotonic,
        share: int | None = None,
    ):
        self.share = Share(limit, share)
        self.limit = limit
        if not idle > 0:
            raise OptionError(f"idle must be above 0 seconds, not {idle!r}")
        self.offered = offered
        self.idle = idle
        self._clock = clock
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def create(self, env_id: Any = None, options: Any = None) -> tuple[str, Session]:
        """Open an environment, if it is offered and there is room; return its id and itself."""
        offered_id = self.offered.chosen(env_id)
        client = CLIENT.get()
        self.close_idle()
        self._make_room(client)

        # Counted before it is made: many requests at once must not pass the limit together.
        self.share.take(client)
        try:
            env = self.offered.make(offered_id, options)
            session = Session(offered_id, env, self._clock(), self.offered.seconds)
        except BaseException as error:
            self.share.give_back(client)
            if isinstance(error, TypeError | AssertionError):  # of a value's type, by Gymnasium
                raise OptionError(
                    f"expected options that {offered_id} can have ({error})"
                ) from error
            raise

        # Who knows an id may use the environment: nobody must be able to guess one.
        name = secrets.token_hex(16)
        self._open[name] = session
        return name, session

    @contextmanager
    def use(self, name: Any) -> Iterator[Session]:
        """Lend an open environment to one user at a time."""
        session = self._open.get(name) if isinstance(name, str) else None
        if session is None:
            raise self._unknown(name)
        if not session.lock.acquire(timeout=_WAIT):
            raise Refused(409, "another request uses this environment; try later")
        try:
            # Another request may have closed it while this one waited.
            if self._open.get(name) is not session:
                raise self._unknown(name)
            session.used = self._clock()
            yield session
        finally:
            session.used = self._clock()
            session.lock.release()

    def close(self, name: Any) -> bool:
        """Close an environment, once nobody uses it; return whether it was open."""
        with contextlib.suppress(Refused), self.use(name) as session:
            if session.busy:
                return False
            session.close()
            del self._open[name]
            self.share.give_back(session.client)
            return True
        return False

    def close_idle(self) -> int:
        """Close the environments that nobody used for `idle` seconds; return how many."""
        now = self._clock()
        idle_ones = [
            name
            for name, session in list(self._open.items())
            if now - session.used > self.idle and not session.lock.locked()
        ]
        return sum(map(self.close, idle_ones))

    def _make_room(self, client: str) -> None:
        """Close what was unused longest, where a client could else open nothing."""
        while (crowd := self.share.crowd(client)) is not None:
            now = self._clock()
            unused = [
                (session.used, name)
                for name, session in list(self._open.items())
                if crowd in ("", session.client)
                and now - session.used >= SPARED
                and not (session.lock.locked() or session.busy)
            ]
            # The nearest may be in use again by now: then the next one is closed.
            if not any(self.close(name) for _, name in sorted(unused)):
                return

    def close_all(self) -> None:
        """Close everything that is open."""
        for name in list(self._open):
            with contextlib.suppress(Exception):  # the others are to be closed all the same
                self.close(name)

    @staticmethod
    def _unknown(name: Any) -> Refused:
        shown_id = name if isinstance(name, str) else type(name).__name__
        return Refused(
            404,
            f"expected the id of an open environment, found {shown_id!r:.60}; it was closed, by its "
            "client, because it was idle, or for another client's, or never opened: create one",
        )


class _Exceeded(NamedTuple):
    """A limit that is reached: a client's share, or that of the server."""

    limit: int
    open_count: int
    is_share: bool


class Share:
    """How many environments are open for each client, and how many may be.

    A client is an address. By default it may have half of all; the programs of this machine, which
    have one address, may have all. Without `limits_total`, somebody else sees to the limit of all.
    """

    def __init__(self, limit: int, share: int | None = None, limits_total: bool = True):
        check_number("limit", limit)
        if share is not None:
            check_number("share", share, 1, limit)
        self.limit = limit
        self._share = share
        self._limits_total = limits_total
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def crowd(self, client: str) -> str | None:
        """Return whose environments stand in a client's way: its own, or with ``""`` everybody's.

        None where it may open one more.
        """
        exceeded = self._exceeded(client)
        if exceeded is None:
            return None
        return client if exceeded.is_share else ""

    def refusal(self, client: str) -> Refused | None:
        """Return why a client may not open one more environment, or None where it may."""
        exceeded = self._exceeded(client)
        if exceeded is None:
            return None
        owner = "of a client" if exceeded.is_share else "on this server"
        return Refused(
            503,
            f"expected fewer than {exceeded.limit} open environments {owner}, found {exceeded.open_count}; "
            "close one, or start the server with a greater limit",
        )

    def _exceeded(self, client: str) -> _Exceeded | None:
        """Return the limit that one more environment of a client would exceed."""
        share = self._share
        if share is None and client and not is_loopback(client):
            share = max(self.limit // 2, 1)

        total_limit = self.limit if self._limits_total else None
        count = self._open[client]
        if share is not None and count >= share:
            return _Exceeded(share, count, is_share=True)
        total = self._open.total()
        if total_limit is not None and total >= total_limit:
            return _Exceeded(total_limit, total, is_share=False)
        return None

    def take(self, client: str, refuse: bool = True) -> None:
        """Count one more of a client, or refuse it."""
        with self._lock:
            if refuse and (refusal := self.refusal(client)):
                raise refusal
            self._open[client] += 1

    def give_back(self, client: str) -> None:
        """Count one less of a client."""
        with self._lock:
            self._open[client] -= 1
            self._open += Counter()  # drops the clients that have none open any more


def task_of(session: Session, request: Mapping[str, Any]) -> str | None:
    """Return the task that a request names, by its id (``task``) or its place (``data_idx``, ``game``).

    ``game`` is what AgentGym's client of ALFWorld calls the place.
    """
    names = [name for name in ("task", "data_idx", "game") if request.get(name) is not None]
    if not names:
        return None
    if len(names) > 1:
        raise OptionError(f"expected one of 'task', 'data_idx' and 'game', found {names}")

    (name,) = names
    panel = session.env.get_wrapper_attr("tasks")
    if name != "task":
        index = request[name]
        check_number(name, index, 0, len(panel) - 1)
        task_at_index: str = panel.ids[index]
        return task_at_index

    task = request["task"]
    if not isinstance(task, str):
        raise OptionError(f"expected 'task' to be a task's id, found {type(task).__name__}")
    if task not in panel:
        raise TaskNotFound(
            f"expected a task of split {panel.split!r}, found {task[:_LONGEST_NAME]!r}; "
            f"{suggest(task[:_LONGEST_NAME], panel.ids, limit=3)}"
        )
    return task


def seed_of(request: Mapping[str, Any]) -> int | None:
    seed: int | None = request.get("seed")
    if seed is not None:
        check_number("seed", seed, 0, 2**32 - 1)
    return seed
