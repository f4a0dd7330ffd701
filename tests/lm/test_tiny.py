from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.lm.tiny import build_tiny, shape_of, tokenizer_of

pytest.importorskip("torch")
pytest.importorskip("transformers")

CORPUS = ["You are in the middle of a room. You see a cabinet 12, and a fridge 1."] * 3
TOKENIZER = tokenizer_of(CORPUS, 400)
BUILD = """
import sys
from comap.lm.tiny import build_tiny
words = "a b c cabinet d e f fridge mug plate shelf"
build_tiny(sys.argv[1], [words] * 3, parameters=200_000, seed=int(sys.argv[2]))
"""
WORDS = "a b c cabinet d e f fridge mug plate shelf"


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@given(st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    special = [token for token in TOKENIZER.all_special_tokens if token in text]
    if not special:
        assert TOKENIZER.decode(ids) == text
        assert not set(ids) & set(TOKENIZER.all_special_ids)


def test_words_of_the_corpus_and_digits_are_tokens() -> None:
    tokens = TOKENIZER.tokenize("You see a cabinet 12")
    assert len(tokens) == 6, tokens


def test_the_chat_template_opens_and_closes_each_message() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    text = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>hi<|end|><|assistant|>ho<|end|><|assistant|>"


@pytest.mark.parametrize("parameters", [200_000, 500_000, 3_000_000, 20_000_000, 100_000_000])
def test_shapes_come_near_the_size_asked_for(parameters: int) -> None:
    assert abs(shape_of(parameters, 400).parameters - parameters) < 0.15 * parameters


def test_the_number_of_parameters_is_the_models_own(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = build_tiny(tmp_path, CORPUS, parameters=300_000, vocabulary=400)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.num_parameters() == shape_of(300_000, len(TOKENIZER)).parameters
    assert str(model.dtype) == "torch.float64"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"parameters": 1000}, "200,000"),
        ({"parameters": 10**9}, "100,000,000"),
        ({"vocabulary": 10}, "at least 320"),
        ({"dtype": "int8"}, "float32"),
    ],
)
def test_wrong_sizes_are_refused(tmp_path: Path, arguments: dict[str, int], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        build_tiny(tmp_path, CORPUS, **arguments)  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_files_in_any_process(tmp_path: Path) -> None:
    other = "7" if os.environ.get("PYTHONHASHSEED") != "7" else "0"  # than this process has
    environment = {**os.environ, "PYTHONHASHSEED": other, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BUILD, str(tmp_path / "elsewhere"), "1"]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    digests = [digest(tmp_path / "elsewhere")]
    for seed in (1, 2):
        path = build_tiny(tmp_path / str(seed), [WORDS] * 3, parameters=200_000, seed=seed)
        digests.append(digest(path))
    assert digests[0] == digests[1] != digests[2]
