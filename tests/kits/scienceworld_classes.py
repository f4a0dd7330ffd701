"""Compiling the Java classes of `comap.envs.scienceworld.simulator`; alone, it replaces those shipped.

A JDK is needed. What they are compiled against are the simulator's classes as `simulator` patches them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import comap  # noqa: F401
from comap.envs.scienceworld.simulator import OURS, patched_classes, simulator_jar

JAVAC = 17  # with another one the bytes may differ
COMPILED = OURS / "compiled.json"  # what the shipped classes were compiled from


def digests() -> dict[str, str]:
    """Return the digest of each source."""
    sources = sorted(OURS.glob("*.java"))
    return {source.name: hashlib.sha256(source.read_bytes()).hexdigest() for source in sources}


def javac() -> str | None:
    """Return the right compiler, or None."""
    program = shutil.which("javac")
    if program is None:
        return None
    process = subprocess.run([program, "-version"], capture_output=True, text=True, check=True)
    return program if f" {JAVAC}." in process.stdout + process.stderr else None


def compiled() -> dict[str, bytes]:
    """Return the class files of the sources, by name."""
    program = javac()
    assert program is not None, f"expected a JDK {JAVAC} on the PATH, found none"
    with tempfile.TemporaryDirectory() as folder:
        patched = Path(folder, "patched.jar")
        with zipfile.ZipFile(simulator_jar()) as archive, zipfile.ZipFile(patched, "w") as new:
            for name, content in patched_classes(archive.read).items():
                new.writestr(name, content)
        flags = ["--release", "8", "-Xlint:-options", "-g:none", "-d", folder]
        flags += ["-cp", f"{patched}:{simulator_jar()}"]
        subprocess.run([program, *flags, *map(str, sorted(OURS.glob("*.java")))], check=True)
        return {
            class_file.name: class_file.read_bytes()
            for class_file in Path(folder, "comap").glob("*.class")
        }


if __name__ == "__main__":
    for old_class_file in OURS.glob("*.class"):
        old_class_file.unlink()
    for file_name, data in compiled().items():
        (OURS / file_name).write_bytes(data)
    COMPILED.write_text(json.dumps(digests(), indent=2) + "\n")
