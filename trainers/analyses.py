"""The policy's own reflections on states, which its replies begin with, without loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..agents.parsing import first_line
from ..errors import DataCorrupt, LanguageModelError
from ..lm import Generate
from .processes import is_first, wait
from .run_folder import read_json, write_json
from .samples import Sample

if TYPE_CHECKING:
    from .session import Session

__all__ = ["own_analyses"]

_WORD = "Reflection:"
_STOP = ("\nDecision:", "\nFinal Action:")


def own_analyses(
    session: Session, path: Path, samples: Sequence[Sample]
) -> dict[tuple[str, int], str]:
    """Return what the policy, as it is now, says of states before it decides (METHODS.md 1.6, step 6).

    Args:
        session: The training.
        path: A file: what is there is taken from it, else it is written.
        samples: Samples of the reflect mode, one for each state.

    Returns:
        One line for each sample, by its task and the number of actions before it.

    Raises:
        LanguageModelError: The policy failed at one of them.
        DataCorrupt: The file is not of these samples.

    Example:
        >>> path = Path("analyses.json")
        >>> write_json(path, [])
        >>> own_analyses(None, path, [])
        {}
    """
    if is_first() and not path.exists():
        write_json(path, _ask(session, samples))
    wait()
    try:
        texts = read_json(path)
        if len(texts) != len(samples) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"it is not {len(samples)} texts")
    except (ValueError, TypeError) as error:
        raise DataCorrupt(
            f"expected the policy's reflections in {path}, found something else ({error}); remove "
            "that file"
        ) from error
    keys = [(sample.task, sample.step) for sample in samples]
    return dict(zip(keys, texts, strict=True))


def _ask(session: Session, samples: Sequence[Sample]) -> list[str]:
    config = session.comap_config()
    requests = [
        Generate(
            sample.messages,
            config.sampling(config.reflect_tokens, _STOP, session.seed("analysis", number)),
            adapter="agent",
            purpose="reflect: analysis",
        )
        for number, sample in enumerate(samples)
    ]
    found = []
    for said in session.language_model().generate(requests):
        if isinstance(said, LanguageModelError):
            raise said
        found.append(first_line(said.text.strip().removeprefix(_WORD)))
    return found
