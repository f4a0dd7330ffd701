"""Tests play on the embedded tasks, whatever data this machine has."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["COMAP_HOME"] = str(Path(tempfile.gettempdir()) / "comap-tests-without-data")
os.environ.pop("ALFWORLD_DATA", None)
