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
from comap.envs.web.canonicalizer import grouped, page_here
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

ENV, STEPS = "comap/Web-v0", 15
OUT = Path(comap.benchmarks.__file__).parent / "results" / "web_facts.json"
STRUCTURE = frozenset(("at", "query", "title", "opened", "done"))


class Seen(NamedTuple):
    """A transition: the query, what was observed, and what the oracle said would be."""

    query: Query
    observation: str
    oracle: str
    reveals: bool


def played(split: str, episodes: int, seed: int = 0) -> list[Seen]:
    """Play episodes, half by the expert and half at random, and return their transitions."""
    env: Any = gymnasium.make(ENV, split=split, max_episode_steps=STEPS).unwrapped
    oracle, rng, seen = OracleWorldModel(), random.Random(seed), list[Seen]()
    for task in evenly(env.tasks.ids, episodes):
        _, info = env.reset(options={"task": task})
        ended = False
        while not ended and info["step"] < STEPS:
            belief, listed = info["facts"], info["admissible_actions"]
            at_random = rng.random() < 0.5
            action = rng.choice(listed) if at_random and listed else env.expert_action()
            if at_random and action.startswith("stop"):
                continue  # else most episodes end at once
            query = Query(ENV, info["goal"], env.history(), belief, action, listed)
            oracle.ground(env)
            (said,) = ask(oracle, [query])
            observation, _, ended, _, info = env.step(action)
            told = env.canonicalizer.reveals(
                query.goal, query.history, belief, action, info["facts"]
            )
            seen.append(Seen(query, observation, said.observation, told))
    return seen


def predictions(seen: Sequence[Seen], learned: Sequence[Seen]) -> dict[str, list[str]]:
    """Return what each model and each guess says of each transition."""
    retrieval = RetrievalWorldModel()
    retrieval.fit(Transition(one.query, one.observation) for one in learned)
    queries = [one.query for one in seen]
    looks: dict[str, list[str]] = defaultdict(list)
    for one in seen:
        looks[_look(one.observation)].append(one.observation)
    rng = random.Random(1)
    return {
        "null": [said.observation for said in ask(NullWorldModel(), queries)],
        "address": [_first(one.observation) for one in seen],
        "same look": [_other(one.observation, looks, rng) for one in seen],
        "retrieval": [said.observation for said in ask(retrieval, queries)],
        "oracle": [one.oracle for one in seen],
    }


def _first(observation: str) -> str:
    """Return the address of a page and an empty page; an answer as it is."""
    line = observation.split("\n", 1)[0]
    return f"{line}\n[1] RootWebArea ''" if line.startswith("URL ") else observation


def _look(observation: str) -> str:
    return observation.split("\n", 1)[0].partition("?")[0]


def _other(observation: str, looks: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """Return another page of the same host and path, or of any where there is no other."""
    others = [one for one in looks[_look(observation)] if _first(one) != _first(observation)]
    return rng.choice(others or [one for ones in looks.values() for one in ones])


def of_page(state: State) -> State:
    """Return only what a belief says of the present page."""
    belief = grouped(state.facts)
    here = belief.pages.get(page_here(belief))
    return State(belief.here | belief.end | (here.facts if here else frozenset()), state.parsed)


def of_kind(structural: bool) -> Callable[[State], State]:
    def kept(state: State) -> State:
        facts = (fact for fact in state.facts if (fact[0] in STRUCTURE) is structural)
        return State(frozenset(facts), state.parsed)

    return kept


VIEWS: Mapping[str, Callable[[State], State]] = {
    "all": lambda state: state,
    "structure": of_kind(True),
    "content": of_kind(False),
    "present page only": of_page,
}


def scores(seen: Sequence[Seen], said: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return mean Delta-F1 over the transitions that changed something, by model, view and subset."""
    env: Any = gymnasium.make(ENV).unwrapped
    found: dict[str, Any] = {}
    for name, texts in said.items():
        update = env.canonicalizer.update
        rows = [
            (
                one,
                one.query.state,
                *(update(one.query.state, one.query.action, text) for text in both),
            )
            for one, text in zip(seen, texts, strict=True)
            for both in [(text, one.observation)]
        ]
        for view, keep in VIEWS.items():
            for subset, counts in (("", True), (", foreseeable", False)):
                report = delta_f1_report(
                    tuple(map(keep, row)) for one, *row in rows if counts or not one.reveals
                )
                cell = found.setdefault(view + subset, {"n": report.n_nonempty})
                cell[name] = round(report.nonempty_mean, 4)
    return found


def measured(episodes: int) -> dict[str, Any]:
    """Return the result."""
    seen, learned = played("test", episodes), played("train", episodes, seed=1)
    moved = [
        {view: len(diff(keep(one.query.state), keep(after))) for view, keep in VIEWS.items()}
        for one, after in ((one, _after(one)) for one in seen)
        if ("at",) in {fact[:1] for fact in diff(one.query.state, after).added}
    ]
    sizes = {
        view: {
            "median": statistics.median(row[view] for row in moved),
            "max": max(row[view] for row in moved),
        }
        for view in VIEWS
    }
    return {
        "transitions": len(seen),
        "revealing": sum(one.reveals for one in seen),
        "navigations": len(moved),
        "changed_per_navigation": sizes,
        "delta_f1": scores(seen, predictions(seen, learned)),
    }


def _after(one: Seen) -> State:
    env: Any = gymnasium.make(ENV).unwrapped
    state: State = env.canonicalizer.update(one.query.state, one.query.action, one.observation)
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=120, help="of each split (default: 120)")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    head = {
        "benchmark": "facts of web pages",
        "env": ENV,
        "split": "test",
        "episodes": given.episodes,
    }
    about = circumstances(("gymnasium", "numpy", "rapidfuzz"))
    write_result(given.out, head | about | measured(given.episodes))


if __name__ == "__main__":
    main()
