"""``comap demo``, ``comap score`` and ``comap bench``: what a user runs to measure."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import OptionError, check_number
from .options import SETTINGS, WORD, Command, Pairs, Texts
from .run import ModelOptions, Models, check_out

if TYPE_CHECKING:
    from ..benchmarks.scores import Answers


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Learn a world model, score it, let agents act, and write a report.

    The world model learns from transitions and is scored by Delta-F1 on unseen tasks; agents act really and
    in its imagination.
    """

    example: ClassVar[str] = "comap demo --out runs/demo"

    config: Any = field(metadata=SETTINGS)

    @classmethod
    def resolved(cls, own: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
        from ..benchmarks.demo import DemoConfig

        return {"config": DemoConfig(**given)}

    def run(self) -> int:
        from ..benchmarks.demo import run_demo

        print(f"\nreport: {run_demo(self.config)}")
        return 0


@dataclass(frozen=True, kw_only=True)
class ScoreTools(Command):
    """Score answers to StableToolBench's tasks: SoPR and SoWR, and what calls alone tell.

    Answers are those of a reference pipeline, or of comap run on comap/StableToolBench-v0. A judge or
    recorded verdicts say what is solved; generated tasks are judged by their own checkers.
    """

    example: ClassVar[str] = (
        "comap score tools answer/virtual_chatgpt_cot --data-dir DIR "
        "--judge http://127.0.0.1:8000/v1#NAME --against answer/virtual_chatgpt_dfs"
    )

    answers: Path = field(metadata=WORD)
    """folder of answer files (<query_id>_<method>.json, also by group), a file of converted answers, or
    a folder of comap run"""
    judge: str | None = None
    """language model that judges: http://HOST:PORT/v1#NAME, or as for comap run --model"""
    verdicts: Path | None = None
    """recorded verdicts in place of a judge: a reference evaluation's, or an --out"""
    judge_option: Pairs = field(default_factory=dict)
    """option of the judge's model, such as api_key_env=NAME or timeout=60 (repeatable)"""
    temperature: float = 0.0
    """of the judge"""
    runs: int | None = None
    """how often an answer is judged (default: 3, all that was recorded, or once by a checker)"""
    against: Path | None = None
    """answers to be won against, for SoWR"""
    against_verdicts: Path | None = None
    """recorded verdicts on these answers"""
    rounds: int = 3
    """comparisons of a pair"""
    data_dir: str | None = None
    """folder with test_instruction/"""
    out: Path | None = None
    """write the scores to this file, as JSON"""

    def run(self) -> int:
        from ..benchmarks.display import print_table
        from ..benchmarks.record import write_result
        from ..benchmarks.scores import read_answers, recorded_judge, score_answers, scores_table

        self._check()
        answers = read_answers(self.answers, self.data_dir)
        against = None if self.against is None else read_answers(self.against, self.data_dir)
        judge, other = self._judge(answers), None
        if against is not None and self.against_verdicts is not None:
            other = recorded_judge(self.against_verdicts, against)
        result = score_answers(
            answers,
            judge,
            against=against,
            against_judge=other,
            runs=self.runs,
            rounds=self.rounds,
            progress=_to_stderr,
        )
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
        from ..benchmarks.scores import recorded_judge
        from ..envs.stabletoolbench.scoring import LMJudge
        from ..lm.create import create_language_model

        if self.verdicts is not None:
            return recorded_judge(self.verdicts, answers)
        if self.judge is None:
            return None
        return LMJudge(create_language_model(self.judge, **self.judge_option), self.temperature)


@dataclass(frozen=True, kw_only=True)
class ScoreWorldModel(ModelOptions):
    """Score a world model, trained or prompted, by Delta-F1 on transitions that stay the same."""

    example: ClassVar[str] = (
        "comap score world-model --world-model retrieval --samples 400 --save-transitions frozen.jsonl"
    )

    former: ClassVar[Mapping[str, str]] = {"samples": "--n", "save_transitions": "--save"}

    split: str | None = None
    """split (default: the environment's hardest for tests)"""
    transitions: Path | None = None
    """a file of transitions, or a folder of comap train comap, whose frozen ones are taken (default:
    drawn anew)"""
    samples: int = 200
    """transitions to draw, half an expert's, half a random agent's"""
    save_transitions: Path | None = None
    """keep the transitions in this file, for --transitions"""
    seed: int = 0
    """of what is drawn"""
    out: Path | None = None
    """write the result to this file, as JSON"""

    def run(self) -> int:
        from ..agents.scoring import drawn_transitions
        from ..benchmarks.display import print_table
        from ..benchmarks.record import write_result
        from ..benchmarks.scores import read_transitions, world_model_result, world_model_table
        from ..envs.registry import env_class, registered
        from ..trainers.evaluation import save_transitions
        from ..trainers.setup import Environments
        from ..worldmodel.create import create_world_model

        self._check()
        environments = Environments(self.env, self.env_options(split="--split"))
        env_id = registered(self.env)
        split = self.split or next(reversed(env_class(env_id).test_splits), None)
        if self.transitions is None:
            with closing(environments(split)) as env:
                transitions = drawn_transitions(env, self.samples, self.seed)
        else:
            transitions = read_transitions(self.transitions, env_id)
        if self.save_transitions is not None:
            save_transitions(self.save_transitions, transitions)
        # the options of models are about the world model where there is no other
        chosen = replace(self, model=self.model or self.world_model)
        with tempfile.TemporaryDirectory() as folder:
            models = Models(chosen, Path(folder), environments, self.seed)
            made = models.world_model()
            models.check_servers()
            model: Any = create_world_model(made) if isinstance(made, str | Mapping) else made
            result = world_model_result(model, environments, split, transitions)
        source = "half an expert's, half a random agent's" if self.transitions is None else "given"
        result |= {"world_model": self.kind_of_world(), "source": source, "seed": self.seed}
        if self.out is not None:
            write_result(self.out, result)
        print_table(world_model_table(f"{self.world_model} on {self.env}", result["scores"]))
        return 0

    def _check(self) -> None:
        if self.world_model is None:
            raise OptionError("expected a world model to score, found none; add --world-model")
        if self.world_model in ("oracle", "noisy"):
            raise OptionError(
                f"{self.world_model} tries actions out in a live episode, and recorded transitions "
                "have none; score another world model"
            )
        check_number("--samples", self.samples, 2)
        check_out(self.out, is_file=True)


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the tables and figures of both papers, and what each needs."""

    scale: str = "tiny"
    """tiny, small or paper"""

    def run(self) -> int:
        from ..benchmarks.display import print_table
        from ..benchmarks.experiments.session import listed

        print_table(listed(self.scale))
        print("\nto run one: comap bench run ID --scale SCALE --out DIR")
        return 0


@dataclass(frozen=True, kw_only=True)
class Run(Command):
    """Run what tables and figures of both papers need, and write rows and reports.

    Each job is run once: those that ended are not run again, those that were stopped go on, and one that
    fails leaves out only what needs it.
    """

    example: ClassVar[str] = "comap bench run comap-t1 --scale tiny --out runs/tiny --jobs 2"
    former: ClassVar[Mapping[str, str]] = {"jobs": "--workers", "data_dir": "--data"}

    experiments: tuple[str, ...] = field(metadata=WORD)
    """tables and figures, such as comap-t1; comap, paw or all for many"""
    scale: str = "tiny"
    """tiny, small or paper"""
    out: Path | None = None
    """folder of everything (default: runs/experiments-SCALE)"""
    seeds: tuple[int, ...] | None = None
    """seeds (default: the scale's)"""
    jobs: int | None = None
    """jobs at the same time (default: as many as there are cores; 1 at scale paper)"""
    data_dir: Texts = field(default_factory=dict)
    """folder with official data of an environment, as ID=DIR (repeatable)"""
    demos: Texts = field(default_factory=dict)
    """file of demonstrations of an environment, as ID=FILE (repeatable)"""
    device: str = "auto"
    """where models play: auto, cpu, cuda or cuda:N"""
    launcher: str | None = None
    """what trainings are started with: 'accelerate launch --num_processes 4 -m comap'"""
    dry_run: bool = False
    """print configuration, commands and cost, and run nothing"""

    @property
    def folder(self) -> Path:
        return self.out or Path(f"runs/experiments-{self.scale}")

    def run(self) -> int:
        from ..benchmarks.experiments.session import run_experiments
        from .main import main

        names = ("seeds", "demos", "device", "launcher", "dry_run")
        given = {name: getattr(self, name) for name in names}
        given |= {"workers": self.jobs, "data": self.data_dir}
        done = run_experiments(self.experiments, self.scale, self.folder, main, **given)
        return 0 if done else 1


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write the reports of tables and figures that comap bench run left in a folder."""

    example: ClassVar[str] = "comap bench report runs/tiny comap-t1 --formats md"

    results: Path = field(metadata=WORD)
    """folder of comap bench run"""
    experiments: tuple[str, ...] = field(default=(), metadata=WORD)
    """tables and figures (default: all that are there)"""
    out: Path | None = None
    """where to write (default: RESULTS)"""
    formats: tuple[Literal["md", "tex", "html"], ...] = ("md", "tex", "html")
    """md, tex, html"""

    @property
    def folder(self) -> Path:
        return self.out or self.results

    def run(self) -> int:
        from ..benchmarks.experiments.session import report_experiments

        report_experiments(self.results, self.experiments, self.out, self.formats)
        return 0


@dataclass(frozen=True, kw_only=True)
class Speed(Command):
    """Measure what a step costs, in fresh processes, and beside the original where it is installed."""

    example: ClassVar[str] = "comap bench speed alfworld --peer"

    target: str = field(metadata=WORD)
    """alfworld, scienceworld, webshop, stabletoolbench, searchqa or runner"""
    peer: bool = False
    """measure the original beside it"""
    against: Path | None = None
    """measure the comap in this folder beside it"""
    data_dir: str | None = None
    """official data (default: generated tasks)"""
    episodes: int | None = None
    """episodes to play"""
    processes: int = 3
    """fresh processes"""
    out: Path | None = None
    """write the result to this file, as JSON"""

    def run(self) -> int:
        """Measure; return 1 where answers differ."""
        from ..benchmarks.speed import run, table

        result = run(**vars(self), progress=_to_stderr)
        print(table(result))
        return int(any(same != answers for same, answers in result["same_answers"].values()))


@dataclass(frozen=True, kw_only=True)
class Reliability(Command):
    """Do to comap what goes wrong in practice, and count what is lost; status 0 only if nothing was.

    Hostile actions, killed runs, load.
    """

    example: ClassVar[str] = "comap bench reliability --scale 0.01 --out runs/reliability"

    scale: float = 1.0
    """share of everything; 1 takes some hours"""
    parts: tuple[str, ...] | None = None
    """only these: actions, engines, load"""
    seed: int = 0
    """of all draws"""
    out: Path | None = None
    """folder for the figures, reliability.json; those of other parts that are there stay"""

    def run(self) -> int:
        """Do it; return 1 where anything was lost."""
        from ..benchmarks.reliability import run_reliability

        file = None if self.out is None else self.out / "reliability.json"
        found = run_reliability(self.scale, self.parts, self.seed, file, print)
        for name, part in found["parts"].items():
            print(f"{name}: {part['lost']} lost, {part['seconds_taken']:.0f} s")
            for loss in part["losses"]:
                print(f"  lost: {loss}")
        return 1 if found["lost"] else 0


@dataclass(frozen=True, kw_only=True)
class Shipped(Command):
    """Train the small models that comap ships."""

    out: Path = Path("runs/shipped")
    """folder for the training"""
    target: Path | None = None
    """folder for the models (default: where comap has them)"""
    seed: int = 0
    """seed of everything that is drawn"""

    def run(self) -> int:
        from ..benchmarks.shipped import make
        from ..lm.create import model_folder

        target = self.target or model_folder()
        print(json.dumps(make(self.out, self.seed, target)["evaluation"], indent=1))
        print(f"models: {target}")
        return 0


@dataclass(frozen=True, kw_only=True)
class NoiseGradients(Command):
    """Measure how much gradient of each of PaW's losses falls on noise."""

    example: ClassVar[str] = "comap bench noise-gradients --model shipped:agent"
    config: Any = field(metadata=SETTINGS)

    @classmethod
    def resolved(cls, own: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
        from ..benchmarks import noise_gradients

        return {"config": noise_gradients.NoiseGradients(**given)}

    def run(self) -> int:
        from ..benchmarks import noise_gradients

        noise_gradients.run(self.config)
        return 0


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
