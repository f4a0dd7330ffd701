"""The card of trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..agents.run_summary import Tally
from ..trajectory import Trajectory
from .cards import listed, rate, shown, table
from .told import Origin

__all__ = ["About"]


class About:
    """Counts over episodes, and the card that tells of them.

    Example:
        >>> from comap.facts import State
        >>> about = About()
        >>> about.add(Trajectory("id", "task", "dev", "goal", "agent", "Hello.", State()))
        >>> "0.0 % [0.0, 79.3] (n=1)" in "".join(about.parts(Origin()))
        True
    """

    def __init__(self) -> None:
        self._tally = Tally()
        self._last: dict[tuple[str, ...], dict[str, bool]] = {}
        self._count = 0
        self._said: dict[str, set[str]] = {"model": set(), "world model": set()}

    def add(self, episode: Trajectory) -> None:
        """Take note of an episode."""
        self._count += 1
        self._tally.add(episode)
        group = (episode.env_id, episode.split, episode.agent)
        self._last.setdefault(group, {})[episode.task] = episode.success
        for name, value in (
            ("model", episode.settings.get("model")),
            ("world model", episode.world_model),
        ):
            if value:
                self._said[name].add(str(value))

    def front(self, licence: str) -> dict[str, Any]:
        """Return the card's front matter."""
        data = {"split": "episodes", "path": "data/*.parquet"}
        return {
            "license": licence,
            "tags": ["comap", "trajectories", "language-agents"],
            "configs": [{"config_name": "default", "data_files": [data]}],
        }

    def parts(self, origin: Origin) -> Iterator[str]:
        """Yield the card's parts."""
        yield (
            f"{self._count:,} episodes of language agents, recorded by comap. Each row is an episode; "
            "its column `record` is the whole trajectory, a line of JSON, with state facts, calls to "
            "models and notes. Texts are what environments, tools and models wrote: do not trust them."
        )
        rows = [
            (*(shown(part) for part in group), str(len(tasks)), rate(tasks.values()))
            for group, tasks in sorted(self._last.items())
        ]
        heads = ("environment", "split", "agent", "tasks", "success, 95 % interval")
        yield "## Results\n\n" + table(heads, rows)
        summary = self._tally.summary()
        yield table(
            ("", ""),
            [
                ("steps in an episode", f"{summary['steps']['per_episode']:.1f}"),
                ("imagined steps", f"{100 * summary['imagined_steps']:.1f} %"),
                ("faults", listed(f"{k} {n}" for k, n in summary["errors"].items())),
                *((name, listed(said)) for name, said in self._said.items() if said),
            ],
        )
        yield origin.part()
        yield (
            "## Loading\n\n```python\nfrom datasets import load_dataset\n\n"
            'episodes = load_dataset("OWNER/NAME", split="episodes")\n```\n\n'
            "`comap hub load trajectories OWNER/NAME --out DIR` makes a run's folder of it, for "
            "`comap view` and `comap verify`."
        )
