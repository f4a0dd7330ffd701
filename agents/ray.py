"""`RayPool`: a run's episodes on workers that are Ray actors, on one machine or many."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from ..envs.generated import generated_is_told
from ..envs.registry import env_class
from ..errors import CoMapError, EngineError, OptionError, check_number, needs_extra
from ..trajectory import Trajectory
from .requests import EnvSlot
from .run import Item, Run
from .runner import failed_trajectory, player_for

_NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # whatever its name says, it counts everywhere


def import_ray(loopback: bool = False) -> Any:
    """Return the module ``ray``, without its usage reports; the user's environment variables go first."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

    # Ray of this machine alone opens no port to the network: who reaches one may run code here.
    if loopback and _NETWORK not in os.environ:
        os.environ[_NETWORK] = "0"  # read when ray is imported, and by the processes that it starts
        constants = sys.modules.get("ray._private.ray_constants")
        if constants is not None:
            constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    with needs_extra("ray", "playing on Ray"):
        import ray
    return ray


@contextmanager
def connected(address: str | None = None, cpus: float | None = None) -> Iterator[Any]:
    """Yield ``ray``, connected; what was not connected before is disconnected afterwards."""
    ray = import_ray(loopback=address is None)
    if ray.is_initialized():  # by the user's own program, which needs it further
        yield ray
        return

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {
            "num_cpus": cpus and math.ceil(cpus),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    else:
        options["address"] = address

    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        why = f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        if address is None:
            raise EngineError(
                f"expected Ray to start on this machine, it does not {why}"
            ) from error
        raise OptionError(
            f"expected a Ray cluster at {address!r:.120}, found none {why}; start one with 'ray start "
            "--head', or leave the address out"
        ) from error

    try:
        yield ray
    finally:
        ray.shutdown()


WORKER_LOST = "WorkerLost"
"""The type of error in the records of episodes whose worker was lost."""

Job: TypeAlias = "tuple[int, Item]"
"""A number of `items`, and that item."""


class RayPool:
    """Plays the tasks of a run on Ray actors; give it to `run_to` as `play`.

    A worker has at most four times as many tasks at hand as it plays at once, fewer towards the end,
    and waits where its results are not taken up: that is all that is in flight. The run itself is put
    into Ray's object store once, from where all workers of a node read it.

    Args:
        workers: How many there are.
        address: See `comap.agents.ray.connected`.
        prepare: Makes the run in each worker; for runs with what cannot be sent (a language model in
            this process: each worker loads it from its files). None sends the run itself, without
            `on_step`, `on_work` and `on_note`, which are not called then.
        retries: How often an episode is played again at most; then it is recorded as failed.
        cpus: Cores that a worker takes.
        gpus: GPUs that a worker takes; a part of one is possible.
        patience: Seconds that all workers may take to start.

    Raises:
        OptionError: An option cannot be.

    Example:
        >>> pool = RayPool(4, address="auto")
        >>> pool.workers, pool.retries
        (4, 2)
    """

    def __init__(
        self,
        workers: int,
        *,
        address: str | None = None,
        prepare: Callable[[], Run] | None = None,
        retries: int = 2,
        cpus: float = 1.0,
        gpus: float = 0.0,
        patience: float = 120.0,
    ):
        check_number("workers", workers)
        check_number("retries", retries, 0)
        self.workers = workers
        self.address = address
        self.prepare = prepare
        self.retries = retries
        self.cpus = cpus
        self.gpus = gpus
        self.patience = patience
        self.restarts = 0
        """How many workers were replaced."""

    def __call__(
        self, run: Run, items: Sequence[Item], concurrency: int, overlap: bool = False
    ) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Play tasks and seeds, and yield each one's number and trials as it ends."""
        check_number("concurrency", concurrency)
        if not items:
            return
        with connected(self.address, self.workers * self.cpus) as ray:
            game = _Game(self, ray, run, items, concurrency, overlap)
            try:
                yield from game.play()
            finally:
                for worker in game.team:
                    ray.kill(worker.actor, no_restart=True)


class _Worker:
    """An actor, and the jobs that it was given last."""

    def __init__(self, actor: Any):
        self.actor = actor
        self.starting = actor.start.remote()  # a reference; None once it has started
        self.results: Any = None  # the stream of its jobs' trials; None while it has no jobs
        self.jobs: tuple[Job, ...] = ()
        self.done: set[int] = set()  # the numbers of those of its jobs that have ended

    @property
    def next_sign(self) -> Any:
        """What ``ray.wait`` waits for: its start, or its next result; None where it has no jobs."""
        return self.starting if self.starting is not None else self.results

    @property
    def unfinished(self) -> list[Job]:
        return [job for job in self.jobs if job[0] not in self.done]


class _Game:
    """One use of a pool: its workers, and the jobs that are not yet handed out."""

    def __init__(
        self,
        pool: RayPool,
        ray: Any,
        run: Run,
        items: Sequence[Item],
        concurrency: int,
        overlap: bool,
    ):
        self.pool = pool
        self.ray = ray
        self.run = run
        self.concurrency = concurrency
        self.overlap = overlap
        self.most_untaken = max(2, 2 * concurrency)  # of a worker's results, before it waits
        self.waiting: deque[Job] = deque(enumerate(items))

        # Jobs of lost workers. Each is handed out by itself: one that kills its worker would take
        # others along again.
        self.suspects: deque[Job] = deque()
        self.losses_by_job: dict[int, int] = {}  # by a job's number
        self.losses_in_a_row = 0  # workers lost since the last result

        # Listeners stay here: they speak to this process's terminal, and may hold what nobody can pickle.
        run_for_workers: Run | None = None
        if pool.prepare is None:
            run_for_workers = replace(run, on_step=None, on_work=None, on_note=None)
        try:
            self.source = ray.put((pool.prepare, run_for_workers))
        except Exception as error:  # whatever pickling meets
            why = f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            raise OptionError(
                f"expected a run that can be sent to other processes, found one that cannot {why}; "
                "give prepare=, which makes it in each worker"
            ) from error

        # No restarts by Ray: the new actor would be without its run, and `_lose` says what is played again.
        options = {"num_cpus": pool.cpus, "num_gpus": pool.gpus, "max_restarts": 0}
        self.actor_class = ray.remote(**options, scheduling_strategy="SPREAD")(_Player)
        self.team = [self._hire() for _ in range(min(pool.workers, len(items)))]

    def play(self) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Hand out jobs, and yield the number and the trials of each, until all have ended."""
        while self.waiting or self.suspects or self._is_any_playing():
            self._hand_out()
            worker = self._next()
            try:
                ended_job = self._take(worker)
            except Exception as error:
                yield from self._replace_lost(worker, error)
                continue

            if ended_job is not None:
                number, trials = ended_job
                self.losses_in_a_row = 0
                worker.done.add(number)
                yield number, trials

    def _is_any_playing(self) -> bool:
        """Return whether a worker has jobs."""
        return any(worker.results is not None for worker in self.team)

    def _hire(self) -> _Worker:
        """Return a new worker, which starts in the background."""
        return _Worker(self.actor_class.remote(self.source, self.concurrency, self.overlap))

    def _hand_out(self) -> None:
        """Give each worker without jobs some of those that wait."""
        # Half of an equal share at a time: the last jobs are small, and all workers end together.
        share = math.ceil(len(self.waiting) / (2 * len(self.team)))
        for worker in self.team:
            if worker.starting is not None or worker.results is not None:
                continue
            if self.suspects:
                jobs: tuple[Job, ...] = (self.suspects.popleft(),)
            else:
                size = max(1, min(share, 4 * self.concurrency, len(self.waiting)))
                jobs = tuple(self.waiting.popleft() for _ in range(min(size, len(self.waiting))))
            if jobs:
                worker.jobs = jobs
                worker.done = set()

                # A worker far ahead of this process waits, or its results would fill the object store.
                play = worker.actor.play.options(
                    num_returns="streaming", _generator_backpressure_num_objects=self.most_untaken
                )
                worker.results = play.remote(jobs)

    def _next(self) -> _Worker:
        """Wait for a worker that has started or has a result, and return it."""
        worker_by_sign = {
            worker.next_sign: worker for worker in self.team if worker.next_sign is not None
        }

        # Episodes may take hours; a start that takes so long is none.
        patience = None if self._is_any_playing() else self.pool.patience
        ready, _ = self.ray.wait(list(worker_by_sign), num_returns=1, timeout=patience)
        if not ready:
            raise EngineError(
                f"expected a worker to start within {patience:.0f} s, found none: the Ray cluster has "
                f"no room for one of {self.pool.cpus:g} cores and {self.pool.gpus:g} GPUs, or is not "
                "well; ask 'ray status'"
            )
        return worker_by_sign[ready[0]]

    def _take(self, worker: _Worker) -> tuple[int, list[Trajectory]] | None:
        """Return the number and the trials of a job; None where the worker started, or ended all.

        Raises what Ray raises where the worker was lost.
        """
        if worker.starting is not None:
            self.ray.get(worker.starting)
            worker.starting = None
            return None

        try:
            reference = next(worker.results)
        except StopIteration:
            worker.results = None
            if worker.unfinished:
                raise EngineError("its results ended early") from None
            return None
        ended_job: tuple[int, list[Trajectory]] = self.ray.get(reference)
        return ended_job

    def _replace_lost(
        self, worker: _Worker, error: Exception
    ) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Replace a worker that was lost, and have its unfinished jobs played again.

        Yields the record of each job that is given up, since it was lost too often. Raises `error`, or
        its cause, where the worker is alive and reported a fault.
        """
        from ray.exceptions import RayTaskError

        # An error that the worker raised is no loss: another worker would raise it, too.
        cause = getattr(error, "cause", None)
        if isinstance(cause, CoMapError):
            raise cause
        if isinstance(error, RayTaskError):
            raise error

        self.ray.kill(worker.actor, no_restart=True)
        self.pool.restarts += 1

        # A worker that is lost at its start has no jobs that would be given up at last: only this limit
        # ends a run of such workers.
        self.losses_in_a_row += 1
        most_losses = 3 * (len(self.team) + self.pool.retries + 1)
        if self.losses_in_a_row > most_losses:
            raise EngineError(
                f"expected workers that play, found {self.losses_in_a_row} in a row that were lost before "
                f"they told of a task (the last: {_in_a_line(error)}); see Ray's logs"
            ) from error
        self.team[self.team.index(worker)] = self._hire()

        # A worker begins its jobs in their order. The first ones may be to blame. Those behind them may
        # have begun, where results waited untaken. The others cannot have begun: they wait as before.
        unfinished = worker.unfinished
        most_begun = self.concurrency + self.most_untaken
        under_way = unfinished[: self.concurrency]
        perhaps_begun = unfinished[self.concurrency : most_begun]
        self.waiting.extendleft(reversed(unfinished[most_begun:]))

        for number, item in under_way:
            losses = self.losses_by_job.get(number, 0) + 1
            self.losses_by_job[number] = losses
            if losses <= self.pool.retries:
                self.suspects.append((number, item))
            else:
                yield number, [self._failed(item, error, losses)]
        self.suspects.extend(perhaps_begun)  # no loss is counted against these

    def _failed(self, item: Item, error: Exception, losses: int) -> Trajectory:
        """Return the record of an episode that nobody played to its end."""
        message = f"{WORKER_LOST}: {_in_a_line(error)}"
        if losses > 1:
            message += f" (the last of {losses} times)"
        task, seed = item
        env = self.run.make_env()
        try:
            player = player_for(self.run.agent, self.run.lm, self.run.keep)
            return failed_trajectory(player, EnvSlot(env), task, seed, message)
        finally:
            env.close()


class _Player:
    """The class of the actors: each plays tasks as the runner does."""

    def __init__(
        self, source: tuple[Callable[[], Run] | None, Run | None], concurrency: int, overlap: bool
    ):
        self._source = source
        self._concurrency = concurrency
        self._overlap = overlap
        self._run: Run | None = None
        self._contexts = ExitStack()  # open until the process ends

    def start(self) -> None:
        """Make the run, if it did not come as it is."""
        # The notice of generated tasks comes once, from the process that this one plays for.
        self._contexts.enter_context(generated_is_told())
        prepare, run = self._source
        if prepare is not None:
            run = prepare()
        self._run = run
        env_id = None if run is None else run.config.get("env")
        if env_id is not None:  # slow engines serve one share of tasks after another
            self._contexts.enter_context(env_class(str(env_id)).engine_pool(self._concurrency))

    def play(self, jobs: tuple[Job, ...]) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Play jobs, and yield the number and the trials of each as it ends."""
        run = self._run
        assert run is not None
        playing = run.play([item for _, item in jobs], self._concurrency, self._overlap)
        for index, trials in playing:
            yield jobs[index][0], trials


def _in_a_line(error: BaseException) -> str:
    """Return Ray's message about a loss, or its type alone where it names machines and processes.

    Those are in its messages of many lines, and in all that have an "id" (of an actor, a node).
    """
    kind = type(error).__name__
    lines = str(error).strip().splitlines() or [""]
    if "id" in lines[0].lower() or len(lines) > 1:
        return kind
    return f"{kind}: {lines[0][:120]}"
