"""Files that were cut or changed, and disks that fill while something is written.

A `Kind` is a kind of files: reading it after damage must give what was written, or an error of comap's
that names the file. While the disk fills, the error is one line; a file that is written at once stays as it
was, and what grows goes on when there is room.
"""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

from ...agents import Agent, ExpertAgent, RandomAgent, run_episode
from ...agents.heads import RefinementHead
from ...agents.run import TRAJECTORIES, Run, recorded, run_to, writing
from ...agents.wkm import KnowledgeBase
from ...envs import searchqa, webshop
from ...envs.webshop import generate
from ...errors import CoMapError
from ...lm import Completion, Generate, Message, Usage
from ...lm.base import BaseLanguageModel
from ...lm.replay import ReplayLanguageModel
from ...trainers.run_folder import HEAD, RunFolder
from ...trajectory import Trajectory, read_trajectories, write_trajectories
from .environments import Findings, in_processes

DAMAGES = 2_000
"""How many times files of each kind are damaged at scale 1; slow kinds get a tenth."""

FULL_DISKS = 100

_STAGES = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of files: how they are made and read in a folder."""

    make: Callable[[Path], object]
    load: Callable[[Path], Any]
    checksum: bool = False
    """Whether other content is never read unnoticed."""
    lines: bool = False
    """Whether whole lines may be missing at the end."""
    slow: bool = False
    on_full_disk: Literal["", "stays", "goes on"] = ""
    """Whether what was there stays, or `make` goes on when there is room; empty: it is not tried."""
    needs: str = "numpy"
    """The module that must be installed."""


def _in_file(save: Callable[[Path], object], load: Callable[[Path], Any], **how: Any) -> Kind:
    return Kind(lambda folder: save(folder / "file"), lambda folder: load(folder / "file"), **how)


@functools.cache
def _episodes() -> list[Trajectory]:
    env = gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=12)
    agents: tuple[Agent, ...] = (RandomAgent(), RandomAgent(1), ExpertAgent())
    return [run_episode(env, agent, seed=seed) for seed, agent in enumerate(agents)]


def _play(folder: Path) -> list[Any]:
    options: dict[str, Any] = {"source": "generated", "max_episode_steps": 4}
    make = functools.partial(gymnasium.make, "comap/ALFWorld-v0", **options)
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
    asked = [Generate((Message("user", f"What is in room {n}? {'Dark. ' * n}"),)) for n in range(9)]
    answers = [replay.generate([one])[0] for one in asked]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [repr(answer) for answer in (*answers, replay.count_tokens("one two"))]


def _index(kind: str, folder: Path) -> None:
    texts = ({"id": f"{n}", "contents": f'"Town {n}"\nOn a river {n % 7}. ' * 9} for n in range(80))
    corpus = folder.with_name("corpus.jsonl")
    if not corpus.exists():
        corpus.write_text("".join(json.dumps(text) + "\n" for text in texts), "utf-8")
    searchqa.build_index(corpus, folder / "index", kind)


def _search(folder: Path) -> list[Any]:
    index = searchqa.open_index(folder / "index")
    return [index.search([f"river {n}", f"Town {n}"], k=5) for n in range(0, 80, 9)]


def _catalog(folder: Path) -> None:
    source = folder.with_name("source")
    if not source.exists():
        generate.generate_catalog(source, products=60)
    files = (source / generate.PRODUCTS_FILE, folder / "shop", source / generate.INSTRUCTIONS_FILE)
    webshop.build_catalog(*files, source / generate.HUMAN_FILE, nouns="lexical")


def _shop(folder: Path) -> list[Any]:
    catalog = webshop.Catalog.open(folder / "shop")
    found: list[Any] = [catalog.search(words) for words in ("red shoes", "a blue lamp", "soft")]
    found += [repr(catalog.product(row)) for row in range(0, len(catalog), 7)]
    return [*found, *(repr(catalog.goal("synthetic", number)) for number in range(3))]


def _train(folder: Path) -> None:
    """Do what is left of a training: a checkpoint and a result a stage; the last stage does not end."""
    import torch

    from ...trainers.run_folder import last_checkpoint, mark_complete, write_weights

    with RunFolder(folder / "run").open({"stages": _STAGES}, {}) as run:
        for number in range(_STAGES):
            stage = run.stage(number, f"stage-{number}")
            last_checkpoint(stage.path)  # what was left half written is removed
            checkpoint = stage.path / "checkpoint-1"
            with writing(stage.path):
                if not checkpoint.exists():
                    write_weights(checkpoint, {"own": {"A": torch.arange(64.0 * (number + 1))}})
                    mark_complete(checkpoint)
                if number < _STAGES - 1 and stage.result() is None:
                    head = RefinementHead(np.arange(8, dtype=np.float32), number)
                    file = head.save(stage.weights(HEAD))
                    stage.finish({"rows": number, "weights": {HEAD: file.name}}, 1.0)


def _trained(folder: Path) -> list[Any]:
    import torch

    from ...trainers.run_folder import last_checkpoint, read_weights

    found: list[Any] = []
    for number in range(_STAGES):
        stage = RunFolder(folder / "run").stage(number, f"stage-{number}")
        weights = {"A": torch.zeros(64 * (number + 1))}
        last = last_checkpoint(stage.path) or stage.path / "checkpoint-1"
        read_weights(Path(last), {"own": weights}, "own")
        heads = [RefinementHead.load(path) for path in stage.trained(()).values()]
        found += [weights["A"].tolist(), stage.result(), [head.weight.tolist() for head in heads]]
    return found


KINDS: Mapping[str, Kind] = {
    "trajectories": _in_file(
        lambda path: write_trajectories(path, _episodes()),
        lambda path: [one.to_json() for one in read_trajectories(path)],
        lines=True,
    ),
    "knowledge bases": _in_file(
        lambda path: KnowledgeBase.from_trajectories(_episodes()).save(path),
        lambda path: list(KnowledgeBase.load(path)),
        lines=True,
    ),
    "recorded language models": Kind(
        lambda folder: _answers(folder, _Echo()), _answers, on_full_disk="goes on"
    ),
    "runs that go on": Kind(_play, _play, slow=True, on_full_disk="goes on"),
    "indexes (FTS5)": Kind(
        functools.partial(_index, "fts5"), _search, checksum=True, on_full_disk="stays"
    ),
    "indexes (bm25s)": Kind(functools.partial(_index, "bm25s"), _search, checksum=True, slow=True),
    "WebShop catalogs": Kind(_catalog, _shop, checksum=True, slow=True, on_full_disk="stays"),
    "trainings": Kind(_train, _trained, on_full_disk="goes on", needs="torch"),
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
        if find_spec(kind.needs) is None:
            found.figures["left out"] = f"not installed: {kind.needs}"
            return found.plain()
        kind.make(whole)
        shutil.copytree(whole, copy)  # readers may write
        right = kind.load(copy)
        files = [path for path in sorted(whole.rglob("*")) if path.is_file()]
        files = [path for path in files if path.stat().st_size and not path.name.endswith("lock")]
        for count in range(max(8, round(DAMAGES * scale * (0.1 if kind.slow else 1.0)))):
            damaged = Path(folder, f"damaged-{count}")
            shutil.copytree(whole, damaged)
            file = damaged / rng.choice(files).relative_to(whole)
            before = file.read_bytes()
            what = f"{name}, {file.name} {_damage(file, rng)}"
            _check_read(found, kind, damaged, file, before, right, what)
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
    found: Findings, kind: Kind, folder: Path, file: Path, before: bytes, right: Any, what: str
) -> None:
    after = file.read_bytes()
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
        end = after[-1:] + before[len(after) : len(after) + 1]  # a last line may lack its end
        if content == right:
            found.counts["read right"] += 1
        elif kind.lines and before.startswith(after) and (not after or b"\n" in end):
            found.counts["shorter by whole lines"] += 1
        else:
            found.counts["other content, without a checksum"] += not kind.checksum
            found.check(not kind.checksum, f"{what}: other content was read, and nothing reported")


_PROGRAM = """
import resource, sys
from comap.benchmarks.reliability.files import KINDS, CoMapError, Path
room, name, folder = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(room),) * 2)
try:
    KINDS[name].make(Path(folder))
except CoMapError as error:
    sys.exit(f"comap: {error}")
"""


def run_disk(scale: float, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Fill the disk at random places while files are written, and return what was found."""
    found, rng = Findings(), random.Random(seed)
    if sys.platform == "win32":
        found.figures["left out"] = "the system has no limits of file sizes"
        return found.plain()
    names = [name for name, kind in KINDS.items() if kind.on_full_disk and find_spec(kind.needs)]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(max(len(names), round(FULL_DISKS * scale))):
            fill_disk(found, rng, names[number % len(names)], Path(folder, f"{number}"))
    progress(f"disk: {dict(found.counts)}, {found.lost} lost")
    return found.plain()


def fill_disk(found: Findings, rng: random.Random, name: str, place: Path) -> None:
    """Fill the disk while files of a kind are written, and compare what is there afterwards."""
    kind, whole, folder = KINDS[name], place / "whole", place / "filled"
    whole.mkdir(parents=True)
    kind.make(whole)
    if kind.on_full_disk == "stays":
        shutil.copytree(whole, folder)
    else:
        folder.mkdir()
    room = rng.randrange(1, max(map(len, _files(whole).values())))
    command = [sys.executable, "-c", _PROGRAM, str(room), name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found.counts[f"{name} that met a full disk"] += 1
    said, what = done.stderr.strip(), f"{name} with room for {room} bytes"
    clear = done.returncode == 1 and ("too large" in said or "full" in said)
    if found.check(clear and re.fullmatch("comap: .*", said) is not None, f"{what}: {said[-300:]}"):
        found.reported["one line and exit status 1"] += 1
    if kind.on_full_disk == "stays":
        same = _files(folder) == _files(whole)
        found.check(same, f"{what}: a full disk changed what was there, or left something behind")
        return
    for path, kept in _files(folder).items():
        if path in (TRAJECTORIES, "record.jsonl"):
            part = (whole / path).read_bytes().startswith(kept) and kept[-1:] in (b"", b"\n")
            found.check(part, f"{what}: something else than whole lines was left in {path}")
            found.counts["lines kept"] += kept.count(b"\n")
    try:
        kind.make(folder)
        same = kind.load(folder) == kind.load(whole)
        found.check(same, f"{what}: what went on after a full disk wrote something else")
    except CoMapError as error:
        found.check(False, f"{what}: it did not go on: {error}")


def _files(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
