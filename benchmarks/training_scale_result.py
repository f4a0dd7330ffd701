"""What `comap bench training-scale` is asked to measure, and what its result tells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, suggest
from ..trainers.config import CoMapTraining, preset
from .record import circumstances, spread
from .training_scale_parts import ARCHITECTURES

if TYPE_CHECKING:
    from .training_scale_phases import Asked, Phases, Trained

__all__ = ["CHECKPOINTING", "Findings", "ScaleConfig", "about", "result_of"]

CHECKPOINTING = {
    "both": {"checkpointing": True, "no_checkpointing": False},
    "on": {"checkpointing": True},
    "off": {"no_checkpointing": False},
}
"""By what is asked: which ways there are, and whether activations are computed again in each."""

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "gymnasium", "numpy")
_MOST = 2.2  # WMSD's training, in units of plain cross-entropy's; its rollouts come on top
_DEVICES = ("auto", "cpu", "cuda")  # trainers take the first GPU
_ROWS, _LENGTH = 16, 2048  # what shall fit
_JUDGED = "qwen3-4b"
_WHAT = (
    "CoMap's training with random weights and the preset paper, of rows as long as its settings let "
    "them be. training: each phase learns the same number of rows; seconds_per_1000 and "
    "tokens_per_second are of each update but a training's first, read_per_row counts the tokens of "
    "all sequences of a row that pass through student and teacher, tokens_per_second only those of "
    "its prompt and reply. warm_up is TRL's loss, world_model_ce the same rows with comap's, "
    "world_model_wmsd these with self-distillation on texts that the student wrote before. wmsd "
    "ratio: the seconds of world_model_wmsd divided by those of world_model_ce, which took turns in "
    "being first; student_rollouts, the writing of those texts, is not in it. Random weights hardly "
    "ever end a text, so that all texts have all the tokens they may have. decisions: what is asked "
    "for a decision in a training rollout, all decisions at once; environments are not in it. fits: "
    "whether two updates of one micro-batch go through in which each prompt, reply and text has all "
    "its tokens; WMSD has two sequences and the teacher's for a row. Peaks are the most memory of "
    "tensors on the GPU. On a CPU no peak is measured, and seconds are processor seconds."
)


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """What is measured.

    Raises:
        OptionError: There is no such architecture, or a number is too small.

    Example:
        >>> ScaleConfig(architecture="tiny").rows
        48
    """

    architecture: str = "qwen3-4b"
    """Shape of the model: qwen3-4b, qwen3-0.6b or tiny."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu or cuda."""
    max_length: int = 2048
    """Most tokens of prompt and reply (CoMap, Table 5)."""
    predict_tokens: int = 192
    """Tokens of a prediction (CoMap, Table 5)."""
    target_tokens: int = 60
    """About how many tokens an observation has."""
    batch_rows: int = 1
    """Rows of a micro-batch (CoMap, Table 5)."""
    accumulate: int = 16
    """Micro-batches of an update (CoMap, Table 5)."""
    updates: int = 2
    """Updates of each training that are timed; one more comes before them."""
    repeats: int = 3
    """How often everything is measured."""
    decisions: int = 32
    """Decisions that are asked for at once."""
    fit_rows: int = 16
    """Rows of the micro-batch that shall fit; 0 leaves that out."""
    batch_tokens: int = 16_384
    """Most tokens of a batch when texts are written."""
    checkpointing: str = "both"
    """Whether activations are computed again on the way back: on, off, or both in turns."""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            hint = suggest(self.architecture, ARCHITECTURES)
            raise OptionError(f"there is no architecture {self.architecture!r}; {hint}")
        for name, known in (("checkpointing", tuple(CHECKPOINTING)), ("device", _DEVICES)):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"{name} cannot be {value!r}; {suggest(str(value), known)}")
        for part in fields(self):
            value, least = getattr(self, part.name), int(part.name != "fit_rows")
            if isinstance(part.default, int) and (type(value) is not int or value < least):
                raise OptionError(
                    f"{part.name} must be a whole number of at least {least}, not {value!r}"
                )

    @property
    def rows(self) -> int:
        """Rows of a training."""
        return self.batch_rows * self.accumulate * (self.updates + 1)

    def training(self) -> CoMapTraining:
        """Return the settings of the training that is measured."""
        names = ("max_length", "predict_tokens", "batch_rows", "accumulate")
        return preset("paper", **{name: getattr(self, name) for name in names})


@dataclass
class Findings:
    """What was measured so far.

    Attributes:
        trained: By way and phase, what each training took.
        ratios: By way, WMSD's seconds divided by plain cross-entropy's.
        rollouts: What the student's texts took.
        decisions: By what it was for, what was asked for decisions.
        fits: By way and phase, whether the large micro-batch went through.

    Example:
        >>> Findings().rollouts
        []
    """

    trained: dict[str, dict[str, list[Trained]]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rollouts: list[Asked] = field(default_factory=list)
    decisions: list[dict[str, Asked]] = field(default_factory=list)
    fits: dict[str, dict[str, Any]] = field(default_factory=dict)


def about(config: ScaleConfig, phases: Phases) -> dict[str, Any]:
    """Return what the result says before anything was measured.

    Args:
        config: What is measured.
        phases: The models and rows.
    """
    import torch

    told = circumstances(_PACKAGES)
    memory = None
    if phases.device.type == "cuda":
        card = torch.cuda.get_device_properties(phases.device)
        told["hardware"] |= {"gpu": card.name, "gpu_bytes": card.total_memory}
        told["versions"]["cuda"] = torch.version.cuda
        memory = torch.cuda.memory_allocated(phases.device)
    base = [w for name, w in phases.roles.base("wm").named_parameters() if ".lora_" not in name]
    adapter = list(phases.roles.parameters("wm").values())
    rows_told = phases.examples["world_model_wmsd"]
    lengths: dict[str, Sequence[int]] = {
        "world_model_prompt": [len(row.prompt) for row in rows_told],
        "world_model_reply": [len(row.answer) for row in rows_told],
        "teacher_prompt": [len(row.teacher) for row in rows_told],
        "policy_prompt": [len(row.prompt) for row in phases.examples["policy"]],
        "policy_reply": [len(row.answer) for row in phases.examples["policy"]],
    }
    return told | {
        "what": _WHAT,
        "settings": asdict(config) | {"device": phases.device.type},
        "training_settings": phases.config.describe(),
        "model": {
            "architecture": config.architecture,
            "weights": "random",
            "dtype": str(base[0].dtype).removeprefix("torch."),
            "parameters": sum(weight.numel() for weight in base),
            "base_bytes": _bytes(base),
            "adapters": list(phases.roles.names),
            "adapter_parameters": sum(weight.numel() for weight in adapter),
            "adapter_bytes": _bytes(adapter),
            "optimizer_bytes": 2 * _bytes(adapter),  # AdamW's two moments
            "allocated_bytes": memory,
        },
        "tokens": {name: spread([float(n) for n in some]) for name, some in lengths.items()},
    }


def _bytes(weights: Sequence[Any]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


def result_of(config: ScaleConfig, found: Findings, device: str) -> dict[str, Any]:
    """Return what was measured, and which goals are met.

    Args:
        config: What is measured.
        found: What was found.
        device: ``cuda`` or ``cpu``.
    """
    decisions = config.decisions
    seconds = [sum(asked.seconds for asked in one.values()) for one in found.decisions]
    written = [sum(asked.written for asked in one.values()) for one in found.decisions]
    return {
        "peak_memory_measured": device == "cuda",
        "training": {
            way: {name: _told(done) for name, done in phases.items()}
            for way, phases in found.trained.items()
        },
        "student_rollouts": _told_texts(
            [(one.seconds, one.written) for one in found.rollouts],
            max(config.rows, decisions),
            [one.peak_bytes for one in found.rollouts],
        ),
        "decisions": _told_texts(
            list(zip(seconds, written, strict=True)),
            decisions,
            [asked.peak_bytes for one in found.decisions for asked in one.values()],
        )
        | {
            "seconds_per_1000_by_call": {
                name: spread([1000 * one[name].seconds / decisions for one in found.decisions])
                for name in found.decisions[0]
            }
        },
        "wmsd_ratio": {way: spread(ratios) for way, ratios in found.ratios.items()},
        "fits": found.fits,
        "goals": _goals(config, found, device),
    }


def _told(done: Sequence[Trained]) -> dict[str, Any]:
    """Return a training's numbers over all repeats."""
    each = [(item, seconds) for item in done for seconds in item.seconds]
    rows = done[0].rows / len(done[0].seconds)
    return {
        "seconds_per_1000": spread([1000 * seconds / rows for _, seconds in each]),
        "tokens_per_second": spread([item.tokens / sum(item.seconds) for item in done]),
        "read_per_row": done[0].read / done[0].rows,
        "peak_bytes": _most([item.peak_bytes for item in done]),
        "resident_bytes": _most([item.resident_bytes for item in done]),
    }


def _told_texts(
    done: Sequence[tuple[float, int]], count: int, peaks: Sequence[int | None]
) -> dict[str, Any]:
    """Return what the writing of texts took over all repeats."""
    return {
        "seconds_per_1000": spread([1000 * seconds / count for seconds, _ in done]),
        "written_tokens_per_second": spread([written / seconds for seconds, written in done]),
        "peak_bytes": _most(peaks),
    }


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _goals(config: ScaleConfig, found: Findings, device: str) -> dict[str, Any]:
    """Return the goals with what was found; met is None where this run cannot tell."""
    judged = device == "cuda" and config.architecture == _JUDGED
    way = next(iter(CHECKPOINTING[config.checkpointing]))
    ratio = spread(found.ratios[way])["median"]
    enough = config.fit_rows >= _ROWS and config.max_length >= _LENGTH
    fits = [one["fits"] for one in found.fits.get(way, {}).values()]
    return {
        "memory": {
            "goal": f"one GPU holds {_JUDGED}, three adapters and the optimizer with room for "
            f"micro-batches of {_ROWS} rows of {_LENGTH} tokens",
            "met": all(fits) if judged and enough else None,
        },
        "wmsd": {
            "goal": f"training with WMSD takes at most {_MOST} times what plain cross-entropy "
            "takes, its rollouts apart",
            "ratio": ratio,
            "met": ratio <= _MOST if judged else None,
        },
    }
