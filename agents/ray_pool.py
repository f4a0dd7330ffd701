"""`RayPool`: a run's episodes on workers that are Ray actors, on one machine or many.

Each worker plays some tasks at a time as the runner in one process does, with environments, world
model and language model of its own, and tells of each task as it ends. What comes of a task does not
depend on where it is played: the trajectories are the same, to the byte.

A worker that is lost (killed, or its node with it) is replaced. What it had told is kept; its other
episodes are played again, each by itself, or recorded as failed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

from ..envs.ray_cluster import cause_of, check_lost, connected
from ..envs.registered import engines_kept
from ..errors import EngineError, OptionError
from ..trajectory import Trajectory
from .episode import unplayed
from .run_description import Run
from .runner import check_live, player_for, stream_episodes
from .stage import Stage

__all__ = ["WORKER_LOST", "RayPool"]

WORKER_LOST = "WorkerLost"
"""How the records of episodes begin to tell that their worker was lost."""

Job: TypeAlias = "tuple[int, str]"
"""A task and its number."""


class RayPool:
    """Plays the tasks of a run on Ray actors; give it to `run_to` as `play`.

    A worker has at most four times as many tasks at hand as it plays at once, fewer towards the end,
    and waits where what it told is not taken up: that is all that is in flight. The run itself is put
    into Ray's object store once, from where all workers of a node read it.

    Args:
        workers: How many there are.
        address: See `comap.envs.ray_cluster.connected`.
        prepare: Makes the run in each worker; for runs with what cannot be sent (a language model in
            this process: each worker loads it from its files). None sends the run as it is.
        lost: ``"retry"`` plays episodes again whose worker was lost; ``"record"`` records them as
            failed.
        retries: How often an episode is played again at most; then it is recorded as failed.
        cpus: Cores that a worker takes.
        gpus: GPUs that a worker takes; a part of one is possible.
        patience: Seconds that all workers may take to start.

    Raises:
        OptionError: An option cannot be.

    Example:
        >>> pool = RayPool(4, address="auto")
        >>> pool.workers, pool.lost
        (4, 'retry')
    """

    def __init__(
        self,
        workers: int,
        *,
        address: str | None = None,
        prepare: Callable[[], Run] | None = None,
        lost: str = "retry",
        retries: int = 2,
        cpus: float = 1.0,
        gpus: float = 0.0,
        patience: float = 120.0,
    ):
        if type(workers) is not int or workers < 1:
            raise OptionError(f"workers must be a whole number of at least 1, not {workers!r:.80}")
        if type(retries) is not int or retries < 0:
            raise OptionError(f"retries must be a whole number of at least 0, not {retries!r:.80}")
        check_lost(lost)
        self.workers, self.address, self.prepare = workers, address, prepare
        self.lost, self.retries, self.cpus, self.gpus = lost, retries, cpus, gpus
        self.patience = patience
        self.restarts = 0
        """How many workers were replaced."""

    def __call__(
        self, run: Run, tasks: Sequence[str], live: int, overlap: bool = False
    ) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Play tasks, and yield each one's number and trials as it ends.

        Args:
            run: What is run.
            tasks: The tasks' ids.
            live: How many episodes a worker plays at the same time.
            overlap: Whether worlds are imagined while policies draft, in each worker.

        Raises:
            EngineError: Workers do not start.
            CoMapError: What a worker raised before it played.
        """
        check_live(live)
        if not tasks:
            return
        with connected(self.address, self.workers * self.cpus) as ray:
            game = _Game(self, ray, run, tasks, live, overlap)
            try:
                yield from game.play()
            finally:
                game.close()


def _untaken(live: int) -> int:
    """Return how many results of a worker may wait to be taken up."""
    return max(2, 2 * live)


class _Worker:
    """An actor, and what it is at."""

    def __init__(self, actor: Any):
        self.actor = actor
        self.starting = actor.start.remote()
        self.told: Any = None  # where its results come from
        self.jobs: tuple[Job, ...] = ()
        self.done: set[int] = set()

    @property
    def waited_for(self) -> Any:
        return self.starting if self.starting is not None else self.told

    def left(self, live: int) -> tuple[list[Job], list[Job], list[Job]]:
        """Return the jobs that it was at, those that it may have been at, and the others.

        It begins them in their order. What it told last may be lost with it, and then it was further
        than what came from it says.
        """
        left = [job for job in self.jobs if job[0] not in self.done]
        further = live + _untaken(live)
        return left[:live], left[live:further], left[further:]


class _Game:
    """One use of a pool."""

    def __init__(
        self, pool: RayPool, ray: Any, run: Run, tasks: Sequence[str], live: int, overlap: bool
    ):
        self.pool, self.ray, self.run, self.live = pool, ray, run, live
        self.overlap = overlap
        self.waiting: deque[Job] = deque(enumerate(tasks))
        self.alone: deque[Job] = deque()  # what was lost, to be played by itself
        self.tries: dict[int, int] = {}
        self.fruitless = 0  # workers in a row that were lost before they told of anything
        source = (pool.prepare, None) if pool.prepare else (None, run)
        self.source = self._put(source)
        options = {"num_cpus": pool.cpus, "num_gpus": pool.gpus, "max_restarts": 0}
        self.kind = ray.remote(**options, scheduling_strategy="SPREAD")(_Player)
        self.team = [self._hire() for _ in range(min(pool.workers, len(tasks)))]

    def play(self) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Hand out jobs and yield results until there is nothing more."""
        while self.waiting or self.alone or any(one.told is not None for one in self.team):
            self._hand_out()
            worker = self._next()
            try:
                found = self._take(worker)
            except Exception as error:
                yield from self._lose(worker, error)
                continue
            if found is not None:
                self.fruitless = 0
                worker.done.add(found[0])
                yield found

    def close(self) -> None:
        """Let all workers go."""
        for worker in self.team:
            self._kill(worker)

    def _put(self, source: Any) -> Any:
        try:
            return self.ray.put(source)
        except Exception as error:  # whatever pickling meets
            told = " ".join(str(error).split())[:200]
            raise OptionError(
                f"expected a run that can be sent to other processes, found one that cannot "
                f"({type(error).__name__}: {told}); give prepare=, which makes it in each worker"
            ) from error

    def _hire(self) -> _Worker:
        return _Worker(self.kind.remote(self.source, self.live, self.overlap))

    def _hand_out(self) -> None:
        """Give jobs to each worker that is ready and has none."""
        share = math.ceil(len(self.waiting) / (2 * len(self.team)))
        for worker in self.team:
            if worker.starting is not None or worker.told is not None:
                continue
            if self.alone:
                jobs: tuple[Job, ...] = (self.alone.popleft(),)
            else:
                size = max(1, min(share, 4 * self.live, len(self.waiting)))
                jobs = tuple(self.waiting.popleft() for _ in range(min(size, len(self.waiting))))
            if jobs:
                worker.jobs, worker.done = jobs, set()
                play = worker.actor.play.options(
                    num_returns="streaming",
                    _generator_backpressure_num_objects=_untaken(self.live),
                )
                worker.told = play.remote(jobs)

    def _next(self) -> _Worker:
        """Return a worker that has something to tell."""
        by_sign = {one.waited_for: one for one in self.team if one.waited_for is not None}
        playing = any(one.told is not None for one in self.team)
        patience = None if playing else self.pool.patience
        ready, _ = self.ray.wait(list(by_sign), num_returns=1, timeout=patience)
        if not ready:
            raise EngineError(
                f"expected a worker to start within {patience:.0f} s, found none: the Ray cluster has "
                f"no room for one of {self.pool.cpus:g} cores and {self.pool.gpus:g} GPUs, or is not "
                "well; ask 'ray status'"
            )
        return by_sign[ready[0]]

    def _take(self, worker: _Worker) -> tuple[int, list[Trajectory]] | None:
        """Return a result of a worker; None where it has only started, or ended its jobs."""
        if worker.starting is not None:
            self.ray.get(worker.starting)
            worker.starting = None
            return None
        try:
            sign = next(worker.told)
        except StopIteration:
            worker.told = None
            missing = [job for job in worker.jobs if job[0] not in worker.done]
            if missing:
                raise EngineError("its results ended early") from None
            return None
        found: tuple[int, list[Trajectory]] = self.ray.get(sign)
        return found

    def _lose(
        self, worker: _Worker, error: Exception
    ) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Replace a worker that was lost; yield what is recorded of its episodes."""
        cause = cause_of(error)
        if cause is not None:
            raise cause
        self._kill(worker)
        self.pool.restarts += 1
        self.fruitless += 1
        if self.fruitless > 3 * len(self.team) + 3 * (self.pool.retries + 1):
            raise EngineError(
                f"expected workers that play, found {self.fruitless} in a row that were lost before "
                f"they told of a task (the last: {_in_a_line(error)}); see Ray's logs"
            ) from error
        self.team[self.team.index(worker)] = self._hire()
        begun, doubtful, others = worker.left(self.live)
        again = self.pool.lost == "retry"
        self.waiting.extendleft(reversed(others if again else doubtful + others))
        for job in begun:
            tries = self.tries[job[0]] = self.tries.get(job[0], 0) + 1
            if again and tries <= self.pool.retries:
                self.alone.append(job)
            else:
                yield job[0], [self._failed(job[1], error, tries)]
        if again:
            self.alone.extend(doubtful)  # not counted as tries

    def _failed(self, task: str, error: Exception, tries: int) -> Trajectory:
        """Return the record of an episode that nobody played to its end."""
        told = f"{WORKER_LOST}: {_in_a_line(error)}"
        if tries > 1:
            told += f" (the last of {tries} times)"
        env = self.run.make_env()
        try:
            player = player_for(self.run.agent, self.run.lm, self.run.keep)
            return unplayed(player, Stage(env), task, self.run.seed, told)
        finally:
            env.close()

    def _kill(self, worker: _Worker) -> None:
        self.ray.kill(worker.actor, no_restart=True)


class _Player:
    """What an actor is: it plays tasks as the runner does."""

    def __init__(
        self, source: tuple[Callable[[], Run] | None, Run | None], live: int, overlap: bool
    ):
        self._source, self._live, self._overlap = source, live, overlap
        self._run: Run | None = None
        self._kept = ExitStack()  # until the process ends

    def start(self) -> None:
        """Make the run, if it did not come as it is."""
        prepare, run = self._source
        self._run = run = run if prepare is None else prepare()
        env_id = None if run is None else run.config.get("env")
        if env_id is not None:  # slow engines serve one share of tasks after another
            self._kept.enter_context(engines_kept(str(env_id), self._live))

    def play(self, jobs: tuple[Job, ...]) -> Generator[tuple[int, list[Trajectory]], None, None]:
        """Yield each task's number and trials as it ends."""
        run = self._run
        assert run is not None
        playing = stream_episodes(
            run.make_env,
            run.agent,
            [task for _, task in jobs],
            lm=run.lm,
            world_model=run.world_model,
            live=self._live,
            overlap=self._overlap,
            seed=run.seed,
            keep=run.keep,
        )
        for place, trials in playing:
            yield jobs[place][0], trials


def _in_a_line(error: BaseException) -> str:
    """Return what Ray tells of a loss, without what names machines and processes."""
    kind = type(error).__name__
    said = str(error).strip().splitlines() or [""]
    return kind if "id" in said[0].lower() or len(said) > 1 else f"{kind}: {said[0][:120]}"
