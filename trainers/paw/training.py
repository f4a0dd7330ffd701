"""The whole of a PaW training: what it begins with, updates, evaluations, and what it leaves behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium

from ... import jsonl
from ...agents.base import Agent
from ...agents.paw import PaWAgent
from ...agents.run import Run, writing
from ...envs.generated import is_generated
from ...envs.panel import evenly
from ...errors import DataCorrupt, OptionError, needs_extra
from ...lm import LanguageModel
from ...lm.chat import ChatTokenizer
from ...lm.load import without_bars
from ...lm.vllm import VLLMLanguageModel
from ...trajectory import Trajectory
from ..config import changed_parts
from ..entry import paw_conditions, warn_of_collapse
from ..processes import gathered, is_first, own_device, rank, wait, world_size
from ..results import UpdateEvaluation, to_json
from ..run_folder import RunFolder, last_checkpoint
from ..sampling import (
    EngineLanguageModel,
    Sampler,
    chosen_sampler,
    open_engine,
    warn_of_large_error,
)
from ..sharding import (
    NEEDS_ENGINE,
    check_launch,
    copies,
    is_sharded,
    loaded_once,
    read_trained,
    trained_weights,
)
from ..stages import MakeEnv, Tell, identified, play_share, telling_work
from ..tracking import shown_settings, tracked
from .ahead import RolloutsAhead
from .config import PaWTraining
from .rewards import RewardFunction, reward_function
from .rollouts import Group, RolloutPlugin, Rollouts, groups_of, roll_out, rollout_metrics, shuffled
from .rows import PaWRow, Serializer
from .search.plugin import check_search, search_rollouts
from .search.simulator import open_simulator
from .warmup import warmed_up

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .losses import ObservationLoss, Select

METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
FAULTS = "faults.jsonl"
"""The file of episodes that a fault ended, in rollouts."""

_EVALUATIONS = "evaluations"
_ADAPTER = "default"  # what peft calls the adapter that a trainer makes
_BATCH_TOKENS = 65_536
_BATCH_ROWS = 256


def train(  # noqa: PLR0913 what a training is made of
    config: PaWTraining,
    *,
    model: str | Path | None,
    make_env: MakeEnv,
    out: str | Path,
    tell: Tell = lambda event: None,
    report_to: str = "none",
    about: Mapping[str, Any] | None = None,
    session: Mapping[str, Any] | None = None,
    engine: str = "auto",
    engine_memory: float | None = None,
    demos: str | Path | None = None,
    device: str = "auto",
    simulator: str | LanguageModel | None = None,
    wm_loss: ObservationLoss | None = None,
    advantage: Callable[[Sequence[PaWRow]], ArrayLike] | None = None,
    select: Select | None = None,
    reward: RewardFunction | None = None,
) -> Path:
    """Train a policy by reinforcement learning, with PaW or without, or resume a training.

    Args:
        config: The settings.
        model: A folder of ``save_pretrained``, or a name on the hub; None to build a tiny one, which
            needs a warm-up.
        make_env: Makes an environment on a split; `comap.trainers.Environments` for search and warm-ups.
        out: The training's folder; a training with the same settings there is resumed.
        tell: Callback for events.
        report_to: A tracker: tensorboard, trackio or wandb.
        about: What else identifies the training: to resume another is refused.
        session: What to write down of this session: versions, hardware.
        engine: What samples: ``hf``, ``vllm``, ``auto`` or a server, as `resolved_engine` takes it.
        engine_memory: The share of the GPU's memory for vLLM in this process; None for 0.3.
        demos: File of demonstrations for the warm-up; None for the environment's own expert.
        device: Where to train; auto takes a GPU where there is one.
        simulator: With search_engine=simulated, the model that plays the search engine, or its name.
        wm_loss: Another loss on observations: of (B, T) log-probabilities of the tokens after the prompt
            and the mask of the observation's, returns each row's, (B,), with gradients.
        advantage: Another advantage: of N rows in whole groups, returns each row's, (N,). PPO has a
            critic's and takes none.
        select: Another selection: of the entropies of N actions and which rows have an observation,
            returns which observations are learned, (N,).
        reward: Another reward: of an episode, returns each step's. The settings' success_reward is still
            R_max unless r_max is set.

    Returns:
        The folder of the trained policy.

    Raises:
        OptionError: A setting cannot be, or does not go with another.
        MissingExtra: The extra ``train`` is not installed.

    Example:
        >>> from comap.trainers import Environments, paw_preset, train_paw
        >>> homes = Environments("comap/ALFWorld-v0", {"source": "generated"})
        >>> train_paw(paw_preset("tiny"), model=None, make_env=homes, out="run")  # doctest: +SKIP
    """
    with needs_extra("train", "reinforcement learning"):
        import trl  # noqa: F401
    _check_parts(config, make_env, advantage, reward)
    check_search(config, make_env, simulator)
    functions = {"wm_loss": wm_loss, "advantage": advantage, "select": select}
    usual_reward = reward_function(config)
    description = _description(config, model, make_env, about, {**functions, "reward": reward})
    sampler = _chosen_sampler(config, engine, engine_memory, device)

    session = {"engine": str(sampler.choice), **(session or {})}
    with (
        RunFolder(out).open(description, session) as folder,
        tracked(tell, report_to, folder.path, shown_settings(description)) as tell,
    ):
        base = warmed_up(config, model, make_env, folder.path, tell, demos, device)
        search = open_simulator(simulator, config, make_env, folder.path, tell)
        policy = Policy(config, base, sampler=sampler, device=device)
        training = _Training(
            config, policy, make_env, folder.path, tell, functions, reward or usual_reward, search
        )
        with closing(training):
            return training.run()


def _chosen_sampler(
    config: PaWTraining, engine: str, memory_share: float | None, device: str
) -> Sampler:
    """Return what samples: an engine, or the policy itself."""
    from ...lm.load import device_of

    torch_device = device_of(own_device() if device == "auto" else device)
    dtype = "float64" if config.precision == "float64" else "float32"
    if config.computes_in_half(torch_device.type == "cuda"):
        dtype = "bfloat16"
    sampler = chosen_sampler(
        engine,
        memory_share,
        dtype=dtype,
        context=config.agent.max_length,
        device=str(torch_device),
    )
    _check_sampler(config, sampler)
    return sampler


def _description(
    config: PaWTraining,
    model: str | Path | None,
    make_env: MakeEnv,
    about: Mapping[str, Any] | None,
    functions: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what identifies a training: its folder is not resumed with anything else."""
    base = {"name": Path(model or "tiny").name, **_template_variables(model, config)}
    about = identified(about, config, make_env, base)
    description = {"method": "paw", "config": config.describe(), **about}
    description |= changed_parts(functions)
    description["config"].pop("max_updates", None)  # may grow when the training is gone on with
    return description


def _template_variables(model: str | Path | None, config: PaWTraining) -> dict[str, Any]:
    """Return what the model's chat template reads beside messages; empty if it reads nothing."""
    warms_up = config.warmup.warmup_tokens > 0
    if model is None or (warms_up and not Path(model).is_dir()):  # which is refused later on
        return {}
    from ...lm.load import load_tokenizer, source_of

    tokenizer = load_tokenizer(source_of(model), None)
    chat = ChatTokenizer(tokenizer, (), config.chat_template_kwargs)
    return chat.chat_for(config.agent.asks_to_think).describe()


def _check_parts(config: object, make_env: object, advantage: object, reward: object) -> None:
    """Refuse parts that cannot be used, or not with these settings."""
    for name, function in {"make_env": make_env, "reward": reward or len}.items():
        if not callable(function):
            raise OptionError(f"expected a function, found {name}={function!r:.50}; give one")
    if not isinstance(config, PaWTraining):
        raise OptionError(
            f"expected a PaWTraining, found config={config!r:.50}; use paw_preset(NAME)"
        )
    if advantage is not None and config.algorithm == "ppo":
        raise OptionError(
            "expected no advantage with algorithm='ppo', which has a critic's; use grpo"
        )


def _check_sharding(config: PaWTraining, sampler: Sampler) -> None:
    """Refuse what a sharded model cannot do."""
    check_launch()
    if is_sharded() and not sampler.is_vllm:
        raise OptionError(f"expected an engine that samples, {NEEDS_ENGINE}")
    if is_sharded() and config.staleness:
        raise OptionError(
            f"expected rollouts of the weights as they are where these are sharded (FSDP), found "
            f"staleness={config.staleness}; set it to 0"
        )


def _check_sampler(config: PaWTraining, sampler: Sampler) -> None:
    """Refuse a sampler that cannot sample: a sharded model by itself, or a model while it is trained."""
    _check_sharding(config, sampler)
    if config.staleness and not sampler.is_vllm:
        raise OptionError(
            f"staleness={config.staleness} plays rollouts while the model is trained, which needs an "
            f"engine beside it, found engine={sampler.choice.name!r}: that is the model itself; give the "
            "address of a vllm serve as the engine, or vllm, or set staleness to 0"
        )


class _Played(NamedTuple):
    """What was played for an update: all groups, this process's rollouts, and sums over them."""

    groups: Sequence[Group]
    rollouts: Rollouts
    sums: dict[str, float]


def _row_ages(age: int, rows: int) -> dict[str, float]:
    """Return the mean and the highest age of an update's rows, of this process and all others."""
    ages = gathered([(age, rows)])
    total = sum(rows for _, rows in ages)
    return {
        "row_age": sum(age * rows for age, rows in ages) / max(total, 1),
        "row_age_max": float(max(age for age, _ in ages)),
    }


def _in_turn(tell: Tell) -> Tell:
    """Return a callback that threads call one at a time: rollouts ahead have one of their own."""
    lock = Lock()

    def tell_in_turn(event: Any) -> None:
        with lock:
            tell(event)

    return tell_in_turn


class _Training:
    """A training whose policy is there."""

    def __init__(
        self,
        config: PaWTraining,
        policy: Policy,
        make_env: MakeEnv,
        out: Path,
        tell: Tell,
        functions: Mapping[str, Any],
        reward: RewardFunction | None = None,
        simulator: LanguageModel | None = None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.make_env = make_env
        self.out = out
        self.tell = _in_turn(tell)
        self.functions = functions
        self.reward = reward

        self.journal = Journal(out)
        self.tasks = _tasks(make_env, config.train_split)
        self.updates = config.updates or max(len(self.tasks) // config.groups, 1)  # None: one epoch
        self.plugin: RolloutPlugin | None = search_rollouts(
            config, make_env, self.updates, simulator
        )
        self.serializer = Serializer(
            self.policy.tokenizer,
            ends=self.policy.ends,
            max_observation=config.agent.observation_tokens,
            include_admissible=config.loss.include_admissible,
            thinking=config.agent.asks_to_think,
            template=config.chat_template_kwargs,
        )
        self._lm: LanguageModel  # what answers in rollouts
        self._ahead: RolloutsAhead[_Played] | None = (
            None  # those of updates that are not trained yet
        )
        self._metrics: dict[str, float] = {}  # of the last update's episodes
        self._evaluation_seconds = 0.0  # since the last update

    def close(self) -> None:
        """Close what was opened for the rollouts."""
        if self._ahead is not None:
            self._ahead.close()
        self.policy.close()
        if self.plugin is not None:
            self.plugin.close()

    def run(self) -> Path:
        """Do all updates and evaluations, and return the folder of the trained policy."""
        config = self.config
        checkpoints = self.out / "checkpoints"
        checkpoint = last_checkpoint(checkpoints)
        updates_done = 0 if checkpoint is None else int(checkpoint.rpartition("-")[2])

        # Updates after the last checkpoint are done again, and their lines must not be there twice.
        self.journal.begin_after(updates_done)
        self._forget_after(updates_done)

        stop = self.updates if config.max_updates is None else min(config.max_updates, self.updates)
        choice = self.policy.sampler.choice
        self.tell({"event": "engine", "name": choice.name, "why": choice.why})
        if updates_done < stop:
            self._train(checkpoints, stop)
        elif checkpoint is not None:
            self.policy.load(Path(checkpoint))
        self._evaluate(max(stop, updates_done))

        target = self.out / "models" / "agent"
        if is_first() or is_sharded():
            with writing(self.out):
                self.policy.save(target)
        wait()
        return target

    def _train(self, checkpoints: Path, stop: int) -> None:
        """Do the updates up to one, from the last checkpoint on."""
        from .trainer import Functions, make_trainer

        trainer = make_trainer(
            self.config,
            self.policy.model,
            self.policy.tokenizer,
            self._roll_out,
            checkpoints,
            updates=self.updates,
            functions=Functions(**self.functions),
            stop=stop,
            tell=self._record,
            peft_config=self.policy.adapters(),
            device=self.policy.device,
        )
        self.policy.follow(trainer)
        if self.config.staleness:
            self._ahead = RolloutsAhead(self._play_update, ahead=self.config.staleness, end=stop)
        trainer.fit()

    def _roll_out(self, update: int) -> list[PaWRow]:
        """Return the rows of this process's episodes of an update, which are played now or were ahead."""
        config = self.config
        if self._ahead is not None:
            self._ahead.pause(update)
            wait()  # the engine of all processes is asked nothing now: weights can be sent

        start = time.perf_counter()
        if config.evaluates_after(update):
            self._evaluate(update)
        self._evaluation_seconds = time.perf_counter() - start

        self._lm = self.policy.language_model()
        if self._ahead is None:
            played = self._play_update(update)
            self.policy.sleep()
            self._store_metrics(update, played)
        else:
            played, age = self._ahead.take(update)
            self._store_metrics(update, played)
            self._metrics |= _row_ages(age, len(played.rollouts.rows))

        # A control: observations of other steps teach nothing about this one's.
        if config.loss.placebo:
            return shuffled(played.rollouts.rows, config.seed, update)
        return played.rollouts.rows

    def _play_update(self, update: int) -> _Played:
        """Play this process's episodes of an update."""
        # Every process draws all groups, and plays its own: an episode's number says whose it is.
        config = self.config
        groups = groups_of(self.tasks, config.groups, config.members, config.seed, update)
        own_groups = [group for group in groups if group.number % world_size() == rank()]

        make_env: Callable[[], gymnasium.Env[str, str]] = partial(self.make_env, config.train_split)
        agent: Agent = self.policy.agent()
        lm = self._lm
        if self.plugin is not None:
            make_env = self.plugin.make_env
            agent = self.plugin.agent(agent, update)
            lm = self.plugin.language_model(lm)

        rollouts = roll_out(
            make_env,
            agent,
            own_groups,
            self.serializer,
            success_reward=config.success_reward,
            reward=self.reward,
            lm=lm,
            concurrency=config.concurrency,
            seed=config.seed,
            update=update,
            include_admissible=config.loss.include_admissible,
            on_done=self._episode_teller(update, len(own_groups) * config.members),
            on_work=telling_work(self.tell, update=update + 1),
        )
        sums = rollouts.sums()
        if self.plugin is not None:
            sums |= self.plugin.sums()
        return _Played(groups, rollouts, sums)

    def _store_metrics(self, update: int, played: _Played) -> None:
        """Store the metrics of an update's episodes, and write the faults that ended some of them."""
        self._metrics = rollout_metrics(gathered([played.sums]))
        if self.plugin is not None:
            self._metrics |= self.plugin.metrics(update)

        for number, error in sorted(gathered(list(played.rollouts.dropped.items()))):
            task = played.groups[number // self.config.members].task
            line = {"update": update + 1, "episode": number, "task": task, "error": error}
            self.journal.add(FAULTS, line)

    def _episode_teller(self, update: int, total: int) -> Callable[[Trajectory], None]:
        """Return a function that reports each episode of an update when it has ended."""
        episodes = 0
        solved = 0

        def tell_episode(episode: Trajectory) -> None:
            nonlocal episodes, solved
            if self._ahead is not None:
                self._ahead.check()
            episodes += 1
            solved += episode.success
            counts = {"update": update + 1, "done": episodes, "of": total}
            self.tell({"event": "episode", "won": solved, **counts, "trials": [episode]})

        return tell_episode

    def _record(self, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of an update: of its episodes, and of what was learned."""
        # Evaluations come within the time of rollouts, and are no part of an update's cost.
        line = {**self._metrics, **metrics}
        line["seconds_rollout"] -= self._evaluation_seconds
        if self.policy.sampler.is_vllm and not line.get("row_age"):  # else the policy has moved
            error = line.get("sampling_error") or 0.0
            warn_of_large_error(error, self.policy.sampler.dtype)
        if line["update"] == 1:
            conditions = paw_conditions(line, self.config.paw)
            self.tell({"event": "conditions", "of": to_json(conditions)})
        self.journal.add(METRICS, line)
        if is_first():
            updates = read_lines(self.out / METRICS)
            solved = [update.get("solved") or 0.0 for update in updates]
            warn_of_collapse(solved, self.config.groups)
        self.tell({"event": "update", "of": self.updates, **line})

    def _forget_after(self, update: int) -> None:
        """Remove the episodes of evaluations after later updates, which are done again.

        On a GPU they may end with other weights, whose episodes must not be mixed with those.
        """
        if is_first():
            with writing(self.out):
                for folder in sorted((self.out / _EVALUATIONS).glob("*-*")):
                    number = folder.name.partition("-")[0]
                    if number.isdecimal() and int(number) > update:
                        shutil.rmtree(folder)
        wait()

    def _evaluate(self, update: int) -> None:
        """Play the evaluation tasks with the policy as it is after so many updates, once."""
        config = self.config
        splits: list[str] = []
        if config.evaluation_tasks != 0:
            for split in config.evaluation_splits:
                if not self.journal.evaluated(update, split):
                    splits.append(split)

        for split in splits:
            tasks = _tasks(self.make_env, split)
            if config.evaluation_tasks is not None:  # the same at each evaluation
                tasks = tuple(evenly(tasks, config.evaluation_tasks))
            if not tasks:
                continue

            self.tell({"event": "evaluation", "update": update, "split": split})
            episodes = []
            for repeat in range(config.evaluation_seeds):
                episodes += self._play(update, split, repeat, tasks)
            line = to_json(_evaluation_result(update, split, episodes))
            self.journal.add(EVALUATIONS, line)
            self.tell({"event": "evaluated", **line})

    def _play(self, update: int, split: str, repeat: int, tasks: Sequence[str]) -> list[Trajectory]:
        """Play each task once, this process its share, and return the episodes of all processes."""
        folder = self.out / _EVALUATIONS / f"{update:04d}-{split}-{repeat}"
        run = Run(
            make_env=partial(self.make_env, split),
            agent=self.policy.agent(self.config.evaluation_temperature),
            tasks=tasks[rank() :: world_size()],
            lm=self.policy.language_model(),
            seed=repeat or None,
            config={"split": split, "update": update},
            on_work=telling_work(self.tell),
        )
        return play_share(folder, run, concurrency=self.config.concurrency)


def _tasks(make_env: MakeEnv, split: str) -> tuple[str, ...]:
    """Return the tasks of a split."""
    with closing(make_env(split)) as env:
        ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
    return ids


def _evaluation_result(update: int, split: str, episodes: Sequence[Trajectory]) -> UpdateEvaluation:
    """Return how the episodes of a split went after so many updates."""
    times_solved = {episode.task: 0 for episode in episodes}
    for episode in episodes:
        times_solved[episode.task] += episode.success
    number = max(len(episodes), 1)
    final_scores = [episode.steps[-1].score for episode in episodes if episode.steps]

    return UpdateEvaluation(
        update=update,
        split=split,
        n=len(episodes),
        success=sum(times_solved.values()) / number,
        score=sum(final_scores) / number,
        steps=sum(len(episode.steps) for episode in episodes) / number,
        errors=sum(episode.error is not None for episode in episodes),
        tasks=len(times_solved),
        generated_tasks=sum(map(is_generated, times_solved)),
        won=times_solved,
    )


class Policy:
    """A language model that acts and is trained: its weights, its tokenizer, and who samples from it."""

    def __init__(
        self,
        config: PaWTraining,
        model: str | Path,
        *,
        sampler: Sampler | None = None,
        device: str = "auto",
    ) -> None:
        from ...lm.load import device_of, ends_of, load_model, load_tokenizer, source_of

        self.device = device
        self._config = config
        self.sampler = sampler or _chosen_sampler(config, "hf", None, device)
        source = source_of(model)
        self._source = source
        self.tokenizer = load_tokenizer(source, None)

        # What is trained has single precision at least: half is for the frozen weights under an adapter.
        torch_device = device_of(own_device() if device == "auto" else device)
        dtype = "float64" if config.precision == "float64" else "float32"
        if config.weights == "lora" and config.computes_in_half(torch_device.type == "cuda"):
            dtype = "bfloat16"
        begins_on = device_of("cpu") if is_sharded() else torch_device
        with loaded_once():
            self.model = load_model(source, None, begins_on, dtype)
        self.ends = ends_of(self.model)

        self._lm: LanguageModel | None = None  # made when it is asked for, and anew after `follow`
        self._engine: EngineLanguageModel | None = None

    def agent(self, temperature: float | None = None) -> PaWAgent:
        """Return the agent that acts with this policy, as in rollouts or at another temperature."""
        return PaWAgent(self._config.acting(temperature))

    def language_model(self) -> LanguageModel:
        """Return what answers the agent, with the weights as they are now: the policy itself, or vLLM."""
        if self.sampler.is_vllm:
            return self._in_engine()
        if self._lm is None:
            self._lm = self._make_language_model()
        return self._lm

    def _in_engine(self) -> EngineLanguageModel:
        """Return the engine, awake, with the weights as they are now."""
        if self._engine is None:
            self._engine = EngineLanguageModel(self._open_engine())
        engine = self._engine
        engine.wake()
        if self._config.weights == "full":
            engine.load_weights(self.model)
        elif self._has_adapter:
            engine.load_adapter(_ADAPTER, self._adapter_weights(), self._write_adapter)
            engine.engine.adapter = _ADAPTER
        return engine

    def _open_engine(self) -> VLLMLanguageModel:
        is_adapted = self._config.weights == "lora"
        return open_engine(
            self.sampler,
            self._source,
            self.tokenizer,
            name="policy",
            ends=self.ends,
            template=self._config.chat_template_kwargs,
            adapters=1 if is_adapted else 0,
            adapter_rank=self._config.lora.r,
        )

    @property
    def _has_adapter(self) -> bool:
        return hasattr(self.model, "peft_config")

    def _adapter_weights(self) -> list[Any]:
        weights = self.model.named_parameters()
        return [weight for name, weight in weights if f".{_ADAPTER}." in name]

    def _write_adapter(self, folder: Path) -> None:
        with without_bars():
            self.model.save_pretrained(
                folder, selected_adapters=[_ADAPTER], state_dict=self._copies(everywhere=True)
            )

    def _copies(self, *, everywhere: bool = False) -> dict[str, Any] | None:
        """Return whole copies of what is trained, where that is sharded; all processes must ask."""
        if not is_sharded():
            return None
        return copies(trained_weights(self.model), everywhere=everywhere)

    def sleep(self) -> None:
        """Give the GPU memory of an engine in this process back while the policy is trained."""
        if self._engine is not None:
            self._engine.sleep()

    def close(self) -> None:
        """Let the engine go."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _make_language_model(self) -> LanguageModel:
        if is_sharded():
            raise OptionError(f"expected an engine that samples, {NEEDS_ENGINE}")
        from ...lm.hf import HFLanguageModel

        return HFLanguageModel.from_model(
            self.model,
            self.tokenizer,
            adapter=_ADAPTER if self._has_adapter else None,
            batch_tokens=_BATCH_TOKENS,
            batch_rows=_BATCH_ROWS,
            name="policy",
            chat_template_kwargs=self._config.chat_template_kwargs,
        )

    def adapters(self) -> Any:
        """Return how adapters are made; None where all weights are trained."""
        config = self._config
        if config.weights == "full":
            return None
        from peft import LoraConfig

        return LoraConfig(
            r=config.lora.r,
            lora_alpha=config.lora.alpha,
            lora_dropout=config.lora.dropout,
            target_modules=list(config.lora.targets or ()) or "all-linear",
            task_type="CAUSAL_LM",
        )

    def follow(self, trainer: Any) -> None:
        """Act with a trainer's model from now on: the same weights, or adapters on them."""
        # What answers is made anew when it is next asked for: it reads the trainer's weights from now on.
        self.model = trainer.accelerator.unwrap_model(trainer.model)
        self._lm = None

    def load(self, checkpoint: Path) -> None:
        """Load the weights of a checkpoint, where there is nothing left to train."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        try:
            if self._config.weights == "lora":
                self.model = _adapted(self.model, checkpoint)
            elif is_sharded():
                read_trained(self.model, checkpoint)
            else:
                load_model(self.model, checkpoint / "model.safetensors")
        except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise DataCorrupt(
                f"expected the weights of this training in {checkpoint}, found others "
                f"({str(error)!r:.200}); remove that folder to go on from an earlier checkpoint"
            ) from error
        self._lm = None

    def save(self, folder: Path) -> None:
        """Write the weights, or the adapters, and the tokenizer into a folder, whole or not at all.

        Where the model is sharded, all processes must ask, and the first one writes.
        """
        state = self._copies()
        if not is_first():
            return

        # Under another name until it is whole: a killed training leaves the old folder or the new one.
        draft = folder.with_name(folder.name + ".part")
        shutil.rmtree(draft, ignore_errors=True)
        with writing(folder.parent):
            with without_bars():
                self.model.save_pretrained(draft, state_dict=state)
            self.tokenizer.save_pretrained(draft)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)


def _adapted(model: Any, checkpoint: Path) -> Any:
    """Return a model with the adapter of a checkpoint; peft only warns where that is another's."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    with safe_open(checkpoint / "adapter_model.safetensors", "pt") as file:
        saved_names = set(file.keys())
    adapted = PeftModel.from_pretrained(model, checkpoint)
    names = set(get_peft_model_state_dict(adapted))
    if saved_names != names:
        raise ValueError(
            f"{len(saved_names & names)} of {len(names)} weights, and {len(saved_names - names)} more"
        )
    return adapted


class Journal:
    """The files of a training's folder that grow by lines; the first process writes them."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._evaluated: set[tuple[int, str]] = set()

    def begin_after(self, update: int) -> None:
        """Remove what is there of later updates, which are done again."""
        if is_first():
            text_keys = {METRICS: (), FAULTS: ("task", "error"), EVALUATIONS: ("split",)}
            for name, keys in text_keys.items():
                path = self._out / name
                if path.exists():
                    lines = [line for line in read_lines(path, *keys) if line["update"] <= update]
                    with writing(self._out):
                        jsonl.write(path, lines)
        wait()

        lines = read_lines(self._out / EVALUATIONS, "split")
        self._evaluated = {(line["update"], line["split"]) for line in lines}

    def evaluated(self, update: int, split: str) -> bool:
        """Return whether a split was evaluated after so many updates."""
        return (update, split) in self._evaluated

    def add(self, name: str, line: Mapping[str, Any]) -> None:
        """Append a line to a file."""
        if is_first():
            with writing(self._out):
                jsonl.append(self._out / name, [line])
        if name == EVALUATIONS:
            self._evaluated.add((line["update"], line["split"]))


def read_lines(path: Path, *names: str) -> list[dict[str, Any]]:
    """Return the lines of a training's file, which name texts; none where it is not there."""

    def checked(line: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(line["update"], int) or not all(isinstance(line[n], str) for n in names):
            raise TypeError(f"expected the number of an update, and text as {', '.join(names)}")
        return line

    return list(jsonl.read(path, checked, expected="an update")) if path.exists() else []
