"""Any moment of an episode can be kept, and gone back to."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import SnapshotError
from ..base import Snapshot
from ..moments import restore, snapshot
from .suite import Suite, refused, same
from .transcripts import Env, Episode, follow, record, shown

__all__ = ["Snapshots"]


class Snapshots(Suite):
    """Snapshots are whole, stay what they are, and are refused where they do not fit."""

    def test_snapshot_restores_anywhere(self) -> None:
        """A pickled snapshot of any moment brings it back, here and in a fresh environment."""
        for seed in self.seeds:
            with self.make() as env, self.make() as fresh:
                episode, moments = self._moments(env, seed)
                env.reset(seed=seed + 1)
                for place, taken in moments:
                    for where, target in (("the same", env), ("a fresh", fresh)):
                        self._back(target, pickle.loads(taken), episode, place, where)

    def test_snapshot_is_not_changed_by_later_steps(self) -> None:
        """A snapshot stays what it was while the episode goes on and callers change infos."""
        with self.make() as env:
            _, info = env.reset(seed=self.seeds[0])
            taken = snapshot(env)
            rng, records = random.Random(1), []
            actions: list[str] = []
            while len(actions) < self.steps:
                actions.append(self.policy("", info, rng))
                *answer, info = env.step(actions[-1])
                records.append(record(*answer, info))
                if answer[2] or answer[3]:
                    break
            info.clear()
            for turn in ("once", "twice"):
                contract = f"a snapshot must not change, however often it is used ({turn})"
                _restored(env, taken, contract)[1].clear()
                same(records, follow(env, actions), contract)

    def test_snapshot_that_does_not_fit_is_refused(self) -> None:
        """What is no snapshot, or one of other settings, raises `SnapshotError`."""
        with self.make() as env:
            env.reset(seed=0)
            taken = snapshot(env)
            wrong: list[Any] = [None, "text", {}, object()]
            if isinstance(taken, Snapshot):
                wrong += [
                    replace(taken, env_id="comap/Other-v0"),
                    replace(taken, settings=(*taken.settings, ("dialect", "other"))),
                    replace(taken, task="no/such/task"),
                    replace(taken, engine=object()),
                ]
            for snap in wrong:
                refused(partial(restore, env, snap), SnapshotError, f"{snap!r:.200}")
            restore(env, taken)
            env.step("look")

    def _moments(self, env: Env, seed: int) -> tuple[Episode, list[tuple[int, bytes]]]:
        """Play an episode; return it and pickled snapshots of some of its moments."""
        episode = self._play(env, seed)
        count = len(episode.actions)
        places = {0, count} | set(random.Random(seed).sample(range(count), min(2, count)))
        env.reset(seed=seed)
        moments = []
        for place in range(count + 1):
            if place in places:
                moments.append((place, pickle.dumps(snapshot(env))))
            if place < count:
                env.step(episode.actions[place])
        return episode, moments

    def _back(self, env: Env, taken: Any, episode: Episode, place: int, where: str) -> None:
        """Restore step `place` of `episode` and play it to its end again."""
        contract = f"step {place} of seed {episode.seed}, restored in {where} environment,"
        then = record(*_restored(env, taken, contract))
        same([shown(episode.records[place])], [then], f"{contract} must have its text and info")
        same(
            episode.records[place + 1 :],
            follow(env, episode.actions[place:]),
            f"{contract} must go on as it did",
        )


def _restored(env: Env, taken: Any, contract: str) -> tuple[str, dict[str, Any]]:
    """Restore; a snapshot that is refused is a failure of the contract."""
    try:
        return restore(env, taken)
    except SnapshotError as error:
        raise AssertionError(f"{contract}; found it refused: {error}") from error
