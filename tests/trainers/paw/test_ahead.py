"""Rollouts that are played while an earlier update is trained: the order of events, ages and faults."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from comap.trainers.paw.ahead import RolloutsAhead, Stopped

WAIT = 10.0  # seconds after which a test is taken for stuck


class Stage:
    """Rollouts whose beginnings and ends are noted, and which wait until they may end."""

    def __init__(self, ahead, end=5):
        self.events = []
        self.begun = [threading.Event() for _ in range(end)]
        self.may_end = [threading.Event() for _ in range(end)]
        self.rollouts = RolloutsAhead(self.play, ahead=ahead, end=end)

    def play(self, update):
        self.events.append(f"begin {update}")
        self.begun[update].set()
        assert self.may_end[update].wait(WAIT)
        self.events.append(f"end {update}")
        return f"rollouts {update}"

    def update(self, number):
        """All of an update that concerns rollouts, but for its training; returns their age."""
        self.rollouts.pause(number)
        self.events.append(f"send {number}")
        taken_rollouts, age = self.rollouts.take(number)
        assert taken_rollouts == f"rollouts {number}"
        self.events.append(f"train {number}")
        return age


def test_the_next_rollouts_are_played_while_an_update_is_trained():
    stage = Stage(ahead=1, end=3)
    with closing(stage.rollouts):
        stage.may_end[0].set()
        assert stage.update(0) == 0
        assert stage.begun[1].wait(WAIT), "nobody has asked for these yet"
        stage.may_end[1].set()
        assert stage.update(1) == 1
        assert stage.begun[2].wait(WAIT)
        stage.may_end[2].set()
        assert stage.update(2) == 1
    order = stage.events.index
    assert order("begin 1") < order("train 1") and order("begin 2") < order("train 2")
    for update in (1, 2):  # nothing is played when weights are sent
        assert order(f"end {update}") < order(f"send {update}") < order(f"train {update}")
    assert order("send 1") < order("begin 2")


def test_rollouts_are_at_most_so_many_updates_ahead():
    stage = Stage(ahead=2)
    with closing(stage.rollouts):
        for may_end in stage.may_end:
            may_end.set()
        ages = [stage.update(0)]
        assert stage.begun[2].wait(WAIT)
        assert not stage.begun[3].wait(0.05), "that is three updates later"
        ages += [stage.update(number) for number in range(1, 5)]
    assert ages[0] == 0 and all(age <= 2 for age in ages)
    assert stage.events.count("begin 4") == 1 and len(stage.events) == 4 * 5


def test_weights_are_sent_before_rollouts_that_were_not_begun():
    """An update that has its rollouts does not wait for those of later ones, which get its weights."""
    stage = Stage(ahead=2)
    with closing(stage.rollouts):
        stage.may_end[0].set()
        stage.update(0)
        assert stage.begun[1].wait(WAIT)
        waiting = threading.Thread(target=stage.rollouts.pause, args=(1,))
        waiting.start()
        while stage.rollouts._last != 1:  # until it waits
            pass
        stage.may_end[1].set()
        waiting.join(WAIT)
        assert not waiting.is_alive() and not stage.begun[2].is_set()
        assert stage.update(1) == 1
        stage.may_end[2].set()
        assert stage.update(2) == 1
        for may_end in stage.may_end:
            may_end.set()


def test_a_fault_in_the_thread_is_raised_where_rollouts_are_wanted():
    def play(update):
        if update == 1:
            raise ValueError("the server is gone")
        return update

    with closing(RolloutsAhead(play, ahead=1, end=3)) as rollouts:
        rollouts.pause(0)
        assert rollouts.take(0) == (0, 0)
        with pytest.raises(ValueError, match="the server is gone"):
            rollouts.pause(1)


def test_closing_drops_what_is_played():
    started = threading.Event()

    def play(update):
        if update == 0:
            return update
        started.set()
        while True:
            rollouts.check()

    rollouts = RolloutsAhead(play, ahead=1, end=3)
    with closing(rollouts):
        rollouts.take(0)
        assert started.wait(WAIT)
    assert not rollouts._thread.is_alive()
    with pytest.raises(Stopped):
        rollouts.check()
