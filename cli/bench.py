"""``comap demo``, ``comap score`` and ``comap bench``: what a user runs to measure."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import OptionError, check_number
from .models import SHIPPED_WORLD, ModelOptions, Models, model_in
from .options import SETTINGS, WORD, Command, Pairs, Texts, flag
from .run import check_out

if TYPE_CHECKING:
    import gymnasium

    from ..benchmarks.answers import Answers
    from ..benchmarks.evaluation_set import EvaluationSet
    from ..worldmodel import Query, Transition, WorldModel


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Fit a world model, score it, let agents play, and write a report.

    The world model is fitted on transitions and scored by Delta-F1 on unseen tasks; agents play in the
    environment and in its imagination.
    """

    example: ClassVar[str] = "comap demo --out runs/demo"

    config: Any = field(metadata=SETTINGS)

    @classmethod
    def resolved(cls, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        from ..benchmarks.demo import DemoConfig

        return {"config": DemoConfig(**settings)}

    def run(self) -> int:
        from ..benchmarks.demo import run_demo

        check_out(Path(self.config.out))
        print(f"\n{run_demo(self.config)}")
        return 0


@dataclass(frozen=True, kw_only=True)
class ScoreTools(Command):
    """Score answers to StableToolBench's tasks: SoPR, SoWR, and statistics of the calls.

    The answers are those of a reference pipeline, or of comap run on comap/StableToolBench-v0. A judge
    or recorded verdicts decide which are solved; generated tasks have their own checkers. SoPR is of all
    queries of the answers' groups, or of all tasks of the run: missing and empty answers count as
    unsolved. Without the queries (--data-dir) it is of the answers found, which the table says.
    """

    example: ClassVar[str] = (
        "comap score tools answer/virtual_chatgpt_cot --data-dir DIR "
        "--judge http://127.0.0.1:8000/v1#NAME --against answer/virtual_chatgpt_dfs"
    )

    answers: Path = field(metadata=WORD)
    """Folder of answer files (<query_id>_<method>.json, also by group), a file of converted answers, or
    a folder of comap run."""
    judge: str | None = None
    """Language model that judges: http://HOST:PORT/v1#NAME, or as for comap run --model."""
    verdicts: Path | None = None
    """Recorded verdicts instead of a judge: those of a reference evaluation, or a file of --out."""
    judge_option: Pairs = field(default_factory=dict)
    """Option of the judge's model, such as api_key_env=NAME or timeout=60. Repeatable."""
    engine: str = "auto"
    """What runs a judge of Hugging Face: hf, vllm, the address of a 'vllm serve', or auto."""
    temperature: float = 0.0
    """Temperature of the judge."""
    runs: int | None = None
    """How often an answer is judged (default: 3, all recorded verdicts, or once by a checker)."""
    against: Path | None = None
    """Answers to compare with, for SoWR."""
    against_verdicts: Path | None = None
    """Recorded verdicts on these answers."""
    rounds: int = 3
    """Number of comparisons of each pair."""
    data_dir: str | None = None
    """Folder with test_instruction/, the queries (default: COMAP_HOME/stabletoolbench)."""
    out: Path | None = None
    """File to write the scores to, as JSON."""

    def run(self) -> int:
        from ..benchmarks.answers import read_answers, recorded_judge
        from ..benchmarks.display import print_table
        from ..benchmarks.record import write_result
        from ..benchmarks.scores import score_answers, scores_table

        self._check()
        answers = read_answers(self.answers, self.data_dir)
        against = None
        if self.against is not None:
            against = read_answers(self.against, self.data_dir)

        # Without verdicts of their own, the answers to compare with are judged as the others are.
        judge = self._judge(answers)
        against_judge = None
        if against is not None and self.against_verdicts is not None:
            against_judge = recorded_judge(self.against_verdicts, against)

        result = score_answers(
            answers,
            judge,
            against=against,
            against_judge=against_judge,
            runs=self.runs,
            rounds=self.rounds,
            progress=_to_stderr,
        )

        # Written before it is printed: a judge's answers cost money, and a terminal may be gone.
        if self.out is not None:
            write_result(self.out, result)
        print_table(scores_table(result))
        for note in result["notes"]:
            print(f"\n{note}")
        if self.out is not None:
            print(f"\nscores: {self.out}")
        return 0

    def _check(self) -> None:
        """Refuse options that mean nothing, before anything is read or asked."""
        if self.judge is not None and self.verdicts is not None:
            raise OptionError("give --judge or --verdicts, not both")
        if self.against is None and self.against_verdicts is not None:
            raise OptionError("--against-verdicts is about the answers of --against; add that")
        if self.judge is None and (self.judge_option or self.temperature):
            raise OptionError("--judge-option and --temperature are about --judge; add it")
        if not 0 <= self.temperature <= 2:
            raise OptionError(f"--temperature must be from 0 to 2, not {self.temperature}")
        check_out(self.out, is_file=True)

    def _judge(self, answers: Answers) -> Any:
        """Return the judge that is asked for; None where tasks have checkers of their own."""
        from ..benchmarks.answers import recorded_judge
        from ..envs.stabletoolbench.scoring import LMJudge

        if self.verdicts is not None:
            return recorded_judge(self.verdicts, answers)
        if self.judge is None:
            return None
        return LMJudge(model_in(self.engine, self.judge, self.judge_option), self.temperature)


@dataclass(frozen=True, kw_only=True)
class ScoreWorldModel(ModelOptions):
    """Score a world model, trained or prompted, by Delta-F1 on a fixed set of transitions.

    The transitions are drawn now from one environment, those of a file, or with --set those of a frozen
    set of all six environments, whose rows can be compared and submitted (docs: World-model set).
    """

    example: ClassVar[str] = (
        "comap score world-model --set v1 --world-model http://127.0.0.1:8000/v1#NAME --out row.json"
    )

    former: ClassVar[Mapping[str, str]] = {"samples": "--n", "save_transitions": "--save"}
    rare: ClassVar[str] = "model"

    world_model: str | None = None
    """World model to score: retrieval (fitted on the train split), null (nothing happens), FILE.jsonl (a
    saved retrieval model), MODULE:CLASS (your own), or a language model, which is prompted: shipped (a
    small trained one, part of comap), tiny, a folder of save_pretrained, a name on the Hub
    (Qwen/Qwen3-4B), http://HOST:PORT/v1#NAME, or replay:FILE. Also oracle (tries the action in the real
    environment) and noisy (the oracle with errors, not with --set), not with --transitions."""
    model: str | None = None
    """The same as --world-model: no agent acts here."""
    base_url: str | None = None
    """Address of the server that has the model named by --world-model."""
    set: str | None = None
    """Frozen set of transitions: v1. With --out, a command that was interrupted goes on."""
    check: Path | None = None
    """File of a result on a frozen set: score it again from the predicted texts that it keeps, and refuse
    it where its numbers are others. No model is asked."""
    split: str | None = None
    """Split of the tasks (default: the environment's hardest test split)."""
    transitions: Path | None = None
    """File of transitions, a folder of comap train comap, which has some, or a run or an import, from
    whose episodes --samples are drawn (default: new ones, of new episodes)."""
    samples: int = 200
    """Number of transitions to draw, of new episodes half from an expert's, half from a random agent's."""
    save_transitions: Path | None = None
    """File to save the transitions to, for --transitions."""
    seed: int = 0
    """Seed of the draw."""
    out: Path | None = None
    """File to write the scores and the predicted texts to, as JSON; also of an interrupted command."""

    @classmethod
    def resolved(cls, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        option = next((name for name in ("set", "check") if options.get(name) is not None), None)
        if option is not None:
            refused: tuple[str, ...] = _OF_DRAWN
            if option == "check":
                refused += ("world_model", "model", "base_url", "out")
            for name in refused:
                if name in options:
                    raise OptionError(f"{flag(name)} means nothing with --{option}; leave it out")
        return options

    def run(self) -> int:
        if self.check is not None:
            return self._check_row(self.check)
        if self.set is not None:
            return self._score_on_set(self.set)

        from ..agents.requests import is_grounded
        from ..agents.scoring import InEpisodes
        from ..benchmarks.display import work_progress
        from ..benchmarks.scores import WorldModelScoring
        from ..envs.registry import env_class, registered
        from ..trainers.evaluation import save_transitions
        from ..trainers.setup import Environments
        from ..worldmodel.create import create_world_model
        from ..worldmodel.naming import name_of

        command = self._with_scored_model()
        environments = Environments(self.env, self.env_options(split="--split"))
        # The last test split is the hardest; an environment of the user's own may have none.
        test_splits = env_class(registered(self.env)).test_splits
        split = self.split or next(reversed(test_splits), None)
        environment_description = environments.describe([split])

        with closing(environments(split)) as env, tempfile.TemporaryDirectory() as folder:
            transitions, tasks, kind_of_tasks = self._transitions(env)
            if self.save_transitions is not None:
                save_transitions(self.save_transitions, transitions, kind_of_tasks)

            models = Models(command, Path(folder), environments, self.seed)
            model: Any = models.world_model()
            models.check_servers()
            if isinstance(model, str | Mapping):
                model = create_world_model(model)

            # The options name every world model but a language model, which names itself.
            world_model_name = command.kind_of_world()
            if world_model_name == "given":
                world_model_name = name_of(model)

            # A model that tries actions out is put into the episode that each transition is from.
            if is_grounded(model):
                self._check_drawn(command.world_model)
                model = InEpisodes(model, env, tasks, self.seed)

            is_drawn = self.transitions is None
            description = {
                "env": environment_description,
                # Transitions of a file are of other splits, which it may not say.
                "split": split if is_drawn else self.split,
                "source": "half an expert's, half a random agent's" if is_drawn else "given",
                "seed": self.seed,
                "world_model": world_model_name,
                "tasks": kind_of_tasks,
            }

            # Ctrl-C keeps what was predicted: large models take hours.
            scoring = WorldModelScoring(model, env, transitions, description, self.out)
            try:
                with work_progress() as progress:
                    result = scoring.run(progress)
            except KeyboardInterrupt:
                self._print(scoring.save(), command.world_model)
                raise

        self._print(result, command.world_model)
        return 0

    def _score_on_set(self, name: str) -> int:
        """Score a world model on a frozen set, and show its row beside those that are recorded."""
        from ..benchmarks.display import work_progress
        from ..benchmarks.evaluation_set import load_evaluation_set, manifest_of
        from ..benchmarks.set_rows import SetScoring
        from ..trainers.setup import Environments

        manifest_of(name)  # an unknown set is refused before a model is loaded
        command = self._with_scored_model()
        if command.world_model == "noisy":
            raise OptionError(
                f"the noisy model writes facts in words, and some environments of the set {name} have "
                "none for them; leave --set out and name one environment, as --env comap/ALFWorld-v0"
            )
        evaluation_set = load_evaluation_set(name, drawn=True, tell=print)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            models = Models(command, Path(folder), Environments(self.env), self.seed)
            set_models = _SetModels(command, models, evaluation_set, stack)
            models.check_servers()
            scoring = SetScoring(evaluation_set, set_models.about(), self.out)
            if scoring.predictions and scoring.remaining:
                print(f"going on after {len(scoring.predictions):,} predictions in {self.out}")

            # Ctrl-C keeps what was predicted: large models take hours.
            try:
                with work_progress() as progress:
                    result = scoring.run(set_models, progress)
            except KeyboardInterrupt:
                self._print_row(scoring.save())
                raise
        self._print_row(result)
        return 0

    def _check_row(self, path: Path) -> int:
        """Score a result again from its predicted texts, and show it."""
        from ..benchmarks.evaluation_set import load_evaluation_set
        from ..benchmarks.set_rows import checked_row, read_row_file

        name = self.set or read_row_file(path)["set"]
        evaluation_set = load_evaluation_set(name, drawn=True, tell=print)
        result = checked_row(path, evaluation_set)
        self._print_row(result)
        unchecked = ", ".join(result["unchecked"])
        rest = f" but those of {unchecked}, which is not on this machine" if unchecked else ""
        print(f"\n{path}: all numbers follow from the predicted texts{rest}")
        return 0

    def _print_row(self, result: Mapping[str, Any]) -> None:
        from ..benchmarks.display import print_table
        from ..benchmarks.set_rows import environments_table, reference_rows, row_of, rows_table

        if not result["predictions"]:
            return
        print_table(environments_table(result))
        rows = [row for row in reference_rows(result["set"]) if row["name"] != result["name"]]
        print_table(rows_table(result["set"], [*rows, row_of(result)]))
        if not result["complete"]:
            again = "give the same command again to go on"
            if self.out is None:
                again = "with --out FILE the same command would go on"
            print(
                f"not complete, {len(result['predictions']):,} transitions were predicted; {again}"
            )
        if self.out is not None:
            print(f"\nscores and predicted texts: {self.out}")

    def _transitions(
        self, env: gymnasium.Env[str, str]
    ) -> tuple[list[Transition], dict[Query, str], str | None]:
        """Return the transitions to predict, the tasks of their queries, and of which kind these are.

        A file of transitions does not say their tasks: only drawn transitions have any.
        """
        from ..agents.scoring import drawn_transitions
        from ..benchmarks.scores import read_transitions
        from ..envs.generated import is_generated, kind_in_words
        from ..envs.registry import registered

        if self.transitions is not None:
            transitions, kind_of_tasks = read_transitions(
                self.transitions, registered(self.env), self.samples, self.seed
            )
            return transitions, {}, kind_of_tasks

        transitions, tasks = drawn_transitions(env, self.samples, self.seed)
        if len(transitions) < self.samples:
            print(f"there are {len(transitions):,} transitions, not {self.samples:,}")

        task_ids = set(tasks.values())
        generated_count = sum(map(is_generated, task_ids))
        return transitions, tasks, kind_in_words(len(task_ids), generated_count) or "tasks"

    def _check_drawn(self, name: str | None) -> None:
        """Refuse a world model that tries actions out where transitions come from a file."""
        if self.transitions is not None:
            raise OptionError(
                f"{name} tries actions out in the episodes of the transitions, and a file of transitions "
                "does not say which these are; leave --transitions out, or score another world model"
            )

    def _print(self, result: Mapping[str, Any], name: str | None) -> None:
        from ..benchmarks.display import print_table
        from ..benchmarks.scores import unreadable_examples, world_model_table
        from ..trainers.results import PredictionReport, from_json

        report = from_json(PredictionReport, result["scores"])
        if not report.transitions:
            return

        env_and_split = ", ".join(filter(None, (self.env, result["split"])))
        transitions = "transitions"
        if not result["complete"]:
            transitions = f"the first {report.transitions:,} transitions"
        title = f"{name} on {env_and_split}: {transitions} of {result['tasks'] or 'unknown tasks'}"
        print_table(world_model_table(title, report))
        for line in unreadable_examples(result):
            print(line)
        if self.out is not None:
            print(f"\nscores and predicted texts: {self.out}")

    def _with_scored_model(self) -> ScoreWorldModel:
        """Return this command with the model that is scored under both options, or refuse it."""
        model = self.world_model or self.model
        if model == "shipped":
            model = SHIPPED_WORLD
        if model is None:
            raise OptionError("expected a world model to score, found none; add --world-model")
        if self.model is not None and self.world_model not in (None, self.model):
            raise OptionError(
                f"expected one model to score, found --world-model {self.world_model} and --model "
                f"{self.model}; give the one that is scored as --world-model"
            )
        if model in ("oracle", "noisy"):
            self._check_drawn(model)
        check_number("--samples", self.samples, 2)
        check_out(self.out, is_file=True)
        # The options of models are about this one: it is both the world model and the model.
        return replace(self, world_model=model, model=model)


_OF_DRAWN = (
    "env",
    "env_option",
    "data_dir",
    "split",
    "transitions",
    "samples",
    "save_transitions",
    "seed",
    "fit_tasks",
)
"""The options of `ScoreWorldModel` about transitions that are drawn now, or of a file."""


class _SetModels:
    """The world model that a command names, for each environment of a frozen set."""

    def __init__(
        self,
        command: ScoreWorldModel,
        models: Models,
        evaluation_set: EvaluationSet,
        stack: ExitStack,
    ):
        self._command = command
        self._set = evaluation_set
        self._stack = stack
        # One that is fitted has as many models as there are environments, and no model before.
        self._is_fitted = command.world_model == "retrieval"
        self._model: Any = "retrieval" if self._is_fitted else models.world_model()
        self._engines = models.engines_in_words()

    def about(self) -> dict[str, Any]:
        """Return what results say of the world model; the same model says the same."""
        from ..agents.run import config_of
        from ..worldmodel.create import create_world_model
        from ..worldmodel.naming import name_of

        name = "retrieval"
        config: Any = {"id": "retrieval", "fitted on": f"the train splits of {self._set.name}"}
        if not self._is_fitted:
            model = self._model
            config = config_of(model)
            if isinstance(model, str | Mapping):
                model = create_world_model(model)
            name = name_of(model)
        return {"name": name, "world_model": config, "engines": self._engines}

    def __call__(self, env_id: str) -> WorldModel:
        from ..agents.requests import is_grounded
        from ..agents.scoring import InEpisodes
        from ..benchmarks.evaluation_set import environment, fit_transitions
        from ..worldmodel import RetrievalWorldModel, create_world_model

        if self._is_fitted:
            fitted = RetrievalWorldModel()
            fitted.fit(fit_transitions(self._set.name, env_id))
            return fitted

        model = self._model
        if isinstance(model, str | Mapping):
            model = create_world_model(model)
        if not is_grounded(model):
            world_model: WorldModel = model
            return world_model

        # A model that tries actions out is put into the episode that each transition is from.
        items = self._set.parts[env_id]
        env = self._stack.enter_context(closing(environment(env_id, self._set.splits[env_id])))
        tasks = {item.transition.query: item.task for item in items}
        return InEpisodes(model, env, tasks, items[0].seed)


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the tables and figures of CoMap, PaW and WebEvolver, and what each needs."""

    scale: str = "tiny"
    """Scale: tiny, small or paper."""

    def run(self) -> int:
        from ..benchmarks.display import print_table
        from ..benchmarks.experiments.session import listed

        print_table(listed(self.scale))
        print("\nto run one: comap bench run ID --scale SCALE --out DIR")
        return 0


@dataclass(frozen=True, kw_only=True)
class Run(Command):
    """Run the jobs of tables and figures of these papers, and write rows and reports.

    Each job runs once: finished jobs are skipped, interrupted ones resume, and a failed one only stops
    the jobs that need it.
    """

    example: ClassVar[str] = "comap bench run comap-t1 --scale tiny --out runs/tiny --jobs 2"
    resumes: ClassVar[bool] = True
    former: ClassVar[Mapping[str, str]] = {"jobs": "--workers", "data_dir": "--data"}

    experiments: tuple[str, ...] = field(metadata=WORD)
    """Tables and figures, such as comap-t1; comap, paw or all for many."""
    scale: str = "tiny"
    """Scale: tiny, small or paper."""
    out: Path | None = None
    """Folder of all jobs (default: runs/experiments-SCALE)."""
    seeds: tuple[int, ...] | None = None
    """Seeds (default: the scale's)."""
    jobs: int | None = None
    """Number of jobs at the same time (default: number of cores; 1 at scale paper; all on a cluster)."""
    data_dir: Texts = field(default_factory=dict)
    """Folder with official data of an environment, as ID=DIR. Repeatable."""
    demos: Texts = field(default_factory=dict)
    """File of demonstrations of an environment, as ID=FILE. Repeatable."""
    model_dir: Texts = field(default_factory=dict)
    """Folder of a language model of the scale, as NAME=DIR, in place of the Hub. Repeatable."""
    device: str = "auto"
    """Device of models that play: auto, cpu, cuda or cuda:N."""
    launcher: str | None = None
    """Command that starts trainings ('accelerate launch -m comap'), or 'slurm NAME=VALUE...'."""
    dry_run: bool = False
    """Print configuration, commands and cost, and run nothing."""

    @property
    def folder(self) -> Path:
        return self.out or Path(f"runs/experiments-{self.scale}")

    def run(self) -> int:
        from ..benchmarks.experiments.session import run_experiments
        from .main import main

        # Jobs are commands of comap: the experiments are handed the function that runs one.
        all_ended_well = run_experiments(
            self.experiments,
            self.scale,
            self.folder,
            main,
            workers=self.jobs,
            data=self.data_dir,
            seeds=self.seeds,
            demos=self.demos,
            models=self.model_dir,
            device=self.device,
            launcher=self.launcher,
            dry_run=self.dry_run,
        )
        return 0 if all_ended_well else 1


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write the reports of tables and figures from a folder of comap bench run."""

    example: ClassVar[str] = "comap bench report runs/tiny comap-t1 --formats md"

    results: Path = field(metadata=WORD)
    """Folder of comap bench run."""
    experiments: tuple[str, ...] = field(default=(), metadata=WORD)
    """Tables and figures (default: all in the folder)."""
    out: Path | None = None
    """Folder to write to (default: RESULTS)."""
    formats: tuple[Literal["md", "tex", "html"], ...] = ("md", "tex", "html")
    """Formats: md, tex, html."""

    @property
    def folder(self) -> Path:
        return self.out or self.results

    def run(self) -> int:
        from ..benchmarks.experiments.session import report_experiments

        report_experiments(self.results, self.experiments, self.out, self.formats)
        return 0


@dataclass(frozen=True, kw_only=True)
class Speed(Command):
    """Measure the time of a step, in fresh processes, and that of the original where it is installed."""

    example: ClassVar[str] = "comap bench speed alfworld --peer --data-dir DIR"

    target: str = field(metadata=WORD)
    """What to measure: alfworld, scienceworld, webshop, stabletoolbench or searchqa."""
    peer: bool = False
    """Measure the original too; alfworld's needs --data-dir."""
    against: Path | None = None
    """Folder with another version of comap to measure too."""
    data_dir: str | None = None
    """Folder with official data (default: generated tasks)."""
    episodes: int | None = None
    """Number of episodes to play."""
    processes: int = 3
    """Number of fresh processes."""
    out: Path | None = None
    """File to write the result to, as JSON."""

    def run(self) -> int:
        """Measure; return 1 where answers differ."""
        from ..benchmarks.speed import run, table

        result = run(**vars(self), progress=_to_stderr)
        print(table(result))

        # A speed counts only where both versions gave the same answers.
        has_other_answers = any(
            same != answers for same, answers in result["same_answers"].values()
        )
        return 1 if has_other_answers else 0


@dataclass(frozen=True, kw_only=True)
class NoiseGradients(Command):
    """Measure how much gradient of each of PaW's losses falls on noise."""

    example: ClassVar[str] = "comap bench noise-gradients --model shipped:agent"
    config: Any = field(metadata=SETTINGS)

    @classmethod
    def resolved(cls, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        from ..benchmarks import noise_gradients

        return {"config": noise_gradients.NoiseGradients(**settings)}

    def run(self) -> int:
        from ..benchmarks import noise_gradients

        noise_gradients.run(self.config)
        return 0


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
