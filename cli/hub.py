"""``comap hub push | load``: trajectories and models to and from the Hugging Face Hub."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..errors import OptionError
from .options import WORD, Command


@dataclass(frozen=True, kw_only=True)
class Push(Command):
    """Push a run's trajectories as a data set, or adapters and small models, with a card.

    The token is that of the environment variable HF_TOKEN.
    """

    example: ClassVar[str] = "comap hub push trajectories runs/first me/first --licence cc-by-4.0"

    kind: Literal["trajectories", "model"] = field(metadata=WORD)
    """trajectories or model"""
    source: Path = field(metadata=WORD)
    """a run's folder; of models, theirs or a training's"""
    target: str = field(metadata=WORD)
    """OWNER/NAME on the Hub, or local:DIR for a folder in its place"""
    licence: str
    """yours to choose: apache-2.0, cc-by-4.0, ..."""
    title: str | None = None
    """heading of the card (default: the source's name)"""
    private: bool = False
    """a new repository is private"""
    evaluation: Path | None = None
    """of a model: a run that it played, for the card"""

    def run(self) -> int:
        from ..integrations.hub import push_model, push_trajectories

        given = dict(vars(self))
        kind, evaluation = given.pop("kind"), given.pop("evaluation")
        if kind == "model":
            pushed = push_model(**given, evaluation=evaluation)
        elif evaluation is not None:
            raise OptionError("--evaluation is about models; leave it out")
        else:
            pushed = push_trajectories(**given)
        if pushed.skipped:
            print(f"left out: {', '.join(pushed.skipped)}"[:2000], file=sys.stderr)
        print(f"{pushed.location}: {pushed.files} files, {pushed.size:,} bytes")
        print(f"revision: {pushed.revision}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Load(Command):
    """Load what comap pushed into a new folder.

    Names, sizes, hashes and kinds are checked, and nothing is unpickled.
    """

    example: ClassVar[str] = "comap hub load model me/agent --out models/agent"

    kind: Literal["trajectories", "model"] = field(metadata=WORD)
    """trajectories or model"""
    source: str = field(metadata=WORD)
    """OWNER/NAME on the Hub, or local:DIR for a folder in its place"""
    out: Path
    """the folder to make"""
    revision: str | None = None
    """a commit, branch or tag"""
    most_bytes: int | None = None
    """the most to load (default: 64 GiB)"""

    def run(self) -> int:
        from ..integrations.hub import load_model, load_trajectories

        load = load_model if self.kind == "model" else load_trajectories
        limits: dict[str, Any] = {} if self.most_bytes is None else {"most_bytes": self.most_bytes}
        loaded = load(self.source, self.out, revision=self.revision, **limits)
        print(
            f"{loaded.path}: {loaded.size:,} bytes of {loaded.location}\nrevision: {loaded.revision}"
        )
        return 0
