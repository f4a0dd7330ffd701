"""The main job: learn a world model from transitions, score it, and act in imagination."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from ..agents import Agent, ExpertAgent, RandomAgent, ReplayAgent, run_episode
from ..agents.comap import GatePath
from ..agents.config import AgentConfig
from ..agents.create import create_agent
from ..agents.runner import run_episodes
from ..agents.tally import Tally
from ..envs import Describer, Snapshot, TextEnv
from ..envs.generated import is_generated, tasks_in_words
from ..envs.panel import evenly
from ..envs.registry import env_class
from ..errors import DataNotFound, MissingExtra, OptionError
from ..facts import State
from ..lm import create_language_model
from ..lm.create import SHIPPED, ShippedModels, check_packages, hush, shipped_models
from ..metrics import (
    Consistency,
    DeltaF1Report,
    Rate,
    consistency,
    delta_f1,
    delta_f1_report,
    goal_condition_success,
    success_rate,
)
from ..trainers.setup import Environments
from ..trajectory import Step, Trajectory, write_trajectories
from ..worldmodel import (
    Grounded,
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    Query,
    RetrievalWorldModel,
    WorldModel,
    ask,
    transitions_of,
)
from ..worldmodel.language import LanguageWorldModel
from .display import print_table, progress, tracked
from .record import circumstances, write_result
from .report import (
    Episode,
    Section,
    place_of_interest,
    render_page,
    report_line,
    write_whole,
)
from .tables import Plot, Series, Table

Env: TypeAlias = "gymnasium.Env[str, str]"
Models: TypeAlias = "Mapping[str, WorldModel]"
Advance: TypeAlias = "Callable[[], object]"
Transition: TypeAlias = "tuple[State, State, State]"
_EVERY = 4  # steps between the starts of two imagined rollouts
_SHOWN = 12  # episodes beside their imagination
_MANY, _FEW = (300, 60), (14, 7)  # tasks to learn from and to measure on; few where they are slow
_PACKAGES = ("gymnasium", "numpy", "rapidfuzz", "torch", "transformers")
_NONE, _LEARNED, _ORACLE = "ReAct, without a world model", "CoMap", "CoMap, with the oracle"
_WORDS = {
    "null": "predicts that nothing happens",
    "retrieval": "learned in this demo: predicts what followed the most similar action",
    "noisy": "predicts what really follows, with this share of its changes wrong",
    "oracle": "tries each action in a copy of the real environment",
    "expert": "solves the task; inside a world model it acts on what that predicts",
    "random": "takes admissible actions at random",
    _NONE: "takes CoMap's draft, whatever follows: the same policy with its gate shut",
    _LEARNED: "drafts an action, predicts with its own world model what follows, and may revise it",
    _ORACLE: "the same policy, told what really follows: not a result to report",
}
MOST = 100
"""The tasks that each learned agent plays."""


@dataclass(frozen=True, slots=True)
class RolloutPoint:
    """How well imagined rollouts of one length agree with the real ones."""

    length: int
    delta_f1: float
    stderr: float
    exact: float
    n: int


def predicted(
    env: Env, models: Models, trajectories: Iterable[Trajectory]
) -> dict[str, list[Transition]]:
    """Return the beliefs before, as predicted and after each real transition, for each model."""
    found: dict[str, list[Transition]] = {name: [] for name in models}
    inner = _inner(env)
    for trajectory in trajectories:
        env.reset(options={"task": trajectory.task})
        for before, step in trajectory.transitions():
            history, admissible = inner.history(), inner.admissible_actions
            query = Query(inner.env_id, inner.goal, history, before, step.action, admissible)
            for name, model in models.items():
                if isinstance(model, Grounded):
                    model.ground(env)
                (prediction,) = ask(model, [query])
                update = inner.canonicalizer.update
                guess = update(before, step.action, prediction.observation)
                found[name].append((before, guess, step.facts))
            env.step(step.action)
    return found


def rollouts(
    env: Env, models: Models, trajectories: Iterable[Trajectory], lengths: Sequence[int]
) -> dict[str, list[RolloutPoint]]:
    """Return how imagined rollouts of growing length compare with the real ones."""
    scores: dict[str, dict[int, list[tuple[float, bool]]]] = {
        name: {length: [] for length in lengths} for name in models
    }
    inner = _inner(env)
    for trajectory in trajectories:
        env.reset(options={"task": trajectory.task})
        snapshots = [inner.snapshot()]
        for step in trajectory.steps:
            env.step(step.action)
            snapshots.append(inner.snapshot())
        for name, model in models.items():
            imagined = ImaginedEnv(env, model, horizon=10**9)
            for start in range(0, len(trajectory.steps), _EVERY):
                _roll_out(imagined, snapshots[start], trajectory.steps[start:], scores[name])
    found: dict[str, list[RolloutPoint]] = {name: [] for name in models}
    for name, by_length in scores.items():
        for length, rows in by_length.items():
            if n := len(rows):
                f1, exact = np.array(rows, dtype=float).T
                error = float(f1.std(ddof=1)) / n**0.5 if n > 1 else 0.0
                found[name].append(RolloutPoint(length, fmean(f1), error, fmean(exact), n))
    return found


def _roll_out(
    imagined: ImaginedEnv,
    snapshot: Snapshot,
    steps: Sequence[Step],
    scores: dict[int, list[tuple[float, bool]]],
) -> None:
    imagined.restore(snapshot)
    before = facts = snapshot.facts
    ended, observation = False, ""
    for length, step in enumerate(steps[: max(scores)], 1):
        over = ended
        if not over:  # an imagined episode that ended stays as it was
            observation, _, terminated, truncated, info = imagined.step(step.action)
            ended, facts = terminated or truncated, info["facts"]
        if length in scores:
            score = delta_f1(before, facts, step.facts)
            scores[length].append((score, observation == step.observation and not over))


def _inner(env: Env) -> TextEnv:
    inner = env.unwrapped
    assert isinstance(inner, TextEnv)
    return inner


def learned_models(env_id: str) -> ShippedModels:
    """Return the models that comap ships for an environment, if they can be used here."""
    if env_id not in SHIPPED:
        raise DataNotFound(
            f"expected models that comap ships for {env_id}, found none; give a model of yours to "
            "comap run (--model)"
        )
    found = shipped_models(SHIPPED[env_id])
    check_packages()
    return found


def play_learned(
    make_env: Callable[[], Env],
    tasks: Sequence[str],
    models: ShippedModels,
    *,
    seed: int = 0,
    advance: Advance = lambda: None,
) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Play with the shipped policy: without a world model, with its own, and with the oracle."""
    import torch

    hush()
    policy = create_language_model("shipped:agent", device="cpu")
    world = create_language_model("shipped:wm", device="cpu")
    settings = {"seed": seed, **models.settings["agent"]}
    shared = {part.name for part in fields(AgentConfig)}
    of_react = {name: value for name, value in settings.items() if name in shared}
    comap = create_agent("comap", **settings)
    players: dict[str, tuple[Any, WorldModel | None]] = {
        _NONE: (create_agent("react", **of_react), None),
        _LEARNED: (comap, LanguageWorldModel(world, **models.settings["world_model"])),
        _ORACLE: (comap, OracleWorldModel()),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a small model's threads wait for each other longer than they work
    found, played = [], []
    try:
        for name, (agent, model) in players.items():
            given: dict[str, Any] = {"lm": policy, "world_model": model, "keep": "prompts"}
            given |= {"concurrency": len(tasks), "on_done": lambda trials: advance()}
            episodes = run_episodes(make_env, agent, tasks, **given)
            found.append(_summary(name, episodes))
            played += [replace(episode, agent=name) for episode in episodes]
    finally:
        torch.set_num_threads(threads)
    return found, played


def _summary(name: str, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    gates = [gate for episode in episodes for gate in _gates(episode)]
    counts = {"reflected": len(gates), "revised": gates.count(True)}
    won = {"won": [episode.success for episode in episodes]}
    return {"agent": name, **counts, **won, **Tally.of(episodes).summary()}


def _gates(episode: Trajectory) -> list[bool]:
    """Return for each decision with a reflection whether its draft was revised."""
    notes = [step.notes for step in episode.steps]
    return [note["gate"] for note in notes if note.get("path") == GatePath.REFLECTED]


def learned_in(learned: Sequence[Mapping[str, Any]]) -> str:
    """Return in a sentence what the learned agents' successes say, paired by task."""
    none, own, _ = learned
    rates = [f"{100 * one['success']['value']:.0f} %" for one in learned]
    gains = [float(a) - float(b) for a, b in zip(own["won"], none["won"], strict=True)]
    mean, half = fmean(gains), 1.96 * float(np.std(gains)) / len(gains) ** 0.5
    low, high = mean - half, mean + half
    if low > 0:
        verdict = "its own world model helps"
    elif high < 0:
        verdict = "its own world model harms"
    else:
        verdict = "so few tasks cannot tell whether its own world model helps or harms"
    return (
        f"One learned policy wins {rates[0]} of {len(gains)} generated tasks without a world model, "
        f"{rates[1]} with its own and {rates[2]} with the oracle: {verdict} "
        f"({100 * mean:+.0f} points, 95 % interval {100 * low:+.0f} to {100 * high:+.0f})."
    )


def chosen(episodes: Sequence[Trajectory], number: int = 2) -> list[Trajectory]:
    """Return the episodes of CoMap's that show most: first those where a revision changed facts."""
    own = [episode for episode in episodes if episode.agent == _LEARNED]
    return sorted(own, key=lambda one: place_of_interest(Episode("", one, None)))[:number]


@dataclass(frozen=True)
class DemoConfig:
    """What the demo does."""

    env: str = "comap/ALFWorld-v0"
    """Id of the environment, or MODULE:ID."""
    engine: str | None = None
    """Engine of an environment that has several: twin (its default) or chromium of comap/Web-v0."""
    data_dir: str | None = None
    """Folder with official data; None for the data on this machine, or else generated tasks."""
    out: str = "runs/demo"
    """Folder for the report, the results, the trajectories and the fitted world model."""
    train_split: str = "train"
    """Split that the world model learns from."""
    test_split: str | None = None
    """Split to measure on; None for the environment's hardest test split."""
    train_tasks: int | None = None
    """Number of tasks to learn from, spread evenly over the split: 300, 14 if episodes take seconds."""
    test_tasks: int | None = None
    """Number of tasks to measure on, spread evenly over the split: 60, 7 if episodes take seconds."""
    seed: int = 0
    """Seed of the random agent and of the noisy world models."""
    error_rates: tuple[float, ...] = (0.1, 0.3)
    """Error rates of the noisy world models."""
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Lengths of imagined rollouts, in steps."""

    def __post_init__(self) -> None:
        for name in ("train_tasks", "test_tasks"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, not {value}")
        if min(self.lengths, default=0) < 1:
            raise OptionError(f"lengths must be at least 1, not {self.lengths}")
        if not all(0 <= rate <= 1 for rate in self.error_rates):
            raise OptionError(f"error_rates must be from 0 to 1, not {self.error_rates}")


@dataclass
class _Results:
    fingerprint: dict[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    one_step: dict[str, dict[str, DeltaF1Report]] = field(default_factory=dict)
    rollouts: dict[str, list[RolloutPoint]] = field(default_factory=dict)
    agents: list[tuple[str, str, Rate, float]] = field(default_factory=list)
    plans: dict[str, Consistency] = field(default_factory=dict)
    learned: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def run_demo(config: DemoConfig) -> str:
    with env_class(config.env).engine_pool(2):
        job = _Demo(config)
        with job.phase("gather"):
            train = job.gather(job.train, job.train_tasks, "Gathering training episodes")
            test = job.gather(job.test, len(job.tasks), "Gathering unseen episodes")
        with job.phase("fit"):
            models = job.fit(train)
        with job.phase("one step"):
            job.score_one_step(models, test)
        with job.phase("rollouts"):
            episodes = tracked(test, "Scoring imagined rollouts")
            job.results.rollouts = rollouts(job.test, models, episodes, job.config.lengths)
        with job.phase("agents"):
            pairs = job.act(models)
        with job.phase("learned agent"):
            learned = job.act_learned()
        return job.report([*learned, *pairs])


class _Demo:
    def __init__(self, config: DemoConfig):
        cls = env_class(config.env)
        if config.test_split is None:
            splits = cls.test_splits or (config.train_split,)
            config = replace(config, test_split=splits[-1])
        slow = cls.slow or config.engine == "chromium"
        usual_train, usual_test = _FEW if slow else _MANY
        self.train_tasks = config.train_tasks or usual_train
        test_tasks = config.test_tasks or usual_test
        self.config = replace(config, train_tasks=self.train_tasks, test_tasks=test_tasks)
        self.out = Path(config.out)
        options = cls.belief_expert() | cls.listed_actions()
        if config.engine is not None:
            options["engine"] = config.engine
        if config.data_dir is not None:
            options["data_dir"] = config.data_dir
        elif cls.slow:
            options |= cls.generated_options
        make_env = Environments(config.env, options)
        self.train = make_env(config.train_split)
        self.test = make_env(config.test_split)
        self.tasks = evenly(_inner(self.test).tasks.ids, test_tasks)
        self.out.mkdir(parents=True, exist_ok=True)
        self.results = _Results(_inner(self.test).fingerprint())
        self.learned_parameters = 0
        self.agents: tuple[Agent, ...] = (ExpertAgent(), RandomAgent(config.seed, mixed=0.1))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.results.seconds[name] = round(time.perf_counter() - start, 2)

    def gather(self, env: Env, number: int, label: str) -> list[Trajectory]:
        tasks = evenly(_inner(env).tasks.ids, number)
        return [
            run_episode(env, agent, task=task)
            for task in tracked(tasks, label)
            for agent in self.agents
        ]

    def fit(self, train: Sequence[Trajectory]) -> dict[str, WorldModel]:
        learner = RetrievalWorldModel()
        for trajectory in tracked(train, "Fitting the retrieval world model"):
            learner.fit(transitions_of(trajectory))
        learner.save(self.out / "retrieval.jsonl")
        self.results.counts["training transitions"] = len(learner)
        noisy = {}
        if isinstance(_inner(self.test).canonicalizer, Describer):
            for rate in self.config.error_rates:
                noisy[f"noisy {rate:g}"] = NoisyWorldModel(rate, seed=self.config.seed)
        else:
            print("No noisy model is shown: facts have no words in this environment")
        models: dict[str, WorldModel] = {"null": NullWorldModel(), "retrieval": learner, **noisy}
        return models | {"oracle": OracleWorldModel()}

    def score_one_step(self, models: Models, test: Sequence[Trajectory]) -> None:
        self.results.counts["test transitions"] = sum(len(t.steps) for t in test)
        rows: dict[str, dict[str, list[Transition]]] = {}
        for agent in self.agents:
            own = [t for t in test if t.agent == agent.name]
            label = f"Scoring single predictions: {agent.name}"
            rows[agent.name] = predicted(self.test, models, tracked(own, label))
        rows["all"] = {m: [row for found in rows.values() for row in found[m]] for m in models}
        for name, found in rows.items():
            self.results.one_step[name] = {m: delta_f1_report(found[m]) for m in models}

    def act(self, models: Models) -> list[Episode]:
        """Play as the agents, really and in each model's imagination; return pairs to look at."""
        real: list[Trajectory] = []
        worlds: dict[str, Env] = {"real": self.test}
        worlds |= {name: ImaginedEnv(self.test, model) for name, model in models.items()}
        expert_from = getattr(type(_inner(self.test)), "expert_from", None)
        plays = [  # in imagination an expert must know what to do by beliefs
            (agent, name, task)
            for agent in self.agents
            for name in worlds
            if name == "real" or agent.name != "expert" or expert_from is not TextEnv.expert_from
            for task in self.tasks
        ]
        played: dict[tuple[str, str], list[Trajectory]] = {}
        for agent, name, task in tracked(plays, "Acting, really and in imagination"):
            episode = run_episode(worlds[name], agent, task=task)
            played.setdefault((agent.name, name), []).append(episode)
        for (agent_name, name), episodes in played.items():
            rate = success_rate(e.success for e in episodes)
            score = goal_condition_success(e.score for e in episodes)
            self.results.agents.append((agent_name, name, rate, score))
            if name == "real":
                real += episodes
            elif agent_name == "expert":
                really = [_replay(self.test, e).success for e in episodes]
                self.results.plans[name] = consistency([e.success for e in episodes], really)
        write_trajectories(self.out / "trajectories.jsonl", real)
        imagined = ImaginedEnv(self.test, models["retrieval"], horizon=10**6)
        return [
            Episode(f"{e.agent}: {e.goal}", e, _replay(imagined, e)) for e in evenly(real, _SHOWN)
        ]

    def act_learned(self) -> list[Episode]:
        try:
            models = learned_models(self.config.env)
        except (DataNotFound, MissingExtra) as error:
            print(f"No learned agent is shown: {error}", flush=True)
            return []
        options = {**models.settings["env_options"], "source": "generated"}
        make_env = partial(Environments(self.config.env, options), self.config.test_split)
        with closing(make_env()) as env:
            tasks = evenly(_inner(env).tasks.ids, MOST)
        with progress("Acting, with learned models", total=3 * len(tasks)) as advance:
            found, episodes = play_learned(
                make_env, tasks, models, seed=self.config.seed, advance=advance
            )
        self.results.learned, self.learned_parameters = found, models.parameters
        write_trajectories(self.out / "learned.jsonl", episodes)
        return [Episode(f"{e.agent}, learned: {e.goal}", e, None) for e in chosen(episodes)]

    def about(self) -> str:
        """Return what the environment is, and what was done in it."""
        summary = (env_class(self.config.env).__doc__ or "").strip().partition("\n\n")[0]
        counts, tasks = self.results.counts, self.tasks_in_words()
        return (
            f"{self.config.env}: {' '.join(summary.split())} A world model learned from "
            f"{counts['training transitions']:,} steps of an expert and of a random agent. It and others "
            f"then predicted {counts['test transitions']:,} steps of {tasks} that it had not seen, and "
            "agents played these, in the real environment and inside each world model."
        )

    def tasks_in_words(self) -> str:
        """Return how many tasks are measured on, and whether they are generated."""
        return tasks_in_words(len(self.tasks), sum(map(is_generated, self.tasks)))

    def report(self, episodes: Sequence[Episode]) -> str:
        results = self.results
        tables = [_delta_table(results), _rollout_table(results), _agent_table(results)]
        if results.plans:
            tables.append(_plan_table(results))
        tables = [replace(one, title=f"{one.title} ({self.tasks_in_words()})") for one in tables]
        if results.learned:
            tables.append(learned_table(results.learned, self.learned_parameters))
        for table in tables:
            print_table(table)
        said = [found_in(results), *([learned_in(results.learned)] if results.learned else [])]
        print("\n" + "\n".join(said))
        record = circumstances(_PACKAGES) | {
            "config": asdict(self.config) | {"data_dir": None, "out": None},
            "tasks": self.tasks_in_words(),
            **asdict(results),
        }
        write_result(self.out / "results.json", record)
        kind = results.fingerprint.get("games", "")
        summary = {
            "environment": self.config.env,
            "tasks": f"{kind}; split {self.config.test_split}, {self.tasks_in_words()}",
            **{name: f"{number:,}" for name, number in results.counts.items()},
            "seconds": ", ".join(f"{k} {v:.1f}" for k, v in results.seconds.items()),
        }
        first, *further = _plots(results)
        shown = [*([_learned_plot(results.learned)] if results.learned else []), first]
        sections = [
            Section("", plots=shown, terms=_words_of(results), note=_note_of(results)),
            Section("All results", tables, further, folded=True),
            Section("What was measured", terms={"": summary}, folded=True),
        ]

        def write() -> Path:
            page = render_page(
                "comap demo", {}, sections, episodes, lead=" ".join(said), about=self.about()
            )
            return write_whole(self.out / "report.html", page)

        return report_line(write)


def found_in(results: _Results) -> str:
    """Return in a sentence how good the learned world model is, and what plans made in it are worth."""
    share = results.one_step["all"]["retrieval"].nonempty_mean
    said = f"The retrieval world model predicts {100 * share:.0f} % of the changes"
    if (plan := results.plans.get("retrieval")) is None:
        return f"{said}."
    if not plan.imagined.value:
        return f"{said}; no plan made in it succeeds, not even in imagination."
    held = f"{100 * plan.precision:.0f} %"
    return f"{said}; {held} of the plans made in it hold up in the real environment."


def _note_of(results: _Results) -> str:
    note = "Changes: Delta-F1 of single predictions where something changes."
    if (plan := results.plans.get("retrieval")) is None:
        return note
    return (
        f"{note} Plans: of those that solve a task in the world model ({plan.imagined.value * plan.n:.0f} "
        f"of {plan.n} in retrieval's), the share that solves it in the real environment too."
    )


def _words_of(results: _Results) -> dict[str, dict[str, str]]:
    agents = [*(agent for agent, *_ in results.agents), *(one["agent"] for one in results.learned)]
    return {
        title: {name: _WORDS.get(name) or _WORDS[name.partition(" ")[0]] for name in names}
        for title, names in (("World models", list(results.rollouts)), ("Agents", agents))
    }


def _replay(env: Env, trajectory: Trajectory) -> Trajectory:
    return run_episode(env, ReplayAgent(trajectory), task=trajectory.task)


def _delta_table(results: _Results) -> Table:
    every, expert, random = (results.one_step[name] for name in ("all", "expert", "random"))
    rows = []
    for name, report in every.items():
        error = round(100 * report.stderr, 1)  # more decimals than the mean has would say nothing
        shares = (expert[name].mean, random[name].mean)
        further = (report.exact_share, report.parse_failure_rate)
        means = (100 * report.nonempty_mean, 100 * report.mean, error)
        rows.append((name, *means, *(100 * share for share in (*shares, *further)), report.n))
    unchanged = 100 * next(iter(every.values())).no_op_share
    return Table(
        "World models: Delta-F1 of single predictions",
        ("model", "of changes", "of all", "s.e.", "expert", "random", "exact", "unreadable", "n"),
        tuple(rows),
        f"Percent. 'of changes' leaves out the {unchanged:.1f} % of the transitions in which nothing "
        "changes; the columns after it do not. 's.e.' is the standard error of 'of all', 'expert' and "
        "'random' are the steps of one agent, 'exact' is the share predicted without any error, "
        "'unreadable' the share of predicted texts of which the environment's rules understand nothing.",
    )


def _rollout_table(results: _Results) -> Table:
    points = next(iter(results.rollouts.values()))
    rows = [
        (name, *(100 * point.delta_f1 for point in found))
        for name, found in results.rollouts.items()
    ]
    numbers = ", ".join(f"{point.n} of {point.length}" for point in points)
    steps = (f"{point.length} step{'s' if point.length > 1 else ''}" for point in points)
    return Table(
        "World models: Delta-F1 of imagined rollouts, by length",
        ("model", *steps),
        tuple(rows),
        f"Percent, of the change over the whole rollout. Rollouts scored: {numbers} steps.",
    )


def _agent_table(results: _Results) -> Table:
    return Table(
        "Agents, really and in imagination: success",
        ("agent", "world", "success (95 %)", "goal conditions"),
        tuple(
            (agent, world, str(rate), round(100 * score, 1))
            for agent, world, rate, score in results.agents
        ),
        "Percent. 'goal conditions': how much of its task an episode has done at its end, on average; "
        "all of it is a success. In imagination both are what the imagined facts say.",
    )


def _plan_table(results: _Results) -> Table:
    rows = []
    for name, plan in results.plans.items():
        shares = (plan.imagined.value, plan.real.value, plan.precision, plan.agreement)
        rows.append((name, *(100 * share for share in shares), plan.n))
    return Table(
        "The expert's imagined plans, carried out for real",
        ("model", "imagined success", "real success", "held up", "agreement", "n"),
        tuple(rows),
        "Percent. 'held up': of the plans that succeed in imagination, those that really do. "
        "'agreement': of all plans, those that succeed in both or fail in both.",
    )


def learned_table(learned: Sequence[Mapping[str, Any]], parameters: int) -> Table:
    rows = []
    for one in learned:
        revised = 100 * one["revised"] / one["reflected"] if one["reflected"] else None
        rate = str(Rate(**one["success"]))
        score = round(100 * one["score"], 1)
        rows.append((one["agent"], rate, score, one["steps"]["per_episode"], revised))
    failed = sum(count for one in learned for count in one["errors"].values())
    played = tasks_in_words(learned[0]["n"], learned[0]["generated_tasks"])
    return Table(
        f"A learned agent: success ({played})",
        ("agent", "success (95 %)", "goal conditions", "steps", "revised"),
        tuple(rows),
        "Percent, but for steps. 'goal conditions': how much of its task an episode has done at its end, "
        "on average. Policy and world model come with comap: "
        f"{parameters / 1e6:.1f} M parameters each, trained on other generated games. 'revised': of "
        "the drafts that were reflected on, those that another action took the place of."
        + (f" {failed} episodes failed." if failed else ""),
    )


def _plots(results: _Results) -> list[Plot]:
    series = []
    for name, points in results.rollouts.items():
        x = tuple(float(point.length) for point in points)
        y, low, high = (
            tuple(100 * min(max(p.delta_f1 + side * 1.96 * p.stderr, 0), 1) for p in points)
            for side in (0, -1, 1)
        )
        series.append(Series(name, x, y, low, high))
    by_predicate = results.one_step["all"]["retrieval"].by_predicate
    predicates = sorted(by_predicate)
    positions = tuple(float(position) for position in range(len(predicates)))
    bars = Series("retrieval", positions, tuple(100 * by_predicate[name].f1 for name in predicates))
    title, label = "Retrieval world model, by kind of fact", "F1 of its changes (%)"
    return [
        _first_plot(results),
        Plot("Imagined rollouts", "steps imagined in a chain", "Delta-F1 (%)", tuple(series)),
        Plot(title, "predicate", label, (bars,), kind="bar", labels=tuple(predicates)),
    ]


def _learned_plot(learned: Sequence[Mapping[str, Any]]) -> Plot:
    """Return the success of one policy with ever better world models, with 95 % intervals."""
    rates = [one["success"] for one in learned]
    mean, low, high = (tuple(100 * one[key] for one in rates) for key in ("value", "low", "high"))
    bars = Series("success", tuple(map(float, range(len(rates)))), mean, low, high)
    return Plot(
        "One learned policy: success by world model",
        "world model",
        "tasks won (%), with 95 % intervals",
        (bars,),
        kind="bar",
        labels=("none", "its own", "the oracle"),
        first_color=2,  # another than those of the plot beside it, which shows other things
    )


def _first_plot(results: _Results) -> Plot:
    """Return how well each world model predicts, beside what plans made in it are worth."""
    reports = results.one_step["all"]
    places = tuple(float(place) for place in range(len(reports)))
    shares = {"changes predicted (Delta-F1)": {m: one.nonempty_mean for m, one in reports.items()}}
    if results.plans:
        shares["plans that hold up in the real environment"] = {
            name: plan.precision if plan.imagined.value else math.nan
            for name, plan in results.plans.items()
        }
    series = (
        Series(name, places, tuple(100 * found.get(model, math.nan) for model in reports))
        for name, found in shares.items()
    )
    title = "World models: predictions, and plans made in them"
    label = "of changes, or of plans (%)"
    return Plot(title, "world model", label, tuple(series), kind="bar", labels=tuple(reports))
