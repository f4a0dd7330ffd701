"""``comap train METHOD``: a preset with settings changed becomes one frozen config, and is trained."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..envs.registry import env_class, own_function
from ..errors import MissingExtra, OptionError
from ..jsonl import read_json
from ..lm.create import check_engine_of, kind_of, takes_engine
from ..lm.engine_choice import resolved_engine
from ..trainers.baselines.config import baseline_preset
from ..trainers.comap.config import preset
from ..trainers.config import presets
from ..trainers.paw import config as paw
from ..trainers.roles import student_of
from ..trainers.run_folder import FORMAT
from ..trainers.setup import Environments
from ..trainers.stages import Tell
from .options import SETTINGS, EnvOptions
from .run import check_out

TINY = "tiny"
"""The name of a small model that is built in a training's folder."""

_ESTIMATED = ("sft", "paw", "comap")
"""The methods whose memory and hours --dry-run estimates."""
_REPORT_SECONDS = 300.0  # between two writings of the report while training goes on
_SHIPPED = "shipped:agent"
_SHIPPED_FOR = "comap/ALFWorld-"


@dataclass(frozen=True, kw_only=True)
class Training(EnvOptions):
    """Training."""

    method: ClassVar[str] = ""
    rare: ClassVar[str] = "engine_memory"
    former: ClassVar[Mapping[str, str]] = {
        "tiny_parameters": "--parameters",
        "agent.prompt_folder": "--prompts",
    }
    style_option: ClassVar[str] = "--agent.prompts"
    resumes: ClassVar[bool] = True

    preset: str = "paper"
    """Preset: paper, or tiny (a new small model and few tasks, to try it on a CPU)."""
    model: str | None = None
    """Model that all roles start from: a folder of save_pretrained, a name on the Hub (Qwen/Qwen3-4B),
    or tiny (a new small model, built in the training's folder; the default of the preset tiny)."""
    tiny_parameters: int = 500_000
    """Parameters of the tiny model."""
    out: Path = Path("runs/train")
    """Folder of the training (default: runs/train-METHOD)."""
    engine: str = "auto"
    """What samples: hf (the model in training), vllm (in this process), the address of a vllm serve
    (http://HOST:PORT), or auto: vllm where it is installed and there is a CUDA GPU."""
    engine_memory: float | None = None
    """Share of the GPU's memory for vLLM in this process (default: 0.3)."""
    report_to: str = "none"
    """Tracker to log to as well: tensorboard, trackio or wandb."""
    dry_run: bool = False
    """Print memory and hours and stop; loads no weights."""
    config: Any = field(metadata=SETTINGS)

    def __init_subclass__(cls) -> None:
        cls.example = f"comap train {cls.method} --preset tiny --out runs/tiny-{cls.method}"

    @classmethod
    def configured(cls, preset_name: str, env: str, settings: Mapping[str, Any]) -> Any:
        """Return the method's config: the preset, what the environment changes, and the settings."""
        raise NotImplementedError

    @classmethod
    def resolved(cls, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        preset_name = options.get("preset", cls.preset)
        env = options.get("env", cls.env)
        config = cls.configured(preset_name, env, settings)
        return {"out": Path(f"runs/train-{cls.method}"), **options, "config": config}

    @classmethod
    def note(cls, options: Mapping[str, Any]) -> str:
        return "To resume a training that was interrupted, give the same command again."

    @classmethod
    def wrote(cls, record: Mapping[str, Any]) -> bool:
        if record["format"] != FORMAT:
            return False
        described: Any = record.get("described")
        # CoMap's own trainings record no method; all others do.
        return isinstance(described, dict) and described.get("method", "comap") == cls.method

    @property
    def folder(self) -> Path:
        return self.out

    @property
    def needs_model(self) -> bool:
        return True

    def train(self, environments: Environments, progress: Any, tell: Tell) -> str | Path | None:
        """Train, and return the model that adapters belong to; None where there is none."""
        raise NotImplementedError

    def run(self) -> int:
        """Train, write the report, and print what came out and what lets the models play."""
        from ..benchmarks.display import print_table, training_progress
        from ..benchmarks.report import report_line
        from ..benchmarks.training_record import play_command, read_training
        from ..benchmarks.training_report import results_table, write_report
        from ..trainers.processes import is_first

        if self.dry_run:
            return self._dry_run()
        self.check()
        environments = Environments(self.env, self.env_options())
        pool = env_class(self.env).engine_pool(self.config.concurrency)

        # Where several processes train together, the first one alone writes and prints.
        report = None
        with pool, training_progress() as progress:
            tell: Tell = progress.show
            if is_first():
                tell = _reporting(self.out, progress.show, write_report)
            base = self.train(environments, progress, tell)
            if is_first():
                report = report_line(partial(write_report, self.out))

        if report is not None:
            models = self.out / "models"
            results = results_table(read_training(self.out))
            print()
            if results.rows:
                print_table(results)
            else:
                print("no tasks were evaluated (--evaluation-tasks 0)")
            print(f"\n{report}\nmodels: {models} (to let them play:)\n")

            env_id = environments.env_id
            words = play_command(self.config, models, env_id, environments.options, base)
            print(shlex.join(words))
        return 0

    def _dry_run(self) -> int:
        """Print what the training takes; only the model's configuration is read."""
        from ..benchmarks.display import print_table
        from ..benchmarks.what_it_takes import (
            Asked,
            cards_here,
            number_of_tasks,
            shape_of,
            tables_of,
        )
        from ..trainers.processes import is_first, world_size
        from ..trainers.sampling import check_memory_share
        from ..trainers.sharding import is_sharded

        if self.method not in _ESTIMATED:
            raise OptionError(
                f"--dry-run estimates {', '.join(_ESTIMATED)}, not {self.method}; leave it out"
            )
        self._check_model()
        if self.model in (None, TINY):
            raise OptionError(
                "--dry-run estimates a model by its configuration, and a tiny one is built by the "
                "training; name a model: --model Qwen/Qwen3-8B"
            )
        # vLLM may be missing here: the training may be meant for another machine.
        check_engine_of(str(self.model), None, self.engine)
        check_memory_share(self.engine_memory)
        card = cards_here()[0]
        engine = self.engine
        if not card.is_assumed and engine == "auto":
            engine = resolved_engine(engine).name
        if not takes_engine(str(self.model)):
            engine = "hf"

        environments = Environments(self.env, self.env_options())
        training = Asked(
            method=self.method,
            config=self.config,
            env_id=environments.env_id,
            tasks=number_of_tasks(environments, self.config.train_split),
            model=str(self.model),
            engine=engine,
            engine_memory=self.engine_memory,
            processes=world_size(),
            sharded=is_sharded(),
        )
        tables, remarks = tables_of(training, shape_of(str(self.model)), card)
        if not is_first():
            return 0
        for table in tables:
            print_table(table)
            print()
        print("\n".join(remarks))
        return 0

    def check(self) -> None:
        """Refuse what cannot be trained, before anything is loaded."""
        from ..trainers.tracking import check_tracker

        check_out(self.out)

        # A folder of comap run has a run.json too, which a training would write over.
        record = self.out / "run.json"
        if record.is_file() and "described" not in read_json(record):
            raise OptionError(
                f"expected a training in --out, found another run in {self.out}; give another"
            )

        check_tracker(self.report_to)
        self._check_model()
        self._check_engine()

    def _check_model(self) -> None:
        """Refuse a model that is missing, or that cannot be trained here."""
        if self.needs_model and self.model is None and not self.preset.startswith(TINY):
            raise OptionError(
                "expected a model to train, found none; add --model, such as --model Qwen/Qwen3-4B, "
                "or try --preset tiny, which builds a small one"
            )
        if self.model is not None and kind_of(self.model) != "local":
            raise OptionError(
                f"expected a folder or a name on the hub as --model, found {self.model!r:.120}; a "
                "model behind a server cannot be trained here; --engine http://HOST:PORT lets a server "
                "sample"
            )

    def _check_engine(self) -> None:
        """Refuse an engine that does not exist, is not installed, or does not run such a model."""
        from ..trainers.sampling import check_memory_share

        check_engine_of(self.model or TINY, None, self.engine)
        check_memory_share(self.engine_memory)
        resolved_engine(self.engine)

    @property
    def sampling(self) -> dict[str, Any]:
        """The options of a training that say what samples."""
        engine = self.engine if takes_engine(self.model or TINY) else "hf"
        return {"engine": engine, "engine_memory": self.engine_memory}

    def env_options(self, **elsewhere: str) -> dict[str, Any]:
        user_options = super().env_options(
            split="--train-split and --evaluation-splits", **elsewhere
        )
        if self.data_dir is not None or not self.preset.startswith(TINY):
            return user_options

        # Tiny presets take generated tasks also where the official data are on this machine: they try
        # a method out in minutes, and do the same on every machine.
        return {**self.generated_options(), **user_options}

    def generated_options(self) -> dict[str, Any]:
        """Return the options of generated tasks, small ones where the user names no source."""
        cls = env_class(self.env)
        small_tasks: Mapping[str, Any] = {}
        if "source" not in self.env_option:
            small_tasks = presets("tasks").get(self.env, {})
        return {**cls.generated_options, **cls.listed_actions(), **small_tasks}

    def open_model(
        self, say: Callable[[str], object], tiny: str = "model"
    ) -> tuple[str | Path, dict[str, Any]]:
        """Return the model's folder or name, and what is recorded of it; a tiny one is built."""
        from ..trainers.setup import tiny_for_training

        if self.model in (None, TINY):
            parameters = self.tiny_parameters
            folder = tiny_for_training(
                self.out / tiny, self.env, parameters=parameters, seed=self.config.seed
            )
            return folder, {"name": TINY, "parameters": parameters}

        weights = _weights(str(self.model))
        if weights.folder is None:
            say(f"loading {self.model} from the hub, where it is not on this machine")
        return weights.folder or str(self.model), weights.description


@dataclass(frozen=True, kw_only=True)
class Staged(Training):
    """Starting point."""

    demos: Path | None = None
    """Demonstrations, such as the trajectories.jsonl of comap run (default: the environment's expert
    plays them)."""
    policy: Path | None = None
    """Model that the policy starts from instead, such as models/agent of another training."""

    @property
    def begin(self) -> dict[str, Path]:
        """What roles begin from instead of the model."""
        # Only some methods have an option for the world model.
        paths = {"agent": self.policy, "wm": getattr(self, "world_model", None)}
        return {role: path for role, path in paths.items() if path is not None}

    @property
    def needs_model(self) -> bool:
        # Students begin from their teachers, and adapters need a base model whatever they begin from.
        roles = {role for role in self.config.roles(self.begin) if student_of(role) is None}
        return self.config.weights == "lora" or not roles <= set(self.begin)

    def training_class(self) -> Callable[..., Any]:
        """Return what makes the method's training of a config, models, environments and a folder."""
        raise NotImplementedError

    def train(self, environments: Environments, progress: Any, tell: Tell) -> str | Path | None:
        """Open the models, let the expert play, and train; return the model that roles start from."""
        from ..benchmarks.record import circumstances
        from ..trainers.setup import PACKAGES, describe_models, hardware, open_models, show_expert

        config = self.config
        splits = (config.train_split, *config.evaluation_splits)
        record: dict[str, Any] = {"preset": self.preset, "env": environments.describe(splits)}

        model = None
        if self.needs_model:
            model, _ = self.open_model(progress.say)
        roles = open_models(config, model, self.begin)
        record["model"] = describe_models(roles, model=model, **self.begin)
        if self.model in (None, TINY) and model is not None:
            record["model"]["name"] = TINY

        demos = []
        if config.shows_expert:
            demos = show_expert(
                environments, config, self.demos, tell, config.side_steps, config.copy_side_steps
            )
        record["demonstrations"] = {
            "from": "file" if self.demos else "expert",
            "number": len(demos),
        }

        session = circumstances(PACKAGES) | {"options": self.options()}
        session["hardware"] |= hardware()
        training = self.training_class()(
            config,
            roles,
            environments,
            demos,
            self.out,
            about=record,
            session=session,
            report_to=self.report_to,
            tell=tell,
            **self.sampling,
        )
        training.run()
        return model


@dataclass(frozen=True, kw_only=True)
class CoMap(Staged):
    """Train CoMap: policy and world model learn from each other, in rounds.

    Stages: warm-up on demonstrations, initialization of the reflection mode, and rounds of
    co-evolution.
    """

    method: ClassVar[str] = "comap"
    explained: ClassVar[str] = (
        "seed weights concurrency rounds tasks_per_round demonstrations train_split evaluation_splits "
        "evaluation_tasks policy_rate world_model_rate batch_rows batch_tokens accumulate "
        "tau_p tau_q tau_wm"
    )

    preset: str = "paper"
    """Preset: paper; executed (as paper, but rounds learn the actions that the policy took, in place of
    demonstrated ones); or tiny (a new small model and few tasks, to try it on a CPU)."""
    world_model: Path | None = None
    """Model that the world model starts from instead, such as models/wm of another training."""
    warmed_up: bool = False
    """Skip the warm-up: policy and world model are warmed up already."""

    @classmethod
    def configured(cls, preset_name: str, env: str, settings: Mapping[str, Any]) -> Any:
        slow_settings = presets("slow")["comap"]
        return preset(preset_name, **_for_env(preset_name, env, settings, slow_settings))

    def check(self) -> None:
        super().check()
        if len(self.begin) == 1 and self.config.weights == "lora":
            raise OptionError(
                "expected two adapters or none to begin from, found one; give --policy and --world-model"
            )

    def training_class(self) -> Callable[..., Any]:
        from ..trainers.comap.coevolution import CoEvolution

        return partial(CoEvolution, warmed_up=self.warmed_up)


@dataclass(frozen=True, kw_only=True)
class Baseline(Staged):
    """Baseline."""

    explained: ClassVar[str] = (
        "seed weights concurrency demonstrations train_split evaluation_splits evaluation_tasks "
        "learning_rate epochs batch_rows batch_tokens accumulate"
    )

    @classmethod
    def configured(cls, preset_name: str, env: str, settings: Mapping[str, Any]) -> Any:
        completed = _for_env(preset_name, env, settings, {})
        if preset_name == TINY:  # what goes with this environment
            tiny_settings = presets(TINY).get(f"{cls.method} {env}", {})
            completed = {**tiny_settings, **completed}

        # `baseline_preset` adds the settings of slow environments itself: each method has its own.
        is_slow = env_class(env).slow
        return baseline_preset(cls.method, preset_name, slow=is_slow, **completed)

    def training_class(self) -> Callable[..., Any]:
        from ..trainers.baselines import run_class

        return partial(run_class(self.method), begun=self.begin)


@dataclass(frozen=True, kw_only=True)
class SFT(Baseline):
    """Train a policy on an expert's actions, as CoMap's warm-up does.

    With --train-world-model also a world model, on the observations that followed.
    """

    method: ClassVar[str] = "sft"
    explained: ClassVar[str] = f"{Baseline.explained} train_world_model"

    preset: str = "paper"
    """Preset: paper; pretrained (a small pretrained model, 300 demonstrations); or tiny (a new small
    model and few tasks, to try it on a CPU)."""


@dataclass(frozen=True, kw_only=True)
class IWM(Baseline):
    """Train IWM: the policy first learns to predict next observations, and then to imitate the expert.

    The next observations are those of the expert's actions and of other actions in the same states.
    """

    method: ClassVar[str] = "iwm"
    explained: ClassVar[str] = f"{Baseline.explained} explorer explored world_epochs alternatives"


@dataclass(frozen=True, kw_only=True)
class WKM(Baseline):
    """Train WKM: an agent with a knowledge model of tasks and states.

    Stages: task knowledge from successful and failed episodes, state knowledge, the knowledge model,
    the agent, and the knowledge base.
    """

    method: ClassVar[str] = "wkm"
    explained: ClassVar[str] = (
        f"{Baseline.explained} sampler compared task_knowledge state_knowledge encoder"
    )


@dataclass(frozen=True, kw_only=True)
class ITP(Baseline):
    """Train ITP_R: the policy learns how many steps to look ahead, from labels and then by playing.

    Stages: a depth for each of the expert's steps, policy and depth head on these, then advantage
    actor-critic on training tasks. The world model is not changed.
    """

    method: ClassVar[str] = "itp"
    explained: ClassVar[str] = (
        f"{Baseline.explained} k_max labelled episodes depth_cost online_rate"
    )

    world_model: Path | None = None
    """World model, such as models/wm of comap train sft or comap (default: trained here)."""


@dataclass(frozen=True, kw_only=True)
class WebEvolver(Baseline):
    """Train WebEvolver: policy and world model improve themselves, in rounds.

    In each round the policy plays, a judge accepts episodes, filters thin them out, and both models learn.
    Tasks that were not solved are imagined with the world model; accepted episodes are learned, too.
    Learning rate and epochs of the preset paper are ours: the paper does not publish them.
    """

    method: ClassVar[str] = "webevolver"
    explained: ClassVar[str] = (
        f"{Baseline.explained} rounds tasks_per_round start judged_by filters depth"
    )

    world_model: Path | None = None
    """Model that the world model starts from instead, such as models/wm of another training."""


@dataclass(frozen=True, kw_only=True)
class PaW(Training):
    """Train a policy by reinforcement learning on its own episodes: GRPO, RLOO, GiGPO or PPO.

    With PaW it also learns to predict the observations that follow uncertain actions.
    """

    method: ClassVar[str] = "paw"
    replaced: ClassVar[Mapping[str, str]] = {
        "--vllm-server": "--engine http://HOST:PORT",
        "--vllm-colocate": "--engine vllm --engine-memory SHARE",
    }
    explained: ClassVar[str] = (
        "algorithm paw groups members updates max_updates max_episode_steps concurrency seed weights "
        "learning_rate mini_batch_rows train_split evaluation_splits evaluation_tasks evaluation_every "
        "loss.alpha rho wm_coef wm_loss reward"
    )

    preset: str = ""
    """One of the presets above (default: the environment's)."""
    model: str | None = None
    """Policy to train: a folder of save_pretrained, a name on the Hub (Qwen/Qwen2.5-1.5B-Instruct),
    shipped:agent (the default of the preset tiny on ALFWorld), or tiny (a new small model, built in
    OUT/untrained and warmed up)."""
    env: str = ""
    """Id of the environment, or MODULE:ID (default: the preset's, or else comap/ALFWorld-v0)."""
    simulator: str | None = None
    """Language model that plays the search engine with --search-engine simulated (presets zerosearch):
    a folder, a name on the Hub, http://HOST:PORT/v1#NAME, or tiny (new; the default of
    tiny_zerosearch)."""

    @classmethod
    def configured(cls, preset_name: str, env: str, settings: Mapping[str, Any]) -> Any:
        slow_settings = presets("slow")["paw"]
        return paw.preset(preset_name, **_for_env(preset_name, env, settings, slow_settings))

    @classmethod
    def resolved(cls, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return all fields; preset, environment and models that are not given follow from the others."""
        preset_name = options.get("preset")
        env = options.get("env")
        if preset_name is None:
            preset_name = "alfworld" if env is None else paw.preset_of_env(env)
        env = env or paw.ENVIRONMENTS.get(preset_name, paw.ENVIRONMENTS["alfworld"])

        completed: dict[str, Any] = {**options, "preset": preset_name, "env": env}
        has_no_model = options.get("model") is None
        if has_no_model and preset_name == TINY and env.startswith(_SHIPPED_FOR):
            # It wins now and then: there is something to learn from, and no warm-up is needed.
            completed["model"] = _SHIPPED
            warmup = {"warmup_tokens": 0, **settings.get("warmup", {})}
            settings = {**settings, "warmup": warmup}

        completed |= super().resolved(completed, settings)
        if preset_name == "tiny_zerosearch" and completed["config"].search_engine == "simulated":
            completed.setdefault("simulator", TINY)
        return completed

    @classmethod
    def note(cls, options: Mapping[str, Any]) -> str:
        return f"presets: paper, {', '.join(paw.PRESETS)}\n\n{super().note(options)}"

    def env_options(self, **elsewhere: str) -> dict[str, Any]:
        user_options = super().env_options(max_episode_steps="--max-episode-steps", **elsewhere)
        preset_options = paw.ENVIRONMENT_OPTIONS.get(self.preset, {})
        max_episode_steps = self.config.max_episode_steps
        return {**preset_options, **user_options, "max_episode_steps": max_episode_steps}

    def generated_options(self) -> dict[str, Any]:
        return dict(env_class(self.env).generated_options)

    def check(self) -> None:
        """Refuse also a sampler, a reward and a simulator that do not go with the settings."""
        super().check()
        if ":" in self.config.reward:
            own_function(self.config.reward)

        # The search engine is simulated by a language model, which plays a search engine in training alone.
        simulated = self.config.search_engine == "simulated"
        if simulated and self.simulator is None:
            raise OptionError(
                "expected a model that plays the search engine, found none; add --simulator, such as "
                "--simulator Qwen/Qwen2.5-3B-Instruct, http://HOST:PORT/v1#NAME or tiny"
            )
        if self.simulator is not None and not simulated:
            raise OptionError(
                "--simulator plays the search engine with --search-engine simulated, found "
                f"{self.config.search_engine!r}; leave it out, or take the preset zerosearch"
            )

    def train(self, environments: Environments, progress: Any, tell: Tell) -> str | Path | None:
        """Train the policy; return the model that it began from, after the warm-up if there is one."""
        from ..benchmarks.record import circumstances
        from ..trainers.paw.training import train
        from ..trainers.setup import PACKAGES, hardware

        config = self.config
        model, description = self.open_model(progress.say, "untrained")
        splits = (config.train_split, *config.evaluation_splits)
        record = {
            "preset": self.preset,
            "row": config.title,
            "model": description,
            "env": environments.describe(splits),
            **self._simulator_description(),
        }
        session = circumstances(PACKAGES) | {"options": self.options()}
        session["hardware"] |= hardware()

        train(
            config,
            model=model,
            make_env=environments,
            out=self.out,
            tell=tell,
            report_to=self.report_to,
            about=record,
            session=session,
            **self.sampling,
            simulator=self.simulator,
        )
        return self.out / "model" if config.warmup.warmup_tokens else model

    def _simulator_description(self) -> dict[str, Any]:
        """Return what is recorded of the simulator: nothing of this machine, no address."""
        if self.simulator is None:
            return {}

        kind = kind_of(self.simulator)
        if kind == "remote":
            name = self.simulator.partition("#")[2]
            return {"simulator": {"name": name, "kind": kind}}
        if kind == "replay":
            return {"simulator": {"name": "replay", "kind": kind}}
        if self.simulator == TINY:
            return {"simulator": {"kind": kind, "name": TINY}}
        return {"simulator": {"kind": kind, **_weights(self.simulator).description}}


def _reporting(out: Path, show: Tell, write_report: Callable[[Path], object]) -> Tell:
    """Return a listener that shows events, and writes the report at most every five minutes."""
    last_report = time.monotonic()

    def listener(event: Mapping[str, Any]) -> None:
        nonlocal last_report
        show(event)

        # Only after these events is there something new to report.
        is_end = event["event"] in ("done", "update", "evaluated")
        if is_end and time.monotonic() - last_report >= _REPORT_SECONDS:
            with suppress(MissingExtra):  # the training's end says which package lacks
                write_report(out)
            last_report = time.monotonic()

    return listener


def _for_env(
    preset_name: str, env: str, settings: Mapping[str, Any], slow_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the given settings, with what goes with an environment and with other settings."""
    completed = dict(settings)

    # A batch is measured in rows or in tokens: the unit that is given replaces the preset's.
    optimization = dict(settings.get("optimization", {}))
    for name, other_unit in (
        ("batch_rows", "batch_tokens"),
        ("batch_tokens", "batch_rows"),
        ("micro_batch_rows", "micro_batch_tokens"),
    ):
        if optimization.get(name) is not None:
            optimization.setdefault(other_unit, None)
    if optimization:
        completed["optimization"] = optimization

    splits = env_class(env).test_splits
    if splits:
        completed.setdefault("evaluation_splits", splits)
    if preset_name.startswith(TINY) and env_class(env).slow:
        completed = {**slow_settings, **completed}
    return completed


class _Weights(NamedTuple):
    """A model's folder, None where it is on the hub, and what is recorded of it."""

    folder: Path | None
    description: dict[str, Any]


def _weights(spec: str) -> _Weights:
    """Return the folder of the model that a text names, and the hash of its weights."""
    from ..lm.create import folder_of, full_name
    from ..trainers.setup import weights_hash

    name = full_name(spec)
    folder = Path(spec).expanduser() if name is None else folder_of(name)
    if not folder.is_dir():
        return _Weights(None, {"name": spec})

    # Records leave out the folders of this machine: the last part of the path has to do as a name.
    recorded_name = name or folder.resolve().name
    return _Weights(folder, {"name": recorded_name, "sha256": weights_hash(folder)})
