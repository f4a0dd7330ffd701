"""`ALFWorldEnv`: dialects, explained errors, and options."""

from __future__ import annotations

import gymnasium as gym
import pytest

from comap.envs.alfworld import ALFWorldEnv
from comap.envs.alfworld.expert import plan
from comap.envs.alfworld.wording import DIALECTS, HELP, NOTHING_HAPPENS
from comap.errors import (
    InvalidAction,
    NoEpisode,
    OptionError,
)
from comap.facts import State

ID = "comap/ALFWorld-v0"


def first(env):
    return env.reset(options={"task": env.tasks.ids[0]})


# Dialects and errors.


def test_the_newer_dialect(folder):
    env = ALFWorldEnv(data_dir=folder)
    _, info = env.reset(options={"task": placing_task(env)})
    assert {"help", "look", "inventory"} <= set(info["admissible_actions"])
    assert env.step("help")[0].startswith("Available commands:")
    goes = [c for c in info["admissible_actions"] if c.startswith("go to ")]
    place = goes[0].removeprefix("go to ")
    assert env.step(goes[0])[0].startswith(f"You arrive at {place}. ")
    texts = win(env)
    assert any(text.startswith("You move the ") and " to the " in text for text in texts)


def win(env):
    texts, ended = [], False
    while not ended:
        text, _, ended, _, _ = env.step(env.expert_action())
        texts.append(text)
    return texts


def placing_task(env):
    return next(task for task in env.tasks.ids if "pick_" in task)


def test_the_older_dialect(folder):
    env = ALFWorldEnv(data_dir=folder, dialect="put")
    _, info = env.reset(options={"task": placing_task(env)})
    assert "help" not in info["admissible_actions"]
    assert env.step("help")[0] == NOTHING_HAPPENS
    location = "loc "
    go = next(c for c in info["admissible_actions"] if c.startswith("go to "))
    text, *_, info = env.step(go)
    assert text.startswith(f"You arrive at {location}")
    assert text.split(". ")[0].removeprefix("You arrive at loc ").isdigit()
    assert ("at", "agent", go.removeprefix("go to ")) in info["facts"].facts
    texts = win(env)
    assert any(text.startswith("You put the ") and " in/on the " in text for text in texts)
    assert not any("You move" in text for text in texts)


def test_dialects_differ_in_words_only(folder):
    envs = [ALFWorldEnv(data_dir=folder, dialect=dialect) for dialect in DIALECTS]
    for task in envs[0].tasks.ids:
        infos = [env.reset(options={"task": task})[1] for env in envs]
        assert infos[0]["facts"] == infos[1]["facts"]
        while not infos[0]["success"]:
            commands = [env.expert_action() for env in envs]
            canonical = {env.canonicalizer.action(c) for env, c in zip(envs, commands, strict=True)}
            assert len(canonical) == 1
            results = [env.step(c) for env, c in zip(envs, commands, strict=True)]
            infos = [result[4] for result in results]
            assert infos[0]["facts"] == infos[1]["facts"]
            assert infos[0]["score"] == infos[1]["score"]
            assert envs[0].engine_facts() == envs[1].engine_facts()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_command_that_does_nothing(folder, dialect):
    """Answered by the same words, with a reason where asked for, and never a change."""
    plain = ALFWorldEnv(data_dir=folder, dialect=dialect)
    told = ALFWorldEnv(data_dir=folder, dialect=dialect, informative_errors=True)
    reasons = set()
    for task in plain.tasks.ids:
        for env in (plain, told):
            env.reset(options={"task": task})
        for command in plan(plain.native_engine()):
            for wrong in wrong_commands(plain):
                before = plain.engine_facts()
                text, reward, *ends, info = plain.step(wrong)
                assert text == NOTHING_HAPPENS, wrong
                assert (reward, *ends, info["invalid_action"]) == (0, False, False, True)
                assert plain.engine_facts() == before
                known = told.state_facts()
                text, *_, info = told.step(wrong)
                assert text.startswith(f"{NOTHING_HAPPENS} "), (wrong, text)
                assert told.refused(text)
                assert info["invalid_action"]
                assert info["facts"] == known
                assert not info["delta"]
                reasons.add(shape(text.removeprefix(f"{NOTHING_HAPPENS} "), told))
            assert plain.step(command)[0] == told.step(command)[0]
    wanted = {
        "There is no X here that can be turned on.",
        "There is no X.",
        "You do not hold a X.",
        "You do not hold the X.",
        "You are already at the X.",
        "The X cannot be opened or closed.",
        "The X is open already.",
        "The X is closed already.",
        "You are not at the X.",
        "There is no X here that the X could slice.",
        "You already hold the X.",
        "The X is closed.",
        "There is no X to take from the X.",
        "The X does not fit in or on the X.",
    }
    hint = " Say help for a list of commands." if dialect == "move" else ""
    assert reasons - {f"The X cannot {verb} the X." for verb in ("clean", "heat", "cool")} == (
        wanted | {f"That is not a command.{hint}"}
    )


def shape(text, env):
    """Return a text with the names in it replaced by X."""
    names = {*env.game.order, "moon 1", "no such 1"}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "X")
    return text


def wrong_commands(env):
    """Return commands that do nothing now, of all kinds."""
    game, engine = env.game, env.native_engine()
    valid = set(engine.admissible())
    here = game.here.get(engine.location, ())
    things = sorted({o for place in here for o in engine.contents[place]} & game.pickupable)
    put = "move {} to {}" if game.dialect == "move" else "put {} in/on {}"
    other = "put {} in/on {}" if game.dialect == "move" else "move {} to {}"
    held = engine.held or "no such 1"
    commands = ["", "  ", "sing", "LOOK", "go to moon 1", "examine no such 1", "open moon 1"]
    commands += ["use moon 1", "slice moon 1 with no such 1", "look around", "go to", "take"]
    commands += [f"go to {place}" for place in here] + [f"slice moon 1 with {held}"]
    for place in (*here, *game.receptacles[:3], "moon 1"):
        commands += [f"{verb} {place}" for verb in ("open", "close", "examine")]
        commands += [f"take {thing} from {place}" for thing in (*things[:2], "no such 1")]
        commands += [f"{verb} {held} with {place}" for verb in ("clean", "heat", "cool")]
        commands += [put.format(thing, place) for thing in (held, "no such 1")]
        commands += [other.format(held, place)]
    return [command for command in dict.fromkeys(commands) if command.strip() not in valid]


def test_commands_must_be_exact_but_for_blanks_around(folder):
    env = ALFWorldEnv(data_dir=folder)
    _, info = first(env)
    command = next(c for c in info["admissible_actions"] if c.startswith("go to "))
    for wrong in (command.upper(), command.replace(" ", "  ", 1), f"{command}.", f"> {command}"):
        assert env.step(wrong)[4]["invalid_action"]
    assert not env.step(f" \t{command}\n")[4]["invalid_action"]
    with pytest.raises(InvalidAction, match="str"):
        env.step(3)


def test_help_of_generated_games(nothing):
    env = ALFWorldEnv()
    env.reset(seed=0)
    assert env.step("help")[0] == HELP


# Options.


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("split", "valid_sen", "did you mean 'valid_seen'"),
        ("split", "test", "known: 'train'"),
        ("split", None, "split None"),
        ("split", 3, "split 3"),
        ("split", ["train"], "split"),
        ("split", "valid_train", "no generated games of split 'valid_train'"),
        ("engine", "nativ", "did you mean 'native'"),
        ("engine", None, "known: 'native'"),
        ("dialect", "push", "dialect cannot be 'push'"),
        ("dialect", 2, "dialect cannot be 2"),
        ("expert", "planner", "did you mean 'plan'"),
        ("expert", None, "expert cannot be None"),
        ("source", "offical", "did you mean 'official'"),
        ("source", None, "known: 'auto'"),
        ("difficulty", "harder", "did you mean 'hard'"),
        ("difficulty", 3, "difficulty must be"),
        ("difficulty", None, "difficulty must be"),
        ("difficulty", "r1-2.o3-4.f1", "expected receptacles"),
        ("generator_seed", -1, "generator_seed must be"),
        ("generator_seed", 1.5, "generator_seed must be"),
        ("generator_seed", "0", "generator_seed must be"),
        ("generator_seed", True, "generator_seed must be"),
        ("informative_errors", "false", "informative_errors must be True or False"),
        ("informative_errors", None, "informative_errors must be True or False"),
        ("data_dir", 3, "data_dir must name a folder"),
        ("data_dir", b"x", "data_dir must name a folder"),
        ("data_dir", "", "data_dir must name a folder"),
        ("data_dir", "~no-such-user-here/x", "data_dir must name a folder"),
        ("render_mode", "human", "render_mode must be 'ansi'"),
        ("max_text_length", 0, "max_length must be"),
        ("splitt", "train", "did you mean 'split'"),
        ("domain_randomization", True, "no option 'domain_randomization'"),
    ],
)
def test_wrong_options(nothing, option, value, said):
    with pytest.raises(OptionError, match=said):
        ALFWorldEnv(**{option: value})
    if option not in ("render_mode", "max_episode_steps"):
        with pytest.raises(OptionError, match=said):
            gym.make(ID, **{option: value})


def test_options_that_exclude_each_other(nothing, folder):
    for wrong in ({"dialect": "put"}, {"informative_errors": True}):
        with pytest.raises(OptionError, match="textworld"):
            ALFWorldEnv(engine="textworld", **wrong)
    with pytest.raises(OptionError, match="leave one out"):
        ALFWorldEnv(source="generated", data_dir=folder)


def test_before_the_first_reset(nothing):
    env = ALFWorldEnv()
    for call in (
        lambda: env.step("look"),
        env.snapshot,
        env.engine_facts,
        lambda: env.game,
        lambda: env.goal_reached(State()),
    ):
        with pytest.raises(NoEpisode, match="reset"):
            call()
    env.close()
    env.close()
