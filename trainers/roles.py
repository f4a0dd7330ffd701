"""The models of a training run: the agent's policy, the world model and its teacher.

Each is called by its role. With LoRA the roles are adapters of one frozen model; with full parameters
each is a model of its own. Trainers and agents see no difference. A role whose name ends in ``_ema`` is
the teacher of the role before that ending: it begins as an exact copy, and is never trained itself
(CoMap, section 3.2).
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..agents.run import writing
from ..errors import DataCorrupt, OptionError, needs_extra, suggest
from ..lm import LanguageModel
from ..lm.chat import ChatTokenizer
from ..lm.hf import HFLanguageModel
from ..lm.load import (
    Adapters,
    device_of,
    ends_of,
    load_model,
    load_tokenizer,
    source_of,
    without_bars,
)
from ..lm.replay import RoutedLanguageModel
from ..lm.vllm import VLLMLanguageModel
from .config import LoRA
from .processes import is_first
from .sampling import (
    EngineLanguageModel,
    Sampler,
    open_engine,
    parts_of,
    sampling_error,
    token_logprobs,
)
from .sharding import (
    ShardedLanguageModel,
    check_launch,
    copies,
    is_sharded,
    loaded_once,
    shard,
    sharded_as,
)

if TYPE_CHECKING:
    from torch import Tensor


ROLES = ("agent", "wm", "wm_ema")
"""The roles of CoMap: policy, world model, and the world model's teacher."""

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_TEACHER = "_ema"


class Roles(ABC):
    """The models of a run, in memory; made by `open`.

    Example:
        >>> roles = Roles.open("models/tiny", kind="full")  # doctest: +SKIP
        >>> roles.names, roles.language_model().name  # doctest: +SKIP
        (('agent', 'wm', 'wm_ema'), 'tiny')
    """

    kind: Literal["lora", "full"]

    def __init__(
        self,
        source: str | Path,
        tokenizer: Any,
        modules: Mapping[str, Any],
        bases: Mapping[str, Any],
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.names = tuple(modules)
        self.template = dict(template or {})
        self.name = source.resolve().name if isinstance(source, Path) else source
        self._source = source
        self._engines: dict[str, EngineLanguageModel] = {}  # by role; with adapters there is one
        self._engines_compute_in = "float32"
        self.tokenizer = tokenizer
        self._modules = modules
        self._bases = bases
        self._weights = self._weights_of_roles()

    @staticmethod
    def open(
        models: Mapping[str, str | Path] | str | Path,
        *,
        kind: Literal["lora", "full"],
        roles: Sequence[str] = ROLES,
        lora: LoRA | None = None,
        dtype: str = "auto",
        device: str = "auto",
        seed: int = 0,
        saved: Mapping[str, Path] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Roles:
        """Load the models.

        Args:
            models: A folder or a name on the hub; with ``kind="full"`` also one for each role.
            kind: ``lora`` (adapters of one frozen model) or ``full`` (a model for each role).
            roles: The names of the roles.
            lora: How new adapters are made; None for CoMap's.
            dtype: What models are held in; ``auto`` is bfloat16 for adapters on a GPU, else float32.
            device: ``auto``, or torch's name of a device.
            seed: Seed of new adapters.
            saved: Folders of adapters that roles begin from.
            chat_template_kwargs: Variables for the chat template of all prompts.

        Raises:
            OptionError: The roles, the kind or the models do not fit together.
            LanguageModelError: There is no such model, or it cannot be loaded.
            MissingExtra: A package is not installed.
        """
        check_launch()
        torch_device = device_of(device)
        begins_on = torch_device
        if is_sharded():  # a whole model may be larger than the device
            begins_on = device_of("cpu")

        # Adapters are single precision in any case; only the frozen model beneath them is half as large.
        # Weights that are all trained lose small updates in bfloat16.
        on_gpu = torch_device.type == "cuda"
        computes_in_half = dtype == "bfloat16" or (dtype == "auto" and on_gpu)
        if dtype == "auto":
            is_half = kind == "lora" and on_gpu
            dtype = "bfloat16" if is_half else "float32"
        opened: Roles
        if kind == "full":
            opened = FullRoles(models, roles, dtype, begins_on, chat_template_kwargs)
        elif isinstance(models, Mapping):
            raise OptionError(
                f"with kind='lora' all roles share one model; give its folder or name, not {models!r}"
            )
        else:
            opened = LoraRoles(
                models,
                roles,
                dtype,
                begins_on,
                lora or LoRA(),
                seed,
                saved or {},
                chat_template_kwargs,
            )
        if is_sharded():
            opened.shard(torch_device, computes_in_half=computes_in_half)
        return opened

    @cached_property
    def chat(self) -> ChatTokenizer:
        """The tokenizer of samples' prompts, which are as those of acting."""
        return ChatTokenizer(self.tokenizer, (), self.template)

    def module(self, role: str) -> Any:
        """Return what a trainer trains: the `PeftModel` of all roles, or the role's own model."""
        self.check(role)
        return self._modules[role]

    def base(self, role: str) -> Any:
        """Return the transformers model, without wrappers, that computes for a role."""
        self.check(role)
        return self._bases[role]

    def parameters(self, role: str) -> dict[str, Tensor]:
        """Return a role's own weights by name, in an order and by names that all roles share."""
        self.check(role)
        return dict(self._weights[role])

    def train_only(self, role: str) -> None:
        """Switch a role on and let exactly its weights be trained."""
        self.check(role)
        if student_of(role) is not None:
            raise OptionError(
                f"{role} is a teacher, which follows its student; train {student_of(role)}"
            )
        # By identity: with adapters all roles' weights are in one module.
        self._switch_on(role)
        trained = {id(weight) for weight in self._weights[role].values()}
        for module in self._distinct_modules():
            for weight in module.parameters():
                weight.requires_grad_(id(weight) in trained)

    def language_model(
        self, *, exact: bool = False, sampler: Sampler | None = None
    ) -> LanguageModel:
        """Return a language model that answers each request by the role that it names.

        Args:
            exact: Answer by copies, as the models are now, in double precision.
            sampler: What answers in place of these models: vLLM, with the weights that they have now.
        """
        if is_sharded() and (sampler is None or not sampler.is_vllm):
            return ShardedLanguageModel(self.chat, self.name)
        if sampler is None or not sampler.is_vllm:
            return self._own_language_model(exact)
        return self._in_engine(sampler)

    @abstractmethod
    def _own_language_model(self, exact: bool) -> LanguageModel:
        """Return a language model of this process's models."""

    @abstractmethod
    def _in_engine(self, sampler: Sampler) -> LanguageModel:
        """Return a language model of vLLM; an engine that is there gets what has changed."""

    def _engine(
        self, role: str, sampler: Sampler, open_one: Callable[[], VLLMLanguageModel]
    ) -> EngineLanguageModel:
        """Return the engine of a role, awake; it is started where there is none yet."""
        if role not in self._engines:
            own = self.language_model()
            logprobs_of = partial(self._logprobs_of, sampler.dtype, role)
            self._engines[role] = EngineLanguageModel(open_one(), own, logprobs_of)
            self._engines_compute_in = sampler.dtype
        engine = self._engines[role]
        engine.wake()
        return engine

    def _logprobs_of(
        self,
        dtype: str,
        role: str,
        adapter: str | None,
        prompt: Sequence[int],
        tokens: Sequence[int],
    ) -> list[float]:
        """Return the training's own log-probabilities of tokens that an engine sampled."""
        role = role if adapter is None else adapter
        with self.using(role, training=False):
            # What is sharded gathers its weights when it is called as a whole.
            model = self.module(role) if is_sharded() else self.base(role)
            return token_logprobs(model, prompt, tokens, dtype)

    def sleep(self) -> None:
        """Give the GPU memory of engines in this process back, before something is trained."""
        for engine in self._engines.values():
            engine.check_noted()
            engine.sleep()

    def take_sampling_error(self) -> float | None:
        """Return the mean error of what engines sampled since the last call; None without engines."""
        if not self._engines:
            return None
        for engine in self._engines.values():
            engine.check_noted()
        errors = [engine.take_errors() for engine in self._engines.values()]
        return sampling_error(errors, self._engines_compute_in)

    def close(self) -> None:
        """Let engines go; the next `language_model` starts others."""
        for engine in self._engines.values():
            engine.close()
        self._engines = {}

    @abstractmethod
    def _weights_of_roles(self) -> dict[str, dict[str, Tensor]]:
        """Return the weights of each role, without those that roles share."""

    @abstractmethod
    def _switch_on(self, role: str) -> None:
        """Make a role the one that computes."""

    @abstractmethod
    def _switch(self, role: str) -> Iterator[None]:
        """Switch a role on, then what was on before (a generator of one step)."""

    @abstractmethod
    def _write(self, role: str, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Write a role's weights and config into a new folder; None for the weights as they are here."""

    def shard(self, device: Any, *, computes_in_half: bool = False) -> None:
        """Shard all models among the processes: see `comap.trainers.sharding`."""
        for module in self._distinct_modules():
            shard(module, device, computes_in_half=computes_in_half)
        self._weights = self._weights_of_roles()

    def _distinct_modules(self) -> list[Any]:
        """Return the models, each once: adapters share one."""
        return list({id(module): module for module in self._modules.values()}.values())

    @contextmanager
    def using(self, role: str, *, training: bool | None = None) -> Iterator[None]:
        """Switch a role on, and put everything back afterwards, whatever happened meanwhile."""
        self.check(role)
        # Noted one by one: a trainer may have frozen some modules, and `train()` would set them all.
        training_flags: list[tuple[Any, bool]] = []
        gradient_flags: list[tuple[Any, bool]] = []
        for model in self._distinct_modules():
            training_flags += [(module, module.training) for module in model.modules()]
            gradient_flags += [(weight, weight.requires_grad) for weight in model.parameters()]
        try:
            with contextmanager(self._switch)(role):
                if training is not None:
                    self.module(role).train(training)
                yield
        finally:
            for module, flag in training_flags:
                module.training = flag
            for weight, flag in gradient_flags:
                weight.requires_grad_(flag)

    def check(self, role: str) -> None:
        """Raise an `OptionError` unless there is such a role."""
        if role not in self.names:
            raise OptionError(f"there is no role {role!r}; {suggest(str(role), self.names)}")

    def copy(self, source: str, target: str) -> None:
        """Copy one role's weights into another's, exactly."""
        fill(self.parameters(target), self.parameters(source))

    def state(self, role: str) -> dict[str, Tensor]:
        """Return copies of a role's weights in main memory, by the names of `parameters`.

        Where models are sharded, all processes must ask, and the first one has the copies.
        """
        # Copies, also of what is in main memory already: training goes on while they are written.
        return copies(self.parameters(role))

    def load(self, role: str, state: Mapping[str, Tensor]) -> None:
        """Load weights that `state` returned into a role."""
        weights = self.parameters(role)
        problem = difference(weights, state)
        if problem:
            raise DataCorrupt(
                f"expected the weights of {role}, found others: {problem}; they were saved with "
                "other settings, or are damaged: remove them, or open the models as they were"
            )
        fill(weights, state)

    def save(self, folder: str | Path, roles: Sequence[str] | None = None) -> Path:
        """Write roles, each into a folder of its name within `folder`.

        Where models are sharded, all processes must ask, and the first one writes.
        """
        # Whole under another name first: whoever is killed here leaves the old models or the new ones.
        target = Path(folder)
        for role in self.names if roles is None else roles:
            self.check(role)
            state = self.state(role) if is_sharded() else None
            if is_sharded() and not is_first():
                continue
            draft = target / f".{role}.new"
            role_folder = target / role
            with writing(target):
                target.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(draft, ignore_errors=True)
                self._write(role, draft, state)
                if role_folder.is_dir():
                    shutil.rmtree(role_folder)
                draft.replace(role_folder)
        return target


class FullRoles(Roles):
    """Each role is a model of its own."""

    kind = "full"

    def __init__(
        self,
        models: Mapping[str, str | Path] | str | Path,
        names: Sequence[str],
        dtype: str,
        device: Any,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(models, Mapping):
            for key in models:
                if key not in names:
                    raise OptionError(f"there is no role {key!r}; {suggest(str(key), names)}")

        # All sources and tokenizers before the first weights, which may take minutes.
        sources = {role: source_of(_model_of(models, role)) for role in names}
        tokenizers = {role: load_tokenizer(source, None) for role, source in sources.items()}
        _check_alike(tokenizers)
        with loaded_once():
            loaded = {role: load_model(sources[role], None, device, dtype) for role in names}
        for model in loaded.values():
            model.requires_grad_(False)

        first_role = names[0]
        super().__init__(sources[first_role], tokenizers[first_role], loaded, loaded, template)

        # A model is trained in single precision, whatever it is used in; it is saved as what it was.
        self._sources = sources
        self._declared = {role: _declared(source) for role, source in sources.items()}

    def _own_language_model(self, exact: bool) -> LanguageModel:
        """Return a language model that sends each request to the model of the role that it names."""
        models = {
            role: HFLanguageModel.from_model(
                in_double(model) if exact else model,
                self.tokenizer,
                name=f"{self.name}/{role}",
                chat_template_kwargs=self.template,
            )
            for role, model in self._modules.items()
        }
        return RoutedLanguageModel(models, self.names[0], self.name)

    def _in_engine(self, sampler: Sampler) -> LanguageModel:
        """Return a language model of an engine for each role, with all its weights."""
        engines: dict[str, LanguageModel] = {}
        for role, part in zip(self.names, parts_of(sampler, len(self.names)), strict=True):
            engine = self._engine(role, part, partial(self._open_engine, role, part))
            engine.load_weights(self._modules[role])
            engines[role] = engine
        return RoutedLanguageModel(engines, self.names[0], self.name)

    def _open_engine(self, role: str, sampler: Sampler) -> VLLMLanguageModel:
        return open_engine(
            sampler,
            self._sources[role],
            self.tokenizer,
            name=f"{self.name}/{role}",
            ends=ends_of(self._modules[role]),
            template=self.template,
        )

    def _weights_of_roles(self) -> dict[str, dict[str, Tensor]]:
        return {role: dict(model.named_parameters()) for role, model in self._modules.items()}

    def _switch_on(self, role: str) -> None:
        pass

    def _switch(self, role: str) -> Iterator[None]:
        yield

    def _write(self, role: str, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Write a model as transformers does; its config keeps the dtype that it declared."""
        with without_bars():
            self._modules[role].save_pretrained(folder, state_dict=state)
        self.tokenizer.save_pretrained(folder)
        if self._declared[role] is not None:
            path = folder / "config.json"
            config = json.loads(path.read_text("utf-8")) | {"dtype": self._declared[role]}
            path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


class LoraRoles(Roles):
    """All roles are adapters of one model, which is frozen."""

    kind = "lora"

    def __init__(
        self,
        model: str | Path,
        names: Sequence[str],
        dtype: str,
        device: Any,
        lora: LoRA,
        seed: int,
        saved: Mapping[str, Path],
        template: Mapping[str, Any] | None = None,
    ) -> None:
        source = source_of(model)
        with loaded_once():
            adapters = Adapters(load_model(source, None, device, dtype))
        self._adapters = adapters
        # Students first: a teacher's adapter has its student's config.
        for role in sorted(names, key=lambda role: student_of(role) is not None):
            if role in saved:
                adapters.load(role, saved[role])
                _check_same(role, lora, adapters.model.peft_config[role])
            else:
                _create(adapters, role, lora)
        adapters.model.eval()

        adapters.base.requires_grad_(False)
        modules = dict.fromkeys(names, adapters.model)
        bases = dict.fromkeys(names, adapters.base)
        super().__init__(source, load_tokenizer(source, None), modules, bases, template)
        self._name_on_hub = source if isinstance(source, str) else None

        # Ours, after peft's: each role's own generator, so that another role more changes none of them.
        for role in names:
            if role not in saved and student_of(role) is None:
                _initialize(self._weights[role], f"{seed}/{role}")
        for role in names:
            student = student_of(role)

            # Student and teacher begin as one (CoMap, section 3.2).
            if role not in saved and student is not None:
                self.copy(student, role)
            adapters.model.peft_config[role].inference_mode = False
        self._switch_on(names[0])

    def _own_language_model(self, exact: bool) -> LanguageModel:
        """Return a language model that answers each request by the adapter that it names."""
        model = self._in_double() if exact else self._adapters.model
        # One model answers for all roles: the frozen weights are in memory once.
        return HFLanguageModel.from_model(
            model,
            self.tokenizer,
            adapter=self.names[0],
            name=self.name,
            chat_template_kwargs=self.template,
        )

    def _in_engine(self, sampler: Sampler) -> LanguageModel:
        """Return a language model of one engine: the frozen model, and an adapter for each role."""
        default_role = self.names[0]
        open_one = partial(self._open_engine, sampler)
        engine = self._engine(default_role, sampler, open_one)
        for role in self.names:
            engine.load_adapter(role, self._weights[role].values(), partial(self._write, role))
        engine.engine.adapter = default_role
        return engine

    def _open_engine(self, sampler: Sampler) -> VLLMLanguageModel:
        return open_engine(
            sampler,
            self._source,
            self.tokenizer,
            name=self.name,
            ends=ends_of(self._adapters.base),
            template=self.template,
            adapters=len(self.names),
            adapter_rank=max(config.r for config in self._adapters.model.peft_config.values()),
        )

    def _weights_of_roles(self) -> dict[str, dict[str, Tensor]]:
        # A weight's name has its adapter's in it: "...q_proj.lora_A.agent.weight".
        weights: dict[str, dict[str, Tensor]] = {role: {} for role in self.names}
        for key, weight in self._adapters.base.named_parameters():
            match = re.fullmatch(r"(.+\.lora_[A-Za-z_]+)\.([A-Za-z0-9_-]+)(\.weight)?", key)
            if match is not None:
                layer, role, ending = match.groups()
                weights[role][layer + (ending or "")] = weight
        return weights

    def _in_double(self) -> Any:
        """Return copies of the model and of all adapters in double precision."""
        configs = self._adapters.model.peft_config

        def add_adapters(model: Any) -> Any:
            adapters = Adapters(model)
            for role in self.names:
                adapters.create(role, copy.deepcopy(configs[role]))
            return adapters.model

        return in_double(self._adapters.base, add_adapters)

    def _switch_on(self, role: str) -> None:
        self._adapters.model.set_adapter(role, inference_mode=True)

    def _switch(self, role: str) -> Iterator[None]:
        former_role = self._adapters.model.active_adapter
        try:
            with self._adapters.using(role):
                yield
        finally:
            if self._adapters.model.active_adapter != former_role:
                self._switch_on(former_role)

    def _write(self, role: str, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Write an adapter as peft does, without the machine's paths and the order of its sets."""
        from safetensors.torch import save_file

        folder.mkdir()
        config = self._adapters.model.peft_config[role].to_dict()
        config |= {"inference_mode": True, "base_model_name_or_path": self._name_on_hub}
        for key, value in config.items():
            if isinstance(value, set):
                config[key] = sorted(value)

        # peft's own names of weights, so that its `from_pretrained` and vLLM read the folder.
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (folder / "adapter_config.json").write_text(text, "utf-8")
        if state is None:  # for an engine of each process
            state = copies(self.parameters(role), everywhere=True)
        weights = {f"base_model.model.{key}": value for key, value in state.items()}
        save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})


def student_of(role: str) -> str | None:
    """Return the role that a teacher follows; None for a role that is no teacher."""
    return role.removesuffix(_TEACHER) if role.endswith(_TEACHER) else None


def difference(weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """Return how saved weights differ in names or shapes from a role's own; nothing if they do not."""
    missing = [name for name in weights if name not in state]
    unknown = [name for name in state if name not in weights]
    if missing or unknown:
        example = (missing or unknown)[0]
        return (
            f"{len(missing)} weights are missing and {len(unknown)} have no place ({example:.200})"
        )
    for name, weight in weights.items():
        if state[name].shape != weight.shape:
            return f"{name} has the shape {tuple(state[name].shape)}, not {tuple(weight.shape)}"
    return ""


def fill(weights: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copy values into weights, which have the same names and shapes."""
    import torch

    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(sharded_as(weight, values[name]))


def in_double(base: Any, wrap: Callable[[Any], Any] = lambda model: model) -> Any:
    """Return a copy of a model in double precision; torch's random numbers are as before."""
    import torch

    # Built anew and filled: a deep copy of a model in training would copy its gradients and hooks too.
    with torch.random.fork_rng(devices=[]):
        double_base = type(base)(copy.deepcopy(base.config))
        wrapped = wrap(double_base)
    double_base.generation_config = copy.deepcopy(base.generation_config)
    double_base.double()
    missing = double_base.load_state_dict(base.state_dict(), strict=False).missing_keys
    if missing:
        raise OptionError(f"a {type(base).__name__} cannot be copied: it has no {missing[0]}")
    return wrapped.to(base.device).eval().requires_grad_(False)


def _model_of(models: Mapping[str, str | Path] | str | Path, role: str) -> str | Path:
    """Return the folder or name of a role's model; a teacher's is its student's."""
    if not isinstance(models, Mapping):
        return models
    model = models.get(role, models.get(student_of(role) or role))
    if model is None:
        raise OptionError(f"expected a model for each role, found none for {role!r}")
    return model


def _check_alike(tokenizers: Mapping[str, Any]) -> None:
    """Refuse models that read or write the same tokens differently."""
    (first_role, first_tokenizer), *other_tokenizers = tokenizers.items()
    for role, tokenizer in other_tokenizers:
        are_equal = {
            "vocabulary": first_tokenizer.get_vocab() == tokenizer.get_vocab(),
            "chat template": first_tokenizer.chat_template == tokenizer.chat_template,
            "end token": first_tokenizer.eos_token_id == tokenizer.eos_token_id,
        }
        for property_name, is_equal in are_equal.items():
            if not is_equal:
                raise OptionError(
                    f"expected all roles to have one {property_name}, found that of {role} to be another "
                    f"than that of {first_role}; begin with models of one family"
                )


def _declared(source: str | Path) -> str | None:
    """Return the dtype that a model's config declares, or None."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        source, trust_remote_code=False, local_files_only=isinstance(source, Path)
    )
    dtype = getattr(config, "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _create(adapters: Adapters, role: str, lora: LoRA) -> None:
    """Create a new adapter; torch's own random numbers are as before."""
    with needs_extra("train", "a LoRA adapter"):
        import torch
        from peft import LoraConfig

    student = student_of(role)
    if student is not None:
        config = copy.deepcopy(adapters.model.peft_config[student])
    else:
        config = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=sorted(lora.targets or _PROJECTIONS),
            bias="none",
            task_type="CAUSAL_LM",
        )

    device = adapters.base.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        adapters.create(role, config)


def _initialize(weights: Mapping[str, Tensor], seed: str) -> None:
    """Give a new adapter its first weights: A as peft draws it, evenly within 1/sqrt(width); B is 0."""
    import torch

    # On the CPU, so that all devices begin alike. B is 0: the adapter does nothing yet (LoRA, section 4.1).
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for name, weight in weights.items():
            if ".lora_A" not in name:
                weight.zero_()
                continue
            values = torch.empty(weight.shape, dtype=torch.float32)
            bound = weight.shape[1] ** -0.5
            weight.copy_(values.uniform_(-bound, bound, generator=generator))


def _check_same(role: str, lora: LoRA, config: Any) -> None:
    """Refuse an adapter that was saved with other settings than those asked for."""
    saved_settings = {
        "r": config.r,
        "alpha": config.lora_alpha,
        "targets": sorted(config.target_modules or ()),
    }
    expected_settings = {
        "r": lora.r,
        "alpha": lora.alpha,
        "targets": sorted(lora.targets or _PROJECTIONS),
    }
    for key, expected in expected_settings.items():
        if saved_settings[key] != expected:
            raise OptionError(
                f"expected the saved adapter {role!r} to have lora.{key}={expected!r}, found "
                f"{saved_settings[key]!r}; give the same settings"
            )
