"""`comap data build`: data made on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from .cli_progress import shown_progress
from .envs.downloads import data_path

__all__ = ["add_parser", "run"]

_WEBSHOP_FILES = (
    "products",
    "instructions",
    "human_instructions",
    "prices",
    "price_caps",
    "title_nouns",
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `build` to the parser of `comap data`; each kind sets its own ``build``.

    Example:
        >>> parser = argparse.ArgumentParser("comap data")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["build", "scienceworld-demos", "--out", "demos.jsonl"]).split
        'train'
    """
    builder = commands.add_parser("build", help="make data on this machine")
    kinds = builder.add_subparsers(dest="what", required=True, metavar="WHAT")
    _add_webshop(kinds)
    _add_searchqa(kinds)
    _add_demonstrations(kinds)


def run(args: argparse.Namespace) -> int:
    """Run `comap data build` with parsed arguments and return the exit status.

    Raises:
        CoMapError: What is asked for cannot be made.

    Example:
        >>> run(argparse.Namespace(build=lambda args: 0))
        0
    """
    status: int = args.build(args)
    return status


def _add_webshop(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap data build webshop`."""
    parser = subparsers.add_parser("webshop", help="a WebShop catalogue, of WebShop's JSON files")
    parser.set_defaults(build=_build_webshop)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="folder with WebShop's files")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to make (default: comap's)")
    parser.add_argument("--seed", type=int, default=0, help="of prices and price caps (default: 0)")
    parser.add_argument(
        "--nouns",
        default="auto",
        help="rule for titles' nouns: auto, spacy or lexical (default: auto)",
    )
    for name in _WEBSHOP_FILES:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=Path, metavar="FILE", help="this file, not SOURCE's")


def _add_searchqa(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap data build searchqa`."""
    parser = kinds.add_parser("searchqa", help="an index of a corpus, to search for answers in")
    parser.set_defaults(build=_build_searchqa)
    parser.add_argument(
        "corpus", type=Path, metavar="CORPUS", help='JSON lines, each {"id": ..., "contents": ...}'
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to make (default: comap's)")
    parser.add_argument("--kind", default="fts5", help="fts5 (default), bm25s or dense")
    parser.add_argument("--encoder", metavar="MODEL", help="dense: name or folder of the model")
    parser.add_argument("--faiss", metavar="INDEX", help="dense: FAISS's index, as Flat or HNSW64")


def _add_demonstrations(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap data build scienceworld-demos`."""
    demos = kinds.add_parser(
        "scienceworld-demos", help="make demonstrations along ScienceWorld's gold paths"
    )
    demos.set_defaults(build=_build_demonstrations)
    demos.add_argument("--out", required=True, metavar="FILE", help="the file to write, JSON lines")
    demos.add_argument("--split", default="train", help="train (default), dev or test")
    demos.add_argument("--splits", default="upstream", help="upstream (default) or eto")
    demos.add_argument("--data-dir", metavar="DIR", help="folder of ETO's lists")
    demos.add_argument("--simplification", default="easy", help="default: easy")
    demos.add_argument("--tasks", nargs="+", default=[], metavar="NAME", help="default: all tasks")
    demos.add_argument("--variations", type=int, metavar="N", help="of each task (default: all)")
    demos.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    demos.add_argument("--java", metavar="PATH", help="the Java to use (default: as found)")


def _build_webshop(args: argparse.Namespace) -> int:
    from .envs.webshop.build import build_catalog
    from .envs.webshop.sources import find_sources

    files = find_sources(args.source, {name: getattr(args, name) for name in _WEBSHOP_FILES})
    out = args.out or data_path("webshop")
    with shown_progress() as progress:
        build_catalog(**files, out=out, seed=args.seed, nouns=args.nouns, progress=progress)
    print(out)
    return 0


def _build_searchqa(args: argparse.Namespace) -> int:
    from .envs.searchqa.choice import index_home
    from .envs.searchqa.index import build_index

    with shown_progress() as progress:
        out = build_index(
            args.corpus,
            args.out or index_home(),
            args.kind,
            encoder=args.encoder,
            faiss=args.faiss,
            progress=progress,
        )
    print(out)
    return 0


def _build_demonstrations(args: argparse.Namespace) -> int:
    from .envs.scienceworld.demos import build_demonstrations

    names = ("split", "splits", "data_dir", "simplification", "java")
    with shown_progress() as progress:
        built = build_demonstrations(
            args.out,
            tasks=args.tasks,
            variations=args.variations,
            workers=args.workers,
            options={name: getattr(args, name) for name in names},
            progress=progress,
        )
    print(f"{built.path}: {len(built.kept)} demonstrations, {len(built.failed)} tasks without one")
    return 0 if built.kept else 1
