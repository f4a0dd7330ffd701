"""A program that owns simulators, in several ways; `test_scienceworld_backends.py` runs and kills it.

It prints one JSON value a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import gymnasium as gym

import comap  # noqa: F401
import kits.brief_jvms  # noqa: F401
from comap.envs.conformance.transcripts import record

TASK = {"task": "find-plant/3"}
ACTIONS = ("go to kitchen", "open door", "0", "look around")


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def make(**options: Any) -> Any:
    return gym.make("comap/ScienceWorld-v0", **options)


def started(**options: Any) -> Any:
    env = make(**options)
    env.reset(options=TASK)
    return env


def pid_of(env: Any) -> int:
    return env.unwrapped.engine._line.simulator.pid


def transcript(env: Any, actions: tuple[str, ...] = ACTIONS) -> list[str]:
    records = [record(*env.reset(options=TASK))]
    return records + [record(*env.step(action)) for action in actions]


def stepping_with_a_child() -> None:
    env = started()
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    say({"jvm": pid_of(env), "child": child})
    while True:
        env.step("wait1")
        env.reset(options=TASK)


def in_a_child(env: Any) -> Any:
    """Return what a forked child finds."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        *_, truncated, info = env.step("look around")
        report = {"truncated": truncated, "error": info.get("error", "")}
        try:
            report["again"] = transcript(env)
        except Exception as error:
            report["again"] = f"{type(error).__name__}: {error}"
        env.close()
        os.write(writing, json.dumps(report).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        report = json.load(pipe)
    os.waitpid(child, 0)
    return report


def forking_and_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    env = started()
    report = {"child": in_a_child(env), "after": record(*env.step("go to kitchen"))}
    report["fresh"] = transcript(env)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            env.step("wait1")
            env.reset(options=TASK)
    except KeyboardInterrupt:
        report["interrupted"] = transcript(env)
    say(report)
    env.close()


def both_sides() -> None:
    """Play on upstream's own environment, whose flags come from JDK_JAVA_OPTIONS, and on ours."""
    from scienceworld import ScienceWorldEnv

    actions = ("open door", "xyzzy", "2", "task", "open door to greenhouse", "go to greenhouse")
    actions += ("focus on adult pea plant", "pick up flower pot 7", "inventory", "wait")
    env, theirs = make(), ScienceWorldEnv("", envStepLimit=1000)
    theirs.load("find-plant", 3, "easy")
    ours_told, theirs_told = [], []
    for action in (None, *actions):
        observation, *_, info = env.step(action) if action else env.reset(options=TASK)
        points = env.unwrapped.engine.last.points if action else round(100 * info["score"])
        ours_told.append([observation, points, len(env.unwrapped.valid_actions())])
        observation, *_, info = theirs.step(action) if action else theirs.reset()
        theirs_told.append([observation, info["score"], len(set(info["valid"]))])
    env.close()
    theirs.close()
    say([ours_told, theirs_told])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
