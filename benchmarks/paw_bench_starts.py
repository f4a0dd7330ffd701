"""Where `comap bench paw` plays and writes, and the small policies that its arms begin with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..envs.registered import embedded_tasks
from ..envs.storage import locked
from ..errors import OptionError
from ..trainers.setup import Environments
from .coevolution_models import WarmUp, shown_by_experts, warm_up
from .paw_bench_arms import ALFWORLD

__all__ = ["PaWBench", "described_start", "make_starts", "start_folder"]

_TOLD = "training.json"  # written last: a start that has it is whole
_HOURS = 6 * 3600.0  # that another process may need for a start


@dataclass(frozen=True, kw_only=True)
class PaWBench:
    """Where and on what arms are run.

    Example:
        >>> bench = PaWBench(out="runs/paw", sparse=True)
        >>> bench.place_of("grpo", 1).as_posix(), bench.tokens
        ('runs/paw/sparse/arms/grpo-1', 3000000)
    """

    out: str
    """The folder."""
    env_id: str = ALFWORLD
    """The environment."""
    data_dir: str | None = None
    """Folder with official data; None for embedded tasks."""
    demos: str | None = None
    """File of demonstrations of official tasks; None lets the expert play."""
    sparse: bool = False
    """Whether arms begin with a policy that hardly ever wins (PaW, Figure 4)."""
    starts: str | None = None
    """Folder for the policies to begin with; None for one in `out`."""
    warmup_tokens: int = 8_000_000
    """Tokens of demonstrations that a policy is fine-tuned on first."""
    sparse_tokens: int = 3_000_000
    """The same where it shall hardly ever win."""
    warmup: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `WarmUp`: how many tasks are demonstrated, the policy's size."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of all arms, fields of `PaWTraining`."""
    device: str = "auto"
    """Where the policy computes: ``auto`` or ``cpu``."""

    @property
    def tokens(self) -> int:
        """Tokens that the policy is fine-tuned on first."""
        return self.sparse_tokens if self.sparse else self.warmup_tokens

    @property
    def runs(self) -> Path:
        """Where the folders of runs are; those of sparse rewards lie apart."""
        return Path(self.out, "sparse", "arms") if self.sparse else Path(self.out, "arms")

    def place_of(self, arm: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.runs / f"{arm}-{seed}"

    def in_case(self, sparse: bool) -> PaWBench:
        """Return the same with the usual start, or with the one that hardly ever wins."""
        return replace(self, sparse=sparse)

    def warm(self) -> WarmUp:
        """Return how a policy is warmed up; each number of tokens has a folder of its own."""
        if self.demos is not None and self.data_dir is None:
            raise OptionError(
                "expected the folder of the official data with a file of demonstrations, found no "
                "--data-dir; give it, or leave --demos out and let the expert play embedded tasks"
            )
        place = Path(self.starts or Path(self.out, "starts")) / f"{self.tokens}-tokens"
        told: dict[str, Any] = {"data_dir": self.data_dir, "demos": self.demos, **self.warmup}
        if "train_split" in self.settings:
            told["split"] = self.settings["train_split"]
        if self.env_id != ALFWORLD:  # where the usual expert wins less with what was seen alone
            told = {"env_id": self.env_id, "expert": None, **told}
        return WarmUp(str(place), policy_tokens=self.tokens, **told)

    def environments(self, steps: int) -> Environments:
        """Return what makes the environments of a run.

        Args:
            steps: The step limit of episodes.
        """
        told: dict[str, Any] = embedded_tasks(self.env_id)
        if self.data_dir is not None:
            told = {"source": "official", "data_dir": self.data_dir}
        return Environments(self.env_id, {**told, "max_episode_steps": steps})


def make_starts(bench: PaWBench, seeds: Sequence[int]) -> list[Path]:
    """Make the policies to begin with, where they are not there yet, and return their folders.

    Several processes may do this at once: each policy is made by one of them.

    Args:
        bench: Where, on what and how long.
        seeds: A policy for each.

    Raises:
        OptionError: A recorded demonstration does not win, or its games are not there.
        DownloadError: Another process makes one for hours.
    """
    warm = bench.warm()
    place = Path(warm.out)
    missing = [seed for seed in seeds if not (place / f"policy-{seed}" / _TOLD).is_file()]
    if missing:
        place.mkdir(parents=True, exist_ok=True)
        shown = shown_by_experts(warm)
        for seed in missing:
            with locked(place / f"policy-{seed}.lock", wait=_HOURS):
                warm_up("policy", seed, warm, shown)
    return [start_folder(bench, seed) for seed in seeds]


def start_folder(bench: PaWBench, seed: int) -> Path:
    """Return the folder of the policy that all arms of a seed begin with.

    Raises:
        OptionError: It is not there.

    Example:
        >>> start_folder(PaWBench(out="nowhere"), 3)
        Traceback (most recent call last):
        comap.errors.OptionError: expected a warmed-up policy in \
nowhere/starts/8000000-tokens/policy-3, found none; make_starts makes it
    """
    folder = Path(bench.warm().out) / f"policy-{seed}"
    if not (folder / _TOLD).is_file():
        raise OptionError(
            f"expected a warmed-up policy in {folder.as_posix()}, found none; make_starts makes it"
        )
    return folder


def described_start(folder: Path) -> dict[str, Any]:
    """Return what makes a start the start it is: how it was made, and a hash of its weights."""
    from ..trainers.setup_models import weights_hash

    told = json.loads((folder / _TOLD).read_bytes())
    wanted = ("parameters", "rows", "trained_tokens", "epochs")
    return {
        "name": f"{folder.parent.name}/{folder.name}",
        "sha256": weights_hash(folder),
        **{name: told.get(name) for name in wanted},
        "cpu_seconds": told.get("cpu_seconds"),
    }
