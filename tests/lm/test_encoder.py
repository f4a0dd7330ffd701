"""Encoders against vectors that are computed here."""

from __future__ import annotations

import json
import pickle
import sys

import numpy as np
import pytest

from comap.errors import DataNotFound, MissingExtra, OptionError
from comap.lm.encoder import TransformerEncoder
from kits.tiny_encoder import write_tiny_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["Emma", "a longer text by far", "half a \ud800 pair", ""]


def by_hand(model, folder, texts):
    """The mean of the last hidden states of each text by itself, with length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    vectors = []
    for text in texts:
        ids = torch.tensor([tokenizer(text).input_ids])
        with torch.no_grad():
            states = model.eval()(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        mean = states.mean(0).numpy()
        vectors.append(mean / np.linalg.norm(mean))
    return np.array(vectors)


def test_vectors_of_an_encoder(tmp_path):
    folder = write_tiny_encoder(tmp_path / "e5-tiny")
    encoder = TransformerEncoder(folder)
    assert encoder.prefixes == ("query: ", "passage: ") and encoder.pooling == "mean"
    model = transformers.AutoModel.from_pretrained(folder)
    for side, prefix in (("query", "query: "), ("passage", "passage: ")):
        texts = [prefix + text.replace("\ud800", "\ufffd") for text in TEXTS]
        vectors = encoder.encode(TEXTS, side)  # together, so padded
        assert np.allclose(vectors, by_hand(model, folder, texts), atol=1e-5)
    assert not np.allclose(encoder.encode(["Emma"], "query"), encoder.encode(["Emma"], "passage"))
    assert encoder.encode([], "query").shape == (0, 16)
    copied = pickle.loads(pickle.dumps(encoder))
    assert np.array_equal(copied.encode(TEXTS, "query"), encoder.encode(TEXTS, "query"))
    first = TransformerEncoder(folder, ["", ""], "cls").encode(["Emma"], "query")
    assert not np.allclose(first, encoder.encode(["Emma"], "query"))


def test_vectors_of_a_language_model_without_a_padding_token(folder, tmp_path):
    """What the authors of WKM compute: the mean of a language model's last hidden states."""
    bare = tmp_path / "lm"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(bare)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(bare)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (bare / name).exists():
            settings = json.loads((bare / name).read_text())
            settings.pop("pad_token", None)
            (bare / name).write_text(json.dumps(settings))
    assert transformers.AutoTokenizer.from_pretrained(bare).pad_token is None
    texts = ["You see a fridge", "take apple from shelf 2 and go to a cabinet 1"]
    encoder = TransformerEncoder(bare, device="auto")
    assert np.allclose(encoder.encode(texts, "query"), by_hand(model, bare, texts), atol=1e-5)


def test_what_cannot_be_loaded(tmp_path, monkeypatch):
    with pytest.raises(DataNotFound, match="sentence encoder"):
        TransformerEncoder(tmp_path / "missing").encode(["a"], "query")
    with pytest.raises(OptionError, match="pooling"):
        TransformerEncoder("e5", pooling="max")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"\[dense\]"):
        TransformerEncoder(tmp_path).encode(["a"], "query")
