"""WebShop's catalogues of many sizes, and many environments on one: times and memory.

Each measurement runs in a fresh process, so that nothing of an earlier one is in memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .fresh_process import in_fresh_process
from .many_environments import measure_environments
from .record import resident_bytes, spread
from .webshop_products import PRODUCTS, QUERIES, write_products

__all__ = ["measure_search", "memory", "scale"]

_ENV = "comap/WebShop-v0"


def scale(
    products: int, seed: int, progress: Callable[[str], object] = lambda line: None
) -> dict[str, Any]:
    """Write so many invented products, build their catalogue, and measure it.

    Args:
        products: How many.
        seed: Of the products.
        progress: Told of each part that is done.

    Returns:
        ``products``, ``build_seconds`` (CPU), ``bytes`` on disk, and what `measure_search` returns.
    """
    from ..envs.webshop import build_catalog

    with tempfile.TemporaryDirectory(prefix="comap-webshop-") as folder:
        source, shop = Path(folder, "source"), Path(folder, "shop")
        write_products(source, products, seed=seed)
        progress(f"{products:,} products written")
        started = time.process_time()
        build_catalog(source / PRODUCTS, shop, nouns="lexical")
        spent = time.process_time() - started
        progress(f"{products:,} products built, {spent:.0f} s of CPU")
        size = sum(path.stat().st_size for path in shop.iterdir())
        told = in_fresh_process(measure_search, str(shop), str(source / QUERIES))
        return {"products": products, "build_seconds": spent, "bytes": size} | told


def measure_search(shop: str, queries: str) -> dict[str, Any]:
    """Open a catalogue and search it, in a process that has done nothing else.

    Args:
        shop: The catalogue's folder.
        queries: A JSON file with a list of queries.

    Returns:
        ``open_seconds`` (wall clock) and ``open_cpu_seconds``; ``resident_bytes`` of the process
        ``imported``, ``opened`` (before the first query) and ``searched``; ``query_seconds`` and
        ``again_seconds``, the spread over queries of CPU time for 50 products.
    """
    from ..envs.webshop import Catalog

    asked: list[str] = json.loads(Path(queries).read_text(encoding="utf-8"))
    held = {"imported": resident_bytes()}
    wall, cpu = time.perf_counter(), time.process_time()
    catalog = Catalog.open(shop)
    opened = {
        "open_seconds": time.perf_counter() - wall,
        "open_cpu_seconds": time.process_time() - cpu,
    }
    held["opened"] = resident_bytes()
    passes = []
    for _ in range(2):
        spent = []
        for query in asked:
            cpu = time.process_time()
            catalog.index.search(query, 50)
            spent.append(time.process_time() - cpu)
        passes.append(spread(spent))
    held["searched"] = resident_bytes()
    return {
        **opened,
        "resident_bytes": held,
        "queries": len(asked),
        "query_seconds": passes[0],
        "again_seconds": passes[1],
    }


def memory(data_dir: str | None, counts: Sequence[int]) -> dict[str, Any]:
    """Return the memory of so many environments, in one process and in as many processes.

    Args:
        data_dir: Folder of the catalogue; None for the generated one.
        counts: How many environments.

    Returns:
        For each count ``one_process`` (resident bytes) and ``processes`` (the sum of each process's
        share, pages that several use being split among them; None where Linux does not tell).
    """
    result = {}
    for count in counts:
        alone = in_fresh_process(measure_environments, _ENV, {"data_dir": data_dir}, count)
        result[str(count)] = {
            "one_process": alone["resident_bytes"],
            "processes": _processes(data_dir, count),
        }
    return result


def _processes(data_dir: str | None, count: int) -> int | None:
    """Return the memory of so many processes with an environment each, while all are alive."""
    program = (
        "import json, sys\n"
        "from comap.benchmarks.many_environments import measure_environments\n"
        "measure_environments(sys.argv[1], json.loads(sys.argv[2]), 1)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, _ENV, json.dumps({"data_dir": data_dir})]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8") for _ in range(count)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"a process ended with status {process.wait()}")
        shares = [_share(process.pid) for process in running]
    finally:
        for process in running:
            process.communicate()
    return None if None in shares else sum(share or 0 for share in shares)


def _share(pid: int) -> int | None:
    """Return a process's proportional share of memory, in bytes, where Linux tells it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")]
    return found[0] if found else None
