"""Files that are not games: each is refused with what was expected, found, and what helps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gymnasium as gym
import pytest

from comap.envs.alfworld import ALFWorldEnv
from comap.envs.alfworld.game import read_problem
from comap.envs.alfworld.generate import generate
from comap.errors import DataCorrupt, DataNotFound, OptionError

TASK = "valid_seen/pick_and_place_simple-Mug-None-Desk-1/trial_1"
DOMAIN = "(define (domain alfred) (:predicates (at ?x)))"
REMEDY = "comap data verify alfworld"


def game(split="valid_seen", index=0):
    """Return a sound game file's content, from a generated game."""
    generated_game = generate(split, index)
    return {
        "pddl_domain": DOMAIN,
        "grammar": f'{{"intro": "Your task is to: {generated_game.problem.task}"}}',
        "pddl_problem": generated_game.pddl,
        "solvable": True,
        "walkthrough": list(generated_game.problem.walkthrough),
    }


@pytest.fixture
def place(tmp_path):
    """Where the only game of a data folder lies."""
    path = tmp_path / "json_2.1.1" / TASK / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    return path


def start(path):
    """Reset an environment on the game at `path`."""
    env = gym.make("comap/ALFWorld-v0", data_dir=path.parents[4], split="valid_seen")
    return env.reset(options={"task": TASK})


def refused(path, error, *phrases):
    """Check that a game is refused, with the path and these words, by reading and by resetting."""
    with pytest.raises(error) as caught:
        start(path)
    message = str(caught.value)
    assert "expected" in message, message
    assert "found" in message, message
    assert str(path) in message, message
    assert REMEDY in message, message
    for words in phrases:
        assert words in message, message


@pytest.mark.parametrize(
    ("raw", "phrase"),
    [
        (b"", "an empty file"),
        (b"   ", "3 bytes"),
        (b"\x00\xff\xfe\x00" * 9, "36 bytes that start with"),
        (b"\x89PNG\r\n", "bytes that start with"),
        (b"PK\x03\x04" + bytes(range(256)), "bytes that start with"),
        (b"[" * 100_000, "100,000 bytes"),
        (b'{"a":' * 100_000, "bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "bytes that start with"),
        (b"1" * 10_000, ""),
        (b"[]", "other JSON"),
        (b"{}", "a JSON object with pddl_domain, grammar, pddl_problem, solvable"),
        (b"null", "other JSON"),
        (b'"text"', "other JSON"),
        (b"NaN", "other JSON"),
    ],
)
def test_files_that_are_not_games(place, raw, phrase):
    place.write_bytes(raw)
    refused(place, DataCorrupt, phrase)


def test_files_with_damaged_bytes(place):
    """Whatever a flipped byte does, the game is refused as ours or played; nothing else happens."""
    whole = json.dumps(game()).encode()
    for position in range(5, len(whole), len(whole) // 150):
        damaged = bytearray(whole)
        damaged[position] ^= 0x15
        place.write_bytes(damaged)
        try:
            start(place)
        except DataCorrupt as error:
            assert str(place) in str(error)
            assert REMEDY in str(error)


@pytest.mark.parametrize("key", ["pddl_domain", "grammar", "pddl_problem", "solvable"])
def test_missing_keys_and_wrong_types(place, key):
    content = game()
    del content[key]
    place.write_text(json.dumps(content))
    refused(place, DataCorrupt, key)
    for value in (None, 3, 1.5, [], {}, ["x"], {"x": 1}):
        place.write_text(json.dumps(game() | {key: value}))
        refused(place, DataCorrupt)


def altered(original, new):
    """Return a game whose problem has the first text replaced by the second."""
    content = game()
    assert original in content["pddl_problem"], original
    return content | {"pddl_problem": content["pddl_problem"].replace(original, new)}


def lines(content, *words):
    """Return the lines of a problem's facts that hold all these words."""
    return [
        line
        for line in content["pddl_problem"].splitlines()
        if all(word in line for word in words) and "?" not in line
    ]


def without_facts(content, *words):
    """Return a game without the facts that hold all these words."""
    dropped_lines = set(lines(content, *words))
    assert dropped_lines, words
    kept_lines = [
        line for line in content["pddl_problem"].splitlines() if line not in dropped_lines
    ]
    return content | {"pddl_problem": "\n".join(kept_lines)}


def kind(content, name):
    """Return the PDDL type that a lower-case kind belongs to."""
    types = [
        word.rstrip(")")
        for line in lines(content, "(objectType ")
        for word in line.split()[2:]
        if word.lower().startswith(f"{name}type")
    ]
    return types[0]


def broken_games():
    """Yield games of other domains, of impossible worlds, and that cannot be won; and what is said."""
    content, cool = game(), game(index=4)
    blocks = "(define (domain blocks) (:predicates (on ?x ?y)))"
    yield content | {"pddl_domain": blocks}, "the PDDL domain 'alfred'"
    for changes, phrase in (
        (("(openable ", "(edible "), "(edible "),
        (("(:init", "(:start"), "(:init ...)"),
        (("(:goal", "(:aim"), "(:goal ...)"),
        (("(atLocation agent1 ", "(atLocation "), "(atlocation"),
        (("(atLocation agent1 ", "(holdsAny agent1)\n(atLocation agent1 "), "empty hands"),
        (("(openable ", "(openable (cabinet) "), "found"),
        (("inReceptacle ?o ?r", "inReceptacle ?o ?q"), "six families"),
    ):
        yield altered(*changes), phrase
    yield without_facts(content, "(atLocation agent1 "), "one agent at one location, found 0"
    yield without_facts(content, "(receptacleType "), "type"
    yield without_facts(content, "(objectType "), "type"
    yield without_facts(content, "(receptacleAtLocation "), "location"
    location_facts = lines(content, "(receptacleAtLocation ")
    receptacle, spot = location_facts[0].strip("()").split()[1:]
    other_spot = next(line.strip("()").split()[2] for line in location_facts if spot not in line)
    second = f"{location_facts[0]}\n(receptacleAtLocation {receptacle} {other_spot})"
    yield altered(location_facts[0], second), "one location"
    agent = lines(content, "(atLocation agent1 ")[0]
    twice = altered(agent, f"{agent}\n(atLocation agent1 {spot})")
    yield twice, "one agent at one location, found 2"
    # Their files call these solvable, and they are not.
    goal = read_problem(content["pddl_problem"])[1]
    yield without_facts(content, "(objectType ", f" {kind(content, goal.object_kind)}"), ""
    yield without_facts(content, "(pickupable "), ""
    yield without_facts(content, "(canContain "), ""
    yield without_facts(cool, "(coolable "), "no commands can win"
    yield without_facts(cool, "(canContain "), "no commands can win"


@pytest.mark.parametrize(
    ("broken", "phrase"),
    [*broken_games()],
    ids=lambda value: value if isinstance(value, str) else "game",
)
def test_broken_games_are_refused(place, broken, phrase):
    place.write_text(json.dumps(broken))
    refused(place, DataCorrupt, phrase)


def test_files_that_cannot_be_read(place, monkeypatch):
    place.mkdir()
    refused(place, DataNotFound)
    place.rmdir()
    place.write_text(json.dumps(game()))
    start(place)
    os.utime(place, (1, 1))

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    refused(place, DataNotFound, "Permission denied")


@pytest.mark.usefixtures("no_data")
def test_missing_folders(tmp_path):
    get = "comap data get alfworld"
    for data_dir in (tmp_path, tmp_path / "nowhere", "x\x00y", "\ud800"):
        with pytest.raises(DataNotFound, match=get):
            ALFWorldEnv(data_dir=data_dir)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataNotFound, match=r"json_2\.1\.1"):
        ALFWorldEnv(data_dir=tmp_path / "file")
    with pytest.raises(DataNotFound, match=get):
        ALFWorldEnv(source="official")
    with pytest.raises(OptionError, match="source"):
        ALFWorldEnv(source="download")
