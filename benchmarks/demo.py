"""The main job: learn a world model from transitions, score it, and act in imagination.

``comap demo`` runs it on generated tasks, ``comap demo --data-dir DIR`` on official ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import Agent, ExpertAgent, RandomAgent, run_episode
from ..envs import Describer, TextEnv
from ..envs.panel import evenly
from ..envs.registered import (
    belief_expert,
    embedded_tasks,
    engines_kept,
    evaluated_splits,
    is_slow,
    listed_actions,
)
from ..errors import CoMapError, DataNotFound, MissingExtra, OptionError
from ..metrics import (
    Consistency,
    DeltaF1Report,
    Rate,
    consistency,
    delta_f1_report,
    goal_condition_success,
)
from ..trajectory import Trajectory, write_trajectories
from ..worldmodel import (
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    RetrievalWorldModel,
    WorldModel,
    transitions_of,
)
from .imagination import RolloutPoint, predicted, replay, rollouts, success
from .learned import MOST, Learned, chosen, learned_models, learned_table, play_learned
from .record import circumstances, write_result
from .report import Episode, Plot, Series, Table, print_table, progress, write_report

__all__ = ["DemoConfig", "run_demo"]

_SHOWN = 12
_MANY, _FEW = (300, 60), (14, 7)  # tasks to learn from and to measure on
_PACKAGES = ("gymnasium", "numpy", "rapidfuzz", "torch", "transformers")


@dataclass(frozen=True)
class DemoConfig:
    """What the demo does."""

    env: str = "comap/ALFWorld-v0"
    """The environment's id."""
    data_dir: str | None = None
    """Folder with official data; None for what `env` finds or generates by itself."""
    out: str = "runs/demo"
    """Folder for the report, the results, the trajectories and the fitted world model."""
    train_split: str = "train"
    """Split that the world model learns from."""
    test_split: str | None = None
    """Split that everything is measured on; None for the environment's hardest for tests."""
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


@dataclass
class _Results:
    """What the demo found."""

    fingerprint: dict[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    one_step: dict[str, dict[str, DeltaF1Report]] = field(default_factory=dict)
    rollouts: dict[str, list[RolloutPoint]] = field(default_factory=dict)
    agents: list[tuple[str, str, Rate, float]] = field(default_factory=list)
    plans: dict[str, Consistency] = field(default_factory=dict)
    learned: list[Learned] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def run_demo(config: DemoConfig) -> Path:
    """Run the main job and return the path of its report.

    Args:
        config: What to do.

    Raises:
        CoMapError: The data, the environment or an option is not right; the message says how.
        MissingExtra: The extra ``viz`` is not installed.
    """
    for name in ("train_tasks", "test_tasks", "lengths"):
        value = getattr(config, name)
        if value is None:
            continue
        if not value or min(value if isinstance(value, tuple) else (value,)) < 1:
            raise OptionError(f"{name} must be at least 1, not {value}")
    for rate in config.error_rates:
        if not 0 <= rate <= 1:
            raise OptionError(f"error_rates must be from 0 to 1, not {rate}")
    with engines_kept(config.env, 2):
        return _run(_Demo(config))


def _run(job: _Demo) -> Path:
    """Do everything, phase by phase."""
    with job.phase("gather"):
        train = job.gather(job.train, job.train_tasks, "Gathering training episodes")
        test = job.gather(job.test, len(job.tasks), "Gathering unseen episodes")
    with job.phase("fit"):
        models = job.fit(train)
    with job.phase("one step"):
        job.score_one_step(models, test)
    with job.phase("rollouts"):
        job.score_rollouts(models, test)
    with job.phase("agents"):
        pairs = job.act(models)
    with job.phase("learned agent"):
        shown = job.act_learned()
    return job.report(shown + pairs)


class _Demo:
    """The job, phase by phase."""

    def __init__(self, config: DemoConfig):
        if config.test_split is None:
            splits = evaluated_splits(config.env) or (config.train_split,)
            config = replace(config, test_split=splits[-1])
        slow = is_slow(config.env)
        train_tasks, test_tasks = _FEW if slow else _MANY
        train_tasks, test_tasks = config.train_tasks or train_tasks, config.test_tasks or test_tasks
        self.config = replace(config, train_tasks=train_tasks, test_tasks=test_tasks)
        self.train_tasks, self.out = train_tasks, Path(config.out)
        options = belief_expert(config.env) | listed_actions(config.env)
        if config.data_dir is not None:
            options["data_dir"] = config.data_dir
        elif slow:
            options |= embedded_tasks(config.env)
        self.train = _make(config.env, config.train_split, options)
        self.make_test = partial(_make, config.env, config.test_split or "", options)
        self.test = self.make_test()
        self.tasks = evenly(_tasks(self.test), test_tasks)
        inner = self.test.unwrapped
        assert isinstance(inner, TextEnv)
        self.out.mkdir(parents=True, exist_ok=True)
        self.results = _Results(inner.fingerprint())
        self.learned_parameters = 0
        self.agents: tuple[Agent, ...] = (ExpertAgent(), RandomAgent(config.seed, mixed=0.1))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure how long a phase takes."""
        start = time.perf_counter()
        yield
        self.results.seconds[name] = round(time.perf_counter() - start, 2)

    def gather(self, env: gymnasium.Env[str, str], number: int, label: str) -> list[Trajectory]:
        """Return an expert's and a random agent's episode of each task."""
        tasks = evenly(_tasks(env), number)
        found = []
        with progress(label, total=len(tasks)) as advance:
            for task in tasks:
                found += [run_episode(env, agent, task=task) for agent in self.agents]
                advance()
        return found

    def fit(self, train: Sequence[Trajectory]) -> dict[str, WorldModel]:
        """Return the world models to compare, the learning one fitted and saved."""
        learner = RetrievalWorldModel()
        with progress("Fitting the retrieval world model", total=len(train)) as advance:
            for trajectory in train:
                learner.fit(transitions_of(trajectory))
                advance()
        learner.save(self.out / "retrieval.jsonl")
        self.results.counts["training transitions"] = len(learner)
        noisy = {}
        if isinstance(self.test.get_wrapper_attr("canonicalizer"), Describer):
            for rate in self.config.error_rates:
                noisy[f"noisy {rate:g}"] = NoisyWorldModel(rate, seed=self.config.seed)
        else:
            print("No noisy model is shown: facts cannot be told in this environment's words")
        return {
            "null": NullWorldModel(),
            "retrieval": learner,
            **noisy,
            "oracle": OracleWorldModel(),
        }

    def score_one_step(self, models: dict[str, WorldModel], test: Sequence[Trajectory]) -> None:
        """Score every model on the expert's and on the random agent's transitions."""
        self.results.counts["test transitions"] = sum(len(t.steps) for t in test)
        rows = {}
        with progress("Scoring single predictions", total=len(test)) as advance:
            for agent in self.agents:
                own = [t for t in test if t.agent == agent.name]
                rows[agent.name] = predicted(self.test, models, own, advance)
        for name, found in rows.items():
            self.results.one_step[name] = {m: delta_f1_report(found[m]) for m in models}
        together = {m: [row for found in rows.values() for row in found[m]] for m in models}
        self.results.one_step["all"] = {m: delta_f1_report(together[m]) for m in models}

    def score_rollouts(self, models: dict[str, WorldModel], test: Sequence[Trajectory]) -> None:
        """Score imagined rollouts of growing length."""
        with progress("Scoring imagined rollouts", total=len(test)) as advance:
            self.results.rollouts = rollouts(self.test, models, test, self.config.lengths, advance)

    def act(self, models: dict[str, WorldModel]) -> list[Episode]:
        """Let the agents act, really and in each model's imagination; return pairs to look at."""
        real: list[Trajectory] = []
        worlds: dict[str, gymnasium.Env[str, str]] = {"real": self.test}
        worlds |= {name: ImaginedEnv(self.test, model) for name, model in models.items()}
        pairs = [
            (agent, name)
            for agent in self.agents
            for name in worlds
            if name == "real" or self._can_imagine(agent)
        ]
        total = len(self.tasks) * len(pairs)
        with progress("Acting, really and in imagination", total=total) as advance:
            for agent, name in pairs:
                world = worlds[name]
                rate, episodes = success(world, agent, self.tasks, advance)
                score = goal_condition_success(e.score for e in episodes)
                self.results.agents.append((agent.name, name, rate, score))
                if agent.name == "expert" and name != "real":
                    really = [replay(self.test, e) for e in episodes]
                    self.results.plans[name] = consistency(
                        [e.success for e in episodes], [e.success for e in really]
                    )
                if name == "real":
                    real += episodes
        write_trajectories(self.out / "trajectories.jsonl", real)
        return self._pairs(real, models["retrieval"])

    def _can_imagine(self, agent: Agent) -> bool:
        """Return whether an agent knows what to do in imagination: experts must know by beliefs."""
        own = type(self.test.unwrapped)
        return (
            agent.name != "expert" or getattr(own, "expert_from", None) is not TextEnv.expert_from
        )

    def act_learned(self) -> list[Episode]:
        """Let the agent act that comap ships; return episodes to look at, none where it cannot."""
        try:
            models = learned_models(self.config.env)
        except (DataNotFound, MissingExtra) as error:
            print(f"No learned agent is shown: {error}", flush=True)
            return []
        tasks = evenly(self.tasks, MOST)
        with progress("Acting, with learned models", total=2 * len(tasks)) as advance:
            found, episodes = play_learned(
                self.make_test, tasks, models, seed=self.config.seed, advance=advance
            )
        self.results.learned, self.learned_parameters = found, models.parameters
        write_trajectories(self.out / "learned.jsonl", episodes)
        return [Episode(f"{e.agent}, learned: {e.goal}", e, None) for e in chosen(episodes)]

    def _pairs(self, episodes: Sequence[Trajectory], model: WorldModel) -> list[Episode]:
        """Return some real episodes beside the same actions in imagination."""
        imagined = ImaginedEnv(self.test, model, horizon=10**6)
        chosen = evenly(episodes, _SHOWN)
        return [Episode(f"{e.agent}: {e.goal}", e, replay(imagined, e)) for e in chosen]

    def report(self, episodes: Sequence[Episode]) -> Path:
        """Print the tables, write the results and the report, and return the report's path."""
        tables = _tables(self.results)
        if self.results.learned:
            tables.append(learned_table(self.results.learned, self.learned_parameters))
        for table in tables:
            print_table(table)
        record = circumstances(_PACKAGES) | {
            "config": asdict(self.config) | {"data_dir": None, "out": None},
            **asdict(self.results),
        }
        write_result(self.out / "results.json", record)
        path = self.out / "report.html"
        kind = self.results.fingerprint.get("games", "")
        write_report(
            path,
            title="comap demo",
            summary={
                "environment": self.config.env,
                "tasks": f"{kind}; split {self.config.test_split}, {len(self.tasks)} tasks",
                **{name: f"{number:,}" for name, number in self.results.counts.items()},
                "seconds": ", ".join(f"{k} {v:.1f}" for k, v in self.results.seconds.items()),
            },
            tables=tables,
            plots=_plots(self.results),
            episodes=episodes,
        )
        return path


def _make(env_id: str, split: str, options: dict[str, Any]) -> gymnasium.Env[str, str]:
    """Return an environment of comap, or say that it is none."""
    try:
        env = gymnasium.make(env_id, split=split, **options)
    except (CoMapError, gymnasium.error.Error):
        raise
    except (ImportError, TypeError, ValueError) as error:
        raise OptionError(f"expected an environment of comap, found {env_id!r} ({error})") from None
    if not isinstance(env.unwrapped, TextEnv):
        raise OptionError(f"expected an environment of comap, found {env_id!r}")
    return env


def _tasks(env: gymnasium.Env[str, str]) -> tuple[str, ...]:
    ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
    return ids


def _tables(results: _Results) -> list[Table]:
    tables = [_delta_table(results), _rollout_table(results), _agent_table(results)]
    return [*tables, _plan_table(results)] if results.plans else tables


def _delta_table(results: _Results) -> Table:
    rows = []
    for name, report in results.one_step["all"].items():
        parts = [100 * results.one_step[agent][name].mean for agent in ("expert", "random")]
        rows.append(
            (
                name,
                100 * report.mean,
                100 * report.stderr,
                100 * report.nonempty_mean,
                *parts,
                100 * report.exact_share,
                100 * report.parse_failure_rate,
                report.n,
            )
        )
    share = 100 * next(iter(results.one_step["all"].values())).no_op_share
    return Table(
        "World models: Delta-F1 of single predictions",
        ("model", "Delta-F1", "s.e.", "changes only", "expert", "random", "exact", "unparsed", "n"),
        tuple(rows),
        f"Percent. In {share:.1f} % of the transitions nothing changes. 'changes only' leaves those "
        "out; 'exact' is the share of changes predicted without any error.",
    )


def _rollout_table(results: _Results) -> Table:
    lengths = [point.length for point in next(iter(results.rollouts.values()))]
    rows = [
        (name, *(100 * point.delta_f1 for point in points))
        for name, points in results.rollouts.items()
    ]
    numbers = ", ".join(
        f"{point.n} of {point.length}" for point in next(iter(results.rollouts.values()))
    )
    return Table(
        "World models: Delta-F1 of imagined rollouts, by length",
        ("model", *(f"{length} steps" if length > 1 else "1 step" for length in lengths)),
        tuple(rows),
        f"Percent, of the change over the whole rollout. Rollouts scored: {numbers} steps.",
    )


def _agent_table(results: _Results) -> Table:
    rows = [
        (
            agent,
            world,
            100 * rate.value,
            f"{100 * rate.low:.1f} - {100 * rate.high:.1f}",
            100 * score,
            rate.n,
        )
        for agent, world, rate, score in results.agents
    ]
    return Table(
        "Agents, really and in imagination: success",
        ("agent", "world", "success", "95 % interval", "goal conditions", "n"),
        tuple(rows),
        "Percent. In imagination success is what the imagined facts say.",
    )


def _plan_table(results: _Results) -> Table:
    rows = [
        (
            name,
            100 * c.imagined.value,
            100 * c.real.value,
            100 * c.precision,
            100 * c.agreement,
            c.n,
        )
        for name, c in results.plans.items()
    ]
    return Table(
        "The expert's imagined plans, carried out for real",
        ("model", "imagined success", "real success", "held up", "agreement", "n"),
        tuple(rows),
        "Percent. 'held up': of the plans that succeed in imagination, those that really do.",
    )


def _plots(results: _Results) -> list[Plot]:
    series = [
        Series(
            name,
            tuple(float(point.length) for point in points),
            tuple(100 * point.delta_f1 for point in points),
            tuple(100 * max(0.0, point.delta_f1 - 1.96 * point.stderr) for point in points),
            tuple(100 * min(1.0, point.delta_f1 + 1.96 * point.stderr) for point in points),
        )
        for name, points in results.rollouts.items()
    ]
    reports = results.one_step["all"]
    predicates = sorted(reports["retrieval"].by_predicate)
    places = tuple(float(place) for place in range(len(predicates)))
    bars = tuple(100 * reports["retrieval"].by_predicate[name].f1 for name in predicates)
    return [
        Plot("Imagined rollouts", "steps imagined in a chain", "Delta-F1 (%)", tuple(series)),
        Plot(
            "Retrieval world model, by kind of fact",
            "predicate",
            "F1 of its changes (%)",
            (Series("retrieval", places, bars),),
            kind="bar",
            labels=tuple(predicates),
        ),
    ]
