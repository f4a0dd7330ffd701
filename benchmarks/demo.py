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
from typing import Any, NamedTuple, TypeAlias

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
    normal_quantile,
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
_TASKS = (300, 60)  # to learn from and to measure on
_SLOW_TASKS = (14, 7)  # the same, where an episode takes seconds
_PACKAGES = ("gymnasium", "numpy", "rapidfuzz", "torch", "transformers")
_NONE = "ReAct, without a world model"
_LEARNED = "CoMap"
_ORACLE = "CoMap, with the oracle"
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


class RolloutScore(NamedTuple):
    """How well one imagined rollout agrees with the real one."""

    delta_f1: float
    """Of the change since the rollout began."""
    is_exact: bool
    """Whether the text of its last step is the real one."""


class AgentScore(NamedTuple):
    """How often an agent succeeds in a world, and the mean share of its goal conditions."""

    agent: str
    world: str
    success: Rate
    score: float


def predicted(
    env: Env, models: Models, trajectories: Iterable[Trajectory]
) -> dict[str, list[Transition]]:
    """Return the beliefs before, as predicted and after each real transition, for each model."""
    transitions: dict[str, list[Transition]] = {name: [] for name in models}
    inner = _inner(env)
    for trajectory in trajectories:
        # The environment follows the recorded episode, for models that ask about its present state.
        env.reset(options={"task": trajectory.task})
        for before, step in trajectory.transitions():
            query = Query(
                inner.env_id,
                inner.goal,
                inner.history(),
                before,
                step.action,
                inner.admissible_actions,
            )
            for name, model in models.items():
                if isinstance(model, Grounded):
                    model.ground(env)
                (prediction,) = ask(model, [query])
                update = inner.canonicalizer.update
                predicted_state = update(before, step.action, prediction.observation)
                transitions[name].append((before, predicted_state, step.facts))
            env.step(step.action)
    return transitions


def rollouts(
    env: Env, models: Models, trajectories: Iterable[Trajectory], lengths: Sequence[int]
) -> dict[str, list[RolloutPoint]]:
    """Return how each model's rollouts agree with the real ones: a point for each length that occurs."""
    scores: dict[str, dict[int, list[RolloutScore]]] = {}
    for name in models:
        scores[name] = {length: [] for length in lengths}

    inner = _inner(env)
    for trajectory in trajectories:
        env.reset(options={"task": trajectory.task})
        snapshots = [inner.snapshot()]
        for step in trajectory.steps:
            env.step(step.action)
            snapshots.append(inner.snapshot())

        # From every few steps on, each model imagines what the rest of the real actions lead to. No limit
        # of steps cuts that off.
        for name, model in models.items():
            imagined = ImaginedEnv(env, model, horizon=10**9)
            for start in range(0, len(trajectory.steps), _EVERY):
                _roll_out(imagined, snapshots[start], trajectory.steps[start:], scores[name])

    points: dict[str, list[RolloutPoint]] = {name: [] for name in models}
    for name, scores_by_length in scores.items():
        for length, length_scores in scores_by_length.items():
            if length_scores:
                points[name].append(_rollout_point(length, length_scores))
    return points


def _rollout_point(length: int, scores: Sequence[RolloutScore]) -> RolloutPoint:
    """Return the mean of the scores of rollouts of one length, with its standard error."""
    n = len(scores)
    f1 = np.array([score.delta_f1 for score in scores], dtype=float)
    standard_error = float(f1.std(ddof=1)) / n**0.5 if n > 1 else 0.0
    exact_share = fmean(score.is_exact for score in scores)
    return RolloutPoint(length, fmean(f1), standard_error, exact_share, n)


def _roll_out(
    imagined: ImaginedEnv,
    snapshot: Snapshot,
    steps: Sequence[Step],
    scores: dict[int, list[RolloutScore]],
) -> None:
    """Imagine the real actions from a snapshot on, and add a score at each length that `scores` has."""
    imagined.restore(snapshot)
    before = snapshot.facts
    facts = before
    is_over = False
    observation = ""
    for length, step in enumerate(steps[: max(scores)], 1):
        was_over = is_over
        if not was_over:  # an imagined episode that ended stays as it was
            observation, _, terminated, truncated, info = imagined.step(step.action)
            is_over = terminated or truncated
            facts = info["facts"]
        if length in scores:
            score = delta_f1(before, facts, step.facts)
            is_exact = observation == step.observation and not was_over
            scores[length].append(RolloutScore(score, is_exact))


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
    models = shipped_models(SHIPPED[env_id])
    check_packages()
    return models


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
    world_lm = create_language_model("shipped:wm", device="cpu")
    settings = {"seed": seed, **models.settings["agent"]}
    comap = create_agent("comap", **settings)

    # ReAct has the same settings as CoMap, but for those of CoMap alone.
    shared_names = {setting.name for setting in fields(AgentConfig)}
    shared_settings = {name: settings[name] for name in settings if name in shared_names}
    players: dict[str, tuple[Any, WorldModel | None]] = {
        _NONE: (create_agent("react", **shared_settings), None),
        _LEARNED: (comap, LanguageWorldModel(world_lm, **models.settings["world_model"])),
        _ORACLE: (comap, OracleWorldModel()),
    }

    thread_count = torch.get_num_threads()
    torch.set_num_threads(1)  # a small model's threads wait for each other longer than they work
    summaries = []
    all_episodes = []
    try:
        for name, (agent, model) in players.items():
            episodes = run_episodes(
                make_env,
                agent,
                tasks,
                lm=policy,
                world_model=model,
                keep="prompts",
                concurrency=len(tasks),
                on_done=lambda trials: advance(),
            )
            summaries.append(_summary(name, episodes))
            all_episodes += [replace(episode, agent=name) for episode in episodes]
    finally:
        torch.set_num_threads(thread_count)
    return summaries, all_episodes


def _summary(name: str, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return what an agent's episodes came to; ``won`` has each task's success, in order."""
    gates: list[bool] = []
    for episode in episodes:
        gates += _gates(episode)
    return {
        "agent": name,
        "reflected": len(gates),
        "revised": gates.count(True),
        "won": [episode.success for episode in episodes],
        **Tally.of(episodes).summary(),
    }


def _gates(episode: Trajectory) -> list[bool]:
    """Return for each decision with a reflection whether its draft was revised."""
    notes = [step.notes for step in episode.steps]
    return [note["gate"] for note in notes if note.get("path") == GatePath.REFLECTED]


def learned_in(learned: Sequence[Mapping[str, Any]]) -> str:
    """Return in a sentence what the learned agents' successes say, paired by task."""
    react, comap, _ = learned
    rates = [f"{100 * summary['success']['value']:.0f} %" for summary in learned]

    # Paired: how hard a task is for both is no part of the difference.
    gains = []
    for comap_won, react_won in zip(comap["won"], react["won"], strict=True):
        gains.append(float(comap_won) - float(react_won))
    mean = fmean(gains)
    half_width = normal_quantile() * float(np.std(gains)) / len(gains) ** 0.5
    low = mean - half_width
    high = mean + half_width
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


def most_telling(episodes: Sequence[Trajectory], number: int = 2) -> list[Trajectory]:
    """Return the episodes of CoMap's that show most: first those where a revision changed facts."""
    of_comap = [episode for episode in episodes if episode.agent == _LEARNED]
    of_comap.sort(key=lambda episode: place_of_interest(Episode("", episode, None)))
    return of_comap[:number]


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
    agents: list[AgentScore] = field(default_factory=list)
    plans: dict[str, Consistency] = field(default_factory=dict)
    learned: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def run_demo(config: DemoConfig) -> str:
    """Do all that the demo does, print its tables, and return the line that says where its report is."""
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
    """The demo under way: its environments, tasks and agents, and what was measured so far."""

    def __init__(self, config: DemoConfig):
        cls = env_class(config.env)
        if config.test_split is None:
            splits = cls.test_splits or (config.train_split,)
            config = replace(config, test_split=splits[-1])

        is_slow = cls.slow or config.engine == "chromium"
        usual_train, usual_test = _SLOW_TASKS if is_slow else _TASKS
        self.train_tasks = config.train_tasks or usual_train
        test_tasks = config.test_tasks or usual_test
        self.config = replace(config, train_tasks=self.train_tasks, test_tasks=test_tasks)
        self.out = Path(config.out)

        # In imagination an expert knows observations alone, and a random agent needs listed actions.
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
        """Note how many seconds a part of the demo takes."""
        start = time.perf_counter()
        yield
        self.results.seconds[name] = round(time.perf_counter() - start, 2)

    def gather(self, env: Env, number: int, label: str) -> list[Trajectory]:
        """Return an episode of each agent in tasks that are spread evenly over a split."""
        episodes = []
        tasks = evenly(_inner(env).tasks.ids, number)
        for task in tracked(tasks, label):
            for agent in self.agents:
                episodes.append(run_episode(env, agent, task=task))
        return episodes

    def fit(self, train: Sequence[Trajectory]) -> dict[str, WorldModel]:
        """Return the world models by name, from the worst to the best; one learns from episodes."""
        learner = RetrievalWorldModel()
        for trajectory in tracked(train, "Fitting the retrieval world model"):
            learner.fit(transitions_of(trajectory))
        learner.save(self.out / "retrieval.jsonl")
        self.results.counts["training transitions"] = len(learner)

        # A noisy model changes facts and describes them in words again.
        models: dict[str, WorldModel] = {"null": NullWorldModel(), "retrieval": learner}
        if isinstance(_inner(self.test).canonicalizer, Describer):
            for rate in self.config.error_rates:
                models[f"noisy {rate:g}"] = NoisyWorldModel(rate, seed=self.config.seed)
        else:
            print("No noisy model is shown: facts have no words in this environment")
        models["oracle"] = OracleWorldModel()
        return models

    def score_one_step(self, models: Models, test: Sequence[Trajectory]) -> None:
        """Score single predictions of each model, on each agent's steps and on all of them."""
        self.results.counts["test transitions"] = sum(len(episode.steps) for episode in test)
        all_transitions: dict[str, list[Transition]] = {name: [] for name in models}
        transitions_by_agent: dict[str, dict[str, list[Transition]]] = {}
        for agent in self.agents:
            episodes = [episode for episode in test if episode.agent == agent.name]
            label = f"Scoring single predictions: {agent.name}"
            transitions = predicted(self.test, models, tracked(episodes, label))
            transitions_by_agent[agent.name] = transitions
            for model_name in models:
                all_transitions[model_name] += transitions[model_name]

        transitions_by_agent["all"] = all_transitions
        for agent_name, transitions in transitions_by_agent.items():
            reports = {model: delta_f1_report(transitions[model]) for model in models}
            self.results.one_step[agent_name] = reports

    def act(self, models: Models) -> list[Episode]:
        """Play as the agents, really and in each model's imagination; return pairs to look at."""
        worlds: dict[str, Env] = {"real": self.test}
        worlds |= {name: ImaginedEnv(self.test, model) for name, model in models.items()}
        episodes_by_play: dict[tuple[str, str], list[Trajectory]] = {}
        for agent, world, task in tracked(self._plays(worlds), "Acting, really and in imagination"):
            episode = run_episode(worlds[world], agent, task=task)
            episodes_by_play.setdefault((agent.name, world), []).append(episode)

        real: list[Trajectory] = []
        for (agent_name, world), episodes in episodes_by_play.items():
            successes = [episode.success for episode in episodes]
            score = goal_condition_success(episode.score for episode in episodes)
            agent_score = AgentScore(agent_name, world, success_rate(successes), score)
            self.results.agents.append(agent_score)
            if world == "real":
                real += episodes
            elif agent_name == "expert":  # its plans, made in imagination, are carried out
                real_successes = [_replay(self.test, episode).success for episode in episodes]
                self.results.plans[world] = consistency(successes, real_successes)
        write_trajectories(self.out / "trajectories.jsonl", real)

        imagined = ImaginedEnv(self.test, models["retrieval"], horizon=10**6)
        pairs = []
        for episode in evenly(real, _SHOWN):
            title = f"{episode.agent}: {episode.goal}"
            pairs.append(Episode(title, episode, _replay(imagined, episode)))
        return pairs

    def _plays(self, worlds: Iterable[str]) -> list[tuple[Agent, str, str]]:
        """Return agent, world and task of all episodes; experts of some environments act really alone."""
        # In imagination an expert must know what to do by beliefs.
        expert_from = getattr(type(_inner(self.test)), "expert_from", None)
        has_belief_expert = expert_from is not TextEnv.expert_from
        plays = []
        for agent in self.agents:
            for world in worlds:
                if world == "real" or agent.name != "expert" or has_belief_expert:
                    plays += [(agent, world, task) for task in self.tasks]
        return plays

    def act_learned(self) -> list[Episode]:
        """Play with the shipped models, if they can be used here; return the most telling episodes."""
        try:
            models = learned_models(self.config.env)
        except (DataNotFound, MissingExtra) as error:
            print(f"No learned agent is shown: {error}", flush=True)
            return []

        # The shipped models were trained on generated games.
        options = {**models.settings["env_options"], "source": "generated"}
        make_env = partial(Environments(self.config.env, options), self.config.test_split)
        with closing(make_env()) as env:
            tasks = evenly(_inner(env).tasks.ids, MOST)
        with progress("Acting, with learned models", total=3 * len(tasks)) as advance:
            summaries, episodes = play_learned(
                make_env, tasks, models, seed=self.config.seed, advance=advance
            )
        self.results.learned = summaries
        self.learned_parameters = models.parameters
        write_trajectories(self.out / "learned.jsonl", episodes)
        return [
            Episode(f"{episode.agent}, learned: {episode.goal}", episode, None)
            for episode in most_telling(episodes)
        ]

    def about(self) -> str:
        """Return what the environment is, and what was done in it."""
        summary = (env_class(self.config.env).__doc__ or "").strip().partition("\n\n")[0]
        counts = self.results.counts
        tasks = self.tasks_in_words()
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
        """Print and write what was measured, and return the line that says where the report is."""
        results = self.results
        measured_tables = [_delta_table(results), _rollout_table(results), _agent_table(results)]
        if results.plans:
            measured_tables.append(_plan_table(results))
        tables = []
        for table in measured_tables:
            tables.append(replace(table, title=f"{table.title} ({self.tasks_in_words()})"))
        if results.learned:  # its tasks are others, which its title names
            tables.append(learned_table(results.learned, self.learned_parameters))
        for table in tables:
            print_table(table)

        sentences = [found_in(results)]
        if results.learned:
            sentences.append(learned_in(results.learned))
        print("\n" + "\n".join(sentences))

        # Folders are left out: the same demo elsewhere is the same record.
        record = circumstances(_PACKAGES) | {
            "config": asdict(self.config) | {"data_dir": None, "out": None},
            "tasks": self.tasks_in_words(),
            **asdict(results),
        }
        write_result(self.out / "results.json", record)
        sections = self._sections(tables)

        def write() -> Path:
            page = render_page(
                "comap demo", {}, sections, episodes, lead=" ".join(sentences), about=self.about()
            )
            return write_whole(self.out / "report.html", page)

        return report_line(write)

    def _sections(self, tables: Sequence[Table]) -> list[Section]:
        """Return the sections of the page: two plots and what their words mean, then all the rest."""
        results = self.results
        kind = results.fingerprint.get("games", "")
        facts = {
            "environment": self.config.env,
            "tasks": f"{kind}; split {self.config.test_split}, {self.tasks_in_words()}",
        }
        for name, count in results.counts.items():
            facts[name] = f"{count:,}"
        seconds = results.seconds.items()
        facts["seconds"] = ", ".join(f"{phase} {duration:.1f}" for phase, duration in seconds)

        first_plot, *further_plots = _plots(results)
        plots = [first_plot]
        if results.learned:
            plots.insert(0, _learned_plot(results.learned))
        return [
            Section("", plots=plots, terms=_words_of(results), note=_note_of(results)),
            Section("All results", tables, further_plots, folded=True),
            Section("What was measured", terms={"": facts}, folded=True),
        ]


def found_in(results: _Results) -> str:
    """Return in a sentence how good the learned world model is, and what plans made in it are worth."""
    share = results.one_step["all"]["retrieval"].nonempty_mean
    changes = f"The retrieval world model predicts {100 * share:.0f} % of the changes"
    if (plan := results.plans.get("retrieval")) is None:
        return f"{changes}."
    if not plan.imagined.value:
        return f"{changes}; no plan made in it succeeds, not even in imagination."
    precision = f"{100 * plan.precision:.0f} %"
    return f"{changes}; {precision} of the plans made in it hold up in the real environment."


def _note_of(results: _Results) -> str:
    """Return what the numbers under the first plot are, in words."""
    note = "Changes: Delta-F1 of single predictions where something changes."
    if (plan := results.plans.get("retrieval")) is None:
        return note
    return (
        f"{note} Plans: of those that solve a task in the world model ({plan.imagined.value * plan.n:.0f} "
        f"of {plan.n} in retrieval's), the share that solves it in the real environment too."
    )


def _words_of(results: _Results) -> dict[str, dict[str, str]]:
    """Return what the names of world models and agents mean, for the legend of the page."""
    agents = [agent_score.agent for agent_score in results.agents]
    agents += [summary["agent"] for summary in results.learned]
    words: dict[str, dict[str, str]] = {}
    for title, names in (("World models", list(results.rollouts)), ("Agents", agents)):
        # "noisy 0.1" is explained as "noisy".
        words[title] = {name: _WORDS.get(name) or _WORDS[name.partition(" ")[0]] for name in names}
    return words


def _replay(env: Env, trajectory: Trajectory) -> Trajectory:
    return run_episode(env, ReplayAgent(trajectory), task=trajectory.task)


def _delta_table(results: _Results) -> Table:
    """Return how well each model predicts single steps."""
    reports = results.one_step["all"]
    expert_reports = results.one_step["expert"]
    random_reports = results.one_step["random"]
    rows = []
    for name, report in reports.items():
        row = (
            name,
            100 * report.nonempty_mean,
            100 * report.mean,
            round(100 * report.stderr, 1),  # more decimals than the mean has would say nothing
            100 * expert_reports[name].mean,
            100 * random_reports[name].mean,
            100 * report.exact_share,
            100 * report.parse_failure_rate,
            report.n,
        )
        rows.append(row)

    # All models predict the same transitions.
    unchanged = 100 * next(iter(reports.values())).no_op_share
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
    """Return how well each model's rollouts agree with the real ones, a length in a column."""
    rows = []
    for name, points in results.rollouts.items():
        rows.append((name, *(100 * point.delta_f1 for point in points)))

    # All models imagine from the same steps on.
    points = next(iter(results.rollouts.values()))
    numbers = ", ".join(f"{point.n} of {point.length}" for point in points)
    columns = ["model"]
    for point in points:
        columns.append("1 step" if point.length == 1 else f"{point.length} steps")
    return Table(
        "World models: Delta-F1 of imagined rollouts, by length",
        tuple(columns),
        tuple(rows),
        f"Percent, of the change over the whole rollout. Rollouts scored: {numbers} steps.",
    )


def _agent_table(results: _Results) -> Table:
    """Return how often each agent succeeds in each world."""
    rows = []
    for agent, world, rate, score in results.agents:
        rows.append((agent, world, str(rate), round(100 * score, 1)))
    return Table(
        "Agents, really and in imagination: success",
        ("agent", "world", "success (95 %)", "goal conditions"),
        tuple(rows),
        "Percent. 'goal conditions': how much of its task an episode has done at its end, on average; "
        "all of it is a success. In imagination both are what the imagined facts say.",
    )


def _plan_table(results: _Results) -> Table:
    """Return what the expert's plans, made in each model, are worth in the real environment."""
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
    """Return how often the learned policy succeeds with each world model."""
    rows = []
    failed = 0
    for summary in learned:
        revised = None
        if summary["reflected"]:
            revised = 100 * summary["revised"] / summary["reflected"]
        rate = str(Rate(**summary["success"]))
        score = round(100 * summary["score"], 1)
        rows.append((summary["agent"], rate, score, summary["steps"]["per_episode"], revised))
        failed += sum(summary["errors"].values())

    tasks = tasks_in_words(learned[0]["n"], learned[0]["generated_tasks"])
    return Table(
        f"A learned agent: success ({tasks})",
        ("agent", "success (95 %)", "goal conditions", "steps", "revised"),
        tuple(rows),
        "Percent, but for steps. 'goal conditions': how much of its task an episode has done at its end, "
        "on average. Policy and world model come with comap: "
        f"{parameters / 1e6:.1f} M parameters each, trained on other generated games. 'revised': of "
        "the drafts that were reflected on, those that another action took the place of."
        + (f" {failed} episodes failed." if failed else ""),
    )


def _plots(results: _Results) -> list[Plot]:
    """Return the plots of the page: predictions and plans, rollouts by length, and kinds of facts."""
    series = []
    for name, points in results.rollouts.items():
        lengths = tuple(float(point.length) for point in points)
        y = _scores(points, errors=0)
        low = _scores(points, errors=-normal_quantile())
        high = _scores(points, errors=normal_quantile())
        series.append(Series(name, lengths, y, low, high))

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


def _scores(points: Sequence[RolloutPoint], errors: float) -> tuple[float, ...]:
    """Return scores in percent, moved by so many standard errors, but not out of what can be."""
    scores = []
    for point in points:
        share = point.delta_f1 + errors * point.stderr
        scores.append(100 * min(max(share, 0), 1))
    return tuple(scores)


def _learned_plot(learned: Sequence[Mapping[str, Any]]) -> Plot:
    """Return the success of one policy with ever better world models, with 95 % intervals."""
    rates = [Rate(**summary["success"]) for summary in learned]
    bars = Series(
        "success",
        x=tuple(map(float, range(len(rates)))),
        y=tuple(100 * rate.value for rate in rates),
        low=tuple(100 * rate.low for rate in rates),
        high=tuple(100 * rate.high for rate in rates),
    )
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
    positions = tuple(float(position) for position in range(len(reports)))
    predictions = tuple(100 * report.nonempty_mean for report in reports.values())
    series = [Series("changes predicted (Delta-F1)", positions, predictions)]

    # Where no plan succeeds in imagination, none can hold up: there is no bar.
    if results.plans:
        precisions = []
        for model in reports:
            plan = results.plans.get(model)
            if plan is None or not plan.imagined.value:
                precisions.append(math.nan)
            else:
                precisions.append(100 * plan.precision)
        name = "plans that hold up in the real environment"
        series.append(Series(name, positions, tuple(precisions)))

    title = "World models: predictions, and plans made in them"
    label = "of changes, or of plans (%)"
    return Plot(title, "world model", label, tuple(series), kind="bar", labels=tuple(reports))
