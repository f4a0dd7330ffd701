"""The tiny model that tests of the Hugging Face backend share."""

from __future__ import annotations

import pytest

CORPUS = [
    "You see a cabinet 1, a shelf 2 and a fridge; go to take open close KEEP KEPT apple from"
] * 2


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model whose tokens have very different probabilities; an untrained one says all alike."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file

    from comap.lm.tiny import build_tiny

    path = build_tiny(
        tmp_path_factory.mktemp("models") / "tiny", CORPUS, parameters=200_000, max_length=256
    )
    weights = load_file(path / "model.safetensors")
    sharp = {key: 6 * value if value.ndim == 2 else value for key, value in weights.items()}
    save_file(sharp, path / "model.safetensors", {"format": "pt"})
    return path
