"""Generated tasks are never taken for a benchmark's own: who did not ask for them is warned."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium as gym
import pytest

import comap
from comap.cli import main
from comap.envs import generated
from comap.envs.generated import generated_is_told, is_generated, tasks_in_words
from comap.errors import DataNotFound
from comap.integrations.verl_agent import make_envs

WITH_OFFICIAL_DATA = ("ALFWorld", "WebShop", "StableToolBench", "SearchQA")
"""The environments that play official data where they find some."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """No data on this machine, and nobody was warned yet."""
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    generated._warn_once.cache_clear()


def generated_warnings(action) -> list[warnings.WarningMessage]:
    """Return the warnings of generated tasks that something gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [warning for warning in caught if "generated" in str(warning.message)]


@pytest.mark.parametrize("name", WITH_OFFICIAL_DATA)
def test_who_gets_generated_tasks_without_asking_is_warned_once(name):
    env_id = f"comap/{name}-v0"

    def twice():
        for _ in range(2):
            env = gym.make(env_id)
            assert is_generated(env.unwrapped.tasks.ids[0])

    (warning,) = generated_warnings(twice)
    assert env_id in str(warning.message) and 'source="generated"' in str(warning.message)
    assert warning.filename == __file__, "the line that is named is the user's"


@pytest.mark.parametrize("name", WITH_OFFICIAL_DATA)
def test_who_asks_for_generated_tasks_or_for_official_ones_is_not_warned(name):
    assert not generated_warnings(lambda: gym.make(f"comap/{name}-v0", source="generated"))
    with pytest.raises(DataNotFound):
        generated_warnings(lambda: gym.make(f"comap/{name}-v0", source="official").unwrapped.tasks)


def test_environments_whose_tasks_nobody_replaces_do_not_warn():
    others = {spec.id for spec in gym.registry.values() if spec.namespace == comap.__name__}
    others -= {f"comap/{name}-v0" for name in WITH_OFFICIAL_DATA}
    for env_id in sorted(others):
        assert not generated_warnings(lambda env_id=env_id: gym.make(env_id))


def test_verl_agents_environments_warn_once_for_both():
    config = {
        "env": {
            "env_name": "alfworld/AlfredTWEnv",
            "alfworld": {"eval_dataset": "eval_in_distribution"},
            "seed": 0,
            "max_steps": 3,
            "history_length": 2,
            "rollout": {"n": 2},
        },
        "data": {"train_batch_size": 1, "val_batch_size": 1},
    }

    def open_and_close(**options):
        for manager in make_envs(config, **options):
            manager.close()

    assert len(generated_warnings(open_and_close)) == 1
    generated._warn_once.cache_clear()
    assert not generated_warnings(lambda: open_and_close(source="generated"))


def test_a_vector_of_processes_warns_once(tmp_path):
    script = (
        "import gymnasium as gym, comap\n"
        "if __name__ == '__main__':\n"
        "    for _ in range(2):\n"
        "        envs = gym.make_vec('comap/ALFWorld-v0', num_envs=2, vectorization_mode='async')\n"
        "        envs.reset(seed=0)\n"
        "        envs.close()\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    process = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    assert process.stderr.count("found no official data") == 1


def test_the_command_line_says_it_in_its_table_and_does_not_warn(tmp_path, capsys):
    words = ["run", "--agent", "expert", "--episodes", "2", "--out", str(tmp_path / "run")]
    assert not generated_warnings(lambda: main(words))
    assert "valid_unseen: 2 generated tasks" in capsys.readouterr().out
    assert len(generated_warnings(lambda: gym.make("comap/ALFWorld-v0"))) == 1, (
        "nobody else is silenced by it"
    )


def test_those_who_tell_it_themselves_are_not_warned():
    with generated_is_told():
        assert not generated_warnings(lambda: gym.make("comap/ALFWorld-v0"))
    assert generated_warnings(lambda: gym.make("comap/ALFWorld-v0"))


def test_official_data_are_played_without_a_word(tmp_path):
    folder = tmp_path / "home" / "stabletoolbench" / "test_instruction"
    folder.mkdir(parents=True)
    (folder / "G1_tool.json").write_text("[]")
    assert not generated_warnings(lambda: gym.make("comap/StableToolBench-v0", split="G1_tool"))


def test_numbers_of_tasks_in_words():
    assert tasks_in_words(1, 1) == "1 generated task" and tasks_in_words(0, 0) == "0 tasks"
    assert tasks_in_words(1_340, 0) == "1,340 tasks"
    assert tasks_in_words(3, 1) == "3 tasks, 1 of them generated"
