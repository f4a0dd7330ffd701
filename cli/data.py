"""``comap data list | get | verify | path | build``: the data that environments play on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..envs.storage import Listener, Progress, comap_home, data_path
from .options import WORD, Command


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the data sets, and whether they are installed."""

    def run(self) -> int:
        from ..envs.data import catalogue, is_installed

        for name, data_set in catalogue().items():
            state = "here" if is_installed(name) else f"not here; run: comap data get {name}"
            print(f"{name}: {data_set.title}, {data_set.size}, license {data_set.license}")
            print(f"  from {data_set.url}\n  in {data_path(name)} ({state})")
        return 0


@dataclass(frozen=True, kw_only=True)
class Get(Command):
    """Download a data set, and compare its content with what it should be."""

    example: ClassVar[str] = "comap data get alfworld"

    data_set: str = field(metadata=WORD)
    """Name of the data set, as in comap data list."""
    release: str | None = None
    """Another release, such as json_2.1.3, which alfworld-download takes; its content is not compared."""
    mirror: str | None = None
    """Address of a folder that has the archive."""
    force: bool = False
    """Replace an installed data set."""
    allow_changed: bool = False
    """Accept an archive with another checksum."""
    timeout: float = 30.0
    """Maximum number of seconds without an answer from the server."""

    def run(self) -> int:
        from ..envs.data import get

        with shown_progress() as progress:
            print(get(**vars(self), progress=progress))
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify(Command):
    """Check the files of a data set, or of a catalog or index that was built here."""

    example: ClassVar[str] = "comap data verify alfworld"

    former: ClassVar[Mapping[str, str]] = {"data_dir": "--path"}

    data_set: str = field(metadata=WORD)
    """Name of the data set, or of what was built: webshop, searchqa."""
    data_dir: Path | None = None
    """Folder to check (default: comap's)."""

    def run(self) -> int:
        """Check it; return 1 where something differs."""
        # What is built here has a manifest of its own, and is in no list of downloads.
        if self.data_set in ("searchqa", "webshop"):
            return self._built()
        from ..envs.data import verify

        report = verify(self.data_set, self.data_dir)
        print(report)
        if not report.ok and self.data_dir is None:
            print(f"to get it anew, run: comap data get {self.data_set} --force", file=sys.stderr)
        return 0 if report.ok else 1

    def _built(self) -> int:
        """Check a catalog or an index by the manifest that was written with it."""
        if self.data_set == "searchqa":
            from ..envs.searchqa.index import check_index
            from ..envs.searchqa.tasks import index_home

            folder = self.data_dir or index_home()
            manifest = check_index(folder)
        else:
            from ..envs.webshop.catalog import Catalog, check_files

            folder = self.data_dir or data_path("webshop")
            manifest = Catalog.open(folder).manifest
            check_files(folder, manifest)

        # Folders that were built by early versions list no digests.
        digests = manifest.get("digests") or {}
        if digests:
            size = sum(file["size"] for file in digests.values())
            verdict = f"{len(digests)} files, {size:,} bytes, all as they were made"
        else:
            verdict = "made without SHA-256; build it again to get some"
        print(f"{folder}: {verdict}")
        return 0


@dataclass(frozen=True, kw_only=True)
class Where(Command):
    """Print the folder of a data set; without a name, the folder of all."""

    data_set: str | None = field(default=None, metadata=WORD)
    """Name of the data set."""

    def run(self) -> int:
        from ..envs.data import find

        path = comap_home() if self.data_set is None else data_path(find(self.data_set).name)
        print(path)
        if self.data_set is not None and not path.exists():
            print(f"nothing there yet; run: comap data get {self.data_set}", file=sys.stderr)
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
