"""The folder of a training of any method: settings, sessions, and what its stages or updates came to."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..agents.create import agent_options
from ..envs.generated import is_generated, kind_in_words
from ..errors import DataCorrupt, DataNotFound
from ..jsonl import read_json
from ..metrics import Rate
from ..trainers.baselines.config import ITPTraining, WebEvolverTraining, WKMTraining
from ..trainers.baselines.itp import DEPTH_HEAD
from ..trainers.baselines.wkm import KNOWLEDGE
from ..trainers.comap.config import CoMapTraining
from ..trainers.config import SharedTraining
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.training import EVALUATIONS, FAULTS, METRICS, read_lines
from ..trainers.results import (
    EvaluationResult,
    Fit,
    GateReport,
    PredictionReport,
    RevisionReport,
    RoundEvaluation,
    StageResult,
    UpdateEvaluation,
    finite_number,
    from_json,
)
from ..trainers.run_folder import FORMAT, StageFolder
from ..worldmodel.naming import listed_in_words

_STAGE_FOLDER = re.compile(r"(\d+)-([a-z0-9-]+)")
_LONG = ("log", "weights", "stage")  # not among the flat metrics


class Fault(NamedTuple):
    """Episodes of a stage, or of all updates, that an error of one kind ended."""

    kind: str
    n: int
    first: str


class Evaluated(NamedTuple):
    """An evaluation of a split after a round or an update; 0 where there is only one."""

    time: int
    rate: Rate
    score: float | None


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage."""

    number: int
    name: str
    measures: Mapping[str, Any] | None
    """All that its ``done.json`` has, a method's own measures too; None while it has not ended."""
    result: StageResult
    """What reports read of it; empty while it has not ended."""
    episodes: int = 0
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """A training: in stages, as CoMap's and the baselines', or in updates, as PaW's."""

    described: Mapping[str, Any] = field(default_factory=dict)
    sessions: tuple[Mapping[str, Any], ...] = ()
    stages: tuple[StageRecord, ...] = ()
    updates: tuple[Mapping[str, Any], ...] = ()
    """What each update measured: whatever names its algorithm and the user have for that."""
    tests: tuple[UpdateEvaluation, ...] = ()
    """The evaluations between updates."""
    faults: tuple[Fault, ...] = ()
    """The faults in the episodes of updates."""

    def done(self) -> Iterator[tuple[str, StageResult]]:
        """Yield name and result of each stage that has ended."""
        for stage in self.stages:
            if stage.measures is not None:
                yield stage.name, stage.result

    def evaluations(self) -> list[tuple[int, RoundEvaluation]]:
        """Return the number of each round that was evaluated, and what came out."""
        return [(number, result.evaluation) for number, result in self._of_rounds("evaluation")]

    def predictions(self, name: str) -> list[tuple[int, PredictionReport]]:
        """Return how well the world model predicts a set of transitions, by round."""
        reports = []
        for round_number, evaluation in self.evaluations():
            if name in evaluation.world_model:
                reports.append((round_number, evaluation.world_model[name]))
        return reports

    def revisions(self) -> list[tuple[int, RevisionReport]]:
        """Return what revisions did, by round."""
        reports = [(number, evaluation.revisions) for number, evaluation in self.evaluations()]
        return [(number, report) for number, report in reports if report is not None]

    def rollouts(self) -> list[tuple[int, StageResult]]:
        """Return the number of each round that was played, and what came out."""
        return self._of_rounds("rollouts")

    def gates_of_rollouts(self) -> list[tuple[int, GateReport]]:
        """Return what the gates did in rollouts, by round."""
        reports = [(number, result.gates) for number, result in self.rollouts()]
        return [(number, report) for number, report in reports if report is not None]

    def gates(self) -> list[tuple[str, GateReport]]:
        """Return the name of each stage in which gates were asked, and what they did."""
        reports = [(name, result.gates) for name, result in self.done()]
        return [(name, report) for name, report in reports if report is not None]

    def learned(self) -> list[tuple[str, Fit]]:
        """Return the name of each stage in which a model learned, and what came out."""
        return [(name, result.fit) for name, result in self.done() if result.fit.role is not None]

    def _of_rounds(self, part: str) -> list[tuple[int, StageResult]]:
        rounds = []
        for name, result in self.done():
            match = re.fullmatch(rf"round-(\d+)-{part}", name)
            if match:
                rounds.append((int(match[1]), result))
        return rounds

    def curve(self, name: str, times: float = 1.0) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the updates that tell a measure, and its finite values."""
        updates = []
        measures = []
        for line in self.updates:
            update = number(line, "update")
            measure = number(line, name)
            if update is not None and measure is not None:
                updates.append(update)
                measures.append(times * measure)
        return tuple(updates), tuple(measures)

    def evaluated(self) -> dict[str, list[Evaluated]]:
        """Return the evaluations of each split in order, without those that make no sense."""
        splits: dict[str, list[Evaluated]] = {}
        for time, split, result in self._evaluated():
            if time is not None and result.rate is not None:
                evaluation = Evaluated(time, result.rate, result.score)
                splits.setdefault(split, []).append(evaluation)
        return splits

    def evaluated_tasks(self) -> dict[str, str]:
        """Return for each split in words that it was evaluated on generated tasks, if it was."""
        kinds: dict[str, str] = {}
        for _, split, result in self._evaluated():
            kinds[split] = _kind_of_tasks(result) or kinds.get(split, "")
        return kinds

    def world_models(self) -> str:
        """Return in words which world models were asked in evaluations."""
        names: dict[str, None] = {}
        for _, _, result in self._evaluated_in_stages():
            names |= dict.fromkeys(result.world_models)
        return listed_in_words(names)

    def _evaluated(self) -> Iterator[tuple[int | None, str, EvaluationResult | UpdateEvaluation]]:
        """Yield the round or update of each evaluation of a split, the split, and what came out."""
        for result in self.tests:
            yield result.update, str(result.split), result
        yield from self._evaluated_in_stages()

    def _evaluated_in_stages(self) -> Iterator[tuple[int, str, EvaluationResult]]:
        """Yield the round of each evaluation of a split in a stage, the split, and what came out."""
        # A baseline has one evaluation at its end, which belongs to no round.
        at_the_end = [
            (0, result.evaluation) for name, result in self.done() if name == "evaluation"
        ]
        for round_number, evaluation in (*self.evaluations(), *at_the_end):
            for split, result in evaluation.splits.items():
                yield round_number, split, result


def _kind_of_tasks(result: EvaluationResult | UpdateEvaluation) -> str:
    """Return in words that tasks were generated; empty where they were not, or nobody knows it."""
    if result.tasks is not None and result.generated_tasks is not None:
        return kind_in_words(result.tasks, result.generated_tasks)

    # PaW did not count them at first, but a task's id says it, too.
    ids = list(result.won or ()) if isinstance(result, UpdateEvaluation) else []
    return kind_in_words(len(ids), sum(map(is_generated, ids)))


def get(value: object, *keys: str) -> Any:
    """Return what is at a path of keys in JSON data; None where there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def members(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the object at a path of keys in JSON data; an empty one where there is none."""
    member = get(value, *keys)
    return member if isinstance(member, Mapping) else {}


def number(value: object, *keys: str) -> float | None:
    """Return the finite number at a path of keys in JSON data; None where there is none."""
    return finite_number(get(value, *keys))


def read_training(folder: str | Path) -> TrainingRecord:
    """Return what a folder holds of a training, finished or not."""
    root = Path(folder)
    path = root / "run.json"
    if not path.is_file() and not (root / METRICS).is_file():
        raise DataNotFound(
            f"expected a training at {root}, found no run.json; 'comap train' makes one"
        )

    run = read_json(path) if path.is_file() else {"format": FORMAT, "described": {}}
    described = get(run, "described")
    if get(run, "format") != FORMAT or not isinstance(described, Mapping):
        raise DataCorrupt(f"expected the run.json of a training at {path}, found something else")
    sessions: tuple[Mapping[str, Any], ...] = ()
    recorded_sessions = get(run, "sessions")
    if isinstance(recorded_sessions, list):
        sessions = tuple(filter(_is_object, recorded_sessions))

    # A training that has a run.json but no stage yet is in updates only if its settings say so.
    stages = _read_stages(root)
    if stages or (described and "algorithm" not in members(described, "config")):
        return TrainingRecord(described, sessions, stages)

    # A training that was killed writes the updates since its checkpoint again: the last line counts.
    updates = {line["update"]: line for line in read_lines(root / METRICS)}
    tests: dict[tuple[int, str], UpdateEvaluation] = {}
    for line in read_lines(root / EVALUATIONS):
        tests[line["update"], str(line.get("split"))] = from_json(UpdateEvaluation, line)

    # A fault is recorded as "Kind: message".
    errors = []
    for line in read_lines(root / FAULTS, "task", "error"):
        error = str(line["error"])
        errors.append((error.partition(": ")[0], 1, error))

    return TrainingRecord(
        described,
        sessions,
        updates=tuple(updates[update] for update in sorted(updates)),
        # By update alone: the splits of one update stay in the order in which they were evaluated.
        tests=tuple(tests[key] for key in sorted(tests, key=lambda key: key[0])),
        faults=_faults(errors),
    )


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _read_stages(root: Path) -> tuple[StageRecord, ...]:
    folders = []
    for path in root.glob("stages/*/"):
        match = _STAGE_FOLDER.fullmatch(path.name)
        if match:
            folders.append((int(match[1]), match[2], path))

    # By number, which the file system's order of names is not: 10 follows 9.
    folders.sort()
    return tuple(_stage(position, StageFolder(path, name)) for position, name, path in folders)


def _faults(errors: Iterable[tuple[str, int, str]]) -> tuple[Fault, ...]:
    """Return how often each kind of error came, and the first message."""
    counts: Counter[str] = Counter()
    first_messages: dict[str, str] = {}
    for kind, count, message in errors:
        counts[kind] += count
        first_messages.setdefault(kind, message.removeprefix(f"{kind}: "))
    return tuple(Fault(kind, counts[kind], first_messages[kind]) for kind in sorted(counts))


def _stage(position: int, folder: StageFolder) -> StageRecord:
    """Return what a stage's folder holds: its result, and the faults in all that it played."""
    episodes = 0
    errors: list[tuple[str, int, str]] = []
    for path in sorted(folder.path.glob("**/summary.json")):
        summary = read_json(path)
        episodes += int(number(summary, "n") or 0)
        for kind in members(summary, "errors"):
            count = int(number(summary, "errors", kind) or 0)
            errors.append((str(kind), count, str(get(summary, "first_errors", kind) or "")))

    measures = folder.result()
    result = from_json(StageResult, measures)
    return StageRecord(position, folder.name, measures, result, episodes, _faults(errors))


def flat_metrics(training: TrainingRecord) -> list[dict[str, Any]]:
    """Return a flat line of numbers and texts for each stage that has ended, in order."""
    lines = []
    for stage in training.stages:
        if stage.measures is None:
            continue

        short = {name: part for name, part in stage.measures.items() if name not in _LONG}
        line: dict[str, Any] = {"stage": stage.name, "number": stage.number}
        for path, leaf in leaves(short, "/"):
            if not isinstance(leaf, list):
                line[path] = leaf
        lines.append(line)
    return lines


def leaves(value: Mapping[str, Any], between: str = " / ") -> Iterator[tuple[str, Any]]:
    """Yield what nested data hold, with the path of names to it."""
    for key, part in value.items():
        if isinstance(part, Mapping):
            for path, leaf in leaves(part, between):
                yield f"{key}{between}{path}", leaf
        else:
            yield str(key), part


# Settings of agents whose names are options of every run: there the agent's are --agent-seed etc.
_RUN_OPTIONS = ("adapter", "prompts", "seed")


def env_words(env_id: str, options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that name an environment."""
    words = ["--env", env_id]
    for name, value in options.items():
        if name == "data_dir":
            words += ["--data-dir", str(value)]
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--env-option", f"{name}={text}"]
    return words


def play_command(
    config: SharedTraining | PaWTraining,
    models: Path,
    env_id: str,
    env_options: Mapping[str, Any],
    base: str | Path | None = None,
) -> list[str]:
    """Return the words of a command line: the agent acts as in the training's evaluations.

    `models` holds a model or an adapter for each role; `base` is the model that adapters belong to.
    """
    agent = _agent_name(config)
    words = ["comap", "run", "--agent", agent, *env_words(env_id, env_options)]
    words += ["--split", config.evaluation_splits[-1], *_model_words(config, models, base)]
    if isinstance(config, SharedTraining) and config.exact:
        words += ["--dtype", "float64"]
    words += _agent_words(agent, config)

    # Some methods learn a part beside their adapters, which lies in a file of its own.
    if isinstance(config, WKMTraining):
        words += ["--agent-option", f"knowledge={models.parent / KNOWLEDGE}"]
    elif isinstance(config, ITPTraining):
        words += ["--agent-option", f"k_head={models / DEPTH_HEAD}"]
    elif isinstance(config, CoMapTraining) and config.agent.p_source == "head":
        words += ["--agent-option", f"head={models / 'head.safetensors'}"]
    return words


def _agent_name(config: SharedTraining | PaWTraining) -> str:
    """Return the name of the agent that plays in a training's evaluations."""
    if isinstance(config, PaWTraining):
        return "paw"

    method = str(getattr(config, "method", "comap"))
    if method == "sft":  # it trains the policy alone, and ReAct plays it
        return "react"
    if method == "webevolver" and not _has_world_model(config):
        return "react"
    return method


def _has_world_model(config: SharedTraining | PaWTraining) -> bool:
    """Return whether the agent asks a world model."""
    if isinstance(config, WebEvolverTraining):
        return config.has_world_model
    return isinstance(config, CoMapTraining | ITPTraining)


def _model_words(
    config: SharedTraining | PaWTraining, models: Path, base: str | Path | None
) -> Iterator[str]:
    """Yield the words that name the models: whole ones, or a base model with an adapter a role."""
    has_world_model = _has_world_model(config)
    full = config.weights == "full"
    yield from ("--model", str(models / "agent" if full else base))
    if has_world_model:
        yield from ("--world-model", str(models / "wm" if full else base))
    if config.chat_template_kwargs:
        variables = json.dumps(dict(config.chat_template_kwargs))
        yield from ("--model-option", f"chat_template_kwargs={variables}")

    if not full:
        roles = ["agent"]
        if isinstance(config, WKMTraining) and config.trains_knowledge:
            roles.append("knowledge")
        if has_world_model:
            roles.append("wm")
        for role in roles:
            yield from ("--adapter", f"{role}={models / role}")

    # The world model must read the prompts and states that it was trained on.
    if has_world_model and isinstance(config, SharedTraining):
        if not full:
            yield from ("--world-model-adapter", "wm")
        yield from ("--world-model-prompts", config.agent.prompts)
        yield from ("--world-model-state-text", config.agent.state_text)
        yield from ("--world-model-option", f"max_length={config.agent.max_length}")
        yield from ("--world-model-option", f"max_new_tokens={config.predict_tokens}")
        if isinstance(config, WebEvolverTraining):
            yield from ("--world-model-option", f"temperature={config.world_temperature}")


def _agent_words(agent: str, config: SharedTraining | PaWTraining) -> Iterator[str]:
    """Yield the agent's settings, but for those that it has without an option."""
    options_class = agent_options(agent)
    assert options_class is not None
    settings = config.agent.describe()
    settings |= {"seed": config.seed, "temperature": config.evaluation_temperature}
    settings["adapter"] = "agent" if config.weights == "lora" else None
    if isinstance(config, WKMTraining):
        settings["knowledge_adapter"] = "knowledge" if config.trains_knowledge else None

    # Prompts bring defaults of other settings with them, but are no default themselves.
    options = options_class(prompts=config.agent.prompts)
    defaults = {**options.describe(), "prompts": options_class().prompts}
    model_settings = set(options.follows_model())  # a run's would be its model's
    for name, setting in settings.items():
        # A simpler agent than the trained one does not have all settings.
        if setting == defaults.get(name, setting) and name not in model_settings:
            continue
        yield from _option_words(name, setting, is_switch=defaults.get(name) is not None)


def _option_words(name: str, setting: object, is_switch: bool) -> Iterator[str]:
    """Yield the words of a setting; `is_switch` says that of a truth value."""
    option = name.replace("_", "-")
    if name in _RUN_OPTIONS:
        option = f"agent-{option}"

    if setting is None:
        yield from ("--agent-option", f"{name}=null")
    elif isinstance(setting, bool) and not is_switch:
        yield from ("--agent-option", f"{name}={json.dumps(setting)}")
    elif isinstance(setting, bool):
        yield f"--{option}" if setting else f"--no-{option}"
    else:
        yield from (f"--{option}", str(setting))
