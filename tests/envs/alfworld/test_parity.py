"""The native engine answers as TextWorld does: recorded states, walkthroughs, demonstrations."""

from __future__ import annotations

import functools

import pytest

from comap.envs.data import verify

PARTS = 6


def differences(engine, observation, record):
    """Return the fields of a recorded state in which the engine differs."""
    found = {
        "observation": observation,
        "admissible_commands": list(engine.admissible()),
        "facts": engine.facts_text(),
        "not_facts": engine.negative_facts_text(),
        "won": engine.won(),
        "done": engine.won(),
    }
    return [name for name, value in found.items() if value != record[name]]


def test_recorded_states(official):
    games = states = 0
    different = []
    for trace in official.recorded("traces_dev.jsonl.xz"):
        engine = official.engine(official.folder / trace["game"])
        games += 1
        for number, record in enumerate(trace["steps"]):
            command = record["command"]
            observation = engine.start() if command is None else engine.act(command)[0]
            states += 1
            if fields := differences(engine, observation, record):
                different.append((trace["game"], number, command, fields))
    assert not different, different[:5]
    assert (games, states) == (82, 2658)


@functools.cache
def demonstrations(official):
    return {line["game"]: line["steps"] for line in official.recorded("demos.jsonl.xz")}


@pytest.mark.parametrize("part", range(2))
def test_walkthroughs_and_demonstrations(official, part):
    """Of a third of the games: each walkthrough is valid and wins; each demonstration reads the same."""
    demos = demonstrations(official)
    games = texts = 0
    for path in official.files[part::PARTS]:
        engine = official.engine(path)
        problem = engine.game.problem
        assert path.parent.parent.name.startswith(problem.goal.family), path
        assert not engine.won(), path
        for command in problem.walkthrough:
            assert command in engine.admissible(), (path, command)
            assert engine.act(command)[1], (path, command)
        assert engine.won(), path
        games += 1
        for step in demos.get(path.relative_to(official.folder).as_posix(), ()):
            command = step["command"]
            observation = engine.start() if command is None else engine.act(command)[0]
            assert observation == step["observation"], (path, command)
            texts += 1
    assert games == len(official.files[part::PARTS])


def test_goals_are_also_in_the_words(official):
    """An agent that only reads the task knows the same goal that the engine checks."""
    from comap.envs.alfworld.goal import Goal

    for path in official.files[::7]:
        problem = official.engine(path).game.problem
        assert Goal.from_sentence(problem.task) == problem.goal, problem.task


def test_these_games_are_those_of_the_catalogue(official):
    report = verify("alfworld", official.folder)
    assert report.ok and sum("content matches" in split.text for split in report.splits) == 3
