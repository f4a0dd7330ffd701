"""Add state facts to a game of TextArena, fit a world model on it, and play it in imagination.

The Tower of Hanoi prints where its disks are, and a small canonicalizer reads facts from that. A world
model stores the transitions of random play. The example scores it by Delta-F1, lets the expert plan in
imagination, and executes the plan in the game.

    pip install "comap-agents[textarena]"
    python examples/adapt_textarena.py --out runs/hanoi

It writes ``hanoi.json`` and takes a few seconds.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import deque
from pathlib import Path

from comap.agents import ExpertAgent, RandomAgent, ReplayAgent, run_episode
from comap.facts import State
from comap.integrations.adapter import AdaptedEnv, TextArenaGame, Wording, adapt
from comap.metrics import delta_f1_report
from comap.worldmodel import ImaginedEnv, Prediction, imagine, transitions_of


class HanoiCanonicalizer:
    """Reads ``on(disk D, tower T)``."""

    version = "hanoi-1"

    def initial(self, goal: str, observation: str) -> State:
        return self.update(State(), "", observation)

    def update(self, state: State, action: str, observation: str) -> State:
        towers = re.findall(r"^([ABC]): \[([\d, ]*)\]$", observation, re.MULTILINE)
        if len(towers) != 3:  # a refused move shows no board
            return State(state.facts, parsed="invalid move" in observation)
        disks = [(disk, name) for name, listed in towers for disk in re.findall(r"\d+", listed)]
        return State(
            frozenset(("on", f"disk {disk}", f"tower {name.lower()}") for disk, name in disks)
        )

    def action(self, text: str) -> str:
        return " ".join(re.findall(r"[abc]", text.lower()))


class Memory:
    """A world model that stores transitions and predicts a refusal for all others."""

    def __init__(self) -> None:
        self.seen: dict[tuple[State, str], str] = {}

    def fit(self, transitions) -> None:
        for query, observation in transitions:
            self.seen[query.state, query.action] = observation

    def predict(self, queries) -> list[Prediction]:
        texts = [self.seen.get((query.state, query.action)) for query in queries]
        return [Prediction("invalid move" if text is None else text) for text in texts]


def towers_of(state: State) -> dict[str, list[int]]:
    """Return the disks on each tower, the smallest first."""
    towers: dict[str, list[int]] = {"A": [], "B": [], "C": []}
    for _, disk, tower in sorted(state.facts):
        towers[tower[-1].upper()].append(int(disk.split()[1]))
    return towers


def moves(state: State) -> list[str]:
    """Return the moves that the rules allow."""
    tops = {name: min(disks, default=99) for name, disks in towers_of(state).items()}
    return [f"[{a} {b}]" for a in tops for b in tops if tops[a] < tops[b]]


def moved(state: State, move: str) -> State:
    """Return the state after a move, by the rules; the expert uses it."""
    disk = f"disk {min(towers_of(state)[move[1]])}"
    rest = {fact for fact in state.facts if fact[1] != disk}
    return State(frozenset({*rest, ("on", disk, f"tower {move[3].lower()}")}))


def solved(state: State) -> bool:
    return bool(state.facts) and all(fact[2] == "tower c" for fact in state.facts)


def expert(state: State) -> str | None:
    """Return the first move of a shortest plan."""
    seen, waiting = {state}, deque([(state, "")])
    while waiting:
        here, first = waiting.popleft()
        if solved(here):
            return first or None
        for move in moves(here):
            after = moved(here, move)
            if after not in seen:
                seen.add(after)
                waiting.append((after, first or move))
    return None


def make_env(game: str = "TowerOfHanoi-v0") -> AdaptedEnv:
    words = Wording(
        goal="Move all disks to tower C.",
        legal=moves,
        reached=solved,
        score=lambda state: sum(f[2] == "tower c" for f in state.facts) / max(len(state.facts), 1),
        success=lambda reward, terminated, info: terminated and reward == 1,
        refused=lambda text: "invalid move" in text,
        expert=expert,
    )
    return adapt(
        TextArenaGame(game, max_turns=200),
        HanoiCanonicalizer(),
        words,
        name=f"TextArena/{game}",
        max_episode_steps=100,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=20, help="random episodes to learn from")
    parser.add_argument("--out", type=Path, default=Path("runs/hanoi"))
    options = parser.parse_args()

    env, model = make_env(), Memory()
    for task in env.tasks.ids[1 : options.episodes + 1]:
        played = run_episode(env, RandomAgent(), task=task)
        model.fit(transitions_of(played))

    rows = []
    _, info = env.reset(options={"task": "seeds/0"})
    ended = False
    while not ended:
        action, before = env.expert_action(), info["facts"]
        predicted = imagine(env, action, model).facts
        *_, terminated, truncated, info = env.step(action)
        rows.append((before, predicted, info["facts"]))
        ended = terminated or truncated
    scores = delta_f1_report(rows)
    print(f"Delta-F1 of {scores.n} predictions: {100 * scores.mean:.1f}")

    imagined = run_episode(ImaginedEnv(env, model), ExpertAgent(), task="seeds/0")
    real = run_episode(env, ReplayAgent(imagined), task="seeds/0")
    print(f"a plan of {len(imagined.steps)} moves, success in imagination: {imagined.success}")
    print(f"the same moves, success in the game: {real.success}")

    options.out.mkdir(parents=True, exist_ok=True)
    result = {
        "delta_f1": scores.mean,
        "predictions": scores.n,
        "moves": len(imagined.steps),
        "imagined": imagined.success,
        "real": real.success,
    }
    (options.out / "hanoi.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
