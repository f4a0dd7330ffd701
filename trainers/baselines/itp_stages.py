"""ITP_R: a depth for each expert step, then learning to choose it by playing (METHODS.md 3)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...agents import Agent
from ...agents.itp import ITPAgent
from ...agents.k_head import KHead
from ...agents.runner import run_episodes
from ...errors import OptionError
from ...trajectory import write_trajectories
from ...worldmodel import WorldModel
from ..learning import stage_arguments
from ..plan import Batching, plan_updates
from ..processes import is_first, wait, world_size
from ..run_folder import StageFolder
from ..staged import Work
from .heads import fill_head, head_of, make_head, zero_head
from .itp_labels import DEPTHS, FORESIGHT, ITPLabels
from .itp_samples import encode_moments
from .online import OnlineITPAgent, Played, online_rows

__all__ = ["DEPTH_HEAD", "VALUE_HEAD", "ITPStages"]

DEPTH_HEAD = "k_head.safetensors"
"""The depth head, in the folder of models."""
VALUE_HEAD = "value_head.safetensors"
"""The value head, which nothing but the training needs."""

_SUPERVISED, _ONLINE = "supervised", "online"


class ITPStages(ITPLabels):
    """The stages of ITP_R.

    The world model tells what it expects of each of the expert's steps; the policy, how probable the
    expert's action is with so much foresight, which gives each step the depth that pays best; policy
    and depth head learn action and depth, ``NLL + 0.5 CE(K)``; then both play training tasks, and
    learn by advantage actor-critic from what that earns. The world model stays as it is.

    Where METHODS.md 3 leaves it open [D]: the policy imitates the expert first, and foresight is
    told as ``obs@K`` alone, in training and when it plays; an update is of whole episodes, its loss
    the mean over their steps; an episode that the step limit ends is worth nothing after that; the
    probability of an action is that of its reply's tokens under the model itself, whatever
    temperature or mask it was drawn with, and a thought that was asked for apart (masked and scored
    decoding, standard prompts) is not learned online; the greedy drafts that are looked ahead with
    are not either.
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
            (FORESIGHT, self.foresee),
            (DEPTHS, self.label),
            (_SUPERVISED, self.supervise),
        ]
        return [*plan, (_ONLINE, self.play_online)] if config.episodes else plan

    # -- the agent -------------------------------------------------------------------------------

    def player(self) -> Agent:
        """Return ITP's agent with its trained head."""
        heat = self.config.evaluation_temperature
        return ITPAgent(self.settings(temperature=heat), self._head(DEPTH_HEAD))

    def player_world(self) -> WorldModel | None:
        """Return the world model that the agent asks."""
        return self.session.world_model(self.session.language_model())

    def save(self, out: Path) -> None:
        """Write the heads."""
        for name in (DEPTH_HEAD, VALUE_HEAD):
            self._head(name).save(out / "models" / name)

    def _head(self, name: str) -> KHead:
        """Return a head as the last stage that trained it left it."""
        for stage in (_ONLINE, _SUPERVISED):
            place = self.session.places.get(stage)
            if place is not None and (place.path / name).is_file():
                return KHead.load(place.path / name)
        return zero_head(self.session.head.size, 1 if name == VALUE_HEAD else self.k_max + 1)

    # -- stage 2: supervised ---------------------------------------------------------------------

    def supervise(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let policy and depth head learn the expert's actions and the labels."""
        from .depth_trainer import DepthTrainer

        session, config = self.session, self.config
        moments, depths = self.labels()
        rows = encode_moments(
            session.roles.tokenizer,
            self.asking(),
            moments,
            depths,
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

        from .depth_trainer import OnlineTrainer

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
        fill_head(heads["depth"], KHead.load(session.places[_SUPERVISED].path / DEPTH_HEAD))
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
            OnlineITPAgent(self.settings(), head_of(heads["depth"]), head_of(heads["value"])),
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

    def _keep(self, stage: StageFolder, heads: Mapping[str, Any]) -> None:
        if is_first():
            for name, layer in heads.items():
                head_of(layer).save(stage.path / name)
        wait()

    def _telling(self, stage: StageFolder) -> Any:
        return lambda logs: self.session.tell({"event": "update", "stage": stage.name, **logs})
