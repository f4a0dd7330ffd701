"""What records call world models, and which of these are the real environment in disguise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .base import WorldModel
from .create import create_world_model
from .oracle import OracleWorldModel

NOT_TO_REPORT = "which tries actions in the real environment; not a result to report"
"""What is said of the oracle wherever numbers of agents that asked it stand."""

_CLASSES = {
    "LanguageWorldModel": "a language model",
    "NoisyWorldModel": "noisy",
    "NullWorldModel": "null",
    "OracleWorldModel": "oracle",
    "RetrievalWorldModel": "retrieval",
}
"""What records called world models before they named them: by their classes."""

# "oracle", and "noisy 0.1", whose model behind is the oracle unless the name says "of ..."
_REAL = re.compile(
    r"(?P<kind>oracle(?: \(\w+\))?|noisy(?: (?P<rate>[\d.e-]+))?)(?:, cached by \w+)*"
)


def name_of(model: WorldModel) -> str:
    """Return what records call a world model: its own `name`, or that of its class.

    Example:
        >>> from comap.worldmodel import NoisyWorldModel, OracleWorldModel
        >>> name_of(OracleWorldModel()), name_of(NoisyWorldModel(0.2))
        ('oracle', 'noisy 0.2')
    """
    cls = type(model)

    # A class that extends one of ours is another model: the name that it inherits is not its own.
    has_own_name = "name" in vars(cls) or "name" in getattr(model, "__dict__", {})
    if has_own_name:
        name = getattr(model, "name", None)
        if isinstance(name, str) and name:
            return name

    # One that extends the oracle still tries actions really, and records must say so.
    if isinstance(model, OracleWorldModel):
        return f"oracle ({cls.__name__})"
    return cls.__name__


def tries_really(model: object) -> bool:
    """Return whether a world model, or the config of one, answers by trying actions really.

    Example:
        >>> from comap.worldmodel import NullWorldModel
        >>> tries_really({"id": "noisy", "error_rate": 0.2}), tries_really(NullWorldModel())
        (True, False)
    """
    if isinstance(model, Mapping):
        # What a cache or the noisy model stands before decides. Without a model behind it, the noisy
        # one has the oracle.
        behind: Any = model.get("model")
        if behind is not None:
            return tries_really(behind)
        return model.get("id") in ("oracle", "noisy")
    if isinstance(model, str):
        return model in ("oracle", "noisy")
    return isinstance(model, WorldModel) and _REAL.fullmatch(name_of(model)) is not None


def in_words(name: str) -> str:
    """Return a recorded name of a world model in words; of the oracle with what to think of it.

    Example:
        >>> in_words("noisy 0.1")
        'the oracle with errors (rate 0.1), which tries actions in the real environment; not a \
result to report'
        >>> in_words("retrieval")
        'retrieval'
    """
    name = _CLASSES.get(name, name)
    real = _REAL.fullmatch(name)
    if real is None:
        return name

    kind = real["kind"]
    if kind.startswith("noisy"):
        kind = "oracle with errors"
        if real["rate"]:
            kind += f" (rate {real['rate']})"
    cache_note = name[real.end("kind") :]
    return f"the {kind}{cache_note}, {NOT_TO_REPORT}"


def words_of(model: WorldModel | str | Mapping[str, Any]) -> str:
    """Return `in_words` of a world model or of its config; what may be large is not made for it."""
    # The oracle costs nothing to make, and its name has its rate; a language model may take minutes.
    if isinstance(model, str | Mapping) and tries_really(model):
        model = create_world_model(model)

    if isinstance(model, Mapping):
        return str(model.get("id"))
    if isinstance(model, str):
        return model
    return in_words(name_of(model))


def listed_in_words(names: Iterable[str]) -> str:
    """Return the names of several world models in words, each once."""
    return "; ".join(dict.fromkeys(in_words(name) for name in names))
