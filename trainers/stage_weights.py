"""The weights that a stage leaves: in its folder, one file for each role, and one for the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..agents.records import writing
from ..agents.refinement import RefinementHead
from ..errors import DataCorrupt
from .processes import is_first, wait
from .run_folder import HEAD, StageFolder

if TYPE_CHECKING:
    from .session import Session

__all__ = ["load_weights", "save_weights"]


def save_weights(session: Session, stage: StageFolder, roles: Sequence[str]) -> dict[str, str]:
    """Write the weights of roles, and with the agent's the head, and return the names of the files.

    Args:
        session: The training.
        stage: The stage.
        roles: The roles.

    Example:
        >>> save_weights(None, StageFolder(Path("stages/00-some"), "some"), ())
        {}
    """
    from safetensors.torch import save_file

    if is_first():
        with writing(stage.path):
            for role in roles:
                path = stage.weights(role)
                draft = path.with_name(path.name + ".part")
                save_file(session.roles.state(role), draft)
                draft.replace(path)
            if "agent" in roles:
                session.head.save(stage.weights(HEAD))
    wait()
    names = (*roles, HEAD) if "agent" in roles else tuple(roles)
    return {name: stage.weights(name).name for name in names}


def load_weights(session: Session, files: Mapping[str, Path]) -> None:
    """Take over weights that `save_weights` wrote.

    Args:
        session: The training.
        files: The file of each role, and of the head.

    Raises:
        DataNotFound: The head's file is missing.
        DataCorrupt: Another file is missing, or one holds no such weights.

    Example:
        >>> load_weights(None, {"agent": Path("nowhere.safetensors")})
        Traceback (most recent call last):
        comap.errors.DataCorrupt: expected the weights of agent in nowhere.safetensors, found ...
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for role, path in files.items():
        if role == HEAD:
            session.head = RefinementHead.load(path)
            continue
        try:
            state = load_file(path)
        except (OSError, SafetensorError) as error:
            raise DataCorrupt(
                f"expected the weights of {role} in {path}, found {error}; remove the folders of that "
                "stage and of all later ones to do them again"
            ) from error
        session.roles.load(role, state)
