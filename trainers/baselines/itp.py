"""ITP_R: a depth for each expert step, then learning to choose it by playing (arXiv 2601.08955).

``obs@K`` of a step t is what the world model predicts of the expert's step t + K - 1 from the expert's
real state there (not a chain of predictions); past the end it is the last one. The label of a step is
the K that maximizes ``log pi(a* | s, obs@K) - 0.2 K``.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...agents import Agent, ITPAgent, ITPConfig
from ...agents.base import View
from ...agents.heads import KHead, pseudo_label_k
from ...agents.prompting import converse, seed_for
from ...agents.runner import run_episodes
from ...errors import EngineError, LanguageModelError, OptionError
from ...lm import Encode, Generate, Message, Score, answer
from ...lm.chat import ChatTokenizer
from ...trajectory import Call, Step, Trajectory, write_trajectories
from ...worldmodel import WorldModel, transitions_of
from ..config import recast
from ..processes import is_first, wait, world_size
from ..run_folder import Done, StageFolder
from ..samples import Example, encode_samples, plan_updates, prompt_tokens
from ..sft import BaselineRun, sample_of, shown_steps
from ..stages import Work, telling_work
from .config import ITPTraining

FORESIGHT = "foresight"
"""The stage in which the world model says what it expects."""

DEPTHS = "depths"

DEPTH_HEAD = "k_head.safetensors"
VALUE_HEAD = "value_head.safetensors"
"""The value head, which nothing but the training needs."""

_SUPERVISED, _ONLINE = "supervised", "online"


class ITPRun(BaselineRun):
    """The training of ITP_R in a folder: `run` does it, or resumes it.

    Where the paper leaves it open (ours): the policy imitates the expert first, and foresight is
    ``obs@K`` alone, in training and when it plays; an update is of whole episodes, its loss the mean
    over their steps; an episode that the step limit ends is worth nothing after that; the probability
    of an action is that of its reply's tokens under the model itself, whatever temperature or mask it
    was drawn with, and a thought that was asked for apart (masked and scored decoding, standard
    prompts) is not learned online; the greedy drafts that are looked ahead with are not either.
    """

    saved = ("agent", "wm")
    config: ITPTraining

    def learning(self) -> list[tuple[str, Work]]:
        """Return the stages in which something is learned."""
        config = self.config
        rate = config.learning_rate if config.warmup_rate is None else config.warmup_rate
        plan: list[tuple[str, Work]] = []
        if "agent" not in self.begun and config.warmup_epochs:
            epochs = config.warmup_epochs
            plan.append(("warmup-policy", lambda stage: self.imitate(stage, "agent", epochs, rate)))
        if "wm" not in self.begun:
            times = config.world_model_epochs
            plan.append(("world-model", lambda stage: self.model_world(stage, times, rate)))
        plan += [(FORESIGHT, self.foresee), (DEPTHS, self.label), (_SUPERVISED, self.supervise)]
        return [*plan, (_ONLINE, self.play_online)] if config.episodes else plan

    def settings(self, **changed: Any) -> ITPConfig:
        """Return how the agent asks."""
        return recast(self.agent, ITPConfig, k_max=self.k_max, **changed)

    @property
    def k_max(self) -> int:
        """The greatest depth."""
        return self.config.agent.k_max_of(self.demos[0].env_id)

    def asking(self) -> ITPAgent:
        """Return an agent that makes prompts; its head says nothing yet."""
        return ITPAgent(self.settings(), zero_head(self.head.size, self.k_max + 1))

    def player(self, temperature: float | None = None) -> Agent:
        """Return ITP's agent with its trained head."""
        settings = self.settings(temperature=self.evaluated_agent(temperature).temperature)
        return ITPAgent(settings, self._head(DEPTH_HEAD))

    def player_world(self) -> WorldModel | None:
        """Return the world model that the agent asks."""
        return self.world_model(self.language_model())

    def save(self, out: Path) -> None:
        """Write the heads."""
        for name in (DEPTH_HEAD, VALUE_HEAD):
            self._head(name).save(out / "models" / name)

    def _head(self, name: str) -> KHead:
        """Return a head as the last stage that trained it left it."""
        for stage in (_ONLINE, _SUPERVISED):
            place = self.folders.get(stage)
            if place is not None and (place.path / name).is_file():
                return KHead.load(place.path / name)
        return zero_head(self.head.size, 1 if name == VALUE_HEAD else self.k_max + 1)

    def foresee(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the world model say what it expects of each of the expert's steps."""
        shown = {one.task: one for one in self._shown()}
        model = self.world_model(self.language_model())
        work = partial(_predicted, model, shown)
        found = self.write_each(stage, list(shown), self.config.concurrency, work)
        return {"tasks": len(shown), "faults": len(shown) - len(found)}

    def label(self, stage: StageFolder) -> Mapping[str, Any]:
        """Give each step the depth that pays best: ``argmax log pi(a* | s, obs@K) - 0.2 K``."""
        moments = {task: list(some) for task, some in self._moments()}
        lm, agent, most = self.language_model(), self.asking(), self.k_max

        def work(tasks: Sequence[str]) -> Iterator[Done]:
            asked = {
                task: [scores_of(moment, agent, most, "agent") for moment in moments[task]]
                for task in tasks
            }
            every = [one for rows in asked.values() for row in rows for one in row]
            replies = scores_by_request(lm, every)
            for task in tasks:
                yield task, depths_of(asked[task], replies, self.config.depth_cost)

        size = max(self.config.concurrency // (most + 1), 1)
        found = self.write_each(stage, list(moments), size, work)
        depths = Counter(depth for record in found.values() for depth in record["depths"])
        return {
            "steps": depths.total(),
            "faults": len(moments) - len(found),
            "k": {str(depth): depths[depth] for depth in sorted(depths)},
        }

    def _moments(self) -> Iterator[tuple[str, Iterator[Moment]]]:
        """Yield each demonstration's task with its steps, those whose predictions failed left out."""
        count = self.counting.count_tokens
        demos = self._shown()
        predicted = self.written(FORESIGHT, [shown.task for shown in demos])
        lists = self.agent.prompts == "standard"
        with closing(self.make_env(self.config.train_split)) as env:
            for shown in demos:
                if shown.task in predicted:
                    seen = admissible_before(env, shown) if lists else None
                    texts = predicted[shown.task]["texts"]
                    yield shown.task, moments_of(shown, texts, seen, count)

    def _shown(self) -> list[Trajectory]:
        return self.demonstrated(self.config.labelled, "labelled")

    def labels(self) -> tuple[list[Moment], list[int]]:
        """Return the expert's steps, and the depth of each."""
        steps = {task: list(some) for task, some in self._moments()}
        found = self.written(DEPTHS, list(steps))
        moments = [moment for task in found for moment in steps[task]]
        return moments, [depth for record in found.values() for depth in record["depths"]]

    def supervise(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let policy and depth head learn the expert's actions and the labels."""
        from .itp_trainer import DepthTrainer, layer_of_head

        config = self.config
        moments, depths = self.labels()
        rows = encode_moments(
            self.roles.chat,
            self.asking(),
            moments,
            depths,
            draft_weight=config.draft_weight,
            max_length=self.agent.max_length,
        )
        lengths, seed = [[len(row) for row in rows]] * config.epochs, self.seed(stage.name, "order")
        head = layer_of_head(zero_head(self.head.size, self.k_max + 1))
        trainer = DepthTrainer(
            **self.trainer_options(stage, "agent", config.learning_rate),
            depth_weight=config.depth_weight,
            epochs=[rows] * config.epochs,
            plan=plan_updates(lengths, config.optimization, seed),
            head=head,
            head_rate=config.head_rate,
        )
        log = trainer.fit()
        self._keep(stage, {DEPTH_HEAD: head})
        return {
            "role": "agent",
            "rows": sum(map(len, lengths)),
            "updates": len(trainer.plan) // config.optimization.accumulate,
            "log": log,
            "steps": len(moments),
            "weights": self.save_weights(stage, "agent"),
        }

    def play_online(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let policy and heads learn from what they play; the world model stays as it is."""
        from torch.nn import ModuleDict

        from .itp_trainer import OnlineTrainer, layer_of_head

        if world_size() > 1:
            raise OptionError(
                f"expected one process where ITP plays online, found {world_size()}; go on with one, "
                "or leave that out with --episodes 0"
            )
        config = self.config
        depth = layer_of_head(KHead.load(self.folders[_SUPERVISED].path / DEPTH_HEAD))
        heads = ModuleDict({"depth": depth, "value": layer_of_head(zero_head(self.head.size, 1))})
        updates = -(-config.episodes // config.episodes_per_update)
        each = {
            "accumulate": config.micro_batches,
            "schedule": "constant",
            "logging_steps": 1,
            "save_steps": min(config.optimization.save_steps, 1),
        }
        trainer = OnlineTrainer(
            **self.trainer_options(stage, "agent", config.online_rate, **each),
            play=lambda update: self._played(stage, update, heads),
            updates=updates,
            parts=config.micro_batches,
            value_weight=config.value_weight,
            entropy_weight=config.entropy_weight,
            head=heads,
            head_rate=config.online_head_rate,
        )
        log = trainer.fit()
        self._keep(stage, {DEPTH_HEAD: heads["depth"], VALUE_HEAD: heads["value"]})
        return {
            "role": "agent",
            "episodes": config.episodes,
            "updates": updates,
            "log": log,
            "weights": self.save_weights(stage, "agent"),
        }

    def _played(self, stage: StageFolder, update: int, heads: Any) -> Played:
        """Play the episodes of an update on training tasks, and keep them."""
        from .itp_trainer import head_of

        config = self.config
        lm = self.language_model()
        known = self.tasks(config.train_split)
        first = update * config.episodes_per_update
        number = min(config.episodes - first, config.episodes_per_update)
        tasks = random.Random(self.seed(stage.name, update)).choices(known, k=number)
        found = run_episodes(
            partial(self.make_env, config.train_split),
            OnlineITPAgent(self.settings(), head_of(heads["depth"]), head_of(heads["value"])),
            tasks,
            lm=lm,
            world_model=self.world_model(lm),
            concurrency=config.concurrency,
            seed=[self.seed(stage.name, update, place) for place in range(number)],
            keep="tokens",
            on_work=telling_work(self.tell),
        )
        folder = stage.path / "episodes"
        folder.mkdir(exist_ok=True)
        write_trajectories(folder / f"{update:04d}.jsonl", found)
        return online_rows(found, self.roles.chat, config)

    def _keep(self, stage: StageFolder, heads: Mapping[str, Any]) -> None:
        from .itp_trainer import head_of

        if is_first():
            for name, layer in heads.items():
                head_of(layer).save(stage.path / name)
        wait()


def _predicted(
    model: WorldModel, shown: Mapping[str, Trajectory], tasks: Sequence[str]
) -> Iterator[Done]:
    """Yield the predictions of demonstrations; where that fails, of each by itself."""
    queries = {task: [query for query, _ in transitions_of(shown[task])] for task in tasks}
    try:
        predictions = iter(model.predict([query for some in queries.values() for query in some]))
    except LanguageModelError as error:
        if len(tasks) == 1:
            yield tasks[0], {"error": f"{type(error).__name__}: {error}"}
            return
        for task in tasks:
            yield from _predicted(model, shown, [task])
        return
    for task, some in queries.items():
        yield task, {"texts": [next(predictions).observation for _ in some]}


def scores_by_request(lm: Any, asked: Sequence[Score]) -> dict[Any, float | str]:
    """Return the log-probability that each request asks for, or why there is none; each once."""
    distinct = {(one.messages, one.completions): one for one in asked}
    found: dict[Any, float | str] = {}
    for key, reply in zip(distinct, answer(lm, list(distinct.values())), strict=True):
        failed = isinstance(reply, LanguageModelError)
        found[key] = f"{type(reply).__name__}: {reply}" if failed else reply.totals[0]
    return found


def depths_of(
    asked: Sequence[Sequence[Score]], said: Mapping[Any, float | str], cost: float
) -> dict[str, Any]:
    """Return the depth of each of an episode's steps, and what it was chosen by."""
    depths, scores = [], []
    for row in asked:
        values = [said[one.messages, one.completions] for one in row]
        numbers = [value for value in values if not isinstance(value, str)]
        if len(numbers) < len(values):
            return {"error": next(value for value in values if isinstance(value, str))}
        depths.append(pseudo_label_k(numbers, cost))
        scores.append([round(value, 6) for value in numbers])
    return {"depths": depths, "scores": scores}


def admissible_before(env: Any, shown: Trajectory) -> list[tuple[str, ...] | None]:
    """Return the admissible actions before each step, by doing it all again."""
    observation, info = env.reset(seed=shown.seed, options={"task": shown.task})
    seen, found = shown.observation, []
    for step in shown.steps:
        if observation != seen:
            raise EngineError(
                f"expected the episode of {shown.task!r:.80} again, found another observation before "
                f"step {step.t}; show the expert's episodes anew, in another folder"
            )
        found.append(info["admissible_actions"])
        observation, _, terminated, truncated, info = env.step(step.action)
        seen = step.observation
        if terminated or truncated:
            break  # it ends sooner than for who shows how it is done
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of an expert, as ITP learns from it."""

    view: View
    replies: dict[int, str]
    step: Step
    reply: str
    predictions: tuple[str, ...]

    def foresight(self, agent: ITPAgent, k: int) -> str:
        """Return what the agent reads where it has looked K steps ahead."""
        text = self.view.history[-1].observation  # with K = 0 what is seen now
        if k:
            text = observation_at(self.predictions, self.view.step, k)
        return agent.foresight_of(text, self.view.count_tokens)


def observation_at(predictions: Sequence[str], step: int, k: int) -> str:
    """Return obs@K: the prediction of the expert's step ``step + K - 1``."""
    return predictions[min(step + k - 1, len(predictions) - 1)]


def moments_of(
    shown: Trajectory,
    predictions: Sequence[str],
    admissible: Sequence[tuple[str, ...] | None] | None,
    count_tokens: Callable[[str], int],
) -> Iterator[Moment]:
    for view, replies, step, reply in shown_steps(shown, count_tokens):
        if admissible is not None:
            if view.step >= len(admissible):
                return
            view = replace(view, admissible_actions=admissible[view.step])
        yield Moment(view, replies, step, reply, tuple(predictions))


def scores_of(moment: Moment, agent: ITPAgent, k_max: int, adapter: str | None) -> list[Score]:
    """Return the requests for ``log pi(a* | s, obs@K)``, for K from 0 to the greatest."""
    action = f" {moment.step.action}"
    return [
        Score(
            agent.act_prompt(moment.view, k, moment.foresight(agent, k), moment.replies),
            (action,),
            "Action:",
            True,
            adapter,
            f"depth {k}",
        )
        for k in range(k_max + 1)
    ]


@dataclass(frozen=True, slots=True)
class DepthExample(Example):
    """A row with, perhaps, a depth to be read at the end of a second sequence, and what it was worth."""

    control: tuple[int, ...] = ()
    depth: int = 0
    target: float = 0.0
    advantage: float = 0.0

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer) + len(self.control)

    @classmethod
    def of(cls, row: Example, **told: Any) -> DepthExample:
        return cls(**{part.name: getattr(row, part.name) for part in fields(Example)}, **told)


def encode_moments(
    tokenizer: Any,
    agent: ITPAgent,
    moments: Sequence[Moment],
    depths: Sequence[int],
    *,
    draft_weight: float = 0.0,
    max_length: int = 2048,
) -> list[DepthExample]:
    """Return the rows of the supervised stage: for each step its action and depth."""
    acts = []
    for moment, depth in zip(moments, depths, strict=True):
        seen = moment.foresight(agent, depth)
        prompt = agent.act_prompt(moment.view, depth, seen, moment.replies)
        acts.append(sample_of("act", prompt, moment.reply, moment.view))
    asked = [Encode(agent.depth_prompt(m.view, m.replies), agent.config.control) for m in moments]
    controls = prompt_tokens(ChatTokenizer.around(tokenizer), asked)
    rows = [
        DepthExample.of(row, control=control, depth=depth)
        for row, control, depth in zip(
            encode_samples(tokenizer, acts, max_length), controls, depths, strict=True
        )
    ]
    if draft_weight:
        drafts = [
            sample_of(
                "draft", converse(m.view, agent.config, m.replies), m.reply, m.view, draft_weight
            )
            for m in moments
        ]
        rows += [DepthExample.of(row) for row in encode_samples(tokenizer, drafts, max_length)]
    return rows


def zero_head(size: int, outputs: int) -> KHead:
    """Return a head that says 0 of everything."""
    return KHead([[0.0] * size] * outputs, [0.0] * outputs)


class OnlineITPAgent(ITPAgent):
    """Acts as ITP does, but draws the depth from the head, and notes what the value head says."""

    def __init__(self, config: ITPConfig, k_head: KHead, value: KHead):
        super().__init__(config, k_head)
        self.value = value

    def _read_depth(
        self, view: View, state: Sequence[float], most: int
    ) -> tuple[int, dict[str, Any]]:
        assert isinstance(self.k_head, KHead)
        logits = self.k_head.logits(state)[: most + 1]
        highest = max(logits)
        weights = [math.exp(value - highest) for value in logits]
        rng = random.Random(seed_for(self.config, view, "sampled depth"))
        k = rng.choices(range(len(weights)), weights)[0]
        return k, {"k": k, "value": self.value.logits(state)[0]}


@dataclass(frozen=True, slots=True)
class Played:
    """The episodes of an update."""

    rows: tuple[DepthExample, ...]
    episodes: int
    returned: float
    won: int
    errors: int


def reward_of(step: Step, config: ITPTraining) -> float:
    """Return the reward of a step."""
    reward: float = step.reward + config.success_bonus * step.success - config.step_cost
    reward -= config.depth_cost * step.notes["k"]
    return reward - config.invalid_cost * step.invalid_action


def td_targets(rewards: Sequence[float], values: Sequence[float], discount: float) -> list[float]:
    """Return the TD(0) targets ``r_t + discount V(s_{t+1})`` of an episode's steps."""
    after = [*values[1:], 0.0][: len(rewards)]
    return [reward + discount * value for reward, value in zip(rewards, after, strict=True)]


def online_rows(episodes: Sequence[Trajectory], tokenizer: Any, config: ITPTraining) -> Played:
    rows: list[DepthExample] = []
    returned = 0.0
    sound = [one for one in episodes if one.error is None]
    for episode in sound:
        rewards = [reward_of(step, config) for step in episode.steps]
        values = [step.notes["value"] for step in episode.steps]
        targets = td_targets(rewards, values, config.discount)
        returned += sum(rewards)
        for step, target, value in zip(episode.steps, targets, values, strict=True):
            rows.append(_row(step, tokenizer, target, target - value))
    won = sum(one.success for one in sound)
    return Played(tuple(rows), len(episodes), returned, won, len(episodes) - len(sound))


def _row(step: Step, tokenizer: Any, target: float, advantage: float) -> DepthExample:
    act, depth = _call(step, "act", "act: retry"), _call(step, "depth")
    chat = ChatTokenizer.around(tokenizer)
    (prompt,) = prompt_tokens(chat, [Generate(_messages(act), prefix=act.prefix)])
    (control,) = prompt_tokens(chat, [Encode(_messages(depth), depth.prefix)])
    answer = act.token_ids
    if answer is None:  # it was scored, as one of several, with the end after it
        answer = (*chat.tokens([act.text])[0], chat.end)
    return DepthExample(
        prompt,
        tuple(answer),
        (True,) * len(answer),
        control=control,
        depth=step.notes["k"],
        target=target,
        advantage=advantage,
    )


def _call(step: Step, *purposes: str) -> Call:
    """Return the last call for one of some purposes."""
    return next(call for call in reversed(step.calls) if call.purpose in purposes)


def _messages(call: Call) -> tuple[Message, ...]:
    return tuple(Message(role, text) for role, text in call.messages or ())
