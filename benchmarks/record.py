"""What every result file says beside its numbers (versions, hardware, date), and its writing."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__

__all__ = ["circumstances", "resident_bytes", "spread", "write_result"]


def circumstances(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return when, with which versions and on what machine a benchmark runs.

    Args:
        packages: Distributions to name the versions of, beside comap and Python; those that are not
            installed get None.

    Returns:
        ``date`` (UTC), ``versions`` and ``hardware``; nothing that names the machine or its user.

    Example:
        >>> sorted(circumstances(["gymnasium"]))
        ['date', 'hardware', 'versions']
    """
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": {
            "comap": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in packages},
        },
        "hardware": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "system": platform.system(),
        },
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return smallest, quartiles and largest of one or more values.

    Example:
        >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
        {'min': 1.0, 'q1': 2.0, 'median': 3.0, 'q3': 4.0, 'max': 5.0}
    """
    if len(values) > 1:
        quartiles = statistics.quantiles(values, n=4, method="inclusive")
    else:
        quartiles = [values[0]] * 3
    shown = (min(values), *quartiles, max(values))
    return dict(zip(("min", "q1", "median", "q3", "max"), shown, strict=True))


def resident_bytes() -> int | None:
    """Return how much memory this process holds (RSS), or None where that cannot be found out.

    Example:
        >>> (resident_bytes() or 0) >= 0
        True
    """
    table = Path("/proc/self/statm")  # Linux tells without a further package
    if table.exists():
        return int(table.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def write_result(path: Path, result: object) -> None:
    """Write a result as JSON so that a reader finds the old file or the new one, whole.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_result(Path(folder, "new", "a.json"), {"n": 1})
        ...     json.loads(Path(folder, "new", "a.json").read_text())
        {'n': 1}
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """Return the processor's name, as Linux or else Python tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
