"""Training on search QA: rewards by F1, a simulated search engine (ZeroSearch), warm-ups in tags."""

from __future__ import annotations

import hashlib
import math
import random
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from ...agents.base import Agent, Decision, Reply, Request, View
from ...agents.config import required_capabilities
from ...agents.convert import views_of
from ...agents.paw import PaWAgent, PaWConfig
from ...envs.panel import evenly
from ...envs.registry import text_env_of
from ...envs.searchqa import SearchQAEnv
from ...envs.searchqa.protocol import contains_answer, read_move
from ...envs.searchqa.questions import Question
from ...envs.searchqa.retriever import LONGEST_TEXT, LONGEST_TITLE, Hit, check_queries
from ...errors import DataCorrupt, EngineError, LanguageModelError, OptionError
from ...lm import Completion, Generate, LanguageModel, Message, Sampling
from ...lm.base import BaseLanguageModel, LMRequest, answer
from ...lm.chat import ChatTokenizer
from ...lm.create import create_language_model
from ...lm.prompts import fill_template
from ...lm.tiny import Row, SFTConfig, build_tiny, fine_tune
from ...trajectory import Step, Trajectory
from ..processes import is_first, wait
from ..setup import Environments
from ..sft import is_shown
from ..stages import MakeEnv, Tell
from .config import PaWTraining, ZeroSearch

PURPOSE = "simulate"
"""What a simulator's language model is asked for, in records."""

WORDS = 30
"""Words of a document, about (ZeroSearch)."""

_GOLDEN = 3  # correct answers in the simulator's prompt
_MAX_LENGTH = 1_000  # characters of anything in it
_DOCUMENT = re.compile(r"[ \t]*Doc(?:ument)?[ \t]*\d{1,3}[ \t]*(.*)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=\.) ")
_TITLED = re.compile(r"\([ \t]*Title:([^)]*)\)[ \t:.]*(.*)", re.DOTALL | re.IGNORECASE)
_QUESTIONS = 400  # that lessons are made of
_TRIES = 20  # other questions whose passages may serve as noise
_SIZE: dict[str, Any] = {"parameters": 500_000, "vocabulary": 2048}
_THOUGHTS = {"search": "I must look this up.", "answer": "I know enough now."}


@dataclass(frozen=True, slots=True)
class NoiseCurriculum:
    """How often, and when, the simulated engine of a training gives noisy documents."""

    updates: int
    start: float
    end: float
    base: float = 4.0
    seed: int = 0

    @classmethod
    def of(cls, config: PaWTraining, updates: int) -> NoiseCurriculum:
        own = config.zerosearch
        return cls(updates, own.noise_start, own.noise_end, own.noise_base, config.seed)

    def probability(self, update: int) -> float:
        """Return ``p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s)`` at an update i, from 0."""
        done = min(update / self.updates, 1.0)
        rise = math.log(self.base)
        risen = math.expm1(rise * done) / math.expm1(rise) if rise else done
        return min(max(self.start + risen * (self.end - self.start), 0.0), 1.0)

    def noisy(self, update: int, episode: int, turn: int) -> bool:
        """Return whether a search gets noisy documents."""
        rng = random.Random(f"noise\n{self.seed}\n{update}\n{episode}\n{turn}")
        return rng.random() < self.probability(update)


@dataclass(frozen=True, slots=True)
class SimulatedSearch:
    """A search that the simulator should answer."""

    question: str
    golden: tuple[str, ...]
    query: str
    noisy: bool
    count: int
    draw: str = ""

    def prompt(self) -> tuple[Message, ...]:
        return fill_template(
            (__package__ or "").rpartition(".")[0],
            "simulator",
            "noisy" if self.noisy else "useful",
            question=_line(self.question),
            answer="; ".join(map(_line, self.golden[:_GOLDEN])),
            query=_line(self.query),
            count=str(self.count),
            words=str(WORDS),
        )

    def request(self, settings: ZeroSearch) -> Generate:
        """Return the request for the documents; the same search makes the same request."""
        seed = hashlib.sha256(f"simulate\n{self.draw}".encode("utf-8", "replace")).digest()
        temperature = settings.simulator_temperature
        sampling = Sampling(
            max_new_tokens=settings.simulator_tokens,
            temperature=temperature,
            seed=int.from_bytes(seed[:4], "big") >> 1 if temperature else 0,
        )
        return Generate(self.prompt(), sampling, purpose=PURPOSE)

    def hits(self, reply: str) -> list[Hit]:
        """Return the documents that a reply has, as many as were asked for at most."""
        found = read_documents(reply)
        if not found:
            raise EngineError(
                f"expected documents from the simulator for {self.query!r:.80}, found an empty text; "
                "use another model as --simulator"
            )
        return found[: self.count]


def read_documents(text: str) -> list[Hit]:
    parts: list[list[str]] = []
    for line in text.splitlines():
        begins = _DOCUMENT.match(line)
        if begins is not None:
            parts.append([begins[1]])
        elif line.strip():
            if not parts:
                parts.append([])
            parts[-1].append(line.strip())
    found = []
    for rank, lines in enumerate(parts, 1):
        whole = " ".join(lines).strip()
        titled = _TITLED.match(whole)
        title = titled[1].strip().removeprefix('"').removesuffix('"') if titled else ""
        title = title.strip()[:LONGEST_TITLE]
        body = (titled[2].strip() if titled else whole.lstrip(":. \t"))[:LONGEST_TEXT]
        if title or body:
            found.append(Hit(f"simulated-{rank}", title, body, 1 / rank))
    return found


def write_documents(hits: Sequence[Hit], answers: Sequence[str] = ()) -> str:
    """Return documents as a simulator should write them: what a small one is taught."""
    return "\n".join(
        f'Doc {number}(Title: "{_line(hit.title)}") {_shortened(hit.text, answers)}'
        for number, hit in enumerate(hits, 1)
    )


def _shortened(text: str, answers: Sequence[str]) -> str:
    """Return sentences of a text in their order, those with an answer before all others."""
    sentences = _SENTENCE.split(" ".join(text.split()))
    kept, size = list[int](), 0
    for index in sorted(
        range(len(sentences)), key=lambda n: (not contains_answer(sentences[n], answers), n)
    ):
        length = len(sentences[index].split())
        if kept and size + length > WORDS:
            break
        kept.append(index)
        size += length
    whole = " ".join(sentences[index] for index in sorted(kept))
    return " ".join(whole.split()[: 2 * WORDS])


def _line(text: str) -> str:
    return " ".join(text[:_MAX_LENGTH].split())


class SimulatedEngine:
    """A retriever that returns what was written for the search that comes next."""

    def __init__(self, name: str):
        self.identity = f"simulated:{name}"
        self._next: tuple[str, list[Hit]] | None = None

    def prepare(self, query: str, hits: Sequence[Hit]) -> None:
        """Take the documents for the search that follows at once."""
        self._next = query, list(hits)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return the documents that were prepared, at most `k`, once."""
        check_queries(queries, k)
        prepared, self._next = self._next, None
        if prepared is None or [prepared[0]] != list(queries):
            raise EngineError(
                "expected a search for which the simulator has written documents, found "
                f"{queries!r:.120}"
            )
        return [prepared[1][:k]]


class SearchingAgent:
    """An agent whose searches are answered by a simulator before the environment sees them."""

    def __init__(
        self,
        agent: Agent,
        engine: SimulatedEngine,
        config: PaWTraining,
        curriculum: NoiseCurriculum,
        update: int,
        env: SearchQAEnv,
    ):
        self._agent, self._engine, self._config, self._env = agent, engine, config, env
        self._curriculum, self._update = curriculum, update
        settings = env.settings()
        self._form: Any = (settings["actions"], settings["style"])
        self._count = int(settings["topk"])
        self._golden: dict[str, tuple[str, ...]] = {}
        self.name, self.config = agent.name, getattr(agent, "config", None)
        self.searches = self.noisy = 0

    def required_capabilities(self) -> frozenset[str]:
        """Return what the agent's language model must be able to do."""
        return required_capabilities(self._agent)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Let the agent decide, and where it searches have the documents written."""
        decision = yield from self._agent.decide(view)
        if decision.action is None:
            return decision
        move = read_move(decision.action, *self._form)
        if move.kind != "search":
            return decision
        noisy = self._curriculum.noisy(self._update, view.seed, view.step)
        draw = f"{self._curriculum.seed}\n{self._update}\n{view.seed}\n{view.step}"
        golden = self.golden(view.task)
        search = SimulatedSearch(view.goal, golden, move.text, noisy, self._count, draw)
        reply: Completion = yield search.request(self._config.zerosearch)
        self._engine.prepare(move.text, search.hits(reply.text))
        self.searches, self.noisy = self.searches + 1, self.noisy + noisy
        return replace(decision, notes={**decision.notes, "noisy": noisy})

    def golden(self, task: str) -> tuple[str, ...]:
        """Return the correct answers to a task's question, which no observation has."""
        if task not in self._golden:
            self._env.reset(options={"task": task})
            self._golden[task] = self._env.wanted.golden
        return self._golden[task]


class TwoModels(BaseLanguageModel):
    """A policy, and a simulator that answers the requests for documents."""

    def __init__(self, policy: LanguageModel, simulator: LanguageModel):
        self.policy, self.simulator = policy, simulator
        self.name: str = policy.name
        self.capabilities: frozenset[str] = policy.capabilities
        self.usage = policy.usage

    def count_tokens(self, text: str) -> int:
        return self.policy.count_tokens(text)

    def config(self) -> dict[str, Any]:
        return self.policy.config() | {"simulator": self.simulator.config()}

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        simulated = [request for request in requests if request.purpose == PURPOSE]
        others = [request for request in requests if request.purpose != PURPOSE]
        replies = iter(answer(self.policy, others) if others else [])
        try:
            documents = iter(answer(self.simulator, simulated) if simulated else [])
        except Exception as error:  # it ends the episodes that searched, and no others
            failed = LanguageModelError(f"the simulator failed: {type(error).__name__}: {error}")
            documents = iter([failed] * len(simulated))
        return [next(documents if one.purpose == PURPOSE else replies) for one in requests]


def open_simulator(
    simulator: str | LanguageModel | None,
    config: PaWTraining,
    make_env: MakeEnv,
    out: Path,
    tell: Tell,
) -> LanguageModel | None:
    """Return the model that plays the search engine, if any; ``tiny`` is built and taught here."""
    if simulator is None or not isinstance(simulator, str):
        return simulator
    if simulator != "tiny":
        return create_language_model(simulator)
    target = out / "simulator"
    if is_first() and not target.is_dir():
        _teach_simulator(target, make_env, config, tell)
    wait()
    return create_language_model(str(target), name="tiny simulator")


def _teach_simulator(target: Path, make_env: MakeEnv, config: PaWTraining, tell: Tell) -> None:
    """Build a tiny simulator and teach it, into a folder, whole or not at all."""
    with closing(make_env(config.train_split)) as env:
        rows = list(lessons(env.unwrapped, config.seed))  # type: ignore[arg-type]
    base = target.with_name(f"{target.name}.new")
    shutil.rmtree(base, ignore_errors=True)
    words = [text for row in rows for text in (row.messages[0].content, row.answer)]
    build_tiny(base, words, seed=config.seed, dtype="float32", **_SIZE)
    tokens = config.zerosearch.simulator_warmup_tokens
    warm_up(base, target, rows, tokens, config, "simulator", tell)
    shutil.rmtree(base)


def warm_up(
    base: Path,
    target: Path,
    rows: Sequence[Row],
    tokens: int,
    config: PaWTraining,
    event: str,
    tell: Tell,
    template: Mapping[str, Any] | None = None,
) -> None:
    """Fine-tune a model on so many tokens of rows, into a folder, whole or not at all."""
    draft = target.with_name(f"{target.name}.part")
    shutil.rmtree(draft, ignore_errors=True)

    def step(done: int, total: int, loss: float) -> None:
        tell({"event": event, "done": done, "of": total, "loss": loss})

    sft = SFTConfig(
        tokens=tokens,
        seed=config.seed,
        batch_tokens=config.warmup.warmup_batch_tokens,
        learning_rate=config.warmup.warmup_rate,
        final=config.warmup.warmup_final,
    )
    fine_tune(base, draft, rows, sft, step, template)
    draft.replace(target)


def lessons(env: SearchQAEnv, seed: int) -> Iterator[Row]:
    """Yield what a simulator learns: useful and useless documents for the queries of questions."""
    retriever, count = env.retriever, int(env.settings()["topk"])
    questions = []
    for task in evenly(env.tasks.ids, min(_QUESTIONS, len(env.tasks.ids))):
        env.reset(options={"task": task})
        questions.append(env.wanted)
    rng = random.Random(f"{seed}\nsimulator")
    others = [query for question in questions for query in queries_of(question)]

    def useless(question: Question, found: Sequence[Hit]) -> list[Hit]:
        """Return passages found for another question; none where all tries are of use."""
        known = {hit.id for hit in found}
        for _ in range(_TRIES):
            (hits,) = retriever.search([others[rng.randrange(len(others))]], count)
            if hits and not any(
                hit.id in known or contains_answer(f"{hit.title} {hit.text}", question.golden)
                for hit in hits
            ):
                return hits
        return []

    for question in questions:
        for query, answers in queries_of(question).items():
            (found,) = retriever.search([query], count)
            noise = useless(question, found)
            for hits, noisy in ((found, False), (noise, True)):
                search = SimulatedSearch(question.text, question.golden, query, noisy, count)
                if hits and noise:
                    yield Row(search.prompt(), write_documents(hits, answers))


def queries_of(question: Question) -> dict[str, tuple[str, ...]]:
    """Return the queries for a question, and the answers that each should find."""
    hops: dict[str, tuple[str, ...]] = {hop.question: (hop.answer,) for hop in question.hops}
    return hops or {question.text: question.golden}


def check_search(config: PaWTraining, make_env: MakeEnv, simulator: object) -> None:
    """Refuse settings for search QA in other environments, and a simulated engine without a model."""
    simulated, f1 = config.engine == "simulated", config.reward == "f1"
    names = ["engine='simulated'"] * simulated + ["reward='f1'"] * f1
    if names:
        if isinstance(make_env, Environments):
            env_id = make_env.env_id
        else:
            with closing(make_env(config.train_split)) as env:
                env_id = str(getattr(env.unwrapped, "env_id", ""))
        if text_env_of(env_id).reply_form.kind != "search":
            raise OptionError(
                f"{', '.join(names)} is for search QA (comap/SearchQA-v0), found the environment "
                f"{env_id!r}; use another preset, or add --env comap/SearchQA-v0"
            )
    if simulated != (simulator is not None):
        raise OptionError(
            "engine='simulated' and a simulator go together, found "
            + ("no simulator" if simulator is None else f"engine={config.engine!r}")
            + "; add --simulator MODEL (a folder, a name on the hub, http://HOST:PORT/v1#NAME, or "
            "tiny) to the preset zerosearch, and leave it out elsewhere"
        )
    if (simulated or f1) and not isinstance(make_env, Environments):
        raise OptionError("reward='f1' and engine='simulated' need Environments as make_env")


class SearchTraining:
    """Makes the environments, agents and rewards of a training's rollouts; evaluations have their own.

    Without F1 and without a simulated engine all is as it was given.
    """

    def __init__(
        self,
        config: PaWTraining,
        make_env: MakeEnv,
        updates: int,
        simulator: LanguageModel | None = None,
    ):
        self._config, self._simulator = config, simulator
        self._curriculum = NoiseCurriculum.of(config, updates)
        self._engine = None if simulator is None else SimulatedEngine(simulator.name)
        options: dict[str, Any] = {}
        if config.reward == "f1":
            options |= {"reward": "f1", "invalid_penalty": 0.0}  # penalties are the trainer's own
        if self._engine is not None:
            options["retriever"] = self._engine
        if options:
            assert isinstance(make_env, Environments)
            make_env = replace(make_env, options={**make_env.options, **options})
        self._make_env = make_env
        self._spare: gymnasium.Env[str, str] | None = None
        self._playing: SearchingAgent | None = None

    @property
    def reward(self) -> Callable[[Trajectory], Sequence[float]] | None:
        """Returns the rewards of an episode's steps; None where these are others."""
        if self._config.reward not in ("f1", "env"):
            return None
        scale = self._config.success_reward if self._config.reward == "f1" else 1.0
        return lambda episode: [scale * step.reward + 0.0 for step in episode.steps]  # never -0.0

    def make_env(self) -> gymnasium.Env[str, str]:
        return self._make_env(self._config.train_split)

    def agent(self, agent: Agent, update: int) -> Agent:
        """Return the agent that plays the episodes of an update, counted from 0."""
        if self._engine is None:
            return agent
        if self._spare is None:
            self._spare = self.make_env()
        env = self._spare.unwrapped
        assert isinstance(env, SearchQAEnv)
        self._playing = SearchingAgent(
            agent, self._engine, self._config, self._curriculum, update, env
        )
        return self._playing

    def language_model(self, policy: LanguageModel) -> LanguageModel:
        """Return what answers that agent: the policy, and beside it the simulator."""
        return policy if self._simulator is None else TwoModels(policy, self._simulator)

    def sums(self) -> dict[str, float]:
        """Return counts of this process's searches in an update: nothing without a simulator."""
        own = self._playing
        return {} if own is None else {"searches": own.searches, "noisy_searches": own.noisy}

    def noise(self, update: int) -> dict[str, float]:
        """Return an update's probability of noisy documents: nothing without a simulator."""
        return {} if self._engine is None else {"noise": self._curriculum.probability(update)}

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None


def conversation_rows(
    demonstrations: Iterable[Trajectory],
    config: PaWConfig,
    model: str | Path,
    *,
    observations: float = 0.0,
    template: Mapping[str, Any] | None = None,
) -> Iterator[Row]:
    """Yield a row for each step of demonstrations that is to be copied: the agent's prompt, its reply.

    In search QA replies have tags. Where the context is concat, a row is a whole episode with all of
    its replies; of a share of the episodes all tokens are learned, `observations` too.
    """
    from ...lm.load import load_tokenizer

    agent, tokenizer = PaWAgent(config), load_tokenizer(Path(model), None)
    chat = ChatTokenizer(tokenizer, (), template)
    for demonstration in demonstrations:
        memory: dict[str, Any] = {}
        row, spans, last = None, list[tuple[int, int]](), 0
        for view, _, step in views_of(demonstration, chat.count):
            deciding = agent.decide(replace(view, memory=memory))
            try:
                request: Any = next(deciding)
            except StopIteration:
                raise DataCorrupt(
                    f"expected a demonstration that fits into {config.max_length} tokens, found a "
                    f"longer one (task {demonstration.task!r:.80}); raise max_length"
                ) from None
            text = _reply_text(step, config)
            (prompt,), (tokens,) = chat.prompts([request]), chat.tokens([text])
            if isinstance(prompt, LanguageModelError):
                raise prompt
            ids = (*tokens, chat.end)
            with suppress(StopIteration):
                deciding.send(
                    Completion(text, ids, prompt_tokens=len(prompt), completion_tokens=len(ids))
                )
            row = Row(request.messages, text, request.reply_ids, thinking=request.thinking)
            last = len(prompt) + len(ids)
            if is_shown(step):
                spans.append((len(prompt), last))
                if config.context != "concat":
                    yield row
        if config.context == "concat" and row is not None and spans:
            learned = random.Random(f"observations\n{demonstration.task}").random() < observations
            yield row._replace(spans=((1, last),) if learned else tuple(spans))


def _reply_text(step: Step, config: PaWConfig) -> str:
    if config.prompts == "brief":
        return f"Action: {step.action}"
    move = read_move(step.action)
    if not move.kind:
        raise DataCorrupt(f"expected a search or an answer in tags, found {step.action!r:.80}")
    return f"<think>{_THOUGHTS[move.kind]}</think><{move.kind}>{move.text}</{move.kind}>"
