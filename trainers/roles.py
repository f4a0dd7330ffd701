"""The models of a training run: the agent's policy, the world model and its teacher.

Each is called by its role. With LoRA the roles are adapters of one frozen model; with full parameters
each is a model of its own. Trainers and agents see no difference. A role whose name ends in ``_ema`` is
the teacher of the role before that ending: it begins as an exact copy, and is never trained itself
(METHODS.md 1.7, item 5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agents.records import writing
from ..errors import DataCorrupt, OptionError, suggest
from ..lm import LanguageModel
from .roles_checks import checked_names, difference, fill, saved_folders, student_of
from .roles_folder import rewritten

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ROLES", "Roles"]

ROLES = ("agent", "wm", "wm_ema")
"""The roles of CoMap: policy, world model, and the world model's teacher."""


class Roles(ABC):
    """The models of a run, in memory; made by `open`.

    At first no weight can be trained and all models are in evaluation mode.

    Attributes:
        names: The roles, in the order given.
        kind: ``"lora"`` or ``"full"``.
        name: How results call the models: the name of the model on the hub, or of its folder.
        tokenizer: The tokenizer of all of them.

    Example:
        >>> from comap.lm.tiny import build_tiny
        >>> folder = build_tiny("tiny", ["go to shelf"] * 2, parameters=200_000)
        >>> roles = Roles.open(folder, kind="lora", device="cpu", lora={"targets": ["q_proj"]})
        >>> list(roles.parameters("wm"))[0]
        'model.layers.0.self_attn.q_proj.lora_A.weight'
        >>> roles.train_only("agent")
        >>> [all(w.requires_grad for w in roles.parameters(name).values()) for name in roles.names]
        [True, False, False]
    """

    kind: str = ""

    def __init__(self, names: Sequence[str], name: str, tokenizer: Any):
        self.names = tuple(names)
        self.name = name
        self.tokenizer = tokenizer

    @classmethod
    def open(
        cls,
        models: Mapping[str, str | Path] | str | Path,
        *,
        kind: str,
        roles: Sequence[str] = ROLES,
        lora: Mapping[str, Any] | None = None,
        dtype: str = "auto",
        device: str = "auto",
        seed: int = 0,
        saved: str | Path | None = None,
    ) -> Roles:
        """Load the models.

        Args:
            models: A model's folder or its name on the hub. With ``kind="full"`` perhaps one for each
                role; a teacher's may be left out.
            kind: ``"lora"``: a LoRA adapter for each role on one model. ``"full"``: a model for each
                role.
            roles: Their names: letters, digits, ``_`` and ``-``.
            lora: Of the adapters: ``r`` (8), ``alpha`` (16), ``dropout`` (0.05) and ``targets``,
                names of layers or ``"all-linear"``, the seven projections of a layer (METHODS.md
                1.5). Where adapters are taken from `saved`, it must say the same or be None.
            dtype: ``float32``, ``float64``, ``bfloat16`` or ``float16``. ``auto`` is what training
                needs: single precision for whole models; for a model beneath adapters bfloat16 on a
                GPU and single precision on a CPU. Adapters have single precision at least.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
            seed: With the role's name, it says how a new adapter begins, on every device alike.
            saved: A folder that `save` wrote: weights are taken from there. A teacher that is not in
                it begins as a copy of its student.

        Raises:
            OptionError: An argument has a value that it cannot have, or models do not fit together.
            DataNotFound: A role is not in `saved`.
            LanguageModelError: A model or an adapter cannot be loaded.
            MissingExtra: torch, transformers or peft is not installed.
        """
        if kind not in ("lora", "full"):
            raise OptionError(f"kind must be 'lora' or 'full', not {kind!r}")
        names = checked_names(roles)
        folders = saved_folders(saved, names)
        if kind == "full":
            from .roles_full import FullRoles

            if lora is not None:
                raise OptionError(
                    "lora says how adapters are made; with kind='full' there are none"
                )
            return FullRoles.load_models(models, names, dtype, device, folders)
        from .roles_lora import LoraRoles

        if isinstance(models, Mapping):
            raise OptionError(
                f"with kind='lora' all roles share one model; give its folder or name, not {models!r}"
            )
        return LoraRoles.load_models(models, names, lora, dtype, device, seed, folders)

    # -- what each kind does in its own way ------------------------------------------------------

    @abstractmethod
    def module(self, role: str) -> Any:
        """Return what a trainer trains: the `PeftModel` of all roles, or the role's own model."""

    @abstractmethod
    def base(self, role: str) -> Any:
        """Return the transformers model, without wrappers, that computes for a role."""

    @abstractmethod
    def parameters(self, role: str) -> dict[str, Tensor]:
        """Return a role's own weights by name, in an order and by names that all roles share."""

    @abstractmethod
    def train_only(self, role: str) -> None:
        """Switch a role on and let exactly its weights be trained.

        Raises:
            OptionError: The role is a teacher, which only follows its student.
        """

    @abstractmethod
    def language_model(
        self, *, exact: bool = False, batch_tokens: int = 16_384, batch_rows: int = 64
    ) -> LanguageModel:
        """Return a language model that answers each request by the role that it names.

        A request that names none is answered by the first role.

        Args:
            exact: If False, it shares the weights with training. If True, it has copies of the
                present weights in double precision, so that no text depends on what else is in a
                batch; for small models.
            batch_tokens: The most tokens of a batch, padding and answers included.
            batch_rows: The most sequences of a batch.
        """

    @abstractmethod
    def _switch(self, role: str) -> Iterator[None]:
        """Switch a role on, then what was on before (a generator of one step)."""

    @abstractmethod
    def _write(self, role: str, folder: Path) -> None:
        """Write a role's weights and config into a new folder."""

    # -- what is the same for both ---------------------------------------------------------------

    @contextmanager
    def using(self, role: str, *, training: bool | None = None) -> Iterator[None]:
        """Switch a role on, and put everything back afterwards, whatever happened meanwhile.

        Which adapter was on, what can be trained, and which modules are in training mode is the same
        afterwards. Compute under ``torch.no_grad()`` what shall have no gradient.

        Args:
            role: The role.
            training: If not None, its model is in training mode (True: dropout is on) or in
                evaluation mode (False) meanwhile.

        Raises:
            OptionError: There is no such role.
        """
        self.check(role)
        modules = {id(self.module(name)): self.module(name) for name in self.names}.values()
        flags = [(item, item.training) for module in modules for item in module.modules()]
        grads = [(item, item.requires_grad) for module in modules for item in module.parameters()]
        try:
            with contextmanager(self._switch)(role):
                if training is not None:
                    self.module(role).train(training)
                yield
        finally:
            for item, flag in flags:
                item.training = flag
            for item, flag in grads:
                item.requires_grad_(flag)

    def check(self, role: str) -> None:
        """Raise an `OptionError` unless there is such a role."""
        if role not in self.names:
            raise OptionError(f"there is no role {role!r}; {suggest(str(role), self.names)}")

    def copy(self, source: str, target: str) -> None:
        """Copy one role's weights into another's, exactly.

        Raises:
            OptionError: There is no such role, or they are of different shapes.
        """
        self.check(source)
        self.check(target)
        given, taken = self.parameters(source), self.parameters(target)
        if problem := difference(taken, given):
            raise OptionError(f"{source} cannot be copied into {target}: {problem}")
        fill(taken, given)

    def state(self, role: str) -> dict[str, Tensor]:
        """Return copies of a role's weights in main memory, by the names of `parameters`."""
        self.check(role)
        return {
            name: weight.detach().to("cpu", copy=True).contiguous()
            for name, weight in self.parameters(role).items()
        }

    def load(self, role: str, state: Mapping[str, Tensor]) -> None:
        """Take over weights that `state` returned.

        Raises:
            DataCorrupt: They are not this role's: names or shapes differ.
            OptionError: There is no such role.
        """
        self.check(role)
        own = self.parameters(role)
        if problem := difference(own, state):
            raise DataCorrupt(
                f"expected the weights of {role}, found others: {problem}; they were saved with "
                "other settings, or are damaged: remove them, or open the models as they were"
            )
        fill(own, state)

    def save(self, folder: str | Path, roles: Sequence[str] | None = None) -> Path:
        """Write roles, each into a folder of its name within `folder`.

        An adapter is written as peft does, a whole model as transformers does, so that
        `comap.lm.hf.HFLanguageModel` and other programs load them. Everything is written beside
        `folder` first and then takes its place; what else is in `folder` stays. If the process is
        killed, the folder is the old or the new one, whole (after the next `open` or `save`, which
        puts an old one back that was just moved aside).

        Args:
            folder: Where.
            roles: Which roles; else all.

        Returns:
            The folder.

        Raises:
            OptionError: There is no such role, or the disk does not let it.
        """
        chosen = self.names if roles is None else tuple(roles)
        for role in chosen:
            self.check(role)
        with rewritten(Path(folder)) as fresh, writing(Path(folder)):
            for role in chosen:
                self._write(role, fresh / role)
        return Path(folder)

    def _refuse_teacher(self, role: str) -> None:
        self.check(role)
        if student_of(role) is not None:
            raise OptionError(
                f"{role} is a teacher, which follows its student; train {student_of(role)}"
            )
