"""``comap play`` and ``comap export``: a person's episode, and recorded episodes in other formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..agents.convert import to_dataset, to_sharegpt
from ..agents.run import RUN, TRAJECTORIES, read_run, recorded_briefing
from ..envs import restore, snapshot
from ..envs.registry import env_class
from ..errors import DataNotFound, OptionError, needs_extra
from ..jsonl import replacing_file
from ..trainers.setup import Environments
from ..trajectory import Trajectory, read_trajectories
from .options import WORD, Command, EnvOptions
from .run import check_out

if TYPE_CHECKING:
    import gymnasium

_HELP = """\
Type an action, or its number in the list of: actions
  facts    all facts that are known
  actions  the actions that do something now
  undo     take the last action back
  quit     stop"""


@dataclass(frozen=True, kw_only=True)
class PlayByHand(EnvOptions):
    """Play a task yourself, in the terminal: observations, and the facts that each action changes."""

    example: ClassVar[str] = "comap play --env comap/ALFWorld-v0"

    split: str | None = None
    """Split (default: the environment's hardest test split)."""
    task: str | None = None
    """Id of the task (default: one that the seed selects)."""
    seed: int = 0
    """Seed of the task's selection and of the environment."""

    def run(self) -> int:
        options = self.env_options(split="--split")
        split = self.split or next(reversed(env_class(self.env).test_splits), None)
        reset_options = None if self.task is None else {"task": self.task}

        with closing(Environments(self.env, options)(split)) as env:
            observation, info = env.reset(seed=self.seed, options=reset_options)
            print(f"task: {info['task']}\ngoal: {info['goal']}\n\n{_HELP}\n\n{observation}")
            _Game(env, info).play()
        return 0


class _Game:
    """An episode under way, and the snapshots to go back to."""

    def __init__(self, env: gymnasium.Env[str, str], info: dict[str, Any]):
        self.env = env
        self.info = info
        self.episode_return = 0.0
        self.has_ended = False
        self.snapshots: list[tuple[Any, float]] = []

    def play(self) -> None:
        """Read lines to the episode's end, or to the end of the input."""
        while not self.has_ended:
            try:
                line = input("\n> ").strip()
            except EOFError:
                line = "quit"
            if line == "quit":
                break
            if line:
                self.answer(line)

        if self.info["success"]:
            outcome = "success"
        else:
            outcome = "failed" if self.has_ended else "not finished"
        score = f"score {self.info['score']:g}, return {self.episode_return:g}"
        print(f"\n{outcome} after {self.info['step']} steps: {score}")

    def answer(self, line: str) -> None:
        """Carry out a command, an action, or the number of an action."""
        actions = self.info["admissible_actions"] or ()
        if line == "facts":
            print(self.info["facts"].to_text() or "no facts are known")
        elif line == "actions":
            lines = [f"{number:>4}  {action}" for number, action in enumerate(actions, 1)]
            print("\n".join(lines) or "any text is an action here; there is no list")
        elif line == "undo":
            self.undo()
        # A number may be an action itself, such as an answer: that comes first.
        elif line.isdecimal() and line not in actions and 1 <= int(line) <= len(actions):
            print(f"> {actions[int(line) - 1]}")
            self.step(actions[int(line) - 1])
        else:
            self.step(line)

    def step(self, action: str) -> None:
        """Take an action, and print what is observed and which facts changed."""
        self.snapshots.append((snapshot(self.env), self.episode_return))
        observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.episode_return += float(reward)
        self.has_ended = terminated or truncated

        print("\n".join(filter(None, (observation, self.info["delta"].to_text()))))
        if "error" in self.info:
            print(f"the environment failed: {self.info['error']}")

    def undo(self) -> None:
        observation = "there is no action to take back"
        if self.snapshots:
            moment, self.episode_return = self.snapshots.pop()
            observation, self.info = restore(self.env, moment)
        print(observation)


def _have_unknown(path: Path) -> bool:
    """Return whether a file has episodes of whose outcome nothing is known."""
    return any(not episode.has_outcome for episode in read_trajectories(path))


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Convert recorded episodes to chat messages, to ShareGPT's format or to a log of Inspect.

    The file has a row for each episode: messages (the conversations that TRL trains on), sharegpt, or
    parquet (messages as Parquet). It is Parquet if its name ends in .parquet, else JSON lines. Facts
    and the rewards of steps stay in the run. A log of Inspect, for inspect view, ends in .eval.
    """

    example: ClassVar[str] = "comap export runs/first --to messages --out first.jsonl"

    source: Path = field(metadata=WORD)
    """Folder of a run, or a file of trajectories."""
    to: Literal["messages", "sharegpt", "parquet", "inspect"]
    """Format: messages, sharegpt, parquet or inspect."""
    out: Path
    """File to write."""
    successes: bool = False
    """Only episodes that succeeded."""

    def run(self) -> int:
        check_out(self.out, is_file=True)
        if self.out.exists():
            raise OptionError(f"expected a new file as --out, found {self.out}; name another")

        # An episode that failed before its first step has nothing to learn from.
        path = self.source / TRAJECTORIES if self.source.is_dir() else self.source
        episodes = [
            episode
            for episode in read_trajectories(path)
            if episode.steps and (episode.success or not self.successes)
        ]
        if not episodes and self.successes and _have_unknown(path):
            raise DataNotFound(
                f"expected successful episodes in {path}, found imported ones of which nobody recorded how "
                "they ended; leave --successes out"
            )
        if not episodes:
            kind = "successful episodes" if self.successes else "episodes"
            raise DataNotFound(f"expected {kind} with steps in {path}, found none")

        if self.to == "inspect":
            self._write_log(episodes, path.parent)
            return 0

        briefing = recorded_briefing(path.parent)
        rows: Any
        if self.to == "sharegpt":
            rows = to_sharegpt(episodes, briefing)
        else:
            rows = to_dataset(episodes, briefing=briefing)

        with replacing_file(self.out) as file:
            if self.to == "parquet" or self.out.suffix == ".parquet":
                with needs_extra("train", "a Parquet file"):
                    import pyarrow
                    from pyarrow import parquet
                # Messages come as a data set of `datasets`, which holds a table already.
                is_list = isinstance(rows, list)
                table = pyarrow.Table.from_pylist(rows) if is_list else rows.data.table
                parquet.write_table(table, file)
            else:
                file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows)
        print(f"{self.out}: {len(rows):,} rows, one for each episode")
        return 0

    def _write_log(self, episodes: Sequence[Trajectory], folder: Path) -> None:
        """Write a log of Inspect; what `run.json` beside the episodes says goes with them."""
        from ..integrations.inspect_logs import write_log

        record = read_run(folder / RUN) if (folder / RUN).is_file() else None
        write_log(episodes, self.out, record)
        print(f"{self.out}: {len(episodes):,} samples; look at it with: inspect view")
