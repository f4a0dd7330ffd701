"""Tests play on the embedded tasks, whatever data this machine has."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import kits.brief_jvms  # noqa: F401

os.environ["COMAP_HOME"] = str(Path(tempfile.gettempdir()) / "comap-tests-without-data")
os.environ.pop("ALFWORLD_DATA", None)
# Programs that tests start import the kits as tests do, whose path pyproject.toml sets.
HERE = str(Path(__file__).parent)
if HERE not in (PATH := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*PATH, HERE)))
# A machine that stands still for a moment is no failure of what is tested.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", UNTIMED, max_examples=50)
settings.register_profile("long", UNTIMED, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))

gc.disable()  # until all is imported: see `pytest_collection_finish`

LONG = (
    "test_examples.py",
    "envs/web/test_web_chromium.py",
    "trainers/paw/test_trainer.py",
    "docs/test_docs_code.py",
    "envs/test_conformance.py",
    "trainers/paw/test_training.py",
    "agents/test_ray.py",
    "trainers/test_sharding.py",
    "envs/scienceworld/test_scienceworld_backends.py",
    "envs/scienceworld/test_scienceworld_fast_classes.py",
    "cli/test_train.py",
    "trainers/coevolution/test_killed_training.py",
    "integrations/test_openenv_package.py",
    "envs/alfworld/test_parity.py",
    "envs/web/test_web_miniwob.py",
    "test_house.py",
    "test_long_texts.py",
    "envs/web/test_web_conformance.py",
    "envs/test_briefings.py",
    "cli/test_mistakes.py",
    "envs/web/test_web_fetch.py",
    "cli/test_scaffold.py",
    "agents/test_all_agents.py",
    "benchmarks/experiments/test_cluster.py",
    "envs/scienceworld/test_scienceworld_env.py",
    "benchmarks/test_gpu.py",
    "trainers/test_row_trainer.py",
    "cli/test_environments.py",
    "benchmarks/experiments/test_runner.py",
    "benchmarks/test_demo.py",
    "benchmarks/test_viewer.py",
    "benchmarks/test_set_rows.py",
    "benchmarks/test_evaluation_set.py",
)
"""Files that take longest: where several processes share the files, these begin first, so that none is
left alone with one of them at the end."""


MANY = 100
"""Modules after which it pays to leave them out of the looks for garbage, which trainers do often."""
_modules = 0


class RootIsAFolder:
    """Collect the root of the repository as a folder, though it has an ``__init__.py``.

    As a package pytest would import it under the folder's name, which fails where that is no
    identifier (GitHub's ZIP unpacks to ``comap-main``). The option ``--confcutdir`` would do it too,
    but for one working directory only.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        if path != Path(__file__).parents[1]:
            return None
        return pytest.Dir.from_parent(parent, path=path)


def pytest_configure(config: pytest.Config) -> None:
    """Register what a conftest.py cannot say of a folder above its own."""
    config.pluginmanager.register(RootIsAFolder())


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny models, laid out as those that comap ships."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from kits.shipped_stand_in import stand_in

    return stand_in(tmp_path_factory.mktemp("shipped"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first; the rest keeps its order."""
    tests_folder = Path(__file__).parent
    first = {tests_folder / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: first.get(item.path, len(LONG)))


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay till the end, out of every later look for garbage."""
    _leave_out_what_stays()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """Leave out modules that tests have imported since, where there are many."""
    if len(sys.modules) > _modules + MANY:
        _leave_out_what_stays()


def _leave_out_what_stays() -> None:
    global _modules
    gc.collect()
    gc.freeze()
    _modules = len(sys.modules)
