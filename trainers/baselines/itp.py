"""ITP_R: a depth for each expert step, then learning to choose it by playing (arXiv 2601.08955).

``obs@K`` of a step t is the world model's prediction of the expert's step t + K - 1, made from the
expert's real state there (not a chain of predictions); past the end it is the last one. The label of a
step is the K that maximizes ``log pi(a* | s, obs@K) - 0.2 K``.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
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
"""The stage in which the world model predicts each of the expert's steps."""

DEPTHS = "depths"
"""The stage in which each of these steps gets its depth."""

DEPTH_HEAD = "k_head.safetensors"
VALUE_HEAD = "value_head.safetensors"
"""The value head, which nothing but the training needs."""

_SUPERVISED = "supervised"
_ONLINE = "online"


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
        # Roles that begin from a trained model have learned this already.
        plan: list[tuple[str, Work]] = []
        if "agent" not in self.begun and config.warmup_epochs:
            epochs = config.warmup_epochs
            plan.append(("warmup-policy", lambda stage: self.imitate(stage, "agent", epochs, rate)))
        if "wm" not in self.begun:
            world_epochs = config.world_model_epochs
            plan.append(("world-model", lambda stage: self.model_world(stage, world_epochs, rate)))

        plan.append((FORESIGHT, self.foresee))
        plan.append((DEPTHS, self.label))
        plan.append((_SUPERVISED, self.supervise))
        if config.episodes:
            plan.append((_ONLINE, self.play_online))
        return plan

    def settings(self, **changed: Any) -> ITPConfig:
        """Return how the agent asks."""
        return recast(self.agent, ITPConfig, k_max=self.k_max, **changed)

    @property
    def k_max(self) -> int:
        """The greatest depth."""
        return self.config.agent.k_max_of(self.demos[0].env_id)

    def asking(self) -> ITPAgent:
        """Return an agent that makes prompts; its head is untrained."""
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
        # The last stage first: online play goes on from the supervised heads.
        for stage_name in (_ONLINE, _SUPERVISED):
            stage = self.folders.get(stage_name)
            if stage is not None and (stage.path / name).is_file():
                return KHead.load(stage.path / name)
        outputs = 1 if name == VALUE_HEAD else self.k_max + 1
        return zero_head(self.head.size, outputs)

    def foresee(self, stage: StageFolder) -> Mapping[str, Any]:
        """Write the world model's prediction of each of the expert's steps."""
        demo_of_task = {
            demonstration.task: demonstration for demonstration in self._labeled_demos()
        }
        model = self.world_model(self.language_model())
        work = partial(_predicted, model, demo_of_task)
        records = self.write_each(stage, list(demo_of_task), self.config.concurrency, work)
        return {"tasks": len(demo_of_task), "faults": len(demo_of_task) - len(records)}

    def label(self, stage: StageFolder) -> Mapping[str, Any]:
        """Give each step the depth that pays best: ``argmax log pi(a* | s, obs@K) - 0.2 K``."""
        moments_of_task = {task: list(moments) for task, moments in self._moments()}
        lm = self.language_model()
        agent = self.asking()
        k_max = self.k_max

        def work(tasks: Sequence[str]) -> Iterator[Done]:
            # Of each task, for each of its steps, a request for each depth.
            requests_of_task: dict[str, list[list[Score]]] = {}
            for task in tasks:
                requests_of_task[task] = [
                    scores_of(moment, agent, k_max, "agent") for moment in moments_of_task[task]
                ]
            requests_of_steps = chain.from_iterable(requests_of_task.values())
            scores = scores_by_request(lm, list(chain.from_iterable(requests_of_steps)))
            for task in tasks:
                yield task, depths_of(requests_of_task[task], scores, self.config.depth_cost)

        # A step has a request for each depth: as many requests at a time as elsewhere.
        batch_size = max(self.config.concurrency // (k_max + 1), 1)
        records = self.write_each(stage, list(moments_of_task), batch_size, work)
        depths: Counter[int] = Counter()
        for record in records.values():
            depths.update(record["depths"])
        return {
            "steps": depths.total(),
            "faults": len(moments_of_task) - len(records),
            "k": {str(depth): depths[depth] for depth in sorted(depths)},
        }

    def _moments(self) -> Iterator[tuple[str, Iterator[Moment]]]:
        """Yield each demonstration's task with its steps, without those whose predictions failed."""
        count_tokens = self.counting.count_tokens
        demos = self._labeled_demos()
        predictions = self.written(FORESIGHT, [demonstration.task for demonstration in demos])
        # Demonstrations do not record what was admissible: the environment plays them once more.
        lists_actions = self.agent.prompts == "standard"
        with closing(self.make_env(self.config.train_split)) as env:
            for demonstration in demos:
                task = demonstration.task
                if task in predictions:
                    admissible = admissible_before(env, demonstration) if lists_actions else None
                    texts = predictions[task]["texts"]
                    yield task, moments_of(demonstration, texts, admissible, count_tokens)

    def _labeled_demos(self) -> list[Trajectory]:
        return self.demonstrated(self.config.labelled, "labelled")

    def labels(self) -> tuple[list[Moment], list[int]]:
        """Return the expert's steps, and the depth of each."""
        moments_of_task = {task: list(moments) for task, moments in self._moments()}
        records = self.written(DEPTHS, list(moments_of_task))
        moments: list[Moment] = []
        depths: list[int] = []
        for task, record in records.items():
            moments += moments_of_task[task]
            depths += record["depths"]
        return moments, depths

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
        lengths = [[len(row) for row in rows]] * config.epochs
        seed = self.seed(stage.name, "order")
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
        self._save_heads(stage, {DEPTH_HEAD: head})
        return {
            "role": "agent",
            "rows": sum(map(len, lengths)),
            "updates": len(trainer.plan),
            "log": log,
            "steps": len(moments),
            "weights": self.save_weights(stage, "agent"),
        }

    def play_online(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let policy and heads learn from what they play; the world model stays as it is."""
        from torch.nn import ModuleDict

        from .itp_trainer import OnlineTrainer, layer_of_head

        # Steps of an update are known once they are played, and would have to be shared out by then.
        if world_size() > 1:
            raise OptionError(
                f"expected one process where ITP plays online, found {world_size()}; go on with one, "
                "or leave that out with --episodes 0"
            )

        # The depth head goes on from what it learned; values of states are learned here from nothing.
        config = self.config
        supervised_head = KHead.load(self.folders[_SUPERVISED].path / DEPTH_HEAD)
        value_head = zero_head(self.head.size, 1)
        heads = ModuleDict(
            {"depth": layer_of_head(supervised_head), "value": layer_of_head(value_head)}
        )

        updates = -(-config.episodes // config.episodes_per_update)  # rounded up
        optimization = {
            "schedule": "constant",
            "logging_steps": 1,
            "save_steps": min(config.optimization.save_steps, 1),
        }
        trainer = OnlineTrainer(
            **self.trainer_options(stage, "agent", config.online_rate, **optimization),
            play=lambda update: self._play_update(stage, update, heads),
            updates=updates,
            parts=config.micro_batches,
            value_weight=config.value_weight,
            entropy_weight=config.entropy_weight,
            head=heads,
            head_rate=config.online_head_rate,
        )
        log = trainer.fit()
        self._save_heads(stage, {DEPTH_HEAD: heads["depth"], VALUE_HEAD: heads["value"]})
        return {
            "role": "agent",
            "episodes": config.episodes,
            "updates": updates,
            "log": log,
            "weights": self.save_weights(stage, "agent"),
        }

    def _play_update(self, stage: StageFolder, update: int, heads: Any) -> Played:
        """Play the episodes of an update on training tasks, and write them down."""
        from .itp_trainer import head_of

        config = self.config
        lm = self.language_model()
        played_before = update * config.episodes_per_update
        number = min(config.episodes - played_before, config.episodes_per_update)
        rng = random.Random(self.seed(stage.name, update))
        tasks = rng.choices(self.tasks(config.train_split), k=number)

        episodes = run_episodes(
            partial(self.make_env, config.train_split),
            OnlineITPAgent(self.settings(), head_of(heads["depth"]), head_of(heads["value"])),
            tasks,
            lm=lm,
            world_model=self.world_model(lm),
            concurrency=config.concurrency,
            seed=[self.seed(stage.name, update, index) for index in range(number)],
            keep="tokens",
            on_work=telling_work(self.tell),
        )
        self.roles.sleep()
        folder = stage.path / "episodes"
        folder.mkdir(exist_ok=True)
        write_trajectories(folder / f"{update:04d}.jsonl", episodes)
        return online_rows(episodes, self.roles.chat, config)

    def _save_heads(self, stage: StageFolder, heads: Mapping[str, Any]) -> None:
        """Write trained heads into a stage's folder."""
        from .itp_trainer import head_of

        if is_first():
            for name, layer in heads.items():
                head_of(layer).save(stage.path / name)
        wait()


def _predicted(
    model: WorldModel, demo_of_task: Mapping[str, Trajectory], tasks: Sequence[str]
) -> Iterator[Done]:
    """Yield the predictions of demonstrations; where they fail together, of each by itself."""
    queries_of_task = {
        task: [query for query, _ in transitions_of(demo_of_task[task])] for task in tasks
    }
    try:
        all_queries = list(chain.from_iterable(queries_of_task.values()))
        predictions = iter(model.predict(all_queries))
    except LanguageModelError as error:
        if len(tasks) == 1:
            yield tasks[0], {"error": f"{type(error).__name__}: {error}"}
            return
        for task in tasks:
            yield from _predicted(model, demo_of_task, [task])
        return

    for task, queries in queries_of_task.items():
        yield task, {"texts": [next(predictions).observation for _ in queries]}


def scores_by_request(lm: Any, requests: Sequence[Score]) -> dict[Any, float | str]:
    """Return the log-probability that each request asks for, or its error; like requests are one."""
    distinct = {(request.messages, request.completions): request for request in requests}
    scores: dict[Any, float | str] = {}
    for key, reply in zip(distinct, answer(lm, list(distinct.values())), strict=True):
        if isinstance(reply, LanguageModelError):
            scores[key] = f"{type(reply).__name__}: {reply}"
        else:
            scores[key] = reply.totals[0]
    return scores


def depths_of(
    requests_of_steps: Sequence[Sequence[Score]],
    scores_of_requests: Mapping[Any, float | str],
    cost: float,
) -> dict[str, Any]:
    """Return the depth of each of an episode's steps, and the scores that it was chosen by."""
    depths = []
    scores = []
    for requests in requests_of_steps:
        numbers = []  # for K from 0 to the greatest
        for request in requests:
            score = scores_of_requests[request.messages, request.completions]
            if isinstance(score, str):
                return {"error": score}
            numbers.append(score)
        depths.append(pseudo_label_k(numbers, cost))
        scores.append([round(number, 6) for number in numbers])
    return {"depths": depths, "scores": scores}


def admissible_before(env: Any, demonstration: Trajectory) -> list[tuple[str, ...] | None]:
    """Return the admissible actions before each step of a demonstration, which is played again."""
    observation, info = env.reset(seed=demonstration.seed, options={"task": demonstration.task})
    expected_observation = demonstration.observation
    admissible = []
    for step in demonstration.steps:
        if observation != expected_observation:
            raise EngineError(
                f"expected the episode of {demonstration.task!r:.80} again, found another observation "
                f"before step {step.t}; show the expert's episodes anew, in another folder"
            )
        admissible.append(info["admissible_actions"])
        observation, _, terminated, truncated, info = env.step(step.action)
        expected_observation = step.observation
        if terminated or truncated:
            break  # demonstrations may be longer than the episodes of trainings
    return admissible


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of an expert, as ITP learns from it."""

    view: View
    replies: dict[int, str]
    step: Step
    reply: str
    predictions: tuple[str, ...]

    def foresight(self, agent: ITPAgent, k: int) -> str:
        """Return the text that the agent reads where it has looked K steps ahead."""
        text = self.view.history[-1].observation  # with K = 0 the present observation
        if k:
            text = observation_at(self.predictions, self.view.step, k)
        return agent.foresight_of(text, self.view.count_tokens)


def observation_at(predictions: Sequence[str], step: int, k: int) -> str:
    """Return obs@K: the prediction of the expert's step ``step + K - 1``."""
    return predictions[min(step + k - 1, len(predictions) - 1)]


def moments_of(
    demonstration: Trajectory,
    predictions: Sequence[str],
    admissible: Sequence[tuple[str, ...] | None] | None,
    count_tokens: Callable[[str], int],
) -> Iterator[Moment]:
    """Yield the steps of a demonstration, with their admissible actions where these are given."""
    for view, replies, step, reply in shown_steps(demonstration, count_tokens):
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
    """A row with, perhaps, a depth that is read at the end of a second sequence, and its TD target."""

    control: tuple[int, ...] = ()
    depth: int = 0
    target: float = 0.0
    advantage: float = 0.0

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer) + len(self.control)

    @classmethod
    def of(cls, row: Example, **depth_fields: Any) -> DepthExample:
        """Return a row with fields of its own added."""
        row_fields = {field.name: getattr(row, field.name) for field in fields(Example)}
        return cls(**row_fields, **depth_fields)


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
    samples = []
    control_requests = []
    for moment, depth in zip(moments, depths, strict=True):
        foresight = moment.foresight(agent, depth)
        prompt = agent.act_prompt(moment.view, depth, foresight, moment.replies)
        samples.append(sample_of("act", prompt, moment.reply, moment.view))
        depth_prompt = agent.depth_prompt(moment.view, moment.replies)
        control_requests.append(Encode(depth_prompt, agent.config.control))

    controls = prompt_tokens(ChatTokenizer.around(tokenizer), control_requests)
    examples = encode_samples(tokenizer, samples, max_length)
    rows = [
        DepthExample.of(example, control=control, depth=depth)
        for example, control, depth in zip(examples, controls, depths, strict=True)
    ]

    # The reply without foresight is learned too: the agent drafts with it where it looks ahead.
    if draft_weight:
        drafts = []
        for moment in moments:
            messages = converse(moment.view, agent.config, moment.replies)
            drafts.append(sample_of("draft", messages, moment.reply, moment.view, draft_weight))
        examples = encode_samples(tokenizer, drafts, max_length)
        rows += [DepthExample.of(example) for example in examples]
    return rows


def zero_head(size: int, outputs: int) -> KHead:
    """Return a head whose outputs are all 0."""
    return KHead([[0.0] * size] * outputs, [0.0] * outputs)


class OnlineITPAgent(ITPAgent):
    """Acts as ITP does, but draws the depth from the head, and notes the value head's output."""

    def __init__(self, config: ITPConfig, k_head: KHead, value: KHead):
        super().__init__(config, k_head)
        self.value = value

    def _read_depth(
        self, view: View, state: Sequence[float], k_max: int
    ) -> tuple[int, dict[str, Any]]:
        """Return a depth drawn by the head's probabilities, and the notes of the step."""
        assert isinstance(self.k_head, KHead)
        logits = self.k_head.logits(state)[: k_max + 1]
        highest = max(logits)
        weights = [math.exp(logit - highest) for logit in logits]
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
    next_values = [*values[1:], 0.0][: len(rewards)]
    return [reward + discount * value for reward, value in zip(rewards, next_values, strict=True)]


def online_rows(episodes: Sequence[Trajectory], tokenizer: Any, config: ITPTraining) -> Played:
    """Return the steps of episodes as rows with TD targets; episodes with an error have none."""
    rows: list[DepthExample] = []
    returned = 0.0
    sound_episodes = [episode for episode in episodes if episode.error is None]
    for episode in sound_episodes:
        rewards = [reward_of(step, config) for step in episode.steps]
        values = [step.notes["value"] for step in episode.steps]
        targets = td_targets(rewards, values, config.discount)
        returned += sum(rewards)
        for step, target, value in zip(episode.steps, targets, values, strict=True):
            rows.append(_row(step, tokenizer, target, target - value))

    won = sum(episode.success for episode in sound_episodes)
    errors = len(episodes) - len(sound_episodes)
    return Played(tuple(rows), len(episodes), returned, won, errors)


def _row(step: Step, tokenizer: Any, target: float, advantage: float) -> DepthExample:
    """Return a step as a row: the tokens of its action's prompt and reply, and its depth's prompt."""
    act_call = _call(step, "act", "act: retry")
    depth_call = _call(step, "depth")
    chat = ChatTokenizer.around(tokenizer)
    (prompt,) = prompt_tokens(chat, [Generate(_messages(act_call), prefix=act_call.prefix)])
    (control,) = prompt_tokens(chat, [Encode(_messages(depth_call), depth_call.prefix)])

    answer = act_call.token_ids
    if answer is None:  # it was scored, as one of several, with the end after it
        answer = (*chat.tokens([act_call.text])[0], chat.end)
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
