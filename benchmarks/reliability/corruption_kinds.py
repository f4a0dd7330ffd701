"""The kinds of files that comap writes and reads again: how each is made, and how it is read."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ...agents import Agent, ExpertAgent, RandomAgent, run_episode
from ...agents.gate_history import GateHistory
from ...agents.k_head import KHead
from ...agents.knowledge import KnowledgeBase
from ...agents.refinement import RefinementHead
from ...agents.run import TRAJECTORIES, Run, run_to
from ...agents.run_summary import recorded
from ...errors import DataCorrupt
from ...lm import Generate, Message
from ...lm.replay import ReplayLanguageModel
from ...trainers.frozen_sets import freeze, load_transitions, save_transitions
from ...trainers.run_folder import HEAD, RunFolder
from ...trajectory import Trajectory, read_trajectories, write_trajectories
from ...worldmodel import RetrievalWorldModel, transitions_of
from ..experiments.rows import ResultRow, read_rows, write_rows
from .disk_writers import Echo

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of files.

    Attributes:
        make: Writes them into a folder.
        load: Reads them there and returns what compares equal if they hold the same.
        checksum: Whether the files tell when anything in them that counts was changed.
        lines: Whether they are JSON lines, and a file that is cut just behind one is a shorter file.
        slow: Whether reading takes long.
    """

    make: Callable[[Path], object]
    load: Callable[[Path], Any]
    checksum: bool = True
    slow: bool = False
    lines: bool = False


@functools.cache
def episodes() -> list[Trajectory]:
    """Return a few episodes of ALFWorld, an expert's and short ones at random.

    Example:
        >>> len(episodes())
        3
    """
    env = gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=12)
    players: tuple[Agent, ...] = (RandomAgent(), RandomAgent(1), ExpertAgent())
    return [run_episode(env, player, seed=seed) for seed, player in enumerate(players)]


def _run(folder: Path) -> list[Any]:
    """Play a run, or go on with it, and return what it recorded."""

    def make() -> Any:
        return gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=4)

    tasks = make().unwrapped.tasks.ids[:3]
    summary = run_to(folder, Run(make_env=make, agent=RandomAgent(), tasks=tasks), live=2)
    told = [one.to_json() for one in recorded(folder / TRAJECTORIES)]
    return [{key: value for key, value in summary.items() if "second" not in key}, told]


_ASKED = [Generate((Message("user", f"What is in room {n}?"),)) for n in range(5)]


def _record_model(folder: Path) -> None:
    model = ReplayLanguageModel(folder / "record.jsonl", Echo())
    model.generate(_ASKED)
    model.count_tokens("one two")


def _replay_model(folder: Path) -> list[str]:
    model = ReplayLanguageModel(folder / "record.jsonl")
    told = [*model.generate(_ASKED), model.count_tokens("one two")]
    for one in told:
        if isinstance(one, Exception):
            raise one
    return [repr(one) for one in told]


def _retrieval(folder: Path) -> None:
    model = RetrievalWorldModel()
    model.fit([step for episode in episodes() for step in transitions_of(episode)])
    model.save(folder / "model.jsonl")


def _predict(folder: Path) -> list[Any]:
    model = RetrievalWorldModel(folder / "model.jsonl")
    queries = [step.query for episode in episodes() for step in transitions_of(episode)]
    return [(one.observation, one.confidence, one.source) for one in model.predict(queries)]


def _knowledge(folder: Path) -> None:
    KnowledgeBase.from_trajectories(episodes()).save(folder / "knowledge.jsonl")


def _rows(folder: Path) -> None:
    rows = [
        ResultRow(experiment="comap-t1", method=f"method {n}", metric="success_rate", value=n / 7)
        for n in range(9)
    ]
    write_rows(folder / "rows.jsonl", rows)


def _corpus(folder: Path, kind: str) -> None:
    from ...envs.searchqa import build_index

    corpus = folder.with_name("corpus.jsonl")
    rows = ({"id": f"{n}", "contents": f'"Town {n}"\nA town on river {n % 7}.'} for n in range(80))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    build_index(corpus, folder / "index", kind)


def _search(folder: Path) -> list[Any]:
    from ...envs.searchqa import open_index

    index = open_index(folder / "index")
    return [index.search([f"river {n}", f"Town {n}"], k=5) for n in range(0, 80, 9)]


def _searches(folder: Path) -> None:
    from ...envs.searchqa.recording import RecordingRetriever
    from ...envs.searchqa.retriever import CallableRetriever

    engine = CallableRetriever(
        lambda queries, k: [[{"id": query, "contents": f"about {query}"}] for query in queries]
    )
    RecordingRetriever(engine, folder / "searches.jsonl").search(["a river", "a town", "a king"])


def _recorded(folder: Path) -> list[Any]:
    from ...envs.searchqa.recording import ReplayRetriever

    return ReplayRetriever(folder / "searches.jsonl").search(["a river", "a town", "a king"])


def _asked() -> list[Any]:
    from ...envs.stabletoolbench.backends import Request

    return [Request("Food", "cocktails", "by_id", {"id": n}) for n in range(6)]


def _overlay(folder: Path) -> None:
    from ...envs.stabletoolbench.backends import Hit
    from ...envs.stabletoolbench.overlay import Overlay

    overlay = Overlay(folder / "overlay.jsonl")
    for number, request in enumerate(_asked()):
        overlay.keep(request, Hit("", f"answer {number}", "sim"))


def _answers(folder: Path) -> list[Any]:
    from ...envs.stabletoolbench.overlay import Overlay

    overlay = Overlay(folder / "overlay.jsonl")
    told = [overlay.answer(request) for request in _asked()]
    if overlay.broken or None in told:  # it counts them, and asks again what they said
        raise DataCorrupt(f"{overlay.path}: {overlay.broken} broken lines are left out")
    return told


def _catalogue(folder: Path) -> None:
    from ...envs.webshop import build_catalog
    from ...envs.webshop.generate import (
        HUMAN_FILE,
        INSTRUCTIONS_FILE,
        PRODUCTS_FILE,
        generate_catalog,
    )

    source = folder.with_name("source")
    generate_catalog(source, products=60)
    files = (source / PRODUCTS_FILE, folder / "shop", source / INSTRUCTIONS_FILE)
    build_catalog(*files, source / HUMAN_FILE, nouns="lexical")


def _shop(folder: Path) -> list[Any]:
    from ...envs.webshop import Catalog

    catalog = Catalog.open(folder / "shop")
    told: list[Any] = [catalog.search(words) for words in ("red shoes", "a blue lamp", "soft")]
    told += [repr(catalog.product(row)) for row in range(0, len(catalog), 7)]
    goals = range(min(3, catalog.goals("synthetic")))
    return [*told, *(repr(catalog.goal("synthetic", number)) for number in goals)]


def _game(folder: Path) -> None:
    from ...envs.alfworld import generate, write_game

    write_game(generate("train", 0), folder)


def _problem(folder: Path) -> str:
    from ...envs.alfworld import read_game

    (path,) = folder.rglob("game.tw-pddl")
    return repr(read_game(path))


def _training(folder: Path) -> None:
    with RunFolder(folder / "run").open({"steps": 3}, {}) as run:
        stage = run.stage(0, "warmup")
        file = RefinementHead(np.arange(8, dtype=np.float32), 0.5).save(stage.weights(HEAD))
        stage.finish({"rows": 7, "weights": {HEAD: file.name}}, 1.0)


def _trained(folder: Path) -> Any:
    with RunFolder(folder / "run").open({"steps": 3}, {}) as run:
        stage = run.stage(0, "warmup")
        heads = [_exact(RefinementHead.load(path)) for path in stage.trained(()).values()]
        return stage.result(), heads


def _checkpoint(folder: Path) -> None:
    import torch

    from ...trainers.trainer_checkpoints import mark_complete, write_weights

    weights = {"own": {"A": torch.arange(300.0), "B": torch.ones(4, 5)}}
    write_weights(folder / "checkpoint-1", weights)
    torch.save({"step": torch.ones(20)}, folder / "checkpoint-1" / "optimizer.pt")
    mark_complete(folder / "checkpoint-1")


def _weights(folder: Path) -> list[Any]:
    import torch

    from ...trainers.trainer_checkpoints import last_checkpoint, read_weights

    last = Path(last_checkpoint(folder) or "none")
    into = {"own": {"A": torch.zeros(300), "B": torch.zeros(4, 5)}}
    read_weights(last, into, "wm")
    state = torch.load(last / "optimizer.pt", weights_only=True)
    return [repr(tensor.tolist()) for tensor in (*into["own"].values(), state["step"])]


def _tiny(folder: Path) -> None:
    from ...lm.tiny import build_tiny

    build_tiny(folder / "tiny", ["You open the fridge 1."] * 3, parameters=200_000, max_length=64)


def _language_model(folder: Path) -> list[Any]:
    import torch

    from ...lm.hf_load import load_model, load_tokenizer

    tokenizer = load_tokenizer(folder / "tiny", None)
    model = load_model(folder / "tiny", None, torch.device("cpu"), "float32")
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return [digest.hexdigest(), tokenizer.encode("You open the fridge 2."), repr(model.config)]


def _heads(folder: Path) -> list[Any]:
    return [
        _exact(KHead.load(folder / "k.safetensors")),
        _exact(RefinementHead.load(folder / "head.safetensors")),
    ]


def _exact(head: Any) -> tuple[bytes, bytes]:
    return np.asarray(head.weight).tobytes(), np.asarray(head.bias).tobytes()


def _save_heads(folder: Path) -> None:
    KHead(np.ones((3, 8)), [0.0, 1.0, 2.0]).save(folder / "k.safetensors")
    RefinementHead(np.arange(8, dtype=np.float32), 0.5).save(folder / "head.safetensors")


KINDS: Mapping[str, Kind] = {
    "trajectories": Kind(
        lambda folder: write_trajectories(folder / "t.jsonl", episodes()),
        lambda folder: [one.to_json() for one in read_trajectories(folder / "t.jsonl")],
        lines=True,
    ),
    "runs that go on": Kind(_run, _run, slow=True),
    "records of language models": Kind(_record_model, _replay_model),
    "retrieval world models": Kind(_retrieval, _predict),
    "frozen transitions": Kind(
        lambda folder: save_transitions(folder / "set.jsonl", freeze(episodes(), 9, 0)),
        lambda folder: repr(load_transitions(folder / "set.jsonl")),
    ),
    "knowledge bases": Kind(
        _knowledge,
        lambda folder: list(KnowledgeBase.load(folder / "knowledge.jsonl")),
        lines=True,
    ),
    "heads": Kind(_save_heads, _heads),
    "result rows": Kind(_rows, lambda folder: list(read_rows(folder / "rows.jsonl")), lines=True),
    "indexes (FTS5)": Kind(lambda folder: _corpus(folder, "fts5"), _search),
    "indexes (bm25s)": Kind(lambda folder: _corpus(folder, "bm25s"), _search, slow=True),
    "recorded searches": Kind(_searches, _recorded),
    "kept answers of tools": Kind(_overlay, _answers),
    "WebShop catalogues": Kind(_catalogue, _shop, slow=True),
    "gate histories": Kind(
        lambda folder: GateHistory({"go": 40, "open": 7}, {"open": 3}).save(folder / "gates.json"),
        lambda folder: GateHistory.load(folder / "gates.json"),
    ),
    "ALFWorld games": Kind(_game, _problem, checksum=False),  # the form is upstream's
    "trainings": Kind(_training, _trained),
    "checkpoints": Kind(_checkpoint, _weights),
    "language models": Kind(_tiny, _language_model, slow=True),
}
"""All kinds, by name."""
