"""The settings that all trainings of agents share, and how settings are checked and changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib.resources import files
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
)

from ..agents import AgentConfig, ReActConfig
from ..errors import OptionError, suggest
from ..settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
    check_fields,
)

Config = TypeVar("Config")
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """How adapters are made (Hu et al., LoRA, ICLR 2022); the defaults are CoMap's Table 5."""

    r: PositiveInt = 8
    """Rank."""
    alpha: PositiveFloat = 16
    """Scale."""
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.05
    """Dropout of their inputs."""
    targets: tuple[str, ...] | None = None
    """Names of the layers that have one; None for the seven projections of a transformer's block."""

    def __post_init__(self) -> None:
        check_fields(self, "lora.")


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How a stage's rows become updates of AdamW; the defaults are CoMap's Table 5."""

    schedule: Literal[
        "cosine", "linear", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt"
    ] = "cosine"
    """How learning rates fall."""
    warmup_ratio: Share = 0.03
    """Share of a stage's updates over which they rise: of W such updates the k-th has k/W of the rate."""
    beta2: Annotated[float, Range(0, 1, below=True)] = 0.999
    """Second decay rate of AdamW."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of AdamW."""
    clip: PositiveFloat = 1.0
    """Largest norm of a gradient."""
    batch_rows: PositiveInt | None = 1
    """Rows of a batch; None where batch_tokens counts."""
    batch_tokens: PositiveInt | None = None
    """Most tokens of a batch, rows of like lengths together; None where batch_rows counts."""
    accumulate: PositiveInt = 64
    """Batches of an update, over all processes: 16 on each of four GPUs (CoMap, Table 5 and appendix
    C)."""
    micro_batch_tokens: PositiveInt | None = None
    """Most tokens of a forward pass, padding included, where batch_rows counts; updates stay the same.
    None: 2,048 on a CPU; on a GPU what half of its free memory has room for, a power of two to 32,768."""
    logging_steps: PositiveInt = 10
    """Updates between two lines of the log."""
    save_steps: NonNegativeInt = 100
    """Updates between two checkpoints; a multiple of logging_steps, 0 for none within a stage."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass: less memory, a third more arithmetic. None: on a GPU only
    where those of the longest row do not fit into half of its free memory; on a CPU never."""

    def __post_init__(self) -> None:
        check_fields(self, "optimization.")
        if (self.batch_rows is None) == (self.batch_tokens is None):
            raise OptionError("give either batch_rows or batch_tokens, and None for the other")
        if self.batch_tokens is not None and self.micro_batch_tokens is not None:
            raise OptionError(
                "expected micro_batch_tokens with batch_rows alone, found it beside batch_tokens, which is "
                "the size of a micro-batch itself; leave one of them out"
            )
        if self.save_steps % self.logging_steps:
            raise OptionError(
                f"save_steps must be a multiple of logging_steps ({self.logging_steps}), not "
                f"{self.save_steps}"
            )


@dataclass(frozen=True, kw_only=True)
class SharedTraining:
    """Settings of every training of language agents here; the defaults are the papers'.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> SharedTraining(seed=3).describe()["seed"]
        3
    """

    replays_demonstrations: ClassVar[bool] = True
    """Whether demonstrations are played again in the environment: imported ones cannot be."""

    weights: Literal["lora", "full"] = "lora"
    """lora (adapters of one frozen model) or full (a model for each role, for small ones)."""
    lora: LoRA = field(default_factory=LoRA)
    """How adapters are made."""
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """What the models compute with; auto is bfloat16 on a GPU and float32 on a CPU."""
    exact: bool = False
    """Answer in double precision (small models): results then do not depend on batches, so that a
    run that was killed ends as if it had not been."""
    seed: NonNegativeInt = 0
    """Seed of everything that is drawn."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the model's chat template in all prompts, such as date_string="1 Mar 2026"."""
    agent: AgentConfig = field(default_factory=ReActConfig)
    """How the policy acts where it plays training tasks; its seed and adapter are the training's. Limits
    of tokens that are not given are CoMap's (Table 5)."""
    predict_tokens: PositiveInt = 192
    """Most tokens of a world model's prediction (CoMap, Table 5)."""
    concurrency: PositiveInt = 32
    """Episodes that run at the same time."""
    optimization: Optimization = field(default_factory=Optimization)
    """How rows become updates."""
    train_split: str = "train"
    """Split to learn from."""
    demonstrations: PositiveInt | None = None
    """Tasks that are demonstrated; None for all."""
    side_steps: Share = 0.0
    """Share of the environment's own demonstrations in which the expert now and then does something else,
    which shows what refused actions and empty places look like."""
    copy_side_steps: bool = False
    """Copy side steps too, as from demonstrators that err; otherwise only what follows them is copied."""
    evaluation_splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    """Splits to evaluate on."""
    evaluation_tasks: NonNegativeInt | None = None
    """Tasks of each evaluation split; None for all, 0 for none."""
    evaluation_temperature: NonNegativeFloat = 0.7
    """Temperature of the policy in evaluation (CoMap, Table 5); 0 is greedy."""
    evaluation_seeds: PositiveInt = 3
    """How often each task is played."""
    evaluation_greedy: bool = True
    """Whether each task is also played greedily, once, where the temperature is above 0."""

    def __post_init__(self) -> None:
        check_fields(self)

        # A training does not depend on its model's context: limits that nobody gave are the papers'.
        agent = self.agent.published()
        # Demonstrations of experts have no thoughts, so that prompts must not ask for one.
        if agent.with_thought is None:
            agent = replace(agent, with_thought=False)
        object.__setattr__(self, "agent", agent)

        if self.copy_side_steps and not self.side_steps:
            raise OptionError(
                "copy_side_steps needs side_steps above 0, found 0; add --side-steps 1"
            )
        if self.agent.thinking:
            raise OptionError(
                "expected thinking=False: this training teaches replies without thoughts, and its prompts "
                "are those of acting; leave it out"
            )
        if self.agent.max_length < 256:
            raise OptionError(f"max_length must be at least 256, not {self.agent.max_length}")

    @property
    def shows_expert(self) -> bool:
        """Whether anything is learned from demonstrations."""
        return True

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the training's models.

        Args:
            begun: Those that begin from a trained model.
        """
        return ("agent",)

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return plain(self)


def changed(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a config with settings changed, each given by its name.

    The value of a nested config may be a mapping of its own settings. A name that only one nested
    config has may be given without that config's name; others as ``"nested.name"``.
    """
    current = {setting.name: getattr(config, setting.name) for setting in fields(config)}  # type: ignore[arg-type]
    # Users need not know which of the configs has a setting.
    nested: dict[str, Any] = {name: value for name, value in current.items() if is_dataclass(value)}
    names_of_nested = {key: _field_names(nested_config) for key, nested_config in nested.items()}

    new_values: dict[str, Any] = {}
    nested_settings: dict[str, dict[str, Any]] = {name: {} for name in nested}
    for name, value in settings.items():
        prefix, _, inner_name = name.partition(".")
        homes = [key for key, names in names_of_nested.items() if name in names]
        if name in current and not (name in nested and isinstance(value, Mapping)):
            new_values[name] = value
        elif name in nested:
            nested_settings[name] |= value
        elif len(homes) == 1:
            nested_settings[homes[0]][name] = value
        elif inner_name and prefix in nested:
            nested_settings[prefix][inner_name] = value
        elif homes:
            full_names = " or ".join(f"{home}.{name}" for home in homes)
            raise OptionError(f"several settings are called {name!r}; give {full_names}")
        else:
            all_names = set(current).union(*names_of_nested.values())
            raise OptionError(f"there is no setting {name!r}; {suggest(name, sorted(all_names))}")

    # Last: a nested config may itself be given anew, with some of its settings changed beside it.
    for name, inner_settings in nested_settings.items():
        if inner_settings:
            nested_config = new_values.get(name, nested[name])
            new_values[name] = changed(nested_config, inner_settings)
    return replace(config, **new_values)  # type: ignore[type-var]


def _field_names(config: Any) -> set[str]:
    return {setting.name for setting in fields(config)}


@cache
def presets(training: str) -> Mapping[str, Mapping[str, Any]]:
    """Return what each preset of a training sets, by name, as ``presets.json`` beside this module says.

    One that is ``like`` another also sets what that one sets. The presets ``slow`` are what ``tiny`` plays
    less of where an episode takes seconds.
    """
    file = files(__package__) / "presets.json"
    settings_of_presets: dict[str, dict[str, Any]] = {}
    for name, entries in json.loads(file.read_text("utf-8")).items():
        settings: dict[str, Any] = {}
        for key, value in entries.items():
            settings[key] = tuple(value) if isinstance(value, list) else value
        settings.pop("about", None)  # why it is as it is
        model_preset = settings.pop("like", "")
        settings_of_presets[name] = {**settings_of_presets.get(model_preset, {}), **settings}

    prefix = f"{training} "
    return {
        name.removeprefix(prefix): settings
        for name, settings in settings_of_presets.items()
        if name.startswith(prefix)
    }


def recast(config: AgentConfig, kind: type[Config], **settings: Any) -> Config:
    """Return the config of another kind of agent that asks as this one does."""
    shared_names = _field_names(kind) & _field_names(config)
    shared = {name: getattr(config, name) for name in shared_names}
    return kind(**{**shared, **settings})


def plain(config: Any) -> dict[str, Any]:
    """Return a config's settings as JSON data."""
    settings = asdict(config)
    agent = getattr(config, "agent", None)
    if isinstance(agent, AgentConfig):
        settings["agent"] = agent.describe()
    described: dict[str, Any] = json.loads(json.dumps(settings))
    return described


def changed_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of a user's functions that stand in for comap's own, as plain data."""
    names = {}
    for name, part in parts.items():
        function = getattr(part, "func", part)  # of a partial
        definition = function if hasattr(function, "__qualname__") else type(function)
        is_ours = definition.__module__.startswith(f"{_PACKAGE}.")
        if function is not None and not is_ours:
            names[name] = f"{definition.__module__}.{definition.__qualname__}"
    return {"changed": names} if names else {}
