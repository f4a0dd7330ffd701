"""Trains the small models that comap ships for ALFWorld: ``comap bench shipped``."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import Decision, RandomAgent, Reply, Request, View, run_episode
from ..agents.config import AgentConfig
from ..envs.panel import evenly
from ..envs.registry import env_class
from ..lm.tiny import Row, SFTConfig, build_tiny, fine_tune
from ..trainers.comap.coevolution import CoEvolution
from ..trainers.comap.config import CoMapTraining, preset
from ..trainers.comap.samples import reading_samples
from ..trainers.config import presets
from ..trainers.samples import Sample
from ..trainers.setup import expert_demonstrations
from ..trainers.sft import ASIDE, imitation_samples, transition_samples
from ..trajectory import Trajectory
from ..worldmodel.language import LanguageWorldModel
from .display import TrainingDisplay, training_progress
from .record import circumstances, write_result

ENV = "comap/ALFWorld-v0"
PARTS = ("policy", "wm")
_COMMAND = "comap bench shipped"
_PACKAGES = ("torch", "transformers", "tokenizers", "gymnasium", "numpy")
_ASKED = (
    *(
        "prompts",
        "state_text",
        "decoding",
        "form",
        "draft_tokens",
        "reflect_tokens",
        "final_tokens",
    ),
    *("p_source", "q_source", "tau_p", "tau_q"),
)
_BELIEF = AgentConfig(state_text="belief", prompts="brief")
_FORM = "Reflection: Decision: KEEP\nDecision: REVISE\nFinal Action: go"


@dataclass(frozen=True)
class WarmUp:
    """What policy and world model are warmed up on, and how long."""

    tasks: int = 3500  # that the expert plays
    parameters: int = 500_000  # about, of each model
    vocabulary: int = 1024  # at most
    policy_tokens: int = 8_000_000
    world_model_tokens: int = 7_500_000
    reading_share: float = 0.4  # of transitions whose privileged prompt the world model reads
    max_episode_steps: int | None = None  # None: the environment's
    side_tasks: int = 200  # in which expert and random actions alternate: more texts to read

    def env(self, split: str, **options: Any) -> gymnasium.Env[str, str]:
        given: dict[str, Any] = dict(env_class(ENV).generated_options)
        if self.max_episode_steps is not None:
            given["max_episode_steps"] = self.max_episode_steps
        return gymnasium.make(ENV, split=split, **{**given, **options})

    def expert_env(self, steps: int) -> gymnasium.Env[str, str]:
        """Return an environment whose expert knows only what it saw."""
        return self.env("train", max_episode_steps=steps, expert="explore")


def warm_up(
    part: str,
    seed: int,
    config: WarmUp,
    shown: Sequence[Trajectory],
    folder: Path,
    display: TrainingDisplay,
) -> Path:
    """Fine-tune one model from random weights, unless it is there, and return its folder."""
    out = folder / f"{part}-{seed}"
    if (out / "training.json").is_file():
        return out
    start = time.process_time()
    base = folder / f"untrained-{part}-{seed}"
    build_tiny(
        base,
        list(_texts(shown)),
        seed=seed,
        parameters=config.parameters,
        vocabulary=config.vocabulary,
    )
    if part == "policy":
        rows, tokens = list(_rows(imitation_samples(shown, _BELIEF))), config.policy_tokens
    else:
        rows, tokens = _world_model_rows(shown, seed, config), config.world_model_tokens
    prepared = time.process_time()

    def on_step(done: int, total: int, loss: float) -> None:
        display.show({"event": "warmup", "done": done, "of": total, "loss": loss})

    report = fine_tune(base, out, rows, SFTConfig(tokens=tokens, seed=seed), on_step)
    display.say(f"warmed up: {out}")
    seconds = {
        "prepare": round(prepared - start, 1),
        "train": round(time.process_time() - prepared, 1),
    }
    result = {"part": part, "cpu_seconds": seconds, **report, **circumstances(_PACKAGES)}
    write_result(out / "training.json", result)
    return out


def make(
    out: Path,
    seed: int,
    target: Path,
    warm: WarmUp | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train the models, unless that was done, copy them to `target`, and return a record."""
    from ..trainers.roles import Roles

    warm = warm or WarmUp()
    config = preset("tiny", **{**presets("shipped")["comap"], **(settings or {}), "seed": seed})
    folder = out / "rows" / f"comap-{seed}"
    if not (folder / "summary.json").is_file():
        env = warm.expert_env(200)
        ids = env.get_wrapper_attr("tasks").ids
        tasks = ids[:: max(len(ids) // warm.tasks, 1)][: warm.tasks]
        shown = list(expert_demonstrations(env, tasks))
        with training_progress() as display:
            models = {
                name: str(warm_up(part, seed, warm, shown, out, display))
                for name, part in zip(("agent", "wm"), PARTS, strict=True)
            }
            how: dict[str, Any] = {"dtype": "float32", "device": "cpu", "seed": seed}
            roles = Roles.open(models, kind="full", roles=config.roles(), **how)
            given: dict[str, Any] = {"about": {"row": "comap"}, "session": circumstances(_PACKAGES)}
            given |= {"tell": display.show, "warmed_up": True}
            CoEvolution(config, roles, warm.env, shown, folder, **given).run()
    record = _record(folder, out, seed, config)
    _ship(folder, target, record, config.describe())
    return record


def _record(folder: Path, out: Path, seed: int, config: CoMapTraining) -> dict[str, Any]:
    """Return what is known of the training: settings, costs and the last evaluation."""
    stages = json.loads((folder / "summary.json").read_bytes())["stages"]
    last = [value for name, value in stages.items() if name.endswith("-evaluation")][-1]
    wanted = ("parameters", "rows", "trained_tokens", "epochs", "cpu_seconds")
    warmed = {}
    for part in PARTS:
        whole = json.loads((out / f"{part}-{seed}" / "training.json").read_bytes())
        warmed[part] = {key: whole[key] for key in wanted}
    return {
        "command": f"{_COMMAND} --seed {seed}",
        "seed": seed,
        "warm_up": warmed,
        "training": config.describe(),
        "cpu_seconds": round(sum(value["cpu_seconds"] for value in stages.values()), 1),
        "evaluation": {
            "splits": {
                split: {"n": result["episodes"], "success": round(result["success"], 4)}
                for split, result in last["splits"].items()
            },
            "delta_f1": {
                name: {group: scores[group]["delta_f1"] for group in ("all", "nonempty")}
                for name, scores in last["world_model"].items()
            },
        },
        **circumstances(_PACKAGES),
    }


def _ship(
    folder: Path, target: Path, record: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Copy models, and write their settings, record and card beside them."""
    for name in ("agent", "wm"):
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(folder / "models" / name, target / name)
    for path in target.rglob("*.safetensors"):
        path.chmod(0o644)  # for all who install comap, not only for who made them
    write_result(
        target / "settings.json",
        {
            "env": ENV,
            "agent": {name: settings["agent"][name] for name in _ASKED} | {"temperature": 0.0},
            "world_model": {
                "prompts": settings["agent"]["prompts"],
                "state_text": settings["agent"]["state_text"],
                "max_new_tokens": settings["predict_tokens"],
            },
            "made_by": record["command"],
        },
    )
    write_result(target / "training.json", record)
    (target / "CARD.md").write_text(_card(record), "utf-8")


def _card(record: Mapping[str, Any]) -> str:
    """Return the models' card: what they are, and how they were made."""
    warm, evaluated = record["warm_up"], record["evaluation"]
    success = "; ".join(
        f"{split}: {100 * rate['success']:.1f} % (n = {rate['n']})"
        for split, rate in evaluated["splits"].items()
    )
    delta_f1 = "; ".join(
        f"{name.replace('_', '-')}: {scores['all']:.1f}"
        for name, scores in evaluated["delta_f1"].items()
    )
    template = Path(__file__).parent / "templates" / "shipped_card.md"
    return template.read_text("utf-8").format(
        **{name: record[name] for name in ("cpu_seconds", "seed", "command")},
        parameters=warm["policy"]["parameters"],
        policy_tokens=warm["policy"]["trained_tokens"],
        wm_tokens=warm["wm"]["trained_tokens"],
        rounds=record["training"]["rounds"],
        success=success,
        delta_f1=delta_f1,
        date=record["date"][:10],
    )


class _TokenCounter:
    """Stands for the language model while prompts are built: counts tokens, roughly."""

    name = "none"

    def count_tokens(self, text: str) -> int:
        return len(text) // 4


def _prompt_maker() -> LanguageWorldModel:
    return LanguageWorldModel(_TokenCounter(), prompts="brief", state_text="belief")  # type: ignore[arg-type]


def _rows(samples: Iterable[Sample]) -> Iterator[Row]:
    return (Row(sample.messages, sample.text) for sample in samples)


def _world_model_rows(shown: Sequence[Trajectory], seed: int, config: WarmUp) -> list[Row]:
    """Return transitions, and samples of reading the privileged prompt."""
    env = config.expert_env(24)
    agent = _Wanderer(seed, 0.5)
    tasks = evenly(env.get_wrapper_attr("tasks").ids, config.side_tasks)
    others = [
        step.observation for task in tasks for step in run_episode(env, agent, task=task).steps
    ]  # the expert never sees a refusal, but the world model has to read them too
    reading = reading_samples(
        shown, _prompt_maker(), share=config.reading_share, seed=seed, others=others
    )
    return [*_rows(transition_samples(shown, _prompt_maker())), *_rows(reading)]


class _Wanderer:
    """An expert that takes a random action for a share of the time."""

    name = "side steps"

    def __init__(self, seed: int, share: float):
        self._seed, self._share = seed, share
        self._random = RandomAgent(seed, mixed=0.6)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        rng = random.Random(f"{self._seed}\n{view.task}\n{view.step}\nside".encode())
        planned = view.expert_action()
        if planned is None or rng.random() < self._share:
            aside = yield from self._random.decide(view)
            return replace(aside, notes={**aside.notes, ASIDE: True})
        return Decision(planned)


def _texts(shown: Sequence[Trajectory]) -> Iterator[str]:
    """Yield the text whose words become tokens: the same for both models and all seeds."""
    some = shown[::10]
    history = AgentConfig(state_text="history", prompts="brief", history_turns=3)
    for samples in (
        imitation_samples(some, _BELIEF),
        imitation_samples(some, history),
        transition_samples(some, _prompt_maker()),
    ):
        for row in _rows(samples):
            yield from (message.content for message in row.messages)
            yield row.answer
    words = [
        "Nothing happens. You are facing the. Next to it, you see. You are carrying. help look"
    ]
    for package in ("agents", "worldmodel"):
        folder = files(__package__.rpartition(".")[0]) / package / "prompts" / "brief"
        words += [path.read_text("utf-8") for path in sorted(folder.iterdir(), key=str)]
    yield from words * 2
    for sample in reading_samples(shown[::50], _prompt_maker(), share=1.0):
        yield from (message.content for message in sample.messages)
    yield from [_FORM] * 2
