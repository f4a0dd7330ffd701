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
    made = generate(split, index)
    return {
        "pddl_domain": DOMAIN,
        "grammar": f'{{"intro": "Your task is to: {made.problem.task}"}}',
        "pddl_problem": made.pddl,
        "solvable": True,
        "walkthrough": list(made.problem.walkthrough),
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


def refused(path, error, *said):
    """Check that a game is refused, with the path and these words, by reading and by resetting."""
    with pytest.raises(error) as caught:
        start(path)
    message = str(caught.value)
    assert "expected" in message, message
    assert "found" in message, message
    assert str(path) in message, message
    assert REMEDY in message, message
    for words in said:
        assert words in message, message


@pytest.mark.parametrize(
    ("raw", "said"),
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
def test_files_that_are_not_games(place, raw, said):
    place.write_bytes(raw)
    refused(place, DataCorrupt, said)


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


def altered(old, new):
    """Return a game whose problem has the first text replaced by the second."""
    content = game()
    assert old in content["pddl_problem"], old
    return content | {"pddl_problem": content["pddl_problem"].replace(old, new)}


def lines(content, *words):
    """Return the lines of a problem's facts that hold all these words."""
    return [
        line
        for line in content["pddl_problem"].splitlines()
        if all(word in line for word in words) and "?" not in line
    ]


def without(content, *words):
    """Return a game without the facts that hold all these words."""
    gone = set(lines(content, *words))
    assert gone, words
    kept = [line for line in content["pddl_problem"].splitlines() if line not in gone]
    return content | {"pddl_problem": "\n".join(kept)}


def kind(content, name):
    """Return the PDDL type that a lower-case kind belongs to."""
    found = [
        word.rstrip(")")
        for line in lines(content, "(objectType ")
        for word in line.split()[2:]
        if word.lower().startswith(f"{name}type")
    ]
    return found[0]


def broken_games():
    """Yield games of other domains, of impossible worlds, and that cannot be won; and what is said."""
    content, cool = game(), game(index=4)
    blocks = "(define (domain blocks) (:predicates (on ?x ?y)))"
    yield content | {"pddl_domain": blocks}, "the PDDL domain 'alfred'"
    for changes, said in (
        (("(openable ", "(edible "), "(edible "),
        (("(:init", "(:start"), "(:init ...)"),
        (("(:goal", "(:aim"), "(:goal ...)"),
        (("(atLocation agent1 ", "(atLocation "), "(atlocation"),
        (("(atLocation agent1 ", "(holdsAny agent1)\n(atLocation agent1 "), "empty hands"),
        (("(openable ", "(openable (cabinet) "), "found"),
        (("inReceptacle ?o ?r", "inReceptacle ?o ?q"), "six families"),
    ):
        yield altered(*changes), said
    yield without(content, "(atLocation agent1 "), "one agent at one location, found 0"
    yield without(content, "(receptacleType "), "type"
    yield without(content, "(objectType "), "type"
    yield without(content, "(receptacleAtLocation "), "location"
    here = lines(content, "(receptacleAtLocation ")
    receptacle, spot = here[0].strip("()").split()[1:]
    other = next(line.strip("()").split()[2] for line in here if spot not in line)
    second = f"{here[0]}\n(receptacleAtLocation {receptacle} {other})"
    yield altered(here[0], second), "one location"
    agent = lines(content, "(atLocation agent1 ")[0]
    twice = altered(agent, f"{agent}\n(atLocation agent1 {spot})")
    yield twice, "one agent at one location, found 2"
    # Their files call these solvable, and they are not.
    goal = read_problem(content["pddl_problem"])[1]
    yield without(content, "(objectType ", f" {kind(content, goal.object_kind)}"), ""
    yield without(content, "(pickupable "), ""
    yield without(content, "(canContain "), ""
    yield without(cool, "(coolable "), "no commands can win"
    yield without(cool, "(canContain "), "no commands can win"


@pytest.mark.parametrize(
    ("broken", "said"),
    [*broken_games()],
    ids=lambda value: value if isinstance(value, str) else "game",
)
def test_broken_games_are_refused(place, broken, said):
    place.write_text(json.dumps(broken))
    refused(place, DataCorrupt, said)


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


@pytest.mark.usefixtures("nothing")
def test_missing_folders(tmp_path):
    get = "comap data get alfworld"
    for given in (tmp_path, tmp_path / "nowhere", "x\x00y", "\ud800"):
        with pytest.raises(DataNotFound, match=get):
            ALFWorldEnv(data_dir=given)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataNotFound, match=r"json_2\.1\.1"):
        ALFWorldEnv(data_dir=tmp_path / "file")
    with pytest.raises(DataNotFound, match=get):
        ALFWorldEnv(source="official")
    with pytest.raises(OptionError, match="source"):
        ALFWorldEnv(source="download")
