"""``comap run``, ``view``, ``compare``, ``verify``: episodes are played, shown, compared, played again."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ..agents.base import asks_world_model
from ..agents.config import AgentConfig, check_capabilities, required_capabilities
from ..agents.create import AGENTS, agent_class, agent_options, create_agent
from ..agents.requests import Keep, is_grounded
from ..agents.run import FORMAT as RUN_FORMAT
from ..agents.run import RUN, SUMMARY, read_run
from ..agents.runner import settings_of
from ..envs.generated import tasks_in_words
from ..envs.panel import evenly
from ..envs.registry import env_class, registered
from ..errors import DataNotFound, MissingExtra, OptionError, check_number
from ..lm.create import (
    SHIPPED,
    check_packages,
    full_name,
    shipped_models,
)
from ..redaction import public_options
from ..trainers.setup import Environments
from ..worldmodel import (
    ImaginedEnv,
    create_world_model,
)
from ..worldmodel.naming import NOT_TO_REPORT
from .models import (
    SHIPPED_AGENT,
    SHIPPED_WORLD,
    AnyWorldModel,
    ModelOptions,
    Models,
    is_class_name,
    limits_of_before,
)
from .options import SETTINGS, WORD, Command, Pairs, flag, option_help

if TYPE_CHECKING:
    import gymnasium

    from ..agents import Agent
    from ..agents.ray import RayPool
    from ..agents.run import Run

MakeEnv: TypeAlias = "Callable[[], gymnasium.Env[str, str]]"

PACKAGES = ("gymnasium", "numpy", "rapidfuzz", "torch", "transformers", "openai", "vllm")
"""The packages whose versions a run's record names."""

_SHARED = frozenset(setting.name for setting in fields(AgentConfig))
_MANY_UNREAD = 0.1  # share of replies without an action at which it is said what to try
_SMALL = 100  # tasks: of so many the prompts are recorded, unless --keep says what is
_COUNTS = ("concurrency", "episodes", "fit_tasks", "horizon", "max_episode_steps", "real_every")


def _note(text: str) -> None:
    """Print a line about what does not stop a run, but should be known."""
    print(f"comap: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Play(ModelOptions):
    """Play tasks with an agent, and record the episodes in a folder.

    To resume a run that was interrupted, give the same command again. Each agent has its own settings:
    comap run --agent NAME --help.
    """

    example: ClassVar[str] = (
        "comap run --agent comap --model tiny --world-model retrieval --episodes 8 --decoding masked "
        "--out runs/first"
    )
    explained: ClassVar[str] = "decoding prompts state_text temperature"
    rare: ClassVar[str] = (
        "agent_option base_url engine_memory horizon real_every tiny_parameters "
        "world_model_prompts world_model_state_text world_model_option "
        "world_model_cache error_rate fit_tasks ray_address worker_gpus overlap prompts"
    )
    prefix: ClassVar[str] = "agent_"
    former: ClassVar[Mapping[str, str]] = {"max_episode_steps": "--max-steps"}
    style_option: ClassVar[str] = "--agent-prompts"
    resumes: ClassVar[bool] = True

    agent: str
    """Agent that acts, such as comap, react or expert, or MODULE:CLASS (your own). `comap agents` lists
    them."""
    agent_option: Pairs = field(default_factory=dict)
    """Option of the agent beside its settings, such as head=FILE. Repeatable."""
    split: str | None = None
    """Split of the tasks (default: the environment's hardest test split)."""
    episodes: int | None = None
    """Number of tasks to play, spread evenly over the split (default: all)."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks to play, or a file with one id on each line."""
    max_episode_steps: int | None = None
    """Maximum number of steps of an episode (default: the environment's)."""
    imagined: bool = False
    """Play the episodes in the world model's imagination."""
    horizon: int | None = None
    """With --imagined: maximum number of steps."""
    real_every: int | None = None
    """With --imagined: every N-th step is real."""
    concurrency: int = 32
    """Number of episodes that run at the same time; results do not depend on it."""
    overlap: bool = False
    """Let the world model predict for some episodes while the policy drafts for others; results do not
    depend on it."""
    seed: int = 0
    """Seed of agent, models and environment."""
    seeds: int = 1
    """Number of seeds to play each task with, from --seed on; several give pass@k and pass^k."""
    keep: Literal["auto", "replies", "prompts", "tokens"] = "auto"
    """What to record of each model call: replies; prompts too (for CoMap 5 to 13 kB a step instead of
    3); or tokens too, with log-probabilities. auto is prompts for at most 100 tasks, else replies; a
    resumed run stays as it was."""
    workers: str | None = None
    """ray:N plays on N Ray actors, each with --live episodes at a time and models of its own; results
    do not depend on it (default: this process)."""
    ray_address: str | None = None
    """Address of a Ray cluster that sees the same files, or auto (default: Ray on this machine)."""
    worker_gpus: float = 0.0
    """GPUs of each worker."""
    retry_failed: bool = False
    """Play the tasks again that ended with an error."""
    report_to: str = "none"
    """Tracker of results: tensorboard, trackio, wandb."""
    out: Path | None = None
    """Folder of the run (default: runs/AGENT)."""
    config: Mapping[str, Any] = field(default_factory=dict, metadata=SETTINGS)

    @classmethod
    def resolved(cls, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**options, "config": settings}

    @classmethod
    def settings(cls, options: Mapping[str, Any]) -> Any:
        if "agent" not in options:
            return None
        config_class = agent_options(options["agent"])
        return None if config_class is None else config_class()

    @classmethod
    def note(cls, options: Mapping[str, Any]) -> str:
        """Return which agents there are or, once one is named, the options of its constructor."""
        if "agent" not in options:
            return f"agents: {', '.join(sorted(AGENTS))}, or MODULE:CLASS"

        agent_name = options["agent"]
        cls_of_agent = agent_class(agent_name)
        help_texts = option_help(cls_of_agent)

        # The settings, `config`, are options of their own; help lists them one by one.
        option_names = [
            name for name in inspect.signature(cls_of_agent).parameters if name != "config"
        ]
        if not option_names:
            return ""

        described_options = [
            f"{name} ({help_texts.get(name, '').rstrip('.')})" for name in option_names
        ]
        return f"--agent-option of {agent_name}: {'; '.join(described_options)}"

    @classmethod
    def wrote(cls, record: Mapping[str, Any]) -> bool:
        return bool(record["format"] == RUN_FORMAT)

    @property
    def folder(self) -> Path:
        return self.out or Path("runs", self.agent.rpartition(":")[2])

    def run(self) -> int:
        """Play; return 0, or 3 if every episode failed."""
        from ..agents.run import run_to
        from ..agents.unread import advice
        from ..benchmarks.display import print_table, run_progress
        from ..benchmarks.record import circumstances
        from ..benchmarks.view import (
            cut_replies,
            failures,
            played_tasks,
            remedy,
            share_unread,
            summary_table,
            unread_replies,
            version_note,
        )
        from ..trainers.tracking import check_tracker, tracked

        check_tracker(self.report_to)
        workers = self._workers()
        prepared, models = self._prepared()
        session = circumstances(PACKAGES)
        out = self.folder

        # What should be known before it is waited for: other versions, the oracle, the calls of a step.
        note = version_note(out, session)
        if note:
            _note(note)
        description = prepared.describe()
        world_model = description["world_model_in_words"] or ""
        if NOT_TO_REPORT in world_model:
            print(f"world model: {world_model}", flush=True)
        calls = getattr(prepared.agent, "calls_per_step", None)
        if callable(calls):
            print(f"a step of {self.agent} takes {calls()}", flush=True)

        session |= {"data_dir": self.data_dir, "workers": self.workers, "options": self.options()}
        session["engines"] = models.engines_in_words()
        tasks = description["tasks"]
        tracked_settings = self.options() | {  # what a tracker shows beside the curves
            "tasks played": tasks_in_words(tasks["number"], tasks["generated"]),
            "world model asked": world_model or "none",
        }
        with (
            env_class(self.env).engine_pool(self.concurrency),
            run_progress(len(prepared.items)) as progress,
            tracked(progress.show, self.report_to, out, tracked_settings) as report,
        ):
            summary = run_to(
                out,
                replace(prepared, on_step=progress.step, on_work=progress.work, on_note=_note),
                concurrency=self.concurrency,
                overlap=self.overlap,
                retry_failed=self.retry_failed,
                about=session,
                play=workers,
                on_start=lambda count: report({"event": "known", "result": {"updates": count}}),
                on_done=lambda trials: report({"event": "played", "trials": trials}),
            )
            report({"event": "done", "stage": "run", "result": summary})

        print()
        env_and_split = ", ".join(filter(None, (self.env, prepared.config["split"])))
        title = f"{self.agent} on {env_and_split}: {played_tasks(summary)}"
        print_table(summary_table(title, summary))
        if workers is not None and workers.restarts:
            print(f"\n{workers.restarts} workers were lost and replaced")
        if share_unread(summary) >= _MANY_UNREAD:
            print(f"\n{unread_replies(summary)}; {advice(prepared.agent, prepared.lm)}")
        for line in cut_replies(summary, settings_of(prepared.agent)):
            print(f"\n{line}")
        if failures(summary):
            print(f"\n{failures(summary)}\n{remedy(summary)}")
        print(f"\nrun: {out} (to look at it: comap view {shlex.quote(str(out))})")

        # Some failed episodes are results; where all failed, nothing was measured.
        return 3 if sum(summary["errors"].values()) == len(prepared.items) else 0

    def prepared(self) -> Run:
        """Return what is run; workers on Ray call this too, each for models of its own."""
        return self._prepared()[0]

    def _prepared(self) -> tuple[Run, Models]:
        """Return what is run, environment, tasks, agent and models, and what loaded the models.

        What is cheap to check comes first: a mistake is reported before a model is loaded.
        """
        from ..agents.run import Run

        self._check_counts()
        cls = env_class(self.env)
        completed = self._with_shipped()
        agent, agent_config = completed._agent()
        if completed.model is None:
            check_capabilities(agent, None)

        split = self.split or next(reversed(cls.test_splits), None)
        options = self.env_options(split="--split")
        if self.max_episode_steps is not None:
            options["max_episode_steps"] = self.max_episode_steps
        environments = Environments(self.env, options)
        make_env = partial(environments, split)
        with closing(make_env()) as env:
            env.get_wrapper_attr("check_engine")()
            available_tasks = self._tasks(env)
        tasks = evenly(available_tasks, self.episodes)
        if self.episodes is not None and self.episodes > len(available_tasks):
            print(
                f"there are {len(available_tasks):,} tasks, not {self.episodes:,}: all are played",
                flush=True,
            )
        check_out(self.folder)

        models = Models(
            completed, self.folder, environments, self.seed, needs=required_capabilities(agent)
        )
        lm = None
        calls_model = agent_options(self.agent) is not None or is_class_name(self.agent)
        if completed.model is not None and calls_model:
            lm = models(completed.model)
        check_capabilities(agent, lm)
        world_model = models.world_model()
        world_model_kind = completed.kind_of_world()
        if world_model is None and not self.imagined and asks_world_model(agent):
            world_model = "oracle"
            world_model_kind = "oracle"

        # A run that has ended is shown again without its servers.
        if self.retry_failed or not (self.folder / SUMMARY).exists():
            models.check_servers()

        # In imagined episodes the agent asks the model that imagines them.
        make_played_env: MakeEnv = make_env
        if self.imagined:
            make_played_env = self._imagining(make_env, world_model)
            world_model = None
        recorded_options = {name: value for name, value in options.items() if name != "data_dir"}
        recorded_options = public_options(recorded_options, cls)
        run = Run(
            make_env=make_played_env,
            agent=agent,
            tasks=tasks,
            lm=lm,
            world_model=world_model,
            seed=self.seed,
            seeds=self.seeds,
            keep=self._recorded_parts(len(tasks)),
            config={
                "env": self.env,
                "split": split,
                "env_options": recorded_options,
                "agent": agent_config,
                "world_model": world_model_kind,
            },
        )
        return run, models

    def _check_counts(self) -> None:
        check_number("--seed", self.seed, 0)
        for name in _COUNTS:
            count = getattr(self, name)
            option = flag(name)
            if count is not None:
                check_number(option, count)
            if name in ("horizon", "real_every") and count is not None and not self.imagined:
                raise OptionError(f"{option} is about imagined episodes; add --imagined")

    def _imagining(self, make_env: MakeEnv, world_model: AnyWorldModel) -> MakeEnv:
        """Return what makes environments whose steps a world model imagines."""
        if world_model is None:
            raise OptionError("--imagined needs a world model to imagine with; add --world-model")

        # One model serves all episodes, unless it belongs to one: then each makes its own of the config.
        model = world_model
        if isinstance(world_model, Mapping):
            created = create_world_model(world_model)
            if not is_grounded(created):
                model = created

        def make_imagined_env() -> ImaginedEnv:
            return ImaginedEnv(make_env(), model, self.horizon, self.real_every)

        return make_imagined_env

    def _recorded_parts(self, tasks: int) -> Keep:
        """Return what is recorded of calls; what a run was begun with, it is resumed with."""
        if self.keep != "auto":
            return self.keep
        if (self.folder / RUN).exists():
            parts: Keep = read_run(self.folder / RUN).get("keep", "replies")
            return parts
        return "prompts" if tasks <= _SMALL else "replies"

    def _with_shipped(self) -> Play:
        """Return the same with the models that comap ships where none were named."""
        world_model = self.world_model
        if world_model == "shipped":
            world_model = SHIPPED_WORLD
        if self.base_url is not None:  # the server may have a model called shipped
            return replace(self, world_model=world_model)

        model = self.model
        if model is not None:
            model = full_name(model) or model
        elif agent_options(self.agent) is not None and self.env in SHIPPED:
            with suppress(DataNotFound):  # comap may have been built without them
                size = shipped_models(SHIPPED[self.env]).parameters / 1e6
                check_packages()
                model = SHIPPED_AGENT
                print(
                    f"model: the small one that comap ships ({size:.1f} M parameters, trained on "
                    "generated tasks; --model for yours)",
                    flush=True,
                )

        # The pair comes from one training of CoMap.
        if model == SHIPPED_AGENT and self.agent == "comap" and world_model is None:
            world_model = SHIPPED_WORLD
        return replace(self, model=model, world_model=world_model)

    def _agent(self) -> tuple[Agent, dict[str, Any]]:
        """Return the agent, and those of its settings that a run records and compares."""
        config_class = agent_options(self.agent)
        calls_model = config_class is not None

        settings: dict[str, Any] = {}
        if self.model == SHIPPED_AGENT:  # it plays as it was trained, whatever the agent
            trained = shipped_models().settings["agent"]
            if self.agent == "comap":
                settings = {**trained}
            elif calls_model and self.agent != "paw":  # which has prompts of its own
                settings = {name: value for name, value in trained.items() if name in _SHARED}

        if calls_model and self.prompts is not None:
            settings["prompt_folder"] = str(self.prompts)
        settings |= {**self.config, **self.agent_option}
        if calls_model or self.agent == "random":
            settings.setdefault("seed", self.seed)

        # Limits that follow from the model are not settings: a resumed run takes those of its record.
        names_of_limits: tuple[str, ...] = ()
        if config_class is not None:
            names_of_limits = tuple(config_class().follows_model())
        limits = limits_of_before(self.folder, "agent", names_of_limits)
        agent = create_agent(self.agent, **{**limits, **settings})

        # The folder of prompts is of this machine; the prompts themselves are recorded.
        recorded = {name: value for name, value in settings.items() if name != "prompt_folder"}
        return agent, recorded

    def _tasks(self, env: gymnasium.Env[str, str]) -> Sequence[str]:
        """Return the tasks to choose from: those that are named, or listed in a file, or all."""
        available_tasks: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
        tasks = list(self.tasks)
        if len(tasks) == 1 and Path(tasks[0]).is_file():
            tasks = self._listed_tasks(Path(tasks[0]))
        elif len(tasks) == 1 and Path(tasks[0]).suffix and tasks[0] not in available_tasks:
            raise DataNotFound(f"expected task ids or a file of them, found no {tasks[0]!r:.80}")

        for task in sorted(set(tasks) - set(available_tasks)):
            env.reset(options={"task": task})  # says what is wrong with it
        return tasks or available_tasks

    def _listed_tasks(self, file: Path) -> list[str]:
        """Read the ids of a file, one on each line."""
        try:
            lines = file.read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise OptionError(
                f"expected a task on each line of {self.tasks[0]}, in UTF-8, found the byte "
                f"0x{error.object[error.start]:02x} that is none; save the file as UTF-8"
            ) from error

        tasks = [line.strip() for line in lines if line.strip()]
        if not tasks:
            raise DataNotFound(f"expected a task on each line of {self.tasks[0]}, found none")
        return tasks

    def _workers(self) -> RayPool | None:
        """Return the workers that are asked for; None for this process."""
        from ..agents.ray import RayPool

        if self.workers is None:
            if self.ray_address is not None:
                raise OptionError("--ray-address is about workers on Ray; add --workers ray:N")
            return None

        number = re.fullmatch(r"ray:([1-9]\d{0,4})", self.workers)
        if number is None:
            raise OptionError(
                f"expected --workers ray:N, with a number of at least 1, found {self.workers!r:.80}"
            )
        if self.worker_gpus < 0:
            raise OptionError(f"--worker-gpus must be at least 0, not {self.worker_gpus:g}")
        if find_spec("ray") is None:
            raise MissingExtra.of("ray", "playing on Ray")

        # Workers have another working directory.
        command = replace(self, out=self.folder.absolute())
        return RayPool(
            int(number[1]),
            address=self.ray_address,
            prepare=command.prepared,
            gpus=self.worker_gpus,
        )


def check_out(out: Path | None, *, is_file: bool = False) -> None:
    """Refuse a folder or file that cannot be written, before any work."""
    if out is None:
        return
    if is_file and out.is_dir():
        raise OptionError(f"--out is a file, but {out} is a folder; name a file in it")

    # Folders that are missing are made: the nearest that there is must allow it.
    path = out.absolute()
    folders = path.parents if is_file else (path, *path.parents)
    nearest = next(folder for folder in folders if folder.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise OptionError(
            f"expected to write {out}, found that {nearest} is no folder that one may write in; give "
            "another --out"
        )


@dataclass(frozen=True, kw_only=True)
class View(Command):
    """Show the episodes of runs in the browser.

    Writes one HTML page with the results of one or more runs and their episodes, step by step:
    observations and predictions, beliefs, gates, prompts and replies. Of several runs it has their
    differences from the first, too (see comap compare). The page needs nothing else and works on any
    machine.
    """

    example: ClassVar[str] = "comap view runs/comap"
    former: ClassVar[Mapping[str, str]] = {"episodes": "--max"}

    runs: tuple[str, ...] = field(metadata=WORD)
    """Folder of a run, or a file of trajectories; several are shown together."""
    out: Path | None = None
    """Page to write (default: RUN/view.html; for several runs, view-together.html in the first)."""
    open: bool = True
    """Open the page in the browser."""
    episodes: int = 5_000
    """Maximum number of episodes of each run."""

    def run(self) -> int:
        from ..benchmarks.view import show, view_run

        check_out(self.out, is_file=True)
        page = view_run(self.runs, self.out, self.episodes)
        hint = ""
        if self.open and not show(page):
            hint = " (no display: open it yourself)"
        print(f"page: {page}{hint}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Compare runs task by task.

    Pairs the episodes of each run with those of the first by task and seed, and prints differences with
    95 % intervals, a test of the difference in success, and the tasks that only one of both solves.
    Runs of other environments, tasks, data or prompts are refused. No server or model is called.
    """

    example: ClassVar[str] = "comap compare runs/react runs/comap --out comparison.json"

    runs: tuple[str, ...] = field(metadata=WORD)
    """Folder of a run, or a file of trajectories: first the one that the others are compared with."""
    accept: tuple[str, ...] = ()
    """Difference that is said, not refused: prompts, split, or a name in the environment's fingerprint,
    such as retriever. Repeatable."""
    out: Path | None = None
    """File to write the result to, as JSON, with all tasks that only one run solves."""

    def run(self) -> int:
        from ..benchmarks.comparison import compare_runs, comparison_lines, comparison_table
        from ..benchmarks.display import print_table
        from ..benchmarks.record import write_result

        check_out(self.out, is_file=True)
        result = compare_runs(self.runs, self.accept)
        if self.out is not None:
            write_result(self.out, result)

        comparisons = result["comparisons"]
        for comparison in comparisons:
            print_table(comparison_table(comparison))
            print()
            for line in comparison_lines(comparison):
                print(line)
            print()
        if len(comparisons) > 1:
            print(f"p is not corrected for {len(comparisons)} comparisons")
        if self.out is not None:
            print(f"result: {self.out}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify(Command):
    """Replay recorded episodes, and check that the results are right.

    Replays a sample of the episodes in the environment, recomputes the recorded numbers from the
    trajectories, and compares both. No server or model is called: their recorded replies are used. Exit
    status: 0 if everything agrees, 1 if something differs, 3 if something could not be checked.
    """

    example: ClassVar[str] = "comap verify runs/first --episodes 50"
    former: ClassVar[Mapping[str, str]] = {"episodes": "--sample"}

    results: Path = field(metadata=WORD)
    """Folder of comap run or comap train, a folder that holds such folders, or a file of trajectories."""
    episodes: int | str = 20
    """Number of episodes to replay, drawn at random; 0 or all for all of them."""
    seed: int = 0
    """Seed of the draw."""
    env: tuple[str, ...] = ()
    """Environment of your own that was played, as MODULE:ID; its module is imported. Repeatable."""
    data_dir: tuple[str, ...] = ()
    """Folder with official data (default: the data on this machine), or ID=DIR for one of several
    environments, such as comap/WebShop-v0=catalog. Repeatable."""
    env_option: Pairs = field(default_factory=dict)
    """Option of the environment that is not in the record, such as questions=FILE. Repeatable."""
    out: Path | None = None
    """File to write the result to, as JSON."""

    @property
    def folder(self) -> Path:
        return self.results

    def run(self) -> int:
        """Compare; return 0 if all agrees, 1 if something differs, 3 if something is unchecked."""
        from ..benchmarks.display import print_table
        from ..benchmarks.record import write_result
        from ..benchmarks.verify import explained, verify, verify_table

        sample = 0 if self.episodes == "all" else self.episodes
        if not isinstance(sample, int) or sample < 0:
            raise OptionError(
                f"--episodes must be a number of at least 0, or all, not {self.episodes}"
            )
        check_out(self.out, is_file=True)
        for env_id in self.env:
            registered(env_id)

        result = verify(
            str(self.results),
            sample=sample,
            seed=self.seed,
            data=self._data_folders(),
            options=self.env_option,
        )
        if self.out is not None:
            write_result(self.out, result)

        print_table(verify_table(result))
        print()
        for line in explained(result):
            print(line)
        counts = ", ".join(f"{count} {status}" for status, count in result["counts"].items())
        print(f"episodes: {counts or 'none'}; steps compared: {result['steps']:,}")
        if self.out is not None:
            print(f"result: {self.out}")

        if result["agree"]:
            return 0
        return 1 if result["differ"] else 3

    def _data_folders(self) -> dict[str, str]:
        """Return the folder of data of each environment; that of ``""`` is for all others."""
        folders: dict[str, str] = {}
        for text in self.data_dir:
            env_id, equals, folder = text.partition("=")
            if equals and env_id.startswith("comap/"):
                folders[env_id] = folder
            else:  # a folder's name may have a "=" too
                folders[""] = text

        for folder in folders.values():
            if not Path(folder).is_dir():
                raise DataNotFound(f"expected folders as --data-dir, found none at {folder}")
        return folders
