"""ITP_R: a depth for each expert step, then learning to choose it by playing (METHODS.md 3)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from ...agents import Agent
from ...agents.itp import ITPAgent, ITPConfig
from ...agents.k_head import KHead, pseudo_label_k
from ...agents.runner import run_episodes
from ...errors import DataCorrupt, EngineError, LanguageModelError, OptionError
from ...lm import Score, answer
from ...trajectory import Trajectory, write_trajectories
from ...worldmodel import WorldModel, transitions_of
from ..learning import stage_arguments
from ..plan import Batching, plan_updates
from ..processes import is_first, wait, world_size
from ..run_folder import StageFolder
from ..staged import Work
from .itp_samples import Moment, encode_moments, label_counts, moments_of, scores_of
from .methods import ITPTraining
from .once import Found, each_once
from .online import OnlineITPAgent, Played, online_rows
from .stages import BaselineStages

__all__ = ["DEPTH_HEAD", "VALUE_HEAD", "ITPStages"]

DEPTH_HEAD = "k_head.safetensors"
"""The depth head, in the folder of models."""
VALUE_HEAD = "value_head.safetensors"
"""The value head, which nothing but the training needs."""

_FORESIGHT, _DEPTHS, _SUPERVISED, _ONLINE = "foresight", "depths", "supervised", "online"


class ITPStages(BaselineStages[ITPTraining]):
    """The stages of ITP_R.

    The world model tells what it expects of each of the expert's steps; the policy, how probable the
    expert's action is with so much foresight, which gives each step the depth that pays best; policy
    and depth head learn action and depth, ``NLL + 0.5 CE(K)``; then both play training tasks, and
    learn by advantage actor-critic from what that earns. The world model stays as it is.
    """

    saved = ("agent", "wm")

    def stages(self) -> list[tuple[str, Work]]:
        """Return the stages."""
        config = self.config
        rate = config.learning_rate if config.warmup_rate is None else config.warmup_rate
        plan: list[tuple[str, Work]] = []
        if "agent" not in self.begun and config.warmup_epochs:
            epochs = config.warmup_epochs
            plan.append(
                ("warmup-policy", lambda stage: self.imitation(stage, "agent", epochs, rate))
            )
        if "wm" not in self.begun:
            times = config.world_model_epochs
            plan.append(("world-model", lambda stage: self.world_modelling(stage, times, rate)))
        plan += [
            (_FORESIGHT, self.foresee),
            (_DEPTHS, self.label),
            (_SUPERVISED, self.supervise),
        ]
        return [*plan, (_ONLINE, self.play_online)] if config.episodes else plan

    # -- the agent -------------------------------------------------------------------------------

    def settings(self, **changed: Any) -> ITPConfig:
        """Return how the agent asks."""
        config = self.config
        return ITPConfig(
            **self.session.agent_settings(**changed),
            k_source="head",
            k_max=self.k_max,
            told="last",
            foresight_tokens=config.foresight_tokens,
            reply_tokens=config.reply_tokens,
        )

    @property
    def k_max(self) -> int:
        """The greatest depth."""
        if self.config.k_max is not None:
            return self.config.k_max
        return ITPConfig().k_max_of(self.session.demos[0].env_id)

    def asking(self) -> ITPAgent:
        """Return an agent that makes prompts; its head says nothing yet."""
        return ITPAgent(self.settings(), _zeros(self.session.head.size, self.k_max + 1))

    def player(self) -> Agent:
        """Return ITP's agent with its trained head."""
        heat = self.config.evaluation_temperature
        return ITPAgent(self.settings(temperature=heat), self._head(DEPTH_HEAD))

    def player_world(self) -> WorldModel | None:
        """Return the world model that the agent asks."""
        return self.session.world_model(self.session.language_model())

    def save(self, models: Path) -> None:
        """Write the heads."""
        for name in (DEPTH_HEAD, VALUE_HEAD):
            self._head(name).save(models / name)

    def _head(self, name: str) -> KHead:
        """Return a head as the last stage that trained it left it."""
        for stage in (_ONLINE, _SUPERVISED):
            place = self.session.places.get(stage)
            if place is not None and (place.path / name).is_file():
                return KHead.load(place.path / name)
        return _zeros(self.session.head.size, 1 if name == VALUE_HEAD else self.k_max + 1)

    # -- stage 1: labels -------------------------------------------------------------------------

    def foresee(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the world model say what it expects of each of the expert's steps."""
        shown = {one.task: one for one in self._shown()}
        found = each_once(stage.path / "written", list(shown), partial(self._predicted, shown))
        return {"tasks": len(found), "faults": sum("error" in told for told in found.values())}

    def _predicted(self, shown: Mapping[str, Trajectory], tasks: Sequence[str]) -> Iterator[Found]:
        model = self.session.world_model(self.session.language_model())
        size = self.session.config.live
        for start in range(0, len(tasks), size):
            yield from _together(model, shown, tasks[start : start + size])
            self._tell(min(start + size, len(tasks)), len(tasks))

    def label(self, stage: StageFolder) -> Mapping[str, Any]:
        """Give each step the depth that pays best: ``argmax log pi(a* | s, obs@K) - 0.2 K``."""
        moments = {task: list(some) for task, some in self._moments()}
        found = each_once(stage.path / "written", list(moments), partial(self._labelled, moments))
        depths = {task: told["depths"] for task, told in found.items() if "depths" in told}
        faults = len(found) - len(depths)
        return {
            "steps": sum(map(len, depths.values())),
            "faults": faults,
            "k": label_counts(depths),
        }

    def _labelled(
        self, moments: Mapping[str, Sequence[Moment]], tasks: Sequence[str]
    ) -> Iterator[Found]:
        lm, agent, most = self.session.language_model(), self.asking(), self.k_max
        size = max(self.session.config.live // (most + 1), 1)
        for start in range(0, len(tasks), size):
            some = tasks[start : start + size]
            asked = {
                task: [scores_of(moment, agent, most, "agent") for moment in moments[task]]
                for task in some
            }
            said = _scored(lm, [one for rows in asked.values() for row in rows for one in row])
            for task in some:
                yield task, self._depths(asked[task], said)
            self._tell(min(start + size, len(tasks)), len(tasks))

    def _depths(
        self, asked: Sequence[Sequence[Score]], said: Mapping[Any, float | str]
    ) -> dict[str, Any]:
        depths, scores = [], []
        for row in asked:
            values = [said[one.messages, one.completions] for one in row]
            numbers = [value for value in values if not isinstance(value, str)]
            if len(numbers) < len(values):
                return {"error": next(value for value in values if isinstance(value, str))}
            depths.append(pseudo_label_k(numbers, self.config.depth_cost))
            scores.append([round(value, 6) for value in numbers])
        return {"depths": depths, "scores": scores}

    def _moments(self) -> Iterator[tuple[str, Iterator[Moment]]]:
        """Yield each demonstration's task with its steps, those whose predictions failed left out."""
        count = self.session.counting.count_tokens
        predicted = self._texts(_FORESIGHT, "texts")
        lists = self.config.prompts == "standard"
        with closing(self.session.make_env(self.config.train_split)) as env:
            for shown in self._shown():
                if shown.task in predicted:
                    seen = _admissible(env, shown) if lists else None
                    texts = predicted[shown.task]
                    yield shown.task, moments_of(shown, texts, seen, count)

    # -- stage 2: supervised ---------------------------------------------------------------------

    def supervise(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let policy and depth head learn the expert's actions and the labels."""
        from .depth_trainer import DepthTrainer, make_head

        session, config = self.session, self.config
        depths = self._texts(_DEPTHS, "depths")
        moments = [
            (m, k)
            for task, some in self._moments()
            if task in depths
            for m, k in zip(some, depths[task], strict=True)
        ]
        rows = encode_moments(
            session.roles.tokenizer,
            self.asking(),
            [moment for moment, _ in moments],
            [k for _, k in moments],
            draft_weight=config.draft_weight,
            max_length=config.max_length,
        )
        lengths = [[len(row) for row in rows]] * config.epochs
        batching = Batching(
            rows=config.batch_rows, tokens=config.batch_tokens, accumulate=config.accumulate
        )
        head = make_head(session.head.size, self.k_max + 1)
        trainer = DepthTrainer(
            depth_weight=config.depth_weight,
            roles=session.roles,
            role="agent",
            epochs=[rows] * config.epochs,
            plan=plan_updates(lengths, batching, session.seed(stage.name, "order")),
            args=stage_arguments(session, stage, config.learning_rate),
            head=head,
            head_rate=config.head_rate,
            betas=(0.9, config.beta2),
            tell=self._telling(stage),
        )
        log = trainer.fit()
        self._keep(stage, {DEPTH_HEAD: head})
        updates = len(trainer.plan) // config.accumulate
        told = {"role": "agent", "rows": sum(map(len, lengths)), "updates": updates, "log": log}
        return {**told, "steps": len(moments), "weights": session.save(stage, ("agent",))}

    # -- stage 3: online -------------------------------------------------------------------------

    def play_online(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let policy and heads learn from what they play; the world model stays as it is."""
        from torch.nn import ModuleDict

        from .depth_trainer import OnlineTrainer, make_head

        if world_size() > 1:
            raise OptionError(
                f"expected one process where ITP plays online, found {world_size()}; go on with one, "
                "or leave that out with --episodes 0"
            )
        session, config = self.session, self.config
        heads = ModuleDict(
            {
                "depth": make_head(session.head.size, self.k_max + 1),
                "value": make_head(session.head.size, 1),
            }
        )
        _fill(heads["depth"], self._head(DEPTH_HEAD))
        updates = -(-config.episodes // config.episodes_per_update)
        trainer = OnlineTrainer(
            play=lambda update: self._played(stage, update, heads),
            updates=updates,
            parts=config.micro_batches,
            value_weight=config.value_weight,
            entropy_weight=config.entropy_weight,
            roles=session.roles,
            role="agent",
            args=stage_arguments(
                session,
                stage,
                config.online_rate,
                accumulate=config.micro_batches,
                schedule="constant",
                every=1,
            ),
            head=heads,
            head_rate=config.online_head_rate,
            betas=(0.9, config.beta2),
            tell=self._telling(stage),
        )
        log = trainer.fit()
        self._keep(stage, {DEPTH_HEAD: heads["depth"], VALUE_HEAD: heads["value"]})
        told = {"role": "agent", "episodes": config.episodes, "updates": updates, "log": log}
        return {**told, "weights": session.save(stage, ("agent",))}

    def _played(self, stage: StageFolder, update: int, heads: Any) -> Played:
        """Play the episodes of an update on training tasks, and keep them."""
        session, config = self.session, self.config
        lm = session.language_model()
        known = session.tasks(config.train_split)
        first = update * config.episodes_per_update
        number = min(config.episodes - first, config.episodes_per_update)
        tasks = random.Random(session.seed(stage.name, update)).choices(known, k=number)
        found = run_episodes(
            partial(session.make_env, config.train_split),
            OnlineITPAgent(self.settings(), _head_of(heads["depth"]), _head_of(heads["value"])),
            tasks,
            lm=lm,
            world_model=session.world_model(lm),
            live=config.live,
            seed=[session.seed(stage.name, update, place) for place in range(number)],
            keep="tokens",
        )
        folder = stage.path / "episodes"
        folder.mkdir(exist_ok=True)
        write_trajectories(folder / f"{update:04d}.jsonl", found)
        return online_rows(found, session.roles.tokenizer, config)

    # -- all of them -----------------------------------------------------------------------------

    def _shown(self) -> list[Trajectory]:
        return self.demonstrated(self.config.labelled, "labelled")

    def _texts(self, name: str, what: str) -> dict[str, Any]:
        """Return what a stage has written of each demonstration, those that failed left out."""
        stage = self.session.places[name]

        def missing(some: Sequence[str]) -> Iterator[Found]:
            raise DataCorrupt(
                f"expected what the stage {name} found in {stage.path}, found nothing of {len(some)} "
                "tasks; remove the folders of that stage and of all later ones to do them again"
            )

        tasks = [shown.task for shown in self._shown()]
        if name == _DEPTHS:
            predicted = self._texts(_FORESIGHT, "texts")
            tasks = [task for task in tasks if task in predicted]
        found = each_once(stage.path / "written", tasks, missing)
        return {task: told[what] for task, told in found.items() if what in told}

    def _keep(self, stage: StageFolder, heads: Mapping[str, Any]) -> None:
        if is_first():
            for name, layer in heads.items():
                _head_of(layer).save(stage.path / name)
        wait()

    def _telling(self, stage: StageFolder) -> Any:
        return lambda logs: self.session.tell({"event": "update", "stage": stage.name, **logs})

    def _tell(self, done: int, of: int) -> None:
        self.session.tell({"event": "suffix", "done": done, "of": of})


def _together(
    model: WorldModel, shown: Mapping[str, Trajectory], tasks: Sequence[str]
) -> Iterator[Found]:
    """Yield the predictions of demonstrations; where that fails, of each by itself."""
    queries = {task: [query for query, _ in transitions_of(shown[task])] for task in tasks}
    try:
        said = iter(model.predict([query for some in queries.values() for query in some]))
    except LanguageModelError as error:
        if len(tasks) == 1:
            yield tasks[0], {"error": f"{type(error).__name__}: {error}"}
            return
        for task in tasks:
            yield from _together(model, shown, [task])
        return
    for task, some in queries.items():
        yield task, {"texts": [next(said).observation for _ in some]}


def _scored(lm: Any, asked: Sequence[Score]) -> dict[Any, float | str]:
    """Return the log-probability that each request asks for, or why there is none; each once."""
    distinct = {(one.messages, one.completions): one for one in asked}
    found: dict[Any, float | str] = {}
    for key, reply in zip(distinct, answer(lm, list(distinct.values())), strict=True):
        failed = isinstance(reply, LanguageModelError)
        found[key] = f"{type(reply).__name__}: {reply}" if failed else reply.totals[0]
    return found


def _admissible(env: Any, shown: Trajectory) -> list[tuple[str, ...] | None]:
    """Return the admissible actions before each step, by doing it all again.

    Raises:
        EngineError: The environment answers otherwise than it did.
    """
    observation, info = env.reset(seed=shown.seed, options={"task": shown.task})
    seen, found = shown.observation, []
    for step in shown.steps:
        if observation != seen:
            raise EngineError(
                f"expected the episode of {shown.task!r:.80} again, found another observation before "
                f"step {step.t}; show the expert's episodes anew, in another folder"
            )
        found.append(info["admissible_actions"])
        observation, _, _, _, info = env.step(step.action)
        seen = step.observation
    return found


def _zeros(size: int, outputs: int) -> KHead:
    return KHead([[0.0] * size] * outputs, [0.0] * outputs)


def _head_of(layer: Any) -> KHead:
    weight = layer.weight.detach().cpu().float().numpy().copy()
    return KHead(weight, layer.bias.detach().cpu().float().numpy().copy())


def _fill(layer: Any, head: KHead) -> None:
    import torch

    with torch.no_grad():
        layer.weight.copy_(torch.tensor(head.weight))
        layer.bias.copy_(torch.tensor(head.bias))
