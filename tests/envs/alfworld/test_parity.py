"""The native engine answers as TextWorld does: recorded states, walkthroughs, demonstrations."""

from __future__ import annotations

import functools

import pytest

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
    print(f"{games} games, {states} states, {len(different)} different")
    assert not different, different[:5]
    assert (games, states) == (82, 2658)


def test_snapshots_of_recorded_states(official):
    """A state that is saved and loaded is the same state, and saving changes nothing."""
    for trace in official.recorded("traces_dev.jsonl.xz"):
        engine = official.engine(official.folder / trace["game"])
        other = official.engine(official.folder / trace["game"])
        for record in trace["steps"][1:]:
            other.load(engine.save())
            observation = other.act(record["command"])[0]
            assert engine.act(record["command"])[0] == observation
            assert not differences(other, observation, record)


@functools.cache
def demonstrations(official):
    return {line["game"]: line["steps"] for line in official.recorded("demos.jsonl.xz")}


@pytest.mark.parametrize("part", range(PARTS))
def test_walkthroughs_and_demonstrations(official, part):
    """Of all games: each walkthrough is valid and wins; each demonstration reads the same."""
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
    print(f"part {part}: {games} walkthroughs, {texts} texts of demonstrations")
    assert games == len(official.files[part::PARTS])


def test_numbers(official):
    """The parts above add up to all games and all texts."""
    splits = [path.relative_to(official.root).parts[0] for path in official.files]
    numbers = {split: splits.count(split) for split in sorted(set(splits))}
    assert numbers == {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
    names = {path.relative_to(official.folder).as_posix() for path in official.files}
    demos = demonstrations(official)
    assert set(demos) <= names
    assert (len(demos), sum(map(len, demos.values()))) == (3553, 64_144)


def test_goals_are_also_in_the_words(official):
    """An agent that only reads the task knows the same goal that the engine checks."""
    from comap.envs.alfworld.goal import Goal

    for path in official.files[::7]:
        problem = official.engine(path).game.problem
        assert Goal.from_sentence(problem.task) == problem.goal, problem.task
