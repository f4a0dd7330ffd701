"""A complete little environment for tests, and the ways in which one can be broken."""

from __future__ import annotations

import random
import re
from typing import Any

import gymnasium
import numpy as np

from comap.envs import Outcome, Panel, TextEnv
from comap.envs.vector import text_vector
from comap.errors import DataCorrupt
from comap.facts import State

BOXES = ("amber", "birch", "coral", "denim", "ebony", "flint", "grape", "hazel")
PANEL = Panel.of((f"toy/{number}" for number in range(6)), split="dev", splits=("dev",))


class ToyCanonicalizer:
    """Reads ``open``, ``closed``, ``in`` and ``holding`` from the toy's sentences."""

    version = "toy-1"

    def initial(self, goal: str, observation: str) -> State:
        boxes = re.findall(r"\w+ box", observation)
        return State(frozenset({("closed", box) for box in boxes} | {("goal", "holding", "coin")}))

    def update(self, state: State, action: str, observation: str) -> State:
        match = re.fullmatch(
            r"You (open|close) the (\w+ box)\.( A coin!)?( It is empty\.)?", observation
        )
        facts = set(state.facts)
        if match:
            verb, box, coin, _ = match.groups()
            facts -= {("open", box), ("closed", box)}
            facts.add(("open" if verb == "open" else "closed", box))
            facts |= {("in", "coin", box)} if coin else set()
        elif observation.startswith("You take"):
            facts = {fact for fact in facts if fact[0] != "in"} | {("holding", "coin")}
        elif observation.startswith("Nothing"):
            return state
        else:
            return State(state.facts, parsed=False)
        return State(frozenset(facts))

    def action(self, text: str) -> str:
        return " ".join(text.lower().split())


class ToyEnv(TextEnv):
    """A coin is in one of some boxes: find it and take it."""

    env_id = "comap-test/Toy-v0"
    canonicalizer = ToyCanonicalizer()
    tasks = PANEL  # type: ignore[assignment]

    def __init__(self, colour: str = "grey", **options: Any):
        super().__init__(**options)
        self.colour = colour

    def settings(self) -> dict[str, str]:
        return {"colour": self.colour}

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        if task not in self.tasks:
            raise self.tasks.missing(task)
        draw = np.random.default_rng(int(task.rpartition("/")[2]))
        self.boxes = tuple(BOXES[i] for i in draw.permutation(len(BOXES))[:4])
        self.coin = self.boxes[int(draw.integers(4))]
        self.opened: frozenset[str] = frozenset()
        self.taken = False
        listed = ", ".join(f"a {box} box" for box in self.boxes)
        return "dev", "take the coin", self._outcome_of(f"You see {listed}.")

    def _act(self, action: str) -> Outcome:
        verb, _, box = action.partition(" ")
        box = box.removesuffix(" box")
        if action == "look":
            return self._outcome_of("Nothing changed.")
        if verb == "open" and box in set(self.boxes) - self.opened:
            self.opened |= {box}
            return self._outcome_of(
                f"You open the {box} box. {'A coin!' if box == self.coin else 'It is empty.'}"
            )
        if verb == "close" and box in self.opened:
            self.opened -= {box}
            return self._outcome_of(f"You close the {box} box.")
        if action == "take coin" and self.coin in self.opened:
            self.taken = True
            return self._outcome_of("You take the coin.")
        return self._outcome_of("Nothing happens.")._replace(invalid=True)

    def _outcome_of(self, text: str) -> Outcome:
        solved = self.taken
        return Outcome(
            text, float(solved), float(solved), solved, solved, False, self._admissible()
        )

    def _admissible(self) -> tuple[str, ...]:
        acts = [f"{'close' if box in self.opened else 'open'} {box} box" for box in self.boxes]
        return ("look", *acts, *(["take coin"] if self.coin in self.opened else []))

    def _save(self) -> Any:
        return (tuple(sorted(self.opened)), self.taken)

    def _load(self, saved: Any) -> tuple[str, ...]:
        opened, self.taken = saved
        self.opened = frozenset(opened)
        return self._admissible()

    def expert_action(self) -> str | None:
        return "take coin" if self.coin in self.opened else f"open {self.coin} box"

    def goal_reached(self, state: State) -> bool | None:
        return ("holding", "coin") in state.facts


class GlobalRandom(ToyEnv):
    """Takes its words from Python's global generator."""

    def _act(self, action: str) -> Outcome:
        outcome = super()._act(action)
        return outcome._replace(observation=f"{outcome.observation} {random.random()}")


class IgnoresTask(ToyEnv):
    """Accepts a task and drops it."""

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        return super()._open(PANEL.ids[0] if task in PANEL else task)

    def _choose(self, options: Any) -> str:
        super()._choose(options)
        return PANEL.ids[0]


class Leaks(ToyEnv):
    """Counts actions over all episodes."""

    count = 0

    def _act(self, action: str) -> Outcome:
        self.count += 1
        outcome = super()._act(action)
        return outcome._replace(observation=f"{outcome.observation} {self.count}")


class SharedSnapshot(ToyEnv):
    """Saves the very object that later steps change."""

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        self.history: list[str] = []
        return super()._open(task)

    def _act(self, action: str) -> Outcome:
        self.history.append(action)
        return super()._act(action)

    def _save(self) -> Any:
        return self.history

    def _load(self, saved: Any) -> tuple[str, ...]:
        super()._open(self._task)
        self.history = saved
        for action in saved:
            super()._act(action)
        return self._admissible()


class HashOrder(ToyEnv):
    """Lists the boxes in the order of a set."""

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        split, goal, outcome = super()._open(task)
        return split, goal, outcome._replace(observation=f"You see: {set(BOXES)}.")


class LacksKey(ToyEnv):
    """Leaves ``score`` out of its infos."""

    def _info(self) -> dict[str, Any]:
        return {key: value for key, value in super()._info().items() if key != "score"}


class WrongDelta(ToyEnv):
    """Reports the last change again after a step that changed nothing."""

    def step(self, action: str) -> Any:
        before = self._delta
        *answer, info = super().step(action)
        return (*answer, info | {"delta": info["delta"] if len(info["delta"]) else before})


class HatesEmoji(ToyEnv):
    """Breaks on anything but ASCII."""

    def _act(self, action: str) -> Outcome:
        action.encode("ascii")
        return super()._act(action)


class TakesNumbers(ToyEnv):
    """Makes text of whatever it gets."""

    def step(self, action: Any) -> Any:
        return super().step(str(action))


class NeverEnds(ToyEnv):
    """Answers after the end as if nothing had happened."""

    def step(self, action: str) -> Any:
        if not self._running and self._task:
            return self._outcome.observation, 0.0, True, False, self._info()
        return super().step(action)


class FalsePromises(ToyEnv):
    """Lists an action that it then refuses."""

    def _admissible(self) -> tuple[str, ...]:
        return (*super()._admissible(), "fly away")


class KeepsEverything(ToyEnv):
    """Keeps all it ever said, and more."""

    texts: list[str] = []  # noqa: RUF012

    def _act(self, action: str) -> Outcome:
        outcome = super()._act(action)
        self.texts.append((outcome.observation + str(len(self.texts))) * 4_000)
        return outcome


class SometimesBreaks(ToyEnv):
    """Its engine breaks on one word, and on one task."""

    def _open(self, task: str) -> tuple[str, str, Outcome]:
        if task == "toy/4":
            raise DataCorrupt("expected a task, found rubbish in toy/4")
        if task == "toy/5":
            raise KeyError("boxes")
        return super()._open(task)

    def _act(self, action: str) -> Outcome:
        if action == "break":
            raise RuntimeError("the engine broke")
        if action == "shout":
            return self._outcome_of("A" * 100_000)
        return super()._act(action)


def vector(num_envs: int, **kwargs: Any) -> Any:
    """The toy's ``vector_entry_point``."""
    return text_vector(ToyEnv.env_id, num_envs, **kwargs)


def toy(variant: str = "ToyEnv", **kwargs: Any) -> ToyEnv:
    """Make a variant; the registered id comes here."""
    env: ToyEnv = globals()[variant](**kwargs)
    return env


def make(variant: str = "ToyEnv", **kwargs: Any) -> gymnasium.Env[str, str]:
    """Make a variant as users do."""
    return gymnasium.make(ToyEnv.env_id, variant=variant, **kwargs)


if ToyEnv.env_id not in gymnasium.registry:
    gymnasium.register(
        id=ToyEnv.env_id,
        entry_point=toy,
        vector_entry_point=vector,
        max_episode_steps=30,
        disable_env_checker=True,
    )
