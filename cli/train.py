"""``comap train METHOD``: a preset with settings changed becomes one frozen config, and is trained."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ..envs.registry import env_class, own_function
from ..errors import MissingExtra, OptionError
from ..jsonl import read_json
from ..lm.create import kind_of
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

_REPORT_SECONDS = 300.0  # between two writings of the report while training goes on
_SHIPPED, _SHIPPED_FOR = "shipped:agent", "comap/ALFWorld-"


@dataclass(frozen=True, kw_only=True)
class Training(EnvOptions):
    """Training."""

    method: ClassVar[str] = ""
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
    """Number of parameters of the tiny model."""
    out: Path = Path("runs/train")
    """Folder of the training (default: runs/train-METHOD)."""
    report_to: str = "none"
    """Tracker to log to as well: tensorboard, trackio or wandb."""
    config: Any = field(metadata=SETTINGS)

    def __init_subclass__(cls) -> None:
        cls.example = f"comap train {cls.method} --preset tiny --out runs/tiny-{cls.method}"

    @classmethod
    def configured(cls, preset_name: str, env: str, given: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    @classmethod
    def resolved(cls, own: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
        config = cls.configured(own.get("preset", cls.preset), own.get("env", cls.env), given)
        return {"out": Path(f"runs/train-{cls.method}"), **own, "config": config}

    @classmethod
    def note(cls, own: Mapping[str, Any]) -> str:
        return "To resume a training that was interrupted, give the same command again."

    @classmethod
    def wrote(cls, record: Mapping[str, Any]) -> bool:
        described: Any = record.get("described") if record["format"] == FORMAT else None
        return isinstance(described, dict) and described.get("method", "comap") == cls.method

    @property
    def folder(self) -> Path:
        return self.out

    @property
    def needs_model(self) -> bool:
        return True

    def train(self, environments: Environments, shown: Any, tell: Tell) -> str | Path | None:
        raise NotImplementedError

    def run(self) -> int:
        """Train, write the report, and print what came out and what lets the models play."""
        from ..benchmarks.display import print_table, training_progress
        from ..benchmarks.report import report_line
        from ..benchmarks.training_record import play_command, read_training
        from ..benchmarks.training_report import results_table, write_report
        from ..trainers.processes import is_first

        self.check()
        environments = Environments(self.env, self.env_options())
        with env_class(self.env).engine_pool(self.config.concurrency), training_progress() as shown:
            tell = _reporting(self.out, shown.show, write_report) if is_first() else shown.show
            base = self.train(environments, shown, tell)
            report = report_line(partial(write_report, self.out)) if is_first() else None
        if report is not None:
            models = self.out / "models"
            print()
            print_table(results_table(read_training(self.out)))
            print(f"\n{report}\nmodels: {models} (to let them play:)\n")
            played = (environments.env_id, environments.options, base)
            print(shlex.join(play_command(self.config, models, *played)))
        return 0

    def check(self) -> None:
        """Refuse what cannot be trained, before anything is loaded."""
        from ..trainers.tracking import check_tracker

        check_out(self.out)
        record = self.out / "run.json"
        if record.is_file() and "described" not in read_json(record):
            raise OptionError(
                f"expected a training in --out, found another run in {self.out}; give another"
            )
        check_tracker(self.report_to)
        if self.needs_model and self.model is None and not self.preset.startswith(TINY):
            raise OptionError(
                "expected a model to train, found none; add --model, such as --model Qwen/Qwen3-4B, "
                "or try --preset tiny, which builds a small one"
            )
        if self.model is not None and kind_of(self.model) != "local":
            raise OptionError(
                f"expected a folder or a name on the hub as --model, found {self.model!r:.120}; a "
                "model behind a server cannot be trained here"
            )

    def env_options(self, **elsewhere: str) -> dict[str, Any]:
        chosen = super().env_options(split="--train-split and --evaluation-splits", **elsewhere)
        if self.data_dir is not None or not self.preset.startswith(TINY):
            return chosen
        return {**self.generated_options(), **chosen}

    def generated_options(self) -> dict[str, Any]:
        """Return the options of generated tasks, small ones where the user names no source."""
        cls = env_class(self.env)
        small = {} if "source" in self.env_option else presets("tasks").get(self.env, {})
        return {**cls.generated_options, **cls.listed_actions(), **small}

    def open_model(
        self, say: Callable[[str], object], tiny: str = "model"
    ) -> tuple[str | Path, dict[str, Any]]:
        """Return the model's folder or name, and what is recorded of it; a tiny one is built."""
        from ..trainers.setup import tiny_for_training

        if self.model in (None, TINY):
            size, seed = self.tiny_parameters, self.config.seed
            built = tiny_for_training(self.out / tiny, self.env, parameters=size, seed=seed)
            return built, {"name": TINY, "parameters": size}
        folder, about = _weights(str(self.model))
        if folder is None:
            say(f"loading {self.model} from the hub, where it is not on this machine")
        return folder or str(self.model), about


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
        given = {"agent": self.policy, "wm": getattr(self, "world_model", None)}
        return {role: path for role, path in given.items() if path is not None}

    @property
    def needs_model(self) -> bool:
        roles = {role for role in self.config.roles(self.begin) if student_of(role) is None}
        return self.config.weights == "lora" or not roles <= set(self.begin)

    def training_class(self) -> Callable[..., Any]:
        raise NotImplementedError

    def train(self, environments: Environments, shown: Any, tell: Tell) -> str | Path | None:
        from ..benchmarks.record import circumstances
        from ..trainers.setup import PACKAGES, describe_models, hardware, open_models, show_expert

        config, begin = self.config, self.begin
        about: dict[str, Any] = {"preset": self.preset}
        about["env"] = environments.describe((config.train_split, *config.evaluation_splits))
        model = self.open_model(shown.say)[0] if self.needs_model else None
        roles = open_models(config, model, begin)
        about["model"] = describe_models(roles, model=model, **begin)
        if self.model in (None, TINY) and model is not None:
            about["model"]["name"] = TINY
        demos = []
        if config.shows_expert:
            strays = config.side_steps, config.copy_side_steps
            demos = show_expert(environments, config, self.demos, tell, *strays)
        about["demonstrations"] = {"from": "file" if self.demos else "expert", "number": len(demos)}
        session = circumstances(PACKAGES) | {"options": self.options()}
        session["hardware"] |= hardware()
        self.training_class()(
            config,
            roles,
            environments,
            demos,
            self.out,
            about=about,
            session=session,
            report_to=self.report_to,
            tell=tell,
        ).run()
        return model


@dataclass(frozen=True, kw_only=True)
class CoMap(Staged):
    """Train CoMap: policy and world model learn from each other, in rounds.

    Stages: warm-up on demonstrations, initialization of the reflection mode, and rounds of
    co-evolution.
    """

    method: ClassVar[str] = "comap"
    shown: ClassVar[str] = (
        "seed weights concurrency rounds tasks_per_round demonstrations train_split evaluation_splits "
        "evaluation_tasks policy_rate world_model_rate batch_rows batch_tokens accumulate "
        "tau_p tau_q tau_wm"
    )

    world_model: Path | None = None
    """Model that the world model starts from instead, such as models/wm of another training."""
    warmed_up: bool = False
    """Skip the warm-up: policy and world model are warmed up already."""

    @classmethod
    def configured(cls, preset_name: str, env: str, given: Mapping[str, Any]) -> Any:
        return preset(preset_name, **_for_env(preset_name, env, given, presets("slow")["comap"]))

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

    shown: ClassVar[str] = (
        "seed weights concurrency demonstrations train_split evaluation_splits evaluation_tasks "
        "learning_rate epochs batch_rows batch_tokens accumulate"
    )

    @classmethod
    def configured(cls, preset_name: str, env: str, given: Mapping[str, Any]) -> Any:
        chosen, slow = _for_env(preset_name, env, given, {}), env_class(env).slow
        if preset_name == TINY:  # what goes with this environment
            chosen = {**presets(TINY).get(f"{cls.method} {env}", {}), **chosen}
        return baseline_preset(cls.method, preset_name, slow=slow, **chosen)

    def training_class(self) -> Callable[..., Any]:
        from ..trainers.baselines import run_class

        return partial(run_class(self.method), begun=self.begin)


@dataclass(frozen=True, kw_only=True)
class SFT(Baseline):
    """Train a policy on an expert's actions, as CoMap's warm-up does.

    With --train-world-model also a world model, on the observations that followed.
    """

    method: ClassVar[str] = "sft"
    shown: ClassVar[str] = f"{Baseline.shown} train_world_model"


@dataclass(frozen=True, kw_only=True)
class IWM(Baseline):
    """Train IWM: the policy first learns to predict next observations, and then to imitate the expert.

    The next observations are those of the expert's actions and of other actions in the same states.
    """

    method: ClassVar[str] = "iwm"
    shown: ClassVar[str] = f"{Baseline.shown} explorer explored world_epochs alternatives"


@dataclass(frozen=True, kw_only=True)
class WKM(Baseline):
    """Train WKM: an agent with a knowledge model of tasks and states.

    Stages: task knowledge from successful and failed episodes, state knowledge, the knowledge model,
    the agent, and the knowledge base.
    """

    method: ClassVar[str] = "wkm"
    shown: ClassVar[str] = (
        f"{Baseline.shown} sampler compared task_knowledge state_knowledge encoder"
    )


@dataclass(frozen=True, kw_only=True)
class ITP(Baseline):
    """Train ITP_R: the policy learns how many steps to look ahead, from labels and then by playing.

    Stages: a depth for each of the expert's steps, policy and depth head on these, then advantage
    actor-critic on training tasks. The world model is not changed.
    """

    method: ClassVar[str] = "itp"
    shown: ClassVar[str] = f"{Baseline.shown} k_max labelled episodes depth_cost online_rate"

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
    shown: ClassVar[str] = (
        f"{Baseline.shown} rounds tasks_per_round start judged_by filters imagined_from depth candidates"
    )

    world_model: Path | None = None
    """Model that the world model starts from instead, such as models/wm of another training."""


@dataclass(frozen=True, kw_only=True)
class PaW(Training):
    """Train a policy by reinforcement learning on its own episodes: GRPO, RLOO, GiGPO or PPO.

    With PaW it also learns to predict the observations that follow uncertain actions.
    """

    method: ClassVar[str] = "paw"
    rare: ClassVar[str] = "vllm_colocate"
    shown: ClassVar[str] = (
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
    vllm_server: str | None = None
    """Address of a vLLM server that samples; its weights are kept up to date. It is started with vllm
    serve; docs/trainers/paw.md has the whole command."""
    vllm_colocate: float | None = None
    """Share of the GPU's memory (such as 0.3) for a vLLM engine in this process that samples; untested
    on GPUs."""
    simulator: str | None = None
    """With --engine simulated (the presets zerosearch): language model that plays the search engine in
    training: a folder, a name on the Hub, http://HOST:PORT/v1#NAME, or tiny (a new small model; the
    default of tiny_zerosearch)."""

    @classmethod
    def configured(cls, preset_name: str, env: str, given: Mapping[str, Any]) -> Any:
        return paw.preset(preset_name, **_for_env(preset_name, env, given, presets("slow")["paw"]))

    @classmethod
    def resolved(cls, own: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return all fields; preset, environment and models that are not given follow from the others."""
        name, env = own.get("preset"), own.get("env")
        if name is None:
            name = "alfworld" if env is None else paw.preset_of_env(env)
        env = env or paw.ENVIRONMENTS.get(name, paw.ENVIRONMENTS["alfworld"])
        found: dict[str, Any] = {**own, "preset": name, "env": env}
        if own.get("model") is None and name == TINY and env.startswith(_SHIPPED_FOR):
            found["model"] = _SHIPPED  # it wins now and then: there is something to learn from
            given = {**given, "warmup": {"warmup_tokens": 0, **given.get("warmup", {})}}
        found |= super().resolved(found, given)
        if name == "tiny_zerosearch" and found["config"].engine == "simulated":
            found.setdefault("simulator", TINY)
        return found

    @classmethod
    def note(cls, own: Mapping[str, Any]) -> str:
        return f"presets: paper, {', '.join(paw.PRESETS)}\n\n{super().note(own)}"

    def env_options(self, **elsewhere: str) -> dict[str, Any]:
        chosen = super().env_options(max_episode_steps="--max-episode-steps", **elsewhere)
        own = paw.ENVIRONMENT_OPTIONS.get(self.preset, {})
        return {**own, **chosen, "max_episode_steps": self.config.max_episode_steps}

    def generated_options(self) -> dict[str, Any]:
        return dict(env_class(self.env).generated_options)

    def check(self) -> None:
        super().check()
        if ":" in self.config.reward:
            own_function(self.config.reward)
        server, simulated = self.vllm_server, self.config.engine == "simulated"
        if server is not None and not server.startswith(("http://", "https://")):
            raise OptionError(
                f"expected a URL such as http://127.0.0.1:8000 as --vllm-server, found {server!r:.120}"
            )
        if self.vllm_colocate is not None and (server or not 0 < self.vllm_colocate < 1):
            raise OptionError(
                "expected --vllm-colocate to be a share of memory between 0 and 1, without --vllm-server, "
                f"found {self.vllm_colocate:g}"
            )
        if simulated and self.simulator is None:
            raise OptionError(
                "expected a model that plays the search engine, found none; add --simulator, such as "
                "--simulator Qwen/Qwen2.5-3B-Instruct, http://HOST:PORT/v1#NAME or tiny"
            )
        if self.simulator is not None and not simulated:
            raise OptionError(
                "--simulator plays the search engine with --engine simulated, found "
                f"{self.config.engine!r}; leave it out, or take the preset zerosearch"
            )

    def train(self, environments: Environments, shown: Any, tell: Tell) -> str | Path | None:
        from ..benchmarks.record import circumstances
        from ..trainers.paw.training import train
        from ..trainers.setup import PACKAGES, hardware

        config = self.config
        model, about_model = self.open_model(shown.say, "untrained")
        about = {"preset": self.preset, "row": config.title, "model": about_model}
        splits = (config.train_split, *config.evaluation_splits)
        about |= {"env": environments.describe(splits), **self._about_simulator()}
        session = circumstances(PACKAGES) | {"options": self.options()}
        session["hardware"] |= hardware()
        train(
            config,
            model=model,
            make_env=environments,
            out=self.out,
            tell=tell,
            report_to=self.report_to,
            about=about,
            session=session,
            vllm=self.vllm_server or self.vllm_colocate,
            simulator=self.simulator,
        )
        return self.out / "model" if config.warmup.warmup_tokens else model

    def _about_simulator(self) -> dict[str, Any]:
        """Return what is recorded of the simulator: nothing of this machine, no address."""
        if self.simulator is None:
            return {}
        kind = kind_of(self.simulator)
        if kind != "local":
            name = self.simulator.partition("#")[2] if kind == "remote" else "replay"
            return {"simulator": {"name": name, "kind": kind}}
        about = {"name": TINY} if self.simulator == TINY else _weights(self.simulator)[1]
        return {"simulator": {"kind": kind, **about}}


def _reporting(out: Path, show: Tell, write_report: Callable[[Path], object]) -> Tell:
    """Return what shows events, and writes the report now and then while training goes on."""
    last = time.monotonic()

    def tell(event: Mapping[str, Any]) -> None:
        nonlocal last
        show(event)
        is_end = event["event"] in ("done", "update", "evaluated")
        if is_end and time.monotonic() - last >= _REPORT_SECONDS:
            with suppress(MissingExtra):
                write_report(out)
            last = time.monotonic()

    return tell


def _for_env(
    preset_name: str, env: str, given: Mapping[str, Any], slow: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the given settings, with what goes with an environment and with other settings."""
    chosen = dict(given)
    for one, other in (("rows", "tokens"), ("tokens", "rows")):
        part = dict(chosen.get("optimization", {}))
        for name in ("batch", "micro_batch"):
            if part.get(f"{name}_{one}") is not None:
                part.setdefault(f"{name}_{other}", None)
        chosen |= {"optimization": part} if part else {}
    splits = env_class(env).test_splits
    if splits:
        chosen.setdefault("evaluation_splits", splits)
    if preset_name.startswith(TINY) and env_class(env).slow:
        chosen = {**slow, **chosen}
    return chosen


def _weights(spec: str) -> tuple[Path | None, dict[str, Any]]:
    """Return a model's folder, None where it is the hub's, and what is recorded of it."""
    from ..lm.create import folder_of, full_name
    from ..trainers.setup import weights_hash

    name = full_name(spec)
    folder = Path(spec).expanduser() if name is None else folder_of(name)
    if not folder.is_dir():
        return None, {"name": spec}
    return folder, {"name": name or folder.resolve().name, "sha256": weights_hash(folder)}
