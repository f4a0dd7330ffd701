"""`comap train paw --simulator`: which model plays the search engine, and what is told of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..lm.create import kind_of
from ..lm.shipped import folder_of, full_name
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.simulator_model import TINY_SIMULATOR
from ..trainers.setup_models import weights_hash

__all__ = ["check_simulator", "simulator_told"]

_TAUGHT_FOR = "tiny_zerosearch"


def check_simulator(options: argparse.Namespace, config: PaWTraining) -> None:
    """Take the simulator that goes with the preset, and refuse one that is lacking or of no use.

    Args:
        options: The parsed arguments; ``simulator`` is set where the preset ``tiny_zerosearch`` has it.
        config: The settings.

    Raises:
        OptionError: There is none, or one for a training that needs none.

    Example:
        >>> options = argparse.Namespace(preset="tiny_zerosearch", simulator=None)
        >>> check_simulator(options, PaWTraining(engine="simulated"))
        >>> options.simulator
        'tiny'
    """
    simulated = config.engine == "simulated"
    if simulated and options.simulator is None and options.preset == _TAUGHT_FOR:
        options.simulator = TINY_SIMULATOR
    if simulated == (options.simulator is not None):
        return
    if simulated:
        raise OptionError(
            "expected a model that plays the search engine, found none; add --simulator, such as "
            "--simulator Qwen/Qwen2.5-3B-Instruct, http://HOST:PORT/v1#NAME or tiny"
        )
    raise OptionError(
        f"--simulator plays the search engine with --engine simulated, found {config.engine!r}; leave "
        "it out, or take the preset zerosearch"
    )


def simulator_told(spec: str | None) -> dict[str, Any]:
    """Return what a training's folder tells of its simulator; no place of this machine, no address.

    Args:
        spec: What ``--simulator`` says.

    Example:
        >>> simulator_told("http://127.0.0.1:8000/v1#Qwen/Qwen2.5-3B"), simulator_told(None)
        ({'simulator': {'name': 'Qwen/Qwen2.5-3B', 'kind': 'remote'}}, {})
    """
    if spec is None:
        return {}
    kind = kind_of(spec)
    if kind != "local":
        name = spec.partition("#")[2] if kind == "remote" else "replay"
        return {"simulator": {"name": name, "kind": kind}}
    told: dict[str, Any] = {"name": spec, "kind": kind}
    shipped = full_name(spec)
    place = Path(spec).expanduser() if shipped is None else folder_of(shipped)
    if spec != TINY_SIMULATOR and place.is_dir():
        told |= {"name": shipped or place.resolve().name, "sha256": weights_hash(place)}
    return {"simulator": told}
