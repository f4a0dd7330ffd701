"""The experts: one wins from every state that can be won, one knows only what was observed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.expert import explore, plan
from comap.envs.alfworld.game import Game
from comap.envs.alfworld.generate import SPLITS, generate
from comap.envs.alfworld.goal import DIALECTS, FAMILIES, Goal
from comap.facts import State

LIMIT, DETOUR = 50, 15


def generated(count, dialect="move", difficulty=None):
    for split in SPLITS:
        for number in range(count):
            level = difficulty or ("easy", "normal", "hard")[number % 3]
            game = generate(split, number, seed=21, difficulty=level)
            yield NativeEngine(Game(game.problem, dialect))


def wander(engine, seed, steps=DETOUR):
    """Take random admissible actions, as far as the game is not won by them."""
    draws = random.Random(seed)
    steps_taken = 0
    while steps_taken < steps and not engine.won():
        engine.act(draws.choice(engine.admissible()))
        steps_taken += 1
    return steps_taken


def play_expert(engine):
    """Play to the end by plans made anew at every step; return how many, None in a dead end."""
    remaining = None
    steps = 0
    while not engine.won():
        before = engine.save()
        commands = plan(engine)
        assert engine.save() == before
        if commands is None:
            assert remaining is None, "a plan ended in a dead end"
            return None
        assert remaining is None or len(commands) == remaining - 1
        assert commands[0] in engine.admissible()
        engine.act(commands[0])
        remaining = len(commands)
        steps += 1
    return steps


def is_dead_end(engine):
    """Prove that a game cannot be won: the hand is full for ever, and of no use to the goal."""
    game, held_thing = engine.game, engine.held
    if held_thing is None or held_thing in game.wanted:
        return False
    return not any(
        (game.kind[place], game.kind[held_thing]) in game.fits for place in game.receptacles
    )


def check_expert(engine, seed, count):
    engine.start()
    from_start = play_expert(engine)
    assert from_start is not None
    assert from_start <= LIMIT
    if engine.game.problem.walkthrough:
        assert from_start <= len(engine.game.problem.walkthrough)
    engine.start()
    wandered = wander(engine, seed)
    from_here = play_expert(engine)
    count["games"] += 1
    if from_here is None:
        assert is_dead_end(engine), (seed, engine.held)
        count["dead ends"] += 1
    else:
        assert wandered + from_here <= LIMIT, seed
        assert plan(engine) == []


@pytest.mark.parametrize(
    ("split", "stride"), [("train", 36), ("valid_seen", 3), ("valid_unseen", 1)]
)
def test_expert_wins_official_games(official, split, stride):
    count = Counter()
    paths = sorted((official.root / split).glob("*/*/game.tw-pddl"))[::stride]
    for path in paths:
        check_expert(official.engine(path), path.parent.name, count)
    assert count["games"] == len(paths)
    assert count["dead ends"] <= 0.02 * count["games"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_expert_wins_generated_games(dialect):
    count = Counter()
    for number, engine in enumerate(generated(6, dialect)):
        check_expert(engine, f"generated {number}", count)
    assert count["games"] == 18


class Exploration:
    """One game played by the explorer, which is given nothing but texts."""

    def __init__(self, engine, with_admissible=True):
        self.engine = engine
        canon = ALFWorldCanonicalizer(engine.game.dialect)
        goal = Goal.from_sentence(engine.game.problem.task)
        state = canon.initial("", engine.start())
        self.commands = []
        while not engine.won() and len(self.commands) < LIMIT:
            admissible = engine.admissible() if with_admissible else None
            command = explore(goal, state, admissible, engine.game.dialect)
            if command is None:
                break
            assert not with_admissible or command in engine.admissible()
            state = canon.update(state, command, engine.act(command)[0])
            self.commands.append(command)
        self.won = engine.won()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_explorer_wins_official_games(official, dialect):
    games = [Exploration(official.engine(path, dialect)) for path in official.files[::40]]
    win_rate = sum(game.won for game in games) / len(games)
    assert win_rate >= 0.95


def test_explorer_wins_generated_games():
    games = [Exploration(engine) for engine in generated(20, difficulty="normal")]
    win_rate = sum(game.won for game in games) / len(games)
    assert win_rate >= 0.9
    families = Counter(game.engine.game.goal.family for game in games if game.won)
    assert set(families) == set(FAMILIES)


def test_explorer_does_not_depend_on_hashes():
    """The same choices in any process."""
    lamps = {("in", f"desklamp {n}", "desk 1") for n in range(1, 9)}
    room_facts = {("at", "agent", "desk 1"), ("exists", "desk 1"), ("seen", "desk 1")}
    holding_cd = State(frozenset({("holding", "cd 1")} | lamps | room_facts))
    free = State(frozenset({("in", f"cd {n}", "desk 1") for n in range(1, 9)} | room_facts))
    holding_pen = State(
        frozenset({("holding", "pen 1")} | {("exists", f"shelf {n}") for n in range(1, 9)})
    )
    goals = map(Goal.from_sentence, ("look at cd under the desklamp.", "put two cd in safe."))
    choices = [
        explore(goal, state, None) for goal in goals for state in (holding_cd, free, holding_pen)
    ]
    repeated_choices = ["take cd 1 from desk 1", "go to shelf 1"]
    assert choices == ["use desklamp 1", *repeated_choices, None, *repeated_choices]


@pytest.mark.parametrize("sentence", ["put a mug in shelf.", "look at cd under the desklamp."])
def test_explorer_answers_any_belief(sentence):
    """Beliefs may come from predictions: whatever they say, there is an action or None."""
    goal = Goal.from_sentence(sentence)
    odd = [
        set(),
        {("at",), ("holding",), ("exists",), ("in",), ("lit",), ("closed",)},
        {("at", "agent"), ("in", "mug 1"), ("holding", "mug 1", "x"), ("near", "a")},
        {("exists", "shelf ²"), ("exists", ""), ("holding", ""), ("at", "agent", "")},
        {("holding", "mug 1"), ("holding", "mug 2"), ("at", "agent", "nowhere 1")},
        {("in", "desklamp 1", "moon 1"), ("in", "mug 1", "mug 1"), ("at", "you", "moon 1")},
        {("exists", "shelf 1"), ("open", "shelf 1"), ("closed", "shelf 1")},
    ]
    for facts in odd:
        for admissible in (None, (), ("look",), ("use desklamp 1", "open safe 1")):
            command = explore(goal, State(frozenset(facts)), admissible)
            assert command is None or isinstance(command, str)
        assert goal.conditions(State(frozenset(facts)))[1] >= 1
