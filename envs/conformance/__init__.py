"""`EnvConformance`, the tests that every environment of this package passes.

A new environment inherits them::

    from comap.envs.conformance import EnvConformance

    class TestMyEnv(EnvConformance):
        env_id = "comap/ALFWorld-v0"
        kwargs = {"split": "valid_seen"}

pytest finds the methods. An environment that ``gym.make`` alone does not make, for example one that
is wrapped, names a function instead: ``maker = "package.module:function"``, or
``maker = f"{__file__}:function"``, and ``maker_args``; fresh processes call it too.
"""

from __future__ import annotations

from .suite import NONSENSE, Answers, Replays, Rules, Snapshots

__all__ = ["NONSENSE", "EnvConformance"]


class EnvConformance(Rules, Replays, Snapshots, Answers):
    """A mixin of tests for one environment.

    Everything goes through `make`, so that a wrapped environment is tested as it is used.
    `comap.envs.conformance.suite.Suite` lists what a subclass may set or replace.

    Example:
        >>> class TestMyEnv(EnvConformance):
        ...     env_id = "comap/ALFWorld-v0"
        >>> sorted(name for name in dir(TestMyEnv) if name.startswith("test_snapshot"))[0]
        'test_snapshot_is_not_changed_by_later_steps'
    """
