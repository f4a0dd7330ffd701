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
from functools import partial
from pathlib import Path
from typing import Any

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
from ..run_folder import StageFolder
from ..samples import Sample
from ..sft import BaselineRun, imitation_samples, sample_of, transition_sample
from ..stages import Work, some_of
from .config import WebEvolverTraining
from .wkm import transcript

LOOK_AHEAD = "look-ahead"
"""The stage in which the agent plays with its world model, as it is to play in the end."""

_HINT = (
    "This is the last step: the next observation shows the information that is directly needed to "
    "complete the task."
)
_FIRST_REASON = "This is where the task begins."
_JUDGE_TOKENS, _JUDGE_SEED, _DISCOUNT = 256, 42, 0.9


def _is_idle(episode: Trajectory, index: int) -> bool:
    step = episode.steps[index]
    before = episode.steps[index - 1].observation if index else episode.observation
    return step.observation == before or canonical_action(episode.env_id, step.action) == "wait"


def _is_unparsed(episode: Trajectory, index: int) -> bool:
    return episode.steps[index].notes.get("draft_parsed") is False


_DROPS: Mapping[str, Callable[[Trajectory], bool]] = {
    "unparsed": lambda one: any(_is_unparsed(one, index) for index in range(len(one.steps))),
    "login": lambda one: "log in" in reply_of(one.steps[-1]).lower(),
    "unfinished": lambda one: not one.steps[-1].terminated or "n/a" in one.steps[-1].action.lower(),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """An episode to learn from, and the indices of its steps that are learned."""

    episode: Trajectory
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What became of the episodes of one stage."""

    episodes: tuple[Trajectory, ...]
    accepted: tuple[Trajectory, ...]
    kept: tuple[Kept, ...]
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
    accepted: Callable[[Trajectory], bool],
    filters: Collection[str],
    known: set[tuple[str, ...]],
) -> Selection:
    """Return what of some episodes is to be learned, and what each filter removed, the first that does.

    Args:
        episodes: What was played.
        accepted: The judge.
        filters: Names of `FILTERS`.
        known: Task and actions of episodes that were accepted before; those of these are added.
    """
    kept, good, duplicates = list[Kept](), list[Trajectory](), 0
    everything = [one for one in episodes if one.error is None and one.steps]
    removed = Counter({"rejected": 0, **dict.fromkeys(filters, 0)})
    for episode in everything:
        if not accepted(episode):
            removed["rejected"] += 1
            continue
        good.append(episode)
        key = (episode.task, *(step.action for step in episode.steps))
        is_known = key in known
        known.add(key)
        duplicates += is_known
        drops = (name for name in filters if name in _DROPS and _DROPS[name](episode))
        why = "duplicate" if is_known and "duplicate" in filters else next(drops, None)
        if why is not None:
            removed[why] += 1
            continue
        steps = range(len(episode.steps))
        chosen = tuple(i for i in steps if "idle" not in filters or not _is_idle(episode, i))
        if "idle" in filters:
            removed["idle"] += len(steps) - len(chosen)
        kept.append(Kept(episode, chosen))
    return Selection(tuple(everything), tuple(good), tuple(kept), duplicates, removed)


def capped(
    transitions: Sequence[Transition], per_start: int | None, per_action: int | None, seed: int
) -> list[int]:
    """Return the indices of transitions of which there are not too many of one start or one action.

    Which of many stay is drawn; upstream draws with replacement, so fewer stay.
    """
    order = list(range(len(transitions)))
    random.Random(seed).shuffle(order)
    counts: Counter[tuple[str, str]] = Counter()
    kept = []
    for index in order:
        query = transitions[index].query
        limits = (
            (("start", query.history[0].observation), per_start),
            (("action", canonical_action(query.env_id, query.action)), per_action),
        )
        if all(most is None or counts[key] < most for key, most in limits):
            counts.update(key for key, _ in limits)
            kept.append(index)
    return sorted(kept)


class HintedWorldModel(LanguageWorldModel):
    """Is asked, in the last step of an imagined episode, to show what the task needs (upstream)."""

    def __init__(self, lm: LanguageModel, *, depth: int, **options: Any):
        room = lm.count_tokens(_HINT) + OVERHEAD
        super().__init__(lm, **{**options, "max_length": options["max_length"] - room})
        self.depth = depth

    def prompt(self, query: Query) -> tuple[Message, ...]:
        """Return what the language model is asked."""
        messages = super().prompt(query)
        return ask_on(messages, _HINT) if len(query.history) == self.depth else messages


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
        self.beginning = {
            role: {name: weight.clone() for name, weight in self.roles.state(role).items()}
            for role in self.saved
        }

    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""
        config, plan = self.config, list[tuple[str, Work]]()
        first = config.imagined_from
        for number in range(config.rounds + 1):
            parts: list[tuple[str, Callable[..., Mapping[str, Any]]]] = []
            if number:
                parts.append(("play", self.play_round))
            if config.has_world_model and (number or config.shows_expert):
                parts.append(("world-model", self.learn_world))
            if first is not None and number >= first:
                parts.append(("imagine", self.imagine_round))
            if number or config.shows_expert:
                parts.append(("policy", self.learn_policy))
            if config.evaluation_tasks != 0:
                parts.append(("evaluation", self.evaluate_round))
            plan += [
                (f"round-{number}-{name}", partial(work, number=number)) for name, work in parts
            ]
        looks = config.has_world_model and config.evaluation_tasks != 0
        return [*plan, (LOOK_AHEAD, self.evaluate)] if looks else plan

    def player(self, temperature: float | None = None) -> Agent:
        """Return the agent that looks ahead."""
        return WebEvolverAgent(recast(self.evaluated_agent(temperature), WebEvolverConfig))

    def player_world(self) -> WorldModel | None:
        """Return the world model that the agent asks."""
        return LanguageWorldModel(self.language_model(), **self._imagining())

    def summary(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the results in the end, and a line for each round."""
        rounds = [self._line(number, results) for number in range(self.config.rounds + 1)]
        final = results.get(LOOK_AHEAD, results.get(f"round-{self.config.rounds}-evaluation", {}))
        return {
            **super().summary(results),
            "results": final.get("splits", {}),
            "rounds": [line for line in rounds if len(line) > 1],
        }

    def _line(self, number: int, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return success, acceptance and Delta-F1 by depth of a round."""
        line: dict[str, Any] = {"round": number}
        for part in ("play", "imagine"):
            if (found := results.get(f"round-{number}-{part}")) is not None:
                names = ("episodes", "success", "acceptance", "kept", "duplicates", "removed")
                line[part] = {name: found[name] for name in names if name in found}
        if (found := results.get(f"round-{number}-evaluation")) is not None:
            line["success"] = {split: one["success"] for split, one in found["splits"].items()}
            line["delta_f1_by_depth"] = found.get("delta_f1_by_depth")
        return line

    def play_round(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Let the policy play training tasks, and judge and filter the episodes."""
        tasks = self.some_tasks(self.config.tasks_per_round, "round", number)
        found = self.play(
            stage.path / "episodes",
            self.config.train_split,
            self.drafting(),
            tasks,
            lm=self.language_model(),
            seed=self.seed(stage.name, "episodes"),
        )
        return {**played_result(found), **self.selections()[stage.name].describe()}

    def imagine_round(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Let policy and world model imagine the tasks that no episode has solved, and judge those."""
        config, found = self.config, list[Trajectory]()
        played = [one for name, one in self.selections().items() if name.endswith("-play")]
        tasks = {episode.task for one in played for episode in one.episodes}
        tasks -= {shown.task for shown in self.demos}
        tasks -= {episode.task for one in played for episode in one.accepted}
        chosen = some_of(sorted(tasks), config.imagined_tasks, self.seed(stage.name, "tasks"))
        if chosen:
            lm = self.language_model()
            found = self.play(
                stage.path / "episodes",
                config.train_split,
                self.drafting(),
                chosen,
                lm=lm,
                seed=self.seed(stage.name, "episodes"),
                make_env=partial(self._imagined, self._dreaming(lm)),
            )
        return {
            "unsolved": len(tasks),
            **played_result(found),
            **self.selections()[stage.name].describe(),
        }

    def _imagined(self, model: LanguageWorldModel) -> gymnasium.Env[str, str]:
        config = self.config
        return ImaginedEnv(
            self.make_env(config.train_split),
            model,
            horizon=config.imagined_depth,
            imagined_start=config.imagined_start,
        )

    def _imagining(self) -> dict[str, Any]:
        """Return how the world model is asked in imagination and look-ahead."""
        options = self.world_model(self.counting).options
        return {**options, "temperature": self.config.world_temperature}

    def _dreaming(self, lm: LanguageModel) -> LanguageWorldModel:
        if not self.config.last_hint:
            return LanguageWorldModel(lm, **self._imagining())
        return HintedWorldModel(lm, depth=self.config.imagined_depth, **self._imagining())

    def selections(self) -> dict[str, Selection]:
        """Return what is kept of each stage that has played or imagined so far, in order."""
        found: dict[str, Selection] = {}
        for ending in ("-play", "-imagine"):  # an imagined episode is no duplicate of a real one
            known: set[tuple[str, ...]] = set()
            for name in [one for one in self.folders if one.endswith(ending)]:
                episodes = self.episodes(name)
                accepted = self._verdicts(self.folders[name], episodes)
                filters = self.config.filters or ()
                found[name] = select(episodes, accepted, filters, known)
        return found

    def _verdicts(
        self, stage: StageFolder, episodes: Sequence[Trajectory]
    ) -> Callable[[Trajectory], bool]:
        """Return the judge of a stage's episodes; of a verdict that cannot be read it accepts nothing."""
        if self.config.judged_by == "env":
            return lambda episode: episode.success and episode.error is None
        asked = {one.task: [self._question(one)] for one in episodes if one.steps}
        said = {task: texts[0] for task, texts in self.ask_each(stage, asked).items()}
        successes = {task for task, text in said.items() if "SUCCESS" in text}
        failures = {task for task, text in said.items() if "NOT SUCCESS" in text}
        return lambda one: one.task in successes - failures

    def _question(self, episode: Trajectory) -> Generate:
        """Return what the judge is asked about an episode."""
        length, count = self.agent.max_length, self.counting.count_tokens
        prompt = partial(
            fill_template,
            __package__ or "",
            "standard",
            "webevolver_judge",
            goal=cut_text(episode.goal, length // 8, count),
            action=cut_text(reply_of(episode.steps[-1]), length // 8, count),
        )
        used = sum(count(message.content) + OVERHEAD for message in prompt(steps=""))
        room = max(length - _JUDGE_TOKENS - used, 64)
        messages = prompt(steps=transcript(episode, room, count))
        sampling = Sampling(_JUDGE_TOKENS, seed=_JUDGE_SEED)
        return Generate(messages, sampling, adapter="base", purpose="judge")

    def learn_policy(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Let the policy learn, from what round 1 began with, from all episodes that were kept so far."""
        config, kinds = self.config, dict[str, list[Kept]](play=[], imagine=[])
        for name, selection in self.selections().items():
            kinds[name.rpartition("-")[2]] += selection.kept
        real, imagined = kinds["play"], kinds["imagine"]
        alone = config.learn_from == "imagined" and number >= (config.imagined_from or 0)
        demos = self.demos if config.shows_expert else ()
        if alone:
            real, demos = [], ()
        elif config.imagined_share is not None:
            most = int(
                (len(real) + len(demos)) * config.imagined_share / (1 - config.imagined_share)
            )
            rng = random.Random(self.seed(stage.name, "share"))
            imagined = rng.sample(imagined, min(most, len(imagined)))
        count = self.counting.count_tokens
        samples = list(imitation_samples(demos, self.agent, count_tokens=count))
        for kind, some in (("real", real), ("imagined", imagined)):
            samples += [sample for one in some for sample in self._samples(one, kind)]
        if samples and config.learn_critic and config.has_world_model and number:
            samples += self._critic_samples(stage)
        used = {"demonstrated": len(demos), "real": len(real), "imagined": len(imagined)}
        return {"episodes_learned": used, **self._learn_anew(stage, "agent", samples, number)}

    def _samples(self, kept: Kept, kind: str) -> Iterator[Sample]:
        """Yield a sample for each reply of an episode that is learned."""
        replies: dict[int, str] = {}
        for view, _, step in views_of(kept.episode, self.counting.count_tokens):
            reply = reply_of(step)
            if view.step in kept.steps:
                yield sample_of(kind, converse(view, self.agent, replies), reply, view)
            replies[view.step] = reply

    def _critic_samples(self, stage: StageFolder) -> Iterator[Sample]:
        """Yield a score for each real step so far: how near the end of an accepted episode it is (ours)."""
        judged = [(shown, True) for shown in self.demos if self.config.shows_expert]
        for name, found in self.selections().items():
            if name.endswith("-play"):
                won = {id(episode) for episode in found.accepted}
                judged += [(episode, id(episode) in won) for episode in found.episodes]
        agent, rng = self.config.agent, random.Random(self.seed(stage.name, "critic"))
        lead = "" if agent.prompts == "brief" else "Thought: This "
        for episode, good in judged:
            why = lead and f"{lead}{'leads' if good else 'does not lead'} to success.\n"
            steps = episode.steps
            for index, (view, _, step) in enumerate(views_of(episode, self.counting.count_tokens)):
                future = shown_future(steps[index:], rng.randint(0, agent.depth))
                asked = critic_prompt(view, agent, step.action, future)
                score = _DISCOUNT ** (len(steps) - 1 - index) if good else 0.0
                yield sample_of("critic", asked, f"{why}Score: {score:.1f}", view)

    def learn_world(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Let the world model learn, from what round 1 began with, from all real transitions so far."""
        config, filters = self.config, self.config.world_filters or ()
        rows: list[tuple[Transition, str, str]] = []  # transition, task, rationale
        starts: dict[str, Trajectory] = {}
        for earlier in range(number + 1):
            episodes = self._real(earlier)
            why = self._rationales(earlier, episodes)
            for episode in episodes:
                starts.setdefault(episode.task, episode)
                for index, one in enumerate(transitions_of(episode)):
                    idle = "idle" in filters and _is_idle(episode, index)
                    if not (idle or ("unparsed" in filters and _is_unparsed(episode, index))):
                        reasons = why.get(episode.task, ())
                        reason = reasons[index] if index < len(reasons) else ""
                        rows.append((one, episode.task, reason))
        seed = self.seed(stage.name, "caps")
        chosen = capped([one for one, _, _ in rows], config.per_start, config.per_action, seed)
        model = self.world_model(self.counting)
        samples = [
            transition_sample(query, _explained(text, why), model, kind="transition", task=task)
            for (query, text), task, why in (rows[index] for index in chosen)
        ]
        if config.imagined_start:
            reason = _FIRST_REASON if config.rationale else ""
            for task, shown in starts.items():
                query = start_query(shown.env_id, shown.goal)
                text = _explained(shown.observation, reason)
                samples.append(transition_sample(query, text, model, kind="start", task=task))
        return {"transitions": len(rows), **self._learn_anew(stage, "wm", samples, number)}

    def _real(self, number: int) -> list[Trajectory]:
        """Return what was really played in a round; in round 0 what was demonstrated."""
        if number:
            return self.episodes(f"round-{number}-play")
        return list(self.demos) if self.config.shows_expert else []

    def _rationales(self, number: int, episodes: Sequence[Trajectory]) -> dict[str, list[str]]:
        """Return why each observation of a round followed, as the untrained model says, by task."""
        name = f"round-{number}-world-model"
        if not self.config.rationale or name not in self.folders:
            return {}
        asked = {one.task: [self._why(step) for step in transitions_of(one)] for one in episodes}
        return self.ask_each(self.folders[name], asked)

    def _why(self, transition: Transition) -> Generate:
        query, count = transition.query, self.counting.count_tokens
        part = (self.agent.max_length - self.config.rationale_tokens) // 4
        messages = fill_template(
            __package__ or "",
            "standard",
            "webevolver_rationale",
            goal=cut_text(query.goal, part // 2, count),
            before=cut_text(query.history[-1].observation, part, count),
            action=cut_text(query.action, part // 2, count),
            after=cut_text(transition.observation, part, count),
        )
        sampling = Sampling(self.config.rationale_tokens)
        return Generate(messages, sampling, adapter="base", purpose="rationale")

    def _learn_anew(
        self, stage: StageFolder, role: str, samples: Sequence[Sample], number: int
    ) -> Mapping[str, Any]:
        """Train a role as it was when round 1 began; of nothing it stays as it is."""
        if not samples:
            return {"samples": {}}
        config, weights, rate = self.config, dict[str, Path](), self.config.learning_rate
        epochs = (config.world_model_epochs if role == "wm" else None) or config.epochs
        if number and config.shows_expert:
            epochs, rate = config.round_epochs or epochs, config.round_rate or rate
            name = "round-0-policy" if role == "agent" else "round-0-world-model"
            weights = self.folders[name].trained(self.roles.names)
        self.roles.load(role, self.beginning[role])
        self._load_weights(weights)
        return self.learn(stage, role, samples, epochs, rate)

    def evaluate_round(self, stage: StageFolder, number: int) -> Mapping[str, Any]:
        """Let the policy play alone on tasks that nothing was learned from; score the world model there."""
        config, lm = self.config, self.language_model()
        splits, played = self.play_splits(
            stage,
            lambda heat: ReActAgent(recast(self.evaluated_agent(heat), ReActConfig)),
            lm=lm,
            world_model=None,
            tasks=config.evaluation_tasks,
        )
        result: dict[str, Any] = {"round": number, "splits": splits}
        everything = [one for some in played.values() for one in some if one.error is None]
        few, seed = config.scored_transitions, self.seed("scored")
        if config.has_world_model and few and everything:
            model = self.world_model(lm)
            with closing(self.make_env(config.evaluation_splits[0])) as env:
                reads = env.get_wrapper_attr("canonicalizer")
            scored = score_transitions(model, freeze(everything, few, seed), reads)
            result["world_model"] = {"on_policy": scored}
            result["delta_f1_by_depth"] = score_depths(model, everything, reads, few, seed)
        return result


def _explained(text: str, reason: str) -> str:
    """Return an observation as the world model is to write it, after its reason where it has one."""
    reason = " ".join(reason.split())
    return f"Thought: {reason}\nObservation:\n{text}" if reason else text
