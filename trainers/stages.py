"""A training of an agent in a folder: a list of stages, resumed at the first that is not done.

Each stage has a folder, does its work in a way that depends only on the settings and on what earlier
stages left, and is marked as done at its end. A training that was stopped or killed goes on with the
episodes, checkpoints and weights that exist.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import gymnasium

from ..agents import Agent, AgentConfig, ReActAgent, ReActConfig
from ..agents.heads import RefinementHead
from ..agents.prompting import prompts_sha256
from ..agents.requests import OnWork
from ..agents.run import PROMPTS, TRAJECTORIES, Run, recorded, run_to, writing
from ..envs.registry import text_env_of
from ..errors import OptionError
from ..jsonl import draft_of, write_json
from ..lm import LanguageModel
from ..trajectory import Trajectory
from ..worldmodel import WorldModel
from ..worldmodel.language import LanguageWorldModel
from .config import SharedTraining, recast
from .evaluation import played_result
from .processes import is_first, rank, wait, world_size
from .results import EvaluationResult, Fit, to_json
from .roles import Roles
from .run_folder import HEAD, RunFolder, StageFolder
from .samples import Example, Sample, count_samples, encode_samples, plan_updates
from .sampling import Sampler, check_models, chosen_sampler
from .sharding import NEEDS_ENGINE, is_sharded
from .tracking import shown_settings, tracked

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from .row_trainer import RowTrainer

MakeEnv: TypeAlias = Callable[[str], "gymnasium.Env[str, str]"]

Tell: TypeAlias = Callable[[Mapping[str, Any]], object]
"""Callback for events: plain data with the name of an ``event``, and the ``trials`` of an ``episode``."""

Work: TypeAlias = "Callable[[StageFolder], DataclassInstance | Mapping[str, Any]]"
"""A stage's work: returns its result, with the files of what it trained under ``weights``.

That is a dataclass of `comap.trainers.results`, or a mapping of a method's own measures.
"""


def identified(
    about: Mapping[str, Any] | None, config: Any, make_env: MakeEnv, model: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what identifies a training: `about`, and where that lacks them its environment and model."""
    identity: dict[str, Any] = {"model": dict(model), **(about or {})}
    describe = getattr(make_env, "describe", None)  # as `comap.trainers.Environments` has
    if "env" not in identity and describe is not None:
        identity["env"] = describe((config.train_split, *config.evaluation_splits))

    # Brief prompts are as they were before records had a digest, so that older trainings go on.
    env_id = getattr(make_env, "env_id", None)
    if env_id is not None and config.agent.prompts == "standard":
        briefing = text_env_of(env_id).briefing
        identity[PROMPTS] = {"sha256": prompts_sha256(config.agent, briefing, env_id)}
    return identity


def warn_of_other_form(agent: AgentConfig, demos: Sequence[Trajectory]) -> None:
    """Warn where prompts ask for thoughts and demonstrations have none, or the other way round."""
    if agent.prompts != "standard" or not demos:
        return
    steps = (step for demonstration in demos for step in demonstration.steps)
    have_thoughts = any("thought" in step.notes for step in steps)
    if have_thoughts == agent.asks_for_thought:
        return

    asks = "ask" if agent.asks_for_thought else "do not ask"
    thoughts = (
        "demonstrations with thoughts" if have_thoughts else "no thought in any demonstration"
    )
    warnings.warn(
        f"the policy's prompts {asks} for a thought before an action, found {thoughts}: it would learn "
        "another form of reply than it is asked for; give the agent "
        f"with_thought={have_thoughts}",
        stacklevel=1,
    )


class StagedTraining(ABC):
    """A training in a folder, stage by stage; it is not resumed with another `about`.

    What samples is `engine`: ``hf`` (the models in training), ``vllm`` (in this process, with the share
    `engine_memory` of the GPU's memory), the address of a ``vllm serve``, or ``auto``.
    """

    config: Any
    saved: tuple[str, ...] = ("agent",)
    """The roles that the training leaves behind."""
    can_shard: ClassVar[bool] = False
    """Whether its models may be sharded among the processes (FSDP)."""

    def __init__(  # noqa: PLR0913 what a training is made of
        self,
        config: SharedTraining,
        roles: Roles,
        make_env: MakeEnv,
        demos: Sequence[Trajectory],
        out: str | Path,
        *,
        about: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
        tell: Tell = lambda event: None,
        report_to: str = "none",
        engine: str = "auto",
        engine_memory: float | None = None,
    ):
        warn_of_other_form(config.agent, demos)
        self.config = config
        self.roles = roles
        self.make_env = make_env
        self.demos = demos
        self.out = Path(out)
        model = {"name": roles.name, "kind": roles.kind, **roles.chat.describe()}
        self.about = identified(about, config, make_env, model)
        self._engine_is_told = False
        self.sampling = self._chosen_sampler(engine, engine_memory)
        self._check_sharding()
        if self.samples and roles.kind == "full":
            check_models(self.sampling, len(roles.names))
        self.session = {"engine": str(self.sampling.choice), **(session or {})}
        self.tell = tell
        self.report_to = report_to
        self.agent: AgentConfig = replace(config.agent, seed=config.seed, adapter="agent")

        # Of zeros it answers 0.5 to everything; it is learned, or never read.
        self.head = RefinementHead.zeros(roles.base("agent").config.get_text_config().hidden_size)
        self.folders: dict[str, StageFolder] = {}

    def _chosen_sampler(self, engine: str, memory_share: float | None) -> Sampler:
        """Return what samples: an engine, or the models that are trained."""
        model = self.roles.base("agent")
        dtype = str(model.dtype).removeprefix("torch.")
        if self._trains_in_half("agent"):
            dtype = "bfloat16"
        return chosen_sampler(
            engine,
            memory_share,
            dtype=dtype,
            context=self.config.agent.max_length,
            device=str(model.device),
            exact=self.config.exact,
        )

    @property
    def samples(self) -> bool:
        """Whether something is asked of the models."""
        return True

    def _check_sharding(self) -> None:
        """Refuse models that are sharded where that cannot be."""
        if not is_sharded():
            return
        if not self.can_shard:
            raise OptionError(
                f"expected PaW, SFT or CoMap where models are sharded among the processes (FSDP), found "
                f"{type(self).__name__}; start it with torchrun, so that each process holds whole models"
            )
        if self.samples and not self.sampling.is_vllm:
            raise OptionError(f"expected an engine that samples, {NEEDS_ENGINE}")

    @abstractmethod
    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""

    def described(self) -> dict[str, Any]:
        """Return what makes this training the training it is, as plain data."""
        config = self.config.describe()
        return {"config": config, "demonstrations": fingerprint_of(self.demos), **self.about}

    def summary(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return what the summary has besides the results of the stages."""
        return {}

    def save(self, folder: Path) -> None:  # noqa: B027  (most have nothing else)
        """Write the files that the agent needs beside the roles' models into a folder."""

    def run(self) -> dict[str, Any]:
        """Do all stages that are not done, and return the summary that is written to the folder."""
        described = self.described()
        with (
            RunFolder(self.out).open(described, self.session) as folder,
            tracked(self.tell, self.report_to, self.out, shown_settings(described)) as self.tell,
        ):
            try:
                results = self._results_of_stages(folder)
                return self._finish(results)
            finally:
                self.roles.close()

    def _results_of_stages(self, folder: RunFolder) -> dict[str, dict[str, Any]]:
        """Return the result of each stage, which is done where it is not done yet."""
        plan = self.stages()
        results: dict[str, dict[str, Any]] = {}
        weights: dict[str, Path] = {}
        are_loaded = False
        for number, (name, work) in enumerate(plan):
            stage = folder.stage(number, name)
            self.folders[name] = stage
            result = stage.result()
            event = {"stage": name, "number": number + 1, "of": len(plan)}
            if result is None:
                # The first stage that is not done begins from the weights that earlier ones left.
                if not are_loaded:
                    self._load_weights(weights)
                    are_loaded = True
                self.tell({"event": "stage", **event})
                result = self._do(stage, work)
            else:
                stage.tidy()
                self.tell({"event": "known", **event, "result": result})

            # Of each role the last stage that trained it counts.
            weights |= stage.trained(self.roles.names)
            results[name] = result

        # Where all was done before, the models are those of the end all the same.
        if not are_loaded:
            self._load_weights(weights)
        return results

    def _finish(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Write the models and the summary of all stages, which is returned."""
        stages = {}
        for name, result in results.items():
            stages[name] = {
                key: value for key, value in result.items() if key not in ("stage", "log")
            }

        summary = {**self.summary(results), "stages": stages}
        if is_first() or is_sharded():
            self.roles.save(self.out / "models", self.saved)
        if is_first():
            with writing(self.out):
                self.save(self.out)
                write_json(self.out / "summary.json", summary)
        wait()
        return summary

    def _do(self, stage: StageFolder, work: Work) -> dict[str, Any]:
        """Do a stage's work, and return its result as it is written, with the time it took."""
        start = time.monotonic()
        cpu_start = time.process_time()
        result = to_json(work(stage))
        error = self.roles.take_sampling_error()
        if error is not None:
            result["sampling_error"] = error
        cpu_seconds = round(time.process_time() - cpu_start, 3)
        stage.finish({**result, "cpu_seconds": cpu_seconds}, time.monotonic() - start)

        # As it is read from the file: a resumed training has the very same numbers.
        written_result = stage.result()
        assert written_result is not None
        self.tell({"event": "done", "stage": stage.name, "result": written_result})
        return written_result

    def seed(self, *parts: object) -> int:
        """Return the training's seed for a purpose: other parts, other random numbers."""
        # From a digest: neighboring seeds and purposes share nothing, and a new purpose changes no other.
        # Shifted, since some libraries take seeds of 31 bits.
        text = "\n".join(map(str, (self.config.seed, *parts)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def language_model(self) -> LanguageModel:
        """Return the language model of all roles, with their present weights."""
        if not self._engine_is_told:
            self._engine_is_told = True
            choice = self.sampling.choice
            self.tell({"event": "engine", "name": choice.name, "why": choice.why})
        return self.roles.language_model(exact=self.config.exact, sampler=self.sampling)

    @cached_property
    def counting(self) -> LanguageModel:
        """A language model for counting tokens only, while prompts are built."""
        return self.roles.language_model()

    def world_model(self, lm: LanguageModel, role: str = "wm") -> LanguageWorldModel:
        """Return a role as a world model, which asks as the training's samples do."""
        return LanguageWorldModel(
            lm,
            prompts=self.agent.prompts,
            state_text=self.agent.state_text,
            adapter=role,
            max_length=self.agent.max_length,
            max_new_tokens=self.config.predict_tokens,
            examples=0,  # the papers' prompts have none
            prompt_folder=self.agent.prompt_folder,
        )

    def drafting(self, temperature: float | None = None, adapter: str = "agent") -> ReActAgent:
        """Return the policy as an agent that takes its drafts."""
        config = recast(self.agent, ReActConfig, adapter=adapter)
        if temperature is not None:
            config = replace(config, temperature=temperature)
        return ReActAgent(config)

    def evaluated_agent(self, temperature: float | None = None) -> AgentConfig:
        """Return how the agent acts in evaluation, or at another temperature."""
        if temperature is None:
            temperature = self.config.evaluation_temperature
        return replace(self.agent, temperature=temperature)

    def tasks(self, split: str) -> tuple[str, ...]:
        """Return the ids of a split's tasks."""
        with closing(self.make_env(split)) as env:
            ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
        return ids

    def some_tasks(self, number: int | None, *purpose: object) -> list[str]:
        """Return so many training tasks at random, others for another purpose."""
        return some_of(self.tasks(self.config.train_split), number, self.seed(*purpose))

    def play(
        self,
        folder: Path,
        split: str,
        agent: Agent,
        tasks: Sequence[str],
        *,
        lm: LanguageModel | None = None,
        world_model: WorldModel | None = None,
        seed: int | None = None,
        make_env: Callable[[], gymnasium.Env[str, str]] | None = None,
    ) -> list[Trajectory]:
        """Play tasks into a folder, shared among the processes, and return them in their order."""
        run = Run(
            make_env=make_env or partial(self.make_env, split),
            agent=agent,
            tasks=list(tasks)[rank() :: world_size()],
            lm=lm,
            world_model=world_model,
            seed=seed,
            config={"split": split},
            on_work=telling_work(self.tell),
            note_actions=self.agent.lists_actions,
        )
        task_count = 0
        success_count = 0

        def count(trials: list[Trajectory]) -> None:
            nonlocal task_count, success_count
            task_count += 1
            success_count += any(trial.success for trial in trials)
            self.tell(
                {
                    "event": "episode",
                    "done": task_count,
                    "of": len(run.tasks),
                    "won": success_count,
                    "stage": folder.parent.name.partition("-")[2],
                    "trials": trials,
                }
            )

        episodes = play_share(folder, run, concurrency=self.config.concurrency, on_done=count)

        # Episodes end in any order: what is learned from them must not depend on that.
        order = {task: index for index, task in enumerate(tasks)}
        return sorted(episodes, key=lambda trajectory: order[trajectory.task])

    def episodes(self, stage: str) -> list[Trajectory]:
        """Return the episodes that a stage has played, in the order of their tasks' ids."""
        episodes = played(self.folders[stage].path / "episodes")
        return sorted(episodes, key=lambda trajectory: (trajectory.task, trajectory.trial))

    def play_splits(
        self,
        stage: StageFolder,
        player: Callable[[float | None], Agent],
        *,
        lm: LanguageModel,
        world_model: WorldModel | None,
        tasks: int | None,
    ) -> tuple[dict[str, EvaluationResult], dict[str, list[Trajectory]]]:
        """Play the evaluation splits with an agent; return the results and the episodes of each.

        `player` makes the agent for a temperature: None is the evaluation's, 0 is for the greedy episodes
        beside those.
        """
        config = self.config
        agent = player(None)
        plays_greedily = config.evaluation_greedy and config.evaluation_temperature > 0
        results: dict[str, EvaluationResult] = {}
        episodes: dict[str, list[Trajectory]] = {}
        for split in config.evaluation_splits:
            task_ids = self.evaluation_tasks(split, tasks)
            episodes[split] = []
            for repeat in range(config.evaluation_seeds if task_ids else 0):
                # The first repeat has the tasks' own seeds.
                episodes[split] += self.play(
                    stage.path / f"{split}-{repeat}",
                    split,
                    agent,
                    task_ids,
                    lm=lm,
                    world_model=world_model,
                    seed=repeat or None,
                )
            results[split] = played_result(episodes[split])

            if plays_greedily and task_ids:
                greedy_episodes = self.play(
                    stage.path / f"{split}-greedy",
                    split,
                    player(0.0),
                    task_ids,
                    lm=lm,
                    world_model=world_model,
                )
                results[split] = replace(results[split], greedy=played_result(greedy_episodes))
        return results, episodes

    def evaluation_tasks(self, split: str, number: int | None) -> list[str]:
        """Return the tasks of a split to evaluate on; the same at each evaluation."""
        return some_of(self.tasks(split), number, self.seed("evaluation", split))

    def fit(
        self,
        stage: StageFolder,
        role: str,
        epochs: Sequence[Sequence[Sample]],
        rate: float,
        trainer: Callable[..., RowTrainer] | None = None,
        encode: Callable[[list[Example]], list[Example]] = lambda rows: rows,
        **options: Any,
    ) -> Fit:
        """Train a role on the samples of each epoch, and return what happened.

        Epochs of the same list share their rows, which `encode` may change before they are learned.
        """
        start = time.monotonic()

        # By identity: the epochs of one list are tokenized once, and need its memory once.
        rows_of_samples: dict[int, list[Example]] = {}
        for samples in epochs:
            if id(samples) not in rows_of_samples:
                rows = encode_samples(self.roles.chat, samples, self.agent.max_length)
                rows_of_samples[id(samples)] = encode(rows)
        rows_of_epochs = [rows_of_samples[id(samples)] for samples in epochs]

        lengths = []
        for rows in rows_of_epochs:
            lengths.append([len(row) for row in rows])
        plan = plan_updates(lengths, self.config.optimization, self.seed(stage.name, "order"))

        if trainer is None:
            from .row_trainer import WarmUpTrainer

            trainer = WarmUpTrainer
        all_options = self.trainer_options(stage, role, rate) | options
        log = trainer(epochs=rows_of_epochs, plan=plan, **all_options).fit()
        return Fit(
            role=role,
            rows=sum(map(len, lengths)),
            tokens=sum(map(sum, lengths)),
            updates=len(plan),
            log=tuple(log),
            training_seconds=round(time.monotonic() - start, 3),
        )

    def learn(
        self,
        stage: StageFolder,
        role: str,
        samples: Sequence[Sample],
        epochs: int,
        rate: float,
        *followers: str,
    ) -> Fit:
        """Train a role on samples, all scored tokens alike; its followers become copies of it."""
        fit = self.fit(stage, role, [samples] * epochs, rate)
        for follower in followers:
            self.roles.copy(role, follower)
        weights = self.save_weights(stage, role, *followers)
        return replace(fit, samples=count_samples(samples), weights=weights)

    def trainer_options(
        self, stage: StageFolder, role: str, rate: float, **changed: Any
    ) -> dict[str, Any]:
        """Return the arguments that all trainers of a stage share, perhaps with another optimization."""
        from .memory import fitted
        from .row_trainer import trainer_arguments

        # Weights stay in single precision; bfloat16 is what the passes compute with.
        is_mixed = self._trains_in_half(role)

        # What an engine that samples has left is free then.
        self.roles.sleep()
        base = self.roles.base(role)
        optimization = fitted(
            replace(self.config.optimization, **changed),
            base,
            self.roles.parameters(role).values(),
            longest=self.agent.max_length,
            mixed=is_mixed,
        )
        args = trainer_arguments(
            stage.checkpoints,
            optimization,
            rate,
            seed=self.seed(stage.name, "dropout"),
            bf16=is_mixed,
            use_cpu=base.device.type == "cpu",
        )

        def tell(logs: Mapping[str, float]) -> None:
            self.tell({"event": "update", "stage": stage.name, **logs})

        return {"roles": self.roles, "role": role, "args": args, "tell": tell}

    def _trains_in_half(self, role: str) -> bool:
        device: str = self.roles.base(role).device.type
        return device == "cuda" and self.config.precision in ("auto", "bfloat16")

    def save_weights(self, stage: StageFolder, *roles: str) -> dict[str, str]:
        """Write the weights of roles, and with the agent's the head; return the names of the files."""
        from safetensors.torch import save_file

        # Under a draft's name until it is whole: a file of weights that is there was written to its end.
        for role in roles:
            state = self.roles.state(role) if is_first() or is_sharded() else {}
            if is_first():
                with writing(stage.path):
                    path = stage.weights(role)
                    draft = draft_of(path)
                    save_file(state, draft)
                    draft.replace(path)
        if is_first() and "agent" in roles:
            with writing(stage.path):
                self.head.save(stage.weights(HEAD))
        wait()

        names = (*roles, HEAD) if "agent" in roles else roles
        return {name: stage.weights(name).name for name in names}

    def _load_weights(self, files: Mapping[str, Path]) -> None:
        """Load weights from files that are as they were written: see `StageFolder.trained`."""
        from safetensors.torch import load_file

        for role, path in files.items():
            if role == HEAD:
                self.head = RefinementHead.load(path)
            else:
                self.roles.load(role, load_file(path))


def play_share(folder: Path, run: Run, **options: Any) -> list[Trajectory]:
    """Play this process's tasks into a folder, and return the episodes of all processes."""
    # A session of another number of processes had divided the tasks otherwise.
    if is_first():
        with writing(folder.parent):
            for path in sorted(folder.glob("rank-*-of-*")):
                if not path.name.endswith(f"-of-{world_size()}"):
                    shutil.rmtree(path)
    wait()
    if run.tasks:
        run_to(folder / f"rank-{rank()}-of-{world_size()}", run, **options)
    wait()
    return played(folder)


def telling_work(tell: Tell, **about: Any) -> OnWork:
    """Return a callback that passes on the calls of language models: these may take minutes."""
    return lambda work: tell({"event": "calls", **about, **work._asdict()})


def played(folder: Path) -> list[Trajectory]:
    """Return all episodes that were played into a folder, in no order of the tasks."""
    episodes: list[Trajectory] = []
    for path in sorted(folder.glob(f"rank-*/{TRAJECTORIES}")):
        episodes += recorded(path)
    return episodes


def some_of(items: Sequence[str], number: int | None, seed: int) -> list[str]:
    """Return so many items in random order; all of them, as they are, if there are no more."""
    if number is None or number >= len(items):
        return list(items)
    return random.Random(seed).sample(list(items), number)


def fingerprint_of(demos: Sequence[Trajectory]) -> str:
    """Return the number of demonstrations and a digest of their actions."""
    # The actions alone: observations follow from them, and other texts of prompts are in the settings.
    digest = hashlib.sha256()
    for demonstration in demos:
        actions = [step.action for step in demonstration.steps]
        row = (demonstration.env_id, demonstration.task, actions)
        digest.update(json.dumps(row).encode("ascii") + b"\n")
    return f"{len(demos)}, sha256 {digest.hexdigest()[:16]}"
