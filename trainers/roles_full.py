"""Roles as models of their own, all of whose weights are trained."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, suggest
from ..lm import LanguageModel
from ..lm.hf import HFLanguageModel
from ..lm.hf_load import DTYPES, device_of, load_model, load_tokenizer, place_of
from ..lm.model_sums import write_model_sums
from ..lm.quiet import without_bars
from .roles import Roles
from .roles_checks import student_of
from .routed import RoutedLanguageModel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FullRoles", "in_double", "name_of", "training_dtype"]


class FullRoles(Roles):
    """Each role is a model of its own; made by `Roles.open`."""

    kind = "full"

    def __init__(
        self,
        names: Sequence[str],
        name: str,
        tokenizer: Any,
        models: Mapping[str, Any],
        declared: Mapping[str, str | None],
    ):
        super().__init__(names, name, tokenizer)
        self._models, self._declared = dict(models), dict(declared)
        self._own: dict[str, dict[str, Tensor]] = {}
        for role, model in self._models.items():
            self._own[role] = dict(model.requires_grad_(False).named_parameters())

    @classmethod
    def load_models(
        cls,
        models: Mapping[str, str | Path] | str | Path,
        names: Sequence[str],
        dtype: str,
        device: str,
        folders: Mapping[str, Path],
    ) -> FullRoles:
        """Load a model for each role: see `Roles.open`."""
        where = device_of(device)
        given = _places(models, names)
        places = {role: place_of(folders[role]) for role in names if role in folders}
        for role in sorted(names, key=lambda role: student_of(role) is not None):
            if role not in places:  # a teacher that was not saved is what its student is
                student = student_of(role)
                same = folders and student is not None
                places[role] = places[student] if same and student else place_of(given[role])
        tokenizers = {role: load_tokenizer(places[role], None) for role in names}
        _check_alike(tokenizers)
        kind = training_dtype(dtype, "full", where)
        loaded = {role: load_model(places[role], None, where, kind) for role in names}
        declared = {role: _declared(places[role]) for role in names}
        name = name_of(place_of(given[names[0]]))
        made = cls(names, name, tokenizers[names[0]], loaded, declared)
        for role in names:
            student = student_of(role)
            if student is not None:
                made._check_teacher(student, role)
        return made

    def module(self, role: str) -> Any:
        """Return the role's model."""
        self.check(role)
        return self._models[role]

    def base(self, role: str) -> Any:
        """Return the role's model."""
        return self.module(role)

    def parameters(self, role: str) -> dict[str, Tensor]:
        """Return all weights of the role's model; one that is used twice is there once."""
        self.check(role)
        return dict(self._own[role])

    def train_only(self, role: str) -> None:
        """Let exactly the weights of the role's model be trained."""
        self._refuse_teacher(role)
        for name, own in self._own.items():
            for weight in own.values():
                weight.requires_grad_(name == role)

    def language_model(
        self, *, exact: bool = False, batch_tokens: int = 16_384, batch_rows: int = 64
    ) -> LanguageModel:
        """Return a language model that sends each request to the model of the role that it names."""
        models = {
            role: HFLanguageModel.from_model(
                in_double(model) if exact else model,
                self.tokenizer,
                batch_tokens=batch_tokens,
                batch_rows=batch_rows,
                name=f"{self.name}/{role}",
            )
            for role, model in self._models.items()
        }
        return RoutedLanguageModel(models, self.names[0], self.name)

    def _check_teacher(self, student: str, teacher: str) -> None:
        own = {name: weight.shape for name, weight in self._own[student].items()}
        if own != {name: weight.shape for name, weight in self._own[teacher].items()}:
            raise OptionError(
                f"expected {teacher} to be a model of {student}'s shape, found another"
            )

    def _switch(self, role: str) -> Iterator[None]:
        yield

    def _write(self, role: str, folder: Path) -> None:
        """Write a model as transformers does; it keeps what its config says that it computes with."""
        with without_bars():
            self._models[role].save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        declared = self._declared[role]
        if declared is not None:
            path = folder / "config.json"
            config = json.loads(path.read_text("utf-8")) | {"dtype": declared}
            path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
        write_model_sums(folder)


def training_dtype(dtype: str, kind: str, device: Any) -> str:
    """Return what models are held in: see `Roles.open`.

    Raises:
        OptionError: There is no such precision.

    Example:
        >>> from types import SimpleNamespace
        >>> gpu = SimpleNamespace(type="cuda")
        >>> training_dtype("auto", "lora", gpu), training_dtype("auto", "full", gpu)
        ('bfloat16', 'float32')
    """
    if dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if dtype != "auto":
        return dtype
    return "bfloat16" if kind == "lora" and device.type == "cuda" else "float32"


def name_of(place: str | Path) -> str:
    """Return what results call a model: the name of its folder, or its name on the hub.

    Example:
        >>> name_of(Path("runs/warm")), name_of("Qwen/Qwen3-4B")
        ('warm', 'Qwen/Qwen3-4B')
    """
    return place.resolve().name if isinstance(place, Path) else place


def in_double(base: Any, wrap: Callable[[Any], Any] = lambda model: model) -> Any:
    """Return a copy of a model in double precision; torch's random numbers are as before.

    The copy is built anew from the config and takes over the weights, so that nothing which a
    trainer has hung onto the model comes with it.

    Args:
        base: A model of the transformers library, perhaps with adapters built in.
        wrap: Builds the same adapters into the copy, and returns what is around it then.

    Raises:
        OptionError: The copy has weights that the model has not.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        made = type(base)(copy.deepcopy(base.config))
        wrapped = wrap(made)
    made.generation_config = copy.deepcopy(base.generation_config)
    made.double()
    missing = made.load_state_dict(base.state_dict(), strict=False).missing_keys
    if missing:
        raise OptionError(f"a {type(base).__name__} cannot be copied: it has no {missing[0]}")
    return wrapped.to(base.device).eval().requires_grad_(False)


def _places(
    models: Mapping[str, str | Path] | str | Path, names: Sequence[str]
) -> dict[str, str | Path]:
    """Return where the model of each role is."""
    if not isinstance(models, Mapping):
        return dict.fromkeys(names, models)
    for key in models:
        if key not in names:
            raise OptionError(f"there is no role {key!r}; {suggest(str(key), names)}")
    found = {}
    for role in names:
        source = role if role in models else student_of(role) or role
        if source not in models:
            raise OptionError(f"expected a model for each role, found none for {role!r}")
        found[role] = models[source]
    return found


def _check_alike(tokenizers: Mapping[str, Any]) -> None:
    """Refuse models that read or write the same tokens differently."""
    (first, one), *others = tokenizers.items()
    for role, other in others:
        for what, same in (
            ("vocabulary", one.get_vocab() == other.get_vocab()),
            ("chat template", one.chat_template == other.chat_template),
            ("end token", one.eos_token_id == other.eos_token_id),
        ):
            if not same:
                raise OptionError(
                    f"expected all roles to have one {what}, found that of {role} to be another "
                    f"than that of {first}; begin with models of one family"
                )


def _declared(place: str | Path) -> str | None:
    """Return what a model's config says that it computes with, or None."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        place, trust_remote_code=False, local_files_only=isinstance(place, Path)
    )
    dtype = getattr(config, "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")
