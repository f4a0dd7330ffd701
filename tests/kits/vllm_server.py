"""The real vLLM's server on a CPU, for tests of doors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads wait for each other on shared cores
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""For engines on two shared cores."""


def start_server(
    model: Path, log: Path, *options: str, context: int = 2048, port: int | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """Return the process of a server that takes weights and adapters, and its address."""
    port = free_port() if port is None else port
    words = [
        str(Path(sys.executable).parent / "vllm"),
        *("serve", str(model), "--served-model-name", "smol", "--host", "127.0.0.1"),
        *("--port", str(port), "--max-model-len", str(context), "--dtype", "float32"),
        *("--max-num-seqs", "16", "--max-num-batched-tokens", str(16 * context)),
        *("--generation-config", "vllm", "--logprobs-mode", "raw_logprobs", "--enforce-eager"),
        *options,
    ]
    environment = os.environ | {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    process = subprocess.Popen(
        words,
        env=environment,
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 300
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return process, url
        except OSError:
            assert process.poll() is None, log.read_text("utf-8", "replace")[-3000:]
            assert time.monotonic() < end
            time.sleep(1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a server at once, with the engine that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
