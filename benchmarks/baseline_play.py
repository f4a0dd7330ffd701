"""The `comap run` that lets what a baseline's training left play, and what came out of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..agents.create import agent_options
from ..errors import DataCorrupt, OptionError
from ..trainers.baselines.config import BaselineTraining
from ..trainers.baselines.itp_stages import DEPTH_HEAD
from ..trainers.baselines.methods import ITPTraining, WKMTraining
from ..trainers.baselines.presets import BASELINES
from ..trainers.baselines.wkm_stages import KNOWLEDGE
from .tables import Table
from .training_play import env_words, option_words, world_words
from .training_record import TrainingRecord, get, members, number, read_training

__all__ = ["baseline_play_words", "baseline_settings", "baseline_table"]

_AGENTS = {"sft": "react", "iwm": "iwm", "wkm": "wkm", "itp": "itp"}
_SHARED = "decoding form state_text prompts max_length top_p draft_tokens seed"
_WKM = "gamma neighbours state_knowledge task_tokens state_tokens knowledge_temperature"


def baseline_settings(training: TrainingRecord) -> BaselineTraining:
    """Return the settings of a baseline's training.

    Args:
        training: What its folder tells.

    Raises:
        OptionError: It is no training of a baseline.
        DataCorrupt: Its settings are none of that method's.

    Example:
        >>> told = {"method": "sft", "config": {"epochs": 2}}
        >>> baseline_settings(TrainingRecord(told, (), ())).epochs
        2
    """
    method, told = get(training.described, "method"), members(training.described, "config")
    if method not in BASELINES:
        raise OptionError(
            f"expected the folder of comap train {'|'.join(BASELINES)}, found one of {method!r}"
        )
    try:
        plain: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in told.items()
        }
        return BASELINES[method](**plain)
    except (TypeError, ValueError) as error:
        raise DataCorrupt(f"expected settings of {method}, found others: {error}") from error


def baseline_play_words(
    folder: str | Path,
    *,
    base: str | Path | None = None,
    split: str | None = None,
    env_options: Mapping[str, Any] | None = None,
    models: str | Path | None = None,
    world_model: str | None = None,
) -> list[str]:
    """Return the words of a command line: the agent acts as in the training's evaluation.

    Args:
        folder: The training's folder.
        base: The model that adapters belong to; with full weights none is needed.
        split: The split to play; None for the last that the training evaluates on.
        env_options: The options of the environment; None for those of the training, which are told
            without places on this machine such as ``data_dir``.
        models: Where its models are, with WKM's knowledge beside that folder; None for ``models`` in
            the training's.
        world_model: Another world model for ITP than the training's, as ``--world-model`` takes it.

    Raises:
        DataNotFound: There is no training.
        DataCorrupt: The folder's files are not what they should be.
        OptionError: It is no training of a baseline, or adapters have no base.

    Example:
        >>> baseline_play_words("no/such/training")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a training at no/such/training, found no run.json; \
'comap train' makes one
    """
    training = read_training(folder)
    config = baseline_settings(training)
    place = Path(folder) / "models" if models is None else Path(models)
    env_id = str(get(training.described, "env", "id"))
    options = members(training.described, "env", "options") if env_options is None else env_options
    if config.weights == "lora" and base is None:
        raise OptionError("expected the model that the adapters belong to, found none; give base")
    words = ["comap", "run", "--agent", _AGENTS[config.method], *env_words(env_id, options)]
    words += ["--split", split or config.evaluation_splits[-1]]
    words += _model_words(config, place, base, world_model)
    if config.exact:
        words += ["--dtype", "float64"]
    words += _agent_words(config)
    if isinstance(config, WKMTraining):
        words += ["--agent-option", f"knowledge={place.parent / KNOWLEDGE}"]
    if isinstance(config, ITPTraining):
        words += ["--agent-option", f"k_head={place / DEPTH_HEAD}"]
        words += [] if config.k_max is None else ["--k-max", str(config.k_max)]
        words += world_words(config.shared())
    return words


def baseline_table(training: TrainingRecord) -> Table:
    """Return the line of results that a baseline's training ends with.

    Args:
        training: What its folder tells.

    Example:
        >>> baseline_table(TrainingRecord({"method": "sft"}, (), ())).rows
        ()
    """
    found = dict(training.done())
    splits = members(found.get("evaluation", {}), "splits")
    cost = sum(number(result, "cpu_seconds") or 0.0 for result in found.values())
    cells = tuple(_rate(told) for told in splits.values())
    rows = ((str(get(training.described, "method")), *cells, f"{cost:,.0f}"),) if splits else ()
    heads = ("method", *(f"success, {split}" for split in splits), "CPU seconds")
    return Table("Results", heads, rows, "Success in percent, with 95 % intervals.")


def _rate(told: object) -> str:
    success, low, high = (number(told, f"success{end}") for end in ("", "_low", "_high"))
    count = number(told, "episodes")
    if success is None or low is None or high is None:
        return "—"
    return f"{100 * success:.1f} [{100 * low:.1f}, {100 * high:.1f}] (n={int(count or 0)})"


def _model_words(
    config: BaselineTraining, models: Path, base: str | Path | None, world_model: str | None
) -> list[str]:
    full = config.weights == "full"
    words = ["--model", str(models / "agent" if full else base)]
    roles = ["agent"]
    if isinstance(config, WKMTraining) and config.trains_knowledge:
        roles.append("knowledge")
    if isinstance(config, ITPTraining):
        own = world_model is None
        place = (models / "wm" if full else base) if own else world_model
        words += ["--world-model", str(place)]
        if own and not full:
            roles.append("wm")
            words += ["--world-model-adapter", "wm"]
    if not full:
        for role in roles:
            words += ["--adapter", f"{role}={models / role}"]
    return words


def _agent_words(config: BaselineTraining) -> Iterator[str]:
    """Yield the agent's settings that are not the defaults."""
    usual = agent_options(_AGENTS[config.method])
    assert usual is not None
    known = usual().describe()
    for name, value in _settings(config).items():
        if value != known[name] and value is not None:
            yield from option_words(name, value)


def _settings(config: BaselineTraining) -> dict[str, Any]:
    """Return how the agent asked in the evaluation, without what a run says otherwise."""
    told: dict[str, Any] = {name: getattr(config, name) for name in _SHARED.split()}
    told["temperature"] = config.evaluation_temperature
    if config.weights == "lora":
        told["adapter"] = "agent"
    if isinstance(config, WKMTraining):
        told |= {name: getattr(config, name) for name in _WKM.split()}
        told["task_knowledge"] = config.task_knowledge == "lm"
        told["knowledge_adapter"] = "knowledge" if config.trains_knowledge else None
    if isinstance(config, ITPTraining):
        told |= {"k_source": "head", "told": "last", "foresight_tokens": config.foresight_tokens}
        told["reply_tokens"] = config.reply_tokens
    return told
