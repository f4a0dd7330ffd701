"""``comap data list | get | verify | path | build | import``: data for environments, and of others."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..benchmarks.tables import Table, one_line
from ..envs.storage import Listener, Progress, comap_home, data_path
from ..errors import OptionError
from .options import WORD, Command
from .run import check_out


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the official data: what exists, its license, and whether it is on this machine."""

    example: ClassVar[str] = "comap data list web"

    data_set: str | None = field(default=None, metadata=WORD)
    """A benchmark (alfworld, scienceworld, webshop, stabletoolbench, searchqa, web) or a data set
    (default: all)."""

    def run(self) -> int:
        from ..benchmarks.official import is_here, steps_of
        from ..envs.datasets import data_sets_of

        for data_set in data_sets_of(self.data_set):
            state = "not here"
            if is_here(data_set):
                state = "here"
            place = ""
            if not data_set.package:
                place = f" in {data_set.place}"
            print(f"{data_set.name}: {data_set.title}")
            print(f"  license: {data_set.license}\n    as read at {data_set.license_source}")
            print(f"  from {data_set.homepage}, size: {data_set.size}")
            print(f"  {state}{place}")
            if state == "not here":
                steps = "\n    ".join(steps_of(data_set))
                print(f"  to get it:\n    {steps}\n  without it: {data_set.fallback}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Get(Command):
    """Download a data set, and compare its content with what was published.

    Files that are there already are not downloaded again, so that the same command resumes. Data sets
    at no address that could be downloaded so have steps instead, which are printed.
    """

    example: ClassVar[str] = "comap data get alfworld"

    data_set: str = field(metadata=WORD)
    """Name of the data set, as in comap data list."""
    release: str | None = None
    """Another release, such as json_2.1.3, which alfworld-download takes; its content is not compared."""
    mirror: str | None = None
    """Address of a folder that has the archive or the files."""
    force: bool = False
    """Replace an installed data set."""
    allow_changed: bool = False
    """Accept other content than what was published."""
    timeout: float = 30.0
    """Maximum number of seconds without an answer from the server."""

    def run(self) -> int:
        from ..envs.data import get
        from ..envs.datasets import find

        # On lines of their own they can be copied; an error is one line.
        data_set = find(self.data_set)
        if data_set.steps and not (data_set.url or data_set.files):
            reason = "is at no address that could be downloaded by one command; its steps:"
            print(f"comap: {data_set.name} {reason}", *data_set.steps, sep="\n", file=sys.stderr)
            return 2

        with shown_progress() as progress:
            print(get(**vars(self), progress=progress))
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify(Command):
    """Check the official data on this machine: files, numbers, checksums, and that a task loads.

    Ends with status 1 where something differs, or something is missing that official tasks need; the
    steps that get it are printed. Needs no network.
    """

    example: ClassVar[str] = "comap data verify alfworld"

    former: ClassVar[Mapping[str, str]] = {"data_dir": "--path"}

    data_set: str | None = field(default=None, metadata=WORD)
    """A benchmark (alfworld, scienceworld, webshop, stabletoolbench, searchqa, web) or a data set
    (default: all)."""
    data_dir: Path | None = None
    """Folder to check, of one data set (default: its place on this machine)."""

    def run(self) -> int:
        """Check each; return 1 where something differs or is missing."""
        from ..benchmarks.official import check
        from ..envs.datasets import data_sets_of, find

        data_sets = data_sets_of(self.data_set)
        if self.data_dir is not None:
            if self.data_set is None:
                raise OptionError("--data-dir is the folder of one data set; name that as well")
            data_sets = [find(self.data_set)]

        are_right = True
        with shown_progress() as progress:
            for data_set in data_sets:
                checked = check(data_set, self.data_dir, progress=progress)
                print(checked)
                are_right = are_right and checked.ok
        return int(not are_right)


@dataclass(frozen=True, kw_only=True)
class Where(Command):
    """Print the folder of a data set; without a name, the folder of all."""

    data_set: str | None = field(default=None, metadata=WORD)
    """Name of the data set."""

    def run(self) -> int:
        from ..benchmarks.official import steps_of
        from ..envs.datasets import find

        if self.data_set is None:
            print(comap_home())
            return 0
        data_set = find(self.data_set)
        path = data_set.place
        print(path)
        if not path.exists():
            steps = "\n  ".join(steps_of(data_set))
            print(f"nothing there yet; to get it:\n  {steps}", file=sys.stderr)
        return 0


@dataclass(frozen=True, kw_only=True)
class BuildWebShop(Command):
    """Build a WebShop catalog from the files that its authors published."""

    example: ClassVar[str] = "comap data build webshop WebShop/data"

    source: Path = field(metadata=WORD)
    """Folder with WebShop's files."""
    out: Path | None = None
    """Folder to write (default: comap's)."""
    seed: int = 0
    """Seed of the prices and price caps that are drawn."""
    nouns: Literal["auto", "spacy", "lexical"] = "auto"
    """How to find the nouns of titles: auto, spacy or lexical."""
    products: Path | None = None
    """File of products, instead of the one in SOURCE."""
    instructions: Path | None = None
    """File of instructions."""
    human_instructions: Path | None = None
    """File of instructions written by people."""
    prices: Path | None = None
    """File of prices."""
    price_caps: Path | None = None
    """File of price caps."""
    title_nouns: Path | None = None
    """File of the nouns of titles."""

    def run(self) -> int:
        from ..envs.webshop.build import build_catalog, find_sources

        settings: dict[str, Any] = {
            "out": self.out or data_path("webshop"),
            "seed": self.seed,
            "nouns": self.nouns,
        }
        named_files: dict[str, Any] = {
            name: path
            for name, path in vars(self).items()
            if name not in settings and name != "source"
        }
        sources: dict[str, Any] = dict(find_sources(self.source, named_files))

        with shown_progress() as progress:
            print(build_catalog(**sources, **settings, progress=progress))
        return 0


@dataclass(frozen=True, kw_only=True)
class BuildSearchQA(Command):
    """Build a search index of a corpus."""

    example: ClassVar[str] = "comap data build searchqa wiki-18.jsonl --out wiki"

    corpus: Path = field(metadata=WORD)
    """JSON lines, each {"id": ..., "contents": ...}."""
    out: Path | None = None
    """Folder to write (default: comap's)."""
    kind: str = "tantivy"
    """Kind of the index: tantivy (for every size), fts5 (needs no extra; small corpora) or dense."""
    encoder: str | None = None
    """Model of a dense index: a name or a folder."""
    faiss: str | None = None
    """FAISS index of a dense index, such as Flat or HNSW64."""

    def run(self) -> int:
        from ..envs.searchqa.index import build_index
        from ..envs.searchqa.tasks import index_home

        options = vars(self) | {"out": self.out or index_home()}
        with shown_progress() as progress:
            print(build_index(**options, progress=progress))
        return 0


@dataclass(frozen=True, kw_only=True)
class Import(Command):
    """Read trajectories that others published into a run's folder, with facts.

    Formats: word2world (Word2World's rows for world models), agenttraj (AgentTraj-L of AgentGym), sharegpt
    (what comap export writes), eto (ETO's expert trajectories), adp (the Agent Data Protocol). Files are
    JSON, JSON lines, both also as .gz, or Parquet. The folder is for comap view, comap export, comap score
    world-model --transitions and comap train sft --demos. Exit status: 0, or 1 if a file could not be read
    to its end.
    """

    example: ClassVar[str] = "comap data import agenttraj alfworld_train.json --out runs/agenttraj"

    files: tuple[str, ...] = field(metadata=WORD)
    """Published files; the format's name may stand before them (default: by each file's first row)."""
    out: Path
    """Folder to write; new or empty. It appears whole or not at all."""
    env: str | None = None
    """Environment of rows that do not tell theirs; rows of others are refused."""
    split: str | None = None
    """Split of all rows (default: as rows, names of files or publishers say)."""
    license: str | None = None
    """License of the data, as you have it, for the record."""

    def run(self) -> int:
        """Import the files, and print what came of their rows; return 1 where a file ends too early."""
        from ..benchmarks.display import print_table
        from ..benchmarks.record import circumstances
        from ..integrations.published.formats import FORMATS
        from ..integrations.published.importing import import_files, unreadable_files

        check_out(self.out)
        # The first word is a format, or already a file.
        has_format = self.files[0] in FORMATS
        files = self.files[1:] if has_format else self.files
        if not files:
            raise OptionError(f"expected files after {self.files[0]}, found none; name some")

        with shown_progress() as progress:
            record = import_files(
                files,
                self.out,
                format=self.files[0] if has_format else None,
                env_id=self.env,
                split=self.split,
                license=self.license,
                about=circumstances(),
                progress=progress,
            )

        self._print_files(record, is_told=not has_format)
        print_table(import_table(record))
        for line in refusals(record):
            print(line)
        unread = unreadable_files(record)
        for line in unread:
            print(f"not read to its end: {line}", file=sys.stderr)
        print(f"\n{self.out}: look at it with: comap view {self.out}")
        return 1 if unread else 0

    def _print_files(self, record: Mapping[str, Any], is_told: bool) -> None:
        for file in record["files"]:
            kind = record["formats"].get(file["format"], {}).get("title", "no rows")
            told = " (told by its first row)" if is_told else ""
            print(f"{one_line(file['name'], 80)}: {kind}{told}, {file['rows']:,} rows")
        for data in record["formats"].values():
            print(f"from {data['source']}; license as published: {data['license_as_published']}")


def import_table(record: Mapping[str, Any]) -> Table:
    """Return what came of the rows of each environment as a table."""
    rows = []
    for env_id, counts in record["environments"].items():
        refused = sum(entry["rows"] for entry in counts["refused"].values())
        outcomes = "unknown"
        if counts["known_outcomes"]:
            outcomes = f"{counts['successes']:,} of {counts['known_outcomes']:,} succeeded"
        shares = [
            "" if counts[name] is None else f"{100 * counts[name]:.1f} %"
            for name in ("read_share", "known_share")
        ]
        numbers = (counts["rows"], refused, counts["steps"])
        rows.append((one_line(env_id, 60), *numbers, *shares, outcomes))

    columns = ("environment", "rows", "refused", "steps", "facts read", "actions known", "outcome")
    note = "facts read: of observations after an action, those whose text the canonicalizer reads."
    return Table("imported", columns, tuple(rows), note)


def refusals(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words why rows were refused, and what else a reader of the data should know."""
    for env_id, counts in record["environments"].items():
        name = one_line(env_id, 60)
        for reason, entry in counts["refused"].items():
            place = one_line(entry["first"], 120)
            yield f"refused, {name}: {entry['rows']:,} rows: {one_line(reason, 200)} (first: {place})"
        for key, text in _NOTED.items():
            if counts[key]:
                yield f"{name}: {counts[key]:,} {text}"


_NOTED = {
    "unobserved": "actions of which nothing that followed is recorded: world models do not learn them",
    "without_action": "replies without an action: policies do not learn them",
    "repeated_ids": "ids that were there before; they got a number",
}


@contextmanager
def shown_progress() -> Iterator[Listener]:
    """Show progress of downloads and builds: bars on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from ..benchmarks.tables import visible

    # Bars are drawn with control characters, which `VisibleStream` would write out as text.
    terminal = getattr(sys.stderr, "unfiltered", sys.stderr)
    console = Console(file=terminal, soft_wrap=True, highlight=False, markup=False)
    with Bars(console=console, disable=not console.is_terminal) as bars:
        bar_of_stage: dict[str, TaskID] = {}
        last_milestone = ("", -1)

        # A log file shows no bars: it gets few lines, which a reader can follow with tail -f.
        def show_line(stage: str, amount: int, total: int | None) -> None:
            """Print a line at each twentieth, or at each 32 MiB where the end is unknown."""
            nonlocal last_milestone
            number = amount >> 25 if total is None else 20 * amount // max(total, 1)
            if (stage, number) == last_milestone:
                return
            last_milestone = (stage, number)
            text = f"{amount:,}" if total is None else f"{5 * number} %"
            console.print(f"{stage}: {text}")

        def show(progress: Progress) -> None:
            stage, amount, total, note = progress
            if note:
                console.print(visible(f"{stage}: {note}"))
            elif console.is_terminal:
                if stage not in bar_of_stage:
                    bar_of_stage[stage] = bars.add_task(stage, total=total)
                bars.update(bar_of_stage[stage], completed=amount, total=total)
            else:
                show_line(stage, amount, total)

        yield show
