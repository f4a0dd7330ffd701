"""The model that plays a search engine: one that is there, or a tiny one that is taught here."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ...envs.panel import evenly
from ...envs.searchqa import SearchQAEnv
from ...envs.searchqa.answers import contains_answer
from ...envs.searchqa.questions import Question
from ...envs.searchqa.retriever import Hit, Retriever
from ...errors import OptionError
from ...lm import LanguageModel
from ...lm.create import create_language_model
from ...lm.sft import Row, SFTConfig, fine_tune
from ...lm.tiny import build_tiny
from ..processes import is_first, wait
from ..setup import Environments
from .config import PaWTraining
from .simulator import SimulatedSearch, write_documents

__all__ = ["TINY_SIMULATOR", "lessons", "open_simulator", "teach_simulator"]

TINY_SIMULATOR = "tiny"
"""The name of a simulator that is built and taught here."""

_FOLDER = "simulator"
_QUESTIONS = 400  # that lessons are made of
_TRIES = 20  # other questions whose passages may serve as noise
_PARAMETERS, _VOCABULARY = 500_000, 2048


def open_simulator(
    simulator: str | LanguageModel | None,
    config: PaWTraining,
    make_env: Callable[[str], Any],
    out: Path,
    tell: Callable[[Mapping[str, Any]], object],
) -> LanguageModel | None:
    """Return the model that plays the search engine; None where none is asked for.

    Args:
        simulator: A model, or what `create_language_model` makes one of; ``tiny`` is taught first on
            what the environment's own index finds, into the folder ``simulator`` of the training.
        config: The settings.
        make_env: Makes environments.
        out: The training's folder.
        tell: Told what happens.

    Raises:
        CoMapError: There is no such model, or it cannot be loaded or taught.
    """
    if simulator is None or not isinstance(simulator, str):
        return simulator
    if simulator != TINY_SIMULATOR:
        return create_language_model(simulator)
    if not isinstance(make_env, Environments):
        raise OptionError("a tiny simulator needs Environments as make_env")
    target = out / _FOLDER
    if is_first() and not target.is_dir():
        teach_simulator(target, make_env, config, tell)
    wait()
    return create_language_model(str(target), name="tiny simulator")


def teach_simulator(
    target: Path,
    make_env: Environments,
    config: PaWTraining,
    tell: Callable[[Mapping[str, Any]], object] = lambda event: None,
) -> None:
    """Build a tiny simulator and teach it, into a folder, whole or not at all.

    Args:
        target: The folder.
        make_env: Makes environments with the index that it learns from.
        config: Says the training split, tokens and seed.
        tell: Told of each step, as the event ``simulator``.

    Raises:
        OptionError: The environment is not search QA, or has no questions.
    """
    with closing(make_env(config.train_split)) as env:
        inner = env.unwrapped
        if not isinstance(inner, SearchQAEnv):
            raise OptionError(f"expected search QA for a simulator, found {make_env.env_id!r}")
        rows = list(lessons(inner, config.seed))
    draft, base = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.new")
    for folder in (draft, base):
        shutil.rmtree(folder, ignore_errors=True)
    words = [text for row in rows for text in (row.messages[0].content, row.answer)]
    size = {"parameters": _PARAMETERS, "vocabulary": _VOCABULARY}
    build_tiny(base, words, seed=config.seed, dtype="float32", **size)

    def step(done: int, total: int, loss: float) -> None:
        tell({"event": "simulator", "done": done, "of": total, "loss": loss})

    sft = SFTConfig(
        tokens=config.simulator_warmup_tokens,
        seed=config.seed,
        batch_tokens=config.warmup_batch_tokens,
        learning_rate=config.warmup_rate,
    )
    fine_tune(base, draft, rows, sft, step)
    shutil.rmtree(base)
    draft.replace(target)


def lessons(env: SearchQAEnv, seed: int) -> Iterator[Row]:
    """Yield what a simulator learns: for queries of questions what the index finds, and what is no use.

    The queries are those of the questions' hops, where these are known, and else the questions
    themselves. Noise are passages that the index finds for another question, none of which has an
    answer to this one or is found for it too. Queries without such passages, or without any, are left
    out.

    Args:
        env: Search QA with an index, on the training split.
        seed: Seed of what is drawn.
    """
    retriever, count = env.retriever, int(env.settings()["topk"])
    questions = []
    for task in evenly(env.tasks.ids, min(_QUESTIONS, len(env.tasks.ids))):
        env.reset(options={"task": task})
        questions.append(env.wanted)
    rng = random.Random(f"{seed}\nsimulator")
    others = [query for question in questions for query in queries_of(question)]
    for question in questions:
        for query, answers in queries_of(question).items():
            (found,) = retriever.search([query], count)
            noise = _noise(retriever, question, found, others, rng, count)
            for hits, noisy in ((found, False), (noise, True)):
                search = SimulatedSearch(question.text, question.golden, query, noisy, count)
                if hits and noise:
                    yield Row(search.prompt(), write_documents(hits, answers))


def queries_of(question: Question) -> dict[str, tuple[str, ...]]:
    """Return what a question is searched by, and what each search shall find.

    These are the questions of its hops, or else its own text.

    Example:
        >>> queries_of(Question("1", "Who wrote Emma?", ("Jane Austen",)))
        {'Who wrote Emma?': ('Jane Austen',)}
    """
    hops: dict[str, tuple[str, ...]] = {hop.question: (hop.answer,) for hop in question.hops}
    return hops or {question.text: question.golden}


def _noise(
    retriever: Retriever,
    question: Question,
    found: Sequence[Hit],
    others: Sequence[str],
    rng: random.Random,
    count: int,
) -> list[Hit]:
    """Return passages that are no use for a question; none where none are found."""
    known = {hit.id for hit in found}
    for _ in range(_TRIES):
        (other,) = retriever.search([others[rng.randrange(len(others))]], count)
        if other and not any(
            hit.id in known or contains_answer(f"{hit.title} {hit.text}", question.golden)
            for hit in other
        ):
            return other
    return []
