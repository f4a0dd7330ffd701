"""What `comap bench training-scale` learns and asks: real shapes, and rows of real lengths."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import gymnasium

from ..agents import Decision, RandomAgent, Reply, Request, View, run_episodes
from ..agents.acting import STOP, Draft
from ..agents.comap import CoMapConfig
from ..agents.prompting import converse
from ..lm import Encode, Generate, LanguageModel, Message, Sampling, Score
from ..trainers.config import CoMapTraining
from ..trainers.policy_options import PolicyOptions
from ..trainers.policy_samples import balance_weights
from ..trainers.policy_writer import Judged, SampleWriter
from ..trainers.replayed import views_of
from ..trainers.samples import Sample
from ..trainers.world_model_samples import transition_sample
from ..trajectory import Step, Turn
from ..worldmodel import Query
from ..worldmodel.language import LanguageWorldModel

__all__ = ["ARCHITECTURES", "Architecture", "Ask", "Material", "decision_requests", "material"]

Ask: TypeAlias = "Generate | Encode | Score"
"""A request of a decision."""

_ENV = "comap/ALFWorld-v0"
_JOINED = 6  # turns that are told as one
_STEPS = 200  # of an episode: most of its states have histories longer than any prompt


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a Qwen3 model whose embedding is used for input and output.

    Attributes:
        hidden: Width of the residual stream.
        layers: Number of layers.
        heads: Number of query heads.
        key_heads: Number of key and value heads.
        head: Width of a head.
        inner: Width of the feed-forward layers.
        vocabulary: Number of tokens.

    Example:
        >>> f"{ARCHITECTURES['qwen3-4b'].parameters:,}"
        '4,022,468,096'
    """

    hidden: int
    layers: int
    heads: int
    key_heads: int
    head: int
    inner: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Number of parameters; the embedding counts once."""
        attention = 2 * self.hidden * self.head * (self.heads + self.key_heads) + 2 * self.head
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden

    def config(self) -> dict[str, Any]:
        """Return what transformers' ``Qwen3Config`` is told."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 40_960,
            "tie_word_embeddings": True,
            "bos_token_id": None,
        }


ARCHITECTURES = {
    "qwen3-4b": Architecture(2560, 36, 32, 8, 128, 9728, 151_936),
    "qwen3-0.6b": Architecture(1024, 28, 16, 8, 128, 3072, 151_936),
    "tiny": Architecture(96, 4, 4, 2, 32, 288, 2048),
}
"""Shapes by name: of the published models, and a tiny one for a CPU."""


@dataclass(frozen=True, slots=True)
class Material:
    """What there is to learn and to decide, one of each kind for each state.

    Attributes:
        world: Transitions with the teacher's prompts, for the world model.
        policy: Anchors and reflections by turns, for the policy.
        drafts: The prompts that ask for drafts.
        reflections: The prompts that ask for reflections.
    """

    world: tuple[Sample, ...]
    policy: tuple[Sample, ...]
    drafts: tuple[tuple[Message, ...], ...]
    reflections: tuple[tuple[Message, ...], ...]

    @property
    def plain(self) -> list[Sample]:
        """The transitions without a teacher, for plain cross-entropy."""
        return [replace(sample, teacher=(), distill_weight=0.0) for sample in self.world]


def material(lm: LanguageModel, config: CoMapTraining, count: int, target: int) -> Material:
    """Return rows whose prompts are as long as the settings let them be.

    They are of an aimless agent's long episodes in generated tasks, taken where the history is longer
    than a prompt, so that all prompts are cut to fit; several turns are told as one. What follows an
    action is drawn out to about `target` tokens with what was observed later.

    Args:
        lm: Counts tokens.
        config: Sizes, prompts and weights.
        count: How many.
        target: About how many tokens a reply has.
    """
    world: list[Sample] = []
    policy: tuple[list[Sample], list[Sample]] = ([], [])
    drafts, reflections = [], []
    settings = _agent_settings(config)
    options = PolicyOptions(alpha=config.alpha, beta=config.beta)
    writer = SampleWriter(settings, options)
    model = LanguageWorldModel(
        lm,
        prompts=config.prompts,
        state_text=config.state_text,
        adapter="wm",
        max_length=config.max_length,
        max_new_tokens=config.predict_tokens,
    )
    for number, (view, step, later) in enumerate(islice(_states(lm, config, target), count)):
        draft = Draft(f"Thought: {later}\nAction: {step.action}", step.action, True, "free")
        judged = Judged(draft, later, number % 4 == 3, step.action, later)
        reflection = writer.reflection("keep_draft", view, {}, judged)
        asked = converse(view, settings, {})
        anchor = replace(
            reflection, kind="anchor", messages=asked, reply=((draft.text, True),), **_UNLABELLED
        )
        world.append(_transition(model, view, step.action, later, config.eta))
        policy[number % 2].append(reflection if number % 2 else anchor)
        drafts.append(asked)
        reflections.append(reflection.messages)
    mixed = balance_weights(*policy)
    firsts, seconds = mixed[: len(policy[0])], mixed[len(policy[0]) :]
    turns = [(firsts, seconds)[number % 2][number // 2] for number in range(len(mixed))]
    return Material(tuple(world), tuple(turns), tuple(drafts), tuple(reflections))


_UNLABELLED: dict[str, Any] = {"label": None, "label_weight": 0.0}


def _agent_settings(config: CoMapTraining) -> CoMapConfig:
    """Return how the policy is asked, as a training's rollouts ask it."""
    return CoMapConfig(
        prompts=config.prompts,
        state_text=config.state_text,
        max_length=config.max_length,
        temperature=config.temperature,
        top_p=config.top_p,
        draft_tokens=config.draft_tokens,
        reflect_tokens=config.reflect_tokens,
        final_tokens=config.final_tokens,
        adapter="agent",
    )


def decision_requests(found: Material, config: CoMapTraining, count: int) -> dict[str, list[Ask]]:
    """Return what is asked for decisions in a training rollout, by what it is for, in its order.

    A draft, the student's and the teacher's predictions, the state that says p, the reflection, its
    continuation with a final action, and that action's score (METHODS.md 1.2 and 1.3).

    Args:
        found: States.
        config: Sizes and temperatures.
        count: How many decisions; at most as many as there are states.
    """
    settings, predict = _agent_settings(config), Sampling(config.predict_tokens)
    asked: dict[str, list[Ask]] = {
        name: []
        for name in ("draft", "predict", "teacher", "state", "reflect", "final", "confidence")
    }
    for number in range(count):
        draft, question, row = found.drafts[number], found.reflections[number], found.world[number]
        head = f"Reflection: {row.text}\nDecision: REVISE\nFinal Action:"
        drafting = settings.sampling(config.draft_tokens, STOP, number)
        reflecting = settings.sampling(config.reflect_tokens, STOP, number)
        ending = settings.sampling(max(config.final_tokens, 1), ("\n",), number)
        asked["draft"].append(Generate(draft, drafting, adapter="agent"))
        asked["predict"].append(Generate(row.messages, predict, adapter="wm"))
        asked["teacher"].append(Generate(row.teacher, predict, adapter="wm_ema"))
        asked["state"].append(Encode(question, adapter="agent"))
        asked["reflect"].append(Generate(question, reflecting, adapter="agent"))
        asked["final"].append(Generate(question, ending, head, adapter="agent"))
        asked["confidence"].append(Score(question, (" go to shelf 1",), head, False, "agent"))
    return asked


class _Wanderer:
    """Acts at random, but never asks for help, whose long text would leave prompts half full."""

    name = "wanderer"

    def __init__(self, seed: int):
        self._random = RandomAgent(seed)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        actions = tuple(action for action in view.admissible_actions or () if action != "help")
        return (yield from self._random.decide(replace(view, admissible_actions=actions)))


def _transition(
    model: LanguageWorldModel, view: View, action: str, truth: str, eta: float
) -> Sample:
    query = Query(view.env_id, view.goal, view.history, view.facts, action)
    return transition_sample(query, truth, model, distill_weight=eta, task=view.task)


def _states(
    lm: LanguageModel, config: CoMapTraining, target: int
) -> Iterator[tuple[View, Step, str]]:
    """Yield states with long histories, what was done there, and what is said to follow."""
    make = partial(
        gymnasium.make, _ENV, source="generated", split="train", max_episode_steps=_STEPS
    )
    env = make()
    tasks: Sequence[str] = env.get_wrapper_attr("tasks").ids
    env.close()
    seed = 0
    while True:
        for task in tasks:
            (episode,) = run_episodes(make, _Wanderer(seed), [task])
            told = 0
            for view, _, step in views_of(episode, lm.count_tokens):
                told += lm.count_tokens(view.history[-1].observation)
                if told > config.max_length:
                    later = [s.observation for s in episode.steps[view.step :]]
                    yield _with_long_turns(view), step, _drawn_out(later, target, lm)
        seed += 1


def _with_long_turns(view: View) -> View:
    """Return a view whose turns tell several each: prompts leave room for what each may take more."""
    first, *turns = view.history
    groups = [turns[at : at + _JOINED] for at in range(0, len(turns), _JOINED)]
    joined = [Turn(some[0].action, "\n".join(t.observation for t in some)) for some in groups]
    return replace(view, history=(first, *joined))


def _drawn_out(texts: Sequence[str], tokens: int, lm: LanguageModel) -> str:
    """Return the first words of texts, on one line, that have about so many tokens."""
    words: list[str] = []
    for text in texts:
        words += text.split()
        if len(words) > tokens:  # a word has a token at least
            break
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if lm.count_tokens(" ".join(words[:middle])) <= tokens:
            low = middle
        else:
            high = middle - 1
    return " ".join(words[:low])
