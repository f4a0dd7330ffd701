"""WebEvolver's self-improvement (arXiv 2504.21024): models that learn from what they play and imagine.

Each round the policy plays training tasks, a judge accepts episodes, and filters thin them out. The
world model learns what followed each action. Policy and world model imagine episodes of the tasks that
were not solved; those that the judge accepts join the real ones. The policy learns from all that was
kept, each time from the model that round 1 began with.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from ...agents import Agent, ReActAgent, ReActConfig, WebEvolverAgent, WebEvolverConfig
from ...agents.convert import reply_of, views_of
from ...agents.prompting import ask_on, converse
from ...agents.webevolver import critic_prompt, shown_future
from ...envs.registry import canonical_action
from ...lm import Generate, LanguageModel, Message, Sampling
from ...lm.prompts import OVERHEAD, cut_text, fill_template
from ...trajectory import Trajectory
from ...worldmodel import ImaginedEnv, Query, Transition, WorldModel, transitions_of
from ...worldmodel.imagined import start_query
from ...worldmodel.language import LanguageWorldModel
from ..config import recast
from ..evaluation import freeze, played_result, score_depths, score_transitions
from ..results import to_json
from ..run_folder import StageFolder
from ..samples import Sample
from ..sft import BaselineRun, imitation_samples, sample_of, transition_sample
from ..stages import Work, some_of
from .config import WebEvolverTraining
from .wkm import transcript

LOOK_AHEAD = "look-ahead"
"""The stage in which the agent plays with its world model, as it is to play in the end."""


class RoundPart(StrEnum):
    """What is done in each round; the names of stages end with these."""

    PLAY = "play"
    """The policy plays training tasks."""
    WORLD_MODEL = "world-model"
    """The world model learns from what was played."""
    IMAGINE = "imagine"
    """Policy and world model imagine the tasks that were not solved."""
    POLICY = "policy"
    """The policy learns from what was played and imagined."""
    EVALUATION = "evaluation"
    """The policy plays test tasks, and the world model is scored."""


_HINT = (
    "This is the last step: the next observation shows the information that is directly needed to "
    "complete the task."
)
_FIRST_REASON = "This is where the task begins."
_JUDGE_TOKENS = 256
_JUDGE_SEED = 42
_DISCOUNT = 0.9  # of a critic's score, for each step before an accepted end


def _is_idle(episode: Trajectory, index: int) -> bool:
    """Return whether a step waits, or its observation is that of the step before."""
    step = episode.steps[index]
    previous = episode.steps[index - 1].observation if index else episode.observation
    return step.observation == previous or canonical_action(episode.env_id, step.action) == "wait"


def _is_unparsed(episode: Trajectory, index: int) -> bool:
    return episode.steps[index].notes.get("draft_parsed") is False


def _has_unparsed(episode: Trajectory) -> bool:
    return any(_is_unparsed(episode, index) for index in range(len(episode.steps)))


def _asks_for_login(episode: Trajectory) -> bool:
    return "log in" in reply_of(episode.steps[-1]).lower()


def _is_unfinished(episode: Trajectory) -> bool:
    last_step = episode.steps[-1]
    return not last_step.terminated or "n/a" in last_step.action.lower()


# Those of `FILTERS` that drop whole episodes.
_DROPS: Mapping[str, Callable[[Trajectory], bool]] = {
    "unparsed": _has_unparsed,
    "login": _asks_for_login,
    "unfinished": _is_unfinished,
}


@dataclass(frozen=True, slots=True)
class KeptEpisode:
    """An episode to learn from, and the indices of its steps that are learned."""

    episode: Trajectory
    steps: tuple[int, ...]


class _Explained(NamedTuple):
    """A transition with its task, and the reason why the observation followed."""

    transition: Transition
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The episodes of one stage, those that the judge accepted, and those that are learned."""

    episodes: tuple[Trajectory, ...]
    accepted: tuple[Trajectory, ...]
    kept: tuple[KeptEpisode, ...]
    duplicates: int
    removed: Mapping[str, int]

    def describe(self) -> dict[str, Any]:
        """Return the counts, of steps where they are ``idle``, and the judge's acceptance."""
        return {
            "accepted": len(self.accepted),
            "acceptance": len(self.accepted) / max(len(self.episodes), 1),
            "kept": len(self.kept),
            "duplicates": self.duplicates,
            "removed": dict(self.removed),
        }


def select(
    episodes: Iterable[Trajectory],
    accepts: Callable[[Trajectory], bool],
    filters: Collection[str],
    accepted_before: set[tuple[str, ...]],
) -> Selection:
    """Return the episodes and steps to learn, and how many each filter removed: the first that applies.

    Args:
        episodes: What was played.
        accepts: The judge.
        filters: Names of `FILTERS`.
        accepted_before: Task and actions of episodes that were accepted before; those of these are
            added.
    """
    kept_episodes: list[KeptEpisode] = []
    accepted_episodes: list[Trajectory] = []
    duplicates = 0
    # A fault is the environment's, and no reason to learn or to reject.
    sound_episodes = [episode for episode in episodes if episode.error is None and episode.steps]
    removed = Counter({"rejected": 0, **dict.fromkeys(filters, 0)})
    for episode in sound_episodes:
        if not accepts(episode):
            removed["rejected"] += 1
            continue

        # Also where it is dropped below: what was accepted once is a duplicate from then on.
        accepted_episodes.append(episode)
        key = (episode.task, *(step.action for step in episode.steps))
        is_duplicate = key in accepted_before
        accepted_before.add(key)
        duplicates += is_duplicate
        reason = _reason_to_drop(episode, is_duplicate, filters)
        if reason is not None:
            removed[reason] += 1
            continue

        step_indices = range(len(episode.steps))
        if "idle" in filters:
            learned = tuple(index for index in step_indices if not _is_idle(episode, index))
            removed["idle"] += len(step_indices) - len(learned)
        else:
            learned = tuple(step_indices)
        kept_episodes.append(KeptEpisode(episode, learned))
    return Selection(
        tuple(sound_episodes), tuple(accepted_episodes), tuple(kept_episodes), duplicates, removed
    )


def _reason_to_drop(
    episode: Trajectory, is_duplicate: bool, filters: Collection[str]
) -> str | None:
    """Return the first filter that drops an episode; None where it is kept."""
    if is_duplicate and "duplicate" in filters:
        return "duplicate"
    for name in filters:
        if name in _DROPS and _DROPS[name](episode):
            return name
    return None


def capped(
    transitions: Sequence[Transition], per_start: int | None, per_action: int | None, seed: int
) -> list[int]:
    """Return the indices of transitions of which there are not too many of one start or one action.

    Those that stay are drawn at random; upstream draws with replacement, so fewer stay.
    """
    # The many episodes of one popular start would otherwise be most of what is learned.
    order = list(range(len(transitions)))
    random.Random(seed).shuffle(order)
    start_counts: Counter[str] = Counter()
    action_counts: Counter[str] = Counter()
    indices = []
    for index in order:
        query = transitions[index].query
        start = query.history[0].observation
        action = canonical_action(query.env_id, query.action)
        has_start_room = per_start is None or start_counts[start] < per_start
        has_action_room = per_action is None or action_counts[action] < per_action
        if has_start_room and has_action_room:
            start_counts[start] += 1
            action_counts[action] += 1
            indices.append(index)
    return sorted(indices)


class HintedWorldModel(LanguageWorldModel):
    """A world model whose last prompt of an imagined episode asks for what the task needs (upstream)."""

    def __init__(self, lm: LanguageModel, *, depth: int, **options: Any):
        # The room is left free in all steps, so that the last one's prompt cuts no more than the others'.
        room = lm.count_tokens(_HINT) + OVERHEAD
        super().__init__(lm, **{**options, "max_length": options["max_length"] - room})
        self.depth = depth

    def prompt(self, query: Query) -> tuple[Message, ...]:
        """Return the language model's prompt, in the last step with the hint."""
        messages = super().prompt(query)
        if len(query.history) == self.depth:
            return ask_on(messages, _HINT)
        return messages


class WebEvolverRun(BaselineRun):
    """The training of WebEvolver in a folder: `run` does it, or resumes it.

    Within a round the world model learns before the policy, and imagines with the policy that has just
    played: round 2 is then upstream's last step, its world model of iteration 2 with its policy of
    iteration 1. Where it is left open or differs (ours): imagined episodes begin with a real
    observation unless `imagined_start`; replies are learned as they were said, not rewritten (with
    masked and scored decoding the action alone); the world model learns first observations only where
    it imagines them; the judge's prompt has upstream's protocol in words of ours; episodes that ended
    by a fault are nobody's.
    """

    config: WebEvolverTraining

    def __init__(self, config: WebEvolverTraining, *parts: Any, **named: Any) -> None:
        super().__init__(config, *parts, **named)
        self.saved = ("agent", "wm") if config.has_world_model else ("agent",)

        # Each round learns anew from these weights.
        self.start_weights: dict[str, dict[str, Any]] = {}
        for role in self.saved:
            state = self.roles.state(role)
            self.start_weights[role] = {name: weight.clone() for name, weight in state.items()}

    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""
        config = self.config
        plan: list[tuple[str, Work]] = []
        for number in range(config.rounds + 1):
            for part, work in self._parts_of_round(number):
                plan.append((f"round-{number}-{part}", partial(work, number=number)))
        if config.has_world_model and config.evaluation_tasks != 0:
            plan.append((LOOK_AHEAD, self.evaluate))
        return plan

    def _parts_of_round(
        self, number: int
    ) -> Iterator[tuple[RoundPart, Callable[..., Mapping[str, Any]]]]:
        """Yield the parts of a round and what each does; round 0 learns from demonstrations, if any."""
        config = self.config
        learns = number > 0 or config.shows_expert
        if number:
            yield RoundPart.PLAY, self.play_round
        if config.has_world_model and learns:
            yield RoundPart.WORLD_MODEL, self.learn_world
        if config.imagined_from is not None and number >= config.imagined_from:
            yield RoundPart.IMAGINE, self.imagine_round
        if learns:
            yield RoundPart.POLICY, self.learn_policy
        if config.evaluation_tasks != 0:
            yield RoundPart.EVALUATION, self.evaluate_round

    def player(self, temperature: float | None = None) -> Agent:
        """Return the agent that looks ahead."""
        return WebEvolverAgent(recast(self.evaluated_agent(temperature), WebEvolverConfig))

    def player_world(self) -> WorldModel | None:
        """Return the world model that the agent asks."""
        return LanguageWorldModel(self.language_model(), **self._imagining())

    def summary(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the results in the end, and a line for each round."""
        rounds = [self._line(number, results) for number in range(self.config.rounds + 1)]
        last_evaluation = f"round-{self.config.rounds}-{RoundPart.EVALUATION}"
        final = results.get(LOOK_AHEAD, results.get(last_evaluation, {}))
        return {
            **super().summary(results),
            "results": final.get("splits", {}),
            "rounds": [line for line in rounds if len(line) > 1],
        }

    def _line(self, number: int, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return success, acceptance and Delta-F1 by depth of a round."""
        line: dict[str, Any] = {"round": number}
        names = ("episodes", "success", "acceptance", "kept", "duplicates", "removed")
        for part in (RoundPart.PLAY, RoundPart.IMAGINE):
            result = results.get(f"round-{number}-{part}")
            if result is not None:
                line[part.value] = {name: result[name] for name in names if name in result}

        evaluation = results.get(f"round-{number}-{RoundPart.EVALUATION}")
        if evaluation is not None:
            line["success"] = {
                split: result["success"] for split, result in evaluation["splits"].items()
            }
            line["delta_f1_by_depth"] = evaluation.get("delta_f1_by_depth")
        return line

    def play_round(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Play training tasks with the policy, and judge and filter the episodes."""
        tasks = self.some_tasks(self.config.tasks_per_round, "round", number)
        episodes = self.play(
            stage.path / "episodes",
            self.config.train_split,
            self.drafting(),
            tasks,
            lm=self.language_model(),
            seed=self.seed(stage.name, "episodes"),
        )
        selection = self.selections()[stage.name]
        return {**to_json(played_result(episodes)), **selection.describe()}

    def imagine_round(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Imagine the tasks that no episode has solved, and judge the imagined episodes."""
        config = self.config
        unsolved: set[str] = set()
        solved = {demonstration.task for demonstration in self.demos}
        for selection in _of_part(self.selections(), RoundPart.PLAY):
            unsolved |= {episode.task for episode in selection.episodes}
            solved |= {episode.task for episode in selection.accepted}
        unsolved -= solved

        seed = self.seed(stage.name, "tasks")
        tasks = some_of(sorted(unsolved), config.imagined_tasks, seed)
        episodes: list[Trajectory] = []
        if tasks:
            lm = self.language_model()
            episodes = self.play(
                stage.path / "episodes",
                config.train_split,
                self.drafting(),
                tasks,
                lm=lm,
                seed=self.seed(stage.name, "episodes"),
                make_env=partial(self._imagined_env, self._imagining_model(lm)),
            )
        return {
            "unsolved": len(unsolved),
            **to_json(played_result(episodes)),
            **self.selections()[stage.name].describe(),
        }

    def _imagined_env(self, model: LanguageWorldModel) -> gymnasium.Env[str, str]:
        config = self.config
        return ImaginedEnv(
            self.make_env(config.train_split),
            model,
            horizon=config.imagined_depth,
            imagined_start=config.imagined_start,
        )

    def _imagining(self) -> dict[str, Any]:
        """Return the options of the world model in imagination and look-ahead."""
        options = self.world_model(self.counting).options
        return {**options, "temperature": self.config.world_temperature}

    def _imagining_model(self, lm: LanguageModel) -> LanguageWorldModel:
        """Return the world model that imagines episodes."""
        if not self.config.last_hint:
            return LanguageWorldModel(lm, **self._imagining())
        return HintedWorldModel(lm, depth=self.config.imagined_depth, **self._imagining())

    def selections(self) -> dict[str, Selection]:
        """Return what is kept of each stage that has played or imagined so far, in order."""
        selections: dict[str, Selection] = {}
        for part in (RoundPart.PLAY, RoundPart.IMAGINE):
            # Rounds share what was accepted; an imagined episode is no duplicate of a real one.
            accepted_before: set[tuple[str, ...]] = set()
            for name in [name for name in self.folders if _is_part(name, part)]:
                episodes = self.episodes(name)
                accepts = self._judge_of(self.folders[name], episodes)
                filters = self.config.filters or ()
                selections[name] = select(episodes, accepts, filters, accepted_before)
        return selections

    def _judge_of(
        self, stage: StageFolder, episodes: Sequence[Trajectory]
    ) -> Callable[[Trajectory], bool]:
        """Return the judge of a stage's episodes; it rejects those whose verdict cannot be read."""
        if self.config.judged_by == "env":
            return lambda episode: episode.success and episode.error is None

        questions = {
            episode.task: [self._judge_question(episode)] for episode in episodes if episode.steps
        }
        accepted_tasks = set()
        for task, (verdict,) in self.ask_each(stage, questions).items():
            if "SUCCESS" in verdict and "NOT SUCCESS" not in verdict:
                accepted_tasks.add(task)
        return lambda episode: episode.task in accepted_tasks

    def _judge_question(self, episode: Trajectory) -> Generate:
        """Return the judge's prompt about an episode; the newest steps that fit are in it."""
        length = self.agent.max_length
        count = self.counting.count_tokens
        prompt = partial(
            fill_template,
            __package__ or "",
            "standard",
            "webevolver_judge",
            goal=cut_text(episode.goal, length // 8, count),
            action=cut_text(reply_of(episode.steps[-1]), length // 8, count),
        )
        prompt_size = sum(count(message.content) + OVERHEAD for message in prompt(steps=""))
        room = max(length - _JUDGE_TOKENS - prompt_size, 64)
        messages = prompt(steps=transcript(episode, room, count))
        sampling = Sampling(_JUDGE_TOKENS, seed=_JUDGE_SEED)
        return Generate(messages, sampling, adapter="base", purpose="judge")

    def learn_policy(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Train the policy, from its weights when round 1 began, on all episodes that were kept so far."""
        config = self.config
        demos = self.demos if config.shows_expert else ()
        selections = self.selections()
        real: list[KeptEpisode] = []
        for selection in _of_part(selections, RoundPart.PLAY):
            real += selection.kept
        imagined: list[KeptEpisode] = []
        for selection in _of_part(selections, RoundPart.IMAGINE):
            imagined += selection.kept

        if config.learn_from == "imagined" and number >= (config.imagined_from or 0):
            real = []
            demos = ()
        elif config.imagined_share is not None:
            real_count = len(real) + len(demos)
            limit = int(real_count * config.imagined_share / (1 - config.imagined_share))
            rng = random.Random(self.seed(stage.name, "share"))
            imagined = rng.sample(imagined, min(limit, len(imagined)))

        count_tokens = self.counting.count_tokens
        samples = list(imitation_samples(demos, self.agent, count_tokens=count_tokens))
        for kept_episode in real:
            samples += self._samples(kept_episode, "real")
        for kept_episode in imagined:
            samples += self._samples(kept_episode, "imagined")
        if samples and config.learn_critic and config.has_world_model and number:
            samples += self._critic_samples(stage)
        counts = {"demonstrated": len(demos), "real": len(real), "imagined": len(imagined)}
        return {"episodes_learned": counts, **self._learn_anew(stage, "agent", samples, number)}

    def _samples(self, kept_episode: KeptEpisode, kind: str) -> Iterator[Sample]:
        """Yield a sample for each reply of an episode that is learned."""
        replies: dict[int, str] = {}
        for view, _, step in views_of(kept_episode.episode, self.counting.count_tokens):
            reply = reply_of(step)
            if view.step in kept_episode.steps:
                yield sample_of(kind, converse(view, self.agent, replies), reply, view)
            replies[view.step] = reply

    def _critic_samples(self, stage: StageFolder) -> Iterator[Sample]:
        """Yield a score for each real step so far: how near the end of an accepted episode it is (ours)."""
        judged: list[tuple[Trajectory, bool]] = []
        if self.config.shows_expert:
            judged += [(demonstration, True) for demonstration in self.demos]
        for selection in _of_part(self.selections(), RoundPart.PLAY):
            accepted = {id(episode) for episode in selection.accepted}
            judged += [(episode, id(episode) in accepted) for episode in selection.episodes]

        agent = self.config.agent
        rng = random.Random(self.seed(stage.name, "critic"))
        for episode, is_accepted in judged:
            thought = ""
            if agent.prompts != "brief":
                verb = "leads" if is_accepted else "does not lead"
                thought = f"Thought: This {verb} to success.\n"

            steps = episode.steps
            for index, (view, _, step) in enumerate(views_of(episode, self.counting.count_tokens)):
                future = shown_future(steps[index:], rng.randint(0, agent.depth))
                messages = critic_prompt(view, agent, step.action, future)
                steps_to_go = len(steps) - 1 - index
                score = _DISCOUNT**steps_to_go if is_accepted else 0.0
                yield sample_of("critic", messages, f"{thought}Score: {score:.1f}", view)

    def learn_world(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Train the world model, from its weights when round 1 began, on all real transitions so far."""
        config = self.config
        explained: list[_Explained] = []
        first_episodes: dict[str, Trajectory] = {}  # of each task
        for round_number in range(number + 1):
            episodes = self._real_episodes(round_number)
            explained += self._explained_transitions(round_number, episodes)
            for episode in episodes:
                first_episodes.setdefault(episode.task, episode)

        transitions = [row.transition for row in explained]
        seed = self.seed(stage.name, "caps")
        model = self.world_model(self.counting)
        samples = []
        for index in capped(transitions, config.per_start, config.per_action, seed):
            row = explained[index]
            query, observation = row.transition
            text = _with_reason(observation, row.reason)
            samples.append(transition_sample(query, text, model, kind="transition", task=row.task))

        if config.imagined_start:
            reason = _FIRST_REASON if config.rationale else ""
            for task, episode in first_episodes.items():
                query = start_query(episode.env_id, episode.goal)
                text = _with_reason(episode.observation, reason)
                samples.append(transition_sample(query, text, model, kind="start", task=task))
        return {"transitions": len(explained), **self._learn_anew(stage, "wm", samples, number)}

    def _explained_transitions(
        self, number: int, episodes: Sequence[Trajectory]
    ) -> Iterator[_Explained]:
        """Yield the transitions of a round's episodes that the filters leave, each with its reason."""
        filters = self.config.world_filters or ()
        reasons_of_task = self._rationales(number, episodes)
        for episode in episodes:
            reasons = reasons_of_task.get(episode.task, ())
            for index, transition in enumerate(transitions_of(episode)):
                is_idle = "idle" in filters and _is_idle(episode, index)
                is_unparsed = "unparsed" in filters and _is_unparsed(episode, index)
                if not (is_idle or is_unparsed):
                    reason = reasons[index] if index < len(reasons) else ""
                    yield _Explained(transition, episode.task, reason)

    def _real_episodes(self, number: int) -> list[Trajectory]:
        """Return the episodes that were played in a round; in round 0 the demonstrations."""
        if number:
            return self.episodes(f"round-{number}-{RoundPart.PLAY}")
        return list(self.demos) if self.config.shows_expert else []

    def _rationales(self, number: int, episodes: Sequence[Trajectory]) -> dict[str, list[str]]:
        """Return the untrained model's reason for each observation of a round, by task."""
        name = f"round-{number}-{RoundPart.WORLD_MODEL}"
        if not self.config.rationale or name not in self.folders:
            return {}
        questions = {}
        for episode in episodes:
            questions[episode.task] = [
                self._rationale_question(transition) for transition in transitions_of(episode)
            ]
        return self.ask_each(self.folders[name], questions)

    def _rationale_question(self, transition: Transition) -> Generate:
        """Return the prompt for the reason why an observation followed."""
        query = transition.query
        count = self.counting.count_tokens
        # Of the room: a quarter for each observation, an eighth for the goal and for the action.
        quarter = (self.agent.max_length - self.config.rationale_tokens) // 4
        messages = fill_template(
            __package__ or "",
            "standard",
            "webevolver_rationale",
            goal=cut_text(query.goal, quarter // 2, count),
            before=cut_text(query.history[-1].observation, quarter, count),
            action=cut_text(query.action, quarter // 2, count),
            after=cut_text(transition.observation, quarter, count),
        )
        sampling = Sampling(self.config.rationale_tokens)
        return Generate(messages, sampling, adapter="base", purpose="rationale")

    def _learn_anew(
        self, stage: StageFolder, role: str, samples: Sequence[Sample], number: int
    ) -> dict[str, Any]:
        """Train a role as it was when round 1 began; without samples it stays as it is."""
        if not samples:
            return {"samples": {}}

        config = self.config
        rate = config.learning_rate
        epochs = config.epochs
        if role == "wm" and config.world_model_epochs:
            epochs = config.world_model_epochs

        # Round 1 begins with the models as they came, or as they learned from demonstrations.
        weights: dict[str, Path] = {}
        if number and config.shows_expert:
            epochs = config.round_epochs or epochs
            rate = config.round_rate or rate
            part = RoundPart.POLICY if role == "agent" else RoundPart.WORLD_MODEL
            weights = self.folders[f"round-0-{part}"].trained(self.roles.names)
        self.roles.load(role, self.start_weights[role])
        self._load_weights(weights)
        fit: dict[str, Any] = to_json(self.learn(stage, role, samples, epochs, rate))
        return fit

    def evaluate_round(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Play tasks that nothing was learned from with the policy alone; score the world model there."""
        config = self.config
        lm = self.language_model()
        splits, episodes_of_splits = self.play_splits(
            stage,
            lambda temperature: ReActAgent(recast(self.evaluated_agent(temperature), ReActConfig)),
            lm=lm,
            world_model=None,
            tasks=config.evaluation_tasks,
        )
        evaluation: dict[str, Any] = {"round": number, "splits": splits}

        episodes: list[Trajectory] = []
        for episodes_of_split in episodes_of_splits.values():
            episodes += [episode for episode in episodes_of_split if episode.error is None]
        scored_count = config.scored_transitions
        if config.has_world_model and scored_count and episodes:
            seed = self.seed("scored")
            model = self.world_model(lm)
            with closing(self.make_env(config.evaluation_splits[0])) as env:
                canonicalizer = env.get_wrapper_attr("canonicalizer")
            transitions = freeze(episodes, scored_count, seed)
            evaluation["world_model"] = {
                "on_policy": score_transitions(model, transitions, canonicalizer)
            }
            evaluation["delta_f1_by_depth"] = score_depths(
                model, episodes, canonicalizer, scored_count, seed
            )
        return evaluation


def _is_part(stage_name: str, part: RoundPart) -> bool:
    """Return whether a stage is a round's part of this kind."""
    return stage_name.endswith(f"-{part}")


def _of_part(selections: Mapping[str, Selection], part: RoundPart) -> list[Selection]:
    """Return the selections of all rounds' parts of one kind."""
    return [selection for name, selection in selections.items() if _is_part(name, part)]


def _with_reason(observation: str, reason: str) -> str:
    """Return an observation as the world model is to write it, after its reason where it has one."""
    reason = " ".join(reason.split())
    return f"Thought: {reason}\nObservation:\n{observation}" if reason else observation
