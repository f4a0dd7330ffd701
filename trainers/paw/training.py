"""The whole of a PaW training: what it begins with, updates, evaluations, and what it leaves behind.

Its folder has ``run.json`` (settings, environment, versions of each session), ``metrics.jsonl`` (a
line for each update), ``faults.jsonl`` (episodes that nothing was learned from, and why),
``evaluations.jsonl``, the episodes of evaluations, ``checkpoints`` and, at the end,
``models/agent``. A training that was stopped goes on when it is started again, and ends as if it
had not been: what an update plays follows from its number and the weights alone.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ...agents.records import writing
from ...agents.run import Run, run_to
from ...errors import MissingExtra, OptionError
from ...lm import LanguageModel
from ...trajectory import Trajectory
from ..playing import played
from ..processes import gathered, is_first, rank, wait, world_size
from ..run_folder import RunFolder
from ..trainer_checkpoints import last_checkpoint
from .beginning import warmed_up
from .config import PaWTraining
from .journal import Journal
from .policy import Policy
from .rollouts import Group, RolloutStats, groups_of, roll_out
from .rows import PaWRow, Serializer
from .search_training import SearchTraining, check_search, together
from .simulator_model import open_simulator

__all__ = ["Tell", "train"]

_EVALUATIONS = "evaluations"

Tell = Callable[[Mapping[str, Any]], object]
"""Is told events: ``warmup``, ``episode``, ``update``, ``evaluation`` and ``evaluated``."""


def train(
    config: PaWTraining,
    *,
    model: str | Path | None,
    make_env: Callable[[str], gymnasium.Env[str, str]],
    out: str | Path,
    tell: Tell = lambda event: None,
    report_to: str = "none",
    about: Mapping[str, Any] | None = None,
    session: Mapping[str, Any] | None = None,
    server: str | None = None,
    demos: str | Path | None = None,
    device: str = "auto",
    simulator: str | LanguageModel | None = None,
) -> Path:
    """Train a policy by reinforcement learning, with PaW or without (METHODS.md 2).

    Args:
        config: The settings.
        model: The policy to begin with: a folder or a name on the hub. With ``warmup_tokens`` it first
            learns from demonstrations; None is a tiny model that is built here, and then must.
        make_env: Makes an environment of a split.
        out: The folder.
        tell: Told what happens, on every process.
        report_to: The tracker, as transformers calls it.
        about: What else makes this training the training it is, for its folder.
        session: What to write down of this session: versions, hardware.
        server: Address of TRL's vLLM server, which then samples; None samples in this process.
        demos: A file of demonstrations for the warm-up; None lets the environment's expert play.
        device: ``auto`` or ``cpu``.
        simulator: With ``engine="simulated"``, who plays the search engine: a model, a folder, a name
            on the hub, ``http://HOST:PORT/v1#NAME``, or ``tiny``, which is taught here first.

    Returns:
        The folder of the trained policy.

    Raises:
        OptionError: The settings do not fit the environment or the model, or the folder is another
            training's.
        MissingExtra: The extra ``train`` is not installed.
    """
    try:
        import trl  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("train", "reinforcement learning") from error
    check_search(config, make_env, simulator)
    folder = RunFolder(out)
    described = {"method": "paw", "config": config.describe(), **(about or {})}
    described["config"].pop("max_updates", None)  # may grow when the training is gone on with
    with folder.open(described, session or {}):
        begun = warmed_up(config, model, make_env, folder.path, tell, demos)
        engine = open_simulator(simulator, config, make_env, folder.path, tell)
        training = _Training(config, begun, make_env, folder.path, tell, server, device, engine)
        with closing(training.search):
            return training.run(report_to)


class _Training:
    """A training whose policy is there."""

    def __init__(
        self,
        config: PaWTraining,
        model: str | Path,
        make_env: Callable[[str], gymnasium.Env[str, str]],
        out: Path,
        tell: Tell,
        server: str | None,
        device: str,
        simulator: LanguageModel | None = None,
    ) -> None:
        self.config, self.make_env, self.out = config, make_env, out
        self.policy = Policy.open(config, model, server=server, device=device)
        self.device = device
        self.tell = tell
        self.journal = Journal(out)
        self.tasks = _tasks(make_env, config.train_split)
        self.updates = self._updates()
        self.search = SearchTraining(config, make_env, self.updates, simulator)
        self.serializer = Serializer(
            self.policy.tokenizer,
            ends=self.policy.ends,
            max_observation=config.observation_tokens,
            include_admissible=config.include_admissible,
        )
        self._stats: dict[str, float] = {}
        self._evaluating = 0.0  # seconds, since the last update

    def _updates(self) -> int:
        """Return how many updates the training has: one epoch of the tasks where none are given."""
        if self.config.updates is not None:
            return self.config.updates
        return max(len(self.tasks) // self.config.groups, 1)

    def run(self, report_to: str) -> Path:
        """Do all updates and evaluations, and return the folder of the trained policy."""
        config, checkpoints = self.config, self.out / "checkpoints"
        last = last_checkpoint(checkpoints)
        done = 0 if last is None else int(last.rpartition("-")[2])
        self.journal.begin_after(done)
        self._forget_after(done)
        stop = self.updates if config.max_updates is None else min(config.max_updates, self.updates)
        if done < stop:
            self._train(checkpoints, stop, report_to)
        elif last is not None:
            self.policy.load(Path(last))
        self._evaluate(max(stop, done))
        target = self.out / "models" / "agent"
        if is_first():
            with writing(self.out):
                self.policy.save(target)
        wait()
        return target

    def _train(self, checkpoints: Path, stop: int, report_to: str) -> None:
        from .trainer import make_trainer

        config, policy = self.config, self.policy
        trainer = make_trainer(
            config,
            policy.model,
            policy.tokenizer,
            self._roll_out,
            checkpoints,
            updates=self.updates,
            stop=stop,
            tell=self._keep,
            critic=_critic(policy.model, config) if config.algorithm == "ppo" else None,
            peft_config=policy.adapters(),
            report_to=report_to,
            device=self.device,
        )
        policy.follow(trainer)
        trainer.fit()

    # -- episodes --------------------------------------------------------------------------------

    def _roll_out(self, update: int) -> list[PaWRow]:
        """Play this process's episodes of an update, and return their rows."""
        config = self.config
        begun = time.perf_counter()
        if config.evaluates_after(update):
            self._evaluate(update)
        self._evaluating = time.perf_counter() - begun
        self.policy.synchronise()
        groups = groups_of(self.tasks, config.groups, config.members, config.seed, update)
        mine = [group for group in groups if group.number % world_size() == rank()]
        won = [0, 0]

        def advance(episode: Any) -> None:
            won[0] += 1
            won[1] += episode.success
            event = {"update": update + 1, "done": won[0], "of": len(mine) * config.members}
            self.tell({"event": "episode", "won": won[1], **event})

        found = roll_out(
            self.search.make_env,
            self.search.agent(self.policy.agent(), update),
            mine,
            self.serializer,
            success_reward=config.success_reward,
            reward=self.search.reward,
            lm=self.search.language_model(self.policy.language_model()),
            live=config.live,
            seed=config.seed,
            update=update,
            include_admissible=config.include_admissible,
            on_done=advance,
        )
        self._stats = RolloutStats.together(gathered([found.stats()])).metrics()
        self._stats |= together(gathered([self.search.measures(update)]))
        self._tell_faults(update, groups, found.dropped)
        return found.rows

    def _tell_faults(
        self, update: int, groups: Sequence[Group], dropped: Mapping[int, str]
    ) -> None:
        """Write down the episodes of all processes that a fault ended."""
        for number, error in sorted(gathered(list(dropped.items()))):
            task = groups[number // self.config.members].task
            line = {"update": update + 1, "episode": number, "task": task, "error": error}
            self.journal.fault(line)

    def _keep(self, told: Mapping[str, Any]) -> None:
        """Write down what an update was like, and tell it."""
        line = {**self._stats, **told}
        line["seconds_rollout"] -= self._evaluating
        self.journal.update(line)
        self.tell({"event": "update", "of": self.updates, **line})

    # -- evaluations -----------------------------------------------------------------------------

    def _forget_after(self, update: int) -> None:
        """Remove the episodes of evaluations after later updates, which are done again.

        On a GPU they may end with other weights, whose episodes must not be mixed with those.
        """
        if is_first():
            with writing(self.out):
                for place in sorted((self.out / _EVALUATIONS).glob("*-*")):
                    number = place.name.partition("-")[0]
                    if number.isdecimal() and int(number) > update:
                        shutil.rmtree(place)
        wait()

    def _evaluate(self, update: int) -> None:
        """Play the evaluation tasks with the policy as it is after so many updates, once."""
        config = self.config
        due = [
            split
            for split in config.evaluation_splits
            if config.evaluation_tasks != 0 and not self.journal.evaluated(update, split)
        ]
        if due:
            self.policy.synchronise()
        for split in due:
            tasks = _evaluated(_tasks(self.make_env, split), config)
            if not tasks:
                continue
            self.tell({"event": "evaluation", "update": update, "split": split})
            episodes = []
            for repeat in range(config.evaluation_seeds):
                episodes += self._played(update, split, repeat, tasks)
            line = _result(update, split, episodes)
            self.journal.evaluation(line)
            self.tell({"event": "evaluated", **line})

    def _played(
        self, update: int, split: str, repeat: int, tasks: Sequence[str]
    ) -> list[Trajectory]:
        """Play each task once, this process its share, and return the episodes of all processes."""
        place = self.out / _EVALUATIONS / f"{update:04d}-{split}-{repeat}"
        _remove_others(place)
        run = Run(
            make_env=partial(self.make_env, split),
            agent=self.policy.agent(self.config.evaluation_temperature),
            tasks=tasks[rank() :: world_size()],
            lm=self.policy.language_model(),
            seed=repeat or None,
            config={"split": split, "update": update},
        )
        if run.tasks:
            run_to(place / f"rank-{rank()}-of-{world_size()}", run, live=self.config.live)
        wait()
        return played(place)


def _remove_others(place: Path) -> None:
    """Remove episodes that another number of processes had begun to play."""
    if is_first():
        with writing(place.parent):
            for path in sorted(place.glob("rank-*-of-*")):
                if not path.name.endswith(f"-of-{world_size()}"):
                    shutil.rmtree(path)
    wait()


def _tasks(make_env: Callable[[str], gymnasium.Env[str, str]], split: str) -> tuple[str, ...]:
    env = make_env(split)
    try:
        ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
    finally:
        env.close()
    return ids


def _evaluated(tasks: tuple[str, ...], config: PaWTraining) -> tuple[str, ...]:
    """Return the tasks to evaluate on: the same at each evaluation, spread evenly over all."""
    from ...envs.panel import evenly

    wanted = config.evaluation_tasks
    return tasks if wanted is None else tuple(evenly(tasks, wanted))


def _result(update: int, split: str, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the line of an evaluation; ``won`` has how often each task was solved."""
    number = len(episodes)
    won = {episode.task: 0 for episode in episodes}
    for episode in episodes:
        won[episode.task] += episode.success
    finals = [episode.steps[-1].score if episode.steps else 0.0 for episode in episodes]
    return {
        "update": update,
        "split": split,
        "n": number,
        "success": sum(episode.success for episode in episodes) / max(number, 1),
        "score": sum(finals) / max(number, 1),
        "steps": sum(len(episode.steps) for episode in episodes) / max(number, 1),
        "errors": sum(episode.error is not None for episode in episodes),
        "won": won,
    }


def _critic(model: Any, config: PaWTraining) -> Any:
    """Return a critic that begins as a copy of the policy's transformer."""
    from .critic import Critic

    backbone = copy.deepcopy(model.base_model)
    if backbone is model:
        raise OptionError(
            f"expected a language model with a transformer beneath its head, found {type(model)}; "
            "another algorithm than ppo needs none"
        )
    return Critic(
        backbone, rate=config.critic_rate, weight_decay=config.weight_decay, clip=config.clip
    )
