"""A training of CoMap that takes seconds: for tests that run whole trainings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym

from comap.agents.create import tiny_folder
from comap.jsonl import read_json
from comap.lm import Completion, Encoding
from comap.trainers.comap.coevolution import CoEvolution
from comap.trainers.comap.config import CoMapTraining
from comap.trainers.config import LoRA, SharedTraining, changed
from comap.trainers.results import Fit
from comap.trainers.roles import Roles
from comap.trainers.samples import Sample
from comap.trainers.setup import expert_demonstrations
from comap.trajectory import Trajectory, read_trajectories
from kits.scripted import HashedModel

HORIZON = 4
SEEN = ("Nothing happens.", "You arrive at desk 1. On the desk 1, you see a pen 1.")
SHARED: dict[str, Any] = {  # all that counts, so that it is the same whatever the presets say
    "weights": "full",
    "precision": "float64",
    "gradient_checkpointing": False,
    "exact": True,
    "prompts": "brief",
    "state_text": "belief",
    "decoding": "masked",
    "draft_tokens": 6,
    "schedule": "linear",
    "warmup_ratio": 0.0,  # else the first update, which may be the only one, has a rate of 0
    "batch_rows": None,
    "batch_tokens": 1024,
    "accumulate": 2,
    "logging_steps": 1,
    "save_steps": 1,
    "demonstrations": 3,
    "evaluation_splits": ("valid_seen",),
    "evaluation_tasks": 1,
}
SMALL: dict[str, Any] = {
    **SHARED,
    "p_source": "head",
    "evaluation_temperature": 0.0,
    "evaluation_seeds": 1,
    "policy_rate": 1e-3,
    "world_model_rate": 1e-3,
    "warmup_rate": 3e-3,
    "head_rate": 1e-2,
    "policy_epochs": 1,
    "world_model_epochs": 1,
    "privileged_share": 0.25,
    "init_anchor": 1.0,
    "reflect_tokens": 6,
    "final_tokens": 6,
    "predict_tokens": 6,
    "tau_p": 0.4,  # a head that has learned nothing says 0.5
    "tau_q": 0.0,
    "tau_wm": 0.0,
    "warmup_rollouts": 2,
    "reflection_tasks": 2,
    "states_per_episode": 2,
    "tasks_per_round": 2,
    "rounds": 1,
    "frozen_transitions": 6,
    "diagnosed": 2,
    "entry_tasks": 0,
    "warmup_epochs": 1,
}


def small(**settings: Any) -> CoMapTraining:
    """Return settings of the smallest training, with some changed."""
    return changed(changed(CoMapTraining(), SMALL), settings)


def make_env(split: str) -> gym.Env[str, str]:
    """Make an environment whose episodes are short."""
    return gym.make("comap/ALFWorld-v0", source="generated", split=split, max_episode_steps=HORIZON)


@cache
def demos_of(number: int) -> tuple[Trajectory, ...]:
    """Return the expert's episodes of the first training tasks."""
    env = gym.make("comap/ALFWorld-v0", source="generated", split="train")
    episodes = tuple(expert_demonstrations(env, env.get_wrapper_attr("tasks").ids[:number]))
    env.close()
    return episodes


def opened(
    config: SharedTraining, model: Path, names: Sequence[str], dropout: float = 0.0
) -> Roles:
    """Return models of a training's roles; adapters are small."""
    return Roles.open(
        model,
        kind=config.weights,
        roles=names,
        dtype=config.precision,
        device="cpu",
        lora=LoRA(r=2, alpha=4, dropout=dropout),
        seed=config.seed,
    )


def training(
    config: CoMapTraining,
    model: Path,
    out: Path,
    tell: Callable[[Mapping[str, Any]], object] = lambda event: None,
    **options: Any,
) -> CoEvolution:
    """Return a training that is ready to run."""
    roles = opened(config, model, config.roles(), dropout=0.1)
    demos = demos_of(config.demonstrations or 3)
    return CoEvolution(config, roles, make_env, demos, out, tell=tell, **options)


def model_at(folder: Path) -> Path:
    """Return the folder of an untrained model; it is built there."""
    return tiny_folder(folder, parameters=200_000, episodes=4)


def build_elsewhere(folder: Path) -> None:
    """Build the model in a child, so that no thread of the tokenizers' is left in this process."""
    child = os.fork()
    if not child:
        model_at(folder)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


class Answers(HashedModel):
    """Answers by a hash; world models say one of two observations, and teachers often the same."""

    name = "answers"

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def _one(self, request: Any) -> Completion:
        if request.adapter in ("wm", "wm_ema"):
            text = SEEN[self._draw(request.messages[-1].content, request.adapter) % 2]
            return Completion(text, (1, 2), (-0.25, -0.5), "stop", 9, 2)
        return super()._one(request)

    def encode(self, requests: Sequence[Any]) -> list[Any]:
        self._took(requests)
        return [Encoding((0.0,) * self.size, 9) for _ in requests]


class Recorded:
    """A training whose stages are recorded: what each learned, asked for, and whose weights it moved."""

    def __init__(
        self, config: CoMapTraining, model: Path, out: Path, monkeypatch: Any, **options: Any
    ):
        self.stages: list[str] = []
        self.learned: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, Counter[tuple[str, str | None]]] = {}
        self.moved: dict[str, set[str]] = {}
        self.before: dict[str, Any] = {}
        self.out = out
        self.session = training(config, model, out, self.tell, **options)
        self.lm = Answers(self.session.head.size)
        monkeypatch.setattr(self.session.roles, "language_model", lambda **_: self.lm)
        monkeypatch.setattr(self.session, "fit", self.learn)
        self.summary = self.session.run()

    def weights(self) -> dict[str, Any]:
        roles = self.session.roles
        return {
            name: [w.double().sum().item() for w in roles.state(name).values()]
            for name in roles.names
        }

    def tell(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "stage":
            self.stages.append(event["stage"])
            self.lm.asked.clear()
            self.before = self.weights()
        if event["event"] == "done":
            weights = self.weights()
            stage = event["stage"]
            self.moved[stage] = {name for name in weights if weights[name] != self.before[name]}
            requests = self.lm.asked
            self.asked[stage] = Counter((request.purpose, request.adapter) for request in requests)

    def learn(
        self, stage: Any, role: str, epochs: Any, rate: float, trainer: Any = None, **options: Any
    ) -> Fit:
        self.learned[stage.name] = {"role": role, "epochs": epochs, "rate": rate, **options}
        moved = [role, *([options["teacher"].role] if "teacher" in options else [])]
        for name in moved:
            for weight in self.session.roles.parameters(name).values():
                weight.data += 1
        return Fit(role=role, rows=sum(map(len, epochs)), updates=1, log=())

    def samples(self, stage: str) -> list[Sample]:
        return self.learned[stage]["epochs"][0]

    def kinds(self, stage: str) -> Counter[str]:
        return Counter(sample.kind for sample in self.samples(stage))

    def played(self, stage: str = "round-1-rollouts") -> list[Trajectory]:
        return self.session.episodes(stage)

    def notes(self) -> list[Mapping[str, Any]]:
        return [step.notes for episode in self.played() for step in episode.steps]

    def evaluation(self) -> list[Mapping[str, Any]]:
        place = self.session.folders["round-1-evaluation"].path
        paths = sorted(place.glob("valid_seen-0/*/trajectories.jsonl"))
        return [s.notes for path in paths for t in read_trajectories(path) for s in t.steps]

    def adapters(self, stage: str) -> set[str | None]:
        return {adapter for _, adapter in self.asked[stage]}


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _timeless(v) for k, v in value.items() if not k.endswith("seconds")}
    return value


def results_of(out: Path) -> dict[str, Any]:
    """Return the results of all stages, without what tells of time."""
    paths = sorted(out.glob("stages/*/done.json"))
    return {path.parent.name: _timeless(read_json(path)) for path in paths}


def files_of(out: Path) -> dict[str, bytes]:
    """Return the files that must be the same however often a training was interrupted."""
    kinds = ("*.safetensors", "trajectories.jsonl", "labels.json", "predictions-*/*.jsonl")
    paths = [path for kind in kinds for path in out.rglob(kind)]
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(paths)}
