"""The data of the shared folder, of which folders are made once for all workers of a run."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.envs.scienceworld import keep_idle
from comap.envs.scienceworld.simulator import find_java, simulator_jar
from comap.envs.searchqa import build_index
from comap.envs.storage import locked, replacing
from comap.envs.webshop import build_catalog
from comap.errors import CoMapError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


class Shared:
    """Files of one environment in the shared folder; without them a test is skipped."""

    def __init__(self, name: str):
        self.folder = SHARED / name

    def file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            pytest.skip(f"no data at {path}")
        return path

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of a file of JSON."""
        path = self.file(name)
        opened = lzma.open if path.suffix == ".xz" else open
        with opened(path, "rt", encoding="utf-8", newline="\n") as lines:
            yield from map(json.loads, lines)


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Shared:
    """The files of the environment whose folder a test is in."""
    return Shared(request.path.parent.name)


@pytest.fixture(scope="module")
def official(request: pytest.FixtureRequest) -> Path:
    """The official data of the environment whose folder a test is in."""
    folder: Path = request.getfixturevalue(f"{request.path.parent.name}_data")
    return folder


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, Callable[[Path], object]], Path]]:
    """A function that makes a folder for all workers; the last one has it removed, which takes long."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folders: list[Path] = []

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        folder = base / name
        with locked(base / f"{name}.lock", wait=300):
            if not folder.exists():
                make(folder)
            (base / f"{name}.users").mkdir(exist_ok=True)
            (base / f"{name}.users" / str(os.getpid())).touch()
        folders.append(folder)
        return folder

    yield make_once
    for folder in folders:
        with locked(base / f"{folder.name}.lock", wait=300):
            users = base / f"{folder.name}.users"
            (users / str(os.getpid())).unlink()
            if not any(users.iterdir()):
                remove = f"import shutil; shutil.rmtree({str(folder)!r}, ignore_errors=True)"
                subprocess.Popen([sys.executable, "-c", remove], start_new_session=True)


@pytest.fixture(scope="session")
def alfworld_data(once: Any) -> Path:
    """The folder of ALFWorld's official games (330 MB)."""
    packed = Shared("alfworld").file("games.tar.xz")

    def unpack(folder: Path) -> None:
        with replacing(folder) as new, tarfile.open(packed) as archive:
            archive.extractall(
                new, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
            )

    return once("alfworld-games", unpack)


@pytest.fixture(scope="session")
def webshop_data(once: Any) -> Path:
    """The folder of a catalogue of WebShop's 1,000 products."""
    file = Shared("webshop").file
    files = {
        "products": file("items_shuffle_1000.json"),
        "instructions": file("items_ins_v2_1000.json"),
        "human_instructions": file("items_human_ins.json"),
        "prices": file("dev/prices.json"),
        "price_caps": file("price_caps.json"),
        "title_nouns": file("title_nouns.json"),
    }
    return once("webshop", lambda folder: build_catalog(**files, out=folder, nouns="lexical"))


@pytest.fixture(scope="session")
def mini(once: Any) -> Path:
    """The folder of an FTS5 index of 25,595 passages of Wikipedia."""
    corpus = Shared("searchqa").file("mini_corpus.jsonl")
    return once("searchqa-mini", lambda folder: build_index(corpus, folder))


@pytest.fixture(scope="session")
def stabletoolbench_data() -> Path:
    """The folder with ``test_instruction/`` and ``tool_response_cache/``."""
    return Shared("stabletoolbench").file("test_instruction").parent


@pytest.fixture(scope="session")
def simulator() -> Iterator[None]:
    """The package scienceworld and a Java; JVMs, which take seconds to start, serve again."""
    try:
        simulator_jar()
        find_java()
    except CoMapError as error:
        pytest.skip(str(error))
    keep_idle(2)
    yield
    keep_idle(0)
