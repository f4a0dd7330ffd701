"""What a training begins with: environments, demonstrations and models."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import gymnasium

from .. import jsonl
from ..agents import Agent, Decision, ExpertAgent, RandomAgent, Reply, Request, View, run_episode
from ..agents.config import AgentConfig
from ..agents.create import tiny_folder
from ..envs import TextEnv
from ..envs.datasets import data_played, licenses_in_words
from ..envs.generated import is_generated, tasks_in_words
from ..envs.registry import class_of, env_class, not_ours, registered
from ..errors import CoMapError, DataCorrupt, DataNotFound, OptionError, needs_extra, suggest
from ..redaction import public_options
from ..trajectory import IMPORTED, Trajectory, read_trajectories
from .config import SharedTraining
from .processes import is_first, own_device, wait, world_size
from .roles import Roles, student_of
from .sft import ASIDE
from .stages import Tell

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "gymnasium", "numpy")
"""The packages whose versions a training's folder records."""

_LONG = 200  # steps that a demonstration may take
_STRAYS = 0.25  # share of a straying expert's steps that err
_REMEMBERED = 8  # actions of earlier episodes, of which the one most like the goal is taken
_FOLDERS = ("data_dir",)  # options that are paths on this machine
_FORM = (
    "Reflection:",
    "Decision: KEEP\nFinal Action:",
    "Decision: REVISE\nFinal Action:",
    "Revise Probability: 0.5",
)
_PROMPT_REPEATS = 50  # how often each prompt counts among a tiny model's words


@dataclass(frozen=True, slots=True)
class Environments:
    """Makes environments: called with a split, or None for an environment that has none."""

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        registered(self.env_id)

    def __call__(self, split: str | None) -> gymnasium.Env[str, str]:
        # An environment of a user's may have no splits, and then takes no such option.
        split_option: dict[str, Any] = {} if split is None else {"split": split}
        try:
            env: gymnasium.Env[str, str] = gymnasium.make(
                self.env_id, **split_option, **self.options
            )
        except (CoMapError, gymnasium.error.Error):
            raise
        except (ImportError, TypeError, ValueError) as error:
            if not issubclass(class_of(self.env_id) or TextEnv, TextEnv):
                raise OptionError(not_ours(repr(self.env_id))) from None
            with_options = f" with {dict(self.options)}" if self.options else ""
            raise OptionError(
                f"cannot make the environment {self.env_id!r}{with_options}: {error}; mend that option, or "
                f"leave it out (comap envs {self.env_id} lists them)"
            ) from None
        if not isinstance(env.unwrapped, TextEnv):
            raise OptionError(not_ours(repr(self.env_id)))
        return env

    def demonstrating(self) -> Environments:
        """Return the same with room for long demonstrations."""
        limit = self.options.get("max_episode_steps", 0)
        if isinstance(limit, int):
            limit = max(_LONG, limit)
        return Environments(self.env_id, {**self.options, "max_episode_steps": limit})

    def describe(self, splits: Iterable[str | None]) -> dict[str, Any]:
        """Return what makes results on these splits comparable, without paths of this machine."""
        fingerprints = {}
        tasks = {}
        played: set[tuple[str, str]] = set()
        for split in splits:
            with closing(self(split)) as env:
                text_env = env.unwrapped
                assert isinstance(text_env, TextEnv)
                fingerprints[split] = text_env.fingerprint()
                task_ids = text_env.tasks.ids
            played |= {(self.env_id, task) for task in task_ids}
            tasks[split] = tasks_in_words(len(task_ids), sum(map(is_generated, task_ids)))

        options = {key: value for key, value in self.options.items() if key not in _FOLDERS}
        options = public_options(options, env_class(self.env_id))
        return {
            "id": self.env_id,
            "options": options,
            "tasks": tasks,
            "licenses": licenses_in_words(data_played(played)),
            "fingerprint": fingerprints,
        }


def show_expert(
    make_env: Environments,
    config: SharedTraining,
    file: Path | None = None,
    tell: Tell = lambda event: None,
    side_steps: float = 0.0,
    copied: bool = False,
) -> list[Trajectory]:
    """Return the demonstrations of a training: the environment's own expert's, or a file's.

    Args:
        make_env: Makes the training's environments.
        config: Says which tasks are demonstrated: one at random of each equal part of all.
        file: JSON lines of commands, plain or .xz, such as the trajectories of a run; None to ask the
            environment's own expert. Imported episodes are not played again, but taken as they are.
        tell: Callback for events.
        side_steps: The share of the expert's own episodes that have side steps; see `StrayingExpert`.
        copied: Whether trainings copy side steps too.

    Raises:
        DataNotFound: The file has no demonstration of these tasks.
        DataCorrupt: The file is damaged, or no demonstration succeeds.
    """
    split = config.train_split
    if file is not None and _is_imported(file):
        return _imported_demonstrations(file, make_env.env_id, config)

    # Prompts of demonstrations list what the agent's own prompts will list.
    note_actions = getattr(config, "agent", AgentConfig()).lists_actions
    demos: list[Trajectory] = []
    with closing(make_env.demonstrating()(split)) as env:
        split_tasks = env.get_wrapper_attr("tasks").ids
        tasks = split_tasks
        if file is not None:
            plans = _plans_of(file, {*split_tasks})
            tasks = sorted(plans)
            if not plans:
                raise DataNotFound(
                    f"expected demonstrations of the split {split!r} in {file}, found none of its "
                    f"{len(split_tasks)} tasks; give the file that belongs to these tasks"
                )

        # Tasks are sorted by their ids, and often so by their kinds: spread out, each kind is there.
        tasks = _spread_out(tasks, config.demonstrations, config.seed)
        straying_expert = StrayingExpert(copied)
        for task_count, task in enumerate(tasks, 1):
            if file is None:
                strays = random.Random(f"{config.seed}\n{task}").random() < side_steps
                expert = straying_expert if strays else None
                demos += expert_demonstrations(env, [task], expert, note_actions=note_actions)
            else:
                plan = [(task, plans[task])]
                episodes = demonstrations(env, plan, note_actions=note_actions)
                demos += filter(_succeeds, episodes)
            tell(
                {"event": "demonstration", "done": task_count, "of": len(tasks), "won": len(demos)}
            )

    if not demos:
        raise DataCorrupt(
            f"expected demonstrations that succeed, found none in {len(tasks)} of the split "
            f"{split!r}; give a file of commands of these very tasks (--demos)"
        )
    return demos


def _is_imported(file: Path) -> bool:
    """Return whether a file has episodes that `comap data import` wrote."""
    if file.suffix == ".xz":
        return False
    try:  # what is wrong with a file is told where it is read
        first = next(jsonl.read(file), None)
    except (DataNotFound, DataCorrupt):
        return False
    settings = first.get("settings") if isinstance(first, Mapping) else None
    return isinstance(settings, Mapping) and IMPORTED in settings


def _imported_demonstrations(file: Path, env_id: str, config: SharedTraining) -> list[Trajectory]:
    """Return imported episodes of the training's split, without those that are known to have failed."""
    if config.replays_demonstrations:
        raise OptionError(
            f"expected demonstrations that can be played again, found imported ones in {file}, whose tasks "
            "are not here; 'comap train sft' learns from them as they are"
        )

    demos = []
    others: Counter[str] = Counter()
    for trajectory in read_trajectories(file):
        if trajectory.env_id != env_id or trajectory.split != config.train_split:
            others[f"{trajectory.env_id}, split {trajectory.split}"] += 1
        elif trajectory.has_outcome and not trajectory.success:
            others["failed"] += 1
        elif trajectory.steps:
            demos.append(trajectory)
    if not demos:
        found = ", ".join(f"{count:,} ({name:.80})" for name, count in others.most_common(3))
        raise DataNotFound(
            f"expected imported episodes of {env_id}, split {config.train_split}, in {file}, found "
            f"{found or 'none'}; give --env, or import them with --split {config.train_split} if they "
            "are of no test split"
        )
    indices = [str(index) for index in range(len(demos))]
    chosen = _spread_out(indices, config.demonstrations, config.seed)
    return [demos[int(index)] for index in chosen]


def _plans_of(file: Path, tasks: set[str]) -> dict[str, tuple[str, ...]]:
    """Return the commands of a file's demonstrations of some tasks; the last of a task counts."""
    return {task: commands for task, commands in read_demonstrations(file) if task in tasks}


def _spread_out(tasks: Sequence[str], number: int | None, seed: int) -> Sequence[str]:
    """Return so many tasks, one at random of each equal part of all."""
    if number is None or number >= len(tasks):
        return tasks
    rng = random.Random(f"{seed}\ndemonstrations")
    bounds = [index * len(tasks) // number for index in range(number + 1)]
    return [tasks[rng.randrange(low, high)] for low, high in pairwise(bounds)]


def read_demonstrations(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the task and the commands of each demonstration in a file."""
    open_file = lzma.open if path.suffix == ".xz" else open
    line_number = 0
    try:
        with open_file(path, "rt", encoding="utf-8") as file:
            for line in file:
                line_number += 1
                record = json.loads(line)
                if "game" in record:  # ALFWorld's own demonstrations name a file of the game
                    task = "/".join(PurePosixPath(record["game"]).parts[-4:-1])
                    commands = [step["command"] for step in record["steps"]]
                else:  # a trajectory
                    task = str(record["task"])
                    commands = [step["action"] for step in record["steps"]]
                if not all(isinstance(command, str | None) for command in commands):
                    raise TypeError("a command that is no text")
                yield task, tuple(command for command in commands if command is not None)
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise DataCorrupt(
            f"expected demonstrations in {path}, found a damaged file ({error}); get it again"
        ) from error
    except OSError as error:
        raise DataNotFound(
            f"expected demonstrations in {path}, found that it cannot be read "
            f"({error.strerror or error}); give a file of JSON lines, plain or .xz"
        ) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataCorrupt(
            f"{path}, line {line_number}: expected a trajectory, or a demonstration with game and steps, "
            f"found {error!r}"
        ) from error


class _Player:
    """Takes given commands, one after the other."""

    name = "demonstration"

    def __init__(self, commands: Sequence[str]):
        self._commands = commands

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return the next command without asking anything; None after the last."""
        yield from ()
        return Decision(self._commands[view.step] if view.step < len(self._commands) else None)


def demonstrations(
    env: gymnasium.Env[str, str],
    plans: Iterable[tuple[str, Sequence[str]]],
    *,
    note_actions: bool = False,
) -> Iterator[Trajectory]:
    """Play recorded commands and yield the trajectories."""
    for task, commands in plans:
        yield run_episode(env, _Player(commands), task=task, note_actions=note_actions)


class StrayingExpert:
    """The environment's expert, which errs in a quarter of its steps as policies do.

    Its errors are noted `ASIDE`, so that trainings leave them out, unless they are to be copied.
    """

    name = "expert"

    def __init__(self, copied: bool = False) -> None:
        self._expert_actions: list[str] = []  # of all episodes so far
        self._notes = {} if copied else {ASIDE: True}

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return the expert's action, or in a quarter of the steps another one."""
        rng = random.Random(f"stray\n{view.task}\n{view.step}".encode("utf-8", "replace"))
        if rng.random() >= _STRAYS:
            action = view.expert_action()
            if action is not None:
                self._expert_actions.append(action)
            return Decision(action)

        # A third each: an earlier action again, one of other episodes, and a random one.
        draw = rng.random()
        earlier_actions = [turn.action for turn in view.history if turn.action]
        if draw < 0.35 and earlier_actions:
            return Decision(rng.choice(earlier_actions), notes=self._notes)
        if draw < 0.7 and self._expert_actions:
            count = min(_REMEMBERED, len(self._expert_actions))
            candidates = rng.sample(self._expert_actions, count)
            goal_words = {*view.goal.split()}
            likest = max(candidates, key=lambda action: len(goal_words & {*action.split()}))
            return Decision(likest, notes=self._notes)
        decision = yield from RandomAgent(mixed=0.3).decide(view)
        return replace(decision, notes=self._notes)


def expert_demonstrations(
    env: gymnasium.Env[str, str],
    tasks: Iterable[str],
    expert: Agent | None = None,
    *,
    note_actions: bool = False,
) -> Iterator[Trajectory]:
    """Play tasks with the environment's expert, and yield the trajectories of those that it solves."""
    player = expert or ExpertAgent()
    for task in tasks:
        trajectory = run_episode(env, player, task=task, note_actions=note_actions)
        if _succeeds(trajectory):
            yield trajectory


def _succeeds(trajectory: Trajectory) -> bool:
    return trajectory.success and trajectory.error is None


def open_models(
    config: SharedTraining, model: str | Path | None, begin: Mapping[str, str | Path] | None = None
) -> Roles:
    """Load the models of a training.

    Args:
        config: The training's settings.
        model: A folder or a name on the hub: what all roles begin from. It may be None where every
            role's own model is given.
        begin: What roles begin from instead, by their names: models, or adapters of the model.

    Raises:
        OptionError: The training has no such role, or an adapter was made with other settings.
        DataNotFound: There is no such model.
        MissingExtra: A package is not installed.
    """
    # Which roles a training has may depend on which of them were begun.
    starts = dict(begin or {})
    names = config.roles(starts)
    for role in starts:
        if role not in names:
            raise OptionError(f"this training has no {role} to begin with; {suggest(role, names)}")

    settings: dict[str, Any] = {
        "kind": config.weights,
        "roles": names,
        "dtype": config.precision,
        "device": own_device(),
        "seed": config.seed,
        "chat_template_kwargs": config.chat_template_kwargs,
    }
    if config.weights == "full":
        # A teacher has no model of its own to begin from: it is a copy of its student's.
        models: dict[str, str | Path] = {}
        for role in names:
            start = starts.get(role, model)
            if student_of(role) is None and start:
                models[role] = start
        return Roles.open(models, **settings)

    if model is None:
        raise OptionError("expected the model that adapters are of, found none; add --model")
    saved = {role: Path(folder).expanduser() for role, folder in starts.items()}
    for path in saved.values():
        if not path.is_dir():
            raise DataNotFound(f"expected the folder of an adapter at {path}, found none")
    return Roles.open(model, lora=config.lora, saved=saved, **settings)


def describe_models(roles: Roles, **folders: str | Path | None) -> dict[str, Any]:
    """Return the models that a training begins from as plain data, without paths of this machine."""
    shape = roles.base("agent").config.get_text_config()
    names = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
    described: dict[str, Any] = {
        "name": roles.name,
        "kind": roles.kind,
        **{name: getattr(shape, name, None) for name in names},
        "parameters": sum(weight.numel() for weight in roles.base("agent").parameters()),
        "trained": sum(weight.numel() for weight in roles.parameters("agent").values()),
        **roles.chat.describe(),
    }
    for name, folder in folders.items():
        if folder is not None and Path(folder).is_dir():
            described[f"{name}_sha256"] = weights_hash(Path(folder))
    return described


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights, names of files included."""
    # In parts of a megabyte: weights may be larger than memory.
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + b"\n")
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def tiny_for_training(directory: str | Path, env_id: str, *, parameters: int, seed: int) -> Path:
    """Return the folder of an untrained tiny model for training; it is built where it is missing."""
    folder = Path(directory)
    if is_first():
        words = [*_brief_prompts(), *_FORM] * _PROMPT_REPEATS
        tiny_folder(
            folder, env_id, parameters=parameters, seed=seed, words=words, purpose="training"
        )
    wait()
    return folder


def _brief_prompts() -> list[str]:
    """Return the texts of all brief prompts, which tiny models are trained with."""
    package = (__package__ or "").rpartition(".")[0]
    prompts = []
    for part in ("agents", "trainers/comap", "worldmodel"):
        folder = files(package) / part / "prompts" / "brief"
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".txt"):
                prompts.append(entry.read_text(encoding="utf-8"))
    return prompts


def hardware() -> dict[str, Any]:
    """Return how many processes train, and the names of this one's GPUs."""
    with needs_extra("train", "training"):
        import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"processes": world_size(), "gpus": names}
