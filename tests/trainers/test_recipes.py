"""Accelerate reads each recipe, and starts processes as the trainings expect them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import comap
from comap.errors import OptionError
from comap.trainers.recipes import RECIPES, main, recipe
from comap.trainers.sharded import check_sharding, wants_shards

launch = pytest.importorskip("accelerate.commands.launch")


def environment_of(name: str) -> tuple[Any, dict[str, str]]:
    """What accelerate makes of a recipe: its options, and the environment that its processes get."""
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    given = ["--config_file", str(recipe(name)), "-m", "comap", "train", "comap"]
    args = launch.launch_command_parser().parse_args(given)
    args, _, _ = launch._validate_launch_command(args)
    if args.num_processes == 1:
        return args, prepare_simple_launcher_cmd_env(args)[1]
    return args, prepare_multi_gpu_env(args)


@pytest.mark.parametrize("name", RECIPES)
def test_accelerate_makes_of_a_recipe_what_trainings_take(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(os.environ)
    try:
        args, env = environment_of(name)
    finally:
        os.environ.clear()
        os.environ.update(before)
    kind, _, number = name.partition("-")
    assert args.num_processes == int(number)
    assert args.num_machines == max(int(number) // 8, 1)
    for key in list(os.environ):
        if key.startswith(("ACCELERATE_", "FSDP_")):
            monkeypatch.delenv(key)
    for key, value in env.items():
        if key.startswith(("ACCELERATE_", "FSDP_")):
            monkeypatch.setenv(key, value)
    assert wants_shards() is (kind != "ddp")
    check_sharding("lora")
    if kind != "ddp":
        assert env["FSDP_RESHARD_AFTER_FORWARD"] == str(kind == "fsdp").lower()
        with pytest.raises(OptionError, match="LoRA"):
            check_sharding("full")


def test_deepspeed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(OptionError, match="recipes"):
        check_sharding("lora")


def test_recipes_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and capsys.readouterr().out.split() == list(RECIPES)
    assert main(["ddp-4"]) == 0 and Path(capsys.readouterr().out.strip()).is_file()
    assert main(["dp-4"]) == 1 and "did you mean 'ddp-4'?" in capsys.readouterr().err


def test_two_processes_start_by_a_recipe(tmp_path: Path) -> None:
    """The recipe of four GPUs with two processes on CPUs."""
    script = tmp_path / "who.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "from accelerate import PartialState\n"
        "from comap.trainers.processes import gathered, rank, world_size\n"
        "state = PartialState(cpu=True)\n"
        "told = gathered([rank()])\n"
        f"pathlib.Path({str(tmp_path)!r}, f'{{rank()}}.json').write_text(\n"
        "    json.dumps([rank(), world_size(), told]))\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--num_processes", "2", "--main_process_ip", "127.0.0.1"]
    words += ["--main_process_port", str(port), "--config_file", str(recipe("ddp-4"))]
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = str(Path(comap.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *words, str(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [json.loads((tmp_path / f"{n}.json").read_text()) for n in (0, 1)] == [
        [0, 2, [0, 1]],
        [1, 2, [0, 1]],
    ]
