"""Delta-F1 of world models and of cheap guesses on web pages: what the facts of `comap/Web-v0` are worth.

``python benchmarks/measure/web_facts.py [--episodes N] [--out FILE]``. Half of the actions are the
expert's, half are drawn from those that the belief suggests, on sites of the test split; the retrieval
model has learned as many episodes of the train split. Two guesses show what facts must not pay for: the
right address with nothing on the page (and the answer of ``stop``), and another page of the same host
and path. Each prediction is scored on all facts, on structural and on content facts apart, with and without
the transitions that reveal what nobody can foresee; and on the facts of the present page only, which are
not comap's, to show why facts stay when one leaves a page.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

import comap.benchmarks
from comap.benchmarks.record import circumstances, write_result
from comap.envs.panel import evenly
from comap.envs.web.canonicalizer import belief_of, page_here
from comap.facts import State, diff
from comap.metrics import delta_f1_report
from comap.worldmodel import (
    NullWorldModel,
    OracleWorldModel,
    Query,
    RetrievalWorldModel,
    Transition,
    ask,
)

ENV = "comap/Web-v0"
STEPS = 15
OUT = Path(comap.benchmarks.__file__).parent / "results" / "web_facts.json"
STRUCTURE = frozenset(("at", "query", "title", "opened", "done"))
"""Kinds of facts that say where one is, and not what a page has on it."""


class Step(NamedTuple):
    """A transition: the query, what was observed, and what the oracle said would be."""

    query: Query
    observation: str
    oracle: str
    reveals: bool
    """whether it shows what nobody can foresee"""


def played(split: str, episodes: int, seed: int = 0) -> list[Step]:
    """Play episodes, half by the expert and half at random, and return their transitions."""
    env: Any = gymnasium.make(ENV, split=split, max_episode_steps=STEPS).unwrapped
    oracle = OracleWorldModel()
    rng = random.Random(seed)
    steps: list[Step] = []
    for task in evenly(env.tasks.ids, episodes):
        _, info = env.reset(options={"task": task})
        terminated = False
        while not terminated and info["step"] < STEPS:
            belief = info["facts"]
            actions = info["admissible_actions"]
            at_random = rng.random() < 0.5
            action = rng.choice(actions) if at_random and actions else env.expert_action()
            if at_random and action.startswith("stop"):
                continue  # else most episodes end at once

            query = Query(ENV, info["goal"], env.history(), belief, action, actions)
            oracle.ground(env)
            (prediction,) = ask(oracle, [query])
            observation, _, terminated, _, info = env.step(action)
            reveals = env.canonicalizer.reveals(
                query.goal, query.history, belief, action, info["facts"]
            )
            steps.append(Step(query, observation, prediction.observation, reveals))
    return steps


def predictions(steps: Sequence[Step], learned: Sequence[Step]) -> dict[str, list[str]]:
    """Return what each model and each guess says of each transition."""
    # It has learned other sites: what it gets right on these is what sites have in common.
    retrieval = RetrievalWorldModel()
    retrieval.fit(Transition(step.query, step.observation) for step in learned)
    queries = [step.query for step in steps]

    observations = [step.observation for step in steps]
    same_look: dict[str, list[str]] = defaultdict(list)
    for observation in observations:
        same_look[_look(observation)].append(observation)
    rng = random.Random(1)
    return {
        "null": [prediction.observation for prediction in ask(NullWorldModel(), queries)],
        "address": list(map(_first, observations)),
        "same look": [_other(observation, same_look, rng) for observation in observations],
        "retrieval": [prediction.observation for prediction in ask(retrieval, queries)],
        "oracle": [step.oracle for step in steps],
    }


def _first(observation: str) -> str:
    """Return the address of a page and an empty page; an answer as it is."""
    line = observation.split("\n", 1)[0]
    return f"{line}\n[1] RootWebArea ''" if line.startswith("URL ") else observation


def _look(observation: str) -> str:
    """Return host and path of a page: pages of one look differ in what follows the question mark."""
    return observation.split("\n", 1)[0].partition("?")[0]


def _other(observation: str, same_look: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """Return another page of the same host and path, or of any where there is no other."""
    address = _first(observation)
    others = [page for page in same_look[_look(observation)] if _first(page) != address]
    return rng.choice(others or list(itertools.chain.from_iterable(same_look.values())))


def of_page(state: State) -> State:
    """Return only what a belief says of the present page."""
    belief = belief_of(state.facts)
    page = belief.pages.get(page_here(belief))
    page_facts = page.facts if page else frozenset()
    return State(belief.here | belief.end | page_facts, state.parsed)


def of_kind(structural: bool) -> Callable[[State], State]:
    """Return a view that has structural facts alone, or content alone."""

    def view(state: State) -> State:
        facts = (fact for fact in state.facts if (fact[0] in STRUCTURE) is structural)
        return State(frozenset(facts), state.parsed)

    return view


VIEWS: Mapping[str, Callable[[State], State]] = {
    "all": lambda state: state,
    "structure": of_kind(True),
    "content": of_kind(False),
    "present page only": of_page,
}


class ScoredStep(NamedTuple):
    """The beliefs before a transition, after what was predicted, and after what was observed."""

    before: State
    predicted: State
    observed: State
    reveals: bool


def scores(steps: Sequence[Step], predicted: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return mean Delta-F1 over the transitions that changed something, by model, view and subset."""
    env: Any = gymnasium.make(ENV).unwrapped
    update = env.canonicalizer.update
    cells: dict[str, Any] = {}
    for name, texts in predicted.items():
        scored = []
        for step, text in zip(steps, texts, strict=True):
            state = step.query.state
            action = step.query.action
            predicted_state = update(state, action, text)
            observed_state = update(state, action, step.observation)
            scored.append(ScoredStep(state, predicted_state, observed_state, step.reveals))

        # Such as a price behind a link: no model can know it, and none should lose by it.
        foreseeable = [step for step in scored if not step.reveals]
        for view, keep in VIEWS.items():
            for subset, counted in (("", scored), (", foreseeable", foreseeable)):
                report = delta_f1_report(
                    (keep(step.before), keep(step.predicted), keep(step.observed))
                    for step in counted
                )
                cell = cells.setdefault(view + subset, {"n": report.n_nonempty})
                cell[name] = round(report.nonempty_mean, 4)
    return cells


def measured(episodes: int) -> dict[str, Any]:
    """Return the result."""
    steps = played("test", episodes)
    learned = played("train", episodes, seed=1)
    navigations = _changes_of_navigations(steps)
    sizes = {}
    for view in VIEWS:
        changes = [changes_of_views[view] for changes_of_views in navigations]
        sizes[view] = {"median": statistics.median(changes), "max": max(changes)}

    return {
        "transitions": len(steps),
        "revealing": sum(step.reveals for step in steps),
        "navigations": len(navigations),
        "changed_per_navigation": sizes,
        "delta_f1": scores(steps, predictions(steps, learned)),
    }


def _changes_of_navigations(steps: Sequence[Step]) -> list[dict[str, int]]:
    """Return how many facts of each view change where the agent comes to another page."""
    env: Any = gymnasium.make(ENV).unwrapped
    navigations = []
    for step in steps:
        before = step.query.state
        after = env.canonicalizer.update(before, step.query.action, step.observation)
        # To be at another address is the change that makes it a navigation.
        if any(fact[0] == "at" for fact in diff(before, after).added):
            changes = {view: len(diff(keep(before), keep(after))) for view, keep in VIEWS.items()}
            navigations.append(changes)
    return navigations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=120, help="of each split (default: 120)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    result = {
        "benchmark": "facts of web pages",
        "env": ENV,
        "split": "test",
        "episodes": options.episodes,
        **circumstances(("gymnasium", "numpy", "rapidfuzz")),
        **measured(options.episodes),
    }
    write_result(options.out, result)


if __name__ == "__main__":
    main()
