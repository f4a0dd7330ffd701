"""Files that were cut or changed: reading them gives what was written, or an error that names the file."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ...agents import RandomAgent
from ...agents.run import TRAJECTORIES, Run, recorded, run_to
from ...envs import searchqa, webshop
from ...envs.webshop import generate
from ...errors import CoMapError
from ...lm import Completion, Generate, Message, Usage
from ...lm.base import BaseLanguageModel
from ...lm.replay import ReplayLanguageModel
from .environments import Findings, in_processes

DAMAGES = 2_000
"""How many times files of each kind are damaged at scale 1; slow kinds get a tenth."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of files: how they are made and read in a folder."""

    make: Callable[[Path], object]
    load: Callable[[Path], Any]
    checksum: bool = False
    """Whether other content is never read unnoticed."""
    slow: bool = False


def _play(folder: Path) -> list[Any]:
    make = partial(gymnasium.make, "comap/ALFWorld-v0", source="generated", max_episode_steps=4)
    tasks = make().get_wrapper_attr("tasks").ids[:3]
    summary = run_to(folder, Run(make_env=make, agent=RandomAgent(), tasks=tasks), concurrency=2)
    episodes = [one.to_json() for one in recorded(folder / TRAJECTORIES)]
    changing = {key for key in summary if "second" in key} | {"files"}  # run.json has its sessions
    return [{key: summary[key] for key in summary.keys() - changing}, episodes]


class _Echo(BaseLanguageModel):
    """A language model that repeats what it is asked."""

    name, capabilities, usage = "echo", frozenset({"generate"}), Usage()

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        return [Completion(one.messages[-1].content, completion_tokens=1) for one in requests]

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def config(self) -> dict[str, Any]:
        return {"id": "echo"}


def _answers(folder: Path, model: _Echo | None = None) -> list[str]:
    """Return the recorded answers of a language model; with a model record those that are missing."""
    replay = ReplayLanguageModel(folder / "record.jsonl", model)
    answers = replay.generate([Generate((Message("user", f"Room {n}?" * n),)) for n in range(1, 9)])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [repr(answer) for answer in answers]


def _index(folder: Path) -> None:
    texts = ({"id": f"{n}", "contents": f'"Town {n}"\nOn a river {n % 7}. ' * 9} for n in range(80))
    corpus = folder.with_name("corpus.jsonl")
    corpus.write_text("".join(json.dumps(text) + "\n" for text in texts), "utf-8")
    searchqa.build_index(corpus, folder / "index", "fts5")


def _search(folder: Path) -> list[Any]:
    index = searchqa.open_index(folder / "index")
    return [index.search([f"river {n}", f"Town {n}"], k=5) for n in range(0, 80, 9)]


def _catalog(folder: Path) -> None:
    source = folder.with_name("source")
    generate.generate_catalog(source, products=60)
    files = (source / generate.PRODUCTS_FILE, folder / "shop", source / generate.INSTRUCTIONS_FILE)
    webshop.build_catalog(*files, source / generate.HUMAN_FILE, nouns="lexical")


def _shop(folder: Path) -> list[Any]:
    catalog = webshop.Catalog.open(folder / "shop")
    found: list[Any] = [catalog.search(words) for words in ("red shoes", "a blue lamp", "soft")]
    found += [repr(catalog.product(row)) for row in range(0, len(catalog), 7)]
    return [*found, *(repr(catalog.goal("synthetic", number)) for number in range(3))]


KINDS: Mapping[str, Kind] = {
    "recorded language models": Kind(lambda folder: _answers(folder, _Echo()), _answers),
    "runs that go on": Kind(_play, _play, slow=True),
    "indexes (FTS5)": Kind(_index, _search, checksum=True),
    "WebShop catalogs": Kind(_catalog, _shop, checksum=True, slow=True),
}


def run_corruption(scale: float, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Damage files of each kind, read them, and return what was found."""
    found, kinds = Findings(), {}
    for name in KINDS:
        (part,) = in_processes(damage_kind, (name, scale, seed))
        found.add(part)
        kinds[name] = part
        progress(f"{name}: {part['counts']}, {part['lost']} lost")
    found.figures["kinds"] = kinds
    return found.plain()


def damage_kind(name: str, scale: float, seed: int) -> dict[str, Any]:
    kind, found, rng = KINDS[name], Findings(), random.Random(f"{seed} {name}")
    with tempfile.TemporaryDirectory() as folder:
        whole, copy = Path(folder, "whole"), Path(folder, "copy")
        whole.mkdir()
        kind.make(whole)
        shutil.copytree(whole, copy)  # readers may write
        right = kind.load(copy)
        files = [path for path in sorted(whole.rglob("*")) if path.is_file()]
        files = [path for path in files if path.stat().st_size and not path.name.endswith("lock")]
        for count in range(max(8, round(DAMAGES * scale * (0.1 if kind.slow else 1.0)))):
            damaged = Path(folder, f"damaged-{count}")
            shutil.copytree(whole, damaged)
            file = damaged / rng.choice(files).relative_to(whole)
            what = f"{name}, {file.name} {_damage(file, rng)}"
            _check_read(found, kind, damaged, file, right, what)
            shutil.rmtree(damaged)
    return found.plain()


def _damage(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    how = rng.choices(("cut", "changed", "emptied", "zeroed"), (45, 45, 3, 7))[0]
    start = rng.randrange(len(content))
    if how == "changed":
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "zeroed":  # as a file system leaves what was not written before the power went
        content[start:] = bytes(len(content) - start)
    else:
        del content[start if how == "cut" else 0 :]
    path.write_bytes(content)
    return f"{how} at {start}"


def _check_read(
    found: Findings, kind: Kind, folder: Path, file: Path, right: Any, what: str
) -> None:
    found.counts["damaged"] += 1
    try:
        content = kind.load(folder)
    except CoMapError as error:
        found.reported[type(error).__name__] += 1
        found.counts["reported"] += 1
        named = any(name in str(error) for name in file.relative_to(folder.parent).parts)
        found.check(named, f"{what}: no file named: {error}")
    except Exception as error:
        found.check(False, f"{what}: {type(error).__name__}: {error}")
    else:
        if content == right:
            found.counts["read right"] += 1
        else:
            found.counts["other content, without a checksum"] += not kind.checksum
            found.check(not kind.checksum, f"{what}: other content was read, and nothing reported")
